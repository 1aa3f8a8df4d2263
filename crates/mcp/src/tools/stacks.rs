//! What the threads of a target are doing.

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ToolError, parse};
use crate::{render, server::Call};
use pylair_core::{
    app::App,
    caller::{Door, Scope},
    daemon::targets::{self, Purpose, Target},
    session,
    target::Reference,
};
use pylair_probe::wire::Op;
use pylair_stacks::{self as stacks, Options, Stacks, apart};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StacksArgs {
    /// A session, an app, a failure, or `pid:4711` for any Python process of yours
    target: Option<String>,
    /// The variables of every frame (default true)
    locals: Option<bool>,
}

pub async fn dump_stacks(call: Call<'_>) -> Result<CallToolResult, ToolError> {
    let args: StacksArgs = parse(&call)?;
    let (pid, app) = process_of(&call, args.target.as_deref()).await?;
    let options = Options { locals: args.locals.unwrap_or(true) };
    // The frames of a failure are on no thread's stack any more.
    if let Some(copy) = app.as_ref().filter(|app| app.entry.is_frozen()) {
        let told: Stacks = copy.look(&call.caller, Op::Stacks { locals: options.locals }, &[]).await?;
        let stacks = Stacks { pid, python: copy.entry.python.clone(), ..told };
        let text = stacks.text(stacks::MAX_CHARS);
        return Ok(render::data(&stacks, Some(text)));
    }
    let program = call.daemon.sessions.parts.probes.program();
    let mut stacks = match (apart::dump(program, pid, options).await, &app) {
        (Ok(stacks), _) => stacks,
        // Its own probe may say what we may not read.
        (Err(refused), Some(app)) => {
            let note =
                format!("told by the app's own probe, because its memory could not be read: {}", refused.message);
            let told: Stacks = app.look(&call.caller, Op::Stacks { locals: options.locals }, &[]).await?;
            Stacks { pid, python: app.entry.python.clone(), notes: vec![note], ..told }
        }
        (Err(refused), None) => return Err(refused.into()),
    };
    if let Some(app) = app.filter(|_| stacks.tasks.is_empty() && stacks.tasks_note.is_some()) {
        add_tasks(&call, &app, options, &mut stacks).await;
    }
    let text = stacks.text(stacks::MAX_CHARS);
    Ok(render::data(&stacks, Some(text)))
}

/// asyncio tasks that are seen only from inside.
async fn add_tasks(call: &Call<'_>, app: &App, options: Options, stacks: &mut Stacks) {
    match app.look::<Stacks>(&call.caller, Op::Stacks { locals: options.locals }, &[]).await {
        Ok(told) => {
            stacks.tasks = told.tasks;
            stacks.tasks_note = told.tasks_note;
        }
        Err(error) => {
            stacks.tasks_note = Some(format!("the app's probe could not tell its tasks: {}", error.message()));
        }
    }
}

/// The process behind a target, and the app it is, if it is one.
async fn process_of(call: &Call<'_>, named: Option<&str>) -> Result<(i32, Option<App>), ToolError> {
    let meant = named.or(call.caller.settings.session.as_deref()).unwrap_or_default().parse();
    match (call.target(named, Purpose::AsItIs).await, meant) {
        (Ok(Target::Session(session)), _) => {
            let pid = session.status().pid.ok_or(session::Error::Gone)?;
            Ok((pid, None))
        }
        (Ok(Target::App(app)), _) => Ok((app.entry.pid, Some(app))),
        (Ok(Target::Tests(_)), _) => Err(targets::Error::TestsOnly { what: "dump_stacks" }.into()),
        // Any process of the user's will do. It need not be a target, so it takes more than looking at one.
        (Err(error), Ok(Reference::Process(pid))) if error.kind() == "not_an_app" => {
            let is_watched_only = call.is_readonly() && call.caller.door == Door::Http;
            if call.caller.may(Scope::Admin) && !is_watched_only {
                return Ok((pid, None));
            }
            Err(session::Error::NotAllowed("look into processes that are not targets").into())
        }
        (Err(error), _) => Err(error.into()),
    }
}

impl From<apart::Refused> for ToolError {
    fn from(refused: apart::Refused) -> Self {
        Self { kind: refused.kind, message: refused.message, hint: refused.hint }
    }
}
