"""What a copy of a process may not do: change the file system, reach anybody over a network, signal its original. Called by secluded.py.

Three walls, inherited by whatever the copy starts: Landlock for files and signals, a seccomp filter for what Landlock does not know (modes,
owners, times, attributes, flags and leases of files, connections and datagrams, System V and POSIX queues, limits and priorities of other
processes, clocks, network interfaces and other things of the whole machine), and where the kernel lacks one of them an audit hook of
Python's own, which code in C can pass. What is missing is said. The filter also keeps what a copy starts in the copy's process group.
Root also gives up its powers over the machine.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import Any, NamedTuple

from .kernel import kernel
from .real import real

_WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
# To remove and make entries of directories, of every kind.
_ENTRIES = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_SCOPES = 1 | 2
_NET = 1 | 2

# What programs write to and nobody reads.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")

# Powers of root's over the machine, which no reading needs. With those over its administration (21) or over checkpoints (40) a process
# opens the memory that is mapped in it anew, for writing (`/proc/self/map_files`), and no wall stands before that.
_POWERS = sum(1 << number for number in (9, 12, 16, 17, 20, 21, 22, 25, 26, 27, 32, 33, 38, 39, 40))

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_AF_UNIX = 1


class _Numbers(NamedTuple):
    """The system calls of one machine that the filter knows."""

    architecture: int
    # Modes, owners and times of files, and their attributes.
    files: tuple[int, ...]
    attributes: tuple[int, ...]
    # shm*, sem* and msg* of System V, and mq_*.
    queues: tuple[int, ...]
    # Clocks, names, keys, mounts, modules, accounting, terminals, permission to open files and the like of the whole machine.
    machine: tuple[int, ...]
    # setpgid and setsid.
    groups: tuple[int, ...]
    # prlimit64, sched_*, move_pages and migrate_pages, whose first argument is a process.
    of_process: tuple[int, ...]
    setpriority: int
    ioprio_set: int
    ioctl: int
    fcntl: int
    truncate: int
    connect: int
    bind: int
    # socket and socketpair.
    sockets: tuple[int, int]
    sendto: int


# Late numbers are the same everywhere: fchmodat2, setxattrat, removexattrat, file_setattr, io_uring_setup, quotactl_fd, process_madvise,
# process_mrelease, and those that make and change mounts.
_EVERYWHERE = (452, 463, 466, 469, 425, 443, 440, 448, 428, 429, 430, 431, 432, 433, 442, 467)
# Requests of file systems, by the letter that they have in common (ext4, XFS, Btrfs and what all have, versions), change something even
# through a descriptor that only reads, unless the kernel only hands something out. Those of 0x89 and
# 0x8B change network interfaces, through a socket of any family.
_LETTERS = (0x66, 0x58, 0x94, 0x76, 0x89, 0x8B)
_HANDS_OUT, _DIRECTIONS = 2, range(4)
_LETTER_AND_DIRECTION = 0xC000FF00
# The exception: FS_IOC_SET_ENCRYPTION_POLICY. TIOCSTI types into a terminal, TIOCLINUX pastes.
_REQUESTS = (0x800C6613, 0x5412, 0x541C)
# A lease makes whoever opens the file for writing wait until its holder gives it up.
_F_SETLEASE = 1024
# A datagram socket, also one of a pair, sends to any address that `sendmsg` is given in memory, where a filter cannot look.
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF
_MACHINES = {
    "x86_64": _Numbers(
        architecture=0xC000003E,
        files=(90, 91, 92, 93, 94, 260, 268, 132, 235, 261, 280),
        attributes=(188, 189, 190, 197, 198, 199),
        queues=(29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241, 242, 243, 244),
        machine=(
            *(103, 153, 155, 159, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 175, 176, 179),
            *(227, 246, 248, 249, 250, 298, 300, 305, 313, 320, 321),
        ),
        groups=(109, 112),
        of_process=(302, 142, 144, 203, 314, 279, 256),
        setpriority=141,
        ioprio_set=251,
        ioctl=16,
        fcntl=72,
        truncate=76,
        connect=42,
        bind=49,
        sockets=(41, 53),
        sendto=44,
    ),
    "aarch64": _Numbers(
        architecture=0xC00000B7,
        files=(52, 53, 54, 55, 88),
        attributes=(5, 6, 7, 14, 15, 16),
        queues=(180, 181, 182, 183, 184, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196),
        machine=(
            *(39, 40, 41, 51, 58, 60, 89, 104, 105, 106, 112, 116, 142, 161, 162, 170, 171),
            *(217, 218, 219, 224, 225, 241, 262, 266, 273, 280, 294),
        ),
        groups=(154, 157),
        of_process=(261, 118, 119, 122, 274, 239, 238),
        setpriority=140,
        ioprio_set=30,
        ioctl=29,
        fcntl=25,
        truncate=45,
        connect=203,
        bind=200,
        sockets=(198, 199),
        sendto=206,
    ),
}


def put_up(private: str | None, original: int, sentence: str) -> list[str]:
    """Puts all walls around this thread and what it starts. Files can be changed below `private` only. Returns what is missing."""
    missing = []
    abi = kernel.landlock_abi()
    why = kernel.why_not or "the kernel has none: it came with Linux 5.13 and can be switched off"
    if abi:
        try:
            _restrict_files(abi, private)
        except OSError as error:
            abi, why = 0, str(error.strerror)
    if not abi:
        missing.append(f"Landlock ({why})")
    filtered = _filter_calls(abi)
    if filtered is not None:
        missing.append(f"a filter of system calls ({filtered})")
    try:
        if kernel.why_not is None:
            kernel.give_up_capabilities(_POWERS)
    except OSError:
        # A filter of the program's own.
        pass
    if missing or abi < 6:
        sys.addaudithook(_Hook(private, original, sentence, files=not abi, calls=filtered is not None))
    return missing


def _restrict_files(abi: int, private: str | None) -> None:
    rights = _WRITE_FILE | _ENTRIES
    rights |= (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    attributes = struct.pack("=QQQ", rights, _NET if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    opened: list[tuple[int, int]] = []
    try:
        if private is not None:
            opened.append((rights, real.open(private, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)))
        for device in _DEVICES:
            try:
                opened.append((rights & (_WRITE_FILE | _TRUNCATE | _IOCTL_DEV), real.open(device, os.O_PATH | os.O_CLOEXEC)))
            except OSError:
                continue
        kernel.restrict_files(attributes[: 24 if abi >= 6 else 16 if abi >= 4 else 8], opened)
    finally:
        for _, fd in opened:
            real.close(fd)


def _filter_calls(abi: int) -> str | None:
    """Refuses the calls that Landlock does not know. Returns why not, if not."""
    program = _PROGRAM_WITH_TRUNCATE if abi < 3 else _PROGRAM
    if kernel.why_not is not None or program is None:
        return kernel.why_not or f"it is not known for {_MACHINE}"
    try:
        kernel.give_up_new_privileges()
        kernel.filter_calls(program)
    except OSError as error:
        return str(error.strerror)
    return None


def _program(numbers: _Numbers | None, *more: int) -> bytes | None:
    """The filter, in the machine code that the kernel takes."""
    if numbers is None:
        return None
    not_permitted, denied = _ERRNO | errno.EPERM, _ERRNO | errno.EACCES
    code = [
        # The architecture: others have other numbers.
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, numbers.architecture),
        (_RETURN, 0, 0, not_permitted),
        (_LOAD, 0, 0, 0),
        # The numbers of x32, which are in no list.
        (_AT_LEAST, 0, 1, 0x40000000),
        (_RETURN, 0, 0, not_permitted),
    ]
    for number in (*numbers.files, *numbers.attributes, *numbers.queues, *numbers.machine, *_EVERYWHERE, *more):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, not_permitted)]
    # They succeed and do nothing: whatever a copy starts stays in its process group, and ends with it.
    for number in numbers.groups:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO)]
    # A process may change itself, which is called 0, and threads of its own by no other name.
    for number in numbers.of_process:
        code += _unless(number, [(16, 0)], not_permitted)
    code += _unless(numbers.setpriority, [(16, os.PRIO_PROCESS), (24, 0)], not_permitted)
    code += _unless(numbers.ioprio_set, [(16, 1), (24, 0)], not_permitted)
    code += _refused_requests(numbers.ioctl, not_permitted)
    code += [(_EQUAL, 0, 4, numbers.fcntl), (_LOAD, 0, 0, 24), (_EQUAL, 0, 1, _F_SETLEASE)]
    code += [(_RETURN, 0, 0, denied), (_RETURN, 0, 0, _ALLOW)]
    # A name that a copy takes is one that its original cannot have.
    for number in (numbers.connect, numbers.bind):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, denied)]
    # Only sockets between processes of this machine that need a connection, which a pair has.
    for number in numbers.sockets:
        code += [(_EQUAL, 0, 9, number), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, denied)]
        code += [(_LOAD, 0, 0, 24), (_AND, 0, 0, _SOCK_TYPE_MASK), (_EQUAL, 1, 0, _SOCK_STREAM), (_EQUAL, 0, 1, _SOCK_SEQPACKET)]
        code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, denied)]
    # Both halves of the address that something is sent to.
    code += [(_EQUAL, 0, 6, numbers.sendto), (_LOAD, 0, 0, 48), (_EQUAL, 0, 3, 0), (_LOAD, 0, 0, 52), (_EQUAL, 0, 1, 0)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, denied)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _unless(number: int, arguments: list[tuple[int, int]], refusal: int) -> list[tuple[int, int, int, int]]:
    """Refuses a call unless the lower halves of these arguments, by their places, are these."""
    checks = [
        instruction for place, value in arguments for instruction in ((_LOAD, 0, 0, place), (_EQUAL, 1, 0, value), (_RETURN, 0, 0, refusal))
    ]
    return [(_EQUAL, 0, len(checks) + 1, number), *checks, (_RETURN, 0, 0, _ALLOW)]


def _refused_requests(ioctl: int, refusal: int) -> list[tuple[int, int, int, int]]:
    refused = [(request, 0xFFFFFFFF) for request in _REQUESTS]
    refused += [(way << 30 | letter << 8, _LETTER_AND_DIRECTION) for letter in _LETTERS for way in _DIRECTIONS if way != _HANDS_OUT]
    checks = []
    for value, mask in refused:
        checks += [(_LOAD, 0, 0, 24), (_AND, 0, 0, mask), (_EQUAL, 0, 1, value), (_RETURN, 0, 0, refusal)]
    return [(_EQUAL, 0, len(checks) + 1, ioctl), *checks, (_RETURN, 0, 0, _ALLOW)]


def _is_refused_request(request: int) -> bool:
    letter, way = request >> 8 & 0xFF, request >> 30 & 3
    return request & 0xFFFFFFFF in _REQUESTS or (letter in _LETTERS and way != _HANDS_OUT)


_MACHINE = os.uname().machine
_KNOWN = _MACHINES.get(_MACHINE) if sys.maxsize > 1 << 32 else None
# Made before there is a copy, which has little time. Landlock knows `truncate` from its third version on.
_PROGRAM = _program(_KNOWN)
_PROGRAM_WITH_TRUNCATE = _program(_KNOWN, _KNOWN.truncate) if _KNOWN is not None else None

# What the hook looks at, by the names of events.
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# By the arguments of the event that are paths.
_FILES = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.truncate": (0,),
}
_METADATA = {"os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr"}
# What goes on in a program cannot be seen here, nor what a database does.
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"}
_CONNECTIONS = {"socket.connect", "socket.sendto", "socket.bind"}
_SIGNALS = {"os.kill", "os.killpg"}


class _Hook:
    """Refuses what Python is about to do where the kernel does not."""

    def __init__(self, private: str | None, original: int, sentence: str, files: bool, calls: bool) -> None:
        self._private = private and os.path.realpath(private)
        self._originals = {original, -original, -1}
        self._sentence = sentence
        self._files, self._calls = files, calls
        self._path: Any = os.path.realpath
        self._fsdecode: Any = os.fsdecode
        self._refusal: Any = PermissionError

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SIGNALS:
            refused = arguments[0] in self._originals
        elif event == "open":
            refused = self._files and bool((arguments[2] or 0) & _WRITES) and self._is_outside(arguments[0])
        elif event in _FILES:
            refused = self._files and any(self._is_outside(arguments[at]) for at in _FILES[event])
        elif event in _METADATA:
            refused = self._calls and (isinstance(arguments[0], int) or self._is_outside(arguments[0]))
        elif event in _PROGRAMS:
            refused = self._files
        elif event == "resource.prlimit":
            refused = self._calls and arguments[0] != 0
        elif event == "fcntl.ioctl":
            refused = self._calls and _is_refused_request(arguments[1])
        elif event == "fcntl.fcntl":
            refused = self._calls and arguments[1] == _F_SETLEASE
        elif event == "socket.sendmsg":
            refused = self._calls and arguments[1] is not None
        elif event == "sqlite3.connect":
            refused = self._files and self._is_outside(arguments[0])
        else:
            refused = self._calls and event in _CONNECTIONS
        if refused:
            raise self._refusal(errno.EACCES, self._sentence)

    def _is_outside(self, path: Any) -> bool:
        """A descriptor was opened before, and so for reading."""
        if isinstance(path, int) or path in (":memory:", b":memory:", *_DEVICES):
            return False
        real_path = self._path(self._fsdecode(path))
        return self._private is None or not real_path.startswith(f"{self._private}/")
