"""sys.stdout, sys.stderr and sys.stdin of a worker. Runs in the worker, on whatever thread prints.

Descriptors 1 and 2 are pipes that the daemon reads. Text is written through at once, so `print`, `os.write`, child processes and C stdio
on one stream arrive in the order in which they were written. Before a write goes to the other stream it waits until the daemon has
drained the first, so the order between the two is kept as well.
"""

from __future__ import annotations

import array
import builtins
import errno
import fcntl
import io
import os
import sys
import termios
import time
from typing import Any, Callable

from . import errors, wire

# Far longer than a reader that runs takes; a daemon that does not get to run for a while must not cost the order.
DRAIN_LIMIT_SECONDS = 0.25
_SPINS_BEFORE_SLEEP = 50
_SLEEP_SECONDS = 0.0002

_NO_INPUT = "a session has no interactive stdin: assign the value to a variable instead of asking for it"

_builtin_print = builtins.print
_builtin_input = builtins.input
_SYS = sys.__dict__


class _Turn:
    """Which stream was written last. One for the process, because order is a matter of the two streams together."""

    fd = 1


_turn = _Turn()
_unread = array.array("i", [0])


def _take_turn(fd: int) -> None:
    """Waits until the daemon has read what the other stream holds, then makes this stream the current one."""
    other = _turn.fd
    _turn.fd = fd
    wait_until_read(other, DRAIN_LIMIT_SECONDS)


def wait_until_read(fd: int, limit_seconds: float) -> None:
    """Waits until the pipe that this is the writing end of is empty, or for so long."""
    deadline = None
    spins = 0
    while True:
        try:
            fcntl.ioctl(fd, termios.FIONREAD, _unread)
        except OSError as error:
            if not wire.raised_by_call(error):
                raise
            return
        if not _unread[0]:
            return
        now = time.monotonic()
        if deadline is None:
            deadline = now + limit_seconds
        elif now > deadline:
            return
        spins += 1
        time.sleep(0 if spins < _SPINS_BEFORE_SLEEP else _SLEEP_SECONDS)


def _write(fd: int, data: Any) -> None:
    if _turn.fd != fd:
        _take_turn(fd)
    try:
        wire.write_all(fd, data)
    except OSError as error:
        # Nobody reads any more: the daemon is gone, and the program's own work need not fail for it.
        if error.errno != errno.EPIPE or not wire.raised_by_call(error, wire.write_all):
            raise


class Descriptor(io.RawIOBase):
    """The `buffer` of a stream: bytes straight to a descriptor. It cannot be closed, because wrappers made around it close it
    when they are collected and would take the session's output with them."""

    mode = "wb"

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B") if not isinstance(data, bytes) else data
        _write(self._fd, view)
        return len(view)

    def close(self) -> None:
        pass

    @property
    def raw(self) -> Descriptor:
        return self


