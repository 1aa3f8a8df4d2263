"""Exceptions and results of a cell as text. Runs in the worker.

Tracebacks show the program's frames and none of the probe's. Everything here works on hostile objects: a `__repr__`, `__str__` or
`__dir__` may raise anything, return nonsense or recurse.
"""

from __future__ import annotations

import traceback
from typing import Any, Iterator

from . import unwind, wire

MAX_TRACEBACK_CHARS = 64 << 10
MAX_MESSAGE_CHARS = 8 << 10

# Types that have no form but their text, for a quick answer about nearly all values.
PLAIN = frozenset(
    (bool, bytes, complex, dict, float, frozenset, int, list, range, set, slice, str, tuple, type, type(None), type(len), type(lambda: 0))
)


def type_name(kind: type) -> str:
    """The name of an exception's class as Python prints it."""
    try:
        name = kind.__qualname__
        module = kind.__module__
        if module not in ("__main__", "builtins"):
            name = f"{module}.{name}"
        return wire.clean(name)
    except Exception:
        return "Exception"


@unwind.stand_for_cell
def describe(error: BaseException, cell: str) -> dict[str, Any]:
    """The `error` of a done frame. `cell` is the file name of the cell that ran, or of the script."""
    error = _visible_cause(error, cell)
    interrupts = len(unwind.raised)
    said = message(error)
    try:
        if len(unwind.raised) > interrupts:
            raise KeyboardInterrupt
        text = _render(error, cell)
    except BaseException:
        text = f"{type_name(type(error))}: {said}\n(its traceback could not be rendered)\n"
    return {
        "type": type_name(type(error)),
        "message": cut(said, MAX_MESSAGE_CHARS),
        "traceback": cut(wire.clean(text), MAX_TRACEBACK_CHARS),
        "line": cell_line(error, cell),
    }


def message(error: BaseException) -> str:
    try:
        if isinstance(error, SyntaxError) and isinstance(error.msg, str):
            return wire.clean(error.msg)
        return wire.clean(str(error))
    except BaseException as problem:
        return f"<str() of the exception failed: {type_name(type(problem))}>"


def cell_line(error: BaseException, cell: str) -> int | None:
    """The innermost line of this cell that the exception passed, or where its syntax is wrong."""
    line = None
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == cell:
            line = entry.tb_lineno
        entry = entry.tb_next
    if line is None and isinstance(error, SyntaxError) and error.filename == cell:
        line = error.lineno
    return line if type(line) is int else None


def cut(text: str, limit: int) -> str:
    """The text, or its head and tail with a line between them that says how much is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def a(words: str) -> str:
    """The words with the article that they begin with."""
    return f"{'an' if words[:1] in 'aeioAEIO' else 'a'} {words}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _visible_cause(error: BaseException, cell: str) -> BaseException:
    """The interrupt that the program saw. A forced unwind raises one after the other, and the last may be raised outside the cell."""
    while isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, KeyboardInterrupt):
        if _passed_a_cell(error, cell):
            break
        error = error.__context__
    return error


def _passed_a_cell(error: BaseException, cell: str) -> bool:
    entry = error.__traceback__
    while entry is not None:
        if _is_cell(entry.tb_frame.f_code.co_filename, cell):
            return True
        entry = entry.tb_next
    return False


def _is_cell(filename: str, cell: str) -> bool:
    return filename == cell or filename.startswith(unwind.CELL_PREFIXES)


def _render(error: BaseException, cell: str) -> str:
    report = traceback.TracebackException(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, KeyboardInterrupt):
        report.__context__ = None
    for part in _parts(report):
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(unwind.OUR_PREFIX)]
    # Frames above the first one of a cell are the event loop's or the compiler's: nothing that the program's author wrote.
    in_cell = (at for at, frame in enumerate(report.stack) if _is_cell(frame.filename, cell))
    del report.stack[: next(in_cell, len(report.stack))]
    if not report.stack and report.__cause__ is None and report.__context__ is None and not getattr(report, "exceptions", None):
        return "".join(report.format_exception_only())
    return "".join(report.format())


def _parts(report: Any) -> Iterator[Any]:
    """The report with all that it is chained to or groups."""
    seen = set()
    waiting = [report]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]


def represent(value: Any) -> str:
    """`repr(value)`, or a sentence about why there is none. Only an interrupt passes through."""
    try:
        return repr(value)
    except BaseException as problem:
        if unwind.raised and isinstance(problem, KeyboardInterrupt):
            raise
        return f"<{type_name(type(value))} object; its repr failed: {type_name(type(problem))}: {cut(message(problem), 1000)}>"


def exit_code(error: SystemExit) -> str:
    """What `sys.exit` was called with."""
    return "" if error.code is None else cut(represent(error.code), 200)
