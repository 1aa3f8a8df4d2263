//! The keeper's loop, the whole life of a process that stays small and runs nobody's code.
//!
//! It must be entered before any runtime: it expects a single thread, and its private memory is paid once per session. Nothing may
//! block it, so reports the daemon does not read yet wait in a bounded queue, and behind that as zombies in the kernel.

use super::datagram::{recv_datagram, try_send_datagram};
use super::{Order, Report, close_all_but, leave, silence_standard_streams, tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Past this many unread reports the keeper takes no orders and leaves its children unreaped.
const MAX_UNSENT: usize = 1024;

/// How long a sweep waits for what it killed to be gone. Only sleep that nothing interrupts lasts longer.
const SWEEP_TIMEOUT: Duration = Duration::from_millis(250);

/// How long to wait for a child's end before looking at the processes again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first process of a pid namespace: when it exits the kernel kills the rest.
    PidOne,
    /// An ordinary process to which the orphans below it fall, and which has to find and kill them itself.
    Subreaper,
}

/// Becomes the keeper whose control socket is `control_fd`.
///
/// Children that exist already, dead or alive, are kept too. What they orphan before `ready` falls to somebody else, so nothing may
/// be run in them until then.
pub fn main(control_fd: RawFd, role: Role) -> ! {
    if control_fd < 0 {
        leave(2);
    }
    // SAFETY: it was passed to this process to be the control socket. If it is not open, polling it says so and that is the end.
    keep(unsafe { OwnedFd::from_raw_fd(control_fd) }, role, None)
}

/// [`main`] of a subreaper, for `pylair __keeper FD`.
pub fn main_from_argument(argument: Option<&str>) -> ! {
    match argument.map(str::parse) {
        Some(Ok(control_fd)) => main(control_fd, Role::Subreaper),
        _ => leave(2),
    }
}

/// Like [`main`], with the Landlock ruleset that goes out with `ready`.
pub(super) fn keep(control: OwnedFd, role: Role, ruleset: Option<OwnedFd>) -> ! {
    match set_up(&control, ruleset) {
        Ok(signals) => Keeper { control, signals, role, unsent: VecDeque::new() }.run(),
        Err((step, error)) => {
            // There may be nobody left to tell.
            let _ = try_send_datagram(&control, Report::Failed(format!("{step}: {error}")).encode().as_bytes(), &[]);
            end(role, None)
        }
    }
}

fn set_up(control: &OwnedFd, ruleset: Option<OwnedFd>) -> Result<OwnedFd, (&'static str, io::Error)> {
    block_signals();
    let step = |name: &'static str| move |error: rustix::io::Errno| (name, io::Error::from(error));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(step("subreaper"))?;
    rustix::thread::set_name(c"pylair-keeper").map_err(step("name"))?;
    // It fails when this is a group's leader already, which is as good.
    let _ = rustix::process::setsid();
    // Not to keep anybody's file system busy.
    rustix::process::chdir("/").map_err(step("chdir"))?;
    silence_standard_streams().map_err(|error| ("standard streams", error))?;
    // Before `ready`: those who come after it may be able to look at our descriptors.
    close_all_but(&[control.as_raw_fd(), ruleset.as_ref().map_or(-1, AsRawFd::as_raw_fd)]);
    let signals = child_signals().map_err(|error| ("signalfd", error))?;
    rustix::io::ioctl_fionbio(control, true).map_err(step("control"))?;
    let passed: Vec<_> = ruleset.iter().map(AsFd::as_fd).collect();
    try_send_datagram(control, Report::Ready.encode().as_bytes(), &passed).map_err(|error| ("ready", error))?;
    drop(ruleset);
    Ok(signals)
}

struct Keeper {
    control: OwnedFd,
    signals: OwnedFd,
    role: Role,
    unsent: VecDeque<Report>,
}

