"""One RPC endpoint alone does not begin a job: a second one must show the same events in the same transaction's
receipt.

A lying node can invent a log at no cost. With a claim that never happened, or another provider's claim, this provider
would run a job that is not paid. An endpoint that answers and does not show the event holds the job back without a time
limit, and an alarm is raised. An endpoint that does not answer holds it back for PATIENCE_S; then one endpoint
alone is believed, and an alarm is raised.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from supervisor_tasks.chain.contract import ChainEvent, Contract
from supervisor_tasks.chain.rpc.client import RpcError
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.jobs.events import CancelRequested, Claimed, ToppedUp
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.ledger import Ledger

log = structlog.get_logger()

AGREEING = 2  # endpoints must show an event
PATIENCE_S = 30.0  # with endpoints that do not answer
DISAGREE_S = 60.0  # a node that is only behind disagrees for less
ADVICE = (
    "not all endpoints show these events: find out which one is wrong, and take it out of METASCHEDULER_ENDPOINT_RPC"
)
ALONE_ADVICE = (
    "one endpoint alone begins jobs, and could invent them: mend the others; off when two agree about an event"
)

Events = dict[str, set[ChainEvent]]  # by the transaction's hash


def unconfirmed(ledger: Ledger, contract: Contract, happened: Iterable[ChainEvent]) -> set[str]:
    """The hashes of the transactions whose events no second endpoint shows; empty when there is only one endpoint. Each
    endpoint gets one request for all transactions together.
    """
    wanted = _by_transaction(happened)
    endpoints = contract.rpc
    if not isinstance(endpoints, Endpoints) or endpoints.number < AGREEING or not wanted:
        return set()
    hashes = sorted(wanted)
    said = endpoints.each([("eth_getTransactionReceipt", (tx_hash,)) for tx_hash in hashes])
    shown = {name: _shown(contract, hashes, answers) for name, answers in said.items()}
    missing = {tx_hash for tx_hash in hashes if _agreeing(tx_hash, wanted, shown) < AGREEING}
    has_second = len(said) >= AGREEING
    if missing and not has_second and endpoints.alone_for_s() > PATIENCE_S:
        _alarm_of_one_endpoint(ledger, endpoints, sorted(said), missing)
        return set()
    if has_second and not missing:
        ledger.alarms.off(AlarmName.EVENTS_FROM_ONE_ENDPOINT)
    _report(ledger, missing, wanted, shown)
    return missing


def _by_transaction(happened: Iterable[ChainEvent]) -> Events:
    """The events that begin or change work, by transaction. Transitions only report its result."""
    found = Events()
    for entry in happened:
        if isinstance(entry.event, Claimed | ToppedUp | CancelRequested):
            found.setdefault(entry.tx_hash, set()).add(entry)
    return found


def _shown(contract: Contract, hashes: Sequence[str], receipts: Sequence[Any]) -> Events:
    """The events that an endpoint's receipts show."""
    found = Events()
    for tx_hash, receipt in zip(hashes, receipts, strict=True):
        if receipt is not None and not isinstance(receipt, RpcError):
            found[tx_hash] = set(contract.decode_events(receipt["logs"])[0])
    return found


def _agreeing(tx_hash: str, wanted: Events, shown: Mapping[str, Events]) -> int:
    return sum(wanted[tx_hash] <= events.get(tx_hash, set()) for events in shown.values())


def _alarm_of_one_endpoint(
    ledger: Ledger, endpoints: Endpoints, answering: Sequence[str], missing: Collection[str]
) -> None:
    advice = {"answers": answering, "of": endpoints.number, "advice": ALONE_ADVICE}
    ledger.alarms.on(AlarmName.EVENTS_FROM_ONE_ENDPOINT, **advice)
    log.warning("events_taken_from_one_endpoint", transactions=len(missing), first=min(missing))


def _report(ledger: Ledger, missing: set[str], wanted: Events, shown: Mapping[str, Events]) -> None:
    """Call the operator when endpoints that answer have disagreed about one transaction for DISAGREE_S."""
    if not missing or len(shown) < AGREEING:
        return
    condition = Condition(ledger, AlarmName.ENDPOINTS_DISAGREE, DISAGREE_S)
    known = condition.duration.subject()
    doubted = known if known in missing else min(missing)
    shown_by = [name for name, events in shown.items() if wanted[doubted] <= events.get(doubted, set())]
    condition.update(
        True,
        doubted,
        transactions=len(missing),
        first=doubted,
        shown_by=shown_by,
        not_shown_by=[name for name in shown if name not in shown_by],
        advice=ADVICE,
    )
