"""What the pytest plugin costs: a suite that passes with it and without, and a failure that is frozen. Called by `bench.py`."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench import Bench

PROBE = Path(__file__).resolve().parent.parent / "probe"
TESTS = 10_000
PER_FILE = 100
FAILURES = 20
HEAP_MB = 200
MOST_PERCENT = 2.0
MOST_MS = 5.0

# Each failure tells how long pytest's process took to deal with it.
FAILING = """
import os, time, pytest

heap = [(f"x{{number}}", number * 1.5) for number in range({objects})]

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    assert number < 0
"""
TIMES = """
import os, time, pytest

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_exception_interact():
    began, used = time.perf_counter(), time.process_time()
    yield
    with open(os.environ["BENCH_TIMES"], "a") as file:
        print(time.perf_counter() - began, time.process_time() - used, file=file)
"""
BYTES_PER_OBJECT = 170


def measure(bench: Bench) -> None:
    if not bench.options.venv_python:
        bench.skipped.append("the pytest plugin: pytest could not be installed")
        return
    with tempfile.TemporaryDirectory(prefix="lair-bench-") as directory:
        passing(bench, Path(directory))
        failing(bench, Path(directory))


def run(bench: Bench, suite: Path, env: dict[str, str], plugin: bool) -> tuple[float, float, int]:
    """Runs a suite. Returns its processor time, how long it took, and its exit status."""
    command = [bench.options.venv_python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "pylair.pytest_plugin"] if plugin else []
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=suite, env={**env, "PYTHONPATH": str(PROBE)}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.WEXITSTATUS(status)
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began, process.returncode


def passing(bench: Bench, directory: Path) -> None:
    suite = directory / "passing"
    suite.mkdir()
    body = "".join(f"def test_{number:03}():\n    assert sum(range({number})) >= 0\n\n\n" for number in range(PER_FILE))
    for number in range(TESTS // PER_FILE):
        (suite / f"test_{number:03}.py").write_text(body)
    for daemon in (False, True):
        home = bench.home()
        if daemon:
            home.run("failures", "list")
        env = home.env if daemon else {**home.env, "PYLAIR_HOME": str(directory / "nobody")}
        taken: dict[bool, list[tuple[float, float, int]]] = {True: [], False: []}
        # The first pair makes the compiled files.
        for number in range(bench.rounds(8) + 1):
            for plugin in (True, False) if number % 2 else (False, True):
                result = run(bench, suite, env, plugin)
                if result[2]:
                    raise RuntimeError(f"the passing suite ended with {result[2]}")
                if number:
                    taken[plugin].append(result)
        used, wall = ((statistics.median(one[at] / other[at] for one, other in zip(taken[True], taken[False])) - 1) * 100 for at in (0, 1))
        bare = statistics.median(result[0] for result in taken[False])
        where = "with a daemon" if daemon else "without a daemon"
        more = f"{TESTS} tests take {bare:.1f} s without it; of the time that passes {wall:.1f} %"
        bench.row(f"pytest plugin on tests that pass, {where}", used, "%", f"<= {MOST_PERCENT:.0f}", used <= MOST_PERCENT, more)
        home.close()


def failing(bench: Bench, directory: Path) -> None:
    for megabytes in (0, HEAP_MB):
        suite = directory / f"failing-{megabytes}"
        suite.mkdir()
        (suite / "test_it.py").write_text(FAILING.format(objects=(megabytes << 20) // BYTES_PER_OBJECT, count=FAILURES))
        (suite / "conftest.py").write_text(TIMES)
        home = bench.home()
        home.run("failures", "list")
        took = {}
        for freeze in ("0", "1"):
            times = suite / f"times-{freeze}"
            run(bench, suite, {**home.env, "PYLAIR_FREEZE": freeze, "BENCH_TIMES": str(times)}, True)
            # The first failure imports what the others find.
            lines = [tuple(map(float, line.split())) for line in times.read_text().splitlines()][1:]
            took[freeze] = [statistics.median(line[at] for line in lines) * 1e3 for at in (0, 1)]
        size = f"{megabytes} MB of objects" if megabytes else "a small process"
        if not list((home.path / "runtime" / "failures").glob("*.json")):
            bench.skipped.append(f"a failure that is frozen, {size}: none was")
            home.close()
            continue
        wall, used = (took["1"][at] - took["0"][at] for at in (0, 1))
        more = f"processor time {used:.1f} ms; evidence alone takes {took['0'][0]:.1f} ms"
        bench.row(f"a failure that is frozen, {size}", wall, "ms", f"<= {MOST_MS:.0f}", wall <= MOST_MS, more)
        home.close()
