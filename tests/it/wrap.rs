//! `pylair wrap`, as the command that it runs sees it. What becomes of its Pythons is tested with real apps in `tests/apps`.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;

use crate::support::{Home, newest_python};

fn python() -> String {
    newest_python().to_str().expect("our paths are UTF-8").to_owned()
}

#[test]
fn the_command_keeps_its_output_its_input_and_its_exit_code() {
    let home = Home::new();
    let ran = home.run_with_input(&["wrap", "--", "sh", "-c", "cat; echo to stderr >&2; exit 37"], b"from stdin");
    assert_eq!((ran.status.code(), &*ran.stdout, &*ran.stderr), (Some(37), "from stdin", "to stderr\n"));
    let ran = home.run(&["wrap", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ran.status), Some(15), "{ran:?}");
    assert!(!home.places().socket().exists(), "it needs no daemon");
}

#[test]
fn the_command_takes_our_place_and_is_told_its_settings() {
    let home = Home::new().set("PYTHONPATH", "lib:../other:");
    let child = home
        .command(&["wrap", "--app-id", "web", "--port", "0", "--readonly", "sh", "-c", "echo $$; env -0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("it can be waited for");
    let output = String::from_utf8(output.stdout).expect("our environment is UTF-8");
    let (first, variables) = output.split_once('\n').expect("a line");
    assert_eq!(first, pid.to_string(), "it was executed, not started");
    let variable = |name: &str| {
        let found = variables.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} is not set in {variables:?}"))
    };
    let settings: Value = serde_json::from_str(variable("PYLAIR_WRAP")).expect("JSON");
    let runtime = home.places().runtime;
    let expected =
        serde_json::json!({"runtime": runtime, "app_id": "web", "port": 0, "readonly": true, "parent": null});
    assert_eq!(settings, expected);
    let (directory, rest) = variable("PYTHONPATH").split_once(':').expect("there was one before");
    assert_eq!(rest, "lib:../other:", "what was there stays as it was written");
    assert!(directory.starts_with(runtime.to_str().expect("our paths are UTF-8")), "{directory}");
    let mode = fs::metadata(directory).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
}

#[test]
fn a_wrapped_wrap_is_below_the_app_above_it_and_on_the_path_once() {
    let home = Home::new().set("PYLAIR_WRAP", r#"{"app_id":"web","parent":"web"}"#);
    let program = home.program.to_str().expect("our paths are UTF-8");
    let ran = home.run(&["wrap", "--", program, "wrap", "sh", "-c", "echo $PYTHONPATH; echo $PYLAIR_WRAP"]);
    let (path, settings) = ran.stdout.split_once('\n').expect("two lines");
    assert!(!path.contains(':'), "{path}");
    let settings: Value = serde_json::from_str(settings).expect("JSON");
    assert_eq!((&settings["parent"], &settings["app_id"]), (&"web".into(), &Value::Null));
}

#[test]
fn what_cannot_be_run_is_one_clear_error() {
    let home = Home::new();
    let check = |command: &[&str], code: i32, says: &[&str]| {
        let ran = home.run(&[&["wrap"], command].concat());
        assert_eq!(ran.status.code(), Some(code), "{ran:?}");
        assert!(says.iter().all(|words| ran.stderr.contains(words)), "{ran:?}");
        assert_eq!(ran.stdout, "", "{ran:?}");
    };
    check(&["--", "no-such-program-here", "-x"], 127, &["cannot run `no-such-program-here`", "hint: is it installed"]);
    check(&["--", "/etc/passwd"], 126, &["cannot run `/etc/passwd`", "Permission denied"]);
    check(&[], 2, &["<CMD>", "pylair wrap [OPTIONS] -- <CMD>..."]);
    check(&["--"], 2, &["<CMD>"]);
    check(&["--app-id", "web@home", "--", "true"], 2, &["--app-id", "no @"]);
    check(&["--app-id", "", "--", "true"], 2, &["--app-id", "1 to 64"]);
    check(&["--port", "99999", "--", "true"], 2, &["--port"]);
}

#[test]
fn signals_that_were_blocked_stay_blocked_and_the_broken_pipe_is_not_ignored() {
    let home = Home::new();
    let program = home.program.to_str().expect("our paths are UTF-8");
    let code = "
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv(sys.argv[1], [sys.argv[1], 'wrap', '--', 'grep', '-E', 'SigBlk|SigIgn', '/proc/self/status'])
";
    let command = home.command(&[]);
    let ran = std::process::Command::new(python())
        .args(["-c", code, program])
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .expect("Python starts");
    let lines: Vec<u64> = String::from_utf8_lossy(&ran.stdout)
        .lines()
        .map(|line| u64::from_str_radix(line.split_whitespace().nth(1).expect("a mask"), 16).expect("hexadecimal"))
        .collect();
    let bit = |signal: i32| 1_u64 << (signal - 1);
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert_eq!(lines[0], bit(libc::SIGUSR1), "{ran:?}");
    assert_eq!(lines[1] & bit(libc::SIGPIPE), 0, "{ran:?}");
}

#[test]
fn a_colon_in_the_home_is_said_and_nothing_is_run() {
    let home = Home::new();
    let odd = home.path.join("a:b");
    let ran =
        home.command(&["wrap", "--", "echo", "ran"]).env("PYLAIR_HOME", &odd).output().expect("the program starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), &*ran.stdout), (Some(2), &b""[..]), "{said}");
    assert!(said.contains("there is a colon in it") && said.contains("PYLAIR_HOME"), "{said}");
}
