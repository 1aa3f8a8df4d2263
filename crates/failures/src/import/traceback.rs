//! Tracebacks as text, made evidence again: pytest's long and short styles and Python's own. Also for failures that are recorded by hand.

use crate::{
    hypotheses::reading::{indent, pattern},
    record::{Evidence, Exception, Frame, Lines, Linked, Local, Relation},
};
use pylair_text::plain::one_line;

use super::{MAX_TEXT_CHARS, cut};

/// Of a text that is larger only the end is read, where the exception is.
const MAX_READ_BYTES: usize = 1 << 20;
const MAX_FRAMES: usize = 40;
const MAX_LOCALS: usize = 40;
const MAX_VALUE_CHARS: usize = 400;
const MAX_MESSAGE_CHARS: usize = 16 << 10;
const MAX_SOURCE_LINES: usize = 12;
const MAX_CHAIN: usize = 10;

const CAUSE: &str = "The above exception was the direct cause of the following exception:";
const CONTEXT: &str = "During handling of the above exception, another exception occurred:";

/// What is known of an exception beside the text.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReportedException<'a> {
    /// Such as `KeyError: 'a'`, or only a message.
    pub message: &'a str,
    pub kind: Option<&'a str>,
}

pub fn evidence(text: &str, told: ReportedException) -> Evidence {
    let mut begin = text.len().saturating_sub(MAX_READ_BYTES);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    let mut parts = split(&text[begin..]);
    let last = parts.pop().unwrap_or_default();
    let mut read = exception(last.1);
    if read.exception.kind.is_empty() {
        read.exception = of_message(told);
    } else if read.exception.message.is_empty() {
        read.exception.message = of_message(told).message;
    }
    let mut evidence = Evidence { exception: read.exception, frames: read.frames, ..Evidence::default() };
    let mut relation = last.0;
    for (before, part) in parts.into_iter().rev().take(MAX_CHAIN) {
        let link = exception(part);
        if let (Some(relation), false) = (relation, link.exception.kind.is_empty()) {
            evidence.chain.push(Linked { relation, exception: link.exception, frames: link.frames });
        }
        relation = before;
    }
    let (text, was_cut) = cut(text.trim_matches('\n'), MAX_TEXT_CHARS);
    evidence.text = text;
    if was_cut {
        evidence.cut.push("text".to_owned());
    }
    evidence
}

/// The exceptions of a chain, the first one first, each with what it is to the one before.
fn split(text: &str) -> Vec<(Option<Relation>, &str)> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut relation = None;
    loop {
        let next = [(CAUSE, Relation::Cause), (CONTEXT, Relation::Context)]
            .into_iter()
            .filter_map(|(words, relation)| rest.find(words).map(|at| (at, words, relation)))
            .min_by_key(|(at, _, _)| *at);
        let Some((at, words, next)) = next else { break };
        parts.push((relation, &rest[..at]));
        relation = Some(next);
        rest = &rest[at + words.len()..];
    }
    parts.push((relation, rest));
    parts
}

struct Read {
    exception: Exception,
    /// Innermost first.
    frames: Vec<Frame>,
}

