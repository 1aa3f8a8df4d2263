//! The journal's SQLite file: schema, inserts, reads, and what to do with a file that is damaged
//! or too new. Only the journal calls it; nothing here knows about followers or pending events.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use sqlx::{
    Arguments, AssertSqlSafe, Row, SqlSafeStr, SqlStr,
    sqlite::{SqliteArguments, SqlitePool, SqliteRow},
};

use super::{
    Error,
    connect::{Pools, beside, check, connect, connect_to_read, lock, move_aside, remove},
    event::{Event, EventKind},
    trim::{ROW_BYTES, Usage},
};
use pylair_os::{event_loop::apart, turns::Turns};

/// Rows per INSERT: a round trip to the SQLite thread costs more than a row.
const ROWS_PER_INSERT: usize = 64;

/// More numbers than any log beside the file can hold, gaps included.
const UNSEEN_NUMBERS: u64 = 1 << 32;

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
    /// A std lock: held for a clone.
    pools: RwLock<Pools>,
    /// The file can be written, or could once. Until then its readers see what an earlier daemon left.
    is_ready: AtomicBool,
    /// One read of each owner's at a time, so that nobody has all readers.
    reading: Turns<String>,
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
        let mut is_ready = true;
        let (pools, mut last_seq) = match connect(path).await {
            Err(error) if error.is_damage() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the journal is damaged");
                damaged = Some(move_aside(path)?);
                connect(path).await?
            }
            Err(error) if error.is_no_room() => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the journal cannot be written, events wait in memory"
                );
                is_ready = false;
                let (pools, last_seq) = connect_to_read(path).await;
                // What is in the log beside the file is not seen, and every daemon that was killed has left a gap there.
                (pools, last_seq + UNSEEN_NUMBERS)
            }
            connected => connected?,
        };
        if unclean {
            // Numbers that followers saw but that were never saved are not given out again.
            last_seq += super::MAX_UNSAVED_EVENTS;
        }
        let store = Store {
            path: path.to_owned(),
            pools: RwLock::new(pools),
            is_ready: AtomicBool::new(is_ready),
            reading: Turns::default(),
            usage: Mutex::default(),
        };
        if is_ready {
            store.load_usage().await?;
        }
        Ok(Opened { store, last_seq, damaged, lock })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Opens a file for writing that could not be when the daemon started. Only the writer calls it.
    async fn make_ready(&self) -> Result<(), Error> {
        if self.is_ready() {
            return Ok(());
        }
        let (pools, _) = connect(&self.path).await?;
        *self.pools.write().unwrap_or_else(PoisonError::into_inner) = pools;
        self.load_usage().await?;
        self.is_ready.store(true, Ordering::Release);
        tracing::info!("the journal can be written");
        Ok(())
    }

    pub(super) fn writer(&self) -> SqlitePool {
        self.pools.read().unwrap_or_else(PoisonError::into_inner).writer.clone()
    }

    fn readers(&self) -> SqlitePool {
        self.pools.read().unwrap_or_else(PoisonError::into_inner).readers.clone()
    }

    /// Writes the events in one transaction. Returns how many bytes they take.
    pub(super) async fn insert(&self, events: &[Arc<Event>]) -> Result<u64, Error> {
        self.make_ready().await?;
        let written = async {
            let weight = events.iter().map(|event| event.kind.heap_bytes()).sum();
            let rows = apart(weight, || events.iter().map(RowOf::new).collect::<Result<Vec<_>, _>>())?;
            let mut added: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
            for row in &rows {
                let (events, bytes) = added.entry(&row.event.owner).or_default();
                (*events, *bytes) = (*events + 1, *bytes + row.body.len() as u64 + ROW_BYTES);
            }
            let mut transaction = pylair_sqlite::begin(&self.writer()).await?;
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
        let _turn = match owner {
            Some(owner) => Some(self.reading.take(owner).await),
            None => None,
        };
        let rows = query.fetch_all(&self.readers()).await.map_err(|source| self.failed("read", source))?;
        self.decode(&rows)
    }

    /// Events with `seq < before`, oldest first: the last `limit` of them.
    pub(super) async fn last(&self, owner: &str, target: &str, before: u64, limit: usize) -> Result<Rows, Error> {
        let _turn = self.reading.take(owner).await;
        let mut rows = sqlx::query(
            "SELECT seq, at, owner, target, body FROM events \
             WHERE owner = ?1 AND target = ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4",
        )
        .bind(owner)
        .bind(target)
        .bind(to_sql(before))
        .bind(to_sql(limit as u64))
        .fetch_all(&self.readers())
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
        let _turn = self.reading.take(owner).await;
        let rows = sqlx::query(query)
            .bind(owner)
            .bind(wanted)
            .fetch_all(&self.readers())
            .await
            .map_err(|source| self.failed("read", source))?;
        Ok(self.decode(&rows)?.events.pop())
    }

    /// Closes the file; the last connection folds the write-ahead log into it.
    pub(super) async fn close(&self) {
        self.readers().close().await;
        self.writer().close().await;
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
        // A file that is only read, because there is no room to write, is read without its log and may look damaged.
        if error.is_damage() && self.is_ready() {
            // Nothing is mended under a running daemon; the next start checks the file and moves it aside.
            if let Err(error) = File::create(beside(&self.path, ".suspect")) {
                tracing::warn!(%error, "cannot mark the journal as damaged");
            }
        }
        error
    }
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
