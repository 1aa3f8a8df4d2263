//! Requests to a worker outside of cells: what it knows, asked between cells, or in the middle of one.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{Branched, Error, Task};
use pylair_os::machine;
use pylair_probe::wire::{Op, Reply};
use pylair_workers::link::{Link, Refusal};

/// How long a worker that was told to get on with it has for it.
const HURRY_GRACE: Duration = Duration::from_secs(2);
/// How long a running cell may take to come to a place where it can be looked into.
const PEEK_TIMEOUT: Duration = Duration::from_secs(2);
/// A worker that waited for a processor for less than this was not kept from anything.
const LEAST_WAIT: Duration = Duration::from_millis(100);
const HELD_UP_GRACE: Duration = Duration::from_secs(1);
/// Whoever is not let run for so long is given up all the same.
const MAX_WAIT: Duration = Duration::from_mins(2);
const MAX_PEEKS: usize = 32;

/// What is asked of a worker.
pub(in crate::session) struct Question {
    pub op: Op,
    pub blob: Vec<u8>,
    /// What `save` writes to and then reads, and what `restore` reads from.
    pub files: Vec<OwnedFd>,
    pub limit: Duration,
}

impl Question {
    /// Whether it can be answered while a cell runs, without running any code of the user's.
    fn only_looks(&self) -> bool {
        self.blob.is_empty() && matches!(self.op, Op::Inspect(_) | Op::Source { .. } | Op::Ping)
    }
}

pub(in crate::session) type Answer = oneshot::Sender<Result<serde_json::Value, Error>>;

/// A request whose answer is awaited before any other command is taken.
pub(super) struct Asking {
    pub(super) request: u64,
    pub(super) asked: Instant,
    pub(super) until: Instant,
    /// How often the worker was told to get on with it.
    pub(super) hurried: u8,
    /// How long the worker had waited for a processor when it was last looked at.
    waited: Option<Duration>,
    pub(super) purpose: Purpose,
}

impl Asking {
    fn new(request: u64, worker: i32, limit: Duration, purpose: Purpose) -> Self {
        let asked = Instant::now();
        let until = asked + limit * machine::crowding();
        Self { request, asked, until, hurried: 0, waited: machine::waited(worker), purpose }
    }

    /// Whether a worker whose time is up was not let run meanwhile, which is no sign that it hangs: it gets that time once more.
    fn was_kept_waiting(&mut self, worker: i32) -> bool {
        let before = std::mem::replace(&mut self.waited, machine::waited(worker));
        let waited = self.waited.zip(before).map_or(Duration::ZERO, |(now, before)| now.saturating_sub(before));
        let more = if machine::is_held_up(worker) { waited.max(HELD_UP_GRACE) } else { waited };
        let is_so = more >= LEAST_WAIT && self.asked.elapsed() < MAX_WAIT;
        if is_so {
            self.until = Instant::now() + more;
        }
        is_so
    }
}

pub(super) enum Purpose {
    Question { op: Op, answer: Answer },
    Checkpoint { id: String, cell: u64 },
    Branch { id: String, cell: u64, answer: oneshot::Sender<Result<Branched, Error>> },
}

/// A question put to a worker in the middle of a cell.
pub(super) struct Peek {
    id: u64,
    pub(super) until: Instant,
    answer: Answer,
}

