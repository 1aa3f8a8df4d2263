"""Signatures of callables, read from code objects and dictionaries without running anything. Called by inspect and complete."""

from __future__ import annotations

import functools
import re
import sys
import types
from typing import Any, Callable, NamedTuple

from . import paths
from .paths import MISSING

_VARARGS, _VARKEYWORDS = 4, 8
_MAX_UNWRAPPED = 20
_MAX_CHARS = 1000

_TEXT_NAME = re.compile(r"\s*(\*{0,2})(\w+)")


class Parameter(NamedTuple):
    name: str
    # positional, ordinary, varargs, keyword or varkeywords
    kind: str
    default: Any
    annotation: Any


def function_behind(value: Any) -> tuple[Any, int]:
    """The function that a call of the value runs in the end, and how many of its first parameters are already given."""
    given = 0
    for _ in range(_MAX_UNWRAPPED):
        cls = type(value)
        if cls is types.FunctionType:
            wrapped = paths.lookup(paths.instance_dict(value) or {}, "__wrapped__")
            if wrapped is MISSING:
                break
            value = wrapped
        elif cls is types.MethodType:
            value, given = value.__func__, given + 1
        elif cls is staticmethod or cls is classmethod:
            value = value.__func__
        elif cls is functools.partial:
            value, given = value.func, given + len(value.args)
        elif issubclass(cls, type):
            constructor, _ = paths.in_class(value, "__init__")
            if type(constructor) is not types.FunctionType:
                constructor, _ = paths.in_class(value, "__new__")
                if type(constructor) is staticmethod:
                    constructor = constructor.__func__
            if type(constructor) is not types.FunctionType:
                break
            value, given = constructor, given + 1
        else:
            wrapped = paths.lookup(paths.instance_dict(value) or {}, "__wrapped__")
            if wrapped is MISSING:
                call, _ = paths.in_class(cls, "__call__")
                if type(call) is not types.FunctionType:
                    break
                wrapped, given = call, given + 1
            value = wrapped
    return value, given


def parameters(value: Any) -> list[Parameter] | None:
    """The parameters that a caller may give, or None if they are not known."""
    function, given = function_behind(value)
    if type(function) is types.FunctionType:
        return _drop(_of_code(function), given)
    text = _c_signature(function)
    return None if text is None else _drop(_of_text(text), given)


def _drop(found: list[Parameter], given: int) -> list[Parameter]:
    first = [parameter for parameter in found if parameter.kind in ("positional", "ordinary")]
    return [parameter for parameter in found if parameter not in first[:given]]


def _of_code(function: types.FunctionType) -> list[Parameter]:
    code = function.__code__
    names = code.co_varnames
    count, keywords = code.co_argcount, code.co_kwonlyargcount
    defaults = function.__defaults__ if type(function.__defaults__) is tuple else ()
    keyword_defaults = function.__kwdefaults__ if type(function.__kwdefaults__) is dict else {}
    # From 3.14 on asking for annotations evaluates them.
    annotations = function.__annotations__ if sys.version_info < (3, 14) else {}
    if type(annotations) is not dict:
        annotations = {}
    found = []

    def add(name: str, kind: str, default: Any) -> None:
        found.append(Parameter(name, kind, default, annotations.get(name, MISSING)))

    for at, name in enumerate(names[:count]):
        behind = at - (count - len(defaults))
        add(name, "positional" if at < code.co_posonlyargcount else "ordinary", defaults[behind] if behind >= 0 else MISSING)
    at = count + keywords
    if code.co_flags & _VARARGS:
        add(names[at], "varargs", MISSING)
        at += 1
    for name in names[count : count + keywords]:
        add(name, "keyword", keyword_defaults.get(name, MISSING))
    if code.co_flags & _VARKEYWORDS:
        add(names[at], "varkeywords", MISSING)
    return found


_C_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


