//! History and hand-over: what `get_history` tells, and exports that run.

use std::{fs, path::Path, process::Command};

use pylair_core::{
    history::{self, Export, Format, Subject},
    session::{OnTimeout, OpenOptions, Outcome, RestartMode, Work},
};
use serde_json::{Value, json};

use crate::support::{
    Core, Home, TestSession, WAIT_FOREVER, newest_python, on_each_python, on_newest_python, report, text_of,
};

async fn find(core: &Core, target: &str) -> Subject {
    history::find(&core.daemon.sessions, &core.daemon.journal, &core.caller, Some(target)).await.expect("it is known")
}

/// A page as callers get it.
async fn page(core: &Core, target: &str, limit: usize, before: Option<u64>) -> Value {
    let subject = find(core, target).await;
    let page = history::page(&core.daemon.journal, &subject, limit, before, 25_000).await.expect("it can be read");
    serde_json::to_value(page).expect("it is JSON")
}

async fn export(core: &Core, target: &str, format: Format) -> Export {
    let subject = find(core, target).await;
    let outputs = &core.daemon.sessions.parts.outputs;
    history::export(&core.daemon.journal, outputs, &subject, format).await.expect("it can be exported")
}

/// Cells by number, undone ones with a minus, events by name.
fn outline(page: &Value) -> Vec<String> {
    let line = |entry: &Value| match entry["event"].as_str() {
        Some(event) => event.to_owned(),
        None if entry["rolled_back"] == true => format!("-{}", entry["cell"]),
        None => entry["cell"].to_string(),
    };
    page["entries"].as_array().expect("a list").iter().map(line).collect()
}

fn name(session: &TestSession) -> String {
    session.session.info.name.to_string()
}

#[test]
fn a_cell_is_told_with_all_that_came_of_it() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7").await;
        session.run("def f():\n    return 1 / 0\nf()").await;
        let page = page(core, &name(&session), 20, None).await;
        assert_eq!(outline(&page), ["opened", "1", "2"]);
        let (first, second) = (&page["entries"][1], &page["entries"][2]);
        assert_eq!(first["code"], "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7");
        assert_eq!(
            (&first["outcome"], &first["client"], &first["result"]),
            (&json!("ok"), &json!("test"), &json!("42"))
        );
        assert_eq!((&first["stdout"], &first["stderr"]), (&json!("out\n"), &json!("err\n")));
        assert_eq!((first.get("truncated"), first.get("output")), (None, None), "nothing is missing");
        assert!(first["duration_ms"].is_u64() && first["started"].as_str().expect("a time").ends_with('Z'), "{first}");
        assert_eq!(second["outcome"], "raised");
        let error = second["error"].as_str().expect("what it raised");
        assert!(error.ends_with("ZeroDivisionError: division by zero") && error.contains("line 2, in f"), "{error}");
        assert_eq!(page["next_before"], Value::Null);
    });
}

#[test]
fn pages_lead_back_to_the_first_cell() {
    on_newest_python(async |core| {
        let session = core.session().await;
        for number in 1..=5 {
            session.value(&format!("x = {number}")).await;
            if number == 3 {
                session.session.restart(RestartMode::Restart).await.expect("it restarts");
            }
        }
        let newest = page(core, &name(&session), 2, None).await;
        assert_eq!(outline(&newest), ["restarted", "4", "5"]);
        assert_eq!(newest["next_before"], 4);
        let older = page(core, &name(&session), 2, Some(4)).await;
        assert_eq!((outline(&older), &older["next_before"]), (vec!["2".to_owned(), "3".to_owned()], &json!(2)));
        let oldest = page(core, &name(&session), 2, Some(2)).await;
        assert_eq!(
            (outline(&oldest), &oldest["next_before"]),
            (vec!["opened".to_owned(), "1".to_owned()], &Value::Null)
        );
    });
}

#[test]
fn long_output_is_cut_and_says_where_the_whole_is() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.run("print('é' * 300_000)").await;
        session.run("print('x' * 10_000)").await;
        let page = page(core, &name(&session), 20, None).await;
        for (entry, cell) in [(1, 1), (2, 2)] {
            let entry = &page["entries"][entry];
            assert_eq!(entry["truncated"], true);
            let uri = format!("pylair://output/{}-{cell}", session.session.info.handle);
            assert_eq!(entry["output"], json!(uri));
            assert!(!entry["stdout"].as_str().expect("text").contains('\u{fffd}'), "no character was cut in two");
        }
    });
}

