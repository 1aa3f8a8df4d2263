//! The journal: every change is one event with a sequence number, an owner and a target, kept in a local
//! SQLite file. Sessions and the daemon record; history, follow and replay read, through any door.
//!
//! Recording is a push into memory. One writer task saves what is pending every [`SAVE_EVERY`], so a
//! `kill -9` of the daemon loses at most that; a power cut may lose a little more (see the store), never
//! the file. Readers merge what is saved with what is not yet, and never wait for the writer.

mod connect;
mod event;
mod follow;
mod store;
#[cfg(test)]
mod tests;
mod trim;
mod writer;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::Stream;
use jiff::Timestamp;
use tokio::{
    sync::{Notify, broadcast, mpsc, oneshot},
    task::JoinHandle,
};

pub use event::{Event, EventKind, MAX_RESULT_BYTES, MAX_TEXT_BYTES};
use follow::Follower;
use pylair_os::{
    budget::{Shares, Use},
    clock::Clock,
};
use store::Store;
pub use trim::Trimmed;

/// How long an event waits in memory before it is saved.
pub const SAVE_EVERY: Duration = Duration::from_millis(200);
/// Past these the writer is woken at once.
const LARGE_EVENTS: usize = 8 * 1024;
const LARGE_BYTES: usize = 4 * 1024 * 1024;
/// Past these output is dropped; past twice these everything is. Of all owners together: one alone has half of it.
const MAX_PENDING_EVENTS: u64 = 128 * 1024;
const MAX_PENDING_BYTES: u64 = 64 * 1024 * 1024;
/// More than can ever be lost in memory.
const MAX_UNSAVED_EVENTS: u64 = 2 * MAX_PENDING_EVENTS;
/// What one transaction takes, so that the write-ahead log stays short.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// What an event weighs besides its texts.
const EVENT_BYTES: usize = 256;
/// How many events a follower may be behind before it reads them from the store instead.
const LIVE_EVENTS: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the journal at `{}` was made by a newer pylair: its schema is {version}, this one knows {known}",
        path.display()
    )]
    Newer { path: PathBuf, version: i64, known: i64 },
    #[error("another process is writing the journal; it holds `{}`", path.display())]
    InUse { path: PathBuf },
    #[error("cannot {action} the journal at `{}`", path.display())]
    Database {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot bring the journal at `{}` to the schema of this version", path.display())]
    Migrate {
        path: PathBuf,
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    #[error("cannot {action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the journal is closed")]
    Closed,
}

impl Error {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Newer { .. } => Some("use the newer pylair, or move the file away to start a new journal"),
            Error::InUse { .. } => Some("stop the other pylair, or set PYLAIR_HOME to another directory"),
            _ => None,
        }
    }

    fn is_damage(&self) -> bool {
        const SQLITE_CORRUPT: i32 = 11;
        const SQLITE_NOTADB: i32 = 26;
        matches!(self.sqlite_code(), Some(SQLITE_CORRUPT | SQLITE_NOTADB))
    }

    /// The file may be sound, but the disk takes nothing.
    fn is_no_room(&self) -> bool {
        const SQLITE_IOERR: i32 = 10;
        const SQLITE_FULL: i32 = 13;
        match self {
            Error::Io { source, .. } => {
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            _ => matches!(self.sqlite_code(), Some(SQLITE_IOERR | SQLITE_FULL)),
        }
    }

    fn sqlite_code(&self) -> Option<i32> {
        let (Error::Database { source, .. }
        | Error::Migrate { source: sqlx::migrate::MigrateError::ExecuteMigration(source, _), .. }) = self
        else {
            return None;
        };
        let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code)?.parse::<i32>().ok()?;
        // The low byte of an extended code is the plain one.
        Some(code & 0xff)
    }
}

/// How much history is kept, of all owners together. Of whoever has most the oldest goes first. Events are counted now and then, so
/// a few more may be there; bytes are those of all files together, also while they are written.
#[derive(Debug, Clone)]
pub struct Limits {
    pub max_events: u64,
    pub max_age: Duration,
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_events: 200_000, max_age: Duration::from_hours(30 * 24), max_bytes: 256 * 1024 * 1024 }
    }
}

