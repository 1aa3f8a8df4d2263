//! The tools through the built binary: what is listed, one good call of each, and the usual mistakes.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};

use crate::support::{Home, python2, skip, text_of};

#[test]
fn the_tools_and_what_they_may_do_are_listed() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let id = client.request("tools/list", &json!({}));
    let tools = client.answer(id)["result"]["tools"].as_array().expect("a list").clone();
    let listed: Vec<String> = tools
        .iter()
        .map(|tool| {
            let hint = |name: &str| tool["annotations"][name].as_bool().expect("every tool is annotated");
            let marks = [
                ("readOnlyHint", "reads"),
                ("destructiveHint", "destroys"),
                ("idempotentHint", "repeatable"),
                ("openWorldHint", "world"),
            ];
            let marks: Vec<_> = marks.iter().filter(|(name, _)| hint(name)).map(|(_, mark)| *mark).collect();
            format!("{}: {}", tool["name"].as_str().expect("a name"), marks.join(" "))
        })
        .collect();
    assert_eq!(
        listed,
        [
            "execute: destroys world",
            "run_file: destroys world",
            "get_job: ",
            "interrupt: destroys repeatable",
            "open_session: ",
            "restart_session: destroys repeatable",
            "close_session: destroys repeatable",
            "undo: destroys",
            "branch_session: ",
            "save_session: ",
            "get_history: reads repeatable",
            "export_session: reads repeatable",
            "install_packages: destroys world",
            "list_targets: reads repeatable",
            "inspect: reads repeatable",
            "read_source: reads repeatable",
            "dump_stacks: reads repeatable",
            "attach: ",
            "set_variable: destroys world",
            "call: destroys world",
            "read_logs: reads repeatable",
            "screenshot: destroys world",
            "get_status: reads repeatable",
            "run_tests: destroys world",
            "list_failures: reads repeatable",
            "get_failure: reads repeatable",
            "debug_failure: ",
            "analyze_failures: reads repeatable",
            "write_debug_prompt: reads repeatable",
            "read_docs: reads repeatable",
        ]
    );
}

#[test]
fn execute_answers_in_readable_text_without_structure() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let result = client.call("execute", &json!({"code": "print('hello')\nx = 20\nx + 1"}));
    assert_eq!(result.get("structuredContent"), None);
    let text = text_of(&result);
    let (before, facts) = text.split_once("[cell 1: ok, session it-1, ").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(before, "hello\nOut[1]: 21\n");
    assert!(facts.ends_with(" ms, new: x]\nNote: this is a new session."), "{facts}");
    let raised = client.call("execute", &json!({"code": "1 / 0"}));
    assert_ne!(raised["isError"], true, "user code that raises is a result");
    assert!(text_of(&raised).contains("ZeroDivisionError: division by zero\n[cell 2: raised"), "{raised}");
}

