//! Reads what a failure left behind: the failing line and its expressions, values of locals, where a name was assigned, what was passed in
//! from the frame outside, how a function is defined. Source is read as words; what cannot be read that way is not guessed.

use std::{ops::Range, sync::LazyLock};

use regex::Regex;

use super::{Around, Fact};
use crate::record::{Evidence, Exception, Frame, Local};
use pylair_python::lexer::{Kind, Token, tokens};
use pylair_text::plain::one_line;

/// How far up a file is looked for the beginning of a function.
const MAX_FUNCTION_LINES: usize = 400;
const MAX_VALUE_CHARS: usize = 160;
/// Names that are shorter are a letter apart from any other.
const LEAST_ALIKE: usize = 4;

/// A regular expression that is compiled once.
macro_rules! pattern {
    ($text:literal) => {{
        static PATTERN: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new($text).expect("it is a pattern"));
        &*PATTERN
    }};
}
pub(crate) use pattern;

/// A failure, seen from the exception that tells most: of a failed collection that is its cause.
pub(crate) struct Scene<'a> {
    pub evidence: &'a Evidence,
    pub around: &'a Around<'a>,
    pub exception: &'a Exception,
    frames: &'a [Frame],
    /// Whether the frames are those of the failure itself, which can be asked for by number.
    numbered: bool,
}

/// A frame of the scene, with its number from 1.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub index: usize,
    pub frame: &'a Frame,
    pub number: Option<u32>,
}

impl<'a> Scene<'a> {
    pub fn new(evidence: &'a Evidence, around: &'a Around<'a>) -> Self {
        let wraps =
            matches!(evidence.exception.kind.as_str(), "Collector.CollectError" | "CollectError" | "ExceptionGroup");
        match evidence.chain.first() {
            Some(linked) if wraps => {
                Self { evidence, around, exception: &linked.exception, frames: &linked.frames, numbered: false }
            }
            _ => Self { evidence, around, exception: &evidence.exception, frames: &evidence.frames, numbered: true },
        }
    }

    /// Seen from one of the exceptions before it.
    pub fn of_cause(evidence: &'a Evidence, around: &'a Around<'a>, index: usize) -> Option<Self> {
        let linked = evidence.chain.get(index)?;
        Some(Self { evidence, around, exception: &linked.exception, frames: &linked.frames, numbered: false })
    }

