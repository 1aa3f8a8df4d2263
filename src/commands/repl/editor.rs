//! The line editor of `pylair repl`: when input is complete, how the next line is indented, completion, colours.

use std::{borrow::Cow, fmt::Write};

use rustyline::{
    Cmd, ConditionalEventHandler, Context, Event, EventContext, Helper, RepeatCount,
    completion::{Completer, Pair},
    highlight::{CmdKind, Highlighter},
    hint::Hinter,
    validate::{ValidationContext, ValidationResult, Validator},
};

use pylair_python::lexer::{self, Kind, Typed};
use pylair_web::api::Completion;

/// Asks the session what could come next: code and cursor, in characters.
pub type Ask = Box<dyn Fn(&str, usize) -> Option<Completion>>;

/// What rustyline asks while a line is typed.
pub struct Assistant {
    pub colour: bool,
    pub ask: Ask,
}

impl Helper for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

/// A command of ours, or Python that can be run.
fn is_complete(input: &str) -> bool {
    input.starts_with(':') || lexer::typed(input) == Typed::Complete
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        let this_line = before.rsplit('\n').next().unwrap_or_default();
        if this_line.trim().is_empty() {
            let indent = " ".repeat(4 - this_line.chars().count() % 4);
            return Ok((position, vec![Pair { display: indent.clone(), replacement: indent }]));
        }
        let Some(completion) = (self.ask)(line, before.chars().count()) else { return Ok((position, Vec::new())) };
        let start = line.char_indices().nth(completion.start).map_or(line.len(), |(at, _)| at).min(position);
        let pairs = completion.matches.into_iter();
        // Two lines of one candidate would ruin the list of them.
        let pairs = pairs.filter(|found| !found.text.contains(char::is_control));
        Ok((start, pairs.map(|found| Pair { display: found.text.clone(), replacement: found.text }).collect()))
    }
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, _position: usize) -> Cow<'l, str> {
        if self.colour { Cow::Owned(coloured(line)) } else { Cow::Borrowed(line) }
    }

    fn highlight_char(&self, _line: &str, _position: usize, _kind: CmdKind) -> bool {
        self.colour
    }
}

/// Source with the colours of a terminal.
pub fn coloured(source: &str) -> String {
    let mut text = String::with_capacity(source.len() * 2);
    for token in lexer::tokens(source) {
        let colour = match token.kind {
            Kind::Keyword => 35,
            Kind::Text | Kind::OpenText => 32,
            Kind::Number => 36,
            Kind::Comment => 2,
            _ => {
                text.push_str(&source[token.at]);
                continue;
            }
        };
        // Each line by itself: the editor may draw from any of them.
        for (index, line) in source[token.at].split('\n').enumerate() {
            if index > 0 {
                text.push('\n');
            }
            let _infallible = write!(text, "\x1b[{colour}m{line}\x1b[0m");
        }
    }
    text
}

/// Enter at the end of a block goes to the next line with the right indentation.
pub struct NextLine;

impl ConditionalEventHandler for NextLine {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        if context.pos() < context.line().len() || context.line().starts_with(':') {
            return None;
        }
        match lexer::typed(context.line()) {
            Typed::Complete => None,
            Typed::Unfinished { indent } => Some(Cmd::Insert(1, format!("\n{}", " ".repeat(indent)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pylair_web::api::Match;

    #[test]
    fn colours_change_nothing_but_the_colour() {
        let source = "def f(x):  # é\n    return '''a\nb''' + 1";
        let text = coloured(source);
        let plain: String = text.split("\x1b[").enumerate().fold(String::new(), |mut plain, (index, part)| {
            plain.push_str(if index == 0 { part } else { part.split_once('m').unwrap().1 });
            plain
        });
        assert_eq!(plain, source);
        assert!(
            text.contains("\x1b[35mdef\x1b[0m") && text.contains("\x1b[32m'''a\x1b[0m\n\x1b[32mb'''\x1b[0m"),
            "{text:?}"
        );
    }

    #[test]
    fn completion_counts_characters_and_a_blank_line_gets_blanks() {
        let ask = |code: &str, cursor: usize| {
            assert_eq!((code, cursor), ("é.ab", 4));
            let matches = ["abc", "abd"].map(|text| Match { text: text.to_owned(), kind: "name".to_owned() });
            Some(Completion { start: 2, end: 4, matches: matches.into() })
        };
        let assistant = Assistant { colour: false, ask: Box::new(ask) };
        let history = rustyline::history::MemHistory::new();
        let complete = |line: &str| {
            let (start, pairs) = assistant.complete(line, line.len(), &Context::new(&history)).unwrap();
            (start, pairs.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>())
        };
        assert_eq!(complete("é.ab"), (3, vec!["abc".to_owned(), "abd".to_owned()]));
        assert_eq!(complete("if x:\n  "), (8, vec!["  ".to_owned()]));
        assert_eq!(complete(""), (0, vec!["    ".to_owned()]));
    }
}
