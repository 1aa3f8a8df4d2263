//! Sessions: interpreters pylair owns.
//!
//! `Sessions` is the collection, `Session` a cheap handle; the task in `task` owns the worker and is the only writer of a
//! session's state. Every door calls these methods and nothing below them.

mod install;
mod job;
mod keeping;
pub mod literal;
mod notes;
mod report;
pub mod saved;
mod task;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use job::{Execution, Job, Jobs, Late, OnTimeout, Outcome, Shown, Variables};
pub use keeping::SaveReport;
pub use report::{Display, Report, cut_middle, file_uri, mime_of, output_uri};

use crate::{
    caller::{self, Caller, DefaultSession, Scope},
    config::{Checkpoints, Config},
    files::{OwnDirectory, Workspace, Workspaces},
    journal::{EventKind, Journal},
    keeper::confine::{self, Profile},
    output::Outputs,
    packages::{self, Environment, Packages},
    probe::{
        link::{self, Probes, Refusal},
        wire::Op,
    },
    python::{self, Interpreter, Interpreters},
};

const MAX_CODE_BYTES: usize = 32 << 20;
const MAX_NAME_CHARS: usize = 64;
const MAX_ENV_BYTES: usize = 512 << 10;
/// How many idle sessions are named to one who finds no room.
const NAMED_IDLE: usize = 10;
/// How many closed sessions are remembered, to tell an expired handle from a wrong one.
const REMEMBERED: usize = 500;
/// How long a worker may take to look something up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// A session nobody named and nobody will ask for again, made by a stateless call.
const FRESH_TTL: Duration = Duration::from_hours(1);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no session `{target}`")]
    Unknown { target: String, known: Vec<String> },
    #[error("the session `{target}` was closed: {reason}")]
    Closed { target: String, reason: String },
    #[error("there is no job `{job}`")]
    UnknownJob { job: String },
    #[error("the session `{session}` is running cell {cell} for {} s", running.as_secs())]
    Busy { session: String, cell: u64, job: String, running: Duration },
    #[error("there is a session called `{0}` already")]
    NameTaken(String),
    #[error("`{0}` cannot be the name of a session")]
    BadName(String),
    #[error("{limit} sessions are open, which is the limit")]
    TooMany { limit: usize, idle: Vec<(String, Duration)> },
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("the running cell is in code that cannot be looked into now, such as a long call into C")]
    NotNow,
    #[error("there is nothing to undo")]
    NothingToUndo,
    #[error("what cell {cell} did is not part of the session's state")]
    NotInState { cell: u64, cells: Vec<u64> },
    #[error("there is no checkpoint of the session after cell {cell}")]
    NoCheckpoint { cell: u64, there: Vec<u64>, skipped: Option<String> },
    #[error("the session cannot be branched now: {reason}")]
    CannotBranch { reason: String },
    #[error("the code has {} bytes, over the limit of {MAX_CODE_BYTES}", .0)]
    CodeTooLong(usize),
    #[error("`{}` is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{0}")]
    BadArgument(String),
    #[error("more than one client is near: {}", candidates.join(", "))]
    Ambiguous { candidates: Vec<String> },
    #[error("this caller may not {0}")]
    NotAllowed(&'static str),
    #[error("the startup code raised {}: {}", .0.kind, .0.message)]
    Startup(Box<crate::probe::wire::Raised>),
    #[error(transparent)]
    Python(#[from] python::Error),
    #[error(transparent)]
    Packages(#[from] packages::Error),
    #[error(transparent)]
    Link(#[from] link::Error),
    #[error(transparent)]
    Output(#[from] crate::output::Error),
    #[error("the session ended while it was asked")]
    Gone,
    #[error("the session `{target}` is stopped already")]
    Stopped { target: String },
    #[error("you have no session yet")]
    NoDefault,
    #[error("there is no save `{restore}`")]
    NoSave { restore: String, known: Vec<String> },
    #[error("a file of pylair's own could not be written or read")]
    Store(#[source] std::io::Error),
    #[error("the session's own directory could not be made")]
    Workspace(#[source] std::io::Error),
}

impl Error {
    /// The message with its causes.
    pub fn message(&self) -> String {
        let mut message = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        message
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown_session",
            Self::Closed { .. } => "closed_session",
            Self::UnknownJob { .. } => "unknown_job",
            Self::Busy { .. } => "busy",
            Self::NameTaken(_) => "name_taken",
            Self::BadName(_) | Self::CodeTooLong(_) | Self::NotADirectory(_) | Self::BadArgument(_) => "bad_argument",
            Self::TooMany { .. } => "too_many_sessions",
            Self::Refused(refusal) => refusal.known_kind(),
            Self::NotNow => "not_now",
            Self::NothingToUndo => "nothing_to_undo",
            Self::NotInState { .. } => "no_such_cell",
            Self::NoCheckpoint { .. } => "no_checkpoint",
            Self::CannotBranch { .. } => "cannot_branch",
            Self::Ambiguous { .. } => "ambiguous_session",
            Self::NotAllowed(_) => "not_allowed",
            Self::Startup(_) => "startup_failed",
            Self::Python(_) => "no_python",
            Self::Packages(error) => error.kind(),
            Self::Link(link::Error::Nursery(_)) => "sandbox_unavailable",
            Self::Link(_) => "worker_failed",
            Self::Output(_) => "output_unavailable",
            Self::Gone => "session_gone",
            Self::Stopped { .. } => "stopped_session",
            Self::NoDefault => "no_session",
            Self::NoSave { .. } => "unknown_save",
            Self::Store(_) => "store_unavailable",
            Self::Workspace(_) => "file_error",
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => {
                "no session is open; call open_session, or leave out `target` for the default session".to_owned()
            }
            Self::Unknown { known, .. } => format!("open sessions: {}; open_session makes a new one", known.join(", ")),
            Self::Closed { .. } => "its variables are gone; call open_session, or leave out `target`".to_owned(),
            Self::UnknownJob { .. } => {
                "job ids are in the answers of execute; only recent jobs are remembered".to_owned()
            }
            Self::Busy { job, .. } => {
                format!("wait with get_job(job=\"{job}\"), stop it with interrupt, or use another session")
            }
            Self::NameTaken(name) => format!("use target=\"{name}\", or choose another name"),
            Self::BadName(_) => {
                format!("1 to {MAX_NAME_CHARS} letters, digits, `-`, `_` or `.`, starting with a letter or digit")
            }
            Self::TooMany { idle, .. } => {
                let mut hint = "close sessions with close_session, or raise `max_sessions`".to_owned();
                if !idle.is_empty() {
                    let named = idle.iter().map(|(name, idle)| format!("{name} ({} min)", idle.as_secs() / 60));
                    hint.push_str("; idle for longest: ");
                    hint.push_str(&named.collect::<Vec<_>>().join(", "));
                }
                hint
            }
            Self::Refused(refusal) => refusal.hint.clone().unwrap_or_else(|| "see the tool's schema".to_owned()),
            Self::NotNow => "try again, or look when the cell has ended: get_job waits for it".to_owned(),
            Self::NothingToUndo => "no cell has changed the session, or it was just set back".to_owned(),
            Self::NotInState { cells, .. } => format!("it holds the effects of {}", cells_text(cells)),
            Self::NoCheckpoint { there, skipped, .. } => {
                let there = if there.is_empty() {
                    "there is no checkpoint at all; restart_session starts anew".to_owned()
                } else {
                    format!("there are checkpoints of {}", cells_text(there))
                };
                let skipped = skipped.as_ref().map(|reason| format!("; the last one was not made: {reason}"));
                there + &skipped.unwrap_or_default()
            }
            Self::CannotBranch { .. } => "mend the reason, or branch from a checkpoint with `at`".to_owned(),
            Self::CodeTooLong(_) => "write the data to a file and read it from the code".to_owned(),
            Self::NotADirectory(_) => "pass an existing directory as `cwd`".to_owned(),
            Self::BadArgument(_) => "see the tool's schema".to_owned(),
            Self::Ambiguous { .. } => "name one with -t, or set PYLAIR_SESSION".to_owned(),
            Self::NotAllowed(_) => "use a token with more rights".to_owned(),
            Self::Startup(raised) => format!("the session was not opened; fix this:\n{}", raised.traceback.trim_end()),
            Self::Python(error) => error.hint().to_owned(),
            Self::Packages(error) => error.hint(),
            Self::Link(link::Error::Nursery(_)) => {
                "open the session with sandbox=\"open\", or see `pylair doctor` for what this machine lacks".to_owned()
            }
            Self::Link(_) => "`pylair doctor` tries the interpreter and says what is wrong".to_owned(),
            Self::Output(error) => error.hint().unwrap_or("see the daemon's log").to_owned(),
            Self::Gone => "call open_session, or leave out `target` for the default session".to_owned(),
            Self::Stopped { .. } => "its definition is kept; forget=true removes it".to_owned(),
            Self::NoDefault => "execute opens one, or name one with `target` (list_targets shows them)".to_owned(),
            Self::NoSave { known, .. } if known.is_empty() => "nothing was saved yet; save_session does".to_owned(),
            Self::NoSave { known, .. } => {
                format!("saves, newest first: {}", known.iter().take(20).cloned().collect::<Vec<_>>().join(", "))
            }
            Self::Workspace(_) => "see the space and the permissions of the data directory".to_owned(),
            Self::Store(_) => "is the disk full? `pylair doctor` shows where pylair keeps its data".to_owned(),
        }
    }
}

/// Cells by number, for hints.
fn cells_text(cells: &[u64]) -> String {
    const SHOWN: usize = 20;
    let newest: Vec<_> = cells.iter().rev().take(SHOWN).rev().map(u64::to_string).collect();
    let more = if cells.len() > SHOWN { "…, " } else { "" };
    format!("cells {more}{} (0 is the start)", newest.join(", "))
}

/// What a cell is made of.
#[derive(Debug, Clone)]
pub enum Work {
    /// Source; `path` is what it was made around, if it was made by pylair.
    Code {
        code: String,
        path: Option<String>,
    },
    File {
        file: PathBuf,
        args: Vec<String>,
    },
}

impl Work {
    /// Code that does the same, for history; none when it is the code itself.
    fn as_code(&self) -> Option<String> {
        let Self::File { file, args } = self else { return None };
        let file = literal::string(&file.display().to_string());
        let argv: Vec<_> = std::iter::once(file.clone()).chain(args.iter().map(|arg| literal::string(arg))).collect();
        let argv = argv.join(", ");
        Some(format!(
            "import sys; sys.argv = [{argv}]\nexec(compile(open({file}).read(), {file}, \"exec\"))  # run_file"
        ))
    }

    fn into_request(self, cell: u64) -> (Op, String) {
        match self {
            Self::Code { code, path } => (Op::Execute { cell, path }, code),
            Self::File { file, args } => (Op::RunFile { cell, file: file.display().to_string(), args }, String::new()),
        }
    }
}

/// What to open a session with.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OpenOptions {
    pub name: Option<String>,
    pub python: Option<String>,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub startup: Option<String>,
    pub preload: Vec<String>,
    pub sandbox: Option<String>,
    pub description: Option<String>,
    /// Stays listed when it is closed or the daemon leaves, and is started again when it is next used.
    pub keep: bool,
    /// A save, or the name of a session whose newest save is meant.
    pub restore: Option<String>,
}

/// How a session comes to be opened besides what its caller asked for.
#[derive(Debug, Default)]
struct Opening {
    /// It was open before.
    again: Option<saved::Definition>,
    default_of: Option<String>,
}

/// What does not change while a session lives.
#[derive(Debug, Clone)]
pub struct Info {
    /// Opaque and unique; what a stateless client holds on to.
    pub handle: Arc<str>,
    pub name: Arc<str>,
    pub owner: Arc<str>,
    pub client: String,
    pub cwd: PathBuf,
    pub workspace: Workspace,
    pub env: BTreeMap<String, String>,
    pub interpreter: Interpreter,
    pub base: Option<Interpreter>,
    pub profile: Profile,
    pub startup: Option<String>,
    pub preload: Vec<String>,
    pub environment: Arc<Environment>,
    pub description: Option<String>,
    pub opened_at: Timestamp,
    pub ttl: Duration,
    /// How it would be opened again.
    definition: Arc<saved::Definition>,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Idle,
    Busy,
    /// The worker is gone and could not be started again; the next call tries once more.
    Dead,
    /// It has no process; the next call starts it.
    Stopped,
}

/// A session as `list_targets` and `get_status` show it.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct Status {
    pub name: String,
    pub handle: String,
    pub state: State,
    /// The newest cell.
    pub cell: u64,
    /// The running job, or the newest one.
    pub job: Option<String>,
    pub python: String,
    pub executable: String,
    pub sandbox: String,
    pub cwd: String,
    pub client: String,
    pub description: Option<String>,
    pub opened_at: String,
    pub last_used_at: String,
    pub pid: Option<i32>,
    pub rss_mb: Option<f64>,
    /// The cells after which the session can be gone back to.
    pub checkpoints: Vec<u64>,
    /// Why there is no newer checkpoint.
    pub checkpoint_skipped: Option<String>,
    pub uptime_s: f64,
    /// Cells that have ended.
    pub executions: u64,
    pub mean_ms: Option<f64>,
    pub last_ms: Option<f64>,
    /// Of the worker, since it was started.
    pub cpu_s: Option<f64>,
    pub threads: Option<u64>,
    /// How long the worker took to answer just now, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responsiveness_ms: Option<f64>,
    pub keep: bool,
}

/// What changes, written by the task only.
#[derive(Debug)]
struct Live {
    state: State,
    cell: u64,
    job: Option<Arc<Job>>,
    last_used: Instant,
    last_used_at: Timestamp,
    pid: Option<i32>,
    rss_mb: Option<f64>,
    checkpoints: Vec<u64>,
    checkpoint_skipped: Option<String>,
    opened: Instant,
    executions: u64,
    total_time: Duration,
    last_time: Option<Duration>,
}

impl Live {
    fn new() -> Self {
        Self {
            state: State::Idle,
            cell: 0,
            job: None,
            last_used: Instant::now(),
            last_used_at: Timestamp::now(),
            pid: None,
            rss_mb: None,
            checkpoints: Vec::new(),
            checkpoint_skipped: None,
            opened: Instant::now(),
            executions: 0,
            total_time: Duration::ZERO,
            last_time: None,
        }
    }
}

/// How a session is set back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartMode {
    /// A new process.
    #[default]
    Restart,
    /// The same process with an empty namespace.
    Clear,
}

/// What an interrupt did.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Interrupted {
    pub session: String,
    /// The job that was interrupted; none when nothing was running.
    pub job: Option<String>,
    pub outcome: Option<Outcome>,
    pub notes: Vec<String>,
}

/// What `undo` did.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Undone {
    pub session: String,
    /// The session is as it was after this cell; 0 is its start.
    pub cell: u64,
    /// Cells whose effects on variables are gone.
    pub undone: Vec<u64>,
    pub notes: Vec<String>,
}

