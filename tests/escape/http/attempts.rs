//! Requests that are not let in: by their names, their shape, their token, their size, their path and their body.

use serde_json::json;

use super::{
    Attempt, Raw,
    Refusal::{Alone, Status, Unanswered},
    Scene,
};

pub fn all(scene: &Scene) -> Vec<Attempt> {
    [
        hosts(scene),
        origins(scene),
        pages(scene),
        tokens(scene),
        smuggling(scene),
        shapes(scene),
        sizes(scene),
        paths(scene),
        bodies(scene),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Attempts with one control and one refusal.
fn alike(
    control: &Raw,
    statuses: &'static [u16],
    attempts: impl IntoIterator<Item = (&'static str, Raw)>,
) -> Vec<Attempt> {
    let make =
        |(name, request)| Attempt { name, request, refusal: Status(statuses), control: control.clone(), controls: 1 };
    attempts.into_iter().map(make).collect()
}

fn hosts(scene: &Scene) -> Vec<Attempt> {
    let good = scene.get("/api/sessions");
    let port = scene.server.port;
    let own = scene.own_host();
    let host = |host: &str| good.clone().with("Host", host);
    let mut attempts = alike(
        &good,
        &[403],
        [
            ("rebinding: the attacker's name in Host", host(&format!("evil.example:{port}"))),
            (
                "rebinding: the attacker's name in Host and Origin",
                host(&format!("evil.example:{port}")).with("Origin", format!("http://evil.example:{port}")),
            ),
            ("rebinding: a name that contains ours", host(&format!("127.0.0.1:{port}.evil.example"))),
            ("rebinding: a name that ends like ours", host(&format!("evil-localhost:{port}"))),
            ("rebinding: localhost with a trailing dot", host(&format!("localhost.:{port}"))),
            ("rebinding: a subdomain of localhost", host(&format!("evil.localhost:{port}"))),
            ("rebinding: our address as one number", host(&format!("2130706433:{port}"))),
            ("rebinding: another loopback address", host(&format!("127.0.0.2:{port}"))),
            ("rebinding: any address", host(&format!("0.0.0.0:{port}"))),
            ("Host with a user part", host(&format!("evil@127.0.0.1:{port}"))),
            ("Host without a port", host("127.0.0.1")),
            ("Host with another port", host("127.0.0.1:1")),
            ("Host that is empty", host("")),
            ("Host that is missing", good.clone().without("Host")),
            ("Host that is missing in HTTP/1.0", good.clone().without("Host").version("HTTP/1.0")),
            ("X-Forwarded-Host in place of Host", host("evil.example").with("X-Forwarded-Host", &own)),
            ("Forwarded in place of Host", host("evil.example").with("Forwarded", format!("host={own}"))),
            ("X-Original-Host in place of Host", host("evil.example").with("X-Original-Host", &own)),
            ("a target that names another host", good.clone().to("http://evil.example/api/sessions")),
            ("a target that names us, to another Host", host("evil.example").to(format!("http://{own}/api/sessions"))),
        ],
    );
    attempts.extend(alike(&good, &[400], [("two Hosts", good.clone().also("Host", "evil.example"))]));
    attempts.extend(alike(
        &good,
        &[400, 403, 404, 405],
        [
            ("a tunnel through us", good.clone().method("CONNECT").to("127.0.0.1:22").with("Host", &own)),
            ("a target that is an asterisk", good.clone().method("OPTIONS").to("*")),
            ("TRACE that would show the token", good.clone().method("TRACE")),
        ],
    ));
    attempts
}

fn origins(scene: &Scene) -> Vec<Attempt> {
    let port = scene.server.port;
    let good = scene.get("/api/sessions").with("Origin", format!("http://127.0.0.1:{port}"));
    let origin = |origin: &str| good.clone().with("Origin", origin);
    let mut attempts = alike(
        &good,
        &[403],
        [
            ("Origin null, as of a sandboxed frame", origin("null")),
            ("Origin of another site", origin("https://evil.example")),
            ("Origin of another site with our port", origin(&format!("http://evil.example:{port}"))),
            ("Origin that begins like ours", origin(&format!("http://127.0.0.1:{port}.evil.example"))),
            ("Origin that ends like ours", origin(&format!("http://evil.example/?http://127.0.0.1:{port}"))),
            ("Origin of a subdomain of localhost", origin(&format!("http://evil.localhost:{port}"))),
            ("Origin of our name with TLS", origin(&format!("https://127.0.0.1:{port}"))),
            ("Origin of another server on this machine", origin("http://127.0.0.1:1")),
            ("Origin without a port", origin("http://127.0.0.1")),
            ("Origin with a path", origin(&format!("http://127.0.0.1:{port}/"))),
            ("Origin of a file", origin("file://")),
            ("Origin of an extension", origin("chrome-extension://abcdefghijklmnop")),
            ("Origin that is empty", origin("")),
        ],
    );
    attempts.extend(alike(&good, &[400], [("two Origins", good.clone().also("Origin", "https://evil.example"))]));
    attempts
}

/// What a page of another site makes a browser send. The token is there all the same: a browser would not have it.
fn pages(scene: &Scene) -> Vec<Attempt> {
    let body = json!({"code": "6 * 7", "target": "lab"});
    let run = scene.post("/api/execute", &body).by(&scene.alice);
    let typed = |kind: &str| run.clone().with("Content-Type", kind);
    let form = "code=6*7&target=lab";
    let read = scene.get("/api/sessions").with("Sec-Fetch-Site", "same-origin");
    let from = |site: &str| read.clone().with("Sec-Fetch-Site", site);
    let evil = "https://evil.example";
    let mut attempts = alike(
        &run,
        &[415],
        [
            ("a form as text/plain", typed("text/plain")),
            ("a form as text/plain with a charset", typed("Text/Plain; charset=UTF-8")),
            ("a form as urlencoded", typed("application/x-www-form-urlencoded").body(form)),
            ("a form as multipart", typed("multipart/form-data; boundary=x")),
        ],
    );
    attempts.extend(alike(
        &run,
        &[403],
        [
            ("a form from another site", typed("text/plain").with("Origin", evil)),
            ("a form in a sandboxed frame", typed("text/plain").with("Origin", "null")),
            ("fetch with JSON from another site", run.clone().with("Origin", evil)),
        ],
    ));
    attempts.extend(alike(
        &run,
        &[401],
        [
            ("a form without an Origin", typed("text/plain").without("Authorization")),
            ("fetch without a type", run.clone().without("Content-Type").without("Authorization")),
            ("a beacon", typed("application/json").without("Authorization").with("Sec-Fetch-Mode", "no-cors")),
        ],
    ));
    attempts.extend(alike(
        &read,
        &[403],
        [
            ("fetch without CORS from another site", from("cross-site").with("Sec-Fetch-Mode", "no-cors")),
            ("a picture from a site beside ours", from("same-site").with("Sec-Fetch-Dest", "image")),
            ("a script tag of another site", from("cross-site").with("Sec-Fetch-Dest", "script")),
            ("a navigation from another site", from("cross-site").with("Sec-Fetch-Mode", "navigate")),
            (
                "a preflight",
                read.clone().method("OPTIONS").with("Origin", evil).with("Access-Control-Request-Method", "POST"),
            ),
            (
                "a preflight for the private network",
                read.clone()
                    .method("OPTIONS")
                    .with("Origin", evil)
                    .with("Access-Control-Request-Method", "GET")
                    .with("Access-Control-Request-Private-Network", "true"),
            ),
            (
                "a websocket of another site",
                read.clone()
                    .with("Origin", evil)
                    .with("Connection", "Upgrade")
                    .with("Upgrade", "websocket")
                    .with("Sec-WebSocket-Version", "13")
                    .with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ),
            ("an EventSource of another site", read.clone().with("Origin", evil).with("Accept", "text/event-stream")),
        ],
    ));
    let own = format!("http://{}", scene.own_host());
    attempts.extend(alike(
        &read,
        &[401],
        [(
            "a preflight of our own Origin has no token",
            read.clone()
                .method("OPTIONS")
                .with("Origin", own)
                .with("Access-Control-Request-Method", "POST")
                .without("Authorization"),
        )],
    ));
    let initialize = scene.mcp(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "web", "version": "1"},
    }}));
    attempts.extend(alike(
        &initialize,
        &[415],
        [
            ("MCP as text/plain", initialize.clone().with("Content-Type", "text/plain")),
            ("MCP as a form", initialize.clone().with("Content-Type", "application/x-www-form-urlencoded")),
        ],
    ));
    attempts.extend(alike(
        &initialize,
        &[403],
        [
            ("MCP from another site", initialize.clone().with("Origin", evil)),
            ("MCP to another Host", initialize.clone().with("Host", "evil.example")),
        ],
    ));
    attempts
}

