//! Named attempts at the HTTP door, from beside it and out of a browser. Each has a control that differs in the one thing that is not
//! allowed, and works: without the defence the attempt would too.
//!
//! `attempts` has those that are one request, `scenes` those that take more than that.

mod attempts;
mod owners;
mod scenes;

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use pylair_core::caller::Scope;
use serde_json::{Value, json};

use crate::support::{Home, Server};

/// The door, and who has been here before.
pub struct Scene {
    /// Before the home, so that it ends first.
    pub server: Server,
    pub home: Home,
    /// Has a session `lab` with a file, a job and an MCP session.
    pub alice: String,
    pub bob: String,
    pub reader: String,
    pub tester: String,
    pub expired: String,
    pub revoked: String,
    pub handle: String,
    pub job: String,
    pub mcp: String,
}

/// A request, byte by byte as it is sent.
#[derive(Debug, Clone)]
pub struct Raw {
    method: String,
    target: String,
    version: &'static str,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Sent after it on the same connection.
    then: Vec<u8>,
}

impl Raw {
    /// In place of one of the same name.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.also(name, value)
    }

    /// Besides one of the same name.
    #[expect(clippy::needless_pass_by_value, reason = "texts and numbers alike")]
    pub fn also(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub fn by(self, token: &str) -> Self {
        self.with("Authorization", format!("Bearer {token}"))
    }

    pub fn to(mut self, target: impl Into<String>) -> Self {
        self.target = target.into();
        self
    }

    pub fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    pub fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// With its length, if there is no other word on it.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        let length = self.body.len();
        self.with("Content-Length", length)
    }

    pub fn json(self, body: &Value) -> Self {
        self.body(body.to_string()).with("Content-Type", "application/json")
    }

    /// The bytes of a body whose length the headers tell otherwise.
    pub fn bytes(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.without("Content-Length")
    }

    pub fn then(mut self, next: &Self) -> Self {
        self.then = next.encode();
        self.without("Connection")
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("{} {} {}\r\n", self.method, self.target, self.version);
        for (name, value) in &self.headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        [text.as_bytes(), b"\r\n", &self.body, &self.then].concat()
    }
}

/// What came back, however many answers that are.
#[derive(Debug)]
pub struct Answer {
    pub text: String,
    pub statuses: Vec<u16>,
}

impl Answer {
    fn new(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let statuses = text
            .match_indices("HTTP/1.")
            .filter_map(|(at, found)| text[at + found.len() + 2..].get(..3)?.parse().ok())
            .collect();
        Self { text, statuses }
    }

    pub fn status(&self) -> Option<u16> {
        self.statuses.first().copied()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.text.split("\r\n\r\n").next()?;
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
    }
}

impl Scene {
    fn new() -> Self {
        let home = Home::new()
            .set("PYLAIR_HTTP_RATE", "0")
            .set("PYLAIR_MAX_SESSIONS_PER_OWNER", "3")
            .set("PYLAIR_HTTP_AUTH_FAILURES", "100000")
            .set("PYLAIR_HTTP_HEAD_TIMEOUT_S", "3")
            .set("PYLAIR_HTTP_BODY_TIMEOUT_S", "1");
        let server = home.serve();
        let add = |name: &str, scope: &str, more: &[&str]| {
            let made = home.run(&[&["token", "add", name, "--scope", scope], more].concat());
            assert!(made.status.success(), "{made:?}");
            made.stdout.trim().to_owned()
        };
        let (alice, bob) = (add("alice", "run", &[]), add("bob", "run", &[]));
        let (reader, tester) = (add("reader", "read", &["--owner", "alice"]), add("tester", "tests", &[]));
        let (expired, revoked) = (home.expired_token("expired", Scope::Run), add("revoked", "run", &[]));
        assert!(home.run(&["token", "revoke", "revoked"]).status.success());
        let mcp = server.initialize_as(&alice);
        let mut scene = Self {
            home,
            server,
            alice,
            bob,
            reader,
            tester,
            expired,
            revoked,
            handle: String::new(),
            job: String::new(),
            mcp,
        };
        let opened = scene.post("/api/sessions", &json!({"name": "lab"})).by(&scene.alice);
        scene.handle = field(&scene.send(&opened).text, "handle");
        let code = "import os\nopen('hers.txt', 'w').write('hers')\nopen('a\\r\\nX-Evil: 1', 'w').write('x')\n\
                    os.symlink('/etc/passwd', 'link')\nprint('hers')";
        let ran = scene.post("/api/execute", &json!({"code": code, "target": "lab"})).by(&scene.alice);
        scene.job = field(&scene.send(&ran).text, "job");
        scene
    }

