"""Turns the template's bare interpreter into the session's. Runs once, in a fresh worker or in a template with preloads.

A template runs with `-S`: `site` has not run and nothing of the user's was imported. Here the interpreter becomes what the session's
executable would have been, venv or not: environment, prefix, `sys.path`, `site` with its .pth files and sitecustomize.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os

# Before `sys.flags` is replaced: imported without `-S`, `site` runs at once.
import site
import sys
import time
from typing import Any

from . import errors

_FINDERS = list(sys.meta_path)
_HOOKS = list(sys.path_hooks)
_MODULE_ENDINGS = ("", *importlib.machinery.all_suffixes())


def prepare() -> None:
    """In the template: does those steps of `site` that are the same in every session, so that workers share what they make."""
    for name in ("setquit", "setcopyright", "sethelper"):
        _STEPS.get(name, _nothing)()
    if not sys.flags.isolated:
        _STEPS.get("enablerlcompleter", _nothing)()


def expect_finders() -> None:
    """In the template: what is on `sys.meta_path` now finds no module of the user's."""
    _FINDERS[:] = sys.meta_path


def environment(variables: dict[str, str]) -> None:
    """Makes `os.environ`, and with it C's environment, exactly these variables."""
    # What `os.environ` shows. Most variables are the template's already, and by way of the mapping a look at each is several calls.
    environ: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    encoding = sys.getfilesystemencoding()
    wanted = {name.encode(encoding, "surrogateescape"): value.encode(encoding, "surrogateescape") for name, value in variables.items()}
    timezone = environ.get(b"TZ")
    for name in [name for name in environ if name not in wanted]:
        os.unsetenv(name)
        del environ[name]
    for name, value in wanted.items():
        if environ.get(name) != value:
            os.putenv(name, value)
            environ[name] = value
    if environ.get(b"TZ") != timezone:
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
    sys.flags = _FLAGS  # type: ignore[misc, assignment]


def run_site(python_path: list[str]) -> str | None:
    """Runs `site` as interpreter startup does. Returns a sentence if the user's own code broke out of it."""
    sys.path[:0] = python_path
    # Computed when `site` was imported, which may have been before the prefix was known.
    site.PREFIXES[:] = [sys.prefix, sys.exec_prefix]
    for name in _STEPS:
        setattr(site, name, _CHEAPER_STEPS[name])
    try:
        site.main()
    except BaseException as error:
        return f"site failed: {errors.type_name(type(error))}: {errors.message(error)}"
    finally:
        for name, step in _STEPS.items():
            setattr(site, name, step)
    return None


def prepend_cwd() -> None:
    """The entry for the working directory, as in an interactive interpreter."""
    if not getattr(sys.flags, "safe_path", False) and (not sys.path or sys.path[0] != ""):
        sys.path.insert(0, "")


def _nothing() -> None:
    pass


def _exec_sitecustomize() -> None:
    if not _is_nowhere("sitecustomize"):
        _STEPS["execsitecustomize"]()


def _exec_usercustomize() -> None:
    if not _is_nowhere("usercustomize"):
        _STEPS["execusercustomize"]()


def _is_nowhere(module: str) -> bool:
    """Whether it is certain that importing this module would find nothing. To import it in vain costs a third of a megabyte."""
    if sys.meta_path != _FINDERS or sys.path_hooks != _HOOKS:
        return False
    for entry in sys.path:
        if os.access(f"{entry}/.", os.F_OK):
            for ending in _MODULE_ENDINGS:
                if os.access(f"{entry}/{module}{ending}", os.F_OK):
                    return False
        elif sys.path_importer_cache.get(entry, entry) is not None:
            # Perhaps an archive.
            return False
    return True


# Steps of `site.main` that `prepare` has done, or that can be had for less. What the template imported has absolute paths already, and
# writing them again would make a page of nearly every module the worker's own.
_CHEAPER_STEPS = {
    "abs_paths": _nothing,
    "setquit": _nothing,
    "setcopyright": _nothing,
    "sethelper": _nothing,
    "enablerlcompleter": _nothing,
    "execsitecustomize": _exec_sitecustomize,
    "execusercustomize": _exec_usercustomize,
}
_STEPS = {name: getattr(site, name) for name in _CHEAPER_STEPS if hasattr(site, name)}


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


# Made here and not when it is needed: the template's workers share it.
_FLAGS = _flags_with(no_site=0)
