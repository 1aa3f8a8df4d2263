//! The process that attaches for the daemon: `pylair __attach`, one request as JSON on stdin, one answer on stdout.
//!
//! Tracing is a matter of one thread, and its stops are told like the ends of children, by SIGCHLD and `waitpid`. In a process of its own
//! none of that reaches the daemon, whose children are its runtime's; a daemon that is killed leaves a target in peace, because this goes
//! on to its end; and whatever goes wrong here, its end is what lets go of the target.

use std::{
    io::{self, Read, Write},
    path::Path,
    process::{ExitCode, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Attached, Error, Options, error::RelayedError};
use pylair_os::inherited;

const MAX_REQUEST_BYTES: u64 = 64 << 10;
const MAX_ANSWER_BYTES: u64 = 256 << 10;
/// Longer than anything the process does takes.
const LIMIT: Duration = Duration::from_secs(30);

/// The hidden subcommand.
pub const COMMAND: &str = "__attach";

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    pid: i32,
    options: Options,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Attached(Box<Attached>),
    Failed(RelayedError),
}

/// The process itself.
pub fn main() -> ExitCode {
    let mut text = String::new();
    let read = io::stdin().take(MAX_REQUEST_BYTES).read_to_string(&mut text);
    let answer = match read.map(|_| serde_json::from_str::<Request>(&text)) {
        Ok(Ok(request)) => match super::attach(request.pid, &request.options) {
            Ok(attached) => Answer::Attached(Box::new(attached)),
            Err(error) => Answer::Failed(RelayedError::from(&error)),
        },
        // Nobody else starts it.
        _ => return ExitCode::FAILURE,
    };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    if io::stdout().write_all(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Attaches in such a process. `program` is the pylair executable. A caller that no longer waits does not end it: a thread that is held
/// must be given back.
pub async fn attach(program: &Path, pid: i32, options: Options) -> Result<Attached, Error> {
    let failed = |source| Error::Failed { pid, what: "the process that attaches did not answer", source };
    let mut command = std::process::Command::new(program);
    command.arg(COMMAND).env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    inherited::give_back(&mut command);
    let request = serde_json::to_vec(&Request { pid, options }).map_err(|error| failed(error.into()))?;
    let asked = async {
        // The runtime reaps it, also when nobody waits any more.
        let mut child = tokio::process::Command::from(command).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&request).await?;
        }
        let mut printed = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut printed).await?;
        }
        io::Result::Ok(serde_json::from_slice(&printed)?)
    };
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(Ok(Answer::Attached(attached))) => Ok(*attached),
        Ok(Ok(Answer::Failed(told))) => Err(Error::Relayed(told)),
        Ok(Err(error)) => Err(failed(error)),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}
