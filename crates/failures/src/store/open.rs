//! Opening either database: a file that is made, migrated, or moved aside when it is damaged; a server that may not be there.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use jiff::Timestamp;
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use super::{Database, Store, sql::Db};
use crate::error::{Error, Trouble};
use pylair_os::event_loop;

/// How long a statement waits for another process that holds the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READERS: u32 = 4;
const CONNECTIONS: u32 = 8;
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "failures", include_str!("migrations/0001_failures.sql")),
    (2, "prints", include_str!("migrations/0002_prints.sql")),
    (3, "pinned", include_str!("migrations/0003_pinned.sql")),
    (4, "environments", include_str!("migrations/0004_environments.sql")),
    (5, "judged", include_str!("migrations/0005_judged.sql")),
];

impl Store {
    pub(crate) async fn open(database: &Database) -> Result<Self, Error> {
        let database = database.clone();
        // Whoever asks may leave in the middle. What SQLite has begun goes on, and the next to open the file must wait for it.
        let opening = event_loop::spawn(async move {
            match &database {
                Database::Sqlite(path) => {
                    // Two processes that open a file for the first time would both migrate it.
                    let _held = hold(path).await?;
                    Self::open_file(path).await
                }
                Database::Postgres(address) => Self::connect(address).await,
            }
        });
        opening.await.map_err(|_| Error::Closed)?
    }

    async fn open_file(path: &Path) -> Result<Self, Error> {
        let mark = beside(path, ".suspect");
        if mark.exists() {
            // The last writer met damage that opening the file does not show; only a full check finds it.
            if check(path).await.is_err() {
                move_aside(path)?;
            }
            std::fs::remove_file(&mark).map_err(|source| Error::Io { action: "remove", path: mark, source })?;
        }
        match lite(path).await {
            Err(Error::Damaged { .. }) => {
                move_aside(path)?;
                lite(path).await
            }
            opened => opened,
        }
    }

    async fn connect(address: &str) -> Result<Self, Error> {
        let invalid = |why: String| Error::Invalid { what: "the setting `database`", why };
        let options = PgConnectOptions::from_str(address).map_err(|why| invalid(why.to_string()))?;
        let place = without_password(address);
        let options = options.application_name("pylair");
        let failed = |source| match Trouble::of(&source) {
            Trouble::Other => Error::Unavailable { place: place.clone(), source },
            _ => Error::of("open", &place, source),
        };
        // By itself first: a pool would try again and again where nobody listens, and then say only that it took too long.
        let tried = tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(&options)).await;
        let first = tried.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(failed)?;
        let _lost = first.close().await;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT);
        let pool = pool.connect_with(options).await.map_err(failed)?;
        let migrator = migrator(Dialect::Pg);
        migrator.run(&pool).await.map_err(|source| migrating(&migrator, &place, source))?;
        Ok(Self { db: Db::Pg(pool), place, file: None })
    }
}

async fn lite(path: &Path) -> Result<Store, Error> {
    let place = path.display().to_string();
    let failed = |source| Error::of("open", &place, source);
    // SQLite would create the file with the umask's mode; what tests print is private. Its -wal and -shm files take their mode from this one.
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(|source| Error::Io {
        action: "create",
        path: path.to_owned(),
        source,
    })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // What was acknowledged is there after a power cut.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(false)
        .row_buffer_size(1024)
        .pragma("journal_size_limit", "67108864")
        .pragma("cache_size", "-16384");
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(Duration::from_mins(1))
        .connect_with(options.clone())
        .await
        .map_err(failed)?;
    let migrator = migrator(Dialect::Lite);
    migrator.run(&writer).await.map_err(|source| migrating(&migrator, &place, source))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .idle_timeout(Duration::from_mins(1))
        .max_lifetime(None)
        .connect_lazy_with(options.read_only(true));
    Ok(Store { db: Db::Lite { readers, writer }, place, file: Some(path.to_owned()) })
}

/// Where the schemas of the two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Lite,
    Pg,
}

fn migrator(dialect: Dialect) -> Migrator {
    let (key, without_rowid) = match dialect {
        Dialect::Lite => ("INTEGER PRIMARY KEY AUTOINCREMENT", " WITHOUT ROWID"),
        Dialect::Pg => ("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", ""),
    };
    let migrations = MIGRATIONS.iter().map(|(version, name, text)| {
        let text = text.replace("{key}", key).replace("{without_rowid}", without_rowid);
        let text = AssertSqlSafe(text).into_sql_str();
        Migration::new(*version, (*name).into(), MigrationType::Simple, text, false)
    });
    Migrator::with_migrations(migrations.collect())
}

