//! Test runs and failures over HTTP: what runs report, what failed, what was found out about it, and what changes, live. Calls
//! `failures`, as the MCP tools do. [`operations`] is the table that routes and the `OpenAPI` document are made from.

mod many;
mod one;
mod runs;

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, FromRequestParts, Path, Query},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    api::{Failure, Origin, caller_with_target},
    door::{self, MAX_BODY_BYTES},
    openapi::Operation,
    problem,
    router::Entrance,
    unique::Unique,
};
use many::{
    AnalyticsQuery, DocsQuery, GroupId, GroupQuery, Groups, GroupsQuery, Merge, PromptQuery, Split, StyleQuery,
    analytics, docs, group, groups, merge, prompt_asked, prompt_named, split,
};
use one::{
    DebugAnswer, Finding, ListQuery, Listed, NamedFinding, NewFailure, Recorded, debug, debug_named, list, register,
    show,
};
use pylair_core::{
    caller::{Caller, Scope},
    daemon::{Daemon, frozen::FailureDetail},
};
use pylair_failures::{
    Error, analysis,
    explain::{Reading, Refused},
    guide,
    project::Chosen,
    prompt::Prompt,
    record::Taken,
    view::RunDetail,
    watching::Change,
};
use pylair_text::{arguments, plain::one_line};
use runs::{RunPage, RunsQuery, events, records, run, runs};

const DEFAULT_LIMIT: usize = 50;
/// Longer names are nobody's.
const MAX_NAME_BYTES: usize = 4096;

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
        .answers::<FailureDetail>(),
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
        .answers::<analysis::Report>(),
        Operation::get("/api/prompt", "write_debug_prompt", "A prompt for a model, of a failure or a group", || {
            get(prompt_asked)
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
        Operation::get("/api/groups/{id}", "get_group", "The failures of a group", || get(group))
            .query::<GroupQuery>()
            .answers::<Listed>(),
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
            .answers::<RunPage>(),
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

impl From<analysis::Unknown> for Problem {
    fn from(unknown: analysis::Unknown) -> Self {
        Refused::from(unknown).into()
    }
}

/// A query, refused in our own words.
struct Asked<T>(T);

impl<T: DeserializeOwned + JsonSchema, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let schema = arguments::schema::<T>();
        let refused = |message: String| {
            Problem::unprocessable(message, format!("this address takes {}", arguments::takes(&schema)))
        };
        // No database keeps a NUL, so nothing can be found by one.
        if parts.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(refused("there is a NUL in the query".to_owned()));
        }
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let Query(pairs) = pairs.map_err(|_| refused("the query is not NAME=VALUE, with & between".to_owned()))?;
        let mut given = Map::new();
        for (name, value) in pairs {
            let kinds = arguments::property(&schema, &name).map(arguments::kinds).unwrap_or_default();
            let typed = match kinds.as_slice() {
                ["integer" | "boolean"] => serde_json::from_str(&value).ok(),
                _ => None,
            };
            let told = one_line(&name, 60);
            if given.insert(name, typed.unwrap_or(Value::String(value))).is_some() {
                return Err(refused(format!("`{told}` is there twice")));
            }
        }
        taken(&schema, given).map(Self).map_err(refused)
    }
}

/// What was given as `T`, or what is wrong with it.
fn taken<T: DeserializeOwned>(schema: &Map<String, Value>, mut given: Map<String, Value>) -> Result<T, String> {
    // Nothing is nothing, whether it is said or not.
    given.retain(|_, value| !value.is_null());
    if let Some(wrong) = arguments::unknown(schema, &given).or_else(|| arguments::beyond(schema, &given)) {
        return Err(wrong);
    }
    let given = Value::Object(given);
    T::deserialize(&given).map_err(|error| {
        let wrong = given.as_object().and_then(|given| arguments::wrong(schema, given));
        wrong.unwrap_or_else(|| format!("what was sent is not valid: {error}"))
    })
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
fn parse<T: DeserializeOwned + JsonSchema>(body: &[u8]) -> Result<T, Problem> {
    let schema = arguments::schema::<T>();
    let hint = || format!("send a JSON object with {}", arguments::takes(&schema));
    let bad = |message: String| Problem::new(StatusCode::BAD_REQUEST, "bad_argument", message, hint());
    if body.is_empty() {
        return Err(bad("the body is empty".to_owned()));
    }
    // Which of two counts is for nobody to choose.
    let read = serde_json::from_slice::<Unique>(body).and_then(|_unique| serde_json::from_slice(body));
    let given = match read {
        Ok(Value::Object(given)) => given,
        Ok(other) => {
            let message = format!("the body has to be an object, not {}", arguments::shown(&other));
            return Err(Problem::unprocessable(message, hint()));
        }
        Err(error) if error.is_data() => return Err(Problem::unprocessable(format!("the body has {error}"), hint())),
        Err(error) => return Err(bad(format!("the body is not valid JSON: {error}"))),
    };
    taken(&schema, given).map_err(|message| Problem::unprocessable(message, hint()))
}

/// The projects that a request is about.
async fn chosen(
    daemon: &Arc<Daemon>,
    entrance: Entrance,
    project: Option<&str>,
    cwd: Option<PathBuf>,
) -> Result<Chosen, Problem> {
    let from = Origin { cwd, ..Origin::default() };
    let caller = caller_with_target(daemon, entrance, from).await;
    Ok(daemon.failures.choose(project, caller.cwd.as_deref()).await?)
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
        let said = said.map(|said| pylair_text::plain::one_line(said, 100)).filter(|said| !said.is_empty());
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

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_core::rights;

    #[test]
    fn every_operation_stands_for_a_tool() {
        for operation in operations() {
            let path = operation.path.replace("{id}", "k3n7q2").replace("{run}", "r1");
            let tool = rights::route(operation.method, &path);
            assert!(tool.is_some(), "{} {path}", operation.method);
        }
    }
}
