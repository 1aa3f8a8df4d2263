"""Reports a pytest run from the process that the user started, which alone speaks to the daemon. Made by pytest_plugin.py.

Owns the run as a whole: its beginning and end, the code that is tested, the closing lines, and whether a failure is frozen. What is told
of tests is made by records.py and brought over by delivery.py. Nothing here raises into the run.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
from types import SimpleNamespace
from typing import Any, Iterator

import pytest

from . import crashes, facts, git_state, wire
from .delivery import ANSWER_SECONDS, BATCH_SECONDS, Delivery
from .real import real
from .records import Records
from .witnessing import CARRIED, Witness, raised

MAX_CLOSING_LINES = 200
_MAX_SETTLED_LINES = 20
_GIT_SECONDS = 3.0
_FIRST_ANSWER_SECONDS = 0.5
_MAX_PASSED = 3000
# How long what passed waits where its name is not noted in memory that outlives the process: to write after each test costs too much.
_UNNOTED_SECONDS = 0.02
# What pytest exits with.
_USAGE_ERROR = 4


class Reporter(Witness):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # Whoever started the run may have named it; a run that a test starts is another one.
        given = os.environ.pop("PYLAIR_TEST_RUN", "")
        self.run = given if given.isalnum() and len(given) <= 32 else real.urandom(8).hex()
        self._now = _Now.of(os.environ.pop("PYLAIR_TEST_NOW", ""), config)
        self._stacks = crashes.Stacks.given(os.environ.pop("PYLAIR_TEST_STACKS", ""))
        # Of xdist workers, by their names.
        self._worker_stacks: dict[str, crashes.Stacks] = {}
        env = dict(os.environ)
        if env.get("PYLAIR_HOME"):
            # A test may go to another directory.
            env["PYLAIR_HOME"] = os.path.abspath(env["PYLAIR_HOME"])
        self.ci = env.get("CI", "").lower() not in ("", "0", "false")
        self.delivery = Delivery(self.run, env)
        self._records = Records(self.run, self._add)
        self._env = env
        self._pid = real.getpid()
        self._git: Any = None
        self._code_told = False
        self._began = 0.0
        # Reports of what passed, for how long they are kept waiting, and until when.
        self._passed: list[Any] = []
        self._log = self._now if self._now is not None and self._now.has_log else None
        self._waits = BATCH_SECONDS if self._log is not None else _UNNOTED_SECONDS
        self._due = 0.0
        # A failure whose exception pytest is about to show.
        self._held: Any = None
        self._collected: int | None = None
        self._note: str | None = None
        self._freezer: Any = None
        self._waited = False
        self._is_told = False
        self._ended: tuple[int, str | None] | None = None

    # The run.

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        try:
            self._began = real.monotonic()
            begun = {"ev": "run", "run": self.run, "at": self._records.stamp(real.time()), **facts.about(self.config, self._env, self.ci)}
            self._add(wire.encode(begun) + b"\n", True)
            self._git = git_state.Git(self.root)
            if self._now is not None:
                self.config.pluginmanager.register(self._now, "pylair-now")
            if self._stacks is not None:
                self._stacks.listen()
        except Exception as error:
            self.give_up(error)

    def pytest_collection_finish(self, session: Any) -> None:
        if self._collected is None:
            self._collected = len(session.items)
        try:
            self._records.items = {item.nodeid: item for item in session.items}
            self._tell_code(0.0)
        except Exception as error:
            self.give_up(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Any) -> None:
        self._collected = len(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Before an xdist worker is started."""
        try:
            stacks = crashes.Stacks.made()
            if stacks is not None:
                self._worker_stacks[str(node.gateway.id)] = stacks
                node.workerinput["pylair_stacks"] = stacks.path
        except Exception as error:
            self.give_up(error)

    def _crashed(self, report: Any) -> None:
        """A report of a worker that died carries its stacks."""
        stacks = self._worker_stacks.get(str(getattr(report.node.gateway, "id", "")))
        text = stacks.read() if stacks is not None else ""
        if text and isinstance(report.longrepr, str):
            report.longrepr = f"{report.longrepr}\n\n{text}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        told = (getattr(node, "workeroutput", None) or {}).get("pylair")
        if isinstance(told, dict):
            self.problem = self.problem or told.get("problem")

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        try:
            self._catch_up()
            running = self._records.running()
            said = f"{excinfo.typename}: {excinfo.value}".rstrip(": ")[:500]
            self._note = wire.clean(f"{said} in {running}" if running else said)
        except Exception as error:
            self.give_up(error)

    def pytest_internalerror(self, excrepr: Any, excinfo: Any) -> None:
        self._note = wire.clean(f"pytest itself failed: {excinfo.typename}: {str(excinfo.value)[:500]}")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: Any) -> Iterator[None]:
        try:
            if self._now is not None:
                self._now.pytest_runtest_logstart("")
            self._finish_tests(int(getattr(session, "exitstatus", 0)))
        except Exception as error:
            self.give_up(error)
        yield
        try:
            self._end(int(getattr(session, "exitstatus", 0)))
            self.delivery.close()
            if not self._is_told:
                # pytest has no summary: it was told to exit with a code of its own, or has nothing to print with.
                self._tell_otherwise()
        except Exception:
            pass

    def _finish_tests(self, exit_code: int) -> None:
        """Everything is with the daemon before pytest prints its summary, so that the answer says what became of the whole run."""
        if real.getpid() != self._pid:
            return
        self._catch_up()
        self._records.finish()
        self._tell_code(_GIT_SECONDS)
        self._end(exit_code)

    def _end(self, exit_code: int) -> None:
        """Says how the run ended, and again if a plugin has changed that since."""
        note = self._note or (f"the report is not complete: {self.problem}" if self.problem else None)
        if real.getpid() != self._pid or self._ended == (exit_code, note):
            return
        self._ended = (exit_code, note)
        end: dict[str, Any] = {"ev": "end", "run": self.run, "at": self._records.stamp(real.time())}
        end["exit_code"] = exit_code
        end["seconds"] = round(real.monotonic() - self._began, 3)
        end["not_run"] = max(0, (self._collected or 0) - self._records.finished())
        if note:
            end["note"] = note
        self.delivery.add(wire.encode(end) + b"\n")
        self.delivery.flush(ANSWER_SECONDS)

    def _tell_code(self, seconds: float) -> None:
        """Says which code is tested, as soon as git has; where it has nothing to say, or not by the end of the run, the files must do."""
        if self._code_told or self._git is None or not (self._git.read(seconds) or seconds):
            return
        code = self._git.answer
        if code is None:
            self._git.close()
            code = git_state.of_files(self.root)
        self._code_told = True
        self._add(wire.encode({"ev": "code", "run": self.run, **code}) + b"\n", False)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Iterator[None]:
        yield
        try:
            self._is_told = True
            for line in self._closing_lines():
                terminalreporter.write_line(line)
        except Exception:
            pass

    def _tell_otherwise(self) -> None:
        self._is_told = True
        lines = list(self._closing_lines())
        if not lines or real.getpid() != self._pid:
            return
        manager = self.config.pluginmanager
        terminal, capturing = manager.get_plugin("terminalreporter"), manager.get_plugin("capturemanager")
        if terminal is not None:
            # What pytest wrote last may not have ended its line.
            terminal.ensure_newline()
            for line in lines:
                terminal.write_line(line)
            return
        text = "".join(f"{line}\n" for line in lines)
        if capturing is None:
            sys.stdout.write(text)
        else:
            with capturing.global_and_fixture_disabled():
                sys.stdout.write(text)
        sys.stdout.flush()

    def conftest_failed(self, error: Any) -> None:
        """Reports a run that ended before it began: a conftest.py beside its arguments raised, and pytest made no session."""
        import traceback

        self.pytest_sessionstart()
        cause: Any = raised(error)
        entry = cause.__traceback__
        while entry is not None and not self.code.place(entry.tb_frame.f_code.co_filename)[1]:
            entry = entry.tb_next
        text = "".join(traceback.format_exception(type(cause), cause, entry or cause.__traceback__))
        path = os.path.relpath(str(error.path), self.root)
        report = SimpleNamespace(nodeid=path, when="collect", outcome="failed", longrepr=text, sections=[])
        self.failed(report, cause, None)
        self._records.collected(report)
        self._finish_tests(_USAGE_ERROR)
        self.delivery.close()
        # After what pytest says about it.
        atexit.register(self._tell_at_exit)

    def _tell_at_exit(self) -> None:
        try:
            if real.getpid() == self._pid:
                sys.stderr.write("".join(f"{line}\n" for line in self._closing_lines()))
        except Exception:
            pass

    def _closing_lines(self) -> Iterator[str]:
        groups = self._closing("failures")
        for told in groups[:MAX_CLOSING_LINES]:
            number, count, times = told["id"], told.get("failures", 1), told.get("occurrences", 1)
            status = str(told.get("status", "new")).replace("_", " ")
            seen = f", seen {times} times" if type(times) is int and times > 1 else ""
            many = f"; one of {count} failures in group {told['group']}" if type(count) is int and count > 1 else ""
            yield f"pylair: {number} {told['test']}  {told['type']}  ({status}{seen}{many}; pylair failures show {number})"
        more = self.delivery.closing.get("more_failures", 0) + sum(told["failures"] for told in groups[MAX_CLOSING_LINES:])
        if more:
            yield f"pylair: and {more} more; pylair failures list --project {shlex.quote(self.root)} --limit 1000"
        for told in self._closing("resolved")[:_MAX_SETTLED_LINES]:
            yield f"pylair: this run resolved {_named(told)}"
        for told in self._closing("not_resolved")[:_MAX_SETTLED_LINES]:
            yield f"pylair: this run did not resolve {_named(told)}: {told.get('note')}"
        if self.problem is not None:
            yield f"pylair: not everything of this run was recorded: {self.problem}"
        elif self.delivery.spool_error is not None:
            yield f"pylair: the results of this run could not be kept: {self.delivery.spool_error}"

    def _closing(self, what: str) -> list[dict[str, Any]]:
        """What the daemon says of the whole run."""
        told = self.delivery.closing.get(what)
        return told if isinstance(told, list) else []

    def _add(self, line: bytes, at_once: bool) -> None:
        if real.getpid() == self._pid:
            self.delivery.add(line, at_once)

    # The tests.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called three times for every test. What passed is made into records together with others, which costs less; until then memory
        that outlives this process has the names."""
        try:
            if report.outcome == "passed":
                passed = self._passed
                passed.append(report)
                if report.when == "teardown":
                    log = self._log
                    if report.stop > self._due or (log is not None and not log.note_passed(report.nodeid, passed, self._records.attempts)):
                        self._due = report.stop + self._waits
                        self._catch_up()
                elif len(passed) > _MAX_PASSED:
                    self._catch_up()
                return
            self._catch_up()
            if report.when == "???" and "node" in report.__dict__:
                self._crashed(report)
            if report.outcome == "failed" and CARRIED not in report.__dict__ and "node" not in report.__dict__:
                self._held = report
            else:
                self._records.take(report)
        except Exception as error:
            self.give_up(error)

    @pytest.hookimpl(tryfirst=True)
    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Before a debugger, which may end the run."""
        super().pytest_exception_interact(node, call, report)
        if report is self._held:
            try:
                self._records.items.setdefault(report.nodeid, node)
                self._catch_up()
            except Exception as error:
                self.give_up(error)

    def _catch_up(self) -> None:
        """Tells what pytest has reported so far."""
        # What passed came after what is held.
        held, self._held = self._held, None
        if held is not None:
            self._records.take(held)
        if self._passed:
            reports = self._passed[:]
            self._passed.clear()
            self._records.passed(reports)
            if self._log is not None:
                self._log.forget_passed()

    def pytest_collectreport(self, report: Any) -> None:
        try:
            if report.outcome != "passed":
                self._records.collected(report)
        except Exception as error:
            self.give_up(error)

    # Failures.

    def failed(self, report: Any, error: BaseException, nodeid: str | None) -> None:
        from . import evidence

        occurrence = self._records.new_occurrence()
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
        self._records.keep(report, fields)

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
            return self._freezer.freeze(occurrence, wire.clean(nodeid), error, entries, self.delivery.freeze)
        except Exception as problem:
            return wire.clean(f"{type(problem).__name__}: {str(problem)[:300]}")


