"""The file in which a test run keeps what the daemon has not confirmed. Called by delivery.py.

Every record is appended before the next test begins, because that may end the process; what was written stays then, without a sync. The
file is locked as long as the run goes on: a daemon takes in those that nobody has locked. Nothing here raises.
"""

from __future__ import annotations

import os
from fcntl import LOCK_EX, LOCK_NB

from . import descriptors
from .real import real

MAX_BYTES = 256 << 20


class Spool:
    """`error` says why the newest records are not kept, if they are not."""

    def __init__(self, directory: str, run: str) -> None:
        self.error: str | None = None
        self._directory = directory
        self._path = os.path.join(directory, f"{run}.jsonl")
        self._fd = -1
        self._file = (0, 0)
        # What every file of this run begins with, so that it can be taken in alone.
        self._first = b""
        self._size = 0

    def add(self, line: bytes) -> None:
        """Keeps lines, whatever happens to this process from now on."""
        if not self._first:
            self._first = line
        elif not self._size:
            line = self._first + line
        if self._size + len(line) > MAX_BYTES:
            self.error = f"they are more than {MAX_BYTES >> 20} MB"
            return
        try:
            if not self._is_open():
                self._open()
            self._size += len(line)
            rest = memoryview(line)
            while len(rest):
                rest = rest[real.write(self._fd, rest) :]
            self.error = None
        except OSError as error:
            self.error = f"{self._directory}: {error.strerror}"

    def confirmed(self) -> None:
        """The daemon has all of it."""
        if not self._size:
            return
        try:
            if self._is_open():
                real.ftruncate(self._fd, 0)
            self._size = 0
            self.error = None
        except OSError:
            # It will be taken in once more, which changes nothing.
            pass

    def close(self) -> None:
        """Leaves the file to whoever takes it in, or removes it if there is nothing in it."""
        try:
            if self._is_open():
                if not self._size:
                    real.unlink(self._path)
                real.close(self._fd)
        except OSError:
            pass
        self._fd = -1

    def _is_open(self) -> bool:
        """Whether the descriptor is still ours: a test may close all there are, and open its own."""
        if self._fd < 0:
            return False
        try:
            status = real.fstat(self._fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _open(self) -> None:
        real.makedirs(self._directory, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            fd = descriptors.move_high(real.open(self._path, flags, 0o600))
            try:
                real.flock(fd, LOCK_EX | LOCK_NB)
            except OSError:
                # A daemon reads it, or a child of a test has it open: it may be read more than once.
                pass
            status = real.fstat(fd)
            if status.st_nlink:
                break
            # It was taken in between the two steps.
            real.close(fd)
        self._fd, self._file = fd, (status.st_dev, status.st_ino)
