//! Running pip and uv: which of them, in what surroundings, with every process they start ending when they must.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe::Receiver,
    process::{Child, Command},
    sync::mpsc,
    time::Instant,
};

use super::{
    Error, Requirement,
    view::{CACHE, View},
};
use crate::caller::plain_environment;
use pylair_keeper::{
    Report,
    nursery::KeeperRequest,
    pid_here,
    program::{self, Program},
};
use pylair_os::inherited;
use pylair_python::on_path;
use pylair_sandbox::{
    Limits,
    cgroup::{self, Group, Groups},
};
use pylair_workers::nursery::Nursery;

const MAX_LINE_BYTES: usize = 500;
const TAIL_LINES: usize = 30;
/// Where else than into the environment they would install, or from whose settings.
const DROPPED: &[&str] = &[
    "PIP_BREAK_SYSTEM_PACKAGES",
    "PIP_DRY_RUN",
    "PIP_EDITABLE",
    "PIP_PREFIX",
    "PIP_PYTHON",
    "PIP_REQUIREMENT",
    "PIP_ROOT",
    "PIP_SRC",
    "PIP_TARGET",
    "PIP_USER",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "UV_BREAK_SYSTEM_PACKAGES",
    "UV_EDITABLE",
    "UV_PREFIX",
    "UV_PYTHON",
    "UV_REQUIREMENT",
    "UV_ROOT",
    "UV_SYSTEM_PYTHON",
    "UV_TARGET",
    "UV_WORKING_DIR",
    "UV_WORKING_DIRECTORY",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "__PYVENV_LAUNCHER__",
];

/// From where packages come: what is taken over from a caller's environment for a confined session.
const INDEX: &[&str] = &[
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "PIP_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_INSECURE_HOST",
    "UV_NATIVE_TLS",
    "UV_NO_INDEX",
    "UV_OFFLINE",
];
/// No settings but those: a confined session's files are not asked for any.
const CONFINED: &[(&str, &str)] = &[("PIP_CONFIG_FILE", "/dev/null"), ("UV_NO_CONFIG", "1")];
/// A confined session may be another user, who has to read what is installed for it.
const CONFINED_UMASK: u32 = 0o022;

/// What installers for a confined session are started with: nothing of its own, and of its caller's only where packages come from.
pub fn installer_env(caller: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = plain_environment("/nonexistent", "pylair");
    let index = caller.iter().filter(|(name, _)| is_index(name));
    env.extend(index.map(|(name, value)| (name.clone(), value.clone())));
    env
}

fn is_index(name: &str) -> bool {
    INDEX.contains(&name.to_ascii_uppercase().as_str())
}

/// pip takes its variables in any case.
fn is_dropped(name: &str) -> bool {
    DROPPED.contains(&name.to_ascii_uppercase().replace('-', "_").as_str())
}

/// The sandbox that installers for a confined session run in: with the network, but without the files, the processes and the sockets
/// of anybody. Code of the packages, which building a source distribution runs, has no more than that.
#[derive(Debug, Clone)]
pub struct Inside {
    pub nursery: Arc<Nursery>,
    /// Where its processes are counted as one, as far as that is to be had.
    pub groups: Arc<Groups>,
    /// Who it is outside: the owner of `own`. None when that is the daemon's own user.
    pub outer_id: Option<u32>,
    /// The session's own directory for packages. The cache is there too: what one session brings in is not what another gets.
    pub own: PathBuf,
    /// The environment that is installed into. Without one all of `own` can be written, because one is made there.
    pub view: Option<Arc<View>>,
    pub read_only: Vec<PathBuf>,
    /// Where that has to lie, if a project said where it is.
    pub within: Vec<PathBuf>,
}

impl Inside {
    /// The same for installing into an environment, which has its packages in one of these directories.
    pub async fn prepared(mut self, prefix: &Path, site_packages: &[PathBuf]) -> Result<Self, Error> {
        let (own, owner) = (self.own.clone(), self.outer_id);
        let (prefix, directories) = (prefix.to_owned(), site_packages.to_vec());
        let (path, within) = (prefix.clone(), self.within.clone());
        let made =
            tokio::task::spawn_blocking(move || View::prepare((&own, owner), &prefix, &directories, &within)).await;
        let made = made.map_err(io::Error::other).and_then(|made| made);
        self.view = Some(Arc::new(made.map_err(|source| Error::Environment { path, source })?));
        Ok(self)
    }

