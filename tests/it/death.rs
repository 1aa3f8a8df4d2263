//! Workers that die, lie or are killed: one honest answer, the session comes back, the others notice nothing.

use pylair_core::session::{OnTimeout, Outcome, State};
use pylair_sandbox::{Limits, cgroup::Groups};
use rustix::process::Signal;

use crate::support::{Home, Watched, kill, on_newest_python, parent_of, skip, with_settings};

/// Cells that end their worker, and what is said of it.
const DEADLY: &[(&str, &[&str])] = &[
    ("import ctypes\nprint('last', flush=True)\nctypes.string_at(0)", &["was killed by SIGSEGV"]),
    ("import os, sys\nsys.stderr.write('last words')\nos._exit(7)", &["exited with code 7", "last words"]),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", &["was killed by SIGKILL"]),
    ("import os\nos.abort()", &["was killed by SIGABRT"]),
];

#[test]
fn a_dead_worker_is_told_and_the_session_is_rolled_back() {
    on_newest_python(async |core| {
        let bystander = core.session().await;
        bystander.value("here = 1").await;
        let untouched = bystander.pid();
        let session = core.session().await;
        session.value("kept = 1").await;
        for (code, told) in DEADLY {
            let before = session.session.status().cell;
            core.wait_for_checkpoint(&session, before).await;
            let report = session.run(&format!("kept = 2\n{code}")).await;
            assert_eq!(report.outcome, Outcome::Died, "{code}: {report:#?}");
            let error = report.error.expect("it says why");
            for part in *told {
                assert!(error.message.contains(part), "{code}: {}", error.message);
            }
            let back = format!("the session was rolled back to where it was after cell {before}");
            assert_eq!(report.notes.first(), Some(&back), "{code}: {:?}", report.notes);
            assert_eq!(session.value("kept").await, "1", "{code}");
        }
        assert_eq!((bystander.value("here").await.as_str(), bystander.pid()), ("1", untouched));
    });
}

#[test]
fn without_checkpoints_it_is_restarted_and_says_what_is_lost() {
    with_settings(&[("PYLAIR_CHECKPOINTS", "off")], async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        let report = session.run("import os\nos._exit(1)").await;
        assert_eq!(report.notes, ["the session was restarted: all variables are gone"]);
        assert_eq!(session.value("'x' in globals()").await, "False");
    });
}

/// A daemon in a group with little memory, as in a container.
#[test]
fn out_of_memory_is_called_that_and_what_was_lost_is_said() {
    let test = "out_of_memory_is_called_that_and_what_was_lost_is_said";
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("kept = 1");
    let groups = Groups::find();
    let limits = Limits {
        memory_mb: 400,
        processes: 1000,
        open_files: 1000,
        file_size_mb: 1,
        tmp_mb: 1,
        disk_mb: 1,
        cpu_s: None,
        wall_s: None,
    };
    let members = || home.processes().iter().map(|process| process.pid).collect();
    let group = groups.enclose(&home.path.file_name().expect("a name").to_string_lossy(), &limits, None, &members);
    if !group.held.memory {
        return skip(test, "no group with less memory can be made here");
    }
    client.execute("before = 1");
    let report = client.execute("kept = 2\nhoard = b'x' * (1500 << 20)");
    assert_eq!(report["outcome"], "died", "{report:#}");
    let message = report["error"]["message"].as_str().expect("it says why");
    assert!(message.contains("out of memory: the kernel ended"), "{message}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("was rolled back to") || notes.contains("was restarted"), "{notes}");
    let after = client.execute("kept");
    // Back to a checkpoint, or anew and then that was said.
    assert!(after["result"] == "1" || notes.contains("all variables are gone"), "{after:#}");
    client.close();
    assert!(home.run(&["stop"]).status.success());
    drop(group);
}

#[test]
fn where_a_crash_happened_is_shown_without_our_frames() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let report = session.run("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()").await;
        let traceback = report.error.expect("it says why").traceback;
        assert!(traceback.contains("\"<cell 1>\", line 3 in crash"), "{traceback}");
        assert!(!traceback.contains("pylair"), "{traceback}");
    });
}

#[test]
fn a_worker_killed_between_cells_is_told_with_the_next_one() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let worker = Watched::new(session.pid());
        kill(worker.pid, Signal::KILL);
        worker.assert_ends();
        let report = session.run("x").await;
        let told = format!("{:?} {:?}", report.notes, report.error);
        assert!(told.contains("killed by SIGKILL") && told.contains("rolled back"), "{report:#?}");
        assert_eq!(session.value("x").await, "1");
    });
}

/// Writes to every descriptor above 2 that takes it: the wire is one of them.
const GARBAGE: &str = "import os\n\
    for fd in os.listdir('/proc/self/fd'):\n\
    \x20   try:\n\
    \x20       if int(fd) > 2: os.write(int(fd), b'garbage' * 100)\n\
    \x20   except OSError: pass";

