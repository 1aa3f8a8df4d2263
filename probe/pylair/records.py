"""Makes the records of tests, as docs/wire.md has them under "Test runs", of pytest's reports. Called by reporting.py.

Most tests pass, and then each of their three reports costs little: they are made into text together, many tests at once.
"""

from __future__ import annotations

from json.encoder import encode_basestring as _quoted
from typing import Any, Callable

from . import facts, wire
from .real import real
from .witnessing import CARRIED

_PHASES = ("setup", "call", "teardown")
# Tests whose records make one line's worth for the delivery.
_CHUNK = 200


class _Test:
    """A test that is under way."""

    __slots__ = (
        "at",
        "attempt",
        "emitted",
        "facts",
        "file",
        "line",
        "nodeid",
        "outcome",
        "phase",
        "reason",
        "seconds",
        "subtests",
        "worker",
    )

    def __init__(self, nodeid: str, attempt: int, location: Any, at: float) -> None:
        self.nodeid = nodeid
        self.attempt = attempt
        self.file, self.line = location[0], location[1]
        self.at = at
        self.facts: dict[str, Any] = {}
        self.outcome = ""
        self.phase = "call"
        self.reason: str | None = None
        self.seconds = [0.0, 0.0, 0.0]
        self.emitted = False
        self.subtests: dict[str, int] | None = None
        self.worker: str | None = None


