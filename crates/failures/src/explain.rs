//! One failure, a group or all of them, explained: the store's answers with what `hypotheses`, `next_step`, `analysis`, `rules` and `prompt`
//! make of them. The doors call this, so that all of them tell the same.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{
    Error, Failures, Git,
    analysis::{self, GroupBy, Question, Report, Row, Unknown},
    environment::Packages,
    hypotheses::{self, Around, Between, Claim, Hypothesis, Tries},
    next_step::{self, NextStep},
    project::Chosen,
    prompt::{self, GroupPromptInput, Prompt, PromptInput, Style},
    record::{Evidence, Frame, Frozen, Status},
    rules::{self, Investigation, Progress, Rule, UnknownRule},
    store::{Light, time},
    view::{Failure, Filter, Onset, Summary, TestOutcome},
};

/// Groups of an analysis that are looked into.
const EXPLAINED_GROUPS: usize = 10;
/// Failures of a group whose evidence is read for a prompt.
const MAX_MEMBERS: usize = 20;
/// Groups and failures that an error names.
const MAX_NAMED: usize = 10;
const MAX_SOURCE_BYTES: u64 = 1 << 20;
const MAX_CHANGED: usize = 200;
/// Files of a failure's frames whose changes are read, and lines of all of them.
const MAX_DIFFED: usize = 20;
const MAX_CHANGED_LINES: usize = 5000;
/// Of a line that is recorded.
const MAX_LINE_CHARS: usize = 400;

/// Whether the project's own files and its git may be read for whoever asks. Records name the place themselves, and anybody who may report
/// could name any: only who may read all files anyway has them read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Project,
    Nothing,
}

/// A failure with what is thought of it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Explained {
    #[serde(flatten)]
    pub failure: Failure,
    /// The likeliest first.
    pub hypotheses: Vec<Hypothesis>,
    pub next_step: Option<NextStep>,
    /// Of the nine rules.
    pub progress: Progress,
    /// Between which runs it began.
    pub onset: Onset,
    /// What changed between them.
    pub between: Option<Between>,
}

/// What an analysis or a status became.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Debugged {
    pub id: String,
    pub status: Status,
    /// The rule that was worked on.
    pub rule: Option<Rule>,
    /// The one to go on with; none when all have an analysis.
    pub next: Option<Rule>,
    pub progress: Progress,
}

/// What somebody found out, or says a failure is.
#[derive(Debug, Clone, Default)]
pub struct Debug {
    /// Number or name.
    pub rule: Option<String>,
    pub analysis: Option<String>,
    pub status: Option<Status>,
    /// A person says that it is resolved, whatever the runs show.
    pub force: bool,
    pub author: String,
}

/// What a prompt is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Failure(String),
    Group(String),
}

/// Something that was named and is not there, or the store's own errors.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Store(#[from] Error),
    #[error(transparent)]
    Word(#[from] Unknown),
    #[error(transparent)]
    Rule(#[from] UnknownRule),
    #[error("there is no {what} `{id}`")]
    Missing { what: &'static str, id: String, known: Vec<String> },
}

impl Refused {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Store(error) => error.kind(),
            Self::Word(_) | Self::Rule(_) => "bad_argument",
            Self::Missing { what: "group", .. } => "unknown_group",
            Self::Missing { what: "project", .. } => "unknown_project",
            Self::Missing { .. } => "unknown_failure",
        }
    }

    pub fn message(&self) -> String {
        pylair_text::plain::with_causes(self)
    }

    pub fn hint(&self) -> String {
        match self {
            Self::Store(error) => error.hint(),
            Self::Word(unknown) => unknown.hint(),
            Self::Rule(unknown) => unknown.hint(),
            Self::Missing { what, known, .. } if known.is_empty() => format!("no {what} is recorded yet"),
            Self::Missing { what: "project", known, .. } => {
                format!("name it by name, root or repository, or say \"all\"; recorded are {}", known.join(", "))
            }
            Self::Missing { known, .. } => format!("the newest are {}", known.join(", ")),
        }
    }
}

