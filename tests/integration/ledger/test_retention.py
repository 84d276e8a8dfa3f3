"""Old rows on a real Postgres: what is deleted, and what stays and why."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.deletion.old_rows import delete_old_rows
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger import retention
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import request
from supervisor_tasks.ledger.periodic_run_names import OLD_ROWS_DELETED
from supervisor_tasks.ledger.registrations import REGISTRATION_RECORD
from supervisor_tasks.ledger.retention import RUNS_KEPT, Retention
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.provider.registration_rules import RegistrationRecord
from tests.support.old_rows import (
    CLUSTER,
    JOB,
    OLD_INCIDENTS,
    OLD_RESULTS,
    OLD_RUNS,
    OLD_SWEEPS,
    deletable_rows,
    delete,
    execute,
    later_transaction,
    many_jobs,
    store_old_job,
    transaction,
)

FINAL = 1000  # the first block whose hash is kept
OF_A_JOB = ("jobs", "events", "effects", "callbacks", "transactions", "signatures")
WHOLE = dict.fromkeys(OF_A_JOB, 1)


@pytest.fixture(autouse=True)
def old_job(engine: Engine) -> None:
    store_old_job(engine)


def counts(engine: Engine) -> dict[str, int]:
    found = dict.fromkeys(OF_A_JOB, 0)
    with engine.connect() as connection:
        for table in OF_A_JOB:
            place = (
                "signatures JOIN transactions ON transactions.id = transaction_id"
                if table == "signatures"
                else table
            )
            query = "SELECT count(*) FROM @ WHERE job_id = :job".replace("@", place)
            found[table] = connection.scalar(text(query), {"job": JOB}) or 0
    return found


def test_delete__old_job__is_gone_with_all_that_belongs_to_it(engine: Engine) -> None:
    with engine.begin() as connection:
        later_transaction(connection)
    assert counts(engine) == WHOLE
    deleted = delete(engine)
    assert counts(engine) == dict.fromkeys(OF_A_JOB, 0)
    rows = {
        "scripts": 1,
        "jobs": 1,
        "events": 1,
        "effects": 1,
        "callbacks": 1,
        "transactions": 1,
    }
    assert (dict(deleted.rows), deleted.left) == (rows, False)


KEPT = {
    "young": "UPDATE jobs SET updated_at = now() - interval '399 days'",
    "goes on": "UPDATE jobs SET state = 'ENDED'",
    "refused, and still with the contract": "UPDATE jobs SET state = 'REFUSED', chain_status = 2",
    "not final: a reorganisation can still take its end": "UPDATE jobs SET last_event_block = 1000",
    "no block is known to be final": "DELETE FROM blocks",
    "in doubt since a reorganisation": "UPDATE jobs SET reorg_deadline_block = 20",
    "an effect is open": "UPDATE effects SET done_at = NULL",
    "an effect is parked": "UPDATE effects SET done_at = NULL, parked_at = now()",
    "a callback is unread": "UPDATE callbacks SET read_at = NULL",
    "a transaction is open": "UPDATE transactions SET state = 'SENT', done_at = NULL,"
    " block_number = NULL WHERE nonce = 1",
    "a transaction may be lost": "UPDATE transactions SET block_number = 1000 WHERE nonce = 1",
    "another ledger claims it": "INSERT INTO foreign_claims (cluster, job_id, tag, claim)"
    " VALUES ('here', :job, '', '{}')",
    "an alarm names it": "INSERT INTO alarms (cluster, name, details) VALUES"
    " ('here', 'runs_after_end', jsonb_build_object('jobs', CAST(:job AS text)))",
    "the last sweep doubts it": "INSERT INTO reconciliations (cluster, begun_at, report, previous_doubts) VALUES"
    " ('here', now(), '{}', jsonb_build_object('orphan_running ' || :job, 1))",
    "another cluster's": "UPDATE jobs SET cluster = 'there'",
}


@pytest.mark.parametrize("why", KEPT)
def test_delete__job_that_is_still_needed__stays_whole(
    why: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        later_transaction(connection)
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(KEPT[why]), {"job": JOB} if ":job" in KEPT[why] else {})
    delete(engine)
    assert counts(engine) == WHOLE


def test_delete__last_transaction_of_the_wallet__stays_with_its_job(
    engine: Engine,
) -> None:
    """The wallet takes its next nonce from it."""
    delete(engine)
    assert counts(engine) == WHOLE


def test_delete__days_are_0__only_scripts_go(engine: Engine) -> None:
    with engine.begin() as connection:
        later_transaction(connection)
    assert dict(delete(engine, days=0).rows) == {"scripts": 1}
    assert counts(engine) == WHOLE


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("updated_at = now() - interval '8 days'", False),
        ("updated_at = now() - interval '6 days'", True),
        (
            "updated_at = now() - interval '8 days', state = 'REFUSED', chain_status = 0",
            False,
        ),
        (
            "updated_at = now() - interval '8 days', state = 'REFUSED', chain_status = 3",
            True,
        ),
        ("updated_at = now() - interval '8 days', last_event_block = 1000", True),
    ],
)
def test_delete__script__is_dropped_a_week_after_the_end(
    change: str, kept: bool, engine: Engine
) -> None:
    execute(engine, f"UPDATE jobs SET {change}")  # noqa: S608
    delete(engine)
    with engine.connect() as connection:
        assert (connection.scalar(text("SELECT script FROM jobs")) is not None) is kept


def test_delete__old_transactions_without_a_job__all_but_the_registrations(
    engine: Engine,
) -> None:
    with engine.begin() as connection:
        for nonce, purpose in ((2, "claim"), (3, "register"), (4, "register")):
            transaction(connection, nonce, purpose)
        transaction(connection, 5, "claim", block=FINAL)
        later_transaction(connection)
    Facts(engine, CLUSTER).set(
        REGISTRATION_RECORD, RegistrationRecord(idempotency_key="register:4")
    )
    assert delete(engine).rows["transactions"] == 3  # one is of the job
    with engine.connect() as connection:
        assert list(
            connection.scalars(text("SELECT nonce FROM transactions ORDER BY 1"))
        ) == [4, 5, 99]


OLD_ACCOUNT = """
    INSERT INTO effects (cluster, kind, subject, due_at, done_at)
    SELECT 'here', 'account', '0xcustomer', now() - interval '401 days', now() - interval '401 days'
