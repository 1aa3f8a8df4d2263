//! `pylair stacks`: what every thread of a Python process is doing. Needs no daemon and nothing in the process.

use std::process::ExitCode;

use super::{Exit, Failure, Surroundings, say};
use crate::cli::StacksArgs;
use pylair_attach as attach;
use pylair_probe::wire::Op;
use pylair_stacks::{self as stacks, Options, Stacks, apart};

pub fn stacks(args: &StacksArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    apart::limit_this_process();
    let locals = !args.no_locals;
    let told = || -> Option<Stacks> {
        let answer = attach::ask(args.pid, &surroundings.places.runtime, Op::Stacks { locals })?;
        serde_json::from_slice(&answer).ok()
    };
    let stacks = match stacks::dump(args.pid, Options { locals }) {
        // Tasks of older Pythons are seen only from inside, where a probe may be.
        Ok(stacks) if stacks.tasks.is_empty() && stacks.tasks_note.is_some() => match told() {
            Some(told) => Stacks { tasks: told.tasks, tasks_note: told.tasks_note, ..stacks },
            None => stacks,
        },
        Ok(stacks) => stacks,
        Err(error) => match told() {
            Some(told) => {
                let note = format!("told by the app's own probe, because its memory could not be read: {error}");
                Stacks { pid: args.pid, notes: vec![note], ..told }
            }
            None => return Err(Failure::new(error.to_string(), error.hint())),
        },
    };
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
