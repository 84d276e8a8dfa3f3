import pytest

from supervisor_tasks.jobs.false_slurm_ids import must_know


@pytest.mark.parametrize(
    ("begun_ago_s", "runs_for_s", "remembers_s", "known"),
    [
        (1.0, 3600.0, 300.0, True),
        (1.0, 3600.0, 0.0, True),
        (296.0, 3600.0, 300.0, False),
        (1.0, 3.0, 300.0, False),
        (60.0, 30.0, 300.0, False),
        (1.0, 0.0, 300.0, False),
    ],
)
def test_must_know__slurmctld_ran_then_and_still_remembers__is_true_only_then(
    begun_ago_s: float, runs_for_s: float, remembers_s: float, known: bool
) -> None:
    assert must_know(begun_ago_s, runs_for_s, remembers_s) is known
