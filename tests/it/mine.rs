//! The caller's own session: it is marked, it is what tools mean when no target is named, and whoever closed one is told.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use serde_json::{Value, json};

use crate::support::{Client, Home, Server, finish, text_of};

/// The names of the sessions that a list marks.
fn marked(listed: &Value) -> Vec<&str> {
    let sessions = listed["sessions"].as_array().expect("a list").iter();
    sessions.filter(|session| session["mine"] == true).filter_map(|session| session["name"].as_str()).collect()
}

#[test]
fn everybody_sees_which_session_is_their_own() {
    let home = Home::new();
    let (mut one, mut other) = (home.another_client(&[]), home.another_client(&[]));
    assert_eq!(one.data("get_status", &json!({})).get("default_target"), None, "there is none yet");
    let first = one.execute("1")["session"].as_str().expect("a name").to_owned();
    let second = other.execute("1")["session"].as_str().expect("a name").to_owned();
    one.data("open_session", &json!({"name": "third"}));
    assert_ne!(first, second);
    let (ones, others) = (one.data("list_targets", &json!({})), other.data("list_targets", &json!({})));
    assert_eq!((marked(&ones), marked(&others)), (vec![&*first], vec![&*second]));
    let text = text_of(&one.call("list_targets", &json!({})));
    assert_eq!(text.lines().filter(|line| line.contains(", yours): ")).count(), 1, "{text}");
    assert!(text.lines().any(|line| line.starts_with(&first) && line.contains(", yours): ")), "{text}");
    assert_eq!(one.data("get_status", &json!({}))["default_target"], first);
    assert_eq!(one.data("get_status", &json!({"target": first}))["session"]["mine"], true);
    assert_eq!(one.data("get_status", &json!({"target": second}))["session"]["mine"], false);
    // A stopped one is still one's own.
    assert!(home.run(&["stop"]).status.success());
    let ones = one.data("list_targets", &json!({}));
    assert_eq!(ones["sessions"].as_array().map(Vec::len), Some(0), "nothing was in them: {ones}");
    one.execute("x = 1");
    let name = one.data("get_status", &json!({}))["default_target"].clone();
    assert!(home.run(&["stop"]).status.success());
    let ones = one.data("list_targets", &json!({}));
    assert_eq!(
        (marked(&ones), ones["sessions"][0]["state"].as_str()),
        (vec![name.as_str().expect("a name")], Some("stopped"))
    );
}

#[test]
fn the_command_line_marks_the_session_that_exec_would_use() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let own = client.execute("1")["session"].as_str().expect("a name").to_owned();
    client.data("open_session", &json!({"name": "other"}));
    let told = home.run(&["sessions"]).stdout;
    let column = |line: &str| line.split_whitespace().nth(6).map(str::to_owned);
    let of = |name: &str| told.lines().find(|line| line.starts_with(&format!("{name} "))).and_then(column);
    assert_eq!(told.lines().next().and_then(column).as_deref(), Some("MINE"), "{told}");
    assert_eq!((of(&own).as_deref(), of("other").as_deref()), (Some("yes"), Some("-")), "{told}");
    let listed: Value = serde_json::from_str(&home.run(&["sessions", "--json"]).stdout).expect("JSON");
    assert_eq!(marked(&listed), [own.as_str()]);
    let listed = home.run_with(&[("PYLAIR_SESSION", "other")], &["sessions", "--json"]).stdout;
    assert_eq!(marked(&serde_json::from_str(&listed).expect("JSON")), ["other"]);
    // With two clients equally near, `exec` would have to be told which.
    let _beside = home.another_client(&[]);
    let listed: Value = serde_json::from_str(&home.run(&["sessions", "--json"]).stdout).expect("JSON");
    assert!(listed["sessions"].as_array().is_some_and(|all| all.iter().all(|session| session.get("mine").is_none())));
}