fn migrating(migrator: &Migrator, place: &str, source: MigrateError) -> Error {
    match source {
        MigrateError::VersionMissing(version) => {
            let known = migrator.iter().map(|migration| migration.version).max().unwrap_or(0);
            Error::Newer { place: place.to_owned(), version, known }
        }
        MigrateError::Execute(source) => Error::of("migrate", place, source),
        source => Error::Migrate { place: place.to_owned(), source },
    }
}

/// Waits for the lock beside the file, held while it is opened.
async fn hold(path: &Path) -> Result<File, Error> {
    let path = beside(path, ".lock");
    let locked = tokio::task::spawn_blocking(move || {
        let failed = |source| Error::Io { action: "lock", path: path.clone(), source };
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    });
    locked.await.map_err(|_| Error::Closed)?
}

/// Remembers for the next start that the file is to be checked: nothing is mended under a running daemon.
pub(super) fn suspect(path: &Path) {
    if let Err(error) = File::create(beside(path, ".suspect")) {
        tracing::warn!(%error, "cannot mark the store as damaged");
    }
}

/// Reads every page of the file.
async fn check(path: &Path) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_TIMEOUT);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    let verdict: Result<String, sqlx::Error> = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&pool).await;
    pool.close().await;
    match verdict?.as_str() {
        "ok" => Ok(()),
        problem => Err(sqlx::Error::Protocol(problem.to_owned())),
    }
}

/// Moves the file and its write-ahead log to `NAME.damaged-TIMESTAMP`.
fn move_aside(path: &Path) -> Result<(), Error> {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%S%6f");
    let aside = beside(path, &format!(".damaged-{stamp}"));
    tracing::warn!(path = %aside.display(), "the store is damaged and was moved aside; a new one is started");
    for suffix in ["", "-wal", "-shm"] {
        let from = beside(path, suffix);
        match std::fs::rename(&from, beside(&aside, suffix)) {
            Err(source) if suffix.is_empty() || source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Io { action: "move aside", path: from, source });
            }
            _ => {}
        }
    }
    Ok(())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// For messages and `doctor`.
pub fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return "the database".to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split('?').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_older_store_is_brought_up_to_date_and_a_newer_one_refused() {
        let directory = std::env::temp_dir().join(format!("pylair-store-test-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("failures.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true).foreign_keys(false);
        let older = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
        let all = migrator(Dialect::Lite);
        let first: Vec<Migration> = all.iter().take(2).cloned().collect();
        Migrator::with_migrations(first).run(&older).await.unwrap();
        for sql in [
            "INSERT INTO projects (id, key, name, root) VALUES (1, 'k', 'n', '/r')",
            "INSERT INTO groups (id, name, project_id, reason, by_hand, run_id, made) VALUES (5, 'gggggggg', 1, 'r', 1, 1, 1)",
            "INSERT INTO failures (id, name, project_id, test_id, fingerprint, group_id, status, kind, message, pattern, phase, traits, \
             first_seen, last_seen, first_run, last_run, occurrences) VALUES (7, 'f', 1, 3, 'print', 5, 'new', 'E', '', '', 'call', '{}', 1, 1, 1, 1, 1)",
            "INSERT INTO pins (project_id, fingerprint, group_id) VALUES (1, 'print', 5)",
        ] {
            sqlx::query(AssertSqlSafe(sql)).execute(&older).await.unwrap();
        }
        older.close().await;
        let database = Database::Sqlite(path.clone());
        Store::open(&database).await.unwrap().close().await;
        let newer = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let pinned: (i64, i64) =
            sqlx::query_as("SELECT test_id, group_id FROM pinned").fetch_one(&newer).await.unwrap();
        assert_eq!(pinned, (3, 5), "what was said by hand is kept");
        let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (99, 'x', 1, x'00', 0)";
        sqlx::query(sql).execute(&newer).await.unwrap();
        newer.close().await;
        let refused = Store::open(&database).await.unwrap_err();
        assert!(matches!(refused, Error::Newer { version: 99, .. }), "{refused}");
        assert!(refused.is_temporary() && refused.hint().contains("newer pylair"), "{}", refused.hint());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let check = |address: &str, expect: &str| assert_eq!(without_password(address), expect);
        check("postgres://ann:s3cret@db.example/pylair?password=x", "postgres://db.example/pylair");
        check("postgres://ann:p@ss@db:5432", "postgres://db:5432");
        check("postgres:///pylair?host=/run", "postgres:///pylair");
        check("nonsense s3cret", "the database");
    }
}
