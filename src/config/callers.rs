//! Which settings count for one caller and which for the whole daemon; what a caller says of its own, and what becomes of it.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Checkpoints, CheckpointsText, Config, Error, Flags, Resolver, Setting, Source,
    project::{MAX_CHARS, MAX_OUTPUT_MB, TIMEOUT_S, WAIT_S},
    seconds,
};
use crate::{rights::is_plain_python, sandbox::Profile};

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

/// Resolves what counts for one caller.
pub(super) fn caller(resolver: &mut Resolver, flags: &Flags) -> Result<CallerSettings, Error> {
    let python = resolver.pick("python", None, |file| file.python.clone(), String::new(), "a Python interpreter")?;
    let timeout_s = resolver.pick("timeout_s", None, |file| file.timeout_s, TIMEOUT_S, "seconds, 0 for none")?;
    let wait_s = resolver.pick("wait_s", None, |file| file.wait_s, WAIT_S, "seconds")?;
    let max_chars = resolver.pick("max_chars", None, |file| file.max_chars, MAX_CHARS, "a number of characters")?;
    let max_output_mb = resolver.pick("max_output_mb", None, |file| file.max_output_mb, MAX_OUTPUT_MB, "megabytes")?;
    let checkpoints = resolver.pick(
        "checkpoints",
        None,
        |file| file.checkpoints.as_ref().map(|CheckpointsText(text)| text.clone()),
        "auto".to_owned(),
        "`auto`, `off` or a number",
    )?;
    let auto_install = resolver.pick("auto_install", None, |file| file.auto_install, false, "`true` or `false`")?;
    let install_timeout_s = resolver.pick("install_timeout_s", None, |file| file.install_timeout_s, 600, "seconds")?;
    let sandbox_best_effort =
        resolver.pick("sandbox_best_effort", None, |file| file.sandbox_best_effort, false, "`true` or `false`")?;
    let tools =
        resolver.pick("tools", flags.tools.clone(), |file| file.tools.clone(), String::new(), "names of toolsets")?;
    let readonly = flags.readonly.then_some(true);
    let readonly = resolver.pick("readonly", readonly, |file| file.readonly, false, "`true` or `false`")?;
    let session = resolver.pick("session", None, |_| None, String::new(), "a target")?;
    let profile = resolver.pick(
        "sandbox.profile",
        None,
        |file| file.sandbox.as_ref()?.defaults.profile.clone(),
        String::new(),
        PROFILES,
    )?;
    let checkpoints = checkpoints
        .parse()
        .map_err(|()| resolver.invalid("checkpoints", &checkpoints, "`auto`, `off` or how many to keep, up to 20"))?;
    let timeout = seconds(timeout_s)
        .ok_or_else(|| resolver.invalid("timeout_s", &timeout_s.to_string(), "seconds, 0 for none"))?;
    let wait = seconds(wait_s).ok_or_else(|| resolver.invalid("wait_s", &wait_s.to_string(), "seconds"))?;
    let profile = said(profile)
        .map(|name| name.parse().map_err(|_| resolver.invalid("sandbox.profile", &name, PROFILES)))
        .transpose()?;
    Ok(CallerSettings {
        python: said(python),
        timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
        wait,
        max_chars,
        max_output_bytes: max_output_mb.saturating_mul(1 << 20),
        checkpoints,
        auto_install,
        install_timeout: Duration::from_secs(install_timeout_s),
        profile,
        sandbox_best_effort,
        tools: said(tools),
        readonly,
        session: said(session).map(Into::into),
    })
}

/// The setting, unless it is empty.
fn said(value: String) -> Option<String> {
    Some(value).filter(|value| !value.is_empty())
}

