//! Files in `tests/data/import` were written by pytest 9 for `test_sample.py` there.

use super::*;
use crate::record::{Outcome, Phase, Relation, Tested};

fn origin() -> Origin {
    Origin {
        run: "r1".into(),
        project: Project { root: "/project".into(), name: "project".into(), remote: None },
        at: "2026-01-02T03:04:05Z".parse().unwrap(),
    }
}

fn records(file: impl BufRead) -> (Vec<Record>, Result<Imported, Error>) {
    let mut records = Vec::new();
    let result = read(file, &origin(), &mut |record| {
        records.push(record);
        Ok(())
    });
    (records, result)
}

fn of_file(name: &str) -> (Vec<Record>, Imported) {
    let path = format!("{}/../../tests/data/import/{name}", env!("CARGO_MANIFEST_DIR"));
    let (records, result) = records(io::BufReader::new(std::fs::File::open(path).unwrap()));
    (records, result.unwrap())
}

fn tests(records: &[Record]) -> Vec<&Tested> {
    records.iter().filter_map(|record| if let Record::Test(test) = record { Some(&**test) } else { None }).collect()
}

fn find<'r>(records: &'r [Record], nodeid: &str) -> Vec<&'r Tested> {
    tests(records).into_iter().filter(|test| test.nodeid == nodeid).collect()
}

fn outcomes(records: &[Record], nodeid: &str) -> Vec<(Outcome, Phase, u32)> {
    find(records, nodeid).into_iter().map(|test| (test.outcome, test.phase, test.attempt)).collect()
}

/// What every file of the sample says, whatever its format.
fn check_sample(records: &[Record], imported: Imported) {
    assert!(matches!(records.first(), Some(Record::Run(_))));
    assert!(matches!(records.last(), Some(Record::End(_))));
    assert_eq!(imported.tests, tests(records).len());
    let of = |name: &str| outcomes(records, &format!("test_sample.py::{name}"));
    assert_eq!(of("test_passes"), [(Outcome::Passed, Phase::Call, 1)]);
    assert_eq!(of("test_skipped"), [(Outcome::Skipped, Phase::Setup, 1)]);
    assert_eq!(of("test_xfails"), [(Outcome::Xfailed, Phase::Call, 1)]);
    assert_eq!(of("test_xpasses_strictly"), [(Outcome::Failed, Phase::Call, 1)]);
    assert_eq!(of("test_setup_error"), [(Outcome::Error, Phase::Setup, 1)]);
    assert!(of("test_teardown_error").contains(&(Outcome::Error, Phase::Teardown, 1)));
    assert_eq!(of("test_both"), [(Outcome::Failed, Phase::Call, 1), (Outcome::Error, Phase::Teardown, 1)]);
    assert_eq!(of("test_param[\\xe9::]]"), [(Outcome::Failed, Phase::Call, 1)]);
    assert_eq!(of("TestUnit::test_method"), [(Outcome::Failed, Phase::Call, 1)]);
    assert_eq!(outcomes(records, "test_uncollectable.py"), [(Outcome::Error, Phase::Collect, 1)]);

    let fails = find(records, "test_sample.py::test_fails")[0].failure.as_ref().unwrap();
    assert_eq!(
        (fails.exception.kind.as_str(), fails.exception.message.as_str()),
        ("AttributeError", "'NoneType' object has no attribute 'split'")
    );
    let places: Vec<(&str, u32, &str)> =
        fails.frames.iter().map(|frame| (frame.file.as_str(), frame.line, frame.function.as_str())).collect();
    assert_eq!(places, [("test_sample.py", 10, "helper"), ("test_sample.py", 25, "test_fails")]);
    assert!(fails.frames[0].in_app);
    assert_eq!(fails.frames[0].source.as_ref().unwrap().lines.last().unwrap(), "    return user.mail.split(\"@\")");
    assert_eq!(fails.frames[0].source.as_ref().unwrap().first, 9);
    assert_eq!(fails.frames[0].locals[0].name, "user");

    let compares = find(records, "test_sample.py::test_compares")[0].failure.as_ref().unwrap();
    assert_eq!(compares.exception.kind, "AssertionError");
    assert!(compares.exception.message.starts_with("they differ <&> "), "{}", compares.exception.message);
    assert!(compares.exception.message.contains("\nassert {'a': 1} == {'a': 2}"), "{}", compares.exception.message);

    let chained = find(records, "test_sample.py::test_chained")[0].failure.as_ref().unwrap();
    assert_eq!((chained.exception.kind.as_str(), chained.exception.message.as_str()), ("KeyError", "'wrapped'"));
    assert_eq!(chained.chain.len(), 1);
    assert_eq!((chained.chain[0].relation, chained.chain[0].exception.kind.as_str()), (Relation::Cause, "ValueError"));

    let setup = find(records, "test_sample.py::test_setup_error")[0].failure.as_ref().unwrap();
    assert_eq!((setup.exception.kind.as_str(), setup.exception.message.as_str()), ("OSError", "[Errno 28] no space"));
    let broken = find(records, "test_uncollectable.py")[0].failure.as_ref().unwrap();
    assert_eq!(broken.exception.kind, "ModuleNotFoundError");
    assert_eq!(find(records, "test_sample.py::test_skipped")[0].reason.as_deref(), Some("not today"));
}

