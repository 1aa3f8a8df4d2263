//! Records made ready to be kept: checked, cut to their bounds, without secrets, with their fingerprints. No database here; `writer` hands
//! what comes out to `store`.

use jiff::Timestamp;

use super::{
    Error,
    fingerprint::{self, Print},
    import::crash_frames,
    record::{Began, Code, Ended, Evidence, Exception, Frame, Outcome, Phase, Record, Tested},
    view::TestDetail,
};
use pylair_text::mask::{self, Reading};

/// Bounds of what is kept of one occurrence. The reporter cuts too, but anybody can report.
const MAX_TEXT_BYTES: usize = 64 * 1024;
const MAX_OUTPUT_BYTES: usize = 32 * 1024;
const MAX_MESSAGE_BYTES: usize = 16 * 1024;
const MAX_LOCAL_BYTES: usize = 2 * 1024;
const MAX_NAME_BYTES: usize = 2 * 1024;
const MAX_FRAMES: usize = 60;
const MAX_LINKS: usize = 10;
const MAX_LOCALS: usize = 60;
const MAX_LINES: usize = 80;
const MAX_LIST: usize = 500;
const MAX_MODULES: usize = 200;
const MAX_PACKAGES: usize = 2000;
const MAX_PACKAGE_BYTES: usize = 200;
/// Secrets of variables that are looked for in the rest of an occurrence, and how long they are at least.
const MAX_SECRETS: usize = 32;
const MIN_SECRET_BYTES: usize = 8;
/// Of all the frames of one occurrence, source and locals together.
const MAX_EVIDENCE_BYTES: usize = 512 * 1024;

/// What one call wants to have kept.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) records: usize,
    pub(crate) began: Vec<Began>,
    pub(crate) code: Vec<Code>,
    pub(crate) reports: Vec<Report>,
    pub(crate) ended: Vec<Ended>,
}

/// A report of a test.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) run: String,
    pub(crate) nodeid: String,
    pub(crate) outcome: Outcome,
    pub(crate) phase: Phase,
    pub(crate) attempt: u32,
    pub(crate) subtest: String,
    pub(crate) at: Timestamp,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) seconds: f64,
    pub(crate) failing: Option<Box<Failing>>,
}

#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) print: Print,
    pub(crate) occurrence: String,
    /// JSON.
    pub(crate) evidence: String,
    pub(crate) test: String,
    pub(crate) traits: String,
}

/// Parses lines of records of one run. Says which line is wrong, and takes none of them then.
pub fn parse(run: &str, lines: &[u8]) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    for (number, line) in (1..).zip(lines.split(|byte| *byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let record: Record =
            serde_json::from_slice(line).map_err(|why| Error::Line { number, why: why.to_string() })?;
        if record.run() != run {
            let why = format!("it is of run `{}` and not of `{run}`", record.run());
            return Err(Error::Line { number, why });
        }
        records.push(record);
    }
    Ok(records)
}

/// Makes records ready. Takes a while for large ones: not for a thread that others wait for.
pub(crate) fn prepare(records: Vec<Record>) -> Result<Batch, Error> {
    let mut batch = Batch { records: records.len(), ..Batch::default() };
    for (number, record) in (1..).zip(records) {
        let run = record.run();
        if run.is_empty() || run.len() > 200 || run.contains('\0') {
            return Err(Error::Line { number, why: "`run` has to be an id of 1 to 200 bytes".into() });
        }
        match record {
            Record::Run(mut began) => {
                began.argv.truncate(MAX_LIST);
                for argument in &mut began.argv {
                    cut(argument, MAX_NAME_BYTES);
                    hide(argument);
                }
                // Some addresses have a password in them.
                began.project.remote.iter_mut().for_each(hide);
                while began.packages.len() > MAX_PACKAGES {
                    began.packages.pop_last();
                }
                began.packages.retain(|name, version| name.len().max(version.len()) <= MAX_PACKAGE_BYTES);
                batch.began.push(*began);
            }
            Record::Code(mut code) => {
                code.changed.truncate(MAX_LIST);
                batch.code.push(code);
            }
            Record::Test(test) => {
                if test.nodeid.trim().is_empty() {
                    return Err(Error::Line { number, why: "`nodeid` is empty".into() });
                }
                batch.reports.push(report(*test));
            }
            Record::End(mut ended) => {
                if let Some(note) = &mut ended.note {
                    cut(note, MAX_MESSAGE_BYTES);
                    hide(note);
                }
                batch.ended.push(ended);
            }
        }
    }
    Ok(batch)
}

