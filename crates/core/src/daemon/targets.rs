//! Targets: what a caller means by `target`, and the one set of things that can be done with any of them.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;

use super::{Daemon, frozen::Frozen, testing::TestRun};
use crate::{
    app::{self, App, Apps},
    caller::{Caller, Scope},
    rights,
    session::{self, Interrupted, Job, OnTimeout, RunBy, Session, Work},
    target::{self, Reference},
};
use pylair_probe::wire::Op;

/// A live Python interpreter.
#[derive(Debug, Clone)]
pub enum Target {
    Session(Session),
    /// Also a frozen failure.
    App(App),
    /// Only ever found by its job.
    Tests(Arc<TestRun>),
}

/// What a target is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To run something: the default session is opened if it is not there, a stopped one is started.
    Run,
    /// To bring files: the same, but nobody works in a session just because files were put there.
    Store,
    /// To change what is there: a stopped session is started, but none is opened.
    Change,
    /// To look at something: a stopped session is started, but none is opened.
    Look,
    /// For what it is now: nothing is started.
    AsItIs,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Session(#[from] session::Error),
    #[error(transparent)]
    App(#[from] app::Error),
    #[error(transparent)]
    Reference(#[from] target::Error),
    #[error("there is no target `{target}`")]
    Unknown { target: String, sessions: Vec<String>, apps: Vec<String> },
    #[error(transparent)]
    Failure(#[from] pylair_failures::Error),
    #[error("no code can run in failure {id}: {why}")]
    NotFrozen { id: String, why: String, recorded: Option<String>, was_frozen: bool },
    #[error("failure {id} has no frame {frame}")]
    NoFrame { id: String, frame: usize, frames: usize },
    #[error("{0}")]
    NoRun(String),
    #[error("{what} cannot be done with a run of pytest")]
    TestsOnly { what: &'static str },
    #[error("{}", error.message())]
    Default { target: String, error: Box<Error> },
    #[error("{0}")]
    BadArgument(String),
    #[error("{what} needs an app, and `{target}` is a session")]
    AppsOnly { what: &'static str, target: String, instead: &'static str },
}

impl Error {
    /// The message with its causes.
    pub fn message(&self) -> String {
        match self {
            Self::Session(error) => error.message(),
            Self::App(error) => error.message(),
            Self::Failure(error) => error.message(),
            Self::Default { error, .. } => error.message(),
            _ => self.to_string(),
        }
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Session(error) => error.kind(),
            Self::App(error) => error.kind(),
            Self::Failure(error) => error.kind(),
            Self::Default { error, .. } => error.kind(),
            Self::Reference(_) | Self::BadArgument(_) | Self::NoFrame { .. } => "bad_argument",
            Self::Unknown { .. } => "unknown_session",
            Self::NotFrozen { .. } => "not_frozen",
            Self::NoRun(_) | Self::TestsOnly { .. } => "tests_not_run",
            Self::AppsOnly { .. } => "apps_only",
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Session(error) => error.hint(),
            Self::App(error) => error.hint(),
            Self::Reference(error) => error.hint().to_owned(),
            Self::Unknown { sessions, apps, .. } => {
                let list = |label: &str, names: &[String]| match names {
                    [] => format!("no {label} is open"),
                    names => format!("{label}s: {}", names.iter().take(20).cloned().collect::<Vec<_>>().join(", ")),
                };
                format!("{}; {}; open_session makes a session", list("session", sessions), list("app", apps))
            }
            Self::Failure(error) => error.hint(),
            Self::NotFrozen { id, recorded, was_frozen, .. } => {
                let recorded = recorded.as_ref().map(|values| format!("recorded: {values}; ")).unwrap_or_default();
                let again = if *was_frozen { "; running its test again freezes it again" } else { "" };
                format!("{recorded}get_failure(id=\"{id}\") shows all that was recorded{again}")
            }
            Self::NoFrame { id, frames, .. } => {
                format!("they are failure:{id}#1, the innermost, to failure:{id}#{frames}")
            }
            Self::NoRun(_) | Self::TestsOnly { .. } => "`pylair doctor` says what is wrong".to_owned(),
            Self::Default { target, error } => {
                format!("PYLAIR_SESSION says `{target}` for calls without a target; {}", error.hint())
            }
            Self::BadArgument(_) => "see the tool's schema".to_owned(),
            Self::AppsOnly { instead, .. } => (*instead).to_owned(),
        }
    }
}

impl Daemon {
    /// What a caller means. Every tool that takes a `target` asks here.
    pub async fn target(&self, caller: &Caller, named: Option<&str>, purpose: Purpose) -> Result<Target, Error> {
        if matches!(purpose, Purpose::Run | Purpose::Store | Purpose::Change) && !caller.may(Scope::Run) {
            return Err(session::Error::NotAllowed("run code").into());
        }
        let target = self.find_target(caller, named, purpose).await?;
        if let (Target::Session(session), Purpose::Run | Purpose::Change) = (&target, purpose) {
            session.note_token(caller);
        }
        Ok(target)
    }

    async fn find_target(&self, caller: &Caller, named: Option<&str>, purpose: Purpose) -> Result<Target, Error> {
        match (named, default_of(caller)?) {
            (Some(named), _) => self.named_target(caller, named, purpose).await,
            (None, Some(target)) => self.named_target(caller, target, purpose).await.map_err(|error| {
                let (target, error) = (target.to_owned(), Box::new(error));
                Error::Default { target, error }
            }),
            (None, None) => Ok(Target::Session(match purpose {
                Purpose::Run | Purpose::Store => self.sessions.target(caller, None).await?,
                Purpose::Change => self.sessions.existing(caller, None).await?.open_to(caller)?,
                Purpose::Look => self.sessions.existing(caller, None).await?,
                Purpose::AsItIs => {
                    let own = self.sessions.own_or_tell(caller)?;
                    self.sessions.find_or_tell(caller, &own).await?
                }
            })),
        }
    }

    /// What a caller means by the words of a target.
    async fn named_target(&self, caller: &Caller, text: &str, purpose: Purpose) -> Result<Target, Error> {
        let session = async |name: &str| match purpose {
            Purpose::Run | Purpose::Store | Purpose::Change => self.sessions.reach(caller, name).await?.open_to(caller),
            Purpose::Look => self.sessions.reach(caller, name).await,
            Purpose::AsItIs => self.sessions.find_or_tell(caller, name).await,
        };
        match text.parse()? {
            Reference::Session(name) => Ok(Target::Session(session(&name).await?)),
            Reference::App { id, pid } => Ok(Target::App(self.apps.find(caller, &id, pid).await?)),
            Reference::Process(pid) => Ok(Target::App(self.apps.find_process(caller, pid).await?)),
            Reference::Failure { id, frame } => Ok(Target::App(self.frozen_failure(caller, &id, frame).await?)),
            Reference::Name(name) => match session(&name).await {
                Ok(session) => Ok(Target::Session(session)),
                Err(unknown @ (session::Error::Unknown { .. } | session::Error::Closed { .. })) => {
                    let named = self.named_app(caller, &name, unknown).await;
                    let Err(error) = named else { return named.map(Target::App) };
                    if !(6..=12).contains(&name.len()) || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                        return Err(error);
                    }
                    // A failure's id, with the kind left out.
                    match self.frozen_failure(caller, &name, None).await {
                        Ok(copy) => Ok(Target::App(copy)),
                        Err(refused @ Error::NotFrozen { .. }) => Err(refused),
                        Err(_) => Err(error),
                    }
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// The app that a name means which is no session's.
    async fn named_app(&self, caller: &Caller, name: &str, unknown: session::Error) -> Result<App, Error> {
        // `web@4711` is how one of several is written back.
        let (id, pid) = match format!("app:{name}").parse() {
            Ok(Reference::App { id, pid }) => (id, pid),
            _ => (name.to_owned(), None),
        };
        match (self.apps.find(caller, &id, pid).await, unknown) {
            (Err(app::Error::Unknown { ended: None, running, .. }), unknown)
                if running.is_empty() || matches!(unknown, session::Error::Closed { .. }) =>
            {
                Err(unknown.into())
            }
            (Err(app::Error::Unknown { ended: None, running, .. }), session::Error::Unknown { known, .. }) => {
                Err(Error::Unknown { target: name.to_owned(), sessions: known, apps: running })
            }
            (found, _) => Ok(found?),
        }
    }

    /// The session a caller means, for what only a session can do.
    pub async fn session(
        &self,
        caller: &Caller,
        named: Option<&str>,
        purpose: Purpose,
        what: &'static str,
    ) -> Result<Session, Error> {
        match self.target(caller, named, purpose).await? {
            Target::Session(session) => Ok(session),
            Target::App(app) => {
                Err(of_default(caller, named, app::Error::SessionsOnly { what, target: app.name() }.into()))
            }
            Target::Tests(_) => Err(Error::TestsOnly { what }),
        }
    }

    /// The app a caller means, for what only an app can do.
    pub async fn app(
        &self,
        caller: &Caller,
        named: Option<&str>,
        what: &'static str,
        instead: &'static str,
    ) -> Result<App, Error> {
        match self.target(caller, named, Purpose::AsItIs).await? {
            Target::App(app) => Ok(app),
            Target::Session(session) => {
                let target = session.info.name.to_string();
                Err(of_default(caller, named, Error::AppsOnly { what, target, instead }))
            }
            Target::Tests(_) => Err(Error::TestsOnly { what }),
        }
    }

    /// Refuses what only a session can do when an app is named. Whether there is such a session is somebody else's question.
    pub async fn refuse_app(&self, caller: &Caller, named: Option<&str>, what: &'static str) -> Result<(), Error> {
        match self.target(caller, named, Purpose::AsItIs).await {
            Ok(Target::App(app)) => {
                Err(of_default(caller, named, app::Error::SessionsOnly { what, target: app.name() }.into()))
            }
            Err(error @ (Error::Reference(_) | Error::App(_))) => Err(error),
            Err(Error::Default { target, error }) if matches!(*error, Error::Reference(_) | Error::App(_)) => {
                Err(Error::Default { target, error })
            }
            _ => Ok(()),
        }
    }

    /// The target whose job this is, to stop it.
    pub fn target_of_job(&self, caller: &Caller, job: &Job) -> Result<Target, Error> {
        if let Some(app) = self.apps.of_job(job).or_else(|| self.frozen.apps.of_job(job)) {
            return Ok(Target::App(app));
        }
        if let Some(run) = self.test_run(job) {
            return Ok(Target::Tests(run));
        }
        Ok(Target::Session(self.sessions.find(caller, &job.session)?))
    }

    /// The target that is meant where none is named, in words, without looking whether it is there.
    pub fn own_target(&self, caller: &Caller) -> Result<String, Error> {
        match default_of(caller)? {
            Some(target) => Ok(target.to_owned()),
            None => Ok(self.sessions.own_or_tell(caller)?),
        }
    }

    /// The same as callers read it: a session by its name.
    pub fn default_target(&self, caller: &Caller) -> Option<String> {
        let own = self.own_target(caller).ok()?;
        if let Ok(session) = self.sessions.find(caller, &own) {
            return Some(session.info.name.to_string());
        }
        let stopped = self.sessions.list_stopped(caller).into_iter().find(|status| status.handle == own);
        Some(stopped.map_or(own, |status| status.name))
    }

    /// Ends a session, or takes a probe that came in from outside out of its app. The caller's own session if none is named.
    pub async fn close_target(&self, caller: &Caller, named: Option<&str>, forget: bool) -> Result<String, Error> {
        let named = &match named {
            Some(named) => named.to_owned(),
            None => self.own_target(caller)?,
        };
        let closed = match named.parse()? {
            Reference::Session(name) => return Ok(self.sessions.close(caller, &name, forget).await?),
            Reference::Name(name) => self.sessions.close(caller, &name, forget).await,
            _ => Err(session::Error::Gone),
        };
        match closed {
            Ok(closed) => Ok(closed),
            Err(session::Error::Gone | session::Error::Unknown { .. } | session::Error::Closed { .. }) => {
                match self.target(caller, Some(named), Purpose::AsItIs).await? {
                    Target::App(app) if app.entry.is_frozen() => {
                        Frozen::close(&app, caller).await?;
                        Ok(app.name())
                    }
                    Target::App(app) => {
                        app.detach(caller).await?;
                        Ok(app.name())
                    }
                    Target::Session(session) => Ok(self.sessions.close(caller, &session.info.handle, forget).await?),
                    Target::Tests(_) => Err(Error::TestsOnly { what: "close_session" }),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// An error about a target, which says where the target comes from if the call named none.
fn of_default(caller: &Caller, named: Option<&str>, error: Error) -> Error {
    match caller.settings.session.as_deref().filter(|_| named.is_none()) {
        Some(target) => Error::Default { target: target.to_owned(), error: Box::new(error) },
        None => error,
    }
}

/// What a caller says that its calls without a target mean. What may not be named may not be meant either.
fn default_of(caller: &Caller) -> Result<Option<&str>, Error> {
    match caller.settings.session.as_deref() {
        Some(target) if caller.floor.is_some() && rights::is_outside(target) => {
            Err(session::Error::NotAllowed("reach processes outside of pylair").into())
        }
        target => Ok(target),
    }
}

impl Target {
    /// For somebody who is to change it: see `Session::open_to`.
    pub fn open_to(self, caller: &Caller) -> Result<Self, Error> {
        match self {
            Self::Session(session) => Ok(Self::Session(session.open_to(caller)?)),
            // Found by its job, which an owner's other token may have started.
            Self::App(_) if !Apps::visible_to(caller) => {
                Err(session::Error::NotAllowed("reach processes outside of pylair").into())
            }
            Self::App(app) => Ok(Self::App(app)),
            Self::Tests(_) if !caller.may(Scope::Tests) => {
                Err(session::Error::NotAllowed("stop a run of tests").into())
            }
            Self::Tests(run) => Ok(Self::Tests(run)),
        }
    }

    /// As it is written back to callers.
    pub fn name(&self) -> String {
        match self {
            Self::Session(session) => session.info.name.to_string(),
            Self::App(app) => app.name(),
            Self::Tests(run) => run.job.session.to_string(),
        }
    }

    /// What an answer about it must say besides its own, once.
    pub fn take_notes(&self) -> Vec<String> {
        match self {
            Self::Session(_) | Self::Tests(_) => Vec::new(),
            Self::App(app) => app.take_notes(),
        }
    }

    /// What one who waits for it should know.
    pub fn why_silent(&self) -> Option<String> {
        match self {
            Self::Session(_) | Self::Tests(_) => None,
            Self::App(app) => app.why_silent(),
        }
    }

    /// Starts a cell or a call and returns its job at once. `client` is who is named in the history.
    pub async fn run(
        &self,
        (caller, client): (&Caller, &str),
        work: Work,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
    ) -> Result<Arc<Job>, Error> {
        match (self, work) {
            (Self::Session(session), work) => {
                let by = RunBy { client, settings: &caller.settings };
                Ok(session.run_in_order(Some(&caller.sender), work, timeout, on_timeout, by).await?)
            }
            (Self::Tests(_), _) => Err(Error::TestsOnly { what: "execute" }),
            (Self::App(_), _) if on_timeout == OnTimeout::Rollback => Err(app::Error::NoRollback.into()),
            (Self::App(app), Work::Code { code, path }) => Ok(app.run(caller, client, (code, path), timeout).await?),
            (Self::App(app), Work::File { .. }) => {
                Err(app::Error::SessionsOnly { what: "run_file", target: app.name() }.into())
            }
        }
    }

    /// Looks something up.
    pub async fn look<T: DeserializeOwned>(&self, caller: &Caller, op: Op, blob: Vec<u8>) -> Result<T, Error> {
        match self {
            Self::Session(session) => Ok(session.look(op, blob).await?),
            Self::App(app) => Ok(app.look(caller, op, &blob).await?),
            Self::Tests(_) => Err(Error::TestsOnly { what: "inspect" }),
        }
    }

    /// Interrupts the given job, or whatever runs.
    pub async fn interrupt(&self, job: Option<&str>) -> Result<Interrupted, Error> {
        match self {
            Self::Session(session) => Ok(session.interrupt(job).await?),
            Self::App(app) => Ok(app.interrupt(job).await?),
            Self::Tests(run) => Ok(run.interrupt().await?),
        }
    }
}
