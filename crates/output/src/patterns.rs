//! Which lines an output repeats, numbers aside: `step 17 loss 0.31` and `step 18 loss 0.30` are one pattern.
//! Counted from the tape when an excerpt is made, never while a cell prints; of a long output a sample is
//! read and the counts are scaled. Excerpts call it.

use std::{collections::HashMap, io, iter::Peekable, ops::ControlFlow, str::Chars};

use super::{
    Stream, Which,
    tape::{View, to_usize},
};

/// Up to this much is read whole.
const WHOLE_BYTES: u64 = 1024 * 1024;
/// Of a longer one, this many blocks at even distances.
const SAMPLE_BLOCKS: u64 = 32;
const SAMPLE_BLOCK_BYTES: u64 = 16 * 1024;
/// Later strangers are not counted; what repeats has come before.
const MAX_DISTINCT: usize = 4096;
const MAX_LINE_BYTES: usize = 1024;
const MAX_PATTERN_CHARS: usize = 160;
const TOP: usize = 5;

/// A line that came more than once, with `#` for every number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    pub pattern: String,
    pub count: u64,
    /// The count was scaled up from a sample.
    pub about: bool,
}

#[derive(Debug, Default)]
pub(super) struct Patterns {
    /// By pattern, for stdout and stderr.
    counts: HashMap<String, [u64; 2]>,
    lines: [u64; 2],
    sampled_bytes: u64,
    all_bytes: u64,
    /// Of each stream: the line that is not complete yet, and whether its beginning was missed.
    open: [OpenLine; 2],
    scratch: String,
}

#[derive(Debug, Default)]
struct OpenLine {
    text: String,
    headless: bool,
}