enum Command {
    Execute {
        work: Work,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        client: String,
        /// What was done for it before it began.
        notes: Vec<String>,
        answer: oneshot::Sender<Result<Arc<Job>, Error>>,
    },
    /// Starts the ladder for this job, or for whatever runs.
    Interrupt {
        job: Option<String>,
        answer: oneshot::Sender<Option<Arc<Job>>>,
    },
    Restart {
        mode: RestartMode,
        answer: oneshot::Sender<Result<Vec<String>, Error>>,
    },
    Ask {
        question: task::Question,
        answer: task::Answer,
    },
    Undo {
        to: Option<u64>,
        answer: oneshot::Sender<Result<Undone, Error>>,
    },
    Branch {
        at: Option<u64>,
        answer: oneshot::Sender<Result<task::Branched, Error>>,
    },
    /// What the next caller must know.
    Note {
        notes: Vec<String>,
        answer: oneshot::Sender<()>,
    },
}

/// How a session is told to end, whatever it is in the middle of, and tells that it has.
#[derive(Debug, Default)]
struct Ending {
    reason: std::sync::OnceLock<String>,
    closing: CancellationToken,
    closed: CancellationToken,
    /// Its own directory stays, because it is going to come back.
    keeps_files: AtomicBool,
}

/// A handle to one session.
#[derive(Debug, Clone)]
pub struct Session {
    pub info: Arc<Info>,
    live: Arc<Mutex<Live>>,
    commands: mpsc::Sender<Command>,
    ending: Arc<Ending>,
    /// What came back of the save it was opened from.
    restored: Option<Arc<saved::Restored>>,
}

