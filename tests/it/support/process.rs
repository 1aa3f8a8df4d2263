//! Processes, addressed by pidfd.

use std::{fs, path::Path, time::Instant};

use pylair_os::process::Stat;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, Signal},
};

use super::PATIENCE;

/// A process whose end can be waited for.
#[derive(Debug)]
pub struct Watched {
    pub pid: i32,
    command: String,
    /// None when it was gone already.
    pidfd: Option<OwnedFd>,
}

impl Watched {
    pub fn new(pid: i32) -> Self {
        let pidfd = rustix::process::pidfd_open(raw(pid), PidfdFlags::empty()).ok();
        Self { pid, command: command_of(pid), pidfd }
    }

    /// Waits for the end of the process; false when it does not come.
    pub fn ends(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return true };
        let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        loop {
            match rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit)) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot wait for process {}: {error}", self.pid),
            }
        }
    }

    pub fn is_alive(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(0)
    }

    #[track_caller]
    pub fn assert_ends(&self) {
        assert!(self.ends(), "process {} is still there: {}", self.pid, self.command);
    }
}

fn raw(pid: i32) -> Pid {
    Pid::from_raw(pid).expect("a pid is positive")
}

/// Returns from a stop when all threads of the process have come to it.
pub fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(raw(pid), signal).expect("the process is there");
    let until = Instant::now() + PATIENCE;
    while signal == Signal::STOP && !is_stopped(pid) {
        assert!(Instant::now() < until, "process {pid} does not stop");
        std::thread::yield_now();
    }
}

fn is_stopped(pid: i32) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.all(|thread| {
        let stat = fs::read(thread.path().join("stat")).ok().and_then(Stat::parse);
        stat.is_some_and(|stat| matches!(stat.state(), Some('T' | 't' | 'Z' | 'X')))
    })
}

fn command_of(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.chars().take(120).collect()
}

pub fn parent_of(pid: i32) -> i32 {
    Stat::read(pid).and_then(|stat| stat.parent()).expect("the process is there")
}

fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Every process that runs a program in this directory, or has it in its environment.
pub fn belonging_to(directory: &Path) -> Vec<Watched> {
    let text = directory.to_str().expect("our own directory has a plain name").as_bytes();
    let ours = |pid: &i32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.starts_with(directory));
        let environment = || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        program || environment().windows(text.len()).any(|window| window == text)
    };
    let this = std::process::id().cast_signed();
    all().into_iter().filter(|pid| *pid != this).filter(ours).map(Watched::new).collect()
}
