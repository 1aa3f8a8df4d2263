//! The daemon: the one pylair process per user that owns all targets.
//!
//! `Daemon` is what the doors hold. It knows none of them.

mod failures;
pub mod frozen;
pub mod targets;
pub mod testing;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    app::Apps,
    audit::{Audit, Line, What},
    caller::{self, Caller, DefaultSession, Door, Program, Scope},
    order::{Sender, SenderId, Senders},
    packages::Packages,
    session::{self, Job, Jobs, Parts, Sessions, Unsaved, saved::Store},
    settings::{CallerSettings, Config, Introduction, Places, PlacesError, Unheeded},
    visit::Visit,
};
use pylair_failures::Failures;
use pylair_files::Workspaces;
use pylair_journal::{self as journal, EventKind, Journal};
use pylair_os::{
    budget::{Pool, Use},
    clock::{self, Clock},
    machine::Machine,
    process::{self, Ancestor, Process, Stat},
};
use pylair_output::{self as output, Outputs};
use pylair_sandbox::confine::Trial;
use pylair_workers::link::Probes;

/// How long somebody who stops the daemon waits for sessions to be saved.
const STOP_TIMEOUT: Duration = Duration::from_secs(45);

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Places(#[from] PlacesError),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error(transparent)]
    Outputs(#[from] output::Error),
    #[error("cannot open our own program `{}`", path.display())]
    Program { path: PathBuf, source: io::Error },
    #[error("cannot write the audit record at `{}`", path.display())]
    Audit { path: PathBuf, source: io::Error },
    #[error("cannot make directories below `{}`", path.display())]
    Store { path: PathBuf, source: io::Error },
}

/// A client whose bridge is or was here, for finding its session from a shell beside it.
#[derive(Debug, Clone)]
struct Neighbour {
    ancestry: Vec<Ancestor>,
    default_session: DefaultSession,
    /// What its calls without a target mean, where it says so.
    session: Option<Arc<str>>,
    client: String,
}

/// The clients nearest to a process. One that has ended is near only where no living one is, and no other that has ended.
fn near<'a>(
    chain: &[Ancestor],
    neighbours: &'a [Neighbour],
    is_alive: impl Fn(&Ancestor) -> bool,
) -> Vec<&'a Neighbour> {
    let found = neighbours
        .iter()
        .filter_map(|neighbour| Some((process::nearest_common(chain, &neighbour.ancestry)?, neighbour)));
    let (living, ended): (Vec<_>, Vec<_>) =
        found.partition(|(_, neighbour)| neighbour.ancestry.first().is_some_and(&is_alive));
    let nearest = |mut of: Vec<(usize, &'a Neighbour)>| {
        let shortest = of.iter().map(|(distance, _)| *distance).min();
        of.retain(|(distance, _)| Some(*distance) == shortest);
        of.into_iter().map(|(_, neighbour)| neighbour).collect::<Vec<_>>()
    };
    if living.is_empty() {
        Some(nearest(ended)).filter(|ended| ended.len() == 1).unwrap_or_default()
    } else {
        nearest(living)
    }
}

/// What the doors share.
#[derive(Debug)]
pub struct Daemon {
    pub config: Config,
    /// The settings of callers that bring none of their own.
    pub settings: Arc<CallerSettings>,
    plain_env: Arc<BTreeMap<String, String>>,
    pub places: Places,
    pub sessions: Arc<Sessions>,
    pub apps: Arc<Apps>,
    pub failures: Arc<Failures>,
    frozen: Arc<frozen::Frozen>,
    testing: testing::Testing,
    pub journal: Journal,
    pub shutdown: CancellationToken,
    pub senders: Senders,
    pub audit: Arc<Audit>,
    clock: Arc<Clock>,
    owner: Arc<str>,
    started: Instant,
    neighbours: Mutex<Vec<Neighbour>>,
    /// What keeps the daemon from leaving.
    bridges: AtomicUsize,
    requests: AtomicUsize,
    last_busy: Mutex<Instant>,
    http: Mutex<Option<String>>,
    /// What could not be saved, once the daemon has tried.
    unsaved: watch::Sender<Option<Vec<Unsaved>>>,
    /// What a door shares among owners, to be shown with the rest.
    pools: Mutex<Vec<Arc<Pool>>>,
}

