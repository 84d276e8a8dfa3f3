"""Heartbeats of the two sources that report how jobs end.

These are the gRPC process that plugins call, and the reporter that delivers the hooks'
spool. The gRPC process stores the heartbeats of both as periodic runs: when the last one came,
and since when they have come without a gap.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from supervisor_tasks.ledger.periodic_run_names import CALLBACKS, since_end_s

if TYPE_CHECKING:
    from supervisor_tasks.ledger.periodic_runs import PeriodicRuns

REPORTER = "reporter"
HEARTBEAT_SOURCES = (CALLBACKS, REPORTER)
HEARTBEAT_MISSING_AFTER_S = 30.0  # heartbeats come every few seconds

# In the form of the driver, because the gRPC process does not use SQLAlchemy.
_BEAT = """
    WITH begun AS (
        INSERT INTO periodic_runs (cluster, name, succeeded_at)
        SELECT %(cluster)s, %(unbroken)s, now() WHERE NOT EXISTS (
            SELECT FROM periodic_runs
            WHERE cluster = %(cluster)s AND name = %(name)s
                AND succeeded_at > now() - %(missing_after_s)s * interval '1 second'
        )
        ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now()
    )
    INSERT INTO periodic_runs (cluster, name, succeeded_at) VALUES (%(cluster)s, %(name)s, now())
    ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now()
    """


def continuous_since_key(name: str) -> str:
    """The name of the periodic run that holds since when the heartbeats of a source have had no
    gap.
    """
    return f"{name} without a gap"


def record_heartbeats(
    execute: Callable[[str, dict[str, Any]], object],
    cluster: str,
    names: Collection[str],
) -> None:
    """Store that heartbeats of these sources came just now. `execute` is the driver's
    function. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    for name in sorted(names):
        about = {
            "cluster": cluster,
            "name": name,
            "unbroken": continuous_since_key(name),
            "missing_after_s": HEARTBEAT_MISSING_AFTER_S,
        }
        execute(_BEAT, about)


def delete_reporter_heartbeat(periodic_runs: "PeriodicRuns") -> None:
    """Delete the runs of the reporter: the site has none any more. It counts again from
    its next heartbeat. Raises LedgerUnavailableError, when the database does not
    answer; a retry helps.
    """
    for name in (REPORTER, continuous_since_key(REPORTER)):
        periodic_runs.remove(name)


def missing_sources(
    periodic_run_ages_s: Mapping[str, float],
) -> dict[str, float | None]:
    """The sources without a recent heartbeat, and the seconds since the last one; None
    if it never came.

    `periodic_run_ages_s` holds the ages of all periodic runs. A reporter that never sent a heartbeat is
    left out: plugins do not need one.
    """
    expected = [CALLBACKS]
    if REPORTER in periodic_run_ages_s:
        expected.append(REPORTER)
    return {
        name: periodic_run_ages_s.get(name)
        for name in expected
        if since_end_s(periodic_run_ages_s, name) > HEARTBEAT_MISSING_AFTER_S
    }


def continuous_uptime_s(periodic_run_ages_s: Mapping[str, float]) -> float | None:
    """For how many seconds the heartbeats of all sources have come without a gap; None
    while one is missing.
    """
    if missing_sources(periodic_run_ages_s):
        return None
    return min(
        periodic_run_ages_s.get(continuous_since_key(name), 0.0)
        for name in HEARTBEAT_SOURCES
        if name in periodic_run_ages_s
    )
