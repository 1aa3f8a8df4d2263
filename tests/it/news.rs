//! What happened to a session while nobody asked for anything is told by the next answer about it, whatever that is, and once.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Home, PATIENCE, Server, Watched, kill};

const BACK: &str = "the session was rolled back to";
const ANEW: &str = "the session was restarted";

/// A session that was set back because its worker was killed between two cells, which nobody was told yet.
struct SetBack<'a> {
    server: &'a Server,
    client: Client,
    name: String,
}

impl<'a> SetBack<'a> {
    fn new(home: &Home, server: &'a Server) -> Self {
        let mut client = home.initialized_client();
        let opened = client.data("open_session", &json!({"name": "lab"}));
        Self { server, client, name: opened["name"].as_str().expect("it has a name").to_owned() }
    }

    fn pid(&mut self) -> i32 {
        let listed = self.client.data("list_targets", &json!({}));
        let sessions = listed["sessions"].as_array().expect("they are listed");
        let ours = sessions.iter().find(|session| session["name"] == self.name.as_str()).expect("it is listed");
        ours["pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("it has a worker")
    }

    fn kill(&mut self) {
        let ran = self.ask("execute", &json!({"code": "x = 1", "output": "json"}));
        assert_eq!(ran["outcome"], "ok", "{ran:#}");
        let worker = Watched::new(self.pid());
        kill(worker.pid, Signal::KILL);
        worker.assert_ends();
        // Completions are read by programs, and leave the news to the next answer. One is answered when another worker has taken over;
        // until then it may be told of the death.
        let until = Instant::now() + PATIENCE;
        let body = json!({"target": self.name, "code": "x"}).to_string();
        let mut completed = self.server.request("POST", "/api/complete", body.clone()).send();
        while completed.status != 200 {
            assert!(Instant::now() < until, "nobody takes the worker's place: {completed:?}");
            completed = self.server.request("POST", "/api/complete", body.clone()).send();
        }
        assert_not_told("a completion", &format!("{completed:?}"));
    }

    fn ask(&mut self, tool: &str, arguments: &Value) -> Value {
        let mut arguments = arguments.clone();
        arguments["target"] = self.name.clone().into();
        self.client.data(tool, &arguments)
    }

    /// The head and the body of an answer.
    fn rest(&self, method: &'static str, path: &str, body: &str) -> String {
        let response = self.server.request(method, path, body).send();
        assert_eq!(response.status, 200, "{path}: {response:?}");
        format!("{response:?}")
    }
}

fn assert_told(what: &str, answer: &str) {
    assert!(answer.contains(BACK) || answer.contains(ANEW), "{what} does not say it: {answer}");
}

fn assert_not_told(what: &str, answer: &str) {
    assert!(!answer.contains(BACK) && !answer.contains(ANEW), "{what} says it again: {answer}");
}

#[test]
fn every_tool_tells_what_happened_to_a_session_and_the_next_does_not() {
    let home = Home::new();
    let server = home.serve();
    let mut session = SetBack::new(&home, &server);
    let calls = [
        ("save_session", json!({})),
        ("branch_session", json!({})),
        ("inspect", json!({})),
        ("get_status", json!({})),
        ("get_history", json!({"limit": 1})),
        ("export_session", json!({"format": "py"})),
        ("read_source", json!({"path": "list_of_nothing"})),
        ("set_variable", json!({"path": "y", "value": 1})),
        ("call", json!({"path": "x.bit_length"})),
        ("dump_stacks", json!({})),
        ("interrupt", json!({})),
        ("undo", json!({})),
        ("restart_session", json!({"mode": "clear"})),
        ("restart_session", json!({})),
        ("execute", json!({"code": "1"})),
    ];
    for (tool, arguments) in calls {
        session.kill();
        let mut arguments = arguments;
        arguments["target"] = session.name.clone().into();
        let answer = session.client.call(tool, &arguments);
        assert_told(tool, &answer.to_string());
        assert_not_told(&format!("what follows {tool}"), &session.ask("execute", &json!({"code": "1"})).to_string());
    }
    session.kill();
    assert_told("close_session", &session.client.call("close_session", &json!({"target": session.name})).to_string());
}

#[test]
fn rest_and_the_command_line_tell_it_too() {
    let home = Home::new();
    let server = home.serve();
    let mut session = SetBack::new(&home, &server);
    let target = json!({"target": session.name}).to_string();
    let query = format!("target={}", session.name);
    let requests = [
        ("POST", "/api/interrupt".to_owned(), target.clone()),
        ("POST", "/api/sessions/find".to_owned(), target.clone()),
        ("GET", format!("/api/history?{query}&limit=1"), String::new()),
        ("GET", format!("/api/export?{query}&format=py"), String::new()),
        ("POST", "/api/execute".to_owned(), json!({"target": session.name, "code": "1"}).to_string()),
    ];
    for (method, path, body) in requests {
        session.kill();
        assert_told(&path, &session.rest(method, &path, &body));
        let next = session.ask("execute", &json!({"code": "1"}));
        assert_not_told(&format!("what follows {path}"), &next.to_string());
    }
    let name = session.name.clone();
    let commands: [&[&str]; 3] =
        [&["sessions", "export", &name, "--format", "py"], &["interrupt", &name], &["exec", "--target", &name, "1"]];
    for command in commands {
        session.kill();
        let ran = home.run(command);
        assert!(ran.status.success(), "{command:?}: {ran:?}");
        assert_told(&format!("{command:?}"), &ran.stderr);
        let next = session.ask("execute", &json!({"code": "1"}));
        assert_not_told(&format!("what follows {command:?}"), &next.to_string());
    }
    session.kill();
    assert_told("close", &session.rest("POST", "/api/sessions/close", &target));
}
