//! The functions behind `/api`. They call the same core methods as the MCP tools, never the tools.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{door::MAX_BODY_BYTES, load::Json, router::Entrance, unique::Unique};
use pylair_core::{
    audit::Pending,
    caller::{self, Caller, DefaultSession, Program, Scope, client_name},
    daemon::{
        Daemon, DaemonStatus, Holder,
        targets::{self, Purpose, Target},
    },
    history::{self, Format},
    order::{Sender, SenderId},
    rights,
    session::{self, Job, Report, Unsaved},
    settings::{Setting, Unheeded, seconds},
    visit::Visit,
};
use pylair_files as files;
use pylair_os::{
    budget::{Pool, Taken},
    event_loop, process,
};
use pylair_output::{Stream, Which};
use pylair_probe::wire::Op;

const PAGE_BYTES: usize = 1 << 20;
const CAUTION_HEADER: &str = "x-pylair-caution";
/// What happened to a session and nobody was told, once for each note.
pub const NOTE_HEADER: &str = "x-pylair-note";

pub fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route("/api/status", get(status))
        .route("/api/execute", post(execute))
        .route("/api/interrupt", post(interrupt))
        .route("/api/apps", get(apps))
        .route("/api/sessions", get(sessions).post(open))
        .route("/api/sessions/close", post(close))
        .route("/api/sessions/find", post(find))
        .route("/api/output/{job}", get(output))
        .route("/api/history", get(read_history))
        .route("/api/export", get(export))
        .route("/api/events", get(events))
        .route("/api/complete", post(complete))
        .route("/api/stop", post(stop))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(daemon)
}

/// What only the command line asks.
pub fn local_router(daemon: Arc<Daemon>) -> Router {
    Router::new().route("/api/audit/head", get(audit_head)).route("/api/settings", get(settings)).with_state(daemon)
}

/// A failed request as JSON: the same three fields as an MCP error.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub kind: String,
    pub message: String,
    pub hint: String,
}

#[derive(Debug)]
pub(super) struct ApiError(StatusCode, Failure);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        super::problem::response(self.0, &self.1)
    }
}

