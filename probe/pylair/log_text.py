"""What is kept of a log record, and the message made of it when somebody reads it. Called by `logs`.

`keep` runs on the thread that logs. It runs none of the app's code and holds on to none of its objects: plain values are kept as they are,
a number or text of a class of the app's by its plain value, everything else by the text that preview.py has for it, all of bounded length.
A traceback is kept as files, lines and names, and gets its lines of source when it is read.
"""

from __future__ import annotations

import re
import sys
import types
from itertools import islice
from typing import Any, NamedTuple

from . import errors, paths, preview

MAX_MESSAGE_CHARS = 16 << 10
# Of one value that is shown by `preview`, and of the strings and the items in it.
_MAX_SHOWN_CHARS = 500
_MAX_INNER_CHARS = 100
_MAX_ITEMS = 12
_MAX_ARGS = 50
# After so many bytes of a record's arguments the others are left out.
_MAX_ARGS_BYTES = 64 << 10
_MAX_INT_BITS = 2000
_OUTER_FRAMES, _INNER_FRAMES = 10, 40
_MAX_CHAIN = 8
_MAX_NOTES = 5
# What a small value, a tuple or a traceback's entry takes beside the texts in it.
_SMALL_BYTES = 32
_OBJECT_BYTES = 80

_PLAIN = frozenset((int, float, bool, type(None)))
# Immutable classes of the standard library whose text is made by the standard library alone.
_WITH_TEXT = frozenset(
    (
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta")),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
        *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")),
        *(("ipaddress", name) for name in ("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network")),
    )
)

_CAUSE, _CONTEXT, _SUPPRESSED, _ARGS = (
    BaseException.__dict__[name] for name in ("__cause__", "__context__", "__suppress_context__", "args")
)
_FILE, _FILE2 = OSError.__dict__["filename"], OSError.__dict__["filename2"]
_CAUSED = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"

# `%(key)-5.2f`: the key, and the letter.
_CONVERSION = re.compile(r"%(?:\(([^)]*)\))?[-+ #0]*(?:\*|\d*)(?:\.(?:\*|\d*))?[hlL]?(.)")
# A width that would make a text of any length.
_WIDE = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\d{4,}|\*|\d*\.(?:\d{4,}|\*))")


class Shown:
    """Stands for an argument that is not kept: what `%s` and `%r` say of it."""

    __slots__ = ("needs_code", "quoted", "text")

    def __init__(self, text: str, quoted: str, needs_code: bool = False) -> None:
        self.text = text
        self.quoted = quoted
        # Whether the app's own code might say more.
        self.needs_code = needs_code

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.quoted


class Raised(NamedTuple):
    """An exception in the traceback of a record."""

    # What stands between it and the one that is told before it.
    link: str
    # File, line and name of each entry; None where some are left out.
    entries: list[tuple[str, int, str] | None]
    text: str


class Kept(NamedTuple):
    """What is kept of a record's message, and how many bytes that is."""

    template: str
    args: Any
    raised: list[Raised] | None
    stack: str | None
    size: int


def keep(record: Any, fields: dict[str, Any]) -> Kept:
    """Keeps what can be said of a record. `fields` are its attributes."""
    template, args = fields.get("msg"), fields.get("args")
    done = fields.get("message")
    if type(done) is str and "message" in fields:
        # A factory of the app's has put it together already.
        template, args = done, None
    if type(template) is not str:
        template, _ = _held(template)
        template = template if type(template) is str else str(template)
    if len(template) > MAX_MESSAGE_CHARS:
        template = errors.cut(template, MAX_MESSAGE_CHARS)
    size = sys.getsizeof(template)
    if args:
        args, more = _held_args(template, args)
        size += more
    raised = stack = None
    if fields.get("exc_info") or fields.get("exc_text") or fields.get("stack_info"):
        raised, stack, more = _behind(fields)
        size += more
    return Kept(template, args or None, raised, stack, size)


