//! What outlives a process: saves, restarts that keep variables, kept definitions and daemons that come back.

use std::time::Duration;

use pylair_core::session::{Error, OnTimeout, OpenOptions, Outcome, State};
use serde_json::json;

use crate::sealed::open_sealed;
use crate::support::{Core, Home, TestSession, on_each_python, on_newest_python, skip, why_no_namespaces};

const STATE: &str = "import json\nrows = [1, 2]\nsame = rows\ndef double(n): return n * factor\nfactor = 2\n\
                     class Point:\n    def __init__(self, x): self.x = x\np = Point(5)\ngen = (n for n in rows)";

#[test]
fn a_save_brings_back_what_can_be_and_names_the_rest() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value(STATE).await;
        let report = core.daemon.sessions.save(&session.session).await.expect("it can be saved");
        let saved: Vec<_> = report.saved.saved.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(saved, ["json", "double", "Point", "rows", "same", "factor", "p"]);
        assert!(report.saved.saved.iter().all(|variable| variable.verified), "{report:?}");
        assert_eq!((report.verified, report.notes.len()), (7, 0), "{report:?}");
        assert_eq!(report.saved.not_saved[0].name, "gen");
        let options = OpenOptions { restore: Some(report.save), ..OpenOptions::default() };
        let other = core.open_session(options).await.expect("it opens");
        assert_eq!(other.session.restored().expect("a report").restored.len(), 7);
        assert_eq!(
            other.value("rows is same, double(4), p.x, type(p) is Point, json.dumps(rows)").await,
            "(True, 8, 5, True, '[1, 2]')"
        );
        let by_name = OpenOptions { restore: Some(session.session.info.name.to_string()), ..OpenOptions::default() };
        assert_eq!(core.open_session(by_name).await.expect("the newest of that name").value("factor").await, "2");
    });
}

#[test]
fn a_save_that_is_not_there_is_an_error_that_names_those_that_are() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        let save = core.daemon.sessions.save(&session.session).await.expect("it can be saved").save;
        let options = OpenOptions { restore: Some("../../etc/passwd".to_owned()), ..OpenOptions::default() };
        let error = core.open_session(options).await.expect_err("there is none");
        assert_eq!(error.kind(), "unknown_save");
        assert!(error.hint().contains(&save), "{}", error.hint());
    });
}

/// The file is the daemon's, and nothing in a sandbox may open it again.
#[test]
fn what_is_saved_in_a_sandbox_is_verified() {
    on_newest_python(async |core| {
        if let Some(reason) = why_no_namespaces() {
            return skip("what_is_saved_in_a_sandbox_is_verified", &reason);
        }
        for sandbox in ["workspace", "sealed"] {
            let (name, value) = core.home.marker();
            let env = [(name.to_owned(), value.to_owned())].into();
            let options = OpenOptions { sandbox: Some(sandbox.into()), env, ..OpenOptions::default() };
            let session = core.open_session(options).await.expect("it opens");
            session.value(STATE).await;
            let report = core.daemon.sessions.save(&session.session).await.expect("it can be saved");
            assert_eq!((report.verified, report.saved.saved.len()), (7, 7), "{report:?}");
            assert_eq!(report.notes, Vec::<String>::new());
        }
    });
}

/// Bringing a value back runs what it says of itself.
#[test]
fn what_was_saved_in_a_sandbox_comes_back_in_a_sandbox_only() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "what_was_saved_in_a_sandbox_comes_back_in_a_sandbox_only").await else {
            return;
        };
        session.value("x = 5").await;
        let save = core.daemon.sessions.save(&session.session).await.expect("it can be saved").save;
        for restore in [save.clone(), session.session.info.name.to_string()] {
            let options = OpenOptions { restore: Some(restore), ..OpenOptions::default() };
            let error = core.open_session(options).await.expect_err("it has no sandbox");
            assert!(error.to_string().contains("was saved in a sandbox"), "{error}");
        }
        let sandbox = Some("sealed".into());
        let options = OpenOptions { restore: Some(save), sandbox, ..OpenOptions::default() };
        assert_eq!(core.open_session(options).await.expect("it opens").value("x").await, "5");
    });
}

