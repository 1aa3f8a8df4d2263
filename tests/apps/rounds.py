"""Attaches to programs and leaves them again, many times over, and sees that none of them has noticed. Stdlib only.

Each round is one program's: attach, a call now and then, detach, and something for the program itself to answer. In the end each says what
it has done, which is checked against what it should have, and what it has become: its threads, descriptors and modules.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

from home import Home, adopt_orphans  # noqa: E402
from line import Client  # noqa: E402

from running import Program  # noqa: E402

SHAPES = ["idle", "waiting", "busy", "sleeping"]
# A call in one of so many rounds.
CALLS = 10
# What a probe leaves is garbage until the program's own collector runs. One that stayed would be a megabyte in each round.
MAX_GROWTH_KB = 32 << 10


class Target:
    def __init__(self, home: Home, python: str, shape: str) -> None:
        self.home = home
        self.python = python
        self.shape = shape
        self.program = Program(home, [python, "steady.py", shape])
        self.program.wait_for("^open")
        self.rounds = 0
        self.missed = 0
        self.memory = 0
        self.pauses: list[float] = []
        self.took: list[float] = []
        self.ways: set[str] = set()

    def command(self, *args: str) -> dict:
        done = self.home.run("attach", str(self.program.pid), "--json", *args)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}, round {self.rounds}: {done.stderr}")
        return json.loads(done.stdout)

    @property
    def name(self) -> str:
        return f"{self.shape} on {self.python}"

    def round(self, client: Client) -> None:
        try:
            attached = self.command()
        except RuntimeError as error:
            # A thread that has just left its system call: the program is as it was, and it is said so.
            if "try again" not in str(error):
                raise
            self.missed += 1
            return
        self.pauses.append(attached["pause_ms"])
        self.took.append(attached["took_ms"])
        self.ways.add(attached["way"])
        if self.rounds % CALLS == 0:
            answer = client.call("execute", code="__import__('os').getpid()", target=f"pid:{self.program.pid}", output="json")
            assert answer["result"] == str(self.program.pid), answer
        self.command("--detach")
        self.rounds += 1
        self.program.write(f"round {self.rounds}")
        self.program.wait_for(f"^echo round {self.rounds}$")
        if self.rounds == 10:
            self.memory = self.resident()

    def resident(self) -> int:
        with open(f"/proc/{self.program.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    def finish(self) -> None:
        grown = self.resident() - self.memory if self.memory else 0
        code = self.program.end()
        said = "".join(self.program.lines)
        assert code == 0, (self.name, code, said[-2000:])
        assert "closed True True" in said, (self.name, said[-2000:])
        if self.shape == "busy":
            steps, digest = map(int, next(line for line in self.program.lines if line.startswith("digest")).split()[1:])
            expected = 0
            for step in range(steps):
                expected = zlib.crc32(b"%d" % step, expected)
            assert digest == expected and steps > 0, self.name
        if self.shape == "sleeping":
            naps, short = map(int, next(line for line in self.program.lines if line.startswith("naps")).split()[1:])
            assert naps > 0 and short == 0, (self.name, naps, short)
        assert grown <= MAX_GROWTH_KB, f"{self.name} has grown by {grown} kB in {self.rounds} rounds"
        print(
            f"{self.name}: {self.rounds} rounds, {self.missed} to be tried again, held {statistics.median(self.pauses):.2f} ms "
            f"(worst {max(self.pauses):.1f}), attached in {statistics.median(self.took):.0f} ms, grown by {grown} kB, "
            f"by {', '.join(sorted(self.ways))}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="in all, shared by the programs")
    options = parser.parse_args()
    adopt_orphans()
    pythons = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path] or [sys.executable]
    home = Home({"PYLAIR_PYTHON": pythons[-1]})
    client = Client(home)
    targets = [Target(home, python, shape) for python in pythons for shape in SHAPES]
    began = time.monotonic()
    try:
        for number in range(max(options.rounds, len(targets))):
            targets[number % len(targets)].round(client)
        for target in targets:
            target.finish()
    finally:
        for target in targets:
            target.program.close()
        client.close()
        home.close()
    print(f"{sum(target.rounds for target in targets)} rounds in {time.monotonic() - began:.0f} s, and nobody has noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
