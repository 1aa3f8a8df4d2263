//! Sessions that outlive their process: kept definitions, variables saved on request, and coming back.

use std::{path::Path, sync::Arc, time::Duration};

use serde::Serialize;

use super::{
    Command, DefaultSession, Error, OpenOptions, Opening, Session, Sessions, State, Status, read_answer,
    saved::{Definition, Pending, Restored, Saved},
    sessions::closed_by,
    task,
};
use crate::caller::{Caller, Scope};
use pylair_os::{regular, turns::Turn};
use pylair_probe::wire::Op;
use pylair_sandbox::{Profile, confine};

/// How long pickling everything may take before it is interrupted.
const SAVE_TIMEOUT: Duration = Duration::from_mins(2);
pub(super) const RESTORE_TIMEOUT: Duration = Duration::from_mins(2);
const VERIFY_SECONDS: f64 = 20.0;
const MAX_SAVE_BYTES: u64 = 4 << 30;
/// How long a session that nobody asked to keep waits to be used again: as long as its history.
const SAVED_FOR: Duration = Duration::from_hours(30 * 24);
/// How long somebody waits for a session that is being opened. Startup code may take longer, and then that is told.
const STARTING_PATIENCE: Duration = Duration::from_secs(5);

/// The answer of `save_session`.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct SaveReport {
    pub session: String,
    /// What `open_session(restore=…)` takes.
    pub save: String,
    #[serde(flatten)]
    pub saved: Saved,
    /// How many of the variables in `saved` were restored in a process that was thrown away, and were equal.
    pub verified: usize,
    pub notes: Vec<String>,
}

impl Session {
    pub(super) async fn save_to(&self, pending: &Pending, limit: Duration) -> Result<Saved, Error> {
        let op = Op::Save { verify_s: VERIFY_SECONDS, max_bytes: MAX_SAVE_BYTES };
        // The process that compares the save with what was saved may not have a file to write to, nor open one in a sandbox.
        let files =
            [pending.descriptor(), pending.reader()].into_iter().collect::<Result<_, _>>().map_err(Error::Store)?;
        let question = task::Question { op, blob: Vec::new(), files, limit };
        let answer = self.send(|answer| Command::Ask { question, answer }).await??;
        read_answer(answer)
    }

    async fn restore_from(&self, path: &Path) -> Result<Restored, Error> {
        let files = vec![regular::open(path).map_err(Error::Store)?.into()];
        let question = task::Question { op: Op::Restore, blob: Vec::new(), files, limit: RESTORE_TIMEOUT };
        let answer = self.send(|answer| Command::Ask { question, answer }).await??;
        read_answer(answer)
    }

    pub(super) fn definition(&self) -> Definition {
        let status = self.status();
        Definition { cell: status.cell, last_used_at: status.last_used_at, ..(*self.info.definition).clone() }
    }
}

impl Sessions {
    /// The session a caller names: an open one, or one that was stopped and is started now.
    pub async fn reach(&self, caller: &Caller, target: &str) -> Result<Session, Error> {
        match self.find_started(caller, target).await {
            Err(Error::Unknown { .. } | Error::Closed { .. }) => {}
            found => return found,
        }
        // It stays among the stopped until it is open, so that nobody misses it in between.
        let Some(definition) = self.stopped(caller, target) else {
            return match self.find_started(caller, target).await {
                Err(error) => Err(self.tell_gone(caller, error).await),
                found => found,
            };
        };
        let turn = self.turn_to_revive(&definition).await?;
        let unknown = match self.find_started(caller, target).await {
            Err(error @ (Error::Unknown { .. } | Error::Closed { .. })) => error,
            found => return found,
        };
        match self.stopped(caller, target) {
            Some(definition) => self.revive(caller, definition, turn).await,
            None => Err(self.tell_gone(caller, unknown).await),
        }
    }

    /// A session is started again once. Whoever else wants it waits, and is told when that takes long.
    async fn turn_to_revive(&self, definition: &Definition) -> Result<Turn, Error> {
        let turn = self.reviving.take(&definition.handle);
        tokio::time::timeout(STARTING_PATIENCE, turn).await.map_err(|_| self.still_starting(definition))
    }

