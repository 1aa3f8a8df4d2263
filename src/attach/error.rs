//! Why a process could not be attached to, in words: a kind for programs, a message, and the way out.

use std::io;

use serde::{Deserialize, Serialize};

use crate::process_access::Access;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What `/proc` and the kernel say.
    #[error(transparent)]
    Access(#[from] Access),
    #[error("process {pid} is traced by process {tracer} ({name}){}", if *in_debugger { " and stopped in it" } else { "" })]
    Traced { pid: i32, tracer: i32, name: String, in_debugger: bool },
    #[error("process {pid} is stopped by a signal")]
    Stopped { pid: i32 },
    #[error("process {pid} is pylair itself")]
    Ourselves { pid: i32 },
    #[error("process {pid} belongs to a session of pylair")]
    Session { pid: i32 },
    #[error("process {pid} runs PyPy, which cannot be attached to")]
    PyPy { pid: i32 },
    #[error("process {pid} is a program of 32 bits, which cannot be attached to")]
    Bits32 { pid: i32 },
    #[error("process {pid} runs a Python older than 3.8")]
    TooOld { pid: i32 },
    #[error("the Python of process {pid} (`{file}`) does not export {symbol}")]
    NoSymbol { pid: i32, file: String, symbol: &'static str },
    #[error("the interpreter of process {pid} is not running: it has not started yet, or is about to end")]
    NotStarted { pid: i32 },
    #[error("process {pid} is at something that cannot be interrupted now: {what}")]
    NotNow { pid: i32, what: String },
    #[error("process {pid} does not come to its next line of Python within {seconds} s; the probe starts when it does")]
    Pending { pid: i32, seconds: u64 },
    #[error("the probe did not answer from process {pid} within {seconds} s")]
    NoAnswer { pid: i32, seconds: u64 },
    #[error("the probe could not start in process {pid}: {reason}")]
    ProbeFailed { pid: i32, reason: String },
    #[error("process {pid} ended in the meantime")]
    Ended { pid: i32 },
    #[error("no probe is in process {pid}")]
    NotAttached { pid: i32 },
    #[error("attaching is supported on Linux on x86_64 only")]
    Unsupported,
    #[error("process {pid}: {what}")]
    Failed {
        pid: i32,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// What the process that attached for us has told.
    #[error("{}", .0.message)]
    Told(Told),
}

/// An error as it goes from one process to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Told {
    pub kind: String,
    pub message: String,
    pub hint: String,
}

impl From<&Error> for Told {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind().to_owned(), message: error.message(), hint: error.hint() }
    }
}

/// Every word that `Error::kind` can say.
const KINDS: &[&str] = &[
    "attach_failed",
    "being_debugged",
    "forbidden",
    "kernel_thread",
    "no_answer",
    "no_process",
    "no_symbols",
    "not_a_process",
    "not_attachable",
    "not_attached",
    "not_dumpable",
    "not_now",
    "not_permitted",
    "not_python",
    "not_started",
    "other_namespace",
    "other_user",
    "pending",
    "probe_failed",
    "process_ended",
    "stopped",
    "unreachable",
    "unsupported",
    "unsupported_python",
    "yama",
    "zombie",
];

impl Error {
    /// The message with its cause.
    pub fn message(&self) -> String {
        crate::plain::with_causes(self)
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Access(access) => access.kind,
            Self::Traced { .. } => "being_debugged",
            Self::Stopped { .. } => "stopped",
            Self::Ourselves { .. } | Self::Session { .. } => "not_attachable",
            Self::PyPy { .. } | Self::Bits32 { .. } | Self::TooOld { .. } => "unsupported_python",
            Self::NoSymbol { .. } => "no_symbols",
            Self::NotStarted { .. } => "not_started",
            Self::NotNow { .. } => "not_now",
            Self::Pending { .. } => "pending",
            Self::NoAnswer { .. } => "no_answer",
            Self::ProbeFailed { .. } => "probe_failed",
            Self::Ended { .. } => "process_ended",
            Self::NotAttached { .. } => "not_attached",
            Self::Unsupported => "unsupported",
            Self::Failed { .. } => "attach_failed",
            Self::Told(told) => KINDS.iter().find(|kind| **kind == told.kind).copied().unwrap_or("attach_failed"),
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Access(access) => access.hint.clone(),
            Self::Traced { tracer, .. } => {
                format!("a process has one tracer at most: detach or end process {tracer}, or look at the program there")
            }
            Self::Stopped { pid } => format!("let it go on with `kill -CONT {pid}`, then attach"),
            Self::Ourselves { .. } => "attach to the program you want to look at".to_owned(),
            Self::Session { .. } => "use it as a session: list_targets names it".to_owned(),
            Self::PyPy { .. } | Self::Bits32 { .. } | Self::TooOld { .. } => {
                "attaching works with CPython 3.8 or newer of 64 bits".to_owned()
            }
            Self::NoSymbol { .. } => {
                "this build of Python keeps its functions to itself; start the program with `pylair wrap`, or with pylair.start() in it"
                    .to_owned()
            }
            Self::NotStarted { .. } | Self::NotNow { .. } => "try again in a moment".to_owned(),
            Self::Pending { .. } => {
                "it is in a long call into C; list_targets shows it as soon as it is there, attaching again waits on".to_owned()
            }
            Self::NoAnswer { .. } => "attaching again waits on; dump_stacks shows what the process is doing".to_owned(),
            Self::ProbeFailed { .. } => "the process goes on as before".to_owned(),
            Self::Ended { .. } => "start it again, then attach".to_owned(),
            Self::NotAttached { .. } => "list_targets shows the apps that are there".to_owned(),
            Self::Unsupported => "start the program with `pylair wrap`, or with pylair.start() in it".to_owned(),
            Self::Failed { .. } => "try again; start the program with `pylair wrap` if it stays so".to_owned(),
            Self::Told(told) => told.hint.clone(),
        }
    }
}
