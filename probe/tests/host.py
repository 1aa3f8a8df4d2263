"""Plays the daemon for the probe's tests: starts templates, forks workers, speaks the wire, interrupts, freezes and resumes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

PROBE = Path(__file__).parent.parent / "pylair"
TIMEOUT_SECONDS = 30.0
FORCE_SIGNAL = signal.SIGRTMIN + 1
PEEK_SIGNAL = signal.SIGRTMIN + 2

# Stands in for the real keeper, as the script that `bash __keeper FD` runs: lives until the daemon's end is closed.
_KEEPER = 'while read -r -u "$1" line; do :; done\n'


def last_line(name: str) -> str:
    return (PROBE / "bootstrap" / name).read_text().rstrip("\n").rsplit("\n", 1)[-1]


def sources() -> dict[str, str]:
    return {"" if path.stem == "__init__" else path.stem: path.read_text() for path in sorted(PROBE.glob("*.py"))}


def bootstrap(entry: str, config: dict[str, Any], mark: bool = False) -> bytes:
    payload = json.dumps({"sources": sources(), "entry": entry, "config": config}).encode()
    line = last_line("stage1.py").replace("@SIZE@", str(len(payload))).replace("@MARK@", str(int(mark)))
    return line.encode() + b"\n" + payload


def control_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(TIMEOUT_SECONDS)
    return ours, theirs


def send(control: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))] if descriptors else []
    control.sendmsg([json.dumps(message).encode()], rights)


class Datagram:
    def __init__(self, control: socket.socket) -> None:
        data, ancillary, _, _ = control.recvmsg(1 << 16, socket.CMSG_SPACE(64) + socket.CMSG_SPACE(12))
        if not data:
            raise EOFError("the control socket was closed")
        self.message: dict[str, Any] = json.loads(data)
        self.descriptors: list[int] = []
        self.pid: int | None = None
        for _level, kind, payload in ancillary:
            if kind == socket.SCM_RIGHTS:
                self.descriptors += struct.unpack(f"{len(payload) // 4}i", payload)
            elif kind == socket.SCM_CREDENTIALS:
                self.pid = struct.unpack("3i", payload)[0]


class Template:
    """A real template process."""

    def __init__(self, python: str, env: dict[str, str] | None = None, **config: Any) -> None:
        self.directory = tempfile.TemporaryDirectory()
        Path(self.directory.name, "__keeper").write_text(_KEEPER)
        self.control, theirs = control_pair()
        program = os.open("/bin/bash", os.O_RDONLY)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in (theirs.fileno(), program)]
        self.log = tempfile.TemporaryFile()
        stdin = tempfile.TemporaryFile()
        stdin.write(bootstrap("template", {"preload": [], "executable": python, "python_path": [], **config}))
        stdin.seek(0)
        self.process = subprocess.Popen(
            [python, "-S", "-c", last_line("stage0.py")],
            stdin=stdin,
            stdout=self.log,
            stderr=self.log,
            cwd=self.directory.name,
            env={"PATH": os.defpath} if env is None else env,
            pass_fds=(3, 4),
            preexec_fn=lambda: [os.dup2(fd, number) for number, fd in enumerate(high, 3)],
        )
        for fd in (*high, program):
            os.close(fd)
        theirs.close()
        stdin.close()
        self.python = python
        self._forks = 0
        try:
            self.hello = Datagram(self.control).message
        except (EOFError, OSError):
            self.process.wait(TIMEOUT_SECONDS)
            raise AssertionError(f"the template did not start: {self.read_log()}") from None

    def read_log(self) -> str:
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")

    def fork(self, descriptors: tuple[int, ...], confine: dict[str, Any] | None = None) -> dict[str, Any]:
        self._forks += 1
        send(self.control, {"op": "fork", "fork": self._forks, "confine": confine}, descriptors)
        while True:
            message = Datagram(self.control).message
            if "exit" not in message:
                return message

    def close(self) -> None:
        self.control.close()
        self.process.wait(TIMEOUT_SECONDS)
        self.log.close()
        self.directory.cleanup()


class Frozen:
    """The daemon's way to a frozen copy."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.control = socket.socket(fileno=fd)
        self.control.settimeout(TIMEOUT_SECONDS)
        hello = Datagram(self.control)
        assert hello.message == {"frozen": name}
        assert hello.pid is not None
        self.pid = hello.pid

    def drop(self) -> None:
        self.control.close()


class Died(Exception):
    """The worker ended instead of answering."""


