"""The queries of `supervisor doctor` to the ledger's database that no other module
has.
"""

import secrets

from sqlalchemy import Engine, func, select, text

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.lock_names import TRIED

_VERSION = text("SHOW server_version")
_LAST_CALLBACK = text(
    """
    SELECT EXTRACT(EPOCH FROM now() - received_at)::float8 FROM callbacks
    WHERE cluster = :cluster ORDER BY id DESC LIMIT 1
    """
)
# By two indexes: a settled job of a ledger with millions is found without a look at all
# of them.
_LAST_CUSTOMER = text(
    """
    SELECT customer FROM (
        (SELECT customer, updated_at FROM jobs WHERE cluster = :cluster AND state <> 'SETTLED'
            AND slurm_id IS NOT NULL ORDER BY updated_at DESC LIMIT 1)
        UNION ALL
        (SELECT customer, updated_at FROM jobs WHERE cluster = :cluster AND state IN ('SETTLED', 'REFUSED')
            AND slurm_id IS NOT NULL ORDER BY updated_at DESC, job_id DESC LIMIT 1)
    ) AS latest ORDER BY updated_at DESC LIMIT 1
    """
)


def server_version(engine: Engine) -> str:
    """Return Postgres's version. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        return str(connection.scalar(_VERSION))


def keeps_sessions(engine: Engine) -> bool:
    """Whether a connection keeps its session of Postgres between two statements.
    Behind a pooler of transactions or statements, two connections get the same session,
    and so the same lock. Raises LedgerUnavailableError, when the database does not
    answer; a retry helps.
    """
    number = secrets.randbelow(2**31)
    with read_connection(engine) as one, read_connection(engine) as other:
        one.execute(select(func.pg_advisory_lock(TRIED, number)))
        got_again = other.scalar(select(func.pg_try_advisory_lock(TRIED, number)))
        if got_again:
            other.execute(select(func.pg_advisory_unlock(TRIED, number)))
        one.execute(select(func.pg_advisory_unlock(TRIED, number)))
    return not got_again


def last_callback_age_s(engine: Engine, cluster: str) -> float | None:
    """Return how many seconds ago the last callback came; None if none ever came.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        age_s: float | None = connection.scalar(_LAST_CALLBACK, {"cluster": cluster})
    return age_s


def last_customer(engine: Engine, cluster: str) -> str | None:
    """Return the customer of the job that was last in SLURM; None if there was none.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        found: str | None = connection.scalar(_LAST_CUSTOMER, {"cluster": cluster})
    return found
