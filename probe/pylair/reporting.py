"""Reports a pytest run: turns what pytest says into the records of docs/wire.md, "Test runs". Made by pytest_plugin.py.

`Reporter` is in the process that the user started and alone speaks to the daemon. With xdist the tests run elsewhere: a `Worker` there
puts what only it can know on pytest's own reports, which pytest brings over. Nothing here raises into the run; after an error of ours the
rest of the run is not reported, and that is said at its end.
"""

from __future__ import annotations

import os
from json.encoder import encode_basestring as _quoted
from typing import Any, Iterator

import pytest

from . import facts, git_state, wire
from .delivery import ANSWER_SECONDS, Delivery
from .real import real

MAX_CLOSING_LINES = 20
_GIT_SECONDS = 3.0
_FIRST_ANSWER_SECONDS = 0.5
_PHASES = ("setup", "call", "teardown")
# Under this name a report carries what only the process that ran the test knows.
_CARRIED = "_pylair"


class _Witness:
    """What the process in which tests run has to see: failures while their frames are alive."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.problem: str | None = None
        self._facts = facts.Facts()
        self._root = str(config.rootpath)
        self.code = git_state.Code(self._root)
        # The newest test, what pytest called for it last, and when that test began.
        self._item: Any = None
        self._call: Any = None
        self._at = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Only remembers, and lets others answer: a wrapper, which would see the report too, takes longer than all the rest of ours."""
        self._item, self._call = item, call
        if call.when == "setup":
            self._at = call.start

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """What could not be collected, before pytest reports it; and a failure that a plugin holds back to run the test again."""
        try:
            if getattr(report, "when", None) != "collect":
                self.look(report, call)
                return
            error = call.excinfo.value
            if type(error).__name__ == "CollectError" and error.__cause__ is not None:
                # pytest's own word for whatever a module raised.
                error = error.__cause__
            self.failed(report, error, None)
        except Exception as error:
            self.give_up(error)

    def look(self, report: Any, call: Any) -> None:
        """Collects the evidence for a report of a failure, once, if the call that it is about is known."""
        carried = report.__dict__.get(_CARRIED)
        if carried is None or (type(carried) is dict and "evidence" not in carried):
            excinfo = call.excinfo if call is not None and call.when == report.when else None
            if excinfo is not None and report.outcome == "failed":
                self.failed(report, excinfo.value, report.nodeid)

    def failed(self, report: Any, error: BaseException, nodeid: str | None) -> None:
        raise NotImplementedError

    def give_up(self, error: BaseException) -> None:
        if self.problem is None:
            entry, where = error.__traceback__, ""
            while entry is not None:
                where = f"{os.path.basename(entry.tb_frame.f_code.co_filename)}:{entry.tb_lineno}"
                entry = entry.tb_next
            self.problem = f"{type(error).__name__} at {where}: {str(error)[:300]}"


class Worker(_Witness):
    """In an xdist worker."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Before xdist sends it."""
        try:
            if report.when == "setup" and self._item is not None:
                carried = getattr(report, _CARRIED, None) or {}
                setattr(report, _CARRIED, {**carried, "at": self._at, **self._facts.of(self._item)})
            if report.outcome == "failed":
                self.look(report, self._call)
            self._call = None
        except Exception as error:
            self.give_up(error)

    def failed(self, report: Any, error: BaseException, nodeid: str | None) -> None:
        from . import evidence

        fields = evidence.collect(error, report, self.code)
        if nodeid is not None:
            fields["frozen"] = {"why_not": "the test ran in a worker of xdist"}
        carried = getattr(report, _CARRIED, None) or {}
        setattr(report, _CARRIED, {**carried, "evidence": fields})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        try:
            self.config.workeroutput["pylair"] = {"files": git_state.imported_files(self.code.place), "problem": self.problem}
        except Exception:
            pass


class _Test:
    """A test that is under way."""

    __slots__ = ("at", "attempt", "emitted", "facts", "file", "line", "nodeid", "outcome")
    __slots__ += ("phase", "reason", "seconds", "subtests", "worker")

    def __init__(self, nodeid: str, attempt: int, location: Any) -> None:
        self.nodeid = nodeid
        self.attempt = attempt
        self.file, self.line = location[0], location[1]
        self.at: float | None = None
        self.facts: dict[str, Any] = {}
        self.outcome = ""
        self.phase = "call"
        self.reason: str | None = None
        self.seconds = [0.0, 0.0, 0.0]
        self.emitted = False
        self.subtests: dict[str, int] | None = None
        self.worker: str | None = None


