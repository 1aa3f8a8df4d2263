//! How a worker starts, dies and comes back.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::OwnedMutexGuard;

use super::{Abandoned, Cause, Error, Leaving, State, Step, Task};
use crate::session::{
    job::{Execution, Outcome},
    keeping::RESTORE_TIMEOUT,
    notes::{abandoned, cell_stacks, death_message, stop_notes},
    read_answer,
    saved::Restored,
    sessions::python_path,
    watching::enclose,
};
use pylair_journal::EventKind;
use pylair_os::{machine, open_files, regular, turns::Turn};
use pylair_probe::wire::{Event, Op, Raised, Reply, Start};
use pylair_sandbox::{
    confine::SessionDirectory,
    share::Standing,
    truth::{self, Grouped},
};
use pylair_workers::{
    link::{self, Link, LinkEvent, Walls},
    template::Wanted,
};

/// `start` runs the user's `site` and `.pth` files, which may be slow.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// A worker that dies more often than this without being asked for anything is not started again until it is.
const MAX_IDLE_DEATHS: u32 = 3;
/// How long nothing is done for new sessions after something was, where many want to run.
const CROWDED_PAUSE: Duration = Duration::from_millis(150);
/// How long a cell waits for its session to be put into groups.
const ENCLOSE_TIMEOUT: Duration = Duration::from_millis(250);
const STARTUP_CODE_TIMEOUT: Duration = Duration::from_mins(5);

impl Task {
    pub(super) async fn open_worker(&mut self) -> Result<(), Error> {
        let info = self.info.clone();
        let python_path = python_path(&info.env);
        let is_confined = info.terms.profile.is_confined();
        if is_confined {
            info.environment.show_to_confined();
        }
        let wanted = Wanted {
            interpreter: &info.interpreter,
            base: info.base.as_ref(),
            env: &info.env,
            preload: if is_confined { &[] } else { &info.preload },
            python_path: &python_path,
            owner: &info.owner,
            confined: is_confined && info.walls == Walls::All,
            sandboxed: is_confined,
            inside: info.inside,
        };
        let prefix = info.interpreter.is_venv().then(|| info.interpreter.prefix.display().to_string());
        let start = Start {
            cwd: info.workspace.seen_as.display().to_string(),
            env: info.env.clone(),
            executable: info.interpreter.executable.display().to_string(),
            prefix,
            site: wanted.preload.is_empty(),
            python_path: python_path.clone(),
            // Inside the sandbox, instead of in a template outside.
            preload: if is_confined { info.preload.clone() } else { Vec::new() },
        };
        let place = SessionDirectory {
            directory: &info.workspace.path,
            seen_as: &info.workspace.seen_as,
            packages: info.environment.directory(),
            outer_id: info.workspace.owner,
        };
        self.parts.memory_kills.before();
        // Whatever hung at a fork was loaded into the worker that is gone.
        self.checkpoints_given_up = false;
        self.enclosing = None;
        let link = match self.ahead.take() {
            Some(link) if link.begin(start.clone()).await.is_ok() => *link,
            // There is none, or it ended just now, before anything of the session's had run in it.
            _ => {
                let turn = self.take_turn().await;
                let opened = Link::open(&self.parts.probes, &wanted, (&info.terms, info.walls), place, start).await;
                end_turn(turn);
                opened?
            }
        };
        let trial = link.trial().cloned().unwrap_or_default();
        self.link = Some(link);
        if info.terms.profile.is_confined() {
            let checked = self.check_walls(trial);
            self.unless_failed(checked).await?;
        }
        let started = self.answer_to(Link::START, START_TIMEOUT).await;
        let (reply, _) = self.unless_failed(started).await?;
        if let Some(refused) = reply.refused {
            self.close_link().await;
            return Err(link::Error::Start { message: refused }.into());
        }
        self.pending_notes.extend(reply.notes);
        self.show_worker();
        self.tell_sites().await;
        if info.startup.is_some() {
            // Memory that is used before the kernel counts it is never counted.
            self.be_enclosed().await;
        }
        if let Some(startup) = &info.startup {
            self.parts.crowding.ring();
            let ran =
                self.ask_and_wait(Op::Execute { cell: 0, path: None }, startup.as_bytes(), STARTUP_CODE_TIMEOUT).await;
            let (reply, _) = self.unless_failed(ran).await?;
            if let Some(error) = reply.error {
                self.close_link().await;
                return Err(Error::Startup(Box::new(error)));
            }
        }
        let link = self.link.as_ref().expect("opened above");
        let mut live = self.live.lock().expect("no panic while locked");
        live.rss_mb = link.resident_mb();
        live.state = State::Idle;
        drop(live);
        self.forget_lineage();
        if info.startup.is_some() {
            self.plan_checkpoint();
        }
        Ok(())
    }

