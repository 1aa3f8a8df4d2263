//! Events to cells. Pure: the journal is read by the module above, newest events first.

use std::{borrow::Cow, collections::HashSet, ops::ControlFlow, sync::Arc};

use jiff::Timestamp;

use pylair_journal::{Event, EventKind};
use pylair_output::Stream;

/// One thing in a session's history.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    Cell(Box<Cell>),
    Happening(Happening),
}

/// A cell as the journal knows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    pub cell: u64,
    pub job: String,
    pub code: String,
    /// There was more code than the journal keeps.
    pub code_cut: bool,
    pub client: String,
    pub started: Timestamp,
    /// As in reports: `ok`, `raised`, `interrupted`, `timed_out`, `died` or `running`.
    pub outcome: String,
    pub duration_ms: Option<u64>,
    /// What it printed and showed, in order.
    pub pieces: Vec<Piece>,
    /// Bytes it printed that are not in `pieces`.
    pub bytes_missing: u64,
    /// It called `sys.exit` to say that all is well.
    pub exited: bool,
    pub result: Option<String>,
    /// `Type: message`
    pub error: Option<String>,
    pub traceback: Option<String>,
    /// The session was later set back to before this cell.
    pub rolled_back: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    Printed(Stream, String),
    /// One form of a rich value; forms of one value have the same number.
    Shown {
        value: usize,
        mime: String,
        resource: String,
    },
}

impl Cell {
    /// Everything it printed to one stream.
    pub fn printed(&self, wanted: Stream) -> String {
        let texts = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Printed(stream, text) if *stream == wanted => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The error's type and its message.
    pub fn error_parts(&self) -> Option<(&str, &str)> {
        let error = self.error.as_deref()?;
        Some(error.split_once(": ").unwrap_or((error.trim_end_matches(':'), "")))
    }
}

/// What befell a session between cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Happening {
    pub at: Timestamp,
    pub event: &'static str,
    /// The cell a rollback went back to, or a branch began after.
    pub cell: Option<u64>,
    /// Why, what was printed or installed, or the session it was branched off.
    pub text: String,
}

/// What is known of the events before those that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    Unknown,
    /// The beginning of the session was met.
    None,
    /// There are more than was asked for.
    More,
}

/// Reads events from the newest back until it has its cells, then tells them forward.
#[derive(Debug)]
pub(super) struct Backwards {
    limit: usize,
    /// Cells from this number on are not wanted.
    before: Option<u64>,
    bytes_left: usize,
    /// Newest first.
    kept: Vec<Arc<Event>>,
    cells: usize,
    /// Cells after this one that are met from now on were undone later.
    undone_after: u64,
    undone: HashSet<u64>,
    reached: bool,
    /// What a session was branched off: it took all packages with it, also those that came after its last cell.
    is_ancestor: bool,
    pub(super) rest: Rest,
    pub(super) branch: Option<BranchedOff>,
}

/// Where a session comes from.
#[derive(Debug, Clone)]
pub(super) struct BranchedOff {
    pub(super) handle: String,
    /// The newest cell it took with it.
    pub(super) cell: u64,
    /// The event that says so.
    pub(super) seq: u64,
}

impl Backwards {
    /// The newest `limit` cells before `before`, and not more than about `max_bytes` of them.
    pub(super) fn new(limit: usize, before: Option<u64>, max_bytes: usize) -> Self {
        Self {
            limit,
            before,
            bytes_left: max_bytes,
            kept: Vec::new(),
            cells: 0,
            undone_after: u64::MAX,
            undone: HashSet::new(),
            reached: before.is_none(),
            is_ancestor: false,
            rest: Rest::Unknown,
            branch: None,
        }
    }

    /// Goes on with what this session was branched off, as it was then.
    pub(super) fn ancestor(&self, cell: u64) -> Self {
        let older = Self::new(self.limit - self.cells, Some(cell + 1), self.bytes_left);
        Self { undone_after: self.undone_after, is_ancestor: true, ..older }
    }

