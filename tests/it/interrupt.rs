//! Stopping cells: the ladder from a polite interrupt to the kill, what is kept and what the caller is told.

use std::time::Duration;

use pylair_core::session::{Job, OnTimeout, Outcome, Report};

use crate::support::{PATIENCE, TestSession, on_each_python, report};

/// Waits until the cell has printed something, which says that it is where it wants to be.
async fn printed(job: &Job) {
    let readable = job.capture.readable(pylair_output::Cursor::default());
    tokio::time::timeout(PATIENCE, readable).await.expect("the cell prints");
}

/// Starts a cell, interrupts it once it has printed, and returns what its caller is told.
async fn interrupt(session: &TestSession, code: &str) -> Report {
    let job = session.start(code).await;
    printed(&job).await;
    let interrupted = tokio::time::timeout(PATIENCE, session.session.interrupt(None)).await;
    let interrupted = interrupted.expect("an interrupt comes to an end").expect("the session is there");
    assert_eq!(interrupted.job.as_deref(), Some(job.id.as_str()));
    let report = report(&job).await;
    assert_eq!(interrupted.outcome, Some(report.outcome));
    report
}

fn notes_of(report: &Report) -> String {
    report.notes.join("\n")
}

/// Cells that a polite interrupt stops. What says that the cell is there is on the line it is stopped at.
const POLITE: &[&str] = &[
    "kept += 1\n\nwhile print('x') is None: pass",
    "import time\nkept += 1\nprint('x') or time.sleep(1000)",
    "import threading\nkept += 1; event = threading.Event()\nprint('x') or event.wait()",
    "import subprocess\nkept += 1\nsubprocess.run(['sh', '-c', 'echo x; exec sleep 1000'])",
];

#[test]
fn a_polite_interrupt_keeps_variables_and_says_where_it_was() {
    on_each_python(async |core| {
        for code in POLITE {
            let session = core.session().await;
            session.value("kept = 0").await;
            let pid = session.pid();
            let report = interrupt(&session, code).await;
            assert_eq!(report.outcome, Outcome::Interrupted, "{code}: {report:#?}");
            assert!(notes_of(&report).contains("<cell 2> line 3 in <module>"), "{code}: {:?}", report.notes);
            assert_eq!((session.value("kept").await.as_str(), session.pid()), ("1", pid), "{code}");
        }
    });
}

#[test]
fn a_child_of_os_system_is_ended_and_the_cell_goes_on() {
    on_each_python(async |core| {
        let session = core.session().await;
        let report = interrupt(&session, "import os\nos.system('echo x; exec sleep 1000')").await;
        assert_eq!((report.outcome, report.result.as_deref()), (Outcome::Ok, Some("2")), "{report:#?}");
        let place = "it was at <cell 1> line 2 in <module>";
        assert_eq!(report.notes, ["the cell was interrupted but came to its own end", place]);
    });
}

#[test]
fn an_await_is_interrupted_and_the_loop_lives_on() {
    on_each_python(async |core| {
        let session = core.session().await;
        let report = interrupt(&session, "import asyncio\nprint('x')\nawait asyncio.sleep(1000)").await;
        assert_eq!(report.outcome, Outcome::Interrupted, "{report:#?}");
        assert_eq!(session.value("await asyncio.sleep(0, 'alive')").await, "'alive'");
    });
}

#[test]
fn code_that_swallows_the_interrupt_is_unwound_by_force() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("kept = 1").await;
        let pid = session.pid();
        let code = "print('x')\nimport time\nwhile True:\n    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass";
        let report = interrupt(&session, code).await;
        assert_eq!(report.outcome, Outcome::Interrupted, "{report:#?}");
        assert!(notes_of(&report).contains("unwound by force"), "{:?}", report.notes);
        assert_eq!((session.value("kept").await.as_str(), session.pid()), ("1", pid));
    });
}

#[test]
fn a_loop_in_c_is_killed_and_rolled_back() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("kept = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report = interrupt(&session, "kept = 2\n\nprint('x') or sum(range(10**15))").await;
        assert_eq!(report.outcome, Outcome::Interrupted, "{report:#?}");
        let notes = notes_of(&report);
        for part in ["its worker was killed", "rolled back to where it was after cell 1", "line 3 in <module>"] {
            assert!(notes.contains(part), "{part}: {:?}", report.notes);
        }
        assert_eq!(session.value("kept").await, "1");
    });
}

#[test]
fn a_timeout_stops_the_cell_and_keeps_what_it_did() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = "print('before')\nx = 5\nwhile True: pass";
        let report = session.run_limited(code, Duration::from_millis(200), OnTimeout::Keep).await;
        assert_eq!((report.outcome, report.stdout.as_str()), (Outcome::TimedOut, "before\n"), "{report:#?}");
        let notes = notes_of(&report);
        assert!(notes.contains("longer than timeout_s=0.2 and was stopped"), "{notes}");
        assert!(notes.contains("line 3 in <module>") && notes.contains("was kept"), "{notes}");
        assert_eq!(session.value("x").await, "5");
    });
}

#[test]
fn a_timeout_can_roll_back_instead() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report =
            session.run_limited("x = 2\nwhile True: pass", Duration::from_millis(200), OnTimeout::Rollback).await;
        assert_eq!(report.outcome, Outcome::TimedOut, "{report:#?}");
        assert!(notes_of(&report).contains("rolled back to where it was after cell 1"), "{:?}", report.notes);
        assert_eq!(session.value("x").await, "1");
    });
}

#[test]
fn with_nothing_running_there_is_nothing_to_interrupt() {
    on_each_python(async |core| {
        let session = core.session().await;
        let interrupted = session.session.interrupt(None).await.expect("the session is there");
        assert_eq!((interrupted.job, interrupted.outcome), (None, None));
        assert_eq!(interrupted.notes, ["nothing was running"]);
    });
}