#[test]
fn a_damaged_save_opens_no_session_and_says_why() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = list(range(1000))").await;
        let save = core.daemon.sessions.save(&session.session).await.expect("it can be saved").save;
        let path = core.daemon.places.data.join(format!("saves/{save}.save"));
        let bytes = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("it can be cut");
        let before = core.daemon.sessions.count();
        let options = OpenOptions { restore: Some(save), ..OpenOptions::default() };
        let error = core.open_session(options).await.expect_err("it is cut");
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert_eq!(core.daemon.sessions.count(), before);
    });
}

#[test]
fn a_restart_keeps_what_variables_it_can() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value(STATE).await;
        let pid = session.pid();
        let notes = core.daemon.sessions.restart_keeping(&session.session).await.expect("it restarts");
        assert!(notes[0].starts_with("7 variables were restored: "), "{notes:?}");
        assert!(notes[1].starts_with("not restored: gen ("), "{notes:?}");
        assert_ne!(session.pid(), pid);
        assert_eq!(session.value("double(p.x)").await, "10");
    });
}

#[test]
fn a_kept_session_is_listed_when_closed_and_starts_when_used() {
    on_newest_python(async |core| {
        let options = OpenOptions {
            name: Some("lab".to_owned()),
            startup: Some("ready = 'started'".to_owned()),
            keep: true,
            ..OpenOptions::default()
        };
        let session = core.open_session(options).await.expect("it opens");
        session.value("x = 1").await;
        core.close_session(&session).await;
        let stopped = core.daemon.sessions.statuses(&core.caller);
        assert_eq!((stopped[0].name.as_str(), stopped[0].state), ("lab", State::Stopped));
        let again = core.daemon.sessions.reach(&core.caller, "lab").await.expect("it starts");
        let again = TestSession { session: again };
        assert_eq!(again.value("ready, 'x' in globals()").await, "('started', False)");
        assert_eq!(again.session.status().cell, 2, "numbers of cells go on");
        let name_taken = OpenOptions { name: Some("lab".to_owned()), ..OpenOptions::default() };
        assert_eq!(core.open_session(name_taken).await.expect_err("it is taken").kind(), "name_taken");
        assert_eq!(core.daemon.sessions.close(&core.caller, "lab", true).await.expect("it closes"), "lab");
        assert!(core.daemon.sessions.statuses(&core.caller).is_empty());
    });
}

#[test]
fn a_stopped_session_can_be_forgotten() {
    on_newest_python(async |core| {
        let options = OpenOptions { name: Some("lab".to_owned()), keep: true, ..OpenOptions::default() };
        let session = core.open_session(options).await.expect("it opens");
        core.close_session(&session).await;
        let error = core.daemon.sessions.close(&core.caller, "lab", false).await.expect_err("it is stopped");
        assert_eq!(error.kind(), "stopped_session");
        core.daemon.sessions.close(&core.caller, "lab", true).await.expect("it is forgotten");
        assert_eq!(
            core.daemon.sessions.reach(&core.caller, "lab").await.expect_err("it is gone").kind(),
            "closed_session"
        );
    });
}

#[test]
fn an_idle_session_survives_the_daemon() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let first = client.execute("import math\nx = [1, 2]\ndef f(): return sum(x)");
    assert!(home.run(&["stop"]).status.success());
    let after = client.execute("x.append(3)\nf()");
    assert_eq!(after["result"], "6", "{after}");
    assert_eq!((&after["session"], after["cell"].as_u64()), (&first["session"], Some(2)));
    let notes = after["notes"].to_string();
    assert!(notes.contains("3 variables were restored: math, f, x"), "{notes}");
}

