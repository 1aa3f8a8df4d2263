"""Hostile sessions beside honest ones: what the honest ones notice.

Honest sessions run small cells with pauses between them, first alone and then beside hostile sessions that fork, allocate, print, spin,
open files, return and interrupt as much as they are let. Every answer is checked against a running sum, so that nothing can be lost
unseen. At the end the latencies of both phases are compared, and neither memory of the daemon nor any process may be left over.

Stdlib only, and runs on the oldest Python we support.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from home import BINARY, Home, adopt_orphans
from line import Client

PROFILE = "sealed"
PAUSE = (0.05, 0.25)
MODULUS = 1_000_003
# Of the honest sessions' latency beside hostile ones, over that alone.
MAX_FACTOR = 3.0
MAX_GROWTH_MB = 64


class LockedClient(Client):
    """One bridge for many threads."""

    def __init__(self, home: Home) -> None:
        self.lock = threading.Lock()
        super().__init__(home)

    def send(self, method: str, params: dict[str, Any]) -> int:
        with self.lock:
            return super().send(method, params)

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A tool's answer, be it a refusal."""
        return self.result(self.send("tools/call", {"name": tool, "arguments": arguments}))


class Honest:
    """A session whose every answer is known."""

    def __init__(self, client: LockedClient, number: int) -> None:
        self.client, self.name = client, f"honest-{number}"
        self.chance = random.Random(number)
        self.total, self.cells = number, 0
        client.call("open_session", name=self.name, sandbox=PROFILE)
        self.execute(f"total, cells = {number}, []")

    def execute(self, code: str) -> dict[str, Any]:
        return self.client.call("execute", code=code, target=self.name, output="json", timeout_s=60)

    def run(self, until: float, latencies: list[float], failures: list[str]) -> None:
        try:
            while time.monotonic() < until:
                time.sleep(self.chance.uniform(*PAUSE))
                self.cells += 1
                self.total = (self.total * 31 + self.cells) % MODULUS
                code = f"total = (total * 31 + {self.cells}) % {MODULUS}\ncells.append(total)\ntotal, len(cells)"
                began = time.monotonic()
                report = self.execute(code)
                latencies.append(time.monotonic() - began)
                if report["result"] != f"({self.total}, {self.cells})":
                    raise AssertionError(f"{self.name} has {report} instead of {(self.total, self.cells)}")
        except AssertionError as wrong:
            failures.append(str(wrong)[:1000])


# What hostile sessions do. Each is one cell, run again and again in a session of its own.
# Memory is mapped rather than used where the limit is on what is mapped: the machine running the tests has others on it.
SPIN = "while True: pass"
HOSTILE = {
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory": "kept = [b'x' * (64 << 20)]\nwhile True: kept.append(bytearray(256 << 20))",
    "prints": "while True: print('x' * 1000)",
    "spins": SPIN,
    "files": "kept = []\nwhile True: kept.append(open('/dev/null'))",
    "results": "'x' * (48 << 20)",
    "writes": "while True:\n    with open('/tmp/full', 'ab') as file: file.write(b'x' * (1 << 20))",
    "interrupts": "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass",
    "threads": "import threading\ndef spin():\n    while True: pass\nwhile True:\n"
    "    try: threading.Thread(target=spin).start()\n    except RuntimeError: pass",
    "sessions": "x = 1",
}


def be_hostile(client: LockedClient, kind: str, number: int, until: float, counts: dict[str, int]) -> None:
    name, code = f"{kind}-{number}", HOSTILE[kind]
    client.ask("open_session", name=name, sandbox=PROFILE)
    while time.monotonic() < until:
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "interrupts":
            request = client.send("tools/call", {"name": "execute", "arguments": {"code": code, "target": name, "timeout_s": 2}})
            for _ in range(50):
                client.ask("interrupt", target=name)
            client.result(request)
            continue
        client.ask("execute", code=code, target=name, timeout_s=2, output="json")
        if kind == "sessions":
            client.ask("close_session", target=name)
            client.ask("open_session", name=name, sandbox=PROFILE)
    client.ask("close_session", target=name)


