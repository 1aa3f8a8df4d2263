//! What the kernel does not hold of a confined session: sums over all its processes, its files on disk, its time. Looked at every
//! second, on a blocking thread, and told to the session's task, which acts. Called by `session`.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{Limits, share::MANY};

/// How often sessions are looked at.
pub const TICK: Duration = Duration::from_secs(1);
/// And how often while one of them uses the processors more than others should notice.
pub const HASTE: Duration = Duration::from_millis(300);
/// How many files are counted at most; who has more is over any limit.
const MAX_FILES: u64 = 500_000;
/// And how many descriptors are looked at.
const MAX_DESCRIPTORS: usize = 50_000;
/// How many directories are held open while what is below them is counted; who has a tree like that is over any limit, too.
const MAX_HELD: usize = 500;
/// A file costs at least this much, also an empty one.
const LEAST_FILE_BYTES: u64 = 512;
/// Counting files may take this part of the time.
const DISK_SHARE: u32 = 20;
/// Of one processor, from one look to the next: who uses more lets others come first.
const MUCH_PERCENT: u128 = 30;

/// How long a session that was stopped for its files has to delete some.
const DISK_GRACE: Duration = Duration::from_secs(10);

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pub pid: i32,
    parent: i32,
    pub session: i32,
    started: u64,
    /// In clock ticks.
    ticks: u64,
    /// Of the children it has waited for.
    waited_ticks: u64,
    resident_bytes: u64,
    pub wants_to_run: bool,
}

impl Process {
    /// Kills it, and nobody who got its pid since.
    pub fn end(&self) {
        let Some(pidfd) = Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return;
        };
        if read_process(self.pid).is_some_and(|now| now.started == self.started) {
            // It may end by itself meanwhile.
            let _gone = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

/// All processes of the machine, at one moment.
#[derive(Debug, Default)]
pub struct Processes(HashMap<i32, Vec<Process>>, HashMap<i32, Process>);

impl Processes {
    pub fn now() -> Self {
        let mut all = Self::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(process) = pid.and_then(read_process) {
                all.0.entry(process.parent).or_default().push(process);
                all.1.insert(process.pid, process);
            }
        }
        all
    }

    /// These processes and all that descend from them.
    pub fn below(&self, roots: &[i32]) -> Vec<Process> {
        let mut found: Vec<Process> = roots.iter().filter_map(|pid| self.1.get(pid)).copied().collect();
        found.sort_by_key(|process| process.pid);
        found.dedup_by_key(|process| process.pid);
        let mut next = 0;
        while let Some(process) = found.get(next) {
            let children = self.0.get(&process.pid).into_iter().flatten();
            // A root can be below another one.
            let new: Vec<_> =
                children.filter(|child| found.iter().all(|other| other.pid != child.pid)).copied().collect();
            found.extend(new);
            next += 1;
        }
        found
    }
}

/// When a process started, in ticks since the machine did.
pub fn started(pid: i32) -> Option<u64> {
    read_process(pid).map(|process| process.started)
}

fn read_process(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last parenthesis is whatever the process wants it to be.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Process {
        pid,
        wants_to_run: *fields.first()? == "R",
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: number(19)?,
        ticks: number(11)? + number(12)?,
        waited_ticks: number(13)? + number(14)?,
        resident_bytes: number(21)? * rustix::param::page_size() as u64,
    })
}

/// A limit that was passed, and who has to go for it.
#[derive(Debug)]
pub enum Passed {
    Memory {
        mb: u64,
        victims: Vec<Process>,
    },
    Disk {
        mb: u64,
        victims: Vec<Process>,
        /// How often that was so, and then more, without the files getting fewer.
        strikes: u32,
    },
    Cpu {
        seconds: u64,
    },
}

/// What is remembered of a session from one look to the next.
#[derive(Debug, Default)]
pub struct Watched {
    /// Processor time of processes that nobody waited for is gone from `/proc`, but not from here.
    ticks: u64,
    /// What each process had used at the last look, itself and by those it waited for, and when that was.
    seen: HashMap<(i32, u64), (u64, u64)>,
    seen_at: Option<Instant>,
    disk_due: Option<Instant>,
    /// How much there was when its processes were last ended for it.
    disk_bytes: u64,
    strikes: u32,
    struck: Option<Instant>,
}

/// A session as it is looked at.
#[derive(Debug)]
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
}

