//! From a probe's frames about a cell to what is kept of it: rich values, the result, the end of its output. Shared by the task of a
//! session and by apps.

use std::{sync::Arc, time::Duration};

use super::{
    cut_middle,
    job::{Execution, Job, Outcome, Shown, Variables},
};
use pylair_journal::EventKind;
use pylair_output::Outputs;
use pylair_probe::wire::{Raised, Reply};
use pylair_workers::link::Refusal;

/// Results are shown in a third of the longest answer; more is not kept.
const MAX_RESULT_CHARS: usize = 350_000;
/// A third of what is shown by default.
const MAX_RESULT_SHOWN_BYTES: usize = 8000;
const MAX_DISPLAY_PARTS: usize = 100;

/// Keeps a rich value on disk, where it can be read as a resource. Returns what to record and what the caller must know.
pub(crate) async fn keep_display(
    outputs: &Arc<Outputs>,
    job: &Job,
    reply: Reply,
    blob: Vec<u8>,
) -> (Vec<EventKind>, Vec<String>) {
    let (mut events, mut notes) = (Vec::new(), Vec::new());
    let blob = bytes::Bytes::from(blob);
    let mut offset = 0_usize;
    let value = job.shown().len() + 1;
    for part in reply.parts {
        let end = offset.checked_add(part.bytes).filter(|end| *end <= blob.len());
        let index = job.shown().len() + 1;
        let Some(end) = end.filter(|_| index <= MAX_DISPLAY_PARTS) else {
            notes.push("not every rich value the cell showed was kept".to_owned());
            break;
        };
        let bytes = blob.slice(offset..end);
        offset = end;
        let (outputs, owner, id, mime) = (outputs.clone(), job.owner.clone(), job.id.clone(), part.mime.clone());
        let kept = tokio::task::spawn_blocking(move || outputs.keep_part(&owner, &id, index, &mime, &bytes)).await;
        if !matches!(kept, Ok(Ok(()))) {
            notes.push(format!("a display ({}) could not be kept on disk", part.mime));
            continue;
        }
        let shown =
            Shown { index, mime: part.mime, bytes: part.bytes, inline: part.inline, title: reply.title.clone() };
        let (mime, resource) = (shown.mime.clone(), shown.uri(&job.id));
        events.push(EventKind::Display { cell: job.cell, value, mime, resource });
        job.show(shown);
    }
    (events, notes)
}

impl Execution {
    /// The end of a cell as its probe told it. `notes` come before the probe's own.
    pub(crate) async fn of_reply(
        outcome: Outcome,
        reply: Reply,
        blob: Vec<u8>,
        mut notes: Vec<String>,
        (job, outputs): (&Job, &Arc<Outputs>),
    ) -> Self {
        notes.extend(reply.notes);
        if reply.names_cut {
            notes.push("only the first 100 variable names of each kind are listed".to_owned());
        }
        let whole = if blob.is_empty() { reply.result } else { Some(String::from_utf8_lossy(&blob).into_owned()) };
        if let Some(whole) = whole.as_ref().filter(|whole| whole.len() > MAX_RESULT_SHOWN_BYTES) {
            keep_result(outputs, job, whole).await;
        }
        let mut result_chars = reply.result_chars;
        let result = whole.map(|whole| {
            let (result, was_cut) = cut_middle(&whole, MAX_RESULT_CHARS);
            if was_cut && result_chars.is_none() {
                result_chars = Some(whole.chars().count() as u64);
            }
            result
        });
        let mut execution = Self {
            exited: reply.exited,
            result,
            result_chars,
            error: reply.error,
            variables: Variables { new: reply.new, changed: reply.changed, removed: reply.removed },
            cpu: Duration::from_micros(reply.cpu_us),
            files: reply.files,
            ..Self::cut_short(outcome, Duration::from_micros(reply.duration_us), notes)
        };
        if let Some(message) = reply.refused {
            execution.refuse(Refusal { message, kind: reply.kind, hint: reply.hint });
        }
        execution
    }

    /// Nothing of it was run, or what it did cannot be known.
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        let message = refusal.message.clone();
        self.error = Some(Raised { kind: "pylair".to_owned(), traceback: message.clone(), message, line: None });
        self.refused = Some(refusal);
    }
}

/// Keeps a result that is too long to be shown whole where the rest of it can be read.
async fn keep_result(outputs: &Arc<Outputs>, job: &Job, whole: &str) {
    let index = job.shown().len() + 1;
    let (outputs, owner, id, text) = (outputs.clone(), job.owner.clone(), job.id.clone(), whole.to_owned());
    let keep = move || outputs.keep_part(&owner, &id, index, "text/plain", text.as_bytes());
    let kept = tokio::task::spawn_blocking(keep).await;
    if matches!(kept, Ok(Ok(()))) {
        let (mime, title) = ("text/plain".to_owned(), Some("the whole result".to_owned()));
        job.show(Shown { index, mime, bytes: whole.len(), inline: false, title });
    }
}

impl Job {
    /// Closes the output, saying in the notes what of it is lost, and tells the end for the journal. `finish` is still to be called.
    pub(crate) fn close_output(&self, execution: &mut Execution) -> EventKind {
        let printed = self.capture.finish();
        if printed.truncated && printed.spool_error.is_none() {
            execution.notes.push(
                "the output was longer than max_output_mb allows; the rest of it was not kept on disk".to_owned(),
            );
        }
        if let Some(error) = printed.spool_error {
            execution.notes.push(format!("the whole output could not be kept on disk: {error}"));
        }
        EventKind::CellEnded {
            cell: self.cell,
            job: self.id.clone(),
            outcome: execution.outcome.as_str().to_owned(),
            result: execution.result.clone(),
            error: execution.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message)),
            traceback: execution.error.as_ref().map(|error| error.traceback.clone()),
            output_bytes: printed.total_bytes,
            duration_ms: u64::try_from(execution.duration.as_millis()).unwrap_or(u64::MAX),
            exited: execution.exited,
        }
    }
}
