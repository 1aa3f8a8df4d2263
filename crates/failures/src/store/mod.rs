//! Where runs and failures are kept: SQLite by default, PostgreSQL for a team. Opening, migrations, and what to do with a file that is
//! damaged. `write` takes in what runs report, `change` what people do, `read` answers, `trim` forgets.

mod change;
mod open;
mod read;
mod regroup;
pub(crate) mod sql;
mod trim;
mod write;

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};

use super::error::Error;
pub use open::without_password;
pub(crate) use read::Light;
use sql::Db;
pub use trim::Trimmed;
pub(crate) use write::Trial;

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A file, made where there is none.
    Sqlite(PathBuf),
    /// `postgres://…`.
    Postgres(String),
}

/// How much is kept. The oldest goes first; checked now and then, so a little more may be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Of runs, and of failures that were not seen since.
    pub max_age: std::time::Duration,
    pub max_failures: u64,
    /// Of SQLite's file.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_age: std::time::Duration::from_hours(180 * 24), max_failures: 200_000, max_bytes: 2 << 30 }
    }
}

#[derive(Debug)]
pub(crate) struct Store {
    db: Db,
    /// For messages: a path, or an address without its password.
    place: String,
    file: Option<PathBuf>,
}

impl Store {
    pub(crate) fn failed(&self, action: &'static str, source: sqlx::Error) -> Error {
        let error = Error::of(action, &self.place, source);
        if let (Error::Damaged { .. }, Some(file)) = (&error, &self.file) {
            open::suspect(file);
        }
        error
    }

    pub(crate) fn reading(&self) -> impl Fn(sqlx::Error) -> Error {
        |source| self.failed("read", source)
    }

    pub(crate) async fn close(&self) {
        self.db.close().await;
    }
}

/// The word of an enum, as it is in JSON.
fn word<T: Serialize>(value: T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// An enum by its word. What a newer version wrote is what this one takes for it.
fn by_word<T: DeserializeOwned>(word: &str, otherwise: T) -> T {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).unwrap_or(otherwise)
}

pub(crate) fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

#[expect(clippy::cast_sign_loss, reason = "counts")]
fn count(value: i64) -> u64 {
    value.max(0) as u64
}

fn small(value: i64) -> u32 {
    u32::try_from(value).unwrap_or_default()
}
