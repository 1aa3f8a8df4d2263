//! Checkpoints: the ring of frozen copies, going back to one, and branching from one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{Error, Task, ask::Purpose};
use crate::{
    files::OwnDirectory,
    journal::EventKind,
    open_files,
    probe::{
        link::{self, Link},
        wire::{Op, Reply},
    },
    session::{Undone, notes},
};

/// How long a session must be idle after a cell before a checkpoint is made: longer than a caller that goes on at once.
pub(super) const CHECKPOINT_GAP: Duration = Duration::from_millis(4);
/// One that took longer than this holds up whoever comes meanwhile: the next is made in a longer gap. On a machine where many
/// processes fork, those wait for each other in the kernel.
const SLOW_CHECKPOINT: Duration = Duration::from_millis(60);
const LONGER_GAP: u32 = 6;
const MAX_CHECKPOINT_GAP: Duration = Duration::from_secs(2);
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);
/// The cells a session remembers to hold; going back further than the ring is not possible anyway.
const MAX_LINEAGE: usize = 1000;

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
            self.lineage.remove(0);
        }
        self.show_holding();
    }

    /// The cells after whose ends there are checkpoints.
    pub(super) fn checkpointed(&self) -> Vec<u64> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.cell).collect()
    }

    pub(super) fn plan_checkpoint(&mut self) {
        if self.link.is_some() && self.parts.checkpoints.ring() > 0 {
            self.checkpoint_due = Some(Instant::now() + self.checkpoint_gap);
        }
    }

    pub(super) async fn ask_for_checkpoint(&mut self) {
        let cell = self.head();
        if self.running.is_some() || self.asking.is_some() || self.checkpoints_given_up {
            return;
        }
        if self.checkpoints.last().is_some_and(|checkpoint| checkpoint.cell == cell) {
            return;
        }
        let id = format!("c{cell}");
        let purpose = Purpose::Checkpoint { id: id.clone(), cell };
        if let Err(error) = self.request_checkpoint(&id, purpose).await {
            tracing::debug!(%error, "a checkpoint could not be asked for");
        }
    }

    async fn request_checkpoint(&mut self, id: &str, purpose: Purpose) -> Result<(), Error> {
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        let request = link.request_checkpoint(id).await?;
        self.await_answer(request, CHECKPOINT_TIMEOUT, purpose);
        Ok(())
    }

    pub(super) async fn on_checkpoint_done(&mut self, reply: &Reply, id: String, cell: u64, took: Duration) {
        let is_slow = took > SLOW_CHECKPOINT;
        self.checkpoint_gap = if is_slow { (took * LONGER_GAP).min(MAX_CHECKPOINT_GAP) } else { CHECKPOINT_GAP };
        let Some(link) = &mut self.link else { return };
        let made = reply.made == Some(true) && link.has_checkpoint(&id).await;
        let (owner, handle) = (&self.info.owner, &self.info.handle);
        if made {
            self.checkpoints.push(Checkpoint { id, cell });
            // The newest is worth more than another session's second newest.
            let ring = if open_files::is_short() { 1 } else { self.parts.checkpoints.ring() };
            let excess = self.checkpoints.len().saturating_sub(ring);
            for old in self.checkpoints.drain(..excess) {
                link.drop_checkpoint(&old.id);
            }
            self.show_checkpoints(None);
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.parts.journal.record(owner, handle, EventKind::CheckpointMade { cell, took_us });
            return;
        }
        let reason = why_not(reply);
        let told = self.live.lock().expect("no panic while locked").checkpoint_skipped.as_ref() == Some(&reason);
        // Told once per reason: a program with a thread would otherwise hear it after every cell.
        if !told {
            self.pending_notes.push(format!("no checkpoint was made after cell {cell}: {reason}"));
        }
        self.show_checkpoints(Some(reason.clone()));
        self.parts.journal.record(owner, handle, EventKind::CheckpointSkipped { cell, reason });
    }

    fn no_checkpoint(&self, cell: u64) -> Error {
        let skipped = self.live.lock().expect("no panic while locked").checkpoint_skipped.clone();
        Error::NoCheckpoint { cell, there: self.checkpointed(), skipped }
    }

    /// A cell begins before the checkpoint of the state it begins in was made.
    pub(super) fn skip_checkpoint(&mut self) {
        if self.checkpoint_due.take().is_none() || self.checkpoints_given_up {
            return;
        }
        let cell = self.head();
        if cell == 0 || self.checkpoints.last().is_some_and(|checkpoint| checkpoint.cell == cell) {
            return;
        }
        let reason = "the next cell came at once".to_owned();
        if self.live.lock().expect("no panic while locked").checkpoint_skipped.as_ref() != Some(&reason) {
            self.skip_note = Some(format!("no checkpoint was made after cell {cell}: {reason}"));
        }
        self.show_checkpoints(Some(reason));
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
        self.show_checkpoints(None);
    }

    /// Sets the session back to where it was after a cell: the one before the newest, or the named one.
    pub(super) async fn undo(&mut self, to: Option<u64>) -> Result<Undone, Error> {
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        let head = self.head();
        let target = match to {
            None if self.lineage.len() < 2 => return Err(Error::NothingToUndo),
            None => self.lineage[self.lineage.len() - 2],
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
        let mut told = std::mem::take(&mut self.pending_notes);
        told.extend(notes);
        Ok(Undone { session: self.info.name.to_string(), cell: target, undone, notes: told })
    }

    /// Ends the worker and goes on in a frozen copy. Says what the caller must know; `lost` are cells that nobody meant to lose.
    pub(super) async fn go_back(
        &mut self,
        checkpoint: &Checkpoint,
        reason: &str,
        lost: &[u64],
    ) -> Result<Vec<String>, Error> {
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
        Ok(notes::rollback(checkpoint.cell, lost, &restored))
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
                let request = match &mut self.link {
                    Some(link) => link.request_checkpoint(&id).await.map_err(Error::from),
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

fn why_not(reply: &Reply) -> String {
    reply
        .reason
        .clone()
        .or_else(|| reply.refused.clone())
        .unwrap_or_else(|| "the frozen copy did not say who it is".to_owned())
}
