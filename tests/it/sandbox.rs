//! Sandboxes: profiles, rules on top of them, and what is said of them.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, TcpListener},
    os::unix::fs::{MetadataExt, symlink},
};

use pylair_core::{
    caller::{Caller, DefaultSession, Door, Scope},
    session::{Error, OpenOptions, Report},
};
use pylair_sandbox::{Wish, addresses, truth::How};
use serde_json::{Value, json};

use crate::support::{Client, Core, Home, PATIENCE, TestSession, on_newest_python, skip, why_no_namespaces};

fn options(core: &Core, sandbox: Value) -> OpenOptions {
    let (name, value) = core.home.marker();
    let env = [(name.to_owned(), value.to_owned())].into();
    OpenOptions { sandbox: Some(Wish::from_json(sandbox).expect("a wish")), env, ..OpenOptions::default() }
}

/// A confined session, unless this machine refuses to make one.
async fn open(core: &Core, test: &str, options: OpenOptions) -> Option<TestSession> {
    if let Some(reason) = why_no_namespaces() {
        skip(test, &reason);
        return None;
    }
    let opened = core.open_session(options).await;
    Some(opened.unwrap_or_else(|error| panic!("{}: {}", error.message(), error.hint())))
}

/// Memory that is used before the kernel counts it would never be counted.
#[test]
fn startup_code_runs_where_cells_run() {
    on_newest_python(async |core| {
        let startup = Some("group = open('/proc/self/cgroup').read()".to_owned());
        // Rules that nobody asked for before: no worker was made ahead for them.
        let options = OpenOptions { startup, ..options(core, json!({"profile": "sealed", "memory_mb": 317})) };
        let Some(session) = open(core, "startup_code_runs_where_cells_run", options).await else { return };
        assert_eq!(session.value("group == open('/proc/self/cgroup').read()").await, "True");
    });
}

/// Startup code that does not come to an end by itself.
fn slow_start(core: &Core, rules: Value, code: &str) -> OpenOptions {
    let startup = Some(format!("{code}\nimport time\nwhile True: time.sleep(1)"));
    OpenOptions { startup, name: Some("slow".to_owned()), ..options(core, rules) }
}

#[test]
fn startup_code_is_watched() {
    on_newest_python(async |core| {
        if let Some(reason) = why_no_namespaces() {
            return skip("startup_code_is_watched", &reason);
        }
        let disk = "for n in range(8): open(f'big-{n}', 'wb').write(bytes(1 << 20))";
        for (rules, code, words) in [
            (json!({"disk_mb": 5}), disk, "may take 5 MB"),
            (json!({"wall_s": 1}), "", "its time of 1 s is over"),
            (json!({"cpu_s": 1}), "while True: pass", "processor time"),
        ] {
            let error = core.open_session(slow_start(core, rules.clone(), code)).await.expect_err("it is ended");
            assert!(error.message().contains(words), "{rules}: {}", error.message());
        }
    });
}

#[test]
fn a_session_whose_startup_hangs_can_be_closed_and_its_name_is_not_waited_for() {
    on_newest_python(async |core| {
        if let Some(reason) = why_no_namespaces() {
            return skip("a_session_whose_startup_hangs_can_be_closed_and_its_name_is_not_waited_for", &reason);
        }
        for rules in [json!("workspace"), json!("open")] {
            let opening = core.daemon.sessions.open(&core.caller, slow_start(core, rules, ""));
            let meanwhile = async {
                let is_starting =
                    || core.daemon.sessions.find(&core.caller, "slow").is_err_and(|error| error.kind() == "busy");
                while !is_starting() {
                    tokio::task::yield_now().await;
                }
                let named = OpenOptions { name: Some("slow".to_owned()), ..OpenOptions::default() };
                let again = core.daemon.sessions.open(&core.caller, named).await.expect_err("the name is taken");
                assert_eq!(again.kind(), "busy", "{again}");
                assert!(
                    again.message().contains("has been opening") && again.hint().contains("close_session"),
                    "{again}"
                );
                let used =
                    core.daemon.sessions.target(&core.caller, Some("slow")).await.expect_err("it is not there yet");
                assert_eq!(used.kind(), "busy", "{used}");
                core.daemon.sessions.close(&core.caller, "slow", false).await.expect("it is closed");
                // The name is free again.
                let named = OpenOptions { name: Some("slow".to_owned()), ..OpenOptions::default() };
                core.daemon.sessions.open(&core.caller, named).await.expect("it opens");
                core.daemon.sessions.close(&core.caller, "slow", false).await.expect("it is closed");
            };
            let (opened, ()) = futures::join!(opening, meanwhile);
            let error = opened.expect_err("it was closed");
            assert!(error.message().contains("a command closed it"), "{}", error.message());
        }
    });
}

async fn refused(core: &Core, sandbox: Value) -> Error {
    core.open_session(options(core, sandbox)).await.expect_err("it is refused")
}

/// What the audit record has of a session's sandbox.
fn denied(core: &Core, session: &TestSession) -> Vec<String> {
    core.daemon.audit.head();
    let record = fs::read_to_string(core.home.places().audit()).expect("there is one");
    let lines = record.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let is_ours = |line: &Value| line["action"] == "sandbox" && line["target"] == *session.session.info.handle;
    lines.filter(is_ours).filter_map(|line| Some(line["reason"].as_str()?.to_owned())).collect()
}

