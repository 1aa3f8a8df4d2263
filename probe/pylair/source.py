"""`source`: the text in which functions, classes and modules were written, in files and in cells. Called through look.py, in any process.

A function's code object says where it begins. A class says nothing of the kind, and in a cell it has no file either, so it is searched
for in the syntax tree of the cell or file, and told from others of its name by where its methods are.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
import types
from typing import Any, Iterable, NamedTuple

from . import errors, paths, unwind
from .paths import MISSING, Refused

MAX_SOURCE_CHARS = 512 << 10
_MAX_FILE_BYTES = 8 << 20
_MAX_QUICK_CHARS = 100_000
# The compiler lets no other thread run meanwhile.
_MAX_PARSED_CHARS = 1 << 20
_HEAP_TYPE = 1 << 9
_MAX_UNWRAPPED = 20
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")

Cells = Iterable["tuple[str, str]"]


class Text(NamedTuple):
    """The lines of a file or cell."""

    file: str
    lines: list[str]


def read(path: str, namespace: dict[str, Any], cells: Cells = (), quick: bool = False) -> dict[str, Any]:
    """`{"path", "file", "line", "source"}`, with `truncated` and `total_chars` when it is longer than the limit. When it has to be
    `quick`, no long file is parsed."""
    parsed = paths.parse(path)
    value = written(_walk(parsed, namespace), parsed.text)
    sources = dict(cells)
    if issubclass(type(value), types.ModuleType):
        text = _text_of(_module_file(value) or "", sources)
        if text is None:
            raise Refused("no_source", f"the module {parsed.text} has no source file", _C_HINT)
        return _answer(parsed.text, text, 1, len(text.lines))
    if paths.is_class(value):
        return _answer(parsed.text, *_class_block(value, sources, quick))
    code = value.__code__
    text = _text_of(code.co_filename, sources)
    if text is None or code.co_firstlineno > len(text.lines):
        raise Refused("no_source", f"the source of {parsed.text} is not there any more: {code.co_filename}")
    return _answer(parsed.text, text, *_block_at(text, code.co_firstlineno))


_C_HINT = "it is written in C, or was made without a file"


def _answer(path: str, text: Text, first: int, last: int) -> dict[str, Any]:
    source = "".join(text.lines[first - 1 : last])
    found = {"path": path, "file": text.file, "line": first, "source": source[:MAX_SOURCE_CHARS]}
    if len(source) > MAX_SOURCE_CHARS:
        found["truncated"] = True
        found["total_chars"] = len(source)
    return found


def _walk(path: paths.Path, namespace: dict[str, Any]) -> Any:
    """As `paths.walk`, but a last attribute that would be computed, such as a property, is given as it is stored."""
    last = path.steps[-1]
    value = paths.walk(paths.Path(path.text, path.steps[:-1]), namespace) if len(path.steps) > 1 else None
    if last.kind == "attribute":
        return paths.raw_attribute(value, last.value, "".join(step.text for step in path.steps[:-1]))[0]
    return paths.take_step(value, last, namespace, "")[0]


def written(value: Any, path: str = "it") -> Any:
    """The function, class or module that somebody wrote to make this value."""
    for _ in range(_MAX_UNWRAPPED):
        cls = type(value)
        inner: Any = MISSING
        if issubclass(cls, property):
            inner = property.__dict__["fget"].__get__(value)
            if inner is None:
                inner = property.__dict__["fset"].__get__(value)
        elif cls is types.MethodType or cls is staticmethod or cls is classmethod:
            inner = value.__func__
        elif issubclass(cls, functools.partial):
            inner = functools.partial.__dict__["func"].__get__(value)
        elif cls is types.GeneratorType or cls is types.CoroutineType or cls is types.AsyncGeneratorType:
            raise Refused("no_source", f"{path} is running code, not a function", "ask for the function that made it")
        elif not issubclass(cls, type):
            attributes = paths.instance_dict(value)
            inner = paths.lookup(attributes, "__wrapped__") if attributes is not None else MISSING
            if inner is MISSING and issubclass(cls, functools.cached_property) and attributes is not None:
                inner = paths.lookup(attributes, "func")
        if inner is MISSING or inner is None:
            break
        value = inner
    if type(value) is types.FunctionType or issubclass(type(value), type):
        return value
    if issubclass(type(value), types.ModuleType):
        return value
    if callable(value) and paths.module_name(type(value)) == "builtins":
        raise Refused("no_source", f"{path} is written in C, so there is no Python source", "inspect shows its signature and docstring")
    name = paths.type_name(type(value))
    raise Refused(
        "no_source", f"{path} is {errors.a(name)}, and values have no source", f"ask for the source of the class {name}, or inspect it"
    )


def place(value: Any) -> tuple[str, int] | None:
    """File and line of a function, class or module as far as they are known without reading anything."""
    try:
        value = written(value)
    except Refused:
        return None
    if type(value) is types.FunctionType:
        return value.__code__.co_filename, value.__code__.co_firstlineno
    if paths.is_class(value):
        first = _functions_of(value)
        line = paths.class_dict(value).get("__firstlineno__")
        file = first[0].co_filename if first else _module_file(sys.modules.get(paths.module_name(value)))
        if file is None or type(line) is not int:
            return None
        return file, line
    file = _module_file(value)
    return None if file is None else (file, 1)


def _module_file(module: Any) -> str | None:
    if not issubclass(type(module), types.ModuleType):
        return None
    file = paths.lookup(paths.module_dict(module), "__file__")
    return file if type(file) is str else None


def _text_of(file: str, sources: dict[str, str]) -> Text | None:
    """The lines of a cell, of a file, or of what a library has put into `linecache`."""
    if file in sources:
        return Text(file, _lines(sources[file]))
    if file.endswith((".so", ".pyd")):
        return None
    if not file.startswith("<"):
        found = read_file(file)
        if found is not None:
            return Text(file, _lines(found))
    entry = linecache.cache.get(file)
    if type(entry) is tuple and len(entry) == 4 and type(entry[2]) is list:
        return Text(file, entry[2])
    return None


def read_file(file: str) -> str | None:
    try:
        with open(file, "rb") as opened:
            data = opened.read(_MAX_FILE_BYTES)
    except (OSError, ValueError):
        return None
    encoding = "utf-8-sig"
    for line in data.split(b"\n", 2)[:2]:
        match = _CODING.match(line)
        if match is not None:
            encoding = match.group(1).decode("ascii", "replace")
    try:
        return data.decode(encoding, "replace")
    except LookupError:
        return data.decode("utf-8", "replace")


def _lines(text: str) -> list[str]:
    # As the compiler: only \n, \r\n and \r end a line.
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _block_at(text: Text, first: int) -> tuple[int, int]:
    """First and last line of what begins there. The tokens from its first line on say where it ends."""
    try:
        with paths.NoWarnings():
            block = inspect.getblock(text.lines[first - 1 :])
    except (SyntaxError, IndexError, inspect.EndOfBlock):
        block = text.lines[first - 1 : first]
    return first, first + max(len(block), 1) - 1


def _class_block(cls: type, sources: dict[str, str], quick: bool) -> tuple[Text, int, int]:
    name = paths.short_name(cls)
    codes = _functions_of(cls)
    line = paths.class_dict(cls).get("__firstlineno__")
    for text in _candidates(cls, codes, sources):
        if type(line) is int and 0 < line <= len(text.lines) and (codes or text.file not in sources):
            # 3.13 and later say where a class begins.
            first, last = _block_at(text, line)
            if any(part.lstrip().startswith("class ") for part in text.lines[first - 1 : last]):
                return text, first, last
        if quick and sum(map(len, text.lines)) > _MAX_QUICK_CHARS:
            raise Refused("busy", f"the file of {name} is too long to be searched while a cell runs: {text.file}")
        block = _find_class(text, name, codes, line if type(line) is int else None)
        if block is not None:
            return (text, *block)
    module = paths.module_name(cls)
    if not type.__dict__["__flags__"].__get__(cls) & _HEAP_TYPE or (_module_file(sys.modules.get(module)) is None and module != "__main__"):
        raise Refused("no_source", f"{paths.type_name(cls)} is written in C, so there is no Python source", "inspect shows its docstring")
    raise Refused("no_source", f"no source that defines the class {name} was found", "it may have been made by type() or exec()")


def _functions_of(cls: type) -> list[types.CodeType]:
    """The code of the class's own methods, those that were written in its body."""
    name = paths.short_name(cls)
    codes = []
    for raw in list(paths.class_dict(cls).values()):
        try:
            function = written(raw)
        except Refused:
            continue
        if type(function) is types.FunctionType and function.__qualname__.startswith(name + "."):
            codes.append(function.__code__)
    # What a decorator such as dataclass made has no file.
    return [code for code in codes if not code.co_filename.startswith("<") or code.co_filename.startswith(unwind.CELL_PREFIXES)]


