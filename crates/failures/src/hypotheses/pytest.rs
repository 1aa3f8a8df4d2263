//! What pytest and mock themselves say: a fixture that is not there, a patched name that does not exist, an exception that was not raised.

use super::{
    At, Claim, Confidence, Fact, Hypothesis, Scene,
    names::module_names,
    reading::{brief, depth, indent, pattern, similar, split_top, unquote},
};

pub(crate) fn hypotheses(scene: &Scene) -> Vec<Hypothesis> {
    let readers: [fn(&Scene) -> Option<Hypothesis>; 7] = [fixture, scope, mock, bypass, raises, doctest, mismatch];
    readers.iter().find_map(|read| read(scene)).into_iter().collect()
}

/// An example that printed something else.
fn doctest(scene: &Scene) -> Option<Hypothesis> {
    if !matches!(scene.exception.kind.as_str(), "DocTestFailure" | "UnexpectedException" | "MultipleDoctestFailures") {
        return None;
    }
    let parts = pattern!(r"(?s)^([^\n]+?):(\d+): `(.+?)`\nExpected:\n(.*?)\nGot:\n(.*?)(?:\n\n|$)")
        .captures(&scene.exception.message)?;
    let (file, line) = (parts[1].to_owned(), parts[2].parse::<u32>().ok()?);
    let (example, expected, got) = (brief(&parts[3]), brief(parts[4].trim()), brief(parts[5].trim()));
    let expected = if expected.is_empty() { "nothing".to_owned() } else { format!("`{expected}`") };
    let got = if got.is_empty() { "nothing".to_owned() } else { format!("`{got}`") };
    let verb = if scene.exception.kind == "UnexpectedException" { "raised" } else { "gave" };
    let fact = |what: String| Fact { frame: None, file: Some(file.clone()), line: Some(line), what };
    Some(Hypothesis {
        text: format!("the example `{example}` at {file}:{line} {verb} {got}, and {expected} is expected"),
        confidence: Confidence::High,
        because: "doctest shows both".to_owned(),
        evidence: vec![fact(format!("expected: {expected}")), fact(format!("got: {got}"))],
        claims: vec![Claim::Said(parts[5].to_owned())],
    })
}

/// A fixture that lives longer than one it asks for.
fn scope(scene: &Scene) -> Option<Hypothesis> {
    let message = &scene.exception.message;
    let parts = pattern!(
        r"ScopeMismatch: You tried to access the (\w+) scoped fixture (\w+) with a (\w+) scoped request object"
    )
    .captures(message)?;
    let (short, wanted, long) = (&parts[1], &parts[2], &parts[3]);
    // pytest lists the fixtures that led there, and then the one that was asked for.
    let listed = pattern!(r"(?m)^\s*(\S+\.py:\d+):\s+def (\w+)\(").captures_iter(message);
    let listed: Vec<(String, String)> = listed.map(|parts| (parts[1].to_owned(), parts[2].to_owned())).collect();
    let asks = listed.iter().rev().find(|(_, name)| name != wanted);
    let by = asks.map_or_else(
        || format!("something that lives for the {long}"),
        |(place, name)| format!("the fixture `{name}` ({place}), which lives for the {long},"),
    );
    Some(Hypothesis {
        text: format!("{by} asks for the fixture `{wanted}`, which is made anew for each {short}"),
        confidence: Confidence::High,
        because: "pytest names both scopes".to_owned(),
        evidence: listed.iter().map(|(place, name)| Fact::told(format!("{place}: def {name}"))).collect(),
        claims: vec![Claim::Said("ScopeMismatch".to_owned())],
    })
}

/// Two test files that pytest imports under one name.
fn mismatch(scene: &Scene) -> Option<Hypothesis> {
    if scene.exception.kind != "ImportPathMismatchError" {
        return None;
    }
    let parts = pattern!(r"^\('([^']+)', '([^']+)', \w*\(?'([^']+)'\)?\)$").captures(&scene.exception.message)?;
    Some(Hypothesis {
        text: format!(
            "two files are imported under the one name `{}`: {} was, and {} cannot be any more",
            &parts[1], &parts[2], &parts[3]
        ),
        confidence: Confidence::High,
        because: "pytest names both files".to_owned(),
        evidence: vec![Fact::told(parts[2].to_owned()), Fact::told(parts[3].to_owned())],
        claims: vec![Claim::Said(parts[2].to_owned())],
    })
}