fn raised(report: &Report) -> &str {
    report.error.as_ref().map_or("", |error| error.kind.as_str())
}

/// Somebody who came in over HTTP.
fn over_http(core: &Core, scopes: &[Scope]) -> Caller {
    Caller {
        door: Door::Http,
        scopes: scopes.to_vec(),
        cwd: None,
        default_session: DefaultSession::Fresh,
        ..core.caller.clone()
    }
}

#[test]
fn over_http_a_session_has_its_workspace_and_nothing_else() {
    on_newest_python(async |core| {
        let caller = over_http(core, &[Scope::Read, Scope::Run]);
        let options = OpenOptions { sandbox: None, ..options(core, json!("workspace")) };
        if let Some(reason) = why_no_namespaces() {
            return skip("over_http_a_session_has_its_workspace_and_nothing_else", &reason);
        }
        let session = core.open_session_as(&caller, options).await.expect("it opens");
        assert_eq!(session.session.status().sandbox, "workspace");
        assert_eq!(session.value("import os; open('note', 'w').write('kept'); os.getcwd()").await, "'/workspace'");
        let file = session.session.workspace().path.join("note");
        assert_eq!(fs::read_to_string(file).expect("it is there"), "kept");
        fs::write(core.home.work().join("secret"), "secret").expect("the home is writable");
        let report = session.run(&format!("open({:?})", core.home.work().join("secret"))).await;
        assert!(["FileNotFoundError", "PermissionError"].contains(&raised(&report)), "{report:#?}");
        // Without the right to, nobody gets more than that.
        for wish in [json!("open"), json!({"allow_read": [core.home.work()]}), json!({"allow_net": ["localhost:1"]})] {
            let wanted = OpenOptions { sandbox: Some(Wish::from_json(wish).unwrap()), ..OpenOptions::default() };
            let error = core.open_session_as(&caller, wanted).await.expect_err("it is refused");
            assert_eq!(error.kind(), "not_allowed", "{error}");
        }
        let elsewhere = OpenOptions { cwd: Some(core.home.work()), ..OpenOptions::default() };
        let session = core.open_session_as(&caller, elsewhere).await.expect("it opens");
        assert_eq!(session.value("import os; os.getcwd(), os.path.exists('secret')").await, "('/workspace', False)");
    });
}

#[test]
fn a_directory_that_was_named_is_the_workspace() {
    on_newest_python(async |core| {
        let (project, beside) = (core.home.work().join("project"), core.home.work().join("beside"));
        fs::create_dir_all(project.join("src")).unwrap();
        fs::create_dir(&beside).unwrap();
        fs::write(project.join("mine"), "mine").unwrap();
        fs::write(beside.join("theirs"), "theirs").unwrap();
        symlink(beside.join("theirs"), project.join("way-out")).unwrap();
        let wanted = OpenOptions { cwd: Some(project.clone()), ..options(core, json!("workspace")) };
        let Some(session) = open(core, "a_directory_that_was_named_is_the_workspace", wanted).await else { return };
        let code =
            "import os\nopen('mine', 'a').write(' and yours')\nopen('src/new.py', 'w').write('x = 7')\nos.getcwd()";
        assert_eq!(session.value(code).await, format!("'{}'", project.display()));
        assert_eq!(fs::read_to_string(project.join("mine")).unwrap(), "mine and yours");
        assert_eq!(session.value("import sys; sys.path.insert(0, 'src'); import new; new.x").await, "7");
        // Under root too it belongs to whom the rest belongs.
        assert_eq!(fs::metadata(project.join("src/new.py")).unwrap().uid(), fs::metadata(&project).unwrap().uid());
        for code in [
            "open('way-out').read()",
            "open('../beside/theirs').read()",
            "__import__('os').listdir('..').index('beside')",
        ] {
            let report = session.run(code).await;
            assert!(
                ["FileNotFoundError", "PermissionError", "ValueError"].contains(&raised(&report)),
                "{code}: {report:#?}"
            );
        }
        let report = session.run("import os\nos.chmod('mine', 0o4755)").await;
        assert_eq!(raised(&report), "PermissionError", "{report:#?}");
        // It is the same after a restart, and in a branch.
        session.session.restart(pylair_core::session::RestartMode::Restart).await.expect("it restarts");
        assert_eq!(session.value("open('mine').read()").await, "'mine and yours'");
        let branch = core.branch(&session, None).await.expect("it branches");
        assert_eq!(
            branch.value("import os; os.path.exists('mine'), os.path.exists('../beside/theirs')").await,
            "(True, False)"
        );
    });
}