impl Session {
    pub fn restored(&self) -> Option<&saved::Restored> {
        self.restored.as_deref()
    }

    async fn note(&self, notes: Vec<String>) {
        // A session that is gone has nobody to tell.
        let _gone = self.send(|answer| Command::Note { notes, answer }).await;
    }

    /// Starts a cell and returns its job at once. A session that is busy says so.
    pub async fn execute(
        &self,
        code: String,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        client: &str,
    ) -> Result<Arc<Job>, Error> {
        self.run(Work::Code { code, path: None }, timeout, on_timeout, client).await
    }

    /// Starts a cell of any kind and returns its job at once.
    pub async fn run(
        &self,
        work: Work,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        client: &str,
    ) -> Result<Arc<Job>, Error> {
        if let Work::Code { code, .. } = &work
            && code.len() > MAX_CODE_BYTES
        {
            return Err(Error::CodeTooLong(code.len()));
        }
        let notes = self.before_cell(&work).await;
        let client = client.to_owned();
        self.send(|answer| Command::Execute { work, timeout, on_timeout, client, notes, answer }).await?
    }

    async fn send<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| Error::Gone)?;
        answered.await.map_err(|_| Error::Gone)
    }

    /// Asks the worker something outside of any cell. What only looks is also answered in the middle of a cell, without running any of
    /// the user's code; the rest is `busy` then.
    pub async fn ask(&self, op: Op, blob: Vec<u8>, limit: Duration) -> Result<serde_json::Value, Error> {
        let question = task::Question { op, blob, file: None, limit };
        self.send(|answer| Command::Ask { question, answer }).await?
    }

    /// Looks something up, which takes no time worth speaking of.
    pub async fn look<T: serde::de::DeserializeOwned>(&self, op: Op, blob: Vec<u8>) -> Result<T, Error> {
        let answer = self.ask(op, blob, LOOK_TIMEOUT).await?;
        serde_json::from_value(answer).map_err(|error| {
            let message = format!("the worker's answer could not be read: {error}");
            Error::Refused(Refusal { message, kind: None, hint: None })
        })
    }

    /// Sets the session back to where it was after a cell: the one before the newest if none is named.
    pub async fn undo(&self, to: Option<u64>) -> Result<Undone, Error> {
        self.send(|answer| Command::Undo { to, answer }).await?
    }

    /// Interrupts the given job, or whatever runs, and waits until it has ended.
    pub async fn interrupt(&self, job: Option<&str>) -> Result<Interrupted, Error> {
        let job = job.map(str::to_owned);
        let interrupted = self.send(|answer| Command::Interrupt { job, answer }).await?;
        let session = self.info.name.to_string();
        let Some(job) = interrupted else {
            return Ok(Interrupted {
                session,
                job: None,
                outcome: None,
                notes: vec!["nothing was running".to_owned()],
            });
        };
        let execution = job.ended().await;
        Ok(Interrupted {
            session,
            job: Some(job.id.clone()),
            outcome: Some(execution.outcome),
            notes: execution.notes.clone(),
        })
    }

    /// A new worker with nothing in it. A running cell is killed and reported as such to whoever waits for it.
    pub async fn restart(&self, mode: RestartMode) -> Result<Vec<String>, Error> {
        self.send(|answer| Command::Restart { mode, answer }).await?
    }

    /// Whether its own directory, if it has one, outlives its end.
    fn keep_files(&self, keep: bool) {
        self.ending.keeps_files.store(keep, Ordering::Release);
    }

    async fn close(&self, reason: &str) {
        // Whoever closes it first says why.
        let _already = self.ending.reason.set(reason.to_owned());
        self.ending.closing.cancel();
        self.ending.closed.cancelled().await;
    }

    /// Its task is gone though nobody closed it: a bug, which must not leave a name that leads nowhere.
    fn is_lost(&self) -> bool {
        self.ending.closed.is_cancelled()
    }

    /// Where its files are.
    pub fn workspace(&self) -> &Workspace {
        &self.info.workspace
    }

    pub fn status(&self) -> Status {
        let live = self.live.lock().expect("no panic while locked");
        let used = live.pid.and_then(crate::machine::used_by);
        Status {
            name: self.info.name.to_string(),
            handle: self.info.handle.to_string(),
            state: live.state,
            cell: live.cell,
            job: live.job.as_ref().map(|job| job.id.clone()),
            python: self.info.interpreter.version.clone(),
            executable: self.info.interpreter.executable.display().to_string(),
            sandbox: self.info.profile.name().to_owned(),
            cwd: self.info.workspace.seen_as.display().to_string(),
            client: self.info.client.clone(),
            description: self.info.description.clone(),
            opened_at: self.info.opened_at.to_string(),
            last_used_at: live.last_used_at.to_string(),
            pid: live.pid,
            rss_mb: live.rss_mb,
            checkpoints: live.checkpoints.clone(),
            checkpoint_skipped: live.checkpoint_skipped.clone(),
            uptime_s: live.opened.elapsed().as_secs_f64().round(),
            executions: live.executions,
            mean_ms: u32::try_from(live.executions)
                .ok()
                .filter(|count| *count > 0)
                .map(|count| report::milliseconds(live.total_time / count)),
            last_ms: live.last_time.map(report::milliseconds),
            cpu_s: used.as_ref().map(|used| used.cpu_s),
            threads: used.map(|used| used.threads),
            responsiveness_ms: None,
            keep: self.info.definition.keep,
        }
    }

    /// The status, and how long the worker takes to answer; nothing if it does not.
    pub async fn full_status(&self) -> Status {
        let asked = Instant::now();
        let answered = self.ask(Op::Ping, Vec::new(), LOOK_TIMEOUT).await.is_ok();
        let took = asked.elapsed();
        Status { responsiveness_ms: answered.then(|| report::milliseconds(took)), ..self.status() }
    }

    fn idle_for(&self) -> Option<Duration> {
        let live = self.live.lock().expect("no panic while locked");
        (live.state != State::Busy).then(|| live.last_used.elapsed())
    }
}

