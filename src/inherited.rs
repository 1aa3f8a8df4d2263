//! What the daemon was started with and changed for itself: the file mode mask and the limit of open files. Whatever is started for a
//! user gets them back, and files written for a user have the modes that user's own programs would give them.

use std::{
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::Command,
    sync::OnceLock,
};

use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

#[derive(Debug, Clone, Copy)]
struct Inherited {
    umask: Mode,
    files: Rlimit,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Makes this process as private and as wide as a daemon has to be. Called once, before it opens anything.
pub fn replace() {
    INHERITED.get_or_init(|| {
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        let files = getrlimit(Resource::Nofile);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum }) {
            tracing::debug!(%error, "the limit of open files stays as it was");
        }
        Inherited { umask, files }
    });
}

/// Gives a file or directory that was made with `mode` what the daemon's own mask took away from the user.
pub fn apply_mode(file: impl AsFd, mode: u32) -> rustix::io::Result<()> {
    let Some(inherited) = INHERITED.get() else { return Ok(()) };
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode & !inherited.umask.as_raw_mode()))
}

/// Lets a program start with what the daemon was started with.
pub fn give_back(command: &mut Command) {
    give_back_with(command, None);
}

/// The same with a mask of our choice.
pub fn give_back_with(command: &mut Command, umask: Option<u32>) {
    let inherited = INHERITED.get().copied();
    let umask = umask.map(Mode::from_raw_mode).or(inherited.map(|inherited| inherited.umask));
    let restore = move || {
        if let Some(umask) = umask {
            rustix::process::umask(umask);
        }
        if let Some(inherited) = inherited {
            setrlimit(Resource::Nofile, inherited.files)?;
        }
        Ok::<_, io::Error>(())
    };
    // SAFETY: two system calls and nothing else between fork and exec.
    unsafe { command.pre_exec(restore) };
}
