"""The worker's own descriptors, and what a frozen copy does with everybody else's. Runs in the worker and in its frozen copies.

A frozen copy that kept a socket or a pipe open would keep its peer from ever seeing the end; one that shared a file would share its
position. So it gives up the first kind and reopens the second before it goes to sleep. What a copy does in which code
runs without becoming the session is in secluded.py.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import socket
import stat
import sys
from typing import Iterable, NamedTuple

_HIGHEST_BASE = 1000
_ROOM = 32
_ENDLESS = sys.maxsize

_ANONYMOUS = "anon_inode:"
_KINDS = {socket.SOCK_STREAM: "TCP", socket.SOCK_DGRAM: "UDP"}


def move_high(fd: int) -> int:
    """Moves a descriptor out of the way of the numbers that programs get and guess. The copy is close-on-exec."""
    limit = limit_of_numbers()
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, min(limit - _ROOM, _HIGHEST_BASE)))
    os.close(fd)
    return moved


def limit_of_numbers() -> int:
    """The descriptors that this process can make have numbers below this."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENDLESS if limit == resource.RLIM_INFINITY else limit


class Foreign(NamedTuple):
    """An open descriptor of the program's that a frozen copy has to treat."""

    fd: int
    is_file: bool
    position: int


def survey(ours: set[int]) -> tuple[list[Foreign], list[int]]:
    """The program's sockets, pipes and files, and those descriptors on which it holds a lock."""
    foreign: list[Foreign] = []
    locked: list[int] = []
    streams = {_identity(fd) for fd in (1, 2)}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd < 3 or fd in ours:
            continue
        try:
            status = os.fstat(fd)
        except OSError:
            continue
        mode = status.st_mode
        if stat.S_ISREG(mode):
            if _holds_lock(fd):
                locked.append(fd)
            foreign.append(Foreign(fd, True, _position(fd)))
        elif stat.S_ISDIR(mode):
            if _holds_lock(fd):
                locked.append(fd)
        elif stat.S_ISSOCK(mode) or (stat.S_ISFIFO(mode) and (status.st_dev, status.st_ino) not in streams):
            foreign.append(Foreign(fd, False, 0))
    return foreign, locked


def neuter(foreign: Iterable[Foreign]) -> list[str]:
    """Gives up sockets and pipes and gives files a position of their own. Returns what was given up, in words."""
    lost: list[str] = []
    dead = _dead_end()
    for fd, is_file, position in foreign:
        try:
            if is_file:
                _reopen(fd, position)
            else:
                lost.append(f"a {_describe(fd)} (fd {fd})")
                os.dup2(dead, fd, inheritable=os.get_inheritable(fd))
        except OSError:
            continue
    os.close(dead)
    return lost


def reopen(foreign: Iterable[Foreign]) -> None:
    """Gives files a position of their own, where they were."""
    for fd, is_file, position in foreign:
        try:
            if is_file:
                _reopen(fd, position)
        except OSError:
            continue


def leave_queues(foreign: Iterable[Foreign], exempt: set[int]) -> list[str]:
    """In a branch, which lives beside its original: gives up what else they would share, such as counters, timers and terminals, and has
    selectors and places in directories of its own. Returns what was given up, in words."""
    gone = {fd for fd, is_file, _ in foreign if not is_file}
    lost: list[str] = []
    dead = _dead_end()
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        if fd < 3 or fd == dead or fd in gone or fd in exempt:
            continue
        try:
            mode, link = os.fstat(fd).st_mode, os.readlink(f"/proc/self/fd/{fd}")
            kind = link[len(_ANONYMOUS) :].strip("[]") if link.startswith(_ANONYMOUS) else "terminal" if os.isatty(fd) else ""
            if stat.S_ISDIR(mode):
                _reopen(fd, _position(fd))
            elif kind == "eventpoll":
                _select_anew(fd, gone)
            # The descriptor of a process is but its name.
            elif kind and kind != "pidfd":
                lost.append(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} (fd {fd})")
                os.dup2(dead, fd, inheritable=os.get_inheritable(fd))
        except OSError:
            continue
    os.close(dead)
    return lost


def _select_anew(fd: int, gone: set[int]) -> None:
    """Puts a selector of its own in the place of one, for what it waited for that is still there."""
    own = select.epoll()
    for line in read_proc(f"/proc/self/fdinfo/{fd}").splitlines():
        words = line.split()
        if words[:1] != [b"tfd:"] or int(words[1]) in gone:
            continue
        try:
            own.register(int(words[1]), int(words[3], 16))
        except (OSError, ValueError):
            # It was closed, and another process had it still.
            continue
    os.dup2(own.fileno(), fd, inheritable=os.get_inheritable(fd))
    own.close()


def replace_by_dead_ends(descriptors: Iterable[int]) -> None:
    """Closes these but keeps their numbers taken."""
    dead = _dead_end()
    for fd in descriptors:
        os.dup2(dead, fd, inheritable=False)
    os.close(dead)


def _dead_end() -> int:
    """A descriptor that reads as ended and refuses writes."""
    one, other = socket.socketpair()
    other.close()
    return one.detach()


def _identity(fd: int) -> tuple[int, int]:
    try:
        status = os.fstat(fd)
    except OSError:
        return (-1, -1)
    return (status.st_dev, status.st_ino)


def _position(fd: int) -> int:
    try:
        return os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:
        return 0


def _holds_lock(fd: int) -> bool:
    return b"\nlock:" in read_proc(f"/proc/self/fdinfo/{fd}")


def _reopen(fd: int, position: int) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL)
    own = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    os.lseek(own, position, os.SEEK_SET)
    os.dup2(own, fd, inheritable=os.get_inheritable(fd))
    os.close(own)


def _describe(fd: int) -> str:
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return "pipe"
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            family, kind = copy.family, copy.type
    except OSError:
        return "socket"
    if family == socket.AF_UNIX:
        return "Unix socket"
    if family in (socket.AF_INET, socket.AF_INET6):
        return f"{_KINDS.get(kind, 'network')} socket"
    return "socket"


def children_of_this_process() -> dict[int, str]:
    """Living or unreaped child processes by pid, with their command names."""
    found: dict[int, str] = {}
    for task in os.listdir("/proc/self/task"):
        for pid in map(int, read_proc(f"/proc/self/task/{task}/children").split()):
            found[pid] = read_proc(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    return found


def read_proc(path: str) -> bytes:
    """The start of a file of the kernel's, empty if there is none. Several times faster than `open` for a few bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)
