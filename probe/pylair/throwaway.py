"""Runs doubtful code in a forked copy of the process that is thrown away: a `__repr__`, or a library that makes a table into text.

Called by inspect and complete for what they must not run themselves. The copy's standard streams lead nowhere, it can read what the program
can and change nothing outside of itself (secluded.py), and has little memory to waste and a deadline. Whatever the code does, the process
that asked is as it was, and so are its files.
"""

from __future__ import annotations

import _thread
import gc
import os
import resource
import select
import signal
import sys
import time
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from typing import Any, Callable, NamedTuple

from . import children, descriptors, errors, private_directory, secluded, wire
from .paths import NoWarnings

SECONDS = 1.0
# What one job may take while others wait behind it.
_SHARE_SECONDS = 0.4
_MAX_FORKS = 5
# So much longer may all of it take where a crowded machine keeps copies from running. The daemon waits for longer than that.
_PATIENCE = 30
# How often to see whether it was interrupted.
_LISTEN_SECONDS = 0.02
_MORE_MEMORY = 1 << 30
_MAX_MESSAGE_BYTES = 8 << 20
# Shared memory without a file. More of it can be read in a copy, but not written.
_MAX_COPIED_BYTES = 64 << 20
_MAX_FILE_BYTES = 64 << 20
_TICKS = os.sysconf("SC_CLK_TCK")
_WHAT = "a copy of the session that is thrown away"

Job = Callable[[], Any]

_fork, _waitpid, _exit = os.fork, os.waitpid, os._exit
_settrace, _setprofile = sys.settrace, sys.setprofile


class Outcome(NamedTuple):
    """What a job returned, as JSON carried it, or in words why it did not."""

    value: Any
    error: str | None


def run(jobs: list[Job], seconds: float = SECONDS) -> list[Outcome]:
    """Runs all jobs in one copy; after one that hangs or ends it, those behind it in another. Takes at most `seconds` in all, but for time
    in which copies are kept from running."""
    _interrupts.clear()
    outcomes: list[Outcome] = []
    clock = _Clock(seconds)
    for _ in range(_MAX_FORKS):
        if len(outcomes) == len(jobs) or clock.is_over(seconds) or _interrupts:
            break
        try:
            _run_from(jobs, outcomes, clock)
        except OSError as error:
            outcomes.append(Outcome(None, f"no copy of the process could be made: {error.strerror}"))
            break
    if _interrupts:
        raise KeyboardInterrupt
    missing = len(jobs) - len(outcomes)
    return outcomes + [Outcome(None, "the previews before it took all the time there is")] * missing


