"""Keeps the standard library's fork hooks asleep in a template. Must be imported before the modules that register them.

threading, logging, random and asyncio register functions that run around every fork, for the sake of other threads and of locks they
may hold. A template has neither, and there the hooks would only make a third of a megabyte of shared memory each worker's own. So one
set of hooks stands for them all, and calls them only where it was woken up: in a worker, for its own forks.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

Hook = Callable[[], Any]

# Where everybody else finds it.
_OS = sys.modules["os"].__dict__
_register = os.register_at_fork
_before: list[Hook] = []
_in_child: list[Hook] = []
_in_parent: list[Hook] = []
_awake = False


def _collect(*, before: Hook | None = None, after_in_child: Hook | None = None, after_in_parent: Hook | None = None) -> None:
    if before is not None:
        # As the interpreter does: the last to be registered is the first to run.
        _before.insert(0, before)
    if after_in_child is not None:
        _in_child.append(after_in_child)
    if after_in_parent is not None:
        _in_parent.append(after_in_parent)


def _run(hooks: list[Hook]) -> None:
    for hook in hooks:
        try:
            hook()
        except BaseException:
            # As the interpreter has it: the others run all the same. What it uses may have been replaced by the program.
            continue


_register(
    before=lambda: _awake and _run(_before),
    after_in_child=lambda: _awake and _run(_in_child),
    after_in_parent=lambda: _awake and _run(_in_parent),
)
_OS["register_at_fork"] = _collect


def stop() -> None:
    """What is registered from here on is the user's, and runs at every fork."""
    _OS["register_at_fork"] = _register


def in_child(hook: Hook) -> None:
    """Has this run in every child that a worker's program forks."""
    _in_child.append(hook)


def wake_up() -> bool:
    """Lets the hooks run from here on. Returns whether they were asleep."""
    global _awake
    asleep = not _awake
    _awake = True
    return asleep
