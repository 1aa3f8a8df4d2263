//! Packages of sessions: installing them into the session's own environment, or into a venv that is made for it when its interpreter
//! belongs to the system, and knowing which package a missing module comes in.
//!
//! Called by `session`. Owns the venvs it makes; never installs into an interpreter that is not an environment. Tells the journal what it
//! has installed.

mod installer;
mod inventory;
mod names;
mod view;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use installer::{Finished, Installer, Surroundings, make_venv};
pub use installer::{Inside, installer_env};
pub use names::hint_for;
use pylair_files::remove_tree;
use pylair_journal::{EventKind, Journal};
use pylair_os::turns::Turns;
use pylair_python::Interpreter;
pub use pylair_python::requirement::Requirement;
use pylair_sandbox::cgroup::Groups;
use pylair_workers::nursery::Nursery;

/// How many packages of an environment are listed.
const MAX_LOCK: usize = 1000;
/// How many of an installer's last lines are shown, when it failed and when it did not.
const SHOWN_LINES: usize = 15;
const SHOWN_LINES_OF_SUCCESS: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Requirement(#[from] pylair_python::requirement::Bad),
    #[error("neither uv nor pip was found for `{}`", python.display())]
    NoInstaller { python: PathBuf },
    #[error("`{}` could not make a virtual environment: {said}", python.display())]
    MakeVenv { python: PathBuf, said: String },
    #[error("the directory `{}` for the session's packages cannot be made", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("nothing can be installed into the environment `{}`", path.display())]
    Environment { path: PathBuf, source: io::Error },
    #[error("`{}` could not be run", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("{installer} failed:\n{}", tail.join("\n"))]
    Failed { installer: String, tail: Vec<String> },
    #[error("installing took longer than {} s and was stopped; it had said:\n{}", limit.as_secs(), tail.join("\n"))]
    Timeout { limit: Duration, tail: Vec<String> },
    #[error("the session was closed while packages were installed for it")]
    Closed,
    #[error("packages for a confined session are installed in a sandbox, and no sandbox is available: {why}")]
    Sandbox { why: String },
}

impl Error {
    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Requirement(_) => "bad_argument",
            Self::Timeout { .. } => "install_timed_out",
            Self::Sandbox { .. } => "sandbox_unavailable",
            _ => "install_failed",
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Self::Requirement(_) => {
                "pass names as on PyPI, with versions if they matter: [\"numpy\", \"pandas>=2,<3\"]".to_owned()
            }
            Self::NoInstaller { python } => {
                format!("install uv, or run `{} -m ensurepip`", python.display())
            }
            Self::MakeVenv { .. } => {
                "open a session with `python` set to a virtual environment; on Debian, python3-venv is a package"
                    .to_owned()
            }
            Self::Directory { .. } | Self::Start { .. } => "see the cause above".to_owned(),
            Self::Environment { .. } => "open a session with another `python`, or with none".to_owned(),
            Self::Closed => "open another session".to_owned(),
            Self::Sandbox { .. } => {
                "set `sandbox_best_effort = true` to install without one, or open the session with the profile `open`"
                    .to_owned()
            }
            Self::Failed { tail, .. } => failure_hint(&tail.join("\n")).to_owned(),
            Self::Timeout { .. } => "try fewer packages at once, or raise `install_timeout_s`".to_owned(),
        }
    }
}

