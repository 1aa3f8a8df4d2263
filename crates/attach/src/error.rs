//! Why a process could not be attached to, in words: a kind for programs, a message, and the way out.

use std::io;

use serde::{Deserialize, Serialize};

use pylair_os::process_access::Access;

/// Descriptors that a probe opens: a socket, a pipe, a file, and one for each of a few callers.
pub const NEEDED_DESCRIPTORS: u64 = 8;

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
    #[error("process {pid} cannot be interrupted now: {what}")]
    NotNow { pid: i32, what: String },
    #[error("process {pid} did not reach its next line of Python within {seconds} s; the probe starts when it does")]
    Pending { pid: i32, seconds: u64 },
    #[error("the probe did not answer from process {pid} within {seconds} s")]
    NoAnswer { pid: i32, seconds: u64 },
    #[error("the probe could not start in process {pid}: {reason}")]
    ProbeFailed { pid: i32, reason: String },
    #[error("process {pid} has {open} of at most {limit} files open, and a probe needs {NEEDED_DESCRIPTORS} more")]
    NoDescriptors { pid: i32, open: u64, limit: u64 },
    #[error("process {pid} sees no /proc, which the probe needs")]
    NoProc { pid: i32 },
    /// Modules by their names, with spaces between them.
    #[error(
        "process {pid} is a frozen bundle (PyInstaller or the like) without modules of the standard library that the probe needs: {modules}"
    )]
    FrozenBundle { pid: i32, modules: String },
    #[error("the Python of process {pid} lacks modules of the standard library that the probe needs: {modules}")]
    NoModule { pid: i32, modules: String },
    #[error(
        "process {pid} has a module of its own in place of one of the standard library that the probe needs: {found}"
    )]
    ShadowedModule { pid: i32, found: String },
    #[error("another probe is in process {pid}: {found}")]
    AnotherProbe { pid: i32, found: String },
    #[error("a probe that may change everything is in process {pid} already, as app:{app_id}")]
    Writable { pid: i32, app_id: String, attached: bool },
    #[error("process {pid} ended in the meantime")]
    Ended { pid: i32 },
    #[error("no probe is in process {pid}")]
    NotAttached { pid: i32 },
    #[error("process {pid} (app:{app_id}) was not attached to: {}", crate::registry::why_served(how))]
    Serves { pid: i32, app_id: String, how: String },
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
    Relayed(RelayedError),
}

/// An error as it goes from one process to another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RelayedError {
    pub kind: String,
    pub message: String,
    pub hint: String,
}

impl From<&Error> for RelayedError {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind().to_owned(), message: error.message(), hint: error.hint() }
    }
}

/// Every word that `Error::kind` can say.
const KINDS: &[&str] = &[
    "another_probe",
    "attach_failed",
    "being_debugged",
    "forbidden",
    "frozen_bundle",
    "kernel_thread",
    "no_answer",
    "no_descriptors",
    "no_module",
    "no_proc",
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
    "shadowed_module",
    "stopped",
    "unreachable",
    "unsupported",
    "unsupported_python",
    "writable",
    "yama",
    "zombie",
];

impl Error {
    /// What a probe that could not start says, by its word for it.
    pub fn of_probe(pid: i32, kind: &str, reason: String) -> Self {
        match kind {
            "no_proc" => Self::NoProc { pid },
            "frozen_bundle" => Self::FrozenBundle { pid, modules: reason },
            "no_module" => Self::NoModule { pid, modules: reason },
            "shadowed_module" => Self::ShadowedModule { pid, found: reason },
            "another_probe" => Self::AnotherProbe { pid, found: reason },
            _ => Self::ProbeFailed { pid, reason },
        }
    }

