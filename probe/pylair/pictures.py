"""Pictures that an app takes of itself, by the functions it gave for that. Called by calls.py."""

from __future__ import annotations

from typing import Any, Callable

from . import errors
from .paths import Refused

MAX_BYTES = 16 << 20
_KINDS = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"))


def taker(app: Any, code: str | None) -> Callable[[], Any]:
    """What takes the picture, of the app or of a snippet alone."""
    if code is None:
        whole = app.screenshot_fn
        if whole is None:
            raise Refused(
                "no_screenshot",
                "this app has no function that takes a picture of it",
                "pylair.set_screenshot_fn(function) in the app sets one; it returns PNG bytes",
            )
        return whole
    alone = app.winshot_fn
    if alone is None:
        raise Refused(
            "no_screenshot",
            "this app has no function that draws a snippet alone",
            "pylair.set_winshot_fn(function) in the app sets one; it gets the code and returns PNG bytes",
        )
    return lambda: alone(code)


def failed(error: BaseException, code: str | None) -> Refused:
    said = errors.cut(f"{errors.type_name(type(error))}: {errors.message(error)}", 1000)
    return Refused("failed", f"the app's {_which(code)} raised {said}")


def checked(picture: Any, code: str | None) -> tuple[dict[str, Any], bytes]:
    if not isinstance(picture, (bytes, bytearray, memoryview)):
        kind = errors.a(errors.type_name(type(picture)))
        raise Refused("failed", f"the app's {_which(code)} returned {kind}, not bytes", "it has to return the bytes of a PNG or JPEG file")
    data = bytes(picture)
    if len(data) > MAX_BYTES:
        raise Refused("failed", f"the app's {_which(code)} returned {len(data) >> 20} MB, over the limit of {MAX_BYTES >> 20} MB")
    for signature, mime in _KINDS:
        if data.startswith(signature):
            return {"mime": mime}, data
    raise Refused("failed", f"the app's {_which(code)} returned {errors.count(len(data), 'byte')} that are neither a PNG nor a JPEG file")


def _which(code: str | None) -> str:
    return "screenshot function" if code is None else "winshot function"
