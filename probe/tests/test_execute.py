"""Cells: results, names, errors, and code that tries to break the session."""

from __future__ import annotations

import textwrap

import pytest


def cell(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("1 + 1", "2"),
        ("  \n\n1 + 1  # comment\n", "2"),
        ("x = 5\nx", "5"),
        ("x = 5", None),
        ("None", None),
        ("1;", None),
        ("1; # comment", None),
        ("1 \\\n;", None),
        ("'a;'", "'a;'"),
        ("1 # a;", "1"),
        ("(1);\n\n# trailing\n", None),
        ("'é'; 2", "2"),
        ("'é' ;", None),
        ("", None),
        ("# only a comment", None),
        ("'a docstring'", "'a docstring'"),
        ("if True: 1", None),
        ("x = 1\r\nx + 1\r\n", "2"),
        ("\ufeff1", "1"),
        ("import asyncio; await asyncio.sleep(0, 7)", "7"),
        ("lambda: 0", "<function"),
        ("__name__", "'__main__'"),
    ],
)
def test_the_last_expression_is_the_result(session, code, result):
    session.execute("import asyncio")
    done = session.execute(code)
    assert done["outcome"] == "ok", done
    if result == "<function":
        assert done["result"].startswith(result)
    else:
        assert done["result"] == result


def test_underscore_is_the_last_value(session):
    session.execute("6 * 7")
    session.execute("None")
    assert session.result("_") == "42"
    assert session.result("'_' in globals()") == "False"


def test_main_is_a_real_module(session):
    session.execute("class Point:\n    pass\n")
    assert session.result("import sys; sys.modules['__main__'].Point is Point") == "True"
    assert session.result("import pickle; type(pickle.loads(pickle.dumps(Point()))) is Point") == "True"
    assert session.result("__builtins__ is sys.modules['builtins']") == "True"


def test_names_are_compared(session):
    done = session.execute("a = 1; b = [1]; _hidden = 2")
    assert (done["new"], done["changed"], done["removed"]) == (["a", "b"], [], [])
    done = session.execute("a = 2; del b; c = 3")
    assert (done["new"], done["changed"], done["removed"]) == (["c"], ["a"], ["b"])
    done = session.execute("c")
    assert (done["new"], done["changed"], done["removed"]) == ([], [], [])


def test_many_names_are_cut(session):
    done = session.execute("for i in range(150): globals()[f'name{i:03}'] = i\n")
    assert len(done["new"]) == 100
    assert done["names_cut"] is True


def test_names_that_are_no_strings_are_not_listed(session):
    assert session.execute("globals()[1] = 2")["new"] == []


def test_changes_survive_an_error(session):
    done = session.execute("before = 1\n1 / 0")
    assert done["outcome"] == "raised"
    assert done["new"] == ["before"]


def test_tracebacks_show_source_and_none_of_our_frames(session):
    session.execute("def divide(a, b):\n    return a / b\n")
    error = session.execute("x = 1\ndivide(x, 0)")["error"]
    assert error["type"] == "ZeroDivisionError"
    assert error["message"] == "division by zero"
    assert error["line"] == 2
    lines = [line for line in error["traceback"].splitlines() if not set(line) <= set(" ^~")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    divide(x, 0)",
        '  File "<cell 1>", line 2, in divide',
        "    return a / b",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('later') from error",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('later')",
        "class Odd:\n    def __str__(self):\n        raise ValueError('later')\nprint(Odd())",
        "import asyncio\nasync def fail():\n    await asyncio.sleep(0)\n    raise ValueError('later')\nawait fail()",
        "list(map(lambda value: int('later'), [1]))",
    ],
)
def test_our_frames_are_hidden_everywhere(session, code):
    error = session.execute(code)["error"]
    assert error["type"] == "ValueError"
    assert "later" in error["traceback"]
    assert "pylair" not in error["traceback"]
    assert "run_until_complete" not in error["traceback"]


def test_exception_groups(session, version):
    if version < (3, 11):
        pytest.skip("3.11 and later")
    error = session.execute("raise ExceptionGroup('all', [ValueError(1), ExceptionGroup('in', [KeyError(2)])])")["error"]
    assert error["type"] == "ExceptionGroup"
    assert "ValueError: 1" in error["traceback"]
    assert "KeyError: 2" in error["traceback"]
    assert "pylair" not in error["traceback"]


def test_syntax_errors_have_a_caret_and_no_stack(session):
    done = session.execute("x = 1\nx = = 2")
    error = done["error"]
    assert done["outcome"] == "raised"
    assert error["type"] == "SyntaxError"
    assert error["line"] == 2
    assert error["traceback"].startswith('  File "<cell 1>", line 2\n    x = = 2\n')
    assert "^" in error["traceback"]
    assert error["message"] == "invalid syntax"