impl From<session::Error> for ApiError {
    fn from(error: session::Error) -> Self {
        let status = match error.kind() {
            "unknown_session" | "unknown_job" | "closed_session" | "no_session" => StatusCode::NOT_FOUND,
            "removed_job" | "removed_output" => StatusCode::GONE,
            "busy" | "not_begun" | "name_taken" | "ambiguous_session" => StatusCode::CONFLICT,
            "not_allowed" => StatusCode::FORBIDDEN,
            _ if matches!(error, session::Error::Output(pylair_output::Error::Unknown { .. })) => StatusCode::NOT_FOUND,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self(status, Failure { kind: error.kind().to_owned(), message: error.message(), hint: error.hint() })
    }
}

impl From<rights::Denied> for ApiError {
    fn from(denied: rights::Denied) -> Self {
        let (kind, message) = (rights::Denied::KIND.to_owned(), denied.to_string());
        Self(StatusCode::FORBIDDEN, Failure { kind, message, hint: denied.hint() })
    }
}

impl From<targets::Error> for ApiError {
    fn from(error: targets::Error) -> Self {
        let status = match &error {
            targets::Error::Session(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => match error.kind() {
                "unknown_session" | "unknown_app" | "unknown_failure" | "not_an_app" | "app_gone" => {
                    StatusCode::NOT_FOUND
                }
                "ambiguous_app" | "busy" => StatusCode::CONFLICT,
                "bad_argument" => StatusCode::BAD_REQUEST,
                "not_answering" => StatusCode::GATEWAY_TIMEOUT,
                "app_died" | "connection_lost" | "app_failed" | "app_not_served" => StatusCode::BAD_GATEWAY,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            },
        };
        match error {
            targets::Error::Session(error) => error.into(),
            targets::Error::Default { error: inner, target } => {
                let Self(status, failure) = (*inner).into();
                let hint = format!("PYLAIR_SESSION says `{target}` for calls without a target; {}", failure.hint);
                Self(status, Failure { hint, ..failure })
            }
            error => {
                let (kind, message, hint) = (error.kind().to_owned(), error.message(), error.hint());
                Self(status, Failure { kind, message, hint })
            }
        }
    }
}

impl From<files::Error> for ApiError {
    fn from(error: files::Error) -> Self {
        let status = match error.kind() {
            "bad_argument" => StatusCode::BAD_REQUEST,
            "outside_workspace" => StatusCode::FORBIDDEN,
            "not_found" | "workspace_gone" => StatusCode::NOT_FOUND,
            "too_large" => StatusCode::PAYLOAD_TOO_LARGE,
            "no_space" => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let (kind, hint) = (error.kind().to_owned(), error.hint().to_owned());
        Self(status, Failure { kind, message: error.message(), hint })
    }
}

impl From<history::Error> for ApiError {
    fn from(error: history::Error) -> Self {
        let failure = |error: &history::Error| Failure {
            kind: error.kind().to_owned(),
            message: error.message(),
            hint: error.hint(),
        };
        match error {
            history::Error::Session(error) => error.into(),
            history::Error::Journal(_) => Self(StatusCode::INTERNAL_SERVER_ERROR, failure(&error)),
            history::Error::Removed { .. } => Self(StatusCode::NOT_FOUND, failure(&error)),
            history::Error::BadArgument(_) => Self(StatusCode::BAD_REQUEST, failure(&error)),
        }
    }
}

impl ApiError {
    pub(super) fn bad(message: impl Into<String>, hint: &str) -> Self {
        let failure = Failure { kind: "bad_argument".to_owned(), message: message.into(), hint: hint.to_owned() };
        Self(StatusCode::BAD_REQUEST, failure)
    }
}

/// Where a request comes from, as its sender says. The kernel or the token says who.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub cwd: Option<PathBuf>,
    pub env: Option<BTreeMap<String, String>>,
    /// What to call the sender in the history, when it is not the client it runs beside.
    pub client: Option<String>,
}

pub(super) async fn caller(daemon: &Arc<Daemon>, entrance: Entrance, from: Origin) -> Result<Caller, ApiError> {
    match entrance {
        Entrance::Unix(local) => {
            let (cwd, env) = (from.cwd, from.env.unwrap_or_default());
            Ok(daemon.caller_of_process(local.pid, local.introduction.as_deref(), cwd, env).await?)
        }
        Entrance::Tcp(visit) => Ok(visitor(daemon, &visit, from)),
    }
}

/// The caller of a request that needs no default session, so that it does not matter if two clients are equally near.
pub(super) async fn caller_with_target(daemon: &Arc<Daemon>, entrance: Entrance, from: Origin) -> Caller {
    match entrance {
        Entrance::Unix(local) => {
            let (introduction, cwd, env) = (local.introduction.as_deref(), from.cwd, from.env.unwrap_or_default());
            let near = daemon.caller_of_process(local.pid, introduction, cwd.clone(), env.clone()).await;
            near.unwrap_or_else(|_| {
                let chain = process::ancestry(local.pid);
                let sender = Sender::new(SenderId::Processes(caller::tree_of(&chain, &DefaultSession::Main)));
                let program = Program::above(&chain);
                Caller { sender, program, ..daemon.shell_caller(introduction, cwd, env) }
            })
        }
        Entrance::Tcp(visit) => visitor(daemon, &visit, from),
    }
}

/// The caller of a request that may leave out what it means.
async fn caller_of(
    daemon: &Arc<Daemon>,
    entrance: Entrance,
    from: Origin,
    named: Option<&str>,
) -> Result<Caller, ApiError> {
    match named {
        Some(_) => Ok(caller_with_target(daemon, entrance, from).await),
        None => caller(daemon, entrance, from).await,
    }
}

/// Where somebody from elsewhere says to be counts only if all files are open to him anyway.
fn visitor(daemon: &Daemon, visit: &Visit, from: Origin) -> Caller {
    let mut caller = daemon.visiting_caller(visit, "http", DefaultSession::Main);
    caller.cwd = from.cwd.filter(|_| caller.may(Scope::Admin));
    caller
}

/// Whether the arguments of a request ask for more than its caller may.
fn permit(daemon: &Daemon, caller: &Caller, tool: &str, body: &[u8]) -> Result<(), ApiError> {
    if caller.may(Scope::Admin) {
        return Ok(());
    }
    // Which of two counts is for nobody to choose.
    let _unique: Unique = parse(body)?;
    let arguments: serde_json::Map<_, _> = parse(body)?;
    rights::check(caller, tool, &arguments).map_err(|denied| {
        let target = arguments.get("target").and_then(|target| target.as_str());
        daemon.audit.denied(caller, tool, target, &denied.to_string());
        denied.into()
    })
}

/// What a body says, for the record: what it means is read elsewhere.
fn arguments_of(body: &[u8]) -> serde_json::Map<String, serde_json::Value> {
    let mut arguments: serde_json::Map<_, _> = serde_json::from_slice(body).unwrap_or_default();
    // Who asks is in the line.
    arguments.remove("from");
    arguments
}

/// Writes down how something that was asked for has ended.
pub(super) fn conclude<T>(
    mut record: Pending,
    target: Option<&str>,
    result: Result<T, targets::Error>,
) -> Result<T, targets::Error> {
    record.target(target);
    match &result {
        Ok(_) => record.conclude(None),
        Err(error) => record.conclude(Some((error.kind(), &error.message()))),
    }
    result
}

/// Says beside an answer about a session what is missing of its sandbox and what happened to it that nobody was told: answers have many
/// shapes, and headers one.
pub(super) fn about(session: &session::Session, answer: impl IntoResponse) -> Response {
    let mut response = with_caution(session, answer);
    for note in session.take_news().iter().filter_map(|note| header(note)) {
        response.headers_mut().append(NOTE_HEADER, note);
    }
    response
}

/// The same for an answer that nobody reads as such, and that leaves what happened to be told with the next one.
fn with_caution(session: &session::Session, answer: impl IntoResponse) -> Response {
    let mut response = answer.into_response();
    if let Some(caution) = session.caution().and_then(|caution| header(&caution)) {
        response.headers_mut().insert(CAUTION_HEADER, caution);
    }
    response
}

pub(super) fn header(words: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&words.replace(|c: char| !c.is_ascii() || c.is_ascii_control(), "?")).ok()
}

/// The same where the answer was made of what is written down of a session that may be gone.
fn about_subject(daemon: &Daemon, caller: &Caller, handle: &str, answer: impl IntoResponse) -> Response {
    match daemon.sessions.find(caller, handle) {
        Ok(session) => about(&session, answer),
        Err(_) => answer.into_response(),
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecuteBody {
    pub code: String,
    /// The file that the code is in, for commands on this machine: it is run as `python FILE` would.
    pub file: Option<Script>,
    pub target: Option<String>,
    pub timeout_s: Option<f64>,
    pub max_chars: Option<usize>,
    pub from: Origin,
}

/// A file that a command runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub path: PathBuf,
    /// As it was written, for `sys.argv[0]`.
    pub name: String,
    pub args: Vec<String>,
}

/// What is run in a target. Where the file cannot be read its text is run under its name; in somebody else's process it is just code.
fn work_for(target: &Target, file: Option<Script>, code: String) -> Result<session::Work, targets::Error> {
    match (target, file) {
        (Target::Session(session), Some(Script { path: file, name, args })) => {
            let source = session.is_confined().then_some(code);
            Ok(session::Work::File { file, name, args, source })
        }
        (target, Some(Script { args, .. })) if !args.is_empty() => {
            let message = format!("a file takes arguments only in a session, and `{}` is not a session", target.name());
            Err(targets::Error::BadArgument(message))
        }
        _ => Ok(session::Work::Code { code, path: None }),
    }
}

/// One line of the answer to `/api/execute`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Job { job: String, session: String },
    Output { stream: Stream, text: String },
    Report(Box<Report>),
}

/// Runs a cell and streams what it prints, one JSON object a line, the report last.
async fn execute(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    raw: Bytes,
) -> Result<Response, ApiError> {
    let body: ExecuteBody = parse(&raw)?;
    if body.file.is_some() && matches!(entrance, Entrance::Tcp(_)) {
        return Err(ApiError::bad("`file` is for commands on this machine", "send the code, or use the tool run_file"));
    }
    let room = match &entrance {
        Entrance::Tcp(visit) => Some((visit.buffers.clone(), visit.token.owner.clone())),
        Entrance::Unix(_) => None,
    };
    let client = body.from.client.as_deref().map(client_name);
    let mut caller = caller_of(&daemon, entrance, body.from, body.target.as_deref()).await?;
    permit(&daemon, &caller, "execute", &raw)?;
    let timeout = match body.timeout_s {
        Some(value) => {
            let bad = || ApiError::bad(format!("timeout_s is {value}"), "pass a number of seconds, 0 for none");
            Some(seconds(value).ok_or_else(bad)?).filter(|timeout| !timeout.is_zero())
        }
        None => caller.settings.timeout,
    };
    if let Some(meant) = daemon.sessions.meant(&caller, body.target.as_deref()) {
        let ticket = daemon.senders.arrive(&caller.sender.id);
        ticket.means(meant, None);
        caller.sender = caller.sender.with_ticket(Some(ticket));
    }
    let mut record = daemon.audit.call(&caller, "execute");
    let begun = async {
        caller.sender.turn().await;
        let target = daemon.target(&caller, body.target.as_deref(), Purpose::Run).await?;
        if let Target::Session(session) = &target {
            caller.sender.turn_at(&session.info.handle).await;
        }
        record.begin(&target.name(), Some(&body.code));
        let notes = target.take_notes();
        let work = work_for(&target, body.file, body.code)?;
        let client = client.as_deref().unwrap_or(&caller.client);
        let job = target.run((&caller, client), work, timeout, session::OnTimeout::default()).await?;
        until_begun(&target, &job, caller.settings.wait).await?;
        Ok::<_, targets::Error>((job, notes))
    };
    let (job, notes) = match begun.await {
        Ok(begun) => begun,
        Err(error) => {
            record.conclude(Some((error.kind(), &error.message())));
            return Err(error.into());
        }
    };
    let max_chars = body.max_chars.unwrap_or(caller.settings.max_chars).min(session::MAX_CHARS);
    let (lines, receiver) = mpsc::channel(16);
    let lines = Lines { lines, room };
    let hold = daemon.hold(Holder::Request);
    pylair_os::event_loop::spawn(async move {
        // A reader that goes away leaves the job behind; nothing else depends on this task.
        let _unheard = stream(&job, notes, max_chars, &lines).await;
        job.mark_answered();
        record.end(job.execution().map_or("running", |execution| execution.outcome.as_str()), None);
        drop(hold);
    });
    let body = Body::from_stream(ReceiverStream::new(receiver).map(|(line, _held)| Ok::<_, Infallible>(line)));
    Ok(([("content-type", "application/x-ndjson")], body).into_response())
}

/// Waits for the turn of a cell whose caller has others under way. It is taken back when that takes too long, or the caller goes.
async fn until_begun(target: &Target, job: &Arc<Job>, limit: Duration) -> Result<(), targets::Error> {
    struct TakenBack<'a>(&'a Target, &'a Arc<Job>);
    impl Drop for TakenBack<'_> {
        fn drop(&mut self) {
            if self.1.waits().is_some() {
                let (target, job) = (self.0.clone(), self.1.id.clone());
                pylair_os::event_loop::spawn(async move {
                    // A session that is gone has answered all that waited.
                    let _gone = target.interrupt(Some(&job)).await;
                });
            }
        }
    }
    let (Target::Session(session), Some(_)) = (target, job.waits()) else { return Ok(()) };
    let _waiting = TakenBack(target, job);
    let asked = Instant::now();
    if tokio::time::timeout(limit, job.begun()).await.is_err() {
        return Err(session.waited_too_long(asked.elapsed()).into());
    }
    match job.execution().and_then(|execution| execution.refused.clone()) {
        Some(refusal) => Err(session::Error::Refused(refusal).into()),
        None => Ok(()),
    }
}

