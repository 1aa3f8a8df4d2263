//! Settings, resolved once: flags over environment over `pylair.toml` (project, then user) over defaults.
//!
//! What comes of it are plain values (`pylair_core::settings`, and the HTTP door's own). Besides `commands` nothing else reads the
//! environment, the working directory or the home directory.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use pylair_core::settings::{Config, Places, Setting, Source, seconds};
use pylair_sandbox as sandbox;
use pylair_web::settings::HttpSettings;

mod callers;
mod failures;
mod http;
mod interpreters;
mod project;
mod sandboxes;

pub use http::HttpFlags;

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
            Self::Value { .. } | Self::Sandbox { .. } => return false,
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

/// Resolves every setting: those of one caller and the daemon, and those of the HTTP door. `project` is the directory whose
/// `pylair.toml` counts, if any.
pub fn resolve(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    project: Option<&Path>,
    places: &Places,
) -> Result<(Config, HttpSettings), Error> {
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
    let host =
        resolver.pick("host", flags.host.clone(), |file| file.host.clone(), "127.0.0.1".to_owned(), "an address")?;
    let port = resolver.pick("port", flags.port, |file| file.port, 7420, "a port number")?;
    let interpreters = interpreters::places(env, &sandboxes::own_homes());
    let homes = sandboxes::protected_homes();
    sandbox
        .check(&places.protected((&host, port), &homes, &interpreters))
        .map_err(|wrong| Error::Sandbox { path: places.settings_file(), wrong })?;
    let caller = callers::caller(&mut resolver, flags)?;
    let idle_exit_s = resolver.pick("idle_exit_s", None, |file| file.idle_exit_s, 900, "seconds, 0 for never")?;
    let session_ttl_s = resolver.pick("session_ttl_s", None, |file| file.session_ttl_s, 8 * 3600, "seconds")?;
    let max_sessions = resolver.pick("max_sessions", None, |file| file.max_sessions, 200, "a number of sessions")?;
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
    let config = Config {
        caller,
        host,
        port,
        interpreters,
        homes,
        user: sandboxes::own_user(),
        idle_exit: Some(Duration::from_secs(idle_exit_s)).filter(|limit| !limit.is_zero()),
        session_ttl: Duration::from_secs(session_ttl_s),
        max_sessions,
        max_sessions_per_owner,
        audit,
        failures,
        sandbox,
        settings: resolver.settings,
    };
    Ok((config, http))
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
    use std::fs;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
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
        let (config, _) =
            resolve(&flags, &env(&[("PYLAIR_PORT", "4"), ("PYLAIR_MAX_CHARS", "9")]), Some(&dir), &places).unwrap();
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
            resolve(&Flags::default(), &env(&[]), None, &places)
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
        let (config, _) = resolved("[sandbox]\nprofile = 'sealed'\n[sandbox.max]\nmemory_mb = 9000").unwrap();
        let shown = |key: &str| config.settings.iter().find(|setting| setting.key == key).map(|s| s.value.clone());
        assert_eq!(shown("sandbox.profile").as_deref(), Some("sealed"));
        assert_eq!(shown("sandbox.max.memory_mb").as_deref(), Some("9000"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_bad_value_names_where_it_came_from() {
        let places = Places::resolve(&env(&[("PYLAIR_HOME", "/nonexistent")]), 1);
        let error = resolve(&Flags::default(), &env(&[("PYLAIR_PORT", "many")]), None, &places).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value `many` of the environment variable PYLAIR_PORT is not valid for `port`: a port number"
        );
        let error = resolve(&Flags::default(), &env(&[("PYLAIR_CHECKPOINTS", "9x")]), None, &places).unwrap_err();
        assert!(error.to_string().contains("PYLAIR_CHECKPOINTS"), "{error}");
    }
}
