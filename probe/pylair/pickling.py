"""Values as bytes and back, with what `pickle` alone cannot do: functions, classes of cells, modules. Runs in the worker.

Functions and classes that can be imported are stored by name, those of the session by value: code marshalled, closures cell by cell,
classes attribute by attribute. Nothing of the program's runs to store them, and to make them again only what pickle itself runs.
What cannot be found or made again becomes a `Lost` in its place, so that the rest of the stream can still be read.

`snapshot` calls this for whole namespaces, `compare` for the parts of one value. The names of the functions that make values again
are in the files, so renaming one is a change of the format.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib.util
import linecache
import marshal
import pickle
import sys
import types
from typing import Any, ClassVar, Iterable

from . import classes
from .cell import FUTURES
from .lost import Lost, lost, lost_in

PROTOCOL = 5
MAGIC = importlib.util.MAGIC_NUMBER.hex()

_REASONS = {
    "builtins.generator": "a generator, which is in the middle of its work",
    "builtins.coroutine": "a coroutine, which is in the middle of its work",
    "builtins.async_generator": "an asynchronous generator, which is in the middle of its work",
    "builtins.frame": "a stack frame",
    "builtins.traceback": "a traceback, which holds the frames of running code",
    "builtins.memoryview": "a memoryview, which is a window on the memory of another object",
    "builtins.weakref": "a weak reference, which says nothing about who keeps its object alive",
    "weakref.ReferenceType": "a weak reference, which says nothing about who keeps its object alive",
    "weakref.KeyedRef": "a weak reference, which says nothing about who keeps its object alive",
    "weakref.finalize": "a finalizer of another object",
    "_thread.lock": "a lock, which belongs to the threads of this process",
    "_thread.RLock": "a lock, which belongs to the threads of this process",
    "_thread._local": "data that belongs to a thread",
    "threading.Thread": "a thread",
    "subprocess.Popen": "a child process",
    "multiprocessing.process.BaseProcess": "a child process",
    "multiprocessing.pool.Pool": "a pool of processes",
    "concurrent.futures._base.Executor": "a pool of threads or processes",
    "concurrent.futures._base.Future": "the future of work in a pool",
    "_socket.socket": "a network connection",
    "ssl.SSLContext": "a TLS context",
    "sqlite3.Connection": "a database connection",
    "sqlite3.Cursor": "a cursor of a database connection",
    "_asyncio.Future": "a task or future of an event loop",
    "_asyncio.Task": "a task or future of an event loop",
    "asyncio.events.AbstractEventLoop": "an event loop",
    "select.epoll": "a selector of open files",
    "mmap.mmap": "a mapped file",
    "tempfile.TemporaryDirectory": "a temporary directory, which is deleted with this process",
}
_FILES = ("_io.FileIO", "_io.BufferedReader", "_io.BufferedWriter", "_io.BufferedRandom", "_io.TextIOWrapper")
# Pickle knows these.
_PICKLES_OWN = (type(None), type(...), type(NotImplemented))
_DATACLASSES = "dataclasses"


class Unsavable(Exception):
    """A value that cannot be stored, of the kind that the message names; `value` is the one."""

    def __init__(self, what: str, value: Any) -> None:
        super().__init__(what)
        self.value = value


def unsavable(value: Any) -> str | None:
    """What it is, if values of this type cannot be stored, whatever they hold."""
    try:
        return _unsavable_type(type(value), value)
    except Exception:
        return None


def _unsavable_type(kind: type, value: Any) -> str | None:
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in _FILES:
            return f"an open file ({_file_name(value)})"
        if name in _REASONS:
            return _REASONS[name]
    return None


def _file_name(file: Any) -> str:
    try:
        return str(file.name)[:100]
    except Exception:
        return "without a name"


class Reducer:
    """Knows how each object is taken apart. The result has the form of `__reduce__`; `NotImplemented` leaves it to pickle."""

    def __init__(self, namespace: dict[str, Any], with_sources: bool = False) -> None:
        self.namespace = namespace
        self._with_sources = with_sources
        # The files that stored code came from, for their sources.
        self.files: set[str] = set()
        # The arrays that were met: where their memory is.
        self.arrays: list[tuple[int, int, Any]] = []
        self._by_type: dict[type, Any] = {
            types.FunctionType: self._function,
            types.CodeType: self._code,
            types.CellType: _reduce_cell,
            types.MethodType: lambda method: (make_method, (method.__func__, method.__self__)),
            types.MappingProxyType: lambda proxy: (make_proxy, (dict(proxy),)),
            staticmethod: lambda method: (staticmethod, (method.__func__,)),
            classmethod: lambda method: (classmethod, (method.__func__,)),
            property: lambda value: (property, (value.fget, value.fset, value.fdel, value.__doc__)),
        }

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        handler = self._by_type.get(kind)
        if handler is None:
            handler = self._by_type[kind] = self._choose(kind, value)
        return handler(value)

    def _choose(self, kind: type, value: Any) -> Any:
        """The handler for all values of a type."""
        if issubclass(kind, type):
            return self._class
        if issubclass(kind, types.ModuleType):
            return self._module
        if _unsavable_type(kind, value) is not None:
            return _refuse
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name == "functools._lru_cache_wrapper":
            return _reduce_lru_cache
        if name == "functools.cached_property":
            return lambda cached: (cached_property, (cached.func, cached.attrname))
        if name == "typing.TypeVar":
            return _reduce_type_variable
        if name == "numpy.ndarray":
            return self._array
        if kind.__module__ == _DATACLASSES:
            return _reduce_of_dataclasses
        return _leave

    def _function(self, function: types.FunctionType) -> Any:
        if classes.importable(function):
            return NotImplemented
        where: Any = function.__globals__
        if where is not self.namespace:
            owner = sys.modules.get(where.get("__name__", ""))
            where = owner if owner is not None and vars(owner) is where else where
        state = {
            "qualname": function.__qualname__,
            "module": function.__module__,
            "doc": function.__doc__,
            "defaults": function.__defaults__,
            "kwdefaults": function.__kwdefaults__,
            "dict": function.__dict__,
        }
        if getattr(function, "__type_params__", ()):
            state["type_params"] = function.__type_params__  # type: ignore[attr-defined]
        if getattr(function, "__annotate__", None) is not None:
            # 3.14 and later: evaluating annotations runs code and may fail.
            state["annotate"] = function.__annotate__  # type: ignore[attr-defined]
        elif function.__annotations__:
            state["annotations"] = function.__annotations__
        arguments = (function.__code__, where, function.__name__, function.__closure__)
        return make_function, arguments, state, None, None, fill_function

    def _class(self, kind: type) -> Any:
        parts = classes.reduce_class(kind)
        if parts is NotImplemented and kind.__module__ == "builtins" and not hasattr(builtins, kind.__name__) and kind not in _PICKLES_OWN:
            # Types such as `function` have no name of their own, but one in `types`.
            return next(((sentinel, ("types", name)) for name, found in vars(types).items() if found is kind), NotImplemented)
        source = classes.source_file(kind) if self._with_sources and parts is not NotImplemented else None
        if source is not None:
            self.files.add(source)
            parts[2]["file"] = source
        return parts

    def _code(self, code: types.CodeType) -> Any:
        self.files.add(code.co_filename)
        found = (code.co_filename, code.co_name, code.co_firstlineno, code.co_flags & FUTURES, code.co_varnames[: code.co_argcount])
        return make_code, (marshal.dumps(code), *found, code.co_freevars)

    def _module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if name == "__main__" and vars(module) is self.namespace:
            return main_module, ()
        if sys.modules.get(name) is not module:
            raise Unsavable(f"a module that cannot be imported by its name ({name})", module)
        return import_module, (name,)

    def _array(self, array: Any) -> Any:
        first = last = array.__array_interface__["data"][0]
        if array.size:
            for length, stride in zip(array.shape, array.strides):
                first += min(0, stride * (length - 1))
                last += max(0, stride * (length - 1))
            self.arrays.append((first, last + array.itemsize, array))
        return NotImplemented


def _leave(value: Any) -> Any:
    return NotImplemented


def _refuse(value: Any) -> Any:
    raise Unsavable(unsavable(value) or f"a {type(value).__name__}", value)


def _reduce_cell(cell: Any) -> Any:
    try:
        contents = (cell.cell_contents,)
    except ValueError:
        return make_cell, ()
    return make_cell, (), contents, None, None, fill_cell


def _reduce_lru_cache(function: Any) -> Any:
    if classes.importable(function):
        return NotImplemented
    if hasattr(function, "cache_parameters"):
        parameters = function.cache_parameters()
        maxsize, typed = parameters["maxsize"], parameters["typed"]
    else:
        # 3.8 does not tell whether it tells types apart, but its source does.
        maxsize, typed = function.cache_info().maxsize, False
        code = getattr(function.__wrapped__, "__code__", None)
        line = linecache.getline(code.co_filename, code.co_firstlineno) if code is not None else ""
        if "lru_cache" not in line or "typed" in line:
            raise Unsavable("a cached function whose options Python 3.8 does not tell", function)
    # What `functools` puts there itself, which is not the same in all versions.
    usual = ("__wrapped__", "cache_parameters", *functools.WRAPPER_ASSIGNMENTS)
    others = {name: value for name, value in vars(function).items() if name not in usual}
    return lru_cache, (function.__wrapped__, maxsize, typed), others, None, None, fill_attributes


def _reduce_type_variable(variable: Any) -> Any:
    if classes.importable(variable):
        return NotImplemented
    options = {"bound": variable.__bound__, "covariant": variable.__covariant__, "contravariant": variable.__contravariant__}
    if getattr(variable, "__infer_variance__", False):
        options["infer_variance"] = True
    return type_variable, (variable.__name__, variable.__constraints__, options, variable.__module__)


def _reduce_of_dataclasses(value: Any) -> Any:
    """The marks that `dataclasses` compares by identity, and its notes in classes, which have other slots in other versions."""
    for name, found in vars(sys.modules[_DATACLASSES]).items():
        if found is value:
            return sentinel, (_DATACLASSES, name)
    slots = {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)}
    return (make_empty, (type(value),), slots, None, None, fill_slots) if slots else NotImplemented


class Pickler(pickle.Pickler):
    """Stores one value after the other. What two of them share is stored once."""

    def __init__(self, file: Any, reducer: Reducer, memo: dict[int, tuple[int, Any]] | None = None) -> None:
        super().__init__(file, PROTOCOL)
        self.reducer_override = reducer  # type: ignore[method-assign]
        # The namespace is never stored itself: whoever holds it gets the namespace that is restored into.
        self.memo = memo if memo is not None else {id(value): (at, value) for at, value in enumerate(known(reducer.namespace))}


def known(namespace: dict[str, Any]) -> tuple[Any, ...]:
    """What every stream begins with knowing."""
    return namespace, vars(builtins)


# What makes `known` the first entries of an unpickler's memo: each is asked for by number, remembered and dropped.
PREAMBLE = b"\x80\x04" + b"".join(pickle.BININT1 + bytes([at]) + pickle.BINPERSID + pickle.MEMOIZE + pickle.POP for at in range(2)) + b"N."


class Building:
    """What the functions that make values again need to know. There is one at a time."""

    def __init__(self, namespace: dict[str, Any], sources: dict[str, str], magic: str, python: str, names: dict[str, str]) -> None:
        self.namespace = namespace
        self.sources = sources
        self.same_bytecode = magic == MAGIC
        self.python = python
        self.names = names
        # Why something could not be found, once there is such a thing.
        self.losses: list[str] = []
        self._compiled: dict[tuple[str, int], list[types.CodeType]] = {}

    def lose(self, reason: str) -> type[Lost]:
        self.losses.append(reason)
        return lost(reason)

    def code_from_source(self, filename: str, name: str, line: int, futures: int, arguments: Any, free: Any) -> Any:
        """Code that another version of Python compiled, compiled again from the source that was kept."""
        source = self.sources.get(filename)
        if source is None:
            return self.lose(f"its code was compiled by Python {self.python}, and its source was not kept")
        try:
            if (filename, futures) not in self._compiled:
                flags = futures | 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                self._compiled[filename, futures] = list(_nested(compile(source, self.names[filename], "exec", flags, True)))
        except (SyntaxError, ValueError) as error:
            return self.lose(f"its source, written for Python {self.python}, does not compile any more: {error}")
        sought = (name, line, tuple(arguments), tuple(free))
        found = [
            code
            for code in self._compiled[filename, futures]
            if (code.co_name, code.co_firstlineno, code.co_varnames[: code.co_argcount], code.co_freevars) == sought
        ]
        if len(found) != 1:
            return self.lose(f"its code was compiled by Python {self.python}, and it is not clear which part of the source it came from")
        return found[0]


building: Building = None  # type: ignore[assignment]


def _nested(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


class _Finding:
    """What both unpicklers have in common."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            if module == "__main__":
                first, _, rest = name.partition(".")
                return classes.attribute(building.namespace[first], rest) if rest else building.namespace[first]
            return super().find_class(module, name)  # type: ignore[misc]
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return building.lose(_not_found(module, name, error))

    def persistent_load(self, number: int) -> Any:
        return known(building.namespace)[number]


