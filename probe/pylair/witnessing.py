"""What the process in which tests run sees of a pytest run: failures while their frames are alive. Base of `reporting.Reporter`.

With xdist the tests run elsewhere: a `Worker` there puts what only it can know on pytest's own reports, which pytest brings over. Nothing
here raises into the run; after an error of ours the rest of the run is not reported, and that is said at its end.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from . import crashes, facts, git_state

# Under this name a report carries what only the process that ran the test knows.
CARRIED = "_pylair"


class Witness:
    def __init__(self, config: Any) -> None:
        self.config = config
        self.problem: str | None = None
        self.root = str(config.rootpath)
        self.code = git_state.Code(self.root)

    @pytest.hookimpl(tryfirst=True)
    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """What could not be collected, before pytest reports it; and a failure that a plugin holds back to run the test again."""
        try:
            if getattr(report, "when", None) != "collect":
                self.look(report, call)
                return
            self.failed(report, raised(call.excinfo.value), None)
        except Exception as error:
            self.give_up(error)

    def look(self, report: Any, call: Any) -> None:
        """Collects the evidence for a report of a failure, once, if the call that it is about is known."""
        carried = report.__dict__.get(CARRIED)
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


def raised(error: BaseException) -> BaseException:
    """What a module or a conftest.py raised, which pytest has words of its own for."""
    while type(error).__name__ in ("CollectError", "ConftestImportFailure") and error.__cause__ is not None:
        error = error.__cause__
    return error


class Worker(Witness):
    """In an xdist worker."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._facts = facts.Facts()
        self._stacks = crashes.Stacks.of_path(config.workerinput.get("pylair_stacks"))
        # What pytest called last, and for which test.
        self._item: Any = None
        self._call: Any = None

    def pytest_sessionstart(self) -> None:
        if self._stacks is not None:
            self._stacks.listen()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Only remembers, and lets others answer."""
        self._item, self._call = item, call

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Before xdist sends it."""
        try:
            if report.when == "setup" and self._item is not None:
                carried = getattr(report, CARRIED, None) or {}
                setattr(report, CARRIED, {**carried, **self._facts.of(self._item)})
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
        carried = getattr(report, CARRIED, None) or {}
        setattr(report, CARRIED, {**carried, "evidence": fields})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        try:
            self.config.workeroutput["pylair"] = {"problem": self.problem}
        except Exception:
            pass
