//! Words of others in lines of ours: names, paths and descriptions may hold what moves a cursor, turns text around or begins a line.
//!
//! `one_line` is for names, where a `Caller` is made; `shown` for whatever commands print that is not a cell's own output.

use std::fmt::Display;

/// Whether a character does something else than being seen: controls, format characters (bidirectional ones too), line separators.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// On one line, without what cannot be seen, and no longer than so many characters.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let spaced = text.chars().map(|c| if matches!(c, '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}') { ' ' } else { c });
    let cut: String = spaced.filter(|c| !is_unseen(*c)).take(max_chars).collect();
    cut.trim().to_owned()
}

/// A number with its noun: `1 failure`, `2 failures`, `2 processes`, `2 entries`.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    if count == N::from(1) {
        return format!("{count} {what}");
    }
    let before_y = what.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u']));
    match before_y {
        Some(stem) => format!("{count} {stem}ies"),
        None if what.ends_with(['s', 'x']) => format!("{count} {what}es"),
        None => format!("{count} {what}s"),
    }
}

/// How often something happened: `once`, `2 times`.
pub fn times<N: Copy + Display + PartialEq + From<u8>>(count: N) -> String {
    if count == N::from(1) { "once".to_owned() } else { format!("{count} times") }
}

/// An error with its causes, each said once.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = cause.source();
    }
    message
}

/// With what cannot be seen written out.
pub fn shown(text: &str) -> String {
    escape(text, is_unseen)
}

/// The same for what may have several lines.
pub fn shown_lines(text: &str) -> String {
    escape(text, |c| is_unseen(c) && c != '\n')
}

fn escape(text: &str, escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if escaped(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_right_plural() {
        let counts = [1_u64, 0, 2].map(|count| counted(count, "occurrence"));
        assert_eq!(counts, ["1 occurrence", "0 occurrences", "2 occurrences"]);
        let words = ["process", "box", "entry", "day"].map(|what| counted(3_usize, what));
        assert_eq!(words, ["3 processes", "3 boxes", "3 entries", "3 days"]);
        assert_eq!([1_u64, 0, 2].map(times), ["once", "0 times", "2 times"]);
    }

    #[test]
    fn names_are_one_harmless_short_line() {
        assert_eq!(one_line("a\x1b[2J\r\nIn [1] by \u{202e}root\u{200b}", 64), "a[2J  In [1] by root");
        assert_eq!(one_line("é-клиент", 64), "é-клиент");
        assert_eq!(one_line(&"x".repeat(100), 64).len(), 64);
    }

    #[test]
    fn what_would_move_a_cursor_is_written_out() {
        assert_eq!(shown("/tmp/\x1b]0;x\x07\nb\u{9b}2J\u{202e}"), r"/tmp/\u{1b}]0;x\u{7}\nb\u{9b}2J\u{202e}");
        assert_eq!(shown_lines("a\n\x1bb"), "a\n\\u{1b}b");
    }
}
