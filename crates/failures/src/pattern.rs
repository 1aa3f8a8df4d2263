//! Messages without what differs from one occurrence to the next: numbers, ids, hashes, addresses, paths, dates and quoted text become
//! placeholders. Called by `fingerprint` for what tells failures apart, and by analysis for `pattern`.

/// How much of a message counts. What comes after is data, such as a difference of two values.
const MAX_BYTES: usize = 2000;

/// What quoted words are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quoted {
    /// Values, which differ: a placeholder.
    Values,
    /// Names of the code, as in Python's own messages: they stay.
    Names,
}

impl Quoted {
    /// What they are in messages of this exception. These are made by the interpreter and quote names of the code.
    pub fn of(kind: &str) -> Self {
        match kind {
            "AttributeError"
            | "NameError"
            | "UnboundLocalError"
            | "ImportError"
            | "ModuleNotFoundError"
            | "TypeError"
            | "FixtureLookupError" => Self::Names,
            _ => Self::Values,
        }
    }
}

/// The message with placeholders.
pub fn parameterise(message: &str, quoted: Quoted) -> String {
    let end = message.floor_char_boundary(MAX_BYTES);
    let mut scanner = Scanner { text: &message[..end], at: 0, out: String::with_capacity(end.min(200)), quoted };
    scanner.scan();
    scanner.out
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    out: String,
    quoted: Quoted,
}

