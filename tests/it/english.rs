//! The phrases that CONTRIBUTING.md's rule for English forbids, looked for where users read us: the string literals of
//! the product, the help of the command line, the descriptions of tools, the messages of the probe, and the docs.
//!
//! It finds the commonest phrases, not every riddle. Comments, names of tests, CHANGELOG.md and the unit tests of the
//! crates are not looked at.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// A phrase, the longer phrases around it that are plain English, and what to write instead.
struct Forbidden {
    phrase: &'static str,
    unless: &'static [&'static str],
    instead: &'static str,
}

const fn forbidden(phrase: &'static str, unless: &'static [&'static str], instead: &'static str) -> Forbidden {
    Forbidden { phrase, unless, instead }
}

const FORBIDDEN: &[Forbidden] = &[
    forbidden("so many", &[], "name the number: \"Maximum number of …\""),
    forbidden("nobody's", &[], "say whose it is, or that it does not exist"),
    forbidden("nobody knows", &[], "say what is missing, and how to give it"),
    forbidden("is told", &[], "say who says what: \"the answer names …\""),
    forbidden("are told", &[], "say who says what: \"the answer names …\""),
    forbidden("is no ", &["there is no ", "There is no ", "is no longer "], "\"is not a …\""),
    forbidden("are no ", &["there are no ", "There are no ", "are no longer "], "\"are not …\""),
    forbidden("is none", &["there is none", "There is none"], "\"is not a …\""),
    forbidden("known not to be", &[], "say what is known"),
    forbidden("what there is", &[], "name the things"),
    forbidden("used wrongly", &[], "say what was reported"),
    forbidden("cannot be questioned", &[], "\"no code can run in it\""),
    forbidden("1 occurrences", &[], "`plain::counted`"),
    forbidden("1 cells", &[], "`plain::counted`"),
    forbidden("1 times", &[], "`plain::times`"),
    forbidden("} occurrences", &[], "`plain::counted`"),
    forbidden("} cells", &[], "`plain::counted`"),
    forbidden("seen {} times", &[], "`plain::times`"),
];

/// The documents that are looked at. Rows of CONTRIBUTING.md's tables quote what they forbid.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "crates/README.md",
    "docs/apps.md",
    "docs/wire.md",
];

#[test]
fn messages_and_docs_are_in_plain_english() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = String::new();
    let mut texts = 0;
    let mut check = |path: &Path, line: usize, text: &str| {
        texts += 1;
        for (phrase, instead) in phrases(text) {
            let place = path.strip_prefix(root).unwrap_or(path).display();
            let _infallible = writeln!(found, "{place}:{line}: \"{phrase}\" (write {instead}) in: {text}");
        }
    };
    for path in sources(root) {
        let source = fs::read_to_string(&path).expect("it can be read");
        let is_help = path.starts_with(root.join("src/cli")) || path.starts_with(root.join("crates/mcp/src/tools"));
        for (line, text) in literals(without_tests(&source), is_help) {
            check(&path, line, &text);
        }
    }
    for path in files_below(&root.join("probe/pylair"), "py") {
        let source = fs::read_to_string(&path).expect("it can be read");
        for (line, text) in python_messages(&source) {
            check(&path, line, &text);
        }
    }
    for name in DOCUMENTS {
        let path = root.join(name);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (line, text) in paragraphs(&source, name == "CONTRIBUTING.md") {
            check(&path, line, &text);
        }
    }
    assert!(texts > 3000, "only {texts} texts were found: is this still where they are?");
    assert!(found.is_empty(), "CONTRIBUTING.md, \"English\", forbids:\n{found}");
}

#[test]
fn the_check_can_fail_and_knows_what_is_plain() {
    let has = |text: &str| phrases(text).into_iter().map(|(phrase, _)| phrase).collect::<Vec<_>>();
    assert_eq!(has("it is no regular file"), ["is no "]);
    assert_eq!(has("There is no session, and it is no longer kept"), [""; 0]);
    assert_eq!(has("there is no file, and that is no file"), ["is no "]);
    assert_eq!(has("At most so many are kept"), ["so many"]);
    assert_eq!(has("the value is None"), [""; 0]);
    let source = "fn f<'a>() { /* \"so many\" */ // \"so many\"\n  g('\"', \"a \\\"b\\\" \\\n     c\", r#\"d \"e\"\"#) }\n/// help\n";
    let of = |is_help| literals(source, is_help).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(of(false), ["a \"b\" c", "d \"e\""]);
    assert_eq!(of(true), ["a \"b\" c", "d \"e\"", "help"]);
    assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests {\n\"so many\" }"), "a");
    assert_eq!(paragraphs("one so\n  many\n\n| x |\n", true), [(1, "one so many".to_owned())]);
    assert_eq!(
        python_messages("\"\"\"so\nmany\"\"\"\nraise E(\"x\")  # why\n"),
        [(3, "raise E(\"x\")  # why".to_owned())]
    );
}

