"""Random cells, many of them violent, through several sessions at once; then the books are checked.

Every session has a model: which of its variables have which values, after each cell. What a violent cell leaves behind is not
guessed: the notes in its answer say that the session was kept, rolled back to after cell N, or restarted, and the real state must
be exactly the model's state there. At the end no process, descriptor or file may be left.

Stdlib only, and runs on the oldest Python we support. Prints its seed; the same seed makes the same cells.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, Mapping, NamedTuple

from home import TIMEOUT, Home, adopt_orphans, descendants
from line import Client

State = Dict[str, Any]
Report = Dict[str, Any]

NAMES = [f"v{number}" for number in range(8)]
ROLLED_BACK = re.compile(
    r"^the session was rolled back to where it was (?:after cell (\d+)|before its first cell)"
    r"(?:: what cells? (\d+)(?: to (\d+))? did is lost)?$"
)
RESTARTED = re.compile(r"^the session was restarted(: all variables are gone)?$")
KEPT = "what the cell had done until then was kept"
MAX_OUTPUT_FILES = 2000


class Wrong(AssertionError):
    """The product did not keep a promise."""


def expect(condition: object, *what: object) -> None:
    if not condition:
        raise Wrong(" ".join(str(part) for part in what))


class Cell(NamedTuple):
    """A cell and what is expected of it."""

    code: str
    # What it does to the variables if it gets to its end or to its exception.
    effect: Callable[[State], State] = dict
    outcomes: tuple[str, ...] = ("ok",)
    stdout: str | None = None
    error: str | None = None
    arguments: Mapping[str, Any] = MappingProxyType({})
    # Seconds to wait afterwards for something it set off.
    pause: float = 0.0


def setting(name: str, value: Any) -> Callable[[State], State]:
    return lambda state: {**state, name: value}


class Driver:
    """One session, its model and the client that drives it."""

    def __init__(self, home: Home, name: str, python: str, seed: str, without: list[str]) -> None:
        self.home = home
        self.name = name
        self.python = python
        self.random = random.Random(seed)
        self.client = Client(home)
        self.state: State = {}
        self.after: dict[int, State] = {0: {}}
        self.without = without
        self.kinds: dict[str, int] = {}
        self.log: list[str] = []
        self.open()

    def open(self) -> None:
        self.client.call("open_session", name=self.name, python=self.python)
        self.state, self.after = {}, {0: {}}

    def run(self, cells: int) -> None:
        kinds = [kind for kind, weight in KINDS.items() for _ in range(weight) if kind.__name__ not in self.without]
        for _ in range(cells):
            kind = self.random.choice(kinds)
            name = kind.__name__
            self.kinds[name] = self.kinds.get(name, 0) + 1
            made = kind(self)
            if made is not None:
                self.execute(name, made)
            if kind in VIOLENT or self.random.random() < 0.25:
                self.pause()
                self.check()
            else:
                self.pause()

    def pause(self) -> None:
        """Sometimes goes on at once, sometimes leaves the idle gap in which a checkpoint is made."""
        time.sleep(self.random.choice([0, 0, 0.02, 0.06]))

    def execute(self, kind: str, cell: Cell) -> Report:
        self.log.append(f"--- {kind} {dict(cell.arguments)}\n{cell.code}")
        report = self.client.call("execute", code=cell.code, target=self.name, output="json", **cell.arguments)
        self.settle(kind, cell, report)
        if cell.pause:
            time.sleep(cell.pause)
        return report

    def settle(self, kind: str, cell: Cell, report: Report) -> None:
        """Checks an answer, and moves the model to where the answer says that the session is."""
        self.log.append(f"-> cell {report['cell']} {report['outcome']} {report['result']} {report['error']} {report['notes']}")
        outcome = report["outcome"]
        expect(outcome in cell.outcomes, kind, "ended as", outcome, "instead of", cell.outcomes)
        if cell.error is not None and outcome in ("raised", "died"):
            expect(re.search(cell.error, f"{report['error']['type']}: {report['error']['message']}"), kind, report["error"])
        if cell.stdout is not None and outcome != "died":
            # What threads and children print late may come during any cell.
            printed = "".join(line for line in report["stdout"].splitlines(True) if not line.startswith("late "))
            expect(printed == cell.stdout, kind, "printed", repr(printed), "instead of", repr(cell.stdout))
        moved = self.moved(report)
        if outcome in ("ok", "raised", "interrupted") or (outcome == "timed_out" and moved is None):
            # If the session was moved, then before this cell, which ran in what was brought back.
            expect(moved is None or kind == "check", kind, "found the session changed:", report["notes"])
            self.state = cell.effect(self.state if moved is None else moved)
        else:
            expect(moved is not None, kind, "ended as", outcome, "and the notes do not say what became of the session")
            assert moved is not None
            self.state = moved
        self.after[report["cell"]] = self.state

    def moved(self, report: Report) -> State | None:
        """The state the notes say the session was put in, if they do."""
        moved = None
        for note in report["notes"]:
            expect("could not be restarted" not in note, note)
            back = ROLLED_BACK.match(note)
            if back:
                cell = int(back.group(1) or 0)
                expect(cell in self.after, "rolled back to an unknown cell:", note)
                if back.group(2):
                    # Nothing is lost beyond what is named; a death between cells is told by the next one.
                    expect(cell < int(back.group(2)) <= int(back.group(3) or back.group(2)) <= report["cell"], note)
                moved = self.after[cell]
            elif RESTARTED.match(note):
                moved = {}
        kept = any(note.endswith(KEPT) for note in report["notes"])
        expect(moved is None or not kept, "notes that contradict each other:", report["notes"])
        return moved

    def check(self) -> None:
        code = f"{{name: globals()[name] for name in {NAMES} if name in globals()}}"
        report = self.execute("check", Cell(code))
        real = ast.literal_eval(report["result"])
        expect(real == self.state, "the state is", real, "and should be", self.state)

    # What a random cell needs.

    def a_name(self) -> str:
        return self.random.choice(NAMES)

    def a_value(self) -> Any:
        pick = self.random.randrange
        return self.random.choice([pick(10**6), f"text {pick(100)} é", [pick(9), pick(9)], {"key": pick(99)}, None, 0.5])

    def a_known(self, kind: type) -> str | None:
        names = sorted(name for name, value in self.state.items() if type(value) is kind)
        return self.random.choice(names) if names else None


# Harmless cells.


def assign(driver: Driver) -> Cell:
    name, value = driver.a_name(), driver.a_value()
    return Cell(f"{name} = {value!r}", setting(name, value), stdout="")


def change(driver: Driver) -> Cell:
    name = driver.a_known(list)
    if name is None:
        return assign(driver)
    return Cell(f"{name}.append(1)", setting(name, [*driver.state[name], 1]))


def count(driver: Driver) -> Cell:
    name = driver.a_known(int)
    if name is None:
        return assign(driver)
    return Cell(f"{name} += 1", setting(name, driver.state[name] + 1))


def delete(driver: Driver) -> Cell:
    if not driver.state:
        return assign(driver)
    name = driver.random.choice(sorted(driver.state))
    return Cell(f"del {name}", lambda state: {key: value for key, value in state.items() if key != name})


def say(driver: Driver) -> Cell:
    lines = driver.random.randrange(1, 50)
    return Cell(f"for i in range({lines}): print('line', i)", stdout="".join(f"line {i}\n" for i in range(lines)))


def raise_late(driver: Driver) -> Cell:
    name, value = driver.a_name(), driver.a_value()
    code = f"{name} = {value!r}\nprint('before')\nraise ValueError('on purpose')\n{name} = 'never'"
    return Cell(code, setting(name, value), ("raised",), "before\n", "ValueError: on purpose")


def mistype(driver: Driver) -> Cell:
    return Cell(f"{driver.a_name()} = = 1", outcomes=("raised",), stdout="", error="SyntaxError")


def recurse(driver: Driver) -> Cell:
    return Cell("def f(): f()\nf()", outcomes=("raised",), error="RecursionError")


def leave(driver: Driver) -> Cell:
    name, value = driver.a_name(), driver.a_value()
    code = f"import sys\n{name} = {value!r}\nsys.exit(3)"
    return Cell(code, setting(name, value), ("ok", "raised"))


def wait_for_task(driver: Driver) -> Cell:
    name = driver.a_name()
    return Cell(f"import asyncio\n{name} = await asyncio.sleep(0.01, 'slept')", setting(name, "slept"))


def pour(driver: Driver) -> None:
    """Much output, read back in pages."""
    lines = driver.random.randrange(20_000, 60_000)
    report = driver.execute("pour", Cell(f"for i in range({lines}): print('poured', i)"))
    expect(report["truncated"], "long output was not cut")
    uri, pages = f"pylair://output/{report['job']}", ""
    while uri:
        text, more, rest = driver.client.read_resource(uri).partition("\n[more: read ")
        pages += text
        uri = rest.rstrip("]") if more else ""
    kept = "".join(line for line in pages.splitlines(True) if not line.startswith("late "))
    expect(kept == "".join(f"poured {i}\n" for i in range(lines)), "the pages are not what was printed")


# Cells that leave something behind.


def thread(driver: Driver) -> Cell:
    code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late thread'))).start()"
    return Cell(code, stdout="")


def lasting_thread(driver: Driver) -> Cell:
    return Cell("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()")


def child(driver: Driver) -> Cell:
    return Cell("import subprocess\nkept = subprocess.Popen(['sleep', '1000'])")


def daemon_child(driver: Driver) -> Cell:
    return Cell("import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True);")


def fork_and_exit(driver: Driver) -> Cell:
    name = driver.a_name()
    code = f"import os\npid = os.fork()\nif pid == 0:\n    {name} = 'child'\n    os._exit(7)\n{name} = os.waitpid(pid, 0)[1] >> 8"
    return Cell(code, setting(name, 7), stdout="")


def fork_and_go_on(driver: Driver) -> Cell:
    """The child comes to the end of the cell too; there must be one answer, the parent's."""
    name = driver.a_name()
    code = f"import os\npid = os.fork()\n{name} = 'parent' if pid else 'child'\nif not pid: print('late child')"
    return Cell(code, setting(name, "parent"))


