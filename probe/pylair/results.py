"""The value of a call in an app as text of bounded length, and its rich forms. Called by calls.py where the call's code ran."""

from __future__ import annotations

from typing import Any, Callable

from . import errors
from .cell import MAX_RESULT_CHARS

# From this size on, the text of a built-in container is made only as far as it is shown.
_LARGE_BYTES = 1 << 20
_LARGE_CHARS = 256 << 10
_POINTER_BYTES = 8
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
    if id(kind) in errors.PLAIN_IDS:
        return errors.represent(value)
    from . import rich

    forms = rich.forms(value, notes)
    parts = rich.bounded(forms.parts, notes)
    if parts:
        send(rich.header(forms.title, parts), b"".join(part.data for part in parts))
    return forms.text


def _is_large(value: Any) -> bool:
    """Whether the text of a built-in value is so long that it should not be made whole: that is one step, in which no other thread runs."""
    kind = type(value)
    if kind is str or kind is bytes or kind is bytearray:
        return len(value) > MAX_RESULT_CHARS
    if kind not in _CONTAINERS:
        return False
    room = _LARGE_BYTES
    waiting = [value]
    while waiting and room > 0:
        item = waiting.pop()
        kind = type(item)
        if kind is str or kind is bytes:
            room -= len(item)
        elif kind in _CONTAINERS:
            room -= _POINTER_BYTES * len(item)
            if room > 0:
                waiting += item
                if kind is dict:
                    waiting += item.values()
    return room <= 0
