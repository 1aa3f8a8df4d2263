//! Finding interpreters and asking them what they are.
//!
//! Called by `session` when one is opened and by `doctor`. Owns the cache of answers; starts nothing that stays. What a caller may name
//! and where that is looked for is in `locate`, the environments of projects in `project`.

mod ask;
mod confined;
mod locate;
mod marker;
pub mod modules;
mod project;
pub mod requirement;
mod trusted;
mod venv;

pub mod lexer;

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::Duration,
};

pub use confined::{Choice, Search};
use locate::{Located, Tools, is_version, locate, of_version};
pub use locate::{candidates, is_python_name, on_path};
pub use requirement::Requirement;
pub use trusted::Trust;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use pylair_os::turns::Turns;

/// Asks an interpreter what it is. Must parse on Python 2, so that it can be told apart from what is no Python at all.
const ASK: &str = include_str!("../../../probe/pylair/bootstrap/ask.py");
pub const ASK_TIMEOUT: Duration = Duration::from_secs(20);
const OLDEST: (u32, u32) = (3, 8);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no Python interpreter was found: {tried}")]
    None { tried: String },
    #[error("Python interpreter not found at `{path}`")]
    NotFound { path: PathBuf },
    #[error("no Python {version} was found: {tried}")]
    NoVersion { version: String, tried: String },
    #[error("`{directory}` is neither a Python environment nor a project that has one: there is no {looked_for}")]
    NoEnvironment { directory: PathBuf, looked_for: String },
    #[error("`{name}` is neither a directory here nor the name of a Python: a command of that name is not run")]
    NotAPythonName { name: String },
    #[error("`{path}` may be a project's own program and can only be run inside a sandbox: {why}")]
    Strange { path: PathBuf, why: String },
    #[error("`{path}` was made by a confined session")]
    InWorkspace { path: PathBuf },
    #[error("`{path}` cannot be executed")]
    NotExecutable { path: PathBuf },
    #[error("`{path}` could not be started")]
    Start { path: PathBuf, source: io::Error },
    #[error("`{path}` is not a Python interpreter: {detail}")]
    NotPython { path: PathBuf, detail: String },
    #[error("`{path}` is Python {version}; pylair needs 3.8 or newer")]
    TooOld { path: PathBuf, version: String },
    #[error("`{path}` did not answer within {} seconds", ASK_TIMEOUT.as_secs())]
    Silent { path: PathBuf },
}

impl Error {
    fn no_version(version: &str, mut tried: Vec<String>) -> Self {
        let places = "python on PATH, pyenv and uv were looked through";
        tried.truncate(8);
        let tried = if tried.is_empty() { places.to_owned() } else { format!("{places}, {}", tried.join(", ")) };
        Self::NoVersion { version: version.to_owned(), tried }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            Self::None { .. } => "install Python 3.8 or newer, or pass `python` with the path of an interpreter",
            Self::NotFound { .. } => {
                "pass the path of an interpreter, of a virtual environment or of a project, or a version such as 3.12"
            }
            Self::NoVersion { .. } => {
                "install it, pass the path of an interpreter, or leave out `python`; `pylair doctor` lists what it finds"
            }
            Self::NoEnvironment { .. } => {
                "make the environment (`uv sync`, `poetry install`, `conda env create`, `python -m venv .venv`), or pass \
                 the path of an interpreter"
            }
            Self::NotAPythonName { .. } => {
                "pass a version such as 3.12, a name such as python3, or the path of an interpreter, of a virtual \
                 environment or of a project"
            }
            Self::Strange { .. } => {
                "name an interpreter of the system, of pyenv, uv or Conda, an environment of one, or set `python` in your own \
                 settings file to this one"
            }
            Self::InWorkspace { .. } => "pass an interpreter outside of pylair's own directories",
            Self::NotExecutable { .. } => "check its permissions, or pass another interpreter",
            Self::Start { .. } | Self::NotPython { .. } | Self::Silent { .. } => {
                "run it by hand with `-c 'print(1)'` to see what it does, or pass another interpreter"
            }
            Self::TooOld { .. } => "pass `python` with a newer interpreter; `pylair doctor` lists what it finds",
        }
    }
}

/// What an interpreter says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// The path to start it by; a venv's own path, never resolved, because that is what makes it the venv.
    pub executable: PathBuf,
    pub version: String,
    pub implementation: String,
    pub prefix: PathBuf,
    pub base_prefix: PathBuf,
    pub base_executable: PathBuf,
    pub exec_prefix: PathBuf,
    pub base_exec_prefix: PathBuf,
    /// Directories of packages, whose change makes a template with preloads stale.
    pub site_packages: Vec<PathBuf>,
    /// Where all of these have to lie, without symlinks, if a project said where they are: what it has links lead to is not shown to
    /// a session. Empty for an interpreter that is trusted.
    #[serde(skip)]
    pub within: Vec<PathBuf>,
}