/// The daemon as `get_status` and `pylair doctor` show it.
#[derive(Debug, Clone, Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct DaemonStatus {
    pub version: String,
    pub pid: u32,
    pub uptime_s: u64,
    pub sessions: usize,
    pub bridges: usize,
    pub templates: usize,
    pub http: Option<String>,
    pub data: String,
    pub log: String,
    pub max_sessions: usize,
    /// Why the audit record cannot be written, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_trouble: Option<String>,
    /// How much is used of what all owners share.
    #[serde(default)]
    pub budgets: Vec<Use>,
    pub machine: Machine,
}

impl Daemon {
    /// Opens everything but the doors. `program` is the pylair executable.
    pub async fn open(config: Config, places: Places, program: &Path) -> Result<Arc<Self>, Error> {
        places.create()?;
        pylair_os::regular::remove_unfinished(&places.data);
        let clock = Arc::new(Clock::open(&places.clock()));
        let opened = Journal::open(places.journal(), clock.clone()).await?;
        if let Some(damaged) = &opened.damaged {
            tracing::warn!(path = %damaged.display(), "the journal was damaged and moved aside; a new one was started");
        }
        let limits = output::Limits { max_output_bytes: config.caller.max_output_bytes, ..output::Limits::default() };
        let outputs = Outputs::open(places.outputs(), limits)?;
        pylair_os::event_loop::spawn(keep_time(clock.clone(), outputs.clone()));
        pylair_sandbox::cgroup::sweep_left();
        let workspaces = Workspaces::new(places.workspaces());
        let pid = std::process::id();
        let started = pylair_sandbox::processes::started(pid.cast_signed());
        let trial = Trial { canary: places.canary(), socket: places.socket(), pid, started };
        write_canary(&trial.canary);
        let probes =
            Probes::new(program, trial).map_err(|source| Error::Program { path: program.to_owned(), source })?;
        let store = Store::open(&places.data).map_err(|source| Error::Store { path: places.data.clone(), source })?;
        let packages = Arc::new(Packages::new(places.venvs(), opened.journal.clone()));
        let audit_path = places.audit();
        let audit = Audit::open(audit_path.clone(), config.audit);
        let audit = audit.map_err(|source| Error::Audit { path: audit_path, source })?;
        let parts = Parts::new(
            &config,
            config.protected(&places),
            probes,
            (opened.journal.clone(), audit.clone(), clock.clone()),
            outputs,
            store,
            (workspaces, packages),
        );
        let owner: Arc<str> = caller::own_owner().into();
        audit.record(Line { owner: Some(owner.to_string()), ..Line::new(What::DaemonStarted) });
        opened.journal.record(&owner, &"daemon".into(), EventKind::DaemonStarted { version: VERSION.to_owned() });
        let sessions = Sessions::new(parts);
        let (database, limits) = (config.failures.database(&places), config.failures.limits.clone());
        let failures = Failures::new(database, limits, places.spool(), clock.clone());
        let failures = Arc::new(failures.with_git(config.failures.git.clone()));
        pylair_os::event_loop::spawn(self::failures::take_spool(failures.clone()));
        let copies = Apps::new(places.frozen(), sessions.parts.clone());
        let frozen = frozen::Frozen::new(copies, failures.clone(), config.failures.frozen);
        failures.check_with(Arc::new(frozen::Checks::new(frozen.apps.clone())));
        let shutdown = CancellationToken::new();
        pylair_os::event_loop::spawn(frozen.clone().watch(shutdown.clone()));
        Ok(Arc::new(Self {
            pools: Mutex::default(),
            // Which session this process itself would mean is nobody else's.
            settings: Arc::new(CallerSettings { session: None, ..config.caller.clone() }),
            plain_env: Arc::new(caller::plain_environment(&config.user.home, &config.user.name)),
            config,
            apps: Apps::new(places.apps(), sessions.parts.clone()),
            places,
            failures,
            frozen,
            testing: testing::Testing::default(),
            sessions,
            journal: opened.journal,
            shutdown,
            senders: Senders::default(),
            audit,
            clock,
            owner,
            started: Instant::now(),
            neighbours: Mutex::default(),
            bridges: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            last_busy: Mutex::new(Instant::now()),
            http: Mutex::default(),
            unsaved: watch::Sender::new(None),
        }))
    }

    /// The user this daemon belongs to.
    pub fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    pub fn status(&self) -> DaemonStatus {
        DaemonStatus {
            version: VERSION.to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            sessions: self.sessions.count(),
            bridges: self.bridges.load(Ordering::Acquire),
            templates: self.sessions.parts.probes.templates.count(),
            http: self.http.lock().expect("no panic while locked").clone(),
            data: self.places.data.display().to_string(),
            log: self.places.log().display().to_string(),
            max_sessions: self.config.max_sessions,
            audit_trouble: self.audit.trouble(),
            budgets: self.budgets(&self.owner),
            machine: Machine::now(&self.places.data),
        }
    }

