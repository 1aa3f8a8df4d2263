"""A session's process after it was forked from a template: its link, its main loop, its answers. Runs on the worker's main thread.

Reads requests one at a time and answers each with exactly one `done`. Ends when the requests pipe does.
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from . import (
    activate,
    at_fork,
    checkpoint,
    descriptors,
    errors,
    imported,
    look,
    packages,
    paths,
    snapshot,
    throwaway,
    tracing,
    unwind,
    wire,
)
from .checkpoint import Checkpoints
from .execute import Cells
from .output import Output
from .peek import SideDoor

_CHANNEL = 1
_HELLO = wire.dumps({"hello": 1, "wire": wire.WIRE_VERSION})

# What the daemon passes for a worker, in this order: requests, replies, stdout, stderr, dump, control.
PASSED = 6


class Link:
    """The worker's side of its link, on descriptors with high numbers that stay the same for its life and its copies'.

    It is made in the template, where the numbers lead nowhere; a worker puts what it was passed in their place.
    """

    def __init__(self) -> None:
        self._take_numbers()

    def _take_numbers(self) -> None:
        self.stdout, self.stderr, self.replies, requests = (descriptors.move_high(os.dup(0)) for _ in range(4))
        self.requests = wire.FrameReader(requests)
        # If the template itself crashes, its stack goes to its log.
        self.dump = descriptors.move_high(os.dup(2))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        self.control = socket.socket(fileno=descriptors.move_high(ours.detach()))

    def connect(self, passed: list[int]) -> None:
        """In a worker: puts the descriptors that it was passed in place."""
        if descriptors.limit_of_numbers() <= self.control.fileno():
            self._take_lower_numbers()
        numbers = (self.requests.fd, self.replies, self.stdout, self.stderr, self.dump, self.control.fileno())
        for fd, number in zip(passed, numbers):
            os.dup2(fd, number, inheritable=False)
            os.close(fd)

    def _take_lower_numbers(self) -> None:
        """A confined worker may not have as many descriptors as the template, and could not replace those it has."""
        for fd in self.descriptors() - {self.control.fileno()}:
            os.close(fd)
        self.control.close()
        self._take_numbers()

    def descriptors(self) -> set[int]:
        return {self.stdout, self.stderr, self.dump, self.replies, self.requests.fd, self.control.fileno()}

    def give_up(self, control: socket.socket) -> None:
        """In a frozen copy: lets go of the live worker's pipes and puts its own control socket in the place of the worker's."""
        os.dup2(control.fileno(), self.control.fileno(), inheritable=False)
        control.close()
        descriptors.replace_by_dead_ends((self.requests.fd, self.replies))
        self.requests.reset()

    def take_over(self, requests: int, replies: int, control: int) -> None:
        """In a copy that becomes the worker: what it was given. The rest of the link is still the session's."""
        for new, ours in ((requests, self.requests.fd), (replies, self.replies), (control, self.control.fileno())):
            os.dup2(new, ours, inheritable=False)
            os.close(new)