impl Keeper {
    fn run(mut self) -> ! {
        let mut buffer = [0; Order::MAX_BYTES];
        loop {
            self.reap();
            let all_reaped = self.unsent.len() < MAX_UNSENT;
            if self.send_reports().is_err() {
                end(self.role, Some(&self.signals));
            }
            if !all_reaped && self.unsent.len() < MAX_UNSENT {
                // Those that are dead already do not signal again.
                continue;
            }
            let mut interest = PollFlags::empty();
            interest.set(PollFlags::IN, self.unsent.len() < MAX_UNSENT);
            interest.set(PollFlags::OUT, !self.unsent.is_empty());
            let mut fds = [PollFd::new(&self.control, interest), PollFd::new(&self.signals, PollFlags::IN)];
            // Nothing interrupts it, every signal is blocked; and a failure would only make it look again.
            let _ = poll(&mut fds, None);
            let (control, signals) = (fds[0].revents(), fds[1].revents());
            if !signals.is_empty() {
                drain(&self.signals);
            }
            if control.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                end(self.role, Some(&self.signals));
            }
            if control.contains(PollFlags::IN) {
                self.obey(&mut buffer);
            }
        }
    }

    fn obey(&mut self, buffer: &mut [u8]) {
        let order = match recv_datagram(&self.control, buffer) {
            Ok(datagram) => Order::parse(datagram.bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => None,
        };
        match order {
            Some(Order::Sweep { keep }) => {
                let killed = self.sweep(&keep);
                self.unsent.push_back(Report::Swept(killed));
            }
            Some(Order::Signal { signal, except }) => {
                let below = self.below();
                let meant = below.into_iter().filter(|process| !except.contains(&process.pid));
                // One that is gone, or not ours to signal, does not count; there is nobody to tell who could do better.
                let reached = meant.filter(|process| send_signal(process.pid, signal).is_ok()).count();
                self.unsent.push_back(Report::Signalled(reached));
            }
            // The end of the connection, or garbage, which is a reason to end it.
            None => end(self.role, Some(&self.signals)),
        }
    }

    /// Kills everything below but `keep`, and says how many that were.
    fn sweep(&self, keep: &[i32]) -> usize {
        let deadline = Instant::now() + SWEEP_TIMEOUT;
        let (stopped, mut processes) = stop_everything(self.role, deadline);
        let mut killed = Vec::new();
        loop {
            let mut alive = false;
            for process in processes.iter().filter(|process| !process.dead && !keep.contains(&process.pid)) {
                alive |= send_signal(process.pid, libc::SIGKILL).is_ok();
                if !killed.contains(&process.pid) {
                    killed.push(process.pid);
                }
            }
            if !alive || Instant::now() >= deadline {
                break;
            }
            wait_for_child(&self.signals, LOOK_AGAIN);
            processes = self.below();
        }
        for &pid in keep.iter().filter(|&pid| stopped.contains(pid)) {
            // It may have been killed from elsewhere.
            let _ = send_signal(pid, libc::SIGCONT);
        }
        killed.len()
    }

    fn below(&self) -> Vec<tree::Process> {
        match self.role {
            Role::PidOne => tree::all(),
            Role::Subreaper => tree::below(own_pid()).processes,
        }
    }

    fn reap(&mut self) {
        while self.unsent.len() < MAX_UNSENT
            && let Ok(Some((pid, status))) = reap_one()
        {
            self.unsent.push_back(Report::Exit { pid, status });
        }
    }

    /// Sends what the socket takes.
    fn send_reports(&mut self) -> io::Result<()> {
        while let Some(report) = self.unsent.front() {
            match try_send_datagram(&self.control, report.encode().as_bytes(), &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                // The kernel is out of memory for datagrams for now.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Stops all processes below, so that nobody can replace those that are killed next. Returns whom it
/// stopped, and who was there at the end.
fn stop_everything(role: Role, deadline: Instant) -> (Vec<i32>, Vec<tree::Process>) {
    let mut stopped = Vec::new();
    loop {
        let processes = match role {
            Role::PidOne => {
                // One call that a fork in progress cannot slip through.
                let _ = send_signal(-1, libc::SIGSTOP);
                tree::all()
            }
            Role::Subreaper => {
                let tree = tree::below(own_pid());
                // The same for whole groups, which is what stops a fork bomb.
                for group in tree.groups {
                    let _ = send_signal(-group, libc::SIGSTOP);
                }
                tree.processes
            }
        };
        let before = stopped.len();
        for process in processes.iter().filter(|process| !process.dead) {
            if !stopped.contains(&process.pid) {
                let _ = send_signal(process.pid, libc::SIGSTOP);
                stopped.push(process.pid);
            }
        }
        if stopped.len() == before || Instant::now() >= deadline {
            return (stopped, processes);
        }
    }
}

/// Takes everything below along.
fn end(role: Role, signals: Option<&OwnedFd>) -> ! {
    if role == Role::PidOne {
        leave(0);
    }
    let mut pause = LOOK_AGAIN;
    loop {
        loop {
            match reap_one() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                // No children, so no descendants either: orphans would have become children.
                Err(_) => leave(0),
            }
        }
        stop_everything(role, Instant::now() + SWEEP_TIMEOUT);
        let mut alive = tree::below(own_pid()).processes;
        alive.retain(|process| !process.dead);
        let refused = alive
            .iter()
            .filter(|process| {
                send_signal(process.pid, libc::SIGKILL)
                    .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            })
            .count();
        if refused > 0 && refused == alive.len() {
            // Setuid programs of somebody else. They were never ours to end.
            leave(1);
        }
        match signals {
            Some(signals) => wait_for_child(signals, pause),
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(SWEEP_TIMEOUT);
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// `kill(2)` with its special pids.
fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The pid and status of one child that ended, however it was cloned. `None` when all are alive, an error when there are none.
fn reap_one() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: the status is written during the call.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some((pid, status))),
    }
}

fn wait_for_child(signals: &OwnedFd, timeout: Duration) {
    let timeout = Timespec::try_from(timeout).ok();
    // Interrupted or not, the caller looks for itself.
    let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], timeout.as_ref());
    drain(signals);
}

fn drain(signals: &OwnedFd) {
    let mut buffer = [0; mem::size_of::<libc::signalfd_siginfo>() * 4];
    while rustix::io::read(signals, &mut buffer[..]).is_ok_and(|bytes| bytes > 0) {}
}

/// Blocks every signal that can be blocked: nothing that is sent to our group, terminal or pid is meant for us.
fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is read. Resetting a handler installs no code of ours.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        // When SIGCHLD is ignored, which survives an exec, children leave no status behind.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

fn child_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is emptied before it is read, and the descriptor that comes back is nobody else's.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::datagram::send_datagram;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Read;
    use std::os::fd::BorrowedFd;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A keeper in a process of its own, with a pipe that every process below it holds open.
    struct Kept {
        control: OwnedFd,
        alive: io::PipeReader,
        pid: i32,
    }

    impl Kept {
        /// `family` runs in the keeper-to-be and forks what it is to keep. Its argument is the pipe.
        fn new(family: impl FnOnce(BorrowedFd<'_>)) -> Self {
            let (control, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let (alive, holder) = io::pipe().unwrap();
            let pid = fork(|| {
                close_all_but(&[theirs.as_raw_fd(), holder.as_raw_fd()]);
                rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
                family(holder.as_fd());
                main(theirs.as_raw_fd(), Role::Subreaper)
            });
            let kept = Self { control, alive, pid };
            assert_eq!(kept.report(), Report::Ready);
            kept
        }

        fn report(&self) -> Report {
            assert!(readable(&self.control), "the keeper says nothing");
            let mut buffer = [0; 256];
            Report::parse(recv_datagram(&self.control, &mut buffer).unwrap().bytes).unwrap()
        }

        fn order(&self, order: &Order) {
            send_datagram(&self.control, order.encode().as_bytes(), &[]).unwrap();
        }

        /// The next number that a process below wrote to the pipe.
        fn number(&mut self) -> i32 {
            assert!(readable(&self.alive), "nobody writes");
            let mut number = [0; 4];
            self.alive.read_exact(&mut number).unwrap();
            i32::from_ne_bytes(number)
        }

        /// Closes the control socket and waits until nothing is left.
        fn close(self) {
            let Self { control, mut alive, pid } = self;
            drop(control);
            while readable(&alive) {
                if alive.read(&mut [0; 1024]).unwrap() == 0 {
                    let mut status = 0;
                    // SAFETY: the status is written during the call.
                    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                    assert_eq!(status, 0);
                    return;
                }
            }
            panic!("something below the keeper is still alive");
        }
    }

    fn readable(fd: impl AsFd) -> bool {
        let timeout = Timespec::try_from(TIMEOUT).unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    fn fork(child: impl FnOnce()) -> i32 {
        // SAFETY: the child is a single thread that never returns from here.
        match unsafe { libc::fork() } {
            0 => {
                child();
                leave(0)
            }
            pid => {
                assert!(pid > 0);
                pid
            }
        }
    }

    fn tell(pipe: BorrowedFd<'_>, number: i32) {
        let _ = rustix::io::write(pipe, &number.to_ne_bytes());
    }

    fn wait_forever() {
        loop {
            // SAFETY: it only waits.
            unsafe { libc::pause() };
        }
    }

    #[test]
    fn exits_are_reported_with_their_status() {
        let mut kept = Kept::new(|pipe| {
            tell(pipe, fork(|| leave(7)));
            tell(pipe, fork(|| drop(send_signal(own_pid(), libc::SIGKILL))));
            // Its parent is gone when it ends, so it falls to the keeper.
            tell(pipe, fork(|| tell(pipe, fork(|| leave(3)))));
        });
        let mut expected: Vec<_> = (0..4).map(|_| kept.number()).collect();
        let mut statuses = Vec::new();
        while !expected.is_empty() {
            let Report::Exit { pid, status } = kept.report() else { panic!("not an exit") };
            let position = expected.iter().position(|&known| known == pid).expect("an unknown pid");
            expected.remove(position);
            statuses.push(status);
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [0, libc::SIGKILL, 3 << 8, 7 << 8]);
        kept.close();
    }

    #[test]
    fn closing_kills_whoever_tried_to_leave() {
        let mut kept = Kept::new(|pipe| {
            fork(|| {
                let _ = rustix::process::setsid();
                fork(|| {
                    let _ = rustix::process::setsid();
                    fork(|| {
                        tell(pipe, 1);
                        wait_forever();
                    });
                });
            });
            fork(|| {
                fork(wait_forever);
                tell(pipe, 1);
                let _ = send_signal(own_pid(), libc::SIGSTOP);
            });
        });
        assert_eq!((kept.number(), kept.number()), (1, 1));
        kept.close();
    }

    /// Never lives longer than it takes to fork the next.
    fn hop(until: Instant, leave_group: bool) {
        while Instant::now() < until {
            // SAFETY: both sides go on as single threads.
            match unsafe { libc::fork() } {
                0 if leave_group => drop(rustix::process::setsid()),
                0 | -1 => {}
                _ => leave(0),
            }
        }
    }

    #[test]
    fn closing_ends_a_fork_bomb() {
        let mut kept = Kept::new(|pipe| {
            let until = Instant::now() + TIMEOUT;
            fork(|| {
                let _ = rustix::process::setsid();
                for _ in 0..16 {
                    fork(|| hop(until, false));
                }
                for _ in 0..3 {
                    fork(|| hop(until, true));
                }
                tell(pipe, 1);
                wait_forever();
            });
        });
        kept.number();
        let start = Instant::now();
        kept.close();
        assert!(start.elapsed() < TIMEOUT / 2, "it only ended by itself");
    }

    #[test]
    fn a_sweep_keeps_the_named() {
        let mut kept = Kept::new(|pipe| {
            let nested = |pipe| {
                tell(pipe, own_pid());
                fork(|| {
                    tell(pipe, own_pid());
                    wait_forever();
                });
                wait_forever();
            };
            fork(|| nested(pipe));
        });
        let (parent, child) = (kept.number(), kept.number());
        kept.order(&Order::Sweep { keep: vec![child] });
        let mut reports = [kept.report(), kept.report()];
        reports.sort_by_key(|report| matches!(report, Report::Swept(_)));
        assert_eq!(reports, [Report::Exit { pid: parent, status: libc::SIGKILL }, Report::Swept(1)]);

        // The kept one runs on: it can be ended by a signal that a stopped process would not see.
        kept.order(&Order::Signal { signal: libc::SIGTERM, except: vec![] });
        assert_eq!(kept.report(), Report::Signalled(1));
        assert_eq!(kept.report(), Report::Exit { pid: child, status: libc::SIGTERM });
        kept.order(&Order::Sweep { keep: vec![child] });
        assert_eq!(kept.report(), Report::Swept(0));
        kept.close();
    }

    #[test]
    fn a_signal_spares_the_named() {
        let mut kept = Kept::new(|pipe| {
            for _ in 0..2 {
                fork(|| {
                    tell(pipe, own_pid());
                    wait_forever();
                });
            }
        });
        let (spared, other) = (kept.number(), kept.number());
        kept.order(&Order::Signal { signal: libc::SIGKILL, except: vec![spared] });
        assert_eq!(kept.report(), Report::Signalled(1));
        assert_eq!(kept.report(), Report::Exit { pid: other, status: libc::SIGKILL });
        kept.order(&Order::Sweep { keep: vec![spared] });
        assert_eq!(kept.report(), Report::Swept(0));
        kept.close();
    }

    #[test]
    fn no_exit_is_lost_when_the_daemon_does_not_read() {
        const CHILDREN: usize = MAX_UNSENT + 1000;
        let kept = Kept::new(|_| {
            for _ in 0..CHILDREN {
                fork(|| leave(0));
            }
        });
        kept.order(&Order::Sweep { keep: vec![] });
        let mut exits = 0;
        let mut swept = false;
        while exits < CHILDREN || !swept {
            match kept.report() {
                Report::Exit { .. } => exits += 1,
                Report::Swept(_) => swept = true,
                report => panic!("{report:?}"),
            }
        }
        kept.close();
    }

    #[test]
    fn garbage_ends_it() {
        let mut kept = Kept::new(|pipe| {
            fork(|| {
                tell(pipe, 1);
                wait_forever();
            });
        });
        kept.number();
        send_datagram(&kept.control, b"dance", &[]).unwrap();
        kept.close();
    }
}
