"""The example that needs the Python MCP SDK; `tests/it/examples.rs` runs the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from home import BINARY, TIMEOUT, Home

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/agent_loop.py"


def test_the_agent_loop_repairs_its_mistake_in_the_same_session(home: Home, tmp_path: Path) -> None:
    (tmp_path / "pylair").symlink_to(BINARY)
    env = {**home.env, "PATH": f"{tmp_path}{os.pathsep}{home.env['PATH']}"}
    done = subprocess.run([sys.executable, str(EXAMPLE)], env=env, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().split("\n\n")
    assert "NameError: name 'price' is not defined" in first
    assert second.startswith(">>> sum(prices.values())\nOut[2]: 7\n")
