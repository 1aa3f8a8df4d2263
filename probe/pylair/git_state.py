"""Which code a test run tests: the files of the work tree by git, else the project's Python files. Called by reporting.py.

What is hashed is the content of files, not the commit: the same code has the same hash before and after it is committed. Documents, and
files that git does not track and that are not code, have a hash of their own: notes and what tests leave behind change, and say nothing.

git runs beside the run: it is started when that begins, as nobody's child, so that a test that waits for any child does not meet it, and
its answer is read from a pipe whenever there is time.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat
import sys
from typing import Any

from . import descriptors, unwind, wire
from .real import real

MAX_CHANGED = 200
_MAX_OUTPUT_BYTES = 16 << 20
_MAX_FILES = 2000
_MAX_FILE_BYTES = 1 << 20
_END = b"\0pylair\0"

# Each part ends with a NUL. The names of `status` have more of them and come last but one; the files of the commit, which are too many in
# very large repositories, follow a part of their own.
_TREE = b"\0//\0"
_MAX_TREE_BYTES = 10_000_000
_SCRIPT = r"""
g() { git -c core.fsmonitor=false "$@" 2>/dev/null </dev/null; }
look() {
  cd "$1" || exit
  [ -n "$(g ls-files -- . | head -c 1)" ] || exit
  g rev-parse --verify HEAD || exit
  printf '\0'; g symbolic-ref -q --short HEAD
  printf '\0'; g rev-parse --show-toplevel
  printf '\0'; g show -s --no-show-signature --format=%cI HEAD
  printf '\0'; g status --porcelain=v1 -z --no-renames --untracked-files=all | head -c 2000000
  printf '\0//\0'; g ls-tree -r -z --full-tree HEAD | head -c 10000000
  printf '\0pylair\0'
}
look "$1" &
"""

# What runs leave behind, which is no code.
_LEFTOVERS = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", "htmlcov", "node_modules")
_LEFTOVER_ENDINGS = (".pyc", ".pyo", ".log", ".egg-info", ".swp", "~")
_LEFTOVER_NAMES = (".coverage", "coverage.xml", "junit.xml", "report.xml")
# Reports of tests may have any name, and begin like this.
_REPORT_ENDINGS = (".xml", ".json", ".jsonl", ".html")
_REPORT_SIGNS = (b"<testsuite", b'{"pytest_version"', b"pytest-html", b"<coverage")
# What people read. A test in a document is compared by these too.
_DOCUMENTS = (".md", ".rst", ".adoc", ".org")
_DOCUMENT_NAMES = (
    "authors",
    "changelog",
    "changes",
    "contributing",
    "copying",
    "license",
    "news",
    "notes",
    "readme",
    "todo",
    ".git",
    ".mailmap",
)
# What makes tests behave otherwise although git does not track it. Anything else may as well be a note, or written by a test.
_CODE = (".py", ".pyi", ".pyx", ".pxd", ".pth", ".so", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".toml", ".cfg", ".ini")
# Directories without code of the project.
_NO_CODE = ("__pycache__", "node_modules", "site-packages", "dist-packages")


class Git:
    """git at work on a directory. `answer` is None until it has told everything, and for good where there is no git."""

    def __init__(self, root: str) -> None:
        self.answer: dict[str, Any] | None = None
        self._root = root
        self._fd = -1
        self._data = bytearray()
        try:
            self._start()
        except Exception:
            self.close()

    def _start(self) -> None:
        import subprocess

        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env.update(GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0", LC_ALL="C")
        reading, writing = os.pipe()
        self._fd = descriptors.move_high(reading)
        os.set_blocking(self._fd, False)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "pylair", self._root],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        finally:
            os.close(writing)
        # It only starts what works.
        process.wait(5)

    def read(self, seconds: float = 0.0) -> bool:
        """Takes in what has come. Whether there is nothing more to wait for."""
        deadline = real.monotonic() + seconds
        while self._fd >= 0:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                left = deadline - real.monotonic()
                if left <= 0:
                    return False
                waiting = select.poll()
                waiting.register(self._fd, select.POLLIN)
                waiting.poll(int(left * 1000) + 1)
                continue
            except OSError:
                data = b""
            self._data += data
            if not data or len(self._data) > _MAX_OUTPUT_BYTES:
                self.close()
                self._understand()
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError:
                pass

    def _understand(self) -> None:
        data = bytes(self._data)
        told, found, tree = data[: -len(_END)].partition(_TREE) if data.endswith(_END) else (b"", b"", b"")
        parts = told.split(b"\0")
        if not found or len(parts) < 5:
            return
        commit, branch, top, committed = (os.fsdecode(part.strip(b"\n")) for part in parts[:4])
        states = [os.fsdecode(state) for state in parts[4:] if len(state) > 3]
        changed = [state for state in states if not _is_leftover(state[3:]) and not (state[:2] == "??" and _is_report(top, state[3:]))]
        # Without all of its files the commit itself must do.
        code, other = _tracked(tree) if len(tree) < _MAX_TREE_BYTES else ({"": commit}, {})
        for state in sorted(changed)[:_MAX_FILES]:
            name = state[3:]
            is_code = name.endswith(_CODE) if state[:2] == "??" else not _is_document(name)
            code.pop(name, None), other.pop(name, None)
            content = _blob(os.path.join(top, name), hashlib.sha1 if len(commit) == 40 else hashlib.sha256)
            if content is not None:
                (code if is_code else other)[name] = content
        self.answer = {
            "hash": _hash(code),
            "other": _hash(other),
            "how": "git",
            "commit": commit,
            "committed": wire.clean(committed) or None,
            "branch": wire.clean(branch) or None,
            "dirty": bool(changed),
            "changed": [wire.clean(state[3:]) for state in changed[:MAX_CHANGED]],
        }


def _tracked(tree: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """The files of a commit with the hashes of their contents: code, and documents."""
    code: dict[str, str] = {}
    documents: dict[str, str] = {}
    for entry in os.fsdecode(tree).split("\0"):
        about, _, name = entry.partition("\t")
        if name:
            # Its mode and kind are the same for nearly all.
            (documents if _is_document(name) else code)[name] = about.rpartition(" ")[2]
    return code, documents


def _hash(files: dict[str, str]) -> str:
    listed = "\0".join(f"{name}\0{content}" for name, content in sorted(files.items()))
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _blob(path: str, hashing: Any) -> str | None:
    """The hash of a file as git has it; of a large one its size and time, of none None."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        elif not stat.S_ISREG(status.st_mode):
            # Another repository within this one.
            return "directory"
        elif status.st_size > _MAX_FILE_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        else:
            with open(path, "rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError):
        return None
    named: str = hashing(b"blob %d\0" % len(content) + content).hexdigest()
    return named


def _is_document(path: str) -> bool:
    last = path.rpartition("/")[2].lower()
    return last.endswith(_DOCUMENTS) or (not last.endswith(_CODE) and last.startswith(_DOCUMENT_NAMES))


def _is_leftover(path: str) -> bool:
    names = path.rstrip("/").split("/")
    last = names[-1]
    if last.endswith(_LEFTOVER_ENDINGS) or last.startswith(_LEFTOVER_NAMES):
        return True
    return any(name in _LEFTOVERS for name in names)


def _is_report(top: str, path: str) -> bool:
    if not path.endswith(_REPORT_ENDINGS):
        return False
    try:
        with open(os.path.join(top, path), "rb") as file:
            head = file.read(1000)
    except (OSError, ValueError):
        return False
    return any(sign in head for sign in _REPORT_SIGNS)


def remote_of(root: str) -> str | None:
    """The address of the repository that a directory is in, as its configuration says, without credentials. Runs nothing."""
    try:
        config = _configuration(root)
        if config is None:
            return None
        with open(config, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_FILE_BYTES).splitlines()
    except (OSError, ValueError):
        return None
    inside = False
    for line in lines:
        line = line.strip()
        if line.startswith("["):
            inside = line.replace(" ", "") == '[remote"origin"]'
        elif inside and line.partition("=")[0].strip().lower() == "url":
            return _without_credentials(line.partition("=")[2].strip().strip('"')) or None
    return None


def _configuration(root: str) -> str | None:
    """The path of a repository's configuration; that of a second work tree is its repository's."""
    directory = os.path.abspath(root)
    while not os.path.exists(os.path.join(directory, ".git")):
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above
    place = os.path.join(directory, ".git")
    if os.path.isfile(place):
        with open(place, encoding="utf-8", errors="replace") as file:
            place = os.path.join(directory, file.read(4096).partition("gitdir:")[2].strip())
        common = os.path.join(place, "commondir")
        if os.path.isfile(common):
            with open(common, encoding="utf-8", errors="replace") as file:
                place = os.path.join(place, file.read(4096).strip())
    return os.path.join(place, "config")


def _without_credentials(remote: str) -> str:
    scheme, found, rest = remote.partition("://")
    if not found:
        return wire.clean(remote)
    host, slash, path = rest.partition("/")
    return wire.clean(f"{scheme}://{host.rpartition('@')[2]}{slash}{path}")


def _content(path: str) -> bytes:
    """The hash of a file, or of its size and time if it is large."""
    try:
        status = os.stat(path)
        if status.st_size > _MAX_FILE_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}".encode()
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(_MAX_FILE_BYTES)).digest()
    except (OSError, ValueError):
        return b""