    pub fn frame(&self, index: usize) -> Option<At<'a>> {
        let frame = self.frames.get(index)?;
        let number = self.numbered.then(|| u32::try_from(index + 1).unwrap_or(u32::MAX));
        Some(At { index, frame, number })
    }

    pub fn frames(&self) -> impl Iterator<Item = At<'a>> + '_ {
        (0..self.frames.len()).filter_map(|index| self.frame(index))
    }

    /// The innermost frame of the project's own code. What pytest, a library or the interpreter does is not blamed: where nobody said what is
    /// whose, the file has to look like the project's.
    pub fn own(&self) -> Option<At<'a>> {
        self.frames().find(|at| at.frame.in_app).or_else(|| self.frame(0).filter(|at| is_project_file(&at.frame.file)))
    }

    /// The frame that raised, if it is of the project's own code.
    pub fn raised_here(&self) -> Option<At<'a>> {
        self.own().filter(|at| at.index == 0)
    }

    /// The library that raised, seen from the project's own frame: its module, and which version of which package that is.
    pub fn library(&self) -> Option<String> {
        let raised = self.frame(0).filter(|at| self.own().is_some_and(|own| own.index > at.index))?;
        let module = raised.frame.module.as_deref()?;
        Some(match self.version_of(module) {
            Some(version) => format!("`{module}` ({version})"),
            None => format!("`{module}`"),
        })
    }

    /// The package that a module comes in, with its version, such as `flask 3.1.2`; of the standard library the version of Python.
    pub fn version_of(&self, module: &str) -> Option<String> {
        let top = module.split('.').next().unwrap_or(module);
        let file = self.evidence.modules.get(module).or_else(|| self.evidence.modules.get(top));
        let file = file.and_then(|module| module.file.as_deref());
        if file.is_some_and(|file| !is_installed(file) && is_library_file(file)) {
            return self.around.python.map(|version| format!("Python {version}"));
        }
        if file.is_some_and(|file| !is_library_file(file)) {
            return None;
        }
        let normalized = top.trim_start_matches('_').replace('_', "-").to_lowercase();
        let name = pylair_python::modules::package_of(top).map_or(normalized.clone(), ToOwned::to_owned);
        [name, normalized].iter().find_map(|name| {
            let version = self.around.packages?.get(name)?;
            Some(format!("{name} {version}"))
        })
    }

    /// The project's root, where that can be told from a file with an absolute name.
    pub fn root(&self) -> Option<&'a str> {
        self.around.root
    }

    /// A path as the test's process saw it.
    pub fn absolute(&self, path: &str) -> Option<String> {
        if path.starts_with('/') {
            return Some(path.to_owned());
        }
        Some(format!("{}/{path}", self.evidence.cwd.as_deref()?.trim_end_matches('/')))
    }

    /// The source of a module as it was imported: its file, by the name that frames have, and the text. Where nobody recorded files of
    /// modules, the place it usually has.
    pub fn source_of(&self, module: &str) -> Option<(String, String)> {
        let read = |file: String| self.file(&file).map(|text| (file, text));
        if self.evidence.modules.is_empty() {
            return files_of_module(module).into_iter().find_map(read);
        }
        read(self.evidence.modules.get(module)?.file.clone()?)
    }

    /// Another file of the project for a module that was imported from elsewhere.
    pub fn unused_source_of(&self, module: &str) -> Option<(String, String)> {
        let imported = self.evidence.modules.get(module)?.file.as_deref()?;
        let read = |file: String| self.file(&file).map(|text| (file, text));
        files_of_module(module).into_iter().filter(|file| file != imported).find_map(read)
    }

    /// The text of a file of the project, as it is now.
    pub fn file(&self, path: &str) -> Option<String> {
        (self.around.files)(path)
    }

    /// Lines of a frame from the beginning of its function, and the number of the first; only what was recorded when the file has
    /// changed since.
    pub fn function_lines(&self, at: At) -> (u32, Vec<String>) {
        let Some(source) = &at.frame.source else { return (at.frame.line, Vec::new()) };
        let recorded = (source.first, source.lines.clone());
        let Some(text) = self.unchanged(at) else { return recorded };
        let lines: Vec<&str> = text.lines().collect();
        let line = at.frame.line as usize;
        let short = short_name(&at.frame.function);
        let end = (line + 2).min(lines.len());
        for begin in (line.saturating_sub(MAX_FUNCTION_LINES)..line.min(lines.len())).rev() {
            if defines(lines[begin], short) {
                return (
                    u32::try_from(begin + 1).unwrap_or(1),
                    lines[begin..end].iter().map(ToString::to_string).collect(),
                );
            }
        }
        recorded
    }

    /// The file of a frame, if what was recorded of it still stands there.
    pub fn unchanged(&self, at: At) -> Option<String> {
        let source = at.frame.source.as_ref()?;
        let text = self.file(&at.frame.file)?;
        let mut lines = text.lines().skip(source.first as usize - usize::from(source.first > 0));
        source.lines.iter().all(|recorded| lines.next().unwrap_or("").trim_end() == recorded.trim_end()).then_some(text)
    }

    /// How a function that a frame calls is defined, where there is no doubt which one it is: a frame of the failure is in it, it is a method of
    /// a class that is known, or a function of the frame's file or of the module it is imported from.
    pub fn definition(&self, at: At, function: &str) -> Option<Definition> {
        let short = short_name(function);
        for other in self.frames().take_while(|other| other.index < at.index) {
            if other.frame.function == function
                && other.frame.in_app
                && let Some(found) =
                    self.file(&other.frame.file).and_then(|text| define(&text, &other.frame.file, short, None))
            {
                return Some(found);
            }
        }
        let text = self.file(&at.frame.file)?;
        let Some((owner, _)) = function.rsplit_once('.') else {
            return define(&text, &at.frame.file, short, None).or_else(|| {
                self.imported(at, &text, short, None).find_map(|(path, text)| define(&text, &path, short, None))
            });
        };
        if matches!(owner, "self" | "cls") {
            let class = at.frame.function.rsplit('.').nth(1)?;
            return define(&text, &at.frame.file, short, Some(class));
        }
        if let Some((module, class)) = at.local(owner).and_then(|local| local.kind.rsplit_once('.')) {
            let (path, text) = self.source_of(module)?;
            return define(&text, &path, short, Some(class));
        }
        self.imported(at, &text, short, Some(owner)).find_map(|(path, text)| define(&text, &path, short, None))
    }

    /// The method of a class that a frame's file defines or imports.
    pub fn method(&self, at: At, class: &str, name: &str) -> Option<Definition> {
        let text = self.file(&at.frame.file)?;
        define(&text, &at.frame.file, name, Some(class)).or_else(|| {
            self.imported(at, &text, class, None).find_map(|(path, text)| define(&text, &path, name, Some(class)))
        })
    }

    /// Sources of the modules that a file imports a name, or what the name is reached through, from.
    fn imported<'s>(
        &'s self,
        at: At<'s>,
        text: &str,
        name: &str,
        owner: Option<&str>,
    ) -> impl Iterator<Item = (String, String)> + 's {
        imported_from(text, name, owner).into_iter().filter_map(move |module| {
            let package = at.frame.module.as_deref().unwrap_or_default();
            self.source_of(&absolute_module(&module, package)?)
        })
    }
}

/// `.users` imported in `shop.cart` is `shop.users`.
fn absolute_module(module: &str, from: &str) -> Option<String> {
    let name = module.trim_start_matches('.');
    let mut package = from;
    for _ in 0..module.len() - name.len() {
        package = package.rsplit_once('.')?.0;
    }
    Some(if name.len() == module.len() {
        name.to_owned()
    } else if name.is_empty() {
        package.to_owned()
    } else {
        format!("{package}.{name}")
    })
}

