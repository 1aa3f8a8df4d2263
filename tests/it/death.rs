//! Workers that die, lie or are killed: one honest answer, the session comes back, the others notice nothing.

use pylair::session::{Outcome, State};
use rustix::process::Signal;

use crate::support::{Watched, kill, on_newest_python, parent_of, with_settings};

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
        assert!(report.error.is_some_and(|error| error.message.contains("its keeper was killed")));
        assert_eq!(report.notes, ["the session was restarted: all variables are gone"], "copies went with it");
        worker.assert_ends();
        child.assert_ends();
        assert_eq!(session.value("1 + 1").await, "2");
        assert_eq!(session.session.status().state, State::Idle);
        assert_eq!(bystander.value("here").await, "1");
    });
}
