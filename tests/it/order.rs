//! Calls of one sender to one session run in the order they came; those of others are told that it is busy.

use std::{fs, process::Stdio};

use pylair_core::session::{OnTimeout, Work};
use serde_json::{Value, json};

use crate::doors::Visitor;
use crate::support::{Client, Home, PATIENCE, WAIT_FOREVER, on_newest_python, text_of};

/// Sends calls in one write, as an agent does that makes several in one message. Returns their ids.
fn send_all(client: &mut Client, calls: &[(&str, Value)]) -> Vec<i64> {
    static NEXT: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(10_000);
    let ids: Vec<_> = calls.iter().map(|_| NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)).collect();
    let line = |(id, (tool, arguments)): (&i64, &(&str, Value))| {
        let params = json!({"name": tool, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string() + "\n"
    };
    let lines: String = ids.iter().zip(calls).map(line).collect();
    client.send_bytes(lines.as_bytes());
    ids
}

fn run(code: &str) -> (&'static str, Value) {
    ("execute", json!({"code": code, "output": "json"}))
}

fn result(client: &mut Client, id: i64) -> Value {
    let answer = client.answer(id);
    assert_ne!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["structuredContent"].clone()
}

fn failure(client: &mut Client, id: i64) -> Value {
    let answer = client.answer(id);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["structuredContent"].clone()
}

/// A cell that waits until `open_gate`, and what is run before that.
fn gated(before: &str) -> String {
    format!("{before}\nwith open('gate') as gate: gate.read()")
}

fn open_gate(home: &Home) {
    fs::write(home.work().join("gate"), "").expect("the cell reads");
}

/// A client with a session, in whose directory there is a gate.
fn client_with_gate(home: &Home) -> Client {
    let mut client = home.initialized_client();
    client.execute("import os\nos.mkfifo('gate')\nseen = []");
    client
}

/// Waits until a cell has set a variable: what only looks goes ahead of what waits.
fn until_set(client: &mut Client, name: &str, target: Option<&str>) {
    let looked_for = match target {
        Some(target) => json!({"path": name, "target": target}),
        None => json!({"path": name}),
    };
    while client.call("inspect", &looked_for)["isError"] == true {}
}

fn note(report: &Value, beginning: &str) -> String {
    let notes = report["notes"].as_array().expect("there are notes");
    let found = notes.iter().filter_map(Value::as_str).find(|note| note.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no note begins with `{beginning}`: {report}")).to_owned()
}

#[test]
fn calls_in_one_message_run_in_the_order_they_came() {
    let home = Home::new();
    let mut client = home.initialized_client();
    // The first of them opens the session.
    let codes: Vec<_> = (0..12).map(|number| format!("seen = [*globals().get('seen', ()), {number}]")).collect();
    let calls: Vec<_> = codes.iter().map(|code| run(code)).collect();
    let ids = send_all(&mut client, &calls);
    for (number, id) in ids.iter().enumerate() {
        let report = result(&mut client, *id);
        assert_eq!((&report["outcome"], &report["cell"]), (&json!("ok"), &json!(number + 1)), "{report}");
    }
    assert_eq!(client.execute("seen")["result"], json!(format!("{:?}", (0..12).collect::<Vec<_>>())));
}

#[test]
fn an_answer_says_how_long_the_call_waited_and_for_what() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    let ids = send_all(&mut client, &[run(&gated("a = 1")), run("b = a + 1"), run("a + b")]);
    until_set(&mut client, "a", None);
    assert_eq!(client.data("get_status", &json!({}))["daemon"]["sessions"], 1);
    open_gate(&home);
    let first = result(&mut client, ids[0]);
    assert!(!first["notes"].to_string().contains("waited"), "{first}");
    let waited = note(&result(&mut client, ids[1]), "waited ");
    assert!(waited.ends_with(" s for cell 2"), "{waited}");
    let third = result(&mut client, ids[2]);
    assert!(note(&third, "waited ").ends_with(" s for cells 2 and 3"), "{third}");
    assert_eq!(third["result"], "3");
}

#[test]
fn sixteen_calls_wait_and_the_next_is_refused_in_words() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    let mut calls = vec![run("open('gate').read()")];
    calls.extend((0..17).map(|_| run("seen.append(1)")));
    let ids = send_all(&mut client, &calls);
    let refused = failure(&mut client, ids[17]);
    assert_eq!(refused["kind"], "busy");
    let told = refused["message"].as_str().expect("words");
    assert!(told.starts_with("16 calls wait already for session `") && told.contains("cells 2 to 18"), "{told}");
    assert!(refused["hint"].as_str().expect("words").contains("send it again"), "{refused}");
    open_gate(&home);
    for id in &ids[..17] {
        assert_eq!(result(&mut client, *id)["outcome"], "ok");
    }
    assert_eq!(client.execute("len(seen)")["result"], "16");
}

