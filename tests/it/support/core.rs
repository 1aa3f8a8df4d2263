//! The core without doors: sessions through the Rust API, against real Python.

#![expect(clippy::needless_pass_by_value, reason = "a story is written where it is told")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use pylair::config::{Flags, resolve};
use pylair_core::{
    caller::{Caller, DefaultSession, Door, Scope},
    daemon::Daemon,
    order::{Sender, SenderId},
    session::{Error, Job, OnTimeout, OpenOptions, Outcome, Report, RunBy, Session},
};
use pylair_journal::EventKind;
use pylair_os::event_loop;

use super::{Home, PATIENCE, python};

/// A daemon in this process.
pub struct Core {
    pub daemon: Arc<Daemon>,
    pub caller: Caller,
    pub home: Arc<Home>,
}

/// Tells the story once for each Python.
pub fn on_each_python(story: impl AsyncFn(&Core)) {
    for python in python::pythons() {
        tell(python, &[], &story);
    }
}

pub fn on_newest_python(story: impl AsyncFn(&Core)) {
    tell(&python::newest_python(), &[], &story);
}

/// With other settings than the defaults.
pub fn with_settings(settings: &[(&str, &str)], story: impl AsyncFn(&Core)) {
    tell(&python::newest_python(), settings, &story);
}

fn tell(python: &Path, settings: &[(&str, &str)], story: &impl AsyncFn(&Core)) {
    let home = settings.iter().fold(Home::with_python(python), |home, (key, value)| home.set(key, value));
    let home = Arc::new(home);
    event_loop::watch(None);
    let slow_before = event_loop::slow_polls().len();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let core = runtime.block_on(Core::open(home.clone()));
    let told = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let in_time = tokio::time::timeout(4 * PATIENCE, story(&core)).await;
            in_time.expect("the test comes to an end");
        });
    }));
    runtime.block_on(core.daemon.close_for_good("the test is over"));
    drop(core);
    drop(runtime);
    let mut home = Arc::into_inner(home).expect("the core is gone");
    let slow = event_loop::slow_polls().split_off(slow_before);
    if let Err(panic) = told {
        eprintln!("with the Python at {}", python.display());
        home.abandon();
        drop(home);
        resume_unwind(panic);
    }
    assert!(slow.is_empty(), "others had to wait for this, here or in a test beside it: {slow:?}");
}

impl Core {
    async fn open(home: Arc<Home>) -> Self {
        let places = home.places();
        let (config, _) = resolve(&Flags::default(), &home.env, None, &places).expect("the settings are valid");
        let daemon = Daemon::open(config, places, &home.program).await.expect("the daemon opens");
        let caller = Caller {
            owner: daemon.owner().clone(),
            client: "test".to_owned(),
            door: Door::Cli,
            scopes: vec![Scope::Read, Scope::Run, Scope::Admin],
            cwd: Some(home.work()),
            env: Arc::new(home.env.clone()),
            default_session: DefaultSession::Main,
            sender: Sender::new(SenderId::new_bridge()),
            credential: None,
            floor: None,
            settings: daemon.settings.clone(),
            program: None,
        };
        Self { daemon, caller, home }
    }

    /// Who the cells of this test are run for.
    pub fn by<'a>(&'a self, client: &'a str) -> RunBy<'a> {
        RunBy { client, settings: &self.caller.settings }
    }

    /// A session like any other.
    pub async fn session(&self) -> TestSession {
        self.open_session(OpenOptions::default()).await.expect("the session opens")
    }

    pub async fn open_session(&self, options: OpenOptions) -> Result<TestSession, Error> {
        self.open_session_as(&self.caller, options).await
    }

    pub async fn open_session_as(&self, caller: &Caller, options: OpenOptions) -> Result<TestSession, Error> {
        let opened = self.daemon.sessions.open(caller, options);
        let session = tokio::time::timeout(PATIENCE, opened).await.expect("opening comes to an end")?;
        Ok(TestSession { session })
    }