impl<'a> At<'a> {
    /// The failing line, with those after it as long as a bracket is open.
    pub fn statement(&self) -> String {
        let Some(source) = &self.frame.source else { return String::new() };
        if let Some((first, last)) = self.frame.statement {
            let begin = first.saturating_sub(source.first) as usize;
            let count = (last.saturating_sub(first) as usize + 1).min(source.lines.len().saturating_sub(begin));
            let lines = source.lines.iter().skip(begin).take(count).map(|line| line.trim());
            return lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect::<Vec<_>>().join(" ");
        }
        let begin = self.frame.line.saturating_sub(source.first) as usize;
        let mut text = String::new();
        for line in source.lines.iter().skip(begin).take(6) {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line.trim());
            if depth(&text) <= 0 {
                break;
            }
        }
        text
    }

    /// The expression that failed: what the interpreter says, else the statement if there is but one of a kind in it.
    pub fn failing(&self) -> Option<&'a str> {
        self.frame.expression.as_deref()
    }

    pub fn local(&self, name: &str) -> Option<&'a Local> {
        self.frame.locals.iter().find(|local| local.name == name)
    }

    /// The value of a name or of a dotted path, if the locals show it.
    pub fn value(&self, expression: &str) -> Option<String> {
        let mut steps = expression.split('.');
        let root = self.local(steps.next()?)?;
        let mut value = root.value.clone();
        for step in steps {
            value = field_of(&value, step)?;
        }
        Some(value)
    }

    pub fn place(&self) -> String {
        format!("{}:{}", self.frame.file, self.frame.line)
    }

    pub fn fact(&self, what: impl Into<String>) -> Fact {
        self.fact_at(self.frame.line, what)
    }

    pub fn fact_at(&self, line: u32, what: impl Into<String>) -> Fact {
        Fact { frame: self.number, file: Some(self.frame.file.clone()), line: Some(line), what: what.into() }
    }
}

/// A function as it is written.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    pub file: String,
    pub line: u32,
    pub name: String,
    pub parameters: Vec<Parameter>,
    /// The lines of its body.
    pub body: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// With the stars of `*args` and `**kwargs`.
    pub name: String,
    pub default: Option<String>,
    /// Behind a star: no position passes it.
    pub by_name: bool,
}

impl Definition {
    pub fn head(&self) -> String {
        let mut written: Vec<String> = Vec::with_capacity(self.parameters.len() + 1);
        let mut star = false;
        for parameter in &self.parameters {
            if parameter.by_name && !star {
                written.push("*".into());
            }
            star |= parameter.by_name || parameter.name.starts_with('*');
            written.push(match &parameter.default {
                Some(default) => format!("{}={default}", parameter.name),
                None => parameter.name.clone(),
            });
        }
        format!("def {}({})", self.name, written.join(", "))
    }

    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    pub fn fact(&self, what: impl Into<String>) -> Fact {
        Fact { frame: None, file: Some(self.file.clone()), line: Some(self.line), what: what.into() }
    }

    /// Why a call of it can give None, if the source says so.
    pub fn gives_none(&self) -> Option<String> {
        let code: Vec<&str> = self
            .body
            .iter()
            .map(|line| line.trim())
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        if code.iter().any(|line| line.starts_with("yield") || line.contains(" yield ")) {
            return None;
        }
        let returns: Vec<&&str> = code.iter().filter(|line| pattern!(r"\breturn\b").is_match(line)).collect();
        if let Some(bare) = returns.iter().find(|line| pattern!(r"\breturn(\s+None)?\s*(#.*)?$").is_match(line)) {
            return Some(format!("it has `{bare}`"));
        }
        if returns.is_empty() {
            return (!code.iter().any(|line| line.starts_with("raise")))
                .then(|| "it has no return statement".to_owned());
        }
        let least = self.body.iter().filter(|line| !line.trim().is_empty()).map(|line| indent(line)).min()?;
        let last = self.body.iter().rev().find(|line| !line.trim().is_empty() && indent(line) == least)?;
        let ends = pattern!(r"^\s*(return|raise|while True|with|try|else|match|\)|\]|\})").is_match(last);
        (!ends).then(|| "its end can be reached without a return, after which it gives None".to_owned())
    }
}

/// The lines of a class, without its head.
pub(crate) fn class_body(lines: &[&str], class: &str) -> Option<(usize, usize)> {
    let heads = |line: &str| {
        let rest = line.trim_start().strip_prefix("class ").and_then(|rest| rest.strip_prefix(class));
        rest.is_some_and(|rest| rest.trim_start().starts_with(['(', ':']))
    };
    let mut found = lines.iter().enumerate().filter(|(_, line)| heads(line));
    let (head, line) = found.next().filter(|_| found.next().is_none())?;
    let deep = indent(line);
    let length = lines[head + 1..]
        .iter()
        .take_while(|line| line.trim().is_empty() || indent(line) > deep || line.trim_start().starts_with([')', '#']));
    Some((head + 1, head + 1 + length.count()))
}

pub(crate) fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

pub(crate) fn short_name(function: &str) -> &str {
    function.rsplit(['.', '>']).next().unwrap_or(function)
}

fn defines(line: &str, name: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("def ").is_some_and(|rest| {
        rest.trim_start().strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(['(', '[']))
    })
}

/// Finds `def name` in a file: in a class if one is named, else as a function. Nobody tells two of one name apart, so neither is taken.
pub(crate) fn define(text: &str, file: &str, name: &str, class: Option<&str>) -> Option<Definition> {
    let lines: Vec<&str> = text.lines().collect();
    let all = || lines.iter().enumerate().filter(|(_, line)| defines(line, name));
    let found: Vec<(usize, &&str)> = if let Some(class) = class {
        let (begin, end) = class_body(&lines, class)?;
        let deep = lines[begin..end].iter().find(|line| !line.trim().is_empty()).map(|line| indent(line))?;
        all().filter(|(at, line)| (begin..end).contains(at) && indent(line) == deep).collect()
    } else {
        let at_top: Vec<_> = all().filter(|(_, line)| indent(line) == 0).collect();
        if at_top.is_empty() {
            all().filter(|(_, line)| !pattern!(r"\(\s*(?:self|cls)\b").is_match(line)).collect()
        } else {
            at_top
        }
    };
    let [(begin, first)] = found[..] else { return None };
    let mut head = String::new();
    let mut next = begin;
    for line in lines[begin..].iter().take(40) {
        head.push_str(line.trim());
        head.push(' ');
        next += 1;
        if head.contains('(') && depth(&head) <= 0 {
            break;
        }
    }
    let deep = indent(first);
    let mut body: Vec<String> = lines[next..]
        .iter()
        .take_while(|line| line.trim().is_empty() || indent(line) > deep || line.trim_start().starts_with(')'))
        .take(MAX_FUNCTION_LINES)
        .map(ToString::to_string)
        .collect();
    if let Some(same_line) = after_head(&head) {
        body.insert(0, format!("{}{same_line}", " ".repeat(deep + 4)));
    }
    let line = u32::try_from(begin + 1).ok()?;
    Some(Definition { file: file.to_owned(), line, name: name.to_owned(), parameters: parameters(&head), body })
}

