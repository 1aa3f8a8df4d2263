//! Many failures at once: put together by type, file, pattern or fingerprint, counted, followed over time, and put in the order in which they
//! are worth looking at, with the reason for it.
//!
//! Pure, over a scan of light rows that the store gives; one pass and a sort, so that 100,000 rows are nothing. Git is asked by the
//! caller, between [`Report::commits`] and [`Report::add_changes`]. Called by the doors.

mod priority;
mod question;
mod trend;

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    hypotheses::{Between, Hypothesis},
    project::Chosen,
    record::{Phase, Status},
};
pub use priority::{Label, Priority};
pub use question::{GroupBy, Period, Question, TimeRange, Unknown};
pub use trend::{Count, Direction, Trend};

/// Groups that are told in full; the rest is counted.
const MAX_GROUPS: usize = 100;
const MAX_PLACES: usize = 5;
const MAX_EXAMPLES: usize = 5;
const MAX_FLAKY: usize = 50;
const MAX_DAYS: i32 = 62;
const MAX_WEEKS: usize = 26;

/// What analysis needs of a failure.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    pub id: &'a str,
    /// The node id.
    pub test: &'a str,
    pub status: Status,
    pub group: &'a str,
    pub kind: &'a str,
    /// The first line of the message.
    pub message: &'a str,
    /// Type and message with placeholders.
    pub pattern: &'a str,
    pub phase: Phase,
    /// Where it was raised: the innermost frame of the project's own code, else where the test is.
    pub file: Option<&'a str>,
    pub line: Option<u32>,
    pub function: Option<&'a str>,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    pub occurrences: u64,
    /// On which days (since 1970, UTC) it occurred how often. Empty: only the first and the last time are known.
    pub days: &'a [(i32, u32)],
    /// Occurrences in the period that trends compare, and in the one before.
    pub recent: u64,
    pub previous: u64,
    /// The first commit it was seen on, and the newest before on which its test passed.
    pub first_bad: Option<&'a str>,
    pub last_good: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    pub group_by: GroupBy,
    pub time_range: TimeRange,
    pub include_resolved: bool,
    #[serde(flatten)]
    pub of: Chosen,
    /// Which two periods every `trend` compares.
    pub trend_compares: String,
    pub total_failures: usize,
    pub total_occurrences: u64,
    pub group_count: usize,
    /// The most urgent first.
    pub groups: Vec<Group>,
    /// Groups that are not told in full.
    pub more_groups: usize,
    pub insights: Insights,
}

/// Failures that are together.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Group {
    /// As `write_debug_prompt` takes it.
    pub id: String,
    pub title: String,
    pub failures: usize,
    pub occurrences: u64,
    /// How many tests fail this way.
    pub tests: usize,
    pub status: BTreeMap<Status, usize>,
    #[schemars(with = "String")]
    pub first_seen: Timestamp,
    #[schemars(with = "String")]
    pub last_seen: Timestamp,
    pub trend: Trend,
    /// Where most of it is raised.
    pub places: Vec<FrequentLocation>,
    /// Commits around its beginning, with what differs between them once the caller has asked git.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<Between>,
    pub priority: Priority,
    /// Ids, the newest first.
    pub examples: Vec<String>,
    /// Of the newest example; the caller adds them, who can read evidence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hypotheses: Vec<Hypothesis>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Place")]
