//! Checkpoints: what a rollback restores, when none is made, and what is said of either.

use pylair_core::session::{Outcome, RestartMode};
use pylair_journal::EventKind;

use crate::support::{on_each_python, on_newest_python};

const DIE: &str = "import os\nos._exit(1)";
const NO_NEWER: &str = "there was no newer checkpoint: the cells came too quickly for one after each";

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
        // Whether there was time for a checkpoint before cell 3 depends on the machine; what is said must be true.
        let x = session.value("x").await;
        let back = report.notes.iter().find(|note| note.starts_with("the session was rolled back"));
        let back = back.expect("it says where it went").as_str();
        match x.as_str() {
            "1" => {
                assert_eq!(back, "the session was rolled back to where it was after cell 1: what cell 2 did is lost");
                assert!(report.notes.iter().any(|note| note == NO_NEWER), "{:?}", report.notes);
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

/// A caller that never pauses leaves no gap to make checkpoints in.
#[test]
fn a_hundred_cells_without_a_pause_are_not_all_lost_in_a_crash() {
    on_newest_python(async |core| {
        let ways =
            [DIE, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "import ctypes\nctypes.string_at(0)"];
        for way in ways {
            let session = core.session().await;
            session.value("done = []").await;
            for number in 2..=100 {
                let report = session.run(&format!("done.append({number})")).await;
                assert_eq!(report.notes, Vec::<String>::new(), "nothing was lost, and so nothing is said");
            }
            let report = session.run(way).await;
            assert_eq!(report.outcome, Outcome::Died);
            // The first checkpoint is made before the second cell, whatever it costs.
            let newest: u64 = session.value("done[-1] if done else 1").await.parse().expect("a number");
            let lost = match 100 - newest {
                0 => String::new(),
                1 => ": what cell 100 did is lost".to_owned(),
                _ => format!(": what cells {} to 100 did is lost", newest + 1),
            };
            let told = format!("the session was rolled back to where it was after cell {newest}{lost}");
            assert_eq!(report.notes[0], told, "{:?}", report.notes);
            assert_eq!(report.notes.iter().any(|note| note == NO_NEWER), newest < 100, "{:?}", report.notes);
        }
    });
}

#[test]
fn cells_that_take_longer_than_ten_checkpoints_are_never_lost() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("import time\nx = 0").await;
        core.wait_for_checkpoint(&session, 1).await;
        for number in 1..=5 {
            let took = core.dearest_checkpoint(&session).await * 20;
            session.value(&format!("time.sleep({})\nx = {number}", took.as_secs_f64())).await;
            let report = session.run(DIE).await;
            // The budget is ten times the smoothed cost, which is at most that of the dearest. It may have come just now.
            let is_within = core.dearest_checkpoint(&session).await * 10 <= took;
            let x = session.value("x").await;
            assert!(!is_within || x == number.to_string(), "{x} instead of {number}: {:?}", report.notes);
            session.value(&format!("x = {number}")).await;
        }
    });
}
