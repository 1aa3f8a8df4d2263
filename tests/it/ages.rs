//! What is removed for its age, when the clock is right and when it has jumped.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use sqlx::{Connection, Executor};

use crate::support::Home;

const DAY: Duration = Duration::from_hours(24);

/// What a daemon left behind when it was stopped.
struct Left {
    home: Home,
    job: String,
}

/// A session with variables and a long output, of a daemon that was stopped.
fn left() -> Left {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "lab"}));
    let cell = json!({"code": "x = 41\nprint('line\\n' * 50_000)", "target": "lab", "output": "json"});
    let job = client.data("execute", &cell)["job"].as_str().expect("a job").to_owned();
    client.close();
    assert!(home.run(&["stop"]).status.success());
    Left { home, job }
}

/// The files below a directory.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

impl Left {
    /// Makes all of it so much older, as it looks when a clock was set ahead by that; `up` is for how much of it the machine
    /// was up.
    fn age(&self, days: i64, up: i64) {
        let places = self.home.places();
        let shift = |time: SystemTime| match u32::try_from(days) {
            Ok(days) => time - days * DAY,
            Err(_) => time + u32::try_from(-days).expect("a few days") * DAY,
        };
        for path in files(&places.outputs()).into_iter().chain(files(&places.data.join("sessions"))) {
            let file = fs::File::options().write(true).open(&path).expect("it is ours");
            let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("it has a time");
            file.set_modified(shift(modified)).expect("it can be set");
        }
        let mut clock: Value = serde_json::from_slice(&fs::read(places.clock()).expect("it is written")).expect("JSON");
        for (name, days) in [("wall", days), ("up", up)] {
            clock[name] = json!(clock[name].as_i64().expect("a number") - days * 86_400);
        }
        for gap in clock["gaps"].as_array_mut().expect("a list") {
            gap["to"] = json!(gap["to"].as_i64().expect("a number") - days * 86_400);
        }
        fs::write(places.clock(), clock.to_string()).expect("it can be written");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(places.journal());
            let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("the journal is there");
            let earlier = sqlx::query("UPDATE events SET at = at - ?").bind(days * 86_400_000_000);
            connection.execute(earlier).await.expect("it can be changed");
            connection.close().await.expect("it can be closed");
        });
    }

    /// Which of the variables, the output and the history are there.
    fn kept(&self) -> [bool; 3] {
        let mut client = self.home.initialized_client();
        let cell = json!({"code": "x + 1", "target": "lab", "output": "json"});
        let variables = client.call("execute", &cell)["structuredContent"]["result"] == "42";
        let output = self.home.run(&["output", &self.job]).stdout.starts_with("line\nline\n");
        let handle = self.job.split_once('-').expect("it begins with the handle").0;
        let history = client.call("get_history", &json!({"target": handle, "limit": 100}));
        let history = history["structuredContent"]["entries"].to_string().contains("x = 41");
        client.close();
        [variables, output, history]
    }
}

#[test]
fn a_clock_that_jumped_makes_nothing_old() {
    for days in [10, 40, -40] {
        let left = left();
        left.age(days, 0);
        assert_eq!(left.kept(), [true; 3], "{days} days");
    }
}

#[test]
fn what_is_old_by_a_clock_that_is_right_goes() {
    let left = left();
    left.age(40, 40);
    assert_eq!(left.kept(), [false; 3]);
}
