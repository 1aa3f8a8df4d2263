"""The interrupt ladder: stacks, SIGINT, forced unwind; and signals that arrive when no cell runs."""

from __future__ import annotations

import select
import signal
import textwrap

import pytest
from host import FORCE_SIGNAL

READY = "print('ready')\n"
SECOND_SIGNAL_SECONDS = 5


def interrupt(session, code, number=signal.SIGINT):
    session.begin(code)
    session.wait_for_output(b"ready")
    session.signal(number)
    if not select.select([session.replies], [], [], SECOND_SIGNAL_SECONDS)[0]:
        # Python does not notice a signal that came after its last look and before a call that blocks. The next one interrupts the call.
        session.signal(number)
    return session.reply()


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import threading; threading.Event().wait()",
        "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "import queue; queue.Queue().get()",
        "import socket; one, other = socket.socketpair(); one.recv(1)",
        "import asyncio; await asyncio.sleep(1000)",
        "import asyncio\nasync def f():\n    while True: await asyncio.sleep(0)\nawait f()",
        "import asyncio; asyncio.run(asyncio.sleep(1000))",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    ],
)
def test_sigint_interrupts_and_keeps_state(session, code):
    session.execute("kept = 41")
    done = interrupt(session, "kept += 1\n" + READY + code)
    assert done["outcome"] == "interrupted"
    assert done["error"]["type"] == "KeyboardInterrupt"
    assert "pylair" not in done["error"]["traceback"]
    assert "kept" in done["changed"]
    assert session.result("kept") == "42"


def test_an_interrupted_await_shows_where_it_waited(session):
    code = """
        import asyncio
        async def waiter():
            asyncio.get_running_loop().call_soon(print, 'ready')
            await asyncio.sleep(1000)
        async def outer():
            await waiter()
        await outer()
        """
    code = textwrap.dedent(code)
    done = interrupt(session, code)
    assert done["outcome"] == "interrupted"
    assert "await asyncio.sleep(1000)" in done["error"]["traceback"]
    assert session.result("await asyncio.sleep(0, 5)") == "5"


def test_a_cancelled_await_can_clean_up(session):
    code = "import asyncio\ntry:\n    print('ready')\n    await asyncio.sleep(1000)\nfinally:\n    cleaned = True"
    assert interrupt(session, code)["outcome"] == "interrupted"
    assert session.result("cleaned") == "True"


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)"])
def test_a_repr_can_be_interrupted(session, code):
    session.execute(f"class Slow:\n    def __repr__(self):\n        print('ready')\n        {code}\nvalue = Slow()")
    done = interrupt(session, "value")
    assert done["outcome"] == "interrupted"
    assert session.result("1") == "1"


def test_a_library_repr_can_be_interrupted(session):
    session.execute("import threading\nclass Slow(threading.Event):\n    def __repr__(self): return print('ready') or self.wait()\n")
    assert interrupt(session, "Slow()")["outcome"] == "interrupted"


def test_the_message_of_an_exception_can_be_interrupted(session):
    session.execute("class Slow(Exception):\n    def __str__(self):\n        print('ready')\n        while True: pass\n")
    done = interrupt(session, "raise Slow")
    assert done["outcome"] == "raised"
    assert done["error"]["type"] == "Slow"
    assert session.result("1") == "1"


def test_code_that_handles_the_interrupt_has_the_last_word(session):
    code = "import time\ntry:\n    print('ready')\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    answer = 'handled'\nanswer"
    done = interrupt(session, code)
    assert (done["outcome"], done["result"]) == ("ok", "'handled'")


# `ready` prints once, inside the part that swallows.
SWALLOWERS = {
    "bare except": """
        import time
        while True:
            try: ready(); time.sleep(1)
            except: pass
        """,
    "busy": """
        while True:
            try:
                ready()
                for n in range(1000): n * n
            except BaseException: pass
        """,
    "nested": """
        def f():
            while True:
                try:
                    try: ready(); [i for i in range(10**5)]
                    except: pass
                except: pass
        f()
        """,
    "suppress": """
        import contextlib, time
        while True:
            with contextlib.suppress(BaseException): ready(); time.sleep(0.01)
        """,
    "generator": """
        def g():
            while True:
                try: ready(); yield 1
                except BaseException: pass
        while True:
            try:
                for _ in g(): pass
            except BaseException: pass
        """,
    "ignored": """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True: ready(); time.sleep(0.01)
        """,
    "recursive": """
        def f(n):
            try:
                while True: n += 1; ready()
            except BaseException:
                f(n)
        f(0)
        """,
    "finally": """
        def f():
            try:
                while True: ready()
            finally:
                while True: pass
        f()
        """,
    "printing": """
        while True:
            try: ready(); print('.', end='')
            except BaseException: pass
        """,
    "await": """
        import asyncio
        async def f():
            while True:
                try: ready(); await asyncio.sleep(0.01)
                except BaseException: pass
        await f()
        """,
    "asyncio.run": """
        import asyncio
        async def f():
            while True:
                try: ready(); await asyncio.sleep(0.01)
                except BaseException: pass
        asyncio.run(f())
        """,
    "context manager": """
        class C:
            def __enter__(self): return self
            def __exit__(self, *a): return True
        while True:
            with C():
                while True: ready()
        """,
}
DEFINE_READY = "def ready(seen=[]):\n    if not seen: seen.append(1); print('ready')"


