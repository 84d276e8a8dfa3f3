"""What this database and its server show of the fleets of other ledgers."""

from sqlalchemy import Engine, func, select, text

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.driver import PROCESS
from supervisor_tasks.ledger.tables import INSTANCE_TAGS, PERIODIC_RUNS

_CONNECTED = text(
    "SELECT datname, count(*) AS connections FROM pg_stat_activity"
    " WHERE starts_with(application_name, :prefix) AND datname <> current_database() GROUP BY datname ORDER BY datname"
).bindparams(prefix=f"{PROCESS} ")


def last_runs(engine: Engine, cluster: str, tag: bytes) -> dict[str, float]:
    """For the other clusters of this database with an instance tag: how many seconds
    ago their fleets last worked. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    age = func.extract(
        "epoch", func.now() - func.max(PERIODIC_RUNS.c.succeeded_at)
    ).label("age_s")
    query = (
        select(INSTANCE_TAGS.c.cluster, age)
        .join(PERIODIC_RUNS, PERIODIC_RUNS.c.cluster == INSTANCE_TAGS.c.cluster)
        .where(INSTANCE_TAGS.c.tag == tag, INSTANCE_TAGS.c.cluster != cluster)
        .group_by(INSTANCE_TAGS.c.cluster)
    )
    with read_connection(engine) as connection:
        return {row.cluster: float(row.age_s) for row in connection.execute(query)}


def connected_fleets(engine: Engine) -> dict[str, int]:
    """The other databases of this server that fleets are connected to, each with the
    number of their connections. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        return dict(connection.execute(_CONNECTED).all())
