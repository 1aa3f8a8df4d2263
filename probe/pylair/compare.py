"""Tells whether a restored value is what was saved. Runs in the throw-away child that has both, for `snapshot`.

Values are compared as pickle sees them: type, parts, state; and what was one object must be one object again. No `__eq__` of the
program's is called. What a class's own `__getstate__` or `__reduce__` leaves out is not a difference, since its author wants it so;
it is noted.
"""

from __future__ import annotations

import array
import collections
import copyreg
import pickle
import struct
import types
from typing import Any

from . import classes, errors

_BY_EQUALITY = frozenset({int, str, bytes, bool, type(None), type(...), type(NotImplemented)})
# Of these it matters which one it is. So it does of objects of the session's own classes; nobody knows what those do.
_MUTABLE = frozenset({list, dict, set, bytearray, collections.deque, collections.OrderedDict, collections.defaultdict})
_CHUNK = 4 << 20
_MAX_UNORDERED = 200
_STATE_METHODS = ("__reduce__", "__reduce_ex__", "__getstate__")

Difference = str


class Comparison:
    """Compares values one after the other and remembers what corresponds to what."""

    def __init__(self, reducer: Any, other_reducer: Any, known: list[tuple[Any, Any]]) -> None:
        self._reducer, self._other_reducer = reducer, other_reducer
        self._partners: dict[int, Any] = {id(one): other for one, other in known}
        self._seen = {(id(one), id(other)) for one, other in known}
        # Ids mean nothing once their objects are gone, and taking an object apart makes new ones.
        self._alive: list[Any] = []
        self.notes: list[str] = []
        # Sets whose items have to be matched. That waits until all else is known, since twins can only be told apart by where else
        # they are.
        self._sets: list[tuple[Any, Any, str]] | None = []

    def take_sets(self) -> list[tuple[Any, Any, str]]:
        """The sets that were put off since the last time."""
        taken, self._sets = self._sets or [], []
        return taken

    def difference_of_sets(self, sets: list[tuple[Any, Any, str]]) -> Difference | None:
        """Compares what was put off. From here on nothing is."""
        self._sets = None
        return next((found for found in (self._matched(*each) for each in sets) if found is not None), None)

    def difference(self, original: Any, restored: Any) -> Difference | None:
        """What is different, in words; None if nothing is."""
        waiting = [(original, restored, "")]
        while waiting:
            one, other, path = waiting.pop()
            if one is other or (id(one), id(other)) in self._seen:
                continue
            found = self._step(one, other, path, waiting)
            if found is not None:
                return found
        return None

    def _step(self, one: Any, other: Any, path: str, waiting: list[Any]) -> Difference | None:
        """Compares two objects without their parts, and puts those on the list."""
        kind = type(one)
        if kind is not type(other):
            if not (classes.by_value(kind) and classes.by_value(type(other))):
                return _at(path, f"{_name(type(other))} instead of {_name(kind)}")
            waiting.append((kind, type(other), path + " class"))
        if kind in _BY_EQUALITY:
            return None if one == other else _at(path, "another value")
        if kind is float or kind is complex:
            return None if _key(one) == _key(other) else _at(path, "another value")
        self._seen.add((id(one), id(other)))
        is_array = kind.__module__ == "numpy" and kind.__name__ == "ndarray"
        if (is_array or kind in _MUTABLE or classes.by_value(kind)) and self._partners.setdefault(id(one), other) is not other:
            return _at(path, "a copy where there was one object in two places")
        self._alive.append((one, other))
        if kind is list or kind is tuple:
            return _sequence(one, other, path, waiting)
        if kind is dict:
            if len(one) != len(other):
                return _at(path, f"{errors.count(len(other), 'item')} instead of {len(one)}")
            for (key, value), (other_key, other_value) in zip(one.items(), other.items()):
                waiting.append((key, other_key, path + " key"))
                waiting.append((value, other_value, f"{path}[{_label(key)}]"))
            return None
        if issubclass(kind, (set, frozenset)):
            waiting.append((getattr(one, "__dict__", None), getattr(other, "__dict__", None), path))
            return self._unordered(one, other, path)
        if kind is bytearray or kind is types.CodeType:
            return None if one == other else _at(path, "other contents")
        if kind is pickle.PickleBuffer:
            return None if _same_bytes(one, other) else _at(path, "other contents")
        if is_array and not one.dtype.hasobject:
            return _arrays(one, other, path)
        if kind.__module__.startswith("numpy.ma") and kind.__name__ == "MaskedArray":
            # What fills the gaps is only decided when it is asked for.
            waiting.extend((getattr(one, name), getattr(other, name), path) for name in ("data", "mask", "fill_value"))
            return None
        return self._taken_apart(one, other, path, waiting)

    def _taken_apart(self, one: Any, other: Any, path: str, waiting: list[Any]) -> Difference | None:
        parts, other_parts = _reduce(one, self._reducer), _reduce(other, self._other_reducer)
        self._alive.append((parts, other_parts))
        if isinstance(parts, str) or isinstance(other_parts, str):
            # It is known by a name, and that leads elsewhere now.
            return _at(path, "another object of that name")
        for part, other_part, label in zip(parts, other_parts, ("", " arguments", "", "", "", "")):
            waiting.append((part, other_part, path + label))
        self._note_left_out(one, other, path)
        if issubclass(type(one), BaseException) and (one.__traceback__ or one.__cause__ or one.__context__):
            self.notes.append("an exception is saved without its traceback and the exceptions behind it")
        return None

    def _unordered(self, one: Any, other: Any, path: str) -> Difference | None:
        if len(one) != len(other):
            return _at(path, f"{errors.count(len(other), 'item')} instead of {len(one)}")
        try:
            return None if set(map(_key, _items(one))) == set(map(_key, _items(other))) else _at(path, "other items")
        except TypeError:
            pass
        if self._sets is not None:
            self._sets.append((one, other, path))
            return None
        return self._matched(one, other, path)

    def _matched(self, one: Any, other: Any, path: str) -> Difference | None:
        items, others = _items(one), _items(other)
        if len(items) > _MAX_UNORDERED:
            kinds = sorted(_name(type(item)) for item in items)
            return None if kinds == sorted(_name(type(item)) for item in others) else _at(path, "other items")
        for item in items:
            partner = self._partners.get(id(item))
            candidates = [each for each in others if each is partner] or others
            for at, candidate in enumerate(candidates):
                attempt = self._attempt()
                if attempt.difference(item, candidate) is None:
                    self._accept(attempt)
                    others = [each for each in others if each is not candidates[at]]
                    break
            else:
                return _at(path, "other items")
        return None

    def _attempt(self) -> Comparison:
        attempt = Comparison(self._reducer, self._other_reducer, [])
        attempt._partners, attempt._seen, attempt._alive = dict(self._partners), set(self._seen), self._alive
        attempt._sets = None
        return attempt

    def _accept(self, attempt: Comparison) -> None:
        self._partners, self._seen = attempt._partners, attempt._seen
        self.notes += attempt.notes

    def _note_left_out(self, one: Any, other: Any, path: str) -> None:
        """Says what an object has now and will not have again, where its class decides that itself."""
        if not classes.by_value(type(one)) or not any(name in vars(base) for base in type(one).__mro__[:-1] for name in _STATE_METHODS):
            return
        have, will_have = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
        if type(have) is not dict or type(will_have) is not dict:
            return
        names = [name for name, value in have.items() if name not in will_have or _plainly_differ(value, will_have[name])]
        if names:
            listed = ", ".join(str(name) for name in names[:5])
            self.notes.append(f"{path + ': ' if path else ''}its class saves less than it holds; different after restoring: {listed}")