    /// What somebody may know of it who does not run it: nothing of others.
    pub fn status_for(&self, caller: &Caller) -> DaemonStatus {
        let status = self.status();
        if caller.has(Scope::Admin) && *caller.owner == *self.owner {
            return status;
        }
        let (pid, bridges, templates) = (0, 0, 0);
        let (http, data, log) = (None, String::new(), String::new());
        let sessions = self.sessions.list(caller).len();
        let budgets = self.budgets(&caller.owner).into_iter().map(Use::of_one).collect();
        DaemonStatus { pid, sessions, bridges, templates, http, data, log, audit_trouble: None, budgets, ..status }
    }

    fn budgets(&self, owner: &str) -> Vec<Use> {
        let parts = &self.sessions.parts;
        let jobs = std::iter::once(parts.jobs.usage(owner));
        let kept = jobs.chain(parts.outputs.usage(owner)).chain(self.journal.usage(owner));
        let pools = self.pools.lock().expect("no panic while locked");
        kept.chain(pools.iter().map(|pool| pool.usage(owner))).collect()
    }

    /// Shows what a door shares among owners with the rest.
    pub fn show_pools(&self, pools: impl IntoIterator<Item = Arc<Pool>>) {
        self.pools.lock().expect("no panic while locked").extend(pools);
    }

    pub fn set_http(&self, address: String) {
        *self.http.lock().expect("no panic while locked") = Some(address);
    }

    /// Keeps the daemon from leaving until the guard is dropped.
    pub fn hold(self: &Arc<Self>, holder: Holder) -> Hold {
        self.held_by(holder).fetch_add(1, Ordering::AcqRel);
        Hold { daemon: self.clone(), holder }
    }

    fn held_by(&self, holder: Holder) -> &AtomicUsize {
        match holder {
            Holder::Bridge => &self.bridges,
            Holder::Request => &self.requests,
        }
    }

    /// Since when nobody needs the daemon; `None` while somebody does.
    pub fn idle_since(&self) -> Option<Instant> {
        let holders = self.bridges.load(Ordering::Acquire) + self.requests.load(Ordering::Acquire);
        if holders > 0 || self.sessions.count() > 0 || self.frozen.count() + self.testing.running() > 0 {
            return None;
        }
        Some(*self.last_busy.lock().expect("no panic while locked"))
    }

    /// A client's bridge is here: sessions are found by its process tree from now on.
    pub fn remember_client(&self, ancestry: Vec<Ancestor>, caller: &Caller) {
        let mut neighbours = self.neighbours.lock().expect("no panic while locked");
        neighbours.retain(|known| {
            // A client whose process is gone cannot be anybody's ancestor.
            known.default_session != caller.default_session
                && known.ancestry.iter().skip(1).take(1).all(|parent| {
                    Stat::read(parent.process.pid).is_some_and(|stat| stat.started() == Some(parent.process.started))
                })
        });
        neighbours.push(Neighbour {
            ancestry,
            default_session: caller.default_session.clone(),
            session: caller.settings.session.clone(),
            client: caller.client.clone(),
        });
    }

    /// The settings that count for a local caller, and those of its own that do not.
    pub fn heed(&self, introduction: Option<&Introduction>) -> (CallerSettings, Vec<Unheeded>) {
        introduction.map_or_else(|| ((*self.settings).clone(), Vec::new()), |said| said.heed(&self.config))
    }

    /// The caller behind a process that speaks to our Unix socket: the default session of the client nearest above it.
    pub async fn caller_of_process(
        &self,
        pid: i32,
        introduction: Option<&Introduction>,
        cwd: Option<PathBuf>,
        env: BTreeMap<String, String>,
    ) -> Result<Caller, session::Error> {
        let chain = process::ancestry(pid);
        let neighbours = self.neighbours.lock().expect("no panic while locked").clone();
        let nearest = near(&chain, &neighbours, |client| {
            let Process { pid, started } = client.process;
            Stat::read(pid).is_some_and(|stat| stat.started() == Some(started) && !stat.has_ended())
        });
        if nearest.len() > 1 {
            let mut candidates = Vec::new();
            for neighbour in &nearest {
                let session = self.sessions.default_of(&self.owner, &neighbour.default_session).await;
                let session =
                    session.map_or_else(|| "no session yet".to_owned(), |session| session.info.name.to_string());
                candidates.push(format!("{} ({session})", neighbour.client));
            }
            return Err(session::Error::Ambiguous { candidates });
        }
        let default_session =
            nearest.first().map_or(DefaultSession::Main, |neighbour| neighbour.default_session.clone());
        let client = nearest.first().map_or_else(|| "shell".to_owned(), |neighbour| neighbour.client.clone());
        let mut caller = self.shell_caller(introduction, cwd, env);
        if caller.settings.session.is_none()
            && let Some(session) = nearest.first().and_then(|neighbour| neighbour.session.clone())
        {
            caller.settings = Arc::new(CallerSettings { session: Some(session), ..(*caller.settings).clone() });
        }
        let sender = Sender::new(SenderId::Processes(caller::tree_of(&chain, &default_session)));
        Ok(Caller { client, default_session, sender, program: Program::above(&chain), ..caller })
    }

