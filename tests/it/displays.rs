//! Rich results and files through the built binary: what a model is shown inline, what is a resource, and how it is read.

use std::fs;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::support::{Client, Home, skip, text_of};

/// One black pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII=";

fn read(client: &mut Client, uri: &Value) -> Value {
    let id = client.request("resources/read", &json!({"uri": uri}));
    let answer = client.answer(id);
    assert!(answer["result"].is_object(), "{uri}: {answer}");
    answer["result"]["contents"][0].clone()
}

#[test]
fn an_image_is_shown_and_html_is_a_resource() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let code = format!(
        "import base64\nclass Picture:\n    def _repr_png_(self): return base64.b64decode('{PNG}')\n    \
         def _repr_html_(self): return '<b>big</b>'\n    def __repr__(self): return 'a picture'\nPicture()"
    );
    let result = client.call("execute", &json!({"code": code}));
    assert!(text_of(&result).starts_with("Out[1]: a picture\n"), "{result}");
    let image = &result["content"][1];
    assert_eq!(
        (&image["type"], &image["mimeType"], &image["data"]),
        (&json!("image"), &json!("image/png"), &json!(PNG))
    );
    assert_eq!(result.get("structuredContent"), None, "clients would drop the image");
    let report = client.execute("Picture()");
    let displays = report["displays"].as_array().expect("a list");
    assert_eq!((&displays[0]["mime"], &displays[0]["data"]), (&json!("image/png"), &json!(PNG)));
    let html = displays.iter().find(|display| display["mime"] == "text/html").expect("the other form");
    let contents = read(&mut client, &html["resource"]);
    assert_eq!((&contents["text"], &contents["mimeType"]), (&json!("<b>big</b>"), &json!("text/html")));
}

#[test]
fn display_shows_values_in_the_middle_of_a_cell_in_order() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let code = "class Page:\n    def __init__(self, n): self.n = n\n    def _repr_html_(self): return f'<p>{self.n}</p>'\n\
                for n in range(3):\n    print('before', n)\n    display(Page(n))\n1 / 0";
    let report = client.execute(code);
    assert_eq!(report["outcome"], "raised");
    let displays = report["displays"].as_array().expect("a list");
    let pages = displays.iter().filter(|display| display["mime"] == "text/html");
    let shown: Vec<Value> = pages.map(|display| display["resource"].clone()).collect();
    let texts: Vec<Value> = shown.iter().map(|uri| read(&mut client, uri)["text"].clone()).collect();
    assert_eq!(texts, ["<p>0</p>", "<p>1</p>", "<p>2</p>"]);
}

#[test]
fn a_rich_form_that_fails_is_told_and_the_value_shown_otherwise() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let report = client.execute(
        "class Bad:\n    def _repr_html_(self): raise ValueError('no')\n    def __repr__(self): return 'plain'\nBad()",
    );
    assert_eq!((&report["outcome"], &report["result"]), (&json!("ok"), &json!("plain")));
    assert!(report["notes"].to_string().contains("_repr_html_"), "{report}");
}

#[test]
fn files_that_a_cell_made_are_resources() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let report = client.execute("import os\nos.mkdir('out')\nopen('out/a b.csv', 'w').write('x,y\\n1,2\\n')\nopen('pic.bin', 'wb').write(b'\\xff\\x00');");
    let files: Vec<_> = report["displays"].as_array().expect("a list").clone();
    let csv = files.iter().find(|file| file["title"] == "out/a b.csv").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(csv["mime"], "text/csv");
    assert_eq!(read(&mut client, &csv["resource"])["text"], "x,y\n1,2\n");
    let bytes = files.iter().find(|file| file["title"] == "pic.bin").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(read(&mut client, &bytes["resource"])["blob"], BASE64_STANDARD.encode(b"\xff\x00"));
    assert_eq!(client.execute("1 + 1")["displays"], json!([]), "they are told once");
}

