//! Files of pytest-reportlog: one JSON object per line, as pytest's reports are. What is not known is passed over.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    io::BufRead,
};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Counted, Error, Imported, MAX_NAME_CHARS, MAX_OUTPUT_CHARS, MAX_PIECE_BYTES, Origin, Take, Taking, cut,
    traceback::{self, ReportedException},
};
use crate::{
    hypotheses::reading::unquote,
    record::{Evidence, Outcome, Phase, Seconds, Source, Tested},
};
use pylair_text::plain::one_line;

/// Tests that have begun and not ended; a run has as many as it has workers.
const MAX_PENDING: usize = 10_000;

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "$report_type", default)]
    kind: String,
    #[serde(default)]
    nodeid: String,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    when: Option<String>,
    #[serde(default)]
    location: Value,
    #[serde(default)]
    longrepr: Value,
    #[serde(default)]
    sections: Value,
    #[serde(default)]
    duration: Option<f64>,
    #[serde(default)]
    start: Option<f64>,
    #[serde(default)]
    wasxfail: Option<Value>,
    #[serde(default)]
    rerun: Option<u32>,
    #[serde(default)]
    worker_id: Option<String>,
    #[serde(default, rename = "_subtest.context")]
    subtest: Option<Subtest>,
    /// As the package pytest-subtests wrote it, before pytest did.
    #[serde(default)]
    context: Option<Subtest>,
    #[serde(default)]
    pytest_version: Option<String>,
    #[serde(default)]
    exitstatus: Option<i32>,
}

#[derive(Deserialize)]
struct Subtest {
    #[serde(default)]
    msg: Option<String>,
    #[serde(default)]
    kwargs: BTreeMap<String, Value>,
}

impl Subtest {
    fn name(&self) -> String {
        let mut name = self.msg.clone().unwrap_or_default();
        for (key, value) in &self.kwargs {
            // Workers of xdist send the `repr` of a `repr`.
            let value = value.as_str().map_or_else(|| value.to_string(), |text| unquote(text).to_owned());
            let _ = write!(name, "{}{key}={value}", if name.is_empty() { "" } else { " " });
        }
        one_line(if name.is_empty() { "subtest" } else { &name }, MAX_NAME_CHARS)
    }
}

pub fn read(reader: impl BufRead, origin: &Origin, take: Take) -> Result<Imported, Error> {
    let mut reader = Counted::new(reader);
    let mut state = State {
        taking: Taking::new(origin, Source::Reportlog, take),
        pending: HashMap::new(),
        tried: HashMap::new(),
        pytest: None,
        first: None,
        last: None,
        exit: None,
        any: false,
    };
    let mut buffer = Vec::new();
    loop {
        let line = reader.line;
        buffer.clear();
        reader.piece = 0;
        reader.read_until(b'\n', &mut buffer).map_err(|source| Error::Read { line, source })?;
        if buffer.is_empty() {
            break;
        }
        debug_assert!(buffer.len() <= 2 * MAX_PIECE_BYTES);
        let text = buffer.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let parsed: Line = match serde_json::from_slice(text) {
            Ok(parsed) => parsed,
            // A run that was killed leaves half a line at its end.
            Err(_) if !buffer.ends_with(b"\n") && state.any => {
                state.taking.imported.cut_at = Some(line);
                break;
            }
            Err(error) => {
                return Err(Error::Broken { line, what: format!("not JSON as pytest-reportlog writes it: {error}") });
            }
        };
        if parsed.kind.is_empty() {
            return Err(Error::Broken { line, what: "there is no `$report_type`".to_owned() });
        }
        state.line(parsed)?;
    }
    state.end()
}

struct State<'t> {
    taking: Taking<'t>,
    pending: HashMap<(String, Option<String>), Pending>,
    tried: HashMap<String, u32>,
    pytest: Option<String>,
    first: Option<f64>,
    last: Option<f64>,
    exit: Option<i32>,
    any: bool,
}

/// A test of which not all phases are there yet.
struct Pending {
    test: Tested,
    judged: bool,
}

