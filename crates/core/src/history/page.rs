//! A page of history as callers see it: texts cut to a budget, and the same again for a model to read.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Cell, Entry, Piece, Subject};
use crate::session::{cut_middle, output_uri};
use pylair_output::Stream;

/// How long each text may be: the first of these with which the page stays within its budget.
const TEXT_CHARS: &[usize] = &[4000, 2000, 1000, 500, 250, 120];

/// The newest cells before a cell, oldest first, with what happened between them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HistoryPage {
    session: String,
    handle: String,
    entries: Vec<PageEntry>,
    /// Pass it as `before` for the page before this one.
    next_before: Option<u64>,
    /// Why the beginning is not kept any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum PageEntry {
    Cell(Box<PageCell>),
    Event(PageEvent),
}

#[derive(Debug, Serialize, JsonSchema)]
struct PageCell {
    cell: u64,
    code: String,
    outcome: String,
    started: String,
    duration_ms: Option<u64>,
    client: String,
    stdout: String,
    stderr: String,
    result: Option<String>,
    error: Option<String>,
    displays: Vec<Shown>,
    /// The session was later set back to before this cell.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    rolled_back: bool,
    /// A text above was cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Where the whole of what it printed can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    mime: String,
    resource: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PageEvent {
    event: &'static str,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    text: String,
}

/// Before the page there are cells from `next_before` on, or there were some that were `removed`.
pub(super) fn page(
    subject: &Subject,
    entries: &[Entry],
    (next_before, removed): (Option<u64>, Option<String>),
    max_chars: usize,
) -> HistoryPage {
    let cut = |max: usize| -> Vec<PageEntry> { entries.iter().map(|entry| page_entry(entry, max)).collect() };
    let mut page_entries = Vec::new();
    for max in TEXT_CHARS {
        page_entries = cut(*max);
        if page_entries.iter().map(PageEntry::len).sum::<usize>() <= max_chars {
            break;
        }
    }
    HistoryPage {
        session: subject.name.clone(),
        handle: subject.handle.to_string(),
        entries: page_entries,
        next_before,
        removed,
    }
}

fn page_entry(entry: &Entry, max: usize) -> PageEntry {
    match entry {
        Entry::Cell(cell) => PageEntry::Cell(Box::new(page_cell(cell, max))),
        Entry::Happening(happening) => PageEntry::Event(PageEvent {
            event: happening.event,
            at: happening.at.to_string(),
            cell: happening.cell,
            text: cut_middle(&happening.text, max).0,
        }),
    }
}

fn page_cell(cell: &Cell, max: usize) -> PageCell {
    let mut truncated = cell.code_cut;
    let mut shorten = |text: &str| {
        let (text, cut) = cut_middle(text, max);
        truncated |= cut;
        text
    };
    let code = shorten(&cell.code);
    let result = cell.result.as_deref().map(&mut shorten);
    // With the traceback an agent sees which line it was.
    let error = match (&cell.error, cell.traceback.as_deref().map(str::trim_end)) {
        (Some(_), Some(traceback)) if !traceback.is_empty() && cell.outcome != "died" => Some(shorten(traceback)),
        (Some(error), _) => Some(shorten(error)),
        (None, _) => None,
    };
    let (whole_out, whole_err) = (cell.printed(Stream::Stdout), cell.printed(Stream::Stderr));
    let ((stdout, out_cut), (stderr, err_cut)) = (cut_middle(&whole_out, max), cut_middle(&whole_err, max));
    let output_cut = out_cut || err_cut || cell.bytes_missing > 0;
    let displays = cell.pieces.iter().filter_map(|piece| match piece {
        Piece::Shown { mime, resource, .. } => Some(Shown { mime: mime.clone(), resource: resource.clone() }),
        Piece::Printed(..) => None,
    });
    PageCell {
        cell: cell.cell,
        code,
        outcome: cell.outcome.clone(),
        started: cell.started.to_string(),
        duration_ms: cell.duration_ms,
        client: cell.client.clone(),
        stdout,
        stderr,
        result,
        error,
        displays: displays.collect(),
        rolled_back: cell.rolled_back,
        truncated: truncated || output_cut,
        output: output_cut.then(|| output_uri(&cell.job)),
    }
}

impl PageEntry {
    fn len(&self) -> usize {
        100 + match self {
            Self::Cell(cell) => {
                let texts = [&cell.result, &cell.error].into_iter().flatten().map(String::len);
                cell.code.len() + cell.stdout.len() + cell.stderr.len() + texts.sum::<usize>()
            }
            Self::Event(event) => event.text.len(),
        }
    }
}

/// The page as text: cells as a person sees them at a prompt.
pub fn page_text(page: &HistoryPage) -> String {
    let mut text = String::new();
    if let Some(removed) = &page.removed {
        let _infallible = writeln!(text, "[what came before was removed to make room: {removed}]");
    }
    for entry in &page.entries {
        match entry {
            PageEntry::Cell(cell) => cell_text(&mut text, cell),
            PageEntry::Event(event) => {
                let _infallible = write!(text, "[{} at {}", event.event, event.at);
                if let Some(cell) = event.cell {
                    let _infallible = write!(text, ", after cell {cell}");
                }
                let colon = if event.text.is_empty() { "" } else { ": " };
                let _infallible = writeln!(text, "{colon}{}]", event.text.trim_end());
            }
        }
    }
    if page.entries.is_empty() {
        text.push_str("nothing was run\n");
    }
    if let Some(before) = page.next_before {
        let _infallible = writeln!(text, "There are older cells: get_history(before={before}).");
    }
    text
}

fn cell_text(text: &mut String, cell: &PageCell) {
    let undone = if cell.rolled_back { ", rolled back" } else { "" };
    let _infallible =
        write!(text, "In [{}] by {} at {}: {}{undone}", cell.cell, cell.client, cell.started, cell.outcome);
    if let Some(duration) = cell.duration_ms {
        let _infallible = write!(text, ", {duration} ms");
    }
    text.push('\n');
    let mut block = |label: &str, block: &str| {
        if !block.is_empty() {
            text.push_str(label);
            text.push_str(block.trim_end_matches('\n'));
            text.push('\n');
        }
    };
    block("", &cell.code);
    block("stdout:\n", &cell.stdout);
    block("stderr:\n", &cell.stderr);
    for display in &cell.displays {
        block("shown: ", &format!("{} {}", display.mime, display.resource));
    }
    block(&format!("Out[{}]: ", cell.cell), cell.result.as_deref().unwrap_or_default());
    block("", cell.error.as_deref().unwrap_or_default());
    block("the whole output: ", cell.output.as_deref().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::{
        super::record::tests::{ended, printed, started, told},
        *,
    };

    fn subject() -> Subject {
        Subject {
            owner: "uid-1".into(),
            handle: "abc".into(),
            name: "main".to_owned(),
            opened: None,
            is_open: true,
            running: None,
        }
    }

    #[test]
    fn texts_are_cut_only_as_far_as_the_page_needs() {
        let long = "0123456789\n".repeat(300);
        let kinds = |cells: u64| {
            (1..=cells)
                .flat_map(|cell| [started(cell, "x"), printed(Some(cell), Stream::Stdout, &long), ended(cell, "ok")])
                .collect::<Vec<_>>()
        };
        let of = |cells| {
            let (entries, _) = told(kinds(cells), 99, None);
            page(&subject(), &entries, (None, None), 25_000)
        };
        let lengths = |page: &HistoryPage| page.entries.iter().map(PageEntry::len).sum::<usize>();
        let few = of(3);
        let PageEntry::Cell(cell) = &few.entries[0] else { panic!() };
        assert!(!cell.truncated && cell.stdout == long && cell.output.is_none());
        let many = of(60);
        assert!(lengths(&many) <= 25_000, "{}", lengths(&many));
        let PageEntry::Cell(cell) = &many.entries[0] else { panic!() };
        assert!(cell.truncated && cell.stdout.contains("left out"), "{}", cell.stdout);
        assert_eq!(cell.output.as_deref(), Some("pylair://output/abc-1"));
    }

    #[test]
    fn the_text_reads_like_a_prompt() {
        let (entries, _) =
            told(vec![started(1, "print(1)"), printed(Some(1), Stream::Stdout, "1\n"), ended(1, "ok")], 9, None);
        let text = page_text(&page(&subject(), &entries, (Some(1), None), 25_000));
        assert_eq!(
            text,
            "In [1] by it at 2023-11-14T22:13:20Z: ok, 5 ms\nprint(1)\nstdout:\n1\n\
             There are older cells: get_history(before=1).\n"
        );
    }
}
