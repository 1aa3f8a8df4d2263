"""The forms that a value can be shown in: its text, and images, HTML and the like where it offers them. Runs in the worker.

The protocol is the one IPython made common (`_repr_png_` and its relatives, `_repr_mimebundle_`), looked up on the type as Python does
with special methods. What a program's methods do wrong costs that form and a note, never the cell.
"""

from __future__ import annotations

import binascii
import json
import sys
from typing import Any, Callable, List, NamedTuple

from . import errors, images, tables, unwind
from .errors import PLAIN_IDS as PLAIN_IDS

MAX_PARTS = 16
MAX_PART_BYTES = 32 << 20
MAX_FRAME_BYTES = 48 << 20
MAX_MIME_CHARS = 100
MAX_TEXT_CHARS = 32 << 10
_MAX_PROBLEM_CHARS = 300

# Best first. The protocol has many more; these are what somebody can look at.
_METHODS = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_html_", "text/html"),
    ("_repr_json_", "application/json"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_pdf_", "application/pdf"),
)
_RANK = {mime: rank for rank, (_, mime) in enumerate(_METHODS)}
_BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")

Notes = List[str]


class Part(NamedTuple):
    """One form of a value."""

    mime: str
    data: bytes
    inline: bool = False


class Forms(NamedTuple):
    """A value as it can be shown. Without parts it has only its text."""

    text: str
    parts: list[Part]
    title: str


def forms(value: Any, notes: Notes) -> Forms:
    """All forms of a value."""
    kind = type(value)
    title = errors.cut(errors.type_name(kind), MAX_MIME_CHARS)
    found = None if id(kind) in PLAIN_IDS else _attempt(f"looking at {title}", lambda: _forms(value, title, notes), notes)
    return found or Forms(errors.represent(value), [], title)


def _forms(value: Any, title: str, notes: Notes) -> Forms:
    figure = _figure(value, notes)
    if figure is not None:
        return Forms(errors.represent(value), figure, figure_title(value))
    table = tables.makers(value)
    if table is not None:
        return _table_forms(value, table, notes, title)
    bundle = _bundle(value, notes)
    text = bundle.pop("text/plain", None)
    if not isinstance(text, str):
        text = errors.represent(value)
    found = parts(bundle, title, notes)
    if not found:
        _explain_missing_image(value, bundle, notes)
    return Forms(text, found, title)


def _explain_missing_image(value: Any, bundle: dict[str, Any], notes: Notes) -> None:
    """PIL does not say why an image of its has no form: PNG has no floating-point numbers, for one."""
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if bundle or not isinstance(kind, type) or not issubclass(type(value), kind):
        return
    width, height = value.size
    hint = "convert it first, as by image.convert('RGB')" if width and height else "it is empty"
    notes.append(f"an image of mode {value.mode} with {width} × {height} pixels cannot be shown as PNG or JPEG: {hint}")


def shows_itself(value: Any, notes: Notes) -> bool:
    """Lets a value show itself by `_ipython_display_`, if that is the only way it has. Returns whether it did.

    IPython asks this method first. Here it is the last resort, because what offers both (plotly) tries to open a browser in it when
    there is no shell of IPython's.
    """
    kind = type(value)
    method = _method(kind, "_ipython_display_")
    if method is None or any(_method(kind, name) is not None for name in ("_repr_mimebundle_", *(name for name, _ in _METHODS))):
        return False
    done = _attempt(f"_ipython_display_ of {errors.type_name(kind)}", lambda: method(value) or True, notes)
    return done is not None


def parts(bundle: dict[str, Any], title: str, notes: Notes) -> list[Part]:
    """The data of a MIME bundle as parts, best first, with the one marked that a model may be shown."""
    found = []
    for mime in sorted((mime for mime in bundle if _is_mime(mime)), key=lambda mime: _RANK.get(mime, len(_RANK)))[:MAX_PARTS]:
        data = _attempt(f"the {mime} form of {title}", lambda mime=mime: _to_bytes(mime, bundle[mime]), notes)  # type: ignore[misc]
        problem = images.problem(mime, data) if data is not None else None
        if problem is not None:
            notes.append(f"the {mime} form of {title} was left out: {problem}")
        elif data:
            found.append(Part(mime, data))
    return _with_inline(found, notes)


def bounded(parts: list[Part], notes: Notes) -> list[Part]:
    """Those that fit into a frame."""
    kept: list[Part] = []
    size = 0
    for part in parts:
        if len(part.data) > MAX_PART_BYTES or size + len(part.data) > MAX_FRAME_BYTES:
            notes.append(f"{errors.a(part.mime)} form of {len(part.data) >> 20} MB is too large to be shown and was left out")
            continue
        size += len(part.data)
        kept.append(part)
    return kept


def header(title: str, parts: list[Part]) -> dict[str, Any]:
    """The fields of a display frame."""
    fields: dict[str, Any] = {"ev": "display", "title": title} if title else {"ev": "display"}
    fields["parts"] = [
        {"mime": part.mime, "bytes": len(part.data), "inline": True} if part.inline else {"mime": part.mime, "bytes": len(part.data)}
        for part in parts
    ]
    return fields


