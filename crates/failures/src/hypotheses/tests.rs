//! Against what real failing tests left behind: `tests/data/failures` has the project and the evidence of each of its tests.

use std::collections::BTreeMap;

use super::*;
use crate::{
    record::{Outcome, Phase},
    view::TestOutcome,
};

pub(crate) const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/failures");

pub(crate) fn recorded() -> BTreeMap<String, Evidence> {
    let text = std::fs::read_to_string(format!("{DATA}/evidence.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(format!("{DATA}/{path}")).ok().filter(|_| !path.starts_with('/'))
}

/// What is thought of a test of the project, the likeliest first.
fn of(nodeid: &str) -> Vec<Hypothesis> {
    let around = Around { files: &read, ..Around::nothing("k3n7q2", nodeid) };
    hypotheses(&recorded()[nodeid], &around)
}

#[track_caller]
fn check(test: &str, confidence: Confidence, text: &str, fact: &str) {
    let nodeid = format!("test_shop.py::{test}");
    let found = of(&nodeid);
    let first = found.first().unwrap_or_else(|| panic!("nothing is thought of {test}"));
    assert_eq!(first.text, text, "{test}");
    assert_eq!(first.confidence, confidence, "{test}");
    assert!(!first.because.is_empty());
    let facts: Vec<String> = first.evidence.iter().map(ToString::to_string).collect();
    assert!(facts.iter().any(|told| told == fact), "{test}: {fact} is not among {facts:#?}");
}

#[test]
fn what_was_none_and_where_it_came_from() {
    check(
        "test_none_from_call",
        Confidence::High,
        "`user` was None in greeting (shop/users.py:25): `user` comes from `find_user(key)` at shop/users.py:24, and `find_user` with \
         key = 'carl' gave None: its end can be reached without a return, after which it gives None (shop/users.py:13)",
        "#1 shop/users.py:25: user = None",
    );
    check(
        "test_none_attribute_of_argument",
        Confidence::High,
        "`user.mail` was None in domain_of (shop/users.py:20): the attribute `mail` of <shop.users.User object name='Bob' mail=None> holds \
         None; test_shop.py:23 passes `bob` for `user`: `bob` comes from `find_user(\"bob\")` at test_shop.py:22",
        "#2 test_shop.py:22: bob = find_user(\"bob\")",
    );
    check(
        "test_none_no_return",
        Confidence::Medium,
        "`total([1, 2])` was None in test_none_no_return (test_shop.py:27): `total` gave None: it has no return statement (shop/users.py:28)",
        "shop/users.py:28: def total(prices)",
    );
    check(
        "test_none_subscript",
        Confidence::High,
        "`found` was None in test_none_subscript (test_shop.py:32): `found` comes from `find_user(\"nobody\")` at test_shop.py:31, and \
         `find_user` gave None: its end can be reached without a return, after which it gives None (shop/users.py:13)",
        "#1 test_shop.py:32: found = None",
    );
}

#[test]
fn what_was_looked_up_and_is_not_there() {
    check(
        "test_key",
        Confidence::Medium,
        "`settings()` has no entry for the key 'prot' at shop/users.py:45, `return settings()[\"prot\"]`; 'port', at shop/users.py:41, is nearly the same",
        "#1 shop/users.py:41: `return {\"host\": \"localhost\", \"port\": 80}`",
    );
    check(
        "test_index",
        Confidence::High,
        "`items[len(items)]` at shop/users.py:49 asks for more than there is: the last index is 2, one below its length",
        "#1 shop/users.py:49: items = [1, 2, 3] (3 items)",
    );
    check(
        "test_attribute_typo",
        Confidence::High,
        "`user`, a User, has no attribute `nmae` at test_shop.py:54; it has `name`, which may be meant",
        "`user`, a User, has: mail, name",
    );
    check(
        "test_name_typo",
        Confidence::High,
        "`reslt` at test_shop.py:49 is not defined; `result` = 3 is, which may be meant",
        "#1 test_shop.py:49: `assert reslt == 3`",
    );
    check(
        "test_missing_import",
        Confidence::High,
        "`json` is used at shop/users.py:37 and never imported in shop/users.py",
        "#1 shop/users.py:37: `return json.dumps(value)`",
    );
    check(
        "test_import_name",
        Confidence::High,
        "`shop.users` has no `find_users`, which test_shop.py:58 imports; it has `find_user`",
        "#1 test_shop.py:58: `from shop.users import find_users`",
    );
    check(
        "test_module_missing",
        Confidence::High,
        "there is no module `shop.usres`, which test_shop.py:62 imports; there is `shop.users`",
        "#1 test_shop.py:62: `import shop.usres`",
    );
    let broken = of("test_broken.py");
    assert!(broken[0].text.starts_with("the package `shop` has no module `nothing`, which test_broken.py:1 imports"));
}

#[test]
fn a_key_that_the_recorded_container_does_not_have() {
    let evidence: Evidence = serde_json::from_value(serde_json::json!({
        "exception": {"type": "KeyError", "message": "'prot'"},
        "frames": [{"file": "a.py", "line": 2, "function": "f", "in_app": true,
            "source": {"first": 1, "lines": ["def f(config):", "    return config[\"prot\"]"]},
            "locals": [{"name": "config", "type": "dict", "value": "{'host': 'a', 'port': 80}"}]}]
    }))
    .unwrap();
    let found = hypotheses(&evidence, &Around::nothing("k3n7q2", "a.py::test"));
    assert_eq!(found[0].text, "`config` has no key 'prot' at a.py:2; it has 'port', which may be meant");
    assert_eq!(found[0].evidence[1].to_string(), "#1 a.py:2: keys of config: 'host', 'port'");
}

#[test]
fn calls_that_do_not_fit() {
    check(
        "test_unexpected_keyword",
        Confidence::High,
        "test_shop.py:66 passes `attemps` to page, whose parameter is called `attempts`; it is defined as \
         `def page(url, attempts=3, timeout=5.0)` at shop/users.py:32",
        "shop/users.py:32: `def page(url, attempts=3, timeout=5.0)`",
    );
    check(
        "test_renamed_keyword",
        Confidence::Medium,
        "page has no parameter `retries` (any more), which test_shop.py:70 passes; it is defined as \
         `def page(url, attempts=3, timeout=5.0)` at shop/users.py:32; nothing is passed for `attempts`, `timeout`, one of which may be its new name",
        "#1 test_shop.py:70: `assert page(\"http://x\", retries=2) == \"x\"`",
    );
    check(
        "test_missing_argument",
        Confidence::High,
        "test_shop.py:74 calls page without `url`; it is defined as `def page(url, attempts=3, timeout=5.0)` at shop/users.py:32",
        "#1 test_shop.py:74: `assert page() == \"x\"`",
    );
    check(
        "TestThings::test_method",
        Confidence::High,
        "test_shop.py:167 passes more arguments to TestThings.helper than it takes; it is defined as `def helper(self)` at test_shop.py:169",
        "#1 test_shop.py:167: `self.helper(1)`",
    );
}

#[test]
fn what_pytest_and_mock_say() {
    check(
        "test_fixture",
        Confidence::High,
        "there is no fixture `clinet`; there is `client`, which is probably meant",
        "test_shop.py:77: asks for the fixture 'clinet'",
    );
    check(
        "test_mock_path",
        Confidence::High,
        "the path `shop.mail.send_mial` that test_shop.py:82 patches does not exist: `shop.mail` has no `send_mial`, but `send_mail`",
        "shop.mail has: send, send_mail, smtplib",
    );
    check(
        "test_mock_module",
        Confidence::High,
        "the path `shop.mial.send` that test_shop.py:87 patches does not exist: `shop` has no `mial`, but `mail`",
        "#3 test_shop.py:87: `with mock.patch(\"shop.mial.send\") as sent:`",
    );
    check(
        "test_raises",
        Confidence::High,
        "`int(\"3\")` below test_shop.py:184 ran to its end without ValueError",
        "#1 test_shop.py:185: `int(\"3\")`",
    );
    check(
        "test_raises_match",
        Confidence::High,
        "the exception came, with another text: \"invalid literal for int() with base 10: 'x'\" does not match 'no such'",
        "#1 test_shop.py:189: match = no such",
    );
}

#[test]
fn the_two_sides_of_an_assertion() {
    check(
        "test_compare_dict",
        Confidence::Medium,
        "at test_shop.py:94 `actual` = {'a': 1, 'b': 3} was expected to equal `expected` = {'a': 1, 'b': 2}; differing: {'b': 3} != {'b': 2}",
        "#1 test_shop.py:94: left: `actual` = {'a': 1, 'b': 3}",
    );
    check(
        "test_compare_text",
        Confidence::Medium,
        "at test_shop.py:98 `greeting(\"ann\")` = 'Hello Ann' was expected to equal 'Hello ann'; they differ only in case",
        "#1 test_shop.py:98: right: 'Hello ann'",
    );
    check(
        "test_float",
        Confidence::High,
        "two floats that differ only by rounding (0.30000000000000004 and 0.3) are compared with == at test_shop.py:103; pytest.approx or \
         math.isclose is for that",
        "#1 test_shop.py:103: left: `price` = 0.30000000000000004",
    );
    check(
        "test_order",
        Confidence::High,
        "both sides at test_shop.py:113 hold the same 2 items in another order; `list({\"b\": 1, \"a\": 2})` has an order of its own",
        "#1 test_shop.py:113: left: `names` = ['b', 'a']",
    );
    check(
        "test_in_list",
        Confidence::Medium,
        "at test_shop.py:153 'carl' is not in `names` = ['ann', 'bob']",
        "#1 test_shop.py:153: right: `names` = ['ann', 'bob']",
    );
    check(
        "test_bool_call",
        Confidence::Medium,
        "`items` was not true at test_shop.py:158 (pytest shows `[]`), with items = []",
        "#1 test_shop.py:158: items = []",
    );
    check(
        "test_params[2]",
        Confidence::Medium,
        "at test_shop.py:148 `value % 2` = (2 % 2) was expected to equal 1",
        "#1 test_shop.py:148: value = 2",
    );
}

#[test]
fn what_comes_from_outside() {
    check(
        "test_file",
        Confidence::High,
        "there was no 'data/missing.csv' below the working directory /project, where test_shop.py:121 looks for it",
        "working directory when it failed: /project",
    );
    check(
        "test_encoding",
        Confidence::High,
        "the bytes read at test_shop.py:125 are not utf-8: byte 0xe9 at position 3 (in Latin-1 it would be a letter)",
        "#1 test_shop.py:125: `b\"caf\\xe9\".decode(\"utf-8\")`",
    );
    check(
        "test_connection",
        Confidence::Medium,
        "the test connects to ('127.0.0.1', 9) (test_shop.py:129), and nothing listens there: a service that has to be started first, \
         or a call that should be replaced",
        "#3 test_shop.py:129: ('127.0.0.1', 9)",
    );
    check(
        "test_timezone",
        Confidence::High,
        "a time with a time zone is used together with one that has none at test_shop.py:108; `datetime.datetime(2025, 1, 1)` makes one without",
        "#1 test_shop.py:108: `assert made < datetime.datetime(2025, 1, 1)`",
    );
    check(
        "test_zero",
        Confidence::Medium,
        "`len(values)` was zero at test_shop.py:175, with values = []",
        "#1 test_shop.py:175: values = []",
    );
}

#[test]
fn the_exception_before_is_looked_at_too() {
    let found = of("test_shop.py::test_chain");
    assert_eq!(
        found[0].text,
        "no entry for the key 'a' at test_shop.py:139, `{}[\"a\"]` (the failure is raised from this KeyError)"
    );
    assert_eq!(found[0].evidence[0].frame, None, "frames of another exception cannot be asked for by number");
}

#[test]
fn changes_and_flakiness_are_named_with_their_reason() {
    let nodeid = "test_shop.py::test_none_from_call";
    let evidence = &recorded()[nodeid];
    let between = Between {
        last_good: Some("aaaaaaaaaaaaaaaa".into()),
        first_bad: Some("bbbbbbbbbbbbbbbb".into()),
        files: vec!["README.md".into(), "shop/users.py".into()],
        lines: vec![("shop/users.py".into(), 25)],
    };
    let around = Around {
        between: Some(&between),
        tries: Some(Tries { passed: 2, failed: 3 }),
        ..Around::nothing("k3n7q2", nodeid)
    };
    let texts: Vec<String> = hypotheses(evidence, &around).into_iter().map(|found| found.text).collect();
    assert!(texts.contains(
        &"line 25 of shop/users.py, where frame 1 of the failure is, was changed between aaaaaaaaaa (passed) and bbbbbbbbbb (failed)"
            .to_owned()
    ), "{texts:#?}");
    assert!(
        texts.iter().any(|text| text.starts_with("the test is flaky: it passed 2 and failed 3 times on the same code")),
        "{texts:#?}"
    );

    let changed = vec!["shop/users.py".to_owned()];
    let around = Around { changed: &changed, ..Around::nothing("k3n7q2", nodeid) };
    let found = hypotheses(evidence, &around);
    assert!(found.iter().any(
        |found| found.text == "shop/users.py, where frame 1 of the failure is, has changes that are not committed"
    ));
}

/// A test that failed at the second of these lines.
fn failed(kind: &str, message: &str, lines: &[&str]) -> Evidence {
    serde_json::from_value(serde_json::json!({
        "exception": {"type": kind, "message": message},
        "frames": [{"file": "test_a.py", "line": 2, "function": "test_a", "module": "test_a", "in_app": true,
            "source": {"first": 1, "lines": lines}}]
    }))
    .unwrap()
}

#[track_caller]
fn first_of(evidence: &Evidence) -> String {
    let found = hypotheses(evidence, &Around::nothing("k3n7q2", "test_a.py::test_a"));
    found.first().map(|found| found.text.clone()).unwrap_or_default()
}

#[test]
fn signs_in_values_are_no_operators() {
    let check = |message: &str, statement: &str, expect: &str| {
        let evidence = failed("AssertionError", message, &["def test_a():", &format!("    {statement}")]);
        assert_eq!(first_of(&evidence), expect, "{message}");
    };
    check(
        "assert <test_a.P object at 0x7f01> == <test_a.P object at 0x7f02>\n +  where <test_a.P object at 0x7f02> = P(1)",
        "assert got == P(1)",
        "at test_a.py:2 `got` = <test_a.P object at 0x7f01> was expected to equal `P(1)` = <test_a.P object at 0x7f02>",
    );
    check(
        "assert <P object at 0x7f01> == <P of <Q at 0x7f02>>",
        "",
        "at test_a.py:2 <P object at 0x7f01> was expected to equal <P of <Q at 0x7f02>>",
    );
    check(
        "assert <Price 3 < 4> < 2",
        "assert price < 2",
        "`price < 2` was not true at test_a.py:2 (pytest shows `<Price 3 < 4> < 2`)",
    );
    check("assert 3 < 2", "assert a() < b()", "at test_a.py:2 `a()` = 3 is not below `b()` = 2");
    check(
        "assert x == y == z",
        "assert got == expected",
        "`got == expected` was not true at test_a.py:2 (pytest shows `x == y == z`)",
    );
    check(
        "assert not 1 == 1",
        "assert not a == 1",
        "`not a == 1` was not true at test_a.py:2 (pytest shows `not 1 == 1`)",
    );
}

#[test]
fn what_only_one_side_has() {
    let check = |message: &str, expect: &str| {
        let text = first_of(&failed("AssertionError", message, &["def test_a():", "    assert a == b"]));
        assert!(text.ends_with(expect), "{text}");
    };
    check(
        "assert [48, 49] == [48]\n  \n  Left contains one more item: 49\n  Use -v to get more diff",
        "; the left side has one more item: 49",
    );
    check(
        "assert [1] == [1, 2, 3]\n  \n  Right contains 2 more items, first extra item: 2\n  Use -v to get more diff",
        "; the right side has 2 more items, first extra item: 2",
    );
    check(
        "assert {'a': 1, 'b': 2} == {'a': 1, 'c': 2}\n  \n  Omitting 1 identical items, use -vv to show\n  Left contains 1 more item:\n  \
         {'b': 2}\n  Right contains 1 more item:\n  {'c': 2}\n  Use -v to get more diff",
        "; only the left side has {'b': 2}; only the right side has {'c': 2}",
    );
    check(
        "assert {1, 2} == {2}\n  \n  Extra items in the left set:\n  1\n  Use -v to get more diff",
        "; only the left side has 1",
    );
}

#[test]
fn what_ran_while_an_exception_was_waited_for() {
    let check = |lines: &[&str], expect: &str| {
        let evidence = failed("Failed", "DID NOT RAISE <class 'ZeroDivisionError'>", lines);
        assert_eq!(first_of(&evidence), format!("{expect} ran to its end without ZeroDivisionError"));
    };
    let next = ["", "def test_raises_match():"];
    let one_line = ["def test_a():", "    with pytest.raises(ZeroDivisionError): lib.divide(1, 1)", next[0], next[1]];
    check(&one_line, "`lib.divide(1, 1)` at test_a.py:2");
    check(&["def test_a():", "    with pytest.raises(ZeroDivisionError):", next[1]], "the block below test_a.py:2");
    check(
        &["def test_a():", "    with pytest.raises(", "        ZeroDivisionError", "    ):", "        f(1)", next[1]],
        "`f(1)` below test_a.py:2",
    );
    check(
        &["def test_a():", "    pytest.raises(ZeroDivisionError, divide, 1)", next[1]],
        "`pytest.raises(ZeroDivisionError, divide, 1)` at test_a.py:2",
    );
}

#[test]
fn names_of_one_letter_are_not_alike() {
    let evidence = failed(
        "TypeError",
        "divide() got an unexpected keyword argument 'c'",
        &["def test_a():", "    assert divide(1, c=2) == 1"],
    );
    let files = |_: &str| Some("def divide(a, b):\n    return a / b\n".to_owned());
    let around = Around { files: &files, ..Around::nothing("k3n7q2", "test_a.py::test_a") };
    let found = hypotheses(&evidence, &around);
    assert!(found[0].text.starts_with("divide has no parameter `c` (any more)"), "{}", found[0].text);
    assert_eq!(found[0].confidence, Confidence::Medium);
    let step = crate::next_step::next_steps(&evidence, &around).into_iter().next();
    assert!(step.is_none_or(|step| step.diff.is_none()));
}

#[test]
fn a_run_in_which_a_part_of_a_test_failed_is_no_passing_one() {
    let outcome = |run: &str, outcome: Outcome| TestOutcome {
        run: run.into(),
        at: jiff::Timestamp::UNIX_EPOCH,
        outcome,
        phase: Phase::Call,
        attempt: 1,
        seconds: 0.0,
        code: Some("c0de".into()),
        commit: None,
        dirty: false,
        python: None,
        environment: None,
        ran_before: None,
        failure: None,
    };
    let history = [
        outcome("subtests", Outcome::Passed),
        outcome("subtests", Outcome::Failed),
        outcome("subtests", Outcome::Passed),
        outcome("again", Outcome::Rerun),
        outcome("again", Outcome::Passed),
        outcome("good", Outcome::Passed),
        outcome("left out", Outcome::Skipped),
    ];
    assert_eq!(Tries::on("c0de", &history), Tries { passed: 1, failed: 2 });
    assert_eq!(Tries::on("other", &history), Tries::default());
    // What passes on another Python was not tried on this one.
    let with = |python: &str, mut past: TestOutcome| {
        past.failure = (past.outcome == Outcome::Failed).then(|| "abc".into());
        past.python = Some(python.into());
        past
    };
    let history = [with("3.12.1", outcome("new", Outcome::Passed)), with("3.8.18", outcome("old", Outcome::Failed))];
    assert_eq!(Tries::on("c0de", &history), Tries { passed: 0, failed: 1 });
}

#[test]
fn a_reason_to_be_flaky_is_a_whole_word() {
    let check = |line: &str, expect: &str| {
        let evidence = failed("Boom", "no", &["def test_a():", line]);
        let around =
            Around { tries: Some(Tries { passed: 1, failed: 2 }), ..Around::nothing("k3n7q2", "test_a.py::test_a") };
        let found = hypotheses(&evidence, &around);
        assert!(found[0].text.ends_with(expect), "{line}: {}", found[0].text);
    };
    let none = "and what is shared";
    check("    import shop  # port", none);
    check("    report(offset(3), export)", none);
    check("    connect(server_port)", "in its frames there is a port that may be taken");
    check("    listen(port=80)", "in its frames there is a port that may be taken");
}

#[test]
fn nothing_is_said_where_nothing_is_known() {
    let evidence: Evidence =
        serde_json::from_value(serde_json::json!({"exception": {"type": "Boom", "message": "no"}})).unwrap();
    assert_eq!(hypotheses(&evidence, &Around::nothing("k3n7q2", "a.py::test")), []);
}

/// Cut and strange evidence must be taken: each of the real ones with its texts cut at every few characters.
#[test]
fn cut_evidence_is_read_without_a_panic() {
    for (nodeid, evidence) in recorded() {
        let text = serde_json::to_string(&evidence).unwrap();
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        for keep in [0, 1, 7, 13, 24, 41, 77] {
            let mut value = whole.clone();
            cut(&mut value, keep);
            let Ok(evidence) = serde_json::from_value::<Evidence>(value) else { continue };
            let around = Around { files: &read, ..Around::nothing("k3n7q2", &nodeid) };
            hypotheses(&evidence, &around);
            crate::next_step::next_steps(&evidence, &around).into_iter().next();
        }
    }
}

fn cut(value: &mut serde_json::Value, keep: usize) {
    match value {
        serde_json::Value::String(text) => *text = text.chars().take(keep).chain(['ß', '"']).collect(),
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| cut(item, keep)),
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                if !matches!(name.as_str(), "type" | "relation" | "frozen") {
                    cut(field, keep);
                }
            }
        }
        _ => {}
    }
}

