//! `pylair attach` and the tool `attach`: a probe in programs that were never prepared, which go on as if nothing had been.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Home, Watched, kill, newest_python, python2, pythons, skip};

/// Programs by what their main thread does. Each prints a line when it is there, counts in `count`, and when a line comes on its stdin says
/// what is in `__main__` and whether its work is right.
const SHAPES: &[(&str, &str)] = &[
    ("sleeping", "while True: work(); time.sleep(0.2)"),
    ("busy", "while True: work()"),
    (
        "asyncio",
        "import asyncio\nasync def main():\n    while True:\n        work(); await asyncio.sleep(0.2)\nasyncio.run(main())",
    ),
    ("select", "import os, select\nr, w = os.pipe()\nwhile True: work(); select.select([r], [], [], 0.2)"),
    (
        "join",
        "def run():\n    while True: work(); time.sleep(0.2)\nt = threading.Thread(target=run, daemon=True)\nt.start()\nt.join()",
    ),
    ("read", "import os\nr, w = os.pipe()\nos.read(r, 1)"),
    ("event", "event = threading.Event()\nwhile True: work(); event.wait(0.2)"),
    (
        "threads",
        "def spin():\n    while True: work()\nfor _ in range(3): threading.Thread(target=spin, daemon=True).start()\nwhile True: work()",
    ),
];

const PROLOGUE: &str = "\
import gc, sys, threading, time
lock, count, double = threading.Lock(), 0, 0
def work():
    global count, double
    with lock:
        count += 1
        double += 2
def answer():
    for line in sys.stdin:
        gc.collect()
        if line == 'blocks\\n':
            print(sys.getallocatedblocks(), flush=True)
            continue
        with lock:
            print(sorted(globals()), double == 2 * count, flush=True)
threading.Thread(target=answer, daemon=True).start()
time.sleep(0.01)
r = w = t = _ = event = main = run = spin = asyncio = os = select = None
print('there', flush=True)
";

struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(home: &Home, python: &Path, code: &str) -> Self {
        let (key, value) = home.marker();
        let mut child = Command::new(python)
            .args(["-c", code])
            .env(key, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut program = Self { child, stdin, stdout };
        assert_eq!(program.line(), "there");
        program
    }

    fn in_shape(home: &Home, python: &Path, shape: &str) -> Self {
        let (_, code) = SHAPES.iter().find(|(name, _)| *name == shape).expect("a shape");
        Self::start(home, python, &format!("{PROLOGUE}{code}"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it prints");
        line.trim_end().to_owned()
    }

    /// Names in `__main__`, and whether its work is right.
    fn ask(&mut self) -> String {
        writeln!(self.stdin, "?").expect("it reads");
        self.line()
    }

    /// Memory that Python has given out. What the process has of the kernel says less: allocators keep what was freed.
    fn blocks(&mut self) -> u64 {
        writeln!(self.stdin, "blocks").expect("it reads");
        self.line().parse().expect("a number")
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn proc(&self, what: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{what}", self.child.id())).expect("it is there")
    }

    /// Mappings that no file and no allocator made: code that somebody put there.
    fn foreign_code(&self) -> Vec<String> {
        let maps = self.proc("maps");
        maps.lines()
            .filter(|line| line.contains("r-xp") && line.trim_end().ends_with(" 0"))
            .map(str::to_owned)
            .collect()
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it is there").count()
    }

    fn number(&self, key: &str) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.trim_start_matches(':').split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

#[track_caller]
fn attach(home: &Home, program: &Program) -> Value {
    let told = home.run(&["attach", "--json", &program.pid()]);
    assert!(told.status.success(), "{told:?}");
    serde_json::from_str(&told.stdout).expect("JSON")
}

#[track_caller]
fn detach(home: &Home, program: &Program) {
    let told = home.run(&["attach", "--detach", &program.pid()]);
    assert!(told.status.success(), "{told:?}");
}

fn apps(home: &Home) -> usize {
    fs::read_dir(home.places().runtime.join("apps")).map_or(0, Iterator::count)
}

#[test]
fn every_shape_of_program_is_attached_to_and_goes_on() {
    for python in pythons() {
        for (shape, _) in SHAPES {
            let home = Home::with_python(python);
            let mut program = Program::in_shape(&home, python, shape);
            let before = program.ask();
            assert!(before.ends_with("True"), "{shape}: {before}");
            let attached = attach(&home, &program);
            assert_eq!(attached["entry"]["pid"], program.child.id(), "{shape}: {attached}");
            assert_eq!(program.foreign_code(), Vec::<String>::new(), "{shape}");
            assert_eq!(attach(&home, &program)["way"], "already", "{shape}");
            assert_eq!(program.ask(), before, "{shape}");
            detach(&home, &program);
            assert_eq!(apps(&home), 0, "{shape}");
            assert_eq!(program.ask(), before, "{shape}");
        }
    }
}

#[test]
fn system_calls_that_were_interrupted_last_as_long_as_they_were_meant_to() {
    const CODE: &str = "\
import sys, time, select, os, threading
r, w = os.pipe()
waits = [lambda: time.sleep(1), lambda: select.select([r], [], [], 1), lambda: threading.Event().wait(1), lambda: select.poll().poll(1000)]
print('there', flush=True)
for wait in waits:
    sys.stdin.readline()
    print('waiting', flush=True)
    begun = time.monotonic()
    wait()
    print(time.monotonic() - begun, flush=True)
sys.stdin.read()
";
    for python in pythons() {
        let home = Home::with_python(python);
        let mut program = Program::start(&home, python, CODE);
        for _ in 0..4 {
            writeln!(program.stdin).expect("it reads");
            assert_eq!(program.line(), "waiting");
            attach(&home, &program);
            let seconds: f64 = program.line().parse().expect("a number");
            assert!((0.99..5.0).contains(&seconds), "{seconds}");
            detach(&home, &program);
        }
    }
}

#[test]
fn a_program_in_a_call_that_keeps_the_gil_is_attached_to_when_it_is_over() {
    const CODE: &str = "\
import ctypes, time
libc = ctypes.PyDLL(None)
print('there', flush=True)
libc.sleep(2)
while True:
    time.sleep(1)
";
    let home = Home::new();
    let program = Program::start(&home, &newest_python(), CODE);
    attach(&home, &program);
    assert_eq!(program.foreign_code(), Vec::<String>::new());
    detach(&home, &program);
}

/// The thread we borrow has to wait for another one, longer than we hold it: it is left to itself and goes back by itself.
#[test]
fn a_borrowed_thread_that_has_to_wait_for_the_gil_is_let_go() {
    const CODE: &str = "\
import ctypes, sys, threading, time
libc = ctypes.PyDLL(None)
def keep():
    time.sleep(0.1)
    print('there', flush=True)
    libc.sleep(2)
threading.Thread(target=keep, daemon=True).start()
begun = time.monotonic()
time.sleep(4)
print(time.monotonic() - begun, flush=True)
sys.stdin.read()
";
    for python in pythons() {
        let home = Home::with_python(python);
        let mut program = Program::start(&home, python, CODE);
        attach(&home, &program);
        let seconds: f64 = program.line().parse().expect("a number");
        assert!((3.99..8.0).contains(&seconds), "{seconds}");
        detach(&home, &program);
        assert_eq!(program.foreign_code(), Vec::<String>::new());
        assert!(Watched::new(program.child.id().cast_signed()).is_alive());
    }
}

#[test]
fn attaching_and_detaching_again_and_again_leaves_nothing() {
    rounds(50);
}

#[test]
#[ignore = "takes minutes; `--include-ignored` runs it"]
fn a_thousand_rounds_leave_nothing() {
    rounds(1000);
}

/// Whether something comes to be, given time.
fn settled(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::yield_now();
    }
}

fn rounds(count: usize) {
    for python in pythons() {
        let home = Home::with_python(python);
        let mut program = Program::in_shape(&home, python, "sleeping");
        let names = program.ask();
        let around = |program: &Program| {
            attach(&home, program);
            detach(&home, program);
        };
        // What Python imports and caches the first times stays.
        for _ in 0..10 {
            around(&program);
        }
        program.ask();
        let (descriptors, mut blocks) = (program.descriptors(), program.blocks());
        let mut kept = Vec::new();
        // What is imported once more, on a way that is seldom taken, is not imported again; what leaks leaks each time.
        for _ in 0..3 {
            for _ in 0..count {
                around(&program);
            }
            let bound = blocks + 10 * count as u64;
            // The probe's thread may be at its last steps.
            if settled(|| program.blocks() < bound) {
                kept.clear();
                break;
            }
            kept.push(program.blocks() - blocks);
            blocks = program.blocks();
        }
        assert!(kept.is_empty(), "after each {count} rounds so many more blocks were kept: {kept:?}");
        assert_eq!(program.ask(), names);
        assert_eq!(program.descriptors(), descriptors);
        assert!(program.number("Threads") <= 3, "{} threads", program.number("Threads"));
        assert_eq!(program.foreign_code(), Vec::<String>::new());
        assert_eq!(apps(&home), 0);
    }
}

#[test]
fn signals_come_through_while_a_probe_comes_and_goes() {
    const CODE: &str = "\
import os, signal, time
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
print('there', flush=True)
while True:
    time.sleep(0.01)
    # Not in the handler: the next signal comes at once, and handlers would pile up.
    while heard:
        heard.pop()
        os.write(1, b'heard\\n')
";
    let home = Home::new();
    let mut program = Program::start(&home, &newest_python(), CODE);
    let pid = program.child.id().cast_signed();
    let number = program.pid();
    std::thread::scope(|scope| {
        let coming_and_going = scope.spawn(|| {
            for _ in 0..5 {
                let told = home.run(&["attach", &number]);
                assert!(told.status.success(), "{told:?}");
                assert!(home.run(&["attach", "--detach", &number]).status.success());
            }
        });
        while !coming_and_going.is_finished() {
            kill(pid, Signal::USR1);
            assert_eq!(program.line(), "heard");
        }
    });
}

#[track_caller]
fn refused(home: &Home, pid: &str, message: &str, hint: &str) {
    let told = home.run(&["attach", pid]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(told.stderr.contains(message) && told.stderr.contains(hint), "{}", told.stderr);
}

#[test]
fn what_cannot_be_attached_to_is_told_with_the_way_out() {
    let home = Home::new();
    refused(&home, "2147483647", "there is no process 2147483647", "pgrep");
    refused(&home, &std::process::id().to_string(), "is not Python", "pgrep");
    let mut other = Command::new("sleep").arg("1000").spawn().expect("it starts");
    refused(&home, &other.id().to_string(), "sleep`, which is not Python", "pgrep");
    other.kill().expect("it is there");
    // It is not reaped yet.
    Watched::new(other.id().cast_signed()).assert_ends();
    refused(&home, &other.id().to_string(), "has ended", "nothing");
    other.wait().expect("it can be waited for");
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        refused(&home, "2", "kernel", "Python");
    }
}

#[test]
fn a_stopped_program_stays_stopped_and_is_told_how_to_go_on() {
    let home = Home::new();
    let mut program = Program::in_shape(&home, &newest_python(), "sleeping");
    let pid = program.child.id().cast_signed();
    kill(pid, Signal::STOP);
    refused(&home, &program.pid(), "is stopped by a signal", &format!("kill -CONT {pid}"));
    assert!(program.proc("stat").contains(") T "), "it stays stopped");
    kill(pid, Signal::CONT);
    attach(&home, &program);
    assert!(program.ask().ends_with("True"));
    detach(&home, &program);
}

#[test]
fn an_old_python_is_refused_and_unharmed() {
    let Some(python) = python2() else {
        skip("an_old_python_is_refused_and_unharmed", "there is no Python 2");
        return;
    };
    let home = Home::new();
    let code = "import sys, time\nprint 'there'\nsys.stdout.flush()\nwhile True: time.sleep(1)";
    let program = Program::start(&home, &python, code);
    refused(&home, &program.pid(), "older than 3.8", "3.8 or newer");
    assert!(Watched::new(program.child.id().cast_signed()).is_alive());
}

#[test]
fn a_session_is_not_attached_to() {
    let home = Home::new();
    let pid = home.run(&["exec", "import os; print(os.getpid())"]).stdout;
    refused(&home, pid.trim(), "belongs to a session", "pylair sessions");
    refused(&home, &home.daemon_pid().to_string(), "is pylair itself", "attach to the program");
}

#[test]
fn another_users_program_is_named_with_its_user() {
    const NOBODY: u32 = 65534;
    let home = Home::new();
    if !rustix::process::geteuid().is_root() {
        skip("another_users_program_is_named_with_its_user", "it takes root to be somebody else");
        return;
    }
    let program = Program::in_shape(&home, &newest_python(), "sleeping");
    let own = Path::new("/tmp").join(format!("pylair-attach-{}", std::process::id()));
    fs::create_dir(&own).expect("/tmp is writable");
    let command = own.join("pylair");
    fs::copy(&home.program, &command).expect("it can be copied");
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).expect("we are root");
    let told = Command::new(&command)
        .args(["attach", &program.pid()])
        .env_clear()
        .env("PYLAIR_HOME", own.join("home"))
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output()
        .expect("the program starts");
    fs::remove_dir_all(&own).expect("we are root");
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(told.status.code(), Some(2), "{said}");
    assert!(said.contains("belongs to root") && said.contains("sudo"), "{said}");
}

#[test]
fn the_tool_attaches_through_the_daemon() {
    let home = Home::new();
    let program = Program::in_shape(&home, &newest_python(), "asyncio");
    let mut client = home.initialized_client();
    let attached = client.data("attach", &json!({"pid": program.child.id(), "app_id": "mine"}));
    assert_eq!(attached["app_id"], "mine", "{attached}");
    assert_eq!(attached["target"], format!("app:mine@{}", program.child.id()));
    let failure = client.failure("attach", &json!({"pid": 2_147_483_647}));
    assert_eq!(failure["kind"], "no_process", "{failure}");
    assert_eq!(client.failure("attach", &json!({"pid": 0}))["kind"], "bad_argument");
    detach(&home, &program);
}

#[test]
fn a_program_that_ends_meanwhile_is_told() {
    // The stop comes while it is on its way out, or before, or after: whichever, there is one answer and no hang.
    let home = Home::new();
    for _ in 0..5 {
        let code = "import sys\nprint('there', flush=True)\nsys.stdin.readline()";
        let mut program = Program::start(&home, &newest_python(), code);
        writeln!(program.stdin).expect("it reads");
        let told = home.run(&["attach", &program.pid()]);
        assert!(matches!(told.status.code(), Some(0 | 2)), "{told:?}");
        program.child.wait().expect("it ends");
    }
}
