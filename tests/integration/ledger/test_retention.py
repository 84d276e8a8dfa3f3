"""Old rows on a real Postgres: what is deleted, what stays and why; and the archive."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from sqlalchemy import Connection, Engine, event, text

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger import retention
from supervisor_tasks.ledger.alarms import Switch
from supervisor_tasks.ledger.archive import ArchiveError, archive
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import request
from supervisor_tasks.ledger.periodic_run_names import OLD_ROWS_DELETED
from supervisor_tasks.ledger.registrations import REGISTRATION_RECORD
from supervisor_tasks.ledger.retention import RUNS_KEPT, Retention
from supervisor_tasks.provider.registration_rules import RegistrationRecord
from supervisor_tasks.recovery.old_rows import delete_old_rows
from tests.support.ledger import emptied, job_id

CLUSTER = "here"
JOB = job_id(1)
FINAL = 1000  # the first block whose hash is kept
OF_A_JOB = ("jobs", "events", "effects", "callbacks", "transactions", "signatures")
WHOLE = dict.fromkeys(OF_A_JOB, 1)

# An old job that has all kinds of rows, and a later transaction, after which the wallet
# takes its nonces.
OLD_JOB = """
    INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
        chain_block, chain_log_index, last_event_block, script, grid_logger_url, slurm_id, top_ups, cancel_requested,
        poll_count, status_message, runs, updated_at)
    VALUES (:cluster, :job, '0xc', '0xp', '0xclaim:0', '{}', 60, 'SETTLED', 5, 10, 0, 10, 'echo', '', 7, '[]', false, 0,
        '', '[{"run": 1}]', now() - interval '401 days');
    INSERT INTO events (cluster, job_id, name, details, state) VALUES (:cluster, :job, 'SlurmCompleted', '{}', 'ENDED');
    INSERT INTO effects (cluster, job_id, kind, due_at, done_at) VALUES (:cluster, :job, 'report', now(), now());
    INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, read_at)
    VALUES (:cluster, :job, 7, 7, 61, 0, 'peer', now());
    INSERT INTO blocks (cluster, number, hash) VALUES (:cluster, 1000, '0x'), (:cluster, 1001, '0x')
"""
TRANSACTION = """
    WITH written AS (
        INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, idempotency_key, gas, max_fee_wei,
            priority_fee_wei, raw, hash, state, block_number, done_at)
        VALUES (:cluster, 1, '0xp', :nonce, :purpose, :job, :key, 1, 1, 1, '\\x00', :hash, :state, :block,
            CASE WHEN :state = 'SENT' THEN NULL ELSE now() - interval '401 days' END)
        RETURNING id, hash
    )
    INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)
    SELECT hash, id, '\\x00', 1, 1, 0 FROM written
"""


@pytest.fixture(autouse=True)
def old_job(engine: Engine) -> None:
    emptied(engine)
    with engine.begin() as connection:
        for statement in OLD_JOB.split(";"):
            connection.execute(
                text(statement.replace(":0", r"\:0")), {"cluster": CLUSTER, "job": JOB}
            )
        transaction(connection, 1, "report", job=JOB)


def transaction(
    connection: Connection,
    nonce: int,
    purpose: str,
    *,
    job: str | None = None,
    state: str = "MINED",
    block: int = 10,
) -> None:
    about = {
        "nonce": nonce,
        "purpose": purpose,
        "job": job,
        "state": state,
        "block": block,
    }
    more = {
        "cluster": CLUSTER,
        "key": f"{purpose}:{nonce}",
        "hash": f"0x{purpose}{nonce}",
    }
    connection.execute(text(TRANSACTION), about | more)


def later_transaction(connection: Connection) -> None:
    transaction(connection, 99, "claim", state="SENT", block=0)


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


def delete(engine: Engine, days: int = 400) -> retention.Deleted:
    return Retention(engine, CLUSTER, days).delete(lambda: True)


def execute(engine: Engine, statement: str, **parameters: object) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement), {"job": JOB, **parameters})


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


OLD_SWEEPS = """
    INSERT INTO reconciliations (cluster, begun_at, finished_at, report, previous_doubts)
    SELECT 'here', now() - interval '401 days', now() - interval '401 days', '{}', '{}' FROM generate_series(1, 3)
"""
# The second one has a message that is still open, the third one is not closed.
OLD_INCIDENTS = """
    INSERT INTO alarm_incidents (cluster, alarm, details, raised_at, closed_at)
    SELECT 'here', 'test', '{}', now() - interval '402 days', closed_at FROM unnest(ARRAY[
        now() - interval '401 days', now() - interval '401 days', NULL, now() - interval '399 days'
    ]) WITH ORDINALITY AS given(closed_at, place) ORDER BY place;
    INSERT INTO alarm_messages (cluster, incident_id, channel, kind, done_at)
    SELECT 'here', incident.id, 'mail', 'firing', CASE WHEN incident.id > first.id THEN NULL ELSE now() END
    FROM alarm_incidents AS incident, (SELECT min(id) AS id FROM alarm_incidents) AS first
    WHERE incident.id <= first.id + 1