/// What to do about what an installer said.
fn failure_hint(said: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&[
        "name resolution",
        "Failed to fetch",
        "Network is unreachable",
        "NewConnectionError",
        "dns error",
        "Connection refused",
    ]) {
        "the package index cannot be reached: check the network, or the index settings in the session's environment"
    } else if says(&["from versions: none", "was not found in the", "was not found in the package registry"]) {
        "there is no such package, or none for this Python: check the spelling; the name of a package may differ from that of its module"
    } else if says(&[
        "No matching distribution",
        "no version of",
        "there is no version",
        "has no wheels",
        "Requires-Python",
    ]) {
        "there is no such version for this Python: ask for another version, or open a session with another `python`"
    } else if says(&[
        "ResolutionImpossible",
        "conflicting dependencies",
        "No solution found",
        "requirements are unsatisfiable",
    ]) {
        "the versions contradict each other: loosen them, or install the packages in separate sessions"
    } else if says(&[
        "Failed building",
        "Failed to build",
        "subprocess-exited-with-error",
        "metadata-generation-failed",
    ]) {
        "it has to be compiled here and that failed: try a version that has a wheel for this Python, or install what its build needs"
    } else if says(&["Device or resource busy"]) {
        "a package brings a program that would replace the environment's interpreter, which it may not for a session in a sandbox"
    } else if says(&["Permission denied", "Read-only file system"]) {
        "the environment cannot be written to: open the session with an environment of your own"
    } else if says(&["No space left"]) {
        "the disk is full"
    } else {
        "the lines above are the installer's own"
    }
}

/// One package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Package {
    pub name: String,
    pub version: String,
}

/// What an install did.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Installed {
    pub session: String,
    /// Where the packages went.
    pub environment: String,
    /// The interpreter that has them, for processes the session starts: `sys.executable` is another one. First on the session's `PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    pub installer: String,
    /// New packages, or new versions.
    pub installed: Vec<Package>,
    /// Everything the environment has.
    pub lock: Vec<String>,
    pub notes: Vec<String>,
    /// The installer's last lines.
    pub output: String,
    pub seconds: f64,
    /// Modules of what was installed, to be compared with those the session has loaded.
    #[serde(skip)]
    pub modules: BTreeMap<String, Package>,
    /// Where the session has to look from now on.
    #[serde(skip)]
    pub site: Site,
}

impl Installed {
    /// In words, for a reader that pays for each.
    pub fn text(&self) -> String {
        let names: Vec<_> =
            self.installed.iter().map(|package| format!("{} {}", package.name, package.version)).collect();
        let names = if names.is_empty() { "nothing new".to_owned() } else { names.join(", ") };
        let mut text = format!("{}: {names}\ninto {} in {:.1} s", self.installer, self.environment, self.seconds);
        if let Some(python) = &self.python {
            text.push_str("\nChild processes find them with ");
            text.push_str(python);
            text.push_str(", which is `python` on the session's PATH, not with sys.executable.");
        }
        for note in &self.notes {
            text.push_str("\nNote: ");
            text.push_str(note);
            text.push('.');
        }
        text.push_str("\nLock: ");
        text.push_str(&self.lock.join(" "));
        text
    }

    /// The session had loaded some of it before: that is what it goes on with.
    pub fn note_loaded(&mut self, loaded: &[String]) {
        for (module, package) in &self.modules {
            if loaded.contains(module) {
                self.notes.push(format!(
                    "{module} was already imported: restart_session to use {} {}",
                    package.name, package.version
                ));
            }
        }
    }
}

/// A directory of packages and the programs that came with them, as the probe's `site` request takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    pub directory: PathBuf,
    /// Empty for an environment that the session was opened with: its programs are on `PATH` if the caller wants them there.
    pub programs: Vec<PathBuf>,
}

impl Site {
    /// Of an environment, which has its packages under a name that depends on its version.
    fn of(prefix: &Path) -> Option<Self> {
        let entries = fs::read_dir(prefix.join("lib")).ok()?.flatten();
        let directory = entries.map(|entry| entry.path().join("site-packages")).find(|path| path.is_dir())?;
        // Programs of packages that were installed in a sandbox are apart.
        let scripts = Some(prefix.join(view::SCRIPTS)).filter(|path| path.is_dir());
        Some(Self { directory, programs: std::iter::once(prefix.join("bin")).chain(scripts).collect() })
    }
}

