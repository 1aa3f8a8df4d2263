//! The collection: who has which session, opening, branching, naming and ending them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    Command, Error, FRESH_TTL, Info, MAX_NAME_CHARS, OpenOptions, Opening, Parts, Session, Status,
    ahead::{Kind, Nest},
    crowding, gone, keeping, literal, saved, strange, task, watching,
};
use crate::{
    caller::{self, Caller, DefaultSession, Door, Scope, Signature, own_owner},
    packages, rights,
    target::Reference,
};
use pylair_files::{OwnDirectory, Workspace};
use pylair_journal::EventKind;
use pylair_os::{budget::Shares, open_files, turns::Turns};
use pylair_python::{self as python, Choice, Interpreter, Search};
use pylair_sandbox::{
    self as sandbox, Profile, Terms, Wish,
    confine::{self, Confinement},
    rules::Asker,
};
use pylair_workers::{
    link::{self, Walls},
    template::Wanted,
};

const MAX_ENV_BYTES: usize = 512 << 10;
/// How many idle sessions are named to one who finds no room.
const NAMED_IDLE: usize = 10;
/// How many closed sessions are remembered, to tell an expired handle from a wrong one.
const REMEMBERED: usize = 500;
/// Maximum time that the answer about a new session waits for the disk.
const WRITTEN_WITHIN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) open: HashMap<Arc<str>, Session>,
    /// Names being opened, so that two callers cannot take the same one.
    reserved: Vec<(Arc<str>, Arc<str>)>,
    /// Sessions whose worker starts or whose startup code runs: they can be watched and closed, and nothing else.
    pub(super) starting: HashMap<Arc<str>, Session>,
    closed: VecDeque<ClosedSession>,
}

/// What is remembered of a session that is gone.
#[derive(Debug)]
struct ClosedSession {
    info: Arc<Info>,
    reason: String,
    /// Who closed it, if somebody did.
    by: Option<Signature>,
}

impl ClosedSession {
    /// Why it is gone, in the words of `closed_by` where somebody closed it.
    fn reason_for(&self, caller: &Caller) -> String {
        self.by.as_ref().map_or_else(|| self.reason.clone(), |by| closed_by(by.words_for(caller)))
    }
}

pub(super) fn closed_by(who: &str) -> String {
    format!("{who} closed it")
}

pub(super) type DefaultSlot = Arc<tokio::sync::Mutex<Option<Arc<str>>>>;

/// All sessions of the daemon.
#[derive(Debug)]
pub struct Sessions {
    pub parts: Arc<Parts>,
    /// For work that goes on when the one who asked for it has gone.
    pub(super) me: Weak<Self>,
    pub(super) registry: Mutex<Registry>,
    pub(super) defaults: Mutex<HashMap<(Arc<str>, DefaultSession), DefaultSlot>>,
    /// Sessions that have no process and can be started by using them.
    pub(super) stopped: Mutex<Vec<saved::Definition>>,
    /// By handle: the startup code of one session keeps no other waiting.
    pub(super) reviving: Turns<String>,
    /// A session that was starting does so no more.
    pub(super) started: tokio::sync::Notify,
    nest: Arc<Nest>,
}

