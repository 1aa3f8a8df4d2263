"""Runs cells and scripts in a persistent `__main__`. Runs in the worker, on its main thread.

A cell is compiled and evaluated like input of the interactive interpreter: the value of a last expression is the result, unless a
semicolon follows it. What the cell did to the namespace is told by comparing names and ids before and after; no reference is held.
"""

from __future__ import annotations

import builtins
import sys
import time
import types
from typing import Any, Callable, Dict, Tuple

from . import cell, errors, files, magics, paths, script, unwind, wire
from .cell import Code
from .display import Displays
from .event_loop import EventLoop
from .handlers import Handlers
from .output import Output
from .peek import PEEK_SIGNAL
from .rich import PLAIN_IDS
from .tracing import run_program

MAX_SOURCE_CHARS_KEPT = 64 << 20

# A look at the directories takes longer than this, and no cell makes a file in it.
_TOO_SHORT_FOR_FILES_NS = 10_000

Answer = Tuple[Dict[str, Any], bytes]

# Calls that the probe needs for itself after a cell has set the recursion limit.
LEAST_RECURSION = 300

_getrecursionlimit, _setrecursionlimit = sys.getrecursionlimit, sys.setrecursionlimit
_BUILTINS, _SYS = builtins.__dict__, sys.__dict__


