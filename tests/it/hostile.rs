//! Cells that break Python itself: the session goes on, and `undo` takes it back. `probe/tests/test_hostile.py` has many more of them.

use serde_json::json;

use crate::support::Home;

/// What a cell may do, by its name.
const CELLS: &[(&str, &str)] = &[
    (
        "functions of the standard library are gone",
        "import os, sys, time, json, socket, threading, traceback, linecache\n\
         for module in (os, time, json, socket, threading, traceback, linecache):\n\
         \x20   for name in list(vars(module)):\n\
         \x20       if not name.startswith('__'): vars(module)[name] = None",
    ),
    ("no builtins are left", "import builtins; builtins.__dict__.clear()"),
    ("no modules are left", "import sys; sys.modules.clear(); sys.meta_path.clear()"),
    ("the streams are nothing", "import sys; sys.stdout = 1; sys.stderr = object(); del sys.stdin"),
    ("a trace function raises", "import sys\ndef boom(*_): raise SystemExit\nsys.settrace(boom); sys.setprofile(boom)"),
    (
        "there is no room for calls",
        "import sys\nfor n in range(5, 300):\n    try: sys.setrecursionlimit(n); break\n    except RecursionError: pass",
    ),
    (
        "a timer raises again and again",
        "import signal\ndef boom(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, boom)\n\
         signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nwhile True: pass",
    ),
    (
        "a result cannot be shown",
        "def boom(*_): raise SystemExit\nclass Text(str): __len__ = encode = __str__ = __eq__ = __hash__ = boom\n\
         class Odd:\n    def __repr__(self): return Text('x')\nOdd()",
    ),
    (
        "an exception cannot be asked",
        "def boom(*_): raise SystemExit\nclass Odd(Exception):\n\
         \x20   __str__ = __repr__ = __getattribute__ = __hash__ = __eq__ = boom\n    __class__ = __cause__ = property(boom)\n\
         raise BaseException.__new__(Odd)",
    ),
    (
        "names cannot be compared",
        "def boom(*_): raise SystemExit\nclass Name(str):\n    __hash__ = str.__hash__\n    __eq__ = __lt__ = startswith = boom\n\
         globals()[Name('a')] = globals()[Name('b')] = 1",
    ),
];

#[test]
fn a_session_survives_what_a_cell_does_to_python() {
    let home = Home::new();
    let mut client = home.initialized_client();
    // How long `kept` is after a cell. Cells that come quickly have no checkpoint each, and `undo` says how far it went.
    let mut lengths: Vec<(u64, usize)> = Vec::new();
    for (what, code) in CELLS {
        let length = lengths.last().map_or(0, |(_, length)| *length) + 1;
        let appended = client.execute("globals().setdefault('kept', []).append(1)\nlen(kept)");
        assert_eq!(appended["result"], length.to_string(), "{what}: {appended:#}");
        lengths.push((appended["cell"].as_u64().unwrap(), length));
        let done = client.execute(code);
        assert!(["ok", "raised"].contains(&done["outcome"].as_str().unwrap_or_default()), "{what}: {done:#}");
        let broken = done["cell"].as_u64().unwrap();
        let after = client.execute("1 + 1");
        assert!(after["result"] == "2" || after["error"]["type"] == "TimeoutError", "{what}: {after:#}");
        let seen = client.data("inspect", &json!({"target": done["session"]}));
        assert!(seen.to_string().contains("kept"), "{what}: {seen:#}");
        let mut at = broken;
        while at >= broken {
            let undone = client.data("undo", &json!({"target": done["session"]}));
            at = undone["cell"].as_u64().unwrap_or_else(|| panic!("{what}: {undone:#}"));
        }
        lengths.retain(|(cell, _)| *cell <= at);
        let length = lengths.last().map_or(0, |(_, length)| *length);
        let kept = client.execute("len(globals().get('kept', ()))");
        assert_eq!(kept["result"], length.to_string(), "{what}, gone back to {at}: {kept:#}");
    }
}

/// It used to go off in the probe while no cell ran, and end the worker.
#[test]
fn an_alarm_between_two_cells_is_told_of() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute(
        "import signal, time\ndef late(*_): raise TimeoutError('too late')\nsignal.signal(signal.SIGALRM, late)",
    );
    client.execute("signal.setitimer(signal.ITIMER_REAL, 0.01); kept = 5");
    // The alarm comes before, between or in one of these cells; whichever, none of them ends the worker.
    for _ in 0..200 {
        let done = client.execute("time.sleep(0.001); kept");
        let told = done.to_string();
        if told.contains("TimeoutError") {
            assert!(told.contains("too late"), "{done:#}");
            assert_eq!(client.execute("kept")["result"], "5");
            return;
        }
        assert_eq!(done["result"], "5", "{done:#}");
    }
    panic!("the alarm never went off");
}
