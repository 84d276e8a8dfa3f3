"""The ledger on a real Postgres: one transaction a change, one open effect a kind,
leases that end with their holder.
"""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, text
from structlog.testing import capture_logs

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ChainStatusObserved,
    ScriptFetched,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmPendingObserved,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    JobId,
    Outcome,
    SlurmId,
    State,
)
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.lock_names import LockName
from tests.support.recorded_jobs import (
    CLAIM,
    JOB,
    Dispatched,
    bring_to_queued,
    journal,
    open_kinds,
)

LONG = 2**20  # bytes of a script


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with private_processes() as processes:
        folder = processes.folder / "postgres"
        folder.mkdir()
        server = embedded_servers.postgres(folder)
        start_server(processes, "postgres", server)
        environment = {"PATH": "/usr/bin:/bin"}
        # and the models are what the migrations make
        for command in ("upgrade head", "check"):
            argv = [sys.executable, "-m", "alembic", "-x", f"url={server.url}"]
            argv += command.split()
            subprocess.run(
                argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True
            )
        engine = create_engine(server.url)
        yield engine
        engine.dispose()


def test_record__every_field_of_a_job__comes_back_as_it_was(ledger: Ledger) -> None:
    bring_to_queued(ledger)
    changed = ledger.record(
        JobChange(JOB, ToppedUp("tx:1", 5)),
        JobChange(JOB, SlurmJobIdentified(SlurmId(7), 1795285056)),
        JobChange(JOB, CancelRequested()),
        JobChange(JOB, ChainStatusObserved(ChainStatus.RUNNING, (9, 1))),
        JobChange(
            JOB,
            SlurmCompleted(
                Outcome(
                    status=ChainStatus.FAILED,
                    elapsed_s=61,
                    exit_status=768,
                    reason="why",
                )
            ),
        ),
    )
    assert ledger.jobs([JOB]) == changed
    assert changed[JOB].outcome == Outcome(
        status=ChainStatus.FAILED, elapsed_s=61, exit_status=768, reason="why"
    )
    assert changed[JOB].chain_position == (9, 1)
    assert changed[JOB].slurm_submit_s == 1795285056


def test_jobs_and_record__long_scripts__are_neither_read_nor_written_again(
    ledger: Ledger,
) -> None:
    script = "x" * LONG
    jobs = [JobId(f"0x{number:064x}") for number in range(5)]
    begun = [
        JobChange(job, event)
        for job in jobs
        for event in (
            replace(CLAIM, job_id=job),
            ScriptFetched(script, ""),
            SubmitStarted(10),
            Submitted(SlurmId(7)),
        )
    ]
    ledger.record(*begun)
    tracemalloc.start()
    try:
        read = ledger.jobs(jobs)
        written = ledger.record(
            *(JobChange(job, SlurmPendingObserved("PENDING")) for job in jobs)
        )
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < LONG  # not one of them
    assert {job.poll_count for job in read.values()} == {0}
    assert {job.poll_count for job in written.values()} == {1}
    assert ledger.scripts(jobs) == dict.fromkeys(jobs, script)


def test_record__claim_twice__is_one_job_one_effect_one_line(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    ledger.record(JobChange(JOB, CLAIM))
    assert journal(engine) == ["Claimed"]
    assert open_kinds(engine) == {"fetch"}


def test_record__event_of_an_unknown_job__leaves_nothing(
    ledger: Ledger, engine: Engine
) -> None:
    assert ledger.record(JobChange(JOB, CallbackReceived())) == {}
    assert journal(engine) == []


def test_record__fails_in_the_middle__stores_nothing_and_dispatches_no_task(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        ledger.record(JobChange(JOB, CLAIM), also=fail)
    assert journal(engine) == []
    assert open_kinds(engine) == set()
    assert dispatched.kinds() == []


def test_record__outcome_of_a_step__ends_its_effect_and_dispatches_the_next(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    assert dispatched.kinds() == [EffectKind.FETCH]
    (effect,) = ledger.effects.lease([EffectKind.FETCH])
    ledger.record(JobChange(JOB, ScriptFetched("echo", ""), done=effect))
    assert open_kinds(engine) == {"submit"}
    assert dispatched.kinds() == [EffectKind.SUBMIT]


def test_record__state_in_which_effects_have_no_purpose__closes_them(
    ledger: Ledger, engine: Engine
) -> None:
    bring_to_queued(ledger)
    ledger.record(
        JobChange(JOB, CancelRequested()), JobChange(JOB, ToppedUp("tx:1", 5))
    )
    assert open_kinds(engine) == {"poll_slurm", "cancel", "top_up"}
    ledger.record(JobChange(JOB, SlurmCompleted(Outcome(status=ChainStatus.CANCELLED))))
    assert open_kinds(engine) == {"report"}


def test_record__refused_and_claimed_again__starts_from_the_claim(
    ledger: Ledger, engine: Engine
) -> None:
    events = (
        CLAIM,
        ScriptFetched("echo", "logger:1"),
        SubmitStarted(10),
        SubmitRejected("full"),
    )
    ledger.record(*(JobChange(JOB, event) for event in events))
    ledger.record(JobChange(JOB, ChainStatusObserved(ChainStatus.PENDING, (8, 0))))
    job = ledger.record(JobChange(JOB, replace(CLAIM, claim_key="claim:1", at=(9, 0))))[
        JOB
    ]
    assert (job.state, job.slurm_id) == (State.CLAIMED, None)
    assert ledger.jobs([JOB]) == {JOB: job}
    assert ledger.scripts([JOB]) == {}
    assert "fetch" in open_kinds(engine)


def test_periodic_run__recorded__age_is_known_until_it_is_removed(
    ledger: Ledger,
) -> None:
    assert ledger.periodic_runs.age_s("slurm") is None
    ledger.periodic_runs.record("slurm")
    age_s = ledger.periodic_runs.age_s("slurm")
    assert age_s is not None
    assert age_s < deadline(5.0)
    ledger.periodic_runs.remove("slurm")
    assert ledger.periodic_runs.age_s("slurm") is None


def test_try_advisory_lock__its_session_was_given_away__is_told(
    engine: Engine,
) -> None:
    """A pooler of transactions does that: the lock has stopped no other worker."""
    pooled = create_engine(engine.url, poolclass=StaticPool)
    with (
        capture_logs() as logs,
        try_advisory_lock(pooled, LockName("work")) as mine,
        pooled.connect() as other,
    ):
        assert mine
        other.execute(text("SELECT pg_advisory_unlock_all()"))
    assert [entry["event"] for entry in logs] == ["lock_was_not_held"]
    pooled.dispose()


def test_try_advisory_lock__taken__the_second_goes_away(engine: Engine) -> None:
    with (
        try_advisory_lock(engine, LockName("work")) as first,
        try_advisory_lock(engine, LockName("work")) as second,
    ):
        assert (first, second) == (True, False)
    with try_advisory_lock(engine, LockName("work")) as third:
        assert third
