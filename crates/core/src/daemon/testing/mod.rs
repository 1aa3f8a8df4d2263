//! Runs of pytest that a caller asks for: a job like a cell, in a process of its own that ends with it, or a cell of a session (`inside`). What
//! it finds is reported by the plugin like that of any run; here it is started, listened to and stopped.

mod inside;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    sync::watch,
};

use super::{Daemon, failures::take_spool, targets::Error};
use crate::{
    caller::{Caller, Door},
    session::{self, Execution, Interrupted, Job, Outcome, Session},
    settings::Places,
};
use pylair_failures::view::RunDetail;
use pylair_os::exit::describe_exit;
use pylair_output::Stream;
use pylair_probe::{
    directory::{Directory, PYTEST_SCRIPT},
    wire::Raised,
};
use pylair_sandbox::Wish;

/// What a child of a test may still print when pytest has ended.
const REST: Duration = Duration::from_millis(500);
/// How long pytest may take to end itself before it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// Runs that are remembered.
const KEPT: usize = 256;
/// What the script says of a Python without pytest.
const NO_PYTEST: i32 = 127;

/// All runs that callers asked for.
#[derive(Debug, Default)]
pub(super) struct Testing {
    runs: Mutex<Vec<Arc<TestRun>>>,
    last: AtomicU64,
}

/// One of them.
#[derive(Debug)]
pub struct TestRun {
    pub job: Arc<Job>,
    /// The id under which it is reported.
    pub run: String,
    pub python: PathBuf,
    place: RunLocation,
    /// Its arguments say that nothing is to be reported.
    is_silent: bool,
    ended: Mutex<Option<Ended>>,
    /// What it left to be taken in has been.
    settled: watch::Sender<bool>,
    notes: Mutex<Vec<String>>,
}

/// Where a run is.
#[derive(Debug)]
enum RunLocation {
    /// The process group that pytest leads.
    Group(Pid),
    Session(Session),
}

#[derive(Debug, Clone, Copy)]
enum Ended {
    Code(i32),
    Signal,
    /// The cell that was to start pytest raised.
    NotStarted,
}

/// What to run.
#[derive(Debug, Default)]
pub struct TestWish {
    /// Of pytest.
    pub args: Vec<String>,
    pub cwd: Option<PathBuf>,
    pub python: Option<String>,
    /// A session to run them in.
    pub target: Option<String>,
    /// Or a sandbox of their own.
    pub sandbox: Option<Wish>,
}

impl TestRun {
    fn new(job: Arc<Job>, run: String, python: PathBuf, place: RunLocation, args: &[String]) -> Self {
        let (ended, notes) = (Mutex::default(), Mutex::default());
        let is_silent = args.iter().any(|word| word.trim_start_matches("-p").starts_with("no:pylair"));
        Self { job, run, python, place, is_silent, ended, settled: watch::Sender::new(false), notes }
    }

    pub fn exit_code(&self) -> Option<i32> {
        match *self.ended.lock().expect("no panic while locked") {
            Some(Ended::Code(code)) => Some(code),
            _ => None,
        }
    }

