//! Sessions: interpreters pylair owns.
//!
//! `Sessions` is the collection, `Session` a cheap handle; the task in `task` owns the worker and is the only writer of a
//! session's state. Every door calls these methods and nothing below them.

mod ahead;
mod crowding;
pub(crate) mod ended;
mod error;
mod gone;
mod install;
mod job;
mod keeping;
mod leaving;
pub mod literal;
mod notes;
mod report;
pub mod saved;
mod sessions;
mod strange;
mod task;
mod watching;

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use error::Error;
pub use job::{Execution, Job, Jobs, Late, OnTimeout, Outcome, Shown, Variables};
pub use keeping::{SaveReport, stopped_status};
pub use leaving::Unsaved;
pub use report::{Display, MAX_CHARS, Report, cut_middle, file_uri, mime_of, output_uri};
pub use sessions::{Sessions, new_handle};
pub use task::Reserved;

use crate::{
    audit::{Audit, Line, What},
    caller::{Caller, DefaultSession, Scope},
    order::Sender,
    packages::{Environment, Packages},
    settings::{CallerSettings, Config},
};
use pylair_files::{Workspace, Workspaces};
use pylair_journal::Journal;
use pylair_os::{
    budget::{Pool, Taken},
    clock::Clock,
    event_loop, out_of_memory,
    turns::{Turn, Turns},
};
use pylair_output::Outputs;
use pylair_probe::wire::Op;
use pylair_python::{Interpreter, Interpreters, Trust};
use pylair_sandbox::{
    self as sandbox, Terms, Wish,
    cgroup::{Group, Groups},
    paths::Protected,
    share::Standing,
    truth::{self, Enforced, Grouped},
};
use pylair_text::plain::counted;
use pylair_workers::link::{Probes, Refusal, Walls};

pub(crate) const MAX_CODE_BYTES: usize = 32 << 20;
const MAX_NAME_CHARS: usize = 64;
/// Maximum number of bytes of code that waits for its turn, of all owners together.
const MAX_WAITING_BYTES: u64 = 256 << 20;
/// How long a worker may take to look something up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// A session nobody named and nobody will ask for again, made by a stateless call.
const FRESH_TTL: Duration = Duration::from_hours(1);

/// What a cell is made of.
#[derive(Debug, Clone)]
pub enum Work {
    /// Source; `path` is what it was made around, if it was made by pylair.
    Code { code: String, path: Option<String> },
    File {
        file: PathBuf,
        /// The file as the caller named it.
        name: String,
        args: Vec<String>,
        /// What is in it, where the session cannot read it.
        source: Option<String>,
    },
}

impl Work {
    /// What it is made of, which leaves nothing.
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Code { code: String::new(), path: None })
    }

    /// The memory that it takes while it waits.
    fn bytes(&self) -> usize {
        match self {
            Self::Code { code, .. } => code.len(),
            Self::File { args, source, .. } => {
                args.iter().map(String::len).sum::<usize>() + source.as_ref().map_or(0, String::len)
            }
        }
    }

    /// Code that does the same, also in another interpreter, for history; none when it is the code itself.
    fn as_code(&self) -> Option<String> {
        const RUN_FILE: &str = r#"
    import os, sys
    names, argv, absent = globals(), sys.argv, object()
    was, directory = names.get("__file__", absent), os.path.dirname(os.path.realpath(file))
    sys.argv, names["__file__"] = [file, *args], file
    sys.path.insert(0, directory)
    try:
        with open(file, "rb") as source:
            exec(compile(source.read(), file, "exec", dont_inherit=True), names)
    except SystemExit as exit:
        if exit.code not in (None, 0):
            raise
    finally:
        sys.argv = argv
        if directory in sys.path:
            sys.path.remove(directory)
        names.pop("__file__", None)
        if was is not absent:
            names["__file__"] = was
"#;
        let Self::File { file, args, .. } = self else { return None };
        let file = literal::string(&file.display().to_string());
        let args: Vec<_> = args.iter().map(|arg| literal::string(arg)).collect();
        let call = format!("_run_file({file}, [{}])", args.join(", "));
        Some(format!("def _run_file(file, args):{RUN_FILE}{call}  # run_file\ndel _run_file"))
    }

    fn into_request(self, cell: u64) -> (Op, String) {
        match self {
            Self::Code { code, path } => (Op::Execute { cell, path }, code),
            Self::File { file, name, args, source } => {
                let file = file.display().to_string();
                (Op::RunFile { cell, file, name: Some(name), args }, source.unwrap_or_default())
            }
        }
    }
}

