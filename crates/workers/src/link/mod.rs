//! A link to one local worker: its pipes, its control socket, its keeper and its frozen copies.
//!
//! Called by `session`, which sees requests, replies, output and checkpoint ids, never a descriptor or a pid. Processes
//! are known by the credentials the kernel attaches to their first datagram and addressed by pidfd.

mod copies;
mod ends;
mod probes;

use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use rustix::{io::Errno, process::Signal};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::{
    burst::Burst,
    control::{ANSWER_TIMEOUT, Control, Datagram},
    nursery,
    template::{self, Key, Template, Wanted},
};
use pylair_keeper::{Order, Report, pid_here, pid_within};
use pylair_os::exit::{Exits, send_signal};
use pylair_os::{
    descriptor::{readable, until_writable},
    event_loop::apart,
};
use pylair_output::Stream;
use pylair_probe::wire::{self, Op, Reply, Request, Start};
use pylair_python::Interpreter;
use pylair_sandbox::{
    Terms,
    cgroup::Group,
    confine::{Confinement, SessionDirectory},
    processes::Process,
    proxy::Proxy,
};

pub use copies::Restored;
use copies::{Frozen, first_words};
use ends::Ends;
pub use probes::Probes;

/// A local worker has a link of its own.
const CHANNEL: u32 = 1;
const READ_BYTES: usize = 64 << 10;
/// How long a keeper may take to end what is below it.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
const EXIT_STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The forced-unwind signal of the probe, SIGRTMIN+1 as Python and glibc count it.
const FORCE_OFFSET: i32 = 1;
/// The signal after which the probe looks for a question on its control socket.
const PEEK_OFFSET: i32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Template(#[from] template::Error),
    #[error(transparent)]
    Nursery(#[from] nursery::Error),
    #[error("descriptors for a worker could not be made")]
    Descriptors(#[source] io::Error),
    #[error("the worker did not start: {message}")]
    Start { message: String },
    #[error("the worker could not be reached: {message}")]
    Unreachable { message: String },
    #[error("the checkpoint `{0}` is gone")]
    NoCheckpoint(String),
}

impl Error {
    /// A nursery or a template was gone when it was asked, before there was a worker.
    fn is_of_helper(&self) -> bool {
        matches!(self, Self::Nursery(nursery::Error::Gone(_)) | Self::Template(template::Error::Fork { .. }))
    }
}

/// What happened on a link.
#[derive(Debug)]
pub enum LinkEvent {
    Reply(Box<Reply>, Vec<u8>),
    /// The first bytes of `Link::chunk` are output.
    Output(Stream, usize),
    /// An answer to [`Link::peek`].
    Peeked(u64, Result<serde_json::Value, Refusal>),
    /// The worker ended, by itself or because of what it or somebody did.
    Died {
        why: Option<String>,
    },
}

/// Why a probe did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub message: String,
    pub kind: Option<String>,
    pub hint: Option<String>,
}

impl Refusal {
    /// Words for programs that probes use; a worker cannot invent others.
    const KINDS: &[&str] = &[
        "bad_path",
        "bad_request",
        "busy",
        "connection_lost",
        "failed",
        "interrupted",
        "loop_not_running",
        "needs_code",
        "no_screenshot",
        "no_source",
        "no_such_attribute",
        "no_such_file",
        "no_such_item",
        "no_such_name",
        "not_a_file",
        "not_begun",
        "not_found",
        "not_interruptible",
        "not_readable",
        "not_text",
        "readonly",
        "several_loops",
        "stopped",
        "too_large",
    ];

    pub fn known_kind(&self) -> &'static str {
        let kind = self.kind.as_deref().unwrap_or_default();
        Self::KINDS.iter().find(|known| **known == kind).copied().unwrap_or("refused")
    }
}

/// One process, as the kernel named it.
#[derive(Debug)]
struct Worker {
    pid: i32,
    /// The pid as the keeper sees it.
    kept_pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    /// `/proc/PID/statm`, kept open: opening it costs more than reading it, and every cell reads it.
    statm: std::fs::File,
}

