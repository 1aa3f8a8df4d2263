//! Test runs and failures over HTTP, from outside: both spellings of the routes, what is refused and how, and what changes, live.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use crate::support::{Home, POSTGRES, Response, Server, skip};

/// Runs a test with a server that keeps failures in SQLite, and with one that does in PostgreSQL.
fn on_each_database(name: &str, test: impl Fn(&Home, &Server)) {
    let home = Home::new();
    test(&home, &home.serve());
    match &*POSTGRES {
        Ok(cluster) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it can be made");
            let home = Home::new().set("PYLAIR_DATABASE", &runtime.block_on(cluster.database()));
            test(&home, &home.serve());
        }
        Err(why) => skip(name, why),
    }
}

fn get(server: &Server, path: &str) -> Response {
    server.request("GET", path, "").send()
}

fn post(server: &Server, path: &str, body: impl Into<Vec<u8>>) -> Response {
    server.request("POST", path, body).header("Content-Type", "application/json").send()
}

fn found(server: &Server, path: &str) -> Value {
    let response = get(server, path);
    assert_eq!(response.status, 200, "{path}: {response:?}");
    response.json()
}

fn record(server: &Server, message: &str) -> String {
    let body = json!({"test_name": "t.py::test_sum", "file_path": "t.py", "line_number": 3, "error_message": message,
        "traceback": "Traceback (most recent call last):\n", "locals": {"x": "None", "n": 3}});
    let response = post(server, "/api/failures", body.to_string());
    assert_eq!(response.status, 201, "{response:?}");
    let recorded = response.json();
    let id = recorded["failureId"].as_str().expect("it has an id").to_owned();
    assert_eq!(response.header("location"), Some(&*format!("/api/failures/{id}")));
    assert_eq!(recorded["sessionId"], format!("session_{id}"));
    id
}

/// A run with a test that passed and tests that failed, as the plugin reports it.
fn run_lines(run: &str, code: &str, outcomes: &[(&str, &str)]) -> String {
    let at = |second: usize| format!("2026-11-15T12:00:{second:02}Z");
    let mut lines = vec![
        json!({"ev": "run", "run": run, "at": at(0), "project": {"root": "/nowhere/shop", "name": "shop"}}),
        json!({"ev": "code", "run": run, "hash": code, "how": "files"}),
    ];
    for (number, (test, outcome)) in outcomes.iter().enumerate() {
        let mut line = json!({"ev": "test", "run": run, "nodeid": format!("test_shop.py::{test}"), "outcome": outcome,
            "phase": "call", "at": at(number + 1), "file": "test_shop.py", "line": 4});
        if *outcome == "failed" {
            line["failure"] = json!({"occurrence": format!("{run}-{number}"),
                "exception": {"type": "TypeError", "message": "unsupported operand type(s) for *: 'NoneType' and 'int'"},
                "frames": [{"file": "shop.py", "line": 9, "function": "total", "in_app": true,
                    "source": {"first": 9, "lines": ["    return price(name) * count"]},
                    "locals": [{"name": "name", "type": "str", "value": "'cake'"}]}],
                "text": "TypeError"});
        }
        lines.push(line);
    }
    lines.push(json!({"ev": "end", "run": run, "at": at(59), "exit_code": 1, "seconds": 1.0}));
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    lines.join("\n") + "\n"
}

fn report(server: &Server, run: &str, lines: &str) -> Response {
    let request = server.request("POST", &format!("/api/runs/{run}/records"), lines);
    request.header("Content-Type", "application/x-ndjson").send()
}

#[test]
fn a_failure_is_recorded_and_worked_through_in_either_spelling() {
    on_each_database("a_failure_is_recorded_and_worked_through_in_either_spelling", |_, server| {
        let id = record(server, "TypeError: 'NoneType' object is not subscriptable");
        let listed = found(server, "/api/failures?status=new");
        assert_eq!((&listed["total"], &listed["failures"][0]["id"]), (&json!(1), &json!(id)));
        assert_eq!(found(server, "/api/failures?status=resolved")["total"], 0);
        let shown = found(server, &format!("/api/failures/{id}"));
        assert_eq!((&shown["type"], &shown["status"]), (&json!("TypeError"), &json!("new")));
        assert_eq!(shown["progress"]["next"]["number"], 1);

        let found_out = json!({"failure_id": id, "principle_number": 1, "analysis": "it adds up"});
        let answer = post(server, "/api/debug", found_out.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["next_principle"]["number"], 2);
        let found_out = json!({"rule": "divide and conquer", "analysis": "the second half is right"});
        let answer = post(server, &format!("/api/failures/{id}/debug"), found_out.to_string()).json();
        assert_eq!((&answer["status"], &answer["current_principle"]["number"]), (&json!("in_progress"), &json!(4)));
        let shown = found(server, &format!("/api/failures/{id}"));
        let trail = shown["investigations_made"].as_array().expect("a trail");
        assert_eq!(
            (trail.len(), &trail[0]["rule"], &trail[1]["analysis"]),
            (2, &json!(1), &json!("the second half is right"))
        );

        let asked = found(server, &format!("/api/prompt?failure_id={id}&prompt_style=step_by_step"));
        assert!(asked["prompt"].as_str().is_some_and(|prompt| prompt.contains("it adds up")), "{asked}");
        assert_eq!(found(server, &format!("/api/prompts/{id}?style=step_by_step"))["prompt"], asked["prompt"]);
        assert_eq!(found(server, &format!("/api/prompts/{id}"))["style"], "detailed");
        let report = found(server, "/api/analytics?group_by=error_type&time_range=today&include_resolved=true");
        assert_eq!(
            (&report["total_failures"], &report["groups"][0]["id"]),
            (&json!(1), &json!("error_type:TypeError"))
        );
        assert_eq!(found(server, "/api/prompt?group_id=error_type:TypeError&style=concise")["samples"][0], id);
        assert!(
            found(server, "/api/docs?topic=principles")["docs"].as_str().is_some_and(|docs| docs.contains("Rule 9"))
        );
    });
}

