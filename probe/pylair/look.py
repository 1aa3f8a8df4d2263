"""`inspect`: what a value is, without running any of the program's code; and the one door to all requests that look.

Called by the worker between cells, by the side door in the middle of one (peek.py), and in an app (calls.py). What only the program's own
code can tell, a `__repr__` or the shape of a DataFrame, is asked as the `Policy` of the caller says: in a throw-away, one for the whole
request; right here; or not at all.

The answer of `inspect` with a path. Keys without a value are left out:

    {"path": "team.members", "type": "list", "kind": "value"|"function"|"class"|"module",
     "preview": text, always there; of containers only `max_items` items, "preview_error": why it is not all that `repr` would say,
     "length": 3, "shape": [2, 3], "dtype": "float64", "bytes": 48,
     "signature": "(a, b=1)", "doc": text, "file": "/…/a.py" or "<cell 3>", "line": 4, "bases": ["Shape"],
     "properties": [name], which are not run; where the program's code is, they are among the attributes, "computed": true,
     "items": [the first and the last, each
               {"key": text of a dict's key, or an index, absent in sets, "type", "preview", "preview_error", "length", "shape", "dtype",
                "bytes", "cycle": true for a value that is one of those around it,
                "items", "attributes", "total_items", "total_attributes"},
               and between them {"gap": 980} where so many were left out],
     "attributes": [the same, with "name" instead of "key"],
     "total_items": 1000, "total_attributes": 7, "more": true when items or attributes are missing}

With `full` there are no items and attributes, and instead of `preview`:

    {"value": a page of the text, "offset": 0, "next_offset": 2000 or absent on the last page,
     "total_chars": 12345, absent when that is not known because of a value_cut,
     "value_cut": true when the value is larger than what is ever shown: 4 Mi characters, 300,000 numbers of an array; in a peek 50,000
     characters, 5000 numbers, "preview_error": why the text is not what `repr` would say}

A string's text is the string itself, an array's that of nested lists, a DataFrame's its table, or CSV if it is large; everything else's is
what `repr` says. Without a path:

    {"variables": [{"name", "type", "kind", "preview", "preview_error", "length", "shape", "dtype", "bytes"}], "total": 40, "more": true}
"""

from __future__ import annotations

import _thread
import collections
import sys
import types
from itertools import islice
from typing import Any, Callable, Iterable, NamedTuple

from . import complete, errors, paths, preview, signature, source, throwaway, wire
from .paths import MISSING, Refused

MAX_DEPTH = 8
MAX_ITEMS = 1000
MAX_CHARS = 1 << 20
MAX_FULL_CHARS = 4 << 20
MAX_NODES = 4000
_MAX_VARIABLES = 200
_MAX_NAMES = 100
_ITEM_CHARS = 200
_DOC_CHARS = 600
_FULL_DOC_CHARS = 100_000
_MAX_JOBS = 200
_MAX_FULL_ITEMS = 300_000
_MAX_TABLE_CELLS = 10_000
_ENDLESS = sys.maxsize


class Policy(NamedTuple):
    """What may be done about a value that only the program's own code can tell more about."""

    # Asked in a copy of the process.
    fork: bool
    # Asked right here.
    run: bool
    # The answer must not take long.
    quick: bool
    # What is said when it is not asked.
    why_not: str


BETWEEN_CELLS = Policy(fork=True, run=False, quick=False, why_not="")
IN_A_CELL = Policy(fork=False, run=False, quick=True, why_not="it needs the program's own code, which is not run while a cell runs")
IN_AN_APP = Policy(fork=False, run=False, quick=False, why_not="it needs the app's own code, which is only run when that is asked for")
# What the program's code may raise where that is its own affair. An interrupt is ours.
_ANYTHING = (Exception, SystemExit, GeneratorExit)

_RUNNING = Policy(fork=False, run=True, quick=False, why_not="")


