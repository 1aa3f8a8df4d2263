//! Reads text roughly as Python would: literals, the names before them, brackets and line breaks. `value` masks what is found here.

use std::cell::Cell;

use super::{
    MAX_NAME_BYTES, Reading, command,
    name::{Strength, could_be, strength},
};

/// Maximum depth of literals within literals.
pub(super) const MAX_DEPTH: usize = 3;
/// Average number of times a byte may be read. Ordinary text needs fewer than ten; the limit stops text that was made to be
/// read again and again. The rest of such a text is masked as a whole.
pub(super) const MOST_LOOKS: usize = 64;
/// Additional reads, so that short texts never reach the limit.
pub(super) const SPARE_LOOKS: usize = 64 << 10;
/// Maximum distance between a name and its value, and between the parts of a value.
const MAX_BLANK_BYTES: usize = 4096;
/// Functions whose result is as secret as their argument.
const WRAPPERS: &[&[u8]] = &[
    b"str",
    b"bytes",
    b"bytearray",
    b"SecretStr",
    b"SecretBytes",
    b"Secret",
    b"b64decode",
    b"quote",
    b"quote_plus",
    b"dedent",
    b"textwrap.dedent",
    b"base64.b64decode",
    b"pydantic.SecretStr",
    b"urllib.parse.quote",
    b"urllib.parse.quote_plus",
];

pub(super) struct Scanner<'a> {
    pub(super) text: &'a [u8],
    pub(super) spans: &'a mut Vec<(usize, usize)>,
    /// No literal ends before this offset, by kind of quote. It keeps the scan from reading on from every quote again.
    unclosed: [Cell<usize>; 10],
    /// Possible tokens before this offset contain no digit.
    pub(super) digitless: Cell<usize>,
    /// Flags of commands before this offset have been checked.
    pub(super) commanded: Cell<usize>,
    /// Open brackets; a line break does not end an expression inside them.
    pub(super) open: usize,
    /// Number of bytes that may still be read.
    left: Cell<usize>,
}