    /// Takes the next older event. Breaks when there is enough.
    pub(super) fn take(&mut self, event: &Arc<Event>) -> ControlFlow<()> {
        if matches!(event.kind, EventKind::SessionOpened { .. }) {
            self.rest = Rest::None;
        }
        let cell = match &event.kind {
            EventKind::SessionRolledBack { checkpoint_cell, .. } => {
                self.undone_after = self.undone_after.min(*checkpoint_cell);
                None
            }
            EventKind::SessionOpened { branch: Some((handle, cell)), .. } => {
                self.branch = Some(BranchedOff { handle: handle.clone(), cell: *cell, seq: event.seq });
                None
            }
            EventKind::CellStarted { cell, .. }
            | EventKind::CellEnded { cell, .. }
            | EventKind::Display { cell, .. }
            | EventKind::Output { cell: Some(cell), .. } => Some(*cell),
            // Between cells there is nothing to tell of these.
            EventKind::CheckpointMade { .. } | EventKind::CheckpointSkipped { .. } => return ControlFlow::Continue(()),
            _ => None,
        };
        // What happened after the last wanted cell belongs to the page of the cell that follows.
        self.reached |= cell.zip(self.before).is_some_and(|(cell, before)| cell < before);
        let is_taken_along = self.is_ancestor && matches!(event.kind, EventKind::PackagesInstalled { .. });
        if !self.reached && !is_taken_along {
            return ControlFlow::Continue(());
        }
        let size = size(&event.kind);
        if cell.is_some() && (self.cells == self.limit || self.bytes_left < size) {
            self.rest = Rest::More;
            return ControlFlow::Break(());
        }
        self.bytes_left = self.bytes_left.saturating_sub(size);
        if let EventKind::CellStarted { cell, .. } = &event.kind {
            self.cells += 1;
            if *cell > self.undone_after {
                self.undone.insert(*cell);
            }
        }
        self.kept.push(event.clone());
        ControlFlow::Continue(())
    }

    /// The entries, oldest first, and the oldest cell among them when there are older ones.
    pub(super) fn finish(self, running: Option<u64>) -> (Vec<Entry>, Option<u64>) {
        let mut entries: Vec<Entry> = Vec::new();
        for event in self.kept.iter().rev() {
            match &event.kind {
                EventKind::CellStarted { cell, job, code, code_cut, client } => {
                    entries.push(Entry::Cell(Box::new(Cell {
                        cell: *cell,
                        job: job.clone(),
                        code: code.clone(),
                        code_cut: *code_cut,
                        client: client.clone(),
                        started: event.at,
                        rolled_back: self.undone.contains(cell),
                        ..Cell::default()
                    })));
                }
                EventKind::Output { cell: Some(number), stream, text } => {
                    if let Some(cell) = newest(&mut entries, *number) {
                        match cell.pieces.last_mut() {
                            Some(Piece::Printed(last, printed)) if last == stream => printed.push_str(text),
                            _ => cell.pieces.push(Piece::Printed(*stream, text.clone())),
                        }
                    }
                }
                EventKind::Display { cell: number, value, mime, resource } => {
                    if let Some(cell) = newest(&mut entries, *number) {
                        cell.pieces.push(Piece::Shown {
                            value: *value,
                            mime: mime.clone(),
                            resource: resource.clone(),
                        });
                    }
                }
                EventKind::CellEnded {
                    cell: number,
                    outcome,
                    result,
                    error,
                    traceback,
                    output_bytes,
                    duration_ms,
                    exited,
                    ..
                } => {
                    if let Some(cell) = newest(&mut entries, *number) {
                        cell.outcome.clone_from(outcome);
                        cell.exited = *exited;
                        cell.result.clone_from(result);
                        cell.error.clone_from(error);
                        cell.traceback.clone_from(traceback);
                        cell.duration_ms = Some(*duration_ms);
                        let known = cell.pieces.iter().map(|piece| match piece {
                            Piece::Printed(_, text) => text.len() as u64,
                            Piece::Shown { .. } => 0,
                        });
                        cell.bytes_missing = output_bytes.saturating_sub(known.sum());
                    }
                }
                kind => {
                    if let Some((name, cell, text)) = happening(kind) {
                        match entries.last_mut() {
                            // Late output comes in many small pieces.
                            Some(Entry::Happening(last)) if name == LATE && last.event == LATE => {
                                last.text.push_str(&text);
                            }
                            _ => entries.push(Entry::Happening(Happening {
                                at: event.at,
                                event: name,
                                cell,
                                text: text.into_owned(),
                            })),
                        }
                    }
                }
            }
        }
        let mut oldest = None;
        for entry in &mut entries {
            let Entry::Cell(cell) = entry else { continue };
            oldest = oldest.or(Some(cell.cell));
            if cell.outcome.is_empty() {
                if running == Some(cell.cell) {
                    "running".clone_into(&mut cell.outcome);
                } else {
                    "died".clone_into(&mut cell.outcome);
                    cell.error = Some("WorkerDied: pylair ended before the cell did".to_owned());
                }
            }
        }
        (entries, oldest.filter(|_| self.rest == Rest::More))
    }
}

/// The newest cell, if it has this number. Cells run one at a time, so nothing belongs to an older one.
fn newest(entries: &mut [Entry], number: u64) -> Option<&mut Cell> {
    let newest = entries.iter_mut().rev().find_map(|entry| match entry {
        Entry::Cell(cell) => Some(&mut **cell),
        Entry::Happening(_) => None,
    });
    newest.filter(|cell| cell.cell == number)
}