"""
OLD_RUNS = """
    INSERT INTO benchmark_runs (cluster, why, state, token, ended_at)
    SELECT 'here', '', 'ENDED', '', now() - interval '401 days' FROM generate_series(1, :runs)
"""
OLD_ACCOUNT = """
    INSERT INTO effects (cluster, kind, subject, due_at, done_at)
    SELECT 'here', 'account', '0xcustomer', now() - interval '401 days', now() - interval '401 days'
"""
OF_RUNS = ("benchmark_runs", "benchmark_results")
OLD_RESULTS = """
    INSERT INTO benchmark_results (run_id, cluster, benchmark, stage, job_name, options, script)
    SELECT id, 'here', 'hpl', 'MEASURED', '', '[]', '' FROM benchmark_runs;
    INSERT INTO effects (cluster, kind, subject, due_at, done_at)
    SELECT 'here', 'benchmark', id::text, now(), now() FROM benchmark_runs
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


def many_jobs(engine: Engine, number: int) -> None:
    execute(
        engine,
        """
        INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
            chain_block, chain_log_index, last_event_block, grid_logger_url, top_ups, cancel_requested, poll_count,
            status_message, updated_at)
        SELECT 'here', '0x' || n, '', '', '', '{}', 60, 'SETTLED', 5, 10, 0, 10, '', '[]', false, 0, '',
            now() - interval '401 days' FROM generate_series(1, :number) AS n
        """,
        number=number,
    )


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
    yield WorkerContext(ledger, GridLogger(Channels().open), None, None)
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
    before = rows(engine)
    delete_old_rows(site, lambda: True)
    assert rows(engine) == before


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


# --- the archive ----------------------------------------------------------------------

NOW = datetime.now(UTC)


def lines(path: Path) -> list[dict[str, Any]]:
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as reader,
    ):
        return [json.loads(line) for line in io.TextIOWrapper(reader, encoding="utf-8")]


ANOTHER = """
    INSERT INTO jobs SELECT (jsonb_populate_record(jobs, '{"job_id"\\: "0xlive", "state"\\: "RUNNING"}')).*
    FROM jobs WHERE job_id = :job
"""
NONE = {"job": 0, "transaction": 0, "sweep": 0, "alarm_incident": 0, "benchmark_run": 0}
NAME = {
    "events": "name",
    "effects": "kind",
    "callbacks": "status",
    "transactions": "purpose",
}