    /// A caller that came in over TCP with a token.
    pub fn visiting_caller(&self, visit: &Visit, client: &str, default_session: DefaultSession) -> Caller {
        Caller {
            owner: visit.token.owner.clone(),
            client: caller::client_name(client),
            door: Door::Http,
            scopes: visit.token.scopes.clone(),
            cwd: None,
            env: self.plain_env(),
            default_session,
            sender: Sender::new(SenderId::Token(visit.credential.token.clone())),
            credential: Some(visit.credential.clone()),
            floor: self.config.sandbox.floor(),
            settings: self.settings.clone(),
            program: None,
        }
    }

    /// The owner in a shell that belongs to no client.
    pub fn shell_caller(
        &self,
        introduction: Option<&Introduction>,
        cwd: Option<PathBuf>,
        env: BTreeMap<String, String>,
    ) -> Caller {
        let (settings, _) = self.heed(introduction);
        Caller {
            owner: self.owner.clone(),
            client: "shell".to_owned(),
            door: Door::Cli,
            // Whoever does not introduce himself has not said that he only looks.
            scopes: vec![if introduction.is_some() && settings.readonly { Scope::Read } else { Scope::Admin }],
            cwd,
            env: Arc::new(env),
            default_session: DefaultSession::Main,
            sender: Sender::new(SenderId::new_bridge()),
            credential: None,
            floor: self.config.sandbox.floor(),
            settings: Arc::new(settings),
            program: None,
        }
    }

    /// The environment of callers that bring none.
    pub fn plain_env(&self) -> Arc<BTreeMap<String, String>> {
        self.plain_env.clone()
    }

    /// The job of this caller's with this id. If it was there once, the error says what became of it.
    pub async fn job(&self, caller: &Caller, id: &str) -> Result<Arc<Job>, session::Error> {
        let jobs = &self.sessions.parts.jobs;
        if let Some(job) = jobs.get(&caller.owner, id) {
            return Ok(job);
        }
        let job = id.to_owned();
        if jobs.was_removed(&caller.owner, id) {
            let why =
                format!("it made room for newer ones: {} ended jobs are kept for all owners together", Jobs::KEPT);
            return Err(session::Error::RemovedJob { job, why });
        }
        let cell = id.split_once('-').and_then(|(handle, cell)| Some((handle, cell.parse::<u64>().ok()?)));
        if let Some((handle, cell)) = cell
            && self.owns_job(caller, id).await
            && cell <= self.journal.newest_cell(&caller.owner, handle).await
        {
            let why = "it is older than this daemon, or than the newest jobs of its owner".to_owned();
            return Err(session::Error::RemovedJob { job, why });
        }
        Err(session::Error::UnknownJob { job })
    }

    /// Whether a job, or its output, is this caller's. Its id begins with its session's handle.
    pub async fn owns_job(&self, caller: &Caller, job: &str) -> bool {
        if self.sessions.parts.jobs.get(&caller.owner, job).is_some() {
            return true;
        }
        let Some((handle, _)) = job.split_once('-') else { return false };
        self.sessions.find(caller, handle).is_ok()
            || matches!(self.journal.opened(&caller.owner, handle).await, Ok(Some(event)) if *event.target == *handle)
    }

    /// Saves sessions, flushes the journal and ends every session. The doors are closed by now.
    pub async fn close(&self, reason: &str) {
        let mut unsaved = self.sessions.save_all(&daemon_ended(reason)).await;
        if let Err(error) = self.journal.flush().await {
            let why = pylair_text::plain::with_causes(&error);
            unsaved.push(Unsaved { what: "the newest events of all histories".to_owned(), why });
        }
        unsaved.extend(self.audit.trouble().map(|why| Unsaved { what: "the audit record".to_owned(), why }));
        self.unsaved.send_replace(Some(unsaved));
        self.close_for_good(reason).await;
    }

