//! The tool that runs tests, and how a run is told.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ToolError,
    failures::{MAX_LINE_CHARS, word},
    parse,
    session::{OutputForm, duration, wait_and_report},
};
use crate::{render, server::Call};
use pylair_core::{
    daemon::{
        Daemon,
        targets::Target,
        testing::{TestRun, TestWish},
    },
    session as core,
    session::{Execution, Job, Outcome, Report},
};
use pylair_failures::{
    record::Status,
    view::{ClosingGroup, Outcomes, Summary, by_group},
};
use pylair_os::event_loop;
use pylair_sandbox::Wish;
use pylair_text::{
    fence::Fenced,
    mask::{self, Reading},
    plain::{one_line, shown_lines},
};

/// Failures of a run that its answer names.
const MAX_NAMED: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunArgs {
    /// Of pytest, such as `tests/test_a.py::test_b` and `-x`
    args: Option<Vec<String>>,
    cwd: Option<PathBuf>,
    /// Interpreter; the project's own if left out
    python: Option<String>,
    /// A session to run them in, with its files, packages and sandbox
    target: Option<String>,
    #[serde(default)]
    #[schemars(schema_with = "any_sandbox")]
    sandbox: Option<serde_json::Value>,
    wait_s: Option<f64>,
}

/// Its contents are described once, where sessions are opened.
fn any_sandbox(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": ["string", "object"], "description": "As for open_session"})
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
    /// One of each group.
    failures: Vec<Failed>,
    /// Failures that none of these stands for.
    more_failures: u64,
    /// Failures that this run shows to be resolved, one of each group.
    resolved: Vec<ClosingGroup>,
    /// Failures whose tests passed in a way that shows nothing, one of each group; `note` says why.
    not_resolved: Vec<ClosingGroup>,
    duration_ms: f64,
    /// What pytest printed.
    output: String,
    truncated: bool,
    /// What kept it from being a run as others are.
    error: Option<String>,
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
    group: String,
    /// How many failures of the run are in its group.
    in_group: u64,
    /// What to pass as `target` to question it, if it is frozen.
    target: Option<String>,
}

pub async fn run_tests(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: RunArgs = parse(&call)?;
    let settings = &call.caller.settings;
    let wait = duration("wait_s", args.wait_s)?.unwrap_or(settings.wait);
    let sandbox = args.sandbox.map(Wish::from_json).transpose().map_err(core::Error::Sandbox)?;
    let wish = TestWish {
        args: args.args.unwrap_or_default(),
        cwd: args.cwd,
        python: args.python,
        target: args.target,
        sandbox,
    };
    call.in_turn().await;
    let run = call.daemon.run_tests(&call.caller, wish).await?;
    let target = Target::Tests(run.clone());
    // What was asked for tells it all: there is no code.
    call.begin(&target, None);
    wait_and_report(&call, &target, &run.job, wait, settings.max_chars, OutputForm::default()).await
}

/// The answer about a run, of `run_tests` and `get_job`.
pub(super) async fn tell_run(
    daemon: &Daemon,
    run: &Arc<TestRun>,
    execution: Option<&Execution>,
    notes: Vec<String>,
    max_chars: usize,
) -> CallToolResult {
    let job: &Job = &run.job;
    if execution.is_some() {
        run.settled().await;
    }
    let report = Report::new(job, execution, max_chars);
    event_loop::carry(report.weight()).await;
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
        resolved: Vec::new(),
        not_resolved: Vec::new(),
        duration_ms: report.duration_ms,
        output: printed(report.merged),
        truncated: report.truncated,
        error: None,
        notes: report.notes,
    };
    ran.notes.extend(notes);
    ran.notes.extend(run.notes());
    ran.error = report.error.map(|error| printed(error.message));
    match reported {
        Some(reported) => {
            let frozen = daemon.frozen_failures(&daemon.shell_caller(None, None, BTreeMap::new())).await;
            let copy = |failure: &Summary| frozen.iter().find(|copy| copy.id == failure.id);
            let groups = by_group(&reported.failures, |failure| copy(failure).is_some());
            ran.more_failures = reported.more_failures;
            for (index, (failure, count)) in groups.into_iter().enumerate() {
                if index < MAX_NAMED {
                    let target = copy(failure).map(|copy| copy.target.clone());
                    ran.failures.push(Failed::new(failure.clone(), count, target));
                } else {
                    ran.more_failures += count as u64;
                }
            }
            let closing = reported.closing(|failure| copy(failure).is_some());
            (ran.resolved, ran.not_resolved) = (closing.resolved, closing.not_resolved);
        }
        None if execution.is_some() && matches!(run.exit_code(), Some(0..=2)) => {
            ran.notes.push(run.unreported().to_owned());
        }
        None => {}
    }
    let text = ran.text();
    render::data(&ran, Some(text))
}