/// Who a cell is run for.
#[derive(Debug, Clone, Copy)]
pub struct RunBy<'a> {
    pub client: &'a str,
    pub settings: &'a CallerSettings,
}

/// What the task has to know of who a cell is run for.
#[derive(Debug)]
struct Runner {
    client: String,
    auto_install: bool,
    /// How much of the output is kept.
    max_output_bytes: u64,
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
    pub sandbox: Option<Wish>,
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
    /// What an installer for it is started with, where that must not be the session's own.
    pub installer_env: BTreeMap<String, String>,
    pub interpreter: Interpreter,
    pub base: Option<Interpreter>,
    /// The interpreter may be a project's, and is run inside of the session's walls only.
    pub inside: bool,
    pub terms: Terms,
    pub walls: Walls,
    pub startup: Option<String>,
    pub preload: Vec<String>,
    pub environment: Arc<Environment>,
    pub description: Option<String>,
    pub opened_at: Timestamp,
    pub ttl: Duration,
    /// Whether it is open where not all of its walls stand.
    pub best_effort: bool,
    /// How it would be opened again.
    definition: Arc<saved::Definition>,
}

impl Info {
    /// Writes down what its sandbox did not let happen, or ended.
    fn record_denied(&self, parts: &Parts, reason: &str) {
        parts.audit.record(Line {
            owner: Some(self.owner.to_string()),
            client: Some(self.client.clone()),
            action: Some("sandbox".to_owned()),
            target: Some(self.handle.to_string()),
            reason: Some(reason.to_owned()),
            ..Line::new(What::Denied)
        });
    }

    fn enforced(&self, trial: &truth::Trial, grouped: Grouped) -> Vec<Enforced> {
        truth::enforced(&self.terms, trial, grouped, self.walls == Walls::All, self.own_directory().is_some())
    }

    /// The directory that was made for it, when it is confined.
    fn own_directory(&self) -> Option<&std::path::Path> {
        (self.terms.profile.is_confined() && !self.definition.is_bound).then_some(&*self.workspace.path)
    }
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
    /// It has a worker.
    pub alive: bool,
    pub busy: bool,
    /// Number of calls that wait until earlier ones of their caller have ended.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: usize,
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
    /// Whether calls of yours without a target go to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mine: Option<bool>,
    /// What its sandbox promises and does not hold, where that is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_missing: Option<String>,
    /// What of its sandbox holds, as its worker found it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enforced: Vec<Enforced>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Status {
    /// In one line, for a model or a person.
    pub fn line(&self) -> String {
        let mine = if self.mine == Some(true) { ", yours" } else { "" };
        let mut line = format!("{} ({}{mine}): {}", self.name, self.handle, self.state.as_str());
        if !self.python.is_empty() {
            let _infallible = write!(line, ", Python {}", self.python);
        }
        let _infallible = write!(line, ", {}, {}, in {}", counted(self.cell, "cell"), self.sandbox, self.cwd);
        if let Some(rss) = self.rss_mb {
            let _infallible = write!(line, ", {rss:.0} MB");
        }
        if let Some(description) = &self.description {
            let _infallible = write!(line, ", {description}");
        }
        if let Some(missing) = &self.sandbox_missing {
            let _infallible = write!(line, "; {}", truth::not_whole(missing));
        }
        line
    }
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Dead => "dead",
            Self::Stopped => "stopped",
        }
    }
}