#[test]
fn junit_of_pytest() {
    let (records, imported) = of_file("pytest-xunit2.xml");
    check_sample(&records, imported);
    let Some(Record::Run(run)) = records.first() else { panic!() };
    assert_eq!((run.source, run.at.to_string().as_str()), (Source::Junit, "2026-11-15T19:48:49.78309Z"));
    assert_eq!(outcomes(&records, "test_sample.py::test_flaky").len(), 2);
    let Some(Record::End(end)) = records.last() else { panic!() };
    assert_eq!((end.exit_code, end.seconds), (1, 0.512));
}

#[test]
fn junit_of_pytest_with_files_output_and_workers() {
    let (records, imported) = of_file("pytest-xunit1-xdist.xml");
    check_sample(&records, imported);
    let fails = find(&records, "test_sample.py::test_fails")[0];
    assert_eq!((fails.file.as_deref(), fails.line), (Some("test_sample.py"), Some(18)));
    let evidence = fails.failure.as_ref().unwrap();
    assert_eq!(evidence.stdout, "before it fails");
    assert!(evidence.log.contains("careful"), "{}", evidence.log);
}

#[test]
fn reportlog_of_pytest() {
    for file in ["reportlog.jsonl", "reportlog-xdist.jsonl"] {
        let (records, imported) = of_file(file);
        check_sample(&records, imported);
        let Some(Record::Run(run)) = records.first() else { panic!() };
        assert_eq!((run.source, run.pytest.as_deref()), (Source::Reportlog, Some("9.2.0")));
        let of = |name: &str| outcomes(&records, &format!("test_sample.py::{name}"));
        assert_eq!(of("test_xpasses"), [(Outcome::Xpassed, Phase::Call, 1)]);
        assert_eq!(of("test_flaky"), [(Outcome::Rerun, Phase::Call, 1), (Outcome::Passed, Phase::Call, 2)]);
        let subtests = find(&records, "test_sample.py::test_subtests");
        let named: Vec<(Option<&str>, Outcome)> =
            subtests.iter().map(|test| (test.subtest.as_deref(), test.outcome)).collect();
        assert_eq!(
            named,
            [
                (Some("number number=0"), Outcome::Passed),
                (Some("number number=1"), Outcome::Failed),
                (Some("number number=2"), Outcome::Passed),
                (None, Outcome::Failed)
            ]
        );
        let fails = find(&records, "test_sample.py::test_fails")[0];
        assert_eq!((fails.line, fails.at.is_some()), (Some(18), true));
        assert_eq!(fails.failure.as_ref().unwrap().stdout, "before it fails\n");
        let Some(Record::End(end)) = records.last() else { panic!() };
        assert_eq!(end.exit_code, 1);
        assert!(find(&records, "test_sample.py::test_passes")[0].seconds.call > 0.0);
    }
}

