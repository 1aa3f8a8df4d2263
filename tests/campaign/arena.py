"""One daemon with a home of its own, its clients, and the books of its sessions."""

from __future__ import annotations

import copy
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Iterable

import processes
from doors import PATIENCE, Answer, Gone, Line, Web
from home import Home
from model import READ, STEPS, Book, Operation, values, write_operation
from words import Wrong, expect, moves

# How often a bridge may be quicker than `pylair serve`.
SERVE_ATTEMPTS = 5
# A cell that waits in its middle ends by itself after a while, whoever forgets it.
WAIT = """import os as _os, time as _time
open({gate!r}, 'w').close()
for _ in range(20000):
    if _os.path.exists({release!r}): break
    _time.sleep(0.003)"""


class Pending:
    """A cell that somebody waits for."""

    def __init__(self, book: Book, operation: Operation, line: Line, request: int, gate: Path | None, release: Path) -> None:
        self.book, self.operation = book, operation
        self.line, self.request = line, request
        self.gate, self.release = gate, release

    @classmethod
    def of(cls, arena: Arena, book: Book, operation: Operation, **arguments: Any) -> Pending:
        request = arena.line.begin("execute", code=operation.code, target=book.name, output="json", **arguments)
        arena.say("begin", book.name, operation.number, operation.code)
        return cls(book, operation, arena.line, request, None, book.file)

    def let_go(self) -> None:
        self.release.touch()