/// Where the packages of one session go, shared with the sessions that were branched off from it.
#[derive(Debug)]
pub struct Environment {
    packages: Arc<Packages>,
    directory: PathBuf,
    /// Of the venv in the directory, once there is one.
    site: Mutex<Option<Site>>,
    /// On the directory, so that another daemon does not take it for one that was left behind.
    lock: Mutex<Option<File>>,
    usage: Mutex<Usage>,
}

/// Who needs an environment.
#[derive(Debug, Default)]
struct Usage {
    /// The handles of the open sessions that use it.
    users: HashSet<Arc<str>>,
    /// The session it was made for has ended and will come back.
    kept: bool,
    /// Whoever installs into it has to stop. Another one when it is used again.
    closing: CancellationToken,
}

impl Environment {
    /// What every worker of the session has to be told, if a venv was made for it.
    pub fn site(&self) -> Option<Site> {
        self.site.lock().expect("no panic while locked").clone()
    }

    /// The same, and where the programs of packages are that were installed for it into the environment it was opened with.
    pub fn site_with(&self, interpreter: &Interpreter) -> Option<Site> {
        let scripts = || Some(self.directory.join(view::SCRIPTS)).filter(|path| path.is_dir());
        let directory = || interpreter.is_environment().then(|| interpreter.site_packages.first().cloned())?;
        self.site().or_else(|| Some(Site { directory: directory()?, programs: vec![scripts()?] }))
    }

    /// Where the venv is, or would be.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the directory, for everybody to read: what a confined worker sees is settled when it starts, and it may be another user.
    pub fn show_to_confined(&self) {
        let made =
            self.make_directory().and_then(|()| fs::set_permissions(&self.directory, Permissions::from_mode(0o755)));
        if let Err(error) = made {
            tracing::warn!(%error, path = %self.directory.display(), "packages cannot be installed for a confined session");
        }
    }

    fn make_directory(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.mark_used()
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().expect("no panic while locked")
    }

    fn is_made_for(&self, handle: &str) -> bool {
        self.directory.file_name().is_some_and(|name| name == handle)
    }

    /// One more session uses it.
    pub fn hold(&self, handle: &Arc<str>) {
        let mut usage = self.usage();
        usage.users.insert(handle.clone());
        if self.is_made_for(handle) {
            usage.kept = false;
        }
        if usage.closing.is_cancelled() {
            usage.closing = CancellationToken::new();
        }
    }