fn exception(text: &str) -> Read {
    let mut frames = Vec::new();
    let mut entry: Vec<&str> = Vec::new();
    let mut errors: Vec<&str> = Vec::new();
    let mut named = None;
    let mut last_line = "";
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(error) = line.strip_prefix('E').filter(|rest| rest.is_empty() || rest.starts_with("  ")) {
            errors.push(error);
        } else if let Some(parts) = pattern!(r#"^\s*File "(.+)", line (\d+)(?:, in (.+))?$"#).captures(line) {
            let source = lines
                .peek()
                .filter(|next| next.starts_with("    ") && !next.trim_start().starts_with("File "))
                .map(|next| next.trim());
            frames.push(frame(
                &parts[1],
                &parts[2],
                parts.get(3).map_or("", |name| name.as_str()),
                source.map(|source| vec![source.to_owned()]),
            ));
        } else if let Some(parts) = pattern!(r"^([^\s:][^:]*):(\d+): in (.+)$").captures(line) {
            let source = lines.peek().filter(|next| next.starts_with("    ")).map(|next| vec![next.trim().to_owned()]);
            frames.push(frame(&parts[1], &parts[2], &parts[3], source));
            entry.clear();
        } else if let Some(parts) = pattern!(r"^([^\s:][^:]*):(\d+): ?([\w.]*)$").captures(line) {
            frames.push(entry_frame(&parts[1], &parts[2], &entry));
            named = parts.get(3).map(|name| name.as_str()).filter(|name| !name.is_empty()).or(named);
            entry.clear();
        } else {
            entry.push(line);
            if !line.trim().is_empty() && !line.starts_with(' ') {
                last_line = line;
            }
        }
    }
    frames.reverse();
    if frames.len() > MAX_FRAMES {
        frames.truncate(MAX_FRAMES);
    }
    let message = if errors.is_empty() {
        // Python's own style ends with the exception. Without any frame the line may be anything.
        if frames.is_empty() { String::new() } else { last_line.to_owned() }
    } else {
        let depth = indent(errors[0]);
        let kept: Vec<&str> = errors.iter().map(|line| line.get(depth.min(indent(line))..).unwrap_or("")).collect();
        kept.join("\n")
    };
    if errors.is_empty() && named.is_none() {
        named = pattern!(r"^([A-Za-z_][\w.]*)(?:: |$)")
            .captures(&message)
            .and_then(|parts| parts.get(1))
            .map(|name| name.as_str());
    }
    let mut exception = of_message(ReportedException { message: &message, kind: named });
    exception.message = cut(&exception.message, MAX_MESSAGE_CHARS).0;
    Read { exception, frames }
}

/// `package.module.Kind: message`, or an assertion.
pub(crate) fn of_message(told: ReportedException) -> Exception {
    let message = told.message.trim_end();
    let split = pattern!(r"(?s)^([A-Za-z_][\w.]*)(?:: (.*)|)$").captures(message).filter(|parts| {
        let last = parts[1].rsplit('.').next().unwrap_or("");
        told.kind.is_some_and(|kind| kind.rsplit('.').next() == Some(last)) || looks_like_exception(last)
    });
    let (full, rest) = match (&split, told.kind) {
        (Some(parts), _) => (parts[1].to_owned(), parts.get(2).map_or("", |rest| rest.as_str()).to_owned()),
        (None, Some(kind)) => (kind.to_owned(), message.to_owned()),
        (None, None) if message.starts_with("assert ") => ("AssertionError".to_owned(), message.to_owned()),
        (None, None) => (String::new(), message.to_owned()),
    };
    let (module, kind) = match full.rsplit_once('.') {
        Some((module, kind)) => (Some(module.to_owned()), kind.to_owned()),
        None => (None, full),
    };
    Exception { kind, module: module.filter(|module| module != "builtins"), message: rest, ..Exception::default() }
}

fn looks_like_exception(name: &str) -> bool {
    [
        "Error",
        "Exception",
        "Warning",
        "Exit",
        "Interrupt",
        "Failed",
        "Iteration",
        "Group",
        "Timeout",
        "Failure",
        "NotFound",
    ]
    .iter()
    .any(|end| name.ends_with(end))
        || matches!(name, "Skipped" | "Exit" | "CancelledError")
}

fn frame(file: &str, line: &str, function: &str, source: Option<Vec<String>>) -> Frame {
    let line = line.parse().unwrap_or(0);
    Frame {
        file: one_line(file, 1000),
        line,
        function: one_line(function, 200),
        in_app: is_own(file),
        source: source.map(|lines| Lines { first: line, lines }),
        ..Frame::default()
    }
}

