//! Checkpoints: what a rollback restores, when none is made, and what is said of either.

use pylair::{
    journal::EventKind,
    session::{Outcome, RestartMode},
};

use crate::support::on_each_python;

const DIE: &str = "import os\nos._exit(1)";

#[test]
fn a_rollback_restores_the_state_after_the_newest_cell() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("import random\nrandom.seed(1)\nnumbers = [1, 2]\nclass A: pass\na = A(); a.x = {'k': 1}").await;
        core.wait_for_checkpoint(&session, 1).await;
        let expected =
            session.value("import copy\nr = random.Random()\nr.setstate(random.getstate())\nr.random()").await;
        core.wait_for_checkpoint(&session, 2).await;
        let report = session.run(&format!("numbers.append(3)\na.x['k'] = 2\ndel A\nrandom.random()\n{DIE}")).await;
        assert_eq!(report.outcome, Outcome::Died);
        assert_eq!(session.value("(numbers, a.x, type(a) is A)").await, "([1, 2], {'k': 1}, True)");
        assert_eq!(session.value("random.random()").await, expected, "random numbers go on where they were");
    });
}

#[test]
fn rolling_back_twice_to_the_same_place_works() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        for _ in 0..2 {
            let cell = session.session.status().cell;
            core.wait_for_checkpoint(&session, cell).await;
            assert_eq!(session.run(&format!("x = 2\n{DIE}")).await.outcome, Outcome::Died);
            assert_eq!(session.value("x").await, "1");
        }
    });
}

#[test]
fn threads_prevent_a_checkpoint_which_is_told_once() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = "import threading\nstop = threading.Event()\n\
                    thread = threading.Thread(target=stop.wait, name='waiter')\nthread.start()";
        session.value(code).await;
        core.wait_for_skipped_checkpoint(&session).await;
        let told = "no checkpoint was made after cell 1: 1 thread is alive: waiter";
        assert_eq!(session.run("1").await.notes, [told]);
        core.wait_for_skipped_checkpoint(&session).await;
        let again = session.run("2").await.notes;
        assert!(!again.iter().any(|note| note.contains("thread")), "{again:?}");
        session.value("stop.set()\nthread.join()").await;
        let cell = session.session.status().cell;
        core.wait_for_checkpoint(&session, cell).await;
    });
}

#[test]
fn files_are_not_rolled_back_and_that_is_said() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report = session.run(&format!("open('made.txt', 'w').write('by the cell')\n{DIE}")).await;
        let told = "files, databases and the network are as they were left";
        assert!(report.notes.iter().any(|note| note == told), "{:?}", report.notes);
        assert_eq!(session.value("open('made.txt').read()").await, "'by the cell'");
    });
}

#[test]
fn open_files_survive_a_rollback_and_what_cannot_is_named() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("import socket\nfile = open('log.txt', 'w+')\none, other = socket.socketpair()").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report = session.run(DIE).await;
        let lost = report.notes.iter().find(|note| note.starts_with("not restored: "));
        assert!(lost.is_some_and(|note| note.contains("socket")), "{:?}", report.notes);
        assert_eq!(session.value("file.write('ok')\nfile.flush()\nopen('log.txt').read()").await, "'ok'");
    });
}

#[test]
fn children_of_the_lost_cell_are_ended() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let code =
            "import subprocess\nprint(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)";
        let report = session.run(&format!("{code}\n{DIE}")).await;
        let child = crate::support::Watched::new(report.stdout.trim().parse().expect("a pid"));
        assert!(report.notes.iter().any(|note| note.contains("1 child process was ended")), "{:?}", report.notes);
        child.assert_ends();
    });
}

#[test]
fn cells_run_back_to_back_are_named_when_they_are_lost() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        session.value("x = 2").await;
        let report = session.run(&format!("x = 3\n{DIE}")).await;
        // Whether the gap before cell 3 was long enough for a checkpoint is a matter of time; what is said must be true.
        let x = session.value("x").await;
        let back = report.notes.iter().find(|note| note.starts_with("the session was rolled back"));
        let back = back.expect("it says where it went").as_str();
        match x.as_str() {
            "1" => {
                assert_eq!(back, "the session was rolled back to where it was after cell 1: what cell 2 did is lost");
            }
            _ => assert_eq!((x.as_str(), back), ("2", "the session was rolled back to where it was after cell 2")),
        }
    });
}

#[test]
fn clearing_keeps_the_process_and_forgets_the_checkpoint() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("import math\nx = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let pid = session.pid();
        let notes = session.session.restart(RestartMode::Clear).await.expect("it is idle");
        assert_eq!(notes, ["all variables are gone; imported modules stay loaded"]);
        core.wait_for_event(&session, |event| matches!(event, EventKind::SessionCleared {})).await;
        assert_eq!(session.status_checkpoint(), None, "it held what was thrown away");
        assert_eq!(session.value("'x' in globals(), 'math' in __import__('sys').modules").await, "(False, True)");
        assert_eq!(session.pid(), pid);
    });
}
