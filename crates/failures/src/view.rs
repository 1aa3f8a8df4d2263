//! What is told of runs and failures: the answers of the store's queries. Analysis and the doors read these.

use std::collections::{BTreeMap, HashMap};

use jiff::{Timestamp, civil::Date};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    environment::Packages,
    fingerprint::SourceLocation,
    project::Chosen,
    record::{CodeHash, Evidence, Outcome, Phase, Project, Source, Status},
};

/// A failure in a list, and what analysis counts: everything but what was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    pub id: String,
    pub status: Status,
    /// Of a resolved one, whether a passing run shows it.
    pub verified: bool,
    pub group: String,
    pub project: String,
    /// The node id.
    pub test: String,
    /// Of the test.
    pub test_file: Option<String>,
    pub test_line: Option<u32>,
    pub phase: Phase,
    /// The exception's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its first line.
    pub message: String,
    /// Type and message with placeholders.
    pub pattern: String,
    pub fingerprint: String,
    /// The innermost frame of the project's own code, when it was last seen.
    pub place: Option<SourceLocation>,
    #[schemars(with = "String")]
    pub first_seen: Timestamp,
    #[schemars(with = "String")]
    pub last_seen: Timestamp,
    /// The run it was last seen in.
    pub last_run: String,
    pub occurrences: u64,
    /// How many analyses were recorded.
    pub investigations: u64,
    /// About the newest passing run, if it shows nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One failure with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    #[serde(flatten)]
    pub summary: Summary,
    pub why_grouped: String,
    /// Newest first. Older ones are without evidence.
    pub seen: Vec<Occurrence>,
    /// Of the status, oldest first.
    pub changes: Vec<StatusChange>,
    /// The run that shows that it is resolved, if it is and one does.
    pub proof: Option<Proof>,
    /// Oldest first.
    pub investigations_made: Vec<Investigation>,
    /// What became of the test in its newest runs, newest first.
    pub history: Vec<TestOutcome>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// The reporter's own id of it; a frozen copy is found by it.
    pub occurrence: String,
    pub run: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtest: Option<String>,
    pub code: Option<String>,
    pub commit: Option<String>,
    /// Parameters, markers and times of the test.
    pub test: TestDetail,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestDetail {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub markers: Vec<String>,
    #[serde(default)]
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusChange {
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub from: Option<Status>,
    pub to: Status,
    pub reason: String,
    /// The run that shows it.
    pub run: Option<String>,
}

/// A passing run that shows that a failure is resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Proof {
    pub run: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Why it shows it.
    pub reason: String,
    pub commit: Option<String>,
    pub python: Option<String>,
}

/// An analysis that somebody recorded, under one of the nine rules if there is a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Investigation {
    pub rule: Option<u8>,
    pub analysis: String,
    pub author: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// What became of a test in a run. A test that was run again is here once for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TestOutcome {
    pub run: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub outcome: Outcome,
    pub phase: Phase,
    pub attempt: u32,
    pub seconds: f64,
    pub code: Option<String>,
    pub commit: Option<String>,
    pub dirty: bool,
    /// The version it ran on.
    pub python: Option<String>,
    /// Names the packages that were installed: equal for equal ones.
    pub environment: Option<String>,
    /// Tests that had run before it in the run.
    pub ran_before: Option<u32>,
    /// The failure's id, when it failed.
    pub failure: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    pub run: String,
    pub project: Project,
    pub source: Source,
    #[schemars(with = "String")]
    pub began: Timestamp,
    /// None while it runs, or when it died.
    #[schemars(with = "Option<String>")]
    pub ended: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub seconds: Option<f64>,
    pub not_run: u32,
    pub note: Option<String>,
    pub host: Option<String>,
    pub user: Option<String>,
    pub python: Option<String>,
    pub pytest: Option<String>,
    pub platform: Option<String>,
    pub ci: bool,
    pub workers: Option<u32>,
    pub code: Option<RunCode>,
    pub counts: Outcomes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunCode {
    pub hash: String,
    pub how: CodeHash,
    pub commit: Option<String>,
    pub branch: Option<String>,
    pub dirty: bool,
    /// Files that differ from the commit.
    pub changed: Vec<String>,
}

/// How many reports there were of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcomes {
    pub passed: u64,
    pub failed: u64,
    pub error: u64,
    pub skipped: u64,
    pub xfailed: u64,
    pub xpassed: u64,
    pub rerun: u64,
}

