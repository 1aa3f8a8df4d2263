//! What `read_docs` tells names only what there is: commands parse, tools have the arguments, addresses are served.

use clap::{CommandFactory, error::ErrorKind};
use pylair::cli::Cli;
use pylair_failures::guide;
use pylair_mcp::tools::TABLE;
use serde_json::Value;

use crate::support::Home;

fn docs() -> String {
    guide::read(Some("all")).expect("it is a topic").docs
}

/// Every command that is named, up to where the sentence goes on.
pub fn commands(docs: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in docs.lines() {
        for (at, _) in line.match_indices("pylair ") {
            let is_quoted = line[..at].ends_with('`');
            if !is_quoted && at != 0 {
                continue;
            }
            let end = if is_quoted { line[at..].find('`') } else { line[at..].find("  ") };
            found.push(line[at..][..end.unwrap_or(line.len() - at)].to_owned());
        }
    }
    found
}

#[test]
fn every_command_is_one() {
    let docs = docs();
    let commands = commands(&docs);
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        assert_parses(&command);
    }
}

/// Fails unless the command line knows this command. A text may leave out arguments that the command requires.
#[track_caller]
pub fn assert_parses(command: &str) {
    let words = command.split_whitespace().filter(|word| !word.starts_with('[') && !word.ends_with(']'));
    let parsed = Cli::command().try_get_matches_from(words);
    let wrong = parsed.err().map(|error| error.kind());
    let is_known = matches!(wrong, None | Some(ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelp));
    assert!(is_known, "`{command}`: {wrong:?}");
}

#[test]
fn every_tool_and_each_of_its_arguments_is_one() {
    let docs = docs();
    let mut calls = 0;
    for (at, _) in docs.match_indices('(') {
        let name = docs[..at].rsplit(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap_or_default();
        let before = docs[..at].strip_suffix(name).unwrap_or_default();
        if name.is_empty() || !before.ends_with('`') {
            continue;
        }
        calls += 1;
        let tool = TABLE.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("there is no tool {name}"));
        let schema = Value::Object(tool.input_schema());
        let (arguments, _) = docs[at + 1..].split_once(')').expect("it is closed");
        // Values are in quotes or behind `=`, and only names are left.
        let mut outside = true;
        let plain: String = arguments
            .split('"')
            .map(|part| {
                outside = !outside;
                if outside { "" } else { part }
            })
            .collect();
        for word in plain.split([',', '[', ']', ' ']).map(|word| word.trim().trim_end_matches(['=', ':'])) {
            let is_name = !word.is_empty() && word != "or" && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(!is_name || schema["properties"][word].is_object(), "{name} has no argument {word}: {arguments}");
        }
    }
    assert!(calls > 6, "{calls}");
}

#[test]
fn every_address_is_served_with_its_parameters() {
    let home = Home::new();
    let server = home.serve();
    let document = server.request("GET", "/openapi.json", "").send().json();
    let docs = docs();
    let mut addresses = 0;
    for line in docs.lines() {
        let method = if line.starts_with("POST ") { "post" } else { "get" };
        for (at, _) in line.match_indices('/') {
            let address = line[at..].split([' ', ',', '`', ')']).next().unwrap_or_default();
            let begins = line[..at].ends_with([' ', '`']) && !line[at..].starts_with("//");
            if !begins || !address.starts_with("/api/") {
                continue;
            }
            addresses += 1;
            let method = if line[..at].ends_with("POST ") { "post" } else { method };
            let (path, query) = address.split_once('?').unwrap_or((address, ""));
            let known = [path.to_owned(), path.replace("ID", "{id}"), path.replace("ID", "{run}")];
            let operation = known.iter().map(|path| &document["paths"][path][method]).find(|found| found.is_object());
            let operation = operation.unwrap_or_else(|| panic!("{method} {address} is not served"));
            for name in query.split(['&', '|']).filter(|name| !name.is_empty()) {
                let has =
                    operation["parameters"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name));
                assert!(has, "{address} takes no {name}");
            }
        }
    }
    assert!(addresses > 12, "{addresses}");
    for page in ["/health", "/docs", "/openapi.json"] {
        assert!(docs.contains(page));
        assert_eq!(server.request("GET", page, "").without("Authorization").send().status, 200, "{page}");
    }
}
