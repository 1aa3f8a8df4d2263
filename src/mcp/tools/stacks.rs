//! What the threads of a target are doing.

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ToolError, parse};
use crate::{
    caller::Scope,
    mcp::{render, server::Call},
    session,
    stacks::{self, Options, apart},
    target::Reference,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StacksArgs {
    /// A session, an app, or `pid:4711` for any Python process of yours
    target: String,
    /// The variables of every frame (default true)
    locals: Option<bool>,
}

pub async fn dump_stacks(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: StacksArgs = parse(&call)?;
    let pid = pid_of_target(&call, &args.target)?;
    let options = Options { locals: args.locals.unwrap_or(true) };
    let program = call.daemon.sessions.parts.probes.program();
    let stacks = apart::dump(program, pid, options).await?;
    let text = stacks.text(stacks::MAX_CHARS);
    Ok(render::data(&stacks, Some(text)))
}

/// The process behind a target.
fn pid_of_target(call: &Call<'_>, target: &str) -> Result<i32, ToolError> {
    let reference: Reference = target.parse().map_err(|error: crate::target::Error| ToolError {
        kind: "bad_argument",
        message: error.to_string(),
        hint: error.hint().to_owned(),
    })?;
    match reference {
        Reference::Name(name) | Reference::Session(name) => {
            let session = call.daemon.sessions.find(&call.caller, &name)?;
            session.status().pid.ok_or_else(|| session::Error::Gone.into())
        }
        // It need not be a target of this owner's, so it takes more than looking at one.
        Reference::Process(_) if !call.caller.may(Scope::Run) => {
            Err(session::Error::NotAllowed("look into processes that are no targets").into())
        }
        Reference::Process(pid) => Ok(pid),
        Reference::App { .. } | Reference::Failure { .. } => Err(ToolError {
            kind: "bad_argument",
            message: format!("`{target}` has no process of its own"),
            hint: "pass a session, or pid:NUMBER".to_owned(),
        }),
    }
}

impl From<apart::Refused> for ToolError {
    fn from(refused: apart::Refused) -> Self {
        Self { kind: refused.kind, message: refused.message, hint: refused.hint }
    }
}
