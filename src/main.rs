//! Parse, set up logging, call one function, map its outcome to an exit code.

use std::process::ExitCode;

use clap::Parser;
use pylair::{cli::Cli, commands};

fn main() -> ExitCode {
    // Helper processes first: they must stay small, so nothing else of the program may wake up in them.
    let mut arguments = std::env::args();
    match arguments.nth(1).as_deref() {
        Some("__keeper") => pylair_keeper::keep::main_from_argument(arguments.next().as_deref()),
        Some("__nursery") => pylair_keeper::nursery::main(),
        Some(pylair_attach::child::COMMAND) => return pylair_attach::child::main(),
        Some(pylair_stacks::apart::COMMAND) => return commands::stacks::answer(arguments),
        Some("__daemon") => return commands::daemon::daemon(),
        _ => {}
    }
    commands::run(Cli::parse())
}
