"""Keeps frozen copies out of the program's sight when it waits for child processes. Runs in the worker.

A frozen copy is a child of the worker. `os.wait()` and its relatives that wait for any child would return it, or block for it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import descriptors

frozen: set[int] = set()

_wait, _waitpid, _wait3, _waitid = os.wait, os.waitpid, os.wait3, os.waitid
_wait4 = os.wait4
# Where the program finds them.
_OS = sys.modules["os"].__dict__


def install() -> None:
    """Replaces the functions that wait for any child. Called when the first frozen copy is made."""
    _OS.update(wait=wait, waitpid=waitpid, wait3=wait3, wait4=wait4, waitid=waitid)


def reap() -> None:
    """Takes leave of frozen copies that have ended."""
    for pid in list(frozen):
        try:
            if _waitpid(pid, os.WNOHANG)[0]:
                frozen.discard(pid)
        except ChildProcessError:
            frozen.discard(pid)


def wait_for(pid: int) -> int | None:
    """Waits for a child of our own, by the function the program cannot have replaced. Returns its wait status; None if the program
    ignores SIGCHLD, for the kernel then keeps none."""
    try:
        return _waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def _next_child(options: int) -> int | None:
    """The pid of a child of the program's that a wait would return, without reaping it; None if `WNOHANG` and there is none."""
    states = os.WEXITED
    if options & os.WUNTRACED:
        states |= os.WSTOPPED
    if options & os.WCONTINUED:
        states |= os.WCONTINUED
    while True:
        reap()
        if frozen:
            # The kernel would block for the frozen copies where the program has no child at all.
            others = descriptors.children_of_this_process()
            if others and not others.keys() - frozen:
                raise ChildProcessError(10, os.strerror(10))
        found = _waitid(os.P_ALL, 0, states | os.WNOWAIT | (options & os.WNOHANG))
        if found is None:
            return None
        if found.si_pid not in frozen:
            return found.si_pid


def wait() -> tuple[int, int]:
    return waitpid(-1, 0)


def waitpid(pid: int, options: int, /) -> tuple[int, int]:
    if pid != -1 or not frozen:
        return _waitpid(pid, options)
    child = _next_child(options)
    return (0, 0) if child is None else _waitpid(child, options)


def wait3(options: int) -> tuple[int, int, Any]:
    return wait4(-1, options)


def wait4(pid: int, options: int) -> tuple[int, int, Any]:
    if pid != -1 or not frozen:
        return _wait4(pid, options)
    child = _next_child(options)
    return _wait4(-1 if child is None else child, options)


def waitid(idtype: int, ident: int, options: int, /) -> Any:
    if idtype != os.P_ALL or not frozen:
        return _waitid(idtype, ident, options)
    waiting = (options & os.WNOHANG) | (os.WUNTRACED if options & os.WSTOPPED else 0) | (options & os.WCONTINUED)
    child = _next_child(waiting)
    return None if child is None else _waitid(os.P_PID, child, options)
