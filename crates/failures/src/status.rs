//! What a failure's status is, judged from what happened: occurrences, passing runs, analyses, and what people said. Pure, and told
//! again from the history whenever something comes in, so that records which come late count at the time they are of.
//!
//! A pass is compared with the failing runs: it shows something only if it could have failed. What passes on another Python, by itself
//! after failing in a row of tests, or beside a changed note, shows nothing, and the verdict says so in a note.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    environment::{self, Packages},
    record::{Outcome, Status},
};
use pylair_text::plain::counted;

/// Passing runs in a row, on other code, after which a flaky test counts as resolved.
pub const FLAKY_PASSES: usize = 10;
/// Packages that a sentence about a changed environment names.
const MAX_PACKAGES: usize = 5;

/// Something that happened to a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub at: Timestamp,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// This failure occurred.
    Failed { run: String, code: Tested },
    /// Its test passed.
    Passed { run: String, code: Tested },
    /// An analysis was recorded under a rule.
    Analysed { author: String, rule: Option<u8> },
    /// Somebody said what it is.
    Marked { status: Status, author: String, verified: bool },
}

/// What a test ran on and with, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tested {
    /// The hash of the code.
    pub code: Option<String>,
    /// The hash of files that are not code, such as notes: they may matter to a test, and mostly do not.
    pub other: Option<String>,
    /// When its commit was made, in microseconds since 1970.
    pub committed: Option<i64>,
    /// The interpreter that it ran on, as `CPython 3.13 on linux`.
    pub python: Option<String>,
    /// The packages that were installed there.
    pub packages: Option<Arc<Packages>>,
    /// Tests that had run before it in the same run.
    pub before: Option<u32>,
}

impl Tested {
    /// Whether both ran the same code on the same interpreter, if that is known.
    fn is_same_code(&self, other: &Self) -> bool {
        self.code.is_some() && self.code == other.code && self.python == other.python
    }

    /// What was installed otherwise in another run, where both are known and differ.
    fn environment_changes(&self, to: &Self) -> Option<String> {
        let both = self.packages.as_ref().zip(to.packages.as_ref());
        both.filter(|_| self.is_elsewhere(to)).map(|(from, to)| changes(from, to))
    }

    /// Whether other packages were installed, where both are known.
    fn is_elsewhere(&self, other: &Self) -> bool {
        matches!((&self.packages, &other.packages), (Some(own), Some(others)) if !is_same(own, others))
    }

    /// Whether this pass, made before, shows that something has changed since which made the test fail: it could have failed too.
    fn was_good_before(&self, failed: &Self) -> bool {
        let is_other_python = self.python.as_ref().zip(failed.python.as_ref()).is_some_and(|(own, other)| own != other);
        let is_unchanged = self.is_same_code(failed) && !self.is_elsewhere(failed);
        let is_alone = self.before == Some(0) && failed.before > Some(0);
        !is_other_python && !is_unchanged && !is_alone
    }

    /// Whether this pass and a failing of the same code differ in nothing that is known: then the test is flaky.
    fn contradicts(&self, failed: &Self) -> bool {
        self.is_same_code(failed)
            && self.other == failed.other
            && match (&self.packages, &failed.packages) {
                (Some(own), Some(others)) => is_same(own, others),
                (None, None) => true,
                _ => false,
            }
            && match (self.before, failed.before) {
                // Fewer tests before it are fewer that could disturb it; and what fails by itself may need some.
                (Some(passed), Some(failed)) => passed >= failed && (passed == 0) == (failed == 0),
                _ => true,
            }
    }
}

/// What became of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub status: Status,
    /// Whether a passing run shows that it is resolved; only a person can say it without.
    pub verified: bool,
    /// The newest run since it last failed whose passing shows something.
    pub passed_in: Option<String>,
    /// The last run before it began to fail whose passing shows something, and the first one of the newest failures in a row.
    pub began: (Option<String>, Option<String>),
    pub note: Option<Note>,
    pub changes: Vec<Change>,
}

/// A passing run that shows nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub run: String,
    pub text: String,
}

/// A change of the status. From `Resolved` to `Resolved`: a passing run came to show what somebody had said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub at: Timestamp,
    pub from: Option<Status>,
    pub to: Status,
    pub reason: String,
    /// The run that shows it.
    pub run: Option<String>,
}

