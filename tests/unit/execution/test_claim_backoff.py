"""How long claims wait after reverts."""

import pytest

from supervisor_tasks.execution.claim_backoff import revert_delay_s


@pytest.mark.parametrize(
    ("in_a_row", "wait_s"), [(0, 0), (2, 0), (3, 4), (5, 16), (7, 60), (5000, 60)]
)
def test_revert_delay_s__reverts_in_a_row__ever_longer_waits(
    in_a_row: int, wait_s: float
) -> None:
    assert revert_delay_s(in_a_row) == wait_s
