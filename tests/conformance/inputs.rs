//! Tools that cannot answer before the client has: they return what they need and are called again from the
//! top with the answers (2026-07-28, "input required").
//!
//! What such a tool remembers between calls travels through the client as `requestState`, so it is signed,
//! bound to the tool, and expires.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CreateMessageRequest, CreateMessageRequestParams, ElicitRequest, ElicitRequestParams, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, JsonObject, ListRootsRequest, SamplingMessage, SealOptions,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::tools::{Call, Outcome, text};

const REQUEST_STATE_TTL: Duration = Duration::from_mins(1);

/// What the client sent back. Answers to questions nobody asked are never looked at.
pub struct Answers(InputResponses);

impl Answers {
    pub fn new(responses: Option<InputResponses>) -> Self {
        Self(responses.unwrap_or_default())
    }

    /// The fields of a form the user filled in and accepted.
    pub fn accepted(&self, key: &str) -> Option<&JsonObject> {
        let answer = self.object(key)?;
        let accepted = answer.get("action").and_then(Value::as_str) == Some("accept");
        answer.get("content")?.as_object().filter(|_| accepted)
    }

    /// An answer of any kind, if it has the shape of one: a scenario sends a bare number.
    fn object(&self, key: &str) -> Option<&JsonObject> {
        self.0.get(key)?.as_object()
    }
}

#[derive(Clone, Copy)]
pub enum Kind {
    Boolean,
    String,
}

/// A form with one required field.
pub fn form(message: &str, field: &str, kind: Kind) -> InputRequest {
    let kind = match kind {
        Kind::Boolean => "boolean",
        Kind::String => "string",
    };
    let schema = json!({
        "type": "object",
        "properties": {field: {"type": kind}},
        "required": [field],
    });
    InputRequest::Elicitation(ElicitRequest::new(form_params(message, schema)))
}

pub fn form_params(message: &str, schema: Value) -> ElicitRequestParams {
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.to_owned(),
        requested_schema: serde_json::from_value(schema).expect("the fixture's schemas are valid"),
    }
}

pub fn sampling_params(prompt: &str) -> CreateMessageRequestParams {
    CreateMessageRequestParams::new(vec![SamplingMessage::user_text(prompt)], 100)
}

fn sampling(prompt: &str) -> InputRequest {
    InputRequest::CreateMessage(CreateMessageRequest::new(sampling_params(prompt)))
}

fn roots() -> InputRequest {
    InputRequest::ListRoots(ListRootsRequest::default())
}

fn user_name() -> InputRequest {
    form("What is your name?", "name", Kind::String)
}

pub fn required<const N: usize>(requests: [(&str, InputRequest); N]) -> InputRequiredResult {
    InputRequiredResult::from_input_requests(named(requests))
}

fn named<const N: usize>(requests: [(&str, InputRequest); N]) -> InputRequests {
    requests.map(|(key, request)| (key.to_owned(), request)).into()
}

fn required_with_state<const N: usize>(
    call: &Call,
    requests: [(&str, InputRequest); N],
    state: &impl Serialize,
) -> Outcome {
    let options = SealOptions::new().associated_data(call.tool.as_bytes()).ttl(REQUEST_STATE_TTL);
    let codec = &call.fixture.shared.request_state;
    let sealed =
        codec.seal_json_with(state, &options).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    Ok(InputRequiredResult::new(Some(named(requests)), Some(sealed)).into())
}

/// The state this tool sealed before, if the client brought one back.
fn opened_state<T: DeserializeOwned>(call: &Call) -> Result<Option<T>, ErrorData> {
    let Some(sealed) = &call.request_state else {
        return Ok(None);
    };
    let codec = &call.fixture.shared.request_state;
    let state = codec
        .open_json_with(sealed, call.tool.as_bytes())
        .map_err(|_| ErrorData::invalid_params("requestState is not one we made", None))?;
    Ok(Some(state))
}

pub fn elicitation(call: &Call) -> Outcome {
    let Some(answer) = call.answers.accepted("user_name") else {
        return Ok(required([("user_name", user_name())]).into());
    };
    text(format!("Hello, {}!", word(answer, "name")))
}

