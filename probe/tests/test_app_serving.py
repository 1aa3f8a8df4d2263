"""What clients may do to an app's server without harming the app: garbage, strangers, stalls, floods, sudden ends."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

import pytest
from visitor import INSTALLED, Visit, wait_for

from pylair import connection, serving

APP = """
import pylair, sys, threading
gate = threading.Event()
pylair.register("gate", gate)
pylair.start(app_id="app", port=0)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
"""


@pytest.fixture
def app(python, home):
    program = home.run(python, APP)
    assert program.line() == "ready"
    return program


def tcp(home):
    host, port = home.entry("app")["tcp"].split(":")
    return host, int(port)


def tally(program):
    return len(os.listdir(f"/proc/{program.pid}/fd")), len(os.listdir(f"/proc/{program.pid}/task"))


def test_a_web_page_gets_not_a_byte(home, app):
    stranger = Visit(tcp(home), hello=False)
    stranger.socket.sendall(b'POST / HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n\r\n{"op":"execute"}\n')
    assert stranger.is_over()


@pytest.mark.parametrize(
    "header",
    [
        {"ch": 0, "id": 0, "op": "token", "token": "0" * 48},
        {"ch": 0, "id": 0, "op": "token", "token": "é\ud800"},
        {"ch": 0, "id": 0, "op": "token", "token": 5},
        {"ch": 1, "id": 1, "op": "ping"},
        {"ch": 0, "id": 0, "op": "token", "token": "x" * 5000},
        {"ch": 0, "id": 0, "op": "token", "token": "x", "blob": 4},
    ],
)
def test_without_the_token_there_is_no_word(home, app, header):
    stranger = Visit(tcp(home), hello=False)
    stranger.send_header(header)
    assert stranger.is_over()
    assert home.visit("app").status()["commands"] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 5) + b'{"a":',
        struct.pack(">I", 13) + b'{"blob": -17}',
        struct.pack(">I", 10) + b'{"op":"x"}',
        struct.pack(">I", 10) + b'{"id":"1"}',
        struct.pack(">I", 2) + b"{}",
    ],
)
def test_garbage_ends_the_connection_and_nothing_else(home, app, data):
    visit, other = home.visit("app"), home.visit("app")
    visit.socket.sendall(data)
    assert visit.is_over()
    assert other.run("1 + 1")["result"] == "2"


def test_a_frame_in_many_pieces_and_many_frames_in_one(home, app):
    visit = home.visit("app")
    frame = b'{"ch":1,"id":7,"op":"execute","client":"c","cell":1,"blob":5}'
    frame = struct.pack(">I", len(frame)) + frame + b"6 * 7"
    for at in range(len(frame)):
        visit.socket.sendall(frame[at : at + 1])
    assert visit.done(7)[0]["result"] == "42"
    visit.socket.sendall(frame * 20)
    assert [visit.done(7)[0]["result"] for _ in range(20)] == ["42"] * 20


def test_half_a_frame_holds_up_nobody(home, app):
    stalled = home.visit("app")
    stalled.socket.sendall(struct.pack(">I", 100) + b'{"ch":1')
    assert home.visit("app").run("2")["result"] == "2"
    stalled.close()
    wait_for(lambda: home.visit("app").status()["clients"] == 1)


def test_stalled_frames_and_strangers_have_a_deadline():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stranger = connection.Connection(ours, False, lambda: None)
        assert stranger.deadline() is not None
        client = connection.Connection(ours, True, lambda: None)
        assert client.deadline() is None
        theirs.sendall(b"\0\0")
        assert client.read() and client.next_frame() is None and client.deadline() is not None
        theirs.sendall(b"\0\2{}")
        assert client.read() and client.next_frame() == ({}, b"") and client.next_frame() is None
        assert client.deadline() is None


def test_a_thousand_connections_leave_nothing(home, app):
    endpoint = home.entry("app")["endpoint"]
    Visit(endpoint).close()
    wait_for(lambda: home.visit("app").status()["clients"] == 1)
    before = tally(app)
    for number in range(1000):
        visit = Visit(endpoint, hello=number % 2 == 0)
        if number % 3 == 0:
            visit.send("ping")
        visit.close()
    # What was there before may have counted the connection that asked.
    wait_for(lambda: all(now <= then for now, then in zip(tally(app), before)), f"{before} again")


def test_too_many_clients_are_turned_away(home, app):
    endpoint = home.entry("app")["endpoint"]
    visits = [Visit(endpoint) for _ in range(serving.MAX_CLIENTS)]
    assert Visit(endpoint, hello=False).is_over()
    visits.pop().close()
    wait_for(lambda: visits[0].status()["clients"] == serving.MAX_CLIENTS - 1)
    assert Visit(endpoint).ask("ping")[0]["ok"]


def test_strangers_cannot_take_the_place_of_clients(home, app):
    strangers = [Visit(tcp(home), hello=False) for _ in range(serving.MAX_STRANGERS + 5)]
    assert any(stranger.is_over() for stranger in strangers[-5:])
    assert home.visit("app").ask("ping")[0]["ok"]


def test_too_many_calls_are_busy_and_looking_still_works(home, app):
    visit = home.visit("app")
    numbers = [visit.send("execute", b"gate.wait(20)", client="c", cell=1) for _ in range(serving.MAX_CALLS)]
    refused = visit.ask("execute", b"1", client="c", cell=1)[0]
    assert refused["kind"] == "busy" and "32 calls" in refused["refused"]
    assert len(visit.status()["running"]) == serving.MAX_CALLS
    app.tell("gate.set()")
    done = {visit.receive()[0]["id"] for _ in numbers}
    assert done == set(numbers)
    assert visit.run("3")["result"] == "3"
    wait_for(lambda: tally(app)[1] == 2)


def test_a_client_that_dies_in_a_call_does_not_stop_it(home, app):
    visit = home.visit("app")
    visit.send("execute", b"gate.wait(20); main_done = gate.finished = True", client="c", cell=1)
    wait_for(lambda: home.visit("app").status()["running"])
    visit.close()
    other = home.visit("app")
    other.run("gate.set()")
    wait_for(lambda: other.run("getattr(gate, 'finished', None)")["result"] == "True")


def test_stop_during_a_call_ends_the_connection_and_not_the_call(home, app):
    visit = home.visit("app")
    visit.send("execute", b"gate.wait(20); gate.finished = True", client="c", cell=1)
    wait_for(lambda: visit.status()["running"])
    app.tell("pylair.stop(); print(pylair.running, flush=True)")
    assert app.line() == "False"
    assert visit.is_over()
    assert list(home.apps.iterdir()) == []
    app.tell("gate.set()")
    app.tell("import time; [time.sleep(0.001) for _ in range(10000) if not hasattr(gate, 'finished')]; print(gate.finished, flush=True)")
    assert app.line() == "True"
    app.tell("print(pylair.start(app_id='app'), flush=True)")
    assert app.line() == "True"
    assert home.visit("app").run("5")["result"] == "5"


def test_a_program_may_be_told_to_stop_by_a_call(home, app):
    visit = home.visit("app")
    visit.send("execute", b"__import__('pylair').stop()", client="c", cell=1)
    assert visit.is_over()
    app.tell("print(pylair.running, flush=True)")
    assert app.line() == "False"


def test_a_reader_that_does_not_read_is_waited_for_in_bounded_memory(home, app):
    """Calls that answer much wait for room, and get it when the reader reads on."""
    visit = home.visit("app")
    numbers = [visit.send("execute", b"'x' * 3000000", client="c", cell=1) for _ in range(8)]
    other = home.visit("app")
    wait_for(lambda: len(other.status()["running"]) > 0 or True)
    assert other.run("1")["result"] == "1"
    got = set()
    while got != set(numbers):
        header, _ = visit.receive()
        if header["ev"] == "done":
            got.add(header["id"])
    assert other.status()["running"] == []


def test_writers_wait_while_much_is_unread_and_are_let_go_at_the_end():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        sender = connection.Connection(ours, True, lambda: None)
        sender.send({}, b"x" * (connection.HIGH_WATER_BYTES + (1 << 20)))
        assert not sender.takes_requests and sender.has_more_to_send and sender.deadline() is not None
        waiting = threading.Thread(target=sender.send, args=({}, b"y"))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        sender.send({}, b"z", may_wait=False)
        sender.close()
        waiting.join(10)
        assert not waiting.is_alive()


def test_a_program_out_of_descriptors_is_not_made_busy(home, app):
    endpoint = home.entry("app")["endpoint"]
    app.tell("import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 4096))")
    app.tell("files = []")
    app.tell("exec('while True:\\n try: files.append(os.open(\"/dev/null\", 0))\\n except OSError: break')")
    app.tell("print('full', flush=True)")
    assert app.line() == "full"
    visit = Visit(endpoint, hello=False)
    app.tell("resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096)); before = os.times()")
    app.tell("print('room', flush=True)")
    assert app.line() == "room"
    hello = visit.receive()[0] if not _ended(visit) else Visit(endpoint).hello
    assert hello["app"]["app_id"] == "app"
    app.tell("print(os.times().user - before.user < 0.5, flush=True)")
    assert app.line() == "True"


def _ended(visit):
    return visit.socket.recv(1, socket.MSG_PEEK) == b""


def test_descriptors_closed_by_the_program_end_the_server_quietly(home, app):
    """As daemons do, with those of everybody."""
    app.tell("import os; os.closerange(3, 2000); mine = [os.open('/dev/null', 0) for _ in range(20)]")
    app.tell("print(all(os.fstat(fd) for fd in mine), flush=True)")
    assert app.line() == "True"
    wait_for(lambda: home.entries() == [])
    app.tell("print(all(os.fstat(fd) for fd in mine), pylair.running, flush=True)")
    assert app.line() == "True False"
    app.tell("print(pylair.start(app_id='again'), flush=True)")
    assert app.line() == "True"
    assert home.visit("again").run("1")["result"] == "1"


def test_sigpipe_of_the_program_is_not_provoked(home, app):
    app.tell("import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); print('set', flush=True)")
    assert app.line() == "set"
    for _ in range(50):
        visit = home.visit("app")
        visit.send("execute", b"'x' * 200000", client="c", cell=1)
        visit.send("status")
        visit.close()
    assert home.visit("app").run("1")["result"] == "1"


def test_other_users_are_not_let_in(home, app):
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    endpoint = home.entry("app")["endpoint"]
    for path in (home.path, home.apps.parent, home.apps):
        os.chmod(path, 0o755)
    os.chmod(endpoint, 0o666)
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            os._exit(0 if Visit(endpoint, hello=False).is_over() else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_detach_of_an_app_that_started_itself_is_a_stop(home, app):
    visit = home.visit("app")
    assert visit.ask("detach")[0]["ok"] is True
    assert visit.is_over()
    wait_for(lambda: list(home.apps.iterdir()) == [])
    app.tell("print(pylair.running, pylair.start(app_id='again'), flush=True)")
    assert app.line() == "False True"


# Calls that wait for the app.

WAITING = """
import asyncio, pylair, sys, threading
ran, came, goes_on = [], threading.Event(), threading.Event()
pylair.register("ran", ran)
pylair.register("came", came)
def blocks(function):
    came.set()
    goes_on.wait()
    function()
