"""The query of a fleet probe. It does not use SQLAlchemy, because that import takes longer than the query."""

from dataclasses import dataclass

import psycopg

CONNECT_TIMEOUT_S = 5
_TICKS = "SELECT name, EXTRACT(EPOCH FROM now() - succeeded_at)::float8 FROM periodic_runs WHERE cluster = %s"
_OLDEST_DUE = """
    SELECT COALESCE(max(EXTRACT(EPOCH FROM now() - due_at)), 0)::float8 FROM effects
    WHERE cluster = %s AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL AND due_at <= now()"""


@dataclass(frozen=True, slots=True)
class VitalSigns:
    """The ages of a cluster's ticks by name, and for how long its oldest due effect has been due, in seconds."""

    ticks_s: dict[str, float]
    oldest_due_s: float


def vital_signs(url: str, cluster: str) -> VitalSigns:
    """Ask the database over a new connection. Raises psycopg.Error."""
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        ticks = connection.execute(_TICKS, (cluster,)).fetchall()
        (oldest_due_s,) = connection.execute(_OLDEST_DUE, (cluster,)).fetchall()[0]
    return VitalSigns(dict(ticks), oldest_due_s)
