"""A probe that is brought into a program by one statement, as `pylair attach` does, and that goes again."""

from __future__ import annotations

import json
import re

import pytest
from host import PROBE, sources
from visitor import INSTALLED, wait_for

# Runs what it is told on its main thread. `attach` is the statement, `leftovers` what a program could find of a visit.
TARGET = """
import os, sys, threading, time
def attach():
    payload = __import__("json").load(open("payload.json"))
    namespace = {"__name__": "_pylair.loader"}
    exec(compile(payload["sources"]["loader"], "<pylair/loader.py>", "exec"), namespace)
    namespace["run"](payload["sources"], "attached", payload["config"])
def leftovers():
    deadline = time.monotonic() + 20
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    modules = [name for name in sys.modules if name.startswith("_pylair")]
    finders = [finder for finder in sys.meta_path if type(finder).__name__ == "MemoryImporter"]
    return modules, finders, threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
data = [1, 2, 3]
for line in sys.stdin:
    exec(line)
    print("ok", flush=True)
"""


@pytest.fixture
def target(python, home):
    config = {"runtime": str(home.path / "runtime"), "app_id": None, "readonly": False}
    (home.path / "payload.json").write_text(json.dumps({"sources": sources(), "config": config}))
    (home.path / "victim.py").write_text(TARGET)
    return home.start([python, "victim.py"])


def tell(program, line):
    program.tell(line)
    lines = []
    while True:
        lines.append(program.line())
        if lines[-1] in ("ok", ""):
            assert lines[-1] == "ok", program.end()
            return lines[:-1]


def test_attach_look_and_detach_leaves_nothing(home, target):
    tell(target, "import json, socket, select, struct, atexit, codecs, logging, linecache")
    (before,) = tell(target, "print(leftovers())")
    for _ in range(3):
        tell(target, "attach()")
        entry = home.entry("victim")
        assert (entry["how"], entry["parent"]) == ("attach", None)
        visit = home.visit("victim")
        assert visit.run("main.data")["result"] == "[1, 2, 3]"
        assert visit.ask("detach")[0]["ok"] is True
        assert visit.is_over()
        wait_for(lambda: list(home.apps.iterdir()) == [])
        assert tell(target, "print(leftovers())") == [before]
    assert tell(target, "child = os.fork(); child or os._exit(len(os.listdir('/proc/self/task')) - 1); print(os.waitpid(child, 0)[1])") == [
        "0"
    ]
    assert target.end() == (0, "", "")


def test_memory_does_not_grow_with_visits(home, target):
    def visits(count):
        for _ in range(count):
            tell(target, "attach()")
            visit = home.visit("victim")
            # All that it can do is loaded.
            assert visit.run("import asyncio\nprint(1)\nawait asyncio.sleep(0)\n[1]")["outcome"] == "ok"
            for op in ("inspect", "source", "complete", "logs", "stacks"):
                visit.ask(op, b"main.da", path="main", cursor=7)
            visit.ask("detach")
            assert visit.is_over()
            wait_for(lambda: list(home.apps.iterdir()) == [])
            tell(target, "leftovers()")
        return int(tell(target, "print(len(gc.get_objects()))")[0])

    # Without the collector most of a probe goes by itself: of about 5000 objects 1500 wait for it.
    tell(target, "import gc; gc.disable()")
    visits(3)
    few = visits(2)
    assert visits(10) < few + 20_000
    tell(target, "gc.collect()")
    few = visits(2)
    tell(target, "gc.collect()")
    assert visits(2) < few + 500


def test_a_second_attach_changes_nothing(home, target):
    tell(target, "attach()")
    first = home.entry("victim")
    tell(target, "attach()")
    assert home.entries() == [first]
    assert home.visit("victim").ask("ping")[0]["ok"]


def test_names_that_the_program_registered_are_there(python, home, target):
    tell(target, f"sys.path.append({INSTALLED!r}); import pylair; pylair.register('mine', 5)")
    tell(target, "attach()")
    visit = home.visit("victim")
    assert visit.status()["registered"] == ["main", "mine"]
    assert tell(target, "print(pylair.running, [name for name in sys.modules if name.startswith('_pylair')])") == ["True []"]
    assert visit.ask("detach")[0]["ok"] and visit.is_over()
    wait_for(lambda: list(home.apps.iterdir()) == [])
    assert tell(target, "leftovers(); print(pylair.running)") == ["False"]


def test_names_registered_during_a_visit_outlive_it(home, target):
    tell(target, "attach()")
    tell(target, f"sys.path.append({INSTALLED!r}); import pylair; pylair.register('mine', 5)")
    visit = home.visit("victim")
    assert visit.status()["registered"] == ["main", "mine"]
    assert visit.ask("detach")[0]["ok"] and visit.is_over()
    wait_for(lambda: list(home.apps.iterdir()) == [])
    tell(target, "leftovers(); pylair.start(app_id='own')")
    assert home.visit("own").status()["registered"] == ["mine"]


def test_why_it_did_not_work_is_said_beside_the_entries(home, target):
    tell(target, "import threading, _thread; real = _thread.start_new_thread")
    tell(target, "def broken(*_): raise RuntimeError('no more threads')")
    tell(target, "_thread.start_new_thread = broken; attach(); _thread.start_new_thread = real")
    (path,) = home.apps.iterdir()
    assert path.suffix == ".error" and "no more threads" in json.loads(path.read_text())["error"]
    assert tell(target, "print(leftovers()[:4])") == ["([], [], 1, 1)"]
    tell(target, "attach()")
    assert home.visit("victim").ask("ping")[0]["ok"]
    assert not path.exists()


def test_a_session_of_our_own_is_not_attached_to(home, target):
    tell(target, "sys.modules['_pylair.worker'] = sys")
    tell(target, "attach()")
    (path,) = home.apps.iterdir()
    assert "a session of pylair's own" in json.loads(path.read_text())["error"]


