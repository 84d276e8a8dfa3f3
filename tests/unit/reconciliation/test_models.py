"""The time limits that a job had before SLURM was given the last one."""

import pytest

from supervisor_tasks.jobs.runs import JobRun
from supervisor_tasks.reconciliation.models import earlier_limits

HALF_AN_HOUR = (JobRun(submit_s=0, elapsed_s=1800), JobRun(submit_s=1900))


@pytest.mark.parametrize(
    ("claimed_min", "added_min", "applied_min", "limits_min"),
    [
        (60, [30, 15], 105, {60, 90}),
        (60, [30, 15], 90, {60}),
        (60, [], 60, set()),
        (60, [30], None, set()),  # SLURM has been given none
    ],
)
def test_earlier_limits__after_top_ups__are_those_below_the_one_slurm_was_given(
    claimed_min: int,
    added_min: list[int],
    applied_min: int | None,
    limits_min: set[int],
) -> None:
    assert earlier_limits(claimed_min, added_min, applied_min) == limits_min


def test_earlier_limits__job_that_was_requeued__are_less_by_its_first_run() -> None:
    assert earlier_limits(60, [30], 60, HALF_AN_HOUR) == {30}
    assert earlier_limits(20, [70], 60, HALF_AN_HOUR) == set()
