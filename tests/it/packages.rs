//! Packages: installed into the session's own environment or into one made for it, known to every worker it will have, and gone with it.
//!
//! The packages are tiny wheels made here, and the installers are told to look nowhere else.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use pylair_core::{
    history::{self, Format},
    packages::{Installed, Package},
    session::{Error, OpenOptions, Outcome, RestartMode},
};
use serde_json::json;
use tokio::sync::mpsc;

use crate::support::{
    Core, Home, PATIENCE, TestSession, WAIT_FOREVER, Watched, newest_python, on_each_python, on_newest_python, report,
    skip, text_of, why_no_namespaces, with_settings,
};

const MAKE_WHEEL: &str = r#"
import sys, zipfile
directory, name, version, requires = sys.argv[1:]
info = f"{name}-{version}.dist-info"
files = {
    f"{name}/__init__.py": f"VERSION = {version!r}\ndef main(): print('hello from {name}')\n",
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (f"Requires-Dist: {requires}\n" if requires else ""),
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/entry_points.txt": f"[console_scripts]\n{name}-hello = {name}:main\n",
}
record = f"{info}/RECORD"
files[record] = "".join(f"{path},,\n" for path in [*files, record])
with zipfile.ZipFile(f"{directory}/{name}-{version}-py3-none-any.whl", "w") as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
"#;