/// What sessions need of the daemon.
#[derive(Debug)]
pub struct Parts {
    pub probes: Probes,
    pub interpreters: Interpreters,
    pub journal: Journal,
    pub outputs: Arc<Outputs>,
    pub workspaces: Workspaces,
    pub jobs: Jobs,
    pub checkpoints: Checkpoints,
    pub python: Option<String>,
    pub session_ttl: Duration,
    pub max_sessions: usize,
    pub store: Arc<saved::Store>,
    pub packages: Arc<Packages>,
}

impl Parts {
    pub fn new(
        config: &Config,
        probes: Probes,
        journal: Journal,
        outputs: Outputs,
        store: saved::Store,
        (workspaces, packages): (Workspaces, Arc<Packages>),
    ) -> Self {
        Self {
            probes,
            interpreters: Interpreters::default(),
            journal,
            outputs: Arc::new(outputs),
            workspaces,
            jobs: Jobs::default(),
            checkpoints: config.checkpoints,
            python: config.python.clone(),
            session_ttl: config.session_ttl,
            max_sessions: config.max_sessions,
            store: Arc::new(store),
            packages,
        }
    }
}

#[derive(Debug, Default)]
struct Registry {
    open: HashMap<Arc<str>, Session>,
    /// Names being opened, so that two callers cannot take the same one.
    reserved: Vec<(Arc<str>, Arc<str>)>,
    closed: VecDeque<ClosedSession>,
}

