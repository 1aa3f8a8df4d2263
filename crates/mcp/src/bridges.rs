//! Takes over the stdio of MCP clients from their bridges.
//!
//! A bridge connects to a `SOCK_SEQPACKET` socket, sends who it is with its descriptors, and then only waits. The daemon serves the
//! client directly and watches the bridge: when it is killed, the client shall see its pipes close.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::model::InitializeRequestParams;
use tokio_util::sync::CancellationToken;

use super::{
    bridge::{Answer, Hello},
    server::{ClientSide, Server},
    stdio::{Origin, Stdio},
    tasks::Tasks,
    tools::Selection,
};
use pylair_core::{
    caller::{self, Caller, DefaultSession, Door, Program, Scope},
    daemon::{Daemon, Holder, VERSION},
    order::{Sender, SenderId},
    settings::Unheeded,
};
use pylair_os::{descriptor::readable, open_files, process};
use pylair_workers::control::{Control, Datagram};

const CLOSE_SESSIONS: &str = "close sessions or clients, or raise `ulimit -n` where the daemon is started";

/// Listens for bridges until the daemon leaves.
pub async fn listen(daemon: Arc<Daemon>, tasks: Arc<Tasks>, socket: OwnedFd) -> io::Result<()> {
    let socket = readable(socket)?;
    loop {
        let mut guard = tokio::select! {
            ready = socket.readable() => ready?,
            () = daemon.shutdown.cancelled() => return Ok(()),
        };
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        match rustix::net::accept_with(socket.get_ref(), flags) {
            Ok(connection) => {
                pylair_os::event_loop::spawn(serve(daemon.clone(), tasks.clone(), connection));
            }
            Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
            Err(error) => {
                tracing::warn!(%error, "a bridge could not be accepted");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// The listening socket, mode 0600, in place of a stale one.
pub fn bind(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::PermissionsExt;
    let _stale = std::fs::remove_file(path);
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

async fn serve(daemon: Arc<Daemon>, tasks: Arc<Tasks>, connection: OwnedFd) {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&connection) else { return };
    if peer.uid != rustix::process::getuid() {
        tracing::warn!(uid = peer.uid.as_raw(), "a bridge of another user was refused");
        return;
    }
    let Ok(control) = Control::new(connection) else { return };
    let received = tokio::time::timeout(pylair_workers::control::ANSWER_TIMEOUT, control.receive()).await;
    let refuse = |message: &str, hint: &str| {
        let answer = Answer::Refused { message: message.to_owned(), hint: hint.to_owned() };
        if let Err(error) = control.send(&answer, &[]) {
            tracing::debug!(%error, "a bridge could not be told why it was refused");
        }
    };
    let datagram = match received {
        Ok(Ok(datagram)) if !datagram.bytes.is_empty() => datagram,
        // Its bridge waits for a word, and would take silence for our death.
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            return refuse(&format!("the daemon could not take this client over: {error}"), CLOSE_SESSIONS);
        }
        _ => return,
    };
    if let Err(full) = open_files::check(0) {
        return refuse(&format!("the daemon cannot serve another client: {full}"), CLOSE_SESSIONS);
    }
    let (mut hello, [input, output, slate]) = match take_hello(datagram) {
        Ok(taken) => taken,
        Err(error) => {
            return refuse(&format!("the daemon did not understand this bridge: {error}"), "run `pylair stop`");
        }
    };
    if hello.version != VERSION {
        let message = format!("the daemon is pylair {VERSION}, this bridge is {}", hello.version);
        return refuse(
            &message,
            "run `pylair stop` to end the old daemon and its sessions; the next call starts a new one",
        );
    }
    let settings = hello.introduction.as_ref().map_or(&*daemon.settings, |introduction| &introduction.settings);
    let selection = match Selection::parse(settings.tools.as_deref(), settings.readonly, Door::Bridge) {
        Ok(selection) => selection,
        Err(error) => return refuse(&error, "see `pylair mcp --help`"),
    };
    let stop = CancellationToken::new();
    let gone = Arc::new(AtomicBool::new(false));
    let resumed = hello.resumed.take();
    let said: Vec<String> = hello.introduction.iter().flat_map(|own| &own.said).map(|said| said.key.clone()).collect();
    let (caller, mut notes) = caller_behind(&daemon, peer.pid, hello);
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    notes.extend(daemon.sessions.opened_otherwise(&caller, &said).await);
    notes.extend(resumed.as_ref().map(|resumed| resumed.note.clone()));
    let origin = Origin {
        slate: Some(slate),
        resumed: resumed.is_some(),
        mid_line: resumed.as_ref().is_some_and(|resumed| resumed.mid_line),
        gone: gone.clone(),
        stop: stop.clone(),
        left: caller.sender.left.clone(),
    };
    let transport = match Stdio::new(input, output, origin) {
        Ok(transport) => transport,
        Err(error) => {
            return refuse(&format!("the client's stdio cannot be used: {error}"), "run `pylair mcp --standalone`");
        }
    };
    if control.send(&Answer::Taken, &[]).is_err() {
        return;
    }
    let hold = daemon.hold(Holder::Bridge);
    let side = ClientSide::Stdio { caller, gone: gone.clone() };
    let server = Server::new(daemon.clone(), tasks, side, selection, notes);
    let initialize = resumed
        .and_then(|resumed| resumed.initialize)
        .and_then(|params| serde_json::from_value::<InitializeRequestParams>(params).ok());
    let serving = super::server::serve_stdio(server, transport, initialize, stop.clone());
    tokio::pin!(serving);
    let leaving = daemon.shutdown.clone();
    let answer = tokio::select! {
        () = &mut serving => Answer::Over,
        // The bridge was killed: its client must see the pipes close, which they do when the transport is dropped.
        _ = control.receive() => {
            // Before the requests are cancelled: what they run goes on as jobs.
            gone.store(true, Ordering::Release);
            stop.cancel();
            serving.await;
            return;
        }
        () = leaving.cancelled() => {
            stop.cancel();
            serving.await;
            Answer::Leaving { reason: "the pylair daemon was stopped".to_owned() }
        }
    };
    drop(hold);
    if let Err(error) = control.send(&answer, &[]) {
        tracing::debug!(%error, "a bridge could not be told that it is over");
    }
}

/// Who speaks through a bridge, known by the processes above it, and what it must know about its settings.
fn caller_behind(daemon: &Daemon, bridge: rustix::process::Pid, hello: Hello) -> (Caller, Vec<String>) {
    let (settings, unheeded) = daemon.heed(hello.introduction.as_ref());
    let mut notes = hello.introduction.map(|introduction| introduction.notes).unwrap_or_default();
    notes.extend(unheeded.iter().map(Unheeded::note));
    let ancestry = process::ancestry(bridge.as_raw_pid());
    // One default session per client process tree: the process that started the bridge stands for it.
    let default_session =
        ancestry.get(1).map_or(DefaultSession::Main, |parent| DefaultSession::ProcessTree(parent.process));
    let client = ancestry.get(1).map_or_else(|| "client".to_owned(), |parent| caller::client_name(&parent.name));
    let caller = Caller {
        owner: daemon.owner().clone(),
        client,
        door: Door::Bridge,
        scopes: vec![if settings.readonly { Scope::Read } else { Scope::Admin }],
        cwd: hello.cwd,
        env: Arc::new(hello.env),
        default_session,
        sender: Sender::new(SenderId::new_bridge()),
        credential: None,
        floor: daemon.config.sandbox.floor(),
        settings: Arc::new(settings),
        program: Program::above(&ancestry),
    };
    daemon.remember_client(ancestry, &caller);
    (caller, notes)
}

fn take_hello(datagram: Datagram) -> io::Result<(Hello, [OwnedFd; 3])> {
    let missing = |_| io::Error::new(io::ErrorKind::InvalidData, "it sent other descriptors than expected");
    let [hello, input, output, slate]: [OwnedFd; 4] = datagram.descriptors.try_into().map_err(missing)?;
    Ok((Hello::from_memory_file(hello.as_fd())?, [input, output, slate]))
}
