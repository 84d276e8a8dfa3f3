"""The ledger on a real Postgres: one transaction a change, one open effect a kind,
leases that end with their holder.
"""

import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy import event as sqlalchemy_event

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ChainStatusObserved,
    Claimed,
    Event,
    ScriptFetched,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmPendingObserved,
    SlurmRunningObserved,
    SubmissionNotFound,
    SubmitOutcomeUnknown,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    EffectKind,
    JobId,
    Outcome,
    SlurmId,
    State,
)
from supervisor_tasks.ledger import worker_sessions
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.journal import CutOff
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.lock_names import HOLDERS, LockName
from supervisor_tasks.ledger.outbox import WORKER_ENDED, LeaseLostError, OpenEffect
from supervisor_tasks.ledger.worker_sessions import ALIVE_HOLDERS, WorkerSession

LONG = 2**20  # bytes of a script
JOB = JobId("0x" + "5" * 64)
CLAIM = Claimed(
    job_id=JOB,
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="claim:0",
    definition=Definition(
        gpus=1,
        mem_per_cpu_mb=100,
        cpus_per_task=2,
        ntasks=3,
        batch_location_hash="hash",
    ),
    time_limit_min=10,
    at=(7, 2),
)


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


class Dispatched:
    """Records which effects the ledger dispatched."""

    def __init__(self) -> None:
        self.effects: list[OpenEffect] = []

    def __call__(self, effects: Sequence[OpenEffect]) -> None:
        self.effects += effects

    def kinds(self) -> list[EffectKind]:
        kinds = [effect.kind for effect in self.effects]
        self.effects.clear()
        return kinds


@pytest.fixture
def dispatched() -> Dispatched:
    return Dispatched()


@pytest.fixture
def ledger(engine: Engine, dispatched: Dispatched) -> Iterator[Ledger]:
    with engine.begin() as connection:
        connection.execute(
            text(
                "TRUNCATE jobs, events, effects, callbacks, cursors, periodic_runs, transactions CASCADE"
            )
        )
    ledger = Ledger(engine, "here", dispatched)
    yield ledger
    ledger.holder.close()