/// What is remembered of a session that is gone.
#[derive(Debug)]
struct ClosedSession {
    info: Arc<Info>,
    reason: String,
}

type DefaultSlot = Arc<tokio::sync::Mutex<Option<Arc<str>>>>;

/// All sessions of the daemon.
#[derive(Debug)]
pub struct Sessions {
    pub parts: Arc<Parts>,
    registry: Mutex<Registry>,
    defaults: Mutex<HashMap<(Arc<str>, DefaultSession), DefaultSlot>>,
    /// Sessions that have no process and can be started by using them.
    stopped: Mutex<Vec<saved::Definition>>,
    reviving: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub fn new(parts: Parts) -> Arc<Self> {
        let parts = Arc::new(parts);
        let stopped = keeping::load(&parts);
        keeping::remove_left_directories(&parts, &stopped);
        parts.packages.sweep(|handle| stopped.iter().any(|definition| definition.handle == handle));
        let sessions = Arc::new(Self {
            stopped: Mutex::new(stopped),
            parts,
            registry: Mutex::default(),
            defaults: Mutex::default(),
            reviving: tokio::sync::Mutex::default(),
        });
        tokio::spawn(close_idle(Arc::downgrade(&sessions)));
        sessions
    }

    pub fn count(&self) -> usize {
        self.registry.lock().expect("no panic while locked").open.len()
    }

    /// The caller's sessions, oldest first.
    pub fn list(&self, caller: &Caller) -> Vec<Session> {
        let registry = self.registry.lock().expect("no panic while locked");
        let mut sessions: Vec<_> =
            registry.open.values().filter(|session| *session.info.owner == *caller.owner).cloned().collect();
        sessions.sort_by_key(|session| session.info.opened_at);
        sessions
    }

    /// The caller's sessions as they are shown: the open ones, then those that can be started by using them.
    pub fn statuses(&self, caller: &Caller) -> Vec<Status> {
        let mut statuses: Vec<_> = self.list(caller).iter().map(Session::status).collect();
        statuses.extend(self.list_stopped(caller));
        statuses
    }