fn report(mut test: Tested) -> Report {
    storable(&mut test.nodeid);
    // Parameters are part of it.
    hide(&mut test.nodeid);
    cut(&mut test.nodeid, MAX_NAME_BYTES);
    let seconds = test.seconds.setup + test.seconds.call + test.seconds.teardown;
    let seconds = if seconds.is_finite() && seconds >= 0.0 { seconds } else { 0.0 };
    let mut subtest = test.subtest.take().unwrap_or_default();
    storable(&mut subtest);
    hide(&mut subtest);
    cut(&mut subtest, MAX_NAME_BYTES);
    let is_failing = matches!(test.outcome, Outcome::Failed | Outcome::Error | Outcome::Rerun);
    let failing = is_failing.then(|| {
        let evidence = test.failure.take().map_or_else(|| unexplained(&test), |evidence| *evidence);
        Box::new(failing(&test, &subtest, evidence, seconds))
    });
    Report {
        failing,
        subtest,
        seconds,
        at: test.at.unwrap_or_else(Timestamp::now),
        run: test.run,
        nodeid: test.nodeid,
        outcome: test.outcome,
        phase: test.phase,
        attempt: test.attempt,
        file: test.file,
        line: test.line,
    }
}

/// A test that failed, and nobody said how.
fn unexplained(test: &Tested) -> Evidence {
    let message = test.reason.clone().unwrap_or_default();
    let exception = Exception { kind: "Failed".into(), message, ..Exception::default() };
    Evidence { exception, ..Evidence::default() }
}

fn failing(test: &Tested, subtest: &str, mut evidence: Evidence, seconds: f64) -> Failing {
    if evidence.frames.is_empty() && matches!(evidence.exception.kind.as_str(), "Died" | "Crashed") {
        evidence.frames = crash_frames(&evidence.text, &test.nodeid);
    }
    bound(&mut evidence);
    let print = fingerprint::print(&test.nodeid, &evidence);
    if evidence.occurrence.is_empty() {
        evidence.occurrence = format!("{}-{}-{}-{:?}-{subtest}", test.run, test.nodeid, test.attempt, test.phase);
    }
    let mut params = test.params.clone();
    for (name, value) in &mut params {
        cut(value, MAX_LOCAL_BYTES);
        hide_value(name, value);
    }
    let markers = test.markers.iter().take(MAX_LIST).cloned().collect();
    let detail = TestDetail { params, markers, seconds, worker: test.worker.clone() };
    Failing {
        occurrence: evidence.occurrence.clone(),
        evidence: json(&evidence),
        test: json(&detail),
        traits: json(&print.traits),
        print,
    }
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("texts and numbers are JSON")
}

