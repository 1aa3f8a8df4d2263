//! The nursery: a process of one thread that makes confined keepers, and spawns the templates that may enter them.
//!
//! Run by root it has every right it needs. Run by another user it first moves into its own user namespace, where it keeps the two
//! capabilities needed to enter a namespace; templates are spawned from there so that they have them too. No request can end
//! it, and its end does not end the keepers: each lives until its own socket is closed.

use super::datagram::{recv_datagram, send_datagram, try_send_datagram};
use super::keep::{self, Role};
use super::outer_ids::gives_ids;
use super::private_root::{self, Granted, Sources};
use super::program::{self, Program};
use super::{Network, Report, close_all_but, leave, place};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{DumpableBehavior, Gid, Signal, Uid, pidfd_send_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The user and group id of a session inside its namespace, if the daemon is run by root.
pub const INNER_ID: u32 = 1000;

/// The path at which a session sees its own directory.
pub const WORKSPACE: &str = "/workspace";

/// The port of the daemon's proxy on the session's loopback, if it has a proxy.
pub const PROXY_PORT: u16 = 3128;

/// Maximum number of connections that wait to be accepted by the daemon.
const PROXY_BACKLOG: i32 = 64;

const CONTROL: RawFd = 3;

/// Number of descriptors passed to a spawned template, as 0, 1, 2 and so on.
const SPAWN_DESCRIPTORS: usize = 5;

const MAX_REQUEST_BYTES: usize = 128 << 10;

/// The second argument of a nursery that has moved into its user namespace.
const INSIDE: &CStr = c"inside";

/// What entering the namespaces of a keeper takes, who must not be readable to the session below it.
const KEPT_CAPABILITIES: [CapabilitySet; 2] = [CapabilitySet::SYS_ADMIN, CapabilitySet::SYS_PTRACE];

/// The first message of a nursery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub ready: bool,
    /// Whose sessions these are outside, when that is not for the requests to say: the nursery is not root's.
    #[serde(default)]
    pub outer_uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Keeper(Box<KeeperRequest>),
    Spawn(SpawnRequest),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperRequest {
    pub id: u64,
    /// Paths that do not exist are skipped.
    #[serde(default)]
    pub read_only: Vec<PathBuf>,
    /// If there are any, what is read-only has to lie in one of these directories, which have no symlinks in their names, or be the system's.
    /// What leads elsewhere is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<PathBuf>,
    /// These and those that are writable were given to the session, without symlinks.
    #[serde(default)]
    pub readable: Vec<PathBuf>,
    #[serde(default)]
    pub writable: Vec<PathBuf>,
    /// Directories that are writable too and seen under another name, in place of what is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<View>,
    /// Writable too, and seen as [`WORKSPACE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    pub tmp_mb: u32,
    pub network: bool,
    /// Loopback is up, and a socket that listens there at [`PROXY_PORT`] comes last with `ready`.
    #[serde(default)]
    pub proxy: bool,
    /// The outer user and group. Needed under root, where it must not be root; without meaning otherwise.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Run below it, with the descriptors that come along. Its end is reported like that of any process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Program>,
}

impl KeeperRequest {
    fn reach(&self) -> Network {
        match (self.network, self.proxy) {
            (true, _) => Network::Host,
            (false, true) => Network::Proxy,
            (false, false) => Network::None,
        }
    }
}

/// A directory of the session's own, without symlinks, and what it stands in for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub directory: PathBuf,
    pub seen_as: PathBuf,
}

