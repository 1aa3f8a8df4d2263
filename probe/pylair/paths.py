"""Paths such as `model.layers[0].weights["bias"]`: parsing them and walking them without evaluating anything.

Called by everything that looks at a program's values: inspect, source, complete. Runs in any process, on any thread, also inside a signal
handler, so it runs none of the program's code: types are taken from `type()`, attributes from the dictionaries of instances and
classes, items with the methods of built-in classes. What cannot be found that way is refused with a kind and a hint.
"""

from __future__ import annotations

import ast
import builtins
import collections
import difflib
import functools
import re
import sys
import types
import warnings
from array import array
from itertools import islice
from typing import Any, Iterator, NamedTuple

from . import errors, wire

MAX_PATH_CHARS = 2000
_MAX_HINTED = 8
_MAX_KEY_CHARS = 100
_MAX_COMPARED = 1_000_000
_MAX_NESTING = 20
_MANY_KEYS = 100_000

_GETSET, _MEMBER = types.GetSetDescriptorType, types.MemberDescriptorType


def _ids(*classes: type) -> frozenset[int]:
    """For asking whether a class is one of these: a metaclass may have an `__eq__` and a `__hash__` of its own."""
    return frozenset(map(id, classes))


_STORED = _ids(_GETSET, _MEMBER)
_C_METHODS = _ids(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)

# Straight from `type`: a metaclass can lie about all of these.
_mro_of = type.__dict__["__mro__"].__get__
_dict_of = type.__dict__["__dict__"].__get__
_name_of = type.__dict__["__qualname__"].__get__

_BUILTINS = builtins.__dict__

MISSING: Any = object()

# Types whose values are compared and hashed by C alone.
_PLAIN_IDS = _ids(str, int, float, bool, type(None), bytes, complex)

# Escapes that the compiler warns about, or will refuse.
_BAD_ESCAPE = re.compile(r"\\[^\n\\'\"abfnrtvxuUN0-7]")

# The classes of numpy, pandas and their like. Their code may run in a throw-away, for a preview.
LIBRARIES = frozenset({"numpy", "pandas", "polars", "torch", "tensorflow", "jax", "jaxlib", "xarray", "scipy", "pyarrow", "dask", "cupy"})


class NoWarnings:
    """Keeps warnings from the program for a moment. `warnings.catch_warnings` would let those through again that were shown once."""

    def __enter__(self) -> None:
        self.filters = warnings.filters
        self.ignore = ("ignore", None, Warning, None, 0)
        if type(self.filters) is list:
            self.filters.insert(0, self.ignore)

    def __exit__(self, *_: Any) -> None:
        if type(self.filters) is list and self.filters and self.filters[0] is self.ignore:
            del self.filters[0]


