"""Whatever is tried in a copy, the original and its files are as they were, and go on working. Reads in the copy tell the truth."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from host import Session
from runs import Place
from things import THINGS, Thing
from visitor import INSTALLED, TIMEOUT_SECONDS, Visit, wait_for

from pylair import private_directory

FREEZE = 10
RICH_PYTHON = os.environ.get("PYLAIR_TEST_RICH_PYTHON")

WHY = "this is a frozen copy of the failed test"
WHY_THROWN = "this is a copy of the session that is thrown away"

PROJECT = """
import os, sys, time
import pytest

def test_it():
{begin}
    port = {port}
    go_on = Later(locals())
    Later.last = go_on
    assert not go_on

class Later:
    def __init__(self, names): self.names = names

@pytest.fixture(autouse=True)
def original():
    yield
    until = time.monotonic() + {seconds}
    while not os.path.exists("../go"):
        assert time.monotonic() < until
        time.sleep(0.005)
    exec(compile({go_on!r}, "go_on", "exec"), {{**globals(), **Later.last.names}})
"""


def hashes(directory: Path) -> dict[str, Any]:
    """The contents of all files, and what is known of them. In SQLite's index of a log readers leave their marks."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.name.endswith("-shm") else b""
        known = (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)
        found[path.name] = (known, tuple(os.listxattr(path, follow_symlinks=False)), hashlib.sha256(data).hexdigest())
    return found


