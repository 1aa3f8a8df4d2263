//! What listings leave out: directories that tools fill, and what the `.gitignore` files of the workspace name.
//!
//! A matcher of our own: the `ignore` crate walks by path, which would lose the confinement, and its matcher alone would bring a
//! regex engine for patterns of this size.

use super::write::TEMPORARY;

/// Never worth a listing, unless a `.gitignore` says otherwise with `!`.
const USUAL: &[&str] = &[
    ".DS_Store",
    ".eggs",
    ".git",
    ".hg",
    ".idea",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    ".pytest_cache",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    "__pycache__",
    "node_modules",
    "venv",
];
const USUAL_ENDINGS: &[&str] = &[".egg-info", ".pyc", ".pyo"];
/// Of one `.gitignore`; the rest of a longer one is not looked at.
pub(super) const MAX_FILE_BYTES: usize = 64 << 10;
const MAX_PATTERNS: usize = 1000;

/// The `.gitignore` files on the way to a directory, outermost first.
#[derive(Debug, Default)]
pub(super) struct Rules {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// How many names its directory is below the workspace.
    depth: usize,
    patterns: Vec<Pattern>,
}

#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    negated: bool,
    directories_only: bool,
    /// Split at its slashes. One that has none is looked for at any depth.
    segments: Vec<Vec<u8>>,
}

impl Rules {
    /// Adds what the `.gitignore` of the directory at this depth says.
    pub fn push(&mut self, depth: usize, text: &[u8]) {
        let patterns = text.split(|byte| *byte == b'\n').filter_map(Pattern::parse).take(MAX_PATTERNS).collect();
        self.layers.push(Layer { depth, patterns });
    }

    /// Forgets those of directories at this depth and below.
    pub fn pop_to(&mut self, depth: usize) {
        self.layers.retain(|layer| layer.depth < depth);
    }

    /// Whether the thing with these names, from the workspace down, is left out. What is above it is not asked again.
    pub fn ignores(&self, names: &[Vec<u8>], is_directory: bool) -> bool {
        let Some(last) = names.last() else { return false };
        if last == b".git" || is_temporary(last) {
            return true;
        }
        for layer in self.layers.iter().rev() {
            let Some(below) = names.get(layer.depth..) else { continue };
            let matching = layer.patterns.iter().rev().find(|pattern| pattern.matches(below, is_directory));
            if let Some(pattern) = matching {
                return !pattern.negated;
            }
        }
        USUAL.iter().any(|name| last == name.as_bytes())
            || USUAL_ENDINGS.iter().any(|ending| last.ends_with(ending.as_bytes()))
    }
}

fn is_temporary(name: &[u8]) -> bool {
    name.starts_with(TEMPORARY.0.as_bytes()) && name.ends_with(TEMPORARY.1.as_bytes())
}

impl Pattern {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        while line.ends_with(b" ") && !line.ends_with(b"\\ ") {
            line = &line[..line.len() - 1];
        }
        if line.is_empty() || line.starts_with(b"#") {
            return None;
        }
        let (negated, line) = line.strip_prefix(b"!").map_or((false, line), |rest| (true, rest));
        let (directories_only, line) = line.strip_suffix(b"/").map_or((false, line), |rest| (true, rest));
        let is_anchored = line.contains(&b'/');
        let line = line.strip_prefix(b"/").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        let mut segments: Vec<Vec<u8>> = line.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
        if !is_anchored {
            segments.insert(0, b"**".to_vec());
        }
        Some(Self { negated, directories_only, segments })
    }

    fn matches(&self, names: &[Vec<u8>], is_directory: bool) -> bool {
        if self.directories_only && !is_directory {
            return false;
        }
        // `a/**` is what is below `a`, not `a` itself.
        if self.segments.last().is_some_and(|last| last == b"**") && names.len() < self.segments.len() {
            return false;
        }
        matches_from(&self.segments, names, |segment| segment == b"**", |segment, name| name_matches(segment, name))
    }
}

