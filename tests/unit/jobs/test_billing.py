"""From SLURM's seconds to the contract's minutes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.jobs.billing import billed_minutes


@pytest.mark.parametrize(
    ("elapsed_s", "minutes"),
    [
        (0, 0),
        (1, 0),
        (59, 0),
        (60, 1),
        (61, 1),
        (119, 1),
        (120, 2),
        (86_400, 1440),
        # a clock that went back
        (-1, 0),
        (-60, 0),
        (-(2**31), 0),
    ],
)
def test_billed_minutes__begun_minute_or_a_clock_set_back__is_not_billed(
    elapsed_s: int, minutes: int
) -> None:
    assert billed_minutes(elapsed_s) == minutes


@given(st.integers(0, 2**40))
def test_billed_minutes__any_time__is_all_whole_minutes_and_never_more_than_ran(
    elapsed_s: int,
) -> None:
    assert 0 <= elapsed_s - 60 * billed_minutes(elapsed_s) < 60
