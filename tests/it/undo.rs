//! Going back and branching: what `undo` and `branch_session` restore, refuse and say.

use pylair_core::session::{Error, Outcome};
use pylair_os::process::Stat;

use crate::support::{Core, TestSession, on_each_python, on_newest_python, with_settings};

const DIE: &str = "import os\nos._exit(1)";

/// Runs cells one by one, each with its checkpoint.
async fn run_with_checkpoints(core: &Core, session: &TestSession, cells: &[&str]) {
    for code in cells {
        session.value(code).await;
        let cell = session.session.status().cell;
        core.wait_for_checkpoint(session, cell).await;
    }
}

#[test]
fn undo_goes_back_one_cell_and_then_another() {
    on_each_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = [1]", "x.append(2)", "x.append(3)"]).await;
        let undone = session.session.undo(None).await.expect("there is a checkpoint of cell 2");
        assert_eq!((undone.cell, undone.undone), (2, vec![3]));
        assert_eq!(undone.notes[0], "the session was rolled back to where it was after cell 2");
        assert_eq!(undone.notes[1], "files, databases and the network are as they were left");
        assert_eq!(session.session.undo(None).await.expect("and of cell 1").cell, 1);
        assert_eq!(session.value("x").await, "[1]");
        assert_eq!(session.session.status().cell, 4, "numbers of cells go on");
    });
}

/// As the copies of a crowded sandbox are. The kernel hangs up on a stopped process group that loses its parent.
#[test]
fn copies_that_are_stopped_survive_the_end_of_their_worker() {
    on_each_python(async |core| {
        for goes_back in ["undo", "crash"] {
            let session = core.session().await;
            run_with_checkpoints(core, &session, &["x = [1]", "x.append(2)", "x.append(3)"]).await;
            let worker = session.pid();
            let children = std::fs::read_to_string(format!("/proc/{worker}/task/{worker}/children"));
            let children = children.expect("the worker lives");
            let copies: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            assert!(copies.len() >= 3, "{copies:?}");
            for pid in copies {
                crate::support::kill(pid, rustix::process::Signal::STOP);
            }
            if goes_back == "undo" {
                assert_eq!(session.session.undo(None).await.expect("there is a checkpoint of cell 2").cell, 2);
                assert_eq!(session.value("x").await, "[1, 2]");
            } else {
                assert_eq!(session.run(DIE).await.outcome, Outcome::Died);
                assert_eq!(session.value("x").await, "[1, 2, 3]");
            }
            let mask = "import signal; signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())";
            assert_eq!(session.value(mask).await, "False", "the program has its own signal mask again");
        }
    });
}

#[test]
fn undo_goes_to_a_named_cell_and_what_comes_after_counts_from_there() {
    on_newest_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1", "x = 2", "x = 3"]).await;
        assert_eq!(session.session.undo(Some(1)).await.expect("it is in the ring").undone, [2, 3]);
        run_with_checkpoints(core, &session, &["x += 10"]).await;
        assert_eq!(session.value("x").await, "11");
        let refused = session.session.undo(Some(3)).await.expect_err("cell 3 was undone");
        assert_eq!(refused.to_string(), "the session's state does not include cell 3");
        assert_eq!(session.session.undo(Some(4)).await.expect("cell 4 is").cell, 4);
        assert_eq!(session.session.undo(Some(0)).await.expect("the start").undone, [1, 4]);
        assert_eq!(session.run("x").await.outcome, Outcome::Raised);
    });
}

#[test]
fn undo_at_the_start_and_past_the_ring_says_what_there_is() {
    with_settings(&[("PYLAIR_CHECKPOINTS", "2")], async |core| {
        let session = core.session().await;
        assert!(matches!(session.session.undo(None).await, Err(Error::NothingToUndo)));
        run_with_checkpoints(core, &session, &["x = 1", "x = 2", "x = 3"]).await;
        assert_eq!(session.session.status().checkpoints, [2, 3]);
        let refused = session.session.undo(Some(1)).await.expect_err("the ring holds two");
        assert_eq!(refused.kind(), "no_checkpoint");
        assert!(refused.hint().contains("cells 2, 3"), "{}", refused.hint());
        assert_eq!(session.value("x").await, "3", "nothing is lost by asking");
    });
}

