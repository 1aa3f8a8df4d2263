"""The ways in: lines on the stdio of a bridge, requests over HTTP, and commands; each can be left in the middle."""

from __future__ import annotations

import http.client
import json
import os
import queue
import select
import socket
import subprocess
import threading
from typing import Any, NamedTuple

from home import BINARY, Home
from line import Client
from words import Wrong

# Nothing takes this long, also beside a heavy load; it is for what hangs.
PATIENCE = float(os.environ.get("PYLAIR_CAMPAIGN_PATIENCE", "150"))
# How long a cell is waited for before it is answered as running.
WAIT_S = PATIENCE - 10


class Answer(NamedTuple):
    """What came back: the structured answer of a tool, or why there is none."""

    data: dict[str, Any]
    # The kind of a failure; empty when the tool did what it was asked for.
    kind: str = ""
    # All words of a failure.
    words: str = ""


class Gone(Exception):
    """The door closed before there was an answer."""


class Line(Client):
    """A client on the stdio of a bridge that outlives daemons, and may be cut in the middle of anything."""

    def __init__(self, home: Home) -> None:
        self.ended = threading.Event()
        # Lines that were no message: the rest of one that a dead daemon had begun.
        self.torn = 0
        # Requests that were answered, and answers to them that came again.
        self.answered: set[int] = set()
        self.twice: list[bytes] = []
        self.unwanted = os.pipe()
        super().__init__(home)

    def read(self) -> None:
        """Until the bridge has closed its end or nobody wants to read any more."""
        assert self.process.stdout is not None
        source, rest = self.process.stdout.fileno(), b""
        while True:
            ready, _, _ = select.select([source, self.unwanted[0]], [], [])
            if self.unwanted[0] in ready:
                break
            piece = os.read(source, 1 << 16)
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self.take(line)
        self.process.stdout.close()
        self.ended.set()
        for waiting in list(self.answers.values()):
            waiting.put({})

    def take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.torn += 1
            return
        waiting = self.answers.get(message.get("id"))
        if waiting is not None:
            waiting.put(message)
        elif "method" not in message and message.get("id") in self.answered:
            self.twice.append(line)

    def begin(self, tool: str, **arguments: Any) -> int:
        if tool == "execute":
            arguments.setdefault("wait_s", WAIT_S)
        try:
            return self.send("tools/call", {"name": tool, "arguments": arguments})
        except OSError:
            raise Gone("the bridge has ended") from None

    def is_answered(self, request: int) -> bool:
        return not self.answers[request].empty()

    def answer(self, request: int, patience: float = PATIENCE) -> Answer:
        if self.ended.is_set() and self.answers[request].empty():
            raise Gone("the bridge has ended")
        try:
            message = self.answers[request].get(timeout=patience)
        except queue.Empty:
            raise Wrong(f"no answer to request {request} within {patience:.0f} s") from None
        if not message:
            raise Gone("the bridge has ended")
        self.answered.add(request)
        del self.answers[request]
        if "error" in message:
            error = message["error"]
            kind = (error.get("data") or {}).get("kind", "rpc")
            return Answer({}, kind, json.dumps(error, ensure_ascii=False))
        result = message["result"]
        data = result.get("structuredContent") or {}
        if result.get("isError"):
            return Answer(data, data.get("kind", "unknown"), json.dumps(data, ensure_ascii=False))
        return Answer(data)

    def ask(self, tool: str, **arguments: Any) -> Answer:
        return self.answer(self.begin(tool, **arguments))

    def must(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = self.ask(tool, **arguments)
        if answer.kind:
            raise Wrong(f"{tool} {arguments} was answered with {answer.words}")
        return answer.data

    def close_output(self) -> None:
        """Nobody reads from now on."""
        os.write(self.unwanted[1], b"x")
        self.ended.wait(PATIENCE)

    def go(self) -> None:
        """Leaves without waiting for the bridge, which may have something left to say."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
        except OSError:
            pass

    def leave(self) -> None:
        self.go()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)
            raise Wrong("a bridge does not end with its input") from None
        finally:
            self.ended.wait(PATIENCE)
            for descriptor in self.unwanted:
                os.close(descriptor)


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.path)


class Web:
    """The HTTP door of a daemon: over TCP with the token if it serves, else its Unix socket."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def connection(self) -> http.client.HTTPConnection:
        if self.home.url:
            address = self.home.url.split("/")[2]
            return http.client.HTTPConnection(address, timeout=PATIENCE)
        return UnixConnection(str(self.home.path / "runtime/daemon.sock"))

    def fields(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.home.token}"} if self.home.url else {}

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, bytes]:
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        fields = {**self.fields(), **({"Content-Type": kind} if raw is not None else {})}
        connection = self.connection()
        try:
            connection.request(method, path, raw, fields)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def execute(self, target: str, code: str, **more: Any) -> Answer:
        """The report of a cell, or why there is none."""
        status, body = self.request("POST", "/api/execute", {"target": target, "code": code, **more})
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        if status != 200:
            failure = lines[0] if lines else {}
            return Answer(failure, failure.get("kind", str(status)), body.decode(errors="replace"))
        reports = [line["report"] for line in lines if "report" in line]
        if not reports:
            raise Gone("the answer has no report")
        return Answer(reports[0])

    def raw(self, method: str, path: str, body: bytes, kind: str = "application/json") -> tuple[socket.socket, bytes]:
        """A connected socket and the bytes of a request, to be sent as far as one likes."""
        connection = self.connection()
        connection.connect()
        fields = {"Host": connection.host if not self.home.url else self.home.url.split("/")[2], **self.fields()}
        fields.update({"Content-Type": kind, "Content-Length": str(len(body))})
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return connection.sock, head.encode() + b"\r\n" + body


def command(home: Home, *arguments: str) -> subprocess.Popen[str]:
    """A command of the binary that may be left in the middle."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([BINARY, *arguments], env=home.env, text=True, **streams)  # type: ignore[call-overload, no-any-return]
