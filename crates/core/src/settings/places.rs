//! The four directories pylair uses, and what is where in them.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::PathBuf,
};

use serde::Serialize;

use super::InterpreterPlaces;
use pylair_sandbox::paths::Protected;

/// Longest path that fits a Unix socket address, with the terminating NUL.
const MAX_SOCKET_PATH: usize = 107;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot make the directory `{path}`")]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("the directory `{path}` belongs to uid {owner}, not to uid {uid}")]
    ForeignDirectory { path: PathBuf, owner: u32, uid: u32 },
}

impl Error {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::MakeDirectory { .. } => "set PYLAIR_HOME to a directory you can write to",
            Self::ForeignDirectory { .. } => {
                "somebody else made that directory; remove it or set PYLAIR_HOME to a directory of your own"
            }
        }
    }
}

/// The four directories pylair uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Places {
    /// Sockets, locks, the registry. Mode 0700, owner checked.
    pub runtime: PathBuf,
    /// Logs.
    pub state: PathBuf,
    /// The journal, outputs, the token.
    pub data: PathBuf,
    /// `config.toml`.
    pub config: PathBuf,
}

impl Places {
    /// Where things go for this environment: `PYLAIR_HOME`, else the XDG directories, else the usual fallbacks.
    pub fn resolve(env: &BTreeMap<String, String>, uid: u32) -> Self {
        let absolute = |key: &str| env.get(key).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(home) = env.get("PYLAIR_HOME").filter(|home| !home.is_empty()) {
            let home = PathBuf::from(home);
            return Self {
                runtime: short_enough(home.join("runtime"), uid),
                state: home.join("state"),
                data: home.join("data"),
                config: home.join("config"),
            };
        }
        let home = absolute("HOME").unwrap_or_else(|| PathBuf::from("/"));
        let under = |key: &str, fallback: &str| absolute(key).unwrap_or_else(|| home.join(fallback)).join("pylair");
        let runtime = absolute("XDG_RUNTIME_DIR")
            .map_or_else(|| PathBuf::from(format!("/tmp/pylair-{uid}")), |path| path.join("pylair"));
        Self {
            runtime: short_enough(runtime, uid),
            state: under("XDG_STATE_HOME", ".local/state"),
            data: under("XDG_DATA_HOME", ".local/share"),
            config: under("XDG_CONFIG_HOME", ".config"),
        }
    }