def _with_inline(found: list[Part], notes: Notes) -> list[Part]:
    for at, part in enumerate(found):
        if images.size(part.mime, part.data) is None:
            continue
        if images.is_small(part.mime, part.data):
            return [part._replace(inline=True), *found[:at], *found[at + 1 :]]
        smaller = _attempt("scaling the image", lambda part=part: images.shrink(part.mime, part.data), notes)  # type: ignore[misc]
        if smaller is not None:
            return [Part(*smaller, inline=True), *found]
    # Written to be read, other than HTML.
    return [part._replace(inline=part.mime == "text/markdown" and len(part.data) <= MAX_TEXT_CHARS) for part in found]


def _figure(value: Any, notes: Notes) -> list[Part] | None:
    """A matplotlib figure drawn; None if the value is not a figure."""
    kind = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    # The type is asked and not the value: a proxy may run a program's code to answer.
    if not isinstance(kind, type) or not issubclass(type(value), kind):
        return None
    drawing = _attempt("drawing the figure", lambda: images.draw(value), notes, may_be_absent=False)
    if drawing is None:
        return []
    small, full = drawing
    width, height = images.figure_size(value)
    if full is None and width * height <= images.MAX_FULL_PIXELS:
        full = _attempt("drawing the figure in full", lambda: images.draw_full(value), notes, may_be_absent=False)
    elif full is None and small is not None:
        columns, rows = images.size(*small) or (0, 0)
        notes.append(
            f"{figure_title(value)} is {width:.0f} × {height:.0f} pixels large and was drawn with {columns} × {rows}; "
            "fig.savefig(path) saves it in full size"
        )
    found = []
    if small is None:
        notes.append(f"{figure_title(value)} is not shown: no image of it gets small enough; fig.savefig(path) saves it")
    else:
        found.append(Part(*small, inline=True))
    if full is not None and (small is None or full is not small[1]):
        found.append(Part("image/png", full))
    return found


def figure_title(figure: Any) -> str:
    number = getattr(figure, "number", None)
    label = getattr(figure, "get_label", str)()
    if isinstance(label, str) and label:
        return errors.cut(label, MAX_MIME_CHARS)
    return f"Figure {number}" if isinstance(number, int) else "Figure"


def _table_forms(value: Any, table: Any, notes: Notes, title: str) -> Forms:
    make_text, make_html = table
    text = _attempt(f"the text of {title}", make_text, notes)
    html = None if make_html is None else _attempt(f"the HTML of {title}", make_html, notes)
    if not isinstance(text, str):
        text = errors.represent(value)
    return Forms(text, [Part("text/html", _to_bytes("text/html", html))] if isinstance(html, str) else [], title)


def _bundle(value: Any, notes: Notes) -> dict[str, Any]:
    """What the methods of the protocol say, by MIME type."""
    kind = type(value)
    bundle: dict[str, Any] = {}
    method = _method(kind, "_repr_mimebundle_")
    if method is not None:
        said = _data(_attempt(f"_repr_mimebundle_ of {errors.type_name(kind)}", lambda: _call_mimebundle(method, value), notes))
        if isinstance(said, dict):
            bundle.update(said)
    for name, mime in _METHODS:
        method = _method(kind, name)
        if method is None or mime in bundle or (mime == "image/jpeg" and "image/png" in bundle):
            continue
        said = _data(_attempt(f"{name} of {errors.type_name(kind)}", lambda method=method: method(value), notes))  # type: ignore[misc]
        if said is not None:
            bundle[mime] = said
    return bundle


def _method(kind: type, name: str) -> Any:
    try:
        return getattr(kind, name, None)
    except Exception:
        # A metaclass of the program's.
        return None


def _call_mimebundle(method: Any, value: Any) -> Any:
    try:
        return method(value, include=None, exclude=None)
    except TypeError as error:
        # Raised by the call itself: the method takes no arguments.
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
    return method(value)


def _data(said: Any) -> Any:
    """The methods may return their data together with metadata."""
    return said[0] if isinstance(said, tuple) and said else said


def _is_mime(mime: Any) -> bool:
    return isinstance(mime, str) and mime.isprintable() and "/" in mime and len(mime) <= MAX_MIME_CHARS


def _to_bytes(mime: str, data: Any) -> bytes:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    if isinstance(data, str):
        # Binary data in a str is base64.
        return binascii.a2b_base64(data) if mime in _BINARY else data.encode("utf-8", "backslashreplace")
    if mime.endswith("json"):
        return json.dumps(data, default=str, ensure_ascii=False).encode("utf-8", "backslashreplace")
    raise TypeError(f"it is {errors.a(errors.type_name(type(data)))}")


def _attempt(what: str, action: Callable[[], Any], notes: Notes, may_be_absent: bool = True) -> Any:
    """The result of a program's method, or None and a note about why there is none. Only an interrupt passes through."""
    try:
        return action()
    except BaseException as problem:
        if may_be_absent and isinstance(problem, NotImplementedError):
            # How these methods say that there is no such form.
            return None
        if unwind.raised and isinstance(problem, KeyboardInterrupt):
            raise
        said = " ".join(errors.cut(errors.message(problem), _MAX_PROBLEM_CHARS).split())
        notes.append(f"{what} failed: {errors.type_name(type(problem))}: {said}")
        return None