#[test]
fn a_session_that_came_back_and_was_only_looked_at_comes_back_again() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("x = 41");
    for _ in 0..2 {
        assert!(home.run(&["stop"]).status.success());
        assert_eq!(client.data("inspect", &json!({"path": "x"}))["preview"], "41");
    }
    assert_eq!(client.execute("x + 1")["result"], "42");
}

#[test]
fn what_was_restored_is_neither_undone_nor_lost_by_a_crash() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 41").await;
        core.daemon.sessions.restart_keeping(&session.session).await.expect("it restarts");
        core.wait_for_checkpoint(&session, 0).await;
        session.value("y = 1").await;
        assert_eq!(session.session.undo(None).await.expect("to what was restored").cell, 0);
        assert_eq!(session.value("x").await, "41");
        assert_eq!(session.run("import os\nos._exit(1)").await.outcome, Outcome::Died);
        assert_eq!(session.value("x").await, "41");
    });
}

#[test]
fn two_saves_at_once_are_both_whole() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = list(range(10000))").await;
        let sessions = &core.daemon.sessions;
        let (one, other) = tokio::join!(sessions.save(&session.session), sessions.save(&session.session));
        assert_eq!(one.expect("it is saved").save, other.expect("it is saved").save);
        let name = session.session.info.name.to_string();
        let again = core.open_session(OpenOptions { restore: Some(name), ..OpenOptions::default() }).await;
        assert_eq!(again.expect("it opens").value("len(x)").await, "10000");
    });
}

#[test]
fn a_busy_session_survives_the_daemon_as_it_was_at_its_last_checkpoint() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "busy"}));
    client.data("execute", &json!({"code": "x = 1", "target": "busy", "output": "json"}));
    let running =
        client.begin("execute", &json!({"code": crate::support::WAIT_FOREVER, "target": "busy", "wait_s": 0}));
    client.answer(running);
    assert!(home.run(&["stop"]).status.success());
    let after = client.data("execute", &json!({"code": "x", "target": "busy", "output": "json"}));
    assert_eq!((&after["result"], after["cell"].as_u64()), (&json!("1"), Some(3)), "{after}");
    let told = "a cell was running when it was saved, and so it is as it was after cell 1: what cell 2 did is lost";
    assert!(after["notes"].as_array().is_some_and(|notes| notes.contains(&json!(told))), "{after}");
}

#[test]
fn a_busy_session_that_cannot_be_saved_is_named_by_the_next_daemon() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "busy"}));
    // Nothing is copied while there is a second thread.
    let code = format!(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{}",
        crate::support::WAIT_FOREVER
    );
    client.data("execute", &json!({"code": code, "target": "busy", "wait_s": 0, "output": "json"}));
    assert!(home.run(&["stop"]).status.success());
    let failure = client.failure("execute", &json!({"code": "1", "target": "busy"}));
    assert_eq!(failure["kind"], "closed_session", "{failure}");
    let message = failure["message"].as_str().expect("a message");
    assert!(message.contains("the daemon ended (somebody stopped it), while cell 1 ran"), "{message}");
}

#[test]
fn stop_names_a_busy_session_that_cannot_be_saved() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "busy"}));
    let thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nx = 1";
    client.data("execute", &json!({"code": thread, "target": "busy", "output": "json"}));
    client.data(
        "execute",
        &json!({"code": crate::support::WAIT_FOREVER, "target": "busy", "wait_s": 0, "output": "json"}),
    );
    let stopped = home.run(&["stop"]);
    assert!(stopped.status.success());
    assert!(stopped.stdout.contains("not saved: the variables of session busy ("), "{}", stopped.stdout);
}