/// The only place installers know of.
fn index(home: &Home) -> PathBuf {
    let wheels = home.path.join("wheels");
    fs::create_dir_all(&wheels).expect("the home is writable");
    for (name, version, requires) in
        [("tiny", "1.0", ""), ("tiny", "2.0", ""), ("wants_tiny", "0.1", "tiny>=1"), ("tabulate", "9.9", "")]
    {
        let made = Command::new(newest_python())
            .args(["-I", "-c", MAKE_WHEEL, &wheels.display().to_string(), name, version, requires])
            .output()
            .expect("Python starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    wheels
}

fn index_variables(home: &Home) -> Vec<(String, String)> {
    let wheels = index(home).display().to_string();
    [
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", &wheels),
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("UV_OFFLINE", "1"),
        ("UV_FIND_LINKS", &wheels),
        ("UV_NO_CONFIG", "1"),
        ("UV_CACHE_DIR", &home.path.join("uv-cache").display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

async fn open(core: &Core, python: Option<&Path>) -> TestSession {
    let options = OpenOptions {
        env: index_variables(&core.home).into_iter().collect(),
        python: python.map(|path| path.display().to_string()),
        ..OpenOptions::default()
    };
    core.open_session(options).await.expect("the session opens")
}

async fn install(session: &TestSession, packages: &[&str]) -> Result<Installed, Error> {
    install_within(session, packages, 10 * PATIENCE).await
}

async fn install_within(session: &TestSession, packages: &[&str], limit: Duration) -> Result<Installed, Error> {
    let (lines, _) = mpsc::channel(1);
    let packages: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    session.session.install(&packages, &lines, limit).await
}

fn package(name: &str, version: &str) -> Package {
    Package { name: name.to_owned(), version: version.to_owned() }
}

fn make_venv(core: &Core, options: &[&str]) -> PathBuf {
    let path = core.home.work().join("env");
    let python = &core.home.env["PYLAIR_PYTHON"];
    let made = Command::new(python).args(["-m", "venv"]).args(options).arg(&path).output().expect("Python starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

#[test]
fn a_session_of_the_systems_python_gets_an_environment_of_its_own() {
    on_each_python(async |core| {
        let session = open(core, None).await;
        session.value("kept = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let installed = install(&session, &["wants_tiny", "tiny<2"]).await.expect("it installs");
        assert_eq!(installed.installed, [package("tiny", "1.0"), package("wants_tiny", "0.1")]);
        assert!(installed.lock.contains(&"tiny==1.0".to_owned()), "{:?}", installed.lock);
        assert!(installed.installer.starts_with("pip "), "{}", installed.installer);
        assert_eq!(installed.notes, Vec::<String>::new());
        let directory = core.home.places().venvs().join(&*session.session.info.handle);
        assert_eq!(installed.environment, directory.display().to_string());

        let import = "import tiny, wants_tiny\ntiny.VERSION";
        let python = installed.python.as_deref().expect("it is not the session's own");
        assert_eq!(python, directory.join("bin/python").display().to_string());
        assert!(installed.text().contains(&format!("Child processes find them with {python}")), "{}", installed.text());
        let died = session.run("import os\nos._exit(1)").await;
        assert_eq!(died.notes[0], "the session was rolled back to where it was after cell 1");
        assert_eq!(session.value(import).await, "'1.0'", "in a copy that is older than they are");
        let run = "import subprocess\nsubprocess.run(['tiny-hello'], stdout=-1).stdout";
        assert_eq!(session.value(run).await, "b'hello from tiny\\n'");
        let child = "import subprocess\nsubprocess.run(['python', '-c', 'import sys, tiny; print(sys.executable)'], stdout=-1).stdout.decode().strip()";
        assert_eq!(session.value(child).await, format!("'{python}'"), "it is the first on PATH");
        session.session.restart(RestartMode::Restart).await.expect("it restarts");
        assert_eq!(session.value(import).await, "'1.0'", "after a restart");

        let system = Command::new(&core.home.env["PYLAIR_PYTHON"]).args(["-I", "-c", "import tiny"]).output();
        assert!(!system.expect("Python starts").status.success(), "the interpreter itself was not touched");
        let other = open(core, None).await;
        assert_eq!(other.run("import tiny").await.outcome, Outcome::Raised, "packages are the session's own");
        core.close_session(&session).await;
        assert!(!directory.exists(), "they are gone with it");
    });
}

#[test]
fn an_environment_is_installed_into_and_what_was_imported_stays_until_a_restart() {
    on_each_python(async |core| {
        // With the pip of the interpreter it is made from: to give it one of its own takes long.
        let venv = make_venv(core, &["--without-pip", "--system-site-packages"]);
        let session = open(core, Some(&venv)).await;
        let installed = install(&session, &["tiny==1.0"]).await.expect("it installs");
        assert_eq!((installed.environment, installed.python), (venv.display().to_string(), None));
        assert_eq!(session.value("import os, tiny\ntiny.VERSION").await, "'1.0'");
        let installed = install(&session, &["tiny"]).await.expect("it installs");
        assert_eq!(installed.installed, [], "it is there");
        assert_eq!(installed.notes, ["nothing was installed: all of it was there already"]);
        let installed = install(&session, &["tiny>=2"]).await.expect("it installs");
        assert_eq!(installed.installed, [package("tiny", "2.0")]);
        assert_eq!(installed.notes, ["tiny was already imported: restart_session to use tiny 2.0"]);
        assert_eq!(session.value("tiny.VERSION, os.environ['PATH'] == os.defpath").await, "('1.0', False)");
        session.session.restart(RestartMode::Restart).await.expect("it restarts");
        assert_eq!(session.value("import tiny\ntiny.VERSION").await, "'2.0'");
        assert!(!core.home.places().venvs().exists(), "no other environment was made");
        core.close_session(&session).await;
        assert!(venv.exists());
    });
}

#[test]
fn uv_is_used_when_it_is_on_the_path() {
    let Some(uv) = std::env::var_os("PYLAIR_TEST_UV").map(PathBuf::from) else {
        return skip("uv_is_used_when_it_is_on_the_path", "PYLAIR_TEST_UV names no uv");
    };
    on_each_python(async |core| {
        let mut env: std::collections::BTreeMap<String, String> = index_variables(&core.home).into_iter().collect();
        let directory = uv.parent().expect("it is in a directory").display();
        env.insert("PATH".to_owned(), format!("{directory}:/usr/bin:/bin"));
        let options = OpenOptions { env, ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("the session opens");
        let installed = install(&session, &["wants_tiny", "tiny<2"]).await.expect("it installs");
        assert!(installed.installer.starts_with("uv "), "{}", installed.installer);
        assert_eq!(installed.installed, [package("tiny", "1.0"), package("wants_tiny", "0.1")]);
        assert_eq!(session.value("import wants_tiny, tiny\ntiny.VERSION").await, "'1.0'");
        let error = install(&session, &["tinny"]).await.expect_err("there is none");
        assert_eq!(error.kind(), "install_failed");
        assert!(error.hint().contains("no such package"), "{}: {}", error.message(), error.hint());
        let error = install(&session, &["tiny==7"]).await.expect_err("there is none");
        assert!(error.hint().contains("no such version"), "{}: {}", error.message(), error.hint());
    });
}

#[test]
fn what_cannot_be_installed_is_an_error_with_a_way_out() {
    on_newest_python(async |core| {
        let session = open(core, None).await;
        let error = install(&session, &["tinny"]).await.expect_err("there is none");
        assert_eq!(error.kind(), "install_failed");
        assert!(error.message().contains("tinny"), "{}", error.message());
        assert!(error.hint().contains("there is no such package"), "{}", error.hint());
        let error = install(&session, &["tiny==7"]).await.expect_err("there is none");
        assert!(error.hint().contains("no such version"), "{}: {}", error.message(), error.hint());
        let error = install(&session, &["tiny", "--upgrade"]).await.expect_err("options are not passed on");
        assert_eq!(error.kind(), "bad_argument");
        assert_eq!(
            error.message(),
            "`--upgrade` cannot be installed: options are not passed on, only names and versions"
        );
        let error = install(&session, &["tiny; rm"]).await.expect_err("that is no marker");
        assert_eq!(error.kind(), "bad_argument");
        assert!(error.message().ends_with("but there is no variable `rm`"), "{}", error.message());
        let venv = make_venv(core, &["--without-pip"]);
        let bare = open(core, Some(&venv)).await;
        let error = install(&bare, &["tiny"]).await.expect_err("there is nothing to install with");
        assert!(error.hint().contains("ensurepip"), "{}: {}", error.message(), error.hint());
        assert_eq!(session.value("1").await, "1");
    });
}

#[test]
fn a_session_with_a_running_cell_is_installed_into() {
    on_newest_python(async |core| {
        let session = open(core, None).await;
        let job = session.start(WAIT_FOREVER).await;
        let installed = install(&session, &["tiny"]).await.expect("it installs");
        assert!(
            installed.notes[0].starts_with("cell 1 is running: the cell after it can import"),
            "{:?}",
            installed.notes
        );
        session.session.interrupt(None).await.expect("it can be interrupted");
        assert_eq!(report(&job).await.outcome, Outcome::Interrupted);
        assert_eq!(session.value("import tiny\ntiny.VERSION").await, "'2.0'");
    });
}

#[test]
fn installs_into_one_environment_wait_for_each_other() {
    on_newest_python(async |core| {
        let session = open(core, None).await;
        let (first, second) = tokio::join!(install(&session, &["tiny"]), install(&session, &["tabulate"]));
        let (first, second) = (first.expect("it installs"), second.expect("it installs"));
        assert_eq!(first.installed, [package("tiny", "2.0")]);
        assert_eq!(second.installed, [package("tabulate", "9.9")]);
        assert_eq!(first.notes, Vec::<String>::new());
        assert!(second.notes[0].starts_with("another install into this environment had to end first"), "{second:?}");
    });
}

#[test]
fn a_branch_has_the_packages_too_and_keeps_them() {
    on_newest_python(async |core| {
        let session = open(core, None).await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        install(&session, &["tiny"]).await.expect("it installs");
        let name = session.session.info.name.clone();
        let branch = core.daemon.sessions.branch(&core.caller, &name, None, Some(1)).await.expect("it branches");
        let branch = TestSession { session: branch };
        core.close_session(&session).await;
        assert_eq!(branch.value("import tiny\ntiny.VERSION, x").await, "('2.0', 1)");
        core.close_session(&branch).await;
        let left = fs::read_dir(core.home.places().venvs()).expect("it was made").count();
        assert_eq!(left, 0);
    });
}

#[test]
fn a_kept_session_finds_its_packages_again_and_forgetting_it_removes_them() {
    on_newest_python(async |core| {
        let options = OpenOptions {
            name: Some("lab".to_owned()),
            env: index_variables(&core.home).into_iter().collect(),
            keep: true,
            ..OpenOptions::default()
        };
        let session = core.open_session(options).await.expect("the session opens");
        install(&session, &["tiny"]).await.expect("it installs");
        core.close_session(&session).await;
        let session = core.daemon.sessions.reach(&core.caller, "lab").await.expect("it is started again");
        let session = TestSession { session };
        assert_eq!(session.value("import tiny\ntiny.VERSION").await, "'2.0'");
        let directory = core.home.places().venvs().join(&*session.session.info.handle);
        assert!(directory.exists());
        core.daemon.sessions.close(&core.caller, "lab", true).await.expect("it closes");
        assert!(!directory.exists());
    });
}

#[test]
fn a_kept_sessions_packages_outlive_its_branches() {
    on_newest_python(async |core| {
        let env: std::collections::BTreeMap<_, _> = index_variables(&core.home).into_iter().collect();
        let options = OpenOptions { name: Some("lab".to_owned()), env, keep: true, ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("the session opens");
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        install(&session, &["tiny"]).await.expect("it installs");
        let directory = core.home.places().venvs().join(&*session.session.info.handle);
        let branch = async |name: &str| {
            let branch = core.daemon.sessions.branch(&core.caller, "lab", Some(name.to_owned()), None).await;
            TestSession { session: branch.expect("it branches") }
        };
        let first = branch("first").await;
        core.close_session(&session).await;
        core.close_session(&first).await;
        assert!(directory.exists(), "the session will come back to it");
        let session = core.daemon.sessions.reach(&core.caller, "lab").await.expect("it is started again");
        let session = TestSession { session };
        assert_eq!(session.value("import tiny\ntiny.VERSION").await, "'2.0'");
        install(&session, &["tabulate"]).await.expect("it goes on installing");
        core.wait_for_checkpoint(&session, 2).await;
        let second = branch("second").await;
        core.close_session(&session).await;
        core.daemon.sessions.close(&core.caller, "lab", true).await.expect("it is forgotten");
        assert_eq!(second.value("import tabulate\ntabulate.VERSION").await, "'9.9'", "somebody still uses it");
        core.close_session(&second).await;
        assert!(!directory.exists());
    });
}

#[test]
fn installs_are_part_of_the_history_and_of_exports() {
    with_settings(&[("PYLAIR_AUTO_INSTALL", "true")], async |core| {
        let session = open(core, None).await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        install(&session, &["wants_tiny", "tiny<2"]).await.expect("it installs");
        install(&session, &["tiny"]).await.expect("it is there");
        let name = session.session.info.name.to_string();
        let branch = core.daemon.sessions.branch(&core.caller, &name, Some("other".to_owned()), Some(1)).await;
        let branch = TestSession { session: branch.expect("it branches") };
        branch.value("import tabulate").await;
        session.value("import tabulate").await;
        let find = async |target: &str| {
            history::find(&core.daemon.sessions, &core.daemon.journal, &core.caller, Some(target))
                .await
                .expect("it is known")
        };
        let page = history::page(&core.daemon.journal, &find(&name).await, 20, None, 25_000).await.expect("it is read");
        let page = serde_json::to_value(page).expect("it is JSON");
        let entries = page["entries"].as_array().expect("a list").iter();
        let told: Vec<_> = entries.map(|entry| entry.get("event").unwrap_or(&entry["cell"])).collect();
        assert_eq!(told, [&json!("opened"), &json!(1), &json!("packages_installed"), &json!(2)]);
        assert_eq!(page["entries"][2]["text"], "tiny==1.0 wants_tiny==0.1");
        for (target, expected) in [
            (name.as_str(), &["installed: tiny==1.0 wants_tiny==0.1"][..]),
            ("other", &["installed: tiny==1.0 wants_tiny==0.1", "installed: tabulate==9.9"]),
        ] {
            for format in [Format::Py, Format::Ipynb, Format::Html] {
                let outputs = &core.daemon.sessions.parts.outputs;
                let export = history::export(&core.daemon.journal, outputs, &find(target).await, format).await;
                let text = export.expect("it can be exported").text;
                assert_eq!(text.matches("installed: ").count(), expected.len(), "{text}");
                assert!(expected.iter().all(|line| text.contains(line)), "{text}");
            }
        }
    });
}

#[test]
fn a_new_daemon_removes_what_a_killed_one_left_behind() {
    let home = Home::new();
    let left = home.places().venvs().join("leftover");
    fs::create_dir_all(left.join("lib")).expect("the home is writable");
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "lab"}));
    // It is removed by a thread of the daemon, which may take its time.
    let deadline = std::time::Instant::now() + PATIENCE;
    while left.exists() {
        assert!(std::time::Instant::now() < deadline, "it is still there");
        std::thread::yield_now();
    }
}

#[test]
fn sealed_sessions_see_what_was_installed_for_them() {
    on_newest_python(async |core| {
        let venv = make_venv(core, &["--without-pip", "--system-site-packages"]);
        for python in [None, Some(venv)] {
            let (name, value) = core.home.marker();
            let env = [(name.to_owned(), value.to_owned()), ("PIP_TARGET".to_owned(), "/workspace".to_owned())].into();
            let python = python.map(|path| path.display().to_string());
            let options = OpenOptions { sandbox: Some("sealed".into()), env, python, ..OpenOptions::default() };
            // Where packages come from is its caller's to say.
            let mut caller = core.caller.clone();
            let mut callers = (*caller.env).clone();
            callers.extend(index_variables(&core.home));
            caller.env = callers.into();
            if let Some(reason) = why_no_namespaces() {
                return skip("sealed_sessions_see_what_was_installed_for_them", &reason);
            }
            let opened = core.open_session_as(&caller, options).await;
            let session = opened.unwrap_or_else(|error| panic!("{error}: {}", error.hint()));
            let installed = install(&session, &["tiny"]).await.expect("it installs");
            assert_eq!(installed.installed, [package("tiny", "2.0")]);
            assert_eq!(session.value("import tiny\ntiny.VERSION").await, "'2.0'");
            let written = session.run("open(tiny.__file__, 'a')").await;
            assert_eq!(written.outcome, Outcome::Raised, "it sees them and cannot change them");
            core.close_session(&session).await;
            assert!(!core.home.places().venvs().join(&*session.session.info.handle).exists(), "they are gone with it");
        }
    });
}

/// Stands in for an installer that hangs, with a child of its own: what is tested is that both end.
fn hanging_installer(home: &Home) -> (String, PathBuf) {
    let directory = home.path.join("hanging");
    fs::create_dir_all(&directory).expect("the home is writable");
    let pids = directory.join("pids");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo uv 0.0.1; exit; fi\nsleep 1000 &\necho $$ $! > {0}.new\nmv {0}.new {0}\n\
         echo Downloading tiny\nwait\n",
        pids.display()
    );
    fs::write(directory.join("uv"), script).expect("the home is writable");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.join("uv"), mode).expect("it is ours");
    (format!("{}:/usr/bin:/bin", directory.display()), pids)
}

fn processes_in(pids: &Path) -> Vec<Watched> {
    let text = fs::read_to_string(pids).expect("the installer was started");
    text.split_whitespace().map(|pid| Watched::new(pid.parse().expect("a pid"))).collect()
}

#[test]
fn an_install_that_takes_too_long_ends_with_all_its_processes() {
    with_settings(&[("PYLAIR_INSTALL_TIMEOUT_S", "2")], async |core| {
        let (path, pids) = hanging_installer(&core.home);
        let options = OpenOptions { env: [("PATH".to_owned(), path)].into(), ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("the session opens");
        let limit = core.caller.settings.install_timeout;
        let error = install_within(&session, &["tiny"], limit).await.expect_err("it hangs");
        assert_eq!(error.kind(), "install_timed_out");
        assert_eq!(error.message(), "installing took longer than 2 s and was stopped; it had said:\nDownloading tiny");
        processes_in(&pids).iter().for_each(Watched::assert_ends);
        assert_eq!(session.value("1").await, "1");
    });
}

#[test]
fn lines_are_told_as_they_come_and_cancelling_ends_the_installer() {
    let home = Home::new();
    let (path, pids) = hanging_installer(&home);
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "lab", "env": {"PATH": path}}));
    let params = json!({
        "name": "install_packages",
        "arguments": {"packages": ["tiny"], "target": "lab"},
        "_meta": {"progressToken": "p"},
    });
    let id = client.request("tools/call", &params);
    loop {
        let progress = client.notification("notifications/progress");
        if progress["params"]["message"] == "Downloading tiny" {
            break;
        }
    }
    let processes = processes_in(&pids);
    assert!(processes.iter().all(Watched::is_alive));
    client.notify("notifications/cancelled", &json!({"requestId": id}));
    processes.iter().for_each(Watched::assert_ends);
    assert_eq!(client.data("execute", &json!({"code": "1 + 1", "target": "lab", "output": "json"}))["result"], "2");
    client.forget_notifications("notifications/progress");
}

#[test]
fn the_tool_answers_with_what_was_installed() {
    let home = Home::new();
    let env: serde_json::Map<_, _> =
        index_variables(&home).into_iter().map(|(name, value)| (name, json!(value))).collect();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "lab", "env": env}));
    let installed = client.data("install_packages", &json!({"packages": ["tiny==1.0"], "target": "lab"}));
    assert_eq!(installed["session"], "lab");
    assert_eq!(installed["installed"], json!([{"name": "tiny", "version": "1.0"}]));
    let failure = client.failure("install_packages", &json!({"packages": ["tinny"], "target": "lab"}));
    assert_eq!(failure["kind"], "install_failed");
    let failure = client.failure("install_packages", &json!({"packages": [], "target": "lab"}));
    assert_eq!(failure["kind"], "bad_argument");
}

