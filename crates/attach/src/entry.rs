//! What an app leaves in the registry: waiting for it, finding it, and telling its probe to go.

use std::{
    fs, io,
    io::{Read, Write},
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::Deserialize;

use super::{error::Error, process::Process};
use crate::registry::Entry;
use pylair_os::regular;
use pylair_probe::wire::{self, Event, Op, Reply, Request};

const MAX_ENTRY_BYTES: u64 = 64 << 10;
const POLL: Duration = Duration::from_millis(1);
const DETACH_LIMIT: Duration = Duration::from_secs(5);

/// The registry's files of one process.
#[derive(Debug)]
pub struct Files {
    /// Without their endings. The process may know itself by another pid than we do.
    stems: Vec<PathBuf>,
}

impl Files {
    /// `runtime` is as we reach it.
    pub fn new(runtime: &Path, process: &Process) -> Self {
        let apps = runtime.join("apps");
        let mut pids = vec![process.inner_pid];
        if process.pid != process.inner_pid {
            pids.push(process.pid);
        }
        Self { stems: pids.iter().map(|pid| apps.join(format!("{pid}-{}", process.start))).collect() }
    }

    pub fn entry(&self) -> Option<Entry> {
        self.read("json").and_then(|text| serde_json::from_str(&text).ok())
    }

    /// Why the probe did not start, if it says so. Told once.
    fn take_error(&self, pid: i32) -> Option<Error> {
        #[derive(Deserialize)]
        struct Failure {
            error: String,
            #[serde(default)]
            kind: String,
        }
        let text = self.read("error")?;
        self.forget_error();
        let failure = serde_json::from_str::<Failure>(&text)
            .unwrap_or_else(|_| Failure { error: "it does not say why".to_owned(), kind: String::new() });
        Some(Error::of_probe(pid, &failure.kind, pylair_text::plain::shown(&failure.error)))
    }

    /// What an earlier attempt left must not be taken for this one's.
    pub fn forget_error(&self) {
        for stem in &self.stems {
            // It is usually not there.
            let _absent = fs::remove_file(stem.with_extension("error"));
        }
    }

    fn read(&self, ending: &str) -> Option<String> {
        self.stems.iter().find_map(|stem| regular::read(&stem.with_extension(ending), MAX_ENTRY_BYTES).ok())
    }

    /// Waits until the probe says that it is there, or why it is not. Nothing when the time is up.
    pub fn wait(&self, process: &Process, watch: &Watch, limit: Duration) -> Result<Option<Entry>, Error> {
        let until = Instant::now() + limit;
        loop {
            if let Some(entry) = self.entry() {
                return Ok(Some(entry));
            }
            if let Some(error) = self.take_error(process.pid) {
                return Err(error);
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            if watch.ends_within(POLL) {
                return Err(Error::Ended { pid: process.pid });
            }
        }
    }

    /// Tells the probe to leave, and waits until its entry is gone.
    pub fn detach(&self, process: &Process, watch: &Watch) -> Result<Entry, Error> {
        let pid = process.pid;
        let entry = self.entry().ok_or(Error::NotAttached { pid })?;
        if !entry.is_attached() {
            return Err(Error::Serves { pid, app_id: entry.app_id, how: entry.how });
        }
        let failed = |source| Error::Failed { pid, what: "its probe does not answer", source };
        ask(&process.reach(&entry.endpoint), pid, Op::Detach).map_err(failed)?;
        let until = Instant::now() + DETACH_LIMIT;
        // The socket goes after the entry.
        let socket = process.reach(&entry.endpoint);
        while self.entry().is_some() || socket.exists() {
            if watch.ends_within(POLL) {
                return Err(Error::Ended { pid });
            }
            if Instant::now() >= until {
                return Err(Error::NoAnswer { pid, seconds: DETACH_LIMIT.as_secs() });
            }
        }
        Ok(entry)
    }
}

/// The end of a process, seen without asking again and again.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    pub fn new(process: &Process) -> Result<Self, Error> {
        let pid = process.pid;
        let gone = || Error::Ended { pid };
        let pidfd = pidfd_open(Pid::from_raw(pid).ok_or_else(gone)?, PidfdFlags::empty()).map_err(|_| gone())?;
        // From here on the pid is known to be this process's, if it still is.
        if process.is_there() { Ok(Self(pidfd)) } else { Err(gone()) }
    }

    fn ends_within(&self, time: Duration) -> bool {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
    }
}

/// The file of a process in our own registry.
fn listed(runtime: &Path, process: &Process) -> PathBuf {
    runtime.join("apps").join(format!("{}-{}.json", process.pid, process.start))
}

/// Lists an app of another user's, or one in another root, in our own registry too, as it is reached from here.
pub fn list_in(runtime: &Path, process: &Process, entry: Entry) -> Entry {
    let entry = Entry { pid: process.pid, endpoint: process.reach(&entry.endpoint), ..entry };
    let path = listed(runtime, process);
    let write = || -> io::Result<()> {
        if let Some(apps) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(apps)?;
        }
        let beside = path.with_extension("json~");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(serde_json::to_string(&entry)?.as_bytes())?;
        fs::rename(beside, &path)
    };
    if let Err(error) = write() {
        tracing::warn!(path = %path.display(), %error, "an app of another user's cannot be listed");
    }
    entry
}

pub fn unlist(runtime: &Path, process: &Process) {
    // It may have been taken out as one that is gone.
    let _absent = fs::remove_file(listed(runtime, process));
}

/// Asks a probe one thing and returns the blob of its answer.
pub fn ask(socket: &Path, pid: i32, op: Op) -> io::Result<Vec<u8>> {
    const ID: u64 = 1;
    let mut stream = UnixStream::connect(socket)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if peer.pid.as_raw_nonzero().get() != pid {
        return Err(io::Error::other("another process listens there"));
    }
    stream.set_read_timeout(Some(DETACH_LIMIT))?;
    stream.set_write_timeout(Some(DETACH_LIMIT))?;
    let mut frame = Vec::new();
    wire::encode(Request { ch: 1, id: ID, op, client: None, frame: None, begin_by: None, blob: 0 }, b"", &mut frame);
    stream.write_all(&frame)?;
    let mut inbox = wire::Inbox::default();
    loop {
        while let Some((reply, blob)) = wire::decode::<Reply>(&mut inbox).map_err(io::Error::other)? {
            if reply.ev == Event::Done && reply.id == ID {
                return reply.refused.map_or(Ok(blob), |reason| Err(io::Error::other(reason)));
            }
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => inbox.bytes.extend_from_slice(&bytes[..count]),
        }
    }
}