# Cells that hang.


def spin(driver: Driver) -> Cell:
    name, value = driver.a_name(), driver.a_value()
    code = f"{name} = {value!r}\nwhile True: pass"
    return Cell(code, setting(name, value), ("timed_out",), arguments={"timeout_s": 0.2})


def sleep_and_roll_back(driver: Driver) -> Cell:
    # Without a checkpoint there is nothing to roll back to; then the cell's work is kept, and the notes say so.
    name = driver.a_name()
    code = f"import time\n{name} = 'rolled back'\ntime.sleep(1000)"
    arguments = {"timeout_s": 0.2, "on_timeout": "rollback"}
    return Cell(code, setting(name, "rolled back"), outcomes=("timed_out",), arguments=arguments)


def ignore_interrupts(driver: Driver) -> Cell:
    name = driver.a_name()
    code = f"import time\n{name} = 'stubborn'\nwhile True:\n    try: time.sleep(0.01)\n    except BaseException: pass"
    return Cell(code, setting(name, "stubborn"), ("timed_out",), arguments={"timeout_s": 0.1})


def hang_in_c(driver: Driver) -> Cell:
    code = f"{driver.a_name()} = 'lost'\nsum(range(10**13))"
    return Cell(code, outcomes=("timed_out",), arguments={"timeout_s": 0.1})


