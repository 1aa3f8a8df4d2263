//! `pylair stacks`: what every thread of a Python process is doing. Needs no daemon and nothing in the process.

use std::process::ExitCode;

use super::{Exit, Failure, say};
use crate::{
    cli::StacksArgs,
    stacks::{self, Options, apart},
};

pub fn stacks(args: &StacksArgs) -> Result<Exit, Failure> {
    apart::limit_this_process();
    let dumped = stacks::dump(args.pid, Options { locals: !args.no_locals });
    let stacks = dumped.map_err(|error| Failure::new(error.to_string(), error.hint()))?;
    if args.json {
        say(&serde_json::to_string(&stacks).unwrap_or_default())?;
    } else {
        say(stacks.text(stacks::MAX_CHARS).trim_end())?;
    }
    Ok(Exit::Ok)
}

/// What the daemon starts for a dump.
pub fn answer(arguments: impl Iterator<Item = String>) -> ExitCode {
    match say(&apart::answer(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
