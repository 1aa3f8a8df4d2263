//! One thread of another process, held and given back as it was. Linux on `x86_64`.
//!
//! `PTRACE_SEIZE` and `PTRACE_INTERRUPT`: the thread gets no signal, its stop and that of its group stay what they are, and no other
//! thread is stopped. Tracing belongs to the thread that began it, and when that thread ends the kernel lets go of whatever it traced;
//! so this runs in a process of its own (`child.rs`), whose end is never anybody else's.
//!
//! If that process is killed while it holds a thread the thread goes on from where it is. Between the beginning of `Held::call` and its end,
//! about a millisecond, that is code of ours whose last instruction then ends the process; at all other times nothing has been changed yet,
//! or all has been put back.
//! Only SIGKILL can do that: other signals are blocked while a thread is held.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{
    code::{Piece, SYSCALL_RET},
    parcel::Placed,
    sigframe,
};
use crate::elf::Memory;
use crate::{interpreter::Interpreter, memory::ProcessMemory};

/// How long a thread may take to stop: one in an uninterruptible sleep does not at all.
const STOP_LIMIT: Duration = Duration::from_millis(500);
const SYSCALL_LIMIT: Duration = Duration::from_secs(2);
/// How long one that is in our code may take to stop. To give up then is to lose the process.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
/// What a system call returns inside of the kernel when it is to be begun again with the time that is left.
const RESTART_BLOCK: i64 = -516;

const NT_X86_XSTATE: usize = 0x202;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
/// Room for the largest state there is today (AMX), twice.
const XSTATE_BYTES: usize = 32 << 10;
const RED_ZONE: u64 = 128;
const STACK_WORDS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the thread does not stop")]
    DoesNotStop,
    #[error("the process is stopped by a signal")]
    GroupStop,
    #[error("the thread ended")]
    Ended,
    #[error("the call takes too long")]
    TooLong,
    #[error("the thread does not stop in our code")]
    Lost,
    #[error("the process has begun to run another program")]
    Replaced,
    #[error("the process cannot map memory: {0}")]
    Map(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A thread that is stopped. Dropping it gives it back as it was.
#[derive(Debug)]
pub struct Held<'i> {
    pid: i32,
    tid: i32,
    interpreter: &'i Interpreter,
    registers: libc::user_regs_struct,
    xstate: Vec<u8>,
    /// Signals that came for the thread while we had it.
    signals: Vec<libc::siginfo_t>,
    since: Instant,
    _quiet: Quiet,
    given_back: bool,
}

/// How a call ended.
#[derive(Debug)]
pub enum Call<'i> {
    Returned(Box<Held<'i>>, Returned),
    /// The thread was held for so long and then left to it.
    Left(Duration),
}

/// What a piece of code left in registers.
#[derive(Debug, Clone, Copy)]
pub struct Returned {
    pub rax: u64,
    pub rbx: u64,
}