/// A run with what failed in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunDetail {
    #[serde(flatten)]
    pub run: Run,
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    /// Versions of what was installed, by name.
    pub packages: Packages,
    pub failures: Vec<Summary>,
    /// Failures that are not listed because there are too many.
    pub more_failures: u64,
    /// Ids of those after which the test was run again.
    #[serde(skip)]
    pub rerun: Vec<String>,
    /// Failures that this run shows to be resolved.
    pub resolved: Vec<Summary>,
    /// Failures whose tests passed in this run in a way that shows nothing; `note` says why.
    pub not_resolved: Vec<Summary>,
}

/// What a run ends with: its failures and what it resolved, one of each group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Closing {
    pub failures: Vec<ClosingGroup>,
    pub more_failures: u64,
    pub resolved: Vec<ClosingGroup>,
    pub not_resolved: Vec<ClosingGroup>,
}

/// Failures of one cause in a run, by one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClosingGroup {
    pub group: String,
    /// How many there are in the run.
    pub failures: u64,
    pub id: String,
    pub test: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub status: Status,
    pub occurrences: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl RunDetail {
    /// What the run ends with. A failure that can be questioned stands for its group before others do.
    pub fn closing(&self, has_copy: impl Fn(&Summary) -> bool) -> Closing {
        let told = |failures: &[Summary]| {
            let grouped = by_group(failures, &has_copy);
            grouped.into_iter().map(|(failure, count)| ClosingGroup::new(failure, count)).collect()
        };
        let failed: Vec<Summary> =
            self.failures.iter().filter(|failure| !self.rerun.contains(&failure.id)).cloned().collect();
        Closing {
            failures: told(&failed),
            more_failures: self.more_failures,
            resolved: told(&self.resolved),
            not_resolved: told(&self.not_resolved),
        }
    }
}

impl ClosingGroup {
    fn new(failure: &Summary, count: usize) -> Self {
        Self {
            group: failure.group.clone(),
            failures: count as u64,
            id: failure.id.clone(),
            test: failure.test.clone(),
            kind: failure.kind.clone(),
            status: failure.status,
            occurrences: failure.occurrences,
            note: failure.note.clone(),
        }
    }
}

/// One failure of each group, in the order in which groups come first, with the number of those it stands for. One that is preferred
/// stands for its group before others do.
pub fn by_group(failures: &[Summary], prefer: impl Fn(&Summary) -> bool) -> Vec<(&Summary, usize)> {
    let mut groups: Vec<(&Summary, usize)> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for failure in failures {
        let index = *at.entry(failure.group.as_str()).or_insert(groups.len());
        match groups.get_mut(index) {
            Some((first, count)) => {
                *count += 1;
                if prefer(failure) && !prefer(first) {
                    *first = failure;
                }
            }
            None => groups.push((failure, 1)),
        }
    }
    groups
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    pub id: String,
    pub project: String,
    /// Why these failures are together.
    pub reason: String,
    /// Whether somebody split or merged it.
    pub by_hand: bool,
    pub failures: u64,
    pub occurrences: u64,
    /// Failures that are not resolved.
    pub open: u64,
    #[schemars(with = "String")]
    pub first_seen: Timestamp,
    #[schemars(with = "String")]
    pub last_seen: Timestamp,
    /// Of its failure that was seen last.
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}

/// How many failures there are of each status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    pub total: u64,
    pub new: u64,
    pub in_progress: u64,
    pub resolved: u64,
    pub flaky: u64,
    pub reopened: u64,
    pub groups: u64,
    pub runs: u64,
    pub tests: u64,
}

/// One day, in UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Day {
    #[schemars(with = "String")]
    pub day: Date,
    pub runs: u64,
    pub passed: u64,
    /// Failing reports, errors included.
    pub failed: u64,
    /// Failures that were first seen on it.
    pub first_seen: u64,
}

/// Between which two runs a test began to fail. Either can be unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Onset {
    /// The newest run in which it passed before.
    pub last_good: Option<OnsetRun>,
    /// The first run in which it failed since.
    pub first_bad: Option<OnsetRun>,
    /// What was installed otherwise in the two, such as `simplejson 3.19.1 → 3.19.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnsetRun {
    pub run: String,
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub code: Option<String>,
    pub commit: Option<String>,
    pub branch: Option<String>,
    pub dirty: bool,
    pub changed: Vec<String>,
}

/// How long a test takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Duration {
    pub test: String,
    pub runs: u64,
    pub mean_s: f64,
    pub longest_s: f64,
}

/// Which failures are asked for. Everything that is given has to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub status: Option<Status>,
    pub group: Option<String>,
    /// All projects if there is none.
    pub of: Option<Chosen>,
    /// Part of the node id.
    pub test: Option<String>,
    /// Last seen at or after.
    pub since: Option<Timestamp>,
    /// Last seen before.
    pub until: Option<Timestamp>,
    pub without_resolved: bool,
}

/// Some of many. `next` is what `after` takes for those that follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