fn tokens(scene: &Scene) -> Vec<Attempt> {
    let token = &scene.server.token;
    let good = scene.get("/api/sessions");
    let none = good.clone().without("Authorization");
    let sent = |value: String| good.clone().with("Authorization", value);
    let kept = std::fs::read_to_string(scene.home.places().tokens()).expect("there are tokens");
    let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    let hash = kept["tokens"][0]["sha256"].as_str().expect("a hash").to_owned();
    let mut attempts = alike(
        &good,
        &[401],
        [
            ("no token", none.clone()),
            ("the token in the address", none.clone().to(format!("/api/sessions?token={token}"))),
            ("the token as access_token", none.clone().to(format!("/api/sessions?access_token={token}"))),
            ("the token in a cookie", none.clone().with("Cookie", format!("token={token}; Authorization={token}"))),
            ("the token in X-Api-Key", none.clone().with("X-Api-Key", token)),
            ("the token in Proxy-Authorization", none.clone().with("Proxy-Authorization", format!("Bearer {token}"))),
            ("the token for a websocket", none.clone().with("Sec-WebSocket-Protocol", format!("bearer, {token}"))),
            ("a token of no characters", sent("Bearer ".to_owned())),
            ("a scheme alone", sent("Bearer".to_owned())),
            ("another scheme", sent(format!("Token {token}"))),
            ("no scheme", sent(token.clone())),
            ("basic authentication", sent("Basic dXNlcjpwYXNz".to_owned())),
            ("a wrong token", sent(format!("Bearer {}", "0".repeat(64)))),
            ("the token without its end", sent(format!("Bearer {}", &token[..63]))),
            ("the token without its beginning", sent(format!("Bearer {}", &token[1..]))),
            ("the token and more", sent(format!("Bearer {token}0"))),
            ("the token twice in one header", sent(format!("Bearer {token}, Bearer {token}"))),
            ("a good token behind a bad one", sent(format!("Bearer x, Bearer {token}"))),
            ("two spaces before the token", sent(format!("Bearer  {token}"))),
            ("a tab before the token", sent(format!("Bearer\t{token}"))),
            ("the token in quotes", sent(format!("Bearer \"{token}\""))),
            ("the token in capital letters", sent(format!("Bearer {}", token.to_uppercase()))),
            ("the hash that is kept of a token", sent(format!("Bearer {hash}"))),
            ("the name of a token", sent("Bearer alice".to_owned())),
            ("a token that is over", good.clone().by(&scene.expired)),
            ("a token that was taken back", good.clone().by(&scene.revoked)),
            ("a spoofed address without a token", none.clone().with("X-Forwarded-For", "127.0.0.1")),
            ("a spoofed Unix peer", none.clone().with("X-Pylair-Version", env!("CARGO_PKG_VERSION"))),
        ],
    );
    let run = scene.post("/api/execute", &json!({"code": "1", "target": "lab"})).by(&scene.alice);
    let in_body = json!({"code": "1", "target": "lab", "token": scene.alice, "access_token": scene.alice});
    attempts.extend(alike(
        &run,
        &[401],
        [("the token in the body", run.clone().json(&in_body).without("Authorization"))],
    ));
    let as_user = none.to(format!("http://{token}@{}/api/sessions", scene.own_host()));
    attempts.extend(alike(&good, &[403], [("the token as a user name", as_user)]));
    attempts.extend(alike(
        &good,
        &[400],
        [
            ("a bad token beside a good one", good.clone().also("Authorization", "Bearer x")),
            (
                "a good token beside a bad one",
                good.clone().with("Authorization", "Bearer x").also("Authorization", format!("Bearer {token}")),
            ),
        ],
    ));
    attempts
}

