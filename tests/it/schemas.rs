//! What data tools answer is what their output schemas promise: clients refuse an answer that is not.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::{Value, json};

use crate::support::{AppProcess, Client, Home, newest_python, pytest_python};

/// What is wrong with a value, by the part of JSON Schema that the tools use. A keyword it does not know is wrong as well.
fn faults(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = match schema {
        Value::Bool(true) => return Vec::new(),
        Value::Object(schema) => schema,
        _ => return vec![format!("{at}: {schema} allows nothing")],
    };
    let mut found = Vec::new();
    for (keyword, rule) in schema {
        match keyword.as_str() {
            "title" | "description" => {}
            "type" => {
                let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if !kinds.iter().any(|kind| is_a(value, kind.as_str().unwrap_or_default())) {
                    found.push(format!("{at}: {value} is not {rule}"));
                }
            }
            "required" => {
                let names = rule.as_array().into_iter().flatten().filter_map(Value::as_str);
                let missing = names.filter(|name| value.is_object() && value.get(name).is_none());
                found.extend(missing.map(|name| format!("{at}: there is no {name}")));
            }
            "properties" => {
                for (name, rule) in rule.as_object().into_iter().flatten() {
                    if let Some(value) = value.get(name) {
                        found.extend(faults(rule, value, &format!("{at}.{name}")));
                    }
                }
            }
            "additionalProperties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if schema.get("properties").is_none_or(|named| named.get(name).is_none()) {
                        found.extend(faults(rule, value, &format!("{at}.{name}")));
                    }
                }
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    found.extend(faults(rule, value, &format!("{at}[{index}]")));
                }
            }
            "prefixItems" => {
                let rules = rule.as_array().into_iter().flatten();
                for (index, (rule, value)) in rules.zip(value.as_array().into_iter().flatten()).enumerate() {
                    found.extend(faults(rule, value, &format!("{at}[{index}]")));
                }
            }
            "minItems" | "maxItems" => {
                let (count, bound) = (value.as_array().map(Vec::len), rule.as_u64());
                let is_kept = count.zip(bound).is_none_or(|(count, bound)| {
                    if keyword == "minItems" { count as u64 >= bound } else { count as u64 <= bound }
                });
                found.extend((!is_kept).then(|| format!("{at}: {keyword} is {rule}")));
            }
            "enum" => {
                if !rule.as_array().is_some_and(|choices| choices.contains(value)) {
                    found.push(format!("{at}: {value} is none of {rule}"));
                }
            }
            "const" => found.extend((rule != value).then(|| format!("{at}: {value} is not {rule}"))),
            "anyOf" | "oneOf" => {
                let tried = rule.as_array().into_iter().flatten().map(|choice| faults(choice, value, at));
                let tried: Vec<_> = tried.collect();
                let fit = tried.iter().filter(|faults| faults.is_empty()).count();
                if fit == 0 {
                    found.push(format!("{at}: fits no choice: {tried:?}"));
                } else if keyword == "oneOf" && fit > 1 {
                    found.push(format!("{at}: fits {fit} choices"));
                }
            }
            "allOf" => {
                found.extend(rule.as_array().into_iter().flatten().flat_map(|part| faults(part, value, at)));
            }
            _ => found.push(format!("{at}: this test does not know the keyword {keyword}")),
        }
    }
    found
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// A client that validates, as the SDKs do.
struct Validating {
    client: Client,
    tools: Vec<Value>,
    called: BTreeSet<String>,
    faults: Vec<String>,
}

impl Validating {
    fn new(home: &Home) -> Self {
        let mut client = Client::start(home.command(&["mcp", "--tools", "all"]));
        client.initialize();
        let id = client.request("tools/list", &json!({}));
        let tools = client.answer(id)["result"]["tools"].as_array().expect("a list").clone();
        Self { client, tools, called: BTreeSet::new(), faults: Vec::new() }
    }

    #[track_caller]
    fn data(&mut self, tool: &str, arguments: &Value) -> Value {
        let listed = self.tools.iter().find(|listed| listed["name"] == tool).expect("it is listed");
        let data = self.client.data(tool, arguments);
        if let Some(schema) = listed.get("outputSchema") {
            assert_eq!(schema["type"], "object", "{tool}");
            let found = faults(schema, &data, tool);
            self.faults.extend(found.into_iter().map(|fault| format!("{tool}({arguments}): {fault}")));
        }
        self.called.insert(tool.to_owned());
        data
    }
}

fn call_about_failures(home: &Home, client: &mut Validating) {
    fs::write(home.work().join("test_it.py"), "def test_it():\n    left = None\n    assert left.right\n")
        .expect("writable");
    let python = pytest_python().unwrap_or_else(newest_python);
    let ran = client.data("run_tests", &json!({"args": ["-p", "no:cacheprovider"], "python": python}));
    let recorded = client.data("record_failure", &json!({"test_name": "by hand", "error_message": "ValueError: 3"}));
    for id in ran["failures"].as_array().into_iter().flatten().map(|failure| &failure["id"]).chain([&recorded["id"]]) {
        client.data("get_failure", &json!({"id": id}));
        client.data("debug_failure", &json!({"id": id, "rule": 3, "analysis": "it is None"}));
        client.data("get_failure", &json!({"id": id}));
        client.data("write_debug_prompt", &json!({"failure": id, "style": "step_by_step"}));
    }
    client.data("list_failures", &json!({"limit": 1}));
    client.data("analyze_failures", &json!({"group_by": "pattern"}));
    client.data("list_targets", &json!({"kind": "failure"}));
    client.data("read_docs", &json!({}));
}

