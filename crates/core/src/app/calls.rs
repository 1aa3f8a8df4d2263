//! Code that runs in an app: a job like a session's cell, but in a process that is not ours to stop. What outlives its time goes on there.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{App, Entry, Error, LATE_GRACE, Link, link::Answers, link::End, link::Whose, scratch_of, status, why};
use crate::{
    caller::Caller,
    session::{Execution, Interrupted, Job, MAX_CODE_BYTES, Outcome, ended},
};
use pylair_journal::EventKind;
use pylair_os::event_loop::carry_for_now;
use pylair_output::Stream;
use pylair_probe::wire::{CellOutcome, Event, Op, Raised, Reply};
use pylair_workers::link::Refusal;

/// How long a call may take to notice an interrupt before the caller is told that it has not.
const INTERRUPT_GRACE: Duration = Duration::from_secs(3);
/// How long the probe in a process of ours may take before the process itself is sent the signal.
const SIGNAL_AFTER: Duration = Duration::from_millis(500);
/// How long the probe may take to say whether it could interrupt.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a call has become when its time is over.
enum AtDeadline {
    /// It has ended just now, or will never begin.
    Ended(Box<Result<(Reply, Vec<u8>), End>>),
    Begun,
    /// The app does not say.
    Unknown,
}

/// A call that has not ended.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) request: u64,
    pub(super) job: Arc<Job>,
    pub(super) entry: Arc<Entry>,
    link: Arc<Link>,
}

/// The newest call that has ended.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) call: u64,
    pub(super) ended: Instant,
}

impl App {
    /// Starts a call and returns its job at once. `path` is what the code was made around, if it was made by pylair.
    pub async fn run(
        &self,
        caller: &Caller,
        client: &str,
        (code, path): (String, Option<String>),
        timeout: Option<Duration>,
    ) -> Result<Arc<Job>, Error> {
        if code.len() > MAX_CODE_BYTES {
            return Err(Error::CodeTooLong(code.len()));
        }
        let call = {
            let mut live = self.instance.live();
            if let Some(running) = live.running.first().filter(|_| self.entry.is_frozen()) {
                let (target, job) = (self.name(), &running.job);
                let (call, running) = (job.cell, job.elapsed());
                return Err(Error::Busy { target, call, job: job.id.clone(), running });
            }
            live.calls += 1;
            live.calls
        };
        let id = format!("{}-{call}", self.instance.handle);
        let parts = &self.apps.parts;
        let capture = parts.outputs.capture_up_to(&caller.owner, &id, caller.settings.max_output_bytes)?;
        let op = Op::Execute { cell: call, path };
        let (link, answers) = self.request(op, Some(&scratch_of(caller)), code.as_bytes(), timeout).await?;
        let job = Arc::new(Job::new(id, caller.owner.clone(), self.name().into(), call, capture, None));
        let running = Running { request: answers.id, job: job.clone(), entry: self.entry.clone(), link };
        self.instance.live().running.push(running);
        self.apps.remember_last(self);
        parts.jobs.add(job.clone());
        let started = EventKind::CellStarted {
            cell: call,
            job: job.id.clone(),
            code,
            code_cut: false,
            client: client.to_owned(),
        };
        parts.journal.record(&job.owner, &job.session, started);
        pylair_os::event_loop::spawn(self.clone().follow(job.clone(), answers, timeout));
        Ok(job)
    }

