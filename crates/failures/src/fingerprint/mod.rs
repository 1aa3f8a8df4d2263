//! What tells one way of failing from another: exception types along the chain, functions of the project's own code that the trace
//! passed through, and the message with placeholders. No line numbers, so that code may move. Called by `ingest`; `grouping` reads the traits.

mod calls;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use self::calls::calls;
use super::{
    pattern::{Quoted, parameterise},
    record::{Evidence, Exception, Frame, Linked},
};
use pylair_text::hash;

/// Frames that count, from the innermost out: what is further out is how the tests got there.
const FRAMES: usize = 6;
const MAX_NAME_BYTES: usize = 200;
const MAX_MESSAGE_BYTES: usize = 500;
/// Bounds of what grouping reads of one failure.
const MAX_PATH: usize = 24;
const MAX_WORDS: usize = 24;

/// One way of failing.
#[derive(Debug, Clone, PartialEq)]
pub struct Print {
    /// 16 hexadecimal digits. Without a frame of the tested code it is of one test, with one it can be of many.
    pub fingerprint: String,
    pub kind: String,
    /// The first line of the message, cut.
    pub message: String,
    /// Type and message with placeholders.
    pub pattern: String,
    /// Where it happened: the innermost frame of the project's own code, tests included.
    pub place: Option<SourceLocation>,
    pub traits: Traits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Place")]
pub struct SourceLocation {
    pub file: String,
    pub line: u32,
    pub function: String,
}

/// What grouping compares. Functions are `module:function`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traits {
    /// Where each exception of the chain was raised, in tested code: the innermost such function.
    #[serde(default)]
    pub sites: Vec<String>,
    /// What was raised at each site.
    #[serde(default)]
    pub raised: Vec<String>,
    /// Every function of tested code that the traces passed through, innermost first.
    #[serde(default)]
    pub path: Vec<String>,
    /// Names that the messages say are missing or called wrongly.
    #[serde(default)]
    pub symbols: Vec<String>,
    /// Exceptions that were seen by the test instead of raised through it, as `Type: pattern`.
    #[serde(default)]
    pub seen: Vec<String>,
    /// What the failing statement of the test calls.
    #[serde(default)]
    pub calls: Vec<String>,
    /// What the lines before it call.
    #[serde(default)]
    pub near: Vec<String>,
    pub kind: String,
    /// File and class of the test.
    pub suite: String,
}

/// The fingerprint of what a test showed.
pub fn print(nodeid: &str, evidence: &Evidence) -> Print {
    let kind = clip(&evidence.exception.kind, MAX_NAME_BYTES);
    let exceptions = || std::iter::once(&evidence.exception).chain(evidence.chain.iter().map(|link| &link.exception));
    let frames = || std::iter::once(&evidence.frames).chain(evidence.chain.iter().map(|link| &link.frames));
    let test_file = nodeid.split("::").next().unwrap_or(nodeid);
    let explained = Explained::of(&evidence.exception);
    let pattern = parameterised(&evidence.exception.kind, explained.with_first_line());

    let mut parts: Vec<String> = exceptions().map(|exception| exception.kind.clone()).collect();
    let mut in_tested_code = false;
    for frames in frames() {
        let tested = frames.iter().filter(|frame| is_tested(frame, test_file)).map(function);
        let tested: Vec<String> = without_repeats(tested).take(FRAMES).collect();
        in_tested_code |= !tested.is_empty();
        parts.push(tested.join("<"));
    }
    parts.push(parameterised(&evidence.exception.kind, &without_test(explained.said, nodeid)));
    if explained.explanation.is_some() {
        // What pytest prints of the values depends on `-v` and `CI`; the statement does not.
        let statement = evidence.frames.first().and_then(failing_line).unwrap_or_default();
        parts.push(parameterise(statement, Quoted::Values));
    }
    if !in_tested_code {
        // `assert <n> == <n>` is said by many tests for many reasons.
        parts.push(without_parameters(nodeid).to_owned());
    }
    let fingerprint = hash::hex(&hash::sha256(parts.join("\0").as_bytes())[..8]);

    let place = evidence.frames.iter().find(|frame| frame.in_app).or(evidence.frames.first());
    let message = evidence.exception.message.trim_start().lines().next().unwrap_or_default();
    Print {
        fingerprint,
        message: clip(message, MAX_MESSAGE_BYTES),
        pattern: clip(&pattern, MAX_MESSAGE_BYTES),
        place: place.map(|frame| SourceLocation {
            file: frame.file.clone(),
            line: frame.line,
            function: clip(&frame.function, MAX_NAME_BYTES),
        }),
        traits: traits(nodeid, test_file, evidence),
        kind,
    }
}

