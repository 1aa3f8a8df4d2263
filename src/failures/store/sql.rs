//! Two databases behind one SQL text. `$1` means the same in both, and everything kept is one of three types; `open` knows where their
//! schemas differ. Only `store` and `ingest` call it.

use futures::{TryStreamExt, stream::BoxStream};
use sqlx::{
    AssertSqlSafe, Column, PgPool, Postgres, Row as _, Sqlite, SqlitePool, Transaction, TypeInfo, ValueRef,
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

/// A value of a statement or of a row. Times are microseconds, truths 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
}

/// A row; columns are taken one after the other, in the order of the statement.
#[derive(Debug)]
pub(crate) struct Row {
    values: std::vec::IntoIter<Value>,
}

impl Row {
    fn next(&mut self) -> Value {
        self.values.next().expect("as many columns as the statement names")
    }

    pub(crate) fn int(&mut self) -> i64 {
        self.maybe_int().unwrap_or_default()
    }

    pub(crate) fn maybe_int(&mut self) -> Option<i64> {
        match self.next() {
            Value::Int(value) => value,
            // A sum of integers is a number of another kind in PostgreSQL.
            #[expect(clippy::cast_possible_truncation, reason = "sums of counts")]
            Value::Real(value) => value.map(|value| value as i64),
            Value::Text(value) => value.and_then(|value| value.parse().ok()),
        }
    }

    pub(crate) fn real(&mut self) -> f64 {
        match self.next() {
            Value::Real(value) => value.unwrap_or_default(),
            #[expect(clippy::cast_precision_loss, reason = "seconds and ratios")]
            Value::Int(value) => value.unwrap_or_default() as f64,
            Value::Text(_) => 0.0,
        }
    }

    pub(crate) fn maybe_real(&mut self) -> Option<f64> {
        match self.next() {
            Value::Real(value) => value,
            #[expect(clippy::cast_precision_loss, reason = "seconds and ratios")]
            Value::Int(value) => value.map(|value| value as f64),
            Value::Text(_) => None,
        }
    }

    pub(crate) fn text(&mut self) -> String {
        self.maybe_text().unwrap_or_default()
    }

    pub(crate) fn maybe_text(&mut self) -> Option<String> {
        match self.next() {
            Value::Text(value) => value,
            Value::Int(value) => value.map(|value| value.to_string()),
            Value::Real(value) => value.map(|value| value.to_string()),
        }
    }
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
        vec![$($crate::failures::store::sql::Value::from($value)),*]
    };
}
pub(crate) use values;

impl Db {
    pub(crate) async fn begin(&self) -> sqlx::Result<Tx> {
        match self {
            Self::Lite { writer, .. } => Ok(Tx::Lite(crate::sqlite::begin(writer).await?)),
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
            Self::Lite { readers, .. } => Box::pin(
                bind_lite(sqlx::query(sql), values).fetch(readers).and_then(|row| async move { lite_row(&row) }),
            ),
            Self::Pg(pool) => {
                Box::pin(bind_pg(sqlx::query(sql), values).fetch(pool).and_then(|row| async move { pg_row(&row) }))
            }
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
                rows.iter().map(lite_row).collect()
            }
            Self::Pg(tx) => {
                let rows = bind_pg(sqlx::query(sql), values).fetch_all(&mut **tx).await?;
                rows.iter().map(pg_row).collect()
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

fn lite_row(row: &SqliteRow) -> sqlx::Result<Row> {
    let mut values = Vec::with_capacity(row.len());
    for index in 0..row.len() {
        let raw = row.try_get_raw(index)?;
        let kind = raw.type_info();
        values.push(match kind.name() {
            "INTEGER" | "BOOLEAN" => Value::Int(row.try_get_unchecked(index)?),
            "REAL" => Value::Real(row.try_get_unchecked(index)?),
            _ if raw.is_null() => Value::Int(None),
            _ => Value::Text(row.try_get_unchecked(index)?),
        });
    }
    Ok(Row { values: values.into_iter() })
}

fn pg_row(row: &PgRow) -> sqlx::Result<Row> {
    let mut values = Vec::with_capacity(row.len());
    for index in 0..row.len() {
        values.push(match row.column(index).type_info().name() {
            "INT8" => Value::Int(row.try_get(index)?),
            "INT4" => Value::Int(row.try_get::<Option<i32>, _>(index)?.map(Into::into)),
            "FLOAT8" => Value::Real(row.try_get(index)?),
            "BOOL" => Value::Int(row.try_get::<Option<bool>, _>(index)?.map(Into::into)),
            _ => Value::Text(row.try_get(index)?),
        });
    }
    Ok(Row { values: values.into_iter() })
}
