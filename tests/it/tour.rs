//! docs/tour.md leads somewhere: each link's file exists and defines the function or type that the link names.

use std::{fs, path::Path};

/// A link of the page: its text, its path from `docs/`, and what it names in that file.
#[derive(Debug)]
struct Link<'a> {
    text: &'a str,
    path: &'a str,
    symbol: Option<&'a str>,
}

fn links(page: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (at, _) in page.match_indices("](") {
        let text = page[..at].rsplit('[').next().unwrap_or_default();
        let target = page[at + 2..].split(')').next().unwrap_or_default();
        let (path, symbol) = match target.split_once('#') {
            Some((path, symbol)) => (path, Some(symbol)),
            None => (target, None),
        };
        found.push(Link { text, path, symbol });
    }
    found
}

/// Whether a source file, Rust or Python, defines a function, type or constant of this name.
fn defines(source: &str, symbol: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "def", "class"];
    source.lines().any(|line| {
        let mut words = line.split_whitespace().skip_while(|word| !kinds.contains(word)).skip(1);
        let is_code = !line.trim_start().starts_with("//") && !line.trim_start().starts_with('#');
        let name = words.next().unwrap_or_default();
        is_code && name.split(|c: char| c != '_' && !c.is_alphanumeric()).next() == Some(symbol)
    })
}

#[test]
fn definitions_are_told_from_uses() {
    for (source, symbol, expected) in [
        ("    pub(super) async fn begin(&mut self) {", "begin", true),
        ("pub struct Link<'a> {", "Link", true),
        ("pub const TABLE: &[Tool] = &[", "TABLE", true),
        ("    def _run(self, body):", "_run", true),
        ("class Worker:", "Worker", true),
        ("    self.begin(&mut cell)", "begin", false),
        ("// what fn begin does", "begin", false),
        ("fn begin_or_checkpoint() {", "begin", false),
    ] {
        assert_eq!(defines(source, symbol), expected, "{symbol} in {source}");
    }
}

#[test]
fn every_link_leads_to_what_it_names() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(docs.join("tour.md")).expect("it is there");
    let links = links(&page);
    assert!(links.iter().filter(|link| link.symbol.is_some()).count() > 30, "{links:#?}");
    for Link { text, path, symbol } in links {
        let source = fs::read_to_string(docs.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let Some(symbol) = symbol else { continue };
        assert_eq!(text, format!("`{symbol}`"), "the text of a link is what it names");
        assert!(defines(&source, symbol), "{path} defines no `{symbol}`");
    }
}
