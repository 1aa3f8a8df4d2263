//! A dump in a process of its own, which is how the daemon asks: a hostile target can make reading slow, and a library that reads what
//! others wrote can be made to fail in ways that must not end the daemon. The process prints one JSON document.

use std::{path::Path, process::Stdio, time::Duration};

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::{Error, Options, Stacks};
use pylair_os::{inherited, process_access};

/// The hidden subcommand.
pub const COMMAND: &str = "__stacks";
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_ANSWER_BYTES: u64 = 32 * 1024 * 1024;
const MAX_CPU_SECONDS: u64 = 15;
const MAX_MEMORY_BYTES: u64 = 4 << 30;

/// What the other process prints.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Stacks(Stacks),
    Refused { kind: String, message: String, hint: String },
}

/// Why there are no stacks, as the other process told it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    pub kind: &'static str,
    pub message: String,
    pub hint: String,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), message: error.to_string(), hint: error.hint() }
    }
}

/// Everything that `Error::kind` can say.
const KINDS: &[&str] = &[
    "no_proc",
    "no_process",
    "zombie",
    "not_a_process",
    "kernel_thread",
    "being_debugged",
    "other_user",
    "other_namespace",
    "forbidden",
    "yama",
    "not_dumpable",
    "not_permitted",
    "not_python",
    "pypy",
    "unsupported_python",
    "too_deep",
    "unreachable",
];

/// Dumps a process. `program` is the pylair executable.
pub async fn dump(program: &Path, pid: i32, options: Options) -> Result<Stacks, Refused> {
    let unreadable = |reason: String| Refused::from(Error::Unreadable { pid, reason });
    let mut command = std::process::Command::new(program);
    let locals = if options.locals { "locals" } else { "no-locals" };
    command.args([COMMAND, &pid.to_string(), locals]).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    inherited::give_back(&mut command);
    let asked = async {
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let mut printed = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut printed).await?;
        }
        std::io::Result::Ok((printed, child.wait().await?))
    };
    let (printed, status) = match tokio::time::timeout(TIMEOUT, asked).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(unreadable(format!("pylair could not start itself: {error}"))),
        Err(_) => return Err(unreadable(format!("it took longer than {} s", TIMEOUT.as_secs()))),
    };
    match serde_json::from_slice(&printed) {
        Ok(Answer::Stacks(stacks)) => Ok(stacks),
        // Only ancestors may look into a process here; the daemon is one of its sessions, and that process was not.
        Ok(Answer::Refused { kind, .. }) if kind == "yama" => {
            let dumped = tokio::task::spawn_blocking(move || super::dump(pid, options)).await;
            dumped.map_err(|error| unreadable(error.to_string()))?.map_err(Refused::from)
        }
        Ok(Answer::Refused { kind, message, hint }) => {
            let kind = KINDS.iter().find(|known| **known == kind).copied().unwrap_or("unreadable");
            Err(Refused { kind, message, hint })
        }
        Err(_) => {
            process_access::check(pid).map_err(Error::from)?;
            Err(unreadable(format!("reading it ended with {status}")))
        }
    }
}

/// Bounds what a dump can cost. For a process that does nothing else.
pub fn limit_this_process() {
    let limit = |resource, most: u64| {
        // A limit that is there already is lower.
        let _lower = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    };
    limit(Resource::As, MAX_MEMORY_BYTES);
    limit(Resource::Cpu, MAX_CPU_SECONDS);
    limit(Resource::Core, 0);
}

/// The other process: arguments are the pid and whether locals are wanted.
pub fn answer(mut arguments: impl Iterator<Item = String>) -> String {
    limit_this_process();
    let pid = arguments.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
    let options = Options { locals: arguments.next().as_deref() == Some("locals") };
    let answer = match super::dump(pid, options) {
        Ok(stacks) => Answer::Stacks(stacks),
        Err(error) => Answer::Refused { kind: error.kind().to_owned(), message: error.to_string(), hint: error.hint() },
    };
    serde_json::to_string(&answer).unwrap_or_default()
}
