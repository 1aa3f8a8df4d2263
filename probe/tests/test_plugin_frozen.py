"""Frozen failures: a copy of the test process that can be asked, and that nobody notices otherwise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runs import needs, start_time
from visitor import Visit, wait_for

FREEZE = 10


def result(visit, code, **fields):
    done = visit.run(code, **fields)
    assert done.get("outcome") == "ok", done
    return done["result"]


def look(visit, op, **fields):
    header, blob = visit.ask(op, **fields)
    assert "refused" not in header, header
    return json.loads(blob)


def test_code_runs_in_the_failing_frame(place):
    ran = place.run(place.project("none_value"))
    record = ran.test("test_unknown_account")
    visit = place.visit(record)
    assert visit.hello["app"]["how"] == "frozen"
    assert visit.hello["app"]["nodeid"] == record["nodeid"]
    assert visit.hello["app"]["run"] == record["run"]
    frames = [(frame["function"], frame["line"]) for frame in visit.hello["app"]["frames"]]
    assert frames == [(frame["function"], frame["line"]) for frame in record["failure"]["frames"]]
    assert frames[0] == ("owner_of", 15)
    assert result(visit, "account, number") == "(None, 2)"
    assert result(visit, "__name__") == "'accounts'"
    # The failing function again, with other arguments.
    assert result(visit, "owner_of(1)") == "'ANN'"
    assert result(visit, "__exception__").startswith("AttributeError(")


def test_any_frame_by_its_number(place):
    visit = place.visit(place.run(place.project("wrong_mock_path")).test("test_patched_where_it_is_not_used"))
    assert result(visit, "__name__, price") == "('payment', 3)"
    assert result(visit, "__name__, price", frame=2) == "('shop', 3)"
    assert result(visit, "__name__", frame=3) == "'test_shop'"
    visit.run("price = 7; extra = 1", frame=2)
    assert result(visit, "price + extra", frame=2) == "8"
    assert result(visit, "price") == "3"
    refused = visit.run("1", frame=4)
    assert (refused["kind"], refused["hint"]) == ("bad_request", "the frames are 1, the innermost, to 3")


def test_locals_are_those_of_the_frame(place):
    project = place.write(
        """
        limit = 2

        def over(items, least=1):
            return {item: least / (item - limit) for item in items}

        def test_it():
            over([1, 2, 3])
        """
    )
    visit = place.visit(place.run(project).test("test_it"))
    frame = next(n for n, told in enumerate(visit.hello["app"]["frames"], 1) if told["function"] == "over")

    def ask(code):
        return result(visit, code, frame=frame)

    assert ask("sorted(set(locals()) - {'item'})") == "['items', 'least']"
    assert ask("sorted(set(dir()) - {'item'})") == "['items', 'least']"
    assert ask("{name: value for name, value in locals().items() if name == 'items'}") == "{'items': [1, 2, 3]}"
    assert ask("[item for item in items if item > limit]") == "[3]"
    assert ask("[name for name in 'items' if least]") == "['i', 't', 'e', 'm', 's']"
    # What a call assigns is a local from then on, also to functions that it defines, and what it deletes is not.
    visit.run("least = 5; new = 6\ndef both(): return least, new, len(items)", frame=frame)
    assert ask("both(), locals()['least'], 'new' in dir()") == "((5, 6, 3), 5, True)"
    visit.run("del new, items", frame=frame)
    assert visit.run("items", frame=frame)["error"]["type"] == "NameError"
    assert ask("sorted(set(locals()) - {'item'})") == "['both', 'least']"
    assert visit.run("both()", frame=frame)["error"]["type"] == "NameError"
    visit.run("items = [9]; del limit", frame=frame)
    assert ask("items, locals()['items'], 'limit' in globals()") == "([9], [9], False)"
    assert ask("eval('least'), list(map(lambda n: n + least, items))") == "(5, [14])"
    assert result(visit, "await __import__('asyncio').sleep(0, sorted(locals()))", frame=frame + 1) == "[]"


def test_looking(place):
    visit = place.visit(place.run(place.project("none_value")).test("test_unknown_account"))
    variables = [variable["name"] for variable in look(visit, "inspect")["variables"]]
    assert set(variables[:2]) == {"account", "number"}
    assert look(visit, "inspect", path="ACCOUNTS[1]")["attributes"][0]["preview"] == "'ann'"
    assert "owner_of(2)" in look(visit, "source", path="test_unknown_account", frame=2)["source"]
    matches = look(visit, "complete", blob=b"acc", cursor=3)["matches"]
    assert {"account"} <= {match["text"] for match in matches}
    (thread,) = look(visit, "stacks")["threads"]
    assert [frame["function"] for frame in thread["frames"]] == ["owner_of", "test_unknown_account"]
    assert {"name": "account", "value": "None"} in thread["frames"][0]["locals"]


def test_setup_and_teardown_are_frozen_too_and_collection_is_not(place):
    ran = place.run(place.project("fixture_error"))
    assert result(place.visit(ran.test("test_rows")), "self.address") == "'db.example:5432'"
    ran = place.run(place.project("teardown_error"))
    assert result(place.visit(ran.test("test_passes", phase="teardown")), "__name__") == "'test_teardown'"
    ran = place.run(place.project("missing_import"))
    assert "frozen" not in ran.failure("test_report.py")


def test_code_runs_on_the_main_thread_and_can_be_interrupted(place):
    record = place.run(place.project("assertion")).test("test_discount_of_a_small_sum")
    visit, other = place.visit(record), place.visit(record)
    code = "import threading; threading.current_thread() is threading.main_thread()"
    assert visit.run(code)["ran_on"] == "main"
    assert result(visit, code) == "True"
    number = visit.send("execute", b"import time\nprint('begun')\nwhile True: time.sleep(60)", client="a")
    assert visit.receive()[1] == b"begun\n"
    assert other.run("1")["kind"] == "busy"
    assert other.ask("inspect", path="price", run=True)[0]["kind"] == "busy"
    assert look(other, "inspect", path="price")["preview"] == "50"
    assert other.ask("interrupt", call=number)[0].get("ok")
    assert visit.done(number)[0]["outcome"] == "interrupted"
    assert result(visit, "1 + 1") == "2"


def test_printing_and_awaiting(place):
    visit = place.visit(place.run(place.project("assertion")).test("test_discount_of_a_small_sum"))
    number = visit.send("execute", b"print(price)\nimport asyncio\nawait asyncio.sleep(0, price + 1)", client="a")
    header, blob = visit.receive()
    assert (header["ev"], blob) == ("output", b"50\n")
    assert visit.done(number)[0]["result"] == "51"


def test_the_copy_is_in_nobodys_way(place):
    project = place.write(
        """
        import atexit, os, signal, socket, subprocess, sys
        import pytest

        seen = []

        @pytest.fixture
        def world(tmp_path):
            signal.signal(signal.SIGCHLD, lambda *_: seen.append("SIGCHLD"))
            signal.signal(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))
            signal.setitimer(signal.ITIMER_REAL, 60)
            listener = socket.create_server(("127.0.0.1", 0))
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
            file = open("written.txt", "w")
            file.write("once\\n")
            atexit.register(lambda: open("exits.txt", "a").write("exit\\n"))
            sys.settrace(lambda *_: None)
            seen.clear()
            yield listener, reader, file
            sys.settrace(None)
            address = listener.getsockname()
            listener.close()
            # Refused if the copy held it.
            with socket.socket() as again:
                again.bind(address)
                again.listen()
            reader.stdin.close()
            assert reader.wait(20) == 0
            file.close()
            with pytest.raises(ChildProcessError):
                os.wait()
            assert set(seen) <= {"SIGCHLD"}

        def test_it(world):
            listener, reader, file = world
            held = open(__file__)
            assert seen == ["nothing"], seen

        def test_after(world):
            assert not [name for name in seen]
        """
    )
    ran = place.run(project)
    assert [(name, phase, outcome) for name, phase, outcome in ran.outcomes()] == [
        ("test_it", "call", "failed"),
        ("test_after", "call", "passed"),
    ], ran.output
    record = ran.test("test_it")
    assert record["failure"]["exception"]["message"].startswith("[]")
    visit = place.visit(record)
    pid = record["failure"]["frozen"]["pid"]
    held = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert not [target for target in held.values() if "/dev/pts" in target], held
    (written,) = (fd for fd, target in held.items() if target.endswith("written.txt"))
    flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{written}").read_text())
    assert int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3
    assert os.getsid(pid) not in (os.getsid(0), pid)
    code = "import signal, sys; (sys.gettrace(), signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGTERM).name)"
    assert result(visit, code) == "(None, (0.0, 0.0), 'SIG_DFL')"
    visit.run("world[2].flush(); world[2].close()", frame=1)
    visit.run("file.close()")
    assert visit.ask("detach")[0]["ok"]
    wait_for(lambda: start_time(pid) is None, "the copy ends")
    assert (project / "written.txt").read_text() == "once\n"
    # Once for each test, in the test's own process.
    assert (project / "exits.txt").read_text() == "exit\n" * 2


def test_a_pipeline_ends(place):
    """The tests above would hang if it did not: here with a shell, and with descriptors that are not captured."""
    project = place.project("stops")
    command = f"{sys.executable} -m pytest -s -p pylair.pytest_plugin -p no:cacheprovider -p no:rerunfailures | tee out.txt 3>&1"
    subprocess.run(["sh", "-c", command], cwd=project, env=place.env(PYTHONPATH=str(Path(__file__).parent.parent)), check=True, timeout=60)
    assert "2 failed" in (project / "out.txt").read_text()
    frozen = [record["failure"]["frozen"] for record in place.daemon.records if "failure" in record]
    assert len(frozen) == 2
    assert all("pid" in copy for copy in frozen)


def test_a_test_that_ignores_its_children(place):
    project = place.write(
        """
        import signal

        def test_it():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            number = 3
            assert number == 4
        """
    )
    assert result(place.visit(place.run(project).test("test_it")), "number") == "3"


def test_module_globals_are_those_of_the_module(place):
    project = place.write(
        """
        counter = 0

        def count():
            global counter
            counter += 1

        def test_it():
            assert counter
        """
    )
    visit = place.visit(place.run(project).test("test_it"))
    assert result(visit, "count(); counter") == "0"
    # What a function of the module has changed is seen by the next call; what a call assigned stays.
    assert result(visit, "counter") == "1"
    visit.run("counter = 10")
    assert result(visit, "count(); counter") == "10"


def test_an_event_loop_is_not_gone_on_with(place):
    project = place.write(
        """
        import asyncio

        async def fail(loaf):
            await asyncio.sleep(0)
            return loaf["butter"]

        def test_it():
            asyncio.run(fail({"bread": 1}))
        """
    )
    visit = place.visit(place.run(project).test("test_it"))
    assert result(visit, "loaf") == "{'bread': 1}"
    assert result(visit, "await fail({'butter': 2})") == "2"
    assert result(visit, "asyncio.run(fail({'butter': 3}))") == "3"


# When none is made.


def why_not(place, name="assertion", test="test_discount_of_a_small_sum", **env):
    return place.run(place.project(name), **env).failure(test).get("frozen")


def test_none_where_threads_live(place):
    assert why_not(place, "threads", "test_with_thread") == {"why_not": "1 other thread is alive: poller"}


@needs("xdist", "pytest_rerunfailures")
def test_the_server_of_a_plugin_that_only_waits_is_no_reason(place):
    ran = place.run(place.project("assertion"), "--reruns=0")
    record = ran.test("test_discount_of_a_small_sum")
    assert result(place.visit(record), "price") == "50"
    # But one of the program's own that waits in the same way is.
    project = place.write(
        """
        import socket, threading

        def test_it():
            listener = socket.create_server(("127.0.0.1", 0))
            threading.Thread(target=listener.accept, name="own server", daemon=True).start()
            assert not listener
        """
    )
    why = place.run(project, "--reruns=0").failure("test_it")["frozen"]["why_not"]
    assert why == "1 other thread is alive: own server"


def test_a_copy_that_does_not_come_to_life_does_not_keep_the_test(place):
    project = place.write(
        """
        import os, time

        def test_it():
            os.register_at_fork(after_in_child=lambda: time.sleep(600))
            assert not os
        """
    )
    why = place.run(project).failure("test_it")["frozen"]["why_not"]
    assert why.startswith("the copy did not leave the test's process within"), why


def test_none_under_ci_unless_asked(place):
    assert why_not(place, CI="true") == {"why_not": "none is made under CI; PYLAIR_FREEZE=1 asks for it"}
    place.daemon.records.clear()
    assert "pid" in place.run(place.projects / "assertion", CI="true", PYLAIR_FREEZE="1").failure("test_discount_of_a_small_sum")["frozen"]


def test_none_when_switched_off(place):
    assert why_not(place, PYLAIR_FREEZE="0") == {"why_not": "PYLAIR_FREEZE=0 switches frozen failures off"}


def test_none_unless_the_daemon_says_so(place):
    place.daemon.freeze = 0
    assert why_not(place) is None
    assert not place.copies()


def test_a_visitor_that_comes_twice(place):
    record = place.run(place.project("assertion")).test("test_discount_of_a_small_sum")
    first = place.visit(record)
    first.run("kept = 5")
    first.close()
    assert result(Visit(place.copies()[0]["endpoint"]), "kept") == "5"


def test_one_cause_does_not_use_up_what_another_needs(place):
    project = place.write(
        """
        import pytest

        @pytest.mark.parametrize("n", range(14))
        def test_many(n):
            assert {}[n]

        def test_other():
            number = 7
            assert number == 8
        """
    )
    ran = place.run(project)
    frozen = [record["failure"]["frozen"] for record in ran.tests]
    assert ["pid" in told for told in frozen] == [True] * FREEZE + [False] * 4 + [True]
    why = f"{FREEZE} failures of this run like it (KeyError at test_it.py:6) were frozen before, and no more copies are kept"
    assert frozen[FREEZE]["why_not"] == why
    assert result(place.visit(ran.test("test_other")), "number") == "7"


PATCHED = """
    import builtins, gc, io, os, select, signal, socket, sys, time
    from unittest import mock

    import pytest

    class Refused(Exception):
        pass

    def refusing(original, name):
        def refuse(*arguments, **options):
            caller = sys._getframe(1).f_code.co_filename
            # pytest itself has to go on.
            if caller.startswith(("<pylair/", OURS)):
                raise Refused(name)
            return original(*arguments, **options)

        return refuse

    OURS = os.environ["OURS"]
    FUNCTIONS = {
        time: "time monotonic sleep perf_counter process_time gmtime localtime strftime",
        os: "open read write close dup2 pipe fork getpid getuid geteuid listdir scandir stat lstat fstat mkdir makedirs unlink rename "
        "replace readlink rmdir kill killpg setsid waitpid chmod fsync urandom",
        os.path: "join exists isfile isdir realpath abspath dirname basename",
        signal: "signal getsignal valid_signals set_wakeup_fd pthread_sigmask",
        select: "poll select",
        gc: "disable enable isenabled freeze collect",
        sys: "settrace setprofile",
        io: "open",
        builtins: "open",
        socket: "socketpair",
    }

    @pytest.mark.parametrize("module", FUNCTIONS, ids=lambda module: module.__name__)
    def test_functions(monkeypatch, module):
        number = 7
        for name in FUNCTIONS[module].split():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refusing(getattr(module, name), name))
        assert number == 8

    class Guarded(socket.socket):
        def __new__(cls, *arguments, **options):
            raise Refused("sockets are disabled")

    def test_disabled_sockets(monkeypatch):
        number = 7
        monkeypatch.setattr(socket, "socket", Guarded)
        monkeypatch.setattr("_socket.socket", Guarded)
        assert number == 8

    def test_mocks():
        number = 7
        with mock.patch("time.time", return_value=0), mock.patch("time.monotonic", return_value=0):
            with mock.patch("builtins.open", mock.mock_open()), mock.patch.dict(os.environ, clear=True):
                assert number == 8

    class Fake:
        def __getattr__(self, name):
            raise Refused(name)

    def test_modules_replaced_by_their_names(monkeypatch):
        # As libraries do that fake a file system: in everything that is loaded.
        number = 7
        fake = {name: Fake() for name in ("os", "posixpath", "io", "pathlib", "shutil", "time", "socket", "select")}
        for loaded in list(sys.modules.values()):
            file = getattr(loaded, "__file__", None) or ""
            if not file.startswith(("<pylair/", OURS)) and not getattr(loaded, "__name__", "").startswith("_pylair"):
                continue
            for name, value in list(vars(loaded).items()):
                if getattr(value, "__name__", None) in fake and type(value) is type(os):
                    monkeypatch.setattr(loaded, name, fake[value.__name__])
        assert number == 8
