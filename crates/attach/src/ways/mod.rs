//! The two ways in by tracing, and which of them is taken: what the main thread does when it is stopped decides.

mod borrow;
mod code;
mod parcel;
mod pending;
mod ptrace;
mod sigframe;

use std::time::Duration;

use crate::{
    Way,
    error::Error,
    interpreter::Interpreter,
    process::{self, Process},
    statement::Config,
};
use borrow::Borrowed;
use parcel::Parcel;
use pending::Queued;
use ptrace::Held;
use pylair_os::process_access;

/// A main thread that cannot take a pending call now can a moment later.
const TRIES: usize = 20;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// Is the main thread blocked in a system call that it can be borrowed in?
pub fn is_blocked(pid: i32) -> bool {
    process::blocked_in(pid, pid).is_some_and(borrow::is_blocking)
}

/// Gets the statement run, exactly once, and says how and how long a thread was held.
pub fn inject(
    process: &Process,
    interpreter: &Interpreter,
    config: &Config,
    payload: Vec<u8>,
) -> Result<(Way, Duration), Error> {
    let pid = process.pid;
    let mut parcel = Parcel::new(process, config, payload);
    let explained = |error| explain(process, error);
    for _ in 0..TRIES {
        let held = Held::stop(pid, pid, interpreter).map_err(explained)?;
        if borrow::fits(&held, interpreter) {
            return match borrow::run(held, interpreter, &mut parcel).map_err(explained)? {
                (Borrowed::Ran | Borrowed::Later, pause) => Ok((Way::BorrowedThread, pause)),
                (Borrowed::NotStarted, _) => Err(Error::NotStarted { pid }),
            };
        }
        if pending::fits(&held, interpreter) {
            return match pending::queue(held, interpreter, &mut parcel).map_err(explained)? {
                (Queued::Yes, pause) => Ok((Way::PendingCall, pause)),
                (Queued::NotStarted, _) => Err(Error::NotStarted { pid }),
                (Queued::Full, _) => Err(Error::NotNow { pid, what: "its queue of pending calls is full".to_owned() }),
            };
        }
        held.give_back().map_err(explained)?;
        std::thread::sleep(TRY_AGAIN_AFTER);
    }
    Err(Error::NotNow { pid, what: "its pending calls are being made".to_owned() })
}

/// A main thread that got a pending call and was blocked before it came to it makes the call now.
/// Says how long a thread was held; nothing when there is no use in waiting any longer.
pub fn nudge(process: &Process, interpreter: &Interpreter) -> Result<Option<Duration>, Error> {
    let pid = process.pid;
    if !is_blocked(pid) {
        return Ok(Some(Duration::ZERO));
    }
    let held = match Held::stop(pid, pid, interpreter) {
        Ok(held) => held,
        // It stays ours until we end, and it must not be ours when it wakes up.
        Err(ptrace::Error::DoesNotStop) => return Ok(None),
        Err(error) => return Err(explain(process, error)),
    };
    let pause =
        if borrow::fits(&held, interpreter) { borrow::make_pending_calls(held, interpreter) } else { held.give_back() };
    pause.map(Some).map_err(|error| explain(process, error))
}

fn explain(process: &Process, error: ptrace::Error) -> Error {
    let pid = process.pid;
    match error {
        ptrace::Error::DoesNotStop => {
            Error::NotNow { pid, what: "its main thread is in an uninterruptible sleep".to_owned() }
        }
        ptrace::Error::GroupStop => Error::Stopped { pid },
        ptrace::Error::Ended => Error::Ended { pid },
        ptrace::Error::Replaced => Error::NotNow { pid, what: "it has just begun to run another program".to_owned() },
        ptrace::Error::TooLong | ptrace::Error::Lost => {
            Error::NotNow { pid, what: "its main thread does not come back from a call".to_owned() }
        }
        ptrace::Error::Map(source) => Error::Failed {
            pid,
            what: "it may not have memory that can be run, which a security module can forbid",
            source,
        },
        ptrace::Error::Io(source) => match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => process_access::explain(pid, &source).into(),
            Some(libc::ESRCH) => Error::Ended { pid },
            _ => Error::Failed { pid, what: "it could not be traced", source },
        },
    }
}
