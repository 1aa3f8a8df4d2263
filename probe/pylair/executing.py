"""One piece of code that runs in an app for a caller: compiled, run, and told as the cell of a session is. Called by calls.py.

All of it is on the call's own thread but the code itself, which runs where place.py puts it.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Callable

from . import cell, errors, paths, results
from .cell import Sources as Sources
from .paths import Refused
from .place import PROBE, Work
from .scratch import Scratch
from .streams import Capture, captured

_MAX_NOTES = 20
_MAX_NOTE_CHARS = 2000
# To ask for the CPU time is a system call, which takes longer than most calls.
_SHORT_NS = 1_000_000

_numbers = itertools.count(1)


class Call:
    """What was asked for, and what has become of it. Raises Refused when it makes no sense."""

    def __init__(self, request: dict[str, Any], blob: bytes, client: str, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self.max_chars = _max_chars(request)
        if "path" in request:
            path = request["path"]
            if type(path) is not str:
                raise Refused("bad_request", "path must be a text")
            paths.check(path)
        try:
            self.source = cell.text(blob)
        except UnicodeDecodeError as error:
            raise Refused("bad_request", f"the source is not UTF-8: {error}") from None
        self._path = request.get("path")
        self.name = _name(request, client)
        self.capture = Capture(send)
        self.notes: list[str] = []
        self._duration = self._cpu = 0

    def run(self, scratch: Scratch, placed: Callable[[Work], None]) -> Work:
        """Compiles the code and has it run. What it raised is in the work; `placed` may raise Refused."""
        if self._path is not None:
            paths.check_assigned(self._path, self.source, scratch.namespace)
        self._namespace, self._locals = scratch.namespace, scratch.locals
        self._before = cell.Names(scratch.namespace)
        self._work = work = Work(self.capture, None)
        started = time.perf_counter_ns()
        try:
            if self._compile(scratch, work):
                placed(work)
        finally:
            self._duration = time.perf_counter_ns() - started
            if work.ran_on == PROBE:
                # The thread is this call's alone.
                self._cpu = self._duration if self._duration < _SHORT_NS else time.thread_time_ns()
            self.capture.close()
        return work

    def answer(self, work: Work, scratch: Scratch, where: str | None) -> tuple[dict[str, Any], bytes]:
        """The fields of the done frame and its blob. `where` is a note about where calls run, for a client that has not been told."""
        done: dict[str, Any] = {"outcome": "ok", "result": None}
        error, work.error = work.error, None
        if isinstance(error, Refused):
            raise error
        if error is None:
            done["result"] = work.result
        else:
            self._failed(done, error, bool(work.interrupts))
        self._before.changes(cell.Names(scratch.namespace), done)
        done["duration_us"] = self._duration // 1000
        done["cpu_us"] = self._cpu // 1000
        done["ran_on"] = work.ran_on
        if where is not None and where not in scratch.told:
            scratch.told.add(where)
            self.notes.append(where)
        self.notes += work.notes
        if self.notes:
            done["notes"] = [errors.cut(note, _MAX_NOTE_CHARS) for note in self.notes[:_MAX_NOTES]]
        return done, cell.place_result(done, self.max_chars)

    def _compile(self, scratch: Scratch, work: Work) -> bool:
        flags = cell.AWAIT if scratch.flags is None else scratch.flags
        try:
            # The compiler may warn, and that is for the caller to see.
            with captured(self.capture):
                self._body, self._last, scratch.flags = cell.compiled(self.source, self.name, flags)
        except BaseException as error:
            work.error = error
            return False
        if cell.awaits(self._body) or cell.awaits(self._last):
            work.coroutine = self._awaiting
            work.named_loops = self._named_loops
        else:
            work.sync = self._plainly
        return True

    def _named_loops(self) -> list[Any]:
        """The event loops of objects that the code names, such as `main.queue`, found without running anything."""
        import ast

        found: dict[int, Any] = {}
        for node in ast.walk(ast.parse(self.source)):
            names: list[str] = []
            while isinstance(node, ast.Attribute):
                names.append(node.attr)
                node = node.value
            if not isinstance(node, ast.Name):
                continue
            value: Any = None
            try:
                value = paths.find_name(node.id, self._namespace)
                for name in reversed(names):
                    _note_loop(value, found)
                    value = paths.attribute(value, name)
            except Refused:
                pass
            _note_loop(value, found)
        return list(found.values())

    def _plainly(self) -> str | None:
        if self._body is not None:
            eval(self._body, self._namespace, self._locals)
        return None if self._last is None else self._text(eval(self._last, self._namespace, self._locals))

    async def _awaiting(self) -> str | None:
        if self._body is not None:
            value = eval(self._body, self._namespace, self._locals)
            if cell.awaits(self._body):
                await value
        if self._last is None:
            return None
        value = eval(self._last, self._namespace, self._locals)
        return self._text(await value if cell.awaits(self._last) else value)

    def _text(self, value: Any) -> str | None:
        """The text of the result, made where the code ran. Its rich forms are sent at once."""
        if value is None:
            return None
        interrupts = self._work.interrupts
        text = results.show(value, self.max_chars, self.notes, self.capture.show)
        if self._work.interrupts > interrupts:
            # It ended a `__repr__`, and what that raises is no outcome otherwise.
            raise KeyboardInterrupt
        return text

    def _failed(self, done: dict[str, Any], error: BaseException, interrupted: bool) -> None:
        done["outcome"] = "raised"
        if isinstance(error, SyntaxError) and error.filename == self.name:
            from . import magics

            hint = magics.hint(self.source, error.lineno)
            if hint is not None:
                self.notes.append(hint)
        if isinstance(error, SystemExit):
            self.notes.append(f"the code called sys.exit({errors.exit_code(error)}); the app goes on")
            if error.code is None or (isinstance(error.code, int) and error.code == 0):
                done["outcome"] = "ok"
                done["exited"] = True
                return
        if isinstance(error, KeyboardInterrupt) and interrupted:
            done["outcome"] = "interrupted"
        done["error"] = errors.describe(error, self.name)


def _note_loop(value: Any, found: dict[int, Any]) -> None:
    for name in ("_loop", "loop"):
        try:
            loop = paths.attribute(value, name)
        except Refused:
            continue
        found[id(loop)] = loop


def _name(request: dict[str, Any], client: str) -> str:
    number = request.get("cell")
    if number is None:
        number = next(_numbers)
    if type(number) is not int:
        raise Refused("bad_request", "cell must be a whole number")
    return f"<call {number} {client}>" if client else f"<call {number}>"


def _max_chars(request: dict[str, Any]) -> int:
    value = request.get("max_chars")
    if value is None:
        return cell.MAX_RESULT_CHARS
    if type(value) is not int or value < 0:
        raise Refused("bad_request", "max_chars must be a whole number")
    return min(value or cell.MAX_RESULT_CHARS, cell.MAX_RESULT_CHARS)
