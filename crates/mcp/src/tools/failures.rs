//! Tools on failures. Those that run tests are in `testing`.

use std::fmt::Write;

use jiff::{Timestamp, tz::TimeZone};
use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::{
    app::Apps,
    caller::Caller,
    daemon::{
        Daemon,
        frozen::{FailureDetail, unfrozen},
    },
};
use pylair_failures::{
    ByHand,
    analysis::{GroupBy, Question, Report as Analysis, TimeRange},
    explain::{Debug, Debugged, Explained, Reading, Refused, Subject},
    guide,
    project::Chosen,
    prompt::{self, Prompt, Style},
    record::{Evidence, Status},
    view::{Filter, Page, Summary},
};
use pylair_text::{
    fence::Fenced,
    plain::{counted, one_line, times},
};

const LIMIT: usize = 20;
pub(super) const MAX_LINE_CHARS: usize = 300;
const MAX_TRACEBACK_CHARS: usize = 6000;
const MAX_FRAMES: usize = 8;
const MAX_LOCALS: usize = 12;

impl From<pylair_failures::Error> for ToolError {
    fn from(error: pylair_failures::Error) -> Self {
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

pub(super) fn word(status: Status) -> String {
    serde_json::to_value(status).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    /// Yours if left out; `all`
    project: Option<String>,
    status: Option<Status>,
    /// A group's id
    group: Option<String>,
    /// Default 20
    #[schemars(range(min = 1, max = 200))]
    limit: Option<usize>,
    /// `next` of the last answer
    after: Option<String>,
}

pub async fn list(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ListArgs = parse(&call)?;
    let of = chosen(&call, args.project.as_deref(), args.group.as_deref()).await?;
    let filter = Filter { status: args.status, group: args.group, of: Some(of.clone()), ..Filter::default() };
    let limit = args.limit.unwrap_or(LIMIT);
    let page: Page<Summary> = call.daemon.failures.list(&filter, limit, args.after.as_deref()).await?;
    let mut lines = String::new();
    for failure in &page.items {
        let seen =
            if failure.occurrences > 1 { format!(", seen {}", times(failure.occurrences)) } else { String::new() };
        let (id, status, group) = (&failure.id, word(failure.status), &failure.group);
        let message = one_line(&failure.message, MAX_LINE_CHARS);
        let _infallible =
            writeln!(lines, "{id} ({status}{seen}, group {group}) {}: {}: {message}", failure.test, failure.kind);
    }
    let mut text = Fenced::default();
    text.data(&lines);
    text.ours(match &page.next {
        Some(next) => format!("[{} in all; more: after=\"{next}\"]", page.total),
        None => format!("[{} in all]", page.total),
    });
    say_project(&mut text, &of);
    Ok(render::data(&Listed { page, of }, Some(text.text())))
}

/// Failures of a project.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Listed {
    #[serde(flatten)]
    page: Page<Summary>,
    #[serde(flatten)]
    of: Chosen,
}

/// The projects that a call is about. A group that is named has one of its own, unless an analysis made it.
async fn chosen(call: &Call<'_>, project: Option<&str>, group: Option<&str>) -> Result<Chosen, Refused> {
    if project.is_none() && group.is_some_and(|group| !group.contains(':')) {
        return Ok(Chosen::all());
    }
    call.daemon.failures.choose(project, call.caller.cwd.as_deref()).await
}

fn say_project(text: &mut Fenced, of: &Chosen) {
    if let Some(note) = &of.project_note {
        text.data(&format!("Project: {note}"));
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetArgs {
    id: String,
}

pub async fn get(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: GetArgs = parse(&call)?;
    let found = find(call.daemon, &call.caller, &args.id).await?;
    let text = found_text(&found);
    Ok(render::data(&found, Some(text)))
}

/// A failure with all that can be told of it.
pub async fn find(daemon: &Daemon, caller: &Caller, id: &str) -> Result<FailureDetail, Refused> {
    let id = id.trim();
    daemon.found_failure(caller, id.strip_prefix("failure:").unwrap_or(id), reading(caller)).await
}

/// As a model reads it: what comes from tests, and what is thought of that, is data.
fn found_text(found: &FailureDetail) -> String {
    let Explained { failure, progress, .. } = &found.explained;
    let summary = &failure.summary;
    let mut text = Fenced::default();
    let seen = if summary.occurrences > 1 { format!(", seen {}", times(summary.occurrences)) } else { String::new() };
    text.ours(format!(
        "Failure {} ({}{seen}), group {}. First seen {}, last {}.",
        summary.id,
        word(summary.status),
        summary.group,
        summary.first_seen,
        summary.last_seen
    ));
    if let Some(proof) = &failure.proof {
        text.ours(format!("Shown by run {} at {}: {}.", proof.run, proof.at, proof.reason));
    }
    if let Some(note) = &summary.note {
        text.ours(format!("Note: {note}."));
    }
    if let Some(environment) = &found.explained.onset.environment {
        text.data(&format!("Environment changed between the last good and the first bad run: {environment}"));
    }
    let mut seen = format!("{}\n{}: {}\n", summary.test, summary.kind, summary.message);
    let _infallible = writeln!(seen, "In its group: {}", failure.why_grouped);
    if let Some(evidence) = failure.seen.iter().find_map(|seen| seen.evidence.as_ref()) {
        write_evidence(&mut seen, evidence);
    }
    if let (None, Some(why)) = (&found.frozen.target, &found.frozen.why_not) {
        let _infallible = writeln!(seen, "{}.", unfrozen(why));
    }
    if let Some(older) = &found.frozen.older {
        let _infallible = writeln!(seen, "The frozen copy is older than the newest occurrence: {older}.");
    }
    text.data(&seen);
    if let Some(target) = &found.frozen.target {
        let others = match found.frozen.frames.len() {
            0 | 1 => String::new(),
            count => format!(", target=\"{target}#2\" in the next, of {count}"),
        };
        text.ours(format!("Frozen: execute(code, target=\"{target}\") runs in frame 1{others}."));
    }
    text.data(&thoughts(found));
    let mut rules = format!("Rules: {} of {} done", progress.completed, progress.total);
    if let Some(next) = &progress.next {
        let _infallible = write!(rules, "; next is {} {}: {}", next.number, next.name, next.question);
    }
    text.ours(rules);
    text.text()
}

/// What changed, what is thought of it, what to do next, and what was found out, in words that have those of the tests in them.
fn thoughts(found: &FailureDetail) -> String {
    let Explained { failure, hypotheses, next_step, between, .. } = &found.explained;
    let mut text = String::new();
    if let Some(between) = between {
        let files = between.files.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
        let name = |commit: &Option<String>| {
            commit.as_deref().map_or("?".to_owned(), |commit| commit.chars().take(12).collect())
        };
        let (good, bad) = (name(&between.last_good), name(&between.first_bad));
        let _infallible = if between.last_good == between.first_bad {
            writeln!(text, "Passed and failed on {bad}; not committed there: {files}")
        } else {
            writeln!(text, "Last good {good}, first bad {bad}; changed between them: {files}")
        };
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
        if let Some(evaluate) = step.evaluate.as_ref().filter(|_| found.frozen.target.is_some()) {
            let _infallible = writeln!(text, "  {}", evaluate.call());
        }
    }
    for made in &failure.investigations_made {
        let rule = made.rule.map_or("no rule".to_owned(), |rule| format!("rule {rule}"));
        let _infallible = writeln!(text, "{} by {} ({rule}): {}", made.at, made.author, made.analysis);
    }
    text
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
    #[serde(default)]
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
    project: Option<String>,
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
    let of = chosen(&call, args.project.as_deref(), None).await?;
    let analysis: Analysis = call.daemon.failures.analysis(&question, of, reading(&call.caller)).await?;
    let text = analysis_text(&analysis);
    Ok(render::data(&analysis, Some(text)))
}

fn analysis_text(analysis: &Analysis) -> String {
    let mut text = Fenced::default();
    text.ours(format!(
        "Failures: {}, occurrences: {}, groups by {}: {}",
        analysis.total_failures,
        analysis.total_occurrences,
        analysis.group_by.name(),
        analysis.group_count
    ));
    let trend = &analysis.insights.trend;
    let recent = counted(trend.recent, "occurrence");
    text.ours(format!("Trend ({}): {recent}, {} before", analysis.trend_compares, trend.previous));
    say_project(&mut text, &analysis.of);
    let mut lines = String::new();
    for group in &analysis.groups {
        let _infallible = writeln!(
            lines,
            "{}: {} ({} in {}, {}, {}, last {})",
            group.id,
            one_line(&group.title, MAX_LINE_CHARS),
            counted(group.failures, "failure"),
            counted(group.tests, "test"),
            counted(group.occurrences, "occurrence"),
            group.trend.direction.word(),
            group.last_seen
        );
        for place in group.places.iter().take(2) {
            let line = place.line.map(|line| format!(":{line}")).unwrap_or_default();
            let _infallible =
                writeln!(lines, "  at {}{line}, {}", place.file, counted(place.occurrences, "occurrence"));
        }
        if let Some(hypothesis) = group.hypotheses.first() {
            let _infallible = writeln!(lines, "  hypothesis: {}", hypothesis.text);
        }
        let _infallible = writeln!(lines, "  such as {}", group.examples.join(", "));
    }
    for triage in &analysis.insights.triage {
        let _infallible = writeln!(lines, "{}: {}", triage.group, triage.recommendation);
    }
    text.data(&lines);
    if analysis.more_groups > 0 {
        text.ours(format!("[and {}]", counted(analysis.more_groups, "more group")));
    }
    text.text()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptArgs {
    project: Option<String>,
    failure: Option<String>,
    /// Or a group's id
    group: Option<String>,
    /// Default detailed
    style: Option<Style>,
    /// Default 4000
    #[schemars(range(min = prompt::LEAST_TOKENS, max = prompt::MOST_TOKENS))]
    max_tokens: Option<usize>,
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
    let of = match &args.group {
        Some(group) => chosen(&call, args.project.as_deref(), Some(group)).await?,
        None => Chosen::all(),
    };
    let subject = subject(args.failure, args.group)?;
    let style = args.style.unwrap_or_default();
    let reading = reading(&call.caller);
    let prompt: Prompt = call.daemon.failures.prompt(&subject, style, args.max_tokens, &of, reading).await?;
    let note = of.project_note.map(|note| format!("\n\n[{note}]")).unwrap_or_default();
    let text = format!("{}{note}", prompt.prompt);
    Ok(render::data(&prompt, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordArgs {
    project: Option<String>,
    #[serde(alias = "test")]
    #[schemars(extend("x-also" = "test"))]
    test_name: String,
    /// Begins with its type, as Python prints it
    #[serde(alias = "message")]
    #[schemars(extend("x-also" = "message"))]
    error_message: String,
    #[serde(alias = "file")]
    #[schemars(extend("x-also" = "file"))]
    file_path: Option<String>,
    #[serde(alias = "line")]
    #[schemars(extend("x-also" = "line"))]
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
    let at = (args.project.as_deref(), call.caller.cwd.as_deref());
    let id = call.daemon.failures.record(failure, &call.caller.client, at).await?;
    let text = format!("Recorded as failure {id}. Go on with get_failure(\"{id}\").");
    Ok(render::data(&Recorded { id }, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocsArgs {
    /// general, integration, principles, api, client, webui, analytics, prompts or all
    topic: Option<String>,
}

pub fn read_docs(call: &Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: DocsArgs = parse(call)?;
    let page = guide::read(args.topic.as_deref()).map_err(Refused::from)?;
    let text = format!("{}\n\nTopics: {}", page.docs.trim_end(), page.available_topics.join(", "));
    Ok(render::data(&page, Some(text)))
}
