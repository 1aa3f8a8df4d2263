//! The table of tools, and the tools that answer in one call.
//!
//! `inputs` holds those that ask the client by returning, `tasks` those that run as tasks.

#![expect(clippy::unnecessary_wraps, reason = "a tool that cannot fail has the signature of one that can")]

use std::time::Duration;

use futures::future::BoxFuture;
use http::request::Parts;
use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, JsonObject, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam, ResourceContents, Tool,
};
use rmcp::service::{RequestContext, ServiceError};
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};

use crate::fixture::{Change, Fixture, PNG};
use crate::inputs::{self, Answers, form_params, sampling_params, word};
use crate::server::Connection;
use crate::tasks;

/// The suite wants its notifications apart, to see that they are not sent in one piece with the result.
const PAUSE: Duration = Duration::from_millis(50);

/// A WAV header and no samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=";

pub type Outcome = Result<CallToolResponse, ErrorData>;

/// One `tools/call` request.
pub struct Call {
    pub fixture: Fixture,
    pub tool: &'static str,
    pub arguments: JsonObject,
    pub answers: Answers,
    pub request_state: Option<String>,
    pub context: RequestContext<RoleServer>,
}

/// A tool whose name and behaviour the suite fixes.
pub struct Fixed {
    pub name: &'static str,
    about: &'static str,
    schema: fn() -> Value,
    body: Body,
}

enum Body {
    Now(fn(&Call) -> Outcome),
    Later(fn(Call) -> BoxFuture<'static, Outcome>),
}

/// In the order `tools/list` has them.
const TOOLS: &[Fixed] = &[
    now("test_simple_text", "Returns a text", nothing, simple_text),
    now("test_image_content", "Returns an image", nothing, image),
    now("test_audio_content", "Returns a sound", nothing, audio),
    now("test_embedded_resource", "Returns a resource", nothing, resource),
    now("test_multiple_content_types", "Returns a text, an image and a resource", nothing, mixed),
    now("test_error_handling", "Always fails", nothing, failure),
    later("test_tool_with_logging", "Sends three log messages", nothing, |call| Box::pin(logging(call))),
    later("test_logging_tool", "Sends a log message if the request wants one", nothing, |call| Box::pin(one_log(call))),
    later("test_tool_with_progress", "Sends progress three times", nothing, |call| Box::pin(progress(call))),
    later("test_sampling", "Asks the client's model", prompt, |call| Box::pin(sampling(call))),
    later("test_elicitation", "Asks the user", message, |call| Box::pin(elicitation(call))),
    later("test_elicitation_sep1034_defaults", "Asks the user with a default for every field", nothing, |call| {
        Box::pin(elicitation_defaults(call))
    }),
    later("test_elicitation_sep1330_enums", "Asks the user to choose, in every way there is", nothing, |call| {
        Box::pin(elicitation_enums(call))
    }),
    later("test_reconnection", "Loses the connection before it answers", nothing, |call| Box::pin(reconnection(call))),
    now("test_missing_capability", "Needs a client that can sample", nothing, missing_capability),
    now("test_trigger_tool_change", "Tells listeners that tools changed", nothing, tool_change),
    now("test_trigger_prompt_change", "Tells listeners that prompts changed", nothing, prompt_change),
    now("test_custom_header", "Takes an argument that is also a header", header, custom_header),
    now("json_schema_2020_12_tool", "Has a schema with every keyword that gets lost", json_schema_2020_12, echo),
    now("test_streaming_elicitation", "Asks the user on the call's stream", nothing, inputs::streaming_elicitation),
    now("test_input_required_result_elicitation", "Needs a name", nothing, inputs::elicitation),
    now("test_input_required_result_sampling", "Needs the client's model", nothing, inputs::sampled),
    now("test_input_required_result_list_roots", "Needs the client's roots", nothing, inputs::list_roots),
    now("test_input_required_result_request_state", "Needs its state back", nothing, inputs::request_state),
    now("test_input_required_result_tampered_state", "Needs its state back unchanged", nothing, inputs::request_state),
    now("test_input_required_result_multiple_inputs", "Needs three answers at once", nothing, inputs::multiple_inputs),
    now(
        "test_input_required_result_multi_round",
        "Needs two answers, one after the other",
        nothing,
        inputs::multi_round,
    ),
    now(
        "test_input_required_result_capabilities",
        "Asks for what the client can answer",
        nothing,
        inputs::capabilities,
    ),
    now("greet", "Never becomes a task", name, tasks::greet),
    later("slow_compute", "Sleeps", seconds, |call| Box::pin(tasks::slow_compute(call))),
    now("failing_job", "A task whose tool fails", nothing, tasks::failing_job),
    now("protocol_error_job", "A task that breaks", nothing, tasks::protocol_error_job),
    now("confirm_delete", "A task that asks once", filename, tasks::confirm_delete),
    now("multi_input", "A task that asks twice at once", nothing, tasks::multi_input),
    now("test_tool_with_task", "Asks, then becomes a task", nothing, tasks::tool_with_task),
];

const fn now(name: &'static str, about: &'static str, schema: fn() -> Value, body: fn(&Call) -> Outcome) -> Fixed {
    Fixed { name, about, schema, body: Body::Now(body) }
}

const fn later(
    name: &'static str,
    about: &'static str,
    schema: fn() -> Value,
    body: fn(Call) -> BoxFuture<'static, Outcome>,
) -> Fixed {
    Fixed { name, about, schema, body: Body::Later(body) }
}

pub fn list() -> Vec<Tool> {
    TOOLS.iter().map(Fixed::describe).collect()
}

pub fn find(name: &str) -> Option<&'static Fixed> {
    TOOLS.iter().find(|tool| tool.name == name)
}

