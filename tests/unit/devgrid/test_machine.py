"""Waits end later on a slow machine, and end."""

from dataclasses import dataclass, field

import pytest

from devgrid.machine import SLOWEST, Deadline, slowness


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
