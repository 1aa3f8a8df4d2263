"""The stacks of an app's threads and asyncio tasks, with their locals and who waits for whom. Called by calls.py, on the call's own thread.

Runs none of the app's code: frames are read as they stand, values are shown by preview.py, and tasks are asked by way of what C code or
asyncio itself has stored. Other threads run meanwhile, so what is told of them is a moment each.
"""

from __future__ import annotations

import sys
import threading
import types
from typing import Any, Iterable, NamedTuple

from . import errors, paths, preview, unwind, wire

_MAX_THREADS = 500
_MAX_FRAMES = 200
_MAX_LOCALS = 100
_MAX_TASKS = 2000
_MAX_VALUE_CHARS = 200
_MAX_ALL_LOCALS = 20_000
_MAX_LINKS = 200
_TRIES = 100
_MAX_NAMED = 5


def stacks(with_locals: bool, loop: Any = None) -> dict[str, Any]:
    """The answer to `stacks`; see docs/wire.md."""
    reader = _Reader(with_locals)
    frames = sys._current_frames()
    try:
        threads = reader.threads(frames)
        loops = _loops(frames, loop)
    finally:
        # It holds our own frame, and with it itself.
        frames.clear()
    return reader.told(threads, reader.tasks(loops))


def stacks_of_failure(entries: list[tuple[types.FrameType, int]], with_locals: bool) -> dict[str, Any]:
    """The same of a frozen failure: the frames that an exception passed and their lines, innermost first, in place of the threads."""
    reader = _Reader(with_locals)
    # What they keep for us is theirs to keep: nobody runs them any more.
    reader.is_traced = True
    frames = [{**reader.frame(frame), "line": line} for frame, line in entries[:_MAX_FRAMES]]
    thread = {"id": _main_thread(), "name": "the failing test", "current": False, "frames": frames}
    loops = _loops({}, None)
    return reader.told([thread], reader.tasks(loops) if loops else [])


class Loop(NamedTuple):
    """An event loop of the app's."""

    loop: Any
    thread: int | None
    # Those that have not ended.
    tasks: list[Any]

    def describe(self) -> str:
        """Where it runs, and what."""
        where = (
            f"on thread {_thread_names().get(self.thread) or self.thread}" if self.thread is not None else "on a thread that is not known"
        )
        names = sorted({_coroutine_name(_stored(task, "_coro")) for task in self.tasks})
        shown = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
        return f"{where} with {errors.count(len(self.tasks), 'task')}{f' ({shown})' if names else ''}"


def loops() -> list[Loop]:
    """The event loops that run, and those that have tasks."""
    frames = sys._current_frames()
    try:
        running = _running_loops(frames)
    finally:
        frames.clear()
    found = {id(loop): Loop(loop, thread, []) for loop, thread in running}
    for task in _all_tasks([loop for loop, _ in running]):
        loop = _stored(task, "_loop")
        if _is_loop(loop):
            found.setdefault(id(loop), Loop(loop, _stored(loop, "_thread_id"), [])).tasks.append(task)
    return list(found.values())


