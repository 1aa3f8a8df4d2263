//! Routes: `/health`, `/mcp`, `/api/…`, `/files/…`. Who may come in is settled here, before any function runs.

use std::sync::Arc;

use axum::{
    Router,
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
    serve::IncomingStream,
};
use tokio::net::{UnixListener, UnixStream};

use super::{api, files, token};
use crate::{
    daemon::{Daemon, VERSION},
    mcp::{
        http::{Options, mcp_service},
        server::{ClientSide, Server},
        tools::Selection,
    },
};

/// What a command of this program calls its version by.
pub const VERSION_HEADER: &str = "x-pylair-version";

/// Who is at the other end of a Unix socket, as the kernel says.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub uid: u32,
    pub pid: i32,
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

/// How a request came in, for `api`.
#[derive(Debug, Clone, Copy)]
pub enum Entrance {
    Unix(Peer),
    Tcp,
}

/// The router of the Unix socket.
pub fn unix(daemon: Arc<Daemon>) -> Router {
    async fn check(ConnectInfo(peer): ConnectInfo<Peer>, mut request: Request, next: Next) -> Response {
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
            return (StatusCode::CONFLICT, axum::Json(failure)).into_response();
        }
        request.extensions_mut().insert(Entrance::Unix(peer));
        next.run(request).await
    }
    api::router(daemon.clone()).merge(files::router(daemon)).layer(axum::middleware::from_fn(check))
}

/// What the TCP door was opened with.
#[derive(Debug, Clone)]
pub struct Door {
    pub token: Arc<str>,
    pub allowed_hosts: Arc<[String]>,
    pub allowed_origins: Arc<[String]>,
    pub readonly: bool,
    pub readonly_files: bool,
}

impl Door {
    /// The door on this address: loopback names with its port, and no browser origin but its own.
    pub fn new(token: String, host: &str, port: u16, selection: &Selection) -> Self {
        let mut names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "[::1]".to_owned()];
        if !names.iter().any(|name| name == host) {
            names.push(host.to_owned());
        }
        let allowed_hosts = names.iter().map(|name| format!("{name}:{port}")).collect();
        let allowed_origins = names.iter().map(|name| format!("http://{name}:{port}")).collect();
        Self {
            token: token.into(),
            allowed_hosts,
            allowed_origins,
            readonly: selection.is_readonly(),
            readonly_files: selection.is_readonly_for_files(),
        }
    }

    /// Why this request is refused, if it is.
    fn refusal(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        // Two of them: whoever is in between may have looked at the other one.
        let twice = |name| headers.get_all(name).iter().count() > 1;
        if [header::HOST, header::ORIGIN, header::AUTHORIZATION].into_iter().any(twice) {
            return Some((StatusCode::BAD_REQUEST, "send Host, Origin and Authorization once"));
        }
        let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
        let host_is_ours = text(header::HOST).is_some_and(|host| self.allowed_hosts.iter().any(|ours| ours == host));
        if !host_is_ours {
            return Some((StatusCode::FORBIDDEN, "this Host is not served here"));
        }
        if let Some(origin) = text(header::ORIGIN)
            && !self.allowed_origins.iter().any(|ours| ours == origin)
        {
            return Some((StatusCode::FORBIDDEN, "this Origin is not served here"));
        }
        let given = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        if !given.is_some_and(|given| token::matches(given, &self.token)) {
            return Some((
                StatusCode::UNAUTHORIZED,
                "send `Authorization: Bearer TOKEN`; the token is in the file `data/token`",
            ));
        }
        None
    }
}

/// The router of the TCP door.
pub fn tcp(daemon: &Arc<Daemon>, door: Door, selection: Selection) -> Router {
    async fn check(State(door): State<Door>, mut request: Request, next: Next) -> Response {
        if let Some((status, why)) = door.refusal(request.headers()) {
            let mut response = (status, why).into_response();
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            }
            return response;
        }
        // Whatever changes something is a POST; `/mcp` chooses its tools itself.
        let path = request.uri().path();
        let is_refused =
            (door.readonly && path.starts_with("/api/")) || (door.readonly_files && path.starts_with("/files/"));
        if is_refused && request.method() != Method::GET {
            let failure = api::Failure {
                kind: "not_allowed".to_owned(),
                message: "this server was started to serve only what changes nothing".to_owned(),
                hint: "start it without --readonly and with the toolset `run`, or `files` for those".to_owned(),
            };
            return (StatusCode::FORBIDDEN, axum::Json(failure)).into_response();
        }
        request.extensions_mut().insert(Entrance::Tcp);
        next.run(request).await
    }
    let options = Options {
        allowed_hosts: door.allowed_hosts.to_vec(),
        allowed_origins: door.allowed_origins.to_vec(),
        stop: daemon.shutdown.clone(),
        ..Options::default()
    };
    let for_mcp = daemon.clone();
    let mcp = mcp_service(move || Server::new(for_mcp.clone(), ClientSide::Http, selection.clone(), None), options);
    api::router(daemon.clone())
        .merge(files::router(daemon.clone()))
        .nest_service("/mcp", mcp)
        .layer(axum::middleware::from_fn_with_state(door, check))
        // Says that something is here, and nothing else.
        .route("/health", axum::routing::get(|| async { "ok\n" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_host_our_origin_and_the_token_come_in() {
        let selection = Selection::parse(None, false, crate::caller::Door::Http).unwrap();
        let door = Door::new("secret".to_owned(), "127.0.0.1", 7420, &selection);
        let check = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            door.refusal(&headers).map_or(200, |(status, _)| status.as_u16())
        };
        let token = ("authorization", "Bearer secret");
        assert_eq!(check(&[("host", "127.0.0.1:7420"), token]), 200);
        assert_eq!(check(&[("host", "localhost:7420"), token, ("origin", "http://localhost:7420")]), 200);
        assert_eq!(check(&[("host", "127.0.0.1:7420")]), 401);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), ("authorization", "Bearer secre")]), 401);
        assert_eq!(check(&[("host", "evil.example:7420"), token]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:9999"), token]), 403);
        assert_eq!(check(&[token]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), token, ("origin", "http://evil.example")]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), token, ("origin", "null")]), 403);
        assert_eq!(check(&[("host", "127.0.0.1:7420"), ("host", "evil.example"), token]), 400);
        let ours = ("origin", "http://localhost:7420");
        assert_eq!(check(&[("host", "127.0.0.1:7420"), token, ours, ("origin", "http://evil.example")]), 400);
    }
}