impl Fixed {
    pub fn describe(&self) -> Tool {
        let Value::Object(schema) = (self.schema)() else {
            unreachable!("a schema is an object");
        };
        Tool::new(self.name, self.about, schema)
    }

    pub async fn run(&self, call: Call) -> Outcome {
        match self.body {
            Body::Now(body) => body(&call),
            Body::Later(body) => body(call).await,
        }
    }
}

pub fn text(text: impl Into<String>) -> Outcome {
    content(vec![ContentBlock::text(text)])
}

fn content(content: Vec<ContentBlock>) -> Outcome {
    Ok(CallToolResult::success(content).into())
}

fn simple_text(_: &Call) -> Outcome {
    text("This is a simple text response for testing.")
}

fn image(_: &Call) -> Outcome {
    content(vec![ContentBlock::image(PNG, "image/png")])
}

fn audio(_: &Call) -> Outcome {
    content(vec![ContentBlock::audio(WAV, "audio/wav")])
}

fn resource(_: &Call) -> Outcome {
    let contents = ResourceContents::text("This is an embedded resource content.", "test://embedded-resource");
    content(vec![ContentBlock::resource(contents.with_mime_type("text/plain"))])
}

fn mixed(_: &Call) -> Outcome {
    let document = json!({"test": "data", "value": 123}).to_string();
    let contents = ResourceContents::text(document, "test://mixed-content-resource");
    content(vec![
        ContentBlock::text("Multiple content types test:"),
        ContentBlock::image(PNG, "image/png"),
        ContentBlock::resource(contents.with_mime_type("application/json")),
    ])
}

fn failure(_: &Call) -> Outcome {
    let message = ContentBlock::text("This tool intentionally returns an error for testing");
    Ok(CallToolResult::error(vec![message]).into())
}

async fn logging(call: Call) -> Outcome {
    log(&call, "Tool execution started").await?;
    tokio::time::sleep(PAUSE).await;
    log(&call, "Tool processing data").await?;
    tokio::time::sleep(PAUSE).await;
    log(&call, "Tool execution completed").await?;
    text("Logged three messages")
}

async fn one_log(call: Call) -> Outcome {
    log(&call, "Tool executed").await?;
    text("Logged a message, if one was wanted")
}

async fn log(call: &Call, message: &str) -> Result<(), ErrorData> {
    let level = LoggingLevel::Info;
    let wanted = call.fixture.log_level(&call.context);
    if wanted.is_none_or(|least| (level as u8) < least as u8) {
        return Ok(());
    }
    let message = LoggingMessageNotificationParam::new(level, message.into());
    let peer = &call.context.peer;
    peer.notify_logging_message(message).await.map_err(lost)
}

