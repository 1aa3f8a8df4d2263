"""Data frames and arrays as text that tells what they are in a few lines. Runs in the worker, called by `rich`.

pandas and numpy are never imported here: a value of theirs can only exist when the program has imported them.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from . import errors

MAX_LINES = 60
# Up to so many rows a table is given whole, past it only its head and tail.
_WHOLE_ROWS = 40
_HEAD_AND_TAIL_ROWS = 20
_COLUMNS = 16
_CELL_CHARS = 40
_LINE_CHARS = 400
_LISTED_COLUMNS = 24
_HTML_ROWS = 60
_HTML_COLUMNS = 30


def makers(value: Any) -> tuple[Callable[[], str], Callable[[], str] | None] | None:
    """What makes the text and, if there is one, the HTML of a table or an array; None if the value is neither."""
    kind = type(value)
    pandas = sys.modules.get("pandas")
    if issubclass(kind, _class(pandas, "DataFrame")):
        return lambda: _frame_text(value), lambda: value.to_html(max_rows=_HTML_ROWS, max_cols=_HTML_COLUMNS, border=0)
    if issubclass(kind, _class(pandas, "Series")):
        return lambda: _series_text(value), lambda: value.to_frame().to_html(max_rows=_HTML_ROWS, border=0)
    if issubclass(kind, _class(sys.modules.get("numpy"), "ndarray")):
        return lambda: _array_text(value), None
    return None


def _class(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    return found if isinstance(found, type) else ()


def _rows(count: int) -> dict[str, int]:
    return {"max_rows": _WHOLE_ROWS, "min_rows": _WHOLE_ROWS} if count <= _WHOLE_ROWS else {"max_rows": _HEAD_AND_TAIL_ROWS}


def _frame_text(frame: Any) -> str:
    rows, columns = frame.shape
    kinds = [f"{_short(name)} {kind}" for name, kind in zip(frame.columns[:_LISTED_COLUMNS], frame.dtypes.iloc[:_LISTED_COLUMNS])]
    if columns > len(kinds):
        kinds.append(f"… {columns - len(kinds)} more")
    lines = [f"{type(frame).__name__}, {errors.count(rows, 'row')} × {errors.count(columns, 'column')}: {', '.join(kinds) or 'no columns'}"]
    if rows and columns:
        lines += frame.to_string(max_cols=_COLUMNS, max_colwidth=_CELL_CHARS, show_dimensions=False, **_rows(rows)).split("\n")
    return _bounded(lines)


def _series_text(series: Any) -> str:
    name = "" if series.name is None else f" {_short(series.name)}"
    lines = [f"{type(series).__name__}{name}, {errors.count(len(series), 'value')}: {series.dtype}"]
    if len(series):
        lines += series.to_string(**_rows(len(series))).split("\n")
    return _bounded(lines)


def _array_text(array: Any) -> str:
    text = repr(array)
    if not array.ndim:
        return text
    return f"{text}{'  ' if chr(10) not in text else chr(10)}# shape {array.shape}, dtype {array.dtype}"


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= _CELL_CHARS else text[: _CELL_CHARS - 1] + "…"


def _bounded(lines: list[str]) -> str:
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        lines = [*lines[:half], "…", *lines[half + 1 - MAX_LINES :]]
    return "\n".join(errors.cut(line, _LINE_CHARS).replace("\n", " ") if len(line) > _LINE_CHARS else line for line in lines)
