//! The processes below a process, as `/proc` shows them.

use pylair_proc::Stat;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    /// The pid of the leader of its process session, who may be dead.
    pub session: i32,
    /// In clock ticks since boot: with the pid it names the process for good.
    pub started: u64,
    /// All of its threads have ended, although it may not be reaped yet.
    pub dead: bool,
}

/// Processes that belong together.
pub(super) struct Tree {
    /// In the order of their pids.
    pub processes: Vec<Process>,
    /// The process groups of the others.
    elsewhere: Vec<i32>,
}

/// Every process of this pid namespace but its first one.
pub(super) fn all() -> Tree {
    let mut tree = Tree { processes: snapshot(), elsewhere: Vec::new() };
    tree.retain(|process| process.pid > 1);
    tree
}

/// Every process that descends from `ancestor`, wherever it put its session and group.
pub(super) fn below(ancestor: i32) -> Tree {
    let mut tree = Tree { processes: snapshot(), elsewhere: Vec::new() };
    let mut children: Vec<_> = tree.processes.iter().map(|process| (process.parent, process.pid)).collect();
    children.sort_unstable();
    let mut inside = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = inside.get(next) {
        let first = children.partition_point(|child| child.0 < parent);
        inside.extend(children[first..].iter().take_while(|child| child.0 == parent).map(|child| child.1));
        next += 1;
    }
    inside.sort_unstable();
    tree.retain(|process| process.pid != ancestor && inside.binary_search(&process.pid).is_ok());
    tree
}

impl Tree {
    /// Leaves only some of the processes.
    pub(super) fn retain(&mut self, mut belongs: impl FnMut(&Process) -> bool) {
        let elsewhere = &mut self.elsewhere;
        self.processes.retain(|process| {
            let belongs = belongs(process);
            if !belongs {
                elsewhere.push(process.group);
            }
            belongs
        });
        elsewhere.sort_unstable();
        elsewhere.dedup();
    }

    /// The process groups that contain only these processes.
    pub(super) fn groups(&self) -> Vec<i32> {
        let mut groups: Vec<_> = self.processes.iter().map(|process| process.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|group| *group > 1 && self.elsewhere.binary_search(group).is_err());
        groups
    }
}

/// In the order of their pids.
fn snapshot() -> Vec<Process> {
    let Ok(proc) = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    else {
        return Vec::new();
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&proc) else { return Vec::new() };
    let mut processes: Vec<_> = entries
        .flatten()
        .filter_map(|entry| read_process(proc.as_fd(), entry.file_name().to_str().ok()?.parse().ok()?))
        .collect();
    processes.sort_unstable_by_key(|process: &Process| process.pid);
    processes.dedup_by_key(|process| process.pid);
    processes
}

fn read_process(proc: BorrowedFd<'_>, pid: i32) -> Option<Process> {
    let stat: OwnedFd =
        rustix::fs::openat(proc, format!("{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 512];
    let length = rustix::io::read(&stat, &mut buffer[..]).ok()?;
    process_in(pid, &Stat::parse(&buffer[..length])?)
}

fn process_in(pid: i32, stat: &Stat) -> Option<Process> {
    Some(Process {
        pid,
        parent: stat.parent()?,
        group: stat.group()?,
        session: stat.session()?,
        started: stat.started()?,
        // The state is that of the first thread, which may end before the others do.
        dead: stat.has_ended() && stat.threads()? <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[u8]) -> Option<Process> {
        process_in(7, &Stat::parse(line)?)
    }

    #[test]
    fn a_hostile_name_is_skipped() {
        let process = parsed(b"7 (a) Z 1 (b) S 4 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0").unwrap();
        assert_eq!((process.parent, process.group, process.session), (4, 5, 6));
        assert_eq!((process.started, process.dead), (99, false));
        assert!(parsed(b"7 (cut").is_none());
    }

    #[test]
    fn a_process_lives_as_long_as_its_last_thread() {
        assert!(parsed(b"7 (z) Z 4 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0").unwrap().dead);
        assert!(!parsed(b"7 (z) Z 4 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 99 0").unwrap().dead);
    }
}
