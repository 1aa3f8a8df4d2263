"""Calls in an app: what they can do, what the app notices of them, and where they run."""

from __future__ import annotations

import json
import subprocess
import textwrap

import pytest
from app_host import PLAIN_APP
from visitor import INSTALLED

# Names.


def test_registered_objects_are_names_and_assigned_names_persist(run):
    app = run()
    assert app.execute("thing.value + len(numbers)").result == "4"
    done = app.execute("mine = thing\ndef f(): return mine.value * 10\nclass C: pass\nimport math")
    assert (done["outcome"], done["new"], done["ran_on"]) == ("ok", ["C", "f", "math", "mine"], "probe")
    assert app.execute("global other; other = f(); thing.value = 7; f(), math.floor(other), C.__name__").result == "(70, 10, 'C')"
    assert app.execute("mine", client="another")["error"]["type"] == "NameError"
    assert app.execute("thing.value", client="another").result == "7"


def test_what_is_registered_later_shows_and_an_assigned_name_wins(run):
    app = run("app.registered = {'a': 1, 'b': 2}\nimport sys\nsys.modules['the_app'] = app")
    assert app.execute("a, b").result == "(1, 2)"
    app.execute("import the_app; b = 'mine'; the_app.registered.update(a=10, b=20, c=30)")
    assert app.execute("a, b, c").result == "(10, 'mine', 30)"
    app.execute("the_app.registered.clear()")
    assert app.execute("b").result == "'mine'"
    assert app.execute("a")["error"]["type"] == "NameError"


def test_only_so_many_clients_keep_names(run):
    app = run()
    app.execute("x = 1", client="first")
    for number in range(32):
        app.execute("x = 1", client=f"c{number}")
    assert app.execute("x", client="first")["error"]["type"] == "NameError"
    assert app.execute("x", client="c31").result == "1"


def test_future_imports_and_dataclasses_hold(run):
    app = run()
    app.execute("from __future__ import annotations\nfrom dataclasses import dataclass")
    assert app.execute("@dataclass\nclass P:\n    x: NotThere = 1\nP()").result == "P(x=1)"


# Results.


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("1 + 1", "2"),
        ("None", None),
        ("1;", None),
        ("x = 1", None),
        ("'ä'", "'ä'"),
        ("1 # c", "1"),
        ("for i in (): pass", None),
        ("", None),
    ],
)
def test_the_last_expression_is_the_result(run, code, result):
    assert run().execute(code).result == result


def test_a_result_is_cut_to_the_limit_of_the_call(run):
    app = run()
    done = app.execute("'x' * 100", max_chars=10)
    assert (done.result, done["result_chars"]) == ("'" + "x" * 9, 102)
    done = app.execute("'x' * 100_000")
    assert done["result"] is None and len(done.blob) == 100_002


@pytest.mark.parametrize(
    "code", ["'x' * 100_000_000", "[1000] * 20_000_000", "{'a': ['y' * 1000] * 200_000}", "[[[1000] * 500] * 500] * 500", "Big()"]
)
def test_a_huge_result_is_bounded_and_said_to_be_cut(run, code):
    app = run()
    app.execute("class Big:\n    def __repr__(self): return 'z' * 100_000_000")
    done = app.execute(code)
    assert done["outcome"] == "ok"
    assert len(done.blob) <= 4 << 20
    assert "result_chars" in done.fields or "only the first" in done["notes"][-1]


def test_a_repr_that_raises_is_told(run):
    done = run().execute("class Bad:\n    def __repr__(self): raise SystemExit('no')\nBad()")
    assert done.result == "<Bad object; its repr failed: SystemExit: no>"


def test_rich_values_are_shown(run):
    done = run().execute("class Pic:\n    def _repr_html_(self): return '<b>x</b>'\nprint('before')\nPic()")
    assert [event["ev"] for event, _ in done.events] == ["output", "display"]
    event, blob = done.events[1]
    assert (event["parts"], blob) == ([{"mime": "text/html", "bytes": 8}], b"<b>x</b>")


# Errors.


def test_a_traceback_shows_the_code_and_none_of_the_probe(run):
    app = run()
    app.execute("def f(x):\n    return 1 / x", cell=4)
    done = app.execute("y = 0\nf(y)", cell=5)
    error = done["error"]
    assert (done["outcome"], error["type"], error["line"]) == ("raised", "ZeroDivisionError", 2)
    assert '"<call 5 k3n7>", line 2, in <module>\n    f(y)\n' in error["traceback"]
    assert '"<call 4 k3n7>", line 2, in f\n    return 1 / x\n' in error["traceback"]
    assert "pylair" not in error["traceback"]


