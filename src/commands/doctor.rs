//! `pylair doctor`: what is configured, from where, and what works here. Everything it says it tried just now.

use std::{os::unix::fs::PermissionsExt, time::Instant};

use serde::{Deserialize, Serialize};

use super::{Exit, Failure, Surroundings, client::Client, exceed::exceed, say};
use crate::{
    cli::DoctorArgs,
    config::{self, Flags},
};
use pylair_core::{
    daemon::{DaemonStatus, VERSION},
    settings::{AppliesTo, Config, Places, Setting, Unheeded},
};
use pylair_python::{self as python, Interpreters};
use pylair_text::plain::{shown, with_causes};
use pylair_web::api::{DaemonSettings, Origin};

#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    places: Places,
    settings: Vec<Counting>,
    daemon: Option<DaemonStatus>,
    interpreters: Vec<InterpreterCheck>,
    trials: Vec<Trial>,
}

/// A setting as it counts here: for this caller, or for the daemon it reaches.
#[derive(Debug, Serialize)]
struct Counting {
    key: String,
    value: String,
    origin: String,
    applies_to: AppliesTo,
    /// What this caller says instead, and why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_used: Option<Unheeded>,
}

/// All settings as they count. Without a daemon, as they would for one that is started now.
fn counting(own: &[Setting], daemon: Option<DaemonSettings>) -> Vec<Counting> {
    let DaemonSettings { settings: daemons, unheeded } =
        daemon.unwrap_or_else(|| DaemonSettings { settings: Vec::new(), unheeded: Vec::new() });
    let of_daemon = |key: &str| daemons.iter().find(|setting| setting.key == key);
    let count = |own: Setting| {
        let applies_to = AppliesTo::of(&own.key);
        let not_used = unheeded.iter().find(|unheeded| unheeded.key == own.key).cloned();
        let used = of_daemon(&own.key).filter(|_| applies_to == AppliesTo::Daemon);
        let (value, origin) = match (&not_used, used) {
            (Some(unheeded), _) => (unheeded.used.clone(), unheeded.used_origin.clone()),
            (None, Some(setting)) => (setting.value.clone(), setting.origin.clone()),
            (None, None) => (own.value, own.origin),
        };
        Counting { key: own.key, value, origin, applies_to, not_used }
    };
    // Rules of the daemon's that the user's file has no more.
    let more = daemons.iter().filter(|setting| !own.iter().any(|own| own.key == setting.key)).cloned();
    let all: Vec<_> = own.iter().cloned().chain(more).collect();
    all.into_iter().map(count).collect()
}

#[derive(Debug, Serialize)]
struct InterpreterCheck {
    path: String,
    version: Option<String>,
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shim: Option<Shim>,
}

/// A program of a version manager that stands for an interpreter.
#[derive(Debug, Serialize)]
struct Shim {
    manager: &'static str,
    /// The interpreter, if there is one.
    leads_to: Option<String>,
}

impl InterpreterCheck {
    /// In one line, for people.
    fn line(&self) -> String {
        let first = |problem: &str| problem.lines().next().unwrap_or_default().to_owned();
        let problem = self.problem.as_deref().map(first).unwrap_or_default();
        let version = self.version.as_deref().unwrap_or("-");
        let what = match (&self.shim, &self.version) {
            (Some(Shim { manager, leads_to: Some(path) }), _) => {
                format!("{}, a shim of {manager} that leads to {path}", self.path)
            }
            (Some(Shim { manager, leads_to: None }), _) => {
                format!("{}, a shim of {manager} that leads to no interpreter: {problem}", self.path)
            }
            (None, Some(_)) => self.path.clone(),
            (None, None) => problem,
        };
        format!("  {:8} {}", shown(version), shown(&what))
    }
}

/// The profiles that confine, and what trying them is called.
const CONFINED: [(&str, &str); 2] = [("workspace", "workspace"), ("sealed", "sealed session")];

/// Something that was really done.
#[derive(Debug, Default, Serialize)]
struct Trial {
    what: &'static str,
    works: bool,
    detail: String,
    /// What of a sandbox was found to hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    enforced: Vec<Promise>,
}

impl Trial {
    /// In one word, for people: a sandbox of which something does not hold is no `ok`.
    fn word(&self) -> &'static str {
        match self.enforced.iter().any(|promise| promise.how == "no") {
            _ if !self.works => "FAIL",
            true => "part",
            false => "ok",
        }
    }

    /// Puts what was tried in earnest in the place of what was said of it.
    fn replace(&mut self, tried: Vec<Promise>) {
        for promise in tried {
            match self.enforced.iter_mut().find(|said| said.what == promise.what) {
                // What is held for the session as a whole is said in more words than what was tried.
                Some(said) => {
                    said.detail = format!("{}; {}", said.detail, promise.detail);
                    said.how = promise.how;
                }
                None => self.enforced.push(promise),
            }
        }
    }
}

