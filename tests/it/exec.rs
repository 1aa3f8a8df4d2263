//! `pylair exec`: where code comes from, where it runs, exit codes, streaming and Ctrl-C.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Home, WAIT_FOREVER, Watched, kill};

#[test]
fn code_comes_from_an_argument_a_file_or_standard_input() {
    let home = Home::new();
    fs::write(home.work().join("program.py"), "print('from a file')\n").expect("the home is writable");
    for (args, input, printed) in [
        (&["exec", "6 * 7"][..], "", "42\n"),
        (&["exec", "program.py"], "", "from a file\n"),
        (&["exec", "-"], "print('from a dash')", "from a dash\n"),
        (&["exec"], "x = 'from'\nx + ' a heredoc'\n", "'from a heredoc'\n"),
        (&["exec", "-1"], "", "-1\n"),
    ] {
        let finished = home.run_with_input(args, input.as_bytes());
        assert_eq!(finished.status.code(), Some(0), "{args:?}: {finished:?}");
        let said: Vec<_> = finished.stderr.lines().filter(|line| *line != "note: this is a new session").collect();
        assert_eq!((finished.stdout.as_str(), said), (printed, vec![]), "{args:?}");
    }
}

#[test]
fn a_file_is_run_as_python_would_run_it() {
    let home = Home::new();
    let directory = home.work().join("tools");
    fs::create_dir(&directory).expect("the home is writable");
    fs::write(directory.join("helper.py"), "value = 7\n").expect("the home is writable");
    let program = "import helper, sys\nprint(__name__, __file__, sys.argv, helper.value)\n'no value'\nkept = 1\n";
    fs::write(directory.join("program.py"), program).expect("the home is writable");
    fs::write(directory.join("fails.py"), "def f():\n    return 1 / 0\nf()\n").expect("the home is writable");
    let path = directory.join("program.py").display().to_string();
    let ran = home.run(&["exec", "tools/program.py", "a", "--", "--json"]);
    assert_eq!(ran.stdout, format!("__main__ {path} ['tools/program.py', 'a', '--', '--json'] 7\n"), "{ran:?}");
    let ran = home.run(&["exec", "tools/program.py", "-x", "é"]);
    assert_eq!(ran.stdout, format!("__main__ {path} ['tools/program.py', '-x', 'é'] 7\n"), "{ran:?}");
    // Its names stay, what was around it does not.
    let after = home.run(&[
        "exec",
        "import sys\n(kept, '__file__' in globals(), sys.argv, any('tools' in path for path in sys.path))",
    ]);
    assert_eq!(after.stdout, "(1, False, [''], False)\n", "{after:?}");
    let failed = home.run(&["exec", "tools/fails.py"]);
    assert_eq!(failed.status.code(), Some(1));
    let line = format!("File \"{}\", line 2, in f", directory.join("fails.py").display());
    assert!(failed.stderr.contains(&line) && failed.stderr.contains("return 1 / 0"), "{}", failed.stderr);
    for name in ["tools/absent.py", "absent.py"] {
        let refused = home.run(&["exec", name]);
        assert_eq!(refused.status.code(), Some(2), "it is not run as code: {refused:?}");
        assert!(refused.stderr.contains(&format!("there is no file `{name}`")), "{refused:?}");
    }
    let refused = home.run(&["exec", "6 * 7", "a"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stderr.contains("only a file takes arguments"), "{refused:?}");
}

#[test]
fn a_file_that_a_sandbox_does_not_show_is_run_under_its_name() {
    let home = Home::new();
    let program = "import sys\nprint(__file__, sys.argv)\nassert False, 'on purpose'\n";
    fs::write(home.work().join("program.py"), program).expect("the home is writable");
    let mut client = home.initialized_client();
    let opened = client.call("open_session", &json!({"name": "lab", "sandbox": "sealed"}));
    if opened["isError"] == true {
        println!("skipped: there is no sandbox here: {opened}");
        return;
    }
    let ran = home.run(&["exec", "-t", "lab", "program.py", "a"]);
    let path = home.work().join("program.py").display().to_string();
    assert_eq!(ran.stdout, format!("{path} ['program.py', 'a']\n"), "{ran:?}");
    assert!(ran.stderr.contains(&format!("File \"{path}\", line 3")), "{}", ran.stderr);
    assert!(ran.stderr.contains("assert False, 'on purpose'"), "{}", ran.stderr);
}

#[test]
fn the_exit_code_tells_how_it_ended() {
    let home = Home::new();
    for (args, code, part) in [
        (&["exec", "print('fine')"][..], 0, ""),
        (&["exec", "1 / 0"], 1, "ZeroDivisionError: division by zero"),
        (&["exec", "x = = 1"], 1, "SyntaxError"),
        (&["exec", "import os; os._exit(4)"], 1, "exited with code 4"),
        (&["exec", "--timeout", "0.1", "import time\nwhile True: time.sleep(0.01)"], 1, "timeout_s=0.1"),
        (&["exec", "-t", "nowhere", "1"], 2, "there is no session `nowhere`"),
        (&["exec", "--timeout", "-1", "1"], 2, "timeout_s"),
    ] {
        let finished = home.run(args);
        assert_eq!(finished.status.code(), Some(code), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(part), "{args:?}: {finished:?}");
    }
}

/// A running `pylair exec` whose first line has been read.
fn start_endless(home: &Home) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = home
        .command(&["exec", WAIT_FOREVER])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it prints");
    assert_eq!(line, "waiting\n", "output is streamed while the cell runs");
    (child, stdout)
}

