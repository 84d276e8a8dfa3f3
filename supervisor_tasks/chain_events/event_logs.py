"""The events in the contracts' logs. A log that cannot be read does not hold up the
others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import ChainEvent, Contract, Unreadable
from supervisor_tasks.ledger.ledger import Ledger

log = structlog.get_logger()

ADVICE = "an event of ours may be missing: compare the contract's ABI, and `supervisor job show` with the contract"


def decode_logs(
    ledger: Ledger, contract: Contract, logs: Iterable[dict[str, Any]]
) -> list[ChainEvent]:
    """The events in the logs, in the chain's order. An alarm is raised for logs that
    cannot be read.
    """
    events, unreadable = contract.decode_events(logs)
    raise_unreadable_log_alarm(ledger, unreadable)
    return events


def raise_unreadable_log_alarm(
    ledger: Ledger, unreadable: Sequence[Unreadable]
) -> None:
    """Log each of these logs, and raise the alarm if there is one."""
    for entry in unreadable:
        log.error("chain_log_unreadable", **asdict(entry))
    if unreadable:
        about = asdict(unreadable[-1]) | {"advice": ADVICE}
        ledger.alarms.on(AlarmName.CHAIN_LOG_UNREADABLE, **about)