#[test]
fn what_is_wrong_is_a_problem_that_says_how_it_would_be_right() {
    on_each_database("what_is_wrong_is_a_problem_that_says_how_it_would_be_right", |_, server| {
        let id = record(server, "ValueError: bad");
        let debug = format!("/api/failures/{id}/debug");
        let unverified = json!({"status": "resolved"}).to_string();
        let forced = json!({"status": "resolved", "force": true}).to_string();
        for (method, path, body, status, says) in [
            ("POST", "/api/failures", "{}", 422, "`test` is missing (it may be called `test_name`)"),
            ("POST", "/api/failures", r#"{"test": "  "}"#, 422, "names no test"),
            ("POST", "/api/failures", r#"{"test": 3}"#, 422, "`test` has to be a text, not 3"),
            ("POST", "/api/failures", r#"{"test": "t", "line": -1}"#, 422, "`line` has to be 0 or more, not -1"),
            ("POST", "/api/failures", "[1]", 422, "has to be an object, not a list"),
            ("POST", "/api/failures", r#"["t", null, null, "", "", null, null]"#, 422, "has to be an object"),
            ("POST", "/api/failures", r#"{"test": "t", "mesage": "m"}"#, 422, "`mesage` is not known here"),
            ("POST", "/api/failures", r#"{"test": "t", "test_name": "u"}"#, 422, "are the same"),
            ("POST", "/api/failures", r#"{"test": "t", "test": "u"}"#, 422, "duplicate field `test`"),
            ("POST", "/api/failures", "{", 400, "not valid"),
            ("POST", "/api/failures", "", 400, "the body is empty"),
            ("POST", "/api/failures", "{\"test\": \"\\ud800\"}", 400, "not valid"),
            ("GET", "/api/failures/zzzzzz", "", 404, &*id),
            ("GET", "/api/failures/%00", "", 404, "nothing of this name"),
            ("GET", "/api/failures?status=weird", "", 422, "in_progress"),
            ("GET", "/api/failures?group=gnone", "", 404, "the newest are"),
            ("GET", "/api/failures?limit=many", "", 422, "`limit` has to be a whole number, not `many`"),
            ("GET", "/api/failures?limit=0", "", 422, "`limit` has to be from 1 to 1000, not 0"),
            ("GET", "/api/failures?limit=1001", "", 422, "`limit` has to be from 1 to 1000"),
            ("GET", "/api/failures?limit=-1", "", 422, "`limit` has to be from 1 to 1000"),
            ("GET", "/api/failures?stauts=new", "", 422, "`stauts` is not known here"),
            ("GET", "/api/failures?limit=1&limit=2", "", 422, "`limit` is there twice"),
            ("GET", "/api/runs?limit=0", "", 422, "`limit` has to be from 1 to 1000"),
            ("GET", "/api/groups?limit=0", "", 422, "`limit` has to be from 1 to 1000"),
            ("GET", "/api/analytics?include_resolved=perhaps", "", 422, "`include_resolved` has to be true or false"),
            ("GET", "/api/failures?after=nonsense", "", 422, "not valid"),
            ("POST", "/api/debug", "{}", 422, "failure_id"),
            ("POST", "/api/debug", r#"{"failure_id": "zzzzzz", "analysis": "x"}"#, 404, &*id),
            ("POST", &*debug, "{}", 422, "neither an analysis nor a status"),
            ("POST", &*debug, r#"{"rule": 10, "analysis": "x"}"#, 422, "9 If You Didn't Fix It"),
            ("POST", &*debug, r#"{"rule": true, "analysis": "x"}"#, 422, "there is no rule `true`"),
            ("POST", &*debug, r#"{"rule": -1, "analysis": "x"}"#, 422, "there is no rule `-1`"),
            ("POST", &*debug, r#"{"rule": 3, "analysis": ["x"]}"#, 422, "`analysis` has to be a text, not a list"),
            ("POST", &*debug, r#"{"rule": "guess", "analysis": "x"}"#, 422, "1 Understand the System"),
            ("POST", &*debug, &*unverified, 409, "pylair test"),
            ("POST", &*debug, &*forced, 403, "command line"),
            ("GET", "/api/prompt", "", 422, "failure_id or group_id"),
            ("GET", "/api/prompt?group_id=gnone", "", 404, "the newest are"),
            ("GET", "/api/prompt?failure_id=zzzzzz", "", 404, &*id),
            ("GET", "/api/prompts/zzzzzz", "", 404, &*id),
            ("GET", &*format!("/api/prompts/{id}?style=shouting"), "", 422, "step_by_step"),
            ("GET", &*format!("/api/prompts/{id}?max_tokens=0"), "", 422, "`max_tokens` has to be from 400 to 100000"),
            ("GET", &*format!("/api/prompt?failure_id={id}&max_tokens=50"), "", 422, "`max_tokens` has to be from 400"),
            ("GET", "/api/analytics?group_by=colour", "", 422, "error_type, file_path, pattern, fingerprint"),
            ("GET", "/api/analytics?time_range=aeon", "", 422, "all, today, week, month"),
            ("GET", "/api/docs?topic=cooking", "", 422, "principles"),
            ("GET", "/api/runs/none", "", 404, "no run"),
            ("GET", "/api/groups/gnone", "", 404, "the newest are"),
            ("POST", "/api/groups/split", r#"{"failures": []}"#, 422, "none is named"),
            ("POST", "/api/groups/split", r#"{"failures": ["zzzzzz"]}"#, 404, "no failure"),
            ("POST", "/api/groups/merge", r#"{"into": "g", "from": "h"}"#, 404, "no group"),
            ("DELETE", "/api/failures", "", 405, "another method"),
        ] {
            let method = if method == "DELETE" { "DELETE" } else { method };
            let response = server.request(method, path, body).header("Content-Type", "application/json").send();
            assert_eq!(response.status, status, "{method} {path} {body}: {response:?}");
            assert_eq!(response.header("content-type"), Some("application/problem+json"), "{response:?}");
            let problem = response.json();
            assert_eq!((&problem["status"], &problem["detail"]), (&json!(status), &problem["message"]), "{problem}");
            let said = format!("{} {}", problem["detail"], problem["hint"]);
            assert!(said.contains(says), "{method} {path} {body}: {said}");
            for word in ["invalid type", "expected struct", "variant", "u32", "usize", "untagged"] {
                assert!(!said.contains(word), "{method} {path} {body} says {word}: {said}");
            }
            assert_eq!(response.header("access-control-allow-origin"), None);
        }
        assert_eq!(found(server, "/api/analytics")["total_failures"], 1, "nothing of that was taken");
    });
}

#[test]
fn a_traceback_of_50_mb_is_cut_and_more_is_refused() {
    let home = Home::new();
    let server = home.serve();
    let body = |bytes: usize| json!({"test": "t", "message": "E: m", "traceback": "x".repeat(bytes)}).to_string();
    let response = post(&server, "/api/failures", body(50 << 20));
    assert_eq!(response.status, 201, "{:?}", response.status);
    let id = response.json()["id"].as_str().expect("an id").to_owned();
    let shown = get(&server, &format!("/api/failures/{id}"));
    assert!(shown.body.len() < 1 << 20, "{}", shown.body.len());
    let cut = shown.json()["seen"][0]["evidence"]["cut"].clone();
    assert_eq!(cut, json!(["text"]));
    let refused = server.request("POST", "/api/failures", "").header("Content-Length", "99999999").send();
    assert_eq!((refused.status, &refused.json()["kind"]), (413, &json!("too_large")));
}

#[test]
fn a_run_is_reported_and_its_failures_come_in_pages_groups_and_events() {
    on_each_database("a_run_is_reported_and_its_failures_come_in_pages_groups_and_events", |_, server| {
        let mut events = BufReader::new(server.request("GET", "/api/failures/events", "").open()).lines();
        let mut next_event = |name: &str| {
            let is_meant = |line: &String| line == &format!("event: {name}");
            let told = events.by_ref().map(|line| line.expect("the stream goes on")).find(is_meant);
            told.expect("the event comes");
            let data = events.next().expect("with data").expect("in UTF-8");
            serde_json::from_str::<Value>(data.strip_prefix("data: ").expect("data")).expect("in JSON")
        };
        let first = run_lines("run-1", "c1", &[("test_a", "failed"), ("test_b", "failed"), ("test_c", "passed")]);
        let taken = report(server, "run-1", &first);
        assert_eq!(taken.status, 200, "{taken:?}");
        assert_eq!(taken.json()["taken"], 6);
        let id = taken.json()["failures"]["run-1-0"]["id"].as_str().expect("it is known").to_owned();
        let told = next_event("failure");
        assert_eq!((&told["changed"], &told["status"]), (&json!("failure"), &json!("new")));
        assert_eq!(next_event("run")["run"], "run-1");
        assert_eq!(report(server, "run-1", &first).json()["taken"], 6, "it may be sent again");

        let page = found(server, "/api/failures?limit=1");
        assert_eq!((&page["total"], page["failures"].as_array().map(Vec::len)), (&json!(2), Some(1)));
        let rest = found(server, &format!("/api/failures?limit=1&after={}", page["next"].as_str().expect("more")));
        assert_ne!(rest["failures"][0]["id"], page["failures"][0]["id"]);
        assert!(rest["next"].is_null());
        let run = found(server, "/api/runs/run-1");
        assert_eq!((&run["counts"]["failed"], run["failures"].as_array().map(Vec::len)), (&json!(2), Some(2)));
        assert_eq!(found(server, "/api/runs?project=shop")["runs"][0]["run"], "run-1");

        let group = found(server, "/api/groups")["groups"][0].clone();
        assert_eq!(group["failures"], 2, "one cause: {group}");
        let split = post(server, "/api/groups/split", json!({"failures": [id]}).to_string());
        assert_eq!(split.status, 200, "{split:?}");
        assert_eq!(found(server, &format!("/api/failures/{id}"))["group"], split.json()["group"]);
        let merged = json!({"into": group["id"], "from": split.json()["group"]}).to_string();
        assert_eq!(post(server, "/api/groups/merge", merged).json()["group"], group["id"]);
        assert_eq!(found(server, &format!("/api/failures/{id}"))["group"], group["id"]);
        assert_eq!(next_event("group")["changed"], "group");

        let second = run_lines("run-2", "c2", &[("test_a", "passed")]);
        assert_eq!(report(server, "run-2", &second.replace("12:00", "13:00")).status, 200);
        assert_eq!(found(server, &format!("/api/failures/{id}"))["status"], "resolved");
        for (run, lines, status) in [
            ("run-3", "{}\n".to_owned(), 422),
            ("run-3", first, 422),
            ("run-3", run_lines("run-3", "c", &[]).lines().nth(1).expect("code").to_owned(), 409),
        ] {
            assert_eq!(report(server, run, &lines).status, status, "{lines}");
        }
    });
}

#[test]
fn the_scope_tests_opens_failures_and_nothing_else_does() {
    let home = Home::new();
    let server = home.serve();
    let id = record(&server, "ValueError: bad");
    let token = |name: &str, scope: &str| {
        let added = home.run(&["token", "add", name, "--scope", scope]);
        added.stdout.split_whitespace().last().expect("it is printed").to_owned()
    };
    let (tests, run) = (token("ci", "tests"), token("runner", "run"));
    let asked = |path: &str, token: &str| server.request("GET", path, "").with_token(token).send().status;
    for path in ["/api/failures", &format!("/api/failures/{id}"), "/api/analytics", "/api/runs", "/api/groups"] {
        assert_eq!((asked(path, &tests), asked(path, &run)), (200, 403), "{path}");
    }
    assert_eq!((asked("/api/docs", &tests), asked("/api/docs", &run)), (200, 200));
    let found_out = json!({"analysis": "seen", "author": "somebody else"}).to_string();
    let request = server.request("POST", &format!("/api/failures/{id}/debug"), found_out);
    assert_eq!(request.header("Content-Type", "application/json").with_token(&tests).send().status, 200);
    let shown = found(&server, &format!("/api/failures/{id}"));
    assert_eq!(shown["investigations_made"][0]["author"], "ci", "the token says who it is");
}

#[test]
fn the_document_and_the_page_need_no_token_and_load_nothing() {
    let home = Home::new();
    let server = home.serve();
    let document = server.request("GET", "/openapi.json", "").without("Authorization").send();
    assert_eq!(document.status, 200, "{document:?}");
    let document = document.json();
    assert_eq!(document["openapi"], "3.1.0");
    for path in ["/api/failures", "/api/failures/{id}", "/api/debug", "/api/prompts/{id}", "/api/sessions", "/api/apps"]
    {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let page = server.request("GET", "/docs", "").without("Authorization").send();
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("style-src 'sha256-"), "{policy}");
    assert!(page.body.contains("/api/analytics") && !page.body.contains("<script"));
    assert_eq!(server.request("GET", "/api/failures", "").without("Authorization").send().status, 401);
}
