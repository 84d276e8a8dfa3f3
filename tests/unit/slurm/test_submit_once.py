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
    SlurmRecords,
    SubmissionOutcome,
    may_arrive,
    submission_outcome,
)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (SlurmId(7), SubmissionOutcome.ACCEPTED),
        (SlurmRejectedError("no such partition"), SubmissionOutcome.REJECTED),
        (TransientError("slurmctld is away"), SubmissionOutcome.NOT_RUN),
        (TooLateError("late"), SubmissionOutcome.NOT_RUN),
        (OutcomeUnknownError("cut off"), SubmissionOutcome.UNKNOWN),
        (AnswerNotUnderstoodError("?"), SubmissionOutcome.UNKNOWN),
        (PermanentError("?"), SubmissionOutcome.FAILED),
        (KeyError("ours"), SubmissionOutcome.FAILED),
    ],
)
def test_submission_outcome__each_answer__has_one_meaning(
    answer: SlurmId | Exception, outcome: SubmissionOutcome
) -> None:
    assert submission_outcome(answer) is outcome


def test_may_arrive__its_time_has_passed__is_false() -> None:
    assert may_arrive(22.9, 23.0)
    assert not may_arrive(23.0, 23.0)
    assert not may_arrive(float("inf"), 23.0)


def test_taken__what_slurm_rejected__is_left_out() -> None:
    rejected = JobRecord(SlurmId(7), "FAILED", 0, 0, reason="BadConstraints")
    runs = JobRecord(SlurmId(8), "RUNNING", 3, 0)
    assert SlurmRecords([rejected, runs], listed=True).accepted == [runs]


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