    /// A second session out of one.
    pub async fn branch(&self, session: &TestSession, at: Option<u64>) -> Result<TestSession, Error> {
        let branched = self.daemon.sessions.branch(&self.caller, &session.session.info.name, None, at);
        let session = tokio::time::timeout(PATIENCE, branched).await.expect("branching comes to an end")?;
        Ok(TestSession { session })
    }

    /// Waits until the session can be set back to the end of this cell.
    pub async fn wait_for_checkpoint(&self, session: &TestSession, cell: u64) {
        self.wait_for_event(
            session,
            |event| matches!(event, EventKind::CheckpointMade { cell: made, .. } if *made == cell),
        )
        .await;
    }

    /// What the dearest checkpoint of a session took.
    pub async fn dearest_checkpoint(&self, session: &TestSession) -> Duration {
        let info = &session.session.info;
        let events = self.daemon.journal.history(&info.owner, &info.handle, None, 1000).await;
        let took = events.expect("the journal can be read").into_iter().filter_map(|event| match &event.kind {
            EventKind::CheckpointMade { took_us, .. } => Some(Duration::from_micros(*took_us)),
            _ => None,
        });
        took.max().expect("there was one")
    }

    /// Waits until a checkpoint was tried in vain.
    pub async fn wait_for_skipped_checkpoint(&self, session: &TestSession) {
        self.wait_for_event(session, |event| matches!(event, EventKind::CheckpointSkipped { .. })).await;
    }

    /// Waits until something is in the session's history.
    pub async fn wait_for_event(&self, session: &TestSession, wanted: impl Fn(&EventKind) -> bool) {
        let info = &session.session.info;
        let events = self.daemon.journal.follow(Some(&info.owner), Some(&info.handle), 0);
        let mut events = std::pin::pin!(events);
        let found = async {
            while let Some(event) = events.next().await {
                if wanted(&event.expect("the journal can be read").kind) {
                    return;
                }
            }
            panic!("the journal ended");
        };
        tokio::time::timeout(PATIENCE, found).await.expect("the event comes");
    }

    pub async fn close_session(&self, session: &TestSession) {
        let name = session.session.info.name.clone();
        self.daemon.sessions.close(&self.caller, &name, false).await.expect("the session closes");
    }
}

/// A session and short ways to ask it.
#[derive(Debug, Clone)]
pub struct TestSession {
    pub session: Session,
}

impl TestSession {
    pub async fn start(&self, code: &str) -> Arc<Job> {
        self.start_with(code, None, OnTimeout::Keep).await.expect("the cell starts")
    }

    pub async fn start_with(
        &self,
        code: &str,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
    ) -> Result<Arc<Job>, Error> {
        self.session.execute(code.to_owned(), timeout, on_timeout, "test").await
    }

    /// Runs a cell to its end, however that is.
    pub async fn run(&self, code: &str) -> Report {
        let job = self.start(code).await;
        report(&job).await
    }

    /// Runs a cell under a time limit.
    pub async fn run_limited(&self, code: &str, timeout: Duration, on_timeout: OnTimeout) -> Report {
        let job = self.start_with(code, Some(timeout), on_timeout).await.expect("the cell starts");
        report(&job).await
    }

    /// The value of an expression, or nothing of a statement, which must not fail.
    #[track_caller]
    pub fn value(&self, code: &str) -> impl Future<Output = String> {
        let place = std::panic::Location::caller();
        async move {
            let report = self.run(code).await;
            assert_eq!(report.outcome, Outcome::Ok, "{code} at {place}: {report:#?}");
            report.result.unwrap_or_default()
        }
    }

    /// The worker.
    /// The cell whose end the session can be set back to.
    pub fn status_checkpoint(&self) -> Option<u64> {
        self.session.status().checkpoints.last().copied()
    }

    pub fn pid(&self) -> i32 {
        self.session.status().pid.expect("it has a worker")
    }
}

/// What callers are told of a job, once it has ended.
pub async fn report(job: &Job) -> Report {
    let execution = job.wait(PATIENCE).await.expect("the cell comes to an end");
    Report::new(job, Some(&execution), 25_000)
}
