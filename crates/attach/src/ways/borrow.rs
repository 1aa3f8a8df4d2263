//! The way in for a thread that is blocked in a system call: it is borrowed, takes the GIL, runs the statement, gives the GIL back, and
//! goes on with its system call as if nothing had been.
//!
//! That is safe where the thread holds no lock that Python needs. A thread that waits in one of the calls below, called by libc, has
//! left Python by releasing the GIL, or waits for the GIL itself. Calls that memory is made with (`brk`, `mmap`), whose callers hold
//! the lock of the allocator, are not among them.

use std::time::Duration;

use super::{
    code,
    parcel::{Parcel, Placed},
    ptrace::{Call, Error, Held},
};
use crate::interpreter::Interpreter;

/// System calls that Python's blocking functions wait in.
const BLOCKING: &[i64] = &[
    libc::SYS_read,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_nanosleep,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_wait4,
    libc::SYS_flock,
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_wait,
    libc::SYS_waitid,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_accept4,
    libc::SYS_epoll_pwait2,
    libc::SYS_pause,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_write,
    libc::SYS_fcntl,
    libc::SYS_recvmmsg,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
];

/// How long a thread is held while it waits for the GIL. A thread that runs gives it away every five milliseconds.
const GIL_LIMIT: Duration = Duration::from_millis(100);

/// What a borrowed thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Borrowed {
    Ran,
    /// It waits for the GIL, and will run the statement then.
    Later,
    NotStarted,
}

pub fn is_blocking(syscall: i64) -> bool {
    BLOCKING.contains(&syscall)
}

/// Can this thread be borrowed where it is?
pub fn fits(held: &Held<'_>, interpreter: &Interpreter) -> bool {
    let Some(syscall) = held.syscall().filter(|syscall| is_blocking(*syscall)) else { return false };
    // One that waits for the GIL is about to run, and must not wait for it again in the middle of that: a condition variable of glibc
    // does not let go of those who wait before it has heard from all of them.
    let may_be_futex = matches!(syscall, libc::SYS_futex | libc::SYS_restart_syscall);
    let waits_for_gil =
        may_be_futex && interpreter.runtime.as_ref().is_none_or(|runtime| runtime.contains(&held.argument()));
    !waits_for_gil && interpreter.is_in_libc(held.instruction())
}

/// Runs the parcel's statement on a thread that fits, and says how long that was held.
pub fn run(mut held: Held<'_>, interpreter: &Interpreter, parcel: &mut Parcel) -> Result<(Borrowed, Duration), Error> {
    let placed = parcel.put(&mut held)?;
    call(held, interpreter, interpreter.run, placed)
}

/// Has a main thread that fits make the calls that are queued for it.
pub fn make_pending_calls(mut held: Held<'_>, interpreter: &Interpreter) -> Result<Duration, Error> {
    let placed = Placed::empty(&mut held)?;
    Ok(call(held, interpreter, interpreter.make_pending, placed)?.1)
}

fn call(
    held: Held<'_>,
    interpreter: &Interpreter,
    function: u64,
    placed: Placed,
) -> Result<(Borrowed, Duration), Error> {
    let Interpreter { is_initialized, ensure, release, .. } = *interpreter;
    let piece = code::with_gil(is_initialized, ensure, function, placed.statement(), release);
    match held.call(&piece, placed.piece(0), Some(placed), GIL_LIMIT)? {
        Call::Returned(mut held, returned) => {
            held.unmap(placed.address, placed.length)?;
            let borrowed = if returned.rbx == 0 { Borrowed::NotStarted } else { Borrowed::Ran };
            Ok((borrowed, held.give_back()?))
        }
        Call::Left(pause) => Ok((Borrowed::Later, pause)),
    }
}