/// A fixture that was asked for and is not there.
pub(crate) struct MissingFixture {
    pub name: String,
    pub available: Vec<String>,
    /// Where the test is defined, as pytest prints it.
    pub file: Option<String>,
    pub line: Option<u32>,
}

impl MissingFixture {
    /// Those of the project and of plugins: pytest's own say nothing about it, and private ones are nobody else's to ask for.
    pub fn own(&self) -> Vec<&str> {
        let is_hidden = |name: &&str| name.starts_with('_') && !self.name.starts_with('_');
        let names = self.available.iter().map(String::as_str);
        names.filter(|name| !BUILTIN_FIXTURES.contains(name) && !is_hidden(name)).collect()
    }

    pub fn near(&self) -> Option<String> {
        similar(&self.name, self.available.iter().map(String::as_str)).first().map(ToString::to_string)
    }
}

pub(crate) fn missing_fixture(scene: &Scene) -> Option<MissingFixture> {
    let text = &scene.evidence.text;
    let name = pattern!(r"fixture '([^']+)' not found").captures(text)?[1].to_owned();
    let available = pattern!(r"available fixtures: ([^\n]+)")
        .captures(text)
        .map(|parts| parts[1].split(',').map(|name| name.trim().to_owned()).collect())
        .unwrap_or_default();
    let place = pattern!(r"(?m)^\s*file (.+), line (\d+)").captures(text);
    // pytest prints the whole path, frames have it below the root: the node id begins with that.
    let file = scene.around.nodeid.split("::").next().filter(|file| !file.is_empty());
    Some(MissingFixture {
        name,
        available,
        file: file.map(ToOwned::to_owned),
        line: place.and_then(|parts| parts[2].parse().ok()),
    })
}

fn fixture(scene: &Scene) -> Option<Hypothesis> {
    let missing = missing_fixture(scene)?;
    let name = &missing.name;
    let own = missing.own();
    let place = Fact {
        frame: None,
        file: missing.file.clone(),
        line: missing.line,
        what: format!("asks for the fixture '{name}'"),
    };
    let available = if own.is_empty() { "none of the project's own".to_owned() } else { brief(&own.join(", ")) };
    let (text, confidence, because) = match missing.near() {
        Some(near) => (
            format!("there is no fixture `{name}`; there is `{near}`, which is probably meant"),
            Confidence::High,
            "the names differ by little, and pytest lists the one that is there".to_owned(),
        ),
        None => (
            format!(
                "no fixture `{name}` can be seen from this test: it is not in its module or class, nor in a conftest.py at or above it. Those that can: {available}"
            ),
            Confidence::High,
            "pytest lists the fixtures it knows here".to_owned(),
        ),
    };
    let claims = vec![Claim::Said(format!("fixture '{name}' not found"))];
    let evidence = vec![place, Fact::told(format!("available: {available}"))];
    Some(Hypothesis { text, confidence, because, evidence, claims })
}

const BUILTIN_FIXTURES: &[&str] = &[
    "cache",
    "capfd",
    "capfdbinary",
    "caplog",
    "capsys",
    "capsysbinary",
    "capteesys",
    "doctest_namespace",
    "monkeypatch",
    "pytestconfig",
    "record_property",
    "record_testsuite_property",
    "record_xml_attribute",
    "recwarn",
    "subtests",
    "tmp_path",
    "tmp_path_factory",
    "tmpdir",
    "tmpdir_factory",
    "testrun_uid",
    "worker_id",
];

/// A path that `mock.patch` was given and that leads nowhere.
pub(crate) struct WrongPath {
    /// As it stands in the source, without quotes.
    pub path: String,
    /// The part that is there.
    pub owner: String,
    pub wanted: String,
    pub there: Vec<String>,
}

