//! What can go wrong with apps, in words: a kind for programs, a message, and the way out.

use std::{io, time::Duration};

use pylair_probe::wire::WIRE_VERSION;
use pylair_workers::link::Refusal;

/// As many are named in a hint.
const NAMED: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `ended` is what became of the last one that was used.
    #[error("there is no app `{id}`{}", ended.as_ref().map(|ended| format!(": {ended}")).unwrap_or_default())]
    Unknown { id: String, running: Vec<String>, ended: Option<String> },
    #[error("{} processes are `{id}`: {}", instances.len(), instances.join(", "))]
    Ambiguous { id: String, instances: Vec<String> },
    #[error("process {pid} is not an app")]
    NotAnApp { pid: i32, running: Vec<String> },
    #[error("{target} is gone: its process has ended")]
    Gone { target: String },
    #[error("{target} is no longer served: its process is running, but its probe has left")]
    NotServed { target: String },
    #[error("{target} cannot be connected to")]
    Connect { target: String, source: io::Error },
    #[error("the socket of {target} belongs to {}", peer.map_or_else(|| "no process".to_owned(), |pid| format!("process {pid}")))]
    Impostor { target: String, peer: Option<i32> },
    #[error("the probe in {target} speaks version {theirs} of the wire, not {WIRE_VERSION}")]
    Version { target: String, theirs: u32 },
    #[error("{target} does not answer{}", if *stopped { ": its process is stopped, by a debugger or a signal" } else { "" })]
    NotAnswering { target: String, stopped: bool },
    #[error("{target} does not answer: it has reached its limit of {limit} open files and accepts no connection")]
    NoDescriptors { target: String, pid: i32, limit: u64 },
    #[error("{target} ended before it answered{}", how.as_ref().map(|how| format!(": {how}")).unwrap_or_default())]
    Died { target: String, how: Option<String> },
    #[error("the connection to {target} ended before it answered, and its process is still running: {why}")]
    Lost { target: String, why: String },
    /// Of a frozen failure, which has one thread for all calls.
    #[error("{target} has been running call {call} for {} s", running.as_secs())]
    Busy { target: String, call: u64, job: String, running: Duration },
    #[error("{target} has too many requests without an answer")]
    Full { target: String },
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("the answer of {target} could not be read: {why}")]
    Unreadable { target: String, why: String },
    #[error("{target} was not attached to: {}", pylair_attach::registry::why_served(how))]
    NotAttached { target: String, how: String },
    #[error("{target} was attached to read-only on the command line, and is not detached from anywhere else")]
    HeldReadOnly { target: String, pid: i32 },
    #[error("{what} needs a session, and {target} is an app")]
    SessionsOnly { what: &'static str, target: String },
    #[error("an app cannot be rolled back")]
    NoRollback,
    #[error("the code has {0} bytes, over the limit")]
    CodeTooLong(usize),
    #[error(transparent)]
    Output(#[from] pylair_output::Error),
}

impl Error {
    /// The message with its cause.
    pub fn message(&self) -> String {
        pylair_text::plain::with_causes(self)
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown_app",
            Self::Ambiguous { .. } => "ambiguous_app",
            Self::NotAnApp { .. } => "not_an_app",
            Self::Gone { .. } => "app_gone",
            Self::NotServed { .. } => "app_not_served",
            Self::Connect { .. } | Self::Impostor { .. } | Self::Unreadable { .. } => "app_failed",
            Self::Version { .. } => "other_version",
            Self::NotAnswering { .. } => "not_answering",
            Self::NoDescriptors { .. } => "no_descriptors",
            Self::Died { .. } => "app_died",
            Self::Lost { .. } => "connection_lost",
            Self::Busy { .. } | Self::Full { .. } => "busy",
            Self::Refused(refusal) => refusal.known_kind(),
            Self::NotAttached { .. } => "not_attached",
            Self::HeldReadOnly { .. } => "readonly",
            Self::SessionsOnly { .. } => "sessions_only",
            Self::NoRollback | Self::CodeTooLong(_) => "bad_argument",
            Self::Output(_) => "output_unavailable",
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { running, .. } => running_hint(running),
            Self::Ambiguous { id, instances } => {
                let pid = instances.first().and_then(|name| name.rsplit_once('@')).map_or("PID", |(_, pid)| pid);
                format!("name one of them, such as app:{id}@{pid}")
            }
            Self::NotAnApp { pid, running } => {
                format!("attach(pid={pid}) makes a Python process an app; {}", running_hint(running))
            }
            Self::Gone { .. } | Self::Died { .. } => {
                "list_targets shows what is running; the call is not run again".to_owned()
            }
            Self::NotServed { .. } => "the app called pylair.stop() or was detached; attach starts a probe again".to_owned(),
            Self::Connect { .. } | Self::Impostor { .. } => "see the daemon's log; does the app still run?".to_owned(),
            Self::Version { .. } => "start the app with the pylair package of this version".to_owned(),
            Self::NotAnswering { stopped: true, .. } => "let it go on (in the debugger, or with SIGCONT)".to_owned(),
            Self::NotAnswering { .. } => {
                "a call that has begun continues and is not repeated, one that has not begun never will; the app may be busy, or in \
                 a call into C that holds the interpreter: dump_stacks shows where it is"
                    .to_owned()
            }
            Self::NoDescriptors { pid, limit, .. } => {
                format!("raise its limit with `prlimit --pid {pid} --nofile={}`; dump_stacks works at once", limit.saturating_mul(2))
            }
            Self::Lost { .. } => "list_targets shows what is running; the call may have been carried out".to_owned(),
            Self::Busy { target, job, .. } => format!(
                "get_job(job=\"{job}\") waits for its end; interrupt(target=\"{target}\") stops it"
            ),
            Self::Full { .. } => "wait until running calls have ended; get_status shows them".to_owned(),
            Self::Refused(refusal) => refusal.hint.clone().unwrap_or_else(|| "inspect shows what is there".to_owned()),
            Self::Unreadable { .. } => "its probe may be of another version".to_owned(),
            Self::NotAttached { how, .. } if how == "start" => {
                "pylair.stop() in the app ends it; the app itself is yours to end".to_owned()
            }
            Self::NotAttached { .. } => "it serves until it ends; the app itself is yours to end".to_owned(),
            Self::HeldReadOnly { pid, .. } => {
                format!("the user who attached to it can run `pylair attach {pid} --detach`; inspecting it still works")
            }
            Self::SessionsOnly { .. } => "name a session with `target`; list_targets shows them".to_owned(),
            Self::NoRollback => "leave out on_timeout: what a call did in an app stays done".to_owned(),
            Self::CodeTooLong(_) => "write the data to a file and read it from the code".to_owned(),
            Self::Output(error) => error.hint().unwrap_or("see the daemon's log").to_owned(),
        }
    }
}

fn running_hint(running: &[String]) -> String {
    if running.is_empty() {
        return "no app is running; pylair.start() in a program makes it one, or `pylair wrap -- CMD`, or attach"
            .to_owned();
    }
    let more = if running.len() > NAMED { ", …" } else { "" };
    format!("running: {}{more}", running.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", "))
}
