"""Modules of other people that need a word from us as soon as they are imported: pyplot and IPython's display. Runs in the worker.

A finder on `sys.meta_path` lets the others find the module and acts after it was executed. Nothing is imported by it. It is
installed in the template, so that it costs a worker nothing.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from .display import Displays

_IPYTHON = ("IPython.core.display_functions", "IPython.core.display", "IPython.display")


def choose_backend(variables: Any) -> None:
    """Has matplotlib draw without a window system, here and in child processes, unless the user chose otherwise.

    A backend that is a module of Jupyter's belongs to the process that this environment came from.
    """
    chosen = variables.get("MPLBACKEND")
    if not chosen or chosen.startswith("module://"):
        variables["MPLBACKEND"] = "Agg"


def watch(displays: Displays) -> None:
    """Acts on what is imported already (by a preload), and on the rest when it is."""
    acts: dict[str, Callable[[Any], None]] = dict.fromkeys(_IPYTHON, _ipython_imported)
    acts["matplotlib.pyplot"] = lambda module: _pyplot_imported(module, displays)
    for name, act in acts.items():
        if name in sys.modules:
            act(sys.modules[name])
    sys.meta_path.insert(0, Watcher(acts))


def _pyplot_imported(pyplot: Any, displays: Displays) -> None:
    # A plain function: matplotlib sets attributes on it.
    def show(*args: Any, **options: Any) -> None:
        """Shows all open figures, and closes them."""
        displays.show_figures()

    _name_as_theirs(show, pyplot, "show")
    pyplot.show = show
    displays.pyplot = pyplot


def _ipython_imported(module: Any) -> None:
    """Without a shell of IPython's, its `display` would only print."""
    import builtins

    display = getattr(builtins, "display", None)
    names = vars(module)
    if display is None or "display" not in names:
        return
    module.display = display
    if "publish_display_data" in names:

        def publish_display_data(data: Any, *args: Any, **options: Any) -> None:
            display(data, raw=True)

        _name_as_theirs(publish_display_data, module, "publish_display_data")
        module.publish_display_data = publish_display_data


def _name_as_theirs(function: Any, module: Any, name: str) -> None:
    """A function is saved with the session's variables by where it is found, and otherwise with all that it knows."""
    function.__module__, function.__qualname__ = module.__name__, name


class Watcher:
    """Finds modules by asking the finders behind it."""

    def __init__(self, acts: dict[str, Callable[[Any], None]]) -> None:
        self._acts = acts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        act = self._acts.get(name)
        if act is None:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                _act_after(spec.loader, name, act)
                return spec
        return None


def _act_after(loader: Any, name: str, act: Callable[[Any], None]) -> None:
    """Has the loader call `act` when it has executed the module. A loader that cannot be changed is left alone."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: Any) -> None:
        execute(module)
        # Some loaders load more than one module.
        if module.__name__ == name:
            try:
                act(module)
            finally:
                vars(loader).pop("exec_module", None)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass
