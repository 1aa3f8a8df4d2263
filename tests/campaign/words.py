"""What the product says became of a session, read from its own words. The one place that knows the sentences."""

from __future__ import annotations

import re
from typing import NamedTuple

ROLLED_BACK = re.compile(
    r"^the session was rolled back to where it was (?:after cell (\d+)|before its first cell)"
    r"(?:: what cells? (\d+)(?: to (\d+))? did is lost)?$"
)
RESTARTED = re.compile(r"^the session was restarted(: all variables are gone)?$")
STARTED_AGAIN = "the session was started again"
# Of a session that was busy when its daemon was stopped: from which checkpoint it was saved, and what that lacks.
ABANDONED = re.compile(
    r"^a cell was running when it was saved, and so it is as it was (?:after cell (\d+)|before its first cell)"
    r"(?:: what cells? (\d+)(?: to (\d+))? did is lost)?$"
)
# Of a session whose daemon is gone, by whoever is asked for it.
GONE = re.compile(r"the daemon that ran it was killed, or the machine went down|the daemon ended \(")
RESTORED = re.compile(r"^(?:no variable was|(\d+) variables? (?:was|were)) restored(?:: (.*))?$")
NOT_SAVED = "the variables it had were not saved"
KEPT = "what the cell had done until then was kept"
NOT_RESTARTED = re.compile(
    r"^(?:the session could not be restarted|its worker ended again and again while nothing ran)( and all variables are gone)?(?:[:;] |$)"
)
# Of a cell that ran when its session was closed.
CLOSED = "the session was closed while this cell ran: the daemon ended (somebody stopped it)"
# Of `pylair stop`: a session none of whose variables could be saved.
NOT_SAVED_AT_STOP = re.compile(r"^not saved: the (?:variables|definition) of session (\S+) \(", re.MULTILINE)
DAEMON_DIED = re.compile(r"the pylair daemon died\b.*\ball sessions and their variables are gone", re.DOTALL)


class Wrong(Exception):
    """The product did not keep a promise."""

    verdict = "wrong"


class Unexplained(Wrong):
    """Something is lost and nobody was told."""

    verdict = "unexplained"


class LeftOver(Wrong):
    """Something stayed behind."""

    verdict = "left over"


def expect(condition: object, *what: object) -> None:
    if not condition:
        raise Wrong(" ".join(str(part) for part in what))


class Move(NamedTuple):
    """Where a session was put, as the notes say."""

    # The cell after whose end it is; None for a new worker.
    cell: int | None
    # First and last of the cells that the notes call lost, if they do.
    lost: tuple[int, int] | None
    # All variables are said to be gone.
    all_gone: bool = False
    # Variables came back from a save.
    restored: tuple[str, ...] | None = None


def place(match: re.Match[str] | None) -> dict[str, object]:
    """Where a sentence says that a session is, and what it calls lost."""
    assert match is not None
    lost = (int(match.group(2)), int(match.group(3) or match.group(2))) if match.group(2) else None
    return {"cell": int(match.group(1) or 0), "lost": lost}


def moves(notes: list[str]) -> list[Move]:
    """All that notes say about where the session was put, in their order."""
    found: list[Move] = []
    for note in notes:
        back, dead = ROLLED_BACK.match(note), NOT_RESTARTED.match(note)
        if back:
            found.append(Move(**place(back)))  # type: ignore[arg-type]
        elif RESTARTED.match(note):
            found.append(Move(None, None, all_gone="gone" in note))
        elif dead:
            found.append(Move(None, None, all_gone=bool(dead.group(1))))
        elif note == STARTED_AGAIN:
            found.append(Move(None, None))
        elif ABANDONED.match(note) and found:
            found[-1] = found[-1]._replace(**place(ABANDONED.match(note)))
        elif note == NOT_SAVED and found:
            found[-1] = found[-1]._replace(all_gone=True)
        elif RESTORED.match(note) and found:
            names = (RESTORED.match(note) or [None, None, None])[2]
            found[-1] = found[-1]._replace(restored=tuple((names or "").split(", ")) if names else ())
    return found


def is_kept(notes: list[str]) -> bool:
    return any(note.endswith(KEPT) for note in notes)
