//! `pylair mcp`: the bridge an MCP client starts, or the whole server in this process with `--standalone`.
//!
//! The bridge hands its stdio to the daemon and then only waits, so it stays small: no runtime, no parsing. When the daemon dies under it,
//! it answers what was pending, starts another and hands over again.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags};
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, Failure, Surroundings, complain, log_to_stderr};
use crate::{cli::McpArgs, config::Flags, lifecycle};
use pylair_core::{
    caller::{Caller, DefaultSession, Door, Scope},
    daemon::VERSION,
    order::{Sender, SenderId},
    settings::Introduction,
};
use pylair_keeper::datagram;
use pylair_mcp::{
    bridge::{Answer, Hello, Resumed, slate},
    server::{ClientSide, Server, serve_stdio},
    stdio::{Origin, Stdio},
    tasks::Tasks,
    tools::Selection,
};
use pylair_os::{inherited, process::Stat};
use pylair_text::plain::with_causes;

/// Daemons that die faster than this, one after the other, are not started again.
const QUICK_DEATH: Duration = Duration::from_secs(5);
const MAX_QUICK_DEATHS: u32 = 3;
/// Maximum number of further attempts to hand the stdio to a daemon that ended meanwhile.
const MAX_OFFERS: u32 = 5;
/// Time for a daemon that has closed its connections to be gone.
const DYING_GRACE: Duration = Duration::from_secs(3);

pub fn mcp(args: &McpArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let flags = Flags { tools: args.tools.tools.clone(), readonly: args.tools.readonly, ..Flags::default() };
    let introduction = surroundings.introduction(&flags)?;
    let settings = &introduction.settings;
    // Said here and not only by the daemon, so that a typing mistake is told before anything is started.
    let selection = Selection::parse(settings.tools.as_deref(), settings.readonly, Door::Bridge)
        .map_err(|message| Failure::new(message, "see `pylair mcp --help`"))?;
    if args.standalone {
        return standalone(selection, &flags, surroundings);
    }
    bridge(introduction, surroundings)
}

fn bridge(introduction: Introduction, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let PassableStdio { input, output, copier } = passable_stdio()?;
    let slate_file = slate::create()?;
    let slate_reader = File::from(slate_file.try_clone()?);
    let mut hello = Hello {
        version: VERSION.to_owned(),
        cwd: surroundings.cwd.clone(),
        env: surroundings.env.clone(),
        introduction: Some(introduction),
        resumed: None,
    };
    let mut quick_deaths = 0;
    loop {
        let since = Instant::now();
        let control = hand_over(surroundings, &hello, [input.as_fd(), output.as_fd(), slate_file.as_fd()])?;
        let daemon = peer(&control);
        let (what, kind) = match wait(&control)? {
            Some(Answer::Over) => {
                drop((input, output));
                finish_copying(copier);
                return Ok(Exit::Ok);
            }
            Some(Answer::Refused { message, hint }) => return Err(Failure::new(message, hint)),
            Some(Answer::Leaving { reason }) => (reason, "daemon_stopped"),
            Some(Answer::Taken) | None if daemon.as_ref().is_some_and(is_alive) => {
                ("the pylair daemon let go of this client".to_owned(), "client_dropped")
            }
            Some(Answer::Taken) | None => ("the pylair daemon died".to_owned(), "daemon_died"),
        };
        quick_deaths = if since.elapsed() < QUICK_DEATH { quick_deaths + 1 } else { 1 };
        let found = slate::read_and_wipe(&slate_reader)?;
        answer_pending(output.as_fd(), &found, &what, kind)?;
        // Whoever stopped it may want it to stay so: the next one is started when the client next says something.
        if client_is_gone(input.as_fd())? {
            return Ok(Exit::Ok);
        }
        if quick_deaths > MAX_QUICK_DEATHS {
            let message = format!("{what}, again and again within seconds");
            return Err(Failure::new(message, format!("see {}", surroundings.places.log().display())));
        }
        let next = if kind == "client_dropped" { "and took it again" } else { "and a new one was started" };
        hello.resumed = Some(Resumed {
            initialize: found.initialize,
            mid_line: found.mid_line,
            note: format!("{what} {next}: {}", what_is_lost(kind)),
        });
    }
}

