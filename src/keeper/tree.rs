//! The processes below a process, as `/proc` shows them.

use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pub pid: i32,
    parent: i32,
    group: i32,
    /// Nothing of it runs any more, though somebody may still have to reap it.
    pub dead: bool,
}

/// Every process of this pid namespace but its first one.
pub(super) fn all() -> Vec<Process> {
    snapshot().into_iter().filter(|process| process.pid > 1).collect()
}

/// Every process that descends from `ancestor`, wherever it put its session and group.
pub(super) fn below(ancestor: i32) -> Tree {
    let mut processes = snapshot();
    processes.sort_unstable_by_key(|process| process.parent);
    let mut inside = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = inside.get(next) {
        let first = processes.partition_point(|process| process.parent < parent);
        inside.extend(processes[first..].iter().take_while(|child| child.parent == parent).map(|child| child.pid));
        next += 1;
    }
    inside.sort_unstable();
    let is_below = |pid: i32| pid != ancestor && inside.binary_search(&pid).is_ok();
    let (below, others): (Vec<_>, Vec<_>) = processes.into_iter().partition(|process| is_below(process.pid));

    let mut groups: Vec<_> = below.iter().map(|process| process.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|&group| group > 1 && !others.iter().any(|process| process.group == group));
    Tree { processes: below, groups }
}

pub(super) struct Tree {
    pub processes: Vec<Process>,
    /// The process groups with nobody in them from elsewhere.
    pub groups: Vec<i32>,
}

fn snapshot() -> Vec<Process> {
    let Ok(proc) = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    else {
        return Vec::new();
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&proc) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| read_process(proc.as_fd(), entry.file_name().to_str().ok()?.parse().ok()?))
        .collect()
}

fn read_process(proc: BorrowedFd<'_>, pid: i32) -> Option<Process> {
    let stat: OwnedFd =
        rustix::fs::openat(proc, format!("{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 512];
    let length = rustix::io::read(&stat, &mut buffer[..]).ok()?;
    parse_stat(pid, &buffer[..length])
}

fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    // The name before the last parenthesis is whatever the process wants it to be, parentheses and spaces included.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = stat[after_name..].split(|&byte| byte == b' ').skip(1);
    let ended = matches!(fields.next()?, b"Z" | b"X");
    let mut number = |skip| str::from_utf8(fields.nth(skip)?).ok()?.parse::<i32>().ok();
    let (parent, group) = (number(0)?, number(0)?);
    // The state is that of the first thread, which may end before the others do.
    let threads = number(14)?;
    Some(Process { pid, parent, group, dead: ended && threads <= 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_skipped() {
        let process = parse_stat(7, b"7 (a) Z 1 (b) S 4 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0").unwrap();
        assert_eq!((process.parent, process.group, process.dead), (4, 5, false));
        assert!(parse_stat(7, b"7 (cut").is_none());
    }

    #[test]
    fn a_process_lives_as_long_as_its_last_thread() {
        assert!(parse_stat(7, b"7 (z) Z 4 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0").unwrap().dead);
        assert!(!parse_stat(7, b"7 (z) Z 4 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0").unwrap().dead);
    }
}