#[test]
fn waiting_counts_for_wait_s_and_not_for_timeout_s() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    let begun = send_all(&mut client, &[run("open('gate').read()")]);
    let waiting =
        client.data("execute", &json!({"code": "'done'", "wait_s": 0.01, "timeout_s": 0.5, "output": "json"}));
    assert_eq!((&waiting["outcome"], &waiting["duration_ms"]), (&json!("running"), &json!(0.0)), "{waiting}");
    let told = note(&waiting, "it has not begun");
    assert!(told.contains("waits for cell 2"), "{told}");
    let job = waiting["job"].as_str().expect("a job");
    // More time passes than the cell may run.
    let text = text_of(&client.call("get_job", &json!({"job": job, "wait_s": 0.6})));
    assert!(text.contains(&format!("Waiting as job {job}.")), "{text}");
    open_gate(&home);
    let done = client.data("get_job", &json!({"job": job, "output": "json"}));
    assert_eq!((&done["outcome"], &done["result"]), (&json!("ok"), &json!("'done'")), "{done}");
    result(&mut client, begun[0]);
}

#[test]
fn a_waiting_call_that_is_taken_back_never_runs() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    let ids = send_all(
        &mut client,
        &[run("open('gate').read()"), run("seen.append('cancelled')"), run("seen.append('kept')"), run("seen")],
    );
    let taken = client.data("execute", &json!({"code": "seen.append('job')", "wait_s": 0, "output": "json"}));
    client.notify("notifications/cancelled", &json!({"requestId": ids[1]}));
    let stopped = client.data("get_job", &json!({"job": taken["job"], "cancel": true, "output": "json"}));
    assert_eq!(stopped["outcome"], "interrupted", "{stopped}");
    note(&stopped, "it had not begun: nothing of it ran");
    open_gate(&home);
    for id in [ids[0], ids[2]] {
        assert_eq!(result(&mut client, id)["outcome"], "ok");
    }
    assert_eq!(result(&mut client, ids[3])["result"], "['kept']");
    assert_eq!(client.execute("seen")["result"], "['kept']");
}

#[test]
fn an_interrupt_stops_the_cell_that_runs_and_those_that_wait_go_on() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    let ids = send_all(&mut client, &[run(&format!("a = 1\n{WAIT_FOREVER}")), run("seen.append('next')")]);
    until_set(&mut client, "a", None);
    let session = client.data("list_targets", &json!({}))["sessions"][0]["name"].clone();
    let interrupted = client.data("interrupt", &json!({"target": session}));
    note(&interrupted, "1 call that waited for it goes on");
    assert_eq!(result(&mut client, ids[0])["outcome"], "interrupted");
    assert_eq!(result(&mut client, ids[1])["outcome"], "ok");
}

#[test]
fn what_a_client_left_waiting_does_not_begin_when_it_has_gone() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    let mut other = home.initialized_client();
    let session = client.data("list_targets", &json!({}))["sessions"][0]["name"].clone();
    let ids = send_all(&mut client, &[run(&gated("a = 1")), run("seen.append('unwanted')")]);
    let left = client.data("execute", &json!({"code": "seen.append('left')", "wait_s": 0, "output": "json"}));
    let running = other.data("get_status", &json!({"target": session}))["session"]["job"].clone();
    // It closes its input and does not wait for what is left.
    let (answers, _) = client.close();
    assert!(answers.iter().all(|answer| !ids.contains(&answer["id"].as_i64().unwrap_or_default())), "{answers:?}");
    open_gate(&home);
    assert_eq!(other.data("get_job", &json!({"job": running, "output": "json"}))["outcome"], "ok", "it had begun");
    let told = other.data("get_job", &json!({"job": left["job"], "output": "json"}));
    assert!(told["error"]["message"].as_str().is_some_and(|told| told.contains("its client left before")), "{told}");
    assert_eq!(other.data("execute", &json!({"code": "seen", "target": session, "output": "json"}))["result"], "[]");
}

