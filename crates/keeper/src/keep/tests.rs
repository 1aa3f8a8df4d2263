//! Keepers in processes of their own, over families that the tests fork.

use super::*;
use crate::datagram::send_datagram;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::Read;
use std::os::fd::BorrowedFd;

/// Some tests fork thousands of times, each time all of the test program.
const TIMEOUT: Duration = Duration::from_mins(2);

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
        report(&self.control).expect("the keeper ended")
    }

    fn order(&self, order: &Order) {
        send_order(&self.control, order);
    }

    /// Asks for a ward and returns its control socket.
    fn ask_for_ward(&self, pid: i32) -> OwnedFd {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send_datagram(&self.control, Order::Ward { pid }.encode().as_bytes(), &[theirs.as_fd()]).unwrap();
        control
    }

    fn ward(&self, pid: i32) -> OwnedFd {
        let control = self.ask_for_ward(pid);
        assert_eq!(report(&control), Some(Report::Ready));
        control
    }

    fn numbers<const N: usize>(&mut self) -> [i32; N] {
        std::array::from_fn(|_| self.number())
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

/// `None` is the end.
fn report(control: &OwnedFd) -> Option<Report> {
    assert!(readable(control), "the keeper says nothing");
    match recv_datagram(control, &mut [0; 256]) {
        Ok(datagram) => Some(Report::parse(datagram.bytes).unwrap()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        Err(error) => panic!("{error}"),
    }
}

fn send_order(control: &OwnedFd, order: &Order) {
    send_datagram(control, order.encode().as_bytes(), &[]).unwrap();
}

/// The next report that is not an exit.
fn answer(control: &OwnedFd, order: &Order) -> Option<Report> {
    send_order(control, order);
    std::iter::from_fn(|| report(control)).find(|report| !matches!(report, Report::Exit { .. }))
}

/// That a ward consists of these, and that all of them run: a stopped process does not die of this.
#[track_caller]
fn assert_end_by_signal(control: &OwnedFd, pids: &[i32]) {
    let watched: Vec<_> = pids.iter().copied().map(watch).collect();
    let signal = Order::Signal { signal: libc::SIGTERM, except: vec![] };
    assert_eq!(answer(control, &signal), Some(Report::Signalled(pids.len())));
    for pidfd in watched {
        assert!(readable(pidfd), "it was stopped");
    }
}

fn watch(pid: i32) -> OwnedFd {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
}

fn readable(fd: impl AsFd) -> bool {
    readable_within(fd, TIMEOUT)
}

fn readable_within(fd: impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
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

fn fork_bomb(pipe: BorrowedFd<'_>) {
    let until = Instant::now() + TIMEOUT;
    let _ = rustix::process::setsid();
    for _ in 0..16 {
        fork(|| hop(until, false));
    }
    for _ in 0..3 {
        fork(|| hop(until, true));
    }
    tell(pipe, 1);
    wait_forever();
}

#[test]
fn closing_ends_a_fork_bomb() {
    let mut kept = Kept::new(|pipe| {
        fork(|| fork_bomb(pipe));
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

/// How many processes [`household`] makes.
const HOUSEHOLD: usize = 4;

/// A child with a child, one in a session of its own, and an orphan whose session's leader is dead. Each tells its pid.
fn household(pipe: BorrowedFd<'_>) {
    let member = || {
        tell(pipe, own_pid());
        wait_forever();
    };
    fork(|| {
        fork(member);
        member();
    });
    fork(|| {
        let _ = rustix::process::setsid();
        member();
    });
    fork_and_reap(|| {
        let _ = rustix::process::setsid();
        fork(member);
    });
}

/// Returns when the child has ended.
fn fork_and_reap(child: impl FnOnce()) {
    // SAFETY: the status may be left out.
    unsafe { libc::waitpid(fork(child), std::ptr::null_mut(), 0) };
}

/// Blocks SIGUSR1 and returns the set of it.
fn block_go() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is emptied before it is read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1);
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        set.assume_init()
    }
}

fn wait_for_go(set: &libc::sigset_t) {
    // SAFETY: the set is read and the number written during the call.
    unsafe { libc::sigwait(set, &raw mut *Box::new(0)) };
}

fn go(pid: i32) {
    send_signal(pid, libc::SIGUSR1).unwrap();
}

/// A worker, which tells its pid and that of a copy of it, and makes a household. The copy does `then` when it is told to go.
fn worker_and_copy(pipe: BorrowedFd<'_>, then: impl FnOnce()) {
    fork(|| {
        let _ = rustix::process::setsid();
        let set = block_go();
        let copy = fork(|| {
            let _ = rustix::process::setpgid(None, None);
            wait_for_go(&set);
            then();
            wait_forever();
        });
        tell(pipe, own_pid());
        tell(pipe, copy);
        household(pipe);
        wait_forever();
    });
}

/// Two wards with a household each.
struct TwoWards {
    kept: Kept,
    /// All processes of the first ward, its worker first.
    original: Vec<i32>,
    branch: OwnedFd,
    /// All processes of the branch, its worker first.
    branched: Vec<i32>,
}

fn branched() -> TwoWards {
    let mut kept = Kept::new(|pipe| worker_and_copy(pipe, || household(pipe)));
    let [worker, copy] = kept.numbers();
    let original = [&[worker], &kept.numbers::<HOUSEHOLD>()[..]].concat();
    let branch = kept.ward(copy);
    go(copy);
    let branched = [&[copy], &kept.numbers::<HOUSEHOLD>()[..]].concat();
    TwoWards { kept, original, branch, branched }
}

#[test]
fn a_sweep_leaves_the_other_ward_alone() {
    let TwoWards { kept, original, branch, branched } = branched();
    let swept = answer(&kept.control, &Order::Sweep { keep: vec![original[0]] });
    assert_eq!(swept, Some(Report::Swept(HOUSEHOLD)));
    let swept = answer(&branch, &Order::Sweep { keep: branched[..2].to_vec() });
    assert_eq!(swept, Some(Report::Swept(HOUSEHOLD - 1)));
    assert_end_by_signal(&branch, &branched[..2]);
    assert_end_by_signal(&kept.control, &original[..1]);
    drop(branch);
    kept.close();
}

#[test]
fn the_end_of_a_branch_leaves_the_original_alone() {
    let TwoWards { kept, original, branch, branched } = branched();
    let watched: Vec<_> = branched.into_iter().map(watch).collect();
    drop(branch);
    for pidfd in watched {
        assert!(readable(pidfd), "it lives on");
    }
    assert_end_by_signal(&kept.control, &original);
    kept.close();
}

#[test]
fn the_end_of_the_original_leaves_the_branch_alone() {
    let TwoWards { mut kept, original, branch, branched } = branched();
    let watched: Vec<_> = original.into_iter().map(watch).collect();
    kept.control = branch;
    for pidfd in watched {
        assert!(readable(pidfd), "it lives on");
    }
    assert_end_by_signal(&kept.control, &branched);
    kept.close();
}

#[test]
fn a_half_closed_socket_ends_when_its_ward_is_gone() {
    let TwoWards { kept, original, branch, branched } = branched();
    for (control, pids) in [(&branch, branched), (&kept.control, original)] {
        let watched: Vec<_> = pids.into_iter().map(watch).collect();
        rustix::net::shutdown(control, rustix::net::Shutdown::Write).unwrap();
        while let Some(report) = report(control) {
            assert!(matches!(report, Report::Exit { .. }), "{report:?}");
        }
        for pidfd in watched {
            assert!(readable_within(pidfd, Duration::ZERO), "the end came too early");
        }
    }
    kept.close();
}

#[test]
fn the_end_of_a_branch_ends_its_fork_bomb() {
    let mut kept = Kept::new(|pipe| worker_and_copy(pipe, || fork_bomb(pipe)));
    let [worker, copy] = kept.numbers();
    let original = [&[worker], &kept.numbers::<HOUSEHOLD>()[..]].concat();
    let branch = kept.ward(copy);
    go(copy);
    kept.number();
    let start = Instant::now();
    rustix::net::shutdown(&branch, rustix::net::Shutdown::Write).unwrap();
    while report(&branch).is_some() {}
    assert!(start.elapsed() < TIMEOUT / 2, "it only ended by itself");
    // Whatever was left of it would be the original's now.
    assert_end_by_signal(&kept.control, &original);
    kept.close();
}

/// What a branch does that is rolled back: copies itself, orphans somebody with a session of his own, and dies of a signal.
fn rolled_back(pipe: BorrowedFd<'_>, set_session: bool) {
    if set_session {
        // Not possible for a group's leader.
        // SAFETY: two calls without pointers.
        unsafe { libc::setpgid(0, libc::getsid(0)) };
        assert!(rustix::process::setsid().is_ok());
    }
    let set = block_go();
    let copy = fork(|| {
        let _ = rustix::process::setpgid(None, None);
        wait_forever();
    });
    tell(pipe, copy);
    fork(|| {
        let _ = rustix::process::setsid();
        tell(pipe, own_pid());
        wait_forever();
    });
    wait_for_go(&set);
    leave(0);
}

#[test]
fn a_ward_survives_its_first_process() {
    // Without a mark the session tells, and what was seen before.
    for marked in [true, false] {
        let mut kept = Kept::new(|pipe| {
            if !marked {
                let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
                rustix::process::setrlimit(rustix::process::Resource::Rttime, none).unwrap();
            }
            worker_and_copy(pipe, || rolled_back(pipe, !marked));
        });
        let [worker, first] = kept.numbers();
        let original = [&[worker], &kept.numbers::<HOUSEHOLD>()[..]].concat();
        let branch = kept.ward(first);
        go(first);
        let [copy, orphan] = kept.numbers();
        if !marked {
            let look = Order::Signal { signal: 0, except: vec![] };
            assert_eq!(answer(&branch, &look), Some(Report::Signalled(3)));
        }
        let (gone, orphan) = (watch(first), watch(orphan));
        go(first);
        assert!(readable(gone));
        assert_eq!(answer(&branch, &Order::Sweep { keep: vec![copy] }), Some(Report::Swept(1)), "marked: {marked}");
        assert!(readable(orphan));
        assert_end_by_signal(&branch, &[copy]);
        drop(branch);
        assert_end_by_signal(&kept.control, &original);
        kept.close();
    }
}

#[test]
fn a_ward_needs_a_living_process_and_a_socket() {
    let mut kept = Kept::new(|pipe| {
        for _ in 0..2 {
            fork(|| {
                tell(pipe, own_pid());
                wait_forever();
            });
        }
    });
    let [first, second] = kept.numbers();
    for pid in [kept.pid, own_pid(), 1, 0, -1] {
        let refused = kept.ask_for_ward(pid);
        let why = format!("ward: there is no process {pid} below");
        assert_eq!((report(&refused), report(&refused)), (Some(Report::Failed(why)), None));
    }
    let mut wards: Vec<_> = (1..MAX_WARDS).map(|_| kept.ward(first)).collect();
    let refused = kept.ask_for_ward(second);
    assert_eq!((report(&refused), report(&refused)), (Some(Report::Failed("too many wards".into())), None));

    // The last one that asked has it. Without a socket an order makes no sense, and ends only the ward it comes from.
    let last = wards.pop().unwrap();
    send_order(&wards[0], &Order::Ward { pid: second });
    assert_eq!(report(&wards[0]), None);
    assert_end_by_signal(&last, &[first]);
    assert_end_by_signal(&kept.control, &[second]);
    drop((wards, last));
    kept.close();
}

#[test]
fn who_does_not_read_keeps_nothing_from_the_others() {
    const ORPHANS: usize = MAX_UNSENT + 1000;
    let mut kept = Kept::new(|pipe| {
        worker_and_copy(pipe, || {
            for _ in 0..ORPHANS {
                fork_and_reap(|| {
                    fork(|| leave(5));
                });
            }
        });
    });
    let [_, copy] = kept.numbers();
    let branch = kept.ward(copy);
    go(copy);
    let exits = std::iter::from_fn(|| report(&branch)).filter(|report| matches!(report, Report::Exit { .. }));
    assert_eq!(exits.take(ORPHANS).count(), ORPHANS);
    // The other has its own queue of orders, too.
    assert!(matches!(answer(&kept.control, &Order::Sweep { keep: vec![] }), Some(Report::Swept(_))));
    drop(branch);
    kept.close();
}
