//! An output cut to what a model can read: head and tail, a line in between that says what was left out and
//! where the whole is, and a line about what repeats. Captures call it; it reads tapes and changes nothing.

use std::{fmt::Write, io, ops::ControlFlow};

use super::{
    Stream, Which,
    patterns::{Pattern, Patterns},
    tape::{Tally, Totals, View, count_newlines, to_usize},
};

/// Head and tail get at least this much together, or there is no line in between.
const LEAST_TEXT_CHARS: usize = 80;

/// What a model gets to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// Both streams in the order they came, at most `max_chars` characters.
    pub merged: Text,
    /// The streams apart, together at most `max_chars` characters.
    pub stdout: Text,
    pub stderr: Text,
    pub total_chars: u64,
    pub total_lines: u64,
    /// Something was left out.
    pub truncated: bool,
    /// What repeats in the whole output; only looked for when something was left out.
    pub patterns: Vec<Pattern>,
}

/// One text of an excerpt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    /// With the line about what was left out, where something was.
    pub text: String,
    pub total_chars: u64,
    pub total_lines: u64,
    pub left_out_chars: u64,
    /// Line ends among the characters left out.
    pub left_out_lines: u64,
}

pub(super) fn excerpt(mut view: View, totals: &Totals, max_chars: usize, whole: Option<&str>) -> Excerpt {
    if let Ok(excerpt) = try_excerpt(&view, totals, max_chars, whole) {
        return excerpt;
    }
    // The file is gone or cannot be read: show what memory has.
    view.forget_kept();
    try_excerpt(&view, totals, max_chars, whole).unwrap_or_default()
}

fn try_excerpt(view: &View, totals: &Totals, max_chars: usize, whole: Option<&str>) -> io::Result<Excerpt> {
    let merged = totals.of(Which::Merged);
    let truncated = merged.chars > max_chars as u64 || !view.is_whole();
    let patterns = if truncated { Patterns::of(view)? } else { Patterns::default() };
    let cut = |which, max_chars| {
        let source = Source { view, which, tally: totals.of(which), whole, patterns: &patterns };
        source.cut(max_chars)
    };
    let (stdout_chars, stderr_chars) = share(max_chars, totals);
    let both = cut(Which::Merged, max_chars)?;
    Ok(Excerpt {
        // Most cells print to one stream only.
        stdout: if totals.stderr.chars == 0 { both.clone() } else { cut(Which::Only(Stream::Stdout), stdout_chars)? },
        stderr: cut(Which::Only(Stream::Stderr), stderr_chars)?,
        merged: both,
        total_chars: merged.chars,
        total_lines: merged.lines(),
        truncated,
        patterns: patterns.top(Which::Merged),
    })
}

/// Splits the characters between the streams: what one does not need the other gets, and stderr, where
/// the errors are, has a quarter for itself.
fn share(max_chars: usize, totals: &Totals) -> (usize, usize) {
    let stdout = to_usize(totals.stdout.chars);
    let stderr = to_usize(totals.stderr.chars);
    let for_stderr = stderr.min((max_chars / 4).max(max_chars.saturating_sub(stdout)));
    (max_chars - for_stderr, for_stderr)
}

struct Source<'a> {
    view: &'a View,
    which: Which,
    tally: Tally,
    whole: Option<&'a str>,
    patterns: &'a Patterns,
}

