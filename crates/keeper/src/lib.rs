//! Keepers: the process above every session's processes, and the nursery that makes the confined ones.
//!
//! A keeper reaps whatever falls to it, kills strays when told, and takes everything below it along when the daemon closes its
//! socket or dies. Sessions that were branched off live below the same keeper, each a ward with a socket of its own. Unconfined it
//! is a plain subreaper (`pylair __keeper FD`); confined it is pid 1 of its own namespaces, made by the nursery (`pylair
//! __nursery`) without an exec. The daemon speaks to both in the datagrams of `docs/wire.md`, which are typed here. Nothing in
//! `keep` and `nursery` runs in the daemon's own process.

pub mod datagram;
pub mod guard;
pub mod keep;
pub mod nursery;
pub mod outer_ids;
pub mod private_root;
pub mod program;
pub mod seccomp;
pub mod slices;
mod tree;
mod wards;

use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};

/// A report of a keeper. One datagram each; `Ready` may bring the Landlock ruleset, and the socket of a proxy after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Ready,
    /// It could not become a keeper and is gone: the step and the reason. On the socket of [`Order::Ward`]: there is no such ward.
    Failed(String),
    /// A child was reaped: its pid as the keeper sees it and its wait status.
    Exit {
        pid: i32,
        status: i32,
    },
    /// The answer to [`Order::Sweep`]: how many processes were killed.
    Swept(usize),
    /// The answer to [`Order::Signal`]: how many processes got it.
    Signalled(usize),
}

impl Report {
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let text = str::from_utf8(datagram).ok()?;
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        match verb {
            "ready" => Some(Self::Ready),
            "failed" => Some(Self::Failed(rest.to_owned())),
            "exit" => {
                let (pid, status) = rest.split_once(' ')?;
                Some(Self::Exit { pid: pid.parse().ok()?, status: status.parse().ok()? })
            }
            "swept" => rest.parse().ok().map(Self::Swept),
            "signalled" => rest.parse().ok().map(Self::Signalled),
            _ => None,
        }
    }

    pub fn encode(&self) -> String {
        match self {
            Self::Ready => "ready".to_owned(),
            Self::Failed(why) => format!("failed {why}"),
            Self::Exit { pid, status } => format!("exit {pid} {status}"),
            Self::Swept(killed) => format!("swept {killed}"),
            Self::Signalled(reached) => format!("signalled {reached}"),
        }
    }
}

/// What a keeper is told. Pids are as the keeper sees them, see [`pid_within`]; processes are those of the ward whose socket it is
/// told on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Stop everything, kill all but these, continue these.
    Sweep { keep: Vec<i32> },
    /// Send a signal to everything but these.
    Signal { signal: i32, except: Vec<i32> },
    /// Make a process, of whichever ward, and everything below it a ward of their own. With it comes the keeper's end of the new
    /// ward's socket, where the answer is [`Report::Ready`], or [`Report::Failed`] and the end.
    Ward { pid: i32 },
}

impl Order {
    /// An order has at most this many bytes; the keeper takes a longer one for garbage, and garbage ends it.
    pub const MAX_BYTES: usize = 8192;

    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let mut words = str::from_utf8(datagram).ok()?.split(' ');
        let verb = words.next()?;
        let mut numbers = words.map(|word| word.parse::<i32>().ok());
        match verb {
            "ward" => {
                let pid = numbers.next()??;
                numbers.next().is_none().then_some(Self::Ward { pid })
            }
            "sweep" => Some(Self::Sweep { keep: numbers.collect::<Option<_>>()? }),
            "signal" => Some(Self::Signal { signal: numbers.next()??, except: numbers.collect::<Option<_>>()? }),
            _ => None,
        }
    }

    pub fn encode(&self) -> String {
        let (mut text, pids) = match self {
            Self::Sweep { keep } => ("sweep".to_owned(), &keep[..]),
            Self::Signal { signal, except } => (format!("signal {signal}"), &except[..]),
            Self::Ward { pid } => (format!("ward {pid}"), &[][..]),
        };
        for pid in pids {
            text.push(' ');
            text.push_str(&pid.to_string());
        }
        text
    }
}

