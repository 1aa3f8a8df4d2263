"""Where the modules of a failure were imported from, and what a name that is missing was looked up in. Called by evidence.py at a failure.

Explanations are held against this: source that lies around may not be what was imported, and a class assigns attributes in methods that
never ran. Nothing here runs code of the program.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import types
from typing import Any, Callable, Iterable

from . import errors, paths, wire

_MAX_MODULES = 80
_MAX_NAMES = 400
_MAX_NAME_CHARS = 100
_MAX_FRAMES = 6
_QUOTED = re.compile(r"['\"]([A-Za-z_][\w.]{0,200})['\"]")
_NO_ATTRIBUTE = re.compile(r"(?:'([\w.]+)' object|module '([\w.]+)'|type object '([\w.]+)') has no attribute '(\w+)'")
# As `unittest.mock` says it.
_NOT_PATCHED = re.compile(r"<module '([\w.]+)'.*does not have the attribute '(\w+)'")
_NO_IMPORT = re.compile(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'")
_NO_NAME = re.compile(r"(?:free variable|variable|name) '(\w+)'")
_ENDINGS = (".py", ".pyc", ".so", ".pyd")

Place = Callable[[str], "tuple[str, bool]"]


def modules(frames: Iterable[Any], message: str, place: Place) -> dict[str, dict[str, str]]:
    """The files of the modules that these frames belong to and use, and that the message names, as they are imported."""
    names: dict[str, None] = {}
    for at, frame in enumerate(frames):
        space = frame.f_globals
        name = space.get("__name__")
        if type(name) is str:
            names[name] = None
        if at >= _MAX_FRAMES:
            continue
        local = frame.f_locals if frame.f_code.co_flags & 0x1 else {}
        for value in [*(space.get(used) for used in frame.f_code.co_names), *local.values()]:
            home = _home(value)
            if home is not None:
                names[home] = None
    for quoted in _QUOTED.findall(message):
        while quoted:
            if quoted in sys.modules:
                names[quoted] = None
                break
            quoted = quoted.rpartition(".")[0]
    found: dict[str, dict[str, str]] = {}
    for name in names:
        module = sys.modules.get(name)
        if name != "builtins" and issubclass(type(module), types.ModuleType) and len(found) < _MAX_MODULES:
            file = paths.module_dict(module).get("__file__")
            found[wire.clean(name)] = {"file": place(file)[0]} if type(file) is str else {}
    return found


def _home(value: Any) -> str | None:
    """The name of the module that a value is or comes from."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        name = paths.module_dict(value).get("__name__")
    elif kind is types.FunctionType:
        name = value.__module__
    elif kind is types.MethodType and type(value.__func__) is types.FunctionType:
        name = value.__func__.__module__
    else:
        name = paths.module_name(value if paths.is_class(value) else kind)
    return name if type(name) is str else None


def missing(error: BaseException, message: str, frame: Any, line: str) -> dict[str, Any] | None:
    """What the missing name was looked up in, for an exception that says that one is missing. `frame` raised it, at this line."""
    if errors.is_a(error, AttributeError):
        return _attribute(error, message, frame, line)
    if errors.is_a(error, ModuleNotFoundError):
        return _submodule(error)
    if errors.is_a(error, ImportError):
        parts = _NO_IMPORT.search(message)
        owner = sys.modules.get(parts.group(2)) if parts is not None else None
        return _told(parts.group(1), owner) if parts is not None and owner is not None else None
    if errors.is_a(error, NameError) and frame is not None:
        name = getattr(error, "name", None) or _matched(_NO_NAME, message)
        names = {**frame.f_globals, **frame.f_locals, **vars(builtins)}
        return _listed(name, "frame", frame.f_code.co_name, paths.plain_names(names)) if type(name) is str else None
    return None


def _attribute(error: AttributeError, message: str, frame: Any, line: str) -> dict[str, Any] | None:
    patched = _NOT_PATCHED.search(message)
    if patched is not None:
        owner = sys.modules.get(patched.group(1))
        return _told(patched.group(2), owner) if owner is not None else None
    parts = _NO_ATTRIBUTE.search(message)
    name = getattr(error, "name", None)
    if type(name) is str and hasattr(error, "obj"):
        # An exception that the program made itself has no object, or that of another one.
        return _told(name, error.obj) if parts is None or parts.group(4) == name else None
    if parts is None:
        return None
    if parts.group(2) is not None:
        owner = sys.modules.get(parts.group(2))
        return _told(parts.group(4), owner) if owner is not None else None
    for receiver in re.findall(rf"([A-Za-z_][\w.]*)\.{parts.group(4)}\b", line) if frame is not None else ():
        try:
            owner = paths.walk(paths.parse(receiver), {**frame.f_globals, **frame.f_locals})
        except Exception:
            continue
        kind = owner if parts.group(3) is not None and paths.is_class(owner) else type(owner)
        if paths.short_name(kind) == (parts.group(1) or parts.group(3)):
            return _told(parts.group(4), owner)
    return None


def _submodule(error: ImportError) -> dict[str, Any] | None:
    name = error.name
    package, _, last = name.rpartition(".") if type(name) is str else ("", "", "")
    found = sys.modules.get(package)
    directories = paths.module_dict(found).get("__path__") if issubclass(type(found), types.ModuleType) else None
    if not package or directories is None:
        return None
    names = set()
    for directory in list(directories)[:10]:
        try:
            entries = os.listdir(directory)
        except (OSError, TypeError):
            continue
        names.update(entry.partition(".")[0] for entry in entries if entry.endswith(_ENDINGS) or "." not in entry)
    return _listed(last, "package", package, sorted(known for known in names if known.isidentifier() and known[:2] != "__"))


def _told(name: str, owner: Any) -> dict[str, Any]:
    kind = type(owner)
    if issubclass(kind, types.ModuleType):
        space = paths.module_dict(owner)
        return _listed(name, "module", str(space.get("__name__")), paths.plain_names(space))
    if paths.is_class(owner):
        return _listed(name, "class", paths.type_name(owner), paths.attribute_names(owner))
    unset = {slot for slot in paths.attribute_names(kind) if type(paths.in_class(kind, slot)[0]) is types.MemberDescriptorType}
    names = [known for known in paths.attribute_names(owner) if known not in unset]
    return _listed(name, "instance", paths.type_name(kind), [*names, *(slot for slot, _ in paths.slots(owner))])


def _listed(name: str, owner: str, of: str, names: list[str]) -> dict[str, Any]:
    """The nearest names come first, so that a cut leaves them."""
    own = {known for known in names if known[:2] != "__" and len(known) <= _MAX_NAME_CHARS}
    wanted = set(name.lower())
    ordered = sorted(own, key=lambda known: (known != name, -len(wanted & set(known.lower())) if len(own) > _MAX_NAMES else 0, known))
    told: dict[str, Any] = {"name": wire.clean(name), "owner": owner, "of": wire.clean(of)}
    told["names"] = [wire.clean(known) for known in ordered[:_MAX_NAMES]]
    if len(ordered) > _MAX_NAMES:
        told["more"] = len(ordered) - _MAX_NAMES
    return told


def _matched(pattern: re.Pattern[str], text: str) -> str | None:
    parts = pattern.search(text)
    return parts.group(1) if parts is not None else None