/// Evidence as a plugin of this version records it, made by hand: one frame in the project.
fn observed(kind: &str, message: &str, fields: &serde_json::Value) -> Evidence {
    let mut evidence =
        serde_json::json!({"exception": {"type": kind, "message": message}, "frames": [], "text": message});
    for (name, value) in fields.as_object().unwrap() {
        match name.strip_prefix("exception.") {
            Some(name) => evidence["exception"][name] = value.clone(),
            None => evidence[name] = value.clone(),
        }
    }
    serde_json::from_value(evidence).unwrap()
}

fn frame(line: &str, fields: &serde_json::Value) -> serde_json::Value {
    let mut frame = serde_json::json!({
        "file": "test_a.py", "line": 10, "function": "test_a", "module": "test_a", "in_app": true,
        "source": {"first": 10, "lines": [line]}, "statement": [10, 10],
    });
    for (name, value) in fields.as_object().unwrap() {
        frame[name] = value.clone();
    }
    frame
}

fn thought(evidence: &Evidence, files: &[(&str, &str)]) -> Vec<Hypothesis> {
    let files: Vec<(String, String)> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let read = |path: &str| files.iter().find(|(name, _)| name == path).map(|(_, text)| text.clone());
    let packages = [("pytest".to_owned(), "9.0.1".to_owned()), ("click".to_owned(), "8.3.0".to_owned())].into();
    let around = Around {
        files: &read,
        packages: Some(&packages),
        python: Some("3.13.0"),
        ..Around::nothing("k3n7q2", "test_a.py::test_a")
    };
    hypotheses(evidence, &around)
}