#[test]
fn a_missing_module_is_answered_with_the_package_it_comes_in() {
    on_newest_python(async |core| {
        let session = open(core, None).await;
        let report = session.run("import tabulate").await;
        assert_eq!(report.notes, ["`tabulate` is not installed; install_packages([\"tabulate\"]) does it"]);
        let notes = session.run("import taboolate").await.notes;
        assert_eq!(notes, Vec::<String>::new(), "nothing is guessed");
    });
}

#[test]
fn auto_install_brings_known_packages_before_the_cell_runs_and_no_others() {
    with_settings(&[("PYLAIR_AUTO_INSTALL", "true")], async |core| {
        let session = open(core, None).await;
        session.value("runs = 0").await;
        let report = session.run("runs += 1\nimport tabulate\ntabulate.VERSION, runs").await;
        assert_eq!(report.result.as_deref(), Some("('9.9', 1)"), "{report:#?}");
        assert!(
            report.notes[0].starts_with("installed before the cell ran, because of its imports: tabulate 9.9 (into "),
            "{:?}",
            report.notes
        );
        let notes = session.run("import tabulate").await.notes;
        assert_eq!(notes, Vec::<String>::new());
        // The index has a package of this name, but nobody knows it.
        let report = session.run("import tiny").await;
        assert_eq!(report.outcome, Outcome::Raised);
        assert!(report.notes[0].contains("check its spelling"), "{:?}", report.notes);
        let optional = session.run("try:\n    import xlrd\nexcept ImportError:\n    print('without')").await;
        assert_eq!(optional.stdout, "without\n");
        assert_eq!(optional.notes, Vec::<String>::new());
        // Known, but not to be had here.
        let report = session.run("import xlrd").await;
        assert_eq!(report.outcome, Outcome::Raised);
        assert!(report.notes[0].starts_with("xlrd could not be installed before the cell ran: "), "{:?}", report.notes);
    });
}

