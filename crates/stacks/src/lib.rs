//! What every thread of a Python process is doing, read from its memory while it runs: no code runs in it and it is not stopped, not
//! even for a moment. Python 3.8 to 3.15; asyncio tasks from 3.14 on.
//!
//! What is read may be changing, so it is read again where it does not fit together, and what still may be incomplete is marked. A
//! hostile process can make itself look like anything and can make reading slow; `dump` is blocking and belongs into a process of
//! its own (`apart`), which is how the daemon asks. The command line calls it directly.

pub mod apart;
mod asyncio;
mod memory;
mod source;
mod text;
mod threads;
mod values;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::text::MAX_CHARS;
use pylair_os::process_access::{self, Access};

/// Threads that are told; a note says how many more there are.
const MAX_THREADS: usize = 200;
/// Frames of a thread or task that are told: the innermost and the outermost.
const INNERMOST_FRAMES: usize = 80;
const OUTERMOST_FRAMES: usize = 20;
/// Variables of a frame that are told.
const MAX_LOCALS: usize = 50;
/// Of a variable's value.
const MAX_VALUE_CHARS: usize = 200;
/// Of names and paths.
const MAX_NAME_CHARS: usize = 300;

#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// With the variables of every frame.
    pub locals: bool,
}

/// The stacks of one process at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stacks {
    pub pid: i32,
    pub python: String,
    /// The main thread first.
    pub threads: Vec<Thread>,
    pub tasks: Vec<Task>,
    /// Why `tasks` may say less than there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_note: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Thread {
    /// As `threading.get_ident` says.
    pub id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_id: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub main: bool,
    /// The one that answered, where the process was asked itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub current: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub holds_gil: bool,
    /// Not on a processor: it waits for something or for the GIL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<bool>,
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// Frames left out between the first 80 and the last 20.
    #[serde(alias = "more_frames", skip_serializing_if = "is_zero")]
    pub cut: usize,
    /// It changed while it was read: frames may be missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Frame {
    pub function: String,
    pub file: String,
    pub line: u32,
    /// The line itself, of innermost frames where the file is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its variables, those of the functions around it that it uses included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locals: Vec<Local>,
    /// Variables beyond those.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_locals: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Local {
    pub name: String,
    pub value: String,
}

/// An asyncio task that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Task {
    pub id: u64,
    pub name: String,
    /// `running`, `waiting` or `not started`.
    pub state: String,
    pub coroutine: String,
    /// Innermost first.
    pub frames: Vec<Frame>,
    #[serde(alias = "more_frames", skip_serializing_if = "is_zero")]
    pub cut: usize,
    /// Tasks it waits for, by id.
    pub awaits: Vec<u64>,
    /// Tasks that wait for it.
    pub awaited_by: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Why there are no stacks: a kind for programs, a message, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Access(#[from] Access),
    #[error("process {pid} is PyPy, whose stacks cannot be read from outside")]
    PyPy { pid: i32 },
    #[error("process {pid} is Python {version}, and stacks are read from 3.8 on")]
    OldPython { pid: i32, version: String },
    #[error("process {pid} is Python {version}, which is newer than this pylair knows")]
    NewPython { pid: i32, version: String },
    #[error("a stack of process {pid} is deeper than can be read from outside")]
    TooDeep { pid: i32 },
    #[error("the stacks of process {pid} could not be read: {reason}")]
    Unreadable { pid: i32, reason: String },
}

impl Error {
    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Access(access) => access.kind,
            Self::PyPy { .. } => "pypy",
            Self::OldPython { .. } | Self::NewPython { .. } => "unsupported_python",
            Self::TooDeep { .. } => "too_deep",
            Self::Unreadable { .. } => "unreadable",
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Access(access) => access.hint.clone(),
            Self::PyPy { .. } => {
                "start the program with CPython, or let it register itself with `pylair.start()`".into()
            }
            Self::OldPython { .. } => "py-spy reads older ones".into(),
            Self::NewPython { .. } => "a newer pylair may know it; attach works without knowing".into(),
            Self::TooDeep { .. } => "attach to it and ask again: the probe inside reads any depth".into(),
            Self::Unreadable { .. } => {
                "try again in case it just started or is about to end; stacks of over 4,096 frames are seen only from inside: \
                 attach to it, then ask again"
                    .into()
            }
        }
    }
}

/// Every thread's stack, and the asyncio tasks. Blocking for some milliseconds.
pub fn dump(pid: i32, options: Options) -> Result<Stacks, Error> {
    process_access::check(pid)?;
    let mapped = memory::mapped(pid).map_err(|error| process_access::explain(pid, &error))?;
    let of_pypy = |mapped: &memory::Mapped| {
        let name = mapped.path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libpypy") || name.starts_with("pypy")
    };
    if mapped.iter().any(of_pypy) {
        return Err(Error::PyPy { pid });
    }
    let mut stacks = threads::read(pid, &mapped, options)?;
    asyncio::add_tasks(&mut stacks, &mapped, options);
    source::add_lines(&mut stacks);
    Ok(stacks)
}

/// Leaves the innermost and the outermost frames and says how many were left out.
fn cut_frames(frames: &mut Vec<Frame>) -> usize {
    let cut = frames.len().saturating_sub(INNERMOST_FRAMES + OUTERMOST_FRAMES);
    if cut > 0 {
        frames.drain(INNERMOST_FRAMES..INNERMOST_FRAMES + cut);
    }
    cut
}

/// Words of the process on one line, and not too many.
fn plain(text: &str, max_chars: usize) -> String {
    let mut shown = pylair_text::plain::shown(text);
    if let Some((at, _)) = shown.char_indices().nth(max_chars) {
        shown.truncate(at);
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_stack_keeps_both_ends_and_counts_the_rest() {
        let frame = |line| Frame { line, ..Frame::default() };
        let mut frames: Vec<_> = (0..1000).map(frame).collect();
        assert_eq!(cut_frames(&mut frames), 900);
        assert_eq!((frames.len(), frames[79].line, frames[80].line, frames[99].line), (100, 79, 980, 999));
        assert_eq!(cut_frames(&mut frames), 0);
    }

    #[test]
    fn what_a_process_calls_itself_moves_no_cursor() {
        assert_eq!(plain("a\x1b[2J\nb", 100), r"a\u{1b}[2J\nb");
        assert_eq!(plain("abcdef", 3), "abc…");
    }
}