#[test]
fn what_was_given_is_there_and_nothing_beside_it() {
    on_newest_python(async |core| {
        let given = core.home.work().join("given");
        fs::create_dir_all(given.join("in")).unwrap();
        fs::create_dir_all(given.join("out")).unwrap();
        fs::write(given.join("in/data"), "1,2").unwrap();
        fs::write(given.join("secret"), "secret").unwrap();
        let rules = json!({"allow_read": [given.join("in")], "allow_write": [given.join("out")], "env": ["LANG", "NO_SUCH"],
            "processes": 32, "open_files": 100, "file_size_mb": 2, "tmp_mb": 3, "memory_mb": 300});
        let test = "what_was_given_is_there_and_nothing_beside_it";
        let Some(session) = open(core, test, OpenOptions { keep: true, ..options(core, rules) }).await else { return };
        let quoted = |path: &str| format!("{:?}", given.join(path));
        assert_eq!(session.value(&format!("open({}).read()", quoted("in/data"))).await, "'1,2'");
        session.value(&format!("open({}, 'w').write('done')", quoted("out/result"))).await;
        assert_eq!(fs::read_to_string(given.join("out/result")).unwrap(), "done");
        for (code, kind) in [
            (format!("open({}).read()", quoted("secret")), "FileNotFoundError"),
            (format!("open({}, 'w')", quoted("in/new")), "OSError"),
            ("x = b'x' * (2 << 30)".to_owned(), "MemoryError"),
            ("open('/workspace/big', 'wb').write(b'x' * (3 << 20))".to_owned(), "OSError"),
            ("open('/tmp/big', 'wb').write(b'x' * (4 << 20))".to_owned(), "OSError"),
            ("files = [open('/dev/null') for _ in range(200)]".to_owned(), "OSError"),
            (
                "import subprocess\nchildren = [subprocess.Popen(['sleep', '60']) for _ in range(64)]".to_owned(),
                "BlockingIOError",
            ),
        ] {
            let report = session.run(&code).await;
            assert!(
                raised(&report) == kind || kind == "OSError" && raised(&report) == "PermissionError",
                "{code}: {report:#?}"
            );
        }
        // The rules come back with the session.
        core.close_session(&session).await;
        let name = session.session.info.name.clone();
        let session = core.daemon.sessions.target(&core.caller, Some(&name)).await.expect("it is started again");
        let session = TestSession { session };
        assert_eq!(session.value(&format!("open({}).read()", quoted("in/data"))).await, "'1,2'");
        let limits = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_NPROC)[0]";
        assert_eq!(session.value(limits).await, "(100, 32)");
        core.daemon.sessions.close(&core.caller, &name, true).await.expect("it closes");
    });
}

#[test]
fn dangerous_gifts_are_refused() {
    on_newest_python(async |core| {
        let places = core.home.places();
        for path in [
            places.data.clone(),
            places.runtime.clone(),
            places.workspaces(),
            core.home.path.clone(),
            "/".into(),
            "/proc/1".into(),
        ] {
            let error = refused(core, json!({"allow_read": [path]})).await;
            assert_eq!(error.kind(), "bad_argument", "{error}");
        }
        let error = refused(core, json!({"profile": "sealed", "allow_net": ["localhost:80"]})).await;
        assert!(error.to_string().contains("no network"), "{error}");
        let error =
            Wish::from_json(json!({"profile": "workspace", "memroy_mb": 7})).expect_err("there is no such rule");
        assert!(error.hint().contains("memory_mb"), "{error}");
    });
}

/// A server that answers every request with its own name, until the test is over.
fn serve(name: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _count = stream.read(&mut request);
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{name}", name.len());
            let _gone = stream.write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn the_network_is_what_was_allowed() {
    on_newest_python(async |core| {
        let (allowed, other) = (serve("allowed"), serve("other"));
        let rules = json!({"allow_net": [format!("localhost:{allowed}"), format!("127.0.0.1:{allowed}")]});
        let Some(session) = open(core, "the_network_is_what_was_allowed", options(core, rules)).await else { return };
        session.value("from urllib.request import urlopen\nimport socket").await;
        let get = |port: u16| format!("urlopen('http://localhost:{port}/x', timeout=20).read().decode()");
        assert_eq!(session.value(&get(allowed)).await, "'allowed'");
        let report = session.run(&get(other)).await;
        assert_eq!(raised(&report), "urllib.error.HTTPError", "{report:#?}");
        assert!(report.error.as_ref().unwrap().message.contains("403"), "{report:#?}");
        assert!(report.notes.iter().any(|note| note.contains(&format!("localhost:{other} is not in"))), "{report:#?}");
        let tunnel = |host: &str, port: u16| {
            format!(
                "s = socket.create_connection(('127.0.0.1', 3128), 20)\n\
                 s.sendall(b'CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n')\n\
                 answer = s.recv(1000).split(b'\\r\\n')[0].decode()\nanswer"
            )
        };
        assert_eq!(session.value(&tunnel("127.0.0.1", allowed)).await, "'HTTP/1.1 200 Connection established'");
        for (host, port) in [("127.0.0.1", other), ("127.0.0.2", allowed), ("example.org", 443), ("[::1]", allowed)] {
            assert_eq!(session.value(&tunnel(host, port)).await, "'HTTP/1.1 403 Forbidden'", "{host}:{port}");
        }
        let socks = format!(
            "s = socket.create_connection(('127.0.0.1', 3128), 20)\ns.sendall(b'\\x05\\x01\\x00')\ns.recv(2)\n\
             s.sendall(b'\\x05\\x01\\x00\\x03\\x09localhost' + ({allowed}).to_bytes(2, 'big'))\nok = s.recv(10)[1]\n\
             s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\nok, s.recv(1000)[-7:]"
        );
        assert_eq!(session.value(&socks).await, "(0, b'allowed')");
        for (code, kind) in [
            (
                format!("socket.create_connection(('127.0.0.1', {allowed}), 5)"),
                &["PermissionError", "ConnectionRefusedError"][..],
            ),
            ("socket.create_connection(('1.1.1.1', 443), 5)".to_owned(), &["PermissionError", "OSError"]),
            ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)".to_owned(), &["PermissionError"]),
            ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)".to_owned(), &["PermissionError"]),
            ("socket.socket(socket.AF_PACKET)".to_owned(), &["OSError"]),
        ] {
            let report = session.run(&code).await;
            assert!(kind.contains(&raised(&report)), "{code}: {report:#?}");
        }
        // After going back, and in a branch, the way out is the same one.
        session.value("s.close(); del s").await;
        assert!(denied(core, &session).iter().any(|reason| reason.contains("allow_net")), "it is written down");
        let branch = core.branch(&session, None).await.expect("it branches");
        core.close_session(&session).await;
        assert_eq!(branch.value(&get(allowed)).await, "'allowed'");
    });
}