#[test]
fn auto_install_looks_into_files_as_the_session_does_and_never_waits_for_one() {
    let home = Home::new().set("PYLAIR_AUTO_INSTALL", "true");
    let index: Vec<_> = index_variables(&home).into_iter().collect();
    // The caller's own: what is said in `env` is for the session, and a sealed one has no say in what runs outside of it.
    let home = index.iter().fold(home, |home, (name, value)| home.set(name, value));
    let env: serde_json::Map<_, _> = index.into_iter().map(|(name, value)| (name, json!(value))).collect();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "lab", "env": env}));
    let made = Command::new("mkfifo").arg(home.work().join("pipe.py")).status().expect("there is a mkfifo");
    assert!(made.success());
    for path in ["pipe.py", "/dev/zero", "nowhere.py"] {
        let refused = text_of(&client.call("run_file", &json!({"path": path, "target": "lab"})));
        assert!(refused.contains("not a regular file") || refused.contains("there is no file"), "{refused}");
    }
    fs::write(home.work().join("main.py"), "import tabulate\nprint(tabulate.VERSION)\n").expect("it is writable");
    let ran = text_of(&client.call("run_file", &json!({"path": "main.py", "target": "lab"})));
    assert!(ran.contains("9.9") && ran.contains("installed before the cell ran"), "{ran}");
    let (name, value) = home.marker();
    let mut sealed_env = env.clone();
    sealed_env.insert(name.to_owned(), json!(value));
    let opened = client.call("open_session", &json!({"name": "box", "env": sealed_env, "sandbox": "sealed"}));
    if opened["isError"] == true {
        return skip("auto_install_looks_into_files_as_the_session_does", &text_of(&opened));
    }
    let write = "open('main.py', 'w').write('import tabulate; print(tabulate.VERSION)')";
    client.data("execute", &json!({"code": write, "target": "box", "output": "json"}));
    let ran = text_of(&client.call("run_file", &json!({"path": "main.py", "target": "box"})));
    assert!(ran.contains("9.9") && ran.contains("installed before the cell ran"), "{ran}");
    let outside = home.work().join("main.py");
    let refused = text_of(&client.call("run_file", &json!({"path": outside, "target": "box"})));
    assert!(refused.contains("there is no file"), "{refused}");
}

