//! Test runs, what they report, and what changes by it.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

use super::{Asked, DEFAULT_LIMIT, Named, Problem, chosen};
use crate::{load::Json, router::Entrance};
use pylair_core::daemon::Daemon;
use pylair_failures::{project::Chosen, view::Run, watching::Change};

const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct RunsQuery {
    /// Name, root or remote of a project, or `all`. Left out: the project of `cwd`.
    project: Option<String>,
    /// The directory of the caller.
    cwd: Option<PathBuf>,
    /// How many, at most 1000.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The `next` of the page before.
    after: Option<String>,
}

/// Some runs. `next` is what `after` takes for those that follow.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunPage {
    total: u64,
    runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(flatten)]
    of: Chosen,
}

pub(super) async fn runs(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Asked(query): Asked<RunsQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    let of = chosen(&daemon, entrance, query.project.as_deref(), query.cwd).await?;
    let page = daemon.failures.runs(&of, limit, query.after.as_deref()).await?;
    Ok(Json(RunPage { total: page.total, runs: page.items, next: page.next, of }).into_response())
}

pub(super) async fn run(State(daemon): State<Arc<Daemon>>, Named(run): Named) -> Result<Response, Problem> {
    Ok(Json(daemon.failures.run(&run).await?).into_response())
}

/// What the plugin sends. The answer says that all of it is on disk.
pub(super) async fn records(
    State(daemon): State<Arc<Daemon>>,
    Named(run): Named,
    body: Bytes,
) -> Result<Response, Problem> {
    Ok(Json(daemon.take_records(&run, body.into()).await?).into_response())
}

/// What changes, until the reader leaves.
pub(super) async fn events(State(daemon): State<Arc<Daemon>>) -> Response {
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
