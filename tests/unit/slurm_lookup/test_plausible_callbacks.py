from collections.abc import Sequence

import pytest

from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.slurm.parsers import MAX_SLURM_ID, can_be_given
from supervisor_tasks.slurm_lookup.plausible_callbacks import (
    GIVEN_AND_FORGOTTEN,
    GivenIds,
    highest_given,
)

OURS, ANOTHER = JobId("ours"), JobId("another")
GIVEN = GivenIds(
    highest=100, runs_for_s=1000.0, owners={SlurmId(50): {ANOTHER}, SlurmId(60): {OURS}}
)


@pytest.mark.parametrize(
    ("slurm_id", "begun_ago_s", "plausible"),
    [
        (100, 60.0, True),
        (101, 60.0, False),
        (50, 60.0, False),
        (60, 60.0, True),
        (101, 1000.0, True),
        (50, 1000.0, True),
        (100 + GIVEN_AND_FORGOTTEN, 1000.0, True),
        (101 + GIVEN_AND_FORGOTTEN, 1000.0, False),
    ],
)
def test_may_have_been_given__anothers_id_or_too_high__is_true_only_after_a_restart(
    slurm_id: int, begun_ago_s: float, plausible: bool
) -> None:
    assert GIVEN.may_have_been_given(OURS, SlurmId(slurm_id), begun_ago_s) is plausible


@pytest.mark.parametrize(
    ("number", "can"),
    [(0, False), (1, True), (MAX_SLURM_ID, True), (MAX_SLURM_ID + 1, False)],
)
def test_can_be_given__below_one_or_above_the_maximum__is_false(
    number: int, can: bool
) -> None:
    assert can_be_given(number) is can


@pytest.mark.parametrize(
    ("next_id", "recognised_id", "listed", "highest"),
    [
        (101, 90, (), 100),
        (101, 120, (), 120),  # a killed slurmctld gives ids again
        (0, 90, [SlurmId(95), SlurmId(94)], 95),
        (0, 90, [SlurmId(80)], 90),
        (0, 0, (), 0),
    ],
)
def test_highest_given__next_id_or_the_list_of_jobs__is_the_highest_of_all(
    next_id: int, recognised_id: int, listed: Sequence[SlurmId], highest: int
) -> None:
    assert highest_given(next_id, recognised_id, listed) == highest