#[derive(Debug)]
pub struct Link {
    requests: OwnedFd,
    replies: AsyncFd<OwnedFd>,
    stdout: AsyncFd<OwnedFd>,
    stderr: AsyncFd<OwnedFd>,
    dump: OwnedFd,
    control: Control,
    keeper: Control,
    keeper_pidfd: Option<AsyncFd<OwnedFd>>,
    keeper_exits: Exits,
    swept: VecDeque<usize>,
    unanswered_signals: usize,
    expected_checkpoint: Option<String>,
    /// The way to a frozen copy that has not spoken yet.
    offered: Option<(String, Control)>,
    peeked: VecDeque<(u64, Result<serde_json::Value, Refusal>)>,
    template: Arc<Template>,
    worker: Worker,
    frozen: Vec<Frozen>,
    inbox: wire::Inbox,
    chunk: Vec<u8>,
    next_id: u64,
    confined: bool,
    family: Arc<Family>,
    dead: bool,
    open: Open,
    burst: Burst,
}

/// How much of a sandbox there is to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walls {
    All,
    /// No namespaces: what a process can do to itself.
    Bare,
}

/// What all links share whose workers are below one keeper.
#[derive(Debug, Default)]
pub struct Family {
    proxy: Option<Proxy>,
    /// What the worker found when it tried the walls, before it ran anybody's code.
    trial: Option<serde_json::Value>,
    group: std::sync::OnceLock<Arc<Group>>,
}

impl Family {
    /// The group that its processes are in, for as long as there are any.
    pub fn hold_group(&self, group: Arc<Group>) {
        let _once = self.group.set(group);
    }
}

/// Which pipes have not ended. One that has is ready for ever, so it must not be waited on again.
#[derive(Debug)]
struct Open {
    replies: bool,
    stdout: bool,
    stderr: bool,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct ControlMessage {
    hello: Option<u32>,
    wire: Option<u32>,
    checkpoint: Option<String>,
    frozen: Option<String>,
    resumed: Option<String>,
    lost: Vec<String>,
    error: Option<String>,
    peek: Option<u64>,
    answer: Option<serde_json::Value>,
    refused: Option<String>,
    kind: Option<String>,
    hint: Option<String>,
    trial: Option<serde_json::Value>,
}

impl Link {
    /// Forks a worker, asks it to start and waits until it has said who it is. The answer to `start`, with the id
    /// [`Link::START`], is still to come.
    pub async fn open(
        probes: &Probes,
        wanted: &Wanted<'_>,
        (terms, walls): (&Terms, Walls),
        place: SessionDirectory<'_>,
        start: Start,
    ) -> Result<Self, Error> {
        Self::make(probes, &Key::new(wanted), wanted.interpreter, (terms, walls), place, &start_frame(start)).await
    }

    /// A confined worker that waits for its session to [`Link::begin`].
    pub async fn ahead(
        probes: &Probes,
        key: &Key,
        interpreter: &Interpreter,
        terms: &Terms,
        place: SessionDirectory<'_>,
    ) -> Result<Self, Error> {
        Self::make(probes, key, interpreter, (terms, Walls::All), place, &[]).await
    }

    /// Asks a worker that was made ahead to start.
    pub async fn begin(&self, start: Start) -> Result<(), Error> {
        self.write(&start_frame(start)).await
    }

    /// Whether a worker that was made ahead is alive, and what a new one would be.
    pub fn is_usable(&self, probes: &Probes, key: &Key) -> bool {
        probes.templates.is_current(key, &self.template) && self.is_alive()
    }

    /// A helper of ours that somebody killed is no failure of the session's: another one is asked, once.
    async fn make(
        probes: &Probes,
        key: &Key,
        interpreter: &Interpreter,
        confined: (&Terms, Walls),
        place: SessionDirectory<'_>,
        first: &[u8],
    ) -> Result<Self, Error> {
        match Self::try_to_make(probes, key, interpreter, confined, place, first).await {
            Err(error) if error.is_of_helper() => {
                tracing::warn!(%error, "a helper was gone, another one is started");
                Self::try_to_make(probes, key, interpreter, confined, place, first).await
            }
            made => made,
        }
    }

