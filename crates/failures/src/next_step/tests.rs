//! Every diff is applied to the project whose tests left the evidence.

use std::{fs, path::PathBuf, process::Command};

use super::*;
use crate::hypotheses::tests::{DATA, read, recorded};

fn of(nodeid: &str, files: &(dyn Fn(&str) -> Option<String> + Sync)) -> NextStep {
    let around = Around { files, ..Around::nothing("k3n7q2", nodeid) };
    next_steps(&recorded()[nodeid], &around)
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("there is nothing to do about {nodeid}"))
}

/// A copy of the project that is gone with the value.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("pylair-next-step-{}-{name}", std::process::id()));
        fs::create_dir_all(directory.join("shop")).unwrap();
        for file in ["test_shop.py", "shop/users.py", "shop/mail.py", "shop/__init__.py"] {
            fs::copy(format!("{DATA}/{file}"), directory.join(file)).unwrap();
        }
        Self(directory)
    }

    fn apply(&self, diff: &str) {
        let file = self.0.join("change.diff");
        fs::write(&file, diff).unwrap();
        let output = Command::new("git").args(["apply", "change.diff"]).current_dir(&self.0).output().unwrap();
        assert!(output.status.success(), "{}\n{diff}", String::from_utf8_lossy(&output.stderr));
    }

    fn line(&self, file: &str, line: usize) -> String {
        fs::read_to_string(self.0.join(file)).unwrap().lines().nth(line - 1).unwrap_or("").to_owned()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn diffs_apply() {
    for (test, text, file, line, expected) in [
        ("test_missing_import", "add `import json` to shop/users.py", "shop/users.py", 1, "import json"),
        (
            "test_name_typo",
            "`reslt` at test_shop.py:49 is probably `result`",
            "test_shop.py",
            49,
            "    assert result == 3",
        ),
        (
            "test_attribute_typo",
            "use `name` instead of `nmae` at test_shop.py:54",
            "test_shop.py",
            54,
            "    assert user.name == \"Ann\"",
        ),
        (
            "test_import_name",
            "import `find_user` from `shop.users` instead of `find_users`",
            "test_shop.py",
            58,
            "    from shop.users import find_user",
        ),
        (
            "test_module_missing",
            "import `shop.users` instead of `shop.usres`",
            "test_shop.py",
            62,
            "    import shop.users",
        ),
        (
            "test_unexpected_keyword",
            "pass `attempts` instead of `attemps` at test_shop.py:66",
            "test_shop.py",
            66,
            "    assert page(\"http://x\", attempts=2) == \"x\"",
        ),
        ("test_fixture", "ask for `client` instead of `clinet`", "test_shop.py", 78, "    assert client"),
        (
            "test_mock_path",
            "patch `shop.mail.send_mail` instead of `shop.mail.send_mial`",
            "test_shop.py",
            82,
            "    with mock.patch(\"shop.mail.send_mail\") as sent:",
        ),
        (
            "test_mock_module",
            "patch `shop.mail.send` instead of `shop.mial.send`",
            "test_shop.py",
            87,
            "    with mock.patch(\"shop.mail.send\") as sent:",
        ),
        (
            "test_none_no_return",
            "shop/users.py:28 computes `result` and does not return it",
            "shop/users.py",
            30,
            "    return result",
        ),
    ] {
        let step = of(&format!("test_shop.py::{test}"), &read);
        assert_eq!(step.text, text);
        let copy = Copy::new(test);
        copy.apply(&step.diff.unwrap_or_else(|| panic!("{test} has no diff")));
        assert_eq!(copy.line(file, line), expected, "{test}");
    }
}

#[test]
fn a_diff_is_made_of_recorded_lines_where_files_cannot_be_read() {
    for (test, line, expected) in [
        ("test_name_typo", 49, "    assert result == 3"),
        ("test_attribute_typo", 54, "    assert user.name == \"Ann\""),
    ] {
        let step = of(&format!("test_shop.py::{test}"), &|_| None);
        let copy = Copy::new(&format!("{test}-lines"));
        copy.apply(&step.diff.unwrap_or_else(|| panic!("{test} has no diff")));
        assert_eq!(copy.line("test_shop.py", line), expected);
    }
}

#[test]
fn a_file_that_was_changed_since_is_left_alone() {
    let changed = |path: &str| read(path).map(|text| text.replace("    assert reslt == 3", "    assert result == 3"));
    assert_eq!(of("test_shop.py::test_name_typo", &changed).diff, None);
}

#[test]
fn what_to_evaluate_and_in_which_frame() {
    for (test, call) in [
        ("test_none_from_call", r#"execute("find_user(key)", target="failure:k3n7q2#1")"#),
        ("test_none_attribute_of_argument", r#"execute("find_user(\"bob\")", target="failure:k3n7q2#2")"#),
        ("test_renamed_keyword", r#"execute("import inspect; inspect.signature(page)", target="failure:k3n7q2#1")"#),
        ("test_key", r#"execute("list(settings())", target="failure:k3n7q2#1")"#),
        ("test_compare_text", r#"execute("greeting(\"ann\")", target="failure:k3n7q2#1")"#),
    ] {
        let step = of(&format!("test_shop.py::{test}"), &read);
        assert_eq!(step.evaluate.unwrap_or_else(|| panic!("{test}: {}", step.text)).call(), call);
        assert_eq!(step.diff, None);
    }
}

#[test]
fn a_file_without_a_last_line_end_can_be_changed() {
    let copy = Copy::new("open-end");
    fs::write(copy.0.join("open.py"), "import os\nx = 1").unwrap();
    let mut edits = Edits::of("open.py", "import os\nx = 1");
    edits.replace(1, "x = 2".into());
    copy.apply(&edits.diff().unwrap());
    assert_eq!(fs::read_to_string(copy.0.join("open.py")).unwrap(), "import os\nx = 2");
    let mut edits = Edits::of("open.py", "import os\nx = 2");
    edits.insert(2, "y = 3".into());
    copy.apply(&edits.diff().unwrap());
    assert_eq!(fs::read_to_string(copy.0.join("open.py")).unwrap(), "import os\nx = 2\ny = 3\n");
}

#[test]
fn imports_go_where_imports_are() {
    let place = |text: &str, statement: &str| {
        let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        imports::place_for(&lines, statement)
    };
    assert_eq!(place("import a\nimport z\n\nx = 1\n", "import json"), 1);
    assert_eq!(place("import a\nfrom b import (\n    c,\n)\n\nx = 1\n", "from pathlib import Path"), 4);
    assert_eq!(place("\"\"\"What.\n\nMore.\n\"\"\"\nx = 1\n", "import json"), 4);
    assert_eq!(place("#!/usr/bin/env python\nfrom __future__ import annotations\nx = 1\n", "import json"), 2);
    assert_eq!(place("", "import json"), 0);
    assert_eq!(import_of("pd").as_deref(), Some("import pandas as pd"));
    assert_eq!(import_of("frobnicate"), None);
}

#[test]
fn what_a_frame_does_not_know_is_not_evaluated() {
    let evidence = |line: &str, locals: &[&str], globals: &[&str]| -> Evidence {
        let locals: Vec<_> =
            locals.iter().map(|name| serde_json::json!({"name": name, "type": "int", "value": "1"})).collect();
        serde_json::from_value(serde_json::json!({
            "exception": {"type": "AssertionError", "message": "assert 1 == 2"},
            "frames": [{"file": "test_a.py", "line": 2, "function": "test_a", "in_app": true, "statement": [2, 2],
                "source": {"first": 2, "lines": [line]}, "locals": locals, "globals": globals}],
        }))
        .unwrap()
    };
    let code = |evidence: &Evidence| {
        let around = Around::nothing("k3n7q2", "test_a.py::test_a");
        let step = next_steps(evidence, &around).into_iter().next();
        step.and_then(|step| step.evaluate).map(|evaluate| evaluate.code)
    };
    assert_eq!(code(&evidence("    assert f(a) == 2", &["a"], &["f"])).as_deref(), Some("f(a)"));
    // `f` was deleted, or is a name of another scope.
    assert_eq!(code(&evidence("    assert f(a) == 2", &["a"], &["len"])).as_deref(), Some("a"));
    assert_eq!(code(&evidence("    assert [x for x in a] == 2", &["a"], &["len"])).as_deref(), Some("[x for x in a]"));
    // Half a statement is no code.
    assert_eq!(code(&evidence("    assert (a, [1,", &["a"], &["len"])).as_deref(), Some("a"));
}
