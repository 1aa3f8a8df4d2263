"""The pytest plugin, as pytest finds it: an entry point of the installed package, or `bootstrap/_pylair_pytest.py`. PYTEST_DONT_REWRITE

Decides whether a run is reported, and by whom: in the process that the user started by `reporting.Reporter`, in an xdist worker by
`witnessing.Worker`. Reports once however often the plugin is there. Everything else is imported only if it is.
"""

from __future__ import annotations

import os

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

# The name under which `-p no:pylair` knows us.
NAME = "pylair"
_REPORTER = "pylair-reporter"


def pytest_configure(config: Any) -> None:
    """Begins to report, if this run is to be."""
    manager = config.pluginmanager
    if manager.is_blocked(NAME) or manager.get_plugin(_REPORTER) is not None or not _is_wanted(config, config.option):
        return
    try:
        reporter = _witnessing().Worker(config) if hasattr(config, "workerinput") else _reporting().reporter(config)
    except Exception:
        # Whatever it is, the run goes on without.
        return
    manager.register(reporter, _REPORTER)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> Iterator[None]:
    """A conftest.py that raises here ends pytest before it is configured."""
    outcome: Any = yield
    try:
        error = outcome.excinfo[1] if outcome.excinfo else None
        manager = early_config.pluginmanager
        if type(error).__name__ != "ConftestImportFailure" or manager.is_blocked(NAME) or manager.get_plugin(_REPORTER) is not None:
            return
        if "PYTEST_XDIST_WORKER" not in os.environ and _is_wanted(early_config, early_config.known_args_namespace):
            reporter = _reporting().reporter(early_config)
            manager.register(reporter, _REPORTER)
            reporter.conftest_failed(error)
    except Exception:
        pass


class _Installed:
    """The importer of an installed package, once something of it is needed."""

    importer: Any = None


def _reporting() -> Any:
    if __package__ == NAME:
        return _apart("reporting")
    # From memory, by an importer that does the same.
    from . import reporting

    return reporting


def _witnessing() -> Any:
    if __package__ == NAME:
        return _apart("witnessing")
    from . import witnessing

    return witnessing


def _apart(name: str) -> Any:
    """A module of the installed probe, with copies of what it uses of the standard library: tests replace that."""
    if _Installed.importer is None:
        from .loader import PluginImporter

        _Installed.importer = PluginImporter({}, os.path.dirname(os.path.abspath(__file__)))
        _Installed.importer.load(name)
        _Installed.importer.seal()
    return _Installed.importer.load(name)


def _is_wanted(config: Any, option: Any) -> bool:
    wish = os.environ.get("PYLAIR_TEST", "")
    if wish == "0":
        return False
    if any(getattr(option, name, False) for name in ("collectonly", "setupplan", "help", "version", "showfixtures", "markers")):
        return False
    # A pytest that a test of another one started says nothing about the project.
    return wish == "1" or hasattr(config, "workerinput") or "PYTEST_CURRENT_TEST" not in os.environ