def test_frames_of_an_installed_package_are_left_out_too(run):
    from host import PROBE

    app = run(package=str(PROBE.parent))
    error = app.execute("import sys\nsys.stdout.write(1)")["error"]
    assert "pylair" not in error["traceback"], error


@pytest.mark.parametrize("name", ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()", "MemoryError()", "BaseException('x')"])
@pytest.mark.parametrize("place", ["probe", "main", "loop"])
def test_whatever_is_raised_is_the_calls_outcome(run, place, name):
    app = run(APPS[place])
    done = app.execute(f"raise {name}")
    assert (done["outcome"], done["error"]["type"]) == ("raised", name.partition("(")[0])
    assert done["ran_on"] == place
    assert app.execute("1").result == "1"


def test_endless_recursion_is_an_outcome(run):
    app = run()
    assert app.execute("def f(): f()\nf()")["error"]["type"] == "RecursionError"
    assert app.execute("exit()")["exited"]
    assert app.execute("1 +")["error"]["type"] == "SyntaxError"


def test_source_of_what_a_call_defined(run):
    app = run()
    app.execute("def f():\n    return 1\nclass C:\n    def m(self): pass\n", cell=2)
    found = app.ask("source", path="f", client="k3n7").json
    assert (found["file"], found["source"]) == ("<call 2 k3n7>", "def f():\n    return 1\n")
    assert app.ask("source", path="C", client="k3n7").json["line"] == 3
    assert "return 1" in app.execute("import inspect; inspect.getsource(f)").result


def test_a_path_is_checked_before_its_source_runs(run):
    app = run()
    assert app.execute("thing.value = 5", path="thing.value")["outcome"] == "ok"
    assert app.execute("__builtins__ = 1", path="__builtins__")["kind"] == "bad_path"
    assert app.execute("len('ab')", path="len")["result"] == "2"
    done = app.execute("thing.value = 6", path="thing.value; 1")
    assert done["kind"] == "bad_path"
    assert app.execute("thing.value").result == "5"


# Where calls run.

APPS = {
    "probe": PLAIN_APP,
    "main": """
        import queue, threading
        jobs = queue.Queue()
        def invoke(function):
            done = queue.Queue()
            jobs.put(lambda: done.put(function()))
            return done.get()
        app.invoker = invoke
        app.registered = {"main": threading.main_thread().ident, "jobs": jobs}
        threading.Thread(target=lambda: (wait(), jobs.put(None)), daemon=True).start()
        while True:
            job = jobs.get()
            if job is None:
                break
            job()
        """,
    "schedules": """
        import queue, threading
        jobs = queue.Queue()
        app.invoker = jobs.put
        app.registered = {"main": threading.main_thread().ident}
        threading.Thread(target=lambda: (wait(), jobs.put(None)), daemon=True).start()
        for job in iter(jobs.get, None):
            job()
        """,
    "loop": """
        import asyncio, threading
        async def main():
            ended = asyncio.Event()
            app.loop = loop = asyncio.get_running_loop()
            app.registered = {"main": threading.main_thread().ident, "counter": counter, "the_loop": loop}
            def end():
                wait()
                loop.call_soon_threadsafe(ended.set)
            threading.Thread(target=end, daemon=True).start()
            ticking = asyncio.ensure_future(tick())
            await ended.wait()
            print("the loop ended by itself")
        counter = [0]
        async def tick():
            while True:
                counter[0] += 1
                print("tick")
                await asyncio.sleep(0.001)
        app.registered = {}
        asyncio.run(main())
        """,
}


@pytest.mark.parametrize("place", ["main", "schedules"])
def test_with_an_invoker_calls_run_on_the_main_thread(run, place):
    app = run(APPS[place])
    done = app.execute("import threading; print('hello'); threading.get_ident() == main")
    assert (done.result, done["ran_on"], done.output()) == ("True", "main", "hello\n")
    assert "notes" not in done.fields
    assert app.execute("1/0")["error"]["type"] == "ZeroDivisionError"
    out, err = app.ended()
    assert (app.process.returncode, out, err) == (0, "", "")


def test_an_invoker_that_raises_is_told(run):
    app = run("def invoker(function): raise ValueError('no main loop')\napp.invoker = invoker")
    done = app.execute("1")
    assert done["refused"] == "the app's main thread invoker raised ValueError: no main loop, so the call was not run"
    app = run("def invoker(function):\n    function()\n    function()\n    raise ValueError('after all')\napp.invoker = invoker")
    done = app.execute("print('once'); 1")
    assert (done.result, done.output()) == ("1", "once\n")
    assert done["notes"] == ["the app's main thread invoker raised ValueError: after all"]


def test_without_an_invoker_it_is_said_once(run):
    app = run()
    assert "set_main_thread_invoker" in app.execute("1")["notes"][0]
    assert "notes" not in app.execute("1").fields
    assert "notes" in app.execute("1", client="other").fields


def test_calls_run_on_the_apps_loop_and_await_there(run):
    app = run(APPS["loop"])
    done = app.execute("import asyncio, threading; asyncio.get_running_loop() is the_loop, threading.get_ident() == main")
    assert (done.result, done["ran_on"]) == ("(True, True)", "loop")
    done = app.execute(
        """
        before = counter[0]
        print("mine")
        while counter[0] < before + 3:
            await asyncio.sleep(0)
        print("mine too")
        asyncio.get_running_loop() is the_loop
        """
    )
    assert (done.result, done["ran_on"], done.output()) == ("True", "loop", "mine\nmine too\n")
    done = app.execute("await asyncio.gather(asyncio.sleep(0, 'a'), asyncio.sleep(0, 'b'))")
    assert done.result == "['a', 'b']"
    out, _ = app.ended()
    assert set(out.split("\n")) == {"tick", "the loop ended by itself", ""}


def test_a_loop_that_does_not_run_is_told(run):
    app = run("import asyncio\napp.loop = asyncio.new_event_loop()\napp.registered = {'app': app}")
    assert app.execute("1")["refused"] == "the app's event loop is not running"
    app = run("import asyncio\napp.loop = asyncio.new_event_loop()\napp.loop.close()")
    assert app.execute("await asyncio.sleep(0)")["refused"] == "the app's event loop is closed"


# An asyncio program that knows nothing of pylair. Its workers wait for the event, each in turn; `lines` says how that went.
UNTOLD = """
import asyncio, threading
lines = []
threads = {}
event = asyncio.Event() if HOW == "import" else None
async def wait_for_it():
    while True:
        await event.wait()
        event.clear()
        lines.append("woken")
async def main():
    global event
    event = event or asyncio.Event()
    threads["loop"] = threading.get_ident()
    app.registered = {"event": event, "lines": lines, "threads": threads, "asyncio": asyncio}
    await asyncio.get_running_loop().run_in_executor(None, began.set)
    waiting = asyncio.ensure_future(wait_for_it())
    await asyncio.get_running_loop().run_in_executor(None, wait)
    waiting.cancel()
    await asyncio.sleep(0)
began = threading.Event()
asyncio.run(main())
print(lines)
"""


@pytest.mark.parametrize("how", ["import", "run"])
def test_code_that_awaits_runs_on_the_loop_the_app_runs(run, version, how):
    if how == "import" and version < (3, 10):
        pytest.skip("such a program does not work by itself before Python 3.10")
    app = run(f"HOW = {how!r}\n" + UNTOLD)
    done = app.execute("import threading\nevent.set()\nawait asyncio.sleep(0)\nthreading.get_ident() == threads['loop']")
    assert (done.result, done["ran_on"]) == ("True", "loop")
    # The app's own object is waited for on the app's loop, and goes on to work there.
    assert app.execute("await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(asyncio.sleep(0, 7))), 5)").result == "7"
    number = app.begin_execute("print('waits'); await event.wait(); 'seen'")
    app.until_printed(number, "waits")
    app.execute("await asyncio.sleep(0); event.set(); await asyncio.sleep(0)")
    assert app.finish(number).result == "'seen'"
    assert "['woken', 'woken']" in app.ended()[0]


def test_a_loop_that_has_tasks_and_does_not_run_is_not_replaced(run):
    app = run(
        """
        import asyncio
        async def later(): await asyncio.sleep(3600)
        loop = asyncio.new_event_loop()
        task = loop.create_task(later())
        loop.run_until_complete(asyncio.sleep(0))
        """
    )
    done = app.execute("import asyncio; await asyncio.sleep(0)")
    assert done["kind"] == "loop_not_running" and "was not run" in done["refused"]
    assert app.execute("1 + 1").result == "2"


def test_where_several_loops_run_the_code_says_which_or_is_not_run(run):
    app = run(
        """
        import asyncio, threading
        class Part:
            def __init__(self, name):
                self.name = name
                self.loop_thread = threading.Thread(target=self.run, name=name, daemon=True)
                self.began = threading.Event()
                self.loop_thread.start()
                self.began.wait()
            def run(self): asyncio.run(self.serve())
            async def serve(self):
                self.task = asyncio.ensure_future(asyncio.sleep(3600))
                self.began.set()
                await self.task
        app.registered = {"asyncio": asyncio, "one": Part("one"), "two": Part("two"), "threading": threading}
        """
    )
    done = app.execute("await asyncio.sleep(0)")
    assert done["kind"] == "several_loops" and "It was not run" in done["refused"]
    assert "on thread one with 2 tasks (Part.serve, sleep)" in done["refused"] and "on thread two" in done["refused"], done["refused"]
    for name in ("one", "two"):
        assert app.execute(f"await asyncio.wait([{name}.task], timeout=0); threading.current_thread().name").result == repr(name)
    assert app.execute("await asyncio.wait([one.task, two.task], timeout=0)")["kind"] == "several_loops"


def test_what_is_bound_to_a_loop_of_the_calls_own_is_free_afterwards(run, version):
    if version < (3, 10):
        pytest.skip("objects are bound when they are made there")
    objects = "{'event': asyncio.Event(), 'queue': asyncio.Queue(), 'asyncio': asyncio}"
    app = run(f"import asyncio\napp.registered = {objects}")
    own = app.execute("asyncio.mixins._LoopBoundMixin._get_loop.__qualname__").result
    for _ in range(2):
        done = app.execute(
            "tasks = [asyncio.ensure_future(waiting) for waiting in (event.wait(), queue.get())]\nawait asyncio.sleep(0)\n"
            "event.set(); queue.put_nowait(5)\nawait asyncio.gather(*tasks)"
        )
        assert done.result == "[True, 5]"
        assert app.execute("event.clear(); event._loop, queue._loop").result == "(None, None)"
    assert app.execute("asyncio.mixins._LoopBoundMixin._get_loop.__qualname__").result == own


def test_without_a_loop_of_the_apps_await_works_and_is_said(run):
    done = run().execute("import asyncio\nasync def f():\n    print('in it')\n    await asyncio.sleep(0)\n    return 5\nawait f()")
    assert (done.result, done["ran_on"], done.output()) == ("5", "probe", "in it\n")
    assert any("no event loop runs in the app" in note for note in done["notes"])


# What is printed.


def test_prints_arrive_while_the_call_runs(run):
    app = run("import threading\napp.registered = {'go_on': threading.Event()}")
    number = app.begin_execute(
        "import sys\nprint('one')\nprint('two', end='', flush=True)\nsys.stderr.write('err\\n')\ngo_on.wait()\nprint('three')"
    )
    app.until_printed(number, "err\n")
    app.execute("go_on.set()", client="other")
    done = app.finish(number)
    assert (done.output(1), done.output(2)) == ("one\ntwothree\n", "err\n")


def test_much_output_comes_in_few_frames_and_whole(run):
    done = run().execute("for i in range(20_000): print(i)")
    assert done.output() == "".join(f"{number}\n" for number in range(20_000))
    assert len(done.events) < 1000


def test_lines_printed_in_a_burst_come_before_the_call_ends(run):
    app = run("import threading\napp.registered = {'go_on': threading.Event()}")
    number = app.begin_execute("for i in range(100): print(i)\ngo_on.wait()")
    app.until_printed(number, "99\n")
    app.execute("go_on.set()", client="other")
    assert app.finish(number)["outcome"] == "ok"


NOISY = """
import threading
stop, wanted, made = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
def noise():
    while True:
        wanted.acquire()
        if stop.is_set():
            break
        print("noise")
        made.release()
threading.Thread(target=noise).start()
app.registered = {"stop": stop, "wanted": wanted, "made": made}
"""


def test_printing_in_the_middle_of_sending_what_was_printed(python):
    """As a signal handler and a `__del__` may: the connection's lock is already in this thread's hands."""
    code = """
    import sys, threading
    from pylair.streams import Capture, Streams, captured
    lock, sent = threading.Lock(), []
    def send(header, blob):
        assert lock.acquire(timeout=5), "sent in the middle of sending"
        if len(sent) == 1:
            print("from within")
            capture.show({"ev": "display"}, b"shown")
        sent.append(blob)
        lock.release()
    capture, streams = Capture(send), Streams()
    streams.enter()
    with captured(capture):
        for number in range(3):
            print(number)
    capture.close()
    streams.leave()
    print(sent)
    """
    out = subprocess.run(
        [python, "-c", textwrap.dedent(code)], env={"PYTHONPATH": INSTALLED}, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert out == "[b'0\\n', b'1\\n', b'from within\\n', b'shown', b'2\\n']\n"


def test_other_threads_print_where_they_did(run):
    app = run(NOISY)
    code = "for i in range(200):\n    wanted.release()\n    print('call', {})\n    made.acquire()"
    numbers = [app.begin_execute(code.format(who), str(who)) for who in (1, 2)]
    for who, number in enumerate(numbers, 1):
        assert app.finish(number).output() == f"call {who}\n" * 200
    app.execute("stop.set(); wanted.release()")
    assert app.ended() == ("noise\n" * 400, "")


def test_an_app_without_streams_has_none_afterwards(run):
    app = run("""
        import sys, threading
        sys.stdout = sys.stderr = sys.stdin = None
        def others():
            print("lost")
            sys.stderr and sys.stderr.write("lost too")
        def ask():
            thread = threading.Thread(target=others)
            thread.start()
            thread.join()
        app.registered = {"ask": ask}
    """)
    done = app.execute("import sys\nask()\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdin is None")
    assert (done.result, done.output(), done.output(2)) == ("True", "out\n", "err\n")
    assert app.ended() == ("", "")


def test_streams_are_restored_exactly(run):
    app = run("import sys\nkept = sys.stdout, sys.stderr, sys.stdin\n" + "app.registered = {'kept': kept, 'during': []}")
    app.execute("import sys; during[:] = sys.stdout, sys.stderr, sys.stdin; isinstance(sys.stdout, type(kept[0]))")
    done = app.execute(
        """
        import threading
        seen = []
        class Probe(threading.Thread):
            def run(self): seen.append((sys.stdout is kept[0], isinstance(sys.stdout, type(kept[0])), sys.stdout.fileno()))
        thread = Probe(); thread.start(); thread.join()
        during[0].write("afterwards this goes where it went\\n") and None
        seen
        """
    )
    assert done.result == "[(False, True, 1)]"
    app.ask("inspect", path="kept[0]", run=True)
    # Between calls they are the app's own.
    after = run("import sys, threading\nkept = sys.stdout, sys.stderr, sys.stdin\n" + AFTER)
    after.execute("print('caught')")
    after.execute("check.set()")
    assert after.ended()[0] == "restored True\n"


AFTER = """
check = threading.Event()
app.registered = {"check": check}
def look():
    check.wait()
    while any(work for work in calls._running): pass
    import time
    while type(sys.stdout).__name__ == "_GoBetween": time.sleep(0.001)
    sys.__stdout__.write(f"restored {(sys.stdout, sys.stderr, sys.stdin) == kept}\\n")
threading.Thread(target=look).start()
"""


def test_an_app_that_replaces_stdout_meanwhile_wins(run):
    app = run("import io, sys\nours = io.StringIO()\napp.registered = {'ours': ours}")
    app.execute("import sys; sys.stdout = ours")
    done = app.execute("print('caught'); sys.stdout is ours")
    assert done.output() == "caught\n"
    assert app.execute("ours.getvalue()").result == "''"
    out = app.execute("import threading; t = threading.Thread(target=lambda: print('theirs')); t.start(); t.join(); ours.getvalue()")
    assert (out.result, out.output()) == ("'theirs\\n'", "")


def test_redirect_in_another_thread_leaves_nothing_behind(run):
    app = run(
        """
        import contextlib, io, sys, threading
        begin, begun, end = threading.Event(), threading.Event(), threading.Event()
        original, buffer = sys.stdout, io.StringIO()
        def work():
            begin.wait()
            with contextlib.redirect_stdout(buffer):
                print("redirected")
                begun.set()
                end.wait()
        thread = threading.Thread(target=work)
        thread.start()
        app.registered = {"begin": begin, "begun": begun, "end": end, "thread": thread, "buffer": buffer}
        """
    )
    app.execute("begin.set(); begun.wait()")
    app.execute("end.set(); thread.join()")
    assert app.execute("print('mine'); buffer.getvalue()").result == "'redirected\\n'"
    assert app.execute("print('mine')").output() == "mine\n"


@pytest.mark.parametrize("place", ["probe", "main"])
def test_input_ends_at_once(run, place):
    done = run(APPS[place]).execute("print('name?'); input('> ')")
    assert (done["error"]["type"], done.output()) == ("EOFError", "name?\n> ")


def test_bytes_and_surrogates_are_printed(run):
    done = run().execute("import sys\nprint('ä\\udc80')\nsys.stdout.buffer.write(b'\\xff\\n') and None")
    assert done.events[0][1] == b"\xc3\xa4\\udc80\n" and done.events[1][1] == b"\xff\n"


# Interrupts.


def test_a_call_on_the_probes_thread_is_interrupted(run):
    app = run()
    number = app.begin_execute("print('begun')\nwhile True: pass")
    app.until_printed(number, "begun")
    assert app.ask("interrupt", call=number)["ok"]
    done = app.finish(number)
    assert (done["outcome"], done["error"]["type"]) == ("interrupted", "KeyboardInterrupt")
    assert "<call" in done["error"]["traceback"] and "pylair" not in done["error"]["traceback"]
    assert app.ask("interrupt", call=number)["refused"] == f"no call {number} is running"


@pytest.mark.parametrize("code", ["Slow()", "[Slow()]", "import asyncio\nawait asyncio.sleep(0)\nprint('begun')\nwhile True: pass"])
def test_a_call_is_interrupted_wherever_it_is_on_the_probes_thread(run, code):
    app = run("""
        class Slow:
            def __repr__(self):
                print("begun")
                while True: pass
        app.registered = {"Slow": Slow}
    """)
    number = app.begin_execute(code)
    app.until_printed(number, "begun")
    assert app.ask("interrupt", call=number)["ok"]
    assert app.finish(number)["outcome"] == "interrupted"
    assert app.execute("1").result == "1"


def test_code_that_catches_one_interrupt_gets_the_next(run):
    app = run()
    number = app.begin_execute(
        "try:\n    print('begun')\n    while True: pass\nexcept KeyboardInterrupt:\n    print('caught')\nwhile True: pass"
    )
    for marker in ("begun", "caught"):
        app.until_printed(number, marker)
        assert app.ask("interrupt", call=number)["ok"]
    assert app.finish(number)["outcome"] == "interrupted"


@pytest.mark.parametrize("place", ["probe", "loop"])
def test_a_call_that_awaits_is_cancelled(run, place):
    app = run(APPS[place])
    number = app.begin_execute("import asyncio\nprint('begun')\nawait asyncio.sleep(3600)")
    app.until_printed(number, "begun")
    assert app.ask("interrupt", call=number)["ok"]
    done = app.finish(number)
    assert (done["outcome"], done["error"]["type"]) == ("interrupted", "KeyboardInterrupt")
    # On the probe's own thread it may still be in `print`.
    assert done["error"]["line"] in ((2, 3) if place == "probe" else (3,))


def test_the_apps_main_thread_is_not_interrupted(run):
    app = run(APPS["main"].replace('"jobs": jobs', '"go_on": threading.Event()'))
    number = app.begin_execute("print('begun')\ngo_on.wait()")
    app.until_printed(number, "begun")
    done = app.ask("interrupt", call=number)
    assert done["refused"] == f"call {number} cannot be interrupted: it runs on the app's main thread, and an interrupt would hit the app"
    app.process.kill()


# Leaving.


def test_a_call_that_no_invoker_has_begun_with_is_taken_back(run):
    app = run("""
        waiting = []
        app.invoker = waiting.append
        app.registered = {"ran": []}
        threading.Thread(target=lambda: (sys.__stdin__.readline(), waiting[0](), print(app.registered)), daemon=True).start()
    """)
    number = app.begin_execute("ran.append(1)")
    while True:
        refused = app.ask("interrupt", call=number).get("refused")
        if refused is None:
            break
        assert "it has not begun" in refused or "no call" in refused
    assert app.finish(number)["outcome"] == "interrupted"
    app.process.stdin.write(b"now\n")
    assert app.ended()[0] == "{'ran': []}\n"


@pytest.mark.parametrize("place", ["main", "loop"])
def test_a_child_that_a_call_forked_does_not_become_a_second_app(run, place):
    app = run(APPS[place])
    assert app.execute("import os\nchild = os.fork()\nchild and os.waitpid(child, 0)[1]").result == "0"
    assert app.execute("1").result == "1"


def test_nothing_is_left_when_the_probe_leaves(run):
    app = run(
        """
        import linecache, logging, sys, threading
        before = sys.stdout, sys.stderr, sys.stdin, logging.LogRecord
        left = threading.Event()
        app.registered = {"left": left}
        def leave():
            left.wait()
            calls.stop()
            after = sys.stdout, sys.stderr, sys.stdin, logging.getLogRecordFactory()
            print(after == before, [name for name in linecache.cache if name.startswith("<call")])
        threading.Thread(target=leave).start()
        """
    )
    app.execute("1")
    app.execute("left.set()")
    assert app.ended()[0] == "True []\n"


def test_a_call_that_waits_for_an_invoker_ends_when_the_probe_leaves(run):
    app = run(
        """
        import threading
        waiting = threading.Event()
        def invoker(function):
            kept.append(function)
            waiting.set()
        kept = []
        app.invoker = invoker
        def leave():
            waiting.wait()
            calls.stop()
            kept[0]()
        threading.Thread(target=leave).start()
        """
    )
    assert app.execute("print('never')")["kind"] == "stopped"
    assert app.ended()[0] == ""


# Requests that make no sense.


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("execute", {"client": 5}),
        ("execute", {"client": "x" * 1000}),
        ("execute", {"client": "a>\n"}),
        ("execute", {"cell": "one"}),
        ("execute", {"max_chars": "many"}),
        ("execute", {"path": 5}),
        ("execute", {"blob": b"\xff\xfe"}),
        ("inspect", {"path": 5}),
        ("inspect", {"path": "thing", "depth": "deep"}),
        ("inspect", {"path": "thing", "run": "yes"}),
        ("source", {}),
        ("complete", {"cursor": "x"}),
        ("complete", {"blob": b"\xff"}),
        ("logs", {"limit": "x"}),
        ("logs", {"level": "LOUD"}),
        ("logs", {"level": []}),
        ("logs", {"logger": 1}),
        ("logs", {"after_id": 1.5}),
        ("logs", {"wait_s": "long"}),
        ("stacks", {"locals": 1}),
        ("screenshot", {"blob": b"\xff"}),
        ("interrupt", {}),
    ],
)
def test_malformed_fields_are_refused(run, op, fields):
    done = run().ask(op, **fields)
    assert (done["kind"], done["refused"].count("\n")) == ("bad_request", 0)


