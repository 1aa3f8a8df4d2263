"""MCP Inspector's command line, as a second implementation of a client."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from home import BINARY, TIMEOUT, Home

DIRECTORY = os.environ.get("PYLAIR_INSPECTOR_DIR", "")
pytestmark = pytest.mark.skipif(not DIRECTORY, reason="PYLAIR_INSPECTOR_DIR does not say where the MCP Inspector is")


def inspect(home: Home, *args: str) -> subprocess.CompletedProcess[str]:
    modules = Path(DIRECTORY) / "node_modules"
    node = next(modules.glob("node-*/bin/node"), Path("node"))
    # It keeps a catalogue in the home directory.
    env = {**home.env, "HOME": str(home.path), "MCP_CATALOG_PATH": str(home.path / "inspector.json")}
    server = ["-e", f"PYLAIR_HOME={home.path}", BINARY, "mcp"]
    command = [str(node), str(modules / ".bin/mcp-inspector"), "--cli", *server, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_every_schema_is_portable(home: Home, era: str) -> None:
    listed = inspect(home, "--method", "tools/list", "--strict", "--protocol-era", era)
    assert listed.returncode == 0, listed.stderr
    assert "execute" in [tool["name"] for tool in json.loads(listed.stdout)["tools"]]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_tool_is_called(home: Home, era: str) -> None:
    called = inspect(home, "--method", "tools/call", "--tool-name", "execute", "--tool-arg", "code=6*7", "--protocol-era", era)
    assert called.returncode == 0, called.stderr
    assert "Out[1]: 42" in json.loads(called.stdout)["content"][0]["text"]
