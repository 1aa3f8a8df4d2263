//! Legacy MCP sessions belong to the token they were opened with: to anybody else they are as unknown as one that never was. They end
//! with their token, and one token has so many.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue},
    middleware::Next,
    response::Response,
};
use rmcp::transport::streamable_http_server::{SessionManager, session::local::LocalSessionManager};

use super::{load::LargeAnswer, router::Entrance, visitors::Token};

const HEADER: &str = "mcp-session-id";
const MAX_PER_TOKEN: usize = 128;
/// How long an answer is kept for a client that lost its connection while it was answered.
const REMEMBERED: Duration = Duration::from_secs(10);
/// A request that no session has.
const NO_REQUEST: u64 = u64::MAX;

pub struct McpSessions {
    pub manager: Arc<LocalSessionManager>,
    /// Oldest first.
    opened: Mutex<VecDeque<(String, Arc<Token>)>>,
}

impl Default for McpSessions {
    fn default() -> Self {
        let mut manager = LocalSessionManager::default();
        manager.session_config.completed_cache_ttl = REMEMBERED;
        Self { manager: Arc::new(manager), opened: Mutex::default() }
    }
}

impl McpSessions {
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

    fn is_of(&self, id: &str, token: &Arc<Token>) -> bool {
        let opened = self.opened.lock().expect("no panic while locked");
        opened.iter().any(|(known, owner)| known == id && Arc::ptr_eq(owner, token))
    }

    /// Remembers a new one, and forgets those that are over.
    async fn opened(&self, id: String, token: Arc<Token>) {
        let alive: Vec<_> = self.manager.sessions.read().await.keys().map(ToString::to_string).collect();
        let mut opened = self.opened.lock().expect("no panic while locked");
        opened.retain(|(known, _)| alive.contains(known));
        opened.push_back((id, token));
    }

    /// Ends those of tokens that are over, and the oldest of a token that has too many.
    async fn sweep(&self, token: &Arc<Token>) {
        let surplus: Vec<_> = {
            let mut opened = self.opened.lock().expect("no panic while locked");
            let mine = opened.iter().filter(|(_, owner)| Arc::ptr_eq(owner, token)).count();
            let mut too_many = mine.saturating_sub(MAX_PER_TOKEN);
            let mut surplus = Vec::new();
            opened.retain(|(id, owner)| {
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

/// Around `/mcp`: whoever names a session must have opened it.
pub async fn check(State(sessions): State<Arc<McpSessions>>, mut request: Request, next: Next) -> Response {
    let Some(Entrance::Tcp(visit)) = request.extensions().get::<Entrance>().cloned() else {
        return next.run(request).await;
    };
    sessions.sweep(&visit.token).await;
    let named = session_id(request.headers());
    if request.headers().contains_key(HEADER) && !named.as_deref().is_some_and(|id| sessions.is_of(id, &visit.token)) {
        // The answer is then the one to an id that nobody has.
        request.headers_mut().insert(HEADER, HeaderValue::from_static("00000000-0000-0000-0000-000000000000"));
    }
    if let (Some(answer), Some(id)) = (request.extensions().get::<LargeAnswer>(), &named) {
        answer.is_remembered_until(sessions.forgotten(id.clone()));
    }
    let response = next.run(request).await;
    if named.is_none()
        && let Some(id) = session_id(response.headers())
    {
        sessions.opened(id, visit.token).await;
    }
    response
}
