//! Frozen failures: copies of test processes that keep the frames of a failure alive. They register themselves as apps do, in a directory of
//! their own; here they are found by their failure, and let go when there are too many, too large or too old. Each group of failures keeps
//! its newest copy before any group keeps a second one.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Daemon, targets::Error};
use crate::{
    app::{App, Apps},
    caller::Caller,
    session,
    settings::FrozenLimits,
    target::Reference,
};
use pylair_attach::registry::{Entry, FrameAt};
use pylair_failures::{
    Failures,
    explain::{Copies, Explained, Reading, Refused},
    record::{Evidence, Frozen as Reported},
    view::Failure,
};
use pylair_os::clock::age_of_process;
use pylair_probe::wire::Op;
use pylair_text::{
    mask,
    plain::{counted, one_line},
};

/// How often copies are looked at while there are any.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// How soon they are looked at again when one is expected.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A copy is reported a moment before it can be visited.
const REGISTERS_WITHIN: Duration = Duration::from_secs(2);
/// A copy that is older and of no recorded failure counts like any other.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);
/// Time that a copy has to answer what an explanation is checked by.
const CHECKED_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of such answers that are remembered.
const MAX_ANSWERS: usize = 2000;
const MAX_WORD_CHARS: usize = 200;
const MAX_LOCALS_CHARS: usize = 800;

/// All copies of this user.
#[derive(Debug)]
pub struct Frozen {
    pub(super) apps: Arc<Apps>,
    failures: Arc<Failures>,
    limits: FrozenLimits,
    count: AtomicUsize,
    look: Notify,
    /// Held while copies are let go: nobody ends one twice.
    trimming: tokio::sync::Mutex<()>,
}

/// The reason of a failure that never had a copy.
const NOT_FROZEN: &str = "this failure was not frozen";

/// Returns what a reason means for whoever wants to run code in a failure.
pub fn unfrozen(why_not: &str) -> String {
    let mut letters = why_not.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    format!("{}{}, so no code can run in it", first.map(String::from).unwrap_or_default(), letters.as_str())
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
            "{}: {} frozen{}, {}, Python {}, {} MB",
            self.target,
            self.test,
            place.unwrap_or_default(),
            counted(self.frames.len(), "frame"),
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
    /// That it is not of when the failure was last seen, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<FrameAt>,
}

/// Everything about one failure.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Found")]
pub struct FailureDetail {
    #[serde(flatten)]
    pub explained: Explained,
    /// Its living copy.
    pub frozen: Copy,
}

impl Frozen {
    pub(super) fn new(apps: Arc<Apps>, failures: Arc<Failures>, limits: FrozenLimits) -> Arc<Self> {
        let (count, look, trimming) = (AtomicUsize::new(0), Notify::new(), tokio::sync::Mutex::default());
        Arc::new(Self { apps, failures, limits, count, look, trimming })
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
        let mut expected_until = None;
        loop {
            let left = self.trim().await;
            let now = tokio::time::Instant::now();
            let pause = match expected_until {
                Some(until) if now < until => LOOK_AGAIN,
                _ if left > 0 => LOOK_EVERY,
                _ => Duration::MAX,
            };
            tokio::select! {
                told = tokio::time::timeout(pause, self.look.notified()) => if told.is_ok() {
                    expected_until = Some(tokio::time::Instant::now() + REGISTERS_WITHIN);
                },
                () = stop.cancelled() => return,
            }
        }
    }

