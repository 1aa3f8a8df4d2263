//! Cells: values, state, errors, and what comes back of odd ones.

use pylair_core::session::Outcome;

use crate::support::on_each_python;

#[test]
fn variables_and_imports_persist() {
    on_each_python(async |core| {
        let session = core.session().await;
        let report = session.run("import math\nx = 20").await;
        assert_eq!((report.outcome, report.result.as_deref()), (Outcome::Ok, None));
        assert_eq!(report.variables.new, ["math", "x"]);
        assert_eq!(session.value("x + math.floor(1.5)").await, "21");
        let report = session.run("x = 21\ndel math").await;
        assert_eq!(report.variables.changed, ["x"]);
        assert_eq!(report.variables.removed, ["math"]);
    });
}

#[test]
fn the_last_expression_is_the_result_unless_a_semicolon_follows() {
    on_each_python(async |core| {
        let session = core.session().await;
        for (code, result) in [
            ("1 + 1", Some("2")),
            ("1 + 1;", None),
            ("1 + 1  # ;", Some("2")),
            ("x = 1", None),
            ("None", None),
            ("'a'", Some("'a'")),
            ("x = 3\nif x:\n    x", None),
            ("x = 3; x", Some("3")),
            ("", None),
        ] {
            assert_eq!(session.run(code).await.result.as_deref(), result, "{code}");
        }
    });
}

#[test]
fn a_task_survives_until_a_later_cell_awaits_it() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = "import asyncio\n\
                    async def wait():\n    await event.wait()\n    return 'woken'\n\
                    event = asyncio.Event()\n\
                    task = asyncio.ensure_future(wait())\n\
                    await asyncio.sleep(0)";
        session.value(code).await;
        assert_eq!(session.value("task.done()").await, "False");
        assert_eq!(session.value("event.set()\nawait task").await, "'woken'");
    });
}

/// Newer versions mark the place inside a line; the lines themselves are the same.
fn without_marks(traceback: &str) -> String {
    let is_mark = |line: &&str| !line.trim().is_empty() && line.chars().all(|c| " ~^".contains(c));
    traceback.lines().filter(|line| !is_mark(line)).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_traceback_has_the_cells_lines_and_none_of_ours() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("def half(x):\n    return x / 0").await;
        let report = session.run("print('before')\nhalf(1)").await;
        assert_eq!(report.outcome, Outcome::Raised);
        assert_eq!(report.stdout, "before\n");
        let error = report.error.unwrap();
        assert_eq!((error.kind.as_str(), error.line), ("ZeroDivisionError", Some(2)));
        assert_eq!(
            without_marks(&error.traceback),
            "Traceback (most recent call last):\n  \
               File \"<cell 2>\", line 2, in <module>\n    half(1)\n  \
               File \"<cell 1>\", line 2, in half\n    return x / 0\n\
             ZeroDivisionError: division by zero"
        );
    });
}

#[test]
fn a_syntax_error_has_its_caret() {
    on_each_python(async |core| {
        let session = core.session().await;
        let report = session.run("print('not run')\nx = = 1").await;
        assert_eq!((report.outcome, report.stdout.as_str()), (Outcome::Raised, ""));
        let error = report.error.unwrap();
        assert_eq!((error.kind.as_str(), error.line), ("SyntaxError", Some(2)));
        let expected = "  File \"<cell 1>\", line 2\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n";
        assert_eq!(error.traceback, expected);
    });
}

#[test]
fn leaving_ends_the_cell_and_not_the_session() {
    on_each_python(async |core| {
        let session = core.session().await;
        session.value("kept = 1").await;
        for (code, note) in [
            ("exit()", None),
            ("quit()", None),
            ("import sys\nsys.exit()", None),
            ("import sys\nsys.exit(3)", Some("3")),
            ("raise SystemExit('no more')", Some("no more")),
        ] {
            let report = session.run(&format!("{code}\nkept = 2")).await;
            assert_ne!(report.outcome, Outcome::Died, "{code}: {report:#?}");
            if let Some(note) = note {
                let told = format!("{:?} {:?}", report.notes, report.error);
                assert!(told.contains(note), "{code}: {told}");
            }
            assert_eq!(session.value("kept").await, "1", "{code}");
        }
    });
}

#[test]
fn input_says_what_to_do_instead() {
    on_each_python(async |core| {
        let session = core.session().await;
        let error = session.run("input('name? ')").await.error.unwrap();
        assert_eq!(error.kind, "EOFError");
        assert!(error.message.contains("assign the value to a variable"), "{}", error.message);
    });
}

