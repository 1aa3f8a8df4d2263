"""Gives back the locks that code took in a copy, so that nobody waits for a copy longer than for one call. Runs in frozen failures.

A copy has no lock of its original: those of `fcntl` are not inherited, and those of `flock` were left with the descriptors. But a
transaction that is begun in a copy and never ended would keep the original from committing. Programs that the call started and that
still hold a lock are killed: nobody else can take it from them.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
from typing import Any

from .descriptors import read_proc
from .real import real

_LOCK = b"\nlock:"
# Locks of open file descriptions, which no other call releases. Python knows the name from 3.9 on.
_F_OFD_SETLK = 37
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0)


def release() -> int:
    """Releases all locks of this process and of those below it. Returns how many files were locked."""
    locked = len(_locked("self"))
    for pid in _processes_below():
        held = len(_locked(pid))
        if held:
            locked += held
            _kill(int(pid))
    if _locked("self"):
        # Properly if possible: a connection that believes in a lock reads what others are changing.
        _end_transactions()
    for fd in _locked("self"):
        for unlock in (_unlock, _unlock_flock, _unlock_description):
            try:
                unlock(fd)
            except (OSError, ValueError):
                continue
    return locked


def has_company() -> bool:
    """Whether anything that calls started goes on: a program, or a thread that `threading` knows. Ours it does not."""
    threading: Any = sys.modules.get("threading")
    try:
        threads = len(threading._active) if threading is not None else 0
    except Exception:
        # The program replaced it by something else.
        threads = 2
    return threads > 1 or bool(_processes_below())


def _unlock(fd: int) -> None:
    fcntl.lockf(fd, fcntl.LOCK_UN)


def _unlock_flock(fd: int) -> None:
    real.flock(fd, fcntl.LOCK_UN)


def _unlock_description(fd: int) -> None:
    real.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)


def _locked(process: str) -> list[int]:
    """The descriptors of a process whose files it has locked."""
    try:
        names = real.listdir(f"/proc/{process}/fd")
    except OSError:
        return []
    return [int(name) for name in names if _LOCK in read_proc(f"/proc/{process}/fdinfo/{name}")]


def _processes_below() -> list[str]:
    """What this process has started, with all that comes of it. A copy adopts processes that lose their parent."""
    found: list[str] = []
    parents = ["self"]
    while parents:
        parent = parents.pop()
        try:
            tasks = real.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        children = [name.decode() for task in tasks for name in read_proc(f"/proc/{parent}/task/{task}/children").split()]
        found += children
        parents += children
    return found


def _kill(pid: int) -> None:
    try:
        real.kill(pid, signal.SIGKILL)
        # Not reaped: the code that started it may wait for it.
        real.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except OSError:
        # It has ended, or is the child of another process.
        pass


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
