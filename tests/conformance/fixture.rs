//! The MCP server the conformance suite talks to.
//!
//! Every name and text here is fixed by the suite: a scenario looks a tool, resource or prompt up by name and
//! checks what it answers. Nothing of it ships. `tools` holds the table of tools; resources, prompts,
//! completions and subscriptions are short enough to live here.
//!
//! A 2026-07-28 client has no session, so each of its requests meets a new `Fixture`. What must outlive a
//! request is in `Shared`; `Session` is only for clients that start with `initialize`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult, CompletionInfo,
    ContentBlock, GetPromptRequestParams, GetPromptResponse, GetPromptResult, GetTaskParams, GetTaskResult,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel,
    PaginatedRequestParams, Prompt, PromptArgument, PromptMessage, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, Reference, RequestStateCodec, Resource, ResourceContents, ResourceTemplate, Role,
    ServerCapabilities, ServerConfig, SetLevelRequestMethod, SetLevelRequestParams, SubscribeRequestParams,
    SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::task_manager::TaskManager;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::inputs::{self, Answers};
use crate::tools::{self, Call};

/// One red pixel.
pub const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg==";

const STATIC_TEXT: &str = "test://static-text";
const STATIC_BINARY: &str = "test://static-binary";
const WATCHED: &str = "test://watched-resource";
const TEMPLATE: &str = "test://template/{id}/data";

/// Signs `requestState`. The fixture lives for one run of the suite, so the key need not be secret.
const REQUEST_STATE_KEY: &[u8] = b"the conformance fixture signs request state with this";

/// Changes nobody has read yet; a listener that falls further behind loses the oldest.
const CHANGES_CAPACITY: usize = 16;

/// What one run of the suite shares across requests and sessions.
pub struct Shared {
    pub tasks: TaskManager,
    pub request_state: RequestStateCodec,
    pub changes: broadcast::Sender<Change>,
}

impl Shared {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            tasks: TaskManager::new(),
            request_state: RequestStateCodec::try_new(REQUEST_STATE_KEY).expect("the key is long enough"),
            changes: broadcast::Sender::new(CHANGES_CAPACITY),
        })
    }
}

/// A list that a tool claims to have changed, for whoever listens.
#[derive(Clone, Copy)]
pub enum Change {
    Tools,
    Prompts,
}

struct Session {
    subscribed: Mutex<HashSet<String>>,
    log_level: Mutex<LoggingLevel>,
    /// Receives from the start: a client may cause a change as soon as its subscription is acknowledged, which is
    /// before `listen` runs.
    changes: tokio::sync::Mutex<broadcast::Receiver<Change>>,
}

#[derive(Clone)]
pub struct Fixture {
    pub shared: Arc<Shared>,
    session: Arc<Session>,
}

impl Fixture {
    pub fn new(shared: Arc<Shared>) -> Self {
        let session = Session {
            subscribed: Mutex::default(),
            log_level: Mutex::new(LoggingLevel::Debug),
            changes: shared.changes.subscribe().into(),
        };
        Self { shared, session: Arc::new(session) }
    }

