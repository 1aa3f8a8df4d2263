"""Rich values on their way to the daemon: `display()`, figures, the value of a cell. Runs in the worker.

Each value shown is one frame, written whole between what was printed before and after it. Called by `execute`, by the builtin
`display`, and by what `imported` puts in place of `plt.show` and IPython's `display`.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import select
import signal
import sys
from _thread import get_ident
from typing import Any

from . import errors, rich, unwind, wire
from .output import Output, wait_until_read

MAX_DISPLAYS = 20
_MAX_NOTES = 20
# A daemon that does not get to run for a while may cost the order of what is shown, not more time.
_DRAIN_LIMIT_SECONDS = 0.02

_MAIN_THREAD = get_ident()


class _Notes(list):
    """Notes of one cell, each once and not without end."""

    def append(self, note: str) -> None:
        if len(self) < _MAX_NOTES and note not in self:
            super().append(note)


class Displays:
    """What the running cell shows."""

    def __init__(self, link: Any, output: Output) -> None:
        self._link = link
        self._output = output
        # `matplotlib.pyplot`, from the moment it was imported.
        self.pyplot: Any = None
        # The request whose cell runs now.
        self.request: dict[str, Any] | None = None
        # Whether `finish` has anything to do.
        self.touched = False
        self._notes: list[str] = _Notes()
        self._sent = 0
        self._figures: list[Any] = []
        # From other threads: only the main thread writes frames, because they must not mix with the cell's `done`.
        self._waiting: list[tuple[str, list[rich.Part]]] = []
        _instances.append(self)

    def install(self) -> None:
        builtins.display = _as_builtin(self)  # type: ignore[attr-defined]

    def result(self, value: Any) -> str:
        """Shows the value of a cell in its rich forms, if it has any. Returns its text."""
        self.touched = True
        if rich.shows_itself(value, self._notes):
            return errors.represent(value)
        forms = rich.forms(value, self._notes)
        if forms.parts:
            self._remember_figure(value)
            self._send(forms.title, forms.parts)
        return forms.text

    def show(self, value: Any) -> None:
        """Shows a value in the middle of a cell. One that has no rich form is printed."""
        if id(type(value)) in rich.PLAIN_IDS:
            _print(value if type(value) is str else errors.represent(value))
            return
        self.touched = True
        if self._is_full():
            _print(errors.represent(value))
            return
        if rich.shows_itself(value, self._notes):
            return
        forms = rich.forms(value, self._notes)
        if not forms.parts or self._is_stray():
            _print(forms.text)
            return
        self._remember_figure(value)
        parts = forms.parts
        if not any(part.inline for part in parts):
            text = errors.cut(forms.text, rich.MAX_TEXT_CHARS).encode("utf-8", "backslashreplace")
            parts = [*parts, rich.Part("text/plain", text, inline=True)]
        self._send(forms.title, parts)

    def show_bundle(self, bundle: dict[str, Any]) -> None:
        """Shows a value that comes as a MIME bundle."""
        self.touched = True
        text = bundle.get("text/plain")
        forms = rich.parts(bundle, "the bundle", self._notes)
        if not forms or self._is_stray() or self._is_full():
            _print(str(text))
        else:
            seen = any(part.inline for part in forms)
            # The text stands in for forms that a model cannot be shown; beside one that it can be, it says nothing more.
            kept = (part for part in forms if not seen or part.mime != "text/plain")
            self._send("", [part._replace(inline=part.inline or part.mime == "text/plain") for part in kept])

    def show_figures(self) -> None:
        """`plt.show()`: shows the open figures in order, and closes them."""
        for figure in self._open_figures():
            self._show_and_close(figure)

    def leave_figures(self, draw: bool) -> None:
        """The end of a cell: shows the figures that are still open and were not shown in it, and closes them."""
        figures = self._open_figures()
        if not draw and figures:
            self.touched = True
            self._notes.append(f"{len(figures)} open figure{'s were' if len(figures) > 1 else ' was'} closed without being drawn")
        try:
            for figure in figures if draw else ():
                if not any(figure is shown for shown in self._figures):
                    self._show_and_close(figure)
        finally:
            for figure in self._open_figures():
                self._close(figure)

    def finish(self, notes: list[str]) -> None:
        """After a cell: sends what other threads have shown meanwhile, gives the notes and forgets."""
        waiting, self._waiting = self._waiting, []
        for title, parts in waiting:
            self._write(title, parts)
        notes += self._notes
        self._notes = _Notes()
        self._sent = 0
        self._figures = []
        self.touched = False

    def forget_request(self) -> None:
        """In a forked child: the link is the parent's."""
        self.request = None
        self._waiting = []

    def _is_full(self) -> bool:
        if self._sent < MAX_DISPLAYS:
            return False
        self._notes.append(f"the cell showed more than {MAX_DISPLAYS} values; the others are given as text only")
        return True

    def _is_stray(self) -> bool:
        """Whether there is no cell to show it in: in a forked child, or in a handler between cells."""
        return self.request is None and get_ident() == _MAIN_THREAD

    def _send(self, title: str, parts: list[rich.Part]) -> None:
        if self._is_full():
            return
        parts = rich.bounded(parts, self._notes)
        if not parts:
            return
        self._sent += 1
        if get_ident() == _MAIN_THREAD:
            self._write(title, parts)
        else:
            self._waiting.append((title, parts))

    def _write(self, title: str, parts: list[rich.Part]) -> None:
        request = self.request
        if request is None:
            return
        if unwind.forced:
            raise KeyboardInterrupt
        header = {"ch": request.get("ch", 1), "id": request.get("id", 0), **rich.header(title, parts)}
        frame = wire.encode_frame(header, b"".join(part.data for part in parts))
        self._output.flush()
        # The daemon reads three pipes; it can only know the order if there is something in one of them at a time.
        for fd in self._output.saved.values():
            wait_until_read(fd, _DRAIN_LIMIT_SECONDS)
        try:
            _write_whole(self._link.replies, frame)
        finally:
            while _postponed:
                signal.raise_signal(_postponed.pop())
        wait_until_read(self._link.replies, _DRAIN_LIMIT_SECONDS)

    def _open_figures(self) -> list[Any]:
        try:
            managers = sys.modules["matplotlib._pylab_helpers"].Gcf.figs  # type: ignore[attr-defined]
            return [managers[number].canvas.figure for number in sorted(managers)]
        except (KeyError, AttributeError, TypeError):
            return []

    def _remember_figure(self, value: Any) -> None:
        if self.pyplot is not None:
            self._figures.append(value)

    def _show_and_close(self, figure: Any) -> None:
        try:
            self.show(figure)
        finally:
            self._close(figure)

    def _close(self, figure: Any) -> None:
        try:
            self.pyplot.close(figure)
        except Exception as error:
            self._notes.append(f"a figure could not be closed: {errors.type_name(type(error))}: {errors.message(error)}")


