"""What the probes that come in from outside share: how they go again. Called by `wrapped` and `attached`.

Here the package is `_pylair`, loaded from memory by an importer of its own.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from . import app

_PACKAGE = __name__.rpartition(".")[0]
# What the program gave, through the `pylair` it has installed, to the App that goes.
_GIVEN = ("registered", "invoker", "screenshot_fn", "winshot_fn")
# Modules that something the program still has may need: a stream that it took while a call ran, a log factory that it chained to its own.
_HELD = ("streams", "plain_threads", "logs", "display")


def leave() -> None:
    """Takes the package out of the process. Whoever still runs in it may go on to the end."""
    visitor = app.current()
    if visitor.shows_main:
        visitor.unregister("main")
    if "pylair" in sys.modules and _PACKAGE != "pylair":
        try:
            installed = importlib.import_module("pylair.app").current()
            for name in _GIVEN:
                setattr(installed, name, getattr(visitor, name))
        except Exception:
            # Another package of that name.
            pass
    # A module and its functions hold each other. Without this they would stay until the program's own collector runs.
    visitor.leftovers = [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.startswith(f"{_PACKAGE}.") and name.rpartition(".")[2] not in _HELD
    ]
    remove_package()


def remove_package() -> None:
    package = sys.modules.get(_PACKAGE)
    loader = getattr(package, "__loader__", None)
    for name in list(sys.modules):
        if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
            sys.modules.pop(name, None)
    if type(loader).__name__ == "MemoryImporter":
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not loader]


def say(text: Any) -> None:
    """One line to whoever started the program; only for what keeps `pylair wrap` from doing what it was asked to do."""
    try:
        sys.stderr.write(f"pylair: {text}\n")
    except Exception:
        pass