#[test]
fn a_worker_that_writes_garbage_on_the_wire_is_killed_and_told() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report = session.run(GARBAGE).await;
        assert_eq!(report.outcome, Outcome::Died, "{report:#?}");
        let error = report.error.expect("it says why");
        assert!(error.message.contains("broke the wire"), "{}", error.message);
        assert_eq!(session.value("x").await, "1");
    });
}

#[test]
fn a_worker_that_closes_all_descriptors_is_told_and_comes_back() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1").await;
        core.wait_for_checkpoint(&session, 1).await;
        let report = session.run("import os\nos.closerange(0, 1 << 20)").await;
        assert_eq!(report.outcome, Outcome::Died, "{report:#?}");
        assert_eq!(session.value("x").await, "1");
        assert_eq!(session.run("print('heard')").await.stdout, "heard\n");
    });
}

#[test]
fn closing_the_three_standard_descriptors_hurts_nobody() {
    on_newest_python(async |core| {
        let session = core.session().await;
        session.value("x = 1\nimport os\nfor fd in 0, 1, 2: os.close(fd)").await;
        let report = session.run("print('heard')\nx").await;
        assert_eq!((report.stdout.as_str(), report.result.as_deref()), ("heard\n", Some("1")), "{report:#?}");
    });
}

#[test]
fn a_killed_keeper_takes_its_session_along_and_it_comes_back() {
    on_newest_python(async |core| {
        let bystander = core.session().await;
        bystander.value("here = 1").await;
        let session = core.session().await;
        session.value("import subprocess\nchild = subprocess.Popen(['sleep', '1000'], start_new_session=True)").await;
        let worker = Watched::new(session.pid());
        let child = Watched::new(session.value("child.pid").await.parse().expect("a pid"));
        core.wait_for_checkpoint(&session, 2).await;
        let job = session.start("import time\nprint('x')\nwhile True: time.sleep(0.01)").await;
        kill(parent_of(worker.pid), Signal::KILL);
        let report = crate::support::report(&job).await;
        assert_eq!(report.outcome, Outcome::Died, "{report:#?}");
        assert!(report.error.is_some_and(|error| error.message.contains("its keeper was gone")));
        assert_eq!(report.notes, ["the session was restarted: all variables are gone"], "copies went with it");
        worker.assert_ends();
        child.assert_ends();
        assert_eq!(session.value("1 + 1").await, "2");
        assert_eq!(session.session.status().state, State::Idle);
        assert_eq!(bystander.value("here").await, "1");
    });
}

#[test]
fn a_child_that_comes_to_the_end_of_its_cell_is_no_second_worker() {
    on_newest_python(async |core| {
        let session = core.session().await;
        for _ in 0..5 {
            let code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)";
            assert_eq!(session.run(code).await.outcome, Outcome::Ok);
            assert_eq!(session.value("pid > 0").await, "True");
        }
    });
}

#[test]
fn a_worker_that_prints_without_end_keeps_nobody_waiting() {
    on_newest_python(async |core| {
        let (flooding, other) = (core.session().await, core.session().await);
        let limit = std::time::Duration::from_secs(1);
        let flood = "import os\nwhile True: os.write(1, b'x' * 65536)";
        let job = flooding.start_with(flood, Some(limit), OnTimeout::Keep).await.expect("it starts");
        assert_eq!(other.value("1 + 1").await, "2");
        assert!(job.execution().is_none(), "the other one did not wait for it");
        assert_eq!(crate::support::report(&job).await.outcome, Outcome::TimedOut);
    });
}

#[test]
fn a_fork_hook_that_hangs_costs_the_checkpoints_and_not_the_variables() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let report = session.run("import os, time\nx = 1\nos.register_at_fork(before=lambda: time.sleep(1000))").await;
        assert_eq!(report.outcome, Outcome::Ok);
        core.wait_for_checkpoint(&session, 1).await;
        let report = session.run("x").await;
        assert_eq!(report.result.as_deref(), Some("1"));
        assert!(report.notes.iter().any(|note| note.contains("no more checkpoints are made")), "{:?}", report.notes);
    });
}

#[test]
fn a_timeout_past_the_end_of_time_is_none() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let report = session.run_limited("1", std::time::Duration::MAX, OnTimeout::Keep).await;
        assert_eq!(report.outcome, Outcome::Ok);
    });
}

#[test]
fn a_stopped_keeper_is_ended_with_its_session() {
    on_newest_python(async |core| {
        let session = core.session().await;
        let code = "import os, signal, subprocess\n\
                    child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nchild.pid";
        let child = Watched::new(session.value(code).await.parse().expect("a pid"));
        let keeper = Watched::new(parent_of(session.pid()));
        kill(keeper.pid, Signal::STOP);
        core.close_session(&session).await;
        keeper.assert_ends();
        child.assert_ends();
    });
}
