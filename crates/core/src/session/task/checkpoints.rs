//! Checkpoints: the ring of frozen copies, going back to one, and branching from one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{Error, Task, ask::Purpose};
use crate::session::{Undone, notes};
use pylair_files::OwnDirectory;
use pylair_journal::EventKind;
use pylair_os::{
    machine::{self, Paging},
    open_files,
};
use pylair_probe::wire::{Op, Reply};
use pylair_text::plain::counted;
use pylair_workers::link::{self, Link};

/// How long a session must be idle after a cell before a checkpoint is made: longer than a caller that goes on at once.
pub(super) const CHECKPOINT_GAP: Duration = Duration::from_millis(4);
/// One that took longer than this holds up whoever comes meanwhile: the next is made in a longer gap. On a machine where many
/// processes fork, those wait for each other in the kernel.
const SLOW_CHECKPOINT: Duration = Duration::from_millis(60);
const LONGER_GAP: u32 = 6;
const MAX_CHECKPOINT_GAP: Duration = Duration::from_secs(2);
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);
/// Why a cell has no checkpoint when the next came before there was time for one.
const CAME_QUICKLY: &str = "the cells came too quickly for one after each";
/// Maximum number of cells a session remembers to hold; going back further than the ring is not possible anyway.
const MAX_LINEAGE: usize = 10_000;

/// A frozen copy that can be gone back to.
#[derive(Debug, Clone)]
pub(super) struct Checkpoint {
    pub(super) id: String,
    /// The newest cell it contains.
    pub(super) cell: u64,
}

/// What another session is made of.
#[derive(Debug)]
pub(in crate::session) struct Branched {
    pub(super) link: Link,
    pub(super) cell: u64,
    pub(super) lineage: Vec<u64>,
    pub(super) sites: Vec<Op>,
    pub(super) start_holds: bool,
    pub(super) directory: Option<Arc<OwnDirectory>>,
    pub(in crate::session) notes: Vec<String>,
}

impl Branched {
    /// The newest cell whose effects it holds.
    pub(in crate::session) fn head(&self) -> u64 {
        self.lineage.last().copied().unwrap_or_default()
    }
}

impl Task {
    /// The newest cell whose effects the worker holds.
    pub(super) fn head(&self) -> u64 {
        self.lineage.last().copied().unwrap_or(0)
    }

    pub(super) fn grow(&mut self, cell: u64) {
        self.lineage.push(cell);
        if self.lineage.len() > MAX_LINEAGE {
            let places = self.checkpointed();
            // The oldest that nobody can go back to.
            if let Some(position) = self.lineage.iter().position(|cell| !places.contains(cell)) {
                let forgotten = self.lineage.remove(position);
                self.passed_over.retain(|cell| *cell != forgotten);
            }
        }
        self.show_holding();
    }

    /// The worker holds nothing but its start.
    pub(super) fn forget_lineage(&mut self) {
        self.lineage = vec![0];
        self.passed_over.clear();
        self.start_holds = false;
        self.show_holding();
    }

