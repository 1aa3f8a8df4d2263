//! Processes as `/proc` shows them: who belongs to a session, what each has used, and signals to exactly those. Called by `watch`,
//! `cgroup` and `share`.

use std::{
    cell::OnceCell,
    collections::{HashMap, HashSet},
    fs,
    os::fd::{AsRawFd, OwnedFd},
    sync::LazyLock,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::cgroup::Group;

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pub pid: i32,
    pub(super) parent: i32,
    pub session: i32,
    pub(super) started: u64,
    /// In clock ticks.
    pub(super) ticks: u64,
    /// Of the children it has waited for.
    pub(super) waited_ticks: u64,
    pub(super) resident_bytes: u64,
    pub(super) doing: Doing,
}

/// What a process does, by the letter that the kernel has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Running,
    /// In the middle of something in the kernel, such as a fork that waits for another.
    HeldUp,
    /// Waits for something that a signal would interrupt.
    Asleep,
    Stopped,
    /// It has ended, say.
    Other,
}

impl Doing {
    fn parse(letter: &[u8]) -> Self {
        match letter {
            b"R" => Self::Running,
            b"D" => Self::HeldUp,
            b"S" => Self::Asleep,
            b"T" | b"t" => Self::Stopped,
            _ => Self::Other,
        }
    }
}

impl Process {
    /// Reads a process's state, or nothing if it has ended.
    pub fn read(pid: i32) -> Option<Self> {
        let mut path = [0; 32];
        let stat =
            rustix::fs::open(stat_path(pid, &mut path)?, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        // A name has at most 64 bytes and there are 52 numbers.
        let mut buffer = [0; 1024];
        let length = rustix::io::read(&stat, &mut buffer[..]).ok()?;
        Self::parse(pid, &buffer[..length])
    }

    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        // The name before the last parenthesis is whatever the process wants it to be.
        let after_name = stat.iter().rposition(|byte| *byte == b')')? + 2;
        let mut fields = [b"".as_slice(); 22];
        let found = stat.get(after_name..)?.split(|byte| *byte == b' ');
        for (field, text) in fields.iter_mut().zip(found) {
            *field = text;
        }
        let number = |at: usize| str::from_utf8(fields[at]).ok()?.parse::<u64>().ok();
        let small = |at: usize| str::from_utf8(fields[at]).ok()?.parse::<i32>().ok();
        Some(Self {
            pid,
            doing: Doing::parse(fields[0]),
            parent: small(1)?,
            session: small(3)?,
            ticks: number(11)? + number(12)?,
            waited_ticks: number(13)? + number(14)?,
            started: number(19)?,
            resident_bytes: number(21)? * rustix::param::page_size() as u64,
        })
    }

    pub fn wants_to_run(&self) -> bool {
        self.doing == Doing::Running
    }

