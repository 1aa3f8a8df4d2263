"""Measures what the project promises about speed and memory, as ratios and targets in one run. Started by `scripts/bench`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

from home import BINARY, Home, adopt_orphans, close_all, descendants
from line import Client

import plugin
import visits

HERE = Path(__file__).parent

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
OUTPUT_MB = 100
IDLE_SESSIONS = 100
# What a daemon may keep of 100 MB that went through it and still be called flat.
FLAT_MB = 10.0


def compact(message: dict[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"))


def tool_call(tool: str, arguments: dict[str, Any], request: Any = "@") -> str:
    """A request line; `@` is where the line client puts its number."""
    params = {"name": tool, "arguments": arguments}
    return compact({"jsonrpc": "2.0", "id": request, "method": "tools/call", "params": params}).replace('"@"', "@")


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[str] = []

    def row(self, what: str, value: float, unit: str, target: str = "", good: bool | None = None, more: str = "") -> None:
        verdict = "" if good is None else "OK" if good else "MISS"
        self.rows.append({"what": what, "value": value, "unit": unit, "target": target, "verdict": verdict, "more": more})
        if not self.options.json:
            print(f"{what:<56} {value:>9.2f} {unit:<5} {target:<10} {verdict:<4} {more}", flush=True)

    def rounds(self, full: int) -> int:
        return max(full // 10, 5) if self.options.quick else full

    # What drives and what is driven.

    def home(self, **settings: str) -> Home:
        return Home({"PYLAIR_PYTHON": self.options.python, **settings})

    def drive(self, setup: list[str], line: str, program: list[str], count: int, env: dict[str, str], pin: bool) -> dict[str, float]:
        """Latencies in microseconds from the line client, which with all it starts stays on one core if `pin`."""
        command = [self.options.client, str(max(count // 10, 3)), str(count), "\n".join(setup), line, "--", *program]
        pinned: Callable[[], None] | None = (lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})) if pin else None
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, preexec_fn=pinned)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stderr}")
        latencies, last = done.stdout.splitlines()[:2]
        if '"isError":true' in last or '"error"' in last:
            raise RuntimeError(last)
        return json.loads(latencies)

    def floor(self, pin: bool) -> dict[str, float]:
        setup = [compact({"id": 1, "code": "x = 1"})]
        program = [self.options.python, str(HERE / "floor.py")]
        line = compact({"id": "@", "code": "x+1"}).replace('"@"', "@")
        return self.drive(setup, line, program, self.rounds(5000), {"PATH": os.environ["PATH"]}, pin)

    def calls(self, tool: str, arguments: dict[str, Any], count: int, pin: bool = False, **settings: str) -> dict[str, float]:
        """Latencies of a tool through bridge, daemon and worker, in a daemon of its own."""
        home = self.home(**settings)
        try:
            return self.calls_in(home, {"code": "x = 1"}, tool, arguments, count, pin)
        finally:
            home.close()

    def calls_in(
        self, home: Home, first: dict[str, Any], tool: str, arguments: dict[str, Any], count: int, pin: bool = False
    ) -> dict[str, float]:
        """Latencies of a tool after a first cell."""
        setup = [compact(INITIALIZE), compact(INITIALIZED), tool_call("execute", first, 2)]
        return self.drive(setup, tool_call(tool, arguments), [BINARY, "mcp"], count, home.env, pin)

    def helper(self, what: str, script: str, *args: str) -> dict[str, float] | None:
        """The figures of a script that runs in the benchmarks' virtual environment."""
        if not self.options.venv_python:
            self.skipped.append(f"{what}: its packages could not be installed")
            return None
        command = [self.options.venv_python, str(HERE / script), *args]
        env = {**os.environ, "PYLAIR_BIN": BINARY}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            self.skipped.append(f"{what}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'it failed'}")
            return None
        return json.loads(done.stdout.splitlines()[-1])

    # The measurements.

    def latency(self) -> None:
        count = self.rounds(5000)
        unpinned = 0.0
        for pin in (False, True):
            where = "one core" if pin else "unpinned"
            floor = self.floor(pin)
            self.row(f"floor: bare Python loop on pipes, {where}", floor["p50"], "us", more=f"p99 {floor['p99']:.0f}")
            off = self.calls("execute", {"code": "x+1"}, count, pin, PYLAIR_CHECKPOINTS="off")
            self.row(f"execute x+1, checkpoints off, {where}", off["p50"], "us", more=f"p99 {off['p99']:.0f}")
            ratio = off["p50"] / floor["p50"]
            self.row(f"  times the floor, {where}", ratio, "x", "<= 4.5", ratio <= 4.5)
            auto = self.calls("execute", {"code": "x+1"}, count, pin)
            more = f"p99 {auto['p99']:.0f}, {auto['p50'] / floor['p50']:.2f} x the floor"
            self.row(f"execute x+1, checkpoints auto, {where}", auto["p50"], "us", more=more)
            unpinned = unpinned or off["p50"]
        name = "execute x+1 from the Python MCP SDK, checkpoints off"
        sdk = self.helper(name, "sdk_latency.py", str(self.rounds(1000)), self.options.python)
        if sdk:
            self.row(name, sdk["p50"], "us", more=f"p99 {sdk['p99']:.0f}")
        name = "ipykernel's shell reply to x+1"
        kernel = self.helper(name, "ipykernel_latency.py", str(self.rounds(300)))
        if kernel:
            self.row(name, kernel["p50"], "us", more=f"p99 {kernel['p99']:.0f}")
            ratio = kernel["p50"] / unpinned
            self.row("  times ours, unpinned", ratio, "x", ">= 20", ratio >= 20)

    def opening(self) -> None:
        count = self.rounds(100)
        bare = self.calls("open_session", {}, count)
        self.row("open_session, bare", bare["p50"] / 1e3, "ms", "<= 5", bare["p50"] <= 5e3, f"p99 {bare['p99'] / 1e3:.1f}")
        for profile in ("workspace", "sealed"):
            confined = self.calls("open_session", {"sandbox": profile}, count)
            more = (confined["p50"] - bare["p50"]) / 1e3
            told = f"{confined['p50'] / 1e3:.1f} ms, {confined['p50'] / bare['p50']:.1f} times bare; p99 {confined['p99'] / 1e3:.1f}"
            self.row(f"open_session, {profile}: more than bare", more, "ms", "<= 5", more <= 5, told)
        cold = self.wall([self.options.python, "-c", "pass"], self.rounds(50))
        self.row("  a cold start, python -c pass", cold, "ms")
        if not self.options.venv_python:
            self.skipped.append("open_session with numpy and pandas: they could not be installed")
            return
        arguments = {"python": self.options.venv_python, "preload": ["numpy", "pandas"]}
        warm = self.calls("open_session", arguments, count)
        good = warm["p50"] <= 12e3
        self.row("open_session, numpy and pandas preloaded", warm["p50"] / 1e3, "ms", "<= 12", good, f"p99 {warm['p99'] / 1e3:.1f}")
        cold = self.wall([self.options.venv_python, "-c", "import numpy, pandas"], self.rounds(50))
        self.row("  a cold start that imports them", cold, "ms")

    def going_back(self) -> None:
        """What checkpoints cost, what going back and branching take, and completion, each bare and with the usual libraries loaded."""
        loaded = [("bare", {}, "x = 1", 2.0)]
        if self.options.venv_python:
            arguments = {"python": self.options.venv_python, "preload": ["numpy", "pandas"]}
            loaded.append(("numpy and pandas", arguments, "import numpy as np, pandas as pd\nx = 1", 10.0))
        for what, arguments, setup, most in loaded:
            homes = {mode: self.home(PYLAIR_CHECKPOINTS=mode) for mode in ("off", "auto")}
            clients = {mode: Client(home) for mode, home in homes.items()}
            names = {mode: client.call("open_session", **arguments)["name"] for mode, client in clients.items()}
            for mode, client in clients.items():
                client.call("execute", code=setup, target=names[mode], output="json")
            taken: dict[str, list[float]] = {"off": [], "auto": []}
            for _ in range(self.rounds(300)):
                for mode, client in clients.items():
                    # The caller's pause, in which the checkpoint of the cell before is made.
                    time.sleep(0.012)
                    taken[mode].append(timed(client, "execute", code="x += 1", target=names[mode], output="json"))
            gap = statistics.median(taken["auto"]) - statistics.median(taken["off"])
            self.row(f"checkpoints: a caller's time with gaps of 12 ms, {what}", gap, "ms", "<= 0.5", gap <= 0.5)
            client, name = clients["auto"], names["auto"]
            events = [json.loads(line) for line in client.read_resource(f"pylair://history/{name}").splitlines()]
            made = [event["took_us"] / 1e3 for event in events if event.get("kind") == "checkpoint_made"]
            if made:
                cost = statistics.median(made)
                self.row(f"  made in the gap, {what}", cost, "ms", f"<= {most:.0f}", cost <= most, f"{len(made)} of them")
            undone = []
            branched = []
            wait_for_checkpoint(client, name)
            for _ in range(self.rounds(50)):
                client.call("execute", code="x += 1", target=name, output="json")
                wait_for_checkpoint(client, name)
                undone.append(timed(client, "undo", target=name))
                wait_for_checkpoint(client, name)
                branched.append(timed(client, "branch_session", target=name, name="branch"))
                client.call("close_session", target="branch")
            self.row(f"undo, {what}", statistics.median(undone), "ms", more=f"worst {max(undone):.1f}")
            self.row(f"branch_session, {what}", statistics.median(branched), "ms", more=f"worst {max(branched):.1f}")
            for client in clients.values():
                client.close()
            close_all(homes.values())

    def completing(self) -> None:
        home = self.home()
        try:
            setup = [compact(INITIALIZE), compact(INITIALIZED), tool_call("execute", {"code": "import os\nword = 'x'"}, 2)]
            for what, code in (("an attribute", "word.up"), ("a module", "import js"), ("a name", "wor")):
                line = tool_call("complete_code", {"code": code})
                taken = self.drive(setup, line, [BINARY, "mcp", "--tools", "all"], self.rounds(500), home.env, False)
                self.row(f"complete_code, {what}", taken["p50"] / 1e3, "ms", more=f"p99 {taken['p99'] / 1e3:.1f}")
        finally:
            home.close()

    def wall(self, command: list[str], count: int, env: dict[str, str] | None = None) -> float:
        """The median time a program takes from start to end, in milliseconds."""
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
            taken.append((time.perf_counter() - began) * 1e3)
        return statistics.median(taken)

    def shell(self) -> None:
        home = self.home()
        home.run("exec", "1")
        taken = self.wall([BINARY, "exec", "1+1"], self.rounds(100), home.env)
        self.row("pylair exec '1+1' with the daemon up", taken, "ms", "<= 15", taken <= 15)
        home.close()

    def memory(self) -> None:
        home = self.home()
        client = Client(home)
        for _ in range(IDLE_SESSIONS):
            client.call("open_session")
        # Pages are shared and trimmed in the background.
        time.sleep(2)
        each = sum(map(pss_mb, session_processes())) / IDLE_SESSIONS
        self.row(f"PSS of each of {IDLE_SESSIONS} idle sessions, worker and keeper", each, "MB", "<= 3", each <= 3)
        bridge = status_mb(client.process.pid, "VmRSS")
        self.row("RSS of a bridge", bridge, "MB", "<= 8", bridge <= 8)
        daemon = client.call("get_status")["daemon"]["pid"]
        self.row(f"RSS of the daemon with {IDLE_SESSIONS} sessions", status_mb(daemon, "VmRSS"), "MB")
        client.close()
        home.close()

    def pouring(self) -> None:
        home = self.home()
        client = Client(home)
        client.call("execute", code="line = 'x' * 99", output="json")
        daemon = client.call("get_status")["daemon"]["pid"]
        before = status_mb(daemon, "VmRSS")
        began = time.perf_counter()
        report = client.call("execute", code=f"for _ in range({OUTPUT_MB * 10_000}): print(line)", output="json")
        taken = time.perf_counter() - began
        if report["outcome"] != "ok":
            raise RuntimeError(f"{OUTPUT_MB} MB of output ended as {report['outcome']}: {report['notes']}")
        speed = OUTPUT_MB / taken
        self.row(f"{OUTPUT_MB} MB of print lines through execute", speed, "MB/s", ">= 50", speed >= 50)
        grown = status_mb(daemon, "VmRSS") - before
        more = f"from {before:.1f}, peak {status_mb(daemon, 'VmHWM'):.1f}"
        self.row("  by which the daemon has grown", grown, "MB", f"<= {FLAT_MB:.0f}", grown <= FLAT_MB, more)
        client.close()
        home.close()


