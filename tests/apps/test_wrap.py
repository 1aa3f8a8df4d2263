"""`pylair wrap`: the command does what it would have done, and its Pythons are apps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from home import BINARY, TIMEOUT, Home

from running import PROGRAMS, Program, Script
from visitor import visiting

PYTHON = sys.executable


def ended(home: Home, *command: str, wrapped: bool, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    command = (BINARY, "wrap", "--", *command) if wrapped else command
    env = {**home.env, "PYTHONDONTWRITEBYTECODE": "1", **env}
    done = subprocess.run(command, cwd=PROGRAMS, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("ending", ["0", "7", "raise", "quick", "signal-self"])
def test_what_a_program_says_and_how_it_ends_stay_the_same(home: Home, ending: str) -> None:
    alone = ended(home, PYTHON, "-W", "always", "talker.py", ending, wrapped=False)
    wrapped = ended(home, PYTHON, "-W", "always", "talker.py", ending, wrapped=True)
    assert wrapped == alone
    assert alone[0] == {"0": 0, "7": 7, "raise": 1, "quick": 5, "signal-self": -signal.SIGTERM}[ending]
    assert "INFO root after it was set up MainThread" in alone[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_program(run: Any, home: Home, number: int) -> None:
    ends = []
    for way in (None, "wrap"):
        program = run(Program, [PYTHON, "talker.py", "signal"], way)
        program.wait_for("^ready")
        code = program.end(number)
        ends.append((code, program.lines[-1]))
    assert ends[0] == ends[1] == (-number, "KeyboardInterrupt\n" if number == signal.SIGINT else "ready\n")


@pytest.mark.parametrize("text", ["print('theirs', __name__, __file__)", "raise LookupError('theirs')", None])
def test_another_sitecustomize_is_run_as_it_would_be(home: Home, text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "sitecustomize.py").write_text(text)
    code = "import sys; print(sys.path, 'sitecustomize' in sys.modules)"
    alone, wrapped = (ended(home, PYTHON, "-c", code, wrapped=wrapped, PYTHONPATH=str(tmp_path)) for wrapped in (False, True))
    assert wrapped == alone
    assert ("theirs" in alone[1] + alone[2]) == (text is not None)


@pytest.mark.parametrize("flags", ["-I", "-E", "-S"])
def test_a_python_that_ignores_its_surroundings_runs_as_it_would(home: Home, flags: str) -> None:
    code = "import sys; print(sys.path, sorted(name for name in sys.modules if 'pylair' in name))"
    alone, wrapped = (ended(home, PYTHON, flags, "-c", code, wrapped=wrapped) for wrapped in (False, True))
    assert alone[0] == 0
    if flags != "-S":
        assert wrapped == alone
    assert "_pylair" not in wrapped[1]


@pytest.mark.anyio
async def test_pythons_below_a_program_have_ids_of_their_own(home: Home, run: Any) -> None:
    program = run(Program, [PYTHON, "parent.py"], "wrap")
    child, spawned, forked = map(int, program.wait_for(r"^open (\d+) (\d+) (\d+)").groups())
    async with visiting(home) as visitor:
        ids: dict[int, str] = {}
        with anyio.fail_after(TIMEOUT):
            # A forked process is served a moment after it has gone its own way, unless it has executed something by then.
            while len(ids) < 4:
                ids = {app["pid"]: app["id"] for app in await visitor.apps()}
        assert ids[program.pid] == "parent"
        assert ids[child] == "parent/script"
        assert ids[forked] == f"parent/{forked}"
        assert ids[spawned].startswith("parent/")
        assert len(set(ids.values())) == 4, ids
        assert await visitor.to("app:parent/script").value("main.stock.greeting") == "'hello'"
    assert program.end() == 0
    assert "closed 0 0\n" in program.lines


@pytest.mark.anyio
async def test_main_is_registered_and_the_options_count(home: Home, run: Any) -> None:
    program = run(Script, "wrap", ("--app-id", "corner shop", "--port", "0", "--readonly"))
    async with visiting(home, "app:corner shop") as visitor:
        (app,) = await visitor.apps()
        assert (app["id"], app["pid"], app["readonly"]) == ("corner shop", program.pid, True)
        assert (await visitor.data("inspect", path="main.stock.greeting"))["preview"] == "'hello'"
        assert "readonly" in await visitor.refused("execute", code="1")
    (entry,) = (json.loads(path.read_text()) for path in (home.path / "runtime/apps").glob("*.json"))
    assert entry["tcp"].startswith("127.0.0.1:") and len(entry["token"]) >= 32
    assert program.end() == 0
    assert list((home.path / "runtime/apps").iterdir()) == [], "it leaves nothing"