class Cells:
    """The session's namespace and everything that lives from cell to cell."""

    def __init__(self, output: Output, link: Any) -> None:
        self.output = output
        self.handlers = Handlers((*unwind.SIGNALS, int(PEEK_SIGNAL)))
        self.displays = Displays(link, output)
        self.files = files.Files()
        self.loop = EventLoop()
        self.module = types.ModuleType("__main__")
        self.namespace = self.module.__dict__
        self.namespace["__builtins__"] = builtins
        self._names = cell.Names(self.namespace)
        self._flags = cell.AWAIT
        self._sources = cell.Sources(MAX_SOURCE_CHARS_KEPT)
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
        _BUILTINS.pop("_", None)
        self._flags = cell.AWAIT
        self._names = cell.Names(self.namespace)

    def repair(self) -> None:
        """Puts back what later cells cannot do without."""
        found = self.namespace.get("__builtins__")
        if type(found) is not types.ModuleType and type(found) is not dict:
            self.namespace["__builtins__"] = builtins
        modules = _SYS.get("modules")
        if type(modules) is dict and "__main__" not in modules:
            modules["__main__"] = self.module

    def take_note(self) -> None:
        """What is in the namespace now was not put there by the next cell."""
        self._names = cell.Names(self.namespace)

    def execute(self, request: dict[str, Any], blob: bytes) -> Answer:
        """Runs one cell. Returns the fields of its done frame, and its blob."""
        unwind.raised.clear()
        self._interrupted_early = False
        try:
            source = cell.text(blob)
        except UnicodeDecodeError as error:
            return {"refused": f"the source is not UTF-8: {error}"}, b""
        if "path" in request:
            try:
                path = str(request["path"])
                paths.check(path)
                paths.check_assigned(path, source, self.namespace)
            except paths.Refused as refusal:
                return paths.refusal(refusal, "execute"), b""
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
            path, source = script.given(request.get("file"), blob) if blob else script.read(request.get("file"))
        except script.Refused as refusal:
            return refusal.fields(), b""
        if blob:
            # The compiler took it for UTF-8 or read its encoding cookie; lines in tracebacks need no more than this.
            self.remember(source.decode("utf-8", "replace"), path)
        self.files.know(path)
        surroundings = script.Surroundings(self.module, path, request.get("name") or path, request.get("args") or [])
        try:
            return self._cell(request, path, source, _compile_script, True)
        finally:
            surroundings.leave()

    def _cell(self, request: dict[str, Any], name: str, source: Any, compiled: Callable[..., Any], look_for_files: bool) -> Answer:
        self.displays.request = request
        result: str | None = None
        error: BaseException | None = None
        handlers = self.handlers
        made_since = files.now() if look_for_files else 0
        cpu_started = time.process_time_ns()
        started = time.perf_counter_ns()
        # While a forced unwind is on, one exception that was already set may still arrive after the cell; and while handlers of the
        # program's are in place, what they raise.
        try:
            try:
                if handlers.theirs:
                    handlers.put_back()
                body, last = compiled(source, name)
                result = run_program(self._run, (body, last))
            except BaseException as raised:
                if unwind.forced:
                    unwind.settrace(None)
                error = raised
            if handlers.theirs:
                handlers.take_away()
        except BaseException as raised:
            if unwind.forced:
                unwind.settrace(None)
            error = raised
        if unwind.forced:
            unwind.settle()
            self.loop.recover()
        duration = time.perf_counter_ns() - started
        cpu = time.process_time_ns() - cpu_started
        since = made_since if duration > _TOO_SHORT_FOR_FILES_NS else 0
        try:
            done, notes = self._told(result, error, name, source, since)
        except BaseException as problem:
            done, notes = self._told_after_all(result, error, name, problem)
        # The traceback holds this frame, which would hold the exception.
        error = None
        done["duration_us"] = duration // 1000
        done["cpu_us"] = cpu // 1000
        if notes:
            done["notes"] = notes
        return done, cell.place_result(done)

    def _told(
        self, result: str | None, error: BaseException | None, name: str, source: Any, made_since: int
    ) -> tuple[dict[str, Any], list[str]]:
        """The fields of the done frame, and notes. What the program did to Python may make any of it fail."""
        displays = self.displays
        done: dict[str, Any] = {"outcome": "ok", "result": result}
        notes: list[str] = []
        if error is not None:
            self._failed(done, notes, error, name, source)
        if _getrecursionlimit() < LEAST_RECURSION:
            notes.append(f"the recursion limit is {LEAST_RECURSION} again; a session needs as much for itself")
            _setrecursionlimit(LEAST_RECURSION)
        names = cell.Names(self.namespace)
        self._names.changes(names, done)
        self._names = names
        self.output.flush()
        if made_since:
            made = self.files.made(made_since, notes)
            if made:
                done["files"] = made
        if displays.touched:
            displays.finish(notes)
        displays.request = None
        if self.handlers.theirs:
            notes += self.handlers.notes()
        note = self.output.note()
        if note is not None:
            notes.append(note)
        return done, notes

    def _told_after_all(
        self, result: str | None, error: BaseException | None, name: str, problem: BaseException
    ) -> tuple[dict[str, Any], list[str]]:
        """The same where that failed: as little as has to be said, with as little as can fail."""
        _setrecursionlimit(max(_getrecursionlimit(), LEAST_RECURSION))
        self.displays.request = None
        done: dict[str, Any] = {"outcome": "ok", "result": result, "new": [], "changed": [], "removed": []}
        if error is not None:
            done.update(outcome="raised", result=None, error=errors.briefly(error, name))
        why = f"{errors.type_name(type(problem))}: {errors.cut(errors.message(problem), 300)}"
        return done, [f"what the cell changed is not known, because of what it did to Python: {why}"]

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
                if cell.awaits(body):
                    self.loop.run(value)
            if last is not None:
                value = eval(last, namespace)
                if cell.awaits(last):
                    value = self.loop.run(value)
                if value is not None:
                    _BUILTINS["_"] = value
                    result = errors.represent(value) if id(type(value)) in PLAIN_IDS else wire.plain(displays.result(value))
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
        body, last, self._flags = cell.compiled(source, name, self._flags)
        if cell.awaits(body) or cell.awaits(last):
            self.loop.prepare()
        return body, last

    def remember(self, source: str, name: str) -> None:
        self._sources.add(name, source)

    def sources(self) -> list[tuple[str, str]]:
        """The names and sources of the cells that are remembered, oldest first."""
        return self._sources.all()

    def _failed(self, done: dict[str, Any], notes: list[str], error: BaseException, name: str, source: Any) -> None:
        done["outcome"] = "raised"
        done["result"] = None
        if type(source) is str and errors.is_in_file(error, name):
            hint = magics.hint(source, errors.cell_line(error, name))
            if hint is not None:
                notes.append(hint)
        if errors.is_a(error, SystemExit):
            who = "cell" if type(source) is str else "file"
            notes.append(f"the {who} called sys.exit({errors.exit_code(error)}); the session goes on")
            if errors.exits_well(error):
                done["outcome"] = "ok"
                done["exited"] = True
                return
        if errors.is_a(error, KeyboardInterrupt) and unwind.raised:
            done["outcome"] = "interrupted"
        try:
            self._sources.put_back()
            done["error"] = run_program(errors.describe, (error, name))
        except BaseException:
            unwind.settle()
            done["error"] = errors.briefly(error, name)
        unwind.settle()


def _compile_script(source: bytes, name: str) -> tuple[Code | None, Code | None]:
    return compile(source, name, "exec", 0, True), None
