//! What one owner uses up, and what is left of it for the others.

use std::{fs, time::Duration};

use pylair::{caller::Caller, session::OpenOptions};

use crate::support::{Core, PATIENCE, TestSession, on_newest_python};

/// The same caller, as somebody else.
fn somebody(core: &Core, owner: &str) -> Caller {
    Caller { owner: owner.into(), ..core.caller.clone() }
}

async fn kept(core: &Core, caller: &Caller, name: &str, startup: Option<String>) {
    let options = OpenOptions { name: Some(name.to_owned()), keep: true, startup, ..OpenOptions::default() };
    core.open_session_as(caller, options).await.expect("the session opens");
    core.daemon.sessions.close(caller, name, false).await.expect("the session closes");
}

async fn reach(core: &Core, caller: &Caller, name: &str) -> TestSession {
    let reached = tokio::time::timeout(PATIENCE, core.daemon.sessions.reach(caller, name)).await;
    TestSession { session: reached.expect("nobody else is in the way").expect("it can be started again") }
}

#[test]
fn startup_code_of_one_session_keeps_no_other_waiting() {
    on_newest_python(async |core| {
        let (slow, other) = (somebody(core, "slow"), somebody(core, "other"));
        let (gate, reached) = (core.home.work().join("gate"), core.home.work().join("reached"));
        let startup = format!(
            "import os, time\nif os.path.exists({gate:?}): open({reached:?}, 'w').close()\nwhile os.path.exists({gate:?}): time.sleep(0.005)"
        );
        kept(core, &slow, "blocked", Some(startup)).await;
        kept(core, &slow, "beside", None).await;
        kept(core, &other, "free", None).await;
        fs::write(&gate, "").expect("the gate can be closed");
        let (sessions, caller) = (core.daemon.sessions.clone(), slow.clone());
        let blocked = tokio::spawn(async move { sessions.reach(&caller, "blocked").await });
        let started = async {
            while !reached.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, started).await.expect("its startup code begins");
        for (caller, name) in [(&other, "free"), (&slow, "beside")] {
            assert_eq!(reach(core, caller, name).await.value("1 + 1").await, "2");
        }
        assert!(!blocked.is_finished());
        fs::remove_file(&gate).expect("the gate can be opened");
        let came = tokio::time::timeout(PATIENCE, blocked).await.expect("it comes back").expect("it does not panic");
        assert_eq!(*came.expect("it can be started again").info.name, *"blocked");
    });
}

#[test]
fn many_who_want_a_stopped_session_at_once_get_the_same() {
    on_newest_python(async |core| {
        let caller = somebody(core, "one");
        kept(core, &caller, "wanted", None).await;
        let reaching = (0..8).map(|_| reach(core, &caller, "wanted"));
        let reached = futures::future::join_all(reaching).await;
        let pids: std::collections::HashSet<_> = reached.iter().map(TestSession::pid).collect();
        assert_eq!(pids.len(), 1, "{pids:?}");
        let listed = core.daemon.sessions.statuses(&caller);
        assert_eq!(listed.iter().filter(|status| status.name == "wanted").count(), 1, "{listed:?}");
    });
}