impl Source<'_> {
    fn cut(&self, max_chars: usize) -> io::Result<Text> {
        let mut text = Text { total_chars: self.tally.chars, total_lines: self.tally.lines(), ..Text::default() };
        if self.tally.chars == 0 {
            return Ok(text);
        }
        if self.tally.chars <= max_chars as u64 {
            text.text = self.head(max_chars)?;
            if !self.view.is_whole() {
                // The rest of a rare stream may all be after the hole.
                text.text.push_str(&self.tail(max_chars)?);
            }
            if text.text.chars().count() as u64 == self.tally.chars {
                return Ok(text);
            }
        }
        let summary = self.summary(max_chars / 6);
        // As long as the line can get: the final numbers are not larger.
        let note = self.note(self.tally.newlines, self.tally.chars);
        let between = note.chars().count() + summary.chars().count() + 2;
        if between + LEAST_TEXT_CHARS > max_chars {
            text.text = self.head(max_chars)?;
            if text.text.is_empty() {
                text.text = self.tail(max_chars)?;
            }
            let shown = text.text.chars().count() as u64;
            text.left_out_chars = self.tally.chars - shown;
            text.left_out_lines = self.tally.newlines - count_newlines(&text.text);
            return Ok(text);
        }
        let room = max_chars - between;
        let head = to_line_end(self.head(room / 2)?);
        let tail = self.tail(room - room / 2)?;
        let tail = from_line_start(&tail);
        let shown = (head.chars().count() + tail.chars().count()) as u64;
        text.left_out_chars = self.tally.chars.saturating_sub(shown);
        text.left_out_lines = self.tally.newlines.saturating_sub(count_newlines(&head) + count_newlines(tail));
        text.text = head;
        if !text.text.is_empty() && !text.text.ends_with('\n') {
            text.text.push('\n');
        }
        text.text.push_str(&self.note(text.left_out_lines, text.left_out_chars));
        text.text.push('\n');
        text.text.push_str(&summary);
        text.text.push_str(tail);
        Ok(text)
    }

    fn head(&self, max_chars: usize) -> io::Result<String> {
        let mut head = String::new();
        let mut left = max_chars.min(to_usize(self.tally.chars));
        // What comes after a hole is no part of the head.
        let end = if self.view.is_whole() { u64::MAX } else { self.view.kept_len };
        self.view.forward(self.which, 0, |_, text, position| {
            if position > end {
                return ControlFlow::Break(());
            }
            let (index, chars) = prefix(text, left);
            head.push_str(&text[..index]);
            left -= chars;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(head)
    }

    fn tail(&self, max_chars: usize) -> io::Result<String> {
        let mut parts = Vec::new();
        let mut left = max_chars.min(to_usize(self.tally.chars));
        self.view.backward(self.which, |_, text| {
            let (index, chars) = suffix(text, left);
            parts.push(text[index..].to_owned());
            left -= chars;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        parts.reverse();
        Ok(parts.concat())
    }

    fn note(&self, lines: u64, chars: u64) -> String {
        let mut note = String::from("[… ");
        // Writing to a string does not fail.
        if lines > 0 {
            _ = write!(note, "{} line{}, ", grouped(lines), plural(lines));
        }
        _ = write!(note, "{} character{} left out", grouped(chars), plural(chars));
        match self.whole {
            Some(_) if self.view.kept_len == 0 && !self.view.is_whole() => note.push_str("; no longer on disk"),
            Some(whole) if !self.view.overflowed => _ = write!(note, "; the whole output: {whole}"),
            Some(whole) => _ = write!(note, "; its first {} bytes: {whole}", grouped(self.view.kept_len)),
            None => {}
        }
        note.push_str(" …]");
        note
    }

    /// A line with its line end, or nothing.
    fn summary(&self, max_chars: usize) -> String {
        let mut summary = String::new();
        for pattern in self.patterns.top(self.which) {
            let about = if pattern.about { "about " } else { "" };
            let before = if summary.is_empty() { "[repeated: " } else { "; " };
            let count = grouped(pattern.count);
            let next = format!("{before}{about}{count} × {}", pattern.pattern);
            if summary.chars().count() + next.chars().count() + 2 > max_chars {
                break;
            }
            summary.push_str(&next);
        }
        if !summary.is_empty() {
            summary.push_str("]\n");
        }
        summary
    }
}

/// Cuts after the last line end, unless too much would go.
fn to_line_end(mut head: String) -> String {
    if let Some(index) = head.rfind('\n')
        && index + 1 >= head.len() / 4 * 3
    {
        head.truncate(index + 1);
    }
    head
}

fn from_line_start(tail: &str) -> &str {
    match tail.find('\n') {
        Some(index) if index < tail.len() / 4 && index + 1 < tail.len() => &tail[index + 1..],
        _ => tail,
    }
}

/// The index after the first `max_chars` characters, and how many characters that is.
fn prefix(text: &str, max_chars: usize) -> (usize, usize) {
    // A character has at least one byte, so most texts need no look at where the characters are.
    if text.len() <= max_chars {
        return (text.len(), text.chars().count());
    }
    match text.char_indices().nth(max_chars) {
        Some((index, _)) => (index, max_chars),
        None => (text.len(), text.chars().count()),
    }
}

/// The index before the last `max_chars` characters, and how many characters that is.
fn suffix(text: &str, max_chars: usize) -> (usize, usize) {
    if max_chars == 0 {
        return (text.len(), 0);
    }
    match text.char_indices().nth_back(max_chars - 1) {
        Some((index, _)) => (index, max_chars),
        None => (0, text.chars().count()),
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// `1,234,567`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
