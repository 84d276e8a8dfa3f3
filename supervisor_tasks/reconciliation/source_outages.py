"""For how long sweeps have not seen a side, for example because its answer cannot be
read or a node rejects. Each sweep still succeeds with what it sees. So an alarm is
raised if the same side stays unseen.
"""

from collections.abc import Collection, Mapping

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.ledger import Ledger

UNSEEN_ALARM_AFTER_S = 3600.0


def unreachable_since(
    unseen: Collection[str], before: Mapping[str, float], now_s: float
) -> dict[str, float]:
    """Return since when (Unix time) each side has been unseen without a break. `before`
    is the result of the last sweep.
    """
    return {side: before.get(side, now_s) for side in unseen}


def update_unreachable_alarm(
    ledger: Ledger,
    unseen: Mapping[str, str],
    since_s: Mapping[str, float],
    now_s: float,
) -> None:
    """Raise the alarm for sides that have been unseen for an hour, until a sweep sees
    them. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    unseen_s = {
        side: round(now_s - began_s)
        for side, began_s in since_s.items()
        if now_s - began_s >= UNSEEN_ALARM_AFTER_S
    }
    if not unseen_s:
        ledger.alarms.off(AlarmName.RECONCILIATION_SOURCE_UNREACHABLE)
        return
    ledger.alarms.on(
        AlarmName.RECONCILIATION_SOURCE_UNREACHABLE,
        unseen_s=unseen_s,
        errors={side: unseen[side] for side in unseen_s},
        advice="sweeps find and mend nothing there: see the errors; `supervisor sweep run` looks again",
    )
