//! How processes end: signals by pidfd, wait statuses that somebody else collected, and their names.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Mutex,
};

use tokio::sync::Notify;

/// Wait statuses of processes that somebody else reaps, by pid. Bounded: the newest are kept.
#[derive(Debug, Default)]
pub struct Exits {
    statuses: Mutex<VecDeque<(i32, i32)>>,
    changed: Notify,
}

impl Exits {
    const KEPT: usize = 256;

    pub fn record(&self, pid: i32, status: i32) {
        let mut statuses = self.statuses.lock().expect("no panic while locked");
        statuses.push_back((pid, status));
        if statuses.len() > Self::KEPT {
            statuses.pop_front();
        }
        drop(statuses);
        self.changed.notify_waiters();
    }

    pub fn take(&self, pid: i32) -> Option<i32> {
        let mut statuses = self.statuses.lock().expect("no panic while locked");
        let position = statuses.iter().position(|(known, _)| *known == pid)?;
        statuses.remove(position).map(|(_, status)| status)
    }

    pub async fn wait(&self, pid: i32) -> i32 {
        loop {
            let changed = self.changed.notified();
            if let Some(status) = self.take(pid) {
                return status;
            }
            changed.await;
        }
    }
}

/// Signals a process by its pidfd. One that is gone needs no signal.
pub fn send_signal(pidfd: &OwnedFd, signal: i32) {
    // SAFETY: a system call on a descriptor we own; no memory is passed. rustix has no real-time signals.
    let result =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<()>(), 0) };
    if result < 0 {
        tracing::debug!(signal, error = %io::Error::last_os_error(), "a process could not be signalled");
    }
}

/// A worker's end, in words.
pub fn describe_exit(status: i32) -> (Option<i32>, Option<String>) {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        return (None, Some(signal_name(signal)));
    }
    (Some(libc::WEXITSTATUS(status)), None)
}

fn signal_name(signal: i32) -> String {
    let names: HashMap<i32, &str> = [
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGSYS, "SIGSYS"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
    ]
    .into();
    names.get(&signal).map_or_else(|| format!("signal {signal}"), |name| (*name).to_owned())
}
