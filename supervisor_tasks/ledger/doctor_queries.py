"""The queries of `supervisor doctor` to the ledger's database that no other module
has.
"""

from sqlalchemy import Engine, text

from supervisor_tasks.ledger.database import read_connection

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
