//! The task behind one session: owns the link to its worker and is the only writer of the session's state.
//!
//! It runs cells one at a time, keeps the clocks, climbs the interrupt ladder, makes checkpoints in idle gaps, or before a cell where there
//! are no gaps, and brings the session back when its worker died.

mod ask;
mod budget;
mod cells;
mod checkpoints;
mod ladder;
mod life;
mod line;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    Command, Ending, Error, Info, Live, Parts, RestartMode, Session, State,
    install::site_request,
    job::{Execution, Late, Outcome},
};
use pylair_files::OwnDirectory;
use pylair_os::event_loop::carry_for_now;
use pylair_probe::wire::{Event, Op};
use pylair_workers::link::{Link, LinkEvent};

pub(super) use ask::{Answer, Question};
use ask::{Asking, Peek};
use budget::Budget;
pub(super) use cells::Running;
pub(super) use checkpoints::Branched;
use checkpoints::Checkpoint;
pub(super) use ladder::{Cause, Ladder, Step};
use line::Line;
pub use line::Reserved;
pub(super) use line::{MAX_WAITING, ReserveAnswer};

/// How many events of a link are handled before others get their turn.
const EVENTS_IN_A_ROW: u32 = 16;

/// What a session begins with.
pub(super) enum Seed {
    /// Its cells are numbered from `cell` on; variables come from a save.
    New {
        cell: u64,
        save: Option<PathBuf>,
        directory: Option<Arc<OwnDirectory>>,
        /// Its worker, when that was made ahead.
        ahead: Option<Box<Link>>,
    },
    Branch(Box<Branched>),
}

/// Opens the worker, or takes over the one of a branch, and starts the task. `begun` is given the session before anything of its own runs, so
/// that it can be watched and ended meanwhile.
pub(super) async fn start(
    info: Arc<Info>,
    parts: Arc<Parts>,
    seed: Seed,
    begun: impl FnOnce(&Session),
) -> Result<Session, Error> {
    let (commands, receiver) = mpsc::channel(32);
    let ending = Arc::new(Ending { keeps_files: info.definition.keep.into(), ..Ending::default() });
    let live = Arc::new(Mutex::new(Live::new()));
    let mut task = Task {
        info: info.clone(),
        parts: parts.clone(),
        live: live.clone(),
        link: None,
        cell: 0,
        numbered: 0,
        lineage: vec![0],
        start_holds: false,
        idle_deaths: 0,
        running: None,
        leaving: None,
        late: None,
        pending_notes: Vec::new(),
        checkpoints: Vec::new(),
        passed_over: Vec::new(),
        asking: None,
        peeks: Vec::new(),
        next_peek: 1,
        sites: info.environment.site_with(&info.interpreter).iter().map(site_request).collect(),
        sites_due: false,
        checkpoint_due: None,
        checkpoint_gap: checkpoints::CHECKPOINT_GAP,
        budget: Budget::default(),
        waiting: None,
        line: Line::default(),
        journaled: cells::Journaled::default(),
        checkpoints_given_up: false,
        ending: ending.clone(),
        directory: None,
        ahead: None,
        enclosing: None,
    };
    let session =
        Session { info: info.clone(), live: live.clone(), commands, ending: ending.clone(), parts, restored: None };
    begun(&session);
    let why_ended = |error| match (error, ending.reason.get()) {
        (Error::Gone, Some(reason)) => Error::Closed { target: info.name.to_string(), reason: reason.clone() },
        (error, _) => error,
    };
    let mut restored = None;
    match seed {
        Seed::Branch(branch) => task.take_over(*branch),
        Seed::New { cell, save, directory, ahead } => {
            task.directory = directory;
            task.ahead = ahead;
            task.cell = cell;
            live.lock().expect("no panic while locked").cell = cell;
            task.open_worker().await.map_err(why_ended)?;
            if let Some(save) = save {
                restored = Some(Arc::new(task.restore(&save).await.map_err(why_ended)?));
            }
        }
    }
    pylair_os::event_loop::spawn(task.run(receiver));
    Ok(Session { restored, ..session })
}

/// What became of a session's cell when the daemon began to leave.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    /// What whoever uses the session next must know.
    pub(super) notes: Vec<String>,
    /// There was no checkpoint, and so there is nothing to save.
    pub(super) is_lost: bool,
}

/// A session that begins no cell any more.
struct Leaving {
    /// The cell that ran and was ended without a checkpoint to go back to.
    cut: Option<u64>,
}

