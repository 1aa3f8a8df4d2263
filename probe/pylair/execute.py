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

from . import cell, errors, files, magics, paths, script, unwind
from .cell import Code
from .display import Displays
from .event_loop import EventLoop
from .output import Output
from .rich import PLAIN

MAX_SOURCE_CHARS_KEPT = 64 << 20

# A look at the directories takes longer than this, and no cell makes a file in it.
_TOO_SHORT_FOR_FILES_NS = 10_000

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
        builtins.__dict__.pop("_", None)
        self._flags = cell.AWAIT
        self._names = cell.Names(self.namespace)

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
        names = cell.Names(self.namespace)
        self._names.changes(names, done)
        self._names = names
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
        return done, cell.place_result(done)

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
        if isinstance(error, SyntaxError) and isinstance(source, str) and error.filename == name:
            hint = magics.hint(source, error.lineno)
            if hint is not None:
                notes.append(hint)
        if isinstance(error, SystemExit):
            who = "cell" if isinstance(source, str) else "file"
            notes.append(f"the {who} called sys.exit({errors.exit_code(error)}); the session goes on")
            if error.code is None or (isinstance(error.code, int) and error.code == 0):
                done["outcome"] = "ok"
                done["exited"] = True
                return
        if isinstance(error, KeyboardInterrupt) and unwind.raised:
            done["outcome"] = "interrupted"
        self._sources.put_back()
        try:
            done["error"] = errors.describe(error, name)
        except BaseException:
            unwind.settle()
            done["error"] = {"type": errors.type_name(type(error)), "message": "", "traceback": "", "line": None}
        unwind.settle()


def _compile_script(source: bytes, name: str) -> tuple[Code | None, Code | None]:
    return compile(source, name, "exec", 0, True), None
