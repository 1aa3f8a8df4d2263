//! `pylair failures demo`: a small failing project, and what one does about it, with the commands that are shown.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, Ordering},
    },
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    super::{Exit, Failure, Surroundings, client::Client, say},
    text, with_query,
};
use crate::cli::failures::DemoArgs;

const SHOP: &str = include_str!("../../../examples/failing_tests/shop.py");
const TESTS: &str = include_str!("../../../examples/failing_tests/test_shop.py");

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

/// A signal that is to end the demo: it ends as soon as the command that runs has, so that nothing is left behind.
#[derive(Debug, Default)]
struct Ending {
    signal: AtomicI32,
    /// The command that runs.
    child: Mutex<Option<Pid>>,
}

impl Ending {
    fn watch() -> Result<Arc<Self>, Failure> {
        let ending = Arc::new(Self::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watching = ending.clone();
        let [mut interrupted, mut terminated, mut hung_up] = {
            let _within = runtime.enter();
            [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                let came = tokio::select! {
                    // A terminal sends it to the command too.
                    _ = interrupted.recv() => Signal::INT,
                    _ = terminated.recv() => Signal::TERM,
                    _ = hung_up.recv() => Signal::HUP,
                };
                watching.signal.store(came.as_raw(), Ordering::Release);
                if let Some(child) = *watching.child.lock().expect("no panic while locked")
                    && came != Signal::INT
                {
                    let _ended = rustix::process::kill_process(child, came);
                }
            });
        });
        Ok(ending)
    }

    fn check(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::Acquire) {
            0 => Ok(()),
            signal => Err(Failure::new(format!("the demo was ended by signal {signal}"), "its project is removed")),
        }
    }
}

pub(super) fn demo(args: &DemoArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let ending = Ending::watch()?;
    let project = Project::make(args.keep)?;
    let at = &project.path;
    let run = |told: &str, arguments: &[&str]| run(surroundings, &ending, at, told, arguments);
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
fn run(
    surroundings: &Surroundings,
    ending: &Ending,
    at: &Path,
    told: &str,
    arguments: &[&str],
) -> Result<Option<i32>, Failure> {
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
    ending.check()?;
    let mut child = command.spawn()?;
    *ending.child.lock().expect("no panic while locked") = Some(Pid::from_child(&child));
    // Nobody else has its pid as long as it is not waited for, and nobody is sent a signal after that.
    ending.check().inspect_err(|_| drop(child.kill()))?;
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ended = rustix::process::waitid(WaitId::Pid(Pid::from_child(&child)), how);
    *ending.child.lock().expect("no panic while locked") = None;
    let status = child.wait()?;
    ending.check()?;
    Ok(status.code())
}
