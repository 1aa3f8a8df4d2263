"""The processes of one daemon: who is what, found in /proc and never asked for."""

from __future__ import annotations

import os
import signal as signals
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    # Clock ticks since the machine started: with the pid it names one process for ever.
    started: int
    command: str


def look(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), int(fields[19]), command)


def every() -> dict[int, Process]:
    found = (look(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def below(pid: int) -> list[Process]:
    """All descendants, nearest first."""
    processes, found, generation = every(), [], [pid]
    while generation:
        next_generation = [process for process in processes.values() if process.parent in generation]
        found += next_generation
        generation = [process.pid for process in next_generation]
    return found


def children(pid: int) -> list[Process]:
    return [process for process in every().values() if process.parent == pid]


def is_alive(process: Process) -> bool:
    now = look(process.pid)
    return now is not None and now.started == process.started


def send(process: Process, signal: int) -> bool:
    """Whether it was still there. A pid that is somebody else's by now is not signalled."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_alive(process):
            return False
        signals.pidfd_send_signal(descriptor, signal)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def is_python(process: Process) -> bool:
    return "pylair" not in process.command and "python" in process.command.split(" ")[0]


class Family(NamedTuple):
    """A worker, the process that holds its session together, and what was forked from it."""

    worker: Process
    keeper: Process
    copies: list[Process]


def family_of(worker: int) -> Family | None:
    """Confined workers are children of their template and have a process namespace of their own, whose first is the keeper."""
    here = look(worker)
    own = namespace(worker)
    if here is None or not own:
        return None
    if own == namespace(os.getpid()):
        keeper = look(here.parent)
        if keeper is None:
            return None
        members = [process for process in below(keeper.pid) if is_python(process)]
    else:
        inside = [process for process in every().values() if namespace(process.pid) == own]
        keeper = next((process for process in inside if "__nursery" in process.command), None)
        if keeper is None:
            return None
        members = [process for process in inside if is_python(process)]
    return Family(here, keeper, [process for process in members if process.pid != worker])


def nursery_of(daemon: int) -> Process | None:
    return next((process for process in children(daemon) if "__nursery" in process.command), None)


def templates_of(daemon: int) -> list[Process]:
    """Interpreters that wait to be forked: of open sessions below the daemon, of confined ones below the nursery."""
    nursery = nursery_of(daemon)
    places = [daemon, nursery.pid] if nursery else [daemon]
    return [process for place in places for process in children(place) if is_python(process)]
