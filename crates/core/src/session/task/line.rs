//! Calls of one sender that wait until what it asked the session for before has ended.
//!
//! A call waits when its sender has a cell running, has the session reserved, or has a call waiting; any other call to a session that
//! runs a cell is told so. Calls that wait go on in the order they came, before the task takes another command.

use std::{collections::VecDeque, time::Instant};

use tokio::sync::oneshot;

use super::{Error, Task};
use crate::{
    order::{Sender, SenderId},
    session::{
        Cell, Command,
        job::{Execution, Job, Outcome, Waits},
    },
};
use pylair_text::plain::counted;
use pylair_workers::link::Refusal;

/// Maximum number of calls that wait for one session.
pub(in crate::session) const MAX_WAITING: usize = 16;

#[derive(Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    reserved: Vec<Reservation>,
}

struct Waiting {
    sender: Sender,
    waits: Waits,
    call: WaitingCall,
}

enum WaitingCall {
    Cell(Box<Cell>),
    Reserve(ReserveAnswer),
}

pub(in crate::session) type ReserveAnswer = oneshot::Sender<Result<Reserved, Error>>;

/// A session that one call has for itself among the calls of its sender, until this is dropped.
pub struct Reserved {
    /// How long the call waited for it, if it did.
    pub waited: Option<String>,
    _release: oneshot::Sender<()>,
}

/// The other end of a `Reserved`.
struct Reservation {
    sender: SenderId,
    released: oneshot::Receiver<()>,
}

enum LinePosition {
    Now,
    InLine,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }

    fn is_reserved_by(&self, sender: &SenderId) -> bool {
        self.reserved.iter().any(|reservation| reservation.sender == *sender)
    }

    /// Resolves when a call that has the session for itself is over. Cancel-safe.
    pub(super) async fn released(&mut self) {
        if self.reserved.is_empty() {
            return std::future::pending().await;
        }
        let ends = self.reserved.iter_mut().map(|reservation| &mut reservation.released);
        // Nothing is ever sent: the other end is dropped.
        let (_over, position, _) = futures::future::select_all(ends).await;
        self.reserved.swap_remove(position);
    }

    fn has(&self, sender: &SenderId) -> bool {
        self.is_reserved_by(sender) || self.waiting.iter().any(|waiting| waiting.sender.id == *sender)
    }

    fn reserve(&mut self, sender: &Sender, waited: Option<String>, answer: ReserveAnswer) {
        let (release, released) = oneshot::channel();
        // A caller that is gone drops its end at once.
        let _unheard = answer.send(Ok(Reserved { waited, _release: release }));
        self.reserved.push(Reservation { sender: sender.id.clone(), released });
    }
}

impl Task {
    /// Begins a cell, or puts it in line.
    pub(super) async fn on_cell(&mut self, cell: Box<Cell>) {
        match self.place(cell.sender.as_ref().filter(|_| !cell.is_reserved)) {
            Ok(LinePosition::Now) => self.begin_or_checkpoint(cell).await,
            Ok(LinePosition::InLine) => self.put_in_line(cell),
            Err(error) => cell.refuse(error),
        }
    }

