"""Calls what may run the program's code outside of a cell. Runs in the worker, on its main thread.

Such a call can be interrupted like a cell, raise anything, print, or fork and come back twice.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from . import errors, unwind

MAX_REASON_CHARS = 300


@unwind.stand_for_cell
def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """The function's result, or what it raised. An interrupt is one of the things that it may raise."""
    unwind.raised.clear()
    pid = os.getpid()
    result: Any = None
    error: BaseException | None = None
    # As around a cell: while a forced unwind is on, every Python call of ours may raise.
    try:
        try:
            result = _call(function, arguments)
        except BaseException as raised:
            if unwind.forced:
                unwind.settrace(None)
            error = raised
    except BaseException as raised:
        if unwind.forced:
            unwind.settrace(None)
        error = raised
    if unwind.forced:
        unwind.settle()
    if os.getpid() != pid:
        # The program's code forked, and this is the child.
        os._exit(0)
    return result, error


def was_interrupted(error: BaseException | None) -> bool:
    """Whether a signal of the daemon's ended the last attempt."""
    return isinstance(error, KeyboardInterrupt) and bool(unwind.raised)


def reason(error: BaseException) -> str:
    """An exception as a reason, in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    said = errors.message(error)
    return cut(f"{errors.type_name(type(error))}: {said}" if said else errors.type_name(type(error)))


def cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 1] + "…"
