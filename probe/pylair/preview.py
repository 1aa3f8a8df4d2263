"""The text of values, bounded and without running any of the program's code. Called by inspect, in any process.

It is what `repr` gives wherever that is known without asking: built-in types, containers of them, dataclasses, named tuples, enums, arrays.
Everything else stands there as `<Point object>`, and the text says that it needed code; in a throw-away it may be asked.
"""

from __future__ import annotations

import collections
import re
import sys
import types
from itertools import islice
from typing import Any, Callable, Iterable, NamedTuple, Optional

from . import paths, signature

_MAX_DEPTH = 12
_MAX_INT_BITS = 10_000
_ARRAY_EDGE = 6
_ARRAY_TAIL = 2


class Rendered(NamedTuple):
    text: str
    # Whether something was left out.
    cut: bool
    # Whether a part is only named because its text would need code.
    needs_code: bool


class _Full(Exception):
    """There is no room for more."""


def render(value: Any, limit: int, inner: int = 200, run: bool = False, most: int = sys.maxsize) -> Rendered:
    """The text of a value in at most `limit` characters. Strings inside containers have at most `inner`, containers at most so many
    items. With `run`, which is for throw-aways only, what needs code is asked."""
    text = _Text(limit, inner, run, most)
    try:
        text.write(value, 0)
        cut = text.cut
    except _Full:
        cut = True
    return Rendered("".join(text.parts) + ("…" if cut and not text.cut else ""), cut, text.needs_code)


def short(value: Any) -> str:
    return render(value, 80, 40).text