impl<'i> Held<'i> {
    /// Stops one thread.
    pub fn stop(pid: i32, tid: i32, interpreter: &'i Interpreter) -> Result<Self, Error> {
        let quiet = Quiet::new();
        request(libc::PTRACE_SEIZE, tid, 0, 0)?;
        let since = Instant::now();
        request(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        let until = since + STOP_LIMIT;
        loop {
            let stop = wait(tid, until)?.ok_or(Error::DoesNotStop)?;
            match stop {
                // On its way to the thread before we came: it goes there, and the thread stops at whatever it does.
                Stop::Signal(signal) => request(libc::PTRACE_CONT, tid, 0, number(signal))?,
                Stop::Group => {
                    request(libc::PTRACE_DETACH, tid, 0, 0)?;
                    return Err(Error::GroupStop);
                }
                Stop::Interrupt => break,
            }
        }
        let mut gadget = [0; 3];
        if interpreter.memory.read(interpreter.syscall, &mut gadget).is_err() || gadget != SYSCALL_RET {
            request(libc::PTRACE_DETACH, tid, 0, 0)?;
            return Err(Error::Replaced);
        }
        let registers = registers(tid)?;
        let mut xstate = vec![0; XSTATE_BYTES];
        let length = regset(libc::PTRACE_GETREGSET, tid, &mut xstate)?;
        xstate.truncate(length);
        Ok(Self {
            pid,
            tid,
            interpreter,
            registers,
            xstate,
            signals: Vec::new(),
            since,
            _quiet: quiet,
            given_back: false,
        })
    }

    /// The system call the thread is in, if it is in one.
    pub fn syscall(&self) -> Option<i64> {
        let number = self.registers.orig_rax.cast_signed();
        (number >= 0 && self.interpreter.is_behind_syscall(self.registers.rip)).then_some(number)
    }

    pub fn instruction(&self) -> u64 {
        self.registers.rip
    }

    /// The first argument of the system call the thread is in.
    pub fn argument(&self) -> u64 {
        self.registers.rdi
    }

    /// What is on top of the thread's stack.
    pub fn stack(&self) -> [u64; STACK_WORDS] {
        let mut bytes = [0; STACK_WORDS * 8];
        // Less than that is below the end of the stack, where nothing is.
        let _short = self.interpreter.memory.read(self.registers.rsp, &mut bytes);
        std::array::from_fn(|at| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes")))
    }

    /// Memory in the process, which it may read and run but not write: we can.
    pub fn map(&mut self, length: u64) -> Result<u64, Error> {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arguments =
            [0, length, u64::from(protection.cast_unsigned()), u64::from(flags.cast_unsigned()), u64::MAX, 0];
        self.system_call(libc::SYS_mmap, arguments)?.map_err(Error::Map)
    }

    pub fn unmap(&mut self, address: u64, length: u64) -> Result<(), Error> {
        self.system_call(libc::SYS_munmap, [address, length, 0, 0, 0, 0])?.map_err(Error::Map)?;
        Ok(())
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let memory: &ProcessMemory = &self.interpreter.memory;
        Ok(memory.write(address, bytes)?)
    }

    /// Makes the thread do one system call.
    fn system_call(&mut self, number: i64, arguments: [u64; 6]) -> Result<io::Result<u64>, Error> {
        let mut registers = self.registers;
        registers.rip = self.interpreter.syscall;
        registers.rax = number.cast_unsigned();
        // Not the system call it was in: that is not to be begun again yet.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
        set_registers(self.tid, &registers)?;
        let until = Instant::now() + SYSCALL_LIMIT;
        if let Err(error) = self.resume(libc::PTRACE_SINGLESTEP, until) {
            if matches!(error, Error::TooLong) {
                // A process that was frozen, for one. Registers can be put back only where it is stopped.
                request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
                wait(self.tid, Instant::now() + LEAVE_LIMIT)?.ok_or(Error::Lost)?;
            }
            return Err(error);
        }
        let result = self::registers(self.tid)?.rax.cast_signed();
        Ok(match i32::try_from(result) {
            Ok(error @ -4095..=-1) => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(result.cast_unsigned()),
        })
    }

    /// Runs a piece of code up to its trap. If that takes longer than `limit` the thread is left to it: it goes back by itself to what it
    /// did, as from a signal handler, and takes the memory with it that is its own.
    pub fn call(mut self, piece: &Piece, at: u64, own: Option<Placed>, limit: Duration) -> Result<Call<'i>, Error> {
        let mut registers = self.registers;
        // Below what the thread may have on its stack without having said so, and the frame for going back.
        let frame = (registers.rsp - RED_ZONE - sigframe::size(self.xstate.len())) & !0x3f;
        // As behind a call.
        registers.rsp = frame - 16 - 8;
        registers.rip = at;
        registers.orig_rax = u64::MAX;
        // The direction flag is clear in C.
        registers.eflags &= !(1 << 10);
        self.write(at, &piece.bytes)?;
        set_registers(self.tid, &registers)?;
        match self.resume(libc::PTRACE_CONT, Instant::now() + limit) {
            Ok(()) => {
                let registers = self::registers(self.tid)?;
                Ok(Call::Returned(Box::new(self), Returned { rax: registers.rax, rbx: registers.rbx }))
            }
            Err(Error::TooLong) => {
                let pause = self.leave(piece, at, own, frame)?;
                Ok(Call::Left(pause))
            }
            Err(error) => Err(error),
        }
    }

    /// Lets go of a thread that is in our code.
    fn leave(mut self, piece: &Piece, at: u64, own: Option<Placed>, frame: u64) -> Result<Duration, Error> {
        // Whatever happens now: these registers are not the ones to go on with.
        self.given_back = true;
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        let until = Instant::now() + LEAVE_LIMIT;
        let behind_trap = at + piece.trap() as u64 + 1;
        loop {
            match wait(self.tid, until)?.ok_or(Error::Lost)? {
                // The signal of its trap is still on its way.
                Stop::Interrupt | Stop::Group if registers(self.tid)?.rip == behind_trap => {
                    request(libc::PTRACE_CONT, self.tid, 0, 0)?;
                }
                Stop::Interrupt | Stop::Group => break,
                Stop::Signal(signal) => match self.keep_signal(signal)? {
                    // It came to its end at the last moment.
                    Meant::Trap => {
                        if let Some(own) = own {
                            self.unmap(own.address, own.length)?;
                        }
                        self.restore()?;
                        return Ok(self.since.elapsed());
                    }
                    Meant::Fault(signal) => request(libc::PTRACE_CONT, self.tid, 0, signal)?,
                    Meant::Program => request(libc::PTRACE_CONT, self.tid, 0, 0)?,
                },
            }
        }
        let mut mask = 0_u64;
        request(PTRACE_GETSIGMASK, self.tid, size_of_val(&mask), (&raw mut mask) as usize)?;
        let mut bytes = self.interpreter.sigreturn.to_le_bytes().to_vec();
        bytes.extend(sigframe::frame(frame, &self.registers, mask, &self.xstate));
        self.write(frame - 8, &bytes)?;
        let own = own.map(|own| (own.address, own.length));
        let ending = Piece::ending(self.interpreter.syscall, frame - 8, own);
        self.write(at + piece.trap() as u64, &ending)?;
        request(libc::PTRACE_DETACH, self.tid, 0, 0)?;
        let pause = self.since.elapsed();
        self.send_again();
        Ok(pause)
    }

    /// Signals that we kept, without what was said with them.
    fn send_again(&mut self) {
        for information in self.signals.drain(..) {
            // SAFETY: a system call without memory. The thread may be gone.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, information.si_signo) };
        }
    }

    /// Lets the thread run until it traps.
    fn resume(&mut self, how: libc::c_uint, until: Instant) -> Result<(), Error> {
        let mut signal = 0;
        loop {
            request(how, self.tid, 0, signal)?;
            signal = 0;
            match wait(self.tid, until)?.ok_or(Error::TooLong)? {
                Stop::Signal(number) => match self.keep_signal(number)? {
                    Meant::Trap => return Ok(()),
                    // Not even a system call can be made there.
                    Meant::Fault(_) if how == libc::PTRACE_SINGLESTEP => return Err(Error::Replaced),
                    Meant::Fault(fault) => signal = fault,
                    Meant::Program => {}
                },
                // The group's stop is taken up again when we let go.
                Stop::Group | Stop::Interrupt => {}
            }
        }
    }

    /// Keeps a signal for when the thread is itself again, unless the code that runs made it.
    fn keep_signal(&mut self, number: i32) -> Result<Meant, Error> {
        // SAFETY: numbers only.
        let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
        request(libc::PTRACE_GETSIGINFO, self.tid, 0, (&raw mut information) as usize)?;
        // Those that somebody sent have no positive code.
        if information.si_code > 0 {
            match number {
                libc::SIGTRAP => return Ok(Meant::Trap),
                libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE => {
                    return Ok(Meant::Fault(self::number(number)));
                }
                _ => {}
            }
        }
        self.signals.push(information);
        Ok(Meant::Program)
    }

    /// Gives the thread back as it was, and says how long it was held.
    pub fn give_back(mut self) -> Result<Duration, Error> {
        self.restore()?;
        Ok(self.since.elapsed())
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.given_back = true;
        if !self.signals.is_empty() && self.registers.rax.cast_signed() == RESTART_BLOCK {
            // How to begin again is noted once for a thread, and may by now be about a system call of ours.
            self.registers.rax = i64::from(-libc::EINTR).cast_unsigned();
        }
        regset(libc::PTRACE_SETREGSET, self.tid, &mut self.xstate)?;
        set_registers(self.tid, &self.registers)?;
        let mut first = 0;
        if !self.signals.is_empty() {
            let mut information = self.signals.remove(0);
            // It keeps who sent it.
            request(libc::PTRACE_SETSIGINFO, self.tid, 0, (&raw mut information) as usize)?;
            first = number(information.si_signo);
        }
        request(libc::PTRACE_DETACH, self.tid, 0, first)?;
        self.send_again();
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.given_back {
            // It was not possible to do what was asked; the thread may be gone.
            let _gone = self.restore();
        }
    }
}

/// What a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meant {
    /// Our code has come to its end.
    Trap,
    /// Our code did something that cannot be done.
    Fault(usize),
    Program,
}

