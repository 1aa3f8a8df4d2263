//! Legacy MCP sessions belong to the token they were opened with: to anybody else they are as unknown as one that never was. They end
//! with their token, and one token has so many.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt::Display,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::BoxBody;
use rmcp::transport::{
    StreamableHttpService,
    streamable_http_server::{SessionManager, session::local::LocalSessionManager},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower_service::Service;

use super::server::Server;
use pylair_core::{
    daemon::Daemon,
    order::{Left, SenderId, Ticket},
    visit::{LargeAnswer, Token, Visit},
};

const HEADER: &str = "mcp-session-id";
const METHOD_HEADER: &str = "mcp-method";
const MAX_PER_TOKEN: usize = 128;
/// How long an answer is kept for a client that lost its connection while it was answered.
const REMEMBERED: Duration = Duration::from_secs(10);
/// A request that no session has.
const NO_REQUEST: u64 = u64::MAX;

pub(super) struct McpSessions {
    daemon: Arc<Daemon>,
    pub manager: Arc<LocalSessionManager>,
    /// Oldest first.
    opened: Mutex<VecDeque<Opened>>,
}

/// A session that somebody has opened.
struct Opened {
    id: String,
    token: Arc<Token>,
    /// Cancelled when it is forgotten.
    left: DropGuard,
}

impl McpSessions {
    pub fn new(daemon: Arc<Daemon>) -> Self {
        let mut manager = LocalSessionManager::default();
        manager.session_config.completed_cache_ttl = REMEMBERED;
        Self { daemon, manager: Arc::new(manager), opened: Mutex::default() }
    }

    /// Until a session has forgotten what it answers now. It looks through what it keeps only when something happens to it, so something does.
    fn forgotten(&self, id: String) -> impl Future<Output = ()> + Send + 'static {
        let manager = self.manager.clone();
        async move {
            // Longer than it is kept, by what may pass between its being made and its being sent.
            tokio::time::sleep(REMEMBERED + Duration::from_secs(1)).await;
            let session = manager.sessions.read().await.get(&*id).cloned();
            if let Some(session) = session {
                // One that has ended has forgotten everything.
                let _ended = session.close_request_wise_channel(NO_REQUEST).await;
            }
        }
    }

    /// The place of a call among those of its sender, taken before its body is read. A request without a session says in a header
    /// whether it is a call.
    fn ticket<B>(&self, visit: &Visit, request: &Request<B>) -> Option<Arc<Ticket>> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let sender = match header(HEADER) {
            _ if request.method() != Method::POST => return None,
            Some(id) => SenderId::McpSession(id.to_owned()),
            None if header(METHOD_HEADER) == Some("tools/call") => SenderId::Token(visit.credential.token.clone()),
            None => return None,
        };
        Some(self.daemon.senders.arrive(&sender))
    }

    /// If this token opened it: what is cancelled when it is over.
    fn left(&self, id: &str, token: &Arc<Token>) -> Option<Left> {
        let opened = self.opened.lock().expect("no panic while locked");
        let known = opened.iter().find(|known| known.id == id && Arc::ptr_eq(&known.token, token))?;
        Some(Left(known.left.token().clone()))
    }

    fn opened(&self, id: String, token: Arc<Token>) {
        let left = CancellationToken::new().drop_guard();
        self.opened.lock().expect("no panic while locked").push_back(Opened { id, token, left });
    }

    fn forget(&self, id: &str) {
        self.opened.lock().expect("no panic while locked").retain(|known| known.id != id);
    }

    /// Forgets those that have ended. Ends those of tokens that are over, and the oldest of a token that has too many.
    async fn sweep(&self, token: &Arc<Token>) {
        let surplus: Vec<_> = {
            let alive = self.manager.sessions.read().await;
            let mut opened = self.opened.lock().expect("no panic while locked");
            opened.retain(|known| alive.contains_key(known.id.as_str()));
            let mine = opened.iter().filter(|known| Arc::ptr_eq(&known.token, token)).count();
            let mut too_many = mine.saturating_sub(MAX_PER_TOKEN);
            let mut surplus = Vec::new();
            opened.retain(|Opened { id, token: owner, .. }| {
                let is_oldest = too_many > 0 && Arc::ptr_eq(owner, token);
                too_many -= usize::from(is_oldest);
                let is_over = is_oldest || owner.revoked.is_cancelled() || owner.is_over();
                surplus.extend(is_over.then(|| id.clone()));
                !is_over
            });
            surplus
        };
        for id in surplus {
            // It may have ended by itself.
            let _over = self.manager.close_session(&id.into()).await;
        }
    }
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// What is served at `/mcp`. Whoever names a session must have opened it.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) sessions: Arc<McpSessions>,
    pub(super) service: StreamableHttpService<Server, LocalSessionManager>,
}

impl<B> Service<Request<B>> for Endpoint
where
    B: Body<Data: Send + 'static, Error: Display> + Send + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let endpoint = self.clone();
        Box::pin(async move { Ok(endpoint.answer(request).await) })
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

impl Endpoint {
    async fn answer<B>(&self, mut request: Request<B>) -> Answer
    where
        B: Body<Data: Send + 'static, Error: Display> + Send + 'static,
    {
        let sessions = &self.sessions;
        let Some(visit) = request.extensions().get::<Visit>().cloned() else {
            return self.service.handle(request).await;
        };
        sessions.sweep(&visit.token).await;
        let named = session_id(request.headers());
        let left = named.as_deref().and_then(|id| sessions.left(id, &visit.token));
        let own = named.clone().filter(|_| left.is_some());
        match left {
            Some(left) => {
                request.extensions_mut().insert(left);
            }
            // The answer is then the one to an id that nobody has.
            None if request.headers().contains_key(HEADER) => {
                request.headers_mut().insert(HEADER, HeaderValue::from_static("00000000-0000-0000-0000-000000000000"));
            }
            None => {}
        }
        if let (Some(answer), Some(id)) = (request.extensions().get::<LargeAnswer>(), &named) {
            answer.is_remembered_until(sessions.forgotten(id.clone()));
        }
        if let Some(ticket) = sessions.ticket(&visit, &request) {
            request.extensions_mut().insert(ticket);
        }
        let is_delete = request.method() == Method::DELETE;
        let mut response = self.service.handle(request).await;
        if is_delete && response.status() == StatusCode::ACCEPTED {
            if let Some(id) = own {
                sessions.forget(&id);
            }
            // It is over now. `202` would say that it will be, and clients warn about that.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        if named.is_none()
            && let Some(id) = session_id(response.headers())
        {
            sessions.opened(id, visit.token);
        }
        response
    }
}
