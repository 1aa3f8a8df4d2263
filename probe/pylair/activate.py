"""Turns the template's bare interpreter into the session's. Runs once, in a fresh worker or in a template with preloads.

A template runs with `-S`: `site` has not run and nothing of the user's was imported. Here the interpreter becomes what the session's
executable would have been, venv or not: environment, prefix, `sys.path`, `site` with its .pth files and sitecustomize.
"""

from __future__ import annotations

import functools
import os

# Before `sys.flags` is replaced: imported without `-S`, `site` runs at once.
import site
import sys
import time
from typing import Any

from . import errors


def environment(variables: dict[str, str]) -> None:
    """Makes `os.environ`, and with it C's environment, exactly these variables."""
    environ = os.environ
    timezone = environ.get("TZ")
    for name in [name for name in environ if name not in variables]:
        del environ[name]
    for name, value in variables.items():
        if environ.get(name) != value:
            environ[name] = value
    if environ.get("TZ") != timezone:
        time.tzset()


def interpreter(executable: str, prefix: str | None) -> None:
    """Says which interpreter this is. Must come before `site` is run."""
    sys.executable = executable
    if prefix is None:
        sys._base_executable = executable  # type: ignore[attr-defined]
    elif sys.version_info >= (3, 14):
        # Older versions leave finding the venv to `site`.
        sys.prefix = sys.exec_prefix = prefix
    sys.argv = [""]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [executable]
    sys.flags = _flags_with(no_site=0)  # type: ignore[misc, assignment]


def run_site(python_path: list[str]) -> str | None:
    """Runs `site` as interpreter startup does. Returns a sentence if the user's own code broke out of it."""
    sys.path[:0] = python_path
    # Computed when `site` was imported, which may have been before the prefix was known.
    site.PREFIXES[:] = [sys.prefix, sys.exec_prefix]
    try:
        site.main()
    except BaseException as error:
        return f"site failed: {errors.type_name(type(error))}: {errors.message(error)}"
    return None


def prepend_cwd() -> None:
    """The entry for the working directory, as in an interactive interpreter."""
    if not getattr(sys.flags, "safe_path", False) and (not sys.path or sys.path[0] != ""):
        sys.path.insert(0, "")


def _flags_with(**changes: int) -> Any:
    """`sys.flags` with other values. Its own class cannot be instantiated, so this is a class that looks like it.

    The order of the fields is known only from the repr, which shows those that are part of the sequence.
    """
    original = sys.flags
    shown = [part.split("=")[0] for part in repr(original)[len("sys.flags(") : -1].split(", ")]
    values = {name: changes.get(name, getattr(original, name)) for name in _field_names(original)}
    members: dict[str, Any] = {name: property(functools.partial(lambda value, _: value, value)) for name, value in values.items()}
    members.update(
        __module__="sys",
        __slots__=(),
        __doc__=type(original).__doc__,
        __repr__=lambda _: f"sys.flags({', '.join(f'{name}={values[name]!r}' for name in shown)})",
        n_fields=original.n_fields,
        n_sequence_fields=original.n_sequence_fields,
        n_unnamed_fields=original.n_unnamed_fields,
    )
    if hasattr(original, "__match_args__"):
        members["__match_args__"] = original.__match_args__
    return type("flags", (tuple,), members)(values[name] for name in shown)


def _field_names(flags: Any) -> list[str]:
    return [name for name in dir(type(flags)) if not name.startswith(("_", "n_")) and name not in ("count", "index")]