class Reporter(_Witness):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Whoever started the run may have named it; a run that a test starts is another one.
        given = os.environ.pop("PYLAIR_TEST_RUN", "")
        self.run = given if given.isalnum() and len(given) <= 32 else real.urandom(8).hex()
        env = dict(os.environ)
        self.ci = env.get("CI", "").lower() not in ("", "0", "false")
        self.delivery = Delivery(self.run, env)
        self._env = env
        self._pid = real.getpid()
        self._git: Any = None
        self._code_told = False
        self._began = 0.0
        self._tests: dict[str, _Test] = {}
        self._attempts: dict[str, int] = {}
        # Evidence of this process, by the number that its report carries.
        self._evidence: dict[int, dict[str, Any]] = {}
        self._occurrences = 0
        self._failures: list[tuple[str, str, str]] = []
        self._collected: int | None = None
        self._collect_errors: set[str] = set()
        self._note: str | None = None
        self._worker_files: dict[str, str] = {}
        self._second, self._moment = -1, ""
        self._freezer: Any = None
        self._waited = False

    # The run.

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        try:
            self._began = real.monotonic()
            self._emit(
                {"ev": "run", "run": self.run, "at": self._stamp(real.time()), **facts.about(self.config, self._env, self.ci)},
                at_once=True,
            )
            self._git = git_state.Git(self._root)
        except Exception as error:
            self.give_up(error)

    def pytest_collection_finish(self, session: Any) -> None:
        if self._collected is None:
            self._collected = len(session.items)
        try:
            self._tell_code(0.0)
        except Exception as error:
            self.give_up(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Any) -> None:
        self._collected = len(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        told = (getattr(node, "workeroutput", None) or {}).get("pylair")
        if isinstance(told, dict):
            self._worker_files.update(told.get("files") or {})
            self.problem = self.problem or told.get("problem")

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        running = [test.nodeid for test in self._tests.values()]
        said = f"{excinfo.typename}: {excinfo.value}".rstrip(": ")[:500]
        self._note = wire.clean(f"{said} in {running[-1]}" if running else said)

    def pytest_internalerror(self, excrepr: Any, excinfo: Any) -> None:
        self._note = wire.clean(f"pytest itself failed: {excinfo.typename}: {str(excinfo.value)[:500]}")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: Any) -> Iterator[None]:
        try:
            self._finish_tests()
        except Exception as error:
            self.give_up(error)
        yield
        try:
            self._end(session)
        except Exception:
            pass

    def _finish_tests(self) -> None:
        """Everything is with the daemon before pytest prints its summary."""
        if real.getpid() != self._pid:
            return
        for test in list(self._tests.values()):
            # A test that was interrupted has no outcome.
            if test.outcome and not test.emitted:
                self._tell_about(test)
        self._tell_code(_GIT_SECONDS)
        self.delivery.flush(ANSWER_SECONDS)

    def _end(self, session: Any) -> None:
        if real.getpid() != self._pid:
            return
        end: dict[str, Any] = {"ev": "end", "run": self.run, "at": self._stamp(real.time())}
        end["exit_code"] = int(getattr(session, "exitstatus", 0))
        end["seconds"] = round(real.monotonic() - self._began, 3)
        finished = len(self._attempts) - sum(1 for test in self._tests.values() if not test.outcome)
        end["not_run"] = max(0, (self._collected or 0) - finished)
        note = self._note or (f"the report is not complete: {self.problem}" if self.problem else None)
        if note:
            end["note"] = note
        self.delivery.add(wire.encode(end) + b"\n")
        self.delivery.flush(ANSWER_SECONDS)
        self.delivery.close()

    def _tell_code(self, seconds: float) -> None:
        """Says which code is tested, as soon as git has; at the end of the run the imported files must do."""
        if self._code_told or self._git is None or not (self._git.read(seconds) or seconds):
            return
        code = self._git.answer
        if code is None:
            if not seconds:
                return
            self._git.close()
            code = git_state.of_files({**git_state.imported_files(self.code.place), **self._worker_files})
        self._code_told = True
        self._emit({"ev": "code", "run": self.run, **code})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Iterator[None]:
        yield
        try:
            for line in self._closing_lines():
                terminalreporter.write_line(line)
        except Exception:
            pass

    def _closing_lines(self) -> Iterator[str]:
        known = [failure for failure in self._failures if self._is_known(failure[0])]
        for occurrence, nodeid, kind in known[:MAX_CLOSING_LINES]:
            told = self.delivery.failures[occurrence]
            number, status, times = told["id"], str(told.get("status", "new")).replace("_", " "), told.get("occurrences", 1)
            seen = f", seen {times} times" if type(times) is int and times > 1 else ""
            yield f"pylair: {number} {nodeid}  {kind}  ({status}{seen}; pylair failures show {number})"
        if len(known) > MAX_CLOSING_LINES:
            yield f"pylair: and {len(known) - MAX_CLOSING_LINES} more; pylair failures list"
        if self.problem is not None:
            yield f"pylair: not everything of this run was recorded: {self.problem}"
        elif self.delivery.spool_error is not None:
            yield f"pylair: the results of this run could not be kept: {self.delivery.spool_error}"

    def _is_known(self, occurrence: str) -> bool:
        told = self.delivery.failures.get(occurrence)
        return isinstance(told, dict) and "id" in told

    # The tests.

    def failed(self, report: Any, error: BaseException, nodeid: str | None) -> None:
        from . import evidence

        self._occurrences += 1
        occurrence = f"{self.run}-{self._occurrences}"
        begun: list[Any] = []
        if nodeid is None or not self._may_freeze():
            fields = evidence.collect(error, report, self.code)
        else:
            try:
                fields = evidence.collect(
                    error, report, self.code, lambda entries: begun.append(self._freeze(occurrence, nodeid, error, entries))
                )
            finally:
                told = [{"why_not": copy} if isinstance(copy, str) else copy.settle() for copy in begun]
            fields["frozen"] = told[0]
        fields["occurrence"] = occurrence
        if len(self._evidence) > 1000:
            self._evidence.clear()
        self._evidence[self._occurrences] = fields
        setattr(report, _CARRIED, self._occurrences)

    def _may_freeze(self) -> bool:
        """Whether the daemon lets failures be frozen. Its first answer may be on its way."""
        if not self._waited:
            self._waited = True
            self.delivery.wait_for_first_answer(_FIRST_ANSWER_SECONDS)
        return self.delivery.freeze > 0

    def _freeze(self, occurrence: str, nodeid: str, error: BaseException, entries: Any) -> Any:
        """A copy that is being made, or why none is."""
        try:
            if self._freezer is None:
                from . import freezing, registry

                self._freezer = freezing.Freezer(self.run, registry.runtime_directory(self._env, os.getuid()), self._env, self.ci)
            return self._freezer.freeze(occurrence, wire.clean(nodeid), error, entries)
        except Exception as problem:
            return wire.clean(f"{type(problem).__name__}: {str(problem)[:300]}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        try:
            if report.outcome == "failed":
                self.look(report, self._call)
            self._call = None
            self._report(report)
        except Exception as error:
            self.give_up(error)

    def _report(self, report: Any) -> None:
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

    def _begin(self, nodeid: str, report: Any) -> _Test:
        attempt = self._attempts[nodeid] = self._attempts.get(nodeid, 0) + 1
        test = self._tests[nodeid] = _Test(nodeid, attempt, report.location)
        carried = report.__dict__.get(_CARRIED)
        if isinstance(carried, dict):
            test.at = carried.pop("at", None)
            test.facts = {name: carried[name] for name in ("params", "markers") if name in carried}
        elif self._item is not None and self._item.nodeid == nodeid:
            test.at, test.facts = self._at, self._facts.of(self._item)
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
        if not rerun:
            self._failures.append((fields["occurrence"], wire.clean(test.nodeid), fields["exception"]["type"]))
        if not test.outcome or at < 2:
            test.outcome = outcome
        test.emitted = True
        record = self._record(test, outcome, _PHASES[at])
        if hasattr(report, "wasxfail"):
            record["reason"] = facts.reason(report)
        record["failure"] = fields
        self._emit(record, at_once=True)

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
            record["failure"] = fields = self._evidence_of(report)
            if outcome == "failed":
                self._failures.append((fields["occurrence"], f"{wire.clean(test.nodeid)} {name}", fields["exception"]["type"]))
        elif outcome != "passed":
            record["reason"] = facts.reason(report)
        self._emit(record, at_once="failure" in record)

    def _tell_about(self, test: _Test) -> None:
        test.emitted = True
        plain = not test.facts and test.worker is None and test.at is not None and test.line is not None
        if test.outcome == "passed" and plain and test.nodeid.isascii():
            self._tell_quickly(test)
            return
        record = self._record(test, test.outcome, test.phase)
        if test.reason is not None:
            record["reason"] = test.reason
        self._emit(record)

    def _tell_quickly(self, test: _Test) -> None:
        """As `_record` would, for the many tests that passed and of which nothing else is to be told."""
        setup, call, teardown = test.seconds
        seconds = f'{{"setup":{setup:.6f},"call":{call:.6f},"teardown":{teardown:.6f}}}'
        text = (
            f'{{"ev":"test","run":"{self.run}","nodeid":{_quoted(test.nodeid)},"outcome":"passed","phase":"call","attempt":{test.attempt},'
            f'"seconds":{seconds},"file":{_quoted(test.file)},"line":{test.line + 1},"at":"{self._stamp(test.at)}"}}\n'
        )
        if real.getpid() == self._pid:
            self.delivery.add(text.encode("utf-8", "replace"))

    def _record(self, test: _Test, outcome: str, phase: str) -> dict[str, Any]:
        seconds = test.seconds
        record: dict[str, Any] = {
            "ev": "test",
            "run": self.run,
            "nodeid": wire.clean(test.nodeid),
            "outcome": outcome,
            "phase": phase,
            "attempt": test.attempt,
            "seconds": {"setup": round(seconds[0], 6), "call": round(seconds[1], 6), "teardown": round(seconds[2], 6)},
            "file": wire.clean(test.file),
        }
        if test.line is not None:
            record["line"] = test.line + 1
        if test.at is not None:
            record["at"] = self._stamp(test.at)
        if test.facts:
            record.update(test.facts)
        if test.worker is not None:
            record["worker"] = test.worker
        return record

    def _evidence_of(self, report: Any) -> dict[str, Any]:
        carried = report.__dict__.get(_CARRIED)
        fields: dict[str, Any] | None = None
        if type(carried) is int:
            fields = self._evidence.pop(carried, None)
        elif isinstance(carried, dict):
            fields = carried.get("evidence")
        if fields is None:
            from . import evidence

            fields = evidence.of_report(report)
        if not fields.get("occurrence"):
            self._occurrences += 1
            fields["occurrence"] = f"{self.run}-{self._occurrences}"
        return fields

    def pytest_collectreport(self, report: Any) -> None:
        try:
            if report.outcome == "passed" or report.nodeid in self._collect_errors:
                return
            # With xdist every worker collects.
            self._collect_errors.add(report.nodeid)
            self._collection(report)
        except Exception as error:
            self.give_up(error)

    def _collection(self, report: Any) -> None:
        nodeid = wire.clean(report.nodeid or ".")
        record: dict[str, Any] = {"ev": "test", "run": self.run, "nodeid": nodeid, "phase": "collect", "attempt": 1}
        record["at"] = self._stamp(real.time())
        record["file"] = nodeid.partition("::")[0]
        if report.outcome == "skipped":
            record.update(outcome="skipped", reason=facts.reason(report))
            self._emit(record)
            return
        fields = self._evidence_of(report)
        self._failures.append((fields["occurrence"], nodeid, fields["exception"]["type"]))
        record.update(outcome="error", failure=fields)
        self._emit(record, at_once=True)

    # Records.

    def _emit(self, record: dict[str, Any], at_once: bool = False) -> None:
        if real.getpid() == self._pid:
            self.delivery.add(wire.encode(record) + b"\n", at_once)

    def _stamp(self, moment: float) -> str:
        """A time as the daemon reads it."""
        second = int(moment)
        if second != self._second:
            self._second = second
            self._moment = "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}".format(*real.gmtime(second)[:6])
        return f"{self._moment}.{int((moment - second) * 1e6):06}Z"