def _named(told: dict[str, Any]) -> str:
    """Failures of one cause, by one of them."""
    count = told.get("failures", 1)
    named = f"{told['id']} {told['test']}  {told['type']}"
    return f"{count} failures in group {told['group']}, such as {named}" if type(count) is int and count > 1 else named


class _Now:
    """Says which test runs, and which have passed but are not recorded yet, in memory that `pylair test` shares: it looks there when a
    test has ended this process. docs/wire.md says what is where."""

    _NAME_BYTES = 4096
    _LOG = _NAME_BYTES + 4

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._nodeid, self._name = "", b"\0"
        self._used = 0
        self._room = len(memory) - self._LOG
        self.has_log = self._room > 0
        if self.has_log:
            self._count = memoryview(memory)[self._NAME_BYTES : self._LOG].cast("I")

    @classmethod
    def of(cls, named: str, config: Any) -> _Now | None:
        if not named.isdigit():
            return None
        import mmap

        fd = int(named)
        try:
            memory = mmap.mmap(fd, real.fstat(fd).st_size)
            real.close(fd)
        except (OSError, ValueError):
            return None
        # With xdist the tests run elsewhere.
        return None if getattr(config.option, "dist", "no") != "no" else cls(memory)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._nodeid = nodeid
        self._name = name = nodeid.encode("utf-8", "replace")[: self._NAME_BYTES - 1] + b"\0"
        self._memory[: len(name)] = name

    def note_passed(self, nodeid: str, reports: list[Any], attempts: dict[str, int]) -> bool:
        """Notes that the test that began last has passed. Returns whether that was possible, and is all there is to say of it."""
        name, at = self._name, self._LOG + self._used
        used = self._used + len(name)
        if used > self._room or nodeid != self._nodeid or len(name) == self._NAME_BYTES or nodeid in attempts:
            return False
        if len(reports) > 1 and "wasxfail" in reports[-2].__dict__:
            return False
        self._memory[at : at + len(name)] = name
        # After the name itself: the process may end between the two.
        self._count[0] = self._used = used
        return True

    def forget_passed(self) -> None:
        """They are recorded."""
        if self._used:
            self._count[0] = self._used = 0


class _Dating(Reporter):
    """For a pytest before 7.3, whose reports do not say when it was."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        report.stop = real.time()
        report.start = report.stop - report.duration
        super().pytest_runtest_logreport(report)


def reporter(config: Any) -> Reporter:
    """The one for this version of pytest."""
    from _pytest.reports import TestReport

    return (Reporter if "start" in TestReport.__init__.__code__.co_varnames else _Dating)(config)