    /// Takes what comes back of a call until its end, which may be long after its caller was told that its time is over.
    async fn follow(self, job: Arc<Job>, mut answers: Answers, timeout: Option<Duration>) {
        // A deadline past the end of time is none.
        let deadline = timeout.and_then(|timeout| tokio::time::Instant::now().checked_add(timeout));
        let mut notes = Vec::new();
        let mut timed_out = false;
        let ended = loop {
            let over = async {
                match deadline {
                    Some(deadline) if !timed_out => tokio::time::sleep_until(deadline).await,
                    _ => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                frame = answers.next() => frame,
                () = over => {
                    if self.entry.is_frozen() {
                        timed_out = true;
                        pylair_os::event_loop::spawn(self.clone().stop(job.clone(), timeout.unwrap_or_default()));
                        continue;
                    }
                    let begun = match self.at_deadline(&job, &mut answers).await {
                        AtDeadline::Ended(ended) => break *ended,
                        AtDeadline::Begun => true,
                        AtDeadline::Unknown => false,
                    };
                    timed_out = true;
                    self.tell_timeout(&job, timeout.unwrap_or_default(), begun, std::mem::take(&mut notes));
                    continue;
                }
            };
            let _load = carry_for_now(frame.as_ref().map_or(0, |(reply, blob)| blob.len() + reply.weight())).await;
            match frame {
                Ok((reply, blob)) => match reply.ev {
                    Event::Output => push_output(&job, &reply, &blob),
                    Event::Display if !timed_out => {
                        let kept = ended::keep_display(&self.apps.parts.outputs, &job, reply, blob).await;
                        for event in kept.0 {
                            self.apps.parts.journal.record(&job.owner, &job.session, event);
                        }
                        notes.extend(kept.1);
                    }
                    Event::Done => break Ok((reply, blob)),
                    _ => {}
                },
                Err(end) => break Err(end),
            }
        };
        {
            let mut live = self.instance.live();
            live.running.retain(|running| running.job.id != job.id);
            live.last = Some(Last { call: job.cell, ended: Instant::now() });
        }
        if let Some(why) = never_began(&ended).filter(|_| !timed_out || self.entry.is_frozen()) {
            notes.push(format!("{why} (timeout_s={})", timeout.unwrap_or_default().as_secs_f64()));
            notes.push("none of it ran; dump_stacks shows what the app is doing".to_owned());
            self.finish(&job, Execution::cut_short(Outcome::TimedOut, job.elapsed(), notes));
            return;
        }
        if timed_out && self.entry.is_frozen() {
            let execution = self.stopped(&job, timeout.unwrap_or_default(), ended, notes).await;
            self.finish(&job, execution);
            return;
        }
        if timed_out {
            let how = match &ended {
                Ok(_) if never_began(&ended).is_some() => "it never began".to_owned(),
                Ok((reply, _)) => reply.outcome.map_or("refused", |outcome| outcome_of(outcome).as_str()).to_owned(),
                Err(End::Died(_)) => "died with its process".to_owned(),
                Err(end) => format!("how it ended is not known, because {}", why(end)),
            };
            let seconds = job.elapsed().as_secs_f64();
            let note =
                format!("call {}, which had run out of its time, has ended after {seconds:.1} s: {how}", job.cell);
            self.instance.live().notes.push(note);
            return;
        }
        let execution = match ended {
            Ok((reply, blob)) => self.ended_by_itself(&job, reply, blob, notes).await,
            Err(End::Died(how)) => self.died(&job, how, notes).await,
            Err(end) => self.lost(&job, &end, notes),
        };
        self.finish(&job, execution);
    }

    fn finish(&self, job: &Job, mut execution: Execution) {
        let ended = job.close_output(&mut execution);
        self.apps.parts.journal.record(&job.owner, &job.session, ended);
        job.finish(execution);
    }

    /// Asks the app what has become of a call whose time is over. The probe answers one that has not begun by itself.
    async fn at_deadline(&self, job: &Job, answers: &mut Answers) -> AtDeadline {
        let request = answers.id;
        let asked = async {
            let said = self.ask_json::<status::Said>(None, Op::Status, &[], LATE_GRACE).await;
            let begun = said.is_ok_and(|said| said.running.iter().any(|call| call.call == request && call.begun));
            if !begun {
                // Its own answer is on the way, or nobody answers at all.
                tokio::time::sleep(LATE_GRACE).await;
            }
            begun
        };
        tokio::select! {
            biased;
            frame = answers.next() => match frame {
                Ok((reply, blob)) if reply.ev == Event::Output => {
                    push_output(job, &reply, &blob);
                    AtDeadline::Begun
                }
                Ok((reply, _)) if reply.ev != Event::Done => AtDeadline::Begun,
                ended => AtDeadline::Ended(Box::new(ended)),
            },
            begun = asked => if begun { AtDeadline::Begun } else { AtDeadline::Unknown },
        }
    }

    fn tell_timeout(&self, job: &Job, timeout: Duration, begun: bool, mut notes: Vec<String>) {
        let (call, name, seconds) = (job.cell, self.name(), timeout.as_secs_f64());
        let then = "the next answer about the app after its end says how it ended";
        if begun {
            notes.push(format!("the call ran longer than timeout_s={seconds}"));
            notes.push(format!(
                "it is still running in the app as call {call}; it is not stopped and not run again; interrupt(target=\"{name}\") \
                 tries to stop it, and {then}"
            ));
        } else {
            notes.push(format!(
                "the app did not answer within timeout_s={seconds}, not even whether call {call} has begun"
            ));
            notes
                .push(format!("if it has not begun it never will; if it has it goes on, is not run again, and {then}"));
        }
        self.finish(job, Execution::cut_short(Outcome::TimedOut, job.elapsed(), notes));
    }

    /// Stops a call whose time is over in a process that is ours: a copy that does not give in is ended.
    async fn stop(self, job: Arc<Job>, timeout: Duration) {
        let is_its = |running: &&Running| running.job.id == job.id;
        let Some(running) = self.instance.live().running.iter().find(is_its).cloned() else { return };
        if self.interrupt_one(&running).await.is_some() && self.instance.live().running.iter().any(|one| is_its(&one)) {
            let reason =
                format!("a call in it ran longer than timeout_s={} and could not be stopped", timeout.as_secs_f64());
            if let Err(error) = self.end(&reason).await {
                tracing::warn!(pid = self.entry.pid, %error, "a frozen failure could not be ended");
            }
        }
    }

    /// What came of a call in a frozen failure whose time was over.
    async fn stopped(
        &self,
        job: &Job,
        timeout: Duration,
        ended: Result<(Reply, Vec<u8>), End>,
        mut notes: Vec<String>,
    ) -> Execution {
        let over = format!("the call ran longer than timeout_s={}", timeout.as_secs_f64());
        match ended {
            Ok((reply, blob)) if !was_interrupted(&reply) => {
                notes.push(format!("{over} and ended by itself while being stopped"));
                return self.ended_by_itself(job, reply, blob, notes).await;
            }
            Ok(_) => notes.push(format!("{over} and was stopped; code can still run in the failure")),
            Err(_) => {
                notes.push(format!("{over} and ignored the interrupt, so this copy of the failure was ended"));
                notes.push(self.successor(job).await);
            }
        }
        notes.extend(self.take_notes());
        Execution::cut_short(Outcome::TimedOut, job.elapsed(), notes)
    }

    async fn ended_by_itself(&self, job: &Job, reply: Reply, blob: Vec<u8>, mut notes: Vec<String>) -> Execution {
        let outcome = outcome_of(reply.outcome.unwrap_or(CellOutcome::Raised));
        notes.extend(self.take_notes());
        let mut execution = Execution::of_reply(outcome, reply, blob, notes, (job, &self.apps.parts.outputs)).await;
        if self.entry.is_frozen() {
            // The probe does not know what it is called in.
            for note in &mut execution.notes {
                *note = note.replace("; the app goes on", "; code can still run in the failure");
            }
        }
        if self.instance.is_gone() {
            execution.notes.push(format!("the process {} has ended right after the call", self.entry.pid));
            execution.notes.push(self.successor(job).await);
        }
        execution
    }

    async fn died(&self, job: &Job, how: Option<String>, mut notes: Vec<String>) -> Execution {
        notes.extend(self.take_notes());
        let how = how.unwrap_or_else(|| "only its parent can see how".to_owned());
        let message = format!("the process {} of {} ended: {how}", self.entry.pid, self.whole_name());
        notes.push(self.successor(job).await);
        let mut execution = Execution::cut_short(Outcome::Died, job.elapsed(), notes);
        execution.error =
            Some(Raised { kind: "ProcessEnded".to_owned(), message, traceback: String::new(), line: None });
        execution
    }

    fn whole_name(&self) -> String {
        if self.entry.is_frozen() { self.name() } else { format!("the app `{}`", self.entry.app_id) }
    }

    /// What there is now instead of a process that has ended.
    async fn successor(&self, job: &Job) -> String {
        if self.entry.is_frozen() {
            return "this copy of the failure has ended; get_failure shows what was recorded, and whether there is another copy"
                .to_owned();
        }
        let id = &self.entry.app_id;
        let read = self.apps.entries().await;
        let (same, others): (Vec<_>, Vec<_>) = read
            .iter()
            .filter(|entry| entry.app_id == *id)
            .partition(|entry| super::Program::of(entry).is(&self.instance.program));
        let (again, before): (Vec<_>, Vec<_>) = same.into_iter().partition(|entry| began_since(entry, job));
        let names =
            |entries: &[&Entry]| entries.iter().map(|entry| super::name_of(entry)).collect::<Vec<_>>().join(", ");
        // Whoever asks next need not be told again.
        self.apps
            .known
            .lock()
            .expect("no panic while locked")
            .last
            .retain(|_, last| last.process != self.instance.process);
        tracing::debug!(job = job.id, "the process of a call has ended");
        let said = [
            (again, format!("the app `{id}` is running again as ")),
            (before, format!("other processes of the app `{id}` go on: ")),
            (others, format!("another program has the id `{id}`: ")),
        ];
        let said: Vec<_> = said
            .iter()
            .filter(|(entries, _)| !entries.is_empty())
            .map(|(entries, said)| format!("{said}{}", names(entries)))
            .collect();
        if said.is_empty() { format!("no process of the app `{id}` is running now") } else { said.join("; ") }
    }

    /// The connection ended and the process did not.
    fn lost(&self, job: &Job, end: &End, mut notes: Vec<String>) -> Execution {
        notes.extend(self.take_notes());
        let mut execution = Execution::cut_short(Outcome::Raised, job.elapsed(), notes);
        execution.refuse(Refusal {
            message: format!(
                "the connection to {} ended while call {} ran, and its process goes on: {}",
                self.name(),
                job.cell,
                why(end)
            ),
            kind: Some("connection_lost".to_owned()),
            hint: Some("the call may have come to its end; its answer is lost and it is not run again".to_owned()),
        });
        execution
    }

    /// Interrupts the given job, or every call of ours that runs, and says whether that could be done.
    pub async fn interrupt(&self, job: Option<&str>) -> Result<Interrupted, Error> {
        let running: Vec<_> = {
            let live = self.instance.live();
            let wanted = |running: &&Running| job.is_none_or(|job| running.job.id == job);
            live.running.iter().filter(wanted).cloned().collect()
        };
        let mut interrupted = Interrupted { session: self.name(), job: None, outcome: None, notes: Vec::new() };
        if running.is_empty() {
            interrupted.notes.push("nothing was running".to_owned());
        }
        let said = futures::future::join_all(running.iter().map(|running| self.interrupt_one(running))).await;
        for (running, said) in running.iter().zip(said) {
            interrupted.job = Some(running.job.id.clone());
            interrupted.outcome = running.job.execution().map(|execution| execution.outcome);
            interrupted.notes.extend(said.map(|said| format!("call {}: {said}", running.job.cell)));
        }
        Ok(interrupted)
    }

    /// What is to be said about it, if anything.
    async fn interrupt_one(&self, running: &Running) -> Option<String> {
        let asked = async {
            loop {
                let mut answers =
                    running.link.request(Op::Interrupt { call: running.request }, Whose::default(), &[]).await?;
                let answer = answers.next().await.ok()?;
                let is_coming = answer.0.kind.as_deref() == Some("no_such_call") && running.job.execution().is_none();
                if !is_coming {
                    return Some(answer);
                }
                // The call was sent before, but a thread of the app's has yet to begin it.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let is_ours = self.entry.is_frozen();
        match tokio::time::timeout(if is_ours { SIGNAL_AFTER } else { INTERRUPT_TIMEOUT }, asked).await {
            // A call into C that keeps the interpreter to itself may still ask for signals.
            Err(_) if is_ours => {
                let process = self.instance.process;
                let sent = tokio::task::spawn_blocking(move || pylair_os::foreign::interrupt(process)).await;
                tracing::debug!(pid = process.pid, ?sent, "a frozen failure is interrupted from outside");
            }
            Err(_) => return Some("the app does not answer, so it could not be interrupted".to_owned()),
            // The connection ended, and the call's own answer says how.
            Ok(None) => {}
            Ok(Some((reply, _))) => {
                if let Some(refused) = reply.refused {
                    return Some(format!("it could not be interrupted: {refused}"));
                }
            }
        }
        let ended = tokio::time::timeout(INTERRUPT_GRACE, async {
            while self.instance.live().running.iter().any(|other| other.job.id == running.job.id) {
                match running.job.execution() {
                    // Its caller was told long ago, so its end shows in the list only.
                    Some(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    None => drop(running.job.ended().await),
                }
            }
        });
        let unheard = "it was told to stop and has not yet: it may be in a call into C, or ignore KeyboardInterrupt;";
        let way_out = if is_ours {
            format!("close_session(target=\"{}\") ends this copy of the failure", self.name())
        } else {
            "a process of yours is not killed".to_owned()
        };
        ended.await.is_err().then(|| format!("{unheard} {way_out}"))
    }
}

fn push_output(job: &Job, reply: &Reply, blob: &[u8]) {
    let stream = if reply.stream == 2 { Stream::Stderr } else { Stream::Stdout };
    job.capture.push(stream, blob);
}

/// What the probe says of a call that it did not begin in its time.
fn never_began(ended: &Result<(Reply, Vec<u8>), End>) -> Option<String> {
    let reply = &ended.as_ref().ok()?.0;
    reply.refused.clone().filter(|_| reply.kind.as_deref() == Some("not_begun"))
}

fn was_interrupted(reply: &Reply) -> bool {
    let raised = reply.error.as_ref().is_some_and(|error| error.kind == "KeyboardInterrupt");
    reply.outcome == Some(CellOutcome::Interrupted) || raised
}

/// Whether an app began to be served after a call had begun.
fn began_since(entry: &Entry, job: &Job) -> bool {
    let began = std::time::SystemTime::now() - job.elapsed();
    let began = began.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    entry.started_at >= began.as_secs_f64()
}

fn outcome_of(said: CellOutcome) -> Outcome {
    match said {
        CellOutcome::Ok => Outcome::Ok,
        CellOutcome::Raised => Outcome::Raised,
        CellOutcome::Interrupted => Outcome::Interrupted,
    }
}
