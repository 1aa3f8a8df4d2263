//! What threads are doing: `pylair stacks` and `dump_stacks`, against programs in many shapes.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use pylair_stacks::{Frame, Stacks, Task, Thread};
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Home, WAIT_FOREVER, kill, newest_python, on_each_python, python2, pythons, skip, text_of};

/// A program that runs until it is dropped.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    minor: u32,
}

impl Program {
    /// Starts Python code and waits until it has printed a line.
    fn start(python: &Path, code: &str) -> Self {
        let mut child = Command::new(python)
            .args(["-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        output.read_line(&mut line).expect("it prints");
        let minor = line.trim().parse().unwrap_or_else(|_| panic!("its minor version, not {line:?}"));
        Self { child, output, minor }
    }

    /// What it printed since, to its end.
    fn end(mut self) -> String {
        self.child.kill().expect("it is there");
        let mut printed = String::new();
        self.output.read_to_string(&mut printed).expect("it can be read");
        printed
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// As the command prints them.
    #[track_caller]
    fn stacks(&self, home: &Home) -> Stacks {
        let told = home.run(&["stacks", "--json", &self.pid().to_string()]);
        assert!(told.status.success(), "3.{}: {told:?}", self.minor);
        serde_json::from_str(&told.stdout).expect("JSON")
    }

    /// Dumps until this is so: a program that has just said something is still on its way.
    #[track_caller]
    fn stacks_when(&self, home: &Home, wanted: impl Fn(&Stacks) -> bool) -> Stacks {
        for _ in 0..200 {
            let stacks = self.stacks(home);
            if wanted(&stacks) {
                return stacks;
            }
        }
        panic!("3.{}: it never came: {:#?}", self.minor, self.stacks(home));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be gone.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Prints the minor version, which is also how a program says that it is ready.
const READY: &str = "import sys; print(sys.version_info[1], flush=True)\n";

fn on_each_program(code: &str, check: impl Fn(&Program, &Home)) {
    for python in pythons() {
        let home = Home::with_python(python);
        let program = Program::start(python, code);
        check(&program, &home);
        assert_eq!(program.end(), "", "no code of it runs");
        assert!(!home.places().socket().exists(), "looking into a process starts no daemon");
    }
}

fn functions(frames: &[Frame]) -> Vec<&str> {
    // Before 3.11 a function does not know what it is in.
    frames.iter().map(|frame| frame.function.rsplit('.').next().expect("text has a part")).collect()
}

fn local<'a>(frame: &'a Frame, name: &str) -> &'a str {
    let found = frame.locals.iter().find(|local| local.name == name);
    &found.unwrap_or_else(|| panic!("no {name} in {frame:?}")).value
}

fn named<'a>(stacks: &'a Stacks, name: &str) -> &'a Thread {
    let found = stacks.threads.iter().find(|thread| thread.name.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("no {name} in {stacks:#?}"))
}

fn task<'a>(stacks: &'a Stacks, name: &str) -> &'a Task {
    stacks.tasks.iter().find(|task| task.name == name).unwrap_or_else(|| panic!("no {name} in {:#?}", stacks.tasks))
}

#[test]
fn a_busy_program_is_told_with_its_variables_and_no_code_of_it_runs() {
    let code = format!(
        "class Thing:\n    def __repr__(self): print('user code ran', flush=True)\n\
         def spin(n, text):\n    thing, items, total = Thing(), [1, 2.5, None, True], 0\n    {READY}    \
         while True:\n        total += n\nspin(3, 'héllo')"
    );
    on_each_program(&code, |program, home| {
        let stacks = program.stacks_when(home, |stacks| {
            stacks
                .threads
                .first()
                .is_some_and(|thread| thread.holds_gil && functions(&thread.frames) == ["spin", "<module>"])
        });
        let [main] = stacks.threads.as_slice() else { panic!("{stacks:#?}") };
        assert!(main.main && !main.incomplete && main.idle == Some(false), "{main:#?}");
        assert_eq!(main.os_id, Some(program.pid()));
        let frame = &main.frames[0];
        assert_eq!((local(frame, "n"), local(frame, "text")), ("3", "\"héllo\""));
        assert_eq!(local(frame, "items"), "[1, 2.5, None, True]");
        assert!(local(frame, "thing").starts_with("<Thing at 0x"), "{frame:?}");
        assert!((6..=8).contains(&frame.line), "{frame:?}");
        assert!(stacks.python.starts_with(&format!("3.{}.", program.minor)), "{}", stacks.python);
        let without = home.run(&["stacks", "--no-locals", &program.pid().to_string()]);
        assert!(
            without.stdout.contains("(holds the GIL, running,") && !without.stdout.contains("héllo"),
            "{without:?}"
        );
    });
}