#[test]
fn what_the_source_has_elsewhere_does_not_count_as_there() {
    // `setup` assigns it, and did not run.
    let source = "class TestA:\n    def setup(self):\n        self.G = 1\n        self.D = 2\n\n    def test_a(self):\n        self.G\n";
    let evidence = observed(
        "AttributeError",
        "'TestA' object has no attribute 'G'",
        &serde_json::json!({
            "frames": [frame("        self.G", &serde_json::json!({"function": "TestA.test_a", "expression": "self.G"}))],
            "modules": {"test_a": {"file": "test_a.py"}},
            "exception.lookup": {"name": "G", "owner": "instance", "of": "test_a.TestA", "names": ["setup", "test_a"]},
        }),
    );
    let found = thought(&evidence, &[("test_a.py", source)]);
    assert_eq!(
        found[0].text,
        "`self`, a TestA, has no attribute `G` at test_a.py:10: only `setup` assigns it (test_a.py:3), and that has not run; pytest 8 and \
         later do not call a method `setup` of a class that is not a unittest.TestCase: `setup_method` is the name"
    );
    assert_eq!(found[0].confidence, Confidence::High);
    assert!(!found.iter().any(|hypothesis| hypothesis.text.contains("it has")), "{found:#?}");
}

#[test]
fn the_module_that_was_imported_counts_and_not_the_one_that_lies_around() {
    let evidence = observed(
        "ImportError",
        "cannot import name 'PY2' from 'click._compat' (/env/lib/python3.13/site-packages/click/_compat.py)",
        &serde_json::json!({
            "frames": [frame("from click._compat import PY2", &serde_json::json!({"function": "<module>"}))],
            "modules": {"click._compat": {"file": "/env/lib/python3.13/site-packages/click/_compat.py"}},
            "exception.lookup": {"name": "PY2", "owner": "module", "of": "click._compat", "names": ["WIN", "open_stream"]},
        }),
    );
    let found = thought(&evidence, &[("src/click/_compat.py", "PY2 = True\nWIN = False\n")]);
    assert_eq!(
        found[0].text,
        "`click._compat` (click 8.3.0) has no `PY2`, which test_a.py:10 imports; src/click/_compat.py of this project has it, but the \
         installed copy was imported instead"
    );
    let facts: Vec<String> = found[0].evidence.iter().map(ToString::to_string).collect();
    assert!(!facts.iter().any(|fact| fact.contains("has: ") && fact.contains("PY2")), "{facts:?}");
    // Without the record it is not known which file it was, and nothing certain is said.
    let bare = Evidence {
        modules: BTreeMap::default(),
        ..observed(
            "ImportError",
            &evidence.exception.message,
            &serde_json::json!({"frames": [frame("from click._compat import PY2", &serde_json::json!({}))]}),
        )
    };
    let found = thought(&bare, &[("src/click/_compat.py", "PY2 = True\n")]);
    assert!(found[0].confidence > Confidence::High, "{found:#?}");
    assert!(
        !found[0].evidence.iter().any(|fact| fact.what.contains("PY2") && fact.what.contains("has: ")),
        "{found:#?}"
    );
}