/// Cuts what is too long, says so in `cut`, and takes secrets out.
fn bound(evidence: &mut Evidence) {
    let mut was_cut = Vec::new();
    storable(&mut evidence.occurrence);
    cut(&mut evidence.occurrence, 200);
    if bound_exception(&mut evidence.exception) {
        was_cut.push("message");
    }
    let parts = [
        ("text", &mut evidence.text, MAX_TEXT_BYTES),
        ("stdout", &mut evidence.stdout, MAX_OUTPUT_BYTES),
        ("stderr", &mut evidence.stderr, MAX_OUTPUT_BYTES),
        ("log", &mut evidence.log, MAX_OUTPUT_BYTES),
    ];
    for (name, text, most) in parts {
        if cut_middle(text, most) {
            was_cut.push(name);
        }
        hide(text);
    }
    if evidence.chain.len() > MAX_LINKS {
        evidence.chain.truncate(MAX_LINKS);
        was_cut.push("chain");
    }
    let mut left = MAX_EVIDENCE_BYTES;
    let mut secrets = Vec::new();
    if bound_frames(&mut evidence.frames, &mut left, &mut secrets) {
        was_cut.push("frames");
    }
    for link in &mut evidence.chain {
        if bound_exception(&mut link.exception) | bound_frames(&mut link.frames, &mut left, &mut secrets) {
            was_cut.push("chain");
        }
    }
    evidence.cwd.iter_mut().for_each(|cwd| {
        cut(cwd, MAX_NAME_BYTES);
    });
    while evidence.modules.len() > MAX_MODULES {
        evidence.modules.pop_last();
    }
    evidence
        .modules
        .retain(|name, module| name.len().max(module.file.as_ref().map_or(0, String::len)) <= MAX_NAME_BYTES);
    hide_again(evidence, &secrets);
    evidence.cut.truncate(MAX_LIST);
    for name in was_cut {
        if !evidence.cut.iter().any(|known| known == name) {
            evidence.cut.push(name.to_owned());
        }
    }
}

fn bound_exception(exception: &mut Exception) -> bool {
    cut(&mut exception.kind, 200);
    if exception.kind.trim().is_empty() {
        exception.kind = "Failed".into();
    }
    hide(&mut exception.message);
    if let Some(syntax) = &mut exception.syntax {
        cut(&mut syntax.file, MAX_NAME_BYTES);
        cut(&mut syntax.text, MAX_LOCAL_BYTES);
        mask::mask(&mut syntax.text, Reading::Code);
    }
    if let Some(lookup) = &mut exception.lookup {
        cut(&mut lookup.name, MAX_NAME_BYTES);
        cut(&mut lookup.of, MAX_NAME_BYTES);
        lookup.more += u32::try_from(lookup.names.len().saturating_sub(MAX_LIST)).unwrap_or(u32::MAX);
        lookup.names.truncate(MAX_LIST);
        lookup.names.iter_mut().for_each(|name| {
            cut(name, MAX_PACKAGE_BYTES);
        });
    }
    exception.notes.truncate(20);
    for note in &mut exception.notes {
        cut(note, MAX_LOCAL_BYTES);
        hide(note);
    }
    cut_middle(&mut exception.message, MAX_MESSAGE_BYTES)
}

/// `secrets` gets what was taken out of variables and source.
fn bound_frames(frames: &mut Vec<Frame>, left: &mut usize, secrets: &mut Vec<String>) -> bool {
    let mut was_cut = false;
    if frames.len() > MAX_FRAMES {
        // Of a recursion the ends tell everything.
        frames.drain(MAX_FRAMES * 2 / 3..frames.len() - MAX_FRAMES / 3);
        was_cut = true;
    }
    for frame in frames {
        cut(&mut frame.function, MAX_NAME_BYTES);
        cut(&mut frame.file, MAX_NAME_BYTES);
        if frame.locals.len() > MAX_LOCALS {
            frame.more_locals += u32::try_from(frame.locals.len() - MAX_LOCALS).unwrap_or(u32::MAX);
            frame.locals.truncate(MAX_LOCALS);
        }
        for local in &mut frame.locals {
            was_cut |= cut(&mut local.value, MAX_LOCAL_BYTES);
            let before = local.value.clone();
            hide_value(&local.name, &mut local.value);
            note_secrets(&before, &local.value, secrets);
        }
        if let Some(source) = &mut frame.source {
            source.lines.truncate(MAX_LINES);
            for line in &mut source.lines {
                cut(line, MAX_LOCAL_BYTES);
                if let Some(masked) = mask::masked(line, Reading::Code) {
                    note_secrets(line, &masked, secrets);
                    *line = masked;
                }
            }
        }
        frame.globals.truncate(MAX_LIST);
        if let Some(expression) = &mut frame.expression {
            cut(expression, MAX_LOCAL_BYTES);
            mask::mask(expression, Reading::Code);
        }
        let locals: usize = frame.locals.iter().map(|local| local.value.len() + local.name.len() + 40).sum();
        let source: usize = frame.source.iter().flat_map(|source| &source.lines).map(|line| line.len() + 4).sum();
        if locals + source > *left {
            frame.more_locals += u32::try_from(frame.locals.len()).unwrap_or(u32::MAX);
            frame.locals.clear();
            frame.source = None;
            was_cut = true;
        } else {
            *left -= locals + source;
        }
    }
    was_cut
}

