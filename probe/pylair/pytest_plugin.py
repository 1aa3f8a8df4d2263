"""The pytest plugin, as pytest finds it: an entry point of the installed package, or `bootstrap/_pylair_pytest.py`. PYTEST_DONT_REWRITE

Decides whether a run is reported, and by whom: in the process that the user started by `reporting.Reporter`, in an xdist worker by
`witnessing.Worker`. Reports once however often the plugin is there. Everything else is imported only if it is.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The name under which `-p no:pylair` knows us.
NAME = "pylair"
_REPORTER = "pylair-reporter"


def pytest_configure(config: Any) -> None:
    """Begins to report, if this run is to be."""
    manager = config.pluginmanager
    if manager.is_blocked(NAME) or manager.get_plugin(_REPORTER) is not None or not _is_wanted(config):
        return
    try:
        reporter: Any
        if hasattr(config, "workerinput"):
            from .witnessing import Worker

            reporter = Worker(config)
        else:
            from . import reporting

            reporter = reporting.reporter(config)
    except Exception:
        # Whatever it is, the run goes on without.
        return
    manager.register(reporter, _REPORTER)


def _is_wanted(config: Any) -> bool:
    wish = os.environ.get("PYLAIR_TEST", "")
    if wish == "0":
        return False
    option = config.option
    if any(getattr(option, name, False) for name in ("collectonly", "setupplan", "help", "version", "showfixtures", "markers")):
        return False
    # A pytest that a test of another one started says nothing about the project.
    return wish == "1" or hasattr(config, "workerinput") or "PYTEST_CURRENT_TEST" not in os.environ
