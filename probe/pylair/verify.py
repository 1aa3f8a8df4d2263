"""Restores a file that was just written in a throw-away child and compares. Runs in the worker for `snapshot`, and in that child.

The child has the variables themselves, by fork, and what the file makes of them. It writes nothing anywhere but its verdicts, has no
way to the daemon or to the program's peers, and is never seen by the program.
"""

from __future__ import annotations

import builtins
import gc
import os
import resource
import select
import signal
import sys
import time
import types
from typing import Any

from . import children, pickling, private_directory, secluded, unwind, users_code, wire
from .checkpoint import _quiet_fork
from .compare import Comparison
from .restoring import Loader
from .snapshot_file import Contents, read_contents

_HANGS_AFTER_SECONDS = 1.0
_SLOW_BYTES_PER_SECOND = 1 << 20
# Ends of the child that say nothing about the variable it was at: out of memory, out of time.
_NOBODYS_FAULT = (signal.SIGKILL, signal.SIGALRM, signal.SIGTERM)


class Verdicts:
    """What the child found out, by the variables' names."""

    def __init__(self) -> None:
        self.verified: set[str] = set()
        self.notes: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        # Why the rest could not be verified.
        self.incomplete = ""


def verify(fd: int, reads: int | None, contents: Contents, cells: Any, seconds: float) -> Verdicts:
    """Restores and compares all variables of the file, as far as that gets in this time. `reads` is a descriptor of it that only reads,
    without which it is opened again: a sandbox would not allow that."""
    verdicts = Verdicts()
    reading, writing = os.pipe()
    original, private = os.getpid(), private_directory.make()
    try:
        pid = _quiet_fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        if private is not None:
            private_directory.remove(private)
        verdicts.incomplete = f"fork failed: {error.strerror}"
        return verdicts
    if pid == 0:
        _live_and_die(fd, reads, cells, writing, seconds, private, original)
    os.close(writing)
    if not children.frozen:
        children.install()
    children.frozen.add(pid)
    listening = _Listening(reading, contents, verdicts)
    _, error = users_code.attempt(listening.until, time.monotonic() + seconds)
    os.close(reading)
    if not listening.ended:
        os.kill(pid, signal.SIGKILL)
    status = children.wait_for(pid)
    children.frozen.discard(pid)
    if private is not None:
        private_directory.remove(private)
    if not listening.ended:
        verdicts.incomplete = "it was interrupted" if error is not None else f"it was not done within {seconds:.3g} s"
        listening.blame_a_hang()
    elif status is not None and os.WIFSIGNALED(status):
        verdicts.incomplete = f"Python crashed in the attempt (signal {os.WTERMSIG(status)})"
        if os.WTERMSIG(status) not in _NOBODYS_FAULT and listening.at is not None:
            verdicts.failed[listening.at] = f"restoring it crashes Python (signal {os.WTERMSIG(status)})"
    elif not listening.is_done():
        # With whatever status: a value may end Python as if all were well.
        verdicts.incomplete = "Python ended in the attempt"
        if listening.at is not None:
            verdicts.failed[listening.at] = "restoring it ends Python"
    return verdicts


class _Listening:
    """The worker's end: takes down what the child says."""

    def __init__(self, fd: int, contents: Contents, verdicts: Verdicts) -> None:
        self._fd = fd
        self._lengths = {variable.name: variable.length for variable in contents.variables}
        self._verdicts = verdicts
        self._since = time.monotonic()
        self.at: str | None = None
        self.ended = False

    def until(self, deadline: float) -> None:
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        rest = b""
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not waiting.poll(remaining * 1000):
                return
            data = os.read(self._fd, 1 << 16)
            if not data:
                self.ended = True
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take_down(wire.decode_exactly(line))

    def _take_down(self, said: dict[str, Any]) -> None:
        if "at" in said:
            self.at, self._since = said["at"], time.monotonic()
        elif "failed" in said:
            self._verdicts.failed[said["failed"]] = said["reason"]
        elif "verified" in said:
            self._verdicts.verified.add(said["verified"])
            if "note" in said:
                self._verdicts.notes[said["verified"]] = said["note"]

    def is_done(self) -> bool:
        """Whether something was said of every variable."""
        return self._verdicts.verified.union(self._verdicts.failed) >= self._lengths.keys()

    def blame_a_hang(self) -> None:
        """A variable that took most of the time although it is small would hang when it is restored."""
        took = time.monotonic() - self._since
        if self.at is not None and took > _HANGS_AFTER_SECONDS and self._lengths[self.at] / took < _SLOW_BYTES_PER_SECOND:
            self._verdicts.failed[self.at] = "restoring it takes too long"


def _live_and_die(fd: int, reads: int | None, cells: Any, writing: int, seconds: float, private: str | None, original: int) -> None:
    """The child's whole life."""
    try:
        # A finalizer of the program's must not run for the copies.
        gc.disable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(unwind.FORCE_SIGNAL, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # If the worker is gone, nobody else ends it.
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.setpgid(0, 0)
        children.frozen.clear()
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC) if reads is None else reads
        secluded.leave((own, writing))
        secluded.wall_in("a copy of the session that is thrown away", private, original)
        _judge(own, cells, writing)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _judge(fd: int, cells: Any, writing: int) -> None:
    def say(**said: Any) -> None:
        wire.write_all(writing, wire.encode_exactly(said) + b"\n")

    namespace = cells.namespace
    contents = read_contents(fd)
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    original_main, sys.modules["__main__"] = sys.modules.get("__main__"), main
    loader = Loader(fd, contents, vars(main), cells.remember)
    made = []
    for variable in contents.variables:
        say(at=variable.name)
        try:
            value = loader.load(variable)
        except BaseException as error:
            say(failed=variable.name, reason=users_code.cut(f"it cannot be restored: {loader.reason_for(error, variable)}"))
            continue
        lost = loader.lost(value)
        if lost is not None:
            say(failed=variable.name, reason=users_code.cut(f"it cannot be restored: {lost}"))
            continue
        vars(main)[variable.name] = value
        made.append((variable.name, value))
    known = list(zip(pickling.known(namespace), pickling.known(vars(main))))
    comparison = Comparison(pickling.Reducer(namespace), pickling.Reducer(vars(main)), [*known, (original_main, main)])
    compared = []
    for name, value in made:
        say(at=name)
        difference = _attempt(comparison.difference, namespace[name], value)
        compared.append((name, difference, comparison.take_sets(), list(comparison.notes)))
        comparison.notes.clear()
    for name, difference, sets, notes in compared:
        say(at=name)
        if difference is None:
            difference = _attempt(comparison.difference_of_sets, sets)
        if difference is not None:
            say(failed=name, reason=users_code.cut(f"restored as something else: {difference}"))
        elif notes:
            say(verified=name, note=users_code.cut(notes[0]))
        else:
            say(verified=name)


def _attempt(compare: Any, *arguments: Any) -> str | None:
    try:
        return compare(*arguments)
    except BaseException as error:
        return f"it cannot be compared: {users_code.reason(error)}"
