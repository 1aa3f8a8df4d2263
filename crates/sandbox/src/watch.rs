//! What the kernel does not hold of a confined session: sums over all its processes, its files on disk, its time. Looked at every
//! second, on a blocking thread, and told to the session's task, which acts. Of a session in which nothing has run since the last
//! look only its few processes that could run are read. Called by `session`.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    Limits,
    disk::{Disk, Excess, Files, Turn},
    processes::Process,
    share::MANY,
};

/// How often sessions are looked at.
pub const TICK: Duration = Duration::from_secs(1);
/// And how often while one of them uses the processors more than others should notice.
pub const HASTE: Duration = Duration::from_millis(300);
/// How often a session in which nothing runs is looked at as if something did: files are also written by the daemon.
const STILL_FOR: Duration = Duration::from_mins(1);
/// Of one processor, from one look to the next: who uses more lets others come first.
const MUCH_PERCENT: u128 = 30;

/// A limit that was passed, and who has to go for it.
#[derive(Debug)]
pub enum Passed {
    Memory { mb: u64, victims: Vec<Process> },
    Disk { excess: Excess, victims: Vec<Process> },
    Cpu { seconds: u64 },
}

/// What is remembered of a session from one look to the next.
#[derive(Debug, Default)]
pub struct Watched {
    /// Processor time of processes that nobody waited for is gone from `/proc`, but not from here.
    ticks: u64,
    /// What each process had used at the last look, itself and by those it waited for, and when that was.
    seen: HashMap<(i32, u64), (u64, u64)>,
    seen_at: Option<Instant>,
    /// When it was last found that something had run.
    ran_at: Option<Instant>,
    still: Option<Still>,
    disk: Disk,
    /// The memory of processes that are stopped, with the processor time they had used by then: to ask the kernel is expensive.
    shares: HashMap<(i32, u64), (u64, u64)>,
}

/// A session in which nothing happened from one look to the next.
#[derive(Debug)]
struct Still {
    since: Instant,
    read: Option<Instant>,
    worker: i32,
    /// Those that could do something: not the keeper, which only reacts, nor frozen copies.
    processes: Vec<Process>,
}

/// A session as it is looked at.
pub struct Look<'a> {
    pub limits: &'a Limits,
    pub worker: i32,
    pub keeper: Option<i32>,
    /// Frozen copies of the worker, which do nothing and are what it is brought back from.
    pub copies: &'a [i32],
    /// The directory that is its own, if it has one.
    pub directory: Option<&'a Path>,
    /// The kernel counts its memory.
    pub memory_is_held: bool,
    /// Finds its processes as they are now.
    pub again: &'a dyn Fn() -> Vec<Process>,
    pub turn: &'a Turn,
}

impl Look<'_> {
    /// Whether a process does something by itself: not the keeper, nor a frozen copy.
    fn may_run(&self, process: &Process) -> bool {
        Some(process.pid) != self.keeper && !self.copies.contains(&process.pid)
    }
}

impl Watched {
    /// Whether nothing has run in the session since it was last looked at, so that nothing can have changed.
    pub fn is_still(&mut self, at: &Look<'_>) -> bool {
        let is_as_before = |before: &Process| Process::read(before.pid).is_some_and(|now| now.has_rested_since(before));
        let now = Instant::now();
        let still = self.still.as_mut().is_some_and(|still| {
            if still.worker != at.worker || now - still.since > STILL_FOR {
                return false;
            }
            // When others are looked at in haste, this one is not.
            let was_just_read = still.read.is_some_and(|read| now - read < TICK * 9 / 10);
            still.read = still.read.filter(|_| was_just_read).or(Some(now));
            was_just_read || still.processes.iter().all(is_as_before)
        });
        if !still {
            self.still = None;
        }
        still
    }

    /// When the session should be looked at again, if sooner than others.
    pub fn look_again(&self) -> Option<Duration> {
        self.disk.look_again()
    }

    /// Whether something ran in the session when it was last looked at.
    pub fn is_active(&self) -> bool {
        self.still.is_none()
    }

