//! Frozen failures: copies of test processes that keep the frames of a failure alive. They register themselves as apps do, in a directory of
//! their own; here they are found by their failure, and let go when there are too many, too large or too old.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Daemon, targets::Error};
use crate::{
    app::{App, Apps, Entry, FrameAt},
    caller::Caller,
    config::FrozenLimits,
    failures::{
        Failures,
        explain::{Explained, Reading, Refused},
        record::{Evidence, Frozen as Reported},
        view::Failure,
    },
    plain::one_line,
    session,
    target::Reference,
};

/// How often copies are looked at while there are any.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// A copy is reported a moment before it can be visited.
const REGISTERS_WITHIN: Duration = Duration::from_secs(2);
/// Reasons that are remembered.
const REMEMBERED: usize = 1000;
const MAX_WORD_CHARS: usize = 200;
const MAX_LOCALS_CHARS: usize = 800;

/// All copies of this user.
#[derive(Debug)]
pub struct Frozen {
    pub(super) apps: Arc<Apps>,
    limits: FrozenLimits,
    /// Why copies were ended, by occurrence, the newest last.
    let_go: Mutex<VecDeque<(String, String)>>,
    count: AtomicUsize,
    look: Notify,
}

/// A failure that can be questioned, as `list_targets` shows it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FrozenStatus {
    pub kind: String,
    pub id: String,
    /// What to pass as `target`; `#2` behind it is the second frame.
    pub target: String,
    pub test: String,
    pub run: String,
    pub pid: i32,
    pub python: String,
    pub since: String,
    pub memory_mb: u64,
    /// Innermost first.
    pub frames: Vec<FrameAt>,
    pub calls: u64,
}

impl FrozenStatus {
    /// In one line, for a model or a person.
    pub fn line(&self) -> String {
        let place =
            self.frames.first().map(|frame| format!(", in {} at {}:{}", frame.function, frame.file, frame.line));
        format!(
            "{}: {} frozen{}, {} frame{}, Python {}, {} MB",
            self.target,
            self.test,
            place.unwrap_or_default(),
            self.frames.len(),
            if self.frames.len() == 1 { "" } else { "s" },
            self.python,
            self.memory_mb
        )
    }
}

/// Whether a failure has a living copy, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Copy {
    /// What to pass as `target`, if there is a living copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<FrameAt>,
}

/// Everything about one failure.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    #[serde(flatten)]
    pub explained: Explained,
    /// Its living copy.
    pub frozen: Copy,
}

impl Frozen {
    pub(super) fn new(apps: Arc<Apps>, limits: FrozenLimits) -> Arc<Self> {
        let (let_go, count, look) = (Mutex::default(), AtomicUsize::new(0), Notify::new());
        Arc::new(Self { apps, limits, let_go, count, look })
    }

    /// Living copies, as many as were seen last.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// There may be a new copy.
    pub(super) fn look_soon(&self) {
        self.look.notify_one();
    }