impl WrongPath {
    pub fn near(&self) -> Option<String> {
        similar(&self.wanted, self.there.iter().map(String::as_str)).first().map(ToString::to_string)
    }
}

pub(crate) fn wrong_path(scene: &Scene) -> Option<WrongPath> {
    let message = &scene.exception.message;
    let at = scene.own()?;
    let in_mock = scene
        .frames()
        .any(|at| at.frame.module.as_deref() == Some("unittest.mock") || at.frame.file.ends_with("unittest/mock.py"));
    let in_monkeypatch = scene.frames().any(|at| at.frame.file.ends_with("_pytest/monkeypatch.py"));
    let missing =
        pattern!(r"<module '([\w.]+)'.*does not have the attribute '(\w+)'").captures(message).or_else(|| {
            if !in_mock && !in_monkeypatch {
                return None;
            }
            pattern!(
                r"^module '([\w.]+)' has no attribute '(\w+)'|^'module' object at ([\w.]+) has no attribute '(\w+)'"
            )
            .captures(message)
        });
    let (owner, wanted) = match missing {
        Some(parts) => {
            let owner = parts.get(1).or(parts.get(3))?.as_str().to_owned();
            let wanted = parts.iter().skip(1).flatten().nth(1)?.as_str().to_owned();
            (owner, wanted)
        }
        None if in_mock || in_monkeypatch => {
            let parts = pattern!(r"No module named '([\w.]+)'").captures(message)?;
            let (owner, wanted) = parts[1].rsplit_once('.').unwrap_or(("", &parts[1]));
            (owner.to_owned(), wanted.to_owned())
        }
        None => return None,
    };
    let line = at.statement();
    let strings = pattern!(r#"'([\w.]+)'|"([\w.]+)""#);
    let start = if owner.is_empty() { wanted.clone() } else { format!("{owner}.{wanted}") };
    let path = strings
        .captures_iter(&line)
        .filter_map(|parts| parts.get(1).or(parts.get(2)).map(|inside| inside.as_str().to_owned()))
        .find(|path| path.starts_with(&start))
        .unwrap_or(start);
    let mut there = module_names(scene, &owner);
    // Modules of a package are not in its `__init__`: those the test imports are known.
    if let Some(near) = super::names::near_module(scene, &owner, &format!("{owner}.{wanted}")) {
        there.push(near[owner.len()..].trim_start_matches('.').to_owned());
    }
    let path_dir = owner.replace('.', "/");
    there.extend(modules_beside(scene, &path_dir, &wanted));
    Some(WrongPath { path, owner, wanted, there })
}

/// A function that a test patches, and that was called all the same: its caller had imported it by name before.
pub(crate) struct Bypassed<'a> {
    /// As it stands in the test, and where it should lead.
    pub path: String,
    pub better: String,
    /// The frame of the test, and the line with the patch.
    pub at: At<'a>,
    pub line: u32,
    pub called: At<'a>,
    pub caller: At<'a>,
}

pub(crate) fn bypassed<'a>(scene: &Scene<'a>) -> Option<Bypassed<'a>> {
    let frames: Vec<At<'a>> = scene.frames().filter(|at| at.frame.in_app).collect();
    for (called, caller) in frames.iter().zip(frames.iter().skip(1)) {
        let (Some(module), Some(user)) = (called.frame.module.as_deref(), caller.frame.module.as_deref()) else {
            continue;
        };
        let function = called.frame.function.as_str();
        if module == user || function.contains('.') {
            continue;
        }
        let path = format!("{module}.{function}");
        let patches = |line: &str| {
            line.contains("patch") && (line.contains(&format!("\"{path}\"")) || line.contains(&format!("'{path}'")))
        };
        for at in frames.iter().filter(|at| at.index > called.index) {
            let (first, lines) = scene.function_lines(*at);
            let Some((line, written)) = (first..).zip(&lines).find(|(_, line)| patches(line)) else { continue };
            if written.trim_start().starts_with("with ") && !is_inside(first, &lines, line, at.frame.line) {
                // The patch was taken back before the call.
                continue;
            }
            // Only what the caller holds under its own name escapes the patch.
            let text = scene.file(&caller.frame.file)?;
            let import = format!("from {module} import ");
            let by_name = |line: &str| {
                let names = line.trim().strip_prefix(&import)?;
                names.split(',').any(|name| name.trim().trim_matches(['(', ')']) == function).then_some(())
            };
            text.lines().find_map(by_name)?;
            let better = format!("{user}.{function}");
            return Some(Bypassed { path, better, at: *at, line, called: *called, caller: *caller });
        }
    }
    None
}