/// What stands behind the colon of a function's head, on the same line.
fn after_head(head: &str) -> Option<&str> {
    let open = head.find('(')?;
    let close = open + balanced(&head[open..])?;
    let rest = head[close..].split_once(':')?.1.trim();
    (!rest.is_empty() && !rest.starts_with('#')).then_some(rest)
}

/// The parameters of `def name(…)`.
pub(crate) fn parameters(head: &str) -> Vec<Parameter> {
    let Some(open) = head.find('(') else { return Vec::new() };
    let Some(length) = balanced(&head[open..]) else { return Vec::new() };
    let mut by_name = false;
    let mut found = Vec::new();
    for part in split_arguments(&head[open + 1..open + length - 1]) {
        let (left, default) = match split_top(&part, "=") {
            Some((left, right)) => (left, Some(right.trim().to_owned())),
            None => (part.clone(), None),
        };
        let name = left.split(':').next().unwrap_or("").trim().to_owned();
        let star = name.starts_with('*');
        if !name.is_empty() && name != "/" && name != "*" {
            found.push(Parameter { name, default, by_name: by_name && !star });
        }
        by_name |= star;
    }
    found
}

/// The arguments of the call of `function` on a line, if there is one call of it.
pub(crate) fn arguments(line: &str, function: &str) -> Option<Vec<String>> {
    let words = tokens(line);
    let mut calls = words.windows(2).filter(|pair| {
        pair[0].kind == Kind::Name && &line[pair[0].at.clone()] == function && &line[pair[1].at.clone()] == "("
    });
    let open = calls.next()?[1].at.start;
    if calls.next().is_some() {
        return None;
    }
    let length = balanced(&line[open..])?;
    Some(split_arguments(&line[open + 1..open + length - 1]))
}

/// What a call passes for a parameter: by name, else by position.
pub(crate) fn argument_for(given: &[String], parameters: &[Parameter], name: &str) -> Option<String> {
    for argument in given {
        if let Some((left, right)) = split_top(argument, "=")
            && left.trim() == name
        {
            return Some(right.trim().to_owned());
        }
    }
    let position = parameters.iter().position(|parameter| parameter.name == name)?;
    let argument = given.get(position)?;
    (!argument.starts_with('*') && split_top(argument, "=").is_none()).then(|| argument.clone())
}

pub(crate) fn split_arguments(inside: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut level = 0;
    let mut begin = 0;
    for token in tokens(inside) {
        match (token.kind, &inside[token.at.clone()]) {
            (Kind::Open, _) => level += 1,
            (Kind::Close, _) => level -= 1,
            (_, ",") if level == 0 => {
                parts.push(inside[begin..token.at.start].trim().to_owned());
                begin = token.at.end;
            }
            _ => {}
        }
    }
    parts.push(inside[begin..].trim().to_owned());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Splits at an operator that stands outside of brackets and strings: `=` is never part of `==`, `<=` and such.
pub(crate) fn split_top(text: &str, operator: &str) -> Option<(String, String)> {
    let words = tokens(text);
    let mut level = 0;
    for (index, token) in words.iter().enumerate() {
        match token.kind {
            Kind::Open => level += 1,
            Kind::Close => level -= 1,
            Kind::Operator | Kind::Keyword if level == 0 => {
                let rest = &text[token.at.start..];
                if !rest.starts_with(operator) {
                    continue;
                }
                let is_symbol = |c: char| "=<>!+-*/%&|^:@~".contains(c);
                let before = index.checked_sub(1).map_or("", |index| &text[words[index].at.clone()]);
                let joined = operator.starts_with(is_symbol)
                    && (rest[operator.len()..].starts_with('=')
                        || (before.len() == 1 && before.starts_with(is_symbol)));
                let cut_word =
                    token.kind == Kind::Keyword && token.at.len() != operator.len() && !operator.contains(' ');
                if !joined && !cut_word {
                    return Some((text[..token.at.start].to_owned(), rest[operator.len()..].to_owned()));
                }
            }
            _ => {}
        }
    }
    None
}

/// The length of the bracketed text that a text begins with.
pub(crate) fn balanced(text: &str) -> Option<usize> {
    let mut level = 0;
    for token in tokens(text) {
        match token.kind {
            Kind::Open => level += 1,
            Kind::Close => {
                level -= 1;
                if level == 0 {
                    return Some(token.at.end);
                }
            }
            _ => {}
        }
    }
    None
}

pub(crate) fn depth(text: &str) -> i32 {
    tokens(text).iter().fold(0, |level, token| match token.kind {
        Kind::Open => level + 1,
        Kind::Close => level - 1,
        _ => level,
    })
}

/// A name with what is hung on it: `a.b`, `f(x)`, `rows[0].name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expression {
    pub text: String,
    pub at: Range<usize>,
}

