//! The interpreter of a session in a sandbox. Nothing of a project is run to find it: a virtual environment is described by its files,
//! only interpreters that are trusted are asked outside, and whatever else is named is left for the session to ask inside.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tokio::process::Command;

use super::{
    ASK, Error, Interpreter, Interpreters, ask, is_of_version,
    locate::{Located, Tools, all_on_path, is_version, locate, of_version},
    trusted::Trust,
    venv::Venv,
};

/// What finding out where an interpreter is may depend on, besides directories on `PATH` that are trusted and a version of pyenv's.
const PASSED: &[&str] = &["HOME", "LANG"];

/// A shim leads to an interpreter, seldom to another shim.
const MAX_SHIMS: usize = 2;

/// What a session in a sandbox can be started from.
#[derive(Debug)]
pub enum Choice {
    /// `base` is what it is an environment of. That one may be run outside, or the interpreter itself if there is none.
    Known { interpreter: Box<Interpreter>, base: Option<Box<Interpreter>> },
    /// It may be run inside a sandbox only.
    Strange(PathBuf),
}

impl Choice {
    fn known(interpreter: Interpreter) -> Self {
        Self::Known { interpreter: Box::new(interpreter), base: None }
    }
}

/// Where names lead, and what the session may write.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    pub cwd: &'a Path,
    pub env: &'a BTreeMap<String, String>,
    /// What is run outside finds other programs by these, so they are the caller's own and nothing that was asked for in a call.
    pub own_env: &'a BTreeMap<String, String>,
    pub given: &'a [PathBuf],
}

impl Interpreters {
    /// Like [`Interpreters::resolve`], but the environment in the working directory counts only if it is named.
    pub async fn choose(
        &self,
        wanted: Option<&str>,
        configured: Option<&str>,
        search: Search<'_>,
    ) -> Result<Choice, Error> {
        if let Some(wanted) = wanted {
            return self.choose_named(wanted, search).await;
        }
        if let Some(venv) = search.env.get("VIRTUAL_ENV").filter(|venv| !venv.is_empty()) {
            let python = Path::new(venv).join("bin/python");
            if python.exists() {
                return self.examine(&python, search).await;
            }
        }
        if let Some(configured) = configured {
            return self.choose_named(configured, search).await;
        }
        let mut first = None;
        for path in ["python3", "python"].iter().flat_map(|name| all_on_path(name, search.env)) {
            match self.examine(&path, search).await {
                Ok(known @ Choice::Known { .. }) => return Ok(known),
                other => drop(first.get_or_insert(other)),
            }
        }
        first.unwrap_or_else(|| {
            let path = search.env.get("PATH").map_or("", String::as_str);
            Err(Error::None { tried: format!("no VIRTUAL_ENV, and no python3 or python on PATH ({path})") })
        })
    }

    async fn choose_named(&self, wanted: &str, search: Search<'_>) -> Result<Choice, Error> {
        if is_version(wanted) {
            return self.choose_version(wanted, search).await;
        }
        match locate(wanted, search.cwd, search.env, Tools::Leave).await? {
            Located::Executable(path) => self.examine(&path, search).await,
            Located::Version(version) => self.choose_version(&version, search).await,
        }
    }

    /// The first that is trusted and is this version.
    async fn choose_version(&self, version: &str, search: Search<'_>) -> Result<Choice, Error> {
        let mut tried = Vec::new();
        for path in of_version(version, search.env, Tools::Leave).await {
            match self.examine(&path, search).await {
                Ok(Choice::Known { interpreter, base }) if is_of_version(&interpreter.version, version) => {
                    return Ok(Choice::Known { interpreter, base });
                }
                Ok(Choice::Known { interpreter, .. }) => {
                    tried.push(format!("`{}` is {}", path.display(), interpreter.version));
                }
                Ok(Choice::Strange(path)) => tried.push(format!("`{}` has to be named by its path", path.display())),
                Err(error @ Error::TooOld { .. }) => return Err(error),
                Err(_) => tried.push(format!("`{}` does not start", path.display())),
            }
        }
        Err(Error::no_version(version, tried))
    }

    /// What this program is, as far as that can be said without running what may be a project's.
    async fn examine(&self, path: &Path, search: Search<'_>) -> Result<Choice, Error> {
        let mut path = path.to_owned();
        for _ in 0..=MAX_SHIMS {
            match self.look_at(&path, search.given).await? {
                Looked::Trusted(name) => return self.ask_bare(&name, search.own_env).await.map(Choice::known),
                Looked::Shim(name) => path = self.ask_bare(&name, search.own_env).await?.executable,
                Looked::Environment(venv, bases) => return self.described(path, &venv, &bases, search.own_env).await,
                Looked::Strange => break,
            }
        }
        Ok(Choice::Strange(path))
    }