class Worker:
    """Answers requests. Made in the template, with all that is the same in every worker, so that they share its memory."""

    def __init__(self) -> None:
        self.link = Link()
        self.output = Output()
        self.cells = Cells(self.output, self.link)
        self.checkpoints = Checkpoints(self.link, self.cells.loop.descriptors, self._go_on)
        at_fork.in_child(self._leave_link)
        self.output.install()
        self.cells.install()
        imported.watch(self.cells.displays)
        activate.expect_finders()
        unwind.install(self.link.dump)
        self.side_door = SideDoor(lambda: self.link.control, self._peek)
        self.side_door.install()
        self.cells.handlers.know()
        self._steps = (self.cells.handlers.look, self.output.repair, unwind.reinstall, self.side_door.reinstall, self.cells.repair)

    def live(self, passed: list[int], trial: dict[str, Any] | None = None) -> None:
        """Makes a forked child a process of its own and serves its link until it ends. Never returns: the template's own exit handlers
        must not run in a worker."""
        try:
            self._begin(passed, trial)
            self.serve()
        except (wire.Garbage, BrokenPipeError, ConnectionError):
            os._exit(2)
        except BaseException as error:
            try:
                wire.write_all(2, errors.plainly(error).encode("utf-8", "backslashreplace"))
            finally:
                os._exit(3)
        os._exit(0)

    def _begin(self, passed: list[int], trial: dict[str, Any] | None) -> None:
        if os.getsid(0) != os.getpid():
            os.setsid()
        link = self.link
        dump = link.dump
        link.connect(passed)
        if link.dump != dump:
            unwind.install(link.dump)
        self.output.connect(link.stdout, link.stderr)
        link.control.send(_HELLO if trial is None else wire.dumps({"hello": 1, "wire": wire.WIRE_VERSION, "trial": trial}))

    def _leave_link(self) -> None:
        """In a child of the program's: the link is the worker's, and nobody answers for it."""
        if checkpoint.is_copying:
            return
        try:
            descriptors.replace_by_dead_ends((self.link.requests.fd, self.link.replies, self.link.control.fileno()))
        except OSError:
            # No descriptor was left to put in their place.
            os.close(self.link.replies)

    def _go_on(self, passed: list[int]) -> None:
        """In a copy of a copy, which shares what its original has: a link of its own, all of it in a branch, and a loop of its own."""
        if len(passed) == PASSED:
            self.link.connect(passed)
            self.output.connect(self.link.stdout, self.link.stderr)
        else:
            self.link.take_over(*passed)
        self.cells.loop.renew()

    def serve(self) -> None:
        """The main loop. Returns when the daemon has closed the link."""
        link = self.link
        execute, run_file = self.cells.execute, self.cells.run_file
        handlers = self.cells.handlers
        encode_frame, write_whole = wire.encode_frame, wire.write_whole
        look_for_handlers, repair_output, reinstall, reinstall_door, repair_cells = self._steps
        getpid = os.getpid
        pid = getpid()
        while True:
            if handlers.theirs:
                handlers.wait(link.requests.fd)
            try:
                frame = link.requests.read()
            except BaseException as error:
                if handlers.raised(error):
                    continue
                raise
            if frame is None:
                return
            request, blob = frame
            done: Any
            operation = request.get("op")
            try:
                if operation == "execute" or operation == "run_file":
                    done, blob = (execute if operation == "execute" else run_file)(request, blob)
                    if getpid() != pid:
                        # The cell forked, and this is the child, which came to the end of the cell too. It must not answer.
                        os._exit(0)
                else:
                    done, blob = self._answer(request, blob)
                    if done is None:
                        # A frozen copy that has just become the worker.
                        pid = getpid()
                        continue
                reply = {"ch": request.get("ch", _CHANNEL), "id": request.get("id", 0), "ev": "done"}
                reply.update(done)
                data = encode_frame(reply, blob)
            except BaseException as error:
                # Something that the program left behind: a handler, a hook. It must not end the worker.
                data = self._failed(request, error)
            write_whole(link.replies, data)
            try:
                # What a cell broke is mended while nobody waits for it.
                look_for_handlers()
                repair_output()
                reinstall()
                reinstall_door()
                repair_cells()
            except BaseException:
                self._mend()

    def _failed(self, request: dict[str, Any], error: BaseException) -> bytes:
        """The frame that answers a request where answering it failed."""
        self._mend()
        reply = {"ch": request.get("ch", _CHANNEL), "id": request.get("id", 0), "ev": "done"}
        reply.update(_failure(request, error))
        return wire.encode_frame(reply)

    def _mend(self) -> None:
        """Puts right what a cell broke, one thing after the other, whatever the program did to Python."""
        for step in (self.cells.handlers.look_closely, *self._steps):
            try:
                step()
            except BaseException:
                continue

    def _look(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer to a request that looks, between cells. One that takes too long can be interrupted."""
        try:
            return {}, wire.encode(_look_interruptibly(request, blob, self.cells))
        except BaseException as error:
            return paths.refusal(error, request.get("op")), b""

    def _peek(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that looks, in the middle of a cell."""
        return look.answer(request, b"", self.cells.namespace, self.cells.sources, look.IN_A_CELL)

    def _answer(self, request: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        """The fields of a done frame and its blob for everything but cells; None in a copy that has just become the worker."""
        operation = request.get("op")
        if operation in look.OPERATIONS:
            return self._look(request, blob)
        if operation in ("save", "restore"):
            return tracing.run_program(self._snapshot, (request,))
        if operation in ("imports", "site"):
            return _packages(request, blob)
        return self._plain_answer(request), b""

    def _plain_answer(self, request: dict[str, Any]) -> Any:
        operation = request.get("op")
        try:
            if operation == "checkpoint":
                return self.checkpoints.make(request["checkpoint"], request)
            if operation == "clear":
                self.cells.clear()
                return {"ok": True}
            if operation == "dropped":
                return self.checkpoints.dropped()
            if operation == "start":
                return _start(request)
        except BaseException as error:
            return {"refused": f"{operation} failed: {errors.type_name(type(error))}: {errors.message(error)}"}
        return {"refused": f"this probe does not know the operation {operation!r}"}

    def _snapshot(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            return snapshot.answer(request, self.cells, self.side_door)
        except BaseException as error:
            return {"refused": f"{request['op']} failed: {errors.type_name(type(error))}: {errors.message(error)}"}, b""


def _failure(request: dict[str, Any], error: BaseException) -> dict[str, Any]:
    operation = request.get("op")
    if operation != "execute" and operation != "run_file":
        return paths.refusal(error, operation)
    why = {"type": errors.type_name(type(error)), "message": errors.message(error), "traceback": errors.plainly(error), "line": None}
    return {"outcome": "raised", "result": None, "error": why, "new": [], "changed": [], "removed": [], "duration_us": 0, "cpu_us": 0}


def _look_interruptibly(request: dict[str, Any], blob: bytes, cells: Cells) -> dict[str, Any]:
    return look.answer(request, blob, cells.namespace, cells.sources)


def _interrupt_look() -> None:
    raise KeyboardInterrupt


unwind.stand_for_cell(_look_interruptibly, None, _interrupt_look)
unwind.stand_for_cell(throwaway.run, throwaway.interrupt, throwaway.interrupt)


def _packages(request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        return {}, wire.encode(_packages_interruptibly(request, blob))
    except BaseException as error:
        return paths.refusal(error, request.get("op")), b""


def _packages_interruptibly(request: dict[str, Any], blob: bytes) -> dict[str, Any]:
    if request["op"] == "imports":
        return packages.imports(blob.decode("utf-8"))
    return packages.site(request["directory"], request.get("bin"))


unwind.stand_for_cell(_packages_interruptibly, None, _interrupt_look)


def _start(request: dict[str, Any]) -> dict[str, Any]:
    imported.choose_backend(request["env"])
    activate.environment(request["env"])
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        return {"refused": f"the working directory {request['cwd']} cannot be entered: {error.strerror}"}
    notes: list[str] = []
    if request["site"]:
        activate.interpreter(request["executable"], request.get("prefix"))
        note = activate.run_site(request.get("python_path") or [])
        if note is not None:
            notes.append(note)
    for name in request.get("preload") or ():
        try:
            importlib.import_module(name)
        except BaseException as error:
            return {"refused": f"preloading {name} failed: {errors.type_name(type(error))}: {errors.message(error)}"}
    activate.prepend_cwd()
    return {"ok": True, "notes": notes} if notes else {"ok": True}
