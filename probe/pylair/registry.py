"""The registry of apps: where it lies, what a process is called there, and this process's entry. Called by `app` and `serving`.

Writes the two files of one instance and never touches those of another. docs/wire.md says what is in them.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import Any

from . import wire

# The longest path that fits a Unix socket address, and the longest name below the runtime directory.
# As in `crates/core/src/settings/places.rs`.
_MAX_SOCKET_PATH = 107
_LONGEST_NAME = "failures/4194304-999999999999.sock"

MAX_ID_CHARS = 64
_MAX_ARGUMENTS = 32
_MAX_ARGUMENT_CHARS = 200

# Options of the interpreter that take the next word, if nothing is behind them in the same.
_WITH_VALUE = "WXQ"


def runtime_directory(env: dict[str, str], uid: int) -> str:
    """Where the daemon of this user and environment has its sockets and looks for apps."""
    home = env.get("PYLAIR_HOME")
    if home:
        return _short_enough(os.path.join(home, "runtime"), uid)
    xdg = env.get("XDG_RUNTIME_DIR", "")
    return _short_enough(os.path.join(xdg, "pylair") if xdg.startswith("/") else f"/tmp/pylair-{uid}", uid)


def state_directory(env: dict[str, str]) -> str:
    """Where the daemon of this environment keeps what it can do without, such as logs."""
    home = env.get("PYLAIR_HOME")
    if home:
        return os.path.join(home, "state")
    xdg = env.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):
        return os.path.join(xdg, "pylair")
    home = env.get("HOME", "")
    return os.path.join(home if home.startswith("/") else "/", ".local/state/pylair")


def _short_enough(path: str, uid: int) -> str:
    """A directory in which socket paths would be too long is replaced by one in `/tmp`, under a name made of the path (FNV-1a)."""
    name = os.fsencode(path)
    if len(os.path.join(name, _LONGEST_NAME.encode())) <= _MAX_SOCKET_PATH:
        return path
    number = 0xCBF29CE484222325
    for byte in name:
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"/tmp/pylair-{uid}-{number:016x}"


def open_directory(runtime: str, name: str = "apps") -> str:
    """The registry in a runtime directory, made if need be, private to the user. Raises OSError when it is somebody else's."""
    runtime = os.path.abspath(runtime)
    directory = os.path.join(runtime, name)
    for path in (runtime, directory):
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(
                f"the directory {path} belongs to uid {status.st_uid}, not to uid {os.geteuid()}; "
                "remove it or set PYLAIR_HOME to a directory of your own"
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.chmod(path, 0o700)
    return directory


def start_time() -> int:
    """When this process was started, in clock ticks since boot."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write(path: str, entry: dict[str, Any]) -> None:
    """Writes a file of mode 0600, whole or not at all."""
    beside = f"{path}.new"
    try:
        os.unlink(beside)
    except FileNotFoundError:
        pass
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, 0o600)
            wire.write_all(fd, wire.dumps(entry) + b"\n")
        finally:
            os.close(fd)
        os.rename(beside, path)
    except BaseException:
        remove(beside)
        raise


def remove(path: str) -> None:
    """Removes a file of ours, if it is there and may be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass


def write_error(runtime: str, error: str, kind: str = "") -> None:
    """Says in the registry why no probe runs in this process."""
    name = f"{os.getpid()}-{start_time()}.error"
    write(os.path.join(open_directory(runtime), name), {"error": wire.clean(error)[:2000], "kind": kind})


def describe(app_id: str, endpoint: str, start: int, readonly: bool, how: str, parent: str | None) -> dict[str, Any]:
    """The entry of this process."""
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = ""
    _, argv = _program()
    return {
        "app_id": app_id,
        "pid": os.getpid(),
        "start": start,
        "endpoint": endpoint,
        "readonly": readonly,
        "started_at": time.time(),
        "how": how,
        "parent": parent,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "argv": [argument[:_MAX_ARGUMENT_CHARS] for argument in argv[:_MAX_ARGUMENTS]],
        "cwd": cwd,
        "wire": wire.WIRE_VERSION,
    }


def checked_id(app_id: Any) -> str:
    """The id, if it is one. Raises ValueError."""
    if not isinstance(app_id, str) or not app_id.strip():
        raise ValueError(f"an app id is a text, not {app_id!r}")
    app_id = app_id.strip()
    if len(app_id) > MAX_ID_CHARS or not app_id.isprintable() or "@" in app_id:
        raise ValueError(f"an app id has at most {MAX_ID_CHARS} printable characters and no @, unlike {app_id[:100]!r}")
    return app_id


def made_id(text: str, parent: str | None = None) -> str:
    """An id made of any text, below its parent's."""
    name = "".join(character if character.isprintable() and character != "@" else "-" for character in text).strip()
    name = name[: MAX_ID_CHARS // 2] if parent else name[:MAX_ID_CHARS]
    name = name.strip() or "python"
    return f"{parent[: MAX_ID_CHARS - 1 - len(name)]}/{name}" if parent else name


def default_id(env: dict[str, str]) -> str:
    """What a process is called that was given no name: `PYLAIR_APP_ID`, else after its script or module."""
    given = env.get("PYLAIR_APP_ID", "")
    return made_id(given if given.strip() else _program()[0])


def _program() -> tuple[str, list[str]]:
    """The name of the program that this interpreter runs, and its arguments, itself first.

    Taken from the interpreter's own arguments: `sys.argv` is not there yet when `site` runs, and names a file for `python -m`.
    """
    words = list(getattr(sys, "orig_argv", ())) or command_line()
    at = 1
    while at < len(words):
        word = words[at]
        if word == "-" or not word.startswith("-"):
            break
        at += 1
        if word.startswith("--"):
            at += word == "--check-hash-based-pycs"
            continue
        for position, letter in enumerate(word[1:], 2):
            rest = word[position:]
            if letter == "c":
                return "python", ["-c", *words[at if rest else at + 1 :]]
            if letter == "m":
                module = [rest, *words[at:]] if rest else words[at:]
                return (module[0] if module else "python"), module
            if letter in _WITH_VALUE:
                at += not rest
                break
    argv = [str(word) for word in words[at:] or getattr(sys, "argv", ())]
    if not argv or argv[0] in ("", "-", "-c", "-m"):
        return "python", argv
    path = argv[0].rstrip("/")
    name = os.path.basename(path)
    if name == "__main__.py":
        name = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return os.path.splitext(name)[0] or "python", argv


def command_line() -> list[str]:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read(1 << 16).split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]
