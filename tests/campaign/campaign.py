"""Thousands of random faults against sessions whose every state is known: no wrong state, no loss without words, nothing left over.

A campaign is cut into episodes, each with a daemon of its own. Which faults there are, in which order and where they strike follows
from the seed alone; when exactly they strike does not, and whatever they hit, one of the states that the product's own words name must
hold afterwards. Stdlib only.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

import episode
import machine
from fault import KINDS
from home import adopt_orphans, descendants

IN_A_ROW = 20
PR_SET_PDEATHSIG = 1
# After how many episodes it is said how far it has come.
TOLD_EPISODES = 25
# For what hangs; episodes take a fraction of it.
EPISODE_TIMEOUT = 900.0


def kinds_here(only: list[str]) -> list[str]:
    """Those that can be done on this machine; of the others it is said why not."""
    why = machine.why_no_disk()
    if why:
        print(f"skipped: {machine.FULL_DISK}: {why}", flush=True)
    return [name for name in only or sorted(KINDS) if not (why and name == machine.FULL_DISK)]


def plan(faults: int, minimum: int, names: list[str], seed: str) -> list[list[str]]:
    """The kinds of all faults, cut into episodes."""
    chance = random.Random(seed)
    chosen = [name for name in names for _ in range(minimum)]
    chosen += [chance.choice(names) for _ in range(faults - len(chosen))]
    chance.shuffle(chosen)
    return [chosen[start : start + IN_A_ROW] for start in range(0, len(chosen), IN_A_ROW)]


def run_apart(number: int, kinds: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """An episode in a process of its own, so that nothing of it can hide and nothing it does to itself stays."""
    command = [sys.executable, __file__, "--one", json.dumps(kinds), "--seed", f"{options.seed}-{number}"]
    command += ["--keep"] if options.keep else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=EPISODE_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += f"\nthe episode did not end within {EPISODE_TIMEOUT:.0f} s"
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    done = {result["index"] for result in results}
    lost = [index for index in range(len(kinds)) if index not in done]
    for index in lost:
        story = f"not run: {errors[-3000:]}" if index == lost[0] else "not run"
        results.append(
            {"index": index, "kind": kinds[index], "verdict": "wrong", "middle": False, "explained": 0, "seconds": 0.0, "story": story}
        )
    return [{**result, "episode": number} for result in results]


def run_all(episodes: list[list[str]], options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Adds what came of each fault to `results`, episode by episode."""
    chosen = list(enumerate(episodes)) if options.episode is None else [(options.episode, episodes[options.episode])]
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        running = [pool.submit(run_apart, number, kinds, options) for number, kinds in chosen]
        for count, done in enumerate(concurrent.futures.as_completed(running), 1):
            results += done.result()
            for result in done.result():
                if result["verdict"]:
                    headline = f"\n{result['verdict'].upper()}: {result['kind']}, episode {result['episode']}"
                    print(headline, result.get("story", ""), sep="\n", flush=True)
            if count % TOLD_EPISODES == 0:
                print(f"{count} of {len(chosen)} episodes, {len(results)} faults", flush=True)
    finally:
        # Of a campaign that is ended early, only what is done counts.
        pool.shutdown(wait=False, cancel_futures=True)


def table(results: list[dict[str, Any]]) -> str:
    rows = [
        "{:24} {:>7} {:>7} {:>10} {:>6} {:>12} {:>10} {:>9}".format(
            "kind", "faults", "middle", "explained", "wrong", "unexplained", "left over", "slowest"
        )
    ]
    by_kind = collections.defaultdict(list)
    for result in results:
        by_kind[result["kind"]].append(result)
    for name, of_kind in [*sorted(by_kind.items()), ("all", results)]:
        verdicts = collections.Counter(result["verdict"] for result in of_kind)
        slowest = max((result["seconds"] for result in of_kind), default=0)
        middle, explained = sum(result["middle"] for result in of_kind), sum(bool(result["explained"]) for result in of_kind)
        counts = verdicts["wrong"], verdicts["unexplained"], verdicts["left over"]
        rows.append("{:24} {:7} {:7} {:10} {:6} {:12} {:10} {:7.2f} s".format(name, len(of_kind), middle, explained, *counts, slowest))
    return "\n".join(rows)


def interpreter() -> str:
    pythons = [path for path in os.environ.get("PYLAIR_TEST_PYTHONS", "").split(":") if path]
    return pythons[-1] if pythons else sys.executable


def end_strays() -> None:
    """Whatever an episode that was killed has left is ours by now."""
    for pid in descendants():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--minimum", type=int, default=0, help="at least so many of each kind")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", action="append", default=[], choices=sorted(KINDS), metavar="KIND", help=", ".join(sorted(KINDS)))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="episodes at once")
    parser.add_argument("--episode", type=int, help="only this one of the same campaign")
    parser.add_argument("--keep", action="store_true", help="keep the directories of the daemons, whose logs may tell more")
    parser.add_argument("--one", metavar="KINDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not hasattr(os, "pidfd_open"):
        print("skipped: the campaign: it needs Python 3.9 or newer")
        return 0
    adopt_orphans()
    # Also when somebody ends this: nothing of it stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        return one(options) if options.one else campaign(options)
    finally:
        end_strays()


def one(options: argparse.Namespace) -> int:
    """In a process of its own: the outcome of each fault as a line."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for result in episode.run(options.seed, json.loads(options.one), interpreter(), options.keep):
        print(json.dumps(result), flush=True)
    return 0


def campaign(options: argparse.Namespace) -> int:
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    try:
        run_all(plan(options.faults, options.minimum, kinds_here(options.only), options.seed), options, results)
    finally:
        print(table(results), flush=True)
    open_only = sum(result.get("confined") is False for result in results)
    if open_only:
        print(f"skipped: confined sessions in {open_only} of the faults: there are no sandboxes here")
    failed = [result for result in results if result["verdict"]]
    again = f"{Path(__file__).name} --seed {options.seed} --faults {options.faults} --minimum {options.minimum}"
    again += "".join(f" --only '{name}'" for name in options.only)
    for number in sorted({result["episode"] for result in failed}):
        print(f"FAILED; again with: {again} --episode {number}")
    print(f"{len(results)} faults, {len(failed)} of them failed, {time.monotonic() - began:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
