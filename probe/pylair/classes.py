"""Classes of cells taken apart and made again. Runs in the worker, below `pickling`.

A class is its metaclass, its bases and its attributes. It is made again without running its body, its decorators, its metaclass's
methods or a base's `__init_subclass__`: what those did is in the attributes. Enums and named tuples are made by their own factories,
because much of what they consist of belongs to the version of Python.
"""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any

from . import unwind
from .lost import lost_in

_HEAP_TYPE = 1 << 9
# `copyreg` keeps notes in classes whose instances were pickled.
_SKIPPED = frozenset({"__dict__", "__weakref__", "_abc_impl", "__annotations_cache__", "__slotnames__"})
_AT_CREATION = ("__slots__", "__orig_bases__", "__module__")


def attribute(where: Any, path: str) -> Any:
    for name in path.split("."):
        where = getattr(where, name)
    return where


def importable(value: Any) -> bool:
    """Whether a function or class is found where its name says, outside of the session."""
    try:
        module, name = value.__module__, getattr(value, "__qualname__", None) or value.__name__
        return module != "__main__" and "<" not in name and attribute(sys.modules[module], name) is value
    except Exception:
        return False


def by_value(kind: type) -> bool:
    """Whether this class is stored attribute by attribute."""
    return bool(kind.__flags__ & _HEAP_TYPE) and not importable(kind)


def reduce_class(kind: type) -> Any:
    if not by_value(kind):
        return NotImplemented
    if _is_enum(kind):
        return _reduce_enum(kind)
    if _is_named_tuple(kind):
        return _reduce_named_tuple(kind)
    attributes = vars(kind)
    own = {name: value for name, value in attributes.items() if not _is_made_anew(kind, name, value)}
    # The rest only by name, so that the order is kept: attributes may hold the class itself, and it does not exist yet.
    first = {name: value if name in _AT_CREATION else None for name, value in own.items()}
    state = {"qualname": kind.__qualname__, "attributes": own}
    registered = _registered(kind)
    if registered:
        state["registered"] = registered
    return make_class, (type(kind), kind.__name__, kind.__bases__, first), state, None, None, fill_class


def _is_made_anew(kind: type, name: str, value: Any) -> bool:
    if name in _SKIPPED:
        return True
    return type(value) in (types.MemberDescriptorType, types.GetSetDescriptorType) and value.__objclass__ is kind


def source_file(kind: type) -> str | None:
    """The cell that the class statement is in."""
    for value in vars(kind).values():
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if code is not None and code.co_filename.startswith(unwind.CELL_PREFIXES):
            return code.co_filename
    for name, entry in reversed(list(linecache.cache.items())):
        if name.startswith(unwind.CELL_PREFIXES) and any(line.startswith(f"class {kind.__name__}") for line in entry[2]):  # type: ignore[misc]
            return name
    return None


def _is_enum(kind: type) -> bool:
    enum = sys.modules.get("enum")
    return enum is not None and isinstance(kind, enum.EnumMeta)


def _reduce_enum(kind: Any) -> Any:
    members = [(name, member._value_) for name, member in kind.__members__.items()]
    own = {name: value for name, value in vars(kind).items() if name not in kind.__members__ and _is_users(name, value)}
    maker = vars(kind).get("_new_member_", vars(kind).get("__new_member__"))
    if _is_users("__new__", maker):
        own["__new__"] = maker
    first = {name: own.pop(name) for name in ("__new__", "__init__", "_missing_") if name in own}
    state = {"qualname": kind.__qualname__, "module": kind.__module__, "doc": kind.__doc__, "attributes": own}
    # The usual metaclass has another name in older versions.
    meta = None if type(kind) is sys.modules["enum"].EnumMeta else type(kind)
    return make_enum, (meta, kind.__name__, kind.__bases__, members, first), state, None, None, fill_factory_class


def _is_named_tuple(kind: type) -> bool:
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind) and "_make" in vars(kind)


def _reduce_named_tuple(kind: Any) -> Any:
    import collections

    defaults = tuple(kind._field_defaults[name] for name in kind._fields if name in kind._field_defaults)
    usual = vars(collections.namedtuple("usual", ()))
    own = {k: v for k, v in vars(kind).items() if k not in kind._fields and k not in _SKIPPED and (k not in usual or _is_users(k, v))}
    state = {"qualname": kind.__qualname__, "module": kind.__module__, "doc": kind.__doc__, "attributes": own}
    return make_named_tuple, (kind.__name__, kind._fields, defaults), state, None, None, fill_factory_class


