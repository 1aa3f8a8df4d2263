//! Settings, resolved once: flags over environment over `pylair.toml` (project, then user) over defaults.
//!
//! Owns the names of all settings and the four places on disk. Everything below gets plain values; nothing else in the
//! library reads the environment, the working directory or the home directory.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::sandbox::{self, paths::Protected};

mod callers;
mod failures;
mod http;
mod interpreters;
mod project;
mod sandboxes;

pub use callers::{AppliesTo, CallerSettings, Introduction, SETTINGS, Unheeded};
pub use failures::{FailuresSettings, FrozenLimits};
pub use http::{AuditSettings, HttpFlags, HttpSettings};
pub use interpreters::InterpreterPlaces;

/// Longest path that fits a Unix socket address, with the terminating NUL.
const MAX_SOCKET_PATH: usize = 107;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the settings file `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("the settings file `{path}` is not valid: {message}")]
    Parse { path: PathBuf, message: String },
    #[error("the settings file `{path}` is not a regular file")]
    NotRegular { path: PathBuf },
    #[error("the settings file `{path}` is longer than {limit} KB")]
    TooLong { path: PathBuf, limit: u64 },
    #[error(
        "`{path}` sets `{key}`, which a project may not set: only your own file `{own}` may. In a project's file \
         {harmless} count"
    )]
    NotAProjects { path: PathBuf, key: String, own: PathBuf, harmless: String },
    #[error("the value `{value}` of {origin} is not valid for `{key}`: {expected}")]
    Value { key: &'static str, value: String, origin: String, expected: &'static str },
    #[error("the settings file `{path}` is not valid {wrong}")]
    Sandbox { path: PathBuf, wrong: sandbox::settings::Wrong },
    #[error("cannot make the directory `{path}`")]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("the directory `{path}` belongs to uid {owner}, not to uid {uid}")]
    ForeignDirectory { path: PathBuf, owner: u32, uid: u32 },
}

impl Error {
    /// Whether it is about the `pylair.toml` of this directory.
    pub fn is_of_project(&self, project: Option<&Path>) -> bool {
        let file = match self {
            Self::Read { path, .. }
            | Self::Parse { path, .. }
            | Self::NotRegular { path }
            | Self::TooLong { path, .. }
            | Self::NotAProjects { path, .. } => path,
            Self::Value { .. } | Self::Sandbox { .. } | Self::MakeDirectory { .. } | Self::ForeignDirectory { .. } => {
                return false;
            }
        };
        project.is_some_and(|project| *file == project.join("pylair.toml"))
    }

    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::Parse { .. } | Self::Value { .. } => {
                "`pylair doctor` shows every setting and where it comes from"
            }
            Self::NotRegular { .. } | Self::TooLong { .. } => "remove it, or put a short TOML file in its place",
            Self::NotAProjects { .. } => {
                "remove the line, or move it to your own settings file if that is what you want; a flag or an environment \
                 variable does it for one command"
            }
            Self::Sandbox { wrong, .. } => wrong.hint(),
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

/// How often a frozen copy of a worker is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoints {
    Off,
    /// After cells, in the idle gap, or before the next cell where there is none; the newest few are kept.
    Auto,
    /// The same, so many are kept.
    Newest(usize),
}

impl Checkpoints {
    /// Each costs a process and, while nothing is written, a megabyte.
    const FEW: usize = 3;
    const MOST: usize = 20;

    /// How many a session keeps.
    pub fn ring(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Auto => Self::FEW,
            Self::Newest(count) => count,
        }
    }
}

/// The setting as it may be written in a file: a word or a number.
#[derive(Debug, Deserialize)]
#[serde(from = "toml::Value")]
struct CheckpointsText(String);

impl From<toml::Value> for CheckpointsText {
    fn from(value: toml::Value) -> Self {
        Self(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }
}

impl std::fmt::Display for Checkpoints {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => formatter.write_str("off"),
            Self::Auto => formatter.write_str("auto"),
            Self::Newest(count) => count.fmt(formatter),
        }
    }
}

impl std::str::FromStr for Checkpoints {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" | "0" => Ok(Self::Off),
            _ => text.parse().ok().filter(|count| *count <= Self::MOST).map(Self::Newest).ok_or(()),
        }
    }
}

/// Where a setting was found, first what counts most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Flag,
    Environment,
    ProjectFile,
    OwnFile,
    Default,
}

/// One resolved setting, for `pylair doctor`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setting {
    pub key: String,
    pub value: String,
    pub origin: String,
    pub source: Source,
}

/// All settings: of one caller, and of the daemon.
#[derive(Debug, Clone)]
pub struct Config {
    pub caller: CallerSettings,
    pub host: String,
    pub port: u16,
    /// Where interpreters are that no project brought along.
    pub interpreters: InterpreterPlaces,
    pub idle_exit: Option<Duration>,
    pub session_ttl: Duration,
    pub max_sessions: usize,
    /// Of one owner, unless it is the user the daemon runs as.
    pub max_sessions_per_owner: usize,
    pub http: HttpSettings,
    pub audit: AuditSettings,
    pub failures: FailuresSettings,
    pub sandbox: sandbox::Settings,
    pub settings: Vec<Setting>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    host: Option<String>,
    port: Option<u16>,
    python: Option<String>,
    timeout_s: Option<f64>,
    wait_s: Option<f64>,
    max_chars: Option<usize>,
    max_output_mb: Option<u64>,
    checkpoints: Option<CheckpointsText>,
    idle_exit_s: Option<u64>,
    session_ttl_s: Option<u64>,
    max_sessions: Option<usize>,
    max_sessions_per_owner: Option<usize>,
    auto_install: Option<bool>,
    install_timeout_s: Option<u64>,
    behind_proxy: Option<bool>,
    allowed_hosts: Option<Vec<String>>,
    tls_cert: Option<String>,
    tls_key: Option<String>,
    http_connections: Option<usize>,
    http_strangers: Option<usize>,
    http_buffer_mb: Option<usize>,
    http_requests: Option<usize>,
    http_requests_per_token: Option<usize>,
    http_streams: Option<usize>,
    http_streams_per_token: Option<usize>,
    http_rate: Option<u32>,
    http_auth_failures: Option<u32>,
    http_head_timeout_s: Option<f64>,
    http_body_timeout_s: Option<f64>,
    http_write_timeout_s: Option<f64>,
    audit_mb: Option<u64>,
    audit_files: Option<u32>,
    database: Option<String>,
    failures_days: Option<u64>,
    failures_kept: Option<u64>,
    failures_mb: Option<u64>,
    frozen_failures: Option<u32>,
    frozen_mb: Option<u64>,
    frozen_minutes: Option<u64>,
    sandbox_best_effort: Option<bool>,
    tools: Option<String>,
    readonly: Option<bool>,
    sandbox: Option<sandbox::Settings>,
}

/// Values given on the command line.
#[derive(Debug, Default, Clone)]
pub struct Flags {
    pub host: Option<String>,
    pub port: Option<u16>,
    pub http: HttpFlags,
    pub tools: Option<String>,
    pub readonly: bool,
}

impl Config {
    /// Resolves every setting. `project` is the directory whose `pylair.toml` counts, if any.
    pub fn resolve(
        flags: &Flags,
        env: &BTreeMap<String, String>,
        project: Option<&Path>,
        places: &Places,
    ) -> Result<Self, Error> {
        let own_path = places.settings_file();
        let own = project::read_own(&own_path)?;
        let of_project = match project.map(|dir| dir.join("pylair.toml")) {
            Some(path) => project::read_projects(&path, own.as_ref(), &own_path)?.map(|file| (path, file)),
            None => None,
        };
        let sandbox = own.as_ref().and_then(|file| file.sandbox.clone()).unwrap_or_default();
        let of_project = of_project.into_iter().map(|(path, file)| (Source::ProjectFile, path, file));
        let own = own.into_iter().map(|file| (Source::OwnFile, own_path.clone(), file));
        let found = of_project.chain(own);
        let files: Vec<_> = found.map(|(source, path, file)| (source, path.display().to_string(), file)).collect();
        let mut resolver = Resolver { env, files: &files, settings: Vec::new() };
        let host = resolver.pick(
            "host",
            flags.host.clone(),
            |file| file.host.clone(),
            "127.0.0.1".to_owned(),
            "an address",
        )?;
        let port = resolver.pick("port", flags.port, |file| file.port, 7420, "a port number")?;
        let interpreters = interpreters::places(env, &sandboxes::own_homes());
        sandbox
            .check(&sandboxes::protected(places, &host, port, &interpreters))
            .map_err(|wrong| Error::Sandbox { path: places.settings_file(), wrong })?;
        let caller = callers::caller(&mut resolver, flags)?;
        let idle_exit_s = resolver.pick("idle_exit_s", None, |file| file.idle_exit_s, 900, "seconds, 0 for never")?;
        let session_ttl_s = resolver.pick("session_ttl_s", None, |file| file.session_ttl_s, 8 * 3600, "seconds")?;
        let max_sessions =
            resolver.pick("max_sessions", None, |file| file.max_sessions, 200, "a number of sessions")?;
        let max_sessions_per_owner = resolver.pick(
            "max_sessions_per_owner",
            None,
            |file| file.max_sessions_per_owner,
            (max_sessions / 4).max(1),
            "a number of sessions",
        )?;
        let http = http::http(&mut resolver, &flags.http)?;
        let audit = http::audit(&mut resolver)?;
        let failures = failures::failures(&mut resolver)?;
        resolver.show(sandbox.shown(), &places.settings_file());
        resolver.show_places(places);
        Ok(Self {
            caller,
            host,
            port,
            interpreters,
            idle_exit: Some(Duration::from_secs(idle_exit_s)).filter(|limit| !limit.is_zero()),
            session_ttl: Duration::from_secs(session_ttl_s),
            max_sessions,
            max_sessions_per_owner,
            http,
            audit,
            failures,
            sandbox,
            settings: resolver.settings,
        })
    }

    /// What no session may be given.
    pub fn protected(&self, places: &Places) -> Protected {
        sandboxes::protected(places, &self.host, self.port, &self.interpreters)
    }
}

/// Seconds as people write them; `None` for what is no duration.
pub fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value).ok()
}

struct Resolver<'a> {
    env: &'a BTreeMap<String, String>,
    files: &'a [(Source, String, File)],
    settings: Vec<Setting>,
}

impl Resolver<'_> {
    fn pick<T>(
        &mut self,
        key: &'static str,
        flag: Option<T>,
        from_file: impl Fn(&File) -> Option<T>,
        default: T,
        expected: &'static str,
    ) -> Result<T, Error>
    where
        T: std::str::FromStr + ToString,
    {
        let variable = format!("PYLAIR_{}", key.replace('.', "_").to_uppercase());
        let (value, source, origin) = if let Some(value) = flag {
            (value, Source::Flag, format!("the flag --{}", key.replace('_', "-")))
        } else if let Some(text) = self.env.get(&variable) {
            let value = text.parse().map_err(|_| Error::Value {
                key,
                value: text.clone(),
                origin: format!("the environment variable {variable}"),
                expected,
            })?;
            (value, Source::Environment, format!("the environment variable {variable}"))
        } else if let Some((source, path, value)) =
            self.files.iter().find_map(|(source, path, file)| Some((*source, path, from_file(file)?)))
        {
            (value, source, path.clone())
        } else {
            (default, Source::Default, "default".to_owned())
        };
        self.settings.push(Setting { key: key.to_owned(), value: value.to_string(), origin, source });
        Ok(value)
    }

    /// The directories, which are settings as well: two callers that find the same daemon may have them otherwise.
    fn show_places(&mut self, places: &Places) {
        for (key, path, variable) in [
            ("places.state", &places.state, "XDG_STATE_HOME"),
            ("places.data", &places.data, "XDG_DATA_HOME"),
            ("places.config", &places.config, "XDG_CONFIG_HOME"),
        ] {
            let known = ["PYLAIR_HOME", variable, "HOME"];
            let known = known.iter().find(|name| self.env.get(**name).is_some_and(|value| !value.is_empty()));
            let (source, origin) = match known {
                Some(name) => (Source::Environment, format!("the environment variable {name}")),
                None => (Source::Default, "default".to_owned()),
            };
            let value = path.display().to_string();
            self.settings.push(Setting { key: key.to_owned(), value, origin, source });
        }
    }

    fn show(&mut self, found: Vec<(String, String)>, file: &Path) {
        let origin = file.display().to_string();
        let source = Source::OwnFile;
        let shown = |(key, value)| Setting { key, value, origin: origin.clone(), source };
        self.settings.extend(found.into_iter().map(shown));
    }

    fn invalid(&self, key: &'static str, value: &str, expected: &'static str) -> Error {
        let origin = self
            .settings
            .iter()
            .find(|setting| setting.key == key)
            .map_or_else(String::new, |setting| setting.origin.clone());
        Error::Value { key, value: value.to_owned(), origin, expected }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn flags_beat_environment_beats_file_beats_default() {
        let dir = std::env::temp_dir().join(format!("pylair-config-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("pylair.toml"), "wait_s = 3\n").unwrap();
        fs::create_dir_all(dir.join("config")).unwrap();
        fs::write(dir.join("config/config.toml"), "port = 1\nwait_s = 4\nmax_sessions = 6\n").unwrap();
        let places = Places::resolve(&env(&[("PYLAIR_HOME", dir.to_str().unwrap())]), 1);
        let flags = Flags { port: Some(5), ..Flags::default() };
        let config =
            Config::resolve(&flags, &env(&[("PYLAIR_PORT", "4"), ("PYLAIR_MAX_CHARS", "9")]), Some(&dir), &places)
                .unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((config.port, config.caller.max_chars, config.caller.wait), (5, 9, Duration::from_secs(3)));
        assert_eq!(config.max_sessions, 6);
        let origin = |key| config.settings.iter().find(|setting| setting.key == key).unwrap().origin.clone();
        assert_eq!(origin("port"), "the flag --port");
        assert_eq!(origin("max_chars"), "the environment variable PYLAIR_MAX_CHARS");
        assert!(origin("wait_s").ends_with("pylair.toml"));
        assert_eq!(origin("host"), "default");
    }

    #[test]
    fn a_bad_rule_of_the_sandbox_is_told_at_once_and_a_good_one_shown() {
        let dir = std::env::temp_dir().join(format!("pylair-config-rules-{}", std::process::id()));
        let places = Places::resolve(&env(&[("PYLAIR_HOME", dir.to_str().unwrap())]), 1);
        fs::create_dir_all(&places.config).unwrap();
        let resolved = |text: &str| {
            fs::write(places.settings_file(), text).unwrap();
            Config::resolve(&Flags::default(), &env(&[]), None, &places)
        };
        let wrong = |text: &str| {
            let error = resolved(text).unwrap_err();
            format!("{error}; {}", error.hint())
        };
        let said = wrong("[sandbox]\nallow_net = ['pypi.org']");
        assert!(
            said.contains("config.toml") && said.contains("`allow_net`") && said.contains("pypi.org:443"),
            "{said}"
        );
        assert!(wrong("[sandbox]\nprofile = 'closed'").contains("`workspace`"));
        assert!(wrong("[sandbox.max]\nmemory_mb = 1").contains("in `[sandbox.max]`: `memory_mb`"));
        assert!(wrong("[sandbox]\nmemroy_mb = 1").contains("there is no rule `memroy_mb`"));
        let own = format!("[sandbox]\nallow_write = [{:?}]", dir.display().to_string());
        assert!(wrong(&own).contains("pylair's own files"));
        let config = resolved("[sandbox]\nprofile = 'sealed'\n[sandbox.max]\nmemory_mb = 9000").unwrap();
        let shown = |key: &str| config.settings.iter().find(|setting| setting.key == key).map(|s| s.value.clone());
        assert_eq!(shown("sandbox.profile").as_deref(), Some("sealed"));
        assert_eq!(shown("sandbox.max.memory_mb").as_deref(), Some("9000"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_bad_value_names_where_it_came_from() {
        let places = Places::resolve(&env(&[("PYLAIR_HOME", "/nonexistent")]), 1);
        let error = Config::resolve(&Flags::default(), &env(&[("PYLAIR_PORT", "many")]), None, &places).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value `many` of the environment variable PYLAIR_PORT is not valid for `port`: a port number"
        );
        let error =
            Config::resolve(&Flags::default(), &env(&[("PYLAIR_CHECKPOINTS", "9x")]), None, &places).unwrap_err();
        assert!(error.to_string().contains("PYLAIR_CHECKPOINTS"), "{error}");
    }
}
