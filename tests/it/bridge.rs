//! The bridge: one daemon for all, and what clients see when the daemon, the bridge or they themselves go away.

use std::{
    fs::{self, File},
    io::Write,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Home, WAIT_FOREVER, Watched, kill, read_messages, text_of};

/// Starts a cell that does not end, and waits until it runs.
fn begin_endless_cell(client: &mut Client) -> i64 {
    let params = json!({
        "name": "execute",
        "arguments": {"code": WAIT_FOREVER},
        "_meta": {"progressToken": "endless"},
    });
    let id = client.request("tools/call", &params);
    let progress = client.notification("notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "endless");
    id
}

fn daemon_of(client: &mut Client) -> i32 {
    let pid = client.data("get_status", &json!({}))["daemon"]["pid"].as_i64().expect("the daemon has a pid");
    i32::try_from(pid).expect("a pid is small")
}

/// The job of the only session.
fn only_job(client: &mut Client) -> String {
    let targets = client.data("list_targets", &json!({}));
    assert_eq!(targets["sessions"].as_array().map(Vec::len), Some(1), "{targets}");
    targets["sessions"][0]["job"].as_str().expect("it ran something").to_owned()
}

#[test]
fn two_bridges_at_the_same_moment_get_one_daemon_and_one_default_session() {
    let home = Home::new();
    let (mut one, mut other) = (home.client(), home.client());
    one.initialize();
    other.initialize();
    assert_eq!(daemon_of(&mut one), daemon_of(&mut other));
    one.execute("x = 'shared by one process tree'");
    assert_eq!(other.execute("x")["result"], "'shared by one process tree'");
}

#[test]
fn a_daemon_killed_mid_call_is_told_and_the_next_call_works() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 1");
    let daemon = daemon_of(&mut client);
    let id = begin_endless_cell(&mut client);
    let processes = home.processes();
    assert!(processes.len() > 2, "daemon, keeper and worker are known by this home: {processes:?}");
    kill(daemon, Signal::KILL);
    let error = client.answer(id)["error"].clone();
    assert_eq!(error["data"]["kind"], "daemon_died", "{error}");
    let report = client.execute("'x' in globals()");
    assert_eq!(report["result"], "False");
    let told = "the pylair daemon died and a new one was started: all sessions and their variables are gone";
    let notes = report["notes"].as_array().expect("notes");
    assert!(notes.contains(&json!(told)), "{report}");
    assert!(!client.execute("1")["notes"].to_string().contains("daemon"), "it is told once");
    for process in processes.iter().filter(|process| process.pid != client.pid()) {
        process.assert_ends();
    }
    client.forget_notifications("notifications/progress");
}

#[test]
fn the_first_answer_after_a_death_tells_of_it_whatever_was_asked() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 1");
    let daemon = Watched::new(daemon_of(&mut client));
    kill(daemon.pid, Signal::KILL);
    daemon.assert_ends();
    let targets = client.data("list_targets", &json!({}));
    assert_eq!(targets["sessions"], json!([]));
    assert!(targets["notes"].to_string().contains("all sessions and their variables are gone"), "{targets}");
    assert_eq!(client.data("list_targets", &json!({}))["notes"], Value::Null, "it is told once");
    client.forget_second_answers();
}

#[test]
fn a_killed_bridge_closes_the_clients_pipes_and_the_daemon_lives() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 'still here'");
    let daemon = daemon_of(&mut client);
    kill(client.pid(), Signal::KILL);
    assert_eq!(client.next(), None);
    let (unread, _) = client.close();
    assert_eq!(unread, [Value::Null; 0]);
    let mut client = home.initialized_client();
    assert_eq!(daemon_of(&mut client), daemon);
    assert_eq!(client.execute("x")["result"], "'still here'");
}

#[test]
fn a_client_that_leaves_mid_cell_leaves_a_job_behind() {
    let home = Home::new();
    let mut client = home.initialized_client();
    begin_endless_cell(&mut client);
    let (_, status) = client.close();
    assert_eq!(status.code(), Some(0));
    let mut client = home.initialized_client();
    let job = only_job(&mut client);
    let report = client.data("get_job", &json!({"job": job, "wait_s": 0, "output": "json"}));
    assert_eq!((report["outcome"].as_str(), report["stdout"].as_str()), (Some("running"), Some("waiting\n")));
    let report = client.data("get_job", &json!({"job": job, "cancel": true, "output": "json"}));
    assert_eq!(report["outcome"], "interrupted");
}

#[test]
fn a_daemon_that_was_stopped_stays_so_until_the_client_calls_again() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 1");
    let daemon = Watched::new(daemon_of(&mut client));
    assert!(home.run(&["stop"]).status.success());
    daemon.assert_ends();
    assert_eq!(home.run(&["stop"]).stdout, "no daemon is running\n");
    let notes = client.execute("x")["notes"].clone();
    let told = "the pylair daemon was stopped and a new one was started: sessions come back when they are used";
    assert!(notes[2].as_str().is_some_and(|note| note.starts_with(told)), "{notes}");
}

#[test]
fn a_cell_whose_bridge_is_killed_goes_on_as_a_job() {
    let home = Home::new();
    let mut client = home.initialized_client();
    begin_endless_cell(&mut client);
    kill(client.pid(), Signal::KILL);
    assert_eq!(client.next(), None);
    client.close();
    let mut client = home.initialized_client();
    let job = only_job(&mut client);
    let report = client.data("get_job", &json!({"job": job, "wait_s": 0, "output": "json"}));
    assert_eq!(report["outcome"], "running");
    let report = client.data("get_job", &json!({"job": job, "cancel": true, "output": "json"}));
    assert_eq!(report["outcome"], "interrupted");
}