/// An address as `inet_aton` reads it too: a name for whoever only looks at it, which resolves everywhere without asking anybody.
fn as_a_name(address: Ipv4Addr) -> String {
    address.to_bits().to_string()
}

#[test]
fn a_name_leads_neither_to_this_machine_nor_to_a_private_network() {
    on_newest_python(async |core| {
        let mut inward: Vec<Ipv4Addr> = addresses::own()
            .expect("the kernel lists interfaces")
            .into_iter()
            .filter_map(|address| if let IpAddr::V4(v4) = address { Some(v4) } else { None })
            .collect();
        inward.extend(
            ["0.0.0.0", "10.255.255.254", "100.64.0.9", "192.168.255.254"]
                .map(|text| text.parse::<Ipv4Addr>().unwrap()),
        );
        let allowed: Vec<_> = inward.iter().map(|address| format!("{}:9", as_a_name(*address))).collect();
        // A name for an address that was named as well leads there.
        let port = serve("named");
        let named = format!("{}:{port}", as_a_name(Ipv4Addr::LOCALHOST));
        let both = [format!("127.0.0.1:{port}"), named.clone()];
        let rules = json!({"allow_net": allowed.iter().chain(&both).collect::<Vec<_>>()});
        let test = "a_name_leads_neither_to_this_machine_nor_to_a_private_network";
        let Some(session) = open(core, test, options(core, rules)).await else { return };
        let ask = |destination: &str| {
            format!(
                "import socket\nwith socket.create_connection(('127.0.0.1', 3128), 20) as s:\n\
                 \x20   s.sendall(b'CONNECT {destination} HTTP/1.1\\r\\n\\r\\n')\n\
                 \x20   answer = s.recv(1000).split(b'\\r\\n')[0].decode()\nanswer"
            )
        };
        for (destination, address) in allowed.iter().zip(&inward) {
            let report = session.run(&ask(destination)).await;
            assert_eq!(report.result.as_deref(), Some("'HTTP/1.1 403 Forbidden'"), "{address}: {report:#?}");
            let said = format!("{destination} leads to {address}, an address of ");
            assert!(report.notes.iter().any(|note| note.contains(&said)), "{address}: {report:#?}");
        }
        assert_eq!(session.value(&ask(&named)).await, "'HTTP/1.1 200 Connection established'");
    });
}

#[test]
fn a_floor_of_the_settings_holds_for_every_caller() {
    if let Some(reason) = why_no_namespaces() {
        return skip("a_floor_of_the_settings_holds_for_every_caller", &reason);
    }
    let home = Home::new();
    let settings = home.places().settings_file();
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    fs::write(settings, "[sandbox]\nprofile = 'workspace'\nfloor = true\n").unwrap();
    fs::write(home.work().join("test_it.py"), "def test_it(): open('ran', 'w')\n").unwrap();
    let mut client = home.initialized_client();
    assert_eq!(client.execute("import os; os.getcwd()")["result"], "'/workspace'");
    let me = std::process::id();
    for (tool, arguments) in [
        ("open_session", json!({"sandbox": "open"})),
        ("open_session", json!({"sandbox": {"allow_read": ["/etc"]}})),
        ("open_session", json!({"cwd": home.work()})),
        ("open_session", json!({"preload": ["json"]})),
        ("run_tests", json!({"sandbox": "open"})),
        ("run_tests", json!({})),
        ("dump_stacks", json!({"target": format!("pid:{me}")})),
        ("attach", json!({"pid": me})),
    ] {
        let failure = client.failure(tool, &arguments);
        assert_eq!(failure["kind"], "not_allowed", "{tool} {arguments}: {failure}");
        assert!(failure.to_string().contains("`floor`"), "{tool} {arguments}: {failure}");
    }
    assert!(!home.work().join("ran").exists());
    client.data("open_session", &json!({"sandbox": "sealed", "name": "tighter"}));
    let said = home.run(&["exec", "import os; print(os.getcwd())"]);
    assert_eq!(said.stdout, "/workspace\n", "{}", said.stderr);
    let server = home.command(&["mcp", "--standalone"]);
    let mut alone = Client::start(server);
    alone.initialize();
    assert_eq!(alone.execute("import os; os.getcwd()")["result"], "'/workspace'");
    assert_eq!(alone.failure("open_session", &json!({"sandbox": "open"}))["kind"], "not_allowed");
    assert!(home.run(&["stop"]).stdout.contains("stopped the daemon"));
}

