//! What a prompt is made of, from the evidence: the failure, its frames, what is thought of it, what was tried, output, changes.

use std::fmt::Write as _;

use super::{GroupPromptInput, PromptInput, Style, trail};
use crate::{
    hypotheses::reading::expressions,
    prompt::budget::{Keep, Part},
    record::{Evidence, Frame, Relation},
};
use pylair_text::plain::{counted, one_line, times};

const MAX_FRAMES: usize = 8;
const MAX_VALUE_CHARS: usize = 200;
/// Of the exception, what stands before everything else.
const FIRST_LINE_CHARS: usize = 160;

fn part(title: impl Into<String>, rank: u32, max_tokens: usize, data: String) -> Part {
    Part { title: title.into(), words: String::new(), data, rank, max_tokens, keep: Keep::Beginning }
}

pub(super) fn of_failure(failure: &PromptInput, style: Style) -> Vec<Part> {
    let mut parts = vec![part("The failure", 0, 1200, summary(failure))];
    match style {
        Style::Concise => {
            parts.push(part("Where", 1, 400, own_frame(failure.evidence, 2)));
            parts.push(part("What is thought of it", 2, 300, hypotheses(failure, 1)));
            parts.push(part("Next step", 3, 600, next_step(failure)));
            parts.push(part("Already tried", 4, 300, tried(failure)));
            return parts;
        }
        Style::StepByStep => {
            let mut rules = String::new();
            let mut found = String::new();
            for (rule, made) in trail(failure.investigations) {
                let _ = writeln!(rules, "{rule}");
                if let Some(made) = made {
                    let _ = writeln!(found, "rule {}: {}", rule.split('.').next().unwrap_or(""), one_line(&made, 600));
                }
            }
            let progress = crate::rules::progress(failure.investigations);
            let words =
                format!("{} of {} done ({} %).\n{rules}", progress.completed, progress.total, progress.percentage);
            parts.push(Part {
                title: "The nine rules".into(),
                words,
                data: found,
                rank: 1,
                max_tokens: 1500,
                keep: Keep::End,
            });
        }
        Style::RootCause => {
            parts.push(part("The wrong value, outward", 1, 1500, outward(failure.evidence)));
        }
        Style::Detailed => {}
    }
    parts.extend(frames(failure.evidence, if style == Style::Detailed { 2 } else { 3 }));
    parts.push(part("Hypotheses, from this evidence", 2, 1500, hypotheses(failure, 6)));
    if style != Style::RootCause {
        parts.push(part("Next step", 3, 1000, next_step(failure)));
    }
    if style != Style::StepByStep {
        parts.push(part("Already tried", 3, 1200, tried(failure)));
    }
    parts.push(part("Exceptions before it", 4, 1200, chain(failure.evidence)));
    parts.push(part("What changed", if style == Style::RootCause { 2 } else { 5 }, 500, changes(failure)));
    let text = failure.evidence.text.clone();
    // Where frames were not recorded, pytest's own text is all there is.
    let rank = if failure.evidence.frames.is_empty() { 1 } else { 9 };
    parts.push(Part { keep: Keep::End, ..part("Traceback, as pytest prints it", rank, 2500, text) });
    for (title, output) in [
        ("Log", &failure.evidence.log),
        ("Standard error", &failure.evidence.stderr),
        ("Standard output", &failure.evidence.stdout),
    ] {
        parts.push(Part { keep: Keep::End, ..part(title, 6, 600, output.clone()) });
    }
    parts
}

pub(super) fn of_group(group: &GroupPromptInput, shown: &[&PromptInput], style: Style) -> Vec<Part> {
    let mut about = format!("group: {}\n", group.id);
    if let Some(first) = shown.first() {
        let _ = writeln!(about, "the first of them, {}: {}", first.id, one_line(&raised(first), FIRST_LINE_CHARS));
    }
    let _ = writeln!(
        about,
        "why together: {}\nfailures: {}, seen {}, in {}",
        one_line(group.reason, 400),
        group.failures,
        times(group.occurrences),
        counted(group.tests, "test")
    );
    let mut tests: Vec<&str> = group.members.iter().map(|member| member.test).collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests.iter().take(12) {
        let _ = writeln!(about, "- {}", one_line(test, 200));
    }
    if group.tests > 12 {
        let _ = writeln!(about, "- and {} more", group.tests - 12);
    }
    let mut parts = vec![part("The group", 0, 900, about)];
    if shown.len() > 1 {
        parts.push(part("What the shown ones have in common", 1, 400, common(shown)));
    }
    for (index, failure) in shown.iter().enumerate() {
        let many = shown.len() > 1;
        for mut part in of_failure(failure, style) {
            let first = index == 0;
            // The whole of the first, the heart of the others.
            let heart = matches!(
                part.title.as_str(),
                "The failure" | "Where" | "Hypotheses, from this evidence" | "The wrong value, outward"
            ) || part.title.starts_with("Frame 1");
            if !first && !heart {
                continue;
            }
            if many {
                part.title = format!("{}: {}", failure.id, part.title);
            }
            part.rank += u32::try_from(index).unwrap_or(0) * 2;
            part.max_tokens = if first { part.max_tokens } else { part.max_tokens / 2 };
            parts.push(part);
        }
    }
    parts
}