class Attack:
    """A test that has failed, whose process waits in its teardown, and the copy of it."""

    def __init__(self, place: Place, thing: Thing, port: int = 1, command: list[str] | None = None) -> None:
        self.place = place
        self.directory = place.projects / "data"
        self.directory.mkdir()
        (self.directory / "empty").mkdir()
        begin = textwrap.indent(textwrap.dedent(thing.begin), "    ")
        text = PROJECT.format(begin=begin, go_on=textwrap.dedent(thing.go_on), seconds=4 * TIMEOUT_SECONDS, port=port)
        (place.projects / "test_thing.py").write_text(text)
        arguments = ["-m", "pytest", "-p", "pylair.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:rerunfailures"]
        self.log = open(place.projects / "log", "w+")
        self.run = subprocess.Popen(
            [*(command or []), sys.executable, *arguments, "../test_thing.py"],
            cwd=self.directory,
            env=place.env(PYTHONPATH=INSTALLED),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.entry = wait_for(self._entry, "a copy")
        self.visit = Visit(self.entry["endpoint"])
        self.before = hashes(self.directory)

    def _entry(self) -> Any:
        assert self.run.poll() is None, self.said()
        return next(iter(self.place.copies()), None)

    def said(self) -> str:
        return (self.place.projects / "log").read_text()

    def unchanged(self, code: str) -> None:
        after = hashes(self.directory)
        assert after == self.before, (code, sorted(set(after.items()) ^ set(self.before.items()), key=str))

    def finish(self) -> None:
        (self.place.projects / "go").touch()
        self.run.wait(4 * TIMEOUT_SECONDS)
        assert "1 failed" in self.said() and "error" not in self.said(), self.said()

    def close(self) -> None:
        self.run.kill()
        self.run.wait()
        self.log.close()


@pytest.fixture
def attack(place):
    made = []

    def begin(thing: Thing, **options: Any) -> Attack:
        made.append(Attack(place, thing, **options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def try_all(attack: Attack, thing: Thing) -> None:
    visit = attack.visit
    for code, expected in thing.reads.items():
        done = visit.run(code)
        assert (done["outcome"], done.get("result")) == ("ok", expected), (code, done)
        attack.unchanged(code)
    for code in thing.refused:
        done = visit.run(code)
        assert done["outcome"] == "raised", (code, done)
        assert any(note.startswith(WHY) for note in done.get("notes", ())), (code, done)
        attack.unchanged(code)
    for code in thing.harmless:
        done = visit.run(code)
        assert done["outcome"] == "ok", (code, done)
        attack.unchanged(code)


@pytest.mark.parametrize("name", THINGS)
def test_nothing_that_is_tried_in_a_frozen_failure_reaches_the_original(attack, name):
    thing = THINGS[name]
    began = attack(thing)
    try_all(began, thing)
    began.finish()


def test_what_libraries_say_of_a_refusal_is_explained(attack):
    """HDF5 has the number of the error in its text, and psycopg2 says nothing when it may not connect."""
    began = attack(Thing("pass", {}, [], [], ""))
    refused = [
        "type('OperationalError', (Exception,), {})()",
        "RuntimeError('unable to extend file properly, errno = 22, error message = ...')",
    ]
    for error in refused:
        assert any(note.startswith(WHY) for note in began.visit.run(f"raise {error}")["notes"]), error
    for error in ("RuntimeError()", "ValueError('errno = 220')"):
        assert not began.visit.run(f"raise {error}").get("notes"), error
    began.finish()


LATER = """
import fcntl, time
time.sleep(0.3)
taken = open("free")
fcntl.flock(taken, fcntl.LOCK_SH)
open("{0}").read(1)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["thread", "program"])
def test_a_lock_that_is_taken_after_the_call_is_given_back(attack, how):
    """Whoever waits for it gets it, although what took it goes on."""
    began = attack(
        Thing(
            "import fcntl, signal, subprocess, sys, threading\nfree = open('free', 'w+')\nos.mkfifo('../taken')",
            {},
            [],
            [],
            "open('../taken', 'w').close(); signal.alarm(30); fcntl.flock(free, fcntl.LOCK_EX); signal.alarm(0)",
        )
    )
    code = LATER.format("../taken")
    start = f"threading.Thread(target=exec, args=({code!r}, {{}}), daemon=True).start()"
    if how == "program":
        start = f"program = subprocess.Popen([sys.executable, '-c', {code!r}])"
    assert began.visit.run(start)["outcome"] == "ok"
    began.finish()


# Starts a program without these system calls, as on a kernel that does not have them: the second is `prctl` for a filter.
OLD_KERNEL = """
import os, struct, sys
sys.path.insert(0, sys.argv[1])
from pylair import walls
from pylair.kernel import kernel
numbers = walls._MACHINES[os.uname().machine]
prctl = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x35, 0, 2, 444), (0x25, 1, 0, 446), (0x06, 0, 0, 0x50000 | 38)]
if sys.argv[2] == "no filters":
    code += [(0x15, 0, 3, prctl), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (0x06, 0, 0, 0x50000 | 22)]
code.append((0x06, 0, 0, 0x7FFF0000))
kernel.give_up_new_privileges()
kernel.filter_calls(b"".join(struct.pack("=HBBI", *one) for one in code))
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.parametrize("lacks", ["Landlock", "no filters"])
def test_a_kernel_without_walls_is_told_of_and_python_refuses(attack, lacks):
    thing = THINGS["files"]
    began = attack(thing, command=[sys.executable, "-c", OLD_KERNEL, INSTALLED, lacks])
    notes = began.visit.run("1")["notes"]
    (note,) = notes
    assert note.startswith("this copy is not protected by Landlock (the kernel has none"), note
    assert ("a filter of system calls" in note) == (lacks == "no filters"), note
    # Only what Python tells of, which is nearly all.
    silent = ("os.mkfifo('fifo')", "os.mknod('node')")
    try_all(began, thing._replace(refused=[code for code in thing.refused if code not in silent], harmless=thing.harmless[:2]))
    for code in (f"os.kill({began.run.pid}, 9)", "import sqlite3; sqlite3.connect('new.db')", "os.system('true')"):
        assert WHY in began.visit.run(code)["error"]["message"], code
    began.finish()


def packages_with_numpy() -> str | None:
    """Where the packages are of the Python that has numpy; it has to be like the one that runs the tests."""
    if not RICH_PYTHON:
        return None
    code = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('platlib'))"
    told = subprocess.run([RICH_PYTHON, "-c", code], capture_output=True, check=True, text=True).stdout
    major, minor, directory = told.rstrip("\n").split(" ", 2)
    return directory if (int(major), int(minor)) == sys.version_info[:2] else None


@pytest.mark.skipif(not RICH_PYTHON, reason="PYLAIR_TEST_RICH_PYTHON names no Python with numpy")
def test_arrays_in_files(attack):
    directory = packages_with_numpy()
    if directory is None:
        pytest.skip(f"{RICH_PYTHON} is another version than {sys.executable}")
    thing = Thing(
        f"import sys; sys.path.append({directory!r})\nimport numpy\n"
        "array = numpy.memmap('array.bin', numpy.int64, 'w+', shape=(1000,)); array[:] = 3; array.flush()",
        {"int(array.sum())": "3000"},
        [],
        ["array[:] = 4; array.flush(); int(array.sum())"],
        "assert int(array.sum()) == 3000; array[0] = 4; array.flush(); assert open('array.bin', 'rb').read(1) == b'\\4'",
    )
    began = attack(thing)
    try_all(began, thing)
    began.finish()


