//! Two databases behind one SQL text. `$1` means the same in both, and everything kept is one of three types; `open` knows where their
//! schemas differ. Only `store` and `ingest` call it.

use futures::{TryStreamExt, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, Decode, PgPool, Postgres, Row as _, Sqlite, SqlitePool, Transaction, Type,
    postgres::{PgArguments, PgRow},
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

#[derive(Debug, Clone)]
pub(crate) enum Db {
    /// One connection that writes, because waiting in a pool beats waiting in SQLite; some that read.
    Lite {
        readers: SqlitePool,
        writer: SqlitePool,
    },
    Pg(PgPool),
}

pub(crate) enum Tx {
    Lite(Transaction<'static, Sqlite>),
    Pg(Transaction<'static, Postgres>),
}

/// A value of a statement. Times are microseconds, truths 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
}

/// A row of a result. Columns are read by their names in the statement. A missing column, another type and an unexpected NULL are errors.
pub(crate) enum Row {
    Lite(SqliteRow),
    Pg(PgRow),
}

impl Row {
    fn get<'r, T>(&'r self, column: &str) -> sqlx::Result<T>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>,
    {
        match self {
            Self::Lite(row) => row.try_get(column),
            Self::Pg(row) => row.try_get(column),
        }
    }

    pub(crate) fn int(&self, column: &str) -> sqlx::Result<i64> {
        self.maybe_int(column)?.ok_or_else(|| unexpected_null(column))
    }

    pub(crate) fn maybe_int(&self, column: &str) -> sqlx::Result<Option<i64>> {
        self.get(column)
    }

    /// A truth, which is kept as 0 or 1.
    pub(crate) fn flag(&self, column: &str) -> sqlx::Result<bool> {
        Ok(self.int(column)? != 0)
    }

    pub(crate) fn real(&self, column: &str) -> sqlx::Result<f64> {
        self.maybe_real(column)?.ok_or_else(|| unexpected_null(column))
    }

    pub(crate) fn maybe_real(&self, column: &str) -> sqlx::Result<Option<f64>> {
        self.get(column)
    }

    pub(crate) fn text(&self, column: &str) -> sqlx::Result<String> {
        self.maybe_text(column)?.ok_or_else(|| unexpected_null(column))
    }

    pub(crate) fn maybe_text(&self, column: &str) -> sqlx::Result<Option<String>> {
        self.get(column)
    }
}

/// SQLite's driver decodes a NULL as 0 or as an empty text where no option is asked for.
fn unexpected_null(column: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: Box::new(sqlx::error::UnexpectedNullError) }
}

macro_rules! from {
    ($($type:ty => |$value:ident| $made:expr),* $(,)?) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $made
            }
        })*
    };
}

from! {
    i64 => |value| Value::Int(Some(value)),
    i32 => |value| Value::Int(Some(value.into())),
    u32 => |value| Value::Int(Some(value.into())),
    bool => |value| Value::Int(Some(value.into())),
    f64 => |value| Value::Real(Some(value)),
    Option<f64> => |value| Value::Real(value),
    Option<i64> => |value| Value::Int(value),
    Option<i32> => |value| Value::Int(value.map(Into::into)),
    Option<u32> => |value| Value::Int(value.map(Into::into)),
    &str => |value| Value::Text(Some(storable(value.to_owned()))),
    String => |value| Value::Text(Some(storable(value))),
    &String => |value| Value::Text(Some(storable(value.clone()))),
    Option<String> => |value| Value::Text(value.map(storable)),
    Option<&str> => |value| Value::Text(value.map(|value| storable(value.to_owned()))),
}

/// PostgreSQL takes no NUL in a text.
fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::sql::Value::from($value)),*]
    };
}
pub(crate) use values;

impl Db {
    pub(crate) async fn begin(&self) -> sqlx::Result<Tx> {
        match self {
            Self::Lite { writer, .. } => Ok(Tx::Lite(pylair_sqlite::begin(writer).await?)),
            Self::Pg(pool) => Ok(Tx::Pg(pool.begin().await?)),
        }
    }

    /// A transaction that only reads, and waits for no writer.
    pub(crate) async fn begin_reading(&self) -> sqlx::Result<Tx> {
        match self {
            Self::Lite { readers, .. } => Ok(Tx::Lite(readers.begin().await?)),
            Self::Pg(pool) => Ok(Tx::Pg(pool.begin().await?)),
        }
    }

    pub(crate) async fn fetch(&self, sql: impl Into<String>, values: Vec<Value>) -> sqlx::Result<Vec<Row>> {
        self.stream(sql, values).try_collect().await
    }