    /// What an exit code of pytest means.
    pub fn meaning(&self) -> &'static str {
        match *self.ended.lock().expect("no panic while locked") {
            None => "it is running",
            Some(Ended::Signal) => "pytest was killed",
            Some(Ended::NotStarted) => "pytest could not be started",
            Some(Ended::Code(code)) => match code {
                0 => "all tests passed",
                1 => "some tests failed",
                2 => "the run was interrupted, or tests could not be collected",
                3 => "pytest itself failed",
                4 => "pytest reported a usage error; its output is above",
                5 => "no tests were found",
                NO_PYTEST => "there is no pytest in this Python",
                _ => "a plugin or a test ended pytest with a code of its own",
            },
        }
    }

    /// Why nothing is known of what an ended run found.
    pub fn unreported(&self) -> &'static str {
        if self.is_silent {
            "nothing of this run was recorded: its arguments switch the plugin off"
        } else {
            "nothing of this run was recorded: the plugin reported nothing; if it could not, what pytest printed says why"
        }
    }

    /// Waits until all of an ended run that is going to be known is.
    pub async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        // The sender lives as long as the run.
        let _alive = settled.wait_for(|is_settled| *is_settled).await;
    }

    /// What there is to say about it besides what pytest printed.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().expect("no panic while locked").clone()
    }

    fn note(&self, note: impl Into<String>) {
        self.notes.lock().expect("no panic while locked").push(note.into());
    }

    /// As pytest is interrupted from a terminal: it ends the run and tells what it has. One that does not is killed.
    pub async fn interrupt(&self) -> Result<Interrupted, session::Error> {
        if let RunLocation::Session(session) = &self.place {
            return session.interrupt(Some(&self.job.id)).await;
        }
        let mut interrupted = Interrupted {
            session: self.job.session.to_string(),
            job: Some(self.job.id.clone()),
            outcome: None,
            notes: Vec::new(),
        };
        if self.job.execution().is_none() {
            self.signal(Signal::INT);
            if self.job.wait(GRACE).await.is_none() {
                self.signal(Signal::KILL);
                interrupted.notes.push("pytest did not end itself and was killed".to_owned());
                self.job.ended().await;
            }
        } else {
            interrupted.notes.push("nothing was running".to_owned());
        }
        interrupted.outcome = self.job.execution().map(|execution| execution.outcome);
        Ok(interrupted)
    }

    fn signal(&self, signal: Signal) {
        // Nobody else has the number of the group as long as its leader is not reaped.
        if let RunLocation::Group(group) = self.place
            && self.ended.lock().expect("no panic while locked").is_none()
        {
            let _gone = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Listens until pytest has ended.
    async fn follow(self: Arc<Self>, mut child: Child) {
        let pump = |stream: Stream, pipe: Option<Box<dyn AsyncRead + Send + Unpin>>| {
            pylair_os::event_loop::spawn(pump(self.job.clone(), stream, pipe))
        };
        let out = pump(Stream::Stdout, child.stdout.take().map(|pipe| Box::new(pipe) as _));
        let err = pump(Stream::Stderr, child.stderr.take().map(|pipe| Box::new(pipe) as _));
        let mut execution = self.conclude(child.wait().await);
        let (stop_out, stop_err) = (out.abort_handle(), err.abort_handle());
        // Something that a test left behind may hold the pipes.
        let _held = tokio::time::timeout(REST, async { tokio::join!(out, err) }).await;
        stop_out.abort();
        stop_err.abort();
        let _event = self.job.close_output(&mut execution);
        self.job.finish(execution);
    }

    fn conclude(&self, status: io::Result<ExitStatus>) -> Execution {
        let duration = self.job.elapsed();
        let (ended, outcome, error) = match status {
            Ok(status) => match (status.code(), std::os::unix::process::ExitStatusExt::into_raw(status)) {
                (Some(code @ (0 | 1 | 5)), _) => (Ended::Code(code), Outcome::Ok, None),
                (Some(2), _) => (Ended::Code(2), Outcome::Interrupted, None),
                (Some(code), _) => (Ended::Code(code), Outcome::Raised, Some(format!("pytest ended with code {code}"))),
                (None, raw) => {
                    let signal = describe_exit(raw).1.unwrap_or_else(|| "a signal".into());
                    (Ended::Signal, Outcome::Died, Some(format!("pytest was killed by {signal}")))
                }
            },
            Err(error) => (Ended::Signal, Outcome::Died, Some(format!("how pytest ended is not known: {error}"))),
        };
        *self.ended.lock().expect("no panic while locked") = Some(ended);
        let mut execution = Execution::cut_short(outcome, duration, Vec::new());
        execution.error = error.map(|message| Raised {
            kind: "PytestEnded".to_owned(),
            message: format!("{message}: {}", self.meaning()),
            traceback: String::new(),
            line: None,
        });
        execution
    }
}

async fn pump(job: Arc<Job>, stream: Stream, pipe: Option<Box<dyn AsyncRead + Send + Unpin>>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        job.capture.push(stream, &buffer[..count]);
    }
}

