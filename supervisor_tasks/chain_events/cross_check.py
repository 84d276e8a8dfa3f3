"""With two RPC endpoints or more, a job begins or ends when two of them show the same
events in a transaction's receipt, or the same status on the contract.

A lying node can invent a log at no cost. With a claim that never happened, or another
provider's claim, this provider would run a job that is not paid. With an end that never
happened, the provider would cancel a customer's job, and report nothing of it. If two
endpoints or more answer, and fewer than two show this, the job waits without a time
limit, and the worker raises an alarm. If only one endpoint answers, the job waits for
PATIENCE_S; then the worker believes this endpoint alone, and raises an alarm.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import ChainEvent, Contract
from supervisor_tasks.chain.rpc.client import RpcError
from supervisor_tasks.chain.rpc.endpoint_health import (
    MIN_AGREEING_ENDPOINTS,
    PATIENCE_S,
)
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    Claimed,
    ToppedUp,
)
from supervisor_tasks.jobs.model import ChainStatus, JobId, is_final
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.ledger import Ledger

log = structlog.get_logger()

DISAGREE_S = 60.0  # a node that is only behind disagrees for less
ADVICE = "not all endpoints show this: find out which one is wrong, and take it out of METASCHEDULER_ENDPOINT_RPC"
ALONE_ADVICE = (
    "jobs begin and end on the events of one endpoint, which could invent them: repair the others, or take them out of"
    " METASCHEDULER_ENDPOINT_RPC"
)

# an event, or a job's status with its provider
Fact = ChainEvent | tuple[ChainStatus, str]
Facts = dict[str, set[Fact]]  # by the transaction's hash, or by the job


def unconfirmed_transactions(
    ledger: Ledger, contract: Contract, events: Iterable[ChainEvent], *, by: str
) -> set[str]:
    """The hashes of the transactions whose events no second endpoint shows; empty when
    there is only one endpoint. Each endpoint gets one request for all transactions
    together. `by` names the work that asks: each has its own duration of a disagreement,
    because each asks about other transactions and jobs.
    """
    endpoints = _several_endpoints(contract)
    if endpoints is None:
        return set()
    wanted = _by_transaction(ledger, events)
    if not wanted:
        return set()
    shown = _shown_by_endpoints(contract, endpoints, sorted(wanted))
    return _unconfirmed(ledger, endpoints, wanted, shown, by)


def unconfirmed_statuses(
    ledger: Ledger,
    contract: Contract,
    statuses: Mapping[JobId, tuple[ChainStatus, str]],
    *,
    by: str,
) -> set[JobId]:
    """The jobs whose status and provider on the contract no second endpoint shows;
    empty when there is only one endpoint. Each endpoint gets one request for all jobs
    together. `by` is as in `unconfirmed_transactions`.
    """
    endpoints = _several_endpoints(contract)
    if endpoints is None or not statuses:
        return set()
    wanted: Facts = {job_id: {status} for job_id, status in statuses.items()}
    shown = dict[str, Facts]()
    for name, found in contract.statuses_of_each(endpoints, sorted(statuses)).items():
        shown[name] = {job_id: {status} for job_id, status in found.items()}
    return {JobId(key) for key in _unconfirmed(ledger, endpoints, wanted, shown, by)}


def unconfirmed_ends(
    ledger: Ledger,
    contract: Contract,
    statuses: Mapping[JobId, tuple[ChainStatus, str]],
    *,
    by: str,
) -> set[JobId]:
    """The jobs that are over, or have no provider any more, by their status on the
    contract, which no second endpoint shows. `by` is as in `unconfirmed_transactions`.
    """
    ends = {
        job_id: status for job_id, status in statuses.items() if not status[0].is_active
    }
    return unconfirmed_statuses(ledger, contract, ends, by=by)


def _several_endpoints(contract: Contract) -> Endpoints | None:
    """The endpoints, if there are enough to compare them."""
    endpoints = contract.rpc
    if not isinstance(endpoints, Endpoints):
        return None
    return endpoints if endpoints.number >= MIN_AGREEING_ENDPOINTS else None


def _unconfirmed(
    ledger: Ledger,
    endpoints: Endpoints,
    wanted: Facts,
    shown: Mapping[str, Facts],
    by: str,
) -> set[str]:
    """The keys of `wanted` that too few endpoints show. Raises the alarms."""
    missing = {
        key
        for key in wanted
        if len(_shown_by(key, wanted, shown)) < MIN_AGREEING_ENDPOINTS
    }
    if len(shown) < MIN_AGREEING_ENDPOINTS and endpoints.alone_for_s() > PATIENCE_S:
        return _not_shown_at_all(ledger, endpoints, missing, wanted, shown, by)
    if missing:  # of one that is alone, for long only if the others are busy
        _update_disagreement_alarm(ledger, missing, wanted, shown, by)
    else:
        ledger.alarms.off(AlarmName.EVENTS_FROM_ONE_ENDPOINT)
    return missing


def _not_shown_at_all(
    ledger: Ledger,
    endpoints: Endpoints,
    missing: set[str],
    wanted: Facts,
    shown: Mapping[str, Facts],
    by: str,
) -> set[str]:
    """Out of `missing`, what the one endpoint that answers does not show. It is
    believed about the others.
    """
    not_shown = {key for key in missing if not _shown_by(key, wanted, shown)}
    if not_shown:
        _update_disagreement_alarm(ledger, not_shown, wanted, shown, by)
    if missing - not_shown:
        _raise_one_endpoint_alarm(ledger, endpoints, sorted(shown), missing - not_shown)
    return not_shown


def _by_transaction(ledger: Ledger, events: Iterable[ChainEvent]) -> Facts:
    """The events that begin, change or end work of ours, by transaction. A transition
    counts if it ends a job that the ledger has as going on, or that these events begin.
    """
    found, ends = Facts(), list[ChainEvent]()
    claimed = set[JobId]()
    for entry in events:
        if isinstance(entry.event, Claimed | ToppedUp | CancelRequested):
            found.setdefault(entry.tx_hash, set()).add(entry)
        elif _is_end(entry):
            ends.append(entry)
        if isinstance(entry.event, Claimed):
            claimed.add(entry.job_id)
    going_on = claimed | _going_on(ledger, {entry.job_id for entry in ends})
    for entry in ends:
        if entry.job_id in going_on:
            found.setdefault(entry.tx_hash, set()).add(entry)
    return found


def _is_end(entry: ChainEvent) -> bool:
    """Whether the job is over after this event, or has no provider any more."""
    return (
        isinstance(entry.event, ChainStatusObserved)
        and not entry.event.status.is_active
    )


def _going_on(ledger: Ledger, job_ids: Collection[JobId]) -> set[JobId]:
    """The jobs of ours, out of these, that are not over. Most are other providers'."""
    if not job_ids:
        return set()
    jobs = ledger.jobs(job_ids)
    return {job_id for job_id, job in jobs.items() if not is_final(job)}


