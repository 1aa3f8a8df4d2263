//! Confined workers made ahead. Namespaces, a root of its own and walls that were tried take many times as long as a fork, so for each
//! kind of sandbox that was asked for some workers wait with all that: a handle, a directory, a place for packages, a group of the
//! kernel's. The next session of that kind is made of one of them, and nothing of anybody's has run in it.
//!
//! Called by `sessions`. Not for sessions that were given paths: those are looked at when they are asked for.

use std::{
    io,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use super::{Parts, sessions::new_handle, watching::enclose};
use crate::packages::Environment;
use pylair_files::{OwnDirectory, Workspace};
use pylair_os::{budget::Shares, open_files};
use pylair_python::Interpreter;
use pylair_sandbox::{
    Terms, Wish,
    confine::{self, SessionDirectory, WORKSPACE},
};
use pylair_workers::{
    link::{self, Link},
    template::{Key, Wanted},
};

/// How long after a session was opened the next worker is made, so that it does not get in the way of the one that is starting.
const DELAY: Duration = Duration::from_millis(5);
/// How many workers of a kind wait, so that those who come in a row all find one.
const DEPTH: usize = 2;
/// How many kinds are remembered; of whoever asked for most the one unused for longest goes first.
const MAX_KINDS: usize = 4;
/// What a worker sees of the system was settled when it was made.
const MAX_AGE: Duration = Duration::from_mins(10);

/// What sessions must have in common to be made of the same workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    key: Key,
    interpreter: Interpreter,
    terms: Terms,
}

impl Kind {
    /// Who asked for it first.
    fn owner(&self) -> &Arc<str> {
        self.key.owner()
    }

    /// None where the sandbox cannot be made before it is asked for.
    pub fn new(wanted: &Wanted<'_>, terms: &Terms) -> Option<Self> {
        // What may be a project's is run in no sandbox but its session's.
        if wanted.inside
            || !terms.profile.is_confined()
            || !terms.allow_read.is_empty()
            || !terms.allow_write.is_empty()
        {
            return None;
        }
        // How it was asked for, and what is passed on of an environment, come with the session.
        let terms = Terms { wish: Wish::from(terms.profile.name()), env: Vec::new(), ..terms.clone() };
        Some(Self { key: Key::new(wanted), interpreter: wanted.interpreter.clone(), terms })
    }
}

/// A worker that waits for its session.
#[derive(Debug)]
pub(super) struct Ahead {
    pub handle: Arc<str>,
    pub workspace: Workspace,
    pub directory: Arc<OwnDirectory>,
    pub link: Box<Link>,
    environment: Arc<Environment>,
    made: Instant,
}

impl Ahead {
    async fn make(kind: &Kind, parts: &Parts) -> Result<Self, link::Error> {
        let handle: Arc<str> = new_handle().into();
        let (workspaces, owner) = (parts.workspaces.clone(), confine::new_outer_id());
        let environment = parts.packages.environment(&handle);
        let (for_directory, shown) = (handle.clone(), environment.clone());
        let made = tokio::task::spawn_blocking(move || {
            shown.show_to_confined();
            workspaces.make(&for_directory, WORKSPACE.as_ref(), owner)
        });
        let made = made.await.map_err(std::io::Error::other).and_then(|made| made);
        let (workspace, directory) = match made {
            Ok(made) => made,
            Err(error) => {
                environment.release(&handle, false).await;
                return Err(link::Error::Descriptors(error));
            }
        };
        let place = SessionDirectory {
            directory: &workspace.path,
            seen_as: &workspace.seen_as,
            packages: environment.directory(),
            outer_id: workspace.owner,
        };
        let opened = Link::ahead(&parts.probes, &kind.key, &kind.interpreter, &kind.terms, place).await;
        let link = match opened {
            Ok(link) => Box::new(link),
            Err(error) => {
                environment.release(&handle, false).await;
                return Err(error);
            }
        };
        let groups = parts.groups().await;
        let limits = kind.terms.limits;
        let members = (link.pid(), link.keeper_pid());
        if let Some(group) = enclose(groups, handle.clone(), limits, members, Arc::default()).await
            && let Some(family) = link.family().upgrade()
        {
            family.hold_group(group);
        }
        Ok(Self { handle, workspace, directory: Arc::new(directory), link, environment, made: Instant::now() })
    }