/// Tells the story. `before` is the status before the first event, for a failure whose beginning is not among them.
pub fn judge(before: Option<(Status, bool)>, events: &[Event]) -> Verdict {
    let mut story = Story {
        status: before.map(|(status, _)| status),
        verified: before.is_some_and(|(_, verified)| verified),
        changes: Vec::new(),
        failed: Vec::new(),
        passed: Vec::new(),
        good_before: Vec::new(),
        environments: Vec::new(),
        apart: Vec::new(),
        open_on: Vec::new(),
        enough_before: 0,
        newest_bad: None,
        passes: 0,
        good: Vec::new(),
        began: (None, None),
        is_in_row: false,
        passed_in: None,
        note: None,
    };
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.at);
    for event in events {
        story.tell(event);
    }
    Verdict {
        status: story.status.unwrap_or(Status::New),
        verified: story.verified,
        passed_in: story.passed_in,
        began: (story.began.0.map(ToOwned::to_owned), story.began.1.map(ToOwned::to_owned)),
        note: story.note,
        changes: story.changes,
    }
}

struct Story<'a> {
    status: Option<Status>,
    verified: bool,
    changes: Vec<Change>,
    failed: Vec<&'a Tested>,
    passed: Vec<&'a Tested>,
    /// Code it passed on before it ever failed.
    good_before: Vec<&'a str>,
    /// In which environments it passed (true) and failed, in order.
    environments: Vec<(bool, &'a Arc<Packages>)>,
    /// Environments in which it passes while it goes on failing in another one.
    apart: Vec<&'a Arc<Packages>>,
    /// Interpreters that it failed on and has not passed on since.
    open_on: Vec<&'a str>,
    /// Tests that may run before it without making it fail, as passes on failing code show.
    enough_before: u32,
    /// The newest commit that it failed on.
    newest_bad: Option<i64>,
    /// In a row.
    passes: usize,
    /// Passes since the last failures in a row, which show that these had ended.
    good: Vec<(&'a str, &'a Tested)>,
    began: (Option<&'a str>, Option<&'a str>),
    /// Whether the failures in a row go on.
    is_in_row: bool,
    passed_in: Option<String>,
    note: Option<Note>,
}

impl<'a> Story<'a> {
    fn tell(&mut self, event: &'a Event) {
        match &event.what {
            What::Failed { run, code } => self.failed(event.at, run, code),
            What::Passed { run, code } => self.passed(event.at, run, code),
            What::Analysed { author, rule } => {
                if matches!(self.status, None | Some(Status::New | Status::Reopened)) {
                    let rule = rule.map_or_else(String::new, |rule| format!(" under rule {rule}"));
                    self.change(event.at, Status::InProgress, format!("{author} recorded an analysis{rule}"), None);
                }
            }
            What::Marked { status, author, verified } => {
                let how = if *status == Status::Resolved && !verified { ", without a passing run" } else { "" };
                let run = self.passed_in.clone().filter(|_| *status == Status::Resolved && *verified);
                self.change(event.at, *status, format!("{author} said so{how}"), run);
                self.verified = *verified;
                self.passes = 0;
                self.note = None;
                self.open_on.clear();
            }
        }
    }

    fn failed(&mut self, at: Timestamp, run: &'a str, tested: &'a Tested) {
        if !self.is_in_row {
            let good = self.good.iter().rev().find(|(_, passed)| passed.was_good_before(tested));
            self.began = (good.map(|(run, _)| *run), Some(run));
            self.is_in_row = true;
            self.good.clear();
        }
        self.newest_bad = self.newest_bad.max(tested.committed);
        self.passes = 0;
        (self.passed_in, self.note) = (None, None);
        let is_flaky = self.passed.iter().any(|passed| passed.contradicts(tested));
        let same: Vec<&Tested> = self.passed.iter().copied().filter(|passed| passed.is_same_code(tested)).collect();
        for passed in &same {
            self.note_company(passed, tested);
        }
        if let Some(packages) = &tested.packages {
            self.note_environment(packages);
        }
        if let Some(python) = tested.python.as_deref().filter(|python| !self.open_on.contains(python)) {
            self.open_on.push(python);
        }
        // What may have made the same code fail.
        let why = same.last().map_or_else(String::new, |passed| match passed.environment_changes(tested) {
            Some(changes) => format!("; environment changed: {changes}"),
            None if passed.before > Some(0) && tested.before == Some(0) => {
                "; it failed by itself, and had passed after other tests".to_owned()
            }
            None => String::new(),
        });
        if self.status.is_none() {
            self.change(at, Status::New, format!("first seen in run {run}{why}"), None);
        }
        match self.status {
            Some(Status::Flaky) => {}
            _ if is_flaky => {
                let reason = format!("failed in run {run} on code it has passed on");
                self.change(at, Status::Flaky, reason, Some(run.to_owned()));
            }
            Some(Status::Resolved) => {
                let reason = format!("failed again in run {run}{why}");
                self.change(at, Status::Reopened, reason, Some(run.to_owned()));
            }
            _ => {}
        }
        self.failed.push(tested);
    }

