//! Settings: those of a caller count for what it opens and calls beside a daemon that has others, and what can only be set for the whole
//! daemon says so.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};

use crate::support::{
    AppProcess, Client, Finished, Home, WAIT_FOREVER, finish, newest_python, pythons, skip, why_no_namespaces,
};

/// A daemon that somebody else started, with settings of their own.
fn beside_a_daemon() -> (Home, Client) {
    let home = Home::new();
    let mut first = home.initialized_client();
    first.execute("x = 1");
    (home, first)
}

fn notes_of(answer: &Value) -> String {
    answer["notes"].to_string()
}

#[test]
fn the_clocks_and_limits_of_a_second_bridge_are_its_own() {
    let (home, mut first) = beside_a_daemon();
    let mut second = home.another_client(&[
        ("PYLAIR_WAIT_S", "0"),
        ("PYLAIR_MAX_CHARS", "300"),
        ("PYLAIR_MAX_OUTPUT_MB", "1"),
        ("PYLAIR_AUTO_INSTALL", "true"),
    ]);
    let running = second.execute(WAIT_FOREVER);
    assert_eq!(running["outcome"], "running", "wait_s is 0");
    second.data("get_job", &json!({"job": running["job"], "cancel": true, "wait_s": 60, "output": "json"}));
    let wait = |client: &mut Client, code: &str| {
        client.data("execute", &json!({"code": code, "wait_s": 60, "output": "json"}))
    };
    let printed = wait(&mut second, "print('x' * 2_000_000)");
    assert!(printed["stdout"].as_str().is_some_and(|text| text.len() < 1000), "max_chars is 300");
    let job = printed["job"].as_str().expect("a job");
    let kept = home.run(&["output", job]).stdout.len();
    assert!((500_000..1_200_000).contains(&kept), "{kept} bytes were kept, max_output_mb is 1");
    let raised = wait(&mut second, "import no_such_module");
    assert!(notes_of(&raised).contains("was not installed by itself"), "auto_install is true: {raised}");
    // The first one goes on with its own.
    let printed = first.execute("print('x' * 2_000_000)");
    assert!(printed["stdout"].as_str().is_some_and(|text| text.len() > 20_000), "max_chars is 25000");
    let job = printed["job"].as_str().expect("a job");
    assert_eq!(home.run(&["output", job]).stdout.len(), 2_000_001);
    assert!(!notes_of(&first.execute("import no_such_module")).contains("by itself"));
    let mut third = home.another_client(&[("PYLAIR_TIMEOUT_S", "0.2"), ("PYLAIR_INSTALL_TIMEOUT_S", "0")]);
    assert_eq!(third.execute(WAIT_FOREVER)["outcome"], "timed_out");
    let failed = third.failure("install_packages", &json!({"packages": ["tiny"]}));
    assert_eq!(failed["kind"], "install_timed_out", "{failed}");
}

#[test]
fn what_a_second_bridge_opens_is_opened_by_its_settings() {
    let (home, mut first) = beside_a_daemon();
    let python = pythons().first().expect("there is one").display().to_string();
    let mut second = home.another_client(&[("PYLAIR_PYTHON", &python), ("PYLAIR_CHECKPOINTS", "off")]);
    let opened = second.data("open_session", &json!({"name": "other"}));
    assert_eq!(opened["executable"], python);
    for code in ["x = 1", "x = 2"] {
        second.data("execute", &json!({"code": code, "target": "other", "output": "json"}));
    }
    assert_eq!(second.failure("undo", &json!({"target": "other"}))["kind"], "no_checkpoint");
    let opened = first.data("open_session", &json!({"name": "own"}));
    assert_eq!(opened["executable"], newest_python().display().to_string());
    if let Some(reason) = why_no_namespaces() {
        return skip("what_a_second_bridge_opens_is_opened_by_its_settings", &reason);
    }
    let mut third = home.another_client(&[("PYLAIR_SANDBOX_PROFILE", "sealed")]);
    assert_eq!(third.data("open_session", &json!({}))["sandbox"], "sealed");
    assert_eq!(third.data("open_session", &json!({"sandbox": "workspace"}))["sandbox"], "workspace");
    assert_eq!(first.data("open_session", &json!({}))["sandbox"], "open");
}

