//! The keeper's loop, the whole life of a process that stays small and runs nobody's code.
//!
//! It must be entered before any runtime: it expects a single thread, and its private memory is paid once per session. Nothing may
//! block it, so reports the daemon does not read yet wait in bounded queues, and behind those as zombies in the kernel.
//!
//! Every session below is a ward with a control socket of its own. An order is about the processes of the ward it came to, and so
//! is the end of a socket; the end of the last one is that of the keeper. Who belongs to which ward is for `wards` to say.

use super::datagram::{recv_datagram, try_send_datagram};
use super::wards::{Roll, WardId};
use super::{Order, Report, close_all_but, leave, silence_standard_streams, tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Past this many unread reports of a ward the keeper takes no orders from it. When that is so of all wards it leaves its children
/// unreaped; otherwise that ward misses exits, because somebody who does not read must not keep them from the others.
const MAX_UNSENT: usize = 1024;

/// Those that are ending count too.
const MAX_WARDS: usize = 64;

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
        Ok(signals) => Keeper {
            signals,
            role,
            wards: vec![Ward::new(WardId::FIRST, control)],
            newest: WardId::FIRST,
            roll: Roll::new(),
        }
        .run(),
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
    signals: OwnedFd,
    role: Role,
    /// In the order of their age.
    wards: Vec<Ward>,
    newest: WardId,
    roll: Roll,
}

struct Ward {
    id: WardId,
    control: OwnedFd,
    unsent: VecDeque<Report>,
    /// Its socket has ended and its processes are being killed: how long to wait before looking again.
    ending: Option<Duration>,
}

impl Ward {
    fn new(id: WardId, control: OwnedFd) -> Self {
        Self { id, control, unsent: VecDeque::new(), ending: None }
    }

    fn has_room(&self) -> bool {
        self.unsent.len() < MAX_UNSENT
    }

    fn end(&mut self) {
        self.ending.get_or_insert(LOOK_AGAIN);
    }

    /// Sends what the socket takes.
    fn send_reports(&mut self) {
        while let Some(report) = self.unsent.front() {
            match try_send_datagram(&self.control, report.encode().as_bytes(), &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                // The kernel is out of memory for datagrams for now.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => {
                    break;
                }
                Err(_) => {
                    self.end();
                    break;
                }
            }
        }
    }
}

impl Keeper {
    fn run(mut self) -> ! {
        let mut buffer = [0; Order::MAX_BYTES];
        loop {
            self.reap();
            let all_reaped = self.has_room();
            self.send_reports();
            self.end_wards();
            if !all_reaped && self.has_room() {
                // Those that are dead already do not signal again.
                continue;
            }
            for id in self.wait() {
                if let Some(index) = self.wards.iter().position(|ward| ward.id == id) {
                    self.obey(index, &mut buffer);
                }
            }
        }
    }

    /// Waits until there is something to do, and says which wards have orders.
    fn wait(&mut self) -> Vec<WardId> {
        let interest = |ward: &Ward| {
            let mut interest = PollFlags::empty();
            interest.set(PollFlags::IN, ward.has_room());
            interest.set(PollFlags::OUT, !ward.unsent.is_empty());
            interest
        };
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        // One that is ending may have hung up, which nobody could wait out.
        let open = || self.wards.iter().filter(|ward| ward.ending.is_none());
        fds.extend(open().map(|ward| PollFd::new(&ward.control, interest(ward))));
        let look_again = self.wards.iter().filter_map(|ward| ward.ending).min();
        let timeout = look_again.and_then(|pause| Timespec::try_from(pause).ok());
        // Nothing interrupts it, every signal is blocked; and a failure would only make it look again.
        let _ = poll(&mut fds, timeout.as_ref());
        let happened: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let of_wards: Vec<_> = open().map(|ward| ward.id).zip(happened[1..].iter().copied()).collect();
        if !happened[0].is_empty() {
            drain(&self.signals);
        }
        let hung_up = |happened: PollFlags| happened.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        for ward in &mut self.wards {
            if of_wards.iter().any(|&(id, happened)| id == ward.id && hung_up(happened)) {
                ward.end();
            }
        }
        let ordered = |happened: PollFlags| happened.contains(PollFlags::IN) && !hung_up(happened);
        of_wards.into_iter().filter(|&(_, happened)| ordered(happened)).map(|(id, _)| id).collect()
    }