def _items(value: Any) -> list[Any]:
    return list(set.__iter__(value) if issubclass(type(value), set) else frozenset.__iter__(value))


def _reduce(value: Any, reducer: Any) -> Any:
    """The parts that pickle would store."""
    parts = reducer(value)
    if parts is NotImplemented and isinstance(value, (type, types.FunctionType)):
        return value.__qualname__
    if parts is NotImplemented:
        registered = copyreg.dispatch_table.get(type(value))
        parts = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if registered is None else registered(value)
    if isinstance(parts, str):
        return parts
    made = list(parts) + [None] * (6 - len(parts))
    for at in (3, 4):
        if made[at] is not None:
            made[at] = list(made[at])
    return made


def _plainly_differ(one: Any, other: Any) -> bool:
    try:
        return _key(one) != _key(other)
    except TypeError:
        return type(one).__name__ != type(other).__name__


def _sequence(one: Any, other: Any, path: str, waiting: list[Any]) -> Difference | None:
    if len(one) != len(other):
        return _at(path, f"{errors.count(len(other), 'item')} instead of {len(one)}")
    kinds = set(map(type, one))
    if kinds <= _BY_EQUALITY:
        same = one == other and (len(kinds) < 2 or list(map(type, one)) == list(map(type, other))) and set(map(type, other)) == kinds
        return None if same else _at(path, "other items")
    if kinds == {float} and set(map(type, other)) == kinds:
        return None if array.array("d", one).tobytes() == array.array("d", other).tobytes() else _at(path, "other items")
    waiting.extend((item, other_item, f"{path}[{at}]") for at, (item, other_item) in enumerate(zip(one, other)))
    return None


def _arrays(one: Any, other: Any, path: str) -> Difference | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return _at(path, f"an array of {other.dtype} {other.shape} instead of {one.dtype} {one.shape}")
    if one.flags.writeable and not other.flags.writeable:
        return _at(path, "an array that cannot be written to")
    same = _same_bytes(one, other) if one.flags.c_contiguous and other.flags.c_contiguous else one.tobytes() == other.tobytes()
    return None if same else _at(path, "an array of other numbers")


def _same_bytes(one: Any, other: Any) -> bool:
    try:
        first, second = pickle.PickleBuffer(one).raw(), pickle.PickleBuffer(other).raw()
    except (BufferError, ValueError):
        # Dates have no buffer, and some buffers no order in memory.
        return _copied(one) == _copied(other)
    if first.nbytes != second.nbytes:
        return False
    # As bytes, since memoryviews are compared item by item.
    return all(bytes(first[at : at + _CHUNK]) == bytes(second[at : at + _CHUNK]) for at in range(0, first.nbytes, _CHUNK))


def _copied(value: Any) -> bytes:
    return bytes(memoryview(value)) if isinstance(value, pickle.PickleBuffer) else value.tobytes()


def _key(value: Any) -> Any:
    """Something to compare plain data by, exactly: types, signs of zero and NaN included. TypeError for other values."""
    kind = type(value)
    if kind in _BY_EQUALITY:
        return kind, value
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(map(_key, value))
    if kind is frozenset:
        return kind, frozenset(map(_key, value))
    raise TypeError


def _label(key: Any) -> str:
    return repr(key)[:40] if type(key) in (str, int) else "…"


def _name(kind: type) -> str:
    return errors.type_name(kind)


def _at(path: str, what: str) -> Difference:
    return f"{what} (at {path[:80]})" if path.strip() else what