#[test]
fn the_tools_of_a_second_bridge_are_its_own() {
    let (home, mut first) = beside_a_daemon();
    let names = |client: &mut Client| {
        let id = client.request("tools/list", &json!({}));
        let tools = client.answer(id)["result"]["tools"].as_array().expect("a list").clone();
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let mut looking = home.another_client(&[("PYLAIR_READONLY", "true")]);
    let served = names(&mut looking);
    assert!(served.contains(&"inspect".to_owned()) && !served.contains(&"execute".to_owned()), "{served:?}");
    let mut few = home.another_client(&[("PYLAIR_TOOLS", "admin")]);
    assert_eq!(names(&mut few), ["get_status", "read_docs"]);
    assert!(names(&mut first).contains(&"execute".to_owned()));
}

#[test]
fn the_settings_of_a_command_are_its_own() {
    let (home, _first) = beside_a_daemon();
    let stopped = home.run_with(&[("PYLAIR_TIMEOUT_S", "0.2")], &["exec", WAIT_FOREVER]);
    assert_eq!(stopped.status.code(), Some(1), "{stopped:?}");
    assert!(stopped.stderr.contains("longer than timeout_s=0.2"), "{stopped:?}");
    let python = pythons().first().expect("there is one").display().to_string();
    let run = |variables: &[(&str, &str)], args: &[&str]| -> Finished {
        finish(home.command_of_another(args, variables), b"")
    };
    let told = run(&[("PYLAIR_PYTHON", &python), ("PYLAIR_READONLY", "true")], &["exec", "1"]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.stderr.contains("may not run code") && told.stderr.contains("PYLAIR_READONLY"), "{told:?}");
    let wrong = run(&[("PYLAIR_WAIT_S", "soon")], &["exec", "1"]);
    assert!(wrong.status.code() == Some(2) && wrong.stderr.contains("`soon`"), "{wrong:?}");
    let stopped = home.run(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    // Nobody's client is near now, and so this is the session `main`.
    let told = run(&[("PYLAIR_PYTHON", &python)], &["exec", "import sys; print(sys.executable)"]);
    assert_eq!(told.stdout.trim(), python, "{told:?}");
    let own = run(&[], &["exec", "-t", "main", "1"]);
    assert!(own.status.success(), "{own:?}");
}

#[test]
fn a_projects_settings_count_for_bridges_and_commands_in_it() {
    let (home, mut first) = beside_a_daemon();
    let file = home.work().join("pylair.toml");
    fs::write(&file, "max_chars = 300\ntimeout_s = 0.2\n").expect("the home is writable");
    let mut second = home.another_client(&[]);
    assert_eq!(second.execute(WAIT_FOREVER)["outcome"], "timed_out");
    let printed = second.execute("print('x' * 5000)");
    assert!(printed["stdout"].as_str().is_some_and(|text| text.len() < 1000), "{printed}");
    assert_eq!(home.run(&["exec", "-t", "another", WAIT_FOREVER]).status.code(), Some(2));
    let name = printed["session"].as_str().expect("a session").to_owned();
    let stopped = home.run(&["exec", "-t", &name, WAIT_FOREVER]);
    assert!(stopped.stderr.contains("longer than timeout_s=0.2"), "{stopped:?}");
    assert!(first.execute("print('x' * 5000)")["stdout"].as_str().is_some_and(|text| text.len() == 5001));
    // A file that asks for more than a project may have does not count, and everybody is told once.
    fs::write(&file, "max_chars = 300\npython = '/tmp/evil'\n").expect("the home is writable");
    let mut third = home.another_client(&[]);
    let answer = third.execute("print('x' * 5000)");
    assert_eq!(answer["stdout"].as_str().map(str::len), Some(5001), "{answer}");
    assert!(notes_of(&answer).contains("sets `python`") && notes_of(&answer).contains("does not count"), "{answer}");
    assert!(!notes_of(&third.execute("1")).contains("sets `python`"));
    let told = home.run(&["exec", "-t", &name, "1"]);
    assert!(told.status.success() && told.stderr.matches("sets `python`").count() == 1, "{told:?}");
}

#[test]
fn what_holds_for_the_whole_daemon_is_told_once_to_whoever_has_it_otherwise() {
    let home = Home::new().set("PYLAIR_SESSION_TTL_S", "5000");
    let mut first = home.initialized_client();
    assert!(!notes_of(&first.execute("1")).contains("session_ttl_s"), "it has the same");
    let other = [("PYLAIR_SESSION_TTL_S", "60"), ("PYLAIR_MAX_SESSIONS", "200")];
    let told = "`session_ttl_s` is 5000 (the environment variable PYLAIR_SESSION_TTL_S), not 60 (the environment variable \
                PYLAIR_SESSION_TTL_S): it holds for the whole daemon and was settled when that started; to change it, run \
                `pylair stop` and start again";
    let mut second = home.another_client(&other);
    let answer = second.execute("1");
    assert!(answer["notes"].as_array().expect("notes").contains(&json!(told)), "{answer}");
    assert!(!notes_of(&answer).contains("max_sessions"), "that is the same as the default: {answer}");
    assert!(!notes_of(&second.execute("1")).contains("session_ttl_s"), "it is told once");
    let run = home.run_with(&other, &["sessions"]);
    assert_eq!(run.stderr, format!("note: {told}\n"));
    let run = home.run_with(&other, &["exec", "-t", "it-1", "1"]);
    assert_eq!((run.stdout.as_str(), run.stderr.matches("session_ttl_s").count()), ("1\n", 1), "{run:?}");
    assert_eq!(home.run(&["sessions"]).stderr, "");
    // The user's file was changed since.
    fs::create_dir_all(home.places().config).expect("the home is writable");
    fs::write(home.places().settings_file(), "max_sessions = 7\nwait_s = 0\n").expect("the home is writable");
    let mut third = home.another_client(&[]);
    let answer = third.execute(WAIT_FOREVER);
    assert!(notes_of(&answer).contains("`max_sessions` is 200 (default), not 7 ("), "{answer}");
    assert_eq!(answer["outcome"], "running", "its wait_s is its own");
    third.data("interrupt", &json!({}));
    assert!(home.run(&["stop"]).status.success());
    let mut third = home.another_client(&other);
    assert!(!notes_of(&third.execute("1")).contains("session_ttl_s"), "it was started with these settings");
}

#[test]
fn doctor_shows_what_really_counts() {
    let (home, _first) = beside_a_daemon();
    let variables = [("PYLAIR_WAIT_S", "7"), ("PYLAIR_SESSION_TTL_S", "60")];
    let told = home.run_with(&variables, &["doctor", "--json", "--quick"]);
    let findings: Value = serde_json::from_str(&told.stdout).expect("JSON");
    let settings = findings["settings"].as_array().expect("a list");
    let setting = |key: &str| settings.iter().find(|setting| setting["key"] == key).expect("every setting is shown");
    let (wait, ttl) = (setting("wait_s"), setting("session_ttl_s"));
    assert_eq!((wait["value"].as_str(), wait["applies_to"].as_str()), (Some("7"), Some("caller")));
    assert_eq!(wait["origin"], "the environment variable PYLAIR_WAIT_S");
    assert_eq!((ttl["value"].as_str(), ttl["origin"].as_str()), (Some("28800"), Some("default")), "{ttl}");
    assert_eq!(ttl["applies_to"], "daemon");
    assert_eq!(ttl["not_used"]["value"], "60", "{ttl}");
    let people = home.run_with(&variables, &["doctor", "--quick"]).stdout;
    let line = |words: &str| people.lines().any(|line| line.contains(words));
    assert!(line("Settings of what is called from here") && line("Settings of the daemon, pid "), "{people}");
    let not_used = "not 60 (the environment variable PYLAIR_SESSION_TTL_S): it holds for the whole daemon";
    assert!(line(not_used) && line("`pylair stop`"), "{people}");
}

#[test]
fn a_floor_holds_for_a_second_bridge_whatever_its_settings_say() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_floor_holds_for_a_second_bridge_whatever_its_settings_say", &reason);
    }
    let home = Home::new();
    fs::create_dir_all(home.places().config).expect("the home is writable");
    fs::write(
        home.places().settings_file(),
        "[sandbox]\nprofile = 'sealed'\nfloor = true\n[sandbox.max]\nmemory_mb = 500\n",
    )
    .expect("the home is writable");
    let mut first = home.initialized_client();
    first.execute("1");
    let mut second = home.another_client(&[
        ("PYLAIR_SANDBOX_PROFILE", "open"),
        ("PYLAIR_SANDBOX_BEST_EFFORT", "true"),
        ("PYLAIR_SESSION", "app:web"),
    ]);
    let opened = second.data("open_session", &json!({"name": "mine"}));
    assert_eq!(opened["sandbox"], "sealed");
    assert!(
        notes_of(&opened).contains("`sandbox.profile` is sealed (") && notes_of(&opened).contains("floor"),
        "{opened}"
    );
    assert!(notes_of(&opened).contains("`sandbox_best_effort` is false (default), not true"), "{opened}");
    assert_eq!(second.failure("execute", &json!({"code": "1"}))["kind"], "not_allowed", "an app is outside");
    assert_eq!(second.failure("close_session", &json!({}))["kind"], "not_allowed");
    let much = second.failure("open_session", &json!({"sandbox": {"memory_mb": 501}}));
    assert!(much["message"].as_str().is_some_and(|message| message.contains("over the limit of 500")), "{much}");
}

