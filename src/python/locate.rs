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

pub(super) fn is_version(wanted: &str) -> bool {
    wanted.starts_with(|c: char| c.is_ascii_digit()) && wanted.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// A path, an environment, a project directory or a command name.
pub(super) async fn locate(wanted: &str, cwd: &Path, env: &BTreeMap<String, String>) -> Result<Located, Error> {
    if !wanted.contains('/')
        && let Some(path) = on_path(wanted, env)
    {
        return Ok(Located::Executable(path));
    }
    let path = match (wanted.strip_prefix('~'), env.get("HOME")) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            Path::new(home).join(rest.trim_start_matches('/'))
        }
        _ => cwd.join(wanted),
    };
    if !path.is_dir() {
        return Ok(Located::Executable(path));
    }
    if let Some(python) = in_prefix(&path) {
        return Ok(Located::Executable(python));
    }
    project::environment(&path, env).await
}

/// The interpreter of an environment: a venv, a Conda prefix, or any other directory laid out like one.
pub(super) fn in_prefix(prefix: &Path) -> Option<PathBuf> {
    ["bin/python", "bin/python3"].iter().map(|inside| prefix.join(inside)).find(|python| python.exists())
}

/// Files that may be this version, the likeliest first.
pub(super) async fn of_version(version: &str, env: &BTreeMap<String, String>) -> Vec<PathBuf> {
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
