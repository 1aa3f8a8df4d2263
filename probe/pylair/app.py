"""What this process is as an app: the names it registered, its settings, and whether it is being served. Behind the module interface.

There is one App in a process, whoever made it first: the program by `pylair.start()`, or a probe that came in from outside.
Served by `serving.Server`; calls are run by `calls.Calls`. Its methods may be called on any thread.
"""

from __future__ import annotations

import _thread
import os
import sys

from .plain_threads import RLock, load_what_ending_needs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .serving import Running, Server

# What classes of ours hold that has code.
_EMPTIED = (type(lambda: None), property, staticmethod, classmethod)

_LOOPBACK = ("localhost", "::1")


class App:
    def __init__(self) -> None:
        self.registered: dict[str, Any] = {}
        self.readonly = False
        self.allow_code = False
        self.invoker: Callable[[Callable[[], Any]], Any] | None = None
        # Interrupts a call that the invoker runs; only where the main thread is our own.
        self.interrupt_main: Callable[[], None] | None = None
        self.loop: Any = None
        self.screenshot_fn: Callable[[], bytes] | None = None
        self.winshot_fn: Callable[[str], bytes] | None = None
        self.app_id: str | None = None
        self.how = "start"
        # Who attached: `command_line` or `mcp`.
        self.by: str | None = None
        self.parent: str | None = None
        self.n_commands = 0
        self.last_command_time = 0.0
        # Calls that are running, by a number that no other call of this process has.
        self.running_calls: dict[int, Running] = {}
        self.calls: Any = None
        # A probe that came in from outside takes itself away with this, and leaves the names of its modules here.
        self.leave: Callable[[], None] | None = None
        self.leftovers: list[dict[str, Any]] = []
        # `main` is whatever module is `__main__` at the time, unless the program registered something else under that name.
        self.shows_main = False
        # The kernel's id of the thread that a probe arrived on, which is about to end.
        self.arriving = 0
        self.runtime = ""
        self._server: Server | None = None
        self._lock: Any = RLock()

    @property
    def running(self) -> bool:
        return self._server is not None

    def is_lost(self) -> bool:
        """Whether it serves and its socket has been removed."""
        server = self._server
        return server is not None and server.is_lost()

    @property
    def n_clients(self) -> int:
        server = self._server
        return server.n_clients() if server is not None else 0

    @property
    def io_thread(self) -> int | None:
        """The identity of the thread that serves."""
        server = self._server
        return server.thread if server is not None else None

    def register(self, name: str, obj: Any) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"objects are registered under names such as app, not {name!r}")
        if name == "main":
            self.shows_main = False
        self.registered[name] = obj

    def unregister(self, name: str) -> None:
        if name == "main":
            self.shows_main = False
        self.registered.pop(name, None)

    def show_main(self) -> None:
        """Registers `__main__` as `main`, and follows it: `multiprocessing` replaces that module."""
        main = sys.modules.get("__main__")
        if main is not None:
            self.registered["main"] = main
            self.shows_main = True

    def start(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        readonly: bool = False,
        app_id: str | None = None,
        loop: Any = None,
        allow_code: bool = False,
        how: str = "start",
        parent: str | None = None,
        runtime: str | None = None,
    ) -> bool:
        """Starts to serve. Raises ValueError for settings that make no sense and OSError when the socket or port cannot be had."""
        if app_id is not None:
            from .registry import checked_id

            app_id = checked_id(app_id)
        if port is not None:
            _check_address(host, port)
        with self._lock:
            if self._server is not None:
                return self._start_again(readonly, app_id, loop, port)
            _import_threading()
            load_what_ending_needs()
            from . import forking, registry, serving
            from .calls import Calls

            self.readonly, self.allow_code, self.loop = bool(readonly), bool(allow_code), loop
            self.how, self.parent = how, parent
            self.app_id = app_id or registry.default_id(dict(os.environ))
            self.runtime = runtime or registry.runtime_directory(dict(os.environ), os.getuid())
            self.running_calls = {}
            self.calls = Calls(self)
            server = serving.Server(self, self.runtime, host, port)
            server.open()
            try:
                self.calls.start()
                server.start_thread()
            except BaseException:
                server.finish()
                self.calls.stop()
                raise
            self._server = server
            forking.watch(self._at_fork)
            import atexit

            atexit.register(self.stop)
            try:
                # Whoever finds the entry may rely on everything: log records are kept, and forks are watched.
                server.publish()
            except BaseException:
                self.stop()
                raise
            return True

    def _start_again(self, readonly: bool, app_id: str | None, loop: Any, port: int | None) -> bool:
        """The program calls `start` although it is being served: after `pylair wrap` that is to be expected, and its wishes count."""
        if self.how not in ("wrap", "attach"):
            _warn(f"pylair is already running in this process as {self.app_id!r}")
            return False
        self.readonly = self.readonly or bool(readonly)
        self.loop = loop if loop is not None else self.loop
        if app_id is not None and self.parent is None and not self.named_by_user:
            self.app_id = app_id
        if port is not None:
            _warn("pylair came into this process from outside, where a port is asked for with `pylair wrap --port`")
        assert self._server is not None
        try:
            self._server.publish()
        except OSError:
            pass
        return True

    # Whether whoever came from outside chose the id.
    named_by_user = False

    def stop(self) -> None:
        """Stops serving. Does nothing if it does not serve."""
        with self._lock:
            server, self._server = self._server, None
            if server is None:
                return
            server.stop()
            self._stopped()

    def ended(self, server: Server, detached: bool) -> None:
        """The server ends by itself: it was told to go, or its descriptors were taken away. Runs as the last thing on its thread."""
        while self._server is server:
            # Whoever is stopping it waits for this thread with the lock in hand, and does the rest.
            if self._lock.acquire(timeout=0.05):
                try:
                    if self._server is server:
                        self._server = None
                        server.finish()
                        self._stopped()
                finally:
                    self._lock.release()
        if detached and self.leave is not None:
            self.leave()

    def forget(self, server: Server) -> None:
        """The last thing on the thread of a server that has left: lets go of what the package consists of, unless a call still runs."""
        leftovers, self.leftovers = self.leftovers, []
        if server.call_threads:
            return
        # This module's own names go too.
        emptied = _EMPTIED
        for names in leftovers:
            # A class holds itself, so it is emptied too.
            for kind in [value for value in names.values() if type(value) is type and value.__module__ == names["__name__"]]:
                for name in [name for name, value in vars(kind).items() if type(value) in emptied]:
                    delattr(kind, name)
            names.clear()

    def _stopped(self) -> None:
        import atexit

        from . import forking

        forking.forget(self._at_fork)
        atexit.unregister(self.stop)
        try:
            self.calls.stop()
        except Exception:
            pass

    def _at_fork(self, moment: str) -> None:
        """Called by `forking`, on the thread that forks."""
        server = self._server
        if moment == "before":
            self._lock.acquire(timeout=0.1)
            if server is not None:
                server.pause()
        elif moment == "parent":
            if server is not None:
                server.resume()
            try:
                self._lock.release()
            except RuntimeError:
                pass
        else:
            self._lock = RLock()
            self._server = None
            self.running_calls = {}
            self.n_commands, self.last_command_time = 0, 0.0
            # Nobody runs these here.
            self.invoker = self.loop = None
            if server is not None:
                server.abandon()
                self._start_in_child(moment == "exec")

    def _start_in_child(self, executes: bool) -> None:
        if executes:
            self.calls.stop()
            return
        from . import forking, registry, serving

        forking.forget_imports()
        forked = getattr(self.calls, "forked", None)
        if forked is not None:
            forked()
        self.how, self.parent = "fork", self.app_id
        self.app_id = registry.made_id(str(os.getpid()), self.parent)
        server = serving.Server(self, self.runtime)
        self._server = server
        server.start_thread(serving.FORK_DELAY_SECONDS)


def _check_address(host: str, port: int) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 0 to 65535, not {port!r}")
    if host not in _LOOPBACK and not (isinstance(host, str) and host.startswith("127.") and host.replace(".", "").isdigit()):
        raise ValueError(f"pylair listens on loopback addresses such as 127.0.0.1 only, not on {host!r}")


def _import_threading() -> None:
    """Whoever imports `threading` first is the main thread to it, up to 3.12: our own threads must not be that."""
    if _thread.get_native_id() == os.getpid():
        import threading  # noqa: F401


def _warn(text: str) -> None:
    import warnings

    try:
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    except Warning:
        # The program makes errors of warnings. This is not worth one.
        pass


_app = App()


def current() -> App:
    """The one App of this process."""
    return _app
