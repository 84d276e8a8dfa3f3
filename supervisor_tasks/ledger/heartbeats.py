"""Heartbeats of the sources that report how jobs end.

These are the gRPC process that plugins call, and the reporters. Each host of slurmctld
has a spool of the hooks, and a reporter that delivers it. The gRPC process stores the
heartbeats of all as periodic runs: when the last one came, and since when they have come
without a gap.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from supervisor_tasks.ledger.periodic_run_names import (
    CALLBACKS,
    CLOCK_TOLERANCE_S,
    since_end_s,
)

if TYPE_CHECKING:
    from supervisor_tasks.ledger.periodic_runs import PeriodicRuns

REPORTER = "reporter"  # one that names no node, as those of earlier releases
# At a site without a key, any caller can name a node that does not exist.
MAX_REPORTERS = 8
HEARTBEAT_MISSING_AFTER_S = 30.0  # heartbeats come every few seconds

_NODE = re.compile("[A-Za-z0-9._-]{1,64}")  # a host name
# The names of the reporters' periodic runs, for Python and for Postgres. The runs of
# `continuous_since_key` are not among them.
_REPORTERS = "^reporter( [^ ]+)?$"

# In the form of the driver, because the gRPC process does not use SQLAlchemy.
_BEAT = """
    WITH room AS (
        SELECT WHERE %(name)s !~ %(reporters)s
            OR EXISTS (SELECT FROM periodic_runs WHERE cluster = %(cluster)s AND name = %(name)s)
            OR %(most)s > (SELECT count(*) FROM periodic_runs WHERE cluster = %(cluster)s AND name ~ %(reporters)s)
    ), begun AS (
        INSERT INTO periodic_runs (cluster, name, succeeded_at)
        SELECT %(cluster)s, %(unbroken)s, now() FROM room WHERE NOT EXISTS (
            SELECT FROM periodic_runs
            WHERE cluster = %(cluster)s AND name = %(name)s
                AND succeeded_at > now() - %(missing_after_s)s * interval '1 second'
                AND succeeded_at <= now() + %(tolerance_s)s * interval '1 second'
        )
        ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now()
    )
    INSERT INTO periodic_runs (cluster, name, succeeded_at) SELECT %(cluster)s, %(name)s, now() FROM room
    ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now()
    """
# A reporter names its node after an upgrade: its former run would be missing for ever.
_FORGET_UNNAMED = "DELETE FROM periodic_runs WHERE cluster = %(cluster)s AND name IN (%(name)s, %(unbroken)s)"


def reporter_of(node: str) -> str:
    """The source that is the reporter of a node; REPORTER if that is no host name."""
    if _NODE.fullmatch(node) is None:
        return REPORTER
    return f"{REPORTER} {node}"


def known_reporters(periodic_run_ages_s: Mapping[str, float]) -> list[str]:
    """The reporters that have ever sent a heartbeat, and that the operator has not
    disabled since.
    """
    return sorted(name for name in periodic_run_ages_s if re.match(_REPORTERS, name))


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
    """Store that heartbeats of these sources came just now. Of the reporters, the first
    MAX_REPORTERS count. `execute` is the driver's function. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    for name in sorted(names):
        about = {
            "cluster": cluster,
            "name": name,
            "unbroken": continuous_since_key(name),
            "missing_after_s": HEARTBEAT_MISSING_AFTER_S,
            "tolerance_s": CLOCK_TOLERANCE_S,
            "reporters": _REPORTERS,
            "most": MAX_REPORTERS,
        }
        execute(_BEAT, about)
    if set(names) - {CALLBACKS, REPORTER}:
        about = {"cluster": cluster, "name": REPORTER}
        execute(_FORGET_UNNAMED, about | {"unbroken": continuous_since_key(REPORTER)})


def delete_reporter_heartbeats(
    periodic_runs: "PeriodicRuns", reporters: Collection[str]
) -> None:
    """Delete the runs of these reporters: the site does not have them any more. One
    counts again from its next heartbeat. Raises LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """
    for name in reporters:
        periodic_runs.remove(name)
        periodic_runs.remove(continuous_since_key(name))


def missing_sources(
    periodic_run_ages_s: Mapping[str, float],
) -> dict[str, float | None]:
    """The sources without a recent heartbeat, and the seconds since the last one; None
    if it never came.

    `periodic_run_ages_s` holds the ages of all periodic runs. A reporter that never sent a heartbeat is
    left out: plugins do not need one.
    """
    return {
        name: periodic_run_ages_s.get(name)
        for name in (CALLBACKS, *known_reporters(periodic_run_ages_s))
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
        for name in (CALLBACKS, *known_reporters(periodic_run_ages_s))
    )
