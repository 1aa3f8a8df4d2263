//! Parts of a prompt put together within a budget: the most important first, in the order they are read; what does not fit is cut or
//! left out, and said.

use std::fmt::Write as _;

use pylair_text::plain::shown_lines;

/// Less room than that is not worth a beginning.
const LEAST_PART_TOKENS: usize = 60;
/// For the line that says what was left out.
const RESERVED_TOKENS: usize = 60;

/// A titled piece of a prompt.
pub(crate) struct Part {
    pub title: String,
    /// Words of ours.
    pub words: String,
    /// Words of others; fenced.
    pub data: String,
    /// The lower, the more important.
    pub rank: u32,
    /// How much of it is shown at most.
    pub max_tokens: usize,
    pub keep: Keep,
}

/// Which end of a text that is cut stays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Beginning,
    End,
}

/// An upper bound for the tokens of a text, for the tokenizers in use (it is held against `cl100k`). Words of natural language and code count
/// by their length, everything that looks random by its bytes.
pub fn tokens_at_most(text: &str) -> usize {
    text.split_inclusive([' ', '\n']).map(piece).sum()
}

/// A long piece without a blank is seldom made of words.
fn piece(text: &str) -> usize {
    let counted = count(text);
    if text.len() > 32 && text.bytes().any(|byte| byte.is_ascii_alphanumeric()) {
        counted.max(text.len() * 9 / 10)
    } else {
        counted
    }
}

fn count(text: &str) -> usize {
    let mut tokens = 0;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let begin = at;
        match bytes[at] {
            b'a'..=b'z' | b'A'..=b'Z' => {
                at += 1;
                // A capital begins a word of its own.
                while at < bytes.len()
                    && (bytes[at].is_ascii_lowercase()
                        || (bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_uppercase()))
                {
                    at += 1;
                }
                tokens += word(&bytes[begin..at]);
            }
            b'0'..=b'9' => {
                while at < bytes.len() && bytes[at].is_ascii_digit() {
                    at += 1;
                }
                tokens += (at - begin).div_ceil(3);
            }
            b' ' => {
                while at < bytes.len() && bytes[at] == b' ' {
                    at += 1;
                }
                // One belongs to the word behind it; a run of them is a token or few.
                tokens += if at - begin == 1 {
                    usize::from(!bytes.get(at).is_some_and(u8::is_ascii_alphabetic))
                } else {
                    1 + (at - begin) / 16
                };
            }
            first => {
                at += 1;
                // Lines such as `-----` are few tokens.
                while at < bytes.len() && bytes[at] == first && at - begin < 2 && first.is_ascii_punctuation() {
                    at += 1;
                }
                tokens += 1;
            }
        }
    }
    tokens
}

fn word(word: &[u8]) -> usize {
    let length = word.len();
    let vowels = word.iter().filter(|byte| b"aeiouyAEIOUY".contains(byte)).count();
    let mut consonants = 0;
    let mut longest = 0;
    for byte in word {
        consonants = if b"aeiouyAEIOUY".contains(byte) { 0 } else { consonants + 1 };
        longest = longest.max(consonants);
    }
    if length <= 2 {
        return if vowels == 0 { length } else { 1 };
    }
    let plain = longest <= 3 && vowels * 5 >= length && vowels * 10 <= length * 7;
    if plain { 1 + length / 6 } else { 1 + length * 3 / 4 }
}

pub(crate) struct Budget<'m> {
    left: usize,
    head: String,
    marker: &'m str,
    /// Index and text of those that are in.
    taken: Vec<(usize, String)>,
    left_out: Vec<String>,
}

impl<'m> Budget<'m> {
    pub fn new(max: usize, head: &str, marker: &'m str) -> Self {
        let left = max.saturating_sub(tokens_at_most(head) + RESERVED_TOKENS);
        Self { left, head: head.to_owned(), marker, taken: Vec::new(), left_out: Vec::new() }
    }

    pub fn fill(&mut self, parts: Vec<Part>) {
        let mut order: Vec<(usize, Part)> =
            parts.into_iter().enumerate().filter(|(_, part)| !part.data.is_empty() || !part.words.is_empty()).collect();
        order.sort_by_key(|(index, part)| (part.rank, *index));
        for (index, part) in order {
            let frame =
                tokens_at_most(&self.wrapped(&part.title, &part.words, if part.data.is_empty() { "" } else { "\n" }));
            let mut room = self.left.saturating_sub(frame).min(part.max_tokens);
            let data = shown_lines(&part.data);
            let cost = tokens_at_most(&data);
            let is_needed = part.rank == 0 && self.taken.is_empty() && room < LEAST_PART_TOKENS;
            if is_needed {
                // What the prompt is about is never left out: it has what is kept for telling of the rest.
                self.left += RESERVED_TOKENS / 2;
                room = self.left.saturating_sub(frame).min(part.max_tokens);
            }
            if !is_needed && (frame > self.left || (cost > room && room < LEAST_PART_TOKENS)) {
                self.left_out.push(part.title);
                continue;
            }
            let data = if cost > room {
                self.left_out.push(format!("some of {}", part.title));
                cut_to(&data, room, part.keep)
            } else {
                data
            };
            let text = self.wrapped(&part.title, &part.words, &data);
            self.left = self.left.saturating_sub(tokens_at_most(&text));
            self.taken.push((index, text));
        }
    }

    fn wrapped(&self, title: &str, words: &str, data: &str) -> String {
        let mut text = format!("\n## {title}\n");
        if !words.is_empty() {
            text.push_str(words.trim_end());
            text.push('\n');
        }
        if !data.is_empty() {
            let _ = write!(text, "<<<{0}\n{1}\n{0}>>>\n", self.marker, data.trim_end());
        }
        text
    }

    pub fn text(mut self) -> (String, usize, Vec<String>) {
        self.taken.sort_by_key(|(index, _)| *index);
        let mut text = self.head;
        self.taken.iter().for_each(|(_, part)| text.push_str(part));
        if !self.left_out.is_empty() {
            let line = format!("\nNot shown for lack of room: {}.\n", self.left_out.join(", "));
            if tokens_at_most(&line) <= RESERVED_TOKENS {
                text.push_str(&line);
            } else {
                let _ = write!(text, "\n{} parts are not shown in full for lack of room.\n", self.left_out.len());
            }
        }
        let tokens = tokens_at_most(&text);
        (text, tokens, self.left_out)
    }
}

/// As many whole lines as fit, from the end that matters; of a line that is too long its beginning.
fn cut_to(text: &str, room: usize, keep: Keep) -> String {
    let room = room.saturating_sub(12);
    let mut kept: Vec<String> = Vec::new();
    let mut used = 0;
    let mut take = |line: &str| {
        let cost = tokens_at_most(line) + 1;
        if used + cost > room {
            if room - used > 20 {
                let mut short = String::new();
                for c in line.chars() {
                    short.push(c);
                    if short.len().is_multiple_of(16) && tokens_at_most(&short) + 2 > room - used {
                        break;
                    }
                }
                while tokens_at_most(&short) + 2 > room - used && short.pop().is_some() {}
                kept.push(short + "…");
            }
            return false;
        }
        used += cost;
        kept.push(line.to_owned());
        true
    };
    match keep {
        Keep::Beginning => {
            let _ = text.lines().all(&mut take);
            kept.push("… (cut)".to_owned());
        }
        Keep::End => {
            let _ = text.lines().rev().all(&mut take);
            kept.push("(cut) …".to_owned());
            kept.reverse();
        }
    }
    kept.join("\n")
}
