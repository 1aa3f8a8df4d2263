//! Which settings count for one caller and which for the whole daemon; what a caller says of its own, and what becomes of it.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Checkpoints, Config, Setting, Source};
use crate::rights::is_plain_python;
use pylair_sandbox::Profile;

/// Whom a setting counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppliesTo {
    /// Whoever calls: a bridge, a command. The daemon's own counts for callers over HTTP.
    Caller,
    /// Everybody the daemon serves. It is settled when the daemon starts.
    Daemon,
}

use AppliesTo::{Caller, Daemon};

/// Every setting. The rules in `[sandbox]` and `[sandbox.max]` besides these are the daemon's.
pub const SETTINGS: &[(&str, AppliesTo)] = &[
    ("allowed_hosts", Daemon),
    ("audit_files", Daemon),
    ("audit_mb", Daemon),
    ("auto_install", Caller),
    ("behind_proxy", Daemon),
    ("checkpoints", Caller),
    ("database", Daemon),
    ("failures_days", Daemon),
    ("failures_kept", Daemon),
    ("failures_mb", Daemon),
    ("frozen_failures", Daemon),
    ("frozen_mb", Daemon),
    ("frozen_minutes", Daemon),
    ("host", Daemon),
    ("http_auth_failures", Daemon),
    ("http_body_timeout_s", Daemon),
    ("http_buffer_mb", Daemon),
    ("http_connections", Daemon),
    ("http_head_timeout_s", Daemon),
    ("http_rate", Daemon),
    ("http_requests", Daemon),
    ("http_requests_per_token", Daemon),
    ("http_strangers", Daemon),
    ("http_streams", Daemon),
    ("http_streams_per_token", Daemon),
    ("http_write_timeout_s", Daemon),
    ("idle_exit_s", Daemon),
    ("install_timeout_s", Caller),
    ("max_chars", Caller),
    ("max_output_mb", Caller),
    ("max_sessions", Daemon),
    ("max_sessions_per_owner", Daemon),
    ("places.config", Daemon),
    ("places.data", Daemon),
    ("places.state", Daemon),
    ("port", Daemon),
    ("python", Caller),
    ("readonly", Caller),
    ("sandbox.profile", Caller),
    ("sandbox_best_effort", Caller),
    ("session", Caller),
    ("session_ttl_s", Daemon),
    ("timeout_s", Caller),
    ("tls_cert", Daemon),
    ("tls_key", Daemon),
    ("tools", Caller),
    ("wait_s", Caller),
];

impl AppliesTo {
    pub fn of(key: &str) -> Self {
        SETTINGS.iter().find(|(known, _)| *known == key).map_or(Daemon, |(_, applies_to)| *applies_to)
    }
}

/// The settings of one caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerSettings {
    pub python: Option<String>,
    pub timeout: Option<Duration>,
    pub wait: Duration,
    pub max_chars: usize,
    pub max_output_bytes: u64,
    pub checkpoints: Checkpoints,
    /// Whether packages of missing modules are installed before a cell runs.
    pub auto_install: bool,
    pub install_timeout: Duration,
    /// The profile of sessions that are opened without one.
    pub profile: Option<Profile>,
    /// Whether a confined session is opened where not all of its walls stand.
    pub sandbox_best_effort: bool,
    /// Toolsets to serve, as `--tools` has them.
    pub tools: Option<String>,
    pub readonly: bool,
    /// What a call without a target means.
    pub session: Option<Arc<str>>,
}

/// What a bridge or a command says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Introduction {
    pub settings: CallerSettings,
    /// What it sets itself, as people read it: all but defaults.
    pub said: Vec<Setting>,
    /// What it has to tell whoever reads its answers, such as a file of settings that does not count.
    pub notes: Vec<String>,
}

/// A setting of a caller that does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unheeded {
    pub key: String,
    /// What the caller says, and where.
    pub value: String,
    pub origin: String,
    /// What is used instead.
    pub used: String,
    pub used_origin: String,
    pub why: String,
}

