//! What user code may do to the session it runs in: every row of the fault matrix in one session, through a real client.
//!
//! After each row the next answer is about the next cell, and the variables of before are there.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Client, Home, PATIENCE, pythons};

/// A row: what it is called, what runs, with which limit, and what must be true of the structured answer.
struct Fault {
    name: &'static str,
    code: &'static str,
    timeout_s: f64,
    outcome: &'static str,
    check: fn(&Value) -> bool,
}

const LIMIT: f64 = 30.0;

const FAULTS: &[Fault] = &[
    Fault {
        name: "an exception keeps what was printed and shows the cell's own lines",
        code: "print('before')\nkept = 1\n1 / 0",
        timeout_s: LIMIT,
        outcome: "raised",
        check: |report| {
            report["stdout"] == "before\n"
                && report["variables"]["new"] == json!(["kept"])
                && text(&report["error"]["traceback"]).contains("1 / 0")
                && !text(&report["error"]["traceback"]).contains("pylair")
        },
    },
    Fault {
        name: "a loop without end",
        code: "loops = True\nwhile True: pass",
        timeout_s: 0.3,
        outcome: "timed_out",
        check: |report| has_note(report, "timeout_s=0.3"),
    },
    Fault {
        name: "a long sleep runs once and no later answer is shifted",
        code: "count = globals().get('count', 0) + 1\nimport time\ntime.sleep(1000)",
        timeout_s: 0.3,
        outcome: "timed_out",
        check: |_| true,
    },
    Fault {
        name: "it ran once",
        code: "count",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| report["result"] == "1",
    },
    Fault {
        name: "a timeout that `except Exception` cannot swallow",
        code: "while True:\n    try:\n        while True: pass\n    except Exception: pass",
        timeout_s: 0.3,
        outcome: "timed_out",
        check: |_| true,
    },
    Fault {
        name: "code in C that does not come back",
        code: "sum(range(10**15))",
        timeout_s: 0.3,
        outcome: "timed_out",
        check: |report| has_note(report, "its worker was killed") && has_note(report, "rolled back"),
    },
    Fault {
        name: "sys.exit",
        code: "import sys\nsys.exit(3)",
        timeout_s: LIMIT,
        outcome: "raised",
        check: |report| report["error"]["type"] == "SystemExit" && has_note(report, "the session goes on"),
    },
    Fault {
        name: "KeyboardInterrupt",
        code: "raise KeyboardInterrupt",
        timeout_s: LIMIT,
        outcome: "raised",
        check: |report| report["error"]["type"] == "KeyboardInterrupt",
    },
    Fault {
        name: "os._exit",
        code: "import os\nos._exit(7)",
        timeout_s: LIMIT,
        outcome: "died",
        check: |report| text(&report["error"]["message"]).contains("code 7") && has_note(report, "rolled back"),
    },
    Fault {
        name: "input() does not wait for anybody",
        code: "input('name? ')",
        timeout_s: LIMIT,
        outcome: "raised",
        check: |report| report["error"]["type"] == "EOFError",
    },
    Fault {
        name: "a child process and os.write print like anybody",
        code: "import os, subprocess\nos.write(1, b'raw\\n')\nsubprocess.run(['echo', 'child'])\n\
               os.write(1, b'{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\\n');",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| report["stdout"] == "raw\nchild\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n",
    },
    Fault {
        name: "a lone surrogate",
        code: "print('\\ud800')\n'\\udfff'",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| report["result"] == "'\\udfff'",
    },
    Fault {
        name: "a segmentation fault",
        code: "import ctypes\nctypes.string_at(0)",
        timeout_s: LIMIT,
        outcome: "died",
        check: |report| text(&report["error"]["message"]).contains("SIGSEGV") && has_note(report, "rolled back"),
    },
    Fault {
        name: "huge output is cut and kept",
        code: "print('x' * 20_000_000)\nprint('the end')",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| {
            report["truncated"] == true
                && text(&report["stdout"]).len() < 30_000
                && text(&report["stdout"]).ends_with("the end\n")
        },
    },
    Fault {
        name: "a cut does not turn a failure into a success",
        code: "print('y' * 20_000_000)\nraise ValueError('z' * 1_000_000)",
        timeout_s: LIMIT,
        outcome: "raised",
        check: |report| report["error"]["type"] == "ValueError" && text(&report["error"]["traceback"]).len() < 30_000,
    },
    Fault {
        name: "recursion without end",
        code: "def f(): f()\nf()",
        timeout_s: LIMIT,
        outcome: "raised",
        check: |report| {
            report["error"]["type"] == "RecursionError" && text(&report["error"]["traceback"]).len() < 20_000
        },
    },
    Fault {
        name: "not a number is no invalid JSON",
        code: "float('nan')",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| report["result"] == "nan",
    },
    Fault {
        name: "functions see the variables of now",
        code: "v = 1\ndef g(): return v\nv = 5\ng()",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| report["result"] == "5",
    },
    Fault {
        name: "asyncio.run works",
        code: "import asyncio\nasync def h(): return 'ran'\nasyncio.run(h())",
        timeout_s: LIMIT,
        outcome: "ok",
        check: |report| report["result"] == "'ran'",
    },
];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn has_note(report: &Value, part: &str) -> bool {
    report["notes"].as_array().is_some_and(|notes| notes.iter().any(|note| text(note).contains(part)))
}

