"""Old rows: what the ledger still needs stays, and the rest is deleted in small
batches.

A job is deleted as a whole, with its events, effects, callbacks and transactions, so no
query ever sees half of it. docs/explanation/retention.md has the rules.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, text

from supervisor_tasks.ledger.benchmarks import MAX_ENDED_RUNS, MAX_MEASURED_VALUES
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.registrations import REGISTRATION_RECORD
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.ledger.switches import Switches
from supervisor_tasks.ledger.tables import IS_OPEN

SCRIPTS_KEPT_DAYS = 7
BATCH_ROWS = 200  # jobs, or other rows, in one transaction
PASS_S = 20.0  # for the batches of one call
PASS_JOBS = 5000  # for the jobs of one call
# benchmark runs that the registration reads, of any age
RUNS_KEPT = max(MAX_MEASURED_VALUES, MAX_ENDED_RUNS)

# A reorganisation goes no deeper than the first block whose hash is kept. Without one,
# nothing counts as final.
_FIRST_KEPT_BLOCK = "(SELECT min(number) FROM blocks WHERE cluster = :cluster)"
_UNNAMED = """
    NOT EXISTS (SELECT FROM alarms WHERE cluster = :cluster AND strpos(details::text, jobs.job_id) > 0)
    AND NOT EXISTS (
        SELECT FROM (SELECT previous_doubts FROM reconciliations WHERE cluster = :cluster ORDER BY id DESC LIMIT 1) AS last
        WHERE strpos(last.previous_doubts::text, jobs.job_id) > 0
    )
"""
# Of a transaction: it is mined or replaced below the last block that can be lost, and
# is not the one from which the wallet takes its next nonce. The highest nonce is one
# look into an index; for `EXISTS (... a higher one)` Postgres reads the table from its
# beginning until it meets one.
_OVER = f"""
    transactions.done_at IS NOT NULL AND COALESCE(transactions.block_number, 0) < {_FIRST_KEPT_BLOCK}
    AND transactions.nonce < (
        SELECT max(nonce) FROM transactions AS later
        WHERE later.chain_id = transactions.chain_id AND later.address = transactions.address
    )
"""  # noqa: S608  only constants
_QUIET = f"""
    NOT ({IS_OPEN}) AND jobs.last_event_block < {_FIRST_KEPT_BLOCK} AND jobs.reorg_deadline_block IS NULL
    AND NOT EXISTS (
        SELECT FROM effects WHERE effects.cluster = jobs.cluster AND effects.job_id = jobs.job_id AND done_at IS NULL
    )
    AND NOT EXISTS (
        SELECT FROM callbacks
        WHERE callbacks.cluster = jobs.cluster AND callbacks.job_id = jobs.job_id AND read_at IS NULL
    )
    AND NOT EXISTS (
        SELECT FROM foreign_claims
        WHERE foreign_claims.cluster = jobs.cluster AND foreign_claims.job_id = jobs.job_id
    )
    AND {_UNNAMED}
"""  # noqa: S608  only constants


def _drop_scripts(state: str) -> TextClause:
    return text(
        f"""
        UPDATE jobs SET script = NULL WHERE (cluster, job_id) IN (
            SELECT cluster, job_id FROM jobs
            WHERE cluster = :cluster AND state = '{state}' AND script IS NOT NULL
                AND updated_at < now() - make_interval(days => :days) AND {_QUIET}
            ORDER BY updated_at LIMIT :most FOR UPDATE OF jobs SKIP LOCKED
        )
        """  # noqa: S608  only constants
    )


# One statement for each state: each has an index of its own (jobs_settled_with_script,
# jobs_by_state).
_SCRIPTS = tuple(map(_drop_scripts, ("SETTLED", "REFUSED")))
_OLD_JOBS = text(
    f"""
    SELECT job_id FROM jobs
    WHERE cluster = :cluster AND state IN ('SETTLED', 'REFUSED')
        AND updated_at < now() - make_interval(days => :days) AND {_QUIET}
        AND NOT EXISTS (
            SELECT FROM transactions
            WHERE transactions.cluster = jobs.cluster AND transactions.job_id = jobs.job_id
                AND COALESCE({_OVER}, false) IS FALSE
        )
    ORDER BY updated_at LIMIT :most FOR UPDATE OF jobs SKIP LOCKED
    """  # noqa: S608  only constants
)
_OLD = text(
    """
    SELECT
        (SELECT count(*) FROM jobs WHERE cluster = :cluster AND state = 'SETTLED' AND script IS NOT NULL
            AND updated_at < now() - make_interval(days => :script_days))
        + (SELECT count(*) FROM jobs WHERE cluster = :cluster AND state = 'REFUSED' AND script IS NOT NULL
            AND updated_at < now() - make_interval(days => :script_days)) AS scripts,
        (SELECT count(*) FROM jobs WHERE cluster = :cluster AND state IN ('SETTLED', 'REFUSED') AND :days > 0
            AND updated_at < now() - make_interval(days => :days)) AS jobs
    """
)
# jobs last: effects refer to them
_OF_JOBS = ("effects", "events", "callbacks", "transactions", "jobs")
_LOOSE_TRANSACTIONS = text(
    f"""
    DELETE FROM transactions WHERE id IN (
        SELECT id FROM transactions
        WHERE cluster = :cluster AND job_id IS NULL AND done_at < now() - make_interval(days => :days) AND {_OVER}
            AND NOT EXISTS (
                SELECT FROM facts WHERE facts.cluster = :cluster AND facts.name = '{REGISTRATION_RECORD.name}'
                    AND facts.value::jsonb ->> 'idempotency_key' = transactions.idempotency_key
            )
        ORDER BY done_at LIMIT :most FOR UPDATE OF transactions SKIP LOCKED
    )
    """  # noqa: S608  only constants
)
# The first ones are the oldest: no look at those that stay.
_RECONCILIATIONS = text(
    """
    DELETE FROM reconciliations WHERE id IN (
        SELECT id FROM (
            SELECT id, finished_at FROM reconciliations WHERE cluster = :cluster ORDER BY id LIMIT :most
        ) AS first
        WHERE finished_at < now() - make_interval(days => :days)
            AND id < (SELECT max(id) FROM reconciliations WHERE cluster = :cluster)
    )
    """
)
_INCIDENTS = text(
    """
    DELETE FROM alarm_incidents WHERE id IN (
        SELECT id FROM alarm_incidents AS incident
        WHERE cluster = :cluster AND closed_at < now() - make_interval(days => :days)
            AND NOT EXISTS (SELECT FROM alarm_messages WHERE incident_id = incident.id AND done_at IS NULL)
        ORDER BY id LIMIT :most
    )
    """
)
_BENCHMARK_RUNS = text(
    """
    WITH old AS (
        SELECT id FROM benchmark_runs
        WHERE cluster = :cluster AND ended_at < now() - make_interval(days => :days) AND id <= (
            SELECT id FROM benchmark_runs WHERE cluster = :cluster ORDER BY id DESC OFFSET :kept LIMIT 1
        )
        ORDER BY id LIMIT :most
    ), done AS (
        DELETE FROM effects WHERE cluster = :cluster AND kind = 'benchmark' AND subject IN (SELECT id::text FROM old)
    )
    DELETE FROM benchmark_runs WHERE id IN (SELECT id FROM old)
    """
)
Deletion = Callable[[Connection], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one call has deleted: rows by table (and `scripts`). `left`: it ended before
    all was done. `paused_for`: why the operator has paused the deletion of the rest; None
    if he has not.
    """

    rows: Mapping[str, int]
    left: bool
    paused_for: str | None = None


