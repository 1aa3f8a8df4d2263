"""What is known of one failing test: exception and chain, frames with their source and locals, output. Called by reporting.py at a failure.

Values are shown by preview.py, which runs none of the program's code; only the exception is asked for its text, as pytest has done before.
Every part is cut to a bound of its own, and `cut` names those that were. The fields are those of `Evidence`
in crates/failures/src/record.rs.
"""

from __future__ import annotations

import builtins
import io
import linecache
import os
import re
import sys
from itertools import islice
from typing import Any, Callable, Iterator, List, Tuple

from . import errors, lookups, paths, preview, statements, wire
from .git_state import Code

MAX_MESSAGE_CHARS = 16 << 10
MAX_TEXT_CHARS = 64 << 10
MAX_OUTPUT_CHARS = 32 << 10
MAX_FRAMES = 40
_MAX_CHAIN = 10
_MAX_CHAIN_FRAMES = 15
_MAX_TRACEBACK = 20_000
_MAX_NOTES = 20
_MAX_LOCALS = 40
_MAX_VALUE_CHARS = 400
_MAX_INNER_CHARS = 120
_MAX_ITEMS = 20
# Of all values of one failure together.
_MAX_LOCALS_CHARS = 48 << 10
_MAX_LINE_CHARS = 400
_MAX_GLOBALS = 100
_MAX_EXAMPLES = 5
_LINES_BEFORE, _LINES_AFTER = 5, 2

_OPTIMIZED = 0x1
_NAME = re.compile(r"[^\W\d]\w*")
_OUTPUTS = (("Captured stdout", "stdout"), ("Captured stderr", "stderr"), ("Captured log", "log"))


# Frames with the lines they were at, innermost first.
Entries = List[Tuple[Any, int]]
# The same with the instruction.
_Failing = List[Tuple[Any, int, int]]


def collect(error: BaseException, report: Any, code: Code, meanwhile: Callable[[Entries], None] | None = None) -> dict[str, Any]:
    """Of an exception that a test ended with. `meanwhile` is called with the frames that it will be about, before the rest is done."""
    collector = _Collector(code)
    entries = collector.entries(error, MAX_FRAMES)
    if meanwhile is not None:
        meanwhile([(frame, line) for frame, line, _ in entries])
    fields: dict[str, Any] = {"exception": collector.exception(error, entries)}
    fields["frames"] = [collector.frame(*entry) for entry in entries]
    try:
        fields["cwd"] = wire.clean(os.getcwd())
    except OSError:
        # The test removed it.
        pass
    chain = [collector.linked(relation, link) for relation, link in _chain(error)]
    if chain:
        fields["chain"] = chain
    if collector.modules:
        fields["modules"] = collector.modules
    _add_report(fields, report, collector.cut)
    return fields


def of_report(report: Any) -> dict[str, Any]:
    """Of a report alone: an expected failure that passed, a worker that crashed, subtests that failed."""
    text = _printed(report)[0]
    kind = "Failed" if getattr(report, "when", None) in ("setup", "call", "teardown", "collect") else "Crashed"
    cut: list[str] = []
    # The stacks of a process that crashed are not what it is known by.
    message = text.partition("\n\n")[0] if kind == "Crashed" else text
    fields: dict[str, Any] = {"exception": {"type": kind, "message": _cut(message, MAX_MESSAGE_CHARS, "message", cut)}, "frames": []}
    _add_report(fields, report, cut)
    return fields


def _add_report(fields: dict[str, Any], report: Any, cut: list[str]) -> None:
    fields["text"], was_cut = _printed(report)
    if was_cut:
        cut.append("text")
    for title, name in _OUTPUTS:
        parts = [content for section, content in getattr(report, "sections", ()) if section.startswith(title) and content]
        if parts:
            fields[name] = _cut("".join(parts), MAX_OUTPUT_CHARS, name, cut)
    if cut:
        fields["cut"] = sorted(set(cut))


