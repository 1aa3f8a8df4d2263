"""Some faults in a row on one daemon, from its start to the proof that nothing of it is left."""

from __future__ import annotations

import random
import time
import traceback
from typing import Any

import cells
import cuts
import hogs
import kills
import leftovers
import machine
from arena import Arena
from fault import KINDS
from words import LeftOver, expect

__all__ = ["cells", "cuts", "hogs", "kills", "machine", "run"]

SESSIONS: dict[str, dict[str, Any]] = {"one": {}, "kept": {"keep": True}, "sealed": {"sandbox": "sealed"}}
SHOWN_LINES = 30


def run(seed: str, kinds: list[str], python: str, keep_home: bool = False) -> list[dict[str, Any]]:
    """The outcome of each fault, in their order."""
    results: list[dict[str, Any]] = []
    rest = list(enumerate(kinds))
    while rest:
        rest = run_one_arena(seed, rest, python, results, keep_home)
    return results


def run_one_arena(
    seed: str, rest: list[tuple[int, str]], python: str, results: list[dict[str, Any]], keep_home: bool
) -> list[tuple[int, str]]:
    """Goes on until all are done or one fails; then the daemon's state is worth nothing any more."""
    chance = random.Random(f"{seed}/{rest[0][0]}")
    disk = machine.small_disk if any(name == machine.FULL_DISK for _, name in rest) else None
    arena = Arena(chance, python, chance.random() < 0.5, disk)
    mounted = leftovers.mounts()
    failed = False
    try:
        for name, options in SESSIONS.items():
            open_if_possible(arena, name, options)
        while rest and not failed:
            (index, name), rest = rest[0], rest[1:]
            arena.chance = random.Random(f"{seed}/{index}/{name}")
            result = one_fault(arena, name)
            results.append({"index": index, "confined": arena.can_confine, **result})
            failed = bool(result["verdict"])
    finally:
        verdict = end(arena, mounted, failed, keep_home)
    if verdict and not failed:
        results[-1].update(verdict)
    return rest


def open_if_possible(arena: Arena, name: str, options: dict[str, Any]) -> None:
    """Where there are no sandboxes the session is an open one."""
    if not options.get("sandbox"):
        arena.open(name, **options)
        return
    answer = arena.line.ask("open_session", **arena.opening(name, options))
    arena.say("open", name, options, answer)
    arena.can_confine = answer.kind != "sandbox_unavailable"
    if not arena.can_confine:
        arena.open(name)
        return
    expect(not answer.kind, "a session was not opened:", answer.words)
    arena.note_session(answer.data, options)


def one_fault(arena: Arena, name: str) -> dict[str, Any]:
    arena.say(f"=== {name}")
    losses = {book.name: book.losses for book in arena.books.values()}
    result: dict[str, Any] = {"kind": name, "verdict": "", "middle": False, "explained": 0, "seconds": 0.0}
    try:
        effect = KINDS[name](arena)
        for book in effect.books:
            arena.check(book, effect.may_die)
        result.update(middle=effect.middle, seconds=round(time.monotonic() - effect.at, 3))
        result["explained"] = sum(book.losses - losses.get(book.name, 0) for book in arena.books.values()) + arena.losses
        arena.losses = 0
        bystander = arena.choose()
        arena.work(bystander)
        arena.check(bystander)
    except Exception as wrong:
        result.update(verdict=getattr(wrong, "verdict", "wrong"), story=told(arena, wrong))
    return result


def told(arena: Arena, wrong: BaseException) -> str:
    where = "".join(traceback.format_tb(wrong.__traceback__)[-3:])
    return "\n".join([*arena.log[-SHOWN_LINES:], f"{type(wrong).__name__}: {wrong}", where])


def end(arena: Arena, mounted: set[str], failed: bool, keep_home: bool) -> dict[str, Any]:
    try:
        arena.close()
        leftovers.check(arena.home.path, arena.daemons, mounted, arena.strays_may_stay)
    except Exception as wrong:
        return {"verdict": LeftOver.verdict, "story": told(arena, wrong)}
    finally:
        if not keep_home:
            arena.remove()
    return {}
