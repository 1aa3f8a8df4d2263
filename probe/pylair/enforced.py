"""Tries the walls around a confined worker, before it runs anybody's code. Runs in the child, after `confine.lock`.

Each attempt is one that has to fail; what is returned is how it failed, by the name of its error, and `None` where it did not.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import socket
from typing import Any, Callable

from . import confine

# An address that nobody has (RFC 5737), and a port that nobody would serve.
_NOWHERE = ("203.0.113.1", 9)
_STATUS = ("CapBnd", "CapEff", "NoNewPrivs", "Seccomp")
_SHOWN = ("RLIMIT_NOFILE", "RLIMIT_NPROC")


class _NotTriedError(Exception):
    pass


def tried(confined: dict[str, Any]) -> dict[str, Any]:
    """How each attempt failed. A fraction of a millisecond, and nothing is left behind."""
    trial = confined.get("trial") or {}
    limits = confined.get("rlimits") or {}
    tried = {
        "read": _failure(_read, trial.get("canary", "")),
        "write": _failure(_write, "/usr/.pylair-was-here"),
        "daemon": _failure(_connect, trial.get("socket", "")),
        "network": _failure(_reach, socket.SOCK_STREAM),
        "datagrams": _failure(_reach, socket.SOCK_DGRAM),
        "signal": _failure(_signal, trial.get("pid", 1), trial.get("started")),
        "memory": _failure(_map, limits.get("RLIMIT_AS", 0)),
        "processes": _failure(_fork_one_more, limits.get("RLIMIT_NPROC", 0)),
        "open_files": _failure(_open_one_more, limits.get("RLIMIT_NOFILE", 0)),
        "tmp": _failure(_fill, confined.get("tmp_mb", 0)),
        "calls": _failure(confine.unshare_nothing),
        "others": _others(),
        "status": _status(),
    }
    confine.close_limits(confined)
    tried["file_size"] = _failure(_lengthen, limits.get("RLIMIT_FSIZE", 0))
    tried["held"] = {name: resource.getrlimit(getattr(resource, name))[1] for name in _SHOWN}
    return tried


def _failure(attempt: Callable[..., Any], *arguments: Any) -> str | None:
    try:
        attempt(*arguments)
    except _NotTriedError:
        return None
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:
        return type(error).__name__
    return None


def _signal(pid: int, started: int | None) -> None:
    os.kill(pid, 0)
    # In a container the daemon has a small number, which here is one of our own. Who cannot be told is taken for the daemon.
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            found = int(stat.read().rpartition(b") ")[2].split()[19])
    except OSError:
        return
    if started is not None and found != started:
        raise ProcessLookupError(errno.ESRCH, "somebody else")


def _read(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(path)


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def _reach(kind: int) -> None:
    with socket.socket(socket.AF_INET, kind) as client:
        client.setblocking(False)
        try:
            client.connect(_NOWHERE)
        except BlockingIOError:
            # It is on its way.
            pass


def _map(limit: int) -> None:
    if limit:
        mmap.mmap(-1, limit).close()


def _fork_one_more(limit: int) -> None:
    """With room for one process, which is this one: the kernel counts ours if it refuses another."""
    if not limit:
        raise _NotTriedError
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        # Not by Python's own fork, which would tell everybody who wants to know of one.
        pid = confine.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)


def _open_one_more(limit: int) -> None:
    """The number after the last that there may be."""
    if limit:
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, limit))


def _lengthen(limit: int) -> None:
    if limit:
        with _scratch("/tmp", ".") as file:
            os.ftruncate(file.fileno(), limit + 1)


def _fill(megabytes: int) -> None:
    """More at once than there is: the kernel refuses it before it takes any."""
    if not megabytes:
        raise _NotTriedError
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Not the limit on files: it may be the lower one, and would stop this before /tmp does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[1], before[1]))
    try:
        with _scratch("/tmp") as file:
            os.posix_fallocate(file.fileno(), 0, (megabytes + 1) << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _scratch(*directories: str) -> Any:
    """A file without a name. Where none can be made, nothing was tried."""
    for directory in directories:
        try:
            return os.fdopen(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600), "r+b")
        except OSError:
            continue
    raise _NotTriedError


def _others() -> int:
    """Processes that can be seen and are neither this one nor its keeper."""
    mine = {1, os.getpid()}
    return sum(name.isdigit() and int(name) not in mine for name in os.listdir("/proc"))


def _status() -> dict[str, str]:
    with open("/proc/self/status") as status:
        lines = (line.split(":", 1) for line in status)
        return {name: value.strip() for name, value in lines if name in _STATUS}
