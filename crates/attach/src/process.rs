//! What the kernel says about a process before it is touched, and what speaks against attaching to it. Reads `/proc` only.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::error::{Error, NEEDED_DESCRIPTORS};
use pylair_os::{process::Stat, process_access};

#[derive(Debug, Clone)]
pub struct Process {
    pub pid: i32,
    /// In clock ticks since boot; with the pid it names a process for good.
    pub start: u64,
    /// The pid as the process itself sees it.
    pub inner_pid: i32,
    pub uid: u32,
    /// It sees other files than we do.
    pub other_root: bool,
}

impl Process {
    /// Looks at a process and refuses those that nobody can attach to.
    pub fn examine(pid: i32) -> Result<Self, Error> {
        process_access::check(pid)?;
        let read = || {
            Some((
                Stat::read(pid)?.started()?,
                Status::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?,
            ))
        };
        let (start, status) = read().ok_or(Error::Ended { pid })?;
        if status.tracer != 0 {
            let name = process_access::program_name(status.tracer);
            return Err(Error::Traced { pid, tracer: status.tracer, name, in_debugger: status.state == 't' });
        }
        if status.state == 'T' {
            return Err(Error::Stopped { pid });
        }
        Ok(Self {
            pid,
            start,
            inner_pid: status.inner_pid.unwrap_or(pid),
            uid: status.uid,
            other_root: namespace_differs(pid) || root_differs(pid),
        })
    }

    /// Is it still the same process?
    pub fn is_there(&self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| stat.started() == Some(self.start) && stat.state() != Some('Z'))
    }

    /// Refuses a process in which a probe could not work: one without free descriptors, or without `/proc`.
    pub fn has_room(&self) -> Result<(), Error> {
        let pid = self.pid;
        if let Some((open, limit)) = process_access::open_files(pid)
            && limit.saturating_sub(open) < NEEDED_DESCRIPTORS
        {
            return Err(Error::NoDescriptors { pid, open, limit });
        }
        let has_proc = rustix::fs::statfs(format!("/proc/{pid}/root/proc"));
        match has_proc {
            // The kernel's number for this kind of file system.
            Ok(mounted) if mounted.f_type != libc::PROC_SUPER_MAGIC => Err(Error::NoProc { pid }),
            Err(rustix::io::Errno::NOENT) => Err(Error::NoProc { pid }),
            // Not being allowed to look is told later, by who may attach.
            _ => Ok(()),
        }
    }

    /// A path of the process as we reach it.
    pub fn reach(&self, path: &Path) -> PathBuf {
        if !self.other_root {
            return path.to_owned();
        }
        let inside = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(self.pid.to_string()).join("root").join(inside)
    }
}

/// The lines of `/proc/PID/status` that count.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    state: char,
    tracer: i32,
    uid: u32,
    inner_pid: Option<i32>,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
        let first = |key: &str| line(key)?.split_whitespace().next();
        Some(Self {
            state: first("State")?.chars().next()?,
            tracer: first("TracerPid")?.parse().ok()?,
            // The effective user is the one that counts for what it may do and who may trace it.
            uid: line("Uid")?.split_whitespace().nth(1)?.parse().ok()?,
            inner_pid: line("NSpid").and_then(|pids| pids.split_whitespace().last()?.parse().ok()),
        })
    }
}

/// The system call a thread is blocked in, with where its stack and its code are; nothing if it runs.
pub fn blocked_in(pid: i32, tid: i32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    text.split_whitespace().next()?.parse().ok().filter(|number| *number >= 0)
}

fn namespace_differs(pid: i32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    // Not being allowed to look is no difference yet: the right to trace is asked for next.
    of(&pid.to_string()).is_some_and(|theirs| of("self").is_some_and(|ours| theirs != ours))
}

fn root_differs(pid: i32) -> bool {
    let of = |process: &str| fs::metadata(format!("/proc/{process}/root/.")).ok().map(|root| (root.dev(), root.ino()));
    of(&pid.to_string()).is_some_and(|theirs| of("self").is_some_and(|ours| theirs != ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tpython3\nState:\tS (sleeping)\nTracerPid:\t7\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t40\t2\n";

    #[test]
    fn a_status_is_read() {
        let status = Status::parse(STATUS).unwrap();
        assert_eq!((status.state, status.tracer, status.uid, status.inner_pid), ('S', 7, 1001, Some(2)));
        assert_eq!(Status::parse("Name:\tx\n"), None);
    }

    #[test]
    fn this_process_can_be_examined_and_another_cannot() {
        let ours = Process::examine(std::process::id().cast_signed()).unwrap();
        assert!(ours.is_there() && !ours.other_root);
        assert_eq!(ours.reach(Path::new("/tmp")), Path::new("/tmp"));
        assert_eq!(Process::examine(i32::MAX).unwrap_err().kind(), "no_process");
    }
}
