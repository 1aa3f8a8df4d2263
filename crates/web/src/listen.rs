//! The TCP door's connections, plain or with TLS: each has to say what it wants in time, and to take what it is answered. How many
//! there are is settled in `guests`. Called by `lifecycle`; the Unix door is for our own user and has no such limits.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    guests::{Guest, Guests},
    patient::Patient,
    router::Remote,
};
use pylair_os::event_loop::watched;

/// What hyper holds of a head and of a body at once.
const MAX_BUFFER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// Connections that wait to be taken. One that finds no place tries again only after a second, and then after more.
const BACKLOG: i32 = 4096;
/// How long one is listened to that was refused.
const LINGER: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a handshake or a request's head may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long somebody may take nothing of what he is sent.
    pub write: Duration,
}

/// Pause between two crowds of new connections, in which the runtime looks for what those before have sent.
const HEARING: Duration = Duration::from_millis(1);

/// Serves until told to stop, then until open requests have ended.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    (limits, guests): (Limits, Arc<Guests>),
    stop: CancellationToken,
) {
    // Where it is refused fewer may wait.
    let _fewer = rustix::net::listen(&listener, BACKLOG);
    let connections = TaskTracker::new();
    let mut unheard = 0;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                let guest = guests.arrive(address.ip());
                let stream = Patient::new(stream, limits.write);
                let peer = Peer { address, guest: guest.clone() };
                let connection = welcome((stream, peer), tls.clone(), router.clone(), limits, stop.clone());
                connections.spawn(watched(async move {
                    tokio::select! {
                        () = connection => {}
                        () = guest.leave.cancelled() => {}
                    }
                }));
                // Whoever has said what he wants is heard before so many others come in that he would have to leave. Yielding is not
                // enough: tasks that are ready come before those whose bytes the runtime has not looked for yet.
                unheard += 1;
                if unheard >= guests.heard_every() {
                    unheard = 0;
                    tokio::time::sleep(HEARING).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Out of descriptors, most likely: some are closed in a while.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

/// Who is at the other end.
#[derive(Clone)]
struct Peer {
    address: SocketAddr,
    guest: Arc<Guest>,
}

async fn welcome(
    (stream, peer): (Patient, Peer),
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let Some(tls) = tls else { return converse(stream, peer, router, limits, stop).await };
    let (mut first, address) = ([0], peer.address);
    match tokio::time::timeout(limits.head, stream.peek(&mut first)).await {
        // No TLS record begins with a letter, and every plain request does.
        Ok(Ok(1)) if first[0].is_ascii_alphabetic() => return refuse(stream, limits, &PLAIN).await,
        Ok(Ok(1)) => {}
        _ => return,
    }
    match tokio::time::timeout(limits.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => converse(stream, peer, router, limits, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, peer = %address, "a TLS handshake failed"),
        Err(_) => tracing::debug!(peer = %address, "a TLS handshake took too long"),
    }
}

/// What a connection is told that never became a request.
struct Farewell {
    status: &'static str,
    kind: &'static str,
    message: &'static str,
    hint: &'static str,
}

const PLAIN: Farewell = Farewell {
    status: "400 Bad Request",
    kind: "bad_argument",
    message: "this address speaks TLS",
    hint: "use https://; what was sent in plain could have been read on the way, so change the token if there was one",
};

const LATE: Farewell = Farewell {
    status: "408 Request Timeout",
    kind: "too_slow",
    message: "the head of this request did not come in time",
    hint: "send it again",
};

async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, limits: Limits, farewell: &Farewell) {
    let Farewell { status, kind, message, hint } = farewell;
    let body = serde_json::json!({"kind": kind, "message": message, "hint": hint}).to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let tell = async {
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        stream.shutdown().await?;
        // What still comes is read for a while: closing on unread bytes would take the answer back.
        let (mut unread, mut left) = ([0; 4096], MAX_BUFFER_BYTES);
        while left > 0 {
            match stream.read(&mut unread).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        Ok::<_, std::io::Error>(())
    };
    // Whoever does not listen is not told.
    let _unheard = tokio::time::timeout(limits.head.min(LINGER), tell).await;
}

async fn converse<S>(stream: S, peer: Peer, router: Router, limits: Limits, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        peer.guest.speak();
        request.extensions_mut().insert(Remote(peer.address));
        request.extensions_mut().insert(peer.guest.clone());
        let (guest, answer) = (peer.guest.clone(), router.call(request));
        // In a box, so that the connection can be taken apart when it has ended.
        Box::pin(async move {
            let answer = answer.await;
            guest.fall_silent();
            answer
        })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_BUFFER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            (&mut connection).await
        }
    };
    let Err(error) = ended else { return };
    tracing::debug!(%error, "a connection ended early");
    let parts = connection.into_parts();
    // One that was idle has asked nothing and is told nothing.
    if error.is_timeout() && !parts.read_buf.is_empty() {
        refuse(parts.io.into_inner(), limits, &LATE).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;
    use pylair_os::budget::Pool;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

    /// A server that has room for so many strangers, its address, and what ends it.
    async fn server(strangers: usize, head: Duration) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        server_at(TcpListener::bind("127.0.0.1:0").await.unwrap(), strangers, head)
    }

    fn server_at(
        listener: TcpListener,
        strangers: usize,
        head: Duration,
    ) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let router = Router::new().route("/", axum::routing::get(|| async { "here" }));
        let guests = Guests::new(strangers, Pool::new("connections", 10, &"me".into()));
        let limits = Limits { head, write: Duration::from_mins(1) };
        let serving = pylair_os::event_loop::spawn(serve(listener, None, router, (limits, guests), stop.clone()));
        (address, stop, serving)
    }

    async fn ask(address: SocketAddr) -> String {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn one_that_does_not_say_what_it_wants_is_told_so_and_one_that_says_nothing_is_not() {
        let (address, stop, serving) = server(10, Duration::from_millis(100)).await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        let mut nothing = Vec::new();
        let _reset = slow.read_to_end(&mut nothing).await;
        assert!(nothing.starts_with(b"HTTP/1.1 408 Request Timeout\r\n"), "{}", String::from_utf8_lossy(&nothing));
        let mut idle = TcpStream::connect(address).await.unwrap();
        let mut silence = Vec::new();
        idle.read_to_end(&mut silence).await.unwrap();
        assert_eq!(silence, b"");
        stop.cancel();
        serving.await.unwrap();
    }

    /// All of them are there when the door is opened.
    #[tokio::test]
    async fn whoever_has_spoken_is_heard_before_a_crowd_behind_him_makes_him_leave() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut honest = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        honest.write_all(REQUEST).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        }
        let (_, stop, serving) = server_at(listener, 4, Duration::from_mins(1));
        let mut answer = String::new();
        honest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
        drop(silent);
        stop.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn many_that_say_nothing_do_not_keep_out_one_that_does() {
        let (address, stop, serving) = server(4, Duration::from_mins(1)).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = ask(address).await;
        assert!(answer.ends_with("here"), "{answer}");
        // The first of them had to make room.
        let mut nothing = Vec::new();
        let _reset = silent[0].read_to_end(&mut nothing).await;
        assert_eq!(nothing, b"");
        drop(silent);
        stop.cancel();
        serving.await.unwrap();
    }
}
