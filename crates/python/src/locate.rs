//! From what a caller names to files that may be interpreters. Looks at files and starts only `uv`, which is asked where its own are.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::process::Command;

use super::{Error, ask, project};

const TOOL_TIMEOUT: Duration = Duration::from_secs(20);

/// What a name led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Located {
    Executable(PathBuf),
    /// A project that says which version it wants, and has no environment of its own.
    Version(String),
}

/// Whether tools may be run that know where interpreters are. They look at a project, and what it names they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tools {
    Run,
    Leave,
}

pub(super) fn is_version(wanted: &str) -> bool {
    wanted.starts_with(|c: char| c.is_ascii_digit()) && wanted.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// A path, an environment, a project directory or the name of a Python. A directory comes before a command.
pub(super) async fn locate(
    wanted: &str,
    cwd: &Path,
    env: &BTreeMap<String, String>,
    tools: Tools,
) -> Result<Located, Error> {
    let path = match (wanted.strip_prefix('~'), env.get("HOME")) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            Path::new(home).join(rest.trim_start_matches('/'))
        }
        _ => cwd.join(wanted),
    };
    let is_word = !wanted.contains('/');
    let command = is_word.then(|| is_python_name(wanted).then(|| on_path(wanted, env)).flatten()).flatten();
    if path.is_dir() {
        if let Some(python) = in_prefix(&path) {
            return Ok(Located::Executable(python));
        }
        // A directory `python` is in many projects, and only sometimes an environment.
        return match (project::environment(&path, env, tools).await, command) {
            (Err(Error::NoEnvironment { .. }), Some(command)) => Ok(Located::Executable(command)),
            (located, _) => located,
        };
    }
    match command {
        Some(command) => Ok(Located::Executable(command)),
        None if is_word && !path.exists() && !is_python_name(wanted) => {
            Err(Error::NotAPythonName { name: wanted.to_owned() })
        }
        None => Ok(Located::Executable(path)),
    }
}

/// Whether a command of this name can be meant as an interpreter: `python`, `python3.12`, `python3.13t`, `pypy3`. Other commands are not
/// run to find out.
pub fn is_python_name(name: &str) -> bool {
    let rest = ["python", "pypy", "graalpy"].iter().find_map(|kind| name.strip_prefix(kind));
    let numbers = |rest: &str| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned();
    rest.is_some_and(|rest| ["", "-dbg", "d", "t", "td"].contains(&numbers(rest).as_str()))
}

/// The interpreter of an environment: a venv, a Conda prefix, or any other directory laid out like one.
pub(super) fn in_prefix(prefix: &Path) -> Option<PathBuf> {
    ["bin/python", "bin/python3"].iter().map(|inside| prefix.join(inside)).find(|python| python.exists())
}

/// Files that may be this version, the likeliest first.
pub(super) async fn of_version(version: &str, env: &BTreeMap<String, String>, tools: Tools) -> Vec<PathBuf> {
    let mut minor = version.to_owned();
    if let Some((at, _)) = version.match_indices('.').nth(1) {
        minor.truncate(at);
    }
    let mut found: Vec<PathBuf> = [format!("python{minor}"), "python3".to_owned(), "python".to_owned()]
        .iter()
        .filter_map(|name| on_path(name, env))
        .collect();
    let home = env.get("HOME").map(PathBuf::from);
    let under_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let pyenv = env.get("PYENV_ROOT").map(PathBuf::from).or_else(|| under_home(".pyenv"));
    if let Some(pyenv) = pyenv {
        found.extend(newest_first(&pyenv.join("versions"), "", version));
    }
    let data = env.get("XDG_DATA_HOME").map(PathBuf::from).or_else(|| under_home(".local/share"));
    let uv = env.get("UV_PYTHON_INSTALL_DIR").map(PathBuf::from).or_else(|| Some(data?.join("uv/python")));
    if let Some(uv) = uv {
        found.extend(newest_first(&uv, "cpython-", version));
    }
    if found.is_empty()
        && tools == Tools::Run
        && let Some(uv) = on_path("uv", env)
    {
        // Not where the caller is: a project there might want another one.
        found.extend(ask_tool(&uv, &["python", "find", "--system", version], Path::new("/"), env).await);
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|path| seen.insert(path.clone()));
    found
}

/// Interpreters in directories called by their version.
fn newest_first(directory: &Path, prefix: &str, version: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix(prefix)?.split(['-', '+']).next()?;
            let parts = number.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
            super::is_of_version(number, version).then_some(())?;
            Some((parts, in_prefix(&entry.path())?))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The path a tool prints, if it knows one.
pub(super) async fn ask_tool(
    tool: &Path,
    args: &[&str],
    cwd: &Path,
    env: &BTreeMap<String, String>,
) -> Option<PathBuf> {
    let mut command = Command::new(tool);
    command
        .args(args)
        .env_clear()
        .envs(env.iter().filter(|(key, _)| !key.starts_with("PYTHON") && *key != "VIRTUAL_ENV"))
        .envs([("NO_COLOR", "1"), ("UV_PYTHON_DOWNLOADS", "never"), ("POETRY_NO_INTERACTION", "1")])
        .current_dir(cwd);
    let output = ask::listen(command, TOOL_TIMEOUT).await.ok()??;
    let line = String::from_utf8(output.stdout).ok()?.lines().last()?.trim().to_owned();
    Some(PathBuf::from(line)).filter(|path| output.status.success() && path.is_absolute())
}

/// The program of this name in the environment's `PATH`.
pub fn on_path(name: &str, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    all_on_path(name, env).next()
}

/// All programs of this name in the environment's `PATH`, in its order.
pub(super) fn all_on_path(name: &str, env: &BTreeMap<String, String>) -> impl Iterator<Item = PathBuf> {
    let path = env.get("PATH").map(String::as_str).unwrap_or_default();
    let is_program = |candidate: &PathBuf| {
        fs::metadata(candidate).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    path.split(':').filter(|dir| dir.starts_with('/')).map(move |dir| Path::new(dir).join(name)).filter(is_program)
}

/// Every interpreter on the `PATH` of this environment, for `doctor`.
pub fn candidates(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in std::iter::once("python3".to_owned()).chain((8..=15).map(|minor| format!("python3.{minor}"))) {
        found.extend(on_path(&name, env));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_called_like_a_python_is_run() {
        for name in ["python", "python3", "python3.12", "python3.13t", "python3-dbg", "pypy", "pypy3.10", "graalpy"] {
            assert!(is_python_name(name), "{name}");
        }
        for name in ["", "project", "timeout", "python-config", "python3-config", "pythonista", "ipython", "3.12"] {
            assert!(!is_python_name(name), "{name}");
        }
    }
}
