//! Routes: `/health`, `/docs`, `/openapi.json`, `/mcp`, `/api/…`, `/files/…`, on the Unix socket and on TCP. Who may come in over TCP is settled in `door`, before
//! any function runs.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::{HeaderValue, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
    serve::IncomingStream,
};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::{
    api,
    door::{self, Door},
    failures, files, load, openapi, pages, problem,
};
use pylair_core::{
    daemon::{Daemon, VERSION},
    settings::{Introduction, Unheeded},
    visit::Visit,
};

/// What a command of this program calls its version by.
pub const VERSION_HEADER: &str = "x-pylair-version";
/// Where a command of this program introduces itself, as JSON.
pub const CALLER_HEADER: &str = "x-pylair-caller";
/// What a command must know about its settings, once for each note.
pub const SETTINGS_HEADER: &str = "x-pylair-settings";

/// Who is at the other end of a Unix socket, as the kernel says.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub uid: u32,
    pub pid: i32,
}

/// A local process that asks, and what it says of itself.
#[derive(Debug, Clone)]
pub struct Local {
    pub pid: i32,
    pub introduction: Option<Arc<Introduction>>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let stream: &UnixStream = stream.io();
        // Without credentials nobody is let in: no process has this uid.
        stream.peer_cred().map_or(Self { uid: u32::MAX, pid: 0 }, |credentials| Self {
            uid: credentials.uid(),
            pid: credentials.pid().unwrap_or(0),
        })
    }
}

/// Who is at the other end of a TCP connection: `listen` puts it into every request.
#[derive(Debug, Clone, Copy)]
pub struct Remote(pub SocketAddr);

/// How a request came in, for `api`.
#[derive(Debug, Clone)]
pub enum Entrance {
    Unix(Local),
    Tcp(Visit),
}

/// The router of the Unix socket.
fn unix(daemon: Arc<Daemon>) -> Router {
    async fn check(
        State(daemon): State<Arc<Daemon>>,
        ConnectInfo(peer): ConnectInfo<Peer>,
        mut request: Request,
        next: Next,
    ) -> Response {
        if peer.uid != rustix::process::getuid().as_raw() {
            return (StatusCode::FORBIDDEN, "this daemon belongs to another user").into_response();
        }
        let version = request.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok());
        // A command of another version can still ask who is there and tell it to leave.
        let harmless = matches!(request.uri().path(), "/api/status" | "/api/stop");
        if version.is_some_and(|version| version != VERSION) && !harmless {
            let failure = api::Failure {
                kind: "version_mismatch".to_owned(),
                message: format!("the daemon is pylair {VERSION}, this command is {}", version.unwrap_or_default()),
                hint: "run `pylair stop` to end the old daemon and its sessions; the next command starts a new one"
                    .to_owned(),
            };
            return problem::response(StatusCode::CONFLICT, &failure);
        }
        let introduction = introduction(&request);
        let unheeded = daemon.heed(introduction.as_deref()).1;
        request.extensions_mut().insert(Entrance::Unix(Local { pid: peer.pid, introduction }));
        let mut response = next.run(request).await;
        for note in unheeded.iter().map(Unheeded::note).filter_map(|note| api::header(&note)) {
            response.headers_mut().append(SETTINGS_HEADER, note);
        }
        response
    }
    api::router(daemon.clone())
        .merge(api::local_router(daemon.clone()))
        .merge(failures::router(daemon.clone()))
        .merge(files::router(daemon.clone()))
        .layer(axum::middleware::from_fn_with_state(daemon, check))
        .layer(axum::middleware::from_fn(load::weigh))
}

/// Serves the Unix socket until told to stop.
pub async fn serve_unix(daemon: Arc<Daemon>, socket: UnixListener, stop: CancellationToken) -> io::Result<()> {
    let service = unix(daemon).into_make_service_with_connect_info::<Peer>();
    axum::serve(socket, service).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// What a command says of itself. One of another version is understood as if it had said nothing: what it may ask needs no settings.
fn introduction(request: &Request) -> Option<Arc<Introduction>> {
    serde_json::from_slice(request.headers().get(CALLER_HEADER)?.as_bytes()).ok().map(Arc::new)
}

/// The header of an introduction. JSON has no control characters but this one, which no header may have.
pub fn introduced(introduction: &Introduction) -> Option<HeaderValue> {
    let json = serde_json::to_string(introduction).ok()?.replace('\u{7f}', "\\u007f");
    HeaderValue::from_bytes(json.as_bytes()).ok()
}

/// The router of the TCP door. `mcp` is what answers at `/mcp`.
pub fn tcp<S>(daemon: &Arc<Daemon>, door: Door, mcp: S) -> Router
where
    S: Service<Request, Response: IntoResponse, Error = Infallible, Future: Send> + Clone + Send + Sync + 'static,
{
    let mcp = Router::new().nest_service("/mcp", mcp);
    let plain = api::router(daemon.clone())
        .merge(failures::router(daemon.clone()))
        .merge(files::router(daemon.clone()))
        .layer(axum::middleware::from_fn(door::in_our_shape));
    let door = Arc::new(door);
    pylair_os::event_loop::spawn(door.clone().watch());
    plain
        .merge(mcp)
        .fallback(door::not_found)
        .layer(axum::middleware::from_fn_with_state(door, door::check))
        // Says that something is here, and nothing else.
        .route("/health", axum::routing::get(|| async { "ok\n" }))
        .merge(openapi::router())
        .layer(axum::middleware::from_fn(pages::guard))
        .layer(axum::middleware::from_fn(load::weigh))
}
