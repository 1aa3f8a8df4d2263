//! Starting, finding and ending the daemon: one per user, started on demand once, gone without leaving anything behind.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::{fs::OpenOptionsExt, fs::PermissionsExt, net::UnixStream, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::{Signal as Signals, SignalKind, signal},
};

use pylair_core::{
    daemon::{self, Daemon},
    settings::{Config, Places, PlacesError},
};
use pylair_mcp::{bridges, http as mcp_http, http::Options, tasks::Tasks, tools::Selection};
use pylair_os::inherited;
use pylair_sandbox::share;
use pylair_web::{
    door::{Address, Closed, Door},
    listen,
    room::Room,
    router,
    settings::HttpSettings,
    tls, token,
};

const START_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a new daemon waits for one that is leaving.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long open requests may take to end when the daemon leaves.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a daemon is running already")]
    Running,
    #[error("the daemon did not start: {0}")]
    NotStarted(String),
    #[error("signals cannot be handled")]
    Signals(#[source] io::Error),
    #[error("cannot listen on {address}")]
    Listen { address: String, source: io::Error },
    #[error("cannot use `{path}`")]
    File { path: String, source: io::Error },
    #[error("`{0}` is not a loopback address, and traffic to it could be read on the way")]
    NotLoopback(String),
    #[error("behind a proxy, requests are addressed to names that this server does not know")]
    NoNames,
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error(transparent)]
    Token(#[from] token::Error),
    #[error(transparent)]
    Places(#[from] PlacesError),
    #[error(transparent)]
    Daemon(#[from] daemon::Error),
}

impl Error {
    pub fn hint(&self) -> String {
        match self {
            Self::Running => "use it, or end it and its sessions with `pylair stop`".to_owned(),
            Self::NotStarted(_) | Self::Signals(_) | Self::File { .. } => {
                "`pylair doctor` says what is wrong".to_owned()
            }
            Self::Listen { .. } => "another program may use that port; choose one with --port".to_owned(),
            Self::NotLoopback(_) => {
                "leave out --host, or add --tls-cert and --tls-key, or --behind-proxy if a proxy in front has TLS"
                    .to_owned()
            }
            Self::NoNames => "say which with --allowed-host, such as --allowed-host py.example.org".to_owned(),
            Self::Tls(_) => "pass PEM files; the key's must be of mode 0600".to_owned(),
            Self::Token(error) => error.hint().to_owned(),
            Self::Places(error) => error.hint().to_owned(),
            Self::Daemon(daemon::Error::Journal(error)) => error.hint().unwrap_or("see the log").to_owned(),
            Self::Daemon(_) => "see the log in the state directory".to_owned(),
        }
    }
}

/// Makes sure that a daemon is there. Two that ask at the same moment get the same one.
pub fn ensure_running(places: &Places, program: &Path, env: &BTreeMap<String, String>) -> Result<(), Error> {
    places.create()?;
    let file = |path: &Path, source| Error::File { path: path.display().to_string(), source };
    if UnixStream::connect(places.socket()).is_ok() {
        return Ok(());
    }
    let lock = places.start_lock();
    let lock_file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock)
        .map_err(|e| file(&lock, e))?;
    lock_file.lock().map_err(|e| file(&lock, e))?;
    if UnixStream::connect(places.socket()).is_ok() {
        return Ok(());
    }
    let (mut ready, ready_end) = io::pipe().map_err(|e| Error::NotStarted(e.to_string()))?;
    let mut command = Command::new(program);
    command.arg("__daemon").stdin(Stdio::null()).stdout(ready_end).stderr(Stdio::null()).current_dir("/").env_clear();
    // Where things are and how pylair is set; nothing else of whoever happens to start it.
    command.envs(env.iter().filter(|(key, _)| {
        key.starts_with("PYLAIR_")
            || key.starts_with("XDG_")
            || ["HOME", "PATH", "LANG", "RUST_LOG"].contains(&key.as_str())
    }));
    command.process_group(0);
    let mut child = command.spawn().map_err(|e| Error::NotStarted(e.to_string()))?;
    drop(command);
    // The one we started forks the daemon and leaves, so that the daemon is nobody's child.
    child.wait().map_err(|e| Error::NotStarted(e.to_string()))?;
    let mut said = String::new();
    rustix::io::ioctl_fionbio(&ready, true).map_err(|e| Error::NotStarted(e.to_string()))?;
    let until = Instant::now() + START_TIMEOUT;
    loop {
        let mut poll = [rustix::event::PollFd::new(&ready, rustix::event::PollFlags::IN)];
        let left = until.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec::try_from(left).map_err(|e| Error::NotStarted(e.to_string()))?;
        match rustix::event::poll(&mut poll, Some(&timeout)) {
            Ok(0) => return Err(Error::NotStarted(format!("it said nothing for {} s", START_TIMEOUT.as_secs()))),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(Error::NotStarted(error.to_string())),
            Ok(_) => {}
        }
        let mut buffer = [0; 1024];
        match ready.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => said.push_str(&String::from_utf8_lossy(&buffer[..count])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Error::NotStarted(error.to_string())),
        }
    }
    match said.trim() {
        "ready" => Ok(()),
        "" => Err(Error::NotStarted("it ended before it was ready".to_owned())),
        other => Err(Error::NotStarted(other.to_owned())),
    }
}