    pub fn is_stopped(&self) -> bool {
        self.doing == Doing::Stopped
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self.doing, Doing::Running | Doing::HeldUp)
    }

    /// What tells it from another that gets its pid later.
    pub(super) fn key(&self) -> (i32, u64) {
        (self.pid, self.started)
    }

    /// Whether it has not ended since it was read.
    pub(super) fn is_there(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Whether it is the process of `before` and has not run since, nor had anybody run whom it waited for.
    pub(super) fn has_rested_since(&self, before: &Self) -> bool {
        self.key() == before.key()
            && !self.wants_to_run()
            && (self.ticks, self.waited_ticks) == (before.ticks, before.waited_ticks)
    }

    /// Kills it, and nobody who got its pid since.
    pub fn end(&self) {
        self.signal(Signal::KILL);
    }

    /// Whether it ran for longer than it takes to come out of the kernel.
    pub(super) fn has_run_since(&self, before: &Self) -> bool {
        const NOTICEABLE_TICKS: u64 = 2;
        self.ticks >= before.ticks + NOTICEABLE_TICKS
    }

    /// Whether it was sent a signal that it blocks and reads, and has not yet read it or done what it does for it: whoever does nothing
    /// else sleeps when it has.
    pub(super) fn has_yet_to_take(&self, signal: Signal) -> bool {
        let pending = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok().and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        let is_pending = pending.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0);
        let now = Self::read(self.pid).filter(|now| now.key() == self.key());
        now.is_some_and(|now| is_pending || now.doing != Doing::Asleep)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pidfd) = self.open() {
            // It may end by itself meanwhile.
            let _gone = pidfd_send_signal(pidfd, signal);
        }
    }

    /// Sends a signal with a number that the process can read.
    pub(super) fn signal_with(&self, signal: Signal, value: i32) {
        let Some(pidfd) = self.open() else { return };
        // SAFETY: all zeros is a valid siginfo. The kernel reads it during the call, and for `SI_QUEUE` takes the fields that
        // are set through `Queued`, which has the same layout.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let queued = (&raw mut info).cast::<Queued>();
            (*queued).signal = signal.as_raw();
            (*queued).code = libc::SI_QUEUE;
            (*queued).value = value;
            // It may end by itself meanwhile.
            let none = 0;
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.as_raw(), &raw const info, none);
        }
    }

    /// Its pid in its own pid namespace.
    pub(super) fn pid_within(&self) -> Option<i32> {
        pylair_keeper::pid_within(self.open()?).ok()
    }

    /// A descriptor of exactly this process.
    fn open(&self) -> Option<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        self.is_there().then_some(pidfd)
    }
}

/// The beginning of a `siginfo_t` of a queued signal on 64-bit Linux.
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    pid: i32,
    user: u32,
    value: i32,
}

/// Writes the path of a process's `stat` without allocating: it is read for every process, every second.
fn stat_path(pid: i32, buffer: &mut [u8; 32]) -> Option<&std::ffi::CStr> {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    write!(rest, "/proc/{pid}/stat\0").ok()?;
    std::ffi::CStr::from_bytes_until_nul(buffer).ok()
}

/// All processes of the machine, at one moment.
#[derive(Debug, Default)]
pub struct Processes {
    by_parent: HashMap<i32, Vec<Process>>,
    by_pid: HashMap<i32, Process>,
}

impl Processes {
    pub fn now() -> Self {
        Self::at(Pace::Fast)
    }

    fn at(pace: Pace) -> Self {
        let mut all = Self::default();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
        for process in pace.read(pids) {
            all.by_parent.entry(process.parent).or_default().push(process);
            all.by_pid.insert(process.pid, process);
        }
        all
    }

    /// These processes and all that descend from them.
    pub fn below(&self, roots: &[i32]) -> Vec<Process> {
        let mut found: Vec<Process> = roots.iter().filter_map(|pid| self.by_pid.get(pid)).copied().collect();
        found.sort_by_key(|process| process.pid);
        found.dedup_by_key(|process| process.pid);
        let mut next = 0;
        while let Some(process) = found.get(next) {
            let children = self.by_parent.get(&process.pid).into_iter().flatten();
            // A root can be below another one.
            let new: Vec<_> =
                children.filter(|child| found.iter().all(|other| other.pid != child.pid)).copied().collect();
            found.extend(new);
            next += 1;
        }
        found
    }
}

/// Processes that are stopped, until this goes.
#[derive(Debug, Default)]
pub(super) struct Pause(Vec<Process>);

