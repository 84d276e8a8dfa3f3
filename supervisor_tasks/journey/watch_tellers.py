"""Watch who tells of ends: the operator is called when the process that plugins call, or the reporter, has been missed for a
while. A fleet that comes back after an outage gives them the time to come back too.
"""

from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.ledger.tellers import CALLBACKS, REPORTER, away

MISSED_S = 60.0
ADVICE = {
    CALLBACKS: "start the gRPC process, and see its log: LISTEN_ADDRESS, TLS_CERT, TLS_KEY",
    REPORTER: "start the reporter beside slurmctld, and see its log: the way to PUBLIC_ADDRESS, its certificate; where there is"
    " none any more, `supervisor forget-reporter`",
}


def watch_tellers(ledger: Ledger) -> None:
    """Call the operator for who is missed, until he is heard again."""
    missed = away(ledger.ticks.ages_s())
    Condition(ledger, AlarmName.CALLBACKS_AWAY, MISSED_S).update(
        bool(missed),
        silent_s={name: "never heard" if age_s is None else round(age_s) for name, age_s in missed.items()},
        advice="; ".join(ADVICE[name] for name in missed),
    )
