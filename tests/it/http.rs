//! The HTTP door: who is let in, and which session a call without a target means in either era.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::support::{Home, Request, Server, WAIT_FOREVER, skip, why_no_namespaces};

fn call(code: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "execute", "arguments": {"code": code, "output": "json"},
    }})
}

/// The same as a stateless client says it.
fn stateless_message(code: &str) -> Value {
    let mut message = call(code);
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "stateless", "version": "1"},
    });
    message
}

fn with_stateless_headers(request: Request) -> Request {
    request
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", "execute")
}

fn stateless(server: &Server, code: &str) -> Request {
    with_stateless_headers(server.post(&stateless_message(code)))
}

#[test]
fn only_the_token_our_host_and_our_origin_come_in() {
    let home = Home::new();
    let server = home.serve();
    let post = || server.post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    let origin = format!("http://127.0.0.1:{}", server.port);
    for (request, status) in [
        (post().without("Authorization"), 401),
        (post().header("Authorization", "Bearer guessed"), 401),
        (post().header("Host", "evil.example"), 403),
        (post().header("Origin", "http://evil.example"), 403),
        (post().header("Origin", "null"), 403),
    ] {
        let response = request.send();
        assert_eq!(response.status, status, "{response:?}");
    }
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"},
    }});
    let response = server.post(&message).header("Origin", &origin).send();
    assert_eq!(response.status, 200, "{response:?}");
}

/// As in a container that was entered: who leads the session of processes has no pid there, and the pid of the daemon is also one
/// inside of every sandbox.
#[test]
fn it_serves_as_the_first_process_of_a_container() {
    if let Some(reason) = why_no_namespaces() {
        return skip("it_serves_as_the_first_process_of_a_container", &reason);
    }
    let home = Home::new();
    let served = home.command(&["serve", "--port", "0"]);
    let mut command = Command::new("unshare");
    // The kernel counts no processes of the real root's, who needs no namespace of users for this anyway.
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--mount", "--mount-proc", "--kill-child=TERM"]);
    command.arg(served.get_program()).args(served.get_args()).env_clear().current_dir(home.work());
    command.envs(served.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("unshare starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let first = lines.next().expect("it says where it is");
    let port = first.strip_suffix("/mcp").and_then(|line| line.rsplit_once(':')?.1.parse().ok()).expect("a port");
    let health = Request::new(port, "GET", "/health", "").send();
    assert_eq!(health.status, 200, "{health:?}");
    let token = std::fs::read_to_string(home.places().token()).expect("there is a token");
    let message = stateless_message("import os; os.getpid()");
    let answer = with_stateless_headers(Request::post(port, &message)).with_token(token.trim()).send().message();
    assert_eq!(answer["result"]["structuredContent"]["outcome"], "ok", "{answer:#}");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    assert_eq!(lines.count(), 4, "the rest of its greeting, until it leaves");
}

#[test]
fn each_legacy_session_has_a_default_session_of_its_own() {
    let home = Home::new();
    let server = home.serve();
    let (one, other) = (server.initialize(), server.initialize());
    let run = |id: &str, code: &str| {
        let message = server.post(&call(code)).header("Mcp-Session-Id", id).send().message();
        message["result"]["structuredContent"].clone()
    };
    assert_eq!(run(&one, "x = 1")["outcome"], "ok");
    assert_eq!(run(&one, "x")["result"], "1");
    let elsewhere = run(&other, "x");
    assert_eq!(elsewhere["error"]["type"], "NameError", "{elsewhere}");
}

#[test]
fn a_stateless_call_gets_a_fresh_session_and_its_handle() {
    let home = Home::new();
    let server = home.serve();
    let first = stateless(&server, "x = 'kept'").send().message()["result"]["structuredContent"].clone();
    let handle = first["session"].as_str().unwrap_or_else(|| panic!("no session in {first}")).to_owned();
    let second = stateless(&server, "'x' in globals()").send().message()["result"]["structuredContent"].clone();
    assert_eq!(second["result"], "False");
    assert_ne!(second["session"], handle.as_str());
    let mut message = call("x");
    message["params"]["arguments"]["target"] = handle.as_str().into();
    let session = server.initialize();
    let named = server.post(&message).header("Mcp-Session-Id", &session).send().message();
    assert_eq!(named["result"]["structuredContent"]["result"], "'kept'");
}

#[test]
fn closing_the_stream_of_a_stateless_call_interrupts_the_cell() {
    let home = Home::new();
    let server = home.serve();
    let mut message = stateless_message(WAIT_FOREVER);
    message["params"]["_meta"]["progressToken"] = json!("endless");
    let stream = with_stateless_headers(server.post(&message)).open();
    let mut lines = BufReader::new(&stream).lines().map(|line| line.expect("the server answers in time"));
    lines.find(|line| line.contains("waiting")).expect("progress is told");
    drop(lines);
    drop(stream);
    let session = server.initialize();
    let call = |name: &str, arguments: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        server.post(&message).header("Mcp-Session-Id", &session).send().message()["result"]["structuredContent"].clone()
    };
    let job = call("list_targets", json!({}))["sessions"][0]["job"].clone();
    let report = call("get_job", json!({"job": job, "output": "json"}));
    assert_eq!(report["outcome"], "interrupted", "{report}");
}

#[test]
fn an_unknown_handle_is_an_error_and_never_a_new_session() {
    let home = Home::new();
    let server = home.serve();
    let session = server.initialize();
    let mut message = call("1");
    message["params"]["arguments"]["target"] = "s-000000".into();
    let answer = server.post(&message).header("Mcp-Session-Id", &session).send().message();
    let result = &answer["result"];
    assert_eq!((&result["isError"], &result["structuredContent"]["kind"]), (&json!(true), &json!("unknown_session")));
    let listed =
        json!({"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "list_targets", "arguments": {}}});
    let listed = server.post(&listed).header("Mcp-Session-Id", &session).send().message();
    assert_eq!(listed["result"]["structuredContent"]["sessions"], json!([]));
}

#[test]
fn no_session_is_given_the_port_that_the_kernel_chose() {
    let home = Home::new();
    let server = home.serve();
    let mut client = home.client();
    client.initialize();
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let rules = json!({"profile": "workspace", "allow_net": [format!("{host}:{}", server.port)]});
        let refused = client.failure("open_session", &json!({"sandbox": rules}));
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.ends_with("in `allow_net` is pylair's own door"), "{refused}");
    }
}