/// What changes, written by the task only.
#[derive(Debug)]
struct Live {
    state: State,
    waiting: usize,
    cell: u64,
    job: Option<Arc<Job>>,
    last_used: Instant,
    last_used_at: Timestamp,
    /// How often something was asked for that may have changed it.
    uses: u64,
    pid: Option<i32>,
    rss_mb: Option<f64>,
    checkpoints: Vec<u64>,
    checkpoint_skipped: Option<String>,
    /// There is something in it that its end would lose.
    holds: bool,
    opened: Instant,
    executions: u64,
    total_time: Duration,
    last_time: Option<Duration>,
    /// What its worker found when it tried the walls around it.
    trial: Option<truth::Trial>,
    /// What its sandbox promises and does not hold.
    missing: Option<String>,
    /// The kernel's groups that its processes are in, when it is confined and there are any.
    group: Option<Arc<Group>>,
    keeper: Option<i32>,
    /// Its frozen copies.
    copies: Vec<i32>,
    /// Why its processes were ended, for whoever finds that they were.
    ended_for: Option<String>,
    /// What happened to it while nobody asked for anything, until somebody is told.
    news: Vec<String>,
    standing: Standing,
    /// The tokens that calls came with which ran something here or changed its files.
    tokens: Vec<Arc<str>>,
    /// Its cell was told to end.
    is_being_ended: bool,
}

impl Live {
    fn new() -> Self {
        Self {
            state: State::Idle,
            waiting: 0,
            cell: 0,
            job: None,
            last_used: Instant::now(),
            last_used_at: Timestamp::now(),
            uses: 0,
            pid: None,
            rss_mb: None,
            checkpoints: Vec::new(),
            checkpoint_skipped: None,
            holds: false,
            opened: Instant::now(),
            executions: 0,
            total_time: Duration::ZERO,
            last_time: None,
            trial: None,
            missing: None,
            group: None,
            keeper: None,
            copies: Vec::new(),
            ended_for: None,
            news: Vec::new(),
            standing: Standing::default(),
            tokens: Vec::new(),
            is_being_ended: false,
        }
    }