    /// See [`View::settle`].
    pub async fn settle(&self) -> Result<(), Error> {
        let Some(view) = self.view.clone() else { return Ok(()) };
        let path = self.own.clone();
        let settled = tokio::task::spawn_blocking(move || view.settle()).await;
        let settled = settled.map_err(io::Error::other).and_then(|settled| settled);
        settled.map_err(|source| Error::Directory { path, source })
    }

    fn request(&self, command: &[OsString], env: BTreeMap<String, String>) -> KeeperRequest {
        let local = env.iter().filter(|(name, _)| is_index(name)).flat_map(|(_, value)| local_paths(value));
        let local: Vec<_> = local.collect();
        let mut read_only = self.read_only.clone();
        let mut within = self.within.clone();
        if !within.is_empty() {
            within.extend(self.own.canonicalize().ok());
            within.extend(local.iter().filter_map(|path| path.canonicalize().ok()));
        }
        read_only.extend(local);
        let (writable, views) = match &self.view {
            Some(view) => {
                read_only.extend(view.read_only());
                read_only.push(self.own.clone());
                (view.writable().to_vec(), vec![view.mounted()])
            }
            None => (vec![self.own.clone()], Vec::new()),
        };
        KeeperRequest {
            id: 0,
            read_only,
            within,
            readable: Vec::new(),
            writable,
            views,
            workspace: None,
            tmp_mb: INSIDE_TMP_MB,
            network: true,
            proxy: false,
            uid: self.outer_id,
            program: Some(Program {
                argv: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
                env,
                cwd: "/tmp".into(),
                descriptors: program::STANDARD_STREAMS,
                limits: BTreeMap::new(),
            }),
        }
    }

    fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let cache = self.own.join(CACHE).display().to_string();
        let tmp = ["HOME", "TMPDIR"].map(|name| (name, "/tmp".to_owned()));
        let caches = ["PIP_CACHE_DIR", "UV_CACHE_DIR", "XDG_CACHE_HOME"].map(|name| (name, cache.clone()));
        tmp.into_iter().chain(caches)
    }
}

/// Packages are unpacked and built there.
const INSIDE_TMP_MB: u32 = 2048;

/// What an installer and all it starts may use where the kernel counts that; elsewhere each process has its own limits, see
/// `keeper::program`.
pub const LIMITS: Limits = Limits {
    memory_mb: 4096,
    processes: 512,
    open_files: 4096,
    file_size_mb: 8192,
    tmp_mb: INSIDE_TMP_MB as u64,
    disk_mb: 0,
    cpu_s: None,
    wall_s: None,
};

/// What of the settings of an index lies on this machine.
fn local_paths(value: &str) -> impl Iterator<Item = PathBuf> {
    let words = value.split_whitespace().map(|word| word.strip_prefix("file://").unwrap_or(word));
    words.filter(|word| word.starts_with('/') && word.len() > 1).map(PathBuf::from)
}

/// Where an installer runs, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub env: &'a BTreeMap<String, String>,
    pub cwd: &'a Path,
    pub deadline: Instant,
    pub limit: Duration,
    /// Where lines are offered as they come, if anybody wants them.
    pub lines: Option<&'a mpsc::Sender<String>>,
    pub confined: bool,
    /// Without it, it runs with the daemon's rights.
    pub inside: Option<&'a Inside>,
}

/// What installs into one environment.
#[derive(Debug, Clone)]
pub struct Installer {
    /// Such as `uv 0.9.2`.
    pub name: String,
    command: Vec<OsString>,
    no_cache: &'static str,
}

impl Installer {
    /// uv when it is on `PATH`, else the environment's own pip, else one that `may_make_pip` allows to be put there.
    pub async fn find(python: &Path, may_make_pip: bool, around: Surroundings<'_>) -> Result<Self, Error> {
        let around = Surroundings { lines: None, ..around };
        if let Some(uv) = on_path("uv", around.env) {
            let uv = uv.into_os_string();
            let said = run(&[uv.clone(), "--version".into()], around).await?;
            if let Some(name) = said.first_words() {
                let mut command = vec![uv, "pip".into(), "install".into(), "--no-progress".into(), "--python".into()];
                command.push(python.into());
                return Ok(Self { name, command, no_cache: "--no-cache" });
            }
        }
        // `-I`: neither the working directory nor PYTHONPATH may bring a pip of their own.
        let pip = |args: &[&str]| {
            let mut command: Vec<OsString> = vec![python.into(), "-I".into(), "-u".into(), "-m".into()];
            command.extend(args.iter().map(OsString::from));
            command
        };
        let mut said = run(&pip(&["pip", "--version"]), around).await?;
        if !said.status.success() && may_make_pip {
            run(&pip(&["ensurepip", "--default-pip"]), around).await?;
            said = run(&pip(&["pip", "--version"]), around).await?;
        }
        match said.first_words() {
            Some(name) => Ok(Self { name, command: pip(&["pip", "install"]), no_cache: "--no-cache-dir" }),
            None => Err(Error::NoInstaller { python: python.to_owned() }),
        }
    }

