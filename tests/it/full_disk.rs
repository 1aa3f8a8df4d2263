//! A daemon whose disk is full: it starts, answers, and says what it cannot save.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

use crate::support::{Home, Watched, skip};

/// Runs a script where `$PYLAIR_HOME` is a small file system of its own, which only the script and what it starts see. None where that
/// cannot be made.
fn on_a_small_disk(home: &Home, script: &str) -> Result<Output, String> {
    let small = home.path.join("small");
    fs::create_dir(&small).expect("the home is writable");
    let program = home.program.display();
    let whole = format!(
        "set -e\nmount -t tmpfs -o size=6m,mode=0700 tmpfs \"$PYLAIR_HOME\" || exit 99\n\
         fill() {{ cat /dev/zero > \"$PYLAIR_HOME/fill\" 2>/dev/null || true; }}\n\
         pylair() {{ '{program}' \"$@\"; }}\n{script}"
    );
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", &whole]).env_clear().envs(&home.env).env("PYLAIR_HOME", &small);
    let child = command.current_dir(home.work()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().map_err(|error| format!("no unshare here: {error}"))?;
    let watched = Watched::new(child.id().cast_signed());
    let output = std::thread::spawn(move || child.wait_with_output());
    watched.assert_ends();
    let output = output.join().expect("waiting does not panic").expect("it can be waited for");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(99) => Err(format!("no file system can be mounted here: {said}")),
        Some(1) if said.contains("unshare") => Err(format!("no namespaces here: {said}")),
        _ => Ok(output),
    }
}

#[test]
fn a_daemon_on_a_full_disk_starts_answers_and_says_what_is_lost() {
    let test = "a_daemon_on_a_full_disk_starts_answers_and_says_what_is_lost";
    let home = Home::new();
    // Saved while there was room; more than fits afterwards.
    let script = "pylair exec 'kept = 41'\npylair stop\nfill\n\
                  echo started; pylair exec 'print(kept + 1)'\n\
                  pylair exec 'more = b\"x\" * 100_000'\n\
                  echo output; pylair exec 'print(\"line\\n\" * 60_000)' | tail -n 3\n\
                  echo stopping; pylair stop\n\
                  echo again; pylair exec 'print(6 * 7)'; pylair stop > /dev/null\n\
                  rm \"$PYLAIR_HOME/fill\"\n\
                  echo room; pylair exec 'there = 1'; pylair stop; pylair exec 'print(there)'; pylair stop > /dev/null";
    let output = match on_a_small_disk(&home, script) {
        Ok(output) => output,
        Err(reason) => return skip(test, &reason),
    };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{errors}");
    let parts: Vec<&str> = said.split_inclusive('\n').collect();
    let after = |marker: &str| {
        let at = parts
            .iter()
            .position(|line| line.trim() == marker)
            .unwrap_or_else(|| panic!("no {marker}: {said}\n{errors}"));
        parts[at + 1..].concat()
    };
    assert!(after("started").starts_with("42\n"), "{said}\n{errors}");
    let stopped = after("stopping");
    assert!(stopped.starts_with("stopped the daemon"), "{said}\n{errors}");
    let lost = stopped.lines().find(|line| line.contains("of session main")).unwrap_or_default();
    assert!(lost.starts_with("not saved: ") && lost.contains("No space left on device"), "{said}\n{errors}");
    assert!(after("again").starts_with("42\n"), "{said}\n{errors}");
    // With room again all is well.
    let room = after("room");
    assert!(!room.contains("not saved") && room.ends_with("1\n"), "{said}\n{errors}");
}

/// It was not saved, and the history that would tell cannot be read either.
#[test]
fn a_new_session_says_when_it_cannot_know_of_the_one_before() {
    let test = "a_new_session_says_when_it_cannot_know_of_the_one_before";
    let home = Home::new();
    let script = "pylair exec 'lost = 41'\nfill\npylair stop\npylair exec 'print(6 * 7)'; pylair stop > /dev/null";
    let output = match on_a_small_disk(&home, script) {
        Ok(output) => output,
        Err(reason) => return skip(test, &reason),
    };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("not saved: the variables of session main"), "{said}\n{errors}");
    let notes: Vec<_> = errors.lines().filter(|line| line.contains("this is a new session")).collect();
    assert_eq!(notes.len(), 2, "{said}\n{errors}");
    assert!(notes[1].ends_with("it is not known whether there was one before"), "{said}\n{errors}");
}

#[test]
fn a_server_whose_stderr_cannot_be_written_goes_on() {
    let home = Home::new();
    let full = fs::File::options().write(true).open("/dev/full").expect("every Linux has one");
    let mut command = home.command(&["serve", "--port", "0"]);
    let mut server = command.env("RUST_LOG", "info").stdout(Stdio::piped()).stderr(full).spawn().expect("it starts");
    let watched = Watched::new(server.id().cast_signed());
    let mut said = BufReader::new(server.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(said.next().is_some_and(|line| line.starts_with("MCP endpoint:")), "it did not start");
    assert!(home.run(&["exec", "1"]).status.success());
    assert!(home.run(&["stop"]).status.success());
    watched.assert_ends();
    assert!(server.wait().expect("it is ours").success());
}
