"""What visiting an app costs: coming in, a call, and being there. Called by `bench.py`."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from line import Client

if TYPE_CHECKING:
    from bench import Bench

PROBE = Path(__file__).resolve().parent.parent / "probe"
UNPREPARED = "import sys; print('ready', flush=True); sys.stdin.read()"
PREPARED = "import pylair; pylair.start(app_id='bench'); " + UNPREPARED
IDLE_SECONDS = 5.0


class Visited:
    """A Python that waits for its input to end."""

    def __init__(self, bench: Bench, home_env: dict[str, str], code: str) -> None:
        env = {**home_env, "PYTHONPATH": str(PROBE)}
        command = [bench.options.python, "-c", code]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the program to be visited did not start")

    def __enter__(self) -> Visited:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ticks(self) -> int:
        """Processor time that it has used."""
        with open(f"/proc/{self.pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))

    def switches(self) -> int:
        """How often any of its threads has woken up."""
        total = 0
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{thread}/status") as file:
                total += sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
        return total


def measure(bench: Bench) -> None:
    coming_in(bench)
    calling(bench)
    being_there(bench)


def coming_in(bench: Bench) -> None:
    home = bench.home()
    client = Client(home)
    client.call("list_targets")
    taken, held = [], []
    with Visited(bench, home.env, UNPREPARED) as visited:
        for _ in range(bench.rounds(100)):
            began = time.perf_counter()
            attached = client.call("attach", pid=visited.pid)
            client.call("execute", code="1", target=f"pid:{visited.pid}", output="json")
            taken.append((time.perf_counter() - began) * 1e3)
            held.append(attached["pause_ms"])
            done = home.run("attach", str(visited.pid), "--detach")
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
        first, pause = statistics.median(taken), statistics.median(held)
        bench.row("attach to the first answer", first, "ms", "<= 100", first <= 100, f"worst {max(taken):.0f}")
        bench.row("  a thread of the app is held", pause, "ms", "<= 2", pause <= 2, f"worst {max(held):.1f}")
    client.close()
    home.close()


def calling(bench: Bench) -> None:
    home = bench.home()
    target = {"target": "app:bench"}
    with Visited(bench, home.env, PREPARED):
        for pin in (False, True):
            taken = bench.calls_in(home, {"code": "x = 1", **target}, "execute", {"code": "x+1", **target}, bench.rounds(3000), pin)
            where, good = "one core" if pin else "unpinned", taken["p50"] <= 500
            bench.row(f"execute x+1 in an app, {where}", taken["p50"] / 1e3, "ms", "<= 0.5", good, f"p99 {taken['p99'] / 1e3:.2f}")
    home.close()


def being_there(bench: Bench) -> None:
    home = bench.home()
    client = Client(home)
    with Visited(bench, home.env, PREPARED) as visited:
        client.call("execute", code="1", target="app:bench", output="json")
        # What the call left to do is done.
        time.sleep(0.5)
        before = visited.ticks(), visited.switches()
        time.sleep(IDLE_SECONDS)
        ticks, switches = visited.ticks() - before[0], visited.switches() - before[1]
        share = ticks / os.sysconf("SC_CLK_TCK") / IDLE_SECONDS * 100
        bench.row("processor time of an app that nobody asks", share, "%", "<= 0", ticks == 0, f"in {IDLE_SECONDS:.0f} s")
        bench.row("  times that it woke up", float(switches), "", "<= 0", switches == 0)
    client.close()
    home.close()
