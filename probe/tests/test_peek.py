"""The side door: looking while a cell runs, without its noticing."""

from __future__ import annotations

import signal
import socket
import textwrap

import pytest
from host import PEEK_SIGNAL, Datagram, send

from pylair import peek

READY = "print('ready')\n"


def begin(session, code):
    session.begin(textwrap.dedent(code))
    session.wait_for_output(b"ready")


@pytest.mark.parametrize(
    "code",
    [
        "import time\nprint('ready')\nwhile not go: time.sleep(0.01)",
        "print('ready')\nwhile not go: pass",
        "import threading; lock = threading.Lock(); lock.acquire()\nprint('ready')\nwhile not go: lock.acquire(timeout=0.05)",
        "import asyncio\nprint('ready')\nwhile not go: await asyncio.sleep(0.01)",
        "import select, os; r, w = os.pipe()\nprint('ready')\nwhile not go: select.select([r], [], [], 0.05)",
        "import subprocess\nprint('ready')\nwhile not go: subprocess.run(['true'], check=True)",
    ],
)
def test_a_running_cell_is_looked_at(session, code):
    session.execute(
        "import signal\ngo = []\nvalue = {'a': [1, 2]}\ndef stop(*_): go.append(1)\nsignal.signal(signal.SIGUSR2, stop)\ncount = 7"
    )
    begin(session, code)
    for _ in range(20):
        assert session.peek("inspect", path="value['a']")["answer"]["preview"] == "[1, 2]"
    assert session.peek("ping")["answer"]["threads"] >= 1
    assert session.peek("source", path="stop")["answer"]["source"] == "def stop(*_): go.append(1)\n"
    assert session.peek("complete", code="value['", cursor=7)["answer"]["matches"] == [{"text": "a", "kind": "key"}]
    assert "value" in [node["name"] for node in session.peek("inspect")["answer"]["variables"]]
    session.signal(signal.SIGUSR2)
    done = session.reply()
    assert (done["outcome"], session.text()) == ("ok", "ready\n")
    assert session.result("count") == "7"


def test_it_waits_for_c_code_to_come_back(session):
    begin(session, READY + "answer = sum(range(30_000_000))")
    assert "answer" in session.peek("inspect")
    assert session.reply()["outcome"] == "ok"


def test_a_peek_between_cells_is_answered(session):
    session.execute("x = 1")
    assert session.peek("inspect", path="x")["answer"]["preview"] == "1"
    assert session.result("x + 1") == "2"


def test_the_programs_code_is_not_run(session):
    session.execute("ran = []\nclass Loud:\n    def __repr__(self): ran.append(1); return 'loud'\nloud = [Loud()]")
    begin(
        session, "import time\n" + READY + "while not ran and time.sleep(0.01) is None and not globals().get('enough'): enough = len(ran)"
    )
    found = session.peek("inspect", path="loud")["answer"]
    assert found["preview"] == "[<Loud object>]" and "own code" in found["preview_error"]
    session.signal(signal.SIGINT)
    session.reply()
    assert session.result("ran") == "[]"


def test_refusals_are_answers(session):
    begin(session, READY + "import time\nwhile True: time.sleep(0.01)")
    refused = session.peek("inspect", path="nothing")
    assert refused["kind"] == "no_such_name" and refused["refused"]
    assert session.peek("execute", code="1")["kind"] == "busy"
    session.signal(signal.SIGINT)
    assert session.reply()["outcome"] == "interrupted"


def test_an_answer_fits_into_a_datagram(session):
    session.execute("big = {f'key {n}' * 20: ['é' * 1000] * 50 for n in range(2000)}\nvalue = 'é' * 1_000_000")
    begin(session, READY + "import time\nwhile True: time.sleep(0.01)")
    assert session.peek("inspect", path="big", depth=8, max_items=1000, max_chars=1_000_000)["answer"]["length"] == 2000
    page = session.peek("inspect", path="value", full=True, max_chars=1_000_000)["answer"]
    assert page["total_chars"] == 1_000_000 and page["next_offset"] == len(page["value"])
    page = session.peek("inspect", path="big", full=True)["answer"]
    assert page["value_cut"] and page["next_offset"] and "total_chars" not in page
    refused = session.peek("inspect", path="big", full=True, offset=100_000)
    assert refused["kind"] == "bad_request" and "while a cell runs" in refused["refused"]
    session.signal(signal.SIGINT)
    assert session.reply()["outcome"] == "interrupted"