#[test]
fn a_chain_is_told_link_by_link() {
    let link = |kind: &str, message: &str, line: &str| {
        serde_json::json!({
            "relation": "context", "exception": {"type": kind, "message": message},
            "frames": [frame(line, &serde_json::json!({}))],
        })
    };
    let chain = [link("KeyError", "'b'", "    second = found['b']"), link("KeyError", "'a'", "    first = found['a']")];
    let evidence = observed("Boom", "no", &serde_json::json!({"chain": chain}));
    let texts: Vec<String> = thought(&evidence, &[]).into_iter().map(|hypothesis| hypothesis.text).collect();
    assert!(
        texts.iter().any(|text| text.contains("'b'") && text.contains("(the failure is raised while")),
        "{texts:?}"
    );
    assert!(
        texts.iter().any(|text| text.contains("'a'") && text.contains("(the KeyError is raised while")),
        "{texts:?}"
    );
}

#[test]
fn a_none_that_is_meant_is_not_blamed() {
    // A library says something of an argument; the None on the line that calls it may be meant.
    let library = serde_json::json!({"file": "/env/lib/python3.13/site-packages/_pytest/recwarn.py", "line": 3, "function": "f", "module": "_pytest.recwarn"});
    let own = frame(
        "with pytest.warns(None) as recorder:",
        &serde_json::json!({"locals": [{"name": "x", "type": "NoneType", "value": "None"}]}),
    );
    let evidence = observed(
        "TypeError",
        "exceptions must be derived from Warning, not <class 'NoneType'>",
        &serde_json::json!({"frames": [library, own]}),
    );
    let found = thought(&evidence, &[]);
    assert!(!found.iter().any(|hypothesis| hypothesis.text.contains("was None")), "{found:#?}");
    assert!(found[0].text.contains("raised TypeError in `_pytest.recwarn`"), "{}", found[0].text);
    // On the line itself the message is about an operand, not about what a call is given.
    let own = |expression: Option<&str>| {
        let locals = serde_json::json!([{"name": "key", "type": "NoneType", "value": "None"}, {"name": "a", "type": "int", "value": "1"}]);
        frame("    return a + find(key)", &serde_json::json!({"locals": locals, "expression": expression}))
    };
    for expression in [Some("a + find(key)"), None] {
        let message = "unsupported operand type(s) for +: 'int' and 'NoneType'";
        let found = thought(&observed("TypeError", message, &serde_json::json!({"frames": [own(expression)]})), &[]);
        assert!(found[0].text.starts_with("`find(key)` was None in"), "{}", found[0].text);
        assert_eq!(found[0].confidence, Confidence::Medium);
    }
}

#[test]
fn pytest_itself_is_not_blamed() {
    let inside = |file: &str| serde_json::json!({"file": file, "line": 3, "function": "f", "source": {"first": 3, "lines": ["raise Boom(x)"]}});
    for file in [
        "/env/lib/python3.13/site-packages/_pytest/python.py",
        "<frozen importlib._bootstrap>",
        "/usr/lib/python3.13/ast.py",
    ] {
        let evidence = observed("Boom", "no", &serde_json::json!({"frames": [inside(file)]}));
        assert_eq!(thought(&evidence, &[]), []);
        let around = Around::nothing("k3n7q2", "test_a.py::test_a");
        assert_eq!(crate::next_step::next_steps(&evidence, &around), []);
    }
}

#[test]
fn a_path_is_looked_for_where_the_test_was() {
    let evidence = |cwd: &str| {
        let own = frame("    open('data.csv')", &serde_json::json!({}));
        observed(
            "FileNotFoundError",
            "[Errno 2] No such file or directory: 'data.csv'",
            &serde_json::json!({"frames": [own], "cwd": cwd}),
        )
    };
    let exists = |path: &str| Some(path == "/there/data.csv");
    let around = Around { exists: &exists, ..Around::nothing("k3n7q2", "test_a.py::test_a") };
    let found = hypotheses(&evidence("/tmp/pytest-0"), &around);
    assert_eq!(
        found[0].text,
        "there was no 'data.csv' below the working directory /tmp/pytest-0, where test_a.py:10 looks for it"
    );
    let found = hypotheses(&evidence("/there"), &around);
    assert!(!found.iter().any(|hypothesis| hypothesis.text.contains("there was no")), "it is there: {found:#?}");
}

#[test]
fn a_condition_that_did_not_hold_is_not_said_to_have() {
    let lines = ["    if a:", "        return 1", "    else:", "        raise ValueError(a)"];
    let own =
        frame("", &serde_json::json!({"line": 13, "statement": [13, 13], "source": {"first": 10, "lines": lines}}));
    let found = thought(&observed("ValueError", "0", &serde_json::json!({"frames": [own]})), &[]);
    assert_eq!(found[0].text, "test_a raises ValueError itself because `a` did not hold at test_a.py:10: 0");
    // An except says nothing about conditions above its try.
    let lines =
        ["    if a:", "        pass", "    try:", "        f()", "    except KeyError:", "        raise ValueError(a)"];
    let own =
        frame("", &serde_json::json!({"line": 15, "statement": [15, 15], "source": {"first": 10, "lines": lines}}));
    let found = thought(&observed("ValueError", "0", &serde_json::json!({"frames": [own]})), &[]);
    assert!(!found[0].text.contains("because"), "{}", found[0].text);
}

#[test]
fn certainty_is_earned_by_what_was_recorded() {
    for (nodeid, evidence) in recorded() {
        let around = Around { files: &read, ..Around::nothing("k3n7q2", &nodeid) };
        let scene = Scene::new(&evidence, &around);
        for hypothesis in hypotheses(&evidence, &around) {
            assert!(
                hypothesis.confidence > Confidence::High || !hypothesis.claims.is_empty(),
                "{nodeid}: {}",
                hypothesis.text
            );
            if evidence.chain.is_empty() {
                let denied = hypothesis.claims.iter().find(|claim| claim.recorded(&scene) == Some(false));
                assert_eq!(denied, None, "{nodeid}: {}", hypothesis.text);
            }
        }
    }
    // What other reporters send has less in it, and nothing is made up for it.
    let text = std::fs::read_to_string(format!("{DATA}/evidence_bare.json")).unwrap();
    let bare: BTreeMap<String, Evidence> = serde_json::from_str(&text).unwrap();
    for (nodeid, evidence) in bare {
        let around = Around { files: &read, ..Around::nothing("k3n7q2", &nodeid) };
        for hypothesis in hypotheses(&evidence, &around) {
            let earned =
                hypothesis.claims.iter().any(|claim| claim.recorded(&Scene::new(&evidence, &around)) == Some(true));
            assert!(
                hypothesis.confidence > Confidence::High || earned || !evidence.chain.is_empty(),
                "{nodeid}: {}",
                hypothesis.text
            );
        }
    }
}

