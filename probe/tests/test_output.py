"""Streams: order, completeness, and programs that close or replace them."""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import termios
import time

import pytest
from host import TIMEOUT_SECONDS

F_SETPIPE_SZ = 1031


def test_one_stream_keeps_its_order_whoever_writes(session):
    session.execute(
        "import os, subprocess, sys, ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "print('1 print')\n"
        "os.write(1, b'2 os.write\\n')\n"
        "print('3 part', end='')\n"
        "os.write(1, b' 4 rest\\n')\n"
        "subprocess.run(['echo', '5 child'])\n"
        "sys.stdout.write('6 part ')\n"
        "os.system('echo 7 shell')\n"
        "sys.stdout.buffer.write(b'8 bytes\\n')\n"
        "libc.printf(b'9 printf\\n')\n"
        "print('10', 'several', 1, None, sep='-', end='!\\n', flush=True)\n"
        "print('11 to a file', file=sys.stdout)\n"
        "sys.stdout.writelines(['12 ', 'lines\\n'])\n"
        "libc.printf(b'13 partial')\n"
    )
    assert session.text().splitlines() == [
        "1 print",
        "2 os.write",
        "3 part 4 rest",
        "5 child",
        "6 part 7 shell",
        "8 bytes",
        "9 printf",
        "10-several-1-None!",
        "11 to a file",
        "12 lines",
        "13 partial",
    ]


def test_two_streams_keep_their_order(session):
    session.execute("import sys\nfor n in range(1000):\n    print(f'o{n}')\n    print(f'e{n}', file=sys.stderr)")
    data = b"".join(data for _, data in session.output)
    assert data == b"".join(b"o%d\ne%d\n" % (n, n) for n in range(1000))


def test_print_does_what_the_builtin_does(session):
    code = "print(*args, **options)"
    cases = [
        ((), {}),
        (("a",), {}),
        (("a", 1, 2.5, None, True), {"sep": ""}),
        (("a", [1], {"b": 2}), {"sep": ", ", "end": "."}),
        (("é🐍",), {"end": ""}),
        (("a", "b"), {"sep": None, "end": None}),
    ]
    for args, options in cases:
        session.execute(f"args, options = {args!r}, {options!r}")
        session.execute(code)
        printed = session.text()
        assert session.result("import io; stream = io.StringIO(); print(*args, **options, file=stream); stream.getvalue()") == repr(printed)
    assert session.execute("print('a', sep=1)")["error"]["type"] == "TypeError"
    assert session.execute("print('a', nonsense=1)")["error"]["type"] == "TypeError"


def test_print_has_the_effects_of_its_arguments_in_order(session):
    session.execute("class Loud:\n    def __str__(self):\n        print('inner')\n        return 'outer'\n")
    session.execute("print('first', Loud())")
    assert session.text() == "first inner\nouter\n"
    session.execute("class Broken:\n    def __str__(self): 1 / 0\nprint('first', Broken())")
    assert session.text() == "first "


def test_redirected_output_stays_inside(session):
    session.execute("import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as stream:\n    print('inside')")
    assert session.text() == ""
    assert session.result("stream.getvalue()") == "'inside\\n'"


def test_everything_of_a_large_output_arrives(session):
    session.execute("import sys\nprint('x' * 3_000_000)\nfor n in range(20_000): print('y' * 99)")
    text = session.text()
    assert len(text) == 3_000_001 + 20_000 * 100
    assert text.endswith("y\n")


def test_a_nonblocking_descriptor_loses_nothing(session):
    session.execute("import os; os.set_blocking(1, False)\nfor n in range(5000): print('y' * 99)")
    assert len(session.text()) == 500_000


@pytest.mark.parametrize(
    "error", ["TimeoutError('late')", "OSError(11, 'late')", "BrokenPipeError(32, 'late')", "BlockingIOError(11, 'late')"]
)
@pytest.mark.parametrize("write", ["print(text)", "sys.stdout.write(text)", "sys.stdout.buffer.write(text.encode())"])
def test_what_a_handler_raises_while_text_is_written_is_raised_once(session, error, write):
    """The pipe is full, so the worker is in the middle of the write when the signal comes."""
    session.execute(
        f"import signal, sys\ntext = ''.join(f'{{n:07}}\\n' for n in range(50_000))\ndef late(*args): raise {error}\n"
        "signal.signal(signal.SIGALRM, late)"
    )
    fcntl.fcntl(session.stdout, F_SETPIPE_SZ, 65536)
    session.begin(write)
    unread = array.array("i", [0])
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while unread[0] < 65536 and time.monotonic() < deadline:
        fcntl.ioctl(session.stdout, termios.FIONREAD, unread)
    session.signal(signal.SIGALRM)
    done = session.reply()
    assert (done["outcome"], done["error"]["message"]) == ("raised", eval(f"str({error})"))
    lines = session.text().splitlines()
    assert lines == [f"{n:07}" for n in range(len(lines))]
    assert session.result("'goes on'") == "'goes on'"