@pytest.mark.parametrize("name", SWALLOWERS)
def test_force_unwinds_code_that_swallows_interrupts(session, name):
    session.execute("kept = 1")
    session.execute(DEFINE_READY)
    done = interrupt(session, textwrap.dedent(SWALLOWERS[name]), FORCE_SIGNAL)
    assert done["outcome"] == "interrupted", done
    assert "pylair" not in done["error"]["traceback"]
    assert session.result("kept") == "1"
    assert session.result("import sys; (sys.gettrace(), getattr(sys, 'monitoring', None) and sys.monitoring.get_tool(4))") == (
        "(None, None)"
    )
    assert session.result("import asyncio; await asyncio.sleep(0, 9)") == "9"
    again = interrupt(session, READY + "while True: pass")
    assert again["outcome"] == "interrupted"
    assert session.result("sum(range(10))") == "45"


def test_the_whole_ladder_in_order(session):
    session.begin("import time\nwhile True:\n    try: print('ready'); time.sleep(1)\n    except BaseException: print('caught')")
    session.wait_for_output(b"ready")
    session.signal(signal.SIGUSR1)
    assert "<cell 1>" in session.read_dump(b"<cell 1>")
    session.signal(signal.SIGINT)
    session.wait_for_output(b"caught")
    session.signal(FORCE_SIGNAL)
    assert session.reply()["outcome"] == "interrupted"


def test_force_spares_a_users_tracer_when_it_is_not_used(session):
    session.execute("import sys\ndef tracer(*args): return tracer\nsys.settrace(tracer)")
    session.execute("1 / 0")
    assert session.result("sys.gettrace() is tracer") == "True"
    session.execute("sys.settrace(None)")


def test_signals_between_cells_are_ignored(session):
    session.execute("x = 1")
    for number in (signal.SIGINT, FORCE_SIGNAL, signal.SIGINT, FORCE_SIGNAL):
        session.signal(number)
        assert session.result("x") == "1"


def test_a_storm_of_signals_never_breaks_the_session(session):
    outcomes = set()
    for n in range(300):
        session.begin("for i in range(200): i * i\n1")
        session.signal(FORCE_SIGNAL if n % 3 == 0 else signal.SIGINT)
        outcomes.add(session.reply()["outcome"])
    assert outcomes <= {"ok", "interrupted"}
    # A signal of the last round may still be on its way.
    session.execute("pass")
    assert session.result("1 + 1") == "2"
    assert session.result("import sys; sys.gettrace()") is None


def test_handlers_that_a_cell_replaced_are_back_in_the_next(session):
    session.execute(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGRTMIN + 1, signal.SIG_IGN)"
    )
    session.begin(READY + "while True: pass")
    session.wait_for_output(b"ready")
    session.signal(signal.SIGUSR1)
    session.read_dump(b"<cell 2>")
    session.signal(signal.SIGINT)
    assert session.reply()["outcome"] == "interrupted"
    session.execute(DEFINE_READY)
    assert interrupt(session, textwrap.dedent(SWALLOWERS["bare except"]), FORCE_SIGNAL)["outcome"] == "interrupted"


def test_a_handler_works_inside_its_cell(session):
    code = (
        "import os, signal\nseen = []\n"
        "signal.signal(signal.SIGINT, lambda *args: seen.append(1))\n"
        "os.kill(os.getpid(), signal.SIGINT)\nseen"
    )
    assert session.result(code) == "[1]"


def test_a_crash_leaves_stacks(session):
    session.request("execute", b"import ctypes; ctypes.string_at(0)", cell=1)
    assert "Segmentation fault" in session.read_dump(b"<cell 1>")
