"""The template: an interpreter that is warm and is forked into workers. Runs in a process of its own, single-threaded.

Descriptor 3 is its control socket, 4 the pylair executable. It runs no user code unless it was asked to preload packages. An
unconfined worker is born below a keeper, which is the first child after an `execve`; a confined one directly in its keeper's namespaces.
An interpreter that may only be run inside a sandbox is started there by the keeper, and becomes the one worker itself.
"""

from __future__ import annotations

# Before all others: it has to see what they register.
from . import at_fork

# isort: split
import gc
import importlib
import os
import platform
import random
import select
import signal
import socket
import sys
import threading
from _signal import signal as _set_signal  # type: ignore[import-not-found]
from typing import Any

from . import activate, checkpoint, confine, descriptors, enforced, errors, imported, tracing, wire, worker

_CONTROL = 3
_PROGRAM = 4
# The part of `random.seed` that is not Python.
_reseed_random = super(random.Random, random._inst).seed  # type: ignore[misc, attr-defined]
# Plain numbers: the enums of `signal` make many pages of a worker its own.
_SIGCHLD, _SIGPIPE, _DEFAULT = int(signal.SIGCHLD), int(signal.SIGPIPE), int(signal.SIG_DFL)

# What a worker or an ordinary cell needs soon; imported once here instead of in every session. Not those that remember the
# interpreter they were imported in: sysconfig, multiprocessing.
_WARM = (
    "array",
    "ast",
    "asyncio",
    "collections.abc",
    "contextlib",
    "copyreg",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "importlib.util",
    "inspect",
    "itertools",
    "json",
    "linecache",
    "marshal",
    "math",
    "pathlib",
    "pickle",
    "pickletools",
    "random",
    "re",
    "shutil",
    "string",
    "subprocess",
    "tempfile",
    "textwrap",
    "threading",
    "typing",
)


def main(config: dict[str, Any]) -> None:
    control = socket.socket(fileno=_CONTROL)
    for fd in (_CONTROL, _PROGRAM):
        os.set_inheritable(fd, False)
    # The bootstrap has been read; from here on this is everybody's standard input.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    problem = _warm_up(config)
    if problem is not None:
        wire.send_datagram(control, {"error": problem})
        os._exit(1)
    # What a preload printed and is still buffered would be written again by every worker.
    sys.stdout.flush()
    sys.stderr.flush()
    template = Template(control)
    template.worker.output.flush()
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.disable()
    wire.send_datagram(control, {"hello": 1, "wire": wire.WIRE_VERSION, "python": platform.python_version()})
    tracing.run_unseen(template.serve)
    os._exit(0)


def _warm_up(config: dict[str, Any]) -> str | None:
    """Imports what workers need, then the preloads. Returns what went wrong."""
    for name in _WARM:
        try:
            importlib.import_module(name)
        except ImportError:
            # Distributions leave parts of the standard library out.
            continue
    # Here for the preloads, and so that it is nothing new in a worker.
    imported.choose_backend(os.environ)
    confine.prepare()
    activate.prepare()
    at_fork.stop()
    # From here on the program may do to the standard library what it likes.
    seal = getattr(__loader__, "seal", None)
    if seal is not None:
        seal()
    preloads = config.get("preload") or []
    if not preloads:
        # From 3.14 on ctypes imports it. It remembers the prefix it was imported under, which may not be the session's.
        sys.modules.pop("sysconfig", None)
        return None
    # A preload may hold locks, or not expect to be forked without the hooks.
    at_fork.wake_up()
    activate.interpreter(config["executable"], config.get("prefix"))
    note = activate.run_site(config.get("python_path") or [])
    if note is not None:
        return note
    for name in preloads:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"preloading {name} failed: {errors.type_name(type(error))}: {errors.message(error)}"
    alive = checkpoint.other_threads()
    if alive:
        return f"preloading left threads running, which cannot be forked: {', '.join(alive)}"
    return None


