//! Test runs and failures over HTTP: what runs report, what failed, what was found out about it, and what changes, live. Calls
//! `failures`, as the MCP tools do. [`operations`] is the table that routes and the OpenAPI document are made from.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State},
    http::{StatusCode, header, request::Parts},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use futures::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

use super::{
    api::{Failure, Origin, caller_with_target},
    door::{self, MAX_BODY_BYTES},
    openapi::Operation,
    problem,
    router::Entrance,
};
use crate::{
    caller::{Caller, Scope},
    daemon::Daemon,
    failures::{
        self, ByHand, Error,
        explain::{self, Debug, Debugged, Explained, Reading, Refused, Subject},
        guide,
        prompt::{Prompt, Style},
        record::{Status, Taken},
        rules::Progress,
        view::{Filter, Group, Page, Run, RunDetail, Summary},
        watching::Change,
    },
};

const DEFAULT_LIMIT: usize = 50;
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Longer names are nobody's.
const MAX_NAME_BYTES: usize = 4096;
const MAX_LOCALS: usize = 1000;

/// Routes of both spellings, with what they take and answer.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/api/failures", "list_failures", "Failures, last seen first", || get(list))
            .query::<ListQuery>()
            .answers::<Listed>(),
        Operation::post("/api/failures", "record_failure", "Record a failure by hand", || post(register))
            .body::<NewFailure>()
            .created::<Recorded>(),
        Operation::get("/api/failures/events", "watch_failures", "What changes, as server-sent events", || get(events))
            .streams::<Change>(),
        Operation::get(
            "/api/failures/{id}",
            "get_failure",
            "A failure with its evidence, what is thought of it and its trail",
            || get(show),
        )
        .answers::<Explained>(),
        Operation::post(
            "/api/failures/{id}/debug",
            "debug_failure",
            "Record an analysis, or what a failure is",
            || post(debug_named),
        )
        .body::<Finding>()
        .answers::<DebugAnswer>(),
        Operation::post("/api/debug", "debug_failure_by_body", "The same, with the failure named in the body", || {
            post(debug)
        })
        .body::<NamedFinding>()
        .answers::<DebugAnswer>(),
        Operation::get(
            "/api/analytics",
            "analyze_failures",
            "What failures have in common, the most urgent first",
            || get(analytics),
        )
        .query::<AnalyticsQuery>()
        .answers::<failures::analysis::Report>(),
        Operation::get("/api/prompt", "write_debug_prompt", "A prompt for a model, of a failure or a group", || {
            get(prompt)
        })
        .query::<PromptQuery>()
        .answers::<Prompt>(),
        Operation::get("/api/prompts/{id}", "write_debug_prompt_by_id", "The same, by the id of either", || {
            get(prompt_named)
        })
        .query::<StyleQuery>()
        .answers::<Prompt>(),
        Operation::get("/api/docs", "read_docs", "How failures are worked with", || get(docs))
            .query::<DocsQuery>()
            .answers::<guide::Page>(),
        Operation::get("/api/groups", "list_groups", "Groups of failures, last seen first", || get(groups))
            .query::<GroupsQuery>()
            .answers::<Groups>(),
        Operation::get("/api/groups/{id}", "get_group", "The failures of a group", || get(group)).answers::<Listed>(),
        Operation::post("/api/groups/split", "split_group", "Put failures into a group of their own, for good", || {
            post(split)
        })
        .body::<Split>()
        .answers::<GroupId>(),
        Operation::post("/api/groups/merge", "merge_groups", "Put two groups together, for good", || post(merge))
            .body::<Merge>()
            .answers::<GroupId>(),
        Operation::get("/api/runs", "list_runs", "Test runs, newest first", || get(runs))
            .query::<RunsQuery>()
            .answers::<Runs>(),
        Operation::get("/api/runs/{run}", "get_run", "A run with what failed in it", || get(run))
            .answers::<RunDetail>(),
        Operation::post("/api/runs/{run}/records", "report_run", "Records of a run, one JSON object a line", || {
            post(records)
        })
        .takes_lines()
        .answers::<Taken>(),
    ]
}