/// One line of a session's `enforced`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Promise {
    pub what: String,
    pub how: String,
    pub detail: String,
}

pub fn doctor(args: &DoctorArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let (config, _) = surroundings.own_config(&Flags::default())?;
    let mut trials = vec![check_places(&surroundings.places)];
    trials.extend(check_project(surroundings));
    let was_running = Client::connect(surroundings)?.is_some();
    let (mut daemon, mut daemon_settings) = (None, None);
    match Client::start(surroundings) {
        Ok(mut client) => {
            let status: DaemonStatus = client.get("/api/status")?;
            let detail = format!(
                "pid {}, {} sessions, {}",
                status.pid,
                status.sessions,
                if was_running { "was running" } else { "started for this check; it leaves by itself" }
            );
            trials.push(Trial { what: "daemon", works: status.version == VERSION, detail, ..Trial::default() });
            let detail = status.audit_trouble.clone();
            let written = || format!("{} is written", surroundings.places.audit().display());
            let works = detail.is_none();
            let detail = detail.unwrap_or_else(written);
            trials.push(Trial { what: "audit record", works, detail, ..Trial::default() });
            daemon = Some(status);
            daemon_settings = client.get("/api/settings").ok();
            trials.push(try_session(&mut client, "open", "session", surroundings));
            for (sandbox, what) in CONFINED {
                let mut trial = try_session(&mut client, sandbox, what, surroundings);
                if trial.works && !args.quick {
                    trial.replace(exceed(&mut client, sandbox, surroundings)?);
                }
                trials.push(trial);
            }
        }
        Err(failure) => trials.push(Trial { what: "daemon", detail: failure.message, ..Trial::default() }),
    }
    let findings = Findings {
        version: VERSION,
        places: surroundings.places.clone(),
        interpreters: find_interpreters(surroundings, &config)?,
        settings: counting(&config.settings, daemon_settings),
        daemon,
        trials,
    };
    if args.json {
        say(&serde_json::to_string_pretty(&findings).unwrap_or_default())?;
    } else {
        show(&findings)?;
    }
    // A machine that cannot confine a session is still a good one; one that cannot run Python is not.
    let is_confined = |trial: &&Trial| CONFINED.iter().any(|(_, what)| *what == trial.what);
    let essential = findings.trials.iter().filter(|trial| !is_confined(trial));
    Ok(if essential.into_iter().all(|trial| trial.works) { Exit::Ok } else { Exit::Failed })
}

fn check_places(places: &Places) -> Trial {
    let made = places.create();
    let mode = std::fs::metadata(&places.runtime).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    let detail = match &made {
        Ok(()) => format!("{} has mode {mode:04o} and is ours", places.runtime.display()),
        Err(error) => format!("{}; {}", with_causes(error), error.hint()),
    };
    Trial { what: "directories", works: made.is_ok() && mode == 0o700, detail, ..Trial::default() }
}

/// The `pylair.toml` of this directory, which counts for bridges and commands in it.
fn check_project(surroundings: &Surroundings) -> Option<Trial> {
    let path = surroundings.cwd.as_ref()?.join("pylair.toml");
    std::fs::symlink_metadata(&path).ok()?;
    let resolved =
        config::resolve(&Flags::default(), &surroundings.env, surroundings.cwd.as_deref(), &surroundings.places);
    let (works, detail) = match resolved {
        Ok((config, _)) => {
            let origin = path.display().to_string();
            let its: Vec<_> = config.settings.iter().filter(|setting| setting.origin == origin).collect();
            let its: Vec<_> = its.iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
            let counts = if its.is_empty() { "nothing in it counts".to_owned() } else { its.join(", ") };
            (true, format!("{origin}: {counts} (for bridges and commands here)"))
        }
        Err(error) => (false, format!("{}; {}", with_causes(&error), error.hint())),
    };
    Some(Trial { what: "project settings", works, detail, ..Trial::default() })
}

fn try_session(client: &mut Client, sandbox: &str, what: &'static str, surroundings: &Surroundings) -> Trial {
    let started = Instant::now();
    let from = Origin { cwd: surroundings.cwd.clone(), env: Some(surroundings.env.clone()), client: None };
    let body = serde_json::json!({"name": format!("doctor-{}-{sandbox}", std::process::id()), "sandbox": sandbox, "from": from});
    let opened: Result<serde_json::Value, Failure> = client.post("/api/sessions", &body);
    let status = match opened {
        Ok(status) => status,
        Err(failure) => {
            return Trial { what, detail: format!("{} ({})", failure.message, failure.hint), ..Trial::default() };
        }
    };
    let opened_in = started.elapsed();
    let closed: Result<serde_json::Value, Failure> =
        client.post("/api/sessions/close", &serde_json::json!({"target": status["name"]}));
    let works = closed.is_ok();
    let python = status["executable"].as_str().unwrap_or_default();
    let version = status["python"].as_str().unwrap_or_default();
    Trial {
        what,
        works,
        detail: format!("Python {version} ({python}), opened in {:.1} ms", opened_in.as_secs_f64() * 1e3),
        enforced: serde_json::from_value(status["enforced"].clone()).unwrap_or_default(),
    }
}