#[test]
fn both_formats_tell_the_same_failures() {
    let failing = |file: &str| {
        let (records, _) = of_file(file);
        let mut failing: Vec<(String, String)> = tests(&records)
            .into_iter()
            .filter(|test| matches!(test.outcome, Outcome::Failed | Outcome::Error))
            .filter(|test| !test.nodeid.contains("subtests"))
            .map(|test| (test.nodeid.clone(), test.failure.as_ref().unwrap().exception.kind.clone()))
            .collect();
        failing.sort();
        failing
    };
    assert_eq!(failing("pytest-xunit2.xml"), failing("reportlog.jsonl"));
    assert_eq!(failing("pytest-xunit2.xml").len(), 11);
}

#[test]
fn junit_of_other_runners() {
    let text = r#"<testsuites><testsuite name="outer"><testsuite name="inner" timestamp="2024-05-06T07:08:09" time="1,002.5">
        <properties><property name="a" value="b"/></properties>
        <testcase classname="com.shop.CartTest" name="adds" time="0.5">
          <rerunFailure message="first" type="java.lang.AssertionError"><stackTrace>at com.shop.Cart</stackTrace></rerunFailure>
          <failure message="expected 1" type="java.lang.AssertionError"><![CDATA[<b> & at com.shop.Cart.add(Cart.java:7)]]></failure>
          <system-out>out &#x263a;</system-out>
        </testcase>
        <testcase name="alone"><flakyFailure message="once"/></testcase>
    </testsuite></testsuite></testsuites>"#;
    let (records, result) = records(text.as_bytes());
    result.unwrap();
    assert_eq!(
        outcomes(&records, "com.shop.CartTest::adds"),
        [(Outcome::Rerun, Phase::Call, 1), (Outcome::Failed, Phase::Call, 2)]
    );
    assert_eq!(outcomes(&records, "alone"), [(Outcome::Rerun, Phase::Call, 1), (Outcome::Passed, Phase::Call, 2)]);
    let failure = find(&records, "com.shop.CartTest::adds")[1].failure.as_ref().unwrap();
    assert_eq!(
        (failure.exception.kind.as_str(), failure.exception.module.as_deref(), failure.exception.message.as_str()),
        ("AssertionError", Some("java.lang"), "expected 1")
    );
    assert_eq!(failure.text, "<b> & at com.shop.Cart.add(Cart.java:7)");
    assert_eq!(failure.stdout, "out ☺");
    let Some(Record::Run(run)) = records.first() else { panic!() };
    assert_eq!(run.at, "2026-01-02T03:04:05Z".parse().unwrap(), "the outer suite has no time, so it is the file's");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let fails = |text: &str| records(text.as_bytes()).1.unwrap_err().to_string();
    let has = |text: &str, words: &str| assert!(fails(text).contains(words), "{text}: {}", fails(text));
    has("<testsuite>\n<testcase name=\"a\"/>\n<testcase>", "line 3: the file ends in the middle of <testcase>");
    has("<testsuite>\n</testcase>", "line 2: ");
    has("<!DOCTYPE a [<!ENTITY x \"y\">]>\n<testsuite/>", "line 1: a document type");
    has(
        "<testsuite>\n<testcase name=\"a\"><failure>&x;</failure></testcase></testsuite>",
        "line 2: the entity `&x;` is not one of XML's own",
    );
    has("<testsuite>\n<testcase name=\"&x;\"/></testsuite>", "line 2: ");
    has("<html></html>", "line 1: <html> is not the beginning of a JUnit file");
    has("<testsuite><testcase><testcase/></testcase></testsuite>", "a <testcase> inside of another");
    has(&"<testsuite>".repeat(100), "more than 64 deep");
    has("hello", "neither JUnit XML nor");
    has("", "neither JUnit XML nor");
    has("{\"$report_type\": \"SessionStart\"}\n{\"a\": \n{}\n", "line 2: not JSON as pytest-reportlog writes it");
    has("{\"a\": 1}\n", "line 1: there is no `$report_type`");
}