    /// Asks the daemon to leave, and waits until what can be saved is. Returns what could not be.
    pub async fn stop(&self) -> Vec<Unsaved> {
        let mut unsaved = self.unsaved.subscribe();
        self.shutdown.cancel();
        let saved = tokio::time::timeout(STOP_TIMEOUT, unsaved.wait_for(Option::is_some)).await;
        match saved {
            Ok(Ok(unsaved)) => unsaved.clone().unwrap_or_default(),
            _ => vec![Unsaved { what: "all sessions".to_owned(), why: "it takes too long".to_owned() }],
        }
    }

    /// The same for a daemon that has no successor.
    pub async fn close_for_good(&self, reason: &str) {
        self.sessions.close_all(&daemon_ended(reason)).await;
        self.sessions.parts.probes.close().await;
        self.sessions.parts.remove_groups().await;
        self.testing.end_all();
        self.frozen.end_all("the daemon ended").await;
        self.failures.close().await;
        self.journal.record(&self.owner, &"daemon".into(), EventKind::DaemonStopped { reason: reason.to_owned() });
        if let Err(error) = self.journal.shutdown().await {
            tracing::warn!(%error, "the journal could not be closed");
        }
        self.clock.tick();
        self.audit.record(Line { reason: Some(reason.to_owned()), ..Line::new(What::DaemonStopped) });
        let audit = self.audit.clone();
        if tokio::task::spawn_blocking(move || audit.close()).await.is_err() {
            tracing::warn!("the audit record could not be closed");
        }
    }
}

/// What a confined session tries to read. One that is there already is as good, also on a disk that is full.
fn write_canary(path: &Path) {
    const TEXT: &str = "A confined session cannot read this.\n";
    if std::fs::read_to_string(path).is_ok_and(|text| text == TEXT) {
        return;
    }
    if let Err(error) = std::fs::write(path, TEXT) {
        tracing::warn!(%error, path = %path.display(), "what confined sessions try to read could not be written");
    }
}

/// Why a session ended, in words that the next daemon repeats.
fn daemon_ended(reason: &str) -> String {
    format!("the daemon ended ({reason})")
}

/// Looks at the clock now and then, and removes what has become too old by it.
async fn keep_time(clock: Arc<Clock>, outputs: Outputs) {
    loop {
        let (ticking, sweeping) = (clock.clone(), outputs.clone());
        let done = tokio::task::spawn_blocking(move || {
            ticking.tick();
            sweeping.sweep(&ticking)
        });
        if done.await.is_err() {
            return;
        }
        tokio::time::sleep(clock::TICK).await;
    }
}

/// Who needs the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Bridge,
    Request,
}

/// See `Daemon::hold`.
#[derive(Debug)]
pub struct Hold {
    daemon: Arc<Daemon>,
    holder: Holder,
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.daemon.last_busy.lock().expect("no panic while locked") = Instant::now();
        self.daemon.held_by(self.holder).fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_have_ended_are_not_near() {
        let tree = |pids: &[i32]| -> Vec<Ancestor> {
            let process = |pid: &i32| Process { pid: *pid, started: 1 };
            pids.iter().map(|pid| Ancestor { process: process(pid), name: "sh".into(), is_boundary: false }).collect()
        };
        let client = |pids: &[i32]| Neighbour {
            ancestry: tree(pids),
            default_session: DefaultSession::Main,
            session: None,
            client: pids[0].to_string(),
        };
        let check = |clients: &[&[i32]], ended: &[i32], expected: &[&str]| {
            let clients: Vec<Neighbour> = clients.iter().map(|pids| client(pids)).collect();
            let found = near(&tree(&[9, 2, 1]), &clients, |client| !ended.contains(&client.process.pid));
            assert_eq!(found.iter().map(|client| client.client.as_str()).collect::<Vec<_>>(), expected);
        };
        check(&[&[5, 2, 1], &[6, 2, 1]], &[], &["5", "6"]);
        check(&[&[5, 2, 1], &[6, 2, 1]], &[5], &["6"]);
        check(&[&[5, 2, 1], &[6, 1]], &[], &["5"]);
        check(&[&[5, 2, 1], &[6, 1]], &[5], &["6"]);
        check(&[&[5, 2, 1]], &[5], &["5"]);
        check(&[&[5, 2, 1], &[6, 2, 1]], &[5, 6], &[]);
    }
}
