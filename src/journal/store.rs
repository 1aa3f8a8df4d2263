//! The journal's SQLite file: schema, inserts, reads, and what to do with a file that is damaged
//! or too new. Only the journal calls it; nothing here knows about followers or pending events.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use sqlx::{
    Arguments, AssertSqlSafe, Row, SqlSafeStr, SqlStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::{
        SqliteArguments, SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
        SqliteRow, SqliteSynchronous,
    },
};

use super::{
    Error,
    event::{Event, EventKind},
    trim::{ROW_BYTES, Usage},
};
use crate::event_loop::apart;

/// How long a statement waits for another process that holds the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows per INSERT: a round trip to the SQLite thread costs more than a row.
const ROWS_PER_INSERT: usize = 64;

const COUNT: &str = "INSERT INTO usage (owner, events, bytes) VALUES (?1, ?2, ?3) \
     ON CONFLICT (owner) DO UPDATE SET events = events + ?2, bytes = bytes + ?3";
const INSERT_ONE: &str = "INSERT INTO events (seq, at, owner, target, kind, body) VALUES (?, ?, ?, ?, ?, ?)";

static INSERT_MANY: LazyLock<SqlStr> = LazyLock::new(|| {
    let mut sql = String::from(INSERT_ONE);
    sql.push_str(&", (?, ?, ?, ?, ?, ?)".repeat(ROWS_PER_INSERT - 1));
    AssertSqlSafe(sql).into_sql_str()
});

#[derive(Debug)]
pub(super) struct Store {
    pub(super) path: PathBuf,
    /// One connection: SQLite has one writer at a time, and waiting in a pool beats waiting in SQLite.
    pub(super) writer: SqlitePool,
    readers: SqlitePool,
    /// A std mutex: held for a few numbers.
    pub(super) usage: Mutex<Usage>,
}

/// An opened store, and where a damaged predecessor went.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) store: Store,
    pub(super) last_seq: u64,
    pub(super) damaged: Option<PathBuf>,
    /// To be held until the store is closed. Sequence numbers are assigned in memory, so a second process
    /// must not write even when SQLite would let it.
    pub(super) lock: File,
}

/// Rows of one read. `found` counts also those whose body this version cannot read, so that a reader
/// can tell a short page from a page with strangers in it.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) events: Vec<Arc<Event>>,
    pub(super) found: usize,
    pub(super) last_seq: Option<u64>,
}