def test_syntax_errors_at_run_time_have_a_stack(session):
    error = session.execute("compile('x = = 2', 'other', 'exec')")["error"]
    assert error["traceback"].startswith("Traceback (most recent call last):")
    assert error["line"] == 1


def test_the_type_is_qualified_as_python_prints_it(session):
    assert session.execute("import json; json.loads('{')")["error"]["type"] == "json.decoder.JSONDecodeError"
    assert session.execute("class Mine(Exception): pass\nraise Mine('x')")["error"]["type"] == "Mine"


@pytest.mark.parametrize("kind", ["GeneratorExit", "KeyboardInterrupt", "MemoryError", "BaseException", "StopIteration"])
def test_any_exception_is_a_result(session, kind):
    done = session.execute(f"raise {kind}('x')")
    assert done["outcome"] == "raised"
    assert done["error"]["type"] == kind
    assert session.result("1") == "1"


def test_exceptions_that_cannot_be_shown(session):
    done = session.execute("class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd")
    assert done["error"]["type"] == "Odd"
    assert "failed" in done["error"]["message"]
    done = session.execute("class Odder(type):\n    __qualname__ = property(lambda self: 1/0)\nraise Odder('X', (Exception,), {})")
    assert done["outcome"] == "raised"


def test_long_tracebacks_and_messages_are_cut(session):
    error = session.execute("raise ValueError('a' + 'x' * 10**6 + 'z')")["error"]
    assert len(error["traceback"]) < 70_000
    assert len(error["message"]) < 10_000
    assert error["message"].startswith("a")
    assert error["message"].endswith("z")
    assert "characters left out" in error["message"]


@pytest.mark.parametrize(
    ("call", "outcome", "note"),
    [
        ("exit()", "ok", "sys.exit()"),
        ("quit(0)", "ok", "sys.exit(0)"),
        ("import sys; sys.exit(3)", "raised", "sys.exit(3)"),
        ("raise SystemExit('bye')", "raised", "sys.exit('bye')"),
        ("raise SystemExit(False)", "ok", "sys.exit(False)"),
        ("import sys, asyncio\nasync def leave():\n    sys.exit(4)\nawait leave()", "raised", "sys.exit(4)"),
    ],
)
def test_exit_ends_the_cell_only(session, call, outcome, note):
    session.execute("x = 1")
    done = session.execute(call)
    assert done["outcome"] == outcome
    assert done["notes"] == [f"the cell called {note}; the session goes on"]
    assert session.result("x") == "1"


def test_input_says_what_to_do(session):
    done = session.execute("input('name? ')")
    assert done["error"]["type"] == "EOFError"
    assert "variable" in done["error"]["message"]
    assert session.text() == "name? "
    assert session.result("import sys, io; sys.stdin = io.StringIO('typed\\n'); input()") == "'typed'"
    assert session.result("sys.stdin = sys.__stdin__; sys.stdin.read()") == "''"
    session.execute("exit()")
    assert session.execute("input()")["error"]["type"] == "EOFError"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("return 5", "TypeError"),
        ("return repr(self)", "RecursionError"),
        ("raise type('Deep', (BaseException,), {})('odd')", "odd"),
    ],
)
def test_a_broken_repr_is_described(session, body, expected):
    done = session.execute(f"class Odd:\n    def __repr__(self): {body}\nOdd()")
    assert done["outcome"] == "ok"
    assert done["result"].startswith("<Odd object; its repr failed: ")
    assert expected in done["result"]
    assert session.result("type(_).__name__") == "'Odd'"


@pytest.mark.parametrize(
    "code",
    [
        "10 ** 5000",
        "value = []\nfor _ in range(100_000): value = [value]\nvalue",
        "def down(): down()\ndown()",
        "'a\0b'",
        "(" * 1000 + ")" * 1000,
        "-" * 100_000 + "1",
        "x = [" * 300 + "]" * 300,
        "'\\ud800'",
        "class Odd:\n    def __repr__(self): return '\\ud800'\nOdd()",
        "print('\\ud800')",
        "raise ValueError('\\ud800')",
        "import sys; sys.setrecursionlimit(50_000); sys.setrecursionlimit(1000)",
        "bytearray(1 << 62)",
        "globals().clear()",
        "import linecache; linecache.clearcache(); 1 / 0",
        "import sys; sys.excepthook = None; sys.displayhook = None; 1 / 0",
        "import builtins; builtins.repr = None; builtins.print = None",
        "import sys; sys.modules.clear()",
        "del __builtins__",
        "import sys; sys.modules['__main__'] = None",
        "import traceback; traceback.TracebackException = None; 1 / 0",
        "import warnings; warnings.simplefilter('error'); 1 / 0",
        "import gc; gc.disable()",
        "import os; os.chdir('/')",
    ],
)
def test_odd_cells_leave_a_working_session(session, code):
    done = session.execute(code)
    assert done["outcome"] in ("ok", "raised")
    assert session.result("40 + 2") == "42"
    assert session.execute("1 / 0")["error"]["type"] == "ZeroDivisionError"