pub struct FrequentLocation {
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    pub occurrences: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Insights {
    /// How many failures there are of each type, the most frequent first.
    pub error_distribution: Vec<Share>,
    pub most_common_error: Option<String>,
    /// Where most failures are raised, over all groups.
    pub places: Vec<FrequentLocation>,
    pub trend: Trend,
    /// Occurrences on each day, the newest last; and in each week, by its Monday.
    pub days: Vec<Count>,
    pub weeks: Vec<Count>,
    /// In which order to go about it.
    pub triage: Vec<Triage>,
    pub flaky: Vec<Flaky>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Share {
    pub name: String,
    pub failures: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Triage {
    pub group: String,
    pub priority: Label,
    pub recommendation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Flaky {
    pub id: String,
    pub test: String,
    pub occurrences: u64,
    #[schemars(with = "String")]
    pub last_seen: Timestamp,
}

/// The id of the group a row is in. Only fingerprints have ids of their own.
pub fn group_id(by: GroupBy, row: &Row) -> String {
    match by {
        GroupBy::Fingerprint => row.group.to_owned(),
        _ => named(by, key(by, row)),
    }
}

/// Rows of a group by its id, and how they are put together; None for an id that is of no group here.
pub fn of_group<'r, 'a>(rows: &'r [Row<'a>], id: &str) -> Option<(GroupBy, Vec<&'r Row<'a>>)> {
    let by = id.split_once(':').and_then(|(by, _)| by.parse().ok()).unwrap_or(GroupBy::Fingerprint);
    let found: Vec<&Row> = rows.iter().filter(|row| group_id(by, row) == id).collect();
    (!found.is_empty()).then_some((by, found))
}

fn key<'a>(by: GroupBy, row: &Row<'a>) -> &'a str {
    match by {
        GroupBy::ErrorType => row.kind,
        GroupBy::FilePath => row.file.unwrap_or("(no file)"),
        GroupBy::Pattern => row.pattern,
        GroupBy::Fingerprint => row.group,
    }
}

fn named(by: GroupBy, key: &str) -> String {
    match by {
        GroupBy::Fingerprint => key.to_owned(),
        // Patterns are long and have blanks: an id is something to be copied.
        GroupBy::Pattern => {
            format!("pattern:{}", &pylair_text::hash::hex(&pylair_text::hash::sha256(key.as_bytes()))[..12])
        }
        _ => format!("{}:{key}", by.name()),
    }
}

pub fn analyze(rows: &[Row], question: &Question) -> Report {
    let (from, period) = (question.from(), question.period());
    let wanted: Vec<&Row> =
        rows.iter().filter(|row| question.include_resolved || row.status != Status::Resolved).collect();
    // What was seen in the period before counts in the comparison, also if it was not seen since.
    let mut previous: HashMap<&str, (u64, Timestamp)> = HashMap::new();
    for row in &wanted {
        let entry = previous.entry(key(question.group_by, row)).or_insert((0, row.first_seen));
        *entry = (entry.0 + row.previous, entry.1.min(row.first_seen));
    }
    let counted: Vec<&Row> = wanted.iter().copied().filter(|row| row.last_seen >= from).collect();
    let first_day = trend::day(from);
    let mut gathered: HashMap<&str, Gathered> = HashMap::new();
    let today = trend::day(question.now);
    let mut days = trend::Days::until(today, MAX_WEEKS * 7);
    let (mut total_occurrences, mut recent) = (0, 0);
    let mut types: HashMap<&str, usize> = HashMap::new();
    let mut places = Places::default();
    for row in &counted {
        let in_days = days.add(row, first_day);
        let seen = if question.time_range == TimeRange::All { in_days } else { row.recent.max(1) };
        total_occurrences += seen;
        recent += row.recent;
        *types.entry(row.kind).or_default() += 1;
        places.add(row, seen);
        gathered.entry(key(question.group_by, row)).or_insert_with(|| Gathered::new(row)).add(row, seen);
    }
    let trend_of = |key: &str, gathered: &Gathered| {
        let (before, first) = previous.get(key).copied().unwrap_or((0, gathered.first));
        Trend::new(gathered.recent, before, first, &period)
    };
    let all_before = previous.values().map(|(before, _)| before).sum();
    let first = previous.values().map(|(_, first)| *first).min().unwrap_or(Timestamp::MAX);
    let group_count = gathered.len();
    let mut groups: Vec<(&str, Gathered)> = gathered.into_iter().collect();
    let mut ranked: Vec<(Priority, &str, Gathered)> = groups
        .drain(..)
        .map(|(key, gathered)| {
            let trend = trend_of(key, &gathered);
            (priority::of(&gathered, trend, question), key, gathered)
        })
        .collect();
    // By name last, so that the order is the same each time.
    ranked.sort_by(|(a, a_key, a_rows), (b, b_key, b_rows)| {
        b.score.cmp(&a.score).then(b_rows.last.cmp(&a_rows.last)).then(a_key.cmp(b_key))
    });
    let more_groups = ranked.len().saturating_sub(question.limit.unwrap_or(MAX_GROUPS).min(MAX_GROUPS));
    ranked.truncate(group_count - more_groups);
    let (groups, triage): (Vec<Group>, Vec<Triage>) = ranked
        .into_iter()
        .map(|(priority, key, gathered)| {
            let (trend, common) = (trend_of(key, &gathered), gathered.common());
            let group = gathered.tell(question, key, priority, trend);
            let recommendation = recommend(&group, &common);
            let triage = Triage { group: group.id.clone(), priority: group.priority.label, recommendation };
            (group, triage)
        })
        .unzip();
    let mut error_distribution: Vec<Share> =
        types.into_iter().map(|(name, failures)| Share { name: name.to_owned(), failures }).collect();
    error_distribution.sort_by(|a, b| b.failures.cmp(&a.failures).then_with(|| a.name.cmp(&b.name)));
    let most_common_error = error_distribution.first().map(|share| share.name.clone());
    error_distribution.truncate(MAX_GROUPS);
    Report {
        group_by: question.group_by,
        time_range: question.time_range,
        include_resolved: question.include_resolved,
        of: Chosen::all(),
        total_failures: counted.len(),
        trend_compares: format!("{} with {}", period.recent, period.previous),
        total_occurrences,
        group_count,
        more_groups,
        insights: Insights {
            error_distribution,
            most_common_error,
            places: places.most_frequent(),
            trend: Trend::new(recent, all_before, first, &period),
            days: days.last_days(MAX_DAYS),
            weeks: days.last_weeks(),
            triage,
            flaky: flaky(&counted),
        },
        groups,
    }
}

impl Report {
    /// Commits between which something of the groups began to fail: the last good and the first bad, each pair once.
    pub fn commits(&self) -> Vec<(String, String)> {
        let mut pairs: Vec<(String, String)> = self
            .groups
            .iter()
            .filter_map(|group| group.between.as_ref())
            .filter_map(|between| Some((between.last_good.clone()?, between.first_bad.clone()?)))
            .collect();
        pairs.sort();
        pairs.dedup();
        pairs
    }