def open_kinds(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(
            connection.scalars(text("SELECT kind FROM effects WHERE done_at IS NULL"))
        )


def journal(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT name FROM events ORDER BY id")))


def bring_to_queued(ledger: Ledger) -> None:
    events = (
        CLAIM,
        ScriptFetched("echo", "logger:1"),
        SubmitStarted(10),
        Submitted(SlurmId(7)),
    )
    ledger.record(*(JobChange(JOB, event) for event in events))


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


def test_lease__taken__no_other_worker_gets_it(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    other = Ledger(engine, "here", dispatched)
    ledger.record(JobChange(JOB, CLAIM))
    assert len(ledger.effects.lease([EffectKind.FETCH])) == 1
    assert other.effects.lease([EffectKind.FETCH]) == []
    assert other.effects.due_without_message() == []
    other.holder.close()


def test_lease_cancellations__jobs_without_a_slurm_id_are_due_first__come_last(
    ledger: Ledger, engine: Engine
) -> None:
    refused = [JobId(f"0x{number:064x}") for number in range(1, 4)]
    runs = JobId(f"0x{4:064x}")
    for number, job in enumerate((*refused, runs)):
        claim = replace(CLAIM, job_id=job, claim_key=f"claim:{number}")
        ledger.record(JobChange(job, claim))
        ledger.record(JobChange(job, ScriptFetched("echo", "")))
        ledger.record(JobChange(job, SubmitStarted(10)))
    for job in refused:
        ledger.record(JobChange(job, SubmitRejected("no", token_s=200.0)))
    with engine.begin() as connection:
        due = "UPDATE effects SET due_at = now() - :ago_s * interval '1 s' WHERE kind = 'cancel' AND job_id = ANY(:jobs)"
        connection.execute(text(due), {"ago_s": 50, "jobs": refused[1:]})
        connection.execute(text(due), {"ago_s": 120, "jobs": refused[:1]})
    ledger.record(JobChange(runs, Submitted(SlurmId(7))))
    ledger.record(JobChange(runs, CancelRequested()))
    taken = ledger.effects.lease_cancellations(2)
    assert {effect.job_id for effect in taken} == {runs, refused[0]}, (
        "that one has waited for more than a minute"
    )
    rest = ledger.effects.lease_cancellations(16)
    assert {effect.job_id for effect in rest} == {*refused[1:]}


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
    assert found == CutOff(["cut", "cut again"], others_taken=1, others_cut_off=1)


def test_due__worker_starts_and_leases_during_the_look__keeps_its_leases(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    """It leases just before the statement that frees the leases of dead holders."""
    other = Ledger(engine, "here", dispatched)
    ledger.record(JobChange(JOB, CLAIM))
    held = list[OpenEffect]()

    def lease(_: object, __: object, statement: str, *___: object) -> None:
        if "AS held" in statement and not held:
            held.extend(other.effects.lease([EffectKind.FETCH]))

    sqlalchemy_event.listen(engine, "before_cursor_execute", lease)
    try:
        ledger.effects.due_without_message()
    finally:
        sqlalchemy_event.remove(engine, "before_cursor_execute", lease)
    assert len(held) == 1
    with engine.connect() as connection:
        row = connection.execute(text("SELECT lease, unexpected_failures FROM effects"))
        assert row.one() == (other.holder.number(), 0)
    other.holder.close()


def test_due__many_effects_whose_workers_are_away__others_get_their_messages(
    ledger: Ledger, engine: Engine
) -> None:
    fill = """
        INSERT INTO effects (cluster, kind, subject, due_at, notified_at)
        SELECT 'here', 'account', 'old ' || n, now() - interval '1 hour', now() - interval '30 min'
        FROM generate_series(1, 1500) AS n
    """
    ledger.record(JobChange(JOB, CLAIM))
    with engine.begin() as connection:
        connection.execute(text("UPDATE effects SET notified_at = NULL"))
        connection.execute(text(fill))
    due = ledger.effects.due_without_message()
    assert {effect.kind for effect in due} == {EffectKind.ACCOUNT, EffectKind.FETCH}


def test_lease__holder_gone__is_free_at_once(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    other = Ledger(engine, "here", dispatched)
    ledger.record(JobChange(JOB, CLAIM))
    assert len(other.effects.lease([EffectKind.FETCH])) == 1
    other.holder.close()

    def is_free() -> bool:
        ledger.effects.due_without_message()
        return len(ledger.effects.lease([EffectKind.FETCH])) == 1

    wait_until(is_free, "Postgres to end its session", 30.0)


def test_lease__of_another_cluster__is_not_ours(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    other = Ledger(engine, "there", dispatched)
    ledger.record(JobChange(JOB, CLAIM))
    assert other.effects.lease([EffectKind.FETCH]) == []
    assert other.jobs([JOB]) == {}
    other.holder.close()


def test_demand__that_comes_while_the_effect_is_carried_out__is_not_lost(
    ledger: Ledger, dispatched: Dispatched
) -> None:
    bring_to_queued(ledger)
    ledger.record(JobChange(JOB, CallbackReceived()))  # due now
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.record(JobChange(JOB, CallbackReceived()))  # meanwhile
    dispatched.kinds()
    ledger.record(JobChange(JOB, SlurmPendingObserved("PENDING"), done=effect))
    assert dispatched.kinds() == [EffectKind.POLL_SLURM]
    assert len(ledger.effects.lease([EffectKind.POLL_SLURM])) == 1


def test_postpone__with_an_error__is_due_later_and_keeps_its_error(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    (effect,) = ledger.effects.lease([EffectKind.FETCH])
    ledger.effects.postpone([effect], 60.0, "no answer")
    assert ledger.effects.lease([EffectKind.FETCH]) == []
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT last_error FROM effects")) == "no answer"


def test_park__leased_effect__is_left_to_the_operator(ledger: Ledger) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    (effect,) = ledger.effects.lease([EffectKind.FETCH])
    ledger.effects.park(effect, "a contradiction")
    assert ledger.effects.lease([EffectKind.FETCH]) == []
    assert ledger.effects.due_without_message() == []


def test_effects__kind_of_another_release__keeps_no_other_from_its_worker(
    ledger: Ledger, engine: Engine
) -> None:
    """A worker of that release ended while it held one of them."""
    ledger.record(JobChange(JOB, CLAIM))
    row = text(
        "INSERT INTO effects (cluster, job_id, kind, due_at, lease, lease_until, unexpected_failures)"
        " VALUES ('here', :job, :kind, now(), :lease, :until, 100)"
    )
    later = datetime.now(UTC) + timedelta(hours=1)
    of_other: list[dict[str, object]] = [
        {"job": JOB, "kind": "of_another_release", "lease": None, "until": None},
        {"job": JOB, "kind": "held_by_another", "lease": 7, "until": later},
    ]
    with engine.begin() as connection:
        connection.execute(row, of_other)
        connection.execute(text("UPDATE effects SET notified_at = NULL"))
    due = ledger.effects.due_without_message()
    assert [effect.kind for effect in due] == [EffectKind.FETCH]
    with engine.connect() as connection:
        held = text("SELECT count(*) FROM effects WHERE lease IS NOT NULL")
        assert connection.scalar(held) == 0


def test_forgotten__message_lost__is_dispatched_again_but_not_in_a_flood(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    assert ledger.effects.due_without_message() == []  # its message has just been sent
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET notified_at = now() - interval '10 s', due_at = now() - interval '9 s'"
            )
        )
    assert len(ledger.effects.due_without_message()) == 1
    assert ledger.effects.due_without_message() == []


def test_forgotten__message_sent_since_it_is_due_or_not__is_told(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    ledger.effects.postpone(ledger.effects.lease([EffectKind.FETCH]), 0.0)
    assert [effect.notified for effect in ledger.effects.due_without_message()] == [
        False
    ]
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET notified_at = now() - interval '6 s', due_at = now() - interval '9 s'"
            )
        )
    assert [effect.notified for effect in ledger.effects.due_without_message()] == [
        True
    ]


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


def test_inbox__strangers__are_counted_and_forgotten_within_the_hour(
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
def test_inbox__callback_about_a_job_that_slurm_never_had__is_kept_until_settled(
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


def test_inbox__read__is_marked_with_what_it_makes_of_the_job(
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


def test_try_advisory_lock__taken__the_second_goes_away(engine: Engine) -> None:
    with (
        try_advisory_lock(engine, LockName("work")) as first,
        try_advisory_lock(engine, LockName("work")) as second,
    ):
        assert (first, second) == (True, False)
    with try_advisory_lock(engine, LockName("work")) as third:
        assert third


def expire(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET lease_until = now() - interval '1 s' WHERE lease IS NOT NULL"
            )
        )


@pytest.mark.parametrize("same_process", [True, False])
def test_held__lease_passed_on__nothing_begins(
    ledger: Ledger, engine: Engine, dispatched: Dispatched, same_process: bool
) -> None:
    other = ledger if same_process else Ledger(engine, "here", dispatched)
    ledger.record(JobChange(JOB, CLAIM), JobChange(JOB, ScriptFetched("echo", "")))
    (stale,) = ledger.effects.lease([EffectKind.SUBMIT])
    expire(engine)
    with pytest.raises(LeaseLostError):
        ledger.record(
            JobChange(JOB, SubmitStarted(10)), held=[stale]
        )  # expired, though no other worker has taken it yet
    other.effects.due_without_message()
    (fresh,) = other.effects.lease([EffectKind.SUBMIT])
    with pytest.raises(LeaseLostError):
        ledger.record(JobChange(JOB, SubmitStarted(10)), held=[stale])
    assert ledger.jobs([JOB])[JOB].state is State.READY
    assert journal(engine) == ["Claimed", "ScriptFetched"]
    assert (
        other.record(JobChange(JOB, SubmitStarted(10)), held=[fresh])[JOB].state
        is State.SUBMITTING
    )
    other.holder.close()


def test_stale_lease__effect_leased_again__neither_ends_nor_postpones_nor_parks_it(
    ledger: Ledger, engine: Engine, dispatched: Dispatched
) -> None:
    ledger.record(JobChange(JOB, CLAIM), JobChange(JOB, ScriptFetched("echo", "")))
    (stale,) = ledger.effects.lease([EffectKind.SUBMIT])
    expire(engine)
    ledger.effects.due_without_message()
    (fresh,) = ledger.effects.lease([EffectKind.SUBMIT])
    assert (fresh.holder, fresh.attempts) == (stale.holder, stale.attempts + 1)
    ledger.effects.postpone([stale], 60.0, "no answer")
    assert not ledger.effects.park(stale, "a contradiction")
    ledger.record(JobChange(JOB, CallbackReceived(), done=stale))
    with engine.connect() as connection:
        (row,) = connection.execute(
            text(
                "SELECT lease, parked_at, last_error FROM effects WHERE done_at IS NULL"
            )
        )
    assert tuple(row) == (fresh.holder, None, WORKER_ENDED)
    ledger.record(JobChange(JOB, SubmitStarted(10)), held=[fresh])


def test_stale_lease__reports_the_slurm_id__is_recorded_and_ends_the_effect(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM), JobChange(JOB, ScriptFetched("echo", "")))
    (stale,) = ledger.effects.lease([EffectKind.SUBMIT])
    ledger.record(JobChange(JOB, SubmitStarted(10)), held=[stale])
    expire(engine)
    ledger.effects.due_without_message()
    (fresh,) = ledger.effects.lease([EffectKind.SUBMIT])
    ledger.record(JobChange(JOB, Submitted(SlurmId(7)), done=stale))
    assert ledger.jobs([JOB])[JOB].slurm_id == 7
    assert open_kinds(engine) == {"poll_slurm"}
    with pytest.raises(LeaseLostError):
        ledger.record(JobChange(JOB, SubmitStarted(10)), held=[fresh])


STAND_STILL = """
import sys, time
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.lock_names import LockName
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
ledger = Ledger(open_engine(database_url(load())), "here", lambda _: None)
with try_advisory_lock(ledger.engine, LockName("work")):
    print(len(ledger.effects.lease([EffectKind.FETCH])), flush=True)
    time.sleep(600)
"""


def test_process__stands_still__loses_its_leases_and_its_turn(
    ledger: Ledger, engine: Engine
) -> None:
    ledger.record(JobChange(JOB, CLAIM))
    environment = {
        "PATH": "/usr/bin:/bin",
        "DATABASE_URL": engine.url.render_as_string(hide_password=False),
    }
    argv = [sys.executable, "-c", STAND_STILL]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "1\n"
            ledger.holder.number()  # which begins to watch
            ledger.effects.due_without_message()
            assert ledger.effects.lease([EffectKind.FETCH]) == []
            other.send_signal(signal.SIGSTOP)

            def is_free() -> bool:
                ledger.effects.due_without_message()
                return len(ledger.effects.lease([EffectKind.FETCH])) == 1

            wait_until(is_free, "the lease to be free", 60.0, 0.5)

            def has_turn() -> bool:  # its other connection may end a moment later
                with try_advisory_lock(engine, LockName("work")) as mine:
                    return mine

            wait_until(has_turn, "the turn to be free", 30.0, 0.05)
        finally:
            other.kill()


def test_holders__process_with_a_guard__is_one_of_them(ledger: Ledger) -> None:
    def holders() -> int:
        with ledger.engine.connect() as connection:
            return len(list(connection.scalars(text(ALIVE_HOLDERS))))

    def alive() -> bool:
        seen.append(holders())
        return False

    seen: list[int] = []
    wait_until(
        lambda: holders() == 0,
        "Postgres to end the sessions of the tests before",
        30.0,
        0.05,
    )
    run_exclusive(ledger, "work", alive)  # without a lease before
    assert seen == [1]


def test_run_exclusive__asked_again_while_it_runs__runs_once_more_without_queries(
    ledger: Ledger,
) -> None:
    runs = list[str]()

    def work() -> bool:
        runs.append("begun")
        if len(runs) == 1:
            with ThreadPoolExecutor(1) as other, _statements(ledger.engine) as asked:
                other.submit(run_exclusive, ledger, "work", work).result()
            assert asked == []
        return False

    run_exclusive(ledger, "work", work)
    assert len(runs) == 2


def test_run_exclusive__fails_while_it_was_asked_again__can_run_afterwards(
    ledger: Ledger,
) -> None:
    def fail() -> bool:
        ledger.local_runs.begin("work")
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        run_exclusive(ledger, "work", fail)
    goes_on = [True, False]
    run_exclusive(ledger, "work", lambda: goes_on.pop(0))
    assert goes_on == []


@contextmanager
def _statements(engine: Engine) -> Iterator[list[str]]:
    """The statements that the engine sends meanwhile."""
    seen = list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sqlalchemy_event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sqlalchemy_event.remove(engine, "before_cursor_execute", note)


def test_watcher__that_may_not_end_another_roles_process__keeps_its_own_connection(
    ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sessions, "SESSION_TIMEOUT_S", 0.0)
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS watcher"))
        connection.execute(text("CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats"))
    # A session of the tests' role that says nothing, as that of a holder would.
    with engine.connect() as silent:
        silent.execute(text(f"SELECT pg_advisory_lock({HOLDERS}, 7)"))
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as watcher:
            watcher.execute(text("SET ROLE watcher"))
            holder = WorkerSession(engine)
            assert holder._heartbeat(watcher)
            assert holder._heartbeat(watcher)
            assert watcher.scalar(text("SELECT current_user")) == "watcher"
            watcher.execute(text("RESET ROLE"))
        assert silent.scalar(text("SELECT 1")) == 1
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE watcher"))


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
