"""When a refusal of the job definition service is its last word."""

import pytest

from supervisor_tasks.jobs.fetch_script import (
    REJECTED_FOR_S,
    REJECTED_TRIES,
    rejected_for_good,
)


@pytest.mark.parametrize(
    ("tries", "claimed_ago_s", "final"),
    [
        (REJECTED_TRIES, REJECTED_FOR_S, True),
        (REJECTED_TRIES + 1, 3600.0, True),
        (REJECTED_TRIES - 1, 3600.0, False),
        (1, 0.01, False),
        (REJECTED_TRIES + 100, REJECTED_FOR_S - 0.1, False),
        (REJECTED_TRIES + 100, None, False),
    ],
)
def test_rejected_for_good__tries_and_time__is_true_only_after_enough_of_both(
    tries: int, claimed_ago_s: float | None, final: bool
) -> None:
    assert rejected_for_good(tries, claimed_ago_s) is final


def test_limits__before_a_refusal_is_final__are_no_less_than_promised() -> None:
    assert REJECTED_TRIES >= 5
    assert REJECTED_FOR_S >= 30.0
