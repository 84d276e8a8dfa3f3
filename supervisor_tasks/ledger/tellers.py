"""Who tells how jobs end: the process that plugins call, and the reporter that delivers the hooks' spool.

The process leaves signs of life of both, as ticks: when each was last heard, and since when without a gap.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, text

from supervisor_tasks.ledger.ticks import Ticks

CALLBACKS = "callbacks"
REPORTER = "reporter"
TELLERS = (CALLBACKS, REPORTER)
AWAY_S = 30.0  # signs come every few seconds

_BEGIN = text(
    """
    INSERT INTO ticks (cluster, name, succeeded_at)
    SELECT :cluster, :unbroken, now() WHERE NOT EXISTS (
        SELECT FROM ticks WHERE cluster = :cluster AND name = :name AND succeeded_at > now() - :away_s * interval '1 second'
    )
    ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now()
    """
)
_LAST = text(
    """
    INSERT INTO ticks (cluster, name, succeeded_at) VALUES (:cluster, :name, now())
    ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now()
    """
)


def unbroken_tick(name: str) -> str:
    """The name of the tick that tells since when there was no gap between somebody's signs of life."""
    return f"{name} without a gap"


def leave_signs(connection: Connection, cluster: str, names: Collection[str]) -> None:
    """These were heard just now."""
    for name in sorted(names):
        about = {"cluster": cluster, "name": name, "unbroken": unbroken_tick(name), "away_s": AWAY_S}
        connection.execute(_BEGIN, about)
        connection.execute(_LAST, about)


def forget_reporter(ticks: Ticks) -> None:
    """The site has no reporter any more: nobody waits for it until it is heard again."""
    for name in (REPORTER, unbroken_tick(REPORTER)):
        ticks.remove(name)


def away(ticks_s: Mapping[str, float]) -> dict[str, float | None]:
    """Who has not been heard lately, and for how long; None is that he never was. `ticks_s` are all ticks by their ages. A
    reporter that was never heard is none: plugins of the field need none.
    """
    wanted = [CALLBACKS, *({REPORTER} & ticks_s.keys())]
    return {name: ticks_s.get(name) for name in wanted if ticks_s.get(name, float("inf")) > AWAY_S}


def in_touch_s(ticks_s: Mapping[str, float]) -> float | None:
    """For how long all who tell of ends have been heard; None while one of them is not."""
    if away(ticks_s):
        return None
    return min(ticks_s.get(unbroken_tick(name), 0.0) for name in TELLERS if name in ticks_s)
