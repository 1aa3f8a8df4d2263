"""Faults of the machine: disks that are full, clocks that jump."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

from arena import Arena, touch_all
from fault import Effect, kind
from words import Wrong, expect

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
DISK_MB = 48


def small_disk(path: Path) -> None:
    """In a mount namespace of this process and all it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")
    if libc.mount(b"none", str(path).encode(), b"tmpfs", 0, f"size={DISK_MB}m,mode=0700".encode()) != 0:
        raise OSError(ctypes.get_errno(), "no small disk")


def why_no_disk() -> str:
    return "" if os.getuid() == 0 else "a small disk can be mounted by root only"
