//! Sessions in which very many processes want to run: they take turns, and nobody else waits for them.

use std::{
    fs,
    time::{Duration, Instant},
};

use pylair_core::session::Outcome;
use pylair_os::process::Stat;

use crate::{
    sealed::open_sealed,
    support::{PATIENCE, TestSession, Watched, on_newest_python, report},
};

/// The processes in the group of a session's worker beside it, by the letter of what they do.
fn states(session: &TestSession) -> Vec<(i32, char)> {
    let worker = session.pid();
    let read = |pid: i32| {
        let stat = Stat::read(pid)?;
        (stat.group()? == worker && pid != worker).then_some((pid, stat.state()?))
    };
    let pids = fs::read_dir("/proc").expect("it is mounted").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(read).collect()
}

/// Looks at the processes of a session until they are as wanted.
async fn wait_until(session: &TestSession, wanted: impl Fn(&[(i32, char)]) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let now = states(session);
        if wanted(&now) {
            return;
        }
        assert!(Instant::now() < until, "{now:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_fork_bomb_is_held_and_others_are_answered() {
    on_newest_python(async |core| {
        let test = "a_fork_bomb_is_held_and_others_are_answered";
        let Some(bomb) = open_sealed(core, test).await else { return };
        let Some(honest) = open_sealed(core, test).await else { return };
        let code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
        let job = bomb.start(code).await;
        let count = |states: &[(i32, char)], state| states.iter().filter(|(_, one)| *one == state).count();
        // All that fit in are there, and nearly all of them stand still.
        wait_until(&bomb, |now| count(now, 'T') > 100 && count(now, 'R') < 16).await;
        for number in 0..20 {
            assert_eq!(honest.value(&format!("{number} + 1")).await, (number + 1).to_string());
        }
        bomb.session.interrupt(None).await.expect("it can be interrupted");
        let told = report(&job).await;
        assert!(matches!(told.outcome, Outcome::Interrupted | Outcome::Died | Outcome::Ok), "{told:#?}");
        let left: Vec<_> = states(&bomb).into_iter().map(|(pid, _)| Watched::new(pid)).collect();
        core.close_session(&bomb).await;
        left.iter().for_each(Watched::assert_ends);
        assert_eq!(honest.value("'still here'").await, "'still here'");
    });
}

/// More than may run at once, on any machine that is not very large.
#[test]
fn many_busy_processes_all_come_to_something() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "many_busy_processes_all_come_to_something").await else { return };
        let code = "import mmap, os, signal\n\
                    count = min(90, 4 * os.cpu_count() + 24)\n\
                    steps = mmap.mmap(-1, count)\n\
                    pids = []\n\
                    for number in range(count):\n    \
                        pid = os.fork()\n    \
                        if pid == 0:\n        \
                            while True:\n            \
                                sum(range(20_000))\n            \
                                steps[number] = min(steps[number] + 1, 50)\n    \
                        pids.append(pid)\n\
                    while min(steps[:]) < 50: pass\n\
                    for pid in pids:\n    \
                        os.kill(pid, signal.SIGKILL)\n    \
                        os.waitpid(pid, 0)\n\
                    set(steps[:])";
        assert_eq!(session.value(code).await, "{50}");
        assert_eq!(session.value("1 + 1").await, "2");
    });
}

/// More processes than may run at once, which compete for a moment and then wait for work.
#[test]
fn a_pool_that_waits_for_work_is_let_go() {
    on_newest_python(async |core| {
        let Some(session) = open_sealed(core, "a_pool_that_waits_for_work_is_let_go").await else { return };
        let code = "import os, signal, time\n\
                    pids = []\n\
                    for number in range(min(90, 4 * os.cpu_count() + 24)):\n    \
                        pid = os.fork()\n    \
                        if pid == 0:\n        \
                            until = time.process_time() + 0.1\n        \
                            while time.process_time() < until: pass\n        \
                            while True: signal.pause()\n    \
                        pids.append(pid)\n\
                    len(pids) > 16";
        assert_eq!(session.value(code).await, "True");
        wait_until(&session, |now| now.len() > 16 && now.iter().all(|(_, state)| *state == 'S')).await;
        assert_eq!(session.value("for pid in pids: os.kill(pid, signal.SIGKILL)").await, "");
    });
}
