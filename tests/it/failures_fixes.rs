//! What is said about failures of real projects: next steps that fix the test, and analysis that names what git knows.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::Value;

use crate::support::{Home, pytest_python, skip};

static COMMITS: AtomicU32 = AtomicU32::new(0);

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
        // A commit has seconds, and several are made in one.
        .env("GIT_COMMITTER_DATE", format!("{} +0000", 1_800_000_000 + COMMITS.fetch_add(1, Ordering::Relaxed)))
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
        // What failed only after others is not mended by a pass alone.
        assert_eq!(run_tests(&home, &[test]), Some(1), "{test} fails by itself too");
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
    assert_eq!((&group["trend"]["direction"], count(&group["trend"]["recent"])), (&"new".into(), 2), "{group}");
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

/// Ten functions with a fault each, in the usual ways of small projects: tests of one file, with words in common, that build what they
/// need with one helper.
const UNRELATED: &[(&str, &str)] = &[
    (
        "shop.py",
        "import json, math
def order(n=1): return {'items': [{'price': n, 'name': 'tea'}], 'user': None, 'total': n}
def price(o): return o['items'][0]['prise']
def tax(o): return o['total'] * '0.2'
def user_name(o): return o['user'].name
def user_mail(o): return o['user'].mail
def discount(o): return o['total'] + 1
def ship(o): raise RuntimeError('no carrier for order')
def export(o): return json.dumps({1, 2})
def parse(text): return int(text)
def ratio(o): return o['total'] / 0
def weight(o): return math.sqrt(-o['total'])
",
    ),
    (
        "test_shop.py",
        "from shop import *
def test_order_price(): assert price(order(3)) == 3
def test_order_tax(): assert tax(order(3)) == 0.6
def test_order_user_name(): assert user_name(order()) == 'ann'
def test_order_user_mail(): assert user_mail(order()) == 'a@b'
def test_order_discount():
    o = order(5)
    assert discount(o) == 4
def test_order_ship(): assert ship(order()) is None
def test_order_export(): assert export(order()) == '{}'
def test_order_parse(): assert parse('three') == 3
def test_order_ratio(): assert ratio(order()) == 1
def test_order_weight(): assert weight(order()) == 1
",
    ),
];

fn write(home: &Home, files: &[(&str, &str)]) {
    for (name, text) in files {
        fs::write(home.work().join(name), text).expect("the home is writable");
    }
}

fn failures(home: &Home) -> Vec<Value> {
    json(home, &["failures", "list", "--json"])["failures"].as_array().expect("a list").clone()
}

fn groups(failures: &[Value]) -> std::collections::BTreeMap<String, Vec<String>> {
    let mut groups = std::collections::BTreeMap::<String, Vec<String>>::new();
    for failure in failures {
        let of = |key: &str| failure[key].as_str().expect("a text").to_owned();
        groups.entry(of("group")).or_default().push(of("test"));
    }
    groups
}

#[test]
fn unrelated_failures_of_a_small_project_are_not_one_group() {
    let Some(home) = home("unrelated_failures_of_a_small_project_are_not_one_group") else { return };
    let fixed = [
        ("shop.py", "def __getattr__(name): return lambda *a: None\n"),
        ("test_shop.py", "def test_nothing(): pass\n"),
    ];
    write(&home, &fixed);
    assert_eq!(run_tests(&home, &[]), Some(0));
    write(&home, UNRELATED);
    assert_eq!(run_tests(&home, &[]), Some(1));
    let found = groups(&failures(&home));
    assert_eq!(found.len(), 10, "{found:#?}");
    assert_eq!(run_tests(&home, &["-v"]), Some(1));
    let again = groups(&failures(&home));
    assert_eq!(again, found, "a second run says nothing new");
}

#[test]
fn what_python_itself_has_puts_nothing_together() {
    let Some(home) = home("what_python_itself_has_puts_nothing_together") else { return };
    let files = [
        (
            "test_cart.py",
            "import json, os
from unittest.mock import Mock
def test_cart(): raise ValueError('bad cart')
def test_cart_set(): assert os.environ.get('CART') == '1'
def test_cart_text(): assert json.loads('[1]') == [2]
def test_cart_mock(): assert Mock().price == 3
",
        ),
        (
            "test_weather.py",
            "import json, os
from unittest.mock import Mock
def test_weather(): raise ValueError('weather too cold')
def test_sun(): assert os.environ.get('WEATHER') == 'sunny'
def test_rain(): assert json.loads('{}') == 'rain'
def test_wind(): assert Mock().wind == 'north'
",
        ),
    ];
    write(&home, &files);
    assert_eq!(run_tests(&home, &[]), Some(1));
    let found = groups(&failures(&home));
    assert_eq!(found.len(), 8, "{found:#?}");
}

