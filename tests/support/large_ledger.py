"""A ledger as after years of use: a million settled jobs, with their rows in the other
tables.
"""

from sqlalchemy import Engine, text

SETTLED = 1_000_000
ACTIVE = 1_000

# A settled job has an effect that is done, a callback that is read, a mined transaction
# and an event. An active job has the same rows, still open.
_NUMBERS = "FROM generate_series(1, :settled + :active) AS n"
_ADDRESS = (
    # no wallet of the grid has it, so that the rows of the grid's own jobs stay as they
    # are
    "'0x' || repeat('3', 40)"
)
_JOB_ID = "'0x' || lpad(to_hex(n), 64, '0')"
_FILL = (
    f"""
    INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
        chain_block, chain_log_index, last_event_block, grid_logger_url, slurm_id, top_ups, cancel_requested, poll_count,
        outcome_status,
        elapsed_s, exit_status, reason, status_message)
    SELECT :cluster, {_JOB_ID}, '0x' || lpad(to_hex(n % 1000), 40, '0'), {_ADDRESS}, 'claim:' || n,
        '{{"gpus": 0, "ntasks": 1, "cpus_per_task": 1, "mem_per_cpu_mb": 100, "batch_location_hash": "hash"}}', 60,
        CASE WHEN n <= :settled THEN 'SETTLED' ELSE 'RUNNING' END, CASE WHEN n <= :settled THEN 5 ELSE 3 END,
        n - :behind, 0, n - :behind, '', n, '[]', false, 0, CASE WHEN n <= :settled THEN 5 END,
        CASE WHEN n <= :settled THEN 61 END, CASE WHEN n <= :settled THEN 0 END, CASE WHEN n <= :settled THEN '' END, ''
    {_NUMBERS}""",
    f"""
    INSERT INTO effects (cluster, job_id, kind, due_at, done_at)
    SELECT :cluster, {_JOB_ID}, 'poll_slurm', now(), CASE WHEN n <= :settled THEN now() END {_NUMBERS}""",
    f"""
    INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, read_at)
    SELECT :cluster, {_JOB_ID}, n, 7, 61, 0, 'peer', CASE WHEN n <= :settled THEN now() END {_NUMBERS}""",
    f"""
    INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, idempotency_key, gas, max_fee_wei,
        priority_fee_wei, raw, hash, state, block_number, block_hash, done_at)
    SELECT :cluster, 179188, {_ADDRESS}, n, 'report', {_JOB_ID}, 'claim:' || n, 21000, 1,
        1, '\\x00', {_JOB_ID}, CASE WHEN n <= :settled THEN 'MINED' ELSE 'SENT' END,
        CASE WHEN n <= :settled THEN n - :behind END, '0x00', CASE WHEN n <= :settled THEN now() END {_NUMBERS}""",
    f"""
    INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)
    SELECT hash, id, raw, 1, 1, 0 FROM transactions WHERE cluster = :cluster AND address = {_ADDRESS}""",  # noqa: S608  our own words
    """
    INSERT INTO effects (cluster, kind, subject, due_at, done_at)
    SELECT :cluster, 'account', '0x' || lpad(to_hex(n), 40, '0'), now(),
        CASE WHEN n > 5 THEN now() END FROM generate_series(1, 100000) AS n
    WHERE :settled + :active > 0""",
    """
    INSERT INTO blocks (cluster, number, hash)
    SELECT :cluster, n, '0x00' FROM generate_series(CAST(:settled AS int) - 128, CAST(:settled AS int)) AS n
    WHERE :active > 0""",
    f"""
    INSERT INTO events (cluster, job_id, name, details, state)
    SELECT :cluster, {_JOB_ID}, 'SlurmCompleted', '{{}}', 'ENDED' {_NUMBERS}""",
)
_INDEXES = """
    SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = indexname)"""


def fill(
    engine: Engine,
    cluster: str,
    settled: int = SETTLED,
    active: int = ACTIVE,
    behind: int = 0,
) -> None:
    """Insert the rows, and update the planner's statistics. The indexes are built after
    the rows, which is much faster.

    Each job has a block of its own. `behind` is subtracted from the numbers of these
    blocks, so that a chain that has just begun does not take them for its own.
    """
    with engine.begin() as connection:
        # The foreign keys are right; without this, Postgres would look up each one.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("SET LOCAL maintenance_work_mem = '256MB'"))
        indexes = list(connection.execute(text(_INDEXES)))
        for index in indexes:
            connection.exec_driver_sql(f'DROP INDEX "{index.indexname}"')
        for statement in _FILL:
            connection.execute(
                text(statement),
                {
                    "cluster": cluster,
                    "settled": settled,
                    "active": active,
                    "behind": behind,
                },
            )
        for index in indexes:
            connection.exec_driver_sql(index.indexdef)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
