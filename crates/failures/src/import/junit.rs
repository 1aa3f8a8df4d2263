//! `JUnit` XML: pytest's two families, and other runners'. What XML has beyond elements and text (document types, entities) is refused.

use std::{
    collections::{BTreeMap, HashMap},
    io::BufRead,
};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use super::{
    Counted, Error, Imported, MAX_NAME_CHARS, MAX_OUTPUT_CHARS, Origin, Take, Taking, cut,
    traceback::{self, ReportedException},
};
use crate::{
    hypotheses::reading::pattern,
    record::{Evidence, Outcome, Phase, Seconds, Source, Tested},
};
use pylair_text::plain::one_line;

const MAX_DEPTH: usize = 64;
/// Text of one element that is kept while it is read.
const MAX_KEPT_BYTES: usize = 4 << 20;

pub fn read(reader: impl BufRead, origin: &Origin, take: Take) -> Result<Imported, Error> {
    let mut reader = Reader::from_reader(Counted::new(reader));
    reader.config_mut().check_end_names = true;
    let mut state = State {
        taking: Taking::new(origin, Source::Junit, take),
        open: Vec::new(),
        case: None,
        text: String::new(),
        tried: HashMap::new(),
        pytest: false,
        at: None,
        seconds: 0.0,
        any: false,
    };
    let mut buffer = Vec::new();
    loop {
        reader.get_mut().piece = 0;
        let event = reader.read_event_into(&mut buffer);
        let line = reader.get_ref().line;
        let broken = |what: String| Error::Broken { line, what };
        match event.map_err(|error| broken(error.to_string()))? {
            Event::Start(start) => state.start(&start, false).map_err(|problem| problem.at(line))?,
            Event::Empty(start) => {
                state.start(&start, true).map_err(|problem| problem.at(line))?;
                state.finish().map_err(|problem| problem.at(line))?;
            }
            Event::End(_) => state.finish().map_err(|problem| problem.at(line))?,
            Event::Text(text) => state.add(&text.xml10_content()),
            Event::CData(text) => state.add(&text.xml10_content()),
            Event::GeneralRef(reference) => {
                let name = reference.xml10_content();
                let character = match &*name {
                    "lt" => Some('<'),
                    "gt" => Some('>'),
                    "amp" => Some('&'),
                    "apos" => Some('\''),
                    "quot" => Some('"'),
                    _ => reference.resolve_char_ref().map_err(|error| broken(error.to_string()))?,
                };
                let character = character
                    .ok_or_else(|| broken(format!("the entity `&{};` is not one of XML's own", one_line(&name, 40))))?;
                state.add(character.encode_utf8(&mut [0; 4]));
            }
            Event::DocType(_) => return Err(broken("a document type (<!DOCTYPE …>) is not taken".to_owned())),
            Event::Eof => {
                if let Some(open) = state.open.last() {
                    return Err(broken(format!("the file ends in the middle of <{open}>")));
                }
                if !state.any {
                    return Err(broken("there is no <testsuite>".to_owned()));
                }
                return state.taking.end(None, state.seconds, None);
            }
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
        buffer.clear();
        buffer.shrink_to(1 << 20);
    }
}

struct State<'t> {
    taking: Taking<'t>,
    /// Names of the elements that are open.
    open: Vec<String>,
    case: Option<Case>,
    text: String,
    /// Tries of each test.
    tried: HashMap<String, u32>,
    pytest: bool,
    at: Option<Timestamp>,
    seconds: f64,
    any: bool,
}

/// Something that is wrong, before its line is known.
enum Problem {
    Here(String),
    Known(Error),
}

impl Problem {
    fn at(self, line: u64) -> Error {
        match self {
            Self::Here(what) => Error::Broken { line, what },
            Self::Known(error) => error,
        }
    }
}

#[derive(Default)]
struct Case {
    attributes: BTreeMap<String, String>,
    results: Vec<ResultElement>,
    stdout: String,
    stderr: String,
}

/// A `failure`, `error`, `skipped` or such element.
struct ResultElement {
    element: String,
    message: String,
    kind: String,
    text: String,
}