const LATE: &str = "late_output";
/// The session was opened, and not empty.
pub(super) const RESTORED: &str = "restored";
pub(super) const INSTALLED: &str = "packages_installed";

fn happening(kind: &EventKind) -> Option<(&'static str, Option<u64>, Cow<'_, str>)> {
    let (name, cell, text): (_, _, &str) = match kind {
        EventKind::PackagesInstalled { packages, .. } => return Some((INSTALLED, None, packages.join(" ").into())),
        EventKind::SessionOpened { branch: Some((handle, cell)), .. } => ("branched", Some(*cell), handle),
        EventKind::SessionOpened { restored: true, .. } => (RESTORED, None, "with variables from a save"),
        EventKind::SessionOpened { .. } => ("opened", None, ""),
        EventKind::SessionClosed { reason } => ("closed", None, reason),
        EventKind::SessionRestarted { reason } => ("restarted", None, reason),
        EventKind::SessionCleared {} => ("cleared", None, "all variables are gone"),
        EventKind::SessionRolledBack { checkpoint_cell, reason } => ("rolled_back", Some(*checkpoint_cell), reason),
        EventKind::Output { cell: None, text, .. } => (LATE, None, text),
        EventKind::Gap { .. } => ("gap", None, "some events were not kept"),
        _ => return None,
    };
    Some((name, cell, text.into()))
}

