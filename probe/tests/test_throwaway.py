"""How long a throw-away copy has: what a crowded machine does not let run is not late."""

from __future__ import annotations

import types
from typing import Any

import pytest

from pylair import throwaway

PID = 4321


class Machine:
    """A clock, and what the kernel tells of the copy."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = "R"
        self.ran = 0.0
        self.waited = 0.0

    def monotonic(self) -> float:
        return self.now

    def read_proc(self, path: str) -> bytes:
        if path == f"/proc/{PID}/schedstat":
            return f"{int(self.ran * 1e9)} {int(self.waited * 1e9)} 7".encode()
        assert path == f"/proc/{PID}/stat"
        ticks = int(self.ran * throwaway._TICKS)
        return f"{PID} (a) R b) {self.state} 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0".encode()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(throwaway, "time", types.SimpleNamespace(monotonic=machine.monotonic))
    monkeypatch.setattr(throwaway.descriptors, "read_proc", machine.read_proc)
    return machine


def watched() -> Any:
    clock = throwaway._Clock(1.0)
    clock.watch(PID)
    return clock


def test_one_that_runs_all_the_time_is_late(machine: Machine) -> None:
    clock = watched()
    machine.now += 0.9
    machine.ran = 0.9
    assert not clock.is_over(1.0)
    machine.now += 0.2
    machine.ran += 0.2
    assert clock.is_over(1.0)


def test_one_that_sleeps_is_late(machine: Machine) -> None:
    clock = watched()
    machine.state = "S"
    machine.now += 1.1
    assert clock.is_over(1.0)


def test_one_that_was_not_let_run_is_not_late(machine: Machine) -> None:
    clock = watched()
    machine.now += 5.0
    # It has waited since it was made, which the kernel counts when that is over.
    assert not clock.is_over(1.0)
    machine.state = "D"
    assert not clock.is_over(1.0)
    machine.state, machine.waited, machine.ran = "S", 4.8, 0.1
    assert not clock.is_over(1.0)
    machine.now += 0.9
    assert clock.is_over(1.0)


def test_nobody_waits_for_ever(machine: Machine) -> None:
    clock = watched()
    machine.now += throwaway._PATIENCE - 0.1
    assert not clock.is_over(1.0)
    assert clock.most() == pytest.approx(0.1)
    machine.now += 0.2
    assert clock.is_over(1.0)


def test_what_one_copy_took_the_next_one_has_not(machine: Machine) -> None:
    clock = watched()
    machine.now += 3.0
    machine.ran = 0.75
    clock.leave()
    assert clock.spent() == pytest.approx(0.75)
    machine.now += 2.0
    clock.watch(PID)
    machine.ran = 0.0
    machine.now += 0.2
    machine.ran = 0.2
    assert not clock.is_over(1.0)
    machine.now += 0.1
    machine.ran = 0.3
    assert clock.is_over(1.0)


def test_where_the_kernel_tells_nothing_all_time_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwaway.descriptors, "read_proc", lambda path: b"")
    clock = watched()
    machine.now += 1.1
    assert clock.is_over(1.0)
