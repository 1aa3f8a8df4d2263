//! `pylair failures demo`: a small failing project, and what one does about it, with the commands that are shown.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{
    super::{Exit, Failure, Surroundings, client::Client, say},
    text, with_query,
};
use crate::cli::failures::DemoArgs;

const SHOP: &str = "\
PRICES = {\"tea\": 3, \"coffee\": 4}


def price(name):
    return PRICES.get(name)


def total(order):
    cost = 0
    for name, count in order.items():
        each = price(name)
        cost += each * count
    return cost
";

const TESTS: &str = "\
from shop import total


def test_total():
    assert total({\"tea\": 2, \"coffee\": 1}) == 10


def test_unknown_goods_cost_nothing():
    assert total({\"tea\": 1, \"cake\": 2}) == 3
";

const FAULT: &str = "PRICES.get(name)";
const FIX: &str = "PRICES.get(name, 0)";

/// A directory that goes away.
struct Project {
    path: PathBuf,
    keep: bool,
}

impl Project {
    fn make(keep: bool) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("pylair-demo-{}", std::process::id()));
        let made = fs::create_dir(&path)
            .and_then(|()| fs::write(path.join("shop.py"), SHOP))
            .and_then(|()| fs::write(path.join("test_shop.py"), TESTS));
        made.map_err(|error| {
            Failure::new(
                format!("cannot make a project at `{}`: {error}", path.display()),
                "set TMPDIR to a directory you can write to",
            )
        })?;
        Ok(Self { path, keep })
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if !self.keep {
            // Another time, if not now: it is a temporary directory.
            let _left = fs::remove_dir_all(&self.path);
        }
    }
}

pub(super) fn demo(args: &DemoArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let project = Project::make(args.keep)?;
    let at = &project.path;
    let run = |told: &str, arguments: &[&str]| run(surroundings, at, told, arguments);
    let test = || {
        let mut arguments = vec!["test"];
        if let Some(python) = &args.python {
            arguments.extend(["--python", python]);
        }
        arguments.extend(["-q", "-p", "no:cacheprovider"]);
        arguments
    };
    say(&format!("A small project with a fault, in {}:", at.display()))?;
    say(&indented(&format!("# shop.py\n{SHOP}\n# test_shop.py\n{TESTS}")))?;
    let code = run("1. Run its tests. Output and exit code are pytest's own.", &test())?;
    if code != Some(1) {
        return Err(Failure::new(
            "the tests could not be run",
            "name a Python that has pytest: `pylair failures demo --python PATH`",
        ));
    }
    let mut client = Client::start(surroundings)?;
    let root = at.canonicalize().unwrap_or_else(|_| at.clone());
    let path = with_query("/api/failures", &[("project", root.to_str())]);
    let failed = |client: &mut Client| -> Result<Value, Failure> {
        let answer: Value = client.get(&path)?;
        Ok(answer["failures"][0].clone())
    };
    let failure = failed(&mut client)?;
    let id = text(&failure, "id").to_owned();
    if id.is_empty() {
        return Err(Failure::new("the failure was not recorded", "`pylair doctor` may say why"));
    }
    run("2. Look at what was seen, what is thought of it, and what to do next.", &["failures", "show", &id])?;
    let target = format!("failure:{id}");
    let question = "name, each, price('tea')";
    let asked =
        run("3. Ask the failing test itself: it is frozen, its frames are alive.", &["exec", "-t", &target, question])?;
    if asked != Some(0) {
        say("(There is no living copy here; the values above are those that were kept.)")?;
    }
    let analysis = "price() gives None for goods that are not in PRICES";
    run("4. Write down what you found out.", &["failures", "debug", &id, "--rule", "3", analysis])?;
    run("5. Or let a model do it.", &["failures", "prompt", &id, "--style", "concise"])?;
    run("6. Nobody is believed that it is fixed.", &["failures", "debug", &id, "--status", "resolved"])?;
    say(&format!("\n7. Fix it: `{FAULT}` becomes `{FIX}`."))?;
    fs::write(at.join("shop.py"), SHOP.replace(FAULT, FIX))?;
    run("8. Run the tests again.", &test())?;
    let state = failed(&mut client)?;
    say(&format!("\nFailure {id} is {}: its test passed on changed code.", super::status(&state)))?;
    if args.keep {
        say(&format!("The project is in {}.", at.display()))?;
    }
    Ok(if state["status"] == "resolved" { Exit::Ok } else { Exit::Raised })
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}").trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Shows a command and runs it. Its exit code.
fn run(surroundings: &Surroundings, at: &Path, told: &str, arguments: &[&str]) -> Result<Option<i32>, Failure> {
    let words = arguments.iter().map(|word| {
        let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:/=".contains(c));
        if is_plain { (*word).to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    });
    say(&format!("\n{told}\n$ pylair {}", words.collect::<Vec<_>>().join(" ")))?;
    let mut command = Command::new(&surroundings.program);
    command.args(arguments).current_dir(at);
    if let Some(home) = surroundings.env.get("PYLAIR_HOME") {
        command.env("PYLAIR_HOME", home);
    }
    Ok(command.status()?.code())
}