class Arena:
    """What faults are done to."""

    def __init__(self, chance: random.Random, python: str, serves: bool, small_disk: Callable[[Path], None] | None = None) -> None:
        self.chance, self.serves = chance, serves
        self.home = Home({"PYLAIR_PYTHON": python})
        if small_disk is not None:
            small_disk(self.home.path)
        for name in ("tmp", "work"):
            (self.home.path / name).mkdir()
        self.home.env["TMPDIR"] = str(self.home.path / "tmp")
        self.log: list[str] = []
        self.books: dict[str, Book] = {}
        self.numbers = 0
        # Whether this machine has sandboxes; asked once.
        self.can_confine = True
        self.gates = 0
        # Sessions that are gone for good, with words.
        self.losses = 0
        self.deaths = 0
        self.templates_killed = False
        self.strays_may_stay = False
        self.daemons: list[int] = []
        if serves:
            self.home.serve()
        self.retired: list[Line] = []
        self.line = Line(self.home)
        self.web = Web(self.home)
        self.note_daemon()

    def say(self, *words: object) -> None:
        self.log.append(" ".join(str(brief(word)) for word in words)[:1000])

    # The daemon.

    @property
    def daemon(self) -> int:
        return self.daemons[-1]

    def note_daemon(self) -> None:
        pid = self.line.must("get_status")["daemon"]["pid"]
        if not self.daemons or self.daemons[-1] != pid:
            self.daemons.append(pid)

    def new_line(self) -> None:
        """Another client in the place of the one that is gone."""
        self.line.go()
        self.retired.append(self.line)
        self.line = Line(self.home)
        self.deaths = 0

    # Sessions.

    def open(self, name: str, **options: Any) -> Book:
        self.say("open", name, options)
        status = self.line.must("open_session", **self.opening(name, options))
        return self.note_session(status, options)

    def opening(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `open_session`."""
        cwd = {} if options.get("sandbox", "open") != "open" else {"cwd": str(self.home.path / "work")}
        return {"name": name, **cwd, **options}

    def note_session(self, status: dict[str, Any], options: dict[str, Any]) -> Book:
        name, handle, sandbox = status["name"], status["handle"], status["sandbox"]
        own = self.home.path / "data/workspaces" / handle / "lines.txt"
        file = self.home.path / "work" / f"{handle}.txt" if sandbox == "open" else own
        self.books[name] = Book(name, handle, file, options)
        return self.books[name]

    def seen_file(self, book: Book) -> str:
        return book.file.name

    def status(self, book: Book) -> dict[str, Any]:
        told = self.line.must("get_status", target=book.name)
        book.hear(told)
        if book.heard:
            self.see_floating(book, told["session"]["cell"] + 1)
            book.absorb()
        return told["session"]

    def ask(self, book: Book, tool: str, **arguments: Any) -> Answer:
        """Any question about a session but for cells. What became of the session meanwhile is told with the answer."""
        answer = self.line.ask(tool, target=book.name, **arguments)
        book.hear(answer.data)
        if book.heard and book.floating:
            # Cells that nobody has seen the end of came before.
            self.status(book)
        book.absorb()
        return answer

    def family(self, book: Book) -> processes.Family:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = processes.family_of(self.status(book)["pid"] or 0)
            if found is not None:
                return found
            time.sleep(0.01)
        raise Wrong(f"{book.name} has no worker")

    def choose(self, only: Iterable[str] | None = None) -> Book:
        names = sorted(name for name in self.books if only is None or name in only)
        return self.books[self.chance.choice(names)]

    # Operations.

    def operation(self, book: Book, waits_after: int | None = None, extra: str = "") -> tuple[Operation, Path, Path]:
        self.numbers += 1
        self.gates += 1
        gate = book.file.parent / f"gate-{self.gates}"
        release = book.file.parent / f"go-{self.gates}"
        waits = None
        if waits_after is not None:
            waits = (waits_after, WAIT.format(gate=gate.name, release=release.name))
        return write_operation(self.numbers, self.seen_file(book), waits, extra), gate, release

    def cut(self, book: Book, code: str) -> Operation:
        """An operation with this code somewhere behind its line."""
        self.numbers += 1
        return write_operation(self.numbers, self.seen_file(book), (self.chance.randrange(STEPS + 1), code))

    def begin(self, book: Book, waits: bool, line: Line | None = None, extra: str = "", **arguments: Any) -> Pending:
        """Sends an operation; one that waits is in its middle when this returns."""
        line = line or self.line
        after = self.chance.randrange(STEPS + 1) if waits else None
        operation, gate, release = self.operation(book, after, extra)
        self.say("begin", book.name, operation.number, f"waits after {after}", arguments)
        request = line.begin("execute", code=operation.code, target=book.name, output="json", **arguments)
        pending = Pending(book, operation, line, request, gate if waits else None, release)
        if waits:
            self.wait_for_gate(pending)
        return pending

    def wait_for_gate(self, pending: Pending) -> None:
        gate = pending.gate
        assert gate is not None
        self.wait_for(lambda: gate.exists() or pending.line.is_answered(pending.request), "a cell did not begin")
        if not gate.exists():
            raise Wrong(f"a cell was answered before it had begun: {pending.line.answer(pending.request)}")
        pending.book.reach(pending.operation)

    def wait_for(self, condition: Callable[[], object], otherwise: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise Wrong(otherwise)
            time.sleep(0.001)

    def settle_requests(self, book: Book) -> None:
        """Whatever a client that is gone had asked for has ended, or will never begin."""
        self.wait_until_idle(book)

    def finish(self, pending: Pending, outcomes: tuple[str, ...] = ("ok",)) -> Answer:
        answer = pending.line.answer(pending.request)
        self.say("->", answer)
        if answer.kind:
            raise Wrong(f"an operation was answered with {answer.words}")
        self.settle(pending.book, pending.operation, answer.data, outcomes)
        return answer

    def settle(self, book: Book, operation: Operation | None, report: dict[str, Any], outcomes: tuple[str, ...]) -> None:
        self.see_floating(book, report["cell"])
        book.absorb()
        book.settle(operation, report, outcomes)

    def see_floating(self, book: Book, upto: int) -> None:
        """Cells before this one that nobody has seen the end of: operations whose request was cut."""
        while book.cell + 1 < upto:
            job = book.job(book.cell + 1)
            answer = self.line.ask("get_job", job=job, output="json")
            self.say("found", job, answer)
            expect(not answer.kind, "a cell that was begun is not known any more:", job, answer.words)
            operation = self.floating_of(book, book.cell + 1)
            book.floating.remove(operation)
            book.settle(operation, answer.data, ("ok", "raised", "interrupted", "died", "timed_out"))

    def floating_of(self, book: Book, cell: int) -> Operation:
        """Which of the operations whose request was cut has this cell."""
        if len(book.floating) == 1:
            return book.floating[0]
        told = self.line.must("get_history", target=book.name, limit=20)
        book.hear(told)
        entries = told["entries"]
        code = next((entry["code"] for entry in entries if entry.get("cell") == cell and "code" in entry), None)
        found = [operation for operation in book.floating if operation.code == code]
        expect(found, "a cell that nobody asked for was run:", code)
        return found[0]

    def change(self, book: Book) -> None:
        """One operation from begin to end."""
        self.finish(self.begin(book, waits=False))

    def work(self, book: Book) -> None:
        """Something ordinary, whose answer must be true."""
        ways = [self.change, self.change, self.change, self.undo, self.branch, self.look, self.save_and_restore]
        self.chance.choice(ways)(book)

    def undo(self, book: Book) -> None:
        answer = self.line.ask("undo", target=book.name)
        self.say("undo", book.name, answer)
        if answer.kind:
            expect(answer.kind in ("nothing_to_undo", "no_checkpoint"), "undo was answered with", answer.words)
            book.hear(answer.data)
            book.absorb()
            return
        for move in moves(answer.data["notes"])[:-1]:
            book.move(move, book.cell + 1)
        book.undo(answer.data["cell"], answer.data["undone"])

    def branch(self, book: Book) -> None:
        """A copy has the same state, and its end is nothing to the original."""
        self.gates += 1
        name = f"branch{self.gates}"
        answer = self.ask(book, "branch_session", name=name)
        self.say("branch", book.name, answer)
        if answer.kind:
            expect(answer.kind in ("cannot_branch", "no_checkpoint"), "branching was answered with", answer.words)
            return
        report = self.line.must("execute", code=READ, target=name, output="json")
        self.say("->", report)
        expect(not moves(report["notes"]), "a branch begins with", report["notes"])
        book.read_back(report["result"])
        if self.chance.random() < 0.5:
            self.line.must("execute", code="import os\nos._exit(1)", target=name, output="json")
        self.line.must("close_session", target=name)

    def look(self, book: Book) -> None:
        """Without a cell."""
        answer = self.ask(book, "inspect", path="n")
        self.say("look", book.name, answer.words or answer.data)
        expected = values(book.state)
        if expected is None:
            expect(answer.kind, "there is a value that nobody made:", answer.data)
        else:
            expect(not answer.kind and f"{expected[1]}" in json.dumps(answer.data), "`n` is", answer, "instead of", expected[1])

    def save_and_restore(self, book: Book) -> None:
        self.restore(self.save(book))

    def execute(self, book: Book, code: str, outcomes: tuple[str, ...] = ("ok",), **arguments: Any) -> dict[str, Any]:
        """A cell that is no operation."""
        self.say("execute", book.name, code[:200])
        report = self.report(book, code, **arguments)
        self.say("->", report)
        self.settle(book, None, report, outcomes)
        return report

    def report(self, book: Book, code: str, **arguments: Any) -> dict[str, Any]:
        """How a cell ended, once those are over that somebody who is gone had asked for."""
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.line.ask("execute", code=code, target=book.name, output="json", **arguments)
            if answer.kind == "":
                return answer.data
            if answer.kind != "busy" or not book.floating or time.monotonic() > until:
                raise Wrong(f"a cell of {book.name} was answered with {answer.words}")
            self.wait_until_idle(book)

    def check(self, book: Book, may_die: bool = False) -> None:
        """The variables and the file are what they must be. A death that nobody has noticed yet may be that of the cell that looks."""
        outcomes = ("ok", "raised", "died") if may_die else ("ok", "raised")
        report = self.report(book, READ)
        self.say("check", book.name, report["result"], report["notes"], report["error"])
        self.settle(book, None, report, outcomes)
        if report["outcome"] == "died":
            self.check(book)
            return
        if report["outcome"] == "raised":
            expect(report["error"]["type"] == "NameError", report["error"])
        book.read_back(report["result"])
        book.check_file()

    def run(self, book: Book, operation: Operation, outcomes: tuple[str, ...], **arguments: Any) -> dict[str, Any]:
        """An operation of one's own making."""
        return self.finish(Pending.of(self, book, operation, **arguments), outcomes).data

    def wait_for_state(self, book: Book, busy: bool) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            status = self.status(book)
            if status["busy"] == busy:
                return status
        raise Wrong(f"{book.name} does not become {'busy' if busy else 'idle'}")

    def start_over(self, book: Book) -> None:
        """By request, with everything gone."""
        self.say("restart", book.name)
        self.line.must("restart_session", target=book.name)
        book.heard.clear()
        book.empty()

    def wait_until_idle(self, book: Book) -> None:
        """A cell whose client is gone may still run."""
        if not book.floating:
            return
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            status = self.status(book)
            if not status["busy"]:
                return
            self.line.must("get_job", job=status["job"], output="json")
        raise Wrong(f"{book.name} does not become idle")

    def checkpointed(self, book: Book) -> None:
        """Waits until the state of now can be gone back to, or the product says why it cannot."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            status = self.status(book)
            if book.lineage[-1] in (0, *status["checkpoints"]) or status["checkpoint_skipped"]:
                return
            time.sleep(0.005)
        raise Wrong(f"{book.name} gets no checkpoint")

    def serve_again(self) -> bool:
        """Returns whether a daemon that a bridge had started meanwhile was stopped for it."""
        if not self.serves:
            return False
        server = self.home._server
        assert server is not None
        server.wait(PATIENCE)
        assert server.stdout is not None
        server.stdout.close()
        for attempt in range(SERVE_ATTEMPTS):
            try:
                self.home.serve()
                return attempt > 0
            except AssertionError as error:
                if "a daemon is running already" not in str(error):
                    raise
                self.say("stop", self.home.run("stop"))
        raise Wrong("bridges start one daemon after the other")

    # Saves.

    def save(self, book: Book) -> tuple[str, Book]:
        """What was acknowledged as saved must come back, whatever happens to the daemon. The book is as it was then."""
        answer = self.ask(book, "save_session")
        expect(not answer.kind, "a save was answered with", answer.words)
        return self.saved(book, answer.data)

    def saved(self, book: Book, report: dict[str, Any]) -> tuple[str, Book]:
        self.say("save", book.name, report)
        saved = {variable["name"] for variable in report["saved"]}
        expect(book.state is None or saved >= {"ops", "n", "d"}, "saved is only", report)
        return report["save"], copy.copy(book)

    def restore(self, saved: tuple[str, Book]) -> None:
        save, then = saved
        name = f"restored{self.gates}"
        self.gates += 1
        status = self.line.must("open_session", name=name, restore=save, sandbox=then.sandbox)
        report = self.line.must("execute", code=READ, target=name, output="json")
        self.say("restored", save, report)
        then.name = name
        then.read_back(report["result"])
        self.line.must("close_session", target=status["name"])

    def close(self) -> str:
        """Stops the daemon; what it said."""
        for line in [*self.retired, self.line]:
            line.leave()
        stopped = self.home.run("stop")
        self.say("stop", stopped.returncode, stopped.stdout, stopped.stderr)
        expect(stopped.returncode == 0, "stop failed:", stopped.stderr)
        server = self.home._server
        if server is not None:
            server.wait(PATIENCE)
            assert server.stdout is not None
            server.stdout.close()
        return stopped.stdout

    def remove(self) -> None:
        shutil.rmtree(self.home.path, ignore_errors=True)


def brief(value: Any) -> Any:
    """What of an answer tells something."""
    if isinstance(value, Answer):
        return value.words if value.kind else brief(value.data)
    if isinstance(value, dict):
        told = ("cell", "outcome", "result", "error", "notes", "kind", "message", "name", "handle", "pid", "state", "checkpoints")
        return {key: value[key] for key in told if value.get(key) not in (None, [], {})}
    return value


__all__ = ["Answer", "Arena", "Gone", "Pending"]
