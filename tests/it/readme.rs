//! README.md, run: each console exchange prints what the page shows, and each command, script and file that it names exists.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    time::Instant,
};

use serde_json::Value;

use crate::{
    guide,
    support::{AppProcess, Finished, Home, PATIENCE, finish, newest_python, pytest_python, skip},
};

/// Stands for any number of lines.
const ANY_LINES: &str = "...";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).expect("it is there")
}

/// The code blocks of one language.
fn blocks(readme: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let rest = readme.split(&fence).skip(1);
    rest.map(|text| text.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// The one console block that has this command.
fn console(command: &str) -> Vec<Exchange> {
    let found: Vec<_> = blocks(&readme(), "console").into_iter().filter(|block| block.contains(command)).collect();
    assert_eq!(found.len(), 1, "README.md has one console block with `{command}`");
    exchanges(&found[0])
}

/// The text in backticks outside of code blocks.
fn code_spans(readme: &str) -> Vec<&str> {
    let prose = readme.split("```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// A command as a reader would type it, and the lines that it prints.
#[derive(Debug, PartialEq)]
struct Exchange {
    command: String,
    shown: String,
}

fn exchanges(block: &str) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    let mut lines = block.lines();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else {
            let last = found.last_mut().expect("a block begins with a command");
            last.shown.push_str(line);
            last.shown.push('\n');
            continue;
        };
        let mut command = format!("{command}\n");
        if let Some((_, end)) = line.split_once("<<") {
            let end = end.trim_matches('\'');
            for line in lines.by_ref() {
                command.push_str(line);
                command.push('\n');
                if line == end {
                    break;
                }
            }
        }
        found.push(Exchange { command, shown: String::new() });
    }
    found
}

fn matches(shown: &[&str], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((&ANY_LINES, rest)) => (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..])),
        Some((line, rest)) => printed.split_first().is_some_and(|(first, more)| first == line && matches(rest, more)),
    }
}

/// Runs a command in a shell that finds this home's `pylair`. What it prints to either stream is in `stdout`.
fn run(home: &Home, command: &str) -> Finished {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("exec 2>&1\n{command}")]).env_clear().envs(&home.env).current_dir(home.work());
    shell.env("PATH", format!("{}:{}", home.path.display(), home.env["PATH"]));
    finish(shell, b"")
}

#[track_caller]
fn assert_prints(home: &Home, command: &str, shown: &str) {
    let ran = run(home, command);
    let (shown, printed): (Vec<_>, Vec<_>) = (shown.lines().collect(), ran.stdout.lines().collect());
    assert!(matches(&shown, &printed), "README.md shows for `{command}`\n{shown:#?}\nand it printed\n{printed:#?}");
}

/// Waits until the only session can go back to its newest cell. A reader's pause is longer than that takes.
fn wait_for_checkpoint(home: &Home) {
    let until = Instant::now() + PATIENCE;
    loop {
        let listed: Value = serde_json::from_str(&home.run(&["sessions", "--json"]).stdout).expect("JSON");
        let session = &listed["sessions"][0];
        let made = session["checkpoints"].as_array().expect("a session has checkpoints");
        if made.contains(&session["cell"]) {
            return;
        }
        assert!(Instant::now() < until, "no checkpoint was made: {session}");
    }
}

#[test]
fn blocks_are_taken_apart() {
    let block = "$ one\n$ two <<'PY'\nx\nPY\nprinted\n...\nlast\n";
    let exchange = |command: &str, shown: &str| Exchange { command: command.to_owned(), shown: shown.to_owned() };
    let expected = [exchange("one\n", ""), exchange("two <<'PY'\nx\nPY\n", "printed\n...\nlast\n")];
    assert_eq!(exchanges(block), expected);
    for (shown, printed, expected) in [
        (&["a", "..."][..], &["a"][..], true),
        (&["a", "...", "d"], &["a", "b", "c", "d"], true),
        (&["a", "...", "d"], &["a", "b", "d", "e"], false),
        (&[], &["a"], false),
        (&["a"], &[], false),
    ] {
        assert_eq!(matches(shown, printed), expected, "{shown:?} {printed:?}");
    }
}

