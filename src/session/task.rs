//! The task behind one session: owns the link to its worker, runs cells one at a time, keeps the clocks, climbs the
//! interrupt ladder, makes checkpoints in idle gaps and brings the session back when its worker died.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{
    Command, Ending, Error, Info, Live, Parts, RestartMode, Session, State, cut_middle,
    job::{Execution, Job, Late, OnTimeout, Outcome, Variables},
    notes::{cell_stacks, death_message, rollback_notes, stop_notes},
};
use crate::{
    config::Checkpoints,
    journal::EventKind,
    output::{Outputs, Stream},
    probe::{
        link::{self, Link, LinkEvent},
        template::Wanted,
        wire::{CellOutcome, Event, Op, Raised, Reply, Start},
    },
};

/// How long a session must be idle after a cell before a checkpoint is made: longer than a caller that goes on at once.
const CHECKPOINT_GAP: Duration = Duration::from_millis(4);
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a worker that was told to get on with a checkpoint has for it.
const HURRY_GRACE: Duration = Duration::from_secs(2);
/// `start` runs the user's `site` and `.pth` files, which may be slow.
const START_TIMEOUT: Duration = Duration::from_mins(1);
const STARTUP_CODE_TIMEOUT: Duration = Duration::from_mins(5);
/// The ladder: how long each step has before the next.
const STACKS_GRACE: Duration = Duration::from_millis(40);
const INTERRUPT_GRACE: Duration = Duration::from_millis(1500);
const FORCE_GRACE: Duration = Duration::from_millis(500);
const FORCE_TIMES: u8 = 3;
/// Output events in the journal are for following along; the whole is in the output file.
const MAX_JOURNAL_OUTPUT_BYTES: usize = 64 << 10;

/// How many events of a link are handled before others get their turn.
const EVENTS_IN_A_ROW: u32 = 16;
/// Results are shown in a third of the longest answer; more is not kept.
const MAX_RESULT_CHARS: usize = 350_000;
const KEPT_NOTE: &str = "what the cell had done until then was kept";

/// Opens the worker and starts the task.
pub(super) async fn start(info: Arc<Info>, parts: Arc<Parts>) -> Result<Session, Error> {
    let (commands, receiver) = mpsc::channel(32);
    let ending = Arc::new(Ending::default());
    let live = Arc::new(Mutex::new(Live {
        state: State::Idle,
        cell: 0,
        job: None,
        last_used: Instant::now(),
        last_used_at: Timestamp::now(),
        pid: None,
        rss_mb: None,
        checkpoint_cell: None,
        checkpoint_skipped: None,
    }));
    let mut task = Task {
        info: info.clone(),
        parts,
        live: live.clone(),
        link: None,
        cell: 0,
        running: None,
        late: None,
        pending_notes: Vec::new(),
        checkpoint: None,
        making: None,
        checkpoint_due: None,
        journaled_output: 0,
        checkpoints_given_up: false,
        ending: ending.clone(),
    };
    task.open_worker().await?;
    tokio::spawn(task.run(receiver));
    Ok(Session { info, live, commands, ending })
}

/// Why a cell is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Timeout,
    Caller,
}

/// Where on the ladder a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Stacks,
    Interrupt,
    /// How often the force was sent: CPython can overlook a signal that comes together with another.
    Force(u8),
    Kill,
}

pub(super) struct Ladder {
    pub(super) cause: Cause,
    pub(super) step: Step,
    pub(super) until: Instant,
    pub(super) stacks: String,
}

pub(super) struct Running {
    pub(super) job: Arc<Job>,
    pub(super) request: u64,
    pub(super) deadline: Option<Instant>,
    pub(super) timeout: Option<Duration>,
    pub(super) on_timeout: OnTimeout,
    pub(super) ladder: Option<Ladder>,
}

struct Making {
    /// How often the worker was told to get on with it.
    hurried: u8,
    request: u64,
    id: String,
    cell: u64,
    until: Instant,
}

/// A frozen copy that can be gone back to.
pub(super) struct Checkpoint {
    pub(super) id: String,
    /// The newest cell it contains.
    pub(super) cell: u64,
}