/// Gives the stdio to a daemon, starting one if none is running, and returns the connection to it.
fn hand_over(surroundings: &Surroundings, hello: &Hello, stdio_and_slate: [BorrowedFd; 3]) -> Result<OwnedFd, Failure> {
    let memory = hello.to_memory_file()?;
    let address = rustix::net::SocketAddrUnix::new(surroundings.places.bridge_socket()).map_err(io::Error::from)?;
    for attempt in 0.. {
        lifecycle::ensure_running(&surroundings.places, &surroundings.program, &surroundings.env)?;
        match offer(&address, &memory, stdio_and_slate) {
            Ok(control) => return Ok(control),
            Err(error) if attempt == MAX_OFFERS => return Err(error.into()),
            // The daemon ended after it was found. Its socket accepts connections until the kernel has closed it, so
            // sending may fail where connecting did not.
            Err(_) => {}
        }
    }
    unreachable!("the loop returns")
}

/// Connects to a daemon and sends it the hello, the stdio and the slate in one datagram: it gets all of them or nothing.
fn offer(
    address: &rustix::net::SocketAddrUnix,
    hello: &OwnedFd,
    [input, output, slate]: [BorrowedFd; 3],
) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&socket, address)?;
    datagram::send_datagram(&socket, b"{}", &[hello.as_fd(), input, output, slate])?;
    Ok(socket)
}

