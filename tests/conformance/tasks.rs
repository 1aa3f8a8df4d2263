//! Tools of the tasks extension (`io.modelcontextprotocol/tasks`).
//!
//! The server alone decides that a call becomes a task, and only for a client that declared the extension. Some
//! tools fall back to answering in place; the others refuse with the capability they miss.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult};
use rmcp::task_manager::{TaskContext, TaskExit, TaskFuture, TaskOptions};
use serde_json::Value;

use crate::inputs::{Kind, form, required, word};
use crate::tools::{Call, Outcome, text};

/// `failing_job` is meant to be seen working before it fails.
const FAILING_JOB_WORK: Duration = Duration::from_secs(1);

/// Longer than any scenario waits; a task of this length is there to be cancelled.
const LONGEST_WORK: Duration = Duration::from_mins(5);

pub fn greet(call: &Call) -> Outcome {
    text(format!("Hello, {}!", word(&call.arguments, "name")))
}

pub async fn slow_compute(call: Call) -> Outcome {
    let seconds = call.arguments.get("seconds").and_then(Value::as_f64);
    let work = seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| ErrorData::invalid_params("`seconds` is not a duration", None))?
        .min(LONGEST_WORK);
    let done = format!("{} took {work:?}", word(&call.arguments, "label"));
    if !declares_tasks(&call) {
        tokio::time::sleep(work).await;
        return text(done);
    }
    Ok(spawn(&call, move |task| {
        Box::pin(async move {
            tokio::select! {
                () = task.cancelled() => Err(TaskExit::Cancelled),
                () = tokio::time::sleep(work) => Ok(finished(done)),
            }
        })
    }))
}

pub fn failing_job(call: &Call) -> Outcome {
    require_tasks(call)?;
    Ok(spawn(call, |_| {
        Box::pin(async {
            tokio::time::sleep(FAILING_JOB_WORK).await;
            let message = ContentBlock::text("failing_job always fails");
            Ok(CallToolResult::error(vec![message]))
        })
    }))
}

pub fn protocol_error_job(call: &Call) -> Outcome {
    let error = ErrorData::internal_error("protocol_error_job always breaks", None);
    if !declares_tasks(call) {
        return Err(error);
    }
    Ok(spawn(call, |_| Box::pin(async { Err(TaskExit::Error(error)) })))
}

pub fn confirm_delete(call: &Call) -> Outcome {
    require_tasks(call)?;
    let file = word(&call.arguments, "filename");
    Ok(spawn(call, move |task| {
        Box::pin(async move {
            let question = form(&format!("Delete {file}?"), "confirm", Kind::Boolean);
            let answer = task.request_input("confirm", question).await?;
            Ok(finished(format!("delete {file}: {}", field(&answer, "confirm"))))
        })
    }))
}

pub fn multi_input(call: &Call) -> Outcome {
    require_tasks(call)?;
    Ok(spawn(call, |task| {
        Box::pin(async move {
            let ask = |key, message| task.request_input(key, form(message, "name", Kind::String));
            let (first, second) = tokio::try_join!(ask("first", "The first name?"), ask("second", "The second name?"))?;
            let names = [&first, &second].map(|answer| field(answer, "name"));
            Ok(finished(names.join(" and ")))
        })
    }))
}

/// Asks before there is a task, and starts the task with the answer.
pub fn tool_with_task(call: &Call) -> Outcome {
    require_tasks(call)?;
    let Some(answer) = call.answers.accepted("user_name") else {
        let question = form("What is your name?", "name", Kind::String);
        return Ok(required([("user_name", question)]).into());
    };
    let name = word(answer, "name");
    Ok(spawn(call, move |_| Box::pin(async move { Ok(finished(format!("Hello, {name}!"))) })))
}

fn spawn(call: &Call, work: impl FnOnce(TaskContext) -> TaskFuture) -> CallToolResponse {
    let task = call.fixture.shared.tasks.spawn(TaskOptions::default(), work);
    CreateTaskResult::new(task).into()
}

fn finished(message: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(message)])
}

/// A field of the form the client filled in for `tasks/update`.
fn field(answer: &Value, field: &str) -> String {
    let content = answer.get("content").and_then(Value::as_object);
    content.map_or_else(String::new, |content| word(content, field))
}

fn declares_tasks(call: &Call) -> bool {
    let client = call.context.client_capabilities();
    client.is_some_and(|client| client.supports_tasks())
}

fn require_tasks(call: &Call) -> Result<(), ErrorData> {
    if declares_tasks(call) {
        return Ok(());
    }
    let missing = ClientCapabilities::builder().enable_tasks().build();
    Err(ErrorData::missing_required_client_capability(missing))
}
