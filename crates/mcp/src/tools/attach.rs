//! The tool that attaches to a process.

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_attach::{self as attach, Options, Way, registry::By};
use pylair_core::{caller::Scope, session};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachArgs {
    pid: u32,
    /// What to call the app
    app_id: Option<String>,
    /// Only look: the probe runs no code
    readonly: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Attached {
    /// Pass it as `target`
    target: String,
    app_id: String,
    pid: i32,
    python: String,
    readonly: bool,
    way: Way,
    /// How long a thread of it was held
    pause_ms: f64,
}

impl From<attach::Error> for ToolError {
    fn from(error: attach::Error) -> Self {
        Self { kind: error.kind(), message: error.message(), hint: error.hint() }
    }
}

pub async fn attach(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: AttachArgs = parse(&call)?;
    let pid = i32::try_from(args.pid).ok().filter(|pid| *pid > 0).ok_or_else(|| ToolError {
        kind: "bad_argument",
        message: format!("{} is not a process id", args.pid),
        hint: "`pgrep -a python` lists Python processes".to_owned(),
    })?;
    if !call.caller.may(Scope::Run) {
        return Err(session::Error::NotAllowed("attach to processes").into());
    }
    let (runtime, readonly) = (call.daemon.places.runtime.clone(), args.readonly.unwrap_or(false));
    let options = Options { runtime, app_id: args.app_id, readonly, by: By::Mcp };
    let program = call.daemon.sessions.parts.probes.program();
    let attached = attach::child::attach(program, pid, options).await?;
    let entry = attached.entry;
    let attached = Attached {
        target: format!("app:{}@{}", entry.app_id, entry.pid),
        app_id: entry.app_id,
        pid: entry.pid,
        python: entry.python,
        readonly: entry.readonly,
        way: attached.way,
        pause_ms: attached.pause_ms,
    };
    Ok(render::data(&attached, None))
}
