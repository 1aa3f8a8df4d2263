"""docs/apps.md, run: every Python block in an interpreter, every command in a shell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from home import BINARY, TIMEOUT, Home

from running import PROBE, Program

PAGE = Path(__file__).resolve().parents[2] / "docs/apps.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SHOP = """
orders = ["apples", "pears", "plums"]
print("open", flush=True)
input()
"""


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def test_the_page_has_nothing_else_to_run() -> None:
    assert {name for name, _ in BLOCKS} == {"python", "console"}


@pytest.mark.parametrize("text", blocks("python"))
def test_the_code_runs(home: Home, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"app = object()\n{text}"],
        env={**home.env, "PYTHONPATH": str(PROBE)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_run_one_after_the_other(home: Home, run: Any, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/pylair").symlink_to(BINARY)
    (tmp_path / "bin/python").symlink_to(sys.executable)
    home.env["PATH"] = f"{tmp_path / 'bin'}:{home.env['PATH']}"
    started: list[Program] = []

    def start(command: str) -> Program:
        if started:
            # It has the id that the next one wants.
            started.pop().close()
        program = run(Program, ["sh", "-c", f"cd {tmp_path} && exec {command}"])
        program.wait_for("^open")
        started.append(program)
        return program

    # The page calls it 4711.
    unprepared = run(Program, ["sh", "-c", f"cd {tmp_path} && exec python shop.py"])
    unprepared.wait_for("^open")
    said = {}
    for command in [line[2:] for text in blocks("console") for line in text.splitlines() if line.startswith("$ ")]:
        if command.startswith("pylair wrap"):
            start(command)
            continue
        line = command.replace("4711", str(unprepared.pid))
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=home.env, capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 0, (command, done.stderr)
        said[command] = done.stdout
    assert "app:shop" in said["pylair attach 4711"]
    assert "detached" in said["pylair attach 4711 --detach"]
    assert [line.split()[0] for line in said["pylair apps"].splitlines()] == ["ID", "shop"]
    assert said["pylair exec -t app:shop 'len(main.orders)'"] == "3\n"
    assert "shop.py" in said["pylair stacks 4711"]
    assert len(said) == 5, "each is checked"
    assert unprepared.process.poll() is None
    refused = subprocess.run(
        ["pylair", "exec", "-t", "app:shop", "main.orders.clear()"], env=home.env, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert refused.returncode != 0 and "read" in refused.stderr, refused
