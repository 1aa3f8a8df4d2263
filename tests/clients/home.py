"""A pylair of its own for one test: its directories, its daemon, and the proof that nothing stays behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterable

BINARY = os.environ.get("PYLAIR_BIN", str(Path(__file__).resolve().parents[2] / "target/debug/pylair"))
# Nothing takes this long; it is for what hangs.
TIMEOUT = 60.0

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes every process that loses its parent below us our child, so that none can hide."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants() -> dict[int, str]:
    """What still runs below us, with its command. Buries adopted children that have ended."""
    parents: dict[int, int] = {}
    ended: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        parents[int(entry)] = int(parent)
        if state in "ZX":
            ended.append(int(entry))
    found = {}
    for pid in parents:
        above = parents[pid]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above == 0:
            continue
        if pid in ended:
            if parents[pid] == os.getpid():
                os.waitpid(pid, os.WNOHANG)
            continue
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found[pid] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return found


class Home:
    def __init__(self, settings: dict[str, str] | None = None) -> None:
        # Short, because socket addresses are.
        self.path = Path(tempfile.mkdtemp(prefix="lair-test-"))
        self.env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.env["PYLAIR_HOME"] = str(self.path)
        self.env.update(settings or {})
        self._server: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def token(self) -> str:
        return (self.path / "data/token").read_text().strip()

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BINARY, *args], env=self.env, capture_output=True, text=True, timeout=TIMEOUT)

    def serve(self, *flags: str) -> str:
        """Starts `pylair serve` and returns where its MCP endpoint is."""
        with open(self.path / "serve.log", "w") as log:
            command = [BINARY, "serve", "--port", "0", *flags]
            self._server = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._server.stdout is not None
        for line in self._server.stdout:
            if line.startswith("MCP endpoint:"):
                self.url = line.split()[-1]
                return self.url
        raise AssertionError("pylair serve ended: " + (self.path / "serve.log").read_text())

    def stop(self) -> None:
        """Stops the daemon."""
        stopped = self.run("stop")
        if self._server is not None:
            self._server.wait(TIMEOUT)
            assert self._server.stdout is not None
            self._server.stdout.close()
        assert stopped.returncode == 0, stopped.stderr

    def close(self) -> None:
        """Stops the daemon and checks that no process outlives it. Use `close_all` for homes that are open at once."""
        close_all([self])


def close_all(homes: Iterable[Home]) -> None:
    """Stops the daemons of all these homes and then checks that no process outlives them.

    The check sees every process below this one, whichever home it belongs to, so no daemon may be left when it is made.
    """
    homes = list(homes)
    for home in homes:
        home.stop()
    left = descendants()
    until = time.monotonic() + 10
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = descendants()
    assert not left, left
    for home in homes:
        shutil.rmtree(home.path)