_instances: list[Displays] = []


def _in_child() -> None:
    for displays in _instances:
        displays.forget_request()


os.register_at_fork(after_in_child=_in_child)


class Handle:
    """What `display(..., display_id=...)` returns. Nothing that was shown can be changed; an update is shown anew."""

    def __init__(self, show: Any, display_id: str) -> None:
        self.display_id = display_id
        self.display = self.update = show


def _as_builtin(displays: Displays) -> Any:
    # Found by its name where the session's variables are saved: `from IPython.display import display` makes it one.
    def display(*values: Any, raw: bool = False, display_id: Any = None, **options: Any) -> Any:
        """Shows values: figures, images, tables, whatever has a `_repr_png_`, `_repr_html_` and so on. Others are printed."""
        for value in values:
            if raw and isinstance(value, dict):
                displays.show_bundle(value)
            else:
                displays.show(value)
        return None if display_id is None else Handle(display, str(display_id))

    display.__module__, display.__qualname__ = "builtins", "display"
    return display


def _print(text: str) -> None:
    stdout = sys.stdout
    if stdout is not None:
        stdout.write(text + "\n")


# Signals that came while a frame was being written, for after it.
_postponed: list[int] = []


def _write_whole(fd: int, frame: bytes) -> None:
    """Writes a frame to its end, whatever signals come. Ours are postponed.

    A handler of the program's may raise between any two steps of Python code, even between a `write` and taking note of how much it
    wrote. The buffer is C code and keeps count; what it has not written yet it writes at the next attempt.
    """
    pipe = io.BufferedWriter(io.FileIO(fd, "wb", closefd=False), len(frame) + 1)
    pipe.write(frame)
    raised: BaseException | None = None
    while True:
        try:
            pipe.flush()
            break
        except BaseException as error:
            if not isinstance(error, OSError) or not wire.raised_by_call(error):
                raised = raised or error
            elif isinstance(error, BlockingIOError):
                waiting = select.poll()
                waiting.register(fd, select.POLLOUT)
                waiting.poll()
            else:
                # Nobody reads any more. The main loop will notice.
                return
    if raised is not None:
        raise raised


unwind.stand_for_cell(
    _write_whole,
    functools.partial(_postponed.append, int(signal.SIGINT)),
    functools.partial(_postponed.append, int(unwind.FORCE_SIGNAL)),
)