    /// The cells after whose ends there are checkpoints.
    pub(super) fn checkpointed(&self) -> Vec<u64> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.cell).collect()
    }

    pub(super) fn plan_checkpoint(&mut self) {
        if self.link.is_some() && self.info.definition.checkpoints.ring() > 0 {
            self.checkpoint_due = Some(Instant::now() + self.checkpoint_gap);
        }
    }

    pub(super) async fn ask_for_checkpoint(&mut self) {
        let cell = self.head();
        if self.running.is_some() || self.asking.is_some() || self.checkpoints_given_up || self.is_checkpointed() {
            return;
        }
        let id = format!("c{cell}");
        let purpose = Purpose::Checkpoint { id: id.clone(), cell };
        if let Err(error) = self.request_checkpoint(&id, purpose).await {
            tracing::debug!(%error, "a checkpoint could not be asked for");
        }
    }

    /// Whether there is a checkpoint of the state that the worker is in.
    fn is_checkpointed(&self) -> bool {
        self.checkpoints.last().is_some_and(|checkpoint| checkpoint.cell == self.head())
    }

    /// Asks for the checkpoint that is missing when a cell comes, if the budget allows it: callers that never pause would get none.
    pub(super) async fn makes_checkpoint_first(&mut self) -> bool {
        let is_missing = self.checkpoint_due.is_some() && (self.head() > 0 || self.start_holds);
        if !is_missing || self.link.is_none() || !self.budget.allows(Instant::now(), || self.paging()) {
            return false;
        }
        self.checkpoint_due = None;
        self.ask_for_checkpoint().await;
        self.asking.is_some()
    }

    /// What the worker's pages have cost so far.
    fn paging(&self) -> Option<Paging> {
        self.link.as_ref().and_then(|link| machine::paging(link.pid()))
    }

    /// What the worker and its copies may use together, where that is limited.
    fn memory_limit_mb(&self) -> Option<u64> {
        self.info.terms.profile.is_confined().then_some(self.info.terms.limits.memory_mb)
    }

    /// How many checkpoints are kept: in a sandbox not more than fit into its memory should all of their pages come to differ.
    fn ring(&self) -> usize {
        // The newest is worth more than another session's second newest.
        let ring = if open_files::is_short() { 1 } else { self.info.definition.checkpoints.ring() };
        let used = self.link.as_ref().and_then(Link::resident_mb);
        let (Some(limit), Some(used)) = (self.memory_limit_mb(), used) else { return ring };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "megabytes of a process are few and positive"
        )]
        let used = used.ceil() as u64;
        let fitting = (limit / used.max(1)).saturating_sub(1).max(1);
        ring.min(usize::try_from(fitting).unwrap_or(ring))
    }

    async fn request_checkpoint(&mut self, id: &str, purpose: Purpose) -> Result<(), Error> {
        let limit_mb = self.memory_limit_mb();
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        let request = link.request_checkpoint(id, limit_mb).await?;
        self.await_answer(request, CHECKPOINT_TIMEOUT, purpose);
        Ok(())
    }

    pub(super) async fn on_checkpoint_done(&mut self, reply: &Reply, id: String, cell: u64, asked: Instant) {
        let Some(link) = &mut self.link else { return };
        let made = reply.made == Some(true) && link.has_checkpoint(&id).await;
        let took = asked.elapsed();
        self.budget.spend(took, Instant::now(), self.paging());
        let is_slow = took > SLOW_CHECKPOINT;
        self.checkpoint_gap = if is_slow { (took * LONGER_GAP).min(MAX_CHECKPOINT_GAP) } else { CHECKPOINT_GAP };
        let (owner, handle) = (&self.info.owner, &self.info.handle);
        if made {
            self.checkpoints.push(Checkpoint { id, cell });
            let excess = self.checkpoints.len().saturating_sub(self.ring());
            for old in self.checkpoints.drain(..excess) {
                if let Some(link) = &mut self.link {
                    link.drop_checkpoint(&old.id);
                }
            }
            let oldest = self.checkpoints.first().map_or(0, |oldest| oldest.cell);
            self.passed_over.retain(|cell| *cell > oldest);
            self.show_checkpoints(None);
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.parts.journal.record(owner, handle, EventKind::CheckpointMade { cell, took_us });
            return;
        }
        let reason = why_not(reply);
        // Told once per reason: a program with a thread would otherwise hear it after every cell.
        if self.checkpoint_skipped().as_ref().is_none_or(|before| !says_the_same(before, &reason)) {
            self.pending_notes.push(format!("no checkpoint was made after cell {cell}: {reason}"));
        }
        self.show_checkpoints(Some(reason.clone()));
        self.parts.journal.record(owner, handle, EventKind::CheckpointSkipped { cell, reason });
    }

    fn no_checkpoint(&self, cell: u64) -> Error {
        Error::NoCheckpoint { cell, there: self.checkpointed(), skipped: self.checkpoint_skipped() }
    }

    /// Why there is no newer checkpoint.
    pub(super) fn checkpoint_skipped(&self) -> Option<String> {
        self.live.lock().expect("no panic while locked").checkpoint_skipped.clone()
    }

    /// A cell begins, and there was no time for the checkpoint of the state it begins in.
    pub(super) fn pass_over_checkpoint(&mut self) {
        if self.checkpoint_due.take().is_none() || self.checkpoints_given_up || self.is_checkpointed() {
            return;
        }
        // Where none can be made that is the reason, and no matter of time.
        if self.checkpoint_skipped().is_some_and(|reason| reason != CAME_QUICKLY) {
            return;
        }
        let cell = self.head();
        if cell > 0 {
            self.passed_over.push(cell);
            self.show_checkpoints(Some(CAME_QUICKLY.to_owned()));
        }
    }

    pub(super) fn show_checkpoints(&self, skipped: Option<String>) {
        let mut live = self.live.lock().expect("no panic while locked");
        live.checkpoints = self.checkpointed();
        live.copies = self.link.as_ref().map(Link::copies).unwrap_or_default();
        live.checkpoint_skipped = skipped;
    }

    /// Lets go of all checkpoints: what they hold is to be forgotten.
    pub(super) fn drop_checkpoints(&mut self) {
        for checkpoint in self.checkpoints.drain(..) {
            if let Some(link) = &mut self.link {
                link.drop_checkpoint(&checkpoint.id);
            }
        }
        self.budget.start_over();
        self.show_checkpoints(None);
    }

    /// Where `undo` goes when no cell is named: before the newest cell, or as far back as the nearest checkpoint if the cells between
    /// came too quickly for one each. Where checkpoints were refused or lost it does not go further than it was asked to.
    fn one_back(&self) -> Option<u64> {
        let (_, before) = self.lineage.split_last()?;
        let wanted = before.last().copied()?;
        let is_passed_over = |cell: &u64| self.passed_over.contains(cell);
        let nearest = before.iter().rev().copied().find(|cell| !is_passed_over(cell))?;
        let is_there = self.checkpointed().contains(&nearest) || (nearest == 0 && !self.start_holds);
        Some(if is_there { nearest } else { wanted })
    }

    /// Sets the session back to where it was after a cell: the one before the newest, or the named one.
    pub(super) async fn undo(&mut self, to: Option<u64>) -> Result<Undone, Error> {
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        let head = self.head();
        let target = match to {
            None => self.one_back().ok_or(Error::NothingToUndo)?,
            Some(to) if to == head => return Err(Error::NothingToUndo),
            Some(to) => to,
        };
        let Some(position) = self.lineage.iter().position(|cell| *cell == target) else {
            return Err(Error::NotInState { cell: target, cells: self.lineage.clone() });
        };
        let undone = self.lineage[position + 1..].to_vec();
        let reason = format!("somebody undid it from cell {head} to cell {target}");
        let notes =
            if let Some(checkpoint) = self.checkpoints.iter().find(|checkpoint| checkpoint.cell == target).cloned() {
                self.go_back(&checkpoint, &reason, &[]).await?
            } else if target == 0 && !self.start_holds {
                let notes = self.start_over(&reason).await?;
                let undone = EventKind::SessionRolledBack { checkpoint_cell: 0, reason };
                self.parts.journal.record(&self.info.owner, &self.info.handle, undone);
                notes
            } else {
                return Err(self.no_checkpoint(target));
            };
        self.plan_checkpoint();
        // What happened before belongs before it.
        let mut told = self.take_news();
        told.append(&mut self.pending_notes);
        told.extend(notes);
        if let (None, [first, .., last]) = (to, &undone[..]) {
            told.push(format!("{} were undone, {first} to {last}: {CAME_QUICKLY}", counted(undone.len(), "cell")));
        }
        Ok(Undone { session: self.info.name.to_string(), cell: target, undone, notes: told })
    }

    /// Ends the worker and goes on in a frozen copy. Says what the caller must know; `lost` are cells that nobody meant to lose.
    pub(super) async fn go_back(
        &mut self,
        checkpoint: &Checkpoint,
        reason: &str,
        lost: &[u64],
    ) -> Result<Vec<String>, Error> {
        let skipped = self.checkpoint_skipped();
        self.step_forward();
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        let rolled_back = link.roll_back(&checkpoint.id).await;
        let pid = link.pid();
        // Younger copies held a future that was given up, and one that was killed is none.
        self.checkpoints.retain(|other| link.holds_checkpoint(&other.id));
        let restored = match rolled_back {
            Err(link::Error::NoCheckpoint(_)) => {
                self.show_checkpoints(None);
                return Err(self.no_checkpoint(checkpoint.cell));
            }
            rolled_back => rolled_back?,
        };
        self.drain_output();
        while self.lineage.last().is_some_and(|cell| *cell > checkpoint.cell) {
            self.lineage.pop();
        }
        self.passed_over.retain(|cell| *cell < checkpoint.cell);
        self.budget.renew(Instant::now(), self.paging());
        self.live.lock().expect("no panic while locked").pid = Some(pid);
        self.show_checkpoints(None);
        self.parts.journal.record(
            &self.info.owner,
            &self.info.handle,
            EventKind::SessionRolledBack { checkpoint_cell: checkpoint.cell, reason: reason.to_owned() },
        );
        self.show_holding();
        self.tell_sites().await;
        self.plan_checkpoint();
        let mut notes = notes::rollback(checkpoint.cell, lost, &restored);
        if !lost.is_empty() {
            notes.extend(skipped.map(|reason| format!("there was no newer checkpoint: {reason}")));
        }
        Ok(notes)
    }

    /// Makes what another session begins with: a copy of this one as it is, or as it was after a cell.
    pub(super) async fn branch(&mut self, at: Option<u64>, answer: oneshot::Sender<Result<Branched, Error>>) {
        let result = self.begin_branch(at).await;
        match result {
            Ok(Some(branched)) => drop(answer.send(Ok(branched))),
            // The copy has to be made first.
            Ok(None) => {
                let cell = self.head();
                let id = format!("b{cell}");
                let limit_mb = self.memory_limit_mb();
                let request = match &mut self.link {
                    Some(link) => link.request_checkpoint(&id, limit_mb).await.map_err(Error::from),
                    None => Err(Error::Gone),
                };
                match request {
                    Ok(request) => {
                        let purpose = Purpose::Branch { id, cell, answer };
                        self.await_answer(request, CHECKPOINT_TIMEOUT, purpose);
                    }
                    Err(error) => drop(answer.send(Err(error))),
                }
            }
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    async fn begin_branch(&mut self, at: Option<u64>) -> Result<Option<Branched>, Error> {
        let cell = at.unwrap_or_else(|| self.head());
        if let Some(checkpoint) = self.checkpoints.iter().find(|checkpoint| checkpoint.cell == cell).cloned() {
            // A frozen copy does not mind that its session is busy.
            return self.branch_from(&checkpoint).await.map(Some);
        }
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        if !self.lineage.contains(&cell) {
            return Err(Error::NotInState { cell, cells: self.lineage.clone() });
        }
        if cell != self.head() {
            return Err(self.no_checkpoint(cell));
        }
        if self.link.is_none() {
            self.open_worker().await?;
        }
        self.checkpoint_due = None;
        self.drain_output();
        Ok(None)
    }

    /// The copy for a branch was made, or not.
    pub(super) async fn on_branch_point(&mut self, reply: &Reply, id: &str, cell: u64) -> Result<Branched, Error> {
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        if reply.made != Some(true) || !link.has_checkpoint(id).await {
            return Err(Error::CannotBranch { reason: why_not(reply) });
        }
        let branched = self.branch_from(&Checkpoint { id: id.to_owned(), cell }).await;
        if let Some(link) = &mut self.link {
            link.drop_checkpoint(id);
        }
        self.plan_checkpoint();
        branched
    }

    async fn branch_from(&mut self, checkpoint: &Checkpoint) -> Result<Branched, Error> {
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        let (link, lost) = link.branch(&checkpoint.id).await?;
        let lineage = self.lineage.iter().copied().take_while(|cell| *cell <= checkpoint.cell).collect();
        let mut notes = vec![format!(
            "files, databases and the network are shared with {}; processes it started stay with it",
            self.info.name
        )];
        if let Some(running) = &self.running {
            notes.push(format!("cell {} of {} was running and is not in it", running.job.cell, self.info.name));
        }
        if !lost.is_empty() {
            notes.push(format!("not in the branch: {}", lost.join(", ")));
        }
        Ok(Branched {
            link,
            cell: self.cell,
            lineage,
            sites: self.sites.clone(),
            start_holds: self.start_holds,
            directory: self.directory.clone(),
            notes,
        })
    }

    /// In the task of a branch.
    pub(super) fn take_over(&mut self, branch: Branched) {
        let Branched { link, cell, lineage, sites, start_holds, directory, notes } = branch;
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.pid = Some(link.pid());
            live.rss_mb = link.resident_mb();
            live.cell = cell;
        }
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.keeper = link.keeper_pid();
            live.group = link.group();
        }
        let trial = link.trial().cloned();
        self.link = Some(link);
        if let Some(trial) = trial {
            // It was opened before, so whatever is missing is wanted.
            let _known = self.check_walls(trial);
        }
        self.cell = cell;
        self.lineage = lineage;
        self.start_holds = start_holds;
        self.show_holding();
        // It may be older than some of them.
        self.sites_due = !sites.is_empty();
        self.sites = sites;
        self.directory = directory;
        self.pending_notes = notes;
        self.plan_checkpoint();
    }
}

/// Whether two reasons differ in nothing but figures, such as how much memory is used.
fn says_the_same(one: &str, other: &str) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    words(one) == words(other)
}

fn why_not(reply: &Reply) -> String {
    reply
        .reason
        .clone()
        .or_else(|| reply.refused.clone())
        .unwrap_or_else(|| "the frozen copy did not identify itself".to_owned())
}