class Records:
    """The tests of one run. `add` takes lines, and whether they are to be sent at once."""

    def __init__(self, run: str, add: Callable[[bytes, bool], None]) -> None:
        self._run = run
        self._add = add
        # The tests that were collected, by their names.
        self.items: dict[str, Any] = {}
        # What failed in the end: occurrence, name, type of the exception.
        self._facts = facts.Facts()
        self._tests: dict[str, _Test] = {}
        # How often each test was tried.
        self.attempts: dict[str, int] = {}
        # Evidence of this process, by the number that its report carries.
        self._evidence: dict[int, dict[str, Any]] = {}
        self._occurrences = 0
        self._second, self._moment = -1, ""
        self._collect_errors: set[str] = set()

    # Reports.

    def passed(self, reports: list[Any]) -> None:
        """Takes many reports of what passed, in their order."""
        lines: list[str] = []
        attempts, tests, items, facts_of = self.attempts, self._tests, self.items, self._facts.of
        beginning = f'{{"ev":"test","run":"{self._run}","nodeid":'
        count, at = len(reports), 0
        told_file, file_text = None, ""
        second, moment = -1, ""
        while at < count:
            setup = reports[at]
            nodeid = setup.nodeid
            # The usual: one after the other, the first try, in this process, and nothing special.
            if at + 2 < count and setup.when == "setup" and nodeid not in attempts and nodeid not in tests:
                call, teardown = reports[at + 1], reports[at + 2]
                special = call.__dict__
                if (
                    teardown.when == "teardown"
                    and call.when == "call"
                    and call.nodeid == nodeid == teardown.nodeid
                    and "wasxfail" not in special
                    and "context" not in special
                    and "node" not in special
                ):
                    attempts[nodeid] = 1
                    file, line, _ = setup.location
                    if file != told_file:
                        told_file, file_text = file, _quoted(file)
                    start = setup.start
                    if int(start) != second:
                        second = int(start)
                        moment = self.stamp(second)[: -len("000000Z")]
                    item = items.get(nodeid)
                    told = facts_of(item) if item is not None else None
                    more = f",{wire.encode(told).decode()[1:-1]}" if told else ""
                    if line is not None:
                        more = f',"line":{line + 1}{more}'
                    # Whole microseconds are made into text in half the time.
                    lines.append(
                        f'{beginning}{_quoted(nodeid)},"outcome":"passed","phase":"call","attempt":1,'
                        f'"seconds":{{"setup":{int(setup.duration * 1e6)}e-6,"call":{int(call.duration * 1e6)}e-6,'
                        f'"teardown":{int(teardown.duration * 1e6)}e-6}},'
                        f'"file":{file_text}{more},"at":"{moment}{int((start - second) * 1e6):06}Z"}}\n'
                    )
                    at += 3
                    if len(lines) >= _CHUNK:
                        self._add_text(lines)
                    continue
            if lines:
                self._add_text(lines)
            self.take(setup)
            at += 1
        if lines:
            self._add_text(lines)

    def _add_text(self, lines: list[str]) -> None:
        self._add("".join(lines).encode("utf-8", "replace"), False)
        lines.clear()

    def take(self, report: Any) -> None:
        """Takes one report."""
        nodeid, when, outcome = report.nodeid, report.when, report.outcome
        if "context" in report.__dict__:
            self._subtest(report)
            return
        test = self._tests.get(nodeid)
        if when == "setup" or test is None:
            if test is not None:
                self._leave(test)
            if when == "teardown" and outcome != "failed":
                return
            test = self._begin(nodeid, report)
        at = _PHASES.index(when) if when in _PHASES else 1
        test.seconds[at] = report.duration
        if outcome == "passed":
            if at == 1:
                test.outcome = "passed"
                if hasattr(report, "wasxfail"):
                    test.outcome, test.reason = "xpassed", facts.reason(report)
        elif outcome == "skipped":
            if not test.outcome or at == 1:
                test.outcome, test.phase = ("xfailed" if hasattr(report, "wasxfail") else "skipped"), _PHASES[at]
                test.reason = facts.reason(report)
        else:
            self._failure(test, report, at)
        if at == 2:
            self._leave(test)

    def collected(self, report: Any) -> None:
        """Takes a report of what was skipped or could not be collected. With xdist every worker collects."""
        if report.nodeid in self._collect_errors:
            return
        self._collect_errors.add(report.nodeid)
        nodeid = wire.clean(report.nodeid or ".")
        record: dict[str, Any] = {"ev": "test", "run": self._run, "nodeid": nodeid, "phase": "collect", "attempt": 1}
        record["at"] = self.stamp(real.time())
        record["file"] = nodeid.partition("::")[0]
        if report.outcome == "skipped":
            record.update(outcome="skipped", reason=facts.reason(report))
            self._emit(record)
            return
        fields = self._evidence_of(report)
        record.update(outcome="error", failure=fields)
        self._emit(record)

    def finish(self) -> None:
        """Tells what is still under way."""
        for test in list(self._tests.values()):
            # A test that was interrupted has no outcome.
            if test.outcome and not test.emitted:
                self._tell_about(test)

    def running(self) -> str | None:
        """The test that began last and has not ended."""
        return next(reversed(list(self._tests)), None)

    def finished(self) -> int:
        return len(self.attempts) - sum(1 for test in self._tests.values() if not test.outcome)

    # Evidence.

    def new_occurrence(self) -> str:
        self._occurrences += 1
        return f"{self._run}-{self._occurrences}"

    def keep(self, report: Any, fields: dict[str, Any]) -> None:
        """Keeps the evidence of a failure until its report is taken."""
        if len(self._evidence) > 1000:
            self._evidence.clear()
        self._evidence[self._occurrences] = fields
        setattr(report, CARRIED, self._occurrences)

    def _evidence_of(self, report: Any) -> dict[str, Any]:
        carried = report.__dict__.get(CARRIED)
        fields: dict[str, Any] | None = None
        if type(carried) is int:
            fields = self._evidence.pop(carried, None)
        elif isinstance(carried, dict):
            fields = carried.get("evidence")
        if fields is None:
            from . import evidence

            fields = evidence.of_report(report)
        if not fields.get("occurrence"):
            fields["occurrence"] = self.new_occurrence()
        return fields

    # A test.

    def _begin(self, nodeid: str, report: Any) -> _Test:
        attempt = self.attempts[nodeid] = self.attempts.get(nodeid, 0) + 1
        test = self._tests[nodeid] = _Test(nodeid, attempt, report.location, report.start or real.time())
        carried = report.__dict__.get(CARRIED)
        if isinstance(carried, dict):
            test.facts = {name: carried[name] for name in ("params", "markers") if name in carried}
        elif nodeid in self.items:
            test.facts = self._facts.of(self.items[nodeid])
        node = report.__dict__.get("node")
        if node is not None:
            test.worker = str(getattr(getattr(node, "gateway", None), "id", "")) or None
        return test

    def _leave(self, test: _Test) -> None:
        if not test.emitted and test.outcome:
            self._tell_about(test)
        self._tests.pop(test.nodeid, None)

    def _failure(self, test: _Test, report: Any, at: int) -> None:
        """At once, not when the test has ended: what comes after it may end the process."""
        if at == 2 and not test.emitted and test.outcome:
            self._tell_about(test)
        rerun = report.outcome == "rerun"
        outcome = "rerun" if rerun else "failed" if at == 1 else "error"
        fields = self._evidence_of(report)
        if not test.outcome or at < 2:
            test.outcome = outcome
        test.emitted = True
        record = self._record(test, outcome, _PHASES[at])
        if hasattr(report, "wasxfail"):
            record["reason"] = facts.reason(report)
        record["failure"] = fields
        self._emit(record)

    def _subtest(self, report: Any) -> None:
        test = self._tests.get(report.nodeid) or self._begin(report.nodeid, report)
        name = facts.subtest_name(report.context)
        test.subtests = test.subtests or {}
        count = test.subtests[name] = test.subtests.get(name, 0) + 1
        name = name if count == 1 else f"{name} #{count}"
        expected = hasattr(report, "wasxfail")
        outcome = {"passed": "xpassed" if expected else "passed", "skipped": "xfailed" if expected else "skipped", "rerun": "rerun"}.get(
            report.outcome, "failed"
        )
        record = self._record(test, outcome, "call")
        record["subtest"] = name
        record["seconds"] = {"call": round(report.duration, 6)}
        if outcome in ("failed", "rerun"):
            record["failure"] = self._evidence_of(report)
        elif outcome != "passed":
            record["reason"] = facts.reason(report)
        self._emit(record)

    def _tell_about(self, test: _Test) -> None:
        test.emitted = True
        record = self._record(test, test.outcome, test.phase)
        if test.reason is not None:
            record["reason"] = test.reason
        self._emit(record)

    def _record(self, test: _Test, outcome: str, phase: str) -> dict[str, Any]:
        seconds = test.seconds
        record: dict[str, Any] = {
            "ev": "test",
            "run": self._run,
            "nodeid": wire.clean(test.nodeid),
            "outcome": outcome,
            "phase": phase,
            "attempt": test.attempt,
            "seconds": {"setup": round(seconds[0], 6), "call": round(seconds[1], 6), "teardown": round(seconds[2], 6)},
            "file": wire.clean(test.file),
            "at": self.stamp(test.at),
        }
        if test.line is not None:
            record["line"] = test.line + 1
        if test.facts:
            record.update(test.facts)
        if test.worker is not None:
            record["worker"] = test.worker
        return record

    def _emit(self, record: dict[str, Any]) -> None:
        self._add(wire.encode(record) + b"\n", "failure" in record)

    def stamp(self, moment: float) -> str:
        """A time as the daemon reads it."""
        second = int(moment)
        if second != self._second:
            self._second = second
            self._moment = "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}".format(*real.gmtime(second)[:6])
        return f"{self._moment}.{int((moment - second) * 1e6):06}Z"