/// The answer to `/api/execute` on its way. Over TCP its lines wait until there is room for them.
struct Lines {
    lines: mpsc::Sender<(Bytes, Option<Taken>)>,
    room: Option<(Arc<Pool>, Arc<str>)>,
}

/// Nobody reads any more.
struct Unheard;

impl Lines {
    async fn make_room(&self, bytes: usize) -> Result<Option<Taken>, Unheard> {
        let Some((pool, owner)) = &self.room else { return Ok(None) };
        tokio::select! {
            biased;
            taken = pool.wait(owner, bytes as u64) => Ok(Some(taken)),
            () = self.lines.closed() => Err(Unheard),
        }
    }

    async fn send(&self, line: &Line) -> Result<(), Unheard> {
        let line = encode(line);
        let held = self.make_room(line.len()).await?;
        self.lines.send((line, held)).await.map_err(|_| Unheard)
    }
}

fn encode(line: &Line) -> Bytes {
    let mut bytes = event_loop::to_json(line).unwrap_or_default();
    bytes.push(b'\n');
    Bytes::from(bytes)
}

async fn stream(job: &Job, notes: Vec<String>, max_chars: usize, lines: &Lines) -> Result<(), Unheard> {
    lines.send(&Line::Job { job: job.id.clone(), session: job.session.to_string() }).await?;
    if let Some(late) = job.late() {
        let text = format!("[late output, printed after cell {} had ended]\n", late.after_cell);
        lines.send(&Line::Output { stream: Stream::Stderr, text }).await?;
        send_new(&late.capture, &mut pylair_output::Cursor::default(), lines).await?;
    }
    let mut cursor = pylair_output::Cursor::default();
    let ended = job.ended();
    tokio::pin!(ended);
    let execution = loop {
        tokio::select! {
            execution = &mut ended => break execution,
            () = job.capture.readable(cursor) => send_new(&job.capture, &mut cursor, lines).await?,
            () = lines.lines.closed() => return Ok(()),
        }
    };
    send_new(&job.capture, &mut cursor, lines).await?;
    // Before it is made: it may be the largest of them all.
    let held = lines.make_room(Report::most_bytes(job, &execution, max_chars)).await?;
    let mut report = Report::new(job, Some(&execution), max_chars);
    report.notes.splice(0..0, notes);
    lines.lines.send((encode(&Line::Report(Box::new(report))), held)).await.map_err(|_| Unheard)
}

