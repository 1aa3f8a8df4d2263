"""System calls that Python has no functions for, bound when this is imported, before any code of the user's runs. Used by what makes copies
of a process: mappings.py and walls.py.

Each failure is an OSError that names the step.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Any

try:
    import ctypes
except ImportError:
    ctypes = None  # type: ignore[assignment]

PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 16, 32
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_NOWHERE = (1 << (8 * struct.calcsize("P"))) - 1

_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_COPY_BYTES = 1 << 20


class Kernel:
    """`why_not` says why no call can be made, if none can."""

    def __init__(self) -> None:
        self.why_not: str | None = None
        if ctypes is None:
            self.why_not = "this Python has no ctypes"
        elif not sys.platform.startswith("linux"):
            self.why_not = "this is not Linux"
        if self.why_not is not None:
            return
        # Held here: a test may replace functions of modules.
        self._get_errno: Any = ctypes.get_errno
        self._strerror: Any = os.strerror
        self._close: Any = os.close
        self._buffer: Any = ctypes.create_string_buffer
        self._address_of: Any = ctypes.addressof
        self._string_at: Any = ctypes.string_at
        self._memmove: Any = ctypes.memmove
        libc = ctypes.CDLL(None, use_errno=True)
        address, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._syscall: Any = self._bound(libc.syscall, ctypes.c_long, [ctypes.c_long] * 5)
        self._prctl: Any = self._bound(libc.prctl, integer, [integer] + [ctypes.c_ulong] * 4)
        mmap = libc.mmap64 if hasattr(libc, "mmap64") else libc.mmap
        self._mmap: Any = self._bound(mmap, address, [address, size, integer, integer, integer, ctypes.c_int64])
        self._mremap: Any = self._bound(libc.mremap, address, [address, size, size, integer, address])
        self._munmap: Any = self._bound(libc.munmap, integer, [address, size])
        self._mprotect: Any = self._bound(libc.mprotect, integer, [address, size, integer])
        self._capget: Any = self._bound(libc.capget, integer, [address, address])
        self._capset: Any = self._bound(libc.capset, integer, [address, address])

    @staticmethod
    def _bound(function: Any, result: Any, arguments: list[Any]) -> Any:
        function.restype, function.argtypes = result, arguments
        return function

    # Memory.

    def map_private(self, start: int, length: int, protection: int, fd: int, offset: int) -> None:
        """Puts a private mapping of a file in the place of what is mapped there."""
        self._map(start, length, protection, _MAP_PRIVATE | _MAP_FIXED, fd, offset)

    def map_shared(self, start: int, length: int, protection: int, fd: int, offset: int) -> None:
        self._map(start, length, protection, _MAP_SHARED | _MAP_FIXED, fd, offset)

    def map_anywhere(self, length: int, fd: int) -> int:
        """A shared mapping for reading of the beginning of a file. Returns its address."""
        return self._map(0, length, PROT_READ, _MAP_SHARED, fd, 0)

    def unmap(self, start: int, length: int) -> None:
        self._check(self._munmap(start, length), "unmapping memory")

    def copy_in_place(self, start: int, length: int, protection: int) -> None:
        """Replaces what is mapped there, which must be readable, by private memory with the same contents."""
        copy = self._map(0, length, PROT_READ | PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
        nothing = bytes(_COPY_BYTES)
        for at in range(0, length, _COPY_BYTES):
            count = min(_COPY_BYTES, length - at)
            # What is not written takes no memory.
            if self._string_at(start + at, count) != nothing[:count]:
                self._memmove(copy + at, start + at, count)
        moved = self._mremap(copy, length, length, _MREMAP_MAYMOVE | _MREMAP_FIXED, start)
        self._check(-1 if moved in (None, _NOWHERE) else 0, "moving memory")
        self.protect(start, length, protection)

    def protect(self, start: int, length: int, protection: int) -> None:
        self._check(self._mprotect(start, length, protection), "protecting memory")

    def _map(self, start: int, length: int, protection: int, flags: int, fd: int, offset: int) -> int:
        address = self._mmap(start, length, protection, flags, fd, offset)
        self._check(-1 if address in (None, _NOWHERE) else 0, "mapping memory")
        return int(address)

    # Rights.

    def landlock_abi(self) -> int:
        """The version of Landlock that this kernel has; 0 if it has none."""
        if self.why_not is not None:
            return 0
        return max(0, self._syscall(_LANDLOCK_CREATE_RULESET, 0, 0, _LANDLOCK_CREATE_RULESET_VERSION, 0))

    def restrict_files(self, attributes: bytes, rules: list[tuple[int, int]]) -> None:
        """Puts this thread and its children under a Landlock ruleset with these rules: rights, and a descriptor of where they are given."""
        handled = self._buffer(attributes, len(attributes))
        ruleset = self._syscall(_LANDLOCK_CREATE_RULESET, self._address_of(handled), len(attributes), 0, 0)
        self._check(ruleset, "making a Landlock ruleset")
        try:
            for rights, fd in rules:
                rule = self._buffer(struct.pack("=Qi", rights, fd), 12)
                added = self._syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, self._address_of(rule), 0)
                self._check(added, "adding a Landlock rule")
            self.give_up_new_privileges()
            self._check(self._syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0, 0), "restricting by Landlock")
        finally:
            self._close(ruleset)

    def give_up_new_privileges(self) -> None:
        """Without it neither Landlock nor a filter is for ordinary users."""
        self._check(self._prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "giving up new privileges")

    def give_up_capabilities(self, given_up: int) -> None:
        """Takes these of root's powers, a bit each, from this thread and what it starts, which must have given up new privileges."""
        header = self._buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), 8)
        data = self._buffer(24)
        self._check(self._capget(self._address_of(header), self._address_of(data)), "reading capabilities")
        low, high = ~given_up & 0xFFFFFFFF, ~given_up >> 32 & 0xFFFFFFFF
        left = [mine & mask for mine, mask in zip(struct.unpack("=6I", data.raw), (low, low, low, high, high, high))]
        data.raw = struct.pack("=6I", *left)
        self._check(self._capset(self._address_of(header), self._address_of(data)), "giving up capabilities")

    def adopt_orphans(self) -> None:
        """Makes this process the parent of every process below it that loses its own."""
        if self.why_not is None:
            self._check(self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "adopting orphans")

    def filter_calls(self, program: bytes) -> None:
        """Puts this thread and its children under a seccomp filter."""
        instructions = self._buffer(program, len(program))
        pointer = self._buffer(struct.pack("@HP", len(program) // 8, self._address_of(instructions)), struct.calcsize("@HP"))
        filtered = self._prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._address_of(pointer), 0, 0)
        self._check(filtered, "filtering system calls")

    def _check(self, result: int, step: str) -> None:
        if result < 0:
            number = self._get_errno()
            raise OSError(number, f"{step}: {self._strerror(number)}")


kernel = Kernel()