impl Unheeded {
    /// In a sentence.
    pub fn note(&self) -> String {
        let shown = |value: &str| if value.is_empty() { "not set".to_owned() } else { value.to_owned() };
        format!(
            "`{}` is {} ({}), not {} ({}): {}",
            self.key,
            shown(&self.used),
            self.used_origin,
            shown(&self.value),
            self.origin,
            self.why
        )
    }
}

const SET_AT_START: &str =
    "it holds for the whole daemon and was settled when that started; to change it, run `pylair stop` and start again";
const FLOOR: &str = "`floor` in `[sandbox]` of the daemon's settings gives no caller more";

impl Introduction {
    /// For the daemon that serves this caller.
    pub fn new(config: &Config, notes: Vec<String>) -> Self {
        let said = config.settings.iter().filter(|setting| setting.source != Source::Default).cloned().collect();
        Self { settings: config.caller.clone(), said, notes }
    }

    /// The settings that count for this caller of a daemon with these settings, and those that do not.
    pub fn heed(&self, daemon: &Config) -> (CallerSettings, Vec<Unheeded>) {
        let mut settings = self.settings.clone();
        let mut unheeded: Vec<_> = self.said.iter().filter_map(|said| differs(said, &daemon.settings)).collect();
        if let Some(floor) = daemon.sandbox.floor() {
            for key in settings.keep_within(floor, &daemon.caller) {
                let said = self.said.iter().find(|said| said.key == key);
                unheeded.extend(said.map(|said| instead(said, &daemon.settings, FLOOR)));
            }
        }
        (settings, unheeded)
    }
}

impl CallerSettings {
    /// Those of a caller who sets nothing, for tests.
    #[cfg(test)]
    pub(crate) fn usual() -> Self {
        Self {
            python: None,
            timeout: Some(Duration::from_mins(15)),
            wait: Duration::from_secs(45),
            max_chars: 25_000,
            max_output_bytes: 256 << 20,
            checkpoints: Checkpoints::Auto,
            auto_install: false,
            install_timeout: Duration::from_mins(10),
            profile: None,
            sandbox_best_effort: false,
            tools: None,
            readonly: false,
            session: None,
        }
    }

    /// Takes the daemon's own settings where these would give more than its floor does. Returns their names.
    fn keep_within(&mut self, floor: Profile, own: &Self) -> Vec<&'static str> {
        let mut replaced = Vec::new();
        if self.profile.is_some_and(|profile| profile < floor) {
            self.profile = own.profile;
            replaced.push("sandbox.profile");
        }
        if self.sandbox_best_effort && !own.sandbox_best_effort {
            self.sandbox_best_effort = false;
            replaced.push("sandbox_best_effort");
        }
        if self.python != own.python && self.python.as_deref().is_some_and(|python| !is_plain_python(python)) {
            self.python.clone_from(&own.python);
            replaced.push("python");
        }
        replaced
    }
}

/// A setting of the daemon's that a caller has otherwise. What the daemon was told when it was started is not outdone by the user's file.
fn differs(said: &Setting, daemon: &[Setting]) -> Option<Unheeded> {
    if AppliesTo::of(&said.key) == Caller {
        return None;
    }
    let own = daemon.iter().find(|own| own.key == said.key);
    let is_outdone = own.is_some_and(|own| own.source < Source::OwnFile && said.source == Source::OwnFile);
    let is_same = own.is_some_and(|own| own.value == said.value);
    (!is_outdone && !is_same).then(|| instead(said, daemon, SET_AT_START))
}

fn instead(said: &Setting, daemon: &[Setting], why: &str) -> Unheeded {
    let own = daemon.iter().find(|own| own.key == said.key);
    Unheeded {
        key: said.key.clone(),
        value: said.value.clone(),
        origin: said.origin.clone(),
        used: own.map_or_else(String::new, |own| own.value.clone()),
        used_origin: own.map_or_else(|| "default".to_owned(), |own| own.origin.clone()),
        why: why.to_owned(),
    }
}
