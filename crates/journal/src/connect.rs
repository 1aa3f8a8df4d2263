//! Opening the journal's file: its schema, its one writer, its readers, and moving aside one that is damaged. Only the store calls it.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use sqlx::{
    SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::{
        SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
    },
};

use super::{Error, store::from_sql};

/// How long a statement waits for another process that holds the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that read; each owner has one at a time.
const READERS: u32 = 4;

#[derive(Debug, Clone)]
pub(super) struct Pools {
    /// One connection: SQLite has one writer at a time, and waiting in a pool beats waiting in SQLite.
    pub(super) writer: SqlitePool,
    pub(super) readers: SqlitePool,
}

/// Opens the file for writing, bringing it to the schema of this version. Returns the newest sequence number too.
pub(super) async fn connect(path: &Path) -> Result<(Pools, u64), Error> {
    let failed = |source| Error::Database { action: "open", path: path.to_owned(), source };
    // SQLite would create the file with the umask's mode; code and output in it are private. Its -wal and
    // -shm files take their mode from this one.
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(|source| Error::Io {
        action: "create",
        path: path.to_owned(),
        source,
    })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // NORMAL loses no committed event when the process is killed; a power cut may lose those since the
        // last checkpoint of the log, never the file.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("journal_size_limit", "8388608");
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        // So that a file that has become too long can give pages back.
        .connect_with(options.clone().auto_vacuum(SqliteAutoVacuum::Incremental))
        .await
        .map_err(failed)?;
    let migrator = migrator();
    migrator.run(&writer).await.map_err(|source| match source {
        MigrateError::VersionMissing(version) => Error::Newer {
            path: path.to_owned(),
            version,
            known: migrator.iter().map(|m| m.version).max().unwrap_or(0),
        },
        MigrateError::Execute(source) => failed(source),
        source => Error::Migrate { path: path.to_owned(), source },
    })?;
    let last: Option<i64> =
        sqlx::query_scalar("SELECT max(seq) FROM events").fetch_one(&writer).await.map_err(failed)?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .idle_timeout(Duration::from_mins(1))
        .max_lifetime(None)
        .connect_lazy_with(options.read_only(true));
    Ok((Pools { writer, readers }, from_sql(last.unwrap_or(0))))
}

/// Opens a file that cannot be written now, to read what is in it: without the files beside it, which SQLite needs for everything else.
pub(super) async fn connect_to_read(path: &Path) -> (Pools, u64) {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).immutable(true);
    let readers = SqlitePoolOptions::new().max_connections(READERS).connect_lazy_with(options);
    let last: Result<Option<i64>, _> = sqlx::query_scalar("SELECT max(seq) FROM events").fetch_one(&readers).await;
    // There may be no events, or no table of them yet.
    let last = last.ok().flatten().unwrap_or(0);
    (Pools { writer: readers.clone(), readers }, from_sql(last))
}

fn migrator() -> Migrator {
    let migration = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(vec![
        migration(1, "events", include_str!("migrations/0001_events.sql")),
        migration(2, "usage", include_str!("migrations/0002_usage.sql")),
        migration(3, "opened", include_str!("migrations/0003_opened.sql")),
    ])
}

/// Reads every page of the file.
pub(super) async fn check(path: &Path) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_TIMEOUT);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    let verdict: Result<String, sqlx::Error> = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&pool).await;
    pool.close().await;
    match verdict?.as_str() {
        "ok" => Ok(()),
        problem => Err(sqlx::Error::Protocol(problem.to_owned())),
    }
}

pub(super) fn lock(path: &Path) -> Result<File, Error> {
    let path = beside(path, ".lock");
    let failed = |source| Error::Io { action: "lock", path: path.clone(), source };
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::InUse { path }),
        Err(std::fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Moves the file and its write-ahead log to `NAME.damaged-TIMESTAMP`.
pub(super) fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%S%6f");
    let aside = beside(path, &format!(".damaged-{stamp}"));
    for suffix in ["", "-wal", "-shm"] {
        let from = beside(path, suffix);
        match std::fs::rename(&from, beside(&aside, suffix)) {
            Err(source) if suffix.is_empty() || source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Io { action: "move aside", path: from, source });
            }
            _ => {}
        }
    }
    Ok(aside)
}

pub(super) fn remove(path: &Path) -> Result<(), Error> {
    std::fs::remove_file(path).map_err(|source| Error::Io { action: "remove", path: path.to_owned(), source })
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
