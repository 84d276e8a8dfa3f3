"""What cannot go on by itself waits for the operator, with what was seen; nothing is
retried for ever in silence.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import LedgerUnavailableError, TransientError
from supervisor_tasks.execution.effect_failures import (
    given_back_on_failure,
    park,
    park_all,
    update_effect_alarms,
)
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.callback_fallback import CALLBACKS_AT_ONCE, poll_delay_s
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    SlurmCompleted,
    SlurmPendingObserved,
    SlurmRunningObserved,
)
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, Outcome
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger import outbox, outbox_sql
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.lock_names import LEASING_EFFECTS
from supervisor_tasks.ledger.outbox import (
    ISOLATED_AFTER,
    OVERDUE_AFTER_TRIES,
    PARKED_AFTER,
    Failure,
    OpenEffect,
)
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.slurm_lookup.cluster_check import (
    SubmissionsPausedError,
    require_not_paused,
)
from tests.support.effect_batches import carry_out, carry_out_leased, lease
from tests.support.ledger import bring_to_queued, job_id


def rows(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)))


def make_due(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET due_at = now() - interval '1 s' WHERE done_at IS NULL"
            )
        )


def make_due_alone(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        due = "UPDATE effects SET due_at = now() + (CASE WHEN job_id = :id THEN 0 ELSE 1 END) * interval '1 h'"
        connection.execute(text(f"{due} WHERE done_at IS NULL"), {"id": name})


def make_due_only_what_has_failed(engine: Engine) -> None:
    with engine.begin() as connection:
        due = "UPDATE effects SET due_at = now() + (CASE WHEN unexpected_failures > 0 THEN 0 ELSE 1 END) * interval '1 h'"
        connection.execute(text(f"{due} WHERE done_at IS NULL"))


def queued_and_due(ledger: Ledger, engine: Engine, *numbers: int) -> None:
    for number in numbers:
        bring_to_queued(ledger, number)
    make_due(engine)


def alarms(ledger: Ledger) -> dict[str, dict[str, Any]]:
    return {alarm.name: alarm.details for alarm in ledger.alarms.all()}


def look(
    ledger: Ledger, see: Callable[[Sequence[OpenEffect]], None]
) -> list[OpenEffect]:
    """As the monitor does with what is due."""
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    if effects:
        with given_back_on_failure(ledger, effects):
            see(effects)
            ledger.record(
                *(
                    JobChange(
                        effect.job_id, SlurmPendingObserved("PENDING"), done=effect
                    )
                    for effect in effects
                )
            )
    return effects


def test_park__effect_with_an_error__keeps_what_was_seen_and_calls_the_operator(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    park(
        ledger,
        effect,
        "SLURM said\0no",
        error="SlurmRejectedError",
        said="x" * 9000,
        state="QUEUED",
        number=7,
    )
    (row,) = rows(
        engine,
        "SELECT last_error, evidence, lease, parked_at FROM effects WHERE done_at IS NULL",
    )
    assert row.last_error == "SLURM said\\x00no"
    assert row.evidence["said"] == "x" * 2000
    assert (
        row.evidence["error"],
        row.evidence["number"],
        row.evidence["attempts"],
    ) == ("SlurmRejectedError", 7, 1)
    assert row.lease is None
    assert row.parked_at is not None
    assert alarms(ledger)[AlarmName.EFFECT_PARKED]["effects"] == 1


def test_park__demand_while_it_was_carried_out__is_tried_once_more_and_then_parked(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.record(JobChange(job_id(1), CallbackReceived()))
    park(ledger, effect, "no")
    assert AlarmName.EFFECT_PARKED not in alarms(ledger)
    (again,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    park(ledger, again, "no")
    assert ledger.effects.lease([EffectKind.POLL_SLURM]) == []
    assert AlarmName.EFFECT_PARKED in alarms(ledger)


def test_park_all__news_of_one__the_others_are_parked_in_one_transaction(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1, 2, 3)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.record(JobChange(job_id(2), CallbackReceived()))
    park_all(
        ledger,
        [Failure(effect, "no", {"job": effect.job_id}) for effect in effects],
    )
    parked = rows(
        engine,
        "SELECT job_id, evidence ->> 'job' AS said, xmin::text FROM effects WHERE parked_at IS NOT NULL ORDER BY job_id",
    )
    assert [(row.job_id, row.said) for row in parked] == [
        (job_id(number), job_id(number)) for number in (1, 3)
    ]
    assert len({row.xmin for row in parked}) == 1
    assert alarms(ledger)[AlarmName.EFFECT_PARKED]["effects"] == 2
    (again,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    assert again.job_id == job_id(2)


def test_parked__news__is_tried_once_more(ledger: Ledger, engine: Engine) -> None:
    queued_and_due(ledger, engine, 1)
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    park(ledger, effect, "no")
    ledger.record(JobChange(job_id(1), CallbackReceived()))
    (again,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    assert again.id == effect.id
    ledger.record(JobChange(job_id(1), SlurmRunningObserved(), done=again))
    update_effect_alarms(ledger)
    assert alarms(ledger) == {}


def test_parked__too_many_callbacks_about_a_job__are_not_tried(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    park(ledger, effect, "no")
    for heard in range(CALLBACKS_AT_ONCE + 1, CALLBACKS_AT_ONCE + 100):
        ledger.record(JobChange(job_id(1), CallbackReceived(poll_delay_s(heard))))
        make_due(engine)
        assert ledger.effects.lease([EffectKind.POLL_SLURM]) == []
    update_effect_alarms(ledger)
    assert alarms(ledger)[AlarmName.EFFECT_PARKED]["effects"] == 1
    ledger.record(JobChange(job_id(1), CallbackReceived()))
    (again,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    assert again.id == effect.id


def test_parked__job_goes_on_without_it__alarm_is_cleared(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    park(ledger, effect, "no")
    with engine.begin() as connection:
        connection.execute(text("UPDATE effects SET done_at = now()"))
    update_effect_alarms(ledger)
    assert alarms(ledger) == {}


def test_batch__one_has_an_unexpected_error__is_parked_alone_and_the_others_go_on(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, *range(1, 21))
    poison, failed_sizes = job_id(13), []

    def see(effects: Sequence[OpenEffect]) -> None:
        if any(effect.job_id == poison for effect in effects):
            failed_sizes.append(len(effects))
            raise ZeroDivisionError("an unexpected error")

    while len(failed_sizes) < PARKED_AFTER:
        try:
            look(ledger, see)
        except ZeroDivisionError:
            with engine.begin() as connection:  # its time has come again
                connection.execute(
                    text(
                        "UPDATE effects SET due_at = now() WHERE failing_since IS NOT NULL"
                    )
                )
    parked = rows(
        engine,
        "SELECT job_id, last_error, evidence FROM effects WHERE parked_at IS NOT NULL",
    )
    assert [row.job_id for row in parked] == [poison]
    assert parked[0].evidence["error"] == "ZeroDivisionError"
    assert failed_sizes == [20] * ISOLATED_AFTER + [1] * (PARKED_AFTER - ISOLATED_AFTER)
    while look(ledger, see):
        pass
    seen_fine = rows(engine, "SELECT job_id FROM jobs WHERE poll_count >= 1")
    assert len(seen_fine) == 19


def test_failure__over_a_file_that_is_missing__names_the_file(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)

    def open_missing(_: Sequence[OpenEffect]) -> None:
        Path("/missing/ca.pem").read_bytes()

    with pytest.raises(FileNotFoundError):
        look(ledger, open_missing)
    (row,) = rows(
        engine, "SELECT last_error FROM effects WHERE failing_since IS NOT NULL"
    )
    assert (
        row.last_error
        == "FileNotFoundError: [Errno 2] No such file or directory: '/missing/ca.pem'"
    )


def test_outage__of_any_length__is_never_parked_but_overdue(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1, 2)

    def no_answer(_: Sequence[OpenEffect]) -> None:
        raise TransientError("SLURM does not answer")

    for _ in range(OVERDUE_AFTER_TRIES + 1):
        assert len(look(ledger, no_answer)) == 2
        make_due(engine)
    update_effect_alarms(ledger)
    (name, details), *more = alarms(ledger).items()
    assert (name, more) == (AlarmName.EFFECT_OVERDUE, [])
    assert (details["effects"], details["last_error"]) == (2, "SLURM does not answer")
    assert details["tries"] == OVERDUE_AFTER_TRIES + 1
    assert len(look(ledger, lambda _: None)) == 2
    update_effect_alarms(ledger)
    assert alarms(ledger) == {}


NO_ROOM = """
    CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER no_room BEFORE UPDATE ON effects FOR EACH ROW WHEN (NEW.lease IS NULL) EXECUTE FUNCTION no_room();