/// A source distribution with a build of its own, which looks around and puts what it found into the package.
const MAKE_SOURCE: &str = r#"
import io, sys, tarfile
directory, secret, socket, pid = sys.argv[1:]
backend = f"""
import os, socket, zipfile
def tried(attempt):
    try:
        attempt()
        return "worked"
    except OSError as error:
        return type(error).__name__
def connect():
    with socket.socket(socket.AF_UNIX) as client: client.connect({socket!r})
def build_wheel(directory, config_settings=None, metadata_directory=None):
    found = {{
        "secret": tried(lambda: open({secret!r})),
        "daemon": tried(connect),
        "signal": tried(lambda: os.kill({pid}, 0)),
        "usr": tried(lambda: open("/usr/planted", "w")),
        "processes": [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) == {pid}],
        "variables": [n for n in os.environ if n.startswith("PYLAIR_")],
        "uid": os.getuid(),
        "groups": open("/proc/self/cgroup").read(),
    }}
    name = "looks-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("looks.py", f"FOUND = {{found!r}}")
        wheel.writestr("looks-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: looks\\nVersion: 1.0\\n")
        wheel.writestr("looks-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("looks-1.0.dist-info/RECORD", "looks.py,,\\nlooks-1.0.dist-info/METADATA,,\\nlooks-1.0.dist-info/WHEEL,,\\nlooks-1.0.dist-info/RECORD,,\\n")
    return name
"""
files = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "looks"\nversion = "1.0"\n',
    "backend.py": backend,
    "PKG-INFO": "Metadata-Version: 2.1\nName: looks\nVersion: 1.0\n",
}
with tarfile.open(f"{directory}/looks-1.0.tar.gz", "w:gz") as archive:
    for name, text in files.items():
        member = tarfile.TarInfo("looks-1.0/" + name)
        member.size = len(text.encode())
        archive.addfile(member, io.BytesIO(text.encode()))
