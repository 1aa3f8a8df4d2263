"""The side door: looking at a worker in the middle of a cell. Runs in the worker, on its main thread, inside a signal handler.

The daemon sends a request on the control socket and then SIGRTMIN+2. Python runs the handler between two bytecodes of whatever the program
is doing, so nothing here may be noticed by it: no exception of ours leaves the handler, its trace function does not see us, an interrupt
that comes meanwhile is passed on, and what a handler of the program's raises meanwhile is its own to see. Requests are answered without
running any of the program's code and within bounds.
"""

from __future__ import annotations

import array
import fcntl
import functools
import itertools
import operator
import select
import signal
import socket
import sys
import termios
import types
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from _signal import pthread_sigmask as _sigmask
from _signal import signal as _signal
from typing import Any, Callable

from . import look, paths, unwind, wire

PEEK_SIGNAL = signal.SIGRTMIN + 2
MAX_ANSWER_BYTES = 60_000
# What keeps an answer short, in time and bytes. Each is halved while the answer is too long.
_BOUNDS = {"depth": 3, "max_items": 50, "max_chars": 20_000}
_HALVINGS = 5
_FULL_SOCKET_MS = 20
# Calls that must be left before the recursion limit: to answer at all, and to look.
_ROOM_TO_REFUSE = 50
_ROOM_TO_LOOK = 200

_getframe, _getrecursionlimit = sys._getframe, sys.getrecursionlimit
_unread = array.array("i", [0])
_ALL_SIGNALS = frozenset(map(int, signal.valid_signals()))
_BLOCK = int(signal.SIG_BLOCK)
_unblock = functools.partial(_sigmask, int(signal.SIG_SETMASK))
_PEEK, _INT, _FORCE = int(PEEK_SIGNAL), int(signal.SIGINT), int(unwind.FORCE_SIGNAL)