"""


def test_delete__sweeps_and_benchmark_runs__those_that_count_stay(
    engine: Engine,
) -> None:
    execute(engine, OLD_SWEEPS)
    execute(engine, OLD_RUNS, runs=RUNS_KEPT + 2)
    execute(engine, OLD_RESULTS)
    rows = delete(engine).rows
    assert (rows["reconciliations"], rows["benchmark_runs"]) == (2, 2)
    with engine.connect() as connection:
        assert (
            connection.scalar(text("SELECT count(*) FROM benchmark_results"))
            == RUNS_KEPT
        )
        assert (
            connection.scalar(
                text("SELECT count(*) FROM effects WHERE kind = 'benchmark'")
            )
            == RUNS_KEPT
        )
    assert not delete(engine).rows


def test_delete__incidents__closed_ones_go_unless_a_message_is_open(
    engine: Engine,
) -> None:
    execute(engine, OLD_INCIDENTS)
    assert delete(engine).rows["alarm_incidents"] == 1
    with engine.connect() as connection:
        left = text("SELECT count(*) FROM alarm_incidents")
        messages = text("SELECT count(*) FROM alarm_messages")
        assert connection.scalars(left).all() == [3]
        assert connection.scalars(messages).all() == [1]
    assert not delete(engine).rows


def test_delete__sweeps_of_another_age__stay(engine: Engine) -> None:
    """However many there are: an audit finds all of its time."""
    execute(engine, OLD_SWEEPS)
    execute(
        engine, "UPDATE reconciliations SET finished_at = now() - interval '399 days'"
    )
    assert "reconciliations" not in delete(engine).rows


def test_delete__done_account_of_any_age__stays(engine: Engine) -> None:
    """It keeps an account that the site has closed meanwhile from being made again."""
    execute(engine, OLD_ACCOUNT)
    delete(engine)
    with engine.begin() as connection:
        request(connection, CLUSTER, EffectKind.ACCOUNT, ["0xcustomer"])
        query = text("SELECT done_at IS NOT NULL FROM effects WHERE kind = 'account'")
        assert list(connection.scalars(query)) == [True]


def test_delete__more_than_a_call_may__is_left_for_the_next(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_jobs(engine, 50)
    monkeypatch.setattr(retention, "BATCH_ROWS", 10)
    monkeypatch.setattr(retention, "PASS_JOBS", 20)
    sizes = [
        (deleted.rows["jobs"], deleted.left)
        for deleted in (delete(engine), delete(engine), delete(engine))
    ]
    assert sizes == [(20, True), (20, True), (10, False)]


def test_delete__worker_is_told_to_end__stops_after_the_batch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_jobs(engine, 50)
    monkeypatch.setattr(retention, "BATCH_ROWS", 10)
    deleted = Retention(engine, CLUSTER, 400).delete(lambda: False)
    assert (deleted.rows, deleted.left) == ({"scripts": 1}, True)


def test_delete__job_that_another_transaction_holds__is_skipped(engine: Engine) -> None:
    many_jobs(engine, 5)
    with engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM jobs WHERE job_id = '0x3' FOR UPDATE"))
        assert delete(engine).rows["jobs"] == 4
    assert delete(engine).rows["jobs"] == 1


@pytest.fixture
def site(engine: Engine) -> Iterator[WorkerContext]:
    ledger = Ledger(engine, CLUSTER, lambda _: None)
    yield WorkerContext(
        ledger, GridLogger(Channels().open), None, None, dispatch=lambda _: None
    )
    ledger.holder.close()


def test_task__all_is_deleted__records_the_run_that_ends_the_night(
    site: WorkerContext, engine: Engine
) -> None:
    many_jobs(engine, 5)
    delete_old_rows(site, lambda: False)
    assert site.ledger.periodic_runs.age_s(OLD_ROWS_DELETED) is None
    delete_old_rows(site, lambda: True)
    assert site.ledger.periodic_runs.age_s(OLD_ROWS_DELETED) is not None
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM jobs")) == 1


def test_task__operator_paused_deletions__deletes_nothing(
    site: WorkerContext, engine: Engine
) -> None:
    many_jobs(engine, 5)
    execute(engine, OLD_SWEEPS)
    execute(engine, OLD_INCIDENTS)
    site.ledger.switches.set(Switch.RETENTION_PAUSED, "audit of 2026")
    before = deletable_rows(engine)
    delete_old_rows(site, lambda: True)
    assert deletable_rows(engine) == before


def test_delete__operator_paused_deletions_meanwhile__deletes_no_further_batch(
    site: WorkerContext, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor_tasks.ledger.retention.BATCH_ROWS", 2)
    many_jobs(engine, 5)

    def pause() -> bool:
        site.ledger.switches.set(Switch.RETENTION_PAUSED, "audit of 2026")
        return True

    deleted = Retention(engine, CLUSTER, 400).delete(pause)
    assert deleted.rows == {"scripts": 1}
    assert deleted.paused_for == "audit of 2026"
