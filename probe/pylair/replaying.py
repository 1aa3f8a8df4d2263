"""Runs a class statement again, for a class parts of which this version of Python cannot read. Runs in the worker, below `classes`.

Methods are compiled from the source of their cells one by one; but what a decorator wrote, as `dataclass` does, has no source. Then the
whole statement is run again, in the restored namespace, and what it makes is given to the class.
"""

from __future__ import annotations

import ast
import types
from typing import Any

from . import pickling
from .lost import lost_in


def attributes(kind: type, saved: dict[str, Any], filename: str | None) -> dict[str, Any]:
    """The attributes of the class, with new ones where the saved ones are lost. Without a source they stay lost."""
    source = pickling.building.sources.get(filename or "")
    statement = _statement(source, kind.__name__) if source is not None and kind.__qualname__ == kind.__name__ else None
    if statement is None:
        return saved
    made: dict[str, Any] = {}
    try:
        code = compile(statement, pickling.building.names[filename or ""], "exec", 0, True)
        exec(code, pickling.building.namespace, made)
        model = made[kind.__name__]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"its class statement does not run any more: {type(error).__name__}: {error}"
        return {**saved, "__lost__": pickling.building.lose(reason)}
    chosen = {}
    for name, value in vars(model).items():
        if name in saved and not (name.startswith("__") or lost_in(saved[name]) is not None):
            value = saved[name]
        if name in saved:
            chosen[name] = _moved(value, model, kind)
    chosen.update((name, value) for name, value in saved.items() if name not in chosen and not _is_pythons(name, value))
    for name in saved.keys() - chosen.keys():
        # Was put there to keep the order.
        if name in vars(kind):
            type.__delattr__(kind, name)
    return chosen


def _is_pythons(name: str, value: Any) -> bool:
    return name.startswith("__") and name.endswith("__") and lost_in(value) is not None


def _statement(source: str, name: str) -> ast.Module | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return ast.Module(body=[*futures, found[-1]], type_ignores=[]) if found else None


def _moved(value: Any, model: type, kind: type) -> Any:
    """A method of one class as a method of the other: `super()` finds its class in a closure."""
    function = getattr(value, "__func__", value)
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell, types.CellType) and cell.cell_contents is model:
            cell.cell_contents = kind
    return value
