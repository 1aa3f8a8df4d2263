//! Sealed sessions: what they cannot reach, what works all the same, and that nothing is left of them.

use std::{fs, net::TcpListener, os::unix::fs::symlink, path::PathBuf, process::Command, time::Instant};

use pylair_core::session::{OpenOptions, Outcome};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{
    Core, Home, PATIENCE, TestSession, Watched, kill, on_newest_python, parent_of, skip, why_no_namespaces,
    with_settings,
};

/// A sealed session, unless this machine refuses to make one.
pub async fn open_sealed(core: &Core, test: &str) -> Option<TestSession> {
    // The caller's environment stays outside; this one variable is how the test knows the processes again.
    let (name, value) = core.home.marker();
    let env = [(name.to_owned(), value.to_owned())].into();
    let options = OpenOptions { sandbox: Some("sealed".into()), env, ..OpenOptions::default() };
    if let Some(reason) = why_no_namespaces() {
        skip(test, &reason);
        return None;
    }
    let opened = core.open_session(options).await;
    Some(opened.unwrap_or_else(|error| panic!("{error}: {}", error.hint())))
}

#[test]
fn a_sealed_session_has_no_network_and_no_files_but_its_own() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "a_sealed_session_has_no_network_and_no_files_but_its_own").await else {
            return;
        };
        let secret = core.home.work().join("secret.txt");
        fs::write(&secret, "secret").expect("the home is writable");
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let port = listener.local_addr().expect("it is bound").port();
        for (code, kinds) in [
            (format!("open({:?}).read()", secret.display().to_string()), &["FileNotFoundError", "PermissionError"][..]),
            (
                format!("import os\nos.listdir({:?})", core.home.work().display().to_string()),
                &["FileNotFoundError", "PermissionError"],
            ),
            ("import os\nos.environ['PYLAIR_HOME']".to_owned(), &["KeyError"]),
            ("open('/etc/planted', 'w')".to_owned(), &["FileNotFoundError", "PermissionError", "OSError"]),
            (
                format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)"),
                &["ConnectionRefusedError", "PermissionError", "OSError"],
            ),
            ("import os\nos.kill(1, 9)".to_owned(), &["PermissionError", "ProcessLookupError"]),
        ] {
            let report = session.run(&code).await;
            let kind = report.error.as_ref().map(|error| error.kind.clone()).unwrap_or_default();
            assert!(kinds.contains(&kind.as_str()), "{code}: {report:#?}");
        }
        let code = "import os\nopen('/tmp/note', 'w').write('ok')\nopen('/tmp/note').read(), os.getcwd()";
        assert_eq!(session.value(code).await, "('ok', '/workspace')");
        assert!(!std::path::Path::new("/tmp/note").exists(), "its /tmp is its own");
    });
}

/// An environment's interpreter is a link, often to another link, and what they point to may come later in the order of paths.
#[test]
fn an_interpreter_behind_links_starts_in_a_sealed_session() {
    on_newest_python(async |core| {
        let base = &core.home.env["PYLAIR_PYTHON"];
        let (venv, links) = (core.home.work().join("a/env"), core.home.work().join("z"));
        let made = Command::new(base).args(["-m", "venv", "--without-pip"]).arg(&venv).output().expect("Python starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::create_dir(&links).expect("the home is writable");
        symlink(base, links.join("second")).expect("the home is writable");
        symlink("second", links.join("first")).expect("the home is writable");
        let python = venv.join("bin/python");
        fs::remove_file(&python).expect("it was made");
        symlink("../../../z/first", &python).expect("the home is writable");

        let options = OpenOptions {
            sandbox: Some("sealed".into()),
            python: Some(venv.display().to_string()),
            ..OpenOptions::default()
        };
        if let Some(reason) = why_no_namespaces() {
            return skip("an_interpreter_behind_links_starts_in_a_sealed_session", &reason);
        }
        let opened = core.open_session(options).await;
        let session = opened.unwrap_or_else(|error| panic!("{error}: {}", error.hint()));
        let code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout";
        assert_eq!(session.value(code).await, "'1\\n'");
    });
}

#[test]
fn a_sealed_session_is_rolled_back_and_interrupted_like_others() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "a_sealed_session_is_rolled_back_and_interrupted_like_others").await
        else {
            return;
        };
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report = session.run("x = 2\nimport os\nos._exit(3)").await;
        assert_eq!(report.outcome, Outcome::Died, "{report:#?}");
        assert!(report.error.is_some_and(|error| error.message.contains("exited with code 3")));
        assert_eq!(session.value("x").await, "1");
        let limit = std::time::Duration::from_millis(200);
        let report = session.run_limited("while True: pass", limit, pylair_core::session::OnTimeout::Keep).await;
        assert_eq!(report.outcome, Outcome::TimedOut, "{report:#?}");
        assert_eq!(session.value("x").await, "1");
    });
}