#[test]
fn cancelling_a_request_interrupts_the_cell() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("kept = 1");
    let id = begin_endless_cell(&mut client);
    client.notify("notifications/cancelled", &json!({"requestId": id, "reason": "changed my mind"}));
    let job = only_job(&mut client);
    let report = client.data("get_job", &json!({"job": job, "output": "json"}));
    assert_eq!(report["outcome"], "interrupted", "{report}");
    assert_eq!(client.execute("kept")["result"], "1");
    client.forget_notifications("notifications/progress");
}

#[test]
fn progress_shows_what_is_printed() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let id = begin_endless_cell(&mut client);
    client.forget_notifications("notifications/progress");
    let session = client.data("list_targets", &json!({}))["sessions"][0]["name"].clone();
    client.call("interrupt", &json!({"target": session}));
    assert!(text_of(&client.answer(id)["result"]).contains("KeyboardInterrupt"));
    let params = json!({
        "name": "execute",
        "arguments": {"code": "print('40 %', flush=True)\nopen('go').read()"},
        "_meta": {"progressToken": 7},
    });
    rustix::fs::mknodat(rustix::fs::CWD, home.work().join("go"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .expect("a pipe can be made");
    client.forget_notifications("notifications/progress");
    let id = client.request("tools/call", &params);
    let progress = client.notification("notifications/progress")["params"].clone();
    assert_eq!((&progress["progressToken"], &progress["message"]), (&json!(7), &json!("40 %")));
    fs::write(home.work().join("go"), "").expect("the cell reads");
    client.answer(id);
    client.forget_notifications("notifications/progress");
}

/// What a client sends at the start, and one cell.
fn opening_lines() -> String {
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "file", "version": "1"},
    }});
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "execute", "arguments": {"code": "6 * 7", "output": "json"},
    }});
    format!("{initialize}\n{initialized}\n{call}\n")
}

#[test]
fn stdio_may_be_a_socket() {
    let home = Home::new();
    let (mut ours, theirs) = UnixStream::pair().expect("sockets can be made");
    let copy = theirs.try_clone().expect("descriptors are left");
    let mut bridge = home
        .command(&["mcp"])
        .stdin(OwnedFd::from(copy))
        .stdout(OwnedFd::from(theirs))
        .spawn()
        .expect("the program starts");
    let messages = read_messages(ours.try_clone().expect("descriptors are left"));
    ours.write_all(opening_lines().as_bytes()).expect("the daemon reads");
    assert_eq!(messages.recv().expect("an answer")["id"], 1);
    assert_eq!(messages.recv().expect("an answer")["result"]["structuredContent"]["result"], "42");
    ours.shutdown(Shutdown::Write).expect("it is open");
    Watched::new(bridge.id().cast_signed()).assert_ends();
    assert!(bridge.wait().expect("it can be waited for").success());
}

#[test]
fn stdio_may_be_regular_files() {
    let home = Home::new();
    let (input, output) = (home.work().join("in"), home.work().join("out"));
    fs::write(&input, opening_lines()).expect("the home is writable");
    let mut bridge = home
        .command(&["mcp"])
        .stdin(File::open(&input).expect("it was just written"))
        .stdout(File::create(&output).expect("the home is writable"))
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the program starts");
    Watched::new(bridge.id().cast_signed()).assert_ends();
    assert!(bridge.wait().expect("it can be waited for").success());
    let answers = fs::read_to_string(&output).expect("it is there");
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.iter().map(|answer| &answer["id"]).collect::<Vec<_>>(), [1, 2], "{answers:?}");
    assert_eq!(answers[1]["result"]["structuredContent"]["result"], "42");
}

#[test]
fn lines_that_are_no_requests_are_answered_one_by_one() {
    let home = Home::new();
    let mut client = home.initialized_client();
    for (line, code) in [
        (&b"{\"jsonrpc\": \"2.0\", \"id\": 5, \n"[..], -32700),
        (b"[{\"jsonrpc\": \"2.0\", \"id\": 5, \"method\": \"ping\"}]\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\xfe\",\"method\":\"ping\"}\n", -32700),
        (b"\"hello\"\n", -32600),
    ] {
        client.send_bytes(line);
        let answer = client.next().expect("an answer");
        assert_eq!(answer["error"]["code"], code, "{} gets {answer}", String::from_utf8_lossy(line));
    }
    assert_eq!(client.execute("1 + 1")["result"], "2");
}

#[test]
fn a_second_request_with_a_pending_id_is_refused_and_the_first_is_answered() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let id = begin_endless_cell(&mut client);
    client.send(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}));
    let refused = client.answer(id);
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    let session = client.data("list_targets", &json!({}))["sessions"][0]["name"].clone();
    client.call("interrupt", &json!({"target": session}));
    assert!(text_of(&client.answer(id)["result"]).contains("interrupted"));
    client.forget_notifications("notifications/progress");
}

#[test]
fn standalone_serves_without_a_daemon_and_leaves_nothing() {
    let home = Home::new();
    let mut client = Client::start(home.command(&["mcp", "--standalone"]));
    client.initialize();
    assert_eq!(client.execute("2 + 2")["result"], "4");
    assert!(!home.places().socket().exists());
    drop(client);
    let left: Vec<_> = fs::read_dir(home.places().data).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}