#[test]
fn a_session_tells_what_of_its_sandbox_holds() {
    on_newest_python(async |core| {
        for profile in ["workspace", "sealed"] {
            let Some(session) =
                open(core, "a_session_tells_what_of_its_sandbox_holds", options(core, json!(profile))).await
            else {
                return;
            };
            let enforced = session.session.full_status().await.enforced;
            let of = |what: &str| enforced.iter().find(|promise| promise.what == what).map(|promise| promise.how);
            for what in [
                "read_outside",
                "write_outside",
                "daemon",
                "network",
                "signals",
                "see_processes",
                "privileges",
                "system_calls",
                "processes",
                "open_files",
                "file_size",
                "tmp",
            ] {
                assert_eq!(of(what), Some(How::Kernel), "{what}: {enforced:#?}");
            }
            assert!(matches!(of("memory"), Some(How::Kernel | How::Watched)), "{enforced:#?}");
            let detail = |what: &str| enforced.iter().find(|promise| promise.what == what).unwrap().detail.clone();
            // Not by the limit on files, which is as low in a sealed one.
            assert!(detail("tmp").contains("ENOSPC"), "{}", detail("tmp"));
            let held = session.value("import resource as r; r.getrlimit(r.RLIMIT_NOFILE)[1]").await;
            assert!(detail("open_files").starts_with(&held), "{}", detail("open_files"));
            // What was left open for trying is closed.
            let file_size = "import resource as r; len(set(r.getrlimit(r.RLIMIT_FSIZE)))";
            assert_eq!(session.value(file_size).await, "1");
            assert_eq!(of("disk"), Some(How::Watched), "{enforced:#?}");
        }
        let open = core.session().await;
        assert!(open.session.full_status().await.enforced.is_empty());
    });
}

#[test]
fn who_takes_more_memory_than_is_his_is_ended_and_told() {
    on_newest_python(async |core| {
        let test = "who_takes_more_memory_than_is_his_is_ended_and_told";
        let Some(session) = open(core, test, options(core, json!({"memory_mb": 200}))).await else { return };
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        // Less than one process may map, but more than all may use.
        let report = session.run("import time\nhoard = bytearray(400 << 20)\ntime.sleep(60)").await;
        assert_eq!(report.outcome, pylair_core::session::Outcome::Died, "{report:#?}");
        let message = &report.error.as_ref().expect("it is told").message;
        assert!(message.contains("200 MB"), "{message}");
        assert_eq!(session.value("x").await, "1", "it came back");
    });
}

#[test]
fn a_limit_is_named_for_what_it_ended_and_for_nothing_else() {
    on_newest_python(async |core| {
        let test = "a_limit_is_named_for_what_it_ended_and_for_nothing_else";
        let Some(session) = open(core, test, options(core, json!({"memory_mb": 200}))).await else { return };
        let code = "import os, subprocess, sys\n\
                    hoard = 'import time; hoard = [bytes([1]) * (10 << 20) for _ in range(40)]; time.sleep(60)'\n\
                    subprocess.run([sys.executable, '-c', hoard]).returncode";
        let report = session.run(code).await;
        assert_eq!(report.result.as_deref(), Some("-9"), "{report:#?}");
        let killed = |note: &String| {
            note.starts_with("a process of this session was killed because the session used") && note.contains("200 MB")
        };
        assert!(report.notes.iter().any(killed), "{report:#?}");
        // What comes later has reasons of its own.
        for (code, expected) in [
            ("os._exit(3)", "the worker exited with code 3"),
            ("os.kill(os.getpid(), 9)", "the worker was killed by SIGKILL"),
        ] {
            let report = session.run(&format!("import os; {code}")).await;
            assert!(!report.notes.iter().any(killed), "{report:#?}");
            assert_eq!(report.error.map(|error| error.message).as_deref(), Some(expected));
        }
    });
}

/// Frozen copies are counted as the session's, and each page that is written to exists once more in every one of them.
#[test]
fn checkpoints_fit_into_the_memory_of_a_sandbox() {
    on_newest_python(async |core| {
        let test = "checkpoints_fit_into_the_memory_of_a_sandbox";
        let Some(session) = open(core, test, options(core, json!({"memory_mb": 240}))).await else { return };
        session.value("data = bytearray(60 << 20)").await;
        for cell in 2..=7 {
            session.value(&format!("for at in range(0, len(data), 4096): data[at] = {cell}")).await;
            core.wait_for_checkpoint(&session, cell).await;
        }
        session.value("data = bytearray(130 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1").await;
        core.wait_for_skipped_checkpoint(&session).await;
        let told = session.run("data[0]").await.notes;
        assert!(told.iter().any(|note| note.ends_with("over the limit of 120 MB for checkpoints")), "{told:?}");
    });
}