/// A second request hidden in a first one. The control shows that two honest ones on one connection are both answered.
fn smuggling(scene: &Scene) -> Vec<Attempt> {
    let hidden = scene.get("/api/sessions");
    let first = scene.post("/api/complete", &json!({"code": "le", "target": "lab"})).by(&scene.alice);
    let bare = first.clone().bytes("");
    let chunked = |bytes: &str| bare.clone().with("Transfer-Encoding", "chunked").bytes(bytes);
    let control = first.clone().then(&hidden);
    let make = |name, attempt: Raw, refusal| Attempt {
        name,
        request: attempt.then(&hidden),
        refusal,
        control: control.clone(),
        controls: 2,
    };
    vec![
        make("two lengths: one and chunks", chunked("0\r\n\r\n").also("Content-Length", 5), Alone),
        make(
            "two lengths: chunks and one",
            bare.clone()
                .with("Content-Length", 5)
                .also("Transfer-Encoding", "chunked")
                .bytes("0\r\n\r\n")
                .also("Content-Length", 5),
            Alone,
        ),
        make("two lengths that differ", first.clone().also("Content-Length", 3), Unanswered),
        make("two lengths in one header", bare.clone().with("Content-Length", "5, 5"), Unanswered),
        make("a length with a sign", bare.clone().with("Content-Length", "+5"), Unanswered),
        make("a length below zero", bare.clone().with("Content-Length", "-1"), Unanswered),
        make("a length in hexadecimal", bare.clone().with("Content-Length", "0x10"), Unanswered),
        make("a length beyond all numbers", bare.clone().with("Content-Length", "99999999999999999999"), Unanswered),
        make("an encoding that is almost chunked", bare.clone().with("Transfer-Encoding", "xchunked"), Unanswered),
        make("an encoding after chunked", bare.clone().with("Transfer-Encoding", "chunked, identity"), Unanswered),
        make(
            "an encoding with a control character",
            bare.clone().with("Transfer-Encoding", "\u{b}chunked"),
            Unanswered,
        ),
        make("an encoding in HTTP/1.0", chunked("0\r\n\r\n").version("HTTP/1.0"), Unanswered),
        make("a chunk with a sign", chunked("+2\r\n{}\r\n0\r\n\r\n"), Unanswered),
        make("a chunk longer than all numbers", chunked("fffffffffffffffff\r\n{}\r\n0\r\n\r\n"), Unanswered),
        make("a chunk without its end", chunked("2\r\n{}0\r\n\r\n"), Unanswered),
        make(
            "a chunk whose extension does not end",
            chunked(&format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(64 << 10))),
            Unanswered,
        ),
        make("a header that goes on in the next line", first.clone().with("X-A", "a\r\n b"), Unanswered),
        make("a space before the colon", first.clone().also("Content-Length ", 3), Unanswered),
        make("a header without a name", first.clone().also("", "x"), Unanswered),
        make("a line break alone in a header", first.clone().with("X-A", "a\rContent-Length: 3"), Unanswered),
        make("a zero byte in a header", first.clone().with("X-A", "a\0b"), Unanswered),
    ]
}