#[test]
fn a_session_lives_through_all_its_tools() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let opened = client.data("open_session", &json!({"name": "lab", "description": "for the test", "env": {"A": "1"}}));
    assert_eq!(
        (&opened["name"], &opened["state"], &opened["sandbox"]),
        (&json!("lab"), &json!("idle"), &json!("open"))
    );
    let run = json!({"code": "import os\nos.environ['A']", "target": "session:lab", "output": "json"});
    assert_eq!(client.data("execute", &run)["result"], "'1'");
    let handle = json!({"code": "x = 1", "target": opened["handle"], "output": "json"});
    assert_eq!(client.data("execute", &handle)["session"], "lab");
    let listed = client.data("list_targets", &json!({"kind": "session"}));
    assert_eq!(listed["sessions"][0]["name"], "lab");
    let status = client.data("get_status", &json!({"target": "lab"}));
    assert_eq!((&status["session"]["cell"], &status["session"]["description"]), (&json!(2), &json!("for the test")));
    assert_eq!(client.data("get_status", &json!({}))["daemon"]["sessions"], 1);
    let interrupted = client.data("interrupt", &json!({"target": "lab"}));
    assert_eq!(interrupted["notes"], json!(["nothing was running"]));
    for (tool, prose) in [
        ("get_status", "lab ("),
        ("save_session", "Saved 2 variables of lab as lab-"),
        ("interrupt", "Nothing was running in lab."),
    ] {
        let answer = client.call(tool, &json!({"target": "lab"}));
        let text = answer["content"][0]["text"].as_str().expect("a text");
        assert!(text.starts_with(prose) && answer["structuredContent"].is_object(), "{tool}: {text}");
    }
    client.data("restart_session", &json!({"target": "lab"}));
    let gone = json!({"code": "'x' in globals()", "target": "lab", "output": "json"});
    assert_eq!(client.data("execute", &gone)["result"], "False");
    assert_eq!(client.data("close_session", &json!({"target": "lab"})), json!({"closed": "lab"}));
    let failure = client.failure("execute", &json!({"code": "1", "target": "lab"}));
    assert_eq!(failure["kind"], "closed_session");
    assert_eq!(client.data("list_targets", &json!({})), json!({"sessions": [], "apps": [], "failures": []}));
}

#[test]
fn an_unknown_tool_is_a_protocol_error_that_names_the_known_ones() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let id = client.begin("run_python", &json!({}));
    let error = client.answer(id)["error"].clone();
    assert_eq!(error["code"], -32602, "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("there is no tool `run_python`; there are execute, run_file, get_job"), "{message}");
}