    /// For a confined session, where there is no sandbox to do it in, no code of the packages is run, and no cache is used: its home
    /// is everybody's.
    pub async fn install(&self, requirements: &[Requirement], around: Surroundings<'_>) -> Result<Finished, Error> {
        let mut command = self.command.clone();
        if around.confined && around.inside.is_none() {
            command.extend(["--only-binary", ":all:", self.no_cache].map(OsString::from));
        }
        command.push("--".into());
        command.extend(requirements.iter().map(|requirement| OsString::from(&requirement.text)));
        run(&command, around).await
    }
}

/// Makes a venv that sees the packages of the interpreter it is made from.
pub async fn make_venv(python: &Path, directory: &Path, around: Surroundings<'_>) -> Result<(), Error> {
    let args = ["-I", "-m", "venv", "--without-pip", "--system-site-packages"];
    let mut command = vec![OsString::from(python)];
    command.extend(args.iter().map(OsString::from));
    command.push(directory.into());
    let finished = run(&command, around).await?;
    if finished.status.success() {
        return Ok(());
    }
    Err(Error::MakeVenv { python: python.to_owned(), said: finished.tail.join("\n") })
}

/// How a program ended, and its last lines.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub tail: Vec<String>,
}

impl Finished {
    /// `pip 24.0` of `pip 24.0 from …`.
    fn first_words(&self) -> Option<String> {
        let mut words = self.tail.first()?.split_whitespace();
        let (name, version) = (words.next()?, words.next()?);
        (self.status.success() && version.starts_with(|c: char| c.is_ascii_digit()))
            .then(|| format!("{name} {version}"))
    }
}

/// A process group that does not outlive whoever waits for it.
struct ProcessGroup {
    child: Child,
    id: Option<Pid>,
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // It may have ended this moment.
            let _gone = kill_process_group(id, Signal::KILL);
        }
    }
}