    fn obey(&mut self, index: usize, buffer: &mut [u8]) {
        let id = self.wards[index].id;
        let (order, passed) = match recv_datagram(&self.wards[index].control, buffer) {
            Ok(datagram) => (Order::parse(datagram.bytes), datagram.fds),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => (None, Vec::new()),
        };
        match (order, <[OwnedFd; 1]>::try_from(passed)) {
            (Some(Order::Sweep { keep }), _) => {
                let killed = self.sweep(id, &keep);
                self.wards[index].unsent.push_back(Report::Swept(killed));
            }
            (Some(Order::Signal { signal, except }), _) => {
                let processes = self.look(id).processes;
                let meant = processes.into_iter().filter(|process| !process.dead && !except.contains(&process.pid));
                // One that is gone, or not ours to signal, does not count; there is nobody to tell who could do better.
                let reached = meant.filter(|process| send_signal(process.pid, signal).is_ok()).count();
                self.wards[index].unsent.push_back(Report::Signalled(reached));
            }
            (Some(Order::Ward { pid }), Ok([control])) => self.make_ward(pid, control),
            // The end of the connection or of its other half, or garbage, which is a reason to end it.
            (Some(Order::Ward { .. }) | None, _) => self.wards[index].end(),
        }
    }

    fn make_ward(&mut self, pid: i32, control: OwnedFd) {
        let report = match self.admit(pid) {
            Ok(()) => Report::Ready,
            Err(why) => Report::Failed(why),
        };
        let told = rustix::io::ioctl_fionbio(&control, true)
            .map_err(io::Error::from)
            .and_then(|()| try_send_datagram(&control, report.encode().as_bytes(), &[]));
        // When nobody can be told there is no ward, and its processes are again whose they were.
        if told.is_ok() && report == Report::Ready {
            self.wards.push(Ward::new(self.newest, control));
        }
    }

    /// Before the daemon hears of it, so that whatever it lets the process do then is known to be the ward's.
    fn admit(&mut self, pid: i32) -> Result<(), String> {
        if self.wards.len() >= MAX_WARDS {
            return Err("too many wards".to_owned());
        }
        let tree = self.below();
        let first = tree.processes.iter().find(|process| process.pid == pid && !process.dead);
        let first = first.ok_or_else(|| format!("ward: there is no process {pid} below"))?;
        self.newest = self.newest.next();
        let wards: Vec<_> = self.wards.iter().map(|ward| ward.id).chain([self.newest]).collect();
        self.roll.admit(first, &tree.processes, &wards);
        Ok(())
    }

    /// Kills everything of a ward but `keep`, and says how many that were.
    fn sweep(&mut self, ward: WardId, keep: &[i32]) -> usize {
        let deadline = Instant::now() + SWEEP_TIMEOUT;
        let (stopped, mut processes) = self.stop_everything(ward, deadline);
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
            processes = self.look(ward).processes;
        }
        for &pid in keep.iter().filter(|&pid| stopped.contains(pid)) {
            // It may have been killed from elsewhere.
            let _ = send_signal(pid, libc::SIGCONT);
        }
        killed.len()
    }

    fn stop_everything(&mut self, ward: WardId, deadline: Instant) -> (Vec<i32>, Vec<tree::Process>) {
        let everybody = self.role == Role::PidOne && self.wards.len() == 1;
        stop_everything(deadline, || {
            if everybody {
                // One call that a fork in progress cannot slip through.
                let _ = send_signal(-1, libc::SIGSTOP);
            }
            self.look(ward)
        })
    }

    /// What belongs to a ward.
    fn look(&mut self, ward: WardId) -> tree::Tree {
        let mut tree = self.below();
        if self.wards.len() > 1 {
            let wards: Vec<_> = self.wards.iter().map(|ward| ward.id).collect();
            let mut belongs = self.roll.tell_apart(&tree.processes, &wards).into_iter();
            tree.retain(|_| belongs.next() == Some(ward));
        }
        tree
    }

    fn below(&self) -> tree::Tree {
        match self.role {
            Role::PidOne => tree::all(),
            Role::Subreaper => tree::below(own_pid()),
        }
    }

    fn has_room(&self) -> bool {
        self.wards.iter().any(|ward| ward.ending.is_none() && ward.has_room())
    }

    fn reap(&mut self) {
        while self.has_room()
            && let Ok(Some((pid, status))) = reap_one()
        {
            for ward in self.wards.iter_mut().filter(|ward| ward.has_room()) {
                ward.unsent.push_back(Report::Exit { pid, status });
            }
        }
    }

    fn send_reports(&mut self) {
        self.wards.iter_mut().for_each(Ward::send_reports);
    }

    /// Goes on killing what belongs to wards that are ending, and closes the sockets of those that have nothing left.
    fn end_wards(&mut self) {
        if self.wards.iter().all(|ward| ward.ending.is_some()) {
            end(self.role, Some(&self.signals));
        }
        let ending: Vec<_> = self.wards.iter().filter(|ward| ward.ending.is_some()).map(|ward| ward.id).collect();
        for id in ending {
            if self.kill_everything(id) {
                self.reap();
                self.send_reports();
                self.wards.retain(|ward| ward.id != id);
            }
        }
        for pause in self.wards.iter_mut().filter_map(|ward| ward.ending.as_mut()) {
            *pause = (*pause * 2).min(SWEEP_TIMEOUT);
        }
    }

    /// Whether nothing was left of a ward that could be killed.
    fn kill_everything(&mut self, ward: WardId) -> bool {
        self.stop_everything(ward, Instant::now() + SWEEP_TIMEOUT);
        let (alive, refused) = kill_all(&self.look(ward).processes);
        alive == refused
    }
}

