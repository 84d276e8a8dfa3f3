"""How SLURM is tried while it does not answer, and when that is an alarm."""

import pytest

from supervisor_tasks.ledger.facts import Stored
from supervisor_tasks.monitoring.slurm_health import is_alarming
from supervisor_tasks.monitoring.slurm_tries import (
    KNOWN_FOR_S,
    answered_recently,
    check_is_due,
    next_try_s,
)

SET_BACK_S = -3600.0  # ages after the database's clock was set back by an hour


@pytest.mark.parametrize("unanswered_s", [None, 30.0, 3600.0])
def test_next_try_s__slurm_not_seen_since_the_start__alarms_and_slows_at_ten_tries(
    unanswered_s: float | None,
) -> None:
    waits = [next_try_s(tries, False, 10.0) for tries in range(13)]
    assert waits == [0.0, *[10.0] * 9, 30.0, 30.0, 30.0]
    assert [
        tries for tries in range(13) if is_alarming(tries, False, unanswered_s)
    ] == [
        10,
        11,
        12,
    ]


def test_next_try_s__slurm_was_seen_since_the_start__no_delay_and_alarm_after_1_min() -> (
    None
):
    assert {next_try_s(tries, True, 10.0) for tries in range(100)} == {0.0}
    assert not is_alarming(30, True, 59.0)
    assert is_alarming(2, True, 61.0)


def test_answered_recently__answer_in_the_future__does_not_count() -> None:
    assert [
        answered_recently(age_s) for age_s in (SET_BACK_S, -0.1, KNOWN_FOR_S, None)
    ] == [False, True, True, False]


@pytest.mark.parametrize("answered_s", [SET_BACK_S, None])
@pytest.mark.parametrize("answered_since_start", [True, False])
def test_check_is_due__last_answer_or_try_in_the_future__is_due(
    answered_s: float | None, answered_since_start: bool
) -> None:
    failed = Stored(3, SET_BACK_S)
    assert check_is_due(answered_s, answered_since_start, failed, 10.0)
    assert not check_is_due(-0.1, True, None, 10.0)
