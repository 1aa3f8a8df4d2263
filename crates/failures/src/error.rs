//! What can go wrong with test runs and failures, in words: a kind for programs, a message, and the way out.

use std::{path::PathBuf, sync::Arc};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("line {number} is not a record: {why}")]
    Line { number: usize, why: String },
    #[error("there is no run `{run}`: its first record has not arrived")]
    UnknownRun { run: String },
    #[error("there is no {what} `{id}`")]
    Unknown { what: &'static str, id: String },
    #[error("{what} is not valid: {why}")]
    Invalid { what: &'static str, why: String },
    #[error("nothing shows that failure {id} is resolved: {why}")]
    NotShown { id: String, test: String, why: String },
    #[error("the store at `{place}` was made by a newer pylair: its schema is {version}, this one knows {known}")]
    Newer { place: String, version: i64, known: i64 },
    #[error("cannot bring the store at `{place}` to the schema of this version")]
    Migrate {
        place: String,
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    #[error("the store at `{place}` cannot be reached")]
    Unavailable {
        place: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("another process holds the store at `{place}`")]
    Locked {
        place: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("there is no space left for the store at `{place}`")]
    Full {
        place: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("the store at `{place}` is damaged")]
    Damaged {
        place: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot {action} the store at `{place}`")]
    Database {
        action: &'static str,
        place: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot {action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the store is closed")]
    Closed,
    /// The same for several callers.
    #[error(transparent)]
    Shared(Arc<Error>),
}

impl Error {
    /// The message with its cause.
    pub fn message(&self) -> String {
        pylair_text::plain::with_causes(self)
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Line { .. } | Self::Invalid { .. } => "invalid",
            Self::UnknownRun { .. } => "unknown_run",
            Self::Unknown { what: "failure", .. } => "unknown_failure",
            Self::Unknown { what: "group", .. } => "unknown_group",
            Self::Unknown { .. } => "unknown",
            Self::NotShown { .. } => "not_shown",
            Self::Newer { .. } => "store_newer",
            Self::Migrate { .. } | Self::Database { .. } | Self::Io { .. } => "store_failed",
            Self::Unavailable { .. } | Self::Closed => "store_unavailable",
            Self::Locked { .. } => "store_locked",
            Self::Full { .. } => "store_full",
            Self::Damaged { .. } => "store_damaged",
            Self::Shared(error) => error.kind(),
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Line { .. } => "every line is one JSON object with `ev` and `run`; none of these was taken".into(),
            Self::UnknownRun { .. } => "send its `run` record first".into(),
            Self::Unknown { what: "failure", .. } => "the list of failures shows all ids".into(),
            Self::Unknown { what: "group", .. } => "an analysis of the failures shows all groups".into(),
            Self::Unknown { .. } => "look at the list".into(),
            Self::Invalid { .. } => "nothing was changed".into(),
            Self::NotShown { id, test, .. } => {
                format!(
                    "run `pylair test '{test}'`, together with the tests that ran before it when it failed, and see it pass; a person may say it with `pylair failures debug {id} --status resolved --force`"
                )
            }
            Self::Newer { .. } => {
                "install the newer pylair, or name another store with the setting `database`; nothing was changed, and what runs report is kept by them".into()
            }
            Self::Migrate { .. } => "use another store, or ask whoever made this one".into(),
            Self::Unavailable { .. } => {
                "see whether the database runs and can be reached; what runs report meanwhile is kept by them".into()
            }
            Self::Locked { .. } => "end the other process, or try again when it is done".into(),
            Self::Full { .. } => "free some space, or lower `failures_mb`; what was kept can be read".into(),
            Self::Damaged { .. } => "the next start of the daemon moves the file aside and begins a new one".into(),
            Self::Io { path, source, .. } if is_refused(source) => {
                format!(
                    "let the daemon's user read and write `{}` and its directory, or set another store",
                    path.display()
                )
            }
            Self::Database { place, source, .. } if is_read_only(source) => {
                format!("let the daemon's user write `{place}` and its directory; what was kept can be read")
            }
            Self::Database { .. } | Self::Io { .. } => "the daemon's log has more".into(),
            Self::Closed => "the daemon is ending".into(),
            Self::Shared(error) => error.hint(),
        }
    }

    /// Whether the same may work later, with nothing changed by the caller.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Shared(error) => error.is_temporary(),
            // A newer store is not wrong: what is reported meanwhile waits for the pylair that knows it.
            Self::Newer { .. } | Self::Unavailable { .. } | Self::Locked { .. } | Self::Full { .. } | Self::Closed => {
                true
            }
            _ => false,
        }
    }

    pub(crate) fn of(action: &'static str, place: &str, source: sqlx::Error) -> Self {
        let place = place.to_owned();
        match Trouble::of(&source) {
            Trouble::Locked => Self::Locked { place, source },
            Trouble::Full => Self::Full { place, source },
            Trouble::Damaged => Self::Damaged { place, source },
            Trouble::Lost | Trouble::Conflict => Self::Unavailable { place, source },
            Trouble::Other => Self::Database { action, place, source },
        }
    }
}

fn is_refused(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem)
}

/// SQLite's word for a file that may not be written, with what more it says in the high bytes.
fn is_read_only(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.and_then(|code| code.parse::<i32>().ok()).is_some_and(|code| code & 0xff == 8)
}

/// What a database means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Locked,
    Full,
    Damaged,
    /// There is no connection.
    Lost,
    /// Another writer was in the way; the same works when it is done again.
    Conflict,
    Other,
}

impl Trouble {
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => Self::Lost,
            sqlx::Error::Database(error) => {
                let code = error.code().unwrap_or_default();
                if let Some(error) = error.try_downcast_ref::<sqlx::sqlite::SqliteError>() {
                    return Self::of_sqlite(
                        sqlx::error::DatabaseError::code(error).and_then(|code| code.parse::<i32>().ok()).unwrap_or(0),
                    );
                }
                match code.as_ref() {
                    "40001" | "40P01" | "55P03" => Self::Conflict,
                    "53100" | "53200" => Self::Full,
                    "XX001" | "XX002" => Self::Damaged,
                    code if code.starts_with("08") || code.starts_with("57P") || code.starts_with("53") => Self::Lost,
                    _ => Self::Other,
                }
            }
            _ => Self::Other,
        }
    }

    /// The low byte of an extended code is the plain one.
    fn of_sqlite(code: i32) -> Self {
        match code & 0xff {
            5 | 6 => Self::Locked,
            13 => Self::Full,
            11 | 26 => Self::Damaged,
            _ => Self::Other,
        }
    }
}
