import pytest

from supervisor_tasks.jobs.callback_hints import requeue_s


@pytest.mark.parametrize(
    ("min_job_age_s", "expected_s"),
    [
        pytest.param(2, 602.0, id="forgotten at once"),
        pytest.param(300, 900.0, id="SLURM's default"),
        pytest.param(86_400, 3600.0, id="a day"),
        pytest.param(0, 3600.0, id="nothing is forgotten"),
    ],
)
def test_requeue_s__slurm_remembers_ended_jobs__is_a_little_longer_and_bounded(
    min_job_age_s: int, expected_s: float
) -> None:
    assert requeue_s(min_job_age_s) == expected_s
