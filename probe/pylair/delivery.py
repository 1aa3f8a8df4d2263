"""Brings the records of a test run to the daemon. Called by reporting.py, on its thread.

Speaks just enough HTTP/1.1 over the daemon's Unix socket: one request under way, whose answer is read when there is something else to do
anyway, so that the tests need not wait for a disk. Until the daemon has confirmed it, everything is in the spool too: a test may end the
process. Once the daemon could not be reached, it stays there for the next. Nothing here raises.
"""

from __future__ import annotations

import _socket
import os
import select
from typing import Any

from . import descriptors, listening, registry
from .real import real
from .spool import Spool

BATCH_BYTES = 256 << 10
BATCH_SECONDS = 1.0
CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 5.0
MAX_REQUEST_BYTES = 1 << 20
# Who has so much waiting waits himself.
_MAX_WAITING_BYTES = 8 << 20
_MAX_ANSWER_BYTES = 16 << 20


class _Lost(Exception):
    """The daemon is not there, or does not answer as it should."""


class Delivery:
    """`freeze` and `closing` are what the daemon has answered so far: how many failures may be frozen, and what became of an ended run."""

    def __init__(self, run: str, env: dict[str, str]) -> None:
        self.closing: dict[str, Any] = {}
        self.freeze = 0
        # Whether the daemon has answered, and no longer does.
        self.answered = self.spools = False
        self.spool_error: str | None = None
        self._run = run
        self._socket_path = os.path.join(registry.runtime_directory(env, os.getuid()), "daemon.sock")
        self._spool = Spool(os.path.join(registry.state_directory(env), "spool"), run)
        self._pid = real.getpid()
        self._socket: Any = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._flushed = real.monotonic()
        # The lines of the request that is under way, what of it is still to be sent, and what of the answer has come.
        self._under_way: list[bytes] = []
        self._rest: Any = None
        self._answer = bytearray()
        self._asked = 0.0

    def add(self, line: bytes, at_once: bool = False) -> None:
        """Takes a line. It is kept now, and sent with others when a second has passed or there are many, or at once."""
        self._spool.add(line)
        if self.spools:
            self.spool_error = self._spool.error
            return
        self._waiting.append(line)
        self._size += len(line)
        if at_once or self._size >= BATCH_BYTES or real.monotonic() - self._flushed >= BATCH_SECONDS:
            self.flush()

    def flush(self, seconds: float = 0.0) -> None:
        """Sends what waits, as far as that goes without waiting longer than `seconds` for answers."""
        if real.getpid() != self._pid:
            # A test forked, and this is its child.
            return
        if self.spools:
            return
        self._flushed = real.monotonic()
        try:
            self._send(max(seconds, ANSWER_SECONDS if self._size > _MAX_WAITING_BYTES else 0.0))
        except (OSError, ValueError, _Lost):
            self._give_up()

    def wait_for_first_answer(self, seconds: float) -> None:
        """Waits until the daemon has answered once, which says whether failures may be frozen."""
        if not self.answered and not self.spools:
            self.flush(seconds)

    def close(self) -> None:
        """The run has ended."""
        if real.getpid() == self._pid:
            self._hang_up()
            self._spool.close()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, seconds: float) -> None:
        deadline = real.monotonic() + seconds
        while True:
            if not self._under_way:
                if not self._waiting:
                    return
                self._begin_request()
            events = self._exchange()
            if not self._under_way:
                continue
            now = real.monotonic()
            if now - self._asked > ANSWER_SECONDS:
                raise _Lost
            if now >= deadline:
                return
            poll = real.poll()
            poll.register(self._socket.fileno(), events)
            poll.poll(max(1, int((deadline - now) * 1000)))

    def _begin_request(self) -> None:
        if self._socket is None:
            self._socket = self._connect()
        count = size = 0
        for line in self._waiting:
            if count and size + len(line) > MAX_REQUEST_BYTES:
                break
            count += 1
            size += len(line)
        self._under_way, self._waiting = self._waiting[:count], self._waiting[count:]
        self._size -= size
        head = (
            f"POST /api/runs/{self._run}/records HTTP/1.1\r\nHost: pylair\r\n"
            f"Content-Type: application/x-ndjson\r\nContent-Length: {size}\r\n\r\n"
        )
        self._rest = memoryview(b"".join([head.encode(), *self._under_way]))
        self._answer.clear()
        self._asked = real.monotonic()

    def _connect(self) -> Any:
        sock = real.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            sock.settimeout(CONNECT_SECONDS)
            sock.connect(self._socket_path)
            if not listening.is_own_user(sock):
                raise _Lost
            moved = real.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, fileno=descriptors.move_high(sock.detach()))
            moved.setblocking(False)
            return moved
        except BaseException:
            sock.close()
            raise

    def _exchange(self) -> int:
        """Sends and receives what is possible now. Returns what to wait for."""
        sock = self._socket
        try:
            while self._rest is not None and len(self._rest):
                self._rest = self._rest[sock.send(self._rest, _socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return select.POLLOUT | select.POLLIN
        try:
            while True:
                data = sock.recv(1 << 16)
                if not data or len(self._answer) > _MAX_ANSWER_BYTES:
                    raise _Lost
                self._answer += data
                if self._take_answer():
                    return 0
        except BlockingIOError:
            return select.POLLIN

    def _take_answer(self) -> bool:
        """Whether the answer is whole. Raises if it is not a good one."""
        head, found, body = bytes(self._answer).partition(b"\r\n\r\n")
        if not found:
            return False
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(fields.get("content-length", "-1"))
        if lines[0].split(" ")[1:2] != ["200"] or length < 0:
            raise _Lost
        if len(body) < length:
            return False
        answer = real.loads(body[:length].decode("utf-8"))
        if not isinstance(answer, dict):
            raise _Lost
        self.answered = True
        self._under_way, self._rest = [], None
        freeze, closing = answer.get("freeze"), answer.get("closing")
        self.freeze = freeze if type(freeze) is int else 0
        if isinstance(closing, dict):
            self.closing = closing
        if fields.get("connection", "").lower() == "close":
            self._hang_up()
        if not self._waiting:
            self._spool.confirmed()
        return True

    def _give_up(self) -> None:
        """From here on everything stays in the spool, also what the daemon was sent and did not confirm: it knows what it has."""
        self.spools = True
        self.spool_error = self._spool.error
        self.freeze = 0
        self._waiting, self._size = [], 0
        self._under_way, self._rest = [], None
        self._hang_up()