#[test]
fn a_cell_that_runs_when_the_daemon_leaves_is_not_said_to_be_kept() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "busy"}));
    let thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()";
    client.data("execute", &json!({"code": thread, "target": "busy", "output": "json"}));
    let code = crate::support::WAIT_FOREVER;
    let running = client.begin("execute", &json!({"code": code, "target": "busy", "output": "json"}));
    home.wait_until_written("\"cell\":2");
    assert!(home.run(&["stop"]).status.success());
    let answer = client.answer(running);
    // Or it is answered by the bridge, that the daemon was stopped.
    assert!(!answer.to_string().contains("interrupted"), "{answer}");
}

#[test]
fn what_was_told_of_a_save_is_not_told_again() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "busy", "keep": true}));
    client.data("execute", &json!({"code": "x = 1", "target": "busy", "output": "json"}));
    client.data(
        "execute",
        &json!({"code": crate::support::WAIT_FOREVER, "target": "busy", "wait_s": 0, "output": "json"}),
    );
    assert!(home.run(&["stop"]).status.success());
    let after = client.data("execute", &json!({"code": "x", "target": "busy", "output": "json"}));
    assert!(after["notes"].to_string().contains("a cell was running when it was saved"), "{after}");
    crate::support::kill(home.daemon_pid(), rustix::process::Signal::KILL);
    let killed = client.data("execute", &json!({"code": "1", "target": "busy", "output": "json"}));
    let told = killed["notes"].to_string();
    assert!(told.contains("the variables it had were not saved"), "{killed}");
    assert!(!told.contains("a cell was running"), "{killed}");
}

#[test]
fn a_daemon_names_the_sessions_of_one_that_was_killed() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let opened = client.data("open_session", &json!({"name": "lost"}));
    client.data("execute", &json!({"code": "x = 1", "target": "lost", "output": "json"}));
    home.wait_until_written("\"outcome\":\"ok\"");
    crate::support::kill(home.daemon_pid(), rustix::process::Signal::KILL);
    for target in [json!("lost"), opened["handle"].clone()] {
        let failure = client.failure("execute", &json!({"code": "x", "target": target}));
        assert_eq!(failure["kind"], "closed_session", "{failure}");
        let message = failure["message"].as_str().expect("a message");
        assert!(message.ends_with("was killed, or the machine went down; cell 1 is the last recorded"), "{message}");
    }
    let history = client.data("get_history", &json!({"target": opened["handle"]}));
    assert!(history.to_string().contains("x = 1"), "what was run is still known: {history}");
    let failure = client.failure("execute", &json!({"code": "x", "target": "never"}));
    assert_eq!(failure["kind"], "unknown_session", "{failure}");
    // Also a session that was opened a moment before, which is all that is known of it.
    client.data("open_session", &json!({"name": "short"}));
    crate::support::kill(home.daemon_pid(), rustix::process::Signal::KILL);
    let failure = client.failure("execute", &json!({"code": "x", "target": "short"}));
    assert_eq!(failure["kind"], "closed_session", "{failure}");
    assert!(failure["message"].to_string().contains("no cell was recorded"), "{failure}");
}

#[test]
fn a_kept_session_says_that_its_variables_are_gone_although_no_cell_was_recorded() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.data("open_session", &json!({"name": "quick", "keep": true}));
    // The daemon is killed right after its answer, before the journal is written.
    client.data("execute", &json!({"code": "x = 1", "target": "quick", "output": "json"}));
    crate::support::kill(home.daemon_pid(), rustix::process::Signal::KILL);
    let after = client.data("execute", &json!({"code": "1", "target": "quick", "output": "json"}));
    assert!(after["notes"].to_string().contains("the variables it had were not saved"), "{after}");
}

/// Long idleness, without waiting for it.
async fn end_idle(core: &Core) {
    core.daemon.sessions.end_idle(Duration::ZERO).await;
}