/// An entry of the long style: arguments, source with the failing line marked, locals.
fn entry_frame(file: &str, line: &str, entry: &[&str]) -> Frame {
    let marked = entry.iter().rposition(|text| text.starts_with('>'));
    let mut frame = frame(file, line, "", None);
    if let Some(marked) = marked {
        let is_source = |text: &str| {
            text.starts_with("    ")
                || text.starts_with('>')
                || text.starts_with("def ")
                || text.starts_with("async def ")
                || text.starts_with('@')
        };
        let begin = (0..marked)
            .rev()
            .take_while(|index| is_source(entry[*index]) || entry[*index].is_empty())
            .last()
            .unwrap_or(marked);
        let begin = (begin..marked).find(|index| !entry[*index].trim().is_empty()).unwrap_or(marked);
        let lines: Vec<String> = entry[begin..=marked]
            .iter()
            .map(
                |text| {
                    if text.starts_with("    ") || text.starts_with('>') { text.get(4..).unwrap_or("") } else { text }
                },
            )
            .map(ToOwned::to_owned)
            .collect();
        let head = lines
            .iter()
            .find_map(|text| pattern!(r"^\s*(?:async\s+)?def\s+(\w+)").captures(text).map(|parts| parts[1].to_owned()));
        frame.function = head.unwrap_or_else(|| "<module>".to_owned());
        let kept = lines.len().min(MAX_SOURCE_LINES);
        let first = frame.line.saturating_sub(u32::try_from(kept).unwrap_or(0)) + 1;
        // A text that is cut or not what it looks like must not put lines before the first one.
        if first >= 1 && frame.line as usize >= kept {
            frame.source = Some(Lines { first, lines: lines[lines.len() - kept..].to_vec() });
        }
    }
    for text in entry {
        if let Some(parts) = pattern!(r"^([A-Za-z_]\w*) *= (.+)$").captures(text)
            && frame.locals.len() < MAX_LOCALS
        {
            let value: String = parts[2].chars().take(MAX_VALUE_CHARS).collect();
            frame.locals.push(Local { name: parts[1].to_owned(), kind: kind_of(&value).to_owned(), value });
        }
    }
    frame
}

/// The type that a value's text shows, as far as that is plain.
fn kind_of(value: &str) -> &str {
    if value == "None" {
        return "NoneType";
    }
    if matches!(value, "True" | "False") {
        return "bool";
    }
    if value.parse::<i64>().is_ok() {
        return "int";
    }
    if value.parse::<f64>().is_ok() {
        return "float";
    }
    match value.as_bytes().first() {
        Some(b'\'' | b'"') => "str",
        Some(b'[') => "list",
        Some(b'(') => "tuple",
        Some(b'{') => "dict",
        Some(b'<') => value[1..].split([' ', '>']).next().unwrap_or(""),
        _ => "",
    }
}

/// The frames of a process that crashed, as faulthandler wrote them: of the thread that ran the test, innermost first.
pub(crate) fn crash_frames(text: &str, nodeid: &str) -> Vec<Frame> {
    let test_file = nodeid.split("::").next().unwrap_or_default();
    let mut threads: Vec<Vec<Frame>> = Vec::new();
    for line in text.lines() {
        if pattern!(r"^(?:Current thread|Thread) 0x").is_match(line) {
            threads.push(Vec::new());
        } else if let Some(parts) = pattern!(r#"^  File "(.+)", line (\d+) in (.+)$"#).captures(line)
            && let Some(frames) = threads.last_mut()
            && frames.len() < MAX_FRAMES
        {
            let (file, function) = (parts[1].to_owned(), parts[3].to_owned());
            let in_app = is_own(&file);
            frames.push(Frame { file, line: parts[2].parse().unwrap_or(0), function, in_app, ..Frame::default() });
        }
    }
    let suffix = format!("/{test_file}");
    let ran = |frames: &Vec<Frame>| frames.iter().any(|frame| frame.file.ends_with(&suffix));
    let at = threads.iter().position(ran).or(if threads.is_empty() { None } else { Some(0) });
    let Some(at) = at else { return Vec::new() };
    let mut frames = threads.swap_remove(at);
    let root = frames.iter().find_map(|frame| frame.file.strip_suffix(test_file)).map(ToOwned::to_owned);
    if let Some(root) = root.filter(|root| root.ends_with('/')) {
        for frame in &mut frames {
            if let Some(name) = frame.file.strip_prefix(&root) {
                frame.file = name.to_owned();
            }
        }
    }
    // What pytest does around the test says nothing about it.
    if let Some(last) = frames.iter().rposition(|frame| frame.in_app) {
        frames.truncate(last + 1);
    }
    frames
}

fn is_own(file: &str) -> bool {
    !(file.contains("site-packages/")
        || file.contains("dist-packages/")
        || file.starts_with('<')
        || pattern!(r"/lib(?:64)?/python3[\d.]*/").is_match(file))
}