#[test]
fn closing_a_sealed_session_leaves_nothing() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "closing_a_sealed_session_leaves_nothing").await else { return };
        let code = "import subprocess, sys\n\
                    child = subprocess.Popen([sys.executable, '-c', 'while True: pass'], start_new_session=True)";
        session.value(code).await;
        // Others are made ahead and stay for the next session.
        let is_child = |process: &Watched| {
            let command = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            String::from_utf8_lossy(&command).contains("while True: pass")
        };
        let mut own = core.home.processes();
        own.retain(|process| process.pid == session.pid() || is_child(process));
        assert_eq!(own.len(), 2, "worker and child: {own:?}");
        core.close_session(&session).await;
        for process in own {
            process.assert_ends();
        }
    });
}

/// Also those that left their session, their group and their parent.
#[test]
fn a_daemon_that_is_killed_takes_confined_sessions_along() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_daemon_that_is_killed_takes_confined_sessions_along", &reason);
    }
    let home = Home::new();
    let mut client = home.initialized_client();
    for profile in ["workspace", "sealed"] {
        let (name, value) = home.marker();
        client.data("open_session", &json!({"name": profile, "sandbox": profile, "env": {name: value}}));
        let code = "import subprocess, sys\n\
                    code = 'import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\nprint(1, flush=True)\\ntime.sleep(1000)'\n\
                    p = subprocess.Popen([sys.executable, '-c', code, 'lives-on'], stdout=-1); p.stdout.readline(); p.wait()";
        client.call("execute", &json!({"code": code, "target": profile}));
    }
    let left = |process: &Watched| {
        let command = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("lives-on")
    };
    let mut alive = home.processes();
    alive.retain(left);
    assert_eq!(alive.len(), 2, "one of each: {alive:?}");
    kill(home.daemon_pid(), Signal::KILL);
    for process in alive {
        process.assert_ends();
    }
}

/// The kernel's groups of a daemon that are there now.
fn groups_of(daemon: i32) -> Vec<PathBuf> {
    let name = format!("pylair-{daemon}");
    let mut found = Vec::new();
    let mut left = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((directory, depth)) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let is_its = entry.file_name().to_str().is_some_and(|entry| {
                entry.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            });
            if is_its {
                found.push(entry.path());
            }
            if depth < 6 {
                left.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

#[test]
fn the_groups_of_a_daemon_that_is_gone_are_removed() {
    let name = "the_groups_of_a_daemon_that_is_gone_are_removed";
    if let Some(reason) = why_no_namespaces() {
        return skip(name, &reason);
    }
    let home = Home::new();
    let start = |home: &Home| {
        let mut client = home.initialized_client();
        client.data("open_session", &json!({"name": "s", "sandbox": "sealed"}));
        // A cell waits until its session is in its groups.
        client.data("execute", &json!({"code": "1", "target": "s", "output": "json"}));
        (client, home.daemon_pid())
    };
    let (client, killed) = start(&home);
    if groups_of(killed).is_empty() {
        drop(client);
        return skip(name, "no groups can be made here");
    }
    let daemon = Watched::new(killed);
    kill(killed, Signal::KILL);
    daemon.assert_ends();
    drop(client);
    let (client, stopped) = start(&home);
    let until = Instant::now() + PATIENCE;
    while !groups_of(killed).is_empty() {
        assert!(Instant::now() < until, "{:?} were left by a daemon that was killed", groups_of(killed));
    }
    drop(client);
    let daemon = Watched::new(stopped);
    assert!(home.run(&["stop"]).status.success());
    daemon.assert_ends();
    assert_eq!(groups_of(stopped), Vec::<PathBuf>::new(), "they were left by a daemon that was stopped");
}

#[test]
fn a_killed_nursery_is_replaced_when_a_session_needs_one() {
    with_settings(&[("PYLAIR_CHECKPOINTS", "off")], async |core| {
        let test = "a_killed_nursery_is_replaced_when_a_session_needs_one";
        let Some(session) = open_sealed(core, test).await else { return };
        session.value("x = 1").await;
        // A confined worker's parent is its template, whose parent is the nursery.
        let nursery = Watched::new(parent_of(parent_of(session.pid())));
        kill(nursery.pid, Signal::KILL);
        nursery.assert_ends();
        assert_eq!(session.value("x").await, "1", "sessions do not need it to go on");
        let report = session.run("import os\nos._exit(1)").await;
        assert_eq!(report.notes.first().map(String::as_str), Some("the session was restarted: all variables are gone"));
        assert_eq!(session.value("1 + 1").await, "2");
    });
}