fn traits(nodeid: &str, test_file: &str, evidence: &Evidence) -> Traits {
    let mut traits =
        Traits { kind: evidence.exception.kind.clone(), suite: suite(nodeid).to_owned(), ..Traits::default() };
    let links = evidence.chain.iter().map(|Linked { exception, frames, .. }| (exception, frames));
    // The cause first: that is where it began.
    let all: Vec<(&Exception, &Vec<Frame>)> =
        std::iter::once((&evidence.exception, &evidence.frames)).chain(links).collect();
    for (exception, frames) in all.iter().rev() {
        let mut tested = without_repeats(frames.iter().filter(|frame| is_tested(frame, test_file)).map(function));
        if let Some(site) = tested.next() {
            if traits.sites.len() < MAX_WORDS && !traits.sites.contains(&site) {
                traits.sites.push(site.clone());
                traits.raised.push(clip(&exception.kind, MAX_NAME_BYTES));
            }
            push(&mut traits.path, site, MAX_PATH);
        }
        for function in tested {
            push(&mut traits.path, function, MAX_PATH);
        }
        for symbol in symbols(&exception.message) {
            push(&mut traits.symbols, symbol, MAX_WORDS);
        }
    }
    for seen in seen(&evidence.exception.message) {
        push(&mut traits.seen, seen, MAX_WORDS);
    }
    if let Some(frame) = evidence.frames.iter().find(|frame| frame.in_app && !is_tested(frame, test_file))
        && let Some(source) = &frame.source
    {
        let failing = (frame.line.saturating_sub(source.first)) as usize;
        for (number, line) in source.lines.iter().enumerate().take(failing + 1) {
            let words = if number == failing { &mut traits.calls } else { &mut traits.near };
            for call in calls(line, &frame.locals) {
                push(words, call, MAX_WORDS);
            }
        }
    }
    traits
}

/// A message, and where pytest begins to explain a failed `assert` in it: how much of the values it shows, and whether a diff follows,
/// depends on how it was called.
struct Explained<'a> {
    message: &'a str,
    /// What the code itself said.
    said: &'a str,
    /// Where the explanation begins.
    explanation: Option<usize>,
}

impl<'a> Explained<'a> {
    fn of(exception: &'a Exception) -> Self {
        let message = exception.message.as_str();
        let begin = || {
            if message.starts_with("assert ") { Some(0) } else { message.find("\nassert ").map(|at| at + 1) }
        };
        let explanation = if exception.kind == "AssertionError" { begin() } else { None };
        Self { message, said: message[..explanation.unwrap_or(message.len())].trim_end(), explanation }
    }

    fn with_first_line(&self) -> &'a str {
        let Some(begin) = self.explanation else { return self.message };
        let end = self.message[begin..].find('\n').map_or(self.message.len(), |length| begin + length);
        &self.message[..end]
    }
}

/// The line of source that a frame is at.
fn failing_line(frame: &Frame) -> Option<&str> {
    let source = frame.source.as_ref()?;
    let at = frame.line.checked_sub(source.first)?;
    source.lines.get(at as usize).map(|line| line.trim())
}

/// Type and message with placeholders.
fn parameterised(kind: &str, message: &str) -> String {
    let message = parameterise(message, Quoted::of(kind));
    if message.is_empty() { kind.to_owned() } else { format!("{kind}: {message}") }
}

/// A message without the name of the test, which pytest puts into some: its parameters are no other way of failing.
fn without_test(message: &str, nodeid: &str) -> String {
    let test = without_parameters(nodeid);
    let name = test.rsplit("::").next().unwrap_or(test);
    message.replace(&nodeid[test.len() - name.len()..], name)
}

/// The test without its parameters.
pub fn without_parameters(nodeid: &str) -> &str {
    nodeid.find('[').map_or(nodeid, |at| &nodeid[..at])
}

/// Words of a test's name, alone and with the next one, without those that say that it is a test.
pub fn words(test: &str) -> BTreeSet<String> {
    let name = test.rsplit("::").next().unwrap_or(test).to_lowercase();
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty() && *word != "test").collect();
    let pairs = words.windows(2).map(|pair| pair.join("_"));
    words.iter().map(|word| (*word).to_owned()).chain(pairs).take(MAX_WORDS).collect()
}

/// File and class of a test.
pub fn suite(nodeid: &str) -> &str {
    let test = without_parameters(nodeid);
    test.rfind("::").map_or(test, |at| &test[..at])
}

