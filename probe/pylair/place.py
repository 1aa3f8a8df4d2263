"""Where a call's code runs in an app: by the app's invoker, on its event loop, or on the call's own thread.

Code that awaits runs on the event loop that the app runs, whether the app named it or not: what it waits for is that loop's. Only where the
app has none does it get a loop of its own, and what it bound to that is set free again.
Called by calls.py on the call's own thread, which waits. Whatever the code does, nothing of it comes out where it ran: no exception, no
exit, no interrupt may get into somebody else's main loop. Also how a call is interrupted: on our own thread by an exception set from
outside, on a loop by cancelling its task; on the app's main thread only as long as it has not begun.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

from . import errors, unwind
from .paths import Refused
from .plain_threads import Event, RLock, allocate_lock, get_ident
from .streams import Capture, captured

# How often to see whether a loop is still there that has not begun with a call.
_LOOK_SECONDS = 1.0

MAIN, LOOP, PROBE = "main", "loop", "probe"

_OWN_LOOP_NOTE = "no event loop runs in the app, so the code awaited on one of its own, which ended with the call"
_THREAD_NOTE = (
    "calls in this app run on a thread of the probe's, those that await on the app's event loop if it runs one; "
    "pylair.set_main_thread_invoker(…) or pylair.start(loop=…) has all of them run on the app's main thread or event loop"
)
_MAX_NAMED = 5


class Work:
    """The code of one call. `run` for code that does not await, `begin` for code that does; both keep what comes out of it."""

    def __init__(self, capture: Capture, sync: Callable[[], Any] | None, coroutine: Callable[[], Any] | None = None) -> None:
        self.capture = capture
        self.sync = sync
        self.coroutine = coroutine
        self.ran_on = PROBE
        self.notes: list[str] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.interrupts = 0
        self.finished = Event()
        self._begun = False
        # Says whether there is still time to begin; None where nobody set a time.
        self.begins: Callable[[], bool] | None = None
        # Loops that objects belong to which the code names; asked where the app runs several.
        self.named_loops: Callable[[], list[Any]] | None = None
        # Held for good from the end of code that runs on our own thread on: from then on nobody may set an exception there.
        self._ends = RLock()
        self._state = allocate_lock()
        self._thread: int | None = None
        self._task: Any = None
        self._loop: Any = None
        # Interrupts the main thread, where that is ours and does nothing but run calls.
        self.interrupt_main: Callable[[], None] | None = None

    def take(self) -> bool:
        """Whether the caller of this is the one to run it. An invoker may call twice, or after it was given up, or too late."""
        with self._state:
            begun, self._begun = self._begun, True
        if begun or self.begins is None or self.begins():
            return not begun
        self.finished.set()
        return False

    def on_their_thread(self, *_: Any) -> None:
        """For invokers and loops to call. Never raises, and returns nothing that an invoker could stumble over."""
        if not self.take():
            return
        pid = os.getpid()
        try:
            with captured(self.capture):
                self.result = self.sync()  # type: ignore[misc]
        except BaseException as error:
            self.error = error
        finally:
            _end_child(pid)
            self.finished.set()

    def on_this_thread(self) -> None:
        """On the call's own thread, where it can be interrupted until it has ended."""
        if not self.take():
            return
        try:
            try:
                self._thread = get_ident()
                with captured(self.capture):
                    self.result = self.sync()  # type: ignore[misc]
            except BaseException as error:
                self.error = error
            self._close()
        except BaseException as error:
            self.error = self.error or error
            self._close()
        self.finished.set()

    def _close(self) -> None:
        """No interrupt is set after this. One that was and has not been raised yet is raised in here, and means nothing any more."""
        while True:
            try:
                self._ends.acquire()
                if self.interrupts:
                    _set_exception(get_ident(), None)
                return
            except KeyboardInterrupt:
                continue

    async def as_task(self) -> None:
        """As a task. Nothing may leave a task of the app's loop: an exit or an interrupt would end the loop itself."""
        coroutine = self.coroutine
        pid = os.getpid()
        try:
            with captured(self.capture):
                self.result = await coroutine()  # type: ignore[misc]
        except BaseException as error:
            self.error = error
            if type(error).__name__ == "CancelledError" and self.interrupts:
                self.error = KeyboardInterrupt().with_traceback(error.__traceback__)
        finally:
            _end_child(pid)
            self.finished.set()

    def begin_task(self, loop: Any) -> None:
        """On the loop."""
        if not self.take():
            return
        try:
            self._loop = loop
            self._task = loop.create_task(self.as_task())
            if self.interrupts:
                self._task.cancel()
        except BaseException as error:
            self.error = error
            self.finished.set()

    def interrupt(self) -> str | None:
        """Ends it soon with a KeyboardInterrupt. Returns why not, if not. For another thread."""
        if self.finished.is_set():
            return "it has just ended"
        if self._task is not None and not (self.ran_on == PROBE and _runs_code(self._thread)):
            self.interrupts += 1
            try:
                self._loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError as error:
                return f"its event loop does not take orders: {error}"
            return None
        if self.ran_on != PROBE:
            if self.take():
                # Nobody has run it so far, and now nobody will.
                self.interrupts += 1
                self.error = KeyboardInterrupt()
                self.finished.set()
                return None
            if self.interrupt_main is not None:
                self.interrupts += 1
                self.capture.interrupt(self.interrupt_main, self.interrupt)
                return None
            where = "the app's main thread" if self.ran_on == MAIN else "the app's event loop"
            return f"it runs on {where}, and an interrupt would hit the app"
        if self._thread is None:
            return "it has not begun"
        if not self._ends.acquire(blocking=False):
            return "it has just ended"
        try:
            if not _can_set_exceptions():
                return "this Python has no ctypes, which an interrupt needs"
            self.interrupts += 1
            thread = self._thread
            self.capture.interrupt(lambda: _set_exception(thread, KeyboardInterrupt), self.interrupt)
            if self._task is not None:
                # It may have begun to wait meanwhile, and would not see it.
                _wake(self._loop)
            return None
        finally:
            self._ends.release()

    def give_up(self, reason: str) -> None:
        """The probe leaves. What has not begun never will; what has goes on, and nobody waits for it."""
        with self._state:
            self._begun = True
        self.error = self.error or Refused("stopped", reason)
        self.finished.set()


