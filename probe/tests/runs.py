"""Runs pytest with the plugin on small projects, and plays the daemon that it reports to."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from host import PROBE, sources
from visitor import INSTALLED, TIMEOUT_SECONDS, Visit, wait_for

PROJECTS = PROBE.parent.parent / "tests" / "projects"


def needs(*modules: str) -> Any:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"there is no {', '.join(missing)}")


class Daemon:
    """Listens where the daemon would, keeps what it is sent, and answers as docs/wire.md says."""

    def __init__(self, runtime: Path, freeze: int = 0, status: str = "200 OK", dies_after: int | None = None, silent: bool = False) -> None:
        self.records: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str], int]] = []
        self.freeze, self.status, self.dies_after, self.silent = freeze, status, dies_after, silent
        self.groups: tuple[str, ...] = ()
        self.settled: dict[str, Any] = {}
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(runtime / "daemon.sock"))
        self.listener.listen()
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve_safely, args=(connection,), daemon=True).start()

    def _serve_safely(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except OSError:
            # Whoever asked has ended.
            pass

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while True:
                request = lines.readline().decode().split()
                if not request:
                    return
                fields = {}
                for line in iter(lines.readline, b"\r\n"):
                    name, _, value = line.decode().partition(":")
                    fields[name.lower()] = value.strip()
                body = lines.read(int(fields["content-length"]))
                self.requests.append((" ".join(request), fields, len(body)))
                if self.silent:
                    continue
                if self.dies_after is not None and len(self.requests) > self.dies_after:
                    self.listener.close()
                    return
                records = [json.loads(line) for line in body.splitlines()]
                if self.status.startswith("200"):
                    self.records += records
                told = {"taken": len(records), "failures": self._known(records), "freeze": self.freeze}
                if any(record["ev"] == "end" for record in records):
                    told["closing"] = {**self._closing(records[0]["run"]), **self.settled}
                answer = json.dumps(told).encode()
                head = f"HTTP/1.1 {self.status}\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
                connection.sendall(head.encode() + answer)

    def _known(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        known = {}
        for record in records:
            if record.get("failure"):
                occurrence = record["failure"]["occurrence"]
                known[occurrence] = {"id": f"f{occurrence[-4:]}", "group": "g8d0", "status": "new", "occurrences": 1}
        return known

    def _closing(self, run: str) -> dict[str, Any]:
        """Every test is a group of its own, unless `groups` says which begin alike and are one."""
        groups: dict[str, dict[str, Any]] = {}
        for record in self.records:
            if record["run"] == run and record.get("failure") and record["outcome"] != "rerun":
                test, occurrence = record["nodeid"], record["failure"]["occurrence"]
                group = next((name for name in self.groups if test.startswith(name)), test + str(record.get("subtest", "")))
                about = {"group": "g8d0", "failures": 0, "id": f"f{occurrence[-4:]}", "test": test, "status": "new", "occurrences": 1}
                told = groups.setdefault(group, {**about, "type": record["failure"]["exception"]["type"]})
                told["failures"] += 1
        return {"failures": list(groups.values()), "more_failures": 0, "resolved": [], "not_resolved": []}

    def close(self) -> None:
        self.listener.close()
        for connection in self.connections:
            connection.close()


class Place:
    """A home of pylair's and a directory for projects, for one test."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="pylair-"))
        self.projects = Path(tempfile.mkdtemp(prefix="projects-"))
        self.daemon: Daemon | None = None

    def listen(self, **options: Any) -> Daemon:
        self.daemon = Daemon(self.home / "runtime", **options)
        return self.daemon

    def project(self, name: str) -> Path:
        return Path(shutil.copytree(PROJECTS / name, self.projects / name))

    def write(self, text: str, name: str = "test_it.py") -> Path:
        directory = self.projects / "written"
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(textwrap.dedent(text))
        return directory

    def env(self, **more: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "PYLAIR_HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1", **more}

    def run(
        self, project: Path, *arguments: str, installed: bool = True, stdin: Any = subprocess.DEVNULL, pass_fds: Any = (), **env: str
    ) -> Run:
        """As with the package installed; else as `pylair test` does it."""
        if installed:
            command = [sys.executable, "-m", "pytest", "-p", "pylair.pytest_plugin"]
            env["PYTHONPATH"] = INSTALLED
        else:
            command = [sys.executable, str(self.carried())]
        # Of what happens to be installed, the tests choose.
        command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
        if not any("rerun" in argument or argument == "-n2" for argument in arguments):
            command += ["-p", "no:rerunfailures"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=project,
            env=self.env(**env),
            stdin=stdin,
            pass_fds=pass_fds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=4 * TIMEOUT_SECONDS,
        )
        # A machine that is too busy to answer in time has the rest in its spool.
        taken = self.daemon.records if self.daemon else []
        records = taken + [record for record in self.spooled() if record not in taken]
        return Run(done.returncode, done.stdout.decode("utf-8", "replace"), records)

    def carried(self) -> Path:
        """What the binary carries, laid out as `pylair test` does."""
        directory = self.home / "carried"
        directory.mkdir(exist_ok=True)
        script = directory / "_pylair_pytest.py"
        script.write_text((PROBE / "bootstrap" / "_pylair_pytest.py").read_text())
        (directory / "probe.json").write_text(json.dumps({"sources": sources()}))
        return script

    def spool_files(self) -> list[Path]:
        return sorted((self.home / "state" / "spool").glob("*"))

    def spooled(self) -> list[dict[str, Any]]:
        """What is in the spool, without a last line that is cut off."""
        lines = [line for path in self.spool_files() for line in path.read_bytes().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def copies(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.home / "runtime" / "failures").glob("*.json"))]

    def visit(self, record: dict[str, Any]) -> Visit:
        """The frozen copy of a failure."""
        occurrence, pid = record["failure"]["occurrence"], record["failure"]["frozen"]["pid"]
        found = wait_for(lambda: [entry for entry in self.copies() if entry["occurrence"] == occurrence], f"a copy of {record['nodeid']}")
        assert found[0]["pid"] == pid
        return Visit(found[0]["endpoint"])

    def close(self) -> None:
        for entry in self.copies():
            if start_time(entry["pid"]) == entry["start"]:
                os.kill(entry["pid"], 9)
        if self.daemon is not None:
            self.daemon.close()
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.projects, ignore_errors=True)