impl Task {
    pub(super) async fn ask(&mut self, question: Question, answer: Answer) {
        if let Some(running) = &self.running {
            if !question.only_looks() {
                let _unheard = answer.send(Err(self.busy(running)));
                // The next cell's worker is told before it begins.
                if matches!(question.op, Op::Site { .. }) {
                    self.remember_site(question.op);
                    self.sites_due = true;
                }
                return;
            }
            self.peek(&question.op, answer);
            return;
        }
        let asked = self.put(&question).await;
        match asked {
            Ok(request) => {
                let purpose = Purpose::Question { op: question.op, answer };
                self.await_answer(request, question.limit, purpose);
            }
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    pub(super) fn await_answer(&mut self, request: u64, limit: Duration, purpose: Purpose) {
        let worker = self.link.as_ref().map_or(0, Link::pid);
        self.asking = Some(Asking::new(request, worker, limit, purpose));
    }

    async fn put(&mut self, question: &Question) -> Result<u64, Error> {
        if self.link.is_none() {
            self.open_worker().await?;
        }
        self.drain_output();
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        if !question.files.is_empty() {
            link.pass_files(&question.files)?;
        }
        let asked = link.request(question.op.clone(), &question.blob).await;
        if asked.is_err() {
            // It may hold half a request and is of no use any more; its end is the next event.
            link.kill();
        }
        Ok(asked?)
    }

    fn peek(&mut self, op: &Op, answer: Answer) {
        let Some(link) = &self.link else { return };
        let id = self.next_peek;
        self.next_peek += 1;
        let asked =
            if self.peeks.len() < MAX_PEEKS { link.peek(id, op).map_err(Error::from) } else { Err(Error::NotNow) };
        match asked {
            Ok(()) => self.peeks.push(Peek { id, until: Instant::now() + PEEK_TIMEOUT, answer }),
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    pub(super) fn on_peeked(&mut self, id: u64, answer: Result<serde_json::Value, Refusal>) {
        if let Some(position) = self.peeks.iter().position(|peek| peek.id == id) {
            let _unheard = self.peeks.swap_remove(position).answer.send(answer.map_err(Error::Refused));
        }
    }

    pub(super) fn give_up_peeks(&mut self, now: Instant) {
        for late in self.peeks.extract_if(.., |peek| peek.until <= now) {
            let _unheard = late.answer.send(Err(Error::NotNow));
        }
    }

    /// The worker is gone, and with it the answers to what it was asked.
    pub(super) fn answer_nobody(&mut self) {
        let purpose = self.asking.take().map(|asking| asking.purpose);
        if let Some(Purpose::Question { answer, .. }) = purpose {
            let _unheard = answer.send(Err(Error::DiedAsked));
        }
        for peek in self.peeks.drain(..) {
            let _unheard = peek.answer.send(Err(Error::DiedAsked));
        }
    }

    /// Somebody wants what is being asked to end.
    pub(super) fn interrupt_question(&mut self) {
        let is_question = self.asking.as_ref().is_some_and(|asking| matches!(asking.purpose, Purpose::Question { .. }));
        if let Some(link) = self.link.as_ref().filter(|_| is_question) {
            link.nudge();
        }
    }

    pub(super) async fn on_answer(&mut self, reply: Reply, blob: &[u8]) {
        self.drain_output();
        let Some(asking) = self.asking.take() else { return };
        match asking.purpose {
            Purpose::Checkpoint { id, cell } => self.on_checkpoint_done(&reply, id, cell, asking.asked).await,
            Purpose::Branch { id, cell, answer } => {
                let branched = self.on_branch_point(&reply, &id, cell).await;
                let _unheard = answer.send(branched);
            }
            Purpose::Question { op, answer } => {
                let _unheard = answer.send(self.read_answer(op, reply, blob));
            }
        }
    }

    pub(super) fn read_answer(&mut self, op: Op, reply: Reply, blob: &[u8]) -> Result<serde_json::Value, Error> {
        if let Some(message) = reply.refused {
            return Err(Error::Refused(Refusal { message, kind: reply.kind, hint: reply.hint }));
        }
        match op {
            Op::Site { .. } => self.remember_site(op),
            Op::Restore => {
                self.start_holds = true;
                self.show_holding();
                // The one of an empty start is no place to go back to.
                self.drop_checkpoints();
                self.plan_checkpoint();
            }
            _ => {}
        }
        if blob.is_empty() {
            return Ok(serde_json::Value::Null);
        }
        serde_json::from_slice(blob).map_err(|error| {
            let message = format!("the worker's answer could not be read: {error}");
            Error::Refused(Refusal { message, kind: None, hint: None })
        })
    }

    fn remember_site(&mut self, site: Op) {
        if !self.sites.contains(&site) {
            self.sites.push(site);
        }
    }

    /// What takes too long hangs in code of the user's (hooks at a fork, methods for pickling), which can be interrupted like a cell.
    pub(super) async fn hurry(&mut self) {
        let (Some(asking), Some(link)) = (&mut self.asking, &mut self.link) else { return };
        if asking.was_kept_waiting(link.pid()) {
            return;
        }
        let is_checkpoint = !matches!(asking.purpose, Purpose::Question { .. });
        if is_checkpoint && !self.checkpoints_given_up {
            self.checkpoints_given_up = true;
            self.pending_notes.push(
                "a checkpoint did not finish: a function registered to run at fork may hang; no more checkpoints are made"
                    .to_owned(),
            );
        }
        match asking.hurried {
            0 => link.nudge(),
            1 | 2 => link.force(),
            _ => {
                let reason = if is_checkpoint {
                    "the worker hung while it made a checkpoint and was killed"
                } else {
                    "the worker hung while it looked something up and was killed"
                };
                self.answer_nobody();
                self.kill_and_recover(reason).await;
                return;
            }
        }
        asking.hurried += 1;
        asking.until = Instant::now() + HURRY_GRACE * machine::crowding();
    }
}
