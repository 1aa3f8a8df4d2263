//! Python source as words: enough to colour it, to see where a block that is being typed ends, and which cells
//! a file cannot hold as they are. The grammar itself is the session's own business; nothing here decides whether source is valid.

use std::ops::Range;

/// What a piece of source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Blanks within a line, and a backslash with the line end after it.
    Space,
    Newline,
    Comment,
    /// With its prefix and quotes.
    Text,
    /// A string in triple quotes that has not ended.
    OpenText,
    Number,
    Keyword,
    Name,
    Open,
    Close,
    Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub at: Range<usize>,
}

const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// Words that begin a statement with a block.
const COMPOUND: &[&str] =
    &["@", "async", "class", "def", "elif", "else", "except", "finally", "for", "if", "try", "while", "with"];

/// Splits source into pieces that follow each other without gaps.
pub fn tokens(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let (kind, length) = match first {
            '\n' => (Kind::Newline, 1),
            '\\' if rest[1..].starts_with('\n') => (Kind::Space, 2),
            _ if first.is_whitespace() => (Kind::Space, run(rest, |c| c.is_whitespace() && c != '\n')),
            '#' => (Kind::Comment, run(rest, |c| c != '\n')),
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            '"' | '\'' => text(rest, 0),
            '0'..='9' => (Kind::Number, number(rest)),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => (Kind::Number, number(rest)),
            _ if is_name_start(first) => {
                let length = run(rest, |c| is_name_start(c) || c.is_alphanumeric());
                let word = &rest[..length];
                if is_prefix(word) && rest[length..].starts_with(['"', '\'']) {
                    text(rest, length)
                } else if KEYWORDS.contains(&word) {
                    (Kind::Keyword, length)
                } else {
                    (Kind::Name, length)
                }
            }
            _ => (Kind::Operator, first.len_utf8()),
        };
        tokens.push(Token { kind, at: at..at + length });
        at += length;
    }
    tokens
}