def cancel(driver: Driver) -> None:
    """The client takes its request back."""
    name = driver.a_name()
    code = f"import time\n{name} = 'cancelled'\nprint('begun', flush=True)\ntime.sleep(1000)"
    driver.log.append(f"--- cancel\n{code}")
    arguments = {"code": code, "target": driver.name}
    request = driver.client.send("tools/call", {"name": "execute", "arguments": arguments})
    job = running_job(driver)
    driver.client.write({"method": "notifications/cancelled", "params": {"requestId": request}})
    report = driver.client.call("get_job", job=job, output="json")
    driver.client.answers.pop(request, None)
    driver.settle("cancel", Cell(code, setting(name, "cancelled"), ("interrupted",)), report)


def lose_client(driver: Driver) -> None:
    """The bridge is killed while a cell runs; the cell goes on as a job."""
    name = driver.a_name()
    code = f"import time\nprint('begun', flush=True)\ntime.sleep(0.3)\n{name} = 'went on'"
    driver.log.append(f"--- lose_client\n{code}")
    driver.client.send("tools/call", {"name": "execute", "arguments": {"code": code, "target": driver.name}})
    job = running_job(driver)
    driver.client.kill()
    driver.client = Client(driver.home)
    report = driver.client.call("get_job", job=job, output="json")
    driver.settle("lose_client", Cell(code, setting(name, "went on"), stdout="begun\n"), report)