/// A string literal: where its content is and where it ends.
pub(super) struct Literal {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) next: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8], spans: &'a mut Vec<(usize, usize)>) -> Self {
        Self {
            text,
            spans,
            unclosed: Default::default(),
            digitless: Cell::default(),
            commanded: Cell::default(),
            open: 0,
            left: Cell::new(MOST_LOOKS.saturating_mul(text.len()).saturating_add(SPARE_LOOKS)),
        }
    }

    /// Counts bytes that were read. Every loop over the text calls it.
    pub(super) fn spend(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_sub(bytes));
    }

    /// Returns the number of bytes that may still be read.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.get()
    }

    /// Counts the bytes from `at` on that satisfy a condition.
    pub(super) fn run(&self, at: usize, to: usize, is_part: impl Fn(u8) -> bool) -> usize {
        let length = self.text[at..to].iter().take_while(|byte| is_part(**byte)).count();
        self.spend(length + 1);
        length
    }

    /// Returns the first position of these words, relative to `at`.
    pub(super) fn find(&self, at: usize, to: usize, words: &[u8]) -> Option<usize> {
        let found = self.text[at..to].windows(words.len()).position(|part| part == words);
        self.spend(found.unwrap_or(to - at) + 1);
        found
    }

    /// Masks everything from here on, because unread text may contain secrets.
    fn take_rest(&mut self, at: usize, to: usize) {
        let is_within = |at: usize| at > 0 && at < self.text.len() && self.text[at] & 0xC0 == 0x80;
        let start = (0..=at).rev().find(|at| !is_within(*at)).unwrap_or(0);
        if start < to {
            self.spans.push((start, to));
        }
    }

    pub(super) fn scan(&mut self, from: usize, to: usize, reading: Reading, depth: usize) {
        let mut at = from;
        let open_before = std::mem::take(&mut self.open);
        let mut reading_now = reading;
        let mut line_start = true;
        while at < to {
            self.spend(1);
            if self.left.get() == 0 {
                self.take_rest(at, to);
                break;
            }
            let byte = self.text[at];
            match byte {
                b'\n' => {
                    // A command goes on after a backslash.
                    if at == from || self.text[at - 1] != b'\\' {
                        reading_now = reading;
                    }
                    line_start = true;
                    at += 1;
                    continue;
                }
                b' ' | b'\t' => {
                    at += 1;
                    continue;
                }
                // The rest of the line is a command or a remark, not Python.
                b'#' => reading_now = Reading::Text,
                b'\\' if at + 1 < to && b"nrt".contains(&self.text[at + 1]) => {
                    line_start = true;
                    at += 2;
                    continue;
                }
                b'(' | b'[' | b'{' => self.open += 1,
                b')' | b']' | b'}' => self.open = self.open.saturating_sub(1),
                b'!' | b'%' if line_start => reading_now = Reading::Text,
                _ => {}
            }
            line_start = false;
            at = match byte {
                b'"' | b'\'' => match self.literal(at, to) {
                    Some(literal) => self.take_literal(&literal, to, depth),
                    None => at + 1,
                },
                b':' if self.starts(at, to, b"://") => self.take_address(at + 3, to),
                b'-' if self.starts(at, to, b"-----BEGIN ") => self.take_key(at, to),
                _ if is_word(byte) => self.take_word(at, to, reading_now, depth),
                _ => at + 1,
            };
        }
        self.open = open_before;
    }

    pub(super) fn starts(&self, at: usize, to: usize, with: &[u8]) -> bool {
        self.text[at..to].starts_with(with)
    }

    /// Returns the literal whose quote is at `at`. A quote without an end is most likely an apostrophe, not a literal.
    pub(super) fn literal(&self, at: usize, to: usize) -> Option<Literal> {
        let quote = self.text[at];
        // An apostrophe.
        if at > 0 && self.text[at - 1].is_ascii_alphanumeric() && !self.is_prefixed(at) {
            return None;
        }
        // Text whose quotes are escaped, such as JSON within a literal.
        let escapes = self.text[..at].iter().rev().take(8).take_while(|byte| **byte == b'\\').count();
        if escapes > 0 {
            return self.escaped_literal(at, to, escapes);
        }
        let is_triple = self.starts(at, to, &[quote; 3]);
        let start = at + if is_triple { 3 } else { 1 };
        let unclosed = &self.unclosed[usize::from(quote == b'"') + 2 * usize::from(is_triple)];
        if start <= unclosed.get() {
            return None;
        }
        let mut end = start;
        let mut next = None;
        while end < to {
            match self.text[end] {
                b'\\' => end += 1,
                b'\n' if !is_triple => break,
                byte if byte == quote && !is_triple => next = Some(end + 1),
                byte if byte == quote && self.starts(end, to, &[quote; 3]) => next = Some(end + 3),
                _ => {}
            }
            if next.is_some() {
                break;
            }
            end += 1;
        }
        self.spend(end - start + 1);
        if next.is_none() {
            unclosed.set(end.min(to));
        }
        next.map(|next| Literal { start, end, next })
    }

    /// The same for quotes that are escaped with this number of backslashes.
    fn escaped_literal(&self, at: usize, to: usize, escapes: usize) -> Option<Literal> {
        let (quote, start) = (self.text[at], at + 1);
        let unclosed = &self.unclosed[4 + 2 * escapes.min(3) - 2 + usize::from(quote == b'"')];
        if start <= unclosed.get() {
            return None;
        }
        let (mut run, mut at) = (0, start);
        while at < to {
            match self.text[at] {
                b'\\' => run += 1,
                b'\n' => break,
                byte if byte == quote && run == escapes => {
                    self.spend(at - start + 1);
                    return Some(Literal { start, end: at - run, next: at + 1 });
                }
                _ => run = 0,
            }
            at += 1;
        }
        self.spend(at - start + 1);
        unclosed.set(at);
        None
    }

    /// Whether the letters before a quote are a literal's prefix.
    fn is_prefixed(&self, quote: usize) -> bool {
        let before = &self.text[..quote];
        let letters = before.iter().rev().take(3).take_while(|byte| is_word(**byte)).count();
        letters <= 2 && before[quote - letters..].iter().all(|byte| b"rbfuRBFU".contains(byte))
    }

    /// Handles a literal without a name before it: it may be a name itself, and may contain anything.
    fn take_literal(&mut self, literal: &Literal, to: usize, depth: usize) -> usize {
        let content = &self.text[literal.start..literal.end];
        let is_flag = content.starts_with(b"--");
        let name = if content.len() <= MAX_NAME_BYTES { std::str::from_utf8(content).unwrap_or_default() } else { "" };
        let name = name.trim_start_matches('-');
        self.spend(name.len());
        let is_name = could_be(name.as_bytes()) && name.bytes().all(|byte| is_word(byte) || byte == b'-');
        if let Some(strength) = is_name.then(|| strength(name)).flatten() {
            let mut at = self.skip_blank(literal.next, to, self.open > 0);
            if at < to && self.text[at] == b']' {
                at = self.skip_spaces(at + 1, to);
            }
            let (separator, after) = self.separator(at, to);
            let sure = match separator {
                b'=' | b':' => Some(strength),
                b',' if is_flag => Some(Strength::Strong),
                b',' if self.gives_a_value(literal.start, after, to) => Some(strength),
                b',' => Some(Strength::Random),
                _ => None,
            };
            if let Some(sure) = sure
                && let Some(next) = self.take_values(after, to, sure, depth)
            {
                return next;
            }
        } else if depth < MAX_DEPTH {
            self.spend(content.len());
            let flags = command::flags(
                content.rsplit(|byte| *byte == b'/').next().unwrap_or_default(),
                &self.text[literal.next..to],
            );
            if !flags.is_empty() {
                self.take_arguments(literal.next, to, flags);
            }
            if self.opens_key(literal) {
                return self.take_key_parts(literal, to);
            }
            self.scan(literal.start, literal.end, Reading::Text, depth + 1);
        }
        literal.next
    }

    fn take_word(&mut self, at: usize, to: usize, reading: Reading, depth: usize) -> usize {
        if let Some(end) = self.shape(at, to) {
            self.spans.push((at, end));
            return end;
        }
        let mut end = at;
        while end < to && (is_word(self.text[end]) || self.is_dash_within(end, to)) {
            end += 1;
            // pytest joins the parameters of a test like this.
            if self.text[end - 1] == b'-' && self.shape(end, to).is_some() {
                return end;
            }
        }
        self.spend(end - at);
        let word = &self.text[at..end];
        if end < to && (self.text[end] == b'"' || self.text[end] == b'\'') && self.is_prefixed(end) {
            return end;
        }
        if reading == Reading::Text && at >= self.commanded.get() {
            let flags = command::flags(word, &self.text[end..to]);
            if !flags.is_empty() {
                self.take_shell_arguments(end, to, flags);
                return end;
            }
        }
        if word.eq_ignore_ascii_case(b"bearer") || word.eq_ignore_ascii_case(b"basic") {
            return self.take_scheme(end, to);
        }
        let Some(strength) = could_be(word).then(|| std::str::from_utf8(word).ok().and_then(strength)).flatten() else {
            return end;
        };
        let (separator, mut after) = self.separator(self.skip_spaces(end, to), to);
        if separator == b':' && reading == Reading::Code {
            // An annotation may stand between the name and its value.
            after = self.after_annotation(after, to);
        }
        if matches!(separator, b'=' | b':') {
            if let Some(next) = self.take_values(after, to, strength, depth) {
                return next;
            }
            return self.take_bare(at, end, (separator, after), to, (strength, reading));
        }
        if self.is_flag(at)
            && reading == Reading::Text
            && self.text.get(end).is_some_and(|byte| b" \t\\".contains(byte))
        {
            let start = self.skip_blank(end, to, false);
            if let Some(next) = self.take_values(start, to, Strength::Strong, depth) {
                return next;
            }
            return self.take_run(start, to, Strength::Strong);
        }
        end
    }

    /// `=`, `==`, `!=`, `:=`, `+=`, `:` or `,`, as its last but one kind, and where it ends; 0 for none.
    fn separator(&self, at: usize, to: usize) -> (u8, usize) {
        let rest = &self.text[at..to];
        match rest {
            [b'=' | b'!' | b':' | b'+', b'=', ..] | [b'=', b'>', ..] => (b'=', at + 2),
            [b'=', ..] => (b'=', at + 1),
            [b':', ..] => (b':', at + 1),
            [b',', ..] => (b',', at + 1),
            _ => (0, at),
        }
    }

    /// Returns the position after an annotation such as `: str =`, if there is one here.
    fn after_annotation(&self, at: usize, to: usize) -> usize {
        let end = at + self.run(at, to, |byte| is_word(byte) || b" .[]|,".contains(&byte));
        if self.text.get(end) == Some(&b'=') && end < to { end + 1 } else { at }
    }

    /// The literal that comes next.
    pub(super) fn literal_after(&self, at: usize, to: usize) -> Option<Literal> {
        self.literal(self.quote_after(at, to)?.0, to)
    }

    /// The quote that comes next, past spaces, opening parentheses, what is called around a value, and a prefix; and whether that
    /// is within brackets.
    pub(super) fn quote_after(&self, at: usize, to: usize) -> Option<(usize, bool)> {
        let mut is_within = self.open > 0;
        let mut at = self.skip_blank(at, to, is_within);
        for _ in 0..4 {
            let rest = &self.text[at..to];
            let length = rest.iter().take(32).take_while(|byte| is_word(**byte) || **byte == b'.').count();
            let is_wrapped = length == 0 || WRAPPERS.contains(&&rest[..length]);
            if rest.get(length) != Some(&b'(') || !is_wrapped {
                break;
            }
            is_within = true;
            at = self.skip_blank(at + length + 1, to, true);
        }
        let letters = self.text[at..to].iter().take(2).take_while(|byte| b"rbfuRBFU".contains(byte)).count();
        let escapes = self.text[at + letters..to].iter().take(8).take_while(|byte| **byte == b'\\').count();
        let quote = at + letters + escapes;
        (quote < to && b"\"'".contains(&self.text[quote])).then_some((quote, is_within))
    }

    /// Skips spaces and line breaks that end no statement: after a backslash, and within brackets, where comments are skipped too.
    pub(super) fn skip_blank(&self, from: usize, to: usize, is_within: bool) -> usize {
        let to = to.min(from + MAX_BLANK_BYTES);
        let mut at = from;
        while at < to {
            at += match &self.text[at..to] {
                [b' ' | b'\t', ..] => 1,
                [b'\\', b'\n', ..] => 2,
                [b'\\', b'\r', b'\n', ..] => 3,
                [b'\n' | b'\r', ..] if is_within => 1,
                // A line break as it is escaped in a literal.
                [b'\\', b'n' | b'r' | b't', ..] if is_within => 2,
                [b'#', ..] if is_within => self.run(at, to, |byte| byte != b'\n'),
                _ => break,
            };
        }
        self.spend(at - from);
        at
    }

    pub(super) fn skip_spaces(&self, at: usize, to: usize) -> usize {
        at + self.run(at, to, |byte| byte == b' ' || byte == b'\t')
    }

    /// A dash that belongs to a name such as `api-key`.
    fn is_dash_within(&self, at: usize, to: usize) -> bool {
        self.text[at] == b'-' && at + 1 < to && self.text[at + 1].is_ascii_alphabetic()
    }
}

/// A table, because nearly every byte is checked.
pub(super) fn is_word(byte: u8) -> bool {
    const WORD: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            table[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_';
            byte += 1;
        }
        table
    };
    WORD[usize::from(byte)]
}
