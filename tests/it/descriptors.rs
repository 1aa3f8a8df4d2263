//! A daemon that may have few files open: it refuses what is new in words, and brings back what it has.

use std::process::Command;

use serde_json::{Value, json};

use crate::{
    faults::wait_for_checkpoint,
    support::{Client, Home, text_of},
};

/// Files the daemon may have open, also by raising its own limit.
const FILES: usize = 200;

/// The program below that limit; whatever it starts has it too.
fn limited(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(&home.program).args(args);
    command.env_clear().envs(&home.env).current_dir(home.work());
    command
}

fn start(home: &Home) -> Client {
    let mut client = Client::start(limited(home, &["mcp"]));
    client.initialize();
    client
}

/// Opens sessions until one is refused. Returns their names and the refusal.
fn fill(client: &mut Client) -> (Vec<String>, Value) {
    let mut names = Vec::new();
    loop {
        let name = format!("s{}", names.len());
        let opened = client.call("open_session", &json!({"name": name}));
        if opened["isError"] == true {
            return (names, opened["structuredContent"].clone());
        }
        names.push(name);
        assert!(names.len() < FILES, "every session takes descriptors");
    }
}

fn open_files(daemon: i32) -> usize {
    std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("the daemon runs").count()
}

#[test]
fn a_session_that_finds_no_descriptors_is_refused_and_the_others_can_go_back() {
    let home = Home::new();
    let mut client = start(&home);
    let (names, refused) = fill(&mut client);
    assert!(names.len() > 3, "{names:?}");
    assert_eq!(refused["kind"], "too_many_sessions", "{refused}");
    let message = refused["message"].as_str().expect("it has a message");
    assert!(message.contains(&format!("of at most {FILES} files open")), "{message}");
    assert!(refused["hint"].as_str().is_some_and(|hint| hint.contains("close_session")), "{refused}");
    let daemon = home.daemon_pid();
    // Each has something to lose, and a checkpoint of it.
    for name in &names {
        client.data("execute", &json!({"code": format!("kept = '{name}'"), "target": name, "output": "json"}));
        wait_for_checkpoint(&mut client, name, 1);
    }
    // All crash at once.
    let crash = json!({"code": "import os\nos.abort()"});
    let crashed: Vec<_> = names
        .iter()
        .map(|name| {
            let mut arguments = crash.clone();
            arguments["target"] = json!(name);
            client.begin("execute", &arguments)
        })
        .collect();
    for id in crashed {
        let answer = client.answer(id);
        let text = text_of(&answer["result"]);
        assert!(text.contains("was rolled back to where it was after cell 1"), "{text}");
    }
    for name in &names {
        let report = client.data("execute", &json!({"code": "kept", "target": name, "output": "json"}));
        assert_eq!(report["result"], format!("'{name}'"), "{report}");
    }
    assert_eq!(home.daemon_pid(), daemon);
    assert!(open_files(daemon) <= FILES);
    // Whoever closes some has room again.
    for name in &names[..3] {
        client.data("close_session", &json!({"target": name}));
    }
    client.data("open_session", &json!({"name": "again"}));
}

#[test]
fn a_client_that_finds_no_descriptors_is_told_so_and_not_that_the_daemon_died() {
    let home = Home::new();
    let mut client = start(&home);
    let (names, _) = fill(&mut client);
    let daemon = home.daemon_pid();
    // Clients take what sessions were refused, until they are refused too.
    let mut others = Vec::new();
    let refused = loop {
        let mut other = Client::start(limited(&home, &["mcp"]));
        let id = other.request("tools/list", &json!({}));
        if let Some(answer) = other.next() {
            assert_eq!(answer["id"], id, "{answer}");
            others.push(other);
            assert!(others.len() < FILES, "every client takes descriptors");
        } else {
            break other;
        }
    };
    let (unread, status) = refused.close();
    assert_eq!((unread.as_slice(), status.code()), ([].as_slice(), Some(2)));
    let told = home.run(&["mcp"]);
    assert!(told.stderr.contains("the daemon cannot serve another client"), "{}", told.stderr);
    assert!(!told.stderr.contains("died"), "{}", told.stderr);
    drop(others);
    assert_eq!(home.daemon_pid(), daemon);
    let report = client.data("execute", &json!({"code": "1 + 1", "target": names[0], "output": "json"}));
    assert_eq!(report["result"], "2", "{report}");
}