#[test]
fn each_call_that_waits_is_answered_when_its_session_restarts_closes_or_dies() {
    let home = Home::new();
    let mut client = client_with_gate(&home);
    client.data("open_session", &json!({"name": "lab"}));
    let at = |code: &str| ("execute", json!({"code": code, "target": "lab", "output": "json"}));
    let ends = [
        (
            Some(("restart_session", json!({"target": "lab"}))),
            WAIT_FOREVER,
            "the session was restarted before it began",
        ),
        (None, "with open('gate') as gate: gate.read()\nos._exit(3)", "the session was set back before it began"),
        (Some(("close_session", json!({"target": "lab"}))), WAIT_FOREVER, "the session was closed before it began"),
    ];
    for (end, code, why) in ends {
        let code = format!("import os\nbegun = 1\n{code}");
        let ids = send_all(&mut client, &[at(&code), at("1"), ("undo", json!({"target": "lab"})), at("2")]);
        until_set(&mut client, "begun", Some("lab"));
        match end {
            Some((tool, arguments)) => {
                client.data(tool, &arguments);
            }
            None => open_gate(&home),
        }
        assert_ne!(client.answer(ids[0])["result"], Value::Null);
        for id in &ids[1..] {
            let told = failure(&mut client, *id);
            assert_eq!(told["kind"], "not_begun", "{told}");
            assert!(told["message"].as_str().expect("words").contains(why), "{told}");
        }
    }
}

#[test]
fn other_calls_have_their_turn_among_the_cells() {
    let home = Home::new();
    fs::write(home.work().join("script.py"), "seen.append('file')\n").expect("it can be written");
    let mut client = client_with_gate(&home);
    let session = client.data("list_targets", &json!({}))["sessions"][0]["name"].clone();
    let ids = send_all(
        &mut client,
        &[
            run(&gated("x = 1")),
            ("run_file", json!({"path": "script.py"})),
            run("seen.append('cell')"),
            ("set_variable", json!({"path": "x", "value": 2})),
            run("(seen, x)"),
            ("save_session", json!({"target": session})),
            ("restart_session", json!({"target": session, "keep_variables": true})),
            run("(seen, x)"),
            ("restart_session", json!({"target": session, "mode": "clear"})),
            run("y = 3"),
            ("branch_session", json!({"target": session, "name": "twig"})),
            run("y = 4"),
            ("execute", json!({"code": "y", "target": "twig", "output": "json"})),
        ],
    );
    open_gate(&home);
    assert_eq!(result(&mut client, ids[4])["result"], "(['file', 'cell'], 2)");
    note(&result(&mut client, ids[5]), "waited ");
    note(&result(&mut client, ids[6]), "waited ");
    assert_eq!(result(&mut client, ids[7])["result"], "(['file', 'cell'], 2)");
    note(&result(&mut client, ids[8]), "waited ");
    assert_eq!(result(&mut client, ids[12])["result"], "3");
    for id in [0, 1, 2, 3, 9, 10, 11].map(|at| ids[at]) {
        client.answer(id);
    }
    // Undo takes back the newest of the cells before it.
    let cell = client.execute("z = 1")["cell"].clone();
    let status = || json!({"target": session});
    let has_checkpoint =
        |status: &Value| status["session"]["checkpoints"].as_array().is_some_and(|made| made.contains(&cell));
    while !has_checkpoint(&client.data("get_status", &status())) {}
    let ids = send_all(&mut client, &[run(&gated("z = 2")), ("undo", status()), run("z")]);
    open_gate(&home);
    result(&mut client, ids[0]);
    note(&result(&mut client, ids[1]), "waited ");
    assert_eq!(result(&mut client, ids[2])["result"], "1");
}

#[test]
fn a_session_is_opened_before_the_call_behind_it_looks_for_it() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let ids = send_all(
        &mut client,
        &[
            ("open_session", json!({"name": "lab", "startup": "x = 'from the start'"})),
            ("execute", json!({"code": "x", "target": "lab", "output": "json"})),
            ("close_session", json!({"target": "lab"})),
            ("execute", json!({"code": "x", "target": "lab"})),
        ],
    );
    result(&mut client, ids[0]);
    // It may have been closed while it ran, but it was found.
    let ran = client.answer(ids[1])["result"].to_string();
    assert!(ran.contains("from the start") || ran.contains("was closed while this cell ran"), "{ran}");
    result(&mut client, ids[2]);
    assert_eq!(failure(&mut client, ids[3])["kind"], "closed_session");
}

