//! A cell while it runs and after: the job a caller waits for, and the execution that came of it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::watch;

use pylair_os::budget::{Shares, Use};
use pylair_output::Capture;
use pylair_probe::wire::{MadeFile, Raised};
use pylair_workers::link::Refusal;

/// How a cell ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Raised,
    Interrupted,
    TimedOut,
    Died,
    Running,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Raised => "raised",
            Self::Interrupted => "interrupted",
            Self::TimedOut => "timed_out",
            Self::Died => "died",
            Self::Running => "running",
        }
    }
}

/// What to do with the effects of a cell that ran out of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    #[default]
    Keep,
    Rollback,
}

/// Names that a cell bound, rebound or deleted.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct Variables {
    pub new: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

/// A finished cell. What it printed is in the job's capture.
#[derive(Debug)]
pub struct Execution {
    pub outcome: Outcome,
    /// It called `sys.exit` to say that all is well.
    pub exited: bool,
    pub result: Option<String>,
    /// Length of the whole result, when the worker cut it.
    pub result_chars: Option<u64>,
    pub error: Option<Raised>,
    pub variables: Variables,
    pub duration: Duration,
    pub cpu: Duration,
    pub rss_mb: Option<f64>,
    pub files: Vec<MadeFile>,
    /// Nothing of it was run, and why.
    pub refused: Option<Refusal>,
    pub notes: Vec<String>,
}

/// One form of a rich value that a cell showed, kept on disk.
#[derive(Debug, Clone)]
pub struct Shown {
    /// From 1, in the order they came.
    pub index: usize,
    pub mime: String,
    pub bytes: usize,
    /// Small enough to be given to a model as it is.
    pub inline: bool,
    pub title: Option<String>,
}

impl Shown {
    pub fn uri(&self, job: &str) -> String {
        format!("pylair://display/{job}/{}", self.index)
    }
}

impl Execution {
    /// A cell that did not come to its own end.
    pub(crate) fn cut_short(outcome: Outcome, duration: Duration, notes: Vec<String>) -> Self {
        Self {
            outcome,
            exited: false,
            result: None,
            result_chars: None,
            error: None,
            variables: Variables::default(),
            duration,
            cpu: Duration::ZERO,
            rss_mb: None,
            files: Vec::new(),
            refused: None,
            notes,
        }
    }
}

/// One cell of one session, shared by everybody who waits for it.
#[derive(Debug)]
pub struct Job {
    pub id: String,
    pub owner: Arc<str>,
    pub session: Arc<str>,
    pub cell: u64,
    pub capture: Arc<Capture>,
    begun: OnceLock<Begun>,
    waits: Option<Waits>,
    is_answered: AtomicBool,
    shown: Mutex<Vec<Shown>>,
    finished: OnceLock<Arc<Execution>>,
    done: watch::Sender<bool>,
}

#[derive(Debug)]
struct Begun {
    at: Instant,
    late: Option<Late>,
}

/// Why a cell could not begin at once.
#[derive(Debug, Clone)]
pub struct Waits {
    pub since: Instant,
    /// What came before it, such as `cell 3`.
    pub behind: String,
}

impl Waits {
    /// What the answer says once the cell has begun.
    pub fn note(&self) -> String {
        format!("waited {} for {}", seconds_text(self.since.elapsed()), self.behind)
    }
}

/// A time that was waited, with the digits that matter.
fn seconds_text(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 0.095 { format!("{seconds:.3} s") } else { format!("{seconds:.1} s") }
}

/// Output of threads and children that arrived while no cell ran.
#[derive(Debug, Clone)]
pub struct Late {
    pub after_cell: u64,
    pub capture: Arc<Capture>,
}

impl Job {
    /// A job that begins now.
    pub(crate) fn new(
        id: String,
        owner: Arc<str>,
        session: Arc<str>,
        cell: u64,
        capture: Arc<Capture>,
        late: Option<Late>,
    ) -> Self {
        let job = Self::waiting(id, owner, session, cell, capture, None);
        job.begin(late);
        job
    }

