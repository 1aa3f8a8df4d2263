"""Images small enough to be shown to a model: sizes, scaling, drawing figures. Runs in the worker, called by `rich`.

PNG and JPEG are understood by their headers. Scaling is done with the session's own PIL, if it has one; a figure is drawn again.
"""

from __future__ import annotations

import binascii
import io
from typing import Any, NamedTuple

MAX_INLINE_BYTES = 700_000
MAX_INLINE_PIXELS = 1600
# A figure with more pixels is not drawn in full: that takes seconds, and its canvas hundreds of megabytes.
MAX_FULL_PIXELS = 8_000_000
# With less, letters are smaller than FreeType can draw them.
_MIN_DPI = 8.0
_ATTEMPTS = 5
_JPEG_QUALITY = 85


def size(mime: str, data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG or JPEG image; None if it is none."""
    if mime == "image/png":
        if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
            return None
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return _jpeg_size(data) if mime == "image/jpeg" else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def problem(mime: str, data: bytes) -> str | None:
    """Why bytes that are said to be an image of a kind that is understood here cannot be one."""
    if mime not in ("image/png", "image/jpeg"):
        return None
    if not data:
        return "it is empty"
    if size(mime, data) is None:
        return f"its {len(data)} bytes are not a {'PNG' if mime == 'image/png' else 'JPEG'} image"
    whole = _is_whole_png(data) if mime == "image/png" else data.rfind(b"\xff\xd9") > 0
    return None if whole else "the image is damaged or cut off"


def _is_whole_png(data: bytes) -> bool:
    """Whether all chunks are there and unharmed. Whoever is given a broken image may refuse all that comes with it."""
    view = memoryview(data)
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if binascii.crc32(view[at + 4 : end]).to_bytes(4, "big") != data[end : end + 4]:
            return False
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at = end + 4
    return False


def is_small(mime: str, data: bytes) -> bool:
    found = size(mime, data)
    return found is not None and len(data) <= MAX_INLINE_BYTES and max(found) <= MAX_INLINE_PIXELS


def shrink(mime: str, data: bytes) -> tuple[str, bytes] | None:
    """A smaller copy of an image, made by PIL. None without PIL, or when it does not get small enough."""
    found = size(mime, data)
    if found is None:
        return None
    try:
        from PIL import Image  # type: ignore[import-not-found]
    except ImportError:
        return None
    image = Image.open(io.BytesIO(data))
    image.load()
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode == "RGBA" and image.getextrema()[3] == (255, 255):
        image = image.convert("RGB")
    side = min(MAX_INLINE_PIXELS, max(found))
    for _ in range(_ATTEMPTS):
        image.thumbnail((side, side))
        for kind in _kinds(mime, image.mode):
            smaller = _encode(image, kind)
            if is_small(kind, smaller):
                return kind, smaller
        side = max(side * 2 // 3, 1)
    return None


def _kinds(mime: str, mode: str) -> tuple[str, ...]:
    """Photographs are far smaller as JPEG, which has no transparency."""
    return ("image/png", "image/jpeg") if mime == "image/png" and mode in ("RGB", "L") else (mime,)


def _encode(image: Any, mime: str) -> bytes:
    target = io.BytesIO()
    if mime == "image/png":
        image.save(target, format="PNG")
    else:
        image.save(target, format="JPEG", quality=_JPEG_QUALITY)
    return target.getvalue()


class Drawing(NamedTuple):
    """A matplotlib figure as images: one that is small enough to be shown, with its MIME type, if there is one; and a PNG of its own size
    if that was drawn as well. They may be the same."""

    small: tuple[str, bytes] | None
    full: bytes | None


def figure_size(figure: Any) -> tuple[float, float]:
    """Width and height in pixels."""
    width, height = figure.get_size_inches()
    return float(width) * float(figure.dpi), float(height) * float(figure.dpi)


def draw(figure: Any) -> Drawing:
    """Draws a figure to be shown. One that is too large for that is drawn small at once, which is fast whatever its size."""
    dpi = float(figure.dpi)
    width, height = figure_size(figure)
    if max(width, height) <= MAX_INLINE_PIXELS:
        full = draw_full(figure)
        return Drawing(_small(figure, dpi, full), full)
    # What is around the axes may stick out of the figure.
    fitting = 0.9 * dpi * MAX_INLINE_PIXELS / max(width, height)
    if fitting < _MIN_DPI <= dpi and width * height * (_MIN_DPI / dpi) ** 2 <= MAX_FULL_PIXELS:
        fitting = _MIN_DPI
    return Drawing(_small(figure, fitting, _draw(figure, fitting)), None)


def draw_full(figure: Any) -> bytes:
    return _draw(figure, float(figure.dpi))


def _small(figure: Any, dpi: float, drawn: bytes) -> tuple[str, bytes] | None:
    """A figure that was drawn with this dpi, small enough to be shown. Drawn anew it has sharper letters than when it is scaled."""
    side = max(size("image/png", drawn) or (1,))
    fitting = 0.98 * dpi * MAX_INLINE_PIXELS / side
    if side > MAX_INLINE_PIXELS and fitting >= _MIN_DPI:
        drawn = _draw(figure, fitting)
    return ("image/png", drawn) if is_small("image/png", drawn) else shrink("image/png", drawn)


def _draw(figure: Any, dpi: float) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=dpi, bbox_inches="tight")
    return target.getvalue()