def answer(
    request: dict[str, Any], blob: bytes, namespace: dict[str, Any], cells: Any = (), policy: Policy = BETWEEN_CELLS
) -> dict[str, Any]:
    """The answer to a request that looks. `cells` are the names and sources of cells, oldest first, or a function that gives them."""
    operation = request.get("op")
    if operation == "inspect":
        return inspect(request, namespace, policy)
    if operation == "source":
        return source.read(_text(request, "path"), namespace, cells() if callable(cells) else cells, quick=policy.quick)
    if operation == "complete":
        try:
            text = blob.decode("utf-8") if blob else request.get("code") or ""
        except UnicodeDecodeError as error:
            raise Refused("bad_request", f"the code is not UTF-8: {error}") from None
        cursor = _number(request, "cursor", len(text), len(text))
        return complete.complete(text, cursor, namespace, may_fork=policy.fork, may_read=not policy.quick)
    if operation == "ping":
        return {"threads": 1 + _thread._count()}
    raise Refused("unknown_operation", f"this probe does not know the operation {operation!r}")


OPERATIONS = ("inspect", "source", "complete", "ping")


def _number(request: dict[str, Any], name: str, default: int, most: int, least: int = 0) -> int:
    value = request.get(name)
    if value is None:
        value = default
    if type(value) is not int:
        raise Refused("bad_request", f"{name} must be a whole number")
    return max(least, min(value, most))


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if type(value) is not str:
        raise Refused("bad_request", f"{name} must be a text")
    return value


def inspect(request: dict[str, Any], namespace: dict[str, Any], policy: Policy = BETWEEN_CELLS) -> dict[str, Any]:
    """What is at the path, or the variables. See the top of this file."""
    inspector = _Inspector(request, policy)
    if request.get("path") is None:
        return inspector.variables(namespace)
    path = paths.parse(_text(request, "path"))
    try:
        value = _walk_running(path, namespace, everything=True) if policy.run else paths.walk(path, namespace)
    except paths.NeedsCode as needed:
        if not policy.fork or paths.library(needed.owner) is None:
            raise
        return _in_throwaway(path, namespace, request, needed)
    return inspector.top(path.text, value)


def _in_throwaway(path: paths.Path, namespace: dict[str, Any], request: dict[str, Any], needed: paths.NeedsCode) -> dict[str, Any]:
    """Goes on where a library's own code is needed, such as `df["a"]`: the whole request is done in a throw-away."""

    def look() -> dict[str, Any]:
        try:
            return {"answer": _Inspector(request, _RUNNING).top(path.text, _walk_running(path, namespace))}
        except Refused as refused:
            return {"kind": refused.kind, "message": refused.message, "hint": refused.hint}

    outcome = throwaway.run([look])[0]
    if outcome.error is not None:
        raise Refused("needs_code", f"{needed.message}; tried in a copy of the process, it failed: {outcome.error}", needed.hint)
    if "answer" in outcome.value:
        return outcome.value["answer"]
    raise Refused(**outcome.value)


