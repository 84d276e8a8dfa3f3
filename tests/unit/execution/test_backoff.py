"""The wait before the next try."""

import pytest

from supervisor_tasks.execution.backoff import (
    MAX_WAIT_FOR_LOGIN_S,
    MAX_WAIT_S,
    retry_delay_s,
)


@pytest.mark.parametrize(
    ("attempts", "max_wait_s", "expected_s"),
    [
        pytest.param(1, MAX_WAIT_S, 0.5, id="the first failure"),
        pytest.param(2, MAX_WAIT_S, 1.0, id="it doubles"),
        pytest.param(3, MAX_WAIT_S, 2.0, id="and again"),
        pytest.param(4, MAX_WAIT_S, 4.0, id="up to the longest wait"),
        pytest.param(50, MAX_WAIT_S, 4.0, id="which stays"),
        pytest.param(8, MAX_WAIT_FOR_LOGIN_S, 60.0, id="a customer's own login"),
        pytest.param(10**6, MAX_WAIT_FOR_LOGIN_S, 60.0, id="no overflow"),
    ],
)
def test_retry_delay_s__attempts__doubles_within_a_fifth(
    attempts: int, max_wait_s: float, expected_s: float
) -> None:
    waits = [retry_delay_s(attempts, max_wait_s) for _ in range(200)]
    assert 0.8 * expected_s <= min(waits) < max(waits) <= 1.2 * expected_s
