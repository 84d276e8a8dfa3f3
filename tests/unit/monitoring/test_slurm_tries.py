"""How SLURM is tried while it does not answer, and when that is an alarm."""

import pytest

from supervisor_tasks.monitoring.slurm_health import is_alarming
from supervisor_tasks.monitoring.slurm_tries import next_try_s


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