/// Odd values, and a part of what is shown of them.
const ODD_VALUES: &[(&str, &str)] = &[
    (r"'\ud800'", r"'\ud800'"),
    (r"'a\0b'", r"'a\x00b'"),
    ("float('nan')", "nan"),
    ("[float('inf'), -float('inf')]", "[inf, -inf]"),
    ("b'\\xff\\x00'", r"b'\xff\x00'"),
    ("class A:\n    def __repr__(self): raise ValueError('shy')\nA()", "its repr failed: ValueError: shy"),
    ("class B:\n    def __repr__(self): return 5\nB()", "its repr failed: TypeError"),
    ("x = []\nx.append(x)\nx", "[[...]]"),
    ("x = []\nfor _ in range(1000): x = [x]\nx", ""),
    ("def f(): return f()\nf()", ""),
];

#[test]
fn odd_values_come_back_readable_and_leave_the_session_alive() {
    on_each_python(async |core| {
        let session = core.session().await;
        for (code, part) in ODD_VALUES {
            let report = session.run(code).await;
            assert_ne!(report.outcome, Outcome::Died, "{code}: {report:#?}");
            let shown = report.result.clone().or(report.error.clone().map(|error| error.traceback));
            let shown = shown.unwrap_or_else(|| panic!("{code} came back as nothing: {report:#?}"));
            assert!(!shown.is_empty() && shown.contains(part), "{code}: {shown:?}");
        }
        assert_eq!(session.value("'alive'").await, "'alive'");
    });
}

#[test]
fn recursion_to_the_limit_is_an_error_like_others() {
    on_each_python(async |core| {
        let session = core.session().await;
        let error = session.run("def f(): return f()\nf()").await.error.unwrap();
        assert_eq!(error.kind, "RecursionError");
    });
}

#[test]
fn output_that_is_no_text_comes_as_text() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = r"import os
os.write(1, b'a\xff\xfeb\x00c\n')
print('\ud800')
import sys
sys.stdout.buffer.write('ü\n'.encode()) and None";
        let report = session.run(code).await;
        assert_eq!(report.outcome, Outcome::Ok, "{report:#?}");
        let lines: Vec<_> = report.stdout.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with('a') && lines[0].ends_with('c'), "{lines:?}");
        assert_eq!(lines[1..], [r"\ud800", "ü"]);
    });
}

#[test]
fn one_stream_keeps_its_order_whoever_writes() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = "import ctypes, os, subprocess, sys, threading\n\
                    c = ctypes.CDLL(None)\n\
                    for turn in range(3):\n\
                    \x20   print('print', turn)\n\
                    \x20   os.write(1, b'write %d\\n' % turn)\n\
                    \x20   subprocess.run(['echo', f'child {turn}'])\n\
                    \x20   c.printf(b'c %d\\n', turn)\n\
                    \x20   thread = threading.Thread(target=print, args=('thread', turn))\n\
                    \x20   thread.start(); thread.join()";
        let expected = (0..3)
            .map(|n| format!("print {n}\nwrite {n}\nchild {n}\nc {n}\nthread {n}\n"))
            .collect::<Vec<_>>()
            .concat();
        assert_eq!(session.run(code).await.stdout, expected);
    });
}

#[test]
fn the_two_streams_keep_their_order() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = "import sys\nfor i in range(50):\n    print('out', i)\n    print('err', i, file=sys.stderr)";
        let report = session.run(code).await;
        let expected = (0..50).map(|n| format!("out {n}\nerr {n}\n")).collect::<Vec<_>>().concat();
        assert_eq!(report.merged, expected);
        assert!(report.stdout.starts_with("out 0\nout 1\n") && report.stderr.starts_with("err 0\nerr 1\n"));
    });
}

#[test]
fn late_output_of_a_thread_comes_with_the_next_result() {
    on_each_python(async |core| {
        let session = core.session().await;
        let code = "import os, threading\n\
                    for name in 'go', 'end': os.mkfifo(name)\n\
                    def late():\n    open('go').read()\n    print('late')\n    open('end', 'w').write('done')\n\
                    threading.Thread(target=late).start()\n\
                    print('on time')";
        assert_eq!(session.run(code).await.stdout, "on time\n");
        let work = core.home.work();
        let told = tokio::task::spawn_blocking(move || {
            std::fs::write(work.join("go"), "").expect("the thread reads");
            std::fs::read_to_string(work.join("end")).expect("the thread writes")
        });
        assert_eq!(told.await.expect("it does not panic"), "done");
        let report = session.run("print('own')").await;
        assert_eq!((report.late_output.as_deref(), report.stdout.as_str()), (Some("late\n"), "own\n"));
        assert_eq!(report.late_after, Some(1));
    });
}
