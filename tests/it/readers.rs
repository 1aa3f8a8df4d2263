//! Whoever does not read what is answered, or says nothing: what is kept for them stays within bounds, and others are served.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    doors::add,
    support::{Home, PATIENCE, Server},
};

/// How much of something the owner uses who runs the server, and how much all do.
fn used(server: &Server, what: &str) -> (u64, u64) {
    let status = server.request("GET", "/api/status", "").send().json();
    let budgets = status["budgets"].as_array().expect("there are some").clone();
    let used = budgets.iter().find(|used| used["what"] == what).unwrap_or_else(|| panic!("no {what} in {budgets:?}"));
    (used["yours"].as_u64().expect("a number"), used["all"].as_u64().expect("a number"))
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
    }
}

/// A session with an output of some megabytes, and the address of its first page.
fn with_output(server: &Server) -> String {
    let opened = json!({"name": "long", "sandbox": "open"}).to_string();
    assert_eq!(server.request("POST", "/api/sessions", opened).send().status, 200);
    let code = json!({"code": "print('x' * 4_000_000)", "target": "long"}).to_string();
    let answer = server.request("POST", "/api/execute", code).send();
    let first: Value = serde_json::from_str(answer.body.lines().next().expect("a line")).expect("JSON");
    format!("/api/output/{}", first["job"]["job"].as_str().unwrap_or_else(|| panic!("{first}")))
}

#[test]
fn answers_that_nobody_reads_are_few_and_dropped_in_the_end() {
    let home = Home::new()
        .set("PYLAIR_HTTP_BUFFER_MB", "4")
        .set("PYLAIR_HTTP_WRITE_TIMEOUT_S", "1")
        .set("PYLAIR_HTTP_RATE", "0");
    let server = home.serve();
    let path = with_output(&server);
    // Each is a megabyte, of which the kernel takes a part.
    let unread: Vec<TcpStream> = (0..40).map(|_| server.request("GET", &path, "").open()).collect();
    let mut most = 0;
    until("answers wait, and then are given up", || {
        let (_, all) = used(&server, "HTTP bytes under way");
        most = all.max(most);
        assert!(all <= 6 << 20, "{all} bytes are kept");
        most > 0 && all == 0 && used(&server, "HTTP requests").1 == 1
    });
    drop(unread);
    assert_eq!(server.request("GET", &path, "").send().status, 200);
}

#[test]
fn a_request_counts_until_its_answer_was_read() {
    let home = Home::new().set("PYLAIR_HTTP_REQUESTS_PER_TOKEN", "2").set("PYLAIR_HTTP_RATE", "0");
    let server = home.serve();
    let path = with_output(&server);
    let owner = format!("uid-{}", rustix::process::getuid().as_raw());
    let reader = add(&home, &["add", "reader", "--scope", "read", "--owner", &owner]);
    let get = || server.request("GET", "/api/sessions", "").with_token(&reader);
    let busy: Vec<_> = (0..2).map(|_| server.request("GET", &path, "").open()).collect();
    until("both are being answered", || {
        let refused = server.request("GET", "/api/sessions", "").send();
        refused.status == 429
    });
    assert_eq!(get().send().status, 200, "another token has a number of its own");
    for mut connection in busy {
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).expect("it was kept");
        assert!(answer.len() > 1_000_000, "{}", answer.len());
    }
    assert_eq!(server.request("GET", "/api/sessions", "").send().status, 200);
}