fn run(client: &mut Client, code: &str, timeout_s: f64) -> Value {
    client.data("execute", &json!({"code": code, "timeout_s": timeout_s, "output": "json"}))
}

/// Waits until the state of now can be gone back to, so that what a fault costs is settled.
pub fn wait_for_checkpoint(client: &mut Client, session: &str, cell: u64) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let status = client.data("get_status", &json!({"target": session}));
        if status["session"]["checkpoints"].as_array().is_some_and(|cells| cells.last() == Some(&json!(cell))) {
            return;
        }
    }
    panic!("there is no checkpoint of {session} after cell {cell}");
}

#[test]
fn every_fault_has_its_answer_and_costs_nobody_else() {
    for python in pythons() {
        let home = Home::with_python(python);
        let mut client = home.initialized_client();
        let first = client.execute("state = {'x': 41}");
        let session = text(&first["session"]).to_owned();
        for fault in FAULTS {
            let place = format!("{} with {}", fault.name, python.display());
            let cell = client.data("get_status", &json!({"target": session}))["session"]["cell"].as_u64();
            wait_for_checkpoint(&mut client, &session, cell.expect("a number"));
            let report = run(&mut client, fault.code, fault.timeout_s);
            assert_eq!(report["outcome"], fault.outcome, "{place}: {report}");
            assert!((fault.check)(&report), "{place}: {report}");
            let next = client.execute("state['x'] + 1");
            assert_eq!(next["result"], "42", "{place}: the next answer is {next}");
        }
    }
}

#[test]
fn what_a_thread_prints_later_comes_with_the_next_answer() {
    let home = Home::new();
    let mut client = home.initialized_client();
    client.execute("import threading\ngo = threading.Event()\ndone = threading.Event()\ndef late():\n    go.wait()\n    print('late', flush=True)\n    done.set()\nthreading.Thread(target=late).start()");
    let report = client.execute("go.set()\ndone.wait()");
    assert!(text(&report["stdout"]).contains("late"), "{report}");
    assert_eq!(client.execute("1 + 1")["result"], "2");
}

#[test]
fn two_clients_at_once_never_see_each_others_state() {
    let home = Home::new();
    let mut clients = [home.initialized_client(), home.initialized_client()];
    let sessions = ["one", "other"];
    for (client, session) in clients.iter_mut().zip(sessions) {
        client.data("open_session", &json!({"name": session}));
    }
    for round in 0..20 {
        let asked: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(who, client)| {
                let code = format!(
                    "mine = globals().get('mine', []) + [({who}, {round})]\nimport os\nos.environ['WHO'] = '{who}'\n\
                     print('I am {who}')\n(set(who for who, _ in mine), len(mine), os.environ['WHO'])"
                );
                client.begin("execute", &json!({"code": code, "target": sessions[who], "output": "json"}))
            })
            .collect();
        for (who, id) in asked.into_iter().enumerate() {
            let report = clients[who].answer(id)["result"]["structuredContent"].clone();
            assert_eq!(report["result"], format!("({{{who}}}, {}, '{who}')", round + 1), "{report}");
            assert_eq!(report["stdout"], format!("I am {who}\n"));
        }
    }
}