#[test]
fn one_fault_that_shows_in_three_ways_is_one_group_with_a_true_reason() {
    let Some(home) = home("one_fault_that_shows_in_three_ways_is_one_group_with_a_true_reason") else { return };
    let files = [
        (
            "shop.py",
            "def rate(country): return {'de': 0.2}[country.upper()]
def tax(amount, country): return amount * rate(country)
def label(country):
    try:
        return f'{rate(country):.0%}'
    except KeyError as error:
        raise ValueError('no label') from error
def other(): return 1
",
        ),
        (
            "test_shop.py",
            "import pytest
from shop import *
def test_tax(): assert tax(10, 'de') == 2
def test_label(): assert label('de') == '20%'
@pytest.mark.parametrize('country', ['de', None])
def test_rate(country): assert rate(country)
def test_other(): assert other() == 2
",
        ),
    ];
    write(&home, &files);
    assert_eq!(run_tests(&home, &[]), Some(1));
    let all = failures(&home);
    let found = groups(&all);
    assert_eq!(found.len(), 2, "{found:#?}");
    let id = all.iter().find(|failure| failure["test"] == "test_shop.py::test_tax").expect("it failed")["id"].clone();
    let shown = json(&home, &["failures", "show", id.as_str().expect("an id"), "--json"]);
    assert_eq!(shown["why_grouped"], "all 4 fail in `shop:rate`", "{shown}");
}

#[test]
fn a_failure_is_the_same_however_much_pytest_explains() {
    let Some(home) = home("a_failure_is_the_same_however_much_pytest_explains") else { return };
    let files = [(
        "test_long.py",
        "def rows(n): return {f'key{i}': list(range(i)) for i in range(n)}
def test_rows(): assert rows(30) == rows(29)
def test_text(): assert 'a' * 300 + 'b' == 'a' * 300 + 'c', 'texts differ'
",
    )];
    write(&home, &files);
    for arguments in [&[][..], &["-v"], &["-vv"]] {
        assert_eq!(run_tests(&home, arguments), Some(1));
    }
    let in_ci = home.command(&["test", "-q", "-p", "no:cacheprovider"]).env("CI", "true").output().expect("it runs");
    assert_eq!(in_ci.status.code(), Some(1));
    let all = failures(&home);
    let seen: Vec<&Value> = all.iter().map(|failure| &failure["occurrences"]).collect();
    assert_eq!(seen, [&serde_json::json!(4), &serde_json::json!(4)], "{all:#?}");
}

#[test]
fn an_older_commit_that_passes_is_no_fix_and_uncommitted_changes_are_named() {
    let Some(home) = home("an_older_commit_that_passes_is_no_fix_and_uncommitted_changes_are_named") else { return };
    let test = "from shop import price\ndef test_price(): assert price(2) == 4\n";
    git(&home, &["init", "-q"]);
    write(&home, &[("shop.py", "def price(n):\n    rate = 2\n    return n * rate\n"), ("test_shop.py", test)]);
    git(&home, &["add", "-A"]);
    git(&home, &["commit", "-qm", "good"]);
    assert_eq!(run_tests(&home, &[]), Some(0));
    write(&home, &[("shop.py", "def price(n):\n    rate = '2'\n    return n + rate\n")]);
    assert_eq!(run_tests(&home, &[]), Some(1));
    let id = failures(&home)[0]["id"].as_str().expect("an id").to_owned();
    let shown = json(&home, &["failures", "show", &id, "--json"]).to_string();
    assert!(shown.contains("in the uncommitted changes since it passed on"), "{shown}");
    git(&home, &["stash", "-q"]);
    assert_eq!(run_tests(&home, &[]), Some(0));
    let status = || json(&home, &["failures", "show", &id, "--json"])["status"].clone();
    assert_eq!(status(), "new", "it passed there before");
    git(&home, &["stash", "pop", "-q"]);
    write(&home, &[("shop.py", "def price(n):\n    return n * 2\n")]);
    assert_eq!(run_tests(&home, &[]), Some(0));
    assert_eq!(status(), "resolved");
}

#[test]
fn an_older_commit_that_was_never_run_is_no_fix() {
    let Some(home) = home("an_older_commit_that_was_never_run_is_no_fix") else { return };
    let test = "from shop import price\ndef test_price(): assert price(2) == 4\n";
    git(&home, &["init", "-q"]);
    for (name, body) in [("first", "n * 2"), ("second", "2 * n"), ("third", "n * '2'")] {
        write(&home, &[("shop.py", &format!("def price(n):\n    return {body}\n")), ("test_shop.py", test)]);
        git(&home, &["add", "-A"]);
        git(&home, &["commit", "-qm", name]);
    }
    assert_eq!(run_tests(&home, &[]), Some(1));
    let id = failures(&home)[0]["id"].as_str().expect("an id").to_owned();
    let status = || json(&home, &["failures", "show", &id, "--json"])["status"].clone();
    git(&home, &["checkout", "-q", "HEAD~2"]);
    assert_eq!(run_tests(&home, &[]), Some(0));
    assert_eq!(status(), "new", "looking for the commit that broke it mends nothing");
    git(&home, &["checkout", "-q", "main"]);
    git(&home, &["revert", "--no-edit", "HEAD"]);
    assert_eq!(run_tests(&home, &[]), Some(0));
    assert_eq!(status(), "resolved");
}