    /// Whether a session's processes use the processors so much that others come first. Those who are kept from it use little, but want
    /// to run whenever one looks, so whoever stepped back once stays there until nobody does.
    pub fn burns(&mut self, mine: &[Process], at: &Look<'_>, has_stepped_back: bool) -> bool {
        let now = Instant::now();
        let elapsed = self.seen_at.replace(now).map_or(TICK, |before| now - before);
        let are_the_same = self.seen.len() == mine.len() && mine.iter().all(|one| self.seen.contains_key(&one.key()));
        let ticks = self.count(mine);
        let wanting = mine.iter().filter(|process| process.wants_to_run()).count();
        let has_run = !are_the_same || ticks > 0 || wanting > 0;
        self.ran_at = if has_run { Some(now) } else { self.ran_at };
        if !has_run && (at.directory.is_none() || self.disk.is_settled(self.ran_at)) {
            let processes = mine.iter().filter(|process| at.may_run(process)).copied().collect();
            self.still = Some(Still { since: now, read: None, worker: at.worker, processes });
        }
        if has_stepped_back {
            return wanting > 0;
        }
        let second = rustix::param::clock_ticks_per_second().max(1);
        let is_much = u128::from(ticks) * 1000 * 100 > elapsed.as_millis() * u128::from(second) * MUCH_PERCENT;
        is_much || wanting > MANY
    }

    /// How much processor time was used since this was last asked. What was seen of a process that has ended is counted already, and may
    /// be part of what whoever waited for it has now.
    fn count(&mut self, mine: &[Process]) -> u64 {
        let now: HashMap<_, _> =
            mine.iter().map(|process| (process.key(), (process.ticks, process.waited_ticks))).collect();
        let (mut own, mut waited) = (0, 0);
        for (process, (ticks, waited_ticks)) in &now {
            let (ticks_before, waited_before) = self.seen.get(process).copied().unwrap_or_default();
            own += ticks.saturating_sub(ticks_before);
            waited += waited_ticks.saturating_sub(waited_before);
        }
        let ended = self.seen.iter().filter(|(process, _)| !now.contains_key(process));
        let counted: u64 = ended.map(|(_, (ticks, waited_ticks))| ticks + waited_ticks).sum();
        let used = own + waited.saturating_sub(counted);
        self.seen = now;
        self.ticks += used;
        used
    }

    /// Looks at a session's processes once, after [`Self::burns`]. Blocks.
    pub fn look(&mut self, mine: &[Process], at: &Look<'_>) -> Option<Passed> {
        let second = rustix::param::clock_ticks_per_second().max(1);
        if at.limits.cpu_s.is_some_and(|limit| self.ticks > limit.saturating_mul(second)) {
            return Some(Passed::Cpu { seconds: self.ticks.div_ceil(second) });
        }
        if !at.memory_is_held
            && let Some((mb, victims)) = self.too_large(mine, at.keeper, at.limits.memory_mb)
        {
            return Some(Passed::Memory { mb, victims });
        }
        let may_run = |processes: &[Process]| processes.iter().filter(|process| at.may_run(process)).copied().collect();
        let files = Files {
            directory: at.directory?,
            limit_mb: at.limits.disk_mb,
            mine,
            writers: &|| may_run(&(at.again)()),
            turn: at.turn,
        };
        let excess = self.disk.look(&files)?;
        Some(Passed::Disk { excess, victims: may_run(mine) })
    }

    /// The largest processes, whose end would leave room for the rest, and how much all have, when that is too much.
    fn too_large(&mut self, processes: &[Process], keeper: Option<i32>, limit_mb: u64) -> Option<(u64, Vec<Process>)> {
        let limit = limit_mb << 20;
        // Cheap and too much: pages that several share are counted for each.
        if processes.iter().map(|process| process.resident_bytes).sum::<u64>() <= limit {
            return None;
        }
        let mut sizes: Vec<(u64, Process)> =
            processes.iter().map(|process| (self.share_of(process), *process)).collect();
        let are_there: HashSet<_> = processes.iter().map(Process::key).collect();
        self.shares.retain(|process, _| are_there.contains(process));
        let total: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
        if total <= limit {
            return None;
        }
        sizes.retain(|(_, process)| Some(process.pid) != keeper);
        sizes.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut left = total;
        let mut victims = Vec::new();
        for (bytes, process) in sizes {
            if left <= limit {
                break;
            }
            left = left.saturating_sub(bytes);
            victims.push(process);
        }
        Some((total >> 20, victims))
    }

