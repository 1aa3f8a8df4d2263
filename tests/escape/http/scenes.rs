//! Attempts that are more than one request: over time, in numbers, and in what is answered.

use std::io::{BufRead, BufReader, Read, Write};

use serde_json::json;

use super::Scene;

type Play = fn(&Scene);

pub const ALL: &[(&str, Play)] = &[
    ("every answer tells a browser to do nothing with it", guards),
    ("a file that looks like a page is only saved", saved_only),
    ("a line break in a file's name is no header", no_header),
    ("a line break in an address is no header", no_header_from_address),
    ("ranges that overlap, end before they begin or never end", ranges),
    ("a head that stops coming", slow_head),
    ("a head that crawls", crawling_head),
    ("silence", silence),
    ("a websocket is not opened", no_websocket),
    ("another's MCP session is not ended", others_session_stays),
    ("a stream whose token is taken back", revoked_stream),
    ("a stream whose token has had its time", expired_stream),
    ("streams until none are left", many_streams),
    ("sessions until none are left", many_sessions),
];

/// On answers of every kind, also those that the framework makes.
fn guards(scene: &Scene) {
    let answers = [
        scene.get("/health"),
        scene.get("/api/status"),
        scene.get("/nothing"),
        scene.get("/api/sessions").method("DELETE"),
        scene.get("/api/status").without("Authorization"),
        scene.get("/api/status").with("Host", "evil.example"),
        scene.post("/api/execute", &json!({"code": 1})),
        scene.get("/api/export?target=lab&format=html").by(&scene.alice),
        scene.get("/files/download/hers.txt?target=lab").by(&scene.alice),
        scene.mcp(&json!({})),
    ];
    for request in answers {
        let answer = scene.send(&request);
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer:?}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{answer:?}");
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{answer:?}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("sandbox;") && policy.contains("frame-ancestors 'none'"), "{answer:?}");
        assert!(answer.header("cache-control").is_some_and(|cache| cache.contains("no-")), "{answer:?}");
        assert!(answer.header("access-control-allow-origin").is_none(), "{answer:?}");
    }
}

fn saved_only(scene: &Scene) {
    let page = "<script>alert(1)</script>";
    let upload = scene.get("/files/upload?target=lab&path=evil.html").method("POST").by(&scene.alice).body(page);
    assert_eq!(scene.send(&upload).status(), Some(200));
    let answer = scene.send(&scene.get("/files/download/evil.html?target=lab").by(&scene.alice));
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"), "{answer:?}");
    assert!(answer.header("content-disposition").is_some_and(|kind| kind.starts_with("attachment")), "{answer:?}");
    let code = json!({"code": format!("'''{page}'''"), "target": "lab"});
    scene.send(&scene.post("/api/execute", &code).by(&scene.alice));
    let answer = scene.send(&scene.get("/api/export?target=lab&format=html").by(&scene.alice));
    assert!(answer.header("content-disposition").is_some_and(|kind| kind.starts_with("attachment")), "{answer:?}");
    assert!(!answer.text.contains(page), "{answer:?}");
}

fn no_header(scene: &Scene) {
    let answer = scene.send(&scene.get("/files/download/a%0D%0AX-Evil:%201?target=lab").by(&scene.alice));
    // A name with control characters is either none at all or is written without them.
    assert!(answer.header("x-evil").is_none(), "{answer:?}");
    if answer.status() == Some(200) {
        let name = answer.header("content-disposition").unwrap_or_default();
        assert!(name.contains("%0D%0A") && name.starts_with("attachment; filename=\"a__X-Evil"), "{answer:?}");
    }
}

fn no_header_from_address(scene: &Scene) {
    for path in ["/api/history?target=%0D%0AX-Evil:%201", "/api/output/%0D%0AX-Evil:%201", "/%0D%0AX-Evil:%201"] {
        let answer = scene.send(&scene.get(path));
        assert!(answer.header("x-evil").is_none() && answer.status() >= Some(400), "{path}: {answer:?}");
    }
}

fn ranges(scene: &Scene) {
    let ask = |range: &str| {
        scene.send(&scene.get("/files/download/hers.txt?target=lab").by(&scene.alice).with("Range", range))
    };
    assert!(ask("bytes=1-2").text.ends_with("\r\n\r\ner"));
    let many = vec!["0-3"; 1000].join(",");
    for range in [format!("bytes={many}"), "bytes=3-1".to_owned(), "bytes=--1".to_owned(), "bytes=0-0,-1".to_owned()] {
        let answer = ask(&range);
        // The whole once, or nothing: never more than there is.
        let is_whole = answer.status() == Some(200) && answer.text.ends_with("\r\n\r\nhers");
        assert!(is_whole || answer.status() == Some(416), "{range:.40}: {answer:?}");
    }
    for range in ["bytes=99999999999999999999-", "bytes=4-", "bytes=-0"] {
        let answer = ask(range);
        assert!(matches!(answer.status(), Some(200 | 416)), "{range}: {answer:?}");
    }
}

