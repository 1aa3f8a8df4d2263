"""Hostile sessions beside honest ones: what the honest ones notice.

Honest sessions run small cells with pauses between them, first alone and then beside hostile sessions that fork, allocate, print, spin,
crash, fill disks, open files, return and interrupt as much as they are let. Every answer is checked against a running sum, so that
nothing can be lost unseen. At the end the latencies of both phases are compared, and neither memory and descriptors of the daemon nor
any process may be left over. With `--bombs` the hostile sessions are fork bombs of every kind, and the slowest answers count.

Stdlib only, and runs on the oldest Python we support.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from home import BINARY, Home, adopt_orphans, descendants
from line import Client

PROFILE = "sealed"
PAUSE = (0.05, 0.25)
MODULUS = 1_000_003
# Of the honest sessions' latency beside hostile ones, over that alone.
MAX_FACTOR = 3.0
# The same for the slowest of a hundred beside fork bombs, and the slowest of all there.
MAX_BOMBED_FACTOR = 10.0
MAX_BOMBED_MS = 2000.0
# Of the daemon's memory over what it has with the honest sessions alone: at any time, and when the hostile ones are gone.
MAX_PEAK_MB = 512
MAX_GROWTH_MB = 48
# Templates and sessions made ahead hold a few.
MAX_MORE_DESCRIPTORS = 32
MAX_MORE_PROCESSES = 16


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
    "crashes": "import os\nos.abort()",
    "disk": "number = 0\nwhile True:\n    number += 1\n    with open(f'full-{number}', 'wb') as file: file.write(b'x' * (8 << 20))",
    # Leaves the worker's process group and session, and goes on when the cell is over.
    "strays": "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass",
    "writes": "while True:\n    with open('/tmp/full', 'ab') as file: file.write(b'x' * (1 << 20))",
    "interrupts": "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass",
    "threads": "import threading\ndef spin():\n    while True: pass\nwhile True:\n"
    "    try: threading.Thread(target=spin).start()\n    except RuntimeError: pass",
    "sessions": "x = 1",
}
TRY_FORK = "import os\ndef fork():\n    try: return os.fork()\n    except OSError: return -1\n"
BOMBS = {
    "doubles": TRY_FORK + "while True: fork()",
    # Each is a session of processes of its own.
    "leaves": TRY_FORK + "while True:\n    if fork() == 0: os.setsid()",
    # Those that are looked at are gone.
    "hands-over": TRY_FORK + "while True:\n    if fork() == 0:\n        while fork() <= 0: pass\n        os._exit(0)",
    # Short-lived children of many parents.
    "churns": TRY_FORK + "for _ in range(60): fork()\nwhile True:\n    pid = fork()\n    if pid == 0: os._exit(0)\n"
    "    if pid > 0: os.waitpid(pid, 0)",
    "shells": "import subprocess\nwhile True: subprocess.run(['/bin/sh', '-c', 'f() { f | f & }; f'], stderr=subprocess.DEVNULL)",
    # Does not let itself be stopped.
    "goes-on": TRY_FORK + "import signal\nwhile True:\n    fork()\n    os.kill(-1, signal.SIGCONT)",
}
KINDS = {**HOSTILE, **BOMBS}


def be_hostile(client: LockedClient, kind: str, number: int, until: float, counts: dict[str, int]) -> None:
    name, code = f"{kind}-{number}", KINDS[kind]
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
    kinds = [chosen[number % len(chosen)] for number in range(sessions)]
    for number, kind in enumerate(kinds):
        client.ask("open_session", name=f"{kind}-{number}", sandbox=PROFILE)
    print("ready", flush=True)
    until = time.monotonic() + seconds
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


class Daemon:
    """What the daemon has of the machine, looked at all the time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak_mb = 0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while True:
            try:
                self.peak_mb = max(self.peak_mb, self.resident_mb())
            except OSError:
                return
            time.sleep(0.1)

    def resident_mb(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) // 1024
        return 0

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def holds(self) -> collections.Counter[str]:
        """What its descriptors are of."""
        held: collections.Counter[str] = collections.Counter()
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                held[os.readlink(f"/proc/{self.pid}/fd/{name}").partition("[")[0]] += 1
            except FileNotFoundError:
                pass
        return held

    def settled(self, measure: Callable[[], int], most: int) -> int:
        """What is measured when it is no more than that, or after a while."""
        until = time.monotonic() + 10
        while measure() > most and time.monotonic() < until:
            time.sleep(0.1)
        return measure()