class _Reader:
    def __init__(self, with_locals: bool) -> None:
        self.with_locals = with_locals
        # What was left out, in words.
        self.notes: list[str] = []
        self.tasks_note = ""
        self.is_traced = False
        self._values = _MAX_ALL_LOCALS

    def told(self, threads: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {"threads": threads, "tasks": tasks}
        if self.notes or self.tasks_note:
            found["cut"] = True
        if self.notes:
            found["notes"] = self.notes
        if self.tasks_note:
            found["tasks_note"] = self.tasks_note
        return found

    def threads(self, frames: dict[int, types.FrameType]) -> list[dict[str, Any]]:
        """All threads but the probe's own, except those that run code for a caller. The main thread comes first."""
        asking = threading.get_ident()
        names = _thread_names()
        main = _main_thread()
        found = []
        for number in sorted(frames, key=lambda number: (number != main, number)):
            stack, cut = _chain(frames[number])
            self.is_traced = _is_traced(stack)
            if number == asking or (_is_ours(stack) and not any(_is_call(frame) for frame in stack)):
                continue
            if len(found) == _MAX_THREADS:
                self.notes.append(f"more than {_MAX_THREADS} threads are there, and no more are shown")
                break
            thread: dict[str, Any] = {"id": number, "name": names.get(number, ""), "current": False}
            thread["frames"] = [self.frame(frame) for frame in stack if not frame.f_code.co_filename.startswith(unwind.OUR_PREFIX)]
            if cut:
                thread["more_frames"] = cut
            found.append(thread)
        return found

    def frame(self, frame: types.FrameType) -> dict[str, Any]:
        code = frame.f_code
        name = getattr(code, "co_qualname", None) or code.co_name
        told: dict[str, Any] = {"function": name, "file": wire.clean(code.co_filename), "line": frame.f_lineno or code.co_firstlineno}
        # The variables of a module are what `inspect` shows.
        if self.with_locals and code.co_flags & _OPTIMIZED and self._values > 0:
            self._add_locals(told, frame)
        return told

    def _add_locals(self, told: dict[str, Any], frame: types.FrameType) -> None:
        # Names with an @ are made by pytest, which rewrites assertions.
        values = [(name, value) for name, value in _locals_of(frame, self.is_traced).items() if name[:1] != "@"]
        shown = values[: min(_MAX_LOCALS, self._values)]
        self._values -= len(shown)
        if self._values <= 0:
            self.notes.append(f"{_MAX_ALL_LOCALS} variables are shown, and those of further frames are not")
        told["locals"] = [{"name": str(name), "value": _shown(value)} for name, value in shown]
        if len(shown) < len(values):
            told["more_locals"] = len(values) - len(shown)

    def tasks(self, loops: list[Any]) -> list[dict[str, Any]]:
        every = _all_tasks(loops)
        if len(every) > _MAX_TASKS:
            self.tasks_note = f"{len(every) - _MAX_TASKS} more tasks are not shown"
            del every[_MAX_TASKS:]
        waits = _Waits(every)
        return [self._task(task, waits) for task in every]

    def _task(self, task: Any, waits: _Waits) -> dict[str, Any]:
        coroutine = _stored(task, "_coro")
        frames, running = _coroutine_frames(coroutine)
        self.is_traced = _is_traced(frames)
        waiter = _stored(task, "_fut_waiter")
        told = {
            "name": _task_name(task),
            "id": id(task),
            "state": "running" if running else "waiting" if waiter is not None else "ready",
            "coroutine": _coroutine_name(coroutine),
            "frames": [self.frame(frame) for frame in reversed(frames)],
            "awaits": waits.awaits.get(id(task), [])[:_MAX_LINKS],
            "awaited_by": waits.awaited_by.get(id(task), [])[:_MAX_LINKS],
        }
        if waiter is not None and not told["awaits"]:
            told["waits_for"] = _shown(waiter)
        return told


_OPTIMIZED = 0x1
# The references to a frame's dictionary of locals: the frame's, ours, and that of the call that counts.
_HELD_BY_FRAME = 3


def _locals_of(frame: types.FrameType, is_traced: bool) -> dict[str, Any]:
    """The variables of a function. Up to 3.12 the frame keeps the dictionary that is made for this, and with it values that the function
    will have forgotten long before it ends; so it is emptied again, unless somebody else has it or a tracer may write it back."""
    try:
        held = frame.f_locals
        values = dict(held)
    except Exception:
        # The thread has gone on meanwhile.
        return {}
    if sys.version_info < (3, 13) and not is_traced and sys.getrefcount(held) == _HELD_BY_FRAME:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            held.pop(name, None)
    return values


def _is_traced(stack: list[types.FrameType]) -> bool:
    if "bdb" in sys.modules or "pydevd" in sys.modules or sys.gettrace() is not None or getattr(threading, "_trace_hook", None) is not None:
        return True
    return any(frame.f_trace is not None for frame in stack)


def _shown(value: Any) -> str:
    try:
        return wire.clean(preview.render(value, _MAX_VALUE_CHARS, 80, most=20).text)
    except Exception:
        return f"<{paths.type_name(type(value))} object>"


def _chain(frame: types.FrameType | None) -> tuple[list[types.FrameType], int]:
    """The frames of a stack, innermost first, and how many were left out."""
    stack: list[types.FrameType] = []
    cut = 0
    while frame is not None:
        if len(stack) < _MAX_FRAMES:
            stack.append(frame)
        else:
            cut += 1
        frame = frame.f_back
    return stack, cut


def _is_ours(stack: list[types.FrameType]) -> bool:
    """Whether the probe started the thread: its first frame behind those of `threading` is ours."""
    for frame in reversed(stack):
        if frame.f_code.co_filename != threading.__file__:
            return frame.f_code.co_filename.startswith(unwind.OUR_PREFIX)
    return False


def _is_call(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(unwind.CELL_PREFIXES)


def _thread_names() -> dict[Any, str]:
    return {number: _thread_name(thread) for number, thread in list(threading._active.items())}  # type: ignore[attr-defined]


def _thread_name(thread: Any) -> str:
    name = (paths.instance_dict(thread) or {}).get("_name")
    return wire.clean(name[:_MAX_VALUE_CHARS]) if type(name) is str else ""


def _main_thread() -> int | None:
    ident = (paths.instance_dict(threading.main_thread()) or {}).get("_ident")
    return ident if type(ident) is int else None


# Tasks.


def _loops(frames: dict[int, types.FrameType], loop: Any) -> list[Any]:
    """The event loops that run, and the one that was given."""
    found = {id(loop): loop} if loop is not None else {}
    found.update((id(each), each) for each, _ in _running_loops(frames))
    return list(found.values())


def _running_loops(frames: dict[int, types.FrameType]) -> list[tuple[Any, int]]:
    """The event loops that run, with their threads: asyncio's own frames hold them, also those of loops that are written in C, and so does
    whoever runs a loop of his own making."""
    found: dict[int, tuple[Any, int]] = {}
    if "asyncio" not in sys.modules:
        return []
    for thread, frame in frames.items():
        stack = _chain(frame)[0]
        for outer in stack:
            code = outer.f_code
            is_asyncio = "asyncio" in code.co_filename or "uvloop" in code.co_filename
            if not code.co_flags & _OPTIMIZED or not (is_asyncio or "loop" in code.co_varnames):
                continue
            held = _locals_of(outer, _is_traced(stack))
            values = [held.get("loop")]
            if is_asyncio:
                values += [held.get("self"), _stored(held.get("self"), "_loop")]
            for value in values:
                if _is_loop(value):
                    found.setdefault(id(value), (value, thread))
    return list(found.values())


def _is_loop(value: Any) -> bool:
    loop = getattr(sys.modules.get("asyncio"), "AbstractEventLoop", None)
    return (loop is not None and any(base is loop for base in paths.mro(type(value)))) or paths.type_name(type(value)).startswith("uvloop")


def _all_tasks(loops: list[Any]) -> list[Any]:
    """The tasks that have not ended, of all loops that asyncio knows."""
    module = sys.modules.get("asyncio.tasks")
    if module is None:
        return []
    found: dict[int, Any] = {}
    names = vars(module)
    for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks"):
        for task in _copied(names.get(name)):
            found[id(task)] = task
    if sys.version_info >= (3, 14):
        # There they are in lists of C's, one for each thread.
        for loop in loops:
            try:
                tasks = module.all_tasks(loop)  # type: ignore[attr-defined]
            except RuntimeError:
                continue
            for task in tasks:
                found[id(task)] = task
    return [task for task in found.values() if _stored(task, "_state") == "PENDING"]


def _copied(tasks: Any) -> list[Any]:
    if type(tasks) is not set and paths.type_name(type(tasks)) not in ("weakref.WeakSet", "_weakrefset.WeakSet"):
        return []
    for _ in range(_TRIES):
        try:
            return list(tasks)
        except RuntimeError:
            # It was changed meanwhile.
            continue
    return []


def _stored(value: Any, name: str) -> Any:
    """An attribute that C code or the instance itself has; None otherwise."""
    try:
        return paths.attribute(value, name)
    except paths.Refused:
        return None


def _task_name(task: Any) -> str:
    name = (paths.instance_dict(task) or {}).get("_name")
    if type(name) is not str:
        method, _ = paths.in_class(type(task), "get_name")
        try:
            name = method(task) if type(method) is types.MethodDescriptorType else ""
        except Exception:
            name = ""
    return wire.clean(name[:_MAX_VALUE_CHARS]) if type(name) is str else ""


def _coroutine_name(coroutine: Any) -> str:
    for name in ("__qualname__", "__name__"):
        found = _stored(coroutine, name)
        if type(found) is str:
            return wire.clean(found)
    return paths.type_name(type(coroutine))


_FRAMES = {
    types.CoroutineType: ("cr_frame", "cr_await", "cr_running"),
    types.GeneratorType: ("gi_frame", "gi_yieldfrom", "gi_running"),
    types.AsyncGeneratorType: ("ag_frame", "ag_await", "ag_running"),
}


def _coroutine_frames(awaiting: Any) -> tuple[list[types.FrameType], bool]:
    """The frames of a suspended coroutine, outermost first, and whether it is running now."""
    frames: list[types.FrameType] = []
    running = False
    while len(frames) < _MAX_FRAMES:
        names = next((names for kind, names in _FRAMES.items() if type(awaiting) is kind), None)
        if names is None:
            break
        frame, awaiting, runs = (getattr(awaiting, name) for name in names)
        if frame is None:
            break
        frames.append(frame)
        running = running or bool(runs)
    return frames, running


class _Waits:
    """Which task waits for which. What a task waits for is a future; other tasks are behind it if it is one of them, if it gathers them,
    or if it is in what they call when they are done."""

    def __init__(self, tasks: list[Any]) -> None:
        self.awaits: dict[int, list[int]] = {}
        self.awaited_by: dict[int, list[int]] = {}
        known = {id(task) for task in tasks}
        waiting: dict[int, list[int]] = {}
        for task in tasks:
            future = _stored(task, "_fut_waiter")
            if future is None:
                continue
            waiting.setdefault(id(future), []).append(id(task))
            for child in _children(future):
                self._link(id(task), id(child), known)
            self._link(id(task), id(future), known)
        for task in tasks:
            for behind in _told_when_done(task):
                for waiter in waiting.get(id(behind), ()):
                    self._link(waiter, id(task), known)
                if id(behind) in known:
                    self._link(id(behind), id(task), known)

    def _link(self, waiter: int, awaited: int, known: set[int]) -> None:
        if waiter == awaited or waiter not in known or awaited not in known:
            return
        if awaited not in self.awaits.setdefault(waiter, []):
            self.awaits[waiter].append(awaited)
            self.awaited_by.setdefault(awaited, []).append(waiter)


def _children(future: Any) -> Iterable[Any]:
    children = (paths.instance_dict(future) or {}).get("_children")
    return list(children) if type(children) is list else ()


def _told_when_done(task: Any) -> Iterable[Any]:
    """What the callbacks of a task know: the futures of `wait` and `gather`, and the task that a group belongs to."""
    callbacks = _stored(task, "_callbacks")
    for entry in list(callbacks) if type(callbacks) is list else ():
        callback = entry[0] if type(entry) is tuple and entry else entry
        kind = type(callback)
        if issubclass(kind, _partial()):
            yield from _partial().__dict__["args"].__get__(callback)
            callback = _partial().__dict__["func"].__get__(callback)
            kind = type(callback)
        if kind is types.FunctionType:
            for cell in callback.__closure__ or ():
                try:
                    yield cell.cell_contents
                except ValueError:
                    continue
        elif kind is types.MethodType or kind is types.BuiltinFunctionType:
            owner = callback.__self__
            yield owner
            if paths.type_name(type(owner)) == "asyncio.taskgroups.TaskGroup":
                yield _stored(owner, "_parent_task")


def _partial() -> Any:
    import functools

    return functools.partial
