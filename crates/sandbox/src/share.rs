//! Which sessions get a processor first when there are too few: those that answer before those that compute.
//!
//! A confined session whose cell runs for longer than [`PATIENCE`], or whose processes used a good part of a processor when `watch` last
//! looked, steps back: it gets what others leave, and all who step back share that evenly. It steps forward when that is over. On an
//! idle machine nobody notices any of it.
//!
//! The kernel has three orders. What is in a group for processors (`cgroup`) gets the group's share, whatever its processes do. Else,
//! where each session of processes is scheduled as one (autogroups), their niceness counts, which anybody may set and take back.
//! Elsewhere that of processes counts, which only root may take back, so under anybody else only the slices are made longer, by which
//! whoever asks for less comes first (Linux 6.12). Called by `session`; the daemon calls [`stand_out`].

use std::{collections::HashMap, fs, sync::LazyLock, time::Duration};

use rustix::process::{Pid, Uid, getpriority_process, setpriority_pgrp, setpriority_process, setpriority_user};

use super::{cgroup::Group, processes::Process};
use pylair_keeper::slices::{set_slice, shorten_slices};

/// How long a cell may run before its session steps back.
pub const PATIENCE: Duration = Duration::from_millis(200);

/// How much lower than the daemon confined sessions stand, always.
pub const STEP: i32 = 2;

const LOWEST: i32 = 19;
const HELD_BACK: i32 = 5;
/// Processes of one session that want to run at once.
pub const MANY: usize = 4;
/// A slice that is much longer than the usual one. Not the longest: who was preempted with a lock in hand that others need has to come
/// back to a processor.
const LONG_SLICE: Duration = Duration::from_millis(20);
/// So many threads of a worker are reached at most.
const MAX_THREADS: usize = 64;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Share {
    #[default]
    Usual,
    /// For many that want to run at once: forks wait for each other in the kernel, also those of sessions that came from the same
    /// template, so whoever is in the middle of one has to come out of it.
    Tenth,
    /// What others leave.
    Rest,
}

/// Why a session stands where it stands.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    /// Its cell has run for long.
    pub runs_long: bool,
    /// Its processes use the processors, whatever its cells do.
    pub burns: bool,
    /// More of its processes than [`MANY`] want to run.
    pub are_many: bool,
    given: Share,
}

impl Standing {
    /// Gives a session what it is due, if it has something else.
    pub fn settle(&mut self, members: Members, group: Option<&Group>) {
        let due = if self.runs_long || self.burns { Share::Rest } else { Share::Usual };
        if self.given != due {
            self.given = due;
            members.give(due);
        }
        if let Some(group) = group {
            group.give(if due == Share::Rest && self.are_many { Share::Tenth } else { due });
        }
    }

    /// What ran in it is over, and its worker goes back: whoever waits for that waits for no others.
    pub fn begin_anew(&mut self) {
        let given = self.given;
        *self = Self { given, ..Self::default() };
    }

    pub fn has_stepped_back(&self) -> bool {
        self.given == Share::Rest
    }

    /// A cell is over that ran for long: what it left running may go on, which the next look tells.
    pub fn end_cell(&mut self) {
        self.burns |= std::mem::take(&mut self.runs_long);
    }

    /// Moves processes that made a session of their own, and are not reached with the worker.
    pub fn move_others(&self, processes: &[Process]) {
        if !self.has_stepped_back() {
            return;
        }
        let mut sessions: HashMap<i32, (i32, usize)> = HashMap::new();
        for process in processes.iter().filter(|process| process.wants_to_run()) {
            sessions.entry(process.session).or_insert((process.pid, 0)).1 += 1;
        }
        for (pid, wanting) in sessions.into_values() {
            set_autogroup(pid, if wanting > MANY { Share::Tenth } else { Share::Rest });
        }
    }
}

/// Who is meant.
#[derive(Debug, Clone, Copy)]
pub struct Members {
    /// Leads the group that its children are in, unless they leave it.
    pub worker: i32,
    pub keeper: Option<i32>,
    /// Who they are outside, if nobody else is.
    pub user: Option<u32>,
}

impl Members {
    /// Those who are gone meanwhile, or whom the kernel does not let us move, stay where they are. Whoever got the pid of one who is
    /// gone has another niceness for it, and no more.
    fn give(&self, share: Share) {
        set_autogroup(self.worker, share);
        if *MAY_RISE {
            let nice = match share {
                Share::Usual => *USUAL,
                Share::Tenth | Share::Rest => LOWEST,
            };
            let _gone = match self.user {
                Some(user) => setpriority_user(Uid::from_raw(user), nice),
                None => setpriority_pgrp(Pid::from_raw(self.worker), nice),
            };
            if let Some(keeper) = self.keeper {
                let _gone = setpriority_process(Pid::from_raw(keeper), *USUAL);
            }
        } else {
            let threads = fs::read_dir(format!("/proc/{}/task", self.worker)).into_iter().flatten().flatten();
            for thread in threads.take(MAX_THREADS) {
                if let Some(thread) = thread.file_name().to_str().and_then(|name| name.parse().ok()) {
                    set_slice(thread, if share == Share::Usual { Duration::ZERO } else { LONG_SLICE });
                }
            }
        }
    }
}

fn set_autogroup(pid: i32, share: Share) {
    let nice = match share {
        Share::Usual => 0,
        Share::Tenth => 10,
        Share::Rest => LOWEST,
    };
    // Not every kernel has it, and only root may do this more than ten times a second.
    let _refused = fs::write(format!("/proc/{pid}/autogroup"), nice.to_string());
}

/// Lets whoever makes sessions come after those that are there: making one is much work, and anybody may ask for many.
pub fn hold_back(process: u32) {
    let _refused = fs::write(format!("/proc/{process}/autogroup"), HELD_BACK.to_string());
}

/// Lets the thread that asks come first among the daemon's own and, in whatever way there is, before others.
pub fn come_first() {
    // Of a thread, not of the process.
    let refused = setpriority_process(None, -LOWEST).is_err();
    if refused {
        shorten_slices();
    }
}

/// Lets the daemon come before what it serves, where it may.
pub fn stand_out() {
    if !*MAY_RISE {
        shorten_slices();
    }
    // SAFETY: two calls without pointers. Not by way of a type for pids: a session whose leader is in another pid namespace, as in a
    // container that was entered, is 0.
    let leads = unsafe { libc::getsid(0) == libc::getpid() };
    // Whoever shares our terminal must not stand out with us.
    if leads {
        let _refused = fs::write("/proc/self/autogroup", "-10");
    }
}

/// The niceness of confined sessions.
static USUAL: LazyLock<i32> = LazyLock::new(|| (getpriority_process(None).unwrap_or_default() + STEP).min(LOWEST));

/// Whoever stepped back can be brought forward again.
static MAY_RISE: LazyLock<bool> = LazyLock::new(|| {
    let may = rustix::thread::CapabilitySet::SYS_NICE;
    rustix::thread::capabilities(None).is_ok_and(|held| held.effective.contains(may))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ran_long_stays_back_until_somebody_looks() {
        let nobody = Members { worker: i32::MAX, keeper: None, user: None };
        let mut standing = Standing { runs_long: true, ..Standing::default() };
        standing.settle(nobody, None);
        assert!(standing.has_stepped_back());
        standing.end_cell();
        standing.settle(nobody, None);
        assert!(standing.has_stepped_back(), "what the cell left may still run");
        standing.burns = false;
        standing.settle(nobody, None);
        assert!(!standing.has_stepped_back());
        standing.end_cell();
        assert!(!standing.burns, "a short cell is nothing to look at");
    }
}