def test_unknown_operations_are_refused(run):
    app = run()
    assert app.ask("fly")["kind"] == "unknown_operation"
    assert app.ask(["fly"])["kind"] == "unknown_operation"


# Pictures.

PICTURES = """
png = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(20)
import threading
app.screenshot_fn = lambda: png
app.winshot_fn = lambda code: png + code.encode()
"""


def test_pictures(run):
    app = run(PICTURES)
    done = app.ask("screenshot")
    assert (done["mime"], len(done.blob)) == ("image/png", 28)
    assert app.ask("screenshot", "Button()").blob.endswith(b"Button()")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("", "no_screenshot", "set_screenshot_fn"),
        ("app.screenshot_fn = lambda: 1 / 0", "failed", "raised ZeroDivisionError: division by zero"),
        ("import sys; app.screenshot_fn = sys.exit", "failed", "raised SystemExit"),
        ("app.screenshot_fn = lambda: 'text'", "failed", "returned a str, not bytes"),
        ("app.screenshot_fn = lambda: b'GIF89a'", "failed", "6 bytes that are neither a PNG nor a JPEG"),
        ("app.screenshot_fn = lambda: bytes(17 << 20)", "failed", "over the limit of 16 MB"),
    ],
)
def test_pictures_that_cannot_be_had(run, code, kind, words):
    done = run(code).ask("screenshot")
    assert done["kind"] == kind and words in done["refused"] + str(done.get("hint"))


def test_a_snippet_needs_its_own_function(run):
    done = run("app.screenshot_fn = bytes").ask("screenshot", "Button()")
    assert done["kind"] == "no_screenshot" and "set_winshot_fn" in done["hint"]


def test_json_of_answers_is_json(run):
    app = run()
    assert json.loads(app.ask("inspect").blob)["total"] == 2
