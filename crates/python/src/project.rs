//! The environment of a project directory: its own `.venv` or `venv`, or the one that uv, Poetry, Pipenv, Conda or Pixi keeps for it.
//!
//! Files of the project are read, never run. Of the tools only `uv` and `poetry` are asked, and Poetry without plugins, because a
//! project can bring its own. For a session in a sandbox neither is: both run interpreters that a project names.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::URL_SAFE};
use sha2::{Digest, Sha256};

use super::{
    Error,
    locate::{Located, Tools, ask_tool, in_prefix, is_version, on_path},
};
use pylair_os::regular;

/// Of a project's files no more is read.
const MAX_FILE_BYTES: u64 = 1 << 20;
const CONDA_FILES: [&str; 2] = ["environment.yml", "environment.yaml"];
/// Where installers of Conda put it unless told otherwise.
const CONDA_ROOTS: [&str; 8] =
    ["miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba", "miniconda", "anaconda", "conda"];

/// The environment of the project in this directory, or all that was looked for.
pub(super) async fn environment(
    directory: &Path,
    env: &BTreeMap<String, String>,
    tools: Tools,
) -> Result<Located, Error> {
    let mut looked_for = vec!["bin/python".to_owned()];
    let mut inside = vec![".venv".to_owned(), "venv".to_owned()];
    inside.extend(env.get("UV_PROJECT_ENVIRONMENT").cloned());
    inside.extend([".conda".to_owned(), ".pixi/envs/default".to_owned()]);
    for name in inside {
        if let Some(python) = in_prefix(&directory.join(&name)) {
            return Ok(Located::Executable(python));
        }
        looked_for.push(name);
    }
    let settings = read_here(directory.join("pyproject.toml")).await.and_then(|text| text.parse::<toml::Table>().ok());
    let tool = |name: &str| settings.as_ref()?.get("tool")?.get(name);
    let build_backend =
        settings.as_ref().and_then(|settings| settings.get("build-system")?.get("build-backend")?.as_str());
    let has_file = |name: &str| directory.join(name).exists();

    if tool("poetry").is_some()
        || has_file("poetry.lock")
        || build_backend.is_some_and(|name| name.starts_with("poetry"))
    {
        let (found, place) = poetry(directory, settings.as_ref(), env, tools).await;
        if let Some(python) = found {
            return Ok(Located::Executable(python));
        }
        looked_for.push(place);
    }
    if has_file("Pipfile") {
        let place = pipenv_home(directory, env);
        if let Some(home) = place.clone() {
            let directory = directory.to_owned();
            if let Some(python) = look(env, move |_| of_pipenv(&directory, &home)).await {
                return Ok(Located::Executable(python));
            }
        }
        looked_for.push(match place {
            Some(home) => format!("environment of Pipenv in `{}`", home.display()),
            None => "place where Pipenv keeps environments".to_owned(),
        });
    }
    for file in CONDA_FILES {
        let Some(text) = read_here(directory.join(file)).await else { continue };
        let Some(name) = conda_name(&text) else {
            looked_for.push(format!("name in {file}"));
            continue;
        };
        let wanted = name.clone();
        if let Some(python) = look(env, move |env| of_conda(&wanted, env)).await {
            return Ok(Located::Executable(python));
        }
        looked_for.push(format!("Conda environment `{name}` ({file}) in any known envs directory"));
    }
    if has_file("uv.lock") || tool("uv").is_some() {
        match on_path("uv", env) {
            _ if tools == Tools::Leave => {}
            Some(uv) => {
                // Not just any virtual environment that happens to be on PATH.
                if let Some(python) = ask_tool(&uv, &["python", "find", "--system"], directory, env).await {
                    return Ok(Located::Executable(python));
                }
                looked_for.push("interpreter that `uv python find` accepts".to_owned());
            }
            None => looked_for.push("uv on PATH to ask".to_owned()),
        }
    }
    if let Some(version) = read_here(directory.join(".python-version")).await
        && let Some(version) = version.lines().map(str::trim).find(|line| is_version(line))
    {
        return Ok(Located::Version(version.to_owned()));
    }
    Err(Error::NoEnvironment { directory: directory.to_owned(), looked_for: looked_for.join(", no ") })
}