/// The tools whose target may be left out, each with what else it needs.
fn own_tools() -> [(&'static str, Value); 8] {
    [
        ("interrupt", json!({})),
        ("save_session", json!({})),
        ("get_history", json!({})),
        ("export_session", json!({"format": "py"})),
        ("branch_session", json!({"name": "branch"})),
        ("undo", json!({})),
        ("restart_session", json!({})),
        ("close_session", json!({})),
    ]
}

#[test]
fn without_a_target_tools_mean_the_callers_own_session() {
    let home = Home::new();
    let (mut one, mut other) = (home.another_client(&[]), home.another_client(&[]));
    other.execute("x = 'of the other'");
    for (tool, arguments) in own_tools() {
        let failed = one.failure(tool, &arguments);
        assert_eq!(failed["kind"], "no_session", "{tool}: {failed}");
        assert!(failed["hint"].as_str().is_some_and(|hint| hint.contains("execute opens one")), "{failed}");
    }
    let sessions = one.data("list_targets", &json!({"kind": "session"}))["sessions"].clone();
    assert_eq!(sessions.as_array().map(Vec::len), Some(1), "none was opened: {sessions}");
    let own = one.execute("x = 'own'")["session"].clone();
    one.execute("x = 'changed'");
    for (tool, arguments) in own_tools() {
        let told = one.data(tool, &arguments);
        let named = ["session", "closed", "name"].iter().map(|key| &told[key]).find(|name| name.is_string());
        match tool {
            "export_session" => assert!(told["text"].as_str().is_some_and(|text| text.contains("x = 'own'")), "{told}"),
            "branch_session" => assert_eq!(named, Some(&json!("branch"))),
            _ => assert_eq!(named, Some(&own), "{tool}: {told}"),
        }
        if tool == "undo" {
            assert_eq!(one.execute("x")["result"], "'own'");
        }
    }
    assert_eq!(other.execute("x")["result"], "'of the other'");
    // What ran in a session that was closed can still be read.
    let history = one.data("get_history", &json!({}));
    assert_eq!(history["session"], own, "{history}");
    let sessions = one.data("list_targets", &json!({"kind": "session"}));
    assert_eq!(marked(&sessions), [""; 0], "it has none now");
}

#[test]
fn commands_without_a_target_mean_the_session_that_exec_would_use() {
    let home = Home::new();
    let mut client = home.initialized_client();
    for args in [&["interrupt"][..], &["sessions", "export", "-f", "py"]] {
        let told = home.run(args);
        assert_eq!(told.status.code(), Some(2), "{told:?}");
        assert!(told.stderr.contains("you have no session yet"), "{told:?}");
    }
    client.execute("x = 'own'");
    let told = home.run(&["interrupt"]);
    assert_eq!((told.status.code(), told.stdout.as_str()), (Some(0), "nothing was running\n"));
    let told = home.run(&["sessions", "export", "-f", "py"]);
    assert!(told.stdout.contains("x = 'own'"), "{told:?}");
    client.data("open_session", &json!({"name": "other"}));
    client.data("execute", &json!({"code": "y = 2", "target": "other"}));
    let told = home.run_with(&[("PYLAIR_SESSION", "other")], &["sessions", "export", "-f", "py"]);
    assert!(told.stdout.contains("y = 2"), "{told:?}");
}

#[test]
fn over_http_a_client_with_a_session_has_one_of_its_own_and_one_without_has_none() {
    let home = Home::new();
    let server = home.serve();
    let id = server.initialize();
    let call = |tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = server.post(&message).header("Mcp-Session-Id", &id).send().message();
        answer["result"]["structuredContent"].clone()
    };
    call("execute", json!({"code": "x = 1"}));
    let listed = call("list_targets", json!({"kind": "session"}));
    assert_eq!(marked(&listed).len(), 1, "{listed}");
    assert_eq!(call("close_session", json!({}))["closed"], marked(&listed)[0]);
    let about = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "stateless", "version": "1"},
    });
    let params = json!({"name": "close_session", "arguments": {}, "_meta": about});
    let stateless = server
        .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", "close_session")
        .send()
        .message();
    let failed = &stateless["result"]["structuredContent"];
    assert_eq!(failed["kind"], "no_session", "{stateless}");
    assert!(failed["hint"].as_str().is_some_and(|hint| hint.contains("pass as `target`")), "{stateless}");
}

/// A request to the daemon's Unix socket, as another command than ours would make it.
fn ask(home: &Home, method: &str, path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(home.places().socket()).expect("the daemon listens");
    let head = format!("{method} {path} HTTP/1.0\r\nHost: pylair\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).expect("the daemon reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the daemon answers");
    answer
}

fn open_and_close(by: &mut Client, name: &str) {
    by.data("open_session", &json!({"name": name}));
    by.data("close_session", &json!({"target": name}));
}

fn why(client: &mut Client, name: &str) -> String {
    let failed = client.failure("execute", &json!({"code": "1", "target": name}));
    assert_eq!(failed["kind"], "closed_session");
    failed["message"].as_str().expect("words").to_owned()
}

fn rest(server: &Server, target: &str) -> String {
    let body = json!({"code": "1", "target": target}).to_string();
    server.request("POST", "/api/execute", body).header("Content-Type", "application/json").send().body
}

#[test]
fn whoever_finds_a_session_closed_is_told_who_closed_it() {
    let home = Home::new();
    let server = home.serve();
    let (mut one, mut other) = (home.another_client(&[]), home.another_client(&[]));
    open_and_close(&mut one, "a");
    let words = "the session `a` was closed: the MCP client it (sh, process ";
    assert_eq!(why(&mut one, "a"), "the session `a` was closed: you closed it");
    let seen = why(&mut other, "a");
    assert!(seen.starts_with(words) && seen.ends_with(&format!("process {}) closed it", one.pid())), "{seen}");
    let told = home.run(&["exec", "-t", "a", "1"]);
    assert!(told.status.code() == Some(2) && told.stderr.contains(words), "{told:?}");
    assert!(rest(&server, "a").contains(words), "{}", rest(&server, "a"));
    // By a command.
    one.data("open_session", &json!({"name": "b"}));
    let closed = ask(&home, "POST", "/api/sessions/close", r#"{"target": "b"}"#);
    assert!(closed.contains(r#"{"closed":"b"}"#), "{closed}");
    let seen = why(&mut one, "b");
    assert!(seen.contains("a command started by ") && seen.contains(", process "), "{seen}");
    // With a token.
    one.data("open_session", &json!({"name": "c"}));
    let body = json!({"target": "c"}).to_string();
    server.request("POST", "/api/sessions/close", body).header("Content-Type", "application/json").send();
    let seen = why(&mut one, "c");
    assert!(seen.starts_with("the session `c` was closed: the client http with the token `"), "{seen}");
    // The next session says what became of the one before, also when that was closed by somebody else.
    let name = one.execute("x = 1")["session"].as_str().expect("a name").to_owned();
    one.data("close_session", &json!({}));
    assert!(one.execute("1")["notes"].to_string().contains("the one before is gone (you closed it)"));
    other.data("close_session", &json!({"target": name}));
    let notes = one.execute("1")["notes"].to_string();
    assert!(notes.contains("the one before is gone (the MCP client it (sh, process "), "{notes}");
    // The next daemon still knows.
    home.run(&["exec", "-t", "a", "1"]);
    drop((one, other, server));
    let told = finish(home.command_of_another(&["exec", "-t", "a", "1"], &[]), b"");
    assert!(told.stderr.contains(words), "{told:?}");
}