def running_job(driver: Driver) -> str:
    """Waits until the cell just sent has begun to print."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        session = driver.client.call("get_status", target=driver.name)["session"]
        if session["state"] == "busy" and session["job"]:
            report = driver.client.call("get_job", job=session["job"], wait_s=0, output="json")
            if "begun" in report["stdout"]:
                return session["job"]
        time.sleep(0.01)
    raise Wrong("the cell never began")


# Cells that kill.


def die(code: str, how: str) -> Callable[[Driver], Cell]:
    def make(driver: Driver) -> Cell:
        before = f"{driver.a_name()} = 'lost'\n"
        return Cell(before + code, outcomes=("died",), error=how)

    return make


segfault = die("import ctypes\nctypes.string_at(0)", "SIGSEGV")
exit_at_once = die("import os\nos._exit(3)", "exited with code 3")
kill_itself = die("import os\nos.kill(os.getpid(), 9)", "SIGKILL")
abort = die("import os\nos.abort()", "SIGABRT")
terminate = die("import os, signal\nsignal.signal(15, signal.SIG_DFL)\nos.kill(os.getpid(), 15)", "SIGTERM")
segfault.__name__, exit_at_once.__name__, kill_itself.__name__ = "segfault", "exit_at_once", "kill_itself"
abort.__name__, terminate.__name__ = "abort", "terminate"


def bomb(driver: Driver) -> Cell:
    """Dies after its cell has ended."""
    return Cell("import os, threading\nthreading.Timer(0.05, os._exit, [5]).start()", pause=0.25)


def garbage(driver: Driver) -> Cell:
    """Writes into every pipe and socket it can find, the wire among them."""
    name = driver.a_name()
    junk = bytes(driver.random.randrange(256) for _ in range(driver.random.randrange(1, 64)))
    code = (
        f"import os\n{name} = 'garbage'\n"
        "for fd in range(3, 1024):\n"
        "    try:\n"
        "        if os.readlink('/proc/self/fd/%d' % fd).startswith(('pipe:', 'socket:')):\n"
        f"            os.write(fd, {junk!r})\n"
        "    except OSError: pass"
    )
    return Cell(code, setting(name, "garbage"), ("ok", "died"))


def close_all(driver: Driver) -> Cell:
    name = driver.a_name()
    return Cell(f"import os\n{name} = 'closed'\nos.closerange(3, 65536)", setting(name, "closed"), ("ok", "died"))


def close_output(driver: Driver) -> Cell:
    name = driver.a_name()
    code = f"import os\n{name} = 'silent'\nfor fd in (0, 1, 2): os.close(fd)"
    return Cell(code, setting(name, "silent"), ("ok", "raised", "died"))


# What is done to a session from outside.


def restart(driver: Driver) -> None:
    driver.log.append("--- restart")
    driver.client.call("restart_session", target=driver.name)
    driver.state = {}


def undo(driver: Driver) -> None:
    driver.log.append("--- undo")
    answer = driver.client.result(driver.client.send("tools/call", {"name": "undo", "arguments": {"target": driver.name}}))
    done = answer["structuredContent"]
    driver.log.append(f"-> {done}")
    if answer.get("isError"):
        expect(done["kind"] in ("nothing_to_undo", "no_checkpoint"), done)
        return
    expect(done["cell"] == 0 or done["cell"] in driver.after, "undone to an unknown cell:", done)
    driver.state = driver.after[done["cell"]] if done["cell"] else {}


def branch(driver: Driver) -> None:
    """A copy has the same state, and whatever becomes of it is nothing to the original."""
    driver.log.append("--- branch")
    name = f"{driver.name}-branch"
    arguments = {"target": driver.name, "name": name}
    answer = driver.client.result(driver.client.send("tools/call", {"name": "branch_session", "arguments": arguments}))
    driver.log.append(f"-> {answer['structuredContent']}")
    if answer.get("isError"):
        expect(answer["structuredContent"]["kind"] in ("cannot_branch", "no_checkpoint"), answer)
        return
    code = f"{{name: globals()[name] for name in {NAMES} if name in globals()}}"
    report = driver.client.call("execute", code=code, target=name, output="json")
    expect(ast.literal_eval(report["result"]) == driver.state, "the branch is", report["result"], "and should be", driver.state)
    ending = driver.random.choice(["import os; os._exit(1)", "import ctypes; ctypes.string_at(0)", "globals().clear()"])
    driver.client.call("execute", code=ending, target=name, output="json")
    driver.client.call("close_session", target=name)


def close_and_open(driver: Driver) -> None:
    driver.log.append("--- close_and_open")
    driver.client.call("close_session", target=driver.name)
    driver.open()


# How often each kind of cell comes.
KINDS: dict[Callable[[Driver], Cell | None], int] = {
    assign: 20,
    undo: 8,
    branch: 5,
    change: 10,
    count: 10,
    delete: 5,
    say: 6,
    raise_late: 6,
    mistype: 3,
    recurse: 2,
    leave: 3,
    wait_for_task: 3,
    pour: 1,
    thread: 3,
    lasting_thread: 2,
    child: 2,
    daemon_child: 2,
    fork_and_exit: 3,
    fork_and_go_on: 2,
    spin: 4,
    sleep_and_roll_back: 3,
    ignore_interrupts: 1,
    hang_in_c: 1,
    cancel: 3,
    lose_client: 1,
    segfault: 3,
    exit_at_once: 3,
    kill_itself: 3,
    abort: 2,
    terminate: 2,
    bomb: 2,
    garbage: 3,
    close_all: 2,
    close_output: 1,
    restart: 2,
    close_and_open: 2,
}
HARMLESS = {assign, change, count, delete, say, mistype, wait_for_task, thread, lasting_thread, child, daemon_child}
VIOLENT = set(KINDS) - HARMLESS


def descriptors(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{name}")))
        except OSError:
            continue
    return sorted(found)


def settled_descriptors(pid: int, goal: list[str] | None = None) -> list[str]:
    """The daemon's descriptors once they no longer change, or as soon as they are what they should be."""
    until = time.monotonic() + 10
    before = descriptors(pid)
    while time.monotonic() < until:
        time.sleep(0.5)
        now = descriptors(pid)
        if now == (before if goal is None else goal):
            return now
        before = now
    return before


