//! Finding interpreters and asking them what they are.
//!
//! Called by `session` when one is opened and by `doctor`. Owns the cache of answers; starts nothing that stays.

pub mod lexer;

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// Asks an interpreter what it is. Must parse on Python 2, so that it can be told apart from what is no Python at all.
const ASK: &str = include_str!("../../probe/pylair/bootstrap/ask.py");
const ASK_TIMEOUT: Duration = Duration::from_secs(20);
const OLDEST: (u32, u32) = (3, 8);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no Python interpreter was found: {tried}")]
    None { tried: String },
    #[error("Python interpreter not found at `{path}`")]
    NotFound { path: PathBuf },
    #[error("`{path}` cannot be executed")]
    NotExecutable { path: PathBuf },
    #[error("`{path}` could not be started")]
    Start { path: PathBuf, source: io::Error },
    #[error("`{path}` is not a Python interpreter: {detail}")]
    NotPython { path: PathBuf, detail: String },
    #[error("`{path}` is Python {version}; pylair needs 3.8 or newer")]
    TooOld { path: PathBuf, version: String },
    #[error("`{path}` did not say what it is within {} seconds", ASK_TIMEOUT.as_secs())]
    Silent { path: PathBuf },
}

impl Error {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::None { .. } => "install Python 3.8 or newer, or pass `python` with the path of an interpreter",
            Self::NotFound { .. } => {
                "pass the path of an interpreter, of a virtual environment, or a version such as 3.12"
            }
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
}

impl Interpreter {
    pub fn is_venv(&self) -> bool {
        self.prefix != self.base_prefix
    }
}

/// Interpreters asked so far, by path, device, inode and change time.
#[derive(Debug, Default)]
pub struct Interpreters {
    known: Mutex<HashMap<(PathBuf, u64, u64, i64), Interpreter>>,
    /// One is asked at a time: many sessions opened at once want the same answer.
    asking: tokio::sync::Mutex<()>,
}

impl Interpreters {
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
            return self.ask(&locate(wanted, cwd, env)?, cwd, env).await;
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
            return self.ask(&locate(configured, cwd, env)?, cwd, env).await;
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

    /// Starts the interpreter once and remembers its answer until the file changes.
    pub async fn ask(&self, path: &Path, cwd: &Path, env: &BTreeMap<String, String>) -> Result<Interpreter, Error> {
        let metadata = fs::metadata(path).map_err(|_| Error::NotFound { path: path.to_owned() })?;
        if metadata.is_dir() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(Error::NotExecutable { path: path.to_owned() });
        }
        let key = (path.to_owned(), metadata.dev(), metadata.ino(), metadata.ctime());
        let known = || self.known.lock().expect("no panic while locked").get(&key).cloned();
        if let Some(known) = known() {
            return Ok(known);
        }
        let _turn = self.asking.lock().await;
        if let Some(known) = known() {
            return Ok(known);
        }
        let interpreter = ask(path, cwd, env).await?;
        // A shim (pyenv, asdf) answers for another file, and for another one tomorrow.
        if interpreter.executable == path {
            self.known.lock().expect("no panic while locked").insert(key, interpreter.clone());
        }
        Ok(interpreter)
    }
}

async fn ask(path: &Path, cwd: &Path, env: &BTreeMap<String, String>) -> Result<Interpreter, Error> {
    let mut command = Command::new(path);
    command
        .args(["-c", ASK])
        .env_clear()
        .envs(env.iter().filter(|(key, _)| !key.starts_with("PYTHON")))
        .current_dir(cwd)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(ASK_TIMEOUT, command.output())
        .await
        .map_err(|_| Error::Silent { path: path.to_owned() })?
        .map_err(|source| Error::Start { path: path.to_owned(), source })?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    // A sitecustomize may have printed before us: the answer is what follows the marker.
    let answer = stdout.rsplit_once("\u{1}pylair ").map(|(_, answer)| answer.trim());
    let Some(answer) = answer else {
        let said = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
        let said: String = said.trim().chars().take(300).collect();
        let detail =
            if said.is_empty() { output.status.to_string() } else { format!("{}, it said: {said}", output.status) };
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

/// A path, a virtual environment, a version or a command name, to the file that starts it.
fn locate(wanted: &str, cwd: &Path, env: &BTreeMap<String, String>) -> Result<PathBuf, Error> {
    let is_version = !wanted.is_empty() && wanted.chars().all(|c| c.is_ascii_digit() || c == '.');
    if is_version {
        return on_path(&format!("python{wanted}"), env)
            .ok_or_else(|| Error::None { tried: format!("no python{wanted} on PATH") });
    }
    if !wanted.contains('/')
        && let Some(path) = on_path(wanted, env)
    {
        return Ok(path);
    }
    let path = match (wanted.strip_prefix("~/"), env.get("HOME")) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => cwd.join(wanted),
    };
    if path.is_dir() {
        for inside in ["bin/python", "bin/python3", ".venv/bin/python"] {
            if path.join(inside).exists() {
                return Ok(path.join(inside));
            }
        }
    }
    Ok(path)
}

fn on_path(name: &str, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let path = env.get("PATH")?;
    path.split(':').filter(|dir| dir.starts_with('/')).map(|dir| Path::new(dir).join(name)).find(|candidate| {
        fs::metadata(candidate).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// Every interpreter on the `PATH` of this environment, for `doctor`.
pub fn candidates(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in std::iter::once("python3".to_owned()).chain((8..=15).map(|minor| format!("python3.{minor}"))) {
        found.extend(on_path(&name, env));
    }
    found
}
