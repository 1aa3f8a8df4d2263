//! A program that runs in a sandbox from its first instruction on, below a keeper: how packages are installed for confined sessions, how
//! interpreters that may be a project's are asked what they are, and how they become workers.
//!
//! Asked for with a keeper request; runs in the keeper-to-be, once its namespaces and its root are there.

use super::Network;
use super::nursery::{environment, execute, reset_signals, texts};
use super::seccomp::seccomp_program;
use super::{close_all_but, leave, place};
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Its pid in its own namespace: the first after its keeper.
pub const PID: i32 = 2;

/// Comes with the descriptors that become 0, 1, 2 and so on. The environment is exactly `env`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// How many descriptors come along.
    #[serde(default = "standard_streams")]
    pub descriptors: usize,
    /// Limits of each of its processes, by the names of Python's `resource` module. Without them it has those of an installer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, u64>,
}

pub const STANDARD_STREAMS: usize = 3;

fn standard_streams() -> usize {
    STANDARD_STREAMS
}

/// Other users must be able to read the files it makes.
const UMASK: u32 = 0o022;
/// Of an installer: for each of its processes; their number is that of all.
const LIMITS: &[(Resource, u64)] = &[
    (Resource::Core, 0),
    (Resource::Data, 8 << 30),
    (Resource::Fsize, 8 << 30),
    (Resource::Memlock, 64 << 10),
    (Resource::Nofile, 4096),
    (Resource::Nproc, 512),
];

/// Starts the program. Fails if it could not be executed.
pub(super) fn start(program: &Program, network: Network, fds: &[OwnedFd], ruleset: Option<&OwnedFd>) -> io::Result<()> {
    let (mut failure, teller) = io::pipe()?;
    let teller = PipeWriter::from(move_above(teller, fds.len())?);
    // Inherited from the nursery, whose children the kernel reaps.
    reset_signals();
    // SAFETY: this process has one thread, so the copy is whole.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(failure);
            let error = become_program(program, network, fds, ruleset, &teller);
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

/// Returns only on an error.
fn become_program(
    program: &Program,
    network: Network,
    fds: &[OwnedFd],
    ruleset: Option<&OwnedFd>,
    teller: &PipeWriter,
) -> io::Error {
    match prepare(program, network, fds, ruleset, teller) {
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
    network: Network,
    fds: &[OwnedFd],
    ruleset: Option<&OwnedFd>,
    teller: &PipeWriter,
) -> io::Result<(Words, Words)> {
    let words = (texts(&program.argv)?, environment(&program.env)?);
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    rustix::process::chdir(&program.cwd)?;
    if program.limits.is_empty() {
        LIMITS.iter().try_for_each(|&(resource, limit)| lower(resource, limit))?;
    }
    for (name, &limit) in &program.limits {
        lower(resource(name).ok_or(io::ErrorKind::InvalidInput)?, limit)?;
    }
    if let Some(ruleset) = ruleset {
        restrict(ruleset)?;
    }
    filter(&seccomp_program(network))?;
    // Out of the way of those that are about to be placed. Numbers, because those who are closed below are nobody's any more.
    let fds = fds.iter().map(|fd| move_above(fd, fds.len())).collect::<io::Result<Vec<_>>>()?;
    let count = RawFd::try_from(fds.len()).map_err(io::Error::other)?;
    for (at, fd) in (0..count).zip(fds) {
        place(fd.into_raw_fd(), at)?;
    }
    let kept: Vec<_> = (3..count).chain([teller.as_raw_fd()]).collect();
    close_all_but(&kept);
    Ok(words)
}

fn move_above(fd: impl AsFd, count: usize) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, RawFd::try_from(count).map_err(io::Error::other)?)?)
}

/// A process whose limit is lower already may not raise it.
fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let highest = rustix::process::getrlimit(resource).maximum;
    let limit = Some(highest.map_or(limit, |highest| highest.min(limit)));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?)
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "RLIMIT_AS" => Resource::As,
        "RLIMIT_CORE" => Resource::Core,
        "RLIMIT_CPU" => Resource::Cpu,
        "RLIMIT_FSIZE" => Resource::Fsize,
        "RLIMIT_MEMLOCK" => Resource::Memlock,
        "RLIMIT_MSGQUEUE" => Resource::Msgqueue,
        "RLIMIT_NOFILE" => Resource::Nofile,
        "RLIMIT_NPROC" => Resource::Nproc,
        "RLIMIT_SIGPENDING" => Resource::Sigpending,
        _ => return None,
    })
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
