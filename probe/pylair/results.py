"""The value of a call in an app as text of bounded length, and its rich forms. Called by calls.py where the call's code ran."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any, Callable

from . import errors
from .cell import MAX_RESULT_CHARS

# From this size on, the text of a built-in container is made only as far as it is shown.
_LARGE_BYTES = 1 << 20
_LARGE_CHARS = 256 << 10
_LOOKED_AT = 1000
_CONTAINERS = (list, tuple, dict, set, frozenset)


def show(value: Any, max_chars: int, notes: list[str], send: Callable[[dict[str, Any], bytes], None]) -> str:
    """The text of a value; other forms of it, such as a picture of a figure, are sent."""
    kind = type(value)
    if _is_large(value):
        from . import preview

        limit = min(max_chars, _LARGE_CHARS)
        rendered = preview.render(value, limit, limit, run=True)
        if rendered.cut:
            notes.append(f"the result is large, and only the first {limit} characters of its text were made")
        return rendered.text
    if kind in errors.PLAIN:
        return errors.represent(value)
    from . import rich

    forms = rich.forms(value, notes)
    parts = rich.bounded(forms.parts, notes)
    if parts:
        send(rich.header(forms.title, parts), b"".join(part.data for part in parts))
    return forms.text


def _is_large(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bytes or kind is bytearray:
        return len(value) > MAX_RESULT_CHARS
    if kind not in _CONTAINERS:
        return False
    inside = islice(value.values() if kind is dict else value, _LOOKED_AT)
    return sys.getsizeof(value) > _LARGE_BYTES or any(_is_heavy(item) for item in inside)


def _is_heavy(value: Any) -> bool:
    return type(value) in (str, bytes, *_CONTAINERS) and sys.getsizeof(value) > _LARGE_BYTES
