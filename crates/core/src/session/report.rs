//! What a caller is told about a cell: the structured form every door starts from, cut to a budget of characters.

use serde::{Deserialize, Serialize};

use super::job::{Execution, Job, Outcome, Shown, Variables};
use pylair_os::event_loop::apart;
use pylair_probe::wire::{MadeFile, Raised};

/// The most characters that a caller may ask to see.
pub const MAX_CHARS: usize = 1_000_000;

/// The structured outcome of an execution.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Report {
    pub session: String,
    pub cell: u64,
    pub outcome: Outcome,
    pub job: String,
    pub stdout: String,
    pub stderr: String,
    pub result: Option<String>,
    pub error: Option<Raised>,
    pub displays: Vec<Display>,
    pub variables: Variables,
    pub duration_ms: f64,
    pub cpu_ms: f64,
    pub rss_mb: Option<f64>,
    /// Something above was cut; the whole output is the resource `output`.
    pub truncated: bool,
    pub notes: Vec<String>,
    /// Printed by threads or children after the cell before had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_output: Option<String>,
    /// The cell after whose end the late output came.
    #[serde(skip)]
    pub late_after: Option<u64>,
    /// It has not begun.
    #[serde(skip)]
    pub waits: bool,
    /// stdout and stderr as they came.
    #[serde(skip)]
    pub merged: String,
}

/// One form of a rich value a cell showed, or a file it made.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Display {
    pub mime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Instead of the resource: text as it is, images in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub bytes: u64,
    /// Which of the job's values it is, when it is small enough to be given to a model as it is.
    #[serde(skip)]
    pub inline: Option<usize>,
}

impl Display {
    fn of_shown(shown: &Shown, job: &str) -> Self {
        Self {
            mime: shown.mime.clone(),
            resource: Some(shown.uri(job)),
            data: None,
            title: shown.title.clone(),
            bytes: shown.bytes as u64,
            inline: shown.inline.then_some(shown.index),
        }
    }

    fn of_file(file: &MadeFile, session: &str) -> Self {
        Self {
            mime: mime_of(&file.path).to_owned(),
            resource: Some(file_uri(session, &file.path)),
            title: Some(file.path.clone()),
            bytes: file.bytes,
            ..Self::default()
        }
    }

    pub fn is_file(&self) -> bool {
        self.resource.as_deref().is_some_and(|resource| resource.starts_with(FILES))
    }
}

/// What begins the address of a file.
const FILES: &str = "pylair://file/";

/// Files that programs make for themselves and that are of no use to anybody else.
fn is_by_product(path: &str) -> bool {
    const ENDINGS: &[&str] = &["-journal", "-wal", "-shm", ".pyc", ".swp", "~"];
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with(".~lock") || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Where a file of a session's workspace is read.
pub fn file_uri(session: &str, path: &str) -> String {
    format!("{FILES}{session}/{}", pylair_text::escape::url_path(path))
}

/// What a file is, as far as its name says.
pub fn mime_of(path: &str) -> &'static str {
    let extension = path.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("svg") => "image/svg+xml",
        Some("webp") => "image/webp",
        Some("html" | "htm") => "text/html",
        Some("json") => "application/json",
        Some("csv") => "text/csv",
        Some("tsv") => "text/tab-separated-values",
        Some("md") => "text/markdown",
        Some("py") => "text/x-python",
        Some("txt" | "log") => "text/plain",
        Some("pdf") => "application/pdf",
        Some("zip") => "application/zip",
        Some("ipynb") => "application/x-ipynb+json",
        _ => "application/octet-stream",
    }
}

/// Where the whole output of a job is read.
pub fn output_uri(job: &str) -> String {
    format!("pylair://output/{job}")
}

impl Report {
    /// Tells a job as it is now, in at most about `max_chars` characters of text.
    pub fn new(job: &Job, execution: Option<&Execution>, max_chars: usize) -> Self {
        let texts = execution.map_or(0, |execution| {
            let error = execution.error.as_ref().map_or(0, |error| error.message.len() + error.traceback.len());
            execution.result.as_ref().map_or(0, String::len) + error
        });
        apart(texts + job.capture.bytes(), || Self::cut(job, execution, max_chars))
    }