#[test]
fn what_came_before_a_broken_place_was_taken() {
    let (records, result) = records("<testsuite><testcase name=\"a\"/>\n<oops".as_bytes());
    assert!(result.is_err());
    assert_eq!(tests(&records).len(), 1);
    let (records, result) =
        self::records("{\"$report_type\":\"CollectReport\",\"nodeid\":\"a.py\",\"outcome\":\"failed\",\"longrepr\":\"no\"}\n{\"$report".as_bytes());
    assert_eq!(
        result.unwrap(),
        Imported { tests: 1, failures: 1, cut_at: Some(2) },
        "half a last line is that of a run that was killed"
    );
    assert_eq!(tests(&records)[0].nodeid, "a.py");
    let Some(Record::End(end)) = records.last() else { panic!("{records:?}") };
    assert_eq!(
        end.note.as_deref(),
        Some("imported; the file ends in the middle of line 2, what came after is not there")
    );
}

#[test]
fn files_in_other_encodings_are_read() {
    let text = |name: &str| {
        format!(
            "<?xml version=\"1.0\" encoding=\"{name}\"?>\n<testsuite><testcase name=\"café\"><failure message=\"ValueError: naïve – 😀\"/></testcase></testsuite>"
        )
    };
    let check = |bytes: &[u8], message: &str| {
        // A reader that gives little at once cuts characters.
        let (records, result) = records(io::BufReader::with_capacity(101, bytes));
        assert_eq!(result.unwrap().failures, 1);
        let test = tests(&records)[0];
        assert_eq!(
            (test.nodeid.as_str(), test.failure.as_ref().unwrap().exception.message.as_str()),
            ("café", message)
        );
    };
    let utf16 = text("UTF-16");
    let little: Vec<u8> = utf16.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = utf16.encode_utf16().flat_map(u16::to_be_bytes).collect();
    check(&little, "naïve – 😀");
    check(&[&[0xff, 0xfe][..], &little].concat(), "naïve – 😀");
    check(&[&[0xfe, 0xff][..], &big].concat(), "naïve – 😀");
    let latin: Vec<u8> = text("ISO-8859-1")
        .replace(" – 😀", " –")
        .chars()
        .map(|c| if c == '–' { 0x96 } else { u8::try_from(c).unwrap() })
        .collect();
    check(&latin, "naïve –");
    check(text("utf-8").as_bytes(), "naïve – 😀");
    let error = records(text("EBCDIC-FR").as_bytes()).1.unwrap_err();
    assert!(error.to_string().contains("the encoding `ebcdic-fr` is not known"), "{error}");
}

#[test]
fn type_and_message_are_found_where_they_are() {
    let of = |failure: &str| {
        let (records, result) =
            records(format!("<testsuite><testcase name=\"a\">{failure}</testcase></testsuite>").as_bytes());
        result.unwrap();
        let exception = tests(&records)[0].failure.as_ref().unwrap().exception.clone();
        (exception.kind, exception.message)
    };
    let told = |kind: &str, message: &str| (kind.to_owned(), message.to_owned());
    assert_eq!(of("<failure type=\"ValueError\">no price\n at x</failure>"), told("ValueError", "no price"));
    assert_eq!(of("<failure type=\"ValueError\" message=\"no price\"/>"), told("ValueError", "no price"));
    assert_eq!(of("<failure>KeyError: 'a'</failure>"), told("KeyError", "'a'"));
    assert_eq!(of("<error message=\"it broke\"/>"), told("Failed", "it broke"));
}

