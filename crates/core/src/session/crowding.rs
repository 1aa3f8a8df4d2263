//! Looks, on a thread of its own, how many processes of confined sessions want to run, for as long as anything runs in one of them.

use std::{
    sync::{Arc, OnceLock, Weak},
    thread::Thread,
    time::Duration,
};

use super::{Session, Sessions, State};
use pylair_os::event_loop::thread_time;
use pylair_sandbox::{
    crowd::{self, Crowd, Seen},
    processes::{Process, pids_of},
    share,
};

/// How long nobody is waited for before it is asked whether there are sessions at all.
const REST: Duration = Duration::from_mins(1);
/// Looking takes at most one part in so many of a processor.
const COST: u32 = 3;

const DEFIANT: &str =
    "too many of the session's processes wanted to run at once, and those that were stopped for it were made to go on";

/// Wakes the thread.
#[derive(Debug, Default)]
pub(super) struct Bell(OnceLock<Thread>);

impl Bell {
    /// Something begins to run.
    pub(super) fn ring(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// Starts looking.
pub(super) fn start(sessions: &Arc<Sessions>) {
    let mine = Arc::downgrade(sessions);
    match std::thread::Builder::new().name("pylair-crowd".to_owned()).spawn(move || look_on(&mine)) {
        // Nobody else sets it.
        Ok(thread) => drop(sessions.parts.crowding.0.set(thread.thread().clone())),
        Err(error) => tracing::warn!(%error, "nobody looks how many processes of sessions want to run"),
    }
}

fn look_on(sessions: &Weak<Sessions>) {
    share::come_first();
    let mut crowd = Crowd::default();
    let mut pause = None;
    loop {
        match pause {
            Some(pause) => std::thread::sleep(pause),
            None => std::thread::park_timeout(REST),
        }
        let Some(sessions) = sessions.upgrade() else { return };
        let active = sessions.active(&crowd);
        if active.is_empty() && crowd.is_empty() {
            pause = None;
            continue;
        }
        let began = thread_time();
        if !crowd.is_empty() || !crowd::is_quiet() {
            let seen: Vec<_> = active.iter().filter_map(|session| session.seen(&sessions)).collect();
            for handle in crowd.look(&seen) {
                let session = active.iter().find(|session| session.info.handle == handle);
                let seen = seen.iter().find(|seen| seen.handle == handle);
                session.zip(seen).into_iter().for_each(|(session, seen)| session.end_defiant(seen));
            }
        }
        let cost = thread_time().saturating_sub(began);
        if !crowd.is_empty() {
            tracing::debug!(sessions = active.len(), ?cost, stopped = crowd.count(), "processes take turns");
        }
        pause = Some(crowd.pause().max(cost * COST));
    }
}

impl Sessions {
    /// The confined sessions in which something may run.
    fn active(&self, crowd: &Crowd) -> Vec<Session> {
        let registry = self.registry.lock().expect("no panic while locked");
        let is_active = |session: &&Session| {
            let live = session.live.lock().expect("no panic while locked");
            live.state == State::Busy || live.standing.has_stepped_back() || crowd.holds(&session.info.handle)
        };
        let open = registry.open.values().filter(|session| session.info.terms.profile.is_confined());
        let starting = registry.starting.values().filter(|session| session.info.terms.profile.is_confined());
        open.filter(is_active).chain(starting).cloned().collect()
    }
}

impl Sessions {
    /// The workers and frozen copies of the sessions below a keeper, of which there are several when one was branched off.
    fn kept_below(&self, keeper: i32) -> Vec<Vec<i32>> {
        let registry = self.registry.lock().expect("no panic while locked");
        let all = registry.open.values().chain(registry.starting.values());
        all.filter_map(|session| {
            let live = session.live.lock().expect("no panic while locked");
            let is_below = live.keeper == Some(keeper);
            is_below.then(|| live.copies.iter().copied().chain(live.pid).collect())
        })
        .collect()
    }
}

impl Session {
    fn seen<'a>(&'a self, sessions: &'a Sessions) -> Option<Seen<'a>> {
        let live = self.live.lock().expect("no panic while locked");
        let (worker, keeper, group) = (live.pid?, live.keeper, live.group.clone());
        let may_stop_worker = live.state == State::Busy && !live.is_being_ended;
        let is_active = live.state == State::Busy || live.standing.has_stepped_back();
        let copies = live.copies.clone();
        drop(live);
        let others = move || {
            let roots: Vec<_> = std::iter::once(worker).chain(keeper).collect();
            let mut found = pids_of(&roots, group.as_deref());
            let kept = keeper.map(|keeper| sessions.kept_below(keeper)).unwrap_or_default().concat();
            found.retain(|pid| !roots.contains(pid) && !kept.contains(pid));
            found
        };
        Some(Seen {
            handle: self.info.handle.clone(),
            worker,
            may_stop_worker,
            is_active,
            copies,
            keeper,
            is_alone: keeper.is_some_and(|keeper| sessions.kept_below(keeper).len() == 1),
            others: Box::new(others),
        })
    }

    /// Ends what runs in a session whose processes cannot be stopped.
    fn end_defiant(&self, seen: &Seen<'_>) {
        let worker = self.live.lock().expect("no panic while locked").pid;
        let victims: Vec<_> = (seen.others)().into_iter().chain(worker).filter_map(Process::read).collect();
        self.end_processes(&victims, DEFIANT.to_owned());
    }
}