fn hide(text: &mut String) {
    mask::mask(text, Reading::Text);
}

/// The same for the value of a variable, whose name may be what says that it is secret.
fn hide_value(name: &str, value: &mut String) {
    if let Some(hidden) = mask::masked(&format!("{name} = {value}"), Reading::Code) {
        let hidden = hidden.split_once(" = ").map(|(_, value)| value.to_owned());
        *value = hidden.unwrap_or_else(|| mask::MARK.to_owned());
        return;
    }
    // What is no literal that can be read: one that was cut, or a text as it is, which is how others than our plugin send it.
    let says_nothing =
        ["", "None", "True", "False"].contains(&value.as_str()) || value.starts_with(['<', '[', '{', '(']);
    if !says_nothing && mask::value(name, value) == mask::MARK {
        mask::MARK.clone_into(value);
    }
}

/// Notes what a text has lost by being masked. What is short, or itself the name of something secret, may well mean something else.
fn note_secrets(before: &str, masked: &str, secrets: &mut Vec<String>) {
    let Some((first, mut rest)) = masked.split_once(mask::MARK).filter(|_| before != masked) else { return };
    let Some(mut left) = before.strip_prefix(first) else { return };
    while secrets.len() < MAX_SECRETS {
        let (between, next) = rest.split_once(mask::MARK).map_or((rest, None), |(between, next)| (between, Some(next)));
        let end = if next.is_some() { left.find(between) } else { left.len().checked_sub(between.len()) };
        let Some((secret, after)) = end.and_then(|end| left.split_at_checked(end)) else { return };
        let secret = secret.trim_matches(['\'', '"']);
        let is_name = mask::value(secret, "x") == mask::MARK;
        if secret.len() >= MIN_SECRET_BYTES && !is_name && !secrets.iter().any(|known| known == secret) {
            secrets.push(secret.to_owned());
        }
        let Some(next) = next else { return };
        left = &after[between.len()..];
        rest = next;
    }
}

/// Takes the secrets of the frames out of all else that is told, where nothing says what they are.
fn hide_again(evidence: &mut Evidence, secrets: &[String]) {
    if secrets.is_empty() {
        return;
    }
    let hide = |text: &mut String| {
        for secret in secrets {
            if text.contains(secret.as_str()) {
                *text = text.replace(secret.as_str(), mask::MARK);
            }
        }
    };
    let Evidence { exception, chain, frames, text, stdout, stderr, log, .. } = evidence;
    [text, stdout, stderr, log].into_iter().for_each(hide);
    let mut all_frames: Vec<&mut Vec<Frame>> = vec![frames];
    let mut exceptions = vec![exception];
    for link in chain {
        all_frames.push(&mut link.frames);
        exceptions.push(&mut link.exception);
    }
    for exception in exceptions {
        hide(&mut exception.message);
        exception.notes.iter_mut().for_each(hide);
    }
    for frame in all_frames.into_iter().flatten() {
        frame.locals.iter_mut().for_each(|local| hide(&mut local.value));
        frame.source.iter_mut().flat_map(|source| &mut source.lines).for_each(hide);
        frame.expression.iter_mut().for_each(hide);
    }
}

