"""Frames and datagrams of the wire, as docs/wire.md defines them. Runs wherever the probe speaks to the daemon.

It knows bytes and descriptors and nothing about what the messages mean.
"""

from __future__ import annotations

import json
import json.encoder
import os
import select
import socket
import struct
from typing import Any, Dict

WIRE_VERSION = 1
MAX_HEADER_BYTES = 1 << 20
# So long are the names of classes and variables that are told.
MAX_NAME_CHARS = 200
MAX_BLOB_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_DATAGRAM_BYTES = 1 << 16
MAX_DESCRIPTORS = 16

_CHUNK = 1 << 16
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1

Header = Dict[str, Any]


# What a class of the program's cannot replace.
_traceback_of = BaseException.__dict__["__traceback__"].__get__


class Garbage(ValueError):
    """The peer sent something that is not a frame. The link cannot go on."""


def clean(text: str) -> str:
    """The text with lone surrogates written as escapes, so that it can be encoded."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")


def shortened(name: str) -> str:
    """The beginning of a name that nobody would write by hand, for a header has room for many."""
    return clean(name) if str.__len__(name) <= MAX_NAME_CHARS else f"{clean(str.__getitem__(name, slice(MAX_NAME_CHARS)))}…"


def plain(text: str) -> str:
    """The text itself, if it is of a class of the program's."""
    return text if type(text) is str else str.__str__(text)


def strict(value: Any, depth: int = 0) -> Any:
    """A copy of the value that JSON can carry: what it cannot carry becomes text. Classes of the program's have no say in it."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, str):
        return clean(value)
    if issubclass(kind, int):
        # Past 64 bits `hex`, because `str` refuses more than a few thousand digits since 3.11.
        number = int.__pos__(value)
        return number if _INT_MIN <= number <= _INT_MAX else _big_int(number)
    if issubclass(kind, float):
        # True of every float but the infinities and NaN.
        number = float.__pos__(value)
        return number if number - number == 0.0 else repr(number)
    if depth >= MAX_DEPTH:
        return "…"
    if issubclass(kind, dict):
        return {_text(key): strict(item, depth + 1) for key, item in dict.items(value)}
    if issubclass(kind, (list, tuple)):
        return [strict(item, depth + 1) for item in (list if issubclass(kind, list) else tuple).__iter__(value)]
    return _text(value)


def _text(value: Any) -> str:
    try:
        return clean(value if issubclass(type(value), str) else str(value))
    except BaseException:
        return "…"


def _big_int(number: int) -> str:
    try:
        return str(number)
    except ValueError:
        return hex(number)


def dumps(value: Any) -> bytes:
    """Strict JSON in UTF-8, whatever the value is."""
    return _encode(strict(value))


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _make_encode(surrogates: str = "strict") -> Any:
    """`JSONEncoder.encode` builds its C encoder anew for every call, half the cost of a small frame: build it once."""
    slow = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refuse).encode
    try:
        make_encoder = json.encoder.c_make_encoder  # type: ignore[attr-defined]
        fast = make_encoder(None, _refuse, json.encoder.encode_basestring, None, ":", ",", False, False, False)
        if "".join(fast({"é\n": [1, None]}, 0)) != '{"é\\n":[1,null]}':
            raise ValueError
    except (TypeError, ValueError, AttributeError):
        return lambda value: slow(value).encode("utf-8", surrogates)
    join = "".join
    return lambda value: join(fast(value, 0)).encode("utf-8", surrogates)


_encode = _make_encode()
# What JSON can carry, with lone surrogates as they are.
encode_exactly = _make_encode("surrogatepass")
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_scan = _DECODER.scan_once  # type: ignore[attr-defined]


def encode(header: Header) -> bytes:
    """As [`dumps`], and faster for what JSON can carry as it is."""
    try:
        return _encode(header)
    except (ValueError, TypeError, RecursionError):
        return dumps(header)


class TooLong(ValueError):
    """A frame that the other side would not take."""


def encode_frame(header: Header, blob: bytes = b"") -> bytes:
    """The bytes of a frame. Sets the header's `blob`."""
    if blob:
        header["blob"] = len(blob)
    text = encode(header)
    if len(text) > MAX_HEADER_BYTES:
        raise TooLong(f"the answer has {len(text)} bytes of names and texts, over the limit of {MAX_HEADER_BYTES}")
    return b"".join((len(text).to_bytes(4, "big"), text, blob))


def decode_exactly(text: bytes) -> Any:
    """What `encode_exactly` was given, or any other JSON."""
    return _scan(text.decode("utf-8", "surrogatepass"), 0)[0]


