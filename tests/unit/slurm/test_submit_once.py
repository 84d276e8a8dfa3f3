"""The protocol of a submission that is made once, without a SLURM: what its answers
mean.
"""

from dataclasses import replace

import pytest

from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.guarded_command import TooLateError
from supervisor_tasks.slurm.parsers import (
    AnswerNotUnderstoodError,
    JobRecord,
    SlurmRejectedError,
)
from supervisor_tasks.slurm.submit_once import (
    Fate,
    SlurmRecords,
    fate_of,
    may_arrive,
)


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (SlurmId(7), Fate.TAKEN),
        (SlurmRejectedError("no such partition"), Fate.REJECTED),
        (TransientError("slurmctld is away"), Fate.NOT_RUN),
        (TooLateError("late"), Fate.NOT_RUN),
        (OutcomeUnknownError("cut off"), Fate.UNKNOWN),
        (AnswerNotUnderstoodError("?"), Fate.UNKNOWN),
        (PermanentError("?"), Fate.FAILED),
        (KeyError("ours"), Fate.FAILED),
    ],
)
def test_fate_of__each_answer__has_one_meaning(
    answer: SlurmId | Exception, fate: Fate
) -> None:
    assert fate_of(answer) is fate


def test_may_arrive__its_time_has_passed__is_false() -> None:
    assert may_arrive(22.9, 23.0)
    assert not may_arrive(23.0, 23.0)
    assert not may_arrive(float("inf"), 23.0)


def test_taken__what_slurm_rejected__is_left_out() -> None:
    rejected = JobRecord(SlurmId(7), "FAILED", 0, 0, reason="BadConstraints")
    runs = JobRecord(SlurmId(8), "RUNNING", 3, 0)
    assert SlurmRecords([rejected, runs], listed=True).taken == [runs]


REFUSED = JobRecord(SlurmId(7), "FAILED", 0, 256, reason="BadConstraints")
ACCOUNTED = JobRecord(SlurmId(7), "FAILED", 0, 256)  # sacct shows no such reason
LATER = JobRecord(SlurmId(8), "PENDING", 0, 0)


@pytest.mark.parametrize(
    ("record", "listed"), [(REFUSED, True), (ACCOUNTED, False), (REFUSED, False)]
)
def test_without__record_of_a_refusal__is_left_out_if_the_ledger_has_recorded_one(
    record: JobRecord, listed: bool
) -> None:
    records = SlurmRecords([record, LATER], listed)
    assert records.without((), rejections=True) == SlurmRecords([LATER], listed)
    assert records.without((), rejections=False) == records
    nothing = SlurmRecords([], listed=False)
    assert SlurmRecords([record], listed).without((), rejections=True) == nothing


@pytest.mark.parametrize("record", [replace(ACCOUNTED, elapsed_s=1), LATER])
@pytest.mark.parametrize("listed", [True, False])
def test_without__job_that_ran_or_waits__stays(record: JobRecord, listed: bool) -> None:
    records = SlurmRecords([record], listed)
    assert records.without((), rejections=True) == records


def test_without__jobs_that_are_over__are_left_out() -> None:
    records = SlurmRecords([ACCOUNTED, LATER], listed=True)
    left = records.without([ACCOUNTED.slurm_id], rejections=False)
    assert left == SlurmRecords([LATER], listed=True)
