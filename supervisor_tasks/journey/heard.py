"""Heard: what logs of the contracts say. One that cannot be read holds up nothing but itself."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import structlog

from supervisor_tasks.chain.contract import Contract, Happened
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.store import Ledger

log = structlog.get_logger()

ADVICE = "an event of ours may be missing: compare the contract's ABI, and `supervisor job` with the contract"


def heard(ledger: Ledger, contract: Contract, logs: Iterable[dict[str, Any]]) -> list[Happened]:
    """What the logs say, in their order. The operator is called for those that cannot be read."""
    happened, unreadable = contract.happened(logs)
    for entry in unreadable:
        log.error("chain_log_unreadable", **asdict(entry))
    if unreadable:
        about = asdict(unreadable[-1]) | {"advice": ADVICE}
        ledger.alarms.on(AlarmName.CHAIN_LOG_UNREADABLE, **about)
    return happened
