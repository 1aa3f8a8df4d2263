"""Keeps the stacks of a test process that crashes, or that pytest-timeout ends: in memory that outlives it. Called by reporting.py and
witnessing.py.

faulthandler writes the stacks there instead of to the terminal; whoever reads them when the process has ended shows them.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any

from .real import real

MAX_BYTES = 256 << 10


class Stacks:
    """The memory, by a descriptor that children do not get."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)

    @classmethod
    def given(cls, named: str) -> Stacks | None:
        """As `pylair test` gave it to this process."""
        return cls(int(named)) if named.isdigit() else None

    @classmethod
    def of_path(cls, path: Any) -> Stacks | None:
        """As the process that started an xdist worker has it."""
        try:
            return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC)) if type(path) is str else None
        except OSError:
            return None

    @classmethod
    def made(cls) -> Stacks | None:
        try:
            return cls(os.memfd_create("pylair-stacks"))
        except (AttributeError, OSError):
            return None

    @property
    def path(self) -> str:
        return f"/proc/{real.getpid()}/fd/{self._fd}"

    def listen(self) -> None:
        """Has stacks written here, if pytest wants them at all."""
        if faulthandler.is_enabled():
            faulthandler.enable(file=self._fd)
        timeouts = sys.modules.get("pytest_timeout")
        dump = getattr(timeouts, "dump_stacks", None)
        if callable(dump):

            def dump_stacks(*arguments: Any, **named: Any) -> Any:
                # It ends the process when they are printed.
                faulthandler.dump_traceback(file=self._fd, all_threads=True)
                return dump(*arguments, **named)

            timeouts.dump_stacks = dump_stacks  # type: ignore[union-attr]

    def read(self) -> str:
        try:
            size = os.fstat(self._fd).st_size
            return os.pread(self._fd, MAX_BYTES, max(0, size - MAX_BYTES)).decode("utf-8", "replace")
        except OSError:
            return ""
