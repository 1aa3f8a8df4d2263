//! Care: how many sessions there may be, what is known of each, and jobs as tasks.

use pylair_core::session::{Error, OpenOptions};
use serde_json::json;

use crate::support::{Home, WAIT_FOREVER, with_settings};

#[test]
fn one_session_too_many_is_refused_and_names_the_idle_ones() {
    with_settings(&[("PYLAIR_MAX_SESSIONS", "2")], async |core| {
        let first = core.open_session(OpenOptions { name: Some("first".into()), ..OpenOptions::default() }).await;
        let _first = first.expect("there is room");
        let busy = core.session().await;
        let job = busy.start(WAIT_FOREVER).await;
        let error = core.open_session(OpenOptions::default()).await.expect_err("there is no room");
        let Error::TooMany { limit: 2, idle } = &error else { panic!("{error:?}") };
        assert_eq!(idle.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["first"]);
        assert!(error.hint().contains("idle for longest: first (0 min)"), "{}", error.hint());
        assert_eq!(core.daemon.sessions.count(), 2, "nothing is evicted");
        busy.session.interrupt(Some(&job.id)).await.expect("it stops");
    });
}

#[test]
fn a_status_tells_how_a_session_is() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let session =
        client.execute("import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait)\nt.start()")
            ["session"]
            .clone();
    client.execute("sum(range(10**6))");
    let status = client.data("get_status", &json!({"target": session}))["session"].clone();
    assert_eq!(
        (&status["state"], &status["executions"], &status["threads"]),
        (&json!("idle"), &json!(2), &json!(2)),
        "{status}"
    );
    assert_eq!((&status["alive"], &status["busy"]), (&json!(true), &json!(false)));
    for figure in ["uptime_s", "mean_ms", "last_ms", "rss_mb", "cpu_s", "responsiveness_ms"] {
        assert!(status[figure].is_number(), "{figure}: {status}");
    }
    let machine = client.data("get_status", &json!({}))["daemon"]["machine"].clone();
    for figure in ["memory_mb", "memory_available_mb", "cpus", "load", "disk_available_mb"] {
        assert!(machine[figure].is_number(), "{figure}: {machine}");
    }
    client.execute("stop.set()");
}

#[test]
fn targets_are_listed_in_a_line_each() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let none = client.call("list_targets", &json!({}));
    assert_eq!(crate::support::text_of(&none), "no session is open; execute opens one");
    client.data("open_session", &json!({"name": "lab", "description": "for trying"}));
    let text = crate::support::text_of(&client.call("list_targets", &json!({})));
    assert!(
        text.starts_with("lab (") && text.contains("): idle, Python 3.") && text.ends_with(", for trying"),
        "{text}"
    );
}

#[test]
fn a_cell_that_outlives_the_reply_is_a_task_for_clients_that_know_tasks() {
    let home = Home::new();
    let mut client = home.client();
    let id = client.request(
        "initialize",
        &json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
            "clientInfo": {"name": "it", "version": "1"},
        }),
    );
    assert!(client.answer(id)["result"]["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object());
    client.notify("notifications/initialized", &json!({}));
    let quick = client.call("execute", &json!({"code": "1 + 1"}));
    assert!(quick["content"].is_array(), "what ends in time is answered: {quick}");
    let slow = client
        .call("execute", &json!({"code": "import time\ngo_on = True\nwhile go_on: time.sleep(0.001)", "wait_s": 0}));
    assert_eq!(slow["resultType"], "task", "{slow}");
    let task = slow["taskId"].clone();
    let id = client.request("tasks/get", &json!({"taskId": task}));
    assert_eq!(client.answer(id)["result"]["status"], "working");
    let id = client.request("tasks/cancel", &json!({"taskId": task}));
    assert!(client.answer(id).get("error").is_none());
    loop {
        let id = client.request("tasks/get", &json!({"taskId": task}));
        let status = client.answer(id)["result"]["status"].clone();
        if status != "working" {
            assert_eq!(status, "cancelled");
            break;
        }
    }
    assert_eq!(client.execute("go_on")["result"], "True", "the session goes on");
}
