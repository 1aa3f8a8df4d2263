//! What is worth looking at first: how often and how widely it fails, how lately, whether it is new, what kind of failure it is.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Gathered, Question, Row,
    question::Period,
    trend::{Direction, Trend},
};
use crate::record::{Phase, Status};
use pylair_text::plain::times;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Priority {
    pub label: Label,
    pub score: i32,
    /// What it is made of.
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    Low,
    Medium,
    High,
    Urgent,
}

/// What kind of failure is worse than others by itself.
pub(super) fn severity(row: &Row) -> Option<(i32, &'static str)> {
    let kind = row.kind;
    let named = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    if kind == "Crashed" || named(&["Segfault", "SystemError"]) {
        Some((10, "the interpreter crashed"))
    } else if named(&["Corrupt", "Integrity"]) {
        Some((10, "data may be damaged"))
    } else if named(&["Security", "Permission", "Forbidden", "Unauthorized"]) {
        Some((8, "it is about rights"))
    } else if row.phase == Phase::Collect {
        Some((8, "tests that cannot be collected do not run at all"))
    } else if named(&["MemoryError", "RecursionError", "Deadlock"]) {
        Some((5, "it exhausts the process"))
    } else {
        None
    }
}

pub(super) fn of(group: &Gathered, trend: Trend, question: &Question) -> Priority {
    let mut score = 0;
    let mut reasons = Vec::new();
    let mut count = |points: i32, reason: String| {
        score += points;
        reasons.push(reason);
    };
    let occurrences = group.count;
    count((2 * ilog2(occurrences)).clamp(1, 12), format!("seen {}", times(occurrences)));
    if group.tests.len() > 1 {
        count((2 * ilog2(group.tests.len() as u64)).min(10), format!("in {} tests", group.tests.len()));
    }
    let age = question.now.duration_since(group.last);
    let new_since = question.new_since.or_else(|| question.now.checked_sub(SignedDuration::from_hours(24)).ok());
    if age < SignedDuration::from_hours(24) {
        count(5, "within the last day".into());
    } else if age < SignedDuration::from_hours(7 * 24) {
        count(2, "within the last week".into());
    }
    if new_since.is_some_and(|since| group.first >= since) {
        let what = if question.new_since.is_some() { "new since the commit" } else { "first seen within the last day" };
        count(4, what.into());
    }
    if trend.direction == Direction::Rising {
        let Period { recent, previous, .. } = question.period();
        count(3, format!("rising: {} {recent}, {} {previous}", trend.recent, trend.previous));
    }
    if let Some((points, reason)) = group.severity {
        // What is so of one of many is not said of all.
        let severe = group.severe;
        count(
            points,
            if severe == group.failures { reason.into() } else { format!("{severe} of {}: {reason}", group.failures) },
        );
    }
    let how_many = |status: Status| group.status.get(&status).copied().unwrap_or(0);
    if how_many(Status::Reopened) > 0 {
        count(4, format!("{} came back after being resolved", how_many(Status::Reopened)));
    }
    if how_many(Status::Flaky) == group.failures {
        count(-3, "flaky".into());
    } else if how_many(Status::InProgress) == group.failures {
        count(-2, "somebody is at it".into());
    } else if how_many(Status::Resolved) == group.failures {
        count(-10, "resolved".into());
    }
    let label = match score {
        16.. => Label::Urgent,
        11..=15 => Label::High,
        6..=10 => Label::Medium,
        _ => Label::Low,
    };
    Priority { label, score, reasons }
}

fn ilog2(count: u64) -> i32 {
    i32::try_from(count.max(1).ilog2()).unwrap_or(0)
}
