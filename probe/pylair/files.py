"""Finds the files that a cell made in its working directory and in the directories right below. Runs in the worker after a cell.

A file that is made or replaced changes the time of its directory, so a directory is only read when it has changed since the cell began.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat
import time
from typing import Any

MAX_FILES = 50
MAX_ENTRIES = 5000
MAX_DIRECTORIES = 16
_SKIPPED = frozenset(["__pycache__", "node_modules"])

_scandir, _stat, _geteuid, _access = os.scandir, os.stat, os.geteuid, os.access

# Files are stamped with this clock, which goes in steps and lags behind the other.
_CLOCK_REALTIME_COARSE = 5
try:
    time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    now = functools.partial(time.clock_gettime_ns, _CLOCK_REALTIME_COARSE)
except OSError:
    now = time.time_ns


class Files:
    """What is known of the working directory."""

    def __init__(self) -> None:
        self._known: Any = None
        self._directories: list[str] = []
        # What was told at the same step of the clock: a file made right before a cell could pass for one of its own.
        self._reported: set[tuple[int, int]] = set()
        # The directory that had too many entries, with its size then.
        self._too_large: tuple[int, int, int] = (0, 0, 0)

    def know(self, path: str) -> None:
        """This file, as it is now, was there before the cell."""
        try:
            status = _stat(path)
        except OSError:
            return
        self._reported.add((status.st_ino, status.st_ctime_ns))

    def made(self, since: int, notes: list[str]) -> list[dict[str, Any]]:
        """The files made since it was so much by `now`, in the form of `files` of a done frame."""
        found: list[dict[str, Any]] = []
        reported: set[tuple[int, int]] = set()
        count = 0
        try:
            for prefix, entries, sticky in self._changed(since, notes):
                for entry in entries:
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    # Others make files in a directory like /tmp too.
                    if status.st_ctime_ns < since or (sticky and status.st_uid != _geteuid()):
                        continue
                    key = status.st_ino, status.st_ctime_ns
                    reported.add(key)
                    if key in self._reported:
                        continue
                    count += 1
                    if len(found) < MAX_FILES:
                        found.append({"path": prefix + entry.name, "bytes": status.st_size})
        except OSError:
            # Something went away while it was looked at.
            pass
        self._reported = reported.union(key for key in self._reported if key[1] >= since)
        if count > MAX_FILES:
            notes.append(f"the cell made {count} files; {MAX_FILES} of them are listed")
        return found

    def _changed(self, since: int, notes: list[str]) -> Any:
        """The directories that changed: prefix of their paths, entries, and whether everybody may write to them."""
        here = _stat(".")
        known = here.st_dev, here.st_ino, here.st_mtime_ns
        changed = here.st_mtime_ns >= since
        if changed or known != self._known:
            self._known = known
            self._directories = []
            entries = self._read(here, notes)
            if entries is not None:
                self._directories = _directories(entries, here.st_dev)
                if changed:
                    yield "", entries, here.st_mode & stat.S_ISVTX
        for name in self._directories:
            try:
                entries = _entries(name) if _stat(name).st_mtime_ns >= since else None
            except OSError:
                continue
            if entries:
                yield f"{name}/", entries, False

    def _read(self, here: os.stat_result, notes: list[str]) -> list[Any] | None:
        """What the working directory holds; None, and once a note, when it is too much. Such a one is not read again unless it shrank."""
        device, inode, size = self._too_large
        if (here.st_dev, here.st_ino) == (device, inode) and here.st_size >= size:
            return None
        entries = _entries(".")
        if entries is None:
            self._too_large = here.st_dev, here.st_ino, here.st_size
            notes.append(f"files that cells make are not listed: the working directory has over {MAX_ENTRIES} entries")
        return entries


def _entries(directory: str) -> list[Any] | None:
    """What the directory holds, by name; None when it is too much."""
    with _scandir(directory) as found:
        entries = list(itertools.islice(found, MAX_ENTRIES + 1))
    return sorted(entries, key=lambda entry: entry.name) if len(entries) <= MAX_ENTRIES else None


def _directories(entries: list[Any], device: int) -> list[str]:
    """The directories worth watching, those first that changed last."""
    found = []
    for entry in entries:
        name = entry.name
        if name.startswith(".") or name in _SKIPPED or not entry.is_dir(follow_symlinks=False):
            continue
        status = entry.stat(follow_symlinks=False)
        # Not /proc, not /tmp, no environment of Python's.
        if status.st_dev == device and not status.st_mode & stat.S_ISVTX and not _access(f"{name}/pyvenv.cfg", os.F_OK):
            found.append((-status.st_mtime_ns, name))
    return sorted(name for _, name in sorted(found)[:MAX_DIRECTORIES])
