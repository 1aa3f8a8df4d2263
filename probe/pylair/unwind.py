"""The interrupt ladder's signals. Runs in the worker, on its main thread.

SIGUSR1 writes the stacks of all threads to the dump descriptor (faulthandler, no Python involved). SIGINT raises KeyboardInterrupt.
SIGRTMIN+1 raises it again and again, at every line, until the cell is gone: for code that catches KeyboardInterrupt. The last two
raise only if a frame of a cell is on the stack, which is decided by looking at the stack and not by a flag that could be stale.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import types
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from _signal import signal as _signal
from types import CodeType, FrameType
from typing import Any, Callable

FORCE_SIGNAL = signal.SIGRTMIN + 1
# What is executed in a session, and in an app.
CELL_PREFIXES = ("<cell ", "<call ")
_TOOL_ID = 4

Act = Callable[[], None]

# Functions of ours that stand for the cell while its own frames are off the stack: in the event loop, in a result's repr. With
# each, what to do instead of raising and instead of forcing.
_stand_ins: dict[CodeType, tuple[Act | None, Act | None]] = {}

# Not empty: a signal of ours raised in this cell.
raised: list[int] = []
# Not empty: a forced unwind is on. A list, so that testing it calls nothing: while it is on, any Python call may raise.
forced: list[Any] = []

settrace = sys.settrace
# Plain numbers: the enums of `signal` are slow, and make many pages of a worker its own.
_INT, _USR1, _FORCE, _DEFAULT = int(signal.SIGINT), int(signal.SIGUSR1), int(FORCE_SIGNAL), int(signal.SIG_DFL)
# A copy of `sys.monitoring`, which is a module that the program can change.
_monitoring = types.SimpleNamespace(**vars(sys.monitoring)) if hasattr(sys, "monitoring") else None  # type: ignore[attr-defined]
_async_raise: Any = None
_dump_fd = -1
# What the probe handles here; the program's handlers of these last for a cell.
SIGNALS = (_INT, _USR1, _FORCE)


# How the file names of the probe's own code begin: "<pylair/", or a directory where it is installed as a package.
OUR_PREFIX = (lambda: None).__code__.co_filename.rpartition("/")[0] + "/"


def stand_for_cell(function: Any, interrupt: Act | None = None, force: Act | None = None) -> Any:
    """Marks a function so that a signal that arrives below it counts as arriving in the cell."""
    _stand_ins[function.__code__] = interrupt, force
    return function


def _cell_code(frame: FrameType | None) -> CodeType | None:
    """The innermost code on the stack that is a cell's or stands for it."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(CELL_PREFIXES) or code in _stand_ins:
            return code
        frame = frame.f_back
    return None


def _interrupt(signum: int, frame: FrameType | None) -> None:
    code = _cell_code(frame)
    if code is None:
        return
    raised.append(signum)
    instead, _ = _stand_ins.get(code, _RAISE)
    if instead is None:
        raise KeyboardInterrupt
    instead()


def _force(signum: int, frame: FrameType | None) -> None:
    code = _cell_code(frame)
    if code is None:
        return
    raised.append(signum)
    _, instead = _stand_ins.get(code, _RAISE)
    if instead is not None:
        instead()
        return
    if not forced:
        if _monitoring is not None:
            _force_by_monitoring()
        else:
            _force_by_tracing(frame)
    raise KeyboardInterrupt


_RAISE = (None, None)


def _force_by_monitoring() -> None:
    """3.12 and later: a callback at every line, jump and call of code that is not ours."""
    monitoring: Any = _monitoring
    tool = next((tool for tool in (_TOOL_ID, 3) if monitoring.get_tool(tool) is None), None)
    if tool is None:
        return
    events = monitoring.events

    def unwind(code: CodeType, *_: Any) -> Any:
        if code.co_filename.startswith(OUR_PREFIX):
            return monitoring.DISABLE
        raise KeyboardInterrupt

    monitoring.use_tool_id(tool, "pylair")
    forced.append(tool)
    watched = (events.LINE, events.JUMP, events.PY_START, events.PY_RESUME)
    for event in watched:
        monitoring.register_callback(tool, event, unwind)
    monitoring.set_events(tool, sum(watched))
    # Locations that answered DISABLE in an earlier unwind stay silent otherwise.
    monitoring.restart_events()


def _force_by_tracing(frame: FrameType | None) -> None:
    """3.8 to 3.11: a tracer that sets an asynchronous exception at every line.

    CPython removes a tracer that raises, so it must not raise itself; and a tracer written in Python would be hit by the very
    exception it set. It is made of C callables only: a partial of PyThreadState_SetAsyncExc whose result, through the dictionary that
    converts it, is the tracer again.
    """
    import ctypes
    import functools
    import threading

    global _async_raise
    objects = [ctypes.py_object] * 4
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, *objects)
    _async_raise = prototype(("PyThreadState_SetAsyncExc", ctypes.pythonapi))
    tracer_for: dict = {}
    _async_raise.restype = tracer_for.__getitem__
    tracer = functools.partial(_async_raise, threading.get_ident(), KeyboardInterrupt)
    tracer_for[0] = tracer_for[1] = tracer
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OUR_PREFIX):
            frame.f_trace = tracer  # type: ignore[assignment]
            frame.f_trace_lines = True
        frame = frame.f_back
    forced.append(tracer)
    settrace(tracer)


def settle() -> None:
    """Ends a forced unwind if one is on. Nothing raises in our code after it."""
    while forced:
        try:
            settrace(None)
            _stop_forcing()
        except KeyboardInterrupt:
            continue


def _stop_forcing() -> None:
    if _monitoring is not None:
        _monitoring.set_events(forced[0], 0)
        _monitoring.free_tool_id(forced[0])
    else:
        import ctypes
        import threading

        # An exception that was set and not raised yet would go off in our own code.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
    forced.clear()


def install(dump_fd: int) -> None:
    """Takes the signals. Crashes and SIGUSR1 write stacks to the descriptor."""
    global _dump_fd
    _dump_fd = dump_fd
    _signal(_INT, _interrupt)
    _signal(_FORCE, _force)
    _register_dump()
    faulthandler.enable(file=dump_fd, all_threads=True)


def _register_dump() -> None:
    if hasattr(faulthandler, "register"):
        faulthandler.register(_USR1, file=_dump_fd, all_threads=True, chain=False)


def reinstall() -> None:
    """Takes the signals again if the last cell gave them to somebody else."""
    if _getsignal(_INT) is not _interrupt:
        _signal(_INT, _interrupt)
    if _getsignal(_FORCE) is not _force:
        _signal(_FORCE, _force)
    handler = _getsignal(_USR1)
    if type(handler) is not int or handler != _DEFAULT:
        _signal(_USR1, _DEFAULT)
        # faulthandler believes that its handler is still there and would not install it again.
        faulthandler.unregister(_USR1)
        _register_dump()
