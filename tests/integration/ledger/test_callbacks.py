"""The callbacks in a real Postgres: which are read, kept and forgotten."""

import pytest
from sqlalchemy import Engine, text

from supervisor_tasks.jobs.events import CallbackReceived, ChainStatusObserved
from supervisor_tasks.jobs.model import ChainStatus, SlurmId
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from tests.support.recorded_jobs import (
    CLAIM,
    JOB,
    bring_to_queued,
)


def test_stored_callbacks__strangers__are_counted_and_forgotten_within_the_hour(
    ledger: Ledger, engine: Engine
) -> None:
    bring_to_queued(ledger)
    said = (
        "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, read_at)"
        " SELECT 'here', :job, :slurm_id, 7, number, 0, 'test', now() - :age_s * interval '1 s'"
        " FROM generate_series(1, 3) AS number"
    )
    long_ago_s = 2_800
    ours = {
        "job": JOB,
        "slurm_id": ledger.jobs([JOB])[JOB].slurm_id,
        "age_s": long_ago_s,
    }
    strange = {"job": "0x" + "9" * 64, "slurm_id": 7, "age_s": long_ago_s}
    with engine.begin() as connection:
        connection.execute(
            text(said),
            [
                ours,
                ours | {"slurm_id": 4711},
                strange,
                strange | {"slurm_id": 8, "age_s": 60},
            ],
        )
    about = [(ours["job"], ours["slurm_id"]), (strange["job"], 7), (strange["job"], 8)]
    assert ledger.callbacks.counts(about) == dict.fromkeys(about, 3)  # type: ignore[arg-type]
    assert ledger.callbacks.purge_unknown() == 6
    assert ledger.callbacks.purge_unknown() == 0  # not again within ten minutes
    with engine.begin() as connection:
        connection.execute(
            text(
                "DELETE FROM periodic_runs; UPDATE callbacks SET read_at = now() - interval '2 days'"
            )
        )
    # those that were too young, behind those that were looked at
    assert ledger.callbacks.purge_unknown() == 3
    assert ledger.callbacks.counts(about) == dict.fromkeys([about[0]], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("settled", "forgotten"), [(False, 0), (True, 3)])
def test_stored_callbacks__about_a_job_that_slurm_never_had__are_kept_until_settled(
    ledger: Ledger, engine: Engine, settled: bool, forgotten: int
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    if settled:
        ledger.record(
            JobChange(JOB, ChainStatusObserved(ChainStatus.CANCELLED, (8, 0)))
        )
    said = (
        "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, read_at)"
        " SELECT 'here', :job, number, 7, 0, 0, 'test', now() - interval '2 days' FROM generate_series(1, 3) AS number"
    )
    with engine.begin() as connection:
        connection.execute(text(said), {"job": JOB})
    assert ledger.callbacks.purge_unknown() == forgotten
    ledger.record(JobChange(JOB, ChainStatusObserved(ChainStatus.CANCELLED, (9, 0))))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM periodic_runs"))
    assert ledger.callbacks.purge_unknown() == 3 - forgotten


@pytest.mark.parametrize(
    ("other_id", "kept"),
    [
        pytest.param(0, 1, id="about a job of ours"),
        pytest.param(4711, 0, id="about a job that has another id since then"),
    ],
)
def test_purge_unknown__one_callback_is_repeated__strangers_behind_it_are_forgotten(
    ledger: Ledger, engine: Engine, other_id: int, kept: int
) -> None:
    bring_to_queued(ledger)
    said = (
        "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, received_at, read_at)"
        " SELECT 'here', :job, :slurm_id, 7, number, 0, 'test', now() - interval '1 day',"
        " now() - :age_s * interval '1 s' FROM generate_series(1, :number) AS number"
    )
    our_id = other_id or ledger.jobs([JOB])[JOB].slurm_id
    repeated = {"job": JOB, "slurm_id": our_id, "age_s": 60, "number": 1}
    strange = {"job": "0x" + "9" * 64, "slurm_id": 7, "age_s": 2_800, "number": 3}
    with engine.begin() as connection:
        connection.execute(text(said), [repeated, strange])
    assert ledger.callbacks.purge_unknown() == 3
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM periodic_runs"))
        connection.execute(text("UPDATE callbacks SET read_at = NULL"))
        connection.execute(text(said), strange)
    assert ledger.callbacks.purge_unknown() == 3
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM periodic_runs"))
        connection.execute(
            text("UPDATE callbacks SET read_at = now() - interval '1 day'")
        )
    assert ledger.callbacks.purge_unknown() == 1 - kept


def test_stored_callbacks__read__is_marked_with_what_it_makes_of_the_job(
    ledger: Ledger, engine: Engine
) -> None:
    bring_to_queued(ledger)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
                " VALUES ('here', :job, 7, 7, 61, 0, 'test')"
            ),
            {"job": JOB},
        )
    assert ledger.callbacks.has_unread()
    seen = ledger.callbacks.unread()
    assert [(callback.slurm_id, callback.duration_s) for callback in seen] == [(7, 61)]
    ledger.record(
        JobChange(JOB, CallbackReceived()),
        also=lambda connection: ledger.callbacks.mark_read(connection, seen),
    )
    assert not ledger.callbacks.has_unread()
    assert ledger.callbacks.about({JOB: SlurmId(7)}) == {JOB: seen}