    /// A worker that dies again and again must not fill memory with it.
    fn add_news(&mut self, notes: impl IntoIterator<Item = String>) {
        const MOST: usize = 40;
        for note in notes {
            if !self.news.contains(&note) && self.news.len() < MOST {
                self.news.push(note);
            }
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

/// A cell on its way to the worker.
struct Cell {
    work: Work,
    timeout: Option<Duration>,
    on_timeout: OnTimeout,
    by: Runner,
    /// What was done for it before it began.
    notes: Vec<String>,
    /// Whose calls it waits for; without one it does not wait.
    sender: Option<Sender>,
    /// Its caller has the session reserved.
    is_reserved: bool,
    /// Set while it waits, when its caller was told.
    job: Option<Arc<Job>>,
    room: Option<Taken>,
    answer: Option<oneshot::Sender<Result<Arc<Job>, Error>>>,
}

enum Command {
    Execute(Box<Cell>),
    /// Answered when the calls that the sender made before have ended.
    Reserve {
        sender: Sender,
        /// It does not wait for a cell whose caller was told that it runs.
        beside: bool,
        answer: task::ReserveAnswer,
    },
    /// Starts the ladder for this job, or for whatever runs.
    Interrupt {
        job: Option<String>,
        answer: oneshot::Sender<Option<Arc<Job>>>,
    },
    Restart {
        mode: RestartMode,
        /// Calls that wait came later and go on afterwards.
        is_reserved: bool,
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
    /// Ends the running cell, goes back to the newest checkpoint, if there is one, and begins no other cell.
    Abandon {
        reason: String,
        answer: oneshot::Sender<task::Abandoned>,
    },
    /// Ends the session if it was used exactly so often, and so by nobody since that was counted. Answers whether it ends.
    Leave {
        uses: u64,
        reason: String,
        answer: oneshot::Sender<bool>,
    },
    /// What the next cell has to say.
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
    /// Wakes a task that waits for an answer of its worker, when somebody interrupts.
    hurry: tokio::sync::Notify,
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
    parts: Arc<Parts>,
    /// What came back of the save it was opened from.
    restored: Option<Arc<saved::Restored>>,
}

impl Session {
    pub fn restored(&self) -> Option<&saved::Restored> {
        self.restored.as_deref()
    }

    /// Says that there is an environment beside a session in a sandbox that it does not have, because nobody named it.
    async fn note_unused_environment(&self) {
        let Info { terms, cwd, interpreter, .. } = &*self.info;
        let environment = cwd.join(".venv");
        let is_there = || environment.join("bin/python").symlink_metadata().is_ok();
        if terms.profile.is_confined() && !interpreter.executable.starts_with(&environment) && is_there() {
            let note = "the directory has a `.venv`, which a session in a sandbox uses only if it is named: open one \
                        with python=\".venv\"";
            self.note(vec![note.to_owned()]).await;
        }
    }

    /// Whoever asks next for anything about the session is told.
    pub fn has_news(&self, notes: Vec<String>) {
        self.live.lock().expect("no panic while locked").add_news(notes);
    }

    /// What happened to the session and nobody was told yet. Whoever takes it tells it.
    pub fn take_news(&self) -> Vec<String> {
        std::mem::take(&mut self.live.lock().expect("no panic while locked").news)
    }

    /// What the next cell says.
    async fn note(&self, notes: Vec<String>) {
        // A session that is gone has nobody to tell.
        let _gone = self.send(|answer| Command::Note { notes, answer }).await;
    }

    /// Starts a cell of a caller without settings of its own and returns its job at once. A session that is busy says so.
    pub async fn execute(
        &self,
        code: String,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        client: &str,
    ) -> Result<Arc<Job>, Error> {
        let by = RunBy { client, settings: &self.parts.settings };
        self.run(Work::Code { code, path: None }, timeout, on_timeout, by).await
    }

    /// Starts a cell of any kind and returns its job at once. A session that is busy says so.
    pub async fn run(
        &self,
        work: Work,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        by: RunBy<'_>,
    ) -> Result<Arc<Job>, Error> {
        self.run_in_order(None, work, timeout, on_timeout, by).await
    }

    /// The session, for somebody who is to run code in it or change it: outside of a sandbox that needs more rights than inside.
    pub fn open_to(self, caller: &Caller) -> Result<Self, Error> {
        if !caller.may(Scope::Run) {
            return Err(Error::NotAllowed("change sessions"));
        }
        if !self.info.terms.profile.is_confined() && !caller.may(Scope::Admin) {
            return Err(Error::NotAllowed("change a session without a sandbox"));
        }
        Ok(self)
    }

    /// The same for a sender whose calls run in the order they came: while another call of its is under way the job waits.
    pub async fn run_in_order(
        &self,
        sender: Option<&Sender>,
        work: Work,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        by: RunBy<'_>,
    ) -> Result<Arc<Job>, Error> {
        if let Work::Code { code, .. } = &work
            && code.len() > MAX_CODE_BYTES
        {
            return Err(Error::CodeTooLong(code.len()));
        }
        let reserved = match sender.filter(|_| by.settings.auto_install) {
            // What the code imports is looked up when the cells before it have ended. If that takes long it is not.
            Some(sender) => self.reserve(sender, false, LOOK_TIMEOUT).await.ok(),
            None => None,
        };
        let mut notes = self.before_cell(&work, by.settings).await;
        notes.extend(reserved.as_ref().and_then(|reserved| reserved.waited.clone()));
        let (answer, answered) = oneshot::channel();
        let cell = Cell {
            work,
            timeout,
            on_timeout,
            by: Runner {
                client: by.client.to_owned(),
                auto_install: by.settings.auto_install,
                max_output_bytes: by.settings.max_output_bytes,
            },
            notes,
            sender: sender.cloned(),
            is_reserved: reserved.is_some(),
            job: None,
            room: None,
            answer: Some(answer),
        };
        let sent = self.commands.send(Command::Execute(Box::new(cell))).await;
        sender.inspect(|sender| sender.pass());
        sent.map_err(|_| Error::Gone)?;
        answered.await.map_err(|_| Error::Gone)?
    }

    /// Waits until the calls that the sender made before have ended, at most so long. Those that it makes later wait until what is
    /// returned is dropped. What can go on `beside` a running cell does not wait for one whose caller was told that it runs.
    pub async fn reserve(&self, sender: &Sender, beside: bool, limit: Duration) -> Result<Reserved, Error> {
        let (answer, answered) = oneshot::channel();
        let asked = Instant::now();
        let sent = self.commands.send(Command::Reserve { sender: sender.clone(), beside, answer }).await;
        sender.pass();
        sent.map_err(|_| Error::Gone)?;
        match tokio::time::timeout(limit, answered).await {
            Ok(answered) => answered.map_err(|_| Error::Gone)?,
            Err(_) => Err(self.waited_too_long(asked.elapsed())),
        }
    }

    /// What a call is told that gave up waiting for its turn.
    pub fn waited_too_long(&self, waited: Duration) -> Error {
        let job = self.live.lock().expect("no panic while locked").job.clone();
        let job = job.filter(|job| job.execution().is_none()).map(|job| (job.cell, job.id.clone()));
        Error::WaitedTooLong { session: self.info.name.to_string(), waited, job }
    }

    async fn send<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| Error::Gone)?;
        answered.await.map_err(|_| Error::Gone)
    }

    /// Asks the worker something outside of any cell. What only looks is also answered in the middle of a cell, without running any of
    /// the user's code; the rest is `busy` then.
    pub async fn ask(&self, op: Op, blob: Vec<u8>, limit: Duration) -> Result<serde_json::Value, Error> {
        let question = task::Question { op, blob, files: Vec::new(), limit };
        let answer = self.send(|answer| Command::Ask { question, answer }).await??;
        event_loop::carry(event_loop::weight(&answer)).await;
        Ok(answer)
    }

    /// Looks something up, which takes no time worth speaking of.
    pub async fn look<T: serde::de::DeserializeOwned>(&self, op: Op, blob: Vec<u8>) -> Result<T, Error> {
        read_answer(self.ask(op, blob, LOOK_TIMEOUT).await?)
    }

    /// Sets the session back to where it was after a cell: the one before the newest if none is named.
    pub async fn undo(&self, to: Option<u64>) -> Result<Undone, Error> {
        self.send(|answer| Command::Undo { to, answer }).await?
    }

    /// Interrupts the given job, or whatever runs, and waits until it has ended.
    pub async fn interrupt(&self, job: Option<&str>) -> Result<Interrupted, Error> {
        let job = job.map(str::to_owned);
        self.ending.hurry.notify_waiters();
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
        self.send(|answer| Command::Restart { mode, is_reserved: false, answer }).await?
    }

    /// The same for somebody who has the session reserved: calls that wait came later and go on afterwards.
    async fn restart_reserved(&self) -> Result<Vec<String>, Error> {
        let mode = RestartMode::Restart;
        self.send(|answer| Command::Restart { mode, is_reserved: true, answer }).await?
    }

    /// Remembers with which token somebody works here.
    pub fn note_token(&self, caller: &Caller) {
        let Some(credential) = &caller.credential else { return };
        let mut live = self.live.lock().expect("no panic while locked");
        if !live.tokens.contains(&credential.token) {
            live.tokens.push(credential.token.clone());
        }
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

    /// What one is told who wants it before it is there.
    fn is_starting(&self) -> Error {
        let since = self.live.lock().expect("no panic while locked").opened.elapsed();
        Error::Starting { session: self.info.name.to_string(), since }
    }

    /// Its task is gone though nobody closed it: a bug, which must not leave a name that leads nowhere.
    fn is_lost(&self) -> bool {
        self.ending.closed.is_cancelled()
    }

    /// Where its files are.
    pub fn is_confined(&self) -> bool {
        self.info.terms.profile.is_confined()
    }

    pub fn workspace(&self) -> &Workspace {
        &self.info.workspace
    }

    pub fn status(&self) -> Status {
        let live = self.live.lock().expect("no panic while locked");
        let used = live.pid.and_then(pylair_os::machine::used_by);
        Status {
            name: self.info.name.to_string(),
            handle: self.info.handle.to_string(),
            state: live.state,
            alive: matches!(live.state, State::Idle | State::Busy),
            busy: live.state == State::Busy,
            waiting: live.waiting,
            cell: live.cell,
            job: live.job.as_ref().map(|job| job.id.clone()),
            python: self.info.interpreter.version.clone(),
            executable: self.info.interpreter.executable.display().to_string(),
            sandbox: self.info.terms.profile.name().to_owned(),
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
            mine: None,
            sandbox_missing: live.missing.clone(),
            enforced: Vec::new(),
        }
    }

    /// What of its sandbox holds; nothing when it has none.
    pub fn enforced(&self) -> Vec<Enforced> {
        let live = self.live.lock().expect("no panic while locked");
        let grouped = live.group.as_ref().map(|group| group.held).unwrap_or_default();
        live.trial.as_ref().map(|trial| self.info.enforced(trial, grouped)).unwrap_or_default()
    }

    /// What every answer about it says, when its sandbox does not hold all that it promises.
    pub fn caution(&self) -> Option<String> {
        self.live.lock().expect("no panic while locked").missing.as_deref().map(truth::not_whole)
    }

    /// Whether there is anything in it that its end would lose.
    fn holds(&self) -> bool {
        self.live.lock().expect("no panic while locked").holds
    }

    /// The status, and how long the worker takes to answer; nothing if it does not.
    pub async fn full_status(&self) -> Status {
        let asked = Instant::now();
        let answered = self.ask(Op::Ping, Vec::new(), LOOK_TIMEOUT).await.is_ok();
        let took = asked.elapsed();
        Status {
            responsiveness_ms: answered.then(|| report::milliseconds(took)),
            enforced: self.enforced(),
            ..self.status()
        }
    }

    fn idle_for(&self) -> Option<Duration> {
        let live = self.live.lock().expect("no panic while locked");
        (live.state != State::Busy).then(|| live.last_used.elapsed())
    }
}

/// An answer of a worker's as what it should be. One that is something else is told, not taken for nothing.
fn read_answer<T: serde::de::DeserializeOwned>(answer: serde_json::Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(|error| {
        let message = format!("the worker's answer could not be read: {error}");
        Error::Refused(Refusal { message, kind: None, hint: None })
    })
}

/// Turns to open a confined worker on a crowded machine. One of each owner's waits at a time, so that many of one are not all before
/// the others.
#[derive(Debug, Default)]
pub struct Openings {
    owners: Turns<String>,
    all: Arc<tokio::sync::Mutex<()>>,
}

impl Openings {
    async fn take(&self, owner: &str) -> (Turn, OwnedMutexGuard<()>) {
        (self.owners.take(owner).await, self.all.clone().lock_owned().await)
    }
}

/// What sessions need of the daemon.
#[derive(Debug)]
pub struct Parts {
    pub probes: Probes,
    pub interpreters: Interpreters,
    pub journal: Journal,
    audit: Arc<Audit>,
    pub outputs: Arc<Outputs>,
    pub workspaces: Workspaces,
    pub jobs: Jobs,
    /// Bytes of code that waits for its turn.
    waiting: Arc<Pool>,
    /// Of callers that bring none of their own.
    pub settings: CallerSettings,
    pub session_ttl: Duration,
    pub max_sessions: usize,
    pub max_sessions_per_owner: usize,
    pub store: Arc<saved::Store>,
    pub packages: Arc<Packages>,
    pub sandbox: sandbox::Settings,
    pub protected: Protected,
    pub clock: Arc<Clock>,
    /// What the kernel ended for want of memory.
    memory_kills: out_of_memory::Count,
    /// Where the kernel counts a session's processes as one; looked for when the first confined session is opened.
    groups: tokio::sync::OnceCell<Arc<Groups>>,
    pub openings: Openings,
    /// Rung when something begins to run in a confined session.
    crowding: crowding::Bell,
}

impl Parts {
    pub fn new(
        config: &Config,
        protected: Protected,
        probes: Probes,
        (journal, audit, clock): (Journal, Arc<Audit>, Arc<Clock>),
        outputs: Outputs,
        store: saved::Store,
        (workspaces, packages): (Workspaces, Arc<Packages>),
    ) -> Self {
        Self {
            probes,
            interpreters: Interpreters::new(
                vec![workspaces.path().to_owned(), packages.root().to_owned()],
                Trust::new(&config.interpreters.roots, &config.interpreters.shims, config.caller.python.as_deref()),
            ),
            journal,
            audit,
            outputs: Arc::new(outputs),
            workspaces,
            jobs: Jobs::default(),
            waiting: Pool::new("code that waits", MAX_WAITING_BYTES, &crate::caller::own_owner().into()),
            settings: config.caller.clone(),
            session_ttl: config.session_ttl,
            max_sessions: config.max_sessions,
            max_sessions_per_owner: config.max_sessions_per_owner,
            store: Arc::new(store),
            packages,
            sandbox: config.sandbox.clone(),
            protected,
            clock,
            memory_kills: out_of_memory::Count::default(),
            groups: tokio::sync::OnceCell::new(),
            openings: Openings::default(),
            crowding: crowding::Bell::default(),
        }
    }

    /// Removes the groups that were made; all sessions have ended.
    pub async fn remove_groups(&self) {
        let Some(groups) = self.groups.get().cloned() else { return };
        if tokio::task::spawn_blocking(move || groups.remove()).await.is_err() {
            tracing::warn!("the groups of sessions could not be removed");
        }
    }

    /// Where groups of processes can be made, looked for once.
    async fn groups(&self) -> Arc<Groups> {
        let find = || async { Arc::new(tokio::task::spawn_blocking(Groups::find).await.unwrap_or_default()) };
        self.groups.get_or_init(find).await.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn many_openings_of_one_owner_come_before_no_other() {
        let openings = Openings::default();
        let mut first = std::pin::pin!(openings.take("busy"));
        let Poll::Ready(held) = futures::poll!(first.as_mut()) else { panic!("nobody else is there") };
        let mut more: Vec<_> = (0..10).map(|_| Box::pin(openings.take("busy"))).collect();
        for opening in &mut more {
            assert!(futures::poll!(opening).is_pending());
        }
        let mut other = std::pin::pin!(openings.take("quiet"));
        assert!(futures::poll!(other.as_mut()).is_pending());
        drop(held);
        for opening in &mut more {
            assert!(futures::poll!(opening).is_pending(), "the other one was there before a second of theirs");
        }
        let Poll::Ready(held) = futures::poll!(other.as_mut()) else { panic!("it is the other one's turn") };
        drop(held);
        for opening in more {
            drop(tokio::time::timeout(Duration::from_mins(1), opening).await.expect("all have their turn"));
        }
    }
}
