//! What happened: the events of the journal and the bounds on what one of them may carry.
//! Sessions make them, the store keeps them as JSON, doors show them.

use std::{fmt::Write, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use pylair_output::Stream;
use pylair_text::mask::{self, Reading};

/// The longest code or output one event carries; the whole output is in the output file.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;
/// The longest result one event carries.
pub const MAX_RESULT_BYTES: usize = 16 * 1024;
/// The longest message or traceback of an error one event carries.
const MAX_ERROR_BYTES: usize = 24 * 1024;
/// The longest name, path or reason one event carries.
const MAX_LABEL_BYTES: usize = 4 * 1024;
/// As many packages as one event names, and how long each may be.
const MAX_PACKAGES: usize = 200;
const MAX_PACKAGE_BYTES: usize = 200;

/// One change. In JSON the kind's fields stand beside `seq`, `at`, `owner` and `target`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Grows with every event, also across restarts of the daemon, and is never used twice. It jumps after
    /// the daemon was killed, past numbers that may have been seen but not saved.
    pub seq: u64,
    /// Microsecond resolution.
    pub at: Timestamp,
    #[serde(with = "shared_text")]
    pub owner: Arc<str>,
    #[serde(with = "shared_text")]
    pub target: Arc<str>,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    SessionOpened {
        name: String,
        python: String,
        profile: String,
        cwd: String,
        /// Code that ran first, at most [`MAX_TEXT_BYTES`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        startup: Option<String>,
        /// The handle of the session it was branched off, and the newest cell of that which it holds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch: Option<(String, u64)>,
        /// It began with variables from a save.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restored: bool,
        /// Whose default session it is, as a fingerprint.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default_of: Option<String>,
    },
    SessionClosed {
        reason: String,
    },
    SessionRestarted {
        reason: String,
    },
    SessionCleared {},
    SessionRolledBack {
        checkpoint_cell: u64,
        reason: String,
    },
    CellStarted {
        cell: u64,
        job: String,
        /// At most [`MAX_TEXT_BYTES`]; `code_cut` says that there was more.
        code: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        code_cut: bool,
        client: String,
    },
    Output {
        cell: Option<u64>,
        stream: Stream,
        text: String,
    },
    Display {
        cell: u64,
        /// Forms of one value have the same number here.
        #[serde(default)]
        value: usize,
        mime: String,
        resource: String,
    },
    CellEnded {
        cell: u64,
        job: String,
        outcome: String,
        result: Option<String>,
        error: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceback: Option<String>,
        /// Of everything the cell printed, of which the output events hold the beginning.
        #[serde(default)]
        output_bytes: u64,
        duration_ms: u64,
        /// It called `sys.exit` to say that all is well; the outcome is `ok`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        exited: bool,
    },
    CheckpointMade {
        cell: u64,
        /// From the question to the answer.
        #[serde(default)]
        took_us: u64,
    },
    CheckpointSkipped {
        cell: u64,
        reason: String,
    },
    /// Each as `name==version`.
    PackagesInstalled {
        packages: Vec<String>,
        environment: String,
    },
    DaemonStarted {
        version: String,
    },
    DaemonStopped {
        reason: String,
    },
    /// Events of this target that were not kept: the writer could not keep up, or, for a follower that
    /// fell behind what the journal still holds, at most this many were trimmed before it read them.
    Gap {
        dropped: u64,
    },
}