"""


@contextmanager
def no_room(engine: Engine) -> Iterator[None]:
    """Nothing can be given back meanwhile: Postgres says what it says when its disk is
    full.
    """
    with engine.begin() as connection:
        connection.execute(text(NO_ROOM))
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(
                text("DROP TRIGGER no_room ON effects; DROP FUNCTION no_room")
            )


def until_given_back(engine: Engine) -> list[Any]:
    """Long before the lease is over."""
    open_ones = "SELECT lease, unexpected_failures, last_error FROM effects WHERE done_at IS NULL"
    wait_until(
        lambda: all(row.lease is None for row in rows(engine, open_ones)),
        "the effects",
        30.0,
        0.1,
    )
    return rows(engine, open_ones)


def test_batch__disk_is_full__is_released_as_soon_as_there_is_room(
    ledger: Ledger, engine: Engine
) -> None:
    def no_answer(_: Sequence[OpenEffect]) -> None:
        raise TransientError("SLURM does not answer")

    queued_and_due(ledger, engine, 1, 2)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    with (
        no_room(engine),
        pytest.raises(LedgerUnavailableError),
        given_back_on_failure(ledger, effects),
    ):
        no_answer(effects)
    assert [
        (row.unexpected_failures, row.last_error) for row in until_given_back(engine)
    ] == [(0, "SLURM does not answer")] * 2


def test_step__whose_outcome_cannot_be_written_while_the_disk_is_full__is_given_back(
    ledger: Ledger, engine: Engine
) -> None:
    bring_to_queued(ledger, 1)
    ended = Outcome(status=ChainStatus.FAILED, reason="exit code 1")
    ledger.record(
        JobChange(job_id(1), SlurmRunningObserved()),
        JobChange(job_id(1), SlurmCompleted(ended)),
    )
    make_due(engine)
    (step,) = rows(
        engine,
        "SELECT id FROM effects WHERE done_at IS NULL AND kind = 'notify_customer'",
    )
    with no_room(engine):
        carry_out(
            WorkerContext(
                ledger, GridLogger(Channels().open), None, None, dispatch=lambda _: None
            ),
            step.id,
        )
    assert [row.unexpected_failures for row in until_given_back(engine)] == [0, 0]


def test_looks__of_several_hours__are_the_latest_first_and_none_from_long_ago(
    ledger: Ledger, engine: Engine
) -> None:
    for number in (1, 2):
        bring_to_queued(ledger, number)
    ledger.record(JobChange(job_id(1), SlurmPendingObserved("PENDING")))
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE events SET at = now() - interval '3 hours' WHERE name = 'SlurmPendingObserved'"
            )
        )
    ledger.record(
        JobChange(job_id(1), SlurmRunningObserved("RUNNING")),
        JobChange(job_id(1), SlurmPendingObserved("COMPLETING")),
    )
    looks = ledger.journal.looks([job_id(1), job_id(2)], 7200.0)
    assert looks.keys() == {job_id(1)}
    assert [seen for seen, _ in looks[job_id(1)]] == ["COMPLETING", "RUNNING"]
    assert all(0 <= ago_s < 600 for _, ago_s in looks[job_id(1)])


def test_last_shown__looks_that_did_not_list_the_job__are_left_out(
    ledger: Ledger,
) -> None:
    shown = {
        1: ("RUNNING", "COMPLETING", NOT_LISTED, NOT_LISTED),
        2: ("COMPLETING", "RUNNING", NOT_LISTED),
        3: (NOT_LISTED,),
        4: ("PENDING",),
    }
    for number, states in shown.items():
        bring_to_queued(ledger, number)
        for state in states:
            ledger.record(JobChange(job_id(number), SlurmPendingObserved(state)))
    last = ledger.journal.last_shown(
        [job_id(number) for number in (1, 2, 3)], NOT_LISTED
    )
    assert last == {job_id(1): "COMPLETING", job_id(2): "RUNNING"}


def test_step__whose_job_cannot_be_read_as_the_connection_is_lost__is_given_back(
    ledger: Ledger, engine: Engine
) -> None:
    bring_to_queued(ledger, 1)
    ended = Outcome(status=ChainStatus.FAILED, reason="exit code 1")
    ledger.record(
        JobChange(job_id(1), SlurmRunningObserved()),
        JobChange(job_id(1), SlurmCompleted(ended)),
    )
    (step,) = rows(
        engine,
        "SELECT id FROM effects WHERE done_at IS NULL AND kind = 'notify_customer'",
    )
    site = WorkerContext(
        ledger, GridLogger(Channels().open), None, None, dispatch=lambda _: None
    )
    lose = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM jobs%'"
    with ThreadPoolExecutor(1) as pool, engine.connect() as other:
        leased = lease(ledger, step.id)
        other.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
        working = pool.submit(carry_out_leased, site, leased)
        wait_until(
            lambda: bool(rows(engine, lose)), "the batch to read its jobs", 60.0, 0.05
        )
        other.rollback()
        with pytest.raises(LedgerUnavailableError):
            working.result(deadline(60.0))
    (left,) = rows(
        engine,
        f"SELECT lease, unexpected_failures, last_error FROM effects WHERE id = {step.id}",  # noqa: S608
    )
    assert (
        left.lease,
        left.unexpected_failures,
        "the ledger's database" in left.last_error,
    ) == (None, 0, True)


def test_late__by_its_age__is_told_too(ledger: Ledger, engine: Engine) -> None:
    queued_and_due(ledger, engine, 1)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.effects.postpone(effects, 1.0, "not now")
    update_effect_alarms(ledger)
    assert alarms(ledger) == {}
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET failing_since = now() - interval '6 min' WHERE done_at IS NULL"
            )
        )
    update_effect_alarms(ledger)
    assert alarms(ledger)[AlarmName.EFFECT_OVERDUE]["for_s"] >= 360


def test_update_effect_alarms__submissions_are_paused__is_not_overdue(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    ledger.switches.set(Switch.SUBMISSIONS_PAUSED, "maintenance")
    with pytest.raises(SubmissionsPausedError) as paused:
        require_not_paused(ledger)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.effects.postpone(effects, 1.0, str(paused.value))
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET failing_since = now() - interval '6 min'")
        )
    update_effect_alarms(ledger)
    assert alarms(ledger) == {}
    assert "supervisor submissions resume" in str(paused.value)


def test_postpone__without_an_error__counts_as_no_failure(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    ledger.effects.postpone(effects, 1.0, "not now")
    make_due(engine)
    ledger.effects.postpone(ledger.effects.lease([EffectKind.POLL_SLURM]), 30.0)
    (row,) = rows(
        engine,
        "SELECT attempts, failing_since, last_error FROM effects WHERE done_at IS NULL",
    )
    assert tuple(row) == (0, None, None)


def die_with(engine: Engine, ledger: Ledger) -> list[OpenEffect]:
    """A worker takes what is due, and is gone."""
    worker = Ledger(engine, "here", lambda _: None)
    effects = worker.effects.lease([EffectKind.POLL_SLURM])
    worker.holder.close()
    free(ledger, engine)
    return effects


def free(ledger: Ledger, engine: Engine) -> None:
    """Postgres gives the lock of a closed connection up in its own time."""

    def freed() -> bool:
        ledger.effects.due_without_message()
        return not rows(engine, "SELECT 1 FROM effects WHERE lease IS NOT NULL")

    wait_until(freed, "the leases of the dead to be free", 60.0, 0.01)


def finish(ledger: Ledger, effects: Sequence[OpenEffect]) -> None:
    ledger.record(
        *(
            JobChange(effect.job_id, SlurmPendingObserved("PENDING"), done=effect)
            for effect in effects
        )
    )


def test_effect__kills_its_worker__is_soon_leased_isolated_and_then_parked(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, *range(1, 21))
    poison, deaths = job_id(13), list[int]()
    while len(deaths) < PARKED_AFTER:
        worker = Ledger(engine, "here", lambda _: None)
        while effects := worker.effects.lease([EffectKind.POLL_SLURM]):
            if any(effect.job_id == poison for effect in effects):
                deaths.append(len(effects))
                break
            finish(worker, effects)
        worker.holder.close()
        free(ledger, engine)
        with engine.begin() as connection:  # its time has come again
            connection.execute(
                text(
                    "UPDATE effects SET due_at = now() WHERE failing_since IS NOT NULL"
                )
            )
    assert deaths == [20] * ISOLATED_AFTER + [1] * (PARKED_AFTER - ISOLATED_AFTER)
    parked = rows(
        engine,
        "SELECT job_id, last_error, evidence FROM effects WHERE parked_at IS NOT NULL",
    )
    assert [row.job_id for row in parked] == [poison]
    assert "its worker ended" in parked[0].last_error
    assert parked[0].evidence["attempts"] == PARKED_AFTER
    update_effect_alarms(ledger)
    assert alarms(ledger)[AlarmName.EFFECT_PARKED]["effects"] == 1


def test_effects__their_worker_was_killed_twice__all_go_on_one_by_one(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, *range(1, 101))
    assert [len(die_with(engine, ledger)) for _ in range(ISOLATED_AFTER)] == [
        100
    ] * ISOLATED_AFTER
    make_due(engine)
    sizes = list[int]()
    while unexpected_failures(engine):
        taken = ledger.effects.lease([EffectKind.POLL_SLURM])
        sizes += [len(taken)] if any(effect.is_isolated for effect in taken) else []
        finish(ledger, taken)
    assert sizes == [1] * 100
    assert rows(engine, "SELECT 1 FROM effects WHERE parked_at IS NOT NULL") == []
    assert len(rows(engine, "SELECT 1 FROM jobs WHERE poll_count >= 1")) == 100


def test_lease__failed_twice__one_at_a_time_in_the_whole_cluster_after_all_others(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1, 2, 3)
    for _ in range(ISOLATED_AFTER):
        die_with(engine, ledger)
    bring_to_queued(ledger, 4)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET due_at = now() WHERE done_at IS NULL")
        )
    other = Ledger(engine, "here", lambda _: None)
    fresh = other.effects.lease([EffectKind.POLL_SLURM])
    assert [effect.job_id for effect in fresh] == [job_id(4)]
    finish(other, fresh)
    make_due_only_what_has_failed(engine)  # job 4 is due again in a second
    alone = other.effects.lease([EffectKind.POLL_SLURM])
    assert [effect.is_isolated for effect in alone] == [True]
    assert ledger.effects.lease([EffectKind.POLL_SLURM]) == []
    bring_to_queued(ledger, 5)
    make_due_alone(engine, job_id(5))
    assert [
        effect.job_id for effect in ledger.effects.lease([EffectKind.POLL_SLURM])
    ] == [job_id(5)]
    finish(other, alone)
    make_due_only_what_has_failed(engine)
    assert [
        effect.is_isolated for effect in ledger.effects.lease([EffectKind.POLL_SLURM])
    ] == [True]
    other.holder.close()


def test_lease__failed_twice__waits_for_a_worker_that_takes_one_at_the_same_time(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1, 2)
    for _ in range(ISOLATED_AFTER):
        die_with(engine, ledger)
    make_due(engine)
    took_one = "UPDATE effects SET lease = 1, lease_until = now() + interval '1 min' WHERE job_id = :id"
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    waiting = (
        f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {here}"  # noqa: S608
    )
    with ThreadPoolExecutor(1) as pool, engine.connect() as other:
        other.execute(
            outbox_sql.LEASING_LOCK, {"lock_class": LEASING_EFFECTS, "cluster": "here"}
        )
        other.execute(text(took_one), {"id": job_id(1)})
        second = pool.submit(ledger.effects.lease, [EffectKind.POLL_SLURM])
        wait_until(
            lambda: second.done() or bool(rows(engine, waiting)),
            "the second worker to wait",
            60.0,
        )
        other.commit()
        assert second.result(deadline(60.0)) == []


def unexpected_failures(engine: Engine) -> dict[str, int]:
    found = rows(
        engine,
        "SELECT job_id, unexpected_failures FROM effects WHERE done_at IS NULL AND unexpected_failures > 0",
    )
    return {row.job_id: row.unexpected_failures for row in found}


def test_deaths__survived_leases_in_between__are_not_in_a_row(
    ledger: Ledger, engine: Engine
) -> None:
    queued_and_due(ledger, engine, 1)
    for waits in (False, True) * PARKED_AFTER:
        assert len(die_with(engine, ledger)) == 1
        make_due(engine)
        ledger.effects.postpone(
            ledger.effects.lease([EffectKind.POLL_SLURM]),
            0.0,
            "SLURM does not answer",
            waits=waits,
        )
        assert unexpected_failures(engine) == {}
        make_due(engine)
    assert rows(engine, "SELECT 1 FROM effects WHERE parked_at IS NOT NULL") == []


def test_effect__that_takes_too_long_while_its_worker_lives__is_parked(
    ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "LEASE_S", 0.2)  # nothing waits for minutes here
    bring_to_queued(ledger, 1)
    for _ in range(PARKED_AFTER):
        make_due(engine)
        assert [
            effect.job_id for effect in ledger.effects.lease([EffectKind.POLL_SLURM])
        ] == [job_id(1)]
        free(ledger, engine)
    assert [
        row.job_id
        for row in rows(
            engine, "SELECT job_id FROM effects WHERE parked_at IS NOT NULL"
        )
    ] == [job_id(1)]


def test_extend__what_has_not_begun_yet__is_held_for_longer(
    ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued_and_due(ledger, engine, 1, 2)
    held = ledger.effects.lease([EffectKind.POLL_SLURM])
    left = "SELECT EXTRACT(EPOCH FROM lease_until - now()) AS left_s FROM effects WHERE lease IS NOT NULL ORDER BY job_id"
    monkeypatch.setattr(outbox, "LEASE_S", 4200.0)
    ledger.effects.extend([effect for effect in held if effect.job_id == job_id(2)])
    first, second = (float(row.left_s) for row in rows(engine, left))
    assert first < 420.0 < 4000.0 < second


# A worker of three threads with work in each of them at any time. It dies of one job,
# once another thread has done something meanwhile (where the others are held back, a
# second later).
WORKER = """
import os, signal, sys, threading, time
from sqlalchemy import create_engine
from supervisor_tasks.jobs.events import SlurmPendingObserved
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.ledger import JobChange, Ledger