#[test]
fn undone_cells_are_marked_and_not_exported() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        session.value("x = 2").await;
        session.session.undo(Some(1)).await.expect("there is a checkpoint");
        session.value("y = x + 10").await;
        assert_eq!(outline(&page(core, &name(&session), 20, None).await), ["opened", "1", "-2", "rolled_back", "3"]);
        let script = export(core, &name(&session), Format::Py).await;
        assert_eq!((script.cells, script.rolled_back), (2, 1));
        assert!(!script.text.contains("x = 2"), "{}", script.text);
        assert_eq!(run_script(core, &script.text, "print(x, y)"), "1 11\n");
        session.session.undo(Some(0)).await.expect("the start is always there");
        assert_eq!(export(core, &name(&session), Format::Py).await.cells, 0);
    });
}

#[test]
fn a_branch_is_exported_with_what_it_was_branched_off() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let branch = core.daemon.sessions.branch(&core.caller, &name(&session), Some("other".to_owned()), None).await;
        let branch = TestSession { session: branch.expect("it can be branched") };
        branch.value("y = x + 1").await;
        session.value("x = 100").await;
        core.wait_for_checkpoint(&session, 2).await;
        session.session.undo(Some(1)).await.expect("there is a checkpoint");
        let script = export(core, "other", Format::Py).await;
        assert_eq!(script.cells, 2);
        assert_eq!(run_script(core, &script.text, "print(x, y)"), "1 2\n");
    });
}

/// Runs an exported script, with a line added at its end, in the Python of this test.
fn run_script(core: &Core, script: &str, last: &str) -> String {
    let path = core.home.work().join("exported.py");
    fs::write(&path, format!("{script}\n{last}\n")).expect("the home is writable");
    let python = &core.home.env["PYLAIR_PYTHON"];
    let output = Command::new(python).arg(&path).current_dir(core.home.work()).output().expect("Python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}\n{script}");
    String::from_utf8(output.stdout).expect("text")
}

/// A session with everything an export can stumble over.
async fn eventful(core: &Core) -> TestSession {
    let options = OpenOptions { startup: Some("import math as maths".to_owned()), ..OpenOptions::default() };
    let session = core.open_session(options).await.expect("it opens");
    for (code, outcome) in [
        ("from __future__ import annotations\nimport asyncio\ntotal = 0", Outcome::Ok),
        (
            "async def add(n):\n    global total\n    await asyncio.sleep(0)\n    total += n\n    return total",
            Outcome::Ok,
        ),
        ("await add(1)\ntask = asyncio.ensure_future(add(10))", Outcome::Ok),
        ("before = 'kept'\nraise ValueError('''no\ngood''')", Outcome::Raised),
        ("x = = 1", Outcome::Raised),
        ("text = '''it's\n\"\"\"fine\"\"\" \\\\ # %%\n'''\nassert before == 'kept'", Outcome::Ok),
        ("text += f\"{await add(100)}\" '''\n''' \"\"\"\\\n\"\"\"", Outcome::Ok),
        ("global late\nlate = maths.floor(2.5)", Outcome::Ok),
        ("\u{feff}total", Outcome::Ok),
        ("def later(x: Undefined) -> None: ...\nprint('é <b>')", Outcome::Ok),
        ("import sys\nprint('oops', file=sys.stderr)\nlate", Outcome::Ok),
    ] {
        let report = session.run(code).await;
        assert_eq!(report.outcome, outcome, "{code}: {report:?}");
    }
    let job = session.start(WAIT_FOREVER).await;
    job.capture.readable(pylair_output::Cursor::default()).await;
    session.session.interrupt(None).await.expect("it stops");
    session
}

#[test]
fn an_exported_script_runs_to_its_end_in_plain_python() {
    on_each_python(async |core| {
        let session = eventful(core).await;
        let expected = session.value("(before, late, total, text)").await;
        let script = export(core, &name(&session), Format::Py).await;
        assert_eq!(script.cells, 13);
        assert!(script.text.contains("# x = = 1\n") && script.text.contains("# %% startup\n"), "{}", script.text);
        let printed = run_script(core, &script.text, "print((before, late, total, text))");
        assert_eq!(printed, format!("é <b>\n{expected}\n"), "{}", script.text);
    });
}