/// About what an event adds to an answer.
fn size(kind: &EventKind) -> usize {
    100 + match kind {
        EventKind::CellStarted { code, .. } => code.len(),
        EventKind::Output { text, .. } => text.len(),
        EventKind::CellEnded { result, error, traceback, .. } => {
            [result, error, traceback].into_iter().flatten().map(String::len).sum()
        }
        EventKind::PackagesInstalled { packages, .. } => packages.iter().map(String::len).sum(),
        _ => 0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{Opened, export::Transcript},
        *,
    };

    pub(in crate::history) fn events(kinds: Vec<EventKind>) -> Vec<Arc<Event>> {
        let (owner, target): (Arc<str>, Arc<str>) = ("uid-1".into(), "abc".into());
        let make = |(index, kind)| {
            let at = Timestamp::from_second(1_700_000_000 + i64::from(index)).unwrap();
            Arc::new(Event { seq: u64::from(index) + 1, at, owner: owner.clone(), target: target.clone(), kind })
        };
        (0_u32..).zip(kinds).map(make).collect()
    }

    pub(in crate::history) fn started(cell: u64, code: &str) -> EventKind {
        let job = format!("abc-{cell}");
        EventKind::CellStarted { cell, job, code: code.to_owned(), code_cut: false, client: "it".to_owned() }
    }

    pub(in crate::history) fn printed(cell: Option<u64>, stream: Stream, text: &str) -> EventKind {
        EventKind::Output { cell, stream, text: text.to_owned() }
    }

    pub(in crate::history) fn ended(cell: u64, outcome: &str) -> EventKind {
        EventKind::CellEnded {
            cell,
            job: format!("abc-{cell}"),
            outcome: outcome.to_owned(),
            result: None,
            error: None,
            traceback: None,
            output_bytes: 0,
            duration_ms: 5,
            exited: false,
        }
    }

    fn back(to: u64) -> EventKind {
        EventKind::SessionRolledBack { checkpoint_cell: to, reason: "why".to_owned() }
    }

    pub(in crate::history) fn told(
        kinds: Vec<EventKind>,
        limit: usize,
        before: Option<u64>,
    ) -> (Vec<Entry>, Option<u64>) {
        let mut backwards = Backwards::new(limit, before, 1 << 20);
        for event in events(kinds).iter().rev() {
            if backwards.take(event).is_break() {
                break;
            }
        }
        backwards.finish(None)
    }

    /// Cells by number, undone ones with a minus, happenings by name.
    fn outline(entries: &[Entry]) -> Vec<String> {
        let line = |entry: &Entry| match entry {
            Entry::Cell(cell) if cell.rolled_back => format!("-{}", cell.cell),
            Entry::Cell(cell) => cell.cell.to_string(),
            Entry::Happening(happening) => happening.event.to_owned(),
        };
        entries.iter().map(line).collect()
    }

    #[test]
    fn pages_go_back_and_what_happened_before_a_cell_is_on_its_page() {
        let mut kinds = vec![EventKind::SessionCleared {}];
        for cell in 1..=5 {
            kinds.extend([started(cell, "x"), ended(cell, "ok"), EventKind::CheckpointMade { cell, took_us: 0 }]);
            if cell == 3 {
                kinds.push(EventKind::SessionRestarted { reason: "asked".to_owned() });
            }
        }
        kinds.push(EventKind::SessionClosed { reason: "over".to_owned() });
        let check = |limit, before, expect: &[&str], next| {
            let (entries, next_before) = told(kinds.clone(), limit, before);
            assert_eq!(outline(&entries), expect);
            assert_eq!(next_before, next);
        };
        check(2, None, &["restarted", "4", "5", "closed"], Some(4));
        check(2, Some(4), &["2", "3"], Some(2));
        check(2, Some(2), &["cleared", "1"], None);
        check(2, Some(1), &[], None);
        check(9, None, &["cleared", "1", "2", "3", "restarted", "4", "5", "closed"], None);
    }

    #[test]
    fn what_was_undone_is_marked_also_by_a_rollback_on_a_later_page() {
        let cells = |numbers: std::ops::RangeInclusive<u64>| {
            numbers.flat_map(|cell| [started(cell, "x"), ended(cell, "ok")]).collect::<Vec<_>>()
        };
        let mut kinds = cells(1..=5);
        kinds.push(back(3));
        kinds.extend(cells(6..=7));
        kinds.push(back(6));
        kinds.extend(cells(8..=8));
        let (entries, _) = told(kinds.clone(), 99, None);
        assert_eq!(outline(&entries), ["1", "2", "3", "-4", "-5", "rolled_back", "6", "-7", "rolled_back", "8"]);
        let (entries, _) = told(kinds, 2, Some(6));
        assert_eq!(outline(&entries), ["-4", "-5"]);
    }

    #[test]
    fn a_cell_that_died_and_was_rolled_back_is_one_cell() {
        let kinds = vec![started(1, "x"), ended(1, "ok"), started(2, "die"), back(1), ended(2, "died")];
        let (entries, _) = told(kinds, 9, None);
        assert_eq!(outline(&entries), ["1", "-2", "rolled_back"]);
        let Entry::Cell(cell) = &entries[1] else { panic!() };
        assert_eq!(cell.outcome, "died");
    }

    #[test]
    fn streams_stay_in_order_and_late_output_is_no_cell_of_its_own() {
        let (entries, _) = told(
            vec![
                started(1, "x"),
                printed(Some(1), Stream::Stdout, "a"),
                printed(Some(1), Stream::Stdout, "b"),
                printed(Some(1), Stream::Stderr, "c"),
                printed(Some(1), Stream::Stdout, "d"),
                ended(1, "ok"),
                printed(None, Stream::Stdout, "la"),
                printed(None, Stream::Stdout, "te"),
                started(2, "y"),
            ],
            9,
            None,
        );
        let Entry::Cell(cell) = &entries[0] else { panic!() };
        let piece = |stream, text: &str| Piece::Printed(stream, text.to_owned());
        assert_eq!(cell.pieces, [piece(Stream::Stdout, "ab"), piece(Stream::Stderr, "c"), piece(Stream::Stdout, "d")]);
        assert_eq!(cell.printed(Stream::Stdout), "abd");
        assert!(matches!(&entries[1], Entry::Happening(late) if late.event == "late_output" && late.text == "late"));
        let Entry::Cell(cell) = &entries[2] else { panic!() };
        assert_eq!(cell.outcome, "died", "nothing runs any more");
    }

    /// A session with one of everything, for the tests of exports.
    pub(in crate::history) fn sample() -> Transcript {
        let show = |index: usize, mime: &str| EventKind::Display {
            cell: 1,
            value: index,
            mime: mime.to_owned(),
            resource: format!("pylair://display/abc-1/{index}"),
        };
        let with = |mut kind: EventKind, gave: Option<&str>, failed: Option<&str>| {
            if let EventKind::CellEnded { result, error, .. } = &mut kind {
                *result = gave.map(str::to_owned);
                *error = failed.map(str::to_owned);
            }
            kind
        };
        let (entries, _) = told(
            vec![
                started(1, "print('a')"),
                printed(Some(1), Stream::Stdout, "a\nb"),
                show(1, "image/png"),
                show(2, "text/html"),
                with(ended(1, "ok"), Some("42"), None),
                started(2, "x = 1\nraise ValueError('bad: <b>')"),
                with(ended(2, "raised"), None, Some("ValueError: bad: <b>")),
                EventKind::SessionRestarted { reason: "asked".to_owned() },
                started(3, "await f()"),
                ended(3, "ok"),
                started(4, "while True: pass"),
                with(ended(4, "interrupted"), None, Some("KeyboardInterrupt: ")),
            ],
            99,
            None,
        );
        Transcript {
            name: "main".to_owned(),
            handle: "abc".to_owned(),
            opened: Some(Opened {
                python: "3.13.0".to_owned(),
                cwd: "/work".to_owned(),
                startup: Some("import math".to_owned()),
            }),
            exported: Timestamp::from_second(1_700_000_000).unwrap(),
            entries,
            notes: Vec::new(),
        }
    }
}
