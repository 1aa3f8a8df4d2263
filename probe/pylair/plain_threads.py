"""Threads, locks and `poll` as the operating system has them, for code that runs beside an app. Imported by `app`, `serving` and
what runs calls.

gevent replaces them by its own, whose time comes only when the app's loop lets it.
"""

from __future__ import annotations

import _thread
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _plain(module: Any, name: str) -> Any:
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        try:
            return monkey.get_original(module.__name__, name)
        except (AttributeError, KeyError):
            pass
    return getattr(module, name)


start_new_thread = _plain(_thread, "start_new_thread")
allocate_lock = _plain(_thread, "allocate_lock")
get_ident = _plain(_thread, "get_ident")
RLock = _plain(_thread, "RLock")
poll = _plain(select, "poll")
sleep = _plain(time, "sleep")


class Event:
    """Happens once. Any number of threads may wait for it."""

    def __init__(self) -> None:
        self._happened = False
        self._lock = allocate_lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._happened

    def set(self) -> None:
        if not self._happened:
            self._happened = True
            self._release()

    def wait(self, seconds: float = -1) -> bool:
        if not self._happened and self._lock.acquire(True, seconds):
            self._release()
        return self._happened

    def _release(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # Two threads set it at the same time.
            pass


def load_what_ending_needs() -> None:
    """Up to 3.13 a thread may end by `pthread_exit`, for which glibc opens a library, and aborts the process if it cannot: where a program
    is out of descriptors by then, or in a chroot. So it is opened while that works."""
    if sys.version_info >= (3, 14):
        return
    try:
        import _ctypes

        _ctypes.dlopen("libgcc_s.so.1", os.RTLD_NOW)  # type: ignore[attr-defined]
    except (ImportError, AttributeError, OSError):
        pass


def set_name(name: str) -> None:
    """Names the current thread for those who ask `threading`."""
    threading = sys.modules.get("threading")
    if threading is not None:
        try:
            threading.current_thread().name = name
        except Exception:
            pass


def set_system_name(name: str) -> None:
    """Names the current thread for the kernel alone: a program that counts or joins its threads shall not come across it."""
    try:
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def forget_name() -> None:
    """`threading` up to 3.12 remembers threads for good that it did not start."""
    threading = sys.modules.get("threading")
    if threading is not None:
        try:
            threading._active.pop(get_ident(), None)
        except Exception:
            pass