    /// The open session a caller names, by name or handle.
    pub fn find(&self, caller: &Caller, target: &str) -> Result<Session, Error> {
        let wanted = target.strip_prefix("session:").unwrap_or(target);
        self.forget_lost();
        let registry = self.registry.lock().expect("no panic while locked");
        let mine = || registry.open.values().filter(|session| *session.info.owner == *caller.owner);
        if let Some(session) = mine().find(|session| &*session.info.name == wanted || &*session.info.handle == wanted) {
            return Ok(session.clone());
        }
        let closed = registry.closed.iter().rev().find(|ClosedSession { info, .. }| {
            info.owner == caller.owner && (&*info.name == wanted || &*info.handle == wanted)
        });
        if let Some(closed) = closed {
            return Err(Error::Closed { target: target.to_owned(), reason: closed.reason.clone() });
        }
        let mut known: Vec<_> = mine().map(|session| session.info.name.to_string()).collect();
        known.sort();
        Err(Error::Unknown { target: target.to_owned(), known })
    }

    /// The session a call goes to: the named one, or the caller's default, opened when it is not there yet.
    pub async fn target(&self, caller: &Caller, target: Option<&str>) -> Result<Session, Error> {
        if !caller.may(Scope::Run) {
            return Err(Error::NotAllowed("run code"));
        }
        if let Some(target) = target {
            return self.reach(caller, target).await;
        }
        if caller.default_session == DefaultSession::Fresh {
            return self.open(caller, OpenOptions::default()).await;
        }
        if caller.default_session == DefaultSession::Main
            && let Ok(session) = self.reach(caller, "main").await
        {
            return Ok(session);
        }
        let key = (caller.owner.clone(), caller.default_session.clone());
        let slot = self.defaults.lock().expect("no panic while locked").entry(key).or_default().clone();
        let mut slot = slot.lock().await;
        self.forget_lost();
        if let Some(handle) = &*slot
            && let Some(session) = self.registry.lock().expect("no panic while locked").open.get(handle)
        {
            return Ok(session.clone());
        }
        let session = if let Some(session) = self.stopped_default(caller).await? {
            session
        } else {
            let name = match caller.default_session {
                DefaultSession::Main => "main".to_owned(),
                _ => self.free_name(caller),
            };
            let options = OpenOptions { name: Some(name), ..OpenOptions::default() };
            let default_of = keeping::default_key(&caller.default_session);
            self.open_as(caller, options, Opening { again: None, default_of }).await?
        };
        *slot = Some(session.info.handle.clone());
        Ok(session)
    }

    /// The default session of somebody else, if it is open: what `pylair exec` beside an agent looks for.
    pub async fn default_of(&self, owner: &Arc<str>, default: &DefaultSession) -> Option<Session> {
        let key = (owner.clone(), default.clone());
        let slot = self.defaults.lock().expect("no panic while locked").get(&key)?.clone();
        let handle = slot.lock().await.clone()?;
        self.registry.lock().expect("no panic while locked").open.get(&handle).cloned()
    }

    /// Opens a session and waits until its worker is ready.
    pub async fn open(&self, caller: &Caller, options: OpenOptions) -> Result<Session, Error> {
        self.open_as(caller, options, Opening::default()).await
    }

