"""When a chain's next block is due."""

import pytest

from devgrid.chain.block_producer import next_block_s


@pytest.mark.parametrize(("now_s", "due_s"), [(10.1, 10.25), (17.0, 17.0)])
def test_next_block_s__in_time_or_late__keeps_the_pace_or_is_due_at_once(
    now_s: float, due_s: float
) -> None:
    assert next_block_s(10.0, 0.25, now_s) == due_s
