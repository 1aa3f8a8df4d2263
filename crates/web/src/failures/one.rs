//! Failures one by one: listed, recorded by hand, shown, worked on.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Asked, Asking, DEFAULT_LIMIT, Named, Problem, chosen, parse};
use crate::{load::Json, router::Entrance};
use pylair_core::{caller::Scope, daemon::Daemon};
use pylair_failures::{
    ByHand, Error,
    explain::{self, Debug, Debugged},
    project::Chosen,
    record::Status,
    rules::{Progress, Rule},
    view::{Filter, Page, Summary},
};

const MAX_LOCALS: usize = 1000;

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct ListQuery {
    #[schemars(extend("enum" = ["new", "in_progress", "resolved", "flaky", "reopened"]))]
    status: Option<String>,
    /// The id of a group.
    group: Option<String>,
    /// Name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
    /// A part of the node id.
    test: Option<String>,
    /// How many, at most 1000.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The `next` of the page before.
    after: Option<String>,
}

/// Some failures. `next` is what `after` takes for those that follow.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    pub(super) total: u64,
    pub(super) failures: Vec<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    #[serde(flatten)]
    pub(super) of: Chosen,
}

pub(super) async fn list(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, Problem> {
    let status = query.status.as_deref().filter(|status| !status.is_empty()).map(explain::status).transpose()?;
    let of = match (&query.group, &query.project) {
        // A group has a project of its own.
        (Some(_), None) => Chosen::all(),
        (_, project) => chosen(&daemon, entrance, project.as_deref(), query.cwd).await?,
    };
    if let Some(group) = &query.group {
        daemon.failures.members(group, &of).await?;
    }
    let Page { items, total, next } = daemon
        .failures
        .list(
            &Filter { status, group: query.group, of: Some(of.clone()), test: query.test, ..Filter::default() },
            query.limit.unwrap_or(DEFAULT_LIMIT),
            query.after.as_deref(),
        )
        .await?;
    Ok(Json(Listed { total, failures: items, next, of }).into_response())
}

pub(super) async fn show(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Named(id): Named,
) -> Result<Response, Problem> {
    let asking = Asking::new(&daemon, entrance).await;
    Ok(Json(daemon.found_failure(&asking.caller, &id, asking.reading()).await?).into_response())
}

/// A failure that somebody tells of. The longer names are those of pytest-mcp-server.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct NewFailure {
    /// The node id, or any name.
    #[serde(alias = "test_name")]
    #[schemars(extend("x-also" = "test_name"))]
    #[schemars(length(min = 1))]
    test: String,
    #[serde(default, alias = "file_path")]
    #[schemars(extend("x-also" = "file_path"))]
    file: Option<String>,
    #[serde(default, alias = "line_number")]
    #[schemars(extend("x-also" = "line_number"))]
    line: Option<u32>,
    /// Type and message, as Python prints them.
    #[serde(default, alias = "error_message")]
    #[schemars(extend("x-also" = "error_message"))]
    message: String,
    #[serde(default)]
    traceback: String,
    /// Name and value.
    #[serde(default)]
    locals: Option<BTreeMap<String, Value>>,
    /// The project it is of; that of `cwd` if left out.
    #[serde(default)]
    project: Option<String>,
    /// The directory of the caller.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Who tells; taken for granted only on the local socket.
    #[serde(default)]
    author: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Recorded {
    id: String,
    /// The same, as pytest-mcp-server calls it.
    #[serde(rename = "failureId")]
    failure: String,
    #[serde(rename = "sessionId")]
    session: String,
    message: String,
    next_step: String,
}

/// No database keeps a NUL.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) async fn register(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, Problem> {
    let asking = Asking::new(&daemon, entrance).await;
    // A large one takes a while to read.
    let body: NewFailure = tokio::task::spawn_blocking(move || parse(&body)).await.map_err(|_| Error::Closed)??;
    let locals = body.locals.unwrap_or_default().into_iter().take(MAX_LOCALS).map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        (storable(&name), storable(&text))
    });
    let failure = ByHand {
        project: None,
        test: storable(&body.test),
        file: body.file.as_deref().map(storable),
        line: body.line,
        message: storable(&body.message),
        traceback: storable(&body.traceback),
        locals: locals.collect(),
    };
    let author = asking.author(body.author.as_deref());
    let project = body.project.as_deref().map(storable);
    let at = (project.as_deref(), body.cwd.as_deref().filter(|_| asking.caller.may(Scope::Admin)));
    let made = daemon.failures.record(failure, &author, at).await.map_err(Problem::from);
    let id = asking.recorded(&daemon, "record_failure", "failures", made)?;
    let recorded = Recorded {
        session: format!("session_{id}"),
        message: format!("failure {id} is recorded"),
        next_step: format!("POST /api/debug with failure_id {id}, principle_number 1 and your analysis"),
        failure: id.clone(),
        id: id.clone(),
    };
    let location = format!("/api/failures/{id}");
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(recorded)).into_response())
}