struct Task {
    info: Arc<Info>,
    parts: Arc<Parts>,
    live: Arc<Mutex<Live>>,
    link: Option<Link>,
    /// The number of the newest cell, whatever became of it.
    cell: u64,
    /// The newest number that was given to a cell, which may wait.
    numbered: u64,
    /// The cells whose effects the worker holds, oldest first; 0 is its start.
    lineage: Vec<u64>,
    /// Variables were restored at its start: starting anew would lose them.
    start_holds: bool,
    /// How often the worker died since a cell was last asked for.
    idle_deaths: u32,
    running: Option<Running>,
    /// The daemon leaves and has begun to save the session.
    leaving: Option<Leaving>,
    late: Option<Late>,
    /// What the cell that runs, or the next one, has to say.
    pending_notes: Vec<String>,
    /// Oldest first.
    checkpoints: Vec<Checkpoint>,
    /// Cells of the lineage that have no checkpoint because the next cell came before the budget allowed one.
    passed_over: Vec<u64>,
    asking: Option<Asking>,
    peeks: Vec<Peek>,
    next_peek: u64,
    /// Where packages were installed for this session; a worker that does not know is told.
    sites: Vec<Op>,
    /// It could not be told at once.
    sites_due: bool,
    checkpoint_due: Option<Instant>,
    checkpoint_gap: Duration,
    budget: Budget,
    /// A cell that begins when the checkpoint of the state before it has been made.
    waiting: Option<Command>,
    /// Calls that wait for those that their sender made before.
    line: Line,
    journaled: cells::Journaled,
    /// A checkpoint hung in the user's own fork hooks; none is asked for again.
    checkpoints_given_up: bool,
    ending: Arc<Ending>,
    /// The session's own directory, shared with those branched off: it is removed with the last of them, after the worker.
    directory: Option<Arc<OwnDirectory>>,
    /// A worker that waits to be its first.
    ahead: Option<Box<Link>>,
    /// Its processes are being put into groups; and whether code ran before that was done.
    enclosing: Option<(tokio::task::JoinHandle<()>, Arc<AtomicBool>)>,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        // Told also when this task panics, so that nobody waits for the end of what has ended.
        let _closed = self.ending.closed.clone().drop_guard();
        let closing = self.ending.closing.clone();
        let mut events = 0_u32;
        loop {
            if self.asking.is_none()
                && let Some(cell) = self.waiting.take()
            {
                self.carry_out(cell).await;
            }
            if !self.line.is_empty() {
                self.advance().await;
            }
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
            let ending = self.ending.clone();
            let mut hurried = std::pin::pin!(ending.hurry.notified());
            // The link comes last: a worker that prints without end is always ready, and must not keep callers and clocks waiting.
            tokio::select! {
                biased;
                () = closing.cancelled() => break,
                // While the worker makes a checkpoint or looks something up, a caller waits the millisecond it takes.
                () = &mut hurried, if self.asking.is_some() => self.interrupt_question(),
                command = commands.recv(), if self.asking.is_none() => match command {
                    Some(command) => self.on_command(command).await,
                    None => break,
                },
                () = self.line.released() => {}
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
        let asking = self.asking.as_ref().map(|asking| asking.until);
        let peek = self.peeks.iter().map(|peek| peek.until).min();
        // One question at a time: a checkpoint waits for the answer to whatever was asked before.
        let checkpoint = self.checkpoint_due.filter(|_| self.asking.is_none());
        let patience = running.and_then(|running| running.patience);
        [ladder, deadline, asking, peek, checkpoint, patience].into_iter().flatten().min()
    }

    async fn on_command(&mut self, command: Command) {
        self.note_use(&command);
        match command {
            Command::Execute(cell) => self.on_cell(cell).await,
            command => self.carry_out(command).await,
        }
    }

    async fn carry_out(&mut self, command: Command) {
        match command {
            Command::Execute(mut cell) => match self.begin(&mut cell).await {
                Ok(job) => {
                    let news = self.take_news();
                    self.pending_notes.extend(news.into_iter().chain(cell.notes));
                    if let Some(answer) = cell.answer {
                        // A caller that is gone leaves the job behind.
                        let _unheard = answer.send(Ok(job));
                    }
                }
                Err(error) => cell.refuse(error),
            },
            Command::Reserve { sender, beside, answer } => self.on_reserve(sender, beside, answer),
            Command::Interrupt { job, answer } => {
                if let Some(taken_back) = job.as_deref().and_then(|job| self.take_back(job)) {
                    let _unheard = answer.send(Some(taken_back));
                    return;
                }
                let matching =
                    self.running.as_ref().filter(|running| job.as_ref().is_none_or(|job| *job == running.job.id));
                let _unheard = answer.send(matching.map(|running| running.job.clone()));
                if matching.is_some() {
                    self.climb(Cause::Caller);
                }
            }
            Command::Restart { mode, is_reserved, answer } => {
                let result = match mode {
                    RestartMode::Restart => self.restart_on_request(is_reserved).await,
                    RestartMode::Clear => self.clear().await,
                };
                let _unheard = answer.send(result);
            }
            Command::Ask { question, answer } => self.ask(question, answer).await,
            Command::Undo { to, answer } => {
                let result = self.undo(to).await;
                let _unheard = answer.send(result);
            }
            Command::Branch { at, answer } => self.branch(at, answer).await,
            Command::Abandon { reason, answer } => {
                let abandoned = self.abandon(&reason).await;
                let _unheard = answer.send(abandoned);
            }
            Command::Leave { uses, reason, answer } => {
                let is_idle = self.running.is_none() && self.line.is_empty() && !self.line.is_reserved();
                let is_unused = is_idle && self.live.lock().expect("no panic while locked").uses == uses;
                if is_unused {
                    let _already = self.ending.reason.set(reason);
                    self.ending.closing.cancel();
                }
                let _unheard = answer.send(is_unused);
            }
            Command::Note { notes, answer } => {
                self.pending_notes.extend(notes);
                let _unheard = answer.send(());
            }
        }
    }

    /// A session that is looked at, or gone back in, is in use; one whose status is asked for is not.
    fn note_use(&self, command: &Command) {
        let is_use = match command {
            Command::Ask { question, .. } => !matches!(question.op, Op::Ping),
            Command::Undo { .. } | Command::Branch { .. } | Command::Restart { .. } => true,
            _ => false,
        };
        let may_change = match command {
            Command::Ask { question, .. } => !matches!(question.op, Op::Ping | Op::Save { .. }),
            Command::Leave { .. } | Command::Note { .. } | Command::Reserve { .. } => false,
            _ => true,
        };
        let mut live = self.live.lock().expect("no panic while locked");
        live.uses += u64::from(may_change);
        if is_use {
            live.last_used = Instant::now();
            live.last_used_at = jiff::Timestamp::now();
        }
    }

    /// What the next caller must know, whatever it asks for.
    fn remember(&self, notes: impl IntoIterator<Item = String>) {
        self.live.lock().expect("no panic while locked").add_news(notes);
    }

    fn take_news(&self) -> Vec<String> {
        std::mem::take(&mut self.live.lock().expect("no panic while locked").news)
    }

    /// Tells others whether there is anything in the session that its end would lose.
    fn show_holding(&self) {
        self.live.lock().expect("no panic while locked").holds = self.start_holds || self.lineage.len() > 1;
    }

    async fn on_timer(&mut self) {
        let now = Instant::now();
        if self.asking.as_ref().is_some_and(|asking| asking.until <= now) {
            self.hurry().await;
        }
        self.give_up_peeks(now);
        if self.asking.is_none() && self.checkpoint_due.is_some_and(|due| due <= now) {
            self.checkpoint_due = None;
            self.ask_for_checkpoint().await;
        }
        let patience = self.running.as_mut().and_then(|running| running.patience.take_if(|until| *until <= now));
        if patience.is_some() {
            self.step_back();
        }
        if let Some(running) = &self.running {
            if running.ladder.is_none() && running.deadline.is_some_and(|deadline| deadline <= now) {
                self.climb(Cause::Timeout);
            } else if running.ladder.as_ref().is_some_and(|ladder| ladder.until <= now) {
                self.next_step();
            }
        }
    }

    /// Lets others come first while a cell runs for long.
    fn step_back(&self) {
        let mut live = self.live.lock().expect("no panic while locked");
        live.standing.runs_long = true;
        live.settle(&self.info);
    }

    /// What ran is over before it came to its end.
    fn step_forward(&self) {
        let mut live = self.live.lock().expect("no panic while locked");
        if live.standing.has_stepped_back() {
            live.standing.begin_anew();
            live.settle(&self.info);
        }
    }

    async fn on_link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Output(stream, count) => self.on_output(stream, count),
            LinkEvent::Reply(reply, blob) => {
                let _load = carry_for_now(blob.len() + reply.weight()).await;
                let of_cell = self.running.as_ref().is_some_and(|running| running.request == reply.id);
                match reply.ev {
                    Event::Done => {}
                    Event::Display if of_cell => return self.on_display(*reply, blob).await,
                    _ => return,
                }
                if of_cell {
                    self.on_cell_done(*reply, blob).await;
                } else if self.asking.as_ref().is_some_and(|asking| asking.request == reply.id) {
                    self.on_answer(*reply, &blob).await;
                } else {
                    tracing::warn!(session = %self.info.name, id = reply.id, "a worker answered what nobody asked");
                }
            }
            LinkEvent::Peeked(id, answer) => self.on_peeked(id, answer),
            LinkEvent::Died { why } => self.on_death(why).await,
        }
    }
}

impl Drop for Task {
    /// Only a task that panicked has a cell then; whoever waits for it must not wait for ever.
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let notes = vec!["pylair itself failed while this cell ran; see the daemon's log".to_owned()];
            let execution = Execution::cut_short(Outcome::Died, running.job.elapsed(), notes);
            running.job.finish(execution);
        }
        self.clear_line("pylair itself failed; see the daemon's log");
    }
}