pub fn router(daemon: Arc<Daemon>) -> Router {
    operations()
        .into_iter()
        .fold(Router::new(), |router, operation| router.route(operation.path, (operation.route)()))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(axum::middleware::from_fn(door::in_our_shape))
        .with_state(daemon)
}

/// What a request was refused with.
#[derive(Debug)]
struct Problem(StatusCode, Failure);

impl Problem {
    fn new(status: StatusCode, kind: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self(status, Failure { kind: kind.to_owned(), message: message.into(), hint: hint.into() })
    }

    fn unprocessable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_argument", message, hint)
    }

    /// Something that was named in a query or a body, beside what the address is of.
    fn in_argument(self) -> Self {
        if self.0 == StatusCode::NOT_FOUND { Self(StatusCode::UNPROCESSABLE_ENTITY, self.1) } else { self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = problem::response(self.0, &self.1);
        if self.0 == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("5"));
        }
        response
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            _ if error.is_temporary() => StatusCode::SERVICE_UNAVAILABLE,
            "invalid" => StatusCode::UNPROCESSABLE_ENTITY,
            "unknown_run" | "not_shown" => StatusCode::CONFLICT,
            "unknown_failure" | "unknown_group" | "unknown" => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.kind(), error.message(), error.hint())
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let status = match refused {
            Refused::Store(error) => return error.into(),
            Refused::Word(_) | Refused::Rule(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Refused::Missing { .. } => StatusCode::NOT_FOUND,
        };
        Self::new(status, refused.kind(), refused.message(), refused.hint())
    }
}

impl From<failures::analysis::Unknown> for Problem {
    fn from(unknown: failures::analysis::Unknown) -> Self {
        Refused::from(unknown).into()
    }
}

/// A query, refused in our own shape.
struct Asked<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let hint = "`/docs` shows what this address takes";
        // No database keeps a NUL, so nothing can be found by one.
        if parts.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(Problem::unprocessable("there is a NUL in the query", hint));
        }
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|error| Problem::unprocessable(error.to_string(), hint))
    }
}

/// The name in a path.
struct Named(String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = Path::<String>::from_request_parts(parts, state).await.map(|Path(name)| name);
        match name {
            Ok(name) if name.len() <= MAX_NAME_BYTES && !name.contains('\0') => Ok(Self(name)),
            _ => {
                Err(Problem::new(StatusCode::NOT_FOUND, "unknown", "there is nothing of this name", "look at the list"))
            }
        }
    }
}

/// JSON that is none is 400, JSON that says something else 422.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let hint = "send a JSON object; `/docs` shows its fields";
        let message = format!("the body is not valid: {error}");
        if error.is_data() {
            Problem::unprocessable(message, hint)
        } else {
            Problem::new(StatusCode::BAD_REQUEST, "bad_argument", message, hint)
        }
    })
}

/// Who asks: what may be read for them, and what they are called.
struct Asking {
    caller: Caller,
    is_here: bool,
}

impl Asking {
    async fn new(daemon: &Arc<Daemon>, entrance: Entrance) -> Self {
        let is_here = matches!(entrance, Entrance::Unix(_));
        Self { caller: caller_with_target(daemon, entrance, Origin::default()).await, is_here }
    }

    fn reading(&self) -> Reading {
        if self.caller.may(Scope::Admin) { Reading::Project } else { Reading::Nothing }
    }

    /// A name is believed on the local socket; elsewhere the token says who it is.
    fn author(&self, said: Option<&str>) -> String {
        let said = said.map(|said| crate::plain::one_line(said, 100)).filter(|said| !said.is_empty());
        match &self.caller.credential {
            Some(credential) => credential.token.to_string(),
            None => said.unwrap_or_else(|| self.caller.client.clone()),
        }
    }

