"""Kills of every process there is."""

from __future__ import annotations

import signal
import time

import daemons
import processes
from arena import Arena, Pending
from fault import Effect, bring_to_work, end_work, is_under_way, kind
from words import Wrong, expect

DEADLY = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
# A Rust program takes a fault signal that somebody sent for one of its own that was dealt with.
DEADLY_TO_DAEMONS = (signal.SIGKILL, signal.SIGKILL, signal.SIGABRT)
ENDS = ("ok", "died")


@kind("kill worker")
def kill_worker(arena: Arena) -> Effect:
    book = arena.choose()
    worker = arena.family(book).worker
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    how = arena.chance.choice(DEADLY)
    arena.say("kill worker", book.name, worker.pid, how)
    processes.send(worker, how)
    end_work(arena, pending, ENDS)
    see_end(arena, worker)
    return Effect(middle, at, (book,), may_die=True)


def see_end(arena: Arena, worker: processes.Process) -> None:
    """Until then it may answer, and somebody else than the next caller would hear of its death."""
    arena.wait_for(lambda: not processes.is_alive(worker), "the worker is still there")


@kind("kill keeper")
def kill_keeper(arena: Arena) -> Effect:
    book = arena.choose()
    worker, keeper, _ = arena.family(book)
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    arena.say("kill keeper", book.name, keeper.pid)
    # What a cell of an open session had let go of is then below the template, and nobody's if that was killed before.
    arena.strays_may_stay |= arena.templates_killed and book.sandbox == "open"
    processes.send(keeper, signal.SIGKILL)
    end_work(arena, pending, ENDS)
    see_end(arena, worker)
    return Effect(middle, at, (book,), may_die=True)


@kind("kill copy")
def kill_copy(arena: Arena) -> Effect:
    """One or all of a session's frozen copies, and mostly its worker soon after: what is then gone back to must be true."""
    book = arena.choose()
    for _ in range(arena.chance.randrange(1, 4)):
        arena.change(book)
        arena.checkpointed(book)
    family = arena.family(book)
    copies = family.copies if arena.chance.random() < 0.3 else arena.chance.sample(family.copies, min(1, len(family.copies)))
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    for copy in copies:
        arena.say("kill copy", book.name, copy.pid)
        processes.send(copy, signal.SIGKILL)
    dies = arena.chance.random() < 0.7
    if dies:
        arena.say("kill worker", family.worker.pid)
        processes.send(family.worker, signal.SIGKILL)
    end_work(arena, pending, ENDS if dies else ("ok",))
    if dies:
        see_end(arena, family.worker)
    return Effect(middle, at, (book,), may_die=dies)


@kind("kill template")
def kill_template(arena: Arena) -> Effect:
    """While a session is opened from it and others work; sessions that are there notice nothing."""
    book = arena.choose()
    pending = bring_to_work(arena, book)
    found = processes.templates_of(arena.daemon)
    arena.templates_killed = True
    return open_meanwhile(arena, pending, found[-1:] if arena.chance.random() < 0.5 else found, ())


@kind("kill nursery")
def kill_nursery(arena: Arena) -> Effect:
    book = arena.choose()
    pending = bring_to_work(arena, book)
    nursery = processes.nursery_of(arena.daemon)
    # Its templates may go with it.
    arena.templates_killed = True
    confined = tuple(other for other in arena.books.values() if other.sandbox != "open")
    return open_meanwhile(arena, pending, [nursery] if nursery else [], confined)


def open_meanwhile(arena: Arena, pending: Pending | None, victims: list[processes.Process], others: tuple) -> Effect:
    """Kills while a session is opened. It is opened, or it is said why not, and a second try succeeds."""
    sandbox = arena.chance.choice(["open", "sealed"]) if arena.can_confine else "open"
    name = f"new{arena.gates}"
    options = arena.opening(name, {"sandbox": sandbox})
    opening = arena.line.begin("open_session", **options)
    time.sleep(arena.chance.uniform(0, 0.02))
    middle, at = is_under_way(pending) or not arena.line.is_answered(opening), time.monotonic()
    for victim in victims:
        arena.say("kill", victim)
        processes.send(victim, signal.SIGKILL)
    answer = arena.line.answer(opening)
    arena.say("open", options, "->", answer)
    if answer.kind:
        expect(answer.kind in ("worker_failed", "sandbox_unavailable", "no_python"), "opening failed with", answer.words)
        answer = answer._replace(data=arena.line.must("open_session", **options))
    opened = arena.note_session(answer.data, options)
    arena.check(opened)
    arena.change(opened)
    arena.check(opened)
    arena.line.must("close_session", target=name)
    del arena.books[name]
    books = others if pending is None else (pending.book, *(other for other in others if other is not pending.book))
    end_work(arena, pending, ENDS if pending and pending.book in others else ("ok",))
    return Effect(middle, at, books, may_die=bool(others))