#[test]
fn the_default_target_of_a_bridge_is_what_pylair_session_says() {
    let (home, mut first) = beside_a_daemon();
    first.data("open_session", &json!({"name": "work"}));
    first.data("execute", &json!({"code": "y = 'at work'", "target": "work"}));
    let mut second = home.another_client(&[("PYLAIR_SESSION", "work")]);
    assert_eq!(second.execute("y")["result"], "'at work'");
    let seen = second.data("inspect", &json!({"path": "y"}));
    assert!(seen.to_string().contains("at work"), "{seen}");
    assert_eq!(second.data("get_status", &json!({}))["default_target"], "work");
    second.data("undo", &json!({}));
    assert_eq!(second.data("close_session", &json!({}))["closed"], "work");
    let gone = second.failure("execute", &json!({"code": "1"}));
    assert_eq!(gone["kind"], "closed_session", "it is no new session: {gone}");
    assert!(gone["hint"].as_str().is_some_and(|hint| hint.contains("PYLAIR_SESSION says `work`")), "{gone}");
    let app = AppProcess::start(&home, "pylair.register('shelf', {'tea': 3})", "app_id='shop'");
    let mut third = home.another_client(&[("PYLAIR_SESSION", "app:shop")]);
    assert_eq!(third.execute("shelf['tea']")["result"], "3");
    assert_eq!(third.data("get_status", &json!({}))["default_target"], "app:shop");
    assert_eq!(third.failure("undo", &json!({}))["kind"], "sessions_only");
    assert_eq!(first.data("list_targets", &json!({"kind": "session"}))["sessions"].as_array().map(Vec::len), Some(1));
    drop(app);
}

