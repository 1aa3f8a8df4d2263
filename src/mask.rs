//! Takes secrets out of what is kept: the values of things that are named like secrets, tokens known by their shape, and our own.
//!
//! The journal calls it for code, results and output, the audit record for excerpts, the log for its lines. What a session holds and
//! what callers are answered is never touched. Text is read as Python would read it, roughly: a literal after `password =`, in
//! `{"password": …}` or in `["--password", …]`. Code stays code: a masked literal is still a literal, whose value is [`MARK`].

mod name;

use std::{
    cell::Cell,
    sync::{
        RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use name::{Strength, could_be, strength};

/// What stands where a secret stood.
pub const MARK: &str = "***masked***";
/// Literals within literals that are looked into.
const MAX_DEPTH: usize = 3;
const MAX_NAME_BYTES: usize = 100;
/// Own tokens that are remembered, also after they were rotated.
const MAX_HIDDEN: usize = 16;

/// Begin of a token of some well-known kind, and how many characters of its alphabet follow at least.
const SHAPES: &[(&str, usize)] = &[
    ("AIza", 30),
    ("AKIA", 16),
    ("ASIA", 16),
    ("eyJ", 40),
    ("gho_", 30),
    ("ghp_", 30),
    ("ghs_", 30),
    ("ghu_", 30),
    ("github_pat_", 30),
    ("glpat-", 20),
    ("hf_", 30),
    ("npm_", 30),
    ("pylair_", 40),
    ("pypi-", 40),
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("xoxb-", 20),
    ("xoxp-", 20),
];

/// How unquoted words are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Python: they are expressions.
    Code,
    /// Output, logs, commands: they may be values.
    Text,
}

static HIDDEN: RwLock<Vec<String>> = RwLock::new(Vec::new());
static ANY_HIDDEN: AtomicBool = AtomicBool::new(false);

/// From now on this very text is masked wherever it turns up.
pub fn hide(secret: &str) {
    let mut hidden = HIDDEN.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if secret.len() >= 16 && !hidden.iter().any(|known| known == secret) {
        if hidden.len() == MAX_HIDDEN {
            hidden.remove(0);
        }
        hidden.push(secret.to_owned());
        ANY_HIDDEN.store(true, Ordering::Release);
    }
}

/// The text without its secrets, if it has any.
pub fn masked(text: &str, reading: Reading) -> Option<String> {
    let mut spans = Vec::new();
    if ANY_HIDDEN.load(Ordering::Acquire) {
        let hidden = HIDDEN.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        for secret in hidden.iter() {
            spans.extend(text.match_indices(secret.as_str()).map(|(at, found)| (at, at + found.len())));
        }
    }
    Scanner::new(text.as_bytes(), &mut spans).scan(0, text.len(), reading, 0);
    if spans.is_empty() {
        return None;
    }
    spans.sort_unstable();
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    for (start, end) in spans {
        if start >= at {
            result.push_str(&text[at..start]);
            result.push_str(MARK);
        }
        at = at.max(end);
    }
    result.push_str(&text[at..]);
    Some(result)
}

/// The same in place.
pub fn mask(text: &mut String, reading: Reading) {
    if let Some(masked) = masked(text, reading) {
        *text = masked;
    }
}

/// The value of a variable as it may be shown.
pub fn value<'a>(name: &str, value: &'a str) -> &'a str {
    if strength(name).is_some() && !value.is_empty() { MARK } else { value }
}

struct Scanner<'a> {
    text: &'a [u8],
    spans: &'a mut Vec<(usize, usize)>,
    /// Up to where no literal ends, by its kind of quote: what was read in vain is not read again for every quote in it.
    unclosed: [Cell<usize>; 4],
    /// Up to where there is no digit in what could be a token.
    digitless: Cell<usize>,
}

