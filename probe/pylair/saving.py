"""Writes the variables of a namespace to a file. Runs in the worker for `snapshot`.

All variables go through one pickler, so that what they share is shared again afterwards. When one fails, the file and the pickler's
memory go back to where it began, and the others do not notice.
"""

from __future__ import annotations

import linecache
import types
from typing import Any, NamedTuple

from . import classes, errors, pickling, unwind, users_code
from .snapshot_file import FOOT_BYTES, PYTHON, Contents, TooBig, Variable, WriteFailed, Writer

MAX_NAMES_KEPT = 1000
_ROOM_PER_VARIABLE = 400
# What every module has, and what compiling annotations and warnings leave behind.
_MODULES_OWN = frozenset({"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__file__", "__cached__"})
_MODULES_OWN |= {"__annotations__", "__annotate__", "__conditional_annotations__", "__warningregistry__"}
_TOO_LONG = "it took too long to save and was interrupted"


class Written(NamedTuple):
    contents: Contents
    size: int
    # What a person should know about a variable that was saved.
    notes: dict[str, str]


def variables(namespace: dict[str, Any]) -> list[tuple[str, Any]]:
    """What there is to save, in the order in which it can be restored: what others need first."""
    found = [(name, value) for name, value in list(namespace.items()) if isinstance(name, str) and name not in _MODULES_OWN]
    return sorted(found, key=lambda item: _rank(item[1]))


def is_listed(name: str) -> bool:
    """Names such as `__version__` are kept with the variables, but nobody looks for them there, as in `inspect`."""
    return not (name.startswith("__") and name.endswith("__"))


def _rank(value: Any) -> int:
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return 0
    return 1 if issubclass(kind, (type, types.FunctionType)) else 2


def write(fd: int, namespace: dict[str, Any], chosen: Any, not_saved: dict[str, str], limit: int | None) -> Written:
    """Writes a whole file. Adds to `not_saved` what could not be saved, with the reason."""
    try:
        return _write(fd, namespace, chosen, not_saved, limit, drop=False)
    except TooBig:
        # The biggest go: with the smallest first, those that do not fit any more are found on the way.
        sizes = _sizes(namespace, chosen, not_saved)
        chosen = sorted(((name, value) for name, value in chosen if name in sizes), key=lambda item: sizes[item[0]])
        return _write(fd, namespace, chosen, not_saved, limit, drop=True)


def _write(fd: int, namespace: dict[str, Any], chosen: Any, not_saved: dict[str, str], limit: int | None, drop: bool) -> Written:
    for_records = None if limit is None else max(0, limit - FOOT_BYTES - _ROOM_PER_VARIABLE * (1 + min(len(chosen), MAX_NAMES_KEPT)))
    try:
        recorder = _Recorder(fd, namespace, for_records)
    except TooBig:
        raise WriteFailed("the limit on the file's size leaves no room for anything") from None
    for name, value in chosen:
        if name in not_saved:
            continue
        what = pickling.unsavable(value)
        if what is not None:
            not_saved[name] = f"it is {what}"
            continue
        error = recorder.record(name, value)
        if isinstance(error, WriteFailed):
            raise error
        if isinstance(error, TooBig):
            if not drop:
                raise error
            not_saved[name] = f"it does not fit: the file may have {limit} bytes"
        elif error is not None:
            not_saved[name] = reason(error, value)
    return recorder.finish(not_saved, limit)


def _sizes(namespace: dict[str, Any], chosen: Any, not_saved: dict[str, str]) -> dict[str, int]:
    """The size of each variable alone."""
    sizes = {}
    for name, value in chosen:
        if name in not_saved or pickling.unsavable(value) is not None:
            sizes[name] = 0
            continue
        counter = _Counter()
        _, error = users_code.attempt(pickling.Pickler(counter, pickling.Reducer(namespace)).dump, value)
        if error is not None:
            not_saved[name] = reason(error, value)
        else:
            sizes[name] = counter.size
    return sizes


