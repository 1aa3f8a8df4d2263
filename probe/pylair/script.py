"""Files that are run as `python FILE` runs them, but in the session's namespace. Runs in the worker, called by `execute`."""

from __future__ import annotations

import io
import os
import stat
import sys
import types
from typing import Any

MAX_FILE_BYTES = 32 << 20


class Refused(Exception):
    """The file cannot be run; with a word for programs and a way out."""

    def __init__(self, message: str, kind: str, hint: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint

    def fields(self) -> dict[str, Any]:
        return {"refused": str(self), "kind": self.kind, "hint": self.hint}


def read(name: Any) -> tuple[str, bytes]:
    """The absolute path of a script, and its source as bytes: the compiler honours its encoding cookie."""
    if not isinstance(name, str) or not name:
        raise Refused("no file was named", "not_found", "file is the path of a Python file")
    path = os.path.abspath(name)
    try:
        # Only a regular file: to open a pipe could take for ever.
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise Refused(f"{path} is a directory", "not_a_file", "name the file in it that shall be run")
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{path} is not a regular file", "not_a_file", "write the code to a file, or execute it as a cell")
        if status.st_size > MAX_FILE_BYTES:
            raise _too_large(path, status.st_size)
        with open(path, "rb") as file:
            source = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise Refused(f"there is no file {path}", "not_found", "relative paths start at the session's working directory") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Refused(f"{path} cannot be read: {reason}", "not_readable", "the session's user needs the right to read it") from None
    if len(source) > MAX_FILE_BYTES:
        raise _too_large(path, len(source))
    _check_encoding(path, source)
    return path, source


def given(name: Any, source: bytes) -> tuple[str, bytes]:
    """The same for a file whose source was sent along."""
    if not isinstance(name, str) or not name:
        raise Refused("no file was named", "not_found", "file is the path of a Python file")
    path = os.path.abspath(name)
    _check_encoding(path, source)
    return path, source


def _too_large(path: str, size: int) -> Refused:
    limit = MAX_FILE_BYTES >> 20
    return Refused(f"{path} has {size >> 20} MB, over the limit of {limit} MB for a script", "too_large", "keep data in files of its own")


def _check_encoding(path: str, source: bytes) -> None:
    import tokenize

    encoding = "utf-8"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        source.decode(encoding)
    except UnicodeDecodeError as error:
        problem = f"{path} is not {encoding}: byte {error.start} is {source[error.start]:#04x}"
    except (SyntaxError, LookupError) as error:
        problem = f"{path} cannot be decoded: {error}"
    else:
        return
    raise Refused(problem, "not_text", "save it in UTF-8, or name its encoding in the first line: # -*- coding: latin-1 -*-")


class Surroundings:
    """What a script finds around it: `sys.argv`, `__file__`, its directory at the head of `sys.path`. Put back by `leave`.
    The name is the path as it was given, which `python FILE` has in `sys.argv`."""

    def __init__(self, module: types.ModuleType, path: str, name: str, arguments: list[str]) -> None:
        self._module = module
        self._argv = getattr(sys, "argv", [])
        self._file = module.__dict__.get("__file__", _ABSENT)
        # A str of its own, to be found again by identity.
        self._directory = "".join(os.path.dirname(os.path.realpath(path)))
        self._replaced = bool(sys.path) and sys.path[0] == ""
        sys.argv = [name, *arguments]
        module.__file__ = path
        if not getattr(sys.flags, "safe_path", False):
            sys.path[: int(self._replaced)] = [self._directory]

    def leave(self) -> None:
        sys.argv = self._argv
        if self._file is _ABSENT:
            self._module.__dict__.pop("__file__", None)
        else:
            self._module.__dict__["__file__"] = self._file
        # The script may have put entries of its own before it, or taken it away.
        if isinstance(sys.path, list):
            for at, entry in enumerate(sys.path):
                if entry is self._directory:
                    sys.path[at : at + 1] = [""] if self._replaced else []
                    return
            if self._replaced and "" not in sys.path:
                sys.path.insert(0, "")


_ABSENT = object()
