//! The one writer of a SQLite file, as `journal` and `failures` have it.

use sqlx::{Sqlite, SqlitePool, Transaction};

/// Begins a transaction of the writer, a pool of one connection. Taking the lock later would mean failing when somebody else took it
/// meanwhile.
///
/// Where a disk was full SQLite takes a transaction back by itself, of which the connection does not know, and it never begins another
/// one: a new connection does.
pub async fn begin(writer: &SqlitePool) -> sqlx::Result<Transaction<'static, Sqlite>> {
    const BEGIN: &str = "BEGIN IMMEDIATE";
    match writer.begin_with(BEGIN).await {
        Err(sqlx::Error::InvalidSavePointStatement) => {
            writer.acquire().await?.close().await?;
            writer.begin_with(BEGIN).await
        }
        begun => begun,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_transaction_that_sqlite_took_back_is_not_the_last() {
        let writer =
            sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        let mut taken_back = begin(&writer).await.unwrap();
        sqlx::query("ROLLBACK").execute(&mut *taken_back).await.unwrap();
        assert!(taken_back.commit().await.is_err());
        for _ in 0..2 {
            begin(&writer).await.unwrap().commit().await.unwrap();
        }
    }
}
