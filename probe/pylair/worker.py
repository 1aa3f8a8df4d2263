"""A session's process after it was forked from a template: its link, its main loop, its answers. Runs on the worker's main thread.

Reads requests one at a time and answers each with exactly one `done`. Ends when the requests pipe does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, NamedTuple

from . import activate, descriptors, unwind, wire
from .checkpoint import Checkpoints
from .execute import Cells
from .output import Output

_CHANNEL = 1


class Passed(NamedTuple):
    """The descriptors that the daemon passed for a worker."""

    requests: int
    replies: int
    stdout: int
    stderr: int
    dump: int
    control: int


class Link:
    """The worker's side of its link, on descriptors with high numbers that stay the same for its life and its copies'."""

    def __init__(self, passed: Passed) -> None:
        self.stdout = descriptors.move_high(passed.stdout)
        self.stderr = descriptors.move_high(passed.stderr)
        self.dump = descriptors.move_high(passed.dump)
        self.replies = descriptors.move_high(passed.replies)
        self.requests = wire.FrameReader(descriptors.move_high(passed.requests))
        self.control = socket.socket(fileno=descriptors.move_high(passed.control))

    def descriptors(self) -> set[int]:
        return {self.stdout, self.stderr, self.dump, self.replies, self.requests.fd, self.control.fileno()}

    def give_up(self, control: socket.socket) -> None:
        """In a frozen copy: lets go of the live worker's pipes and puts its own control socket in the place of the worker's."""
        os.dup2(control.fileno(), self.control.fileno(), inheritable=False)
        control.close()
        descriptors.replace_by_dead_ends((self.requests.fd, self.replies))
        self.requests.reset()

    def take_over(self, requests: int, replies: int) -> None:
        """In a frozen copy that becomes the worker: the pipes it was given."""
        for new, ours in ((requests, self.requests.fd), (replies, self.replies)):
            os.dup2(new, ours, inheritable=False)
            os.close(new)


class Worker:
    """Answers requests."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.output = Output(link.stdout, link.stderr)
        self.cells = Cells(self.output)
        self.checkpoints = Checkpoints(link, self.cells.loop.descriptors)

    def serve(self) -> None:
        """The main loop. Returns when the daemon has closed the link."""
        link = self.link
        execute = self.cells.execute
        while True:
            frame = link.requests.read()
            if frame is None:
                return
            request, blob = frame
            done: Any
            if request.get("op") == "execute":
                try:
                    done, blob = execute(request["cell"], blob.decode("utf-8"))
                except UnicodeDecodeError as error:
                    done, blob = {"refused": f"the source is not UTF-8: {error}"}, b""
            else:
                done, blob = self._answer(request), b""
                if done is None:
                    continue
            reply = {"ch": request.get("ch", _CHANNEL), "id": request.get("id", 0), "ev": "done"}
            reply.update(done)
            wire.write_frame(link.replies, reply, blob)
            # What a cell broke is mended while nobody waits for it.
            self.output.repair()
            unwind.reinstall()

    def _answer(self, request: dict[str, Any]) -> Any:
        """The fields of a done frame for everything but cells; None in a copy that has just become the worker."""
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
        except Exception as error:
            return {"refused": f"{operation} failed: {type(error).__name__}: {error}"}
        return {"refused": f"this probe does not know the operation {operation!r}"}


def _start(request: dict[str, Any]) -> dict[str, Any]:
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
    activate.prepend_cwd()
    return {"ok": True, "notes": notes} if notes else {"ok": True}


def prepare_process(passed: Passed) -> Link:
    """Makes a forked child a process of its own, with 0, 1 and 2 for the program and the link far above."""
    os.setsid()
    link = Link(passed)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null > 0:
        os.close(null)
    os.dup2(link.stdout, 1)
    os.dup2(link.stderr, 2)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    unwind.install(link.dump)
    return link


def main(link: Link) -> None:
    """Serves the link until it ends. Never returns: the template's own exit handlers must not run in a worker."""
    try:
        worker = Worker(link)
        worker.output.install()
        worker.cells.install()
        wire.send_datagram(link.control, {"hello": 1, "wire": wire.WIRE_VERSION})
        worker.serve()
    except (wire.Garbage, BrokenPipeError, ConnectionError):
        os._exit(2)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(3)
    os._exit(0)


def split_passed(received: list[int]) -> tuple[Passed, list[int]]:
    """The worker's descriptors and what came after them."""
    count = len(Passed._fields)
    return Passed(*received[:count]), received[count:]