#[test]
fn one_who_refuses_ends_it() {
    let result =
        read("<testsuite><testcase name=\"a\"/></testsuite>".as_bytes(), &origin(), &mut |_| Err("full".into()));
    assert!(matches!(result, Err(Error::Refused(_))));
}

#[test]
fn a_huge_traceback_is_cut_and_its_end_read() {
    let mut text = String::from(
        "<testsuite name=\"pytest\"><testcase classname=\"t\" name=\"a\"><failure message=\"KeyError: 'a'\">",
    );
    for _ in 0..400_000 {
        text.push_str("    some line of a deep recursion\n");
    }
    text.push_str("\n&gt;   d['a']\nE   KeyError: 'a'\n\nt.py:3: KeyError</failure></testcase></testsuite>");
    let (records, result) = records(text.as_bytes());
    result.unwrap();
    let failure = tests(&records)[0].failure.as_ref().unwrap();
    assert_eq!(failure.exception.kind, "KeyError");
    assert_eq!(failure.frames[0].line, 3);
    assert!(failure.text.chars().count() < MAX_TEXT_CHARS + 100);
    assert_eq!(failure.cut, ["text"]);
}

#[test]
fn a_piece_without_end_is_refused() {
    struct Endless;
    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(b'x');
            Ok(into.len())
        }
    }
    let begin = &b"<testsuite><testcase name=\"a\"><failure>"[..];
    let reader = io::BufReader::with_capacity(1 << 20, begin.chain(Endless));
    let error = records(reader).1.unwrap_err();
    assert!(error.to_string().contains("larger than 64 MB"), "{error}");
}

#[test]
fn tracebacks_of_python_itself_are_read() {
    let text = "Traceback (most recent call last):\n  File \"/project/a.py\", line 3, in main\n    run(1)\n    ~~~^^^\n  File \"/python/lib/python3.13/json/decoder.py\", line 7, in decode\n    raise it\nshop.errors.Bad: no such thing\n";
    let evidence = traceback::evidence(text, traceback::ReportedException::default());
    assert_eq!((evidence.exception.kind.as_str(), evidence.exception.message.as_str()), ("Bad", "no such thing"));
    assert_eq!(evidence.exception.module.as_deref(), Some("shop.errors"));
    let places: Vec<(u32, &str, bool)> =
        evidence.frames.iter().map(|frame| (frame.line, frame.function.as_str(), frame.in_app)).collect();
    assert_eq!(places, [(7, "decode", false), (3, "main", true)]);
}

#[test]
fn the_stack_of_a_crash_is_that_of_the_thread_that_ran_the_test() {
    let text = "Fatal Python error: Segmentation fault\n\nThread 0x00007f01 (most recent call first):\n  File \"/usr/lib/python3.13/threading.py\", line 359 in wait\n\n\
        Current thread 0x00007f02 (most recent call first):\n  File \"/usr/lib/python3.13/ctypes/__init__.py\", line 500 in string_at\n  \
        File \"/home/ann/shop/cart/native.py\", line 7 in total\n  File \"/home/ann/shop/tests/test_cart.py\", line 12 in test_total\n  \
        File \"/env/lib/python3.13/site-packages/_pytest/python.py\", line 194 in pytest_pyfunc_call\n";
    let frames = crash_frames(text, "tests/test_cart.py::test_total");
    let told: Vec<(&str, u32, &str, bool)> =
        frames.iter().map(|frame| (frame.file.as_str(), frame.line, frame.function.as_str(), frame.in_app)).collect();
    assert_eq!(
        told,
        [
            ("/usr/lib/python3.13/ctypes/__init__.py", 500, "string_at", false),
            ("cart/native.py", 7, "total", true),
            ("tests/test_cart.py", 12, "test_total", true),
        ]
    );
    assert_eq!(crash_frames("nothing of the kind", "tests/test_cart.py::test_total"), []);
}
