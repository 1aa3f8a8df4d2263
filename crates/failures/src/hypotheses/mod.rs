//! Why a test may have failed, told from what it left behind. Each hypothesis names its evidence: the frame, the place, the value. Where the
//! evidence says nothing, nothing is said.
//!
//! Called by the doors for one failure, by `next_step`, which makes something to do of it, and by `prompt`. Reads no file itself: the caller
//! hands in what may be read ([`Around::files`]), what changed and how the test did before.

pub(crate) mod calls;
pub(crate) mod claims;
pub(crate) mod comparing;
mod history;
pub(crate) mod names;
pub(crate) mod none;
pub(crate) mod outside;
pub(crate) mod pytest;
pub(crate) mod reading;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    environment::Packages,
    record::{Evidence, Relation},
};
pub use claims::Claim;
pub(crate) use reading::{At, Scene};

/// More of them than anybody tries out.
const MAX_HYPOTHESES: usize = 6;
/// Exceptions in a chain that are looked at.
const MAX_CAUSES: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Hypothesis {
    pub text: String,
    pub confidence: Confidence,
    /// Why it is believed that much.
    pub because: String,
    pub evidence: Vec<Fact>,
    /// What it says, so that it can be checked.
    #[serde(skip)]
    pub claims: Vec<Claim>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The recorded values show it.
    High,
    /// Follows from the source or the message.
    Medium,
    /// Fits, as other things would.
    Low,
}

/// Something that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fact {
    /// From 1, the innermost; as `failure:ID#2` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// A value, a line of source, words of the message.
    pub what: String,
}

impl Fact {
    /// Something that has no place in a file.
    pub(crate) fn told(what: impl Into<String>) -> Self {
        Self { frame: None, file: None, line: None, what: what.into() }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(frame) = self.frame {
            write!(f, "#{frame} ")?;
        }
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{file}:{line}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            _ => {}
        }
        f.write_str(&self.what)
    }
}

/// What is known beside the evidence itself.
pub struct Around<'a> {
    /// The failure's id, for targets such as `failure:ID#2`.
    pub id: &'a str,
    pub nodeid: &'a str,
    /// The project's root.
    pub root: Option<&'a str>,
    /// Versions of Python and of what was installed.
    pub python: Option<&'a str>,
    pub packages: Option<&'a Packages>,
    /// Files that differed from the commit in the run that failed.
    pub changed: &'a [String],
    pub between: Option<&'a Between>,
    pub tries: Option<Tries>,
    /// The present text of a file of the project, by the name that frames have. None for what must not or cannot be read.
    pub files: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// Whether an absolute path leads to something now. None for what must not be looked at.
    pub exists: &'a (dyn Fn(&str) -> Option<bool> + Sync),
}

impl<'a> Around<'a> {
    /// Nothing is known but the failure.
    pub fn nothing(id: &'a str, nodeid: &'a str) -> Self {
        Self {
            id,
            nodeid,
            root: None,
            python: None,
            packages: None,
            changed: &[],
            between: None,
            tries: None,
            files: &|_| None,
            exists: &|_| None,
        }
    }
}

/// The last commit on which the test passed, the first on which it failed, and what differs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Between {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<String>,
    pub files: Vec<String>,
    /// Lines that were added or changed, as far as they are known: file and line of the newer side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<(String, u32)>,
}

/// In how many runs the test passed and failed on one and the same code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tries {
    pub passed: u32,
    pub failed: u32,
}

/// The likeliest first.
pub fn hypotheses(evidence: &Evidence, around: &Around) -> Vec<Hypothesis> {
    let scene = Scene::new(evidence, around);
    let mut found = of_exception(&scene);
    for (index, linked) in evidence.chain.iter().enumerate().take(MAX_CAUSES) {
        // The scene itself is already seen from the first one when the exception is only its wrapping.
        if std::ptr::eq(&raw const linked.exception, scene.exception) {
            continue;
        }
        let Some(cause) = Scene::of_cause(evidence, around, index) else { continue };
        let relation = match linked.relation {
            Relation::Cause => "raised from",
            Relation::Context => "raised while handling",
            Relation::Group => "a group with",
        };
        // A chain is told link by link: what was raised first need not be what the failure was raised in.
        let later = match index.checked_sub(1).map(|before| &evidence.chain[before]) {
            Some(before) if linked.relation != Relation::Group => format!("the {}", before.exception.kind),
            _ => "the failure".to_owned(),
        };
        for mut hypothesis in of_exception(&cause) {
            hypothesis.text = format!("{} ({later} is {relation} this {})", hypothesis.text, linked.exception.kind);
            found.push(hypothesis);
        }
    }
    found.extend(history::changed(&scene));
    found.extend(history::flaky(&scene));
    found.sort_by_key(|hypothesis| hypothesis.confidence);
    found.dedup_by(|a, b| a.text == b.text);
    found.truncate(MAX_HYPOTHESES);
    found
}

fn of_exception(scene: &Scene) -> Vec<Hypothesis> {
    let readers: [fn(&Scene) -> Vec<Hypothesis>; 10] = [
        pytest::hypotheses,
        outside::syntax,
        outside::died,
        outside::warning,
        none::hypotheses,
        calls::hypotheses,
        names::hypotheses,
        comparing::hypotheses,
        outside::hypotheses,
        outside::values,
    ];
    readers.iter().map(|read| standing(scene, read(scene))).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Those that nothing which was recorded contradicts.
fn standing(scene: &Scene, mut found: Vec<Hypothesis>) -> Vec<Hypothesis> {
    found.retain_mut(|hypothesis| claims::stands(scene, hypothesis));
    found
}

#[cfg(test)]
pub(crate) mod tests;
