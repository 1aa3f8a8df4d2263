//! Running cells: from the request to what callers are told.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{Cause, Error, Ladder, State, Task};
use crate::{
    order::SenderId,
    packages,
    session::{
        Cell, Info, Runner, ended,
        job::{Execution, Job, Late, OnTimeout, Outcome, Variables},
        notes::stop_notes,
    },
};
use pylair_journal::EventKind;
use pylair_output::{Cursor, Outputs, Stream};
use pylair_probe::wire::{CellOutcome, Reply};
use pylair_sandbox::share::PATIENCE;
use pylair_workers::link::Link;

/// Output events in the journal are for following along; the whole is in the output file.
const MAX_JOURNAL_OUTPUT_BYTES: usize = 64 << 10;
const KEPT_NOTE: &str = "what the cell had done until then was kept";

pub(in crate::session) struct Running {
    pub(in crate::session) job: Arc<Job>,
    pub(super) request: u64,
    pub(super) deadline: Option<Instant>,
    pub(in crate::session) timeout: Option<Duration>,
    pub(super) on_timeout: OnTimeout,
    pub(super) sender: Option<SenderId>,
    pub(super) ladder: Option<Ladder>,
    auto_install: bool,
    /// When others come first.
    pub(super) patience: Option<Instant>,
}

/// How much of an output is in the journal.
#[derive(Debug, Default)]
pub(super) struct Journaled {
    output: String,
    cursor: Cursor,
    bytes: usize,
}

