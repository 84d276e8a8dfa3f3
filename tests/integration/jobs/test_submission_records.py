"""What counts of SLURM's records of a job whose id is not known, with the journal of a
real ledger.
"""

import pytest

from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    ScriptFetched,
    SubmitRejected,
    SubmitStarted,
)
from supervisor_tasks.jobs.model import ChainStatus, SlurmId, State
from supervisor_tasks.jobs.submission_records import NOTHING, relevant_records
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.submit_once import SlurmRecords
from tests.support.ledger import claim, claimed_again

REJECTED = JobRecord(SlurmId(7), "FAILED", 0, 256, reason="BadConstraints")
ACCOUNTED = JobRecord(SlurmId(7), "FAILED", 0, 256)  # accounting tells no reason
TO_SUBMITTING = (ScriptFetched("true", ""), SubmitStarted(10))


@pytest.mark.parametrize(("record", "listed"), [(REJECTED, True), (ACCOUNTED, False)])
def test_relevant_records__rejection_of_an_earlier_claim__says_nothing_of_this_one(
    record: JobRecord, listed: bool, ledger: Ledger
) -> None:
    """The second claim's submission was cut off: its sbatch may still arrive."""
    first = claim(1)
    events = (first, *TO_SUBMITTING, SubmitRejected("BadConstraints"))
    pending = ChainStatusObserved(ChainStatus.PENDING, (900, 0))
    ledger.record(*(JobChange(first.job_id, event) for event in (*events, pending)))
    job = ledger.jobs([first.job_id])[first.job_id]
    again = (claimed_again(job, 901), *TO_SUBMITTING)
    after = ledger.record(*(JobChange(job.job_id, event) for event in again))
    assert after[job.job_id].state is State.SUBMITTING
    found = relevant_records(ledger.journal, {job.job_id: [record]}, listed=listed)
    assert found == {job.job_id: NOTHING}


def test_relevant_records__rejected_and_not_recorded_yet__is_the_answer(
    ledger: Ledger,
) -> None:
    job_id = claim(1).job_id
    ledger.record(*(JobChange(job_id, event) for event in (claim(1), *TO_SUBMITTING)))
    found = relevant_records(ledger.journal, {job_id: [REJECTED]}, listed=True)
    assert found == {job_id: SlurmRecords([REJECTED], listed=True)}