#[test]
fn who_fills_the_disk_is_ended_and_may_clean_up() {
    on_newest_python(async |core| {
        let test = "who_fills_the_disk_is_ended_and_may_clean_up";
        let Some(session) = open(core, test, options(core, json!({"disk_mb": 5}))).await else { return };
        let code = "import time\nfor n in range(8): open(f'big-{n}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)";
        let report = session.run(code).await;
        let message = &report.error.as_ref().expect("it is told").message;
        assert!(message.contains("may take 5 MB"), "{message}");
        assert!(denied(core, &session).iter().any(|reason| reason.contains("may take 5 MB")), "it is written down");
        assert_eq!(session.value("import os\nfor n in range(8): os.unlink(f'big-{n}')\nos.listdir()").await.len(), 33);
        // Files that have no name any more are there all the same.
        let code = "import time\nfile = open('big', 'wb'); os = __import__('os'); os.unlink('big')\n\
                    file.write(bytes(8 << 20)); file.flush()\ntime.sleep(60)";
        let report = session.run(code).await;
        assert!(report.error.as_ref().is_some_and(|error| error.message.contains("may take 5 MB")), "{report:#?}");
    });
}

#[test]
fn the_disk_is_limited_beside_very_many_files() {
    on_newest_python(async |core| {
        let test = "the_disk_is_limited_beside_very_many_files";
        let options = options(core, json!({"disk_mb": 64, "file_size_mb": 8}));
        let Some(session) = open(core, test, options).await else { return };
        // Made from outside: a session that works for long gets what others leave of the processors.
        let directory = session.session.workspace().path.clone();
        for number in 0..30_000 {
            fs::write(directory.join(format!("empty-{number}")), "").unwrap();
        }
        // Files are moved about as well, so that whoever counts them may miss some.
        let fill = "import os; os.mkdir('a'); os.mkdir('b'); data = b'x' * (4 << 20)\n\
                    for number in range(1000):\n    \
                        with open(f'a/{number}', 'wb') as file: _ = file.write(data)\n    \
                        os.rename('a', 'c'); os.rename('b', 'a'); os.rename('c', 'b')";
        let report = session.run(fill).await;
        assert_eq!(report.outcome, pylair_core::session::Outcome::Died, "4 GB were written: {report:?}");
        assert!(report.error.as_ref().is_some_and(|error| error.message.contains("its files take")), "{report:?}");
        assert!(denied(core, &session).iter().any(|reason| reason.contains("and may take 64 MB")));
        let written = "sum(len(os.listdir(name)) for name in ('a', 'b') if os.path.isdir(name)) * 4";
        println!("{} MB were written", session.value(&format!("import os; {written}")).await);
        let cleaned = "import shutil\nfor name in 'abc': shutil.rmtree(name, ignore_errors=True)\n\
                       sum(os.path.isdir(name) for name in 'abc')";
        assert_eq!(session.value(cleaned).await, "0");
    });
}

#[test]
fn time_ends_a_session() {
    on_newest_python(async |core| {
        for (rules, words) in
            [(json!({"wall_s": 2}), "its time of 2 s is over"), (json!({"cpu_s": 1}), "processor time")]
        {
            let Some(session) = open(core, "time_ends_a_session", options(core, rules)).await else { return };
            // Two processes, each of which stays below what the kernel holds each of them to.
            let code = "import os, time\nos.fork()\nend = time.process_time() + 0.9\nwhile time.process_time() < end: pass\ntime.sleep(60)";
            let job = session.start(code).await;
            let told = crate::support::report(&job).await;
            assert!(told.notes.iter().any(|note| note.contains(words)), "{told:#?}");
            let error = core.daemon.sessions.find(&core.caller, &session.session.info.name).expect_err("it is closed");
            assert!(error.to_string().contains(words), "{error}");
        }
    });
}

#[test]
fn who_uses_up_its_processor_time_is_told() {
    on_newest_python(async |core| {
        let test = "who_uses_up_its_processor_time_is_told";
        // One process, which the kernel holds to it.
        let Some(session) = open(core, test, options(core, json!({"cpu_s": 1}))).await else { return };
        let job = session.start("while True: pass").await;
        // On a busy machine a confined session gets its second late.
        let execution = job.wait(3 * PATIENCE).await.expect("the cell comes to an end");
        let told = format!("{:?} {:?}", execution.error.as_ref().map(|error| &error.message), execution.notes);
        assert!(told.contains("processor time") && !told.contains("SIGKILL"), "{told}");
    });
}

