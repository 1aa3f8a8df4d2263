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

use super::{Attached, Entry, Error, Options, attach, detach, error::Told};

const MAX_REQUEST_BYTES: u64 = 64 << 10;
const MAX_ANSWER_BYTES: u64 = 256 << 10;
/// Longer than anything the process does takes.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Attach { pid: i32, options: Options },
    Detach { pid: i32, runtime: std::path::PathBuf },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Attached(Box<Attached>),
    Detached(Box<Entry>),
    Failed(Told),
}

/// `pylair __attach`
pub fn main() -> ExitCode {
    let mut text = String::new();
    let read = io::stdin().take(MAX_REQUEST_BYTES).read_to_string(&mut text);
    let answer = match read.map(|_| serde_json::from_str(&text)) {
        Ok(Ok(request)) => answer(request),
        Ok(Err(error)) => bad(&error),
        Err(error) => bad(&error),
    };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    if io::stdout().write_all(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn answer(request: Request) -> Answer {
    let answer = match request {
        Request::Attach { pid, options } => attach(pid, &options).map(|attached| Answer::Attached(Box::new(attached))),
        Request::Detach { pid, runtime } => detach(pid, &runtime).map(|entry| Answer::Detached(Box::new(entry))),
    };
    answer.unwrap_or_else(|error| Answer::Failed(Told::from(&error)))
}

fn bad(error: &dyn std::error::Error) -> Answer {
    let (kind, hint) = ("attach_failed".to_owned(), "this is a bug of pylair".to_owned());
    Answer::Failed(Told { kind, message: format!("the request is not valid: {error}"), hint })
}

/// Attaches from the daemon. A caller that no longer waits does not end it: a thread that is held must be given back.
pub async fn attach_in_child(program: &Path, pid: i32, options: Options) -> Result<Attached, Error> {
    match ask(program, pid, Request::Attach { pid, options }).await? {
        Answer::Attached(attached) => Ok(*attached),
        Answer::Failed(told) => Err(Error::Told(told)),
        Answer::Detached(_) => Err(Error::Unsupported),
    }
}

async fn ask(program: &Path, pid: i32, request: Request) -> Result<Answer, Error> {
    let failed = |source| Error::Failed { pid, what: "the process that attaches did not answer", source };
    let mut child = tokio::process::Command::new(program)
        .arg("__attach")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let asked = async {
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else { return Err(io::Error::other("no pipe")) };
        stdin.write_all(&serde_json::to_vec(&request)?).await?;
        drop(stdin);
        let mut bytes = Vec::new();
        stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes).await?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    let answer = tokio::time::timeout(LIMIT, asked).await.map_err(|_| failed(io::ErrorKind::TimedOut.into()))?;
    // It is reaped by the runtime when it has ended.
    drop(child);
    answer.map_err(failed)
}
