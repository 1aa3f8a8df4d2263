//! What can go wrong with sessions, in words: a kind for programs, a message, and the way out.

use std::{path::PathBuf, time::Duration};

use super::{MAX_CODE_BYTES, MAX_NAME_CHARS};
use crate::packages;
use pylair_os::open_files::NoRoom;
use pylair_python as python;
use pylair_sandbox as sandbox;
use pylair_workers::link::{self, Refusal};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no session `{target}`")]
    Unknown { target: String, known: Vec<String> },
    #[error("the session `{target}` was closed: {reason}")]
    Closed { target: String, reason: String },
    #[error("there is no job `{job}`")]
    UnknownJob { job: String },
    #[error("the answer of job `{job}` is no longer kept: {why}")]
    RemovedJob { job: String, why: String },
    #[error("the session `{session}` has been running cell {cell} for {} s", running.as_secs())]
    Busy { session: String, cell: u64, job: String, running: Duration },
    #[error("{} calls wait already for session `{session}` (behind {behind})", super::task::MAX_WAITING)]
    LineFull { session: String, behind: String },
    #[error("{}", waited_too_long(session, *waited, job.as_ref()))]
    WaitedTooLong { session: String, waited: Duration, job: Option<(u64, String)> },
    #[error("the call to session `{session}` did not begin: {why}")]
    NotBegun { session: String, why: String },
    #[error("the session `{session}` has been opening for {} s", since.as_secs())]
    Starting { session: String, since: Duration },
    #[error("there is a session called `{0}` already")]
    NameTaken(String),
    #[error("`{0}` cannot be the name of a session")]
    BadName(String),
    #[error("{limit} sessions are open, which is the limit")]
    TooMany { limit: usize, idle: Vec<(String, Duration)> },
    #[error("you have {limit} sessions open, which is the limit for one owner")]
    TooManyOwn { limit: usize, idle: Vec<(String, Duration)> },
    #[error("no session can be opened now: {0}")]
    NoDescriptors(#[from] NoRoom),
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("the running cell cannot be inspected now: it is in a long call into C or the like")]
    NotNow,
    #[error("there is nothing to undo")]
    NothingToUndo,
    #[error("the session's state does not include cell {cell}")]
    NotInState { cell: u64, cells: Vec<u64> },
    #[error("there is no checkpoint of the session after cell {cell}")]
    NoCheckpoint { cell: u64, there: Vec<u64>, skipped: Option<String> },
    #[error("the session cannot be branched now: {reason}")]
    CannotBranch { reason: String },
    #[error("the code has {} bytes, over the limit of {MAX_CODE_BYTES}", .0)]
    CodeTooLong(usize),
    #[error("`{}` is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{0}")]
    BadArgument(String),
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    #[error("this machine cannot enforce the profile `{profile}`: {missing}")]
    NotEnforced { profile: &'static str, missing: String },
    #[error("this shell belongs to more than one client: {}", candidates.join(", "))]
    Ambiguous { candidates: Vec<String> },
    #[error("no target was named, and calls with this token work in {} sessions: {}", sessions.len(), sessions.join(", "))]
    Several { sessions: Vec<String> },
    #[error("this caller may not {0}")]
    NotAllowed(&'static str),
    #[error("the startup code raised {}: {}", .0.kind, .0.message)]
    Startup(Box<pylair_probe::wire::Raised>),
    #[error(transparent)]
    Python(#[from] python::Error),
    #[error(transparent)]
    Packages(#[from] packages::Error),
    #[error(transparent)]
    Link(#[from] link::Error),
    #[error(transparent)]
    Output(#[from] pylair_output::Error),
    #[error("the session ended before it answered")]
    Gone,
    #[error("the worker ended before it answered")]
    DiedAsked,
    #[error("the session `{target}` is stopped: it has no process now")]
    Stopped { target: String },
    #[error("you have no session yet")]
    NoDefault,
    #[error("no target was named, and calls like this one have no session of their own")]
    NoOwn,
    #[error("there is no save `{restore}`")]
    NoSave { restore: String, known: Vec<String> },
    #[error("pylair could not read or write one of its own files")]
    Store(#[source] std::io::Error),
    #[error("the session's own directory could not be made")]
    Workspace(#[source] std::io::Error),
}

impl Error {
    /// The message with its causes.
    pub fn message(&self) -> String {
        pylair_text::plain::with_causes(self)
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown_session",
            Self::Closed { .. } => "closed_session",
            Self::UnknownJob { .. } => "unknown_job",
            Self::RemovedJob { .. } => "removed_job",
            Self::Busy { .. } | Self::Starting { .. } | Self::LineFull { .. } | Self::WaitedTooLong { .. } => "busy",
            Self::NotBegun { .. } => "not_begun",
            Self::NameTaken(_) => "name_taken",
            Self::Sandbox(
                sandbox::Error::NotGranted { .. }
                | sandbox::Error::NotInSettings { .. }
                | sandbox::Error::BelowFloor { .. },
            )
            | Self::NotAllowed(_) => "not_allowed",
            Self::BadName(_)
            | Self::CodeTooLong(_)
            | Self::NotADirectory(_)
            | Self::BadArgument(_)
            | Self::Sandbox(_) => "bad_argument",
            Self::TooMany { .. } | Self::TooManyOwn { .. } | Self::NoDescriptors(_) => "too_many_sessions",
            Self::Refused(refusal) => refusal.known_kind(),
            Self::NotNow => "not_now",
            Self::NothingToUndo => "nothing_to_undo",
            Self::NotInState { .. } => "no_such_cell",
            Self::NoCheckpoint { .. } => "no_checkpoint",
            Self::CannotBranch { .. } => "cannot_branch",
            Self::Ambiguous { .. } | Self::Several { .. } => "ambiguous_session",
            Self::Startup(_) => "startup_failed",
            Self::Python(_) => "no_python",
            Self::Packages(error) => error.kind(),
            Self::NotEnforced { .. } | Self::Link(link::Error::Nursery(_)) => "sandbox_unavailable",
            Self::Link(_) => "worker_failed",
            Self::Output(pylair_output::Error::Removed { .. }) => "removed_output",
            Self::Output(_) => "output_unavailable",
            Self::Gone => "session_gone",
            Self::DiedAsked => "worker_died",
            Self::Stopped { .. } => "stopped_session",
            Self::NoDefault | Self::NoOwn => "no_session",
            Self::NoSave { .. } => "unknown_save",
            Self::Store(_) => "store_unavailable",
            Self::Workspace(_) => "file_error",
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => {
                "no session is open; call open_session, or leave out `target` for the default session".to_owned()
            }
            Self::Unknown { known, .. } => format!("open sessions: {}; open_session makes a new one", known.join(", ")),
            Self::Closed { .. } => {
                "its variables are gone; get_history shows what ran in it; call open_session, or leave out `target` for the default session".to_owned()
            }
            Self::UnknownJob { .. } => {
                "job ids are in the answers of execute; only recent jobs are remembered".to_owned()
            }
            Self::RemovedJob { job, .. } => {
                let session = job.split_once('-').map_or(job.as_str(), |(session, _)| session);
                format!("get_history(target=\"{session}\") shows the code it ran, its output and its result")
            }
            Self::Busy { session, job, .. } => format!(
                "get_job(job=\"{job}\") waits for its end; interrupt(target=\"{session}\") stops it; or use another session"
            ),
            Self::LineFull { .. } => {
                "send it again when one of them has been answered; get_job(cancel=true) cancels a waiting call, interrupt stops the running one"
                    .to_owned()
            }
            Self::WaitedTooLong { session, job: Some((_, job)), .. } => format!(
                "get_job(job=\"{job}\") waits for its end; interrupt(target=\"{session}\") stops it; then send the call again"
            ),
            Self::WaitedTooLong { job: None, .. } => "send it again when the earlier call has been answered".to_owned(),
            Self::NotBegun { .. } => "none of it ran; send it again if it is still wanted".to_owned(),
            Self::Starting { session, .. } => {
                format!("its startup code may be slow: wait, or end it with close_session(target=\"{session}\")")
            }
            Self::NameTaken(name) => format!("use target=\"{name}\", or choose another name"),
            Self::BadName(_) => {
                format!("1 to {MAX_NAME_CHARS} letters, digits, `-`, `_` or `.`, starting with a letter or digit")
            }
            Self::TooMany { idle, .. } => too_many_hint("max_sessions", idle),
            Self::TooManyOwn { idle, .. } => too_many_hint("max_sessions_per_owner", idle),
            Self::NoDescriptors(_) => {
                "close sessions with close_session, or start the daemon where more files may be open: `pylair stop`, then \
                 `ulimit -n` with a higher number"
                    .to_owned()
            }
            Self::Refused(refusal) => refusal.hint.clone().unwrap_or_else(|| "see the tool's schema".to_owned()),
            Self::NotNow => "try again, or look when the cell has ended: get_job waits for it".to_owned(),
            Self::NothingToUndo => "no cell has changed the session since it was opened or rolled back".to_owned(),
            Self::NotInState { cells, .. } => format!("it holds the effects of {}", cells_text(cells)),
            Self::NoCheckpoint { there, skipped, .. } => {
                let there = if there.is_empty() {
                    "the session has no checkpoint; restart_session starts it anew".to_owned()
                } else {
                    format!("there are checkpoints after {}", cells_text(there))
                };
                let skipped = skipped.as_ref().map(|reason| format!("; the last one was not made: {reason}"));
                there + &skipped.unwrap_or_default()
            }
            Self::CannotBranch { .. } => "remove the cause, or branch from a checkpoint with `at`".to_owned(),
            Self::CodeTooLong(_) => "write the data to a file and read it from the code".to_owned(),
            Self::NotADirectory(_) => "pass an existing directory as `cwd`".to_owned(),
            Self::BadArgument(_) => "see the tool's schema".to_owned(),
            Self::Sandbox(error) => error.hint().to_owned(),
            Self::Several { .. } => "name one of them with `target`".to_owned(),
            Self::Ambiguous { .. } => "name one with -t, or set PYLAIR_SESSION".to_owned(),
            Self::NotAllowed(_) => {
                "use a token with more scopes, such as `admin` (`pylair token add` makes one); with `readonly` (PYLAIR_READONLY, \
                 --readonly) a caller only looks, and where `[sandbox]` of the settings has a `floor`, no caller may"
                    .to_owned()
            }
            Self::Startup(raised) => format!("the session was not opened; fix this:\n{}", raised.traceback.trim_end()),
            Self::Python(error) => error.hint().to_owned(),
            Self::Packages(error) => error.hint(),
            Self::NotEnforced { .. } | Self::Link(link::Error::Nursery(_)) => {
                "see `pylair doctor` for what this machine lacks; `sandbox_best_effort = true` in the settings opens the session \
                 without what is missing, and sandbox=\"open\" without a sandbox"
                    .to_owned()
            }
            Self::Link(_) => "`pylair doctor` tries the interpreter and shows what is wrong".to_owned(),
            Self::Output(error) => error.hint().unwrap_or("see the daemon's log").to_owned(),
            Self::Gone => "call open_session, or leave out `target` for the default session".to_owned(),
            Self::DiedAsked => {
                "the session was recovered; its next answer says to which state, and what was lost".to_owned()
            }
            Self::Stopped { .. } => {
                "execute starts it again; close_session(forget=true) deletes what was saved of it".to_owned()
            }
            Self::NoDefault => "execute opens one; or name one with `target` (list_targets shows them)".to_owned(),
            Self::NoOwn => "pass as `target` the session named in the answer of execute".to_owned(),
            Self::NoSave { known, .. } if known.is_empty() => "nothing has been saved yet; save_session makes a save".to_owned(),
            Self::NoSave { known, .. } => {
                format!("saves, newest first: {}", known.iter().take(20).cloned().collect::<Vec<_>>().join(", "))
            }
            Self::Workspace(_) => "check the free space and the permissions of the data directory".to_owned(),
            Self::Store(_) => "is the disk full? `pylair doctor` shows where pylair keeps its data".to_owned(),
        }
    }
}

fn too_many_hint(setting: &str, idle: &[(String, Duration)]) -> String {
    let mut hint = format!("close sessions with close_session, or raise `{setting}`");
    if !idle.is_empty() {
        let named = idle.iter().map(|(name, idle)| format!("{name} ({} min)", idle.as_secs() / 60));
        hint.push_str("; idle for longest: ");
        hint.push_str(&named.collect::<Vec<_>>().join(", "));
    }
    hint
}

fn waited_too_long(session: &str, waited: Duration, job: Option<&(u64, String)>) -> String {
    let behind = match job {
        Some((cell, _)) => format!("cell {cell} of session `{session}`, which still runs"),
        None => format!("an earlier call to session `{session}`, which is not over"),
    };
    format!("the call waited {:.0} s for {behind}, and did not begin", waited.as_secs_f64())
}

/// Cells by number, for hints.
fn cells_text(cells: &[u64]) -> String {
    const SHOWN: usize = 20;
    let newest: Vec<_> = cells.iter().rev().take(SHOWN).rev().map(u64::to_string).collect();
    let more = if cells.len() > SHOWN { "…, " } else { "" };
    format!("cells {more}{} (0 is the start)", newest.join(", "))
}
