"""What visiting an app costs: coming in, a call, and being there. Called by `bench.py`."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from line import Client

if TYPE_CHECKING:
    from bench import Bench

PROBE = Path(__file__).resolve().parent.parent / "probe"
UNPREPARED = "import sys; print('ready', flush=True); sys.stdin.read()"
PREPARED = "import pylair; pylair.start(app_id='bench'); " + UNPREPARED
# Answers each line after a little work, on a thread for each caller.
SERVER = """
import socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"%d\\n" % sum(i * i for i in range(2000)))
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print("ready", flush=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
# The same on an event loop.
LOOP_SERVER = """
import asyncio
async def handle(reader, writer):
    while await reader.readline():
        writer.write(b"%d\\n" % sum(i * i for i in range(2000)))
        await writer.drain()
async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print("ready", flush=True)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
IDLE_SECONDS = 5.0
# How long callers are watched before an attach, while attached, and after a detach.
WATCH_SECONDS = 0.3


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

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def private_mb(self) -> float:
        """Memory that is its own."""
        with open(f"/proc/{self.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty")) / 1024

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
    beside(bench, "a threaded app", SERVER)
    beside(bench, "an asyncio app", LOOP_SERVER)


class Caller(threading.Thread):
    """Asks a server one question after the other, and notes when each began and ended."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.asked: list[tuple[float, float]] = []
        self.start()

    def run(self) -> None:
        with self.connection, self.connection.makefile("rb") as answers:
            while True:
                began = time.perf_counter()
                try:
                    self.connection.sendall(b"x\n")
                    if not answers.readline():
                        return
                except OSError:
                    return
                self.asked.append((began, time.perf_counter()))
                time.sleep(0.001)

    def during(self, start: float, end: float) -> list[float]:
        return [(ended - began) * 1e3 for began, ended in list(self.asked) if ended > start and began < end]


def beside(bench: Bench, what: str, code: str) -> None:
    """What callers of an app notice of a visit, and what stays of it."""
    home = bench.home()
    spans: dict[str, list[float]] = {"before": [], "attaching": [], "attached": [], "detached": []}
    worst, memory = [], []
    with Visited(bench, home.env, code) as visited:
        port = int(visited.line())
        callers = [Caller(port) for _ in range(2)]
        time.sleep(WATCH_SECONDS)
        for _ in range(bench.rounds(30)):
            times = [time.perf_counter()]
            memory.append(visited.private_mb())
            for step in ([], ["--json"], [], ["--detach"], []):
                if step:
                    done = home.run("attach", str(visited.pid), *step)
                    if done.returncode != 0:
                        raise RuntimeError(done.stderr)
                else:
                    time.sleep(WATCH_SECONDS)
                times.append(time.perf_counter())
            for name, at in (("before", 0), ("attaching", 1), ("attached", 2), ("detached", 4)):
                spans[name] += [taken for caller in callers for taken in caller.during(times[at], times[at + 1])]
            worst.append(max(taken for caller in callers for taken in caller.during(times[1], times[2])))
        memory.append(visited.private_mb())
        visited.process.terminate()
    for name, taken in spans.items():
        cuts = statistics.quantiles(taken, n=100)
        bench.row(f"a request of {what}, {name}", cuts[49], "ms", more=f"p95 {cuts[94]:.2f}, p99 {cuts[98]:.2f}, worst {max(taken):.1f}")
    middle, high = statistics.median(worst), statistics.quantiles(worst, n=20)[18] if len(worst) > 1 else worst[0]
    bench.row("  the slowest one of an attach", middle, "ms", more=f"p95 {high:.1f}, worst {max(worst):.1f}")
    bench.row("  memory left by the first visit", memory[1] - memory[0], "MB", more=f"by {len(memory) - 1}: {memory[-1] - memory[0]:.1f}")
    home.close()


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
