//! Core results to content blocks: readable text for a model, or the structured form when it asks for that.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use pylair_core::session::{Outcome, Report};
use pylair_os::event_loop::{apart, weight};

/// As many files of a cell are named in the text; the structured form has them all.
const SHOWN_FILES: usize = 10;

/// An execution as text a model reads: what was printed, the value, the traceback, one line of facts, notes.
pub fn report_text(report: &Report) -> String {
    let mut text = String::with_capacity(report.merged.len() + 256);
    if let Some(late) = &report.late_output {
        let cell = report.late_after.unwrap_or_default();
        let _infallible = writeln!(text, "[late output, printed after cell {cell} had ended]");
        push_block(&mut text, late);
        text.push_str("[output of this cell]\n");
    }
    push_block(&mut text, &report.merged);
    if let Some(result) = &report.result {
        let _infallible = write!(text, "Out[{}]: ", report.cell);
        push_block(&mut text, result);
    }
    if let Some(error) = &report.error {
        if error.traceback.is_empty() || report.outcome == Outcome::Died {
            push_block(&mut text, &format!("{}: {}", error.kind, error.message));
        }
        push_block(&mut text, &error.traceback);
    }
    let (outcome, took) = (report.outcome.as_str(), duration_text(report.duration_ms));
    let is_call = report.session.starts_with("app:") || report.session.starts_with("failure:");
    let _infallible = match is_call.then_some(()) {
        Some(()) => write!(text, "[call {}: {outcome}, {}, {took}", report.cell, report.session),
        None => write!(text, "[cell {}: {outcome}, session {}, {took}", report.cell, report.session),
    };
    for (label, names) in
        [("new", &report.variables.new), ("changed", &report.variables.changed), ("removed", &report.variables.removed)]
    {
        if !names.is_empty() {
            const SHOWN: usize = 12;
            let _infallible =
                write!(text, ", {label}: {}", names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" "));
            if names.len() > SHOWN {
                let _infallible = write!(text, " and {} more", names.len() - SHOWN);
            }
        }
    }
    text.push(']');
    let mut files = 0;
    for display in &report.displays {
        files += usize::from(display.is_file());
        if display.is_file() && files > SHOWN_FILES {
            continue;
        }
        let title = display.title.as_deref().map(|title| format!("{title}, ")).unwrap_or_default();
        let place = match &display.resource {
            Some(resource) if display.inline.is_none() => format!("read {resource}"),
            _ => "shown".to_owned(),
        };
        let _infallible = write!(text, "\n[{title}{}, {}: {place}]", display.mime, size_text(display.bytes));
    }
    if files > SHOWN_FILES {
        let _infallible = write!(text, "\n[and {} more files]", files - SHOWN_FILES);
    }
    if report.outcome == Outcome::Running {
        let job = &report.job;
        let (state, or_stop) =
            if report.waits { ("Waiting", "") } else { ("Still running", ", or stop it with interrupt") };
        let _infallible = write!(text, "\n{state} as job {job}. Go on with get_job(job=\"{job}\"){or_stop}.");
    }
    for note in &report.notes {
        let _infallible = write!(text, "\nNote: {note}.");
    }
    text
}

fn push_block(text: &mut String, block: &str) {
    if block.is_empty() {
        return;
    }
    text.push_str(block);
    if !block.ends_with('\n') {
        text.push('\n');
    }
}

pub(super) fn size_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KB", bytes / 1024),
        _ => format!("{} MB", bytes >> 20),
    }
}

fn duration_text(milliseconds: f64) -> String {
    if milliseconds < 10.0 {
        format!("{milliseconds:.2} ms")
    } else if milliseconds < 10_000.0 {
        format!("{milliseconds:.0} ms")
    } else {
        format!("{:.1} s", milliseconds / 1000.0)
    }
}

/// An execution in the form the caller asked for. `shown` are the inline ones of its displays, by their number.
pub fn report(mut report: Report, shown: Vec<(usize, Vec<u8>)>, structured: bool) -> CallToolResult {
    let is_image = |mime: &str| matches!(mime, "image/png" | "image/jpeg");
    if structured {
        for display in &mut report.displays {
            let part = shown.iter().find(|(index, _)| Some(*index) == display.inline);
            if let Some((_, bytes)) = part {
                let text = if is_image(&display.mime) { None } else { str::from_utf8(bytes).ok() };
                display.data = Some(text.map_or_else(|| BASE64_STANDARD.encode(bytes), str::to_owned));
                display.resource = None;
            }
        }
        return data(&report, None);
    }
    let mut content = vec![ContentBlock::text(report_text(&report))];
    for (index, bytes) in shown {
        let Some(display) = report.displays.iter().find(|display| display.inline == Some(index)) else { continue };
        content.push(if is_image(&display.mime) {
            ContentBlock::image(BASE64_STANDARD.encode(bytes), display.mime.clone())
        } else {
            ContentBlock::text(String::from_utf8_lossy(&bytes))
        });
    }
    CallToolResult::success(content)
}