/// What is thought of each failure of a project, by the name of its test, with the whole answer.
fn explained(home: &Home) -> Vec<(String, String, Value)> {
    let listed = json(home, &["failures", "list", "--json"]);
    let failures = listed["failures"].as_array().expect("a list").clone();
    let shown = failures.iter().map(|failure| {
        let id = failure["id"].as_str().expect("an id");
        let shown = json(home, &["failures", "show", id, "--json"]);
        let texts: Vec<&str> =
            shown["hypotheses"].as_array().expect("a list").iter().filter_map(|one| one["text"].as_str()).collect();
        let test = failure["test"].as_str().expect("a test").rsplit("::").next().unwrap_or_default().to_owned();
        (test, texts.join("\n"), shown.clone())
    });
    shown.collect()
}

#[test]
fn nothing_is_said_that_the_evidence_or_the_frozen_copy_denies() {
    let Some(home) = home("nothing_is_said_that_the_evidence_or_the_frozen_copy_denies") else { return };
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/projects/claims");
    copy_tree(&project, &home.work());
    assert_eq!(run_tests(&home, &[]), Some(1));
    let all = explained(&home);
    let of = |test: &str| all.iter().find(|(name, ..)| name == test).unwrap_or_else(|| panic!("no {test}: {all:#?}"));
    let text = |test: &str| of(test).1.as_str();
    assert!(
        text("test_uncalled").contains("only `setup` assigns it (test_claims.py:8), and that has not run"),
        "{}",
        text("test_uncalled")
    );
    assert!(!text("test_uncalled").contains("it has"), "{}", text("test_uncalled"));
    let copy = text("test_installed_copy");
    assert!(copy.contains("`shopping.compat` (shopping 2.0) has no `PY2`"), "{copy}");
    assert!(
        copy.contains("src/shopping/compat.py of this project has it, but the installed copy was imported"),
        "{copy}"
    );
    let elsewhere = text("test_elsewhere");
    assert!(elsewhere.contains("below the working directory") && elsewhere.contains("test_elsewhere0"), "{elsewhere}");
    assert!(!text("test_there_by_now").contains("there was no"), "{}", text("test_there_by_now"));
    assert!(!text("test_meant_to_be_none").contains("was None"), "{}", text("test_meant_to_be_none"));
    let (_, by_now, shown) = of("test_not_none_by_now");
    assert!(shown["frozen"]["target"].is_string(), "a copy is there to ask: {}", shown["frozen"]);
    assert!(!by_now.contains("was None"), "the copy has another value: {by_now}");
    let shown = &of("test_names_of_another_scope").2;
    let frame = &shown["seen"][0]["evidence"]["frames"][0];
    let lines = frame["source"]["lines"].as_array().expect("lines");
    assert!(lines.iter().any(|line| line.as_str().is_some_and(|line| line.trim() == "]")), "to the end: {frame}");
    // Whatever is to be evaluated can be.
    let mut evaluated = 0;
    for (test, _, shown) in &all {
        if let (Some(code), Some(target)) =
            (shown["next_step"]["evaluate"]["code"].as_str(), shown["next_step"]["evaluate"]["target"].as_str())
        {
            let told = home.run(&["exec", "-t", target, code]);
            assert!(
                !told.stderr.contains("NameError") && !told.stdout.contains("NameError"),
                "{test}: {code}: {told:?}"
            );
            assert!(
                !told.stderr.contains("SyntaxError") && !told.stdout.contains("SyntaxError"),
                "{test}: {code}: {told:?}"
            );
            evaluated += 1;
        }
    }
    assert!(evaluated >= 3, "{all:#?}");
}

#[test]
fn the_stack_of_a_crash_is_kept_and_says_where_it_was() {
    let Some(home) = home("the_stack_of_a_crash_is_kept_and_says_where_it_was") else { return };
    let text = "import faulthandler\n\ndef crash():\n    faulthandler._sigsegv()\n\ndef test_it():\n    crash()\n";
    fs::write(home.work().join("test_crash.py"), text).expect("the home is writable");
    let told = home.run(&["test", "-q", "-p", "no:cacheprovider"]);
    assert!(told.stderr.contains("Fatal Python error: Segmentation fault"), "it is shown all the same: {told:?}");
    let all = explained(&home);
    let [(test, said, shown)] = &all[..] else { panic!("{all:#?}") };
    assert_eq!(test, "test_it");
    assert!(
        said.contains("the interpreter crashed in crash at test_crash.py:4: Fatal Python error: Segmentation fault"),
        "{said}"
    );
    let evidence = &shown["seen"][0]["evidence"];
    assert!(evidence["text"].as_str().is_some_and(|text| text.contains("line 7 in test_it")), "{evidence}");
    assert_eq!(evidence["frames"][0]["function"], "crash", "{evidence}");
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the home is writable");
    for entry in fs::read_dir(from).expect("the project is there").flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_tree(&path, &to);
        } else {
            fs::copy(path, to).expect("the home is writable");
        }
    }
}