    fn cut(job: &Job, execution: Option<&Execution>, max_chars: usize) -> Self {
        let share = max_chars / 3;
        let mut truncated = false;
        // Each has a third of the room, and what the others leave of theirs.
        let printed = job.capture.snapshot(share, None).merged.text.chars().count();
        let room = max_chars.saturating_sub(printed).max(share);
        let mut shorten = |text: &str| {
            let (text, cut) = cut_middle(text, room);
            truncated |= cut;
            text
        };
        let result = execution.and_then(|execution| execution.result.as_deref()).map(&mut shorten);
        let error = execution.and_then(|execution| execution.error.clone()).map(|mut error| {
            error.traceback = shorten(&error.traceback);
            error.message = shorten(&error.message);
            error
        });
        let late = job.late().map(|late| (late.after_cell, late.capture.snapshot(share, None)));
        let used = result.as_ref().map_or(0, String::len) + error.as_ref().map_or(0, |error| error.traceback.len());
        let uri = output_uri(&job.id);
        let printed = job.capture.snapshot(max_chars.saturating_sub(used).max(share), Some(&uri));
        let mut notes = execution.map(|execution| execution.notes.clone()).unwrap_or_default();
        notes.extend(job.waits().map(|waits| {
            format!(
                "it has not begun: it waits for {}; get_job goes on waiting, get_job(cancel=true) takes it back",
                waits.behind
            )
        }));
        if let Some(chars) = execution.and_then(|execution| execution.result_chars) {
            truncated = true;
            notes.push(format!("the result has {chars} characters, of which only a part was kept"));
        }
        let mut displays: Vec<_> = job.shown().iter().map(|shown| Display::of_shown(shown, &job.id)).collect();
        let files = execution.map(|execution| execution.files.as_slice()).unwrap_or_default();
        let files = files.iter().filter(|file| !is_by_product(&file.path));
        displays.extend(files.map(|file| Display::of_file(file, &job.session)));
        let elapsed = execution.map_or_else(|| job.elapsed(), |execution| execution.duration);
        Self {
            session: job.session.to_string(),
            cell: job.cell,
            outcome: execution.map_or(Outcome::Running, |execution| execution.outcome),
            job: job.id.clone(),
            truncated: truncated || printed.truncated,
            stdout: printed.stdout.text,
            stderr: printed.stderr.text,
            merged: printed.merged.text,
            result,
            error,
            displays,
            variables: execution.map(|execution| execution.variables.clone()).unwrap_or_default(),
            duration_ms: milliseconds(elapsed),
            cpu_ms: execution.map_or(0.0, |execution| milliseconds(execution.cpu)),
            rss_mb: execution.and_then(|execution| execution.rss_mb).map(|mb| (mb * 10.0).round() / 10.0),
            notes,
            waits: job.waits().is_some(),
            late_after: late.as_ref().map(|(cell, _)| *cell),
            late_output: late.map(|(_, excerpt)| excerpt.merged.text),
        }
    }

    /// How many bytes it has at most, about.
    pub fn most_bytes(job: &Job, execution: &Execution, max_chars: usize) -> usize {
        let error = execution.error.as_ref().map_or(0, |error| error.message.len() + error.traceback.len());
        let told = execution.result.as_ref().map_or(0, String::len) + error;
        (job.capture.bytes() + told).min(4 * max_chars) + 1024
    }

    /// About how many bytes its texts have.
    pub fn weight(&self) -> usize {
        let error = self.error.as_ref().map_or(0, |error| error.message.len() + error.traceback.len());
        let told = [&self.result, &self.late_output].into_iter().flatten().map(String::len).sum::<usize>();
        self.stdout.len() + self.stderr.len() + self.merged.len() + error + told
    }
}

pub(crate) fn milliseconds(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Keeps the head and the tail of a text that is longer than `max_chars`, and says how much is missing between them.
pub fn cut_middle(text: &str, max_chars: usize) -> (String, bool) {
    // Bytes bound characters, so most texts need no counting.
    if text.len() <= max_chars {
        return (text.to_owned(), false);
    }
    let total = text.chars().count();
    if total <= max_chars {
        return (text.to_owned(), false);
    }
    let keep = max_chars.saturating_sub(60);
    let head = keep * 2 / 3;
    let tail = keep - head;
    let at = |position: usize| text.char_indices().nth(position).map_or(text.len(), |(at, _)| at);
    let left_out = total - head - tail;
    (
        format!("{}\n… {left_out} of {total} characters left out …\n{}", &text[..at(head)], &text[at(total - tail)..]),
        true,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_products_of_programs_are_told_from_results() {
        for (path, expected) in [
            ("out/table.csv", false),
            ("data.db", false),
            ("journal", false),
            ("data.db-journal", true),
            ("data.db-wal", true),
            ("a/__pycache__/b.cpython-312.pyc", true),
            ("docs/.~lock.a.ods#", true),
            ("notes.txt~", true),
        ] {
            assert_eq!(is_by_product(path), expected, "{path}");
        }
    }

    #[test]
    fn names_of_files_are_safe_in_a_uri() {
        assert_eq!(file_uri("main", "out/a b%.csv"), "pylair://file/main/out/a%20b%25.csv");
    }

    #[test]
    fn a_cut_keeps_head_and_tail_and_never_the_budget_exceeds() {
        let text: String = (0..1000).flat_map(|number| [number.to_string(), "é".to_owned()]).collect();
        let (cut, was_cut) = cut_middle(&text, 500);
        assert!(was_cut && cut.chars().count() <= 500, "{}", cut.chars().count());
        assert!(cut.starts_with("0é1é") && cut.ends_with("998é999é"), "{cut}");
        assert_eq!(cut_middle("short", 500), ("short".to_owned(), false));
        assert!(cut_middle("abcdefgh", 2).1);
    }
}
