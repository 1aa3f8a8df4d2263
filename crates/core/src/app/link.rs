//! One connection to an app: requests that overlap, their answers, and its end.
//!
//! Two tasks own the socket, one for each direction, so that no caller who gives up can leave half a frame behind. A link that nobody
//! used for a while closes; the next request opens another.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{Error, registry::Entry};
use pylair_os::event_loop::apart;
use pylair_os::foreign::Held;
use pylair_probe::wire::{self, Event, Op, Reply, Request, WIRE_VERSION};

const CHANNEL: u32 = 1;
/// A connection that nobody needs.
const IDLE: Duration = Duration::from_mins(1);
/// A process that ends closes its sockets a moment before it is seen to have ended.
const END_GRACE: Duration = Duration::from_millis(500);
/// Frames on their way to an app that does not read them.
const QUEUED: usize = 16;
/// Frames of one answer that its reader has not taken yet.
const UNREAD: usize = 16;
/// Requests without an answer.
const MAX_PENDING: usize = 1024;

/// How a connection came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The process ended, and how if anybody knows.
    Died(Option<String>),
    /// The process goes on; its probe has closed the connection.
    Left,
    /// The probe sent something that is no frame.
    Garbage(String),
    /// Nobody used it.
    Idle,
}

type Frame = (Reply, Vec<u8>);

#[derive(Debug)]
pub(super) struct Link {
    requests: mpsc::Sender<Vec<u8>>,
    shared: Arc<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    held: Held,
    pending: Mutex<Pending>,
    end: OnceLock<End>,
    over: CancellationToken,
}

/// Who waits for what. None any more after the end.
#[derive(Debug, Default)]
struct Pending {
    last_id: u64,
    waiting: Option<HashMap<u64, mpsc::Sender<Frame>>>,
    /// The other side has hung up: nobody else may begin to wait, while it is found out for those who do what became of it.
    closed: bool,
}

/// Whose names count for a request, a client's or those of a frame, and when it is too late to begin.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Whose<'a> {
    pub(super) client: Option<&'a str>,
    pub(super) frame: Option<usize>,
    /// In seconds of the clock that all processes share.
    pub(super) begin_by: Option<f64>,
}

/// What comes back for one request.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) id: u64,
    frames: mpsc::Receiver<Frame>,
    shared: Arc<LinkState>,
}

impl Answers {
    /// The next frame, up to `done`; then, or if the connection ends before, how it ended.
    pub(super) async fn next(&mut self) -> Result<Frame, End> {
        match self.frames.recv().await {
            Some(frame) => Ok(frame),
            None => Err(self.shared.end.get().cloned().unwrap_or(End::Left)),
        }
    }
}

impl Link {
    /// Connects, and checks that the process on the other side is the one the registry names. Waits for its greeting.
    pub(super) async fn open(entry: &Entry, target: String) -> Result<Arc<Self>, Error> {
        let gone = || Error::Gone { target: target.clone() };
        let failed = |source: io::Error| Error::Connect { target: target.clone(), source };
        let held = Held::open(entry.process()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => gone(),
            _ => failed(error),
        })?;
        if entry.wire != WIRE_VERSION {
            return Err(Error::Version { target, theirs: entry.wire });
        }
        let stream = UnixStream::connect(&entry.endpoint).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotServed { target: target.clone() },
            _ => failed(error),
        })?;
        let peer = stream.peer_cred().map_err(failed)?.pid();
        if peer != Some(entry.pid) {
            return Err(Error::Impostor { target, peer });
        }
        let (mut reader, writer) = stream.into_split();
        let mut inbox = wire::Inbox::default();
        let hello = match next_frame(&mut reader, &mut inbox).await {
            Ok(Some((hello, _))) if hello.ev == Event::Hello => hello,
            Ok(Some(_)) => return Err(failed(io::Error::other("it did not introduce itself"))),
            Ok(None) => return Err(Error::NotServed { target }),
            Err(error) => return Err(failed(error)),
        };
        if hello.wire != Some(WIRE_VERSION) {
            return Err(Error::Version { target, theirs: hello.wire.unwrap_or_default() });
        }
        let pending = Mutex::new(Pending { last_id: 0, waiting: Some(HashMap::new()), closed: false });
        let shared = Arc::new(LinkState { held, pending, end: OnceLock::new(), over: CancellationToken::new() });
        let (requests, queued) = mpsc::channel(QUEUED);
        pylair_os::event_loop::spawn(write(writer, queued, shared.clone()));
        pylair_os::event_loop::spawn(read(reader, inbox, shared.clone()));
        Ok(Arc::new(Self { requests, shared }))
    }

    pub(super) fn is_over(&self) -> bool {
        self.requests.is_closed() || self.shared.is_closed()
    }

    /// Returns when the connection has ended.
    pub(super) async fn ended(&self) -> End {
        self.shared.over.cancelled().await;
        self.shared.end.get().cloned().unwrap_or(End::Left)
    }

    /// Sends a request. `None` when the connection had ended before, and nothing was sent.
    pub(super) async fn request(&self, op: Op, whose: Whose<'_>, blob: &[u8]) -> Option<Answers> {
        let permit = self.requests.reserve().await.ok()?;
        let (sender, frames) = mpsc::channel(UNREAD);
        let id = {
            let mut pending = self.shared.pending.lock().expect("no panic while locked");
            if pending.closed {
                return None;
            }
            pending.last_id += 1;
            let id = pending.last_id;
            let waiting = pending.waiting.as_mut()?;
            waiting.insert(id, sender);
            id
        };
        let mut frame = Vec::with_capacity(256 + blob.len());
        let client = whose.client.map(str::to_owned);
        let Whose { frame: of, begin_by, .. } = whose;
        wire::encode(Request { ch: CHANNEL, id, op, client, frame: of, begin_by, blob: 0 }, blob, &mut frame);
        permit.send(frame);
        Some(Answers { id, frames, shared: self.shared.clone() })
    }

    /// Too many requests have no answer yet.
    pub(super) fn is_full(&self) -> bool {
        self.shared.waiting() >= MAX_PENDING
    }
}