def _end_child(pid: int) -> None:
    """If the code forked, its child comes to the end of the call too. It must not go on as a second app, in the first one's main loop."""
    if os.getpid() != pid:
        os._exit(0)


def run(app: Any, work: Work) -> None:
    """Runs the work where the app wants it, and returns when it has ended. Raises Refused when it could not be run."""
    loop, invoker = getattr(app, "loop", None), getattr(app, "invoker", None)
    if work.coroutine is not None:
        if loop is None and getattr(app, "how", None) != "frozen":
            # In the copy of a failure nobody runs the loop any more.
            loop = _loop_of_app(work)
        if loop is None:
            work.notes.append(_OWN_LOOP_NOTE)
            _on_own_loop(work)
        else:
            _on_loop(work, loop, work.begin_task, loop)
    elif invoker is not None:
        work.interrupt_main = getattr(app, "interrupt_main", None)
        _by_invoker(work, invoker)
    elif loop is not None:
        _on_loop(work, loop, work.on_their_thread)
    else:
        work.on_this_thread()


def needs_note(app: Any) -> str | None:
    """What a client should be told once about where its calls run."""
    return _THREAD_NOTE if getattr(app, "invoker", None) is None and getattr(app, "loop", None) is None else None


def waited_for(where: str) -> str:
    """Why a call that was to run there has not begun."""
    if where == MAIN:
        return "the app's main thread invoker has not called it"
    return "the app's event loop has not come to it" if where == LOOP else "the process had no time for it"


def _by_invoker(work: Work, invoker: Callable[[Callable[[], None]], Any]) -> None:
    work.ran_on = MAIN
    try:
        invoker(work.on_their_thread)
    except BaseException as error:
        said = errors.cut(f"{errors.type_name(type(error))}: {errors.message(error)}", 500)
        if work.take():
            raise Refused("failed", f"the app's main thread invoker raised {said}, so the call was not run") from None
        work.notes.append(f"the app's main thread invoker raised {said}")
    # It may have returned before the code has even begun.
    work.finished.wait()


def _on_loop(work: Work, loop: Any, begin: Callable[..., None], *arguments: Any) -> None:
    work.ran_on = LOOP
    problem = _problem(loop)
    if problem is None:
        try:
            loop.call_soon_threadsafe(begin, *arguments)
        except RuntimeError as error:
            problem = f"does not take the call: {error}"
    if problem is not None:
        raise Refused("failed", f"the app's event loop {problem}", "pylair.start(loop=…) names another loop")
    while not work.finished.wait(_LOOK_SECONDS):
        problem = _problem(loop)
        if problem == "is closed":
            if work.take():
                raise Refused("failed", "the app's event loop was closed before it began with the call")
            raise Refused("failed", "the app's event loop was closed before the call had ended")


def _problem(loop: Any) -> str | None:
    if loop.is_closed():
        return "is closed"
    return None if loop.is_running() else "is not running"