impl Interpreter {
    pub fn is_venv(&self) -> bool {
        self.prefix != self.base_prefix
    }

    /// Whether it is an environment made for one purpose, which packages may be installed into. Conda's own base is none.
    pub fn is_environment(&self) -> bool {
        self.is_venv() || (self.prefix.join("conda-meta").is_dir() && !self.prefix.join("condabin").exists())
    }

    /// Everything of it that may lie outside the system's own directories.
    pub fn directories(&self) -> Vec<PathBuf> {
        let Self {
            executable, base_executable, prefix, base_prefix, exec_prefix, base_exec_prefix, site_packages, ..
        } = self;
        let mut paths: Vec<_> = [prefix, base_prefix, exec_prefix, base_exec_prefix, executable, base_executable]
            .into_iter()
            .chain(site_packages)
            // A prefix of `/` means the system's own directories, which are there anyway.
            .filter(|path| path.is_absolute() && path.parent().is_some())
            .cloned()
            .collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

/// Answers by path, device, inode and change time.
type InterpreterCache = Mutex<HashMap<(PathBuf, u64, u64, i64), Interpreter>>;

/// Interpreters asked so far.
#[derive(Debug, Default)]
pub struct Interpreters {
    known: InterpreterCache,
    /// As they are without what was installed into them.
    bare: InterpreterCache,
    /// Those that were asked inside a sandbox.
    inside: InterpreterCache,
    /// Each is asked once at a time: many sessions opened at once want the same answer.
    asking: Turns<PathBuf>,
    /// Where confined sessions and their installers write. Nothing there is run outside of them.
    closed: Vec<PathBuf>,
    trust: Arc<Trust>,
}

impl Interpreters {
    pub fn new(closed: Vec<PathBuf>, trust: Trust) -> Self {
        Self { closed, trust: Arc::new(trust), ..Self::default() }
    }

    /// Whether the file, or what it leads to, lies where confined sessions write.
    fn is_closed(&self, path: &Path) -> bool {
        let closed: Vec<_> = self.closed.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let lies_there =
            |path: &Path| path.canonicalize().is_ok_and(|path| closed.iter().any(|closed| path.starts_with(closed)));
        lies_there(path) || path.parent().is_some_and(lies_there)
    }

    /// Whether it is a program at all, and one that may be run.
    fn check(&self, path: &Path) -> Result<fs::Metadata, Error> {
        let metadata = fs::metadata(path).map_err(|_| Error::NotFound { path: path.to_owned() })?;
        if metadata.is_dir() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(Error::NotExecutable { path: path.to_owned() });
        }
        if self.is_closed(path) {
            return Err(Error::InWorkspace { path: path.to_owned() });
        }
        Ok(metadata)
    }

    /// The interpreter a caller means: what it names, else its virtual environment, its project's `.venv`, the
    /// configured one, or the first on its `PATH`.
    pub async fn resolve(
        &self,
        wanted: Option<&str>,
        configured: Option<&str>,
        cwd: &Path,
        env: &BTreeMap<String, String>,
    ) -> Result<Interpreter, Error> {
        if let Some(wanted) = wanted {
            return self.named(wanted, cwd, env).await;
        }
        if let Some(venv) = env.get("VIRTUAL_ENV").filter(|venv| !venv.is_empty()) {
            let python = Path::new(venv).join("bin/python");
            if python.exists() {
                return self.ask(&python, cwd, env).await;
            }
        }
        let project = cwd.join(".venv/bin/python");
        if project.exists() {
            return self.ask(&project, cwd, env).await;
        }
        if let Some(configured) = configured {
            return self.named(configured, cwd, env).await;
        }
        for name in ["python3", "python"] {
            if let Some(path) = on_path(name, env) {
                return self.ask(&path, cwd, env).await;
            }
        }
        Err(Error::None {
            tried: format!(
                "no VIRTUAL_ENV, no .venv in `{}`, and no python3 or python on PATH ({})",
                cwd.display(),
                env.get("PATH").map_or("", String::as_str)
            ),
        })
    }

    /// What a caller names: a path, an environment, a project directory, a version or a command.
    async fn named(&self, wanted: &str, cwd: &Path, env: &BTreeMap<String, String>) -> Result<Interpreter, Error> {
        if is_version(wanted) {
            return self.version(wanted, cwd, env).await;
        }
        match locate(wanted, cwd, env, Tools::Run).await? {
            Located::Executable(path) => self.ask(&path, cwd, env).await,
            Located::Version(version) => self.version(&version, cwd, env).await,
        }
    }

    /// The first interpreter that says it is this version. Others are passed over: `python3` is a different one everywhere, and a
    /// shim on `PATH` may lead nowhere.
    async fn version(&self, version: &str, cwd: &Path, env: &BTreeMap<String, String>) -> Result<Interpreter, Error> {
        let mut tried = Vec::new();
        for path in of_version(version, env, Tools::Run).await {
            match self.ask(&path, cwd, env).await {
                Ok(found) if is_of_version(&found.version, version) => return Ok(found),
                Ok(found) => tried.push(format!("`{}` is {}", path.display(), found.version)),
                Err(error @ Error::TooOld { .. }) => return Err(error),
                Err(_) => tried.push(format!("`{}` does not start", path.display())),
            }
        }
        Err(Error::no_version(version, tried))
    }

    /// Starts the interpreter once and remembers its answer until the file changes.
    pub async fn ask(&self, path: &Path, cwd: &Path, env: &BTreeMap<String, String>) -> Result<Interpreter, Error> {
        let mut command = Command::new(path);
        command
            .args(["-c", ASK])
            .env_clear()
            .envs(env.iter().filter(|(key, _)| !key.starts_with("PYTHON")))
            .current_dir(cwd);
        self.once(&self.known, path, ask(path, command)).await
    }

    /// The answer of one that is asked inside a sandbox, which `asking` does.
    pub async fn ask_inside(
        &self,
        path: &Path,
        asking: impl Future<Output = Result<Interpreter, Error>>,
    ) -> Result<Interpreter, Error> {
        self.once(&self.inside, path, asking).await
    }

    /// The answer that is known, or else the one that comes now.
    async fn once(
        &self,
        all: &InterpreterCache,
        path: &Path,
        asking: impl Future<Output = Result<Interpreter, Error>>,
    ) -> Result<Interpreter, Error> {
        let metadata = self.check(path)?;
        let key = (path.to_owned(), metadata.dev(), metadata.ino(), metadata.ctime());
        let known = || all.lock().expect("no panic while locked").get(&key).cloned();
        if let Some(known) = known() {
            return Ok(known);
        }
        let _turn = self.asking.take(path).await;
        if let Some(known) = known() {
            return Ok(known);
        }
        let interpreter = asking.await?;
        // A shim (pyenv, asdf) answers for another file, and for another one tomorrow.
        if interpreter.executable == path {
            all.lock().expect("no panic while locked").insert(key, interpreter.clone());
        }
        Ok(interpreter)
    }
}

async fn ask(path: &Path, command: Command) -> Result<Interpreter, Error> {
    let output = ask::listen(command, ASK_TIMEOUT)
        .await
        .map_err(|source| Error::Start { path: path.to_owned(), source })?
        .ok_or_else(|| Error::Silent { path: path.to_owned() })?;
    read_answer(path, output.status, &output.stdout, &output.stderr)
}

/// The words that ask an interpreter what it is.
pub fn question(path: &Path) -> Vec<String> {
    vec![path.display().to_string(), "-c".to_owned(), ASK.to_owned()]
}

/// The directory of the interpreter that an environment was made with, if this is in one. Blocks.
pub fn home_of_venv(path: &Path) -> Option<PathBuf> {
    venv::Venv::of(path).map(|venv| venv.home)
}

/// What an interpreter answered to [`question`].
pub fn read_answer(path: &Path, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Result<Interpreter, Error> {
    let text = String::from_utf8_lossy(stdout);
    // A sitecustomize may have printed before us: the answer is what follows the marker.
    let answer = text.rsplit_once("\u{1}pylair ").map(|(_, answer)| answer.trim());
    let Some(answer) = answer else {
        let said = String::from_utf8_lossy(if stderr.is_empty() { stdout } else { stderr });
        let said: String = said.trim().chars().take(300).collect();
        let detail = if said.is_empty() { status.to_string() } else { format!("{status}, it said: {said}") };
        return Err(Error::NotPython { path: path.to_owned(), detail });
    };
    let not_python = |detail: String| Error::NotPython { path: path.to_owned(), detail };
    let version = answer.split(' ').next().unwrap_or_default().to_owned();
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(Error::TooOld { path: path.to_owned(), version });
    }
    let details = answer.split_once(' ').map(|(_, details)| details).unwrap_or_default();
    serde_json::from_str(details).map_err(|error| not_python(error.to_string()))
}

/// Whether `3.12.4` is what was meant by `3.12`.
fn is_of_version(version: &str, wanted: &str) -> bool {
    version == wanted || version.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.'))
}