/// Cells that a file cannot hold as they are, or that end a file and not a session.
const AWKWARD: &[(&str, &[&str])] = &[
    ("an error at run time that is called SyntaxError", &["x = 1\neval('(')", "print(x)"]),
    ("an own SyntaxError", &["class SyntaxError(Exception): pass\ny = 5\nraise SyntaxError('x')", "print(y)"]),
    ("no Python at all", &["x = = 1", "%time 1", "print(1)"]),
    (
        "await in the head of a function",
        &[
            "async def f(): return 3",
            "def g(x=await f()): return x\nprint(g())",
            "def g(x: await f()): pass\nprint(g.__annotations__)",
            "def g() -> (await f()): pass\nprint(g.__annotations__)",
            "async def deco(): return lambda g: g",
            "@(await deco())\ndef h(): print(5)\nh()",
        ],
    ),
    (
        "the last value",
        &["41 + 1", "print(_)", "x = 5", "[_, x]", "7;", "for _x in _: print(f'{_}')", "None", "print(_)"],
    ),
    ("display", &["display('hi', 1)", "display([1])\nprint(2)"]),
    ("a NUL", &["x = 1\ny = '\0'", "# \0\nprint(3)", "print(2)"]),
    (
        "control characters",
        &["print(ascii('a\x0b\x1b\x7f\u{85}'))", "x = 1\x0c\nprint(x)", "print(1)\rprint(2)\n1 / 0"],
    ),
    (
        "a future that begins later",
        &[
            "def f(a: 1 + 1): pass\nprint(f.__annotations__)",
            "from __future__ import annotations\ndef g(a: 1 + 1): pass\nprint(g.__annotations__)",
            "def h(a: 1 + 1): pass\nprint(h.__annotations__)",
        ],
    ),
    (
        "a future from the beginning",
        &[
            "from __future__ import annotations\ndef g(a: 1 + 1): pass\nprint(g.__annotations__)",
            "1 / 0",
            "from __future__ import annotations; print(annotations.optional)",
            "def h(a: 1 + 1): pass\nprint(h.__annotations__)",
        ],
    ),
    (
        "a future that raises",
        &["from __future__ import annotations\n1 / 0", "def h(a: zz): pass\nprint(h.__annotations__)"],
    ),
    ("an interrupt of its own", &["x = 9\nraise KeyboardInterrupt", "print(x)"]),
    (
        "exits",
        &[
            "import sys\ndef leave(code):\n    sys.exit(code)",
            "print(1)\nleave(0)",
            "print(2)\nleave(3)",
            "print(3)\nraise SystemExit",
        ],
    ),
    (
        "names of the script's own",
        &[
            "_ast = _loop = _run_cell = _traceback = _asyncio = None\n1 / 0",
            "async def f(): return 3",
            "for name in list(globals()):\n    if name[:2] != '__' and name != 'f': del globals()[name]",
            "print(await f())",
        ],
    ),
    (
        "an error that cannot be shown",
        &["class E(Exception):\n    def __str__(self): raise SystemExit(1)\nraise E", "print(1)"],
    ),
    ("stderr", &["import sys\nsys.stderr = sys.stdout\n1 / 0", "print(1)"]),
    ("its source", &["import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))\n1 / 0"]),
];

#[test]
fn an_exported_script_prints_what_the_session_printed() {
    on_each_python(async |core| {
        for (what, cells) in AWKWARD {
            let session = core.session().await;
            let mut expected = String::new();
            for code in *cells {
                expected += &session.run(code).await.stdout;
            }
            let script = export(core, &name(&session), Format::Py).await;
            assert_eq!(run_script(core, &script.text, ""), expected, "{what}\n{}", script.text);
            core.close_session(&session).await;
        }
    });
}

#[test]
fn neither_a_path_nor_startup_code_keeps_a_script_from_running() {
    on_newest_python(async |core| {
        let cwd = core.home.work().join("coding=utf-7");
        fs::create_dir_all(&cwd).expect("the home is writable");
        let startup = Some("k = 5\nraise SystemExit".to_owned());
        let session = core.open_session(OpenOptions { cwd: Some(cwd), startup, ..OpenOptions::default() }).await;
        let session = session.expect("it opens");
        let printed = session.run("print(k, ascii('+AGE-é'))").await.stdout;
        let script = export(core, &name(&session), Format::Py).await.text;
        assert_eq!(run_script(core, &script, ""), printed, "{script}");
    });
}

#[test]
fn an_export_says_that_variables_came_from_a_save() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "first"}));
    client.data("execute", &json!({"target": "first", "code": "w = 3", "output": "json"}));
    client.data("save_session", &json!({"target": "first"}));
    client.data("open_session", &json!({"name": "second", "restore": "first"}));
    client.data("execute", &json!({"target": "second", "code": "print(w)", "output": "json"}));
    let mut text = |target: &str| {
        let exported = client.data("export_session", &json!({"target": target, "format": "py"}));
        exported["text"].as_str().expect("it is short").to_owned()
    };
    assert!(text("second").contains("# Note: the session was opened with variables from a save"));
    assert!(!text("first").contains("Note"));
}

