"""Patience with an endpoint that does not answer counts the time in which it was
asked.
"""

import pytest

from supervisor_tasks.chain.rpc.unanswered import Unanswered

HOUR_S = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def silence(*gaps_s: float) -> float:
    """For how long there was no answer, after a first failure and one after each of
    these times.
    """
    clock = Clock()
    unanswered = Unanswered(clock)
    unanswered.failed()
    for gap_s in gaps_s:
        clock.now_s += gap_s
        unanswered.failed()
    return unanswered.for_s


@pytest.mark.parametrize(
    ("gaps_s", "for_s"),
    [
        ((), 0.0),
        ((1.0,) * 31, 31.0),
        ((8.0,) * 4, 32.0),  # looks at an endpoint that hangs
        ((HOUR_S,), 10.0),  # two hiccups and an hour without a question
        ((60.0,) * 4, 40.0),  # a slow poll is no wait without end
    ],
)
def test_unanswered__failures__count_the_time_in_which_it_was_asked(
    gaps_s: tuple[float, ...], for_s: float
) -> None:
    assert silence(*gaps_s) == for_s


def test_unanswered__after_an_answer__begins_again() -> None:
    clock = Clock()
    unanswered = Unanswered(clock)
    for _ in range(50):
        unanswered.failed()
        clock.now_s += 1.0
    unanswered.answered()
    assert unanswered.for_s == 0.0
    unanswered.failed()
    assert unanswered.for_s == 0.0