/// Every such expression of a line, each also by its beginnings: `a.b.c` is there as `a`, `a.b` and `a.b.c`.
pub(crate) fn expressions(line: &str) -> Vec<Expression> {
    let words: Vec<Token> = tokens(line).into_iter().filter(|token| token.kind != Kind::Space).collect();
    let text = |index: usize| words.get(index).map_or("", |token: &Token| &line[token.at.clone()]);
    let mut found = Vec::new();
    for (begin, word) in words.iter().enumerate() {
        if word.kind != Kind::Name || (begin > 0 && text(begin - 1) == ".") {
            continue;
        }
        let start = word.at.start;
        let mut next = begin + 1;
        let mut end = word.at.end;
        loop {
            found.push(Expression { text: line[start..end].to_owned(), at: start..end });
            match text(next) {
                "." if words.get(next + 1).is_some_and(|token| token.kind == Kind::Name) => {
                    end = words[next + 1].at.end;
                    next += 2;
                }
                "(" | "[" if words[next].at.start == end => {
                    let Some(length) = balanced(&line[words[next].at.start..]) else { break };
                    end = words[next].at.start + length;
                    while words.get(next).is_some_and(|token| token.at.start < end) {
                        next += 1;
                    }
                }
                _ => break,
            }
        }
    }
    found
}

/// The last assignment to a name before a line: its number and what is assigned.
pub(crate) fn assigned(first: u32, lines: &[String], before: u32, name: &str) -> Option<(u32, String)> {
    let assignment = Regex::new(&format!(
        r"^\s*(?:{0}\s*(?::[^=]+)?=(?P<value>[^=].*)|(?:async\s+)?with\s+(?P<with>.+?)\s+as\s+{0}\b.*|for\s+{0}\s+in\s+(?P<in>.+?):.*)$",
        regex::escape(name)
    ))
    .ok()?;
    let mut found = None;
    let begins = statement_begins(lines);
    for (number, (line, begins)) in (first..).zip(lines.iter().zip(begins)) {
        if number >= before {
            break;
        }
        // `name=value` in a call over several lines is an argument.
        if let Some(parts) = assignment.captures(line).filter(|_| begins) {
            let value = parts.name("value").map(|value| value.as_str().trim().to_owned());
            let value = value.or_else(|| parts.name("with").map(|with| format!("with {}", with.as_str())));
            found = value
                .or_else(|| parts.name("in").map(|of| format!("an item of {}", of.as_str())))
                .map(|it| (number, it));
        }
    }
    found
}

/// The same where there is no doubt that the value at the line came from there: nothing ends the block that the assignment stands in, or it
/// is the only one.
pub(crate) fn surely_assigned(first: u32, lines: &[String], before: u32, name: &str) -> Option<(u32, String)> {
    let (number, value) = assigned(first, lines, before, name)?;
    let at = (number - first) as usize;
    let deep = indent(&lines[at]);
    let between = &lines[at + 1..((before - first) as usize + 1).min(lines.len())];
    let is_code = |line: &&String| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    if between.iter().filter(is_code).all(|line| indent(line) >= deep) {
        return Some((number, value));
    }
    let other =
        Regex::new(&format!(r"^[^#]*\b{0}\b[^=!<>#()]*(?:=[^=]|:=)|\b(?:as|for)\s[^#]*\b{0}\b", regex::escape(name)))
            .ok()?;
    let written = lines.iter().enumerate().filter(|(index, line)| *index != at && other.is_match(line)).count();
    let is_parameter = lines.first().is_some_and(|line| {
        (line.trim_start().starts_with("def ") || line.trim_start().starts_with("async def ")) && has_word(line, name)
    });
    (written == 0 && !is_parameter).then_some((number, value))
}

/// Of each line whether it begins outside of brackets and strings.
fn statement_begins(lines: &[String]) -> Vec<bool> {
    let text = lines.join("\n");
    let mut begins = vec![true; lines.len()];
    let mut line = 0;
    let mut level = 0_usize;
    for token in tokens(&text) {
        match token.kind {
            Kind::Open => level += 1,
            Kind::Close => level = level.saturating_sub(1),
            _ => {}
        }
        for _ in text[token.at.clone()].matches('\n') {
            line += 1;
            if let Some(begins) = begins.get_mut(line) {
                *begins = token.kind == Kind::Newline && level == 0;
            }
        }
    }
    begins
}

/// Numbers of the lines from one to before another that give a name a value, or may do so.
pub(crate) fn written_between(first: u32, lines: &[String], from: u32, before: u32, name: &str) -> Vec<u32> {
    let begins = statement_begins(lines);
    let numbered = (first..).zip(lines.iter().zip(begins));
    let between = numbered.filter(|(number, _)| (from..before).contains(number));
    between.filter(|(_, (line, begins))| may_write(line, *begins, name)).map(|(number, _)| number).collect()
}