class SideDoor:
    """Answers requests that arrive on a control socket with a signal. `answer` gets a request and returns an answer or raises."""

    def __init__(self, control: Callable[[], socket.socket], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._control = control
        self._look = answer
        self._busy = False
        self._again = False
        # Datagrams that were not for us, with their descriptors.
        self._others: list[tuple[dict[str, Any], list[int]]] = []
        self._postponed: dict[int, int] = {}
        self._tracers: list[Any] = []
        self._enter = _unseen(self._tracers)
        self._leave: Callable[[], Any] = list
        unwind.stand_for_cell(SideDoor._serve, self._postpone(_INT), self._postpone(_FORCE))
        # The stages are properties that are C all the way down to `_serve`, so that no Python frame runs before tracing is off.
        self._handler = functools.partial("{0.entered}{0.served}{0.left}".format, self)

    entered = property(operator.methodcaller("_enter"))
    served = property(operator.methodcaller("_serve"))
    left = property(operator.methodcaller("_leave"))

    def install(self) -> None:
        _signal(_PEEK, self._handler)

    def reinstall(self) -> None:
        """Takes the signal again if the last cell gave it to somebody else, and answers what was not answered because of that or
        because a handler that ran with ours raised: old versions forget the other signals then."""
        if _getsignal(_PEEK) is not self._handler:
            _signal(_PEEK, self._handler)
        try:
            fcntl.ioctl(self._control(), termios.FIONREAD, _unread)
        except OSError:
            # The program closed it.
            return
        if _unread[0]:
            self._answer_all()

    def take(self) -> tuple[dict[str, Any], list[int]] | None:
        """A datagram on the control socket that is not for the side door, or None when there is none now."""
        while not self._others:
            try:
                received = wire.receive_datagram(self._control(), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if received is None:
                return None
            self._sort(received)
        return self._others.pop(0)

    def _serve(self) -> None:
        """The handler's own part. Only what a handler of the program's raised meanwhile comes out of it."""
        tracer = self._tracers.pop()
        theirs = mask = None
        while mask is None:
            try:
                mask = _sigmask(_BLOCK, ())
                # Other signals wait, unless another thread takes them.
                _sigmask(_BLOCK, _ALL_SIGNALS)
            except BaseException as error:
                theirs = error
        # Run after this function, so that the frame which the waiting signals interrupt is the program's again.
        again = (map(signal.raise_signal, iter(functools.partial(self._postponed.pop, number, None), None)) for number in (_INT, _FORCE))
        self._leave = functools.partial(list, itertools.chain(*again, map(_unblock, [mask])))
        try:
            if self._busy:
                self._again = True
            else:
                self._answer_all()
        except BaseException as error:
            if theirs is None and _is_the_programs(error):
                theirs = error
        if type(tracer) is types.FunctionType or type(tracer) is types.MethodType:
            unwind.settrace(tracer)
        if theirs is not None:
            try:
                self._leave()
            finally:
                raise theirs

    def _answer_all(self) -> None:
        room = _room()
        if room < _ROOM_TO_REFUSE:
            return
        self._busy = True
        try:
            self._again = True
            while self._again:
                self._again = False
                while True:
                    try:
                        received = wire.receive_datagram(self._control(), socket.MSG_DONTWAIT)
                    except (BlockingIOError, wire.Garbage):
                        break
                    if received is None:
                        break
                    self._sort(received, room)
        finally:
            self._busy = False

    def _sort(self, received: tuple[dict[str, Any], list[int]], room: int = sys.maxsize) -> None:
        message, descriptors = received
        if message.get("op") != "peek":
            self._others.append((message, descriptors))
            return
        self._send(_answer(message.get("peek"), message.get("request"), self._look, room))

    def _send(self, data: bytes) -> None:
        control = self._control()
        try:
            control.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            # The daemon is slow. The program must not wait for it, but for a moment.
            waiting = select.poll()
            waiting.register(control, select.POLLOUT)
            if waiting.poll(_FULL_SOCKET_MS):
                try:
                    control.send(data, socket.MSG_DONTWAIT)
                except OSError:
                    return
        except OSError:
            return

    def _postpone(self, number: int) -> Callable[[], None]:
        return functools.partial(self._postponed.__setitem__, number, number)


def _answer(number: Any, request: Any, answer: Callable[[dict[str, Any]], dict[str, Any]], room: int) -> bytes:
    """The datagram that answers a request."""
    if type(request) is not dict or request.get("op") not in look.OPERATIONS:
        return wire.encode({"peek": number, "refused": "this cannot be done while a cell runs", "kind": "busy"})
    if unwind.forced:
        return wire.encode({"peek": number, "refused": "the cell is being interrupted", "kind": "busy"})
    if room < _ROOM_TO_LOOK:
        return wire.encode({"peek": number, "refused": "the program is close to its recursion limit", "kind": "busy"})
    bounds = dict(_BOUNDS)
    for _ in range(_HALVINGS):
        try:
            data = wire.encode({"peek": number, "answer": answer(_bounded(request, bounds))})
        except Exception as error:
            if _is_the_programs(error):
                raise
            return wire.encode({"peek": number, **paths.refusal(error, request.get("op"))})[:MAX_ANSWER_BYTES]
        if len(data) <= MAX_ANSWER_BYTES:
            return data
        bounds = {name: value // 2 for name, value in bounds.items()}
    return wire.encode({"peek": number, "refused": "the answer is too long to be given while a cell runs", "kind": "too_long"})


def _bounded(request: dict[str, Any], bounds: dict[str, int]) -> dict[str, Any]:
    bounded = dict(request)
    for name, most in bounds.items():
        value = bounded.get(name)
        if value is None and name == "depth":
            continue
        if value is None or (type(value) is int and value > most):
            bounded[name] = most
    return bounded


def _room() -> int:
    """How many calls are left before the recursion limit, roughly: calls of C functions cannot be seen."""
    frame: Any = _getframe()
    depth = 0
    while frame is not None:
        depth += 1
        frame = frame.f_back
    return _getrecursionlimit() - depth


def _is_the_programs(error: BaseException) -> bool:
    """Whether a signal handler of the program's raised it while we were looking. We raise nothing that is no `Exception`."""
    if not isinstance(error, Exception):
        return True
    handlers = [_getsignal(number) for number in range(1, signal.NSIG)]
    handlers = [handler.__func__ if type(handler) is types.MethodType else handler for handler in handlers]
    codes = [handler.__code__ for handler in handlers if type(handler) is types.FunctionType]
    entry = error.__traceback__
    while entry is not None:
        if any(entry.tb_frame.f_code is code for code in codes):
            return True
        entry = entry.tb_next
    return False


def _unseen(tracers: list[Any]) -> Callable[[], Any]:
    """A C callable that notes the program's trace function and switches it off. A tracer that is not a Python function is left alone:
    it could not be put back with `sys.settrace`."""
    off = functools.partial(unwind.settrace, None)
    switch = {types.FunctionType: off, types.MethodType: off}.get
    never = object()
    note = map(tracers.append, iter(sys.gettrace, never))
    act = map(operator.methodcaller("__call__"), map(switch, map(type, iter(sys.gettrace, never)), itertools.repeat(int)))
    return zip(note, act).__next__