    /// The message with its cause.
    pub fn message(&self) -> String {
        pylair_text::plain::with_causes(self)
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
            Self::NoDescriptors { .. } => "no_descriptors",
            Self::NoProc { .. } => "no_proc",
            Self::FrozenBundle { .. } => "frozen_bundle",
            Self::NoModule { .. } => "no_module",
            Self::ShadowedModule { .. } => "shadowed_module",
            Self::AnotherProbe { .. } => "another_probe",
            Self::Writable { .. } => "writable",
            Self::Ended { .. } => "process_ended",
            Self::NotAttached { .. } | Self::Serves { .. } => "not_attached",
            Self::Unsupported => "unsupported",
            Self::Failed { .. } => "attach_failed",
            Self::Relayed(told) => KINDS.iter().find(|kind| **kind == told.kind).copied().unwrap_or("attach_failed"),
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Access(access) => access.hint.clone(),
            Self::Traced { tracer, .. } => {
                format!("a process has at most one tracer: detach or end process {tracer}, or inspect the program there")
            }
            Self::Stopped { pid } => format!("let it go on with `kill -CONT {pid}`, then attach"),
            Self::Ourselves { .. } => "attach to the program you want to look at".to_owned(),
            Self::Session { .. } => "use it as a session; list_targets names it".to_owned(),
            Self::PyPy { .. } | Self::Bits32 { .. } | Self::TooOld { .. } => {
                "attaching works with 64-bit CPython 3.8 or newer".to_owned()
            }
            Self::NoSymbol { .. } => {
                "this build of Python does not export its functions; start the program with `pylair wrap`, or with pylair.start() in it"
                    .to_owned()
            }
            Self::NotStarted { .. } | Self::NotNow { .. } => "try again in a moment".to_owned(),
            Self::Pending { .. } => {
                "it is in a long call into C; list_targets shows it once the probe has started, and attaching again waits longer".to_owned()
            }
            Self::NoAnswer { .. } => {
                "attach again in a moment: a slow probe may have started by then; dump_stacks shows what the process is doing"
                    .to_owned()
            }
            Self::ProbeFailed { .. } => "the process goes on as before".to_owned(),
            Self::NoDescriptors { pid, limit, .. } => format!(
                "raise its limit with `prlimit --pid {pid} --nofile={}`, or have it close files; dump_stacks works at once",
                limit.saturating_mul(2).max(limit.saturating_add(64))
            ),
            Self::NoProc { pid } => {
                format!("mount one where it runs (`mount -t proc proc /proc`); dump_stacks(target=\"pid:{pid}\") works without")
            }
            Self::FrozenBundle { modules, .. } => format!(
                "bundle it with them (`pyinstaller {}`), or import pylair in it, which brings all that it needs",
                modules.split(' ').map(|module| format!("--hidden-import {module}")).collect::<Vec<_>>().join(" ")
            ),
            Self::NoModule { .. } => "install the whole standard library for that Python; dump_stacks works without it".to_owned(),
            Self::ShadowedModule { .. } => {
                "rename that file, or start the program where it is not found first; dump_stacks works without".to_owned()
            }
            Self::AnotherProbe { pid, .. } => format!(
                "use the app there, with the PYLAIR_HOME that it was attached with, or detach there first: `pylair attach {pid} --detach`"
            ),
            Self::Writable { pid, attached: true, .. } => {
                format!("`pylair attach {pid} --detach` takes it out; then attach read-only")
            }
            Self::Writable { .. } => "the program started the probe itself; start it with `readonly=True` or `pylair wrap --readonly`".to_owned(),
            Self::Ended { .. } => "start it again, then attach".to_owned(),
            Self::Serves { .. } => "its probe stays until the program ends or calls pylair.stop()".to_owned(),
            Self::NotAttached { .. } => "list_targets shows the apps that are there".to_owned(),
            Self::Unsupported => "start the program with `pylair wrap`, or with pylair.start() in it".to_owned(),
            Self::Failed { .. } => "try again; start the program with `pylair wrap` if it stays so".to_owned(),
            Self::Relayed(told) => told.hint.clone(),
        }
    }
}