def warm_up(home: Home, pythons: list[str]) -> None:
    """Opens a session on each interpreter and closes it, so that what is kept warm is there when things are counted."""
    client = Client(home)
    for python in pythons:
        name = client.call("open_session", python=python)["name"]
        client.call("execute", code="1", target=name, output="json")
        client.call("close_session", target=name)
    client.close()


def check_books(home: Home, daemon: int) -> None:
    """After `pylair stop`."""
    until = time.monotonic() + 10
    while descendants() and time.monotonic() < until:
        time.sleep(0.05)
    expect(not descendants(), "still running:", descendants())
    expect(not os.path.exists(f"/proc/{daemon}"), "the daemon is still there")
    runtime = [path.name for path in (home.path / "runtime").iterdir() if path.suffix != ".lock"]
    expect(not runtime, "left in the runtime directory:", runtime)
    data = {path.name for path in (home.path / "data").iterdir()}
    usual = {"canary", "clock.json", "journal.db", "journal.db.lock", "outputs", "saves", "sessions", "token"}
    expect(data <= usual, "left in the data directory:", data)
    outputs = list((home.path / "data/outputs").iterdir())
    # Counted now and then, so a few more than the limit may be there.
    expect(len(outputs) <= MAX_OUTPUT_FILES + 50, len(outputs), "output files")
    expect(not list((home.path / "tmp").iterdir()), "left in the temporary directory:", list((home.path / "tmp").iterdir()))
    expect("panicked" not in (home.path / "state/daemon.log").read_text(), "the daemon panicked; see its log")