const PROFILES: &str = "`open`, `workspace` or `sealed`";

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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::PathBuf};

    use super::*;
    use crate::config::Places;

    /// A user with a settings file.
    struct User(PathBuf);

    impl User {
        fn new(name: &str, file: &str) -> Self {
            let home = std::env::temp_dir().join(format!("pylair-callers-{name}-{}", std::process::id()));
            std::fs::create_dir_all(home.join("config")).unwrap();
            let user = Self(home);
            user.write(file);
            user
        }

        fn write(&self, file: &str) {
            std::fs::write(self.0.join("config/config.toml"), file).unwrap();
        }

        fn config(&self, variables: &[(&str, &str)]) -> Config {
            let mut env = BTreeMap::from([("PYLAIR_HOME".to_owned(), self.0.display().to_string())]);
            env.extend(variables.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
            Config::resolve(&Flags::default(), &env, None, &Places::resolve(&env, 1)).unwrap()
        }

        /// What becomes of a caller's variables when this is the daemon.
        fn heed(&self, daemon: &Config, variables: &[(&str, &str)]) -> (CallerSettings, Vec<String>) {
            let (settings, unheeded) = Introduction::new(&self.config(variables), Vec::new()).heed(daemon);
            (settings, unheeded.into_iter().map(|unheeded| unheeded.key).collect())
        }
    }

    impl Drop for User {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Another value than the default, for each setting that a variable can set.
    const OTHERS: &[(&str, &str)] = &[
        ("allowed_hosts", "a.example"),
        ("audit_files", "3"),
        ("audit_mb", "3"),
        ("auto_install", "true"),
        ("behind_proxy", "true"),
        ("checkpoints", "2"),
        ("database", "/tmp/other.db"),
        ("failures_days", "3"),
        ("failures_kept", "3"),
        ("failures_mb", "3"),
        ("frozen_failures", "3"),
        ("frozen_mb", "3"),
        ("frozen_minutes", "3"),
        ("host", "::1"),
        ("http_auth_failures", "3"),
        ("http_body_timeout_s", "3"),
        ("http_buffer_mb", "3"),
        ("http_connections", "3"),
        ("http_head_timeout_s", "3"),
        ("http_rate", "3"),
        ("http_requests", "3"),
        ("http_requests_per_token", "3"),
        ("http_strangers", "3"),
        ("http_streams", "3"),
        ("http_streams_per_token", "3"),
        ("http_write_timeout_s", "3"),
        ("idle_exit_s", "3"),
        ("install_timeout_s", "3"),
        ("max_chars", "3"),
        ("max_output_mb", "3"),
        ("max_sessions", "3"),
        ("max_sessions_per_owner", "3"),
        ("port", "3"),
        ("python", "/usr/bin/python3"),
        ("readonly", "true"),
        ("sandbox.profile", "sealed"),
        ("sandbox_best_effort", "true"),
        ("session", "work"),
        ("session_ttl_s", "3"),
        ("timeout_s", "3"),
        ("tools", "look"),
        ("wait_s", "3"),
    ];

    #[test]
    fn every_setting_counts_for_its_caller_or_is_told_not_to() {
        let user = User::new("every", "");
        let daemon = user.config(&[]);
        let known: Vec<_> = daemon.settings.iter().map(|setting| setting.key.as_str()).collect();
        for (key, applies_to) in SETTINGS {
            assert!(known.contains(key), "there is no setting `{key}`");
            // Both of them or none; directories have variables of their own.
            if key.starts_with("tls_") || key.starts_with("places.") {
                assert_eq!(*applies_to, Daemon, "{key}");
                continue;
            }
            let value = OTHERS.iter().find(|(other, _)| other == key);
            let (_, value) = value.unwrap_or_else(|| panic!("this test has no value for `{key}`"));
            let variable = format!("PYLAIR_{}", key.replace('.', "_").to_uppercase());
            let (settings, unheeded) = user.heed(&daemon, &[(&variable, value)]);
            match applies_to {
                Caller => {
                    assert_ne!(settings, daemon.caller, "{variable} changes nothing for its caller");
                    assert!(unheeded.is_empty(), "{variable}: {unheeded:?}");
                }
                Daemon => {
                    assert_eq!(settings, daemon.caller, "{variable} changes something for its caller");
                    assert_eq!(unheeded, [*key], "{variable}");
                }
            }
            // A daemon that has the same is nothing to tell of.
            let same = user.config(&[(&variable, value)]);
            assert!(user.heed(&same, &[(&variable, value)]).1.is_empty(), "{variable}");
        }
        let unknown: Vec<_> = known.iter().filter(|key| !SETTINGS.iter().any(|(known, _)| known == *key)).collect();
        assert!(unknown.is_empty(), "nobody has said for whom these count: {unknown:?}");
        let pair = [("PYLAIR_TLS_CERT", "/a"), ("PYLAIR_TLS_KEY", "/b")];
        assert_eq!(user.heed(&daemon, &pair).1, ["tls_cert", "tls_key"]);
        let elsewhere = User::new("elsewhere", "");
        assert_eq!(elsewhere.heed(&daemon, &[]).1, ["places.state", "places.data", "places.config"]);
    }

    #[test]
    fn what_the_daemon_was_started_with_is_told_and_not_outdone_by_the_file() {
        let user = User::new("told", "session_ttl_s = 60\nport = 1\n");
        let daemon = user.config(&[("PYLAIR_PORT", "2")]);
        assert!(user.heed(&daemon, &[]).1.is_empty(), "whoever started it chose another port");
        let said = Introduction::new(&user.config(&[("PYLAIR_SESSION_TTL_S", "9")]), Vec::new()).heed(&daemon).1;
        let file = user.0.join("config/config.toml");
        assert_eq!(
            said[0].note(),
            format!(
                "`session_ttl_s` is 60 ({}), not 9 (the environment variable PYLAIR_SESSION_TTL_S): it holds for the whole daemon \
                 and was settled when that started; to change it, run `pylair stop` and start again",
                file.display()
            )
        );
        user.write("session_ttl_s = 70\n[sandbox]\nmemory_mb = 500\n");
        assert_eq!(user.heed(&daemon, &[]).1, ["session_ttl_s", "sandbox.memory_mb"], "the file was changed since");
        user.write("wait_s = 3\n");
        let (settings, unheeded) = user.heed(&daemon, &[]);
        assert_eq!((settings.wait, unheeded.len()), (Duration::from_secs(3), 0), "a caller reads the file itself");
    }

    #[test]
    fn no_caller_gets_more_than_a_floor_gives() {
        let user = User::new("floor", "[sandbox]\nprofile = 'workspace'\nfloor = true\n");
        let daemon = user.config(&[]);
        let less = [
            ("PYLAIR_SANDBOX_PROFILE", "open"),
            ("PYLAIR_SANDBOX_BEST_EFFORT", "true"),
            ("PYLAIR_PYTHON", "/tmp/project/python"),
        ];
        let (settings, unheeded) = user.heed(&daemon, &less);
        assert_eq!(unheeded, ["sandbox.profile", "sandbox_best_effort", "python"]);
        assert_eq!(settings, daemon.caller);
        let more = [("PYLAIR_SANDBOX_PROFILE", "sealed"), ("PYLAIR_PYTHON", "3.12"), ("PYLAIR_WAIT_S", "1")];
        let (settings, unheeded) = user.heed(&daemon, &more);
        assert_eq!((settings.profile, unheeded.len()), (Some(Profile::Sealed), 0));
    }
}
