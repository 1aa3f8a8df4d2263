//! Tools on test runs and failures.

use std::{fmt::Write, path::PathBuf, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ToolError, parse,
    session::{OutputForm, duration, wait_and_report},
};
use crate::{
    app::Apps,
    caller::Caller,
    daemon::{
        Daemon,
        frozen::Copy,
        targets::Target,
        testing::{TestRun, TestWish},
    },
    failures::{
        ByHand,
        analysis::{GroupBy, Question, Report as Analysis, TimeRange},
        explain::{Debug, Debugged, Explained, Reading, Refused, Subject},
        guide,
        prompt::{Prompt, Style},
        record::{Evidence, Status},
        view::{Filter, Outcomes, Page, Summary},
    },
    mcp::{render, server::Call},
    plain::one_line,
    session::{Execution, Job, Outcome, Report},
};

const LIMIT: usize = 20;
const MAX_LIMIT: usize = 200;
/// Failures of a run that its answer names.
const MAX_NAMED: usize = 20;
const MAX_LINE_CHARS: usize = 300;
const MAX_TRACEBACK_CHARS: usize = 6000;
const MAX_FRAMES: usize = 8;
const MAX_LOCALS: usize = 12;

impl From<crate::failures::Error> for ToolError {
    fn from(error: crate::failures::Error) -> Self {
        Self { kind: error.kind(), message: error.message(), hint: error.hint() }
    }
}

impl From<Refused> for ToolError {
    fn from(refused: Refused) -> Self {
        Self { kind: refused.kind(), message: refused.message(), hint: refused.hint() }
    }
}

/// Whether the project's files may be read for a caller.
pub fn reading(caller: &Caller) -> Reading {
    if Apps::visible_to(caller) { Reading::Project } else { Reading::Nothing }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunArgs {
    /// Of pytest, such as ["tests/test_a.py::test_b", "-x"]
    args: Option<Vec<String>>,
    cwd: Option<PathBuf>,
    /// Interpreter; the project's own if left out
    python: Option<String>,
    wait_s: Option<f64>,
}

/// A run of pytest, as far as it is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ran {
    run: String,
    job: String,
    /// `ok` also when tests failed; `running` until it ends
    outcome: Outcome,
    exit_code: Option<i32>,
    /// What the exit code means.
    meaning: String,
    counts: Option<Outcomes>,
    failures: Vec<Failed>,
    more_failures: usize,
    duration_ms: f64,
    /// What pytest printed.
    output: String,
    truncated: bool,
    notes: Vec<String>,
}

/// A failure of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Failed {
    id: String,
    status: Status,
    test: String,
    #[serde(rename = "type")]
    kind: String,
    message: String,
    place: Option<String>,
    occurrences: u64,
    /// What to pass as `target` to question it, if it is frozen.
    target: Option<String>,
}

pub async fn run_tests(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: RunArgs = parse(&call)?;
    let config = &call.daemon.config;
    let wait = duration("wait_s", args.wait_s)?.unwrap_or(config.wait);
    let wish = TestWish { args: args.args.unwrap_or_default(), cwd: args.cwd, python: args.python };
    let what = format!("pytest {}", wish.args.join(" "));
    let run = call.daemon.run_tests(&call.caller, wish).await?;
    let target = Target::Tests(run.clone());
    call.begin(&target, &what);
    wait_and_report(&call, &target, &run.job, wait, config.max_chars, OutputForm::default()).await
}