fn run(text: &str, mut belongs: impl FnMut(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

fn is_name_start(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn is_prefix(word: &str) -> bool {
    matches!(word.to_ascii_lowercase().as_str(), "r" | "u" | "b" | "f" | "t" | "br" | "rb" | "fr" | "rf" | "tr" | "rt")
}

/// Digits, letters (`0xff`, `1e5`, `2j`), dots, and the sign of an exponent.
fn number(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut before = ' ';
    run(text, |c| {
        let sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !hexadecimal;
        before = c;
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_') || sign
    })
}

/// A string whose quotes begin at `quote`.
fn text(source: &str, quote: usize) -> (Kind, usize) {
    let mark = &source[quote..=quote];
    let triple = mark.repeat(3);
    let is_triple = source[quote..].starts_with(&triple);
    let end = if is_triple { triple.as_str() } else { mark };
    let mut at = quote + end.len();
    loop {
        let rest = &source[at..];
        let Some(next) = rest.chars().next() else {
            return (if is_triple { Kind::OpenText } else { Kind::Text }, at);
        };
        if rest.starts_with(end) {
            return (Kind::Text, at + end.len());
        }
        match next {
            // Also in raw strings a backslash keeps the quote after it from ending them.
            '\\' => at += 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            // The string is not closed, which is for Python to say.
            '\n' if !is_triple => return (Kind::Text, at),
            _ => at += next.len_utf8(),
        }
    }
}

/// A statement's first to last line, without what is only space and comment.
#[derive(Debug)]
struct Statement<'a> {
    indent: usize,
    words: Vec<(Kind, &'a str)>,
    /// Without comments and blanks around it.
    at: Range<usize>,
}

impl Statement<'_> {
    fn starts_with(&self, words: &[&str]) -> bool {
        self.words.len() >= words.len() && self.words.iter().zip(words).all(|((_, ours), word)| ours == word)
    }

    fn is_compound(&self) -> bool {
        self.words.first().is_some_and(|(_, word)| COMPOUND.contains(word)) || self.opens_block()
    }

    /// Of a function its defaults and annotations, which do not belong to its body.
    fn head_of_function(&self) -> Option<&[(Kind, &str)]> {
        let begin = if self.starts_with(&["def"]) {
            1
        } else if self.starts_with(&["async", "def"]) {
            2
        } else {
            return None;
        };
        let mut depth = 0_usize;
        let body = self.words.iter().position(|(kind, word)| {
            match kind {
                Kind::Open => depth += 1,
                Kind::Close => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && *word == ":"
        });
        self.words.get(begin..body.unwrap_or(self.words.len()))
    }

    fn opens_block(&self) -> bool {
        self.words.last() == Some(&(Kind::Operator, ":"))
    }
}

/// What the source looks like from above.
#[derive(Debug)]
struct Outline<'a> {
    statements: Vec<Statement<'a>>,
    /// Brackets that are open at the end.
    depth: usize,
    open_text: bool,
}

fn outline(source: &str) -> Outline<'_> {
    let mut outline = Outline { statements: Vec::new(), depth: 0, open_text: false };
    let mut line: Option<Statement<'_>> = None;
    let mut indent = 0;
    for Token { kind, at } in tokens(source) {
        let word = &source[at.clone()];
        match kind {
            Kind::Newline if outline.depth == 0 => {
                outline.statements.extend(line.take());
                indent = 0;
            }
            Kind::Newline | Kind::Comment => {}
            Kind::Space => {
                if line.is_none() {
                    indent = word.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum();
                }
            }
            _ => {
                match kind {
                    Kind::Open => outline.depth += 1,
                    Kind::Close => outline.depth = outline.depth.saturating_sub(1),
                    Kind::OpenText => outline.open_text = true,
                    _ => {}
                }
                let statement = line.get_or_insert_with(|| Statement { indent, words: Vec::new(), at: at.clone() });
                statement.words.push((kind, word));
                statement.at.end = at.end;
            }
        }
    }
    outline.statements.extend(line);
    outline
}

/// Whether source that is being typed can be run, or the next line belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Typed {
    Complete,
    /// The next line of it begins with this many blanks.
    Unfinished {
        indent: usize,
    },
}

/// As the Python prompt decides it: open brackets, strings and backslashes go on, and a blank line ends a block.
pub fn typed(source: &str) -> Typed {
    let outline = outline(source);
    let last_line = source.rsplit('\n').next().unwrap_or_default();
    let indent = run(last_line, |c| c == ' ');
    if outline.open_text {
        return Typed::Unfinished { indent: 0 };
    }
    if outline.depth > 0 {
        let opens = last_line.trim_end().ends_with(['(', '[', '{']);
        return Typed::Unfinished { indent: if opens { indent + 4 } else { indent } };
    }
    if last_line.ends_with('\\') && !is_in_comment(source) {
        return Typed::Unfinished { indent };
    }
    let in_block =
        outline.statements.iter().rev().find(|statement| statement.indent == 0).is_some_and(Statement::is_compound);
    let ends_blank = source.contains('\n') && last_line.trim().is_empty();
    let Some(last) = outline.statements.last().filter(|_| in_block && !ends_blank) else { return Typed::Complete };
    let leaves = ["return", "pass", "break", "continue", "raise"].iter().any(|word| last.starts_with(&[word]));
    let indent = if last.opens_block() {
        last.indent + 4
    } else if leaves {
        last.indent.saturating_sub(4)
    } else if last.starts_with(&["@"]) {
        last.indent
    } else {
        indent
    };
    Typed::Unfinished { indent }
}

fn is_in_comment(source: &str) -> bool {
    tokens(source).last().is_some_and(|token| token.kind == Kind::Comment)
}