/// What was found out, or what a failure is.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Finding {
    /// One of the nine rules, by number or name.
    #[serde(default, alias = "principle_number")]
    #[schemars(schema_with = "rule_schema")]
    rule: Option<Value>,
    #[serde(default)]
    analysis: Option<String>,
    /// `resolved` is refused unless the test passed since.
    #[serde(default)]
    #[schemars(extend("enum" = [null, "in_progress", "resolved", "flaky", "reopened"]))]
    status: Option<String>,
    /// A person says so whatever the runs show; only on the local socket.
    #[serde(default)]
    force: bool,
    /// Who found it out; taken for granted only on the local socket.
    #[serde(default)]
    author: Option<String>,
}

fn rule_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": ["integer", "string", "null"],
        "description": "One of the nine rules, by number or name",
        "x-also": "principle_number",
    })
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct NamedFinding {
    #[serde(alias = "id")]
    #[schemars(extend("x-also" = "id"))]
    failure_id: String,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DebugAnswer {
    id: String,
    status: Status,
    message: String,
    /// The rule that was worked on.
    current_principle: Option<Principle>,
    next_principle: Option<Principle>,
    is_complete: bool,
    progress: Progress,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Principle {
    number: u8,
    name: &'static str,
    description: &'static str,
    question: &'static str,
}

impl From<Rule> for Principle {
    fn from(rule: Rule) -> Self {
        Self { number: rule.number, name: rule.name, description: rule.description, question: rule.question }
    }
}

impl From<Debugged> for DebugAnswer {
    fn from(debugged: Debugged) -> Self {
        let Debugged { id, status, rule, next, progress } = debugged;
        let word = serde_json::to_value(status).ok().and_then(|word| word.as_str().map(|word| word.replace('_', " ")));
        Self {
            message: format!("failure {id} is {}", word.unwrap_or_default()),
            is_complete: next.is_none(),
            current_principle: rule.map(Into::into),
            next_principle: next.map(Into::into),
            id,
            status,
            progress,
        }
    }
}

pub(super) async fn debug_named(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Problem> {
    found_out(&daemon, entrance, &id, parse(&body)?).await
}

pub(super) async fn debug(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, Problem> {
    let body: NamedFinding = parse(&body)?;
    found_out(&daemon, entrance, &storable(&body.failure_id), body.finding).await
}

async fn found_out(daemon: &Arc<Daemon>, entrance: Entrance, id: &str, finding: Finding) -> Result<Response, Problem> {
    let asking = Asking::new(daemon, entrance).await;
    if finding.force && !asking.is_here {
        let hint = "run the test and see it pass, or use `pylair failures debug --force` where the daemon runs";
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "not_allowed",
            "only a person at the command line may force it",
            hint,
        ));
    }
    let status = finding.status.as_deref().map(explain::status).transpose()?;
    if finding.force && status != Some(Status::Resolved) {
        let hint = "leave it out: nothing has to be shown for another status";
        return Err(Problem::unprocessable("only that a failure is resolved can be forced", hint));
    }
    let found = Debug {
        rule: finding.rule.map(|rule| rule.as_str().map_or_else(|| rule.to_string(), ToOwned::to_owned)),
        analysis: finding.analysis.as_deref().map(storable),
        status,
        force: finding.force,
        author: asking.author(finding.author.as_deref()),
    };
    let debugged = daemon.failures.debug(id, found).await.map_err(Problem::from);
    let debugged = asking.recorded(daemon, "debug_failure", &format!("failure:{id}"), debugged)?;
    Ok(Json(DebugAnswer::from(debugged)).into_response())
}
