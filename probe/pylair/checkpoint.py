"""Checkpoints: frozen copies of the worker, made by `fork`. Runs in the worker and in its copies.

A copy gives up the worker's link and sleeps on a control socket of its own, with which it ends. Told to resume or to branch, it forks once
more: the child takes the worker's place, or becomes the worker of another session, and the copy sleeps on.
Some states cannot be copied truthfully; then no copy is made and the reason is said.
"""

from __future__ import annotations

import _thread
import gc
import os
import random
import select
import socket
import sys
import threading
import time
from _signal import SIG_BLOCK as _SIG_BLOCK
from _signal import SIG_SETMASK as _SIG_SETMASK
from _signal import SIGHUP as _SIGHUP
from _signal import pthread_sigmask as _sigmask
from _signal import sigtimedwait as _sigtimedwait
from typing import Any, Callable

from . import children, descriptors, mappings, wire
from .kernel import kernel
from .paths import NoWarnings

_FROZEN_TIMEOUT_MS = 5000
_SO_PASSPIDFD = 76
_COLLECT_GROWTH = 1.25
_COLLECT_BLOCKS = 200_000
_COLLECT_PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20

_fork = os.fork
# The generator behind the functions of `random`, and the part of it that is not Python.
_inst: Any = random._inst  # type: ignore[attr-defined]
_generator: Any = super(random.Random, _inst)
_current_frames, _getallocatedblocks = sys._current_frames, sys.getallocatedblocks
# A copy of the worker is being made, which keeps the link that other children have to leave.
is_copying = False


class Refused(Exception):
    """No checkpoint can be made now; the message says why."""


