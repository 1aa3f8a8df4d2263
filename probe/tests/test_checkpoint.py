"""Frozen copies: exact state after a rollback, everything that must be refused, and what a copy must not hold."""

from __future__ import annotations

import os
import select
import signal
import socket

import pytest
from host import TIMEOUT_SECONDS, Datagram, Died


def test_a_rollback_brings_the_state_back(session):
    session.execute("x = [1]; counter = 1")
    frozen = session.checkpoint()
    session.execute("x.append(2); counter = 2; y = 3")
    assert session.rollback(frozen) == []
    assert session.result("(x, counter, 'y' in globals())") == "([1], 1, False)"
    assert session.execute("counter = 5")["changed"] == ["counter"]


def test_a_chain_of_rollbacks(session):
    frozen = []
    session.execute("x = 0")
    for number in range(8):
        frozen.append(session.checkpoint(f"c{number}"))
        session.execute("x += 1")
    for number in reversed(range(8)):
        session.rollback(frozen.pop())
        assert session.result("x") == str(number)


def test_a_resumed_copy_makes_checkpoints_of_its_own(session):
    session.execute("x = 1")
    session.rollback(session.checkpoint("c1"))
    second = session.checkpoint("c2")
    session.execute("x = 2")
    session.rollback(second)
    assert session.result("x") == "1"


@pytest.mark.parametrize(
    "code", ["import ctypes; ctypes.string_at(0)", "import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)", "import os; os.abort()"]
)
def test_after_a_crash_the_session_goes_on(session, code):
    session.execute("x = 41")
    frozen = session.checkpoint()
    with pytest.raises(Died):
        session.execute("x += 1\n" + code)
    session.resume(frozen)
    assert session.result("x + 1") == "42"
    session.execute("print('still printing')")
    assert session.text() == "still printing\n"


def test_a_session_that_ignores_the_ends_of_its_children_goes_on(session):
    session.execute("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nx = 41")
    for _ in range(2):
        frozen = session.checkpoint()
        with pytest.raises(Died):
            session.execute("import os; os._exit(3)")
        session.resume(frozen)
    assert session.result("x + 1") == "42"


def test_a_copy_in_the_middle_of_an_interrupted_life(session):
    frozen = session.checkpoint()
    session.begin("print('ready')\nwhile True: pass")
    session.wait_for_output(b"ready")
    session.rollback(frozen)
    session.begin("print('ready')\nwhile True: pass")
    session.wait_for_output(b"ready")
    session.signal(signal.SIGINT)
    assert session.reply()["outcome"] == "interrupted"


def test_live_threads_are_refused_by_name(session):
    session.execute(
        "import threading\ngo = threading.Event()\n"
        "threads = [threading.Thread(target=go.wait, name=f'pool-{n}') for n in range(2)]\n"
        "for thread in threads: thread.start()"
    )
    done = session.ask("checkpoint", checkpoint="c1")
    assert (done["made"], done["reason"]) == (False, "2 threads are alive: pool-0, pool-1")
    session.execute("go.set()\nfor thread in threads: thread.join()")
    session.checkpoint("c2")


def test_threads_below_threading_are_refused(session):
    session.execute(
        "import _thread, time\nlock = _thread.allocate_lock(); lock.acquire()\n_thread.start_new_thread(lock.acquire, ())\n"
        "while not _thread._count(): time.sleep(0)"
    )
    assert session.ask("checkpoint", checkpoint="c1")["reason"] == "1 thread is alive: unnamed"


@pytest.mark.parametrize("lock", ["fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_EX)"])
def test_held_locks_are_refused(session, tmp_path, lock):
    session.execute(f"import fcntl; f = open({str(tmp_path / 'locked.db')!r}, 'w'); {lock}")
    done = session.ask("checkpoint", checkpoint="c1")
    assert done["made"] is False
    assert "locked.db" in done["reason"]
    session.execute("f.close()")
    session.checkpoint("c2")


