"""A piece of code as a cell, whoever runs it: how it is compiled, kept for tracebacks, compared by names, and where its result goes.

Used by `execute` in a worker and by `calls` in an app. Runs none of the code.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import types
from collections import deque
from typing import Any, Iterable

from . import wire

MAX_RESULT_INLINE_CHARS = 32 << 10
MAX_RESULT_CHARS = 4 << 20
MAX_NAMES = 100

AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
FUTURES = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
_CO_COROUTINE = 0x80
_STATEMENTS = frozenset(
    [
        "assert",
        "async",
        "break",
        "class",
        "continue",
        "def",
        "del",
        "for",
        "from",
        "global",
        "if",
        "import",
        "nonlocal",
        "pass",
        "raise",
        "return",
        "try",
        "while",
        "with",
        "@",
    ]
)

Code = types.CodeType


def text(blob: bytes) -> str:
    """The source in a request. Raises UnicodeDecodeError."""
    source = blob.decode("utf-8")
    return source[1:] if source.startswith("\ufeff") else source


def compiled(source: str, name: str, flags: int) -> tuple[Code | None, Code | None, int]:
    """The statements and the last expression, whichever there are, and the flags for the next cell: as at the interactive prompt, a
    `from __future__ import` holds from here on."""
    if _looks_like_expression(source):
        # Straight from the text this takes half as long as by way of a tree.
        try:
            return None, compile(source, name, "eval", flags, True), flags
        except SyntaxError:
            pass
    tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not _ends_with_semicolon(source, tree.body[-1]):
        last = ast.Expression(tree.body.pop().value)
    body_code = compile(tree, name, "exec", flags, True) if tree.body else None
    if body_code is not None:
        flags |= body_code.co_flags & FUTURES
    last_code = compile(last, name, "eval", flags, True) if last is not None else None
    return body_code, last_code, flags


def awaits(code: Code | None) -> bool:
    """Whether evaluating the code gives a coroutine that has yet to be run."""
    return code is not None and bool(code.co_flags & _CO_COROUTINE)


def _looks_like_expression(source: str) -> bool:
    """Whether it is worth trying to compile the cell as one expression. A wrong answer costs microseconds, nothing else."""
    if len(source) > 1000 or "=" in source or ";" in source:
        return False
    words = source.split(None, 1)
    return bool(words) and "\n" not in source.strip() and words[0] not in _STATEMENTS


def _ends_with_semicolon(source: str, last: ast.stmt) -> bool:
    """Whether a semicolon follows the last statement. Behind it there can only be blanks and comments."""
    if ";" not in source:
        return False
    lines = source.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8").split(b"\n")
    end_line: int = last.end_lineno  # type: ignore[assignment]
    rest = lines[end_line - 1 : end_line + 1]
    rest[0] = rest[0][last.end_col_offset :]
    return b"\n".join(rest).lstrip(b" \t\f\\\n").startswith(b";")


class Sources:
    """The sources of cells, given to `linecache` for tracebacks and `inspect.getsource`. The oldest go when there are too many."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._kept: deque[tuple[str, str]] = deque()
        self._chars = 0

    def add(self, name: str, source: str) -> None:
        linecache.cache[name] = _cache_entry(name, source)
        self._kept.append((name, source))
        self._chars += len(source)
        while self._chars > self._max_chars and len(self._kept) > 1:
            old, text = self._kept.popleft()
            self._chars -= len(text)
            linecache.cache.pop(old, None)

    def all(self) -> list[tuple[str, str]]:
        """Names and sources, oldest first."""
        return list(self._kept)

    def put_back(self) -> None:
        """After the program's `linecache.clearcache()`."""
        for name, source in self.all():
            if name not in linecache.cache:
                linecache.cache[name] = _cache_entry(name, source)

    def forget(self) -> None:
        while self._kept:
            linecache.cache.pop(self._kept.popleft()[0], None)
        self._chars = 0


def _cache_entry(name: str, source: str) -> Any:
    # The compiler ends a line at \n, \r\n and \r only, so not `splitlines`.
    text = source.replace("\r\n", "\n").replace("\r", "\n") if "\r" in source else source
    return len(source), None, [line + "\n" for line in text.split("\n")], name


class Names:
    """What was in a namespace at a moment, by name and id. No reference to a value is held."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.names, self.ids = list(namespace), list(map(id, namespace.values()))
        if len(self.names) != len(self.ids):
            # A thread added a name in between.
            items = list(namespace.items())
            self.names, self.ids = [name for name, _ in items], [id(value) for _, value in items]

    def changes(self, later: Names, done: dict[str, Any]) -> None:
        """Adds the names that are new, changed and removed to the fields of a done frame."""
        if later.ids == self.ids and later.names == self.names:
            done["new"] = done["changed"] = done["removed"] = []
            return
        before, after = self._by_name(), later._by_name()
        touched = _visible(name for name, _ in after.items() - before.items())
        lists = {
            "new": [name for name in touched if name not in before],
            "changed": [name for name in touched if name in before],
            "removed": _visible(before.keys() - after.keys()),
        }
        for key, names in lists.items():
            told = [wire.shortened(name) for name in names[:MAX_NAMES]]
            if told != names:
                done["names_cut"] = True
            done[key] = told

    def _by_name(self) -> dict[str, int]:
        # A key of another class may have a `__hash__` and an `__eq__` of the program's.
        return {name: number for name, number in zip(self.names, self.ids) if type(name) is str}


def _visible(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("_"))


def place_result(done: dict[str, Any], max_chars: int = MAX_RESULT_CHARS) -> bytes:
    """Cuts a result to its limit, and moves a long one from the header to the blob."""
    result = done["result"]
    if result is None:
        return b""
    if len(result) > max_chars:
        done["result_chars"] = len(result)
        done["result"] = result = result[:max_chars]
    if len(result) <= MAX_RESULT_INLINE_CHARS:
        return b""
    done["result"] = None
    return result.encode("utf-8", "backslashreplace")