#[test]
fn tools_on_apps_mean_the_default_target_too() {
    let (home, _first) = beside_a_daemon();
    let code = "import logging\nlogging.getLogger('till').warning('open')";
    let app = AppProcess::start(&home, &format!("pylair.register('shelf', 1)\n{code}"), "app_id='shop'");
    let mut second = home.another_client(&[("PYLAIR_SESSION", "app:shop")]);
    assert_eq!(
        second.data("read_logs", &json!({}))["count"].as_u64(),
        Some(0),
        "records before the probe are not kept"
    );
    second.execute(code);
    assert_eq!(second.data("read_logs", &json!({}))["entries"][0]["message"], "open");
    assert_eq!(second.failure("screenshot", &json!({}))["kind"], "no_screenshot");
    let stacks = second.data("dump_stacks", &json!({}));
    assert_eq!(stacks["pid"].as_i64(), Some(app.pid.into()), "{stacks}");
    let refused = second.failure("save_session", &json!({}));
    assert_eq!(refused["kind"], "sessions_only");
    let hint = refused["hint"].as_str().expect("a hint");
    assert!(hint.contains("PYLAIR_SESSION says `app:shop`") && !hint.contains("leave out"), "{refused}");
    // Where the default is a session, or there is none.
    let mut third = home.another_client(&[]);
    assert_eq!(third.failure("read_logs", &json!({}))["kind"], "no_session");
    third.execute("x = 1");
    assert_eq!(third.failure("read_logs", &json!({}))["kind"], "apps_only");
    assert_eq!(third.data("dump_stacks", &json!({}))["threads"][0]["main"], true);
    let mut fourth = home.another_client(&[("PYLAIR_SESSION", &format!("pid:{}", std::process::id()))]);
    assert_eq!(
        fourth.failure("dump_stacks", &json!({}))["kind"],
        "not_python",
        "any process of the user's may be meant"
    );
    let setup = "import threading\npylair.set_main_thread_invoker(lambda call: threading.Event().wait())\n\
                 pylair.set_screenshot_fn(lambda: b'')";
    let _busy = AppProcess::start(&home, setup, "app_id='busy'");
    let mut fifth = home.another_client(&[("PYLAIR_SESSION", "app:busy"), ("PYLAIR_TIMEOUT_S", "0.2")]);
    assert_eq!(fifth.failure("screenshot", &json!({}))["kind"], "not_begun", "its timeout_s counts for a picture too");
}