/// Whether a line gives a name a value: an assignment, also of several names, a loop, `with … as`, `import`, `:=`, `del`.
fn may_write(line: &str, begins: bool, name: &str) -> bool {
    let words: Vec<Token> = tokens(line).into_iter().filter(|token| token.kind != Kind::Space).collect();
    let text = |index: usize| words.get(index).map_or("", |token: &Token| &line[token.at.clone()]);
    let is_name = |index: usize| {
        text(index) == name && (index == 0 || text(index - 1) != ".") && !matches!(text(index + 1), "." | "[" | "(")
    };
    // The places of `=` outside of brackets, and where what stands left of each begins: behind the colon of `if x: y = 1`.
    let is_block =
        matches!(text(0), "if" | "elif" | "else" | "for" | "while" | "with" | "try" | "except" | "finally" | "async");
    let mut level = 0_i32;
    let mut begin = 0;
    let mut binds = false;
    for (index, word) in words.iter().enumerate() {
        match (word.kind, text(index)) {
            (Kind::Open, _) => level += 1,
            (Kind::Close, _) => level -= 1,
            (Kind::Keyword, "for" | "as" | "import" | "global" | "nonlocal" | "del") => binds = true,
            (Kind::Keyword, "in") => binds = false,
            (Kind::Operator, ":") if text(index + 1) == "=" && index > 0 && is_name(index - 1) => return true,
            (Kind::Operator, ":" | ";") if level == 0 => {
                binds = false;
                if is_block || text(index) == ";" {
                    begin = index + 1;
                }
            }
            (Kind::Operator, "=") if level == 0 && begins => {
                let is_compared =
                    text(index + 1) == "=" || (index > 0 && matches!(text(index - 1), "=" | "!" | "<" | ">"));
                if !is_compared && (begin..index).any(is_name) {
                    return true;
                }
            }
            (Kind::Name, _) if binds && is_name(index) => return true,
            _ => {}
        }
    }
    false
}

fn has_word(line: &str, name: &str) -> bool {
    tokens(line).iter().any(|token| token.kind == Kind::Name && &line[token.at.clone()] == name)
}

/// The fields that the text of a value shows, each with where its own text begins: `<User object name='Bob' mail=None>`,
/// `User(name='Bob', mail=None)`. What other texts in angle brackets show is what methods give: `<re.Match object; span=(0, 6)>`. Fields of
/// what the value holds are not its own.
fn shown_fields(value: &str) -> Vec<(&str, usize)> {
    let is_object = value.starts_with('<');
    let is_made = pattern!(r"^[A-Za-z_][\w.]*(?:<locals>[\w.]*)*\(").is_match(value);
    if !is_object && (!is_made || value.starts_with("functools.partial")) {
        return Vec::new();
    }
    let words = tokens(value);
    let text = |index: usize| words.get(index).map_or("", |token| &value[token.at.clone()]);
    let mut open: Vec<&str> = Vec::new();
    let mut begun = !is_object || value.starts_with("<_io.");
    let mut closed = None;
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let rest = &value[word.at.end..];
        match (word.kind, text(index)) {
            (Kind::Open, bracket) => open.push(bracket),
            (Kind::Operator, "<") if rest.starts_with(|c: char| c == '_' || c.is_alphabetic()) => open.push("<"),
            (Kind::Operator, ">") if index > 0 && text(index - 1) == "-" => {}
            (Kind::Close, _) | (Kind::Operator, ">") => {
                let matching = match text(index) {
                    ">" => "<",
                    ")" => "(",
                    "]" => "[",
                    _ => "{",
                };
                if open.pop() != Some(matching) {
                    break;
                }
                if open.is_empty() {
                    closed = Some(word.at.end);
                    break;
                }
            }
            (Kind::Name, "object") if open.len() == 1 && rest.starts_with(' ') => begun = true,
            (Kind::Name, name) if open.len() == 1 && begun && text(index + 1) == "=" => {
                found.push((name, words[index + 1].at.end));
            }
            _ => {}
        }
    }
    if closed != Some(value.len()) {
        // Behind a cut it is not known whose the fields are.
        let cut = [value.find('…'), value.find("...")].into_iter().flatten().min().unwrap_or(value.len());
        found.retain(|(_, at)| *at < cut);
    }
    found
}

/// One field out of the text of a value.
pub(crate) fn field_of(value: &str, name: &str) -> Option<String> {
    let at = shown_fields(value).into_iter().find(|(field, _)| *field == name)?.1;
    let rest = &value[at..];
    let mut level = 0;
    let mut end = rest.len();
    if rest.starts_with('<') {
        // The text of an object has blanks in it.
        let mut open = 0;
        let closes = rest.char_indices().find(|(_, c)| {
            open += i32::from(*c == '<') - i32::from(*c == '>');
            open == 0
        });
        return closes.map(|(at, _)| rest[..=at].to_owned());
    }
    for token in tokens(rest) {
        let ends = match token.kind {
            Kind::Close | Kind::Space | Kind::Newline => true,
            Kind::Operator => matches!(&rest[token.at.clone()], "," | ">"),
            _ => false,
        };
        if level == 0 && ends {
            end = token.at.start;
            break;
        }
        match token.kind {
            Kind::Open => level += 1,
            Kind::Close => level -= 1,
            _ => {}
        }
    }
    (end > 0).then(|| rest[..end].to_owned())
}

/// The names of fields that the text of a value shows.
pub(crate) fn fields_of(value: &str) -> Vec<String> {
    let mut fields: Vec<String> = shown_fields(value).into_iter().map(|(name, _)| name.to_owned()).collect();
    fields.dedup();
    fields
}

/// The keys of the outermost dict in the text of a value, as they are written.
pub(crate) fn keys_of(value: &str) -> Option<Vec<String>> {
    let open = value.find('{')?;
    let end = balanced(&value[open..]).map_or(value.len(), |length| open + length - 1);
    let inside = &value[open + 1..end];
    let keys: Vec<String> = split_arguments(inside)
        .iter()
        .filter_map(|part| split_top(part, ":").map(|(key, _)| key.trim().to_owned()))
        .collect();
    (!keys.is_empty() || inside.trim().is_empty()).then_some(keys)
}