impl Store {
    pub(super) async fn open(path: &Path) -> Result<Opened, Error> {
        let lock = lock(path)?;
        let mut damaged = None;
        // SQLite removes its log when the last connection closes properly.
        let unclean = std::fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
        let suspect = beside(path, ".suspect");
        if suspect.exists() {
            // The last writer met damage that opening the file does not show; only a full check finds it.
            if let Err(error) = check(path).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "the journal is damaged");
                damaged = Some(move_aside(path)?);
            }
            remove(&suspect)?;
        }
        let (writer, readers, mut last_seq) = match connect(path).await {
            Err(error) if error.is_damage() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the journal is damaged");
                damaged = Some(move_aside(path)?);
                connect(path).await?
            }
            connected => connected?,
        };
        if unclean {
            // Numbers that followers saw but that were never saved are not given out again.
            last_seq += super::MAX_UNSAVED_EVENTS;
        }
        let store = Store { path: path.to_owned(), writer, readers, usage: Mutex::default() };
        store.load_usage().await?;
        Ok(Opened { store, last_seq, damaged, lock })
    }

    /// Writes the events in one transaction. Returns how many bytes they take.
    pub(super) async fn insert(&self, events: &[Arc<Event>]) -> Result<u64, Error> {
        let written = async {
            let weight = events.iter().map(|event| event.kind.heap_bytes()).sum();
            let rows = apart(weight, || events.iter().map(RowOf::new).collect::<Result<Vec<_>, _>>())?;
            let mut added: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
            for row in &rows {
                let (events, bytes) = added.entry(&row.event.owner).or_default();
                (*events, *bytes) = (*events + 1, *bytes + row.body.len() as u64 + ROW_BYTES);
            }
            let mut transaction = crate::sqlite::begin(&self.writer).await?;
            let (many, rest) = rows.as_chunks::<ROWS_PER_INSERT>();
            for chunk in many {
                sqlx::query_with(INSERT_MANY.clone(), arguments(chunk)?).execute(&mut *transaction).await?;
            }
            for row in rest {
                sqlx::query_with(INSERT_ONE, arguments(std::slice::from_ref(row))?).execute(&mut *transaction).await?;
            }
            for (owner, (events, bytes)) in &added {
                let count = sqlx::query(COUNT).bind(owner.to_string()).bind(to_sql(*events)).bind(to_sql(*bytes));
                count.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            let mut usage = self.usage();
            for (owner, (events, bytes)) in &added {
                usage.add(owner, *events, *bytes);
            }
            Ok(added.values().map(|(_, bytes)| bytes).sum())
        };
        written.await.map_err(|source| self.failed("write", source))
    }

    /// Events with `after < seq < before`, oldest first: the first `limit` of them.
    pub(super) async fn first(
        &self,
        owner: Option<&str>,
        target: Option<&str>,
        after: u64,
        before: u64,
        limit: usize,
    ) -> Result<Rows, Error> {
        // `+seq` would lose the order; with both names given the index gives rows in order of seq.
        let sql = match (owner, target) {
            (Some(_), Some(_)) => {
                "SELECT seq, at, owner, target, body FROM events \
                 WHERE seq > ?1 AND seq < ?2 AND owner = ?4 AND target = ?5 ORDER BY seq LIMIT ?3"
            }
            (Some(_), None) => {
                "SELECT seq, at, owner, target, body FROM events \
                 WHERE seq > ?1 AND seq < ?2 AND owner = ?4 ORDER BY seq LIMIT ?3"
            }
            (None, Some(_)) => {
                "SELECT seq, at, owner, target, body FROM events \
                 WHERE seq > ?1 AND seq < ?2 AND target = ?4 ORDER BY seq LIMIT ?3"
            }
            (None, None) => {
                "SELECT seq, at, owner, target, body FROM events \
                 WHERE seq > ?1 AND seq < ?2 ORDER BY seq LIMIT ?3"
            }
        };
        let mut query = sqlx::query(sql).bind(to_sql(after)).bind(to_sql(before)).bind(to_sql(limit as u64));
        for name in [owner, target].into_iter().flatten() {
            query = query.bind(name);
        }
        let rows = query.fetch_all(&self.readers).await.map_err(|source| self.failed("read", source))?;
        self.decode(&rows)
    }

    /// Events with `seq < before`, oldest first: the last `limit` of them.
    pub(super) async fn last(&self, owner: &str, target: &str, before: u64, limit: usize) -> Result<Rows, Error> {
        let mut rows = sqlx::query(
            "SELECT seq, at, owner, target, body FROM events \
             WHERE owner = ?1 AND target = ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4",
        )
        .bind(owner)
        .bind(target)
        .bind(to_sql(before))
        .bind(to_sql(limit as u64))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.failed("read", source))?;
        rows.reverse();
        self.decode(&rows)
    }

    /// The newest event that opened a session of this name or handle.
    pub(super) async fn opened(&self, owner: &str, name_or_handle: &str) -> Result<Option<Arc<Event>>, Error> {
        const OPENED: &str = "SELECT seq, at, owner, target, body FROM events \
                              WHERE owner = ?1 AND kind = 'session_opened' AND (target = ?2 OR body ->> '$.name' = ?2) \
                              ORDER BY seq DESC LIMIT 1";
        self.newest(OPENED, owner, name_or_handle).await
    }

    /// The newest event that opened this default session.
    pub(super) async fn opened_default(&self, owner: &str, default_of: &str) -> Result<Option<Arc<Event>>, Error> {
        const OPENED: &str = "SELECT seq, at, owner, target, body FROM events \
                              WHERE owner = ?1 AND kind = 'session_opened' AND body ->> '$.default_of' = ?2 \
                              ORDER BY seq DESC LIMIT 1";
        self.newest(OPENED, owner, default_of).await
    }

    async fn newest(&self, query: &'static str, owner: &str, wanted: &str) -> Result<Option<Arc<Event>>, Error> {
        let rows = sqlx::query(query)
            .bind(owner)
            .bind(wanted)
            .fetch_all(&self.readers)
            .await
            .map_err(|source| self.failed("read", source))?;
        Ok(self.decode(&rows)?.events.pop())
    }

    /// Closes the file; the last connection folds the write-ahead log into it.
    pub(super) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    fn decode(&self, rows: &[SqliteRow]) -> Result<Rows, Error> {
        let weight = rows.iter().map(|row| row.try_get::<&str, _>(4).map_or(0, str::len)).sum();
        apart(weight, || self.decode_all(rows))
    }

    fn decode_all(&self, rows: &[SqliteRow]) -> Result<Rows, Error> {
        let mut decoded = Rows { found: rows.len(), ..Rows::default() };
        for row in rows {
            let (seq, event) = event(row).map_err(|source| self.failed("read", source))?;
            decoded.last_seq = Some(seq);
            match event {
                Ok(event) => decoded.events.push(Arc::new(event)),
                // A newer pylair may have added a kind without a new schema.
                Err(error) => tracing::warn!(seq, %error, "skipping an event this version cannot read"),
            }
        }
        Ok(decoded)
    }

    pub(super) fn failed(&self, action: &'static str, source: sqlx::Error) -> Error {
        let error = Error::Database { action, path: self.path.clone(), source };
        if error.is_damage() {
            // Nothing is mended under a running daemon; the next start checks the file and moves it aside.
            if let Err(error) = File::create(beside(&self.path, ".suspect")) {
                tracing::warn!(%error, "cannot mark the journal as damaged");
            }
        }
        error
    }
}