#[test]
fn ctrl_c_interrupts_the_cell_and_keeps_the_session() {
    let home = Home::new();
    assert!(home.run(&["exec", "kept = 1"]).status.success());
    let (mut child, _stdout) = start_endless(&home);
    let watched = Watched::new(child.id().cast_signed());
    kill(watched.pid, Signal::INT);
    watched.assert_ends();
    let mut stderr = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("it is text");
    assert_eq!(child.wait().expect("it can be waited for").code(), Some(130), "{stderr}");
    assert!(stderr.contains("KeyboardInterrupt"), "{stderr}");
    assert_eq!(home.run(&["exec", "kept"]).stdout, "1\n");
}

#[test]
fn a_busy_session_says_so() {
    let home = Home::new().set("PYLAIR_WAIT_S", "0");
    let (mut child, _stdout) = start_endless(&home);
    let refused = home.run(&["exec", "1"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        refused.stderr.contains("the call waited 0 s for cell 1 of session `main`, which still runs"),
        "{refused:?}"
    );
    // From another process tree.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$0\" exec 1; exit $?"])
        .arg(&home.program)
        .env_clear()
        .envs(&home.env)
        .current_dir(home.work());
    let refused = shell.stdin(Stdio::null()).output().expect("there is a shell");
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("the session `main` has been running cell 1"), "{told}");
    assert!(told.contains("`pylair interrupt main` stops it") && !told.contains("get_job"), "{told}");
    child.kill().expect("it runs");
    child.wait().expect("it can be waited for");
    let listed = home.run(&["sessions", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed["sessions"][0]["state"], "busy", "a killed command leaves a job behind: {listed}");
}

#[test]
fn the_agents_own_session_is_found_by_process_tree() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 'from the agent'");
    assert_eq!(home.run(&["exec", "x"]).stdout, "'from the agent'\n");
    home.run(&["exec", "y = 'from the shell'"]);
    assert_eq!(client.execute("y")["result"], "'from the shell'");
}

#[test]
fn two_agents_equally_near_are_an_error_that_names_both() {
    let home = Home::new();
    let agent = || {
        // A shell between the bridge and us, so that each has a process tree of its own.
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$0\" mcp; exit $?"]).arg(&home.program);
        shell.env_clear().envs(&home.env).current_dir(home.work());
        let mut client = Client::start(shell);
        client.initialize();
        client
    };
    let (mut one, mut other) = (agent(), agent());
    let (first, second) = (one.execute("x = 1")["session"].clone(), other.execute("x = 2")["session"].clone());
    assert_ne!(first, second, "each has a default session of its own");
    let refused = home.run(&["exec", "x"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    for name in [&first, &second] {
        assert!(refused.stderr.contains(name.as_str().expect("a name")), "{refused:?}");
    }
    assert_eq!(home.run(&["exec", "-t", second.as_str().expect("a name"), "x"]).stdout, "2\n");
    drop(one);
    assert_eq!(home.run(&["exec", "x"]).stdout, "2\n", "only one of them is still there");
    drop(other);
    let finished = home.run(&["exec", "1"]);
    assert_eq!(finished.stdout, "1\n", "those that have ended are not near: {finished:?}");
}

#[test]
fn a_name_chooses_another_session() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "other"}));
    client.data("execute", &json!({"code": "x = 'other'", "target": "other", "output": "json"}));
    assert_eq!(home.run(&["exec", "-t", "other", "x"]).stdout, "'other'\n");
    drop(client);
    let home = home.set("PYLAIR_SESSION", "other");
    assert_eq!(home.run(&["exec", "x"]).stdout, "'other'\n");
}

#[test]
fn json_is_one_object_and_nothing_else() {
    let home = Home::new();
    let finished = home.run(&["exec", "--json", "print('out')\nx = 1\nx"]);
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let shown = json!({
        "session": report["session"], "outcome": report["outcome"], "stdout": report["stdout"],
        "result": report["result"], "new": report["variables"]["new"],
    });
    assert_eq!(shown, json!({"session": "main", "outcome": "ok", "stdout": "out\n", "result": "1", "new": ["x"]}));
    assert_eq!(home.run(&["exec", "--json", "1 / 0"]).status.code(), Some(1));
}

#[test]
fn the_session_has_the_shells_directory_and_environment() {
    let home = Home::new().set("COLOUR", "of the shell");
    let finished = home.run(&["exec", "import os\nprint(os.getcwd())\nprint(os.environ['COLOUR'])"]);
    assert_eq!(finished.stdout, format!("{}\nof the shell\n", home.work().display()));
}
