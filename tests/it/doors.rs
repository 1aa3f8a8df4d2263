//! The HTTP door for several people: tokens with scopes and owners, what each may do, and what nobody sees of others.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
};

use pylair_core::{caller::Scope, rights};
use pylair_mcp::tools::TABLE;
use serde_json::{Value, json};

use crate::support::{AppProcess, Home, Request, Response, Server, WAIT_FOREVER};

/// Somebody with a token, introduced as a legacy client.
pub struct Visitor<'a> {
    server: &'a Server,
    token: String,
    session: String,
}

impl<'a> Visitor<'a> {
    pub fn new(home: &Home, server: &'a Server, name: &str, scope: &str, owner: &str) -> Self {
        let token = add(home, &["add", name, "--scope", scope, "--owner", owner]);
        Self::with(server, token)
    }

    pub fn with(server: &'a Server, token: String) -> Self {
        let session = server.initialize_as(&token);
        Self { server, token, session }
    }

    pub fn session(&self) -> &str {
        &self.session
    }

    fn ask(&self, method: &str, params: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params});
        let request = self.server.post(&message).with_token(&self.token).header("Mcp-Session-Id", &self.session);
        request.send().message()
    }

    pub fn call(&self, tool: &str, arguments: &Value) -> Value {
        let answer = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}));
        answer.get("result").unwrap_or_else(|| panic!("{tool}: {answer}"))["structuredContent"].clone()
    }

    fn run(&self, code: &str) -> Value {
        self.call("execute", &json!({"code": code, "output": "json"}))
    }

    /// The session that its calls go to, in which this has run; none where there is no sandbox.
    pub fn session_of(&self, code: &str) -> Option<String> {
        let answer = self.run(code);
        if answer["kind"] == "sandbox_unavailable" {
            println!("skipped: {answer}");
        }
        answer["session"].as_str().map(str::to_owned)
    }

    pub fn upload(&self, path: &str, body: &str) -> Response {
        self.server.request("POST", path, body).with_token(&self.token).send()
    }

    pub fn get(&self, path: &str) -> Request {
        self.server.request("GET", path, "").with_token(&self.token)
    }

    fn post(&self, path: &str, body: &Value) -> Request {
        self.server.request("POST", path, body.to_string()).with_token(&self.token)
    }
}

pub fn add(home: &Home, args: &[&str]) -> String {
    let made = home.run(&[&["token"], args].concat());
    assert!(made.status.success(), "{made:?}");
    made.stdout.trim().to_owned()
}

