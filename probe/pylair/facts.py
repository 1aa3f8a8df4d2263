"""What is told of a run and of a test whatever comes of them, and how pytest's reports say it. Called by reporting.py, in any process."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from . import git_state, wire

_MAX_PACKAGES = 2000
_MAX_PARAMS = 20
_MAX_PARAM_CHARS = 200
_MAX_MARKERS = 50
_MAX_REASON_CHARS = 2000
_MAX_ARGUMENTS = 200
_QUOTES = "'\""
_SEPARATORS = re.compile("[-_.]+")
_PLAIN = frozenset((str, int, float, bool, type(None)))


class Facts:
    """What is told of a test whatever comes of it."""

    def __init__(self) -> None:
        self._parent: Any = None
        self._inherited: list[str] = []

    def of(self, item: Any) -> dict[str, Any]:
        fields = item.__dict__
        # Nothing is to be told of most.
        if item.parent is self._parent and not self._inherited and "callspec" not in fields and not fields.get("own_markers"):
            return {}
        found: dict[str, Any] = {}
        callspec = fields.get("callspec")
        if callspec is not None:
            found["params"] = {
                wire.clean(str(name)): param(value) for name, value in list(getattr(callspec, "params", {}).items())[:_MAX_PARAMS]
            }
        parent = item.parent
        if parent is not self._parent:
            self._inherited = [mark.name for mark in parent.iter_markers()] if parent is not None else []
            self._parent = parent
        if item.own_markers or self._inherited:
            names = dict.fromkeys([*(mark.name for mark in item.own_markers), *self._inherited])
            names.pop("parametrize", None)
            if names:
                found["markers"] = [wire.clean(name) for name in list(names)[:_MAX_MARKERS]]
        return found


def param(value: Any) -> str:
    if type(value) in _PLAIN and not (type(value) is str and len(value) > _MAX_PARAM_CHARS):
        return wire.clean(repr(value)[:_MAX_PARAM_CHARS])
    from . import evidence

    return evidence.shown(value)[:_MAX_PARAM_CHARS]


def about(config: Any, env: dict[str, str], ci: bool) -> dict[str, Any]:
    """What a run is, but for when and by which id."""
    system = os.uname()
    invocation = config.invocation_params
    root = wire.clean(str(config.rootpath))
    told: dict[str, Any] = {
        "source": "plugin",
        "project": {"root": root, "name": os.path.basename(root) or root, "remote": git_state.remote_of(str(config.rootpath))},
        "argv": [wire.clean(str(word)[:1000]) for word in invocation.args[:_MAX_ARGUMENTS]],
        "cwd": wire.clean(str(invocation.dir)),
        "host": wire.clean(system.nodename),
        "user": wire.clean(env.get("USER") or env.get("LOGNAME") or str(os.getuid())),
        "pid": os.getpid(),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "platform": f"{sys.platform} {system.release} {system.machine}",
        "pytest": getattr(sys.modules.get("pytest"), "__version__", None),
        "packages": _packages(),
        "ci": ci,
    }
    workers = getattr(config.option, "tx", None)
    if getattr(config.option, "dist", "no") != "no" and workers:
        told["workers"] = len(workers)
    return told


def reason(report: Any) -> str | None:
    """Why a test was skipped or expected to fail."""
    said = getattr(report, "wasxfail", None)
    if said is None:
        said = report.longrepr
        if isinstance(said, tuple) and len(said) == 3:
            said = said[2]
    said = "" if said is None else str(said)
    for start in ("Skipped: ", "reason: "):
        if said.startswith(start):
            said = said[len(start) :]
    return wire.clean(said[:_MAX_REASON_CHARS]) or None


def subtest_name(context: Any) -> str:
    """What a subtest calls itself."""
    words = [f"[{context.msg}]"] if context.msg else []
    return wire.clean(" ".join([*words, *_written(context.kwargs)])[:500]) or "(subtest)"


def _written(fields: Any) -> list[str]:
    """What a subtest was given. Some versions of pytest give us the values, some their reprs, and with xdist the reprs of those."""
    words = [f"{name}={(value if issubclass(type(value), str) else param(value)).strip(_QUOTES)}" for name, value in fields.items()]
    return [f"({', '.join(words[:_MAX_PARAMS])})"] if words else []


def _packages() -> dict[str, str]:
    """Versions of the installed packages, by the names of their directories, which say both: reading what is in them would take long.

    Every directory that is imported from may have some, such as one that `pip install --target` filled. The first one wins.
    """
    found: dict[str, str] = {}
    for directory in list(sys.path):
        try:
            names = sorted(os.listdir(directory or "."))
        except (OSError, TypeError):
            continue
        for entry in names:
            if entry.endswith((".dist-info", ".egg-info")) and len(found) < _MAX_PACKAGES:
                name, _, version = entry.rpartition(".")[0].partition("-")
                if version:
                    found.setdefault(wire.clean(_SEPARATORS.sub("-", name).lower()), wire.clean(version.partition("-py")[0]))
    return found