#[test]
fn a_session_computes_crashes_and_goes_back() {
    let home = Home::new();
    for exchange in console("pylair exec 'import math") {
        if exchange.shown.contains("rolled back") {
            wait_for_checkpoint(&home);
        }
        assert_prints(&home, &exchange.command, &exchange.shown);
    }
}

#[test]
fn a_running_program_is_wrapped_and_attached_to() {
    let home = Home::new();
    symlink(newest_python(), home.path.join("python")).expect("the home is writable");
    fs::write(home.work().join("shop.py"), "print('open')\n").expect("the home is writable");
    let app = AppProcess::plain(&home, "orders = []");
    let commands = console("pylair attach");
    let [wrap, attach] = &commands[..] else { panic!("{commands:#?}") };
    let wrapped = run(&home, &wrap.command);
    assert_eq!((wrapped.status.code(), wrapped.stdout.as_str()), (Some(0), "open\n"));
    let attached = run(&home, &attach.command.replace("4711", &app.pid.to_string()));
    assert!(attached.status.success() && attached.stdout.contains("app:program"), "{attached:?}");
}

/// The failure that a run of pytest ends with.
fn failure_id(text: &str) -> Option<String> {
    text.lines().find_map(|line| Some(line.strip_prefix("pylair: ")?.split(' ').next()?.to_owned()))
}

#[test]
fn a_failing_test_is_shown_and_asked() {
    let Some(python) = pytest_python() else {
        skip("a_failing_test_is_shown_and_asked", "PYLAIR_TEST_PYTEST is not set, and the newest Python has no pytest");
        return;
    };
    let home = Home::with_python(&python);
    for file in ["shop.py", "test_shop.py"] {
        fs::copy(root().join("examples/failing_tests").join(file), home.work().join(file)).expect("it can be copied");
    }
    let mut exchanges = console("pylair test -q").into_iter();
    let tests = exchanges.next().expect("there is one");
    let ran = run(&home, &tests.command);
    let shown_id = failure_id(&tests.shown).expect("README.md shows an id");
    let id = failure_id(&ran.stdout).unwrap_or_else(|| panic!("nothing was recorded: {}", ran.stdout));
    let shown = tests.shown.replace(&shown_id, &id);
    let (shown, printed): (Vec<_>, Vec<_>) = (shown.lines().collect(), ran.stdout.lines().collect());
    assert!(matches(&shown, &printed), "README.md shows\n{shown:#?}\nand it printed\n{printed:#?}");
    for exchange in exchanges {
        assert_prints(&home, &exchange.command.replace(&shown_id, &id), &exchange.shown.replace(&shown_id, &id));
    }
}

fn assert_is_program(path: &str) {
    let found = fs::metadata(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(found.is_file() && found.permissions().mode() & 0o111 == 0o111, "{path} cannot be run");
}

#[test]
fn every_command_exists() {
    let readme = readme();
    assert_eq!(blocks(&readme, "console").len(), 3, "the tests above run each of them");
    for line in blocks(&readme, "sh").iter().flat_map(|block| block.lines()) {
        match line.split_once(" -- ") {
            Some((_, command)) => guide::assert_parses(command),
            None if line == "cargo install --locked --path ." => assert!(root().join("Cargo.lock").is_file()),
            None => assert_is_program(line),
        }
    }
    for command in guide::commands(&readme) {
        guide::assert_parses(&command.replace('…', ""));
    }
    for span in code_spans(&readme) {
        if span.starts_with("scripts/") {
            assert_is_program(span);
        } else if let Some((_, arguments)) = span.split_once(" -- ").filter(|_| span.starts_with("cargo run ")) {
            guide::assert_parses(&format!("pylair {arguments}"));
        }
    }
}

#[test]
fn every_link_leads_to_a_file() {
    let readme = readme();
    let links: Vec<_> = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 4, "{links:?}");
    for link in links {
        assert!(root().join(link).is_file(), "{link}");
    }
}
