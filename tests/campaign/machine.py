"""Faults of the machine: disks that are full, clocks that jump."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Callable, Iterator

import daemons
from arena import Arena
from fault import Effect, bring_to_work, end_work, is_under_way, kind
from words import expect

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
DISK_MB = 64
BALLOON = "balloon"
FULL_DISK = "full disk"
DAY_S = 86400.0
# Clocks are wrong by hours, by more than anything is kept for, and by what a dead battery makes of them.
JUMPS = (-400, -40, -10, -0.1, 0.1, 10, 40, 400)


def small_disk(path: Path) -> None:
    """In a mount namespace of this process and all it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")
    if libc.mount(b"none", str(path).encode(), b"tmpfs", 0, f"size={DISK_MB}m,mode=0700".encode()) != 0:
        raise OSError(ctypes.get_errno(), "no small disk")


def why_no_disk() -> str:
    """Tried in another process, whose mounts end with it."""
    pid = os.fork()
    if pid == 0:
        try:
            small_disk(Path("/tmp"))
        except OSError:
            os._exit(1)
        os._exit(0)
    return "" if os.waitpid(pid, 0)[1] == 0 else "no small disk can be mounted here"


@contextlib.contextmanager
def full(arena: Arena) -> Iterator[None]:
    """Not a byte is left on the disk of the daemon and of its sessions."""
    arena.say("the disk is full")
    balloon = os.open(arena.home.path / BALLOON, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fill(balloon)
        yield
    finally:
        os.close(balloon)
        os.unlink(arena.home.path / BALLOON)
        arena.say("the disk has room")


def fill(balloon: int) -> None:
    size, piece = 0, 1 << 22
    while piece:
        try:
            os.posix_fallocate(balloon, size, piece)
            size += piece
        except OSError:
            piece = piece // 2 if piece > 1 else 0


def work_while_full(arena: Arena) -> Effect:
    """Operations that cannot write their line fail with what the kernel says; all others are done."""
    book = arena.choose()
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    with full(arena):
        end_work(arena, pending, ("ok", "raised"))
        for _ in range(arena.chance.randrange(1, 4)):
            arena.finish(arena.begin(book, waits=False), ("ok", "raised"))
        arena.check(book)
    return Effect(middle, at, (book,))


def die_while_full(arena: Arena) -> Effect:
    book = arena.choose()
    at = time.monotonic()
    with full(arena):
        operation = arena.cut(book, "import os\nos._exit(1)")
        book.may.add(operation.number)
        arena.execute(book, operation.code, ("died", "raised"))
        arena.check(book)
    return Effect(True, at, (book,))


def save_while_full(arena: Arena) -> Effect:
    """A save that was acknowledged is whole; one that could not be made is refused in words, and the one before is as it was."""
    book = arena.choose()
    arena.change(book)
    before = arena.save(book)
    pending = bring_to_work(arena, arena.choose([name for name in arena.books if name != book.name]))
    arena.change(book)
    middle, at, after = is_under_way(pending), time.monotonic(), None
    with full(arena):
        answer = arena.ask(book, "save_session")
        arena.say("save", answer)
        if answer.kind == "":
            after = arena.saved(book, answer.data)
        else:
            expect(answer.kind in ("store_unavailable", "refused", "not_saved"), "a save on a full disk was answered with", answer.words)
        end_work(arena, pending, ("ok", "raised"))
    arena.restore(after or before)
    return Effect(middle, at, (book,))


def open_while_full(arena: Arena) -> Effect:
    """A session is opened or it is said why not."""
    book = arena.choose()
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    sandbox = arena.chance.choice(["open", "sealed"])
    arena.gates += 1
    name = f"new{arena.gates}"
    with full(arena):
        answer = arena.line.ask("open_session", **arena.opening(name, {"sandbox": sandbox}))
        arena.say("open", answer)
        if answer.kind == "":
            opened = arena.note_session(answer.data, {"sandbox": sandbox})
            arena.finish(arena.begin(opened, waits=False), ("ok", "raised"))
            arena.check(opened)
        end_work(arena, pending, ("ok", "raised"))
    if answer.kind == "":
        arena.check(opened)
        arena.line.must("close_session", target=name)
        del arena.books[name]
    return Effect(middle, at, (book,))


def upload_while_full(arena: Arena) -> Effect:
    book = arena.choose()
    arena.gates += 1
    name = f"upload-{arena.gates}.bin"
    path = f"/files/upload?target={book.name}&path={name}"
    whole = os.urandom(30_000)
    status, answer = arena.web.request("POST", path, whole, "application/octet-stream")
    expect(status == 200, "an upload was answered with", status, answer)
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    with full(arena):
        status, answer = arena.web.request("POST", path, os.urandom(100_000), "application/octet-stream")
        arena.say("upload", status, answer)
        expect(status == 507, "an upload to a full disk was answered with", status, answer)
        end_work(arena, pending, ("ok", "raised"))
    expect((book.file.parent / name).read_bytes() == whole, "an upload that failed has changed the file")
    return Effect(middle, at, (book,))


def stop_while_full(arena: Arena) -> Effect:
    """What could not be saved is named by `stop`, and the next daemon starts on the full disk."""
    pendings = [pending for pending in [bring_to_work(arena, arena.choose())] if pending]
    middle, at = any(is_under_way(pending) for pending in pendings), time.monotonic()
    with full(arena):
        not_saved = daemons.stop(arena, pendings)
        daemons.start_again(arena)
    daemons.ask_for_saved(arena, not_saved)
    return Effect(middle, at, tuple(arena.books.values()))


FULL: list[Callable[[Arena], Effect]] = [
    work_while_full,
    work_while_full,
    die_while_full,
    save_while_full,
    open_while_full,
    upload_while_full,
    stop_while_full,
]


@kind(FULL_DISK)
def full_disk(arena: Arena) -> Effect:
    return arena.chance.choice(FULL)(arena)


@kind("clock jump")
def clock_jump(arena: Arena) -> Effect:
    """While no daemon is there, the time of everything it left becomes another: as after a start with a wrong clock. Nothing is deleted."""
    for book in arena.books.values():
        if book.state is None:
            arena.change(book)
    save = arena.save(arena.choose())
    names = arena.chance.sample(sorted(arena.books), arena.chance.randrange(0, 3))
    pendings = [pending for pending in (bring_to_work(arena, arena.books[name]) for name in names) if pending]
    busy, at = any(is_under_way(pending) for pending in pendings), time.monotonic()
    not_saved = daemons.stop(arena, pendings)
    days = arena.chance.choice(JUMPS)
    arena.say("the clock jumps by", days, "days")
    jump(arena.home.path, int(days * DAY_S))
    daemons.come_back(arena, not_saved)
    if arena.chance.random() < 0.5:
        arena.restore(save)
    return Effect(busy, at, tuple(arena.books.values()))


def jump(home: Path, seconds: int) -> None:
    """All that was written becomes older by so much, as a clock that jumped sees it; the machine was not up for longer."""
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            stat = path.lstat()
            os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds), follow_symlinks=False)
    record = home / "data/clock.json"
    clock = json.loads(record.read_text())
    clock["wall"] -= seconds
    for gap in clock["gaps"]:
        gap["to"] -= seconds
        gap["from"] = max(gap["from"] - seconds, 0)
    record.write_text(json.dumps(clock))
    with contextlib.closing(sqlite3.connect(home / "data/journal.db")) as journal, journal:
        journal.execute("UPDATE events SET at = at - ?", [seconds * 1_000_000])