    /// What differs between such commits.
    pub fn add_changes(&mut self, changes: &BTreeMap<(String, String), Vec<String>>) {
        for between in self.groups.iter_mut().filter_map(|group| group.between.as_mut()) {
            if let (Some(good), Some(bad)) = (&between.last_good, &between.first_bad)
                && let Some(files) = changes.get(&(good.clone(), bad.clone()))
            {
                between.files.clone_from(files);
            }
        }
    }
}

/// A group while rows are added to it.
pub(crate) struct Gathered<'a> {
    pub failures: usize,
    pub tests: HashSet<&'a str>,
    pub status: BTreeMap<Status, usize>,
    pub first: Timestamp,
    pub last: Timestamp,
    /// Occurrences in the time range, and in the period that trends compare.
    pub count: u64,
    pub recent: u64,
    /// The worst of what its rows are, with the word for it, and how many are.
    pub severity: Option<(i32, &'static str)>,
    pub severe: usize,
    first_bad: Option<&'a str>,
    last_good: Option<&'a str>,
    /// What is so of all of its rows.
    file: Option<&'a str>,
    line: Option<u32>,
    commits: Option<(&'a str, &'a str)>,
    places: Places<'a>,
    newest: Vec<(Timestamp, &'a str)>,
    kind: &'a str,
    message: &'a str,
}

impl<'a> Gathered<'a> {
    fn new(row: &Row<'a>) -> Self {
        Self {
            failures: 0,
            tests: HashSet::new(),
            status: BTreeMap::new(),
            first: row.first_seen,
            last: row.last_seen,
            count: 0,
            recent: 0,
            severity: None,
            severe: 0,
            first_bad: row.first_bad,
            last_good: row.last_good,
            file: row.file,
            line: row.line,
            commits: row.last_good.zip(row.first_bad),
            places: Places::default(),
            newest: Vec::new(),
            kind: row.kind,
            message: row.message,
        }
    }

    fn add(&mut self, row: &Row<'a>, seen: u64) {
        self.failures += 1;
        self.tests.insert(row.test);
        *self.status.entry(row.status).or_default() += 1;
        if row.first_seen < self.first {
            (self.first, self.first_bad, self.last_good) = (row.first_seen, row.first_bad, row.last_good);
        }
        if row.last_seen >= self.last {
            (self.last, self.kind, self.message) = (row.last_seen, row.kind, row.message);
        }
        self.count += seen;
        self.recent += row.recent;
        let severity = priority::severity(row);
        if severity > self.severity {
            (self.severity, self.severe) = (severity, 0);
        }
        self.severe += usize::from(severity.is_some() && severity == self.severity);
        self.file = self.file.filter(|file| row.file == Some(file));
        self.line = self.line.filter(|line| row.line == Some(*line) && self.file.is_some());
        self.commits = self.commits.filter(|commits| row.last_good.zip(row.first_bad) == Some(*commits));
        self.places.add(row, seen);
        self.newest.push((row.last_seen, row.id));
        if self.newest.len() > 64 {
            self.keep_newest();
        }
    }

    fn keep_newest(&mut self) {
        self.newest.sort_by(|a, b| b.cmp(a));
        self.newest.truncate(MAX_EXAMPLES);
    }

    /// What may be said of all of its failures.
    fn common(&self) -> Common {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        Common {
            place: self.file.map(|file| format!("{file}{line}")),
            commits: self.commits.map(|(good, bad)| (good.to_owned(), bad.to_owned())),
        }
    }

    fn tell(mut self, question: &Question, key: &str, priority: Priority, trend: Trend) -> Group {
        self.keep_newest();
        let title = match question.group_by {
            GroupBy::Fingerprint if self.message.is_empty() => self.kind.to_owned(),
            GroupBy::Fingerprint => pylair_text::plain::one_line(&format!("{}: {}", self.kind, self.message), 160),
            _ => pylair_text::plain::one_line(key, 160),
        };
        let between = (self.first_bad.is_some() || self.last_good.is_some()).then(|| Between {
            last_good: self.last_good.map(ToOwned::to_owned),
            first_bad: self.first_bad.map(ToOwned::to_owned),
            ..Between::default()
        });
        Group {
            id: named(question.group_by, key),
            title,
            failures: self.failures,
            occurrences: self.count,
            tests: self.tests.len(),
            status: self.status,
            first_seen: self.first,
            last_seen: self.last,
            trend,
            places: self.places.most_frequent(),
            between,
            priority,
            examples: self.newest.into_iter().map(|(_, id)| id.to_owned()).collect(),
            hypotheses: Vec::new(),
        }
    }
}

/// Where failures are raised, and how often.
#[derive(Default)]
struct Places<'a>(HashMap<(&'a str, Option<u32>, Option<&'a str>), u64>);

impl<'a> Places<'a> {
    fn add(&mut self, row: &Row<'a>, count: u64) {
        if let Some(file) = row.file.filter(|file| is_own(file)) {
            *self.0.entry((file, row.line, row.function)).or_default() += count;
        }
    }

    fn most_frequent(self) -> Vec<FrequentLocation> {
        let mut places: Vec<_> = self.0.into_iter().collect();
        places.sort_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then(a.cmp(b)));
        places
            .into_iter()
            .take(MAX_PLACES)
            .map(|((file, line, function), occurrences)| FrequentLocation {
                file: file.to_owned(),
                line,
                function: function.map(ToOwned::to_owned),
                occurrences,
            })
            .collect()
    }
}

fn flaky(rows: &[&Row]) -> Vec<Flaky> {
    let mut flaky: Vec<&&Row> = rows.iter().filter(|row| row.status == Status::Flaky).collect();
    flaky.sort_by(|a, b| b.occurrences.cmp(&a.occurrences).then(b.last_seen.cmp(&a.last_seen)).then(a.id.cmp(b.id)));
    flaky
        .into_iter()
        .take(MAX_FLAKY)
        .map(|row| Flaky {
            id: row.id.to_owned(),
            test: row.test.to_owned(),
            occurrences: row.occurrences,
            last_seen: row.last_seen,
        })
        .collect()
}

/// Whether a file is of the project: others have absolute names, or none.
fn is_own(file: &str) -> bool {
    !file.starts_with(['/', '<'])
}

/// What is so of all failures of a group.
struct Common {
    place: Option<String>,
    /// The last good and the first bad one.
    commits: Option<(String, String)>,
}

/// What to do about a group, from what is so of all of it.
fn recommend(group: &Group, common: &Common) -> String {
    let example = group.examples.first().map_or("", String::as_str);
    let reasons = group.priority.reasons.join(", ");
    let only = |status: Status| group.status.get(&status).copied().unwrap_or(0) == group.failures;
    let start = if only(Status::Flaky) {
        format!("see what differs between passing and failing runs of `{example}`")
    } else if let Some((good, bad)) = &common.commits
        && good == bad
    {
        format!("begin with `{example}`, and with the uncommitted changes")
    } else if let Some((good, bad)) = &common.commits {
        let short = |commit: &str| commit.get(..10).unwrap_or(commit).to_owned();
        format!("begin with `{example}`, and with what changed between {} and {}", short(good), short(bad))
    } else if group.failures > 1 {
        let (count, tests) = (group.failures, group.tests);
        match &common.place {
            // Where pytest or a library gave up says nothing about the project.
            Some(place) if !is_own(place) => format!("begin with `{example}`; {count} failures are in this group"),
            Some(place) => format!("begin with `{example}`; all {count} failures are at {place}"),
            None if tests == 1 => format!("begin with `{example}`; all {count} failures are of one test"),
            None => format!("begin with `{example}`; {count} failures are in this group, in several places"),
        }
    } else {
        format!("begin with `{example}`")
    };
    format!("{start} ({reasons})")
}

#[cfg(test)]
mod tests;