def _shown_by_endpoints(
    contract: Contract, endpoints: Endpoints, hashes: Sequence[str]
) -> dict[str, Facts]:
    """The events that the receipts show, by the name of the endpoint."""
    receipts = contract.of_each(
        endpoints, [("eth_getTransactionReceipt", (tx_hash,)) for tx_hash in hashes]
    )
    return {
        name: _shown(contract, hashes, answers) if answers else {}
        for name, answers in receipts.items()
    }


def _shown(contract: Contract, hashes: Sequence[str], receipts: Sequence[Any]) -> Facts:
    """The events that an endpoint's receipts show."""
    found = Facts()
    for tx_hash, receipt in zip(hashes, receipts, strict=True):
        if not isinstance(receipt, RpcError | None):
            found[tx_hash] = set(contract.decode_events(receipt["logs"])[0])
    return found


def _shown_by(key: str, wanted: Facts, shown: Mapping[str, Facts]) -> list[str]:
    """The names of the endpoints that show all that is wanted under this key."""
    return [
        name
        for name, its_facts in shown.items()
        if wanted[key] <= its_facts.get(key, set())
    ]


def _raise_one_endpoint_alarm(
    ledger: Ledger,
    endpoints: Endpoints,
    answering: Sequence[str],
    missing: Collection[str],
) -> None:
    advice = {"answers": answering, "of": endpoints.number, "advice": ALONE_ADVICE}
    ledger.alarms.on(AlarmName.EVENTS_FROM_ONE_ENDPOINT, **advice)
    log.warning(
        "events_accepted_from_one_endpoint",
        number=len(missing),
        first=min(missing),
    )


def _update_disagreement_alarm(
    ledger: Ledger,
    missing: set[str],
    wanted: Facts,
    shown: Mapping[str, Facts],
    by: str,
) -> None:
    """Raise the alarm when endpoints that answer have disagreed about one transaction,
    or one job, for DISAGREE_S.
    """
    alarm = AlarmName.ENDPOINTS_DISAGREE
    condition = Condition(ledger, alarm, DISAGREE_S, name=f"{alarm} {by}")
    doubted = condition.duration.subject()
    if doubted not in missing:
        doubted = min(missing)
    shown_by = _shown_by(doubted, wanted, shown)
    condition.update(
        True,
        doubted,
        number=len(missing),
        first=doubted,
        shown_by=shown_by,
        not_shown_by=[name for name in shown if name not in shown_by],
        advice=ADVICE,
    )