def _held_args(template: str, args: Any) -> tuple[Any, int]:
    if type(args) is tuple:
        held, size = [], _OBJECT_BYTES
        for value in args if len(args) <= _MAX_ARGS else args[:_MAX_ARGS]:
            kept, more = _held(value) if size < _MAX_ARGS_BYTES else _shown("…")
            held.append(kept)
            size += more
        return tuple(held), size
    # A record with one mapping as its only argument has that in place of the tuple.
    keys = {match.group(1) for match in islice(_CONVERSION.finditer(template), _MAX_ARGS)} if issubclass(type(args), dict) else set()
    keys.discard(None)
    if not keys:
        kept, size = _held(args)
        return (kept,), size + _OBJECT_BYTES
    named, size = {}, _OBJECT_BYTES
    for key in keys:
        if dict.__contains__(args, key):
            named[key], more = _held(dict.__getitem__(args, key)) if size < _MAX_ARGS_BYTES else _shown("…")
            size += more + sys.getsizeof(key) + _OBJECT_BYTES
    return named, size


def _held(value: Any) -> tuple[Any, int]:
    """What stands for a value, and its bytes."""
    kind = type(value)
    if kind is str:
        kept = value if len(value) <= MAX_MESSAGE_CHARS else errors.cut(value, MAX_MESSAGE_CHARS)
        return kept, sys.getsizeof(kept)
    if kind in _PLAIN:
        if kind is not int or value.bit_length() <= _MAX_INT_BITS:
            return value, _SMALL_BYTES if kind is not int else sys.getsizeof(value)
        return _shown(f"<an int of {value.bit_length()} bits>")
    if type(kind) is type:
        # Of a class of the app's, say, but without one of its enumerations.
        if issubclass(kind, int) and int.bit_length(value) <= _MAX_INT_BITS:
            return _held(int.__int__(value))
        if issubclass(kind, float):
            return float.__float__(value), _SMALL_BYTES
        if issubclass(kind, str):
            return _held(str.__getitem__(value, slice(0, MAX_MESSAGE_CHARS)))
    if issubclass(kind, BaseException):
        return _sized(Shown(_said(value), preview.render(value, _MAX_SHOWN_CHARS, _MAX_INNER_CHARS, most=_MAX_ITEMS).text))
    if _has_text(kind, value):
        return _shown(str(value), repr(value))
    rendered = preview.render(value, _MAX_SHOWN_CHARS, _MAX_INNER_CHARS, most=_MAX_ITEMS)
    return _sized(Shown(rendered.text, rendered.text, rendered.needs_code))


def _shown(text: str, quoted: str | None = None) -> tuple[Shown, int]:
    return _sized(Shown(errors.cut(text, _MAX_SHOWN_CHARS), errors.cut(quoted or text, _MAX_SHOWN_CHARS)))


def _sized(shown: Shown) -> tuple[Shown, int]:
    size = _OBJECT_BYTES + sys.getsizeof(shown.text)
    return shown, size if shown.quoted is shown.text else size + sys.getsizeof(shown.quoted)


def _has_text(kind: type, value: Any) -> bool:
    name = paths.module_name(kind), paths.short_name(kind)
    if name not in _WITH_TEXT:
        return False
    module = sys.modules.get(name[0])
    if type(module) is not types.ModuleType or paths.module_dict(module).get(name[1]) is not kind:
        return False
    # A time zone may be of a class of the app's.
    zone = paths.class_dict(kind).get("tzinfo")
    return zone is None or preview.is_plain_zone(zone.__get__(value))


def _said(error: BaseException) -> str:
    """What `str` says of an exception, as far as that is known without its own code."""
    method, _ = paths.in_class(type(error), "__str__")
    args = _ARGS.__get__(error)
    values = [*args, *(_FILE.__get__(error), _FILE2.__get__(error))] if issubclass(type(error), OSError) else args
    if type(method) is types.WrapperDescriptorType and all(type(value) is str or type(value) in _PLAIN for value in values):
        try:
            return errors.cut(method(error), _MAX_SHOWN_CHARS * 4)
        except Exception:
            pass
    return ", ".join(preview.render(value, _MAX_SHOWN_CHARS, _MAX_INNER_CHARS, most=_MAX_ITEMS).text for value in args[:_MAX_ITEMS])


