"""Makes the data that grouping is judged by: real suites, in each run of which a fault is seeded.

For each suite a run of the code as it is, then one run per fault, then runs with two of these faults at once. Writes
`SUITE-NUMBER.jsonl` (records) and `SUITE.json` (which run has which faults, and in which order they ran) into a directory. What is there
already is kept, so that it can be gone on with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import faults

HERE = Path(__file__).parent
# Where the source comes from, where the tested code is in it, and which of its tests are run: those that need nothing but the suite
# and do not take seconds each.
SUITES = {
    "more-itertools": (
        "more_itertools==11.2.1",
        "more_itertools",
        ["tests/test_more.py", "-k", "not concurrent and not orderings and not lcg and not roundtrip and not derangements"],
    ),
    "click": (
        "click==8.5.1",
        "src/click",
        [
            f"tests/test_{name}.py"
            for name in ["arguments", "basic", "chain", "commands", "context", "defaults", "formatting", "options", "parser"]
        ],
    ),
    "attrs": (
        "attrs==26.1.0",
        "src/attr",
        [f"tests/test_{name}.py" for name in ["cmp", "converters", "filters", "functional", "make", "setattr", "slots", "validators"]],
    ),
}
# A fault that hardly shows has nothing to group, one that breaks everything needs no grouping.
FEWEST, MOST = 2, 120
LONGEST_S = 400


def run(root: Path, suite: str, name: str, out: Path, called: Path | None = None) -> list[dict[str, Any]]:
    _, package, arguments = SUITES[suite]
    records = out / f"{name}.jsonl"
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((root / package).rglob("*.py")))).hexdigest()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "PYTHONPATH": os.pathsep.join([str(HERE), str((root / package).parent)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYLAIR_RECORDS": str(records),
        "PYLAIR_RUN": name,
        "PYLAIR_ROOT": str(root),
        "PYLAIR_PROJECT": suite,
        "PYLAIR_CODE": code,
    }
    if called is not None:
        env["PYLAIR_CALLED"] = str(called)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "evidence", "-p", "no:cacheprovider", "-p", "no:subtests", *arguments]
    try:
        subprocess.run(command, cwd=root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        records.unlink(missing_ok=True)
        return []
    if not records.exists():
        return []
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    if not lines or lines[-1]["ev"] != "end":
        records.unlink()
        return []
    return [line for line in lines if line["ev"] == "test" and line["outcome"] in ("failed", "error")]


def unpack(sdists: Path, suite: str, to: Path) -> Path:
    requirement = SUITES[suite][0]
    stem = requirement.partition("==")[0]
    archive = next(iter(sdists.glob(f"{stem}-*.tar.gz")))
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
    return next(path for path in to.iterdir() if path.name.startswith(stem))


def seed_suite(suite: str, sdists: Path, out: Path, count: int, pairs: int, seed: int) -> None:
    work = out / "work" / suite
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    clean = unpack(sdists, suite, work)
    root = work / "root"

    def with_faults(chosen: list[faults.Fault], name: str, called: Path | None = None) -> list[dict[str, Any]]:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(clean, root)
        # From the end to the beginning, so that places stay where they are.
        for fault in sorted(chosen, key=lambda fault: -fault.start):
            fault.apply(root)
        return run(root, suite, name, out, called)

    # What was run before is not run again: how many tests each fault broke, and which runs there are.
    notes = out / f"{suite}.tried"
    tried: dict[str, Any] = json.loads(notes.read_text()) if notes.exists() else {}
    called = out / f"{suite}.called"
    if not called.exists():
        tried["clean"] = sorted(line["nodeid"] for line in with_faults([], f"{suite}-00", called))
    if not (out / f"{suite}-00.jsonl").exists():
        raise SystemExit(f"{suite}: its tests do not run as they are")
    failing = set(tried["clean"])
    reached = set(called.read_text().splitlines())
    done: list[dict[str, Any]] = [{"run": f"{suite}-00", "suite": suite, "faults": []}]
    kept: list[faults.Fault] = []
    broken: list[set[str]] = []

    def note() -> None:
        notes.write_text(json.dumps(tried))
        (out / f"{suite}.json").write_text(json.dumps(done, indent=1))

    for fault in faults.candidates(clean, SUITES[suite][1], seed):
        if len(kept) == count:
            break
        # A fault in what no test runs cannot show.
        if f"{fault.file}:{fault.function}" not in reached:
            continue
        name = f"{suite}-{len(kept) + 1:02}"
        what = f"{fault.file} {fault.function}: {fault.kind}"
        if what not in tried:
            tried[what] = sorted({line["nodeid"] for line in with_faults([fault], name)} - failing)
            print(what, len(tried[what]), flush=True)
            if not FEWEST <= len(tried[what]) <= MOST:
                (out / f"{name}.jsonl").unlink(missing_ok=True)
        nodes = set(tried[what])
        if FEWEST <= len(nodes) <= MOST:
            kept.append(fault)
            broken.append(nodes)
            done.append({"run": name, "suite": suite, "faults": [name], "breaks": {name: sorted(nodes)}, "what": what})
        note()
    numbers = [(first, second) for second in range(len(kept)) for first in range(second) if not broken[first] & broken[second]]
    for first, second in numbers[:: max(len(numbers) // pairs, 1)][:pairs] if pairs else []:
        if kept[first].file == kept[second].file and kept[first].start < kept[second].end and kept[second].start < kept[first].end:
            continue
        names = [f"{suite}-{number + 1:02}" for number in (first, second)]
        name = f"{names[0]}-{names[1][-2:]}"
        if name not in tried or not (out / f"{name}.jsonl").exists():
            tried[name] = len(with_faults([kept[first], kept[second]], name))
            print(name, tried[name], flush=True)
        if tried[name]:
            done.append(
                {
                    "run": name,
                    "suite": suite,
                    "faults": names,
                    "breaks": {names[0]: sorted(broken[first]), names[1]: sorted(broken[second])},
                }
            )
        note()
    shutil.rmtree(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdists", type=Path, help="where the source distributions are")
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", action="append", choices=sorted(SUITES))
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for suite in options.suite or SUITES:
        seed_suite(suite, options.sdists, options.out.resolve(), options.faults, options.pairs, options.seed)


if __name__ == "__main__":
    main()
