//! The TCP door: who is let in, by Host, Origin and token, and how much may come in. `router` puts it in front of everything but
//! `/health`, `/docs` and `/openapi.json`; what a call may do is settled in `rights`.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    body::{Body, HttpBody},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    api::Failure,
    bodies::{Fate, Held, Incoming, Outgoing},
    guests::Guest,
    pages::{check_names, is_formlike, names},
    room::Room,
    router::{Entrance, Remote},
    visitors::{Visitor, Visitors},
};
use crate::settings::HttpSettings;
use pylair_core::{
    audit::{Audit, Line, What},
    caller::{Caller, Credential, DefaultSession, own_owner},
    daemon::Daemon,
    rights,
    visit::Visit,
};
use pylair_os::event_loop;

/// Longer than any honest head; hyper refuses what is much longer before we see it.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Bodies up to the longest code we take, escapes included. Uploads have a limit of their own.
pub const MAX_BODY_BYTES: usize = 72 << 20;
/// How often the tokens are looked at besides.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest error that is put into our shape.
const MAX_ERROR_BYTES: usize = 4096;

/// What the TCP door was opened with.
#[derive(Debug)]
pub struct Door {
    daemon: Arc<Daemon>,
    pub room: Arc<Room>,
    pub visitors: Visitors,
    pub allowed_hosts: Arc<[String]>,
    pub allowed_origins: Arc<[String]>,
    settings: HttpSettings,
    closed: Closed,
}

/// What is refused to everybody, because this server was started to serve only what changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Closed {
    /// Whatever changes something.
    pub changes: bool,
    /// Whatever changes files.
    pub files: bool,
}

/// Where the door is.
#[derive(Debug, Clone, Copy)]
pub struct Address<'a> {
    pub host: &'a str,
    pub port: u16,
    pub is_tls: bool,
}

/// A request that is not let in.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    kind: &'static str,
    message: String,
    hint: String,
    retry: Option<Duration>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, kind: &'static str, message: &str, hint: &str) -> Self {
        Self { status, kind, message: message.to_owned(), hint: hint.to_owned(), retry: None }
    }

    fn too_many(message: &str, retry: Duration) -> Self {
        let hint = "wait as long as Retry-After says, and send fewer at once";
        Self { retry: Some(retry), ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message, hint) }
    }
}

impl From<rights::Denied> for Refusal {
    fn from(denied: rights::Denied) -> Self {
        Self::new(StatusCode::FORBIDDEN, rights::Denied::KIND, &denied.to_string(), &denied.hint())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let failure = Failure { kind: self.kind.to_owned(), message: self.message, hint: self.hint };
        let mut response = super::problem::response(self.status, &failure);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(retry) = self.retry {
            let seconds = retry.as_secs() + u64::from(retry.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

impl Door {
    pub fn new(
        daemon: &Arc<Daemon>,
        (room, settings): (Arc<Room>, HttpSettings),
        address: Address,
        closed: Closed,
    ) -> Self {
        let (allowed_hosts, allowed_origins) = names(address, &settings.allowed_hosts);
        Self {
            daemon: daemon.clone(),
            room,
            visitors: Visitors::new(&daemon.places, &settings),
            allowed_hosts,
            allowed_origins,
            settings,
            closed,
        }
    }

    /// Reads the tokens again if they have changed, and writes down how.
    fn refresh(&self) {
        let Some(changes) = self.visitors.refresh() else { return };
        let tell = |what, visitors: Vec<Arc<Visitor>>| {
            for visitor in visitors {
                self.daemon.audit.record(Line {
                    // Nobody else can write these files.
                    owner: Some(own_owner()),
                    token: Some(visitor.token.name.to_string()),
                    details: visitor.facts(),
                    ..Line::new(what)
                });
            }
        };
        tell(What::TokenRevoked, changes.revoked);
        tell(What::TokenRotated, changes.rotated);
        tell(if changes.is_first { What::TokenFound } else { What::TokenAdded }, changes.added);
    }

    /// Looks at the tokens also while nobody asks: a stream that is open ends soon after its token was taken back.
    pub async fn watch(self: Arc<Self>) {
        let mut next = tokio::time::interval(LOOK_EVERY);
        while self.daemon.shutdown.run_until_cancelled(next.tick()).await.is_some() {
            self.refresh();
        }
    }

    /// The visit and who makes it, if this request is let in.
    fn admit(&self, request: &Request) -> Result<(Visit, Arc<Visitor>), Refusal> {
        let headers = request.headers();
        let remote = request.extensions().get::<Remote>().map(|Remote(address)| *address);
        let head = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        if head + request.uri().path().len() + request.uri().query().map_or(0, str::len) > MAX_HEAD_BYTES {
            let message = "the head of this request is too long";
            return Err(Refusal::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too_large",
                message,
                "send fewer or shorter headers",
            ));
        }
        let peer = peer(remote.map(|address| address.to_string()), headers, self.settings.behind_proxy);
        let address = remote.map_or(IpAddr::from([0, 0, 0, 0]), |remote| remote.ip());
        check_names(request, &self.allowed_hosts, &self.allowed_origins).inspect_err(|refusal| {
            // So many a minute are enough to know of.
            if self.visitors.failed(address).is_none() {
                denied(&self.daemon.audit, request, &peer, &refusal.message);
            }
        })?;
        self.refresh();
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.split_once(' '));
        let given = given.and_then(|(scheme, given)| scheme.eq_ignore_ascii_case("bearer").then_some(given));
        // A good token is let in however many bad ones came from the same address: otherwise anybody near could lock its owner out.
        let guest = request.extensions().get::<Arc<Guest>>();
        let Some(visitor) = given.and_then(|given| self.visitors.find(given)) else {
            if let Some(guest) = guest {
                guest.fail();
            }
            if let Some(wait) = self.visitors.failed(address) {
                return Err(Refusal::too_many("too many requests without a good token came from this address", wait));
            }
            let message = if given.is_some() { "this token opens nothing here" } else { "no token was sent" };
            denied(&self.daemon.audit, request, &peer, message);
            return Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                message,
                "send `Authorization: Bearer TOKEN`; the owner's token is in the file `data/token`, `pylair token add` makes others",
            ));
        };
        if guest.is_some_and(|guest| guest.introduce(&visitor.token.owner).is_err()) {
            let message = "the owner of this token has as many connections open as this server takes";
            return Err(Refusal::too_many(message, Duration::from_secs(1)));
        }
        let token = visitor.token.clone();
        let credential = Arc::new(Credential { token: token.name.clone(), peer });
        Ok((Visit { token, credential, buffers: self.room.buffers.clone() }, visitor))
    }

