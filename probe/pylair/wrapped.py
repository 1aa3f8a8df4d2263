"""Comes into a Python that `pylair wrap` started, and into those that it starts. Called by `bootstrap/sitecustomize.py`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import app, registry, visiting


def main(config: dict[str, Any]) -> None:
    """Serves this process as the app that the config says, and arranges for Pythons that it starts to be apps below it."""
    if _is_helper():
        return
    visitor = app.current()
    parent = config.get("parent")
    given = config.get("app_id")
    app_id = registry.made_id(given) if given else registry.default_id(dict(os.environ))
    if parent:
        app_id = registry.made_id(app_id, parent)
    os.environ["PYLAIR_WRAP"] = json.dumps({**config, "app_id": None, "port": None, "parent": app_id})
    visitor.leave = _leave
    visitor.named_by_user = bool(given)
    settings = {"readonly": bool(config.get("readonly")), "app_id": app_id, "how": "wrap", "parent": parent, "runtime": config["runtime"]}
    port = config.get("port")
    visitor.show_main()
    try:
        visitor.start(port=port, **settings)
    except OSError as error:
        if port is None:
            raise
        visiting.say(f"{error.strerror or error}; the app is served without the port")
        visitor.start(**settings)


def _leave() -> None:
    os.environ.pop("PYLAIR_WRAP", None)
    visiting.leave()


def _is_helper() -> bool:
    """Whether this process only keeps count of what `multiprocessing` shares."""
    words = getattr(sys, "orig_argv", None) or registry.command_line()
    return any("multiprocessing.resource_tracker" in word for word in words[:16])