    /// A job that begins when `begin` is called.
    pub(crate) fn waiting(
        id: String,
        owner: Arc<str>,
        session: Arc<str>,
        cell: u64,
        capture: Arc<Capture>,
        waits: Option<Waits>,
    ) -> Self {
        Self {
            id,
            owner,
            session,
            cell,
            capture,
            begun: OnceLock::new(),
            waits,
            is_answered: AtomicBool::new(false),
            shown: Mutex::default(),
            finished: OnceLock::new(),
            done: watch::Sender::new(false),
        }
    }

    /// Its time runs from now on. `late` is output that came between the cell before and this one.
    pub(crate) fn begin(&self, late: Option<Late>) {
        if self.begun.set(Begun { at: Instant::now(), late }).is_err() {
            tracing::error!(job = self.id, "a job began twice");
        }
        self.done.send_replace(false);
    }

    /// How long it has been running; nothing while it waits.
    pub fn elapsed(&self) -> Duration {
        self.begun.get().map(|begun| begun.at.elapsed()).unwrap_or_default()
    }

    pub fn late(&self) -> Option<&Late> {
        self.begun.get().and_then(|begun| begun.late.as_ref())
    }

    /// Whoever asked for it was told that it runs, or is gone.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }

    pub fn mark_answered(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    /// What it waits for, if it has not begun.
    pub fn waits(&self) -> Option<&Waits> {
        let is_waiting = self.begun.get().is_none() && self.finished.get().is_none();
        self.waits.as_ref().filter(|_| is_waiting)
    }

    pub(crate) fn finish(&self, execution: Execution) {
        // A cell ends once; a second end would be a bug that must not change what callers were told.
        if self.finished.set(Arc::new(execution)).is_err() {
            tracing::error!(job = self.id, "a job ended twice");
        }
        self.done.send_replace(true);
    }

    pub(crate) fn show(&self, shown: Shown) {
        self.shown.lock().expect("no panic while locked").push(shown);
    }

    /// The rich values so far.
    pub fn shown(&self) -> Vec<Shown> {
        self.shown.lock().expect("no panic while locked").clone()
    }

    pub fn execution(&self) -> Option<Arc<Execution>> {
        self.finished.get().cloned()
    }

    /// Waits until the cell has ended.
    pub async fn ended(&self) -> Arc<Execution> {
        let mut done = self.done.subscribe();
        loop {
            if let Some(execution) = self.finished.get() {
                return execution.clone();
            }
            // The sender lives as long as the job, so this cannot fail while we hold it.
            let _alive = done.changed().await;
        }
    }

    /// Waits until the cell has begun, or never will.
    pub async fn begun(&self) {
        let mut done = self.done.subscribe();
        while self.waits().is_some() {
            // The sender lives as long as the job, so this cannot fail while we hold it.
            let _alive = done.changed().await;
        }
    }

    /// Waits until the cell has ended, but not longer than `limit`.
    pub async fn wait(&self, limit: Duration) -> Option<Arc<Execution>> {
        if let Some(execution) = self.finished.get() {
            return Some(execution.clone());
        }
        tokio::time::timeout(limit, self.ended()).await.ok()
    }
}

/// Jobs by id; the newest finished ones are kept so that a late `get_job` still gets its answer.
#[derive(Debug, Default)]
pub struct Jobs {
    kept: Mutex<KeptJobs>,
}

#[derive(Debug, Default)]
struct KeptJobs {
    /// Oldest first.
    jobs: VecDeque<Arc<Job>>,
    removed: HashMap<Arc<str>, Removed>,
}

/// The jobs of one owner that made room for newer ones.
#[derive(Debug, Default)]
struct Removed {
    count: u64,
    /// The newest of them, oldest first.
    ids: VecDeque<String>,
}

impl Jobs {
    /// Finished jobs that are kept, of all owners together. Each may hold 64 KiB of output in memory.
    pub const KEPT: usize = 256;
    /// How many ids of removed jobs are remembered for each owner.
    const REMEMBERED: usize = 1000;