/// Comes with the descriptors that become 0, 1, 2, 3 and 4. The environment is exactly `env`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnRequest {
    pub id: u64,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    /// With the keeper's control socket and its pidfd. Whether it becomes a keeper is said on that socket.
    Keeper {
        keeper: u64,
        pid: i32,
    },
    /// With a pidfd.
    Spawned {
        spawned: u64,
        pid: i32,
    },
    Failed {
        failed: u64,
        error: String,
    },
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("a nursery under root needs the uid that the session shall have outside, and not 0")]
    NoUid,
    #[error("sockets: {0}")]
    Sockets(#[source] io::Error),
    #[error("clone: {0}")]
    Clone(#[source] io::Error),
    #[error("user and group maps: {0}")]
    Map(#[source] io::Error),
    #[error("user and group {INNER_ID}: {0}")]
    Identity(#[source] rustix::io::Errno),
    #[error(transparent)]
    Root(#[from] private_root::Error),
    #[error("loopback: {0}")]
    Loopback(#[source] io::Error),
    #[error("host name: {0}")]
    HostName(#[source] io::Error),
    #[error("capabilities: {0}")]
    Capabilities(#[source] rustix::io::Errno),
    #[error("{expected} descriptors are needed, not {passed}")]
    Descriptors { expected: usize, passed: usize },
    #[error("a spawn needs arguments, and none of its strings may have a NUL")]
    Arguments,
    #[error("exec {program}: {source}")]
    Exec { program: String, source: io::Error },
}

/// Serves the control socket on descriptor 3 until it is closed.
pub fn main() -> ! {
    if std::env::args_os().nth(2).is_some_and(|argument| argument.as_bytes() == INSIDE.to_bytes()) {
        serve()
    }
    start(&[c"pylair", c"__nursery", INSIDE])
}

/// `inside` is how this program is run again once the user namespace is there.
fn start(inside: &[&CStr]) -> ! {
    if gives_ids() {
        serve()
    }
    let error = match move_into_user_namespace() {
        Ok(()) => {
            // An exec, because the memory of a process belongs to the user namespace in which it was last executed, and only with
            // rights over that can a keeper be entered and yet be closed to its session.
            let failed = execute(c"/proc/self/exe", inside, None);
            format!("the nursery could not execute itself: {failed}")
        }
        Err((step, error)) => refusal(step, &error),
    };
    refuse(error)
}

fn serve() -> ! {
    // SAFETY: descriptor 3 was given to this process for this.
    let control = unsafe { OwnedFd::from_raw_fd(CONTROL) };
    close_all_but(&[CONTROL]);
    if let Err((step, error)) = try_namespaces() {
        refuse(refusal(step, &error));
    }
    // The kernel reaps the children.
    // SAFETY: no code of ours is installed as a handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let _ = rustix::thread::set_name(c"pylair-nursery");
    let euid = rustix::process::geteuid();
    let ready = Ready { ready: true, outer_uid: (!euid.is_root()).then_some(euid.as_raw()), error: None };
    if !say(&control, &ready, &[]) {
        leave(0);
    }
    let mut buffer = vec![0; MAX_REQUEST_BYTES];
    loop {
        let (reply, fds) = match recv_datagram(&control, &mut buffer) {
            Ok(datagram) => answer(datagram.bytes, &datagram.fds),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                (Reply::Failed { failed: 0, error: format!("request: {error}") }, Vec::new())
            }
            Err(_) => leave(0),
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if !say(&control, &reply, &fds) {
            leave(0);
        }
    }
}

fn answer(request: &[u8], fds: &[OwnedFd]) -> (Reply, Vec<OwnedFd>) {
    let request = match serde_json::from_slice(request) {
        Ok(request) => request,
        Err(error) => {
            let id = serde_json::from_slice::<serde_json::Value>(request).ok().and_then(|value| value["id"].as_u64());
            return (Reply::Failed { failed: id.unwrap_or(0), error: format!("request: {error}") }, Vec::new());
        }
    };
    let (id, done) = match request {
        Request::Keeper(request) => {
            let made = make_keeper(&request, fds)
                .map(|(pid, control, pidfd)| (Reply::Keeper { keeper: request.id, pid }, vec![control, pidfd]));
            (request.id, made)
        }
        Request::Spawn(request) => {
            let spawned =
                spawn(&request, fds).map(|(pid, pidfd)| (Reply::Spawned { spawned: request.id, pid }, vec![pidfd]));
            (request.id, spawned)
        }
    };
    done.unwrap_or_else(|error| (Reply::Failed { failed: id, error: error.to_string() }, Vec::new()))
}

/// Sends a message. Returns false if the other end is closed.
fn say(control: &OwnedFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> bool {
    serde_json::to_vec(message).is_ok_and(|bytes| send_datagram(control, &bytes, fds).is_ok())
}

fn refuse(error: String) -> ! {
    // SAFETY: descriptor 3 was given to this process for this, and whoever else owned it here is not coming back.
    let control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
    let ready = Ready { ready: false, outer_uid: None, error: Some(error) };
    if let Ok(bytes) = serde_json::to_vec(&ready) {
        // The other end may be closed.
        let _ = send_datagram(control, &bytes, &[]);
    }
    leave(1)
}

fn make_keeper(request: &KeeperRequest, fds: &[OwnedFd]) -> Result<(i32, OwnedFd, OwnedFd), Error> {
    let expected = request.program.as_ref().map_or(0, |program| program.descriptors);
    if fds.len() != expected {
        return Err(Error::Descriptors { expected, passed: fds.len() });
    }
    let outer = match (rustix::process::geteuid().is_root(), request.uid) {
        (true, None | Some(0)) => return Err(Error::NoUid),
        (true, Some(uid)) => Some(uid),
        (false, _) => None,
    };
    // Whoever may enter a keeper that is closed to its own user. Root lacks this right in some containers.
    let closed =
        rustix::thread::capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_PTRACE));
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::Sockets(error.into()))?;
    let (gate, mut opener) = io::pipe().map_err(Error::Sockets)?;
    let granted = granted(request, outer)?;

    let Some((pid, pidfd)) = clone(namespaces(request.network)).map_err(Error::Clone)? else {
        become_keeper(request, granted, Identity { change_ids: outer.is_some(), closed }, theirs, gate, fds)
    };
    let opened = write_maps(&pid.to_string(), outer, own_ids())
        .map_err(Error::Map)
        .and_then(|()| opener.write_all(b"x").map_err(Error::Sockets));
    if let Err(error) = opened {
        // The child waits for the maps. It does not matter if it has died already.
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        return Err(error);
    }
    Ok((pid, control, pidfd))
}

/// What was given to the session. Its files may be written by a session that is somebody else only through a mount that says so, and
/// only root outside can make one.
fn granted(request: &KeeperRequest, outer: Option<u32>) -> Result<Vec<Granted>, Error> {
    let all = request.readable.iter().map(|path| (path, false)).chain(request.writable.iter().map(|path| (path, true)));
    all.map(|(path, writable)| {
        let granted = Granted::new(path, writable)?;
        match outer {
            Some(outer) => Ok(granted.give_to_session(outer, |uid, gid| owners(uid, gid, outer))?),
            None => Ok(granted),
        }
    })
    .collect()
}

/// A user namespace in which the files of a user and a group are those of the session.
fn owners(uid: u32, gid: u32, outer: u32) -> io::Result<OwnedFd> {
    let (gate, opener) = io::pipe()?;
    let Some((pid, pidfd)) = clone(libc::CLONE_NEWUSER)? else {
        close_all_but(&[gate.as_raw_fd()]);
        let mut gate = gate;
        // Until its end is closed.
        let _ = gate.read(&mut [0]);
        leave(0)
    };
    drop(gate);
    let write = |file: &str, inside: u32| std::fs::write(format!("/proc/{pid}/{file}"), format!("{inside} {outer} 1"));
    let namespace = write("uid_map", uid)
        .and_then(|()| write("gid_map", gid))
        .and_then(|()| std::fs::File::open(format!("/proc/{pid}/ns/user")));
    drop((opener, pidfd));
    Ok(namespace?.into())
}

/// Our user and group. In a user namespace that knows neither yet they cannot be asked for.
fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Lets the user namespace of a process know one user and one group: `outer` as [`INNER_ID`], or ours as themselves, unless that is
/// root, who would have every right inside.
fn write_maps(process: &str, outer: Option<u32>, (uid, gid): (u32, u32)) -> io::Result<()> {
    let write = |file: &str, text: String| std::fs::write(format!("/proc/{process}/{file}"), text);
    if let Some(outer) = outer {
        write("uid_map", format!("{INNER_ID} {outer} 1"))?;
        write("gid_map", format!("{INNER_ID} {outer} 1"))
    } else {
        // Somebody who is not root may only map groups where they cannot be given up any more.
        write("setgroups", "deny".to_owned())?;
        let inside = |id: u32| if id == 0 { INNER_ID } else { id };
        write("uid_map", format!("{} {uid} 1", inside(uid)))?;
        write("gid_map", format!("{} {gid} 1", inside(gid)))
    }
}

fn namespaces(network: bool) -> libc::c_int {
    let all = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWNET;
    if network { all & !libc::CLONE_NEWNET } else { all }
}

/// How a keeper changes its identity.
#[derive(Clone, Copy)]
struct Identity {
    /// It takes another user and group than the nursery.
    change_ids: bool,
    /// Its memory is closed to its own user.
    closed: bool,
}

/// In the child: pid 1 of the new namespaces, with all rights in them and none elsewhere.
fn become_keeper(
    request: &KeeperRequest,
    granted: Vec<Granted>,
    identity: Identity,
    control: OwnedFd,
    mut gate: PipeReader,
    fds: &[OwnedFd],
) -> ! {
    let mut needed = vec![control.as_raw_fd(), gate.as_raw_fd()];
    needed.extend(granted.iter().filter_map(Granted::descriptor));
    needed.extend(fds.iter().map(AsRawFd::as_raw_fd));
    close_all_but(&needed);
    // Closed without a word when the maps could not be written.
    if gate.read_exact(&mut [0]).is_err() {
        leave(1);
    }
    let confined = confine(request, granted, identity).and_then(|walls| match &request.program {
        None => Ok(walls.ruleset.into_iter().chain(walls.listener).collect()),
        Some(program) => {
            let failed = |source| Error::Exec { program: program.argv.first().cloned().unwrap_or_default(), source };
            program::start(program, request.reach(), fds, walls.ruleset.as_ref()).map_err(failed)?;
            Ok(walls.listener.into_iter().collect())
        }
    });
    match confined {
        Ok(gifts) => keep::keep(control, Role::PidOne, gifts),
        Err(error) => {
            // The other end may be closed.
            let _ = try_send_datagram(&control, Report::Failed(error.to_string()).encode().as_bytes(), &[]);
            leave(1)
        }
    }
}

/// The descriptors made together with the sandbox.
struct Walls {
    ruleset: Option<OwnedFd>,
    /// Of the proxy.
    listener: Option<OwnedFd>,
}

fn confine(request: &KeeperRequest, granted: Vec<Granted>, identity: Identity) -> Result<Walls, Error> {
    // While the user is still root, who may search its own home, but already in the new mount namespace, because nothing else can be
    // bound there.
    let sources =
        Sources::open((&request.read_only, &request.within), granted, &request.views, request.workspace.as_deref())?;
    if identity.change_ids {
        let (uid, gid) = (Uid::from_raw(INNER_ID), Gid::from_raw(INNER_ID));
        // In a namespace that knows no user 0 the capabilities survive this.
        rustix::thread::set_thread_groups(&[])
            .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
            .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid))
            .map_err(Error::Identity)?;
    }
    sources.build(request.tmp_mb)?;
    set_host_name("pylair").map_err(Error::HostName)?;
    let mut writable = request.writable.clone();
    writable.extend(request.workspace.as_ref().map(|_| WORKSPACE.into()));
    writable.extend(request.views.iter().map(|view| view.seen_as.clone()));
    let mut readable = request.read_only.clone();
    readable.extend_from_slice(&request.readable);
    let port = request.proxy.then_some(PROXY_PORT);
    let ruleset = private_root::landlock_ruleset(&readable, &writable, private_root::SCRATCH, request.network, port)?;
    let listener = port.map(listen_on_loopback).transpose().map_err(Error::Loopback)?;
    give_up_capabilities().map_err(Error::Capabilities)?;
    // The session has the same user, and must not get at our memory and descriptors.
    let dumpable = if identity.closed { DumpableBehavior::NotDumpable } else { DumpableBehavior::Dumpable };
    rustix::process::set_dumpable_behavior(dumpable).map_err(Error::Capabilities)?;
    Ok(Walls { ruleset, listener })
}

/// In a network of its own: brings loopback up and listens there. Whoever holds the socket, wherever they are, takes the connections.
fn listen_on_loopback(port: u16) -> io::Result<OwnedFd> {
    let socket = |flags| rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let listener = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    // SAFETY: all zeros is a request with an empty name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (at, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *at = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    // SAFETY: the request is read during the call.
    if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::net::bind(&listener, &std::net::SocketAddr::from(([127, 0, 0, 1], port)))?;
    rustix::net::listen(&listener, PROXY_BACKLOG)?;
    Ok(listener)
}

fn give_up_capabilities() -> rustix::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    for number in 0..u64::BITS {
        // The first capability number that the kernel does not know.
        if rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_err() {
            break;
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

fn spawn(request: &SpawnRequest, fds: &[OwnedFd]) -> Result<(i32, OwnedFd), Error> {
    if fds.len() != SPAWN_DESCRIPTORS {
        return Err(Error::Descriptors { expected: SPAWN_DESCRIPTORS, passed: fds.len() });
    }
    let argv = texts(&request.argv).map_err(|_| Error::Arguments)?;
    let env = environment(&request.env).map_err(|_| Error::Arguments)?;
    let program = argv.first().ok_or(Error::Arguments)?;
    let (mut failure, low) = io::pipe().map_err(Error::Sockets)?;
    let teller = move_up(&low).map_err(Error::Sockets)?;
    drop(low);

    let Some((pid, pidfd)) = clone(0).map_err(Error::Clone)? else {
        let error = become_program(program, &argv, &env, fds, &teller);
        let _ = rustix::io::write(&teller, &error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
        leave(127)
    };
    drop(teller);
    let mut errno = [0; 4];
    match failure.read_exact(&mut errno) {
        // Closed by the exec.
        Err(_) => Ok((pid, pidfd)),
        Ok(()) => Err(Error::Exec {
            program: request.argv[0].clone(),
            source: io::Error::from_raw_os_error(i32::from_ne_bytes(errno)),
        }),
    }
}

pub(super) fn texts(words: &[String]) -> io::Result<Vec<CString>> {
    words.iter().map(|word| CString::new(word.as_str()).map_err(|_| io::ErrorKind::InvalidInput.into())).collect()
}

pub(super) fn environment(variables: &BTreeMap<String, String>) -> io::Result<Vec<CString>> {
    texts(&variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>())
}

/// Runs in the child. Returns only on an error.
fn become_program(program: &CStr, argv: &[CString], env: &[CString], fds: &[OwnedFd], teller: &OwnedFd) -> io::Error {
    reset_signals();
    // This fails if the process already leads a group, which is just as good.
    let _ = rustix::process::setsid();
    let placed = fds
        .iter()
        .map(move_up)
        .collect::<io::Result<Vec<_>>>()
        .and_then(|fds| (0..).zip(&fds).try_for_each(|(at, fd)| place(fd.as_raw_fd(), at)));
    if let Err(error) = placed {
        return error;
    }
    close_all_but(&[3, 4, teller.as_raw_fd()]);
    let argv: Vec<_> = argv.iter().map(CString::as_c_str).collect();
    let env: Vec<_> = env.iter().map(CString::as_c_str).collect();
    execute(program, &argv, Some(&env))
}

/// Duplicates a descriptor to a number above those that are assigned next.
fn move_up(fd: impl AsFd) -> io::Result<OwnedFd> {
    let above = RawFd::try_from(SPAWN_DESCRIPTORS).map_err(io::Error::other)?;
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, above)?)
}

/// Moves into a user namespace that knows our own user only, keeping for what is executed what entering others takes.
fn move_into_user_namespace() -> Result<(), (&'static str, io::Error)> {
    let ids = own_ids();
    // SAFETY: descriptors stay shared with nobody.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
        .map_err(|error| ("making a user namespace", error.into()))?;
    write_maps("self", None, ids).map_err(|error| ("mapping the user into its namespace", error))?;
    let keep = || {
        let held = rustix::thread::capabilities(None)?;
        let inheritable = KEPT_CAPABILITIES.into_iter().collect();
        rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..held })?;
        KEPT_CAPABILITIES
            .into_iter()
            .try_for_each(|capability| rustix::thread::configure_capability_in_ambient_set(capability, true))
    };
    keep().map_err(|error| ("keeping capabilities in the user namespace", error.into()))
}

/// Tries the first steps of every keeper, so that a system that forbids them is detected before a session is opened.
fn try_namespaces() -> Result<(), (&'static str, io::Error)> {
    let Some((pid, _pidfd)) = clone(namespaces(false)).map_err(|error| ("making namespaces", error))? else {
        let errno =
            private_root::detach_from_host().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        leave(errno)
    };
    let mut status = 0;
    // SAFETY: the status is written during the call.
    let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    match (ended, libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (-1, ..) => Err(("making namespaces", io::Error::last_os_error())),
        (_, true, 0) => Ok(()),
        (_, true, errno) => Err(("mounting in a namespace", io::Error::from_raw_os_error(errno))),
        _ => Err(("making namespaces", io::ErrorKind::Interrupted.into())),
    }
}

/// What failed, and what to do about it as far as the system tells.
fn refusal(step: &str, error: &io::Error) -> String {
    let setting = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/")))
            .ok()
            .map(|value| value.trim().to_owned())
    };
    let is = |name: &str, value: &str| setting(name).as_deref() == Some(value);
    let remedy = if is("user.max_user_namespaces", "0") || error.raw_os_error() == Some(libc::ENOSPC) {
        "run `sudo sysctl user.max_user_namespaces=15000`"
    } else if is("kernel.unprivileged_userns_clone", "0") {
        "run `sudo sysctl kernel.unprivileged_userns_clone=1`"
    } else if is("kernel.apparmor_restrict_unprivileged_userns", "1") {
        "run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or give pylair an AppArmor profile with `userns,`"
    } else if error.raw_os_error() == Some(libc::EINVAL) {
        "use a kernel with CONFIG_USER_NS"
    } else {
        "if this is a container, run it with a seccomp profile that allows unshare and mount \
         (Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined)"
    };
    format!("{step} was refused: {error}. To confine sessions, {remedy}.")
}

/// `fork` with flags. The child gets `None`; the parent the child's pid and a pidfd of it, however soon it ends.
fn clone(flags: libc::c_int) -> io::Result<Option<(i32, OwnedFd)>> {
    let mut pidfd: RawFd = -1;
    let flags = flags | libc::CLONE_PIDFD | libc::SIGCHLD;
    let nothing: usize = 0;
    // SAFETY: without CLONE_VM it is a fork: this process has one thread, so the copy is whole. The order of the last two arguments
    // depends on the architecture, and both are nothing.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, nothing, &raw mut pidfd, nothing, nothing) };
    match i32::try_from(pid) {
        Ok(0) => Ok(None),
        // SAFETY: the descriptor was made for us by the call.
        Ok(pid) if pid > 0 => Ok(Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns only on an error. Without `env` the environment stays.
pub(super) fn execute(program: &CStr, argv: &[&CStr], env: Option<&[&CStr]>) -> io::Error {
    let pointers = |words: &[&CStr]| -> Vec<_> {
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let argv = pointers(argv);
    // SAFETY: both are lists of strings that end with a null and live until the call returns, if it does.
    unsafe {
        match env.map(pointers) {
            Some(env) => libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()),
            None => libc::execv(program.as_ptr(), argv.as_ptr()),
        };
    }
    io::Error::last_os_error()
}

/// To what a program expects: what is ignored and blocked here stays so in what is executed.
pub(super) fn reset_signals() {
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is emptied before it is read, and no code of ours is installed as a handler.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: the name is read during the call.
    if unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests;
