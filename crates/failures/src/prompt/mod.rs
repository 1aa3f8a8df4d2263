//! A failure, or a group of them, told to a model: what was seen, what is thought of it, what was tried, and what to do, within a budget of
//! tokens.
//!
//! Everything that comes from a test (messages, values, output, names) stands between markers that it cannot write itself, and is said to be
//! data. Called by the doors for `write_debug_prompt`, and for the MCP prompts of the rules.

mod budget;
mod parts;
mod samples;

use std::str::FromStr;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    analysis::Unknown,
    hypotheses::{Between, Hypothesis},
    next_step::NextStep,
    record::{Evidence, Status},
    rules::{self, Investigation},
};
pub use budget::tokens_at_most;
use budget::{Budget, Part};
use pylair_text::{fence, plain::counted};

/// What a prompt may cost when nothing is said.
pub const DEFAULT_TOKENS: usize = 4000;
/// Less than this has no room for a failure.
pub const LEAST_TOKENS: usize = 400;
/// Of a prompt, what is left for the failure itself; longer instructions give way.
const LEAST_ROOM_TOKENS: usize = 200;
const SHORT_INSTRUCTIONS: &str = "Say what the cause is, with the evidence for it, and what to change.";
pub const MOST_TOKENS: usize = 100_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    #[default]
    Detailed,
    Concise,
    StepByStep,
    RootCause,
}

impl Style {
    pub const NAMES: &[&str] = &["detailed", "concise", "step_by_step", "root_cause"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// How many failures of a group are shown.
    fn samples(self) -> usize {
        match self {
            Self::Detailed => 3,
            Self::Concise => 1,
            Self::StepByStep => 2,
            Self::RootCause => 5,
        }
    }
}

impl FromStr for Style {
    type Err = Unknown;

    fn from_str(given: &str) -> Result<Self, Unknown> {
        let wanted = given.trim().to_ascii_lowercase().replace(['-', ' '], "_");
        [Self::Detailed, Self::Concise, Self::StepByStep, Self::RootCause]
            .into_iter()
            .find(|style| style.name() == wanted)
            .ok_or_else(|| Unknown {
                what: "style",
                given: pylair_text::plain::one_line(given, 60),
                known: Self::NAMES,
            })
    }
}

/// One failure, with what the store and the other modules know of it.
#[derive(Clone)]
pub struct PromptInput<'a> {
    pub id: &'a str,
    /// The node id.
    pub test: &'a str,
    pub status: Status,
    pub occurrences: u64,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    pub evidence: &'a Evidence,
    /// Name and `repr` of each parameter.
    pub params: &'a [(String, String)],
    /// Such as `3.13.0`.
    pub python: Option<&'a str>,
    /// Files that differ from the commit.
    pub changed: &'a [String],
    pub between: Option<&'a Between>,
    pub hypotheses: &'a [Hypothesis],
    pub next_step: Option<&'a NextStep>,
    /// Oldest first.
    pub investigations: &'a [Investigation],
}

/// Failures that are together.
pub struct GroupPromptInput<'a> {
    pub id: &'a str,
    /// Why they are together.
    pub reason: &'a str,
    pub failures: usize,
    pub occurrences: u64,
    pub tests: usize,
    /// As many as the caller has evidence of; the most different ones are shown.
    pub members: &'a [PromptInput<'a>],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Prompt {
    pub title: String,
    pub style: Style,
    /// What the one who reads it is asked to do; the beginning of the prompt too.
    pub instructions: String,
    pub prompt: String,
    /// It costs no more than that.
    pub tokens_at_most: usize,
    /// Parts that had no room, or were cut.
    pub left_out: Vec<String>,
    /// The failures of a group that are shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<String>,
}

pub fn of_failure(failure: &PromptInput, style: Style, max_tokens: usize) -> Prompt {
    let instructions = instructions(style, failure.id, None);
    let parts = parts::of_failure(failure, style);
    let title = match name(&failure.evidence.exception.kind) {
        Some(kind) => format!("Debug failure {}: {kind}", failure.id),
        None => format!("Debug failure {}", failure.id),
    };
    finish(title, style, instructions, parts, Vec::new(), failure.id, max_tokens)
}

