"""Makes a frozen copy of a test process at a failure, by `fork`, while the frames of the failure are alive. Called by reporting.py.

The copy is nobody's child: the process between it and the test's takes a process session of its own, forks once more and ends. Meanwhile
the test's process goes on with the evidence; only then it waits until the copy has given up the descriptors. What the copy does after that
is frozen.py's. Where a fork is not safe none is made, and the failure says why.

The copy reads what the test's process could, and changes nothing outside of itself: secluded.py.

Another thread makes a fork unsafe: a copy does not have it, and waits for ever for a lock that it held. A server of a pytest plugin that
sleeps in `accept` with nothing but its own loop below it holds none.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
from typing import Any

from . import checkpoint, descriptors, listening, registry, secluded, throwaway, wire
from .kernel import kernel
from .paths import NoWarnings
from .real import real

MAX_COPIES = 200
# What all forks of a run may take from it. Half of both is for failures unlike all that were frozen before.
MAX_SECONDS = 2.0
# Whoever is to end a copy may be gone.
MAX_AGE_SECONDS = 24 * 3600.0
LOOK_SECONDS = 30.0
# A fork takes as long as there are small pages to share.
_MAX_SMALL_MB = 1000
_ITS_OWN = (signal.SIGKILL, signal.SIGSTOP)
# How long the copy may take to leave the test's process alone.
_SETTLE_SECONDS = 5.0
# Servers of plugins, by module and function: one of pytest-rerunfailures runs as soon as xdist is installed too.
_SERVERS = {("pytest_rerunfailures", "run_server")}


class Copy:
    """A copy that is being made, seen from the test's process."""

    def __init__(self, between: int, reading: int, silence: Any) -> None:
        self._between = between
        self._reading = reading
        self._silence = silence

    def settle(self) -> dict[str, Any]:
        """Waits until the copy has a pid and nothing of the test's. Returns the `frozen` of the evidence."""
        said, late = b"", False
        waiting = real.poll()
        waiting.register(self._reading, select.POLLIN)
        until = real.monotonic() + _SETTLE_SECONDS
        try:
            while True:
                if not waiting.poll(max(0, int((until - real.monotonic()) * 1000))):
                    late = True
                    self._end()
                    break
                data = real.read(self._reading, 4096)
                if not data:
                    break
                said += data
        except OSError:
            said = b""
        finally:
            real.close(self._reading)
            try:
                real.waitpid(self._between, 0)
            except ChildProcessError:
                # The test ignores SIGCHLD.
                pass
            self._silence.end(self._between)
        if late:
            return {"why_not": f"the copy did not leave the test's process within {_SETTLE_SECONDS:.0f} s, and was ended"}
        if said.isdigit():
            return {"pid": int(said)}
        return {"why_not": f"the copy failed: {said.decode('utf-8', 'replace') or 'it ended'}"}

    def _end(self) -> None:
        """Ends the process between and the copy, which are a process group, or the former alone if it has not come to make one."""
        for kill in (real.killpg, real.kill):
            try:
                kill(self._between, signal.SIGKILL)
            except OSError:
                pass


class Freezer:
    """Makes the copies of one run."""

    def __init__(self, run: str, runtime: str, env: dict[str, str], ci: bool) -> None:
        self._run = run
        self._runtime = runtime
        self._made = 0
        self._made_of: dict[Any, int] = {}
        self._seconds = 0.0
        wish = env.get("PYLAIR_FREEZE", "")
        self._never: str | None = None
        if not sys.platform.startswith("linux"):
            self._never = "only Linux has frozen failures"
        elif wish == "0":
            self._never = "PYLAIR_FREEZE=0 switches frozen failures off"
        elif ci and not wish:
            self._never = "none is made under CI; PYLAIR_FREEZE=1 asks for it"

    def freeze(self, occurrence: str, nodeid: str, error: BaseException, entries: list[tuple[Any, int]], most: int) -> Copy | str:
        """Begins a copy that keeps these frames, innermost first. Returns why not, if not. `most` is how many are kept."""
        kind = _kind(error, entries)
        why_not = self._never or self._refusal(kind, most)
        if why_not is not None:
            return why_not
        # The oldest copy is that of the failure that was first, whenever it gets to register.
        story = {"occurrence": occurrence, "run": self._run, "nodeid": nodeid, "started_at": real.time()}
        began = real.process_time()
        reading, writing = real.pipe()
        if writing < 3:
            # The test closed some of these, which the copy is about to replace.
            writing = descriptors.move_high(writing)
        silence = throwaway.ChildSignal()
        parent = real.getpid()
        between = 0
        collects = gc.isenabled()
        try:
            # A finalizer of the test's must not run in the copy before it has left what it shares.
            gc.disable()
            with NoWarnings():
                between = real.fork()
        except OSError as failure:
            silence.end(0)
            real.close(reading)
            real.close(writing)
            return f"no copy could be made: {failure.strerror}"
        finally:
            # An interrupt in the copy must not go on as if it were the test's process.
            if not between and real.getpid() != parent:
                try:
                    _leave(writing, self._runtime, story, error, entries, parent)
                finally:
                    real.exit(1)
            if collects:
                gc.enable()
        real.close(writing)
        self._made += 1
        self._made_of[kind] = self._made_of.get(kind, 0) + 1
        self._seconds += real.process_time() - began
        return Copy(between, reading, silence)

    def _refusal(self, kind: tuple[str, str, int], most: int) -> str | None:
        alike = self._made_of.get(kind, 0)
        share = 0.5 if alike else 1.0
        if self._made >= MAX_COPIES * share or self._seconds > MAX_SECONDS * share:
            return f"{self._made} copies were made of this run, which took {self._seconds:.1f} s of it"
        if alike >= most:
            place = f"{os.path.basename(kind[1])}:{kind[2]}"
            return f"{alike} failures of this run like it ({kind[0]} at {place}) were frozen before, and no more copies are kept"
        others = checkpoint.other_threads(_sleeps)
        if others:
            listed = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
            return f"{len(others)} other thread{' is' if len(others) == 1 else 's are'} alive: {listed}"
        if checkpoint.small_pages_mb() > _MAX_SMALL_MB:
            return f"more than {_MAX_SMALL_MB} MB of memory are in small pages, and a copy would take long"
        return None