/// Asks living copies of failures.
pub trait Copies: fmt::Debug + Send + Sync {
    /// For each question whether it is so, None where that cannot be told; nothing if the copy is not there or does not answer soon.
    fn ask(&self, occurrence: String, questions: Vec<Value>) -> BoxFuture<'static, Option<Vec<Option<bool>>>>;
}

/// Everything about one failure that the other modules ask for.
struct FailureFacts {
    failure: Failure,
    evidence: Evidence,
    onset: Onset,
    between: Option<Between>,
    changed: Vec<String>,
    python: Option<String>,
    packages: Packages,
    root: Option<PathBuf>,
    tries: Option<Tries>,
}

impl FailureFacts {
    fn explain(&self) -> (Vec<Hypothesis>, Vec<NextStep>) {
        let files = |name: &str| read_source(self.root.as_deref()?, name);
        let exists = |path: &str| self.root.as_ref().map(|_| Path::new(path).symlink_metadata().is_ok());
        let around = Around {
            id: &self.failure.summary.id,
            nodeid: &self.failure.summary.test,
            root: self.root.as_deref().and_then(Path::to_str),
            python: self.python.as_deref(),
            packages: Some(&self.packages),
            changed: &self.changed,
            between: self.between.as_ref(),
            tries: self.tries,
            files: &files,
            exists: &exists,
        };
        (hypotheses::hypotheses(&self.evidence, &around), next_step::next_steps(&self.evidence, &around))
    }
}

impl Failures {
    /// A failure by its id, with what is thought of it.
    pub async fn explained(&self, id: &str, reading: Reading) -> Result<Explained, Refused> {
        let known = self.known(id, reading).await?;
        let (known, hypotheses, next_step) = self.explain(known, reading).await?;
        let progress = rules::progress(&investigations(&known.failure));
        let FailureFacts { failure, onset, between, .. } = known;
        Ok(Explained { failure, hypotheses, next_step, progress, onset, between })
    }

    /// Records what somebody found out, says what a failure is, or both.
    pub async fn debug(&self, id: &str, debug: Debug) -> Result<Debugged, Refused> {
        let rule = debug.rule.as_deref().map(rules::find).transpose()?;
        let failure = self.named(id).await?;
        let analysis = debug.analysis.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let mut status = failure.summary.status;
        match (analysis, debug.status) {
            (None, None) => {
                let why = "it has neither an analysis nor a status".to_owned();
                return Err(Error::Invalid { what: "what was found out", why }.into());
            }
            (None, Some(_)) if rule.is_some() => {
                let why = "a rule was named, and nothing is said about it".to_owned();
                return Err(Error::Invalid { what: "the analysis", why }.into());
            }
            _ => {}
        }
        // Refused before anything is written: the analysis can be sent again.
        if let Some(wanted) = debug.status {
            status = self.set_status(id, wanted, &debug.author, debug.force).await?;
        }
        if let Some(analysis) = analysis {
            let number = rule.map(|rule| rule.number);
            status = self.analyse(id, number, analysis, &debug.author).await?;
        }
        let progress = rules::progress(&investigations(&self.get(id).await?));
        Ok(Debugged { id: failure.summary.id, status, rule: rule.copied(), next: progress.next, progress })
    }

    /// What many failures have in common.
    pub async fn analysis(&self, question: &Question, of: Chosen, reading: Reading) -> Result<Report, Refused> {
        let (question, period) = (question.clone(), question.period());
        let (failures, days, counts) =
            tokio::try_join!(self.scan_light(of.ids.as_deref()), self.occurrence_days(), self.occurrences_in(&period))?;
        let mut report = blocking(move || {
            let days = |id: &str| days.get(id).map_or(&[][..], Vec::as_slice);
            let count = |id: &str| counts.get(id).copied().unwrap_or_default();
            let rows: Vec<Row> =
                failures.iter().map(|light| light_row(light, days(&light.id), count(&light.id))).collect();
            analysis::analyze(&rows, &question)
        })
        .await?;
        report.of = of;
        for group in report.groups.iter_mut().take(EXPLAINED_GROUPS) {
            let Some(example) = group.examples.first() else { continue };
            // It may have been forgotten since.
            let Ok(known) = self.known(example, reading).await else { continue };
            let (known, hypotheses, _) = self.explain(known, reading).await?;
            group.between = group.between.take().or(known.between);
            group.hypotheses = hypotheses;
        }
        Ok(report)
    }

