//! What the daemon was started with and changed for itself: the file mode mask, the limit of open files, and open descriptors. Whatever
//! is started for a user gets the first two back, and files written for a user have the modes that user's own programs would give them.
//! Descriptors stay with whoever opened them.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::OnceLock,
};

use rustix::{
    fs::Mode,
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
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

/// The descriptors above 2 that this process was started with. They may lead to files and pipes that no session should have.
#[derive(Debug)]
pub struct Descriptors(Vec<RawFd>);

impl Descriptors {
    /// Finds them and keeps them from every program that is started from now on. They stay usable here, because a certificate may have
    /// been given as `/dev/fd/N`. What this process opened itself is close-on-exec, so it is not taken for one of them.
    pub fn hide() -> io::Result<Self> {
        let listed: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|fd| *fd > 2)
            .collect();
        let mut inherited = Vec::new();
        for raw in listed {
            // SAFETY: used for two system calls, which say so when the descriptor is not open, as that of the listing no longer is.
            let fd = unsafe { BorrowedFd::borrow_raw(raw) };
            if fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
                fcntl_setfd(fd, FdFlags::CLOEXEC)?;
                inherited.push(raw);
            }
        }
        Ok(Self(inherited))
    }

    /// Closes them.
    pub fn close(self) {
        for raw in self.0 {
            // SAFETY: nothing in this process owns a descriptor that it was started with.
            unsafe { libc::close(raw) };
        }
    }
}