    /// A request with everything in order, to be spoiled.
    pub fn get(&self, target: &str) -> Raw {
        Raw {
            method: "GET".to_owned(),
            target: target.to_owned(),
            version: "HTTP/1.1",
            headers: vec![
                ("Host".to_owned(), format!("127.0.0.1:{}", self.server.port)),
                ("Connection".to_owned(), "close".to_owned()),
                ("Authorization".to_owned(), format!("Bearer {}", self.server.token)),
            ],
            body: Vec::new(),
            then: Vec::new(),
        }
    }

    pub fn post(&self, target: &str, body: &Value) -> Raw {
        self.get(target).method("POST").json(body)
    }

    /// A call over MCP without a session of that.
    pub fn mcp(&self, body: &Value) -> Raw {
        self.post("/mcp", body).with("Accept", "application/json, text/event-stream")
    }

    pub fn own_host(&self) -> String {
        format!("127.0.0.1:{}", self.server.port)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port)).expect("the port is open");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        stream
    }

    pub fn send(&self, request: &Raw) -> Answer {
        self.send_bytes(&request.encode())
    }

    /// Reads until the connection is closed.
    pub fn send_bytes(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has refused already may not read the rest.
        let _refused = stream.write_all(bytes);
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        loop {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
            }
        }
        Answer::new(&answer)
    }
}

/// The first value of this name in some JSON.
fn field(text: &str, name: &str) -> String {
    let mark = format!("\"{name}\":\"");
    let found = text.split_once(&mark).and_then(|(_, rest)| rest.split_once('"'));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).0.to_owned()
}

/// How an attempt has to fail.
#[derive(Debug, Clone, Copy)]
pub enum Refusal {
    /// With one of these, once.
    Status(&'static [u16]),
    /// What came after the first request on its connection is not answered.
    Alone,
    /// Without any answer that says it worked; a connection that is closed says enough.
    Unanswered,
}

pub struct Attempt {
    pub name: &'static str,
    pub request: Raw,
    pub refusal: Refusal,
    /// The same, but for what is not allowed.
    pub control: Raw,
    /// How many requests of the control are answered.
    pub controls: usize,
}

impl Attempt {
    fn check(&self, scene: &Scene) -> Result<(), String> {
        let control = scene.send(&self.control);
        let worked = control.statuses.iter().filter(|status| (200..300).contains(*status)).count();
        if worked != self.controls || control.statuses.len() != self.controls {
            return Err(format!("{}: the control does not work: {control:?}", self.name));
        }
        let answer = scene.send(&self.request);
        let is_refused = match self.refusal {
            Refusal::Status(statuses) => {
                answer.statuses.len() == 1 && answer.status().is_some_and(|status| statuses.contains(&status))
            }
            Refusal::Alone => answer.statuses.len() <= 1,
            Refusal::Unanswered => answer.statuses.iter().all(|status| *status >= 400),
        };
        let granted = answer.text.to_lowercase().contains("access-control-") || answer.text.contains("root:x:");
        if is_refused && !granted { Ok(()) } else { Err(format!("{}: {:?}: {answer:?}", self.name, self.refusal)) }
    }
}

fn all(scene: &Scene) -> Vec<Attempt> {
    [attempts::all(scene), owners::all(scene)].into_iter().flatten().collect()
}

#[test]
fn no_attempt_gets_through_the_http_door() {
    let scene = Scene::new();
    let attempts = all(&scene);
    let names: BTreeSet<_> = attempts.iter().map(|attempt| attempt.name).collect();
    let names = names.into_iter().chain(scenes::ALL.iter().map(|(name, _)| *name)).collect::<BTreeSet<_>>();
    assert_eq!(names.len(), attempts.len() + scenes::ALL.len(), "two have the same name");
    assert!(names.len() >= 120, "only {} attempts", names.len());
    let passed: Vec<_> = attempts.iter().filter_map(|attempt| attempt.check(&scene).err()).collect();
    assert!(passed.is_empty(), "{passed:#?}");
    for (name, play) in scenes::ALL {
        println!("{name}");
        play(&scene);
    }
    let status = scene.send(&scene.get("/api/status"));
    assert_eq!(status.status(), Some(200), "it serves all the same: {status:?}");
}