/// Whether a line is in the block that another one begins.
fn is_inside(first: u32, lines: &[String], head: u32, line: u32) -> bool {
    let (head, line) = ((head - first) as usize, (line.saturating_sub(first)) as usize);
    let deep = indent(&lines[head]);
    head < line
        && lines[head + 1..=line.min(lines.len() - 1)].iter().all(|line| line.trim().is_empty() || indent(line) > deep)
}

fn bypass(scene: &Scene) -> Option<Hypothesis> {
    let Bypassed { path, better, at, line, called, caller } = bypassed(scene)?;
    Some(Hypothesis {
        text: format!(
            "the real `{path}` ran although the test patches it: {} has imported it by name, and has to be patched there, as `{better}`",
            caller.frame.file
        ),
        confidence: Confidence::High,
        because: format!("frame {} is the function that is patched", called.index + 1),
        evidence: vec![
            called.fact(format!("`{path}`, not a mock")),
            caller.fact(format!("`{}`", brief(&caller.statement()))),
            at.fact_at(line, format!("patches '{path}'")),
        ],
        // The frames are the claim.
        claims: vec![Claim::Said(scene.exception.message.clone())],
    })
}

/// Modules of a package whose names are one exchange of letters away, which can be asked for without listing a directory.
fn modules_beside(scene: &Scene, directory: &str, wanted: &str) -> Vec<String> {
    let letters: Vec<char> = wanted.chars().collect();
    let mut found = Vec::new();
    let mut candidates: Vec<String> = Vec::new();
    for index in 0..letters.len() {
        let mut without = letters.clone();
        without.remove(index);
        candidates.push(without.iter().collect());
        if index + 1 < letters.len() {
            let mut exchanged = letters.clone();
            exchanged.swap(index, index + 1);
            candidates.push(exchanged.iter().collect());
        }
    }
    candidates.push(format!("{wanted}s"));
    for name in candidates.into_iter().take(60) {
        let path = if directory.is_empty() { format!("{name}.py") } else { format!("{directory}/{name}.py") };
        if name != wanted && scene.file(&path).is_some() {
            found.push(name);
        }
    }
    found
}

fn mock(scene: &Scene) -> Option<Hypothesis> {
    let wrong = wrong_path(scene)?;
    let at = scene.own()?;
    let near = wrong.near();
    let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
    if !wrong.there.is_empty() {
        evidence.push(Fact::told(format!("{} has: {}", wrong.owner, brief(&wrong.there.join(", ")))));
    }
    let owner = if wrong.owner.is_empty() { "nothing".to_owned() } else { format!("`{}`", wrong.owner) };
    let (text, confidence) = match near {
        Some(near) => (
            format!(
                "the path `{}` that {} patches does not exist: {owner} has no `{}`, but `{near}`",
                wrong.path,
                at.place(),
                wrong.wanted
            ),
            Confidence::High,
        ),
        None => (
            format!(
                "the path `{}` that {} patches does not exist: {owner} has no `{}`. A name is patched where it is looked up, in the module that uses it",
                wrong.path,
                at.place(),
                wrong.wanted
            ),
            Confidence::High,
        ),
    };
    let claims = vec![Claim::InModule { module: wrong.owner.clone(), name: wrong.wanted.clone(), there: false }];
    let because = "the lookup of the patched path is what failed".to_owned();
    Some(Hypothesis { text, confidence, because, evidence, claims })
}

/// What ran while an exception was waited for.
enum Waited {
    Here(String),
    Below(u32, String),
    Unknown,
}