    /// Keeps copies within their limits until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let left = self.trim().await;
            let next = async {
                if left == 0 {
                    self.look.notified().await;
                } else {
                    let _either = tokio::time::timeout(LOOK_EVERY, self.look.notified()).await;
                }
            };
            tokio::select! {
                () = next => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Lets the oldest go until the rest is within the limits. How many are left.
    async fn trim(&self) -> usize {
        let mut entries = self.apps.entries().await;
        // The newest first: those that stay come before those that go.
        entries.sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
        let sized = tokio::task::spawn_blocking(move || {
            entries.into_iter().map(|entry| (megabytes(entry.pid), entry)).collect::<Vec<_>>()
        });
        let (mut kept, mut used) = (0, 0);
        for (megabytes, entry) in sized.await.unwrap_or_default() {
            let FrozenLimits { copies, megabytes: most, age } = self.limits;
            let reason = if kept >= copies as usize {
                format!("newer failures took its place: frozen_failures={copies} are kept")
            } else if used + megabytes > most {
                format!("it and newer ones took more memory than frozen_mb={most}")
            } else if lived(&entry) > age {
                format!("it was older than frozen_minutes={}", age.as_secs() / 60)
            } else {
                kept += 1;
                used += megabytes;
                continue;
            };
            self.end(&entry, &reason).await;
        }
        self.count.store(kept, Ordering::Release);
        kept
    }

    /// Ends all copies: nobody would be left to end them.
    pub(super) async fn end_all(&self, reason: &str) {
        for entry in self.apps.entries().await {
            self.end(&entry, reason).await;
        }
        self.count.store(0, Ordering::Release);
    }

    /// Ends a copy because somebody wants it.
    pub(super) async fn close(&self, copy: &App) -> Result<(), Error> {
        copy.end().await?;
        self.remember(&copy.entry, "somebody closed it");
        Ok(())
    }

    async fn end(&self, entry: &Entry, reason: &str) {
        if let Err(error) = self.apps.end(entry).await {
            tracing::warn!(pid = entry.pid, %error, "a frozen failure could not be ended");
            return;
        }
        tracing::debug!(pid = entry.pid, reason, "a frozen failure was let go");
        self.remember(entry, reason);
    }

    fn remember(&self, entry: &Entry, reason: &str) {
        let Some(occurrence) = entry.occurrence.clone() else { return };
        let mut let_go = self.let_go.lock().expect("no panic while locked");
        if let_go.len() >= REMEMBERED {
            let_go.pop_front();
        }
        let_go.push_back((occurrence, reason.to_owned()));
    }

    fn why_let_go(&self, occurrence: &str) -> Option<String> {
        let let_go = self.let_go.lock().expect("no panic while locked");
        let_go.iter().rev().find(|(known, _)| known == occurrence).map(|(_, reason)| reason.clone())
    }

    /// The newest living copy of a failure. One that was reported a moment ago is waited for.
    async fn copy_of(&self, failure: &Failure) -> Option<Entry> {
        let until = tokio::time::Instant::now() + REGISTERS_WITHIN;
        loop {
            let entries = self.apps.entries().await;
            let of = |occurrence: &str| {
                entries.iter().find(|entry| entry.occurrence.as_deref() == Some(occurrence)).cloned()
            };
            if let Some(found) = failure.seen.iter().find_map(|seen| of(&seen.occurrence)) {
                return Some(found);
            }
            let coming = failure.seen.first().is_some_and(|seen| {
                let pid = match seen.evidence.as_ref().and_then(|evidence| evidence.frozen.as_ref()) {
                    Some(Reported::Pid(pid)) => *pid,
                    _ => return false,
                };
                let age = jiff::Timestamp::now().duration_since(seen.at);
                let is_new = age < jiff::SignedDuration::from_secs(60);
                // One that has ended and waits to be reaped has no program any more.
                is_new
                    && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
                    && self.why_let_go(&seen.occurrence).is_none()
            });
            if !coming || tokio::time::Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Why a failure has no living copy.
    fn why_not(&self, failure: &Failure) -> String {
        let Some(seen) = failure.seen.first() else { return "nothing is known of how it was seen".to_owned() };
        if let Some(reason) = self.why_let_go(&seen.occurrence) {
            return format!("its copy was let go: {reason}");
        }
        match seen.evidence.as_ref().and_then(|evidence| evidence.frozen.as_ref()) {
            Some(Reported::WhyNot(why)) => format!("it was not frozen: {why}"),
            Some(Reported::Pid(pid)) => format!("its copy, process {pid}, has ended"),
            None if self.limits.copies == 0 => {
                "it was not frozen: frozen_failures=0 switches frozen failures off".to_owned()
            }
            None => "it was not frozen: it came from no run of pytest that reached a daemon while it failed".to_owned(),
        }
    }
}

impl Daemon {
    /// The copy that `failure:ID` or `failure:ID#N` means.
    pub(super) async fn frozen_failure(&self, caller: &Caller, id: &str, frame: Option<usize>) -> Result<App, Error> {
        if !Apps::visible_to(caller) {
            return Err(session::Error::NotAllowed("reach processes outside of pylair").into());
        }
        let failure = self.failures.get(id).await?;
        let Some(entry) = self.frozen.copy_of(&failure).await else {
            let (why, id) = (self.frozen.why_not(&failure), failure.summary.id.clone());
            return Err(Error::NotFrozen { id, why, recorded: recorded(&failure) });
        };
        if let Some(frame) = frame.filter(|frame| *frame > entry.frames.len()) {
            return Err(Error::NoFrame { id: failure.summary.id, frame, frames: entry.frames.len() });
        }
        let name = Reference::Failure { id: failure.summary.id.clone(), frame }.to_string();
        let app = self.frozen.apps.list(caller).await.into_iter().find(|app| app.entry.process() == entry.process());
        let gone = || crate::app::Error::Gone { target: name.clone() };
        Ok(app.ok_or_else(gone)?.called(name, frame))
    }

    /// A failure with all that can be told of it.
    pub async fn found_failure(&self, caller: &Caller, id: &str, reading: Reading) -> Result<Found, Refused> {
        let explained = self.failures.explained(id, reading).await?;
        let frozen = self.copy_of(caller, &explained.failure).await;
        Ok(Found { explained, frozen })
    }

    /// Whether a failure can be questioned, for those who tell of it.
    async fn copy_of(&self, caller: &Caller, failure: &Failure) -> Copy {
        if !Apps::visible_to(caller) {
            let why = "a frozen test has the rights of whoever ran it, so that needs the scope `admin`".to_owned();
            return Copy { target: None, why_not: Some(why), frames: Vec::new() };
        }
        match self.frozen.copy_of(failure).await {
            Some(entry) => {
                let target = Reference::Failure { id: failure.summary.id.clone(), frame: None }.to_string();
                Copy { target: Some(target), why_not: None, frames: entry.frames }
            }
            None => Copy { target: None, why_not: Some(self.frozen.why_not(failure)), frames: Vec::new() },
        }
    }

    /// All failures that can be questioned.
    pub async fn frozen_failures(&self, caller: &Caller) -> Vec<FrozenStatus> {
        let mut found = Vec::new();
        for app in self.frozen.apps.list(caller).await {
            let entry = &app.entry;
            let Some(id) = self.failure_of(&self.failures, entry).await else { continue };
            let word = |text: &str| one_line(text, MAX_WORD_CHARS);
            let pid = entry.pid;
            found.push(FrozenStatus {
                kind: "failure".to_owned(),
                target: format!("failure:{id}"),
                id,
                test: word(entry.nodeid.as_deref().unwrap_or_default()),
                run: word(entry.run.as_deref().unwrap_or_default()),
                pid,
                python: word(&entry.python),
                since: crate::app::time(entry.started_at).unwrap_or_default(),
                memory_mb: tokio::task::spawn_blocking(move || megabytes(pid)).await.unwrap_or_default(),
                frames: entry.frames.clone(),
                calls: app.calls(),
            });
        }
        found
    }

    /// Whose copy it is. None while its report is on its way.
    async fn failure_of(&self, failures: &Failures, entry: &Entry) -> Option<String> {
        failures.by_occurrence(entry.occurrence.as_deref()?).await.ok()?
    }
}

/// The values that were recorded, for whoever cannot ask for others.
fn recorded(failure: &Failure) -> Option<String> {
    let evidence: &Evidence = failure.seen.iter().find_map(|seen| seen.evidence.as_ref())?;
    let (number, frame) = evidence.frames.iter().enumerate().find(|(_, frame)| !frame.locals.is_empty())?;
    let values: Vec<_> = frame.locals.iter().map(|local| format!("{} = {}", local.name, local.value)).collect();
    let place = format!("frame {} ({} at {}:{})", number + 1, frame.function, frame.file, frame.line);
    Some(one_line(&format!("{place}: {}", values.join(", ")), MAX_LOCALS_CHARS))
}

fn lived(entry: &Entry) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::try_from_secs_f64(now.as_secs_f64() - entry.started_at).unwrap_or_default()
}

/// What a copy takes for itself: most of it is shared with the others.
fn megabytes(pid: i32) -> u64 {
    let kilobytes = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?.trim().to_owned();
        line.split(' ').next()?.parse::<u64>().ok()
    };
    std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok().and_then(kilobytes).unwrap_or_default() >> 10
}
