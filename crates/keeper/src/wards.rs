//! Who belongs to which ward of a keeper: to the session it began with, or to one that was branched off.
//!
//! Nothing here is asked while there is one ward, to which everything below the keeper belongs. With more, a process belongs to the
//! youngest ward that anything speaks for: its parent, the leader of its process session, what was found when it was last looked at,
//! or the mark that a ward's first process passes on. Whom nothing speaks for belongs to the oldest ward.
//!
//! All of these are about ancestors: a parent and a session's leader are above a process however often it changed parents since. A
//! ward is made of a process of another, so of two wards above a process the younger one is nearer.
//!
//! The mark is a hard limit on real-time processor time a few microseconds below the keeper's own: hardly anybody changes it, and it
//! survives fork, exec, setsid and the death of every ancestor. Where the kernel does not let it be set, or a process lowered the
//! limit itself, one that made a process session of its own and lost its parent before anybody looked is taken for the oldest
//! ward's: the end of its own ward leaves it alive, and a sweep of the oldest kills it.

use super::tree::Process;

/// Ids are not used twice, and a younger ward's is higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WardId(u32);

impl WardId {
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What is known of processes in wards beside the oldest one.
#[derive(Debug)]
pub(super) struct Roll {
    /// The limit of who has no mark. A keeper may itself be below another one.
    unmarked: libc::rlim_t,
    /// In the order of their pids. Of the dead only leaders whose session goes on.
    known: Vec<WardProcess>,
}

#[derive(Debug, Clone, Copy)]
struct WardProcess {
    pid: i32,
    started: u64,
    ward: WardId,
}

impl Roll {
    pub(super) fn new() -> Self {
        Self { unmarked: limits(0).map_or(libc::RLIM_INFINITY, |limits| limits.rlim_max), known: Vec::new() }
    }

    /// Gives `first` and what is below it to a new ward. The arguments are those of [`Self::tell_apart`], `wards` with the new one.
    pub(super) fn admit(&mut self, first: &Process, processes: &[Process], wards: &[WardId]) {
        let Some(&ward) = wards.last() else { return };
        self.known.retain(|known| known.pid != first.pid);
        let position = self.known.partition_point(|known| known.pid < first.pid);
        self.known.insert(position, WardProcess { pid: first.pid, started: first.started, ward });
        let belongs = self.tell_apart(processes, wards);
        for (process, _) in processes.iter().zip(belongs).filter(|(_, belongs)| *belongs == ward) {
            self.set_mark(process.pid, ward);
        }
    }

    /// The ward of each of `processes`, which are all there are, in the order of their pids. `wards` are in the order of their age
    /// and at least one.
    pub(super) fn tell_apart(&mut self, processes: &[Process], wards: &[WardId]) -> Vec<WardId> {
        let alive = |ward: &WardId| wards.contains(ward);
        let position = |pid: i32| processes.binary_search_by_key(&pid, |process| process.pid).ok();
        let mut belongs = Vec::with_capacity(processes.len());
        let mut above = Vec::with_capacity(processes.len());
        for process in processes {
            let leader = position(process.session);
            let known = self.known(process.pid).filter(|known| known.started == process.started);
            let known_leader = if leader.is_none() { self.known(process.session) } else { None };
            let spoken =
                [known, known_leader].into_iter().flatten().map(|known| known.ward).chain(self.mark(process.pid));
            belongs.push(spoken.filter(alive).max().map_or(wards[0], |ward| ward.max(wards[0])));
            above.push([position(process.parent), leader]);
        }
        // Most parents have lower pids, so this is seldom done more than twice.
        let mut changed = true;
        while changed {
            changed = false;
            for (index, above) in above.iter().enumerate() {
                let nearest = above.iter().flatten().map(|&above| belongs[above]).fold(belongs[index], WardId::max);
                changed |= nearest != belongs[index];
                belongs[index] = nearest;
            }
        }
        self.remember(processes, &belongs, wards);
        belongs
    }

    fn known(&self, pid: i32) -> Option<WardProcess> {
        self.known.binary_search_by_key(&pid, |known| known.pid).ok().map(|index| self.known[index])
    }

    fn remember(&mut self, processes: &[Process], belongs: &[WardId], wards: &[WardId]) {
        let mut sessions: Vec<_> = processes.iter().map(|process| process.session).collect();
        sessions.sort_unstable();
        // The kernel gives no pid away while a session has it for its number.
        self.known.retain(|known| {
            wards.contains(&known.ward)
                && sessions.binary_search(&known.pid).is_ok()
                && processes.binary_search_by_key(&known.pid, |process| process.pid).is_err()
        });
        let ours = processes.iter().zip(belongs).filter(|(_, ward)| **ward != wards[0]);
        self.known.extend(ours.map(|(process, &ward)| WardProcess {
            pid: process.pid,
            started: process.started,
            ward,
        }));
        self.known.sort_unstable_by_key(|known| known.pid);
    }