impl State<'_> {
    fn line(&mut self, line: Line) -> Result<(), Error> {
        self.any = true;
        if let Some(start) = line.start.filter(|start| start.is_finite()) {
            self.first = Some(self.first.map_or(start, |first| first.min(start)));
            let end = start + line.duration.unwrap_or(0.0);
            self.last = Some(self.last.map_or(end, |last| last.max(end)));
        }
        match line.kind.as_str() {
            "SessionStart" => {
                self.pytest = line.pytest_version.map(|version| one_line(&version, 40));
                Ok(())
            }
            "SessionFinish" => {
                self.exit = line.exitstatus.or(self.exit);
                Ok(())
            }
            "CollectReport" if line.outcome == "failed" => {
                let mut test = self.test(&line, Phase::Collect);
                test.outcome = Outcome::Error;
                test.failure = Some(Box::new(evidence(&line)));
                self.give(test)
            }
            "CollectReport" if line.outcome == "skipped" => {
                let mut test = self.test(&line, Phase::Collect);
                test.outcome = Outcome::Skipped;
                test.reason = reason(&line);
                self.give(test)
            }
            "TestReport" | "SubTestReport" | "SubtestReport" => self.report(&line),
            _ => Ok(()),
        }
    }

    fn report(&mut self, line: &Line) -> Result<(), Error> {
        let phase = match line.when.as_deref() {
            Some("setup") => Phase::Setup,
            Some("teardown") => Phase::Teardown,
            _ => Phase::Call,
        };
        if let Some(subtest) = line.subtest.as_ref().or(line.context.as_ref()) {
            let mut test = self.test(line, phase);
            test.subtest = Some(subtest.name());
            judge(&mut test, line, phase);
            test.attempt = self.attempt(line);
            return self.give(test);
        }
        let key = (line.nodeid.clone(), line.worker_id.clone());
        if phase == Phase::Setup || !self.pending.contains_key(&key) {
            if let Some(before) = self.pending.remove(&key) {
                self.give(before.test)?;
            }
            let attempt =
                line.rerun.map_or_else(|| self.tried.get(&line.nodeid).copied().unwrap_or(0) + 1, |rerun| rerun + 1);
            self.tried.insert(line.nodeid.clone(), attempt);
            let mut test = self.test(line, Phase::Call);
            test.attempt = attempt;
            if self.pending.len() < MAX_PENDING {
                self.pending.insert(key.clone(), Pending { test, judged: false });
            }
        }
        let Some(pending) = self.pending.get_mut(&key) else { return Ok(()) };
        let seconds = line.duration.filter(|seconds| seconds.is_finite()).unwrap_or(0.0);
        let mut extra = None;
        match phase {
            Phase::Setup => pending.test.seconds.setup = seconds,
            Phase::Teardown => pending.test.seconds.teardown = seconds,
            _ => pending.test.seconds.call = seconds,
        }
        let passed = line.outcome == "passed" && line.wasxfail.is_none();
        if phase == Phase::Teardown && !passed {
            // A test that passed or failed, and then its teardown: two reports, unless there is nothing else to tell.
            let mut test = pending.test.clone();
            judge(&mut test, line, phase);
            extra = Some(test);
        } else if !pending.judged && (!passed || phase == Phase::Call) {
            judge(&mut pending.test, line, phase);
            pending.judged = true;
        }
        if phase == Phase::Teardown
            && let Some(done) = self.pending.remove(&key)
        {
            self.give(done.test)?;
        }
        extra.map_or(Ok(()), |test| self.give(test))
    }

    fn attempt(&self, line: &Line) -> u32 {
        self.tried.get(&line.nodeid).copied().unwrap_or(1)
    }

    fn test(&self, line: &Line, phase: Phase) -> Tested {
        let location = line.location.as_array();
        let file =
            location.and_then(|parts| parts.first()).and_then(Value::as_str).map(|file| one_line(file, MAX_NAME_CHARS));
        let file =
            file.or_else(|| line.nodeid.split("::").next().filter(|file| !file.is_empty()).map(ToOwned::to_owned));
        // From 0 there.
        let number = location
            .and_then(|parts| parts.get(1))
            .and_then(Value::as_u64)
            .and_then(|line| u32::try_from(line + 1).ok());
        Tested {
            run: self.taking.origin.run.clone(),
            nodeid: one_line(&line.nodeid, MAX_NAME_CHARS),
            outcome: Outcome::Passed,
            phase,
            attempt: 1,
            subtest: None,
            at: line.start.and_then(instant),
            file,
            line: number,
            params: BTreeMap::new(),
            markers: Vec::new(),
            seconds: Seconds::default(),
            reason: None,
            worker: line.worker_id.as_ref().map(|worker| one_line(worker, 40)),
            failure: None,
        }
    }

    fn give(&mut self, test: Tested) -> Result<(), Error> {
        let version = self.pytest.clone();
        self.taking.begin(self.first.and_then(instant), |began| began.pytest = version)?;
        self.taking.test(test)
    }

    fn end(mut self) -> Result<Imported, Error> {
        let mut left: Vec<Pending> =
            self.pending.drain().map(|(_, pending)| pending).filter(|pending| pending.judged).collect();
        left.sort_by(|a, b| a.test.nodeid.cmp(&b.test.nodeid));
        for pending in left {
            self.give(pending.test)?;
        }
        let version = self.pytest.clone();
        self.taking.begin(self.first.and_then(instant), |began| began.pytest = version)?;
        let seconds = self.last.zip(self.first).map_or(0.0, |(last, first)| (last - first).max(0.0));
        let note = match (self.taking.imported.cut_at, self.exit) {
            (Some(line), _) => {
                Some(format!("the file ends in the middle of line {line}, what came after is not there"))
            }
            (None, None) => Some("the file does not say how the run ended".to_owned()),
            (None, Some(_)) => None,
        };
        self.taking.end(self.exit, seconds, note)
    }
}

