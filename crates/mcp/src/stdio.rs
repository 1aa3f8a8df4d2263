//! MCP over stdio that a bridge handed over, or over our own when serving in-process: one JSON message a line.
//!
//! A transport of our own instead of rmcp's, because the daemon must note on the slate what is unanswered, must answer what is no
//! message at all, and must not leave non-blocking flags on descriptors it shares.

use std::{
    collections::HashSet,
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use rmcp::{
    RoleServer,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorData, JsonRpcMessage, RequestId,
        ServerJsonRpcMessage,
    },
    transport::Transport,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, Semaphore, SemaphorePermit},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::bridge::{
    id_in_partial_line,
    inbox::{self, Inbox},
    slate::Slate,
};
use pylair_core::order::Arrivals;
use pylair_os::{
    descriptor::{Descriptor, register, until_writable},
    event_loop::{self, apart},
};

/// Longer than any message a client has a reason to send, code of 32 MiB with its escapes included.
const MAX_LINE_BYTES: usize = 72 << 20;
/// Shorter than clients wait for our end before they kill us.
const LINGER: Duration = Duration::from_secs(1);
/// As much as may wait for a client that does not read.
const MAX_UNREAD_BYTES: usize = 32 << 20;
/// Answers to one client that may be large and are made at once.
const MAX_MAKING: usize = 4;
/// Requests of one client at once.
const MAX_PENDING: usize = 512;

/// A pipe or socket end that is read and written without blocking, and without telling the other holders of it.
#[derive(Debug)]
struct End {
    descriptor: OwnedFd,
    is_socket: bool,
}

impl End {
    fn new(descriptor: OwnedFd, write: bool) -> io::Result<Self> {
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&descriptor)?.st_mode);
        if kind == rustix::fs::FileType::Socket {
            return Ok(Self { descriptor, is_socket: true });
        }
        // A pipe opened anew has flags of its own, so that nobody else sees O_NONBLOCK.
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let reopened = OpenOptions::new().read(!write).write(write).custom_flags(libc::O_NONBLOCK).open(path);
        let descriptor = if let Ok(file) = reopened {
            file.into()
        } else {
            rustix::io::ioctl_fionbio(&descriptor, true)?;
            descriptor
        };
        Ok(Self { descriptor, is_socket: false })
    }

    fn read(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        if self.is_socket {
            return rustix::net::recv(&self.descriptor, buffer, rustix::net::RecvFlags::DONTWAIT)
                .map(|(count, _)| count);
        }
        rustix::io::read(&self.descriptor, buffer)
    }

    fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        if self.is_socket {
            let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
            return rustix::net::send(&self.descriptor, bytes, flags);
        }
        rustix::io::write(&self.descriptor, bytes)
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for End {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.descriptor.as_raw_fd()
    }
}

// SAFETY: its one descriptor is owned, and replaced by nobody.
unsafe impl Descriptor for End {}

/// What the transport and its sends share.
#[derive(Debug)]
struct StdioState {
    output: End,
    writing: tokio::sync::Mutex<()>,
    slate: Option<Slate>,
    pending: Mutex<HashSet<RequestId>>,
    /// Told when a request was answered.
    answers: Notify,
    closed: AtomicBool,
    stop: CancellationToken,
    backlog: Arc<Backlog>,
}

/// What a client has not taken yet of what it is answered.
#[derive(Debug)]
pub struct Backlog {
    bytes: AtomicUsize,
    taken: Notify,
    making: Semaphore,
    stop: CancellationToken,
}

impl Backlog {
    fn new(stop: CancellationToken) -> Arc<Self> {
        let (bytes, taken, making) = (AtomicUsize::new(0), Notify::new(), Semaphore::new(MAX_MAKING));
        Arc::new(Self { bytes, taken, making, stop })
    }