    /// What is known of a failure or a group, for a model.
    pub async fn prompt(
        &self,
        subject: &Subject,
        style: Style,
        max_tokens: Option<usize>,
        of: &Chosen,
        reading: Reading,
    ) -> Result<Prompt, Refused> {
        let max_tokens = max_tokens.unwrap_or(prompt::DEFAULT_TOKENS);
        match subject {
            Subject::Failure(id) => {
                let member = self.member(id, reading).await?;
                blocking(move || member.told(|told| prompt::of_failure(told, style, max_tokens))).await
            }
            Subject::Group(id) => self.group_prompt(id, style, max_tokens, of, reading).await,
        }
    }

    async fn group_prompt(
        &self,
        id: &str,
        style: Style,
        max_tokens: usize,
        of: &Chosen,
        reading: Reading,
    ) -> Result<Prompt, Refused> {
        let summaries = self.members(id, of).await?;
        let ids: Vec<String> = summaries.iter().take(MAX_MEMBERS).map(|summary| summary.id.clone()).collect();
        let mut members = Vec::with_capacity(ids.len());
        for member in &ids {
            members.push(self.member(member, reading).await?);
        }
        let reason = members.first().map(|member| member.known.failure.why_grouped.clone()).unwrap_or_default();
        let tests: std::collections::BTreeSet<&str> = summaries.iter().map(|summary| summary.test.as_str()).collect();
        let (failures, tests) = (summaries.len(), tests.len());
        let occurrences = summaries.iter().map(|summary| summary.occurrences).sum();
        let id = id.to_owned();
        blocking(move || {
            let told: Vec<PromptInput> = members.iter().map(Member::tell).collect();
            let group = GroupPromptInput { id: &id, reason: &reason, failures, occurrences, tests, members: &told };
            prompt::of_group(&group, style, max_tokens)
        })
        .await
    }

    /// The failures of a group, by its id or by one that an analysis told (`error_type:ValueError`), newest first. A group of the latter
    /// kind is that of the chosen projects, one of the former has a project of its own.
    pub async fn members(&self, id: &str, of: &Chosen) -> Result<Vec<Summary>, Refused> {
        let by = id.split_once(':').and_then(|(by, _)| by.parse::<GroupBy>().ok());
        let mut found = match by {
            Some(_) => {
                let all = self.scan(&Filter { of: Some(of.clone()), ..Filter::default() }).await?;
                let wanted = id.to_owned();
                blocking(move || {
                    let rows: Vec<Row> = all.iter().map(row).collect();
                    let ids: Vec<String> = analysis::of_group(&rows, &wanted)
                        .map(|(_, rows)| rows.iter().map(|row| row.id.to_owned()).collect())
                        .unwrap_or_default();
                    let ids: std::collections::BTreeSet<String> = ids.into_iter().collect();
                    all.into_iter().filter(|summary| ids.contains(&summary.id)).collect()
                })
                .await?
            }
            None => match self.group(id).await {
                Ok(group) => self.scan(&Filter { group: Some(group), ..Filter::default() }).await?,
                Err(Error::Unknown { .. }) => Vec::new(),
                Err(error) => return Err(error.into()),
            },
        };
        if found.is_empty() {
            let groups = self.groups(&Filter::default(), MAX_NAMED).await?;
            let known = groups.into_iter().map(|group| group.id).collect();
            return Err(Refused::Missing { what: "group", id: pylair_text::plain::one_line(id, 60), known });
        }
        found.sort_by_key(|summary| std::cmp::Reverse(summary.last_seen));
        Ok(found)
    }

    /// A failure by its id; an unknown one is told with those that are known.
    async fn named(&self, id: &str) -> Result<Failure, Refused> {
        match self.get(id).await {
            Err(Error::Unknown { .. }) => {
                let page = self.list(&Filter::default(), MAX_NAMED, None).await?;
                let known = page.items.into_iter().map(|summary| summary.id).collect();
                Err(Refused::Missing { what: "failure", id: pylair_text::plain::one_line(id, 60), known })
            }
            other => Ok(other?),
        }
    }