    /// Lets the watch see a worker that was just started, and the kernel count it.
    fn show_worker(&mut self) {
        let Some(link) = &self.link else { return };
        let mut live = self.live.lock().expect("no panic while locked");
        live.pid = Some(link.pid());
        live.keeper = link.keeper_pid();
        live.standing = Standing::default();
        live.group = link.group();
        let is_enclosed = live.group.is_some();
        drop(live);
        if self.info.terms.profile.is_confined() && !is_enclosed {
            self.enclose();
        }
    }

    /// Looks at what the worker found when it tried its walls. Where one is missing there is no session, unless that is wanted.
    pub(super) fn check_walls(&mut self, trial: serde_json::Value) -> Result<(), Error> {
        let trial: truth::Trial = serde_json::from_value(trial).unwrap_or_default();
        let missing = truth::missing(&self.info.enforced(&trial, Grouped::default()));
        {
            let mut live = self.live.lock().expect("no panic while locked");
            live.trial = Some(trial);
            live.missing.clone_from(&missing);
        }
        match missing {
            Some(missing) if !self.info.best_effort => {
                self.info
                    .record_denied(&self.parts, &format!("no session, because of what is not enforced: {missing}"));
                Err(Error::NotEnforced { profile: self.info.terms.profile.name(), missing })
            }
            _ => Ok(()),
        }
    }

    /// Has the kernel count this worker's memory and processes as one, once that is done; until then both are watched. A cell waits
    /// for it: each process that is moved holds up every fork on the machine, and a cell can make many of them.
    fn enclose(&mut self) {
        let Some(link) = &self.link else { return };
        let (worker, keeper, family) = (link.pid(), link.keeper_pid(), link.family());
        let (parts, info, live) = (self.parts.clone(), self.info.clone(), self.live.clone());
        let has_run = Arc::new(AtomicBool::new(false));
        let waiting = has_run.clone();
        let enclosing = pylair_os::event_loop::spawn(async move {
            let groups = parts.groups().await;
            // The kernel moves a process when no fork is under way, and lets nobody begin one meanwhile. Where those who fork hardly
            // get a processor, that would stop the whole machine.
            while machine::is_crowded() {
                tokio::time::sleep(CROWDED_PAUSE).await;
                if family.strong_count() == 0 {
                    return;
                }
            }
            let (handle, limits) = (info.handle.clone(), info.terms.limits);
            let Some(group) = enclose(groups, handle, limits, (worker, keeper), has_run).await else { return };
            // If the session is gone meanwhile, so is its group when this goes.
            if let Some(family) = family.upgrade() {
                family.hold_group(group.clone());
                live.lock().expect("no panic while locked").group = Some(group);
            }
        });
        self.enclosing = Some((enclosing, waiting));
    }

    /// Namespaces and mounts are made by the kernel for us, before all sessions that run: where many want to run, one is made at a time.
    async fn take_turn(&self) -> Option<(Turn, OwnedMutexGuard<()>)> {
        let waits = self.info.terms.profile.is_confined() && machine::is_crowded();
        if waits { Some(self.parts.openings.take(&self.info.owner).await) } else { None }
    }

    pub(super) async fn be_enclosed(&mut self) {
        let Some((enclosing, has_run)) = self.enclosing.take() else { return };
        if tokio::time::timeout(ENCLOSE_TIMEOUT, enclosing).await.is_err() {
            // It is not waited for any longer; it goes on.
            has_run.store(true, Ordering::SeqCst);
        }
    }

    /// What every answer says of a sandbox: what is not enforced, whom it did not let through, and which limit ended a process.
    pub(super) fn sandbox_notes(&self) -> Vec<String> {
        let (missing, passed) = {
            let mut live = self.live.lock().expect("no panic while locked");
            (live.missing.as_deref().map(truth::not_whole), live.take_ended_for(&self.info, &self.parts))
        };
        let ended = passed.map(|reason| format!("a process of this session was killed because {reason}"));
        missing.into_iter().chain(ended).chain(self.take_refused()).collect()
    }

    /// Why the worker was killed, if that was because of a limit of its sandbox. A worker that exited was not.
    fn take_ended_for(&self, status: Option<i32>) -> Option<String> {
        if status.is_some_and(|status| libc::WIFEXITED(status)) {
            return None;
        }
        self.live.lock().expect("no panic while locked").take_ended_for(&self.info, &self.parts)
    }

