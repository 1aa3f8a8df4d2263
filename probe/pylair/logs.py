"""The log records of an app: the last of them, kept by a record factory that is chained in front of the app's own. Runs in the app.

No level, handler or configuration is touched, so the app logs exactly as before. The factory runs on whatever thread logs, perhaps in a
signal handler, so it waits for no lock. It runs none of the app's code and keeps none of its objects: `log_text` says what is kept in their
place. Messages are put together when they are read. The ring is bounded by number and by bytes.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import deque
from typing import Any, Callable, Iterable, NamedTuple

from . import errors, log_text, paths
from .log_text import Kept
from .paths import Refused
from .plain_threads import allocate_lock

RING = 5000
MAX_BYTES = 4 << 20
# What a record takes beside its message.
_ENTRY_BYTES = 400
MAX_LIMIT = 500
DEFAULT_LIMIT = 200
MAX_WAIT_SECONDS = 30.0
_MAX_NAME_CHARS = 200
_MAX_NOTED = 8
# A record with a smaller number may still be on its way when a thread was stopped between taking the number and storing it.
_SETTLED_SECONDS = 0.2
_STOP_SECONDS = 0.5
_NAMED_ONLY = (
    "arguments such as <Point object> stand for objects of the app's: they were not asked for their text, which would run the app's code; "
    "inspect shows objects that are still there"
)


class Entry(NamedTuple):
    """A record."""

    id: int
    ts: float
    level_number: int
    level: str
    logger: str
    kept: Kept


class Logs:
    """The ring and its readers."""

    def __init__(self) -> None:
        self._ring: deque[Entry] = deque()
        self._bytes = 0
        # Records that are not in the ring yet, and the lock of whoever puts them there.
        self._arrived: deque[Entry] = deque()
        self._arranging = allocate_lock()
        self._numbers = itertools.count(1)
        self._began = time.monotonic()
        self._factory: _Factory | None = None
        # Locks of readers that wait, with the least level and the part of a logger's name that each waits for.
        self._waiting: list[tuple[Any, int, str | None]] = []
        self._removed = False

    def install(self) -> None:
        """Puts the factory in front, if it is not there. One that the app has set since stays behind it."""
        self._removed = False
        current = logging.getLogRecordFactory()
        if self._factory is not None and current is self._factory:
            self._factory.active = True
            return
        if self._factory is not None:
            # It may still be somewhere in the chain, and a record shall be caught once.
            self._factory.active = False
        if type(current) is _Factory and current.logs is self:
            self._factory = current
            current.active = True
            return
        self._factory = _Factory(self, current)
        logging.setLogRecordFactory(self._factory)

    def remove(self) -> None:
        """Takes the factory away; one that the app has chained to its own since just passes on."""
        self._removed = True
        factory, self._factory = self._factory, None
        if factory is not None:
            factory.active = False
            if logging.getLogRecordFactory() is factory:
                logging.setLogRecordFactory(factory.next)
        # A signal handler that stops us may have interrupted whoever has it.
        arranged = self._arranging.acquire(True, _STOP_SECONDS)
        self._arrived.clear()
        self._ring.clear()
        self._bytes = 0
        if arranged:
            self._arranging.release()
        for lock, _, _ in list(self._waiting):
            _wake(lock)

    def forked(self) -> None:
        """In a child process: nobody waits here, and the thread that arranged the ring may not be there."""
        self._waiting = []
        self._arranging = allocate_lock()
        self._bytes = sum(map(_bytes_of, self._ring))

    def keep(self, record: Any) -> None:
        """Called with each record that was made. Raises nothing of its own."""
        fields = record.__dict__
        kept = log_text.keep(record, fields)
        level = fields.get("levelno")
        level = level if type(level) is int else 0
        created, name = fields.get("created"), _short(fields.get("name"))
        moment = created if type(created) is float else time.time()
        self._arrived.append(Entry(next(self._numbers), moment, level, _short(fields.get("levelname")), name, kept))
        self._arrange()
        if self._waiting:
            for lock, least, part in list(self._waiting):
                # Each reader that is woken looks through the ring, which takes time from an app that logs much.
                if level >= least and (not part or part in name):
                    _wake(lock)

    def _arrange(self) -> None:
        """Moves what has arrived into the ring, unless another thread is at it, which then takes this one's too. An interrupted thread may
        be the one, so nobody waits."""
        while self._arrived and self._arranging.acquire(False):
            try:
                while self._arrived:
                    entry = self._arrived.popleft()
                    self._ring.append(entry)
                    self._bytes += _bytes_of(entry)
                    while len(self._ring) > RING or self._bytes > MAX_BYTES:
                        self._bytes -= _bytes_of(self._ring.popleft())
            finally:
                self._arranging.release()

    def read(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to `logs`; see docs/wire.md. Waits only if asked to."""
        self.install()
        query = _Query(request)
        entries = self._entries()
        newest = entries[-1].id if entries else 0
        notes = []
        if query.before is None and query.after > newest:
            notes.append(f"{self._no_record(query.after, newest)}; this page has the newest records")
            query.after = 0
        elif query.before is not None and query.before > newest + 1:
            notes.append(f"{self._no_record(query.before, newest)}; this page has the newest records")
        if query.wait_seconds > 0 and query.before is None:
            self._wait(query)
        page = self._page(query)
        page["notes"][:0] = notes
        return page

    def _no_record(self, number: int, newest: int) -> str:
        """Whether the app was started again since the caller read that number is nothing that this process knows."""
        said = f"the newest is {newest}" if newest else "none was made yet"
        age = errors.count(int(time.monotonic() - self._began), "second")
        return f"there is no record {number}: {said}. Numbers begin at 1 when the probe starts, {age} ago in process {os.getpid()}"

    def _wait(self, query: _Query) -> None:
        """Until there is a record that the query asks for."""
        deadline = time.monotonic() + query.wait_seconds
        lock = allocate_lock()
        lock.acquire()
        waiter = lock, query.least, query.logger
        self._waiting.append(waiter)
        woken = False
        try:
            while not self._removed:
                if any(entry.id > query.after and query.matches(entry) for entry in self._entries()):
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                # What woke us and is not to be seen yet will be when the record before it has come, or is given up.
                woken = lock.acquire(timeout=min(left, _SETTLED_SECONDS) if woken else left)
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _entries(self) -> list[Entry]:
        """What is in the ring, in the order of the numbers, up to the first that is not there yet."""
        while True:
            try:
                entries = sorted([*self._ring, *self._arrived], key=_number_of)
                break
            except RuntimeError:
                # A thread added one meanwhile.
                continue
        settled = time.time() - _SETTLED_SECONDS
        for at in range(len(entries) - 1, 0, -1):
            if entries[at].ts < settled:
                break
            if entries[at].id != entries[at - 1].id + 1:
                return entries[:at]
        return entries

    def _page(self, query: _Query) -> dict[str, Any]:
        entries = self._entries()
        found = [entry for entry in entries if query.matches(entry)]
        if query.before is not None:
            page = [entry for entry in found if entry.id < query.before][-query.limit :]
        elif query.after > 0:
            page = [entry for entry in found if entry.id > query.after][: query.limit]
        else:
            page = found[-query.limit :]
        newest = entries[-1].id if entries else 0
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        has_older = bool(found) and found[0].id < (first if first is not None else query.before or query.after + 1)
        has_newer = bool(found) and found[-1].id > (last if last is not None else max(query.after, (query.before or newest + 1) - 1))
        sources: dict[str, list[str]] = {}
        answer = {
            "entries": [
                {"id": each.id, "ts": each.ts, "level": each.level, "logger": each.logger, "message": log_text.text_of(each.kept, sources)}
                for each in page
            ],
            "count": len(page),
            "first_id": first,
            "last_id": last,
            "has_older": has_older,
            "has_newer": has_newer,
            "next_before_id": first if has_older else None,
            # Behind the last one that was looked at, so that a reader who goes on from here looks at nothing twice.
            "next_after_id": last if has_newer and last is not None else max(newest, query.after),
            "notes": list(_level_notes(query)),
        }
        oldest = entries[0].id if entries else 0
        kept = f"the last {RING} are kept, and {MAX_BYTES >> 20} MB of them at most"
        if query.before is None and 0 < query.after < oldest - 1:
            lost = oldest - 1 - query.after
            answer["notes"].append(f"{errors.count(lost, 'record')} after {query.after} {'is' if lost == 1 else 'are'} gone: {kept}")
        elif query.before is not None and 1 < query.before <= oldest:
            answer["notes"].append(f"the records before {oldest} are gone: {kept}")
        if any(log_text.needs_code(entry.kept) for entry in page):
            answer["notes"].append(_NAMED_ONLY)
        return answer


