"""The event loop that a session's top-level `await` runs on. Runs in the worker, on its main thread.

One loop for the life of the session, so tasks survive from cell to cell; it runs only while a cell awaits.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from . import unwind

# What a loop of asyncio's keeps open for itself.
_OWN_FILES = ("_selector", "_ssock", "_csock")


class EventLoop:
    """Made at the first `await`."""

    def __init__(self) -> None:
        self._loop: Any = None
        self._running = False
        self._coroutine: Any = None
        self._task: Any = None
        self._waited_at: TracebackType | None = None
        # Loops left by forced unwinds, with their tasks. Collecting them would run code that has already refused to end.
        self._abandoned: list[Any] = []
        unwind.stand_for_cell(EventLoop.run, self._interrupt)

    def prepare(self) -> None:
        """Makes the loop. Apart from `run`, so that no signal is raised while it is half made."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        # `asyncio.run` in an earlier cell has taken the current loop away.
        asyncio.set_event_loop(self._loop)

    def run(self, coroutine: Any) -> Any:
        """Runs a cell's coroutine to its end. An interrupt cancels it where it waits."""
        import asyncio

        self._running = True
        self._coroutine = coroutine
        self._waited_at = None
        self._task = task = self._loop.create_task(coroutine)
        if unwind.raised:
            # It came while there was no task to cancel.
            self._interrupt()
        try:
            result = self._loop.run_until_complete(task)
        except BaseException as error:
            if unwind.forced:
                raise
            self._forget()
            if not task.done():
                # Interrupted in a callback of the program's; the cell itself is still waiting.
                task.cancel()
            if self._waited_at is not None and isinstance(error, asyncio.CancelledError):
                raise KeyboardInterrupt().with_traceback(self._waited_at) from None
            raise
        self._forget()
        return result

    def recover(self) -> None:
        """After a forced unwind: leaves a loop, ours or the program's, whose own cleanup was cut short."""
        asyncio = sys.modules.get("asyncio")
        running = asyncio._get_running_loop() if asyncio is not None else None  # type: ignore[attr-defined]
        if running is not None:
            asyncio._set_running_loop(None)  # type: ignore[union-attr]
            sys.set_asyncgen_hooks(None, None)
            self._abandon(running)
        if self._running:
            self._abandon(self._loop)
            self._loop = None
            self._forget()

    def _abandon(self, loop: Any) -> None:
        self._abandoned.append((loop, self._task, self._coroutine))
        for name in _OWN_FILES:
            try:
                getattr(loop, name).close()
            except Exception:
                continue

    def descriptors(self) -> set[int]:
        """The loop's own descriptors, which a frozen copy must keep to have a loop that works."""
        found = set()
        for name in _OWN_FILES:
            try:
                found.add(getattr(self._loop, name).fileno())
            except (AttributeError, ValueError, OSError):
                continue
        return found

    def renew(self) -> None:
        """In a branch: gives the loop a selector and a self-pipe of its own. The old ones are shared with the original, and even taking a
        descriptor off the shared selector would take it off the original's."""
        loop = self._loop
        if loop is None or loop.is_closed() or not all(hasattr(loop, name) for name in _OWN_FILES):
            return
        import selectors
        import socket

        selector, woken = selectors.DefaultSelector(), loop._ssock
        for key in list(loop._selector.get_map().values()):
            if key.fileobj is not woken and key.fd != woken.fileno():
                try:
                    selector.register(key.fileobj, key.events, key.data)
                except (OSError, ValueError, KeyError):
                    continue
        old = loop._selector, loop._ssock, loop._csock
        loop._selector = selector
        loop._ssock, loop._csock = socket.socketpair()
        loop._ssock.setblocking(False)
        loop._csock.setblocking(False)
        loop._add_reader(loop._ssock.fileno(), loop._read_from_self)
        for shared in old:
            shared.close()

    def _interrupt(self) -> None:
        """Called by the signal handler when the loop runs and the cell's own code does not.

        An exception raised inside the loop could be raised between taking a callback and running it, and a task would wait for ever;
        so the cell is cancelled instead.
        """
        if self._task is not None:
            self._waited_at = _where(self._coroutine)
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _forget(self) -> None:
        self._running = False
        self._task = self._coroutine = None


def _where(awaiting: Any) -> TracebackType | None:
    """The stack of a suspended coroutine, in the form of a traceback."""
    frames = []
    while awaiting is not None:
        frame = getattr(awaiting, "cr_frame", None) or getattr(awaiting, "gi_frame", None)
        if frame is None:
            break
        frames.append(frame)
        awaiting = getattr(awaiting, "cr_await", None) or getattr(awaiting, "gi_yieldfrom", None)
    where = None
    for frame in reversed(frames):
        where = TracebackType(where, frame, frame.f_lasti, frame.f_lineno or frame.f_code.co_firstlineno)
    return where
