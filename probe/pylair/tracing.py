"""Keeps the program's trace functions, profilers and monitoring tools off the probe's own code. Runs in the template and in workers.

CPython calls none of them while one of them is running. So a template serves inside a trace function of ours, and with it all workers
that are forked from it; what is the program's is run by `run_program`, where they see it again. A tool that raises does so in the
program, and what a cell installed is still there for the next one.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

# Calls a function with a tuple of arguments, seen by whatever the program has installed.
run_program = sys.call_tracing


def run_unseen(function: Callable[[], Any]) -> None:
    """Calls a function in which nothing is traced, profiled or monitored."""

    def enter(*_: Any) -> None:
        _settrace(None)
        function()

    def trigger() -> None:
        pass

    _settrace(enter)
    trigger()


_settrace = sys.settrace