    /// Notes that it failed in an environment: where it passed since it last failed there is another, that did not take its place.
    fn note_environment(&mut self, bad: &'a Arc<Packages>) {
        if let Some(last) = self.environments.iter().rposition(|(passed, seen)| !passed && is_same(seen, bad)) {
            let since = self.environments[last..].iter().filter(|(passed, seen)| *passed && !is_same(seen, bad));
            self.apart.extend(since.map(|(_, seen)| *seen));
        }
        self.environments.push((false, bad));
    }

    /// Notes how many tests may run before it although the code is bad.
    fn note_company(&mut self, passed: &Tested, failed: &Tested) {
        if let (Some(before), Some(more)) = (passed.before, failed.before)
            && before < more
        {
            self.enough_before = self.enough_before.max(before);
        }
    }

    fn passed(&mut self, at: Timestamp, run: &'a str, tested: &'a Tested) {
        self.passed.push(tested);
        // Before it ever failed, a pass says only which code was good.
        if self.status.is_none() {
            self.good_before.extend(tested.code.as_deref());
            self.good.push((run, tested));
            return;
        }
        let is_flaky = self.failed.iter().any(|failed| tested.contradicts(failed));
        let shown = if is_flaky { Ok(()) } else { self.shows(tested) };
        let same: Vec<&Tested> = self.failed.iter().copied().filter(|failed| tested.is_same_code(failed)).collect();
        for failed in &same {
            self.note_company(tested, failed);
        }
        self.environments.extend(tested.packages.as_ref().map(|packages| (true, packages)));
        if let Err(why) = shown {
            self.note = Some(Note { run: run.to_owned(), text: format!("it passed in run {run}, {why}") });
            return;
        }
        self.passes += 1;
        // Somebody looks at how it was, as a bisection does.
        let is_older = tested.code.as_deref().is_some_and(|code| self.good_before.contains(&code))
            || tested.committed.zip(self.newest_bad).is_some_and(|(passed, failed)| passed < failed);
        if is_older && same.is_empty() {
            return;
        }
        let python = tested.python.as_deref();
        self.open_on.retain(|open| python.is_some_and(|python| python != *open));
        if let Some(open) = self.open_on.first().filter(|_| !is_flaky) {
            let python = python.unwrap_or_default();
            let text = format!("it passed in run {run} on {python}; it failed on {open} too, and has not passed there");
            self.note = Some(Note { run: run.to_owned(), text });
            return;
        }
        self.passed_in = Some(run.to_owned());
        if !is_flaky {
            self.good.push((run, tested));
            self.is_in_row = false;
        }
        self.note = None;
        let environment = same.last().and_then(|failed| failed.environment_changes(tested));
        let is_elsewhere = same.iter().all(|failed| failed.is_elsewhere(tested));
        match self.status {
            Some(Status::Flaky) if self.passes >= FLAKY_PASSES && tested.code.is_some() && is_elsewhere => {
                let reason = format!("passed in {} runs in a row, last in run {run}", self.passes);
                self.resolve(at, reason, run);
            }
            Some(Status::Flaky) => {}
            _ if is_flaky => {
                let reason = format!("passed in run {run} on code it has failed on");
                self.change(at, Status::Flaky, reason, Some(run.to_owned()));
            }
            Some(Status::Resolved) if !self.verified => {
                let reason = format!("passed in run {run}, which shows it");
                let (from, to) = (self.status, Status::Resolved);
                self.changes.push(Change { at, from, to, reason, run: Some(run.to_owned()) });
                self.verified = true;
            }
            Some(Status::Resolved) => {}
            // Without a hash nobody knows whether the code changed.
            _ if tested.code.is_some() && self.failed.iter().any(|failed| failed.code.is_some()) => {
                let why = environment.map_or_else(
                    || "on changed code".to_owned(),
                    |changes| format!("on the same code; environment changed: {changes}"),
                );
                self.resolve(at, format!("passed in run {run} {why}"), run);
            }
            _ => {}
        }
    }