impl Watched {
    /// Whether a session's processes use the processors so much that others come first. Those who are kept from it use little, but want
    /// to run whenever one looks, so whoever stepped back once stays there until nobody does.
    pub fn burns(&mut self, mine: &[Process], has_stepped_back: bool) -> bool {
        let now = Instant::now();
        let elapsed = self.seen_at.replace(now).map_or(TICK, |before| now - before);
        let ticks = self.count(mine);
        let wanting = mine.iter().filter(|process| process.wants_to_run).count();
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
        let now: HashMap<_, _> = mine
            .iter()
            .map(|process| ((process.pid, process.started), (process.ticks, process.waited_ticks)))
            .collect();
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
            && let Some((mb, victims)) = too_large(mine, at.keeper, at.limits.memory_mb)
        {
            return Some(Passed::Memory { mb, victims });
        }
        let bytes = self.too_many_bytes(at, mine)?;
        let victims = mine.iter().filter(|process| Some(process.pid) != at.keeper && !at.copies.contains(&process.pid));
        Some(Passed::Disk { mb: bytes >> 20, victims: victims.copied().collect(), strikes: self.strikes })
    }

    fn too_many_bytes(&mut self, at: &Look<'_>, mine: &[Process]) -> Option<u64> {
        const MORE: u64 = 1 << 20;
        let directory = at.directory?;
        let now = Instant::now();
        if self.disk_due.is_some_and(|due| now < due) {
            return None;
        }
        let limit = at.limits.disk_mb << 20;
        let bytes = size_of(directory, limit.max(self.disk_bytes + MORE)) + size_of_deleted(directory, mine);
        self.disk_due = Some(now + now.elapsed() * DISK_SHARE);
        if bytes <= limit {
            (self.disk_bytes, self.strikes, self.struck) = (0, 0, None);
            return None;
        }
        // Whoever was stopped for it may go on and delete files, but not write more.
        if bytes <= self.disk_bytes + MORE && self.struck.is_some_and(|struck| struck.elapsed() < DISK_GRACE) {
            return None;
        }
        self.disk_bytes = bytes;
        self.struck = Some(now);
        self.strikes += 1;
        Some(bytes)
    }
}

/// The largest processes, whose end would leave room for the rest, and how much all have, when that is too much.
fn too_large(processes: &[Process], keeper: Option<i32>, limit_mb: u64) -> Option<(u64, Vec<Process>)> {
    let limit = limit_mb << 20;
    // Cheap and too much: pages that several share are counted for each.
    if processes.iter().map(|process| process.resident_bytes).sum::<u64>() <= limit {
        return None;
    }
    let mut sizes: Vec<(u64, Process)> =
        processes.iter().map(|process| (share_of(process).unwrap_or(process.resident_bytes), *process)).collect();
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

/// Its own memory and its part of what it shares.
fn share_of(process: &Process) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid)).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// What a directory holds, as far as it matters: not more than a little over `enough`. Symlinks are not followed, and no path is too long: each
/// directory is opened from the one above it.
fn size_of(directory: &Path, enough: u64) -> u64 {
    let (mut bytes, mut files) = (0_u64, 0_u64);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::open(directory, flags, Mode::empty()) else { return 0 };
    let mut left: Vec<(Rc<OwnedFd>, CString)> = vec![(Rc::new(top), c".".to_owned())];
    let mut held: Vec<std::rc::Weak<OwnedFd>> = Vec::new();
    while let Some((parent, name)) = left.pop() {
        let Ok(opened) = open_to_count(&parent, &name, flags) else { continue };
        drop(parent);
        let Ok(entries) = Dir::read_from(&opened) else { continue };
        let opened = Rc::new(opened);
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&*opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            bytes += (u64::try_from(stat.st_blocks).unwrap_or(0) * 512).max(LEAST_FILE_BYTES);
            files += 1;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push((opened.clone(), name.to_owned()));
            }
        }
        held.retain(|directory| directory.strong_count() > 0);
        held.push(Rc::downgrade(&opened));
        if files > MAX_FILES || held.len() > MAX_HELD {
            return u64::MAX;
        }
        if bytes > enough {
            break;
        }
    }
    bytes
}

/// Opens a directory, also one that its owner, who is us outside, took its own rights to: they are given back, or files would be kept there
/// that nobody counts. Root needs no rights.
fn open_to_count(parent: &OwnedFd, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let needed = Mode::RUSR | Mode::XUSR;
    let find = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(opened) if rustix::process::geteuid().is_root() => return Ok(opened),
        Ok(opened) if Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).contains(needed) => return Ok(opened),
        Ok(_) | Err(Errno::ACCESS) => {}
        Err(error) => return Err(error),
    }
    let found = rustix::fs::openat(parent, name, find, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    // By the descriptor: what has the name now may be something else.
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode | needed)?;
    rustix::fs::openat(&found, c".", flags, Mode::empty())
}