    pub(super) fn on_reserve(&mut self, sender: Sender, beside: bool, answer: ReserveAnswer) {
        let is_answered = self.running.as_ref().is_some_and(|running| running.job.is_answered());
        let goes_beside = beside && is_answered && !self.line.has(&sender.id);
        match if goes_beside { Ok(LinePosition::Now) } else { self.place(Some(&sender)) } {
            Ok(LinePosition::Now) => self.line.reserve(&sender, None, answer),
            Ok(LinePosition::InLine) => {
                let waits = self.waits();
                self.line.waiting.push_back(Waiting { sender, waits, call: WaitingCall::Reserve(answer) });
                self.show_line();
            }
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    fn place(&self, sender: Option<&Sender>) -> Result<LinePosition, Error> {
        let is_own = sender.is_some_and(|sender| {
            let runs = self.running.as_ref().is_some_and(|running| running.sender.as_ref() == Some(&sender.id));
            runs || self.line.has(&sender.id)
        });
        match &self.running {
            _ if is_own && self.line.len() >= MAX_WAITING => {
                Err(Error::LineFull { session: self.info.name.to_string(), behind: self.behind() })
            }
            _ if is_own => Ok(LinePosition::InLine),
            Some(running) => Err(self.busy(running)),
            None => Ok(LinePosition::Now),
        }
    }

    /// Gives a cell its number and its job, and lets it wait.
    fn put_in_line(&mut self, mut cell: Box<Cell>) {
        let Some(sender) = cell.sender.clone() else { return };
        let bytes = cell.work.bytes() as u64;
        let Some(room) = self.parts.waiting.take(&self.info.owner, bytes) else {
            return cell.refuse(Error::LineFull { session: self.info.name.to_string(), behind: self.behind() });
        };
        let number = self.next_cell();
        let id = format!("{}-{number}", self.info.handle);
        let capture = match self.parts.outputs.capture_up_to(&self.info.owner, &id, cell.by.max_output_bytes) {
            Ok(capture) => capture,
            Err(error) => return cell.refuse(error.into()),
        };
        self.numbered = number;
        let (owner, session) = (self.info.owner.clone(), self.info.name.clone());
        let waits = self.waits();
        let job = std::sync::Arc::new(Job::waiting(id, owner, session, number, capture, Some(waits.clone())));
        self.parts.jobs.add(job.clone());
        if let Some(answer) = cell.answer.take() {
            // A caller that is gone leaves nothing behind that would begin: see `Sender::left`, and who waits for the job.
            let _unheard = answer.send(Ok(job.clone()));
        }
        (cell.job, cell.room) = (Some(job), Some(room));
        self.line.waiting.push_back(Waiting { sender, waits, call: WaitingCall::Cell(cell) });
        self.show_line();
    }

    /// The number of a cell that comes now.
    pub(super) fn next_cell(&self) -> u64 {
        self.cell.max(self.numbered) + 1
    }

    fn waits(&self) -> Waits {
        Waits { since: Instant::now(), behind: self.behind() }
    }

    /// What a call that comes now would wait for.
    fn behind(&self) -> String {
        let running = self.running.as_ref().map(|running| running.job.cell);
        let waiting = self.line.waiting.iter().filter_map(|waiting| match &waiting.call {
            WaitingCall::Cell(cell) => cell.job.as_ref().map(|job| job.cell),
            WaitingCall::Reserve(_) => None,
        });
        let cells: Vec<u64> = running.into_iter().chain(waiting).collect();
        let calls = self.line.len() + usize::from(running.is_some()) - cells.len()
            + usize::from(self.line.is_reserved() && running.is_none());
        behind(&cells, calls)
    }

    /// Lets the next call that waits go on, when nothing runs and nobody has the session for itself.
    pub(super) async fn advance(&mut self) {
        while self.running.is_none() && self.asking.is_none() && self.waiting.is_none() {
            let Some(first) = self.line.waiting.front() else { return };
            if self.line.is_reserved_by(&first.sender.id) {
                return;
            }
            let Some(Waiting { sender, waits, call }) = self.line.waiting.pop_front() else { return };
            self.show_line();
            let has_left = sender.left.is_cancelled();
            let gone = || Error::NotBegun {
                session: self.info.name.to_string(),
                why: "its client left before it began".to_owned(),
            };
            match call {
                WaitingCall::Cell(cell) if has_left => cell.refuse(gone()),
                WaitingCall::Cell(mut cell) => {
                    cell.notes.push(waits.note());
                    self.begin_or_checkpoint(cell).await;
                }
                // Nobody waits for it any more.
                WaitingCall::Reserve(answer) if answer.is_closed() => {}
                WaitingCall::Reserve(answer) if has_left => drop(answer.send(Err(gone()))),
                WaitingCall::Reserve(answer) => self.line.reserve(&sender, Some(waits.note()), answer),
            }
        }
    }

    async fn begin_or_checkpoint(&mut self, cell: Box<Cell>) {
        if self.makes_checkpoint_first().await {
            self.waiting = Some(Command::Execute(cell));
        } else {
            self.carry_out(Command::Execute(cell)).await;
        }
    }

    /// Takes a cell out of the line, so that it never begins.
    pub(super) fn take_back(&mut self, job: &str) -> Option<std::sync::Arc<Job>> {
        let position = self.line.waiting.iter().position(|waiting| match &waiting.call {
            WaitingCall::Cell(cell) => cell.job.as_ref().is_some_and(|known| known.id == job),
            WaitingCall::Reserve(_) => false,
        })?;
        let WaitingCall::Cell(cell) = self.line.waiting.remove(position)?.call else { return None };
        self.show_line();
        let job = cell.job?;
        end_unbegun(&job, |execution| execution.notes.push("it had not begun: nothing of it ran".to_owned()));
        Some(job)
    }

    /// Answers all calls that wait: none of them begins. Returns how many there were, in words.
    pub(super) fn clear_line(&mut self, why: &str) -> Option<String> {
        let count = self.line.len();
        for Waiting { call, .. } in self.line.waiting.drain(..) {
            let error = Error::NotBegun { session: self.info.name.to_string(), why: why.to_owned() };
            match call {
                WaitingCall::Cell(cell) => cell.refuse(error),
                WaitingCall::Reserve(answer) => drop(answer.send(Err(error))),
            }
        }
        self.show_line();
        (count > 0).then(|| format!("{} waited and did not begin", calls_text(count)))
    }

    /// Lets `get_status` show how many calls wait.
    fn show_line(&self) {
        // Also when the task ends in a panic, which may have poisoned it.
        if let Ok(mut live) = self.live.lock() {
            live.waiting = self.line.len();
        }
    }

    /// What whoever stopped a cell should know about those behind it.
    pub(super) fn line_note(&self) -> Option<String> {
        let goes = if self.line.len() == 1 { "goes" } else { "go" };
        (!self.line.is_empty()).then(|| format!("{} that waited for it {goes} on", calls_text(self.line.len())))
    }
}

impl Cell {
    /// It does not begin: whoever sent it, or waits for its job, is told why.
    pub(super) fn refuse(self, error: Error) {
        if let Some(job) = &self.job {
            let (message, kind, hint) = (error.message(), Some(error.kind().to_owned()), Some(error.hint()));
            end_unbegun(job, |execution| execution.refuse(Refusal { message, kind, hint }));
        }
        if let Some(answer) = self.answer {
            let _unheard = answer.send(Err(error));
        }
    }
}

/// Ends the job of a cell that never began. The journal knows nothing of it.
fn end_unbegun(job: &Job, tell: impl FnOnce(&mut Execution)) {
    let mut execution = Execution::cut_short(Outcome::Interrupted, std::time::Duration::ZERO, Vec::new());
    tell(&mut execution);
    let _unrecorded = job.close_output(&mut execution);
    job.finish(execution);
}

fn calls_text(count: usize) -> String {
    counted(count, "call")
}

/// Cells by number and other calls, in words.
fn behind(cells: &[u64], calls: usize) -> String {
    let cells = match cells {
        [] => None,
        [one] => Some(format!("cell {one}")),
        [one, other] => Some(format!("cells {one} and {other}")),
        [first, .., last] => Some(format!("cells {first} to {last}")),
    };
    let calls = match calls {
        0 => None,
        1 => Some("another call".to_owned()),
        count => Some(format!("{count} other calls")),
    };
    let words: Vec<_> = cells.into_iter().chain(calls).collect();
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::behind;

    #[test]
    fn what_is_waited_for_is_named() {
        assert_eq!(behind(&[3], 0), "cell 3");
        assert_eq!(behind(&[3, 4], 1), "cells 3 and 4 and another call");
        assert_eq!(behind(&[3, 4, 5, 6], 0), "cells 3 to 6");
        assert_eq!(behind(&[], 2), "2 other calls");
    }
}
