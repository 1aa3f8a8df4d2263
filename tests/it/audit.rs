//! The audit record: what is in it, who finds it, and what shows when somebody changes it.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::Stdio,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Home, Watched, kill, skip};

fn lines(home: &Home, args: &[&str]) -> Vec<Value> {
    let told = home.run(&[&["audit", "--json"], args].concat());
    assert!(told.status.success(), "{told:?}");
    told.stdout.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// After everything recorded so far has been written.
fn verified(home: &Home) -> Value {
    serde_json::from_str(&home.run(&["audit", "--verify", "--json"]).stdout).expect("JSON")
}

#[test]
fn who_executed_what_where_through_which_door_is_recorded() {
    let home = Home::new();
    let server = home.serve();
    home.run(&["exec", "password = 'hunter2'; 1 / 0"]);
    let token = home.run(&["token", "add", "ci", "--scope", "run", "--owner", "alice"]).stdout.trim().to_owned();
    let ran = server.request("POST", "/api/execute", json!({"code": "2 + 2"}).to_string()).with_token(&token).send();
    assert_eq!(ran.status, 200, "{ran:?}");
    let denied =
        server.request("POST", "/api/sessions", json!({"sandbox": "open"}).to_string()).with_token(&token).send();
    assert_eq!(denied.status, 403);
    server.request("GET", "/api/status", "").with_token("guess").send();
    let mut client = home.initialized_client();
    client.execute("3 + 3");
    assert_eq!(verified(&home)["faults"], json!([]));
    let all = lines(&home, &[]);
    let find = |what: &str, key: &str, value: &str| {
        let found = all.iter().find(|line| line["what"] == what && line[key] == value);
        found.unwrap_or_else(|| panic!("no {what} with {key} {value} in {all:#?}")).clone()
    };
    let by_hand = find("called", "code", "password = '***masked***'; 1 / 0");
    assert_eq!(
        (&by_hand["door"], &by_hand["target"], &by_hand["client"]),
        (&json!("cli"), &json!("main"), &json!("shell"))
    );
    assert_eq!(
        by_hand["code_sha256"],
        pylair_text::hash::hex(&pylair_text::hash::sha256(b"password = 'hunter2'; 1 / 0"))
    );
    let ended =
        all.iter().find(|line| line["what"] == "ended" && line["call"] == by_hand["call"]).expect("it has ended");
    assert_eq!(ended["outcome"], "raised");
    let remote = find("called", "code", "2 + 2");
    assert_eq!((&remote["owner"], &remote["token"], &remote["door"]), (&json!("alice"), &json!("ci"), &json!("http")));
    assert!(remote["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{remote}");
    let over_mcp = find("called", "code", "3 + 3");
    assert_eq!((&over_mcp["door"], &over_mcp["action"]), (&json!("bridge"), &json!("execute")));
    let denied = lines(&home, &["--denied"]);
    let reasons: Vec<_> = denied.iter().map(|line| line["reason"].as_str().expect("a reason")).collect();
    assert_eq!(reasons, ["this caller may not open sessions without a sandbox", "this token opens nothing here"]);
    assert!(lines(&home, &["--owner", "alice"]).iter().all(|line| line["owner"] == "alice"));
    assert_eq!(lines(&home, &["--since", "1h"]).len(), lines(&home, &[]).len());
    assert_eq!(lines(&home, &["--since", "0s"]).len(), 0);
    find("token_added", "token", "ci");
    let people = home.run(&["audit", "--denied"]).stdout;
    assert!(
        people.contains("DENIED  owner alice") && people.contains("because this token opens nothing here"),
        "{people}"
    );
    let text = fs::read_to_string(home.places().audit()).expect("there is a record");
    assert!(!text.contains("hunter2") && !text.contains(&token) && !text.contains(&server.token));
    let mode = fs::metadata(home.places().audit()).expect("there is a record").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(server.request("GET", "/api/audit/head", "").send().status, 404, "nothing of it is served over HTTP");
    drop(client);
}

/// The newest line of an action that was asked for.
fn asked(all: &[Value], action: &str) -> Value {
    let found = all.iter().rev().find(|line| line["what"] == "called" && line["action"] == action);
    found.unwrap_or_else(|| panic!("no {action} in {all:#?}")).clone()
}

#[test]
fn every_deed_says_what_was_done_and_where() {
    let home = Home::new();
    let mut client = Client::start(home.command(&["mcp", "--tools", "all"]));
    client.initialize();
    let source = b"import sys\nprint(len(sys.argv))\n";
    fs::write(home.work().join("job.py"), source).expect("it is ours");
    let mut call = |tool: &str, arguments: Value| client.call(tool, &arguments);
    call("open_session", json!({"name": "s", "env": {"API_KEY": "hunter2"}, "sandbox": "open"}));
    call(
        "run_file",
        json!({"target": "s", "path": "job.py", "args": ["--password", "hunter2", "--token=hunter2", "n"]}),
    );
    call("write_file", json!({"target": "s", "path": "a/b.env", "content": "PASSWORD=hunter2"}));
    call("read_file", json!({"target": "s", "path": "a/b.env"}));
    call("set_variable", json!({"target": "s", "path": "pin", "value": "hunter2"}));
    call("call", json!({"target": "s", "path": "print", "kwargs": {"end": "x"}}));
    call("branch_session", json!({"target": "s", "name": "t"}));
    call("undo", json!({"target": "s", "to": 0}));
    call("restart_session", json!({"target": "s", "mode": "clear"}));
    call(
        "install_packages",
        json!({"target": "s", "packages": ["no-such-thing @ https://me:hunter2@127.0.0.1:9/x.whl"]}),
    );
    call("attach", json!({"pid": 4_000_000, "readonly": true}));
    call("delete_file", json!({"target": "s", "path": "a/b.env"}));
    call("close_session", json!({"target": "t", "forget": true}));
    assert_eq!(verified(&home)["faults"], json!([]));
    let all = lines(&home, &[]);
    let details = |action: &str| asked(&all, action)["details"].clone();
    let hash = pylair_text::hash::hex(&pylair_text::hash::sha256(source));
    assert_eq!(
        details("run_file"),
        json!({"path": "job.py", "args": ["--password", "***masked***", "--token=***masked***", "n"], "sha256": hash})
    );
    assert_eq!(details("open_session"), json!({"name": "s", "env": ["API_KEY"], "sandbox": "open"}));
    assert_eq!(
        (&details("write_file")["path"], &details("write_file")["content"]["bytes"]),
        (&json!("a/b.env"), &json!(16))
    );
    assert_eq!(details("read_file")["path"], "a/b.env");
    assert_eq!(details("set_variable"), json!({"path": "pin", "value": {"bytes": 7}}));
    assert_eq!(asked(&all, "call")["code"], r#"print(end="x")"#);
    assert_eq!(details("branch_session"), json!({"name": "t"}));
    assert_eq!(details("undo"), json!({"to": 0}));
    assert_eq!(details("restart_session"), json!({"mode": "clear"}));
    let packages = &details("install_packages")["packages"][0];
    assert_eq!(packages, "no-such-thing @ https://me:***masked***@127.0.0.1:9/x.whl");
    assert_eq!(asked(&all, "attach")["target"], "pid:4000000");
    assert_eq!(details("delete_file"), json!({"path": "a/b.env"}));
    assert_eq!(details("close_session"), json!({"forget": true}));
    for action in ["run_file", "write_file", "set_variable", "install_packages"] {
        let line = asked(&all, action);
        assert_eq!((&line["target"], &line["door"]), (&json!("s"), &json!("bridge")), "{line}");
        assert!(line["owner"].is_string() && line["client"].is_string(), "{line}");
    }
    let text = fs::read_to_string(home.places().audit()).expect("there is a record");
    assert!(!text.contains("hunter2"), "{text}");
    assert!(home.run(&["audit"]).stdout.contains("path job.py"));
    drop(client);
}

#[test]
fn files_and_tokens_over_http_are_recorded() {
    let home = Home::new();
    let server = home.serve();
    let token = home.run(&["token", "add", "ci", "--scope", "run", "--owner", "alice", "--expires", "1d"]).stdout;
    let token = token.trim();
    let sent = server.request("POST", "/files/upload?path=in/data.bin", "bytes").with_token(token).send();
    assert_eq!(sent.status, 200, "{sent:?}");
    let got = server.request("GET", "/files/download/in/data.bin", "").with_token(token).send();
    assert_eq!(got.status, 200, "{got:?}");
    home.run(&["token", "rotate"]);
    home.run(&["token", "revoke", "ci"]);
    assert_eq!(server.request("GET", "/api/status", "").with_token(token).send().status, 401);
    assert_eq!(verified(&home)["faults"], json!([]));
    let all = lines(&home, &[]);
    let (upload, download) = (asked(&all, "upload"), asked(&all, "download"));
    assert_eq!((&upload["owner"], &upload["details"]), (&json!("alice"), &json!({"files": ["in/data.bin"]})));
    assert_eq!((&download["owner"], &download["details"]), (&json!("alice"), &json!({"path": "in/data.bin"})));
    assert!(upload["target"].is_string() && download["target"].is_string(), "{upload} {download}");
    let of_token = |what: &str, name: &str| {
        let found = all.iter().find(|line| line["what"] == what && line["token"] == name);
        found.unwrap_or_else(|| panic!("no {what} of {name} in {all:#?}")).clone()
    };
    let added = of_token("token_added", "ci");
    assert_eq!((&added["details"]["owner"], &added["details"]["scopes"]), (&json!("alice"), &json!(["run"])));
    assert!(added["details"]["expires"].is_string() && added["owner"].is_string(), "{added}");
    let own = of_token("token_found", "own");
    assert_eq!(own["details"]["scopes"], json!(["admin"]));
    of_token("token_rotated", "own");
    of_token("token_revoked", "ci");
}

#[test]
fn a_token_that_lasts_no_time_is_refused() {
    let home = Home::new();
    for never in ["0d", "0s", "00h"] {
        let refused = home.run(&["token", "add", "x", "--scope", "read", "--expires", never]);
        assert_eq!((refused.status.code(), refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
        assert!(refused.stderr.contains("would never open anything") && refused.stderr.contains("30d"), "{refused:?}");
    }
    assert!(!home.run(&["token", "list"]).stdout.contains("\nx "));
}

#[test]
fn what_was_written_survives_the_death_of_the_daemon_and_the_chain_goes_on() {
    let home = Home::new();
    home.run(&["exec", "1"]);
    let before = verified(&home)["last_seq"].as_u64().expect("a number");
    let daemon = Watched::new(home.daemon_pid());
    kill(daemon.pid, Signal::KILL);
    daemon.assert_ends();
    let killed = lines(&home, &[]);
    home.run(&["exec", "2"]);
    let verdict = verified(&home);
    assert_eq!(verdict["faults"], json!([]));
    assert!(verdict["last_seq"].as_u64() > Some(before), "{verdict}");
    assert_eq!(lines(&home, &[])[..killed.len()], killed);
}

#[test]
fn a_record_that_was_changed_shows() {
    let home = Home::new();
    home.run(&["exec", "'first'"]);
    home.run(&["exec", "'second'"]);
    assert_eq!(verified(&home)["faults"], json!([]));
    let path = home.places().audit();
    let text = fs::read_to_string(&path).expect("there is a record");
    fs::write(&path, text.replace("'first'", "'other'")).expect("it is ours");
    let changed = home.run(&["audit", "--verify"]);
    assert_eq!(changed.status.code(), Some(1));
    assert!(changed.stdout.contains("FAULT"), "{}", changed.stdout);
    let kept: Vec<_> = text.lines().collect();
    fs::write(&path, format!("{}\n", kept[..kept.len() - 1].join("\n"))).expect("it is ours");
    assert!(home.run(&["audit", "--verify"]).stdout.contains("the end was changed or cut off"));
    fs::write(&path, text).expect("it is ours");
    assert_eq!(verified(&home)["faults"], json!([]));
}

#[test]
fn lines_are_followed_as_they_come() {
    let home = Home::new();
    home.run(&["exec", "1"]);
    let mut follower = home.command(&["audit", "--follow"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut told = BufReader::new(follower.stdout.take().expect("it is piped")).lines();
    home.run(&["exec", "'a line to be seen'"]);
    assert!(told.any(|line| line.expect("text").contains("'a line to be seen'")));
    follower.kill().expect("it runs");
    follower.wait().expect("it can be waited for");
}

#[test]
fn only_what_was_asked_for_is_followed() {
    let home = Home::new();
    let server = home.serve();
    let mut command = home.command(&["audit", "--follow", "--denied", "--json"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut told = BufReader::new(follower.stdout.take().expect("it is piped")).lines();
    home.run(&["exec", "'not denied'"]);
    server.request("GET", "/api/status", "").with_token("guess").send();
    let first = told.next().expect("something was denied").expect("text");
    let first: Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!((&first["what"], &first["action"]), (&json!("denied"), &json!("GET /api/status")));
    follower.kill().expect("it runs");
    follower.wait().expect("it can be waited for");
}

/// A file system of its own for the record, which goes when it is dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn at(path: &std::path::Path) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        let mounted =
            mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]).arg(path).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(path.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a failed test may have left something open in it.
        let unmounted = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_full_disk_stops_nothing_and_is_told() {
    let home = Home::new();
    let state = home.places().state;
    fs::create_dir_all(&state).expect("the home is writable");
    let Some(_disk) = SmallDisk::at(&state) else {
        return skip("a_full_disk_stops_nothing_and_is_told", "nothing can be mounted here");
    };
    assert_eq!(home.run(&["exec", "'before'"]).stdout, "'before'\n");
    assert_eq!(verified(&home)["faults"], json!([]));
    let filler = state.join("filler");
    // Until not even a byte fits.
    let mut file = fs::File::create(&filler).expect("there is room");
    while std::io::Write::write(&mut file, &[0; 512]).is_ok_and(|written| written > 0) {}
    let mut trouble = Value::Null;
    for number in 0..200 {
        assert_eq!(home.run(&["exec", &format!("{number} + 1")]).stdout, format!("{}\n", number + 1));
        verified(&home);
        let doctor: Value = serde_json::from_str(&home.run(&["doctor", "--quick", "--json"]).stdout).expect("JSON");
        trouble = doctor["daemon"]["audit_trouble"].clone();
        if trouble.is_string() {
            break;
        }
    }
    assert!(trouble.as_str().is_some_and(|said| said.contains("lines were lost")), "{trouble}");
    fs::remove_file(&filler).expect("it is ours");
    drop(file);
    home.run(&["exec", "'after'"]);
    let verdict = verified(&home);
    assert_eq!(verdict["faults"], json!([]), "{verdict}");
    assert!(verdict["dropped"].as_u64() > Some(0), "{verdict}");
    assert!(lines(&home, &[]).iter().any(|line| line["code"] == "'after'"));
    let doctor: Value = serde_json::from_str(&home.run(&["doctor", "--json"]).stdout).expect("JSON");
    assert_eq!(doctor["daemon"].get("audit_trouble"), None);
    home.run(&["stop"]);
}