def _kind(error: BaseException, entries: list[tuple[Any, int]]) -> tuple[str, str, int]:
    """What failures of one cause have in common, as far as that is known at once: what was raised where."""
    frame, line = entries[0] if entries else (None, 0)
    return type(error).__name__, frame.f_code.co_filename if frame is not None else "", line


def _sleeps(frame: Any) -> bool:
    """Whether a thread with this innermost frame is the server of a plugin, and waits for somebody to connect."""
    server = frame.f_back
    if server is None or _named(frame) != ("socket", "accept") or _named(server) not in _SERVERS:
        return False
    below = server.f_back
    while below is not None and _named(below)[0] == "threading":
        below = below.f_back
    return below is None


def _named(frame: Any) -> tuple[Any, str]:
    return frame.f_globals.get("__name__"), frame.f_code.co_name


def _leave(writing: int, runtime: str, story: dict[str, Any], error: BaseException, entries: list[tuple[Any, int]], original: int) -> None:
    """In the process between: leaves the test's behind, and makes the copy. Never returns.

    It ends at once, while the copy gives up the descriptors: for a large process to end takes as long as to be copied.
    """
    try:
        real.settrace(None)
        real.setprofile(None)
        real.setsid()
        with NoWarnings():
            if real.fork():
                real.exit(0)
        secluded.leave((writing,))
    except BaseException as failure:
        real.write(writing, f"{type(failure).__name__}: {failure}".encode()[:500])
        real.exit(1)
    try:
        real.write(writing, str(real.getpid()).encode())
        real.close(writing)
        _quieten()
        listener, entry = _register(runtime, story, entries)
        if not _is_watched(runtime):
            for ending in ("json", "sock"):
                registry.remove(entry["endpoint"][: -len("sock")] + ending)
            return
        # What the copy starts is in this group as long as it lives, and below it.
        real.setpgid(0, 0)
        kernel.adopt_orphans()
        secluded.wall_in("a frozen copy of the failed test", _private_directory(entry), original)
        gc.enable()
        if _is_visited(listener, entry):
            from . import frozen

            frozen.serve(listener, entry, error, entries)
    finally:
        end()


def end() -> None:
    """Ends the copy with all that it has started. Never returns."""
    if real.getpgrp() == real.getpid():
        real.killpg(0, signal.SIGKILL)
    real.exit(0)


def _register(runtime: str, story: dict[str, Any], entries: list[tuple[Any, int]]) -> tuple[Any, dict[str, Any]]:
    """Listens, and says so in the registry. Imports nothing: most copies are never asked anything, and there may be many."""
    start = registry.start_time()
    path = os.path.join(registry.open_directory(runtime, "failures"), f"{os.getpid()}-{start}")
    listener = listening.bind_unix(f"{path}.sock")
    listener.listen(listening.BACKLOG)
    entry = registry.describe(f"failure-{story['occurrence']}"[: registry.MAX_ID_CHARS], f"{path}.sock", start, False, "frozen", None)
    entry.update(story, frames=[_told(*entry) for entry in entries])
    registry.write(f"{path}.json", entry)
    return listener, entry


def _is_watched(runtime: str) -> bool:
    """Whether there is a daemon to end the copy some day. One that leaves removes its socket before it ends the copies it finds."""
    try:
        real.lstat(os.path.join(runtime, "daemon.sock"))
        return True
    except OSError:
        return False


def _private_directory(entry: dict[str, Any]) -> str | None:
    """Where the copy may write. Whoever removes its entry removes it too."""
    try:
        path = os.path.realpath(entry["endpoint"][: -len("sock")] + "tmp")
        real.mkdir(path, 0o700)
        return path
    except OSError:
        return None


def _told(frame: Any, line: int) -> dict[str, Any]:
    code = frame.f_code
    return {"function": wire.clean(getattr(code, "co_qualname", None) or code.co_name), "file": wire.clean(code.co_filename), "line": line}


def _is_visited(listener: Any, entry: dict[str, Any]) -> bool:
    """Waits for the first visitor. False when the copy is to end."""
    waiting = real.poll()
    waiting.register(listener.fileno(), select.POLLIN)
    until = real.monotonic() + MAX_AGE_SECONDS
    while real.monotonic() < until and is_left(entry):
        if waiting.poll(LOOK_SECONDS * 1000):
            return True
    return False


def _quieten() -> None:
    """In the copy: nothing that the test or its tools arranged for shall happen here."""
    gc.freeze()
    for number in signal.valid_signals():
        if number not in _ITS_OWN and callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    monitoring = getattr(sys, "monitoring", None)
    for tool in range(6) if monitoring is not None else ():
        if monitoring.get_tool(tool) is not None:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
    faulthandler = sys.modules.get("faulthandler")
    if faulthandler is not None:
        # Not its timer: that has a thread, which is not here, and it would wait for it.
        faulthandler.disable()  # type: ignore[attr-defined]
    try:
        # When memory is short, it is copies that go.
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1000")
        finally:
            os.close(fd)
    except OSError:
        pass


def is_left(entry: dict[str, Any]) -> bool:
    """Whether the entry of a copy is still there: whoever removes it wants the copy to end."""
    return bool(descriptors.read_proc(entry["endpoint"][: -len("sock")] + "json"))
