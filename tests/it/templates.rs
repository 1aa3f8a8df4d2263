//! Templates: what a session's interpreter looks like whatever it was forked from, and when a template is made anew.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use pylair_core::session::OpenOptions;

use crate::support::{Core, newest_python, on_each_python, on_newest_python};

/// What tells one environment from another, without what `python -c` and a session put in front of the path.
const DESCRIBE: &str = "import site, sys\n\
    (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.executable, site.ENABLE_USER_SITE, \
     [entry for entry in sys.path if entry != sys.path[0]])";

fn make_venv(core: &Core, python: &str) -> PathBuf {
    let path = core.home.work().join("venv");
    let made = Command::new(python).args(["-m", "venv", "--without-pip"]).arg(&path).output().expect("Python starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

/// What the interpreter itself says when it is started.
fn describe_started(core: &Core, python: &Path) -> String {
    let code = DESCRIBE.replace("\n(", "\nprint(") + ")";
    let code = code.replace("print(sys.prefix", "print((sys.prefix");
    let output = Command::new(python)
        .args(["-c", &code])
        .env_clear()
        .envs(&core.home.env)
        .current_dir(core.home.work())
        .output();
    let output = output.expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text").trim().to_owned()
}

fn in_venv(venv: &Path) -> OpenOptions {
    OpenOptions { python: Some(venv.display().to_string()), ..OpenOptions::default() }
}

#[test]
fn a_venvs_session_is_exactly_the_venvs_interpreter_and_shares_the_template() {
    on_each_python(async |core| {
        let plain = core.session().await;
        let venv = make_venv(core, &core.home.env["PYLAIR_PYTHON"]);
        let session = core.open_session(in_venv(&venv)).await.expect("the session opens");
        let started = describe_started(core, &venv.join("bin/python"));
        assert_eq!(session.value(DESCRIBE).await, started);
        assert!(started.contains("venv/lib"), "{started}");
        assert_eq!(plain.value(DESCRIBE).await, describe_started(core, Path::new(&core.home.env["PYLAIR_PYTHON"])));
        assert_eq!(core.daemon.status().templates, 1);
    });
}

#[test]
fn a_preloaded_template_is_replaced_when_packages_change_on_disk() {
    on_newest_python(async |core| {
        let venv = make_venv(core, &newest_python().display().to_string());
        let found =
            fs::read_dir(venv.join("lib")).expect("a venv has it").next().expect("a version").expect("its name");
        let packages = found.path().join("site-packages");
        let install = |value: &str| {
            fs::write(packages.join("new.py"), format!("VALUE = {value:?}\n")).expect("the venv is writable");
            fs::rename(packages.join("new.py"), packages.join("thing.py")).expect("the venv is writable");
        };
        let options = OpenOptions { preload: vec!["thing".to_owned()], ..in_venv(&venv) };
        let open = async || core.open_session(options.clone()).await.expect("the session opens");
        let loaded = "import sys\nsys.modules['thing'].VALUE";
        install("old");
        let first = open().await;
        assert_eq!(first.value(loaded).await, "'old'");
        assert_eq!(first.value(DESCRIBE).await, describe_started(core, &venv.join("bin/python")));
        assert_eq!(open().await.value(loaded).await, "'old'");
        assert_eq!(core.daemon.status().templates, 1);
        install("newer");
        assert_eq!(open().await.value(loaded).await, "'newer'");
        assert_eq!(first.value(loaded).await, "'old'", "a session keeps what it has");
    });
}

#[test]
fn a_preload_that_is_not_there_is_an_error_that_names_it() {
    on_newest_python(async |core| {
        let options = OpenOptions { preload: vec!["no_such_module".to_owned()], ..OpenOptions::default() };
        let error = core.open_session(options).await.expect_err("it cannot be opened");
        let told = format!("{} {}", error.kind(), error);
        assert!(told.contains("No module named 'no_such_module'"), "{told}");
        assert_eq!(core.session().await.value("1").await, "1");
    });
}

#[test]
fn the_environment_is_the_callers_and_never_the_daemons() {
    on_newest_python(async |core| {
        let options =
            OpenOptions { env: [("ADDED".to_owned(), "by hand".to_owned())].into(), ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("the session opens");
        let mut expected = core.home.env.clone();
        expected.insert("ADDED".to_owned(), "by hand".to_owned());
        // The one thing that is ours: figures are drawn to be shown, not on a screen that is not there.
        expected.insert("MPLBACKEND".to_owned(), "Agg".to_owned());
        let python = session.run("import json, os\nprint(json.dumps(dict(os.environ)))").await;
        let python: std::collections::BTreeMap<String, String> =
            serde_json::from_str(&python.stdout).expect("it prints JSON");
        assert_eq!(python, expected);
        let child = session.run("import subprocess\nsubprocess.run(['/usr/bin/env', '-0'], env=None).returncode").await;
        let child = child.stdout.split_terminator('\0').filter_map(|pair| pair.split_once('='));
        let child: std::collections::BTreeMap<String, String> =
            child.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(child, expected);
    });
}

#[test]
fn startup_code_runs_first_and_after_every_restart() {
    on_newest_python(async |core| {
        let options = OpenOptions { startup: Some("ready = 'yes'".to_owned()), ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("the session opens");
        assert_eq!(session.value("ready").await, "'yes'");
        session.session.restart(pylair_core::session::RestartMode::Restart).await.expect("it restarts");
        assert_eq!(session.value("ready").await, "'yes'");
        let options = OpenOptions { startup: Some("1 / 0".to_owned()), ..OpenOptions::default() };
        let error = core.open_session(options).await.expect_err("it cannot be opened");
        assert_eq!(error.to_string(), "the startup code raised ZeroDivisionError: division by zero");
    });
}