def hostile_main(home: Home, chosen: list[str], sessions: int, seconds: float) -> int:
    """A process of its own, so that its reading of giant answers is not counted as somebody's latency."""
    client, counts = LockedClient(home), {}  # type: ignore[var-annotated]
    until = time.monotonic() + seconds
    kinds = [chosen[number % len(chosen)] for number in range(sessions)]
    run_all([lambda kind=kind, number=number: be_hostile(client, kind, number, until, counts) for number, kind in enumerate(kinds)])
    print("hostile cells:", ", ".join(f"{kind} {count}" for kind, count in counts.items()), flush=True)
    client.close()
    return 0


def run_all(functions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def phase(honest: list[Honest], seconds: float, failures: list[str]) -> list[float]:
    latencies: list[float] = []
    until = time.monotonic() + seconds
    run_all([lambda one=one: one.run(until, latencies, failures) for one in honest])
    return sorted(latencies)


def quantile(latencies: list[float], part: float) -> float:
    return latencies[min(len(latencies) - 1, int(len(latencies) * part))] * 1000


def told(name: str, latencies: list[float]) -> str:
    p50, p95, p99 = (quantile(latencies, part) for part in (0.5, 0.95, 0.99))
    return f"{name}: {len(latencies)} cells, p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, longest {latencies[-1] * 1000:.0f} ms"


def resident_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


def load(home: Home, options: argparse.Namespace) -> list[str]:
    failures: list[str] = []
    client = LockedClient(home)
    daemon = client.call("get_status")["daemon"]["pid"]
    honest = [Honest(client, number) for number in range(options.honest)]
    phase(honest, 1, failures)
    before = resident_mb(daemon)
    alone = phase(honest, options.seconds, failures)
    print(told("alone", alone), flush=True)

    command = [sys.executable, __file__, "--hostile-in", str(home.path), "--kinds", options.kinds]
    command += ["--hostile", str(options.hostile), "--seconds", str(options.seconds + 2)]
    hostile = subprocess.Popen(command, env={**home.env, "PYLAIR_BIN": BINARY})
    time.sleep(2)
    beside = phase(honest, options.seconds, failures)
    print(told("beside hostile ones", beside), flush=True)
    if hostile.wait(180) != 0:
        failures.append("the hostile client failed")
    after = phase(honest, 2, failures)
    print(told("afterwards", after), flush=True)

    for one in honest:
        client.call("close_session", target=one.name)
    status = client.call("get_status")["daemon"]
    now = resident_mb(daemon)
    print(f"the daemon had {before} MB and has {now} MB", flush=True)
    if status["pid"] != daemon:
        failures.append("the daemon was replaced")
    if now > before + MAX_GROWTH_MB:
        failures.append("the daemon's memory has grown")
    for part in (0.5, 0.95):
        factor = quantile(beside, part) / quantile(alone, part)
        print(f"p{part * 100:.0f} times {factor:.1f}", flush=True)
        if factor > MAX_FACTOR and quantile(beside, part) > options.allowed_ms:
            failures.append(f"p{part * 100:.0f} of the honest sessions' latency is {factor:.1f} times what it is alone")
    client.close()
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honest", type=int, default=50)
    parser.add_argument("--hostile", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20, help="for each phase")
    parser.add_argument("--allowed-ms", type=float, default=0, help="a latency that is never too long: for a short run on a busy machine")
    parser.add_argument("--kinds", default=",".join(HOSTILE), help="what the hostile ones do: %(default)s")
    parser.add_argument("--hostile-in", metavar="HOME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hostile_in:
        home = Home.__new__(Home)
        home.path, home.env = Path(options.hostile_in), dict(os.environ)
        return hostile_main(home, options.kinds.split(","), options.hostile, options.seconds)
    adopt_orphans()
    pythons = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path]
    home = Home({"PYLAIR_PYTHON": pythons[-1] if pythons else sys.executable})
    print(f"{options.honest} honest sessions, then {options.hostile} hostile ones beside them, {PROFILE}", flush=True)
    try:
        failures = load(home, options)
    except BaseException:
        home.run("stop")
        raise
    home.close()
    print("\n".join(f"FAILED: {failure}" for failure in failures) or "nothing was lost and nothing is left")
    return int(bool(failures))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