/// A data tool's answer: structured, with the same as text for clients that read only that.
pub fn data<T: Serialize>(value: &T, text: Option<String>) -> CallToolResult {
    let (value, text) = apart(weight(value), || {
        let value = serde_json::to_value(value).unwrap_or_default();
        let text = text.unwrap_or_else(|| serde_json::to_string_pretty(&value).unwrap_or_default());
        (value, text)
    });
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(value);
    result
}

/// What is to be said besides an answer's own: as text, and among the notes of its structure.
pub fn add_notes(result: &mut CallToolResult, notes: Vec<String>) {
    result.content.extend(notes.iter().map(|note| ContentBlock::text(format!("Note: {note}."))));
    if let Some(Value::Object(answer)) = &mut result.structured_content
        && !notes.is_empty()
        && let Value::Array(told) = answer.entry("notes").or_insert_with(|| Value::Array(Vec::new()))
    {
        told.extend(notes.into_iter().map(Value::String));
    }
}

/// A thing pylair could not do.
pub fn error(kind: &str, message: &str, hint: &str) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(format!("{kind}: {message}\nHint: {hint}"))]);
    result.structured_content = Some(serde_json::json!({"kind": kind, "message": message, "hint": hint}));
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_core::session::Variables;

    fn sample() -> Report {
        Report {
            session: "main".into(),
            cell: 4,
            outcome: Outcome::Ok,
            job: "abc-4".into(),
            stdout: "hi\n".into(),
            stderr: String::new(),
            merged: "hi\n".into(),
            result: Some("42".into()),
            error: None,
            displays: vec![],
            variables: Variables { new: vec!["x".into()], ..Variables::default() },
            duration_ms: 1.234,
            cpu_ms: 1.0,
            rss_mb: None,
            truncated: false,
            notes: vec![],
            late_output: None,
            late_after: None,
            waits: false,
        }
    }

    #[test]
    fn a_quiet_success_is_short() {
        assert_eq!(report_text(&sample()), "hi\nOut[4]: 42\n[cell 4: ok, session main, 1.23 ms, new: x]");
    }

    #[test]
    fn notes_are_told_to_whoever_reads_only_the_structure() {
        let mut plain = data(&serde_json::json!({"path": "x"}), Some("x".into()));
        add_notes(&mut plain, vec!["a".into()]);
        assert_eq!(plain.structured_content, Some(serde_json::json!({"path": "x", "notes": ["a"]})));
        assert_eq!(plain.content.len(), 2);
        let mut noted = data(&serde_json::json!({"notes": ["own"]}), None);
        add_notes(&mut noted, vec!["a".into()]);
        assert_eq!(noted.structured_content, Some(serde_json::json!({"notes": ["own", "a"]})));
        let mut quiet = data(&serde_json::json!({}), None);
        add_notes(&mut quiet, Vec::new());
        assert_eq!(quiet.structured_content, Some(serde_json::json!({})));
    }

    #[test]
    fn a_call_in_an_app_is_called_so() {
        let report = Report { session: "app:web@7".into(), ..sample() };
        assert_eq!(report_text(&report), "hi\nOut[4]: 42\n[call 4: ok, app:web@7, 1.23 ms, new: x]");
    }

    #[test]
    fn of_many_files_some_are_named_and_the_others_counted() {
        let mut report = sample();
        let file = |number: usize| pylair_core::session::Display {
            mime: "text/csv".into(),
            resource: Some(pylair_core::session::file_uri("main", &format!("{number}.csv"))),
            title: Some(format!("{number}.csv")),
            ..Default::default()
        };
        report.displays = (0..10).map(file).collect();
        let text = report_text(&report);
        assert!(text.ends_with("[9.csv, text/csv, 0 bytes: read pylair://file/main/9.csv]"), "{text}");
        report.displays = (0..13).map(file).collect();
        assert_eq!(report_text(&report), format!("{text}\n[and 3 more files]"));
    }

    #[test]
    fn a_running_cell_says_how_to_go_on_and_late_output_is_labelled() {
        let mut report = sample();
        report.outcome = Outcome::Running;
        report.result = None;
        report.late_output = Some("tick".into());
        report.late_after = Some(3);
        report.notes = vec!["something was lost".into()];
        assert_eq!(
            report_text(&report),
            "[late output, printed after cell 3 had ended]\ntick\n[output of this cell]\nhi\n\
             [cell 4: running, session main, 1.23 ms, new: x]\n\
             Still running as job abc-4. Go on with get_job(job=\"abc-4\"), or stop it with interrupt.\n\
             Note: something was lost."
        );
    }
}
