//! What a failure's status is, judged from what happened: occurrences, passing runs, analyses, and what people said. Pure, and told
//! again from the history whenever something comes in, so that records which come late count at the time they are of.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    environment::Packages,
    record::{Outcome, Status},
};

/// So many runs in a row a flaky test passes on other code before it is believed.
pub const FLAKY_PASSES: usize = 10;

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

/// The code that a run tested, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tested {
    pub code: Option<String>,
    /// When its commit was made, in microseconds since 1970.
    pub committed: Option<i64>,
    /// The version of Python that it ran on, as `3.13`.
    pub python: Option<String>,
    /// The packages that were installed there.
    pub packages: Option<Arc<Packages>>,
}

impl Tested {
    /// What has to be the same for a test to pass and fail for no reason, if it is known.
    fn same(&self) -> Option<(&str, Option<&str>)> {
        self.code.as_deref().map(|code| (code, self.python.as_deref()))
    }
}

/// What became of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub status: Status,
    /// Whether a passing run shows that it is resolved; only a person can say it without.
    pub verified: bool,
    pub changes: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub at: Timestamp,
    pub from: Option<Status>,
    pub to: Status,
    pub reason: String,
}

/// Tells the story. `before` is the status before the first event, for a failure whose beginning is not among them.
pub fn judge(before: Option<(Status, bool)>, events: &[Event]) -> Verdict {
    let mut story = Story {
        status: before.map(|(status, _)| status),
        verified: before.is_some_and(|(_, verified)| verified),
        changes: Vec::new(),
        failed_on: Vec::new(),
        passed_on: Vec::new(),
        failed_with: Vec::new(),
        good_before: Vec::new(),
        newest_bad: None,
        passes: 0,
    };
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.at);
    for event in events {
        story.tell(event);
    }
    Verdict { status: story.status.unwrap_or(Status::New), verified: story.verified, changes: story.changes }
}

struct Story<'a> {
    status: Option<Status>,
    verified: bool,
    changes: Vec<Change>,
    /// Code and Python.
    failed_on: Vec<(&'a str, Option<&'a str>)>,
    passed_on: Vec<(&'a str, Option<&'a str>)>,
    /// The versions of Python that it failed on; None where nobody said.
    failed_with: Vec<Option<&'a str>>,
    /// Code it passed on before it ever failed.
    good_before: Vec<&'a str>,
    /// The newest commit that it failed on.
    newest_bad: Option<i64>,
    /// In a row.
    passes: usize,
}

impl<'a> Story<'a> {
    fn tell(&mut self, event: &'a Event) {
        match &event.what {
            What::Failed { run, code } => self.failed(event.at, run, code),
            What::Passed { run, code } => self.passed(event.at, run, code),
            What::Analysed { author, rule } => {
                if matches!(self.status, None | Some(Status::New | Status::Reopened)) {
                    let rule = rule.map_or_else(String::new, |rule| format!(" under rule {rule}"));
                    self.change(event.at, Status::InProgress, format!("{author} recorded an analysis{rule}"));
                }
            }
            What::Marked { status, author, verified } => {
                let how = if *status == Status::Resolved && !verified { ", without a passing run" } else { "" };
                self.change(event.at, *status, format!("{author} said so{how}"));
                self.verified = *verified;
                self.passes = 0;
            }
        }
    }

    fn failed(&mut self, at: Timestamp, run: &str, tested: &'a Tested) {
        let same = tested.same();
        self.newest_bad = self.newest_bad.max(tested.committed);
        self.passes = 0;
        let passed_before = same.is_some_and(|same| self.passed_on.contains(&same));
        if self.status.is_none() {
            self.change(at, Status::New, format!("first seen in run {run}"));
        }
        match self.status {
            Some(Status::Flaky) => {}
            _ if passed_before => {
                self.change(at, Status::Flaky, format!("failed in run {run} on code it has passed on"));
            }
            Some(Status::Resolved) => self.change(at, Status::Reopened, format!("failed again in run {run}")),
            _ => {}
        }
        self.failed_on.extend(same);
        self.failed_with.push(tested.python.as_deref());
    }

    fn passed(&mut self, at: Timestamp, run: &str, tested: &'a Tested) {
        let (code, same) = (tested.code.as_deref(), tested.same());
        self.passed_on.extend(same);
        // What passes on another Python says nothing about this one.
        let python = tested.python.as_deref();
        if python.is_some()
            && !self.failed_with.is_empty()
            && !self.failed_with.iter().any(|with| with.is_none_or(|with| Some(with) == python))
        {
            return;
        }
        self.passes += 1;
        let failed_before = same.is_some_and(|same| self.failed_on.contains(&same));
        // Before it ever failed, a pass says only which code was good.
        if self.status.is_none() {
            self.good_before.extend(code);
            return;
        }
        // Somebody looks at how it was, as a bisection does.
        let is_older = code.is_some_and(|code| self.good_before.contains(&code))
            || tested.committed.zip(self.newest_bad).is_some_and(|(passed, failed)| passed < failed);
        if is_older && !failed_before {
            return;
        }
        match self.status {
            Some(Status::Flaky) if self.passes >= FLAKY_PASSES && code.is_some() && !failed_before => {
                self.change(
                    at,
                    Status::Resolved,
                    format!("passed in {} runs in a row, last in run {run}", self.passes),
                );
                self.verified = true;
            }
            Some(Status::Flaky) => {}
            _ if failed_before => {
                self.change(at, Status::Flaky, format!("passed in run {run} on code it has failed on"));
            }
            Some(Status::Resolved) => self.verified = true,
            // Without a hash nobody knows whether the code changed.
            _ if code.is_some() && !self.failed_on.is_empty() => {
                self.change(at, Status::Resolved, format!("passed in run {run} on changed code"));
                self.verified = true;
            }
            _ => {}
        }
    }

    fn change(&mut self, at: Timestamp, to: Status, reason: String) {
        if self.status == Some(to) {
            return;
        }
        self.changes.push(Change { at, from: self.status, to, reason });
        self.status = Some(to);
        self.verified = false;
    }
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

    /// `F1` failed on code 1, `P2` passed on code 2, `P2@5` on a commit made at 5, `P2/8` with Python 8, `F` and `P` on unknown code, `A` analysed, `R` and `U` said to be resolved,
    /// verified and not.
    fn tell(story: &str) -> Verdict {
        let events: Vec<Event> = story
            .split_whitespace()
            .zip(0..)
            .map(|(word, second)| {
                let run = format!("r{second}");
                let (word, python) = word.split_once('/').unwrap_or((word, ""));
                let (code, committed) = word[1..].split_once('@').unwrap_or((&word[1..], ""));
                let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
                let code = Tested {
                    code: known(code),
                    committed: committed.parse().ok(),
                    python: known(python),
                    ..Tested::default()
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
        check("F1/8 F1/12 P2/12", Status::Resolved, 2);
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