    /// A session that used it has ended. The last one takes the venv with it, unless the one it was made for will come back.
    pub async fn release(&self, handle: &str, keep: bool) {
        let closing = {
            let mut usage = self.usage();
            usage.users.remove(handle);
            if self.is_made_for(handle) {
                usage.kept = keep;
            }
            if !usage.users.is_empty() {
                return;
            }
            usage.closing.clone()
        };
        closing.cancel();
        // Whoever was installing has let go once it is our turn.
        let _turn = self.packages.turns.take(&self.directory).await;
        let keep = {
            let usage = self.usage();
            if !usage.users.is_empty() {
                return;
            }
            usage.kept
        };
        self.lock.lock().expect("no panic while locked").take();
        if keep {
            return;
        }
        self.site.lock().expect("no panic while locked").take();
        let directory = self.directory.clone();
        let removed = tokio::task::spawn_blocking(move || remove_tree(&directory)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, path = %self.directory.display(), "the packages of a session could not be removed");
        }
    }

    /// Installs, waiting for its turn first. Each line the installer prints is offered to `lines`. Dropping the future stops it.
    pub async fn install(&self, order: Order<'_>, lines: &mpsc::Sender<String>) -> Result<Installed, Error> {
        let closing = self.usage().closing.clone();
        tokio::select! {
            installed = self.install_in_turn(order, lines) => installed,
            () = closing.cancelled() => Err(Error::Closed),
        }
    }

    async fn install_in_turn(&self, order: Order<'_>, lines: &mpsc::Sender<String>) -> Result<Installed, Error> {
        let is_managed = !order.interpreter.is_environment();
        let prefix = if is_managed { &self.directory } else { &order.interpreter.prefix };
        let asked = Instant::now();
        let mut waited = false;
        let _turn = if let Some(turn) = self.packages.turns.try_take(prefix) {
            turn
        } else {
            waited = true;
            self.packages.turns.take(prefix).await
        };
        let started = Instant::now();
        let around = Surroundings {
            env: order.env,
            cwd: order.cwd,
            deadline: started + order.limit,
            limit: order.limit,
            lines: Some(lines),
            confined: order.confined,
            inside: None,
        };
        let Ran { installer, tail, python, site, before, after } = self.run(&order, around, is_managed).await?;
        let changed = inventory::changes(&before, &after);
        let package =
            |found: &inventory::InstalledPackage| Package { name: found.name.clone(), version: found.version.clone() };
        let installed: Vec<Package> = changed.iter().map(package).collect();
        let modules = tokio::task::spawn_blocking(move || {
            let all = changed.iter().flat_map(|found| {
                inventory::modules(found)
                    .into_iter()
                    .map(|module| (module, Package { name: found.name.clone(), version: found.version.clone() }))
            });
            all.collect()
        });
        if !installed.is_empty() {
            let packages = installed.iter().map(|package| format!("{}=={}", package.name, package.version)).collect();
            let environment = prefix.display().to_string();
            let event = EventKind::PackagesInstalled { packages, environment };
            self.packages.journal.record(order.owner, order.handle, event);
        }
        let mut notes = Vec::new();
        if waited {
            let seconds = started.duration_since(asked).as_secs_f64();
            notes.push(format!("another install into this environment had to end first, which took {seconds:.1} s"));
        }
        if installed.is_empty() {
            notes.push("nothing was installed: all of it was there already".to_owned());
        }
        let mut lock: Vec<String> = after.values().map(|found| format!("{}=={}", found.name, found.version)).collect();
        if lock.len() > MAX_LOCK {
            notes.push(format!("only {MAX_LOCK} of {} packages are listed in the lock", lock.len()));
            lock.truncate(MAX_LOCK);
        }
        Ok(Installed {
            session: order.session.to_owned(),
            environment: prefix.display().to_string(),
            python: is_managed.then(|| python.display().to_string()),
            installer,
            installed,
            lock,
            notes,
            output: last(tail, SHOWN_LINES_OF_SUCCESS).join("\n"),
            seconds: (started.elapsed().as_secs_f64() * 100.0).round() / 100.0,
            modules: modules.await.unwrap_or_default(),
            site,
        })
    }

    /// Runs the installer, in a sandbox if the order has one.
    async fn run(&self, order: &Order<'_>, around: Surroundings<'_>, is_managed: bool) -> Result<Ran, Error> {
        if order.confined && order.sandbox.is_none() && !is_managed {
            let why = "the environment may be a project's, whose programs are not run outside of one".to_owned();
            return Err(Error::Sandbox { why });
        }
        let making = match order.sandbox {
            Some((nursery, groups, outer_id)) => {
                Some(self.inside((nursery, groups), outer_id, order.interpreter).await?)
            }
            None => None,
        };
        let around = Surroundings { inside: making.as_ref(), ..around };
        let mut directories = order.interpreter.site_packages.clone();
        let (prefix, mut python, mut site) = if is_managed {
            let site = self.prepare(order.interpreter, around).await?;
            directories.insert(0, site.directory.clone());
            (&self.directory, self.directory.join("bin/python"), site)
        } else {
            let site = Site { directory: directories.first().cloned().unwrap_or_default(), programs: Vec::new() };
            (&order.interpreter.prefix, order.interpreter.executable.clone(), site)
        };
        let installing = match &making {
            Some(inside) => Some(inside.clone().prepared(prefix, &directories).await?),
            None => None,
        };
        let around = Surroundings { inside: installing.as_ref(), ..around };
        if let Some(view) = installing.as_ref().and_then(|inside| inside.view.as_ref()) {
            python = view.python(&python);
            let scripts = self.directory.join(view::SCRIPTS);
            if !site.programs.contains(&scripts) {
                site.programs.push(scripts);
            }
        }
        let installer = Installer::find(&python, is_managed, around).await?;
        let before = take_inventory(directories.clone()).await;
        let finished = installer.install(order.requirements, around).await;
        if let Some(inside) = &installing {
            inside.settle().await?;
        }
        let Finished { status, tail } = finished?;
        if !status.success() {
            return Err(Error::Failed { installer: installer.name, tail: last(tail, SHOWN_LINES) });
        }
        if is_managed {
            *self.site.lock().expect("no panic while locked") = Some(site.clone());
        }
        let after = take_inventory(directories).await;
        Ok(Ran { installer: installer.name, tail, python, site, before, after })
    }

    /// The sandbox for an installer. It is whoever this session's directory for packages belongs to, which under root is nobody else.
    async fn inside(
        &self,
        (nursery, groups): (&Arc<Nursery>, &Arc<Groups>),
        outer_id: Option<u32>,
        interpreter: &Interpreter,
    ) -> Result<Inside, Error> {
        let failed = |source| Error::Directory { path: self.directory.clone(), source };
        self.make_directory().map_err(failed)?;
        let directory = self.directory.clone();
        let owned = tokio::task::spawn_blocking(move || {
            let Some(outer_id) = outer_id else { return Ok(None) };
            let owner = fs::metadata(&directory)?.uid();
            if owner != 0 {
                return Ok(Some(owner));
            }
            std::os::unix::fs::chown(&directory, Some(outer_id), Some(outer_id))?;
            Ok(Some(outer_id))
        });
        let outer_id = owned.await.map_err(io::Error::other).and_then(|owned| owned).map_err(failed)?;
        let (nursery, groups, read_only) = (nursery.clone(), groups.clone(), interpreter.directories());
        let within = interpreter.within.clone();
        Ok(Inside { nursery, groups, outer_id, own: self.directory.clone(), view: None, read_only, within })
    }

    /// The session's venv, made if there is none yet.
    async fn prepare(&self, interpreter: &Interpreter, around: Surroundings<'_>) -> Result<Site, Error> {
        if let Some(site) = self.site() {
            return Ok(site);
        }
        let failed = |source| Error::Directory { path: self.directory.clone(), source };
        self.make_directory().map_err(failed)?;
        make_venv(&interpreter.executable, &self.directory, around).await?;
        let adopted = self.adopt().map_err(failed)?;
        adopted.ok_or_else(|| failed(io::Error::other("it has no site-packages")))
    }

    /// Takes the venv in its directory, if there is one.
    fn adopt(&self) -> io::Result<Option<Site>> {
        let Some(site) = Site::of(&self.directory) else { return Ok(None) };
        self.mark_used()?;
        *self.site.lock().expect("no panic while locked") = Some(site.clone());
        Ok(Some(site))
    }

    fn mark_used(&self) -> io::Result<()> {
        let mut lock = self.lock.lock().expect("no panic while locked");
        if lock.is_none() {
            let directory = File::open(&self.directory)?;
            flock(&directory, FlockOperation::NonBlockingLockShared)?;
            *lock = Some(directory);
        }
        Ok(())
    }
}

