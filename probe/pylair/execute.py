"""Runs cells and scripts in a persistent `__main__`. Runs in the worker, on its main thread.

A cell is compiled and evaluated like input of the interactive interpreter: the value of a last expression is the result, unless a
semicolon follows it. What the cell did to the namespace is told by comparing names and ids before and after; no reference is held.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import linecache
import operator
import sys
import time
import types
from collections import deque
from typing import Any, Callable, Dict, Tuple

from . import errors, files, look, magics, paths, script, unwind
from .display import Displays
from .event_loop import EventLoop
from .output import Output
from .rich import PLAIN

MAX_RESULT_INLINE_CHARS = 32 << 10
MAX_RESULT_CHARS = 4 << 20
MAX_NAMES = 100
MAX_SOURCE_CHARS_KEPT = 64 << 20

# A look at the directories takes longer than this, and no cell makes a file in it.
_TOO_SHORT_FOR_FILES_NS = 10_000

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_CO_COROUTINE = 0x80
FUTURES = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
_STATEMENTS = frozenset(
    [
        "assert",
        "async",
        "break",
        "class",
        "continue",
        "def",
        "del",
        "for",
        "from",
        "global",
        "if",
        "import",
        "nonlocal",
        "pass",
        "raise",
        "return",
        "try",
        "while",
        "with",
        "@",
    ]
)

Code = types.CodeType
Answer = Tuple[Dict[str, Any], bytes]


class Cells:
    """The session's namespace and everything that lives from cell to cell."""

    def __init__(self, output: Output, link: Any) -> None:
        self.output = output
        self.displays = Displays(link, output)
        self.files = files.Files()
        self.loop = EventLoop()
        self.module = types.ModuleType("__main__")
        self.namespace = self.module.__dict__
        self.namespace["__builtins__"] = builtins
        self._names, self._ids = _snapshot(self.namespace)
        self._flags = _AWAIT
        self._sources: deque[tuple[str, str]] = deque()
        self._source_chars = 0
        self._interrupted_early = False
        for function in (Cells.execute, Cells.run_file, Cells._cell):
            unwind.stand_for_cell(function, self._interrupt_early, self._interrupt_early)
        unwind.stand_for_cell(Cells._run)

    def install(self) -> None:
        sys.modules["__main__"] = self.module
        self.displays.install()

    def clear(self) -> None:
        """Empties the namespace, as if no cell had run. Modules stay loaded."""
        self.namespace.clear()
        self.namespace.update(types.ModuleType("__main__").__dict__)
        self.namespace["__builtins__"] = builtins
        builtins.__dict__.pop("_", None)
        self._flags = _AWAIT
        self._names, self._ids = _snapshot(self.namespace)

    def take_note(self) -> None:
        """What is in the namespace now was not put there by the next cell."""
        self._names, self._ids = _snapshot(self.namespace)

    def execute(self, request: dict[str, Any], blob: bytes) -> Answer:
        """Runs one cell. Returns the fields of its done frame, and its blob."""
        unwind.raised.clear()
        self._interrupted_early = False
        try:
            source = blob.decode("utf-8")
        except UnicodeDecodeError as error:
            return {"refused": f"the source is not UTF-8: {error}"}, b""
        if "path" in request:
            try:
                paths.check(str(request["path"]))
            except paths.Refused as refusal:
                return look.refusal(refusal, "execute"), b""
        if source.startswith("\ufeff"):
            source = source[1:]
        name = f"<cell {request['cell']}>"
        self.remember(source, name)
        # Without a call there is nothing in it that makes files.
        may_make_files = "(" in source or "import" in source
        return self._cell(request, name, source, self._compile, may_make_files)

    def run_file(self, request: dict[str, Any], blob: bytes) -> Answer:
        """Runs a file as `python FILE` does. Its names stay in the namespace; what was around it is put back."""
        unwind.raised.clear()
        self._interrupted_early = False
        try:
            path, source = script.read(request.get("file"))
        except script.Refused as refusal:
            return refusal.fields(), b""
        self.files.know(path)
        surroundings = script.Surroundings(self.module, path, request.get("name") or path, request.get("args") or [])
        try:
            return self._cell(request, path, source, _compile_script, True)
        finally:
            surroundings.leave()

    def _cell(self, request: dict[str, Any], name: str, source: Any, compiled: Callable[..., Any], look_for_files: bool) -> Answer:
        displays = self.displays
        displays.request = request
        result: str | None = None
        error: BaseException | None = None
        made_since = files.now() if look_for_files else 0
        cpu_started = time.process_time_ns()
        started = time.perf_counter_ns()
        # While a forced unwind is on, every Python call of ours may raise; so the first thing after the cell is to switch tracing
        # off without a call before it, and one exception that was already set may still arrive after that.
        try:
            try:
                body, last = compiled(source, name)
                result = self._run(body, last)
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
            self.loop.recover()
        duration = time.perf_counter_ns() - started
        cpu = time.process_time_ns() - cpu_started
        done: dict[str, Any] = {"outcome": "ok", "result": result}
        notes: list[str] = []
        if error is not None:
            self._failed(done, notes, error, name, source)
            # The traceback holds this frame, which would hold the exception.
            error = None
        self._name_changes(done)
        done["duration_us"] = duration // 1000
        done["cpu_us"] = cpu // 1000
        self.output.flush()
        if look_for_files and duration > _TOO_SHORT_FOR_FILES_NS:
            made = self.files.made(made_since, notes)
            if made:
                done["files"] = made
        if displays.touched:
            displays.finish(notes)
        displays.request = None
        note = self.output.note()
        if note is not None:
            notes.append(note)
        if notes:
            done["notes"] = notes
        return done, _place_result(done)

    def _run(self, body: Code | None, last: Code | None) -> str | None:
        """Runs the statements and the last expression. Returns the text of the result."""
        if self._interrupted_early:
            raise KeyboardInterrupt
        namespace = self.namespace
        displays = self.displays
        result = None
        try:
            if body is not None:
                value = eval(body, namespace)
                if body.co_flags & _CO_COROUTINE:
                    self.loop.run(value)
            if last is not None:
                value = eval(last, namespace)
                if last.co_flags & _CO_COROUTINE:
                    value = self.loop.run(value)
                if value is not None:
                    builtins._ = value  # type: ignore[attr-defined]
                    result = errors.represent(value) if type(value) in PLAIN else displays.result(value)
        except BaseException:
            if displays.pyplot is not None and not unwind.forced:
                # Whoever interrupts a cell does not want to wait for its figures.
                displays.leave_figures(draw=not unwind.raised)
            raise
        if displays.pyplot is not None:
            displays.leave_figures(draw=True)
        return result

    def _interrupt_early(self) -> None:
        """A signal came before the cell began; it ends as soon as it begins. One that came after it ended does nothing."""
        self._interrupted_early = True

    def _compile(self, source: str, name: str) -> tuple[Code | None, Code | None]:
        """The statements and the last expression, whichever there are."""
        if _looks_like_expression(source):
            # Straight from the text this takes half as long as by way of a tree.
            try:
                code = compile(source, name, "eval", self._flags, True)
            except SyntaxError:
                pass
            else:
                if code.co_flags & _CO_COROUTINE:
                    self.loop.prepare()
                return None, code
        tree = compile(source, name, "exec", self._flags | ast.PyCF_ONLY_AST, True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not _ends_with_semicolon(source, tree.body[-1]):
            last = ast.Expression(tree.body.pop().value)
        body_code = compile(tree, name, "exec", self._flags, True) if tree.body else None
        flags = self._flags
        if body_code is not None:
            flags |= body_code.co_flags & FUTURES
        last_code = compile(last, name, "eval", flags, True) if last is not None else None
        for code in (body_code, last_code):
            if code is not None and code.co_flags & _CO_COROUTINE:
                self.loop.prepare()
        # As at the interactive prompt, a `from __future__ import` holds from here on.
        self._flags = flags
        return body_code, last_code

    def remember(self, source: str, name: str) -> None:
        """Gives the source to `linecache`, for tracebacks and `inspect.getsource`. The oldest go when there are too many."""
        linecache.cache[name] = _cache_entry(name, source)
        self._sources.append((name, source))
        self._source_chars += len(source)
        while self._source_chars > MAX_SOURCE_CHARS_KEPT and len(self._sources) > 1:
            old, text = self._sources.popleft()
            self._source_chars -= len(text)
            linecache.cache.pop(old, None)

    def sources(self) -> list[tuple[str, str]]:
        """The names and sources of the cells that are remembered, oldest first."""
        return list(self._sources)

    def _failed(self, done: dict[str, Any], notes: list[str], error: BaseException, name: str, source: Any) -> None:
        done["outcome"] = "raised"
        done["result"] = None
        if isinstance(error, SyntaxError) and isinstance(source, str) and error.filename == name:
            hint = magics.hint(source, error.lineno)
            if hint is not None:
                notes.append(hint)
        if isinstance(error, SystemExit):
            who = "cell" if isinstance(source, str) else "file"
            notes.append(f"the {who} called sys.exit({_exit_code(error)}); the session goes on")
            if error.code is None or (isinstance(error.code, int) and error.code == 0):
                done["outcome"] = "ok"
                done["exited"] = True
                return
        if isinstance(error, KeyboardInterrupt) and unwind.raised:
            done["outcome"] = "interrupted"
        # `linecache.clearcache()` may have been called.
        for cell, text in self._sources:
            if cell not in linecache.cache:
                linecache.cache[cell] = _cache_entry(cell, text)
        try:
            done["error"] = errors.describe(error, name)
        except BaseException:
            unwind.settle()
            done["error"] = {"type": errors.type_name(type(error)), "message": "", "traceback": "", "line": None}
        unwind.settle()

    def _name_changes(self, done: dict[str, Any]) -> None:
        names, ids = _snapshot(self.namespace)
        if ids == self._ids and names == self._names:
            done["new"] = done["changed"] = done["removed"] = []
            return
        before = dict(zip(self._names, self._ids))
        after = dict(zip(names, ids))
        self._names, self._ids = names, ids
        touched = _visible(name for name, _ in after.items() - before.items())
        lists = {
            "new": [name for name in touched if name not in before],
            "changed": [name for name in touched if name in before],
            "removed": _visible(before.keys() - after.keys()),
        }
        for key, names in lists.items():
            if len(names) > MAX_NAMES:
                del names[MAX_NAMES:]
                done["names_cut"] = True
            done[key] = names


def _compile_script(source: bytes, name: str) -> tuple[Code | None, Code | None]:
    return compile(source, name, "exec", 0, True), None


def _snapshot(namespace: dict[str, Any]) -> tuple[list[str], list[int]]:
    names, ids = list(namespace), list(map(id, namespace.values()))
    if len(names) == len(ids):
        return names, ids
    # A thread added a name in between.
    items = list(namespace.items())
    return [name for name, _ in items], [id(value) for _, value in items]


def _cache_entry(name: str, source: str) -> Any:
    # The compiler ends a line at \n, \r\n and \r only, so not `splitlines`.
    text = source.replace("\r\n", "\n").replace("\r", "\n") if "\r" in source else source
    return len(source), None, [line + "\n" for line in text.split("\n")], name


def _visible(names: Any) -> list[str]:
    return sorted(name for name in names if isinstance(name, str) and not name.startswith("_"))


def _looks_like_expression(source: str) -> bool:
    """Whether it is worth trying to compile the cell as one expression. A wrong answer costs microseconds, nothing else."""
    if len(source) > 1000 or "=" in source or ";" in source:
        return False
    words = source.split(None, 1)
    return bool(words) and "\n" not in source.strip() and words[0] not in _STATEMENTS


def _ends_with_semicolon(source: str, last: ast.stmt) -> bool:
    """Whether a semicolon follows the last statement. Behind it there can only be blanks and comments."""
    if ";" not in source:
        return False
    lines = source.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8").split(b"\n")
    end_line: int = last.end_lineno  # type: ignore[assignment]
    rest = lines[end_line - 1 : end_line + 1]
    rest[0] = rest[0][last.end_col_offset :]
    return b"\n".join(rest).lstrip(b" \t\f\\\n").startswith(b";")


def _exit_code(error: SystemExit) -> str:
    return "" if error.code is None else errors.cut(errors.represent(error.code), 200)


def _place_result(done: dict[str, Any]) -> bytes:
    """Moves a long result from the header to the blob, cut to its limit."""
    result = done["result"]
    if result is None or len(result) <= MAX_RESULT_INLINE_CHARS:
        return b""
    done["result"] = None
    if len(result) > MAX_RESULT_CHARS:
        done["result_chars"] = len(result)
        result = result[:MAX_RESULT_CHARS]
    return result.encode("utf-8", "backslashreplace")
