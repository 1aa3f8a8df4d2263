"""Images small enough to be shown to a model: sizes, scaling, drawing figures. Runs in the worker, called by `rich`.

PNG and JPEG are understood by their headers. Scaling is done with the session's own PIL, if it has one; a figure is drawn again.
"""

from __future__ import annotations

import io
from typing import Any

MAX_INLINE_BYTES = 700_000
MAX_INLINE_PIXELS = 1600
# Past this many pixels on a side a figure is not drawn in full: its canvas would take half a gigabyte and more.
MAX_FIGURE_PIXELS = 10_000
_MIN_DPI = 1
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


def draw(figure: Any) -> list[bytes]:
    """A matplotlib figure as PNG: small enough to be shown first, then in full if that is another one."""
    dpi = float(figure.dpi)
    side = max(figure.get_size_inches()) * dpi
    full = None
    if side <= MAX_FIGURE_PIXELS:
        full = _draw(figure, dpi)
        if is_small("image/png", full):
            return [full]
        dpi *= min(1.0, (MAX_INLINE_BYTES / len(full)) ** 0.5)
        side = max(size("image/png", full) or (1,))
        dpi = min(dpi, float(figure.dpi) * MAX_INLINE_PIXELS / side)
    else:
        dpi *= MAX_INLINE_PIXELS / side
    for _ in range(_ATTEMPTS):
        # What is around the axes may stick out of the figure, and the next size is only an estimate.
        dpi = max(dpi * 0.9, _MIN_DPI)
        smaller = _draw(figure, dpi)
        if is_small("image/png", smaller):
            return [smaller] if full is None else [smaller, full]
    return [] if full is None else [full]


def _draw(figure: Any, dpi: float) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=dpi, bbox_inches="tight")
    return target.getvalue()