kept = []
def keeps(function):
    kept.append(function)
    came.set()
async def stuck():
    pylair.start(app_id="app", loop=asyncio.get_running_loop())
    print("ready", flush=True)
    goes_on.wait()
    await asyncio.sleep(0.05)
    print(ran, flush=True)
if sys.argv[1] == "loop":
    threading.Thread(target=lambda: [exec(line) for line in sys.stdin], daemon=True).start()
    asyncio.run(stuck())
    sys.exit()
pylair.set_main_thread_invoker({"blocks": blocks, "keeps": keeps}[sys.argv[1]])
pylair.start(app_id="app")
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
"""


@pytest.mark.parametrize("invoker", ["blocks", "keeps", "loop"])
def test_a_call_that_has_not_begun_in_its_time_never_begins(python, home, invoker):
    script = home.path / "waiting.py"
    script.write_text(WAITING)
    program = home.start([python, str(script), invoker], PYTHONPATH=INSTALLED)
    assert program.line() == "ready"
    visit = home.visit("app")
    asked = time.monotonic()
    done, _ = visit.ask("execute", b"ran.append('late')", begin_by=asked + 0.3)
    assert done["kind"] == "not_begun" and "did not begin in its time and will not" in done["refused"], done
    assert ("event loop" if invoker == "loop" else "main thread invoker") in done["refused"]
    assert time.monotonic() - asked >= 0.3
    assert [call for call in visit.status()["running"] if not call["begun"]] == []
    # A call without a time waits on, and says so.
    if invoker != "loop":
        program.tell("came.clear(); print('clear', flush=True)")
        assert program.line() == "clear"
    number = visit.send("execute", b"ran.append('patient')")
    wait_for(lambda: visit.status()["running"])
    assert visit.status()["running"][0]["begun"] is False
    program.tell("came.wait(); goes_on.set(); [function() for function in kept]" if invoker != "loop" else "goes_on.set()")
    assert visit.done(number)[0]["outcome"] == "ok"
    if invoker != "loop":
        program.tell("print(ran, flush=True)")
    assert program.line() == "['patient']"


def test_a_request_that_comes_too_late_is_not_begun(home, app):
    visit = home.visit("app")
    done, _ = visit.ask("execute", b"gate.set()", begin_by=time.monotonic() - 1)
    assert done["kind"] == "not_begun"
    assert visit.ask("ping", begin_by=0)[0]["ok"]
    assert visit.ask("execute", b"gate.is_set()", begin_by=time.monotonic() + 30)[0]["result"] == "False"
