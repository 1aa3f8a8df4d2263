"""A frozen failure: what a copy of a test process does, an app whose names are those of the frames of the failure. Called by freezing.py.

The main thread is the copy's own: it runs the code of calls, one after the other, below the frames of the test, to which it never returns.
"""

from __future__ import annotations

import _thread
import json
import signal
import time
from collections import deque
from typing import Any, Callable

from . import executing, freezing, locks, secluded, wire
from .app import App
from .calls import Answer, Calls
from .paths import Refused
from .plain_threads import allocate_lock, load_what_ending_needs
from .scratch import Scratch
from .serving import Server

# How often to look for locks that what calls started has taken since.
_LOCKS_SECONDS = 1.0


def serve(listener: Any, entry: dict[str, Any], error: BaseException, entries: list[tuple[Any, int]]) -> None:
    """Serves until the copy is told to end."""
    import threading  # noqa: F401

    load_what_ending_needs()
    app = _Frozen()
    app.how, app.app_id = "frozen", entry["app_id"]
    app.calls = _Calls(app, error, entries)
    main = _MainThread()
    app.invoker, app.interrupt_main = main.invoke, main.interrupt
    server = Server(app, "")
    server.adopt(listener, entry)
    app.calls.start()
    app._server = server
    server.start_thread()
    main.run(server)


class _Frozen(App):
    def ended(self, server: Server, detached: bool) -> None:
        server.finish()
        freezing.end()


class _MainThread:
    """Runs calls, and can be interrupted while one runs."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], Any]] = deque()
        self._wake = allocate_lock()
        self._ident = _thread.get_ident()
        self._began = time.monotonic()
        signal.signal(signal.SIGINT, self._on_interrupt)

    def invoke(self, call: Callable[[], Any]) -> None:
        """On a call's thread. Does not wait."""
        self._calls.append(call)
        if self._wake.locked():
            try:
                self._wake.release()
            except RuntimeError:
                pass

    def interrupt(self) -> None:
        signal.pthread_kill(self._ident, signal.SIGINT)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        # Only below the code of a call, and never in what runs it: that has to come to its end.
        while frame is not None:
            if frame.f_code is executing.Call._plainly.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def run(self, server: Server) -> None:
        while time.monotonic() - self._began < freezing.MAX_AGE_SECONDS and freezing.is_left(server.entry):
            # Threads and programs of calls that have ended may take locks later.
            has_company = locks.has_company()
            self._wake.acquire(True, _LOCKS_SECONDS if has_company else freezing.LOOK_SECONDS)
            if has_company and not self._calls:
                locks.release()
            while self._calls:
                self._calls.popleft()()
        server.finish()


class _Frame(Scratch):
    """The names of a frame. Functions that a call defines see its variables, so all names are in one namespace; those that `locals()` is
    to have are also apart."""

    def __init__(self, frame: Any, error: BaseException) -> None:
        super().__init__()
        self._frame = frame
        self._error = error
        # Code that asks where it is shall be where the frame is.
        self.namespace.update({name: value for name, value in frame.f_globals.items() if name[:2] == "__"})
        self.locals: _Locals = _Locals(self.namespace)

    def update(self) -> None:
        """Shows what is there now: what a call assigned or deleted stays so, and the module's own names may have changed."""
        # Those of pytest's rewritten assertions are of no use to anybody.
        own = {name: value for name, value in self._frame.f_locals.items() if name[:1] != "@" and name != "__builtins__"}
        # Its own names come first where they are listed.
        names = dict(own)
        names.update((name, value) for name, value in self._frame.f_globals.items() if name not in own and name[:1] != "@")
        names["__exception__"] = self._error
        for name in self.locals.deleted:
            names.pop(name, None)
        self.refresh(names)
        self.locals.follow(own)


class _Locals(dict):  # type: ignore[type-arg]
    """What `locals()` is to a call. What is assigned here is assigned to the namespace too."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self._namespace = namespace
        self.deleted: set[str] = set()

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._namespace[name] = value
        self.deleted.discard(name)

    def __delitem__(self, name: str) -> None:
        # A name of the module's is not here.
        del self._namespace[name]
        super().pop(name, None)
        self.deleted.add(name)

    def follow(self, own: dict[str, Any]) -> None:
        """Has the values of the namespace: a function with `global` may have changed them there."""
        for name in [*own, *self]:
            if name in self._namespace:
                super().__setitem__(name, self._namespace[name])
            else:
                super().pop(name, None)


class _Calls(Calls):
    """Calls whose names are those of a frame, over its module's; what they assign stays with the frame."""

    def __init__(self, app: Any, error: BaseException, entries: list[tuple[Any, int]]) -> None:
        super().__init__(app)
        self._error = error
        self._entries = entries
        self._frames: dict[int, _Frame] = {}
        self._told = False

    def answer(self, request: dict[str, Any], blob: bytes, send: Any) -> Answer:
        if request.get("op") == "check":
            return self._safely(request, lambda: self._check(blob))
        return super().answer(request, blob, send)

    def _check(self, blob: bytes) -> Answer:
        from . import checking

        return {}, wire.dumps(checking.answers(json.loads(blob), self._entries))

    def _scratch(self, request: dict[str, Any], client: str) -> Scratch:
        number = request.get("frame")
        if number is None:
            number = 1
        if type(number) is not int or not 1 <= number <= len(self._entries):
            count = len(self._entries)
            raise Refused("bad_request", f"there is no frame {number!r}", f"the frames are 1, the innermost, to {count}" if count else None)
        scratch = self._frames.get(number)
        if scratch is None:
            scratch = self._frames[number] = _Frame(self._entries[number - 1][0], self._error)
        scratch.update()
        return scratch

    def _run(self, request: dict[str, Any], work: Any) -> None:
        """There is one thread for all of them, and nobody shall wait for what may never end."""
        if self._running:
            raise Refused("busy", "another call runs in this copy of the failure", "wait until it has ended, or stop it with interrupt")
        try:
            super()._run(request, work)
        finally:
            if locks.release():
                work.notes.append("the locks that this call took were given back: nobody shall wait for a copy longer than for one call")
        for note in (secluded.explain(work.error), self._missing_walls()):
            if note is not None:
                work.notes.append(note)

    def _missing_walls(self) -> str | None:
        """What the copy is not protected by, once for all who ask."""
        told, self._told = self._told, True
        return None if told else secluded.missing()

    def _names(self, request: dict[str, Any], client: str) -> dict[str, Any]:
        return dict(self._scratch(request, client).namespace)

    def _stacks(self, request: dict[str, Any]) -> Answer:
        from . import tasks

        wanted = request.get("locals", True)
        if type(wanted) is not bool:
            raise Refused("bad_request", "locals must be true or false")
        found = tasks.stacks_of_failure(self._entries, wanted)
        return {}, wire.dumps(found)
