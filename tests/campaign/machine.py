"""Faults of the machine: disks that are full, clocks that jump."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Callable, Iterator

from arena import Arena, touch_all
from fault import Effect, bring_to_work, end_work, is_under_way, kind
from words import expect

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
DISK_MB = 64
BALLOON = "balloon"
DAY_S = 86400.0
# Clocks are wrong by hours, by more than anything is kept for, and by what a dead battery makes of them.
JUMPS_S = tuple(days * DAY_S for days in (-400, -40, -10, -0.1, 0.1, 10, 40, 400))


def small_disk(path: Path) -> None:
    """In a mount namespace of this process and all it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")
    if libc.mount(b"none", str(path).encode(), b"tmpfs", 0, f"size={DISK_MB}m,mode=0700".encode()) != 0:
        raise OSError(ctypes.get_errno(), "no small disk")


def why_no_disk() -> str:
    return "" if os.getuid() == 0 else "a small disk can be mounted by root only"


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
        answer = arena.line.ask("save_session", target=book.name)
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


FULL: list[Callable[[Arena], Effect]] = [
    work_while_full,
    work_while_full,
    die_while_full,
    save_while_full,
    open_while_full,
    upload_while_full,
]


@kind("full disk")
def full_disk(arena: Arena) -> Effect:
    return arena.chance.choice(FULL)(arena)


@kind("clock jump")
def clock_jump(arena: Arena) -> Effect:
    """While no daemon is there, the time of everything it left becomes another: as after a start with a wrong clock. Nothing is deleted."""
    books = list(arena.books.values())
    for book in books:
        if book.state is None:
            arena.change(book)
    save = arena.save(arena.choose())
    at = time.monotonic()
    arena.stop([])
    jump = arena.chance.choice(JUMPS_S)
    arena.say("the clock jumps by", jump / DAY_S, "days")
    touch_all(arena.home.path.rglob("*"), -jump)
    arena.come_back({book.name for book in books})
    if arena.chance.random() < 0.5:
        arena.restore(save)
    return Effect(False, at, tuple(arena.books.values()))
