//! The MCP server one client talks to: identity, tools, resources. One per bridge, per legacy HTTP session, per stateless request.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CreateTaskResult, GetPromptRequestParams,
        GetPromptResponse, GetTaskParams, GetTaskResult, Implementation, InitializeRequestParams, JsonObject,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
        ProgressNotificationParam, ProgressToken, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
        Resource, ResourceContents, ResourceTemplate, ServerCapabilities, ServerConfig, Task, Tool, UpdateTaskParams,
    },
    service::{RequestContext, serve_directly_with_ct},
};
use tokio_util::sync::CancellationToken;

use super::{
    prompts, render,
    stdio::{Backlog, Stdio},
    tasks::Tasks,
    tools::{self, Selection},
};
use pylair_core::{
    audit::{Pending, deed},
    caller::{Caller, DefaultSession, client_name},
    daemon::{
        Daemon, Holder, VERSION,
        targets::{self, Purpose, Target},
    },
    history::{self, Format},
    order::{Left, Sender, SenderId, Ticket},
    rights,
    session::{self, Outcome, Reserved, Session, output_uri},
    visit::{LargeAnswer, Visit},
};
use pylair_failures::{guide, view::Filter};
use pylair_files::{self as files, Content};
use pylair_os::event_loop::{self, apart};
use pylair_output::Which;
use pylair_text::plain::one_line;

const INSTRUCTIONS: &str = "pylair runs Python in persistent sessions. execute(code) uses your default session, opened at \
    the first call; variables stay. target=\"app:ID\" goes into a running program instead, target=\"failure:ID\" into a test frozen as it failed (list_targets shows them); \
    run_tests runs pytest and freezes what fails. A cell that outlives wait_s answers `running` with a job: go on with get_job, stop it with interrupt. \
    Calls that you send together run in the order you sent them. User code that raises is a result, not an error. Read the notes: they say when a session was restarted, rolled back or \
    lost something. For long code prefer your shell: pylair exec <<'PY' ... PY runs in this same session and a person can \
    read it before approving it.";

const MAX_RESOURCE_BYTES: usize = 256 << 10;
/// Longer ones are nobody's.
const MAX_URI_BYTES: usize = 16 << 10;
const MAX_ERROR_BYTES: usize = 8 << 10;
/// Sessions over HTTP pass an answer on in one piece, for as long as which nobody else is served.
const MAX_ANSWER_BYTES: usize = 8 << 20;
const UNREAD: &str = "answers to this owner that were not read yet take all the room there is for them; read those that are open, then \
    ask again (get_job has what came of a cell)";
const DEFAULT_HISTORY: usize = 100;
const LISTED_FAILURES: usize = 20;
/// The tools that do the same as prompts and as the resources of failures.
const PROMPTS: &str = "write_debug_prompt";
const FAILURES: &str = "get_failure";

/// Tools that wait for the calls their sender made before to the same session. The others go ahead at once.
const IN_ORDER: [&str; 13] = [
    "execute",
    "run_file",
    "call",
    "set_variable",
    "undo",
    "branch_session",
    "save_session",
    "open_session",
    "restart_session",
    "close_session",
    "install_packages",
    "complete_code",
    "run_tests",
];

/// Tools whose answer tells by itself what happened before. What happens to a session after that is for the next answer to tell.
const TELLS_NEWS: [&str; 6] = ["execute", "run_file", "set_variable", "call", "get_job", "undo"];

/// Least time to wait for calls that came before and are still looking for their session.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Lets later calls go on when this one is answered, whatever came of it.
struct Passing(Arc<Ticket>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How the client reached us, which settles who it is.
#[derive(Debug, Clone)]
pub enum ClientSide {
    Stdio { caller: Caller, gone: Arc<AtomicBool> },
    Http,
}

#[derive(Debug, Clone)]
pub struct Server {
    daemon: Arc<Daemon>,
    tasks: Arc<Tasks>,
    side: ClientSide,
    selection: Selection,
    /// Told once, with the next answer.
    notes: Arc<Mutex<Vec<String>>>,
    /// What a client on stdio has not read.
    backlog: Option<Arc<Backlog>>,
}

/// One tool call.
pub struct Call<'a> {
    pub daemon: &'a Arc<Daemon>,
    pub caller: Caller,
    pub tool: &'static str,
    pub arguments: JsonObject,
    server: &'a Server,
    context: RequestContext<RoleServer>,
    /// What is answered instead of a result, when the call has become a task.
    task: Arc<Mutex<Option<Task>>>,
    /// What the answer has to say besides its own.
    notes: Arc<Mutex<Vec<String>>>,
    /// The sessions that the answer is about.
    sessions: Arc<Mutex<Vec<Session>>>,
    record: Arc<Mutex<Option<Pending>>>,
}

