//! A program that runs in a sandbox of its own, below a keeper that has nothing else to keep: how packages are installed for confined
//! sessions.
//!
//! Asked for by `packages` with a keeper request; runs in the keeper-to-be, once its namespaces and its root are there.

use super::confine::Network;
use super::nursery::{environment, execute, reset_signals, texts};
use super::seccomp::seccomp_program;
use super::{close_all_but, leave, place};
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

/// Its pid in its own namespace: the first after its keeper.
pub const PID: i32 = 2;

/// Comes with the descriptors that become 0, 1 and 2. The environment is exactly `env`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
}

pub(super) const DESCRIPTORS: usize = 3;

/// Others have to read what it makes.
const UMASK: u32 = 0o022;
/// For each of its processes; their number is that of all.
const LIMITS: &[(Resource, u64)] = &[
    (Resource::Core, 0),
    (Resource::Data, 8 << 30),
    (Resource::Fsize, 8 << 30),
    (Resource::Memlock, 64 << 10),
    (Resource::Nofile, 4096),
    (Resource::Nproc, 512),
];

/// Starts it. An error when it could not be executed.
pub(super) fn start(program: &Program, fds: &[OwnedFd], ruleset: Option<&OwnedFd>) -> io::Result<()> {
    let (mut failure, teller) = io::pipe()?;
    // Inherited from the nursery, whose children nobody waits for.
    reset_signals();
    // SAFETY: this process has one thread, so the copy is whole.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(failure);
            let error = become_program(program, fds, ruleset, &teller);
            tell(teller, &error);
            leave(127)
        }
        _ => {
            drop(teller);
            hear(&mut failure)
        }
    }
}

fn tell(mut teller: PipeWriter, error: &io::Error) {
    // Whoever reads it has not gone before us.
    let _ = teller.write_all(&error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
}

fn hear(failure: &mut PipeReader) -> io::Result<()> {
    let mut errno = [0; 4];
    match failure.read_exact(&mut errno) {
        // Closed by the exec.
        Err(_) => Ok(()),
        Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
    }
}

/// Returns only what went wrong.
fn become_program(program: &Program, fds: &[OwnedFd], ruleset: Option<&OwnedFd>, teller: &PipeWriter) -> io::Error {
    match prepare(program, fds, ruleset, teller) {
        Ok((argv, env)) => {
            let argv: Vec<_> = argv.iter().map(AsRef::as_ref).collect();
            let env: Vec<_> = env.iter().map(AsRef::as_ref).collect();
            match argv.first() {
                Some(first) => execute(first, &argv, Some(&env)),
                None => io::ErrorKind::InvalidInput.into(),
            }
        }
        Err(error) => error,
    }
}

type Words = Vec<std::ffi::CString>;

fn prepare(
    program: &Program,
    fds: &[OwnedFd],
    ruleset: Option<&OwnedFd>,
    teller: &PipeWriter,
) -> io::Result<(Words, Words)> {
    let words = (texts(&program.argv)?, environment(&program.env)?);
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    rustix::process::chdir(&program.cwd)?;
    for &(resource, limit) in LIMITS {
        let highest = rustix::process::getrlimit(resource).maximum;
        let limit = Some(highest.map_or(limit, |highest| highest.min(limit)));
        rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    if let Some(ruleset) = ruleset {
        restrict(ruleset)?;
    }
    filter(&seccomp_program(Network::Host))?;
    for (at, fd) in (0..).zip(fds) {
        place(fd.as_fd().as_raw_fd(), at)?;
    }
    close_all_but(&[teller.as_raw_fd()]);
    Ok(words)
}

fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })
}

fn filter(program: &[u8]) -> io::Result<()> {
    let length = u16::try_from(program.len() / size_of::<libc::sock_filter>()).map_err(io::Error::other)?;
    // A copy that is aligned as the kernel's structure is.
    let instructions: Vec<libc::sock_filter> = program
        .chunks_exact(size_of::<libc::sock_filter>())
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let program = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: both are read during the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