def _behind(fields: dict[str, Any]) -> tuple[list[Raised] | None, str | None, int]:
    """The traceback and the stack that a formatter puts behind the message."""
    raised, size = None, 0
    exception, text = fields.get("exc_info"), fields.get("exc_text")
    if type(exception) is tuple and len(exception) == 3 and isinstance(exception[1], BaseException):
        raised = _chain(exception[1], exception[2])
        for each in raised:
            size += 2 * _OBJECT_BYTES + sys.getsizeof(each.text) + len(each.entries) * (_OBJECT_BYTES + _SMALL_BYTES)
            size += sum(sys.getsizeof(entry[0]) + sys.getsizeof(entry[2]) for entry in each.entries if entry is not None)
    elif type(text) is str:
        raised = [Raised("", [], errors.cut(text, MAX_MESSAGE_CHARS))]
        size += sys.getsizeof(raised[0].text) + _OBJECT_BYTES
    stack = fields.get("stack_info")
    stack = errors.cut(stack, MAX_MESSAGE_CHARS) if type(stack) is str else None
    return raised, stack, size + (sys.getsizeof(stack) if stack is not None else 0)


def _chain(error: BaseException, trace: Any) -> list[Raised]:
    """An exception with those that led to it, the first of them first."""
    told: list[Raised] = []
    seen = set()
    while error is not None and id(error) not in seen and len(told) < _MAX_CHAIN:
        seen.add(id(error))
        kind, said = paths.type_name(type(error)), _said(error)
        text = f"{kind}: {said}" if said else kind
        notes = (paths.instance_dict(error) or {}).get("__notes__")
        for note in notes[:_MAX_NOTES] if type(notes) is list else ():
            if type(note) is str:
                text += "\n" + errors.cut(note, _MAX_SHOWN_CHARS)
        cause = _CAUSE.__get__(error)
        earlier = cause if cause is not None or _SUPPRESSED.__get__(error) else _CONTEXT.__get__(error)
        link = "" if earlier is None else _CAUSED if cause is not None else _DURING
        told.append(Raised(link, _entries(trace), text))
        error = earlier
        trace = errors.traceback_of(error) if error is not None else None
    told.reverse()
    return told


def _entries(trace: Any) -> list[tuple[str, int, str] | None]:
    entries: list[tuple[str, int, str] | None] = []
    while isinstance(trace, types.TracebackType):
        code = trace.tb_frame.f_code
        entries.append((code.co_filename, trace.tb_lineno, code.co_name))
        if len(entries) > _OUTER_FRAMES + _INNER_FRAMES:
            entries[_OUTER_FRAMES : _OUTER_FRAMES + 2] = [None]
        trace = trace.tb_next
    return entries


# Reading.


def text_of(kept: Kept, sources: dict[str, list[str]]) -> str:
    """The whole message. `sources` are lines of files that were read for this answer."""
    text = errors.cut(_formatted(kept.template, kept.args), MAX_MESSAGE_CHARS)
    if kept.raised is not None:
        text += "\n" + errors.cut("".join(_traceback(raised, sources) for raised in kept.raised), MAX_MESSAGE_CHARS)
    if kept.stack is not None:
        text += "\n" + kept.stack
    return text


def needs_code(kept: Kept) -> bool:
    """Whether an argument is only named because its text would need the app's code."""
    args = kept.args.values() if type(kept.args) is dict else kept.args or ()
    return any(type(value) is Shown and value.needs_code for value in args)


def _formatted(template: str, args: Any) -> str:
    if args is None:
        return template
    try:
        if _WIDE.search(template) is not None:
            raise ValueError("a width in it is too large")
        try:
            return template % args
        except TypeError:
            # What stands for an object is text also where the message wants a number.
            return _CONVERSION.sub(_as_text, template) % args
    except Exception as error:
        return f"{template!r} % {args!r} (which cannot be formatted: {errors.message(error)})"


def _as_text(match: Any) -> str:
    key, letter = match.groups()
    return match.group() if letter in "%sra" else f"%({key})s" if key is not None else "%s"


def _traceback(raised: Raised, sources: dict[str, list[str]]) -> str:
    lines = [raised.link]
    if raised.entries:
        lines.append("Traceback (most recent call last):\n")
    for entry in raised.entries:
        if entry is None:
            lines.append("  … further calls …\n")
            continue
        file, number, name = entry
        lines.append(f'  File "{file}", line {number}, in {name}\n')
        line = _source_line(file, number, sources)
        if line:
            lines.append(f"    {line}\n")
    return "".join(lines) + raised.text


def _source_line(file: str, number: int, sources: dict[str, list[str]]) -> str:
    if file not in sources:
        from .source import read_file

        sources[file] = (read_file(file) or "").split("\n")
    lines = sources[file]
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