def _not_found(module: str, name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the module {error.name or module} is not there"
    if isinstance(error, (AttributeError, KeyError)):
        return f"{module} has no {name} any more"
    return f"{module} cannot be imported: {type(error).__name__}: {error}"


class Unpickler(_Finding, pickle.Unpickler):
    """Reads what a `Pickler` stored, one value after the other."""


class SharedWithLost(Exception):
    """The value shares an object with one that could not be read."""


class CarefulUnpickler(_Finding, pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Goes on after a value that could not be read. Slower; it knows which objects are missing for that."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def __init__(self, file: Any, memo: dict[int, Any]) -> None:
        super().__init__(file)
        self.memo = memo
        self.next_index = 0

    def _memoize(self) -> None:
        self.memo[self.next_index] = self.stack[-1]  # type: ignore[attr-defined]
        self.next_index += 1

    def _get(self, index: int) -> None:
        if index not in self.memo:
            raise SharedWithLost(index)
        self.append(self.memo[index])  # type: ignore[attr-defined]

    def _get_short(self) -> None:
        self._get(self.read(1)[0])  # type: ignore[attr-defined]

    def _get_long(self) -> None:
        self._get(int.from_bytes(self.read(4), "little"))  # type: ignore[attr-defined]

    dispatch[pickle.MEMOIZE[0]] = _memoize
    dispatch[pickle.BINGET[0]] = _get_short
    dispatch[pickle.LONG_BINGET[0]] = _get_long


_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"})
_NOTHING = object()


def plain_entries(record: bytes, start: int, memo: dict[int, Any], find: Any) -> dict[int, Any]:
    """The texts and the names of classes and functions among the memo's entries that a record makes, without making its value."""
    import pickletools

    found: dict[int, Any] = {}
    before = top = _NOTHING
    for operation, argument, _ in pickletools.genops(record):
        name = operation.name
        if name == "MEMOIZE":
            if top is not _NOTHING:
                found[start] = top
            start += 1
        elif name in _TEXTS:
            before, top = top, argument
        elif name in ("BINGET", "LONG_BINGET"):
            before, top = top, found.get(argument, memo.get(argument, _NOTHING))
        elif name == "STACK_GLOBAL" and isinstance(before, str) and isinstance(top, str):
            before, top = _NOTHING, find(before, top)
        elif name not in ("PROTO", "FRAME"):
            before = top = _NOTHING
    return found


def find_lost(value: Any, namespace: dict[str, Any]) -> str | None:
    """The reason of something lost that the value holds, however deep."""
    seen: set[int] = {id(known_value) for known_value in known(namespace)}
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        found = lost_in(value)
        if found is not None:
            return found
        kind = type(value)
        if issubclass(kind, types.ModuleType) or (issubclass(kind, (type, types.FunctionType)) and classes.importable(value)):
            continue
        waiting.extend(gc.get_referents(value))
        # NumPy does not show the collector what its arrays hold.
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.hasobject:
            waiting.extend(value.ravel().tolist())
    return None


# What follows is called while a file is read, by the names that are in it.


def import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return building.lose(_not_found(name, name, error))


def main_module() -> Any:
    return sys.modules["__main__"]


def make_code(blob: bytes, filename: str, name: str, line: int, futures: int, arguments: Any, free: Any) -> Any:
    if not building.same_bytecode:
        return building.code_from_source(filename, name, line, futures, arguments, free)
    code = marshal.loads(blob)
    new_name = building.names.get(filename)
    return code if new_name is None else _renamed(code, filename, new_name)


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    constants = tuple(_renamed(value, old, new) if isinstance(value, types.CodeType) else value for value in code.co_consts)
    return code.replace(co_filename=new if code.co_filename == old else code.co_filename, co_consts=constants)


def make_function(code: Any, where: Any, name: str, closure: Any) -> Any:
    for part in (code, where):
        if lost_in(part) is not None:
            return part
    return types.FunctionType(code, where if type(where) is dict else vars(where), name, None, closure)


def fill_function(function: Any, state: dict[str, Any]) -> None:
    if lost_in(function) is not None:
        return
    function.__qualname__ = state["qualname"]
    function.__module__ = state["module"]
    function.__doc__ = state["doc"]
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__dict__.update(state["dict"])
    for name in ("type_params", "annotate", "annotations"):
        if name in state:
            setattr(function, f"__{name}__", state[name])


def make_cell() -> Any:
    return types.CellType()


def fill_cell(cell: Any, contents: tuple[Any]) -> None:
    cell.cell_contents = contents[0]


def make_method(function: Any, owner: Any) -> Any:
    return types.MethodType(function, owner)


def make_proxy(mapping: Any) -> Any:
    return types.MappingProxyType(mapping)


def lru_cache(function: Any, maxsize: int | None, typed: bool) -> Any:
    if lost_in(function) is not None:
        return function
    return functools.lru_cache(maxsize, typed)(function)


def fill_attributes(value: Any, attributes: dict[str, Any]) -> None:
    if lost_in(value) is None:
        vars(value).update(attributes)


def cached_property(function: Any, name: str | None) -> Any:
    made: Any = functools.cached_property(function)
    made.attrname = name
    return made


def type_variable(name: str, constraints: tuple[Any, ...], options: dict[str, Any], module: str) -> Any:
    import typing

    made: Any = typing.TypeVar(name, *constraints, **options)  # type: ignore[misc]
    made.__module__ = module
    return made


def make_empty(kind: type) -> Any:
    return object.__new__(kind)


def fill_slots(value: Any, slots: dict[str, Any]) -> None:
    for name, item in slots.items():
        try:
            setattr(value, name, item)
        except AttributeError:
            # One that this version does not have.
            continue


def sentinel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