#[test]
fn numpy_works_in_a_sandbox() {
    let test = "numpy_works_in_a_sandbox";
    let Some(python) = std::env::var_os("PYLAIR_TEST_RICH_PYTHON") else { return skip(test, "no Python with numpy") };
    on_newest_python(async |core| {
        for profile in ["workspace", "sealed"] {
            let python = Some(python.to_string_lossy().into_owned());
            let wanted = OpenOptions { python, ..options(core, json!(profile)) };
            let Some(session) = open(core, test, wanted).await else { return };
            session.value("import numpy as np; a = np.random.rand(400, 400)").await;
            let cell = session.session.status().cell;
            core.wait_for_checkpoint(&session, cell).await;
            assert_eq!(session.value("bool(np.allclose(a @ np.linalg.inv(a), np.eye(400)))").await, "True");
            let pool = "import multiprocessing as mp\np = mp.get_context('fork').Pool(2); r = p.map(np.sqrt, [4.0, 9.0]); p.terminate(); p.join(); [float(x) for x in r]";
            assert_eq!(session.value(pool).await, "[2.0, 3.0]");
            session.value("del p; np.save('a.npy', a); b = np.load('a.npy', mmap_mode='r')").await;
            assert_eq!(session.value("float(b.sum()) == float(a.sum())").await, "True");
            let died = session.run("import os\nos.abort()").await;
            assert_eq!(died.outcome, pylair_core::session::Outcome::Died, "{died:#?}");
            assert_eq!(session.value("a.shape").await, "(400, 400)", "it is as it was at the checkpoint");
        }
    });
}

#[test]
fn ordinary_programs_work_in_a_workspace() {
    ordinary_programs_work_in("workspace");
}

#[test]
fn ordinary_programs_work_when_sealed() {
    ordinary_programs_work_in("sealed");
}

fn ordinary_programs_work_in(profile: &str) {
    on_newest_python(async |core| {
        let test = "ordinary_programs_work";
        let Some(session) = open(core, test, options(core, json!(profile))).await else { return };
        let run = |file: &str| pylair_core::session::Work::File {
            file: session.session.workspace().seen_as.join(file),
            name: file.to_owned(),
            args: vec!["7".to_owned()],
            source: None,
        };
        let files = session.session.workspace();
        files
            .write("scripts/main.py", b"import sys\nprint(int(sys.argv[1]) * 6)\n".to_vec())
            .await
            .expect("it is written");
        let job = session
            .session
            .run(run("scripts/main.py"), None, pylair_core::session::OnTimeout::Keep, core.by("test"))
            .await;
        let report = crate::support::report(&job.expect("it starts")).await;
        assert_eq!(report.stdout, "42\n", "{report:#?}");
        session.value("open('outputs/made', 'w').write('by the session')").await;
        let page = files.read("outputs/made", 0, 100).await.expect("it is read");
        assert!(format!("{page:?}").contains("by the session"));
        for (code, value) in [
            (
                "import subprocess; subprocess.check_output(['sh', '-c', 'echo hello | tr a-z A-Z'], text=True)",
                "'HELLO\\n'",
            ),
            (
                "import multiprocessing as mp; m = mp.get_context('fork'); p = m.Pool(2); r = p.map(abs, [-1, -2]); p.terminate(); p.join(); r",
                "[1, 2]",
            ),
            (
                "import threading; out = []; t = threading.Thread(target=lambda: out.append(7)); t.start(); t.join(); out",
                "[7]",
            ),
            (
                "from multiprocessing import shared_memory; s = shared_memory.SharedMemory(create=True, size=100); s.close(); s.unlink()",
                "",
            ),
            ("import sqlite3; c = sqlite3.connect('db'); c.execute('select 6 * 7').fetchone()", "(42,)"),
            ("c.close(); del c, p, m, s, t\nimport tempfile; tempfile.mkdtemp().startswith('/tmp')", "True"),
            (
                "import asyncio, sys\nasync def f():\n    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(5)', stdout=-1)\n    return (await p.communicate())[0]\nasyncio.run(f())",
                "b'5\\n'",
            ),
        ] {
            assert_eq!(session.value(code).await, value, "{code}");
        }
        session.value("x = 1").await;
        let cell = session.session.status().cell;
        core.wait_for_checkpoint(&session, cell).await;
        session.value("x = 2").await;
        session.session.undo(Some(cell)).await.expect("it goes back");
        assert_eq!(session.value("x").await, "1");
        let branch = core.branch(&session, None).await.expect("it branches");
        assert_eq!(branch.value("x").await, "1");
        assert!(!branch.session.enforced().is_empty());
    });
}

/// What the doctor says of a machine on which no namespace can be made: inside one that allows no more.
fn doctor_without_namespaces(home: &Home) -> Option<Vec<Value>> {
    let said = without_namespaces(home, &["doctor", "--json", "--quick"]).output();
    let findings: Value = serde_json::from_slice(&said.ok()?.stdout).ok()?;
    findings["trials"].as_array().cloned()
}

/// A command where no namespace can be made.
fn without_namespaces(home: &Home, args: &[&str]) -> std::process::Command {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script]).arg(&home.program).args(args);
    command.env_clear().envs(&home.env).current_dir(home.work());
    command
}