def test_archive__job__is_a_line_with_all_its_rows(
    engine: Engine, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        transaction(connection, 2, "claim")
        connection.execute(
            text("UPDATE jobs SET claim_key = '0xclaim2' || chr(58) || '0'")
        )
    many_jobs(engine, 3)
    execute(engine, ANOTHER)
    target = tmp_path / "2025.jsonl.zst"
    assert archive(engine, CLUSTER, NOW, target) == NONE | {"job": 4, "transaction": 1}
    found = {line["job_id"]: line for line in lines(target) if line["kind"] == "job"}
    assert found.keys() == {JOB, "0x1", "0x2", "0x3"}
    job = found[JOB]
    assert (job["script"], job["runs"], job["slurm_id"]) == ("echo", [{"run": 1}], 7)
    named = {}
    for table, name in NAME.items():
        named[table] = [row[name] for row in job[table]]
    assert named == {
        "events": ["SlurmCompleted"],
        "effects": ["report"],
        "callbacks": [7],
        "transactions": ["report", "claim"],
    }
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o077 == 0


def with_rows_of_no_job(engine: Engine) -> None:
    """Old ones of each kind; of some of them the ledger still needs the last."""
    with engine.begin() as connection:
        for nonce in (2, 3, 4, 5):
            transaction(connection, nonce, "claim")
        later_transaction(connection)
    execute(engine, OLD_SWEEPS)
    execute(engine, OLD_INCIDENTS)
    execute(engine, OLD_RUNS, runs=RUNS_KEPT + 2)
    execute(engine, OLD_RESULTS)


def test_archive__rows_of_no_job__are_lines_with_their_kind(
    engine: Engine, tmp_path: Path
) -> None:
    with_rows_of_no_job(engine)
    execute(engine, "UPDATE reconciliations SET report = '{\"found\"\\: []}'")
    execute(
        engine,
        "UPDATE benchmark_results SET labels = '{\"compute.gflops\"\\: \"9\"}', output = '\\x6f6b'",
    )
    archive(engine, CLUSTER, NOW, tmp_path / "all")
    found = lines(tmp_path / "all")
    claim = next(line for line in found if line["kind"] == "transaction")
    assert (
        claim["purpose"],
        claim["nonce"],
        [each["hash"] for each in claim["signatures"]],
    ) == (
        "claim",
        2,
        ["0xclaim2"],
    )
    sweep = next(line for line in found if line["kind"] == "sweep")
    assert (sweep["report"], sweep["previous_doubts"]) == ({"found": []}, {})
    run = next(line for line in found if line["kind"] == "benchmark_run")
    assert (run["state"], [effect["kind"] for effect in run["effects"]]) == (
        "ENDED",
        ["benchmark"],
    )
    (result,) = run["results"]
    assert (result["benchmark"], result["labels"], result["output"]) == (
        "hpl",
        {"compute.gflops": "9"},
        "\\x6f6b",
    )


ROWS = (
    "jobs",
    "events",
    "effects",
    "callbacks",
    "transactions",
    "signatures",
    "reconciliations",
    "alarm_incidents",
    "alarm_messages",
    *OF_RUNS,
)
KEY = {"jobs": "job_id", "signatures": "hash"}
TABLE = {"sweep": "reconciliations"}  # of a kind of line that has no table of its name


def rows(engine: Engine) -> set[tuple[str, str]]:
    """Each row of the ledger that retention can delete, by its table and key."""
    with engine.connect() as connection:
        queries = (
            (table, text(f"SELECT {KEY.get(table, 'id')} FROM {table}"))  # noqa: S608
            for table in ROWS
        )
        return {
            (table, str(key))
            for table, query in queries
            for key in connection.scalars(query)
        }


def rows_of(table: str, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A row of the archive and each row within it."""
    yield table, str(found[KEY.get(table, "id")])
    for name, value in found.items():
        within = {
            "results": "benchmark_results",
            "messages": "alarm_messages",
        }.get(name, name)
        for row in value if within in ROWS else ():
            yield from rows_of(within, row)


def test_archive__all_that_retention_deletes__is_in_the_file(
    engine: Engine, tmp_path: Path
) -> None:
    many_jobs(engine, 3)
    with_rows_of_no_job(engine)
    before = rows(engine)
    archive(engine, CLUSTER, NOW, tmp_path / "all")
    written = {
        row
        for line in lines(tmp_path / "all")
        for row in rows_of(TABLE.get(line["kind"], f"{line['kind']}s"), line)
    }
    delete(engine)
    deleted = before - rows(engine)
    assert {table for table, _ in deleted} == set(ROWS)
    assert deleted - written == set()


def test_archive__before_a_time__has_no_younger_job(
    engine: Engine, tmp_path: Path
) -> None:
    assert (
        archive(
            engine,
            CLUSTER,
            datetime(2001, 1, 1, tzinfo=UTC),
            tmp_path / "none.jsonl.zst",
        )
        == NONE
    )
    assert lines(tmp_path / "none.jsonl.zst") == []


def test_archive__several_queries__has_each_line_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_jobs(engine, 7)
    with_rows_of_no_job(engine)
    monkeypatch.setattr("supervisor_tasks.ledger.archive.LINES_AT_ONCE", 3)
    written = archive(engine, CLUSTER, NOW, tmp_path / "all")
    assert written == {
        "job": 8,
        "transaction": 4,
        "sweep": 3,
        "alarm_incident": 3,
        "benchmark_run": RUNS_KEPT + 2,
    }
    found = [
        (line["kind"], line.get("job_id") or line["id"])
        for line in lines(tmp_path / "all")
    ]
    assert len(found) == len(set(found)) == sum(written.values())


def test_archive__file_exists__is_refused_and_untouched(
    engine: Engine, tmp_path: Path
) -> None:
    target = tmp_path / "old.jsonl.zst"
    target.write_text("precious")
    with pytest.raises(ArchiveError, match="never overwritten"):
        archive(engine, CLUSTER, NOW, target)
    assert target.read_text() == "precious"


@contextmanager
def at_each_statement(engine: Engine, act: Callable[[], object]) -> Iterator[None]:
    def listener(*_: object) -> None:
        act()

    event.listen(engine, "after_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", listener)


def test_archive__file_appears_meanwhile__is_not_overwritten_and_nothing_is_left(
    engine: Engine, tmp_path: Path
) -> None:
    target = tmp_path / "old.jsonl.zst"
    appears = at_each_statement(engine, lambda: target.write_text("precious"))
    with appears, pytest.raises(ArchiveError, match="made meanwhile"):
        archive(engine, CLUSTER, NOW, target)
    assert (target.read_text(), list(tmp_path.iterdir())) == ("precious", [target])


def test_archive__database_ends_in_the_middle__leaves_no_file(
    engine: Engine, tmp_path: Path
) -> None:
    fails = iter([None, LedgerUnavailableError("gone")])

    def end() -> None:
        error = next(fails)
        if error is not None:
            raise error

    with at_each_statement(engine, end), pytest.raises(LedgerUnavailableError):
        archive(engine, CLUSTER, NOW, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_archive__no_folder__says_so(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="found no folder"):
        archive(engine, CLUSTER, NOW, tmp_path / "none" / "file")