    async fn try_to_make(
        probes: &Probes,
        key: &Key,
        interpreter: &Interpreter,
        (terms, walls): (&Terms, Walls),
        place: SessionDirectory<'_>,
        first: &[u8],
    ) -> Result<Self, Error> {
        let confinement = Confinement::new(terms, interpreter, place, probes.trial());
        let nursery = match &confinement {
            Some(_) if walls == Walls::All => Some(probes.nursery().await?),
            _ => None,
        };
        if let (Some(confinement), Some(nursery), true) = (&confinement, &nursery, key.is_inside()) {
            let (request, program) = (confinement.keeper_request(), confinement.program_limits());
            let (template, keeper) = Template::start_inside(key, nursery, request, program).await?;
            return Self::fork(template, Some((confinement, terms, keeper)), None, first).await;
        }
        let template = probes.templates.get(key, nursery.as_ref()).await?;
        let result = if let (Some(confinement), Some(nursery)) = (&confinement, &nursery) {
            let keeper = nursery.keeper(&confinement.keeper_request(), &[]).await?;
            Self::fork(template, Some((confinement, terms, keeper)), None, first).await
        } else if let Some(confinement) = confinement {
            let bare = tokio::task::spawn_blocking(move || confinement.bare().bare_message()).await;
            let bare = bare.map_err(|error| Error::Descriptors(io::Error::other(error)))?;
            Self::fork(template, None, Some(bare), first).await
        } else {
            let link = match probes.take_spare(key, &template) {
                Some(spare) if spare.write(first).await.is_ok() => Ok(spare),
                // There is none, or it ended just now, before anything of the session's had run in it.
                _ => Self::fork(template.clone(), None, None, first).await,
            };
            probes.make_spare(key.clone(), template);
            link
        };
        if result.is_err() {
            // Whatever went wrong, the next session shall not meet the same template.
            probes.templates.forget(key);
        }
        result
    }

    async fn fork(
        template: Arc<Template>,
        confined: Option<(&Confinement, &Terms, nursery::ConfinedKeeper)>,
        bare: Option<(serde_json::Value, Option<OwnedFd>)>,
        first: &[u8],
    ) -> Result<Self, Error> {
        let (ours, theirs) = Ends::new()?;
        let mut passed = theirs.each();
        let is_confined = confined.is_some();
        let (keeper, mut failed) = if let Some((confinement, _, keeper)) = &confined {
            let mut confine = confinement.confine_message(keeper.ruleset.is_some());
            if template.is_inside() {
                confine["inside"] = true.into();
            } else {
                passed.push(keeper.pidfd.as_fd());
                passed.extend(keeper.ruleset.as_ref().map(AsFd::as_fd));
            }
            let failed = template.fork(Some(&confine), &passed)?;
            (None, failed)
        } else {
            let (keeper, keeper_end) = Control::pair().map_err(Error::Descriptors)?;
            passed.push(keeper_end.as_fd());
            let (confine, ruleset) = bare.as_ref().map(|(confine, ruleset)| (confine, ruleset.as_ref())).unzip();
            passed.extend(ruleset.flatten().map(AsFd::as_fd));
            let failed = template.fork(confine, &passed)?;
            (Some(keeper), failed)
        };
        let mut keeper_pidfd = None;
        let mut family = Family::default();
        let keeper = match (keeper, confined) {
            (Some(keeper), _) => keeper,
            (None, Some((_, terms, keeper))) => {
                let listener = keeper.proxy.map(|listener| Proxy::start(listener, terms.allow_net.clone()));
                family.proxy = listener.transpose().map_err(Error::Descriptors)?;
                keeper_pidfd = Some(readable(keeper.pidfd).map_err(Error::Descriptors)?);
                keeper.control
            }
            (None, None) => unreachable!("a keeper was made or passed"),
        };
        drop(theirs);
        // Before it is there to read it, so that nobody waits for the other: a round trip less. What does not fit follows.
        let written = if first.is_empty() { 0 } else { rustix::io::write(&ours.requests, first).unwrap_or(0) };
        let start = |message: String| Error::Start { message };
        let hello = tokio::select! {
            hello = ours.control.receive_message::<ControlMessage>() => hello,
            Ok(message) = &mut failed => return Err(start(message)),
        };
        let (message, mut datagram) = hello.map_err(|error| start(error.to_string()))?;
        if let Some(error) = message.error {
            return Err(start(error));
        }
        if message.hello.is_none() || message.wire != Some(wire::WIRE_VERSION) {
            return Err(start(format!(
                "it speaks wire version {:?}, this is version {}",
                message.wire,
                wire::WIRE_VERSION
            )));
        }
        let worker = Worker::from_datagram(&mut datagram, is_confined).map_err(|error| start(error.to_string()))?;
        if keeper_pidfd.is_none() {
            keeper_pidfd = keeper_above(worker.pid, template.pid());
        }
        family.trial = message.trial;
        let link = Self::assemble(ours, keeper, keeper_pidfd, template, worker, (is_confined, Arc::new(family)))?;
        link.write(&first[written..]).await?;
        Ok(link)
    }

