"""Which pause of submissions a sweep has set, by its reason."""

import pytest

from supervisor_tasks.ledger.switch_names import is_pause_of_sweep


@pytest.mark.parametrize(
    ("reason", "is_sweeps"),
    [
        ("SLURM does not know 5 jobs that it had saved", True),
        ("SLURM does not know", True),
        ("the operator", False),
        ("the operator: SLURM does not know a job", False),
        ("slurm does not know 5 jobs", False),
        ("SLURM does not", False),
        ("", False),
        (None, False),
    ],
)
def test_is_pause_of_sweep__each_reason__is_true_only_if_a_sweep_has_set_it(
    reason: str | None, is_sweeps: bool
) -> None:
    assert is_pause_of_sweep(reason) is is_sweeps
