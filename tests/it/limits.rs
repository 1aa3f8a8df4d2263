//! How much of anything comes in through the HTTP door, and where it may be.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    process::Command,
};

use serde_json::json;

use crate::{
    doors::add,
    support::{Home, PATIENCE, Response, Server, WAIT_FOREVER, skip},
};

/// Refused with this, in the shape of every error.
#[track_caller]
fn said(response: &Response, status: u16, kind: &str) {
    assert_eq!(response.status, status, "{response:?}");
    let error = response.json();
    assert_eq!(error["kind"], kind, "{response:?}");
    assert!(error["message"].is_string() && error["hint"].is_string(), "{response:?}");
}

#[test]
fn too_many_requests_and_too_many_at_once_are_refused_in_one_shape() {
    let home = Home::new()
        .set("PYLAIR_HTTP_RATE", "1")
        .set("PYLAIR_HTTP_AUTH_FAILURES", "3")
        .set("PYLAIR_HTTP_REQUESTS_PER_TOKEN", "2")
        .set("PYLAIR_HTTP_STREAMS_PER_TOKEN", "1");
    let server = home.serve();
    // So many a second, and twice as many in a burst.
    let reader = add(&home, &["add", "reader", "--scope", "read"]);
    let get = |token: &str| server.request("GET", "/api/sessions", "").with_token(token).send();
    let answers: Vec<_> = (0..30).map(|_| get(&reader)).collect();
    assert_eq!((answers[0].status, answers[1].status), (200, 200));
    let refused = answers.iter().find(|answer| answer.status != 200).expect("thirty a second are too many");
    said(refused, 429, "too_many_requests");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Wrong tokens are told to wait after a while; a good one from the same address is let in all the same.
    let wrong: Vec<_> = (0..4).map(|_| get("guess")).collect();
    said(&wrong[2], 401, "unauthorized");
    said(&wrong[3], 429, "too_many_requests");
    assert!(wrong[3].header("retry-after").is_some());
    assert_eq!(get(&server.token).status, 200);
    // Two at once.
    let busy = || server.request("POST", "/api/execute", json!({"code": WAIT_FOREVER, "target": "a"}).to_string());
    for name in ["a", "b"] {
        let opened = server.request("POST", "/api/sessions", json!({"name": name}).to_string()).send();
        assert_eq!(opened.status, 200, "{opened:?}");
    }
    let mut first = BufReader::new(busy().open());
    let mut line = String::new();
    while !line.contains("waiting") {
        line.clear();
        first.read_line(&mut line).expect("the cell runs");
    }
    let second = json!({"code": WAIT_FOREVER, "target": "b"}).to_string();
    let mut second = BufReader::new(server.request("POST", "/api/execute", second).open());
    while !line.contains("job") {
        line.clear();
        second.read_line(&mut line).expect("the cell runs");
    }
    said(&get(&server.token), 429, "too_many_requests");
    // Streams have a number of their own.
    let events = || server.request("GET", "/api/events?target=a", "");
    let mut stream = BufReader::new(events().open());
    stream.read_line(&mut line).expect("it begins");
    assert!(line.contains("200"), "{line}");
    said(&events().send(), 429, "too_many_requests");
}

#[test]
fn too_much_and_too_slow_is_refused_in_the_same_shape() {
    let home = Home::new().set("PYLAIR_HTTP_BODY_TIMEOUT_S", "0.2");
    let server = home.serve();
    // The sizes of heads and bodies.
    let long = server.request("GET", "/api/sessions", "").header("X-Long", &"x".repeat(40 << 10)).send();
    said(&long, 431, "too_large");
    let announced = server.request("POST", "/api/execute", "").header("Content-Length", &(73 << 20).to_string()).send();
    said(&announced, 413, "too_large");
    let announced = server.post(&json!({})).header("Content-Length", &(73 << 20).to_string()).send();
    said(&announced, 413, "too_large");
    said(&server.request("POST", "/api/execute", "{").header("Content-Length", "100").send(), 408, "too_slow");
    said(&server.request("GET", "/api/nothing", "").send(), 404, "not_found");
    said(&server.request("DELETE", "/api/sessions", "").send(), 405, "bad_argument");
}

