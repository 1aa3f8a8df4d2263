//! Failures together: analysis, prompts, groups, and the guide.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Asked, Asking, DEFAULT_LIMIT, Named, Problem, chosen,
    one::{Listed, storable},
    parse,
};
use crate::{load::Json, router::Entrance};
use pylair_core::daemon::Daemon;
use pylair_failures::{
    Error,
    explain::{self, Subject},
    guide,
    project::Chosen,
    prompt::{self, Style},
    view::{Filter, Group},
};

/// Failures that are put into another group at once.
const MAX_SPLIT: usize = 1000;

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct AnalyticsQuery {
    /// One cause, type, place or message; a fingerprint if left out.
    #[schemars(extend("enum" = ["fingerprint", "error_type", "file_path", "pattern"]))]
    group_by: Option<String>,
    #[schemars(extend("enum" = ["all", "today", "week", "month"]))]
    time_range: Option<String>,
    include_resolved: Option<bool>,
    /// Name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
}

pub(super) async fn analytics(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<AnalyticsQuery>,
) -> Result<Response, Problem> {
    let of = chosen(&daemon, entrance.clone(), query.project.as_deref(), query.cwd).await?;
    let asking = Asking::new(&daemon, entrance).await;
    let question = explain::question(
        query.group_by.as_deref(),
        query.time_range.as_deref(),
        query.include_resolved.unwrap_or_default(),
    )?;
    Ok(Json(daemon.failures.analysis(&question, of, asking.reading()).await?).into_response())
}

/// Of a failure or a group, one of the two.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct PromptQuery {
    #[serde(alias = "failure")]
    #[schemars(extend("x-also" = "failure"))]
    failure_id: Option<String>,
    #[serde(alias = "group")]
    #[schemars(extend("x-also" = "group"))]
    group_id: Option<String>,
    /// Of a group such as `error_type:ValueError`: name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
    /// Detailed if left out.
    #[serde(alias = "style")]
    #[schemars(extend("x-also" = "style", "enum" = ["detailed", "concise", "step_by_step", "root_cause"]))]
    prompt_style: Option<String>,
    /// How long it may be; 4000 if left out.
    #[schemars(range(min = prompt::LEAST_TOKENS, max = prompt::MOST_TOKENS))]
    max_tokens: Option<usize>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct StyleQuery {
    /// Of a group such as `error_type:ValueError`: name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
    /// Detailed if left out.
    #[serde(alias = "style")]
    #[schemars(extend("x-also" = "style", "enum" = ["detailed", "concise", "step_by_step", "root_cause"]))]
    prompt_style: Option<String>,
    /// How long it may be; 4000 if left out.
    #[schemars(range(min = prompt::LEAST_TOKENS, max = prompt::MOST_TOKENS))]
    max_tokens: Option<usize>,
}

pub(super) async fn prompt_asked(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<PromptQuery>,
) -> Result<Response, Problem> {
    let given = |id: Option<String>| id.filter(|id| !id.trim().is_empty());
    let subject = match (given(query.failure_id), given(query.group_id)) {
        (Some(id), None) => Subject::Failure(id),
        (None, Some(id)) => Subject::Group(id),
        _ => {
            let message = "a prompt is of a failure or of a group";
            return Err(Problem::unprocessable(message, "give either failure_id or group_id"));
        }
    };
    let PromptQuery { project, cwd, prompt_style, max_tokens, .. } = query;
    let style = StyleQuery { project, cwd, prompt_style, max_tokens };
    write_prompt(&daemon, entrance, subject, style).await
}

pub(super) async fn prompt_named(
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
    write_prompt(&daemon, entrance, subject, query).await
}

