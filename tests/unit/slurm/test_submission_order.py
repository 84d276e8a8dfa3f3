"""The order in which a submission begins, with steps that only write down their turn."""

import pytest

from supervisor_tasks.errors import TransientError
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.ssh import our_clock_s
from supervisor_tasks.slurm.submission_order import hand_over_in_order

CLOCK = LoginClock(1000, 5.0)


class Steps:
    """The three steps. `error_at` fails, and `begun` is what the commit returns."""

    def __init__(self, begun: str | None = "jobs", error_at: str = "") -> None:
        self.done = list[str]()
        self.handed_over: tuple[str, LoginClock] | None = None
        self._begun = begun
        self._error_at = error_at
        self._committed_s = 0.0

    def carry_out(self) -> None:
        """Carry them out in order."""
        hand_over_in_order(self._clock, self._commit, self._hand_over)

    def _turn(self, step: str) -> None:
        if step == self._error_at:
            raise TransientError(step)
        self.done.append(step)

    def _clock(self) -> LoginClock:
        self._turn("clock")
        return CLOCK

    def _commit(self) -> str | None:
        self._committed_s = our_clock_s()
        self._turn("commit")
        return self._begun

    def _hand_over(self, begun: str, clock: LoginClock, begun_s: float) -> None:
        assert begun_s <= self._committed_s
        self._turn("hand over")
        self.handed_over = begun, clock


def test_hand_over_in_order__committed__is_handed_over_with_the_clock() -> None:
    steps = Steps()
    steps.carry_out()
    assert steps.done == ["clock", "commit", "hand over"]
    assert steps.handed_over == ("jobs", CLOCK)


def test_hand_over_in_order__nothing_has_begun__is_not_handed_over() -> None:
    steps = Steps(begun=None)
    steps.carry_out()
    assert steps.done == ["clock", "commit"]


@pytest.mark.parametrize(
    ("error_at", "done"),
    [("clock", []), ("commit", ["clock"]), ("hand over", ["clock", "commit"])],
)
def test_hand_over_in_order__a_step_fails__no_later_step_is_taken(
    error_at: str, done: list[str]
) -> None:
    steps = Steps(error_at=error_at)
    with pytest.raises(TransientError, match=error_at):
        steps.carry_out()
    assert steps.done == done