/// Runs a program to its end, which is the deadline's at the latest. Dropping the future kills it and all it has started.
async fn run(command: &[OsString], around: Surroundings<'_>) -> Result<Finished, Error> {
    if let Some(inside) = around.inside {
        return run_inside(command, inside, around).await;
    }
    let (program, args) = command.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(environment(around))
        .current_dir(around.cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    inherited::give_back_with(command.as_std_mut(), around.confined.then_some(CONFINED_UMASK));
    let child = command.spawn().map_err(|source| Error::Start { program: PathBuf::from(program), source })?;
    let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut group = ProcessGroup { child, id };
    let (stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
    let failed = |source| Error::Start { program: PathBuf::from(program), source };
    let finished = follow(stdout, stderr, around, async { group.child.wait().await }).await?.map_err(failed)?;
    group.id = None;
    Ok(finished)
}

/// What a program is started with: the caller's, but for what leads elsewhere.
fn environment(around: Surroundings<'_>) -> BTreeMap<String, String> {
    let mut env = around.env.clone();
    env.retain(|name, _| !is_dropped(name));
    let ours = [
        ("NO_COLOR", "1"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("PIP_NO_INPUT", "1"),
        ("PIP_PROGRESS_BAR", "off"),
        // Also against a pip.conf that says otherwise.
        ("PIP_USER", "0"),
    ];
    let confined = CONFINED.iter().filter(|_| around.confined);
    env.extend(ours.iter().chain(confined).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    env
}

/// The same in a sandbox of its own, which ends with the program and with whoever waits for it.
async fn run_inside(command: &[OsString], inside: &Inside, around: Surroundings<'_>) -> Result<Finished, Error> {
    let mut env = environment(around);
    env.extend(inside.variables().map(|(name, value)| (name.to_owned(), value)));
    let failed = |source: io::Error| Error::Start { program: PathBuf::from(&command[0]), source };
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
    let ((stdout, stdout_end), (stderr, stderr_end)) = (pipe()?, pipe()?);
    let null = std::fs::File::open("/dev/null").map_err(failed)?;
    let passed = [null.as_fd(), stdout_end.as_fd(), stderr_end.as_fd()];
    let keeper = inside.nursery.keeper(&inside.request(command, env), &passed).await;
    let keeper = keeper.map_err(|error| Error::Sandbox { why: error.to_string() })?;
    drop((stdout_end, stderr_end));
    // Dropped when nobody waits any more, after the keeper.
    let _group = enclose(inside.groups.clone(), keeper.pidfd.as_fd()).await;
    let reader = |end| Receiver::from_owned_fd(end).map_err(failed);
    let (stdout, stderr) = (reader(stdout)?, reader(stderr)?);
    let ended = async move {
        loop {
            let datagram = keeper.control.receive().await?;
            match Report::parse(&datagram.bytes) {
                Some(Report::Exit { pid: program::PID, status }) => return Ok(ExitStatus::from_raw(status)),
                None if datagram.bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        // Here the keeper's socket is closed, and whatever is left below it ends.
    };
    follow(Some(stdout), Some(stderr), around, ended).await?.map_err(failed)
}

/// Has the kernel count what an installer and those it starts use. It has begun meanwhile: what it started until then is counted with it.
async fn enclose(groups: Arc<Groups>, keeper: BorrowedFd<'_>) -> Option<Group> {
    let keeper = pid_here(keeper)?;
    let enclosed = tokio::task::spawn_blocking(move || {
        groups.enclose(&format!("installer-{keeper}"), &LIMITS, None, &|| cgroup::pids(&[keeper]))
    });
    enclosed.await.ok()
}

/// Reads what a program says until it has ended, which is the deadline's at the latest.
async fn follow(
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
    around: Surroundings<'_>,
    ended: impl Future<Output = io::Result<ExitStatus>>,
) -> Result<io::Result<Finished>, Error> {
    let tail = std::sync::Mutex::new(VecDeque::new());
    let keep = |line: String| {
        // A client that does not keep up misses lines; the tail has the last ones.
        let _full = around.lines.map(|lines| lines.try_send(line.clone()));
        let mut tail = tail.lock().expect("no panic while locked");
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    };
    let ended = async { tokio::join!(each_line(stdout, &keep), each_line(stderr, &keep), ended).2 };
    let ended = tokio::time::timeout_at(around.deadline, ended).await;
    let tail: Vec<String> = tail.into_inner().expect("no panic while locked").into();
    match ended {
        Ok(status) => Ok(status.map(|status| Finished { status, tail })),
        Err(_) => Err(Error::Timeout { limit: around.limit, tail }),
    }
}

/// Calls with every line that is not empty, each cut to a length that can be shown.
async fn each_line(stream: Option<impl AsyncRead + Unpin>, mut call: impl FnMut(String)) {
    let Some(mut stream) = stream else { return };
    let mut chunk = [0; 4096];
    let mut line = Vec::new();
    let mut end = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if !text.trim().is_empty() {
            call(text);
        }
    };
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        for byte in &chunk[..count] {
            match byte {
                b'\n' | b'\r' => end(&mut line),
                _ if line.len() < MAX_LINE_BYTES => line.push(*byte),
                _ => {}
            }
        }
    }
    end(&mut line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_sessions_installer_knows_only_where_packages_come_from() {
        let said =
            [("PIP_INDEX_URL", "a"), ("PIP_TARGET", "b"), ("HOME", "/root"), ("PATH", "/evil"), ("https_proxy", "c")];
        let env = installer_env(&said.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
        let names: Vec<_> = env.keys().map(String::as_str).collect();
        assert_eq!(names, ["HOME", "LANG", "PATH", "PIP_INDEX_URL", "USER", "https_proxy"]);
        assert!(env["HOME"] != "/root" && env["PATH"] != "/evil");
    }

    #[test]
    fn what_leads_elsewhere_is_dropped_in_any_spelling() {
        assert!(is_dropped("PIP_TARGET") && is_dropped("PIP_Editable") && is_dropped("PIP_BREAK-SYSTEM_PACKAGES"));
        assert!(!is_dropped("PIP_INDEX_URL"));
    }
}