def drive(driver: Driver, cells: int, failures: list[str]) -> None:
    try:
        driver.run(cells)
        driver.client.call("close_session", target=driver.name)
    except Exception:
        story = "\n".join(driver.log[-24:])
        failures.append(f"session {driver.name} on {driver.python}:\n{story}\n{traceback.format_exc()}")
    finally:
        # Also after a failure: a bridge that finds its daemon gone starts another.
        driver.client.close()


def torture(home: Home, pythons: list[str], options: argparse.Namespace) -> None:
    (home.path / "tmp").mkdir()
    home.env["TMPDIR"] = str(home.path / "tmp")
    warm_up(home, pythons)
    watcher = Client(home)
    daemon = watcher.call("get_status")["daemon"]["pid"]
    baseline = settled_descriptors(daemon)

    failures: list[str] = []
    drivers = []
    for number in range(options.sessions):
        python, seed = pythons[number % len(pythons)], f"{options.seed}-{number}"
        drivers.append(Driver(home, f"s{number}", python, seed, options.without))
    cells = options.cells // options.sessions
    threads = [threading.Thread(target=drive, args=(driver, cells, failures)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts: dict[str, int] = {}
    for driver in drivers:
        for kind, number in driver.kinds.items():
            counts[kind] = counts.get(kind, 0) + number
    print(", ".join(f"{kind} {number}" for kind, number in sorted(counts.items())))
    if failures:
        watcher.close()
        raise Wrong("\n\n".join(failures))

    status = watcher.call("get_status")["daemon"]
    expect(status["pid"] == daemon, "the daemon was replaced")
    expect(status["sessions"] == 0, status)
    now = settled_descriptors(daemon, baseline)
    expect(now == baseline, "descriptors of the daemon:", now, "before:", baseline)
    watcher.close()
    stopped = home.run("stop")
    expect(stopped.returncode == 0, stopped.stderr)
    check_books(home, daemon)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=400, help="how many random cells, in all sessions together")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--without", action="append", default=[], metavar="KIND", help="leave out cells of this kind")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the daemon, whose log may tell more")
    options = parser.parse_args()
    pythons = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path] or [sys.executable]
    print(f"{options.cells} cells in {options.sessions} sessions, seed {options.seed}", flush=True)
    adopt_orphans()
    home = Home()
    began = time.monotonic()
    try:
        torture(home, pythons, options)
    except AssertionError as wrong:
        print(wrong)
        print(f"FAILED; again with: {Path(__file__).name} --cells {options.cells} --seed {options.seed}")
        return 1
    else:
        print(f"state was right throughout and nothing is left, {time.monotonic() - began:.1f} s")
        return 0
    finally:
        home.run("stop")
        if options.keep:
            print(f"kept {home.path}")
        else:
            shutil.rmtree(home.path)


if __name__ == "__main__":
    sys.exit(main())
