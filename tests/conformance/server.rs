//! The fixture on a port of this machine, behind the HTTP service pylair itself uses.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use futures::StreamExt;
use pylair_mcp::http::{Options, mcp_service};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::fixture::{Fixture, Shared};

/// Serves until the runtime ends.
pub async fn start() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let options = Options {
        allowed_hosts: vec![address.ip().to_string()],
        allowed_origins: vec![format!("http://{address}")],
        ..Options::default()
    };
    let shared = Shared::new();
    let service = mcp_service(move || Fixture::new(Arc::clone(&shared)), Arc::default(), options);
    let router =
        Router::new().nest_service("/mcp", service).layer(middleware::from_fn_with_state(Returns::default(), losable));
    pylair_os::event_loop::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// Wakes whoever waits for a client to resume a stream.
type Returns = Arc<Notify>;

/// The HTTP response a tool call is answered on. A tool finds it among the extensions of its request.
#[derive(Clone)]
pub struct Connection {
    started: CancellationToken,
    lost: CancellationToken,
    returns: Returns,
}

impl Connection {
    /// Ends the response after its first event, like a network that fails, and waits until the client has resumed
    /// the stream. The server is told of neither.
    pub async fn lose(&self) {
        self.started.cancelled().await;
        self.lost.cancel();
        self.returns.notified().await;
    }
}

async fn losable(State(returns): State<Returns>, mut request: Request, next: Next) -> Response {
    let resumes = request.headers().contains_key("last-event-id");
    let (started, lost) = (CancellationToken::new(), CancellationToken::new());
    request.extensions_mut().insert(Connection {
        started: started.clone(),
        lost: lost.clone(),
        returns: Arc::clone(&returns),
    });
    let response = next.run(request).await;
    if resumes {
        returns.notify_one();
    }
    response.map(|body| {
        let frames = body.into_data_stream();
        let frames = frames.inspect(move |_| started.cancel());
        Body::from_stream(frames.take_until(lost.cancelled_owned()))
    })
}
