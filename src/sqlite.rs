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