    /// Why a pass shows nothing, if it does not.
    fn shows(&self, tested: &Tested) -> Result<(), String> {
        if self.failed.is_empty() {
            return Ok(());
        }
        if let Some(python) = &tested.python
            && self.failed.iter().all(|failed| failed.python.as_ref().is_some_and(|with| with != python))
        {
            let with = self.failed.last().and_then(|failed| failed.python.as_deref()).unwrap_or_default();
            return Err(format!("on {python}, which shows nothing: it failed on {with}"));
        }
        let same = self.failed.iter().rev().find(|failed| tested.is_same_code(failed));
        let least = self.failed.iter().map(|failed| failed.before).min().flatten();
        let is_too_few = |before: u32, least: u32| {
            let is_less = same.is_some_and(|failed| {
                !tested.is_elsewhere(failed) && failed.before.is_some_and(|others| before < others)
            });
            least > 0 && (before <= self.enough_before || is_less)
        };
        if let (Some(before), Some(least)) = (tested.before, least)
            && is_too_few(before, least)
        {
            let alone = if before == 0 { "by itself".to_owned() } else { format!("after {}", other_tests(before)) };
            return Err(format!(
                "{alone}, which shows nothing: it failed after {}; run it together with these",
                other_tests(least)
            ));
        }
        let bad = self.failed.iter().rev().find_map(|failed| failed.packages.as_ref());
        if let (Some(own), Some(bad)) = (&tested.packages, bad)
            && self.apart.iter().any(|apart| is_same(apart, own))
            && !self.environments.iter().any(|(passed, seen)| !passed && is_same(seen, own))
        {
            let changes = changes(bad, own);
            return Err(format!(
                "where it always passes, which shows nothing: it fails in another environment ({changes})"
            ));
        }
        match same {
            Some(failed) if tested.is_elsewhere(failed) => Ok(()),
            Some(failed) if tested.packages.is_some() != failed.packages.is_some() => {
                Err("on the same code; whether its packages are the same is not known".to_owned())
            }
            Some(failed) if tested.other != failed.other => {
                Err("and nothing changed but files that are not code, so that this shows nothing".to_owned())
            }
            // It failed by itself, and other tests do something that it needs.
            Some(_) => Err("after other tests, on code on which it fails by itself".to_owned()),
            None => Ok(()),
        }
    }

    fn resolve(&mut self, at: Timestamp, reason: String, run: &str) {
        self.change(at, Status::Resolved, reason, Some(run.to_owned()));
        self.verified = true;
    }

    fn change(&mut self, at: Timestamp, to: Status, reason: String, run: Option<String>) {
        if self.status == Some(to) {
            return;
        }
        self.changes.push(Change { at, from: self.status, to, reason, run });
        self.status = Some(to);
        self.verified = false;
    }
}