# Throw-aways.

# What tests have of pytest, which is not installed where sessions are.
STAND_IN = """
import contextlib, sys
class pytest:
    @staticmethod
    @contextlib.contextmanager
    def raises(kind):
        try: yield
        except kind: return
        raise AssertionError(kind)
"""

TRY = """
class Try:
    def __repr__(self):
        try:
            expression = compile(self.code, "try", "eval")
        except SyntaxError:
            exec(compile(self.code, "try", "exec"), globals())
            return ""
        return repr(eval(expression, globals()))
attempt = Try()
"""


# A busy machine may take longer than a look usually has.
PATIENCE = "next(m for n, m in sys.modules.items() if n.endswith('.throwaway')).run.__defaults__ = (60.0,)"


def begin(session: Session, directory: Path, *cells: str) -> None:
    for code in (f"import os; os.chdir({str(directory)!r}); port = 1", *cells):
        done = session.execute(textwrap.dedent(code))
        assert done["outcome"] == "ok", done


def tried(session: Session, code: str) -> tuple[str, str]:
    """What a `__repr__` that runs this made, or how it failed."""
    assert session.execute(f"attempt.code = {code!r}")["outcome"] == "ok"
    found = session.look("inspect", path="attempt", full=True)
    return found.get("value", ""), found.get("preview_error", "")


@pytest.mark.parametrize("name", THINGS)
def test_nothing_that_is_tried_in_a_throw_away_reaches_the_session(session, tmp_path, name):
    thing = THINGS[name]
    (tmp_path / "empty").mkdir()
    begin(session, tmp_path, STAND_IN, PATIENCE, TRY, thing.begin)
    before = hashes(tmp_path)
    for code, expected in thing.reads.items():
        assert tried(session, code) == (expected, ""), code
        assert hashes(tmp_path) == before, code
    for code in thing.refused:
        assert WHY_THROWN in tried(session, code)[1], code
        assert hashes(tmp_path) == before, code
    for code in thing.harmless:
        assert tried(session, code)[1] == "", code
        assert hashes(tmp_path) == before, code
    done = session.execute(textwrap.dedent(thing.go_on))
    assert done["outcome"] == "ok", done


def test_directories_of_processes_that_are_gone_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(private_directory, "_MEMORY", str(tmp_path))
    first, second = private_directory.make(), private_directory.make()
    assert first != second and Path(first).parent == Path(second).parent
    parent = Path(first).parent
    namespace, pid, start, _ = Path(first).name.split("-")
    left = parent / f"{namespace}-{pid}-{int(start) + 1}-1" / "deep"
    left.mkdir(parents=True)
    (left / "file").write_text("left")
    (left / "link").symlink_to(tmp_path)
    os.chmod(left, 0o300)
    elsewhere = parent / f"{int(namespace) + 1}-{pid}-1-1"
    elsewhere.mkdir()
    third = private_directory.make()
    assert sorted(parent.iterdir()) == sorted(map(Path, (first, second, third, elsewhere)))
    elsewhere.rmdir()
    for path in (first, second, third):
        private_directory.remove(path)
    assert list(tmp_path.iterdir()) == []
    # What somebody else could have put there is not used.
    parent.mkdir(mode=0o755)
    made = private_directory.make()
    assert Path(made).parent != parent
    private_directory.remove(made)


# Checkpoints and branches, which go on as the session does.

WRITES = """
import mmap, sqlite3
con = sqlite3.connect("dev.db", isolation_level=None); con.execute("create table item(a)")
log = open("log.txt", "a"); log.write("one\\n"); log.flush()
numbered = open("numbered.txt", "w+"); numbered.write("aaa"); numbered.flush()
with open("mapped.bin", "wb") as file: file.write(bytes(5000))
file = open("mapped.bin", "r+b"); mapped = mmap.mmap(file.fileno(), 0); mapped[:2] = b"M1"
anonymous = mmap.mmap(-1, 5000); anonymous[:2] = b"A1"
"""