/// The network access of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    None,
    /// Streams to the session's own proxy.
    Proxy,
    Host,
}

/// Returns the pid of a process in this namespace, or nothing if it has ended.
pub fn pid_here(pidfd: impl AsFd) -> Option<i32> {
    let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd())).ok()?;
    fdinfo.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok().filter(|pid| *pid > 0)
}

/// The pid of a process in its own pid namespace, which is how its keeper knows it.
///
/// The kernel tells it for a pidfd, so unlike `/proc/PID/status` this cannot be about somebody who got the pid later.
pub fn pid_within(pidfd: impl AsFd) -> io::Result<i32> {
    let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd()))?;
    fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|pids| pids.split_whitespace().next_back())
        .and_then(|pid| pid.parse().ok())
        // A process that has ended has no NSpid, or the pid -1.
        .filter(|&pid| pid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Closes every descriptor of this process above 2 but these, behind the back of whoever owns them: the caller must not return.
fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<_> = keep.iter().filter_map(|&fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().filter(|&fd| fd >= 3) {
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: descriptors are numbers to the kernel; who still uses them is the caller's promise.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Linux before 5.9.
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open {
        if u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd)) {
            // SAFETY: as above. The directory that was listed is closed already; closing it again does nothing.
            unsafe { libc::close(fd) };
        }
    }
}

/// Replaces 0, 1 and 2 by `/dev/null`. Before [`close_all_but`], which closes what this leaves open.
fn silence_standard_streams() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?.into_raw_fd();
    (0..=2).try_for_each(|stream| place(null, stream))
}

/// `dup2`, so the copy survives an exec.
fn place(fd: RawFd, at: RawFd) -> io::Result<()> {
    // SAFETY: whoever owned `at` in this process is not going to use it again.
    if unsafe { libc::dup2(fd, at) } == at { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks a keeper, from outside, to stop all processes below it now. It also ends a turn and a watch.
pub const STOP_ALL: rustix::process::Signal = rustix::process::Signal::USR1;
/// Asks a keeper to stop all processes below it when [`guard::TURN`] has passed. A turn ends even if the daemon gets no processor.
pub const TURN: rustix::process::Signal = rustix::process::Signal::USR2;
/// Asks a keeper to stop all processes below it as soon as they become many.
pub const WATCH: rustix::process::Signal = rustix::process::Signal::HUP;
/// Ends a turn and a watch without stopping anything.
pub const STAND_DOWN: rustix::process::Signal = rustix::process::Signal::URG;

/// Ends this process without running destructors or exit handlers, which belong to the process it was forked from.
fn leave(code: i32) -> ! {
    // SAFETY: always safe, never returns.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_orders_survive_the_wire() {
        for report in [
            Report::Ready,
            Report::Failed("mount tmpfs: Operation not permitted".into()),
            Report::Exit { pid: 7, status: 9 },
            Report::Swept(3),
        ] {
            assert_eq!(Report::parse(report.encode().as_bytes()), Some(report));
        }
        for order in [
            Order::Sweep { keep: vec![] },
            Order::Sweep { keep: vec![2, 31] },
            Order::Signal { signal: 15, except: vec![4] },
            Order::Ward { pid: 7 },
        ] {
            assert_eq!(Order::parse(order.encode().as_bytes()), Some(order));
        }
    }

    #[test]
    fn garbage_is_no_order() {
        for garbage in [&b""[..], b"sweep x", b"signal", b"signal 9 ", b"ward", b"ward 1 2", b"dance 1", b"sweep \xff"]
        {
            assert_eq!(Order::parse(garbage), None, "{}", garbage.escape_ascii());
        }
    }

    #[test]
    fn a_pidfd_tells_the_pid() {
        let pid = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        assert_eq!(pid_within(pidfd).unwrap(), pid.as_raw_nonzero().get());
    }
}
