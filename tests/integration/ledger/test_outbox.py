"""The open effects in a real Postgres: who gets one, for how long, and which messages are
sent again.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy import event as sqlalchemy_event

from devgrid.processes import wait_until
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ScriptFetched,
    SlurmPendingObserved,
    SubmitRejected,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import EffectKind, JobId, SlurmId, State
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import (
    WORKER_ENDED,
    Failure,
    LeaseLostError,
    OpenEffect,
)
from tests.support.recorded_jobs import (
    CLAIM,
    JOB,
    Dispatched,
    bring_to_queued,
    journal,
    open_kinds,
)


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
    ledger.effects.park([Failure(effect, "a contradiction")])
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
    assert not ledger.effects.park([Failure(stale, "a contradiction")])
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