#[test]
fn a_head_that_does_not_come_and_one_without_end_are_cut_off() {
    let home = Home::new().set("PYLAIR_HTTP_HEAD_TIMEOUT_S", "0.2");
    let server = home.serve();
    let mut slow = TcpStream::connect(("127.0.0.1", server.port)).expect("the port is open");
    slow.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    slow.write_all(b"GET /api/status HTTP/1.1\r\nHost: ").expect("it reads");
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).expect("it is closed");
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    let mut endless = TcpStream::connect(("127.0.0.1", server.port)).expect("the port is open");
    endless.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    endless.write_all(b"GET /api/status HTTP/1.1\r\n").expect("it reads");
    let header = format!("X: {}\r\n", "x".repeat(1000));
    while endless.write_all(header.as_bytes()).is_ok() {}
    answer.clear();
    let _reset = endless.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn other_addresses_than_loopback_need_tls_or_a_proxy() {
    let home = Home::new();
    let refused = home.run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        refused.stderr.lines().next(),
        Some("pylair: `0.0.0.0` is not a loopback address, and traffic to it could be read on the way")
    );
    let refused = home.run(&["serve", "--host", "0.0.0.0", "--port", "0", "--behind-proxy"]);
    assert!(refused.stderr.contains("--allowed-host"), "{}", refused.stderr);
    let args = ["serve", "--host", "0.0.0.0", "--port", "0", "--behind-proxy", "--allowed-host", "py.example"];
    let server = Server::start(home.command(&args), &home.places());
    let get = || server.request("GET", "/api/status", "").header("X-Forwarded-For", "203.0.113.9");
    assert_eq!(get().header("Host", "py.example").send().status, 200);
    assert_eq!(get().header("Host", "py.example").header("Origin", "https://py.example").send().status, 200);
    assert_eq!(get().header("Host", "evil.example").send().status, 403);
    assert_eq!(get().header("Host", "py.example").without("Authorization").send().status, 401);
    drop(server);
    let denied = home.run(&["audit", "--denied"]).stdout;
    assert!(denied.contains("peer 203.0.113.9 by 127.0.0.1:"), "{denied}");
}

#[test]
fn tls_of_our_own() {
    let home = Home::new();
    let (certificate, key) = (home.path.join("cert.pem"), home.path.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        return skip("tls_of_our_own", "there is no openssl to make a certificate with");
    }
    let text = |path: &std::path::Path| path.to_str().expect("our paths are UTF-8").to_owned();
    let (cert_text, key_text) = (text(&certificate), text(&key));
    let args = ["serve", "--host", "0.0.0.0", "--port", "0", "--tls-cert", &cert_text, "--tls-key", &key_text];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let refused = home.run(&args);
    assert!(refused.stderr.contains("can be read by others"), "{}", refused.stderr);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let server = Server::start(home.command(&args), &home.places());
    let asked = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-CAfile", &cert_text, "-servername", "localhost"])
        .args(["-connect", &format!("127.0.0.1:{}", server.port)])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut asked = asked.expect("openssl starts");
    let request = format!(
        "GET /api/status HTTP/1.1\r\nHost: localhost:{}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        server.port, server.token
    );
    let mut input = asked.stdin.take().expect("it is piped");
    input.write_all(request.as_bytes()).expect("openssl reads");
    let mut answer = String::new();
    asked.stdout.take().expect("it is piped").read_to_string(&mut answer).expect("text");
    drop(input);
    asked.wait().expect("it ends");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Whoever speaks plainly is not understood.
    let mut plain = TcpStream::connect(("127.0.0.1", server.port)).expect("the port is open");
    plain.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    let _reset = plain.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("this address speaks TLS"), "{answer}");
}
