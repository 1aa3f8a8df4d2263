//! HTTP requests to the built program: bodies of `/mcp` and `/api`, uploads, ranges, and heads that are none.
//!
//! Whatever comes in, the answer is HTTP with a status that is the sender's fault, the daemon stays, and its memory does not grow.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    Target,
    mutate::{self, Random},
};

/// An app that does not answer or is gone, and a full disk, are nobody's fault.
const ALLOWED_FAILURES: &[u16] = &[501, 502, 504, 505, 507];
/// How long a request may take that is in order. Only bounds what hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for an answer to what may be only half a request.
const GLANCE: Duration = Duration::from_millis(40);
/// After this many requests everything that is made once is there.
const WARM: u64 = 500;
const MOST_GROWTH_MB: u64 = 64;

pub struct Requests {
    home: PathBuf,
    daemon: Child,
    port: u16,
    token: String,
    session: String,
    runs: u64,
    memory: Option<u64>,
}

const WORDS: &[&str] = &[
    "name",
    "arguments",
    "method",
    "params",
    "id",
    "jsonrpc",
    "_meta",
    "tools/call",
    "tools/list",
    "initialize",
    "ping",
    "resources/read",
    "resources/list",
    "completion/complete",
    "prompts/get",
    "notifications/cancelled",
    "notifications/initialized",
    "execute",
    "list_files",
    "read_file",
    "write_file",
    "inspect",
    "get_status",
    "get_job",
    "get_history",
    "undo",
    "close_session",
    "open_session",
    "target",
    "session:main",
    "app:web",
    "pid:1",
    "main",
    "code",
    "path",
    "offset",
    "limit",
    "timeout_s",
    "max_chars",
    "wait_s",
    "x",
    "../x",
    "bytes=0-1",
    "bytes=-",
    "Range: bytes=5-1\r\n",
    "\r\n",
    "\r\n\r\n",
    "--edge",
    "--edge--\r\n",
    "Content-Disposition: form-data; name=\"f\"; filename=\"",
    "filename*=utf-8''%ff",
    "Transfer-Encoding: chunked\r\n",
    "Content-Length: 5\r\n",
    "Expect: 100-continue\r\n",
    "HTTP/1.0",
    "HTTP/9.9",
    "%00",
    "%2e%2e%2f",
    "?",
    "&",
    "=",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\u{0}",
    "é",
    "2026-07-28",
    "2025-11-25",
    "1999-01-01",
];

/// The longer ones first.
const ROUTES: &[&str] = &[
    "/api/sessions/close",
    "/api/sessions/find",
    "/api/sessions",
    "/api/status",
    "/api/apps",
    "/api/history",
    "/api/export",
    "/api/events",
    "/api/output/",
    "/api/execute",
    "/api/interrupt",
    "/api/complete",
    "/mcp",
    "/files/upload",
    "/files/download/",
    "/health",
];

impl Requests {
    pub fn new() -> Self {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-http-{}", std::process::id()));
        let _absent = fs::remove_dir_all(&home);
        fs::create_dir_all(home.join("work")).expect("the target directory is writable");
        let pythons = std::env::var("PYLAIR_TEST_PYTHONS").unwrap_or_default();
        let python = pythons.rsplit(':').next().filter(|path| !path.is_empty()).unwrap_or("python3");
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_pylair"))
            .args(["serve", "--port", "0"])
            .env_clear()
            .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("PYLAIR_MAX_SESSIONS", "6")])
            .env("HOME", home.join("work"))
            .env("PYLAIR_HOME", &home)
            .env("PYLAIR_PYTHON", python)
            .current_dir(home.join("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(home.join("stderr")).expect("the directory is writable"))
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(daemon.stdout.take().expect("it is piped")).lines();
        let first = lines.next().expect("it says where it is").expect("in UTF-8");
        let port =
            first.strip_suffix("/mcp").and_then(|line| line.rsplit_once(':')?.1.parse().ok()).expect("there is a port");
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let token = fs::read_to_string(home.join("data/token")).expect("there is a token").trim().to_owned();
        let mut requests = Self { home, daemon, port, token, session: String::new(), runs: 0, memory: None };
        let hello = post("/mcp", INITIALIZE);
        let Ok(Answer::Head(head)) = requests.exchange(&hello, PATIENCE) else { panic!("the program does not answer") };
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        session.expect("there is a legacy session").clone_into(&mut requests.session);
        requests
    }

    fn filled(&self, input: &[u8]) -> Vec<u8> {
        let end = head_end(input).unwrap_or(input.len());
        let (head, body) = input.split_at(end);
        let mut head = head.to_vec();
        for (placeholder, value) in [
            (&b"@TOKEN@"[..], self.token.clone()),
            (b"@HOST@", format!("127.0.0.1:{}", self.port)),
            (b"@SESSION@", self.session.clone()),
            (b"@LENGTH@", body.len().to_string()),
        ] {
            while let Some(at) = find(&head, placeholder) {
                head.splice(at..at + placeholder.len(), value.bytes());
            }
        }
        head.extend_from_slice(body);
        head
    }

    fn exchange(&self, input: &[u8], patience: Duration) -> Result<Answer, String> {
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| format!("nobody is there: {error}"))?;
        stream.set_read_timeout(Some(patience)).expect("a timeout can be set");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
        // It may answer and hang up before everything is said.
        let _refused = stream.write_all(&self.filled(input));
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = head_end(&answer) {
                // What is behind the head may go on for as long as we listen.
                let _gone = stream.shutdown(Shutdown::Both);
                return String::from_utf8(answer[..end].to_vec())
                    .map(Answer::Head)
                    .map_err(|_| "the head is not UTF-8".to_owned());
            }
            match stream.read(&mut buffer) {
                Ok(0) if answer.is_empty() => return Ok(Answer::Closed),
                Ok(0) => return Err(format!("the answer ends in its head: {}", answer.escape_ascii())),
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Answer::None);
                }
                // It was not interested in the rest of what we said.
                Err(_) => return Ok(Answer::Closed),
            }
        }
    }

    /// In megabytes.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
    }
}

