"""Daemons that end, by force or because they are told to, and what the next one says of their sessions."""

from __future__ import annotations

import json

import processes
from arena import Arena, Pending
from doors import Answer
from model import READ, STEPS, Book, after_steps
from words import CLOSED, DAEMON_DIED, GONE, NOT_SAVED_AT_STOP, Unexplained, Wrong, expect, moves

# A bridge gives up when daemons die under it several times within seconds, which is right; so a client does not stay for more.
MOST_DEATHS = 2


def outlive(arena: Arena, daemon: processes.Process, pendings: list[Pending], saving: int | None) -> None:
    """The daemon was killed: what it answered, what the next one says, and sessions anew in place of those that are gone."""
    # Into its last moments: answered by it, by the bridge or by the next one.
    late = None if arena.serves or arena.chance.random() < 0.5 else arena.line.begin("list_targets")
    answers = hear_of_death(arena, pendings)
    answers += [arena.line.answer(request) for request in (saving, late) if request is not None]
    words = json.dumps(answers)
    arena.wait_for(lambda: not processes.is_alive(daemon), "the daemon is still there")
    is_third = arena.serve_again()
    arena.deaths += 1
    if is_third or arena.deaths > MOST_DEATHS or arena.chance.random() < 0.3:
        arena.new_line()
    elif "a new one was started" not in words:
        hear_of_next(arena)
    arena.note_daemon()
    for book in list(arena.books.values()):
        book.floating.clear()
        ask_for_gone(arena, book)


def hear_of_death(arena: Arena, pendings: list[Pending]) -> list[Answer]:
    """Every request that was under way has an answer: of the daemon if it ended in time, of the next daemon if it was still
    unread in the client's pipe, else of the bridge."""
    answers = []
    for pending in pendings:
        book = pending.book
        answer = pending.line.answer(pending.request)
        arena.say("->", answer)
        answers.append(answer)
        if answer.kind == "":
            if any(move.all_gone for move in moves(answer.data["notes"])):
                # The next daemon ran it in a new worker. The numbers of the last second's cells went with the old one.
                book.cell = answer.data["cell"] - 1
            arena.settle(book, pending.operation, answer.data, ("ok",))
        elif answer.kind == "closed_session" and GONE.search(answer.words):
            # The next daemon refused it, so the cell must never run: no line in the file is excused.
            pass
        elif DAEMON_DIED.search(answer.words):
            book.may.add(pending.operation.number)
        else:
            raise Unexplained(f"a request that died with the daemon was answered with {answer.words}")
    return answers


def hear_of_next(arena: Arena) -> None:
    """The first answer of the next daemon says what became of the one before."""
    answer = arena.line.ask("list_targets")
    arena.say("first answer", answer.words or answer.data)
    if not DAEMON_DIED.search(json.dumps([answer.data, answer.words])):
        raise Unexplained(f"the first answer of the next daemon is {answer}")


def ask_for_gone(arena: Arena, book: Book) -> None:
    """A session of the daemon that was killed: a kept one comes back empty and says so, any other is not there."""
    if book.keep:
        report = arena.line.must("execute", code=READ, target=book.name, output="json")
        arena.say("gone", book.name, report)
        book.cell = report["cell"] - 1
        arena.settle(book, None, report, ("ok", "raised"))
        book.read_back(report["result"])
        return
    answer = arena.line.ask("execute", code=READ, target=book.name, output="json")
    arena.say("gone", book.name, answer)
    if answer.kind not in ("unknown_session", "closed_session"):
        raise Wrong(f"a session of a daemon that was killed answers {answer}")
    reopen(arena, book, answer.words)


def reopen(arena: Arena, book: Book, words: str, is_told: bool = False) -> None:
    """A session that is gone for good, which is said here unless it was told before; another takes its place."""
    if book.state is not None and not is_told and not GONE.search(words):
        raise Unexplained(f"{book.name} held something and is answered with {words}")
    arena.losses += book.state is not None
    if book.sandbox == "open":
        book.check_file()
    arena.open(book.name, **book.options)


def stop(arena: Arena, pendings: list[Pending]) -> set[str]:
    """The daemon leaves because it is told to. What is under way is answered. Returns the sessions that it says it could not save."""
    arena.say("stop")
    stopped = arena.home.run("stop")
    arena.say("->", stopped.returncode, stopped.stdout, stopped.stderr)
    expect(stopped.returncode == 0, "stop failed:", stopped.stderr)
    for pending in pendings:
        answer = pending.line.answer(pending.request)
        arena.say("->", answer)
        book, operation = pending.book, pending.operation
        if answer.kind == "session_gone":
            # It came when the session was saved already, and was not begun.
            continue
        if answer.kind:
            expect(answer.kind == "daemon_stopped", "a request was answered with", answer.words)
            # It may have been begun; what became of its session the next daemon says.
            book.may.add(operation.number)
            book.floating.append(operation)
        elif CLOSED in json.dumps(answer.data["notes"]) and not moves(answer.data["notes"]):
            # There was no checkpoint to save the session from: the next daemon says what became of it.
            book.close(operation, answer.data)
        else:
            arena.settle(book, operation, answer.data, ("ok", "died"))
    return set(NOT_SAVED_AT_STOP.findall(stopped.stdout))


def come_back(arena: Arena, not_saved: set[str]) -> None:
    """The next daemon brings back what was saved: all, unless the one before said that it could not."""
    start_again(arena)
    ask_for_saved(arena, not_saved)


def start_again(arena: Arena) -> None:
    arena.serve_again()
    arena.new_line()
    arena.note_daemon()


def ask_for_saved(arena: Arena, not_saved: set[str]) -> None:
    for book in list(arena.books.values()):
        before = book.state
        answer = arena.line.ask("execute", code=READ, target=book.name, output="json")
        arena.say("back", book.name, answer)
        is_told = book.name in not_saved
        if answer.kind:
            expect(answer.kind in ("unknown_session", "closed_session"), book.name, "answers", answer.words)
            if before is not None and not is_told:
                raise Unexplained(f"{book.name} does not come back, and `stop` did not say so: {answer.words}")
            reopen(arena, book, answer.words, is_told)
            continue
        notes = answer.data["notes"]
        held = [before if move.cell is None else book.after.get(move.cell) for move in moves(notes) if move.all_gone]
        if any(held) and not is_told:
            raise Unexplained(f"{book.name} comes back empty, and `stop` did not say so: {notes}")
        see_unanswered(book, answer.data["cell"], notes)
        arena.settle(book, None, answer.data, ("ok", "raised"))
        book.read_back(answer.data["result"])


def see_unanswered(book: Book, upto: int, notes: list[str]) -> None:
    """The daemon that ran these cells left before anybody was told how they ended; without a word they came to their end."""
    unseen = upto - book.cell - 1
    expect(unseen <= len(book.floating), "cells that nobody asked for were run:", unseen)
    if unseen and all(move.cell is None and not move.all_gone for move in moves(notes)):
        for operation in book.floating[-unseen:]:
            book.state = after_steps(book.state, operation.number, STEPS)
    book.cell = upto - 1
    book.floating.clear()