class Stream(io.TextIOWrapper):
    """Text on descriptor 1 or 2, one `write(2)` per call. What a user reconfigures works through the base class."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(
            Descriptor(fd, name),  # type: ignore[arg-type]
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            line_buffering=False,
            write_through=True,
        )
        self.mode = "w"  # type: ignore[misc]
        self._fd = fd
        self._plain = True

    def write(self, text: str) -> int:
        if not self._plain:
            return super().write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data = text.encode("utf-8", "backslashreplace")
        fd = self._fd
        if _turn.fd == fd:
            try:
                written = os.write(fd, data)
            except (BlockingIOError, BrokenPipeError) as error:
                if not wire.raised_by_call(error):
                    raise
                written = 0
            if written == len(data):
                return len(text)
            data = data[written:]
        _write(fd, data)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def reconfigure(self, **options: Any) -> None:
        options.pop("write_through", None)
        super().reconfigure(write_through=True, **options)
        self._plain = False

    def close(self) -> None:
        self.flush()

    def detach(self) -> Any:
        return self.buffer


class Stdin(io.TextIOWrapper):
    """Standard input: the null device. `exit()` closes `sys.stdin`; this one stays open."""

    def __init__(self) -> None:
        super().__init__(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8", errors="surrogateescape")
        self.mode = "r"  # type: ignore[misc]

    def close(self) -> None:
        pass


_SIMPLE = frozenset({str, int, float, bool, type(None)})


def print(*args: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False) -> None:
    # The builtin calls `write` for every argument and again for the newline; with streams that write through, that is two system
    # calls for the simplest line. Here a line is one. Everything whose order of effects could be seen goes to the builtin.
    if file is None and type(sep) is str and type(end) is str:
        stream = sys.stdout
        if type(stream) is Stream:
            if len(args) == 1:
                stream.write(str(args[0]) + end)
                if flush:
                    stream.flush()
                return
            for arg in args:
                if type(arg) not in _SIMPLE:
                    break
            else:
                stream.write(sep.join(map(str, args)) + end)
                if flush:
                    stream.flush()
                return
    _builtin_print(*args, sep=sep, end=end, file=file, flush=flush)


def input(prompt: Any = "", /) -> str:
    stdin = sys.stdin
    if type(stdin) is Stdin or stdin is None:
        sys.stdout.write(str(prompt))
        raise EOFError(_NO_INPUT)
    return _builtin_input(prompt)


def _stand_in(function: Callable[..., Any], original: Any) -> Callable[..., Any]:
    function.__module__ = "builtins"
    function.__doc__ = original.__doc__
    function.__annotations__ = {}
    return function


class Output:
    """The worker's streams. `repair` runs before a cell, `flush` after it."""

    def __init__(self) -> None:
        self.saved: dict[int, int] = {}
        self.stdout = Stream(1, "<stdout>")
        self.stderr = Stream(2, "<stderr>")
        self.stdin = Stdin()
        self._noted: Any = None
        self.flush = _c_flush()

    def install(self) -> None:
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]
        sys.stdin = sys.__stdin__ = self.stdin  # type: ignore[misc]
        builtins.print = _stand_in(print, _builtin_print)
        builtins.input = _stand_in(input, _builtin_input)

    def connect(self, stdout: int, stderr: int) -> None:
        """Makes these descriptors 1 and 2, now and whenever the program has closed those."""
        self.saved = {1: stdout, 2: stderr}
        for fd, saved in self.saved.items():
            os.dup2(saved, fd)

    def repair(self, _fcntl: Any = fcntl.fcntl, _getfd: int = fcntl.F_GETFD) -> None:
        """Puts back a descriptor that the program closed, and a stream that is closed."""
        try:
            _fcntl(1, _getfd)
            _fcntl(2, _getfd)
        except OSError:
            self._restore_descriptors()
        if _SYS.get("stdout") is not self.stdout or _SYS.get("stderr") is not self.stderr:
            self._restore_streams()

    def note(self) -> str | None:
        """A sentence when `sys.stdout` was replaced in this cell and printed text goes elsewhere."""
        stdout = _SYS.get("stdout")
        if stdout is self.stdout:
            self._noted = None
            return None
        if stdout is self._noted or _unusable(stdout):
            return None
        self._noted = stdout
        return f"sys.stdout is now {errors.a(errors.type_name(type(stdout)))}; what is printed goes there until sys.stdout = sys.__stdout__"

    def _restore_descriptors(self) -> None:
        for fd, saved in self.saved.items():
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
            except OSError:
                os.dup2(saved, fd)

    def _restore_streams(self) -> None:
        if _unusable(_SYS.get("stdout")):
            _SYS["stdout"] = self.stdout
        if _unusable(_SYS.get("stderr")):
            _SYS["stderr"] = self.stderr


def _unusable(stream: Any) -> bool:
    try:
        return stream is None or bool(getattr(stream, "closed", False))
    except BaseException:
        return True


def _c_flush() -> Callable[[], Any]:
    """Makes C's stdout line-buffered and returns a function that flushes it, or one that does nothing without ctypes.

    Only C's stdout: `fflush(NULL)` waits for the lock of every open FILE, and a thread that reads from one would stop the session.
    """
    try:
        import ctypes

        libc = ctypes.PyDLL(None)
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
        line_buffered = 1
        libc.setvbuf(stdout, None, line_buffered, 0)
        flush = libc.fflush
    except (ImportError, OSError, ValueError, AttributeError):
        return lambda: None
    flush.argtypes = [ctypes.c_void_p]
    import functools

    return functools.partial(flush, stdout)
