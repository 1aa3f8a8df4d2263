"""The server of an app: a listener, connections, one I/O thread, and a short-lived thread for each call. Made by `app`.

The I/O thread blocks in `poll` until something comes; it runs none of the program's code. Only it reads and closes connections. Around
a fork it is not there: it ends before and begins again after, so that no lock is held by a thread that the child does not have.
"""

from __future__ import annotations

import _signal
import _socket
import errno
import os
import select
import sys
import time
from typing import Any

from . import descriptors, listening, registry, wire
from .connection import Connection
from .plain_threads import allocate_lock, forget_name, get_ident, poll, set_name, set_system_name, sleep, start_new_thread

MAX_CLIENTS = 64
MAX_STRANGERS = 16
MAX_CALLS = 32
# A child that executes another program at once, or closes all descriptors on its way to become a daemon, is not yet to be served.
FORK_DELAY_SECONDS = 0.2

_STOP_SECONDS = 2.0
_PAUSE_SECONDS = 0.25
_IMPORT_SECONDS = 1.0
_FLUSH_SECONDS = 1.0
_NO_DESCRIPTORS_SECONDS = 1.0
_MAX_NAMES = 1000
# What runs the app's code, and waits for the app to let it.
_WAITING = ("execute", "screenshot", "inspect")
# What costs nothing, is never too late, and ends what is.
_ALWAYS = ("ping", "status", "interrupt", "detach")
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
# Those that a thread gets for what it did itself.
_OWN_SIGNALS = (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT)


class Running:
    """A call that has a thread. It either begins in time or is withdrawn and never begins."""

    def __init__(self, request: dict[str, Any], op: str, connection: Connection) -> None:
        self.request = request
        self.call = request["id"]
        self.op = op
        self.client = request.get("client")
        self.connection = connection
        self.since = time.monotonic()
        self.begin_by = _begin_by(request)
        self.thread = 0
        self.begun = op not in _WAITING or (op == "inspect" and not request.get("run"))
        self.withdrawn = False
        # Somebody came to begin it after its time.
        self.is_late = False
        self._lock = allocate_lock()

    def begin(self) -> bool:
        """Whether it may begin now."""
        with self._lock:
            if not self.begun and self.begin_by is not None and time.monotonic() >= self.begin_by:
                self.is_late = True
            self.begun = self.begun or not (self.is_late or self.withdrawn)
            return self.begun

    def withdraw(self) -> bool:
        """Whether it had not begun, and now never will."""
        with self._lock:
            if self.begun or self.withdrawn:
                return False
            self.withdrawn = True
            return True

    def describe(self) -> dict[str, Any]:
        seconds = round(time.monotonic() - self.since, 3)
        return {"call": self.call, "op": self.op, "seconds": seconds, "client": self.client, "begun": self.begun}