#[test]
fn undo_after_quick_cells_goes_back_as_little_as_it_can_and_says_how_far() {
    on_newest_python(async |core| {
        for _ in 0..20 {
            let session = core.session().await;
            for number in 1..=5 {
                session.value(&format!("x = {number}")).await;
            }
            let undone = session.session.undo(None).await.expect("there is an older checkpoint");
            assert!((1..5).contains(&undone.cell), "{undone:?}");
            assert_eq!(undone.undone, (undone.cell + 1..=5).collect::<Vec<_>>());
            let further = undone.notes.iter().find(|note| note.contains("cells were undone"));
            let told = (undone.cell < 4).then(|| {
                let count = undone.undone.len();
                format!(
                    "{count} cells were undone, {} to 5: the cells came too quickly for one after each",
                    undone.cell + 1
                )
            });
            assert_eq!(further, told.as_ref(), "{undone:?}");
            assert_eq!(session.value("x").await, undone.cell.to_string());
        }
    });
}

#[test]
fn undo_goes_no_further_than_asked_where_a_checkpoint_was_refused() {
    on_newest_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1"]).await;
        let code = "import threading\nstop = threading.Event()\nthreading.Thread(target=stop.wait).start()";
        session.value(code).await;
        core.wait_for_skipped_checkpoint(&session).await;
        session.value("x = 3").await;
        let refused = session.session.undo(None).await.expect_err("there is a thread");
        assert_eq!(refused.kind(), "no_checkpoint");
        assert!(refused.hint().contains("1 thread is alive"), "{}", refused.hint());
        assert_eq!(session.value("x").await, "3", "nothing is lost by asking");
        session.value("stop.set()").await;
    });
}

#[test]
fn a_running_session_is_not_undone() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        let job = session.start("import time\ntime.sleep(1000)").await;
        assert!(matches!(session.session.undo(None).await, Err(Error::Busy { .. })));
        session.session.interrupt(Some(&job.id)).await.expect("it stops");
    });
}

#[test]
fn a_crash_rolls_back_and_undo_still_knows_its_way() {
    on_newest_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1", "x = 2"]).await;
        assert_eq!(session.run(&format!("x = 3\n{DIE}")).await.outcome, Outcome::Died);
        assert_eq!(session.session.undo(None).await.expect("before cell 2").cell, 1);
        assert_eq!(session.value("x").await, "1");
    });
}

#[test]
fn going_back_keeps_the_place_so_that_two_crashes_in_a_row_lose_no_more_than_one() {
    on_each_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1", "x = 2"]).await;
        for _ in 0..3 {
            assert_eq!(session.run(&format!("x = 3\n{DIE}")).await.outcome, Outcome::Died);
        }
        assert_eq!(session.value("x").await, "2");
        assert_eq!(session.session.undo(Some(1)).await.expect("it is still there").cell, 1);
    });
}

/// The frozen copies of a session, oldest first: what is below its keeper, sleeps, and is not the worker.
fn frozen_copies(session: &TestSession) -> Vec<i32> {
    let worker = session.pid();
    let of_worker = |pid: &i32| Stat::read(pid).and_then(|stat| stat.parent()) == Some(worker);
    let entries = std::fs::read_dir("/proc").expect("there is one").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut copies: Vec<i32> = pids.filter(of_worker).collect();
    copies.sort_unstable();
    copies
}

#[test]
fn a_copy_that_was_killed_is_no_place_to_go_and_costs_nothing() {
    on_newest_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1", "x = 2", "x = 3"]).await;
        let copies = frozen_copies(&session);
        assert_eq!(copies.len(), 3, "{copies:?}");
        crate::support::kill(copies[1], rustix::process::Signal::KILL);
        crate::support::Watched::new(copies[1]).assert_ends();
        let refused = session.session.undo(None).await.expect_err("the copy of cell 2 is dead");
        assert_eq!(refused.kind(), "no_checkpoint");
        assert_eq!(session.value("x").await, "3", "the session is untouched");
        let copies = frozen_copies(&session);
        crate::support::kill(*copies.last().expect("the newest"), rustix::process::Signal::KILL);
        crate::support::Watched::new(*copies.last().expect("the newest")).assert_ends();
        assert_eq!(session.run(DIE).await.outcome, Outcome::Died);
        assert_ne!(session.run("x").await.outcome, Outcome::Raised, "an older copy serves");
    });
}