impl LinkState {
    fn waiting(&self) -> usize {
        let pending = self.pending.lock().expect("no panic while locked");
        pending.waiting.as_ref().map_or(0, HashMap::len)
    }

    fn is_closed(&self) -> bool {
        self.over.is_cancelled() || self.pending.lock().expect("no panic while locked").closed
    }

    /// Nobody waits any more; whoever did reads the end.
    fn over(&self, end: End) {
        let _already = self.end.set(end);
        self.pending.lock().expect("no panic while locked").waiting = None;
        self.over.cancel();
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queued: mpsc::Receiver<Vec<u8>>, shared: Arc<LinkState>) {
    loop {
        let next = tokio::select! {
            next = tokio::time::timeout(IDLE, queued.recv()) => next,
            () = shared.over.cancelled() => return,
        };
        match next {
            Ok(Some(frame)) => {
                if let Err(error) = writer.write_all(&frame).await {
                    // Its reader knows more.
                    tracing::debug!(%error, "an app did not take a request");
                    return;
                }
            }
            // Everybody has let go of the link.
            Ok(None) => break,
            Err(_) if shared.waiting() > 0 => {}
            Err(_) => {
                // From here on senders open another one; what they have sent until now still goes.
                queued.close();
                if queued.is_empty() {
                    let _already = shared.end.set(End::Idle);
                    break;
                }
            }
        }
    }
    // The reader ends when the other side has heard of it.
    let _gone = writer.shutdown().await;
}

async fn read(mut reader: OwnedReadHalf, mut inbox: wire::Inbox, shared: Arc<LinkState>) {
    let end = loop {
        let frame = tokio::select! {
            biased;
            frame = next_frame(&mut reader, &mut inbox) => frame,
            () = shared.held.ended() => {
                // A child of its may hold the socket open; what the process itself said is there already.
                let rest = async {
                    while let Ok(Some((reply, blob))) = next_frame(&mut reader, &mut inbox).await {
                        shared.pass_on(reply, blob).await;
                    }
                };
                let _held_open = tokio::time::timeout(END_GRACE, rest).await;
                break Some(End::Died(shared.held.how()));
            }
        };
        match frame {
            Ok(Some((reply, blob))) => shared.pass_on(reply, blob).await,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => break Some(End::Garbage(error.to_string())),
            Ok(None) | Err(_) => break None,
        }
    };
    drop(reader);
    shared.pending.lock().expect("no panic while locked").closed = true;
    let end = match end {
        Some(end) => end,
        None if shared.end.get().is_some() => End::Idle,
        None => match tokio::time::timeout(END_GRACE, shared.held.ended()).await {
            Ok(()) => End::Died(shared.held.how()),
            Err(_) => End::Left,
        },
    };
    shared.over(end);
}

impl LinkState {
    async fn pass_on(&self, reply: Reply, blob: Vec<u8>) {
        let sender = {
            let mut pending = self.pending.lock().expect("no panic while locked");
            let Some(waiting) = &mut pending.waiting else { return };
            match reply.ev {
                Event::Done => waiting.remove(&reply.id),
                _ => waiting.get(&reply.id).cloned(),
            }
        };
        if let Some(sender) = sender {
            // One who has given up is not told.
            let _gave_up = sender.send((reply, blob)).await;
        }
    }
}

/// None at the end. What is no frame is `InvalidData`.
async fn next_frame(reader: &mut OwnedReadHalf, inbox: &mut wire::Inbox) -> io::Result<Option<Frame>> {
    loop {
        let frame = apart(inbox.weight(), || wire::decode::<Reply>(inbox));
        let frame = frame.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(frame) = frame {
            return Ok(Some(frame));
        }
        if reader.read_buf(&mut inbox.bytes).await? == 0 {
            return Ok(None);
        }
    }
}