    async fn discard(self) {
        self.link.close().await;
        if let Some(directory) = Arc::into_inner(self.directory) {
            directory.remove().await;
        }
        self.environment.release(&self.handle, false).await;
    }
}

#[derive(Debug)]
struct Slot {
    kind: Kind,
    ready: Vec<Ahead>,
    is_making: bool,
    used: Instant,
}

#[derive(Debug, Default)]
struct Slots {
    all: Vec<Slot>,
    is_closed: bool,
}

impl Slots {
    /// Of whoever has asked for most kinds, the one that is asked for now included, the one unused for longest.
    fn least_needed(&self, asker: &Arc<str>) -> Option<usize> {
        let mut shares = Shares::default();
        self.all.iter().for_each(|slot| shares.add(slot.kind.owner(), 1));
        shares.add(asker, 1);
        let largest = shares.largest(|owner| self.all.iter().any(|slot| &**slot.kind.owner() == owner))?;
        let of_largest = (0..self.all.len()).filter(|at| *self.all[*at].kind.owner() == largest);
        of_largest.min_by_key(|at| self.all[*at].used)
    }
}

/// All workers that wait.
#[derive(Debug, Default)]
pub(super) struct Nest(Mutex<Slots>);

impl Nest {
    /// One that is as good as new, if there is one.
    pub fn take(&self, kind: &Kind, parts: &Parts) -> Option<Ahead> {
        let mut slots = self.0.lock().expect("no panic while locked");
        let slot = slots.all.iter_mut().find(|slot| slot.kind == *kind)?;
        slot.used = Instant::now();
        while let Some(ahead) = slot.ready.pop() {
            if ahead.made.elapsed() < MAX_AGE && ahead.link.is_usable(&parts.probes, &kind.key) {
                return Some(ahead);
            }
            pylair_os::event_loop::spawn(ahead.discard());
        }
        None
    }

    /// Puts back what was taken and not used.
    pub fn give_back(&self, kind: Option<&Kind>, ahead: Option<Ahead>) {
        let (Some(kind), Some(ahead)) = (kind, ahead) else { return };
        let mut slots = self.0.lock().expect("no panic while locked");
        match slots.all.iter_mut().find(|slot| slot.kind == *kind) {
            Some(slot) if slot.ready.len() < DEPTH => slot.ready.push(ahead),
            // Another was made in its place meanwhile.
            _ => drop(pylair_os::event_loop::spawn(ahead.discard())),
        }
    }

    /// Makes as many as there shall be of a kind, one after the other, behind everybody's back.
    pub fn fill(self: &Arc<Self>, kind: Kind, parts: &Arc<Parts>) {
        {
            let mut slots = self.0.lock().expect("no panic while locked");
            if slots.is_closed {
                return;
            }
            if let Some(slot) = slots.all.iter_mut().find(|slot| slot.kind == kind) {
                if slot.is_making || slot.ready.len() >= DEPTH {
                    return;
                }
                slot.is_making = true;
            } else {
                if slots.all.len() >= MAX_KINDS
                    && let Some(oldest) = slots.least_needed(kind.owner())
                {
                    for ahead in slots.all.swap_remove(oldest).ready {
                        pylair_os::event_loop::spawn(ahead.discard());
                    }
                }
                let slot = Slot { kind: kind.clone(), ready: Vec::new(), is_making: true, used: Instant::now() };
                slots.all.push(slot);
            }
        }
        let (nest, parts) = (Arc::downgrade(self), Arc::downgrade(parts));
        pylair_os::event_loop::spawn(async move {
            tokio::time::sleep(DELAY).await;
            while let Some(parts) = parts.upgrade() {
                let room = open_files::check(2 * open_files::FOR_SESSION)
                    .map_err(|full| link::Error::Descriptors(io::Error::other(full)));
                let made = match room {
                    Ok(()) => Ahead::make(&kind, &parts).await,
                    Err(error) => Err(error),
                };
                if !Self::keep(&nest, &kind, made) {
                    break;
                }
            }
        });
    }