impl Pause {
    /// Stops all processes that `look` finds, also those that are made meanwhile. Those that somebody else stopped are not ours.
    pub fn stop(&mut self, look: impl Fn() -> Vec<Process>) {
        const ROUNDS: usize = 8;
        for _ in 0..ROUNDS {
            let running: Vec<_> = look().into_iter().filter(|process| !process.is_stopped()).collect();
            if running.iter().all(|process| self.0.iter().any(|stopped| stopped.key() == process.key())) {
                break;
            }
            for process in running {
                process.signal(Signal::STOP);
                self.0.push(process);
            }
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        for process in &self.0 {
            process.signal(Signal::CONT);
        }
    }
}

/// How fast many processes are read. A thousand take tens of milliseconds of a processor, which those who wait for an answer need more
/// than somebody who looks once a second.
#[derive(Debug, Clone, Copy, Default)]
enum Pace {
    #[default]
    Fast,
    /// With a pause after every few.
    Gentle,
}

impl Pace {
    fn read(self, pids: impl IntoIterator<Item = i32>) -> Vec<Process> {
        const AT_ONCE: usize = 32;
        const PAUSE: Duration = Duration::from_millis(3);
        let read = pids.into_iter().enumerate().filter_map(|(number, pid)| {
            if matches!(self, Self::Gentle) && number % AT_ONCE == AT_ONCE - 1 {
                std::thread::sleep(PAUSE);
            }
            Process::read(pid)
        });
        read.collect()
    }
}

/// The processes of sessions, of which the whole machine's are read only if they have to be, and then once.
#[derive(Debug, Default)]
pub struct Finder {
    all: OnceCell<Processes>,
    pace: Pace,
}

impl Finder {
    /// For a thread that has time.
    pub fn gentle() -> Self {
        Self { pace: Pace::Gentle, ..Self::default() }
    }

    /// The processes of one session: those the kernel has in its group, or all that descend from the roots.
    pub fn of(&self, roots: &[i32], group: Option<&Group>) -> Vec<Process> {
        match group.and_then(Group::pids) {
            Some(pids) => self.pace.read(pids),
            None => self.all.get_or_init(|| Processes::at(self.pace)).below(roots),
        }
    }
}

/// The pids of one session, for whoever looks often: those that [`Finder::of`] finds, at the cost of the session's own alone, and without
/// a look at any of them.
pub fn pids_of(roots: &[i32], group: Option<&Group>) -> Vec<i32> {
    if let Some(pids) = group.and_then(Group::pids) {
        return pids;
    }
    if !*CHILDREN_ARE_TOLD {
        return Processes::now().below(roots).iter().map(|process| process.pid).collect();
    }
    let mut found = roots.to_vec();
    let mut known: HashSet<i32> = found.iter().copied().collect();
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children(pid).into_iter().filter(|child| known.insert(*child)));
        next += 1;
    }
    found
}

/// Not every kernel does.
static CHILDREN_ARE_TOLD: LazyLock<bool> =
    LazyLock::new(|| fs::exists(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or_default());

/// The pids of a process's children, which may miss one while others end.
fn children(pid: i32) -> Vec<i32> {
    let mut text = String::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        // Threads may end meanwhile.
        text += &fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    }
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// When a process started, in ticks since the machine did.
pub fn started(pid: i32) -> Option<u64> {
    Process::read(pid).map(|process| process.started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_found_and_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = std::process::id().cast_signed();
        let mine = Processes::now().below(&[me, child.id().cast_signed()]);
        let found: Vec<_> = mine.iter().filter(|process| process.pid == child.id().cast_signed()).collect();
        assert_eq!(found.len(), 1, "{mine:?}");
        assert!(mine.iter().any(|process| process.pid == me && process.resident_bytes > 1 << 20));
        assert!(pids_of(&[me], None).contains(&child.id().cast_signed()));
        // Whoever has the pid of somebody else is not meant.
        Process { started: 1, ..*found[0] }.end();
        assert!(child.try_wait().unwrap().is_none());
        found[0].end();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_hostile_name_is_skipped() {
        let stat = b"7 (a) R 1 (b) S 4 5 6 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 99 4096 5";
        let process = Process::parse(7, stat).unwrap();
        assert_eq!((process.parent, process.session, process.started), (4, 6, 99));
        assert_eq!((process.ticks, process.waited_ticks, process.wants_to_run()), (30, 7, false));
        for cut in [&b"7 (cut"[..], b"7 (cut) R 1 2", b""] {
            assert!(Process::parse(7, cut).is_none());
        }
    }
}