class _Factory:
    """In the place of the app's record factory: calls that, and keeps what it made."""

    __slots__ = ("active", "logs", "next")

    def __init__(self, logs: Logs, following: Callable[..., Any]) -> None:
        self.logs = logs
        self.next = following
        self.active = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        record = self.next(*args, **kwargs)
        # A record without a name is an empty one, to be filled with what came from elsewhere.
        if self.active and (not args or args[0] is not None):
            try:
                self.logs.keep(record)
            except Exception:
                pass
        return record


def _number_of(entry: Entry) -> int:
    return entry.id


def _bytes_of(entry: Entry) -> int:
    return _ENTRY_BYTES + entry.kept.size


def _wake(lock: Any) -> None:
    try:
        lock.release()
    except RuntimeError:
        # It was awake.
        pass


def _short(name: Any) -> str:
    text = name if type(name) is str else ""
    return text if len(text) <= _MAX_NAME_CHARS else text[:_MAX_NAME_CHARS] + "…"


class _Query:
    """What a request asks for."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.limit = max(1, min(_number(request, "limit", DEFAULT_LIMIT), MAX_LIMIT))
        self.after = _number(request, "after_id", 0)
        self.before = None if request.get("before_id") is None else _number(request, "before_id", 0)
        wait = request.get("wait_s")
        if wait is not None and type(wait) is not int and type(wait) is not float:
            raise Refused("bad_request", "wait_s must be a number of seconds")
        self.wait_seconds = min(max(float(wait or 0), 0.0), MAX_WAIT_SECONDS)
        self.logger = request.get("logger")
        if self.logger is not None and type(self.logger) is not str:
            raise Refused("bad_request", "logger must be a part of a logger's name")
        self.level = request.get("level")
        self.least = _least(self.level)

    def matches(self, entry: Entry) -> bool:
        return entry.level_number >= self.least and (not self.logger or self.logger in entry.logger)


def _number(request: dict[str, Any], name: str, default: int) -> int:
    value = request.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise Refused("bad_request", f"{name} must be a whole number")
    return max(value, 0)


def _least(level: Any) -> int:
    if level is None:
        return 0
    if type(level) is int:
        return level
    known = logging._nameToLevel
    number = known.get(level.upper(), known.get(level)) if type(level) is str else None
    if type(number) is not int:
        names = sorted((name for name in list(known) if type(name) is str), key=lambda name: known[name])
        said = repr(errors.cut(level, 50)) if type(level) is str else "what was given"
        raise Refused("bad_request", f"there is no log level {said}", f"the levels are {', '.join(names[:20])}")
    return number


def _level_notes(query: _Query) -> Iterable[str]:
    """Sentences about records that were asked for and cannot exist, because no logger makes them."""
    asked = logging.DEBUG if query.level is None else max(query.least, 1)
    root = logging.root
    disabled = _attribute(root.manager, "_disable", _attribute(root.manager, "disable", 0))
    if type(disabled) is int and disabled >= asked:
        yield f"logging.disable({_level_name(disabled)}) is in force: no record of that level or below is made"
    loggers = [(name, logger) for name, logger in list(root.manager.loggerDict.items()) if isinstance(logger, logging.Logger)]
    if query.logger:
        chosen = [(name, logger) for name, logger in loggers if type(name) is str and query.logger in name]
        quiet = [
            f"{_short(name)} {_level_name(level)}"
            for name, level in ((name, _effective(logger)) for name, logger in chosen)
            if level > asked
        ]
        if quiet:
            yield f"effective levels, below which no records are made: {_listed(quiet)}"
        elif not chosen and _level_of(root) > asked:
            yield f"there is no logger {query.logger!r} yet; the root logger's level is {_level_name(_level_of(root))}"
        return
    if _level_of(root) > asked:
        own = [
            f"{_short(name)} {_level_name(_level_of(logger))}"
            for name, logger in loggers
            if _level_of(logger) and _level_of(logger) != _level_of(root)
        ]
        but = f", but by loggers with a level of their own: {_listed(own)}" if own else ""
        yield f"the root logger's level is {_level_name(_level_of(root))}, and no records below it are made{but}"
    else:
        quiet = [f"{_short(name)} {_level_name(_level_of(logger))}" for name, logger in loggers if _level_of(logger) > asked]
        if quiet:
            yield f"some loggers have a level of their own, below which they make no records: {_listed(quiet)}"


def _effective(logger: Any) -> int:
    while logger is not None:
        level = _level_of(logger)
        if level:
            return level
        logger = _attribute(logger, "parent", None)
    return 0


def _level_of(logger: Any) -> int:
    level = _attribute(logger, "level", 0)
    return level if type(level) is int else 0


def _attribute(value: Any, name: str, default: Any) -> Any:
    """An attribute as it is stored: a logger's class may be the app's."""
    return (paths.instance_dict(value) or {}).get(name, default)


def _level_name(level: int) -> str:
    name = logging._levelToName.get(level)
    return name if type(name) is str else str(level)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NOTED} more" if len(names) > _MAX_NOTED else ""
    return ", ".join(names[:_MAX_NOTED]) + more
