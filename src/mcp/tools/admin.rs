//! Tools about pylair itself.

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{
    daemon::DaemonStatus,
    mcp::{render, server::Call},
    session,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusArgs {
    /// Session name or handle; pylair itself if left out
    target: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon: Option<DaemonStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<session::Status>,
}

pub async fn get_status(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: StatusArgs = parse(&call)?;
    let status = match args.target {
        Some(target) => {
            let session = call.daemon.sessions.find(&call.caller, &target);
            let stopped = call.daemon.sessions.list_stopped(&call.caller);
            let stopped = stopped.into_iter().find(|status| status.name == target || status.handle == target);
            let status = match (session, stopped) {
                (Ok(session), _) => session.full_status().await,
                (Err(_), Some(stopped)) => stopped,
                (Err(error), None) => return Err(error.into()),
            };
            Status { daemon: None, session: Some(status) }
        }
        None => Status { daemon: Some(call.daemon.status()), session: None },
    };
    Ok(render::data(&status, None))
}