/// Whether a frame is of the project's code and not of its tests.
fn is_tested(frame: &Frame, test_file: &str) -> bool {
    if !frame.in_app || frame.file == test_file {
        return false;
    }
    let mut parts = frame.file.rsplit(['/', '\\']);
    let name = parts.next().unwrap_or_default();
    let is_test =
        name.starts_with("test_") || name.ends_with("_test.py") || name == "conftest.py" || name == "tests.py";
    !is_test && !parts.any(|part| part == "tests" || part == "test")
}

/// `module:function`, by the file where the module has no name of its own.
fn function(frame: &Frame) -> String {
    let module = frame.module.as_deref().filter(|module| *module != "__main__").unwrap_or(&frame.file);
    clip(&format!("{module}:{}", frame.function), MAX_NAME_BYTES)
}

/// A recursion is one step, however deep it was.
fn without_repeats(functions: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    functions.filter(move |function| seen.insert(function.clone()))
}

/// Names that a message of Python's says are missing, or were called wrongly, with what they are names of: many things have a `name`.
fn symbols(message: &str) -> Vec<String> {
    const QUOTED: [(&str, &str); 3] =
        [("cannot import name '", "name"), ("No module named '", "module"), ("fixture '", "fixture")];
    const CALLED: [&str; 4] = ["() missing ", "() got ", "() takes ", "() argument "];
    let line = message.get(..message.floor_char_boundary(2000)).unwrap_or_default();
    let mut found = Vec::new();
    for (before, what) in QUOTED {
        if let Some(at) = line.find(before) {
            let rest = &line[at + before.len()..];
            if let Some(end) = rest.find('\'').filter(|end| (1..=100).contains(end)) {
                found.push(format!("{what} {}", &rest[..end]));
            }
        }
    }
    found.extend(missing_attribute(line));
    found.extend(missing_fixture(line));
    for after in CALLED {
        if let Some(at) = line.find(after) {
            let start = line[..at]
                .rfind(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '<' | '>')))
                .map_or(0, |s| s + 1);
            let name = &line[start..at];
            // `__init__` alone is that of any class.
            if !name.is_empty() && !name.starts_with("__") {
                found.push(format!("call {name}"));
            }
        }
    }
    found
}

/// `('cart', <SubRequest 'shop' for <Function test_a>>)`, which is what pytest's exception says.
fn missing_fixture(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("('")?.split_once("', <")?;
    let is_name = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_alphanumeric());
    (is_name && rest.split_whitespace().next()?.ends_with("Request")).then(|| format!("fixture {name}"))
}

/// `'Cart' object has no attribute 'prise'`. Not of what the language has: anything may be None by mistake.
fn missing_attribute(line: &str) -> Option<String> {
    const OF_PYTHON: [&str; 14] = [
        "NoneType",
        "str",
        "int",
        "float",
        "bool",
        "bytes",
        "list",
        "dict",
        "tuple",
        "set",
        "object",
        "function",
        "method",
        "generator",
    ];
    let at = line.find(" has no attribute '")?;
    let name =
        line[at + " has no attribute '".len()..].split('\'').next().filter(|name| (1..=100).contains(&name.len()))?;
    let owner = line[..at].strip_suffix(" object").unwrap_or(&line[..at]);
    let owner = owner.strip_suffix('\'')?.rsplit('\'').next()?;
    (!owner.is_empty() && !OF_PYTHON.contains(&owner)).then(|| format!("attribute {owner}.{name}"))
}

/// Exceptions whose `repr` is in the message, such as in `assert 1 == 0, where 1 = <Result KeyError('x')>.exit_code`.
fn seen(message: &str) -> Vec<String> {
    let text = &message[..message.floor_char_boundary(2000)];
    let mut found = Vec::new();
    for (at, _) in text.match_indices('(') {
        let start = text[..at]
            .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
            .map_or(0, |start| start + text[start..].chars().next().map_or(1, char::len_utf8));
        let kind = &text[start..at];
        let is_exception = kind.starts_with(|c: char| c.is_ascii_uppercase())
            && ["Error", "Exception", "Warning"].iter().any(|end| kind.ends_with(end));
        // `SystemExit` and its like are how a program ends, whatever went wrong before.
        if is_exception {
            let rest = &text[at + 1..];
            let message = rest.lines().next().unwrap_or_default();
            let message = &message[..closing(message)];
            let quote = ['\'', '"']
                .into_iter()
                .find_map(|mark| message.strip_prefix(mark).map(|inner| inner.strip_suffix(mark).unwrap_or(inner)))
                .unwrap_or(message);
            // A word or a number is said for many reasons.
            if quote.trim().contains(char::is_whitespace) {
                found.push(format!("{kind}: {}", clip(&parameterise(quote, Quoted::Names), MAX_NAME_BYTES)));
            }
            found.extend(symbols(quote));
        }
    }
    found
}

