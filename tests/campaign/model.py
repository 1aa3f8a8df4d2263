"""What is known of a session: every operation, whether it was acknowledged, and the only states it may be in.

The state of a session is a list of operations, each done in steps: its number is appended to `ops`, then added to `n`, then put into
`d`. A cell that is cut in the middle leaves a state in which one of them is done in part, which is told apart from everything else.
Before its steps an operation appends its number to a file of the workspace, which no rollback takes back: there every acknowledged
operation must be exactly once.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, NamedTuple

from words import Move, Unexplained, Wrong, expect, is_kept, moves

STEPS = 3
# Of `d`: so that operations overwrite what others wrote.
PLACES = 5

READ = "ops, n, d"


class Step(NamedTuple):
    """An operation as far as it was done."""

    number: int
    steps: int


# What the variables hold. None before the first operation.
State = "tuple[Step, ...] | None"


def values(state: tuple[Step, ...] | None) -> Any:
    """What `READ` gives; None where the names do not exist."""
    if state is None:
        return None
    d: dict[int, int] = {}
    for number, steps in state:
        if steps >= 3:
            d[number % PLACES] = number
    return [number for number, _ in state], sum(number for number, steps in state if steps >= 2), d


def after_steps(state: tuple[Step, ...] | None, number: int, steps: int) -> tuple[Step, ...] | None:
    """The names exist before the first step is done."""
    return (*(state or ()), Step(number, steps)) if steps else state or ()


class Operation(NamedTuple):
    """A cell that changes the session."""

    number: int
    code: str
    # Steps that are done when it waits in its middle; all of them when it does not.
    steps: int = STEPS


def write_operation(number: int, file: str, waits: tuple[int, str] | None = None, extra: str = "") -> Operation:
    """`waits` is after which step, and the code that waits there. `extra` runs first."""
    lines = [extra] if extra else []
    lines += [f"with open({file!r}, 'a') as _f:", f"    _f.write('{number}\\n')"]
    lines += ["try: ops", "except NameError: ops, n, d = [], 0, {}"]
    steps = [f"ops.append({number})", f"n += {number}", f"d[{number} % {PLACES}] = {number}"]
    for done, step in enumerate(steps):
        if waits and waits[0] == done:
            lines.append(waits[1])
        lines.append(step)
    if waits and waits[0] == STEPS:
        lines.append(waits[1])
    return Operation(number, "\n".join(lines), waits[0] if waits else STEPS)


class Book:
    """One session as it must be."""

    def __init__(self, name: str, handle: str, file: Path, options: dict[str, Any]) -> None:
        self.name, self.handle, self.file = name, handle, file
        # As it was opened.
        self.options = {key: value for key, value in options.items() if key not in ("name", "cwd")}
        self.keep, self.sandbox = bool(options.get("keep")), str(options.get("sandbox", "open"))
        # The newest cell that is known of.
        self.cell = 0
        self.state: tuple[Step, ...] | None = None
        # The cells whose effects it holds, and the state after each.
        self.lineage: list[int] = [0]
        self.after: dict[int, tuple[Step, ...] | None] = {0: None}
        # Operations of which the file must, or may, have a line.
        self.must: set[int] = set()
        self.may: set[int] = set()
        # Operations whose request was cut; if they were begun at all, a cell that nobody has seen is theirs.
        self.floating: list[Operation] = []
        self.losses = 0
        # Where the session was put while nobody asked, as answers about it said, and the model has not followed yet.
        self.heard: list[Move] = []

    def job(self, cell: int) -> str:
        return f"{self.handle}-{cell}"

    # Cells.

    def settle(self, operation: Operation | None, report: dict[str, Any], outcomes: tuple[str, ...] = ("ok",)) -> None:
        """Checks the end of a cell, and moves the model to where the answer says that the session is."""
        cell, outcome = report["cell"], report["outcome"]
        expect(outcome in outcomes, self.name, "ended as", outcome, "instead of", outcomes, report)
        expect(cell == self.cell + 1, self.name, "has cell", cell, "after", self.cell)
        self.cell = cell
        moved = moves(report["notes"])
        # What was moved before this cell was brought back for it; what was moved after it lost it.
        goes_on = outcome in ("ok", "raised") or is_kept(report["notes"])
        for move in moved if goes_on else moved[:-1]:
            self.move(move, cell)
        if goes_on:
            self.hold(operation, report, cell)
            return
        if operation is not None:
            self.may.add(operation.number)
        if not moved:
            raise Unexplained(f"{self.name} ended as {outcome} and nobody says what became of it: {report}")
        self.move(moved[-1], cell)

    def close(self, operation: Operation, report: dict[str, Any]) -> None:
        """Its daemon left in the middle of this cell, with nothing to go back to."""
        expect(report["cell"] == self.cell + 1, self.name, "has cell", report["cell"], "after", self.cell)
        self.cell = report["cell"]
        self.may.add(operation.number)

    def reach(self, operation: Operation) -> None:
        """It was seen to wait in its middle, so that it has written its line."""
        self.must.add(operation.number)

    def hold(self, operation: Operation | None, report: dict[str, Any], cell: int) -> None:
        if operation is not None:
            steps = STEPS if report["outcome"] == "ok" else operation.steps
            if report["outcome"] == "raised" and "No space left" in report["error"]["message"]:
                # It could not write its line, which comes first.
                self.may.add(operation.number)
            else:
                self.must.add(operation.number)
                self.state = after_steps(self.state, operation.number, steps)
        self.lineage.append(cell)
        self.after[cell] = self.state

    def move(self, move: Move, current: int) -> None:
        """The session was put somewhere, by the words of its own notes."""
        before, held = self.state, [cell for cell in self.lineage if cell < current]
        if move.restored is not None:
            self.restore(move)
            return
        if move.cell is None or move.all_gone:
            self.empty()
            if before is not None and not move.all_gone:
                raise Unexplained(f"{self.name} was started anew and lost {values(before)} without a word")
            self.losses += before is not None
            return
        expect(move.cell in held, self.name, "was rolled back to cell", move.cell, "and held", held)
        gone = [cell for cell in held if cell > move.cell]
        named = (gone[0], gone[-1]) if gone else None
        if move.lost != named:
            message = f"{self.name} went back to cell {move.cell}, lost {named} and names {move.lost}"
            raise (Unexplained if named and not move.lost else Wrong)(message)
        self.go_to(move.cell)
        self.losses += bool(gone)

    def hear(self, answer: dict[str, Any]) -> None:
        """Takes from an answer, which may be an error, what became of the session while nobody asked."""
        self.heard += moves(answer.get("notes") or answer.get("hint", "").split("; "))

    def absorb(self) -> None:
        """All cells that were begun before are known."""
        while self.heard:
            self.move(self.heard.pop(0), self.cell + 1)

    def empty(self) -> None:
        self.state, self.lineage, self.after = None, [0], {0: None}

    def undo(self, cell: int, undone: list[int]) -> None:
        """Somebody asked for it, and the answer says how far it went."""
        expect(cell in self.lineage, self.name, "was undone to cell", cell, "and held", self.lineage)
        expect(undone == [later for later in self.lineage if later > cell], "undone are", undone, "of", self.lineage)
        self.go_to(cell)

    def go_to(self, cell: int) -> None:
        self.state = self.after[cell]
        self.lineage = self.lineage[: self.lineage.index(cell) + 1]

    def restore(self, move: Move) -> None:
        """Comes back from what was saved when the daemon left: all of it, or it is said what is missing."""
        if move.cell is not None:
            expect(move.cell in self.after, self.name, "was saved as it was after cell", move.cell, "which is unknown")
            self.losses += self.state != self.after[move.cell]
            self.state = self.after[move.cell]
        if self.state is not None and not set(("ops", "n", "d")) <= set(move.restored or ()):
            raise Unexplained(f"{self.name} came back with {move.restored} instead of {values(self.state)}")
        self.lineage, self.after = [0], {0: self.state}

    def read_back(self, text: str | None) -> None:
        """What the session says that it holds, against what it must."""
        real = None if text is None else ast.literal_eval(text)
        expected = values(self.state)
        if real is not None:
            real = (list(real[0]), real[1], dict(real[2]))
        if real != expected:
            raise Wrong(f"{self.name} holds {real} and should hold {expected}")

    # The file.

    def check_file(self) -> None:
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            text = ""
        lines = [int(line) for line in text.split()]
        twice = sorted({number for number in lines if lines.count(number) > 1})
        expect(not twice, self.name, "ran these operations twice:", twice)
        missing, more = self.must - set(lines), set(lines) - self.must - self.may
        expect(not missing, self.file, "has lost", sorted(missing))
        expect(not more, self.file, "has lines that nobody may have written:", sorted(more))