class Server:
    def __init__(self, app: Any, runtime: str, host: str = "127.0.0.1", port: int | None = None) -> None:
        self.app = app
        self.runtime = runtime
        self.host, self.port = host, port
        self.token: str | None = None
        self.entry: dict[str, Any] = {}
        self.thread: int | None = None
        self._thread_id = 0
        self._path = ""
        self._listeners: dict[int, _socket.socket] = {}
        self._tcp: int | None = None
        self._connections: dict[int, Connection] = {}
        self._wake_read = self._wake_write = -1
        self._pid = os.getpid()
        self._poll: Any = None
        self._delay = 0.0
        self._accept_again: float | None = None
        # `pause`, `stop` or `detach`.
        self._order: str | None = None
        # Held while the I/O thread runs; and held until a thread that delays is told to end.
        self._ended = allocate_lock()
        self._gate = allocate_lock()
        self._calls = 0
        # One item for each thread of a call that has not come to its last line.
        self.call_threads: list[None] = []
        self._signals: Any = ()

    # What may be called on any thread.

    def open(self) -> None:
        """Makes the sockets; `publish` writes the entry. Raises OSError, and has then made nothing."""
        directory = registry.open_directory(self.runtime)
        start = registry.start_time()
        self._path = os.path.join(directory, f"{os.getpid()}-{start}")
        endpoint = f"{self._path}.sock"
        try:
            self._listen(listening.bind_unix(endpoint))
            if self.port is not None:
                tcp = listening.bind_tcp(self.host, self.port)
                self._tcp = self._listen(tcp)
                self.token = os.urandom(24).hex()
            self._make_wake()
            app = self.app
            self.entry = registry.describe(app.app_id, endpoint, start, app.readonly, app.how, app.parent)
            if app.by is not None:
                self.entry["by"] = app.by
            registry.remove(f"{self._path}.error")
        except BaseException:
            self.finish()
            raise

    def adopt(self, listener: _socket.socket, entry: dict[str, Any]) -> None:
        """Takes over a socket that listens already, with its entry, instead of making both."""
        self._path = entry["endpoint"][: -len(".sock")]
        self.entry = entry
        self._listen(listener)
        self._make_wake()

    def _make_wake(self) -> None:
        self._wake_read, self._wake_write = (descriptors.move_high(fd) for fd in os.pipe())
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)

    def publish(self) -> None:
        """Writes the entry as the app is now."""
        if not self.entry:
            return
        self.entry.update(app_id=self.app.app_id, readonly=self.app.readonly)
        public = dict(self.entry)
        if self._tcp is not None:
            address = self._listeners[self._tcp].getsockname()
            self.entry["tcp"] = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
            public = {**self.entry, "token": self.token}
        registry.write(f"{self._path}.json", public)

    def start_thread(self, delay: float = 0.0) -> None:
        self._delay = delay
        self._order = None
        self._gate = allocate_lock()
        self._gate.acquire()
        self._ended.acquire()
        # The thread inherits what is blocked here, so that there is no moment at which it could get a signal of the program's.
        self._signals = _block_signals()
        try:
            start_new_thread(self._run, ())
        except BaseException:
            self._ended.release()
            raise
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._signals)

    def stop(self) -> None:
        """Ends the thread and takes everything away. May be called by a call's thread, but not on the I/O thread."""
        self._give_order("stop", _STOP_SECONDS)
        self.finish()

    def pause(self) -> None:
        """Ends the thread for the moment of a fork; connections stay."""
        if get_ident() == self.thread:
            return
        if self._give_order("pause", _PAUSE_SECONDS) and sys.version_info >= (3, 12):
            # From 3.12 on, `os.fork` warns of threads; the operating system takes a moment to forget one that has ended.
            deadline = time.monotonic() + _PAUSE_SECONDS
            for thread in (self._thread_id, self.app.arriving):
                while thread and os.path.exists(f"/proc/self/task/{thread}") and time.monotonic() < deadline:
                    sleep(0.00005)
            self.app.arriving = 0
        self._wait_for_imports()

    def _wait_for_imports(self) -> None:
        """A module that a call is importing at a fork could never be imported in the child: the thread that holds its lock is not there."""
        deadline = time.monotonic() + _IMPORT_SECONDS
        while any(map(_is_importing, list(self.app.running_calls.values()))) and time.monotonic() < deadline:
            sleep(0.0005)

    def resume(self) -> None:
        """Begins again after a pause."""
        if self._order != "pause":
            return
        if self._ended.acquire(True, _STOP_SECONDS):
            self._ended.release()
            try:
                self.start_thread(self._delay)
            except RuntimeError:
                self.app.ended(self, False)

    def abandon(self) -> None:
        """In the child of a fork: lets go of what is the parent's without disturbing it."""
        for connection in self._connections.values():
            connection.abandon(close=True)
        for listener in self._listeners.values():
            listener.close()
        for fd in (self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._connections, self._listeners = {}, {}
        self._wake_read = self._wake_write = -1

    def finish(self) -> None:
        """Closes everything and removes the files. Does nothing the second time."""
        path, self._path = self._path, ""
        if path and self._pid == os.getpid():
            registry.remove(f"{path}.json")
            registry.remove(f"{path}.sock")
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.close()
        ends = (self._wake_read, self._wake_write)
        self._wake_read = self._wake_write = -1
        for fd in ends:
            if fd >= 0:
                os.close(fd)

    def is_lost(self) -> bool:
        """Whether somebody removed the socket that it listens on."""
        return bool(self._listeners and self._path) and not os.path.exists(f"{self._path}.sock")

    def n_clients(self) -> int:
        return sum(connection.trusted for connection in list(self._connections.values()))

    def wake(self) -> None:
        fd = self._wake_write
        if fd >= 0:
            try:
                os.write(fd, b"\0")
            except OSError:
                pass

    def _give_order(self, order: str, seconds: float) -> bool:
        """Whether the thread ended in time."""
        self._order = order
        gate = self._gate
        if gate.locked():
            gate.release()
        self.wake()
        if get_ident() == self.thread or not self._ended.acquire(True, seconds):
            return False
        self._ended.release()
        return True

    def _listen(self, listener: _socket.socket) -> int:
        """Keeps a listener, out of the way of the program's descriptors."""
        kind = (listener.family, listener.type, listener.proto)
        moved = _socket.socket(*kind, fileno=descriptors.move_high(listener.detach()))
        self._listeners[moved.fileno()] = moved
        moved.setblocking(False)
        moved.listen(listening.BACKLOG)
        return moved.fileno()

    # What follows runs on the I/O thread, or on a call's where it says so.

    def _run(self) -> None:
        self.thread = get_ident()
        ended = self._ended
        after = None
        try:
            self._thread_id = _native_id()
            set_system_name("pylair")
            after = self._serve()
        except Exception:
            # Nothing is expected here; whatever it is, it is not the program's business.
            after = "lost"
        finally:
            try:
                if after in ("lost", "detach"):
                    self.app.ended(self, after == "detach")
                if after is not None:
                    self.finish()
            except Exception:
                pass
            forget_name()
            self.thread = None
            ended.release()
            if after == "detach":
                # Nothing may follow this.
                self.app.forget(self)

    def _serve(self) -> str | None:
        """Serves until there is an order. Returns None for a pause, else why it ended."""
        if self._delay and not self._listeners:
            if self._gate.acquire(True, self._delay) or self._order is not None:
                return None if self._order == "pause" else "stop"
            self.open()
            self.publish()
        self._poll = poll()
        self._poll.register(self._wake_read, select.POLLIN)
        for fd in self._listeners:
            self._poll.register(fd, select.POLLIN)
        for connection in self._connections.values():
            connection.mask = 0
        while self._order is None:
            deadline = self._update()
            timeout = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000) + 1)
            for fd, events in self._poll.poll(timeout):
                if events & select.POLLNVAL:
                    # Somebody closed descriptors that are not theirs, as daemons do. What has their numbers now is not ours.
                    self._forget_descriptors()
                    return "lost"
                if fd == self._wake_read:
                    os.read(fd, 4096)
                elif fd in self._listeners:
                    self._accept(fd)
                else:
                    self._attend(fd, events)
        return None if self._order == "pause" else self._order

    def _update(self) -> float | None:
        """Ends connections whose time is over and tells `poll` what to watch. Returns the next deadline."""
        deadlines = []
        now = time.monotonic()
        for connection in list(self._connections.values()):
            deadline = connection.deadline()
            if connection.is_over or (deadline is not None and deadline <= now):
                self._drop(connection)
                continue
            if deadline is not None:
                deadlines.append(deadline)
            mask = select.POLLIN if connection.takes_requests else 0
            if connection.has_more_to_send:
                mask |= select.POLLOUT
            if mask != connection.mask:
                self._poll.register(connection.fd, mask)
                connection.mask = mask
        for key, running in list(self.app.running_calls.items()):
            if running.begin_by is None or running.begun or running.withdrawn:
                continue
            if running.begin_by <= now:
                self._withdraw(key, running)
            else:
                deadlines.append(running.begin_by)
        if self._accept_again is not None:
            if self._accept_again <= now:
                self._accept_again = None
                for fd in self._listeners:
                    self._poll.register(fd, select.POLLIN)
            else:
                deadlines.append(self._accept_again)
        return min(deadlines) if deadlines else None

    def _accept(self, fd: int) -> None:
        listener = self._listeners[fd]
        try:
            accepted, _ = listener._accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # The program has used up its descriptors; asking again at once would only burn its time.
                self._accept_again = time.monotonic() + _NO_DESCRIPTORS_SECONDS
                for number in self._listeners:
                    self._poll.unregister(number)
            return
        try:
            accepted = descriptors.move_high(accepted)
        except OSError:
            os.close(accepted)
            return
        sock = _socket.socket(listener.family, listener.type, listener.proto, fileno=accepted)
        sock.setblocking(False)
        is_tcp = fd == self._tcp
        clients = self.n_clients()
        strangers = len(self._connections) - clients
        if strangers >= MAX_STRANGERS if is_tcp else clients >= MAX_CLIENTS or not listening.is_own_user(sock):
            sock.close()
            return
        if is_tcp:
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        connection = Connection(sock, not is_tcp, self.wake)
        self._connections[accepted] = connection
        if not is_tcp:
            self._greet(connection)

    def _greet(self, connection: Connection) -> None:
        hello = {
            "ch": 0,
            "ev": "hello",
            "wire": wire.WIRE_VERSION,
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "implementation": sys.implementation.name,
            "app": self.entry,
        }
        connection.send(hello, may_wait=False)

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection.fd, None)
        if connection.mask:
            self._poll.unregister(connection.fd)
        connection.close()

    def _attend(self, fd: int, events: int) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            return
        if events & select.POLLOUT:
            connection.flush()
        if not events & _READABLE:
            return
        try:
            if not connection.read():
                self._drop(connection)
                return
            # What has been read is dealt with also before a pause: `poll` will not tell of it again.
            while self._order in (None, "pause"):
                frame = connection.next_frame()
                if frame is None:
                    return
                self._request(connection, *frame)
        except wire.Garbage:
            self._drop(connection)

    def _request(self, connection: Connection, request: dict[str, Any], blob: bytes) -> None:
        if not connection.trusted:
            self._check_token(connection, request)
            return
        number, op = request.get("id"), request.get("op")
        if type(number) is not int or type(op) is not str:
            raise wire.Garbage("a request has a number and says what to do")
        by = _begin_by(request)
        if op not in _ALWAYS and by is not None and time.monotonic() >= by:
            # This process was busy or stopped meanwhile; whoever asked has been told that the answer will not come.
            self._answer(connection, request, _not_begun("the process had no time for it"))
            return
        if op == "ping":
            self._answer(connection, request, {"ok": True})
        elif op == "status":
            self._answer(connection, request, {"ok": True}, wire.dumps(self._status()))
        elif op == "detach":
            self._answer(connection, request, {"ok": True})
            self._wait_until_sent(connection)
            self._order = "detach"
        else:
            self._call(connection, request, blob, op)

    def _check_token(self, connection: Connection, request: dict[str, Any]) -> None:
        from hmac import compare_digest

        token = request.get("token")
        if request.get("op") != "token" or type(token) is not str or self.token is None:
            raise wire.Garbage("the first frame has no token")
        if not compare_digest(wire.clean(token).encode(), self.token.encode()):
            raise wire.Garbage("the token is wrong")
        if self.n_clients() >= MAX_CLIENTS:
            raise wire.Garbage("there are too many clients")
        connection.trusted = True
        connection.read_by = None
        self._greet(connection)

    def _status(self) -> dict[str, Any]:
        app = self.app
        return {
            "clients": self.n_clients(),
            "commands": app.n_commands,
            "last_command_at": app.last_command_time or None,
            "running": [running.describe() for running in list(app.running_calls.values()) if not running.withdrawn],
            "registered": sorted(list(app.registered))[:_MAX_NAMES],
        }

    def _answer(self, connection: Connection, request: dict[str, Any], answer: dict[str, Any], blob: bytes = b"") -> None:
        """Sends the one `done` of a request. On the I/O thread or on the call's."""
        may_wait = get_ident() != self.thread
        header = {"ch": request.get("ch", 1), "id": request["id"], "ev": "done", **answer}
        if len(blob) > wire.MAX_BLOB_BYTES or len(wire.encode(header)) > wire.MAX_HEADER_BYTES - 32:
            refusal = {"refused": "the answer is too long for one frame", "kind": "too_long"}
            header, blob = {"ch": header["ch"], "id": header["id"], "ev": "done", **refusal}, b""
        connection.send(header, blob, may_wait)

    def _wait_until_sent(self, connection: Connection) -> None:
        deadline = time.monotonic() + _FLUSH_SECONDS
        while connection.has_more_to_send and not connection.is_over and time.monotonic() < deadline:
            writable = poll()
            writable.register(connection.fd, select.POLLOUT)
            writable.poll(100)
            connection.flush()

    def _call(self, connection: Connection, request: dict[str, Any], blob: bytes, op: str) -> None:
        app = self.app
        app.n_commands += 1
        app.last_command_time = time.time()
        if app.shows_main:
            app.show_main()
        if op == "interrupt":
            self._name_call(connection, request)
        try:
            quick = app.calls.quick(request, blob)
        except Exception as error:
            quick = ({"refused": f"pylair failed: {error!r}", "kind": "failed"}, b"")
        if quick is not None:
            self._answer(connection, request, *quick)
            return
        if len(app.running_calls) >= MAX_CALLS:
            text = f"{MAX_CALLS} calls are running in this app already"
            self._answer(connection, request, {"refused": text, "kind": "busy", "hint": "wait until one has ended, or interrupt one"})
            return
        self._calls += 1
        # Calls of two connections may have the same id.
        key = request["call"] = self._calls
        app.running_calls[key] = Running(request, op, connection)
        self.call_threads.append(None)
        try:
            start_new_thread(self._run_call, (key, connection, request, blob))
        except RuntimeError as error:
            self.call_threads.pop()
            app.running_calls.pop(key, None)
            self._answer(connection, request, {"refused": f"the app can start no more threads: {error}", "kind": "busy"})

    def _withdraw(self, key: int, running: Running) -> None:
        """A call whose time is over before it began. Its own thread may be waiting for the app, so it is answered here."""
        if running.withdraw():
            self._answer(running.connection, running.request, _not_begun(self.app.calls.withdraw(key)))

    def _name_call(self, connection: Connection, request: dict[str, Any]) -> None:
        """Replaces the id of a call by the number that `calls` knows it by: this connection's call, else one of another that ended."""
        meant = [(key, running) for key, running in list(self.app.running_calls.items()) if running.call == request.get("call")]
        meant.sort(key=lambda pair: (pair[1].connection is connection, pair[0]))
        if meant:
            request["call"] = meant[-1][0]

    def _run_call(self, key: int, connection: Connection, request: dict[str, Any], blob: bytes) -> None:
        """On a thread of the call's own."""
        app = self.app
        # After a fork or a new start these are of another server.
        running = app.running_calls
        call = running[key]
        header = {"ch": request.get("ch", 1), "id": request["id"]}

        def send(event: dict[str, Any], blob: bytes = b"") -> None:
            connection.send({**header, **event}, blob)

        try:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._signals)
            call.thread = get_ident()
            set_name(f"pylair-call-{request['id']}")
            answer = app.calls.answer(request, blob, send)
        except BaseException as error:
            answer = ({"refused": f"pylair failed: {error!r}", "kind": "failed"}, b"")
        running.pop(key, None)
        try:
            if call.is_late and call.withdraw():
                self._answer(connection, request, _not_begun("it was its turn too late"))
            elif not call.withdrawn:
                self._answer(connection, request, *answer)
        except Exception:
            pass
        forget_name()
        self.call_threads.pop()

    def _forget_descriptors(self) -> None:
        for connection in self._connections.values():
            connection.abandon(close=False)
        for listener in self._listeners.values():
            listener.detach()
        self._connections, self._listeners = {}, {}
        self._wake_read = self._wake_write = -1


def _begin_by(request: dict[str, Any]) -> float | None:
    """When a request is too late to be begun, on the clock that all processes of the machine share."""
    by = request.get("begin_by")
    return float(by) if type(by) is float or type(by) is int else None


def _not_begun(why: str) -> dict[str, Any]:
    return {"refused": f"the call did not begin in its time and will not: {why}", "kind": "not_begun"}


def _is_importing(running: Running) -> bool:
    frame = sys._current_frames().get(running.thread)
    # Without a frame the call has not begun.
    is_importing = frame is None
    while frame is not None and not is_importing:
        is_importing = frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        frame = frame.f_back
    return is_importing


def _block_signals() -> Any:
    """Keeps signals of the program away from this thread. Returns what was blocked before, for threads that this one starts."""
    every = set(_signal.valid_signals()) - set(_OWN_SIGNALS)
    return _signal.pthread_sigmask(_signal.SIG_BLOCK, every)


def _native_id() -> int:
    import _thread

    return _thread.get_native_id()
