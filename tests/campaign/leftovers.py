"""What must not be there any more when a daemon has been stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

from home import descendants
from words import LeftOver

GROUPS = Path("/sys/fs/cgroup")
USUAL_DATA = {
    "canary",
    "clock.json",
    "failures.db",
    "failures.db.lock",
    "journal.db",
    "journal.db.lock",
    "outputs",
    "saves",
    "sessions",
    "token",
    "venvs",
    "workspaces",
}
SETTLING_S = 15.0


def mounts() -> set[str]:
    """Where something is mounted, for this process."""
    with open("/proc/self/mountinfo") as file:
        return {line.split()[4] for line in file}


def groups(daemons: list[int]) -> list[str]:
    """Kernel groups that carry the name of one of these daemons."""
    wanted = re.compile(r"pylair-(" + "|".join(str(pid) for pid in daemons) + r")(-|$)")
    found = []
    for directory, names, _ in os.walk(GROUPS):
        found += [f"{directory}/{name}" for name in names if wanted.match(name)]
    return found


def sockets(path: Path) -> list[str]:
    with open("/proc/net/unix") as file:
        return [line.split()[-1] for line in file if str(path) in line]


def wait_for_nothing(look: object, what: str) -> None:
    until = time.monotonic() + SETTLING_S
    left = look()  # type: ignore[operator]
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = look()  # type: ignore[operator]
    if left:
        raise LeftOver(f"{what}: {left}")


def end_strays() -> None:
    """What cells leave behind on purpose are all `sleep`s."""
    for pid, command in descendants().items():
        if command.startswith("sleep "):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def check(home: Path, daemons: list[int], mounted: set[str], strays_may_stay: bool) -> None:
    """After `stop`. Confined sessions take a moment to be unmounted by the kernel."""
    if strays_may_stay:
        end_strays()
    wait_for_nothing(descendants, "still running")
    wait_for_nothing(lambda: [pid for pid in daemons if os.path.exists(f"/proc/{pid}/fd")], "daemons still there")
    # Others mount things on the same machine.
    wait_for_nothing(lambda: {place for place in mounts() - mounted if str(home) in place or "pylair" in place}, "still mounted")
    wait_for_nothing(lambda: sockets(home), "sockets")
    wait_for_nothing(lambda: groups(daemons), "kernel groups")
    empty = {"runtime": {"daemon.lock", "start.lock"}, "tmp": set(), "data": USUAL_DATA}
    for name, usual in empty.items():
        left = {path.name for path in (home / name).iterdir()} - usual
        if left:
            raise LeftOver(f"in {name}: {sorted(left)}")
    halves = [str(path) for path in (home / "data").rglob("*.new")]
    if halves:
        raise LeftOver(f"half written files: {halves}")
    log = home / "state/daemon.log"
    if log.exists() and "panicked" in log.read_text(errors="replace"):
        raise LeftOver("the daemon panicked; see its log")