    fn still_starting(&self, definition: &Definition) -> Error {
        let registry = self.registry.lock().expect("no panic while locked");
        let starting = registry.starting.get(definition.handle.as_str()).map(Session::is_starting);
        starting.unwrap_or_else(|| Error::Starting { session: definition.name.clone(), since: Duration::ZERO })
    }

    /// An open session. One that is starting is waited for, unless that takes long.
    async fn find_started(&self, caller: &Caller, target: &str) -> Result<Session, Error> {
        let until = tokio::time::Instant::now() + STARTING_PATIENCE;
        loop {
            let started = self.started.notified();
            match self.find(caller, target) {
                Err(error @ Error::Starting { .. }) => {
                    if tokio::time::timeout_at(until, started).await.is_err() {
                        return Err(error);
                    }
                }
                found => return found,
            }
        }
    }

    /// The caller's default session if it is open or waiting to be started, and never a new one.
    pub async fn existing(&self, caller: &Caller, target: Option<&str>) -> Result<Session, Error> {
        if let Some(target) = target {
            return self.reach(caller, target).await;
        }
        if let Some(session) = self.default_of(&caller.owner, &caller.default_session).await {
            return Ok(session);
        }
        let slot = self.default_slot(caller);
        let mut slot = slot.lock().await;
        if let Some(session) = self.stopped_default(caller).await? {
            *slot = Some(session.info.handle.clone());
            return Ok(session);
        }
        drop(slot);
        match caller.default_session {
            DefaultSession::Main => self.reach(caller, "main").await.map_err(|_| Error::NoDefault),
            _ => Err(no_own(caller)),
        }
    }

    /// The handle of the caller's own session, or why there is none.
    pub fn own_or_tell(&self, caller: &Caller) -> Result<String, Error> {
        self.own(caller).ok_or_else(|| no_own(caller))
    }

