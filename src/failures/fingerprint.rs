//! What tells one way of failing from another: exception types along the chain, functions of the project's own code that the trace
//! passed through, and the message with placeholders. No line numbers, so that code may move. Called by `ingest`; `grouping` reads the traits.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    pattern::{Quoted, parameterise},
    record::{Evidence, Exception, Frame, Linked},
};
use crate::hash;

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
    pub place: Option<Place>,
    pub traits: Traits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Place {
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
    let pattern = parameterised(&evidence.exception);

    let mut parts: Vec<String> = exceptions().map(|exception| exception.kind.clone()).collect();
    let mut in_tested_code = false;
    for frames in frames() {
        let tested = frames.iter().filter(|frame| is_tested(frame, test_file)).map(function);
        let tested: Vec<String> = without_repeats(tested).take(FRAMES).collect();
        in_tested_code |= !tested.is_empty();
        parts.push(tested.join("<"));
    }
    parts.push(pattern.clone());
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
        place: place.map(|frame| Place {
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
            push(&mut traits.sites, site.clone(), MAX_WORDS);
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
            for call in calls(line) {
                push(words, call, MAX_WORDS);
            }
        }
    }
    traits
}

/// Type and message with placeholders.
fn parameterised(exception: &Exception) -> String {
    let message = parameterise(&exception.message, Quoted::of(&exception.kind));
    if message.is_empty() { exception.kind.clone() } else { format!("{}: {message}", exception.kind) }
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

/// Names that a message of Python's says are missing, or were called wrongly.
fn symbols(message: &str) -> Vec<String> {
    const QUOTED: [(&str, &str); 8] = [
        ("has no attribute '", "attribute"),
        ("cannot import name '", "name"),
        ("No module named '", "module"),
        ("name '", "name"),
        ("local variable '", "name"),
        ("free variable '", "name"),
        ("unexpected keyword argument '", "argument"),
        ("fixture '", "fixture"),
    ];
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
    for after in CALLED {
        if let Some(at) = line.find(after) {
            let start = line[..at]
                .rfind(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '<' | '>')))
                .map_or(0, |s| s + 1);
            let name = line[start..at].rsplit('.').next().unwrap_or_default();
            if !name.is_empty() {
                found.push(format!("call {name}"));
            }
        }
    }
    found
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
            found.push(format!("{kind}: {}", clip(&parameterise(quote, Quoted::Names), MAX_NAME_BYTES)));
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

/// Names that are called in a line of source. Not those that every test calls.
fn calls(line: &str) -> Vec<String> {
    let code = line.split('#').next().unwrap_or_default();
    let mut found = Vec::new();
    for (at, _) in code.match_indices('(') {
        let start = code[..at]
            .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
            .map_or(0, |start| start + code[start..].chars().next().map_or(1, char::len_utf8));
        let name = &code[start..at];
        let is_definition = code[..start].trim_end().ends_with("def") || code[..start].trim_end().ends_with("class");
        if name.len() > 1 && !is_definition && !name.starts_with(|c: char| c.is_ascii_digit()) && !is_common(name) {
            found.push(name.to_owned());
        }
    }
    found
}

/// Whether a called name says nothing about what is tested.
fn is_common(name: &str) -> bool {
    const COMMON: &[&str] = &[
        "abs",
        "all",
        "any",
        "append",
        "assert",
        "bool",
        "bytes",
        "chain",
        "chr",
        "count",
        "dict",
        "dir",
        "enumerate",
        "extend",
        "filter",
        "fixture",
        "float",
        "format",
        "frozenset",
        "getattr",
        "hasattr",
        "hash",
        "id",
        "int",
        "invoke",
        "isinstance",
        "items",
        "iter",
        "join",
        "keys",
        "len",
        "list",
        "map",
        "mark",
        "max",
        "min",
        "next",
        "not",
        "and",
        "or",
        "if",
        "in",
        "for",
        "while",
        "return",
        "yield",
        "print",
        "object",
        "open",
        "ord",
        "param",
        "parametrize",
        "patch",
        "pow",
        "product",
        "raises",
        "range",
        "repeat",
        "replace",
        "repr",
        "reversed",
        "round",
        "set",
        "setattr",
        "skip",
        "slice",
        "sorted",
        "split",
        "startswith",
        "str",
        "strip",
        "subTest",
        "sum",
        "super",
        "tuple",
        "type",
        "values",
        "warns",
        "zip",
        "fail",
        "main",
        "self",
        "lambda",
        "with",
        "except",
        "elif",
        "del",
        "islice",
    ];
    name.starts_with("assert") || COMMON.contains(&name)
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
        check("ValueError('cut", &["ValueError: cut"]);
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