"""


@pytest.mark.parametrize("installed", [True, False])
def test_what_a_test_replaces_keeps_no_failure_from_being_frozen(place, installed):
    ours = str(Path(__file__).parent.parent / "pylair")
    ran = place.run(place.write(PATCHED), "-p", "no:randomly", installed=installed, OURS=ours)
    records = [record for record in ran.tests if record["outcome"] == "failed"]
    assert len(records) == 13, ran.output
    for record in records:
        failure = record["failure"]
        assert failure["exception"]["type"] == "AssertionError", failure["exception"]
        if "why_not" in failure["frozen"]:
            # As many as are kept.
            assert "like it (AssertionError at test_it.py:" in failure["frozen"]["why_not"], (record["nodeid"], failure["frozen"])
            continue
        assert result(place.visit(record), "number") == "7", record["nodeid"]
    assert sum("pid" in record["failure"]["frozen"] for record in records) == 13


def test_claims_are_checked_without_running_code(place):
    project = place.write(
        """
        import os

        class Loud:
            limit = None

            @property
            def computed(self):
                raise SystemExit("this must not run")

            def __getattr__(self, name):
                raise SystemExit("nor this")

        class Slotted:
            __slots__ = ("set", "unset")

        def test_it():
            loud, slotted, nothing = Loud(), Slotted(), None
            slotted.set = 1
            assert nothing
        """
    )
    visit = place.visit(place.run(project).test("test_it"))

    def check(*questions):
        asked = json.dumps([{"frame": 1, **question} for question in questions]).encode()
        header, blob = visit.ask("check", blob=asked)
        assert "refused" not in header, header
        return json.loads(blob)

    assert check({"ask": "none", "path": "nothing"}, {"ask": "none", "path": "loud.limit"}, {"ask": "none", "path": "loud"}) == [
        True,
        True,
        False,
    ]
    # What only the program's code could tell is not told.
    assert check({"ask": "none", "path": "loud.computed"}, {"ask": "attribute", "path": "loud", "name": "other"}) == [None, None]
    assert check(
        {"ask": "attribute", "path": "slotted", "name": "set"},
        {"ask": "attribute", "path": "slotted", "name": "unset"},
        {"ask": "attribute", "path": "slotted", "name": "unset", "there": False},
        {"ask": "attribute", "path": "slotted", "name": "absent"},
    ) == [True, False, True, False]
    assert check({"ask": "name", "name": "os"}, {"ask": "name", "name": "len"}, {"ask": "name", "name": "absent"}) == [True, True, False]
    assert check({"ask": "module", "module": "os", "name": "getcwd"}, {"ask": "module", "module": "absent", "name": "x"}) == [True, None]
    assert check({"ask": "path", "path": "test_it.py"}, {"ask": "path", "path": "absent.py", "there": False}) == [True, True]
    codes = [
        "[n for n in dir(loud)]",
        "absent + 1",
        "f(",
        "import json; json.dumps(slotted)",
        "(lambda x: x + nothing)(1)",
        "{x: y for x in ()}",
    ]
    assert check(*({"ask": "code", "code": code} for code in codes)) == [True, False, False, True, True, False]
    assert check({"ask": "absent"}, {"ask": "none", "frame": 99, "path": "loud"}) == [None, None]