    /// Lets copies go until the rest is within the limits. How many are left.
    async fn trim(&self) -> usize {
        let _held = self.trimming.lock().await;
        let entries = self.apps.entries().await;
        let occurrences: Vec<String> = entries.iter().filter_map(|entry| entry.occurrence.clone()).collect();
        // Nothing has to be asked where everything stays.
        let groups = if entries.len() > 1 { self.failures.groups_of(&occurrences).await } else { Ok(HashMap::new()) };
        let groups = groups.unwrap_or_else(|error| {
            tracing::debug!(error = error.message(), "the groups of frozen failures are not known");
            HashMap::new()
        });
        let group = |entry: &Entry| groups.get(entry.occurrence.as_deref().unwrap_or_default()).cloned();
        // One whose report is on its way may be of any group: it must not take the place of another cause.
        let (coming, entries): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(|entry| {
            group(entry).is_none() && age_of_process(entry.pid).is_some_and(|age| age < REPORTED_WITHIN)
        });
        // Those that stay come before those that go.
        let entries = by_cause(entries, |entry| group(entry).or_else(|| entry.occurrence.clone()).unwrap_or_default());
        let sized = tokio::task::spawn_blocking(move || {
            entries.into_iter().map(|entry| (megabytes(entry.pid), entry)).collect::<Vec<_>>()
        });
        let mut room = Room { limits: self.limits, kept: 0, used: 0, is_full: false };
        for (megabytes, entry) in sized.await.unwrap_or_default() {
            if let Some(reason) = room.refuses(megabytes, age_of_process(entry.pid).unwrap_or_default()) {
                self.end(&entry, &reason).await;
            }
        }
        let kept = room.kept + coming.len();
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
    pub(super) async fn close(copy: &App, caller: &Caller) -> Result<(), Error> {
        Ok(copy.end(&format!("{} closed it", caller.signature().words())).await?)
    }

    async fn end(&self, entry: &Entry, reason: &str) {
        match self.apps.end(entry, reason).await {
            Ok(()) => tracing::debug!(pid = entry.pid, reason, "a frozen failure was let go"),
            Err(error) => tracing::warn!(pid = entry.pid, %error, "a frozen failure could not be ended"),
        }
    }

    /// The newest living copy of a failure, and if it is not the one of when the failure was last seen, a sentence about that. One that was
    /// reported a moment ago is waited for.
    async fn copy_of(&self, failure: &Failure) -> Option<(Entry, Option<String>)> {
        let until = tokio::time::Instant::now() + REGISTERS_WITHIN;
        loop {
            let entries = self.apps.entries().await;
            let of = |occurrence: &str| {
                entries.iter().find(|entry| entry.occurrence.as_deref() == Some(occurrence)).cloned()
            };
            if let Some(newest) = failure.seen.first().and_then(|seen| of(&seen.occurrence)) {
                return Some((newest, None));
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
                    && self.apps.why_ended(&seen.occurrence).is_none()
            });
            if !coming || tokio::time::Instant::now() >= until {
                return failure.seen.iter().skip(1).find_map(|seen| {
                    let why = self.why_not(failure);
                    let note = format!(
                        "this copy is of an older run, {} at {:.0}: when it was last seen, {why}",
                        seen.run, seen.at
                    );
                    Some((of(&seen.occurrence)?, Some(note)))
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn was_let_go(&self, entry: &Entry) -> bool {
        entry.occurrence.as_deref().is_some_and(|occurrence| self.apps.why_ended(occurrence).is_some())
    }

    /// Why a failure has no living copy.
    fn why_not(&self, failure: &Failure) -> String {
        let Some(seen) = failure.seen.first() else { return "no occurrence of it is recorded".to_owned() };
        if let Some(reason) = self.apps.why_ended(&seen.occurrence) {
            return format!("its copy was let go ({reason})");
        }
        match seen.evidence.as_ref().and_then(|evidence| evidence.frozen.as_ref()) {
            Some(Reported::WhyNot(why)) => format!("{NOT_FROZEN} ({why})"),
            Some(Reported::Pid(pid)) => format!("its copy, process {pid}, has ended"),
            None if self.limits.copies == 0 => {
                format!("{NOT_FROZEN} (frozen_failures=0 switches frozen failures off)")
            }
            None => match why_unfrozen(seen.evidence.as_ref()) {
                Some(why) => format!("{NOT_FROZEN} ({why})"),
                None => NOT_FROZEN.to_owned(),
            },
        }
    }
}

/// Has what explanations claim checked by living copies, and remembers what they said: a copy does not change.
#[derive(Debug)]
pub(super) struct Checks {
    apps: Arc<Apps>,
    known: Arc<Mutex<Answers>>,
}

/// By occurrence and question.
type Answers = HashMap<(String, String), Option<bool>>;

impl Checks {
    pub(super) fn new(apps: Arc<Apps>) -> Self {
        Self { apps, known: Arc::default() }
    }
}

impl Copies for Checks {
    fn ask(&self, occurrence: String, questions: Vec<Value>) -> BoxFuture<'static, Option<Vec<Option<bool>>>> {
        let (apps, known) = (self.apps.clone(), self.known.clone());
        Box::pin(async move {
            let keys: Vec<_> = questions.iter().map(|question| (occurrence.clone(), question.to_string())).collect();
            let answered = {
                let known = known.lock().expect("no panic while locked");
                keys.iter().map(|key| known.get(key).copied()).collect::<Option<Vec<_>>>()
            };
            if answered.is_some() {
                return answered;
            }
            let app = apps.of_occurrence(&occurrence).await?;
            let blob = serde_json::to_vec(&questions).ok()?;
            let asked = app.ask_json(None, Op::Check, &blob, CHECKED_WITHIN);
            // To connect to a copy for the first time takes a moment too.
            let answers: Vec<Option<bool>> = tokio::time::timeout(CHECKED_WITHIN, asked).await.ok()?.ok()?;
            let mut known = known.lock().expect("no panic while locked");
            if known.len() > MAX_ANSWERS {
                known.clear();
            }
            known.extend(keys.into_iter().zip(answers.iter().copied()));
            Some(answers)
        })
    }
}

impl Daemon {
    /// The copy that `failure:ID` or `failure:ID#N` means.
    pub(super) async fn frozen_failure(&self, caller: &Caller, id: &str, frame: Option<usize>) -> Result<App, Error> {
        if !Apps::visible_to(caller) {
            return Err(session::Error::NotAllowed("reach processes outside of pylair").into());
        }
        let failure = self.failures.get(id).await?;
        let found = self.frozen.copy_of(&failure).await;
        // A copy over the limits must not stay usable until the next look.
        self.frozen.trim().await;
        let Some((entry, older)) = found.filter(|(entry, _)| !self.frozen.was_let_go(entry)) else {
            let (why, id) = (self.frozen.why_not(&failure), failure.summary.id.clone());
            let reported = failure.seen.first().and_then(|seen| seen.evidence.as_ref()?.frozen.as_ref());
            let was_frozen = matches!(reported, Some(Reported::Pid(_)));
            return Err(Error::NotFrozen { id, why, recorded: recorded(&failure), was_frozen });
        };
        if let Some(frame) = frame.filter(|frame| *frame > entry.frames.len()) {
            return Err(Error::NoFrame { id: failure.summary.id, frame, frames: entry.frames.len() });
        }
        let name = Reference::Failure { id: failure.summary.id.clone(), frame }.to_string();
        let app = self.frozen.apps.list(caller).await.into_iter().find(|app| app.entry.process() == entry.process());
        let gone = || crate::app::Error::Gone { target: name.clone() };
        let app = app.ok_or_else(gone)?.called(name, frame);
        if let Some(older) = older {
            app.note(older);
        }
        Ok(app)
    }

    /// A failure with all that can be told of it.
    pub async fn found_failure(&self, caller: &Caller, id: &str, reading: Reading) -> Result<FailureDetail, Refused> {
        let explained = self.failures.explained(id, reading).await?;
        let frozen = self.copy_of(caller, &explained.failure).await;
        Ok(FailureDetail { explained, frozen })
    }

    /// Whether a failure can be questioned, for those who tell of it.
    async fn copy_of(&self, caller: &Caller, failure: &Failure) -> Copy {
        if !Apps::visible_to(caller) {
            let why = "a frozen test has the rights of the user who ran it and needs the scope `admin`".to_owned();
            return Copy { target: None, why_not: Some(why), older: None, frames: Vec::new() };
        }
        match self.frozen.copy_of(failure).await {
            Some((entry, older)) => {
                let target = Reference::Failure { id: failure.summary.id.clone(), frame: None }.to_string();
                Copy { target: Some(target), why_not: None, older, frames: entry.frames }
            }
            None => Copy { target: None, why_not: Some(self.frozen.why_not(failure)), older: None, frames: Vec::new() },
        }
    }

    /// All failures that can be questioned.
    pub async fn frozen_failures(&self, caller: &Caller) -> Vec<FrozenStatus> {
        let mut found = Vec::new();
        let mut apps = self.frozen.apps.list(caller).await;
        apps.sort_by(|a, b| b.entry.started_at.total_cmp(&a.entry.started_at));
        let mut known = HashSet::new();
        for app in apps {
            let entry = &app.entry;
            let Some(id) = self.failure_of(&self.failures, entry).await else { continue };
            // The target is the newest of its copies.
            if !known.insert(id.clone()) {
                continue;
            }
            let word = |text: &str| one_line(text, MAX_WORD_CHARS);
            let pid = entry.pid;
            found.push(FrozenStatus {
                kind: "failure".to_owned(),
                target: format!("failure:{id}"),
                id,
                test: word(&masked_test(entry.nodeid.as_deref().unwrap_or_default())),
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

/// A test's name as it is recorded.
fn masked_test(nodeid: &str) -> String {
    mask::masked(nodeid, mask::Reading::Text).unwrap_or_else(|| nodeid.to_owned())
}

/// What kept a failure from being frozen of which its reporter says nothing.
fn why_unfrozen(evidence: Option<&Evidence>) -> Option<&'static str> {
    // With frames there was something to freeze, and nobody who could.
    let reported = evidence.filter(|evidence| evidence.frames.is_empty() && !evidence.occurrence.is_empty());
    let exception = reported.map(|evidence| &evidence.exception);
    match exception.map(|exception| (exception.kind.as_str(), exception.message.as_str())) {
        Some(("Crashed" | "Died", _)) => Some("the process that ran it has ended"),
        Some(("Failed", message)) if message.contains("subtest") => Some("the failures are in its subtests"),
        _ => None,
    }
}

/// The newest of each group first, then the second of each, and so on; the newest first among these.
fn by_cause(mut entries: Vec<Entry>, group: impl Fn(&Entry) -> String) -> Vec<Entry> {
    entries.sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<(usize, Entry)> = Vec::with_capacity(entries.len());
    for entry in entries {
        let before = seen.entry(group(&entry)).or_default();
        ranked.push((*before, entry));
        *before += 1;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, entry)| entry).collect()
}

/// What there is room for, when copies come in the order in which they are worth keeping.
struct Room {
    limits: FrozenLimits,
    kept: usize,
    used: u64,
    is_full: bool,
}

impl Room {
    /// Why the next one is let go, if it is. None is kept that comes after one which found no room beside those before it.
    fn refuses(&mut self, megabytes: u64, lived: Duration) -> Option<String> {
        let FrozenLimits { copies, megabytes: most, age } = self.limits;
        if lived > age {
            return Some(format!("it was older than frozen_minutes={}", age.as_secs() / 60));
        }
        if self.kept >= copies as usize {
            return Some(format!(
                "other failures took its place: frozen_failures={copies} are kept, of each group the newest first"
            ));
        }
        if megabytes > most {
            return Some(format!("it took {megabytes} MB of memory, more than frozen_mb={most}"));
        }
        self.is_full |= self.used + megabytes > most;
        if self.is_full {
            return Some(format!("it and those kept before it took more memory than frozen_mb={most}"));
        }
        self.kept += 1;
        self.used += megabytes;
        None
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

/// What a copy takes for itself: most of it is shared with the others.
fn megabytes(pid: i32) -> u64 {
    let kilobytes = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?.trim().to_owned();
        line.split(' ').next()?.parse::<u64>().ok()
    };
    std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok().and_then(kilobytes).unwrap_or_default() >> 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_failures::record::Exception;

    /// Which of them stay, the newest first, and why the others go.
    fn judged(limits: FrozenLimits, copies: &[(u64, u64)]) -> (Vec<bool>, Vec<String>) {
        let mut room = Room { limits, kept: 0, used: 0, is_full: false };
        let judged: Vec<_> = copies
            .iter()
            .map(|(megabytes, minutes)| room.refuses(*megabytes, Duration::from_secs(minutes * 60)))
            .collect();
        (judged.iter().map(Option::is_none).collect(), judged.into_iter().flatten().collect())
    }

    #[test]
    fn the_oldest_are_let_go_first_whatever_there_is_too_much_of() {
        let limits = FrozenLimits { copies: 3, megabytes: 100, age: Duration::from_hours(1) };
        let (stay, why) = judged(limits, &[(1, 0), (1, 1), (1, 2), (1, 3)]);
        assert_eq!((stay.as_slice(), why[0].contains("frozen_failures=3")), (&[true, true, true, false][..], true));
        // A small one that is older than one which had to go does not stay.
        let (stay, why) = judged(limits, &[(60, 0), (60, 1), (1, 2)]);
        assert_eq!(stay, [true, false, false]);
        assert!(why.iter().all(|why| why.contains("frozen_mb=100")), "{why:?}");
        // But one that is too large for itself takes no other with it.
        let (stay, why) = judged(limits, &[(101, 0), (60, 1)]);
        assert_eq!((stay.as_slice(), why[0].contains("101 MB")), (&[false, true][..], true));
        let (stay, why) = judged(limits, &[(1, 60), (1, 61)]);
        assert_eq!((stay.as_slice(), why[0].contains("frozen_minutes=60")), (&[true, false][..], true));
    }

    #[test]
    fn each_group_keeps_its_newest_copy_before_another_keeps_two() {
        let entry = |name: &str, started_at: f64| Entry {
            app_id: name.to_owned(),
            started_at,
            ..serde_json::from_str(r#"{"app_id":"","pid":1,"start":1,"endpoint":"/x","wire":1}"#).unwrap()
        };
        let entries = vec![entry("b1", 3.0), entry("a", 1.0), entry("b3", 5.0), entry("c", 2.0), entry("b2", 4.0)];
        let kept = by_cause(entries, |entry| entry.app_id[..1].to_owned());
        let names: Vec<&str> = kept.iter().map(|entry| entry.app_id.as_str()).collect();
        assert_eq!(names, ["b3", "c", "a", "b2", "b1"]);
    }

    #[test]
    fn what_nobody_froze_has_its_own_reason() {
        let evidence = |kind: &str, message: &str| Evidence {
            occurrence: "r-1".to_owned(),
            exception: Exception { kind: kind.to_owned(), message: message.to_owned(), ..Exception::default() },
            ..Evidence::default()
        };
        let crashed = evidence("Crashed", "worker 'gw0' crashed while running 't.py::t'");
        assert_eq!(unfrozen(NOT_FROZEN), "This failure was not frozen, so no code can run in it");
        assert_eq!(why_unfrozen(Some(&crashed)), Some("the process that ran it has ended"));
        let parent = evidence("Failed", "contains 2 failed subtests");
        assert_eq!(why_unfrozen(Some(&parent)), Some("the failures are in its subtests"));
        for other in [None, Some(&evidence("ValueError", "subtest"))] {
            assert_eq!(why_unfrozen(other), None);
        }
    }
}
