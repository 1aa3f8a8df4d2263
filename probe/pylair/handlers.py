"""Keeps the program's signal handlers out of the probe's own code. Runs in the worker, on its main thread.

Python runs a handler between any two steps of whatever the main thread does, and what it raises comes out there: of a cell, which is
right, or of the probe between two cells, which would end the worker or lose a request. So handlers of the program's are in place while a
cell runs and while the worker waits for a request; otherwise a signal of theirs is only remembered.
"""

from __future__ import annotations

import select
import signal
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from _signal import signal as _signal
from typing import Any

from . import errors, unwind

_MAX_NOTES = 5
# The signals that programs have handlers for. One for another is noticed when it raises.
_USUAL = tuple(int(getattr(signal, "SIG" + name)) for name in ("ALRM", "CHLD", "HUP", "PROF", "TERM", "USR2", "VTALRM"))


class Handlers:
    """`own` are the numbers of signals that the probe handles itself."""

    def __init__(self, own: tuple[int, ...]) -> None:
        self._numbers = tuple(number for number in range(1, signal.NSIG) if number not in own)
        # The program's handlers by the numbers of their signals; mostly there are none.
        self.theirs: dict[int, Any] = {}
        self._usual: list[Any] = []
        self._ours: tuple[Any, ...] = ()
        # Signals that came while their handler was not in place. What remembers them is C code, so that it cannot raise.
        self._pending: dict[int, Any] = {}
        self._remember = self._pending.setdefault
        self._notes: list[str] = []

    def know(self) -> None:
        """Takes the handlers that are in place now for the probe's own."""
        self._usual = list(map(_getsignal, _USUAL))
        self._ours = tuple(map(_getsignal, self._numbers))

    def look(self) -> None:
        """After a cell: notes what it installed, and takes it away for now."""
        if self.theirs or not _are_same(list(map(_getsignal, _USUAL)), self._usual):
            self.look_closely()

    def look_closely(self) -> None:
        """The same for all signals."""
        for number, ours in zip(self._numbers, self._ours):
            handler = _getsignal(number)
            if handler is self._remember:
                continue
            if handler is ours or handler is None or type(handler) is int:
                self.theirs.pop(number, None)
            else:
                self.theirs[number] = handler
        self.take_away()
        self._usual = list(map(_getsignal, _USUAL))

    def take_away(self) -> None:
        for number in self.theirs:
            _signal(number, self._remember)

    def put_back(self) -> None:
        for number, handler in self.theirs.items():
            _signal(number, handler)

    def wait(self, fd: int) -> None:
        """Waits until there is something to read, with the program's handlers in place. What they raise is kept for a note."""
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        is_ready = False
        while not is_ready:
            try:
                self.put_back()
                while self._pending:
                    signal.raise_signal(self._pending.popitem()[0])
                is_ready = bool(waiting.poll())
            except BaseException as error:
                self._note(error)
        are_away = False
        while not are_away:
            try:
                self.look_closely()
                are_away = True
            except BaseException as error:
                self._note(error)

    def raised(self, error: BaseException) -> bool:
        """Whether an exception that came out of the probe's code was raised by a handler of the program's. They are taken away then."""
        entry: Any = errors.traceback_of(error)
        while entry.tb_next is not None:
            entry = entry.tb_next
        if entry.tb_frame.f_code.co_filename.startswith(unwind.OUR_PREFIX):
            return False
        self.look_closely()
        self._note(error)
        return True

    def notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def _note(self, error: BaseException) -> None:
        try:
            note = f"a signal handler raised {errors.type_name(type(error))} between two cells: {errors.cut(errors.message(error), 300)}"
            if note not in self._notes and len(self._notes) < _MAX_NOTES:
                self._notes.append(note)
        except BaseException:
            # Its next signal came.
            pass


def _are_same(some: list[Any], others: list[Any]) -> bool:
    try:
        return some == others
    except BaseException:
        # Two that are not the same object were compared by the program's `__eq__`.
        return False