#[test]
fn the_compiler_and_doctest_are_quoted() {
    let syntax = serde_json::json!({"file": "old.py", "line": 3, "text": "print 'x'"});
    let message = "Missing parentheses in call to 'print'. Did you mean print(...)?";
    let found = thought(&observed("SyntaxError", message, &serde_json::json!({"exception.syntax": syntax})), &[]);
    assert_eq!(
        found[0].text,
        format!("old.py:3, `print 'x'`, is not valid Python 3.13.0: {message}; the line is written for Python 2")
    );
    let message = "shop.py:4: `total([1])`\nExpected:\n    2\nGot:\n    1";
    let found = thought(&observed("DocTestFailure", message, &serde_json::json!({})), &[]);
    assert_eq!(found[0].text, "the example `total([1])` at shop.py:4 gave `1`, and `2` is expected");
    let found = thought(
        &observed(
            "ModuleNotFoundError",
            "No module named 'distutils'",
            &serde_json::json!({"frames": [frame("import distutils", &serde_json::json!({}))]}),
        ),
        &[],
    );
    assert!(
        found[0].text.starts_with("the standard library of Python 3.13.0 has no `distutils` any more"),
        "{}",
        found[0].text
    );
}

/// The first next step for evidence that was made by hand.
fn step_for(evidence: &Evidence) -> Option<crate::next_step::NextStep> {
    let around = Around::nothing("k3n7q2", "test_a.py::test_a");
    crate::next_step::next_steps(evidence, &around).into_iter().next()
}

fn code_for(evidence: &Evidence) -> Option<String> {
    step_for(evidence)?.evaluate.map(|evaluate| evaluate.code)
}

fn local(name: &str, kind: &str, value: &str) -> serde_json::Value {
    serde_json::json!({"name": name, "type": kind, "value": value})
}

#[test]
fn what_a_library_had_once_is_not_its_kin() {
    // Python 3.11 took `asyncio.coroutine` away.
    let modules = serde_json::json!({"asyncio": {"file": "/usr/lib/python3.13/asyncio/__init__.py"}});
    let evidence = |kind: &str, message: &str, wanted: &str, line: &str| {
        let names = ["coroutines", "iscoroutine", "gather"];
        let lookup = serde_json::json!({"name": wanted, "owner": "module", "of": "asyncio", "names": names});
        let frames = [frame(line, &serde_json::json!({}))];
        observed(kind, message, &serde_json::json!({"frames": frames, "exception.lookup": lookup, "modules": modules}))
    };
    let around = Around { python: Some("3.13.0"), ..Around::nothing("k3n7q2", "test_a.py::test_a") };
    for (kind, message, line) in [
        ("AttributeError", "module 'asyncio' has no attribute 'coroutine'", "    @asyncio.coroutine"),
        ("ImportError", "cannot import name 'coroutine' from 'asyncio' (x.py)", "from asyncio import coroutine"),
    ] {
        let evidence = evidence(kind, message, "coroutine", line);
        let found = thought(&evidence, &[]);
        assert!(!found[0].text.contains("; it has `"), "{}", found[0].text);
        let step = crate::next_step::next_steps(&evidence, &around).into_iter().next();
        assert!(step.is_none_or(|step| step.diff.is_none() && !step.text.contains("instead of `coroutine` at")));
    }
    // A slip of the fingers is one still.
    let message = "module 'asyncio' has no attribute 'gahter'";
    let found = thought(&evidence("AttributeError", message, "gahter", "    asyncio.gahter()"), &[]);
    assert!(found[0].text.ends_with("it has `gather`, which may be meant"), "{}", found[0].text);
}

#[test]
fn what_a_library_could_not_find_need_not_be_a_path() {
    let library = serde_json::json!({"file": "/usr/lib/python3.13/gettext.py", "line": 528, "function": "translation", "module": "gettext"});
    let own = frame(
        "    translation = gettext.translation('shop', path, [locale])",
        &serde_json::json!({"locals": [local("path", "str", "'/shop/locales'")]}),
    );
    let fields = serde_json::json!({"frames": [library, own], "cwd": "/shop"});
    let evidence = observed("FileNotFoundError", "[Errno 2] No translation file found for domain: 'shop'", &fields);
    let found = thought(&evidence, &[]);
    assert!(!found[0].text.contains("working directory"), "{}", found[0].text);
    assert!(found[0].text.contains("path = '/shop/locales'"), "{}", found[0].text);
    assert_eq!(code_for(&evidence).as_deref(), Some("path"));
}

#[test]
fn a_program_is_looked_for_on_the_path_of_the_run() {
    let library = serde_json::json!({"file": "/usr/lib/python3.13/subprocess.py", "line": 3, "function": "_execute_child", "module": "subprocess"});
    let own = frame("    check_call(['dot', name])", &serde_json::json!({"globals": ["check_call"]}));
    let fields = serde_json::json!({"frames": [library, own]});
    let evidence = observed("FileNotFoundError", "[Errno 2] No such file or directory: 'dot'", &fields);
    let step = step_for(&evidence).unwrap();
    assert_eq!(step.text, "see whether the program 'dot' is on the PATH of the run");
    assert!(step.evaluate.unwrap().code.contains("shutil.which(\"dot\")"));
}

#[test]
fn times_that_are_subtracted_are_not_said_to_be_compared() {
    let locals = serde_json::json!([local("a", "datetime.datetime", "datetime.datetime(2025, 1, 1)")]);
    let own = frame("    return a - b", &serde_json::json!({"locals": locals, "expression": "a - b"}));
    let message = "can't subtract offset-naive and offset-aware datetimes";
    let evidence = observed("TypeError", message, &serde_json::json!({"frames": [own]}));
    let found = thought(&evidence, &[]);
    assert_eq!(
        found[0].text,
        "a time with a time zone is used together with one that has none at test_a.py:10; `a` has none"
    );
    assert_eq!(code_for(&evidence).as_deref(), Some("a"), "what raised the exception raises it again");
}

#[test]
fn next_steps_show_what_they_say() {
    // The copy has streams of its own.
    let own = frame("    sys.stdout.encoding = 'utf-8'", &serde_json::json!({"globals": ["sys"]}));
    let evidence = observed("AttributeError", "readonly attribute", &serde_json::json!({"frames": [own]}));
    assert_eq!(code_for(&evidence), None);
    // A private name is called otherwise outside of its class.
    let own = frame(
        "        size = self.__size.get(key)",
        &serde_json::json!({"function": "Cache.pop", "expression": "self.__size.get", "locals": [local("self", "shop.Cache", "<shop.Cache>"), local("key", "int", "1")]}),
    );
    let lookup = serde_json::json!({"name": "get", "owner": "instance", "of": "shop.Size", "names": ["pop"]});
    let fields = serde_json::json!({"frames": [own], "exception.lookup": lookup});
    let evidence = observed("AttributeError", "'Size' object has no attribute 'get'", &fields);
    assert_eq!(code_for(&evidence).as_deref(), Some("key"));
    // Of a call that failed the value says more that the message is about.
    let locals = serde_json::json!([
        local("other", "datetime.datetime", "datetime.datetime(1998, 2, 25)"),
        local("year", "decimal.Decimal", "Decimal('1999')")
    ]);
    let own = frame(
        "    new = other.replace(year=year)",
        &serde_json::json!({"expression": "other.replace(year=year)", "locals": locals}),
    );
    let message = "'decimal.Decimal' object cannot be interpreted as an integer";
    let evidence = observed("TypeError", message, &serde_json::json!({"frames": [own]}));
    assert_eq!(code_for(&evidence).as_deref(), Some("year"));
    let locals = serde_json::json!([local("form", "str", "'%s'"), local("unit", "int", "0")]);
    let own = frame("    return form % (1 / unit)", &serde_json::json!({"expression": "1 / unit", "locals": locals}));
    let evidence = observed("ZeroDivisionError", "division by zero", &serde_json::json!({"frames": [own]}));
    assert_eq!(code_for(&evidence).as_deref(), Some("unit"));
}

#[test]
fn unittest_shows_no_values_where_nothing_was_raised() {
    let library = serde_json::json!({"file": "/usr/lib/python3.13/unittest/case.py", "line": 199, "function": "_raiseFailure", "module": "unittest.case"});
    let lines = ["        with self.assertRaises(ValueError):", "            cache[4] = 4"];
    let own = frame("", &serde_json::json!({"source": {"first": 10, "lines": lines}}));
    let evidence = observed("AssertionError", "ValueError not raised", &serde_json::json!({"frames": [library, own]}));
    let found = thought(&evidence, &[]);
    assert_eq!(found[0].text, "`cache[4] = 4` below test_a.py:10 ran to its end without ValueError");
    let own = frame(
        "    self.assertTrue(1 in cache and 2 in cache)",
        &serde_json::json!({"locals": [local("cache", "dict", "{}")]}),
    );
    let evidence = observed("AssertionError", "False is not true", &serde_json::json!({"frames": [library, own]}));
    let found = thought(&evidence, &[]);
    assert!(found[0].text.ends_with("does not hold: False is not true, with cache = {}"), "{}", found[0].text);
    assert!(!found[0].because.contains("values"), "{}", found[0].because);
}

