"""Threads, locks and `poll` as the operating system has them, for code that runs beside an app. Imported by `app` and `serving`.

gevent replaces them by its own, whose time comes only when the app's loop lets it.
"""

from __future__ import annotations

import _thread
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
