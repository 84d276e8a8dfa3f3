"""Rows of a ledger that are old enough for the archive and for the deletion, of all
kinds.
"""

from sqlalchemy import Connection, Engine, text

from supervisor_tasks.ledger import retention
from supervisor_tasks.ledger.retention import Retention
from tests.support.ledger import emptied, job_id

CLUSTER = "here"
JOB = job_id(1)
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
OLD_RESULTS = """
    INSERT INTO benchmark_results (run_id, cluster, benchmark, state, job_name, options, script)
    SELECT id, 'here', 'hpl', 'MEASURED', '', '[]', '' FROM benchmark_runs;
    INSERT INTO effects (cluster, kind, subject, due_at, done_at)
    SELECT 'here', 'benchmark', id::text, now(), now() FROM benchmark_runs
"""
OF_RUNS = ("benchmark_runs", "benchmark_results")
# the tables whose rows the deletion can take
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


def store_old_job(engine: Engine) -> None:
    """Empty the ledger, and write JOB as it was settled 401 days ago, with rows of all
    kinds.
    """
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
    """Write a transaction with its signature. One that is not SENT ended 401 days ago."""
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
    """Write the transaction after which the wallet takes its nonces."""
    transaction(connection, 99, "claim", state="SENT", block=0)


def delete(engine: Engine, days: int = 400) -> retention.Deleted:
    """Delete rows that are older than so many days, in one pass that nothing stops."""
    return Retention(engine, CLUSTER, days).delete(lambda: True)


def execute(engine: Engine, statement: str, **parameters: object) -> None:
    """Execute a statement, which may name JOB as `:job`."""
    with engine.begin() as connection:
        connection.execute(text(statement), {"job": JOB, **parameters})


def many_jobs(engine: Engine, number: int) -> None:
    """Write so many old jobs without other rows."""
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


def deletable_rows(engine: Engine) -> set[tuple[str, str]]:
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
