"""What the journal of a real ledger tells of a job's past."""

from dataclasses import replace

from sqlalchemy import Engine, text

from supervisor_tasks.jobs.events import (
    Event,
    ScriptFetched,
    SlurmRunningObserved,
    SubmissionNotFound,
    SubmitOutcomeUnknown,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.ledger.journal import CutOff
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from tests.support.recorded_jobs import (
    CLAIM,
    JOB,
    bring_to_queued,
)


def test_cut_off__others_submitted_meanwhile__counts_those_between_first_and_last(
    ledger: Ledger, engine: Engine
) -> None:
    """Who came before it, or comes when it is over, tells nothing of a SLURM that took
    no jobs meanwhile.
    """
    ours, before, between, after, not_taken = (
        JobId(f"0x{number:064x}") for number in range(1, 6)
    )
    for number, job in enumerate((ours, before, between, after, not_taken)):
        claim = replace(
            CLAIM,
            job_id=job,
            customer=Address(f"0x{number:040x}"),
            claim_key=f"claim:{number}",
        )
        ledger.record(JobChange(job, claim))
        ledger.record(JobChange(job, ScriptFetched("echo", "")))
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET failing_since = now() WHERE kind = 'submit'")
        )
        find = text("SELECT id FROM effects WHERE kind = 'submit' AND job_id = :id")
        (effect_id,) = connection.execute(find, {"id": ours}).one()
    cut, again = (
        SubmitOutcomeUnknown("cut"),
        (SubmissionNotFound(), SubmissionNotFound(), SubmitStarted(10)),
    )
    happened: list[tuple[JobId, Event]] = [
        *((before, event) for event in (SubmitStarted(10), cut)),
        *((ours, event) for event in (SubmitStarted(10), cut)),
        (before, Submitted(SlurmId(1))),
        *((between, event) for event in (SubmitStarted(10), Submitted(SlurmId(2)))),
        *((not_taken, event) for event in (SubmitStarted(10), cut)),
        *((ours, event) for event in (*again, SubmitOutcomeUnknown("cut again"))),
        *((after, event) for event in (SubmitStarted(10), Submitted(SlurmId(3)))),
    ]
    for job, event in happened:
        ledger.record(JobChange(job, event))
    found = ledger.journal.cut_off(ledger.jobs([ours])[ours], effect_id)
    assert found == CutOff(["cut", "cut again"], others_accepted=1, others_cut_off=1)


def test_ever_suspended__a_look_saw_the_job_suspended__names_the_job(
    ledger: Ledger,
) -> None:
    bring_to_queued(ledger)
    ledger.record(JobChange(JOB, SlurmRunningObserved("RUNNING")))
    assert ledger.journal.ever_suspended([JOB]) == set()
    ledger.record(
        JobChange(JOB, SlurmRunningObserved("SUSPENDED")),
        JobChange(JOB, SlurmRunningObserved("RUNNING")),
    )
    assert ledger.journal.ever_suspended([JOB]) == {JOB}