struct Task {
    info: Arc<Info>,
    parts: Arc<Parts>,
    live: Arc<Mutex<Live>>,
    link: Option<Link>,
    cell: u64,
    running: Option<Running>,
    late: Option<Late>,
    /// What the next caller must know.
    pending_notes: Vec<String>,
    checkpoint: Option<Checkpoint>,
    making: Option<Making>,
    checkpoint_due: Option<Instant>,
    journaled_output: usize,
    /// A checkpoint hung in the user's own fork hooks; none is asked for again.
    checkpoints_given_up: bool,
    ending: Arc<Ending>,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        // Told also when this task panics, so that nobody waits for the end of what has ended.
        let _closed = self.ending.closed.clone().drop_guard();
        let closing = self.ending.closing.clone();
        let mut events = 0_u32;
        loop {
            let wake = self.next_wake();
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let link_event = async {
                match &mut self.link {
                    Some(link) => link.next().await,
                    None => std::future::pending().await,
                }
            };
            // The link comes last: a worker that prints without end is always ready, and must not keep callers and clocks waiting.
            tokio::select! {
                biased;
                () = closing.cancelled() => break,
                // While the worker makes a checkpoint, a caller waits the millisecond it takes.
                command = commands.recv(), if self.making.is_none() => match command {
                    Some(command) => self.on_command(command).await,
                    None => break,
                },
                () = timer => self.on_timer().await,
                event = link_event => {
                    self.on_link_event(event).await;
                    events = events.wrapping_add(1);
                    // Nor other sessions: reading a ready descriptor never gives up the thread by itself.
                    if events.is_multiple_of(EVENTS_IN_A_ROW) {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
        self.end().await;
    }

    fn next_wake(&self) -> Option<Instant> {
        let running = self.running.as_ref();
        let ladder = running.and_then(|running| running.ladder.as_ref()).map(|ladder| ladder.until);
        let deadline = running.filter(|running| running.ladder.is_none()).and_then(|running| running.deadline);
        let making = self.making.as_ref().map(|making| making.until);
        [ladder, deadline, making, self.checkpoint_due].into_iter().flatten().min()
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Execute { code, timeout, on_timeout, client, answer } => {
                let result = self.begin(code, timeout, on_timeout, client).await;
                // A caller that is gone leaves the job behind.
                let _unheard = answer.send(result);
            }
            Command::Interrupt { job, answer } => {
                let matching =
                    self.running.as_ref().filter(|running| job.as_ref().is_none_or(|job| *job == running.job.id));
                let _unheard = answer.send(matching.map(|running| running.job.clone()));
                if matching.is_some() {
                    self.climb(Cause::Caller);
                }
            }
            Command::Restart { mode, answer } => {
                let result = match mode {
                    RestartMode::Restart => self.restart_on_request().await,
                    RestartMode::Clear => self.clear().await,
                };
                let _unheard = answer.send(result);
            }
        }
    }

    async fn on_timer(&mut self) {
        let now = Instant::now();
        if self.making.as_ref().is_some_and(|making| making.until <= now) {
            self.hurry_checkpoint().await;
        }
        if self.checkpoint_due.is_some_and(|due| due <= now) {
            self.checkpoint_due = None;
            self.ask_for_checkpoint().await;
        }
        if let Some(running) = &self.running {
            if running.ladder.is_none() && running.deadline.is_some_and(|deadline| deadline <= now) {
                self.climb(Cause::Timeout);
            } else if running.ladder.as_ref().is_some_and(|ladder| ladder.until <= now) {
                self.next_step();
            }
        }
    }

    async fn on_link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Output(stream, count) => self.on_output(stream, count),
            LinkEvent::Reply(reply, blob) => {
                if reply.ev != Event::Done {
                    return;
                }
                if self.running.as_ref().is_some_and(|running| running.request == reply.id) {
                    self.on_cell_done(*reply, blob).await;
                } else if self.making.as_ref().is_some_and(|making| making.request == reply.id) {
                    self.on_checkpoint_done(&reply).await;
                } else {
                    tracing::warn!(session = %self.info.name, id = reply.id, "a worker answered what nobody asked");
                }
            }
            LinkEvent::Died { why } => self.on_death(why).await,
        }
    }
}

