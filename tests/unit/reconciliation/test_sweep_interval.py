"""How often the jobs are swept."""

import pytest

from supervisor_tasks.reconciliation.sweep_interval import interval_s


@pytest.mark.parametrize(
    ("every_s", "min_job_age_s", "expected_s"),
    [
        (900, 300, 90),
        (900, 0, 900),
        (60, 300, 60),
        (900, 90, 20),
        (900, 30, 20),
        (10, 30, 10),
        (900, 86_400, 900),
    ],
)
def test_interval_s__slurm_forgets_ended_jobs_soon__is_shorter_than_set(
    every_s: float, min_job_age_s: float, expected_s: float
) -> None:
    assert interval_s(every_s, min_job_age_s) == expected_s
