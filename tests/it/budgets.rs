//! What one owner uses up, and what is left of it for the others.

use std::{fs, time::Duration};

use pylair_core::{
    caller::Caller,
    session::{Jobs, OpenOptions, Outcome},
};

use crate::support::{Core, PATIENCE, TestSession, on_newest_python, with_settings};

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
        let blocked = pylair_os::event_loop::spawn(async move { sessions.reach(&caller, "blocked").await });
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

/// Runs cells that print nothing, and returns their jobs.
async fn flood(session: &TestSession, cells: usize) -> Vec<String> {
    let mut jobs = Vec::new();
    for number in 0..cells {
        let report = session.run(&format!("x = {number}")).await;
        assert_eq!(report.outcome, Outcome::Ok, "{report:#?}");
        jobs.push(report.job);
    }
    jobs
}

#[test]
fn jobs_of_one_owner_make_no_room_among_those_of_another() {
    with_settings(&[("PYLAIR_CHECKPOINTS", "off")], async |core| {
        let (quiet, busy) = (somebody(core, "quiet"), somebody(core, "busy"));
        let open = async |caller: &Caller| {
            core.open_session_as(caller, OpenOptions::default()).await.expect("the session opens")
        };
        let (quiet_session, busy_session) = (open(&quiet).await, open(&busy).await);
        let kept = flood(&quiet_session, 3).await;
        let flooded = flood(&busy_session, Jobs::KEPT + 10).await;
        for job in &kept {
            let job = core.daemon.job(&quiet, job).await.expect("the answer is still there");
            assert_eq!(job.execution().expect("it has ended").outcome, Outcome::Ok);
        }
        let error = core.daemon.job(&busy, &flooded[0]).await.expect_err("it made room");
        assert_eq!(error.kind(), "removed_job");
        assert!(error.message().contains("256 ended jobs"), "{}", error.message());
        assert!(error.hint().contains("get_history"), "{}", error.hint());
        core.daemon.job(&busy, flooded.last().expect("there are some")).await.expect("the newest is there");
        // Nobody learns of what others had.
        let error = core.daemon.job(&quiet, &flooded[0]).await.expect_err("it is not theirs");
        assert_eq!(error.kind(), "unknown_job");
        let never = format!("{}-9999", busy_session.session.info.handle);
        assert_eq!(core.daemon.job(&busy, &never).await.expect_err("it never was").kind(), "unknown_job");
        let used = core.daemon.status_for(&busy).budgets;
        let jobs = used.iter().find(|used| used.what == "ended jobs").expect("jobs are counted");
        assert_eq!((jobs.all, jobs.bound), (None, 256), "{jobs:?}");
        assert!(jobs.removed >= 10 && jobs.yours <= 256, "{jobs:?}");
        assert!(core.daemon.status().budgets.iter().all(|used| used.all.is_some()));
    });
}