class Checkpoints:
    """Makes frozen copies of the worker that holds this link."""

    def __init__(self, link: Any, exempt: Any, go_on: Any) -> None:
        self._link = link
        self._exempt = exempt
        self._go_on = go_on
        self._blocks = 0
        self._pages = 0

    def make(self, name: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Makes a checkpoint. Returns the fields of the done frame, or None in the copy, once it has become the worker."""
        children.reap()
        started = time.perf_counter_ns()
        try:
            _refuse_threads()
            pages = _resident_pages()
            _refuse_size(request, pages)
            foreign, locked = descriptors.survey(self._link.descriptors() | self._exempt())
            if locked:
                raise Refused(_locks_sentence(locked))
            shared = mappings.shared()
            _refuse_shared(shared)
        except Refused as refusal:
            return {"made": False, "reason": str(refusal)}
        lost = _lost_children()
        self._collect_if_grown(pages)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _identify_sender(ours)
        random_state = _random_state()
        try:
            pid = _quiet_fork()
        except OSError as error:
            ours.close()
            theirs.close()
            return {"made": False, "reason": f"fork failed: {error.strerror}"}
        if pid == 0:
            self._freeze(name, ours, theirs, foreign, shared, lost, random_state)
            return None
        theirs.close()
        _freeze_collector()
        if not children.frozen:
            children.install()
        children.frozen.add(pid)
        if (foreign or shared) and not _frozen_in_time(ours):
            ours.close()
            return {"made": False, "reason": "the frozen copy did not answer"}
        wire.send_datagram(self._link.control, {"checkpoint": name}, (ours.fileno(),))
        ours.close()
        return {"made": True, "fork_us": (time.perf_counter_ns() - started) // 1000}

    def dropped(self) -> dict[str, Any]:
        """The last checkpoint is gone: objects need not be kept from the collector any longer."""
        children.reap()
        if hasattr(gc, "unfreeze"):
            gc.unfreeze()
        return {"ok": True}

    def _freeze(
        self,
        name: str,
        ours: socket.socket,
        theirs: socket.socket,
        foreign: list[descriptors.Foreign],
        shared: list[mappings.Mapping],
        lost: list[str],
        random_state: Any,
    ) -> None:
        """In the copy: gives up the link, sleeps, and returns when it has become the worker. Never returns otherwise."""
        try:
            # The kernel sends it to a process group that loses its last parent in the session while one of it is stopped, as copies in a
            # crowded sandbox are when the worker ends.
            mask = _sigmask(_SIG_BLOCK, (_SIGHUP,))
            ours.close()
            # So that a signal to the program's process group does not end its checkpoints.
            os.setpgid(0, 0)
            children.frozen.clear()
            self._link.give_up(theirs)
            lost = descriptors.neuter(foreign) + lost
            mappings.make_private(shared, is_state=True)
            _set_random_state(random_state)
            _freeze_collector()
            wire.send_datagram(self._link.control, {"frozen": name})
            while True:
                received = wire.receive_datagram(self._link.control)
                if received is None:
                    os._exit(0)
                message, passed = received
                resumes = message.get("op") == "resume" and len(passed) == 3
                branches = message.get("op") == "branch" and len(passed) == 6
                if (resumes or branches) and _fork_away(resumes):
                    # A process group apart from the copy's, which signals to the program's must not reach.
                    if branches:
                        os.setsid()
                    else:
                        os.setpgid(0, 0)
                    lost += _share_nothing(foreign, shared, branches, self._exempt())
                    _forget_hangup(mask)
                    self._go_on(passed)
                    _set_random_state(random_state)
                    break
                for fd in passed:
                    os.close(fd)
            wire.send_datagram(self._link.control, {"resumed": name, "lost": lost})
        except BaseException:
            # Nobody could be told, and two workers on one link would be worse than none.
            os._exit(1)

    def _collect_if_grown(self, pages: int) -> None:
        """A frozen heap is never collected. When it has grown by a quarter since the last time, collect before freezing again."""
        blocks = _getallocatedblocks()
        grown = blocks > self._blocks * _COLLECT_GROWTH + _COLLECT_BLOCKS or pages > self._pages * _COLLECT_GROWTH + _COLLECT_PAGES
        if not self._pages:
            self._pages, self._blocks = pages, blocks
        elif grown and gc.isenabled() and hasattr(gc, "unfreeze"):
            gc.unfreeze()
            gc.collect()
            self._pages, self._blocks = _resident_pages(), _getallocatedblocks()


def _share_nothing(foreign: list[descriptors.Foreign], shared: list[mappings.Mapping], branches: bool, exempt: set[int]) -> list[str]:
    """In a copy of a copy: files at places of their own, which the next copy of it shall find where they were. Returns what is lost.

    Whoever takes the place of the worker writes to the files that it had mapped. A branch has a worker beside it, and keeps what it writes
    there to itself.
    """
    descriptors.reopen(foreign)
    if branches:
        return descriptors.leave_queues(foreign, exempt) + mappings.told(shared)
    return mappings.told(mappings.share_again(shared))


def _refuse_shared(shared: list[mappings.Mapping]) -> None:
    """Memory that is shared and has no file is part of what a checkpoint keeps, so it has to be copied."""
    if shared and kernel.why_not is not None:
        raise Refused(f"memory is shared with other processes ({shared[0].name}), and {kernel.why_not}")
    size = mappings.copied_bytes(shared)
    if size > mappings.MAX_COPIED_BYTES:
        most = mappings.MAX_COPIED_BYTES // _MIB
        raise Refused(f"{size // _MIB} MB of memory are shared with other processes, over the limit of {most} MB for checkpoints")


def _refuse_threads() -> None:
    names = other_threads()
    if names:
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise Refused(f"{len(names)} thread{' is' if len(names) == 1 else 's are'} alive: {listed}")


def other_threads(is_harmless: Callable[[Any], bool] = lambda frame: False) -> list[str]:
    """Names of the Python threads beside this one, but for those whose innermost frame is harmless. Native threads of libraries are not
    among them."""
    frames = _current_frames()
    frames.pop(_thread.get_ident(), None)
    # `threading.enumerate()` does not know threads that were started below it, and those have no frame until they run.
    count = max(len(frames), _thread._count())
    if not count:
        return []
    harmless = {ident for ident, frame in frames.items() if is_harmless(frame)}
    count -= len(harmless)
    left_out = {_thread.get_ident(), *harmless}
    try:
        known = [thread.name for thread in threading.enumerate() if thread.ident not in left_out]
        return sorted(known[:count]) + ["unnamed"] * (count - len(known))
    except Exception:
        # The program replaced something there. What counts is how many there are.
        return ["unnamed"] * count


def _refuse_size(request: dict[str, Any], pages: int) -> None:
    limit = request.get("max_rss_mb")
    used = pages * os.sysconf("SC_PAGE_SIZE") // _MIB
    if limit is not None and used > limit:
        raise Refused(f"the worker uses {used} MB of memory, over the limit of {limit} MB for checkpoints")


def _locks_sentence(locked: list[int]) -> str:
    names = []
    for fd in locked[:3]:
        try:
            names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            names.append(f"fd {fd}")
    return f"a file lock is held on {', '.join(names)}; a copy would believe in it after it is gone"


def _lost_children() -> list[str]:
    others = descriptors.children_of_this_process()
    return [f"a child process ({name}, pid {pid})" for pid, name in others.items() if pid not in children.frozen]


def _resident_pages() -> int:
    fields = descriptors.read_proc("/proc/self/statm").split()
    return int(fields[1]) if len(fields) > 1 else 0


def small_pages_mb() -> int:
    """Memory that is mapped page by page, which is what makes a fork slow. One 4 KiB table maps 2 MiB."""
    for line in descriptors.read_proc("/proc/self/status").splitlines():
        if line.startswith(b"VmPTE:"):
            return int(line.split()[1]) // 2
    return 0


def _identify_sender(control: socket.socket) -> None:
    """Makes the kernel attach who sends, before the copy can send anything."""
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    try:
        control.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
    except OSError:
        # Before Linux 6.5.
        pass


def _random_state() -> Any:
    """CPython reseeds `random` in a forked child; a copy has to go on where the worker was."""
    return _generator.getstate(), object.__getattribute__(_inst, "gauss_next")


def _set_random_state(state: Any) -> None:
    _generator.setstate(state[0])
    object.__setattr__(_inst, "gauss_next", state[1])


def _forget_hangup(mask: Any) -> None:
    """Sets the program's own signal mask again. A SIGHUP that came to the copy was not meant for the program."""
    if _SIGHUP not in mask:
        while _sigtimedwait((_SIGHUP,), 0) is not None:
            pass
        _sigmask(_SIG_SETMASK, mask)


def _fork_away(needed: bool) -> bool:
    """Forks a process that the keeper reaps, because this one only sleeps. True in it; also in this one if no process can be made and
    somebody has to go on."""
    try:
        between = _quiet_fork()
    except OSError:
        return needed
    if between:
        return bool(children.wait_for(between)) and needed
    try:
        if _quiet_fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    return True


def _quiet_fork() -> int:
    """Forks without the warning that 3.12 and later give when a library has native threads; Python threads were refused."""
    global is_copying
    is_copying = True
    try:
        with NoWarnings():
            return _fork()
    finally:
        is_copying = False


def _freeze_collector() -> None:
    """Keeps the collector off all that exists now: by visiting an object it would copy the page it is on."""
    if hasattr(gc, "freeze"):
        gc.freeze()


def _frozen_in_time(control: socket.socket) -> bool:
    """Waits until the copy has spoken, which it does after it has given up the program's descriptors."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    return any(events & select.POLLIN for _, events in waiting.poll(_FROZEN_TIMEOUT_MS))
