"""Memory that a process shares with others, and what a copy of the process does with it. Runs in workers, in test processes and in copies.

A fork shares what is mapped `MAP_SHARED`: mmap and numpy.memmap, shared_memory, locks of multiprocessing, SQLite's `-shm`. A copy that
wrote there would write into its original. So it maps the same files privately at the same addresses, which costs nothing until it writes;
what has no file any more is copied.
"""

from __future__ import annotations

import errno
import re
import stat
import struct
from os import O_CLOEXEC, O_RDONLY, O_RDWR
from typing import Iterable, NamedTuple

from .kernel import PROT_EXEC, PROT_READ, PROT_WRITE, kernel
from .real import real

# How much memory without a file is copied.
MAX_COPIED_BYTES = 1 << 30
_MAPS_BYTES = 1 << 20
_DELETED = " (deleted)"
_LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ([r-])w([x-])s ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$", re.MULTILINE)
_PAGE = 4096
# The ioctl, and a query for what is writable (2) and shared (8) at an address or behind it (16). Its answer is not looked at.
_PROCMAP_QUERY = 0xC0686611
_QUERY = struct.pack("=QQ", 104, 2 | 8 | 16) + bytes(88)


class Mapping(NamedTuple):
    """A part of memory that is writable and shared."""

    start: int
    length: int
    protection: int
    offset: int
    device: tuple[int, int]
    inode: int
    path: str

    @property
    def has_file(self) -> bool:
        """Whether it is of a file that still has its name."""
        return self.path[:1] == "/" and self.path[-len(_DELETED) :] != _DELETED

    @property
    def is_device(self) -> bool:
        return self.path[:5] == "/dev/" and self.path[:9] != "/dev/shm/" and self.path[:9] != "/dev/zero"

    @property
    def name(self) -> str:
        path = self.path[: -len(_DELETED)] if self.path[-len(_DELETED) :] == _DELETED else self.path
        return path.rpartition("/")[2] or "unnamed"


def shared() -> list[Mapping]:
    """What this process shares and could change."""
    found: list[Mapping] = []
    maps = b"" if _has_none() else _read_maps()
    # Most processes have none, and to look closer takes longer.
    if b"w-s " not in maps and b"wxs " not in maps:
        return found
    for line in _LINE.finditer(maps):
        start, end, offset, major, minor = (int(line.group(n), 16) for n in (1, 2, 5, 6, 7))
        protection = PROT_WRITE | (PROT_READ if line.group(3) == b"r" else 0) | (PROT_EXEC if line.group(4) == b"x" else 0)
        path = line.group(9).replace(rb"\012", b"\n").decode("utf-8", "surrogateescape")
        found.append(Mapping(start, end - start, protection, offset, (major, minor), int(line.group(8)), path))
    return found


def copied_bytes(mappings: Iterable[Mapping]) -> int:
    """How much of it has no file and has to be copied."""
    return sum(mapping.length for mapping in mappings if not mapping.has_file)


def make_private(mappings: Iterable[Mapping], max_copied: int = MAX_COPIED_BYTES, is_state: bool = False) -> None:
    """In a copy: has the same contents at the same addresses, shared with nobody. Raises OSError when that cannot be done.

    What has no name any more is copied if it is part of the state that is kept: others may change it. Else an open descriptor does."""
    copied = 0
    for mapping in mappings:
        if kernel.why_not is not None:
            raise OSError(f"memory that is shared with others ({mapping.name}) cannot be made private: {kernel.why_not}")
        if mapping.is_device:
            _close_for_writing(mapping)
            continue
        if not _map_file(mapping, is_state):
            copied += mapping.length
            if copied > max_copied:
                _close_for_writing(mapping)
            else:
                kernel.protect(mapping.start, mapping.length, mapping.protection | PROT_READ)
                kernel.copy_in_place(mapping.start, mapping.length, mapping.protection)


def share_again(mappings: Iterable[Mapping]) -> list[Mapping]:
    """In a copy that takes the place of its original: writes reach the files again. Returns what stays private."""
    left = []
    for mapping in mappings:
        try:
            if not mapping.has_file or mapping.is_device:
                raise OSError
            fd = real.open(mapping.path, O_RDWR | O_CLOEXEC)
            try:
                if not _is_file_of(fd, mapping):
                    raise OSError
                kernel.map_shared(mapping.start, mapping.length, mapping.protection, fd, mapping.offset)
            finally:
                real.close(fd)
        except OSError:
            left.append(mapping)
    return left


def told(mappings: list[Mapping]) -> list[str]:
    """What is not shared any more, in words."""
    if not mappings:
        return []
    names = sorted({mapping.name for mapping in mappings})
    listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return [f"memory that was shared ({listed}; it has its contents, and what is written there stays in this session)"]


def _close_for_writing(mapping: Mapping) -> None:
    """What can neither be mapped again nor copied can be read; whoever writes there crashes, and changes nothing."""
    kernel.protect(mapping.start, mapping.length, mapping.protection & ~PROT_WRITE)


def _map_file(mapping: Mapping, is_state: bool) -> bool:
    for path in _names(mapping, is_state):
        try:
            fd = real.open(path, O_RDONLY | O_CLOEXEC)
        except OSError:
            continue
        try:
            if _is_file_of(fd, mapping):
                kernel.map_private(mapping.start, mapping.length, mapping.protection, fd, mapping.offset)
                return True
        except OSError:
            continue
        finally:
            real.close(fd)
    return False


def _names(mapping: Mapping, is_state: bool) -> Iterable[str]:
    """Where its file may be opened."""
    if mapping.has_file:
        yield mapping.path
    elif is_state or not mapping.inode:
        return
    # For those who may trace any process.
    yield f"/proc/self/map_files/{mapping.start:x}-{mapping.start + mapping.length:x}"
    if not mapping.has_file:
        for name in real.listdir("/proc/self/fd"):
            try:
                if real.fstat(int(name)).st_ino == mapping.inode:
                    yield f"/proc/self/fd/{name}"
            except OSError:
                continue


def _is_file_of(fd: int, mapping: Mapping) -> bool:
    status = real.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return False
    if status.st_ino == mapping.inode and (real.major(status.st_dev), real.minor(status.st_dev)) == mapping.device:
        return True
    # Some file systems tell one device and number to whoever asks and write others into the list of mappings. So it is asked there.
    address = kernel.map_anywhere(_PAGE, fd)
    try:
        line = re.search(rb"^%x-[0-9a-f]+ \S+ \S+ (\S+):(\S+) (\d+) " % address, _read_maps(), re.MULTILINE)
    finally:
        kernel.unmap(address, _PAGE)
    return line is not None and ((int(line.group(1), 16), int(line.group(2), 16)), int(line.group(3))) == (mapping.device, mapping.inode)


def _has_none() -> bool:
    """Asks the kernel, from 6.11 on, for the first mapping that is writable and shared: much faster than to read all. False if it cannot
    be asked."""
    fd = real.open("/proc/self/maps", O_RDONLY | O_CLOEXEC)
    try:
        real.ioctl(fd, _PROCMAP_QUERY, _QUERY)
    except OSError as error:
        return error.errno == errno.ENOENT
    finally:
        real.close(fd)
    return False


def _read_maps() -> bytes:
    fd = real.open("/proc/self/maps", O_RDONLY | O_CLOEXEC)
    try:
        parts = []
        while True:
            part = real.read(fd, _MAPS_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        real.close(fd)