    fn assemble(
        ends: Ends,
        keeper: Control,
        keeper_pidfd: Option<AsyncFd<OwnedFd>>,
        template: Arc<Template>,
        worker: Worker,
        (confined, family): (bool, Arc<Family>),
    ) -> Result<Self, Error> {
        Ok(Self {
            requests: ends.requests,
            replies: readable(ends.replies).map_err(Error::Descriptors)?,
            stdout: readable(ends.stdout).map_err(Error::Descriptors)?,
            stderr: readable(ends.stderr).map_err(Error::Descriptors)?,
            dump: ends.dump,
            control: ends.control,
            keeper,
            keeper_pidfd,
            keeper_exits: Exits::default(),
            swept: VecDeque::new(),
            unanswered_signals: 0,
            expected_checkpoint: None,
            offered: None,
            peeked: VecDeque::new(),
            template,
            worker,
            frozen: Vec::new(),
            inbox: wire::Inbox::default(),
            chunk: vec![0; READ_BYTES],
            next_id: Self::START + 1,
            confined,
            family,
            dead: false,
            open: Open { replies: true, stdout: true, stderr: true },
            burst: Burst::new(),
        })
    }

    fn is_alive(&self) -> bool {
        let mut poll = [
            rustix::event::PollFd::new(self.worker.pidfd.get_ref(), rustix::event::PollFlags::IN),
            rustix::event::PollFd::new(&self.keeper, rustix::event::PollFlags::empty()),
        ];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(0))
    }

    /// The id of the `start` request every link begins with.
    pub const START: u64 = 1;

    pub fn pid(&self) -> i32 {
        self.worker.pid
    }

    /// Its keeper's pid, if it is known.
    pub fn keeper_pid(&self) -> Option<i32> {
        pid_here(self.keeper_pidfd.as_ref()?.get_ref())
    }

    /// What it shares with those branched off.
    pub fn family(&self) -> std::sync::Weak<Family> {
        Arc::downgrade(&self.family)
    }

    pub fn group(&self) -> Option<Arc<Group>> {
        self.family.group.get().cloned()
    }

    /// The pids of its frozen copies.
    pub fn copies(&self) -> Vec<i32> {
        self.frozen.iter().map(|frozen| frozen.worker.pid).collect()
    }

    /// Connections of the session that were refused since this was last asked.
    pub fn take_refused(&self) -> Vec<String> {
        self.family.proxy.as_ref().map(Proxy::take_refused).unwrap_or_default()
    }

    /// What the worker found when it tried the walls around it.
    pub fn trial(&self) -> Option<&serde_json::Value> {
        self.family.trial.as_ref()
    }

    /// Output of the last `LinkEvent::Output`.
    pub fn chunk(&self, count: usize) -> &[u8] {
        &self.chunk[..count]
    }

    /// Sends a request and returns its id. Small ones go out in one write; a large one waits for the worker to read.
    pub async fn request(&mut self, op: Op, blob: &[u8]) -> Result<u64, Error> {
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::with_capacity(256 + blob.len());
        wire::encode(
            Request { ch: CHANNEL, id, op, client: None, frame: None, begin_by: None, blob: 0 },
            blob,
            &mut frame,
        );
        if self.confined {
            self.worker.wake();
        }
        self.write(&frame).await?;
        Ok(id)
    }

    /// Asks in the middle of a cell. The answer is an event, unless the worker is in C code that does not come back.
    pub fn peek(&self, id: u64, op: &Op) -> Result<(), Error> {
        let message = serde_json::json!({"op": "peek", "peek": id, "request": op});
        let sent = self.control.send(&message, &[]);
        sent.map_err(|error| Error::Unreachable { message: error.to_string() })?;
        self.signal_raw(libc::SIGRTMIN() + PEEK_OFFSET);
        Ok(())
    }

