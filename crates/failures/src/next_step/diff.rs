//! Unified diffs of a few changed lines.

use std::fmt::Write as _;

const CONTEXT: usize = 3;

/// Lines of a file and what becomes of them.
pub(crate) struct Edits {
    file: String,
    /// The number of the first line, from 1.
    first: usize,
    lines: Vec<String>,
    /// Replacement of a line, and what is inserted before it; one more than there are lines.
    changed: Vec<Option<String>>,
    inserted: Vec<Vec<String>>,
    /// Whether the last line ends as the others do.
    ends: bool,
}

impl Edits {
    pub fn of(file: &str, text: &str) -> Self {
        // Other line ends than `\n` would have to stand in the diff as well.
        let lines: Vec<String> =
            text.split_inclusive('\n').map(|line| line.strip_suffix('\n').unwrap_or(line).to_owned()).collect();
        Self::new(file, 1, lines, text.is_empty() || text.ends_with('\n'))
    }

    pub fn of_lines(file: &str, first: u32, lines: &[String]) -> Self {
        Self::new(file, first as usize, lines.to_vec(), true)
    }

    fn new(file: &str, first: usize, lines: Vec<String>, ends: bool) -> Self {
        let count = lines.len();
        Self {
            file: file.to_owned(),
            first,
            lines,
            changed: vec![None; count],
            inserted: vec![Vec::new(); count + 1],
            ends,
        }
    }

    pub fn first(&self) -> usize {
        self.first
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    pub fn replace(&mut self, index: usize, line: String) {
        if self.lines[index] != line {
            self.changed[index] = Some(line);
        }
    }

    /// Before the line that is there now.
    pub fn insert(&mut self, index: usize, line: String) {
        self.inserted[index.min(self.lines.len())].push(line);
    }

    /// None if nothing was changed, and for a path that a diff cannot name.
    pub fn diff(&self) -> Option<String> {
        let touched: Vec<usize> = (0..=self.lines.len())
            .filter(|index| !self.inserted[*index].is_empty() || self.changed.get(*index).is_some_and(Option::is_some))
            .collect();
        if touched.is_empty()
            || self.file.starts_with('/')
            || self.file.contains(['\n', '\t'])
            || self.file.contains("..")
        {
            return None;
        }
        let mut text = format!("--- a/{0}\n+++ b/{0}\n", self.file);
        let mut added: isize = 0;
        let mut at = 0;
        while at < touched.len() {
            let mut last = at;
            while touched.get(last + 1).is_some_and(|next| next - touched[last] <= 2 * CONTEXT) {
                last += 1;
            }
            let begin = touched[at].saturating_sub(CONTEXT);
            let end = (touched[last] + 1 + CONTEXT).min(self.lines.len());
            added += self.hunk(begin, end, added, &mut text);
            at = last + 1;
        }
        Some(text)
    }

    /// Writes one hunk and says how many lines it adds.
    fn hunk(&self, begin: usize, end: usize, added: isize, text: &mut String) -> isize {
        let mut body = Body::default();
        for index in begin..end {
            self.inserted[index].iter().for_each(|line| body.add(line, ""));
            let line = &self.lines[index];
            let is_last = index + 1 == self.lines.len();
            let no_end = if is_last && !self.ends { NO_END } else { "" };
            match &self.changed[index] {
                Some(changed) => {
                    body.remove(line, no_end);
                    body.add(changed, no_end);
                }
                // What comes behind a last line without an end needs that end first.
                None if is_last && !self.ends && !self.inserted[self.lines.len()].is_empty() => {
                    body.remove(line, no_end);
                    body.add(line, "");
                }
                None => body.keep(line, no_end),
            }
        }
        if end == self.lines.len() {
            self.inserted[end].iter().for_each(|line| body.add(line, ""));
        }
        body.flush();
        let from = begin + self.first;
        let to = from.saturating_add_signed(added);
        // An empty side is said to be at the line before.
        let from = if body.old == 0 { from - 1 } else { from };
        let _ = write!(text, "@@ -{from},{} +{to},{} @@\n{}", body.old, body.new, body.text);
        isize::try_from(body.new).unwrap_or(0) - isize::try_from(body.old).unwrap_or(0)
    }
}

const NO_END: &str = "\\ No newline at end of file\n";

/// The lines of a hunk; what is added stands behind what is removed.
#[derive(Default)]
struct Body {
    text: String,
    added: String,
    old: usize,
    new: usize,
}

impl Body {
    fn keep(&mut self, line: &str, no_end: &str) {
        self.flush();
        let _ = write!(self.text, " {line}\n{no_end}");
        self.old += 1;
        self.new += 1;
    }

    fn remove(&mut self, line: &str, no_end: &str) {
        let _ = write!(self.text, "-{line}\n{no_end}");
        self.old += 1;
    }

    fn add(&mut self, line: &str, no_end: &str) {
        let _ = write!(self.added, "+{line}\n{no_end}");
        self.new += 1;
    }

    fn flush(&mut self) {
        self.text.push_str(&std::mem::take(&mut self.added));
    }
}