class _Collector:
    def __init__(self, code: Code) -> None:
        self.code = code
        self.cut: list[str] = []
        self._left = _MAX_LOCALS_CHARS
        self.modules: dict[str, dict[str, str]] = {}

    def exception(self, error: BaseException, entries: _Failing) -> dict[str, Any]:
        kind = type(error)
        told: dict[str, Any] = {"type": wire.clean(paths.short_name(kind)), "message": self._message(error)}
        module = paths.module_name(kind)
        if module != "builtins":
            told["module"] = wire.clean(module)
        if errors.is_a(error, SyntaxError) and type(error.filename) is str and type(error.lineno) is int:
            told["syntax"] = {"file": self.code.place(error.filename)[0], "line": error.lineno}
            if type(error.text) is str:
                told["syntax"]["text"] = wire.clean(error.text.strip()[:_MAX_LINE_CHARS])
        notes = (paths.instance_dict(error) or {}).get("__notes__")
        if type(notes) is list and notes:
            kept = [note for note in notes[:_MAX_NOTES] if errors.is_a(note, str)]
            told["notes"] = [_cut(note, MAX_MESSAGE_CHARS // 4, "notes", self.cut) for note in kept]
        try:
            self._look_up(told, error, entries)
        except Exception:
            # An exception class of the program's that is not what it seems: there is one thing less to go by.
            pass
        return told

    def _look_up(self, told: dict[str, Any], error: BaseException, entries: _Failing) -> None:
        frames = [entry[0] for entry in entries]
        own = [frame for frame in frames if self.code.place(frame.f_code.co_filename)[1]]
        for name, module in lookups.modules([*own, *frames], told["message"], self.code.place).items():
            self.modules.setdefault(name, module)
        raised, line, _ = entries[0] if entries else (None, 0, 0)
        text = linecache.getline(raised.f_code.co_filename, line, raised.f_globals) if raised is not None else ""
        found = lookups.missing(error, told["message"], raised, text)
        if found is not None:
            told["lookup"] = found

    def _message(self, error: BaseException) -> str:
        try:
            text = error.msg if errors.is_a(error, SyntaxError) and errors.is_a(error.msg, str) else self._doctest(error)
            text = _quietly(lambda: str(error)) if text is None else text
            return _cut(text, MAX_MESSAGE_CHARS, "message", self.cut)
        except Exception as problem:
            return f"<str() of the exception failed: {errors.type_name(type(problem))}>"
        except BaseException as problem:
            if errors.is_a(problem, KeyboardInterrupt):
                raise
            return f"<str() of the exception failed: {errors.type_name(type(problem))}>"

    def _doctest(self, error: BaseException) -> str | None:
        """What the examples of a doctest printed, and what they should have: such an exception itself only names the test."""
        if type(error).__name__ not in ("DocTestFailure", "UnexpectedException", "MultipleDoctestFailures"):
            return None
        told = []
        for failure in list(getattr(error, "failures", None) or [error])[:_MAX_EXAMPLES]:
            test, example = getattr(failure, "test", None), getattr(failure, "example", None)
            if test is None or example is None:
                return None
            if hasattr(failure, "got"):
                got = failure.got
            else:
                kind, value, _ = failure.exc_info
                got = f"{kind.__name__}: {_quietly(lambda value=value: str(value))}"  # type: ignore[misc]
            line = (test.lineno or 0) + example.lineno + 1
            told.append(
                f"{self.code.place(str(test.filename))[0]}:{line}: `{example.source.strip()}`\n"
                f"Expected:\n{_indented(example.want)}\nGot:\n{_indented(got)}"
            )
        return "\n\n".join(told)

    def linked(self, relation: str, error: BaseException) -> dict[str, Any]:
        entries = self.entries(error, _MAX_CHAIN_FRAMES)
        told = self.exception(error, entries)
        return {"relation": relation, "exception": told, "frames": [self.frame(*entry) for entry in entries]}

    def entries(self, error: BaseException, most: int) -> _Failing:
        """Frames and their lines, innermost first, without pytest's own around the test. Many are cut in the middle."""
        found: _Failing = []
        entry = error.__traceback__
        while entry is not None and len(found) < _MAX_TRACEBACK:
            found.append((entry.tb_frame, entry.tb_lineno or entry.tb_frame.f_code.co_firstlineno, entry.tb_lasti))
            entry = entry.tb_next
        own = [at for at, (frame, _, _) in enumerate(found) if self.code.place(frame.f_code.co_filename)[1]]
        shown = found[own[0] :] if own else found
        visible = [entry for entry in shown if not _is_hidden(entry[0])]
        shown = visible or shown
        if len(shown) > most:
            self.cut.append("frames")
            shown = shown[: most // 3] + shown[-(most - most // 3) :]
        return shown[::-1]

    def frame(self, frame: Any, line: int, instruction: int) -> dict[str, Any]:
        code = frame.f_code
        file, in_app = self.code.place(code.co_filename)
        told: dict[str, Any] = {"file": file, "line": line, "function": wire.clean(getattr(code, "co_qualname", None) or code.co_name)}
        module = frame.f_globals.get("__name__")
        if type(module) is str:
            told["module"] = wire.clean(module)
        told["in_app"] = in_app
        self._add_source(told, frame, line, instruction)
        if in_app:
            self._add_locals(told, frame)
        return told

    def _add_source(self, told: dict[str, Any], frame: Any, line: int, instruction: int) -> None:
        try:
            lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        except Exception:
            return
        if not 1 <= line <= len(lines):
            return
        first = last = line
        if told["in_app"]:
            begin, end = statements.around(lines, frame.f_code.co_firstlineno, line)
            first = min(begin, max(1, line - _LINES_BEFORE, min(frame.f_code.co_firstlineno, line)))
            last = max(end, line + _LINES_AFTER)
            told["statement"] = [begin, end]
        kept = lines[first - 1 : last]
        told["source"] = {"first": first, "lines": [wire.clean(text.rstrip("\n")[:_MAX_LINE_CHARS]) for text in kept]}
        failing = statements.failing(frame.f_code, instruction, lines)
        if failing:
            told["expression"] = wire.clean(failing[:_MAX_LINE_CHARS])
        if told["in_app"]:
            known = {name for text in kept for name in _NAME.findall(text)}
            names = frame.f_globals.keys() | vars(builtins).keys()
            found = sorted(name for name in known if name in names)
            if found:
                told["globals"] = [wire.clean(name) for name in found[:_MAX_GLOBALS]]

    def _add_locals(self, told: dict[str, Any], frame: Any) -> None:
        values = _variables(frame)
        listed = []
        for name, value in values[:_MAX_LOCALS]:
            if self._left <= 0:
                break
            text = shown(value)
            self._left -= len(text) + len(name)
            listed.append({"name": wire.clean(name), "type": wire.clean(paths.type_name(type(value))), "value": text})
        if listed:
            told["locals"] = listed
        if len(listed) < len(values):
            told["more_locals"] = len(values) - len(listed)
            self.cut.append("locals")


def shown(value: Any) -> str:
    """A value as text, bounded, without running any of its code: what only that could tell is told by its attributes."""
    try:
        text = preview.render(value, _MAX_VALUE_CHARS, _MAX_INNER_CHARS, most=_MAX_ITEMS).text
        if text.startswith("<") and text.endswith(" object>"):
            fields = paths.instance_dict(value)
            if fields:
                parts = [f"{name}={preview.render(field, 80, 60, most=4).text}" for name, field in islice(fields.items(), 12)]
                text = f"{text[:-1]} {' '.join(parts)}{'' if len(fields) <= 12 else ' …'}>"
        return wire.clean(text[: 2 * _MAX_VALUE_CHARS])
    except Exception:
        return f"<{errors.type_name(type(value))} object>"


def _variables(frame: Any) -> list[tuple[str, Any]]:
    values = frame.f_locals
    is_function = bool(frame.f_code.co_flags & _OPTIMIZED)
    if not is_function and type(values) is not dict:
        # A class body whose names are kept by code of the program's.
        return []
    names = [(name, value) for name, value in dict(values).items() if type(name) is str and name.isidentifier() and name[:2] != "__"]
    if is_function:
        return names
    # What a module has imported and defined is in its source.
    return [(name, value) for name, value in names if not errors.is_a(value, _DEFINITIONS) and name[:1] != "_"]


_DEFINITIONS = (type, type(os), type(lambda: None), type(len))


def _is_hidden(frame: Any) -> bool:
    if not frame.f_code.co_flags & _OPTIMIZED:
        return False
    return frame.f_locals.get("__tracebackhide__") is True or frame.f_globals.get("__tracebackhide__") is True


def _chain(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """What the exception groups, and what it was raised from or during, nearest first."""
    seen = {id(error)}
    waiting: list[tuple[str, BaseException]] = _links(error)
    while waiting and len(seen) <= _MAX_CHAIN:
        relation, link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield relation, link
        waiting += _links(link)


def _links(error: BaseException) -> list[tuple[str, BaseException]]:
    found: list[tuple[str, BaseException]] = []
    if _is_group(error):
        found += [("group", member) for member in error.exceptions if errors.is_a(member, BaseException)]  # type: ignore[attr-defined]
    if error.__cause__ is not None:
        found.append(("cause", error.__cause__))
    elif error.__context__ is not None and not error.__suppress_context__:
        found.append(("context", error.__context__))
    return found


def _is_group(error: BaseException) -> bool:
    """Whether it is a group of the language's, or of the package that brings them to older versions."""
    named = {cls.__name__ for cls in type(error).__mro__}
    return "BaseExceptionGroup" in named and type(getattr(error, "exceptions", None)) is tuple


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip("\n").split("\n"))


def _cut(text: str, limit: int, name: str, cut: list[str]) -> str:
    if len(text) > limit:
        cut.append(name)
    # Cut first: a message may have any size.
    return wire.clean(errors.cut(str(text), limit))


def _quietly(act: Callable[[], str]) -> str:
    """What is printed meanwhile would be taken for output of the next test."""
    kept = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.StringIO()
    try:
        return act()
    finally:
        sys.stdout, sys.stderr = kept


def _printed(report: Any) -> tuple[str, bool]:
    """The report as pytest prints it, and whether it was cut."""
    longrepr = getattr(report, "longrepr", None)
    file = _Bounded(MAX_TEXT_CHARS)
    try:
        if hasattr(longrepr, "toterminal"):
            from _pytest._io import TerminalWriter

            writer = TerminalWriter(file)  # type: ignore[arg-type]
            writer.hasmarkup = False
            longrepr.toterminal(writer)
        elif longrepr is not None:
            file.write(longrepr if isinstance(longrepr, str) else str(longrepr))
    except Exception as problem:
        file.write(f"(the rest of it could not be printed: {errors.type_name(type(problem))})")
    return wire.clean(file.text().strip("\n")), file.was_cut


class _Bounded:
    """A file that keeps the beginning and the end of what is written to it."""

    encoding = "utf-8"

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head: list[str] = []
        self._size = 0
        self._tail = ""
        self._missing = 0

    @property
    def was_cut(self) -> bool:
        return self._missing > 0

    def write(self, text: str) -> int:
        room = self._half - self._size
        if room > 0:
            head = text[:room]
            self._head.append(head)
            self._size += len(head)
        if len(text) > max(room, 0):
            rest = text[max(room, 0) :] if len(text) - max(room, 0) <= self._half else text[-self._half :]
            self._missing += len(text) - max(room, 0) - len(rest)
            joined = self._tail + rest
            self._missing += max(0, len(joined) - self._half)
            self._tail = joined[-self._half :]
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def text(self) -> str:
        between = f"\n… {self._missing} characters left out …\n" if self._missing else ""
        return "".join(self._head) + between + self._tail
