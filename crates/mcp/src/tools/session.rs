//! Tools that run something in a target, and those on sessions.

use std::{collections::BTreeMap, fmt::Write, path::PathBuf, sync::Arc, time::Duration};

use rmcp::model::{CallToolResult, ProgressNotificationParam};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::{
    app,
    caller::{Door, Scope},
    daemon::{
        Daemon,
        frozen::FrozenStatus,
        targets::{Purpose, Target},
    },
    session as core,
    session::{Interrupted, Job, MAX_CHARS, OnTimeout, OpenOptions, Report, RestartMode, SaveReport, Work, literal},
    settings::seconds,
};
use pylair_os::event_loop;
use pylair_sandbox::Wish;
use pylair_text::{hash::hex, plain::counted};

/// Shortest time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
const MAX_PROGRESS_CHARS: usize = 400;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputForm {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteArgs {
    /// Python source. End the last line with `;` to suppress its value.
    code: String,
    /// A session, app:ID or failure:ID (a frozen test; #2 is its second frame); your default session if left out
    target: Option<String>,
    /// Answer after this many seconds even if it still runs (default 45, 0 at once)
    wait_s: Option<f64>,
    /// Stop the cell after this many seconds (default 900, 0 never); in an app it goes on
    timeout_s: Option<f64>,
    /// After a timeout keep what the cell did, or roll back
    on_timeout: Option<OnTimeout>,
    /// Most characters to return (default 25000)
    max_chars: Option<usize>,
    /// `json` for the structured form
    output: Option<OutputForm>,
}

pub async fn execute(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: ExecuteArgs = parse(&call)?;
    let settings = &call.caller.settings;
    let wait = duration("wait_s", args.wait_s)?.unwrap_or(settings.wait);
    let timeout = match duration("timeout_s", args.timeout_s)? {
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        None => settings.timeout,
    };
    let max_chars = args.max_chars.unwrap_or(settings.max_chars).clamp(200, MAX_CHARS);
    let target = call.target(args.target.as_deref(), Purpose::Run).await?;
    call.check_wanted()?;
    call.begin(&target, Some(&args.code));
    let work = Work::Code { code: args.code, path: None };
    let from = (&call.caller, call.caller.client.as_str());
    let job = target.run(from, work, timeout, args.on_timeout.unwrap_or_default()).await?;
    let form = args.output.unwrap_or_default();
    wait_and_report(&call, &target, &job, wait, max_chars, form).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunFileArgs {
    /// A Python file, relative to the session's working directory
    path: PathBuf,
    /// What it finds in sys.argv[1:]
    args: Option<Vec<String>>,
    target: Option<String>,
    wait_s: Option<f64>,
    timeout_s: Option<f64>,
}

pub async fn run_file(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: RunFileArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::Run).await?;
    let name = args.path.display().to_string();
    // Before it runs: afterwards it may be another one.
    match session.workspace().digest(&name, session.is_confined()).await {
        Ok(digest) => call.detail("sha256", hex(&digest).into()),
        Err(error) => call.detail("unread", error.message().into()),
    }
    let file = session.workspace().seen_as.join(args.path);
    let work = Work::File { file, name, args: args.args.unwrap_or_default(), source: None };
    run(&call, &Target::Session(session), (work, None), args.wait_s, args.timeout_s).await
}

/// Runs a cell with the usual clocks and answers in readable form. With the code as it is recorded, if what was asked for does not
/// say it all.
async fn run(
    call: &Call<'_>,
    target: &Target,
    (work, recorded): (Work, Option<&str>),
    wait_s: Option<f64>,
    timeout_s: Option<f64>,
) -> Result<CallToolResult, ToolError> {
    let settings = &call.caller.settings;
    let wait = duration("wait_s", wait_s)?.unwrap_or(settings.wait);
    let timeout = match duration("timeout_s", timeout_s)? {
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        None => settings.timeout,
    };
    call.check_wanted()?;
    call.begin(target, recorded);
    let from = (&call.caller, call.caller.client.as_str());
    let job = target.run(from, work, timeout, OnTimeout::default()).await?;
    wait_and_report(call, target, &job, wait, settings.max_chars, OutputForm::default()).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallArgs {
    /// What to call, such as `df.describe`
    path: String,
    args: Option<Vec<serde_json::Value>>,
    kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    target: Option<String>,
}

pub async fn call(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: CallArgs = parse(&call)?;
    let code = literal::call(&args.path, &args.args.unwrap_or_default(), &args.kwargs.unwrap_or_default());
    let code = code.map_err(core::Error::BadArgument)?;
    run_around(&call, args.path, (code, true), args.target.as_deref()).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetArgs {
    /// What to set, such as `config.debug` or `rows[0]`
    path: String,
    /// The new value as JSON
    value: Option<serde_json::Value>,
    /// Or a Python expression for it
    expression: Option<String>,
    target: Option<String>,
}

pub async fn set_variable(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    // A `null` is a value, and `Option` would not tell it from none.
    let has_value = call.arguments.contains_key("value");
    let args: SetArgs = parse(&call)?;
    // A value is told by its hash, an expression is code.
    let is_code = args.expression.is_some();
    let value = match (has_value, args.expression) {
        (true, None) => literal::value(&args.value.unwrap_or_default()),
        // On a line of its own, because the expression may end with a comment.
        (false, Some(expression)) => format!("({expression}\n)"),
        _ => {
            let message = "either `value` or `expression` is needed, and not both".to_owned();
            return Err(core::Error::BadArgument(message).into());
        }
    };
    let code = format!("{} = {value}", args.path);
    run_around(&call, args.path, (code, is_code), args.target.as_deref()).await
}

/// Runs code that was written around a path, which the worker checks.
async fn run_around(
    call: &Call<'_>,
    path: String,
    (code, is_recorded): (String, bool),
    target: Option<&str>,
) -> Result<CallToolResult, ToolError> {
    let target = call.target(target, Purpose::Run).await?;
    let recorded = is_recorded.then(|| code.clone());
    let work = Work::Code { code, path: Some(path) };
    run(call, &target, (work, recorded.as_deref()), None, None).await
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoArgs {
    target: Option<String>,
    /// Go back to the end of this cell (0: the start); the cell before the newest if left out
    to: Option<u64>,
}

pub async fn undo(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: UndoArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::Change).await?;
    let _reserved = call.reserve(&session, false).await?;
    Ok(render::data(&session.undo(args.to).await?, None))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchArgs {
    target: Option<String>,
    /// Of the new session
    name: Option<String>,
    /// As it was after this cell; as it is now if left out
    at: Option<u64>,
}

pub async fn branch(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: BranchArgs = parse(&call)?;
    let original = call.session(args.target.as_deref(), Purpose::Change).await?;
    let _reserved = call.reserve(&original, true).await?;
    let session = call.daemon.sessions.branch(&call.caller, &original.info.handle, args.name, args.at).await?;
    let status = session.status();
    let line = status.line();
    Ok(render::data(&status, Some(line)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetJobArgs {
    /// The job id from an answer that said `running`
    job: String,
    /// Wait at most this many seconds (default 45)
    wait_s: Option<f64>,
    /// Interrupt it first
    cancel: Option<bool>,
    /// Most characters to return (default 25000)
    max_chars: Option<usize>,
    /// `json` for the structured form
    output: Option<OutputForm>,
}

pub async fn get_job(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: GetJobArgs = parse(&call)?;
    let wait = duration("wait_s", args.wait_s)?.unwrap_or(call.caller.settings.wait);
    let max_chars = args.max_chars.unwrap_or(call.caller.settings.max_chars).clamp(200, MAX_CHARS);
    let job = call.daemon.job(&call.caller, &args.job).await?;
    // A client on a local socket without the right to run was started with --readonly, and looks.
    let may_look = call.caller.may(Scope::Run) || call.caller.door != Door::Http;
    if !may_look && call.daemon.test_run(&job).is_none() {
        return Err(core::Error::UnknownJob { job: args.job }.into());
    }
    let form = args.output.unwrap_or_default();
    if let Some(execution) = job.execution() {
        return Ok(tell(call.daemon, &job, Some(&execution), call.take_notes(), (max_chars, form)).await);
    }
    let target = call.daemon.target_of_job(&call.caller, &job)?;
    if let Target::Session(session) = &target {
        call.about(session);
    }
    if args.cancel == Some(true) {
        let target = target.clone().open_to(&call.caller)?;
        call.note(target.interrupt(Some(&job.id)).await?.notes);
    }
    wait_and_report(&call, &target, &job, wait, max_chars, form).await
}

/// Waits for a job, tells the client how it goes if it wants to know, and interrupts the cell if the client cancels.
pub(super) async fn wait_and_report(
    call: &Call<'_>,
    target: &Target,
    job: &Arc<Job>,
    wait: Duration,
    max_chars: usize,
    form: OutputForm,
) -> Result<CallToolResult, ToolError> {
    let ended = async {
        match call.progress_token() {
            Some(token) => tokio::select! {
                execution = job.wait(wait) => execution,
                () = report_progress(call, job, token) => None,
            },
            None => job.wait(wait).await,
        }
    };
    let execution = tokio::select! {
        biased;
        execution = ended => execution,
        () = call.cancelled() => {
            if matches!(target, Target::Session(_)) && call.daemon.shutdown.is_cancelled() {
                // Not by the client: the daemon leaves, and ends what runs in a session when it has saved it.
                job.wait(wait).await
            } else if call.is_readonly() {
                job.execution()
            } else {
                target.interrupt(Some(&job.id)).await?;
                job.execution()
            }
        }
    };
    call.came_of(execution.as_ref().map_or(core::Outcome::Running, |execution| execution.outcome));
    if execution.is_none() {
        job.mark_answered();
        call.note(target.why_silent().into_iter().collect());
    }
    if execution.is_none() && call.takes_tasks() {
        let daemon = call.daemon.clone();
        let render = move |job: Arc<Job>| async move {
            let execution = job.execution();
            tell(&daemon, &job, execution.as_deref(), Vec::new(), (max_chars, form)).await
        };
        if let Some(task) = call.tasks().of_job(target.clone(), job.clone(), render) {
            call.become_task(task);
            return Ok(CallToolResult::success(Vec::new()));
        }
    }
    if let Some(refusal) = execution.as_ref().and_then(|execution| execution.refused.clone()) {
        return Err(core::Error::Refused(refusal).into());
    }
    Ok(tell(call.daemon, job, execution.as_deref(), call.take_notes(), (max_chars, form)).await)
}

/// A job as the caller wants to see it.
async fn tell(
    daemon: &Daemon,
    job: &Job,
    execution: Option<&core::Execution>,
    notes: Vec<String>,
    (max_chars, form): (usize, OutputForm),
) -> CallToolResult {
    if let Some(run) = daemon.test_run(job) {
        return super::testing::tell_run(daemon, &run, execution, notes, max_chars).await;
    }
    let mut report = Report::new(job, execution, max_chars);
    event_loop::carry(report.weight()).await;
    for note in notes {
        // A cell's own notes have what was missing of the sandbox it ran in.
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
    }
    let shown = if report.displays.iter().any(|display| display.inline.is_some()) {
        let parts = inline_parts(daemon, &job.id, &report).await;
        event_loop::carry(parts.iter().map(|(_, bytes)| bytes.len()).sum()).await;
        parts
    } else {
        Vec::new()
    };
    render::report(report, shown, form == OutputForm::Json)
}

/// The rich values that are small enough to be given to a model.
async fn inline_parts(daemon: &Daemon, job: &str, report: &Report) -> Vec<(usize, Vec<u8>)> {
    let outputs = daemon.sessions.parts.outputs.clone();
    let indices: Vec<_> = report.displays.iter().filter_map(|display| display.inline).collect();
    let job = job.to_owned();
    let read = move || {
        let read = |index: usize| Some((index, outputs.read_part(&job, index).ok()?.1));
        indices.into_iter().filter_map(read).collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

/// Sends new output as progress until the future is dropped.
async fn report_progress(call: &Call<'_>, job: &Job, token: rmcp::model::ProgressToken) {
    let mut cursor = pylair_output::Cursor::default();
    let mut tick = tokio::time::interval(PROGRESS_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick.tick().await;
    let mut chars = 0_u64;
    let is_test_run = call.daemon.test_run(job).is_some();
    loop {
        tick.tick().await;
        let seconds = job.elapsed().as_secs_f64();
        let mut message = String::new();
        loop {
            let read = job.capture.read_from(cursor);
            cursor = read.cursor;
            if read.parts.is_empty() {
                break;
            }
            for (_, text) in read.parts {
                chars += text.chars().count() as u64;
                message.push_str(&text);
            }
            // There may be any amount of it.
            tokio::task::yield_now().await;
            // Only the newest is worth a person's glance; the whole comes with the answer.
            if message.len() > 4 * MAX_PROGRESS_CHARS {
                let from = message.char_indices().rev().nth(MAX_PROGRESS_CHARS).map_or(0, |(at, _)| at);
                message.drain(..from);
            }
        }
        if is_test_run {
            message = super::testing::printed(message);
        }
        let message = match (message.trim_end(), job.waits()) {
            ("", Some(waits)) => format!("cell {} waits for {}", job.cell, waits.behind),
            ("", None) => format!("cell {} has been running for {seconds:.0} s, {chars} characters printed", job.cell),
            (text, _) => {
                let from = text.char_indices().rev().nth(MAX_PROGRESS_CHARS).map_or(0, |(at, _)| at);
                text[from..].to_owned()
            }
        };
        call.notify_progress(ProgressNotificationParam::new(token.clone(), seconds).with_message(message)).await;
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetArgs {
    target: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterruptArgs {
    /// A session, or an app as app:ID; yours if left out
    target: Option<String>,
}

pub async fn interrupt(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: InterruptArgs = parse(&call)?;
    let target = call.target(args.target.as_deref(), Purpose::AsItIs).await?.open_to(&call.caller)?;
    let interrupted = target.interrupt(None).await?;
    let text = interrupted_text(&interrupted);
    Ok(render::data(&interrupted, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenArgs {
    name: Option<String>,
    /// Interpreter: path, version such as 3.12, virtual environment or project directory
    python: Option<String>,
    cwd: Option<PathBuf>,
    /// Environment variables to add
    env: Option<BTreeMap<String, String>>,
    /// Code to run first, now and after every restart
    startup: Option<String>,
    /// Modules to have imported already, which makes opening fast
    preload: Option<Vec<String>>,
    #[serde(default)]
    #[schemars(schema_with = "sandbox_schema")]
    sandbox: Option<serde_json::Value>,
    description: Option<String>,
    /// Keep its definition when it is closed; the next use starts it again
    keep: Option<bool>,
    /// Bring variables back from a save, or from the newest save of a session's name
    restore: Option<String>,
}

/// In few words: what is in the object is in the description, and checked when it is used.
fn sandbox_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": ["string", "object"],
        "description": "`open` (your own rights), `workspace` (own files only), `sealed` (also no network), or {profile, allow_read, \
            allow_write, allow_net: [\"host:port\"], env: [names], memory_mb, cpu_s, processes, open_files, file_size_mb, tmp_mb, \
            disk_mb, wall_s}",
    })
}

/// A session that was opened, and what came back of a save.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Opened {
    #[serde(flatten)]
    status: core::Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<core::saved::Restored>,
}

pub async fn open(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: OpenArgs = parse(&call)?;
    let options = OpenOptions {
        name: args.name,
        python: args.python,
        cwd: args.cwd,
        env: args.env.unwrap_or_default(),
        startup: args.startup,
        preload: args.preload.unwrap_or_default(),
        sandbox: args.sandbox.map(Wish::from_json).transpose().map_err(core::Error::Sandbox)?,
        description: args.description,
        keep: args.keep.unwrap_or_default(),
        restore: args.restore,
    };
    if let Some(startup) = &options.startup {
        call.begin_opening(options.name.as_deref().unwrap_or_default(), startup);
    }
    call.in_turn().await;
    let session = call.daemon.sessions.open(&call.caller, options).await?;
    call.about(&session);
    call.reached(&session.info.name);
    let opened = Opened { status: session.status(), restored: session.restored().cloned() };
    let mut text = opened.status.line();
    for note in opened.restored.iter().flat_map(core::saved::Restored::notes) {
        text.push_str("\nNote: ");
        text.push_str(&note);
    }
    Ok(render::data(&opened, Some(text)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartArgs {
    target: Option<String>,
    /// `restart` (default): a new process; `clear`: the same one with its variables gone
    mode: Option<RestartMode>,
    /// Bring back what can be saved of the variables
    keep_variables: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Restarted {
    session: String,
    notes: Vec<String>,
}

pub async fn restart(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: RestartArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::Change).await?;
    let mode = args.mode.unwrap_or_default();
    let keeps_variables = args.keep_variables.unwrap_or_default();
    // A new process is how a session is had back whatever it runs: that waits for nothing.
    let waits = keeps_variables || mode == RestartMode::Clear;
    let _reserved = if waits { call.reserve(&session, false).await? } else { None };
    let notes = match (keeps_variables, mode) {
        (false, mode) => session.restart(mode).await?,
        (true, RestartMode::Restart) => call.daemon.sessions.restart_keeping(&session).await?,
        (true, RestartMode::Clear) => {
            let message = "keep_variables and mode `clear` contradict each other".to_owned();
            return Err(core::Error::BadArgument(message).into());
        }
    };
    Ok(render::data(&Restarted { session: session.info.name.to_string(), notes }, None))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseArgs {
    /// A session, or an app as app:ID; yours if left out
    target: Option<String>,
    /// Also remove the definition of a kept session
    forget: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Closed {
    closed: String,
}

pub async fn close(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: CloseArgs = parse(&call)?;
    call.in_turn().await;
    let forget = args.forget.unwrap_or_default();
    if let (None, Ok(own)) = (&args.target, call.daemon.own_target(&call.caller)) {
        call.about_handle(&own);
    }
    let closed = call.daemon.close_target(&call.caller, args.target.as_deref(), forget).await?;
    call.reached(&closed);
    Ok(render::data(&Closed { closed }, None))
}

pub async fn save(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: TargetArgs = parse(&call)?;
    let session = call.session(args.target.as_deref(), Purpose::AsItIs).await?.open_to(&call.caller)?;
    let _reserved = call.reserve(&session, false).await?;
    let report = call.daemon.sessions.save(&session).await?;
    let text = saved_text(&report);
    Ok(render::data(&report, Some(text)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Session,
    App,
    Failure,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    kind: Option<Kind>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Targets {
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<Vec<core::Status>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    apps: Option<Vec<app::Status>>,
    /// Tests frozen at the moment they failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<Vec<FrozenStatus>>,
}

pub async fn list(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let ListArgs { kind } = parse(&call)?;
    let is_wanted = |wanted: Kind| kind.is_none_or(|kind| kind == wanted);
    let sessions = is_wanted(Kind::Session).then(|| call.daemon.sessions.statuses(&call.caller));
    let (mut apps, mut failures) = (None, None);
    if is_wanted(Kind::App) {
        apps = Some(call.daemon.apps.statuses(&call.caller).await);
    }
    if is_wanted(Kind::Failure) {
        failures = Some(call.daemon.frozen_failures(&call.caller).await);
    }
    let mut lines: Vec<_> = sessions.iter().flatten().map(core::Status::line).collect();
    lines.extend(apps.iter().flatten().map(app::Status::line));
    lines.extend(failures.iter().flatten().map(FrozenStatus::line));
    if lines.is_empty() {
        lines.push(match kind {
            Some(Kind::App) => "no app is running".to_owned(),
            Some(Kind::Failure) => "no failure is frozen; run_tests freezes those it finds".to_owned(),
            _ => "no session is open; execute opens one".to_owned(),
        });
    }
    Ok(render::data(&Targets { sessions, apps, failures }, Some(lines.join("\n"))))
}

/// What an interrupt did, as a model reads it.
fn interrupted_text(interrupted: &Interrupted) -> String {
    let Interrupted { session, job, outcome, notes } = interrupted;
    let mut text = match (job, outcome) {
        (None, _) => format!("Nothing was running in {session}."),
        (Some(job), Some(outcome)) => {
            format!("Job {job} in {session} has ended: {}.", outcome.as_str().replace('_', " "))
        }
        (Some(job), None) => format!("Job {job} in {session} has not ended yet."),
    };
    // The first sentence says that already.
    write_notes(&mut text, notes.iter().filter(|note| *note != "nothing was running"));
    text
}

/// What was saved, as a model reads it.
fn saved_text(report: &SaveReport) -> String {
    const SHOWN: usize = 20;
    let SaveReport { session, save, saved, verified, notes } = report;
    let mut text = format!(
        "Saved {} of {session} as {save} ({}), {verified} of them verified. open_session(restore=\"{save}\") restores them.",
        counted(saved.saved.len(), "variable"),
        render::size_text(saved.bytes)
    );
    let names: Vec<_> = saved.saved.iter().take(SHOWN).map(|variable| variable.name.as_str()).collect();
    if !names.is_empty() {
        let more = saved.saved.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _infallible = write!(text, "\nSaved: {}{more}", names.join(", "));
    }
    for lost in saved.not_saved.iter().take(SHOWN) {
        let _infallible = write!(text, "\nNot saved: {}: {}", lost.name, lost.reason);
    }
    let more = saved.not_saved.len().saturating_sub(SHOWN);
    if more > 0 {
        let _infallible = write!(text, "\nNot saved: {more} more");
    }
    if let Some(more) = saved.more {
        let _infallible = write!(text, "\n{} left out of these lists", counted(more, "name"));
    }
    write_notes(&mut text, notes);
    text
}

fn write_notes<'a>(text: &mut String, notes: impl IntoIterator<Item = &'a String>) {
    for note in notes {
        let _infallible = write!(text, "\nNote: {note}.");
    }
}

pub(super) fn duration(name: &str, value: Option<f64>) -> Result<Option<Duration>, ToolError> {
    let Some(value) = value else { return Ok(None) };
    seconds(value).map(Some).ok_or_else(|| ToolError {
        kind: "bad_argument",
        message: format!("{name} is {value}, which is not a number of seconds"),
        hint: "pass a number from 0 up".to_owned(),
    })
}
