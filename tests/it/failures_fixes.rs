//! What is said about failures of real projects: next steps that fix the test, and analysis that names what git knows.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::support::{Home, pytest_python, skip};

fn home(test: &str) -> Option<Home> {
    let Some(python) = pytest_python() else {
        skip(test, "PYLAIR_TEST_PYTEST is not set, and the newest Python has no pytest");
        return None;
    };
    Some(Home::with_python(&python).set("USER", "ann"))
}

#[track_caller]
fn json(home: &Home, arguments: &[&str]) -> Value {
    let told = home.run(arguments);
    serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told:?}"))
}

#[track_caller]
fn git(home: &Home, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(home.work())
        .output()
        .expect("git is there");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn run_tests(home: &Home, arguments: &[&str]) -> Option<i32> {
    let arguments = [&["test", "-q", "-p", "no:cacheprovider"], arguments].concat();
    home.run(&arguments).status.code()
}

#[test]
fn next_steps_of_the_usual_failures_are_diffs_that_fix_them() {
    let Some(home) = home("next_steps_of_the_usual_failures_are_diffs_that_fix_them") else { return };
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/projects/mendable");
    for entry in fs::read_dir(from).expect("the project is there").flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), home.work().join(entry.file_name())).expect("the home is writable");
    }
    assert_eq!(run_tests(&home, &[]), Some(1));
    let listed = json(&home, &["failures", "list", "--json"]);
    let failures = listed["failures"].as_array().expect("a list");
    assert_eq!(failures.len(), 7, "{listed}");
    for failure in failures {
        let (id, test) = (failure["id"].as_str().expect("an id"), failure["test"].as_str().expect("a test"));
        let shown = json(&home, &["failures", "show", id, "--json"]);
        let step = &shown["next_step"];
        let diff = step["diff"].as_str().unwrap_or_else(|| panic!("{test}: no diff in {step}"));
        fs::write(home.work().join("step.diff"), diff).expect("the home is writable");
        git(&home, &["apply", "--check", "step.diff"]);
        git(&home, &["apply", "step.diff"]);
        assert_eq!(run_tests(&home, &[test]), Some(0), "{test} with {diff}");
        git(&home, &["apply", "--reverse", "step.diff"]);
    }
    let left = json(&home, &["failures", "analyze", "--json"]);
    assert_eq!(left["total_failures"], 0, "all of them are resolved: {left}");
    let all = json(&home, &["failures", "analyze", "--include-resolved", "--json"]);
    assert_eq!(all["total_failures"], 7, "{all}");
}

#[test]
fn analysis_names_the_commits_the_files_and_the_line_that_changed() {
    let Some(home) = home("analysis_names_the_commits_the_files_and_the_line_that_changed") else { return };
    let write = |file: &str, text: &str| fs::write(home.work().join(file), text).expect("the home is writable");
    let prices = |body: &str| {
        format!(
            "def find(prices, name):\n    {body}\n\n\ndef total(prices, names):\n    result = 0\n    for name in names:\n        result += find(prices, name)\n    return result\n"
        )
    };
    write("shop.py", &prices("return prices.get(name, 0)"));
    write("notes.txt", "one\n");
    write("other.py", "A = 1\n");
    write(
        "test_shop.py",
        "from shop import find, total\n\n\ndef test_total():\n    assert total({'a': 1}, ['a', 'b']) == 1\n\n\ndef test_find():\n    assert find({'a': 1}, 'a') == 1\n",
    );
    write(".gitignore", "__pycache__/\n");
    git(&home, &["init", "-q"]);
    git(&home, &["add", "."]);
    git(&home, &["commit", "-qm", "works"]);
    let good = git(&home, &["rev-parse", "HEAD"]);
    assert_eq!(run_tests(&home, &[]), Some(0));

    write("shop.py", &prices("return prices[name]"));
    write("notes.txt", "two\n");
    git(&home, &["commit", "-qam", "shorter"]);
    let bad = git(&home, &["rev-parse", "HEAD"]);
    assert_eq!(run_tests(&home, &[]), Some(1));
    write("other.py", "A = 2\n");
    git(&home, &["commit", "-qam", "something else"]);
    assert_eq!(run_tests(&home, &[]), Some(1));

    let report = json(&home, &["failures", "analyze", "--json"]);
    let group = &report["groups"][0];
    let count = |what: &Value| what.as_u64().expect("a number");
    assert_eq!((count(&group["failures"]), count(&group["occurrences"]), count(&group["tests"])), (1, 2, 1), "{group}");
    assert_eq!(group["between"]["last_good"], *good, "{group}");
    assert_eq!(group["between"]["first_bad"], *bad, "{group}");
    assert_eq!(group["between"]["files"], serde_json::json!(["notes.txt", "shop.py"]), "{group}");
    assert_eq!((&group["places"][0]["file"], &group["places"][0]["function"]), (&"shop.py".into(), &"find".into()));
    assert_eq!((&group["trend"]["direction"], count(&group["trend"]["last_week"])), (&"new".into(), 2), "{group}");
    assert!(group["first_seen"].as_str() < group["last_seen"].as_str(), "{group}");
    assert!(!group["priority"]["reasons"].as_array().expect("a list").is_empty(), "{group}");
    let said: Vec<&str> =
        group["hypotheses"].as_array().expect("a list").iter().filter_map(|one| one["text"].as_str()).collect();
    let changed = format!(
        "line 2 of shop.py, where frame 1 of the failure is, was changed between {} (passed) and {} (failed)",
        &good[..10],
        &bad[..10]
    );
    assert!(said.iter().any(|text| text.contains(&changed)), "{said:#?}");

    let of_week = json(&home, &["failures", "analyze", "--time-range", "week", "--json"]);
    assert_eq!(of_week["total_failures"], 1, "{of_week}");
    write("shop.py", &prices("return prices.get(name, 0)"));
    assert_eq!(run_tests(&home, &[]), Some(0));
    assert_eq!(json(&home, &["failures", "analyze", "--json"])["total_failures"], 0, "it is resolved");
    let all = json(&home, &["failures", "analyze", "--include-resolved", "--json"]);
    assert_eq!(all["groups"][0]["status"]["resolved"], 1, "{all}");
}