#[test]
fn a_branch_has_the_variables_and_a_life_of_its_own() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("import random\nrandom.seed(3)\nx = [1]\nprint('printed')").await;
        let branch = core.branch(&session, None).await.expect("it can be branched");
        let report = branch.run("x.append(2)\nprint('in the branch')\nx").await;
        assert_eq!((report.result.as_deref(), report.stdout.as_str()), (Some("[1, 2]"), "in the branch\n"));
        assert!(report.notes[0].starts_with("files, databases and the network are shared"), "{:?}", report.notes);
        assert_eq!(session.value("x").await, "[1]");
        assert_ne!(session.pid(), branch.pid());
        assert_eq!(session.value("random.random()").await, branch.value("random.random()").await);
    });
}

#[test]
fn neither_of_two_branches_minds_the_end_of_the_other() {
    on_each_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1"]).await;
        let branch = core.branch(&session, None).await.expect("it can be branched");
        run_with_checkpoints(core, &branch, &["import subprocess\nchild = subprocess.Popen(['sleep', '1000'])"]).await;
        // A rollback sweeps strays of the session that is rolled back, not those of the other.
        assert_eq!(session.run(DIE).await.outcome, Outcome::Died);
        assert_eq!(session.value("x").await, "1");
        assert_eq!(branch.value("child.poll()").await, "");
        let child: i32 = branch.value("child.pid").await.parse().expect("a pid");
        core.close_session(&session).await;
        assert_eq!(branch.value("x, child.poll()").await, "(1, None)");
        assert_eq!(branch.run(&format!("x = 2\n{DIE}")).await.outcome, Outcome::Died);
        assert_eq!(branch.value("x").await, "1");
        let child = crate::support::Watched::new(child);
        core.close_session(&branch).await;
        child.assert_ends();
    });
}

#[test]
fn a_branch_from_a_checkpoint_leaves_the_session_and_its_checkpoint() {
    on_newest_python(async |core| {
        let session = core.session().await;
        run_with_checkpoints(core, &session, &["x = 1", "x = 2"]).await;
        let branch = core.branch(&session, Some(1)).await.expect("there is a checkpoint");
        assert_eq!(branch.value("x").await, "1");
        assert_eq!(session.value("x").await, "2");
        let again = core.branch(&session, Some(1)).await.expect("the checkpoint is still there");
        assert_eq!(again.value("x").await, "1");
        let refused = core.branch(&session, Some(7)).await.expect_err("there is no such cell");
        assert_eq!(refused.kind(), "no_such_cell");
    });
}

#[test]
fn tasks_of_the_event_loop_live_on_in_both_branches() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("import asyncio\nticks = []\nasync def tick():\n    for n in range(1000):\n        ticks.append(n)\n        await asyncio.sleep(0.001)\ntask = asyncio.ensure_future(tick())\nawait asyncio.sleep(0.01)").await;
        let branch = core.branch(&session, None).await.expect("it can be branched");
        for one in [&session, &branch] {
            assert_eq!(one.value("before = len(ticks)\nawait asyncio.sleep(0.05)\nlen(ticks) > before").await, "True");
        }
        let code =
            "process = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n(await process.communicate())[0]";
        for one in [&branch, &session] {
            assert_eq!(one.value(code).await, "b'hi\\n'");
        }
    });
}

#[test]
fn a_session_with_threads_is_not_branched_and_says_why() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session
            .value(
                "import threading\nstop = threading.Event()\nthreading.Thread(target=stop.wait, name='waiter').start()",
            )
            .await;
        let refused = core.branch(&session, None).await.expect_err("a thread cannot be copied");
        assert_eq!(refused.to_string(), "the session cannot be branched now: 1 thread is alive: waiter");
        session.value("stop.set()").await;
    });
}
