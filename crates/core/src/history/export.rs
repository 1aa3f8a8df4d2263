//! Handing a session over: which cells go into the file, and the three kinds of file.
//!
//! What is exported runs to its end. Cells that were undone are left out; a cell that raised is run again and may raise
//! again, because what it had done until then is part of the session; a cell that never came to an end is only shown.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Cell, Entry, Error, Opened, Subject, TURNS, everything, html, notebook, record::RESTORED, script};
use pylair_journal::Journal;
use pylair_output::Outputs;
use pylair_text::mask::MARK;

/// Rich values that are put into one file.
const MAX_DISPLAY_BYTES: usize = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Ipynb,
    Py,
    Html,
}

impl Format {
    /// The ending of a file's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Ipynb => "ipynb",
            Self::Py => "py",
            Self::Html => "html",
        }
    }

    pub fn from_suffix(suffix: &str) -> Option<Self> {
        [Self::Ipynb, Self::Py, Self::Html].into_iter().find(|format| format.suffix() == suffix)
    }

    pub fn mime(self) -> &'static str {
        match self {
            Self::Ipynb => "application/x-ipynb+json",
            Self::Py => "text/x-python",
            Self::Html => "text/html",
        }
    }
}

/// A session as a file.
#[derive(Debug, Clone)]
pub struct Export {
    pub format: Format,
    /// Cells in it.
    pub cells: usize,
    /// Cells that are not, because they were undone.
    pub rolled_back: usize,
    /// What the reader must know: older cells were left out, cells cannot run.
    pub notes: Vec<String>,
    pub text: String,
    pub resource: String,
    pub file_name: String,
}

/// What the file is made of.
#[derive(Debug)]
pub(super) struct Transcript {
    pub(super) name: String,
    pub(super) handle: String,
    pub(super) opened: Option<Opened>,
    pub(super) exported: Timestamp,
    pub(super) entries: Vec<Entry>,
    pub(super) notes: Vec<String>,
}

/// What is to be done with a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Runs,
    /// Runs until it raises.
    Raises,
    /// Would not end, or not compile, or is not known whole.
    Shown,
}

impl Cell {
    pub(super) fn part(&self) -> Part {
        match self.outcome.as_str() {
            _ if self.code_cut => Part::Shown,
            "ok" if self.exited => Part::Raises,
            "ok" => Part::Runs,
            "raised" if self.never_began() => Part::Shown,
            "raised" => Part::Raises,
            _ => Part::Shown,
        }
    }

    /// Whether it did not compile or was refused. The type of the error alone does not tell: a cell that runs can raise
    /// any. When in doubt it ran, which costs nothing: what did not compile here does not compile there.
    fn never_began(&self) -> bool {
        let traceback = self.traceback.as_deref().unwrap_or_default();
        match self.error_parts() {
            Some(("SyntaxError" | "IndentationError" | "TabError", _)) => {
                traceback.starts_with(&format!("  File \"<cell {}>\"", self.cell))
                    && !traceback.contains("Traceback (most recent call last):")
            }
            Some(("pylair", message)) => traceback == message,
            _ => false,
        }
    }

    /// The source as the session compiled it.
    pub(super) fn source(&self) -> &str {
        source(&self.code)
    }

    /// Why it is only shown, or how it ended.
    pub(super) fn remark(&self) -> String {
        let error = self.error.as_deref().unwrap_or_default();
        match self.outcome.as_str() {
            _ if self.code_cut => "its code was too long to be kept whole".to_owned(),
            "ok" if self.exited => "called sys.exit; the session went on".to_owned(),
            "ok" => String::new(),
            "raised" => format!("raised {error}"),
            "interrupted" => "was interrupted; what it had done until then cannot be repeated".to_owned(),
            "timed_out" => "ran out of time; what it had done until then cannot be repeated".to_owned(),
            "running" => "was still running".to_owned(),
            _ => format!("ended the worker: {error}"),
        }
    }
}

/// Without the byte order mark, which a session does not see.
pub(super) fn source(code: &str) -> &str {
    code.strip_prefix('\u{feff}').unwrap_or(code)
}

/// The session as a file of this format.
pub async fn export(journal: &Journal, outputs: &Outputs, subject: &Subject, format: Format) -> Result<Export, Error> {
    let _turn = TURNS.acquire().await;
    let (mut entries, oldest, removed) = everything(journal, subject).await?;
    let mut rolled_back = 0;
    let mut cells = 0;
    entries.retain(|entry| match entry {
        Entry::Cell(cell) if cell.rolled_back => {
            rolled_back += 1;
            false
        }
        Entry::Cell(_) => {
            cells += 1;
            true
        }
        Entry::Happening(_) => true,
    });
    let mut notes = Vec::new();
    if let Some(oldest) = oldest {
        notes.push(format!("cells before cell {oldest} are too much for one file and were left out"));
    }
    if let Some(removed) = removed {
        notes.push(format!("the first cells were removed to make room and are not in this file: {removed}"));
    }
    if entries.iter().any(|entry| matches!(entry, Entry::Happening(happening) if happening.event == RESTORED)) {
        notes.push(
            "the session was opened with variables from a save, which are not in this file; cells that use them cannot \
             run without it"
                .to_owned(),
        );
    }
    let is_masked = |entry: &Entry| matches!(entry, Entry::Cell(cell) if cell.code.contains(MARK));
    let startup = subject.opened.as_ref().and_then(|opened| opened.startup.as_deref()).unwrap_or_default();
    if entries.iter().any(is_masked) || startup.contains(MARK) {
        notes.push(format!(
            "values of things that are named like secrets are not kept: each stands as `{MARK}`; put them back, or read \
             them from the environment, before running this"
        ));
    }
    let transcript = Transcript {
        name: subject.name.clone(),
        handle: subject.handle.to_string(),
        opened: subject.opened.clone(),
        exported: Timestamp::now(),
        entries,
        notes: notes.clone(),
    };
    let outputs = outputs.clone();
    let rendered = tokio::task::spawn_blocking(move || {
        let mut left = MAX_DISPLAY_BYTES;
        let mut load = |resource: &str| {
            let bytes = load_display(&outputs, resource)?;
            left = left.checked_sub(bytes.len())?;
            Some(bytes)
        };
        match format {
            Format::Ipynb => notebook::notebook(&transcript, &mut load),
            Format::Py => script::script(&transcript),
            Format::Html => html::html(&transcript, &mut load),
        }
    });
    let text = rendered.await.map_err(|error| Error::BadArgument(format!("the export failed: {error}")))?;
    Ok(Export {
        format,
        cells,
        rolled_back,
        notes,
        text,
        resource: format!("pylair://export/{}.{}", subject.reference(), format.suffix()),
        file_name: format!("{}.{}", subject.name, format.suffix()),
    })
}

/// The bytes of a rich value, if they are still kept.
fn load_display(outputs: &Outputs, resource: &str) -> Option<Vec<u8>> {
    let (job, index) = resource.strip_prefix("pylair://display/")?.split_once('/')?;
    Some(outputs.read_part(job, index.parse().ok()?).ok()?.1)
}