    /// The least severe message to send: what the request asked for, or what the session set before.
    pub fn log_level(&self, context: &RequestContext<RoleServer>) -> Option<LoggingLevel> {
        if is_modern(context) {
            return context.meta.log_level();
        }
        let level = self.session.log_level.lock();
        Some(*level.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether the request belongs to 2026-07-28 or later, where there is no session.
pub fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| !version.has_initialize())
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tasks()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("pylair-conformance-fixture", "1"))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list()))
    }

    /// The transport compares `Mcp-Param-*` headers with the schema this returns.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name).map(tools::Fixed::describe)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = tools::find(&request.name)
            .ok_or_else(|| ErrorData::invalid_params(format!("unknown tool `{}`", request.name), None))?;
        let call = Call {
            fixture: self.clone(),
            tool: tool.name,
            arguments: request.arguments.unwrap_or_default(),
            answers: Answers::new(request.input_responses),
            request_state: request.request_state,
            context,
        };
        tool.run(call).await
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(vec![
            Resource::new(STATIC_TEXT, "static-text")
                .with_description("A text that never changes")
                .with_mime_type("text/plain"),
            Resource::new(STATIC_BINARY, "static-binary")
                .with_description("An image that never changes")
                .with_mime_type("image/png"),
            Resource::new(WATCHED, "watched-resource")
                .with_description("A text to subscribe to")
                .with_mime_type("text/plain"),
        ]))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![
            ResourceTemplate::new(TEMPLATE, "template")
                .with_description("A document that repeats its id")
                .with_mime_type("application/json"),
        ]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = contents(&request.uri).ok_or_else(|| not_found(&request.uri))?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if contents(&request.uri).is_none() {
            return Err(not_found(&request.uri));
        }
        let mut subscribed = self.session.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        subscribed.insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let mut subscribed = self.session.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        if subscribed.remove(&request.uri) { Ok(()) } else { Err(not_found(&request.uri)) }
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.session.changes.lock().await;
        let (accepted, sink) = (context.accepted(), context.sink());
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            let sent = match change {
                Ok(Change::Tools) if accepted.tools_list_changed == Some(true) => sink.notify_tool_list_changed().await,
                Ok(Change::Prompts) if accepted.prompts_list_changed == Some(true) => {
                    sink.notify_prompt_list_changed().await
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            };
            sent.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        }
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompt = |name, about| Prompt::new(name, Some(about), None);
        let prompt_with = |name, about, arguments: &[&str]| {
            let arguments = arguments.iter().map(|name| PromptArgument::new(*name).with_required(true)).collect();
            Prompt::new(name, Some(about), Some(arguments))
        };
        Ok(ListPromptsResult::with_all_items(vec![
            prompt("test_simple_prompt", "One message"),
            prompt_with("test_prompt_with_arguments", "A message with both arguments in it", &["arg1", "arg2"]),
            prompt_with("test_prompt_with_embedded_resource", "A message that carries a resource", &["resourceUri"]),
            prompt("test_prompt_with_image", "A message that carries an image"),
            prompt("test_input_required_result_prompt", "A message that needs an answer from the user first"),
        ]))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let argument = |name: &str| {
            arguments
                .get(name)
                .and_then(Value::as_str)
                .ok_or_else(|| ErrorData::invalid_params(format!("argument `{name}` is missing"), None))
        };
        let text = |text: String| PromptMessage::new_text(Role::User, text);
        let messages = match request.name.as_str() {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.".into())],
            "test_prompt_with_arguments" => {
                vec![text(format!("Prompt with arguments: arg1='{}', arg2='{}'", argument("arg1")?, argument("arg2")?))]
            }
            "test_prompt_with_embedded_resource" => vec![
                PromptMessage::new(
                    Role::User,
                    ContentBlock::resource(
                        ResourceContents::text("Embedded resource content for testing.", argument("resourceUri")?)
                            .with_mime_type("text/plain"),
                    ),
                ),
                text("Please process the embedded resource above.".into()),
            ],
            "test_prompt_with_image" => vec![
                PromptMessage::new(Role::User, ContentBlock::image(PNG, "image/png")),
                text("Please analyze the image above.".into()),
            ],
            "test_input_required_result_prompt" => {
                let answers = Answers::new(request.input_responses);
                let Some(answer) = answers.accepted("user_context") else {
                    let question = inputs::form("What context should the prompt use?", "context", inputs::Kind::String);
                    return Ok(inputs::required([("user_context", question)]).into());
                };
                vec![text(format!("Context: {}", answer["context"]))]
            }
            name => {
                let message = format!("unknown prompt `{name}`");
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let known: &[&str] = match (&request.r#ref, request.argument.name.as_str()) {
            (Reference::Prompt(prompt), "arg1") if prompt.name == "test_prompt_with_arguments" => {
                &["paris", "park", "party"]
            }
            (Reference::Resource(template), "id") if template.uri == TEMPLATE => &["1", "2", "3"],
            _ => &[],
        };
        let values =
            known.iter().filter(|value| value.starts_with(&request.argument.value)).map(ToString::to_string).collect();
        let completion =
            CompletionInfo::with_all_values(values).map_err(|error| ErrorData::internal_error(error, None))?;
        Ok(CompleteResult::new(completion))
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if is_modern(&context) {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        let mut level = self.session.log_level.lock().unwrap_or_else(PoisonError::into_inner);
        *level = request.level;
        Ok(())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let task = self.shared.tasks.get_task(&request.task_id)?;
        Ok(GetTaskResult::new(task))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.cancel_task(&request.task_id)
    }
}

fn contents(uri: &str) -> Option<ResourceContents> {
    let (contents, mime_type) = match uri {
        STATIC_TEXT => (ResourceContents::text("This is the content of the static text resource.", uri), "text/plain"),
        STATIC_BINARY => (ResourceContents::blob(PNG, uri), "image/png"),
        WATCHED => (ResourceContents::text("Watched resource content.", uri), "text/plain"),
        _ => {
            let (prefix, suffix) = TEMPLATE.split_once("{id}")?;
            let id = uri.strip_prefix(prefix)?.strip_suffix(suffix)?;
            let document = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            (ResourceContents::text(document.to_string(), uri), "application/json")
        }
    };
    Some(contents.with_mime_type(mime_type))
}

fn not_found(uri: &str) -> ErrorData {
    ErrorData::resource_not_found("Resource not found", Some(json!({"uri": uri})))
}
