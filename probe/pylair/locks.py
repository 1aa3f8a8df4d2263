"""Gives back the locks that code took in a copy, so that nobody waits for a copy longer than for one call. Runs in frozen failures.

A copy has no lock of its original: those of `fcntl` are not inherited, and those of `flock` were left with the descriptors. But a
transaction that is begun in a copy and never ended would keep the original from committing.
"""

from __future__ import annotations

import fcntl
import sys
from typing import Any

from .descriptors import read_proc
from .real import real

_LOCK = b"\nlock:"


def release() -> int:
    """Releases all locks of this process. Returns how many files were locked."""
    locked = _locked()
    if not locked:
        return 0
    # Properly if possible: a connection that believes in a lock reads what others are changing.
    _end_transactions()
    for fd in _locked():
        for unlock in (fcntl.lockf, fcntl.flock):
            try:
                unlock(fd, fcntl.LOCK_UN)
            except (OSError, ValueError):
                continue
    return len(locked)


def _locked() -> list[int]:
    return [int(name) for name in real.listdir("/proc/self/fd") if _LOCK in read_proc(f"/proc/self/fdinfo/{name}")]


def _end_transactions() -> None:
    sqlite3: Any = sys.modules.get("sqlite3")
    connection: Any = getattr(sqlite3, "Connection", None)
    if not isinstance(connection, type):
        return
    import gc

    # What exists was kept from the collector, and with it from this list.
    gc.unfreeze()
    try:
        found = [thing for thing in gc.get_objects() if connection in type(thing).__mro__]
    finally:
        gc.freeze()
    for one in found:
        try:
            connection.rollback(one)
        except Exception:
            # It was closed, or belongs to another thread.
            continue
