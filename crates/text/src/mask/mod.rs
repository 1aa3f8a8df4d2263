//! Removes secrets from text before it is stored: values whose names sound like secrets, tokens known by their shape, and pylair's own
//! tokens.
//!
//! The journal calls it for code, results and output, the audit record for excerpts, the log for its lines. The state of sessions
//! and answers to callers are never changed. Text is read as Python would read it, roughly: a literal after `password =`, in
//! `{"password": …}` or in `["--password", …]`. Code stays code: a masked literal is still a literal, whose value is [`MARK`].

mod command;
mod name;
mod scan;
mod value;

use std::sync::{
    RwLock,
    atomic::{AtomicBool, Ordering},
};

use name::strength;
use scan::Scanner;

/// The replacement for a secret.
pub const MARK: &str = "***masked***";
const MAX_NAME_BYTES: usize = 100;
/// Cell magics whose body is Python.
const PYTHON_MAGICS: &[&str] =
    &["time", "timeit", "capture", "prun", "python", "python3", "px", "memit", "mprun", "lprun"];
/// Maximum number of pylair's own tokens to remember, including rotated ones.
const MAX_HIDDEN: usize = 16;

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

/// Masks this exact text wherever it occurs from now on.
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

/// Returns the text without its secrets, or nothing if it has none.
pub fn masked(text: &str, reading: Reading) -> Option<String> {
    let mut spans = Vec::new();
    if ANY_HIDDEN.load(Ordering::Acquire) {
        let hidden = HIDDEN.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        for secret in hidden.iter() {
            spans.extend(text.match_indices(secret.as_str()).map(|(at, found)| (at, at + found.len())));
        }
    }
    let reading = if is_foreign_cell(text) { Reading::Text } else { reading };
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

/// Whether a cell is in another language, such as `%%bash`.
fn is_foreign_cell(text: &str) -> bool {
    let magic = text.trim_start().strip_prefix("%%").unwrap_or_default();
    let name = magic.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
    !name.is_empty() && !PYTHON_MAGICS.contains(&name)
}

/// The same in place.
pub fn mask(text: &mut String, reading: Reading) {
    if let Some(masked) = masked(text, reading) {
        *text = masked;
    }
}

/// Returns the arguments of a command as they may be shown. The value after a flag named like a secret is always masked.
pub fn argv(words: &[&str]) -> Vec<String> {
    let mut follows_flag = false;
    let mut shown = Vec::with_capacity(words.len());
    for word in words {
        let is_secret = follows_flag && !word.is_empty();
        follows_flag = word.starts_with('-') && (is_secret_flag(word) || command::SHORT_FLAGS.contains(word));
        shown.push(match word.split_once('=') {
            _ if is_secret => MARK.to_owned(),
            Some((flag, value)) if flag.starts_with('-') && is_secret_flag(flag) && !value.is_empty() => {
                format!("{flag}={MARK}")
            }
            _ => masked(word, Reading::Text).unwrap_or_else(|| (*word).to_owned()),
        });
        if is_secret {
            follows_flag = false;
        }
    }
    shown
}

fn is_secret_flag(flag: &str) -> bool {
    strength(flag.trim_start_matches('-')).is_some()
}

/// Returns the value of a variable as it may be shown.
pub fn value<'a>(name: &str, value: &'a str) -> &'a str {
    if strength(name).is_some() && !value.is_empty() { MARK } else { value }
}

#[cfg(test)]
mod tests;