enum Answer {
    Head(String),
    Closed,
    None,
}

impl Drop for Requests {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let until = Instant::now() + PATIENCE;
        while self.daemon.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = self.daemon.kill();
        let _gone = self.daemon.wait();
        let _absent = fs::remove_dir_all(&self.home);
    }
}

impl Target for Requests {
    fn seeds(&self) -> Vec<Vec<u8>> {
        seeds()
    }

    fn words(&self) -> &'static [&'static str] {
        WORDS
    }

    /// Changes the body and leaves the rest in order, or the address.
    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        let end = head_end(input)?;
        let (head, body) = input.split_at(end);
        if body.is_empty() || random.one_in(6) {
            let space = head.iter().position(|byte| *byte == b' ')? + 1;
            let line = find(head, b" HTTP/")?.max(space);
            let at = space + random.below(line - space + 1);
            let mut head = head.to_vec();
            head.splice(at..at, random.pick(WORDS).bytes().filter(|byte| !byte.is_ascii_whitespace()));
            head.extend_from_slice(body);
            return Some(head);
        }
        let body = match mutate::json(body, WORDS, random) {
            Some(body) if !random.one_in(5) => body,
            _ => mutate::bytes(body, &[body.to_vec()], WORDS, random),
        };
        Some([head, &body].concat())
    }

    fn run(&mut self, input: &[u8]) -> Result<String, String> {
        // This one is allowed to end it.
        if find(input, b"/api/stop").is_some() {
            return Ok(String::new());
        }
        self.runs += 1;
        if self.runs == WARM {
            self.memory = Some(self.resident());
        }
        let in_order = is_in_order(input);
        let answer = self.exchange(input, if in_order { PATIENCE } else { GLANCE })?;
        if let Ok(Some(status)) = self.daemon.try_wait() {
            return Err(format!("the daemon ended: {status}"));
        }
        let head = match answer {
            Answer::Head(head) => head,
            Answer::None if in_order => return Err("no answer to a request that is in order".to_owned()),
            Answer::None => return Ok("no answer".to_owned()),
            Answer::Closed => return Ok("closed".to_owned()),
        };
        let mut words = head.split(' ');
        let version = words.next().unwrap_or_default();
        let status: u16 = words.next().and_then(|status| status.parse().ok()).unwrap_or(0);
        if !matches!(version, "HTTP/1.1" | "HTTP/1.0") || !(100..600).contains(&status) {
            return Err(format!("no HTTP: {head}"));
        }
        if status >= 500 && !ALLOWED_FAILURES.contains(&status) {
            return Err(format!("status {status}: {head}"));
        }
        let route = ROUTES.iter().position(|route| find(input, route.as_bytes()).is_some_and(|at| at < 8));
        let kind = head.lines().find(|line| line.starts_with("content-type")).unwrap_or_default();
        Ok(format!("{status} {kind} {route:?} {}", input.len().ilog2()))
    }

    fn finish(&mut self) -> Result<(), String> {
        let (Some(before), now) = (self.memory, self.resident()) else { return Ok(()) };
        let errors = fs::read_to_string(self.home.join("stderr")).unwrap_or_default();
        if let Some(line) = errors.lines().find(|line| line.contains("panicked")) {
            return Err(format!("the daemon panicked: {line}"));
        }
        println!("http: the daemon had {before} MB after {WARM} requests and has {now} MB after {}", self.runs);
        if now > before + MOST_GROWTH_MB { Err("its memory grows".to_owned()) } else { Ok(()) }
    }
}

