"""Directories for the temporary files of throw-away copies: made before the fork, removed by the process that asked when the copy is gone.

They lie in one directory of the user's, in memory where that is possible: a disk may take longer to remove one than the copy lives.
A process that was killed before it could remove its own leaves it to whoever makes the next.
"""

from __future__ import annotations

import itertools
import os
import stat

from .descriptors import read_proc
from .real import real

_MEMORY = "/dev/shm"

_numbers = itertools.count(1)


def make() -> str | None:
    """A new directory, empty and private; None where none can be made."""
    try:
        elsewhere = str(os.environ.get("TMPDIR") or "/tmp")
    except Exception:
        # The program replaced it by something else.
        elsewhere = "/tmp"
    for directory in (_MEMORY, elsewhere):
        made = _make(f"{directory.rstrip('/')}/pylair-copies-{real.geteuid()}")
        if made is not None:
            return made
    return None


def _make(parent: str) -> str | None:
    try:
        own = f"{_process()}-{next(_numbers)}"
        for _ in range(2):
            try:
                real.mkdir(parent, 0o700)
            except FileExistsError:
                status = real.lstat(parent)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != real.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
                    return None
            try:
                real.mkdir(f"{parent}/{own}", 0o700)
                break
            except FileNotFoundError:
                # Somebody else has removed the last one beside it, and the parent.
                continue
        else:
            return None
        _sweep(parent, own)
        return f"{parent}/{own}"
    except OSError:
        return None


def remove(path: str) -> None:
    """Removes a directory that `make` made, and its parent with the last one."""
    try:
        real.rmdir(path)
    except OSError:
        remove_tree(path)
    try:
        real.rmdir(path.rpartition("/")[0])
    except OSError:
        pass


def remove_tree(path: str) -> None:
    """Removes a directory with all that is in it, as far as that is possible."""
    try:
        real.chmod(path, 0o700)
        with real.scandir(path) as entries:
            found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in found:
            if is_directory:
                remove_tree(name)
            else:
                real.unlink(name)
        real.rmdir(path)
    except OSError:
        pass


def _process() -> str:
    """Names this process among all there ever were: in which namespace, with which number, started when."""
    stat_fields = read_proc("/proc/self/stat").rpartition(b")")[2].split()
    return f"{_namespace()}-{real.getpid()}-{int(stat_fields[19])}"


def _namespace() -> int:
    return real.stat("/proc/self/ns/pid").st_ino


def _sweep(parent: str, own: str) -> None:
    here = f"{_namespace()}-"
    for name in real.listdir(parent):
        if name == own or not name.startswith(here):
            continue
        _, pid, start, *_ = [*name.split("-"), "", ""]
        fields = read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split() if pid.isdigit() else []
        if len(fields) < 20 or fields[19].decode() != start:
            remove_tree(f"{parent}/{name}")