def test_output_of_threads_after_the_cell(session):
    session.execute(
        "import threading\n"
        "go = threading.Event()\n"
        "def late():\n"
        "    go.wait()\n"
        "    print('late')\n"
        "thread = threading.Thread(target=late)\n"
        "thread.start()\n"
    )
    assert session.text() == ""
    session.execute("go.set(); thread.join(); print('after')")
    assert session.text() == "late\nafter\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.close(1)",
        "import os; os.close(2); os.close(1)",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import sys; sys.stdout.detach()",
        "import sys, io; io.TextIOWrapper(sys.stdout.buffer).write('')",
        "import sys, gc, io; io.TextIOWrapper(sys.stdout.detach(), 'utf-8'); gc.collect()",
        "import sys; sys.stdout = None",
        "import sys, io; sys.stdout = io.StringIO(); sys.stdout.close()",
        "import sys; sys.stdout.reconfigure(encoding='utf-8', line_buffering=True)",
        "import sys; sys.stdout.reconfigure(write_through=False)",
        "import sys\nwith sys.stdout: pass",
        "import sys; sys.stdout.flush(); sys.stdout.fileno(); sys.stdout.isatty(); sys.stdout.writable()",
        "import builtins, sys; del sys.stdout",
    ],
)
def test_streams_work_in_the_next_cell(session, code):
    assert session.execute(code)["outcome"] in ("ok", "raised")
    session.execute("import os, sys; print('out'); os.write(1, b'raw\\n'); print('err', file=sys.stderr)")
    assert session.text(1) == "out\nraw\n"
    assert session.text(2) == "err\n"


def test_a_replaced_stream_stays_and_is_said_once(session):
    done = session.execute("import sys, io; sys.stdout = io.StringIO()")
    assert "StringIO" in done["notes"][0]
    assert "notes" not in session.execute("print('hidden')")
    assert session.text() == ""
    session.execute("sys.stdout = sys.__stdout__; print('shown')")
    assert session.text() == "shown\n"


def test_streams_look_like_streams(session):
    code = (
        "import sys, io\n"
        "[(s.encoding, s.errors, s.isatty(), s.fileno(), s.name, s.mode, s.closed, s.line_buffering, s.writable(), "
        "isinstance(s, io.TextIOWrapper), s.buffer.fileno()) for s in (sys.stdout, sys.stderr)]"
    )
    assert eval(session.result(code)) == [
        ("utf-8", "backslashreplace", False, 1, "<stdout>", "w", False, False, True, True, 1),
        ("utf-8", "backslashreplace", False, 2, "<stderr>", "w", False, False, True, True, 2),
    ]
    assert session.result("(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin.read())") == "(True, True, '')"
    assert session.result("sys.stdout.write('four')") == "4"
    assert session.execute("sys.stdout.write(b'x')")["error"]["type"] == "TypeError"


def test_reconfigured_text_is_encoded_as_asked(session):
    session.execute("import sys; sys.stdout.reconfigure(encoding='latin-1', newline='\\r\\n'); print('é')")
    assert b"".join(data for _, data in session.output) == b"\xe9\r\n"


def test_standard_input_is_empty(session):
    assert session.result("import os, sys; (os.read(0, 10), sys.stdin.readline(), os.isatty(0))") == "(b'', '', False)"


def test_our_descriptors_are_not_inherited(session):
    listed = session.result("import subprocess; subprocess.run(['ls', '/proc/self/fd'], stdout=-1, close_fds=False).stdout.split()")
    assert eval(listed) == [b"0", b"1", b"2", b"3"]


def test_nobody_reads_any_more(session):
    for fd in (session.stdout, session.stderr):
        os.close(fd)
    session.stdout, session.stderr = os.pipe()[0], os.pipe()[0]
    session.request("execute", b"print('x')\n1", cell=1)
    assert select.select([session.replies], [], [], TIMEOUT_SECONDS)[0]
    assert b'"result":"1"' in os.read(session.replies, 65536)