/// What [`Journal::open`] gives.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    /// Ends after [`Journal::shutdown`], or when every clone of the journal is gone.
    pub writer: JoinHandle<()>,
    /// Where the file went that was there but damaged; a new journal was started in its place.
    pub damaged: Option<PathBuf>,
}

/// A handle; clones share one journal.
#[derive(Debug, Clone)]
pub struct Journal {
    shared: Arc<JournalState>,
    /// Not in `JournalState`, which the writer holds too: the writer ends when the last sender is gone.
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
enum Request {
    Flush(oneshot::Sender<Result<(), Error>>),
    Shutdown(oneshot::Sender<Result<(), Error>>),
}

#[derive(Debug)]
struct JournalState {
    store: Store,
    limits: Limits,
    clock: Arc<Clock>,
    /// A std mutex: held for a push or a few pointer copies, never across an await. Number, push and
    /// publish happen under it, so that the order of numbers is the order everywhere.
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug)]
struct State {
    last_seq: u64,
    pending: Vec<Arc<Event>>,
    /// What the writer is saving; stays here until it is saved, for readers and for another try.
    saving: Arc<Vec<Arc<Event>>>,
    pending_bytes: usize,
    /// Whose the events in memory are, and their weight.
    unsaved_events: Shares,
    unsaved_bytes: Shares,
    /// Dropped since the last gap event, by owner and target.
    dropped: HashMap<(Arc<str>, Arc<str>), u64>,
    writer: WriterState,
    /// None after shutdown.
    live: Option<broadcast::Sender<Arc<Event>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterState {
    /// No timer runs: the next event has to wake it.
    Asleep,
    /// Looks every [`SAVE_EVERY`].
    Ticking,
    /// Was told that there is a lot to do.
    Hurried,
}

impl Journal {
    /// Opens the journal at `path`, making it where there is none, with the default limits.
    pub async fn open(path: impl AsRef<Path>, clock: Arc<Clock>) -> Result<Opened, Error> {
        Self::open_with(path, Limits::default(), clock).await
    }

    /// Spawns the writer, so it needs a tokio runtime.
    pub async fn open_with(path: impl AsRef<Path>, limits: Limits, clock: Arc<Clock>) -> Result<Opened, Error> {
        let store::Opened { store, last_seq, damaged, lock } = Store::open(path.as_ref()).await?;
        let shared = Arc::new(JournalState {
            store,
            limits,
            clock,
            state: Mutex::new(State {
                last_seq,
                pending: Vec::new(),
                saving: Arc::default(),
                pending_bytes: 0,
                unsaved_events: Shares::default(),
                unsaved_bytes: Shares::default(),
                dropped: HashMap::new(),
                writer: WriterState::Asleep,
                live: Some(broadcast::Sender::new(LIVE_EVENTS)),
            }),
            wake: Notify::new(),
        });
        let (requests, inbox) = mpsc::channel(16);
        let writer = pylair_os::event_loop::spawn(writer::write(Arc::clone(&shared), inbox, lock));
        Ok(Opened { journal: Journal { shared, requests }, writer, damaged })
    }