def decode_header(text: bytes) -> Header:
    try:
        decoded = text.decode("utf-8")
        header, end = _scan(decoded, 0)
        if end != len(decoded):
            header = _DECODER.decode(decoded)
    except StopIteration:
        raise Garbage("a header is not JSON") from None
    except (ValueError, RecursionError) as error:
        raise Garbage(f"a header is not JSON: {error}") from None
    if type(header) is not dict:
        raise Garbage("a header is not an object")
    return header


def blob_length(header: Header) -> int:
    length = header.get("blob", 0)
    if type(length) is not int or not 0 <= length <= MAX_BLOB_BYTES:
        raise Garbage(f"a blob cannot have the length {length!r}")
    return length


class FrameReader:
    """Reads frames from a descriptor. A small frame costs one `read`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = b""

    def read(self) -> tuple[Header, bytes] | None:
        """The next frame, or None at the end of the stream. Blocks."""
        buffer = self._buffer or os.read(self.fd, _CHUNK)
        if len(buffer) < 4:
            if not buffer:
                return None
            buffer = self._more(buffer, 4)
        size = int.from_bytes(buffer[:4], "big")
        if size > MAX_HEADER_BYTES:
            raise Garbage(f"a header of {size} bytes is too long")
        body = 4 + size
        if len(buffer) < body:
            buffer = self._more(buffer, body)
        header = decode_header(buffer[4:body])
        if "blob" not in header:
            self._buffer = buffer[body:]
            return header, b""
        end = body + blob_length(header)
        if len(buffer) < end:
            buffer = self._more(buffer, end)
        self._buffer = buffer[end:]
        return header, buffer[body:end]

    def reset(self) -> None:
        """Forgets what was read ahead; the descriptor is another pipe now."""
        self._buffer = b""

    def _more(self, buffer: bytes, size: int) -> bytes:
        parts = bytearray(buffer)
        while len(parts) < size:
            chunk = os.read(self.fd, max(_CHUNK, size - len(parts)))
            if not chunk:
                raise Garbage("the stream ended inside a frame")
            parts += chunk
        return bytes(parts)


def raised_by_call(error: BaseException, function: Any = None) -> bool:
    """Whether an exception comes from the system call that was tried, in the frame that caught it or in `function` called from there.

    A handler of the program's may run in the middle of the call or right after it, and what it raises may look the same; but then the
    call has done its work, and the exception is the program's to see.
    """
    entry: Any = _traceback_of(error)
    if function is not None:
        entry = entry.tb_next
    return entry is not None and entry.tb_next is None and (function is None or entry.tb_frame.f_code is function.__code__)


def write_all(fd: int, data: bytes) -> None:
    """Writes everything; waits when a non-blocking descriptor is full."""
    try:
        done = os.write(fd, data)
    except BlockingIOError as error:
        if not raised_by_call(error):
            raise
        done = 0
    if done == len(data):
        return
    rest = memoryview(data)[done:]
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError as error:
            if not raised_by_call(error):
                raise
            waiting = select.poll()
            waiting.register(fd, select.POLLOUT)
            waiting.poll()


def write_whole(fd: int, data: bytes) -> None:
    """Writes everything, whatever handlers of the program's raise meanwhile.

    One may raise as soon as a call has returned, before the next step of Python code could take note of how much was written. So the
    call is made, and its result noted, by C code.
    """
    written: list[int] = []
    try:
        written.extend(map(os.write, (fd,), (data,)))
        if written[0] == len(data):
            return
    except BaseException as error:
        _wait_to_write(fd, error)
    while sum(written) < len(data):
        try:
            written.extend(map(os.write, (fd,), (memoryview(data)[sum(written) :],)))
        except BaseException as error:
            _wait_to_write(fd, error)


def _wait_to_write(fd: int, error: BaseException) -> None:
    """After a write that failed. Raises the error when nobody reads any more; what a handler raised is of no interest here."""
    if not issubclass(type(error), OSError) or not raised_by_call(error):
        return
    if not issubclass(type(error), BlockingIOError):
        raise error
    waiting = select.poll()
    waiting.register(fd, select.POLLOUT)
    waiting.poll()


def send_datagram(control: socket.socket, message: Header, descriptors: tuple[int, ...] = ()) -> None:
    """Sends one control datagram, with descriptors when there are any."""
    rights = []
    if descriptors:
        rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors)))
    control.sendmsg([encode(message)], rights)


def receive_datagram(control: socket.socket, flags: int = 0) -> tuple[Header, list[int]] | None:
    """The next control datagram with its descriptors (close-on-exec), or None when the peer is gone."""
    space = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
    try:
        data, ancillary, _, _ = control.recvmsg(MAX_DATAGRAM_BYTES, space, flags | getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000))
    except ConnectionError:
        return None
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(payload) // 4
            descriptors.extend(struct.unpack(f"{count}i", payload[: 4 * count]))
    if not data:
        return None
    return decode_header(data), descriptors