async fn send_new(
    capture: &pylair_output::Capture,
    cursor: &mut pylair_output::Cursor,
    lines: &Lines,
) -> Result<(), Unheard> {
    loop {
        let read = capture.read_from(*cursor);
        *cursor = read.cursor;
        if read.skipped_bytes > 0 {
            let text = format!("[{} bytes were not kept]\n", read.skipped_bytes);
            lines.send(&Line::Output { stream: Stream::Stderr, text }).await?;
        }
        if read.parts.is_empty() {
            return Ok(());
        }
        for (stream, text) in read.parts {
            lines.send(&Line::Output { stream, text }).await?;
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetBody {
    pub target: Option<String>,
    pub job: Option<String>,
    #[serde(default)]
    pub forget: bool,
    #[serde(default)]
    pub from: Origin,
}

async fn interrupt(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: TargetBody = parse(&body)?;
    let named = body.target.as_deref().or(body.job.as_deref());
    let caller = caller_of(&daemon, entrance, body.from, named).await?;
    let target = match (&body.target, &body.job) {
        (Some(target), _) => daemon.target(&caller, Some(target), Purpose::AsItIs).await?,
        (None, Some(job)) => {
            let known = daemon.job(&caller, job).await?;
            daemon.target_of_job(&caller, &known)?
        }
        (None, None) => daemon.target(&caller, None, Purpose::AsItIs).await?,
    };
    let record = daemon.audit.call(&caller, "interrupt");
    let name = target.name();
    let session = if let Target::Session(session) = &target { Some(session.clone()) } else { None };
    let interrupted = match target.open_to(&caller) {
        Ok(target) => target.interrupt(body.job.as_deref()).await,
        Err(error) => Err(error),
    };
    let answer = Json(conclude(record, Some(&name), interrupted)?);
    Ok(match session {
        Some(session) => about(&session, answer),
        None => answer.into_response(),
    })
}

async fn sessions(State(daemon): State<Arc<Daemon>>, Extension(entrance): Extension<Entrance>) -> Response {
    let own = caller(&daemon, entrance.clone(), Origin::default()).await;
    let is_known = own.is_ok();
    let caller = match own {
        Ok(caller) => caller,
        Err(_) => caller_with_target(&daemon, entrance, Origin::default()).await,
    };
    let mut sessions = daemon.sessions.statuses(&caller);
    if !is_known {
        // Two clients are equally near, and each has one of its own.
        for session in &mut sessions {
            session.mine = None;
        }
    }
    Json(serde_json::json!({"sessions": sessions})).into_response()
}

async fn apps(State(daemon): State<Arc<Daemon>>, Extension(entrance): Extension<Entrance>) -> Response {
    let caller = caller_with_target(&daemon, entrance, Origin::default()).await;
    Json(serde_json::json!({"apps": daemon.apps.statuses(&caller).await})).into_response()
}

async fn open(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    raw: Bytes,
) -> Result<Response, ApiError> {
    #[derive(Deserialize)]
    struct OpenRequest {
        #[serde(flatten)]
        options: session::OpenOptions,
        #[serde(default)]
        from: Origin,
    }
    let body: OpenRequest = parse(&raw)?;
    let caller = caller_with_target(&daemon, entrance, body.from).await;
    permit(&daemon, &caller, "open_session", &raw)?;
    let mut record = daemon.audit.call(&caller, "open_session");
    record.details(&arguments_of(&raw));
    let name = body.options.name.clone();
    if let Some(startup) = &body.options.startup {
        record.begin(name.as_deref().unwrap_or_default(), Some(startup));
    }
    let opened = daemon.sessions.open(&caller, body.options).await.map_err(Into::into);
    let reached = opened.as_ref().map(|opened| opened.info.name.to_string()).ok();
    let opened = conclude(record, reached.or(name).as_deref(), opened)?;
    Ok(about(&opened, Json(session::Status { enforced: opened.enforced(), ..opened.status() })))
}

async fn close(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: TargetBody = parse(&body)?;
    let caller = caller_of(&daemon, entrance, body.from, body.target.as_deref()).await?;
    let target = match body.target {
        Some(target) => target,
        None => daemon.own_target(&caller)?,
    };
    let mut record = daemon.audit.call(&caller, "close_session");
    if body.forget {
        record.detail("forget", true.into());
    }
    let session = daemon.sessions.find(&caller, &target).ok();
    let closed = conclude(record, Some(&target), daemon.close_target(&caller, Some(&target), body.forget).await)?;
    let answer = Json(serde_json::json!({"closed": closed}));
    Ok(match session {
        Some(session) => about(&session, answer),
        None => answer.into_response(),
    })
}

/// What was found, with its kind among its fields.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TargetStatus {
    Session(session::Status),
    App(pylair_core::app::Status),
}

/// The target a call without more would go to: the named one, else the caller's default session, which is opened if need be.
async fn find(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: TargetBody = parse(&body)?;
    let caller = caller_of(&daemon, entrance, body.from, body.target.as_deref()).await?;
    Ok(match daemon.target(&caller, body.target.as_deref(), Purpose::Run).await? {
        Target::Session(session) => {
            about(&session, Json(TargetStatus::Session(daemon.sessions.marked(&caller, session.status()))))
        }
        Target::App(app) => Json(TargetStatus::App(app.status().await)).into_response(),
        Target::Tests(_) => return Err(targets::Error::TestsOnly { what: "that" }.into()),
    })
}

#[derive(Debug, Deserialize)]
struct HistoryQuery {
    target: Option<String>,
    limit: Option<usize>,
    before: Option<u64>,
    max_chars: Option<usize>,
}

async fn read_history(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Query(query): Query<HistoryQuery>,
) -> Result<Response, ApiError> {
    let caller = caller_of(&daemon, entrance, Origin::default(), query.target.as_deref()).await?;
    let subject = history::find(&daemon.sessions, &daemon.journal, &caller, query.target.as_deref()).await?;
    let limit = query.limit.unwrap_or(history::DEFAULT_LIMIT);
    let max_chars = query.max_chars.unwrap_or(caller.settings.max_chars);
    let page = history::page(&daemon.journal, &subject, limit, query.before, max_chars).await?;
    Ok(about_subject(&daemon, &caller, &subject.handle, Json(page)))
}

#[derive(Debug, Deserialize)]
struct EventsQuery {
    target: String,
    /// Begin after this event; with the next one to come if left out.
    after: Option<u64>,
}

/// What happens in a session, as it happens: one JSON object a line, until the reader leaves.
async fn events(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Query(query): Query<EventsQuery>,
) -> Result<Response, ApiError> {
    let caller = caller_with_target(&daemon, entrance, Origin::default()).await;
    let subject = history::find(&daemon.sessions, &daemon.journal, &caller, Some(&query.target)).await?;
    let after = query.after.unwrap_or_else(|| daemon.journal.last_seq());
    let events = daemon.journal.follow(Some(&subject.owner), Some(&subject.handle), after);
    let lines = events.map(|event| {
        let mut line = serde_json::to_vec(&event.map_err(std::io::Error::other)?)?;
        line.push(b'\n');
        Ok::<_, std::io::Error>(line)
    });
    let until_shutdown = lines.take_until(daemon.shutdown.clone().cancelled_owned());
    let answer = ([("content-type", "application/x-ndjson")], Body::from_stream(until_shutdown));
    // The events tell by themselves what happens.
    Ok(match daemon.sessions.find(&caller, &subject.handle) {
        Ok(session) => with_caution(&session, answer),
        Err(_) => answer.into_response(),
    })
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompleteBody {
    pub target: Option<String>,
    pub code: String,
    /// In characters; the end of the code if left out.
    pub cursor: Option<usize>,
    pub from: Origin,
}

/// What the code could go on with at the cursor. Positions are in characters.
#[derive(Debug, Serialize, Deserialize)]
pub struct Completion {
    pub start: usize,
    pub end: usize,
    pub matches: Vec<Match>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Match {
    pub text: String,
    pub kind: String,
}

async fn complete(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: CompleteBody = parse(&body)?;
    let caller = caller_of(&daemon, entrance, body.from, body.target.as_deref()).await?;
    let target = daemon.target(&caller, body.target.as_deref(), Purpose::Look).await?;
    let cursor = body.cursor.unwrap_or_else(|| body.code.chars().count());
    let completion: Completion = target.look(&caller, Op::Complete { cursor }, body.code.into_bytes()).await?;
    Ok(match &target {
        Target::Session(session) => with_caution(session, Json(completion)),
        Target::App(_) | Target::Tests(_) => Json(completion).into_response(),
    })
}

#[derive(Debug, Deserialize)]
struct ExportQuery {
    target: Option<String>,
    format: Format,
}

/// A session as a file to download.
async fn export(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let caller = caller_of(&daemon, entrance, Origin::default(), query.target.as_deref()).await?;
    let subject = history::find(&daemon.sessions, &daemon.journal, &caller, query.target.as_deref()).await?;
    let export = history::export(&daemon.journal, &daemon.sessions.parts.outputs, &subject, query.format).await?;
    // What a session printed is never a page of this server's own.
    let headers = [
        ("content-type", format!("{}; charset=utf-8", export.format.mime())),
        ("content-disposition", format!("attachment; filename=\"{}\"", export.file_name)),
    ];
    Ok(about_subject(&daemon, &caller, &subject.handle, (headers, export.text)))
}

#[derive(Debug, Deserialize)]
struct OutputQuery {
    #[serde(default)]
    offset: u64,
    limit: Option<usize>,
    stream: Option<Stream>,
}

async fn output(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Path(job): Path<String>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, ApiError> {
    let caller = caller_with_target(&daemon, entrance, Origin::default()).await;
    if !daemon.owns_job(&caller, &job).await {
        return Err(session::Error::from(pylair_output::Error::Unknown { id: job }).into());
    }
    let limit = query.limit.unwrap_or(PAGE_BYTES).min(PAGE_BYTES);
    let which = query.stream.map_or(Which::Merged, Which::Only);
    let outputs = daemon.sessions.parts.outputs.clone();
    let read = tokio::task::spawn_blocking(move || outputs.read(&job, which, query.offset, limit)).await;
    let page = read
        .map_err(|error| ApiError::bad(error.to_string(), "see the daemon's log"))?
        .map_err(session::Error::from)?;
    let text: String = page.parts.into_iter().map(|(_, text)| text).collect();
    Ok(Json(serde_json::json!({"text": text, "next": page.next, "total_bytes": page.info.total_bytes})).into_response())
}

async fn status(State(daemon): State<Arc<Daemon>>, Extension(entrance): Extension<Entrance>) -> Response {
    let caller = caller_with_target(&daemon, entrance, Origin::default()).await;
    Json(daemon.status_for(&caller)).into_response()
}

/// Where the audit record is, for `pylair audit --verify`.
async fn audit_head(State(daemon): State<Arc<Daemon>>) -> Response {
    let audit = daemon.audit.clone();
    // It waits until what was recorded is written.
    let head = tokio::task::spawn_blocking(move || audit.head()).await.ok().flatten();
    Json(head).into_response()
}

/// The settings of a daemon, and those of whoever asks that do not count, for `pylair doctor`.
#[derive(Debug, Serialize, Deserialize)]
pub struct DaemonSettings {
    pub settings: Vec<Setting>,
    pub unheeded: Vec<Unheeded>,
}

async fn settings(State(daemon): State<Arc<Daemon>>, Extension(entrance): Extension<Entrance>) -> Response {
    let Entrance::Unix(local) = entrance else { return StatusCode::NOT_FOUND.into_response() };
    let (_, unheeded) = daemon.heed(local.introduction.as_deref());
    Json(DaemonSettings { settings: daemon.config.settings.clone(), unheeded }).into_response()
}

/// The doors let a request that is under way end before they close, this one too.
async fn stop(State(daemon): State<Arc<Daemon>>, Extension(entrance): Extension<Entrance>) -> Response {
    let caller = caller_with_target(&daemon, entrance, Origin::default()).await;
    daemon.audit.call(&caller, "stop").conclude(None);
    let status = daemon.status();
    let unsaved = daemon.stop().await;
    Json(Stopped { status, unsaved }).into_response()
}

/// A daemon that leaves.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stopped {
    #[serde(flatten)]
    pub status: DaemonStatus,
    /// What its successor will miss.
    #[serde(default)]
    pub unsaved: Vec<Unsaved>,
}

fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad(format!("the body is not valid: {error}"), "send a JSON object"))
}