/// Cells.
impl Task {
    async fn begin(
        &mut self,
        code: String,
        timeout: Option<Duration>,
        on_timeout: OnTimeout,
        client: String,
    ) -> Result<Arc<Job>, Error> {
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        if self.link.is_none() {
            self.open_worker().await?;
        }
        self.checkpoint_due = None;
        // What is in the pipes by now was printed before this cell.
        self.drain_output();
        self.cell += 1;
        let cell = self.cell;
        let id = format!("{}-{cell}", self.info.handle);
        let capture = self.parts.outputs.capture(&id)?;
        let job =
            Arc::new(Job::new(id, self.info.owner.clone(), self.info.name.clone(), cell, capture, self.late.take()));
        let link = self.link.as_mut().expect("opened above");
        link.interrupts_delivered().await;
        let request = match link.request(Op::Execute { cell }, code.as_bytes()).await {
            Ok(request) => request,
            // Its death is the next event and will be told as the end of this cell. One that is there but does not read holds
            // half a request and is of no use any more.
            Err(error) => {
                tracing::debug!(%error, "a worker was gone when a cell came");
                link.kill();
                u64::MAX
            }
        };
        self.parts.jobs.add(job.clone());
        self.parts.journal.record(
            &self.info.owner,
            &self.info.handle,
            EventKind::CellStarted { cell, job: job.id.clone(), code, code_cut: false, client },
        );
        self.journaled_output = 0;
        self.running = Some(Running {
            job: job.clone(),
            request,
            // A deadline past the end of time is none.
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            timeout,
            on_timeout,
            ladder: None,
        });
        let mut live = self.live.lock().expect("no panic while locked");
        live.state = State::Busy;
        live.cell = cell;
        live.job = Some(job.clone());
        live.last_used = Instant::now();
        live.last_used_at = Timestamp::now();
        Ok(job)
    }

    fn busy(&self, running: &Running) -> Error {
        Error::Busy {
            session: self.info.name.to_string(),
            cell: running.job.cell,
            job: running.job.id.clone(),
            running: running.job.started.elapsed(),
        }
    }

    fn on_output(&mut self, stream: Stream, count: usize) {
        let Some(link) = &self.link else { return };
        let bytes = link.chunk(count);
        let cell = if let Some(running) = &self.running {
            running.job.capture.push(stream, bytes);
            Some(running.job.cell)
        } else {
            push_late(&mut self.late, &self.parts.outputs, &self.info.handle, self.cell, stream, bytes);
            None
        };
        if self.journaled_output < MAX_JOURNAL_OUTPUT_BYTES {
            let text = String::from_utf8_lossy(&bytes[..count.min(MAX_JOURNAL_OUTPUT_BYTES)]).into_owned();
            self.journaled_output += text.len();
            self.parts.journal.record(&self.info.owner, &self.info.handle, EventKind::Output { cell, stream, text });
        }
    }

    fn drain_output(&mut self) {
        let Some(link) = &mut self.link else { return };
        link.drain(|stream, bytes| match &self.running {
            Some(running) => running.job.capture.push(stream, bytes),
            None => push_late(&mut self.late, &self.parts.outputs, &self.info.handle, self.cell, stream, bytes),
        });
    }

    async fn on_cell_done(&mut self, reply: Reply, blob: Vec<u8>) {
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
        let mut notes = std::mem::take(&mut self.pending_notes);
        notes.extend(reply.notes);
        if reply.names_cut {
            notes.push("only the first 100 variable names of each kind are listed".to_owned());
        }
        let mut error = reply.error;
        if let Some(refused) = reply.refused {
            error =
                Some(Raised { kind: "pylair".to_owned(), message: refused.clone(), traceback: refused, line: None });
        }
        if let Some(ladder) = &running.ladder {
            notes.extend(stop_notes(outcome, ladder, &running));
        }
        let whole = if blob.is_empty() { reply.result } else { Some(String::from_utf8_lossy(&blob).into_owned()) };
        let mut result_chars = reply.result_chars;
        let result = whole.map(|whole| {
            let (result, was_cut) = cut_middle(&whole, MAX_RESULT_CHARS);
            if was_cut && result_chars.is_none() {
                result_chars = Some(whole.chars().count() as u64);
            }
            result
        });
        let mut execution = Execution {
            outcome,
            result,
            result_chars,
            error,
            variables: Variables { new: reply.new, changed: reply.changed, removed: reply.removed },
            duration: Duration::from_micros(reply.duration_us),
            cpu: Duration::from_micros(reply.cpu_us),
            rss_mb: self.link.as_ref().and_then(Link::resident_mb),
            notes,
        };
        if outcome == Outcome::TimedOut {
            match (running.on_timeout, &self.checkpoint) {
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
        self.finish(&running.job, execution);
        if self.link.is_some() && self.parts.checkpoints == Checkpoints::Auto {
            self.checkpoint_due = Some(Instant::now() + CHECKPOINT_GAP);
        }
    }

    fn finish(&mut self, job: &Arc<Job>, mut execution: Execution) {
        let printed = job.capture.finish();
        if printed.truncated && printed.spool_error.is_none() {
            execution.notes.push(
                "the output was longer than max_output_mb allows; the rest of it was not kept on disk".to_owned(),
            );
        }
        if let Some(error) = printed.spool_error {
            execution.notes.push(format!("the whole output could not be kept on disk: {error}"));
        }
        self.parts.journal.record(
            &self.info.owner,
            &self.info.handle,
            EventKind::CellEnded {
                cell: job.cell,
                job: job.id.clone(),
                outcome: execution.outcome.as_str().to_owned(),
                result: execution.result.clone(),
                error: execution.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message)),
                duration_ms: u64::try_from(execution.duration.as_millis()).unwrap_or(u64::MAX),
            },
        );
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.state = if self.link.is_some() { State::Idle } else { State::Dead };
            live.last_used = Instant::now();
            live.last_used_at = Timestamp::now();
            live.rss_mb = execution.rss_mb;
        }
        job.finish(execution);
    }
}