/// Whether it is a whole request, as far as can be said without understanding it.
fn is_in_order(input: &[u8]) -> bool {
    let Some(end) = head_end(input) else { return false };
    let Ok(head) = std::str::from_utf8(&input[..end]) else { return false };
    let mut lines = head.trim_end().split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let lengths = head.matches("Content-Length").count();
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    matches!(first[..], ["GET" | "POST" | "DELETE" | "PUT", path, "HTTP/1.1"] if path.starts_with('/') && is_plain(path))
        && lines.all(|line| {
            line.split_once(": ")
                .is_some_and(|(name, value)| is_plain(name) && value.bytes().all(|byte| (32..127).contains(&byte)))
        })
        && ((lengths == 1 && head.contains("Content-Length: @LENGTH@\r\n")) || (lengths == 0 && input.len() == end))
        && !["transfer-encoding", "expect"].iter().any(|word| head.to_ascii_lowercase().contains(word))
}

fn head_end(text: &[u8]) -> Option<usize> {
    find(text, b"\r\n\r\n").map(|at| at + 4)
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"web","version":"1"}}}"#;

fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = if body.is_empty() { "" } else { "Content-Length: @LENGTH@\r\n" };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: @HOST@\r\nAuthorization: Bearer @TOKEN@\r\nConnection: close\r\n{length}{headers}\r\n{body}"
    )
    .into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let headers = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    request("POST", path, headers, body)
}

fn call(tool: &str, arguments: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
    );
    let headers = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Session-Id: @SESSION@\r\n";
    request("POST", "/mcp", headers, &body)
}

fn seeds() -> Vec<Vec<u8>> {
    let stateless = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"s","version":"1"}}}}"#;
    let stateless_headers = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\n";
    let form = "--edge\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\nup\r\n--edge\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--edge--\r\n";
    vec![
        request("GET", "/health", "", ""),
        request("GET", "/api/status", "", ""),
        request("GET", "/api/sessions", "", ""),
        request("GET", "/api/apps", "", ""),
        request("GET", "/api/history?target=main&limit=5&before=9&max_chars=100", "", ""),
        request("GET", "/api/export?target=main&format=notebook", "", ""),
        request("GET", "/api/events?target=main&after=1", "", ""),
        request("GET", "/api/output/j1?offset=0&limit=10&stream=stdout", "", ""),
        post(
            "/api/execute",
            r#"{"code":"x = 1\nx","target":"main","timeout_s":5,"max_chars":100,"from":{"cwd":"/tmp","client":"c"}}"#,
        ),
        post("/api/interrupt", r#"{"target":"main","job":"j1","forget":false}"#),
        post("/api/sessions", r#"{"name":"other","python":"python3"}"#),
        post("/api/sessions/close", r#"{"target":"other","forget":true}"#),
        post("/api/sessions/find", r#"{"target":"main"}"#),
        post("/api/complete", r#"{"target":"main","code":"pri","cursor":3}"#),
        post("/mcp", INITIALIZE),
        request("POST", "/mcp", stateless_headers, stateless),
        request("GET", "/mcp", "Accept: text/event-stream\r\nMcp-Session-Id: @SESSION@\r\n", ""),
        request("DELETE", "/mcp", "Mcp-Session-Id: none\r\n", ""),
        call("execute", r#"{"code":"1 + 1","output":"json","timeout_s":5}"#),
        call("inspect", r#"{"path":"x","depth":2,"max_items":5}"#),
        call("complete_code", r#"{"code":"x.","cursor":2}"#),
        call("list_files", r#"{"path":".","depth":2}"#),
        call("read_file", r#"{"path":"up/a.txt","offset":0,"max_bytes":100}"#),
        call("write_file", r#"{"path":"w.txt","content":"aGk=","base64":true}"#),
        call("get_job", r#"{"job":"j1","wait_s":0}"#),
        call("get_history", r#"{"target":"main","limit":3}"#),
        call("get_status", "{}"),
        request(
            "POST",
            "/files/upload?path=x.bin&target=main",
            "Content-Type: application/octet-stream\r\n",
            "0123456789",
        ),
        request("POST", "/files/upload", "Content-Type: multipart/form-data; boundary=edge\r\n", form),
        request("GET", "/files/download/x.bin?target=main", "Range: bytes=2-5\r\n", ""),
        request("GET", "/files/download/up/a.txt", "Range: bytes=-3\r\nIf-Range: \"x\"\r\n", ""),
    ]
}