/// A run as it is told, by `run_tests` and `get_job`.
pub(super) async fn tell_run(
    daemon: &Daemon,
    run: &Arc<TestRun>,
    execution: Option<&Execution>,
    notes: Vec<String>,
    max_chars: usize,
) -> CallToolResult {
    let job: &Job = &run.job;
    let report = Report::new(job, execution, max_chars);
    let reported = daemon.reported(run).await;
    let mut ran = Ran {
        run: run.run.clone(),
        job: job.id.clone(),
        outcome: report.outcome,
        exit_code: run.exit_code(),
        meaning: run.meaning().to_owned(),
        counts: reported.as_ref().map(|reported| reported.run.counts),
        failures: Vec::new(),
        more_failures: 0,
        duration_ms: report.duration_ms,
        output: report.merged,
        truncated: report.truncated,
        notes: report.notes,
    };
    ran.notes.extend(notes);
    ran.notes.extend(report.error.map(|error| error.message));
    match reported {
        Some(reported) => {
            let frozen = daemon.frozen_failures(&daemon.own_caller()).await;
            ran.more_failures = reported.failures.len().saturating_sub(MAX_NAMED);
            ran.failures = reported
                .failures
                .into_iter()
                .take(MAX_NAMED)
                .map(|failure| {
                    let copy = frozen.iter().find(|copy| copy.id == failure.id);
                    Failed::new(failure, copy.map(|copy| copy.target.clone()))
                })
                .collect();
        }
        None if execution.is_some() && matches!(run.exit_code(), Some(0..=2)) => {
            ran.notes.push("nothing of this run was recorded; was the plugin switched off (-p no:pylair)?".to_owned());
        }
        None => {}
    }
    let text = ran.text();
    render::data(&ran, Some(text))
}

impl Failed {
    fn new(failure: Summary, target: Option<String>) -> Self {
        let place = failure.place.map(|place| format!("{}:{}", place.file, place.line));
        Self {
            id: failure.id,
            status: failure.status,
            test: failure.test,
            kind: failure.kind,
            message: one_line(&failure.message, MAX_LINE_CHARS),
            place,
            occurrences: failure.occurrences,
            target,
        }
    }
}

impl Ran {
    fn text(&self) -> String {
        let mut text = self.output.trim_end().to_owned();
        if !text.is_empty() {
            text.push('\n');
        }
        let code = self.exit_code.map(|code| format!("exit code {code}, ")).unwrap_or_default();
        let _infallible = write!(text, "[tests: {code}{}", self.meaning);
        if let Some(counts) = &self.counts {
            let _infallible = write!(text, "; {}", counts_text(counts));
        }
        let _infallible = write!(text, "; {:.1} s]", self.duration_ms / 1000.0);
        for failure in &self.failures {
            let _infallible = write!(text, "\n{}", failure.line());
        }
        if self.more_failures > 0 {
            let _infallible = write!(text, "\n[and {} more: list_failures]", self.more_failures);
        }
        if self.outcome == Outcome::Running {
            let job = &self.job;
            let _infallible = write!(
                text,
                "\nStill running as job {job}. Go on with get_job(job=\"{job}\"), or stop it with get_job(job=\"{job}\", cancel=true)."
            );
        }
        for note in &self.notes {
            let _infallible = write!(text, "\nNote: {note}.");
        }
        text
    }
}

impl Failed {
    fn line(&self) -> String {
        let mut line = format!("{} ({}) {}: {}: {}", self.id, word(self.status), self.test, self.kind, self.message);
        if let Some(place) = &self.place {
            let _infallible = write!(line, " at {place}");
        }
        match &self.target {
            Some(target) => write!(line, "; frozen: execute(code, target=\"{target}\") asks it"),
            None => write!(line, "; get_failure(\"{}\")", self.id),
        }
        .ok();
        line
    }
}