/// What a report makes of a test.
fn judge(test: &mut Tested, line: &Line, phase: Phase) {
    let expected = line.wasxfail.is_some();
    test.phase = phase;
    test.outcome = match line.outcome.as_str() {
        "passed" if expected => Outcome::Xpassed,
        "passed" => Outcome::Passed,
        "skipped" if expected => Outcome::Xfailed,
        "skipped" => Outcome::Skipped,
        "rerun" => Outcome::Rerun,
        _ if phase == Phase::Call => Outcome::Failed,
        _ => Outcome::Error,
    };
    match test.outcome {
        Outcome::Skipped => test.reason = reason(line),
        Outcome::Xfailed | Outcome::Xpassed => {
            test.reason = line.wasxfail.as_ref().and_then(Value::as_str).map(|reason| one_line(reason, MAX_NAME_CHARS));
        }
        Outcome::Failed | Outcome::Error | Outcome::Rerun => test.failure = Some(Box::new(evidence(line))),
        Outcome::Passed => {}
    }
}

/// `[file, line, "Skipped: why"]`.
fn reason(line: &Line) -> Option<String> {
    let text =
        line.longrepr.as_array().and_then(|parts| parts.get(2)).and_then(Value::as_str).or(line.longrepr.as_str())?;
    Some(one_line(text.strip_prefix("Skipped: ").unwrap_or(text), MAX_NAME_CHARS))
}

fn evidence(line: &Line) -> Evidence {
    let text = printed(&line.longrepr);
    let crash = line.longrepr.get("reprcrash").and_then(|crash| crash.get("message")).and_then(Value::as_str);
    let first = text.lines().next().unwrap_or("").to_owned();
    let mut evidence = traceback::evidence(&text, ReportedException { message: crash.unwrap_or(&first), kind: None });
    if evidence.exception.kind.is_empty() {
        "Failed".clone_into(&mut evidence.exception.kind);
    }
    for section in line.sections.as_array().into_iter().flatten() {
        let title = section.get(0).and_then(Value::as_str).unwrap_or("");
        let content = section.get(1).and_then(Value::as_str).unwrap_or("");
        let into = match title {
            _ if title.starts_with("Captured stdout") => &mut evidence.stdout,
            _ if title.starts_with("Captured stderr") => &mut evidence.stderr,
            _ if title.starts_with("Captured log") => &mut evidence.log,
            _ => continue,
        };
        into.push_str(&cut(content, MAX_OUTPUT_CHARS).0);
    }
    evidence
}

/// A report's traceback as pytest prints it.
fn printed(longrepr: &Value) -> String {
    if let Some(text) = longrepr.as_str() {
        return text.to_owned();
    }
    let mut text = String::new();
    let chain = longrepr.get("chain").and_then(Value::as_array);
    match chain {
        Some(links) if !links.is_empty() => {
            for link in links {
                print_traceback(link.get(0).unwrap_or(&Value::Null), &mut text);
                if let Some(words) = link.get(2).and_then(Value::as_str) {
                    let _ = write!(text, "\n{words}\n\n");
                }
            }
        }
        _ => print_traceback(longrepr.get("reprtraceback").unwrap_or(&Value::Null), &mut text),
    }
    text
}

fn print_traceback(traceback: &Value, text: &mut String) {
    for entry in traceback.get("reprentries").and_then(Value::as_array).into_iter().flatten() {
        let data = entry.get("data").unwrap_or(entry);
        let location = data.get("reprfileloc").and_then(|place| {
            let path = place.get("path").and_then(Value::as_str)?;
            Some(format!(
                "{path}:{}: {}",
                place.get("lineno").and_then(Value::as_u64)?,
                place.get("message").and_then(Value::as_str).unwrap_or("")
            ))
        });
        let short = data.get("style").and_then(Value::as_str) == Some("short");
        if let (true, Some(location)) = (short, &location) {
            let _ = writeln!(text, "{location}");
        }
        for argument in
            data.get("reprfuncargs").and_then(|given| given.get("args")).and_then(Value::as_array).into_iter().flatten()
        {
            if let (Some(name), Some(value)) =
                (argument.get(0).and_then(Value::as_str), argument.get(1).and_then(Value::as_str))
            {
                let _ = writeln!(text, "{name} = {value}");
            }
        }
        let strings = |value: Option<&Value>| -> Vec<String> {
            value
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(ToOwned::to_owned)
                .collect()
        };
        for line in strings(data.get("lines")) {
            let _ = writeln!(text, "{line}");
        }
        for line in strings(data.get("reprlocals").and_then(|locals| locals.get("lines"))) {
            let _ = writeln!(text, "{line}");
        }
        if let (false, Some(location)) = (short, &location) {
            let _ = writeln!(text, "\n{location}");
        }
    }
}

fn instant(seconds: f64) -> Option<Timestamp> {
    // Microseconds are what clocks of tests have.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "seconds since 1970 in microseconds are far below 2^63; what is not is refused"
    )]
    Timestamp::from_microsecond((seconds * 1e6) as i64).ok()
}