async fn progress(call: Call) -> Outcome {
    let token = call.context.meta.get_progress_token();
    for percent in [0.0, 50.0, 100.0] {
        if let Some(token) = &token {
            let progress = ProgressNotificationParam::new(token.clone(), percent);
            let peer = &call.context.peer;
            peer.notify_progress(progress.with_total(100.0)).await.map_err(lost)?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    text("Made progress")
}

async fn sampling(call: Call) -> Outcome {
    let params = sampling_params(&word(&call.arguments, "prompt"));
    let peer = &call.context.peer;
    let answer = peer.create_message(params).await.map_err(lost)?;
    let reply = answer.message.content.first();
    let reply = reply.and_then(|content| content.as_text());
    let reply = reply.map_or("nothing", |content| &content.text);
    text(format!("LLM response: {reply}"))
}

async fn elicitation(call: Call) -> Outcome {
    let schema = json!({
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    });
    elicit(&call, &word(&call.arguments, "message"), schema).await
}

async fn elicitation_defaults(call: Call) -> Outcome {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {
                "type": "string",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": {"type": "boolean", "default": true},
        },
    });
    elicit(&call, "Please check the defaults", schema).await
}

async fn elicitation_enums(call: Call) -> Outcome {
    let options = json!(["option1", "option2", "option3"]);
    let titled = |noun: &str| {
        json!([
            {"const": "value1", "title": format!("First {noun}")},
            {"const": "value2", "title": format!("Second {noun}")},
            {"const": "value3", "title": format!("Third {noun}")},
        ])
    };
    let schema = json!({
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        },
    });
    elicit(&call, "Please choose", schema).await
}

async fn elicit(call: &Call, message: &str, schema: Value) -> Outcome {
    let params = form_params(message, schema);
    let peer = &call.context.peer;
    let answer = peer.create_elicitation(params).await.map_err(lost)?;
    text(format!(
        "Elicitation completed: action={}, content={}",
        json!(answer.action).as_str().unwrap_or_default(),
        answer.content.unwrap_or_default(),
    ))
}

/// Answers a client that lost its connection and came back. The answer waits for it, because rmcp 3.8 forgets one
/// that nobody is there to receive: <https://github.com/modelcontextprotocol/rust-sdk/pull/1165>.
async fn reconnection(call: Call) -> Outcome {
    let parts = call.context.extensions.get::<Parts>();
    if let Some(connection) = parts.and_then(|parts| parts.extensions.get::<Connection>()) {
        connection.lose().await;
    }
    text("You came back")
}

fn missing_capability(call: &Call) -> Outcome {
    let client = call.context.client_capabilities().unwrap_or_default();
    if client.sampling.is_none() {
        let missing = ClientCapabilities::builder().enable_sampling().build();
        return Err(ErrorData::missing_required_client_capability(missing));
    }
    text("The client can sample")
}

fn tool_change(call: &Call) -> Outcome {
    tell(call, Change::Tools)
}

fn prompt_change(call: &Call) -> Outcome {
    tell(call, Change::Prompts)
}

fn tell(call: &Call, change: Change) -> Outcome {
    // The error of a broadcast is that nobody listens.
    let listeners = call.fixture.shared.changes.send(change).unwrap_or(0);
    text(format!("Told {listeners} listeners"))
}

fn custom_header(call: &Call) -> Outcome {
    text(word(&call.arguments, "value"))
}

fn echo(call: &Call) -> Outcome {
    text(json!(call.arguments).to_string())
}

fn lost(error: ServiceError) -> ErrorData {
    match error {
        ServiceError::McpError(error) => error,
        error => ErrorData::internal_error(error.to_string(), None),
    }
}

fn nothing() -> Value {
    json!({"type": "object", "properties": {}})
}

fn required_string(name: &str) -> Value {
    json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]})
}

fn prompt() -> Value {
    required_string("prompt")
}

fn message() -> Value {
    required_string("message")
}

fn name() -> Value {
    required_string("name")
}

fn filename() -> Value {
    required_string("filename")
}

fn seconds() -> Value {
    json!({
        "type": "object",
        "properties": {"seconds": {"type": "number"}, "label": {"type": "string"}},
        "required": ["seconds"],
    })
}

fn header() -> Value {
    json!({
        "type": "object",
        "properties": {"value": {"type": "string", "x-mcp-header": "Value"}},
        "required": ["value"],
    })
}

fn json_schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