fn word(status: Status) -> String {
    serde_json::to_value(status).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn counts_text(counts: &Outcomes) -> String {
    let named = [
        (counts.passed, "passed"),
        (counts.failed, "failed"),
        (counts.error, "errors"),
        (counts.skipped, "skipped"),
        (counts.xfailed, "xfailed"),
        (counts.xpassed, "xpassed"),
        (counts.rerun, "rerun"),
    ];
    let said: Vec<_> =
        named.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    if said.is_empty() { "no outcome yet".to_owned() } else { said.join(", ") }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    status: Option<Status>,
    /// A group's id
    group: Option<String>,
    /// Default 20
    limit: Option<usize>,
    /// `next` of the last answer
    after: Option<String>,
}

pub async fn list(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ListArgs = parse(&call)?;
    let filter = Filter { status: args.status, group: args.group, ..Filter::default() };
    let limit = args.limit.unwrap_or(LIMIT).clamp(1, MAX_LIMIT);
    let page: Page<Summary> = call.daemon.failures.list(&filter, limit, args.after.as_deref()).await?;
    let mut text = String::new();
    for failure in &page.items {
        let seen =
            if failure.occurrences > 1 { format!(", seen {} times", failure.occurrences) } else { String::new() };
        let (id, status, group) = (&failure.id, word(failure.status), &failure.group);
        let message = one_line(&failure.message, MAX_LINE_CHARS);
        let _infallible =
            writeln!(text, "{id} ({status}{seen}, group {group}) {}: {}: {message}", failure.test, failure.kind);
    }
    let _infallible = match &page.next {
        Some(next) => write!(text, "[{} in all; more: after=\"{next}\"]", page.total),
        None => write!(text, "[{} in all]", page.total),
    };
    Ok(render::data(&page, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetArgs {
    id: String,
}

/// Everything about one failure.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    #[serde(flatten)]
    explained: Explained,
    /// Its living copy.
    frozen: Copy,
}

pub async fn get(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: GetArgs = parse(&call)?;
    let found = find(call.daemon, &call.caller, &args.id).await?;
    let text = found.text();
    Ok(render::data(&found, Some(text)))
}

/// A failure with all that can be told of it.
pub async fn find(daemon: &Daemon, caller: &Caller, id: &str) -> Result<Found, Refused> {
    let id = id.trim();
    let id = id.strip_prefix("failure:").unwrap_or(id);
    let explained = daemon.failures.explained(id, reading(caller)).await?;
    let frozen = daemon.copy_of(caller, &explained.failure).await;
    Ok(Found { explained, frozen })
}

impl Found {
    fn text(&self) -> String {
        let Explained { failure, hypotheses, next_step, progress, between, .. } = &self.explained;
        let summary = &failure.summary;
        let mut text = String::new();
        let times =
            if summary.occurrences > 1 { format!(", seen {} times", summary.occurrences) } else { String::new() };
        let _infallible = writeln!(text, "Failure {}: {} ({}{times})", summary.id, summary.test, word(summary.status));
        let _infallible = writeln!(text, "{}: {}", summary.kind, summary.message);
        let _infallible = writeln!(
            text,
            "Group {} ({}). First seen {}, last {}.",
            summary.group, failure.why_grouped, summary.first_seen, summary.last_seen
        );
        if let Some(evidence) = failure.seen.iter().find_map(|seen| seen.evidence.as_ref()) {
            write_evidence(&mut text, evidence);
        }
        match (&self.frozen.target, &self.frozen.why_not) {
            (Some(target), _) => {
                let count = self.frozen.frames.len();
                let _infallible = writeln!(
                    text,
                    "Frozen: execute(code, target=\"{target}\") runs in frame 1, target=\"{target}#2\" in the next, of {count}."
                );
            }
            (None, Some(why)) => {
                let _infallible = writeln!(text, "It cannot be questioned: {why}.");
            }
            (None, None) => {}
        }
        if let Some(between) = between {
            let files = between.files.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
            let name = |commit: &Option<String>| {
                commit.as_deref().map_or("?".to_owned(), |commit| commit.chars().take(12).collect())
            };
            let (good, bad) = (name(&between.last_good), name(&between.first_bad));
            let _infallible = writeln!(text, "Last good {good}, first bad {bad}; changed between them: {files}");
        }
        for hypothesis in hypotheses {
            let _infallible = writeln!(text, "Hypothesis: {} ({})", hypothesis.text, hypothesis.because);
            for fact in &hypothesis.evidence {
                let _infallible = writeln!(text, "  {fact}");
            }
        }
        if let Some(step) = next_step {
            let _infallible = writeln!(text, "Next step: {}", step.text);
            if let Some(diff) = &step.diff {
                let _infallible = writeln!(text, "{}", diff.trim_end());
            }
            if let Some(evaluate) = &step.evaluate {
                let _infallible = writeln!(text, "  {}", evaluate.call());
            }
        }
        for made in &failure.investigations_made {
            let rule = made.rule.map_or("no rule".to_owned(), |rule| format!("rule {rule}"));
            let _infallible = writeln!(text, "{} by {} ({rule}): {}", made.at, made.author, made.analysis);
        }
        let _infallible = write!(text, "Rules: {} of {} done", progress.completed, progress.total);
        if let Some(next) = &progress.next {
            let _infallible = write!(text, "; next is {} {}: {}", next.number, next.name, next.question);
        }
        text
    }
}

fn write_evidence(text: &mut String, evidence: &Evidence) {
    for (number, frame) in evidence.frames.iter().enumerate().take(MAX_FRAMES) {
        let _infallible = writeln!(text, "#{} {} at {}:{}", number + 1, frame.function, frame.file, frame.line);
        for local in frame.locals.iter().take(MAX_LOCALS) {
            let _infallible = writeln!(text, "    {} = {}", local.name, one_line(&local.value, MAX_LINE_CHARS));
        }
        if frame.locals.len() > MAX_LOCALS {
            let _infallible = writeln!(text, "    and {} more", frame.locals.len() - MAX_LOCALS);
        }
    }
    if evidence.frames.len() > MAX_FRAMES {
        let _infallible = writeln!(text, "and {} more frames", evidence.frames.len() - MAX_FRAMES);
    }
    let tail = |content: &str| {
        let from = content.char_indices().rev().nth(MAX_TRACEBACK_CHARS).map_or(0, |(at, _)| at);
        content[from..].trim_end().to_owned()
    };
    for (label, content) in
        [("", &evidence.text), ("stdout", &evidence.stdout), ("stderr", &evidence.stderr), ("log", &evidence.log)]
    {
        if !content.trim().is_empty() {
            let label = if label.is_empty() { String::new() } else { format!("--- {label}\n") };
            let _infallible = writeln!(text, "{label}{}", tail(content));
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DebugArgs {
    id: String,
    /// Number 1 to 9, or name
    #[schemars(schema_with = "rule_schema")]
    rule: Option<serde_json::Value>,
    /// What was found out
    analysis: Option<String>,
    status: Option<Status>,
}

fn rule_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": ["integer", "string"], "description": "Number 1 to 9, or name"})
}

pub async fn debug(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: DebugArgs = parse(&call)?;
    let rule = args.rule.filter(|rule| !rule.is_null()).map(|rule| match rule {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    });
    let author = call.caller.client.clone();
    let debug = Debug { rule, analysis: args.analysis, status: args.status, force: false, author };
    let debugged: Debugged = call.daemon.failures.debug(args.id.trim_start_matches("failure:"), debug).await?;
    let mut text = format!(
        "Failure {} is {}. {} of {} rules done.",
        debugged.id,
        word(debugged.status),
        debugged.progress.completed,
        debugged.progress.total
    );
    if let Some(next) = &debugged.next {
        let _infallible = write!(text, " Next: {} {}. {}", next.number, next.name, next.question);
    }
    Ok(render::data(&debugged, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnalyzeArgs {
    /// Default fingerprint
    group_by: Option<GroupBy>,
    time_range: Option<TimeRange>,
    include_resolved: Option<bool>,
}

pub async fn analyze(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: AnalyzeArgs = parse(&call)?;
    let mut question = Question::new(Timestamp::now());
    question.group_by = args.group_by.unwrap_or_default();
    question.time_range = args.time_range.unwrap_or_default();
    question.include_resolved = args.include_resolved.unwrap_or_default();
    question.zone = TimeZone::system();
    question.limit = Some(LIMIT);
    let analysis: Analysis = call.daemon.failures.analysis(&question, reading(&call.caller)).await?;
    let text = analysis_text(&analysis);
    Ok(render::data(&analysis, Some(text)))
}

fn analysis_text(analysis: &Analysis) -> String {
    let mut text = format!(
        "{} failures, {} occurrences, {} groups by {}\n",
        analysis.total_failures,
        analysis.total_occurrences,
        analysis.group_count,
        analysis.group_by.name()
    );
    for group in &analysis.groups {
        let _infallible = writeln!(
            text,
            "{}: {} ({} failures in {} tests, {} occurrences, last {})",
            group.id,
            one_line(&group.title, MAX_LINE_CHARS),
            group.failures,
            group.tests,
            group.occurrences,
            group.last_seen
        );
        for place in group.places.iter().take(2) {
            let line = place.line.map(|line| format!(":{line}")).unwrap_or_default();
            let _infallible = writeln!(text, "  at {}{line}, {} occurrences", place.file, place.occurrences);
        }
        if let Some(hypothesis) = group.hypotheses.first() {
            let _infallible = writeln!(text, "  hypothesis: {}", hypothesis.text);
        }
        let _infallible = writeln!(text, "  such as {}", group.examples.join(", "));
    }
    if analysis.more_groups > 0 {
        let _infallible = writeln!(text, "[and {} more groups]", analysis.more_groups);
    }
    for triage in &analysis.insights.triage {
        let _infallible = writeln!(text, "{}: {}", triage.group, triage.recommendation);
    }
    text.truncate(text.trim_end().len());
    text
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptArgs {
    failure: Option<String>,
    /// Or a group's id
    group: Option<String>,
    /// Default detailed
    style: Option<Style>,
}

/// What a prompt is to be about.
pub fn subject(failure: Option<String>, group: Option<String>) -> Result<Subject, ToolError> {
    match (failure, group) {
        (Some(failure), None) => Ok(Subject::Failure(failure.trim_start_matches("failure:").to_owned())),
        (None, Some(group)) => Ok(Subject::Group(group)),
        _ => Err(ToolError {
            kind: "bad_argument",
            message: "either `failure` or `group` is needed, and not both".to_owned(),
            hint: "list_failures shows failures, analyze_failures groups".to_owned(),
        }),
    }
}

pub async fn write_prompt(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: PromptArgs = parse(&call)?;
    let subject = subject(args.failure, args.group)?;
    let style = args.style.unwrap_or_default();
    let prompt: Prompt = call.daemon.failures.prompt(&subject, style, None, reading(&call.caller)).await?;
    let text = prompt.prompt.clone();
    Ok(render::data(&prompt, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordArgs {
    test_name: String,
    /// Begins with its type, as Python prints it
    error_message: String,
    file_path: Option<String>,
    line_number: Option<u32>,
    traceback: Option<String>,
    locals: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Recorded {
    id: String,
}

pub async fn record(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: RecordArgs = parse(&call)?;
    let value = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    let failure = ByHand {
        project: None,
        test: args.test_name,
        file: args.file_path,
        line: args.line_number,
        message: args.error_message,
        traceback: args.traceback.unwrap_or_default(),
        locals: args.locals.unwrap_or_default().into_iter().map(|(name, told)| (name, value(told))).collect(),
    };
    let id = call.daemon.failures.record(failure, &call.caller.client).await?;
    let text = format!("Recorded as failure {id}. Go on with get_failure(\"{id}\").");
    Ok(render::data(&Recorded { id }, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocsArgs {
    /// general, integration, principles, api, client, webui, analytics, prompts or all
    topic: Option<String>,
}

pub async fn read_docs(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: DocsArgs = parse(&call)?;
    let page = guide::read(args.topic.as_deref()).map_err(Refused::from)?;
    let text = format!("{}\n\nTopics: {}", page.docs.trim_end(), page.available_topics.join(", "));
    Ok(render::data(&page, Some(text)))
}
