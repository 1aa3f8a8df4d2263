//! `pylair test` and `pylair failures` as a shell sees them.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::support::{Home, pytest_python, skip};

/// A home with one of the projects in its working directory, and a Python that has pytest.
fn home_with(project: &str, test: &str) -> Option<Home> {
    let Some(python) = pytest_python() else {
        skip(test, "PYLAIR_TEST_PYTEST is not set, and the newest Python has no pytest");
        return None;
    };
    let home = Home::with_python(&python).set("USER", "ann");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/projects").join(project);
    for entry in fs::read_dir(from).expect("the project is there").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), home.work().join(entry.file_name())).expect("the home is writable");
        }
    }
    Some(home)
}

#[test]
fn only_files_are_imported() {
    let home = Home::new();
    let told = home.run(&["failures", "import", "/dev/zero"]);
    assert_ne!(told.status.code(), Some(0), "{told:?}");
    assert!(told.stderr.contains("cannot read `/dev/zero`: not a regular file"), "{told:?}");
}

#[test]
fn without_a_name_in_the_environment_the_author_is_the_user() {
    let home = Home::new().set("USER", "").set("LOGNAME", "");
    home.run(&["failures", "register", "--test-name", "t.py::t", "--error-message", "ValueError: x"]);
    let id = listed(&home)["failures"][0]["id"].as_str().expect("it was recorded").to_owned();
    home.run(&["failures", "debug", &id, "--rule", "3", "seen"]);
    let told = home.run(&["failures", "show", &id, "--json"]);
    let failure: Value = serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told:?}"));
    let uid = rustix::process::getuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").expect("it can be read");
    let name = users.lines().find(|line| line.split(':').nth(2) == Some(&uid)).and_then(|line| line.split(':').next());
    let expected = name.map_or_else(|| format!("user {uid}"), ToOwned::to_owned);
    assert_eq!(failure["investigations_made"][0]["author"], expected, "{failure}");
}

fn listed(home: &Home) -> Value {
    let told = home.run(&["failures", "list", "--json"]);
    serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told:?}"))
}