    /// One that cannot be marked is told by the other signs.
    fn set_mark(&self, pid: i32, ward: WardId) {
        let Some((limits, limit)) = limits(pid).zip(self.unmarked.checked_sub(ward.0.into())) else { return };
        if limits.rlim_max > limit {
            let limits = libc::rlimit { rlim_cur: limits.rlim_cur.min(limit), rlim_max: limit };
            // SAFETY: the limits are read during the call.
            unsafe { libc::prlimit(pid, libc::RLIMIT_RTTIME, &raw const limits, std::ptr::null_mut()) };
        }
    }

    fn mark(&self, pid: i32) -> Option<WardId> {
        let below = self.unmarked.checked_sub(limits(pid)?.rlim_max)?;
        u32::try_from(below).ok().map(WardId)
    }
}

/// Those on real-time processor time.
fn limits(pid: i32) -> Option<libc::rlimit> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits are written during the call.
    let read = unsafe { libc::prlimit(pid, libc::RLIMIT_RTTIME, std::ptr::null(), &raw mut limits) } == 0;
    read.then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARDS: [WardId; 3] = [WardId(1), WardId(2), WardId(5)];

    /// Higher than any pid there is, so that no living process's mark is found.
    const BASE: i32 = 1 << 30;

    fn process(pid: i32, parent: i32, session: i32) -> Process {
        let (pid, parent, session) = (BASE + pid, BASE + parent, BASE + session);
        Process { pid, parent, group: pid, session, started: 7, dead: false }
    }

    fn roll(known: &[(i32, WardId)]) -> Roll {
        let known = known.iter().map(|&(pid, ward)| WardProcess { pid: BASE + pid, started: 7, ward });
        Roll { unmarked: libc::RLIM_INFINITY, known: known.collect() }
    }

    #[track_caller]
    fn check(roll: &mut Roll, wards: &[WardId], processes: &[Process], expected: &[u32]) {
        assert_eq!(roll.tell_apart(processes, wards), expected.iter().copied().map(WardId).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_below_a_first_process_is_its_wards() {
        // A worker in 2, its frozen copy 4 that became a ward and has not called setsid yet, with a child that has.
        let processes = [process(2, 0, 2), process(3, 2, 2), process(4, 2, 2), process(5, 4, 2), process(6, 5, 6)];
        let mut roll = roll(&[(4, WARDS[1])]);
        check(&mut roll, &WARDS, &processes, &[1, 1, 2, 2, 2]);
        // A ward of a ward, made of somebody with a lower pid than its parent.
        let with_another = [&[process(1, 6, 6)], &processes[..]].concat();
        roll.admit(&with_another[0], &with_another, &WARDS);
        check(&mut roll, &WARDS, &with_another, &[5, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn a_session_goes_on_without_its_leader() {
        // 4 is dead; its copy 5 fell to the keeper, and with it goes 6. 7 fell to a subreaper of the first ward.
        let processes = [process(2, 0, 2), process(5, 0, 4), process(6, 5, 6), process(7, 2, 4), process(8, 0, 8)];
        let mut roll = roll(&[(4, WARDS[1])]);
        check(&mut roll, &WARDS, &processes, &[1, 2, 2, 2, 1]);
        // Its number is somebody else's when the last member is gone.
        check(&mut roll, &WARDS, &[process(2, 0, 2)], &[1]);
        check(&mut roll, &WARDS, &[process(2, 0, 2), process(9, 0, 4)], &[1, 1]);
    }

    #[test]
    fn an_orphan_is_remembered() {
        let mut roll = roll(&[(4, WARDS[1])]);
        check(&mut roll, &WARDS, &[process(4, 0, 4), process(6, 4, 6), process(7, 6, 6)], &[2, 2, 2]);
        check(&mut roll, &WARDS, &[process(6, 0, 6), process(7, 6, 6)], &[2, 2]);
        // By its leader, who was seen.
        check(&mut roll, &WARDS, &[process(8, 0, 6)], &[2]);
        // Not another one with the same pid.
        check(&mut roll, &WARDS, &[Process { started: 8, ..process(8, 0, 8) }], &[1]);
    }

    #[test]
    fn what_a_ward_left_belongs_to_the_oldest() {
        let mut roll = roll(&[(4, WARDS[0]), (5, WARDS[1])]);
        let processes = [process(4, 0, 4), process(5, 0, 5), process(6, 0, 6)];
        check(&mut roll, &WARDS[1..], &processes, &[2, 2, 2]);
        check(&mut roll, &WARDS[2..], &processes, &[5, 5, 5]);
    }
}