class Refused(Exception):
    """Something that cannot be done. The message is one sentence; `kind` is a word for programs and `hint` the way out."""

    def __init__(self, kind: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


class NeedsCode(Refused):
    """Going on would run code: of the program's, or of the library that `owner`, a class, comes from."""

    def __init__(self, message: str, owner: type) -> None:
        super().__init__("needs_code", message, "execute can evaluate it as an expression, which runs that code")
        self.owner = owner


def refusal(error: BaseException, operation: Any) -> dict[str, Any]:
    """The fields that say why there is no answer."""
    if isinstance(error, Refused):
        said = {"refused": wire.clean(error.message), "kind": error.kind}
        if error.hint:
            said["hint"] = wire.clean(error.hint)
        return said
    if isinstance(error, KeyboardInterrupt):
        return {"refused": f"{operation} was interrupted", "kind": "interrupted"}
    return {"refused": f"{operation} failed: {errors.type_name(type(error))}: {errors.message(error)}", "kind": "failed"}


class Step(NamedTuple):
    """One step of a path. `kind` is name, literal, attribute or item; the value of an item may be a path of its own."""

    kind: str
    value: Any
    text: str


class Path(NamedTuple):
    text: str
    steps: list[Step]


def parse(text: str) -> Path:
    """The steps of a path. Anything that would compute is refused."""
    text = text.strip()
    if not text:
        raise Refused("bad_path", "the path is empty")
    if len(text) > MAX_PATH_CHARS:
        raise Refused("bad_path", f"a path has at most {MAX_PATH_CHARS} characters")
    if "\\" in text and _BAD_ESCAPE.search(text):
        raise Refused("bad_path", "the path has a string with an unknown escape", "write a backslash as \\\\")
    if _nesting(text) > _MAX_NESTING:
        # Old parsers complain about many levels on stderr.
        raise _bad(text, "its brackets are nested too deeply")
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _bad(text, f"it cannot be parsed ({said})") from None
    return _path_of(tree.body, text)


def check(text: str) -> None:
    """Refuses what is not one path from its first character to its last, so that source can be written around it."""
    parse(text)
    text = text.strip()
    body = _parsed(text).body
    lines = text.encode("utf-8").split(b"\n")
    whole = body.lineno == 1 and body.col_offset == 0 and body.end_lineno == len(lines) and body.end_col_offset == len(lines[-1])
    if not whole or not isinstance(body, (ast.Name, ast.Attribute, ast.Subscript)):
        raise _bad(text, "it has more in it than a path")


def check_assigned(text: str, source: str, namespace: dict[str, Any]) -> None:
    """Refuses a source that would set one of Python's own names, without which no later code runs. `text` has passed `check`."""
    if not source[len(text) :].lstrip().startswith("="):
        return
    steps = parse(text).steps
    if _is_own_name(steps, namespace):
        message = f"{text.strip()} is Python's own and cannot be set"
        raise Refused("bad_path", message, "choose another name; a builtin can be hidden by a variable of its name")


def _is_own_name(steps: list[Step], namespace: dict[str, Any]) -> bool:
    last = steps[-1]
    if last.kind == "name":
        return _is_special(last.value)
    try:
        owner = walk(Path("", steps[:-1]), namespace)
        key = last.value if last.kind == "attribute" else resolve(last.value, namespace)
    except Refused:
        return False
    names = module_dict(owner) if issubclass(type(owner), types.ModuleType) else owner
    return names is _BUILTINS or (names is namespace and _is_special(key))


def _is_special(name: Any) -> bool:
    return type(name) is str and name.startswith("__") and name.endswith("__")


def _parsed(text: str) -> ast.Expression:
    # The compiler warns about things like `1if`, and what is done with warnings is the program's code.
    with NoWarnings():
        return compile(text, "<path>", "eval", ast.PyCF_ONLY_AST, True)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _path_of(node: ast.AST, text: str) -> Path:
    steps: list[Step] = []
    while True:
        if isinstance(node, ast.Attribute):
            steps.append(Step("attribute", node.attr, "." + node.attr))
            node = node.value
        elif isinstance(node, ast.Subscript):
            steps.append(Step("item", _key_of(node.slice, text), ast.get_source_segment(text, node.slice) or "…"))
            node = node.value
        elif isinstance(node, ast.Name):
            steps.append(Step("name", node.id, node.id))
            break
        else:
            try:
                steps.append(Step("literal", _literal(node), text))
                break
            except ValueError:
                raise _bad(text, f"{_WORDS.get(type(node).__name__, 'it')} would have to be computed") from None
    steps.reverse()
    return Path(text, steps)


_WORDS = {"Call": "a call", "BinOp": "an operator", "Compare": "a comparison", "Lambda": "a lambda", "IfExp": "a condition"}


def _bad(text: str, reason: str) -> Refused:
    shown = text if len(text) <= 100 else text[:100] + "…"
    return Refused("bad_path", f"{shown!r} is not a path: {reason}", "a path has names, attributes, items and slices: data['rows'][0].name")


def _key_of(node: Any, text: str) -> Any:
    """The key of a subscript: a literal, a slice, a tuple of those, or a path to a value."""
    if type(node).__name__ == "Index":
        # 3.8 wraps keys.
        node = node.value
    if isinstance(node, ast.Slice):
        parts = (None if part is None else _literal_or_bad(part, text) for part in (node.lower, node.upper, node.step))
        return slice(*parts)
    dims = getattr(node, "dims", None) if type(node).__name__ == "ExtSlice" else getattr(node, "elts", None)
    if dims is not None and isinstance(node, (ast.Tuple, ast.slice)):
        return tuple(_key_of(part, text) for part in dims)
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return _path_of(node, text)
    return _literal_or_bad(node, text)


def _literal_or_bad(node: ast.AST, text: str) -> Any:
    try:
        return _literal(node)
    except ValueError:
        raise _bad(text, "an item would have to be computed") from None


def _literal(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if type(value) in (int, float, complex):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Tuple):
        return tuple(map(_literal, node.elts))
    raise ValueError


def walk(path: Path, namespace: dict[str, Any]) -> Any:
    """The value at the end of the path."""
    value: Any = None
    at = ""
    for step in path.steps:
        value, at = take_step(value, step, namespace, at)
    return value


def take_step(value: Any, step: Step, namespace: dict[str, Any], at: str) -> tuple[Any, str]:
    """One step from a value. `at` is the part of the path that led to it, for messages; the longer one is returned."""
    if step.kind == "name":
        return find_name(step.value, namespace), step.text
    if step.kind == "literal":
        return step.value, step.text
    if step.kind == "attribute":
        return attribute(value, step.value, at), at + step.text
    return item(value, resolve(step.value, namespace), at), f"{at}[{step.text}]"


def resolve(key: Any, namespace: dict[str, Any]) -> Any:
    if type(key) is Path:
        key = walk(key, namespace)
    elif type(key) is tuple:
        key = tuple(resolve(part, namespace) for part in key)
    if not _is_plain_key(key):
        raise Refused("bad_path", f"{errors.a(type_name(type(key)))} cannot be an item's key in a path", "use execute")
    return key


def _is_plain_key(key: Any) -> bool:
    kind = type(key)
    if kind is tuple:
        return all(map(_is_plain_key, key))
    if kind is slice:
        return all(map(_is_plain_key, (key.start, key.stop, key.step)))
    return is_plain(key) or key is Ellipsis


def find_name(name: str, namespace: dict[str, Any]) -> Any:
    value = lookup(namespace, name)
    if value is not MISSING:
        return value
    found = lookup(namespace, "__builtins__")
    if type(found) is types.ModuleType:
        found = module_dict(found)
    value = lookup(found, name) if type(found) is dict else MISSING
    if value is not MISSING:
        return value
    names = plain_names(namespace)
    raise Refused("no_such_name", f"there is no variable {name!r}", did_you_mean(name, names) or listed("the variables are", names))


# Classes.


def mro(cls: type) -> tuple[type, ...]:
    return _mro_of(cls)


def class_dict(cls: type) -> Any:
    return _dict_of(cls)


def is_class(value: Any) -> bool:
    return issubclass(type(value), type)


def in_class(cls: type, name: str) -> tuple[Any, type | None]:
    """What the class or one of its bases has under this name, as it is stored there, and which of them has it."""
    for base in _mro_of(cls):
        found = _dict_of(base).get(name, MISSING)
        if found is not MISSING:
            return found, base
    return MISSING, None


def type_name(cls: type) -> str:
    """The qualified name of a class; those of built-ins and of the program itself go without a module."""
    name = wire.shortened(_name_of(cls))
    module = wire.shortened(module_name(cls))
    return name if module in ("builtins", "__main__", "") else f"{module}.{name}"


def short_name(cls: type) -> str:
    return _name_of(cls)


def module_name(cls: type) -> str:
    module = _dict_of(cls).get("__module__", MISSING)
    if type(module) is not str and not type.__dict__["__flags__"].__get__(cls) & _HEAP_TYPE:
        # Types that are written in C keep it in their name.
        module = type.__dict__["__module__"].__get__(cls)
    return module if type(module) is str else ""


def library(cls: type) -> str | None:
    """The library of numbers and tables that the class or one of its bases comes from."""
    for base in _mro_of(cls):
        root = module_name(base).partition(".")[0]
        if root in LIBRARIES:
            return root
    return None


# Attributes.


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The dictionary of an instance's attributes, unless it has none or its class hides it."""
    for base in _mro_of(type(value)):
        found = _dict_of(base).get("__dict__", MISSING)
        if found is MISSING:
            continue
        if id(type(found)) not in _STORED:
            return None
        try:
            attributes = found.__get__(value)
        except (AttributeError, TypeError):
            return None
        if type(attributes) is dict:
            return attributes
        if not issubclass(type(attributes), dict):
            return None
        # `self.__dict__ = self` is common, and the methods of such a dictionary are the program's.
        return {name: found for name, found in list(dict.items(attributes)) if type(name) is str}
    return None


def module_dict(module: types.ModuleType) -> dict[str, Any]:
    return types.ModuleType.__dict__["__dict__"].__get__(module)


def slots(value: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of `__slots__` that are set."""
    for base in _mro_of(type(value)):
        if not type.__dict__["__flags__"].__get__(base) & _HEAP_TYPE:
            continue
        for name, descriptor in list(_dict_of(base).items()):
            if type(descriptor) is _MEMBER and type(name) is str and name not in ("__dict__", "__weakref__"):
                try:
                    yield name, descriptor.__get__(value)
                except (AttributeError, TypeError):
                    continue


_HEAP_TYPE = 1 << 9


def properties(cls: type) -> list[str]:
    """Names of what would have to be computed: properties, cached or not."""
    found: dict[str, None] = {}
    seen = set()
    for base in _mro_of(cls):
        for name, raw in list(_dict_of(base).items()):
            if type(name) is str and name not in seen:
                seen.add(name)
                if issubclass(type(raw), (property, functools.cached_property)):
                    found[name] = None
    return list(found)


def attribute(value: Any, name: str, at: str = "") -> Any:
    """`value.name`, found and not computed."""
    raw, bound = raw_attribute(value, name, at)
    return bind(raw, value, name, at) if bound else raw


def raw_attribute(value: Any, name: str, at: str = "") -> tuple[Any, bool]:
    """What is stored under the name, and whether it comes from a class and has yet to be bound to the value."""
    cls = type(value)
    inherited, _ = in_class(cls, name)
    if inherited is not MISSING and _is_data_descriptor(inherited):
        return inherited, True
    if issubclass(cls, type):
        raw, _ = in_class(value, name)
        if raw is not MISSING:
            return bind_to_class(raw, value), False
    else:
        attributes = instance_dict(value)
        raw = lookup(attributes, name) if attributes is not None else MISSING
        if raw is not MISSING:
            return raw, False
    if inherited is not MISSING:
        return inherited, True
    raise _no_attribute(value, name, at)


def _is_data_descriptor(raw: Any) -> bool:
    return in_class(type(raw), "__set__")[0] is not MISSING


def bind_to_class(raw: Any, cls: type) -> Any:
    """An attribute of a class as `cls.name` gives it; descriptors that would compute are given as they are stored."""
    if type(raw) is staticmethod:
        return raw.__func__
    if type(raw) is classmethod:
        return _method(raw.__func__, cls)
    if type(raw) is types.ClassMethodDescriptorType:
        return raw.__get__(None, cls)
    return raw


def _method(function: Any, owner: Any) -> Any:
    return types.MethodType(function, owner) if callable(function) else function


def bind(raw: Any, value: Any, name: str, at: str) -> Any:
    """What a class has under a name, as an instance gives it."""
    kind = type(raw)
    if kind is types.FunctionType:
        return types.MethodType(raw, value)
    if kind is staticmethod or kind is classmethod:
        return bind_to_class(raw, type(value))
    if id(kind) in _C_METHODS:
        return raw.__get__(value, type(value))
    if id(kind) in _STORED:
        if name == "__annotations__" and sys.version_info >= (3, 14):
            raise NeedsCode(f"{at}.{name} would be computed", type(value))
        try:
            return raw.__get__(value, type(value))
        except Exception:
            raise _no_attribute(value, name, at) from None
    if issubclass(kind, property):
        raise NeedsCode(f"{at}.{name} is a property, and properties are not run here", type(value))
    if in_class(kind, "__get__")[0] is not MISSING:
        raise NeedsCode(f"{at}.{name} would be computed by {errors.a(type_name(kind))}", type(value))
    return raw


def attribute_names(value: Any) -> list[str]:
    """All names that can be found, as `dir` would list them without asking the value."""
    names: dict[str, None] = {}
    if issubclass(type(value), type):
        for base in _mro_of(value):
            names.update(dict.fromkeys(plain_names(_dict_of(base))))
    else:
        attributes = instance_dict(value)
        if attributes is not None:
            names.update(dict.fromkeys(plain_names(attributes)))
    for base in _mro_of(type(value)):
        names.update(dict.fromkeys(plain_names(_dict_of(base))))
    return list(names)


def _no_attribute(value: Any, name: str, at: str) -> Refused:
    cls = type(value)
    what = f"the module {at}" if issubclass(cls, types.ModuleType) else f"{at or 'it'}, {errors.a(type_name(cls))},"
    if issubclass(cls, types.ModuleType):
        dynamic = lookup(module_dict(value), "__getattr__") is not MISSING
    else:
        dynamic = in_class(cls, "__getattr__")[0] is not MISSING or _overrides_getattribute(cls)
    if dynamic:
        return NeedsCode(f"{what} has no attribute {name!r} but may make one in __getattr__, which is not run here", cls)
    names = attribute_names(value)
    public = [known for known in names if not known.startswith("_")]
    hint = did_you_mean(name, names) or listed("its attributes are", public)
    return Refused("no_such_attribute", f"{what} has no attribute {name!r}", hint)


def _overrides_getattribute(cls: type) -> bool:
    found, owner = in_class(cls, "__getattribute__")
    return type(found) is types.FunctionType or owner is None


# Items.


def lookup(mapping: Any, key: Any) -> Any:
    """The value of a plain key in a dictionary or a class's, or MISSING. Never compares with a key that has its own `__eq__`."""
    is_dict = issubclass(type(mapping), dict)
    if _PLAIN_IDS.issuperset(map(id, map(type, _some_keys(mapping) if is_dict else _keys(mapping)))):
        try:
            return dict.get(mapping, key, MISSING) if is_dict else mapping.get(key, MISSING)
        except TypeError:
            # A slice is no key.
            return MISSING
    for known, value in list(dict.items(mapping) if is_dict else mapping.items()):
        if same_key(known, key):
            return value
    return MISSING


def _some_keys(mapping: dict[Any, Any]) -> list[Any]:
    """Enough keys to know the dictionary by. All of them, unless they are so many that looking at each would take long."""
    return list(islice(dict.keys(mapping), _MANY_KEYS)) if dict.__len__(mapping) > _MANY_KEYS else list(dict.keys(mapping))


def _keys(mapping: Any) -> list[Any]:
    # A subclass may iterate in a way of its own, and a thread may add a key.
    return list(dict.keys(mapping) if issubclass(type(mapping), dict) else mapping.keys())


def is_plain(value: Any) -> bool:
    """Whether it is of a type whose values are hashed, compared and written by C alone."""
    return id(type(value)) in _PLAIN_IDS


def same_key(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(same_key, one, other))
    return is_plain(one) and is_plain(other) and one == other


def plain_names(mapping: Any) -> list[str]:
    return [name for name in _keys(mapping) if type(name) is str]


_DICTS = _ids(dict, collections.OrderedDict)
_SEQUENCES = _ids(list, tuple, str, bytes, bytearray, range, collections.deque, array, memoryview)


def item(value: Any, key: Any, at: str = "") -> Any:
    """`value[key]` of built-in containers and of classes that inherit theirs; numpy arrays too, whose items C code finds."""
    cls = type(value)
    getter, owner = in_class(cls, "__getitem__")
    if getter is MISSING:
        if issubclass(cls, type):
            raise NeedsCode(f"{at}[…] would be computed by the class", cls)
        raise Refused("no_such_item", f"{at or 'it'}, {errors.a(type_name(cls))}, has no items")
    if id(owner) in _DICTS:
        return _dict_item(value, key, at)
    if owner is types.MappingProxyType:
        raise NeedsCode(f"{at}[…] would be looked up by the mapping behind a proxy", cls)
    if id(owner) not in _SEQUENCES and not is_numpy_array_class(owner):
        raise NeedsCode(f"{at}[…] would be computed by the __getitem__ of {type_name(cls)}", cls)
    try:
        return getter(value, key)
    except (IndexError, OverflowError):
        # A deque takes no index that is larger than a machine word.
        shape = length(value)
        raise Refused(
            "no_such_item", f"{at}[{shown_key(key)}] is past the end", None if shape is None else f"the length is {shape}"
        ) from None
    except (TypeError, ValueError, KeyError, NotImplementedError) as error:
        raise Refused("no_such_item", f"{at}[{shown_key(key)}] is not an item of {errors.a(type_name(cls))}: {error}") from None


def _dict_item(value: Any, key: Any, at: str) -> Any:
    try:
        hash(key)
    except TypeError:
        raise Refused("no_such_item", f"{at}[{shown_key(key)}] cannot be a key of a dictionary") from None
    found = lookup(value, key)
    if found is not MISSING:
        return found
    if in_class(type(value), "__missing__")[0] is not MISSING and type(value) is not collections.defaultdict:
        raise NeedsCode(f"{at} has no key {shown_key(key)} but may make one in __missing__, which is not run here", type(value))
    keys = [known for known in islice(dict.__iter__(value), 1000) if is_plain(known)]
    close = did_you_mean(key, [known for known in keys if type(known) is str]) if type(key) is str else None
    hint = close or listed("the keys are", [shown_key(known) for known in keys[:50]])
    raise Refused("no_such_item", f"{at} has no key {shown_key(key)}", hint)


def shown_key(key: Any) -> str:
    """A plain key for a message, however large it is."""
    kind = type(key)
    if kind is str or kind is bytes:
        return repr(key) if len(key) <= _MAX_KEY_CHARS else f"{key[:_MAX_KEY_CHARS]!r}…"
    if kind is int and key.bit_length() > _MAX_KEY_CHARS * 4:
        return f"<int of {key.bit_length()} bits>"
    if kind is tuple:
        more = ", …" if len(key) > _MAX_HINTED else "," if len(key) == 1 else ""
        return f"({', '.join(map(shown_key, key[:_MAX_HINTED]))}{more})"
    if kind is slice:
        return f"slice({', '.join(map(shown_key, (key.start, key.stop, key.step)))})"
    return repr(key)


def is_numpy_array_class(cls: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(numpy) is types.ModuleType and cls is module_dict(numpy).get("ndarray")


def length(value: Any) -> int | None:
    """`len(value)` where C code counts; None elsewhere."""
    counter, owner = in_class(type(value), "__len__")
    if counter is MISSING or (id(owner) not in _COUNTED and not is_numpy_array_class(owner)):
        return None
    try:
        return counter(value)
    except (TypeError, ValueError, OverflowError):
        return None


_COUNTED = _SEQUENCES | _DICTS | _ids(set, frozenset)


# Hints.


def did_you_mean(name: str, names: list[str]) -> str | None:
    # Names that are alike take their lengths' product to compare.
    affordable, left = 0, _MAX_COMPARED
    for known in names:
        left -= len(name) * len(known)
        if left < 0:
            break
        affordable += 1
    try:
        close = difflib.get_close_matches(name, names[:affordable], 3)
    except Exception:
        # The program did something to what `difflib` uses. A hint is no reason to fail.
        close = []
    if not close:
        close = [known for known in names if known.lower() == name.lower()][:3]
    return f"did you mean {' or '.join(map(repr, close))}?" if close else None


def listed(lead: str, names: list[str]) -> str | None:
    names = [name for name in names if not name.startswith("__")]
    if not names:
        return None
    more = f" and {len(names) - _MAX_HINTED} more" if len(names) > _MAX_HINTED else ""
    shown = (name if len(name) <= 60 else name[:60] + "…" for name in names[:_MAX_HINTED])
    return f"{lead} {', '.join(shown)}{more}"