    /// A client that does not read gets nothing more to read, so that what waits for it stays within bounds. Cancel-safe.
    pub async fn until_read(&self) {
        loop {
            let mut taken = std::pin::pin!(self.taken.notified());
            taken.as_mut().enable();
            if self.bytes.load(Ordering::Acquire) <= MAX_UNREAD_BYTES {
                return;
            }
            tokio::select! {
                () = taken => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// The turn to make an answer that may be large.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turn = self.making.acquire().await.ok();
        self.until_read().await;
        turn
    }
}

/// Bytes of a message that waits to be written.
struct Unread<'a>(&'a Backlog, usize);

impl<'a> Unread<'a> {
    fn new(backlog: &'a Backlog, bytes: usize) -> Self {
        backlog.bytes.fetch_add(bytes, Ordering::AcqRel);
        Self(backlog, bytes)
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.0.bytes.fetch_sub(self.1, Ordering::AcqRel);
        self.0.taken.notify_waiters();
    }
}

/// The transport of one client.
pub struct Stdio {
    input: AsyncFd<End>,
    shared: Arc<StdioState>,
    buffer: BytesMut,
    inbox: Inbox,
    /// Where in the buffer no newline is known not to be.
    scanned: usize,
    /// The rest of a line that was too long, or whose beginning died with another daemon.
    discarding: bool,
    /// Part of a line is noted on the slate.
    partial_noted: bool,
    introduced: bool,
    /// Set when the client is gone: its cells go on as jobs, they are not cancelled.
    gone: Arc<AtomicBool>,
    /// Until when answers are still written after the end of the input.
    linger_until: Option<Instant>,
    /// Ends the transport from outside, when the bridge was killed.
    stop: CancellationToken,
    left: CancellationToken,
    arrivals: Arc<Arrivals>,
}

/// How a transport came to be.
#[derive(Debug)]
pub struct Origin {
    pub slate: Option<OwnedFd>,
    /// The client introduced itself to an earlier daemon.
    pub resumed: bool,
    /// That daemon died with the beginning of a line: what comes first is the rest of it.
    pub mid_line: bool,
    pub gone: Arc<AtomicBool>,
    pub stop: CancellationToken,
    /// Cancelled when no answer is written any more.
    pub left: CancellationToken,
}

impl Stdio {
    pub fn new(input: OwnedFd, output: OwnedFd, origin: Origin) -> io::Result<Self> {
        let input = End::new(input, false)?;
        let output = End::new(output, true)?;
        let slate = origin.slate.map(Slate::new);
        let inbox = Slate::inbox(slate.as_ref())?;
        Ok(Self {
            input: register(input, Interest::READABLE)?,
            shared: Arc::new(StdioState {
                output,
                writing: tokio::sync::Mutex::default(),
                slate,
                pending: Mutex::default(),
                answers: Notify::new(),
                closed: AtomicBool::new(false),
                stop: origin.stop.clone(),
                backlog: Backlog::new(origin.stop.clone()),
            }),
            buffer: BytesMut::with_capacity(inbox::ROOM),
            inbox,
            scanned: 0,
            discarding: origin.mid_line,
            partial_noted: false,
            introduced: origin.resumed,
            gone: origin.gone,
            linger_until: None,
            stop: origin.stop,
            left: origin.left,
            arrivals: Arc::default(),
        })
    }