def _c_signature(function: Any) -> str | None:
    """What C code says about itself: `(iterable, /, *, key=None)`."""
    if not issubclass(type(function), type) and not any(type(function) is kind for kind in _C_CALLABLES):
        return None
    try:
        text = paths.attribute(function, "__text_signature__")
    except paths.Refused:
        return None
    if type(text) is not str:
        return None
    return re.sub(r"\(\$\w+(, /)?(, )?", "(", text, count=1)


def _of_text(text: str) -> list[Parameter]:
    found: list[Parameter] = []
    ordinary = "ordinary"
    for part in text.strip().strip("()").split(","):
        if part.strip() == "/":
            found = [parameter._replace(kind="positional") for parameter in found]
        elif part.strip() == "*":
            ordinary = "keyword"
        else:
            match = _TEXT_NAME.match(part)
            if match is not None:
                stars, name = match.groups()
                found.append(Parameter(name, {"": ordinary, "*": "varargs", "**": "varkeywords"}[stars], MISSING, MISSING))
                if stars == "*":
                    ordinary = "keyword"
    return found


def text(value: Any, show: Callable[[Any], str]) -> str | None:
    """The signature as Python writes it. `show` makes the text of a default value."""
    function, _ = function_behind(value)
    if type(function) is not types.FunctionType:
        return _c_signature(function)
    parts: list[str] = []
    kinds: list[str] = []
    for parameter in parameters(value) or ():
        if "positional" in kinds[-1:] and parameter.kind != "positional":
            parts.append("/")
        if parameter.kind == "keyword" and "varargs" not in kinds and "keyword" not in kinds:
            parts.append("*")
        kinds.append(parameter.kind)
        parts.append({"varargs": "*", "varkeywords": "**"}.get(parameter.kind, "") + _one(parameter, show))
    if "positional" in kinds[-1:]:
        parts.append("/")
    result = MISSING
    if sys.version_info < (3, 14) and type(function.__annotations__) is dict:
        result = function.__annotations__.get("return", MISSING)
    whole = f"({', '.join(parts)})"
    if result is not MISSING:
        whole += f" -> {annotation(result)}"
    return whole if len(whole) <= _MAX_CHARS else whole[:_MAX_CHARS] + "…"


def _one(parameter: Parameter, show: Callable[[Any], str]) -> str:
    name, _, default, annotated = parameter
    if annotated is not MISSING:
        name += f": {annotation(annotated)}"
    if default is MISSING:
        return name
    return f"{name}{'=' if annotated is MISSING else ' = '}{show(default)}"


def annotation(value: Any, depth: int = 0) -> str:
    """An annotation as it would be written, as far as it is made of classes."""
    if type(value) is str:
        return value
    if value is None or value is type(None):
        return "None"
    if value is Ellipsis:
        return "..."
    if issubclass(type(value), type):
        return paths.type_name(value)
    if depth > 5 or paths.module_name(type(value)) not in ("typing", "types", "builtins"):
        return "…"
    try:
        args = paths.attribute(value, "__args__")
        origin = paths.attribute(value, "__origin__")
    except paths.Refused:
        name = paths.lookup(paths.instance_dict(value) or {}, "_name")
        args, origin = (), None
        if type(name) is not str:
            args = _union_members(value)
            return " | ".join(annotation(part, depth + 1) for part in args) if args else "…"
        return name
    name = paths.lookup(paths.instance_dict(value) or {}, "_name")
    if type(name) is not str:
        name = "Union" if paths.type_name(type(value)).endswith("UnionGenericAlias") else annotation(origin, depth + 1)
    parts = [annotation(part, depth + 1) for part in args] if type(args) is tuple else []
    if name in ("Union", "Optional"):
        return " | ".join(parts)
    return f"{name}[{', '.join(parts)}]" if parts else name


def _union_members(value: Any) -> tuple[Any, ...]:
    try:
        args = paths.attribute(value, "__args__")
    except paths.Refused:
        return ()
    return args if type(args) is tuple else ()