/// The forbidden phrases in a text, each with what to write instead.
fn phrases(text: &str) -> Vec<(&'static str, &'static str)> {
    let is_bad = |rule: &&Forbidden| {
        text.match_indices(rule.phrase).any(|(at, _)| {
            !rule.unless.iter().any(|plain| {
                let lead = plain.find(rule.phrase).expect("the exception has the phrase in it");
                at.checked_sub(lead).is_some_and(|from| text.get(from..).is_some_and(|rest| rest.starts_with(plain)))
            })
        })
    };
    FORBIDDEN.iter().filter(is_bad).map(|rule| (rule.phrase, rule.instead)).collect()
}

/// The Rust files of the product, without those that are unit tests as a whole.
fn sources(root: &Path) -> Vec<PathBuf> {
    let crates = fs::read_dir(root.join("crates")).expect("there are crates").flatten();
    let folders = crates.map(|entry| entry.path().join("src")).chain([root.join("src")]);
    let files = folders.filter(|folder| folder.is_dir()).flat_map(|folder| files_below(&folder, "rs"));
    files
        .filter(|path| !path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs"))))
        .collect()
}

fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("it can be listed").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// A file up to its unit tests, which are its end.
fn without_tests(source: &str) -> &str {
    source.split_once("\n#[cfg(test)]\nmod tests {").map_or(source, |(product, _)| product)
}

/// The string literals of Rust source with their lines, and its doc comments if those are help.
fn literals(source: &str, is_help: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut rest = source;
    let (mut line, mut counted) = (1, source);
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        line += counted[..counted.len() - rest.len()].matches('\n').count();
        counted = rest;
        if rest.starts_with("//") {
            let (comment, after) = rest.split_once('\n').unwrap_or((rest, ""));
            if let Some(help) = comment.strip_prefix("///").filter(|_| is_help) {
                found.push((line, help.trim().to_owned()));
            }
            rest = after;
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        } else if let Some((text, after)) = raw_string(rest).filter(|_| !before.is_alphanumeric() && before != '_') {
            found.push((line, joined(text)));
            rest = after;
        } else if let Some(opened) = rest.strip_prefix('"') {
            let (text, after) = string(opened);
            found.push((line, joined(&text)));
            rest = after;
        } else if let Some(after) = character(rest) {
            rest = after;
        } else {
            rest = &rest[c.len_utf8()..];
        }
        before = c;
    }
    found
}

/// A raw string at the beginning of a text, and what follows it.
fn raw_string(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('r').or_else(|| text.strip_prefix("br"))?;
    let hashes = text.len() - text.trim_start_matches('#').len();
    let opened = text[hashes..].strip_prefix('"')?;
    opened.split_once(&format!("\"{}", "#".repeat(hashes)))
}

/// The rest of a string after its first quote, with escapes resolved as far as this check needs it.
fn string(opened: &str) -> (String, &str) {
    let mut text = String::new();
    let mut chars = opened.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, &opened[at + 1..]),
            '\\' => match chars.next() {
                Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                _ => text.push(' '),
            },
            c => text.push(c),
        }
    }
    (text, "")
}

/// Returns what follows a character literal, and nothing for a lifetime.
fn character(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('\'')?;
    if let Some(escaped) = inner.strip_prefix('\\') {
        let first = escaped.chars().next()?.len_utf8();
        return escaped[first..].split_once('\'').map(|(_, after)| after);
    }
    inner[inner.chars().next()?.len_utf8()..].strip_prefix('\'')
}

fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lines of Python outside of docstrings and comments that have a string in them.
fn python_messages(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_docstring = false;
    for (index, line) in source.lines().enumerate() {
        let quotes = line.matches("\"\"\"").count();
        let text = line.trim();
        if quotes == 0 && !is_docstring && text.contains('"') && !text.starts_with('#') {
            found.push((index + 1, text.to_owned()));
        }
        is_docstring ^= quotes % 2 == 1;
    }
    found
}

/// The paragraphs of a document with their first lines, on one line each.
fn paragraphs(source: &str, skips_tables: bool) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (index, line) in source.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || skips_tables && line.starts_with('|') {
            is_open = false;
            continue;
        }
        match found.last_mut().filter(|_| is_open) {
            Some((_, text)) => {
                text.push(' ');
                text.push_str(line);
            }
            None => found.push((index + 1, line.to_owned())),
        }
        is_open = true;
    }
    found
}