    /// One line without its newline; `None` at the end. Cancel-safe: what was read stays in the buffer.
    async fn line(&mut self) -> Option<BytesMut> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(self.scanned + at + 1);
                line.truncate(line.len() - 1);
                if line.last() == Some(&b'\r') {
                    line.truncate(line.len() - 1);
                }
                self.scanned = 0;
                if std::mem::take(&mut self.discarding) {
                    self.dealt_with_line();
                    continue;
                }
                return Some(line);
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > MAX_LINE_BYTES {
                self.discarding = true;
                let head = String::from_utf8_lossy(&self.buffer[..300]).into_owned();
                let id = id_in_partial_line(&head).and_then(|id| serde_json::from_str(&id).ok());
                let message = format!("this line is longer than {MAX_LINE_BYTES} bytes");
                self.refuse(id, ErrorData::invalid_request(message, None)).await;
            }
            if self.discarding {
                self.buffer.clear();
                self.scanned = 0;
            } else if !self.buffer.is_empty() {
                self.note_partial(true);
            }
            let mut guard = tokio::select! {
                ready = self.input.readable() => ready.ok()?,
                () = self.stop.cancelled() => return None,
            };
            match self.input.get_ref().read(self.inbox.room()) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(self.inbox.take(count)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(error) => {
                    tracing::debug!(%error, "a client's stdin broke");
                    return None;
                }
            }
        }
    }

    /// A client may close its input and still read, as `printf … | pylair mcp` does: it gets the answers that come soon.
    /// Cancel-safe.
    async fn last_answers(&mut self) {
        let until = *self.linger_until.get_or_insert_with(|| Instant::now() + LINGER);
        loop {
            let mut answered = std::pin::pin!(self.shared.answers.notified());
            answered.as_mut().enable();
            if self.shared.pending.lock().expect("no panic while locked").is_empty() {
                return;
            }
            tokio::select! {
                () = answered => {}
                () = tokio::time::sleep_until(until) => return,
                () = self.stop.cancelled() => return,
            }
        }
    }

    pub fn backlog(&self) -> Arc<Backlog> {
        self.shared.backlog.clone()
    }

    /// The newest line was answered, or is noted on the slate, or needs no answer.
    fn dealt_with_line(&mut self) {
        self.inbox.leave(self.buffer.len());
        self.note_partial(false);
    }

    fn note_partial(&mut self, partial: bool) {
        if partial == self.partial_noted {
            return;
        }
        self.partial_noted = partial;
        if let Some(slate) = &self.shared.slate {
            slate.reading(partial.then_some(&self.buffer[..]));
        }
    }

    async fn refuse(&self, id: Option<RequestId>, error: ErrorData) {
        if let Err(error) = self.shared.write(&ServerJsonRpcMessage::error(error, id)).await {
            tracing::debug!(%error, "a refusal could not be written");
        }
    }

    /// Whether the message goes on to the server. What does not is answered here.
    async fn admit(&mut self, message: &mut ClientJsonRpcMessage) -> bool {
        match message {
            JsonRpcMessage::Request(request) => {
                self.introduced = true;
                if self.shared.pending.lock().expect("no panic while locked").len() >= MAX_PENDING {
                    let message = format!("{MAX_PENDING} requests are being answered; wait for some of them");
                    self.refuse(Some(request.id.clone()), ErrorData::invalid_request(message, None)).await;
                    return false;
                }
                let fresh = self.shared.pending.lock().expect("no panic while locked").insert(request.id.clone());
                if !fresh {
                    let message = "a request with this id is still being answered";
                    self.refuse(Some(request.id.clone()), ErrorData::invalid_request(message, None)).await;
                    return false;
                }
                if let Some(slate) = &self.shared.slate {
                    slate.begin(&id_text(&request.id));
                    if let ClientRequest::InitializeRequest(initialize) = &request.request {
                        slate.initialize(&event_loop::to_json(&initialize.params).unwrap_or_default());
                    }
                }
                // Requests are answered by tasks of their own, which do not start in the order they were made.
                if let ClientRequest::CallToolRequest(call) = &mut request.request {
                    call.extensions.insert(self.arrivals.arrive());
                }
                true
            }
            // Before the client has introduced itself rmcp takes a notification for a breach of protocol and ends. It starts a task
            // for each, so only those that mean something to the server are passed on.
            JsonRpcMessage::Notification(notification) => match &notification.notification {
                ClientNotification::CancelledNotification(cancelled) => {
                    let id = cancelled.params.request_id.as_ref();
                    id.is_some_and(|id| self.shared.answered(id)) && self.introduced
                }
                ClientNotification::InitializedNotification(_) => self.introduced,
                _ => false,
            },
            _ => self.introduced,
        }
    }
}

impl StdioState {
    /// Returns whether the request was unanswered until now.
    fn answered(&self, id: &RequestId) -> bool {
        let was_pending = self.pending.lock().expect("no panic while locked").remove(id);
        self.answers.notify_waiters();
        if let Some(slate) = &self.slate {
            slate.end(&id_text(id));
        }
        was_pending
    }