    /// An environment, by what its files and the interpreter it was made with say.
    async fn described(
        &self,
        path: PathBuf,
        venv: &Venv,
        bases: &[PathBuf],
        env: &BTreeMap<String, String>,
    ) -> Result<Choice, Error> {
        for base in bases {
            let Ok(base) = self.ask_bare(base, env).await else { continue };
            if let Some(interpreter) = venv.interpreter(&path, &base) {
                return Ok(Choice::Known { interpreter: Box::new(interpreter), base: Some(Box::new(base)) });
            }
        }
        Ok(Choice::Strange(path))
    }

    async fn look_at(&self, path: &Path, given: &[PathBuf]) -> Result<Looked, Error> {
        self.check(path)?;
        let (trust, path, given) = (self.trust.clone(), path.to_owned(), given.to_vec());
        let looked = tokio::task::spawn_blocking(move || look(&trust, &path, &given)).await;
        Ok(looked.unwrap_or(Looked::Strange))
    }

    /// Asks an interpreter that is trusted, outside and without anything that was installed into it: no `site`, no directory and no
    /// variables of the session's.
    async fn ask_bare(&self, path: &Path, env: &BTreeMap<String, String>) -> Result<Interpreter, Error> {
        let mut command = Command::new(path);
        command
            .args(["-E", "-s", "-S", "-c", ASK])
            .env_clear()
            .envs(env.iter().filter(|(name, _)| PASSED.contains(&name.as_str())))
            .envs(env.get_key_value("PYENV_VERSION").filter(|(_, version)| !version.contains('/')))
            .env("PATH", self.trust.path(env.get("PATH").map_or("", String::as_str)))
            .current_dir("/");
        self.once(&self.bare, path, ask(path, command)).await
    }
}

#[derive(Debug)]
enum Looked {
    /// By the name it may be run by.
    Trusted(PathBuf),
    Shim(PathBuf),
    /// With those of its bases that are trusted.
    Environment(Venv, Vec<PathBuf>),
    Strange,
}

/// Blocks.
fn look(trust: &Trust, path: &Path, given: &[PathBuf]) -> Looked {
    if let Some(venv) = Venv::of(path) {
        let bases: Vec<_> = venv.bases().into_iter().filter_map(|base| trusted_name(trust, &base, given)).collect();
        // It is shown to the session, with what it leads to.
        let is_fit = venv.has(path) || path.canonicalize().is_ok_and(|real| trust.allows(&real, given));
        return if is_fit { Looked::Environment(venv, bases) } else { Looked::Strange };
    }
    if let Some(name) = trusted_name(trust, path, given) {
        return Looked::Trusted(name);
    }
    match name_without_links(path) {
        Some(name) if trust.is_shim(&name) => Looked::Shim(name),
        _ => Looked::Strange,
    }
}

/// The same file by a name on which nobody can put another one who cannot write its directory.
fn name_without_links(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// The name that a program may be run by: the one it has, or that of what it leads to. None for an environment, which is another
/// interpreter than it leads to.
fn trusted_name(trust: &Trust, path: &Path, given: &[PathBuf]) -> Option<PathBuf> {
    let names = [name_without_links(path), path.canonicalize().ok()];
    names.into_iter().flatten().find(|name| Venv::of(name).is_none() && trust.allows(name, given))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// Whoever can change a link on the way to a program could have another one run in its place.
    #[test]
    fn what_is_run_outside_is_run_by_a_name_without_links() {
        let base = std::env::temp_dir().canonicalize().unwrap().join(format!("pylair-links-{}", std::process::id()));
        for directory in ["store/bin", "shims", "project/.venv/bin"] {
            fs::create_dir_all(base.join(directory)).unwrap();
        }
        for program in ["store/bin/python3.12", "shims/python"] {
            fs::write(base.join(program), "").unwrap();
        }
        symlink("python3.12", base.join("store/bin/python3")).unwrap();
        symlink(base.join("store/bin"), base.join("project/bin")).unwrap();
        symlink(base.join("shims"), base.join("project/shims")).unwrap();
        let trust = Trust::new(&[base.join("store")], &[base.join("shims")], None);
        let Looked::Trusted(name) = look(&trust, &base.join("project/bin/python3"), &[]) else { panic!("it is known") };
        assert_eq!(name, base.join("store/bin/python3"));
        let Looked::Shim(name) = look(&trust, &base.join("project/shims/python"), &[]) else { panic!("it is a shim") };
        assert_eq!(name, base.join("shims/python"));
        let venv = base.join("project/.venv");
        fs::write(venv.join("pyvenv.cfg"), format!("home = {}\n", base.join("project/bin").display())).unwrap();
        symlink(base.join("store/bin/python3"), venv.join("bin/python")).unwrap();
        let Looked::Environment(_, bases) = look(&trust, &venv.join("bin/python"), &[]) else { panic!("it is one") };
        assert_eq!(bases, [base.join("store/bin/python3")]);
        fs::remove_dir_all(base).unwrap();
    }
}