    async fn member(&self, id: &str, reading: Reading) -> Result<Member, Refused> {
        let known = self.known(id, reading).await?;
        let (known, hypotheses, next_step) = self.explain(known, reading).await?;
        let investigations = investigations(&known.failure);
        let params = known.failure.seen.first().map(|seen| seen.test.params.clone()).unwrap_or_default();
        Ok(Member { known, hypotheses, next_step, investigations, params: params.into_iter().collect() })
    }

    /// What is thought of a failure: what nothing that was recorded speaks against, nor its frozen copy, if that is of the same occurrence.
    async fn explain(
        &self,
        known: FailureFacts,
        reading: Reading,
    ) -> Result<(FailureFacts, Vec<Hypothesis>, Option<NextStep>), Refused> {
        let (known, (mut hypotheses, mut steps)) = explained(known).await?;
        let newest = known.failure.seen.first();
        let frozen = newest.filter(|seen| {
            let frozen = seen.evidence.as_ref().and_then(|evidence| evidence.frozen.as_ref());
            matches!(frozen, Some(Frozen::Pid(_))) && reading == Reading::Project
        });
        if let (Some(seen), Some(copies)) = (frozen, self.copies.get()) {
            let claims = hypotheses.iter().flat_map(|hypothesis| &hypothesis.claims);
            let claims = claims.chain(steps.iter().flat_map(|step| &step.claims)).cloned();
            let asked: Vec<(Claim, Value)> =
                claims.filter_map(|claim| claim.question().map(|question| (claim, question))).collect();
            let questions = asked.iter().map(|(_, question)| question.clone()).collect::<Vec<_>>();
            let answers = if asked.is_empty() { None } else { copies.ask(seen.occurrence.clone(), questions).await };
            let denied: Vec<Claim> = asked
                .into_iter()
                .zip(answers.unwrap_or_default())
                .filter(|(_, answer)| *answer == Some(false))
                .map(|((claim, _), _)| claim)
                .collect();
            let stands = |claims: &[Claim]| !claims.iter().any(|claim| denied.contains(claim));
            hypotheses.retain(|hypothesis| stands(&hypothesis.claims));
            steps.retain(|step| stands(&step.claims));
        }
        Ok((known, hypotheses, steps.into_iter().next()))
    }

