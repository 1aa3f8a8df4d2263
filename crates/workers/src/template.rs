//! Templates: interpreters started once, kept warm, and forked into workers in milliseconds.
//!
//! One per interpreter, import-time environment and preload set; confined and unconfined workers never share one, and one
//! that has loaded packages belongs to one owner. Called by `workers::link`.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    hash::{Hash, Hasher},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, oneshot};

use super::{
    control::{ANSWER_TIMEOUT, Control},
    nursery::{ConfinedKeeper, Nursery},
};
use pylair_keeper::{nursery::KeeperRequest, program::Program};
use pylair_os::exit::Exits;
use pylair_os::{budget::Shares, inherited};
use pylair_probe::{bootstrap, stage0, wire::WIRE_VERSION};
use pylair_python::Interpreter;

/// Templates kept at once; of whoever asked for most the one unused for longest goes first.
const MAX_TEMPLATES: usize = 12;
const MAX_LOG_BYTES: usize = 8 << 10;

/// Variables that numeric libraries read when they are imported, so that they belong to a template with preloads.
const IMPORT_TIME_VARIABLES: &[&str] =
    &["BLIS_", "GOTO_", "LD_LIBRARY_PATH", "MKL_", "MPLBACKEND", "NUMBA_", "NUMEXPR_", "OMP_", "OPENBLAS_", "VECLIB_"];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{executable}` could not be started as a template")]
    Start { executable: PathBuf, source: io::Error },
    #[error("`{executable}` did not become a template: {message}")]
    Broken { executable: PathBuf, message: String },
    #[error("`{executable}` could not fork a worker: {message}")]
    Fork { executable: PathBuf, message: String },
    #[error("preloading failed: {message}")]
    Preload { message: String },
}

/// What makes two templates different, and who asked for it first, which does not.
#[derive(Debug, Clone)]
pub struct Key {
    executable: PathBuf,
    env: BTreeMap<String, String>,
    preload: Option<Preload>,
    confined: bool,
    /// It may only be run inside the sandbox of one session.
    inside: bool,
    owner: Arc<str>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let Self { executable, env, preload, confined, inside, owner: _ } = self;
        (executable, env, preload) == (&other.executable, &other.env, &other.preload)
            && (confined, inside) == (&other.confined, &other.inside)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.executable, &self.env, &self.preload, self.confined, self.inside).hash(state);
    }
}

/// A template that loads packages is for one owner, one environment and one search path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Preload {
    modules: Vec<String>,
    owner: Arc<str>,
    prefix: Option<PathBuf>,
    python_path: Vec<String>,
    watched: Vec<PathBuf>,
}

/// What a session wants of a template.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    pub interpreter: &'a Interpreter,
    /// The base interpreter of a venv, where the venv can be entered from it exactly.
    pub base: Option<&'a Interpreter>,
    pub env: &'a BTreeMap<String, String>,
    pub preload: &'a [String],
    pub python_path: &'a [String],
    pub owner: &'a Arc<str>,
    /// Its workers enter the namespaces of keepers.
    pub confined: bool,
    /// Its workers get walls of some kind, so that nothing of a project's may be run before they are up.
    pub sandboxed: bool,
    /// The interpreter may be a project's own program, so that it is run within the walls of the session alone.
    pub inside: bool,
}

impl Key {
    /// Whether it is for one session, in whose sandbox it is started.
    pub fn is_inside(&self) -> bool {
        self.inside
    }

    pub fn new(wanted: &Wanted) -> Self {
        let preloads = !wanted.preload.is_empty();
        let env = wanted
            .env
            .iter()
            .filter(|(name, _)| belongs_to_template(name, preloads))
            .filter(|(name, value)| !wanted.sandboxed || !leads_elsewhere(name, value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let preload = preloads.then(|| Preload {
            modules: wanted.preload.to_vec(),
            owner: wanted.owner.clone(),
            prefix: wanted.interpreter.is_venv().then(|| wanted.interpreter.prefix.clone()),
            python_path: wanted.python_path.to_vec(),
            watched: wanted.interpreter.site_packages.clone(),
        });
        // A preloading template is the venv's own interpreter: it runs `site` itself.
        let executable = match wanted.base {
            Some(base) if preload.is_none() => &base.executable,
            _ => &wanted.interpreter.executable,
        };
        // `python`, `python3` and `python3.12` are one program. A venv's link is not: it is what makes the venv.
        let is_one_of_many_names =
            preload.is_none() && !wanted.inside && (wanted.base.is_some() || !wanted.interpreter.is_venv());
        let executable = match executable.canonicalize() {
            Ok(resolved) if is_one_of_many_names => resolved,
            _ => executable.clone(),
        };
        Self { executable, env, preload, confined: wanted.confined, inside: wanted.inside, owner: wanted.owner.clone() }
    }

    /// Who asked for it first.
    pub fn owner(&self) -> &Arc<str> {
        &self.owner
    }
}

/// `PYTHONPATH` and `PYTHONHOME` would let a caller's files into the template; the worker applies the first itself.
fn belongs_to_template(name: &str, preloads: bool) -> bool {
    const WORKERS_OWN: &[&str] = &["PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONUNBUFFERED"];
    if name.starts_with("PYTHON") {
        return !WORKERS_OWN.contains(&name);
    }
    preloads && IMPORT_TIME_VARIABLES.iter().any(|prefix| name.starts_with(prefix))
}

/// Variables that have an interpreter load or write files of somebody's choice while it starts.
fn leads_elsewhere(name: &str, value: &str) -> bool {
    const NAMES: &[&str] = &[
        "PYTHONDUMPREFSFILE",
        "PYTHONEXECUTABLE",
        "PYTHONPERFSUPPORT",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUSERBASE",
        "PYTHON_PERF_JIT_SUPPORT",
        "PYTHON_PRESITE",
    ];
    // A category in a module has that module imported.
    NAMES.contains(&name) || name == "PYTHONWARNINGS" && value.contains('.')
}

/// All templates of the daemon.
#[derive(Debug)]
pub struct Templates {
    /// Our own program, which the keeper-to-be executes.
    program: File,
    slots: Mutex<HashMap<Key, Slot>>,
}

#[derive(Debug, Clone)]
struct Slot {
    template: Arc<OnceCell<Arc<Template>>>,
    fingerprint: Vec<Option<(i64, i64)>>,
    used: Instant,
}

impl Templates {
    pub fn new(program: &Path) -> io::Result<Self> {
        Ok(Self { program: File::open(program)?, slots: Mutex::default() })
    }

    pub fn count(&self) -> usize {
        self.slots.lock().expect("no panic while locked").len()
    }

    /// The template for this key, started if there is none, replaced if its packages changed on disk.
    pub async fn get(&self, key: &Key, nursery: Option<&Arc<Nursery>>) -> Result<Arc<Template>, Error> {
        let fingerprint = fingerprint(key);
        let cell = {
            let mut slots = self.slots.lock().expect("no panic while locked");
            let stale = slots.get(key).is_some_and(|slot| {
                slot.fingerprint != fingerprint || slot.template.get().is_some_and(|template| template.is_gone())
            });
            if stale {
                slots.remove(key);
            }
            if slots.len() >= MAX_TEMPLATES && !slots.contains_key(key) {
                least_needed(&slots, &key.owner).and_then(|oldest| slots.remove(&oldest));
            }
            let slot = slots.entry(key.clone()).or_insert_with(|| Slot {
                template: Arc::default(),
                fingerprint,
                used: Instant::now(),
            });
            slot.used = Instant::now();
            slot.template.clone()
        };
        cell.get_or_try_init(|| Template::start(key, self.program.as_fd(), nursery)).await.cloned()
    }

    /// Whether this is still the template that sessions of this key are forked from.
    pub fn is_current(&self, key: &Key, template: &Arc<Template>) -> bool {
        let slots = self.slots.lock().expect("no panic while locked");
        slots.get(key).and_then(|slot| slot.template.get()).is_some_and(|current| Arc::ptr_eq(current, template))
    }

    /// Forgets a template that failed, so that the next session gets a new one.
    pub fn forget(&self, key: &Key) {
        self.slots.lock().expect("no panic while locked").remove(key);
    }
}

/// Change times of what a template has loaded: the interpreter, and the package directories if it preloads.
fn fingerprint(key: &Key) -> Vec<Option<(i64, i64)>> {
    use std::os::unix::fs::MetadataExt;
    let watched = key.preload.iter().flat_map(|preload| &preload.watched);
    std::iter::once(&key.executable)
        .chain(watched)
        .map(|path| std::fs::metadata(path).ok().map(|metadata| (metadata.mtime(), metadata.mtime_nsec())))
        .collect()
}

#[derive(Debug)]
enum Held {
    /// Killed and reaped when dropped.
    Child(tokio::process::Child),
    /// Spawned by the nursery, which reaps it; leaves when its control socket closes.
    Elsewhere(#[expect(dead_code, reason = "held to name the process")] OwnedFd),
}

/// One running template.
#[derive(Debug)]
pub struct Template {
    executable: PathBuf,
    is_inside: bool,
    control: Arc<Control>,
    next: std::sync::atomic::AtomicU64,
    shared: Arc<TemplateState>,
    reader: tokio::task::JoinHandle<()>,
    held: Held,
}

#[derive(Debug, Default)]
struct TemplateState {
    forks: Mutex<HashMap<u64, oneshot::Sender<String>>>,
    exits: Arc<Exits>,
    gone: std::sync::atomic::AtomicBool,
}

#[derive(Debug, Serialize)]
struct Config<'a> {
    preload: &'a [String],
    executable: &'a Path,
    prefix: Option<&'a Path>,
    python_path: &'a [String],
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    wire: Option<u32>,
    error: Option<String>,
    forked: Option<u64>,
    failed: Option<u64>,
    exit: Option<i32>,
    status: Option<i32>,
}

#[derive(Debug, Serialize)]
struct ForkRequest<'a> {
    op: &'static str,
    fork: u64,
    confine: Option<&'a serde_json::Value>,
}

/// What a template is started with: our ends and its own.
struct Beginning {
    executable: PathBuf,
    env: BTreeMap<String, String>,
    control: Control,
    log: OwnedFd,
    theirs: OwnedFd,
    log_end: OwnedFd,
    stdin: OwnedFd,
}

impl Beginning {
    fn new(key: &Key) -> Result<Self, Error> {
        let start = |source| Error::Start { executable: key.executable.clone(), source };
        let (control, theirs) = Control::pair().map_err(start)?;
        let (log, log_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| start(e.into()))?;
        let preload = key.preload.as_ref();
        let config = Config {
            preload: preload.map_or(&[], |preload| &preload.modules),
            executable: &key.executable,
            prefix: preload.and_then(|preload| preload.prefix.as_deref()),
            python_path: preload.map_or(&[], |preload| &preload.python_path),
        };
        let stdin = memory_file(&bootstrap("template", &config)).map_err(start)?;
        let mut env = key.env.clone();
        // UTF-8 whatever the locale says, as in every Python from 3.15 on.
        env.insert("PYTHONUTF8".to_owned(), "1".to_owned());
        env.entry("PATH".to_owned()).or_insert_with(|| "/usr/local/bin:/usr/bin:/bin".to_owned());
        Ok(Self { executable: key.executable.clone(), env, control, log, theirs, log_end, stdin })
    }

    fn argv(&self) -> [String; 4] {
        [self.executable.as_os_str().to_string_lossy().into_owned(), "-S".into(), "-c".into(), stage0().into()]
    }

    /// Those that become 0 to 4.
    fn descriptors<'a>(&'a self, program: BorrowedFd<'a>) -> [BorrowedFd<'a>; 5] {
        [self.stdin.as_fd(), self.log_end.as_fd(), self.log_end.as_fd(), self.theirs.as_fd(), program]
    }
}

fn broken(key: &Key, message: String) -> Error {
    Error::Broken { executable: key.executable.clone(), message }
}

impl Template {
    async fn start(key: &Key, program: BorrowedFd<'_>, nursery: Option<&Arc<Nursery>>) -> Result<Arc<Self>, Error> {
        let beginning = Beginning::new(key)?;
        let descriptors = beginning.descriptors(program);
        let held = match nursery {
            Some(nursery) => {
                let spawned = nursery.spawn(&beginning.argv(), &beginning.env, &descriptors).await;
                Held::Elsewhere(spawned.map_err(|error| broken(key, error.to_string()))?)
            }
            None => Held::Child(
                spawn(&key.executable, &beginning.env, descriptors)
                    .map_err(|source| Error::Start { executable: key.executable.clone(), source })?,
            ),
        };
        Self::hear(key, beginning, held).await
    }

    /// Starts it within walls: it is going to be the one worker in there. `request` is for the keeper that has them.
    pub async fn start_inside(
        key: &Key,
        nursery: &Arc<Nursery>,
        request: KeeperRequest,
        (cwd, limits): (&Path, BTreeMap<String, u64>),
    ) -> Result<(Arc<Self>, ConfinedKeeper), Error> {
        let beginning = Beginning::new(key)?;
        let null =
            File::open("/dev/null").map_err(|source| Error::Start { executable: key.executable.clone(), source })?;
        let descriptors = beginning.descriptors(null.as_fd());
        let (argv, env) = (beginning.argv(), beginning.env.clone());
        let program = Program { argv: argv.to_vec(), env, cwd: cwd.to_owned(), descriptors: descriptors.len(), limits };
        let request = KeeperRequest { program: Some(program), ..request };
        let keeper = nursery.keeper(&request, &descriptors).await.map_err(|error| broken(key, error.to_string()))?;
        let pidfd = keeper.pidfd.try_clone();
        let pidfd = pidfd.map_err(|source| Error::Start { executable: key.executable.clone(), source })?;
        Ok((Self::hear(key, beginning, Held::Elsewhere(pidfd)).await?, keeper))
    }

    /// Waits until it has said that it is ready.
    async fn hear(key: &Key, beginning: Beginning, held: Held) -> Result<Arc<Self>, Error> {
        let Beginning { control, log, theirs, log_end, stdin, .. } = beginning;
        let preload = key.preload.as_ref();
        drop((theirs, log_end, stdin));
        let tail = Arc::new(Mutex::new(Vec::new()));
        let log_task = pylair_os::event_loop::spawn(keep_tail(log, tail.clone()));
        let hello = control.receive_message::<Message>().await;
        let broken = |message: String| broken(key, message);
        match hello {
            Ok((Message { wire: Some(WIRE_VERSION), .. }, _)) => {}
            Ok((Message { wire: Some(other), .. }, _)) => {
                return Err(broken(format!("it speaks wire version {other}, this is version {WIRE_VERSION}")));
            }
            Ok((Message { error: Some(message), .. }, _)) if preload.is_some() => {
                return Err(Error::Preload { message });
            }
            Ok((message, _)) => {
                return Err(broken(message.error.unwrap_or_else(|| "it said something else".to_owned())));
            }
            Err(error) => {
                // Its last words are in the log pipe, which ends when it does.
                drop(held);
                let _ended = tokio::time::timeout(ANSWER_TIMEOUT, log_task).await;
                let tail = String::from_utf8_lossy(&tail.lock().expect("no panic while locked")).trim().to_owned();
                return Err(broken(if tail.is_empty() {
                    error.to_string()
                } else {
                    format!("{error}; it said: {tail}")
                }));
            }
        }
        let control = Arc::new(control);
        let shared = Arc::<TemplateState>::default();
        let reader = pylair_os::event_loop::spawn(read_template(control.clone(), shared.clone()));
        let (executable, is_inside) = (key.executable.clone(), key.inside);
        Ok(Arc::new(Self { executable, is_inside, control, next: 1.into(), shared, reader, held }))
    }

    /// Its pid, when it is a child of ours.
    pub fn pid(&self) -> Option<i32> {
        match &self.held {
            Held::Child(child) => child.id().and_then(|pid| i32::try_from(pid).ok()),
            Held::Elsewhere(_) => None,
        }
    }

    /// Whether it is within the walls of the worker that it becomes.
    pub fn is_inside(&self) -> bool {
        self.is_inside
    }

    fn is_gone(&self) -> bool {
        self.shared.gone.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Wait statuses of direct children, which the template reaps.
    pub fn exits(&self) -> &Arc<Exits> {
        &self.shared.exits
    }

    /// Asks for a worker with these descriptors. The answer, if one comes, is why it failed; success shows on the
    /// worker's own control socket.
    pub fn fork(
        &self,
        confine: Option<&serde_json::Value>,
        descriptors: &[BorrowedFd],
    ) -> Result<oneshot::Receiver<String>, Error> {
        let fork = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (failed, receiver) = oneshot::channel();
        self.shared.forks.lock().expect("no panic while locked").insert(fork, failed);
        self.control
            .send(&ForkRequest { op: "fork", fork, confine }, descriptors)
            .map_err(|error| Error::Fork { executable: self.executable.clone(), message: error.to_string() })?;
        Ok(receiver)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_template(control: Arc<Control>, shared: Arc<TemplateState>) {
    loop {
        let message: Message = match control.receive().await {
            Ok(datagram) if !datagram.bytes.is_empty() => match serde_json::from_slice(&datagram.bytes) {
                Ok(message) => message,
                Err(error) => {
                    tracing::warn!(%error, "a template sent something that is not a message");
                    break;
                }
            },
            _ => break,
        };
        let take = |fork: u64| shared.forks.lock().expect("no panic while locked").remove(&fork);
        match message {
            Message { forked: Some(fork), .. } => drop(take(fork)),
            Message { failed: Some(fork), error, .. } => {
                if let Some(failed) = take(fork) {
                    // The session may have given up waiting.
                    let _unheard = failed.send(error.unwrap_or_default());
                }
            }
            Message { exit: Some(pid), status: Some(status), .. } => shared.exits.record(pid, status),
            other => tracing::warn!(?other, "a template sent a message of no known kind"),
        }
    }
    shared.gone.store(true, std::sync::atomic::Ordering::Release);
    for (_, failed) in shared.forks.lock().expect("no panic while locked").drain() {
        let _unheard = failed.send("the template is gone".to_owned());
    }
}

fn spawn(
    executable: &Path,
    env: &BTreeMap<String, String>,
    descriptors: [BorrowedFd; 5],
) -> io::Result<tokio::process::Child> {
    let raw = descriptors.map(|descriptor| descriptor.as_raw_fd());
    let mut command = std::process::Command::new(executable);
    command.args(["-S", "-c", stage0()]).env_clear().envs(env).current_dir("/").stdin(Stdio::null());
    inherited::give_back(&mut command);
    // SAFETY: only async-signal-safe calls between fork and exec. Sources are first moved above the targets, so that no
    // target overwrites a source that is still needed; dup2 also clears close-on-exec on the targets.
    unsafe {
        command.pre_exec(move || {
            let mut moved = [-1; 5];
            for (slot, source) in moved.iter_mut().zip(raw) {
                *slot = libc::fcntl(source, libc::F_DUPFD_CLOEXEC, 10);
                if *slot < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            for (target, source) in (0..).zip(moved) {
                if libc::dup2(source, target) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            libc::setsid();
            Ok(())
        });
    }
    tokio::process::Command::from(command).kill_on_drop(true).spawn()
}

fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    let mut file = File::from(rustix::fs::memfd_create("pylair-bootstrap", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

async fn keep_tail(log: OwnedFd, tail: Arc<Mutex<Vec<u8>>>) {
    use tokio::io::AsyncReadExt;
    let Ok(mut log) = tokio::net::unix::pipe::Receiver::from_owned_fd(log) else { return };
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = log.read(&mut buffer).await {
        let mut tail = tail.lock().expect("no panic while locked");
        tail.extend_from_slice(&buffer[..count]);
        let excess = tail.len().saturating_sub(MAX_LOG_BYTES);
        tail.drain(..excess);
    }
}

/// Of whoever has asked for most templates, the one that is asked for now included, the one unused for longest.
fn least_needed(slots: &HashMap<Key, Slot>, asker: &Arc<str>) -> Option<Key> {
    let mut shares = Shares::default();
    for key in slots.keys() {
        shares.add(&key.owner, 1);
    }
    shares.add(asker, 1);
    let largest = shares.largest(|owner| slots.keys().any(|key| &*key.owner == owner))?;
    let theirs = slots.iter().filter(|(key, _)| key.owner == largest);
    theirs.min_by_key(|(_, slot)| slot.used).map(|(key, _)| key.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_templates_of_one_owner_take_none_of_anothers() {
        let began = Instant::now();
        let key = |owner: &str, seed: usize| Key {
            executable: "/usr/bin/python3".into(),
            env: [("PYTHONHASHSEED".to_owned(), seed.to_string())].into(),
            preload: None,
            confined: true,
            inside: false,
            owner: owner.into(),
        };
        let slot = |age: u64| Slot {
            template: Arc::default(),
            fingerprint: Vec::default(),
            used: began + Duration::from_secs(100 - age),
        };
        // The quiet one's are the oldest.
        let mut slots = HashMap::from([(key("quiet", 0), slot(99)), (key("quiet", 1), slot(98))]);
        slots.extend((2..10).map(|seed| (key("busy", seed), slot(50 - seed as u64))));
        for expected in 2..9 {
            let least = least_needed(&slots, &"busy".into()).unwrap();
            assert_eq!((&*least.owner, &*least.env["PYTHONHASHSEED"]), ("busy", &*expected.to_string()));
            slots.remove(&least);
        }
        assert_eq!(slots.keys().filter(|key| &*key.owner == "quiet").count(), 2);
        assert!(least_needed(&HashMap::new(), &"busy".into()).is_none());
    }

    #[test]
    fn only_import_time_variables_make_templates_differ() {
        let check = |name, preloads, expected| assert_eq!(belongs_to_template(name, preloads), expected, "{name}");
        check("PYTHONHASHSEED", false, true);
        check("PYTHONPATH", true, false);
        check("OMP_NUM_THREADS", false, false);
        check("OMP_NUM_THREADS", true, true);
        check("HOME", true, false);
    }

    #[test]
    fn a_template_outside_of_the_sandbox_loads_nothing_of_the_sessions_choice() {
        let env = ["PYTHONPYCACHEPREFIX", "PYTHONWARNINGS", "PYTHONHASHSEED"];
        let env: BTreeMap<String, String> =
            env.iter().map(|name| ((*name).to_owned(), "planted.Thing".to_owned())).collect();
        let interpreter = Interpreter {
            executable: "/usr/bin/python3".into(),
            version: "3.12.1".into(),
            implementation: "cpython".into(),
            prefix: "/usr".into(),
            base_prefix: "/usr".into(),
            base_executable: "/usr/bin/python3".into(),
            exec_prefix: "/usr".into(),
            base_exec_prefix: "/usr".into(),
            site_packages: Vec::new(),
            within: Vec::new(),
        };
        let names = |sandboxed| {
            let (interpreter, owner) = (&interpreter, &"me".into());
            let wanted = Wanted {
                interpreter,
                base: None,
                env: &env,
                preload: &[],
                python_path: &[],
                owner,
                confined: false,
                sandboxed,
                inside: false,
            };
            Key::new(&wanted).env.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["PYTHONHASHSEED"]);
        assert_eq!(names(false).len(), 3);
    }
}
