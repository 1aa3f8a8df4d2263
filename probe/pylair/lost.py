"""Stands in for what could not be made again while a file is read. Runs in the worker.

An unpickler that met an exception could not go on, and values after it may be whole. So what is missing becomes a `Lost`, which can be
called, filled and held by others like what it stands for; the variables that hold one are found afterwards and not restored.
"""

from __future__ import annotations

from typing import Any


class Lost:
    """Made by `lost`, one class for each thing that is missing, since the unpickler makes instances of classes only."""

    reason = ""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        pass

    def extend(self, _: Any) -> None:
        pass


def lost(reason: str) -> type[Lost]:
    return type("Lost", (Lost,), {"reason": reason})


def lost_in(value: Any) -> str | None:
    """The reason, if this very value is lost."""
    # Not `isinstance`, which may run code of the value's.
    kind = value if issubclass(type(value), type) else type(value)
    return kind.reason if kind is not Lost and Lost in kind.__mro__[1:2] else None  # type: ignore[attr-defined]
