"""Exceptions and results of a cell as text. Runs in the worker.

Tracebacks show the program's frames and none of the probe's. Everything here works on hostile objects: a `__repr__`, `__str__` or
`__dir__` may raise anything, return nonsense or recurse.
"""

from __future__ import annotations

import linecache
import traceback
from typing import Any, Iterator

from . import unwind, wire

MAX_TRACEBACK_CHARS = 64 << 10
MAX_MESSAGE_CHARS = 8 << 10

# Types that have no form but their text, for a quick answer about nearly all values.
PLAIN = frozenset(
    (bool, bytes, complex, dict, float, frozenset, int, list, range, set, slice, str, tuple, type, type(None), type(len), type(lambda: 0))
)


PLAIN_IDS = frozenset(map(id, PLAIN))

# Straight from the built-in classes: those of the program may have anything under these names.
_qualname_of = type.__dict__["__qualname__"].__get__
_module_of = type.__dict__["__module__"].__get__
traceback_of = BaseException.__dict__["__traceback__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_cause_of = BaseException.__dict__["__cause__"].__get__
_code_of = SystemExit.__dict__["code"].__get__
_filename_of = SyntaxError.__dict__["filename"].__get__
_lineno_of = SyntaxError.__dict__["lineno"].__get__

# How far a chain of exceptions is followed.
_MAX_CHAIN = 100
_MAX_PLAIN_FRAMES = 50


def type_name(kind: type) -> str:
    """The name of a class as Python prints it. Runs nothing of a metaclass."""
    name = wire.shortened(_qualname_of(kind))
    module = _module_of(kind)
    if not issubclass(type(module), str):
        return name
    module = wire.shortened(module)
    return name if module in ("__main__", "builtins") else f"{module}.{name}"


def is_a(error: Any, kind: type | tuple[type, ...]) -> bool:
    """`isinstance`, without asking the object for its `__class__`."""
    return issubclass(type(error), kind)


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
        text = _render_plainly(error, cell, said)
    return {
        "type": type_name(type(error)),
        "message": cut(said, MAX_MESSAGE_CHARS),
        "traceback": cut(wire.clean(text), MAX_TRACEBACK_CHARS),
        "line": cell_line(error, cell),
    }


def briefly(error: BaseException, cell: str) -> dict[str, Any]:
    """The same where that failed: with as little as can fail."""
    told: dict[str, Any] = {"type": type_name(type(error)), "message": "", "traceback": "", "line": None}
    try:
        told["message"] = cut(message(error), MAX_MESSAGE_CHARS)
        told["traceback"] = cut(wire.clean(_render_plainly(error, cell, told["message"])), MAX_TRACEBACK_CHARS)
        told["line"] = cell_line(error, cell)
    except BaseException:
        # Then this is all that can be said.
        pass
    return told


def message(error: BaseException) -> str:
    try:
        if is_a(error, SyntaxError) and is_a(error.msg, str):  # type: ignore[attr-defined]
            return wire.clean(error.msg)  # type: ignore[attr-defined]
        return wire.clean(str(error))
    except BaseException as problem:
        return f"<str() of the exception failed: {type_name(type(problem))}>"


def cell_line(error: BaseException, cell: str) -> int | None:
    """The innermost line of this cell that the exception passed, or where its syntax is wrong."""
    line = None
    entry = traceback_of(error)
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == cell:
            line = entry.tb_lineno
        entry = entry.tb_next
    if line is None and is_in_file(error, cell):
        line = _lineno_of(error)
    return line if type(line) is int else None


def is_in_file(error: BaseException, name: str) -> bool:
    """Whether it is a syntax error in the file of this name."""
    if not is_a(error, SyntaxError):
        return False
    filename = _filename_of(error)
    return type(filename) is str and filename == name


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
    for _ in range(_MAX_CHAIN):
        before = _context_of(error)
        if not is_a(error, KeyboardInterrupt) or not is_a(before, KeyboardInterrupt) or _passed_a_cell(error, cell):
            break
        error = before
    return error


def _passed_a_cell(error: BaseException, cell: str) -> bool:
    entry = traceback_of(error)
    while entry is not None:
        if _is_cell(entry.tb_frame.f_code.co_filename, cell):
            return True
        entry = entry.tb_next
    return False


def _is_cell(filename: str, cell: str) -> bool:
    return filename == cell or filename.startswith(unwind.CELL_PREFIXES)


def _render(error: BaseException, cell: str) -> str:
    report = traceback.TracebackException(type(error), error, traceback_of(error))
    if is_a(error, KeyboardInterrupt) and is_a(_context_of(error), KeyboardInterrupt):
        report.__context__ = None
    for part in _parts(report):
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(unwind.OUR_PREFIX)]
    # Frames above the first one of a cell are the event loop's or the compiler's: nothing that the program's author wrote.
    in_cell = (at for at, frame in enumerate(report.stack) if _is_cell(frame.filename, cell))
    del report.stack[: next(in_cell, len(report.stack))]
    if not report.stack and report.__cause__ is None and report.__context__ is None and not getattr(report, "exceptions", None):
        return "".join(report.format_exception_only())
    return "".join(report.format())


def plainly(error: BaseException) -> str:
    """All of a traceback, for an error of our own."""
    return _render_plainly(error, None, message(error))


def _render_plainly(error: BaseException, cell: str | None, said: str) -> str:
    """Where the exception, or what the program did to `traceback`, does not let it be rendered as Python does."""
    lines: list[str] = []
    entry = traceback_of(error)
    while entry is not None:
        code = entry.tb_frame.f_code
        is_ours = code.co_filename.startswith(unwind.OUR_PREFIX)
        if cell is None or (not is_ours and (lines or _is_cell(code.co_filename, cell))):
            lines.append(f'  File "{code.co_filename}", line {entry.tb_lineno}, in {code.co_name}\n' + _source_line(code, entry.tb_lineno))
        entry = entry.tb_next
    if len(lines) > _MAX_PLAIN_FRAMES:
        left_out = len(lines) - _MAX_PLAIN_FRAMES
        lines[_MAX_PLAIN_FRAMES // 2 : -_MAX_PLAIN_FRAMES // 2] = [f"  … {left_out} frames left out …\n"]
    if lines:
        lines.insert(0, "Traceback (most recent call last):\n")
    name = type_name(type(error))
    chained = _cause_of(error) is not None or _context_of(error) is not None
    rest = "\n(it was raised while another exception was handled)" if chained else ""
    return "".join(lines) + (f"{name}: {said}" if said else name) + rest + "\n"


def _source_line(code: Any, number: int) -> str:
    """The line as it was given to `linecache`; nothing is read."""
    try:
        line = linecache.cache[code.co_filename][2][number - 1]  # type: ignore[misc]
        return f"    {line.strip()}\n" if type(line) is str else ""
    except Exception:
        return ""


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
        return wire.plain(repr(value))
    except BaseException as problem:
        if unwind.raised and is_a(problem, KeyboardInterrupt):
            raise
        return f"<{type_name(type(value))} object; its repr failed: {type_name(type(problem))}: {cut(message(problem), 1000)}>"


def exit_code(error: SystemExit) -> str:
    """What `sys.exit` was called with."""
    code = _code_of(error)
    return "" if code is None else cut(represent(code), 200)


def exits_well(error: SystemExit) -> bool:
    """Whether `sys.exit` was called with nothing or zero."""
    code = _code_of(error)
    return code is None or (is_a(code, int) and int.__eq__(code, 0) is True)
