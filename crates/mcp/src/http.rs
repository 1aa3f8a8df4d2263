//! MCP over streamable HTTP: both protocol eras on one endpoint, Host and Origin checked.
//!
//! Generic over the handler, so that the conformance fixture in the tests is served by exactly this.

use std::{sync::Arc, time::Duration};

use rmcp::{
    ServerHandler,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService, streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    http_sessions::McpSessions,
    server::{ClientSide, Server},
    tasks::Tasks,
    tools::Selection,
};
use pylair_core::daemon::Daemon;

pub use super::http_sessions::Endpoint;

/// Bodies up to the longest code we take, escapes included.
const MAX_BODY_BYTES: usize = 72 << 20;

/// What the endpoint accepts.
#[derive(Debug, Clone)]
pub struct Options {
    /// `Host` values that are answered, with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Browser origins that are answered; every other one gets 403.
    pub allowed_origins: Vec<String>,
    pub keep_alive: Duration,
    /// Ends all streams, without which a graceful shutdown would wait for them.
    pub stop: CancellationToken,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            keep_alive: Duration::from_secs(15),
            stop: CancellationToken::new(),
        }
    }
}

/// The service to nest at `/mcp`. `make` is called for each legacy session and each stateless request.
pub fn mcp_service<H>(
    make: impl Fn() -> H + Send + Sync + 'static,
    sessions: Arc<LocalSessionManager>,
    options: Options,
) -> StreamableHttpService<H, LocalSessionManager>
where
    H: ServerHandler,
{
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(options.allowed_hosts)
        .with_allowed_origins(options.allowed_origins)
        .enforce_origin_validation()
        .with_sse_keep_alive(Some(options.keep_alive))
        .with_max_request_body_bytes(MAX_BODY_BYTES)
        .with_cancellation_token(options.stop);
    StreamableHttpService::new(move || Ok(make()), sessions, config)
}

/// What a daemon serves at `/mcp`.
pub fn endpoint(daemon: &Arc<Daemon>, tasks: &Arc<Tasks>, selection: Selection, options: Options) -> Endpoint {
    let sessions = McpSessions::new(daemon.clone());
    let (daemon, tasks) = (daemon.clone(), tasks.clone());
    let make = move || Server::new(daemon.clone(), tasks.clone(), ClientSide::Http, selection.clone(), Vec::new());
    let service = mcp_service(make, sessions.manager.clone(), options);
    Endpoint { sessions: Arc::new(sessions), service }
}