/// Whether source may be a cell that only a session or a notebook can run as it is: one that awaits outside of every
/// function, or declares a name global there, which a file may not do after it used the name.
///
/// Says yes when in doubt.
pub fn is_only_a_cell(source: &str) -> bool {
    // The indentation of the functions a statement is in.
    let mut functions: Vec<usize> = Vec::new();
    for statement in outline(source).statements {
        functions.retain(|indent| statement.indent > *indent);
        let is_outside = functions.is_empty();
        let words = match statement.head_of_function() {
            Some(head) => {
                functions.push(statement.indent);
                head
            }
            None => &statement.words,
        };
        // An f-string may hold an expression, and strings within that.
        let has_expressions = words.iter().any(|(kind, word)| *kind == Kind::Text && is_template(word));
        let is_special = |(kind, word): &(Kind, &str)| match kind {
            Kind::Keyword => matches!(*word, "await" | "async" | "global"),
            Kind::Text => has_expressions && (word.contains("await") || word.contains("async")),
            _ => false,
        };
        if is_outside && words.iter().any(is_special) {
            return true;
        }
    }
    false
}

/// Whether a string's prefix says that there may be expressions in it.
fn is_template(text: &str) -> bool {
    let prefix = text.split(['"', '\'']).next().unwrap_or_default();
    prefix.contains(['f', 'F', 't', 'T'])
}

/// Whether source uses this name other than as the variable of a loop, as in `for _ in`. Says yes when in doubt.
pub fn mentions(source: &str, name: &str) -> bool {
    if !source.contains(name) {
        return false;
    }
    let is_part = |c: char| is_name_start(c) || c.is_alphanumeric();
    let in_text = |text: &str| {
        text.match_indices(name)
            .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part))
    };
    outline(source).statements.iter().any(|statement| {
        let has_expressions = statement.words.iter().any(|(kind, word)| *kind == Kind::Text && is_template(word));
        statement.words.iter().enumerate().any(|(at, (kind, word))| match kind {
            Kind::Name if *word == name => {
                let before = at.checked_sub(1).map(|before| statement.words[before].1);
                let after = statement.words.get(at + 1).map(|after| after.1);
                before != Some("for") || after != Some("in")
            }
            Kind::Text => has_expressions && in_text(word),
            _ => false,
        })
    })
}