fn read(path: &Path) -> Option<String> {
    regular::read(path, MAX_FILE_BYTES).ok()
}

/// Looks at files on a thread for that.
async fn look<T: Send + 'static>(
    env: &BTreeMap<String, String>,
    looking: impl FnOnce(&BTreeMap<String, String>) -> Option<T> + Send + 'static,
) -> Option<T> {
    let env = env.clone();
    tokio::task::spawn_blocking(move || looking(&env)).await.ok().flatten()
}

async fn read_here(path: PathBuf) -> Option<String> {
    tokio::task::spawn_blocking(move || read(&path)).await.ok().flatten()
}

/// Poetry's environment of a project, and where it was looked for.
async fn poetry(
    directory: &Path,
    settings: Option<&toml::Table>,
    env: &BTreeMap<String, String>,
    tools: Tools,
) -> (Option<PathBuf>, String) {
    if let Some(poetry) = on_path("poetry", env).filter(|_| tools == Tools::Run) {
        let args = ["--no-plugins", "--no-ansi", "env", "info", "--path"];
        let prefix = ask_tool(&poetry, &args, directory, env).await;
        return (
            prefix.and_then(|prefix| in_prefix(&prefix)),
            format!("environment that `{}` knows", poetry.display()),
        );
    }
    let project = directory.to_owned();
    let Some(home) = look(env, move |env| poetry_home(&project, env)).await else {
        return (None, "place where Poetry keeps environments".to_owned());
    };
    let name = |table: &str| settings?.get("tool")?.get(table)?.get("name")?.as_str();
    let name = settings.and_then(|settings| settings.get("project")?.get("name")?.as_str()).or_else(|| name("poetry"));
    // What Poetry calls a project that has no name.
    let base = poetry_name(name.unwrap_or("non-package-mode"), directory);
    let place = format!("environment of Poetry `{}`-py*", home.join(&base).display());
    (look(env, move |_| of_poetry(&home, &base)).await, place)
}

/// Where Poetry keeps environments: its own variables, the project's poetry.toml, the user's config.toml, the default.
fn poetry_home(directory: &Path, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let home = env.get("HOME").map(PathBuf::from);
    let under = |variable: &str, fallback: &str| {
        env.get(variable).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(fallback)))
    };
    let config_home = env
        .get("POETRY_CONFIG_DIR")
        .map(PathBuf::from)
        .or_else(|| Some(under("XDG_CONFIG_HOME", ".config")?.join("pypoetry")));
    let files = [Some(directory.join("poetry.toml")), config_home.map(|home| home.join("config.toml"))];
    let settings: Vec<toml::Table> = files.into_iter().flatten().filter_map(|path| read(&path)?.parse().ok()).collect();
    let from_file = |keys: &[&str]| {
        settings.iter().find_map(|table| {
            let (last, above) = keys.split_last()?;
            let table = above.iter().try_fold(table, |table, key| table.get(*key)?.as_table())?;
            table.get(*last)?.as_str().map(str::to_owned)
        })
    };
    let cache = env
        .get("POETRY_CACHE_DIR")
        .map(PathBuf::from)
        .or_else(|| from_file(&["cache-dir"]).map(PathBuf::from))
        .or_else(|| Some(under("XDG_CACHE_HOME", ".cache")?.join("pypoetry")));
    let path = env.get("POETRY_VIRTUALENVS_PATH").cloned().or_else(|| from_file(&["virtualenvs", "path"]));
    match path {
        Some(path) => match path.strip_prefix("{cache-dir}") {
            Some(rest) => Some(cache?.join(rest.trim_start_matches('/'))),
            None => Some(PathBuf::from(path)),
        },
        None => Some(cache?.join("virtualenvs")),
    }
}

