//! `pylair wrap`: runs a command whose Pythons are apps, without a change to their code.
//!
//! A directory below the runtime one holds a `sitecustomize` and the probe's sources; it goes in front of `PYTHONPATH`, and then
//! the command takes this process's place, so that its terminal, its signals and its exit code are its own.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::Command,
};

use serde::{Deserialize, Serialize};

use super::{Exit, Failure, Surroundings, complain};
use crate::cli::WrapArgs;
use pylair_probe::directory::Directory;
use pylair_text::plain::shown;

const SETTINGS: &str = "PYLAIR_WRAP";
const PYTHON_PATH: &str = "PYTHONPATH";

/// What the probe in the command is told, as JSON in `PYLAIR_WRAP`.
#[derive(Debug, Serialize)]
struct Settings<'a> {
    runtime: &'a Path,
    app_id: Option<&'a str>,
    port: Option<u16>,
    readonly: bool,
    parent: Option<String>,
}

/// What a wrapped app above us told its children.
#[derive(Debug, Default, Deserialize)]
struct Above {
    parent: Option<String>,
}

/// Returns only when the command could not be started.
pub fn wrap(args: &WrapArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    surroundings.places.create()?;
    let runtime = &surroundings.places.runtime;
    let directory = Directory::for_wrap(runtime).prepare().map_err(|error| {
        Failure::new(
            format!("cannot write the probe to `{}`: {error}", runtime.display()),
            "set PYLAIR_HOME to a directory you can write to",
        )
    })?;
    if directory.as_os_str().as_bytes().contains(&b':') {
        return Err(Failure::new(
            format!("`{}` cannot be in PYTHONPATH: there is a colon in it", directory.display()),
            "set PYLAIR_HOME to a directory without one",
        ));
    }
    let above: Above =
        surroundings.env.get(SETTINGS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let settings = Settings {
        runtime,
        app_id: args.app_id.as_deref(),
        port: args.port,
        readonly: args.readonly,
        parent: above.parent,
    };
    let settings = serde_json::to_string(&settings)
        .map_err(|error| Failure::new(format!("the settings of the app: {error}"), "use plain names"))?;
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(PYTHON_PATH, in_front(&directory, std::env::var_os(PYTHON_PATH).as_deref()));
    command.env(SETTINGS, settings);
    keep_signal_mask(&mut command);
    let error = command.exec();
    let named = shown(&program.to_string_lossy());
    let (exit, hint) = match error.kind() {
        io::ErrorKind::NotFound => (Exit::NotFound, "is it installed, and on the PATH?"),
        _ => (Exit::NotStarted, "is it a program, and may you run it?"),
    };
    complain(&Failure::new(format!("cannot run `{named}`: {error}"), hint));
    Ok(exit)
}

/// The standard library empties the mask of what it executes; the command shall have the one we were started with.
pub(super) fn keep_signal_mask(command: &mut Command) {
    // SAFETY: all zeros is a valid set, and the calls only write to it and read from it.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask);
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// The search path with our directory once, at its beginning; the rest stays as it is written, relative and empty entries too.
fn in_front(directory: &Path, existing: Option<&OsStr>) -> OsString {
    let mut path = directory.as_os_str().to_owned();
    // An empty variable means none, whereas an empty entry means the working directory.
    for entry in
        existing.filter(|path| !path.is_empty()).into_iter().flat_map(|path| path.as_bytes().split(|b| *b == b':'))
    {
        if entry != directory.as_os_str().as_bytes() {
            path.push(":");
            path.push(OsStr::from_bytes(entry));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_comes_first_and_once_and_the_rest_stays() {
        let check = |existing: Option<&str>, expect: &str| {
            assert_eq!(in_front(Path::new("/w"), existing.map(OsStr::new)), expect, "{existing:?}");
        };
        check(None, "/w");
        check(Some(""), "/w");
        check(Some("lib:../other"), "/w:lib:../other");
        check(Some("lib:"), "/w:lib:");
        check(Some("/w:lib"), "/w:lib");
        check(Some("lib:/w"), "/w:lib");
    }
}