#[test]
fn magics_get_a_hint() {
    let home = Home::new();
    let mut client = home.initialized_client();
    for (code, part) in
        [("%time x = 1", "%time"), ("!ls", "subprocess"), ("%pip install six", "install_packages"), ("len?", "inspect")]
    {
        let report = client.execute(code);
        assert_eq!(report["error"]["type"], "SyntaxError", "{code}: {report}");
        assert!(report["notes"].to_string().contains(part), "{code}: {report}");
    }
}

#[test]
fn a_file_runs_as_python_would_run_it() {
    let home = Home::new();
    let mut client = home.initialized_client();
    fs::write(home.work().join("helper.py"), "value = 7\n").expect("the home is writable");
    let script = "import sys, helper\nprint(__name__, __file__, sys.argv[1:])\nif __name__ == '__main__':\n    kept = helper.value\nsys.exit(0)\n";
    fs::write(home.work().join("main.py"), script).expect("the home is writable");
    let text = text_of(&client.call("run_file", &json!({"path": "main.py", "args": ["-v", "x y"]})));
    let path = home.work().join("main.py");
    assert!(text.contains(&format!("__main__ {} ['-v', 'x y']", path.display())), "{text}");
    assert_eq!(client.execute("kept, __name__, '__file__' in globals()")["result"], "(7, '__main__', False)");
    let missing = text_of(&client.call("run_file", &json!({"path": "nowhere.py"})));
    assert!(missing.contains("nowhere.py"), "{missing}");
    let session = client.execute("1")["session"].clone();
    let history = client.data("get_history", &json!({"target": session}));
    assert!(history.to_string().contains("run_file"), "{history}");
}

#[test]
fn call_and_set_variable_run_around_a_path_and_nothing_else() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("class C: pass\nc = C()\nc.rows = [1, 2]\ndef add(a, b=0): return a + b");
    let text = text_of(&client.call("call", &json!({"path": "add", "args": [1], "kwargs": {"b": 41}})));
    assert!(text.contains("42"), "{text}");
    client.call("set_variable", &json!({"path": "c.rows[0]", "value": {"k": [null, true, "a\"b"]}}));
    client.call("set_variable", &json!({"path": "twice", "expression": "add(2) * 2"}));
    assert_eq!(client.execute("c.rows, twice")["result"], "([{'k': [None, True, 'a\"b']}, 2], 4)");
    let refused = text_of(&client.call("call", &json!({"path": "add(1); c.rows.clear"})));
    assert!(refused.contains("path"), "{refused}");
    assert_eq!(client.execute("len(c.rows)")["result"], "2");
    let failure = client.failure("set_variable", &json!({"path": "x"}));
    assert_eq!(failure["kind"], "bad_argument");
    // Without its own names Python runs no later cell.
    for path in ["__builtins__", "__name__", "__builtins__.len", "class", "not a name"] {
        let refused = text_of(&client.call("set_variable", &json!({"path": path, "value": 1})));
        assert!(refused.contains("is Python's own") || refused.contains("is not a path"), "{path}: {refused}");
    }
    assert_eq!(client.execute("len(c.rows), __name__")["result"], "(2, '__main__')");
}

#[test]
fn figures_and_tables_of_real_libraries_are_shown() {
    let Some(python) = std::env::var_os("PYLAIR_TEST_RICH_PYTHON") else {
        skip("figures_and_tables_of_real_libraries_are_shown", "PYLAIR_TEST_RICH_PYTHON is not set");
        return;
    };
    let home = Home::with_python(python.as_ref());
    let mut client = home.initialized_client();
    let result = client.call("execute", &json!({"code": "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"}));
    let image = BASE64_STANDARD.decode(result["content"][1]["data"].as_str().expect("an image")).expect("base64");
    assert!(image.starts_with(b"\x89PNG"), "{result}");
    let table = client.execute("import pandas as pd\npd.DataFrame({'a': range(1000), 'b': 'x'})");
    let text = table["result"].as_str().expect("a table");
    assert!(text.contains("1000") && text.contains("int64") && text.lines().count() < 60, "{text}");
    assert!(table["displays"].as_array().expect("a list").iter().any(|display| display["mime"] == "text/html"));
}