ledger = Ledger(create_engine(sys.argv[1]), "here", lambda _: None)
done = threading.Event()

def work():
    while True:
        effects = ledger.effects.lease([EffectKind.POLL_SLURM], most=2)
        if any(effect.job_id == sys.argv[2] for effect in effects):
            done.clear()
            done.wait(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        ledger.record(*(JobChange(effect.job_id, SlurmPendingObserved("PENDING"), done=effect) for effect in effects))
        if effects:
            done.set()

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
"""


def test_effect__kills_a_busy_worker__is_parked_and_the_others_go_on(
    ledger: Ledger, engine: Engine
) -> None:
    poison, most = job_id(5), 8
    queued_and_due(ledger, engine, *range(1, most + 1))
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET due_at = now() WHERE done_at IS NULL")
        )
    url = engine.url.render_as_string(hide_password=False)
    argv = [sys.executable, "-c", WORKER, url, poison]
    looks = "SELECT coalesce(sum(poll_count), 0) AS poll_count FROM jobs"
    others = "SELECT 1 FROM jobs WHERE poll_count >= 1"
    parked, deaths, seen = list[Any](), 0, list[int]()
    worker = subprocess.Popen(argv, cwd=REPOSITORY)

    def poison_is_parked() -> bool:
        nonlocal worker, deaths
        ledger.effects.due_without_message()
        with engine.begin() as connection:  # there is always something to do
            connection.execute(
                text(
                    "UPDATE effects SET due_at = now() WHERE done_at IS NULL AND lease IS NULL"
                )
            )
        if worker.poll() is not None:
            assert worker.returncode == -signal.SIGKILL
            deaths += 1
            seen.append(rows(engine, looks)[0].poll_count)
            worker = subprocess.Popen(argv, cwd=REPOSITORY)
        parked[:] = rows(
            engine, "SELECT job_id FROM effects WHERE parked_at IS NOT NULL"
        )
        # Of the last death the leases may be free, and the effect parked, before the
        # process is seen to end.
        return (
            deaths >= PARKED_AFTER
            and bool(parked)
            and len(rows(engine, others)) == most - 1
        )

    try:
        wait_until(
            poison_is_parked,
            "the poison to be parked, and the others to be carried out",
            120.0,
            0.02,
        )
    finally:
        worker.kill()
        worker.wait()
    assert [row.job_id for row in parked] == [poison]
    assert seen[-1] > seen[ISOLATED_AFTER - 1], "others went on between the deaths"
