//! What counts for one caller, resolved.

use std::time::Duration;

use super::{
    CheckpointsText, Error, Flags, Resolver,
    project::{MAX_CHARS, MAX_OUTPUT_MB, TIMEOUT_S, WAIT_S},
    seconds,
};
use pylair_core::settings::CallerSettings;

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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::PathBuf};

    use super::*;
    use crate::config::resolve;
    use pylair_core::settings::{
        AppliesTo::{Caller, Daemon},
        Config, Introduction, Places, SETTINGS,
    };
    use pylair_sandbox::Profile;

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
            resolve(&Flags::default(), &env, None, &Places::resolve(&env, 1)).unwrap().0
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
