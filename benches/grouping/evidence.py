"""Writes what a pytest run shows as records (docs/wire.md, "Test runs") into the file that `PYLAIR_RECORDS` names. A pytest plugin
as small as the grouping needs: type, message, chain and frames with their source, and no locals."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import pytest

ROOT = Path(os.environ.get("PYLAIR_ROOT", "."))
RUN = os.environ.get("PYLAIR_RUN", "run")
LINES_AROUND = 5
# Of a recursion the ends tell everything.
MOST_FRAMES = 50


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


class Records:
    def __init__(self, path: str) -> None:
        self.out = Path(path).open("w", encoding="utf-8")
        self.numbers = 0

    def write(self, ev: str, **fields: Any) -> None:
        self.out.write(json.dumps({"ev": ev, "run": RUN, **fields}) + "\n")

    @pytest.hookimpl
    def pytest_sessionstart(self) -> None:
        name = os.environ["PYLAIR_PROJECT"]
        self.write("run", at=now(), project={"root": str(ROOT), "name": name}, python=sys.version.split()[0])
        self.write("code", hash=os.environ["PYLAIR_CODE"], how="files")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = (yield).get_result()
        if report.passed and report.when != "call":
            return
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.passed else "xfailed"
        elif report.failed and report.when != "call":
            outcome = "error"
        failure = None
        if report.failed and call.excinfo is not None:
            failure = self.evidence(call.excinfo.value, report.longreprtext)
        self.tested(item.nodeid, outcome, report.when, failure)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = report.longreprtext
            error = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
            kind, _, message = (error[0] if error else "CollectError").partition(": ")
            failure = {"exception": {"type": kind.rpartition(".")[2], "message": message}, "text": text[-4000:], "frames": []}
            self.tested(report.nodeid, "error", "collect", failure)

    @pytest.hookimpl
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write("end", at=now(), exit_code=int(exitstatus), seconds=0.0)
        self.out.close()

    def tested(self, nodeid: str, outcome: str, phase: str, failure: dict[str, Any] | None) -> None:
        self.numbers += 1
        if failure is not None:
            failure["occurrence"] = f"{RUN}-{self.numbers}"
        self.write("test", nodeid=nodeid, outcome=outcome, phase=phase, at=now(), file=nodeid.partition("::")[0], failure=failure)

    def evidence(self, error: BaseException, text: str) -> dict[str, Any]:
        chain = []
        seen = {id(error)}
        link: BaseException | None = error
        while link is not None and len(chain) < 8:
            suppressed = link.__suppress_context__
            relation = "cause" if link.__cause__ is not None else "context"
            link = link.__cause__ or (None if suppressed else link.__context__)
            if link is None or id(link) in seen:
                break
            seen.add(id(link))
            chain.append({"relation": relation, "exception": exception(link), "frames": frames(link.__traceback__)})
        return {"exception": exception(error), "chain": chain, "frames": frames(error.__traceback__), "text": text[-8000:]}


def exception(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except Exception:
        message = ""
    return {"type": type(error).__qualname__, "module": type(error).__module__, "message": message[:4000]}


def frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        path = Path(code.co_filename)
        try:
            file, in_app = str(path.relative_to(ROOT)), True
        except ValueError:
            file, in_app = str(path), False
        name = getattr(code, "co_qualname", code.co_name)
        frame = {
            "file": file,
            "line": trace.tb_lineno,
            "function": name,
            "module": trace.tb_frame.f_globals.get("__name__"),
            "in_app": in_app,
        }
        if in_app:
            frame["source"] = source(path, trace.tb_lineno)
            found.append(frame)
        trace = trace.tb_next
    found.reverse()
    if len(found) > MOST_FRAMES:
        found[MOST_FRAMES // 2 : -MOST_FRAMES // 2] = []
    return found


def source(path: Path, line: int) -> dict[str, Any] | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    first = max(line - LINES_AROUND, 1)
    return {"first": first, "lines": lines[first - 1 : line + LINES_AROUND]}


class Called:
    """Which functions of the project are run, as `file:qualified.name` without `<locals>`."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.names: set[str] = set()
        self.tool = sys.monitoring.COVERAGE_ID
        sys.monitoring.use_tool_id(self.tool, "pylair-called")
        sys.monitoring.register_callback(self.tool, sys.monitoring.events.PY_START, self.started)
        sys.monitoring.set_events(self.tool, sys.monitoring.events.PY_START)

    def started(self, code: CodeType, _offset: int) -> Any:
        if code.co_filename.startswith(str(ROOT)):
            name = code.co_qualname.replace(".<locals>", "")
            self.names.add(f"{Path(code.co_filename).relative_to(ROOT)}:{name}")
        return sys.monitoring.DISABLE

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        self.path.write_text("\n".join(sorted(self.names)), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if "PYLAIR_CALLED" in os.environ:
        config.pluginmanager.register(Called(os.environ["PYLAIR_CALLED"]), "pylair-called")
    if "PYLAIR_RECORDS" in os.environ:
        config.pluginmanager.register(Records(os.environ["PYLAIR_RECORDS"]), "pylair-records")
