"""What a call in an app prints, caught while it runs. Runs in the app, on whatever thread prints.

While calls run, `sys.stdout`, `sys.stderr` and `sys.stdin` are go-betweens. They know a call by its context (a context variable) and its
thread; whatever any other code writes goes where it went before. After the last call the originals are back, unless the app has put
something of its own there meanwhile, which stays; a go-between that somebody still holds just passes on.
"""

from __future__ import annotations

import io
import sys
import time
from contextvars import ContextVar
from typing import Any, Callable

from .plain_threads import RLock, allocate_lock, forget_name, get_ident, set_name, sleep, start_new_thread

_CHUNK_BYTES = 16 << 10
# So many lines are sent at once in a moment; more of them are gathered until it is over.
_AT_ONCE = 10
_MOMENT_SECONDS = 0.05
_NAMES = ("stdout", "stderr", "stdin")
# Maximum number of go-betweens kept after they were replaced.
_MAX_KEPT = 16
_NO_INPUT = "a call in an app has no stdin: put the value into the code instead of asking for it"

Send = Callable[[dict, bytes], None]


class Capture:
    """What one call prints, on its way to the caller as `output` events. `thread` is where the call's code runs, once that is known."""

    def __init__(self, send: Send) -> None:
        self.thread: int | None = None
        self.open = True
        self.streams = {"stdout": _Output(self, 1), "stderr": _Output(self, 2), "stdin": _NoInput()}
        self._send = send
        self._lock = RLock()
        self._waiting: list[tuple[int, bytes]] = []
        self._events: list[tuple[dict[str, Any], bytes]] = []
        self._size = 0
        self._moment = 0.0
        self._sent = 0
        self._gathering = False
        self._sending = False
        # Interrupts the call again. Set when an interrupt came while something was being sent.
        self._interrupt: Callable[[], Any] | None = None

    def interrupt(self, now: Callable[[], Any], again: Callable[[], Any]) -> None:
        """Interrupts the call now, or when what it is sending has been sent: half a frame would end the connection. Does not wait."""
        if self._lock.acquire(blocking=False):
            try:
                now()
            finally:
                self._lock.release()
        else:
            self._interrupt = again

    def _sent_all(self) -> None:
        again, self._interrupt = self._interrupt, None
        if again is not None:
            if get_ident() == self.thread and self.open:
                raise KeyboardInterrupt
            again()

    def write(self, stream: int, data: bytes, whole: bool) -> None:
        """Takes bytes. `whole`: a line has ended, or the program wants them seen."""
        with self._lock:
            if data:
                self._waiting.append((stream, data))
                self._size += len(data)
            if self._size >= _CHUNK_BYTES:
                self._pass_on()
            elif whole and self._size:
                now = time.monotonic()
                if now - self._moment > _MOMENT_SECONDS:
                    self._moment, self._sent = now, 0
                if self._sent < _AT_ONCE:
                    self._sent += 1
                    self._pass_on()
                elif not self._gathering:
                    self._gathering = True
                    try:
                        start_new_thread(self._gather, ())
                    except RuntimeError:
                        # The app can start no more threads.
                        self._gathering = False
                        self._pass_on()
        if self._interrupt is not None:
            self._sent_all()

    def flush(self) -> None:
        with self._lock:
            self._pass_on()
        self._sent_all()

    def show(self, header: dict[str, Any], blob: bytes) -> None:
        """Sends another event, after what was printed before it."""
        with self._lock:
            self._events.append((header, blob))
            self._pass_on()
        self._sent_all()

    def close(self) -> None:
        """Sends what is left. What is printed from now on is not this call's."""
        self.open = False
        self.flush()

    def _gather(self) -> None:
        try:
            set_name("pylair-output")
            sleep(_MOMENT_SECONDS)
            with self._lock:
                self._gathering = False
                self._pass_on()
            self._sent_all()
        except Exception:
            # Nobody is there to be told.
            pass
        finally:
            forget_name()

    def _pass_on(self) -> None:
        """Sends what waits, with the lock in hand. A signal handler or a `__del__` may print in the middle of that: then the same thread is
        here a second time, and must not send, because the connection's lock is its own. The first one sends that too."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._waiting or self._events:
                if self._waiting:
                    self._send_waiting()
                else:
                    self._send(*self._events.pop(0))
        finally:
            self._sending = False

    def _send_waiting(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        at = 0
        while at < len(waiting):
            stream = waiting[at][0]
            end = at
            while end < len(waiting) and waiting[end][0] == stream:
                end += 1
            data = b"".join(part for _, part in waiting[at:end])
            for start in range(0, len(data), _CHUNK_BYTES):
                self._send({"ev": "output", "stream": stream}, data[start : start + _CHUNK_BYTES])
            at = end


# The capture of the call whose code runs in this context.
_capture: ContextVar[Capture | None] = ContextVar("pylair_capture", default=None)


class Streams:
    """The go-betweens of this process, and how many calls need them."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._calls = 0

    def enter(self) -> None:
        with self._lock:
            self._calls += 1
            for name in _NAMES:
                current = getattr(sys, name, None)
                # There may be no stdout; without a stdin a call has none either.
                if type(current) is not _GoBetween and (current is not None or name != "stdin"):
                    setattr(sys, name, _go_between(name, current))

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls <= 0:
                self._calls = 0
                self._restore()

    def restore(self) -> None:
        """Puts the originals back whatever runs."""
        with self._lock:
            self._restore()

    def forked(self) -> None:
        """In a child process: no call runs here."""
        self._lock = allocate_lock()
        self._calls = 0
        self._restore()

    def _restore(self) -> None:
        for name in _NAMES:
            current = getattr(sys, name, None)
            if type(current) is _GoBetween:
                setattr(sys, name, _GoBetween.original(current))