    /// Passes the file that the next `save` or `restore` is about.
    pub fn pass_files(&self, files: &[OwnedFd]) -> Result<(), Error> {
        let passed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let sent = self.control.send(&serde_json::json!({"op": "file"}), &passed);
        sent.map_err(|error| Error::Unreachable { message: error.to_string() })
    }

    async fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let unreachable = |error: io::Error| Error::Unreachable { message: error.to_string() };
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.requests, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    tokio::select! {
                        ready = until_writable(self.requests.as_fd()) => ready.map_err(unreachable)?,
                        _ = self.worker.pidfd.readable() => return Err(Error::Unreachable { message: "it ended".to_owned() }),
                        () = tokio::time::sleep(ANSWER_TIMEOUT) => {
                            return Err(Error::Unreachable { message: "it does not read its requests".to_owned() });
                        }
                    }
                }
                Err(error) => return Err(unreachable(error.into())),
            }
        }
        Ok(())
    }

    /// The next thing that happens. Cancel-safe.
    pub async fn next(&mut self) -> LinkEvent {
        loop {
            if let Some((id, answer)) = self.peeked.pop_front() {
                return LinkEvent::Peeked(id, answer);
            }
            match apart(self.inbox.weight(), || wire::decode::<Reply>(&mut self.inbox)) {
                Ok(Some((reply, blob))) => return LinkEvent::Reply(Box::new(reply), blob),
                Ok(None) => {}
                Err(error) => {
                    self.inbox.clear();
                    self.kill();
                    return LinkEvent::Died { why: Some(format!("it broke the wire: {error}")) };
                }
            }
            let pause = async {
                match self.burst.pause_until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            let reads_output = self.burst.pause_until.is_none();
            tokio::select! {
                biased;
                ready = self.replies.readable(), if self.open.replies => match ready {
                    Ok(mut guard) => match read_into(self.replies.as_fd(), &mut self.inbox.bytes) {
                        Err(Errno::AGAIN) => guard.clear_ready(),
                        Ok(0) => self.open.replies = false,
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(_) => self.open.replies = false,
                    },
                    Err(_) => self.open.replies = false,
                },
                () = pause => self.burst.pause_until = None,
                ready = self.stdout.readable(), if self.open.stdout && reads_output => {
                    if let Some(count) = read_output(ready, &self.stdout, &mut self.chunk, &mut self.open.stdout) {
                        self.burst.note(Stream::Stdout, count, READ_BYTES);
                        return LinkEvent::Output(Stream::Stdout, count);
                    }
                }
                ready = self.stderr.readable(), if self.open.stderr && reads_output => {
                    if let Some(count) = read_output(ready, &self.stderr, &mut self.chunk, &mut self.open.stderr) {
                        self.burst.note(Stream::Stderr, count, READ_BYTES);
                        return LinkEvent::Output(Stream::Stderr, count);
                    }
                }
                datagram = self.keeper.receive() => match datagram {
                    Ok(mut datagram) if !datagram.bytes.is_empty() => self.keeper_said(&mut datagram),
                    // Without its keeper nothing holds the session together: what is left of it ends.
                    _ => {
                        self.kill();
                        self.frozen.clear();
                        self.dead = true;
                        return LinkEvent::Died { why: Some("its keeper was gone".to_owned()) };
                    }
                },
                datagram = self.control.receive(), if !self.dead => match datagram {
                    Ok(datagram) if !datagram.bytes.is_empty() => self.control_said(datagram),
                    _ => self.dead = true,
                },
                datagram = first_words(self.offered.as_ref()) => self.copy_said(datagram),
                _ = self.worker.pidfd.readable() => {
                    self.dead = true;
                    return LinkEvent::Died { why: None };
                }
            }
        }
    }

    fn keeper_said(&mut self, datagram: &mut Datagram) {
        match Report::parse(&datagram.bytes) {
            Some(Report::Ready) => {
                // By its credentials, which are better than being somebody's parent.
                if let Ok(pidfd) = datagram.sender().and_then(|(_, pidfd)| readable(pidfd)) {
                    self.keeper_pidfd = Some(pidfd);
                }
            }
            Some(Report::Exit { pid, status }) => self.keeper_exits.record(pid, status),
            Some(Report::Swept(count)) => self.swept.push_back(count),
            Some(Report::Signalled(_)) => self.unanswered_signals = self.unanswered_signals.saturating_sub(1),
            Some(Report::Failed(why)) => tracing::warn!(why, "a keeper failed"),
            None => tracing::warn!("a keeper said something of no known kind"),
        }
    }

    /// Output that is in the pipes now, without waiting for more.
    pub fn drain(&mut self, mut take: impl FnMut(Stream, &[u8])) {
        for (stream, descriptor) in [(Stream::Stdout, &self.stdout), (Stream::Stderr, &self.stderr)] {
            // As much as there is at this moment: a thread that prints forever must not keep us here.
            let mut left = rustix::io::ioctl_fionread(descriptor.get_ref()).unwrap_or(0);
            while left > 0 {
                let Ok(count @ 1..) = rustix::io::read(descriptor.get_ref(), &mut self.chunk) else { break };
                take(stream, &self.chunk[..count]);
                left = left.saturating_sub(count as u64);
            }
        }
    }

    /// Asks for the Python stacks of all threads; they arrive on the dump pipe.
    pub fn ask_for_stacks(&self) {
        self.signal(Signal::USR1);
    }

    /// What the dump pipe holds now.
    pub fn take_stacks(&self) -> String {
        let mut bytes = Vec::new();
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = rustix::io::read(&self.dump, &mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
            if bytes.len() > 256 << 10 {
                break;
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Interrupts what the worker itself does, and none of the session's other processes.
    pub fn nudge(&self) {
        self.signal(Signal::INT);
    }

    /// First step of the ladder: the cell's frames get a `KeyboardInterrupt`, its child processes a SIGINT.
    pub fn interrupt(&mut self) {
        self.signal(Signal::INT);
        let frozen = self.frozen.iter().map(|frozen| frozen.worker.kept_pid);
        let except = std::iter::once(self.worker.kept_pid).chain(frozen).collect();
        let order = Order::Signal { signal: Signal::INT.as_raw(), except };
        match self.keeper.send_bytes(order.encode().as_bytes(), &[]) {
            Ok(()) => self.unanswered_signals += 1,
            Err(error) => tracing::debug!(%error, "the keeper could not be asked to interrupt children"),
        }
    }

    /// Waits until an interrupt has reached whom it was meant for, so that it cannot hit children of the next cell.
    pub async fn interrupts_delivered(&mut self) {
        while self.unanswered_signals > 0 {
            match tokio::time::timeout(ANSWER_TIMEOUT, self.keeper.receive()).await {
                Ok(Ok(mut datagram)) => self.keeper_said(&mut datagram),
                // The keeper's death is told by `next`.
                _ => return,
            }
        }
    }

    /// Second step: every line of the cell raises until it is gone.
    pub fn force(&self) {
        self.signal_raw(libc::SIGRTMIN() + FORCE_OFFSET);
    }

    /// Last step.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        self.signal_raw(signal.as_raw());
    }

    fn signal_raw(&self, signal: i32) {
        send_signal(self.worker.pidfd.get_ref(), signal);
    }

    /// Waits for the worker to end.
    async fn ended(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.worker.pidfd.readable()).await.is_err() {
            tracing::warn!(pid = self.worker.pid, "a killed worker did not end");
        }
    }

    /// The wait status of the worker that ended, from whoever reaped it; `None` when nobody said in time.
    pub async fn exit_status(&mut self) -> Option<i32> {
        let template_exits = self.template.exits().clone();
        let (pid, kept_pid) = (self.worker.pid, self.worker.kept_pid);
        let status = async {
            loop {
                if let Some(status) = self.keeper_exits.take(kept_pid) {
                    return Some(status);
                }
                tokio::select! {
                    status = template_exits.wait(pid) => return Some(status),
                    datagram = self.keeper.receive() => match datagram {
                        Ok(mut datagram) if !datagram.bytes.is_empty() => self.keeper_said(&mut datagram),
                        _ => return None,
                    },
                }
            }
        };
        tokio::time::timeout(EXIT_STATUS_TIMEOUT, status).await.unwrap_or(None)
    }

    /// Ends the session's processes, all of them, and waits until its keeper is gone.
    pub async fn close(self) {
        let Self { keeper, keeper_pidfd, frozen, worker, family, .. } = self;
        drop(frozen);
        // The keeper reads the end of its orders, ends what belongs to this session, and lets go of its end of the socket.
        let ended = async {
            // Either fails only when the keeper is gone, or let go of a socket with an order in it: over as well.
            let _gone = rustix::net::shutdown(&keeper, rustix::net::Shutdown::Write);
            while matches!(keeper.receive().await, Ok(datagram) if !datagram.bytes.is_empty()) {}
        };
        if tokio::time::timeout(CLOSE_GRACE, ended).await.is_ok() {
            return;
        }
        // A keeper that somebody stopped does not see that it is over. When it is killed the kernel or its template ends the rest;
        // but it may hold other sessions too.
        tracing::warn!(pid = worker.pid, "a session's keeper did not end it");
        send_signal(worker.pidfd.get_ref(), libc::SIGKILL);
        let mut gone = &worker.pidfd;
        if let Some(keeper) = keeper_pidfd.as_ref().filter(|_| Arc::strong_count(&family) == 1) {
            send_signal(keeper.get_ref(), libc::SIGKILL);
            gone = keeper;
        }
        if tokio::time::timeout(ANSWER_TIMEOUT, gone.readable()).await.is_err() {
            tracing::warn!(pid = worker.pid, "a session's processes did not end in time");
        }
    }

    /// Resident memory of the worker in MiB.
    pub fn resident_mb(&self) -> Option<f64> {
        let mut buffer = [0; 128];
        let count = self.worker.statm.read_at(&mut buffer, 0).ok()?;
        let text = str::from_utf8(&buffer[..count]).ok()?;
        let pages: f64 = text.split(' ').nth(1)?.parse().ok()?;
        #[expect(clippy::cast_precision_loss, reason = "page sizes are small")]
        Some(pages * rustix::param::page_size() as f64 / f64::from(1 << 20))
    }
}

impl Worker {
    /// Lets it go on if it is stopped: by its own session, or because too many wanted to run.
    fn wake(&self) {
        if Process::read(self.pid).is_some_and(|process| process.is_stopped()) {
            send_signal(self.pidfd.get_ref(), libc::SIGCONT);
        }
    }

    fn from_datagram(datagram: &mut Datagram, confined: bool) -> io::Result<Self> {
        let (pid, pidfd) = datagram.sender()?;
        let kept_pid = if confined { pid_within(&pidfd)? } else { pid };
        let statm = std::fs::File::open(format!("/proc/{pid}/statm"))?;
        Ok(Self { pid, kept_pid, pidfd: readable(pidfd)?, statm })
    }
}

/// The keeper of a worker that was just forked, known by being its parent until it has said who it is. It may be stopped or killed
/// before that, and then the worker's parent is the template, which is not meant.
fn keeper_above(worker: i32, template: Option<i32>) -> Option<AsyncFd<OwnedFd>> {
    let parent = pylair_os::process::Stat::read(worker)?.parent()?;
    if parent <= 1 || Some(parent) == template {
        return None;
    }
    let parent = rustix::process::Pid::from_raw(parent)?;
    readable(rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty()).ok()?).ok()
}