#[test]
fn commands_of_one_process_tree_wait_for_each_other_but_not_for_ever() {
    let home = Home::new();
    let start = |code: &str| {
        let mut command = home.command(&["exec", code]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let end = |child: std::process::Child| {
        let output = child.wait_with_output().expect("it can be waited for");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let status = || -> Value {
        let listed = home.run(&["sessions", "--json"]);
        serde_json::from_str::<Value>(&listed.stdout).expect("JSON")["sessions"][0].clone()
    };
    home.run(&["exec", "import os\nos.mkfifo('gate')\nseen = []"]);
    let first = start(&gated("seen.append(1)"));
    while status()["busy"] != true {}
    let second = start("seen.append(2)\nseen");
    while status()["waiting"] != 1 {}
    open_gate(&home);
    assert_eq!(end(first).0, Some(0));
    let (code, told) = end(second);
    assert!(code == Some(0) && told.contains("[1, 2]") && told.contains("note: waited "), "{told}");
    // One that goes before its turn leaves nothing behind.
    let first = start(&gated("seen.append(3)"));
    while status()["busy"] != true {}
    let mut second = start("seen.append(4)");
    while status()["waiting"] != 1 {}
    second.kill().expect("it runs");
    second.wait().expect("it can be waited for");
    while status()["waiting"] == 1 {}
    open_gate(&home);
    end(first);
    assert_eq!(home.run(&["exec", "seen"]).stdout, "[1, 2, 3]\n");
}

#[test]
fn a_command_that_waited_too_long_is_told_what_runs() {
    let home = Home::new().set("PYLAIR_WAIT_S", "0.1");
    let mut client = client_with_gate(&home);
    let running = client.data("execute", &json!({"code": gated(""), "wait_s": 0, "output": "json"}));
    let refused = client.failure("undo", &json!({"target": running["session"]}));
    assert_eq!(refused["kind"], "busy", "{refused}");
    assert!(refused["hint"].as_str().expect("words").contains("the call waited 0 s for cell 2 of"), "{refused}");
    open_gate(&home);
    client.data("get_job", &json!({"job": running["job"], "wait_s": 60, "output": "json"}));
}

#[test]
fn what_an_mcp_session_over_http_left_waiting_does_not_begin_when_it_is_over() {
    let home = Home::new();
    let server = home.serve();
    let (gone, other) = (Visitor::with(&server, server.token.clone()), Visitor::with(&server, server.token.clone()));
    gone.call("open_session", &json!({"name": "lab", "sandbox": "open"}));
    let start =
        |code: &str| gone.call("execute", &json!({"code": code, "target": "lab", "wait_s": 0, "output": "json"}));
    let (running, waiting) = (start(WAIT_FOREVER), start("x = 1"));
    note(&waiting, "it has not begun");
    let ended = server.request("DELETE", "/mcp", "").with_token(&server.token).header("Mcp-Session-Id", gone.session());
    assert_eq!(ended.send().status, 204);
    other.call("interrupt", &json!({"target": "lab"}));
    let look = |job: &Value| other.call("get_job", &json!({"job": job, "output": "json"}));
    assert_eq!(look(&running["job"])["outcome"], "interrupted");
    let told = look(&waiting["job"]);
    assert!(told["error"]["message"].as_str().is_some_and(|told| told.contains("its client left before")), "{told}");
}

#[test]
fn another_sender_is_told_that_a_session_is_busy() {
    on_newest_python(async |core| {
        let session = core.session().await.session;
        let code = |code: &str| Work::Code { code: code.to_owned(), path: None };
        let one = &core.caller.sender;
        let other = pylair_core::order::Sender::new(pylair_core::order::SenderId::new_bridge());
        let start = async |sender, text: &str| {
            session.run_in_order(Some(sender), code(text), None, OnTimeout::Keep, core.by("test")).await
        };
        let running = start(one, WAIT_FOREVER).await.expect("it is idle");
        let waiting = start(one, "1").await.expect("it waits");
        assert!(waiting.waits().is_some() && running.waits().is_none());
        assert_eq!(start(&other, "1").await.expect_err("it is busy").kind(), "busy");
        session.interrupt(Some(&running.id)).await.expect("it stops");
        let ended = tokio::time::timeout(PATIENCE, waiting.ended()).await.expect("it comes to an end");
        assert_eq!(ended.result.as_deref(), Some("1"));
    });
}
