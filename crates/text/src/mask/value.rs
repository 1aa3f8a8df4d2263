//! Values of names that sound like secrets, and tokens known by their shape: where each ends, and whether it is a secret.

use super::{
    MARK, MAX_NAME_BYTES, Reading,
    name::Strength,
    scan::{Literal, MAX_DEPTH, Scanner, is_word},
};

/// Maximum number of literals that one private key may span.
const MAX_KEY_PARTS: usize = 200;
/// Maximum length of an address before its host.
const MAX_ADDRESS_BYTES: usize = 256;
/// Functions that assign a value to the name in their first argument.
const SETTERS: &[&[u8]] =
    &[b"set", b"setattr", b"setenv", b"setdefault", b"putenv", b"__setitem__", b"add_header", b"set_key"];
/// Prefixes of well-known tokens, each with the minimum number of characters that follow.
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

impl Scanner<'_> {
    /// Whether a name is followed by a comma and its value, as in `setattr(x, "password", …)` and in the pair `("password", …)`.
    pub(super) fn gives_a_value(&self, name: usize, after: usize, to: usize) -> bool {
        let from = name.saturating_sub(MAX_NAME_BYTES);
        let Some(paren) = self.text[from..name].iter().rposition(|byte| *byte == b'(').map(|at| from + at) else {
            return false;
        };
        let letters = self.text[..paren].iter().rev().take(32).take_while(|byte| is_word(**byte)).count();
        let called = &self.text[paren - letters..paren];
        if letters > 0 {
            return SETTERS.contains(&called);
        }
        let is_first =
            self.text[paren + 1..name - 1].iter().all(|byte| byte.is_ascii_whitespace() || b"bru\\".contains(byte));
        self.spend(name - from);
        let value = self.literal_after(after, to);
        is_first && value.is_some_and(|value| self.text.get(self.skip_blank(value.next, to, true)) == Some(&b')'))
    }

    /// Masks the value of a secret name, which may span several literals. Returns where it ends, if there is one.
    pub(super) fn take_values(&mut self, at: usize, to: usize, strength: Strength, depth: usize) -> Option<usize> {
        let (quote, is_within) = self.quote_after(at, to)?;
        let Some(mut value) = self.literal(quote, to) else { return self.take_unclosed(quote, to, strength) };
        loop {
            let next = self.take_value(&value, strength, depth);
            let mut at = self.skip_blank(next, to, is_within);
            if at < to && self.text[at] == b'+' {
                at = self.skip_blank(at + 1, to, is_within);
            }
            let letters = self.text[at..to].iter().take(2).take_while(|byte| b"rbfuRBFU".contains(byte)).count();
            let quote = at + letters;
            if quote == next || quote >= to || !b"\"'".contains(&self.text[quote]) {
                return Some(next);
            }
            let Some(more) = self.literal(quote, to) else { return Some(next) };
            // The next key or a statement begins here.
            let follows = self.skip_blank(more.next, to, is_within);
            if self.text.get(follows) == Some(&b':') {
                return Some(next);
            }
            value = more;
        }
    }

    /// A value that is cut off before its end.
    pub(super) fn take_unclosed(&mut self, quote: usize, to: usize, strength: Strength) -> Option<usize> {
        let is_triple = self.starts(quote, to, &[self.text[quote]; 3]);
        let start = quote + if is_triple { 3 } else { 1 };
        let length = if is_triple { to - start } else { self.run(start, to, |byte| byte != b'\n') };
        let content = &self.text[start..start + length];
        self.spend(length);
        if !strength.takes(content) || is_placeholder(content) {
            return None;
        }
        self.spans.push((start, start + length));
        Some(start + length)
    }

    /// Whether a literal starts a private key whose end is in the literals that follow.
    pub(super) fn opens_key(&self, literal: &Literal) -> bool {
        let content = &self.text[literal.start..literal.end];
        content.starts_with(b"-----BEGIN ")
            && content.len() <= 4 * MAX_NAME_BYTES
            && content.windows(16).any(|part| part == b"PRIVATE KEY-----")
            && !content.windows(9).any(|part| part == b"-----END ")
    }

    pub(super) fn take_key_parts(&mut self, head: &Literal, to: usize) -> usize {
        self.take_key(head.start, head.end);
        let mut next = head.next;
        for _ in 0..MAX_KEY_PARTS {
            let mut at = self.skip_blank(next, to, true);
            if at < to && b"+,".contains(&self.text[at]) {
                at = self.skip_blank(at + 1, to, true);
            }
            let letters = self.text[at..to].iter().take(2).take_while(|byte| b"rbfuRBFU".contains(byte)).count();
            let quote = at + letters;
            if quote >= to || !b"\"'".contains(&self.text[quote]) {
                break;
            }
            let Some(part) = self.literal(quote, to) else { break };
            let content = &self.text[part.start..part.end];
            next = part.next;
            self.spend(content.len());
            if let Some(end) = content.windows(9).position(|part| part == b"-----END ") {
                if end > 0 {
                    self.spans.push((part.start, part.start + end));
                }
                break;
            }
            if !content.is_empty() {
                self.spans.push((part.start, part.end));
            }
        }
        next
    }

    /// The value of something named like a secret.
    pub(super) fn take_value(&mut self, value: &Literal, strength: Strength, depth: usize) -> usize {
        let content = &self.text[value.start..value.end];
        self.spend(content.len());
        if strength.takes(content) && !is_placeholder(content) {
            self.spans.push((value.start, value.end));
        } else if depth < MAX_DEPTH {
            self.scan(value.start, value.end, Reading::Text, depth + 1);
        }
        value.next
    }

    pub(super) fn is_flag(&self, name: usize) -> bool {
        name >= 2 && &self.text[name - 2..name] == b"--"
    }

    /// Whether a line begins with this name, as in a file of settings.
    pub(super) fn begins_line(&self, name: usize) -> bool {
        let from = name.saturating_sub(16);
        let before = &self.text[from..name];
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if begin == 0 && from > 0 && before.iter().any(|byte| !b" \t".contains(byte)) {
            return before.ends_with(b"\\n");
        }
        let before = before[begin..].trim_ascii();
        before.is_empty() || [&b"export"[..], b"set", b"ENV", b"-", b"\\n"].contains(&before)
    }

    /// A line without the comment at its end.
    pub(super) fn rest_of_line(&self, start: usize, to: usize) -> usize {
        let rest = &self.text[start..to];
        let ends = |at: usize| rest[at] == b'\n' || rest[at..].starts_with(b"\\n") || rest[at..].starts_with(b" #");
        let length = (0..rest.len()).find(|at| ends(*at)).unwrap_or(rest.len());
        self.spend(length + 1);
        start + rest[..length].trim_ascii_end().len()
    }

    /// A value without quotes: of a flag, in a command, in a header.
    pub(super) fn take_bare(
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
                let scheme = start + self.run(start, to, |byte| byte.is_ascii_alphabetic());
                let has_scheme = scheme > start && self.text.get(scheme) == Some(&b' ');
                let simple = [&b"bearer"[..], b"basic", b"token"];
                if has_scheme && !simple.iter().any(|kind| self.text[start..scheme].eq_ignore_ascii_case(kind)) {
                    // Commas separate its parts.
                    let end = scheme + 1 + self.run(scheme + 1, to, |byte| !b"\r\n'".contains(&byte));
                    if self.text[scheme..end].contains(&b'=') {
                        self.spans.push((scheme + 1, end));
                        return end;
                    }
                }
                self.take_run(if has_scheme { scheme + 1 } else { start }, to, Strength::Strong)
            }
            (Reading::Text, b':') if is_cookie => {
                let start = self.skip_spaces(after, to);
                let length = self.run(start, to, |byte| !b"\r\n".contains(&byte));
                let value = &self.text[start..start + length];
                if length >= 8 && value.contains(&b'=') && !is_placeholder(value) {
                    self.spans.push((start, start + length));
                }
                start + length
            }
            (Reading::Text, b':' | b'=') if strength == Strength::Strong && !is_tight && self.begins_line(name) => {
                let start = self.skip_spaces(after, to);
                let end = self.rest_of_line(start, to);
                // One word: the words after it describe the value.
                if self.text[start..end].iter().any(u8::is_ascii_whitespace) || is_constant(&self.text[start..end]) {
                    return end.max(after);
                }
                self.take_run(start, to, Strength::Strong)
            }
            (Reading::Text, b'=') if is_tight && self.is_flag(name) => self.take_run(after, to, Strength::Strong),
            (Reading::Text, b':') => self.take_run(self.skip_spaces(after, to), to, Strength::Weak.min(strength)),
            (Reading::Text, _) if is_tight => self.take_run(after, to, strength),
            (Reading::Code, b'=') if is_tight => self.take_run(after, to, Strength::Random),
            _ => end,
        }
    }

    /// Characters up to the next space, quote or delimiter.
    pub(super) fn take_run(&mut self, start: usize, to: usize, strength: Strength) -> usize {
        let is_part = |byte: u8| !byte.is_ascii_whitespace() && !b"\"'&;,)]}>".contains(&byte);
        let mut end = start;
        // Up to an escaped line break, and without an escaped quote.
        while end < to && is_part(self.text[end]) && !matches!(self.text[end..to], [b'\\', b'n' | b'r', ..]) {
            end += 1;
        }
        self.spend(end - start + 1);
        while end > start && self.text[end - 1] == b'\\' {
            end -= 1;
        }
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

    pub(super) fn take_scheme(&mut self, end: usize, to: usize) -> usize {
        if self.text.get(end) == Some(&b' ') && end + 1 < to { self.take_run(end + 1, to, Strength::Weak) } else { end }
    }

    /// `user:password@` of an address.
    pub(super) fn take_address(&mut self, start: usize, to: usize) -> usize {
        let end = start + self.run(start, to, |byte| !byte.is_ascii_whitespace() && !b"\"'/?#<>".contains(&byte));
        // A password that is not percent-encoded may contain slashes: then everything up to the last `@` counts as the password. A
        // port is a number.
        let authority = &self.text[start..end];
        let colon = authority.iter().position(|byte| *byte == b':');
        let mut end = end;
        if let Some(colon) = colon.filter(|at| !authority[at + 1..].iter().all(u8::is_ascii_digit))
            && !authority.contains(&b'{')
        {
            let to = to.min(start + MAX_ADDRESS_BYTES);
            let length = self.run(start, to, |byte| !byte.is_ascii_whitespace() && !b"\"'<>,".contains(&byte));
            if self.text[start..start + length].iter().rposition(|byte| *byte == b'@').is_some_and(|host| host > colon)
            {
                end = start + length;
            }
        }
        let authority = &self.text[start..end];
        if let Some(host) = authority.iter().position(|byte| *byte == b'@')
            && !authority[..host].contains(&b':')
            && Strength::Random.takes(&authority[..host])
        {
            self.spans.push((start, start + host));
            return start + host;
        }
        if let Some(host) = authority.iter().rposition(|byte| *byte == b'@')
            && let Some(colon) = authority[..host].iter().position(|byte| *byte == b':')
            && colon + 1 < host
            && !is_placeholder(&authority[colon + 1..host])
        {
            self.spans.push((start + colon + 1, start + host));
            // The query may contain more secrets.
            return start + host;
        }
        end
    }

    /// A private key in PEM.
    pub(super) fn take_key(&mut self, at: usize, to: usize) -> usize {
        let to_head = to.min(at + MAX_NAME_BYTES);
        let head = self.text[at..to_head].iter().position(|byte| *byte == b'\n').map_or(to_head, |length| at + length);
        let head_has = |words: &[u8]| self.text[at..head].windows(words.len()).any(|part| part == words);
        if !head_has(b"PRIVATE KEY-----") {
            return at + 1;
        }
        let body = at + self.text[at..head].windows(16).position(|part| part == b"PRIVATE KEY-----").unwrap_or(0) + 16;
        let tail = self.find(body, to, b"-----END ").map_or(to, |length| body + length);
        if body < tail {
            self.spans.push((body, tail));
        }
        tail
    }

    pub(super) fn shape(&self, at: usize, to: usize) -> Option<usize> {
        // This runs for every word, and most words start with none of the prefixes.
        if !b"Aeghnpsx".contains(&self.text[at]) {
            return None;
        }
        let (prefix, least) = SHAPES.iter().find(|(prefix, _)| self.starts(at, to, prefix.as_bytes()))?;
        let start = at + prefix.len();
        if start < self.digitless.get() {
            return None;
        }
        let length = self.run(start, to, |byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
        if !self.text[start..start + length].iter().any(u8::is_ascii_digit) {
            self.digitless.set(start + length);
            return None;
        }
        (length >= *least).then_some(start + length)
    }
}

/// Words that are never a secret.
fn is_constant(value: &[u8]) -> bool {
    [&b""[..], b"None", b"null", b"nil", b"True", b"False", b"true", b"false", b"str", b"bytes", b"..."]
        .contains(&value)
}

/// Placeholders for a value that is elsewhere: `{password}`, `%s`, `$PASSWORD`, `<your key>`, `...`.
pub(super) fn is_placeholder(value: &[u8]) -> bool {
    match value {
        [] | [b'{', .., b'}'] | [b'<', .., b'>'] | [b'%' | b'$', ..] => true,
        _ => value == MARK.as_bytes() || (value.len() > 2 && value.iter().all(|byte| b".*x".contains(byte))),
    }
}