#[test]
fn every_answer_about_a_session_whose_sandbox_is_not_whole_says_so() {
    let test = "every_answer_about_a_session_whose_sandbox_is_not_whole_says_so";
    if let Some(reason) = why_no_namespaces() {
        return skip(test, &reason);
    }
    let home = Home::new().set("PYLAIR_SANDBOX_BEST_EFFORT", "true");
    let mut client = Client::start(without_namespaces(&home, &["mcp", "--tools", "all"]));
    client.initialize();
    let says_so = |answer: &Value| {
        let text = answer["content"].to_string();
        text.contains("sandbox is not whole: ") && text.contains("no namespaces here")
    };
    for (tool, arguments) in [
        ("open_session", json!({"name": "half", "sandbox": "workspace"})),
        ("execute", json!({"code": "def f(x): return x\nvalue = 1", "target": "half"})),
        ("inspect", json!({"path": "value", "target": "half"})),
        ("read_source", json!({"path": "f", "target": "half"})),
        ("complete_code", json!({"code": "val", "target": "half"})),
        ("set_variable", json!({"path": "value", "value": 2, "target": "half"})),
        ("call", json!({"path": "f", "args": [1], "target": "half"})),
        ("write_file", json!({"path": "note", "content": "x", "target": "half"})),
        ("read_file", json!({"path": "note", "target": "half"})),
        ("list_files", json!({"target": "half"})),
        ("delete_file", json!({"path": "note", "target": "half"})),
        ("get_status", json!({"target": "half"})),
        ("list_targets", json!({})),
        ("get_history", json!({"target": "half"})),
        ("export_session", json!({"target": "half", "format": "py"})),
        ("save_session", json!({"target": "half"})),
        ("undo", json!({"target": "half"})),
        ("branch_session", json!({"target": "half", "name": "other"})),
        ("interrupt", json!({"target": "half"})),
        ("restart_session", json!({"target": "half"})),
        ("install_packages", json!({"packages": ["../no"], "target": "half"})),
        ("close_session", json!({"target": "half"})),
    ] {
        let answer = client.call(tool, &arguments);
        assert!(says_so(&answer), "{tool}: {answer:#}");
        let structured = &answer["structuredContent"];
        let is_told = |value: &Value| value.to_string().contains("no namespaces here");
        assert!(structured.is_null() || is_told(structured), "{tool}: {answer:#}");
    }
    // Said once, also where the cell has it in its own notes.
    let told = client.call("execute", &json!({"code": "1", "target": "other"}))["content"].to_string();
    assert_eq!(told.matches("sandbox is not whole").count(), 1, "{told}");
    let answer = client.call("open_session", &json!({"name": "free", "sandbox": "open"}));
    assert!(!says_so(&answer), "{answer:#}");
}

#[test]
fn where_a_sandbox_does_not_hold_there_is_none_unless_it_is_wanted() {
    let test = "where_a_sandbox_does_not_hold_there_is_none_unless_it_is_wanted";
    let find = |trials: &[Value], what: &str| trials.iter().find(|trial| trial["what"] == what).expect(what).clone();
    let home = Home::new();
    let Some(trials) = doctor_without_namespaces(&home) else { return skip(test, "no user namespace can be made") };
    let refused = find(&trials, "workspace");
    assert_eq!(refused["works"], false, "{refused:#}");
    let why = refused["detail"].as_str().expect("it says why");
    assert!(why.contains("max_user_namespaces") && why.contains("sandbox_best_effort"), "{why}");
    assert_eq!(find(&trials, "session")["works"], true);
    let denied = home.run(&["audit", "--denied"]).stdout;
    assert!(denied.contains("sandbox") && denied.contains("cannot be made"), "{denied}");

    let home = Home::new().set("PYLAIR_SANDBOX_BEST_EFFORT", "true");
    let opened = find(&doctor_without_namespaces(&home).expect("it worked before"), "workspace");
    assert_eq!(opened["works"], true, "{opened:#}");
    let how = |what: &str| {
        let all = opened["enforced"].as_array().expect("it is told");
        all.iter().find(|promise| promise["what"] == what).expect(what)["how"].clone()
    };
    for (what, expected) in
        [("see_processes", "no"), ("tmp", "no"), ("system_calls", "kernel"), ("privileges", "kernel")]
    {
        assert_eq!(how(what), expected, "{what}: {opened:#}");
    }
}

#[test]
fn the_doctor_passes_the_limits_and_tells_what_stopped_it() {
    if let Some(reason) = why_no_namespaces() {
        return skip("the_doctor_passes_the_limits_and_tells_what_stopped_it", &reason);
    }
    let home = Home::new();
    let told = home.run(&["doctor", "--json"]);
    let findings: Value = serde_json::from_str(&told.stdout).expect("JSON");
    for profile in ["workspace", "sealed session"] {
        let trials = findings["trials"].as_array().expect("a list");
        let trial = trials.iter().find(|trial| trial["what"] == profile).expect("it was tried");
        let enforced = trial["enforced"].as_array().expect("it is told");
        for (what, expected) in [
            ("memory", &["kernel", "watched"][..]),
            ("processes", &["kernel"]),
            ("open_files", &["kernel"]),
            ("tmp", &["kernel"]),
            ("disk", &["watched"]),
        ] {
            let promise = enforced.iter().find(|promise| promise["what"] == what).expect(what);
            assert!(expected.contains(&promise["how"].as_str().expect("a word")), "{promise:#}");
            assert!(promise["detail"].as_str().is_some_and(|detail| detail.contains("tried with ")), "{promise:#}");
        }
    }
}
