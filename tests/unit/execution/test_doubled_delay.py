"""Waits that double."""

import pytest

from supervisor_tasks.execution.doubled_delay import doubled_delay_s


@pytest.mark.parametrize(("doublings", "delay_s"), [(0, 0.5), (3, 4.0), (5000, 60.0)])
def test_doubled_delay_s__doublings__grow_up_to_the_longest(
    doublings: int, delay_s: float
) -> None:
    assert doubled_delay_s(doublings, 0.5, 60.0) == delay_s