async fn connect(path: &Path) -> Result<(SqlitePool, SqlitePool, u64), Error> {
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
        .max_connections(2)
        .idle_timeout(Duration::from_mins(1))
        .max_lifetime(None)
        .connect_lazy_with(options.read_only(true));
    Ok((writer, readers, from_sql(last.unwrap_or(0))))
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

fn lock(path: &Path) -> Result<File, Error> {
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
fn move_aside(path: &Path) -> Result<PathBuf, Error> {
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

fn remove(path: &Path) -> Result<(), Error> {
    std::fs::remove_file(path).map_err(|source| Error::Io { action: "remove", path: path.to_owned(), source })
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// An event as it is written.
struct RowOf<'a> {
    event: &'a Event,
    body: String,
}

impl<'a> RowOf<'a> {
    fn new(event: &'a Arc<Event>) -> Result<Self, sqlx::Error> {
        let body = serde_json::to_string(&event.kind).map_err(|error| sqlx::Error::Encode(error.into()))?;
        Ok(Self { event, body })
    }
}

fn arguments(rows: &[RowOf<'_>]) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for RowOf { event, body } in rows {
        let mut add = || {
            arguments.add(to_sql(event.seq))?;
            arguments.add(event.at.as_microsecond())?;
            arguments.add(&*event.owner)?;
            arguments.add(&*event.target)?;
            arguments.add(event.kind.name())?;
            arguments.add(body.as_str())
        };
        add().map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

fn event(row: &SqliteRow) -> Result<(u64, Result<Event, serde_json::Error>), sqlx::Error> {
    let seq = from_sql(row.try_get(0)?);
    let at = Timestamp::from_microsecond(row.try_get(1)?).unwrap_or_default();
    let owner: &str = row.try_get(2)?;
    let target: &str = row.try_get(3)?;
    let body: &str = row.try_get(4)?;
    let event = serde_json::from_str::<EventKind>(body).map(|kind| Event {
        seq,
        at,
        owner: owner.into(),
        target: target.into(),
        kind,
    });
    Ok((seq, event))
}

/// SQLite integers are signed; sequence numbers never get near the edge, `u64::MAX` as "no bound" does.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