def load(home: Home, options: argparse.Namespace) -> list[str]:
    failures: list[str] = []
    client = LockedClient(home)
    daemon = Daemon(client.call("get_status")["daemon"]["pid"])
    idle = daemon.descriptors()
    honest = [Honest(client, number) for number in range(options.honest)]
    phase(honest, 1, failures)
    alone = phase(honest, options.seconds, failures)
    # Checkpoints of the last cells are made in a moment.
    time.sleep(3)
    before, opened, running = daemon.resident_mb(), daemon.descriptors(), len(descendants())
    print(told("alone", alone), flush=True)

    command = [sys.executable, __file__, "--hostile-in", str(home.path), "--kinds", options.kinds]
    command += ["--hostile", str(options.hostile), "--seconds", str(options.seconds + 2)]
    env = {**home.env, "PYLAIR_BIN": BINARY}
    # A session of processes of its own: what it takes of the processors is not taken from the honest client.
    hostile = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert hostile.stdout is not None
    if hostile.stdout.readline() != "ready\n":
        failures.append("the hostile client did not get ready")
    time.sleep(2)
    beside = phase(honest, options.seconds, failures)
    print(told("beside hostile ones", beside), flush=True)
    print(hostile.stdout.read().strip(), flush=True)
    if hostile.wait(180) != 0:
        failures.append("the hostile client failed")
    after = phase(honest, 2, failures)
    print(told("afterwards", after), flush=True)

    if client.call("get_status")["daemon"]["pid"] != daemon.pid:
        failures.append("the daemon was replaced")
    now = daemon.settled(daemon.resident_mb, before + MAX_GROWTH_MB)
    held = daemon.settled(daemon.descriptors, opened + MAX_MORE_DESCRIPTORS)
    processes = daemon.settled(lambda: len(descendants()), running + MAX_MORE_PROCESSES)
    print(f"the daemon had {before} MB, at most {daemon.peak_mb} MB, and has {now} MB", flush=True)
    if now > before + MAX_GROWTH_MB or daemon.peak_mb > before + MAX_PEAK_MB:
        failures.append("the daemon's memory has grown")
    print(f"there were {running} processes with the honest sessions, and are {processes}", flush=True)
    if processes > running + MAX_MORE_PROCESSES:
        commands = collections.Counter(command[:60] for command in descendants().values())
        failures.append(f"processes of sessions that are gone still run: {commands}")
    for one in honest:
        client.call("close_session", target=one.name)
    left = daemon.settled(daemon.descriptors, idle + MAX_MORE_DESCRIPTORS)
    print(f"it had {idle} descriptors, {opened} with the honest sessions, {held} when the hostile were gone, and has {left}", flush=True)
    if held > opened + MAX_MORE_DESCRIPTORS or left > idle + MAX_MORE_DESCRIPTORS:
        failures.append(f"the daemon holds descriptors of sessions that are gone: {daemon.holds()}")
    failures += compare(alone, beside, options)
    client.close()
    return failures


def compare(alone: list[float], beside: list[float], options: argparse.Namespace) -> list[str]:
    """What of the honest sessions' latency beside the others is too much."""
    failures = []
    most = {0.99: MAX_BOMBED_FACTOR} if options.bombs else {0.5: MAX_FACTOR, 0.95: MAX_FACTOR}
    for part in (0.5, 0.95, 0.99):
        factor = quantile(beside, part) / quantile(alone, part)
        print(f"p{part * 100:.0f} times {factor:.1f}", flush=True)
        if factor > most.get(part, factor) and quantile(beside, part) > options.allowed_ms:
            failures.append(f"p{part * 100:.0f} of the honest sessions' latency is {factor:.1f} times what it is alone")
    if options.bombs and beside[-1] * 1000 > max(MAX_BOMBED_MS, options.allowed_ms):
        failures.append(f"an answer took {beside[-1]:.1f} s")
    return failures


def stand_as_usual() -> None:
    """Who was started with less of the processors than sessions are given would measure its own waiting."""
    try:
        Path("/proc/self/autogroup").write_text("0")
    except OSError:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honest", type=int, default=50)
    parser.add_argument("--hostile", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20, help="for each phase")
    parser.add_argument("--allowed-ms", type=float, default=0, help="a latency that is never too long: for a short run on a busy machine")
    parser.add_argument("--kinds", default=",".join(HOSTILE), help="what the hostile ones do: %(default)s")
    parser.add_argument("--bombs", type=int, default=0, help="so many hostile sessions, all of them fork bombs")
    parser.add_argument("--hostile-in", metavar="HOME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bombs:
        options.hostile, options.kinds = options.bombs, ",".join(BOMBS)
    if options.hostile_in:
        home = Home.__new__(Home)
        home.path, home.env = Path(options.hostile_in), dict(os.environ)
        return hostile_main(home, options.kinds.split(","), options.hostile, options.seconds)
    adopt_orphans()
    stand_as_usual()
    pythons = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path]
    home = Home({"PYLAIR_PYTHON": pythons[-1] if pythons else sys.executable})
    print(f"{options.honest} honest sessions, then {options.hostile} hostile ones beside them, {PROFILE}", flush=True)
    try:
        failures = load(home, options)
    except BaseException:
        home.run("stop")
        raise
    home.close()
    print("\n".join(f"FAILED: {failure}" for failure in failures[-20:]) or "nothing was lost and nothing is left")
    return int(bool(failures))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
