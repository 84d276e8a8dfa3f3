"""Watch the processes that report the ends of jobs: the gRPC process, which plugins
call, and the reporters.

One of them is missing when its last heartbeat is HEARTBEAT_MISSING_AFTER_S
old. An alarm is raised when the worker has seen that for MISSED_S. After an outage of
the fleet they have that time to come back.
"""

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.heartbeats import missing_sources
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS

MISSED_S = 60.0
START_GRPC_PROCESS = (
    "start the gRPC process, and see its log: LISTEN_ADDRESS, TLS_CERT, TLS_KEY"
)
START_REPORTER = (
    "start the reporter beside slurmctld, on the node that `silent_s` names, and see its log: whether it reaches"
    " PUBLIC_ADDRESS, its certificate; if the site has no reporter there any more, `supervisor reporter disable NODE`"
)


def update_heartbeat_alarm(ledger: Ledger) -> None:
    """Raise the alarm while a source is missing, and end it when all heartbeats are
    back.
    """
    missed = missing_sources(ledger.periodic_runs.ages_s())
    advice = []
    if CALLBACKS in missed:
        advice.append(START_GRPC_PROCESS)
    if missed.keys() - {CALLBACKS}:
        advice.append(START_REPORTER)
    Condition(ledger, AlarmName.CALLBACK_HEARTBEAT_MISSING, MISSED_S).update(
        bool(missed),
        silent_s={
            name: "no heartbeat yet" if age_s is None else round(age_s)
            for name, age_s in missed.items()
        },
        advice="; ".join(advice),
    )