    pub(crate) fn add(&self, job: Arc<Job>) {
        let mut kept = self.lock();
        kept.jobs.push_back(job);
        if kept.jobs.len() > Self::KEPT {
            kept.make_room();
        }
    }

    pub fn get(&self, owner: &str, id: &str) -> Option<Arc<Job>> {
        self.lock().jobs.iter().rev().find(|job| job.id == id && *job.owner == *owner).cloned()
    }

    /// Whether a job of this owner's was there and made room for newer ones.
    pub fn was_removed(&self, owner: &str, id: &str) -> bool {
        self.lock().removed.get(owner).is_some_and(|removed| removed.ids.iter().any(|known| known == id))
    }

    pub fn usage(&self, owner: &str) -> Use {
        let kept = self.lock();
        let finished = || kept.jobs.iter().filter(|job| job.execution().is_some());
        Use {
            what: "ended jobs".to_owned(),
            yours: finished().filter(|job| *job.owner == *owner).count() as u64,
            all: Some(finished().count() as u64),
            bound: Self::KEPT as u64,
            removed: kept.removed.get(owner).map_or(0, |removed| removed.count),
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeptJobs> {
        self.kept.lock().expect("no panic while locked")
    }
}

impl KeptJobs {
    /// Removes the oldest finished job of whoever has most of them, as long as there are too many.
    fn make_room(&mut self) {
        let mut finished = Shares::default();
        for job in self.jobs.iter().filter(|job| job.execution().is_some()) {
            finished.add(&job.owner, 1);
        }
        while finished.total() > Jobs::KEPT as u64 {
            let Some(owner) = finished.largest(|_| true) else { return };
            let oldest = self.jobs.iter().position(|job| job.owner == owner && job.execution().is_some());
            let Some(oldest) = oldest.and_then(|oldest| self.jobs.remove(oldest)) else { return };
            finished.remove(&owner, 1);
            let removed = self.removed.entry(owner).or_default();
            removed.count += 1;
            removed.ids.push_back(oldest.id.clone());
            if removed.ids.len() > Jobs::REMEMBERED {
                removed.ids.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_output::{Limits, Outputs};

    #[test]
    fn one_owners_jobs_make_room_among_themselves() {
        let path = std::env::temp_dir().join(format!("pylair-jobs-{}", std::process::id()));
        let outputs = Outputs::open(&path, Limits::default()).unwrap();
        let jobs = Jobs::default();
        let add = |owner: &str, id: String, ends: bool| {
            let capture = outputs.capture(owner, &id).unwrap();
            let job = Arc::new(Job::new(id, owner.into(), "main".into(), 1, capture, None));
            jobs.add(job.clone());
            if ends {
                job.finish(Execution::cut_short(Outcome::Ok, Duration::ZERO, Vec::new()));
            }
        };
        (0..100).for_each(|number| add("quiet", format!("q-{number}"), true));
        add("busy", "running".to_owned(), false);
        (0..1000).for_each(|number| add("busy", format!("b-{number}"), true));
        assert!((0..100).all(|number| jobs.get("quiet", &format!("q-{number}")).is_some()));
        assert!(jobs.get("busy", "running").is_some() && jobs.get("busy", "b-999").is_some());
        assert!(jobs.get("busy", "b-0").is_none() && jobs.was_removed("busy", "b-0"));
        assert!(!jobs.was_removed("quiet", "b-0") && !jobs.was_removed("busy", "b-1000"));
        let (quiet, busy) = (jobs.usage("quiet"), jobs.usage("busy"));
        assert_eq!((quiet.yours, quiet.removed, busy.yours + quiet.yours), (100, 0, busy.all.unwrap()));
        // The newest has ended after it was added.
        assert_eq!((busy.all, busy.removed), (Some(257), 843));
        _ = std::fs::remove_dir_all(path);
    }
}
