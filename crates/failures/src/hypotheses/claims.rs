//! What hypotheses and next steps claim, in a form that can be checked: against what was recorded, and where a frozen copy of the failure is
//! alive against that copy. What fails is dropped, and only what is shown is called certain.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Confidence, Hypothesis, Scene, reading::At};
use crate::record::Owner;
use pylair_python::lexer::{Kind, tokens};

/// One thing that is said, and is true or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The message or pytest's text has these words.
    Said(String),
    /// An expression was None in a frame.
    Nothing { frame: FramePosition, expression: String },
    /// An expression had this value.
    Value { frame: FramePosition, expression: String, value: String },
    /// What an expression of a frame stands for has an attribute, or has not.
    Attribute { frame: FramePosition, expression: String, name: String, there: bool },
    /// A module, as it was imported, has a name, or has not.
    InModule { module: String, name: String, there: bool },
    /// A frame knows a name, or does not.
    Name { frame: FramePosition, name: String, there: bool },
    /// A path leads to something, or does not, seen from the working directory.
    Path { path: String, there: bool },
    /// Code can be run in a frame: it is whole, and the frame knows all its names.
    Runs { frame: FramePosition, code: String },
}

/// A frame: which of the scene's, and its number in the failure if it can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePosition {
    pub index: usize,
    pub number: Option<u32>,
}

impl From<At<'_>> for FramePosition {
    fn from(at: At<'_>) -> Self {
        Self { index: at.index, number: at.number }
    }
}

impl Claim {
    /// Whether what was recorded shows it, or the opposite; None if it shows neither.
    pub(crate) fn recorded(&self, scene: &Scene) -> Option<bool> {
        let value = |frame: &FramePosition, expression: &str| scene.frame(frame.index)?.value(expression);
        match self {
            Self::Said(words) => {
                Some(scene.exception.message.contains(words.as_str()) || scene.evidence.text.contains(words.as_str()))
            }
            Self::Nothing { frame, expression } => value(frame, expression).map(|value| value == "None"),
            Self::Value { frame, expression, value: expected } => {
                value(frame, expression).map(|value| value == *expected)
            }
            Self::Attribute { name, there, .. } => {
                let lookup = scene.exception.lookup.as_ref();
                let lookup =
                    lookup.filter(|lookup| matches!(lookup.owner, Owner::Instance | Owner::Class | Owner::Module))?;
                listed(&lookup.names, lookup.more, name).map(|found| found == *there)
            }
            Self::InModule { module, name, there } => {
                let lookup = scene.exception.lookup.as_ref();
                let lookup = lookup
                    .filter(|lookup| lookup.of == *module && matches!(lookup.owner, Owner::Module | Owner::Package))?;
                listed(&lookup.names, lookup.more, name).map(|found| found == *there)
            }
            Self::Name { frame, name, there } => knows(scene, *frame, name).map(|found| found == *there),
            Self::Path { path, there } => (scene.around.exists)(&scene.absolute(path)?).map(|found| found == *there),
            Self::Runs { frame, code } => {
                if !is_whole(code) || has_mangled(code) {
                    return Some(false);
                }
                let at = scene.frame(frame.index)?;
                let written = |name: &str| {
                    at.frame.source.iter().flat_map(|source| &source.lines).any(|line| has_name(line, name))
                };
                let mut unknown = false;
                for name in free_names(code) {
                    match knows(scene, *frame, &name) {
                        Some(true) => {}
                        // Whoever reports no names at all reports the lines.
                        None if at.frame.globals.is_empty() && written(&name) => unknown = true,
                        _ => return Some(false),
                    }
                }
                (!unknown).then_some(true)
            }
        }
    }

    /// What to ask the frozen copy; `true` confirms the claim.
    pub(crate) fn question(&self) -> Option<Value> {
        match self {
            Self::Nothing { frame, expression } => {
                Some(json!({"ask": "none", "frame": frame.number?, "path": expression}))
            }
            Self::Attribute { frame, expression, name, there } => Some(
                json!({"ask": "attribute", "frame": frame.number?, "path": expression, "name": name, "there": there}),
            ),
            Self::InModule { module, name, there } => {
                Some(json!({"ask": "module", "module": module, "name": name, "there": there}))
            }
            Self::Name { frame, name, there } => {
                Some(json!({"ask": "name", "frame": frame.number?, "name": name, "there": there}))
            }
            Self::Path { path, there } => Some(json!({"ask": "path", "path": path, "there": there})),
            Self::Runs { frame, code } => Some(json!({"ask": "code", "frame": frame.number?, "code": code})),
            Self::Said(_) | Self::Value { .. } => None,
        }
    }
}