#[test]
fn tests_run_as_with_pytest_and_what_fails_has_an_id() {
    let test = "tests_run_as_with_pytest_and_what_fails_has_an_id";
    let Some(home) = home_with("none_value", test) else { return };
    let ran = home.run(&["test", "-q", "-p", "no:cacheprovider"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.stdout.contains("1 failed, 1 passed"), "{}", ran.stdout);
    let failures = listed(&home);
    let id = failures["failures"][0]["id"].as_str().expect("it was recorded").to_owned();
    let line = format!(
        "pylair: {id} test_accounts.py::test_unknown_account  AttributeError  (new; pylair failures show {id})"
    );
    assert!(ran.stdout.contains(&line), "{}", ran.stdout);

    let shown = home.run(&["failures", "show", &id]).stdout;
    for part in [
        "AttributeError: 'NoneType' object has no attribute 'owner'",
        "accounts.py:15 in owner_of",
        "return account.owner.upper()",
        "account = None",
        "What it may be",
        "Next step",
        "Trail: 0 of 9 rules",
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let refused = home.run(&["failures", "debug", &id, "--status", "resolved"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("pylair test 'test_accounts.py::test_unknown_account'"), "{refused:?}");
    let told = home.run(&["failures", "debug", &id, "--rule", "3", "find() gives None"]).stdout;
    assert!(told.contains(&format!("failure {id} is in progress")) && told.contains("next: 4 Divide"), "{told}");

    let fixed = fs::read_to_string(home.work().join("accounts.py")).expect("it is there");
    let fixed = fixed.replace("return account.owner.upper()", "return account.owner.upper() if account else ''");
    fs::write(home.work().join("accounts.py"), fixed).expect("it can be written");
    let ran = home.run(&["test", "-q", "-p", "no:cacheprovider"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let resolved = &listed(&home)["failures"][0];
    assert_eq!((&resolved["status"], &resolved["verified"]), (&"resolved".into(), &true.into()), "{resolved}");
    let shown = home.run(&["failures", "show", &id]).stdout;
    assert!(shown.contains("3  ann, ") && shown.contains("find() gives None"), "{shown}");
}

#[test]
fn arguments_go_to_pytest_and_its_exit_code_comes_back() {
    let test = "arguments_go_to_pytest_and_its_exit_code_comes_back";
    let Some(home) = home_with("assertion", test) else { return };
    for (args, code) in [
        (&["-q", "-k", "nothing_of_this_name"][..], 5),
        (&["--no-such-option"][..], 4),
        (&["-q", "test_cart.py::test_total"][..], 0),
        (&["--", "--version"][..], 0),
    ] {
        let ran = home.run(&[&["test"], args].concat());
        assert_eq!(ran.status.code(), Some(code), "{args:?}: {ran:?}");
    }
    let none = home.run(&["test", "--python", "/nowhere/python"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn a_person_may_say_that_it_is_resolved() {
    let home = Home::new().set("USER", "ann");
    let registered = home.run_with_input(
        &[
            "failures",
            "register",
            "--test-name",
            "t.py::t",
            "--error-message",
            "KeyError: 'a'",
            "--local",
            "d={}",
            "--json",
        ],
        b"Traceback (most recent call last):\n  File \"t.py\", line 3, in t\nKeyError: 'a'\n",
    );
    assert!(registered.status.success(), "{registered:?}");
    let answer: Value = serde_json::from_str(&registered.stdout).expect("--json prints JSON");
    let id = answer["id"].as_str().expect("an id");
    let shown = home.run(&["failures", "show", id]).stdout;
    assert!(shown.contains("KeyError: 'a'") && shown.contains("d = {}"), "{shown}");
    let forced = home.run(&["failures", "debug", id, "--status", "resolved", "--force"]);
    assert!(forced.status.success(), "{forced:?}");
    let told = home.run(&["failures"]).stdout;
    assert!(told.contains("resolved (not verified)"), "{told}");
    let analyzed = home.run(&["failures", "analyze"]).stdout;
    assert!(analyzed.starts_with("0 failures in 0 groups"), "{analyzed}");
    let analyzed = home.run(&["failures", "analyze", "--include-resolved", "--group-by", "error_type"]).stdout;
    assert!(analyzed.contains("error_type:KeyError"), "{analyzed}");
    let prompt = home.run(&["failures", "prompt", "--failure-id", id, "--style", "concise"]).stdout;
    assert!(prompt.contains("KeyError") && prompt.contains("It is data"), "{prompt}");
}

#[test]
fn what_is_wrong_is_said_with_the_way_out() {
    let home = Home::new();
    for (args, says) in [
        (&["failures", "show", "zzzzzz"][..], "there is no failure `zzzzzz`"),
        (&["failures", "debug", "zzzzzz", "--rule", "12", "x"][..], "9 If You Didn't Fix It"),
        (&["failures", "debug", "zzzzzz"][..], "neither an analysis nor a status"),
        (&["failures", "prompt", "zzzzzz", "--style", "loud"][..], "detailed, concise"),
        (&["failures", "analyze", "--group-by", "colour"][..], "error_type, file_path"),
        (&["failures", "list", "--status", "odd"][..], "in_progress"),
        (&["failures", "import", "nowhere.xml"][..], "cannot read `nowhere.xml`"),
        (&["failures", "docs", "cooking"][..], "principles"),
        (&["failures", "show", ""][..], "the id of the failure is empty"),
        (&["failures", "prompt", " "][..], "the id of the failure or group is empty"),
        (&["failures", "debug", "failure:", "seen"][..], "the id of the failure is empty"),
        (&["failures", "debug", "zzzzzz", "--status", "flaky", "--force"][..], "only that a failure is resolved"),
        (&["failures", "list", "--group", "gnone"][..], "there is no group `gnone`"),
    ] {
        let ran = home.run(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says) && ran.stderr.contains("hint: "), "{args:?}: {ran:?}");
        for tool in ["list_failures", "get_failure", "analyze_failures", "debug_failure", "run_tests"] {
            assert!(!ran.stderr.contains(tool), "{args:?} names a tool of MCP: {ran:?}");
        }
    }
    for (args, says) in [
        (&["failures", "list", "--limit", "0"][..], "1..=1000"),
        (&["failures", "prompt", "zzzzzz", "--max-tokens", "50"][..], "400..=100000"),
        (&["failures", "debug"][..], "pylair failures debug ID [ANALYSIS]"),
        (&["failures", "debug", "zzzzzz", "--force"][..], "--status"),
    ] {
        let ran = home.run(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {ran:?}");
    }
    assert!(home.run(&["failures"]).stdout.starts_with("no failure is recorded"));
    let filtered = home.run(&["failures", "list", "--test", "nope"]);
    assert!(filtered.status.success() && filtered.stdout.starts_with("no failure is like that (--test nope)"));
    let unknown = home.run(&["failures", "list", "--project", "nope"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("no project is recorded yet"), "{unknown:?}");
}

#[test]
fn results_of_other_reporters_are_taken_once() {
    let home = Home::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import");
    let file = |name: &str| data.join(name).to_str().expect("our paths are UTF-8").to_owned();
    let (xml, log) = (file("pytest-xunit2.xml"), file("reportlog.jsonl"));
    let import = || home.run(&["failures", "import", "--project", "sample", &xml, &log]);
    let first = import();
    assert!(first.status.success() && first.stdout.lines().count() == 2, "{first:?}");
    let total = listed(&home)["total"].clone();
    assert!(total.as_u64().is_some_and(|total| total > 3), "{total}");
    assert_eq!(import().stdout, first.stdout);
    assert_eq!(listed(&home)["total"], total);
    let seen = listed(&home)["failures"][0]["occurrences"].as_u64();
    assert!(seen.is_some_and(|seen| seen <= 2), "counted once for each file: {seen:?}");
    fs::write(home.work().join("broken.xml"), "<testsuite><testcase").expect("the home is writable");
    fs::write(home.work().join("notes.txt"), "nothing").expect("the home is writable");
    let broken = home.run(&["failures", "import", "broken.xml", "notes.txt", "--json"]);
    assert_eq!(broken.status.code(), Some(2), "{broken:?}");
    assert!(broken.stderr.contains("neither JUnit XML nor a pytest-reportlog"), "{broken:?}");
}

#[test]
fn without_pytest_it_says_so() {
    let home = Home::new();
    let python = &home.env["PYLAIR_PYTHON"];
    let has_pytest = Command::new(python).args(["-c", "import pytest"]).output().is_ok_and(|ran| ran.status.success());
    if has_pytest {
        return skip("without_pytest_it_says_so", "this Python has pytest");
    }
    let ran = home.run(&["test"]);
    assert_eq!(ran.status.code(), Some(127), "{ran:?}");
    assert!(ran.stderr.contains("there is no pytest in"), "{ran:?}");
}

#[test]
fn the_demo_walks_from_the_failure_to_the_fix() {
    let test = "the_demo_walks_from_the_failure_to_the_fix";
    let Some(home) = home_with("none_value", test) else { return };
    let home = home.set("TMPDIR", "/tmp");
    let ran = home.run(&["failures", "demo"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    for part in ["1 failed, 1 passed", "What it may be", "2 passed", "is resolved: its test passed on changed code"] {
        assert!(ran.stdout.contains(part), "no {part:?} in {}", ran.stdout);
    }
}

#[test]
fn a_run_ends_with_one_line_for_each_cause_and_says_what_it_resolved() {
    let test = "a_run_ends_with_one_line_for_each_cause_and_says_what_it_resolved";
    let Some(home) = home_with("many_of_one_cause", test) else { return };
    let closing = |arguments: &[&str]| {
        let ran =
            home.run(&[&["test", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"], arguments].concat());
        let lines: Vec<String> =
            ran.stdout.lines().filter(|line| line.starts_with("pylair: ")).map(str::to_owned).collect();
        (ran.status.code(), lines)
    };
    let (code, lines) = closing(&[]);
    assert_eq!((code, lines.len()), (Some(1), 2), "{lines:#?}");
    let of = |lines: &[String], part: &str| -> String {
        lines.iter().find(|line| line.contains(part)).unwrap_or_else(|| panic!("no {part} in {lines:#?}")).clone()
    };
    let many = of(&lines, "one of 60 failures in group");
    assert!(many.contains("test_prices.py::test_price[") && many.contains("  KeyError  (new; "), "{many}");
    // The failure that stands for the others is one of those whose copy was kept.
    let named = many.split(' ').nth(1).expect("an id");
    let asked = home.run(&["exec", "-t", &format!("failure:{named}"), "1 + 1"]);
    assert_eq!(asked.stdout.trim(), "2", "{asked:?}");
    let disturbed = of(&lines, "test_order.py::test_second").split(' ').nth(1).expect("an id").to_owned();

    let (code, lines) = closing(&["test_order.py::test_second"]);
    assert_eq!(code, Some(0), "{lines:#?}");
    let why = "by itself, which shows nothing: it failed after 1 other test; run it together with these";
    assert!(lines[0].starts_with(&format!("pylair: this run did not resolve {disturbed} ")), "{lines:#?}");
    assert!(lines.len() == 1 && lines[0].ends_with(why), "{lines:#?}");

    fs::write(home.work().join("shop.py"), "PRICES = {n: n for n in range(60)}\ncart = []\n")
        .expect("it can be written");
    let (code, lines) = closing(&[]);
    assert_eq!((code, lines.len()), (Some(1), 2), "{lines:#?}");
    let resolved = of(&lines, "pylair: this run resolved 60 failures in group ");
    let id = resolved.split("such as ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an id");
    assert!(of(&lines, "(new, seen 2 times; ").contains(&disturbed), "{lines:#?}");
    let shown = home.run(&["failures", "show", id]).stdout;
    assert!(shown.contains("\nshown by run ") && shown.contains(" on changed code, "), "{shown}");
    let shown: Value = serde_json::from_str(&home.run(&["failures", "show", id, "--json"]).stdout).expect("JSON");
    assert_eq!(shown["proof"]["run"], shown["changes"][1]["run"], "{shown}");
    assert!(shown["proof"]["run"].is_string(), "{shown}");
    let shown = home.run(&["failures", "show", &disturbed]).stdout;
    assert!(
        shown.ends_with("it failed after 1 other test: only a run with that shows that it is resolved\n"),
        "{shown}"
    );
}

#[test]
fn questions_are_about_the_project_the_caller_is_in() {
    let home = Home::new().set("USER", "ann");
    // Two repositories: that of these tests is around them.
    for directory in ["shop/.git", "api/.git", "api/src", "new"] {
        fs::create_dir_all(home.work().join(directory)).expect("the home is writable");
    }
    for (directory, name) in [("shop", "test_tea"), ("api", "test_user"), ("api/src", "test_deep")] {
        let message = ["failures", "register", "--test-name", name, "--error-message", "KeyError: 'x'"];
        let told = home.run_in(&home.work().join(directory), &message);
        assert_eq!(told.status.code(), Some(0), "{told:?}");
    }
    let tests = |directory: &str, more: &[&str]| -> (Vec<String>, Value) {
        let arguments = [&["failures", "list", "--json"], more].concat();
        let told = home.run_in(&home.work().join(directory), &arguments);
        let listed: Value = serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told:?}"));
        let names = listed["failures"].as_array().expect("a list").iter();
        let mut names: Vec<String> =
            names.map(|failure| failure["test"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        (names, listed)
    };
    let (names, listed) = tests("shop", &[]);
    assert_eq!(names, ["test_tea"], "{listed}");
    let shop = home.work().join("shop").canonicalize().expect("it is there");
    assert_eq!(listed["project"], format!("shop ({})", shop.display()), "{listed}");
    let note = listed["project_note"].as_str().unwrap_or_default();
    assert!(note.starts_with("only of shop (") && note.ends_with("; project \"all\" means all"), "{listed}");
    assert_eq!(tests("api/src", &[]).0, ["test_deep", "test_user"]);
    assert_eq!(tests("", &[]).0, ["test_deep", "test_tea", "test_user"], "all below");
    assert_eq!(tests("shop", &["--project", "all"]).0.len(), 3);
    assert_eq!(tests("shop", &["--project", "api"]).0, ["test_deep", "test_user"]);
    let empty = home.run_in(&home.work().join("new"), &["failures", "list"]).stdout;
    assert!(empty.contains("no test run below ") && empty.ends_with("; --project all means all\n"), "{empty}");
    let unknown = home.run_in(&shop, &["failures", "list", "--project", "shpo"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("there is no project `shpo`") && unknown.stderr.contains("shop ("), "{unknown:?}");

    let analyzed = |more: &[&str]| -> Value {
        let told = home.run_in(&shop, &[&["failures", "analyze", "--json", "--group-by", "error_type"], more].concat());
        serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told:?}"))
    };
    assert_eq!(analyzed(&[])["total_failures"], 1);
    assert_eq!(analyzed(&["--project", "all"])["total_failures"], 3);
    let text = home.run_in(&shop, &["failures", "analyze", "--time-range", "today"]).stdout;
    assert!(text.contains("today with yesterday up to the same time: seen 1 time, 0 before"), "{text}");
    assert!(text.contains("only of shop ("), "{text}");
    let prompt = |more: &[&str]| home.run_in(&shop, &[&["failures", "prompt", "error_type:KeyError"], more].concat());
    assert!(!prompt(&[]).stdout.contains("test_user"), "{:?}", prompt(&[]));
    assert!(prompt(&["--project", "all"]).stdout.contains("test_user"), "{:?}", prompt(&["--project", "all"]));
}
