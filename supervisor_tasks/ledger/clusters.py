"""Which clusters the ledger knows: those that a fleet has worked for."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine, text

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.fleet_heartbeats import KNOWN_CLUSTERS
from supervisor_tasks.ledger.tables import IS_OPEN

_SUMMARY = text(
    f"""
    SELECT
        (SELECT count(*) FROM jobs WHERE cluster = :cluster AND {IS_OPEN}) AS open_jobs,
        (SELECT count(*) FROM alarms WHERE cluster = :cluster) AS alarms,
        (SELECT max(succeeded_at) FROM periodic_runs WHERE cluster = :cluster) AS heard_at,
        ARRAY(SELECT name FROM switches WHERE cluster = :cluster ORDER BY name) AS switches
    """  # noqa: S608  our own words
)


_IS_AT_WORK = text(
    """
    SELECT EXISTS (
        SELECT FROM periodic_runs
        WHERE cluster = :cluster AND succeeded_at > now() - make_interval(secs => :at_work_s)
    )
    """
)
AT_WORK = timedelta(seconds=60)  # a fleet whose last run is younger is at work


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A cluster in one line: its jobs that are neither settled nor given back, its
    alarms, when its fleet last worked, its switches.
    """

    cluster: str
    open_jobs: int
    alarms: int
    last_run_at: datetime | None
    switches: list[str]


def known_clusters(engine: Engine) -> list[str]:
    """The names of the clusters that the ledger knows. Raises LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        return list(connection.scalars(text(KNOWN_CLUSTERS)))


def summary(engine: Engine, cluster: str) -> ClusterSummary:
    """The line of one cluster. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        row = connection.execute(_SUMMARY, {"cluster": cluster}).one()
    return ClusterSummary(
        cluster, row.open_jobs, row.alarms, row.heard_at, list(row.switches)
    )


def is_at_work(engine: Engine, cluster: str) -> bool:
    """Whether the fleet of a cluster has done periodic work in the last minute. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    parameters = {"cluster": cluster, "at_work_s": AT_WORK.total_seconds()}
    with read_connection(engine) as connection:
        return bool(connection.scalar(_IS_AT_WORK, parameters))