    /// A process's own memory and its part of what it shares.
    fn share_of(&mut self, process: &Process) -> u64 {
        if let Some((ticks, bytes)) = self.shares.get(&process.key())
            && process.is_stopped()
            && *ticks == process.ticks
        {
            return *bytes;
        }
        let bytes = share_of(process).unwrap_or(process.resident_bytes);
        if process.is_stopped() {
            self.shares.insert(process.key(), (process.ticks, bytes));
        }
        bytes
    }
}

/// Its own memory and its part of what it shares.
fn share_of(process: &Process) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid)).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;
    use crate::processes::Doing;

    const LIMITS: Limits = Limits {
        memory_mb: 64,
        processes: 8,
        open_files: 64,
        file_size_mb: 1,
        tmp_mb: 1,
        disk_mb: 1,
        cpu_s: None,
        wall_s: None,
    };

    static TURN: std::sync::LazyLock<Turn> = std::sync::LazyLock::new(Turn::default);

    fn looked_at(worker: i32) -> Look<'static> {
        Look {
            limits: &LIMITS,
            worker,
            keeper: None,
            copies: &[],
            directory: None,
            memory_is_held: true,
            again: &Vec::new,
            turn: &TURN,
        }
    }

    #[test]
    fn a_session_in_which_nothing_ran_is_still_until_something_does() {
        let work = "read line; number=0; while [ $number -lt 1000000 ]; do number=$((number + 1)); done";
        let mut child = Command::new("sh").args(["-c", work]).stdin(Stdio::piped()).spawn().unwrap();
        let worker = child.id().cast_signed();
        let at = looked_at(worker);
        let mut watched = Watched::default();
        let until = Instant::now() + Duration::from_mins(1);
        // A shell that starts also sleeps now and then before it waits for its line, so one look does not tell.
        let look_until_still = |watched: &mut Watched| {
            while !watched.is_still(&at) {
                assert!(Instant::now() < until, "{:?}", Process::read(worker));
                let mine: Vec<_> = Process::read(worker).into_iter().collect();
                watched.burns(&mine, &at, false);
            }
        };
        look_until_still(&mut watched);
        assert!(!watched.is_still(&looked_at(worker + 1)), "another worker was never looked at");
        assert!(watched.is_active());
        look_until_still(&mut watched);
        assert!(!watched.is_active());
        child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
        while watched.is_still(&at) {
            assert!(Instant::now() < until, "{:?}", Process::read(worker));
        }
        assert!(watched.is_active());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_stepped_back_stays_there_while_it_wants_to_run() {
        let second = rustix::param::clock_ticks_per_second();
        let process = |pid, ticks, wants_to_run| Process {
            pid,
            parent: 1,
            session: 7,
            started: 1,
            ticks,
            waited_ticks: 0,
            resident_bytes: 0,
            doing: if wants_to_run { Doing::Running } else { Doing::Asleep },
        };
        let mut watched = Watched::default();
        let at = looked_at(7);
        assert!(!watched.burns(&[process(7, 2, true)], &at, false), "an answer takes a moment");
        assert!(watched.burns(&[process(7, 2 + 10 * second, true)], &at, false));
        // It was hardly let run.
        assert!(watched.burns(&[process(7, 3 + 10 * second, true)], &at, true));
        assert!(!watched.burns(&[process(7, 3 + 10 * second, false)], &at, true));
        let storm: Vec<_> = (10..30).map(|pid| process(pid, 0, true)).collect();
        assert!(watched.burns(&storm, &at, false), "many that want to run at once");
    }

    #[test]
    fn processor_time_of_those_who_ended_stays_counted_and_is_counted_once() {
        let process = |pid, ticks, waited_ticks| Process {
            pid,
            parent: 1,
            session: 7,
            started: 1,
            ticks,
            waited_ticks,
            resident_bytes: 0,
            doing: Doing::Asleep,
        };
        let mut watched = Watched::default();
        for (mine, total) in [
            (vec![process(7, 10, 0), process(8, 100, 0)], 110),
            // It was waited for, and used a little more before that.
            (vec![process(7, 10, 105)], 115),
            (vec![process(7, 10, 105), process(9, 50, 0)], 165),
            // Nobody waited for it.
            (vec![process(7, 10, 105)], 165),
            // Another process, after a restart.
            (vec![process(20, 5, 0)], 170),
        ] {
            watched.count(&mine);
            assert_eq!(watched.ticks, total);
        }
    }
}
