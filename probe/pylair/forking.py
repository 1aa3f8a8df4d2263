"""One hook around every fork of the process, for as long as an app is served. Called by `app`.

A hook cannot be taken out again. So there is one in a process however often a probe comes and goes; it knows nothing of the package, and
does nothing while nobody is served. It is kept where no module of the program's shows it: among the error handlers of `codecs`.
"""

from __future__ import annotations

import codecs
import functools
import os
import sys
from typing import Any, Callable

_NAME = "pylair.fork"
_HOOK = """
def hook(moment):
    if hook.target is not None:
        hook.target(moment)
"""


def watch(target: Callable[[str], None]) -> None:
    """From here on `target` is called with `before`, `parent`, and in the child with `child`, or `exec` if it will execute a program."""
    hook = _find_hook()
    if hook is None:
        namespace: dict[str, Any] = {"__builtins__": {}}
        exec(compile(_HOOK, "<pylair/forking.py>", "exec"), namespace)
        hook = namespace["hook"]
        hook.target = None
        codecs.register_error(_NAME, hook)
        os.register_at_fork(
            before=functools.partial(hook, "before"),
            after_in_parent=functools.partial(hook, "parent"),
            after_in_child=functools.partial(hook, "child"),
        )
    hook.target = _Guard(target)


def forget(target: Callable[[str], None]) -> None:
    hook = _find_hook()
    if hook is not None and hook.target is not None and hook.target.target == target:
        hook.target = None


def forget_imports() -> None:
    """In a child: modules of this package that another thread was importing are to be imported anew, and nobody holds their locks."""
    package = __name__.rpartition(".")[0] + "."
    for name, module in list(sys.modules.items()):
        if name.startswith(package) and getattr(getattr(module, "__spec__", None), "_initializing", False):
            sys.modules.pop(name, None)
    locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    for name in list(locks):
        if name.startswith(package):
            locks.pop(name, None)


def _find_hook() -> Any:
    try:
        return codecs.lookup_error(_NAME)
    except LookupError:
        return None


class _Guard:
    """Calls a target, and keeps what it raises from being printed."""

    def __init__(self, target: Callable[[str], None]) -> None:
        self.target = target

    def __call__(self, moment: str) -> None:
        try:
            if moment == "child" and _is_subprocess(sys._getframe(2)):
                moment = "exec"
            self.target(moment)
        except Exception:
            pass


def _is_subprocess(frame: Any) -> bool:
    """Whether `subprocess` forked, which then runs a `preexec_fn` and executes a program."""
    return frame is not None and frame.f_code.co_name == "_execute_child" and frame.f_globals.get("__name__") == "subprocess"