def test_after_going_back_files_are_written_and_memory_is_as_it_was(session, tmp_path):
    begin(session, tmp_path, WRITES)
    frozen = session.checkpoint()
    for _ in range(2):
        session.execute("numbered.write('bbb'); numbered.flush(); mapped[:2] = b'M2'; anonymous[:2] = b'A2'")
        session.execute("con.execute('insert into item values(1)')")
        (lost,) = session.rollback(frozen)
        assert lost.startswith("memory that was shared (zero; "), lost
        # The file is as it was left, and memory without a file as it was.
        assert session.result("mapped[:2], anonymous[:2], numbered.tell()") == "(b'M2', b'A1', 3)"
    session.execute("log.write('two\\n'); log.flush(); numbered.write('ccc'); numbered.flush(); mapped[2:4] = b'X!'; mapped.flush()")
    session.execute("con.execute('insert into item values(2)')")
    assert session.result("con.execute('select count(*) from item').fetchall(), mapped[:4]") == "([(3,)], b'M2X!')"
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"
    assert (tmp_path / "numbered.txt").read_text() == "aaaccc"
    assert (tmp_path / "mapped.bin").read_bytes()[:5] == b"M2X!\0"


QUEUES = """
import ctypes, os, pty, select, struct
libc = ctypes.CDLL(None)
counter, timer, watch = libc.eventfd(0, os.O_NONBLOCK), libc.timerfd_create(1, os.O_NONBLOCK), libc.inotify_init1(os.O_NONBLOCK)
number = libc.inotify_add_watch(watch, b".", 0xFFF)
reader, writer = os.pipe()
selector = select.epoll()
selector.register(reader, select.EPOLLIN)
terminal, other = pty.openpty()
os.set_blocking(other, False)
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return os.strerror(error.errno)
"""


def test_branches_share_no_queue_and_no_terminal(session, tmp_path):
    begin(session, tmp_path, QUEUES)
    branch, lost = session.branch(session.checkpoint())
    try:
        told = ["a pipe", "a pipe", "an eventfd", "a timerfd", "an inotify", "a terminal", "a terminal"]
        assert [words.partition(" (")[0] for words in lost] == told
        branch.execute("mine, ours = os.pipe(); selector.register(mine, select.EPOLLIN); os.write(ours, b'x')")
        assert branch.result("selector.poll(20) == [(mine, select.EPOLLIN)]") == "True"
        branch.execute("attempt(os.write, counter, struct.pack('Q', 5)); attempt(os.write, terminal, b'typed\\n')")
        branch.execute("libc.timerfd_settime(timer, 0, struct.pack('4q', 0, 0, 0, 1), None); libc.inotify_rm_watch(watch, number)")
        again = "Resource temporarily unavailable"
        assert session.result("selector.poll(0), attempt(os.read, counter, 8), attempt(os.read, timer, 8)") == str(([], again, again))
        assert session.result("attempt(os.read, other, 8)") == repr(again)
        (tmp_path / "made").touch()
        session.execute("os.write(writer, b'x')")
        assert session.result("selector.poll(20) == [(reader, select.EPOLLIN)], len(os.read(watch, 1000)) > 0") == "(True, True)"
    finally:
        branch.close()


def test_branches_share_no_memory_and_no_place_in_a_file(session, tmp_path):
    begin(session, tmp_path, WRITES)
    frozen = session.checkpoint()
    sessions = [session]
    try:
        for number in (2, 3):
            branch, lost = session.branch(frozen)
            sessions.append(branch)
            assert [words.partition(" (")[0] for words in lost] == ["memory that was shared"], lost
            branch.execute(f"mapped[:2] = b'M{number}'; anonymous[:2] = b'A{number}'; mapped.flush()")
            branch.execute(f"log.write('{number}\\n'); log.flush()")
            branch.execute(f"con.execute('insert into item values({number})'); numbered.read()")
        session.execute("con.execute('insert into item values(1)')")
        for number, one in enumerate(sessions, 1):
            assert one.result("mapped[:2], anonymous[:2], numbered.tell()") == f"(b'M{number}', b'A{number}', 3)"
            assert one.result("con.execute('select a from item order by a').fetchall()") == "[(1,), (2,), (3,)]"
            assert one.result("con.execute('pragma integrity_check').fetchall()") == "[('ok',)]"
        assert (tmp_path / "mapped.bin").read_bytes()[:2] == b"M1"
        assert (tmp_path / "log.txt").read_text() == "one\n2\n3\n"
    finally:
        for one in sessions[1:]:
            one.close()