impl Sessions {
    pub fn new(parts: Parts) -> Arc<Self> {
        let parts = Arc::new(parts);
        let stopped = keeping::load(&parts);
        keeping::remove_left_directories(&parts, &stopped);
        parts.packages.sweep(|handle| stopped.iter().any(|definition| definition.handle == handle));
        let sessions = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            stopped: Mutex::new(stopped),
            parts,
            registry: Mutex::default(),
            defaults: Mutex::default(),
            reviving: Turns::default(),
            started: tokio::sync::Notify::new(),
            nest: Arc::default(),
        });
        pylair_os::event_loop::spawn(end_idle(Arc::downgrade(&sessions), sessions.parts.session_ttl));
        pylair_os::event_loop::spawn(watching::watch(Arc::downgrade(&sessions)));
        crowding::start(&sessions);
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
        let own = self.own(caller);
        for status in &mut statuses {
            status.mine = Some(own.as_deref() == Some(&status.handle));
        }
        statuses
    }

    /// Says whether it is the caller's own.
    pub fn marked(&self, caller: &Caller, status: Status) -> Status {
        Status { mine: Some(self.own(caller).as_deref() == Some(&status.handle)), ..status }
    }

    /// The handle of the caller's own session, which a call without a target means: open, being opened or stopped. Never waits.
    pub fn own(&self, caller: &Caller) -> Option<String> {
        let named = |name: &str| {
            let open = self.find(caller, name).map(|session| session.info.handle.to_string());
            open.ok().or_else(|| self.stopped(caller, name).map(|definition| definition.handle))
        };
        if let Some(target) = &caller.settings.session {
            return match target.parse() {
                Ok(Reference::Session(name) | Reference::Name(name)) => named(&name),
                _ => None,
            };
        }
        let open_main = (caller.default_session == DefaultSession::Main).then(|| self.find(caller, "main").ok());
        if let Some(session) = open_main.flatten() {
            return Some(session.info.handle.to_string());
        }
        let slot_key = (caller.owner.clone(), caller.default_session.clone());
        let slot = self.defaults.lock().expect("no panic while locked").get(&slot_key).cloned();
        let key = keeping::default_key(&caller.default_session)?;
        let registry = self.registry.lock().expect("no panic while locked");
        match slot.as_ref().map(|slot| slot.try_lock()) {
            Some(Ok(handle)) => {
                if let Some(handle) = handle.as_ref().filter(|handle| registry.open.contains_key(*handle)) {
                    return Some(handle.to_string());
                }
            }
            // It is being opened, or was a moment ago.
            Some(Err(_)) => {
                let mut all = registry.starting.values().chain(registry.open.values());
                let is_own = |session: &&Session| {
                    session.info.owner == caller.owner && session.info.definition.default_of.as_ref() == Some(&key)
                };
                if let Some(session) = all.find(is_own) {
                    return Some(session.info.handle.to_string());
                }
            }
            None => {}
        }
        drop(registry);
        let stopped = self.stopped_default_definition(caller, &key);
        stopped.map(|definition| definition.handle).or_else(|| {
            let is_main = caller.default_session == DefaultSession::Main;
            is_main.then(|| self.stopped(caller, "main")).flatten().map(|definition| definition.handle)
        })
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
        if let Some(session) = registry.starting_of(caller, wanted) {
            return Err(session.is_starting());
        }
        let closed = registry.closed.iter().rev().find(|ClosedSession { info, .. }| {
            info.owner == caller.owner && (&*info.name == wanted || &*info.handle == wanted)
        });
        if let Some(closed) = closed {
            return Err(Error::Closed { target: target.to_owned(), reason: closed.reason_for(caller) });
        }
        let mut known: Vec<_> = mine().map(|session| session.info.name.to_string()).collect();
        known.sort();
        Err(Error::Unknown { target: target.to_owned(), known })
    }

    /// Why a session of this handle is gone, if this daemon knows.
    pub(super) fn why_closed(&self, caller: &Caller, handle: &str) -> Option<String> {
        let registry = self.registry.lock().expect("no panic while locked");
        let mut closed = registry.closed.iter().rev();
        closed.find(|closed| *closed.info.handle == *handle).map(|closed| closed.reason_for(caller))
    }

    /// The session a call goes to: the named one, or the caller's default, opened when it is not there yet.
    pub async fn target(&self, caller: &Caller, target: Option<&str>) -> Result<Session, Error> {
        if !caller.may(Scope::Run) {
            return Err(Error::NotAllowed("run code"));
        }
        if let Some(target) = target {
            return self.reach(caller, target).await?.open_to(caller);
        }
        if caller.default_session == DefaultSession::Fresh {
            return self.open(caller, OpenOptions::default()).await;
        }
        if caller.default_session == DefaultSession::Main
            && let Ok(session) = self.reach(caller, "main").await
        {
            return session.open_to(caller);
        }
        let slot = self.default_slot(caller);
        let mut slot = slot.lock().await;
        self.forget_lost();
        if let Some(handle) = &*slot
            && let Some(session) = self.registry.lock().expect("no panic while locked").open.get(handle)
        {
            return session.clone().open_to(caller);
        }
        let before = self.stopped_default(caller).await;
        let session = if let Ok(Some(session)) = before {
            session
        } else {
            let name = match caller.default_session {
                DefaultSession::Main if before.is_err() => self.unused_name(caller, "main"),
                DefaultSession::Main => "main".to_owned(),
                _ => self.free_name(caller),
            };
            let options = OpenOptions { name: Some(name), ..OpenOptions::default() };
            let default_of = keeping::default_key(&caller.default_session);
            let note = match before {
                Err(error) => format!(
                    "the session you had could not be started again, and this is another: {}; \
                     close_session(forget=true) removes the one that list_targets shows as stopped",
                    error.message()
                ),
                Ok(_) => self.newness(caller, default_of.as_deref()).await,
            };
            let session = self.open_as(caller, options, Opening { again: None, default_of }).await?;
            session.has_news(vec![note]);
            session
        };
        *slot = Some(session.info.handle.clone());
        Ok(session)
    }

    /// A note if the caller's own session was opened before with other settings than the caller's. `said` are those that the caller sets itself.
    pub async fn opened_otherwise(&self, caller: &Caller, said: &[&str]) -> Option<String> {
        let session = self.find(caller, &self.own(caller)?).ok()?;
        let (info, settings) = (&session.info, &caller.settings);
        let mut differing = Vec::new();
        let mut compare = |key: &str, used: &str, wanted: &str| {
            if used != wanted {
                differing.push(format!("`{key}` is {used}, not {wanted}"));
            }
        };
        if said.contains(&"python") && !info.terms.profile.is_confined() {
            let cwd = caller.cwd.as_deref().unwrap_or(&info.cwd);
            let wanted = self.parts.interpreters.resolve(None, settings.python.as_deref(), cwd, &caller.env).await.ok();
            let shown = |interpreter: &Interpreter| interpreter.executable.display().to_string();
            let used = shown(&info.interpreter);
            compare("python", &used, &wanted.as_ref().map_or_else(|| used.clone(), shown));
        }
        if let Some(profile) = settings.profile.filter(|_| said.contains(&"sandbox.profile")) {
            compare("sandbox.profile", info.terms.profile.name(), profile.name());
        }
        if said.contains(&"checkpoints") {
            compare("checkpoints", &info.definition.checkpoints.to_string(), &settings.checkpoints.to_string());
        }
        let name = &info.name;
        (!differing.is_empty()).then(|| {
            format!(
                "your session `{name}` was opened before, with other settings: {}; after close_session the next call opens one with yours",
                differing.join(", ")
            )
        })
    }

    /// The open session in which calls with this caller's token work; none if there is no such session or it came without one.
    pub fn worked_in(&self, caller: &Caller) -> Result<Option<Session>, Error> {
        let Some(credential) = &caller.credential else { return Ok(None) };
        let mut worked = self.list(caller);
        worked.retain(|session| session.live.lock().expect("no panic while locked").tokens.contains(&credential.token));
        match &worked[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            several => {
                let sessions = several.iter().map(|session| session.info.name.to_string()).collect();
                Err(Error::Several { sessions })
            }
        }
    }

    /// The handle of the session that a call means, or the name while no session has it; none if every call gets a session of its own.
    /// Looks only at what is known at once.
    pub fn meant(&self, caller: &Caller, named: Option<&str>) -> Option<String> {
        let name = match (named.or(caller.settings.session.as_deref()), &caller.default_session) {
            (Some(name), _) => name.to_owned(),
            (None, DefaultSession::Fresh) => return None,
            (None, DefaultSession::Main) => "main".to_owned(),
            (None, _) => {
                let slot = self.default_slot(caller);
                let handle = slot.try_lock().ok().and_then(|handle| handle.as_deref().map(str::to_owned));
                // No session has such a name.
                handle.unwrap_or_else(|| "(default)".to_owned())
            }
        };
        let found = self.find(caller, &name).map(|session| session.info.handle.to_string());
        Some(found.unwrap_or_else(|_| keeping::named(&name).to_owned()))
    }

    pub(super) fn default_slot(&self, caller: &Caller) -> DefaultSlot {
        let key = (caller.owner.clone(), caller.default_session.clone());
        self.defaults.lock().expect("no panic while locked").entry(key).or_default().clone()
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

    pub(super) async fn open_as(
        &self,
        caller: &Caller,
        options: OpenOptions,
        opening: Opening,
    ) -> Result<Session, Error> {
        let name = options.name.clone();
        self.open_now(caller, options, opening).await.inspect_err(|error| {
            // What its worker found missing was written down where it was found.
            if error.kind() == "sandbox_unavailable" && !matches!(error, Error::NotEnforced { .. }) {
                let reason = format!("no session, because its sandbox cannot be made: {}", error.message());
                self.parts.audit.denied(caller, "sandbox", name.as_deref(), &reason);
            }
        })
    }

    async fn open_now(&self, caller: &Caller, options: OpenOptions, opening: Opening) -> Result<Session, Error> {
        let again = opening.again.as_ref();
        check_opening(caller, again)?;
        let is_admins = again.map_or_else(|| caller.may(Scope::Admin), |definition| definition.is_admins);
        let terms = self.settle(caller, options.sandbox, is_admins).await?;
        let profile = terms.profile;
        let best_effort = caller.settings.sandbox_best_effort;
        let walls = self.walls_for(profile, best_effort).await?;
        let mut handle: Arc<str> = again.map_or_else(new_handle, |definition| definition.handle.clone()).into();
        let (cwd, own) = self.place_for(caller, options.cwd.as_ref(), profile, &handle).await?;
        // Whoever says where, and may, gets that directory; others, and those that are sealed, one of the session's own.
        let may_bind = profile == Profile::Workspace && options.cwd.is_some() && caller.may(Scope::Admin);
        let is_bound = again.map_or(may_bind, |definition| definition.is_bound);
        let cwd = if is_bound { self.parts.protected.check(&cwd, true).map_err(sandbox::Error::from)? } else { cwd };
        check_preload(&options.preload)?;
        let save =
            options.restore.as_ref().map(|restore| self.save_named(&caller.owner, restore, profile)).transpose()?;
        let env = environment(caller, &terms, &options.env);
        check_environment(&env)?;
        let is_named = options.python.is_some();
        let asked = (options.python.as_deref(), &options.env);
        let (interpreter, base, inside) =
            self.interpreter_for(caller, asked, (&cwd, is_bound), (&terms, walls), &env).await?;
        let is_made_now = is_bound || inside || again.is_some() || walls == Walls::Bare;
        let made_of = (&interpreter, base.as_ref());
        let kind = if is_made_now { None } else { kind_of(made_of, &env, &caller.owner, &terms) };
        let mut ahead = kind.as_ref().and_then(|kind| self.nest.take(kind, &self.parts));
        if let Some(ahead) = &ahead {
            handle = ahead.handle.clone();
        }
        // Before the reservation, so that whoever waits for its end finds the name free.
        let starting = Starting { sessions: self, session: OnceLock::new() };
        let name = self.name_for(caller, options.name, &handle);
        let reserved = self.reserve(caller, &name, again.map(|definition| definition.handle.as_str()));
        let reservation = reserved.inspect_err(|_| self.nest.give_back(kind.as_ref(), ahead.take()))?;
        let ttl = if name == handle { FRESH_TTL.min(self.parts.session_ttl) } else { self.parts.session_ttl };
        let (ahead, own) =
            ahead.map_or((None, own), |ahead| (Some(ahead.link), Some((ahead.workspace, Some(ahead.directory)))));
        let (workspace, directory) = match own {
            Some(own) => own,
            None => self.workspace_for(profile, walls, is_bound, &cwd, &handle).await?,
        };
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
            sandbox: terms.wish.clone(),
            is_bound,
            is_admins,
            checkpoints: again.map_or(caller.settings.checkpoints, |definition| definition.checkpoints),
            description: options.description.clone(),
            keep: options.keep,
            cell: again.map_or(0, |definition| definition.cell),
            default_of: opening.default_of,
            opened_at: opened_at.to_string(),
            last_used_at: opened_at.to_string(),
            notes: Vec::new(),
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
            installer_env: packages::installer_env(&caller.env),
            interpreter,
            base,
            inside,
            terms,
            walls,
            startup: options.startup,
            preload: options.preload,
            environment,
            description: options.description,
            opened_at,
            ttl,
            best_effort,
        });
        let seed = task::Seed::New { cell: info.definition.cell, save, directory, ahead };
        let session = self.start(&info, seed, again.is_some(), |session| starting.show(session)).await?;
        self.keep(&info).await?;
        self.add(&session, None);
        drop(reservation);
        self.until_known().await;
        if !is_named && caller.may(Scope::Admin) {
            session.note_unused_environment().await;
        }
        if let Some(kind) = kind {
            self.nest.fill(kind, &self.parts);
        }
        Ok(session)
    }

    /// Starts the worker. If that fails the directory for its packages goes, unless the session was there before.
    async fn start(
        &self,
        info: &Arc<Info>,
        seed: task::Seed,
        was_there: bool,
        begun: impl FnOnce(&Session),
    ) -> Result<Session, Error> {
        let started = task::start(info.clone(), self.parts.clone(), seed, begun).await;
        if started.is_err() {
            info.environment.release(&info.handle, was_there).await;
        }
        started
    }

    fn name_for(&self, caller: &Caller, asked: Option<String>, handle: &Arc<str>) -> Arc<str> {
        match asked {
            Some(name) => name.into(),
            None if caller.default_session == DefaultSession::Fresh => handle.clone(),
            None => self.free_name(caller).into(),
        }
    }

    async fn keep(&self, info: &Info) -> Result<(), Error> {
        if !info.definition.keep {
            return Ok(());
        }
        let (store, definition) = (self.parts.store.clone(), info.definition.clone());
        let put = tokio::task::spawn_blocking(move || store.put(&definition)).await;
        put.map_err(|_| Error::Gone)?.map_err(Error::Store)
    }

    /// The interpreter of a session, the one that it is a venv of, and whether it may be run inside of the session's walls only.
    async fn interpreter_for(
        &self,
        caller: &Caller,
        (python, added): (Option<&str>, &BTreeMap<String, String>),
        (cwd, is_bound): (&std::path::Path, bool),
        (terms, walls): (&Terms, Walls),
        env: &BTreeMap<String, String>,
    ) -> Result<(Interpreter, Option<Interpreter>, bool), Error> {
        if terms.profile.is_confined() {
            let given: Vec<_> = terms.allow_write.iter().cloned().chain(is_bound.then(|| cwd.to_owned())).collect();
            // What is looked through outside is for those to say who may do without a sandbox.
            let env = if caller.may(Scope::Admin) { env } else { &*caller.env };
            let search = Search { cwd, env, own_env: &caller.env, given: &given };
            return self.confined_interpreter((python, caller.settings.python.as_deref()), search, walls).await;
        }
        let lookup = caller.env.iter().chain(added).map(|(name, value)| (name.clone(), value.clone())).collect();
        let interpreter = self.parts.interpreters.resolve(python, caller.settings.python.as_deref(), cwd, env).await?;
        let base = self.base_of(&interpreter, cwd, &lookup).await;
        Ok((interpreter, base, false))
    }

    /// The same for a session in a sandbox.
    async fn confined_interpreter(
        &self,
        (python, configured): (Option<&str>, Option<&str>),
        search: Search<'_>,
        walls: Walls,
    ) -> Result<(Interpreter, Option<Interpreter>, bool), Error> {
        match self.parts.interpreters.choose(python, configured, search).await? {
            Choice::Known { interpreter, base } => Ok((*interpreter, base.map(|base| *base), false)),
            Choice::Strange(path) if walls == Walls::Bare => {
                let why = "this machine has no sandbox for that".to_owned();
                Err(python::Error::Strange { path, why }.into())
            }
            Choice::Strange(path) => Ok((strange::ask(&self.parts, &path).await?, None, true)),
        }
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
        let original = self.reach(caller, target).await?.open_to(caller)?;
        let name = name.unwrap_or_else(|| self.unused_name(caller, &format!("{}-branch", original.info.name)));
        let name: Arc<str> = name.into();
        let reservation = self.reserve(caller, &name, None)?;
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
        let session = task::start(info, self.parts.clone(), task::Seed::Branch(Box::new(branched)), |_| {}).await?;
        self.add(&session, Some((original.info.handle.to_string(), cell)));
        drop(reservation);
        self.until_known().await;
        Ok(session)
    }

    /// Waits until the sessions that are open are written down: whoever was told of one can be told that it is gone, if this daemon is
    /// killed now. A disk that is full or slow keeps nobody from opening one.
    async fn until_known(&self) {
        match tokio::time::timeout(WRITTEN_WITHIN, self.parts.journal.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an opened session is not written down"),
            Err(_) => tracing::debug!("an opened session is not written down yet"),
        }
    }

    fn add(&self, session: &Session, branch: Option<(String, u64)>) {
        let info = &session.info;
        info.environment.hold(&info.handle);
        self.parts.journal.record(
            &info.owner,
            &info.handle,
            EventKind::SessionOpened {
                name: info.name.to_string(),
                python: info.interpreter.version.clone(),
                profile: info.terms.profile.name().to_owned(),
                cwd: info.cwd.display().to_string(),
                startup: info.startup.clone(),
                branch,
                restored: session.restored().is_some(),
                default_of: info.definition.default_of.as_deref().map(gone::fingerprint),
            },
        );
        let mut registry = self.registry.lock().expect("no panic while locked");
        registry.open.insert(info.handle.clone(), session.clone());
    }

    /// What a new session may do. One that was open before has what it was given then, as far as the settings still allow it.
    async fn settle(&self, caller: &Caller, wish: Option<Wish>, is_admin: bool) -> Result<Terms, Error> {
        let default = if caller.door == Door::Http { Profile::Workspace } else { Profile::Open };
        let asker = Asker { is_admin, chosen: caller.settings.profile, default };
        let parts = self.parts.clone();
        let settled =
            tokio::task::spawn_blocking(move || Terms::settle(wish, asker, &parts.sandbox, &parts.protected)).await;
        let terms = settled.map_err(|_| Error::Gone)?.map_err(Error::Sandbox)?;
        if terms.profile == Profile::Open && !asker.is_admin {
            return Err(Error::NotAllowed("open a session without a sandbox"));
        }
        Ok(terms)
    }

    /// Where the files of a session are, and the directory that was made for it if it is confined and works in one of its own.
    async fn workspace_for(
        &self,
        profile: Profile,
        walls: Walls,
        is_bound: bool,
        cwd: &std::path::Path,
        handle: &Arc<str>,
    ) -> Result<(Workspace, Option<Arc<OwnDirectory>>), Error> {
        if !profile.is_confined() {
            return Ok((Workspace::open(cwd), None));
        }
        let owner = if walls == Walls::All { confine::new_outer_id() } else { None };
        if is_bound {
            return Ok((Workspace { owner, ..Workspace::open(cwd) }, None));
        }
        let (mut workspace, directory) = self.make_directory(handle, owner).await?;
        if walls == Walls::Bare {
            workspace.seen_as.clone_from(&workspace.path);
        }
        Ok((workspace, Some(directory)))
    }

    /// What of a sandbox this machine has. Less than all is an error, unless it is wanted.
    async fn walls_for(&self, profile: Profile, best_effort: bool) -> Result<Walls, Error> {
        if !profile.is_confined() {
            return Ok(Walls::All);
        }
        match self.parts.probes.nursery().await {
            Ok(_) => Ok(Walls::All),
            Err(error) if best_effort => {
                tracing::warn!(%error, "a session is confined as far as this machine can");
                Ok(Walls::Bare)
            }
            Err(error) => Err(link::Error::from(error).into()),
        }
    }

    /// Where a session works, and the directory that was made for it if the caller is nowhere, as over HTTP.
    async fn place_for(
        &self,
        caller: &Caller,
        cwd: Option<&PathBuf>,
        profile: Profile,
        handle: &Arc<str>,
    ) -> Result<(PathBuf, Option<(Workspace, Option<Arc<OwnDirectory>>)>), Error> {
        let place = match (cwd, &caller.cwd) {
            (Some(cwd), Some(base)) => (base.join(cwd), None),
            (Some(cwd), None) => (cwd.clone(), None),
            (None, Some(base)) => (base.clone(), None),
            (None, None) if profile.is_confined() => (PathBuf::from("/"), None),
            (None, None) => {
                let (workspace, directory) = self.make_directory(handle, None).await?;
                let path = workspace.path.clone();
                (path.clone(), Some((Workspace { seen_as: path, ..workspace }, Some(directory))))
            }
        };
        if place.0.is_dir() { Ok(place) } else { Err(Error::NotADirectory(place.0)) }
    }

    /// A directory for one session, owned by `outer_id` if that is somebody else.
    async fn make_directory(
        &self,
        handle: &Arc<str>,
        outer_id: Option<u32>,
    ) -> Result<(Workspace, Arc<OwnDirectory>), Error> {
        let (workspaces, handle) = (self.parts.workspaces.clone(), handle.clone());
        let seen_as = std::path::Path::new(confine::WORKSPACE);
        let made = tokio::task::spawn_blocking(move || workspaces.make(&handle, seen_as, outer_id));
        let made = made.await.map_err(std::io::Error::other).and_then(|made| made).map_err(Error::Workspace)?;
        Ok((made.0, Arc::new(made.1)))
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

    pub(super) fn forget_lost(&self) {
        let mut registry = self.registry.lock().expect("no panic while locked");
        let lost: Vec<_> = registry.open.extract_if(|_, session| session.is_lost()).collect();
        for (_, session) in lost {
            let reason = "it failed inside pylair, see the daemon's log".to_owned();
            registry.remember_closed(ClosedSession { info: session.info.clone(), reason, by: None });
        }
    }

    /// Returns whether it was open; one that was still starting is nothing that could be put away.
    pub(super) async fn end(&self, session: &Session, reason: &str, by: Option<Signature>) -> bool {
        // A default session that is gone is opened anew when it is next meant; a slot in use right now notices by itself.
        self.defaults.lock().expect("no panic while locked").retain(|_, slot| {
            slot.try_lock().map_or(true, |handle| handle.as_ref().is_none_or(|handle| *handle != session.info.handle))
        });
        let (was_open, was_starting) = {
            let mut registry = self.registry.lock().expect("no panic while locked");
            let was_open = registry.open.remove(&session.info.handle).is_some();
            if was_open {
                registry.remember_closed(ClosedSession { info: session.info.clone(), reason: reason.to_owned(), by });
            }
            (was_open, registry.starting.contains_key(&session.info.handle))
        };
        if was_open || was_starting {
            session.close(reason).await;
        }
        was_open
    }

    /// Ends everything; the daemon is leaving.
    pub async fn close_all(&self, reason: &str) {
        let sessions: Vec<_> = {
            let registry = self.registry.lock().expect("no panic while locked");
            registry.open.values().chain(registry.starting.values()).cloned().collect()
        };
        let coming_back = keeping::load(&self.parts);
        let end = async |session: &Session| {
            self.end(session, reason, None).await;
            let keep = coming_back.iter().any(|definition| *definition.handle == *session.info.handle);
            session.info.environment.release(&session.info.handle, keep).await;
        };
        futures::future::join_all(sessions.iter().map(end)).await;
        self.nest.close().await;
    }

    /// `again` is the handle of a stopped session that is to have its name back.
    fn reserve(&self, caller: &Caller, name: &Arc<str>, again: Option<&str>) -> Result<Reservation<'_>, Error> {
        let good = name.len() <= MAX_NAME_CHARS
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !good {
            return Err(Error::BadName(name.to_string()));
        }
        let mut registry = self.registry.lock().expect("no panic while locked");
        let idle = || {
            let mine = registry.open.values().filter(|session| session.info.owner == caller.owner);
            let mut idle: Vec<_> =
                mine.filter_map(|session| Some((session.info.name.to_string(), session.idle_for()?))).collect();
            idle.sort_by_key(|(_, idle)| std::cmp::Reverse(*idle));
            idle.truncate(NAMED_IDLE);
            idle
        };
        let open = registry.open.len() + registry.reserved.len();
        if open >= self.parts.max_sessions {
            return Err(Error::TooMany { limit: self.parts.max_sessions, idle: idle() });
        }
        let own = registry.open.values().filter(|session| session.info.owner == caller.owner).count()
            + registry.reserved.iter().filter(|(owner, _)| *owner == caller.owner).count();
        // Whoever runs the daemon can end it too; nobody else may leave others without room.
        if own >= self.parts.max_sessions_per_owner && *caller.owner != *own_owner() {
            return Err(Error::TooManyOwn { limit: self.parts.max_sessions_per_owner, idle: idle() });
        }
        registry.check_descriptors()?;
        let key = (caller.owner.clone(), name.clone());
        if let Some(session) = registry.starting_of(caller, name) {
            return Err(session.is_starting());
        }
        let taken = registry.reserved.contains(&key)
            || registry.open.values().any(|session| session.info.owner == key.0 && session.info.name == key.1);
        if taken || self.is_stopped_name(&caller.owner, name, again) {
            return Err(Error::NameTaken(name.to_string()));
        }
        registry.reserved.push(key.clone());
        Ok(Reservation { registry: &self.registry, key })
    }

    /// A name nobody uses, made of what the client calls itself.
    pub(super) fn free_name(&self, caller: &Caller) -> String {
        let base: String = caller
            .client
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .take(24)
            .collect();
        let base = base.trim_matches('-');
        self.unused_name(caller, if base.is_empty() { "session" } else { base })
    }

    pub(super) fn unused_name(&self, caller: &Caller, base: &str) -> String {
        let registry = self.registry.lock().expect("no panic while locked");
        let base = &base[..base.floor_char_boundary(MAX_NAME_CHARS - 8)];
        let taken = |name: &str| {
            registry.reserved.iter().any(|(owner, reserved)| *owner == caller.owner && **reserved == *name)
                || registry.open.values().any(|s| s.info.owner == caller.owner && *s.info.name == *name)
                || self.is_stopped_name(&caller.owner, name, None)
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

impl Registry {
    /// Whether there are descriptors for one more session, beside those that are starting and a first checkpoint of each.
    fn check_descriptors(&self) -> Result<(), Error> {
        let has_copy = |session: &Session| !session.live.lock().expect("no panic while locked").copies.is_empty();
        let without_copy = self.open.values().filter(|session| !has_copy(session)).count();
        let starting = self.reserved.len() + 1;
        open_files::check(starting * open_files::FOR_SESSION + without_copy * open_files::FOR_COPY)?;
        Ok(())
    }

    /// Of those who have most closed sessions the oldest is forgotten first.
    fn remember_closed(&mut self, session: ClosedSession) {
        self.closed.push_back(session);
        if self.closed.len() <= REMEMBERED {
            return;
        }
        let mut shares = Shares::default();
        self.closed.iter().for_each(|closed| shares.add(&closed.info.owner, 1));
        let largest = shares.largest(|_| true);
        let oldest = self.closed.iter().position(|closed| Some(&closed.info.owner) == largest.as_ref());
        oldest.and_then(|oldest| self.closed.remove(oldest));
    }

    /// One of the caller's that is starting, by name or handle.
    pub(super) fn starting_of(&self, caller: &Caller, wanted: &str) -> Option<&Session> {
        let mut mine = self.starting.values().filter(|session| session.info.owner == caller.owner);
        mine.find(|session| &*session.info.name == wanted || &*session.info.handle == wanted)
    }
}

/// Lets a session be found while it starts, and tells those who wait when it does so no more.
struct Starting<'a> {
    sessions: &'a Sessions,
    session: OnceLock<Session>,
}

impl Starting<'_> {
    fn show(&self, session: &Session) {
        let session = self.session.get_or_init(|| session.clone());
        let mut registry = self.sessions.registry.lock().expect("no panic while locked");
        registry.starting.insert(session.info.handle.clone(), session.clone());
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.get() else { return };
        if let Ok(mut registry) = self.sessions.registry.lock() {
            registry.starting.remove(&session.info.handle);
            if !registry.open.contains_key(&session.info.handle) {
                // Nobody else is going to say so.
                session.ending.closed.cancel();
            }
        }
        self.sessions.started.notify_waiters();
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

/// Ends sessions nobody has used for longer than they may stay.
async fn end_idle(sessions: Weak<Sessions>, ttl: Duration) {
    let mut tick = tokio::time::interval((ttl / 4).clamp(Duration::from_secs(1), Duration::from_secs(30)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(sessions) = sessions.upgrade() else { return };
        sessions.end_idle(Duration::MAX).await;
    }
}

/// What a session's processes find in their environment: of a caller's own, when it is confined, only what is passed on by name.
fn environment(caller: &Caller, terms: &Terms, more: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    if !terms.profile.is_confined() {
        let mut env = (*caller.env).clone();
        env.extend(more.clone());
        return env;
    }
    let mut env = caller::plain_environment("/tmp", "pylair");
    env.extend(terms.env.iter().filter_map(|name| Some((name.clone(), caller.env.get(name)?.clone()))));
    if !terms.allow_net.is_empty() {
        env.extend(Confinement::proxy_environment());
    }
    env.extend(more.clone());
    env
}

/// The kind of a session whose worker could have been made ahead, if it is in a sandbox.
fn kind_of(
    (interpreter, base): (&Interpreter, Option<&Interpreter>),
    env: &BTreeMap<String, String>,
    owner: &Arc<str>,
    terms: &Terms,
) -> Option<Kind> {
    let wanted = Wanted {
        interpreter,
        base,
        env,
        preload: &[],
        python_path: &python_path(env),
        owner,
        confined: true,
        sandboxed: true,
        inside: false,
    };
    Kind::new(&wanted, terms)
}

/// The directories that a session's environment has Python look in.
pub(super) fn python_path(env: &BTreeMap<String, String>) -> Vec<String> {
    let path = env.get("PYTHONPATH").map(|path| path.split(':').filter(|entry| !entry.is_empty()).map(str::to_owned));
    path.into_iter().flatten().collect()
}

/// A session of before the settings had a floor may have more than that. It is refused instead of coming back as another.
fn check_opening(caller: &Caller, again: Option<&saved::Definition>) -> Result<(), Error> {
    if !caller.may(Scope::Run) {
        return Err(Error::NotAllowed("open sessions"));
    }
    let Some(definition) = again.filter(|_| caller.floor.is_some()) else { return Ok(()) };
    if definition.is_bound {
        let wanted = definition.cwd.display().to_string();
        return Err(sandbox::Error::NotInSettings { name: "allow_write", wanted }.into());
    }
    if !definition.preload.is_empty() {
        return Err(Error::NotAllowed("start a session that preloads modules"));
    }
    if definition.env.keys().any(|name| rights::shapes_start(name)) {
        return Err(Error::NotAllowed("start a session whose variables change how an interpreter starts"));
    }
    Ok(())
}

fn check_preload(preload: &[String]) -> Result<(), Error> {
    match preload.iter().find(|module| !is_module_name(module)) {
        Some(module) => Err(Error::BadArgument(format!("`{module}` in `preload` is not the name of a module"))),
        None => Ok(()),
    }
}

fn check_environment(env: &BTreeMap<String, String>) -> Result<(), Error> {
    if env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENV_BYTES {
        return Err(Error::BadArgument(format!("the environment is over the limit of {MAX_ENV_BYTES} bytes")));
    }
    let bad = |(name, value): (&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
    match env.iter().find(|pair| bad(*pair)) {
        Some((name, _)) => Err(Error::BadArgument(format!("`{name}` in `env` cannot be an environment variable"))),
        None => Ok(()),
    }
}

fn is_module_name(name: &str) -> bool {
    name.split('.').all(literal::is_name)
}

/// Eight characters nobody guesses by accident and everybody can read aloud.
pub fn new_handle() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    pylair_os::random::letters(LETTERS)
}
