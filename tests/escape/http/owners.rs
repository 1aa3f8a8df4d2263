//! Requests with a good token that reach for what is not its own: somebody else's handles, and rights it was not made with.

use serde_json::{Value, json};

use super::{Attempt, Raw, Refusal::Status, Scene};

pub fn all(scene: &Scene) -> Vec<Attempt> {
    let mut attempts = others(scene);
    attempts.extend(mcp_sessions(scene));
    attempts.extend(scopes(scene));
    attempts
}

/// Every route that takes a handle: to Bob, Alice's is one that never was.
fn others(scene: &Scene) -> Vec<Attempt> {
    let (handle, job) = (&scene.handle, &scene.job);
    let on_lab = json!({"target": handle});
    let run = json!({"target": handle, "code": "6 * 7"});
    [
        ("another's history", scene.get(&format!("/api/history?target={handle}"))),
        ("another's export", scene.get(&format!("/api/export?target={handle}&format=py"))),
        ("another's output", scene.get(&format!("/api/output/{job}"))),
        ("another's file", scene.get(&format!("/files/download/hers.txt?target={handle}"))),
        (
            "an upload to another's session",
            scene.get(&format!("/files/upload?target={handle}&path=his.txt")).method("POST").body("x"),
        ),
        ("code in another's session", scene.post("/api/execute", &run)),
        ("code in another's session by its name", scene.post("/api/execute", &json!({"target": "lab", "code": "1"}))),
        ("names of another's session", scene.post("/api/complete", &run)),
        ("another's session found", scene.post("/api/sessions/find", &on_lab)),
        ("another's session interrupted", scene.post("/api/interrupt", &on_lab)),
    ]
    .into_iter()
    .map(|(name, request)| Attempt {
        name,
        request: request.clone().by(&scene.bob),
        refusal: Status(&[404]),
        control: request.by(&scene.alice),
        controls: 1,
    })
    .collect()
}

/// A session of the protocol belongs to the token that opened it.
fn mcp_sessions(scene: &Scene) -> Vec<Attempt> {
    let message = |method: &str, params: &Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        scene.mcp(&message).with("Mcp-Session-Id", &scene.mcp)
    };
    let list = message("tools/list", &json!({}));
    let alike = |name, attempt: Raw| Attempt {
        name,
        request: attempt.by(&scene.bob),
        refusal: Status(&[400, 404]),
        control: list.clone().by(&scene.alice),
        controls: 1,
    };
    let stream = scene.get("/mcp").with("Accept", "text/event-stream").with("Mcp-Session-Id", &scene.mcp);
    vec![
        alike("another's MCP session", list.clone()),
        alike("a call in another's MCP session", message("tools/call", &json!({"name": "list_targets"}))),
        alike("another's event stream", stream.clone()),
        alike("another's event stream taken up again", stream.clone().with("Last-Event-ID", "0")),
        alike("another's event stream by its oldest event", stream.with("Last-Event-ID", "0/0")),
        alike(
            "two MCP sessions, another's last",
            list.clone().with("Mcp-Session-Id", "x").also("Mcp-Session-Id", &scene.mcp),
        ),
    ]
}

/// What a scope does not include, with the request of whoever may as its control.
fn scopes(scene: &Scene) -> Vec<Attempt> {
    let run = scene.post("/api/execute", &json!({"code": "1", "target": "lab"}));
    let read = scene.get("/api/sessions");
    let open = |body: &Value| scene.post("/api/sessions", body);
    let found = scene.post("/api/sessions/find", &json!({"target": "lab"})).by(&scene.alice);
    let mut attempts = vec![
        Attempt {
            name: "code with the scope read",
            request: run.clone().by(&scene.reader),
            refusal: Status(&[403]),
            control: run.clone().by(&scene.alice),
            controls: 1,
        },
        Attempt {
            name: "a session with the scope read",
            request: open(&json!({})).by(&scene.reader),
            refusal: Status(&[403]),
            control: read.clone().by(&scene.reader),
            controls: 1,
        },
        Attempt {
            name: "sessions with the scope tests",
            request: read.clone().by(&scene.tester),
            refusal: Status(&[403]),
            control: read.clone().by(&scene.reader),
            controls: 1,
        },
        Attempt {
            name: "apps with the scope run",
            request: scene.get("/api/apps").by(&scene.alice),
            refusal: Status(&[403]),
            control: scene.get("/api/apps"),
            controls: 1,
        },
    ];
    let refused = |name, attempt: Raw| Attempt {
        name,
        request: attempt.by(&scene.alice),
        refusal: Status(&[403]),
        control: found.clone(),
        controls: 1,
    };
    attempts.extend([
        refused("the daemon stopped with the scope run", scene.post("/api/stop", &json!({}))),
        refused("the audit record over HTTP", scene.get("/api/audit/head")),
        refused("a session without a sandbox", open(&json!({"sandbox": "open"}))),
        refused("a session without a sandbox, as a rule", open(&json!({"sandbox": {"profile": "open"}}))),
        refused("an interpreter by its path", open(&json!({"python": "/bin/sh"}))),
        refused("a directory of the machine", open(&json!({"cwd": "/"}))),
        refused("a directory of the machine, as one's own", open(&json!({"from": {"cwd": "/"}}))),
        refused("modules imported outside of the sandbox", open(&json!({"preload": ["json"]}))),
        refused("a variable that changes how Python starts", open(&json!({"env": {"PYTHONPATH": "/tmp"}}))),
        refused("a variable that loads a library", open(&json!({"env": {"LD_PRELOAD": "/tmp/x.so"}}))),
        refused("a launcher", open(&json!({"launcher": "sh -c"}))),
        refused("code in an app", scene.post("/api/execute", &json!({"code": "1", "target": "app:web"}))),
        refused("code in a process", scene.post("/api/execute", &json!({"code": "1", "target": "pid:1"}))),
    ]);
    attempts
}
