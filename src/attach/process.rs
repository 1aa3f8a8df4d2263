//! What the kernel says about a process before it is touched, and what speaks against attaching to it. Reads `/proc` only.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::error::Error;
use crate::{caller, plain};

const MAX_COMMAND_CHARS: usize = 80;

#[derive(Debug, Clone)]
pub struct Process {
    pub pid: i32,
    /// In clock ticks since boot; with the pid it names a process for good.
    pub start: u64,
    /// The pid as the process itself sees it.
    pub inner_pid: i32,
    pub uid: u32,
    /// Its command line, or its name in brackets, for people.
    pub command: String,
    /// It sees other files than we do.
    pub other_root: bool,
    /// It is in a user or pid namespace of its own.
    pub contained: bool,
}

impl Process {
    /// Looks at a process and refuses those that nobody can attach to.
    pub fn examine(pid: i32) -> Result<Self, Error> {
        let gone = || Error::NoSuchProcess { pid };
        let (_, _, start) = caller::read_stat(pid).ok_or_else(gone)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| gone())?;
        let status = Status::parse(&status).ok_or_else(gone)?;
        let command = command(pid, &status.name);
        if status.thread_group != pid {
            return Err(Error::IsThread { pid, process: status.thread_group });
        }
        if status.state == 'Z' || status.state == 'X' {
            return Err(Error::Zombie { pid, command });
        }
        if status.kernel_thread {
            return Err(Error::KernelThread { pid, name: status.name });
        }
        if status.tracer != 0 {
            let tracer = name_of(status.tracer).unwrap_or_default();
            return Err(Error::Traced { pid, tracer: status.tracer, name: tracer, in_debugger: status.state == 't' });
        }
        if matches!(status.state, 'T' | 't') {
            return Err(Error::Stopped { pid });
        }
        Ok(Self {
            pid,
            start,
            inner_pid: status.inner_pid.unwrap_or(pid),
            uid: status.uid,
            command,
            other_root: differs(pid, "mnt") || root_differs(pid),
            contained: differs(pid, "user") || differs(pid, "pid"),
        })
    }

    /// Is it still the same process?
    pub fn is_there(&self) -> bool {
        caller::read_stat(self.pid).is_some_and(|(_, _, start)| start == self.start) && state(self.pid) != Some('Z')
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
    name: String,
    state: char,
    thread_group: i32,
    tracer: i32,
    uid: u32,
    inner_pid: Option<i32>,
    kernel_thread: bool,
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
        let first = |key: &str| line(key)?.split_whitespace().next();
        Some(Self {
            name: line("Name")?.to_owned(),
            state: first("State")?.chars().next()?,
            thread_group: first("Tgid")?.parse().ok()?,
            tracer: first("TracerPid")?.parse().ok()?,
            // The effective user is the one that counts for what it may do and who may trace it.
            uid: line("Uid")?.split_whitespace().nth(1)?.parse().ok()?,
            inner_pid: line("NSpid").and_then(|pids| pids.split_whitespace().last()?.parse().ok()),
            // Kernel threads have no memory of their own, and neither have zombies.
            kernel_thread: line("VmSize").is_none() && line("Kthread").is_none_or(|kthread| kthread == "1"),
        })
    }
}

pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub fn name_of(pid: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(plain::one_line(name.trim(), MAX_COMMAND_CHARS))
}

/// The system call a thread is blocked in, with where its stack and its code are; nothing if it runs.
pub fn blocked_in(pid: i32, tid: i32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    text.split_whitespace().next()?.parse().ok().filter(|number| *number >= 0)
}

pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut tids: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The main thread comes first.
    tids.sort_unstable_by_key(|tid| (*tid != pid, *tid));
    Ok(tids)
}

fn command(pid: i32, name: &str) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    let text = plain::one_line(text.trim(), MAX_COMMAND_CHARS);
    if text.is_empty() { format!("[{}]", plain::one_line(name, MAX_COMMAND_CHARS)) } else { text }
}

fn differs(pid: i32, namespace: &str) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).ok();
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

    const STATUS: &str = "Name:\tpython3\nState:\tS (sleeping)\nTgid:\t40\nPid:\t40\nTracerPid:\t7\nUid:\t1000\t1001\t1000\t1000\n\
                          NSpid:\t40\t2\nVmSize:\t 100 kB\n";

    #[test]
    fn a_status_is_read() {
        let status = Status::parse(STATUS).unwrap();
        assert_eq!((status.state, status.tracer, status.uid, status.inner_pid), ('S', 7, 1001, Some(2)));
        assert!(!status.kernel_thread);
        assert!(Status::parse(&STATUS.replace("VmSize", "Other")).unwrap().kernel_thread);
        assert_eq!(Status::parse("Name:\tx\n"), None);
    }

    #[test]
    fn this_process_can_be_examined_and_another_cannot() {
        let ours = Process::examine(std::process::id().cast_signed()).unwrap();
        assert!(ours.is_there() && !ours.other_root && !ours.contained);
        assert_eq!(ours.reach(Path::new("/tmp")), Path::new("/tmp"));
        assert!(matches!(Process::examine(i32::MAX), Err(Error::NoSuchProcess { .. })));
    }
}