#[test]
fn a_bridge_that_comes_back_with_other_settings_is_told_what_its_session_has() {
    let home = Home::new();
    let mut first = home.initialized_client();
    let name = first.execute("x = 1")["session"].as_str().expect("a name").to_owned();
    drop(first);
    let python = pythons().first().expect("there is one").display().to_string();
    let reconnect = |variables: &[(&str, &str)]| {
        let mut command = home.command(&["mcp"]);
        command.envs(variables.iter().copied());
        let mut client = Client::start(command);
        client.initialize();
        client
    };
    // The same client process starts its bridge again, and has the same session.
    let other = [("PYLAIR_CHECKPOINTS", "off"), ("PYLAIR_SANDBOX_PROFILE", "sealed"), ("PYLAIR_PYTHON", &*python)];
    let mut again = reconnect(&other);
    let answer = again.execute("x");
    let told = format!("your session `{name}` was opened before, with other settings: ");
    assert!(answer["result"] == "1" && notes_of(&answer).contains(&told), "{answer}");
    let notes = notes_of(&answer);
    assert!(notes.contains("`sandbox.profile` is open, not sealed, `checkpoints` is auto, not off"), "{notes}");
    if python != newest_python().display().to_string() {
        assert!(notes.contains(&format!("`python` is {}, not {python}", newest_python().display())), "{notes}");
    }
    assert!(!notes_of(&again.execute("x")).contains(&told), "it is told once");
    drop(again);
    let same = [("PYLAIR_CHECKPOINTS", "auto"), ("PYLAIR_SANDBOX_PROFILE", "open"), ("PYLAIR_WAIT_S", "20")];
    assert!(!notes_of(&reconnect(&same).execute("x")).contains(&told), "nothing differs");
}

#[test]
fn a_shell_beside_a_bridge_finds_its_default_target() {
    let home = Home::new();
    home.run(&["exec", "-t", "main", "1"]);
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "work"}));
    drop(client);
    let mut command = home.command(&["mcp"]);
    command.env("PYLAIR_SESSION", "work");
    let mut client = Client::start(command);
    client.initialize();
    client.execute("x = 'found'");
    assert_eq!(home.run(&["exec", "x"]).stdout, "'found'\n");
    let listed = home.run(&["sessions", "--json"]).stdout;
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(
        (listed["sessions"][0]["name"].as_str(), listed["sessions"][0]["mine"].as_bool()),
        (Some("work"), Some(true))
    );
}

/// A program on the path.
fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("it is in a directory")).expect("the home is writable");
    fs::write(path, text).expect("the home is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

#[test]
fn doctor_calls_a_shim_what_it_is() {
    let home = Home::new();
    let shims = home.work().join(".pyenv/shims");
    let python = newest_python();
    script(&shims.join("python3"), &format!("#!/bin/sh\nexec {} \"$@\"\n", python.display()));
    script(&shims.join("python3.9"), "#!/bin/sh\necho 'pyenv: python3.9: command not found' >&2\nexit 127\n");
    script(&home.work().join("bin/python3.10"), "#!/bin/sh\nexit 1\n");
    let path = format!("{}:{}/bin:/bin", shims.display(), home.work().display());
    let told = home.run_with(&[("PATH", &path)], &["doctor", "--quick"]).stdout;
    let leads = format!("{}/python3, a shim of pyenv that leads to {}", shims.display(), python.display());
    assert!(told.contains(&leads), "{told}");
    let nowhere = format!("{}/python3.9, a shim of pyenv that leads to no interpreter: ", shims.display());
    let line = told.lines().find(|line| line.contains(&nowhere)).unwrap_or_else(|| panic!("{told}"));
    assert!(line.contains("pyenv: python3.9: command not found"), "{line}");
    assert!(told.contains("bin/python3.10` is not a Python interpreter"), "{told}");
    let json = home.run_with(&[("PATH", &path)], &["doctor", "--quick", "--json"]).stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let shim = |name: &str| {
        let mut all = json["interpreters"].as_array().expect("a list").iter();
        all.find(|found| found["path"].as_str().is_some_and(|path| path.ends_with(name))).expect("it is found")["shim"]
            .clone()
    };
    assert_eq!(shim("shims/python3"), json!({"manager": "pyenv", "leads_to": python.display().to_string()}));
    assert_eq!(shim("shims/python3.9"), json!({"manager": "pyenv", "leads_to": null}));
    assert_eq!(shim("bin/python3.10"), Value::Null);
}

#[test]
fn the_text_of_an_answer_has_the_note_too() {
    let (home, _first) = beside_a_daemon();
    let mut second = home.another_client(&[("PYLAIR_MAX_SESSIONS", "3")]);
    let answer = second.call("list_targets", &json!({}));
    let note = answer["content"][1]["text"].as_str().unwrap_or_default();
    assert!(note.starts_with("Note: `max_sessions` is 200 (default), not 3"), "{answer}");
}