/// How a daemon runs.
#[derive(Debug)]
pub struct Run {
    pub config: Config,
    pub http: HttpSettings,
    pub places: Places,
    pub selection: Selection,
    /// Opens the TCP door and stays until told to leave.
    pub foreground: bool,
}

/// A daemon whose doors are open.
pub struct Opened {
    pub daemon: Arc<Daemon>,
    /// Where the MCP endpoint is, when the TCP door is open.
    pub address: Option<String>,
    servers: Vec<tokio::task::JoinHandle<()>>,
    places: Places,
    foreground: bool,
    terminate: Signals,
    interrupt: Signals,
    _lock: File,
}

/// Takes the lock, opens the daemon and its doors.
pub async fn open(run: Run, program: &Path) -> Result<Opened, Error> {
    // Before any door: whoever has been answered may also send a signal.
    end_at_second_signal();
    let signals = |kind| signal(kind).map_err(Error::Signals);
    let (terminate, interrupt) = (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    run.places.create()?;
    inherited::replace();
    let places = run.places;
    let file = |path: &Path, source| Error::File { path: path.display().to_string(), source };
    let lock_path = places.daemon_lock();
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock_path)
        .map_err(|e| file(&lock_path, e))?;
    // A daemon that is leaving has taken its sockets away but holds its lock until nothing of it is left.
    let until = Instant::now() + if run.foreground { Duration::ZERO } else { LEAVE_TIMEOUT };
    while lock.try_lock().is_err() {
        if Instant::now() >= until {
            return Err(Error::Running);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let listener = if run.foreground { Some(listen_tcp(&run.config, &run.http).await?) } else { None };
    let mut config = run.config;
    if let Some((_, _, port)) = &listener {
        // The port that the kernel chose for `--port 0`: no session may be given the daemon's own door.
        config.port = *port;
    }
    let (daemon, room) = open_daemon(config, &run.http, places.clone(), program).await?;
    let tasks = Arc::new(Tasks::default());
    let mut servers = Vec::new();
    let mut address = None;
    if let Some((listener, host, port)) = listener {
        token::load_or_create(&places.token())?;
        let http = &run.http;
        let tls = http.tls.as_ref().map(|(certificate, key)| tls::acceptor(certificate, key)).transpose()?;
        let at = format!("{}://{host}:{port}", if tls.is_some() { "https" } else { "http" });
        daemon.set_http(at.clone());
        let limits = listen::Limits { head: http.head_timeout, write: http.write_timeout };
        let guests = room.guests.clone();
        let closed = Closed { changes: run.selection.is_readonly(), files: run.selection.is_readonly_for_files() };
        let door =
            Door::new(&daemon, (room, http.clone()), Address { host: &host, port, is_tls: tls.is_some() }, closed);
        let options = Options {
            allowed_hosts: door.allowed_hosts.to_vec(),
            allowed_origins: door.allowed_origins.to_vec(),
            stop: daemon.shutdown.clone(),
            ..Options::default()
        };
        let mcp = mcp_http::endpoint(&daemon, &tasks, run.selection, options);
        let router = router::tcp(&daemon, door, mcp);
        let stop = daemon.shutdown.clone();
        servers.push(pylair_os::event_loop::spawn(listen::serve(listener, tls, router, (limits, guests), stop)));
        address = Some(at);
    }
    let bridge_path = places.bridge_socket();
    let bridge_socket = bridges::bind(&bridge_path).map_err(|e| file(&bridge_path, e))?;
    let for_bridges = daemon.clone();
    servers.push(pylair_os::event_loop::spawn(async move {
        if let Err(error) = bridges::listen(for_bridges, tasks, bridge_socket).await {
            tracing::error!(%error, "the bridges' door failed");
        }
    }));
    let socket_path = places.socket();
    // We hold the lock, so whatever is there was left by a daemon that died.
    let _stale = std::fs::remove_file(&socket_path);
    let socket = UnixListener::bind(&socket_path).map_err(|e| file(&socket_path, e))?;
    std::fs::set_permissions(&socket_path, Permissions::from_mode(0o600)).map_err(|e| file(&socket_path, e))?;
    let (for_commands, stop) = (daemon.clone(), daemon.shutdown.clone());
    servers.push(pylair_os::event_loop::spawn(async move {
        if let Err(error) = router::serve_unix(for_commands, socket, stop).await {
            tracing::error!(%error, "the Unix door failed");
        }
    }));
    tracing::info!(version = daemon::VERSION, pid = std::process::id(), "the daemon is ready");
    let foreground = run.foreground;
    Ok(Opened { daemon, address, servers, places, foreground, terminate, interrupt, _lock: lock })
}

/// The daemon, and what its HTTP door has room for, which its status shows.
pub async fn open_daemon(
    config: Config,
    http: &HttpSettings,
    places: Places,
    program: &Path,
) -> Result<(Arc<Daemon>, Arc<Room>), daemon::Error> {
    let daemon = Daemon::open(config, places, program).await?;
    let room = Arc::new(Room::new(http, daemon.owner()));
    daemon.show_pools(room.pools());
    Ok((daemon, room))
}

async fn listen_tcp(config: &Config, http: &HttpSettings) -> Result<(TcpListener, String, u16), Error> {
    let address = format!("{}:{}", config.host, config.port);
    let listen = |source| Error::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(&address).await.map_err(listen)?;
    let local = listener.local_addr().map_err(listen)?;
    if !local.ip().is_loopback() && !http.behind_proxy && http.tls.is_none() {
        return Err(Error::NotLoopback(config.host.clone()));
    }
    if http.behind_proxy && http.allowed_hosts.is_empty() {
        return Err(Error::NoNames);
    }
    Ok((listener, config.host.clone(), local.port()))
}

/// Resolves when nobody has needed the daemon for long enough; never in the foreground.
async fn idle(daemon: Arc<Daemon>, foreground: bool) {
    let limit = daemon.config.idle_exit.filter(|_| !foreground);
    let Some(limit) = limit else { return std::future::pending().await };
    loop {
        let wait = match daemon.idle_since() {
            Some(since) if since.elapsed() >= limit => return,
            Some(since) => limit.saturating_sub(since.elapsed()),
            None => limit,
        };
        tokio::time::sleep(wait.max(Duration::from_millis(100))).await;
    }
}

impl Opened {
    /// Serves until a signal, `pylair stop` or, in the background, long idleness; then ends everything.
    pub async fn run(mut self) -> io::Result<()> {
        share::stand_out();
        let idle = idle(self.daemon.clone(), self.foreground);
        let reason = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = self.daemon.shutdown.cancelled() => "somebody stopped it",
            () = idle => "nobody needed it",
        };
        tracing::info!(reason, "the daemon leaves");
        self.close(reason).await;
        Ok(())
    }

    /// Closes the doors, ends every session, removes the sockets.
    pub async fn close(self, reason: &str) {
        // The sockets go first: whoever comes now starts a new daemon, which waits for our lock to be gone.
        for path in [self.places.socket(), self.places.bridge_socket()] {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(%error, path = %path.display(), "a socket was gone already");
            }
        }
        self.daemon.shutdown.cancel();
        self.daemon.close(reason).await;
        for server in self.servers {
            if tokio::time::timeout(DRAIN_TIMEOUT, server).await.is_err() {
                tracing::debug!("a door did not close in time");
            }
        }
    }
}

/// The first SIGTERM or SIGINT closes everything in order, the second ends the process, whatever it is waiting for. Called before the
/// runtime has handlers of its own, which call this one too.
fn end_at_second_signal() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(signal: libc::c_int) {
        if SEEN.fetch_add(1, Ordering::Relaxed) > 0 {
            // SAFETY: async-signal-safe. The keepers end the sessions.
            unsafe { libc::_exit(128 + signal) }
        }
    }
    let handler: extern "C" fn(libc::c_int) = count;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler calls nothing but what a signal handler may.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Tells whoever started us how it went.
pub fn say_ready(message: &str) {
    let mut stdout = io::stdout();
    // Nobody may be listening any more.
    let _unheard = stdout.write_all(message.as_bytes()).and_then(|()| stdout.flush());
}