/// Stops all processes that `look` finds, so that nobody can replace those that are killed next. Returns whom it stopped, and who
/// was there at the end.
fn stop_everything(deadline: Instant, mut look: impl FnMut() -> tree::Tree) -> (Vec<i32>, Vec<tree::Process>) {
    let mut stopped = Vec::new();
    loop {
        let tree = look();
        // A fork in progress cannot slip through a signal to its group, which is what stops a fork bomb.
        for group in tree.groups() {
            let _ = send_signal(-group, libc::SIGSTOP);
        }
        let before = stopped.len();
        for process in tree.processes.iter().filter(|process| !process.dead) {
            if !stopped.contains(&process.pid) {
                let _ = send_signal(process.pid, libc::SIGSTOP);
                stopped.push(process.pid);
            }
        }
        if stopped.len() == before || Instant::now() >= deadline {
            return (stopped, tree.processes);
        }
    }
}

/// Kills those of them that are alive. Returns how many these were, and how many of them refused: setuid programs of somebody else,
/// which were never ours to end.
fn kill_all(processes: &[tree::Process]) -> (usize, usize) {
    let (mut alive, mut refused) = (0, 0);
    for process in processes.iter().filter(|process| !process.dead) {
        alive += 1;
        let killed = send_signal(process.pid, libc::SIGKILL);
        refused += usize::from(killed.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied));
    }
    (alive, refused)
}

/// Takes everything below along.
fn end(role: Role, signals: Option<&OwnedFd>) -> ! {
    if role == Role::PidOne {
        if let Some(signals) = signals {
            // Leaving does it too, but closes the sockets first, and their end says that nothing is left.
            let deadline = Instant::now() + SWEEP_TIMEOUT;
            while send_signal(-1, libc::SIGKILL).is_ok()
                && tree::all().processes.iter().any(|process| !process.dead)
                && Instant::now() < deadline
            {
                wait_for_child(signals, LOOK_AGAIN);
            }
        }
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
        let below = || tree::below(own_pid());
        stop_everything(Instant::now() + SWEEP_TIMEOUT, below);
        let (alive, refused) = kill_all(&below().processes);
        if refused > 0 && refused == alive {
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
    struct Branched {
        kept: Kept,
        /// All processes of the first ward, its worker first.
        original: Vec<i32>,
        branch: OwnedFd,
        /// All processes of the branch, its worker first.
        branched: Vec<i32>,
    }

    fn branched() -> Branched {
        let mut kept = Kept::new(|pipe| worker_and_copy(pipe, || household(pipe)));
        let [worker, copy] = kept.numbers();
        let original = [&[worker], &kept.numbers::<HOUSEHOLD>()[..]].concat();
        let branch = kept.ward(copy);
        go(copy);
        let branched = [&[copy], &kept.numbers::<HOUSEHOLD>()[..]].concat();
        Branched { kept, original, branch, branched }
    }

    #[test]
    fn a_sweep_leaves_the_other_ward_alone() {
        let Branched { kept, original, branch, branched } = branched();
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
        let Branched { kept, original, branch, branched } = branched();
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
        let Branched { mut kept, original, branch, branched } = branched();
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
        let Branched { kept, original, branch, branched } = branched();
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

    /// What a branch does that is rolled back: copies itself, orphans somebody with a session of his own, and dies of a signal.
    fn rolled_back(pipe: BorrowedFd<'_>, set_session: bool) {
        if set_session {
            // Not possible for a group's leader.
            let _ = rustix::process::setpgid(None, rustix::process::getsid(None).ok());
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
                    fork_and_reap(|| drop(fork(|| leave(5))));
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
}