#[test]
fn a_file_that_was_run_is_run_again_by_an_export_from_anywhere() {
    on_each_python(async |core| {
        let directory = core.home.work().join("project");
        fs::create_dir_all(&directory).expect("the home is writable");
        fs::write(directory.join("helper.py"), "value = 7\n").expect("the home is writable");
        let script = "import sys, os, helper\nprint(__name__, os.path.basename(__file__), sys.argv[1:], sys.path[0] == os.path.dirname(__file__))\n\
            kept = helper.value\nsys.path.append('/added')\ndef double(): return kept * 2\nsys.exit(0)\n";
        let file = fs::canonicalize(&directory).expect("it was made").join("main.py");
        fs::write(&file, script).expect("the home is writable");
        let session = core.session().await;
        session.value("import sys\n__file__ = 'mine'\nargv = sys.argv\nsys.exit").await;
        let work = Work::File {
            file: file.clone(),
            name: "script.py".to_owned(),
            args: vec!["-v".to_owned(), "it's \"x\"".to_owned()],
            source: None,
        };
        let job = session.session.run(work, None, OnTimeout::Keep, core.by("test")).await.expect("it is idle");
        assert_eq!(report(&job).await.outcome, Outcome::Ok);
        session.value("more = double()").await;
        let script = export(core, &name(&session), Format::Py).await.text;
        let last = "print(kept, more, __file__, sys.argv is argv, '/added' in sys.path, '_run_file' in globals())\n\
            print(any(entry.endswith('project') for entry in sys.path))";
        let printed = run_script(core, &script, last);
        let expected = "__main__ main.py ['-v', 'it\\'s \"x\"'] True\n7 14 mine True True False\nFalse\n";
        assert_eq!(printed, expected, "{script}");
        let file = directory.join("fails.py");
        fs::write(&file, "raise SystemExit(3)").expect("the home is writable");
        let work = Work::File { file, name: "script.py".to_owned(), args: Vec::new(), source: None };
        let job = session.session.run(work, None, OnTimeout::Keep, core.by("test")).await.expect("it is idle");
        assert_eq!(report(&job).await.outcome, Outcome::Raised);
        let script = export(core, &name(&session), Format::Py).await.text;
        assert!(run_script(core, &script, "print('the end', __file__)").ends_with("the end mine\n"));
    });
}