impl Task {
    /// Begins a cell, whose work and client are taken out of it.
    pub(super) async fn begin(&mut self, cell: &mut Cell) -> Result<Arc<Job>, Error> {
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        if self.leaving.is_some() {
            // It is saved without what this cell would do.
            return Err(Error::Gone);
        }
        if self.link.is_none() {
            self.open_worker().await?;
        } else if self.sites_due {
            self.tell_sites().await;
        }
        self.be_enclosed().await;
        self.parts.memory_kills.before();
        self.pass_over_checkpoint();
        self.idle_deaths = 0;
        // What is in the pipes by now was printed before this cell.
        self.drain_output();
        let Cell { timeout, on_timeout, .. } = *cell;
        let sender = cell.sender.as_ref().map(|sender| sender.id.clone());
        let (client, work) = (std::mem::take(&mut cell.by.client), cell.work.take());
        let Runner { auto_install, max_output_bytes, .. } = cell.by;
        let has_waited = cell.job.is_some();
        let job = match cell.job.take() {
            Some(job) => {
                job.begin(self.late.take());
                job
            }
            None => self.new_job(max_output_bytes)?,
        };
        let cell = job.cell;
        self.cell = cell;
        let history = work.as_code();
        let (op, code) = work.into_request(cell);
        let link = self.link.as_mut().expect("opened above");
        link.interrupts_delivered().await;
        let request = match link.request(op, code.as_bytes()).await {
            Ok(request) => request,
            // Its death is the next event and will be told as the end of this cell. One that is there but does not read holds
            // half a request and is of no use any more.
            Err(error) => {
                tracing::debug!(%error, "a worker was gone when a cell came");
                link.kill();
                u64::MAX
            }
        };
        if !has_waited {
            self.parts.jobs.add(job.clone());
        }
        self.parts.journal.record(
            &self.info.owner,
            &self.info.handle,
            EventKind::CellStarted {
                cell,
                job: job.id.clone(),
                code: history.unwrap_or(code),
                code_cut: false,
                client,
            },
        );
        self.running = Some(Running {
            job: job.clone(),
            request,
            // A deadline past the end of time is none.
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            timeout,
            on_timeout,
            sender,
            ladder: None,
            auto_install,
            patience: self.info.terms.profile.is_confined().then(|| Instant::now() + PATIENCE),
        });
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.state = State::Busy;
            live.cell = cell;
            live.job = Some(job.clone());
            live.last_used = Instant::now();
            live.last_used_at = Timestamp::now();
        }
        if self.info.terms.profile.is_confined() {
            self.parts.crowding.ring();
        }
        Ok(job)
    }

    /// The job of a cell that begins at once.
    fn new_job(&mut self, max_output_bytes: u64) -> Result<Arc<Job>, Error> {
        let cell = self.next_cell();
        let id = format!("{}-{cell}", self.info.handle);
        let capture = self.parts.outputs.capture_up_to(&self.info.owner, &id, max_output_bytes)?;
        let (owner, session) = (self.info.owner.clone(), self.info.name.clone());
        Ok(Arc::new(Job::new(id, owner, session, cell, capture, self.late.take())))
    }

    pub(super) fn busy(&self, running: &Running) -> Error {
        Error::Busy {
            session: self.info.name.to_string(),
            cell: running.job.cell,
            job: running.job.id.clone(),
            running: running.job.elapsed(),
        }
    }

    pub(super) fn on_output(&mut self, stream: Stream, count: usize) {
        let Some(link) = &self.link else { return };
        let bytes = link.chunk(count);
        match &self.running {
            Some(running) => running.job.capture.push(stream, bytes),
            None => push_late(&mut self.late, &self.parts.outputs, &self.info, self.cell, stream, bytes),
        }
        self.journal_output();
    }

    /// Records what was printed since the last time, as text: the capture has put cut characters together.
    fn journal_output(&mut self) {
        let (cell, capture) = match (&self.running, &self.late) {
            (Some(running), _) => (Some(running.job.cell), &running.job.capture),
            (None, Some(late)) => (None, &late.capture),
            (None, None) => return,
        };
        if self.journaled.output != capture.id() {
            self.journaled = Journaled { output: capture.id().to_owned(), ..Journaled::default() };
        }
        while self.journaled.bytes < MAX_JOURNAL_OUTPUT_BYTES {
            let read = capture.read_from(self.journaled.cursor);
            self.journaled.cursor = read.cursor;
            if read.parts.is_empty() {
                return;
            }
            for (stream, text) in read.parts {
                self.journaled.bytes += text.len();
                let output = EventKind::Output { cell, stream, text };
                self.parts.journal.record(&self.info.owner, &self.info.handle, output);
            }
        }
    }

    /// Keeps a rich value on disk, where it can be read as a resource.
    pub(super) async fn on_display(&mut self, reply: Reply, blob: Vec<u8>) {
        let Some(running) = &self.running else { return };
        let (events, notes) = ended::keep_display(&self.parts.outputs, &running.job, reply, blob).await;
        for event in events {
            self.parts.journal.record(&self.info.owner, &self.info.handle, event);
        }
        self.pending_notes.extend(notes);
    }

    pub(super) fn drain_output(&mut self) {
        let Some(link) = &mut self.link else { return };
        link.drain(|stream, bytes| match &self.running {
            Some(running) => running.job.capture.push(stream, bytes),
            None => push_late(&mut self.late, &self.parts.outputs, &self.info, self.cell, stream, bytes),
        });
        self.journal_output();
    }

    pub(super) async fn on_cell_done(&mut self, reply: Reply, blob: Vec<u8>) {
        self.drain_output();
        let Some(running) = self.running.take() else { return };
        let cause = running.ladder.as_ref().map(|ladder| ladder.cause);
        let said = reply.outcome.unwrap_or(CellOutcome::Raised);
        // A cell that came to its own end while it was being stopped ended as it ended.
        let outcome = match (said, cause) {
            (CellOutcome::Ok, _) => Outcome::Ok,
            (CellOutcome::Raised, _) => Outcome::Raised,
            (CellOutcome::Interrupted, Some(Cause::Timeout)) => Outcome::TimedOut,
            (CellOutcome::Interrupted, _) => Outcome::Interrupted,
        };
        let notes = std::mem::take(&mut self.pending_notes);
        let kept = (&*running.job, &self.parts.outputs);
        let mut execution = Execution::of_reply(outcome, reply, blob, notes, kept).await;
        if let Some(ladder) = &running.ladder {
            execution.notes.extend(stop_notes(outcome, ladder, &running));
        }
        let hint = execution.error.as_ref().and_then(|error| packages::hint_for(error, running.auto_install));
        execution.notes.extend(hint);
        execution.rss_mb = self.link.as_ref().and_then(Link::resident_mb);
        // One that was refused did nothing that could be undone.
        if execution.refused.is_none() {
            self.grow(running.job.cell);
        }
        if outcome == Outcome::TimedOut {
            match (running.on_timeout, self.checkpoints.last()) {
                (OnTimeout::Rollback, Some(_)) => {
                    execution.notes.extend(self.recover("the cell ran out of time", running.job.cell).await);
                    execution.variables = Variables::default();
                }
                (OnTimeout::Rollback, None) => execution.notes.push(
                    "there is no checkpoint to roll back to: what the cell had done until then was kept".to_owned(),
                ),
                (OnTimeout::Keep, _) => execution.notes.push(KEPT_NOTE.to_owned()),
            }
        } else if outcome == Outcome::Interrupted {
            execution.notes.push(KEPT_NOTE.to_owned());
        }
        if running.ladder.is_some() {
            execution.notes.extend(self.line_note());
        }
        self.finish(&running.job, execution);
        self.plan_checkpoint();
    }

    pub(super) fn finish(&mut self, job: &Arc<Job>, mut execution: Execution) {
        execution.notes.extend(self.sandbox_notes());
        let ended = job.close_output(&mut execution);
        self.parts.journal.record(&self.info.owner, &self.info.handle, ended);
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.state = if self.link.is_some() { State::Idle } else { State::Dead };
            live.last_used = Instant::now();
            live.last_used_at = Timestamp::now();
            live.rss_mb = execution.rss_mb;
            live.executions += 1;
            live.total_time += execution.duration;
            live.last_time = Some(execution.duration);
            live.standing.end_cell();
            live.is_being_ended = false;
        }
        job.finish(execution);
    }
}

/// Output that belongs to no cell, kept for the next result.
fn push_late(late: &mut Option<Late>, outputs: &Outputs, info: &Info, cell: u64, stream: Stream, bytes: &[u8]) {
    if late.is_none() {
        match outputs.capture(&info.owner, &format!("{}-{cell}-late", info.handle)) {
            Ok(capture) => *late = Some(Late { after_cell: cell, capture }),
            Err(error) => tracing::warn!(%error, "late output could not be kept"),
        }
    }
    if let Some(late) = late {
        late.capture.push(stream, bytes);
    }
}
