//! The keeper's loop: the whole life of a process that stays small and runs no user code.
//!
//! It must be entered before any runtime: it expects a single thread, and its private memory is paid once per session. Nothing may
//! block it, so reports the daemon does not read yet wait in bounded queues, and behind those as zombies in the kernel.
//!
//! Every session below is a ward with a control socket of its own. An order is about the processes of the ward it came to, and so
//! is the end of a socket; when the last socket ends, the keeper ends. `wards` decides which process belongs to which ward.

use super::datagram::{recv_datagram, try_send_datagram};
use super::guard::{Asked, Decision, Guard};
use super::slices;
use super::wards::{Roll, WardId};
use super::{Order, Report, STAND_DOWN, STOP_ALL, TURN, WATCH, close_all_but, leave, silence_standard_streams, tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Past this many unread reports of a ward the keeper takes no orders from it. When that is so of all wards it leaves its children
/// unreaped; otherwise that ward misses exits, because somebody who does not read must not keep them from the others. It misses them
/// also while another ward is ending: who is hunted is not found among ever more zombies.
const MAX_UNSENT: usize = 1024;

/// How often nothing has to be found of a ward for it to be gone although processes, maybe those of another one, die all the time.
const MAX_EMPTY_LOOKS: u32 = 16;

/// Those that are ending count too.
const MAX_WARDS: usize = 64;

/// Time for which a sweep waits until killed processes have ended. Only uninterruptible sleep lasts longer.
const SWEEP_TIMEOUT: Duration = Duration::from_millis(250);

/// Time in which processes are killed a few at a time, before the rest is killed at once.
const GENTLY: Duration = Duration::from_secs(1);
/// Number of processes that are killed at a time. The exits of a hundred forks wait for each other in the kernel, and so do the forks
/// and exits of other sessions that came from the same template.
const BATCH: usize = 8;

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
    keep(unsafe { OwnedFd::from_raw_fd(control_fd) }, role, Vec::new())
}

/// [`main`] of a subreaper, for `pylair __keeper FD`.
pub fn main_from_argument(argument: Option<&str>) -> ! {
    match argument.map(str::parse) {
        Some(Ok(control_fd)) => main(control_fd, Role::Subreaper),
        _ => leave(2),
    }
}

/// Like [`main`], with descriptors that go out with `ready`.
pub(super) fn keep(control: OwnedFd, role: Role, gifts: Vec<OwnedFd>) -> ! {
    match set_up(&control, gifts) {
        Ok(signals) => Keeper {
            signals,
            role,
            wards: vec![Ward::new(WardId::FIRST, control)],
            newest: WardId::FIRST,
            roll: Roll::new(),
            guard: Guard::default(),
        }
        .run(),
        Err((step, error)) => {
            // The other end may be closed.
            let _ = try_send_datagram(&control, Report::Failed(format!("{step}: {error}")).encode().as_bytes(), &[]);
            end(role, None)
        }
    }
}

fn set_up(control: &OwnedFd, gifts: Vec<OwnedFd>) -> Result<OwnedFd, (&'static str, io::Error)> {
    block_signals();
    slices::shorten_slices();
    let step = |name: &'static str| move |error: rustix::io::Errno| (name, io::Error::from(error));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(step("subreaper"))?;
    rustix::thread::set_name(c"pylair-keeper").map_err(step("name"))?;
    // This fails if the process already leads a group, which is just as good.
    let _ = rustix::process::setsid();
    // So that the keeper keeps no file system busy.
    rustix::process::chdir("/").map_err(step("chdir"))?;
    silence_standard_streams().map_err(|error| ("standard streams", error))?;
    // Before `ready`: those who come after it may be able to look at our descriptors.
    let needed: Vec<_> = std::iter::once(control).chain(&gifts).map(AsRawFd::as_raw_fd).collect();
    close_all_but(&needed);
    let signals = child_signals().map_err(|error| ("signalfd", error))?;
    rustix::io::ioctl_fionbio(control, true).map_err(step("control"))?;
    let passed: Vec<_> = gifts.iter().map(AsFd::as_fd).collect();
    try_send_datagram(control, Report::Ready.encode().as_bytes(), &passed).map_err(|error| ("ready", error))?;
    drop(gifts);
    Ok(signals)
}

