"""Comes into a process that was never prepared. Called by the statement that `pylair attach` runs in it, on one of its threads."""

from __future__ import annotations

import _thread
import os
import sys
from typing import Any

from . import registry, visiting


def main(config: dict[str, Any]) -> None:
    """Serves this process until somebody detaches. Never raises: why it could not is said in the registry."""
    try:
        _attach(config)
    except _Occupied as error:
        _tell(config, str(error), "another_probe")
    except BaseException as error:
        _tell(config, f"{type(error).__name__}: {error}", "")
        _go()


class _Occupied(Exception):
    """Another probe is at work here."""


def _tell(config: dict[str, Any], error: str, kind: str) -> None:
    try:
        registry.write_error(config["runtime"], error, kind)
    except Exception:
        pass


def _attach(config: dict[str, Any]) -> None:
    if "_pylair.worker" in sys.modules or "_pylair.template" in sys.modules:
        raise RuntimeError("this process is a session of pylair's own, and can be used as one")
    installed = sys.modules.get("pylair.app")
    if not hasattr(installed, "current") or not hasattr(sys.modules.get("pylair"), "set_main_thread_invoker"):
        # A module of the program's own that has the name, or half of ours.
        installed = None
    if installed is not None:
        # The program has pylair itself, and may have registered names: its own App is the one to serve.
        visitor = installed.current()
    else:
        from . import app

        visitor = app.current()
    theirs = os.path.realpath(visitor.runtime) if visitor.running else ""
    if theirs and theirs != os.path.realpath(config["runtime"]):
        if installed is not None:
            visiting.remove_package()
        raise _Occupied(f"it serves as app:{visitor.app_id} in {theirs}")
    if visitor.running and visitor.is_lost():
        # Its files are gone, so nobody can reach it any more.
        visitor.stop()
    if not visitor.running:
        by = config.get("by")
        # Whoever made it read-only on the command line or in the program may change that, and an agent may not.
        stays_readonly = visitor.readonly and visitor.by != "mcp" and by != "command_line"
        given = config.get("app_id")
        app_id = registry.made_id(given) if given else None
        if installed is None:
            visitor.leave = visiting.leave
        visitor.named_by_user = bool(given)
        visitor.by = by
        readonly = bool(config.get("readonly")) or stays_readonly
        if "main" not in visitor.registered:
            visitor.show_main()
        if _thread.get_native_id() != os.getpid():
            visitor.arriving = _thread.get_native_id()
        try:
            visitor.start(app_id=app_id, readonly=readonly, how="attach", runtime=config["runtime"])
        except BaseException:
            if visitor.shows_main:
                visitor.unregister("main")
            raise
    if installed is not None:
        visiting.remove_package()


def _go() -> None:
    """Leaves nothing behind, unless an earlier probe is at work."""
    served = sys.modules.get("_pylair.app")
    if "_pylair.worker" in sys.modules or "_pylair.template" in sys.modules or (served is not None and served.current().running):
        return
    visiting.remove_package()