#[test]
fn an_exported_notebook_holds_what_jupyter_expects() {
    on_each_python(async |core| {
        let session = eventful(core).await;
        let export = export(core, &name(&session), Format::Ipynb).await;
        if let Some(path) = std::env::var_os("PYLAIR_TEST_KEEP_NOTEBOOK") {
            fs::write(path, &export.text).expect("it is writable");
        }
        let notebook: Value = serde_json::from_str(&export.text).expect("JSON");
        assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
        assert_eq!(notebook["metadata"]["kernelspec"]["name"], "python3");
        assert_eq!(notebook["metadata"]["language_info"]["version"], session.session.info.interpreter.version);
        let cells = notebook["cells"].as_array().expect("a list");
        for cell in cells {
            let id = cell["id"].as_str().expect("every cell has an id");
            assert!((1..=64).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{id}");
            assert!(cell["metadata"].is_object() && cell["source"].is_array(), "{cell}");
            let is_code = cell["cell_type"] == "code";
            assert_eq!(cell.get("outputs").is_some_and(Value::is_array), is_code, "{cell}");
            assert_eq!(cell.get("execution_count").is_some(), is_code, "{cell}");
        }
        let of = |number: u64| cells.iter().find(|cell| cell["execution_count"] == number).expect("it was run");
        assert_eq!(of(4)["metadata"]["tags"], json!(["raises-exception"]));
        assert_eq!(of(4)["outputs"][0]["ename"], "ValueError");
        assert_eq!(of(9)["outputs"][0]["data"], json!({"text/plain": ["111"]}));
        assert_eq!(of(10)["outputs"], json!([{"output_type": "stream", "name": "stdout", "text": ["é <b>\n"]}]));
        assert_eq!(of(11)["outputs"][0]["name"], "stderr");
        let last = cells.last().expect("there are some");
        assert_eq!(last["cell_type"], "markdown", "what never ended is only shown");
    });
}

#[test]
fn an_exported_page_is_one_file_with_nothing_but_text() {
    on_newest_python(async |core| {
        let session = eventful(core).await;
        let page = export(core, &name(&session), Format::Html).await.text;
        assert!(page.contains("é &lt;b&gt;") && !page.contains("<b>") && !page.contains("<script"), "{page}");
        assert!(
            !page.contains("http://") && !page.contains("https://") && page.contains("default-src 'none'"),
            "{page}"
        );
    });
}

#[test]
fn a_closed_session_has_a_history_also_after_the_daemon_was_restarted() {
    let home = Home::new();
    let handle = {
        let mut client = home.initialized_client();
        let opened = client.data("open_session", &json!({"name": "work"}));
        client.data("execute", &json!({"target": "work", "code": "x = 'first'", "output": "json"}));
        client.data("close_session", &json!({"target": "work"}));
        client.data("open_session", &json!({"name": "work"}));
        client.data("execute", &json!({"target": "work", "code": "print('second')", "output": "json"}));
        client.data("close_session", &json!({"target": "work"}));
        let page = client.data("get_history", &json!({"target": "work"}));
        assert_eq!(page["entries"][1]["code"], "print('second')", "a name means the newest");
        opened["handle"].as_str().expect("text").to_owned()
    };
    assert!(home.run(&["stop"]).status.success());
    let mut client = home.initialized_client();
    let newest = client.data("get_history", &json!({"target": "work"}));
    assert_eq!(outline(&newest), ["opened", "1", "closed"]);
    assert_eq!(newest["entries"][1]["stdout"], "second\n");
    let first = client.data("get_history", &json!({"target": handle}));
    assert_eq!(first["entries"][1]["code"], "x = 'first'");
    let exported = client.data("export_session", &json!({"target": handle, "format": "py"}));
    assert_eq!(exported["resource"], json!(format!("pylair://export/{handle}.py")));
    assert!(exported["text"].as_str().expect("it is short").contains("x = 'first'"), "{exported}");
    assert_eq!(client.failure("get_history", &json!({"target": "nowhere"}))["kind"], "unknown_session");
    assert_eq!(client.failure("get_history", &json!({"target": "work", "limit": 0}))["kind"], "bad_argument");
    assert_eq!(client.failure("export_session", &json!({"target": "work", "format": "pdf"}))["kind"], "bad_argument");
}

#[test]
fn an_export_is_a_resource_a_download_and_a_file() {
    let home = Home::new();
    let server = home.serve();
    let mut client = home.initialized_client();
    client.execute("x = 1\nx");
    let name = client.execute("2")["session"].as_str().expect("text").to_owned();
    let answer = client.call("export_session", &json!({"target": name, "format": "ipynb"}));
    let data = &answer["structuredContent"];
    assert_eq!((&data["format"], &data["cells"]), (&json!("ipynb"), &json!(2)));
    let text = data["text"].as_str().expect("it is short");
    assert_eq!(data["bytes"], text.len());
    assert!(text_of(&answer).starts_with(text));
    let id = client.request("resources/read", &json!({"uri": data["resource"]}));
    let contents = client.answer(id)["result"]["contents"][0].clone();
    assert_eq!(contents["mimeType"], "application/x-ipynb+json");
    let cells =
        |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["cells"].as_array().expect("a list").len();
    assert_eq!(cells(contents["text"].as_str().expect("text")), cells(text));

    let page = server.request("GET", &format!("/api/export?target={name}&format=html"), "").send();
    assert_eq!(page.status, 200, "{page:?}");
    assert!(page.header("content-security-policy").is_some_and(|policy| policy.starts_with("sandbox;")), "{page:?}");
    let disposition = format!("attachment; filename=\"{name}.html\"");
    assert_eq!(page.header("content-disposition"), Some(disposition.as_str()));
    assert!(page.body.starts_with("<!doctype html>"), "{page:?}");

    let written = home.run(&["sessions", "export", &name, "-o", "handed-over.py"]);
    assert!(written.status.success(), "{written:?}");
    let path = home.work().join("handed-over.py");
    assert!(fs::read_to_string(&path).expect("it was written").contains("# %% cell 1\nx = 1\nx\n"));
    assert!(runs(&path));
    let shown = home.run(&["sessions", "export", &name]);
    assert_eq!(cells(&shown.stdout), 3);
    let unknown = home.run(&["sessions", "export", "nowhere"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

fn runs(script: &Path) -> bool {
    Command::new(newest_python()).arg(script).status().is_ok_and(|status| status.success())
}