    pub(crate) async fn fetch_one(&self, sql: impl Into<String>, values: Vec<Value>) -> sqlx::Result<Option<Row>> {
        Ok(self.fetch(sql, values).await?.into_iter().next())
    }

    /// Rows as they come, for many of them.
    pub(crate) fn stream(&self, sql: impl Into<String>, values: Vec<Value>) -> BoxStream<'_, sqlx::Result<Row>> {
        let sql = AssertSqlSafe(sql.into());
        match self {
            Self::Lite { readers, .. } => {
                Box::pin(bind_lite(sqlx::query(sql), values).fetch(readers).map_ok(Row::Lite))
            }
            Self::Pg(pool) => Box::pin(bind_pg(sqlx::query(sql), values).fetch(pool).map_ok(Row::Pg)),
        }
    }

    /// The functions that make JSON of many rows, and of one.
    pub(crate) fn json_functions(&self) -> (&'static str, &'static str) {
        match self {
            Self::Lite { .. } => ("json_group_array", "json_array"),
            Self::Pg(_) => ("json_agg", "json_build_array"),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Lite { readers, writer } => {
                readers.close().await;
                // The last connection folds the write-ahead log into the file.
                writer.close().await;
            }
            Self::Pg(pool) => pool.close().await,
        }
    }
}

impl Tx {
    pub(crate) async fn execute(&mut self, sql: impl Into<String>, values: Vec<Value>) -> sqlx::Result<u64> {
        let sql = AssertSqlSafe(sql.into());
        match self {
            Self::Lite(tx) => Ok(bind_lite(sqlx::query(sql), values).execute(&mut **tx).await?.rows_affected()),
            Self::Pg(tx) => Ok(bind_pg(sqlx::query(sql), values).execute(&mut **tx).await?.rows_affected()),
        }
    }

    pub(crate) async fn fetch(&mut self, sql: impl Into<String>, values: Vec<Value>) -> sqlx::Result<Vec<Row>> {
        let sql = AssertSqlSafe(sql.into());
        match self {
            Self::Lite(tx) => {
                let rows = bind_lite(sqlx::query(sql), values).fetch_all(&mut **tx).await?;
                Ok(rows.into_iter().map(Row::Lite).collect())
            }
            Self::Pg(tx) => {
                let rows = bind_pg(sqlx::query(sql), values).fetch_all(&mut **tx).await?;
                Ok(rows.into_iter().map(Row::Pg).collect())
            }
        }
    }

    pub(crate) async fn fetch_one(&mut self, sql: impl Into<String>, values: Vec<Value>) -> sqlx::Result<Option<Row>> {
        Ok(self.fetch(sql, values).await?.into_iter().next())
    }

    pub(crate) async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Lite(tx) => tx.commit().await,
            Self::Pg(tx) => tx.commit().await,
        }
    }
}

/// `($1, $2), ($3, $4)`, for a statement over several rows.
pub(crate) fn tuples(rows: usize, columns: usize) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(rows * columns * 6);
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..columns {
            let comma = if column == 0 { "" } else { ", " };
            let _infallible = write!(text, "{comma}${}", row * columns + column + 1);
        }
        text.push(')');
    }
    text
}

/// `$3, $4, $5`, after so many others.
pub(crate) fn places(after: usize, count: usize) -> String {
    (after + 1..=after + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

type LiteQuery<'q> = Query<'q, Sqlite, SqliteArguments>;
type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

fn bind_lite(query: LiteQuery<'_>, values: Vec<Value>) -> LiteQuery<'_> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Int(value) => query.bind(value),
        Value::Real(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
    })
}

fn bind_pg(query: PgQuery<'_>, values: Vec<Value>) -> PgQuery<'_> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Int(value) => query.bind(value),
        Value::Real(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_column_of_another_name_or_type_is_an_error() {
        let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
        let db = Db::Lite { readers: pool.clone(), writer: pool };
        let sql = "SELECT 'seven' AS word, 7 AS number, 1 AS truth, 0.5 AS half, NULL AS missing";
        let row = db.fetch_one(sql, Vec::new()).await.unwrap().unwrap();
        assert_eq!((row.text("word").unwrap().as_str(), row.int("number").unwrap()), ("seven", 7));
        assert!(row.flag("truth").unwrap() && row.maybe_real("half").unwrap() == Some(0.5));
        assert_eq!((row.maybe_text("missing").unwrap(), row.maybe_int("missing").unwrap()), (None, None));
        assert!(matches!(row.int("other"), Err(sqlx::Error::ColumnNotFound(_))));
        for refused in
            [row.int("word").err(), row.text("number").err(), row.int("half").err(), row.text("missing").err()]
        {
            assert!(matches!(refused, Some(sqlx::Error::ColumnDecode { .. })), "{refused:?}");
        }
    }
}