/// Output that belongs to no cell, kept for the next result.
fn push_late(late: &mut Option<Late>, outputs: &Outputs, handle: &str, cell: u64, stream: Stream, bytes: &[u8]) {
    if late.is_none() {
        match outputs.capture(&format!("{handle}-{cell}-late")) {
            Ok(capture) => *late = Some(Late { after_cell: cell, capture }),
            Err(error) => tracing::warn!(%error, "late output could not be kept"),
        }
    }
    if let Some(late) = late {
        late.capture.push(stream, bytes);
    }
}

/// The interrupt ladder.
impl Task {
    fn climb(&mut self, cause: Cause) {
        let (Some(running), Some(link)) = (&mut self.running, &self.link) else { return };
        if let Some(ladder) = &mut running.ladder {
            // Asked again: the next step comes at once.
            if cause == Cause::Caller && ladder.step != Step::Stacks {
                ladder.until = Instant::now();
            }
            return;
        }
        // Whatever an earlier dump left behind is not about this cell.
        link.take_stacks();
        link.ask_for_stacks();
        running.ladder =
            Some(Ladder { cause, step: Step::Stacks, until: Instant::now() + STACKS_GRACE, stacks: String::new() });
    }

    fn next_step(&mut self) {
        let (Some(running), Some(link)) = (&mut self.running, &mut self.link) else { return };
        let Some(ladder) = &mut running.ladder else { return };
        let (step, grace) = match ladder.step {
            Step::Stacks => {
                ladder.stacks = link.take_stacks();
                link.interrupt();
                (Step::Interrupt, INTERRUPT_GRACE)
            }
            Step::Interrupt => {
                link.force();
                (Step::Force(1), FORCE_GRACE)
            }
            Step::Force(times) if times < FORCE_TIMES => {
                link.force();
                (Step::Force(times + 1), FORCE_GRACE)
            }
            Step::Force(_) | Step::Kill => {
                link.kill();
                // Its death comes as an event; if it cannot even be killed we try again now and then.
                (Step::Kill, Duration::from_secs(5))
            }
        };
        ladder.step = step;
        ladder.until = Instant::now() + grace;
    }
}

