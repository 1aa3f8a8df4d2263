"""`attach` through MCP: a program that knows nothing of it, before, meanwhile and after; and what is no such program."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from home import Home

from running import Program
from visitor import visiting

pytestmark = pytest.mark.anyio

PYTHONS = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path]


@pytest.mark.parametrize("shape", ["idle", "waiting", "busy", "sleeping"])
@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
async def test_nothing_is_left_behind(home: Home, run: Any, python: str, shape: str) -> None:
    program = run(Program, [python, "steady.py", shape])
    program.wait_for("^open")
    async with visiting(home) as visitor:
        attached = await visitor.client.call("attach", pid=program.pid)
        assert not attached.is_error, attached.text
        inside = visitor.to(attached.data["target"])
        assert await inside.value("main.shape") == repr(shape)
        await inside.run("import logging\nlogging.getLogger('x').warning('heard')")
        assert [entry["message"] for entry in (await inside.data("read_logs"))["entries"]] == ["heard"]
        again = await visitor.client.call("attach", pid=program.pid)
        assert again.data["way"] == "already"
        assert home.run("attach", str(program.pid), "--detach").returncode == 0
        assert await visitor.apps() == []
    program.write("still there")
    program.wait_for("^echo still there")
    assert program.end() == 0
    assert "closed True True" in program.lines[-1], "threads, descriptors and modules are as they were: " + program.lines[-1]


async def test_a_program_can_be_attached_to_again_at_once(home: Home, run: Any) -> None:
    program = run(Program, [sys.executable, "steady.py", "idle"])
    program.wait_for("^open")
    async with visiting(home, f"pid:{program.pid}") as visitor:
        for number in range(3):
            assert not (await visitor.client.call("attach", pid=program.pid)).is_error
            assert await visitor.value(f"{number}") == f"{number}"
            assert home.run("attach", str(program.pid), "--detach").returncode == 0
        assert "no app" in await visitor.refused("execute", code="1")


async def test_what_cannot_be_attached_to_is_said(home: Home, run: Any) -> None:
    sleeper = run(Program, ["sleep", "60"])
    done = subprocess.Popen(["true"])
    done.wait()
    async with visiting(home) as visitor:
        assert "Python" in await visitor.refused("attach", pid=sleeper.pid)
        assert str(done.pid) in await visitor.refused("attach", pid=done.pid)
    assert sleeper.process.poll() is None