#[test]
fn a_token_opens_the_door_until_it_is_taken_back() {
    let home = Home::new();
    let server = home.serve();
    let ci = Visitor::new(&home, &server, "ci", "run", "alice");
    assert_eq!(ci.run("1 + 1")["result"], "2");
    let name = ci.call("list_targets", &json!({}))["sessions"][0]["name"].as_str().expect("a name").to_owned();
    let mut events = BufReader::new(ci.get(&format!("/api/events?target={name}")).open());
    let mut head = String::new();
    events.read_line(&mut head).expect("it begins");
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    assert!(home.run(&["token", "revoke", "ci"]).status.success());
    let refused = ci.get("/api/sessions").send();
    assert_eq!((refused.status, refused.json()["kind"].as_str()), (401, Some("unauthorized")));
    let message = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list"});
    let in_session = server.post(&message).with_token(&ci.token).header("Mcp-Session-Id", &ci.session).send();
    assert_eq!(in_session.status, 401, "{in_session:?}");
    // The stream that was open has come to its end.
    events.read_to_string(&mut head).expect("it ends");
    let again = home.run(&["token", "revoke", "ci"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(again.stderr.contains("there is no token called `ci`"), "{}", again.stderr);
}

#[test]
fn the_owners_own_token_is_rotated_at_once() {
    let home = Home::new();
    let server = home.serve();
    let status = |token: &str| server.request("GET", "/api/status", "").with_token(token).send().status;
    assert_eq!(home.run(&["token"]).stdout.trim(), server.token);
    let rotated = add(&home, &["rotate"]);
    assert_eq!((status(&server.token), status(&rotated)), (401, 200));
    assert_eq!(home.run(&["token"]).stdout.trim(), rotated);
    let mode = fs::metadata(home.places().token()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_token_is_over_when_its_time_is_and_is_never_taken_from_an_address() {
    let home = Home::new();
    let server = home.serve();
    let over = home.expired_token("old", Scope::Read);
    let good = add(&home, &["add", "new", "--scope", "read", "--expires", "1h"]);
    let get = |path: &str| server.request("GET", path, "");
    assert_eq!(get("/api/sessions").with_token(&over).send().status, 401);
    assert_eq!(get("/api/sessions").with_token(&good).send().status, 200);
    for path in [format!("/api/sessions?token={good}"), format!("/api/sessions?access_token={good}")] {
        assert_eq!(get(&path).without("Authorization").send().status, 401);
    }
    let listed: Value = serde_json::from_str(&home.run(&["token", "list", "--json"]).stdout).expect("JSON");
    let token = |name: &str| {
        let tokens = listed["tokens"].as_array().expect("a list");
        tokens.iter().find(|token| token["name"] == name).unwrap_or_else(|| panic!("{name} in {listed}")).clone()
    };
    assert_eq!((&token("old")["expired"], &token("new")["expired"]), (&json!(true), &json!(false)));
    assert_eq!((&token("new")["owner"], &token("new")["scopes"]), (&json!("new"), &json!(["read"])));
    assert_eq!(token("own")["scopes"], json!(["admin"]));
    assert!(!listed.to_string().contains(&good));
    let kept = fs::read_to_string(home.places().tokens()).expect("it is there");
    assert!(!kept.contains(&good), "only a hash is kept");
}

#[test]
fn each_scope_is_shown_and_may_call_what_it_includes() {
    let home = Home::new();
    let server = Server::start(home.command(&["serve", "--port", "0", "--tools", "all"]), &home.places());
    for scope in Scope::ALL {
        let visitor = Visitor::new(&home, &server, scope.name(), scope.name(), "alice");
        let includes = |needed: Scope| match scope {
            Scope::Admin => true,
            Scope::Run => matches!(needed, Scope::Read | Scope::Run),
            _ => scope == needed,
        };
        let listed = visitor.ask("tools/list", &json!({}));
        let listed: BTreeSet<_> = listed["result"]["tools"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|tool| tool["name"].as_str().expect("a name").to_owned())
            .collect();
        for tool in TABLE {
            // How things are used may be read by whoever has any token; who runs tests waits for them.
            let may = tool.name == "read_docs"
                || (tool.name == "get_job" && scope == Scope::Tests)
                || includes(rights::of_tool(tool.name).expect("every tool has a scope"));
            assert_eq!(listed.contains(tool.name), may, "{} is listed for {scope:?}", tool.name);
            // An argument that no tool has: whoever gets as far as that may call it.
            let answer = visitor.call(tool.name, &json!({"no such argument": 1, "sandbox": "sealed"}));
            let expected = if may { "bad_argument" } else { "not_allowed" };
            assert_eq!(answer["kind"], expected, "{} called with {scope:?}: {answer}", tool.name);
        }
        let routes = [
            ("GET", "/api/status", Scope::Read),
            ("GET", "/api/sessions", Scope::Read),
            ("GET", "/api/history?target=x", Scope::Read),
            ("GET", "/api/events?target=x", Scope::Read),
            ("GET", "/api/export?target=x&format=py", Scope::Read),
            ("GET", "/api/output/x-1", Scope::Read),
            ("GET", "/files/download/x?target=x", Scope::Read),
            ("POST", "/api/complete", Scope::Read),
            ("POST", "/api/execute", Scope::Run),
            ("POST", "/api/interrupt", Scope::Run),
            ("POST", "/api/sessions", Scope::Run),
            ("POST", "/api/sessions/close", Scope::Run),
            ("POST", "/api/sessions/find", Scope::Run),
            ("POST", "/files/upload?target=x", Scope::Run),
            ("POST", "/api/a route nobody thought about", Scope::Admin),
        ];
        for (method, path, needed) in routes {
            let path = path.replace(' ', "%20");
            let response = server.request(method, &path, "not JSON").with_token(&visitor.token).send();
            let kind = if response.status == 200 { json!("none") } else { response.json()["kind"].clone() };
            assert_eq!(kind == "not_allowed", !includes(needed), "{method} {path} with {scope:?}: {response:?}");
        }
        let resource = visitor.ask("resources/list", &json!({}));
        assert_eq!(resource.get("error").is_none(), includes(Scope::Read), "{resource}");
    }
    assert_eq!(server.request("GET", "/api/status", "").send().status, 200, "nobody stopped the daemon");
}

#[test]
fn run_gives_sandboxed_sessions_only() {
    let home = Home::new();
    let server = home.serve();
    let runner = Visitor::new(&home, &server, "runner", "run", "me");
    let report = runner.run("import os\nos.path.exists('/root') and os.listdir('/root')");
    assert_eq!(report["outcome"], "ok", "{report}");
    let sandbox = |sessions: &Value| sessions["sessions"][0]["sandbox"].as_str().map(str::to_owned);
    assert_ne!(sandbox(&runner.call("list_targets", &json!({}))).as_deref(), Some("open"));
    for arguments in [
        json!({"sandbox": "open"}),
        json!({"python": "/bin/sh"}),
        json!({"cwd": "/"}),
        json!({"preload": ["json"]}),
        json!({"env": {"PYTHONPATH": "/tmp"}}),
    ] {
        let refused = runner.call("open_session", &arguments);
        assert_eq!(refused["kind"], "not_allowed", "{arguments}: {refused}");
        assert!(refused["hint"].as_str().is_some_and(|hint| hint.contains("`admin`")), "{refused}");
        let refused = runner.post("/api/sessions", &arguments).send();
        assert_eq!((refused.status, &refused.json()["kind"]), (403, &json!("not_allowed")), "{arguments}");
    }
    assert_eq!(runner.post("/api/sessions", &json!({"from": {"cwd": "/"}})).send().status, 403);
    // A session of the same owner that has no sandbox: to be looked at, and nothing else.
    let owner = Visitor::with(&server, server.token.clone());
    owner.call("open_session", &json!({"name": "bare", "sandbox": "open"}));
    owner.call("execute", &json!({"code": "x = 41", "target": "bare"}));
    assert_eq!(runner.call("inspect", &json!({"target": "bare", "path": "x"}))["preview"], "41");
    for (tool, arguments) in [
        ("execute", json!({"code": "x = 42", "target": "bare", "output": "json"})),
        ("set_variable", json!({"path": "x", "value": 42, "target": "bare"})),
        ("call", json!({"path": "print", "target": "bare"})),
        ("run_file", json!({"path": "x.py", "target": "bare"})),
        ("restart_session", json!({"target": "bare"})),
        ("undo", json!({"target": "bare"})),
        ("branch_session", json!({"target": "bare"})),
        ("interrupt", json!({"target": "bare"})),
        ("save_session", json!({"target": "bare"})),
        ("close_session", json!({"target": "bare"})),
        ("install_packages", json!({"target": "bare", "packages": ["x"]})),
        ("write_file", json!({"target": "bare", "path": "x", "content": ""})),
        ("delete_file", json!({"target": "bare", "path": "x"})),
        ("execute", json!({"code": "1", "target": "app:web"})),
    ] {
        assert_eq!(runner.call(tool, &arguments)["kind"], "not_allowed", "{tool}");
    }
    let refused = runner.post("/api/execute", &json!({"code": "1", "target": "bare"})).send();
    assert_eq!((refused.status, &refused.json()["kind"]), (403, &json!("not_allowed")), "{refused:?}");
    let refused =
        runner.server.request("POST", "/files/upload?target=bare&path=x", "x").with_token(&runner.token).send();
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(owner.call("inspect", &json!({"target": "bare", "path": "x"}))["preview"], "41");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of everything that takes a handle")]
fn sessions_of_one_owner_do_not_exist_for_another() {
    let home = Home::new().set("PYLAIR_HTTP_RATE", "0");
    let server = home.serve();
    let alice = Visitor::new(&home, &server, "alice-1", "run", "alice");
    let opened = alice.call("open_session", &json!({"name": "lab", "keep": true}));
    let handle = opened["handle"].as_str().unwrap_or_else(|| panic!("no handle in {opened}")).to_owned();
    let report =
        alice.call("execute", &json!({"code": "x = 'hers'\nprint('y' * 200_000)", "target": "lab", "output": "json"}));
    let job = report["job"].as_str().unwrap_or_else(|| panic!("no job in {report}")).to_owned();
    let save = alice.call("save_session", &json!({"target": "lab"}))["save"].as_str().expect("a save").to_owned();
    alice.call("write_file", &json!({"target": "lab", "path": "hers.txt", "content": "hers"}));
    // A second token of hers sees it all; nobody else's sees that there is anything, the server's owner included.
    let second = Visitor::new(&home, &server, "alice-2", "run", "alice");
    assert_eq!(second.call("inspect", &json!({"target": "lab", "path": "x"}))["preview"], "'hers'");
    assert_eq!(second.get(&format!("/api/output/{job}")).send().status, 200);
    let bob = Visitor::new(&home, &server, "bob", "run", "bob");
    let own = Visitor::with(&server, server.token.clone());
    for other in [&bob, &own] {
        assert_eq!(other.call("list_targets", &json!({}))["sessions"], json!([]));
        assert_eq!(other.get("/api/sessions").send().json()["sessions"], json!([]));
        assert_eq!(other.ask("resources/list", &json!({}))["result"]["resources"], json!([]));
        for (target, missing) in [("lab", "nix"), (handle.as_str(), "aaaaaaaa")] {
            for (tool, arguments) in [
                ("execute", json!({"code": "x", "output": "json"})),
                ("run_file", json!({"path": "x.py"})),
                ("interrupt", json!({})),
                ("restart_session", json!({})),
                ("close_session", json!({"forget": true})),
                ("undo", json!({})),
                ("branch_session", json!({})),
                ("save_session", json!({})),
                ("get_history", json!({})),
                ("export_session", json!({"format": "py"})),
                ("install_packages", json!({"packages": ["x"]})),
                ("inspect", json!({"path": "x"})),
                ("read_source", json!({"path": "x"})),
                ("set_variable", json!({"path": "x", "value": 1})),
                ("call", json!({"path": "print"})),
                ("get_status", json!({})),
                ("list_files", json!({})),
                ("read_file", json!({"path": "hers.txt"})),
                ("write_file", json!({"path": "x", "content": ""})),
                ("delete_file", json!({"path": "hers.txt"})),
            ] {
                let answer = |target: &str| {
                    let mut arguments = arguments.clone();
                    arguments["target"] = target.into();
                    other.call(tool, &arguments).to_string().replace(target, "TARGET")
                };
                assert_eq!(answer(target), answer(missing), "{tool}");
                assert!(answer(target).contains("unknown_session"), "{tool}: {}", answer(target));
            }
            for path in [
                "/api/history?target=TARGET",
                "/api/events?target=TARGET",
                "/api/export?target=TARGET&format=ipynb",
                "/files/download/hers.txt?target=TARGET",
            ] {
                let answer = |target: &str| {
                    let response = other.get(&path.replace("TARGET", target)).send();
                    (response.status, response.body.replace(target, "TARGET"))
                };
                assert_eq!(answer(target), answer(missing), "{path}");
                assert_eq!(answer(target).0, 404, "{path}");
            }
            for path in ["/api/execute", "/api/interrupt", "/api/sessions/close", "/api/sessions/find", "/api/complete"]
            {
                let answer = |target: &str| {
                    let body = if path.ends_with("execute") || path.ends_with("complete") {
                        json!({"code": "x", "target": target})
                    } else {
                        json!({"target": target})
                    };
                    let response = other.post(path, &body).send();
                    (response.status, response.body.replace(target, "TARGET"))
                };
                assert_eq!(answer(target), answer(missing), "{path}");
                assert_eq!(answer(target).0, 404, "{path}");
            }
            for uri in ["pylair://history/TARGET", "pylair://export/TARGET.py", "pylair://file/TARGET/hers.txt"] {
                let answer = |target: &str| {
                    let answer = other.ask("resources/read", &json!({"uri": uri.replace("TARGET", target)}));
                    answer["error"].to_string().replace(target, "TARGET")
                };
                assert_eq!(answer(target), answer(missing), "{uri}");
                assert!(answer(target).contains("there is no session"), "{uri}: {}", answer(target));
            }
        }
        let missing = "aaaaaaaa-1";
        for (what, answer) in [
            (
                "get_job",
                Box::new(|job: &str| other.call("get_job", &json!({"job": job})).to_string())
                    as Box<dyn Fn(&str) -> String>,
            ),
            ("/api/output", Box::new(|job: &str| other.get(&format!("/api/output/{job}")).send().body)),
            ("/api/interrupt", Box::new(|job: &str| other.post("/api/interrupt", &json!({"job": job})).send().body)),
            (
                "output",
                Box::new(|job: &str| {
                    other.ask("resources/read", &json!({"uri": format!("pylair://output/{job}")})).to_string()
                }),
            ),
            (
                "display",
                Box::new(|job: &str| {
                    other.ask("resources/read", &json!({"uri": format!("pylair://display/{job}/1")})).to_string()
                }),
            ),
        ] {
            assert_eq!(answer(&job).replace(&job, "JOB"), answer(missing).replace(missing, "JOB"), "{what}");
            assert!(!answer(&job).contains("yyy"), "{what}");
        }
        for restore in [save.as_str(), "lab"] {
            let refused = other.call("open_session", &json!({"restore": restore}));
            assert_eq!(refused["kind"], "unknown_save", "{refused}");
            assert!(!refused["hint"].to_string().contains("lab-"), "{refused}");
        }
        // The name is free for everybody else.
        assert_eq!(other.call("open_session", &json!({"name": "lab"}))["name"], "lab");
        other.call("close_session", &json!({"target": "lab"}));
    }
    assert_eq!(bob.get("/api/status").send().json()["sessions"], 0);
    assert_eq!(bob.call("get_status", &json!({}))["daemon"]["data"], "");
    assert_eq!(alice.call("inspect", &json!({"target": "lab", "path": "x"}))["preview"], "'hers'");
    assert_eq!(alice.call("open_session", &json!({"name": "back", "restore": save}))["name"], "back");
    alice.call("close_session", &json!({"target": "lab", "forget": true}));
}

#[test]
fn an_mcp_session_belongs_to_the_token_that_opened_it() {
    let home = Home::new();
    let server = home.serve();
    let alice = Visitor::new(&home, &server, "alice", "run", "alice");
    let bob = add(&home, &["add", "bob", "--scope", "run"]);
    let list = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/list"});
    let ask = |id: &str| server.post(&list).with_token(&bob).header("Mcp-Session-Id", id).send();
    let (hers, none) = (ask(&alice.session), ask("7b1c1e0e-0000-4000-8000-000000000000"));
    assert_eq!((hers.status, &hers.body), (none.status, &none.body));
    assert!(hers.status >= 400, "{hers:?}");
    let stream = server.request("GET", "/mcp", "").with_token(&bob).header("Accept", "text/event-stream");
    assert!(stream.header("Mcp-Session-Id", &alice.session).send().status >= 400);
    assert!(alice.ask("tools/list", &json!({})).get("result").is_some());
}

#[test]
fn a_task_of_one_owner_does_not_exist_for_another() {
    let home = Home::new();
    let server = home.serve();
    let (alice, bob) = (add(&home, &["add", "alice", "--scope", "run"]), add(&home, &["add", "bob", "--scope", "run"]));
    let stateless = |token: &str, method: &str, mut params: Value| {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        });
        let name =
            params.get("name").or_else(|| params.get("taskId")).and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let request = server.post(&message).with_token(token);
        let request = request.header("MCP-Protocol-Version", "2026-07-28").header("Mcp-Method", method);
        request.header("Mcp-Name", &name).send().message()
    };
    let made =
        stateless(&alice, "tools/call", json!({"name": "execute", "arguments": {"code": WAIT_FOREVER, "wait_s": 0}}));
    let task = made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task in {made}")).to_owned();
    for method in ["tasks/get", "tasks/cancel"] {
        let hers = stateless(&bob, method, json!({"taskId": task}));
        let none = stateless(&bob, method, json!({"taskId": "none"}));
        assert_eq!(hers["error"].to_string().replace(&task, "none"), none["error"].to_string(), "{method}");
        assert!(hers.get("error").is_some(), "{hers}");
    }
    assert!(stateless(&alice, "tasks/get", json!({"taskId": task})).get("result").is_some());
    assert!(stateless(&alice, "tasks/cancel", json!({"taskId": task})).get("result").is_some());
}

#[test]
fn secrets_are_not_kept_in_history_or_logs_and_the_session_has_them_all_the_same() {
    let home = Home::new();
    let server = home.serve();
    let own = Visitor::with(&server, server.token.clone());
    own.call("open_session", &json!({"name": "lab", "startup": "db_password = 'startup-pw'"}));
    let code =
        format!("api_key = 'hunter2-key'\ntoken_count = 5\nmine = '{}'\n{{'password': 'result-pw'}}", server.token);
    let ran = own.call("execute", &json!({"code": code, "target": "lab", "output": "json"}));
    assert_eq!(ran["result"], "{'password': 'result-pw'}", "callers are answered what is");
    let ran =
        own.call("execute", &json!({"code": "len(api_key), len(db_password)", "target": "lab", "output": "json"}));
    assert_eq!(ran["result"], "(11, 10)");
    let history = own.call("get_history", &json!({"target": "lab"})).to_string();
    let exported = own.call("export_session", &json!({"target": "lab", "format": "py"}));
    let text = exported["text"].as_str().expect("it is short").to_owned();
    for (what, kept) in [("history", &history), ("export", &text)] {
        assert!(kept.contains("api_key = '***masked***'") && kept.contains("token_count = 5"), "{what}: {kept}");
        for secret in [server.token.as_str(), "hunter2-key", "startup-pw", "result-pw"] {
            assert!(!kept.contains(secret), "{secret} in the {what}: {kept}");
        }
    }
    assert!(exported["notes"].to_string().contains("***masked***"), "{exported}");
    own.call("close_session", &json!({"target": "lab"}));
    drop(server);
    let journal = fs::read(home.places().journal()).expect("there is a journal");
    let journal = String::from_utf8_lossy(&journal);
    assert!(!journal.contains("result-pw") && !journal.contains("db_password = 'startup-pw'"));
}

#[test]
fn apps_and_processes_do_not_exist_for_whoever_may_not_reach_them() {
    let home = Home::new();
    let server = Server::start(home.command(&["serve", "--port", "0", "--tools", "all"]), &home.places());
    let mut app = AppProcess::start(&home, "", "app_id='shop'");
    let own = Visitor::with(&server, server.token.clone());
    let runner = Visitor::new(&home, &server, "runner", "run", "me");
    let reader = Visitor::new(&home, &server, "reader", "read", "me");
    assert_eq!(own.call("list_targets", &json!({}))["apps"][0]["id"], "shop");
    assert_eq!(own.get("/api/apps").send().json()["apps"][0]["id"], "shop");
    assert_eq!(own.call("execute", &json!({"code": "6 * 7", "target": "shop", "output": "json"}))["result"], "42");
    let started = own.call("execute", &json!({"code": WAIT_FOREVER, "target": "shop", "wait_s": 0, "output": "json"}));
    let job = started["job"].as_str().unwrap_or_else(|| panic!("no job in {started}"));
    for visitor in [&runner, &reader] {
        assert_eq!(visitor.call("list_targets", &json!({}))["apps"], json!([]));
        assert_eq!(visitor.get("/api/apps").send().status, 403);
        for target in ["app:shop", &format!("pid:{}", app.pid), &format!("app:shop@{}", app.pid)] {
            for tool in ["inspect", "get_status", "dump_stacks", "complete_code", "read_source"] {
                let refused = visitor.call(tool, &json!({"target": target}));
                assert_eq!(refused["kind"], "not_allowed", "{tool} of {target}: {refused}");
            }
        }
        // By its mere name it is as unknown as any other, and nothing says that it is there.
        let unknown = visitor.call("get_status", &json!({"target": "shop"}));
        assert_eq!(unknown["kind"], "unknown_session", "{unknown}");
        assert!(!unknown["hint"].to_string().contains("shop"), "{unknown}");
    }
    let find = |target: &str| runner.post("/api/sessions/find", &json!({"target": target})).send();
    for target in ["app:shop", "shop", &format!("pid:{}", app.pid)] {
        let found = find(target);
        assert!(found.status >= 400 && !found.body.contains("pid\":"), "{target}: {found:?}");
    }
    let refused = runner.post("/api/interrupt", &json!({"job": job})).send();
    assert_eq!((refused.status, &refused.json()["kind"]), (403, &json!("not_allowed")), "{refused:?}");
    assert_eq!(runner.call("attach", &json!({"pid": app.pid}))["kind"], "not_allowed");
    own.call("interrupt", &json!({"job": job}));
    app.signal(rustix::process::Signal::TERM);
    app.wait();
    // Nor how it ended.
    let gone = runner.call("get_status", &json!({"target": "shop"}));
    assert_eq!(gone["kind"], "unknown_session", "{gone}");
}
