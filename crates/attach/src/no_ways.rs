//! Processors for which no code was written: only `sys.remote_exec` can be used on them. The feature `no-ways` has it compiled and linted
//! on every other one.

use std::time::Duration;

use super::{Way, error::Error, interpreter::Interpreter, process::Process, statement::Config};

/// The system calls are not known here; whatever is blocked is not run in time.
pub fn is_blocked(_: i32) -> bool {
    false
}

pub fn inject(_: &Process, _: &Interpreter, _: &Config, _: Vec<u8>) -> Result<(Way, Duration), Error> {
    Err(Error::Unsupported)
}

#[expect(clippy::unnecessary_wraps, reason = "as where there are ways")]
pub fn nudge(_: &Process, _: &Interpreter) -> Result<Option<Duration>, Error> {
    Ok(Some(Duration::ZERO))
}