async fn write_prompt(
    daemon: &Arc<Daemon>,
    entrance: Entrance,
    subject: Subject,
    query: StyleQuery,
) -> Result<Response, Problem> {
    let of = match &subject {
        Subject::Group(group) if group.contains(':') || query.project.is_some() => {
            chosen(daemon, entrance.clone(), query.project.as_deref(), query.cwd).await?
        }
        _ => Chosen::all(),
    };
    let asking = Asking::new(daemon, entrance).await;
    let style: Style = query.prompt_style.as_deref().map(str::parse).transpose()?.unwrap_or_default();
    Ok(Json(daemon.failures.prompt(&subject, style, query.max_tokens, &of, asking.reading()).await?).into_response())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct DocsQuery {
    #[schemars(extend("enum" = guide::TOPICS))]
    topic: Option<String>,
}

pub(super) async fn docs(Asked(query): Asked<DocsQuery>) -> Result<Response, Problem> {
    Ok(Json(guide::read(query.topic.as_deref())?).into_response())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct GroupsQuery {
    /// Groups with such failures.
    #[schemars(extend("enum" = ["new", "in_progress", "resolved", "flaky", "reopened"]))]
    status: Option<String>,
    /// Name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
    /// How many, at most 1000.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Groups {
    groups: Vec<Group>,
    #[serde(flatten)]
    of: Chosen,
}

/// Which projects a group that an analysis made is of.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct GroupQuery {
    /// Name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
}

pub(super) async fn groups(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<GroupsQuery>,
) -> Result<Response, Problem> {
    let of = chosen(&daemon, entrance, query.project.as_deref(), query.cwd).await?;
    let status = query.status.as_deref().map(explain::status).transpose()?;
    let filter = Filter { status, of: Some(of.clone()), ..Filter::default() };
    let groups = daemon.failures.groups(&filter, query.limit.unwrap_or(DEFAULT_LIMIT)).await?;
    Ok(Json(Groups { groups, of }).into_response())
}

pub(super) async fn group(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Named(id): Named,
    Asked(query): Asked<GroupQuery>,
) -> Result<Response, Problem> {
    let of = if id.contains(':') || query.project.is_some() {
        chosen(&daemon, entrance, query.project.as_deref(), query.cwd).await?
    } else {
        Chosen::all()
    };
    let mut failures = daemon.failures.members(&id, &of).await?;
    let total = failures.len() as u64;
    failures.truncate(1000);
    Ok(Json(Listed { total, failures, next: None, of }).into_response())
}

/// Ids of failures.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Split {
    #[schemars(length(min = 1, max = 1000))]
    failures: Vec<String>,
    #[serde(default)]
    author: Option<String>,
}

/// Ids of groups.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Merge {
    into: String,
    from: String,
    #[serde(default)]
    author: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GroupId {
    group: String,
}

pub(super) async fn split(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, Problem> {
    let body: Split = parse(&body)?;
    let asking = Asking::new(&daemon, entrance).await;
    if body.failures.len() > MAX_SPLIT {
        let message = format!("{} failures are more than can be split off at once", body.failures.len());
        return Err(Problem::unprocessable(message, format!("name at most {MAX_SPLIT}")));
    }
    let ids: Vec<String> = body.failures.iter().map(|id| storable(id)).collect();
    let made = daemon.failures.split(&ids, &asking.author(body.author.as_deref())).await;
    let made = made.map_err(Problem::from);
    let group = asking.recorded(&daemon, "split_group", &ids.join(" "), made)?;
    Ok(Json(GroupId { group }).into_response())
}

pub(super) async fn merge(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, Problem> {
    let body: Merge = parse(&body)?;
    let asking = Asking::new(&daemon, entrance).await;
    let (into, from) = (storable(&body.into), storable(&body.from));
    let merged = daemon.failures.merge(&into, &from, &asking.author(body.author.as_deref())).await;
    let merged = merged.map_err(Problem::from);
    asking.recorded(&daemon, "merge_groups", &format!("{into} {from}"), merged)?;
    Ok(Json(GroupId { group: daemon.failures.group(&into).await? }).into_response())
}
