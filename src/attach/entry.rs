//! What an app leaves in the registry: waiting for it, finding it, and telling its probe to go.

use std::{
    fs, io,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::{Deserialize, Serialize};

use super::{error::Error, process::Process};
use crate::regular;

const MAX_ENTRY_BYTES: u64 = 64 << 10;
const POLL: Duration = Duration::from_millis(1);
const DETACH_LIMIT: Duration = Duration::from_secs(5);
const MAX_HEADER_BYTES: usize = 1 << 20;

/// An app as its probe wrote it down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub app_id: String,
    pub pid: i32,
    pub start: u64,
    pub endpoint: String,
    pub readonly: bool,
    #[serde(default)]
    pub how: String,
    #[serde(default)]
    pub python: String,
}

/// The registry's files of one process.
#[derive(Debug)]
pub struct Files {
    /// Without their endings. The process may know itself by another pid than we do.
    stems: Vec<PathBuf>,
}

impl Files {
    /// `runtime` is as we reach it.
    pub fn new(runtime: PathBuf, process: &Process) -> Self {
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
    fn take_error(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Failure {
            error: String,
        }
        let text = self.read("error")?;
        self.forget_error();
        Some(serde_json::from_str::<Failure>(&text).map_or(text, |failure| failure.error))
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
            if let Some(reason) = self.take_error() {
                return Err(Error::ProbeFailed { pid: process.pid, reason });
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
        let failed = |source| Error::Failed { pid, what: "its probe does not answer", source };
        ask_to_detach(&process.reach(entry.endpoint.as_ref())).map_err(failed)?;
        let until = Instant::now() + DETACH_LIMIT;
        while self.entry().is_some() {
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
        let gone = || Error::NoSuchProcess { pid };
        let pidfd = pidfd_open(Pid::from_raw(pid).ok_or_else(gone)?, PidfdFlags::empty()).map_err(|_| gone())?;
        // From here on the pid is known to be this process's, if it still is.
        if process.is_there() { Ok(Self(pidfd)) } else { Err(gone()) }
    }

    fn ends_within(&self, time: Duration) -> bool {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
    }
}

fn ask_to_detach(socket: &std::path::Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DETACH_LIMIT))?;
    stream.set_write_timeout(Some(DETACH_LIMIT))?;
    let request = br#"{"ch":1,"id":1,"op":"detach"}"#;
    stream.write_all(&u32::try_from(request.len()).expect("a short request").to_be_bytes())?;
    stream.write_all(request)?;
    loop {
        let header = read_header(&mut stream)?;
        if header["ev"] == "done" && header["id"] == 1 {
            return match header["refused"].as_str() {
                Some(reason) => Err(io::Error::other(reason.to_owned())),
                None => Ok(()),
            };
        }
    }
}

fn read_header(stream: &mut UnixStream) -> io::Result<serde_json::Value> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(io::Error::other("the answer is no frame"));
    }
    let mut header = vec![0; length];
    stream.read_exact(&mut header)?;
    let header: serde_json::Value = serde_json::from_slice(&header)?;
    let blob = header["blob"].as_u64().unwrap_or(0);
    io::copy(&mut Read::take(stream, blob.min(64 << 20)), &mut io::sink())?;
    Ok(header)
}
