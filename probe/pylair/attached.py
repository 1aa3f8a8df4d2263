"""Comes into a process that was never prepared. Called by the statement that `pylair attach` runs in it, on one of its threads."""

from __future__ import annotations

import sys
from typing import Any

from . import registry, visiting


def main(config: dict[str, Any]) -> None:
    """Serves this process until somebody detaches. Never raises: why it could not is said in the registry."""
    try:
        _attach(config)
    except BaseException as error:
        try:
            registry.write_error(config["runtime"], f"{type(error).__name__}: {error}")
        except Exception:
            pass
        _go()


def _attach(config: dict[str, Any]) -> None:
    if "_pylair.worker" in sys.modules or "_pylair.template" in sys.modules:
        raise RuntimeError("this process is a session of pylair's own, and can be used as one")
    installed = sys.modules.get("pylair.app")
    if installed is not None:
        # The program has pylair itself, and may have registered names: its own App is the one to serve.
        visitor = installed.current()
    else:
        from . import app

        visitor = app.current()
    if not visitor.running:
        given = config.get("app_id")
        app_id = registry.made_id(given) if given else None
        if installed is None:
            visitor.leave = visiting.leave
        visitor.named_by_user = bool(given)
        visitor.start(app_id=app_id, readonly=bool(config.get("readonly")), how="attach", runtime=config["runtime"])
        if "main" not in visitor.registered:
            visitor.show_main()
    if installed is not None:
        visiting.remove_package()


def _go() -> None:
    """Leaves nothing behind, unless an earlier probe is at work."""
    served = sys.modules.get("_pylair.app")
    if "_pylair.worker" in sys.modules or "_pylair.template" in sys.modules or (served is not None and served.current().running):
        return
    visiting.remove_package()