#[test]
fn bodies_that_stop_coming_take_a_part_of_the_room_and_no_more() {
    let home = Home::new().set("PYLAIR_HTTP_BUFFER_MB", "8").set("PYLAIR_HTTP_RATE", "0");
    let server = home.serve();
    let other = add(&home, &["add", "other", "--scope", "run", "--owner", "other"]);
    let stalled: Vec<TcpStream> = (0..16)
        .map(|_| {
            let request = server.request("POST", "/api/execute", vec![b' '; 1 << 20]).with_token(&other);
            request.header("Content-Length", &(4 << 20).to_string()).open()
        })
        .collect();
    until("as much as may be is here", || {
        let (mine, all) = used(&server, "HTTP bytes under way");
        assert!(all - mine <= 4 << 20, "{all} bytes of another owner");
        all >= 3 << 20
    });
    // There is room for whoever runs the server.
    let code = format!("{}1", "#\n".repeat(1 << 20));
    let body = json!({"code": code, "target": "mine"}).to_string();
    let opened = json!({"name": "mine", "sandbox": "open"}).to_string();
    assert_eq!(server.request("POST", "/api/sessions", opened).send().status, 200);
    assert_eq!(server.request("POST", "/api/execute", body).send().status, 200);
    let mut refused = 0;
    for mut connection in stalled {
        connection.set_nonblocking(true).expect("it can be set");
        let mut answer = [0; 12];
        if connection.read(&mut answer).is_ok_and(|count| count == 12) {
            assert_eq!(&answer, b"HTTP/1.0 429");
            refused += 1;
        }
    }
    assert!(refused >= 8, "{refused} of 16 were told that it is too much");
}

#[test]
fn a_thousand_silent_connections_keep_nobody_out() {
    let home = Home::new().set("PYLAIR_HTTP_STRANGERS", "8");
    let server = home.serve();
    let mut silent: Vec<TcpStream> = Vec::new();
    for round in 0..20 {
        for _ in 0..50 {
            let mut connection = TcpStream::connect(("127.0.0.1", server.port)).expect("the port is open");
            // Some say something, which is nothing in the end. One that has to go may be gone already.
            if round % 2 == 0 {
                let _gone = connection.write_all(b"GET /api/status HTTP/1.1\r\nHost: ");
            }
            silent.push(connection);
        }
        let (mine, all) = used(&server, "HTTP connections");
        assert!((mine, all) == (1, 1), "{mine} of {all} connections have shown a token");
    }
    let mut first = silent.swap_remove(0);
    first.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let mut nothing = Vec::new();
    let _reset = first.read_to_end(&mut nothing);
    assert_eq!(nothing, b"", "the oldest had to go");
}

/// Sessions of older clients keep an answer for a while, for whoever lost the connection to it.
#[test]
fn answers_that_are_remembered_take_room() {
    let home = Home::new().set("PYLAIR_HTTP_BUFFER_MB", "1").set("PYLAIR_HTTP_RATE", "0");
    let server = home.serve();
    let path = with_output(&server);
    let uri = path.replace("/api/output/", "pylair://output/");
    let session = server.initialize();
    let read = |id: u32| {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "resources/read", "params": {"uri": uri}});
        let answer = server.post(&message).header("Mcp-Session-Id", &session).send();
        answer.message()
    };
    let mut answers = (1..20).map(read);
    assert!(answers.next().expect("one")["result"].is_object());
    let (mine, _) = used(&server, "HTTP bytes under way");
    assert!(mine > 200_000, "{mine} bytes are counted after it was read");
    let refused = answers.find(|answer| answer.get("error").is_some()).expect("there is no room for all of them");
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("take all the room"), "{message}");
    let (mine, _) = used(&server, "HTTP bytes under way");
    assert!(mine <= 1 << 20, "{mine} bytes are counted");
}

#[test]
fn an_answer_that_is_too_long_for_a_message_is_refused_in_words() {
    let home = Home::new();
    let server = home.serve();
    let opened = json!({"name": "long", "sandbox": "open"}).to_string();
    assert_eq!(server.request("POST", "/api/sessions", opened).send().status, 200);
    let code = "class Page:\n    def _repr_html_(self):\n        return 'x' * 9_000_000\nPage()";
    let code = json!({"code": code, "target": "long"}).to_string();
    let answer = server.request("POST", "/api/execute", code).send();
    let first: Value = serde_json::from_str(answer.body.lines().next().expect("a line")).expect("JSON");
    let uri = format!("pylair://display/{}/1", first["job"]["job"].as_str().unwrap_or_else(|| panic!("{first}")));
    let session = server.initialize();
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": uri}});
    let answer = server.post(&message).header("Mcp-Session-Id", &session).send().message();
    let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{:.300}", answer.to_string()));
    assert!(message.contains("has 8 MB") && message.contains("/api"), "{message}");
}
