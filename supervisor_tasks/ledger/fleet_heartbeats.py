"""The query of a fleet probe. It does not use SQLAlchemy, because that import takes
longer than the query.
"""

from dataclasses import dataclass

import psycopg

from supervisor_tasks.connections.postgres_url import for_libpq

CONNECT_TIMEOUT_S = 5
_PERIODIC_RUNS = "SELECT name, EXTRACT(EPOCH FROM now() - succeeded_at)::float8 FROM periodic_runs WHERE cluster = %s"
# A customer with many jobs has two groups of them under way: the others wait although a
# worker takes effects of that kind. So a kind with a lease in force does not count.
_UNTAKEN = """
    SELECT COALESCE(max(EXTRACT(EPOCH FROM now() - due_at)), 0)::float8 FROM effects
    WHERE cluster = %s AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL AND due_at <= now()
        AND kind NOT IN (
            SELECT kind FROM effects
            WHERE cluster = %s AND done_at IS NULL AND parked_at IS NULL AND lease_until > now()
        )"""

# A fleet leaves periodic runs, cursors and an instance tag. `jobs` finds the clusters of a
# ledger whose fleet never ran again (it is read by jumps over its primary key, not as a
# whole). What operators write (switches, facts, benchmark runs) does not count: a
# mistyped name must not make a cluster.
KNOWN_CLUSTERS = """
    WITH RECURSIVE of_jobs AS (
        (SELECT cluster FROM jobs ORDER BY cluster LIMIT 1)
        UNION ALL
        SELECT (SELECT jobs.cluster FROM jobs WHERE jobs.cluster > of_jobs.cluster ORDER BY jobs.cluster LIMIT 1)
        FROM of_jobs WHERE of_jobs.cluster IS NOT NULL
    )
    SELECT cluster FROM of_jobs WHERE cluster IS NOT NULL
    UNION SELECT cluster FROM periodic_runs UNION SELECT cluster FROM cursors UNION SELECT cluster FROM instance_tags
    ORDER BY cluster"""


@dataclass(frozen=True, slots=True)
class FleetHeartbeats:
    """The heartbeats of a cluster's fleet: the ages of its periodic runs in seconds, by
    name, and for how many seconds an effect has been due of a kind that no worker is
    at. `clusters` are those whose fleet has worked with this ledger.
    """

    periodic_run_ages_s: dict[str, float]
    untaken_s: float
    clusters: list[str]


def read_fleet_heartbeats(url: str, cluster: str) -> FleetHeartbeats:
    """Ask the database over a new connection. Raises psycopg.Error, when it does not
    answer or rejects the login; a retry helps when that has changed.
    """
    with psycopg.connect(
        for_libpq(url), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
    ) as connection:
        runs = connection.execute(_PERIODIC_RUNS, (cluster,)).fetchall()
        (untaken_s,) = connection.execute(_UNTAKEN, (cluster, cluster)).fetchall()[0]
        clusters = [name for (name,) in connection.execute(KNOWN_CLUSTERS).fetchall()]
    return FleetHeartbeats(dict(runs), untaken_s, clusters)