    /// Starts the caller's default session of an earlier daemon, if there was one.
    pub(super) async fn stopped_default(&self, caller: &Caller) -> Result<Option<Session>, Error> {
        let Some(key) = default_key(&caller.default_session) else { return Ok(None) };
        let find = || self.stopped_default_definition(caller, &key);
        let Some(definition) = find() else { return Ok(None) };
        let turn = self.turn_to_revive(&definition).await?;
        // Somebody may have started it by its name meanwhile.
        match self.find_started(caller, &definition.handle).await {
            Err(Error::Unknown { .. } | Error::Closed { .. }) => {}
            found => return found.map(Some),
        }
        match find() {
            Some(definition) => self.revive(caller, definition, turn).await.map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn stopped_default_definition(&self, caller: &Caller, key: &str) -> Option<Definition> {
        let stopped = self.stopped.lock().expect("no panic while locked");
        let is_own = |definition: &&Definition| {
            *definition.owner == *caller.owner && definition.default_of.as_deref() == Some(key)
        };
        stopped.iter().find(is_own).cloned()
    }

    pub(super) fn stopped(&self, caller: &Caller, target: &str) -> Option<Definition> {
        let wanted = target.strip_prefix("session:").unwrap_or(target);
        let stopped = self.stopped.lock().expect("no panic while locked");
        let is_meant = |definition: &&Definition| {
            *definition.owner == *caller.owner && (definition.name == wanted || definition.handle == wanted)
        };
        stopped.iter().find(is_meant).cloned()
    }

    /// Whether a stopped session has this name, other than the one that is being started again.
    pub(super) fn is_stopped_name(&self, owner: &str, name: &str, again: Option<&str>) -> bool {
        let stopped = self.stopped.lock().expect("no panic while locked");
        let mut of_owner = stopped.iter().filter(|definition| definition.owner == owner);
        of_owner.any(|definition| definition.name == name && again != Some(definition.handle.as_str()))
    }

    /// Goes on when the one who asked has gone: a session half started is neither stopped nor open.
    async fn revive(&self, caller: &Caller, definition: Definition, turn: Turn) -> Result<Session, Error> {
        let me = self.me.upgrade().ok_or(Error::Gone)?;
        let caller = caller.clone();
        let reviving = async move {
            let revived = me.revive_now(&caller, definition).await;
            drop(turn);
            revived
        };
        pylair_os::event_loop::spawn(reviving).await.map_err(|_| Error::Gone)?
    }

    async fn revive_now(&self, caller: &Caller, mut definition: Definition) -> Result<Session, Error> {
        let variables = self.parts.store.variables(&definition.handle);
        // The journal knows of a session whose daemon could not write it down.
        let newest = self.parts.journal.newest_cell(&definition.owner, &definition.handle).await;
        let was_killed = self.was_killed(&definition.owner, &definition.handle).await;
        definition.cell = definition.cell.max(newest);
        let options = OpenOptions {
            name: Some(definition.name.clone()),
            python: definition.python.clone(),
            cwd: Some(definition.cwd.clone()),
            env: definition.env.clone(),
            startup: definition.startup.clone(),
            preload: definition.preload.clone(),
            sandbox: Some(definition.sandbox.clone()),
            description: definition.description.clone(),
            keep: definition.keep,
            restore: None,
        };
        let opening = Opening { again: Some(definition.clone()), default_of: definition.default_of.clone() };
        let session = self.open_as(caller, options, opening).await?;
        self.forget_stopped(&definition.handle);
        let mut notes = vec!["the session was started again".to_owned()];
        notes.extend(definition.notes.clone());
        let mut restored = None;
        if variables.exists() {
            restored = Some(session.restore_from(&variables).await);
        }
        match &restored {
            Some(Ok(restored)) => notes.extend(restored.notes()),
            // The file stays: the next daemon, or the next time, may have more luck.
            Some(Err(error)) => notes.push(format!("its variables could not be restored: {}", error.message())),
            // The cells of a killed daemon's last moments are not recorded.
            None if definition.cell > 0 || was_killed => notes.push("the variables it had were not saved".to_owned()),
            None => {}
        }
        session.has_news(notes);
        if matches!(restored, Some(Err(_))) {
            return Ok(session);
        }
        let store = self.parts.store.clone();
        let _saved = tokio::task::spawn_blocking(move || {
            let _absent = std::fs::remove_file(variables);
            if definition.keep {
                // What its notes say was told just now, and is true of no other time.
                return store.put(&Definition { notes: Vec::new(), ..definition });
            }
            store.forget(&definition.handle);
            Ok(())
        })
        .await;
        Ok(session)
    }

    fn forget_stopped(&self, handle: &str) {
        self.stopped.lock().expect("no panic while locked").retain(|definition| definition.handle != handle);
    }

    /// Sessions that are not running but can be started by using them.
    pub fn list_stopped(&self, caller: &Caller) -> Vec<Status> {
        let registry = self.registry.lock().expect("no panic while locked");
        let stopped = self.stopped.lock().expect("no panic while locked");
        let mine = stopped.iter().filter(|definition| *definition.owner == *caller.owner);
        mine.filter(|definition| !registry.open.contains_key(definition.handle.as_str())).map(stopped_status).collect()
    }

    /// Ends a session and everything below it. A kept one stays listed, unless it is to be forgotten.
    pub async fn close(&self, caller: &Caller, target: &str, forget: bool) -> Result<String, Error> {
        let me = self.me.upgrade().ok_or(Error::Gone)?;
        let (caller, target) = (caller.clone(), target.to_owned());
        // As a whole, also when the one who asked has gone.
        pylair_os::event_loop::spawn(async move { me.close_now(&caller, &target, forget).await })
            .await
            .map_err(|_| Error::Gone)?
    }

    async fn close_now(&self, caller: &Caller, target: &str, forget: bool) -> Result<String, Error> {
        let starting = self.registry.lock().expect("no panic while locked").starting_of(caller, named(target)).cloned();
        if let Some(session) = starting {
            let session = session.open_to(caller)?;
            // A kept one that was to come back is stopped again.
            let by = caller.signature();
            let reason = format!("{} while it was being opened", closed_by(by.words()));
            self.end(&session, &reason, Some(by)).await;
            return Ok(session.info.name.to_string());
        }
        match self.find(caller, target) {
            Ok(session) => {
                let session = session.open_to(caller)?;
                session.keep_files(session.info.definition.keep && !forget);
                let by = caller.signature();
                self.end(&session, &closed_by(by.words()), Some(by)).await;
                self.put_away(&session, forget).await;
                Ok(session.info.name.to_string())
            }
            Err(error) => match self.stopped(caller, target) {
                Some(definition) if forget => {
                    if !caller.may(Scope::Run) {
                        return Err(Error::NotAllowed("close sessions"));
                    }
                    let Some(_turn) = self.reviving.try_take(&definition.handle) else {
                        return Err(self.still_starting(&definition));
                    };
                    self.forget_for_good(&definition).await;
                    Ok(definition.name)
                }
                Some(definition) => Err(Error::Stopped { target: definition.name }),
                None => Err(error),
            },
        }
    }

    /// Removes a stopped session with all that it has on disk.
    pub(super) async fn forget_for_good(&self, definition: &Definition) {
        self.forget_stopped(&definition.handle);
        self.parts.store.forget(&definition.handle);
        let directory = self.parts.workspaces.find(&definition.handle);
        directory.keep(false);
        directory.remove().await;
        self.parts.packages.forget(&definition.handle).await;
    }

    /// After a session has ended: a kept one becomes a stopped one, any other is forgotten.
    pub(super) async fn put_away(&self, session: &Session, forget: bool) {
        let store = self.parts.store.clone();
        let keep = session.info.definition.keep && !forget;
        session.info.environment.release(&session.info.handle, keep).await;
        if !keep {
            let handle = session.info.handle.clone();
            let _forgotten = tokio::task::spawn_blocking(move || store.forget(&handle)).await;
            return;
        }
        let definition = session.definition();
        self.stopped.lock().expect("no panic while locked").push(definition.clone());
        let put = tokio::task::spawn_blocking(move || store.put(&definition)).await;
        if !matches!(put, Ok(Ok(()))) {
            tracing::warn!(session = %session.info.name, "a kept session could not be written to disk");
        }
    }

    /// Saves the variables of a session under an id of its own.
    pub async fn save(&self, session: &Session) -> Result<SaveReport, Error> {
        let id = save_id(session);
        let store = self.parts.store.clone();
        let owner = session.info.owner.clone();
        let is_confined = session.info.terms.profile.is_confined();
        let path = store.save(&owner, &id, is_confined).ok_or_else(|| Error::BadName(id.clone()))?;
        let pending = Pending::new(&path).map_err(Error::Store)?;
        let saved = session.save_to(&pending, SAVE_TIMEOUT).await?;
        let made = id.clone();
        let kept = tokio::task::spawn_blocking(move || pending.keep().map(|()| store.trim(&owner, &made))).await;
        let removed = kept.map_err(|_| Error::Gone)?.map_err(Error::Store)?;
        let mut notes = Vec::new();
        let verified = saved.saved.iter().filter(|variable| variable.verified).count();
        if verified < saved.saved.len() {
            notes.push(format!(
                "{verified} of {} variables were verified; `saved` says why the others were not",
                saved.saved.len()
            ));
        }
        if !removed.is_empty() {
            notes.push(format!("the oldest saves were removed to make room: {}", removed.join(", ")));
        }
        Ok(SaveReport { session: session.info.name.to_string(), save: id, saved, verified, notes })
    }

    /// The file that `restore` names: a save's id, or the newest save of a session's name.
    pub(super) fn save_named(&self, owner: &str, restore: &str, profile: Profile) -> Result<std::path::PathBuf, Error> {
        let store = &self.parts.store;
        let saves = store.saves(owner);
        let of_session = |id: &&String| {
            let name = id.rsplitn(3, '-').nth(2);
            name == Some(restore)
        };
        let id = saves.iter().find(|id| *id == restore).or_else(|| saves.iter().find(of_session));
        let found = id.and_then(|id| store.find_save(owner, id));
        let (path, is_confined) =
            found.ok_or_else(|| Error::NoSave { restore: restore.to_owned(), known: saves.clone() })?;
        if is_confined && !profile.is_confined() {
            return Err(Error::BadArgument(format!(
                "`{restore}` was saved in a sandbox, and bringing it back runs what it says: open the session with sandbox=\"workspace\""
            )));
        }
        Ok(path)
    }

    /// A new process, into which what can be saved of the old one's variables is restored. Calls that wait go on in it.
    pub async fn restart_keeping(&self, session: &Session) -> Result<Vec<String>, Error> {
        let id = save_id(session);
        let is_confined = session.info.terms.profile.is_confined();
        let path = self.parts.store.save(&session.info.owner, &id, is_confined);
        let path = path.ok_or_else(|| Error::BadName(id.clone()))?;
        let pending = Pending::new(&path).map_err(Error::Store)?;
        session.save_to(&pending, SAVE_TIMEOUT).await?;
        let file = pending.descriptor().map_err(Error::Store)?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(|error| Error::Store(error.into()))?;
        session.restart_reserved().await?;
        let question = task::Question { op: Op::Restore, blob: Vec::new(), files: vec![file], limit: RESTORE_TIMEOUT };
        match session.send(|answer| Command::Ask { question, answer }).await.and_then(|answer| answer) {
            Ok(answer) => Ok(read_answer::<Restored>(answer)?.notes()),
            Err(error) => {
                pending.keep().map_err(Error::Store)?;
                let lost = format!("the variables could not be restored: {}", error.message());
                Ok(vec![lost, format!("they are in the save {id}; open_session(restore=…) tries again")])
            }
        }
    }
}

/// Why a call without a target means no session.
fn no_own(caller: &Caller) -> Error {
    if caller.default_session == DefaultSession::Fresh { Error::NoOwn } else { Error::NoDefault }
}

pub(super) fn named(target: &str) -> &str {
    target.strip_prefix("session:").unwrap_or(target)
}

fn save_id(session: &Session) -> String {
    format!("{}-{}-{}", session.info.name, session.info.handle, session.status().cell)
}

/// In words that are the same in the next daemon; none for callers that have no default.
pub(super) fn default_key(default: &DefaultSession) -> Option<String> {
    match default {
        DefaultSession::ProcessTree(process) => Some(format!("tree {} {}", process.pid, process.started)),
        DefaultSession::McpSession(id) => Some(format!("mcp {id}")),
        DefaultSession::Main => Some("main".to_owned()),
        DefaultSession::Fresh => None,
    }
}

/// A session that has no process, as it is listed.
pub fn stopped_status(definition: &Definition) -> Status {
    Status {
        name: definition.name.clone(),
        handle: definition.handle.clone(),
        state: State::Stopped,
        cell: definition.cell,
        executable: definition.python.clone().unwrap_or_default(),
        sandbox: definition.sandbox.profile().to_owned(),
        cwd: definition.cwd.display().to_string(),
        description: definition.description.clone(),
        opened_at: definition.opened_at.clone(),
        last_used_at: definition.last_used_at.clone(),
        keep: definition.keep,
        ..Status::default()
    }
}

/// Directories of sessions that an earlier daemon left and that will not come back. Blocks, before there are sessions.
pub(super) fn remove_left_directories(parts: &Arc<super::Parts>, stopped: &[Definition]) {
    confine::claim_outer_ids(parts.workspaces.path());
    let is_known = |handle: &str| stopped.iter().any(|definition| definition.handle == handle);
    match parts.workspaces.left_behind(&parts.clock, is_known) {
        Ok(left) => left.owners.into_iter().for_each(confine::skip_outer_id),
        Err(error) => tracing::warn!(%error, "directories of old sessions could not be looked at"),
    }
}

/// Definitions that an earlier daemon left.
pub(super) fn load(parts: &Arc<super::Parts>) -> Vec<Definition> {
    parts.store.load(Some(parts.clock.oldest(SAVED_FOR)))
}
