"""Locks a forked worker into its keeper's namespaces. Runs in the template (`enter_pid_namespace`) and in the child before user code.

System calls that Python has no functions for go through ctypes. Each failure is an OSError that names the step.
"""

from __future__ import annotations

import base64
import os
import platform
import resource
import struct
import sys
from typing import Any

try:
    import ctypes
except ImportError:
    ctypes = None  # type: ignore[assignment]

CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNS = 0x00020000
_REST = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63
_SECCOMP_SET_MODE_FILTER = 1
_LANDLOCK_RESTRICT_SELF = 446
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CPU_GRACE_S = 2

_libc: Any = None
_prctl: Any = None


def available() -> str | None:
    """None if this interpreter can confine, otherwise why it cannot."""
    if ctypes is None:
        return "this Python has no ctypes"
    if sys.platform != "linux":
        return "confinement needs Linux"
    if platform.machine() not in _SECCOMP:
        return f"confinement is not known on {platform.machine()}"
    return None


def prepare() -> None:
    """Loads what the calls need, so that it is shared by all children."""
    global _libc, _prctl
    if _libc is None and ctypes is not None:
        _libc = ctypes.CDLL(None, use_errno=True)
        # Looking it up makes an object.
        _prctl = _libc.prctl


def become_subreaper() -> None:
    """Makes this process inherit the orphans below it. Survives `execve`."""
    prepare()
    if _libc is not None:
        _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "becoming a subreaper")


def enter_pid_namespace(namespace: int) -> None:
    """Lets the next child be born in this pid namespace (a pidfd of a process in it, or a namespace descriptor)."""
    _setns(namespace, CLONE_NEWPID, "entering the pid namespace")


def enter_rest(keeper: int) -> None:
    """Enters the keeper's other namespaces."""
    _setns(keeper, _REST, "entering the namespaces")


def lock(confine: dict[str, Any], ruleset: int | None) -> None:
    """Gives up every right that the session shall not have. Cannot be undone."""
    for name, limit in (confine.get("rlimits") or {}).items():
        room = 0
        if name == "RLIMIT_FSIZE":
            # Whoever tries how much fits into /tmp needs a file that is larger; `close_limits` comes after that.
            room = ((confine.get("tmp_mb") or 0) + 1) << 20
        elif name == "RLIMIT_CPU":
            # At the limit comes a signal that says what it was; the one that anything could be, a little later.
            room = limit + _CPU_GRACE_S
        _limit(name, limit, room)
    _set_ids(confine.get("uid"), confine.get("gid"))
    # A change of uid makes /proc/self root's, and checkpoints read it.
    _check(_prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "becoming dumpable")
    if confine.get("cwd"):
        os.chdir(confine["cwd"])
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "giving up new privileges")
    _drop_capabilities()
    if ruleset is not None:
        _check(_libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "restricting by Landlock")
    if confine.get("seccomp"):
        _filter_system_calls(base64.b64decode(confine["seccomp"]))


def fork() -> int:
    """A copy of this process that must do nothing but end: no hook of Python's has run in it."""
    pid: int = _libc.fork()
    _check(pid, "forking")
    return pid


def close_limits(confine: dict[str, Any]) -> None:
    """Takes back what was left of a limit for trying another one."""
    limit = (confine.get("rlimits") or {}).get("RLIMIT_FSIZE")
    if limit is not None:
        _limit("RLIMIT_FSIZE", limit)


def unshare_nothing() -> None:
    """A call that always works, unless system calls are filtered."""
    _check(_libc.unshare(0), "unsharing nothing")


def _setns(namespace: int, kinds: int, step: str) -> None:
    prepare()
    _check(_libc.setns(namespace, kinds), step)


def _limit(name: str, limit: int, room: int = 0) -> None:
    """Sets a limit; with more room, it can be raised to that."""
    try:
        kind = getattr(resource, name)
        highest = resource.getrlimit(kind)[1]
        # Whoever has less already has no right to more.
        if highest != resource.RLIM_INFINITY:
            limit, room = min(limit, highest), min(room, highest)
        resource.setrlimit(kind, (limit, max(limit, room)))
    except (AttributeError, ValueError, OSError) as error:
        raise OSError(getattr(error, "errno", None) or 22, f"setting {name} to {limit}: {error}") from error


def _set_ids(uid: int | None, gid: int | None) -> None:
    try:
        if gid is not None:
            _drop_groups()
            os.setresgid(gid, gid, gid)
        if uid is not None:
            os.setresuid(uid, uid, uid)
    except OSError as error:
        raise OSError(error.errno, f"becoming uid {uid}, gid {gid}: {error.strerror}") from error


def _drop_groups() -> None:
    try:
        os.setgroups([])
    except PermissionError:
        # Where an unprivileged user made the namespace, `setgroups` is denied and the groups mean nothing inside.
        pass


def _drop_capabilities() -> None:
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if _prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    # Neither call can fail for lack of rights; a kernel without ambient capabilities has none to clear.
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "dropping capabilities")


def _filter_system_calls(program: bytes) -> None:
    instructions = ctypes.create_string_buffer(program, len(program))
    instruction_bytes = 8
    packed = struct.pack("HxxxxxxQ", len(program) // instruction_bytes, ctypes.addressof(instructions))
    pointer = ctypes.create_string_buffer(packed, len(packed))
    _check(_libc.syscall(_SECCOMP[platform.machine()], _SECCOMP_SET_MODE_FILTER, 0, pointer), "filtering system calls")


def _check(result: int, step: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