    /// Makes the directories, private to the user, and checks that nobody else made the runtime one.
    pub fn create(&self) -> Result<(), Error> {
        let uid = rustix::process::getuid().as_raw();
        for path in [&self.runtime, &self.state, &self.data] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|source| Error::MakeDirectory { path: path.clone(), source })?;
            // Only the runtime directory may lie where others can write, and only there a link would be somebody's trick.
            let stat = if *path == self.runtime { fs::symlink_metadata(path) } else { fs::metadata(path) };
            let metadata = stat.map_err(|source| Error::MakeDirectory { path: path.clone(), source })?;
            if metadata.uid() != uid || !metadata.is_dir() {
                return Err(Error::ForeignDirectory { path: path.clone(), owner: metadata.uid(), uid });
            }
            if metadata.permissions().mode() & 0o077 != 0 {
                fs::set_permissions(path, fs::Permissions::from_mode(0o700))
                    .map_err(|source| Error::MakeDirectory { path: path.clone(), source })?;
            }
        }
        Ok(())
    }

    /// The HTTP API of the daemon, for the command line.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("daemon.sock")
    }

    /// Where bridges hand over their stdio.
    pub fn bridge_socket(&self) -> PathBuf {
        self.runtime.join("bridge.sock")
    }

    pub fn daemon_lock(&self) -> PathBuf {
        self.runtime.join("daemon.lock")
    }

    pub fn start_lock(&self) -> PathBuf {
        self.runtime.join("start.lock")
    }

    /// The registry of apps.
    pub fn apps(&self) -> PathBuf {
        self.runtime.join("apps")
    }

    pub fn token(&self) -> PathBuf {
        self.data.join("token")
    }

    /// Further tokens, as hashes.
    pub fn tokens(&self) -> PathBuf {
        self.data.join("tokens.json")
    }

    /// When tokens were last used.
    pub fn token_uses(&self) -> PathBuf {
        self.state.join("token-uses.json")
    }

    /// What the clock said when the daemon last looked.
    pub fn clock(&self) -> PathBuf {
        self.data.join("clock.json")
    }

    /// The audit record; full ones have a number behind it.
    pub fn audit(&self) -> PathBuf {
        self.state.join("audit.jsonl")
    }

    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    pub fn journal(&self) -> PathBuf {
        self.data.join("journal.db")
    }

    /// The registry of frozen failures.
    pub fn frozen(&self) -> PathBuf {
        self.runtime.join("failures")
    }

    /// Runs and failures, unless the setting `database` says another place.
    pub fn failures(&self) -> PathBuf {
        self.data.join("failures.db")
    }

    /// What runs could not report.
    pub fn spool(&self) -> PathBuf {
        self.state.join("spool")
    }

    pub fn outputs(&self) -> PathBuf {
        self.data.join("outputs")
    }

    /// What confined sessions try to read, in vain.
    pub fn canary(&self) -> PathBuf {
        self.data.join("canary")
    }

    /// The directories of confined sessions.
    pub fn workspaces(&self) -> PathBuf {
        self.data.join("workspaces")
    }

    /// Packages installed for sessions whose interpreter is no environment of its own.
    pub fn venvs(&self) -> PathBuf {
        self.data.join("venvs")
    }

    pub fn settings_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    /// What no session may be given: what is ours, `homes`, interpreters that no project brought along, and where our door is.
    pub fn protected(&self, door: (&str, u16), homes: &[PathBuf], interpreters: &InterpreterPlaces) -> Protected {
        Protected {
            own: [&self.runtime, &self.state, &self.data, &self.config].into_iter().cloned().collect(),
            homes: homes.to_vec(),
            interpreters: interpreters.roots.iter().chain(&interpreters.shims).cloned().collect(),
            door: Some((door.0.to_owned(), door.1)),
        }
    }
}

/// A runtime directory whose socket paths would overflow a socket address moves to `/tmp`, under a name made of the long path.
/// `probe/pylair/registry.py` does the same in apps, hence a hash that is the same everywhere (FNV-1a).
fn short_enough(path: PathBuf, uid: u32) -> PathBuf {
    let longest = path.join("failures/4194304-999999999999.sock");
    if longest.as_os_str().len() <= MAX_SOCKET_PATH {
        return path;
    }
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    PathBuf::from(format!("/tmp/pylair-{uid}-{hash:016x}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn pylair_home_holds_all_places() {
        let places = Places::resolve(&env(&[("PYLAIR_HOME", "/x/y"), ("XDG_DATA_HOME", "/data")]), 1000);
        assert_eq!(places.runtime, Path::new("/x/y/runtime"));
        assert_eq!(places.data, Path::new("/x/y/data"));
    }

    #[test]
    fn a_long_runtime_path_moves_to_tmp() {
        let long = format!("/{}", "d".repeat(120));
        let places = Places::resolve(&env(&[("PYLAIR_HOME", &long)]), 1000);
        assert!(places.runtime.starts_with("/tmp"), "{:?}", places.runtime);
        assert!(places.socket().as_os_str().len() <= MAX_SOCKET_PATH);
        // As in `probe/tests/test_app_registry.py`.
        assert_eq!(places.runtime, Path::new("/tmp/pylair-1000-a1353fe65750cee5"));
    }

    #[test]
    fn relative_xdg_directories_are_ignored() {
        let places = Places::resolve(&env(&[("HOME", "/home/me"), ("XDG_STATE_HOME", "state")]), 7);
        assert_eq!(places.state, Path::new("/home/me/.local/state/pylair"));
        assert_eq!(places.runtime, Path::new("/tmp/pylair-7"));
    }
}