def _is_users(name: str, value: Any) -> bool:
    """Whether an attribute of an enum or named tuple was written by the program and not by the factory."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if isinstance(function, types.FunctionType):
        origin = function.__globals__.get("__name__", "")
        return not importable(function) and origin not in ("enum", "collections", "typing") and not origin.startswith("namedtuple_")
    if isinstance(function, (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)):
        return False
    if isinstance(value, (property, types.DynamicClassAttribute)) or hasattr(value, "__set_name__"):
        return False
    return not name.startswith("_")


def _registered(kind: type) -> list[type]:
    """The virtual subclasses of an abstract base class."""
    if "_abc_impl" not in vars(kind):
        return []
    try:
        import _abc  # type: ignore[import-not-found]

        found = [reference() for reference in _abc._get_dump(kind)[0]]
    except (ImportError, AttributeError, TypeError):
        return []
    return sorted((each for each in found if each is not None), key=lambda each: (each.__module__, each.__qualname__))


# What follows is called while a file is read, by the names that are in it.


def make_class(meta: Any, name: str, bases: tuple[Any, ...], first: dict[str, Any]) -> Any:
    for part in (meta, *bases):
        if lost_in(part) is not None:
            return part
    silenced = _silence_subclass_hook(bases)
    try:
        made = type.__new__(meta, name, bases, dict(first))
    finally:
        if silenced is not None:
            type.__setattr__(silenced[0], "__init_subclass__", silenced[1])
    if "abc" in sys.modules and isinstance(made, sys.modules["abc"].ABCMeta):
        try:
            import _abc

            _abc._abc_init(made)
        except ImportError:
            pass
    return made


def _silence_subclass_hook(bases: tuple[type, ...]) -> tuple[type, Any] | None:
    """Takes away the `__init_subclass__` that making the class would call. What it did once is in the attributes already."""
    for base in (owner for each in bases for owner in each.__mro__):
        if base is object or "__init_subclass__" not in vars(base):
            continue
        original = vars(base)["__init_subclass__"]
        try:
            type.__setattr__(base, "__init_subclass__", classmethod(lambda cls, **_: None))
        except TypeError:
            # A class of C's, such as typing.Generic since 3.12.
            return None
        return base, original
    return None


def fill_class(kind: Any, state: dict[str, Any]) -> None:
    if lost_in(kind) is not None:
        return
    kind.__qualname__ = state["qualname"]
    attributes = state["attributes"]
    if any(lost_in(value) is not None for value in attributes.values()):
        from . import replaying

        attributes = replaying.attributes(kind, attributes, state.get("file"))
    for name, value in attributes.items():
        if name not in _AT_CREATION:
            type.__setattr__(kind, "__annotate__" if name == "__annotate_func__" else name, value)
    for registered in state.get("registered", ()):
        if lost_in(registered) is None:
            kind.register(registered)


def make_enum(meta: Any, name: str, bases: tuple[Any, ...], members: list[tuple[str, Any]], first: dict[str, Any]) -> Any:
    for part in (meta, *bases):
        if lost_in(part) is not None:
            return part
    meta = meta or sys.modules["enum"].EnumMeta
    body = meta.__prepare__(name, bases)
    for key, value in (*first.items(), *members):
        body[key] = value
    return meta.__new__(meta, name, bases, body)


def make_named_tuple(name: str, fields: tuple[str, ...], defaults: tuple[Any, ...]) -> Any:
    import collections

    return collections.namedtuple(name, fields, defaults=defaults)


def fill_factory_class(kind: Any, state: dict[str, Any]) -> None:
    if lost_in(kind) is not None:
        return
    kind.__qualname__ = state["qualname"]
    kind.__module__ = state["module"]
    kind.__doc__ = state["doc"]
    for name, value in state["attributes"].items():
        type.__setattr__(kind, "__annotate__" if name == "__annotate_func__" else name, value)
    annotations = state["attributes"].get("__annotations__")
    if annotations is not None and kind.__bases__ == (tuple,):
        kind.__new__.__annotations__ = annotations