    async fn open_as(&self, caller: &Caller, options: OpenOptions, opening: Opening) -> Result<Session, Error> {
        if !caller.may(Scope::Run) {
            return Err(Error::NotAllowed("open sessions"));
        }
        let profile: Profile = match &options.sandbox {
            Some(sandbox) => sandbox.parse().map_err(|error| Error::BadArgument(format!("{error}")))?,
            None => Profile::Open,
        };
        let home = caller.env.get("HOME").map(PathBuf::from);
        let cwd = match (&options.cwd, &caller.cwd) {
            (Some(cwd), Some(base)) => base.join(cwd),
            (Some(cwd), None) => cwd.clone(),
            (None, Some(base)) => base.clone(),
            (None, None) => home.unwrap_or_else(|| PathBuf::from("/")),
        };
        if !cwd.is_dir() {
            return Err(Error::NotADirectory(cwd));
        }
        if let Some(module) = options.preload.iter().find(|module| !is_module_name(module)) {
            return Err(Error::BadArgument(format!("`{module}` in `preload` is not the name of a module")));
        }
        let save = match &options.restore {
            Some(restore) => Some(self.save_named(restore)?),
            None => None,
        };
        // What the caller's environment holds is none of a confined session's business.
        let lookup = caller.env.iter().chain(&options.env).map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut env =
            if profile.is_confined() { caller::plain_environment("/tmp", "pylair") } else { (*caller.env).clone() };
        env.extend(options.env.clone());
        if env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENV_BYTES {
            return Err(Error::BadArgument(format!("the environment is over the limit of {MAX_ENV_BYTES} bytes")));
        }
        let bad =
            |(name, value): (&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if let Some((name, _)) = env.iter().find(|pair| bad(*pair)) {
            return Err(Error::BadArgument(format!("`{name}` in `env` cannot be an environment variable")));
        }
        let interpreter = self
            .parts
            .interpreters
            .resolve(options.python.as_deref(), self.parts.python.as_deref(), &cwd, &env)
            .await?;
        let base = self.base_of(&interpreter, &cwd, &lookup).await;
        let again = opening.again.as_ref();
        let handle: Arc<str> = again.map_or_else(new_handle, |definition| definition.handle.clone()).into();
        let name: Arc<str> = match options.name {
            Some(name) => name.into(),
            None if caller.default_session == DefaultSession::Fresh => handle.clone(),
            None => self.free_name(caller).into(),
        };
        let reservation = self.reserve(caller, &name)?;
        let ttl = if name == handle { FRESH_TTL.min(self.parts.session_ttl) } else { self.parts.session_ttl };
        let (workspace, directory) = self.workspace_for(profile, &handle, &cwd).await?;
        let opened_at = Timestamp::now();
        let definition = saved::Definition {
            handle: handle.to_string(),
            name: name.to_string(),
            owner: caller.owner.to_string(),
            python: options.python.or_else(|| Some(interpreter.executable.display().to_string())),
            cwd: cwd.clone(),
            env: options.env,
            startup: options.startup.clone(),
            preload: options.preload.clone(),
            sandbox: profile.name().to_owned(),
            description: options.description.clone(),
            keep: options.keep,
            cell: again.map_or(0, |definition| definition.cell),
            default_of: opening.default_of,
            opened_at: opened_at.to_string(),
            last_used_at: opened_at.to_string(),
        };
        let environment = self.parts.packages.environment(&handle);
        let info = Arc::new(Info {
            definition: Arc::new(definition),
            handle,
            name,
            owner: caller.owner.clone(),
            client: caller.client.clone(),
            cwd,
            workspace,
            env,
            interpreter,
            base,
            profile,
            startup: options.startup,
            preload: options.preload,
            environment,
            description: options.description,
            opened_at,
            ttl,
        });
        let seed = task::Seed::New { cell: info.definition.cell, save, directory };
        let session = task::start(info.clone(), self.parts.clone(), seed).await?;
        if info.definition.keep {
            let (store, definition) = (self.parts.store.clone(), info.definition.clone());
            let put = tokio::task::spawn_blocking(move || store.put(&definition)).await;
            put.map_err(|_| Error::Gone)?.map_err(Error::Store)?;
        }
        self.add(&session, None);
        drop(reservation);
        Ok(session)
    }

    /// Makes a second session out of one: from what it is now, or from its checkpoint after a cell.
    pub async fn branch(
        &self,
        caller: &Caller,
        target: &str,
        name: Option<String>,
        at: Option<u64>,
    ) -> Result<Session, Error> {
        if !caller.may(Scope::Run) {
            return Err(Error::NotAllowed("open sessions"));
        }
        let original = self.reach(caller, target).await?;
        let name = name.unwrap_or_else(|| self.unused_name(caller, &format!("{}-branch", original.info.name)));
        let name: Arc<str> = name.into();
        let reservation = self.reserve(caller, &name)?;
        let branched = original.send(|answer| Command::Branch { at, answer }).await??;
        let cell = branched.head();
        let handle: Arc<str> = new_handle().into();
        let definition = saved::Definition {
            handle: handle.to_string(),
            name: name.to_string(),
            keep: false,
            default_of: None,
            ..(*original.info.definition).clone()
        };
        let info = Arc::new(Info {
            handle,
            name,
            client: caller.client.clone(),
            opened_at: Timestamp::now(),
            definition: Arc::new(definition),
            ..(*original.info).clone()
        });
        let session = task::start(info, self.parts.clone(), task::Seed::Branch(Box::new(branched))).await?;
        self.add(&session, Some((original.info.handle.to_string(), cell)));
        drop(reservation);
        Ok(session)
    }

    fn add(&self, session: &Session, branch: Option<(String, u64)>) {
        let info = &session.info;
        info.environment.hold();
        self.parts.journal.record(
            &info.owner,
            &info.handle,
            EventKind::SessionOpened {
                name: info.name.to_string(),
                python: info.interpreter.version.clone(),
                profile: info.profile.name().to_owned(),
                cwd: info.cwd.display().to_string(),
                startup: info.startup.clone(),
                branch,
            },
        );
        let mut registry = self.registry.lock().expect("no panic while locked");
        registry.open.insert(info.handle.clone(), session.clone());
    }

    /// Where the files of a new session are: in its working directory, or in one of its own when it is confined.
    async fn workspace_for(
        &self,
        profile: Profile,
        handle: &Arc<str>,
        cwd: &std::path::Path,
    ) -> Result<(Workspace, Option<Arc<OwnDirectory>>), Error> {
        if !profile.is_confined() {
            return Ok((Workspace::open(cwd), None));
        }
        let (workspaces, handle) = (self.parts.workspaces.clone(), handle.clone());
        let seen_as = std::path::Path::new(confine::WORKSPACE);
        let made = tokio::task::spawn_blocking(move || workspaces.make(&handle, seen_as, confine::new_outer_id()));
        let made = made.await.map_err(std::io::Error::other).and_then(|made| made).map_err(Error::Workspace)?;
        Ok((made.0, Some(Arc::new(made.1))))
    }

    /// The base interpreter of a venv, if a session of the venv can be made from it exactly.
    async fn base_of(
        &self,
        interpreter: &Interpreter,
        cwd: &std::path::Path,
        env: &BTreeMap<String, String>,
    ) -> Option<Interpreter> {
        if !interpreter.is_venv() || interpreter.implementation != "cpython" {
            return None;
        }
        let minor = interpreter.version.rsplit_once('.')?.0;
        let path = interpreter.base_exec_prefix.join(format!("bin/python{minor}"));
        let base = self.parts.interpreters.ask(&path, cwd, env).await.ok()?;
        let exact = !base.is_venv()
            && base.version == interpreter.version
            && base.implementation == interpreter.implementation
            && base.prefix == interpreter.base_prefix
            && base.exec_prefix == interpreter.base_exec_prefix;
        exact.then_some(base)
    }

    fn forget_lost(&self) {
        let mut registry = self.registry.lock().expect("no panic while locked");
        let Registry { open, closed, .. } = &mut *registry;
        open.retain(|_, session| {
            if session.is_lost() {
                let reason = "it failed inside pylair, see the daemon's log".to_owned();
                closed.push_back(ClosedSession { info: session.info.clone(), reason });
            }
            !session.is_lost()
        });
    }

    async fn end(&self, session: &Session, reason: &str) {
        // A default session that is gone is opened anew when it is next meant; a slot in use right now notices by itself.
        self.defaults.lock().expect("no panic while locked").retain(|_, slot| {
            slot.try_lock().map_or(true, |handle| handle.as_ref().is_none_or(|handle| *handle != session.info.handle))
        });
        {
            let mut registry = self.registry.lock().expect("no panic while locked");
            if registry.open.remove(&session.info.handle).is_none() {
                return;
            }
            registry.closed.push_back(ClosedSession { info: session.info.clone(), reason: reason.to_owned() });
            if registry.closed.len() > REMEMBERED {
                registry.closed.pop_front();
            }
        }
        session.close(reason).await;
    }

    /// Ends everything; the daemon is leaving.
    pub async fn close_all(&self, reason: &str) {
        let sessions: Vec<_> = {
            let registry = self.registry.lock().expect("no panic while locked");
            registry.open.values().cloned().collect()
        };
        let coming_back = keeping::load(&self.parts);
        let end = async |session: &Session| {
            self.end(session, reason).await;
            let keep = coming_back.iter().any(|definition| *definition.handle == *session.info.handle);
            session.info.environment.release(keep).await;
        };
        futures::future::join_all(sessions.iter().map(end)).await;
    }

    fn reserve(&self, caller: &Caller, name: &Arc<str>) -> Result<Reservation<'_>, Error> {
        let good = name.len() <= MAX_NAME_CHARS
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !good {
            return Err(Error::BadName(name.to_string()));
        }
        let mut registry = self.registry.lock().expect("no panic while locked");
        let open = registry.open.len() + registry.reserved.len();
        if open >= self.parts.max_sessions {
            let mine = registry.open.values().filter(|session| session.info.owner == caller.owner);
            let mut idle: Vec<_> =
                mine.filter_map(|session| Some((session.info.name.to_string(), session.idle_for()?))).collect();
            idle.sort_by_key(|(_, idle)| std::cmp::Reverse(*idle));
            idle.truncate(NAMED_IDLE);
            return Err(Error::TooMany { limit: self.parts.max_sessions, idle });
        }
        let key = (caller.owner.clone(), name.clone());
        let taken = registry.reserved.contains(&key)
            || registry.open.values().any(|session| session.info.owner == key.0 && session.info.name == key.1);
        if taken || self.is_stopped_name(&caller.owner, name) {
            return Err(Error::NameTaken(name.to_string()));
        }
        registry.reserved.push(key.clone());
        Ok(Reservation { registry: &self.registry, key })
    }