class Template:
    """Forks workers on request and reports the children that end."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.own_namespace: int | None = None
        # So that what a killed keeper leaves behind comes to us.
        confine.become_subreaper()
        self.children = set(descriptors.children_of_this_process())
        self.wakeup, wakeup_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.descriptors = [_CONTROL, _PROGRAM, self.wakeup, wakeup_end]
        # With it come the signals that a worker handles; they mean nothing here.
        self.worker = worker.Worker()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Returns when the daemon has closed the control socket."""
        waiting = select.poll()
        waiting.register(self.control, select.POLLIN)
        waiting.register(self.wakeup, select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll()}
            if self.wakeup in ready:
                self._reap()
            if self.control.fileno() not in ready:
                continue
            received = wire.receive_datagram(self.control)
            if received is None:
                return
            request, passed = received
            if request.get("op") == "fork":
                self._fork(request, passed)
            for fd in passed:
                os.close(fd)

    def _reap(self) -> None:
        try:
            os.read(self.wakeup, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send({"exit": pid, "status": status})
            if os.WIFSIGNALED(status) or pid not in self.children:
                self._end_orphans()
            self.children.discard(pid)

    def _end_orphans(self) -> None:
        """Ends what was below a keeper that was killed; a keeper that ends by itself has done so. Their children come to us in turn."""
        for pid in descriptors.children_of_this_process():
            if pid not in self.children:
                os.kill(pid, signal.SIGKILL)

    def _fork(self, request: dict[str, Any], passed: list[int]) -> None:
        number = request.get("fork")
        try:
            confined = request.get("confine")
            if confined is not None and confined.get("inside"):
                self._send({"forked": number})
                self._become_the_worker(confined, passed)
            elif confined is None or confined.get("bare"):
                self._fork_open(passed, confined)
            else:
                self._fork_confined(confined, passed)
        except Exception as error:
            self._send({"failed": number, "error": f"{type(error).__name__}: {error}"})
        else:
            self._send({"forked": number})

    def _fork_open(self, passed: list[int], bare: dict[str, Any] | None = None) -> None:
        """Forks the keeper-to-be, which forks the worker and becomes the keeper. A bare worker has walls, but no namespaces."""
        self._return_to_own_namespace()
        ours, (keeper, *rest) = _split(passed, 2 if bare and bare.get("landlock") else 1)
        pid = os.fork()
        if pid:
            self.children.add(pid)
            return
        try:
            confine.become_subreaper()
            if os.fork() == 0:
                os.close(keeper)
                self._become_worker(ours, None if bare is None else _wall_in(bare, ours, rest))
            os.set_inheritable(keeper, True)
            _set_signal(_SIGPIPE, _DEFAULT)
            os.execve(_PROGRAM, ["pylair", "__keeper", str(keeper)], {})
        except BaseException as error:
            os.write(2, f"a keeper could not be started: {error}\n".encode())
        finally:
            os._exit(1)

    def _fork_confined(self, confined: dict[str, Any], passed: list[int]) -> None:
        """Forks the worker into its keeper's pid namespace; the child enters the others and locks itself in."""
        unavailable = confine.available()
        if unavailable is not None:
            raise OSError(unavailable)
        landlock = bool(confined.get("landlock"))
        ours, rest = _split(passed, 1 + landlock)
        keeper = rest[0]
        if self.own_namespace is None:
            self.own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self.descriptors.append(self.own_namespace)
        confine.enter_pid_namespace(keeper)
        pid = os.fork()
        if pid:
            self.children.add(pid)
            return
        self._become_worker(ours, _wall_in(confined, ours, rest, keeper))

    def _become_the_worker(self, confined: dict[str, Any], passed: list[int]) -> None:
        """Of an interpreter that was started inside its walls, and is for one session. Does not return."""
        ours, _ = _split(passed, 0)
        try:
            trial = enforced.tried(confined)
        except BaseException as error:
            wire.send_datagram(socket.socket(fileno=ours[-1]), {"error": f"the worker could not try its walls: {error}"})
            os._exit(1)
        self._become_worker(ours, trial)

    def _return_to_own_namespace(self) -> None:
        """After a confined fork children are born elsewhere; an unprivileged template cannot come back."""
        if self.own_namespace is not None:
            confine.enter_pid_namespace(self.own_namespace)

    def _become_worker(self, passed: list[int], trial: dict[str, Any] | None = None) -> None:
        """In the child: everything of the template's goes, then the worker's life begins. Does not return."""
        try:
            signal.set_wakeup_fd(-1)
            _set_signal(_SIGCHLD, _DEFAULT)
            # The object must not close somebody else's descriptor 3 some day.
            self.control.detach()
            for fd in self.descriptors:
                os.close(fd)
            gc.enable()
            if at_fork.wake_up():
                # What the hooks would have done that matters here.
                _reseed_random()
                threading.main_thread()._native_id = os.getpid()  # type: ignore[attr-defined]
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                # CPython reseeds `random` after a fork; numpy does not know that it was forked.
                numpy_random.seed()  # type: ignore[attr-defined]
        except BaseException as error:
            os.write(2, f"a worker could not be started: {error}\n".encode())
            os._exit(1)
        self.worker.live(passed, trial)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            wire.send_datagram(self.control, message)
        except OSError:
            # The daemon is gone; the next receive ends the template.
            pass


def _wall_in(confined: dict[str, Any], ours: list[int], rest: list[int], keeper: int | None = None) -> dict[str, Any]:
    """In the child: puts its walls up and tries them. Says so and ends when that cannot be done."""
    try:
        if keeper is not None:
            confine.enter_rest(keeper)
        confine.lock(confined, rest[-1] if confined.get("landlock") else None)
        for fd in rest:
            os.close(fd)
        return enforced.tried(confined)
    except BaseException as error:
        wire.send_datagram(socket.socket(fileno=ours[-1]), {"error": f"the worker could not be confined: {error}"})
        os._exit(1)


def _split(passed: list[int], more: int) -> tuple[list[int], list[int]]:
    """The worker's descriptors and those that came after them."""
    if len(passed) != worker.PASSED + more:
        raise ValueError(f"{len(passed)} descriptors were passed instead of {worker.PASSED + more}")
    return passed[: worker.PASSED], passed[worker.PASSED :]