def start_time(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


class Run:
    """A run that has ended: what it printed, and what it reported."""

    def __init__(self, status: int, output: str, records: list[dict[str, Any]]) -> None:
        self.status = status
        self.output = output
        self.records = list(records)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["ev"] == kind]

    @property
    def tests(self) -> list[dict[str, Any]]:
        return self.of("test")

    def test(self, name: str, **fields: Any) -> dict[str, Any]:
        """The one record of a test, by the end of its node id."""
        found = [
            record
            for record in self.tests
            if record["nodeid"].endswith(name) and all(record.get(key) == value for key, value in fields.items())
        ]
        assert len(found) == 1, f"{len(found)} records of {name} with {fields} in {self.outcomes()}\n{self.output[-3000:]}"
        return found[0]

    def failure(self, name: str, **fields: Any) -> dict[str, Any]:
        return self.test(name, **fields)["failure"]

    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(record["nodeid"].rpartition("::")[2], record["phase"], record["outcome"]) for record in self.tests]

    def closing(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("pylair: ")]


def fields_of(name: str) -> dict[str, bool]:
    """The fields of a record as crates/failures/src/record.rs names them, and whether each must be there."""
    text = (PROBE.parent.parent / "crates" / "failures" / "src" / "record.rs").read_text()
    body = re.search(rf"pub struct {name} \{{(.*?)\n\}}", text, re.S)
    assert body is not None, name
    found: dict[str, bool] = {}
    required, renamed = True, None
    for line in body.group(1).splitlines():
        line = line.strip()
        if line.startswith("#["):
            required = required and "default" not in line
            match = re.search(r'rename = "(\w+)"', line)
            renamed = match.group(1) if match else renamed
        elif line.startswith("pub "):
            field, _, kind = line[4:].partition(": ")
            found[renamed or field] = required and not kind.startswith("Option<")
            required, renamed = True, None
    return found