def reason(error: BaseException, value: Any) -> str:
    if isinstance(error, pickling.Unsavable):
        return users_code.cut(f"it {'is' if error.value is value else 'holds'} {error}")
    if users_code.was_interrupted(error):
        return _TOO_LONG
    return users_code.reason(error)


class _Counter:
    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.size += view.nbytes
        return view.nbytes


class _Recorder:
    """A file that is being written, and the pickler that does it."""

    def __init__(self, fd: int, namespace: dict[str, Any], limit: int | None) -> None:
        self._writer = Writer(fd, limit)
        self._writer.write(pickling.PREAMBLE)
        self._reducer = pickling.Reducer(namespace, with_sources=True)
        self._pickler = pickling.Pickler(self._writer, self._reducer)
        self._next_index = len(pickling.known(namespace))
        self._variables: list[Variable] = []
        self._arrays: list[tuple[int, int, Any, str]] = []
        # Variables whose inner structure is the program's business and not a library's.
        self._own: set[str] = set()

    def record(self, name: str, value: Any) -> BaseException | None:
        mark = self._writer.mark()
        self._reducer.arrays.clear()
        end, error = users_code.attempt(self._store, value)
        self._writer.captured = None
        if error is not None:
            self._go_back(mark)
            return error
        kind = errors.type_name(type(value))
        self._variables.append(Variable(name, kind, mark[0], self._writer.size - mark[0], self._next_index, end))
        self._arrays += [(first, last, array, name) for first, last, array in self._reducer.arrays]
        if type(value) in (list, tuple, dict) or classes.by_value(type(value)):
            self._own.add(name)
        self._next_index = end
        return None

    def _store(self, value: Any) -> int:
        """Writes the value and a list that marks the end. Returns how many entries the pickler's memo has then."""
        dump = self._pickler.dump
        dump(value)
        marker: list[Any] = []
        dump(marker)
        # A pickler does not tell the size of its memo; asked for the marker again, it says its number.
        self._writer.captured = bytearray()
        dump(marker)
        said = bytes(self._writer.captured)
        self._writer.captured = None
        # A number of one byte comes without a frame, one of four bytes with.
        return (said[-2] if len(said) == 5 else int.from_bytes(said[-5:-1], "little")) + 1

    def _go_back(self, mark: tuple[int, int]) -> None:
        self._writer.rewind(mark)
        memo = {key: entry for key, entry in self._pickler.memo.copy().items() if entry[0] < self._next_index}
        self._pickler = pickling.Pickler(self._writer, self._reducer, memo)

    def finish(self, not_saved: dict[str, str], limit: int | None) -> Written:
        kept = [{"name": name, "reason": why} for name, why in list(not_saved.items())[:MAX_NAMES_KEPT]]
        python = ".".join(map(str, PYTHON))
        contents = Contents(python, pickling.MAGIC, self._variables, kept, self._sources())
        self._writer.finish(contents, limit)
        return Written(contents, self._writer.size, _shared_memory(self._arrays, self._own))

    def _sources(self) -> dict[str, str]:
        """The sources of cells that stored code came from: for another version of Python, and for tracebacks."""
        found = {}
        for name in sorted(self._reducer.files):
            if name.startswith(unwind.CELL_PREFIXES) and name in linecache.cache:
                found[name] = "".join(linecache.getlines(name))[:-1]
        return found


def _shared_memory(arrays: list[tuple[int, int, Any, str]], own: set[str]) -> dict[str, str]:
    """Sentences about variables whose arrays lie in the same memory: restored, each has its own."""
    notes: dict[str, str] = {}
    reach: tuple[int, Any, str] | None = None
    for first, last, array, name in sorted(arrays, key=lambda item: item[:2]):
        if reach is not None and first < reach[0] and array is not reach[1] and (name != reach[2] or name in own):
            other = reach[2]
            for one, two in ((name, other), (other, name)):
                shared = "arrays in it share memory" if one == two else f"it shares memory with {two}"
                notes.setdefault(one, f"{shared}; after restoring each has a copy of its own")
        if reach is None or last > reach[0]:
            reach = last, array, name
    return notes
