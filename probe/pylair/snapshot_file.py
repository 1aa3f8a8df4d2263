"""The file that a session's variables are saved in. Runs in the worker; written by `saving`, read by `restoring`.

    16 bytes magic, u16 format, u8 and u8 version of Python
    a preamble and one record after the other: pickles that share one memo
    contents: JSON, what is where and the sources of stored code
    u64 offset of the contents, u32 CRC of all that is before, 8 bytes magic

It is written from front to back, and only one that has its end is read. Numbers are big-endian.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import Any, NamedTuple

from . import wire

try:
    from zlib import crc32
except ImportError:
    from binascii import crc32  # type: ignore[assignment]

FORMAT = 1
# Noted before a program can replace it.
PYTHON = tuple(sys.version_info[:3])
_BEGIN = b"pylair session\r\n"
_HEAD = struct.Struct(">16sHBB")
_FOOT = struct.Struct(">QI8s")
_END = b"\r\nend.\r\n"
_CHUNK = 1 << 20

RECORDS_START = _HEAD.size
FOOT_BYTES = _FOOT.size


class Unreadable(Exception):
    """The file cannot be restored from; the message says why."""


class WriteFailed(Exception):
    """The file cannot be written; the message says why."""


class TooBig(Exception):
    """The file would become larger than allowed."""


class Variable(NamedTuple):
    """A record: where it is, and which entries of the memo it made."""

    name: str
    type: str
    offset: int
    length: int
    memo_start: int
    memo_end: int


class Contents(NamedTuple):
    python: str
    # Names the bytecode; another magic number is another bytecode.
    magic: str
    variables: list[Variable]
    not_saved: list[dict[str, str]]
    sources: dict[str, str]


class Writer:
    """What a pickler writes to. Counts, checks the limit, and can go back to where a record began."""

    def __init__(self, fd: int, limit: int | None) -> None:
        self._fd = fd
        self._limit = limit
        self.size = 0
        self._crc = 0
        self.captured: bytearray | None = None
        self.rewind((0, 0))
        self.write(_HEAD.pack(_BEGIN, FORMAT, *PYTHON[:2]))

    def write(self, data: Any) -> int:
        view = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data)
        if self.captured is not None:
            self.captured += view
            return view.nbytes
        if self._limit is not None and self.size + view.nbytes > self._limit:
            raise TooBig
        for at in range(0, view.nbytes, _CHUNK):
            self._write(view[at : at + _CHUNK])
        return view.nbytes

    def _write(self, view: memoryview) -> None:
        crc = crc32(view, self._crc)
        size = view.nbytes
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                raise WriteFailed(f"the file cannot be written: {error.strerror}") from None
        self._crc = crc
        self.size += size

    def mark(self) -> tuple[int, int]:
        return self.size, self._crc

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forgets what was written since."""
        try:
            os.ftruncate(self._fd, mark[0])
            os.lseek(self._fd, mark[0], os.SEEK_SET)
        except OSError as error:
            raise WriteFailed(f"the file cannot be written: {error.strerror}") from None
        self.size, self._crc = mark

    def finish(self, contents: Contents, limit: int | None) -> None:
        """Writes the end. Sources are left out where there is no room for them."""
        offset = self.size
        for each in (contents, contents._replace(sources={}), contents._replace(sources={}, not_saved=[])):
            text = wire.encode_exactly(each._asdict())
            if limit is None or offset + len(text) + _FOOT.size <= limit:
                break
        else:
            raise WriteFailed("the limit on the file's size leaves no room for the names of the variables")
        self._limit = None
        self.write(text)
        self.write(_FOOT.pack(offset, self._crc, _END))


def read_contents(fd: int) -> Contents:
    """Checks the whole file and returns its contents."""
    try:
        size = os.lseek(fd, 0, os.SEEK_END)
        return _read_contents(fd, size)
    except OSError as error:
        raise Unreadable(f"the file cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, struct.error):
        raise Unreadable("the file of saved variables is damaged") from None


def _read_contents(fd: int, size: int) -> Contents:
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_BEGIN):
        raise Unreadable("the file is empty" if not size else "this is not a file of saved variables, or its beginning is gone")
    _, version, *_python = _HEAD.unpack(head)
    if version != FORMAT:
        raise Unreadable(f"the file of saved variables has format {version}; this version of pylair reads format {FORMAT}")
    body = size - _FOOT.size
    foot = os.pread(fd, _FOOT.size, max(0, body))
    if body < _HEAD.size or len(foot) < _FOOT.size or not foot.endswith(_END):
        raise Unreadable("the file of saved variables is cut off: its end is missing")
    offset, expected, _ = _FOOT.unpack(foot)
    crc = at = 0
    while at < body:
        chunk = os.pread(fd, min(_CHUNK, body - at), at)
        if not chunk:
            break
        crc = crc32(chunk, crc)
        at += len(chunk)
    if crc != expected or not _HEAD.size <= offset <= body:
        raise Unreadable("the file of saved variables is damaged: its checksum is wrong")
    fields = wire.decode_exactly(_pread_all(fd, body - offset, offset))
    variables = [Variable(*row) for row in fields.pop("variables")]
    return Contents(variables=variables, **fields)


def _pread_all(fd: int, count: int, offset: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = os.pread(fd, count - len(data), offset + len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)