def test_an_open_sqlite_transaction_is_refused(session, tmp_path):
    session.execute(f"import sqlite3; db = sqlite3.connect({str(tmp_path / 'd.db')!r}); db.execute('create table t(a)'); db.commit()")
    session.checkpoint("c1")
    session.execute("db.execute('insert into t values(1)')")
    assert session.ask("checkpoint", checkpoint="c2")["made"] is False
    session.execute("db.commit()")
    session.checkpoint("c3")


def test_too_much_memory_is_refused(session):
    session.execute("data = [bytes(1000) for _ in range(50_000)]")
    done = session.ask("checkpoint", checkpoint="c1", max_rss_mb=20)
    assert done["made"] is False
    assert "20 MB" in done["reason"]
    session.checkpoint("c2", max_rss_mb=100_000)


def test_files_have_their_position_back(session, tmp_path):
    path = tmp_path / "log.txt"
    session.execute(f"f = open({str(path)!r}, 'w+'); f.write('aaa'); f.flush()")
    frozen = session.checkpoint()
    session.execute("f.write('bbb'); f.flush()")
    assert session.rollback(frozen) == []
    session.execute("f.write('ccc'); f.flush()")
    assert path.read_text() == "aaaccc"


def test_buffered_text_is_written_once(session, tmp_path):
    path = tmp_path / "log.txt"
    session.execute(f"f = open({str(path)!r}, 'a'); f.write('once')")
    frozen = session.checkpoint()
    frozen.drop()
    session.execute("f.close()")
    assert path.read_text() == "once"


def test_a_copy_holds_no_sockets(session):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(TIMEOUT_SECONDS)
    session.execute(f"import socket; s = socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}))")
    connection = listener.accept()[0]
    connection.settimeout(TIMEOUT_SECONDS)
    frozen = session.checkpoint()
    session.execute("s.close()")
    assert connection.recv(1) == b""
    lost = session.rollback(frozen)
    assert len(lost) == 1
    assert lost[0].startswith("a TCP socket (fd ")
    assert session.execute("s.sendall(b'x')")["error"]["type"] == "BrokenPipeError"
    connection.close()
    listener.close()


def test_a_copy_holds_no_port(session):
    session.execute("import socket; s = socket.create_server(('127.0.0.1', 0)); port = s.getsockname()[1]")
    session.checkpoint()
    assert session.execute("s.close(); s = socket.create_server(('127.0.0.1', port))")["outcome"] == "ok"


def test_a_copy_holds_no_pipe(session):
    session.execute("import subprocess; p = subprocess.Popen(['cat'], stdin=-1, stdout=-1)")
    frozen = session.checkpoint()
    assert session.result("p.communicate(b'hi')[0]") == "b'hi'"
    lost = session.rollback(frozen)
    assert sorted(text.split(" (")[0] for text in lost) == ["a child process", "a pipe", "a pipe"]
    assert "cat" in " ".join(lost)


def test_random_numbers_go_on_where_they_were(session):
    session.execute("import random; random.seed(5); random.random()")
    frozen = session.checkpoint()
    expected = session.result("[random.random() for _ in range(3)]")
    session.rollback(frozen)
    assert session.result("[random.random() for _ in range(3)]") == expected


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ("os.wait()[0] == p.pid", "True"),
        ("os.waitpid(-1, 0)[0] == p.pid", "True"),
        ("os.wait3(0)[0] == p.pid", "True"),
        ("os.wait4(-1, 0)[0] == p.pid", "True"),
        ("os.waitid(os.P_ALL, 0, os.WEXITED).si_pid == p.pid", "True"),
        ("os.waitpid(p.pid, 0)[0] == p.pid", "True"),
    ],
)
def test_waiting_for_children_does_not_see_copies(session, wait, expected):
    session.checkpoint("c1").drop()
    session.checkpoint("c2")
    session.execute("import os, subprocess; p = subprocess.Popen(['true'])")
    assert session.result(wait) == expected
    assert session.execute("os.wait()")["error"]["type"] == "ChildProcessError"
    assert session.execute("os.waitpid(-1, os.WNOHANG)")["error"]["type"] == "ChildProcessError"