/// No database keeps a NUL, and what is looked up has to be what was kept.
fn storable(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

fn cut(text: &mut String, most: usize) -> bool {
    if text.len() <= most {
        return false;
    }
    text.truncate(text.floor_char_boundary(most));
    text.push('…');
    true
}

/// Keeps the beginning and, of what a traceback ends with, more.
fn cut_middle(text: &mut String, most: usize) -> bool {
    if text.len() <= most {
        return false;
    }
    let head = text.floor_char_boundary(most / 4);
    let tail = text.ceil_char_boundary(text.len() - most * 3 / 4);
    let left_out = tail - head;
    *text = format!("{}\n… {left_out} bytes left out …\n{}", &text[..head], &text[tail..]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(failure: &str) -> Record {
        let line = format!(
            r#"{{"ev":"test","run":"r","nodeid":"t.py::t","outcome":"failed","phase":"call","failure":{failure}}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_huge_traceback_is_cut_and_says_so() {
        let text = "x".repeat(50 << 20);
        let failure = format!(r#"{{"exception":{{"type":"E","message":"{text}"}},"text":"{text}","stdout":"short"}}"#);
        let batch = prepare(vec![test(&failure)]).unwrap();
        let failing = batch.reports[0].failing.as_ref().unwrap();
        assert!(failing.evidence.len() < 100 * 1024, "{}", failing.evidence.len());
        let kept: Evidence = serde_json::from_str(&failing.evidence).unwrap();
        assert_eq!(kept.cut, ["message", "text"]);
        assert!(kept.text.contains("bytes left out"));
        assert_eq!(kept.stdout, "short");
    }

    #[test]
    fn many_frames_and_locals_are_bounded() {
        let local = format!(r#"{{"name":"a","type":"str","value":"{}"}}"#, "v".repeat(5000));
        let locals = vec![local; 100].join(",");
        let frame = format!(r#"{{"file":"a.py","line":1,"function":"f","locals":[{locals}]}}"#);
        let frames = vec![frame; 200].join(",");
        let batch = prepare(vec![test(&format!(r#"{{"exception":{{"type":"E"}},"frames":[{frames}]}}"#))]).unwrap();
        let failing = batch.reports[0].failing.as_ref().unwrap();
        assert!(failing.evidence.len() < MAX_EVIDENCE_BYTES * 2, "{}", failing.evidence.len());
        let kept: Evidence = serde_json::from_str(&failing.evidence).unwrap();
        assert_eq!((kept.frames.len(), kept.cut), (MAX_FRAMES, vec!["frames".to_owned()]));
        assert_eq!(kept.frames[0].more_locals, 40);
        assert_eq!(kept.frames[59].locals.len(), 0);
    }

    #[test]
    fn secrets_in_the_names_of_tests_are_not_kept() {
        let Record::Test(mut tested) = test(r#"{"exception":{"type":"E"}}"#) else { unreachable!() };
        for secret in ["password=hunter22", "api_key='abcdef123456'", "ghp_0123456789abcdefghijABCDEFGHIJ012345"] {
            tested.nodeid = format!("t.py::test_x[{secret}]");
            let report = prepare(vec![Record::Test(tested.clone())]).unwrap().reports.remove(0);
            let value = secret.rsplit('=').next().unwrap().trim_matches('\'');
            assert!(report.nodeid.starts_with("t.py::test_x["), "{}", report.nodeid);
            assert!(!format!("{report:?}").contains(value), "{report:?}");
        }
        tested.nodeid = "t.py::test_x[3-word]".into();
        let report = prepare(vec![Record::Test(tested)]).unwrap().reports.remove(0);
        assert_eq!(report.nodeid, "t.py::test_x[3-word]");
    }

    #[test]
    fn the_value_of_a_secret_variable_is_kept_nowhere() {
        let failure = r#"{"exception":{"type":"AssertionError","message":"assert 'WWfirst-one' == 'XXother-one'"},
            "text":"E  - XXother-one\n E + WWfirst-one\n> assert password == word", "stdout":"got WWfirst-one", "frames":[{"file":"a",
            "line":2,"function":"f","source":{"first":1,"lines":["    password = get()","    assert password == 'XXother-one'"]},
            "locals":[{"name":"password","type":"str","value":"'WWfirst-one'"},{"name":"x","type":"str","value":"'WWfirst-one'"},
            {"name":"secret","type":"str","value":"'password'"}]}]}"#;
        let batch = prepare(vec![test(&failure.replace('\n', " "))]).unwrap();
        let evidence = &batch.reports[0].failing.as_ref().unwrap().evidence;
        assert!(!evidence.contains("WWfirst-one") && !evidence.contains("XXother-one"), "{evidence}");
        assert!(evidence.contains("assert '***masked***' == '***masked***'"), "{evidence}");
        assert!(evidence.contains("> assert password == word"), "{evidence}");
    }

    #[test]
    fn secrets_are_not_kept() {
        let failure = r#"{"exception":{"type":"E","message":"password='hunter22'"},
            "frames":[{"file":"a","line":1,"function":"f","locals":[{"name":"api_key","type":"str","value":"'abcdef123456'"}]}]}"#;
        let batch = prepare(vec![test(&failure.replace('\n', " "))]).unwrap();
        let evidence = &batch.reports[0].failing.as_ref().unwrap().evidence;
        assert!(!evidence.contains("hunter22") && !evidence.contains("abcdef123456"), "{evidence}");

        let secret = "s3cret-and-more";
        let failure = format!(
            r#"{{"exception":{{"type":"E","message":"m","notes":["password: {secret}"]}},"frames":[{{"file":"a","line":1,
            "function":"f","source":{{"first":1,"lines":["db_password = '{secret}'"]}},"locals":[
            {{"name":"password","type":"str","value":"'{secret}{}'"}},{{"name":"token","type":"NoneType","value":"None"}},
            {{"name":"db_password","type":"str","value":"{secret}"}}]}}]}}"#,
            "x".repeat(5000)
        );
        let Record::Test(mut tested) = test(&failure.replace('\n', " ")) else { unreachable!() };
        tested.params.insert("password".into(), format!("'{secret}'"));
        let began = r#"{"ev":"run","run":"r","at":"2026-11-15T12:00:00Z","argv":["--password=s3cret-and-more"],
            "project":{"root":"/p","name":"p","remote":"https://ann:s3cret-and-more@example.org/p.git"}}"#;
        let began = serde_json::from_str(&began.replace('\n', " ")).unwrap();
        let batch = prepare(vec![began, Record::Test(tested)]).unwrap();
        let failing = batch.reports[0].failing.as_ref().unwrap();
        assert!(!failing.evidence.contains(secret) && !failing.test.contains(secret), "{failing:?}");
        assert!(failing.evidence.contains("None"), "that there was none is no secret");
        let began = format!("{:?}", batch.began);
        assert!(!began.contains(secret) && began.contains("example.org"), "{began}");
    }

    #[test]
    fn wrong_lines_are_named() {
        let wrong = |lines: &str| parse("r", lines.as_bytes()).unwrap_err().to_string();
        assert!(wrong("\n{}\n").contains("line 2"), "{}", wrong("\n{}\n"));
        assert!(wrong(r#"{"ev":"code","run":"other","hash":"h","how":"git"}"#).contains("of run `other`"));
        assert!(parse("r", b"\n\n").unwrap().is_empty());
        let failed = test(r#"{"exception":{"type":"E"}}"#);
        let Record::Test(mut nameless) = failed else { unreachable!() };
        nameless.nodeid = "  ".into();
        assert!(prepare(vec![Record::Test(nameless)]).unwrap_err().to_string().contains("`nodeid`"));
    }

    #[test]
    fn a_failing_test_without_evidence_is_a_failure_too() {
        let line = r#"{"ev":"test","run":"r","nodeid":"t","outcome":"error","phase":"setup","reason":"it died"}"#;
        let batch = prepare(vec![serde_json::from_str(line).unwrap()]).unwrap();
        assert_eq!(batch.reports[0].failing.as_ref().unwrap().print.message, "it died");
    }
}