def timed(client: Client, tool: str, **arguments: Any) -> float:
    """How long a call takes, in milliseconds."""
    began = time.perf_counter()
    client.call(tool, **arguments)
    return (time.perf_counter() - began) * 1e3


def wait_for_checkpoint(client: Client, name: str) -> None:
    """Until the newest state of a session can be gone back to."""
    seen = -1
    for _ in range(1000):
        status = client.call("get_status", target=name)["session"]
        newest = max(status["checkpoints"], default=-1)
        if newest >= 0 and newest == seen:
            return
        seen = newest
        time.sleep(0.008)
    raise RuntimeError(f"no checkpoint of {name} was made: {status['checkpoint_skipped']}")


def session_processes() -> list[int]:
    """Keepers and everything below them."""
    running = descendants()
    found = {pid for pid, command in running.items() if "__keeper" in command}
    grown = True
    while grown:
        grown = False
        for pid in running:
            if pid not in found and parent_of(pid) in found:
                found.add(pid)
                grown = True
    return sorted(found)


def parent_of(pid: int) -> int:
    return int(status_line(pid, "PPid") or 0)


def status_line(pid: int, key: str) -> str:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return line.split()[1]
    except OSError:
        pass
    return ""


def status_mb(pid: int, key: str) -> float:
    return int(status_line(pid, key) or 0) / 1024


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", required=True, help="the compiled line client")
    parser.add_argument("--python", required=True, help="the interpreter of the floor and of the sessions")
    parser.add_argument("--venv-python", default="", help="one with numpy, pandas, mcp and ipykernel")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    adopt_orphans()
    bench = Bench(options)
    for part in (bench.latency, bench.opening, bench.going_back, bench.completing, bench.shell, bench.memory, bench.pouring):
        part()
    visits.measure(bench)
    plugin.measure(bench)
    load = os.getloadavg()[0]
    if options.json:
        facts = {"python": options.python, "cores": os.cpu_count(), "load": load}
        print(json.dumps({**facts, "rows": bench.rows, "skipped": bench.skipped}, indent=2))
    else:
        missed = [row["what"].strip() for row in bench.rows if row["verdict"] == "MISS"]
        print(f"\n{os.cpu_count()} cores, load {load:.1f}, sessions on {options.python}")
        for skipped in bench.skipped:
            print(f"skipped: {skipped}")
        print(f"missed: {', '.join(missed)}" if missed else "every target was met")
    return 0


if __name__ == "__main__":
    sys.exit(main())