#[test]
fn classes_tuples_closures_and_what_is_left_out_are_told() {
    let many: Vec<_> = (0..60).map(|n| format!("v{n} = {n}")).collect();
    let code = format!(
        "class Thing: pass\ndef outer(given):\n    shared = ('a',)\n    def inner():\n        \
         kind, table, empty, big = Thing, {{'k': [1, (2,)]}}, (), -(1 << 70)\n        {READY}        input()\n        \
         return shared, given, kind, table, empty, big\n    return inner()\n\
         def many():\n    {}\n    outer({{1: Thing, 'none': None}})\nmany()",
        many.join("; ")
    );
    on_each_program(&code, |program, home| {
        let stacks = program.stacks_when(home, |stacks| functions(&stacks.threads[0].frames).first() == Some(&"inner"));
        let frames = &stacks.threads[0].frames;
        assert_eq!(functions(frames), ["inner", "outer", "many", "<module>"]);
        let told: Vec<_> = frames[0].locals.iter().map(|local| (local.name.as_str(), local.value.as_str())).collect();
        let expected = [
            ("kind", "<class 'Thing'>"),
            ("table", "{\"k\": [1, (2,)]}"),
            ("empty", "()"),
            ("big", "-1180591620717411303424"),
            ("given", "{1: <class 'Thing'>, \"none\": None}"),
            ("shared", "(\"a\",)"),
        ];
        let of_inner: Vec<_> = told.into_iter().filter(|(name, _)| *name != "sys").collect();
        assert_eq!(of_inner, expected, "3.{}", program.minor);
        assert_eq!((local(&frames[1], "shared"), local(&frames[1], "given")), (expected[5].1, expected[4].1));
        assert_eq!((frames[2].locals.len(), frames[2].more_locals), (50, 10), "3.{}", program.minor);
        let text = home.run(&["stacks", &program.pid().to_string()]).stdout;
        assert!(text.contains("v49 = 49, … 10 more\n"), "{text}");
    });
}