impl State<'_> {
    fn start(&mut self, start: &BytesStart, empty: bool) -> Result<(), Problem> {
        let name = start.local_name().as_ref().to_owned();
        let mut attributes = BTreeMap::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| Problem::Here(error.to_string()))?;
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|error| Problem::Here(error.to_string()))?;
            attributes.insert(attribute.key.local_name().as_ref().to_owned(), value.into_owned());
        }
        if self.open.is_empty() && !matches!(name.as_str(), "testsuites" | "testsuite") {
            return Err(Problem::Here(format!(
                "<{}> is not the beginning of a JUnit file, which is <testsuites> or <testsuite>",
                one_line(&name, 60)
            )));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(Problem::Here(format!("elements are more than {MAX_DEPTH} deep")));
        }
        match name.as_str() {
            "testsuites" | "testsuite" => self.suite(&name, &attributes).map_err(Problem::Known)?,
            "testcase" if self.case.is_some() => {
                return Err(Problem::Here("a <testcase> inside of another".to_owned()));
            }
            "testcase" => self.case = Some(Case { attributes, ..Case::default() }),
            _ if RESULTS.contains(&name.as_str()) => {
                if let Some(case) = &mut self.case {
                    let mut taken = |key: &str| attributes.remove(key).unwrap_or_default();
                    case.results.push(ResultElement {
                        element: name.clone(),
                        message: taken("message"),
                        kind: taken("type"),
                        text: String::new(),
                    });
                }
            }
            _ => {}
        }
        // The text of an empty element would be that of the one around it.
        if !empty || self.case.is_some() {
            self.text.clear();
        }
        self.open.push(name);
        Ok(())
    }

    fn add(&mut self, text: &str) {
        let room = MAX_KEPT_BYTES.saturating_sub(self.text.len());
        if text.len() <= room {
            self.text.push_str(text);
        } else {
            // The end of a traceback tells more than its middle.
            let kept = cut(text, room.max(1 << 16)).0;
            self.text.push_str(&kept);
        }
    }

    fn suite(&mut self, name: &str, attributes: &BTreeMap<String, String>) -> Result<(), Error> {
        self.any = true;
        let called = attributes.get("name").map_or("", String::as_str);
        self.pytest |= matches!(called, "pytest" | "pytest tests");
        if let Some(at) = attributes.get("timestamp").and_then(|text| timestamp(text)) {
            self.at = Some(at);
        }
        let nested = self.open.iter().any(|open| open == "testsuite");
        if name == "testsuite" && !nested {
            self.seconds += seconds(attributes.get("time"));
            let host = attributes.get("hostname").map(|host| one_line(host, 200));
            self.taking.begin(self.at, |began| began.host = host)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Problem> {
        let Some(name) = self.open.pop() else { return Ok(()) };
        let text = std::mem::take(&mut self.text);
        if name == "testcase" {
            let Some(case) = self.case.take() else { return Ok(()) };
            return self.case(&case).map_err(Problem::Known);
        }
        let Some(case) = &mut self.case else { return Ok(()) };
        match name.as_str() {
            "system-out" => case.stdout.push_str(&cut(&text, MAX_OUTPUT_CHARS).0),
            "system-err" => case.stderr.push_str(&cut(&text, MAX_OUTPUT_CHARS).0),
            // Inside of results of other runners.
            "stackTrace" => case.results.last_mut().into_iter().for_each(|found| found.text.clone_from(&text)),
            _ if RESULTS.contains(&name.as_str()) => {
                if let Some(found) = case.results.last_mut()
                    && found.text.is_empty()
                {
                    found.text = text;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn case(&mut self, case: &Case) -> Result<(), Error> {
        let place = self.place(case);
        let seconds = seconds(case.attributes.get("time"));
        let made = |outcome, phase| Tested {
            run: self.taking.origin.run.clone(),
            nodeid: place.nodeid.clone(),
            outcome,
            phase,
            attempt: 1,
            subtest: None,
            at: self.at,
            file: place.file.clone(),
            line: place.line,
            params: BTreeMap::new(),
            markers: Vec::new(),
            seconds: Seconds { call: seconds, ..Seconds::default() },
            reason: None,
            worker: None,
            failure: None,
        };
        let failing = case.results.iter().filter(|found| matches!(found.element.as_str(), "failure" | "error")).count();
        let mut tests = Vec::new();
        for (index, found) in case.results.iter().enumerate() {
            let (outcome, phase) = judge(found);
            let mut test = made(outcome, phase);
            match outcome {
                Outcome::Skipped | Outcome::Xfailed => {
                    let reason = if found.message.is_empty() { &found.text } else { &found.message };
                    test.reason = Some(one_line(reason, MAX_NAME_CHARS)).filter(|reason| !reason.is_empty());
                }
                _ => {
                    test.failure = Some(Box::new(evidence(found, case)));
                    // Several of one kind are subtests; the last one is the test's own.
                    if failing > 1 && outcome == Outcome::Failed && index + 1 < failing {
                        test.subtest = Some(format!("{}", index + 1));
                    }
                }
            }
            tests.push(test);
        }
        if !tests.iter().any(|test| test.outcome != Outcome::Rerun) {
            tests.push(made(Outcome::Passed, Phase::Call));
        }
        // A teardown that fails belongs to the try before it.
        let follows = tests.first().is_some_and(|test| test.phase == Phase::Teardown);
        let tried = self.tried.entry(place.nodeid).or_insert(0);
        let mut attempt = if follows { (*tried).max(1) } else { *tried + 1 };
        for mut test in tests {
            test.attempt = attempt;
            if test.outcome == Outcome::Rerun {
                attempt += 1;
            }
            self.taking.test(test)?;
        }
        *tried = attempt;
        Ok(())
    }

    fn place(&self, case: &Case) -> TestLocation {
        let attribute = |name: &str| {
            case.attributes.get(name).map(|value| one_line(value, MAX_NAME_CHARS)).filter(|value| !value.is_empty())
        };
        let name = attribute("name").unwrap_or_else(|| "(no name)".to_owned());
        let class = attribute("classname").or_else(|| attribute("class")).unwrap_or_default();
        let file = attribute("file");
        let line = attribute("line").and_then(|line| line.parse::<u32>().ok());
        if !self.pytest {
            let nodeid = if class.is_empty() { name } else { format!("{class}::{name}") };
            return TestLocation { nodeid, file, line };
        }
        if class.is_empty() {
            // A module that could not be collected.
            let file = file.unwrap_or_else(|| format!("{}.py", name.trim_end_matches(".py").replace('.', "/")));
            return TestLocation { nodeid: file.clone(), file: Some(file), line: None };
        }
        let (module, classes) = module_and_classes(&class, file.as_deref());
        let file = file.unwrap_or(module);
        let nodeid =
            std::iter::once(file.as_str()).chain(classes).chain([name.as_str()]).collect::<Vec<_>>().join("::");
        // pytest counts lines from 0 there.
        TestLocation { nodeid, file: Some(file), line: line.map(|line| line + 1) }
    }
}

struct TestLocation {
    nodeid: String,
    file: Option<String>,
    line: Option<u32>,
}

const RESULTS: &[&str] = &["failure", "error", "skipped", "rerunFailure", "rerunError", "flakyFailure", "flakyError"];

fn judge(found: &ResultElement) -> (Outcome, Phase) {
    match found.element.as_str() {
        "skipped" if found.kind == "pytest.xfail" => (Outcome::Xfailed, Phase::Call),
        "skipped" => (Outcome::Skipped, Phase::Setup),
        "failure" => (Outcome::Failed, Phase::Call),
        "error"
            if found.message.starts_with("failed on teardown")
                || found.message.starts_with("test teardown failure") =>
        {
            (Outcome::Error, Phase::Teardown)
        }
        "error" if found.message.starts_with("collection") => (Outcome::Error, Phase::Collect),
        "error" if found.message.starts_with("failed on setup") || found.message.starts_with("test setup failure") => {
            (Outcome::Error, Phase::Setup)
        }
        "error" => (Outcome::Error, Phase::Call),
        _ => (Outcome::Rerun, Phase::Call),
    }
}

fn evidence(found: &ResultElement, case: &Case) -> Evidence {
    let wrapped = pattern!(r#"(?s)^failed on (?:setup|teardown) with "(.*)"$"#).captures(&found.message);
    let message =
        wrapped.as_ref().map_or(found.message.as_str(), |parts| parts.get(1).map_or("", |inside| inside.as_str()));
    // Some runners write it as the text only.
    let first_line = || found.text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let message = if message.trim().is_empty() { first_line() } else { message };
    let kind = Some(found.kind.as_str()).filter(|kind| !kind.is_empty());
    let mut evidence = traceback::evidence(&found.text, ReportedException { message, kind });
    if evidence.exception.kind.is_empty() {
        "Failed".clone_into(&mut evidence.exception.kind);
    }
    if evidence.text.is_empty() {
        evidence.text = cut(message, super::MAX_TEXT_CHARS).0;
    }
    let (log, stdout) = captured(&case.stdout);
    evidence.log = log;
    evidence.stdout = stdout;
    evidence.stderr = captured(&case.stderr).1;
    evidence
}

/// pytest writes several kinds of output into one element, under headings. The log, and the rest.
fn captured(text: &str) -> (String, String) {
    let (mut log, mut rest) = (String::new(), String::new());
    let mut into_log = false;
    for line in text.lines() {
        if let Some(parts) = pattern!(r"^-+ ?Captured (Log|Out|Err) ?-+$").captures(line) {
            into_log = &parts[1] == "Log";
            continue;
        }
        let into = if into_log { &mut log } else { &mut rest };
        into.push_str(line);
        into.push('\n');
    }
    (log.trim_matches('\n').to_owned(), rest.trim_matches('\n').to_owned())
}

/// `tests.test_a.TestB` in the file `tests/test_a.py`: the file, and the classes. Without the file's name the classes are what begins
/// with a capital letter.
fn module_and_classes<'c>(class: &'c str, file: Option<&str>) -> (String, Vec<&'c str>) {
    if let Some(file) = file {
        let module = file.trim_end_matches(".py").replace(['/', '\\'], ".");
        if let Some(rest) = class.strip_prefix(&module) {
            return (file.to_owned(), rest.split('.').filter(|part| !part.is_empty()).collect());
        }
    }
    let parts: Vec<&str> = class.split('.').collect();
    let classes = parts
        .iter()
        .skip(1)
        .position(|part| part.starts_with(|c: char| c.is_uppercase()))
        .map_or(parts.len(), |at| at + 1);
    (format!("{}.py", parts[..classes].join("/")), parts[classes..].to_vec())
}

fn seconds(text: Option<&String>) -> f64 {
    // Some runners write thousands with commas.
    let seconds = text.and_then(|text| text.replace(',', "").parse::<f64>().ok()).unwrap_or(0.0);
    if seconds.is_finite() && seconds >= 0.0 { seconds } else { 0.0 }
}

/// With or without a zone; without one it is taken as UTC.
fn timestamp(text: &str) -> Option<Timestamp> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp()))
}