/// What Poetry calls the environments of a project, without the version at the end: its name and a hash of where it is.
fn poetry_name(name: &str, directory: &Path) -> String {
    let mut normal = String::new();
    for c in name.to_lowercase().chars().map(|c| if "-_.".contains(c) { '-' } else { c }) {
        if c != '-' || !normal.ends_with('-') {
            normal.push(if " $`!*@\"\\\r\n\t".contains(c) { '_' } else { c });
        }
    }
    let sanitized: String = normal.chars().take(42).collect();
    let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let hash = URL_SAFE.encode(Sha256::digest(real.as_os_str().as_encoded_bytes()));
    format!("{sanitized}-{}", &hash[..8])
}

/// The activated one of a project's environments, else that of the newest Python.
fn of_poetry(home: &Path, base: &str) -> Option<PathBuf> {
    let chosen = read(&home.join("envs.toml"))
        .and_then(|text| text.parse::<toml::Table>().ok())
        .and_then(|envs| Some(envs.get(base)?.get("minor")?.as_str()?.to_owned()));
    if let Some(minor) = chosen {
        return in_prefix(&home.join(format!("{base}-py{minor}")));
    }
    let entries = fs::read_dir(home).ok()?.flatten();
    let versions = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix(base)?.strip_prefix("-py")?;
        let numbers = version.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
        Some((numbers, in_prefix(&entry.path())?))
    });
    versions.max().map(|(_, python)| python)
}

fn pipenv_home(directory: &Path, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let data = || match env.get("XDG_DATA_HOME") {
        Some(data) => Some(PathBuf::from(data)),
        None => Some(Path::new(env.get("HOME")?).join(".local/share")),
    };
    match env.get("WORKON_HOME") {
        Some(home) => Some(directory.join(home)),
        None => Some(data()?.join("virtualenvs")),
    }
}

/// Pipenv notes in each environment whose it is.
fn of_pipenv(directory: &Path, home: &Path) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    let entries = fs::read_dir(home).ok()?.flatten();
    entries.filter(|entry| is_project_of(&entry.path(), &directory)).find_map(|entry| in_prefix(&entry.path()))
}

fn is_project_of(environment: &Path, directory: &Path) -> bool {
    read(&environment.join(".project"))
        .is_some_and(|text| Path::new(text.trim()).canonicalize().is_ok_and(|path| path == directory))
}

/// The top-level `name` of an environment.yml, which is all that is needed of its YAML.
fn conda_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("name:"))?;
    let value = value.split(" #").next()?.trim().trim_matches(['"', '\'']);
    let good = !value.is_empty() && !value.contains('/') && value != "." && value != "..";
    good.then(|| value.to_owned())
}

fn of_conda(name: &str, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let home = env.get("HOME").map(PathBuf::from);
    let mut places: Vec<PathBuf> = Vec::new();
    for variable in ["CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"] {
        let path = env.get(variable).map(String::as_str).unwrap_or_default();
        places.extend(path.split(':').filter(|entry| !entry.is_empty()).map(PathBuf::from));
    }
    places.extend(env.get("MAMBA_ROOT_PREFIX").map(|root| Path::new(root).join("envs")));
    places.extend(env.get("CONDA_EXE").and_then(|exe| Some(Path::new(exe).parent()?.parent()?.join("envs"))));
    if let Some(active) = env.get("CONDA_PREFIX") {
        places.push(Path::new(active).join("envs"));
        places.extend(Path::new(active).parent().map(Path::to_owned));
    }
    if let Some(home) = &home {
        places.push(home.join(".conda/envs"));
        places.extend(CONDA_ROOTS.iter().map(|root| home.join(root).join("envs")));
    }
    places.extend(CONDA_ROOTS.iter().map(|root| Path::new("/opt").join(root).join("envs")));
    // Conda's own list of the environments it has made, wherever they are.
    let listed = home.and_then(|home| read(&home.join(".conda/environments.txt"))).unwrap_or_default();
    let listed = listed.lines().map(|line| PathBuf::from(line.trim()));
    let listed: Vec<PathBuf> = listed.filter(|prefix| prefix.file_name().is_some_and(|last| last == name)).collect();
    places.iter().map(|place| place.join(name)).chain(listed).find_map(|prefix| in_prefix(&prefix))
}