#[test]
fn numbers_texts_and_derived_classes_are_told_as_they_are() {
    let code = format!(
        "import collections\nPoint = collections.namedtuple('Point', 'x y')\nclass Text(str): pass\n\
         class Items(list):\n    def __repr__(self): print('user code ran', flush=True)\n\
         def hold():\n    nan, big, small, point = float('nan'), 1e22, 1.5e-7, Point(1, 'a')\n    \
         text, wide, items, path = Text('q'), Text('h\\u00e9\\u4e2d'), Items([1]), 'C:\\\\new \\\"x\\\"'\n    \
         table = collections.OrderedDict(a=1)\n    {READY}    input()\nhold()"
    );
    on_each_program(&code, |program, home| {
        let stacks = program.stacks_when(home, |stacks| functions(&stacks.threads[0].frames).first() == Some(&"hold"));
        let frame = &stacks.threads[0].frames[0];
        for (name, value) in [
            ("nan", "nan"),
            ("big", "1e+22"),
            ("small", "1.5e-07"),
            ("point", "<Point (1, \"a\")>"),
            ("text", "<Text \"q\">"),
            ("wide", "<Text \"hé中\">"),
            ("items", "<Items [1]>"),
            ("path", r#""C:\\new \"x\"""#),
            ("table", "<collections.OrderedDict {\"a\": 1}>"),
        ] {
            assert_eq!(local(frame, name), value, "3.{}", program.minor);
        }
    });
}

#[test]
fn threads_are_named_and_the_waiting_are_told_from_the_running() {
    let code = format!(
        "import threading\nstarted = threading.Barrier(3)\nlock = threading.Lock()\nlock.acquire()\n\
         def block(key):\n    started.wait()\n    lock.acquire()\n\
         for n in range(2): threading.Thread(target=block, args=(n,), name='blocked-%d' % n, daemon=True).start()\n\
         started.wait()\n{READY}input()"
    );
    on_each_program(&code, |program, home| {
        let is_there = |thread: &Thread| thread.main || functions(&thread.frames)[0] == "block";
        let stacks = program.stacks_when(home, |stacks| {
            stacks.threads.iter().all(|thread| thread.idle == Some(true) && is_there(thread))
        });
        assert_eq!(stacks.threads.len(), 3, "{stacks:#?}");
        assert!(stacks.threads[0].main && !stacks.threads[1].main && !stacks.threads[2].main);
        assert_eq!(stacks.threads[0].name.as_deref(), Some("MainThread"));
        for n in 0..2 {
            let thread = named(&stacks, &format!("blocked-{n}"));
            assert_eq!(functions(&thread.frames), ["block", "run", "_bootstrap_inner", "_bootstrap"]);
            assert_eq!(local(&thread.frames[0], "key"), n.to_string());
            assert!(!thread.holds_gil && thread.os_id.is_some_and(|id| id != program.pid()), "{thread:#?}");
            assert!(!thread.incomplete);
        }
        let text = home.run(&["stacks", &program.pid().to_string()]).stdout;
        assert!(text.contains("thread 1 \"MainThread\" (waiting, tid "), "{text}");
        assert!(text.contains(":7 in block   key = 0"), "{text}");
    });
}

#[test]
fn deep_recursion_keeps_both_ends_and_counts_the_rest() {
    let code = format!("def dive(n):\n    if n: dive(n - 1)\n    else:\n        {READY}        input()\ndive(500)");
    on_each_program(&code, |program, home| {
        let stacks = program.stacks(home);
        let main = &stacks.threads[0];
        assert_eq!((main.frames.len(), main.cut), (100, 402), "3.{}", program.minor);
        assert_eq!((local(&main.frames[0], "n"), local(&main.frames[98], "n")), ("0", "500"));
        assert_eq!(main.frames[99].function, "<module>");
        let text = home.run(&["stacks", &program.pid().to_string()]).stdout;
        assert!(text.contains("… 402 more frames …"), "{text}");
    });
}

#[test]
fn generators_and_calls_into_c_are_in_the_stack() {
    let code = format!(
        "def numbers(top):\n    for n in range(top):\n        if n == 2:\n            {READY}            input()\n        yield n\n\
         def total(top):\n    return sum(numbers(top), 0)\ntotal(5)"
    );
    on_each_program(&code, |program, home| {
        let stacks = program.stacks(home);
        let frames = &stacks.threads[0].frames;
        assert_eq!(functions(frames), ["numbers", "total", "<module>"]);
        assert_eq!((local(&frames[0], "n"), frames[1].line), ("2", 8));
    });
}

const SERVICE: &str = "\
async def leaf(n):
    await asyncio.sleep(3600)
async def step(n):
    word = 'w%d' % n
    await leaf(n)
async def group():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(step(1), name='first')
        tasks.create_task(step(2), name='second')
async def limited():
    async with asyncio.timeout(3600):
        await step(4)
async def numbers():
    while True:
        await leaf(5)
        yield 1
async def iterates():
    async for n in numbers(): pass
async def main():
    shared = asyncio.create_task(step(3), name='shared')
    async def shields(): await asyncio.shield(shared)
    parts = {'group': group(), 'limited': limited(), 'iterates': iterates(), 'shields': shields()}
    tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    await asyncio.gather(*tasks, shared)
async def top():
    task = asyncio.create_task(main(), name='gathers')
    while len(asyncio.all_tasks()) < 9: await asyncio.sleep(0)
    print(sys.version_info[1], flush=True)
    await task
";

#[test]
fn tasks_are_told_with_who_waits_for_whom_or_why_not() {
    // Where there is no `TaskGroup` a simpler one will do: such tasks are seen only from inside.
    let code = format!(
        "import asyncio, sys\nif sys.version_info < (3, 11):\n    async def top():\n        print(sys.version_info[1], flush=True)\n        \
         await asyncio.sleep(3600)\nelse:\n    exec({})\nasyncio.run(top())",
        serde_json::to_string(SERVICE).expect("text")
    );
    on_each_program(&code, |program, home| {
        if program.minor < 14 {
            let stacks = program.stacks_when(home, |stacks| functions(&stacks.threads[0].frames)[0] == "select");
            assert!(stacks.tasks.is_empty());
            assert!(stacks.tasks_note.is_some_and(|note| note.contains("only from inside: attach")));
            return;
        }
        let stacks = program.stacks_when(home, |stacks| functions(&stacks.threads[0].frames)[0] == "select");
        assert_eq!((stacks.tasks.len(), &stacks.tasks_note), (9, &None), "{:#?}", stacks.tasks);
        let names = |ids: &[u64]| {
            let mut names: Vec<_> =
                stacks.tasks.iter().filter(|task| ids.contains(&task.id)).map(|task| task.name.as_str()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&task(&stacks, "Task-1").awaits), ["gathers"]);
        assert_eq!(names(&task(&stacks, "gathers").awaits), ["group", "iterates", "limited", "shared", "shields"]);
        assert_eq!(names(&task(&stacks, "group").awaits), ["first", "second"]);
        assert_eq!(names(&task(&stacks, "shields").awaits), ["shared"]);
        assert_eq!(names(&task(&stacks, "shared").awaited_by), ["gathers", "shields"]);
        let first = task(&stacks, "first");
        assert_eq!((functions(&first.frames), first.state.as_str()), (vec!["sleep", "leaf", "step"], "waiting"));
        assert_eq!((local(&first.frames[2], "n"), local(&first.frames[2], "word")), ("1", "\"w1\""));
        assert_eq!((first.frames[1].line, first.frames[2].line, first.coroutine.as_str()), (2, 5, "step"));
        assert_eq!(functions(&task(&stacks, "limited").frames), ["sleep", "leaf", "step", "limited"]);
        assert_eq!(functions(&task(&stacks, "iterates").frames), ["sleep", "leaf", "numbers", "iterates"]);
        let text = home.run(&["stacks", &program.pid().to_string()]).stdout;
        assert!(text.contains("\n  - gathers (waiting) main\n"), "{text}");
        assert!(text.contains("\n      - first (waiting) step\n"), "{text}");
    });
}

#[test]
fn a_running_task_has_the_frames_of_its_thread() {
    let code = format!(
        "import asyncio\ndef spin(n):\n    while True: pass\nasync def inner(n):\n    spin(n)\nasync def outer():\n    {READY}    \
         await inner(7)\nasyncio.run(outer())"
    );
    on_each_program(&code, |program, home| {
        if program.minor < 14 {
            return;
        }
        let in_spin = |stacks: &Stacks| stacks.tasks.first().is_some_and(|task| functions(&task.frames).len() == 3);
        let stacks = program.stacks_when(home, in_spin);
        let [task] = stacks.tasks.as_slice() else { panic!("{stacks:#?}") };
        assert_eq!((functions(&task.frames), task.state.as_str()), (vec!["spin", "inner", "outer"], "running"));
        assert_eq!(task.frames, stacks.threads[0].frames[..3]);
    });
}

#[test]
fn what_is_no_living_python_is_named() {
    let home = Home::new();
    let refused = |pid: i32| {
        let told = home.run(&["stacks", &pid.to_string()]);
        assert_eq!((told.status.code(), told.stdout.as_str()), (Some(2), ""), "{told:?}");
        told.stderr
    };
    let mut sleep = Command::new("sleep").arg("3600").spawn().expect("it starts");
    let said = refused(sleep.id().cast_signed());
    sleep.kill().and_then(|()| sleep.wait()).expect("it is ours");
    assert!(said.contains("which is not Python") && said.contains("hint: "), "{said}");
    let said = refused(sleep.id().cast_signed());
    assert!(said.contains(&format!("there is no process {}", sleep.id())), "{said}");
    let mut zombie = Command::new("true").stdin(Stdio::piped()).spawn().expect("it starts");
    loop {
        let said = refused(zombie.id().cast_signed());
        if said.contains("only waits for its parent") {
            break;
        }
    }
    zombie.wait().expect("it is ours");
    assert!(home.run(&["stacks", "0"]).stderr.contains("0 is not in"), "a pid is positive");
    let Some(python2) = python2() else { return skip("Python 2 is refused", "there is none here") };
    let wait = "import sys, time\nprint(2)\nsys.stdout.flush()\ntime.sleep(3600)";
    let program = Program::start(&python2, wait);
    let said = refused(program.pid());
    assert!(said.contains("is Python 2.7") && said.contains("from 3.8 on"), "{said}");
}

#[test]
fn a_stopped_process_is_read_and_stays_stopped() {
    let home = Home::new();
    let program = Program::start(&newest_python(), &format!("def held(): \n    {READY}    input()\nheld()"));
    kill(program.pid(), Signal::STOP);
    let stacks = program.stacks(&home);
    assert_eq!(functions(&stacks.threads[0].frames), ["held", "<module>"]);
    kill(program.pid(), Signal::CONT);
}

#[test]
fn a_session_is_looked_into_while_its_cell_runs() {
    on_each_python(async |core| {
        for sandbox in ["open", "sealed"] {
            let options = pylair_core::session::OpenOptions { sandbox: Some(sandbox.into()), ..Default::default() };
            let session = match core.open_session(options).await {
                Ok(session) => session,
                Err(error) if error.kind() == "sandbox_unavailable" => {
                    return skip("a sealed session is looked into", "this machine cannot seal");
                }
                Err(error) => panic!("{error}"),
            };
            let job = session.start(&format!("def wait(secret):\n    exec({WAIT_FOREVER:?})\nwait(42)")).await;
            job.capture.readable(pylair_output::Cursor::default()).await;
            let options = pylair_stacks::Options { locals: true };
            let program = core.daemon.sessions.parts.probes.program();
            let stacks = pylair_stacks::apart::dump(program, session.pid(), options).await.expect("it is ours");
            assert_eq!(stacks.python, session.session.status().python, "{sandbox}");
            let main = &stacks.threads[0];
            assert!(main.main && main.os_id == Some(session.pid()), "{main:#?}");
            let wait = main.frames.iter().find(|frame| frame.function == "wait").expect("the cell is in the stack");
            assert_eq!(local(wait, "secret"), "42", "{sandbox}");
            session.session.interrupt(Some(&job.id)).await.expect("it stops");
            assert_eq!(session.value("1 + 1").await, "2");
        }
    });
}

#[test]
fn the_tool_answers_for_sessions_and_pids_and_says_what_is_wrong() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("def f(): pass");
    let sessions = client.data("list_targets", &json!({}));
    let name = sessions["sessions"][0]["name"].as_str().expect("a name").to_owned();
    let result = client.call("dump_stacks", &json!({"target": name}));
    assert_eq!(result["structuredContent"]["threads"][0]["main"], true, "{result}");
    assert!(text_of(&result).contains("\nthread 1 "), "{result}");
    let mut program = Program::start(&newest_python(), &format!("def held(key): \n    {READY}    input()\nheld('k')"));
    let pid = program.pid();
    let text = text_of(&client.call("dump_stacks", &json!({"target": format!("pid:{pid}")})));
    assert!(text.contains("in held   key = \"k\""), "{text}");
    let text = text_of(&client.call("dump_stacks", &json!({"target": format!("pid:{pid}"), "locals": false})));
    assert!(text.contains("in held\n"), "{text}");
    program.child.stdin.take().expect("it is piped").write_all(b"\n").expect("it reads");
    program.child.wait().expect("it is ours");
    let failure = client.failure("dump_stacks", &json!({"target": format!("pid:{pid}")}));
    assert_eq!((&failure["kind"], failure["hint"].is_string()), (&json!("no_process"), true), "{failure}");
    assert_eq!(client.failure("dump_stacks", &json!({"target": "nobody"}))["kind"], "unknown_session");
    assert_eq!(client.failure("dump_stacks", &json!({"target": "pid:x"}))["kind"], "bad_argument");
}
