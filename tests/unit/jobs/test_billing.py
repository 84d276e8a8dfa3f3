"""From SLURM's seconds to the contract's minutes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.jobs.billing import billed_minutes


@pytest.mark.parametrize(
    ("elapsed_s", "minutes"),
    [(0, 0), (1, 0), (59, 0), (60, 1), (61, 1), (119, 1), (120, 2), (86_400, 1440)],
)
def test_billed_minutes__begun_minute__is_not_billed(
    elapsed_s: int, minutes: int
) -> None:
    assert billed_minutes(elapsed_s) == minutes


@pytest.mark.parametrize("elapsed_s", [-1, -60, -(2**31)])
def test_billed_minutes__clock_that_went_back__is_nothing(elapsed_s: int) -> None:
    assert billed_minutes(elapsed_s) == 0


@given(st.integers(0, 2**40))
def test_billed_minutes__any_time__is_all_whole_minutes_and_never_more_than_ran(
    elapsed_s: int,
) -> None:
    assert 0 <= elapsed_s - 60 * billed_minutes(elapsed_s) < 60
