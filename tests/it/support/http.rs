//! `pylair serve` and plain HTTP requests to it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use pylair_core::settings::Places;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{PATIENCE, Watched, process};

fn port_in(line: &str) -> Option<u16> {
    line.strip_suffix("/mcp")?.rsplit_once(':')?.1.parse().ok()
}

/// A daemon in the foreground. Dropping it sends SIGTERM and expects a clean end.
pub struct Server {
    child: Child,
    pub port: u16,
    pub token: String,
}

impl Server {
    pub fn start(mut command: Command, places: &Places) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        // If a daemon was running, that it was stopped is said first.
        let mut ports = lines.by_ref().map_while(Result::ok).filter_map(|line| port_in(&line));
        let port = ports.next().expect("it says where it is");
        // The rest of the greeting is for people.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let token = fs::read_to_string(places.token()).expect("there is a token").trim().to_owned();
        Self { child, port, token }
    }

    /// A POST to `/mcp` with everything in order, to be spoiled by the test.
    pub fn post(&self, message: &Value) -> Request {
        Request::post(self.port, message).with_token(&self.token)
    }

    /// Any request of somebody who has the token.
    pub fn request(&self, method: &'static str, path: &str, body: impl Into<Vec<u8>>) -> Request {
        Request::new(self.port, method, path, body).with_token(&self.token)
    }

    /// The handshake of a legacy client; returns its session id.
    pub fn initialize(&self) -> String {
        self.initialize_as(&self.token)
    }

    pub fn initialize_as(&self, token: &str) -> String {
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "web", "version": "1"},
        }});
        let response = self.post(&message).with_token(token).send();
        assert_eq!(response.status, 200, "{response:?}");
        let id = response.header("mcp-session-id").expect("a legacy session has an id").to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let accepted = self.post(&ready).with_token(token).header("Mcp-Session-Id", &id).send();
        assert_eq!(accepted.status, 202, "{accepted:?}");
        id
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = self.child.id().cast_signed();
        process::kill(pid, Signal::TERM);
        if !std::thread::panicking() {
            Watched::new(pid).assert_ends();
            let status = self.child.wait().expect("it can be waited for");
            assert!(status.success(), "the server ended with {status}");
        }
    }
}

pub struct Request {
    port: u16,
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Request {
    /// To whoever serves there, from nobody in particular.
    pub fn new(port: u16, method: &'static str, path: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("Host".to_owned(), format!("127.0.0.1:{port}"))];
        Self { port, method, path: path.to_owned(), headers, body: body.into() }
    }

    /// A message to `/mcp`.
    pub fn post(port: u16, message: &Value) -> Self {
        Self::new(port, "POST", "/mcp", message.to_string())
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json")
    }

    /// Sets a header, in place of an earlier one.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// Sends the request and leaves the answer to the caller.
    ///
    /// HTTP/1.0, because then the answer simply ends with the connection.
    pub fn open(self) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the port is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut text = format!("{} {} HTTP/1.0\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name == "Content-Length") {
            text.extend(["Content-Length: ", &self.body.len().to_string(), "\r\n"]);
        }
        for (name, value) in &self.headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        text.push_str("\r\n");
        stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(&self.body)).expect("the server reads");
        stream
    }

    /// With another token than the owner's own.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    pub fn send(self) -> Response {
        let mut stream = self.open();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers in time and in UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
        Response { status, head: head.to_owned(), body: body.to_owned() }
    }
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The JSON-RPC answer, from a stream of events or from a plain body.
    pub fn message(&self) -> Value {
        let events = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let plain = std::iter::once(self.body.as_str());
        let answer = events
            .chain(plain)
            .find_map(|text| serde_json::from_str::<Value>(text).ok().filter(|message| message.get("id").is_some()));
        answer.unwrap_or_else(|| panic!("no JSON-RPC answer in {self:?}"))
    }
}
