//! An MCP client over stdio, driving the built binary. Dropping it asserts that no message was left unread.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
};

use serde_json::{Value, json};

use super::{PATIENCE, Watched};

pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Read while something else was waited for.
    kept: VecDeque<Value>,
    next_id: i64,
    over: bool,
}

impl Client {
    /// Starts the bridge with pipes for its stdio.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take();
        let messages = read_messages(child.stdout.take().expect("it is piped"));
        Self { child, stdin, messages, kept: VecDeque::new(), next_id: 1, over: false }
    }

    /// The bridge's own process.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("the client has not left");
        stdin.write_all(bytes).and_then(|()| stdin.flush()).expect("somebody reads our messages");
    }

    pub fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    /// The next message, whatever it is. None when the other side has closed.
    pub fn next(&mut self) -> Option<Value> {
        if let Some(message) = self.kept.pop_front() {
            return Some(message);
        }
        match self.messages.recv_timeout(PATIENCE) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no message came for {} s", PATIENCE.as_secs()),
        }
    }

    /// The first message like this; others are kept for later.
    fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).expect("it was just found");
        }
        loop {
            match self.messages.recv_timeout(PATIENCE) {
                Ok(message) if wanted(&message) => return message,
                Ok(message) => self.kept.push_back(message),
                Err(error) => panic!("waiting for {what}: {error}; unread: {:?}", self.kept),
            }
        }
    }

    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &str, params: &Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// The answer to a request: the whole message.
    pub fn answer(&mut self, id: i64) -> Value {
        self.wait_for(&format!("the answer to request {id}"), |message| {
            message["id"] == id && message.get("method").is_none()
        })
    }

    pub fn notification(&mut self, method: &str) -> Value {
        self.wait_for(method, |message| message["method"] == method)
    }

    /// A daemon that is killed right behind an answer may not have noted that it gave one. The client is then told again what became of
    /// the request, and clients drop answers to what they do not wait for.
    pub fn forget_second_answers(&mut self) {
        self.kept.retain(|message| message["error"]["data"]["kind"] != "daemon_died");
    }

    /// Forgets notifications that came meanwhile: how many there are is a matter of time.
    pub fn forget_notifications(&mut self, method: &str) {
        self.kept.retain(|message| message["method"] != method);
    }

    pub fn initialize(&mut self) -> Value {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        });
        let id = self.request("initialize", &params);
        let answer = self.answer(id);
        self.notify("notifications/initialized", &json!({}));
        answer["result"].clone()
    }

    /// Starts a tool call and returns its request id.
    pub fn begin(&mut self, tool: &str, arguments: &Value) -> i64 {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// A tool call's result, `isError` or not.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let id = self.begin(tool, arguments);
        let answer = self.answer(id);
        assert!(answer["result"].is_object(), "{tool} was answered with {answer}");
        answer["result"].clone()
    }

    /// A data tool's structured answer.
    #[track_caller]
    pub fn data(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert_ne!(result["isError"], true, "{tool} failed: {result}");
        result["structuredContent"].clone()
    }

    /// What an `isError` answer says: kind, message, hint.
    #[track_caller]
    pub fn failure(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool} did not fail: {result}");
        result["structuredContent"].clone()
    }

    /// Runs a cell in the default session and returns the structured outcome.
    #[track_caller]
    pub fn execute(&mut self, code: &str) -> Value {
        self.data("execute", &json!({"code": code, "output": "json"}))
    }

    /// The readable answer to a cell.
    #[track_caller]
    pub fn execute_text(&mut self, code: &str) -> String {
        text_of(&self.call("execute", &json!({"code": code})))
    }

    /// Closes the bridge's stdin, reads what is left and waits for its end.
    pub fn close(mut self) -> (Vec<Value>, ExitStatus) {
        self.leave()
    }

    fn leave(&mut self) -> (Vec<Value>, ExitStatus) {
        self.over = true;
        drop(self.stdin.take());
        Watched::new(self.pid()).assert_ends();
        let mut unread: Vec<Value> = self.kept.drain(..).collect();
        loop {
            match self.messages.recv_timeout(PATIENCE) {
                Ok(message) => unread.push(message),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the bridge is gone but its stdout stays open"),
            }
        }
        (unread, self.child.wait().expect("it can be waited for"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if std::thread::panicking() {
            // It may be gone; the home looks for what is left.
            let _gone = self.child.kill();
            let _gone = self.child.wait();
            return;
        }
        let (unread, status) = self.leave();
        assert!(unread.is_empty(), "messages were left unread: {unread:?}");
        assert!(status.success(), "the bridge ended with {status}");
    }
}

/// One JSON message a line, until the end.
pub fn read_messages(output: impl Read + Send + 'static) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let message =
                serde_json::from_str(&line).unwrap_or_else(|error| json!({"not JSON": line, "why": error.to_string()}));
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}

pub fn text_of(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("the first block is no text: {result}")).to_owned()
}
