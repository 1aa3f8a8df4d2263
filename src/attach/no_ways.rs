//! Machines for which no code was written: only `sys.remote_exec` can be used on them.

use std::time::Duration;

use super::{Way, error::Error, interpreter::Interpreter, process::Process, statement::Config};

/// The system calls are not known here; whatever is blocked is not run in time.
pub fn is_blocked(_: i32) -> bool {
    false
}

pub fn inject(_: &Process, _: &Interpreter, _: &Config, _: Vec<u8>) -> Result<(Way, Duration), Error> {
    Err(Error::Unsupported)
}

pub fn nudge(_: &Process, _: &Interpreter) -> Result<Duration, Error> {
    Ok(Duration::ZERO)
}