    /// Whether another one is wanted.
    fn keep(nest: &Weak<Self>, kind: &Kind, made: Result<Ahead, link::Error>) -> bool {
        let made = made.inspect_err(|error| tracing::debug!(%error, "a confined worker could not be made ahead")).ok();
        let Some(nest) = nest.upgrade() else { return false };
        let mut slots = nest.0.lock().expect("no panic while locked");
        let is_open = !slots.is_closed;
        match (made, slots.all.iter_mut().find(|slot| slot.kind == *kind)) {
            (Some(ahead), Some(slot)) if is_open && slot.ready.len() < DEPTH => {
                slot.ready.push(ahead);
                slot.is_making = slot.ready.len() < DEPTH;
                slot.is_making
            }
            (made, slot) => {
                made.map(|ahead| pylair_os::event_loop::spawn(ahead.discard()));
                if let Some(slot) = slot {
                    slot.is_making = false;
                }
                false
            }
        }
    }

    /// Ends all of them; no more are made.
    pub async fn close(&self) {
        let all = {
            let mut slots = self.0.lock().expect("no panic while locked");
            slots.is_closed = true;
            std::mem::take(&mut slots.all)
        };
        futures::future::join_all(all.into_iter().flat_map(|slot| slot.ready).map(Ahead::discard)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use pylair_sandbox::{Profile, Settings, paths::Protected, rules::Asker};

    fn kind(owner: &str, memory_mb: u64) -> Kind {
        let wish = Wish::from_json(serde_json::json!({"profile": "sealed", "memory_mb": memory_mb})).unwrap();
        let asker = Asker { is_admin: true, chosen: None, default: Profile::Sealed };
        let terms = Terms::settle(Some(wish), asker, &Settings::default(), &Protected::default()).unwrap();
        let interpreter = Interpreter {
            executable: "/usr/bin/python3".into(),
            version: "3.12.1".into(),
            implementation: "cpython".into(),
            prefix: "/usr".into(),
            base_prefix: "/usr".into(),
            base_executable: "/usr/bin/python3".into(),
            exec_prefix: "/usr".into(),
            base_exec_prefix: "/usr".into(),
            site_packages: Vec::new(),
            within: Vec::new(),
        };
        let wanted = Wanted {
            interpreter: &interpreter,
            base: None,
            env: &BTreeMap::new(),
            preload: &[],
            python_path: &[],
            owner: &owner.into(),
            confined: true,
            sandboxed: true,
            inside: false,
        };
        Kind::new(&wanted, &terms).unwrap()
    }

    #[test]
    fn many_kinds_of_one_owner_take_none_of_anothers() {
        let began = Instant::now();
        let slot = |kind, at| Slot { kind, ready: Vec::new(), is_making: false, used: began + Duration::from_secs(at) };
        let mut slots = Slots { all: vec![slot(kind("quiet", 100), 0), slot(kind("quiet", 200), 1)], is_closed: false };
        slots.all.extend([slot(kind("busy", 300), 2), slot(kind("busy", 400), 3)]);
        for next in 4..20 {
            let least = slots.least_needed(&"busy".into()).unwrap();
            assert_eq!(&**slots.all[least].kind.owner(), "busy");
            slots.all[least] = slot(kind("busy", 100 + next), next);
        }
        assert!(slots.least_needed(&"other".into()).is_some());
    }
}