    /// Writes down what was changed, and how that went.
    fn recorded<T>(&self, daemon: &Daemon, tool: &str, target: &str, result: Result<T, Problem>) -> Result<T, Problem> {
        let mut record = daemon.audit.call(&self.caller, tool);
        record.target(Some(target));
        match &result {
            Ok(_) => record.conclude(None),
            Err(Problem(_, failure)) => record.conclude(Some((&failure.kind, &failure.message))),
        }
        result
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct ListQuery {
    #[schemars(extend("enum" = ["new", "in_progress", "resolved", "flaky", "reopened"]))]
    status: Option<String>,
    /// The id of a group.
    group: Option<String>,
    /// Name, root or remote of a project.
    project: Option<String>,
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
struct Listed {
    total: u64,
    failures: Vec<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

async fn list(State(daemon): State<Arc<Daemon>>, Asked(query): Asked<ListQuery>) -> Result<Response, Problem> {
    let status = query.status.as_deref().filter(|status| !status.is_empty()).map(explain::status).transpose()?;
    if let Some(group) = &query.group {
        daemon.failures.members(group).await.map_err(|refused| Problem::from(refused).in_argument())?;
    }
    let Page { items, total, next } = daemon
        .failures
        .list(
            &Filter { status, group: query.group, project: query.project, test: query.test, ..Filter::default() },
            query.limit.unwrap_or(DEFAULT_LIMIT),
            query.after.as_deref(),
        )
        .await?;
    Ok(Json(Listed { total, failures: items, next }).into_response())
}

async fn show(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Named(id): Named,
) -> Result<Response, Problem> {
    let asking = Asking::new(&daemon, entrance).await;
    Ok(Json(daemon.failures.explained(&id, asking.reading()).await?).into_response())
}

/// A failure that somebody tells of. The longer names are those of pytest-mcp-server.
#[derive(Debug, Deserialize, JsonSchema)]
struct NewFailure {
    /// The node id, or any name.
    #[serde(alias = "test_name")]
    #[schemars(length(min = 1))]
    test: String,
    #[serde(default, alias = "file_path")]
    file: Option<String>,
    #[serde(default, alias = "line_number")]
    line: Option<u32>,
    /// Type and message, as Python prints them.
    #[serde(default, alias = "error_message")]
    message: String,
    #[serde(default)]
    traceback: String,
    /// Name and value.
    #[serde(default)]
    locals: Option<BTreeMap<String, serde_json::Value>>,
    /// Who tells; taken for granted only on the local socket.
    #[serde(default)]
    author: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Recorded {
    id: String,
    failure_id: String,
    session_id: String,
    message: String,
    #[serde(rename = "next_step")]
    next_step: String,
}

/// No database keeps a NUL.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

async fn register(
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
    let made = daemon.failures.record(failure, &author).await.map_err(Problem::from);
    let id = asking.recorded(&daemon, "record_failure", "failures", made)?;
    let recorded = Recorded {
        session_id: format!("session_{id}"),
        message: format!("failure {id} is recorded"),
        next_step: format!("POST /api/debug with failure_id {id}, principle_number 1 and your analysis"),
        failure_id: id.clone(),
        id: id.clone(),
    };
    let location = format!("/api/failures/{id}");
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(recorded)).into_response())
}

/// A number or a name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum RuleWord {
    Number(u32),
    Name(String),
}

impl RuleWord {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name.clone(),
        }
    }
}