"#;

#[test]
fn what_is_built_for_a_confined_session_is_built_in_a_sandbox() {
    if let Some(reason) = why_no_namespaces() {
        return skip("what_is_built_for_a_confined_session_is_built_in_a_sandbox", &reason);
    }
    on_newest_python(async |core| {
        let wheels = index(&core.home);
        let secret = core.home.work().join("secret");
        fs::write(&secret, "secret").expect("the home is writable");
        let places = core.home.places();
        let _daemon = std::os::unix::net::UnixListener::bind(places.socket()).expect("nobody has it");
        let arguments =
            [wheels.display().to_string(), secret.display().to_string(), places.socket().display().to_string()];
        let made = Command::new(newest_python())
            .args(["-I", "-c", MAKE_SOURCE])
            .args(&arguments)
            .arg(std::process::id().to_string())
            .output()
            .expect("Python starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut caller = core.caller.clone();
        let mut callers = (*caller.env).clone();
        callers.extend(index_variables(&core.home));
        caller.env = callers.into();
        for profile in ["workspace", "sealed"] {
            let (name, value) = core.home.marker();
            let env = [(name.to_owned(), value.to_owned())].into();
            let options = OpenOptions { sandbox: Some(profile.into()), env, ..OpenOptions::default() };
            let session = core.open_session_as(&caller, options).await.expect("it opens");
            let installed = install(&session, &["looks"]).await.expect("it installs");
            assert_eq!((installed.installed, installed.notes), (vec![package("looks", "1.0")], Vec::<String>::new()));
            session.value("import looks").await;
            for (what, expected) in [
                ("secret", "'FileNotFoundError'"),
                ("daemon", "'FileNotFoundError'"),
                ("usr", "'OSError'"),
                ("processes", "[]"),
                ("variables", "[]"),
            ] {
                assert_eq!(session.value(&format!("looks.FOUND[{what:?}]")).await, expected, "{what}");
            }
            assert_ne!(session.value("looks.FOUND['signal']").await, "'worked'");
            assert_ne!(session.value("looks.FOUND['uid']").await, "0");
            // Where the kernel counts a session as one, it counts its installer as another.
            if session.value("open('/proc/self/cgroup').read().count('/pylair-') > 0").await == "True" {
                assert_eq!(session.value("looks.FOUND['groups'].count('/installer-') > 0").await, "True");
            }
            core.close_session(&session).await;
        }
    });
}