#[test]
fn what_was_none_in_the_making_of_an_exception() {
    let own = frame(
        "        raise Refused(self.error.format(data))",
        &serde_json::json!({"expression": "self.error.format", "locals": [local("self", "shop.Or", "<shop.Or object error=None>")]}),
    );
    let evidence = observed(
        "AttributeError",
        "'NoneType' object has no attribute 'format'",
        &serde_json::json!({"frames": [own]}),
    );
    let found = thought(&evidence, &[]);
    assert!(found[0].text.starts_with("`self.error` was None"), "{}", found[0].text);
}

#[test]
fn a_raise_below_an_elif_names_the_conditions_before_it() {
    let lines =
        ["    if key in found:", "        return 1", "    elif default is None:", "        raise KeyError(key)"];
    let own =
        frame("", &serde_json::json!({"line": 13, "statement": [13, 13], "source": {"first": 10, "lines": lines}}));
    let found = thought(&observed("KeyError", "1", &serde_json::json!({"frames": [own]})), &[]);
    assert_eq!(
        found[0].text,
        "test_a raises KeyError itself because `default is None` held, and no condition before it, at test_a.py:12: 1"
    );
}

#[test]
fn functions_that_call_each_other_without_an_end() {
    let step = |function: &str, line: u32| {
        let source = serde_json::json!({"first": line, "lines": ["    again()"]});
        serde_json::json!({"file": "shop.py", "line": line, "function": function, "module": "shop", "in_app": true, "source": source})
    };
    let check = |frames: Vec<serde_json::Value>, expect: &str| {
        let evidence =
            observed("RecursionError", "maximum recursion depth exceeded", &serde_json::json!({"frames": frames}));
        assert_eq!(thought(&evidence, &[])[0].text, expect);
        assert_eq!(step_for(&evidence), None);
    };
    check(
        vec![step("Tree.walk", 3), step("Tree.walk", 3), step("test", 9)],
        "walk at shop.py:3 leads back to itself again and again, until the stack is full",
    );
    check(
        vec![step("a", 3), step("b", 7), step("a", 3), step("b", 7)],
        "these call each other again and again, until the stack is full: b at shop.py:7, a at shop.py:3",
    );
}