def run_here(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """`inspect` in which all that needs the program's code is asked in this process: properties, items, reprs. They may do anything but
    raise; what they raise is told."""
    return inspect(request, namespace, _RUNNING)


def _walk_running(path: paths.Path, namespace: dict[str, Any], everything: bool = False) -> Any:
    """As `paths.walk`, but classes of libraries, or all, are asked for their attributes and items."""
    value: Any = None
    at = ""
    for step in path.steps:
        try:
            value, at = paths.take_step(value, step, namespace, at)
        except paths.NeedsCode as needed:
            if paths.library(needed.owner) is None and not everything:
                raise
            value = _run_step(value, step, namespace, at)
            at += step.text if step.kind == "attribute" else f"[{step.text}]"
    return value


def _run_step(value: Any, step: paths.Step, namespace: dict[str, Any], at: str) -> Any:
    key = step.value if step.kind == "attribute" else paths.resolve(step.value, namespace)
    try:
        return getattr(value, key) if step.kind == "attribute" else value[key]
    except _ANYTHING as error:
        if paths.library(type(value)) is None or not isinstance(error, (AttributeError, LookupError)):
            raise _raised(step, at, error) from None
        known = [str(name) for name in islice(getattr(value, "columns", ()), MAX_ITEMS)]
        hint = paths.did_you_mean(str(key), known) or paths.listed("the columns are", known)
        kind = "no_such_attribute" if step.kind == "attribute" else "no_such_item"
        said = errors.cut(errors.message(error), 200)
        raise Refused(
            kind, f"{at}, {errors.a(paths.type_name(type(value)))}, has no {step.kind} {paths.shown_key(key)}: {said}", hint
        ) from None


def _raised(step: paths.Step, at: str, error: BaseException) -> Refused:
    where = at + step.text if step.kind == "attribute" else f"{at}[{step.text}]"
    return Refused("raised", f"{where} raised {_said(error)}")


def _said(error: BaseException) -> str:
    return errors.cut(f"{errors.type_name(type(error))}: {errors.message(error)}", 500)


class _Inspector:
    """One request: its bounds, what it has used of them, and what is left to be asked in the throw-away."""

    def __init__(self, request: dict[str, Any], policy: Policy) -> None:
        self.depth = _number(request, "depth", 1, MAX_DEPTH)
        self.max_items = _number(request, "max_items", 20, MAX_ITEMS)
        self.max_variables = _number(request, "max_items", _MAX_VARIABLES, MAX_ITEMS)
        self.max_chars = _number(request, "max_chars", 2000, MAX_CHARS, 1)
        self.offset = _number(request, "offset", 0, _ENDLESS)
        self.preview_items = self.max_items
        self.full = request.get("full") is True
        self.policy = policy
        self.run = policy.run
        self.nodes = MAX_NODES
        self.above: list[Any] = []
        self.jobs: list[tuple[dict[str, Any], throwaway.Job]] = []

    def top(self, path: str, value: Any) -> dict[str, Any]:
        node = {"path": path, "type": paths.type_name(type(value)), "kind": _kind(value)}
        if not self.full or self.offset == 0:
            _about(node, value, self.full)
        if self.full:
            self._page(node, value)
            return node
        self._describe(node, value, self.depth, self.max_chars)
        names = [name for name in paths.properties(type(value)) if not name.startswith("_")][:_MAX_NAMES]
        if names and node["kind"] == "value":
            if self.run and self.depth and paths.library(type(value)) is None:
                self._compute(node, value, names)
            else:
                node["properties"] = names
        self._ask()
        return node

    def variables(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """Values first, then functions and classes, then modules, each in the order in which they were made."""
        found: list[tuple[int, str, Any]] = []
        for name, value in list(dict.items(namespace)):
            if type(name) is str and not (name.startswith("__") and name.endswith("__")):
                found.append((_ORDER.get(_kind(value), 0), name, value))
        found.sort(key=lambda entry: entry[0])
        # Here `max_items` is about the variables.
        self.preview_items = _ENDLESS
        listed = []
        for _, name, value in found[: self.max_variables]:
            node = {"name": name, "type": paths.type_name(type(value)), "kind": _kind(value)}
            self._describe(node, value, 0, _ITEM_CHARS)
            listed.append(node)
        self._ask()
        answer = {"variables": listed, "total": len(found)}
        if len(found) > len(listed):
            answer["more"] = True
        return answer

    def _describe(self, node: dict[str, Any], value: Any, depth: int, chars: int) -> None:
        """Adds preview and size, and the parts down to `depth`."""
        self.nodes -= 1
        rendered = self._render(node, value, chars)
        size = paths.length(value)
        if size is not None:
            node["length"] = size
        _sizes(node, value)
        library = paths.library(type(value)) if rendered.needs_code or self.run else None
        if library is not None and not paths.is_numpy_array_class(type(value)):
            self._later(node, lambda: _ask_library(value, chars, self.max_items if depth else 0, self.preview_items))
        elif rendered.needs_code:
            self._later(node, lambda: {"preview": preview.render(value, chars, run=True, most=self.preview_items).text})
        if depth <= 0:
            return
        if any(above is value for above in self.above):
            return
        self.above.append(value)
        try:
            self._parts(node, value, depth)
        finally:
            self.above.pop()

    def _render(self, node: dict[str, Any], value: Any, chars: int) -> preview.Rendered:
        try:
            rendered = preview.render(value, chars, run=self.run, most=self.preview_items)
        except _ANYTHING as error:
            # One strange value must not cost the answer about the others.
            node["preview_error"] = _said(error)
            rendered = preview.Rendered(f"<{paths.type_name(type(value))} object>", False, False)
        node["preview"] = rendered.text
        return rendered

    def _compute(self, node: dict[str, Any], value: Any, names: list[str]) -> None:
        """Runs the properties of the value and adds them to its attributes."""
        known = set(paths.plain_names(paths.instance_dict(value) or {}))
        listed = node.setdefault("attributes", [])
        self.above.append(value)
        for name in names:
            if name in known:
                # A cached property that was run before.
                continue
            try:
                found = self._list("name", [(name, getattr(value, name))], self.depth)
            except _ANYTHING as error:
                found = [{"name": name, "type": "property", "preview": "<property>", "preview_error": _said(error)}]
            for part in found:
                part["computed"] = True
                node["total_attributes"] = node.get("total_attributes", 0) + 1
            listed += found
        self.above.pop()

    def _later(self, node: dict[str, Any], job: throwaway.Job) -> None:
        if self.run:
            try:
                node.update(job())
            except _ANYTHING as error:
                node["preview_error"] = _said(error)
        elif not self.policy.fork:
            node["preview_error"] = self.policy.why_not
        elif len(self.jobs) >= _MAX_JOBS:
            node["preview_error"] = "more previews than are made for one request need the program's own code"
        else:
            self.jobs.append((node, job))

    def _ask(self) -> None:
        """Makes the previews that need code."""
        if not self.jobs:
            return
        for (node, _), outcome in zip(self.jobs, throwaway.run([job for _, job in self.jobs])):
            if outcome.error is not None:
                node["preview_error"] = outcome.error
            elif type(outcome.value) is dict:
                node.update(outcome.value)

    def _parts(self, node: dict[str, Any], value: Any, depth: int) -> None:
        kind = node.get("kind") or _kind(value)
        items, total = self._items_of(value)
        if total is not None:
            node["total_items"] = total
            listed = self._list("key", items, depth)
            if listed:
                node["items"] = listed
            if sum("gap" not in item for item in listed) < total:
                node["more"] = True
        if kind == "value":
            named = _instance_attributes(value)
        elif kind == "class":
            named = _class_members(value)
        elif kind == "module":
            named = _module_members(value)
        else:
            return
        if named:
            node["attributes"] = self._list("name", named[: self.max_items], depth)
            node["total_attributes"] = len(named)
            if len(node["attributes"]) < len(named):
                node["more"] = True

    def _list(self, label: str, parts: Iterable[tuple[Any, Any]], depth: int) -> list[dict[str, Any]]:
        listed = []
        for key, value in parts:
            if self.nodes <= 0:
                break
            if key is _GAP:
                listed.append({"gap": value})
                continue
            node: dict[str, Any] = {} if key is MISSING else {label: key}
            node["type"] = paths.type_name(type(value))
            if any(above is value for above in self.above):
                node["cycle"] = True
                node["preview"] = "..."
            else:
                self._describe(node, value, depth - 1, _ITEM_CHARS)
            listed.append(node)
        if listed and "gap" in listed[-1]:
            # There was no time left for what is behind it.
            listed.pop()
        return listed

    def _items_of(self, value: Any) -> tuple[list[tuple[Any, Any]], int | None]:
        """The first and last items with their keys and the gap between them, and how many there are; None for what has no items."""
        cls = type(value)
        most = self.max_items
        if issubclass(cls, dict):
            count = dict.__len__(value)
            head, tail = preview.ends(count, most)
            found = [*preview.pairs(value, head)[:head], *preview.last_pairs(value, tail)]
            return _with_gap([(preview.render(key, 100).text, item) for key, item in found], head, tail, count), count
        for base in (set, frozenset):
            if issubclass(cls, base):
                # At once, in C: a thread may add one.
                return [(MISSING, item) for item in list(islice(base.__iter__(value), most))], base.__len__(value)
        for base in (list, tuple):
            if issubclass(cls, base):
                return _ends(lambda at: base.__getitem__(value, at), base.__len__(value), most)  # noqa: B023
        if cls is range or cls is collections.deque:
            count = paths.length(value)
            return ([], None) if count is None else _ends(lambda at: value[at], count, most)
        if paths.is_numpy_array_class(cls):
            shape = paths.attribute(value, "shape")
            if shape:
                return _ends(lambda at: cls.__getitem__(value, at), shape[0], most)
        return [], None

    def _page(self, node: dict[str, Any], value: Any) -> None:
        text, cut, error = self._whole(value)
        # Of what was cut, only a string's length is known.
        total = str.__len__(value) if issubclass(type(value), str) else None if cut else len(text)
        if self.offset and self.offset >= len(text):
            said = f"the text has {errors.count(len(text), 'character')}"
            if cut:
                now = " while a cell runs" if self.policy.quick and total is None else ""
                said = f"only the first {len(text)} characters of the text are shown{now}"
            raise Refused("bad_request", f"offset {self.offset} is past the end: {said}", "begin with offset 0 and go on with next_offset")
        end = min(self.offset + self.max_chars, len(text))
        node["value"] = text[self.offset : end]
        node["offset"] = self.offset
        if total is not None:
            node["total_chars"] = total
        if end < len(text):
            node["next_offset"] = end
        if cut:
            node["value_cut"] = True
        if error is not None:
            node["preview_error"] = error

    def _whole(self, value: Any) -> tuple[str, bool, str | None]:
        if issubclass(type(value), str):
            return str.__getitem__(value, slice(0, MAX_FULL_CHARS)), str.__len__(value) > MAX_FULL_CHARS, None
        if paths.is_numpy_array_class(type(value)) and paths.attribute(paths.attribute(value, "dtype"), "kind") in "biufcSU":
            return (*_whole_array(value, 5000 if self.policy.quick else _MAX_FULL_ITEMS), None)
        limit = 50_000 if self.policy.quick else MAX_FULL_CHARS
        problem = None
        if self.run:
            try:
                return (*_whole_running(value), None)
            except _ANYTHING as error:
                problem = _said(error)
        rendered = preview.render(value, limit, limit)
        if not rendered.needs_code or problem is not None:
            return rendered.text, rendered.cut, problem
        if not self.policy.fork:
            return rendered.text, rendered.cut, self.policy.why_not
        outcome = throwaway.run([lambda: _whole_running(value)])[0]
        if outcome.error is not None:
            return rendered.text, rendered.cut, outcome.error
        text, cut = outcome.value
        return text, cut, None


def _whole_array(value: Any, most: int) -> tuple[str, bool]:
    """All of an array of numbers or texts as nested lists, which C makes and writes; the first rows of one that is too large."""
    cls = type(value)
    shape = paths.attribute(value, "shape")
    row = 1
    for side in shape[1:]:
        row *= max(side, 1)
    rows = max(1, most // row)
    cut = bool(shape) and shape[0] > rows
    text = repr(cls.tolist(cls.__getitem__(value, slice(0, rows)) if cut else value))
    return text[:MAX_FULL_CHARS], cut or len(text) > MAX_FULL_CHARS


def _whole_running(value: Any) -> tuple[str, bool]:
    """In a throw-away: all of the text. A table that is too large to be laid out in time comes as CSV."""
    if paths.library(type(value)) == "pandas" and hasattr(value, "to_string"):
        width = value.shape[1] if len(value.shape) > 1 else 1
        rows = max(1, _MAX_FULL_ITEMS // max(width, 1))
        text = value.to_string() if len(value) * width <= _MAX_TABLE_CELLS else value.head(rows).to_csv()
        return text[:MAX_FULL_CHARS], len(text) > MAX_FULL_CHARS or len(value) > rows
    rendered = preview.render(value, MAX_FULL_CHARS, MAX_FULL_CHARS, run=True)
    return rendered.text, rendered.cut


def _ends(item: Callable[[int], Any], count: int, most: int) -> tuple[list[tuple[Any, Any]], int]:
    head, tail = preview.ends(count, most)
    places = [*range(head), *range(count - tail, count)]
    found: list[tuple[Any, Any]] = []
    for at in places:
        try:
            found.append((at, item(at)))
        except IndexError:
            # A thread took it out.
            break
    return _with_gap(found, head, tail, count), count


# In place of a key, for what is left out between the first and the last items.
_GAP = object()


def _with_gap(found: list[tuple[Any, Any]], head: int, tail: int, count: int) -> list[tuple[Any, Any]]:
    return [*found[:head], (_GAP, count - head - tail), *found[head:]] if tail else found


_FUNCTIONS = frozenset(
    map(
        id,
        (
            types.FunctionType,
            types.MethodType,
            types.BuiltinFunctionType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.MethodWrapperType,
            types.ClassMethodDescriptorType,
            staticmethod,
            classmethod,
        ),
    )
)
_ORDER = {"function": 1, "class": 1, "module": 2}


def _kind(value: Any) -> str:
    cls = type(value)
    if id(cls) in _FUNCTIONS:
        return "function"
    if issubclass(cls, type):
        return "class"
    if issubclass(cls, types.ModuleType):
        return "module"
    # What a decorator made of a function.
    wrapper = callable(value) and "__wrapped__" in paths.plain_names(paths.instance_dict(value) or {})
    return "function" if wrapper else "value"


def _about(node: dict[str, Any], value: Any, full: bool) -> None:
    """Signature, docstring and place."""
    kind = node["kind"]
    if kind in ("function", "class"):
        text = signature.text(value, preview.short)
        if text:
            node["signature"] = text
    doc = _doc(value, kind)
    if doc:
        # The docstrings of C functions begin with their signature.
        doc = doc.rpartition("\n--\n\n")[2]
        doc = wire.clean(doc.strip())
        node["doc"] = errors.cut(doc, _FULL_DOC_CHARS) if full else _first_paragraph(doc)
    if kind == "class":
        node["bases"] = [paths.type_name(base) for base in type.__dict__["__bases__"].__get__(value)]
    if kind != "value":
        place = source.place(value)
        if place is not None:
            node["file"], node["line"] = place


def _doc(value: Any, kind: str) -> str | None:
    if kind == "function":
        function, _ = signature.function_behind(value)
        try:
            doc = paths.attribute(function, "__doc__")
        except Refused:
            return None
    elif kind == "module":
        doc = paths.lookup(paths.module_dict(value), "__doc__")
    else:
        cls = value if kind == "class" else type(value)
        if kind == "value" and paths.module_name(cls) == "builtins":
            return None
        doc = paths.class_dict(cls).get("__doc__")
    return doc if type(doc) is str else None


def _first_paragraph(doc: str) -> str:
    lines = []
    for line in doc.split("\n"):
        if not line.strip() and lines:
            break
        lines.append(line.strip())
    text = "\n".join(lines)
    return text if len(text) <= _DOC_CHARS else text[:_DOC_CHARS] + "…"


def _sizes(node: dict[str, Any], value: Any) -> None:
    """Shape, dtype and bytes, where C code has them."""
    cls = type(value)
    if issubclass(cls, (bytes, bytearray)):
        node["bytes"] = node["length"]
        return
    if paths.library(cls) is None:
        return
    for name in ("shape", "dtype", "nbytes"):
        raw, _ = paths.in_class(cls, name)
        if type(raw) is not types.GetSetDescriptorType:
            continue
        try:
            found = raw.__get__(value)
        except Exception:
            continue
        if name == "shape" and issubclass(type(found), tuple):
            shape = [side for side in tuple.__iter__(found) if type(side) is int]
            if len(shape) or not issubclass(cls, _numpy_scalar()):
                node["shape"] = shape
        elif name == "dtype":
            node["dtype"] = dtype_name(found)
        elif name == "nbytes" and type(found) is int:
            node["bytes"] = found


def _numpy_scalar() -> Any:
    numpy = sys.modules.get("numpy")
    found = paths.module_dict(numpy).get("generic") if type(numpy) is types.ModuleType else None
    return found if type(found) is type else ()


_DTYPES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "O": "object"}


def dtype_name(dtype: Any) -> str:
    """The usual name of a dtype, of its C members: numpy's own names come from Python code."""
    try:
        kind, size, code = (paths.attribute(dtype, name) for name in ("kind", "itemsize", "str"))
    except Refused:
        return preview.short(dtype)
    name = _DTYPES.get(kind)
    if name is None:
        return code
    return name if kind in "bO" else f"{name}{8 * size}"


def _ask_library(value: Any, chars: int, most: int, preview_items: int) -> dict[str, Any]:
    """In a throw-away: what a library's own code says about its value."""
    told: dict[str, Any] = {"preview": preview.render(value, chars, run=True, most=preview_items).text}
    shape = getattr(value, "shape", None)
    if shape is not None:
        told["shape"] = [int(side) for side in shape if isinstance(side, int)]
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        told["dtype"] = str(dtype)
    try:
        told["length"] = len(value)
    except TypeError:
        pass
    used = getattr(value, "memory_usage", None) or getattr(value, "nbytes", None)
    try:
        used = used() if callable(used) else used
        told["bytes"] = int(used.sum() if hasattr(used, "sum") else used)  # type: ignore[union-attr]
    except (TypeError, ValueError):
        pass
    if most and hasattr(value, "columns") and hasattr(value, "dtypes"):
        names = list(value.columns)
        found, _ = _ends(lambda at: names[at], len(names), most)
        told["items"] = [{"gap": name} if at is _GAP else _column(value, name) for at, name in found]
        told["total_items"] = len(names)
        if len(names) > most:
            told["more"] = True
    elif most and paths.library(type(value)) == "pandas" and hasattr(value, "iloc"):
        found, total = _ends(lambda at: (value.index[at], value.iloc[at]), len(value), most)
        told["items"] = [{"gap": row} if at is _GAP else _row(*row) for at, row in found]
        told["total_items"] = total
        if total > most:
            told["more"] = True
    return told


def _row(key: Any, item: Any) -> dict[str, Any]:
    shown = preview.render(item, _ITEM_CHARS, run=True).text
    return {"key": preview.short(key), "type": paths.type_name(type(item)), "preview": shown}


def _column(table: Any, name: Any) -> dict[str, Any]:
    column = table[name]
    node = {"key": preview.render(name, 100, run=True).text, "type": paths.type_name(type(column))}
    node["dtype"] = str(getattr(column, "dtype", ""))
    head = list(column.head(5)) if hasattr(column, "head") else []
    node["preview"] = preview.render(head, _ITEM_CHARS, run=True).text
    return node


def _instance_attributes(value: Any) -> list[tuple[str, Any]]:
    if paths.library(type(value)) is not None:
        # Their insides; what is to be seen they show themselves.
        return []
    found = {name: item for name, item in paths.slots(value)}
    attributes = paths.instance_dict(value)
    if attributes is not None:
        for name, item in list(dict.items(attributes)):
            if type(name) is str:
                found[name] = item
    if issubclass(type(value), BaseException):
        for name in ("__cause__", "__context__"):
            linked = BaseException.__dict__[name].__get__(value)
            if linked is not None:
                found[name] = linked
    return list(found.items())


# What the interpreter keeps in a class for itself.
_HIDDEN = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__slots__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)


def _class_members(cls: type) -> list[tuple[str, Any]]:
    """Methods and values of a class and those of its bases that are not built in."""
    found: dict[str, Any] = {}
    for base in paths.mro(cls):
        if base is not cls and paths.module_name(base) in ("builtins", "typing", "abc", "enum"):
            continue
        for name, raw in list(paths.class_dict(base).items()):
            if type(name) is str and name not in _HIDDEN and name not in found:
                found[name] = raw
    return sorted(found.items(), key=lambda entry: entry[0].startswith("_"))


def _module_members(module: types.ModuleType) -> list[tuple[str, Any]]:
    attributes = {name: value for name, value in list(paths.module_dict(module).items()) if type(name) is str}
    listed = attributes.get("__all__")
    if type(listed) is list or type(listed) is tuple:
        names = [name for name in listed if type(name) is str and name in attributes]
    else:
        names = [name for name in attributes if not name.startswith("_")]
    return [(name, attributes[name]) for name in names]