    /// A name nobody uses, made of what the client calls itself.
    fn free_name(&self, caller: &Caller) -> String {
        let base: String = caller
            .client
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .take(24)
            .collect();
        let base = base.trim_matches('-');
        self.unused_name(caller, if base.is_empty() { "session" } else { base })
    }

    fn unused_name(&self, caller: &Caller, base: &str) -> String {
        let registry = self.registry.lock().expect("no panic while locked");
        let base = &base[..base.floor_char_boundary(MAX_NAME_CHARS - 8)];
        let taken = |name: &str| {
            registry.reserved.iter().any(|(owner, reserved)| *owner == caller.owner && **reserved == *name)
                || registry.open.values().any(|s| s.info.owner == caller.owner && *s.info.name == *name)
                || self.is_stopped_name(&caller.owner, name)
        };
        let mut number = 1_u32;
        loop {
            let name = format!("{base}-{number}");
            if !taken(&name) {
                return name;
            }
            number += 1;
        }
    }
}

struct Reservation<'a> {
    registry: &'a Mutex<Registry>,
    key: (Arc<str>, Arc<str>),
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Ok(mut registry) = self.registry.lock() {
            registry.reserved.retain(|key| *key != self.key);
        }
    }
}

/// Closes sessions nobody has used for longer than they may stay.
async fn close_idle(sessions: Weak<Sessions>) {
    let mut tick = tokio::time::interval(Duration::from_secs(30));
    loop {
        tick.tick().await;
        let Some(sessions) = sessions.upgrade() else { return };
        let expired: Vec<_> = {
            let registry = sessions.registry.lock().expect("no panic while locked");
            let is_expired = |session: &&Session| session.idle_for().is_some_and(|idle| idle > session.info.ttl);
            registry.open.values().filter(is_expired).cloned().collect()
        };
        for session in expired {
            let reason = format!("nobody used it for {} s", session.info.ttl.as_secs());
            sessions.end(&session, &reason).await;
            sessions.put_away(&session, false).await;
        }
    }
}

fn is_module_name(name: &str) -> bool {
    !name.is_empty()
        && name.split('.').all(|part| {
            part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_alphanumeric() || c == '_')
        })
}

/// Eight characters nobody guesses by accident and everybody can read aloud.
fn new_handle() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the kernel has random bytes");
    random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}
