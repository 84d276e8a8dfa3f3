"""Which clusters the ledger knows: those that a fleet has worked for."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, text

from supervisor_tasks.ledger.database import read_connection

# A fleet leaves ticks, cursors and an instance tag. `jobs` finds the clusters of a ledger whose fleet never ran again
# (it is read by jumps over its primary key, not as a whole). What operators write (switches, facts, benchmark runs)
# does not count: a mistyped name must not make a cluster.
_KNOWN = text(
    """
    WITH RECURSIVE of_jobs AS (
        (SELECT cluster FROM jobs ORDER BY cluster LIMIT 1)
        UNION ALL
        SELECT (SELECT jobs.cluster FROM jobs WHERE jobs.cluster > of_jobs.cluster ORDER BY jobs.cluster LIMIT 1)
        FROM of_jobs WHERE of_jobs.cluster IS NOT NULL
    )
    SELECT cluster FROM of_jobs WHERE cluster IS NOT NULL
    UNION SELECT cluster FROM periodic_runs UNION SELECT cluster FROM cursors UNION SELECT cluster FROM instance_tags
    ORDER BY cluster
    """
)
_SUMMARY = text(
    """
    SELECT
        (SELECT count(*) FROM jobs WHERE cluster = :cluster AND state <> 'SETTLED') AS open_jobs,
        (SELECT count(*) FROM alarms WHERE cluster = :cluster) AS alarms,
        (SELECT max(succeeded_at) FROM periodic_runs WHERE cluster = :cluster) AS heard_at,
        ARRAY(SELECT name FROM switches WHERE cluster = :cluster ORDER BY name) AS switches
    """
)


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A cluster in one line: its jobs that are not settled, its alarms, when its fleet was heard, the switches set."""

    cluster: str
    open_jobs: int
    alarms: int
    heard_at: datetime | None
    switches: list[str]


def known_clusters(engine: Engine) -> list[str]:
    """The names of the clusters that the ledger knows."""
    with read_connection(engine) as connection:
        return list(connection.scalars(_KNOWN))


def summary(engine: Engine, cluster: str) -> ClusterSummary:
    """The line of one cluster."""
    with read_connection(engine) as connection:
        row = connection.execute(_SUMMARY, {"cluster": cluster}).one()
    return ClusterSummary(cluster, row.open_jobs, row.alarms, row.heard_at, list(row.switches))