/// Why a thread stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Signal(i32),
    /// By `PTRACE_INTERRUPT`, or to tell us that its group goes on.
    Interrupt,
    /// With its group, by SIGSTOP or the like.
    Group,
}

/// Waits for one thread of our own. Nothing when the time is up.
fn wait(tid: i32, until: Instant) -> Result<Option<Stop>, Error> {
    loop {
        let mut status = 0;
        // SAFETY: writes one integer. Only this thread is waited for, so nobody's children are reaped.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if waited < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ECHILD) { Err(Error::Ended) } else { Err(error.into()) };
        }
        if waited == tid {
            return classify(status).map(Some);
        }
        let now = Instant::now();
        if now >= until {
            return Ok(None);
        }
        wait_for_child((until - now).min(Duration::from_millis(1)));
    }
}

fn classify(status: i32) -> Result<Stop, Error> {
    if !libc::WIFSTOPPED(status) {
        return Err(Error::Ended);
    }
    let signal = libc::WSTOPSIG(status);
    Ok(match (status >> 16, signal) {
        (0, signal) => Stop::Signal(signal),
        (_, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => Stop::Group,
        _ => Stop::Interrupt,
    })
}

/// The signals of this process, blocked while a thread is held: nobody may press Ctrl-C between a call and its end.
#[derive(Debug)]
struct Quiet {
    before: libc::sigset_t,
}

impl Quiet {
    fn new() -> Self {
        // SAFETY: sets are filled before they are used.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the set is the one we were given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// The kernel sends SIGCHLD when a traced thread stops; it is blocked here, and taken. A millisecond later we look all the same.
fn wait_for_child(limit: Duration) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: the set is filled before it is used; no information is asked for.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const limit);
    }
}

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: numbers only.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, tid, 0, (&raw mut registers) as usize)?;
    Ok(registers)
}

fn set_registers(tid: i32, registers: &libc::user_regs_struct) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as usize)
}

/// The extended registers: what is there of SSE, AVX and so on.
fn regset(how: libc::c_uint, tid: i32, bytes: &mut [u8]) -> io::Result<usize> {
    let mut area = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    request(how, tid, NT_X86_XSTATE, (&raw mut area) as usize)?;
    Ok(area.iov_len)
}

/// A signal as ptrace takes it.
fn number(signal: i32) -> usize {
    usize::try_from(signal).unwrap_or(0)
}

fn request(request: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: addresses are of our own, and as large as the requests above need them.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