/// Whether nothing that was recorded says otherwise. What is called certain and is not shown by anything becomes likely.
pub(crate) fn stands(scene: &Scene, hypothesis: &mut Hypothesis) -> bool {
    let judged: Vec<Option<bool>> = hypothesis.claims.iter().map(|claim| claim.recorded(scene)).collect();
    if !judged.contains(&Some(true)) && hypothesis.confidence == Confidence::High {
        hypothesis.confidence = Confidence::Medium;
    }
    !judged.contains(&Some(false))
}

fn listed(names: &[String], more: u32, name: &str) -> Option<bool> {
    let found = names.iter().any(|known| known == name);
    (found || more == 0).then_some(found)
}

/// Whether a frame knows a name, as far as its names were recorded.
fn knows(scene: &Scene, frame: FramePosition, name: &str) -> Option<bool> {
    let at = scene.frame(frame.index)?;
    let here = |known: &String| known == name;
    if at.local(name).is_some() || at.frame.globals.iter().any(here) {
        return Some(true);
    }
    if frame.index == 0
        && let Some(lookup) = scene.exception.lookup.as_ref().filter(|lookup| lookup.owner == Owner::Frame)
    {
        return listed(&lookup.names, lookup.more, name);
    }
    if at.frame.globals.is_empty() {
        // Whoever reported this says nothing of the names.
        return None;
    }
    let written = at.frame.source.iter().flat_map(|source| &source.lines).any(|line| has_name(line, name));
    (written && at.frame.more_locals == 0).then_some(false)
}

fn has_name(line: &str, name: &str) -> bool {
    tokens(line).iter().any(|token| token.kind == Kind::Name && &line[token.at.clone()] == name)
}

/// Whether code has a name such as `self.__size`, which is called otherwise outside of the class's own source.
fn has_mangled(code: &str) -> bool {
    let is_private = |name: &str| name.starts_with("__") && !name.ends_with("__");
    tokens(code).iter().any(|token| token.kind == Kind::Name && is_private(&code[token.at.clone()]))
}

/// Whether all brackets and strings of a piece of code are closed.
pub(crate) fn is_whole(code: &str) -> bool {
    let mut open: Vec<char> = Vec::new();
    for token in tokens(code) {
        match (token.kind, code[token.at].chars().next()) {
            (Kind::Open, Some(bracket)) => open.push(bracket),
            (Kind::Close, Some(bracket)) => {
                let matching = match bracket {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop() != Some(matching) {
                    return false;
                }
            }
            (Kind::OpenText, _) => return false,
            _ => {}
        }
    }
    open.is_empty() && !code.trim().is_empty()
}

/// The names that code needs from the frame it is run in.
pub(crate) fn free_names(code: &str) -> BTreeSet<String> {
    let words: Vec<_> = tokens(code).into_iter().filter(|token| token.kind != Kind::Space).collect();
    let text = |index: usize| words.get(index).map_or("", |token| &code[token.at.clone()]);
    let mut bound: BTreeSet<String> = BTreeSet::new();
    let mut binding = false;
    for (index, word) in words.iter().enumerate() {
        match (word.kind, text(index)) {
            (Kind::Keyword, "for" | "lambda" | "import" | "as") => binding = true,
            (Kind::Keyword | Kind::Newline, _) | (Kind::Operator, ":" | ";") => binding = false,
            (Kind::Name, name) if binding => {
                bound.insert(name.to_owned());
            }
            _ => {}
        }
    }
    let mut level = 0;
    let mut free = BTreeSet::new();
    for (index, word) in words.iter().enumerate() {
        match word.kind {
            Kind::Open => level += 1,
            Kind::Close => level -= 1,
            Kind::Name => {
                let is_attribute = index > 0 && text(index - 1) == ".";
                let is_keyword = level > 0 && text(index + 1) == "=" && text(index + 2) != "=";
                if !is_attribute && !is_keyword && !bound.contains(text(index)) && !BUILTINS.contains(&text(index)) {
                    free.insert(text(index).to_owned());
                }
            }
            _ => {}
        }
    }
    free
}

/// Builtins that our own next steps use.
const BUILTINS: &[&str] =
    &["dir", "list", "vars", "len", "type", "repr", "sorted", "isinstance", "getattr", "hasattr", "locals"];
