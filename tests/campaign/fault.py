"""What a fault is, and what all of them share."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

from arena import Arena, Pending
from model import Book


class Effect(NamedTuple):
    """What a fault was done to."""

    # It came while something was under way.
    middle: bool
    # When it was done.
    at: float
    # What to look at afterwards.
    books: tuple[Book, ...]
    # A worker may have been killed that nobody has heard of yet.
    may_die: bool = False


Fault = Callable[[Arena], Effect]

# Kinds by their names. Each module of faults adds its own.
KINDS: dict[str, Fault] = {}


def kind(name: str) -> Callable[[Fault], Fault]:
    def add(fault: Fault) -> Fault:
        KINDS[name] = fault
        return fault

    return add


def bring_to_work(arena: Arena, book: Book, **arguments: object) -> Pending | None:
    """A session that is mostly in the middle of an operation, sometimes about to begin or to end one, and now and then idle."""
    roll = arena.chance.random()
    if roll < 0.6:
        return arena.begin(book, waits=True, **arguments)
    if roll < 0.9:
        pending = arena.begin(book, waits=False, **arguments)
        time.sleep(arena.chance.uniform(0, 0.006))
        return pending
    return None


def is_under_way(pending: Pending | None) -> bool:
    return pending is not None and not pending.line.is_answered(pending.request)


def end_work(arena: Arena, pending: Pending | None, outcomes: tuple[str, ...]) -> None:
    if pending is not None:
        pending.let_go()
        arena.finish(pending, outcomes)
