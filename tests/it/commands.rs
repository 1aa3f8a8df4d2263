//! The small commands: `sessions`, `doctor`, `output`, `token`, `stop`.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;

use crate::support::Home;

#[test]
fn sessions_lists_what_is_open() {
    let home = Home::new();
    assert_eq!(home.run(&["sessions"]).stdout, "no session is open\n");
    assert!(!home.places().socket().exists(), "listing starts no daemon");
    home.run(&["exec", "1"]);
    let listed = home.run(&["sessions"]).stdout;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STATE", "CELL", "PYTHON", "SANDBOX", "MB", "MINE", "DIRECTORY"]);
    assert_eq!((rows[1][0], rows[1][1], rows[1][2]), ("main", "idle", "1"), "{listed}");
    assert_eq!(rows[1].last().copied(), home.work().to_str());
}

#[test]
fn sessions_lists_what_will_come_back_when_no_daemon_runs_and_nothing_a_terminal_obeys() {
    let home = Home::new();
    let hostile = home.work().join("a\x1b]0;owned\x07\nmain  idle\u{202e}");
    fs::create_dir(&hostile).expect("the home is writable");
    let ran = home.command(&["exec", "x = 1"]).current_dir(&hostile).output().expect("the program starts");
    assert!(ran.status.success(), "{ran:?}");
    for state in ["idle", "stopped"] {
        let listed = home.run(&["sessions"]).stdout;
        assert_eq!(listed.lines().count(), 2, "{listed:?}");
        let row = listed.lines().nth(1).expect("there are two");
        assert_eq!(row.split_whitespace().nth(1), Some(state), "{listed:?}");
        assert!(row.ends_with(r"a\u{1b}]0;owned\u{7}\nmain  idle\u{202e}"), "{listed:?}");
        home.run(&["stop"]);
        assert!(!home.places().socket().exists());
    }
}

#[test]
fn doctor_says_where_each_setting_comes_from_and_tries_a_session() {
    let home = Home::new().set("PYLAIR_WAIT_S", "7");
    let config = home.places().config;
    fs::create_dir_all(&config).expect("the home is writable");
    fs::write(config.join("config.toml"), "max_chars = 1234\n").expect("the home is writable");
    let told = home.run(&["doctor", "--json", "--quick"]);
    let findings: Value = serde_json::from_str(&told.stdout).expect("JSON");
    let setting = |key: &str| {
        let all = findings["settings"].as_array().expect("a list");
        let found = all.iter().find(|setting| setting["key"] == key).expect("every setting is shown");
        format!("{} from {}", found["value"].as_str().expect("text"), found["origin"].as_str().expect("text"))
    };
    assert_eq!(setting("wait_s"), "7 from the environment variable PYLAIR_WAIT_S");
    assert_eq!(setting("max_chars"), format!("1234 from {}", config.join("config.toml").display()));
    assert_eq!(setting("port"), "7420 from default");
    let trials = findings["trials"].as_array().expect("a list");
    let works = |what: &str| trials.iter().any(|trial| trial["what"] == what && trial["works"] == true);
    assert!(works("directories") && works("daemon") && works("session"), "{trials:?}");
    assert_eq!(told.status.code(), Some(0));
    let people = home.run(&["doctor", "--quick"]);
    assert!(people.stdout.contains("PYLAIR_WAIT_S"), "{people:?}");
}

#[test]
fn a_bad_setting_is_told_with_its_origin() {
    let home = Home::new().set("PYLAIR_WAIT_S", "soon");
    let told = home.run(&["doctor"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(told.stderr.contains("`soon`") && told.stderr.contains("PYLAIR_WAIT_S"), "{told:?}");
}

#[test]
fn a_projects_file_aims_no_command_at_its_user() {
    let home = Home::new();
    let own = home.places().settings_file().display().to_string();
    let file = home.work().join("pylair.toml");
    let commands: [&[&str]; 3] = [&["serve", "--port", "0"], &["mcp", "--standalone"], &["test", "--collect-only"]];
    for (key, value) in [
        ("host", "'0.0.0.0'"),
        ("allowed_hosts", "['pylair.example.net']"),
        ("behind_proxy", "true"),
        ("database", "'postgres://pylair.example.net/x'"),
        ("python", "'/nonexistent/python'"),
    ] {
        fs::write(&file, format!("{key} = {value}\n")).expect("the home is writable");
        for command in commands {
            let told = home.run(command);
            assert_eq!(told.status.code(), Some(2), "{told:?}");
            assert!(told.stderr.contains(&format!("sets `{key}`")) && told.stderr.contains(&own), "{told:?}");
            assert_eq!(told.stdout, "", "nothing was served");
        }
    }
    fs::remove_file(&file).expect("it is there");
    std::os::unix::fs::symlink("/dev/zero", &file).expect("the home is writable");
    for command in commands {
        let told = home.run(command);
        assert!(told.status.code() == Some(2) && told.stderr.contains("not a regular file"), "{told:?}");
    }
    fs::remove_file(&file).expect("it is there");
    fs::write(&file, "max_chars = 700\n").expect("the home is writable");
    let told = home.run(&["doctor", "--quick"]);
    assert!(told.status.success() && told.stdout.contains("max_chars = 700"), "{told:?}");
}

#[test]
fn an_unknown_output_is_an_error() {
    let home = Home::new();
    let told = home.run(&["output", "nothing-1"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(told.stderr.contains("there is no output `nothing-1`"), "{told:?}");
}

#[test]
fn the_token_is_made_once_and_private() {
    let home = Home::new();
    let first = home.run(&["token"]).stdout;
    assert_eq!(first.trim().len(), 64);
    assert_eq!(home.run(&["token"]).stdout, first);
    let mode = fs::metadata(home.places().token()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn stop_ends_the_daemon_and_says_what_it_held() {
    let home = Home::new();
    assert_eq!(home.run(&["stop"]).stdout, "no daemon is running\n");
    home.run(&["exec", "1"]);
    let processes = home.processes();
    let told = home.run(&["stop"]);
    assert!(told.stdout.ends_with("and 1 sessions\n"), "{told:?}");
    for process in processes {
        process.assert_ends();
    }
}
