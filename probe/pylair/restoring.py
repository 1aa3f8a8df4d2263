"""Reads a session's variables back into a namespace. Runs in the worker for `snapshot`, and in the throw-away child of `verify`.

Restoring imports modules and runs what pickle runs: it can be interrupted, and what is missing costs only the variables that hold it.
"""

from __future__ import annotations

import io
import linecache
from typing import Any, Callable

from . import pickling, unwind, users_code
from .snapshot_file import RECORDS_START, Contents, Variable, read_contents

# Keeps the source of a cell under a name.
Remember = Callable[[str, str], None]

_MAX_SEARCHED_BYTES = 64 << 20
_early: list[int] = []


class Loader:
    """Makes the variables of a file again, one after the other and in the order of the file."""

    def __init__(self, fd: int, contents: Contents, namespace: dict[str, Any], remember: Remember) -> None:
        self._file = io.BufferedReader(io.FileIO(fd, closefd=False), 1 << 18)
        self._contents = contents
        self._namespace = namespace
        names = {name: _unused_name(name) for name in contents.sources}
        for name, source in contents.sources.items():
            remember(source, names[name])
        self._building = pickling.Building(namespace, contents.sources, contents.magic, contents.python, names)
        pickling.building = self._building
        self._unpickler: Any = pickling.Unpickler(self._file)
        self._file.seek(RECORDS_START)
        self._unpickler.load()

    def load(self, variable: Variable) -> Any:
        """The value. After an exception `reason_for` must be called before the next one."""
        self._losses = len(self._building.losses)
        self._file.seek(variable.offset)
        if isinstance(self._unpickler, pickling.CarefulUnpickler):
            self._unpickler.next_index = variable.memo_start
        value = self._unpickler.load()
        # The list that marks the end of the record in the memo.
        self._unpickler.load()
        return value

    def lost(self, value: Any) -> str | None:
        """Why a value that was loaded is not whole, if it is not."""
        return pickling.find_lost(value, self._namespace) if self._building.losses else None

    def reason_for(self, error: BaseException, variable: Variable) -> str:
        """Why a variable could not be loaded. Goes on without the objects that it would have brought."""
        memo = self._unpickler.memo
        memo = {at: value for at, value in memo.copy().items() if at < variable.memo_start or at >= variable.memo_end}
        losses = self._building.losses[self._losses :]
        if variable.length < _MAX_SEARCHED_BYTES:
            # Other variables may well have a word or a class in common with it.
            self._file.seek(variable.offset)
            record = self._file.read(variable.length)
            memo.update(pickling.plain_entries(record, variable.memo_start, memo, self._unpickler.find_class))
        self._unpickler = pickling.CarefulUnpickler(self._file, memo)
        if isinstance(error, pickling.SharedWithLost):
            owner = (each.name for each in self._contents.variables if each.memo_start <= error.args[0] < each.memo_end)
            return f"it shares an object with {next(owner, 'another variable')}, which could not be restored"
        if losses:
            return losses[-1]
        return users_code.reason(error)


def _unused_name(name: str) -> str:
    """A name for the restored source of a cell; the new session numbers its own cells from 1."""
    stem = name[:-1].split(", restored", 1)[0]
    found, number = f"{stem}, restored>", 1
    while found in linecache.cache:
        number += 1
        found = f"{stem}, restored {number}>"
    return found


def restore(fd: int, namespace: dict[str, Any], remember: Remember) -> tuple[list[str], list[dict[str, str]]]:
    """Names that were restored, and those that were not with reasons. `Unreadable` if the file is not whole; nothing has changed then."""
    contents = read_contents(fd)
    _early.clear()
    try:
        return _restore(fd, contents, namespace, remember)
    finally:
        pickling.building = None  # type: ignore[assignment]


def _restore(fd: int, contents: Contents, namespace: dict[str, Any], remember: Remember) -> tuple[list[str], list[dict[str, str]]]:
    loader = Loader(fd, contents, namespace, remember)
    restored: list[str] = []
    not_restored: list[dict[str, str]] = []
    interrupted = False
    for variable in contents.variables:
        interrupted = interrupted or bool(_early)
        if interrupted:
            not_restored.append({"name": variable.name, "reason": "restoring was interrupted before its turn"})
            continue
        value, error = users_code.attempt(loader.load, variable)
        if users_code.was_interrupted(error):
            interrupted = True
            not_restored.append({"name": variable.name, "reason": "restoring it took too long and was interrupted"})
            continue
        lost = loader.reason_for(error, variable) if error is not None else loader.lost(value)
        if lost is not None:
            not_restored.append({"name": variable.name, "reason": users_code.cut(lost)})
            continue
        namespace[variable.name] = value
        restored.append(variable.name)
    not_restored += [{"name": each["name"], "reason": users_code.cut(f"it was not saved: {each['reason']}")} for each in contents.not_saved]
    return restored, not_restored


# A signal that comes between two variables counts for the next one.
unwind.stand_for_cell(_restore, lambda: _early.append(1), lambda: _early.append(1))