impl Patterns {
    pub(super) fn of(view: &View) -> io::Result<Self> {
        let mut patterns = Patterns { all_bytes: view.end(), ..Patterns::default() };
        if view.end() <= WHOLE_BYTES && view.is_whole() {
            view.forward(Which::Merged, 0, |stream, text, _| {
                patterns.feed(stream, text);
                ControlFlow::Continue(())
            })?;
            patterns.end_block();
            patterns.sampled_bytes = patterns.all_bytes;
            return Ok(patterns);
        }
        let stored = view.kept_len.max(SAMPLE_BLOCK_BYTES);
        for block in 0..SAMPLE_BLOCKS {
            let start = (stored - SAMPLE_BLOCK_BYTES) * block / (SAMPLE_BLOCKS - 1);
            patterns.begin_block(start > 0);
            let mut room = SAMPLE_BLOCK_BYTES;
            view.forward(Which::Merged, start, |stream, text, _| {
                let text = &text[..text.floor_char_boundary(to_usize(room))];
                patterns.feed(stream, text);
                patterns.sampled_bytes += text.len() as u64;
                room = room.saturating_sub(text.len() as u64 + 1);
                if room == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        Ok(patterns)
    }

    /// The commonest patterns, commonest first.
    pub(super) fn top(&self, which: Which) -> Vec<Pattern> {
        let pick = |counts: &[u64; 2]| match which {
            Which::Merged => counts[0] + counts[1],
            Which::Only(Stream::Stdout) => counts[0],
            Which::Only(Stream::Stderr) => counts[1],
        };
        let about = self.sampled_bytes < self.all_bytes;
        // Less than a hundredth of the lines says nothing about them.
        let least = (pick(&self.lines) / 100).max(2);
        let mut top: Vec<Pattern> = self
            .counts
            .iter()
            .map(|(pattern, counts)| (pattern, pick(counts)))
            .filter(|(_, count)| *count >= least)
            .map(|(pattern, count)| Pattern {
                pattern: pattern.clone(),
                count: if about { self.scale(count) } else { count },
                about,
            })
            .collect();
        top.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.pattern.cmp(&b.pattern)));
        top.truncate(TOP);
        top
    }

    fn scale(&self, count: u64) -> u64 {
        let all = u128::from(count) * u128::from(self.all_bytes);
        let scaled = all / u128::from(self.sampled_bytes.max(1));
        round(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    fn begin_block(&mut self, headless: bool) {
        for open in &mut self.open {
            open.text.clear();
            open.headless = headless;
        }
    }

    fn end_block(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.count_line(stream);
        }
    }

    fn feed(&mut self, stream: Stream, text: &str) {
        // A carriage return ends a line too: progress bars draw themselves again and again.
        for part in text.split_inclusive(['\n', '\r']) {
            let open = &mut self.open[stream as usize];
            let room = MAX_LINE_BYTES - open.text.len();
            open.text.push_str(&part[..part.floor_char_boundary(room)]);
            if part.ends_with(['\n', '\r']) {
                self.count_line(stream);
            }
        }
    }

    fn count_line(&mut self, stream: Stream) {
        let open = &mut self.open[stream as usize];
        let headless = std::mem::take(&mut open.headless);
        if !headless && !open.text.trim().is_empty() {
            self.lines[stream as usize] += 1;
            self.scratch.clear();
            generalize(&open.text, &mut self.scratch);
            if let Some(counts) = self.counts.get_mut(&self.scratch) {
                counts[stream as usize] += 1;
            } else if self.counts.len() < MAX_DISTINCT {
                let mut counts = [0; 2];
                counts[stream as usize] = 1;
                self.counts.insert(self.scratch.clone(), counts);
            }
        }
        self.open[stream as usize].text.clear();
    }
}

/// A scaled count is known to two digits at best.
fn round(count: u64) -> u64 {
    let mut unit = 1;
    while count / unit >= 100 {
        unit *= 10;
    }
    (count + unit / 2) / unit * unit
}

/// The pattern of a line: no `[number]` in front, `#` for numbers, single spaces, at most 160 characters.
fn generalize(line: &str, pattern: &mut String) {
    let line = without_timestamp(line.trim());
    let mut chars = line.chars().peekable();
    let mut count = 0;
    let mut last = ' ';
    while let Some(char) = chars.next() {
        let next = if char.is_whitespace() {
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            ' '
        } else if char.is_ascii_digit() {
            skip_number(char, &mut chars);
            '#'
        } else if matches!(char, '-' | '+')
            && !(last.is_alphanumeric() || last == '#')
            && chars.peek().is_some_and(char::is_ascii_digit)
        {
            // A sign belongs to its number.
            continue;
        } else {
            char
        };
        // A bar drawn with `#` folds as well, whatever its length.
        if next == '#' && last == '#' {
            continue;
        }
        pattern.push(next);
        last = next;
        count += 1;
        if count == MAX_PATTERN_CHARS {
            return;
        }
    }
}

/// The rest of a number: digits, then maybe an exponent; or an address such as `0x7f3a`.
fn skip_number(first: char, chars: &mut Peekable<Chars<'_>>) {
    if first == '0' && chars.next_if_eq(&'x').is_some() {
        while chars.next_if(char::is_ascii_hexdigit).is_some() {}
        return;
    }
    while chars.next_if(|c| c.is_ascii_digit() || matches!(c, '.' | '_')).is_some() {}
    let mut ahead = chars.clone();
    if ahead.next_if_eq(&'e').is_some() {
        ahead.next_if(|c| matches!(c, '-' | '+'));
        if ahead.peek().is_some_and(char::is_ascii_digit) {
            while ahead.next_if(char::is_ascii_digit).is_some() {}
            *chars = ahead;
        }
    }
}

fn without_timestamp(line: &str) -> &str {
    let Some((stamp, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) else {
        return line;
    };
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ':' | '-' | '+' | ' ');
    if stamp.chars().all(is_number) && !rest.is_empty() { rest.trim_start() } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spacing_do_not_make_a_line_different() {
        fn check(line: &str, expect: &str) {
            let mut pattern = String::new();
            generalize(line, &mut pattern);
            assert_eq!(pattern, expect, "{line:?}");
        }
        check("step 17 loss 0.31", "step # loss #");
        check("step 18  loss\t-1.30\n", "step # loss #");
        check("[12.5] ready", "ready");
        check("[12.5]", "[#]");
        check("[info] 3 of 4", "[info] # of #");
        check("2026-01-02 03:04:05,678 GET /a/7", "#-#-# #:#:#,# GET /a/#");
        check("  12%|###   | 3/25 [00:01<00:07]", "#%|# | #/# [#:#<#:#]");
        check("lr 1e-05 at <obj 0x7f3a2b>, 5 eggs", "lr # at <obj #>, # eggs");
        check("plain", "plain");
        check("é 5 ü", "é # ü");
        check(&"x".repeat(500), &"x".repeat(160));
    }

    #[test]
    fn a_scaled_count_does_not_pretend_to_be_exact() {
        assert_eq!(round(7), 7);
        assert_eq!(round(99), 99);
        assert_eq!(round(12_345), 12_000);
        assert_eq!(round(999), 1000);
    }
}