/// How many items the text of a list, tuple or such shows; None when it was cut.
pub(crate) fn length_of(value: &str) -> Option<usize> {
    let open = value.find(['[', '('])?;
    let length = balanced(&value[open..])?;
    let inside = &value[open + 1..open + length - 1];
    (!inside.contains('…') && !inside.contains("...")).then(|| split_arguments(inside).len())
}

/// The modules that a file imports a name from, or that it is reached through, as they are written.
fn imported_from(text: &str, name: &str, owner: Option<&str>) -> Vec<String> {
    static FROM: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^\s*from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n#]+)").expect("it is a pattern")
    });
    static IMPORT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^\s*import\s+([\w.]+)(?:\s+as\s+(\w+))?").expect("it is a pattern"));
    let mut modules = Vec::new();
    for parts in FROM.captures_iter(text) {
        for item in parts[2].trim_matches(['(', ')']).split(',') {
            let mut words = item.split_whitespace();
            let imported = words.next().unwrap_or("");
            let called = words.nth(1).unwrap_or(imported);
            if called == name {
                modules.push(parts[1].to_owned());
            }
            if Some(called) == owner {
                modules.push(format!("{}.{imported}", &parts[1]));
                modules.push(parts[1].to_owned());
            }
        }
    }
    for parts in IMPORT.captures_iter(text) {
        let called = parts.get(2).map_or(&parts[1], |alias| alias.as_str());
        if Some(called) == owner {
            modules.push(parts[1].to_owned());
        }
    }
    modules
}

/// The last attribute, index or call of an expression, and what it hangs on: `a.b` and `.c`, `f(x)` and `[0]`.
pub(crate) fn top_level(expression: &str) -> Option<(&str, &str)> {
    let all = expressions(expression);
    all.iter().find(|found| found.at == (0..expression.len()))?;
    let before = all.iter().filter(|found| found.at.start == 0 && found.at.end < expression.len());
    let end = before.map(|found| found.at.end).max()?;
    Some((&expression[..end], &expression[end..]))
}

/// Whether a text of a value was cut, and shows only some of it.
pub(crate) fn is_cut(value: &str) -> bool {
    value.contains('…') || value.contains("...")
}

/// Whether a file is of an installed package.
pub(crate) fn is_installed(file: &str) -> bool {
    file.contains("site-packages/") || file.contains("dist-packages/")
}

/// Whether a file is of an installed package, the standard library or no file at all.
fn is_library_file(file: &str) -> bool {
    is_installed(file)
        || file.starts_with('<')
        || pattern!(r"/lib/python\d").is_match(file)
        || file.contains("/_pytest/")
}

fn is_project_file(file: &str) -> bool {
    !is_library_file(file)
}

pub(crate) fn files_of_module(module: &str) -> Vec<String> {
    let path = module.trim_start_matches('.').replace('.', "/");
    vec![
        format!("{path}.py"),
        format!("{path}/__init__.py"),
        format!("src/{path}.py"),
        format!("src/{path}/__init__.py"),
    ]
}

/// Names that a module's source defines or imports at its top.
pub(crate) fn names_of_module(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines() {
        if let Some(parts) = pattern!(r"^(?:async\s+def|def|class)\s+(\w+)|^(\w+)\s*(?::[^=]+)?=[^=]").captures(line) {
            names.extend(parts.get(1).or(parts.get(2)).map(|name| name.as_str().to_owned()));
        } else if let Some(parts) = pattern!(r"^(?:from\s+[\w.]+\s+)?import\s+(.+)$").captures(line) {
            let listed = parts[1].trim_matches(['(', ')', ' ']);
            names.extend(
                listed
                    .split(',')
                    .filter_map(|item| item.split_whitespace().last())
                    .map(|name| name.split('.').next().unwrap_or(name).to_owned()),
            );
        }
    }
    names
}

/// The names nearest to one that is not there, the best first.
pub(crate) fn similar<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let length = wanted.chars().count();
    let most = (length / 4).clamp(1, 2);
    let mut near: Vec<(usize, &str)> = names
        .into_iter()
        .filter(|name| *name != wanted && name.len() < 200)
        .filter_map(|name| {
            let folded = strsim::damerau_levenshtein(&wanted.to_lowercase(), &name.to_lowercase());
            let same_words = length > 1 && words(wanted) == words(name);
            // `TYPE` and `types` are different things, however alike.
            let is_near = folded <= most
                && length.min(name.chars().count()) >= LEAST_ALIKE
                && is_constant(wanted) == is_constant(name);
            // Nor is what a module keeps to itself meant by a public name, or the other way round.
            let is_private = |name: &str| name.starts_with('_');
            ((is_near || same_words) && is_private(wanted) == is_private(name))
                .then_some((if same_words { 0 } else { folded }, name))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).collect()
}

fn is_constant(name: &str) -> bool {
    !name.chars().any(char::is_lowercase)
}

