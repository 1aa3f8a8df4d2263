//! Tools about pylair itself.

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{
    app,
    daemon::{
        DaemonStatus,
        targets::{self, Purpose, Target},
    },
    mcp::{render, server::Call},
    session,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusArgs {
    /// A session or an app; pylair itself if left out
    target: Option<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon: Option<DaemonStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<session::Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app: Option<app::Status>,
    /// What your calls without a target mean; absent if you have no session yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_target: Option<String>,
}

pub async fn get_status(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: StatusArgs = parse(&call)?;
    let Some(named) = args.target else {
        let daemon = Some(call.daemon.status_for(&call.caller));
        let default_target = call.daemon.default_target(&call.caller);
        return Ok(render::data(&Status { daemon, default_target, ..Status::default() }, None));
    };
    let name = named.strip_prefix("session:").unwrap_or(&named);
    let stopped = call.daemon.sessions.list_stopped(&call.caller);
    let stopped = stopped.into_iter().find(|status| status.name == name || status.handle == name);
    let of_session = |status: session::Status| {
        let status = call.daemon.sessions.marked(&call.caller, status);
        Status { session: Some(status), ..Status::default() }
    };
    let status = match (call.target(Some(&named), Purpose::AsItIs).await, stopped) {
        (Ok(Target::App(app)), None) => Status { app: Some(app.status().await), ..Status::default() },
        (Ok(Target::Session(session)), _) => of_session(session.full_status().await),
        (Ok(Target::Tests(_)), None) => return Err(targets::Error::TestsOnly { what: "get_status" }.into()),
        (_, Some(stopped)) => of_session(stopped),
        (Err(error), None) => return Err(error.into()),
    };
    Ok(render::data(&status, None))
}