fn find_interpreters(surroundings: &Surroundings, config: &Config) -> Result<Vec<InterpreterCheck>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let interpreters = Interpreters::default();
    let cwd = surroundings.cwd.clone().unwrap_or_else(|| "/".into());
    let mut found = Vec::new();
    for path in python::candidates(&surroundings.env) {
        let asked = runtime.block_on(interpreters.ask(&path, &cwd, &surroundings.env));
        let (version, problem, leads_to) = match asked {
            Ok(interpreter) => (Some(interpreter.version), None, Some(interpreter.executable.display().to_string())),
            // What a shim says tells more than that it is no interpreter.
            Err(python::Error::NotPython { detail, .. }) if config.interpreters.shim_of(&path).is_some() => {
                (None, Some(detail), None)
            }
            Err(error) => (None, Some(with_causes(&error)), None),
        };
        let shim = config.interpreters.shim_of(&path).map(|manager| Shim { manager, leads_to });
        found.push(InterpreterCheck { path: path.display().to_string(), version, problem, shim });
    }
    Ok(found)
}

fn show(findings: &Findings) -> Result<(), Failure> {
    say(&format!("pylair {}", findings.version))?;
    say("\nTried just now")?;
    for trial in &findings.trials {
        say(&format!("  {:4} {:15} {}", trial.word(), trial.what, shown(&trial.detail)))?;
    }
    for trial in findings.trials.iter().filter(|trial| !trial.enforced.is_empty()) {
        say(&format!("\nWhat holds in: {}", trial.what))?;
        for promise in &trial.enforced {
            say(&format!("  {:8} {:15} {}", shown(&promise.how), shown(&promise.what), shown(&promise.detail)))?;
        }
    }
    if let Some(daemon) = &findings.daemon {
        say("\nUsed, of what all owners share")?;
        for budget in &daemon.budgets {
            let removed = if budget.removed == 0 { String::new() } else { format!(", {} removed", budget.removed) };
            let (used, what) = (budget.all.unwrap_or(budget.yours), shown(&budget.what));
            say(&format!("  {:24} {used} of {}{removed}", what, budget.bound))?;
        }
    }
    say("\nPython")?;
    for found in &findings.interpreters {
        say(&found.line())?;
    }
    if findings.interpreters.is_empty() {
        say("  none on PATH")?;
    }
    let of_daemon = match &findings.daemon {
        Some(daemon) => format!("Settings of the daemon, pid {}, for all callers", daemon.pid),
        None => "Settings of a daemon that is started now".to_owned(),
    };
    for (applies_to, title) in
        [(AppliesTo::Caller, "Settings of what is called from here"), (AppliesTo::Daemon, &of_daemon)]
    {
        say(&format!("\n{title}"))?;
        let is_place = |setting: &Counting| setting.key.starts_with(PLACES);
        show_settings(
            findings.settings.iter().filter(|setting| setting.applies_to == applies_to && !is_place(setting)),
        )?;
    }
    say("\nPlaces")?;
    say(&format!("  {:15} {}", "runtime", shown(&findings.places.runtime.display().to_string())))?;
    show_settings(findings.settings.iter().filter(|setting| setting.key.starts_with(PLACES)))
}

/// What the directories among the settings begin with.
const PLACES: &str = "places.";

fn show_settings<'a>(settings: impl Iterator<Item = &'a Counting> + Clone) -> Result<(), Failure> {
    let name = |setting: &'a Counting| setting.key.strip_prefix(PLACES).unwrap_or(&setting.key);
    let width = settings.clone().map(|setting| name(setting).len()).max().unwrap_or(0).max(15);
    for setting in settings {
        let value = if setting.value.is_empty() { "-".to_owned() } else { shown(&setting.value) };
        say(&format!("  {:width$} {value:12} {}", name(setting), shown(&setting.origin)))?;
        if let Some(Unheeded { value, origin, why, .. }) = &setting.not_used {
            say(&format!("  {:width$} not {} ({}): {}", "", shown(value), shown(origin), shown(why)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_is_not_called_ok() {
        let promise = |how: &str| Promise { what: "tmp".into(), how: how.into(), detail: String::new() };
        let trial = |works, how| Trial { works, enforced: vec![promise("kernel"), promise(how)], ..Trial::default() };
        assert_eq!(trial(true, "watched").word(), "ok");
        assert_eq!(trial(true, "no").word(), "part");
        assert_eq!(trial(false, "no").word(), "FAIL");
    }
}