def _loop_of_app(work: Work) -> Any:
    """The event loop that the app runs; None if there is none. Raises Refused when it is not clear which, or when it does not run now."""
    if "asyncio" not in sys.modules:
        return None
    from . import tasks

    loops = [loop for loop in tasks.loops() if id(loop.loop) not in _own_loops and not loop.loop.is_closed()]
    running = [loop for loop in loops if loop.loop.is_running()]
    if len(running) > 1 and work.named_loops is not None:
        named = {id(loop) for loop in work.named_loops()}
        running = [loop for loop in running if id(loop.loop) in named] or running
    if len(running) == 1:
        return running[0].loop
    elsewhere = "awaiting on another loop would bind the app's objects to that; the code was not run"
    if running:
        names = "; ".join(loop.describe() for loop in running[:_MAX_NAMED]) + ("; …" if len(running) > _MAX_NAMED else "")
        raise Refused(
            "several_loops",
            f"{len(running)} event loops run in this app and it is not clear which one the code is for: {names}. It was not run",
            "name an object that belongs to the loop in the code that awaits, or without `await` have one run it: "
            "asyncio.run_coroutine_threadsafe(COROUTINE, LOOP).result(30); pylair.start(loop=…) in the app chooses one for all calls",
        )
    waiting = [loop for loop in loops if loop.tasks]
    if waiting:
        raise Refused("loop_not_running", f"the app's event loop has tasks and does not run now, and {elsewhere}", "try again when it runs")
    return None


# Loops of calls that are running, with the objects that were bound to each.
_own_loops: dict[int, list[Any]] = {}
_own_lock = allocate_lock()
_bind: Any = None


def _watch_binding(loop: Any) -> None:
    """Notes which locks, events and queues bind themselves to a loop of ours when somebody first waits for them, from Python 3.10 on."""
    global _bind
    kind = getattr(sys.modules.get("asyncio.mixins"), "_LoopBoundMixin", None)
    with _own_lock:
        _own_loops[id(loop)] = []
        if _bind is not None or kind is None:
            return
        _bind = kind._get_loop

    def bind(bound: Any, bind: Any = _bind) -> Any:
        was_free = bound._loop is None
        loop = bind(bound)
        noted = _own_loops.get(id(loop))
        if was_free and noted is not None:
            noted.append(bound)
        return loop

    kind._get_loop = bind


def _set_free(loop: Any) -> None:
    """The loop is over: whatever was bound to it is as free as it was."""
    global _bind
    with _own_lock:
        for bound in _own_loops.pop(id(loop), ()):
            if bound._loop is loop:
                bound._loop = None
        if _bind is not None and not _own_loops:
            sys.modules["asyncio.mixins"]._LoopBoundMixin._get_loop, _bind = _bind, None  # type: ignore[attr-defined]


def _on_own_loop(work: Work) -> None:
    import asyncio

    loop: Any = None
    work._thread = get_ident()
    try:
        # Not `asyncio.run`: whatever its cleanup raises is no outcome of the code.
        loop = asyncio.new_event_loop()
        _watch_binding(loop)
        try:
            work.begin_task(loop)
            if work._task is not None:
                try:
                    loop.run_until_complete(work._task)
                except KeyboardInterrupt:
                    # An interrupt that was meant for the code, which had just begun to wait.
                    work._task.cancel()
                    loop.run_until_complete(work._task)
                rest = [task for task in asyncio.all_tasks(loop) if not task.done()]
                for task in rest:
                    task.cancel()
                if rest:
                    loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
    except BaseException as error:
        work.error = work.error or error
    work._close()
    if loop is not None and not loop.is_closed() and not loop.is_running():
        # The interrupt came while it was being closed.
        loop.close()
    if loop is not None:
        _set_free(loop)
    work.finished.set()


def _runs_code(thread: int | None) -> bool:
    """Whether a thread is in the code of a call now, and does not wait for its event loop."""
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None and not frame.f_code.co_filename.startswith(unwind.CELL_PREFIXES):
        frame = frame.f_back
    return frame is not None


def _wake(loop: Any) -> None:
    try:
        loop.call_soon_threadsafe(bool)
    except RuntimeError:
        # It was closed, so the code has ended.
        pass


def _can_set_exceptions() -> bool:
    try:
        import ctypes
    except ImportError:
        return False
    return hasattr(ctypes, "pythonapi") and hasattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc")


def _set_exception(thread: int, kind: Any) -> None:
    """Has an exception raised in a thread at its next bytecode; None takes one back that was not raised yet."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind) if kind is not None else None)