impl Failed {
    fn new(failure: Summary, count: usize, target: Option<String>) -> Self {
        let place = failure.place.map(|place| format!("{}:{}", place.file, place.line));
        Self {
            id: failure.id,
            status: failure.status,
            test: failure.test,
            kind: failure.kind,
            message: one_line(&failure.message, MAX_LINE_CHARS),
            place,
            occurrences: failure.occurrences,
            group: failure.group,
            in_group: count as u64,
            target,
        }
    }
}

/// What a run printed, as it may be told: like what is recorded of it.
pub(super) fn printed(mut text: String) -> String {
    mask::mask(&mut text, Reading::Text);
    shown_lines(&text)
}

impl Ran {
    /// What pytest and the tests printed is data; how it ended and which failures it had comes from the records.
    fn text(&self) -> String {
        let mut text = Fenced::default();
        text.data(&self.output);
        let code = self.exit_code.map(|code| format!("exit code {code}, ")).unwrap_or_default();
        let counts = self.counts.as_ref().and_then(counts_text).map(|counts| format!("; {counts}")).unwrap_or_default();
        text.ours(format!("[tests: {code}{}{counts}; {:.1} s]", self.meaning, self.duration_ms / 1000.0));
        text.data(self.error.as_deref().unwrap_or_default());
        for failure in &self.failures {
            text.ours(failure.line());
        }
        text.data(&self.failures.iter().map(Failed::seen).collect::<Vec<_>>().join("\n"));
        if self.more_failures > 0 {
            text.ours(format!("[and {} more: list_failures]", self.more_failures));
        }
        for group in self.resolved.iter().take(MAX_NAMED) {
            text.ours(format!("This run resolved {}", settled(group)));
        }
        for group in self.not_resolved.iter().take(MAX_NAMED) {
            let note = group.note.as_deref().unwrap_or_default();
            text.ours(format!("This run did not resolve {}: {note}", settled(group)));
        }
        if self.outcome == Outcome::Running {
            let job = &self.job;
            text.ours(format!(
                "Still running as job {job}. Go on with get_job(job=\"{job}\"), or stop it with get_job(job=\"{job}\", cancel=true)."
            ));
        }
        for note in &self.notes {
            text.ours(format!("Note: {note}."));
        }
        text.text()
    }
}

impl Failed {
    /// What is known of it whatever its test says.
    fn line(&self) -> String {
        let (id, status) = (&self.id, word(self.status));
        let many = match self.in_group {
            0 | 1 => String::new(),
            count => format!(", one of {count} in group {}", self.group),
        };
        match &self.target {
            Some(target) => {
                format!("Failure {id} ({status}{many}), frozen: execute(code, target=\"{target}\") asks it")
            }
            None => format!("Failure {id} ({status}{many}): get_failure(\"{id}\")"),
        }
    }

    /// What its test says.
    fn seen(&self) -> String {
        let place = self.place.as_ref().map(|place| format!(" at {place}")).unwrap_or_default();
        one_line(&format!("{} {}: {}: {}{place}", self.id, self.test, self.kind, self.message), 2 * MAX_LINE_CHARS)
    }
}

/// Failures of one cause, without what their tests say.
fn settled(group: &ClosingGroup) -> String {
    match group.failures {
        0 | 1 => format!("failure {}", group.id),
        count => format!("{count} failures in group {}, such as {}", group.group, group.id),
    }
}

/// None when no test has an outcome.
fn counts_text(counts: &Outcomes) -> Option<String> {
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
    (!said.is_empty()).then(|| said.join(", "))
}