/// Where the bracket closes that was open before the text, outside of quotes; its end where that is not to be seen.
fn closing(text: &str) -> usize {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            _ if escaped => escaped = false,
            ('\\', Some(_)) => escaped = true,
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            ('(', None) => depth += 1,
            (')', None) if depth == 0 => return at,
            (')', None) => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn push(words: &mut Vec<String>, word: String, most: usize) {
    if words.len() < most && !words.contains(&word) {
        words.push(word);
    }
}

fn clip(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

#[cfg(test)]
mod tests {
    use super::super::record::{Lines, Relation};
    use super::*;

    fn frame(file: &str, function: &str, line: u32) -> Frame {
        let module = Some(file.trim_end_matches(".py").replace('/', "."));
        Frame { file: file.into(), function: function.into(), line, module, in_app: true, ..Frame::default() }
    }

    fn evidence(kind: &str, message: &str, frames: Vec<Frame>) -> Evidence {
        let exception = Exception { kind: kind.into(), message: message.into(), ..Exception::default() };
        Evidence { exception, frames, ..Evidence::default() }
    }

    fn price(line: u32, message: &str) -> Evidence {
        evidence(
            "ValueError",
            message,
            vec![frame("shop/price.py", "total", line), frame("tests/test_shop.py", "test_a", 3)],
        )
    }

    #[test]
    fn lines_and_values_do_not_matter_but_places_and_types_do() {
        let one = print("tests/test_shop.py::test_a", &price(10, "bad price 3"));
        assert_eq!(print("tests/test_shop.py::test_b", &price(99, "bad price 400")).fingerprint, one.fingerprint);
        assert_ne!(print("tests/test_shop.py::test_a", &price(10, "no price")).fingerprint, one.fingerprint);
        let mut other = price(10, "bad price 3");
        other.exception.kind = "TypeError".into();
        assert_ne!(print("tests/test_shop.py::test_a", &other).fingerprint, one.fingerprint);
        let mut other = price(10, "bad price 3");
        other.frames[0].function = "tax".into();
        assert_ne!(print("tests/test_shop.py::test_a", &other).fingerprint, one.fingerprint);
        let mut chained = price(10, "bad price 3");
        let exception = Exception { kind: "KeyError".into(), ..Exception::default() };
        chained.chain.push(Linked { relation: Relation::Cause, exception, frames: Vec::new() });
        assert_ne!(print("tests/test_shop.py::test_a", &chained).fingerprint, one.fingerprint);
        assert_eq!(one.pattern, "ValueError: bad price <n>");
        assert_eq!(one.place.unwrap().function, "total");
    }

    #[test]
    fn an_assertion_in_a_test_is_of_that_test_whatever_its_parameters() {
        let failed = |test: &str| {
            print(test, &evidence("AssertionError", "assert 1 == 2", vec![frame("tests/test_a.py", "test_x", 3)]))
        };
        assert_ne!(failed("tests/test_a.py::test_x").fingerprint, failed("tests/test_a.py::test_y").fingerprint);
        assert_eq!(
            failed("tests/test_a.py::test_x[1-2]").fingerprint,
            failed("tests/test_a.py::test_x[3]").fingerprint
        );
    }

    #[test]
    fn a_fixture_that_is_missing_is_one_way_of_failing_whatever_the_parameters() {
        let failed = |test: &str| {
            let function = test.strip_prefix("tests/test_a.py::").unwrap();
            let message = format!("('cart', <FixtureRequest for <Function {function}>>)");
            print(test, &evidence("FixtureLookupError", &message, Vec::new()))
        };
        let one = failed("tests/test_a.py::test_x[a::b-UserSchema]");
        assert_eq!(one.fingerprint, failed("tests/test_a.py::test_x[UserMetaSchema]").fingerprint);
        assert_ne!(one.fingerprint, failed("tests/test_a.py::test_y[UserSchema]").fingerprint);
        assert_eq!(one.traits.symbols, ["fixture cart"]);
    }

    #[test]
    fn how_much_pytest_explains_does_not_matter_but_the_statement_does() {
        let failed = |message: &str, statement: &str| {
            let mut evidence = evidence("AssertionError", message, vec![frame("tests/test_a.py", "test_x", 3)]);
            evidence.frames[0].source = Some(Lines { first: 3, lines: vec![statement.to_owned()] });
            print("tests/test_a.py::test_x", &evidence)
        };
        let statement = "    assert rows() == [1, 2, 3]";
        let quiet =
            failed("assert [0, 1, ...] == [1, 2, 3]\n  At index 0 diff: 0 != 1\n  Use -v to get more diff", statement);
        let loud = "assert [0, 1, 2] == [1, 2, 3]\n  At index 0 diff: 0 != 1\n\n  Full diff:\n    [\n  +     0,\n  ...";
        assert_eq!(failed(loud, statement).fingerprint, quiet.fingerprint);
        assert_eq!(failed(loud, "    assert rows() == [1, 2, 4]").fingerprint, quiet.fingerprint, "numbers are values");
        assert_ne!(failed(loud, "    assert columns() == [1]").fingerprint, quiet.fingerprint);
        assert_ne!(failed(&format!("no rows\n{loud}"), statement).fingerprint, quiet.fingerprint);
        assert_eq!(quiet.pattern, "AssertionError: assert [<n>, <n>, ...] == [<n>, <n>, <n>]");
    }

    #[test]
    fn a_recursion_is_one_way_of_failing_however_deep() {
        let deep = |depth| {
            let frames = (0..depth).map(|_| frame("shop/tree.py", "walk", 4)).collect();
            print("test_t.py::test_t", &evidence("RecursionError", "maximum recursion depth exceeded", frames))
                .fingerprint
        };
        assert_eq!(deep(30), deep(800));
    }

    #[test]
    fn traits_tell_where_and_what() {
        let mut failed = evidence(
            "AssertionError",
            "assert 1 == 0\n +  where 1 = <Result TypeError(\"convert() missing 1 required positional argument: 'ctx'\")>.exit_code",
            vec![frame("tests/test_cli.py", "test_run", 12)],
        );
        let lines = [
            "    def test_run(self):",
            "        got = window(items, 3)  # five()",
            "        assert list(chunked(got, 2)) == []",
        ];
        failed.frames[0].source = Some(Lines { first: 10, lines: lines.map(str::to_owned).to_vec() });
        let traits = print("tests/test_cli.py::TestCli::test_run[1]", &failed).traits;
        assert_eq!(traits.suite, "tests/test_cli.py::TestCli");
        assert_eq!(traits.calls, ["chunked"]);
        assert_eq!(traits.near, ["window"]);
        assert_eq!(
            traits.seen,
            ["TypeError: convert() missing <n> required positional argument: 'ctx'", "call convert"]
        );
        assert_eq!(traits.symbols, ["call convert"]);
        assert!(traits.sites.is_empty());
    }

    #[test]
    fn exceptions_that_a_test_saw_are_told_without_what_stands_around_them() {
        let check = |message: &str, expect: &[&str]| assert_eq!(seen(message), expect, "{message}");
        check("assert KeyError('a (b)') is None", &["KeyError: a (b)"]);
        check("<Result ValueError(f(1), 2)>.exit_code == <Result SystemExit(1)>", &["ValueError: f(<n>), <n>"]);
        check("ValueError('cut it", &["ValueError: cut it"]);
        check("KeyError('x')", &[]);
    }

    #[test]
    fn names_that_are_missing() {
        let check = |message: &str, expect: &[&str]| assert_eq!(symbols(message), expect, "{message}");
        check("'Cart' object has no attribute 'prise'", &["attribute Cart.prise"]);
        check("'NoneType' object has no attribute 'name'", &[]);
        check("module 'shop.tax' has no attribute 'rate'", &["attribute shop.tax.rate"]);
        check("type object 'Cart' has no attribute 'of'", &["attribute Cart.of"]);
        check("Cart.__init__() missing 1 required positional argument: 'x'", &["call Cart.__init__"]);
        check("__init__() missing 1 required positional argument: 'x'", &[]);
        check("No module named 'shopp'", &["module shopp"]);
        check("('cart', <FixtureRequest for <Function test_a[1]>>)", &["fixture cart"]);
        check("('cart', <module 'shop'>)", &[]);
        check("name 'total' is not defined", &[]);
    }

    #[test]
    fn words_of_a_test() {
        let found: Vec<String> = words("t.py::TestA::test_Default_map").into_iter().collect();
        assert_eq!(found, ["default", "default_map", "map"]);
    }

    #[test]
    fn anything_can_be_printed() {
        for message in ["", "(", "Error(", "é(", "name '", "has no attribute ''", "ÄError('ü", "() missing "] {
            let one = print("", &evidence("", message, vec![Frame::default()]));
            assert_eq!(one.fingerprint.len(), 16);
        }
    }
}
