"""`supervisor status` on a real Postgres."""

from datetime import timedelta

from sqlalchemy import text

from supervisor_tasks.jobs.events import SlurmRunningObserved
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.status_queries import Overview
from tests.support.ledger import bring_to_queued, claim, job_id, park_one
from tests.support.operator_commands import Run, said


def test_status__claims_are_paused__tells_of_jobs_effects_alarms_and_the_switch(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(2), claim(2)))
    park_one(ledger)
    run("claims", "pause", "--reason", "maintenance", "--yes")
    document = said(run("status", "-o", "json"))
    assert document["jobs"] == {"CLAIMED": 1, "QUEUED": 1}
    assert {
        count["kind"]: (count["due"], count["parked"]) for count in document["effects"]
    } == {
        "fetch": (1, 0),
        "poll_slurm": (0, 1),
    }
    assert [alarm["name"] for alarm in document["alarms"]] == ["effect_parked"]
    assert document["claiming_paused"] is True
    assert document["claims"] is False
    assert document["why_no_claims"][0] == "paused by an operator"
    assert (document["head"], document["lag_blocks"], document["queues"]) == (
        None,
        None,
        {},
    )
    assert "paused by an operator" in run("status").stdout


def test_by_state__job_that_is_looked_at__is_as_old_as_its_first_event_there(
    ledger: Ledger,
) -> None:
    job = bring_to_queued(ledger, 1)
    ledger.record(JobChange(job, SlurmRunningObserved("RUNNING")))
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE events SET at = at - interval '2 h' WHERE state = 'RUNNING'")
        )
    ledger.record(JobChange(job, SlurmRunningObserved("RUNNING")))
    overview = Overview(ledger.engine, "here")
    (row,) = overview.by_state()
    assert (row["state"], row["jobs"]) == ("RUNNING", 1)
    assert overview.now() - row["oldest_at"] >= timedelta(hours=2)
