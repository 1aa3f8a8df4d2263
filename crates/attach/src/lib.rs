//! Attaching: a probe is started in a Python that was never prepared for it.
//!
//! `attach` looks at the process, finds its interpreter, and chooses the way in: the probe may be there already; 3.14 and later have a
//! door of their own (`remote_exec`); a main thread that runs is given a pending call (`ways/pending`); one that is blocked in a system call
//! is borrowed (`ways/borrow`). Exactly one of them is taken. What goes in is made in `statement` and `ways/parcel`; the probe then says in the
//! registry that it is there (`entry`). Everything here blocks, and is called in a process of its own (`child`) or by a command.

#![cfg_attr(
    any(not(target_arch = "x86_64"), feature = "no-ways"),
    expect(dead_code, reason = "what is found out of a process is more than can be used without the ways in")
)]

pub mod child;
mod elf;
mod entry;
mod error;
mod interpreter;
mod maps;
mod memory;
#[cfg(any(not(target_arch = "x86_64"), feature = "no-ways"))]
mod no_ways;
mod process;
pub mod registry;
mod remote_exec;
mod statement;
#[cfg(all(target_arch = "x86_64", not(feature = "no-ways")))]
mod ways;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub use error::Error;

use entry::{Files, Watch};
use interpreter::Interpreter;
use process::Process;
use statement::Config;

#[cfg(any(not(target_arch = "x86_64"), feature = "no-ways"))]
use no_ways as ways;

use crate::registry::{By, Entry};
use pylair_probe::wire::Op;

/// How long the probe may take to say that it is there.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a main thread that ran may stay away from Python before we look whether it is blocked now.
const NUDGE_AFTER: Duration = Duration::from_millis(50);
/// The module of the probe that is started.
const ENTRY: &str = "attached";

/// What to attach with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Our runtime directory, where the registry is.
    pub runtime: PathBuf,
    #[serde(default)]
    pub app_id: Option<String>,
    #[serde(default)]
    pub readonly: bool,
    /// Who asks for it.
    pub by: By,
}

/// Which way was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// A probe was there before.
    Already,
    /// The interpreter's own door for debuggers.
    RemoteExec,
    /// A call at the interpreter's next safe point.
    PendingCall,
    /// A thread that waited for something else.
    BorrowedThread,
}

/// A process with our probe in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attached {
    pub entry: Entry,
    pub way: Way,
    /// How long a thread of the process was held, in milliseconds.
    pub pause_ms: f64,
    /// From the beginning to the probe's answer, in milliseconds.
    pub took_ms: f64,
}

/// Starts a probe in a process, or finds the one that is there. Blocks for as long as that takes.
pub fn attach(pid: i32, options: &Options) -> Result<Attached, Error> {
    let begun = Instant::now();
    let process = examine(pid)?;
    let watch = Watch::new(&process)?;
    let runtime = runtime_of(&process, &options.runtime);
    let files = Files::new(&process.reach(&runtime), &process);
    let is_foreign = runtime != options.runtime;
    let attached = |entry: Entry, way, pause: Duration| Attached {
        entry: if is_foreign { entry::list_in(&options.runtime, &process, entry) } else { entry },
        way,
        pause_ms: pause.as_secs_f64() * 1e3,
        took_ms: begun.elapsed().as_secs_f64() * 1e3,
    };
    if let Some(entry) = files.entry() {
        if options.readonly && !entry.readonly {
            let attached = entry.is_attached();
            return Err(Error::Writable { pid, app_id: entry.app_id, attached });
        }
        return Ok(attached(entry, Way::Already, Duration::ZERO));
    }
    process.has_room()?;
    let interpreter = Interpreter::find(&process)?;
    let config = Config {
        runtime: runtime.display().to_string(),
        app_id: options.app_id.clone(),
        readonly: options.readonly,
        by: options.by,
        pid,
        start: process.start,
    };
    files.forget_error();
    let payload = statement::payload(&process, ENTRY, &config);
    let is_blocked = ways::is_blocked(pid);
    let has_begun = !is_blocked && remote_exec::run(&process, &interpreter, &config, &payload);
    let (way, mut pause) = if has_begun {
        (Way::RemoteExec, Duration::ZERO)
    } else {
        ways::inject(&process, &interpreter, &config, payload)?
    };
    let until = Instant::now() + ANSWER_LIMIT;
    let seconds = ANSWER_LIMIT.as_secs();
    if way == Way::PendingCall {
        while Instant::now() < until {
            if let Some(entry) = files.wait(&process, &watch, NUDGE_AFTER)? {
                return Ok(attached(entry, way, pause));
            }
            let Some(held) = ways::nudge(&process, &interpreter)? else { break };
            pause = pause.max(held);
        }
        return Err(Error::Pending { pid, seconds });
    }
    match files.wait(&process, &watch, ANSWER_LIMIT)? {
        Some(entry) => Ok(attached(entry, way, pause)),
        None => process.has_room().and(Err(Error::NoAnswer { pid, seconds })),
    }
}

/// Sends the probe of a process away, and waits until it is gone.
pub fn detach(pid: i32, runtime: &Path) -> Result<Entry, Error> {
    let process = Process::examine(pid)?;
    let watch = Watch::new(&process)?;
    let theirs = runtime_of(&process, runtime);
    let detached = Files::new(&process.reach(&theirs), &process).detach(&process, &watch)?;
    if theirs != runtime {
        entry::unlist(runtime, &process);
    }
    Ok(detached)
}

/// What the probe in a process answers, if there is one.
pub fn ask(pid: i32, runtime: &Path, op: Op) -> Option<Vec<u8>> {
    let process = Process::examine(pid).ok()?;
    let runtime = runtime_of(&process, runtime);
    let entry = Files::new(&process.reach(&runtime), &process).entry()?;
    entry::ask(&process.reach(&entry.endpoint), pid, op).ok()
}

/// Looks at a process and refuses what is no app.
fn examine(pid: i32) -> Result<Process, Error> {
    let process = Process::examine(pid)?;
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    if program("self").is_some_and(|ours| program(&pid.to_string()) == Some(ours)) {
        return Err(Error::Ourselves { pid });
    }
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let stage0 = pylair_probe::stage0().as_bytes();
    if command.split(|byte| *byte == 0).any(|word| word == stage0) {
        return Err(Error::Session { pid });
    }
    Ok(process)
}

/// The runtime directory that the process can write to, as the process sees it.
fn runtime_of(process: &Process, ours: &Path) -> PathBuf {
    if process.uid == rustix::process::geteuid().as_raw() && !process.other_root {
        return ours.to_owned();
    }
    PathBuf::from(format!("/tmp/pylair-{}", process.uid))
}