    /// Records a change. Never blocks and, while the daemon is busy, wakes nobody but followers. Secrets in texts are
    /// masked, and texts over their bound are cut. Under overload output is dropped, and a gap event says how much.
    /// After shutdown it does nothing.
    pub fn record(&self, owner: &Arc<str>, target: &Arc<str>, mut kind: EventKind) {
        kind.clip();
        let mut state = self.shared.lock();
        if state.live.is_none() {
            return;
        }
        if state.must_drop(owner, &kind) {
            *state.dropped.entry((Arc::clone(owner), Arc::clone(target))).or_default() += 1;
            return;
        }
        state.push(owner, target, kind);
        let large = state.pending.len() >= LARGE_EVENTS || state.pending_bytes >= LARGE_BYTES;
        let wake = match state.writer {
            WriterState::Asleep => true,
            WriterState::Ticking => large,
            WriterState::Hurried => false,
        };
        if wake {
            state.writer = if large { WriterState::Hurried } else { WriterState::Ticking };
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    /// How much of each bound is used, and how much of it by this owner.
    pub fn usage(&self, owner: &str) -> [Use; 2] {
        self.shared.store.uses(owner, &self.shared.limits)
    }

    /// What of this owner's history was removed to make room, if anything was.
    pub fn trimmed(&self, owner: &str) -> Option<Trimmed> {
        self.shared.store.usage().trimmed(owner).cloned()
    }

    /// The number of the newest event: what `follow` takes to begin with the next one.
    pub fn last_seq(&self) -> u64 {
        self.shared.lock().last_seq
    }

    /// The last `limit` events of a target before `before`, newest last, saved or not.
    pub async fn history(
        &self,
        owner: &str,
        target: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Arc<Event>>, Error> {
        let before = before.unwrap_or(u64::MAX);
        let (mut unsaved, first_unsaved) = {
            let state = self.shared.lock();
            let wanted = |event: &&Arc<Event>| event.seq < before && event.is_of(Some(owner), Some(target));
            let unsaved: Vec<_> = state.unsaved().rev().filter(wanted).take(limit).cloned().collect();
            (unsaved, state.first_unsaved())
        };
        unsaved.reverse();
        let missing = limit - unsaved.len();
        if missing == 0 {
            return Ok(unsaved);
        }
        let mut events = self.shared.store.last(owner, target, before.min(first_unsaved), missing).await?.events;
        events.append(&mut unsaved);
        Ok(events)
    }

    /// How the newest session of this name or handle was opened, if it is still known.
    pub async fn opened(&self, owner: &str, name_or_handle: &str) -> Result<Option<Arc<Event>>, Error> {
        let unsaved =
            self.unsaved_opening(owner, |event, name, _| name == name_or_handle || &*event.target == name_or_handle);
        match unsaved {
            Some(event) => Ok(Some(event)),
            None => self.shared.store.opened(owner, name_or_handle).await,
        }
    }

    /// How the newest session was opened that was this default session, if it is still known.
    pub async fn opened_default(&self, owner: &str, wanted: &str) -> Result<Option<Arc<Event>>, Error> {
        match self.unsaved_opening(owner, |_, _, default_of| default_of == Some(wanted)) {
            Some(event) => Ok(Some(event)),
            None => self.shared.store.opened_default(owner, wanted).await,
        }
    }

    fn unsaved_opening(
        &self,
        owner: &str,
        is_wanted: impl Fn(&Event, &str, Option<&str>) -> bool,
    ) -> Option<Arc<Event>> {
        let matches = |event: &&Arc<Event>| {
            let EventKind::SessionOpened { name, default_of, .. } = &event.kind else { return false };
            event.is_of(Some(owner), None) && is_wanted(event, name, default_of.as_deref())
        };
        self.shared.lock().unsaved().rev().find(matches).cloned()
    }

    /// The number of the newest cell of a target among its newest events; 0 where there is none.
    pub async fn newest_cell(&self, owner: &str, target: &str) -> u64 {
        const LOOKED_AT: usize = 200;
        let events = self.history(owner, target, None, LOOKED_AT).await.unwrap_or_default();
        let cells = events.iter().filter_map(|event| match event.kind {
            EventKind::CellStarted { cell, .. } => Some(cell),
            _ => None,
        });
        cells.max().unwrap_or(0)
    }

    /// The first `limit` events after `seq`, oldest first, saved or not; of everyone and everything
    /// where owner or target is not given.
    pub async fn after(
        &self,
        owner: Option<&str>,
        target: Option<&str>,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<Arc<Event>>, Error> {
        Ok(follow::page(&self.shared, owner, target, seq, limit).await?.events)
    }

    /// Events after `after_seq` as they come, for ever: first what the journal has, then live, with no
    /// gap and no repetition between the two. A follower that falls behind reads the store again, and
    /// gets a gap event where that has been trimmed meanwhile. Ends at shutdown.
    pub fn follow(
        &self,
        owner: Option<&str>,
        target: Option<&str>,
        after_seq: u64,
    ) -> impl Stream<Item = Result<Arc<Event>, Error>> + Send + use<> {
        let follower = Follower::new(&self.shared, owner, target, after_seq);
        futures::stream::unfold(follower, |follower| async {
            let mut follower = follower?;
            match follower.next().await {
                Ok(Some(event)) => Some((Ok(event), Some(follower))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Returns when everything recorded before the call is saved, or why it is not.
    pub async fn flush(&self) -> Result<(), Error> {
        self.ask(Request::Flush).await
    }

    /// Saves everything, ends followers and the writer, and closes the file. Later events are ignored.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.ask(Request::Shutdown).await
    }

    async fn ask(&self, request: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> Request) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(request(reply)).await;
        sent.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

impl State {
    fn must_drop(&self, owner: &str, kind: &EventKind) -> bool {
        let factor = if matches!(kind, EventKind::Output { .. }) { 1 } else { 2 };
        !self.unsaved_events.leaves_room(owner, 1, MAX_PENDING_EVENTS * factor)
            || !self.unsaved_bytes.leaves_room(owner, weight(kind) as u64, MAX_PENDING_BYTES * factor)
    }

    fn push(&mut self, owner: &Arc<str>, target: &Arc<str>, kind: EventKind) {
        self.last_seq += 1;
        self.pending_bytes += weight(&kind);
        self.unsaved_events.add(owner, 1);
        self.unsaved_bytes.add(owner, weight(&kind) as u64);
        let event = Arc::new(Event {
            seq: self.last_seq,
            at: now(),
            owner: Arc::clone(owner),
            target: Arc::clone(target),
            kind,
        });
        if let Some(live) = &self.live
            && live.receiver_count() > 0
        {
            // Fails only when the last follower left just now.
            _ = live.send(Arc::clone(&event));
        }
        self.pending.push(event);
    }

    /// Turns what was dropped into gap events, once there is room again.
    fn push_gaps(&mut self) {
        for ((owner, target), dropped) in std::mem::take(&mut self.dropped) {
            self.push(&owner, &target, EventKind::Gap { dropped });
        }
    }

    /// What is not in the store yet, oldest first.
    fn unsaved(&self) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        self.saving.iter().chain(&self.pending)
    }

    /// Everything before this number is in the store.
    fn first_unsaved(&self) -> u64 {
        self.unsaved().next().map_or(u64::MAX, |event| event.seq)
    }

    /// What to save next: what failed before, else the oldest of what is pending.
    fn take_batch(&mut self) -> Arc<Vec<Arc<Event>>> {
        if self.saving.is_empty() {
            let mut bytes = 0;
            let fits = |event: &&Arc<Event>| {
                bytes += weight(&event.kind);
                bytes <= BATCH_BYTES
            };
            let count = self.pending.iter().take_while(fits).count().max(1).min(self.pending.len());
            let batch: Vec<_> = self.pending.drain(..count).collect();
            self.pending_bytes -= batch.iter().map(|event| weight(&event.kind)).sum::<usize>();
            self.saving = Arc::new(batch);
        }
        Arc::clone(&self.saving)
    }

    fn batch_is_saved(&mut self) {
        for event in std::mem::take(&mut self.saving).iter() {
            self.unsaved_events.remove(&event.owner, 1);
            self.unsaved_bytes.remove(&event.owner, weight(&event.kind) as u64);
        }
        self.push_gaps();
    }

    /// The writer goes back to its timer, or to sleep when nothing came for a while.
    fn rest(&mut self, idle: bool) {
        self.writer = if idle && self.pending.is_empty() { WriterState::Asleep } else { WriterState::Ticking };
    }
}

impl JournalState {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock leaves it half changed, so a panic elsewhere is no reason to stop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    fn is_of(&self, owner: Option<&str>, target: Option<&str>) -> bool {
        owner.is_none_or(|owner| *self.owner == *owner) && target.is_none_or(|target| *self.target == *target)
    }
}

/// What an event counts in memory.
fn weight(kind: &EventKind) -> usize {
    EVENT_BYTES + kind.heap_bytes()
}

/// Cut to the microseconds the store keeps, so that an event reads the same live and replayed.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros())
        .ok()
        .and_then(|micros| Timestamp::from_microsecond(micros).ok())
        .unwrap_or_default()
}