/// Reads output that is ready; `None` when there is none after all.
fn read_output(
    ready: io::Result<AsyncFdReadyGuard<'_, OwnedFd>>,
    pipe: &AsyncFd<OwnedFd>,
    chunk: &mut [u8],
    open: &mut bool,
) -> Option<usize> {
    let Ok(mut guard) = ready else {
        *open = false;
        return None;
    };
    match rustix::io::read(pipe.get_ref(), chunk) {
        Ok(count @ 1..) => return Some(count),
        Err(Errno::AGAIN) => guard.clear_ready(),
        Err(Errno::INTR) => {}
        Ok(_) | Err(_) => *open = false,
    }
    None
}

/// The first request on every link.
fn start_frame(start: Start) -> Vec<u8> {
    let mut frame = Vec::with_capacity(4096);
    let request = Request {
        ch: CHANNEL,
        id: Link::START,
        op: Op::Start(start),
        client: None,
        frame: None,
        begin_by: None,
        blob: 0,
    };
    wire::encode(request, &[], &mut frame);
    frame
}

fn read_into(descriptor: BorrowedFd, buffer: &mut BytesMut) -> rustix::io::Result<usize> {
    buffer.reserve(READ_BYTES);
    let spare = buffer.spare_capacity_mut();
    let (initialised, _) = rustix::io::read(descriptor, spare)?;
    let count = initialised.len();
    // SAFETY: the kernel has just written that many bytes of the spare capacity.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}