#[test]
fn a_warning_that_is_an_error() {
    let library = serde_json::json!({"file": "/usr/lib/python3.13/warnings.py", "line": 3, "function": "f", "module": "warnings"});
    let own = frame("    ast.Num(1)", &serde_json::json!({}));
    let message = "ast.Num is deprecated\nand more";
    let evidence = observed("DeprecationWarning", message, &serde_json::json!({"frames": [library, own]}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "a DeprecationWarning is an error in this run (`-W error` or pytest's `filterwarnings`), and `ast.Num(1)` at test_a.py:10 leads to it: ast.Num is deprecated"
    );
    // Somebody who raises one by hand needs no filter.
    let own = frame("    raise DeprecationWarning('x')", &serde_json::json!({}));
    let evidence = observed("DeprecationWarning", "x", &serde_json::json!({"frames": [own]}));
    assert!(!thought(&evidence, &[])[0].text.contains("filterwarnings"));
}

#[test]
fn fixtures_that_outlive_each_other_and_private_ones() {
    let message = "ScopeMismatch: You tried to access the function scoped fixture user with a session scoped request object. Requesting fixture stack:\ntests/conftest.py:12:  def blog(user)\nRequested fixture:\ntests/conftest.py:7:  def user()";
    let evidence = observed("Failed", message, &serde_json::json!({}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "the fixture `blog` (tests/conftest.py:12), which lives for the session, asks for the fixture `user`, which is made anew for each function"
    );
    let text = "fixture 'user' not found\n>       available fixtures: _runner, blog, tmp_path\n";
    let evidence = observed("FixtureLookupError", "('user', <FixtureRequest>)", &serde_json::json!({"text": text}));
    assert!(thought(&evidence, &[])[0].text.ends_with("Those that can: blog"));
}

#[test]
fn an_argument_that_is_passed_twice() {
    let own = frame("    assert get(p, 'z', default=1) == 1", &serde_json::json!({}));
    let message = "get() got multiple values for argument 'default'";
    let evidence = observed("TypeError", message, &serde_json::json!({"frames": [own]}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "test_a.py:10 passes `default` to get twice, by its position and by its name"
    );
}

#[test]
fn an_assert_that_pytest_does_not_explain_is_read_by_its_values() {
    let own = |expected: &str| {
        let locals = serde_json::json!([local("expected", "str", expected), local("result", "str", "'a b'")]);
        frame("    assert expected == result", &serde_json::json!({"locals": locals}))
    };
    let evidence = observed("AssertionError", "", &serde_json::json!({"frames": [own("'a  b'")]}));
    assert!(thought(&evidence, &[])[0].text.ends_with("; they differ only in blanks or line ends"));
    let evidence = observed("AssertionError", "", &serde_json::json!({"frames": [own("'a … b'")]}));
    assert!(thought(&evidence, &[])[0].text.starts_with("`expected == result` was not true"), "a cut value is none");
}

#[test]
fn an_assert_in_brackets_is_read_without_them() {
    let own =
        frame("    assert ((a == 2)), ('a long message')", &serde_json::json!({"locals": [local("a", "int", "1")]}));
    let evidence = observed("AssertionError", "a long message\nassert 1 == 2", &serde_json::json!({"frames": [own]}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "at test_a.py:10 `a` = 1 was expected to equal 2; the difference is -1"
    );
    assert_eq!(code_for(&evidence).as_deref(), Some("a"));
    let own = frame("    assert (a) == (b)", &serde_json::json!({}));
    let evidence = observed("AssertionError", "assert 1 == 2", &serde_json::json!({"frames": [own]}));
    assert!(thought(&evidence, &[])[0].text.contains("`(a)` = 1"), "{}", thought(&evidence, &[])[0].text);
}

#[test]
fn all_assignments_are_told_where_it_is_not_known_which_gave_none() {
    let lines = [
        "def unsign(value):",
        "    try:",
        "        result = check(value)",
        "    except BadSignature as e:",
        "        result = e.payload",
        "    return sep in result",
    ];
    let own = frame(
        "",
        &serde_json::json!({"line": 15, "statement": [15, 15], "source": {"first": 10, "lines": lines}, "expression": "sep in result",
            "function": "unsign", "locals": [local("value", "str", "'x'"), local("result", "NoneType", "None")]}),
    );
    let message = "argument of type 'NoneType' is not iterable";
    let evidence = observed("TypeError", message, &serde_json::json!({"frames": [own]}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "`result` was None in unsign (test_a.py:15): `result` is assigned before that line at test_a.py:12 (`check(value)`), test_a.py:14 (`e.payload`)"
    );
    assert_eq!(code_for(&evidence).as_deref(), Some("locals()"));
}

#[test]
fn several_characters_that_cannot_be_written() {
    let own = frame("    s = s.encode(encoding)", &serde_json::json!({}));
    let message = "'ascii' codec can't encode characters in position 0-1: ordinal not in range(128)";
    let evidence = observed("UnicodeEncodeError", message, &serde_json::json!({"frames": [own]}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "ascii has no way to write the characters at position 0-1, at test_a.py:10"
    );
}

#[test]
fn a_loop_without_an_end_is_not_said_to_wait() {
    let own = frame("        self.links.move_to_end(key)", &serde_json::json!({"function": "Cache.link"}));
    let outer = frame("    cache.get(1)", &serde_json::json!({"line": 20}));
    let evidence =
        observed("Failed", "Timeout (>3.0s) from pytest-timeout.", &serde_json::json!({"frames": [own, outer]}));
    let found = thought(&evidence, &[]);
    assert_eq!(found[0].text, "Cache.link was at test_a.py:10 when its time was over, `self.links.move_to_end(key)`");
    assert!(found[0].because.contains("or went round in circles"));
}

/// The first thought about a frame with these lines of which the last failed, with these locals.
#[track_caller]
fn first_in(kind: &str, message: &str, lines: &[&str], expression: &str, locals: &serde_json::Value) -> String {
    let line = 9 + u32::try_from(lines.len()).unwrap();
    let mut fields = serde_json::json!({"line": line, "statement": [line, line], "source": {"first": 10, "lines": lines}, "locals": locals,
        "function": "f"});
    if !expression.is_empty() {
        fields["expression"] = expression.into();
    }
    let outer = frame(
        "    f()",
        &serde_json::json!({"line": 50, "source": {"first": 50, "lines": ["    f()"]}, "statement": [50, 50]}),
    );
    let evidence = observed(kind, message, &serde_json::json!({"frames": [frame("", &fields), outer]}));
    thought(&evidence, &[]).first().map(|found| found.text.clone()).unwrap_or_default()
}

const NO_ATTRIBUTE: &str = "'NoneType' object has no attribute 'x'";

#[test]
fn a_pattern_is_held_against_the_text_and_not_against_its_flags() {
    let check = |call: &str, expect: &str| {
        let locals = serde_json::json!([
            local("text", "str", "'abc'"),
            local("pos", "int", "2"),
            local("pat", "re.Pattern", "re.compile('b')"),
            local("m", "NoneType", "None")
        ]);
        let lines = ["def f(text, pos, pat):", &format!("    m = {call}"), "    return m.x"];
        let text = first_in("AttributeError", NO_ATTRIBUTE, &lines, "m.x", &locals);
        assert!(text.ends_with(expect), "{text}");
    };
    check("re.match('b', text, re.I)", "the pattern of `re.match` did not match 'abc'");
    check("re.match('b', flags=re.I, string=text)", "the pattern of `re.match` did not match 'abc'");
    check("pat.search(text, pos)", "the pattern of `pat.search` did not match 'abc' from position 2 on");
    check("pat.search(text, 0, 1)", "the pattern of `pat.search` did not match 'abc' in the part that is looked at");
    check("pat.search(text.strip())", "the pattern of `pat.search` did not match `text.strip()`");
}

#[test]
fn only_a_dict_is_said_to_have_no_entry() {
    let check = |kind: &str, value: &str, call: &str, expect: &str| {
        let locals = serde_json::json!([local("d", kind, value), local("r", "NoneType", "None")]);
        let lines = ["def f(d):", &format!("    r = {call}"), "    return r.x"];
        let text = first_in("AttributeError", NO_ATTRIBUTE, &lines, "r.x", &locals);
        let expect = format!("`r` was None in f (test_a.py:12): `r` comes from `{call}` at test_a.py:11{expect}");
        assert_eq!(text, expect);
    };
    check("lib.Client", "<lib.Client object base='x'>", "d.get('/users')", "");
    check("dict", "{'a': 1}", "d.get('b')", ", and `d` has no entry for 'b', so `get` gave None; its keys are 'a'");
    check("dict", "{'a': None}", "d.get(\"a\")", ", and the entry of `d` for \"a\" is None");
    check("dict", "{'a': 1, …}", "d.get('b')", ", and `d` has no entry for 'b', or one that is None");
    check("dict", "{'a': 1}", "d.get(key())", ", and `d` has no entry for key(), or one that is None");
    check("dict", "{'a': 1}", "d.get('b', other)", "");
    check("dict", "{'a': 1}", "d.get('a')", "");
}

#[test]
fn a_parameter_that_is_assigned_did_not_keep_its_default() {
    let check = |lines: &[&str], expect: &str| {
        let locals = serde_json::json!([local("c", "NoneType", "None")]);
        let text = first_in("AttributeError", NO_ATTRIBUTE, lines, "c.x", &locals);
        assert_eq!(text, format!("`c` was None in f (test_a.py:{}){expect}", 9 + lines.len()));
    };
    let last = "    return c.x";
    check(
        &["def f(c=None):", "    if c is None:", "        c = load()", last],
        ": `c` comes from `load()` at test_a.py:12",
    );
    check(
        &["def f(c=None):", "    if other:", "        c = load()", last],
        ": `c` may be assigned at test_a.py:12 (`load()`)",
    );
    check(&["def f(c=None):", "    if other: c = load()", last], "");
    check(&["def f(c=None):", "    if other:", "        a, c = load()", last], "");
    check(
        &["def f(c=None):", "    if c == 1: other = load()", "    g(", "        c=c,", "    )", last],
        ": the call at test_a.py:50 does not pass `c`, which keeps its default None",
    );
}

#[track_caller]
fn compared_as(message: &str, statement: &str, expect: &str) {
    let text = first_of(&failed("AssertionError", message, &["def test_a():", &format!("    {statement}")]));
    assert_eq!(text, expect, "{message}");
}

#[test]
fn small_numbers_are_not_said_to_differ_by_rounding() {
    compared_as(
        "assert 1.5e-13 == 2.5e-13",
        "assert a == 2.5e-13",
        "at test_a.py:2 `a` = 1.5e-13 was expected to equal 2.5e-13; the difference is -0.0000000000001",
    );
    compared_as(
        "assert 9007199254740993 == 9007199254740992",
        "assert a == 9007199254740992",
        "at test_a.py:2 `a` = 9007199254740993 was expected to equal 9007199254740992; the difference is 1",
    );
}

#[test]
fn characters_are_counted_as_the_text_has_them() {
    let said = |left: &str, right: &str, what: &str| {
        let expect = format!("at test_a.py:2 `a` = {left} was expected to equal `b` = {right}{what}");
        compared_as(&format!("assert {left} == {right}"), "assert a == b", &expect);
    };
    said(r"'x\ny1'", r"'x\ny2'", "; the texts differ from character 3 on: `1` and `2`");
    said(r"'\xa3\u20ac1'", r"'\xa3\u20ac2'", "; the texts differ from character 2 on: `1` and `2`");
    said("'ab'", "'abc'", "; the texts differ from character 2 on: its end and `c`");
    said(r#"'"a"'"#, "'a'", r#"; the texts differ from character 0 on: `"a"` and `a`"#);
    said(r"'a\nb'", "'ab'", "; they differ only in blanks or line ends");
}

#[test]
fn of_a_chained_comparison_no_half_is_blamed() {
    compared_as("assert 5 < 4", "assert 1 < x < 4", "`1 < x < 4` was not true at test_a.py:2 (pytest shows `5 < 4`)");
    compared_as(
        "assert 1 == 2",
        "assert a == b in c",
        "`a == b in c` was not true at test_a.py:2 (pytest shows `1 == 2`)",
    );
}

#[test]
fn values_that_look_the_same_are_not_shown_to_differ() {
    compared_as(
        "assert 'ModelField(n...equired=True)' == 'ModelField(n...equired=True)'",
        "assert repr(a) == b",
        "at test_a.py:2 `repr(a)` was expected to equal `b`; their texts look the same as far as they are shown",
    );
    compared_as(
        "assert (2, 1) == [1, 2]",
        "assert a == b",
        "at test_a.py:2 `a` = (2, 1) was expected to equal `b` = [1, 2]",
    );
}

#[test]
fn a_step_shows_private_names_too() {
    let code = |wanted: &str| {
        let locals = serde_json::json!([local("x", "shop.User", "<shop.User object>")]);
        let failing = format!("x.{wanted}");
        let own = frame(&format!("    {failing}"), &serde_json::json!({"locals": locals, "expression": failing}));
        let lookup =
            serde_json::json!({"name": wanted, "owner": "instance", "of": "shop.User", "names": ["_salt", "other"]});
        let message = format!("'User' object has no attribute '{wanted}'");
        let fields = serde_json::json!({"frames": [own], "exception.lookup": lookup});
        code_for(&observed("AttributeError", &message, &fields)).unwrap()
    };
    assert_eq!(code("salt"), "[name for name in dir(x) if not name.startswith('__')]");
    assert_eq!(code("__nam__"), "dir(x)");
    assert_eq!(code("name"), "dir(x)");
}

#[test]
fn a_step_does_not_change_what_it_looks_at() {
    let code = |condition: &str, kind: &str| {
        let locals = serde_json::json!([local("q", kind, "[]"), local("f", "function", "<function f>")]);
        let own = frame(
            &format!("    assert {condition}"),
            &serde_json::json!({"locals": locals, "globals": ["next", "sum"]}),
        );
        code_for(&observed("AssertionError", "assert 3 == 4", &serde_json::json!({"frames": [own]})))
    };
    assert_eq!(code("q.pop() == 4", "list").as_deref(), Some("q"));
    assert_eq!(code("next(q) == 4", "list_iterator").as_deref(), Some("q"));
    assert_eq!(code("sum(q) == 4", "generator").as_deref(), Some("q"));
    assert_eq!(code("q.read_bytes(2) == 4", "lib.Stream").as_deref(), Some("q"));
    assert_eq!(code("sum(q) == 4", "list").as_deref(), Some("sum(q)"));
    let lines = ["def f(q):", "    r = q.pop()", "    return r.x"];
    let locals = serde_json::json!([local("q", "list", "[]"), local("r", "NoneType", "None")]);
    let fields = serde_json::json!({"line": 12, "statement": [12, 12], "source": {"first": 10, "lines": lines}, "locals": locals,
        "expression": "r.x", "function": "f"});
    let evidence = observed("AttributeError", NO_ATTRIBUTE, &serde_json::json!({"frames": [frame("", &fields)]}));
    assert_eq!(code_for(&evidence).as_deref(), Some("locals()"));
}

#[test]
fn an_encoding_that_is_named_is_not_said_to_be_missing() {
    let check = |line: &str, byte: &str, position: u32, expect: &str| {
        let locals = serde_json::json!([local("p", "pathlib.PosixPath", "PosixPath('/a')")]);
        let own = frame(&format!("    {line}"), &serde_json::json!({"locals": locals}));
        let message = format!("'utf-8' codec can't decode byte 0x{byte} in position {position}: invalid start byte");
        let evidence = observed("UnicodeDecodeError", &message, &serde_json::json!({"frames": [own]}));
        let begin = format!("the bytes read at test_a.py:10 are not utf-8: byte 0x{byte} at position {position}");
        assert_eq!(thought(&evidence, &[])[0].text, format!("{begin}{expect}"), "{line}");
    };
    let unnamed = "; the line names no encoding, so the default of the machine that runs it is taken";
    let sign = " (in Latin-1 it would be a sign)";
    check("p.read_text('utf-8')", "a3", 6, sign);
    check("codecs.open(p, 'r', 'ascii').read()", "a3", 6, sign);
    check("open(p, 'r', -1, 'utf-8').read()", "a3", 6, sign);
    check("gzip.open(p, 'rt').read()", "a3", 6, sign);
    check("Path(p).open('r', -1, 'utf-8').read()", "a3", 6, sign);
    check("p.read_text()", "e9", 6, &format!(" (in Latin-1 it would be a letter){unnamed}"));
    check("open(p).read()", "80", 6, unnamed);
    check("p.open('r').read()", "8b", 1, &format!(" (compressed files begin so){unnamed}"));
    check("data.decode('utf-8')", "ff", 6, " (in Latin-1 it would be a letter)");
}

#[test]
fn a_pipe_is_no_network() {
    let check = |module: &str, network: bool| {
        let library =
            serde_json::json!({"file": "/usr/lib/python3.13/x.py", "line": 3, "function": "f", "module": module});
        let own = frame("    p.stdin.flush()", &serde_json::json!({}));
        let evidence =
            observed("BrokenPipeError", "[Errno 32] Broken pipe", &serde_json::json!({"frames": [library, own]}));
        assert_eq!(thought(&evidence, &[])[0].text.contains("network"), network, "{module}");
    };
    check("subprocess", false);
    check("multiprocessing.connection", false);
    check("http.client", true);
}

#[test]
fn only_a_time_is_said_to_have_no_zone() {
    let check = |line: &str, failing: &str, expect: &str| {
        let locals = serde_json::json!([
            local("now", "datetime.datetime", "datetime.datetime(2025, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"),
            local("created", "datetime.datetime", "datetime.datetime(2020, 1, 1, 0, 0)"),
            local("other", "datetime.datetime", "datetime.datetime(2020, 1, 1, 0, 0)"),
            local("max_age", "datetime.timedelta", "datetime.timedelta(days=1)"),
            local("datetime", "type", "<class 'datetime.datetime'>")
        ]);
        let own = frame(&format!("    {line}"), &serde_json::json!({"locals": locals, "expression": failing}));
        let message = "can't subtract offset-naive and offset-aware datetimes";
        let text = thought(&observed("TypeError", message, &serde_json::json!({"frames": [own]})), &[])[0].text.clone();
        let expect = format!("a time with a time zone is used together with one that has none at test_a.py:10{expect}");
        assert_eq!(text, expect);
    };
    check("return now - created > max_age", "now - created", "; `created` has none");
    check("assert (datetime.now() - now).days == 0", "datetime.now() - now", "; `datetime.now()` makes one without");
    check("return other, now - created", "now - created", "; `created` has none");
    check("return max(now, created, other)", "max(now, created, other)", "");
}

#[test]
fn a_directory_to_run_in_is_no_program() {
    let check = |line: &str, expect: &str| {
        let locals =
            serde_json::json!([local("d", "str", "'nodir'"), local("p", "pathlib.PosixPath", "PosixPath('nodir')")]);
        let library = serde_json::json!({"file": "/usr/lib/python3.13/subprocess.py", "line": 3, "function": "_execute_child", "module": "subprocess"});
        let own = frame(&format!("    {line}"), &serde_json::json!({"locals": locals}));
        let fields = serde_json::json!({"frames": [library, own], "cwd": "/a"});
        let evidence = observed("FileNotFoundError", "[Errno 2] No such file or directory: 'nodir'", &fields);
        let text = thought(&evidence, &[])[0].text.clone();
        assert!(text.starts_with(expect), "{text}");
    };
    let directory = "there was no 'nodir' below the working directory /a";
    check("subprocess.run(['ls'], cwd=d)", directory);
    check("subprocess.run(['ls'], cwd='nodir')", directory);
    check("subprocess.run(['ls'], cwd=p)", directory);
    check("subprocess.run(['nodir'], cwd='other')", "test_a.py:10 starts the program 'nodir'");
    check("subprocess.run(command, cwd=where())", "`subprocess.run(command, cwd=where())` at test_a.py:10 raised");
}

#[test]
fn a_condition_is_not_shown_with_values_of_later() {
    let check = |lines: &[&str], expect: &str| {
        let locals = serde_json::json!([local("n", "int", "5"), local("items", "list", "[1]")]);
        let text = first_in("ValueError", "bad", lines, "", &locals);
        assert_eq!(text, expect);
    };
    let last = "        raise ValueError('bad')";
    let held = |condition: &str, with: &str| {
        format!("f raises ValueError itself because `{condition}` held at test_a.py:11{with}: bad")
    };
    check(&["def f(n):", "    if n < 0:", "        n = abs(n)", last], &held("n < 0", ""));
    check(&["def f(n):", "    if n > 0:", "        log(n)", last], &held("n > 0", ", with n = 5"));
    check(&["def f(n):", "    if not items:", "        items.append(1)", last], &held("not items", ""));
    // The `else` of a loop.
    let lines =
        ["def f(n):", "    if not items:", "        return", "    for i in items:", "        pass", "    else:", last];
    check(&lines, "f raises ValueError itself at test_a.py:16: bad");
}

#[test]
fn a_key_is_not_said_to_be_the_value_of_another_name() {
    let check = |line: &str, expect: &str| {
        let locals = serde_json::json!([local("n", "int", "1"), local("ids", "list", "[1]")]);
        let own = frame(&format!("    {line}"), &serde_json::json!({"locals": locals}));
        let text = thought(&observed("KeyError", "1", &serde_json::json!({"frames": [own]})), &[])[0].text.clone();
        assert_eq!(text, expect);
    };
    check("return self._m[ids[0]]", "no entry for the key 1 at test_a.py:10, `return self._m[ids[0]]`");
    check("return m[n]", "`m` has no entry for the key 1 (the value of `n`) at test_a.py:10, `return m[n]`");
}

#[test]
fn an_index_in_brackets_is_shown_whole() {
    let locals = serde_json::json!([local("items", "list", "[1, 2]"), local("order", "list", "[0, 1, 5]")]);
    let own =
        frame("    return items[order[2]]", &serde_json::json!({"locals": locals, "expression": "items[order[2]]"}));
    let evidence = observed("IndexError", "list index out of range", &serde_json::json!({"frames": [own]}));
    assert_eq!(
        thought(&evidence, &[])[0].text,
        "`items[order[2]]` at test_a.py:10 asks for more than there is: its indexes go from 0 to 1"
    );
}

#[test]
fn exceptions_that_did_not_come_are_named_whichever_way_pytest_shows_them() {
    for message in [
        "DID NOT RAISE (<class 'ValueError'>, <class 'KeyError'>)",
        "DID NOT RAISE any of (ValueError, KeyError)",
        "DID NOT RAISE any of (<class 'ValueError'>, <class 'KeyError'>)",
    ] {
        let evidence =
            failed("Failed", message, &["def test_a():", "    with pytest.raises((ValueError, KeyError)): f(1)"]);
        assert_eq!(first_of(&evidence), "`f(1)` at test_a.py:2 ran to its end without ValueError or KeyError");
    }
}