def of_files(root: str) -> dict[str, Any]:
    """The fields of a `code` record without git, over the Python files below the root: those that a run imports would be others for every
    choice of tests."""
    digest = hashlib.sha256()
    for name in _python_files(root):
        digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
        digest.update(_content(os.path.join(root, name)))
    return {"hash": digest.hexdigest()[:40], "how": "files", "dirty": False, "changed": []}


def _python_files(root: str) -> list[str]:
    """In an order that is always the same, so that a bound cuts the same ones."""
    found: list[str] = []
    waiting, seen = [""], 0
    while waiting and len(found) < _MAX_FILES and seen < _MAX_FILES:
        directory = waiting.pop()
        seen += 1
        try:
            with real.scandir(os.path.join(root, directory)) as entries:
                listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            continue
        names = {name for name, _ in listed}
        # Somebody else's code: an environment.
        if directory and "pyvenv.cfg" in names:
            continue
        found += [os.path.join(directory, name) for name, is_directory in listed if not is_directory and name.endswith(".py")]
        below = [name for name, is_directory in listed if is_directory and name[:1] != "." and name not in _NO_CODE]
        waiting += [os.path.join(directory, name) for name in reversed(below)]
    return found[:_MAX_FILES]


class Code:
    """Tells the project's own files from others, and what they are called below its root."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") + "/"
        self._known: dict[str, tuple[str, bool]] = {}
        self._libraries: tuple[str, ...] = ()

    def place(self, file: str) -> tuple[str, bool]:
        """The name of a file, relative to the root if it is below, and whether it is the project's."""
        known = self._known.get(file)
        if known is None:
            if len(self._known) > 10_000:
                self._known.clear()
            known = self._known[file] = self._look(file)
        return known

    def _look(self, file: str) -> tuple[str, bool]:
        if file.startswith(("<", unwind.OUR_PREFIX)):
            return wire.clean(file), False
        if not self._libraries:
            self._libraries = _library_directories()
        try:
            absolute = os.path.abspath(file)
        except OSError:
            # The working directory is gone.
            absolute = file
        name = absolute[len(self.root) :] if absolute.startswith(self.root) else absolute
        is_library = absolute.startswith(self._libraries) or "/site-packages/" in absolute or "/dist-packages/" in absolute
        return wire.clean(name), not is_library


def _library_directories() -> tuple[str, ...]:
    import sysconfig

    found = {os.path.dirname(os.path.abspath(os.__file__))}
    try:
        found |= {os.path.abspath(path) for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))}
    except Exception:
        pass
    for name in ("_pytest", "pytest", "pluggy", "xdist"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            found.add(os.path.dirname(os.path.abspath(file)))
    return tuple(sorted(path.rstrip("/") + "/" for path in found))