/// What was found out, or what a failure is.
#[derive(Debug, Deserialize, JsonSchema)]
struct Finding {
    /// One of the nine rules, by number or name.
    #[serde(default, alias = "principle_number", alias = "principle")]
    rule: Option<RuleWord>,
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

#[derive(Debug, Deserialize, JsonSchema)]
struct NamedFinding {
    #[serde(alias = "id")]
    failure_id: String,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DebugAnswer {
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

impl From<failures::rules::Rule> for Principle {
    fn from(rule: failures::rules::Rule) -> Self {
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

async fn debug_named(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Problem> {
    found_out(&daemon, entrance, &id, parse(&body)?).await
}

async fn debug(
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
    let found = Debug {
        rule: finding.rule.as_ref().map(RuleWord::text),
        analysis: finding.analysis.as_deref().map(storable),
        status,
        force: finding.force,
        author: asking.author(finding.author.as_deref()),
    };
    let debugged = daemon.failures.debug(id, found).await.map_err(Problem::from);
    let debugged = asking.recorded(daemon, "debug_failure", &format!("failure:{id}"), debugged)?;
    Ok(Json(DebugAnswer::from(debugged)).into_response())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct AnalyticsQuery {
    /// One cause, type, place or message; a fingerprint if left out.
    #[schemars(extend("enum" = ["fingerprint", "error_type", "file_path", "pattern"]))]
    group_by: Option<String>,
    #[schemars(extend("enum" = ["all", "today", "week", "month"]))]
    time_range: Option<String>,
    include_resolved: Option<bool>,
}

async fn analytics(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<AnalyticsQuery>,
) -> Result<Response, Problem> {
    let asking = Asking::new(&daemon, entrance).await;
    let question = explain::question(
        query.group_by.as_deref(),
        query.time_range.as_deref(),
        query.include_resolved.unwrap_or_default(),
    )?;
    Ok(Json(daemon.failures.analysis(&question, asking.reading()).await?).into_response())
}

/// Of a failure or a group, one of the two.
#[derive(Debug, Default, Deserialize, JsonSchema)]
struct PromptQuery {
    #[serde(alias = "failure")]
    failure_id: Option<String>,
    #[serde(alias = "group")]
    group_id: Option<String>,
    /// Detailed if left out.
    #[serde(alias = "style")]
    #[schemars(extend("enum" = ["detailed", "concise", "step_by_step", "root_cause"]))]
    prompt_style: Option<String>,
    /// How long it may be.
    max_tokens: Option<usize>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct StyleQuery {
    /// Detailed if left out.
    #[serde(alias = "style")]
    #[schemars(extend("enum" = ["detailed", "concise", "step_by_step", "root_cause"]))]
    prompt_style: Option<String>,
    /// How long it may be.
    max_tokens: Option<usize>,
}

async fn prompt(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<PromptQuery>,
) -> Result<Response, Problem> {
    let given = |id: Option<String>| id.filter(|id| !id.trim().is_empty());
    let (subject, is_group) = match (given(query.failure_id), given(query.group_id)) {
        (Some(id), None) => (Subject::Failure(id), false),
        (None, Some(id)) => (Subject::Group(id), true),
        _ => {
            let message = "a prompt is of a failure or of a group";
            return Err(Problem::unprocessable(message, "give either failure_id or group_id"));
        }
    };
    let style = StyleQuery { prompt_style: query.prompt_style, max_tokens: query.max_tokens };
    let written = write_prompt(&daemon, entrance, subject, &style).await;
    written.map_err(|problem| if is_group { problem.in_argument() } else { problem })
}

async fn prompt_named(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Named(id): Named,
    Asked(query): Asked<StyleQuery>,
) -> Result<Response, Problem> {
    let is_group = match daemon.failures.get(&id).await {
        Ok(_) => false,
        Err(Error::Unknown { .. }) => id.contains(':') || daemon.failures.group(&id).await.is_ok(),
        Err(error) => return Err(error.into()),
    };
    let subject = if is_group { Subject::Group(id) } else { Subject::Failure(id) };
    write_prompt(&daemon, entrance, subject, &query).await
}

async fn write_prompt(
    daemon: &Arc<Daemon>,
    entrance: Entrance,
    subject: Subject,
    query: &StyleQuery,
) -> Result<Response, Problem> {
    let asking = Asking::new(daemon, entrance).await;
    let style: Style = query.prompt_style.as_deref().map(str::parse).transpose()?.unwrap_or_default();
    Ok(Json(daemon.failures.prompt(&subject, style, query.max_tokens, asking.reading()).await?).into_response())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct DocsQuery {
    #[schemars(extend("enum" = guide::TOPICS))]
    topic: Option<String>,
}

async fn docs(Asked(query): Asked<DocsQuery>) -> Result<Response, Problem> {
    Ok(Json(guide::read(query.topic.as_deref())?).into_response())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct GroupsQuery {
    /// Groups with such failures.
    #[schemars(extend("enum" = ["new", "in_progress", "resolved", "flaky", "reopened"]))]
    status: Option<String>,
    /// Name, root or remote of a project.
    project: Option<String>,
    /// How many, at most 1000.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Groups {
    groups: Vec<Group>,
}

async fn groups(State(daemon): State<Arc<Daemon>>, Asked(query): Asked<GroupsQuery>) -> Result<Response, Problem> {
    let status = query.status.as_deref().map(explain::status).transpose()?;
    let filter = Filter { status, project: query.project, ..Filter::default() };
    let groups = daemon.failures.groups(&filter, query.limit.unwrap_or(DEFAULT_LIMIT)).await?;
    Ok(Json(Groups { groups }).into_response())
}

async fn group(State(daemon): State<Arc<Daemon>>, Named(id): Named) -> Result<Response, Problem> {
    let mut failures = daemon.failures.members(&id).await?;
    let total = failures.len() as u64;
    failures.truncate(1000);
    Ok(Json(Listed { total, failures, next: None }).into_response())
}

/// Ids of failures.
#[derive(Debug, Deserialize, JsonSchema)]
struct Split {
    #[schemars(length(min = 1))]
    failures: Vec<String>,
    #[serde(default)]
    author: Option<String>,
}

/// Ids of groups.
#[derive(Debug, Deserialize, JsonSchema)]
struct Merge {
    into: String,
    from: String,
    #[serde(default)]
    author: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct GroupId {
    group: String,
}

async fn split(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, Problem> {
    let body: Split = parse(&body)?;
    let asking = Asking::new(&daemon, entrance).await;
    let ids: Vec<String> = body.failures.iter().take(1000).map(|id| storable(id)).collect();
    let made = daemon.failures.split(&ids, &asking.author(body.author.as_deref())).await;
    let made = made.map_err(|error| Problem::from(error).in_argument());
    let group = asking.recorded(&daemon, "split_group", &ids.join(" "), made)?;
    Ok(Json(GroupId { group }).into_response())
}

async fn merge(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, Problem> {
    let body: Merge = parse(&body)?;
    let asking = Asking::new(&daemon, entrance).await;
    let (into, from) = (storable(&body.into), storable(&body.from));
    let merged = daemon.failures.merge(&into, &from, &asking.author(body.author.as_deref())).await;
    let merged = merged.map_err(|error| Problem::from(error).in_argument());
    asking.recorded(&daemon, "merge_groups", &format!("{into} {from}"), merged)?;
    Ok(Json(GroupId { group: daemon.failures.group(&into).await? }).into_response())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
struct RunsQuery {
    /// Name, root or remote of a project.
    project: Option<String>,
    /// How many, at most 1000.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The `next` of the page before.
    after: Option<String>,
}

/// Some runs. `next` is what `after` takes for those that follow.
#[derive(Debug, Serialize, JsonSchema)]
struct Runs {
    total: u64,
    runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

async fn runs(State(daemon): State<Arc<Daemon>>, Asked(query): Asked<RunsQuery>) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    let page = daemon.failures.runs(query.project.as_deref(), limit, query.after.as_deref()).await?;
    Ok(Json(Runs { total: page.total, runs: page.items, next: page.next }).into_response())
}

async fn run(State(daemon): State<Arc<Daemon>>, Named(run): Named) -> Result<Response, Problem> {
    Ok(Json(daemon.failures.run(&run).await?).into_response())
}

/// What the plugin sends. The answer says that all of it is on disk.
async fn records(State(daemon): State<Arc<Daemon>>, Named(run): Named, body: Bytes) -> Result<Response, Problem> {
    Ok(Json(daemon.take_records(&run, body.into()).await?).into_response())
}

/// What changes, until the reader leaves.
async fn events(State(daemon): State<Arc<Daemon>>) -> Response {
    let changes = BroadcastStream::new(daemon.failures.watch()).map(|change| {
        let change = match change {
            Ok(change) => change,
            Err(BroadcastStreamRecvError::Lagged(_)) => Change::Missed,
        };
        let event = Event::default().event(change.name());
        Ok::<_, Infallible>(event.json_data(&change).unwrap_or_default())
    });
    let changes = changes.take_until(daemon.shutdown.clone().cancelled_owned());
    Sse::new(changes).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights;

    #[test]
    fn every_operation_stands_for_a_tool() {
        for operation in operations() {
            let path = operation.path.replace("{id}", "k3n7q2").replace("{run}", "r1");
            let tool = rights::route(operation.method, &path);
            assert!(tool.is_some(), "{} {path}", operation.method);
        }
    }
}
