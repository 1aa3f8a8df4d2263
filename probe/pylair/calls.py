"""Answers what a probe in an app is asked. Runs in the app; called by serving.py, on a short-lived thread of each call's own.

Code is run where place.py says, with what it prints caught by streams.py. Looking runs nothing of the app's and forks nothing: what would
need the app's code is only named, unless the caller asks for it to be run and the app lets it. Nothing that a call does comes out of here
but its answer.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Tuple

from . import place
from .paths import Refused, refusal
from .plain_threads import allocate_lock
from .scratch import Scratch, Scratches
from .streams import Capture, Streams

MAX_SOURCE_CHARS_KEPT = 4 << 20
_MAX_CLIENT_CHARS = 100

Send = Callable[[Dict[str, Any], bytes], None]
Answer = Tuple[Dict[str, Any], bytes]


class Calls:
    """`app` has `registered`, `readonly`, `allow_code`, `invoker`, `loop`, `screenshot_fn` and `winshot_fn`, which may change."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._scratches = Scratches(app)
        self._streams = Streams()
        self._lock = allocate_lock()
        self._sources: Any = None
        self._logs: Any = None
        # What runs now, with the request that asked for it.
        self._running: dict[int, tuple[dict[str, Any], place.Work]] = {}

    def start(self) -> None:
        """Begins to keep log records. `logging` is imported for it: a record that was not caught when it was made is lost, and nearly every
        app imports it sooner or later."""
        from .logs import Logs

        self._logs = self._logs or Logs()
        self._logs.install()

    def stop(self) -> None:
        """Leaves nothing behind. Calls that run go on; nobody gets their answers."""
        for _, work in list(self._running.values()):
            work.capture.open = False
            work.give_up("the probe has left the app")
        self._streams.restore()
        self._scratches.forget()
        with self._lock:
            if self._sources is not None:
                self._sources.forget()
        if self._logs is not None:
            self._logs.remove()

    def forked(self) -> None:
        """In a child process: what ran in the parent's other threads does not run here."""
        for _, work in list(self._running.values()):
            work.capture.open = False
        self._running = {}
        self._lock = allocate_lock()
        self._streams.forked()
        self._scratches.forked()
        if self._logs is not None:
            self._logs.forked()

    def quick(self, request: dict[str, Any], blob: bytes) -> Answer | None:
        """The answer to a request that takes no time and runs nothing of the app's, on the I/O thread; None: ask `answer`."""
        operation = request.get("op")
        if operation == "interrupt":
            return self._safely(request, lambda: (self._interrupt(request), b""))
        if operation == "logs" and not request.get("wait_s"):
            return self._safely(request, lambda: self._read_logs(request))
        return None

    def answer(self, request: dict[str, Any], blob: bytes, send: Send) -> Answer:
        """The fields of a done frame, and its blob. `send` sends an event of this request before it. Never raises."""
        acts: dict[str, Callable[[], Answer]] = {
            "execute": lambda: self._execute(request, blob, send),
            "inspect": lambda: self._look(request, blob, send),
            "source": lambda: self._look(request, blob, send),
            "complete": lambda: self._look(request, blob, send),
            "logs": lambda: self._read_logs(request),
            "screenshot": lambda: self._screenshot(request, blob, send),
            "stacks": lambda: self._stacks(request),
            "interrupt": lambda: (self._interrupt(request), b""),
        }
        operation = request.get("op")
        act = acts.get(operation) if type(operation) is str else None
        if act is None:
            return {"refused": f"this probe does not know the operation {str(operation)[:100]!r}", "kind": "unknown_operation"}, b""
        pid = os.getpid()
        answered = self._safely(request, act)
        if os.getpid() != pid:
            # The code forked, and this is the child, which came to the end of the call too. It must not answer.
            os._exit(0)
        return answered

    def _safely(self, request: dict[str, Any], act: Callable[[], Answer]) -> Answer:
        try:
            return act()
        except BaseException as error:
            try:
                return refusal(error, request.get("op")), b""
            except BaseException:
                return {"refused": f"{request.get('op')} failed, and so did saying why", "kind": "failed"}, b""

    # Whose names count: a client's own, or in a frozen failure those of a frame (frozen.py).

    def _scratch(self, request: dict[str, Any], client: str) -> Scratch:
        return self._scratches.of(client)

    def _names(self, request: dict[str, Any], client: str) -> dict[str, Any]:
        return self._scratches.names(client)

    # Running code.

    def _execute(self, request: dict[str, Any], blob: bytes, send: Send) -> Answer:
        from . import executing

        if self._app.readonly:
            raise _readonly("runs no code")
        client = _client(request)
        call = executing.Call(request, blob, client, send)
        with self._lock:
            if self._sources is None:
                self._sources = executing.Sources(MAX_SOURCE_CHARS_KEPT)
            self._sources.add(call.name, call.source)
        scratch = self._scratch(request, client)
        self._streams.enter()
        try:
            work = call.run(scratch, lambda work: self._run(request, work))
        finally:
            self._streams.leave()
        if work.error is not None:
            self._sources.put_back()
        return call.answer(work, scratch, place.needs_note(self._app))

    def _run(self, request: dict[str, Any], work: place.Work) -> None:
        key = id(work)
        running = getattr(self._app, "running_calls", {}).get(request.get("call"))
        work.begins = running.begin if running is not None else None
        self._running[key] = request, work
        try:
            place.run(self._app, work)
        finally:
            self._running.pop(key, None)

    def withdraw(self, number: int) -> str:
        """A call that has not begun never will. Returns what it was waiting for. On the I/O thread."""
        where = place.PROBE
        for asked, work in list(self._running.values()):
            if asked.get("call") == number:
                where = work.ran_on
                work.give_up("its time is over")
        return place.waited_for(where)

    def _run_quietly(self, request: dict[str, Any], send: Send, act: Callable[[], Any]) -> Any:
        """Runs something of the app's where its calls run. What it prints is the app's own affair."""
        capture = Capture(send)
        capture.open = False
        work = place.Work(capture, act)
        self._run(request, work)
        if work.error is None:
            return work.result
        error, work.error = work.error, None
        raise error

    def _interrupt(self, request: dict[str, Any]) -> dict[str, Any]:
        number = request.get("call")
        if type(number) is not int:
            raise Refused("bad_request", "call must be the number of a call")
        found = [work for asked, work in list(self._running.values()) if asked.get("call", asked.get("id")) == number]
        if not found:
            raise Refused("no_such_call", f"no call {number} is running", "status lists what runs")
        why_not = found[-1].interrupt()
        if why_not is not None:
            raise Refused("not_interruptible", f"call {number} cannot be interrupted: {why_not}")
        return {"ok": True}

    # Looking.

    def _look(self, request: dict[str, Any], blob: bytes, send: Send) -> Answer:
        from . import look, wire

        names = self._names(request, _client(request))
        run = request.get("run")
        if run is not None and type(run) is not bool:
            raise Refused("bad_request", "run must be true or false")
        if run and request["op"] == "inspect":
            if self._app.readonly and not self._app.allow_code:
                raise _readonly("runs no property and no __repr__")
            found = self._run_quietly(request, send, lambda: look.run_here(request, names))
        else:
            sources = self._sources.all if self._sources is not None else ()
            found = look.answer(request, blob, names, sources, look.IN_AN_APP)
        return {}, wire.encode(found)

    def _read_logs(self, request: dict[str, Any]) -> Answer:
        from . import wire

        if self._logs is None:
            raise Refused("failed", "no log records are kept: the probe was not started")
        return {}, wire.dumps(self._logs.read(request))

    def _stacks(self, request: dict[str, Any]) -> Answer:
        from . import tasks, wire

        wanted = request.get("locals", True)
        if type(wanted) is not bool:
            raise Refused("bad_request", "locals must be true or false")
        return {}, wire.dumps(tasks.stacks(wanted, getattr(self._app, "loop", None)))

    def _screenshot(self, request: dict[str, Any], blob: bytes, send: Send) -> Answer:
        from . import pictures

        code = None
        if blob:
            if self._app.readonly:
                raise _readonly("runs no code")
            try:
                code = blob.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Refused("bad_request", f"the code is not UTF-8: {error}") from None
        act = pictures.taker(self._app, code)
        try:
            picture = self._run_quietly(request, send, act)
        except Refused:
            raise
        except BaseException as error:
            raise pictures.failed(error, code) from None
        return pictures.checked(picture, code)


def _readonly(what: str) -> Refused:
    return Refused("readonly", f"this app is read-only and {what}", "inspect, source and logs work; the app was started with readonly")


def _client(request: dict[str, Any]) -> str:
    client = request.get("client")
    if client is None:
        return ""
    if type(client) is not str or len(client) > _MAX_CLIENT_CHARS or not client.isprintable() or "<" in client or ">" in client:
        raise Refused("bad_request", f"client must be a name of at most {_MAX_CLIENT_CHARS} characters")
    return client
