"""Answers whether what an explanation claims is so, in a frozen failure. Called by frozen.py.

Runs nothing of the program: a claim that only its code could confirm has no answer.
"""

from __future__ import annotations

import ast
import builtins
import os
import symtable
import sys
import types
from typing import Any, Iterator

from . import paths
from .paths import MISSING

MAX_QUESTIONS = 64
_MAX_CODE_CHARS = 10_000


def answers(questions: Any, entries: list[tuple[Any, int]]) -> list[bool | None]:
    """For each question whether it is so; None where that cannot be told."""
    if type(questions) is not list:
        raise paths.Refused("bad_request", "the questions have to be a list")
    return [_answer(question, entries) for question in questions[:MAX_QUESTIONS]]


def _answer(question: Any, entries: list[tuple[Any, int]]) -> bool | None:
    try:
        found = _ask(question, entries)
    except Exception:
        # Whatever it is, it says nothing about the claim.
        return None
    return found if found is None else found is question.get("there", True)


def _ask(question: dict[str, Any], entries: list[tuple[Any, int]]) -> bool | None:
    asked = question["ask"]
    if asked == "path":
        return os.path.lexists(question["path"])
    if asked == "module":
        module = sys.modules.get(question["module"])
        if not issubclass(type(module), types.ModuleType):
            return None
        names = paths.module_dict(module)
        return True if question["name"] in names else None if "__getattr__" in names else False
    frame = entries[question["frame"] - 1][0]
    names = {**frame.f_globals, **frame.f_locals}
    if asked == "name":
        return question["name"] in names or question["name"] in vars(builtins)
    if asked == "none":
        return paths.walk(paths.parse(question["path"]), names) is None
    if asked == "attribute":
        return _has(paths.walk(paths.parse(question["path"]), names), question["name"])
    if asked == "code":
        return _runs(question["code"], names)
    return None


def _has(value: Any, name: str) -> bool | None:
    """Whether a value has an attribute, unless only its class's code knows."""
    kind = type(value)
    if name in paths.attribute_names(value):
        in_class = paths.in_class(kind, name)[0]
        # A slot is in the class whether it has a value or not.
        return True if type(in_class) is not types.MemberDescriptorType else name in dict(paths.slots(value))
    dynamic = paths.in_class(kind, "__getattr__")[0] is not MISSING
    return None if dynamic else False


def _runs(code: str, names: dict[str, Any]) -> bool:
    """Whether code can be compiled, and needs no name that is not there."""
    if len(code) > _MAX_CODE_CHARS:
        return False
    try:
        ast.parse(code)
        table = symtable.symtable(code, "<check>", "exec")
    except (SyntaxError, ValueError):
        return False
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return all(name in own or name in names or name in vars(builtins) for name in _globals(table))


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    at_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (at_top or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _globals(inner)