/// Checkpoints.
impl Task {
    async fn ask_for_checkpoint(&mut self) {
        let Some(link) = &mut self.link else { return };
        if self.running.is_some() || self.making.is_some() || self.checkpoints_given_up {
            return;
        }
        let cell = self.cell;
        let id = format!("c{cell}");
        if self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.cell == cell) {
            return;
        }
        match link.request_checkpoint(&id).await {
            Ok(request) => {
                self.making =
                    Some(Making { hurried: 0, request, id, cell, until: Instant::now() + CHECKPOINT_TIMEOUT });
            }
            Err(error) => tracing::debug!(%error, "a checkpoint could not be asked for"),
        }
    }

    /// A fork that does not come back hangs in hooks of the user's own, which can be interrupted like a cell.
    async fn hurry_checkpoint(&mut self) {
        let (Some(making), Some(link)) = (&mut self.making, &mut self.link) else { return };
        if !self.checkpoints_given_up {
            self.checkpoints_given_up = true;
            self.pending_notes.push(
                "a checkpoint did not come to an end, a function registered to run at a fork may hang; no more are made"
                    .to_owned(),
            );
        }
        match making.hurried {
            0 => link.nudge(),
            1 | 2 => link.force(),
            _ => {
                self.making = None;
                self.kill_and_recover("the worker hung while it made a checkpoint and was killed").await;
                return;
            }
        }
        making.hurried += 1;
        making.until = Instant::now() + HURRY_GRACE;
    }

    async fn on_checkpoint_done(&mut self, reply: &Reply) {
        let (Some(making), Some(link)) = (self.making.take(), &mut self.link) else { return };
        let made = reply.made == Some(true) && link.has_checkpoint(&making.id).await;
        let (owner, handle) = (&self.info.owner, &self.info.handle);
        let mut live = self.live.lock().expect("no panic while locked");
        if made {
            link.keep_newest_checkpoints(1);
            live.checkpoint_cell = Some(making.cell);
            live.checkpoint_skipped = None;
            self.checkpoint = Some(Checkpoint { id: making.id, cell: making.cell });
            self.parts.journal.record(owner, handle, EventKind::CheckpointMade { cell: making.cell });
            return;
        }
        let reason = reply
            .reason
            .clone()
            .or_else(|| reply.refused.clone())
            .unwrap_or_else(|| "the frozen copy did not say who it is".to_owned());
        // Told once per reason: a program with a thread would otherwise hear it after every cell.
        if live.checkpoint_skipped.as_ref() != Some(&reason) {
            self.pending_notes.push(format!("no checkpoint was made after cell {}: {reason}", making.cell));
        }
        live.checkpoint_skipped = Some(reason.clone());
        self.parts.journal.record(owner, handle, EventKind::CheckpointSkipped { cell: making.cell, reason });
    }
}