#[test]
fn answers_are_as_the_output_schemas_promise() {
    let home = Home::new();
    let mut client = Validating::new(&home);
    client.data("get_status", &json!({}));
    client.data("list_targets", &json!({}));
    client.data("open_session", &json!({"name": "lab", "description": "for tests", "keep": true, "startup": "s = 1"}));
    let execute = |client: &mut Validating, code: &str| {
        client.client.data("execute", &json!({"code": code, "target": "lab", "output": "json"}));
    };
    let on_lab = json!({"target": "lab"});
    client.data("get_history", &on_lab);
    execute(
        &mut client,
        "import sys\nclass A:\n    '''a'''\n    x = 1\n    def f(self): pass\nrows = [{'a': A()}] * 99\nrows",
    );
    execute(&mut client, "print('x' * 100_000)\nprint('err', file=sys.stderr)\n1 / 0");
    execute(&mut client, "gone = 1\nunsaved = sys._getframe()");
    for arguments in [
        json!({"target": "lab"}),
        json!({"target": "lab", "path": "rows", "depth": 3}),
        json!({"target": "lab", "path": "A"}),
        json!({"target": "lab", "path": "A.f"}),
        json!({"target": "lab", "path": "sys"}),
        json!({"target": "lab", "path": "rows", "full": true}),
    ] {
        client.data("inspect", &arguments);
    }
    client.data("read_source", &json!({"target": "lab", "path": "A"}));
    client.data("complete_code", &json!({"target": "lab", "code": "sys.pa"}));
    client.data("complete_code", &json!({"target": "lab", "code": "zzzz"}));
    client.data("undo", &json!({"target": "lab", "to": 0}));
    execute(
        &mut client,
        "kept = [1, 2]\nunsaved = sys = __import__('sys')._getframe()\nimport threading\nlock = threading.Lock()",
    );
    let saved = client.data("save_session", &on_lab);
    client.data("get_history", &on_lab);
    client.data("get_history", &json!({"target": "lab", "limit": 1}));
    for format in ["py", "ipynb", "html"] {
        client.data("export_session", &json!({"target": "lab", "format": format}));
    }
    client.data("interrupt", &on_lab);
    let id = client
        .client
        .begin("execute", &json!({"code": "while True: pass", "target": "lab", "wait_s": 0, "output": "json"}));
    client.client.answer(id);
    client.data("get_status", &on_lab);
    client.data("dump_stacks", &on_lab);
    client.data("get_history", &on_lab);
    client.data("interrupt", &on_lab);
    client.data("branch_session", &json!({"target": "lab", "name": "other"}));
    client.data("restart_session", &json!({"target": "lab", "keep_variables": true}));
    client.data("restart_session", &json!({"target": "lab", "mode": "clear"}));
    client.data("write_file", &json!({"target": "lab", "path": "made/a.txt", "content": "text"}));
    client.data("write_file", &json!({"target": "lab", "path": "made/a.txt", "content": "dGV4dA==", "base64": true}));
    execute(&mut client, "import os\nos.symlink('a.txt', 'made/link')");
    client.data("list_files", &json!({"target": "lab", "path": "made"}));
    client.data("list_files", &json!({"target": "lab", "tree": true}));
    client.data("delete_file", &json!({"target": "lab", "path": "made/link"}));
    // It is there already, which needs no index.
    let env = home.work().join("env");
    let made = Command::new(newest_python()).args(["-m", "venv"]).arg(&env).status().expect("Python starts");
    assert!(made.success());
    client.data("open_session", &json!({"name": "packaged", "python": env}));
    client.data("install_packages", &json!({"target": "packaged", "packages": ["pip"]}));
    client.data("list_targets", &json!({}));
    let app = AppProcess::start(&home, "import logging\nlogging.warning('made')", "app_id='shop'");
    let on_app = json!({"target": "app:shop"});
    client.data("list_targets", &json!({}));
    client.data("get_status", &on_app);
    client.client.data("execute", &json!({"code": "x = [1]", "target": "app:shop", "output": "json"}));
    client.data("inspect", &on_app);
    client.data("read_logs", &on_app);
    client.data("interrupt", &on_app);
    let plain = AppProcess::plain(&home, "stock = 5");
    client.data("attach", &json!({"pid": plain.pid}));
    client.data("list_targets", &json!({"kind": "app"}));
    client.data("close_session", &json!({"target": format!("pid:{}", plain.pid)}));
    drop((app, plain));
    call_about_failures(&home, &mut client);
    client.data("close_session", &on_lab);
    client.data("list_targets", &json!({}));
    client.data("close_session", &json!({"target": "lab", "forget": true}));
    client.data("open_session", &json!({"name": "again", "restore": saved["save"]}));
    assert_eq!(client.faults, Vec::<String>::new());
    let promised = client.tools.iter().filter(|tool| tool.get("outputSchema").is_some());
    let promised: BTreeSet<_> = promised.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect();
    let unchecked: Vec<_> = promised.difference(&client.called).collect();
    assert!(unchecked.is_empty(), "never called here: {unchecked:?}");
}

#[test]
fn the_check_finds_what_it_is_for() {
    let schema = json!({"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": ["a"]});
    assert!(faults(&schema, &json!({"a": null}), "x").is_empty());
    assert_eq!(faults(&schema, &json!({}), "x"), ["x: there is no a"]);
    assert_eq!(faults(&schema, &json!({"a": "1"}), "x"), ["x.a: \"1\" is not [\"integer\",\"null\"]"]);
    assert_eq!(faults(&json!({"anyOf": [{"type": "null"}]}), &json!(1), "x").len(), 1);
}