    async fn known(&self, id: &str, reading: Reading) -> Result<FailureFacts, Refused> {
        let failure = self.named(id).await?;
        let onset = self.onset(&failure.summary.id).await?;
        let evidence = failure.seen.iter().find_map(|seen| seen.evidence.clone()).unwrap_or_default();
        let run = match self.run(&failure.summary.last_run).await {
            Ok(run) => Some(run),
            Err(Error::Unknown { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let root = run.as_ref().map(|run| PathBuf::from(&run.run.project.root));
        let root = root.filter(|root| reading == Reading::Project && root.is_absolute());
        let between = between(&self.git, &onset, root.as_deref(), &evidence).await;
        let changed = run.as_ref().and_then(|run| run.run.code.as_ref()).map(|code| code.changed.clone());
        let tries = tries(&failure);
        Ok(FailureFacts {
            evidence,
            between,
            onset,
            changed: changed.unwrap_or_default(),
            python: run.as_ref().and_then(|run| run.run.python.clone()),
            packages: run.map(|run| run.packages).unwrap_or_default(),
            root,
            tries,
            failure,
        })
    }
}

/// A failure that a prompt tells of.
struct Member {
    known: FailureFacts,
    hypotheses: Vec<Hypothesis>,
    next_step: Option<NextStep>,
    investigations: Vec<Investigation>,
    params: Vec<(String, String)>,
}

impl Member {
    fn tell(&self) -> PromptInput<'_> {
        let summary = &self.known.failure.summary;
        PromptInput {
            id: &summary.id,
            test: &summary.test,
            status: summary.status,
            occurrences: summary.occurrences,
            first_seen: summary.first_seen,
            last_seen: summary.last_seen,
            evidence: &self.known.evidence,
            params: &self.params,
            python: self.known.python.as_deref(),
            changed: &self.known.changed,
            between: self.known.between.as_ref(),
            hypotheses: &self.hypotheses,
            next_step: self.next_step.as_ref(),
            investigations: &self.investigations,
        }
    }

    fn told(&self, write: impl FnOnce(&PromptInput) -> Prompt) -> Prompt {
        write(&self.tell())
    }
}

/// Reads files and large evidence, which takes milliseconds.
async fn explained(known: FailureFacts) -> Result<(FailureFacts, (Vec<Hypothesis>, Vec<NextStep>)), Error> {
    tokio::task::spawn_blocking(move || {
        let told = known.explain();
        (known, told)
    })
    .await
    .map_err(|_| Error::Closed)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refused> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Closed.into())
}

fn investigations(failure: &Failure) -> Vec<Investigation> {
    let copied = failure.investigations_made.iter().map(|made| Investigation {
        rule: made.rule,
        analysis: made.analysis.clone(),
        author: made.author.clone(),
        at: made.at,
    });
    copied.collect()
}

fn light_row<'a>(light: &'a Light, days: &'a [(i32, u32)], (recent, previous): (u64, u64)) -> Row<'a> {
    let place = light.file.as_deref().or(light.test_file.as_deref()).filter(|file| !file.is_empty());
    Row {
        id: &light.id,
        test: &light.test,
        status: light.status,
        group: &light.group,
        kind: &light.kind,
        message: &light.message,
        pattern: &light.pattern,
        phase: light.phase,
        file: place,
        // Where the test is defined is not where anything was raised.
        line: light.line,
        function: light.function.as_deref(),
        first_seen: time(light.first_seen),
        last_seen: time(light.last_seen),
        occurrences: light.occurrences,
        days,
        recent,
        previous,
        first_bad: None,
        last_good: None,
    }
}

fn row(summary: &Summary) -> Row<'_> {
    let place = summary.place.as_ref();
    Row {
        id: &summary.id,
        test: &summary.test,
        status: summary.status,
        group: &summary.group,
        kind: &summary.kind,
        message: &summary.message,
        pattern: &summary.pattern,
        phase: summary.phase,
        file: place.map(|place| place.file.as_str()).or(summary.test_file.as_deref()).filter(|file| !file.is_empty()),
        line: place.map(|place| place.line),
        function: place.map(|place| place.function.as_str()),
        first_seen: summary.first_seen,
        last_seen: summary.last_seen,
        occurrences: summary.occurrences,
        days: &[],
        recent: 0,
        previous: 0,
        first_bad: None,
        last_good: None,
    }
}

/// How the test did on the code it failed on last, in runs that can be compared with that.
fn tries(failure: &Failure) -> Option<Tries> {
    let seen = failure.seen.first()?;
    let code = seen.code.as_deref()?;
    let failed = failure.history.iter().find(|outcome| outcome.run == seen.run && outcome.failure.is_some())?;
    let is_alike = |outcome: &&TestOutcome| {
        let company = |outcome: &TestOutcome| outcome.ran_before.map(|before| before > 0);
        outcome.python == failed.python
            && outcome.environment == failed.environment
            && company(outcome) == company(failed)
    };
    let alike: Vec<TestOutcome> = failure.history.iter().filter(is_alike).cloned().collect();
    Some(Tries::on(code, &alike)).filter(|tries| tries.passed > 0)
}

/// The commits around the beginning of a failure, with the files that differ as far as git here knows, and the lines that do in files of
/// the failure's frames.
async fn between(git: &Git, onset: &Onset, root: Option<&Path>, evidence: &Evidence) -> Option<Between> {
    let commit = |run: &Option<super::view::OnsetRun>| run.as_ref().and_then(|run| run.commit.clone());
    let (last_good, first_bad) = (commit(&onset.last_good), commit(&onset.first_bad));
    if last_good.is_none() && first_bad.is_none() {
        return None;
    }
    let mut files = Vec::new();
    let mut lines = Vec::new();
    if let (Some(good), Some(bad), Some(root)) = (&last_good, &first_bad, root)
        && good != bad
    {
        files = changed_files(git, root, good, bad).await.unwrap_or_default();
        lines = changed_lines(git, root, &[good, bad], &files, evidence).await;
    }
    if files.is_empty()
        && last_good == first_bad
        && let Some(bad) = &onset.first_bad
    {
        // The same commit: what was not committed makes the difference.
        files.clone_from(&bad.changed);
        if let (Some(commit), Some(root)) = (&first_bad, root) {
            lines = changed_lines(git, root, &[commit], &files, evidence).await;
        }
    }
    Some(Between { last_good, first_bad, files, lines })
}