/// Starting, dying and coming back.
impl Task {
    async fn open_worker(&mut self) -> Result<(), Error> {
        let info = self.info.clone();
        let python_path: Vec<String> = info
            .env
            .get("PYTHONPATH")
            .map(|path| path.split(':').filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
            .unwrap_or_default();
        let wanted = Wanted {
            interpreter: &info.interpreter,
            base: info.base.as_ref(),
            env: &info.env,
            preload: &info.preload,
            python_path: &python_path,
            owner: &info.owner,
            confined: info.profile.is_confined(),
        };
        let prefix = info.interpreter.is_venv().then(|| info.interpreter.prefix.display().to_string());
        let cwd = info.profile.working_directory().unwrap_or(&info.cwd);
        let start = Start {
            cwd: cwd.display().to_string(),
            env: info.env.clone(),
            executable: info.interpreter.executable.display().to_string(),
            prefix,
            site: info.preload.is_empty(),
            python_path: python_path.clone(),
        };
        // Whatever hung at a fork was loaded into the worker that is gone.
        self.checkpoints_given_up = false;
        let link = Link::open(&self.parts.probes, &wanted, &info.profile, start).await?;
        self.link = Some(link);
        let started = self.answer_to(Link::START, START_TIMEOUT).await;
        let reply = self.unless_failed(started).await?;
        if let Some(refused) = reply.refused {
            self.close_link().await;
            return Err(link::Error::Start { message: refused }.into());
        }
        self.pending_notes.extend(reply.notes);
        if let Some(startup) = &info.startup {
            let ran = self.ask_and_wait(Op::Execute { cell: 0 }, startup.as_bytes(), STARTUP_CODE_TIMEOUT).await;
            let reply = self.unless_failed(ran).await?;
            if let Some(error) = reply.error {
                self.close_link().await;
                return Err(Error::Startup(Box::new(error)));
            }
        }
        let link = self.link.as_ref().expect("opened above");
        let mut live = self.live.lock().expect("no panic while locked");
        live.pid = Some(link.pid());
        live.rss_mb = link.resident_mb();
        live.state = State::Idle;
        live.checkpoint_cell = None;
        drop(live);
        if info.startup.is_some() && self.parts.checkpoints == Checkpoints::Auto {
            self.checkpoint_due = Some(Instant::now() + CHECKPOINT_GAP);
        }
        Ok(())
    }

    async fn unless_failed<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            self.close_link().await;
        }
        result
    }

    async fn close_link(&mut self) {
        if let Some(link) = self.link.take() {
            link.close().await;
        }
        self.checkpoint = None;
        self.making = None;
        self.checkpoint_due = None;
    }

    /// A request outside of any cell, answered before anything else goes on.
    async fn ask_and_wait(&mut self, op: Op, blob: &[u8], limit: Duration) -> Result<Reply, Error> {
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        let request = link.request(op, blob).await?;
        self.answer_to(request, limit).await
    }

    async fn answer_to(&mut self, request: u64, limit: Duration) -> Result<Reply, Error> {
        let died = |message: String| Error::Link(link::Error::Start { message });
        let until = Instant::now() + limit;
        loop {
            let link = self.link.as_mut().ok_or(Error::Gone)?;
            let event = tokio::select! {
                biased;
                () = self.ending.closing.cancelled() => return Err(Error::Gone),
                event = tokio::time::timeout_at(until.into(), link.next()) => event,
            };
            match event {
                Err(_) => return Err(died(format!("it was not ready after {} s", limit.as_secs()))),
                Ok(LinkEvent::Reply(reply, _)) if reply.ev == Event::Done && reply.id == request => {
                    self.drain_output();
                    return Ok(*reply);
                }
                Ok(LinkEvent::Reply(..)) => {}
                Ok(LinkEvent::Output(stream, count)) => self.on_output(stream, count),
                Ok(LinkEvent::Died { why }) => {
                    let status = match &mut self.link {
                        Some(link) => link.exit_status().await,
                        None => None,
                    };
                    self.drain_output();
                    let tail =
                        self.late.take().map(|late| late.capture.snapshot(2000, None).merged.text).unwrap_or_default();
                    return Err(died(death_message(status, why.as_deref(), tail.trim())));
                }
            }
        }
    }

    async fn on_death(&mut self, why: Option<String>) {
        self.making = None;
        self.checkpoint_due = None;
        let status = match &mut self.link {
            Some(link) => link.exit_status().await,
            None => None,
        };
        self.drain_output();
        let Some(running) = self.running.take() else {
            let what = death_message(status, why.as_deref(), "");
            let notes = self.recover(&format!("between cells: {what}"), self.cell + 1).await;
            self.pending_notes.push(format!("after cell {} {what}", self.cell));
            self.pending_notes.extend(notes);
            return;
        };
        let stderr = running.job.capture.snapshot(2000, None).stderr.text;
        let message = death_message(status, why.as_deref(), stderr.trim());
        let killed_by_us = running.ladder.as_ref().filter(|ladder| ladder.step == Step::Kill);
        let outcome = match killed_by_us.map(|ladder| ladder.cause) {
            Some(Cause::Timeout) => Outcome::TimedOut,
            Some(Cause::Caller) => Outcome::Interrupted,
            None => Outcome::Died,
        };
        let stacks = match (&running.ladder, &self.link) {
            (Some(ladder), _) => ladder.stacks.clone(),
            // faulthandler also writes when a fatal signal ends the process.
            (None, Some(link)) => link.take_stacks(),
            _ => String::new(),
        };
        let mut notes = std::mem::take(&mut self.pending_notes);
        if let Some(ladder) = &running.ladder {
            notes.extend(stop_notes(outcome, ladder, &running));
        }
        if killed_by_us.is_some() {
            notes.push("it did not react to interrupts (code in C does not) and its worker was killed".to_owned());
        }
        notes.extend(self.recover("its worker ended", running.job.cell).await);
        let mut execution = Execution::cut_short(outcome, running.job.started.elapsed(), notes);
        execution.error = Some(Raised {
            kind: if killed_by_us.is_some() { "KeyboardInterrupt" } else { "WorkerDied" }.to_owned(),
            message,
            traceback: cell_stacks(&stacks),
            line: None,
        });
        execution.rss_mb = self.link.as_ref().and_then(Link::resident_mb);
        self.finish(&running.job, execution);
        if self.link.is_some() && self.parts.checkpoints == Checkpoints::Auto && self.cell > 1 {
            self.checkpoint_due = Some(Instant::now() + CHECKPOINT_GAP);
        }
    }

    /// Brings the session back: to its newest checkpoint, else to a new worker. Returns what the caller must know.
    async fn recover(&mut self, reason: &str, before_cell: u64) -> Vec<String> {
        if let (Some(checkpoint), Some(link)) = (self.checkpoint.take(), &mut self.link) {
            match link.roll_back(&checkpoint.id).await {
                Ok(restored) => {
                    let pid = link.pid();
                    self.drain_output();
                    let mut live = self.live.lock().expect("no panic while locked");
                    live.pid = Some(pid);
                    live.checkpoint_cell = None;
                    drop(live);
                    self.parts.journal.record(
                        &self.info.owner,
                        &self.info.handle,
                        EventKind::SessionRolledBack { checkpoint_cell: checkpoint.cell, reason: reason.to_owned() },
                    );
                    return rollback_notes(&checkpoint, before_cell, &restored);
                }
                Err(error) => tracing::warn!(%error, session = %self.info.name, "a rollback failed"),
            }
        }
        self.close_link().await;
        let lost = before_cell > 1;
        let mut notes = Vec::new();
        match self.open_worker().await {
            Ok(()) => {
                notes.push(if lost {
                    "the session was restarted: all variables are gone".to_owned()
                } else {
                    "the session was restarted".to_owned()
                });
            }
            Err(error) => {
                self.live.lock().expect("no panic while locked").state = State::Dead;
                notes.push(format!("the session could not be restarted: {error}; the next call tries again"));
            }
        }
        self.parts.journal.record(
            &self.info.owner,
            &self.info.handle,
            EventKind::SessionRestarted { reason: reason.to_owned() },
        );
        notes
    }

    async fn kill_and_recover(&mut self, reason: &str) {
        if let Some(link) = &self.link {
            link.kill();
        }
        let notes = self.recover(reason, self.cell + 1).await;
        self.pending_notes.push(reason.to_owned());
        self.pending_notes.extend(notes);
    }

    async fn restart_on_request(&mut self) -> Result<Vec<String>, Error> {
        let mut notes = Vec::new();
        if let Some(running) = self.running.take() {
            notes.push(format!("cell {} was running and was killed", running.job.cell));
            self.drain_output();
            let notes = vec!["the session was restarted while this cell ran".to_owned()];
            let execution = Execution::cut_short(Outcome::Interrupted, running.job.started.elapsed(), notes);
            self.finish(&running.job, execution);
        }
        self.close_link().await;
        self.pending_notes.clear();
        if let Err(error) = self.open_worker().await {
            self.live.lock().expect("no panic while locked").state = State::Dead;
            return Err(error);
        }
        self.parts.journal.record(
            &self.info.owner,
            &self.info.handle,
            EventKind::SessionRestarted { reason: "somebody asked for it".to_owned() },
        );
        notes.push("all variables are gone".to_owned());
        Ok(notes)
    }

    /// Empties the namespace of the same process: modules stay loaded, whatever else held on to objects keeps them.
    async fn clear(&mut self) -> Result<Vec<String>, Error> {
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        if self.link.is_none() {
            self.open_worker().await?;
            return Ok(vec!["all variables are gone".to_owned()]);
        }
        let cleared = self.ask_and_wait(Op::Clear, &[], START_TIMEOUT).await;
        let reply = self.unless_failed(cleared).await?;
        if let Some(refused) = reply.refused {
            return Err(link::Error::Start { message: refused }.into());
        }
        // The checkpoint there is holds what was just thrown away.
        self.checkpoint = None;
        if let Some(link) = &mut self.link {
            link.keep_newest_checkpoints(0);
        }
        self.live.lock().expect("no panic while locked").checkpoint_cell = None;
        self.parts.journal.record(&self.info.owner, &self.info.handle, EventKind::SessionCleared {});
        Ok(vec!["all variables are gone; imported modules stay loaded".to_owned()])
    }

    async fn end(mut self) {
        let reason = self.ending.reason.get().cloned().unwrap_or_else(|| "the daemon let go of it".to_owned());
        if let Some(running) = self.running.take() {
            self.drain_output();
            let notes = vec![format!("the session was closed while this cell ran: {reason}")];
            let execution = Execution::cut_short(Outcome::Died, running.job.started.elapsed(), notes);
            self.finish(&running.job, execution);
        }
        self.close_link().await;
        self.parts.journal.record(&self.info.owner, &self.info.handle, EventKind::SessionClosed { reason });
    }
}