CHILDREN = {
    "sleep": "import subprocess\n_p = subprocess.Popen(['sleep', '61'])",
    "own session": "import subprocess\n_p = subprocess.Popen(['sleep', '61'], start_new_session=True)",
    "shell": "import subprocess\n_p = subprocess.Popen(['sh', '-c', 'sleep 61; :'])",
}


@kind("kill child")
def kill_child(arena: Arena) -> Effect:
    """The cell is told by its own `wait`; nothing else changes."""
    book = arena.choose()
    how = arena.chance.choice(sorted(CHILDREN))
    pending = arena.begin(book, waits=True, extra=CHILDREN[how])
    worker = arena.family(book).worker.pid
    children: list[processes.Process] = []

    def is_there() -> bool:
        children[:] = [process for process in processes.below(worker) if "sleep 61" in process.command]
        return bool(children)

    arena.wait_for(is_there, "the cell's child is not there")
    at = time.monotonic()
    arena.say("kill children", children)
    processes.send(children[0], signal.SIGKILL)
    end_work(arena, pending, ("ok",))
    # Where an earlier cell has SIGCHLD ignored, the kernel keeps no status and Python reports 0.
    report = arena.execute(book, "_p.wait(), __import__('signal').getsignal(17) == 1")
    expect(report["result"] in ("(-9, False)", "(0, True)"), "the child's end was told as", report["result"])
    return Effect(True, at, (book,))


@kind("kill bridge")
def kill_bridge(arena: Arena) -> Effect:
    """Whatever was asked goes on or was never begun; another client can ask how it ended."""
    book = arena.choose()
    pending = bring_to_work(arena, book)
    middle, at = is_under_way(pending), time.monotonic()
    arena.say("kill bridge")
    arena.line.process.kill()
    lose_client(arena, pending)
    return Effect(middle, at, (book,))


def lose_client(arena: Arena, pending: Pending | None) -> None:
    """The client is gone; what it had asked for may have been done."""
    arena.new_line()
    if pending is None:
        return
    book, operation = pending.book, pending.operation
    book.floating.append(operation)
    book.may.add(operation.number)
    pending.let_go()


@kind("kill daemon")
def kill_daemon(arena: Arena) -> Effect:
    """In the middle of several operations. Every request is answered, sessions that are gone are called so, files are as they were."""
    names = arena.chance.sample(sorted(arena.books), min(len(arena.books), arena.chance.randrange(1, 4)))
    save = arena.save(arena.books[names[-1]]) if arena.chance.random() < 0.3 else None
    pendings = [pending for pending in (bring_to_work(arena, arena.books[name]) for name in names) if pending]
    daemon = processes.look(arena.daemon)
    if daemon is None:
        raise Wrong("the daemon is not there")
    # One that is cut by the kill must leave nothing, and neither keep nor spoil the one that was acknowledged.
    idle = sorted(set(arena.books) - {pending.book.name for pending in pendings})
    saving = arena.line.begin("save_session", target=arena.chance.choice(idle)) if idle and arena.chance.random() < 0.3 else None
    middle, at = any(is_under_way(pending) for pending in pendings), time.monotonic()
    how = arena.chance.choice(DEADLY_TO_DAEMONS)
    arena.say("kill daemon", daemon.pid, how)
    processes.send(daemon, how)
    daemons.outlive(arena, daemon, pendings, saving)
    if save is not None:
        arena.restore(save)
    return Effect(middle, at, tuple(arena.books.values()))


@kind("stop daemon")
def stop_daemon(arena: Arena) -> Effect:
    """By command, mostly in the middle of work. All is saved and comes back, or it is said what does not."""
    names = arena.chance.sample(sorted(arena.books), arena.chance.randrange(1, 4))
    pendings = [pending for pending in (bring_to_work(arena, arena.books[name]) for name in names) if pending]
    busy = any(is_under_way(pending) for pending in pendings)
    at = time.monotonic()
    daemons.come_back(arena, daemons.stop(arena, pendings))
    return Effect(busy, at, tuple(arena.books.values()))