impl EventKind {
    /// The value of `kind` in JSON and in the store.
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::SessionOpened { .. } => "session_opened",
            EventKind::SessionClosed { .. } => "session_closed",
            EventKind::SessionRestarted { .. } => "session_restarted",
            EventKind::SessionCleared {} => "session_cleared",
            EventKind::SessionRolledBack { .. } => "session_rolled_back",
            EventKind::CellStarted { .. } => "cell_started",
            EventKind::Output { .. } => "output",
            EventKind::Display { .. } => "display",
            EventKind::CellEnded { .. } => "cell_ended",
            EventKind::CheckpointMade { .. } => "checkpoint_made",
            EventKind::CheckpointSkipped { .. } => "checkpoint_skipped",
            EventKind::PackagesInstalled { .. } => "packages_installed",
            EventKind::DaemonStarted { .. } => "daemon_started",
            EventKind::DaemonStopped { .. } => "daemon_stopped",
            EventKind::Gap { .. } => "gap",
        }
    }

    /// Takes secrets out of every text that is not ours, and cuts every text to its bound, saying so.
    pub(super) fn clip(&mut self) {
        match self {
            EventKind::SessionOpened { name, python, profile, cwd, startup, .. } => {
                for label in [name, python, profile, cwd] {
                    clip(label, MAX_LABEL_BYTES);
                }
                if let Some(startup) = startup {
                    clip_masked(startup, MAX_TEXT_BYTES, Reading::Code);
                }
            }
            EventKind::SessionClosed { reason }
            | EventKind::SessionRestarted { reason }
            | EventKind::SessionRolledBack { reason, .. }
            | EventKind::CheckpointSkipped { reason, .. }
            | EventKind::DaemonStarted { version: reason }
            | EventKind::DaemonStopped { reason } => clip(reason, MAX_LABEL_BYTES),
            EventKind::CellStarted { job, code, code_cut, client, .. } => {
                clip(job, MAX_LABEL_BYTES);
                clip(client, MAX_LABEL_BYTES);
                let unread = mask_beginning(code, MAX_TEXT_BYTES, Reading::Code);
                if unread > 0 || code.len() > MAX_TEXT_BYTES {
                    code.truncate(code.floor_char_boundary(MAX_TEXT_BYTES));
                    code.shrink_to_fit();
                    *code_cut = true;
                }
            }
            EventKind::Output { text, .. } => clip_masked(text, MAX_TEXT_BYTES, Reading::Text),
            EventKind::Display { mime, resource, .. } => {
                clip(mime, MAX_LABEL_BYTES);
                clip(resource, MAX_LABEL_BYTES);
            }
            EventKind::CellEnded { job, outcome, result, error, traceback, .. } => {
                clip(job, MAX_LABEL_BYTES);
                clip(outcome, MAX_LABEL_BYTES);
                if let Some(result) = result {
                    clip_masked(result, MAX_RESULT_BYTES, Reading::Text);
                }
                for text in [error, traceback].into_iter().flatten() {
                    clip_masked(text, MAX_ERROR_BYTES, Reading::Text);
                }
            }
            EventKind::PackagesInstalled { packages, environment } => {
                packages.truncate(MAX_PACKAGES);
                for package in packages.iter_mut() {
                    clip(package, MAX_PACKAGE_BYTES);
                }
                clip(environment, MAX_LABEL_BYTES);
            }
            EventKind::SessionCleared {} | EventKind::CheckpointMade { .. } | EventKind::Gap { .. } => {}
        }
    }

    /// About how many bytes this kind holds on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            EventKind::SessionOpened { name, python, profile, cwd, startup, .. } => {
                name.len() + python.len() + profile.len() + cwd.len() + startup.as_ref().map_or(0, String::len)
            }
            EventKind::SessionClosed { reason }
            | EventKind::SessionRestarted { reason }
            | EventKind::SessionRolledBack { reason, .. }
            | EventKind::CheckpointSkipped { reason, .. }
            | EventKind::DaemonStarted { version: reason }
            | EventKind::DaemonStopped { reason } => reason.len(),
            EventKind::CellStarted { job, code, client, .. } => job.len() + code.len() + client.len(),
            EventKind::Output { text, .. } => text.len(),
            EventKind::Display { mime, resource, .. } => mime.len() + resource.len(),
            EventKind::CellEnded { job, outcome, result, error, traceback, .. } => {
                let texts = [result, error, traceback].into_iter().flatten().map(String::len);
                job.len() + outcome.len() + texts.sum::<usize>()
            }
            EventKind::PackagesInstalled { packages, environment } => {
                let entry = size_of::<String>();
                environment.len() + packages.iter().map(|package| entry + package.len()).sum::<usize>()
            }
            EventKind::SessionCleared {} | EventKind::CheckpointMade { .. } | EventKind::Gap { .. } => 0,
        }
    }
}

fn clip(text: &mut String, max_bytes: usize) {
    clip_rest(text, max_bytes, 0);
}

fn clip_masked(text: &mut String, max_bytes: usize, reading: Reading) {
    let unread = mask_beginning(text, max_bytes, reading);
    clip_rest(text, max_bytes, unread);
}

/// Takes secrets out of a text that is cut to `max_bytes` afterwards; how much of it was cut off unread. Half a literal would not be
/// known as one, so a margin as long again is read too; what is cut off anyway is not worth reading.
fn mask_beginning(text: &mut String, max_bytes: usize, reading: Reading) -> usize {
    let read = text.floor_char_boundary(2 * max_bytes);
    let unread = text.len() - read;
    text.truncate(read);
    mask::mask(text, reading);
    unread
}

/// Cuts a text whose last `cut` bytes are gone already.
fn clip_rest(text: &mut String, max_bytes: usize, cut: usize) {
    if text.len() <= max_bytes && cut == 0 {
        return;
    }
    // Leaves room for the sentence, so that the bound holds for what is stored.
    let keep = text.floor_char_boundary(max_bytes - 64);
    let cut = cut + text.len() - keep;
    text.truncate(keep);
    // Writing to a string does not fail.
    _ = write!(text, "… [{cut} bytes cut from this event]");
    text.shrink_to_fit();
}

/// `Arc<str>` as a plain string; serde's own impl sits behind a feature nothing else here needs.
mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Arc::from)
    }
}