pub fn of_group(group: &GroupPromptInput, style: Style, max_tokens: usize) -> Prompt {
    let shown = samples::most_different(group.members, style.samples());
    let example = shown.first().map_or("", |failure| failure.id);
    let instructions = instructions(style, example, Some(group));
    let parts = parts::of_group(group, &shown, style);
    let failures = counted(group.failures, "failure");
    let title = match name(group.id) {
        Some(id) => format!("Debug group {id}: {failures}"),
        None => format!("Debug a group of {failures}"),
    };
    let samples = shown.iter().map(|failure| failure.id.to_owned()).collect();
    finish(title, style, instructions, parts, samples, group.id, max_tokens)
}

/// What can stand among our words: a name, and no sentence.
fn name(text: &str) -> Option<&str> {
    let is_plain = |c: char| c.is_alphanumeric() || "_.:/-[]".contains(c);
    Some(text).filter(|text| !text.is_empty() && text.len() <= 80 && text.chars().all(is_plain))
}

fn finish(
    title: String,
    style: Style,
    instructions: String,
    parts: Vec<Part>,
    samples: Vec<String>,
    id: &str,
    max_tokens: usize,
) -> Prompt {
    let max_tokens = max_tokens.clamp(LEAST_TOKENS, MOST_TOKENS);
    let all: String = std::iter::once(id).chain(parts.iter().map(|part| part.data.as_str())).collect();
    let marker = fence::marker(&all);
    let notice = fence::notice(&marker);
    let head = |instructions: &str| format!("# {title}\n\n{instructions}\n\n{notice}\n");
    let is_tight = tokens_at_most(&head(&instructions)) + LEAST_ROOM_TOKENS > max_tokens;
    let instructions = if is_tight { SHORT_INSTRUCTIONS.to_owned() } else { instructions };
    let mut budget = Budget::new(max_tokens, &head(&instructions), &marker);
    budget.fill(parts);
    let (prompt, tokens_at_most, left_out) = budget.text();
    Prompt { title, style, instructions, prompt, tokens_at_most, left_out, samples }
}

fn instructions(style: Style, id: &str, group: Option<&GroupPromptInput>) -> String {
    let what = match group {
        None => "This test fails.".to_owned(),
        Some(group) if group.failures == 1 => "This failure is a group of its own.".to_owned(),
        Some(group) => format!(
            "{} in {} are one group; {} below are the most different of them. Look for the one cause they share, and say if there are two.",
            counted(group.failures, "failure"),
            counted(group.tests, "test"),
            if style.samples() == 1 { "the one" } else { "those" }
        ),
    };
    let verify = format!(
        "When it is fixed, run the test (`run_tests`) and record what you found with `debug_failure(id: \"{id}\", rule, analysis)`."
    );
    let how = match style {
        Style::Detailed => format!(
            "Name the cause with the frame and value that show it, then make the smallest change that removes it. What the frames do not show, \
             evaluate: `execute(\"EXPRESSION\", target=\"failure:{id}#FRAME\")`. {verify}"
        ),
        Style::Concise => format!("Say in a few sentences what is wrong, and give the change. {verify}"),
        Style::StepByStep => format!(
            "Work through the rules below in order, beginning with the one that is next. After each, record it: \
             `debug_failure(id: \"{id}\", rule: N, analysis: \"what you saw\")`. Do not change code before rule 5."
        ),
        Style::RootCause => format!(
            "Do not fix anything yet. Follow the wrong value outward, frame by frame, to the first place where it is wrong, and say why it is wrong \
             there: the mechanism, not the symptom. Say what you would expect to see if you were mistaken, and look at that \
             (`execute(\"EXPRESSION\", target=\"failure:{id}#FRAME\")`)."
        ),
    };
    format!("{what} {how}")
}

/// The nine rules as a trail: what is done and by whom, what is next.
pub(crate) fn trail(investigations: &[Investigation]) -> Vec<(String, Option<String>)> {
    let progress = rules::progress(investigations);
    rules::RULES
        .iter()
        .map(|rule| {
            let last = investigations.iter().rev().find(|made| made.rule == Some(rule.number));
            let state = if last.is_some() {
                "done"
            } else if progress.next.is_some_and(|next| next.number == rule.number) {
                "next"
            } else {
                "open"
            };
            let found = last.map(|made| format!("{} ({}): {}", made.author, made.at, made.analysis));
            (format!("{}. {} [{state}]: {}", rule.number, rule.name, rule.question), found)
        })
        .collect()
}

#[cfg(test)]
mod tests;