/// What is no request of the kind we speak.
fn shapes(scene: &Scene) -> Vec<Attempt> {
    let good = scene.get("/api/sessions");
    let control =
        |name, attempt, refusal| Attempt { name, request: attempt, refusal, control: good.clone(), controls: 1 };
    let run = scene.post("/api/execute", &json!({"code": "6 * 7", "target": "lab"})).by(&scene.alice);
    let over = |attempt: Raw| attempt.method("GET");
    let mut attempts = vec![
        control("HTTP/2 without asking", good.clone().method("PRI").to("*").version("HTTP/2.0"), Unanswered),
        control(
            "HTTP/2 by an upgrade",
            good.clone().without("Authorization").with("Connection", "Upgrade, HTTP2-Settings").with("Upgrade", "h2c"),
            Unanswered,
        ),
        control("a version that is not", good.clone().version("HTTP/1.9"), Unanswered),
        control("no version", good.clone().version(""), Unanswered),
        control("a method with a line break", good.clone().method("GET\r\nX: y\r\n"), Unanswered),
        control("a target with a space", good.clone().to("/api/sessions /api/status"), Unanswered),
        control("TLS to a plain port", good.clone().method("\u{16}\u{3}\u{1}"), Unanswered),
    ];
    attempts.extend(alike(
        &run,
        &[403, 405],
        [
            ("another method by a header", over(run.clone()).with("X-HTTP-Method-Override", "POST")),
            ("another method by its other header", over(run.clone()).with("X-Method-Override", "POST")),
            ("another method by the address", over(run.clone()).to("/api/execute?_method=POST")),
            ("HEAD in place of GET", run.clone().method("HEAD").to("/api/execute").bytes("")),
        ],
    ));
    attempts
}

