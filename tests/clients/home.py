"""A pylair of its own for one test: its directories, its daemon, and the proof that nothing stays behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional

BINARY = os.environ.get("PYLAIR_BIN", str(Path(__file__).parents[2] / "target/debug/pylair"))
# Nothing takes this long; it is for what hangs.
TIMEOUT = 60.0


class Home:
    def __init__(self, settings: Optional[Dict[str, str]] = None) -> None:
        # Short, because socket addresses are.
        self.path = Path(tempfile.mkdtemp(prefix="pylair-"))
        self.env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.env["PYLAIR_HOME"] = str(self.path)
        self.env.update(settings or {})
        self._server: Optional[subprocess.Popen[str]] = None
        self.url = ""

    @property
    def token(self) -> str:
        return (self.path / "data/token").read_text().strip()

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BINARY, *args], env=self.env, capture_output=True, text=True, timeout=TIMEOUT)

    def serve(self) -> str:
        """Starts `pylair serve` and returns where its MCP endpoint is."""
        with open(self.path / "serve.log", "w") as log:
            command = [BINARY, "serve", "--port", "0"]
            self._server = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._server.stdout is not None
        for line in self._server.stdout:
            if line.startswith("MCP endpoint:"):
                self.url = line.split()[-1]
                return self.url
        raise AssertionError("pylair serve ended: " + (self.path / "serve.log").read_text())

    def processes(self) -> List[str]:
        """What belongs to this home and still runs: everything we start inherits PYLAIR_HOME or names its directory."""
        found = []
        mark = str(self.path).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                belongs = mark in command or mark in (entry / "environ").read_bytes()
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if belongs and not dead:
                found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace').strip()}")
        return found

    def close(self) -> None:
        """Stops the daemon and checks that no process outlives it."""
        stopped = self.run("stop")
        if self._server is not None:
            self._server.wait(TIMEOUT)
            assert self._server.stdout is not None
            self._server.stdout.close()
        left = self.processes()
        until = time.monotonic() + 10
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left = self.processes()
        assert stopped.returncode == 0, stopped.stderr
        assert not left, left
        shutil.rmtree(self.path)