    /// What this visitor may not do here, whatever the request says.
    fn judge(&self, visit: &Visit, method: &Method, path: &str) -> Result<(), Box<(Refusal, Caller)>> {
        let caller = || self.daemon.visiting_caller(visit, "http", DefaultSession::Main);
        // Whatever changes something is a POST; `/mcp` chooses its tools itself. Completing has a body because code is long.
        let is_changing = path.starts_with("/api/") && path != "/api/complete";
        let is_refused = (self.closed.changes && is_changing) || (self.closed.files && path.starts_with("/files/"));
        if is_refused && method != Method::GET {
            let refusal = Refusal::new(
                StatusCode::FORBIDDEN,
                rights::Denied::KIND,
                "this server was started to serve only what changes nothing",
                "start it without --readonly and with the toolset `run`, or `files` for those",
            );
            return Err(Box::new((refusal, caller())));
        }
        if path == "/mcp" || path.starts_with("/mcp/") {
            return Ok(());
        }
        let caller = caller();
        let tool = rights::route(method.as_str(), path).unwrap_or("this route");
        rights::check(&caller, tool, &serde_json::Map::new()).map_err(|denied| Box::new((denied.into(), caller)))
    }

    /// Room for this request, to be held until its answer is sent.
    fn make_room(&self, visitor: &Visitor, is_stream: bool, request: &Request) -> Result<Held, Refusal> {
        let full = |message| Refusal::too_many(message, Duration::from_secs(1));
        if let Some(wait) = visitor.too_fast(self.settings.rate) {
            return Err(Refusal::too_many("this token sends too many requests", wait));
        }
        let (room, token) = (&self.room, &visitor.token);
        let (own, all) =
            if is_stream { (&visitor.streams, &room.streams) } else { (&visitor.requests, &room.requests) };
        let permit = own.clone().try_acquire_owned();
        let permit = permit.map_err(|_| full("this token has as many requests or streams open as it may"))?;
        let place = all.take(&token.owner, 1);
        let place = place.ok_or_else(|| full("as many requests or streams are open as this server takes"))?;
        // What is uploaded is written to disk as it comes.
        let is_kept = !request.uri().path().starts_with("/files/");
        let body = Incoming::new(is_kept.then(|| room.buffers.take(&token.owner, 0)).flatten());
        let asking = request.extensions().get::<Arc<Guest>>().map(Guest::ask);
        Ok(Held::new(permit, place, asking, body))
    }
}

