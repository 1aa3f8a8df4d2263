"""Plays the daemon for tests of apps: starts programs, finds them in the registry, connects and asks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, Callable

from host import PROBE, sources

TIMEOUT_SECONDS = 30.0
# Where an installed package would be.
INSTALLED = str(PROBE.parent)


def wait_for(what: Callable[[], Any], why: str = "", seconds: float = TIMEOUT_SECONDS) -> Any:
    """The first answer that is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"this never came true: {why or what}"
        time.sleep(0.005)


class Home:
    """A place for one test: a PYLAIR_HOME with its registry, and the programs that were started with it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="pylair-"))
        self.apps = self.path / "runtime" / "apps"
        self.programs: list[Program] = []

    def env(self, **more: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "PYLAIR_HOME": str(self.path), "PYTHONDONTWRITEBYTECODE": "1", **more}

    def start(self, argv: list[str], **env: str) -> Program:
        program = Program(argv, self.env(**env), self.path)
        self.programs.append(program)
        return program

    def run(self, python: str, code: str, **env: str) -> Program:
        """A script that has pylair installed."""
        script = self.path / "script.py"
        script.write_text(textwrap.dedent(code))
        return self.start([python, str(script)], PYTHONPATH=INSTALLED, **env)

    def wrap(self, argv: list[str], app_id: str | None = None, port: int | None = None, readonly: bool = False, **env: str) -> Program:
        """As `pylair wrap` would start it."""
        directory = self.path / "wrap"
        directory.mkdir(exist_ok=True)
        (directory / "sitecustomize.py").write_text((PROBE / "bootstrap" / "sitecustomize.py").read_text())
        (directory / "probe.json").write_text(json.dumps({"sources": sources()}))
        config = {"runtime": str(self.path / "runtime"), "app_id": app_id, "port": port, "readonly": readonly, "parent": None}
        path = os.pathsep.join([str(directory), *filter(None, [env.pop("PYTHONPATH", "")])])
        return self.start(argv, PYTHONPATH=path, PYLAIR_WRAP=json.dumps(config), **env)

    def entries(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.apps.glob("*.json")):
            try:
                found.append(json.loads(path.read_text()))
            except FileNotFoundError:
                continue
        return found

    def entry(self, app_id: str | None = None, pid: int | None = None, **facts: Any) -> dict[str, Any]:
        """The entry of an app, as soon as it is there."""
        if app_id is not None:
            facts["app_id"] = app_id
        if pid is not None:
            facts["pid"] = pid
        return wait_for(
            lambda: next((entry for entry in self.entries() if all(entry[key] == value for key, value in facts.items())), None),
            f"an app with {facts} among {[(entry['app_id'], entry['pid']) for entry in self.entries()]}",
        )

    def visit(self, app_id: str | None = None, **facts: Any) -> Visit:
        return Visit(self.entry(app_id, **facts)["endpoint"])

    def close(self) -> None:
        for program in self.programs:
            program.close()
        shutil.rmtree(self.path)


class Program:
    def __init__(self, argv: list[str], env: dict[str, str], cwd: Path) -> None:
        self.process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.pid = self.process.pid

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def end(self) -> tuple[int, str, str]:
        """Ends its input and waits: exit status, and the rest of what it wrote."""
        out, err = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, out.decode(), err.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        try:
            os.killpg(self.pid, 9)
        except (ProcessLookupError, PermissionError):
            pass


class Visit:
    """A connection, with what the probe said first."""

    def __init__(self, endpoint: str | tuple[str, int], token: str | None = None, hello: bool = True) -> None:
        family = socket.AF_UNIX if isinstance(endpoint, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(endpoint)
        self.numbers = 0
        if token is not None:
            self.send_header({"ch": 0, "id": 0, "op": "token", "token": token})
        self.hello = self.receive()[0] if hello else {}

    def send_header(self, header: dict[str, Any], blob: bytes = b"") -> None:
        if blob:
            header["blob"] = len(blob)
        text = json.dumps(header).encode()
        self.socket.sendall(struct.pack(">I", len(text)) + text + blob)

    def send(self, op: str, blob: bytes = b"", **fields: Any) -> int:
        self.numbers += 1
        self.send_header({"ch": 1, "id": self.numbers, "op": op, **fields}, blob)
        return self.numbers

    def receive(self) -> tuple[dict[str, Any], bytes]:
        (size,) = struct.unpack(">I", self._exactly(4))
        header = json.loads(self._exactly(size))
        return header, self._exactly(header.get("blob", 0))

    def done(self, number: int) -> tuple[dict[str, Any], bytes]:
        while True:
            header, blob = self.receive()
            if header.get("id") == number and header["ev"] == "done":
                return header, blob

    def ask(self, op: str, blob: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        return self.done(self.send(op, blob, **fields))

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        return self.ask("execute", textwrap.dedent(code).encode(), client="test", cell=1, **fields)[0]

    def status(self) -> dict[str, Any]:
        return json.loads(self.ask("status")[1])

    def is_over(self) -> bool:
        """Whether the other side ended the connection, without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError(f"the connection ended after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)
