//! Looks after confined sessions: counts what the kernel does not count, and ends what passed its limits.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use super::{Info, Live, Parts, Session, Sessions};
use pylair_os::event_loop::thread_time;
use pylair_sandbox::{
    Limits,
    cgroup::{self, Group, Groups},
    disk::Turn,
    processes::{Finder, Process},
    share::{MANY, Members},
    watch::{HASTE, Look, Passed, TICK, Watched},
};

/// How often a session may be stopped for its files before it is closed.
const MAX_STRIKES: u32 = 3;

/// Looking in haste takes at most one part in this many of a processor.
const COST: u32 = 9;

/// Looks at all confined sessions, again and again.
pub(super) async fn watch(sessions: Weak<Sessions>) {
    let mut watched: HashMap<Arc<str>, Watched> = HashMap::new();
    let turn = Turn::default();
    let mut pause = TICK;
    loop {
        tokio::time::sleep(pause).await;
        pause = TICK;
        let Some(sessions) = sessions.upgrade() else { return };
        let confined: Vec<Session> = {
            let registry = sessions.registry.lock().expect("no panic while locked");
            let is_confined = |session: &&Session| session.info.terms.profile.is_confined();
            registry.open.values().chain(registry.starting.values()).filter(is_confined).cloned().collect()
        };
        if confined.is_empty() {
            watched.clear();
            continue;
        }
        let mut known = std::mem::take(&mut watched);
        let mut before: Vec<_> = confined
            .into_iter()
            .map(|session| (known.remove(&session.info.handle).unwrap_or_default(), session))
            .collect();
        let counting = turn.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let began = thread_time();
            let finder = Finder::gentle();
            let passed: Vec<_> =
                before.iter_mut().map(|(watched, session)| session.look_over(watched, &finder, &counting)).collect();
            (before, passed, thread_time().saturating_sub(began))
        });
        let Ok((before, passed, cost)) = looked.await else { continue };
        for ((seen, session), passed) in before.into_iter().zip(passed) {
            if let Some(reason) = passed {
                session.info.record_denied(&session.parts, &reason);
                if sessions.end(&session, &reason, None).await {
                    sessions.put_away(&session, false).await;
                }
            } else {
                let is_hurried = seen.is_active();
                if is_hurried {
                    pause = pause.min(seen.look_again().unwrap_or(TICK));
                }
                watched.insert(session.info.handle.clone(), seen);
                // Whoever burns may make processes that have to be found and moved.
                if is_hurried && session.live.lock().expect("no panic while locked").standing.has_stepped_back() {
                    pause = pause.min(HASTE.max(cost * COST));
                    session.parts.crowding.ring();
                }
            }
        }
    }
}

impl Session {
    /// Ends processes that passed a limit. Returns why the session itself has to end, if it has. Blocks.
    fn look_over(&self, watched: &mut Watched, finder: &Finder, turn: &Turn) -> Option<String> {
        let limits = &self.info.terms.limits;
        let (worker, keeper, copies, opened, group) = {
            let live = self.live.lock().expect("no panic while locked");
            (live.pid, live.keeper, live.copies.clone(), live.opened, live.group.clone())
        };
        if let Some(wall_s) = limits.wall_s.filter(|wall_s| opened.elapsed().as_secs() >= *wall_s) {
            return Some(format!("its time of {wall_s} s is over"));
        }
        let worker = worker?;
        let roots: Vec<_> = std::iter::once(worker).chain(keeper).collect();
        let look = Look {
            limits,
            worker,
            keeper,
            copies: &copies,
            directory: self.info.own_directory(),
            memory_is_held: group.as_ref().is_some_and(|group| group.held.memory),
            again: &|| Finder::default().of(&roots, group.as_deref()),
            turn,
        };
        if watched.is_still(&look) {
            return None;
        }
        let mine = finder.of(&roots, group.as_deref());
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.standing.burns = watched.burns(&mine, &look, live.standing.has_stepped_back());
            live.standing.are_many = mine.iter().filter(|process| process.wants_to_run()).count() > MANY;
            live.settle(&self.info);
            live.standing.move_others(&mine);
        }
        match watched.look(&mine, &look)? {
            Passed::Cpu { seconds } => {
                Some(format!("its processes have used {seconds} s of processor time, and may use {} s", limits.cpu_s?))
            }
            Passed::Memory { mb, victims } => {
                self.end_processes(
                    &victims,
                    format!("the session used {mb} MB of memory, and may use {} MB", limits.memory_mb),
                );
                None
            }
            Passed::Disk { excess, victims } => {
                if excess.strikes >= MAX_STRIKES {
                    return Some(excess.to_string());
                }
                self.end_processes(&victims, format!("{excess}: delete some"));
                None
            }
        }
    }

    pub(super) fn end_processes(&self, victims: &[Process], reason: String) {
        self.info.record_denied(&self.parts, &reason);
        // Before anybody can see that they are gone.
        self.live.lock().expect("no panic while locked").ended_for = Some(reason);
        for victim in victims {
            victim.end();
        }
    }
}

impl Live {
    /// Gives a confined session its share of the processors.
    pub(super) fn settle(&mut self, info: &Info) {
        let Some(worker) = self.pid.filter(|_| info.terms.profile.is_confined()) else { return };
        let members = Members { worker, keeper: self.keeper, user: info.workspace.owner };
        self.standing.settle(members, self.group.as_deref());
    }

    /// Why a process of the session was ended, if it was us or the kernel on our behalf. The worker may be alive.
    pub(super) fn take_ended_for(&mut self, info: &Info, parts: &Parts) -> Option<String> {
        let out_of_memory = self.group.as_ref().is_some_and(|group| group.was_out_of_memory());
        let memory = || {
            let reason = format!("the session used more than its {} MB of memory", info.terms.limits.memory_mb);
            info.record_denied(parts, &reason);
            reason
        };
        self.ended_for.take().or_else(|| out_of_memory.then(memory))
    }
}

/// Puts a session's processes into groups of their own, some time soon: version 1 takes milliseconds for it. Where code `has_run`
/// before that, memory it took is not counted by the kernel, nor is what children take that were on their way: it is watched on.
pub(super) async fn enclose(
    groups: Arc<Groups>,
    handle: Arc<str>,
    limits: Limits,
    (worker, keeper): (i32, Option<i32>),
    has_run: Arc<AtomicBool>,
) -> Option<Arc<Group>> {
    let enclosed = tokio::task::spawn_blocking(move || {
        let roots: Vec<_> = std::iter::once(worker).chain(keeper).collect();
        let started = Instant::now();
        let mut group = groups.enclose(&format!("{handle}-{worker}"), &limits, keeper, &|| cgroup::pids(&roots));
        group.held.memory &= !has_run.load(Ordering::SeqCst);
        tracing::debug!(%handle, held = ?group.held, took = ?started.elapsed(), "processes were put into groups");
        Arc::new(group)
    });
    enclosed.await.ok()
}