fn sizes(scene: &Scene) -> Vec<Attempt> {
    let good = scene.get("/api/sessions");
    let run = scene.post("/api/execute", &json!({"code": "1", "target": "lab"})).by(&scene.alice);
    let upload = scene.get("/files/upload?target=lab&path=big").method("POST").by(&scene.alice).body("x");
    let many = (0..200).fold(good.clone(), |request, number| request.also(&format!("X-{number}"), "x"));
    let mut attempts = alike(
        &good,
        &[431],
        [
            ("a header that is too long", good.clone().with("X-Long", "x".repeat(40 << 10))),
            ("an address that is too long", good.clone().to(format!("/api/sessions?x={}", "x".repeat(40 << 10)))),
            ("too many headers", many),
        ],
    );
    attempts.extend(alike(
        &run,
        &[413],
        [("a body that is announced too long", run.clone().with("Content-Length", 73_u64 << 20))],
    ));
    attempts.extend(alike(
        &upload,
        &[413],
        [("an upload that is announced too long", upload.clone().with("Content-Length", 1_u64 << 50))],
    ));
    attempts.extend(alike(&run, &[408], [("a body that stops coming", run.clone().with("Content-Length", 100))]));
    attempts
}

fn paths(scene: &Scene) -> Vec<Attempt> {
    let down = |path: &str| scene.get(&format!("/files/download/{path}?target=lab")).by(&scene.alice);
    let up = |path: &str| {
        scene.get(&format!("/files/upload?target=lab&path={path}")).method("POST").by(&scene.alice).body("x")
    };
    let mut attempts = alike(
        &down("hers.txt"),
        &[400, 403, 404, 422],
        [
            ("up from the workspace", down("../../../../../../etc/passwd")),
            ("up, with dots encoded", down("%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd")),
            ("up, with slashes encoded", down("..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd")),
            ("up, encoded twice", down("%252e%252e%252f%252e%252e%252fetc%252fpasswd")),
            ("up, with backslashes", down("..%5c..%5c..%5cetc%5cpasswd")),
            ("up, in an overlong encoding", down("%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd")),
            ("up, from within", down("hers.txt/../../../../../etc/passwd")),
            ("an absolute path", down("/etc/passwd")),
            ("an absolute path, encoded", down("%2fetc%2fpasswd")),
            ("a path through /proc", down("/proc/self/root/etc/passwd")),
            ("a link that leads out", down("link")),
            ("a zero byte in a path", down("hers.txt%00.png")),
            ("a directory as a file", down(".")),
        ],
    );
    attempts.extend(alike(
        &up("ours.txt"),
        &[400, 403, 404],
        [
            ("an upload up from the workspace", up("../evil.txt")),
            ("an upload to an absolute path", up("/tmp/pylair-evil.txt")),
            ("an upload through a link that leads out", up("link")),
            ("an upload to a zero byte", up("a%00b")),
        ],
    ));
    attempts
}