pub fn sampled(call: &Call) -> Outcome {
    let Some(answer) = call.answers.object("capital_question") else {
        let question = sampling("What is the capital of France?");
        return Ok(required([("capital_question", question)]).into());
    };
    let content = answer.get("content").and_then(Value::as_object);
    text(content.map_or_else(String::new, |content| word(content, "text")))
}

pub fn list_roots(call: &Call) -> Outcome {
    let Some(answer) = call.answers.object("client_roots") else {
        return Ok(required([("client_roots", roots())]).into());
    };
    text(format!("Roots: {}", answer.get("roots").unwrap_or(&Value::Null)))
}

/// Serves both `request_state` and `tampered_state`: the second only differs in what the client sends back.
pub fn request_state(call: &Call) -> Outcome {
    let state = opened_state::<Value>(call)?;
    let confirmed = call.answers.accepted("confirm");
    if state.is_some() && confirmed.is_some() {
        return text("state-ok");
    }
    let confirm = form("Please confirm", "ok", Kind::Boolean);
    required_with_state(call, [("confirm", confirm)], &json!({"asked": "confirm"}))
}

pub fn multiple_inputs(call: &Call) -> Outcome {
    let state = opened_state::<Value>(call)?;
    let name = call.answers.accepted("user_name");
    let greeting = call.answers.object("greeting");
    let client_roots = call.answers.object("client_roots");
    if let (Some(_), Some(name), Some(_), Some(_)) = (state, name, greeting, client_roots) {
        return text(format!("{} answered everything", word(name, "name")));
    }
    let requests =
        [("user_name", user_name()), ("greeting", sampling("Generate a greeting")), ("client_roots", roots())];
    required_with_state(call, requests, &json!({"asked": "everything"}))
}

/// How far `multi_round` has come.
#[derive(Serialize, Deserialize)]
enum Round {
    AskedName,
    AskedColor { name: String },
}

pub fn multi_round(call: &Call) -> Outcome {
    let step1 = call.answers.accepted("step1");
    let step2 = call.answers.accepted("step2");
    match (opened_state(call)?, step1, step2) {
        (Some(Round::AskedColor { name }), _, Some(answer)) => text(format!("{name} likes {}", word(answer, "color"))),
        (Some(Round::AskedName), Some(answer), _) => {
            let name = word(answer, "name");
            ask_color(call, name)
        }
        (Some(Round::AskedColor { name }), _, None) => ask_color(call, name),
        (Some(Round::AskedName) | None, _, _) => {
            let question = form("Step 1: What is your name?", "name", Kind::String);
            required_with_state(call, [("step1", question)], &Round::AskedName)
        }
    }
}

fn ask_color(call: &Call, name: String) -> Outcome {
    let message = "Step 2: What is your favorite color?";
    let question = form(message, "color", Kind::String);
    required_with_state(call, [("step2", question)], &Round::AskedColor { name })
}

/// Asks only for what the client said it can answer.
pub fn capabilities(call: &Call) -> Outcome {
    let client = call.context.client_capabilities().unwrap_or_default();
    let mut requests =
        named([("user_name", user_name()), ("greeting", sampling("Generate a greeting")), ("client_roots", roots())]);
    requests.retain(|_, request| match request {
        InputRequest::Elicitation(_) => client.elicitation.is_some(),
        InputRequest::CreateMessage(_) => client.sampling.is_some(),
        InputRequest::ListRoots(_) => client.roots.is_some(),
        _ => false,
    });
    requests.retain(|key, _| call.answers.object(key).is_none());
    if requests.is_empty() {
        return text("Nothing left to ask");
    }
    Ok(InputRequiredResult::from_input_requests(requests).into())
}

/// An elicitation on the call's own stream: the client may get nothing there but notifications and the result.
pub fn streaming_elicitation(call: &Call) -> Outcome {
    let Some(answer) = call.answers.accepted("value") else {
        let question = form("Please provide a value", "value", Kind::String);
        return Ok(required([("value", question)]).into());
    };
    text(word(answer, "value"))
}

/// A field of an answer as text; the client is not held to the schema it was given.
pub fn word(answer: &JsonObject, field: &str) -> String {
    match answer.get(field) {
        Some(Value::String(word)) => word.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}