    /// Connections that were refused since this was last asked, which are written down.
    fn take_refused(&self) -> Vec<String> {
        let refused: Vec<_> = self.link.iter().flat_map(Link::take_refused).collect();
        for reason in &refused {
            self.info.record_denied(&self.parts, reason);
        }
        refused
    }

    /// In a session that was just opened: brings variables back from a save.
    pub(super) async fn restore(&mut self, save: &Path) -> Result<Restored, Error> {
        let file = regular::open(save).map_err(Error::Store)?.into();
        self.link.as_ref().ok_or(Error::Gone)?.pass_files(&[file])?;
        let asked = self.ask_and_wait(Op::Restore, &[], RESTORE_TIMEOUT).await;
        let (reply, blob) = self.unless_failed(asked).await?;
        let answer = self.read_answer(Op::Restore, reply, &blob);
        let answer = self.unless_failed(answer).await?;
        read_answer(answer)
    }

    /// A worker that was started anew, or set back, may not know where this session's packages are.
    pub(super) async fn tell_sites(&mut self) {
        self.sites_due = false;
        for site in self.sites.clone() {
            let error = match self.ask_and_wait(site, &[], START_TIMEOUT).await {
                Ok((reply, _)) => reply.refused,
                Err(error) => Some(error.to_string()),
            };
            if let Some(error) = error {
                self.remember([format!("packages installed for this session cannot be imported: {error}")]);
            }
        }
    }