class Shown:
    """A display frame with its parts, and what had been printed when it came."""

    def __init__(self, frame: dict[str, Any], blob: bytes, before: str) -> None:
        assert frame["ev"] == "display", frame
        self.title = frame.get("title")
        self.before = before
        self.parts: dict[str, bytes] = {}
        self.all: list[tuple[str, bytes]] = []
        self.inline = None
        at = 0
        for part in frame["parts"]:
            data = blob[at : at + part["bytes"]]
            assert len(data) == part["bytes"]
            at += len(data)
            self.all.append((part["mime"], data))
            self.parts.setdefault(part["mime"], data)
            if part.get("inline"):
                assert self.inline is None, "two parts are inline"
                self.inline = part["mime"], data
        assert at == len(blob)

    @property
    def mimes(self) -> list[str]:
        return [mime for mime, _ in self.all]


class Session:
    """A worker, seen from the daemon."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self._connect()
        answer = self._fork(self._passed)
        self._let_go()
        assert "forked" in answer, answer
        hello = Datagram(self.control)
        assert (hello.message.get("hello"), hello.message.get("wire")) == (1, 1), hello.message
        assert hello.pid is not None
        self.pid = hello.pid

    def _connect(self) -> None:
        """Makes both ends of everything; the worker's are to be passed."""
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.dump, dump = os.pipe()
        self.control, self._theirs = control_pair()
        self._passed = (requests, replies, stdout, stderr, dump, self._theirs.fileno())
        self._id = 0
        self._cell = 0
        self._peeks = 0
        self._inbox = b""
        self.output: list[tuple[int, bytes]] = []
        self.blob = b""

    def _let_go(self) -> None:
        for fd in self._passed[:5]:
            os.close(fd)
        self._theirs.close()

    def _fork(self, passed: tuple[int, ...]) -> dict[str, Any]:
        self.keeper, keeper = control_pair()
        answer = self.template.fork((*passed, keeper.fileno()))
        keeper.close()
        return answer

    def request(self, op: str, blob: bytes = b"", **fields: Any) -> int:
        self._id += 1
        header = {"ch": 1, "id": self._id, "op": op, **fields}
        if blob:
            header["blob"] = len(blob)
        text = json.dumps(header).encode()
        rest = memoryview(len(text).to_bytes(4, "big") + text + blob)
        while rest:
            rest = rest[os.write(self.requests, rest) :]
        return self._id

    def reply(self) -> dict[str, Any]:
        """The next frame. Output that arrives before it is collected in `output`."""
        frame = self.next_frame()
        self.drain()
        return frame

    def next_frame(self) -> dict[str, Any]:
        """As `reply`, but reads no output that came after the frame."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            frame = self._take_frame()
            if frame is not None:
                return frame
            self._poll(deadline)

    def wait_for_replies(self) -> None:
        """Until a frame has begun, without reading any of it."""
        assert select.select([self.replies], [], [], TIMEOUT_SECONDS)[0], "the worker sent nothing"

    def finish(self) -> tuple[dict[str, Any], list[Shown]]:
        """The `done` of the running cell, and what it showed before it."""
        shown = []
        while True:
            frame = self.next_frame()
            if frame["ev"] == "done":
                self.drain()
                return frame, shown
            shown.append(Shown(frame, self.blob, self.text(1) + self.text(2)))

    def ask(self, op: str, blob: bytes = b"", **fields: Any) -> dict[str, Any]:
        number = self.request(op, blob, **fields)
        done = self.reply()
        assert (done["ch"], done["id"], done["ev"]) == (1, number, "done"), done
        return done

    def begin(self, code: str) -> None:
        self._cell += 1
        self.output = []
        self.request("execute", code.encode(), cell=self._cell)

    def execute(self, code: str) -> dict[str, Any]:
        self.begin(code)
        return self.reply()

    def result(self, code: str) -> str:
        done = self.execute(code)
        assert done["outcome"] == "ok", done
        return done["result"]

    def start(self, **fields: Any) -> dict[str, Any]:
        base = {"cwd": "/", "env": {"PATH": os.defpath}, "executable": self.template.python, "site": True, "python_path": []}
        return self.ask("start", **{**base, **fields})

    def text(self, stream: int = 1) -> str:
        return b"".join(data for number, data in self.output if number == stream).decode()

    def wait_for_output(self, marker: bytes) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while marker not in b"".join(data for _, data in self.output):
            self._poll(deadline)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def look(self, op: str, blob: bytes = b"", **fields: Any) -> dict[str, Any]:
        """The answer to a request that looks; if it was refused, the refusal."""
        done = self.ask(op, blob, **fields)
        return done if "refused" in done else json.loads(self.blob)

    def peek(self, op: str, **fields: Any) -> dict[str, Any]:
        """The same in the middle of a cell: the whole datagram."""
        self._peeks += 1
        send(self.control, {"op": "peek", "peek": self._peeks, "request": {"op": op, **fields}})
        self.signal(PEEK_SIGNAL)
        message = Datagram(self.control).message
        assert message["peek"] == self._peeks, message
        return message

    def read_dump(self, marker: bytes) -> str:
        data = b""
        while marker not in data:
            assert select.select([self.dump], [], [], TIMEOUT_SECONDS)[0], data
            data += os.read(self.dump, 65536)
        return data.decode()

    def checkpoint(self, name: str = "c1", **fields: Any) -> Frozen:
        done = self.ask("checkpoint", checkpoint=name, **fields)
        assert done["made"], done
        self.fork_us = done["fork_us"]
        datagram = Datagram(self.control)
        assert datagram.message == {"checkpoint": name}
        return Frozen(name, datagram.descriptors[0])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Until the worker is gone: its replies pipe ends."""
        while select.select([self.replies], [], [], TIMEOUT_SECONDS)[0]:
            if not os.read(self.replies, 65536):
                return
        raise AssertionError("the worker did not end")

    def resume(self, frozen: Frozen) -> list[str]:
        """Goes on in a frozen copy. The worker must have ended. Returns what was lost."""
        for fd in (self.requests, self.replies):
            os.close(fd)
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        self.control.close()
        self.control, control = control_pair()
        send(frozen.control, {"op": "resume"}, (requests, replies, control.fileno()))
        os.close(requests)
        os.close(replies)
        control.close()
        answer = Datagram(self.control)
        assert answer.message["resumed"] == frozen.name
        self.pid = answer.pid
        self._inbox = b""
        return answer.message["lost"]

    def branch(self, frozen: Frozen) -> tuple[Session, list[str]]:
        """Another session out of a frozen copy, and what it lacks."""
        other = object.__new__(Session)
        other.template = self.template
        other._connect()
        send(frozen.control, {"op": "branch"}, other._passed)
        other._let_go()
        answer = Datagram(other.control)
        assert answer.message["resumed"] == frozen.name
        other.pid = answer.pid
        # Nobody keeps it; closing the session ends it.
        other.keeper, _ = control_pair()
        return other, answer.message["lost"]

    def rollback(self, frozen: Frozen) -> list[str]:
        self.kill()
        return self.resume(frozen)

    def drain(self) -> None:
        for number, fd in ((1, self.stdout), (2, self.stderr)):
            while select.select([fd], [], [], 0)[0]:
                data = os.read(fd, 65536)
                if not data:
                    break
                self.output.append((number, data))

    def close(self) -> None:
        try:
            # Whatever its cell does; the stand-in for the keeper does not.
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for fd in (self.requests, self.replies, self.stdout, self.stderr, self.dump):
            os.close(fd)
        self.control.close()
        self.keeper.close()

    def _poll(self, deadline: float) -> None:
        waiting = select.poll()
        for fd in (self.stdout, self.stderr, self.replies):
            waiting.register(fd, select.POLLIN)
        ready = [fd for fd, _ in waiting.poll(max(0, (deadline - time.monotonic()) * 1000))]
        if not ready:
            raise AssertionError(f"the worker did not answer; output so far: {self.output!r}")
        for number, fd in ((1, self.stdout), (2, self.stderr)):
            if fd in ready:
                data = os.read(fd, 65536)
                if data:
                    self.output.append((number, data))
        if self.replies in ready:
            data = os.read(self.replies, 65536)
            if not data:
                raise Died
            self._inbox += data

    def _take_frame(self) -> dict[str, Any] | None:
        if len(self._inbox) < 4:
            return None
        body = 4 + int.from_bytes(self._inbox[:4], "big")
        if len(self._inbox) < body:
            return None
        header = json.loads(self._inbox[4:body])
        end = body + header.get("blob", 0)
        if len(self._inbox) < end:
            return None
        self.blob = self._inbox[body:end]
        self._inbox = self._inbox[end:]
        return header


def run(session: Session, code: str) -> tuple[dict[str, Any], list[Shown]]:
    """A cell that must not fail: its answer and what it showed."""
    session.begin(textwrap.dedent(code))
    done, shown = session.finish()
    assert done["outcome"] == "ok", done
    return done, shown