def test_a_deleted_namespace_is_noticed(session):
    session.execute("kept = 1")
    assert session.execute("globals().clear()")["removed"] == ["kept"]


def test_long_results_are_in_the_blob(session):
    done = session.execute("'x' * 40_000")
    assert done["result"] is None
    assert session.blob == b"'" + b"x" * 40_000 + b"'"
    assert "result_chars" not in done
    done = session.execute("'x' * (5 << 20)")
    assert done["result_chars"] == (5 << 20) + 2
    assert len(session.blob) == 4 << 20


def test_functions_have_source(session):
    session.execute("def twice(x):\n    return 2 * x\n")
    session.execute("import linecache; linecache.checkcache()")
    assert session.result("import inspect; inspect.getsource(twice)") == repr("def twice(x):\n    return 2 * x\n")


def test_lines_are_counted_as_the_compiler_does(session):
    error = session.execute("a = '\x0c\u2028'\n1 / 0\n")["error"]
    assert "    1 / 0\n" in error["traceback"]
    assert error["line"] == 2


def test_future_imports_hold_from_then_on(session):
    session.execute("from __future__ import annotations")
    assert session.result("def f(x: undefined): pass\nf.__annotations__") == "{'x': 'undefined'}"


def test_our_own_future_imports_do_not_leak(session):
    assert session.result("def f(x: int): pass\nf.__annotations__['x'] is int") == "True"


def test_tasks_survive_from_cell_to_cell(session):
    session.execute(
        cell("""
        import asyncio
        seen = []
        async def work():
            for n in range(3):
                seen.append(n)
                await asyncio.sleep(0)
        task = asyncio.ensure_future(work()) if False else None
        async def begin():
            global task
            task = asyncio.ensure_future(work())
        await begin()
        """)
    )
    session.execute("await task")
    assert session.result("seen") == "[0, 1, 2]"


def test_asyncio_run_and_await_live_together(session):
    session.execute("import asyncio, warnings; warnings.simplefilter('error')")
    assert session.result("await asyncio.sleep(0, 1)") == "1"
    assert session.result("asyncio.run(asyncio.sleep(0, 2))") == "2"
    assert session.result("await asyncio.sleep(0, 3)") == "3"
    assert session.text(2) == ""


def test_warnings_name_the_cell(session):
    session.execute("import warnings\nwarnings.warn('careful', DeprecationWarning)")
    assert session.text(2).startswith("<cell 1>:2: DeprecationWarning: careful\n")


def test_source_that_is_no_utf8_is_refused(session):
    assert "not UTF-8" in session.ask("execute", b"\xff", cell=1)["refused"]
    assert session.result("1") == "1"


def test_an_unknown_operation_is_refused(session):
    assert "dance" in session.ask("dance")["refused"]
    assert "failed" in session.ask("checkpoint")["refused"]


def test_cells_are_timed(session):
    done = session.execute("import time; end = time.perf_counter() + 0.02\nwhile time.perf_counter() < end: pass")
    assert done["duration_us"] >= 20_000
    assert done["cpu_us"] > 0


def test_exceptions_do_not_keep_objects_alive(session):
    session.execute(
        "import weakref, gc; gc.disable()\nclass Big: pass\ndef fail():\n    big = Big(); refs.append(weakref.ref(big)); 1 / 0\nrefs = []"
    )
    session.execute("fail()")
    assert session.result("refs[0]() is None") == "True"


def test_clear_empties_the_namespace_but_keeps_modules(session):
    session.execute("from __future__ import annotations\nimport math\nx = 1\nx")
    assert session.ask("clear")["ok"]
    done = session.execute("sorted(name for name in globals() if not name.startswith('_'))")
    assert done["result"] == "[]"
    assert session.execute("'math' in __import__('sys').modules")["result"] == "True"
    assert session.result("__name__") == "'__main__'"
    assert session.execute("x = 2")["new"] == ["x"]