fn waited_for(at: At) -> Waited {
    let statement = at.statement();
    let is_with = statement.starts_with("with ") || statement.starts_with("async with ");
    if !is_with {
        // A call that is passed what to call, or the end of the block, where older Pythons are when it is left.
        return if statement.is_empty() { Waited::Unknown } else { Waited::Here(statement) };
    }
    let Some((_, behind)) = split_top(&statement, ":") else { return Waited::Unknown };
    let behind = behind.trim();
    if !behind.is_empty() && !behind.starts_with('#') {
        return Waited::Here(behind.to_owned());
    }
    let Some(source) = &at.frame.source else { return Waited::Unknown };
    let begin = at.frame.line.saturating_sub(source.first) as usize;
    let Some(head) = source.lines.get(begin).map(|line| indent(line)) else { return Waited::Unknown };
    let mut open = String::new();
    let mut below = (source.first..).zip(&source.lines).skip(begin).skip_while(|(_, line)| {
        let is_head = open.is_empty() || depth(&open) > 0;
        open.push_str(line);
        open.push(' ');
        is_head
    });
    let first = below.find(|(_, line)| !line.trim().is_empty() && !line.trim().starts_with('#'));
    match first {
        Some((number, line)) if indent(line) > head => Waited::Below(number, line.trim().to_owned()),
        _ => Waited::Unknown,
    }
}

/// The names in `(<class 'ValueError'>, <class 'KeyError'>)` or `(ValueError, KeyError)`.
fn classes(text: &str) -> Option<String> {
    let found = pattern!(r"<class '([\w.<>]+)'>|([\w.]+)").captures_iter(text);
    let names: Vec<String> =
        found.filter_map(|parts| Some(parts.get(1).or(parts.get(2))?.as_str().to_owned())).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

fn raises(scene: &Scene) -> Option<Hypothesis> {
    let message = &scene.exception.message;
    let at = scene.own()?;
    let is_unittest = scene.frame(0).is_some_and(|at| at.frame.module.as_deref() == Some("unittest.case"));
    let absent = pattern!(r"DID NOT RAISE (?:any of )?([\w.(), <>']+)").captures(message);
    let absent = absent.or_else(|| {
        let absent = pattern!(r"^(\w+) not raised(?: by \w+)?$").captures(message);
        absent.filter(|_| is_unittest && scene.exception.kind == "AssertionError")
    });
    if let Some(parts) = absent {
        let mut evidence = vec![at.fact(format!("`{}`", brief(&at.statement())))];
        let ran = match waited_for(at) {
            Waited::Here(ran) => format!("`{}` at {}", brief(&ran), at.place()),
            Waited::Below(line, ran) => {
                evidence.push(at.fact_at(line, format!("`{}`", brief(&ran))));
                format!("`{}` below {}", brief(&ran), at.place())
            }
            Waited::Unknown => format!("the block below {}", at.place()),
        };
        return Some(Hypothesis {
            text: format!("{ran} ran to its end without {}", classes(&parts[1])?),
            confidence: Confidence::High,
            because: if is_unittest {
                "unittest waited for the exception and none came"
            } else {
                "pytest waited for the exception and none came"
            }
            .to_owned(),
            evidence,
            claims: vec![Claim::Said(parts[0].to_owned())],
        });
    }
    let expected = pattern!(r"(?m)^\s*(?:Expected regex|Regex): (.+)$").captures(message)?;
    let actual = pattern!(r"(?m)^\s*(?:Actual message|Input): (.+)$").captures(message)?;
    Some(Hypothesis {
        text: format!(
            "the exception came, with another text: {} does not match {}",
            brief(&actual[1]),
            brief(&expected[1])
        ),
        confidence: Confidence::High,
        because: "pytest shows both".to_owned(),
        evidence: vec![
            at.fact(format!("match = {}", brief(unquote(&expected[1])))),
            at.fact(format!("message = {}", brief(&actual[1]))),
        ],
        claims: vec![Claim::Said(expected[1].to_owned()), Claim::Said(actual[1].to_owned())],
    })
}