/// The usual way with wildcards: on a mismatch the newest `any` takes one more. No step is tried twice for an older one, so the
/// time is bounded by the product of both lengths.
fn matches_from<P, T>(pattern: &[P], text: &[T], is_any: impl Fn(&P) -> bool, same: impl Fn(&P, &T) -> bool) -> bool {
    let (mut at, mut in_text) = (0, 0);
    let mut newest: Option<(usize, usize)> = None;
    while in_text < text.len() {
        if at < pattern.len() && is_any(&pattern[at]) {
            newest = Some((at, in_text));
            at += 1;
        } else if at < pattern.len() && same(&pattern[at], &text[in_text]) {
            at += 1;
            in_text += 1;
        } else if let Some((any, from)) = newest {
            newest = Some((any, from + 1));
            (at, in_text) = (any + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(is_any)
}

/// One name against `*`, `?`, `[a-z]` and `\x`.
fn name_matches(glob: &[u8], name: &[u8]) -> bool {
    let tokens = tokens(glob);
    matches_from(&tokens, name, |token| *token == Token::Any, |token, byte| token.matches(*byte))
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Any,
    One,
    Byte(u8),
    Class { negated: bool, ranges: Vec<(u8, u8)> },
}

impl Token {
    fn matches(&self, byte: u8) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Byte(expected) => *expected == byte,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) != *negated
            }
        }
    }
}

fn tokens(glob: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = glob;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        tokens.push(match first {
            b'*' => Token::Any,
            b'?' => Token::One,
            b'\\' => match rest.split_first() {
                Some((escaped, after)) => {
                    rest = after;
                    Token::Byte(*escaped)
                }
                None => Token::Byte(b'\\'),
            },
            b'[' => match class(rest) {
                Some((class, after)) => {
                    rest = after;
                    class
                }
                None => Token::Byte(b'['),
            },
            other => Token::Byte(*other),
        });
    }
    tokens
}

/// What follows a `[`, up to its `]`.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let (negated, body) = match text.split_first() {
        Some((b'!' | b'^', body)) => (true, body),
        _ => (false, text),
    };
    // A `]` that comes first is meant itself.
    let end = body.iter().skip(1).position(|byte| *byte == b']')? + 1;
    let mut ranges = Vec::new();
    let mut inside = &body[..end];
    while let Some((low, after)) = inside.split_first() {
        if let [b'-', high, after @ ..] = after {
            ranges.push((*low, *high));
            inside = after;
        } else {
            ranges.push((*low, *low));
            inside = after;
        }
    }
    Some((Token::Class { negated, ranges }, &body[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(gitignore: &str, path: &str, expected: bool) {
        let mut rules = Rules::default();
        rules.push(0, gitignore.as_bytes());
        let names: Vec<_> = path.trim_end_matches('/').split('/').map(|name| name.as_bytes().to_vec()).collect();
        assert_eq!(rules.ignores(&names, path.ends_with('/')), expected, "{gitignore:?} and {path}");
    }

    #[test]
    fn patterns_mean_what_git_means() {
        check("*.log", "a.log", true);
        check("*.log", "deep/er/a.log", true);
        check("/a.log", "a.log", true);
        check("/a.log", "deep/a.log", false);
        check("build/", "build/", true);
        check("build/", "build", false);
        check("build/", "src/build/", true);
        check("src/build", "src/build/", true);
        check("src/build", "other/src/build/", false);
        check("**/temp", "a/b/temp", true);
        check("**/temp", "temp", true);
        check("a/**/z", "a/z", true);
        check("a/**/z", "a/b/c/z", true);
        check("a/**", "a/b", true);
        check("a/**", "a/", false);
        check("*.log\n!keep.log", "keep.log", false);
        check("# a comment\n\n\\#name", "#name", true);
        check("file?.[ch]", "file1.c", true);
        check("file?.[!ch]", "file1.c", false);
        check("[a-c]x", "bx", true);
        check("trailing  ", "trailing", true);
        check("a[", "a[", true);
        check("windows\r", "windows", true);
    }

    #[test]
    fn what_tools_fill_is_left_out_unless_git_wants_it() {
        check("", "node_modules/", true);
        check("", "src/module.pyc", true);
        check("", "src/module.py", false);
        check("!venv", "venv/", false);
        check("!.git", ".git/", true);
        check("", ".pylair-0011223344556677.tmp", true);
    }

    #[test]
    fn the_nearest_file_decides() {
        let mut rules = Rules::default();
        rules.push(0, b"*.csv");
        rules.push(1, b"!kept.csv");
        let names = |path: &str| path.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        assert!(!rules.ignores(&names("data/kept.csv"), false));
        assert!(rules.ignores(&names("data/other.csv"), false));
        rules.pop_to(1);
        assert!(rules.ignores(&names("data/kept.csv"), false));
    }

    #[test]
    fn hostile_patterns_take_no_time() {
        let pattern = "*a".repeat(2000);
        check(&pattern, &"a".repeat(255), false);
        check(&format!("{}b", "**/".repeat(5000)), &"a/".repeat(500), false);
    }
}
