//! What comes in with dependencies, held against deny.toml: licences, banned crates, where they come from.
//!
//! cargo-deny says the same and more (advisories, licence texts), but takes longer to build than everything here; this reads the same
//! file and needs nothing but cargo.

use std::{collections::BTreeMap, path::Path, process::Command};

use serde::Deserialize;

#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    name: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None for our own.
    source: Option<String>,
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Metadata>(&output.stdout).expect("cargo writes JSON").packages
}

fn rules() -> Rules {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml")).expect("it is there");
    toml::from_str(&text).expect("it is TOML")
}

/// Whether an SPDX expression can be met with these licences: all around an AND, one around an OR.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed);
    met && rest.is_empty()
}

fn any_of<'a>(words: &'a [&'a str], allowed: &[String]) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = all_of(words, allowed);
    while let ["OR", after @ ..] = rest {
        let other;
        (other, rest) = all_of(after, allowed);
        met |= other;
    }
    (met, rest)
}

fn all_of<'a>(words: &'a [&'a str], allowed: &[String]) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = one(words, allowed);
    while let ["AND", after @ ..] = rest {
        let other;
        (other, rest) = one(after, allowed);
        met &= other;
    }
    (met, rest)
}

fn one<'a>(words: &'a [&'a str], allowed: &[String]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any_of(inner, allowed) {
            (met, [")", rest @ ..]) => (met, rest),
            (_, rest) => (false, rest),
        },
        [license, "WITH", exception, rest @ ..] => {
            (allowed.iter().any(|known| *known == format!("{license} WITH {exception}")), rest)
        }
        [license, rest @ ..] => (allowed.iter().any(|known| known == license), rest),
        [] => (false, words),
    }
}

#[test]
fn every_dependency_may_be_passed_on() {
    let allowed = rules().licenses.allow;
    let refused: Vec<String> = packages()
        .iter()
        .filter(|package| !package.license.as_ref().is_some_and(|license| is_met(license, &allowed)))
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.license))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn no_banned_crate_and_no_source_but_the_registry() {
    let (rules, packages) = (rules(), packages());
    assert!(packages.len() > 100 && rules.bans.deny.len() > 3, "there is something to check");
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &packages {
        versions.entry(&package.name).or_default().push(&package.version);
        assert!(rules.bans.deny.iter().all(|banned| banned.name != package.name), "{} is banned", package.name);
        let from = package.source.as_deref();
        let is_ours = from.is_none() && (package.name == "pylair" || package.name.starts_with("pylair-"));
        let is_registry = from == Some("registry+https://github.com/rust-lang/crates.io-index");
        assert!(is_ours || is_registry, "{} comes from {from:?}", package.name);
    }
    // Told, not refused: whoever adds a dependency may look for another version.
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        println!("warning: {name} is here as {}", versions.join(" and "));
    }
}

#[test]
fn licences_are_read_as_they_are_written() {
    let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for met in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "(MIT OR GPL-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for unmet in
        ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-2.0) AND BSD-3-Clause", "Apache-2.0", "MIT MIT", "(MIT", ""]
    {
        assert!(!is_met(unmet, &allowed), "{unmet}");
    }
}