def test_the_modules_that_are_looked_for_are_all_that_the_probe_brings(python, home):
    """What `arrive.py` makes sure of before it imports anything is what an attached probe imports of the standard library."""
    arrive = (PROBE / "bootstrap" / "arrive.py").read_text()
    needed = set(" ".join(re.findall(r'^        "([a-z_ ]+)"$', arrive, re.M)).split())
    assert {"json", "logging", "threading"} <= needed
    config = {"runtime": str(home.path / "runtime"), "app_id": "bare", "readonly": False}
    (home.path / "payload.json").write_text(json.dumps({"sources": sources(), "config": config}))
    # `-S`, because `site` may import anything.
    program = home.start(
        [python, "-S", "-c", "import sys; before = set(sys.modules)\n" + TARGET.replace("import os, sys, threading, time", "")]
    )
    tell(program, "import os, time; imported = before | set(sys.modules)")
    tell(program, "attach()")
    visit = home.visit("bare")
    assert visit.run("print(1); [1]")["outcome"] == "ok"
    assert visit.ask("inspect", path="main.data")[0].get("refused") is None
    assert visit.ask("stacks")[0].get("refused") is None
    brought = (
        "print(*sorted({name.partition('.')[0] for name, module in sys.modules.items() if name not in imported and '_pylair' not in name"
    )
    brought += " and str(getattr(module, '__file__', '')).endswith(('.py', '.so'))}))"
    found = set(tell(program, brought)[0].split())
    # `ctypes` is loaded for an interrupt, and done without where it is not there. No program has modules with most private names.
    assert {"ctypes"} <= found and 'optional = "_json ctypes"' in arrive
    assert {name for name in found if not name.startswith(("_", "sre_"))} - {"ctypes"} <= needed, found - needed


def test_whoever_finds_the_entry_finds_everything(home, target):
    """`attach` ends when the entry is there: records made right after that are kept, forks are seen."""
    app = "sys.modules['_pylair.app'].current()"
    forks = "codecs.lookup_error('pylair.fork').target is not None"
    seen = f"[type(logging.getLogRecordFactory()).__name__, *{app}.registered, {app}.running, {forks}]"
    tell(target, "import codecs, logging; rename, seen = os.rename, []")
    tell(target, f"os.rename = lambda *paths: (seen.append({seen}), rename(*paths))")
    tell(target, "attach()")
    assert home.visit("victim").status()["registered"] == ["main"]
    assert tell(target, "os.rename = rename; print(seen)") == ["[['_Factory', 'main', True, True]]"]


# A stream that is in the middle of writing when a call ends, and is used once more after that.
SLOW_PRINT = """
class Slow:
    def __init__(self, stream):
        self.stream, self.inside, self.go = stream, threading.Event(), threading.Event()
    def write(self, text):
        if text == 'slow':
            self.inside.set()
            self.go.wait(20)
        self.stream.write(text)
    def flush(self):
        self.stream.flush()
slow = sys.stdout = Slow(sys.stdout)
printer = threading.Thread(target=lambda: print('slow', 'rest'))
"""


def test_a_thread_of_the_program_prints_on_when_a_call_ends(home, target):
    """`print` holds no reference to `sys.stdout` up to 3.13, so what stands for it while a call runs must not be freed at its end."""
    tell(target, "attach()")
    visit = home.visit("victim")
    tell(target, f"exec({SLOW_PRINT!r}, globals())")
    assert visit.run("main.printer.start()\nmain.slow.inside.wait(20)")["result"] == "True"
    assert tell(target, "slow.go.set(); printer.join(20)") == ["slow rest"]


def test_a_probe_of_another_registry_is_named_and_stays(home, target, tmp_path):
    tell(target, "attach()")
    visit = home.visit("victim")
    payload = json.loads((home.path / "payload.json").read_text())
    payload["config"]["runtime"] = str(tmp_path / "other")
    (home.path / "payload.json").write_text(json.dumps(payload))
    (before,) = tell(target, "print(len(sys.meta_path))")
    tell(target, "attach()")
    (told,) = (tmp_path / "other" / "apps").glob("*.error")
    told = json.loads(told.read_text())
    assert told["kind"] == "another_probe" and told["error"] == f"it serves as app:victim in {home.path / 'runtime'}"
    assert tell(target, "print(len(sys.meta_path))") == [before]
    assert visit.run("main.data")["result"] == "[1, 2, 3]"


def test_a_probe_whose_socket_was_removed_is_replaced(home, target):
    tell(target, "attach()")
    for path in (home.path / "runtime" / "apps").iterdir():
        path.unlink()
    tell(target, "attach()")
    assert home.visit("victim").run("main.data")["result"] == "[1, 2, 3]"


@pytest.mark.parametrize(
    ("first", "second", "readonly"), [("command_line", "mcp", True), ("mcp", "mcp", False), ("mcp", "command_line", False)]
)
def test_what_was_made_read_only_is_made_writable_only_by_who_made_it(home, target, first, second, readonly):
    """The descriptors are taken from the probe, as a program does that becomes a daemon, so that nobody has detached."""
    payload = json.loads((home.path / "payload.json").read_text())
    payload["config"].update(by=first, readonly=True)
    (home.path / "payload.json").write_text(json.dumps(payload))
    tell(target, "attach()")
    assert home.entry("victim")["by"] == first
    tell(target, "os.closerange(3, 2000)")
    wait_for(lambda: list(home.apps.iterdir()) == [])
    payload["config"].update(by=second, readonly=False)
    (home.path / "payload.json").write_text(json.dumps(payload))
    tell(target, "attach()")
    assert home.entry("victim")["readonly"] is readonly