    pub(super) async fn unless_failed<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            self.close_link().await;
        }
        result
    }

    pub(super) async fn close_link(&mut self) {
        self.take_refused();
        if let Some(link) = self.link.take() {
            link.close().await;
            self.live.lock().expect("no panic while locked").group = None;
        }
        self.checkpoints.clear();
        self.budget.start_over();
        self.show_checkpoints(None);
        self.answer_nobody();
        self.checkpoint_due = None;
    }

    /// A request outside of any cell, answered before anything else goes on.
    async fn ask_and_wait(&mut self, op: Op, blob: &[u8], limit: Duration) -> Result<(Reply, Vec<u8>), Error> {
        let link = self.link.as_mut().ok_or(Error::Gone)?;
        let request = link.request(op, blob).await?;
        self.answer_to(request, limit).await
    }

    async fn answer_to(&mut self, request: u64, limit: Duration) -> Result<(Reply, Vec<u8>), Error> {
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
                Ok(LinkEvent::Reply(reply, blob)) if reply.ev == Event::Done && reply.id == request => {
                    self.drain_output();
                    return Ok((*reply, blob));
                }
                Ok(LinkEvent::Reply(..) | LinkEvent::Peeked(..)) => {}
                Ok(LinkEvent::Output(stream, count)) => self.on_output(stream, count),
                Ok(LinkEvent::Died { why }) => {
                    let status = match &mut self.link {
                        Some(link) => link.exit_status().await,
                        None => None,
                    };
                    self.drain_output();
                    // A limit may have ended the keeper as well.
                    let why = self.take_ended_for(status).or(why).or_else(|| self.why_signalled(status));
                    let tail =
                        self.late.take().map(|late| late.capture.snapshot(2000, None).merged.text).unwrap_or_default();
                    let kills = self.parts.memory_kills.since();
                    return Err(died(death_message(status, why.as_deref(), kills, tail.trim())));
                }
            }
        }
    }

    pub(super) async fn on_death(&mut self, why: Option<String>) {
        self.answer_nobody();
        self.checkpoint_due = None;
        let status = match &mut self.link {
            Some(link) => link.exit_status().await,
            None => None,
        };
        self.drain_output();
        let is_ours = self
            .running
            .as_ref()
            .is_some_and(|running| running.ladder.as_ref().is_some_and(|ladder| ladder.step == Step::Kill));
        // A limit may have ended the keeper as well.
        let why = self.take_ended_for(status).or(why);
        let why = why.or_else(|| if is_ours { None } else { self.why_signalled(status) });
        let Some(running) = self.running.take() else {
            let what = death_message(status, why.as_deref(), self.parts.memory_kills.since(), "");
            self.idle_deaths += 1;
            self.remember([format!("after cell {} {what}", self.cell)]);
            if self.idle_deaths > MAX_IDLE_DEATHS {
                self.close_link().await;
                self.live.lock().expect("no panic while locked").state = State::Dead;
                let gone = if self.start_holds || self.lineage.len() > 1 { " and all variables are gone" } else { "" };
                let note = "its worker ended again and again while nothing ran";
                self.remember([format!("{note}{gone}; the next call starts another")]);
                return;
            }
            let notes = self.recover(&format!("between cells: {what}"), self.head() + 1).await;
            self.remember(notes);
            return;
        };
        let stderr = running.job.capture.snapshot(2000, None).stderr.text;
        let killed_by_us = running.ladder.as_ref().filter(|ladder| ladder.step == Step::Kill);
        let kills = if killed_by_us.is_none() { self.parts.memory_kills.since() } else { None };
        let message = death_message(status, why.as_deref(), kills, stderr.trim());
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
        let mut execution = Execution::cut_short(outcome, running.job.elapsed(), notes);
        execution.error = Some(Raised {
            kind: if killed_by_us.is_some() { "KeyboardInterrupt" } else { "WorkerDied" }.to_owned(),
            message,
            traceback: cell_stacks(&stacks),
            line: None,
        });
        execution.rss_mb = self.link.as_ref().and_then(Link::resident_mb);
        self.finish(&running.job, execution);
    }

    /// Why the kernel ended the worker, where it says so.
    fn why_signalled(&self, status: Option<i32>) -> Option<String> {
        let signal = status.filter(|status| libc::WIFSIGNALED(*status)).map(|status| libc::WTERMSIG(status));
        let cpu_s = self.info.terms.limits.cpu_s.filter(|_| self.info.terms.profile.is_confined())?;
        if signal != Some(libc::SIGXCPU) {
            return None;
        }
        let why = format!("it has used up its processor time, cpu_s={cpu_s}");
        self.info.record_denied(&self.parts, &why);
        Some(why)
    }

    /// Brings the session back: to its newest checkpoint, else to a new worker. Returns what the caller must know.
    pub(super) async fn recover(&mut self, reason: &str, before_cell: u64) -> Vec<String> {
        // They were sent for the state that is lost.
        let left = self.clear_line(&format!("the session was set back before it began ({reason})"));
        let mut notes = self.bring_back(reason, before_cell).await;
        notes.extend(left);
        notes
    }

    async fn bring_back(&mut self, reason: &str, before_cell: u64) -> Vec<String> {
        // Newest first: a copy can have been killed too.
        while let Some(checkpoint) = self.checkpoints.last().cloned() {
            let after = self.lineage.iter().copied().filter(|cell| *cell > checkpoint.cell && *cell < before_cell);
            let lost: Vec<_> = after.collect();
            match self.go_back(&checkpoint, reason, &lost).await {
                Ok(notes) => return notes,
                Err(error) => tracing::warn!(%error, session = %self.info.name, "a rollback failed"),
            }
            self.checkpoints.retain(|other| other.id != checkpoint.id);
        }
        let lost = self.start_holds || self.lineage.get(1).is_some_and(|first| *first < before_cell);
        let skipped = self.checkpoint_skipped();
        self.close_link().await;
        let turn = open_files::turn_to_go_back().await;
        let opened = self.open_worker().await;
        drop(turn);
        let mut notes = Vec::new();
        match opened {
            Ok(()) => {
                self.parts.journal.record(
                    &self.info.owner,
                    &self.info.handle,
                    EventKind::SessionRestarted { reason: reason.to_owned() },
                );
                if lost {
                    notes.push("the session was restarted: all variables are gone".to_owned());
                    notes.extend(skipped.map(|reason| format!("there was no checkpoint: {reason}")));
                } else {
                    notes.push("the session was restarted".to_owned());
                }
            }
            Err(error) => {
                self.live.lock().expect("no panic while locked").state = State::Dead;
                let gone = if lost { " and all variables are gone" } else { "" };
                let why = error.message();
                notes.push(format!("the session could not be restarted{gone}: {why}; the next call tries again"));
            }
        }
        notes
    }

    pub(super) async fn kill_and_recover(&mut self, reason: &str) {
        if let Some(link) = &self.link {
            link.kill();
        }
        let notes = self.recover(reason, self.head() + 1).await;
        self.remember([reason.to_owned()]);
        self.remember(notes);
    }

    /// A new worker in the place of an idle one.
    pub(super) async fn start_over(&mut self, reason: &str) -> Result<Vec<String>, Error> {
        self.close_link().await;
        if let Err(error) = self.open_worker().await {
            self.live.lock().expect("no panic while locked").state = State::Dead;
            return Err(error);
        }
        let reason = reason.to_owned();
        self.parts.journal.record(&self.info.owner, &self.info.handle, EventKind::SessionRestarted { reason });
        Ok(vec!["the session was started anew".to_owned()])
    }

    pub(super) async fn restart_on_request(&mut self, is_reserved: bool) -> Result<Vec<String>, Error> {
        let mut notes = self.take_news();
        if !is_reserved {
            notes.extend(self.clear_line("the session was restarted before it began"));
        }
        if let Some(running) = self.running.take() {
            notes.push(format!("cell {} was running and was killed", running.job.cell));
            self.drain_output();
            let notes = vec!["the session was restarted while this cell ran".to_owned()];
            let execution = Execution::cut_short(Outcome::Interrupted, running.job.elapsed(), notes);
            self.finish(&running.job, execution);
        }
        self.pending_notes.clear();
        self.start_over("somebody asked for it").await?;
        notes.push("all variables are gone".to_owned());
        Ok(notes)
    }

    /// Empties the namespace of the same process: modules stay loaded, whatever else held on to objects keeps them.
    pub(super) async fn clear(&mut self) -> Result<Vec<String>, Error> {
        if let Some(running) = &self.running {
            return Err(self.busy(running));
        }
        if self.link.is_none() {
            self.open_worker().await?;
            return Ok(vec!["all variables are gone".to_owned()]);
        }
        let cleared = self.ask_and_wait(Op::Clear, &[], START_TIMEOUT).await;
        let (reply, _) = self.unless_failed(cleared).await?;
        if let Some(refused) = reply.refused {
            return Err(link::Error::Start { message: refused }.into());
        }
        // The checkpoints there are hold what was just thrown away.
        self.drop_checkpoints();
        self.forget_lineage();
        self.parts.journal.record(&self.info.owner, &self.info.handle, EventKind::SessionCleared {});
        Ok(vec!["all variables are gone; imported modules stay loaded".to_owned()])
    }

    /// Ends the running cell and goes back to the newest checkpoint, because the session is to be saved. From now on no cell is begun:
    /// it would be answered, and not be saved.
    pub(super) async fn abandon(&mut self, reason: &str) -> Abandoned {
        self.clear_line(&format!("the session was closed before it began: {reason}"));
        let Some(running) = self.running.take() else {
            self.leaving = Some(Leaving { cut: None });
            return Abandoned::default();
        };
        let cell = running.job.cell;
        let is_lost = self.checkpoints.is_empty();
        self.leaving = Some(Leaving { cut: is_lost.then_some(cell) });
        self.drain_output();
        let mut lost = self.lineage.clone();
        lost.push(cell);
        let mut notes = vec![format!("the session was closed while this cell ran: {reason}")];
        if is_lost {
            self.close_link().await;
        } else {
            notes.extend(self.recover(reason, cell).await);
        }
        let execution = Execution::cut_short(Outcome::Died, running.job.elapsed(), notes);
        self.finish(&running.job, execution);
        let kept = self.head();
        lost.retain(|cell| *cell > kept);
        let told = if is_lost {
            format!("cell {cell} was still running, and there was no checkpoint to save the session from")
        } else {
            abandoned(kept, &lost)
        };
        Abandoned { notes: vec![told], is_lost }
    }

    pub(super) async fn end(mut self) {
        let mut reason = self.ending.reason.get().cloned().unwrap_or_else(|| "the daemon let go of it".to_owned());
        if let Some(running) = self.running.take() {
            self.drain_output();
            let notes = vec![format!("the session was closed while this cell ran: {reason}")];
            let execution = Execution::cut_short(Outcome::Died, running.job.elapsed(), notes);
            self.finish(&running.job, execution);
            reason = format!("{reason}, while cell {} ran", running.job.cell);
        } else if let Some(cell) = self.leaving.as_ref().and_then(|leaving| leaving.cut) {
            reason = format!("{reason}, while cell {cell} ran");
        }
        self.clear_line(&format!("the session was closed before it began: {reason}"));
        self.close_link().await;
        self.leave_directory().await;
        self.parts.journal.record(&self.info.owner, &self.info.handle, EventKind::SessionClosed { reason });
    }

    async fn leave_directory(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        // A branch leaves it to the session it came from whether the directory stays.
        if self.info.workspace.path.ends_with(&*self.info.handle) {
            directory.keep(self.ending.keeps_files.load(Ordering::Acquire));
        }
        if let Some(directory) = Arc::into_inner(directory) {
            directory.remove().await;
        }
    }
}

/// The next one begins a while later.
fn end_turn(turn: Option<(Turn, OwnedMutexGuard<()>)>) {
    if let Some(turn) = turn {
        pylair_os::event_loop::spawn(async move {
            tokio::time::sleep(CROWDED_PAUSE).await;
            drop(turn);
        });
    }
}
