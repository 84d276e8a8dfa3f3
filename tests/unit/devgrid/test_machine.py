"""Waits end later on a slow machine, and end."""

import time
from dataclasses import dataclass, field

import pytest

import devgrid.machine
from devgrid.machine import MAX_AGE_S, SLOWEST, Deadline, TimeOuts, slowness


@dataclass
class Machine:
    """One whose slowness and time are set."""

    slowness: float = 1.0
    now_s: float = 100.0
    measured: list[float] = field(default_factory=list)

    def measure(self) -> float:
        self.measured.append(self.now_s)
        return self.slowness

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s, self.measure, lambda: self.now_s)


@pytest.mark.parametrize(
    ("slowness", "waited_s", "over"),
    [
        (1.0, 10.0, False),
        (1.0, 10.1, True),
        (3.0, 10.1, False),
        (3.0, 30.0, False),
        (3.0, 30.1, True),
    ],
)
def test_deadline__machine_is_slow__is_over_as_much_later(
    slowness: float, waited_s: float, over: bool
) -> None:
    machine = Machine(slowness)
    deadline = machine.deadline(10.0)
    machine.now_s += waited_s
    assert deadline.is_over() is over


def test_deadline__machine_is_measured_where_the_time_is_over__not_before() -> None:
    machine = Machine()
    deadline = machine.deadline(10.0)
    machine.now_s += 9.0
    assert not deadline.is_over()
    assert machine.measured == []
    machine.slowness, machine.now_s = 2.0, machine.now_s + 2.0
    assert not deadline.is_over()
    assert machine.measured == [111.0]


def test_deadline__machine_becomes_fast_again__keeps_the_time_that_it_gave() -> None:
    machine = Machine(4.0)
    deadline = machine.deadline(10.0)
    machine.now_s += 11.0
    assert not deadline.is_over()
    machine.slowness, machine.now_s = 1.0, machine.now_s + 20.0
    assert not deadline.is_over()
    machine.now_s += 10.0
    assert deadline.is_over()


def test_slowness__of_this_machine__is_a_bounded_figure() -> None:
    assert 1.0 <= slowness() <= SLOWEST


QUIET = ("ROUNDS_TAKE_S", "WRITE_TAKES_S", "START_TAKES_S")


@pytest.mark.parametrize("kind", QUIET)
def test_slowness__one_kind_of_work_takes_long__is_by_that_kind(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for one in QUIET:
        monkeypatch.setattr(devgrid.machine, one, 1e6)
    assert slowness() == 1.0
    monkeypatch.setattr(devgrid.machine, kind, 1e-6)
    assert slowness() == SLOWEST


def test_deadline__quiet_until_the_wait_began__the_load_since_then_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in QUIET:
        monkeypatch.setattr(devgrid.machine, kind, 1e6)
    assert slowness() == 1.0
    wait = Deadline(0.5)
    monkeypatch.setattr(devgrid.machine, "ROUNDS_TAKE_S", 1e-6)
    time.sleep(0.51)
    assert not wait.is_over()


@pytest.mark.parametrize(
    ("timeout_s", "age_s", "slowness_then", "time_out_s"),
    [
        (9.0, 3.0, 2.0, 9.0),
        (9.0, 3.1, 2.0, 18.0),
        (600.0, MAX_AGE_S, 2.0, 600.0),
        (600.0, MAX_AGE_S + 0.1, 2.0, 1200.0),
    ],
)
def test_time_outs__the_figure_is_too_old_for_it__machine_is_measured_again(
    timeout_s: float, age_s: float, slowness_then: float, time_out_s: float
) -> None:
    machine = Machine()
    time_outs = TimeOuts(machine.measure, lambda: machine.now_s)
    assert time_outs.of(timeout_s) == timeout_s
    machine.slowness, machine.now_s = slowness_then, machine.now_s + age_s
    assert time_outs.of(timeout_s) == time_out_s