def _candidates(cls: type, codes: list[types.CodeType], sources: dict[str, str]) -> Iterable[Text]:
    """Where the class may have been written: where its methods are, in its module's file, in the cells, newest first."""
    files = dict.fromkeys(code.co_filename for code in codes)
    module = paths.module_name(cls)
    file = _module_file(sys.modules.get(module))
    if file is not None:
        files.setdefault(file)
    if module == "__main__" and not codes:
        last_name = paths.short_name(cls).rpartition(".")[2]
        for cell in reversed(list(sources)):
            if last_name in sources[cell]:
                files.setdefault(cell)
    for file in files:
        text = _text_of(file, sources)
        if text is not None:
            yield text


def _find_class(text: Text, name: str, codes: list[types.CodeType], line: int | None) -> tuple[int, int] | None:
    """First and last line of the class in the text. The last of several of that name, unless methods or a line say otherwise."""
    if sum(map(len, text.lines)) > _MAX_PARSED_CHARS:
        return _find_class_line(text, name, [code.co_firstlineno for code in codes if code.co_filename == text.file])
    try:
        with paths.NoWarnings():
            tree = compile("".join(text.lines), text.file, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    starts = [code.co_firstlineno for code in codes if code.co_filename == text.file]
    best = None
    for qualname, node in _classes(tree, ""):
        if qualname != name:
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        last: int = node.end_lineno  # type: ignore[assignment]
        if starts and not any(first <= start <= last for start in starts):
            continue
        if line is not None and line == first:
            return first, last
        best = first, last
    return best


def _find_class_line(text: Text, name: str, starts: list[int]) -> tuple[int, int] | None:
    """The same, by the look of the lines, for texts that are too long to be parsed."""
    begins = re.compile(rf"[ \t]*class[ \t]+{re.escape(name.rpartition('.')[2])}\b")
    for at in range(len(text.lines), 0, -1):
        if begins.match(text.lines[at - 1]) is None:
            continue
        first, last = _block_at(text, at)
        while first > 1 and text.lines[first - 2].lstrip().startswith("@"):
            first -= 1
        if not starts or any(first <= start <= last for start in starts):
            return first, last
    return None


def _classes(node: ast.AST, prefix: str) -> Iterable[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield from _classes(child, prefix)