@dataclass(frozen=True, slots=True)
class OldRows:
    """How many scripts and jobs are old enough to be deleted. Some of them may still be
    needed, and stay.
    """

    scripts: int
    jobs: int


class Retention:
    """The old rows of one cluster. `days` is how long rows are kept after their end; 0:
    for ever. Its methods raise LedgerUnavailableError, when the database does not
    answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str, days: int) -> None:
        self._engine = engine
        self._cluster = cluster
        self._days = days
        self._switches = Switches(engine, cluster)

    def paused_for(self) -> str | None:
        """Why the operator has paused the deletion of old rows; None if he has not."""
        return self._switches.reason(Switch.RETENTION_PAUSED)

    def old(self) -> OldRows:
        """Count what is old enough to be deleted. Raises LedgerUnavailableError; a
        retry helps.
        """
        where = {
            "cluster": self._cluster,
            "script_days": SCRIPTS_KEPT_DAYS,
            "days": self._days,
        }
        with read_connection(self._engine) as connection:
            return OldRows(*connection.execute(_OLD, where).one())

    def delete(self, goes_on: Callable[[], bool]) -> Deleted:
        """Delete old rows in small transactions, until none is left, PASS_S or
        PASS_JOBS is reached, or `goes_on` returns False. Another call continues. Once
        the operator pauses deletions, it deletes nothing more.
        """
        deleted, until_s = Counter[str](), time.monotonic() + PASS_S
        for deletion in self._deletions():
            rows = self._one_batch(deletion)
            while any(rows.values()):
                deleted.update(rows)
                if (
                    time.monotonic() > until_s
                    or deleted["jobs"] >= PASS_JOBS
                    or not goes_on()
                ):
                    return Deleted(deleted, left=True)
                rows = self._one_batch(deletion)
        return Deleted(deleted, left=False, paused_for=self.paused_for())

    def _one_batch(self, deletion: Deletion) -> Mapping[str, int]:
        if self.paused_for() is not None:
            return {}
        with self._engine.begin() as connection:
            return deletion(connection)

    def _deletions(self) -> Iterator[Deletion]:
        for statement in _SCRIPTS:
            yield self._statement("scripts", statement, days=SCRIPTS_KEPT_DAYS)
        if self._days:
            yield self._jobs
            yield self._statement("transactions", _LOOSE_TRANSACTIONS, days=self._days)
            yield self._statement("reconciliations", _RECONCILIATIONS, days=self._days)
            yield self._statement("alarm_incidents", _INCIDENTS, days=self._days)
            yield self._statement(
                "benchmark_runs", _BENCHMARK_RUNS, days=self._days, kept=RUNS_KEPT
            )

    def _statement(
        self, what: str, statement: TextClause, **parameters: Any
    ) -> Deletion:
        where = {"cluster": self._cluster, "most": BATCH_ROWS, **parameters}
        return lambda connection: {what: connection.execute(statement, where).rowcount}

    def _jobs(self, connection: Connection) -> Mapping[str, int]:
        where = {"cluster": self._cluster, "most": BATCH_ROWS, "days": self._days}
        job_ids = list(connection.scalars(_OLD_JOBS, where))
        if not job_ids:
            return {}
        return {
            table: _delete_of(connection, table, self._cluster, job_ids)
            for table in _OF_JOBS
        }


def _delete_of(
    connection: Connection, table: str, cluster: str, job_ids: list[str]
) -> int:
    statement = text(
        f"DELETE FROM {table} WHERE cluster = :cluster AND job_id = ANY(:job_ids)"  # noqa: S608
    )
    return connection.execute(
        statement, {"cluster": cluster, "job_ids": job_ids}
    ).rowcount