fn bodies(scene: &Scene) -> Vec<Attempt> {
    let run = scene.post("/api/execute", &json!({"code": "6 * 7", "target": "lab"})).by(&scene.alice);
    let text = |text: &[u8]| run.clone().body(text);
    let code = r#""code": "6 * 7", "target": "lab""#;
    let with = |more: &str| text(format!("{{{code}, {more}}}").as_bytes());
    let open = scene.post("/api/sessions/find", &json!({"target": "lab"})).by(&scene.alice);
    let mut attempts = alike(
        &run,
        &[400],
        [
            ("a body nested too deep", text(&[&b"{\"code\": "[..], &vec![b'['; 200_000], b"}"].concat())),
            ("objects nested too deep", text(b"{\"from\":".repeat(100_000).as_slice())),
            ("a number beyond all numbers", with(r#""timeout_s": 1e999"#)),
            ("a number below zero", with(r#""timeout_s": -1"#)),
            ("a number that is none", with(r#""timeout_s": NaN"#)),
            ("a number of a million digits", with(&format!("\"max_chars\": {}", "9".repeat(1_000_000)))),
            ("a key twice", with(r#""target": "other""#)),
            ("a key nobody knows", with(r#""sandbox": "open""#)),
            ("a value of another type", text(br#"{"code": ["6 * 7"], "target": "lab"}"#)),
            ("no object", text(br#""6 * 7""#)),
            ("text that is not UTF-8", text(b"{\"code\": \"\xff\xfe\", \"target\": \"lab\"}")),
            ("half a surrogate", text(br#"{"code": "\ud800", "target": "lab"}"#)),
            ("UTF-16", text(&"{}".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>())),
            ("something behind the body", text(format!("{{{code}}}{{}}").as_bytes())),
            ("compressed without a word", text(b"\x1f\x8b\x08\x00\x00\x00\x00\x00")),
            ("no body", text(b"")),
        ],
    );
    let twice = |first: &str, second: &str| {
        let body = format!(r#"{{"sandbox": {{"profile": "{first}", "profile": "{second}"}}}}"#);
        open.clone().to("/api/sessions").body(body)
    };
    attempts.extend(alike(
        &open,
        &[400, 403],
        [
            ("a profile twice, the good one last", twice("open", "sealed")),
            ("a profile twice, the good one first", twice("sealed", "open")),
        ],
    ));
    let ping = scene.mcp(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    let ping = ping.by(&scene.alice).with("Mcp-Session-Id", &scene.mcp);
    attempts.extend(alike(
        &ping,
        &[400, 415, 422],
        [
            ("MCP nested too deep", ping.clone().body(vec![b'['; 100_000])),
            ("MCP that is not JSON", ping.clone().body("ping")),
            ("MCP that is not UTF-8", ping.clone().body(b"{\"jsonrpc\": \"\xff\"}".to_vec())),
        ],
    ));
    attempts
}
