//! Processes that are not ours, as the kernel shows them: whether one is still the same, what it is doing, how it ended.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::process::{Pid, PidfdFlags};
use tokio::io::unix::AsyncFd;

use crate::{
    descriptor,
    exit::describe_exit,
    process::{Process, Stat},
};

/// What a process is doing, of what matters to one who waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    Runs,
    /// Stopped by a signal, or by a debugger.
    Stopped,
    Ended,
}

/// What a process is doing. One that waits to be reaped has ended, and so has one whose pid is another's now.
pub fn doing(process: Process) -> Doing {
    match Stat::read(process.pid) {
        Some(stat) if stat.started() != Some(process.started) || stat.has_ended() => Doing::Ended,
        None => Doing::Ended,
        Some(stat) if matches!(stat.state(), Some('T' | 't')) => Doing::Stopped,
        Some(_) => Doing::Runs,
    }
}

/// Kills a process with its group if it leads one, and never another that has its pid now. One that is gone is as good as killed.
pub fn kill(process: Process) -> io::Result<()> {
    if let Some(pid) = Pid::from_raw(process.pid)
        && rustix::process::getpgid(Some(pid)) == Ok(pid)
        && doing(process) != Doing::Ended
    {
        match rustix::process::kill_process_group(pid, rustix::process::Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    signal(process, rustix::process::Signal::KILL)
}

/// Interrupts a process as a terminal would.
pub fn interrupt(process: Process) -> io::Result<()> {
    signal(process, rustix::process::Signal::INT)
}

fn signal(process: Process, signal: rustix::process::Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        opened => opened?,
    };
    // Looked at after it was opened: what is there now is what the descriptor is of.
    if doing(process) == Doing::Ended {
        return Ok(());
    }
    match rustix::process::pidfd_send_signal(&pidfd, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => Ok(sent?),
    }
}

/// A hold on a process: its end is seen, and never taken for another's.
#[derive(Debug)]
pub struct Held {
    process: Process,
    pidfd: AsyncFd<OwnedFd>,
}

impl Held {
    /// `NotFound` when it is gone already.
    pub fn open(process: Process) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pid = Pid::from_raw(process.pid).ok_or_else(gone)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::SRCH => gone(),
            error => error.into(),
        })?;
        // Looked at after it was opened: what is there now is what the descriptor is of.
        if doing(process) == Doing::Ended {
            return Err(gone());
        }
        Ok(Self { process, pidfd: descriptor::readable(pidfd)? })
    }

    /// Returns when it has ended.
    pub async fn ended(&self) {
        // An error here would be one of the runtime's, and then nothing is waited for.
        let _ready = self.pidfd.readable().await;
    }

    /// How it ended, in words, as far as anybody may know: nobody but its parent is told.
    pub fn how(&self) -> Option<String> {
        let status = Stat::read(self.process.pid)
            .filter(|stat| stat.started() == Some(self.process.started) && stat.state() == Some('Z'))
            .and_then(|stat| stat.exit_status())
            .or_else(|| exit_status(self.pidfd.get_ref()))?;
        match describe_exit(status) {
            (Some(code), _) => Some(format!("it exited with code {code}")),
            (None, Some(signal)) => Some(format!("it was killed by {signal}")),
            (None, None) => None,
        }
    }
}

/// The wait status of a process that was reaped by its parent. Linux 6.15 and newer keep it for whoever holds a pidfd.
fn exit_status(pidfd: &OwnedFd) -> Option<i32> {
    const WANTED: u64 = 1 << 3;
    /// `_IOWR(0xFF, 11, struct pidfd_info)` with the first version of the structure.
    const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
    #[repr(C)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        status: i32,
    }
    let mut info = Info { mask: WANTED, cgroup: 0, ids: [0; 11], status: 0 };
    // SAFETY: the kernel writes at most the 64 bytes that the number of the request says, into a structure of that size.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (result == 0 && info.mask & WANTED != 0).then_some(info.status)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn process(pid: u32) -> Process {
        let pid = pid.cast_signed();
        Process { pid, started: Stat::read(pid).and_then(|stat| stat.started()).unwrap() }
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_told_before_and_after_it_was_reaped() {
        let mut child = Command::new("sh").args(["-c", "read x; exit 3"]).stdin(Stdio::piped()).spawn().unwrap();
        let held = Held::open(process(child.id())).unwrap();
        assert_eq!(doing(held.process), Doing::Runs);
        drop(child.stdin.take());
        held.ended().await;
        assert_eq!(doing(held.process), Doing::Ended);
        assert_eq!(held.how().as_deref(), Some("it exited with code 3"));
        child.wait().unwrap();
        assert!(matches!(held.how().as_deref(), Some("it exited with code 3") | None));
        assert_eq!(Held::open(held.process).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_pid_that_is_anothers_now_is_gone() {
        let mut other = process(std::process::id());
        other.started += 1;
        assert_eq!(doing(other), Doing::Ended);
    }
}