fn slow_head(scene: &Scene) {
    let answer = scene.send_bytes(format!("GET /api/status HTTP/1.1\r\nHost: {}\r\n", scene.own_host()).as_bytes());
    assert_eq!(answer.status(), Some(408), "{answer:?}");
    assert!(answer.text.contains("\"kind\":\"too_slow\""), "{answer:?}");
}

fn crawling_head(scene: &Scene) {
    let mut stream = scene.connect();
    let mut reader = stream.try_clone().expect("it can be cloned");
    let reading = std::thread::spawn(move || {
        let mut answer = Vec::new();
        let _reset = reader.read_to_end(&mut answer);
        answer
    });
    // A byte at a time does not start the clock anew.
    for byte in b"GET /api/status HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
        if stream.write_all(&[*byte]).is_err() || reading.is_finished() {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    let answer = reading.join().expect("reading does not panic");
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

fn silence(scene: &Scene) {
    assert_eq!(scene.send_bytes(b"").text, "");
}

fn no_websocket(scene: &Scene) {
    let upgrade = scene
        .get("/mcp")
        .with("Connection", "Upgrade, close")
        .with("Upgrade", "websocket")
        .with("Sec-WebSocket-Version", "13")
        .with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answer = scene.send(&upgrade);
    assert!(answer.status().is_some_and(|status| status >= 400), "{answer:?}");
    assert!(answer.header("sec-websocket-accept").is_none(), "{answer:?}");
}

/// The answer is the one to an id that nobody has, which says nothing; hers is there all the same.
fn others_session_stays(scene: &Scene) {
    let list = scene.mcp(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
    let end = |id: &str| {
        scene.send(&list.clone().by(&scene.bob).method("DELETE").bytes("").with("Mcp-Session-Id", id)).status()
    };
    assert_eq!(end(&scene.mcp), end("7b1c1e0e-0000-4000-8000-000000000000"));
    let hers = scene.send(&list.by(&scene.alice).with("Mcp-Session-Id", &scene.mcp));
    assert_eq!(hers.status(), Some(200), "{hers:?}");
}

/// Begins to follow Alice's session with a token of hers.
fn follow(scene: &Scene, token: &str) -> BufReader<std::net::TcpStream> {
    let mut stream = scene.connect();
    stream.write_all(&scene.get("/api/events?target=lab&after=0").by(token).encode()).expect("it is read");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).expect("it is answered");
    assert!(line.contains("200"), "{line}");
    stream
}

fn revoked_stream(scene: &Scene) {
    let made = scene.home.run(&["token", "add", "brief", "--scope", "read", "--owner", "alice"]);
    let mut stream = follow(scene, made.stdout.trim());
    assert!(scene.home.run(&["token", "revoke", "brief"]).status.success());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it ends, though nobody asks for anything");
    assert_eq!(scene.send(&scene.get("/api/sessions").by(made.stdout.trim())).status(), Some(401));
}

fn expired_stream(scene: &Scene) {
    let add = ["token", "add", "short", "--scope", "read", "--owner", "alice", "--expires", "6s"];
    let made = scene.home.run(&add);
    let mut stream = follow(scene, made.stdout.trim());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it ends");
    assert_eq!(scene.send(&scene.get("/api/sessions").by(made.stdout.trim())).status(), Some(401));
}

fn many_streams(scene: &Scene) {
    let open: Vec<_> = (0..32).map(|_| follow(scene, &scene.reader)).collect();
    let one_more = scene.send(&scene.get("/api/events?target=lab").by(&scene.reader));
    assert_eq!(one_more.status(), Some(429), "{one_more:?}");
    // Nobody else is kept out.
    drop(follow(scene, &scene.alice));
    drop(open);
}

fn many_sessions(scene: &Scene) {
    let open = |token: &str, name: &str| {
        scene.send(&scene.post("/api/sessions", &json!({"name": name, "sandbox": "sealed"})).by(token))
    };
    for name in ["one", "two", "three"] {
        assert_eq!(open(&scene.bob, name).status(), Some(200), "{name}");
    }
    let refused = open(&scene.bob, "four");
    assert_eq!(refused.status(), Some(422), "{refused:?}");
    assert!(
        refused.text.contains("too_many_sessions") && refused.text.contains("max_sessions_per_owner"),
        "{refused:?}"
    );
    assert!(refused.text.contains("one (") && !refused.text.contains("lab"), "only his own are named: {refused:?}");
    assert_eq!(open(&scene.alice, "second").status(), Some(200), "there is room for others");
    assert!(
        scene.send(&scene.post("/api/sessions/close", &json!({"target": "one"})).by(&scene.bob)).status() == Some(200)
    );
    assert_eq!(open(&scene.bob, "four").status(), Some(200), "and for him when he has closed one");
}