impl Scanner<'_> {
    fn scan(&mut self) {
        while let Some(next) = self.text[self.at..].chars().next() {
            let is_word = next.is_alphanumeric() || next == '_';
            if next.is_whitespace() {
                self.at += next.len_utf8();
                if !self.out.is_empty() && !self.out.ends_with(' ') {
                    self.out.push(' ');
                }
            } else if let Some(length) = self.quotation(next) {
                let inner = &self.text[self.at + 1..self.at + length - 1];
                if self.quoted == Quoted::Names && is_name(inner) {
                    self.out.push_str(&self.text[self.at..self.at + length]);
                } else {
                    self.out.push_str("<text>");
                }
                self.at += length;
            } else if let Some(length) = self.path() {
                self.put("<path>", length);
            } else if is_word {
                self.word();
            } else {
                self.out.push(next);
                self.at += next.len_utf8();
            }
        }
        self.out.truncate(self.out.trim_end().len());
    }

    fn put(&mut self, placeholder: &str, length: usize) {
        self.out.push_str(placeholder);
        self.at += length;
    }

    fn before(&self) -> Option<char> {
        self.text[..self.at].chars().next_back()
    }

    /// The length of the quotation that begins here, its marks included.
    fn quotation(&self, mark: char) -> Option<usize> {
        if !matches!(mark, '\'' | '"' | '`') || self.before().is_some_and(|c| c.is_alphanumeric() && !self.is_prefix())
        {
            return None;
        }
        let mut escaped = false;
        for (at, c) in self.text[self.at..].char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '\n' => return None,
                c if c == mark => return Some(at + 1),
                _ => {}
            }
        }
        None
    }

    /// Whether the letter before a quotation mark is of `b'…'` or `r'…'` and not of a word with an apostrophe.
    fn is_prefix(&self) -> bool {
        let mut before = self.text[..self.at].chars().rev();
        matches!(before.next(), Some('b' | 'r' | 'f' | 'u')) && !before.next().is_some_and(char::is_alphanumeric)
    }

    fn path(&self) -> Option<usize> {
        let rest = &self.text[self.at..];
        if self.before().is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '<' | ')')) {
            return None;
        }
        let bytes = rest.as_bytes();
        let rooted = rest.starts_with('/') && bytes.get(1).is_some_and(u8::is_ascii_alphanumeric)
            || rest.starts_with("./")
            || rest.starts_with("../")
            || rest.starts_with("~/")
            || bytes.len() > 3 && bytes[0].is_ascii_alphabetic() && matches!(&bytes[1..3], b":\\" | b":/");
        let length = rest
            .find(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`' | ')' | ']' | '}' | '>' | ',' | ';'))
            .unwrap_or(rest.len());
        let word = &rest[..length];
        // `tests/test_a.py` is one, `and/or` and `1/2` are not.
        let named = word.contains('/') && word.rsplit('/').next().is_some_and(|last| last.contains('.'));
        let relative = named && bytes[0].is_ascii_alphanumeric() && !word.contains("://");
        if !rooted && !relative {
            return None;
        }
        // A line number after it is a number of its own.
        let colon = word.char_indices().skip(2).find(|(_, c)| *c == ':').map_or(length, |(at, _)| at);
        Some(colon.min(length))
    }

    fn word(&mut self) {
        let rest = &self.text[self.at..];
        if let Some(length) = uuid(rest) {
            return self.put("<uuid>", length);
        }
        if let Some(length) = date(rest) {
            return self.put("<date>", length);
        }
        let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let word = &rest[..length];
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        if digits == 0 {
            self.out.push_str(word);
            self.at += length;
        } else if word.starts_with("0x") || word.starts_with("0X") {
            self.put("<hex>", length);
        } else if word.as_bytes()[0].is_ascii_digit()
            && word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'_' | b'e' | b'E'))
        {
            self.number(length);
        } else if length >= 7 && word.bytes().all(|b| b.is_ascii_hexdigit()) {
            self.put("<hex>", length);
        } else if length >= 16 && digits >= 3 {
            self.put("<id>", length);
        } else {
            // `user17` and `3rd`: the digits are what differs.
            let word = word.to_owned();
            let mut rest = word.as_str();
            while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
                self.out.push_str(&rest[..start]);
                self.out.push_str("<n>");
                rest = rest[start..].trim_start_matches(|c: char| c.is_ascii_digit());
            }
            self.out.push_str(rest);
            self.at += length;
        }
    }

    /// A number with its fraction and exponent, of which `length` bytes are known.
    fn number(&mut self, mut length: usize) {
        let bytes = &self.text.as_bytes()[self.at..];
        let more =
            |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit() || matches!(b, b'e' | b'E')).count();
        while matches!(bytes.get(length), Some(b'.' | b',')) && bytes.get(length + 1).is_some_and(u8::is_ascii_digit) {
            length += 1 + more(length + 1);
        }
        let exponent = matches!(bytes[length - 1], b'e' | b'E') && matches!(bytes.get(length), Some(b'-' | b'+'));
        if exponent {
            length += 1 + more(length + 1);
        }
        // `-1` is a number where `a-1` is none.
        if self.out.ends_with('-')
            && !self.out[..self.out.len() - 1].ends_with(|c: char| c.is_alphanumeric() || c == '>')
        {
            self.out.pop();
        }
        self.put("<n>", length);
    }
}

fn uuid(text: &str) -> Option<usize> {
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
    let bytes = text.as_bytes();
    let mut at = 0;
    for (index, length) in GROUPS.into_iter().enumerate() {
        if index > 0 {
            if bytes.get(at) != Some(&b'-') {
                return None;
            }
            at += 1;
        }
        if !bytes.get(at..at + length)?.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        at += length;
    }
    (!bytes.get(at).is_some_and(u8::is_ascii_alphanumeric)).then_some(at)
}

/// `2026-11-15`, with a time if there is one, or a time alone.
fn date(text: &str) -> Option<usize> {
    let day = shaped(text, "dddd-dd-dd").or_else(|| shaped(text, "dddd/dd/dd"));
    let Some(mut at) = day else {
        return shaped(text, "dd:dd:dd").map(|at| at + fraction(&text[at..]));
    };
    let rest = &text[at..];
    if rest.starts_with(['T', ' '])
        && let Some(time) = shaped(&rest[1..], "dd:dd:dd").or_else(|| shaped(&rest[1..], "dd:dd"))
    {
        at += 1 + time;
        at += fraction(&text[at..]);
        let zone = &text[at..];
        at += if zone.starts_with('Z') {
            1
        } else if zone.starts_with(['+', '-']) {
            shaped(&zone[1..], "dd:dd").or_else(|| shaped(&zone[1..], "dddd")).map_or(0, |length| length + 1)
        } else {
            0
        };
    }
    Some(at)
}

fn fraction(text: &str) -> usize {
    let digits = text.bytes().skip(1).take_while(u8::is_ascii_digit).count();
    if text.starts_with(['.', ',']) && digits > 0 { digits + 1 } else { 0 }
}

fn shaped(text: &str, shape: &str) -> Option<usize> {
    let bytes = text.as_bytes().get(..shape.len())?;
    let fits = bytes
        .iter()
        .zip(shape.bytes())
        .all(|(byte, want)| if want == b'd' { byte.is_ascii_digit() } else { *byte == want });
    fits.then_some(shape.len())
}

/// Whether it is written like a name of Python's, dots and brackets included.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '(' | ')' | '[' | ']'))
        && text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &str, expect: &str) {
        assert_eq!(parameterise(message, Quoted::Values), expect, "{message}");
    }

    #[test]
    fn what_differs_becomes_a_placeholder() {
        check("expected 3, got -1.5e-3", "expected <n>, got <n>");
        check("user17 in row 1,024", "user<n> in row <n>");
        check("a-1 is not a - 1", "a-<n> is not a - <n>");
        check("<Thing object at 0x7f3a2b10c9d0>", "<Thing object at <hex>>");
        check("order 6f1c2d3e-aaaa-4bbb-8ccc-0123456789ab is gone", "order <uuid> is gone");
        check("commit 8f8157fa1 is not there", "commit <hex> is not there");
        check("token A9f3kk20LmQx77Pz is old", "token <id> is old");
        check("since 2026-11-15T19:02:03.5+01:00, at 08:15:00", "since <date>, at <date>");
        check("no such file: /home/ann/a.txt:12", "no such file: <path>:<n>");
        check("cannot read tests/data/a.json, ~/b and C:\\x\\y", "cannot read <path>, <path> and <path>");
        check("and/or, 1 / 2", "and/or, <n> / <n>");
        check("key 'abc' is not in \"d e\", isn't it", "key <text> is not in <text>, isn't it");
        check("b'\\x00' vs b\"x\"", "b<text> vs b<text>");
        check("  spaces\n\tand lines ", "spaces and lines");
    }

    #[test]
    fn names_of_the_code_stay() {
        let message = "'NoneType' object has no attribute 'price_2'";
        assert_eq!(parameterise(message, Quoted::of("AttributeError")), message);
        assert_eq!(parameterise("bad value 'a b'", Quoted::of("TypeError")), "bad value <text>");
        assert_eq!(parameterise("'key'", Quoted::of("KeyError")), "<text>");
    }

    #[test]
    fn any_text_is_taken() {
        for text in
            ["", "'", "ä'ö", "1e", "1e-", "0x", "/", "'\\", "١٢٣", "a\u{0}b", "9999-99-9", "–'–'", "2026-11-15T"]
        {
            parameterise(text, Quoted::Values);
        }
        assert!(parameterise(&"ü".repeat(10_000), Quoted::Names).len() <= MAX_BYTES);
        let once = parameterise("at 12 in '/a/b' 2026-11-15", Quoted::Values);
        assert_eq!(parameterise(&once, Quoted::Values), once, "placeholders stay");
    }
}