class captured:
    """While code of a call runs: what it prints is the capture's."""

    def __init__(self, capture: Capture) -> None:
        self._of = capture

    def __enter__(self) -> None:
        self._of.thread = get_ident()
        self._token = _capture.set(self._of)

    def __exit__(self, *_: Any) -> None:
        try:
            _capture.reset(self._token)
        except ValueError:
            # A coroutine that is closed from another context.
            pass


class _GoBetween:
    """Stands for a standard stream of the app. For all but a call it is, as far as that goes, what it stands for."""

    __slots__ = ("_name", "_original")

    def __init__(self, name: str, original: Any) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_original", original)

    @staticmethod
    def original(stream: Any) -> Any:
        while type(stream) is _GoBetween:
            stream = object.__getattribute__(stream, "_original")
        return stream

    def __getattribute__(self, name: str) -> Any:
        return getattr(_chosen(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_chosen(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_chosen(self), name)

    def __iter__(self) -> Any:
        return iter(_chosen(self))

    def __next__(self) -> Any:
        return next(_chosen(self))

    def __enter__(self) -> Any:
        return _chosen(self).__enter__()

    def __exit__(self, *args: Any) -> Any:
        return _chosen(self).__exit__(*args)

    def __repr__(self) -> str:
        return repr(_chosen(self))

    def __dir__(self) -> Any:
        return dir(_chosen(self))


# The newest go-betweens. `print` and `input` use `sys.stdout` without holding a reference to it (CPython gh-130163, until 3.14): a
# go-between that were freed when the originals are put back would be used after that by a thread of the app's that prints just then.
_kept: list[tuple[str, Any, _GoBetween]] = []


def _go_between(name: str, original: Any) -> _GoBetween:
    """Returns the go-between for a stream, the same one each time. With the lock of `Streams` in hand."""
    for kept_name, kept_original, kept in _kept:
        if kept_name == name and kept_original is original:
            return kept
    made = _GoBetween(name, original)
    _kept.append((name, original, made))
    del _kept[:-_MAX_KEPT]
    return made


def _chosen(stream: Any) -> Any:
    """Where the code that runs now writes to."""
    capture = _capture.get()
    if capture is not None and capture.open and capture.thread == get_ident():
        return capture.streams[object.__getattribute__(stream, "_name")]
    original = object.__getattribute__(stream, "_original")
    return _nowhere if original is None else original


class _Nowhere(io.TextIOBase):
    """For what others write while a call runs in an app without that stream: as `print` does then, nothing."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


_nowhere = _Nowhere()


class _Output(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` as a call sees it."""

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True

    def __init__(self, capture: Capture, stream: int) -> None:
        self._of = capture
        self._stream = stream
        self.buffer = _Bytes(self)
        self.name = "<stdout>" if stream == 1 else "<stderr>"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._of.write(self._stream, text.encode("utf-8", "backslashreplace"), "\n" in text)
        return len(text)

    def flush(self) -> None:
        self._of.write(self._stream, b"", True)

    def close(self) -> None:
        pass

    def reconfigure(self, **options: Any) -> None:
        pass


class _Bytes(io.RawIOBase):
    """The `buffer` of a stream."""

    def __init__(self, text: _Output) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._text._of.write(self._text._stream, data, b"\n" in data)
        return len(data)

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        pass


class _NoInput(io.TextIOBase):
    """`sys.stdin` as a call sees it. The terminal belongs to the app."""

    name = "<stdin>"

    def readable(self) -> bool:
        return True

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        raise EOFError(_NO_INPUT)

    def read(self, size: int | None = -1) -> str:
        return ""

    def __next__(self) -> str:
        raise StopIteration
