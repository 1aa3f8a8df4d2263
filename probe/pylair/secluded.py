"""Makes a fork of a process a copy that can read everything and change nothing outside of itself. Called by freezing.py, throwaway.py and
verify.py for copies in which code runs without becoming the session.

First it leaves what it shares with its original: descriptors, memory. Files that were open for writing are open for reading, at the same
place under the same number; a database then answers truthfully, and what tries to write fails. Then it puts up its walls (walls.py).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from fcntl import F_GETFL
from typing import Any, Iterable

from . import mappings, walls
from .descriptors import replace_by_dead_ends
from .real import real

# Character devices that lead to nobody's data: null, zero, full, random, urandom.
_HARMLESS_MAJOR, _HARMLESS_MINORS = 1, (3, 5, 7, 8, 9)
_MAX_CHAIN = 20
_NUMBERS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBADF, errno.EPIPE, errno.ENOTCONN, errno.ECONNRESET, errno.EINVAL)
# Of errors without a number, such as those of databases.
_WORDS = (
    "readonly database",
    "read-only",
    "read only",
    "readonly",
    "unable to open database",
    "disk i/o error",
    "database is locked",
    "locking protocol",
    "permission denied",
    "operation not permitted",
    "bad file descriptor",
    "broken pipe",
    "connection is closed",
    "connection already closed",
    "server closed the connection",
    "connection not open",
    "name resolution",
    "name or service not known",
    # Of HDF5.
    "errno = 9,",
    "errno = 22,",
)


class _State:
    """What this process is, if it is a copy."""

    def __init__(self) -> None:
        self.sentence = ""
        self.missing: list[str] = []


_state = _State()


def leave(keep: Iterable[int], max_copied: int = mappings.MAX_COPIED_BYTES) -> None:
    """In a copy: nothing that is written, sent or read reaches the original or anybody it talks to. Raises OSError if that cannot be."""
    mappings.make_private(mappings.shared(), max_copied)
    null = real.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # Neither reading nor writing is possible here.
    closed = real.open("/", os.O_PATH | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        real.dup2(null, fd)
    spared = {0, 1, 2, null, closed, *keep}
    peers: list[int] = []
    for name in real.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in spared:
            continue
        try:
            status = real.fstat(fd)
        except OSError:
            # The one that listed them.
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            _reopen_for_reading(fd, closed)
        elif stat.S_ISCHR(status.st_mode):
            if not _is_harmless(status.st_rdev):
                real.dup2(null, fd, inheritable=False)
        else:
            # Also event queues and timers, which would be shared.
            peers.append(fd)
    replace_by_dead_ends(peers)
    real.close(null)
    real.close(closed)


def wall_in(what: str, private: str | None, original: int, max_copied: int = mappings.MAX_COPIED_BYTES) -> None:
    """In a copy that has left: puts up its walls. `what` says what it is a copy of; temporary files go to `private`, if there is one."""
    if private is not None:
        _use_for_temporary_files(private)
    where = f", except below {private}" if private is not None else ""
    _state.sentence = (
        f"this is {what}: it reads everything and changes nothing outside of itself. "
        f"Files cannot be written, made or removed{where}, connections of the original are closed and no others can be opened"
    )
    _state.missing = walls.put_up(private, original, _state.sentence)
    _replace_what_walls_let_through(max_copied)


def explain(error: BaseException | None) -> str | None:
    """Why this failed, if it failed because this is a copy that may not do it."""
    if not _state.sentence:
        return None
    for _ in range(_MAX_CHAIN):
        if error is None:
            return None
        if _is_refusal(error):
            return _state.sentence
        error = error.__cause__ or error.__context__
    return None


def missing() -> str | None:
    """What of the walls this kernel lacks, in a sentence."""
    if not _state.missing:
        return None
    lacks = " and ".join(_state.missing)
    return f"this copy is not protected by {lacks}: Python itself refuses what would write, but code in C could"


def _is_refusal(error: BaseException) -> bool:
    # Not `isinstance`, nor attributes that a class of the user's may have made its own.
    kinds = type.__dict__["__mro__"].__get__(type(error))
    if OSError in kinds and OSError.errno.__get__(error) in _NUMBERS:  # type: ignore[attr-defined]
        return True
    # What a program failed at is not known here.
    if any(kind.__name__ == "CalledProcessError" for kind in kinds):
        return True
    try:
        said = str(error).lower()
    except BaseException:
        return False
    # Clients of databases that cannot connect may say nothing more.
    if not said and any(kind.__name__ == "OperationalError" for kind in kinds):
        return True
    return any(words in said for words in _WORDS)


def _reopen_for_reading(fd: int, closed: int) -> None:
    """Gives it a place of its own in the file, and takes the right to write. What cannot be opened for reading cannot be read."""
    try:
        at = real.lseek(fd, 0, os.SEEK_CUR)
        own = real.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        if not _is_a_name(fd):
            real.dup2(closed, fd, inheritable=False)
        return
    try:
        real.lseek(own, at, os.SEEK_SET)
    except OSError:
        pass
    real.dup2(own, fd, inheritable=False)
    real.close(own)


def _replace_what_walls_let_through(max_copied: int) -> None:
    """Files without a place in the file system (`memfd_create`) are before no wall: by the name of its descriptor anybody opens one for
    writing. So the copy has copies of them, or where they are too large none."""
    copies: dict[tuple[int, int], int] = {}
    closed = real.open("/", os.O_PATH | os.O_CLOEXEC)
    for fd in map(int, real.listdir("/proc/self/fd")):
        try:
            status = real.fstat(fd)
            # A copy may have the number of what listed them.
            if not stat.S_ISREG(status.st_mode) or fd in copies.values():
                continue
            real.close(real.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            continue
        identity = (status.st_dev, status.st_ino)
        try:
            if identity not in copies:
                copies[identity], max_copied = _copy_of(fd, status.st_size, max_copied)
            at = real.lseek(fd, 0, os.SEEK_CUR)
            real.dup2(copies[identity], fd, inheritable=False)
            _reopen_for_reading(fd, closed)
            real.lseek(fd, at, os.SEEK_SET)
        except OSError:
            real.dup2(closed, fd, inheritable=False)
    for fd in (*copies.values(), closed):
        real.close(fd)


def _copy_of(fd: int, size: int, room: int) -> tuple[int, int]:
    """Another such file with the same contents, and how much room for more is left. What was never written takes none."""
    if real.memfd_create is None:
        raise OSError(errno.ENOSYS, "memfd_create")
    copy = real.memfd_create("copy")
    try:
        real.ftruncate(copy, size)
        begin = _next(fd, 0, os.SEEK_DATA)
        while begin is not None:
            end = _next(fd, begin, os.SEEK_HOLE) or size
            room -= end - begin
            if room < 0:
                raise OSError(errno.EFBIG, "too large to be copied")
            real.lseek(copy, begin, os.SEEK_SET)
            while begin < end:
                sent = real.sendfile(copy, fd, begin, end - begin)
                if not sent:
                    break
                begin += sent
            begin = _next(fd, end, os.SEEK_DATA)
    except OSError:
        real.close(copy)
        raise
    return copy, room


def _next(fd: int, at: int, what: int) -> int | None:
    """Where the next data or hole begins."""
    try:
        return real.lseek(fd, at, what)
    except OSError:
        return None


def _is_a_name(fd: int) -> bool:
    """Whether the descriptor is for names only (O_PATH)."""
    return bool(real.fcntl(fd, F_GETFL) & os.O_PATH)


def _is_harmless(device: int) -> bool:
    return real.major(device) == _HARMLESS_MAJOR and real.minor(device) in _HARMLESS_MINORS


def _use_for_temporary_files(private: str) -> None:
    try:
        for name in ("TMPDIR", "TEMP", "TMP"):
            os.environ.pop(name, None)
        os.environ["TMPDIR"] = private
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is not None:
            tempfile.tempdir = private
    except Exception:
        # The test replaced them by something else.
        pass