/// The imports from `__future__` that source begins with: where they are, if they have their lines for themselves.
pub fn leading_futures(source: &str) -> Vec<Range<usize>> {
    let statements = outline(source).statements.into_iter().take_while(|statement| {
        statement.starts_with(&["from", "__future__", "import"])
            && !statement.words.iter().any(|(_, word)| *word == ";")
    });
    statements.map(|statement| statement.at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<(Kind, &str)> {
        let tokens = tokens(source);
        assert_eq!(tokens.iter().map(|token| &source[token.at.clone()]).collect::<String>(), source);
        tokens.into_iter().filter(|token| token.kind != Kind::Space).map(|t| (t.kind, &source[t.at])).collect()
    }

    #[test]
    fn source_is_split_without_losing_anything() {
        use Kind::{Comment, Keyword, Name, Newline, Number, OpenText, Operator, Text};
        assert_eq!(
            kinds("def é1 # a 'comment'\n"),
            [(Keyword, "def"), (Name, "é1"), (Comment, "# a 'comment'"), (Newline, "\n")]
        );
        assert_eq!(
            kinds("1e-5+0xfe-.5j"),
            [(Number, "1e-5"), (Operator, "+"), (Number, "0xfe"), (Operator, "-"), (Number, ".5j")]
        );
        assert_eq!(
            kinds(r#"rb'\'' "a\"" f"""x"y""" '''z"#),
            [(Text, r"rb'\''"), (Text, r#""a\"""#), (Text, r#"f"""x"y""""#), (OpenText, "'''z")]
        );
        assert_eq!(kinds("'open\nx"), [(Text, "'open"), (Newline, "\n"), (Name, "x")]);
        for strange in ["\\", "'\\", "\"\"\"\\", "é'", "'''é\\é", "\u{feff}x", "$?!"] {
            kinds(strange);
        }
    }

    #[test]
    fn a_block_ends_with_a_blank_line_and_other_statements_with_themselves() {
        let unfinished = |indent| Typed::Unfinished { indent };
        for (source, expect) in [
            ("", Typed::Complete),
            ("x = 1", Typed::Complete),
            ("x = 1; y = 2  # comment (", Typed::Complete),
            ("f(", unfinished(4)),
            ("f(1,\n    2,", unfinished(4)),
            ("f(1,\n  2)", Typed::Complete),
            ("x = '''a\n  b", unfinished(0)),
            ("x = '''a\n\n'''", Typed::Complete),
            ("x = 'a", Typed::Complete),
            ("x = 1 + \\", unfinished(0)),
            ("x)", Typed::Complete),
            ("for x in y:", unfinished(4)),
            ("for x in y: print(x)", unfinished(0)),
            ("for x in y: print(x)\n", Typed::Complete),
            ("if x:\n    for y in z:", unfinished(8)),
            ("if x:\n    f()", unfinished(4)),
            ("if x:\n    f()\n    ", Typed::Complete),
            ("def f():\n    return 1", unfinished(0)),
            ("def f():\n    return 1\n\nf()", Typed::Complete),
            ("if x:\n    pass\nelse:", unfinished(4)),
            ("@decorator", unfinished(0)),
            ("match x:", unfinished(4)),
            ("async with x as y:", unfinished(4)),
            ("x = {1: 2}", Typed::Complete),
            ("x[1:\n2]", Typed::Complete),
        ] {
            assert_eq!(typed(source), expect, "{source:?}");
        }
    }

    #[test]
    fn awaiting_counts_only_outside_of_functions() {
        for (source, expect) in [
            ("x = 1", false),
            ("await f()", true),
            ("x = [y async for y in z]", true),
            ("async def f():\n    await g()\n", false),
            ("async def f(): await g()", false),
            ("async def f():\n    await g()\nawait f()", true),
            ("if x:\n    await f()", true),
            ("class A:\n    async def f(self):\n        await g()\n    x = 1", false),
            ("# await\n'await'", false),
            ("print(f'{await f()}')", true),
            ("print(f'{d[\"a\"]}' '{await f()}')", true),
            ("def g(x=await f()): return x", true),
            ("def g(x: await f()): pass", true),
            ("def g() -> (await f()):\n    pass", true),
            ("@(await f())\ndef g(): pass", true),
            ("async def g(x={1: 2}): await f()", false),
            ("def g():\n    def h(x=await f()): pass", false),
            ("global x\nx = 1", true),
            ("def f():\n    global x\n    x = 1", false),
            ("def f():\n    x = '''\nawait y\n'''\n    return await_(x)", false),
        ] {
            assert_eq!(is_only_a_cell(source), expect, "{source:?}");
        }
    }

    #[test]
    fn imports_from_the_future_are_found_at_the_beginning() {
        let source = "# why\nfrom __future__ import (annotations,\n  division)  # why\nx = 1\nfrom __future__ import y";
        let found: Vec<_> = leading_futures(source).into_iter().map(|at| &source[at]).collect();
        assert_eq!(found, ["from __future__ import (annotations,\n  division)"]);
        assert!(leading_futures("from __future__ import annotations; x = 1").is_empty());
        assert!(leading_futures("'from __future__ import x'").is_empty());
    }

    #[test]
    fn names_are_found_also_in_f_strings() {
        for (source, expect) in [
            ("_ + 1", true),
            ("print(f'{_}')", true),
            ("for _ in x: pass", false),
            ("[_ for _ in x]", true),
            ("a_b = '_'", false),
            ("f'{a_b}'", false),
        ] {
            assert_eq!(mentions(source, "_"), expect, "{source:?}");
        }
    }
}