/// What an installer did.
struct Ran {
    installer: String,
    tail: Vec<String>,
    /// What it installed with.
    python: PathBuf,
    site: Site,
    before: inventory::Inventory,
    after: inventory::Inventory,
}

/// What to install, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    pub session: &'a str,
    pub owner: &'a Arc<str>,
    pub handle: &'a Arc<str>,
    pub interpreter: &'a Interpreter,
    pub env: &'a BTreeMap<String, String>,
    pub cwd: &'a Path,
    pub confined: bool,
    /// What makes a sandbox for the installer, where its processes are counted, and who that is outside.
    pub sandbox: Option<(&'a Arc<Nursery>, &'a Arc<Groups>, Option<u32>)>,
    pub requirements: &'a [Requirement],
    /// How long it may take.
    pub limit: Duration,
}

/// The packages of all sessions.
#[derive(Debug)]
pub struct Packages {
    /// Where venvs are made, one directory for each session that needs one.
    root: PathBuf,
    /// One install at a time into each environment.
    turns: Turns<PathBuf>,
    /// By their directories: a session that comes back shares its own with those that were branched off it.
    environments: Mutex<HashMap<PathBuf, Weak<Environment>>>,
    journal: Journal,
}

impl Packages {
    pub fn new(root: PathBuf, journal: Journal) -> Self {
        Self { root, turns: Turns::default(), environments: Mutex::default(), journal }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the packages of this session go. A venv that was made for it before is taken up again.
    pub fn environment(self: &Arc<Self>, handle: &str) -> Arc<Environment> {
        let directory = self.root.join(handle);
        let mut environments = self.environments.lock().expect("no panic while locked");
        environments.retain(|_, environment| environment.strong_count() > 0);
        let environment = environments.get(&directory).and_then(Weak::upgrade).unwrap_or_else(|| {
            let environment = Arc::new(Environment {
                packages: self.clone(),
                directory: directory.clone(),
                site: Mutex::default(),
                lock: Mutex::default(),
                usage: Mutex::default(),
            });
            environments.insert(directory, Arc::downgrade(&environment));
            environment
        });
        if let Err(error) = environment.adopt() {
            tracing::warn!(%error, path = %environment.directory.display(), "a session's packages cannot be used");
        }
        environment
    }

    /// The session of this handle, which has ended, will not come back.
    pub async fn forget(self: &Arc<Self>, handle: &str) {
        self.environment(handle).release(handle, false).await;
    }

    /// Removes, in the background, venvs that a daemon left behind when it was killed, except those of sessions that will come back.
    pub fn sweep(&self, keep: impl Fn(&str) -> bool) {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.file_name().to_str().is_some_and(|handle| !keep(handle)));
        let left: Vec<(PathBuf, File)> = left
            .filter_map(|entry| {
                let directory = File::open(entry.path()).ok()?;
                flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
                Some((entry.path(), directory))
            })
            .collect();
        if left.is_empty() {
            return;
        }
        tokio::task::spawn_blocking(move || {
            for (path, _lock) in left {
                if let Err(error) = remove_tree(&path) {
                    tracing::warn!(%error, path = %path.display(), "packages of a former session could not be removed");
                }
            }
        });
    }
}

async fn take_inventory(directories: Vec<PathBuf>) -> inventory::Inventory {
    tokio::task::spawn_blocking(move || inventory::take(&directories)).await.unwrap_or_default()
}

fn last(mut lines: Vec<String>, count: usize) -> Vec<String> {
    lines.drain(..lines.len().saturating_sub(count));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_installers_say_leads_to_a_way_out() {
        for (said, hint) in [
            (
                "ERROR: Could not find a version that satisfies the requirement numpi (from versions: none)",
                "no such package",
            ),
            ("  ╰─▶ Because numpi was not found in the package registry and you require numpi", "no such package"),
            (
                "ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 1.0)\nERROR: No matching distribution",
                "no such version",
            ),
            ("  ╰─▶ Because there is no version of six==99 and you require six==99", "no such version"),
            ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "cannot be reached"),
            ("error: subprocess-exited-with-error", "compiled"),
            ("what?", "installer's own"),
        ] {
            assert!(failure_hint(said).contains(hint), "{said}: {}", failure_hint(said));
        }
    }
}