/// A string literal: where its content is and where it ends.
struct Literal {
    start: usize,
    end: usize,
    next: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a [u8], spans: &'a mut Vec<(usize, usize)>) -> Self {
        Self { text, spans, unclosed: Default::default(), digitless: Cell::default() }
    }

    fn scan(&mut self, from: usize, to: usize, reading: Reading, depth: usize) {
        let mut at = from;
        let mut reading_now = reading;
        let mut line_start = true;
        while at < to {
            let byte = self.text[at];
            match byte {
                b'\n' => {
                    reading_now = reading;
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
    }

    fn starts(&self, at: usize, to: usize, with: &[u8]) -> bool {
        self.text[at..to].starts_with(with)
    }

    /// The literal whose quote is at `at`. One that does not end is none: an apostrophe, most likely.
    fn literal(&self, at: usize, to: usize) -> Option<Literal> {
        let quote = self.text[at];
        // Text whose quotes are escaped, such as JSON within a literal.
        if at > 0 && self.text[at - 1].is_ascii_alphanumeric() && !self.is_prefixed(at) {
            return None;
        }
        let is_triple = self.starts(at, to, &[quote; 3]);
        let start = at + if is_triple { 3 } else { 1 };
        let unclosed = &self.unclosed[usize::from(quote == b'"') + 2 * usize::from(is_triple)];
        if start <= unclosed.get() {
            return None;
        }
        let mut end = start;
        while end < to {
            match self.text[end] {
                b'\\' => end += 1,
                b'\n' if !is_triple => break,
                byte if byte == quote && !is_triple => return Some(Literal { start, end, next: end + 1 }),
                byte if byte == quote && self.starts(end, to, &[quote; 3]) => {
                    return Some(Literal { start, end, next: end + 3 });
                }
                _ => {}
            }
            end += 1;
        }
        unclosed.set(end.min(to));
        None
    }

    /// Whether the letters before a quote are a literal's prefix.
    fn is_prefixed(&self, quote: usize) -> bool {
        let before = &self.text[..quote];
        let letters = before.iter().rev().take_while(|byte| is_word(**byte)).count();
        letters <= 2 && before[quote - letters..].iter().all(|byte| b"rbfuRBFU".contains(byte))
    }

    /// A literal that no name came before: it may be a name itself, and may hold anything.
    fn take_literal(&mut self, literal: &Literal, to: usize, depth: usize) -> usize {
        let content = &self.text[literal.start..literal.end];
        let is_flag = content.starts_with(b"--");
        let name = if content.len() <= MAX_NAME_BYTES { std::str::from_utf8(content).unwrap_or_default() } else { "" };
        let name = name.trim_start_matches('-');
        let is_name = could_be(name.as_bytes()) && name.bytes().all(|byte| is_word(byte) || byte == b'-');
        if let Some(strength) = is_name.then(|| strength(name)).flatten() {
            let mut at = self.skip_spaces(literal.next, to);
            if at < to && self.text[at] == b']' {
                at = self.skip_spaces(at + 1, to);
            }
            let (separator, after) = self.separator(at, to);
            let sure = match separator {
                b'=' | b':' => Some(strength),
                b',' if is_flag => Some(Strength::Strong),
                b',' => Some(Strength::Random),
                _ => None,
            };
            if let Some(sure) = sure
                && let Some(value) = self.literal_after(after, to)
            {
                return self.take_value(&value, sure, depth);
            }
        } else if depth < MAX_DEPTH {
            self.scan(literal.start, literal.end, Reading::Text, depth + 1);
        }
        literal.next
    }

    /// The value of something named like a secret.
    fn take_value(&mut self, value: &Literal, strength: Strength, depth: usize) -> usize {
        let content = &self.text[value.start..value.end];
        if strength.takes(content) && !is_placeholder(content) {
            self.spans.push((value.start, value.end));
        } else if depth < MAX_DEPTH {
            self.scan(value.start, value.end, Reading::Text, depth + 1);
        }
        value.next
    }

    fn take_word(&mut self, at: usize, to: usize, reading: Reading, depth: usize) -> usize {
        if let Some(end) = self.shape(at, to) {
            self.spans.push((at, end));
            return end;
        }
        let mut end = at;
        while end < to && (is_word(self.text[end]) || self.is_dash_within(end, to)) {
            end += 1;
        }
        let word = &self.text[at..end];
        if end < to && (self.text[end] == b'"' || self.text[end] == b'\'') && self.is_prefixed(end) {
            return end;
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
            if let Some(value) = self.literal_after(after, to) {
                return self.take_value(&value, strength, depth);
            }
            return self.take_bare(at, end, (separator, after), to, (strength, reading));
        }
        let is_flag = at >= 2 && &self.text[at - 2..at] == b"--";
        if is_flag && reading == Reading::Text && self.text.get(end) == Some(&b' ') {
            let start = self.skip_spaces(end, to);
            return self.take_run(start, to, Strength::Strong);
        }
        end
    }

    /// A value without quotes: of a flag, in a command, in a header.
    fn take_bare(
        &mut self,
        name: usize,
        end: usize,
        (separator, after): (u8, usize),
        to: usize,
        (strength, reading): (Strength, Reading),
    ) -> usize {
        let is_tight = separator == b'=' && self.text[end] == b'=' && self.skip_spaces(end + 1, to) == end + 1;
        let word = &self.text[name..end];
        let is_header =
            word.eq_ignore_ascii_case(b"authorization") || word.eq_ignore_ascii_case(b"proxy-authorization");
        let is_cookie = word.eq_ignore_ascii_case(b"cookie") || word.eq_ignore_ascii_case(b"set-cookie");
        match (reading, separator) {
            (Reading::Text, b':') if is_header => {
                let start = self.skip_spaces(after, to);
                let scheme = start + self.text[start..to].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
                let has_scheme = self.text.get(scheme) == Some(&b' ');
                self.take_run(if has_scheme { scheme + 1 } else { start }, to, Strength::Strong)
            }
            (Reading::Text, b':') if is_cookie => {
                let start = self.skip_spaces(after, to);
                let length = self.text[start..to].iter().take_while(|byte| !b"\r\n".contains(byte)).count();
                let value = &self.text[start..start + length];
                if length >= 8 && value.contains(&b'=') && !is_placeholder(value) {
                    self.spans.push((start, start + length));
                }
                start + length
            }
            (Reading::Text, b':') => self.take_run(self.skip_spaces(after, to), to, Strength::Weak.min(strength)),
            (Reading::Text, _) if is_tight => self.take_run(after, to, strength),
            (Reading::Code, b'=') if is_tight => self.take_run(after, to, Strength::Random),
            _ => end,
        }
    }

    /// Characters up to the next space, quote or delimiter.
    fn take_run(&mut self, start: usize, to: usize, strength: Strength) -> usize {
        let is_part = |byte: &&u8| !byte.is_ascii_whitespace() && !b"\"'&;,)]}>".contains(*byte);
        let end = start + self.text[start..to].iter().take_while(is_part).count();
        let run = &self.text[start..end];
        let is_expression = self.text.get(end).is_some_and(|byte| b"([".contains(byte)) || run.contains(&b'(');
        if strength.takes(run)
            && !is_placeholder(run)
            && !is_expression
            && !run.starts_with(b"-")
            && !run.starts_with(b"{")
        {
            self.spans.push((start, end));
        }
        end
    }

    fn take_scheme(&mut self, end: usize, to: usize) -> usize {
        if self.text.get(end) == Some(&b' ') && end + 1 < to { self.take_run(end + 1, to, Strength::Weak) } else { end }
    }

    /// `user:password@` of an address.
    fn take_address(&mut self, start: usize, to: usize) -> usize {
        let is_part = |byte: &&u8| !byte.is_ascii_whitespace() && !b"\"'/?#<>".contains(*byte);
        let end = start + self.text[start..to].iter().take_while(is_part).count();
        let authority = &self.text[start..end];
        if let Some(host) = authority.iter().rposition(|byte| *byte == b'@')
            && let Some(colon) = authority[..host].iter().position(|byte| *byte == b':')
            && colon + 1 < host
            && !is_placeholder(&authority[colon + 1..host])
        {
            self.spans.push((start + colon + 1, start + host));
        }
        end
    }

    /// A private key in PEM.
    fn take_key(&mut self, at: usize, to: usize) -> usize {
        let to_head = to.min(at + MAX_NAME_BYTES);
        let head = self.text[at..to_head].iter().position(|byte| *byte == b'\n').map_or(to_head, |length| at + length);
        let head_has = |words: &[u8]| self.text[at..head].windows(words.len()).any(|part| part == words);
        if !head_has(b"PRIVATE KEY-----") {
            return at + 1;
        }
        let body = at + self.text[at..head].windows(16).position(|part| part == b"PRIVATE KEY-----").unwrap_or(0) + 16;
        let tail =
            self.text[body..to].windows(9).position(|part| part == b"-----END ").map_or(to, |length| body + length);
        self.spans.push((body, tail));
        tail
    }

    fn shape(&self, at: usize, to: usize) -> Option<usize> {
        // Most words begin like none of them, and this is asked for every word.
        if !b"Aeghnpsx".contains(&self.text[at]) {
            return None;
        }
        let (prefix, least) = SHAPES.iter().find(|(prefix, _)| self.starts(at, to, prefix.as_bytes()))?;
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_-.".contains(*byte);
        let start = at + prefix.len();
        if start < self.digitless.get() {
            return None;
        }
        let length = self.text[start..to].iter().take_while(is_part).count();
        if !self.text[start..start + length].iter().any(u8::is_ascii_digit) {
            self.digitless.set(start + length);
            return None;
        }
        (length >= *least).then_some(start + length)
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

    /// Behind `: str =`, if that is what is here.
    fn after_annotation(&self, at: usize, to: usize) -> usize {
        let is_type = |byte: &&u8| is_word(**byte) || b" .[]|,".contains(*byte);
        let end = at + self.text[at..to].iter().take_while(is_type).count();
        if self.text.get(end) == Some(&b'=') && end < to { end + 1 } else { at }
    }

    /// The literal that comes next, past spaces, an opening parenthesis and a prefix.
    fn literal_after(&self, at: usize, to: usize) -> Option<Literal> {
        let mut at = self.skip_spaces(at, to);
        if at < to && self.text[at] == b'(' {
            at += 1 + self.text[at + 1..to].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        }
        let letters = self.text[at..to].iter().take(2).take_while(|byte| b"rbfuRBFU".contains(byte)).count();
        let quote = at + letters;
        (quote < to && b"\"'".contains(&self.text[quote])).then(|| self.literal(quote, to))?
    }

    fn skip_spaces(&self, at: usize, to: usize) -> usize {
        at + self.text[at..to].iter().take_while(|byte| **byte == b' ' || **byte == b'\t').count()
    }

    /// A dash that belongs to a name such as `api-key`.
    fn is_dash_within(&self, at: usize, to: usize) -> bool {
        self.text[at] == b'-' && at + 1 < to && self.text[at + 1].is_ascii_alphabetic()
    }
}

/// A table, because this is asked for nearly every byte.
fn is_word(byte: u8) -> bool {
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

/// What stands for a value that is elsewhere: `{password}`, `%s`, `$PASSWORD`, `<your key>`, `...`.
fn is_placeholder(value: &[u8]) -> bool {
    match value {
        [] | [b'{', .., b'}'] | [b'<', .., b'>'] | [b'%' | b'$', ..] => true,
        _ => value == MARK.as_bytes() || (value.len() > 2 && value.iter().all(|byte| b".*x".contains(byte))),
    }
}

#[cfg(test)]
mod tests;