class _Clock:
    """How long copies have taken. A copy that was not let run is not slow: a crowded machine would make the answer another one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds * _PATIENCE
        # By those before the one that runs now.
        self._spent = 0.0
        self._copy = 0
        self._began = 0.0

    def watch(self, copy: int) -> None:
        self._copy, self._began = copy, time.monotonic()

    def leave(self) -> None:
        """Before the copy is reaped."""
        self._spent = self.spent()
        self._copy = 0

    def most(self) -> float:
        """What there is left if all of it is taken."""
        return max(0.0, self._end - time.monotonic())

    def spent(self) -> float:
        if not self._copy:
            return self._spent
        return self._spent + _taken(self._copy, time.monotonic() - self._began)

    def at_most(self) -> float:
        """The same without a look."""
        return self._spent + (time.monotonic() - self._began if self._copy else 0.0)

    def is_over(self, limit: float) -> bool:
        if not self.most():
            return True
        # Only who seems late is worth a look.
        return self.at_most() >= limit and self.spent() >= limit


def _taken(process: int, passed: float) -> float:
    """How much of the time that passed a process has taken: it ran, or it slept of its own accord."""
    stat = descriptors.read_proc(f"/proc/{process}/stat").rpartition(b") ")[2].split()
    if len(stat) < 13:
        return passed
    if stat[0] in (b"R", b"D"):
        return min(passed, (int(stat[11]) + int(stat[12])) / _TICKS)
    # Nanoseconds that it ran, and that it waited for a processor.
    waited = descriptors.read_proc(f"/proc/{process}/schedstat").split()[1:2]
    return max(0.0, passed - int(waited[0]) / 1e9) if waited else passed


# Not empty: somebody has lost patience.
_interrupts: list[int] = []


def interrupt() -> None:
    """Makes `run` end soon with KeyboardInterrupt, after it has cleaned up. For a signal handler to call, which must not raise there: an
    exception inside `fork` would be lost, and one between two steps would leave a process or a descriptor behind."""
    _interrupts.append(1)


def _run_from(jobs: list[Job], outcomes: list[Outcome], clock: _Clock) -> None:
    """One copy: runs the jobs that have no outcome yet, and leaves with at least one outcome more."""
    reading, writing = os.pipe()
    silence = ChildSignal()
    parent = os.getpid()
    pid = 0
    status: int | None = None
    private = private_directory.make()
    collects = gc.isenabled()
    try:
        # A finalizer of the program's must not run in the copy before it has left what it shares.
        gc.disable()
        with NoWarnings():
            # 3.12 and later warn when there are threads.
            pid = _fork()
        if pid == 0:
            _live(jobs, len(outcomes), writing, clock.most(), private, parent)
        clock.watch(pid)
        children.frozen.add(pid)
        if _thread._count():
            # One of them may wait for any child.
            children.install()
        os.close(writing)
        writing = -1
        late = _collect(reading, len(jobs), outcomes, clock)
    finally:
        if os.getpid() != parent:
            # An interrupt in the copy, before it began. It must not go on as if it were the process that asked.
            _exit(1)
        if collects:
            gc.enable()
        if pid:
            clock.leave()
            status = _end(pid)
            children.frozen.discard(pid)
        for fd in (reading, writing):
            if fd >= 0:
                os.close(fd)
        silence.end(pid)
        if private is not None:
            private_directory.remove(private)
    if len(outcomes) < len(jobs):
        outcomes.append(Outcome(None, "it did not end in time" if late else _how_it_ended(status)))


def _collect(reading: int, count: int, outcomes: list[Outcome], clock: _Clock) -> bool:
    """Takes outcomes as they come. Returns whether it stopped because the next one was late."""
    waiting = select.poll()
    waiting.register(reading, select.POLLIN)
    received = bytearray()
    while len(outcomes) < count:
        limit = clock.seconds if len(outcomes) == count - 1 else min(clock.seconds, clock.at_most() + _SHARE_SECONDS)
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            # Whoever was not let run itself may find that the copy was in time.
            if not waiting.poll(_LISTEN_SECONDS * 1000):
                if _interrupts or clock.is_over(limit):
                    return True
                continue
            data = os.read(reading, 1 << 16)
            if not data or len(received) > _MAX_MESSAGE_BYTES:
                return False
            if not clock.most():
                # It sends a little again and again.
                return True
            received += data
        end = 4 + int.from_bytes(received[:4], "big")
        try:
            message = wire.decode_header(bytes(received[4:end]))
            outcomes.append(Outcome(message.get("value"), message.get("error")))
        except wire.Garbage:
            return False
        del received[:end]
    return False


def _how_it_ended(status: int | None) -> str:
    if status is None:
        return "it ended the process"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"it ended the process with {signal.Signals(number).name}"
        except ValueError:
            return f"it ended the process with signal {number}"
    return f"it ended the process with exit status {os.WEXITSTATUS(status)}"


def _end(pid: int) -> int | None:
    """Kills the copy with what it started and reaps it. Returns its wait status; its own end is not changed by a kill that comes late."""
    try:
        ended, status = _waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended, status = pid, None
    for kill in (os.killpg, os.kill):
        if kill is os.kill and ended:
            break
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            continue
    if ended:
        return status
    try:
        return _waitpid(pid, 0)[1]
    except ChildProcessError:
        # The program ignores SIGCHLD, or one of its threads was waiting for any child.
        return None


class ChildSignal:
    """Keeps the SIGCHLD of the copy from a handler of the program's."""

    def __init__(self) -> None:
        self.blocked: Any = None
        if callable(_getsignal(signal.SIGCHLD)):
            self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def end(self, pid: int) -> None:
        if self.blocked is None:
            return
        pending = signal.sigtimedwait({signal.SIGCHLD}, 0)
        # Signals of several children are merged into one.
        theirs = pending is not None and (pending.si_pid != pid or _another_has_ended())
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        if theirs:
            signal.raise_signal(signal.SIGCHLD)


def _another_has_ended() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _live(jobs: list[Job], first: int, writing: int, seconds: float, private: str | None, original: int) -> None:
    """In the copy. Never returns."""
    try:
        pid = os.getpid()
        _isolate(writing, seconds)
        secluded.wall_in(_WHAT, private, original, _MAX_COPIED_BYTES)
        for job in jobs[first:]:
            try:
                message = wire.dumps({"value": job()})
            except BaseException as error:
                message = wire.dumps({"error": _told(error)})
            if os.getpid() != pid:
                # The job forked, and this is its child.
                _exit(0)
            wire.write_all(writing, len(message).to_bytes(4, "big") + message)
    finally:
        _exit(0)


def _told(error: BaseException) -> str:
    said = errors.cut(f"{errors.type_name(type(error))}: {errors.message(error)}", 500)
    why = secluded.explain(error)
    return said if why is None else f"{said} ({why})"


def _isolate(writing: int, seconds: float) -> None:
    gc.disable()
    _settrace(None)
    _setprofile(None)
    os.setpgid(0, 0)
    # If the process that asked cannot end it, the kernel does.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    children.frozen.clear()
    secluded.leave((writing,), _MAX_COPIED_BYTES)
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)):
        highest = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if highest == resource.RLIM_INFINITY else min(limit, highest), highest))
    pages = int(descriptors.read_proc("/proc/self/statm").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + _MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