/// What is held open of a directory's files after they were deleted. A file that several hold counts once.
fn size_of_deleted(directory: &Path, processes: &[Process]) -> u64 {
    let Ok(device) = fs::metadata(directory).map(|metadata| metadata.dev()) else { return 0 };
    let mut held: HashMap<u64, u64> = HashMap::new();
    let descriptors = processes
        .iter()
        .flat_map(|process| fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten());
    for descriptor in descriptors.take(MAX_DESCRIPTORS) {
        if let Ok(metadata) = fs::metadata(descriptor.path())
            && metadata.is_file()
            && metadata.nlink() == 0
            && metadata.dev() == device
        {
            held.insert(metadata.ino(), metadata.blocks() * 512);
        }
    }
    for process in processes {
        for (inode, bytes) in mapped_and_deleted(process, device) {
            held.entry(inode).or_insert(bytes);
        }
    }
    held.into_values().sum()
}

/// Files of a device that are deleted, and that a process still has mapped.
fn mapped_and_deleted(process: &Process, device: u64) -> Vec<(u64, u64)> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(maps) = fs::read_to_string(format!("/proc/{}/maps", process.pid)) else { return Vec::new() };
    let mapped = maps.lines().filter(|line| line.ends_with(" (deleted)")).filter_map(|line| {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [span, _, _, found, inode, _] = fields.as_slice() else { return None };
        let (from, to) = span.split_once('-')?;
        let length = u64::from_str_radix(to, 16).ok()?.checked_sub(u64::from_str_radix(from, 16).ok()?)?;
        let inode: u64 = inode.parse().ok().filter(|inode| *inode != 0 && *found == device)?;
        // Only root may ask the file itself; for others it is as large as what is mapped of it.
        let file = fs::metadata(format!("/proc/{}/map_files/{span}", process.pid));
        Some((inode, file.map_or(length, |file| file.blocks() * 512)))
    });
    mapped.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_process_and_its_children_are_found_and_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = std::process::id().cast_signed();
        let mine = Processes::now().below(&[me, child.id().cast_signed()]);
        let found: Vec<_> = mine.iter().filter(|process| process.pid == child.id().cast_signed()).collect();
        assert_eq!(found.len(), 1, "{mine:?}");
        assert!(mine.iter().any(|process| process.pid == me && process.resident_bytes > 1 << 20));
        // Whoever has the pid of somebody else is not meant.
        Process { started: 1, ..*found[0] }.end();
        assert!(child.try_wait().unwrap().is_none());
        found[0].end();
        assert!(!child.wait().unwrap().success());
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
            wants_to_run,
        };
        let mut watched = Watched::default();
        assert!(!watched.burns(&[process(7, 2, true)], false), "an answer takes a moment");
        assert!(watched.burns(&[process(7, 2 + 10 * second, true)], false));
        // It was hardly let run.
        assert!(watched.burns(&[process(7, 3 + 10 * second, true)], true));
        assert!(!watched.burns(&[process(7, 3 + 10 * second, false)], true));
        let storm: Vec<_> = (10..30).map(|pid| process(pid, 0, true)).collect();
        assert!(watched.burns(&storm, false), "many that want to run at once");
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
            wants_to_run: false,
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

    #[test]
    fn files_are_counted_without_following_links() {
        let base = std::env::temp_dir().join(format!("pylair-watch-{}", std::process::id()));
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/b/big"), vec![1; 3 << 20]).unwrap();
        fs::write(base.join("a/empty"), "").unwrap();
        std::os::unix::fs::symlink("/usr", base.join("a/usr")).unwrap();
        let size = size_of(&base.join("a"), u64::MAX);
        assert!((3 << 20..4 << 20).contains(&size), "{size}");
        let held = fs::File::open(base.join("a/b/big")).unwrap();
        fs::remove_file(base.join("a/b/big")).unwrap();
        let me = Processes::now().below(&[std::process::id().cast_signed()]);
        assert!(size_of(&base.join("a"), u64::MAX) < 1 << 20 && size_of_deleted(&base, &me) >= 3 << 20);
        drop(held);
        // Who took its own rights away hides nothing.
        fs::create_dir_all(base.join("a/hidden")).unwrap();
        fs::write(base.join("a/hidden/big"), vec![1; 3 << 20]).unwrap();
        for mode in [0o000, 0o400, 0o100] {
            fs::set_permissions(base.join("a/hidden"), fs::Permissions::from_mode(mode)).unwrap();
            assert!(size_of(&base.join("a"), u64::MAX) >= 3 << 20, "{mode:o}");
        }
        fs::set_permissions(base.join("a/hidden"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(base.join("a/hidden")).unwrap();
        // Deeper than a path can be.
        let mut at = fs::File::open(base.join("a")).unwrap();
        let name = "d".repeat(250);
        for _ in 0..20 {
            rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, name.as_str(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .unwrap()
                .into();
        }
        let mut deep: fs::File =
            rustix::fs::openat(&at, "big", OFlags::CREATE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap().into();
        std::io::Write::write_all(&mut deep, &vec![1; 3 << 20]).unwrap();
        assert!(size_of(&base.join("a"), u64::MAX) >= 3 << 20);
        crate::files::remove_tree(&base).unwrap();
    }
}
