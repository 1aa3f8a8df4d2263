"""In somebody else's process: what a visit must not do to an asyncio program, a threaded one, and one that logs much."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from home import BINARY, Home

from running import PROGRAMS, Program, Script, Service, Shop, Threads
from visitor import visiting

pytestmark = pytest.mark.anyio

PYTHONS = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path] or [sys.executable]


class Waiting(Service):
    """Asked about, it waits for its own event."""

    kind = "waiting"
    command = ("waiting.py",)
    ending = (None, 0)


class Held(Shop):
    kind = "held"
    command = ("held.py",)


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


async def test_an_await_leaves_an_asyncio_program_as_it_was(home: Home, run: Any) -> None:
    program = run(Waiting)
    async with visiting(home) as visitor:
        attached = await visitor.client.call("attach", pid=program.pid)
        inside = visitor.to(attached.data["target"])
        # Nobody has waited for the event so far: whoever is first binds it to his loop.
        done = await inside.run(
            "import asyncio\ntry:\n    await asyncio.wait_for(main.event.wait(), 0.01)\nexcept asyncio.TimeoutError:\n    pass"
        )
        assert done["outcome"] == "ok", done
        for who in ("ann", "bob"):
            assert program.ask(who) == f"hello {who}, waited, from {program.pid}"
        assert (
            await inside.value("import threading\nawait asyncio.sleep(0)\nthreading.current_thread() is threading.main_thread()") == "True"
        )
        await inside.run("await asyncio.sleep(0)\nmain.event.set()")
        assert program.ask("eve") == f"hello eve, woken, from {program.pid}"
        assert await inside.value("main.waits") == "3"
    assert home.run("attach", str(program.pid), "--detach").returncode == 0
    assert program.ask("joe") == f"hello joe, woken, from {program.pid}"


async def test_a_call_that_has_not_begun_by_its_deadline_never_runs(home: Home, run: Any) -> None:
    program = run(Held, "start")
    async with visiting(home, "app:held") as visitor:
        late = await visitor.data("execute", code="ran.append('late')", timeout_s=0.5, output="json")
        told = " ".join(late["notes"])
        assert late["outcome"] == "timed_out" and "did not begin in its time and will not" in told, late
        assert "main thread invoker" in told and "still running" not in told, late
        (app,) = await visitor.apps()
        assert app["running"] == [], app
        program.write("go on")
        assert program.wait_for("^ran (.*)")[1] == "[]", "it ran when the main thread came around"
        program.write("go on")
        assert program.wait_for("^ran (.*)")[1] == "[]"


async def test_a_stopped_process_does_not_begin_later(home: Home, run: Any) -> None:
    program = run(Threads, "start")
    async with visiting(home, "app:shop") as visitor:
        assert await visitor.value("stock.greeting") == "'hello'"
        os.kill(program.pid, 19)
        late = await visitor.data("execute", code="stock.greeting = 'late'", timeout_s=0.5, output="json")
        os.kill(program.pid, 18)
        assert "if it has not begun it never will" in " ".join(late["notes"]), late
        assert await visitor.value("stock.greeting") == "'hello'"


async def test_logging_costs_the_program_no_text_and_little_memory(home: Home, run: Any) -> None:
    program = run(Program, [sys.executable, "logging_much.py"])
    program.wait_for("^open")
    assert home.run("attach", str(program.pid), "--readonly").returncode == 0
    async with visiting(home, f"pid:{program.pid}") as visitor:
        program.write("200 frame")
        assert program.wait_for(r"^logged 200 (\d+)")[1] == "0", "the program's objects were asked for their text"
        page = await visitor.data("read_logs", limit=2)
        assert [entry["message"] for entry in page["entries"]] == ["198 <Frame object>", "199 <Frame object>"]
        before = resident_mb(program.pid)
        program.write("6000 z")
        program.wait_for("^logged 6000 0")
        assert resident_mb(program.pid) - before < 12
        newest = (await visitor.data("read_logs", limit=1))["entries"][0]["message"]
        assert newest.startswith("5999 zzz") and "characters left out" in newest


async def test_another_program_with_the_same_id_is_not_called_the_same(home: Home, run: Any) -> None:
    first = run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        assert await visitor.value("1") == "1"
        first.end()
        second = run(Threads, "start")
        told = await visitor.done("execute", code="1")
        assert f"another program has the id `shop` now: process {second.pid} (threads.py in {PROGRAMS})" in told, told
        assert "is now process" not in told
        answer = await visitor.done("execute", code="import os\nos._exit(3)")
        assert "no process of the app `shop` is running now" in answer, answer


async def test_what_was_there_before_is_no_successor(home: Home, run: Any) -> None:
    one, other = run(Script, "start"), run(Script, "start")
    async with visiting(home) as visitor:
        assert await visitor.to(f"app:shop@{one.pid}").value("1") == "1"
        one.end()
        told = await visitor.to(f"app:shop@{other.pid}").done("execute", code="1")
        assert f"process {other.pid}, which has the id `shop` too, was there before" in told, told


async def test_read_only_is_loosened_only_where_it_was_made(home: Home, run: Any) -> None:
    program = run(Script)
    pid = str(program.pid)
    assert home.run("attach", pid, "--readonly").returncode == 0
    async with visiting(home, f"pid:{pid}") as visitor:
        assert "read-only" in await visitor.refused("execute", code="1")
        told = await visitor.refused("close_session")
        assert "attached to read-only on the command line" in told and f"pylair attach {pid} --detach" in told, told
        again = await visitor.client.call("attach", pid=program.pid)
        assert (again.data["way"], again.data["readonly"]) == ("already", True)
        assert "read-only" in await visitor.refused("execute", code="1")
        assert home.run("attach", pid, "--detach").returncode == 0
        # One that an agent made it may end itself.
        assert (await visitor.client.call("attach", pid=program.pid, readonly=True)).data["readonly"] is True
        await visitor.done("close_session")
        assert (await visitor.client.call("attach", pid=program.pid)).data["readonly"] is False
        assert await visitor.value("1") == "1"
        done = home.run("attach", pid, "--readonly")
        assert done.returncode != 0 and "may change everything" in done.stderr and "--detach" in done.stderr, done.stderr


FORKING = "import os, sys\nprint('open', flush=True)\nfor line in sys.stdin:\n    pid = os.fork()\n    if not pid:\n        break\n"
FORKING += "    print('forked', pid, flush=True)\nsys.stdin.read()\n"


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
async def test_a_fork_of_an_attached_program_is_let_go_too(home: Home, run: Any, python: str) -> None:
    """It is as read-only as its parent, nobody is told that it serves by itself, and forking right after the attach warns of nothing."""
    program = run(Program, [python, "-W", "error", "-c", FORKING])
    program.wait_for("^open")
    assert home.run("attach", str(program.pid), "--readonly").returncode == 0
    program.write("fork")
    child = int(program.wait_for(r"^forked (\d+)")[1])
    async with visiting(home, f"pid:{child}") as visitor:
        while len(await visitor.apps()) < 2:
            pass
        assert "read-only" in await visitor.refused("execute", code="1")
        told = await visitor.refused("close_session")
        assert f"pylair attach {child} --detach" in told and "on the command line" in told, told
        done = home.run("attach", str(child), "--detach")
        assert done.returncode == 0, done.stderr
        assert [app["pid"] for app in await visitor.apps()] == [program.pid]
    assert not [line for line in program.lines if "Warning" in line], program.lines


async def test_what_nobody_attached_to_says_why_it_serves(home: Home, run: Any) -> None:
    started, wrapped = run(Script, "start"), run(Threads, "wrap")
    async with visiting(home) as visitor:
        apps = {app["pid"]: app for app in await visitor.apps()}
        assert len(apps) == 2, apps
        (other,) = set(apps) - {started.pid}
        for pid, why in ((started.pid, "serves itself with pylair.start()"), (other, "was started with `pylair wrap`")):
            told = await visitor.to(f"pid:{pid}").refused("close_session")
            assert f"was not attached to: {'the program' if pid == started.pid else 'it'} {why}" in told, told
            done = home.run("attach", str(pid), "--detach")
            assert done.returncode != 0 and why in done.stderr and "no probe" not in done.stderr, done.stderr
    assert wrapped.process.poll() is None


# What keeps a probe from starting for good: each has a sentence of its own, and none takes the five seconds of an answer that is late.

LATE = "did not answer"


async def refused(home: Home, pid: int) -> str:
    async with visiting(home) as visitor:
        answer = await visitor.client.call("attach", pid=pid)
        assert answer.is_error and LATE not in answer.text, answer.text
        return answer.text


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
async def test_no_descriptors(home: Home, run: Any, python: str) -> None:
    full = "import os, sys; [os.dup(0) for _ in range(37)]; print('open', flush=True); sys.stdin.read()"
    program = run(Program, ["sh", "-c", f'ulimit -n 40; exec {python} -c "{full}"'])
    program.wait_for("^open")
    told = await refused(home, program.pid)
    assert "has 40 of at most 40 files open" in told and f"prlimit --pid {program.pid} --nofile=" in told, told


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("name", ["json", "resource", "select", "array", "threading", "types", "ctypes"])
async def test_a_shadowed_module(home: Home, run: Any, tmp_path: Any, python: str, imported: bool, name: str) -> None:
    if name == "types" and imported:
        pytest.skip("the interpreter has its own by then")
    (tmp_path / f"{name}.py").write_text("print('own module', flush=True)\n")
    (tmp_path / "app.py").write_text(f"import sys\n{f'import {name}' if imported else ''}\nprint('open', flush=True)\nsys.stdin.read()\n")
    # `-S`, because `site` imports some of them itself.
    program = run(Program, [python, "-S", str(tmp_path / "app.py")])
    program.wait_for("^open")
    told = await refused(home, program.pid)
    assert f"{name} is {tmp_path}/{name}.py" in told and "rename that file" in told, told
    program.end()
    assert program.lines.count("own module\n") == imported, "the program's own module was run"


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
async def test_a_bundle_without_a_module(home: Home, run: Any, tmp_path: Any, python: str) -> None:
    # As PyInstaller leaves it: `sys.frozen`, and of the standard library what the program needs.
    (tmp_path / "app.py").write_text(
        "import sys\n"
        "sys.frozen = True\n"
        "class Absent:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return None if name in ('json', 'logging') else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path[:] = [Absent(finder) for finder in sys.meta_path]\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    program = run(Program, [python, "-S", str(tmp_path / "app.py")])
    program.wait_for("^open")
    told = await refused(home, program.pid)
    assert "frozen bundle" in told and "the probe needs: json logging" in told, told
    assert "--hidden-import json --hidden-import logging" in told, told


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
async def test_another_probe(home: Home, run: Any, tmp_path: Any, python: str) -> None:
    program = run(Program, [python, "steady.py", "idle"])
    program.wait_for("^open")

    def elsewhere(*options: str) -> int:
        env = {**home.env, "PYLAIR_HOME": str(tmp_path)}
        return subprocess.run([BINARY, "attach", str(program.pid), *options], env=env, capture_output=True).returncode

    assert elsewhere("--readonly") == 0
    told = await refused(home, program.pid)
    assert "another probe is in process" in told and "it serves as app:steady in" in told and "--detach" in told, told
    assert elsewhere("--detach") == 0
    async with visiting(home) as visitor:
        assert not (await visitor.client.call("attach", pid=program.pid)).is_error
    assert home.run("attach", str(program.pid), "--detach").returncode == 0
    assert program.end() == 0 and "closed True True" in program.lines[-1], program.lines[-1]


@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
async def test_no_proc(home: Home, run: Any, python: str) -> None:
    hide = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    if shutil.which("unshare") is None or subprocess.run([*hide, "mount", "-t", "tmpfs", "none", "/proc"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody hide /proc")
    code = "import sys; print('open', flush=True); sys.stdin.read()"
    program = run(Program, [*hide, "sh", "-c", f'mount -t tmpfs none /proc && exec {python} -c "{code}"'])
    program.wait_for("^open")
    told = await refused(home, program.pid)
    assert "sees no /proc" in told and "mount -t proc" in told, told


async def test_a_module_named_as_we_are_is_not_taken_for_ours(home: Home, run: Any, tmp_path: Any) -> None:
    (tmp_path / "pylair").mkdir()
    (tmp_path / "pylair" / "__init__.py").write_text("")
    (tmp_path / "pylair" / "app.py").write_text("name = 'of somebody else'\n")
    (tmp_path / "script.py").write_text("import sys\nimport pylair.app\nprint('open', flush=True)\nsys.stdin.read()\n")
    program = run(Program, [sys.executable, str(tmp_path / "script.py")])
    program.wait_for("^open")
    async with visiting(home, f"pid:{program.pid}") as visitor:
        assert not (await visitor.client.call("attach", pid=program.pid)).is_error
        assert await visitor.value("import pylair.app\npylair.app.name") == "'of somebody else'"
    assert home.run("attach", str(program.pid), "--detach").returncode == 0