struct Keeper {
    signals: OwnedFd,
    role: Role,
    /// In the order of their age.
    wards: Vec<Ward>,
    newest: WardId,
    roll: Roll,
    guard: Guard,
}

struct Ward {
    id: WardId,
    control: OwnedFd,
    unsent: VecDeque<Report>,
    /// Its socket has ended and its processes are being killed.
    ending: Option<Ending>,
}

#[derive(Clone, Copy)]
struct Ending {
    /// How long to wait before looking again.
    pause: Duration,
    empty_looks: u32,
}

impl Ward {
    fn new(id: WardId, control: OwnedFd) -> Self {
        Self { id, control, unsent: VecDeque::new(), ending: None }
    }

    fn has_room(&self) -> bool {
        self.unsent.len() < MAX_UNSENT
    }

    fn end(&mut self) {
        self.ending.get_or_insert(Ending { pause: LOOK_AGAIN, empty_looks: 0 });
    }

    /// Sends as many reports as the socket accepts.
    fn send_reports(&mut self) {
        while let Some(report) = self.unsent.front() {
            match try_send_datagram(&self.control, report.encode().as_bytes(), &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                // The kernel has no memory for datagrams at the moment.
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
            let all_reaped = self.may_reap();
            self.send_reports();
            self.end_wards();
            if !all_reaped && self.may_reap() {
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
        let ending = self.wards.iter().filter_map(|ward| ward.ending).map(|ending| ending.pause);
        let look_again = ending.chain(self.guard.pause()).min();
        let timeout = look_again.and_then(|pause| Timespec::try_from(pause).ok());
        // Nothing interrupts it, every signal is blocked; and a failure would only make it look again.
        let _ = poll(&mut fds, timeout.as_ref());
        let happened: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let of_wards: Vec<_> = open().map(|ward| ward.id).zip(happened[1..].iter().copied()).collect();
        let asked = if happened[0].is_empty() { Asked::default() } else { drain(&self.signals) };
        // Whom the daemon wants to go on it continues. Where there are several sessions it stops processes one by one.
        if self.role == Role::PidOne && self.wards.len() == 1 {
            match self.guard.decide(asked, Instant::now()) {
                Decision::Nothing => {}
                Decision::Stop => drop(send_signal(-1, libc::SIGSTOP)),
                Decision::StopAllBut(pid) => {
                    let _ = send_signal(-1, libc::SIGSTOP);
                    let _ = send_signal(pid, libc::SIGCONT);
                }
            }
        } else {
            // Several sessions below one keeper are stopped by the daemon, process by process.
            self.guard = Guard::default();
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

    /// Kills all processes of a ward except `keep`, and returns their number.
    fn sweep(&mut self, ward: WardId, keep: &[i32]) -> usize {
        let began = Instant::now();
        let (stopped, mut processes) = self.stop_everything(ward, began + SWEEP_TIMEOUT);
        let mut killed = Vec::new();
        loop {
            let mut alive = false;
            let gently = began.elapsed() < GENTLY;
            let meant = processes.iter().filter(|process| !process.dead && !keep.contains(&process.pid));
            for process in meant.take(if gently { BATCH } else { usize::MAX }) {
                alive |= send_signal(process.pid, libc::SIGKILL).is_ok();
                if !killed.contains(&process.pid) {
                    killed.push(process.pid);
                }
            }
            if !alive || began.elapsed() >= GENTLY + SWEEP_TIMEOUT {
                break;
            }
            wait_for_child(&self.signals, LOOK_AGAIN);
            // The daemon may have continued some meanwhile.
            self.stop_all_at_once();
            processes = self.look(ward).processes;
        }
        for &pid in keep.iter().filter(|&pid| stopped.contains(pid)) {
            // It may have been killed from elsewhere.
            let _ = send_signal(pid, libc::SIGCONT);
        }
        killed.len()
    }

    fn stop_everything(&mut self, ward: WardId, deadline: Instant) -> (Vec<i32>, Vec<tree::Process>) {
        stop_everything(deadline, || {
            self.stop_all_at_once();
            self.look(ward)
        })
    }

    /// Stops everything below with one call that a fork in progress cannot slip through, where that reaches one ward only.
    fn stop_all_at_once(&self) {
        if self.role == Role::PidOne && self.wards.len() == 1 {
            let _ = send_signal(-1, libc::SIGSTOP);
        }
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

    fn may_reap(&self) -> bool {
        self.wards.iter().any(|ward| ward.ending.is_some() || ward.has_room())
    }

    fn reap(&mut self) {
        while self.may_reap()
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
        let ending: Vec<_> = self.wards.iter().filter_map(|ward| Some((ward.id, ward.ending?))).collect();
        for (id, mut ending) in ending {
            let found = self.kill_everything(id);
            ending.pause = (ending.pause * 2).min(SWEEP_TIMEOUT);
            ending.empty_looks = if found == Remains::Somebody { 0 } else { ending.empty_looks + 1 };
            if found == Remains::Nobody || ending.empty_looks >= MAX_EMPTY_LOOKS {
                self.reap();
                self.send_reports();
                self.wards.retain(|ward| ward.id != id);
            } else if let Some(ward) = self.wards.iter_mut().find(|ward| ward.id == id) {
                ward.ending = Some(ending);
            }
        }
    }

    fn kill_everything(&mut self, ward: WardId) -> Remains {
        drain(&self.signals);
        self.stop_everything(ward, Instant::now() + SWEEP_TIMEOUT);
        let (alive, refused) = kill_all(&self.look(ward).processes);
        let mut died = [PollFd::new(&self.signals, PollFlags::IN)];
        if alive > refused {
            Remains::Somebody
        } else if poll(&mut died, Some(&Timespec::default())).is_ok_and(|ready| ready == 0) {
            Remains::Nobody
        } else {
            Remains::Traces
        }
    }
}

/// What is left of a ward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remains {
    Somebody,
    /// Nobody, but a process died meanwhile: one that hands over to a child before it is looked at is never found.
    Traces,
    /// At most processes that cannot be killed.
    Nobody,
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

/// Kills every process below the keeper.
fn end(role: Role, signals: Option<&OwnedFd>) -> ! {
    if role == Role::PidOne {
        if let Some(signals) = signals {
            // Leaving does it too, but closes the sockets first, and their end says that nothing is left.
            end_gently(signals);
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

/// Kills all processes of this namespace a few at a time, if they are many.
fn end_gently(signals: &OwnedFd) {
    let began = Instant::now();
    loop {
        // Stopped processes cannot fork replacements for killed ones.
        let _ = send_signal(-1, libc::SIGSTOP);
        let alive: Vec<_> = tree::all().processes.into_iter().filter(|process| !process.dead).collect();
        if alive.len() <= 2 * BATCH || began.elapsed() >= GENTLY {
            return;
        }
        for process in &alive[..BATCH] {
            let _ = send_signal(process.pid, libc::SIGKILL);
        }
        wait_for_child(signals, LOOK_AGAIN);
        while matches!(reap_one(), Ok(Some(_))) {}
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
    // Interrupted or not, the caller checks again.
    let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], timeout.as_ref());
    drain(signals);
}

/// Takes the signals that came. Only those from outside of the namespace count: a sender inside has a pid.
fn drain(signals: &OwnedFd) -> Asked {
    const LENGTH: usize = mem::size_of::<libc::signalfd_siginfo>();
    let number = |signal: &[u8], at: usize| signal[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    let mut buffer = [0; LENGTH * 4];
    let mut asked = Asked::default();
    while let Ok(bytes) = rustix::io::read(signals, &mut buffer[..])
        && bytes > 0
    {
        for signal in buffer[..bytes].chunks_exact(LENGTH) {
            let code = number(signal, mem::offset_of!(libc::signalfd_siginfo, ssi_code)).cast_signed();
            // The kernel itself has no pid either, and sends what processes inside ask it to (`F_SETSIG`).
            if number(signal, mem::offset_of!(libc::signalfd_siginfo, ssi_pid)) != 0 || code > 0 {
                continue;
            }
            let is = |wanted: rustix::process::Signal| number(signal, 0) == wanted.as_raw().cast_unsigned();
            asked.stop |= is(STOP_ALL);
            if is(TURN) {
                let value = number(signal, mem::offset_of!(libc::signalfd_siginfo, ssi_int));
                asked.turn = Some(value.cast_signed());
            }
            asked.watch |= is(WATCH);
            asked.stand_down |= is(STAND_DOWN);
        }
    }
    asked
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
        for asked in [STOP_ALL, TURN, WATCH, STAND_DOWN] {
            libc::sigaddset(set.as_mut_ptr(), asked.as_raw());
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests;