/// The daemon at the other end.
fn peer(control: &OwnedFd) -> Option<OwnedFd> {
    let daemon = rustix::net::sockopt::socket_peercred(control).ok()?;
    rustix::process::pidfd_open(daemon.pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Whether the daemon outlived the connection to it. One that dies closes its connections a moment before it is gone.
fn is_alive(daemon: &OwnedFd) -> bool {
    let mut poll = [PollFd::new(daemon, PollFlags::IN)];
    let Ok(grace) = rustix::event::Timespec::try_from(DYING_GRACE) else { return false };
    matches!(rustix::event::poll(&mut poll, Some(&grace)), Ok(0))
}

/// What the daemon says last. `None` when it closed the connection or died.
fn wait(control: &OwnedFd) -> Result<Option<Answer>, Failure> {
    let mut buffer = [0; 4096];
    loop {
        match datagram::recv_datagram(control, &mut buffer) {
            Ok(datagram) => match serde_json::from_slice(datagram.bytes) {
                Ok(Answer::Taken) => {}
                Ok(answer) => return Ok(Some(answer)),
                Err(error) => {
                    return Err(Failure::new(format!("the daemon said something else: {error}"), "run `pylair stop`"));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A daemon that leaves saves its sessions; one that dies cannot.
fn what_is_lost(kind: &str) -> &'static str {
    match kind {
        "daemon_died" => "all sessions and their variables are gone",
        "client_dropped" => "sessions are as they were; what was asked may have been done",
        _ => "sessions come back when they are used, with the variables that could be saved",
    }
}

/// Tells the client that its unanswered requests will stay so.
fn answer_pending(output: BorrowedFd, found: &slate::SlateContents, what: &str, kind: &str) -> Result<(), Failure> {
    use std::fmt::Write;
    let mut text = String::new();
    if found.was_writing {
        // Ends the line the daemon could not; the client drops it as no JSON.
        text.push('\n');
    }
    for id in &found.unanswered {
        let hint = if kind == "client_dropped" {
            "look at the session, then call again"
        } else {
            "call again: a new daemon is started"
        };
        let error = serde_json::json!({
            "code": -32603,
            "message": format!("{what} while this was running: {}", what_is_lost(kind)),
            "data": {"kind": kind, "hint": hint},
        });
        let _infallible = writeln!(text, "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}");
    }
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(output, rest) {
            Ok(count) => rest = &rest[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut poll = [PollFd::new(&output, PollFlags::OUT)];
                rustix::event::poll(&mut poll, None).map_err(io::Error::from)?;
            }
            // The client has gone too.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Waits until the client says something, or has gone.
fn client_is_gone(input: BorrowedFd) -> Result<bool, Failure> {
    let mut poll = [PollFd::new(&input, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut poll, None) {
            Ok(_) => return Ok(!poll[0].revents().contains(PollFlags::IN)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}

/// Our stdin and stdout if the daemon can use them as they are; else ends of a socket that we copy to and from.
struct PassableStdio {
    input: OwnedFd,
    output: OwnedFd,
    /// Copies to our stdout until all other ends are closed.
    copier: Option<JoinHandle<()>>,
}

fn passable_stdio() -> Result<PassableStdio, Failure> {
    let input = rustix::stdio::stdin().try_clone_to_owned()?;
    let output = rustix::stdio::stdout().try_clone_to_owned()?;
    if is_passable(&input) && is_passable(&output) {
        return Ok(PassableStdio { input, output, copier: None });
    }
    let (ours, theirs) = UnixStream::pair()?;
    let (mut from_us, mut to_us) = (ours.try_clone()?, ours);
    std::thread::spawn(move || {
        let _ended = copy(&mut File::from(input), &mut from_us);
        // The daemon sees the end of the client's input.
        let _closed = from_us.shutdown(std::net::Shutdown::Write);
    });
    let copier = std::thread::spawn(move || {
        let _ended = copy(&mut to_us, &mut File::from(output));
    });
    Ok(PassableStdio { input: theirs.try_clone()?.into(), output: theirs.into(), copier: Some(copier) })
}

/// The last answers may still be on their way.
fn finish_copying(copier: Option<JoinHandle<()>>) {
    if let Some(copier) = copier {
        // It panics on nothing, and what it could not write nobody reads.
        let _ended = copier.join();
    }
}

/// Pipes and sockets can be read without blocking by somebody else; regular files and terminals cannot.
fn is_passable(descriptor: &OwnedFd) -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::fstat(descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => to.write_all(&buffer[..count])?,
        }
    }
}

/// The whole server in this process, with directories of its own below the data directory.
fn standalone(selection: Selection, flags: &Flags, surroundings: &Surroundings) -> Result<Exit, Failure> {
    log_to_stderr("warn,rmcp=error");
    inherited::replace();
    inherited::Descriptors::hide()?.close();
    let PassableStdio { input, output, copier } = passable_stdio()?;
    remove_leftovers(&surroundings.places.data);
    let mut places = surroundings.places.clone();
    places.data = places.data.join(format!("standalone-{}", std::process::id()));
    places.runtime.clone_from(&places.data);
    let data = places.data.clone();
    let (config, http) = surroundings.configs(flags)?;
    let caller_env = Arc::new(surroundings.env.clone());
    let cwd = surroundings.cwd.clone();
    let result = super::daemon::runtime()?.block_on(async {
        let (daemon, _) = lifecycle::open_daemon(config, &http, places, &surroundings.program)
            .await
            .map_err(|error| Failure::new(with_causes(&error), "set PYLAIR_HOME to a directory you can write to"))?;
        let gone = Arc::new(AtomicBool::new(false));
        let caller = Caller {
            owner: daemon.owner().clone(),
            client: "client".to_owned(),
            door: Door::Bridge,
            scopes: vec![Scope::Admin],
            cwd,
            env: caller_env,
            default_session: DefaultSession::Main,
            sender: Sender::new(SenderId::new_bridge()),
            credential: None,
            floor: daemon.config.sandbox.floor(),
            settings: Arc::new(daemon.config.caller.clone()),
            program: None,
        };
        let stop = daemon.shutdown.clone();
        let left = caller.sender.left.clone();
        let origin =
            Origin { slate: None, resumed: false, mid_line: false, gone: gone.clone(), stop: stop.clone(), left };
        let transport = Stdio::new(input, output, origin)?;
        let server = Server::new(
            daemon.clone(),
            Arc::new(Tasks::default()),
            ClientSide::Stdio { caller, gone },
            selection,
            Vec::new(),
        );
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            () = serve_stdio(server, transport, None, stop.clone()) => {}
            _ = terminate.recv() => stop.cancel(),
            _ = interrupt.recv() => stop.cancel(),
            _ = hangup.recv() => stop.cancel(),
        }
        daemon.close_for_good("its client has gone").await;
        Ok(Exit::Ok)
    });
    finish_copying(copier);
    if let Err(error) = std::fs::remove_dir_all(&data) {
        complain(&Failure::new(format!("cannot remove `{}`: {error}", data.display()), "remove it by hand"));
    }
    result
}

/// Removes the directories of standalone servers that were killed.
fn remove_leftovers(data: &Path) {
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.strip_prefix("standalone-")?.parse::<i32>().ok());
        if pid.is_some_and(|pid| Stat::read(pid).is_none()) {
            // Another standalone server may be removing it as well.
            let _gone = std::fs::remove_dir_all(entry.path());
        }
    }
}
