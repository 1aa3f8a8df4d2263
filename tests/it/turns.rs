//! One thread serves everybody, so whatever somebody sends, prints or asks for may not keep it for long. Every home looks for polls that
//! did (`support/home.rs`); here is what is large enough to be one.

use serde_json::{Value, json};

use crate::support::{Client, Home, Server, text_of};

const MB: usize = 1 << 20;

/// What masking reads over and over if it is careless, as a result, as output, as an error.
#[test]
fn what_looks_like_many_secrets_keeps_nobody_waiting() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let result = client.execute_text("'password=#\\n' * 50000");
    assert!(result.contains("password=#"), "{}", &result[..200]);
    let lines = "lines = ''.join(f'SERVICE_{n}_PASSWORD=hunter{n}\\n' for n in range(30000))";
    for code in ["lines", "print(lines)", "raise ValueError(lines)", "print(repr(lines) * 4)", "[lines, lines]"] {
        let answer = client.execute(&format!("{lines}\n{code}"));
        assert!(answer["outcome"] == "ok" || answer["outcome"] == "raised", "{code}: {}", answer["outcome"]);
    }
    let secrets = "password=#,[".repeat(MB / 12);
    let answer = client.execute(&format!("x = '''{secrets}'''\nlen(x)"));
    assert_eq!(answer["result"], secrets.len().to_string());
    let history = client.call("get_history", &json!({"target": answer["session"]}));
    let history = text_of(&history);
    assert!(!history.contains("hunter29") && history.contains("***masked***"), "{}", history.len());
}

/// Much of what a session gives back, through both forms of an answer and as resources.
#[test]
fn what_a_session_prints_shows_and_returns_may_be_large() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let answer = client.call(
        "execute",
        &json!({"code": "import sys\nfor n in range(200_000): print('line', n, 'of it')\nprint('rare', file=sys.stderr)\n'é' * 3_000_000",
                "max_chars": 1_000_000}),
    );
    assert!(text_of(&answer).contains("rare"), "{}", text_of(&answer).len());
    let answer = client.data(
        "execute",
        &json!({"code": "print('x' * 12_000_000)\nprint('rare', file=sys.stderr)", "max_chars": 1_000_000, "output": "json"}),
    );
    assert_eq!(answer["stderr"], "rare\n");
    let id = client
        .request("resources/read", &json!({"uri": format!("pylair://output/{}", answer["job"].as_str().unwrap())}));
    assert!(client.answer(id)["result"]["contents"][0]["text"].as_str().unwrap().starts_with("xxx"));
    let code = "class Page:\n    def _repr_html_(self): return '<p>' + 'é' * 6_000_000\nPage()";
    let answer = client.execute(code);
    let html = answer["displays"].as_array().unwrap().iter().find(|display| display["mime"] == "text/html");
    let id = client.request("resources/read", &json!({"uri": html.expect("it is shown")["resource"]}));
    assert!(client.answer(id)["result"]["contents"][0]["text"].as_str().unwrap().len() > 12_000_000);
    client.execute("big = {f'key {n}': ['value'] * 3 for n in range(300_000)}");
    for arguments in [json!({"path": "big", "max_items": 100_000, "depth": 4}), json!({"path": "big", "full": true})] {
        client.call("inspect", &arguments);
    }
    client.call("export_session", &json!({"target": answer["session"], "format": "ipynb"}));
}

fn large_calls(client: &mut Client) {
    let padding = "# padding\n".repeat(12 * MB / 10);
    let answer = client.execute(&format!("{padding}1 + 1"));
    assert_eq!(answer["result"], "2");
    let numbers: Vec<u32> = (0..500_000).collect();
    client.call("set_variable", &json!({"path": "numbers", "value": numbers}));
    assert_eq!(client.execute("sum(numbers)")["result"], "124999750000");
    client.call("complete_code", &json!({"code": format!("{}\nimpo", "# password=\n".repeat(MB / 12))}));
    client.failure("execute", &json!({"code": "1", "target": "t".repeat(8 * MB)}));
    client.failure("execute", &json!({"code": "1", "n".repeat(8 * MB): 1}));
}

#[test]
fn what_a_client_sends_over_stdio_may_be_large() {
    let home = Home::new();
    let mut client = Client::start(home.command(&["mcp", "--tools", "all"]));
    client.initialize();
    large_calls(&mut client);
    let id = client.request("tools/call", &json!({"name": "x".repeat(8 * MB), "arguments": {}}));
    assert!(client.answer(id)["error"]["message"].as_str().unwrap().len() < 10_000);
    let id = client.request("resources/read", &json!({"uri": "pylair://".repeat(MB)}));
    assert!(client.answer(id)["error"].is_object());
    client.send_bytes(format!("[{}\n", "1,".repeat(8 * MB)).as_bytes());
    assert_eq!(client.next().unwrap()["error"]["code"], -32700);
    client.send_bytes(format!("{}\n", " ".repeat(16 * MB)).as_bytes());
    client.send_bytes(format!("{}\n", json!([1, "x".repeat(8 * MB)])).as_bytes());
    assert_eq!(client.next().unwrap()["error"]["code"], -32600);
}

fn call(name: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
}

#[test]
fn what_comes_and_goes_over_http_may_be_large() {
    let home = Home::new();
    let server: Server = home.serve();
    let id = server.initialize();
    let send = |message: &Value| server.post(message).header("Mcp-Session-Id", &id).send().message();
    let open = call("open_session", &json!({"name": "main", "sandbox": "open"}));
    assert_ne!(send(&open)["result"]["isError"], true);
    let code = format!("{}print('x' * 3_000_000)", "# padding\n".repeat(MB));
    let answer =
        send(&call("execute", &json!({"code": code, "target": "main", "max_chars": 1_000_000, "output": "json"})));
    assert!(answer["result"]["structuredContent"]["stdout"].as_str().unwrap().len() > 900_000);
    let body = json!({"code": code, "target": "main", "max_chars": 1_000_000}).to_string();
    let request = || server.request("POST", "/api/execute", body.clone()).header("Content-Type", "application/json");
    let answer = request().send();
    assert!(answer.status == 200 && answer.body.len() > 3_000_000, "{}", answer.body.len());
    for (path, body) in [
        ("/api/complete", json!({"target": "main", "code": format!("{}impo", "x = 1\n".repeat(MB))}).to_string()),
        ("/api/execute", format!("[{}", "1,".repeat(4 * MB))),
        (
            "/api/failures",
            json!({"test": "t.py::test_a", "message": "m", "traceback": "password=#\n".repeat(MB)}).to_string(),
        ),
        ("/api/sessions/find", json!({"target": "t".repeat(4 * MB)}).to_string()),
    ] {
        let answer = server.request("POST", path, body).header("Content-Type", "application/json").send();
        assert!(answer.status < 500, "{path}: {}", answer.status);
    }
    let upload = server.request("POST", "/files/upload?target=main&path=a.bin", vec![b'\r'; 16 * MB]).send();
    assert_eq!(upload.status, 200, "{upload:?}");
    let read = call("read_file", &json!({"path": "a.bin", "target": "main", "max_bytes": MB}));
    assert_ne!(send(&read)["result"]["isError"], true);
    for path in ["/api/history?target=main&max_chars=1000000", "/api/export?target=main&format=html", "/api/failures"] {
        assert_eq!(server.request("GET", path, "").send().status, 200, "{path}");
    }
}