async fn changed_files(git: &Git, root: &Path, good: &str, bad: &str) -> Option<Vec<String>> {
    let said = git.diff(root, &["--name-only", "-z"], &[good, bad], &[]).await?;
    let names = said.split('\0').filter(|name| !name.is_empty());
    Some(names.take(MAX_CHANGED).map(ToOwned::to_owned).collect())
}

/// Lines of the newer side: of the second commit, or of the files as they are.
async fn changed_lines(
    git: &Git,
    root: &Path,
    commits: &[&str],
    files: &[String],
    evidence: &Evidence,
) -> Vec<(String, u32)> {
    let chained = evidence.chain.iter().flat_map(|link| &link.frames);
    let frames = evidence.frames.iter().chain(chained).filter(|frame| frame.in_app && files.contains(&frame.file));
    let own: std::collections::BTreeSet<&str> = frames.map(|frame| frame.file.as_str()).collect();
    if own.is_empty() {
        return Vec::new();
    }
    let own: Vec<&str> = own.into_iter().take(MAX_DIFFED).collect();
    let options = ["--unified=0", "--no-color", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/"];
    let said = git.diff(root, &options, commits, &own).await.unwrap_or_default();
    as_recorded(added_lines(&said), evidence)
}

/// The lines without those of files that are not what they were at the failure: the diff may be of files that were edited since, in which
/// its lines have other numbers.
fn as_recorded(added: Vec<Added>, evidence: &Evidence) -> Vec<(String, u32)> {
    let chained = evidence.chain.iter().flat_map(|link| &link.frames);
    let frames: Vec<&Frame> = evidence.frames.iter().chain(chained).filter(|frame| frame.in_app).collect();
    let is_other = |added: &Added| {
        frames.iter().filter(|frame| frame.file == added.file).any(|frame| {
            let lines = frame.source.as_ref();
            let at =
                lines.and_then(|lines| added.line.checked_sub(lines.first)).and_then(|at| usize::try_from(at).ok());
            match lines.zip(at).and_then(|(lines, at)| lines.lines.get(at)) {
                // A long line is recorded without its end.
                Some(recorded) if recorded.chars().count() >= MAX_LINE_CHARS => !added.text.starts_with(recorded),
                Some(recorded) => recorded.trim_end() != added.text.trim_end(),
                None => frame.line == added.line,
            }
        })
    };
    let edited: std::collections::BTreeSet<String> =
        added.iter().filter(|line| is_other(line)).map(|line| line.file.clone()).collect();
    let kept = added.into_iter().filter(|line| !edited.contains(&line.file));
    kept.map(|line| (line.file, line.line)).collect()
}

/// A line that a diff adds.
#[derive(Debug, PartialEq, Eq)]
struct Added {
    file: String,
    line: u32,
    text: String,
}

/// The lines that a diff without context adds, by file.
fn added_lines(diff: &str) -> Vec<Added> {
    let mut lines = Vec::new();
    let mut file = "";
    let (mut next, mut left) = (0_u32, 0_u32);
    for line in diff.lines() {
        if left > 0
            && let Some(text) = line.strip_prefix('+')
        {
            lines.push(Added { file: file.to_owned(), line: next, text: text.to_owned() });
            (next, left) = (next.saturating_add(1), left - 1);
        } else if let Some(name) = line.strip_prefix("+++ b/") {
            file = name.trim_end_matches('\t');
        } else if let Some(hunk) = line.strip_prefix("@@ ")
            && let Some(added) = hunk.split(' ').nth(1).and_then(|added| added.strip_prefix('+'))
        {
            let (first, count) = added.split_once(',').unwrap_or((added, "1"));
            if let (Ok(first), Ok(count)) = (first.parse::<u32>(), count.parse::<u32>()) {
                (next, left) = (first, count);
            }
        }
        if lines.len() >= MAX_CHANGED_LINES {
            break;
        }
    }
    lines
}

/// A source file of the project as it is now, by the name that frames have.
fn read_source(root: &Path, name: &str) -> Option<String> {
    let root = root.canonicalize().ok()?;
    let path = root.join(name).canonicalize().ok()?;
    if !path.starts_with(&root) || path.extension().is_none_or(|extension| extension != "py") {
        return None;
    }
    pylair_os::regular::read(&path, MAX_SOURCE_BYTES).ok()
}

/// What an analysis asks for, from the words of a request.
pub fn question(group_by: Option<&str>, time_range: Option<&str>, include_resolved: bool) -> Result<Question, Unknown> {
    let group_by = group_by.map(str::parse).transpose()?.unwrap_or_default();
    let time_range = time_range.map(str::parse).transpose()?.unwrap_or_default();
    let zone = jiff::tz::TimeZone::system();
    Ok(Question { group_by, time_range, include_resolved, zone, ..Question::new(Timestamp::now()) })
}

/// A status by its word.
pub fn status(word: &str) -> Result<Status, Unknown> {
    const NAMES: &[&str] = &["new", "in_progress", "resolved", "flaky", "reopened"];
    let wanted = word.trim().to_ascii_lowercase().replace(['-', ' '], "_");
    serde_json::from_value(serde_json::Value::String(wanted)).map_err(|_| Unknown {
        what: "status",
        given: pylair_text::plain::one_line(word, 60),
        known: NAMES,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_a_diff_adds() {
        let diff = "diff --git a/shop/a.py b/shop/a.py\n--- a/shop/a.py\n+++ b/shop/a.py\n@@ -3 +3,2 @@ def f():\n-x\n+y\n+z\n\
                    @@ -9,2 +10,0 @@\n-gone\n-gone\n+++ b/b.py\n@@ -0,0 +1 @@\n+new\n";
        let found = added_lines(diff);
        let told: Vec<_> = found.iter().map(|at| (at.file.as_str(), at.line, at.text.as_str())).collect();
        assert_eq!(told, [("shop/a.py", 3, "y"), ("shop/a.py", 4, "z"), ("b.py", 1, "new")]);
        assert!(added_lines("@@ nonsense @@\n@@ -1 +x,y @@").is_empty());
    }

    #[test]
    fn lines_of_a_file_that_was_edited_since_are_not_told() {
        let evidence = |source: Option<&str>| {
            let frame = serde_json::json!({"file": "a.py", "line": 3, "function": "f", "in_app": true,
                "source": source.map(|text| serde_json::json!({"first": 2, "lines": ["def f():", text]}))});
            let told =
                serde_json::json!({"occurrence": "r-1", "exception": {"type": "E", "message": ""}, "frames": [frame]});
            serde_json::from_value::<Evidence>(told).unwrap()
        };
        let lines = |text: &str, source: Option<&str>| {
            let diff =
                format!("+++ b/a.py\n@@ -3 +3 @@\n-x\n+{text}\n@@ -8 +8 @@\n-u\n+v\n+++ b/b.py\n@@ -1 +1 @@\n-u\n+v\n");
            as_recorded(added_lines(&diff), &evidence(source))
        };
        let other = ("b.py".to_owned(), 1);
        let all = [("a.py".to_owned(), 3), ("a.py".to_owned(), 8), other.clone()];
        assert_eq!(lines("    return 1 / n", Some("    return 1 / n")), all);
        assert_eq!(lines("    # why", Some("    return 1 / n")), std::slice::from_ref(&other));
        assert_eq!(lines("    return 1 / n", None), std::slice::from_ref(&other), "nobody knows what failed");
        let long = "x".repeat(MAX_LINE_CHARS);
        assert_eq!(lines(&format!("{long}y"), Some(&long)), all);
    }
}