fn summary(failure: &PromptInput) -> String {
    // What went wrong comes first: the end is what a small prompt loses.
    let raised = raised(failure);
    let first = one_line(&raised, FIRST_LINE_CHARS);
    let mut text = format!("id: {}\n{first}\ntest: {}\n", failure.id, one_line(failure.test, 300));
    let status = serde_json::to_value(failure.status)
        .ok()
        .and_then(|status| status.as_str().map(ToOwned::to_owned))
        .unwrap_or_default();
    let _ = writeln!(
        text,
        "status: {status}, seen {}, first {}, last {}",
        times(failure.occurrences),
        failure.first_seen,
        failure.last_seen
    );
    for (name, value) in failure.params.iter().take(10) {
        let _ = writeln!(text, "parameter {}: {}", one_line(name, 60), one_line(value, MAX_VALUE_CHARS));
    }
    if let Some(python) = failure.python {
        let _ = writeln!(text, "Python {}", one_line(python, 40));
    }
    if first != raised.trim_end() {
        let _ = writeln!(text, "whole message:\n{}", raised.trim_end());
    }
    text
}

/// The exception, with its message and notes.
fn raised(failure: &PromptInput) -> String {
    let exception = &failure.evidence.exception;
    let kind = exception
        .module
        .as_ref()
        .map_or_else(|| exception.kind.clone(), |module| format!("{module}.{}", exception.kind));
    let mut text = format!("{kind}: {}\n", exception.message.trim_end());
    for note in exception.notes.iter().take(5) {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Frames, the project's own ones before others, the innermost first.
fn frames(evidence: &Evidence, rank: u32) -> Vec<Part> {
    let mut order: Vec<(usize, &Frame)> = evidence.frames.iter().enumerate().collect();
    order.sort_by_key(|(index, frame)| (!frame.in_app, *index));
    order.truncate(MAX_FRAMES);
    order.sort_by_key(|(index, _)| *index);
    let mut own = 0;
    order
        .into_iter()
        .map(|(index, frame)| {
            let rank = if frame.in_app {
                own += 1;
                rank + own / 2
            } else {
                rank + 6
            };
            part(format!("Frame {}", index + 1), rank, 700, shown(frame, true))
        })
        .collect()
}

fn shown(frame: &Frame, with_locals: bool) -> String {
    let mut text = format!("{}:{} in {}\n", frame.file, frame.line, frame.function);
    if let Some(source) = &frame.source {
        for (number, line) in (source.first..).zip(&source.lines) {
            let mark = if number == frame.line { '>' } else { ' ' };
            let _ = writeln!(text, "{mark} {number:4} {line}");
        }
    }
    if with_locals {
        for local in &frame.locals {
            let _ = writeln!(text, "{} = {}", local.name, one_line(&local.value, MAX_VALUE_CHARS));
        }
        if frame.more_locals > 0 {
            let _ = writeln!(text, "(and {} more names)", frame.more_locals);
        }
    }
    text
}

/// The innermost frame of the project, with a few lines around the failing one.
fn own_frame(evidence: &Evidence, around: u32) -> String {
    let Some(frame) = evidence.frames.iter().find(|frame| frame.in_app).or(evidence.frames.first()) else {
        return evidence
            .text
            .lines()
            .rev()
            .take(8)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
            .join("\n");
    };
    let mut near = frame.clone();
    if let Some(source) = &mut near.source {
        let numbered: Vec<(u32, String)> = (source.first..)
            .zip(source.lines.iter().cloned())
            .filter(|(number, _)| number.abs_diff(frame.line) <= around)
            .collect();
        source.first = numbered.first().map_or(frame.line, |(number, _)| *number);
        source.lines = numbered.into_iter().map(|(_, line)| line).collect();
    }
    let named = on_line(frame);
    near.locals.retain(|local| named.contains(&local.name));
    near.more_locals = 0;
    shown(&near, true)
}

/// Names on a frame's failing line.
fn on_line(frame: &Frame) -> Vec<String> {
    let line =
        frame.source.as_ref().and_then(|source| source.lines.get(frame.line.checked_sub(source.first)? as usize));
    line.map(|line| expressions(line).into_iter().map(|found| found.text).collect()).unwrap_or_default()
}

/// Each frame's failing line with the values of what stands on it, from the failure outward.
fn outward(evidence: &Evidence) -> String {
    let mut text = String::new();
    for (index, frame) in evidence.frames.iter().enumerate().filter(|(_, frame)| frame.in_app).take(MAX_FRAMES) {
        let line =
            frame.source.as_ref().and_then(|source| source.lines.get(frame.line.checked_sub(source.first)? as usize));
        let _ = writeln!(
            text,
            "#{} {}:{} {}: {}",
            index + 1,
            frame.file,
            frame.line,
            frame.function,
            line.map_or("", |line| line.trim())
        );
        let named = on_line(frame);
        for local in frame.locals.iter().filter(|local| named.contains(&local.name)) {
            let _ = writeln!(text, "     {} = {}", local.name, one_line(&local.value, MAX_VALUE_CHARS));
        }
    }
    text
}

fn hypotheses(failure: &PromptInput, most: usize) -> String {
    let mut text = String::new();
    for hypothesis in failure.hypotheses.iter().take(most) {
        let confidence = format!("{:?}", hypothesis.confidence).to_lowercase();
        let _ = writeln!(text, "- [{confidence}: {}] {}", hypothesis.because, one_line(&hypothesis.text, 700));
        if most > 1 {
            for fact in hypothesis.evidence.iter().take(6) {
                let _ = writeln!(text, "    {}", one_line(&fact.to_string(), 300));
            }
        }
    }
    text
}

fn next_step(failure: &PromptInput) -> String {
    let Some(step) = failure.next_step else { return String::new() };
    let mut text = format!("{}\n", one_line(&step.text, 500));
    if let Some(evaluate) = &step.evaluate {
        let _ = writeln!(text, "{}", evaluate.call());
        if let Some(why) = &evaluate.not_frozen {
            let _ = writeln!(text, "(no frozen copy: {})", one_line(why, 200));
        }
    }
    if let Some(diff) = &step.diff {
        text.push_str(diff);
    }
    text
}

fn tried(failure: &PromptInput) -> String {
    let mut text = String::new();
    for made in failure.investigations.iter().rev().take(12).rev() {
        let rule = made.rule.map(|rule| format!("rule {rule}, ")).unwrap_or_default();
        let _ =
            writeln!(text, "- {rule}{} ({}): {}", one_line(&made.author, 60), made.at, one_line(&made.analysis, 600));
    }
    text
}

fn chain(evidence: &Evidence) -> String {
    let mut text = String::new();
    for linked in evidence.chain.iter().take(4) {
        let relation = match linked.relation {
            Relation::Cause => "raised from",
            Relation::Context => "raised while handling",
            Relation::Group => "has in it",
        };
        let _ = writeln!(text, "{relation} {}: {}", linked.exception.kind, one_line(&linked.exception.message, 500));
        if let Some(frame) = linked.frames.iter().find(|frame| frame.in_app).or(linked.frames.first()) {
            text.push_str(&shown(frame, true));
        }
    }
    text
}

fn changes(failure: &PromptInput) -> String {
    let mut text = String::new();
    if let Some(between) = failure.between {
        if let (Some(good), Some(bad)) = (&between.last_good, &between.first_bad)
            && good == bad
        {
            let _ = writeln!(text, "passed and then failed on {good}, so it is in the uncommitted changes:");
        } else if let (Some(good), Some(bad)) = (&between.last_good, &between.first_bad) {
            let _ = writeln!(text, "passed last on {good}, failed first on {bad}; changed between them:");
        }
        for file in between.files.iter().take(30) {
            let _ = writeln!(text, "- {}", one_line(file, 200));
        }
    }
    if !failure.changed.is_empty() {
        let _ = writeln!(text, "not committed in the run that failed:");
        for file in failure.changed.iter().take(30) {
            let _ = writeln!(text, "- {}", one_line(file, 200));
        }
    }
    text
}

/// Exception types, places and lines that all of the shown failures have.
fn common(shown: &[&PromptInput]) -> String {
    let features = |failure: &PromptInput| -> Vec<String> {
        let mut features = vec![
            format!("exception {}", failure.evidence.exception.kind),
            format!("message {}", one_line(&failure.evidence.exception.message, 200)),
        ];
        features.extend(
            failure
                .evidence
                .frames
                .iter()
                .filter(|frame| frame.in_app)
                .map(|frame| format!("frame in {} at {}:{}", frame.function, frame.file, frame.line)),
        );
        features.extend(
            failure
                .evidence
                .frames
                .iter()
                .flat_map(|frame| frame.locals.iter())
                .filter(|local| local.value == "None")
                .map(|local| format!("{} = None", local.name)),
        );
        features
    };
    let Some((first, others)) = shown.split_first() else { return String::new() };
    let others: Vec<Vec<String>> = others.iter().map(|failure| features(failure)).collect();
    let shared: Vec<String> =
        features(first).into_iter().filter(|feature| others.iter().all(|other| other.contains(feature))).collect();
    if shared.is_empty() {
        "nothing but the group: look for what all of them call".to_owned()
    } else {
        shared.join("\n")
    }
}