def ends(count: int, most: int) -> tuple[int, int]:
    """How many of the first and how many of the last of `count` items are shown, when that may be so many in all."""
    if count <= most:
        return count, 0
    tail = max(most // 4, 1) if most > 1 else 0
    return most - tail, tail


class _Text:
    def __init__(self, limit: int, inner: int, run: bool, most: int) -> None:
        self.parts: list[str] = []
        self.left = limit
        self.inner = inner
        self.run = run
        self.most = most
        self.cut = False
        self.needs_code = False
        self.above: set[int] = set()

    def put(self, text: str) -> None:
        if len(text) > self.left:
            self.parts.append(text[: self.left])
            self.left = 0
            raise _Full
        self.left -= len(text)
        self.parts.append(text)

    def write(self, value: Any, depth: int) -> None:
        cls = type(value)
        writer = _WRITERS.get(id(cls)) or _writer_of(cls)
        if writer is None:
            self.ask(value)
        elif writer in _CONTAINERS:
            if id(value) in self.above or depth >= _MAX_DEPTH:
                self.put("...")
                return
            self.above.add(id(value))
            writer(self, value, depth + 1)
            self.above.discard(id(value))
        else:
            writer(self, value, depth)

    def ask(self, value: Any) -> None:
        if self.run:
            self.put(repr(value))
        else:
            self.needs_code = True
            self.put(f"<{paths.type_name(type(value))} object>")

    def items(self, start: str, values: Iterable[Any], end: str, depth: int) -> None:
        self.put(start)
        self.several(values, self.write, depth)
        self.put(end)

    def several(self, values: Iterable[Any], write: Callable[[Any, int], None], depth: int) -> None:
        for at, value in enumerate(values):
            if at:
                self.put(", ")
            write(value, depth)

    def container(self, first: Iterable[Any], count: int, last: Last, depth: int, write: Callable[[Any, int], None] | None = None) -> None:
        """The first items and, as far as `last` has any, the last ones."""
        head, tail = ends(count, self.most)
        if last is None:
            head, tail = head + tail, 0
        write = write or self.write
        self.several(first if head == count else islice(first, head), write, depth)
        if head < count:
            self.put(f"{', ' if head else ''}… {count - head - tail} more{', ' if tail else ''}")
            self.several(last(tail) if last is not None else (), write, depth)

    def string(self, value: Any, base: type, depth: int) -> None:
        count = base.__len__(value)  # type: ignore[attr-defined]
        room = self.left if depth == 0 else min(self.left, self.inner)
        if count <= room:
            self.put(base.__repr__(value))
            return
        text = base.__repr__(base.__getitem__(value, slice(0, room)))  # type: ignore[attr-defined]
        if depth == 0:
            self.put(text[:-1])
            raise _Full
        self.put(text[:-1] + "…" + text[-1])


# With the class itself, `typing` would remember it, and with it a probe that has left.
Writer = Callable[[Any, Any, int], None]
# Gives so many of the last items; None where there is no order.
Last = Optional[Callable[[int], Iterable[Any]]]


def _str(text: _Text, value: Any, depth: int) -> None:
    text.string(value, str, depth)


def _bytes(text: _Text, value: Any, depth: int) -> None:
    text.string(value, bytes, depth)


def _bytearray(text: _Text, value: Any, depth: int) -> None:
    text.put("bytearray(")
    text.string(bytes(bytearray.__getitem__(value, slice(0, max(text.left, 0)))), bytes, max(depth, 1))
    text.put(")")


def _int(text: _Text, value: Any, depth: int) -> None:
    bits = int.bit_length(value)
    if bits > _MAX_INT_BITS and not text.run:
        text.put(f"<int of {bits} bits>")
        return
    try:
        text.put(int.__repr__(value))
    except ValueError:
        text.put(hex(int.__index__(value)))


def _float(text: _Text, value: Any, depth: int) -> None:
    text.put(float.__repr__(value))


def _c_repr(text: _Text, value: Any, depth: int) -> None:
    text.put(repr(value))


def _list(text: _Text, value: Any, depth: int) -> None:
    text.put("[")
    text.container(list.__iter__(value), list.__len__(value), lambda tail: _backwards(list.__reversed__(value), tail), depth)
    text.put("]")


def _tuple(text: _Text, value: Any, depth: int) -> None:
    count = tuple.__len__(value)
    text.put("(")
    text.container(tuple.__iter__(value), count, lambda tail: tuple.__getitem__(value, slice(count - tail, count)), depth)
    text.put(",)" if count == 1 else ")")


def _backwards(values: Iterable[Any], tail: int) -> list[Any]:
    # At once, in C: a thread may change the container.
    return list(islice(values, tail))[::-1]


def _set(text: _Text, value: Any, depth: int) -> None:
    _braces(text, "{", "}", "set()", list(islice(set.__iter__(value), text.left)), set.__len__(value), depth)


def _frozenset(text: _Text, value: Any, depth: int) -> None:
    items = list(islice(frozenset.__iter__(value), text.left))
    _braces(text, "frozenset({", "})", "frozenset()", items, frozenset.__len__(value), depth)


def _braces(text: _Text, start: str, end: str, empty: str, values: list[Any], count: int, depth: int) -> None:
    if not values:
        text.put(empty)
        return
    text.put(start)
    text.container(values, count, None, depth)
    text.put(end)


def pairs(value: Any, room: int) -> list[tuple[Any, Any]]:
    # At once, in C: a thread may add a key.
    return list(islice(_items(value), max(room, 1)))


def last_pairs(value: Any, tail: int) -> list[tuple[Any, Any]]:
    return _backwards(reversed(_items(value)), tail)


def _items(value: Any) -> Any:
    return collections.OrderedDict.items(value) if type(value) is collections.OrderedDict else dict.items(value)


def _dict(text: _Text, value: Any, depth: int) -> None:
    def write(pair: tuple[Any, Any], depth: int) -> None:
        text.write(pair[0], depth)
        text.put(": ")
        text.write(pair[1], depth)

    text.put("{")
    text.container(pairs(value, text.left), dict.__len__(value), lambda tail: last_pairs(value, tail), depth, write)
    text.put("}")


def _counter(text: _Text, value: Any, depth: int) -> None:
    _named_dict(text, "Counter(", value, depth)


def _ordered_dict(text: _Text, value: Any, depth: int) -> None:
    _named_dict(text, "OrderedDict(", value, depth)


def _named_dict(text: _Text, start: str, value: Any, depth: int) -> None:
    text.put(start)
    if dict.__len__(value):
        _dict(text, value, depth)
    text.put(")")


def _defaultdict(text: _Text, value: Any, depth: int) -> None:
    text.put("defaultdict(")
    text.write(value.default_factory, depth)
    text.put(", ")
    _dict(text, value, depth)
    text.put(")")


def _deque(text: _Text, value: Any, depth: int) -> None:
    text.put("deque([")
    text.container(list(islice(value, text.left)), len(value), lambda tail: _backwards(reversed(value), tail), depth)
    text.put("])")


def _typed_array(text: _Text, value: Any, depth: int) -> None:
    count = len(value)
    text.put(f"array({value.typecode!r}")
    if value.typecode in "uw":
        text.put(", " if count else "")
        text.string("".join(islice(value, max(text.left, 0))), str, max(depth, 1))
    elif count:
        # One by one: its own repr would keep other threads waiting until all of it is made.
        text.put(", [")
        text.container(value, count, lambda tail: value[count - tail :], depth)
        text.put("]")
    text.put(")")


def _namespace(text: _Text, value: Any, depth: int) -> None:
    _fields(text, "namespace", (paths.instance_dict(value) or {}).items(), depth)


def _fields(text: _Text, name: str, fields: Iterable[tuple[Any, Any]], depth: int) -> None:
    text.put(f"{name}(")
    for at, (field, value) in enumerate(list(fields)):
        text.put(f"{', ' if at else ''}{field}=")
        text.write(value, depth)
    text.put(")")


def _class(text: _Text, value: Any, depth: int) -> None:
    module = paths.module_name(value)
    name = paths.short_name(value)
    text.put(f"<class '{name if module == 'builtins' else f'{module}.{name}'}'>")


def _function(text: _Text, value: Any, depth: int) -> None:
    if depth:
        text.put(f"<function {value.__qualname__}>")
    else:
        text.put(f"<function {value.__qualname__}{signature.text(value, short) or ''}>")


def _method(text: _Text, value: Any, depth: int) -> None:
    function = value.__func__
    name = function.__qualname__ if type(function) is types.FunctionType else paths.type_name(type(function))
    owner = value.__self__
    text.put(f"<bound method {name} of {'a ' if not paths.is_class(owner) else ''}")
    text.put(paths.type_name(owner) if paths.is_class(owner) else paths.type_name(type(owner)))
    text.put(">")


def _builtin(text: _Text, value: Any, depth: int) -> None:
    owner = value.__self__
    if owner is None or type(owner) is types.ModuleType:
        text.put(f"<built-in function {value.__name__}>")
    else:
        text.put(f"<built-in method {value.__name__} of {paths.type_name(type(owner))} object>")


def _module(text: _Text, value: Any, depth: int) -> None:
    name = paths.lookup(paths.module_dict(value), "__name__")
    text.put(f"<module {name if type(name) is str else '?'!r}>")


def _property(text: _Text, value: Any, depth: int) -> None:
    text.put("<property>")


def _wrapper(text: _Text, value: Any, depth: int) -> None:
    text.put(f"<{paths.short_name(type(value))} of ")
    text.write(value.__func__, max(depth, 1))
    text.put(">")


def _plain_object(text: _Text, value: Any, depth: int) -> None:
    text.put(f"<{paths.type_name(type(value))} object>")


def _exception(text: _Text, value: Any, depth: int) -> None:
    args = BaseException.__dict__["args"].__get__(value)
    text.items(paths.short_name(type(value)) + "(", args, ")", depth)


def _datetime(text: _Text, value: Any, depth: int) -> None:
    zone = type(value).__dict__["tzinfo"].__get__(value)
    if is_plain_zone(zone):
        text.put(repr(value))
    else:
        text.ask(value)


def is_plain_zone(zone: Any) -> bool:
    """Whether a time zone, or None, is one of the standard library's."""
    return zone is None or paths.type_name(type(zone)) in ("datetime.timezone", "zoneinfo.ZoneInfo")


def _named_tuple(text: _Text, value: Any, depth: int) -> None:
    names = paths.in_class(type(value), "_fields")[0]
    _fields(text, paths.short_name(type(value)), zip(names, tuple.__iter__(value)), depth)


def _dataclass(text: _Text, value: Any, depth: int) -> None:
    described = paths.in_class(type(value), "__dataclass_fields__")[0]
    attributes = dict(paths.slots(value))
    attributes.update(paths.instance_dict(value) or {})
    fields = []
    for name, field in list(described.items()):
        shown = paths.lookup(dict(paths.slots(field)), "repr")
        if shown is True and name in attributes:
            fields.append((name, attributes[name]))
    _fields(text, paths.short_name(type(value)), fields, depth)


def _enum(text: _Text, value: Any, depth: int) -> None:
    attributes = paths.instance_dict(value) or {}
    name = attributes.get("_name_")
    text.put(f"<{paths.short_name(type(value))}{'.' + name if type(name) is str else ''}: ")
    text.write(attributes.get("_value_"), depth)
    text.put(">")


def _array(text: _Text, value: Any, depth: int) -> None:
    """The edges of a numpy array as nested lists."""
    shape = paths.attribute(value, "shape")
    if not shape:
        text.write(type(value).tolist(value), depth)
        return
    room = _ARRAY_EDGE if len(shape) > 1 else max(_ARRAY_EDGE, min(text.left // 4, 1000))
    if shape[0] > text.most:
        room = min(room, max(text.most - _ARRAY_TAIL, 1))
    array_class = type(value)
    edge = array_class.__getitem__(value, (slice(0, room),) * len(shape))
    listed = array_class.tolist(edge)
    tail = []
    if len(shape) == 1 and shape[0] > room:
        tail = array_class.tolist(array_class.__getitem__(value, slice(-_ARRAY_TAIL, None)))
    _nested(text, listed, shape, tail, depth)


def _nested(text: _Text, listed: Any, shape: tuple[int, ...], tail: list[Any], depth: int) -> None:
    if not shape or type(listed) is not list:
        text.write(listed, depth)
        return
    text.put("[")
    for at, part in enumerate(listed):
        if at:
            text.put(", ")
        _nested(text, part, shape[1:], [], depth)
    if shape[0] > len(listed):
        text.put(", …")
        text.cut = True
    for part in tail:
        text.put(", ")
        text.write(part, depth)
    text.put("]")


def _numpy_scalar(text: _Text, value: Any, depth: int) -> None:
    item = paths.attribute(value, "item")()
    text.put(f"{paths.short_name(type(value))}(")
    if type(item) is type(value):
        text.put("…")
    else:
        text.write(item, max(depth, 1))
    text.put(")")


_BY_CLASS: dict[type, Writer] = {
    str: _str,
    bytes: _bytes,
    bytearray: _bytearray,
    int: _int,
    float: _float,
    bool: _c_repr,
    complex: _c_repr,
    type(None): _c_repr,
    type(Ellipsis): _c_repr,
    type(NotImplemented): _c_repr,
    range: _c_repr,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _set,
    frozenset: _frozenset,
    collections.Counter: _counter,
    collections.OrderedDict: _ordered_dict,
    collections.defaultdict: _defaultdict,
    collections.deque: _deque,
    types.SimpleNamespace: _namespace,
    type: _class,
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.ModuleType: _module,
    types.GeneratorType: _c_repr,
    types.CoroutineType: _c_repr,
    types.AsyncGeneratorType: _c_repr,
    types.CodeType: _c_repr,
    types.FrameType: _c_repr,
    types.MethodDescriptorType: _c_repr,
    types.WrapperDescriptorType: _c_repr,
    types.GetSetDescriptorType: _c_repr,
    types.MemberDescriptorType: _c_repr,
    memoryview: _c_repr,
    re.Pattern: _c_repr,
    re.Match: _c_repr,
    property: _property,
    staticmethod: _wrapper,
    classmethod: _wrapper,
    object: _plain_object,
}
# By id, because the hash of a class may be its metaclass's. These classes live as long as the process.
_WRITERS = {id(cls): writer for cls, writer in _BY_CLASS.items()}
_CONTAINERS = {_list, _tuple, _dict, _set, _frozenset, _counter, _ordered_dict, _defaultdict, _deque, _namespace, _named_tuple, _dataclass}
_CONTAINERS |= {_exception}

# For subclasses that kept the repr of a built-in class.
_INHERITED = {id(cls): _BY_CLASS[cls] for cls in (str, bytes, bytearray, int, float, list, tuple, dict, set, frozenset, object)}
_INHERITED[id(BaseException)] = _exception
_INHERITED[id(type)] = _class
_INHERITED[id(types.ModuleType)] = _module

# Classes of the standard library whose repr runs nothing but the standard library.
_TRUSTED: dict[str, Writer] = {
    "datetime.date": _c_repr,
    "datetime.timedelta": _c_repr,
    "datetime.timezone": _c_repr,
    "datetime.datetime": _datetime,
    "datetime.time": _datetime,
    "decimal.Decimal": _c_repr,
    "fractions.Fraction": _c_repr,
    "uuid.UUID": _c_repr,
    "array.array": _typed_array,
    "zoneinfo.ZoneInfo": _c_repr,
    **dict.fromkeys(["pathlib." + name for name in ("PurePath", "PurePosixPath", "PureWindowsPath", "Path", "PosixPath")], _c_repr),
    **dict.fromkeys(["pathlib._local." + name for name in ("PurePath", "PurePosixPath", "PureWindowsPath", "Path", "PosixPath")], _c_repr),
    **dict.fromkeys(["ipaddress." + name for name in ("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network")], _c_repr),
}


def _writer_of(cls: type) -> Writer | None:
    """How to write instances of a class that is not built in; None if only its own code knows."""
    if issubclass(cls, type):
        return _class
    found, owner = paths.in_class(cls, "__repr__")
    inherited = _INHERITED.get(id(owner))
    if inherited is not None:
        return inherited
    module = paths.module_name(cls)
    trusted = _TRUSTED.get(f"{module}.{paths.short_name(cls)}")
    if trusted is not None and _really_from(cls, module):
        return trusted
    if module == "numpy" and _really_from(cls, module):
        if paths.is_numpy_array_class(cls):
            return _array
        if any(paths.type_name(base) == "numpy.generic" for base in paths.mro(cls)):
            return _numpy_scalar
    if type(found) is not types.FunctionType:
        return None
    code = found.__code__
    if issubclass(cls, tuple) and code is _named_tuple_code() and type(paths.in_class(cls, "_fields")[0]) is tuple:
        return _named_tuple
    if (
        owner is not None
        and type(found.__module__) is str
        and found.__module__ == "enum"
        and paths.module_name(owner) == "enum"
        and _really_from(owner, "enum")
    ):
        return _enum
    if code is _dataclass_code() and type(paths.in_class(cls, "__dataclass_fields__")[0]) is dict and _is_generated(found):
        return _dataclass
    return None


def _is_generated(function: types.FunctionType) -> bool:
    wrapped = paths.lookup(paths.instance_dict(function) or {}, "__wrapped__")
    return type(wrapped) is not types.FunctionType or wrapped.__code__.co_filename == "<string>"


def _really_from(cls: type, module: str) -> bool:
    """Whether the class is the one that its module has under its name, not one that says so."""
    loaded = sys.modules.get(module)
    return type(loaded) is types.ModuleType and paths.module_dict(loaded).get(paths.short_name(cls)) is cls


_reference_codes: dict[str, Any] = {}


def _named_tuple_code() -> Any:
    code = _reference_codes.get("named tuple")
    if code is None:
        code = _reference_codes["named tuple"] = collections.namedtuple("_", "x").__repr__.__code__
    return code


def _dataclass_code() -> Any:
    """The code that the repr of every dataclass shares."""
    if "dataclasses" not in sys.modules:
        return None
    code = _reference_codes.get("dataclass")
    if code is None:
        import dataclasses

        made = dataclasses.make_dataclass("_", ["x"])
        code = _reference_codes["dataclass"] = made.__repr__.__code__
    return code