/// Every request that comes in over TCP passes here.
pub async fn check(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let (visit, visitor) = match door.admit(&request) {
        Ok(admitted) => admitted,
        Err(refusal) => return refusal.into_response(),
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if let Err(judged) = door.judge(&visit, &method, &path) {
        let (refusal, caller) = *judged;
        door.daemon.audit.denied(&caller, &format!("{method} {path}"), None, &refusal.message);
        return refusal.into_response();
    }
    if method == Method::POST && path.starts_with("/api/") && is_formlike(request.headers()) {
        let message = "the body of this request is not called JSON";
        let hint = "send `Content-Type: application/json`";
        return Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_argument", message, hint).into_response();
    }
    let is_stream =
        method == Method::GET && (path.starts_with("/mcp") || matches!(&*path, "/api/events" | "/api/failures/events"));
    let held = match door.make_room(&visitor, is_stream, &request) {
        Ok(held) => held,
        Err(refusal) => return refusal.into_response(),
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > MAX_BODY_BYTES as u64) && !path.starts_with("/files/") {
        let message = format!("the body has {} bytes, over the limit of {MAX_BODY_BYTES}", length.unwrap_or_default());
        return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &message, "send less, or upload a file")
            .into_response();
    }
    let body = held.body.clone();
    request = request.map(|incoming| body.within(incoming, door.settings.body_timeout));
    let token = visit.token.clone();
    request.extensions_mut().insert(visit.clone());
    request.extensions_mut().insert(Entrance::Tcp(visit));
    let response = next.run(request).await;
    match held.body.fate() {
        Fate::Well => {}
        Fate::TooSlow => {
            let message = "the body of this request did not come in time";
            return Refusal::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message, "send it again").into_response();
        }
        Fate::TooMuch => return too_much("more is being sent by this owner than this server has room for"),
    }
    let size = response.body().size_hint().exact().unwrap_or_default();
    let mut waiting = None;
    if size > event_loop::LARGE_BYTES as u64 {
        waiting = door.room.buffers.take(&token.owner, size);
        if waiting.is_none() {
            return too_much("answers to this owner that were not read yet take all the room there is for them");
        }
    }
    response.map(|body| Body::new(Outgoing::new(body, &token, waiting, held)))
}

fn too_much(message: &str) -> Response {
    let hint = "read the answers that are open, or send less at once, and ask again";
    let refusal = Refusal::too_many(message, Duration::from_secs(1));
    Refusal { hint: hint.to_owned(), ..refusal }.into_response()
}

/// Who asks, for records: the other end, and behind a proxy whom that says it asks for.
fn peer(remote: Option<String>, headers: &HeaderMap, behind_proxy: bool) -> String {
    let remote = remote.unwrap_or_else(|| "unknown".to_owned());
    let forwarded = headers.get("x-forwarded-for").filter(|_| behind_proxy).and_then(|value| value.to_str().ok());
    match forwarded {
        Some(forwarded) => format!("{} by {remote}", pylair_text::plain::one_line(forwarded, 100)),
        None => remote,
    }
}

fn denied(audit: &Audit, request: &Request, peer: &str, reason: &str) {
    audit.record(Line {
        door: Some("http".to_owned()),
        peer: Some(peer.to_owned()),
        action: Some(format!("{} {}", request.method(), request.uri().path())),
        reason: Some(reason.to_owned()),
        ..Line::new(What::Denied)
    });
}

/// There is nothing at this address.
pub async fn not_found() -> Response {
    let hint = "the addresses are /mcp, /api/… and /files/…; /docs shows them";
    Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here", hint).into_response()
}

/// Errors that the framework makes say the same three things as ours.
pub async fn in_our_shape(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_json =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/"));
    if !(status.is_client_error() || status.is_server_error()) || is_json {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = axum::body::to_bytes(body, MAX_ERROR_BYTES).await.unwrap_or_default();
    let (kind, hint) = match status {
        StatusCode::METHOD_NOT_ALLOWED => ("bad_argument", "use another method"),
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", "send less, or upload a file"),
        _ if status.is_client_error() => ("bad_argument", "mend the request"),
        _ => ("internal", "see the daemon's log"),
    };
    let message = Some(String::from_utf8_lossy(&text).trim().to_owned()).filter(|text| !text.is_empty());
    let message = message.unwrap_or_else(|| status.canonical_reason().unwrap_or("it failed").to_lowercase());
    let failure = Failure { kind: kind.to_owned(), message, hint: hint.to_owned() };
    let mut response = super::problem::response(status, &failure);
    if let Some(allow) = parts.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allow.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_proxy_asks_for_is_only_written_down_behind_one() {
        let headers = HeaderMap::from_iter([("x-forwarded-for".parse().unwrap(), "203.0.113.9".parse().unwrap())]);
        assert_eq!(peer(Some("10.0.0.1:5".to_owned()), &headers, false), "10.0.0.1:5");
        assert_eq!(peer(Some("10.0.0.1:5".to_owned()), &headers, true), "203.0.113.9 by 10.0.0.1:5");
    }
}
