"""One connection of an app's server: frames in, frames out, both bounded. Used by `serving`.

Reading, closing and what could not be sent at once are the I/O thread's; `send` may be called on any thread.
"""

from __future__ import annotations

import _socket
import errno
import time
from collections import deque
from typing import Any, Callable

from . import wire
from .plain_threads import allocate_lock

# A frame that began must go on, and what is sent must be taken, within so many seconds.
STALLED_SECONDS = 30.0
TOKEN_SECONDS = 5.0
# Who writes more than this waits until it is taken; and no more requests are read.
HIGH_WATER_BYTES = 4 << 20
MAX_TOKEN_BYTES = 4096
_CHUNK = 1 << 16
_BIG_CHUNK = 1 << 20

_AGAIN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class Connection:
    def __init__(self, sock: _socket.socket, trusted: bool, wake: Callable[[], None]) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.trusted = trusted
        self.read_by: float | None = None if trusted else time.monotonic() + TOKEN_SECONDS
        self.write_by: float | None = None
        # What the selector is told to watch for.
        self.mask = 0
        self.closed = False
        self._broken = False
        self._wake = wake
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None
        self._body = 0
        self._outbox: deque[memoryview] = deque()
        self._queued = 0
        self._lock = allocate_lock()
        # Held while there is no room for more.
        self._room = allocate_lock()

    def read(self) -> bool:
        """Takes in what has come. False at the end of the stream."""
        wanted = self._missing()
        try:
            data = self.sock.recv(min(max(wanted, _CHUNK), _BIG_CHUNK))
        except OSError as error:
            return error.errno in _AGAIN
        if not data:
            return False
        self._buffer += data
        return True

    def next_frame(self) -> tuple[dict[str, Any], bytes] | None:
        """The next whole frame of what was read. Raises `wire.Garbage`."""
        if self._header is None:
            if len(self._buffer) < 4:
                return self._no_frame()
            size = int.from_bytes(self._buffer[:4], "big")
            if size > (wire.MAX_HEADER_BYTES if self.trusted else MAX_TOKEN_BYTES):
                raise wire.Garbage(f"a header of {size} bytes is too long")
            if len(self._buffer) < 4 + size:
                return self._no_frame()
            header = wire.decode_header(bytes(self._buffer[4 : 4 + size]))
            length = wire.blob_length(header)
            if length and not self.trusted:
                raise wire.Garbage("a token has no blob")
            del self._buffer[: 4 + size]
            self._header, self._body = header, length
        if len(self._buffer) < self._body:
            return self._no_frame()
        header, self._header = self._header, None
        blob = bytes(self._buffer[: self._body])
        del self._buffer[: self._body]
        return header, blob

    def _missing(self) -> int:
        return self._body - len(self._buffer) if self._header is not None else 0

    def _no_frame(self) -> None:
        if self.trusted:
            waiting = self._buffer or self._header is not None
            self.read_by = time.monotonic() + STALLED_SECONDS if waiting else None
        return None

    def send(self, header: dict[str, Any], blob: bytes = b"", may_wait: bool = True) -> None:
        """Sends a frame, or keeps it until it can be sent; waits while too much is kept. What the peer no longer takes is lost."""
        data = memoryview(wire.encode_frame(header, blob))
        while True:
            with self._lock:
                if self.closed or self._broken:
                    return
                if self._queued <= HIGH_WATER_BYTES or not may_wait:
                    self._send_or_keep(data)
                    break
                self._room.acquire(False)
            if self._room.acquire(True, STALLED_SECONDS + 5):
                self._room.release()
            else:
                # The I/O thread would have ended the connection by now.
                return
        if self._queued or self._broken:
            self._wake()

    def _send_or_keep(self, data: memoryview) -> None:
        done = 0 if self._queued else self._write(data)
        if done < len(data):
            self._outbox.append(data[done:])
            self._queued += len(data) - done
            if self.write_by is None:
                self.write_by = time.monotonic() + STALLED_SECONDS

    def _write(self, data: memoryview) -> int:
        try:
            # Some programs let SIGPIPE end them.
            return self.sock.send(data, _socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno not in _AGAIN:
                self._broken = True
            return 0

    def flush(self) -> None:
        """Sends what was kept, as far as the peer takes it."""
        with self._lock:
            while self._outbox and not self._broken:
                done = self._write(self._outbox[0])
                if not done:
                    break
                self._queued -= done
                self.write_by = time.monotonic() + STALLED_SECONDS
                rest = self._outbox[0][done:]
                if rest:
                    self._outbox[0] = rest
                else:
                    self._outbox.popleft()
            if not self._outbox:
                self.write_by = None
            if self._queued <= HIGH_WATER_BYTES // 2:
                self._make_room()

    def _make_room(self) -> None:
        if self._room.locked():
            try:
                self._room.release()
            except RuntimeError:
                pass

    @property
    def is_over(self) -> bool:
        return self._broken

    @property
    def has_more_to_send(self) -> bool:
        return bool(self._outbox)

    @property
    def takes_requests(self) -> bool:
        return self._queued <= HIGH_WATER_BYTES

    def deadline(self) -> float | None:
        """When the connection is over unless something happens."""
        if self.read_by is None or self.write_by is None:
            return self.read_by if self.write_by is None else self.write_by
        return min(self.read_by, self.write_by)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._outbox.clear()
            self._queued = 0
            self._make_room()
            self.sock.close()

    def abandon(self, close: bool) -> None:
        """Forgets the connection without a word to the peer, in the child of a fork or when the descriptor is no longer ours."""
        self.closed = True
        if close:
            self.sock.close()
        else:
            self.sock.detach()