def test_a_running_child_is_not_yet_there(session):
    session.checkpoint("c1")
    session.execute("import os, subprocess; p = subprocess.Popen(['sleep', '1000'])")
    assert session.result("os.waitpid(-1, os.WNOHANG)") == "(0, 0)"
    assert session.result("os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None") == "True"
    session.execute("p.kill(); p.wait()")


def test_signals_to_the_group_do_not_reach_copies(session):
    frozen = session.checkpoint()
    with pytest.raises(Died):
        session.execute("import os, signal; os.killpg(os.getpgrp(), signal.SIGKILL)")
    session.resume(frozen)
    assert session.result("1") == "1"


def test_a_dropped_copy_ends(session):
    frozen = session.checkpoint()
    descriptor = os.open(f"/proc/{frozen.pid}", os.O_RDONLY)
    frozen.drop()
    session.execute("import os")
    assert session.ask("dropped") == {"ch": 1, "id": 4, "ev": "done", "ok": True}
    # Reaped now or with the next checkpoint, whichever comes after its end.
    for number in range(100):
        session.checkpoint(f"again{number}").drop()
        try:
            os.stat("stat", dir_fd=descriptor)
        except OSError:
            break
    else:
        raise AssertionError("the copy is still there")
    os.close(descriptor)


def test_copies_end_with_their_daemon_and_outlive_their_worker(session):
    frozen = session.checkpoint()
    session.kill()
    assert not select.select([frozen.control], [], [], 0)[0]
    session.resume(frozen)
    assert session.result("2") == "2"


def test_an_await_works_after_a_rollback(session):
    session.execute("import asyncio; queue = asyncio.Queue(); await queue.put(7)")
    frozen = session.checkpoint()
    session.execute("await queue.get()")
    assert session.rollback(frozen) == []
    assert session.result("await queue.get()") == "7"
    code = "p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n(await p.communicate())[0]"
    assert session.result(code) == r"b'hi\n'"


def test_standard_streams_that_were_duplicated_stay_alive(session):
    session.execute("import os; copy = os.dup(1)")
    frozen = session.checkpoint()
    assert session.rollback(frozen) == []
    session.execute("os.write(copy, b'through the copy')")
    assert session.text() == "through the copy"


def test_a_copy_refuses_what_is_not_a_resume(session):
    frozen = session.checkpoint()
    frozen.control.send(b'{"op":"dance"}')
    session.kill()
    session.resume(frozen)
    assert session.result("1") == "1"


def test_garbage_that_piles_up_behind_checkpoints_is_collected(session):
    session.execute("import gc, weakref\nclass Node: pass\nalive = []")
    for number in range(6):
        session.execute(
            "for _ in range(20):\n"
            "    node = Node(); node.me = node; node.data = [object() for _ in range(20_000)]\n"
            "    alive.append(weakref.ref(node))\n"
            "    gc.collect(0) if False else None\n"
            "del node"
        )
        session.checkpoint(f"c{number}").drop()
    assert int(session.result("sum(ref() is not None for ref in alive)")) < 60


def test_no_descriptors_leak(session):
    count = "len(os.listdir('/proc/self/fd'))"
    session.execute("import os")
    session.checkpoint("c0").drop()
    before = session.result(count)
    for number in range(5):
        session.checkpoint(f"c{number}").drop()
    assert session.result(count) == before
    frozen = session.checkpoint("last")
    session.rollback(frozen)
    assert session.result(count) == before


def test_the_control_message_comes_with_credentials(session):
    done = session.ask("checkpoint", checkpoint="c1")
    assert done["made"] is True
    assert done["fork_us"] > 0
    datagram = Datagram(session.control)
    assert datagram.pid == session.pid
    assert len(datagram.descriptors) == 1
    os.close(datagram.descriptors[0])
