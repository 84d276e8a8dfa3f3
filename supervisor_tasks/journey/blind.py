"""For how long sweeps have not seen a side: an answer that cannot be read, a node that refuses. Each sweep succeeds all the
same, with what it sees; so the operator is called when it is always the same side.
"""

from collections.abc import Collection, Mapping

from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.store import Ledger

BLIND_S = 3600.0


def blind_since(unseen: Collection[str], before: Mapping[str, float], now_s: float) -> dict[str, float]:
    """Since when (Unix time) each side has been unseen without a break; `before` is what the last sweep knew of that."""
    return {side: before.get(side, now_s) for side in unseen}


def alarm_of_blindness(ledger: Ledger, unseen: Mapping[str, str], since_s: Mapping[str, float], now_s: float) -> None:
    """Call the operator for sides that have been unseen for an hour, until they are seen."""
    long = {side: round(now_s - began_s) for side, began_s in since_s.items() if now_s - began_s >= BLIND_S}
    if not long:
        ledger.alarms.off(AlarmName.SWEEP_BLIND)
        return
    ledger.alarms.on(
        AlarmName.SWEEP_BLIND,
        unseen_s=long,
        errors={side: unseen[side] for side in long},
        advice="sweeps find and mend nothing there: see the errors; `supervisor sweep` looks again",
    )