#[test]
fn wrong_arguments_get_one_clear_error_with_a_hint() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "taken"}));
    for (tool, arguments, kind, part) in [
        ("execute", json!({}), "bad_argument", "`code` is missing"),
        ("execute", json!({"code": 5}), "bad_argument", "`code` has to be a text, not 5"),
        ("execute", json!({"code": "1", "session": "x"}), "bad_argument", "`session` is not known here"),
        ("execute", json!({"code": "1", "wait_s": -1}), "bad_argument", "wait_s is -1"),
        (
            "execute",
            json!({"code": "1", "on_timeout": "explode"}),
            "bad_argument",
            "`on_timeout` has to be one of keep, rollback, not `explode`",
        ),
        ("execute", json!({"code": "1", "target": "nowhere"}), "unknown_session", "there is no session `nowhere`"),
        ("interrupt", json!({"target": "nowhere"}), "unknown_session", "open sessions: taken"),
        ("get_job", json!({}), "bad_argument", "`job` is missing"),
        ("close_session", json!({}), "no_session", "you have no session yet"),
        (
            "restart_session",
            json!({"target": "taken", "mode": "hard"}),
            "bad_argument",
            "`mode` has to be one of restart, clear, not `hard`",
        ),
        ("open_session", json!({"name": "taken"}), "name_taken", "called `taken` already"),
        ("open_session", json!({"name": "../etc"}), "bad_argument", "cannot be the name"),
        ("open_session", json!({"cwd": "/nowhere"}), "bad_argument", "`/nowhere` is not a directory"),
        ("open_session", json!({"sandbox": "padded"}), "bad_argument", "padded"),
        ("open_session", json!({"preload": ["os; import this"]}), "bad_argument", "is not the name of a module"),
        ("get_status", json!({"target": "nowhere"}), "unknown_session", "nowhere"),
        (
            "list_targets",
            json!({"kind": "planet"}),
            "bad_argument",
            "`kind` has to be one of session, app, failure, not `planet`",
        ),
    ] {
        let failure = client.failure(tool, &arguments);
        assert_eq!(failure["kind"], kind, "{tool} {arguments}: {failure}");
        assert!(failure.to_string().contains(part), "{tool} {arguments}: {failure}");
        assert!(failure["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{tool} {arguments}: {failure}");
    }
    assert_eq!(client.data("list_targets", &json!({}))["sessions"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_python_that_is_none_is_told_apart() {
    let home = Home::new();
    let script = home.work().join("shell.sh");
    fs::write(&script, "#!/bin/sh\necho I am a shell script\n").expect("the home is writable");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::write(home.work().join("text.txt"), "text").expect("the home is writable");
    let mut client = home.initialized_client();
    for (python, part) in [
        ("/nowhere/python", "Python interpreter not found at `/nowhere/python`"),
        ("shell.sh", "is not a Python interpreter"),
        ("text.txt", "cannot be executed"),
        ("3.99", "no Python 3.99 was found"),
    ] {
        let failure = client.failure("open_session", &json!({"python": python}));
        assert_eq!(failure["kind"], "no_python", "{python}: {failure}");
        assert!(failure["message"].as_str().is_some_and(|message| message.contains(part)), "{python}: {failure}");
    }
    assert_eq!(client.execute("1 + 1")["result"], "2");
}

#[test]
fn python_2_is_told_as_such() {
    let Some(python) = python2() else { return skip("python_2_is_told_as_such", "no Python 2 here") };
    let home = Home::new();
    let mut client = home.initialized_client();
    let failure = client.failure("open_session", &json!({"python": python}));
    assert_eq!(failure["kind"], "no_python");
    let message = failure["message"].as_str().expect("a message");
    assert!(message.contains("is Python 2.7") && message.contains("needs 3.8 or newer"), "{message}");
}

#[test]
fn ten_megabytes_of_code_run() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let text = "lorem ipsum\n".repeat(900_000);
    assert!(text.len() > 10 << 20);
    let code = format!("text = '''{text}'''\nlen(text)");
    assert_eq!(client.execute(&code)["result"], text.len().to_string());
}

#[test]
fn code_over_the_limit_is_refused_and_the_session_lives() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 1");
    let failure = client.failure("execute", &json!({"code": "#".repeat((32 << 20) + 1)}));
    assert_eq!(failure["kind"], "bad_argument", "{failure}");
    assert_eq!(client.execute("x")["result"], "1");
}

#[test]
fn a_long_output_is_a_resource_that_is_read_in_pages() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let text = client.execute_text("for i in range(20_000): print('line', i)");
    let uri = text.split("the whole output: ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a resource");
    let (mut whole, mut next) = (String::new(), Some(uri.to_owned()));
    let mut pages = 0;
    while let Some(page) = next {
        let id = client.request(
            "resources/read",
            &json!({"uri": format!("{page}{}limit=100000", if page.contains('?') { '&' } else { '?' })}),
        );
        let answer = client.answer(id);
        let contents = answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let (text, more) = match contents.rsplit_once("\n[more: read ") {
            Some((text, more)) => (text, more.strip_suffix(']').map(str::to_owned)),
            None => (contents, None),
        };
        whole.push_str(text);
        (next, pages) = (more, pages + 1);
    }
    let expected = (0..20_000).map(|i| format!("line {i}\n")).collect::<Vec<_>>().concat();
    assert!(whole == expected && pages > 1, "{} of {} characters in {pages} pages", whole.len(), expected.len());
    let job = uri.strip_prefix("pylair://output/").expect("our own scheme");
    assert!(home.run(&["output", job]).stdout == expected);
    let id = client.request("resources/read", &json!({"uri": "pylair://output/nothing-1"}));
    let answer: Value = client.answer(id);
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("there is no output")), "{answer}");
}

#[test]
fn readonly_leaves_only_what_reads() {
    let home = Home::new();
    let mut client = crate::support::Client::start(home.command(&["mcp", "--readonly"]));
    client.initialize();
    let id = client.begin("execute", &json!({"code": "1"}));
    assert_eq!(client.answer(id)["error"]["code"], -32602);
    assert_eq!(client.data("list_targets", &json!({})), json!({"sessions": [], "apps": [], "failures": []}));
}