#[test]
fn an_idle_session_past_its_time_comes_back_when_it_is_used() {
    on_each_python(async |core| {
        let default = async || TestSession {
            session: core.daemon.sessions.target(&core.caller, None).await.expect("there is one"),
        };
        let first = default().await.run("x = [1]\ngen = (n for n in x)").await;
        assert_eq!(first.notes, ["this is a new session"]);
        let before = default().await.session.info.handle.clone();
        end_idle(core).await;
        let stopped = core.daemon.sessions.statuses(&core.caller);
        assert_eq!((stopped.len(), stopped[0].state), (1, State::Stopped));
        let again = default().await;
        assert_eq!(again.session.info.handle, before);
        let report = again.run("x").await;
        assert_eq!((report.result.as_deref(), report.cell), (Some("[1]"), 2));
        assert_eq!(report.notes[0], "the session was started again");
        assert_eq!(report.notes[1], "nobody used it for 0 s, and so it had been saved and its process ended");
        assert_eq!(report.notes[2], "1 variable was restored: x");
        assert!(report.notes[3].starts_with("not restored: gen ("), "{:?}", report.notes);
        assert_eq!(again.run("1").await.notes, Vec::<String>::new(), "it is told once");
    });
}

#[test]
fn an_idle_session_in_a_sandbox_comes_back_with_its_files() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "an_idle_session_in_a_sandbox_comes_back_with_its_files").await else {
            return;
        };
        session.value("x = 5\nopen('kept.txt', 'w').write('there')").await;
        let name = session.session.info.name.to_string();
        end_idle(core).await;
        let again = core.daemon.sessions.reach(&core.caller, &name).await.expect("it starts");
        let again = TestSession { session: again };
        assert_eq!(again.value("x, open('kept.txt').read()").await, "(5, 'there')");
    });
}

#[test]
fn a_session_that_is_used_is_not_ended_as_idle() {
    on_newest_python(async |core| {
        let busy = core.open_session(OpenOptions { name: Some("busy".into()), ..OpenOptions::default() }).await;
        let busy = busy.expect("it opens");
        let job = busy.start(crate::support::WAIT_FOREVER).await;
        end_idle(core).await;
        busy.session.interrupt(Some(&job.id)).await.expect("it is still there");
        // Whatever comes while it is being saved and ended is either done and kept, or refused.
        let mut done = 0;
        busy.value("n = 0").await;
        for _ in 0..20 {
            let ((), ran) = tokio::join!(end_idle(core), async {
                let session = core.daemon.sessions.reach(&core.caller, "busy").await?;
                session.execute("n += 1".to_owned(), None, OnTimeout::Keep, "test").await
            });
            match ran {
                Ok(job) => {
                    let report = crate::support::report(&job).await;
                    assert_eq!(report.outcome, Outcome::Ok, "{report:?}");
                    done += 1;
                }
                Err(error) => assert!(matches!(error, Error::Gone | Error::Starting { .. }), "{error:?}"),
            }
        }
        let session = core.daemon.sessions.reach(&core.caller, "busy").await.expect("it comes back");
        assert_eq!(TestSession { session }.value("n").await, done.to_string());
    });
}

#[test]
fn a_default_session_that_is_new_says_what_became_of_the_one_before() {
    let home = Home::new();
    let mut client = home.initialized_client();
    let first = client.execute("x = 1");
    assert_eq!(first["notes"], json!(["this is a new session"]));
    home.wait_until_written("\"outcome\":\"ok\"");
    crate::support::kill(home.daemon_pid(), rustix::process::Signal::KILL);
    let notes = client.execute("'x' in globals()")["notes"].to_string();
    assert!(
        notes.contains("this is a new session: the one before is gone (the daemon that ran it was killed"),
        "{notes}"
    );
    let handle = client.data("list_targets", &json!({}))["sessions"][0]["handle"].clone();
    client.data("close_session", &json!({"target": handle}));
    let notes = client.execute("1")["notes"].to_string();
    assert!(notes.contains("this is a new session: the one before is gone (you closed it)"), "{notes}");
    let handle = handle.as_str().expect("a handle");
    assert!(notes.contains(&format!("get_history(target=\\\"{handle}\\\") shows what ran in it")), "{notes}");
}