impl Daemon {
    /// Starts pytest and returns at once.
    pub async fn run_tests(self: &Arc<Self>, caller: &Caller, wish: TestWish) -> Result<Arc<TestRun>, Error> {
        let is_open = wish.sandbox.as_ref().is_some_and(|sandbox| sandbox.profile() == "open");
        // Like sessions, tests of callers from outside are in a sandbox unless they say otherwise and may.
        let is_asked = wish.sandbox.is_some() || caller.door == Door::Http || caller.floor.is_some();
        if wish.target.is_some() || !is_open && is_asked {
            return self.run_tests_inside(caller, wish).await;
        }
        if !caller.may(crate::caller::Scope::Admin) {
            return Err(session::Error::NotAllowed("run tests without a sandbox").into());
        }
        let cwd = match (wish.cwd, &caller.cwd) {
            (Some(cwd), Some(from)) => from.join(cwd),
            (Some(cwd), None) => cwd,
            (None, Some(from)) => from.clone(),
            (None, None) => {
                return Err(Error::BadArgument("the directory of the tests is not known: pass `cwd`".to_owned()));
            }
        };
        if !cwd.is_absolute() || !cwd.is_dir() {
            return Err(Error::BadArgument(format!("`{}` is not a directory; pass `cwd` with one", cwd.display())));
        }
        let parts = &self.sessions.parts;
        let (python, configured) = (wish.python.as_deref(), caller.settings.python.as_deref());
        let found = parts.interpreters.resolve(python, configured, &cwd, &caller.env).await;
        let python = found.map_err(session::Error::Python)?.executable;
        let runtime = self.places.runtime.clone();
        let prepared = tokio::task::spawn_blocking(move || Directory::for_tests(&runtime).prepare()).await;
        let prepared = prepared.unwrap_or_else(|error| Err(io::Error::other(error)));
        let failed = |what: &str, error: &io::Error| Error::NoRun(format!("{what}: {error}"));
        let directory = prepared.map_err(|error| failed("the pytest plugin could not be written", &error))?;
        let run = pylair_os::random::digits(8);
        let mut command = Command::new(&python);
        command.arg(directory.join(PYTEST_SCRIPT)).args(&wish.args).current_dir(&cwd);
        command.env_clear().envs(caller.env.iter()).envs(self.found_by(&caller.env)).env("PYLAIR_TEST_RUN", &run);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|error| failed("pytest could not be started", &error))?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let group = group.ok_or_else(|| Error::NoRun("pytest ended before it had begun".to_owned()))?;
        let number = self.testing.last.fetch_add(1, Ordering::Relaxed) + 1;
        let id = format!("{}-{number}", session::new_handle());
        let capture = parts
            .outputs
            .capture_up_to(&caller.owner, &id, caller.settings.max_output_bytes)
            .map_err(crate::app::Error::Output)?;
        let job = Arc::new(Job::new(id, caller.owner.clone(), "tests".into(), number, capture, None));
        parts.jobs.add(job.clone());
        let run = Arc::new(TestRun::new(job, run, python, RunLocation::Group(group), &wish.args));
        self.testing.add(run.clone());
        pylair_os::event_loop::spawn(self.clone().follow_outside(run.clone(), child));
        Ok(run)
    }

    /// Waits for the end. The plugin has told everything then, or has left in the spool what a busy daemon did not take.
    async fn follow_outside(self: Arc<Self>, run: Arc<TestRun>, child: Child) {
        run.clone().follow(child).await;
        let spooled = self.places.spool().join(format!("{}.jsonl", run.run));
        if tokio::fs::try_exists(&spooled).await.unwrap_or_default() {
            take_spool(self.failures.clone()).await;
        }
        run.settled.send_replace(true);
    }

    /// The run that a job is, if it is one.
    pub fn test_run(&self, job: &Job) -> Option<Arc<TestRun>> {
        self.testing.runs.lock().expect("no panic while locked").iter().find(|run| run.job.id == job.id).cloned()
    }

    /// What a run has reported so far. None when nothing of it has come.
    pub async fn reported(&self, run: &TestRun) -> Option<RunDetail> {
        match self.failures.run(&run.run).await {
            Ok(detail) => Some(detail),
            Err(error) => {
                tracing::debug!(run = run.run, error = error.message(), "nothing is known of a run");
                None
            }
        }
    }

    /// What makes the plugin find this daemon, whatever its caller's environment says.
    fn found_by(&self, env: &BTreeMap<String, String>) -> Vec<(&'static str, PathBuf)> {
        let places = &self.places;
        if Places::resolve(env, rustix::process::getuid().as_raw()) == *places {
            return Vec::new();
        }
        let parent = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
        if places.state.ends_with("state") && parent(&places.state) == parent(&places.data) {
            return vec![("PYLAIR_HOME", parent(&places.state))];
        }
        vec![("XDG_RUNTIME_DIR", parent(&places.runtime)), ("XDG_STATE_HOME", parent(&places.state))]
    }
}

impl Testing {
    fn add(&self, run: Arc<TestRun>) {
        let mut runs = self.runs.lock().expect("no panic while locked");
        runs.push(run);
        if runs.len() > KEPT {
            let ended = runs.iter().position(|run| run.job.execution().is_some());
            ended.map(|position| runs.remove(position));
        }
    }

    /// Runs that have not ended.
    pub(super) fn running(&self) -> usize {
        let runs = self.runs.lock().expect("no panic while locked");
        runs.iter().filter(|run| run.job.execution().is_none()).count()
    }

    /// Ends what runs.
    pub(super) fn end_all(&self) {
        for run in self.runs.lock().expect("no panic while locked").iter() {
            run.signal(Signal::KILL);
        }
    }
}