/// Equal packages are mostly one object.
fn is_same(one: &Arc<Packages>, other: &Arc<Packages>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// What differs, in words: `simplejson 3.19.1 → 3.19.3`.
pub(super) fn changes(from: &Packages, to: &Packages) -> String {
    let changes = environment::changes(from, to);
    let named: Vec<String> = changes.iter().take(MAX_PACKAGES).map(ToString::to_string).collect();
    let more = changes.len() - named.len();
    format!("{}{}", named.join(", "), if more > 0 { format!(" and {more} more") } else { String::new() })
}

fn other_tests(count: u32) -> String {
    counted(count, "other test")
}

/// What one run says of a test, from each of its reports: a test that failed and was run again until it passed did both, and a test
/// whose subtests or teardown failed did not pass.
pub fn passed_in_run(outcomes: &[Outcome]) -> bool {
    outcomes.contains(&Outcome::Passed)
        && !outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed | Outcome::Error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000 + second).unwrap()
    }

    /// `F1` failed on code 1, `P2` passed on code 2, `P2@5` on a commit made at 5, `P2/8` with Python 8, `P2+3` after 3 other tests, `P2=4` with version 4 of a package, `P2~n` beside
    /// other files n, `F` and `P` on unknown code, `A` analysed, `R` and `U` said to be resolved, verified and not.
    fn tell(story: &str) -> Verdict {
        let events: Vec<Event> = story
            .split_whitespace()
            .zip(0..)
            .map(|(word, second)| {
                let run = format!("r{second}");
                let part = |mark: char| {
                    let rest = word.split_once(mark)?.1;
                    Some(rest.split(['@', '/', '+', '=', '~']).next().unwrap_or(rest).to_owned())
                };
                let code = Tested {
                    code: Some(part(word.chars().next().unwrap()).unwrap()).filter(|code| !code.is_empty()),
                    other: part('~'),
                    committed: part('@').and_then(|at| at.parse().ok()),
                    python: part('/'),
                    packages: part('=').map(|version| packages(&[("simplejson", &version), ("six", "1.16")])),
                    before: part('+').and_then(|before| before.parse().ok()),
                };
                let author = || "ann".to_owned();
                let what = match &word[..1] {
                    "F" => What::Failed { run, code },
                    "P" => What::Passed { run, code },
                    "A" => What::Analysed { author: author(), rule: Some(3) },
                    "R" => What::Marked { status: Status::Resolved, author: author(), verified: true },
                    _ => What::Marked { status: Status::Resolved, author: author(), verified: false },
                };
                Event { at: at(second), what }
            })
            .collect();
        judge(None, &events)
    }

    fn packages(listed: &[(&str, &str)]) -> Arc<Packages> {
        Arc::new(listed.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect())
    }

    /// The newest note, or the reason of the newest change.
    fn said(story: &str) -> String {
        let verdict = tell(story);
        verdict.note.map_or_else(|| verdict.changes.last().unwrap().reason.clone(), |note| note.text)
    }

    fn check(story: &str, status: Status, changes: usize) {
        let verdict = tell(story);
        assert_eq!((verdict.status, verdict.changes.len()), (status, changes), "{story}: {:#?}", verdict.changes);
    }

    #[test]
    fn status_moves_with_what_happens() {
        check("F1", Status::New, 1);
        check("F1 F1 F2", Status::New, 1);
        check("F1 A", Status::InProgress, 2);
        check("F1 A F2 A", Status::InProgress, 2);
        check("F1 P2", Status::Resolved, 2);
        check("F1 A P2", Status::Resolved, 3);
        check("P0 F1 P2", Status::Resolved, 2);
        check("F1 P2 F3", Status::Reopened, 3);
        check("F1 P2 F3 A", Status::InProgress, 4);
        check("F1 P2 F3 P4", Status::Resolved, 4);
    }

    #[test]
    fn what_passes_on_older_code_is_no_fix() {
        check("P1 F2 P1", Status::New, 1);
        check("P1 F2 P1 P3", Status::Resolved, 2);
        check("F2@20 P1@10", Status::New, 1);
        check("F2@20 F3@15 P4@17", Status::New, 1);
        check("F2@20 P1@10 P3@30", Status::Resolved, 2);
        check("F2@20 P3@20", Status::Resolved, 2);
        check("F2@20 P1@10 F2@20", Status::New, 1);
        check("P1 F1 P1", Status::Flaky, 2);
    }

    #[test]
    fn what_passes_on_another_python_says_nothing() {
        check("F1/8 P1/12", Status::New, 1);
        check("P1/12 F1/8 P1/12", Status::New, 1);
        check("F1/8 P2/12", Status::New, 1);
        check("F1/8 P2/12 P2/8", Status::Resolved, 2);
        check("F1/8 F1/12 P2/12", Status::New, 1);
        assert_eq!(said("F1/8 F1/12 P2/12"), "it passed in run r2 on 12; it failed on 8 too, and has not passed there");
        check("F1/8 F1/12 P2/12 P2/8", Status::Resolved, 2);
        check("F1/8 F1/12 R", Status::Resolved, 2);
        assert_eq!(said("F1/8 P2/12"), "it passed in run r1, on 12, which shows nothing: it failed on 8");
        assert_eq!(tell("F1/8 P2/12").passed_in, None, "nobody can call on it either");
        check("F1/8 P1/8", Status::Flaky, 2);
        check("F1 P2/12", Status::Resolved, 2);
        check("F1/8 P2", Status::Resolved, 2);
    }

    #[test]
    fn the_same_code_passing_and_failing_is_flaky() {
        check("F1 P1", Status::Flaky, 2);
        check("P1 F1", Status::Flaky, 2);
        check("P1 F1 P1", Status::Flaky, 2);
        check("F1 P2 F2", Status::Flaky, 3);
        check("F1 P1 P2 F3", Status::Flaky, 2);
        check(&format!("F1 P1 {}", "P2 ".repeat(FLAKY_PASSES - 1)), Status::Resolved, 3);
        check(&format!("F1 P1 {} F2 P2", "P2 ".repeat(FLAKY_PASSES - 2)), Status::Flaky, 2);
    }

    #[test]
    fn other_packages_are_another_environment() {
        check("F1=3.19.1 P1=3.19.3", Status::Resolved, 2);
        let bump = "environment changed: simplejson 3.19.1 → 3.19.3";
        assert_eq!(said("F1=3.19.1 P1=3.19.3"), format!("passed in run r1 on the same code; {bump}"));
        check("P1=3.19.1 F1=3.19.3", Status::New, 1);
        assert_eq!(said("P1=3.19.1 F1=3.19.3"), format!("first seen in run r1; {bump}"));
        check("F1=3 P1=4 F1=4", Status::Flaky, 3);
        check("F1=3 P2=4", Status::Resolved, 2);
        assert_eq!(said("F1=3 P2=4"), "passed in run r1 on changed code");
        // Back to what was good is a way to mend it; two that go on beside each other are not.
        check("P1=3 F1=4 P1=3", Status::Resolved, 2);
        check("F1=3 P1=4 F1=3", Status::Reopened, 3);
        assert!(said("F1=3 P1=4 F1=3").ends_with("simplejson 4 → 3"), "{}", said("F1=3 P1=4 F1=3"));
        check("F1=3 P1=4 F1=3 P1=4 P2=4", Status::Reopened, 3);
        assert!(said("F1=3 P1=4 F1=3 P2=4").contains("another environment (simplejson 3 → 4)"));
        check("F1=3 P1=4 F1=3 P2=4 P2=3", Status::Resolved, 4);
        check("F1=3 P1=4 F1=3 F2=4 P3=4", Status::Resolved, 4);
        // What was recorded before packages were compared.
        check("F1 P1=4", Status::New, 1);
        let many: Vec<String> = (0..9).map(|number| format!("p{number}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "1")).collect();
        assert!(super::changes(&packages(&[]), &packages(&many)).ends_with("p4 1 installed and 4 more"));
    }

    #[test]
    fn a_note_beside_the_code_shows_nothing() {
        check("F1~a P1~b", Status::New, 1);
        assert!(said("F1~a P1~b").contains("nothing changed but files that are not code"), "{}", said("F1~a P1~b"));
        check("P1~a F1~b", Status::New, 1);
        check("F1~a P1~b P1~a", Status::Flaky, 2);
        check("F1~a P2~b", Status::Resolved, 2);
    }

    #[test]
    fn a_pass_alone_of_what_failed_in_order_shows_nothing() {
        check("F1+12 P1+0", Status::New, 1);
        let note = "it passed in run r1, by itself, which shows nothing: it failed after 12 other tests; run it together with these";
        assert_eq!(said("F1+12 P1+0"), note);
        check("F1+12 P2+0", Status::New, 1);
        assert_eq!(tell("F1+12 P2+0").passed_in, None);
        check("F1+12 P2+0 P2+11", Status::Resolved, 2);
        check("F1+12 P2+3", Status::Resolved, 2);
        // It passes after three tests on bad code too, so that it takes more to show something.
        check("F1+12 P1+3 P2+3", Status::New, 1);
        check("F1+12 P1+3 P2+12", Status::Resolved, 2);
        check("P1+3 F1+12 P2+3", Status::New, 1);
        check("F1+12 P1+12", Status::Flaky, 2);
        // What failed by itself is shown by a pass alone.
        check("F1+12 F1+0 P2+0", Status::Resolved, 2);
        check("F1+0 P2+0", Status::Resolved, 2);
        check("F1+0 P2+12", Status::Resolved, 2);
        // It needs the others.
        check("F1+0 P1+12", Status::New, 1);
        check("P1+12 F1+0", Status::New, 1);
        check("F1+0 P1+0", Status::Flaky, 2);
        check("F1+12 P2", Status::Resolved, 2);
        check("F1=3+12 P1=4+0", Status::New, 1);
    }

    #[test]
    fn the_run_that_shows_it_is_known() {
        let shown = |story: &str| tell(story).changes.last().unwrap().run.clone();
        assert_eq!(shown("F1 P2").as_deref(), Some("r1"));
        assert_eq!(shown("F1 P2 P3 P4").as_deref(), Some("r1"));
        assert_eq!(shown("F1 U P2").as_deref(), Some("r2"));
        assert_eq!(shown("F1 P1 R").as_deref(), Some("r1"));
        assert_eq!(shown("F1 U"), None);
        assert_eq!(tell("F1 P2 F3 P4").passed_in.as_deref(), Some("r3"));
        assert_eq!(tell("F1 P2 F3").passed_in, None);
    }

    #[test]
    fn it_began_between_a_pass_that_shows_something_and_the_first_failure_in_a_row() {
        let check = |story: &str, good: Option<&str>, bad: &str| {
            let (last_good, first_bad) = tell(story).began;
            assert_eq!((last_good.as_deref(), first_bad.as_deref()), (good, Some(bad)), "{story}");
        };
        check("P1 F2", Some("r0"), "r1");
        check("P1 P2 F3 F4", Some("r1"), "r2");
        check("P1 F2 P3 P4 F5 F6", Some("r3"), "r4");
        check("P1 F2 P3", Some("r0"), "r1");
        // What passes beside a changed note, on another Python or alone shows nothing: it has failed all along.
        check("F1~a P1~b F1~b", None, "r0");
        check("F1/8 P1/12 F1/8", None, "r0");
        check("P1/12 F2/8", None, "r1");
        check("P1/8 P1/12 F2/8", Some("r0"), "r2");
        check("F1+12 P1+0 F1+12", None, "r0");
        check("P1+0 F2+12", None, "r1");
        // Nor does a flaky test begin to fail, nor one that is looked at as it was.
        check("P1 F1", None, "r1");
        check("F1 P1 F1", None, "r0");
        check("P1 F2 P1 F2", Some("r0"), "r1");
        check("P1=3 F1=4", Some("r0"), "r1");
    }

    #[test]
    fn without_a_hash_nothing_is_concluded() {
        check("F P", Status::New, 1);
        check("F1 P", Status::New, 1);
        check("F P2", Status::New, 1);
    }

    #[test]
    fn what_people_say_counts_until_it_fails_again() {
        check("F1 U", Status::Resolved, 2);
        assert!(!tell("F1 U").verified);
        assert!(tell("F1 U P2").verified, "a passing run verifies it afterwards");
        assert!(tell("F1 R").verified);
        check("F1 U F1", Status::Reopened, 3);
        check("F1 P1 U", Status::Resolved, 3);
        check("F1 P1 U F2", Status::Reopened, 4);
    }

    #[test]
    fn late_records_count_at_their_time() {
        let on = |code: &str| Tested { code: Some(code.to_owned()), ..Tested::default() };
        let mut events = vec![
            Event { at: at(9), what: What::Failed { run: "late".into(), code: on("3") } },
            Event { at: at(1), what: What::Failed { run: "early".into(), code: on("1") } },
            Event { at: at(5), what: What::Passed { run: "between".into(), code: on("2") } },
        ];
        let told = judge(None, &events);
        assert_eq!(told.status, Status::Reopened);
        events.reverse();
        assert_eq!(judge(None, &events), told);
        assert_eq!(judge(Some((Status::Resolved, true)), &events[1..2]).status, Status::Reopened);
    }

    #[test]
    fn a_run_passes_a_test_only_if_nothing_of_it_failed() {
        assert!(passed_in_run(&[Outcome::Passed]));
        assert!(passed_in_run(&[Outcome::Rerun, Outcome::Passed]));
        assert!(!passed_in_run(&[Outcome::Passed, Outcome::Error]));
        assert!(!passed_in_run(&[Outcome::Skipped]));
    }
}