def test_a_cell_computes_the_same_under_many_peeks(session):
    code = """
        import sys, warnings
        print('ready')
        total = 0
        for n in range(300_000):
            try:
                raise KeyError(n)
            except KeyError as error:
                total += n % 7
                assert sys.exc_info()[1] is error
        done = True
        total
        """
    begin(session, code)
    peeks = 0
    while True:
        session.peek("inspect", path="total")
        peeks += 1
        if session.peek("complete", code="don", cursor=3)["answer"]["matches"]:
            break
    done = session.reply()
    assert (done["outcome"], done["result"]) == ("ok", str(sum(n % 7 for n in range(300_000))))
    assert peeks > 1


def test_a_trace_function_does_not_see_it(session):
    code = """
        import sys
        files = set()
        def tracer(frame, event, arg):
            files.add(frame.f_code.co_filename)
            return tracer
        go = []
        import signal
        signal.signal(signal.SIGUSR2, lambda *_: go.append(1))
        def work():
            while not go: pass
        sys.settrace(tracer)
        print('ready')
        work()
        kept = sys.gettrace() is tracer
        sys.settrace(None)
        """
    begin(session, code)
    for _ in range(5):
        assert "answer" in session.peek("inspect", path="files")
    session.signal(signal.SIGUSR2)
    assert session.reply()["outcome"] == "ok"
    assert session.result("kept, [name for name in files if 'peek' in name or 'look' in name]") == "(True, [])"


def test_near_the_recursion_limit_it_looks_away(session):
    code = """
        import sys
        go = []
        import signal
        signal.signal(signal.SIGUSR2, lambda *_: go.append(1))
        def down(n):
            if n:
                return down(n - 1) + 1
            print('ready')
            while not go: pass
            return 0
        down(sys.getrecursionlimit() - 120)
        """
    begin(session, code)
    for _ in range(3):
        assert session.peek("inspect", path="go")["kind"] == "busy"
    session.signal(signal.SIGUSR2)
    assert session.reply()["outcome"] == "ok"


def test_an_interrupt_during_a_peek_is_not_lost(session):
    for _ in range(30):
        begin(session, READY + "import time\nwhile True: time.sleep(0.001)")
        send(session.control, {"op": "peek", "peek": 1, "request": {"op": "inspect"}})
        session.signal(PEEK_SIGNAL)
        session.signal(signal.SIGINT)
        assert session.reply()["outcome"] == "interrupted"
        assert "answer" in Datagram(session.control).message


def test_what_a_handler_of_the_programs_raises_is_not_lost(session):
    session.execute("import signal, time\nclass Late(Exception): pass\ndef late(*_): raise Late\nsignal.signal(signal.SIGUSR2, late)")
    for _ in range(30):
        begin(session, READY + "while True: time.sleep(0.001)")
        send(session.control, {"op": "peek", "peek": -1, "request": {"op": "inspect"}})
        session.signal(PEEK_SIGNAL)
        session.signal(signal.SIGUSR2)
        assert session.reply()["error"]["type"] == "Late"
        assert Datagram(session.control).message["peek"] == -1


def test_the_signal_is_taken_back_after_a_cell(session):
    session.execute("import signal; signal.signal(signal.SIGRTMIN + 2, signal.SIG_IGN)")
    session.execute("x = 1")
    begin(session, READY + "import time\nwhile True: time.sleep(0.01)")
    assert session.peek("inspect", path="x")["answer"]["preview"] == "1"
    session.signal(signal.SIGINT)
    session.reply()


def test_it_works_after_a_rollback(session):
    session.execute("x = 1")
    frozen = session.checkpoint()
    session.execute("x = 2")
    session.rollback(frozen)
    begin(session, READY + "import time\nwhile True: time.sleep(0.01)")
    assert session.peek("inspect", path="x")["answer"]["preview"] == "1"
    session.signal(signal.SIGINT)
    session.reply()


def test_other_datagrams_are_kept_for_those_they_are_for():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door = peek.SideDoor(lambda: theirs, lambda request: {"threads": 1})
    send(ours, {"op": "file"})
    send(ours, {"op": "peek", "peek": 3, "request": {"op": "ping"}})
    door._handler(PEEK_SIGNAL, None)
    assert Datagram(ours).message == {"peek": 3, "answer": {"threads": 1}}
    assert door.take() == ({"op": "file"}, [])
    ours.close()
    assert door.take() is None
    theirs.close()