impl Call<'_> {
    pub fn progress_token(&self) -> Option<ProgressToken> {
        self.context.meta.get_progress_token()
    }

    pub async fn notify_progress(&self, progress: ProgressNotificationParam) {
        if let Err(error) = self.context.peer.notify_progress(progress).await {
            tracing::debug!(%error, "progress could not be told");
        }
    }

    /// Resolves when the client takes the request back. Never when the client is gone: then the cell goes on as a job.
    pub async fn cancelled(&self) {
        self.context.ct.cancelled().await;
        if self.server.client_is_gone() {
            std::future::pending::<()>().await;
        }
    }

    /// Refuses to begin what the client has taken back already.
    pub fn check_wanted(&self) -> Result<(), tools::ToolError> {
        let is_cancelled = self.context.ct.is_cancelled() && !self.server.client_is_gone();
        if is_cancelled && !self.daemon.shutdown.is_cancelled() { Err(tools::ToolError::cancelled()) } else { Ok(()) }
    }

    /// In the audit record, if calls of this tool are recorded.
    fn write_down(&self, tell: impl FnOnce(&mut Pending)) {
        if let Some(record) = self.record.lock().expect("no panic while locked").as_mut() {
            tell(record);
        }
    }

    /// What was found out about what is asked for.
    pub fn detail(&self, name: &str, value: serde_json::Value) {
        self.write_down(|record| record.detail(name, value));
    }

    /// Where it is done, which the caller may have left to us.
    pub fn reached(&self, target: &str) {
        self.write_down(|record| record.target(Some(target)));
    }

    /// Something is about to run in a target: this code, or what was asked for.
    pub fn begin(&self, target: &Target, code: Option<&str>) {
        self.write_down(|record| record.begin(&target.name(), code));
    }

    /// How it ended, as far as is known when the call is answered.
    pub fn came_of(&self, outcome: Outcome) {
        self.write_down(|record| record.came_of(outcome.as_str()));
    }

    /// Code is about to run in a session that is being opened.
    pub fn begin_opening(&self, name: &str, startup: &str) {
        self.write_down(|record| record.begin(name, Some(startup)));
    }

    /// Whether the client can be given a task instead of a result.
    pub fn takes_tasks(&self) -> bool {
        self.context.client_capabilities().is_some_and(|client| client.supports_tasks())
    }

    pub fn tasks(&self) -> &Tasks {
        &self.server.tasks
    }

    /// Answers with a task.
    pub fn become_task(&self, task: Task) {
        *self.task.lock().expect("no panic while locked") = Some(task);
    }

    /// What the answer has to say besides its own. What is not taken is added to its end.
    pub fn take_notes(&self) -> Vec<String> {
        let mut notes = std::mem::take(&mut *self.notes.lock().expect("no panic while locked"));
        notes.append(&mut self.server.notes.lock().expect("no panic while locked"));
        notes
    }

    /// Waits until the calls that came before from the same sender have reached the target that this one names.
    pub async fn in_turn(&self) {
        self.before_others(self.caller.sender.turn()).await;
    }

    /// What takes longer to open is told by whoever asks for it.
    async fn before_others(&self, turn: impl Future<Output = ()>) {
        let _late = tokio::time::timeout(self.caller.settings.wait.max(TURN_TIMEOUT), turn).await;
    }

    /// Waits until the calls of the same sender to this session that came before have ended; those that come later wait for this one.
    /// None where another cell still runs: what is done then says by itself whether that can be.
    pub(super) async fn reserve(&self, session: &Session, beside: bool) -> Result<Option<Reserved>, tools::ToolError> {
        let limit = self.caller.settings.wait;
        let reserved = tokio::select! {
            biased;
            reserved = session.reserve(&self.caller.sender, beside, limit) => reserved,
            () = self.cancelled() => return Err(tools::ToolError::cancelled()),
        };
        match reserved {
            Ok(reserved) => {
                self.note(reserved.waited.clone().into_iter().collect());
                Ok(Some(reserved))
            }
            Err(session::Error::Busy { .. }) => Ok(None),
            Err(error @ session::Error::WaitedTooLong { .. }) => {
                self.note(vec![error.message()]);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What the caller means by `target`.
    pub async fn target(&self, named: Option<&str>, purpose: Purpose) -> Result<Target, targets::Error> {
        self.in_turn().await;
        let target = self.daemon.target(&self.caller, named, purpose).await?;
        match &target {
            Target::Session(session) => self.before_others(self.caller.sender.turn_at(&session.info.handle)).await,
            // Apps and frozen failures take several calls at once, or refuse them.
            _ => self.caller.sender.pass(),
        }
        self.reached(&target.name());
        self.note(target.take_notes());
        if let Target::Session(session) = &target {
            self.about(session);
        }
        Ok(target)
    }

    /// The same for what only a session can do.
    pub async fn session(&self, named: Option<&str>, purpose: Purpose) -> Result<Session, targets::Error> {
        self.in_turn().await;
        let session = self.daemon.session(&self.caller, named, purpose, self.tool).await?;
        self.before_others(self.caller.sender.turn_at(&session.info.handle)).await;
        self.reached(&session.info.name);
        self.about(&session);
        Ok(session)
    }

    /// The answer is about this session, and says what is missing of its sandbox, and what happened to it that nobody was told.
    pub fn about(&self, session: &Session) {
        let mut sessions = self.sessions.lock().expect("no panic while locked");
        if !sessions.iter().any(|known| known.info.handle == session.info.handle) {
            sessions.push(session.clone());
        }
        drop(sessions);
        let mut notes = self.notes.lock().expect("no panic while locked");
        if let Some(caution) = session.caution()
            && !notes.contains(&caution)
        {
            notes.push(caution);
        }
    }

    /// The same of one that is known by its handle, if it is open.
    pub fn about_handle(&self, handle: &str) {
        if let Ok(session) = self.daemon.sessions.find(&self.caller, handle) {
            self.reached(&session.info.name);
            self.about(&session);
        }
    }

    pub fn note(&self, notes: Vec<String>) {
        self.notes.lock().expect("no panic while locked").extend(notes);
    }

    /// The client is served nothing that changes anything.
    pub fn is_readonly(&self) -> bool {
        self.server.selection.is_readonly()
    }
}

impl Server {
    pub fn new(
        daemon: Arc<Daemon>,
        tasks: Arc<Tasks>,
        side: ClientSide,
        selection: Selection,
        notes: Vec<String>,
    ) -> Self {
        Self { daemon, tasks, side, selection, notes: Arc::new(Mutex::new(notes)), backlog: None }
    }

    fn client_is_gone(&self) -> bool {
        match &self.side {
            ClientSide::Stdio { gone, .. } => gone.load(Ordering::Acquire),
            ClientSide::Http => false,
        }
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        let client = context.client_info().map(|info| client_name(&info.name));
        match &self.side {
            ClientSide::Stdio { caller, .. } => {
                let mut caller = caller.clone();
                if let Some(client) = client {
                    caller.client = client;
                }
                Ok(caller)
            }
            ClientSide::Http => {
                let parts = context.extensions.get::<http::request::Parts>();
                let session =
                    parts.and_then(|parts| parts.headers.get("mcp-session-id")).and_then(|id| id.to_str().ok());
                let default = session.map_or(DefaultSession::Fresh, |id| DefaultSession::McpSession(id.to_owned()));
                // The router lets nobody come this far without.
                let Some(visit) = parts.and_then(|parts| parts.extensions.get::<Visit>()) else {
                    return Err(ErrorData::internal_error("the request has no authenticated caller", None));
                };
                let mut caller = self.daemon.visiting_caller(visit, client.as_deref().unwrap_or("http"), default);
                if let Some(id) = session {
                    caller.sender = Sender::new(SenderId::McpSession(id.to_owned()));
                    if let Some(Left(left)) = parts.and_then(|parts| parts.extensions.get()) {
                        caller.sender.left = left.clone();
                    }
                }
                Ok(caller)
            }
        }
    }

    fn reading_caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        self.caller_who_may(context, "get_history")
    }

    fn changing_caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        self.caller_who_may(context, "interrupt")
    }

    /// The caller of something that is no tool, if it could call the tool that does the same.
    fn caller_who_may(&self, context: &RequestContext<RoleServer>, tool: &str) -> Result<Caller, ErrorData> {
        let caller = self.caller(context)?;
        rights::check(&caller, tool, &JsonObject::new()).map_err(|denied| {
            self.daemon.audit.denied(&caller, tool, None, &denied.to_string());
            ErrorData::invalid_request(format!("{denied}; {}", denied.hint()), None)
        })?;
        Ok(caller)
    }

    /// Whoever reads what was run needs the right to, and finds nobody else's.
    async fn may_read_job(&self, caller: &Caller, job: &str) -> Result<(), ErrorData> {
        if self.daemon.owns_job(caller, job).await {
            return Ok(());
        }
        let error = pylair_output::Error::Unknown { id: job.to_owned() };
        let hint = error.hint().unwrap_or_default();
        Err(ErrorData::resource_not_found(format!("{error}; {hint}"), None))
    }

    /// Does what a request asks for as a task of its own. An answer that is large is sent like one, and errors are no place for
    /// what was sent.
    async fn turn<T>(
        &self,
        visitor: Option<(LargeAnswer, Visit)>,
        weight: fn(&T) -> usize,
        work: impl Future<Output = Result<T, ErrorData>>,
    ) -> Result<T, ErrorData> {
        let answered = event_loop::watched(async {
            let answer = work.await?;
            let Some((large, visit)) = visitor else { return Ok(answer) };
            let bytes = weight(&answer);
            if bytes > MAX_ANSWER_BYTES {
                let message = format!(
                    "the answer has {} MB, and over HTTP one has at most {}; ask for a part of it, or get it from /api or /files",
                    bytes >> 20,
                    MAX_ANSWER_BYTES >> 20
                );
                return Err(ErrorData::invalid_request(message, None));
            }
            if bytes > event_loop::LARGE_BYTES {
                let held = visit.buffers.take(&visit.token.owner, bytes as u64);
                large.announce(held.ok_or_else(|| ErrorData::internal_error(UNREAD, None))?);
            }
            Ok(answer)
        });
        answered.await.map_err(|mut error: ErrorData| {
            let cut = error.message.floor_char_boundary(MAX_ERROR_BYTES);
            if cut < error.message.len() {
                error.message = format!("{}…", &error.message[..cut]).into();
            }
            error
        })
    }

    /// How the door is told that the answer to this request is large, and whom it is for.
    fn visitor(context: &RequestContext<RoleServer>) -> Option<(LargeAnswer, Visit)> {
        let extensions = &context.extensions.get::<http::request::Parts>()?.extensions;
        let visit = extensions.get::<Visit>()?.clone();
        Some((extensions.get::<LargeAnswer>()?.clone(), visit))
    }

    fn read_output(&self, uri: &str, job: &str, query: &str) -> Result<String, ErrorData> {
        let (mut offset, mut limit) = (0, MAX_RESOURCE_BYTES);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let bad = || {
                ErrorData::invalid_params(
                    format!("`{pair}` in {uri} is not understood; use offset=N and limit=N"),
                    None,
                )
            };
            match pair.split_once('=').ok_or_else(bad)? {
                ("offset", value) => offset = value.parse().map_err(|_| bad())?,
                ("limit", value) => limit = value.parse::<usize>().map_err(|_| bad())?.min(MAX_RESOURCE_BYTES),
                _ => return Err(bad()),
            }
        }
        let outputs = &self.daemon.sessions.parts.outputs;
        // How long an output is that its daemon could not finish is found by reading it.
        let page = apart(usize::MAX, || outputs.read(job, Which::Merged, offset, limit)).map_err(|error| {
            let hint = error.hint().unwrap_or("see the job's answer for its uri");
            ErrorData::resource_not_found(format!("{error}; {hint}"), None)
        })?;
        let mut text: String = page.parts.into_iter().map(|(_, text)| text).collect();
        if let Some(next) = page.next {
            use std::fmt::Write;
            let _infallible = write!(text, "\n[more: read {}?offset={next}]", output_uri(job));
        }
        Ok(text)
    }

    /// A rich value: text as text, the rest as bytes.
    async fn read_display(&self, uri: &str, job: &str, index: &str) -> Result<ResourceContents, ErrorData> {
        let not_found = |why: String| ErrorData::resource_not_found(why, None);
        let index: usize = index.parse().map_err(|_| not_found(format!("{uri} is not the uri of a display")))?;
        let (outputs, job) = (self.daemon.sessions.parts.outputs.clone(), job.to_owned());
        let read = tokio::task::spawn_blocking(move || outputs.read_part(&job, index)).await;
        let (mime, bytes) =
            read.map_err(|error| ErrorData::internal_error(error.to_string(), None))?.map_err(|error| {
                not_found(format!("{error}; {}", error.hint().unwrap_or("see the job's answer for its uri")))
            })?;
        event_loop::carry(bytes.len()).await;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => ResourceContents::text(text, uri).with_mime_type(mime),
            Err(error) => ResourceContents::blob(BASE64_STANDARD.encode(error.as_bytes()), uri).with_mime_type(mime),
        })
    }

    async fn read_file(&self, caller: &Caller, uri: &str, path: &str) -> Result<ResourceContents, ErrorData> {
        let not_found = |message: String| ErrorData::resource_not_found(message, None);
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
        let decoded = decoded.map_err(|error| not_found(format!("{uri} is not UTF-8: {error}")))?;
        let (target, path) = decoded
            .split_once('/')
            .ok_or_else(|| not_found(format!("{uri} names no file; it is pylair://file/SESSION/PATH")))?;
        let session = self.daemon.sessions.existing(caller, Some(target)).await;
        let session = session.map_err(|error| not_found(format!("{error}; {}", error.hint())))?;
        let mut record = self.daemon.audit.call(caller, "read_file");
        record.target(Some(&session.info.name));
        record.detail("path", path.into());
        let read = session.workspace().read(path, 0, files::MAX_PAGE_BYTES).await;
        match &read {
            Ok(_) => record.conclude(None),
            Err(error) => record.conclude(Some((error.kind(), &error.message()))),
        }
        let refused = |error: files::Error| not_found(format!("{}; {}", error.message(), error.hint()));
        let page = read.map_err(refused)?;
        event_loop::carry(usize::try_from(page.bytes).unwrap_or(usize::MAX)).await;
        if page.next_offset.is_some() {
            let (name, encoded) = (&session.info.name, pylair_text::escape::url_path(path));
            let message = format!(
                "`{path}` has {} bytes, a resource at most {}; read it in pages with read_file, or whole from \
                 GET /files/download/{encoded}?target={name}",
                page.bytes,
                files::MAX_PAGE_BYTES
            );
            return Err(ErrorData::invalid_params(message, None));
        }
        Ok(match page.content {
            Content::Text(text) => ResourceContents::text(text, uri).with_mime_type("text/plain"),
            Content::Image { mime, bytes } => {
                ResourceContents::blob(BASE64_STANDARD.encode(bytes), uri).with_mime_type(mime)
            }
            Content::Bytes(bytes) => {
                ResourceContents::blob(BASE64_STANDARD.encode(bytes), uri).with_mime_type("application/octet-stream")
            }
        })
    }

    async fn read_history(&self, caller: &Caller, target: &str) -> Result<String, ErrorData> {
        let subject = self.subject(caller, target).await?;
        let events = self.daemon.journal.history(&subject.owner, &subject.handle, None, DEFAULT_HISTORY).await;
        let events = events.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        event_loop::carry(usize::MAX).await;
        let lines: Vec<_> = events.iter().filter_map(|event| serde_json::to_string(event).ok()).collect();
        Ok(lines.join("\n"))
    }

    async fn read_export(&self, caller: &Caller, file: &str) -> Result<(String, &'static str), ErrorData> {
        let format = file.rsplit_once('.').and_then(|(target, suffix)| Some((target, Format::from_suffix(suffix)?)));
        let Some((target, format)) = format else {
            let message = format!("`{file}` is not SESSION.ipynb, SESSION.py or SESSION.html");
            return Err(ErrorData::resource_not_found(message, None));
        };
        let subject = self.subject(caller, target).await?;
        let outputs = &self.daemon.sessions.parts.outputs;
        let export = history::export(&self.daemon.journal, outputs, &subject, format).await;
        let export = export.map_err(|error| ErrorData::internal_error(error.message(), None))?;
        Ok((export.text, format.mime()))
    }

    async fn read_failure(&self, caller: &Caller, id: &str) -> Result<String, ErrorData> {
        let found = tools::failures::find(&self.daemon, caller, id).await;
        let found = found.map_err(|refused| {
            ErrorData::resource_not_found(format!("{}; {}", refused.message(), refused.hint()), None)
        })?;
        serde_json::to_string_pretty(&found).map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }

    async fn subject(&self, caller: &Caller, target: &str) -> Result<history::Subject, ErrorData> {
        let found = history::find(&self.daemon.sessions, &self.daemon.journal, caller, Some(target)).await;
        found.map_err(|error| ErrorData::resource_not_found(format!("{error}; {}", error.hint()), None))
    }

    /// The session that a call means, as far as that is known now, and the name of one that it makes; none if it waits for no other
    /// call.
    fn meant(&self, caller: &Caller, tool: &str, arguments: &JsonObject) -> Option<(String, Option<String>)> {
        let named = |argument: &str| arguments.get(argument).and_then(|name| name.as_str());
        let meant = |name: Option<&str>| self.daemon.sessions.meant(caller, name);
        match tool {
            _ if !IN_ORDER.contains(&tool) => None,
            "open_session" => named("name").and_then(|name| Some((meant(Some(name))?, Some(name.to_owned())))),
            "branch_session" => Some((meant(named("target"))?, named("name").map(str::to_owned))),
            _ => Some((meant(named("target"))?, None)),
        }
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let ticket = context.extensions.get::<Arc<Ticket>>().or_else(|| {
            let parts = context.extensions.get::<http::request::Parts>()?;
            parts.extensions.get::<Arc<Ticket>>()
        });
        let ticket = ticket.cloned();
        // The request may be kept for longer than it is answered.
        let _passing = ticket.clone().map(Passing);
        event_loop::carry(event_loop::weight(&(&request.arguments, &context.meta))).await;
        let Some(tool) = tools::find(&request.name, &self.selection) else {
            let known: Vec<_> = tools::listed(&self.selection).iter().map(|tool| tool.name.to_string()).collect();
            let message =
                format!("there is no tool `{}`; there are {}", one_line(&request.name, 100), known.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let _hold = self.daemon.hold(Holder::Request);
        let mut caller = self.caller(&context)?;
        let arguments = request.arguments.unwrap_or_default();
        let target = arguments.get("target").and_then(|target| target.as_str());
        if let Some(ticket) = ticket {
            match self.meant(&caller, tool.name, &arguments) {
                Some((meant, makes)) => ticket.means(meant, makes),
                None => ticket.end(),
            }
            caller.sender = caller.sender.with_ticket(Some(ticket));
        }
        if let Err(denied) = rights::check(&caller, tool.name, &arguments) {
            self.daemon.audit.denied(&caller, tool.name, target, &denied.to_string());
            return Ok(tools::ToolError::from(denied).into_result().into());
        }
        if let Err(refused) = tool.refuse_beyond_looking(&self.selection, &arguments) {
            self.daemon.audit.denied(&caller, tool.name, target, &refused.message);
            return Ok(refused.into_result().into());
        }
        let mut record = deed::is_recorded(tool.name).then(|| self.daemon.audit.call(&caller, tool.name));
        if let Some(record) = &mut record {
            record.details(&arguments);
            let pid = arguments.get("pid").map(|pid| format!("pid:{pid}"));
            record.target(target.or(pid.as_deref()));
        }
        let target = target.map(str::to_owned);
        let record = Arc::new(Mutex::new(record));
        let (task, notes) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let sessions: Arc<Mutex<Vec<Session>>> = Arc::default();
        let call = Call {
            daemon: &self.daemon,
            caller,
            tool: tool.name,
            arguments,
            server: self,
            context,
            task: task.clone(),
            record: record.clone(),
            notes: notes.clone(),
            sessions: sessions.clone(),
        };
        // Also what is asked about a session without reaching it, such as its history.
        if let Some(session) = target.and_then(|target| self.daemon.sessions.find(&call.caller, &target).ok()) {
            call.about(&session);
        }
        let told = (tool.function)(call).await;
        if let Some(record) = record.lock().expect("no panic while locked").take() {
            record.conclude(told.as_ref().err().map(|error| (error.kind, error.message.as_str())));
        }
        let mut notes = std::mem::take(&mut *notes.lock().expect("no panic while locked"));
        // The first answer after an earlier daemon's end says so, whatever was asked: an error may be the consequence of it, and a list
        // that has become shorter too.
        notes.append(&mut self.notes.lock().expect("no panic while locked"));
        let task = task.lock().expect("no panic while locked").take();
        if task.is_none() && (told.is_err() || !TELLS_NEWS.contains(&tool.name)) {
            notes.extend(sessions.lock().expect("no panic while locked").iter().flat_map(Session::take_news));
        }
        let result = match told {
            Ok(mut result) => {
                render::add_notes(&mut result, notes);
                result
            }
            Err(mut error) => {
                for note in notes {
                    error.hint = format!("{note}; {}", error.hint);
                }
                error.into_result()
            }
        };
        Ok(task.map_or_else(|| result.into(), |task| CreateTaskResult::new(task).into()))
    }

    async fn read(&self, uri: String, context: RequestContext<RoleServer>) -> Result<ReadResourceResponse, ErrorData> {
        if uri.len() > MAX_URI_BYTES {
            return Err(ErrorData::invalid_params(format!("a uri has at most {MAX_URI_BYTES} bytes"), None));
        }
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        if let Some(id) = path.strip_prefix("pylair://failure/") {
            let caller = self.caller_who_may(&context, FAILURES)?;
            let text = self.read_failure(&caller, id).await?;
            let contents = ResourceContents::text(text, uri.clone()).with_mime_type("application/json");
            return Ok(ReadResourceResult::new(vec![contents]).into());
        }
        let caller = self.reading_caller(&context)?;
        if let Some(file) = path.strip_prefix("pylair://file/") {
            return Ok(ReadResourceResult::new(vec![self.read_file(&caller, &uri, file).await?]).into());
        }
        let (text, mime) = if let Some(job) = path.strip_prefix("pylair://output/") {
            self.may_read_job(&caller, job).await?;
            (self.read_output(&uri, job, query)?, "text/plain")
        } else if let Some((job, index)) = path.strip_prefix("pylair://display/").and_then(|path| path.split_once('/'))
        {
            self.may_read_job(&caller, job).await?;
            let contents = self.read_display(path, job, index).await?;
            return Ok(ReadResourceResult::new(vec![contents]).into());
        } else if let Some(target) = path.strip_prefix("pylair://history/") {
            (self.read_history(&caller, target).await?, "application/x-ndjson")
        } else if let Some(file) = path.strip_prefix("pylair://export/") {
            self.read_export(&caller, file).await?
        } else if let Some(topic) = path.strip_prefix("pylair://docs/") {
            let page = guide::read(Some(topic));
            let page =
                page.map_err(|unknown| ErrorData::resource_not_found(format!("{unknown}; {}", unknown.hint()), None))?;
            (page.docs, "text/markdown")
        } else {
            let message = format!(
                "there is no resource {uri}; there are pylair://output/JOB, pylair://display/JOB/N, pylair://file/SESSION/PATH, \
                 pylair://history/SESSION, pylair://export/SESSION.ipynb, pylair://failure/ID and pylair://docs/TOPIC"
            );
            return Err(ErrorData::resource_not_found(message, None));
        };
        let contents = ResourceContents::text(text, uri).with_mime_type(mime);
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(
            ServerCapabilities::builder().enable_tools().enable_resources().enable_prompts().enable_tasks().build(),
        )
        .with_server_info(Implementation::new("pylair", VERSION))
        .with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::listed(&self.selection).into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context)?;
        let mut listed = tools::listed(&self.selection);
        listed.retain(|tool| rights::could_call(&caller, &tool.name));
        Ok(ListToolsResult::with_all_items(listed))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let weight = |answer: &CallToolResponse| match answer {
            CallToolResponse::Complete(result) => event_loop::whole_weight(result),
            _ => 0,
        };
        if let Some(backlog) = &self.backlog {
            backlog.until_read().await;
        }
        self.turn(Self::visitor(&context), weight, self.call(request, context)).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let manager = self.tasks.of(&self.caller(&context)?.owner, &request.task_id)?;
        let task = async { Ok(GetTaskResult::new(manager.get_task(&request.task_id)?)) };
        self.turn(Self::visitor(&context), event_loop::whole_weight, task).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.changing_caller(&context)?;
        self.tasks.of(&caller.owner, &request.task_id)?.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.changing_caller(&context)?;
        self.tasks.of(&caller.owner, &request.task_id)?.cancel_task(&request.task_id)
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let caller = self.caller(&context)?;
        let serves = tools::find(PROMPTS, &self.selection).is_some() && rights::could_call(&caller, PROMPTS);
        Ok(ListPromptsResult::with_all_items(if serves { prompts::listed() } else { Vec::new() }))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let caller = self.caller_who_may(&context, PROMPTS)?;
        let visitor = Self::visitor(&context);
        let written = async {
            let arguments = request.arguments.unwrap_or_default();
            event_loop::carry(event_loop::weight(&arguments)).await;
            Ok(prompts::get(&self.daemon, &caller, &request.name, &arguments).await?.into())
        };
        let weight = |answer: &GetPromptResponse| match answer {
            GetPromptResponse::Complete(result) => event_loop::whole_weight(result),
            _ => 0,
        };
        self.turn(visitor, weight, Box::pin(written)).await
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.reading_caller(&context)?;
        let mut resources = Vec::new();
        for session in self.daemon.sessions.list(&caller) {
            let status = session.status();
            resources.push(
                Resource::new(format!("pylair://history/{}", status.name), format!("history of {}", status.name))
                    .with_description("The newest events of this session, one JSON object a line")
                    .with_mime_type("application/x-ndjson"),
            );
            if let Some(job) = status.job {
                resources.push(
                    Resource::new(output_uri(&job), format!("output of cell {} of {}", status.cell, status.name))
                        .with_mime_type("text/plain"),
                );
            }
        }
        if rights::could_call(&caller, FAILURES) {
            // A store that is away is no reason to show nothing.
            let newest = self.daemon.failures.list(&Filter::default(), LISTED_FAILURES, None).await;
            for failure in newest.map(|page| page.items).unwrap_or_default() {
                resources.push(
                    Resource::new(format!("pylair://failure/{}", failure.id), format!("failure of {}", failure.test))
                        .with_description(format!("{}: {}", failure.kind, failure.message))
                        .with_mime_type("application/json"),
                );
            }
        }
        Ok(ListResourcesResult::with_all_items(resources))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![
            ResourceTemplate::new("pylair://output/{job}{?offset,limit}", "output")
                .with_description("The whole output of a cell, in pages")
                .with_mime_type("text/plain"),
            ResourceTemplate::new("pylair://display/{job}/{number}", "display")
                .with_description("A rich value that a cell showed"),
            ResourceTemplate::new("pylair://history/{session}", "history")
                .with_description("What happened in a session")
                .with_mime_type("application/x-ndjson"),
            ResourceTemplate::new("pylair://file/{session}/{+path}", "file")
                .with_description("A file of a session's workspace"),
            ResourceTemplate::new("pylair://failure/{id}", "failure")
                .with_description("All that is known of a test failure")
                .with_mime_type("application/json"),
            ResourceTemplate::new("pylair://docs/{topic}", "docs")
                .with_description("How pylair is used with test failures")
                .with_mime_type("text/markdown"),
            ResourceTemplate::new("pylair://export/{session}.{format}", "export")
                .with_description("A session as a notebook (ipynb), a script (py) or a page (html)"),
        ]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let weight = |answer: &ReadResourceResponse| match answer {
            ReadResourceResponse::Complete(result) => event_loop::whole_weight(result),
            _ => 0,
        };
        let _turn = match &self.backlog {
            Some(backlog) => backlog.turn().await,
            None => None,
        };
        self.turn(Self::visitor(&context), weight, Box::pin(self.read(request.uri, context))).await
    }
}

/// Serves one client over stdio until it goes or `stop` is cancelled. `initialize` is what the client said to an earlier daemon.
pub async fn serve_stdio(
    mut server: Server,
    transport: Stdio,
    initialize: Option<InitializeRequestParams>,
    stop: CancellationToken,
) {
    server.backlog = Some(transport.backlog());
    let running = match initialize {
        Some(params) => serve_directly_with_ct(server, transport, Some(params), stop),
        None => match Box::pin(server.serve_with_ct(transport, stop)).await {
            Ok(running) => running,
            Err(error) => {
                tracing::debug!(%error, "a client left before it introduced itself");
                return;
            }
        },
    };
    if let Err(error) = running.waiting().await {
        tracing::warn!(%error, "serving a client failed");
    }
}
