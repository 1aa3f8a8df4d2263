//! `pylair test`: pytest with the plugin, in this process's place, so that its output, colours and exit code are its own.

use std::{os::unix::process::CommandExt, process::Command};

use super::{Exit, Failure, Surroundings, client::Client, complain};
use crate::{
    cli::failures::TestArgs,
    config::Flags,
    plain::shown,
    probe::directory::{Directory, PYTEST_SCRIPT},
    python::Interpreters,
};

/// Returns only when pytest could not be started.
pub fn test(args: &TestArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    surroundings.places.create()?;
    let python = interpreter(args.python.as_deref(), surroundings)?;
    let runtime = &surroundings.places.runtime;
    let directory = Directory::for_tests(runtime).prepare().map_err(|error| {
        Failure::new(
            format!("cannot write the plugin to `{}`: {error}", runtime.display()),
            "set PYLAIR_HOME to a directory you can write to",
        )
    })?;
    if let Err(failure) = Client::start(surroundings) {
        // The tests run all the same; what they report is taken in by the next daemon.
        complain(&failure);
    }
    let mut command = Command::new(&python);
    command.arg(directory.join(PYTEST_SCRIPT)).args(&args.args);
    if let Some(home) = surroundings.env.get("PYLAIR_HOME") {
        command.env("PYLAIR_HOME", home);
    }
    super::wrap::keep_signal_mask(&mut command);
    let error = command.exec();
    let named = shown(&python.to_string_lossy());
    Err(Failure::new(format!("cannot run `{named}`: {error}"), "name another Python with --python"))
}

fn interpreter(wanted: Option<&str>, surroundings: &Surroundings) -> Result<std::path::PathBuf, Failure> {
    let config = surroundings.config(&Flags::default())?;
    let cwd = surroundings
        .cwd
        .clone()
        .ok_or_else(|| Failure::new("the working directory is gone", "change to a directory that exists"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found =
        runtime.block_on(Interpreters::default().resolve(wanted, config.python.as_deref(), &cwd, &surroundings.env));
    found.map(|interpreter| interpreter.executable).map_err(|error| Failure::new(super::chain(&error), error.hint()))
}
