"""Files run as `python FILE` runs them, but in the session."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
from host import FORCE_SIGNAL


@pytest.fixture
def cwd(tmp_path):
    return str(tmp_path)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "scripts").mkdir()

    def write(text: str | bytes, name: str = "script.py") -> Path:
        path = tmp_path / "scripts" / name
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return path

    return write


def run_file(session, path, *args: str):
    session.output = []
    return session.ask("run_file", cell=1, file=str(path), args=list(args))


def test_the_name_is_what_the_caller_wrote(session, script):
    path = str(script("import sys\nprint(sys.argv)\nprint(__file__)"))
    session.output = []
    session.ask("run_file", cell=1, file=path, name="./program.py", args=["-v"])
    assert session.text().splitlines() == ["['./program.py', '-v']", path]


SURROUNDINGS = """
    import json, sys
    print(json.dumps([sys.argv, __file__, __name__, sys.path[0], __package__, __spec__, sys.path[1:]]))
"""


def test_a_script_finds_what_python_gives_it(session, script, python):
    path = script(SURROUNDINGS)
    done = run_file(session, path, "-v", "two words")
    assert done["outcome"] == "ok", done
    assert done["result"] is None
    env = {"PATH": os.defpath}
    real = subprocess.run([python, str(path), "-v", "two words"], env=env, capture_output=True, text=True, check=True)
    assert session.text() == real.stdout


def test_the_surroundings_are_put_back(session, script):
    before = session.result("import sys; (sys.argv, sys.path, globals().get('__file__'))")
    run_file(session, script("import sys\nsys.argv.append('more')"), "x")
    assert session.result("(sys.argv, sys.path, globals().get('__file__'))") == before
    run_file(session, script("import sys\nsys.argv = None\nsys.path.insert(0, '/first')\n1 / 0"))
    assert session.result("sys.path[:2]") == "['/first', '']"
    assert session.result("(sys.argv, globals().get('__file__'))") == "([''], None)"
    session.execute("sys.path.remove('/first')")
    run_file(session, script("import sys\nsys.path.clear()"))
    assert session.result("sys.path") == "['']"


def test_names_stay_for_the_next_cell(session, script):
    session.execute("given = 2")
    done = run_file(session, script("made = given * 21\ndef f(): return made"))
    assert done["new"] == ["f", "made"]
    assert session.result("f()") == "42"


def test_siblings_are_imported_and_relative_imports_are_not(session, script):
    script("value = 7", "sibling.py")
    done = run_file(session, script("import sibling\nprint(sibling.value)"))
    assert (done["outcome"], session.text()) == ("ok", "7\n")
    error = run_file(session, script("from . import sibling"))["error"]
    assert error["type"] == "ImportError"
    assert "no known parent package" in error["message"]


def test_a_script_behind_a_symlink_imports_from_where_it_is(session, script, tmp_path):
    script("value = 7", "sibling.py")
    link = tmp_path / "link.py"
    link.symlink_to(script("import sibling\nprint(__file__)"))
    assert run_file(session, link)["outcome"] == "ok"
    assert session.text() == f"{link}\n"


def test_tracebacks_and_inspect_show_the_file(session, script):
    path = script("def fail():\n    return 1 / 0  # here\n\nfail()\n")
    error = run_file(session, path)["error"]
    lines = [line for line in error["traceback"].splitlines() if not set(line) <= set(" ^~")]
    assert lines == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 4, in <module>',
        "    fail()",
        f'  File "{path}", line 2, in fail',
        "    return 1 / 0  # here",
        "ZeroDivisionError: division by zero",
    ]
    assert error["line"] == 2
    assert session.result("import inspect; inspect.getsource(fail)") == repr("def fail():\n    return 1 / 0  # here\n")


def test_a_source_that_was_sent_along_is_run_under_the_name_of_its_file(session, tmp_path):
    path = tmp_path / "elsewhere.py"
    source = "import sys\nprint(__file__, sys.argv)\ndef f():\n    return 1 / 0\nf()\n"
    done = session.ask("run_file", source.encode(), cell=1, file=str(path), name="elsewhere.py", args=["a"])
    assert session.text() == f"{path} ['elsewhere.py', 'a']\n"
    assert f'File "{path}", line 4, in f\n    return 1 / 0' in done["error"]["traceback"]
    assert session.result("'__file__' in globals()") == "False"


def test_syntax_errors_name_the_file(session, script):
    path = script("x = 1\nx = = 2\n")
    error = run_file(session, path)["error"]
    assert error["traceback"].startswith(f'  File "{path}", line 2\n')
    assert (error["type"], error["line"]) == ("SyntaxError", 2)


@pytest.mark.parametrize(
    ("code", "outcome"), [("sys.exit()", "ok"), ("sys.exit(0)", "ok"), ("sys.exit(3)", "raised"), ("sys.exit('no')", "raised")]
)
def test_exit_is_the_files_own(session, script, code, outcome):
    done = run_file(session, script(f"import sys\nkept = 1\n{code}"))
    assert done["outcome"] == outcome
    assert done["notes"] == [f"the file called {code}; the session goes on"]
    if outcome == "raised":
        assert done["error"]["type"] == "SystemExit"
        assert done["error"]["message"] in ("3", "no")
    assert session.result("kept") == "1"


def test_encodings_are_honoured(session, script):
    assert run_file(session, script("# -*- coding: latin-1 -*-\nprint('\xe9')".encode("latin-1")))["outcome"] == "ok"
    assert session.text() == "é\n"
    assert run_file(session, script(b"\xef\xbb\xbfprint('\xc3\xa9')"))["outcome"] == "ok"
    assert session.text() == "é\n"


def test_statements_of_a_file_are_a_files(session, script):
    session.execute("from __future__ import annotations")
    done = run_file(session, script("def f(x: int): pass\nprint(f.__annotations__['x'] is int)\n42"))
    assert (done["result"], session.text()) == (None, "True\n")
    assert run_file(session, script("import asyncio\nawait asyncio.sleep(0)"))["error"]["type"] == "SyntaxError"


def test_multiprocessing_spawn_finds_the_file(session, script, python):
    path = script("""
        import multiprocessing
        def double(x): return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """)
    done = run_file(session, path)
    assert done["outcome"] == "ok", done
    assert session.text() == "[2, 4]\n"


def refused(session, path, kind):
    done = run_file(session, path)
    assert "outcome" not in done, done
    assert done["kind"] == kind
    assert "\n" not in done["refused"]
    assert done["hint"]
    assert session.result("1") == "1"
    return done["refused"]


def test_what_is_no_script_is_refused(session, script, tmp_path):
    assert "there is no file" in refused(session, tmp_path / "none.py", "not_found")
    assert "is a directory" in refused(session, tmp_path, "not_a_file")
    os.mkfifo(tmp_path / "fifo")
    assert "regular file" in refused(session, tmp_path / "fifo", "not_a_file")
    assert "byte 6 is 0xff" in refused(session, script(b"1\n2\n# \xff"), "not_text")
    assert "cannot be decoded" in refused(session, script(b"# \xff"), "not_text")
    assert "cannot be decoded" in refused(session, script("# coding: klingon\n"), "not_text")
    large = script("")
    os.truncate(large, (32 << 20) + 1)
    assert "32 MB" in refused(session, large, "too_large")
    assert "cannot be read" in refused(session, "a\0b", "not_readable")
    assert "no file was named" in refused(session, "", "not_found")


def test_a_file_that_may_not_be_read_is_refused(session, script):
    if os.geteuid() == 0:
        session.execute("import os; os.seteuid(65534)")
    path = script("1")
    path.chmod(0)
    assert "ermission denied" in refused(session, path, "not_readable")


@pytest.mark.parametrize("number", [signal.SIGINT, FORCE_SIGNAL])
def test_a_script_can_be_interrupted(session, script, number):
    path = script("import time\ndef wait():\n    print('ready')\n    while True: time.sleep(0.01)\nwait()\n")
    session.request("run_file", cell=1, file=str(path), args=[])
    session.wait_for_output(b"ready")
    session.signal(number)
    done = session.reply()
    assert done["outcome"] == "interrupted"
    assert f'File "{path}", line 5, in <module>' in done["error"]["traceback"]
    assert "pylair" not in done["error"]["traceback"]
    assert session.result("globals().get('__file__')") is None


def test_files_it_made_are_listed(session, script):
    done = run_file(session, script("with open('made.txt', 'w') as file: file.write('abc')"))
    assert done["files"] == [{"path": "made.txt", "bytes": 3}]