/// What a name is made of, so that `send_mail` and `sendMail` are the same.
fn words(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// A value on one line, cut.
pub(crate) fn brief(value: &str) -> String {
    let line = one_line(value, MAX_VALUE_CHARS + 1);
    if line.chars().count() > MAX_VALUE_CHARS {
        return line.chars().take(MAX_VALUE_CHARS - 1).chain(['…']).collect();
    }
    line
}

pub(crate) fn unquote(text: &str) -> &str {
    let text = text.trim();
    for quote in ['\'', '"'] {
        if let Some(inside) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inside;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_expressions() {
        let texts = |line| expressions(line).into_iter().map(|found| found.text).collect::<Vec<_>>();
        assert_eq!(
            texts("return user.mail.split(\"@\")[1]"),
            ["user", "user.mail", "user.mail.split", "user.mail.split(\"@\")", "user.mail.split(\"@\")[1]"]
        );
        assert_eq!(texts("f(a, b.c)"), ["f", "f(a, b.c)", "a", "b", "b.c"]);
        assert_eq!(texts("'text' + \"more\""), [""; 0]);
        assert_eq!(texts("f(a"), ["f", "a"], "what is not closed is not a call");
    }

    #[test]
    fn values_are_taken_out_of_texts() {
        let value = "<shop.users.User object name='Bob, or \"B\"' mail=None tags=['a', 'b']>";
        assert_eq!(field_of(value, "mail").as_deref(), Some("None"));
        assert_eq!(field_of(value, "name").as_deref(), Some("'Bob, or \"B\"'"));
        assert_eq!(field_of(value, "tags").as_deref(), Some("['a', 'b']"));
        assert_eq!(field_of(value, "nothing"), None);
        assert_eq!(fields_of("User(name='x', mail=None)"), ["name", "mail"]);
        assert_eq!(keys_of("{'a': {'b': 1}, 'c': [1, 2]}").unwrap(), ["'a'", "'c'"]);
        assert_eq!(keys_of("{}").unwrap(), [""; 0]);
        assert_eq!(length_of("[1, (2, 3), 'a, b']"), Some(3));
        assert_eq!(length_of("[1, 2, …]"), None);
    }

    #[test]
    fn fields_of_a_value_are_not_those_of_what_it_holds() {
        let order = "Order(item=Item(id=3, price=None), id=7, price='9')";
        assert_eq!(field_of(order, "id").as_deref(), Some("7"));
        assert_eq!(field_of(order, "price").as_deref(), Some("'9'"));
        assert_eq!(fields_of(order), ["item", "id", "price"]);
        let order = "<shop.Order object item=<shop.Item object id=3 note='a > b'> id=7>";
        assert_eq!(field_of(order, "id").as_deref(), Some("7"));
        assert_eq!(field_of("<a.test_b.<locals>.C object id=7>", "id").as_deref(), Some("7"));
        assert_eq!(field_of("Order(text='id=3', id=7)", "id").as_deref(), Some("7"));
        assert_eq!(field_of("[Item(id=3)]", "id"), None);
        assert_eq!(field_of("Order(items=[1, …id=3), id=7)", "id"), None, "whose it is cannot be seen");
        assert_eq!(field_of("functools.partial(f, x=1)", "x"), None);
    }

    #[test]
    fn what_a_method_gives_is_no_field() {
        assert_eq!(field_of("<re.Match object; span=(0, 6), match='abc'>", "span"), None);
        assert_eq!(field_of("<Future finished result=3>", "result"), None);
    }

    #[test]
    fn functions_are_read_as_they_are_written() {
        let text = "class A:\n    def f(\n        self, a: dict[str, int] = {}, *rest, key=None, **more\n    ) -> int:\n        return 1\n\n    x = 2\n";
        let found = define(text, "a.py", "f", Some("A")).unwrap();
        assert_eq!(found.head(), "def f(self, a={}, *rest, key=None, **more)");
        assert_eq!(found.line, 2);
        assert_eq!(found.body.iter().filter(|line| !line.trim().is_empty()).count(), 1);
        assert!(define("def f(): pass\ndef f(): pass\n", "a.py", "f", None).is_none(), "which of the two is not known");
        let given = arguments("x = page(url, attempts=a or b)", "page").unwrap();
        assert_eq!(given, ["url", "attempts=a or b"]);
        let parameters = parameters("def page(url, attempts=3):");
        assert_eq!(argument_for(&given, &parameters, "attempts").as_deref(), Some("a or b"));
        assert_eq!(argument_for(&given, &parameters, "url").as_deref(), Some("url"));
    }

    #[test]
    fn sides_of_an_operator() {
        assert_eq!(split_top("f(a == b) == 'x == y'", "==").unwrap().1.trim(), "'x == y'");
        assert_eq!(split_top("a <= b", "="), None);
        assert_eq!(split_top("'carl' in names", "in").unwrap().1.trim(), "names");
    }

    #[test]
    fn why_a_function_gives_none() {
        let why = |body: &str| define(&format!("def f(a):\n{body}"), "a.py", "f", None).unwrap().gives_none();
        assert!(why("    x = 1\n").unwrap().contains("no return statement"));
        assert!(why("    for i in a:\n        if i:\n            return i\n").unwrap().contains("end can be reached"));
        assert!(why("    if a:\n        return None\n    return 1\n").unwrap().contains("`return None`"));
        assert_eq!(why("    if a:\n        return 2\n    return 1\n"), None);
        assert_eq!(why("    raise ValueError(a)\n"), None);
    }

    #[test]
    fn names_that_are_near() {
        assert_eq!(similar("send_mial", ["send", "send_mail", "smtplib"]), ["send_mail"]);
        assert_eq!(similar("sendMail", ["send_mail"]), ["send_mail"]);
        assert_eq!(similar("a", ["xyz"]), [""; 0]);
        assert_eq!(similar("c", ["b", "C"]), [""; 0]);
        assert_eq!(similar("row", ["now", "Row", "rows"]), ["Row"]);
    }
}