    async fn write(&self, message: &ServerJsonRpcMessage) -> io::Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut line = event_loop::to_json(message)?;
        line.push(b'\n');
        let _unread = Unread::new(&self.backlog, line.len());
        let _turn = self.writing.lock().await;
        let mut rest = line.as_slice();
        let mut noted = false;
        while !rest.is_empty() {
            match self.output.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    if !noted && let Some(slate) = &self.slate {
                        noted = true;
                        slate.writing(true);
                    }
                    // A client that does not read must not keep us once its bridge is gone.
                    tokio::select! {
                        ready = until_writable(self.output.as_fd()) => ready?,
                        () = self.stop.cancelled() => return Err(io::ErrorKind::NotConnected.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        if noted && let Some(slate) = &self.slate {
            slate.writing(false);
        }
        Ok(())
    }
}

fn id_text(id: &RequestId) -> String {
    serde_json::to_string(id).unwrap_or_default()
}

impl Transport<RoleServer> for Stdio {
    type Error = io::Error;

    fn send(&mut self, item: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let shared = self.shared.clone();
        async move {
            let id = match &item {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                _ => None,
            };
            let written = shared.write(&item).await;
            if let Some(id) = id {
                shared.answered(&id);
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            // Nor is it listened to.
            self.shared.backlog.until_read().await;
            // Lines that came with one read must not keep the thread from everybody else.
            tokio::task::coop::consume_budget().await;
            let Some(line) = self.line().await else {
                self.gone.store(true, Ordering::Release);
                self.last_answers().await;
                self.left.cancel();
                return None;
            };
            let parsed = apart(line.len(), || {
                let is_blank = line.iter().all(u8::is_ascii_whitespace);
                (!is_blank).then(|| serde_json::from_slice::<ClientJsonRpcMessage>(&line))
            });
            let Some(parsed) = parsed else {
                self.dealt_with_line();
                continue;
            };
            match parsed {
                Ok(mut message) => {
                    let is_admitted = self.admit(&mut message).await;
                    self.dealt_with_line();
                    if is_admitted {
                        return Some(message);
                    }
                }
                Err(error) => {
                    self.refuse_line(&line, &error).await;
                    self.dealt_with_line();
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.shared.closed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Stdio {
    /// Answers a line that is no message: a parse error for what is no JSON, an invalid request for what is other JSON.
    async fn refuse_line(&self, line: &[u8], error: &serde_json::Error) {
        let Ok(value) = apart(line.len(), || serde_json::from_slice::<serde_json::Value>(line)) else {
            let message = format!("this line is not JSON: {error}");
            self.refuse(None, ErrorData::parse_error(message, None)).await;
            return;
        };
        let id = value.get("id").cloned().and_then(|id| serde_json::from_value(id).ok());
        let is_notification = value.get("method").is_some() && id.is_none();
        if is_notification {
            tracing::debug!(%error, "a notification was not understood");
            return;
        }
        let message = if value.is_array() {
            "batches are not part of the protocol; send one message a line".to_owned()
        } else {
            format!("this is not a JSON-RPC request: {error}")
        };
        self.refuse(id, ErrorData::invalid_request(message, None)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use super::*;
    use crate::bridge::slate;

    #[tokio::test]
    async fn a_request_that_was_read_and_not_yet_admitted_is_not_forgotten() {
        let memory = slate::create().unwrap();
        let reader = File::from(memory.try_clone().unwrap());
        let (input, mut client) = io::pipe().unwrap();
        let (_answers, output) = io::pipe().unwrap();
        let stop = CancellationToken::new();
        let gone = Arc::new(AtomicBool::new(false));
        let left = CancellationToken::new();
        let origin = Origin { slate: Some(memory), resumed: true, mid_line: false, gone, stop, left };
        let mut stdio = Stdio::new(input.into(), output.into(), origin).unwrap();
        for id in ["1", "\"two\"", "3"] {
            writeln!(client, "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}").unwrap();
        }
        client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":").unwrap();
        assert!(matches!(stdio.receive().await, Some(JsonRpcMessage::Request(_))));
        // All of it came with one read, and the daemon dies now.
        let found = slate::read_and_wipe(&reader).unwrap();
        assert_eq!(found.unanswered, ["1", "\"two\"", "3", "4"]);
        assert!(found.mid_line);
    }

    #[tokio::test]
    async fn whoever_sends_many_lines_at_once_leaves_turns_to_others() {
        const LINES: usize = 900;
        let (input, mut client) = io::pipe().unwrap();
        let (_answers, output) = io::pipe().unwrap();
        let (stop, gone) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let left = CancellationToken::new();
        let origin = Origin { slate: None, resumed: true, mid_line: false, gone, stop, left };
        let mut stdio = Stdio::new(input.into(), output.into(), origin).unwrap();
        let flood = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/roots/list_changed\"}\n".repeat(LINES);
        assert!(flood.len() < 64 << 10, "it fits into a pipe");
        client.write_all(flood.as_bytes()).unwrap();
        client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let other = event_loop::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let received = event_loop::spawn(async move { stdio.receive().await }).await.unwrap();
        other.abort();
        assert!(matches!(received, Some(JsonRpcMessage::Request(_))), "what means nothing is not passed on");
        // A task may do 128 things in a turn.
        assert!(turns.load(Ordering::Relaxed) >= LINES / 128 - 1, "{turns:?}");
    }

    #[tokio::test]
    async fn whoever_does_not_read_gets_nothing_more_to_read() {
        let stop = CancellationToken::new();
        let backlog = Backlog::new(stop.clone());
        let turns: Vec<_> = (0..MAX_MAKING).map(|_| backlog.turn()).collect();
        let turns = futures::future::join_all(turns).await;
        assert!(futures::poll!(std::pin::pin!(backlog.turn())).is_pending(), "so many are made at once");
        drop(turns);
        let unread = Unread::new(&backlog, MAX_UNREAD_BYTES + 1);
        let mut turn = std::pin::pin!(backlog.turn());
        assert!(
            futures::poll!(turn.as_mut()).is_pending()
                && futures::poll!(std::pin::pin!(backlog.until_read())).is_pending()
        );
        drop(unread);
        assert!(turn.await.is_some());
        let _unread = Unread::new(&backlog, MAX_UNREAD_BYTES + 1);
        stop.cancel();
        backlog.until_read().await;
    }
}
