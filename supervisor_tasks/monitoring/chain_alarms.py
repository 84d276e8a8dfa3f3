"""Raises the alarms about the chain and the wallet."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import Demand, WrongChainError
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.chain.rpc.endpoint_health import Health
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution import claim_backoff
from supervisor_tasks.ledger.conditions import Condition, Duration
from supervisor_tasks.ledger.database import clock_s
from supervisor_tasks.ledger.facts import BALANCE, ENDPOINTS, Balance
from supervisor_tasks.ledger.transactions import OldestOpen
from supervisor_tasks.wallet.transaction_writer import TooDearError, WalletEmptyError

# the periodic run that a worker records when the chain has answered
CHAIN_ANSWERED = "chain"
UNANSWERED_S = 60.0  # a restart of the node is no alarm
# A worker looks at the chain every 15 s, and a look fails within 20 s. Without a failure
# for longer, the fleet itself was down.
FAILURES_APART_S = 90.0
# the chain answers, and the oldest open transaction has not been mined for so long
STUCK_S = 300.0
ASKED_S = 15.0  # a write that the balance did not pay for is tried again more often
ENDPOINT_UNAVAILABLE_S = 180.0  # for one of several endpoints; the others do its work
OF_SEVERAL_ENDPOINTS = (
    AlarmName.RPC_ENDPOINT_UNAVAILABLE,
    AlarmName.EVENTS_FROM_ONE_ENDPOINT,
)
AWAY_ADVICE = (
    "the others are used: mend it, or take it out of METASCHEDULER_ENDPOINT_RPC"
)
QUIET_S = {  # an alarm ends if its cause has not come again for so long
    AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT: 3600.0,
    AlarmName.CHAIN_LOG_UNREADABLE: 86400.0,
    AlarmName.TRANSACTION_TOO_DEAR: 300.0,  # each is tried again within a minute
    AlarmName.ENDPOINTS_DISAGREE: 300.0,
    AlarmName.CLAIMS_REVERTING: claim_backoff.COUNTS_VALID_S,
}


@contextmanager
def chain_watched(context: WorkerContext) -> Iterator[None]:
    """Raise an alarm when the chain has not answered for a while, or an endpoint
    serves another chain.

    The alarm ends with its cause. Time in which no worker looked does not count.
    """
    try:
        yield
    except (RpcUnavailableError, WrongChainError) as error:
        if isinstance(error, WrongChainError):
            context.ledger.alarms.on(AlarmName.WRONG_CHAIN, error=str(error))
        _record_failure(context, str(error))
        raise
    except (WalletEmptyError, TooDearError):
        _record_success(context)
        raise
    _record_success(context)


def _record_failure(context: WorkerContext, error: str) -> None:
    unanswered_s = _unanswered(context).update(True, error=error[:500])
    if unanswered_s >= UNANSWERED_S:
        # the chain stands still, and not the transaction
        _oldest_open(context).update(False)
    _update_endpoint_alarms(context)


def _record_success(context: WorkerContext) -> None:
    context.ledger.periodic_runs.record(CHAIN_ANSWERED)
    _unanswered(context).update(False)
    _update_endpoint_alarms(context)


def _unanswered(context: WorkerContext) -> Condition:
    return Condition(
        context.ledger,
        AlarmName.CHAIN_NOT_ANSWERING,
        UNANSWERED_S,
        run_name=CHAIN_ANSWERED,
        gap_s=FAILURES_APART_S,
    )


def _oldest_open(context: WorkerContext) -> Duration:
    """Return for how long a transaction has been the oldest open one while the chain
    answered. All others wait behind it.

    The alarm TRANSACTION_STUCK has a second reason: the transaction needs a fee above
    the limit (open_transactions/resubmit.py).
    """
    return Duration(context.ledger.facts, AlarmName.TRANSACTION_STUCK.value)


def _update_endpoint_alarms(context: WorkerContext) -> None:
    rpc, alarms = context.chain.contract.rpc, context.ledger.alarms
    if not isinstance(rpc, Endpoints):
        return
    health = rpc.health()
    wrong = [name for name, state in health.items() if state is Health.WRONG_CHAIN]
    if wrong:
        alarms.on(
            AlarmName.WRONG_CHAIN,
            endpoints=wrong,
            expected=context.chain.contract.chain_id,
        )
    elif Health.ALIVE in health.values():
        alarms.off(AlarmName.WRONG_CHAIN)
    if Health.UNKNOWN in health.values():
        return
    _store_health(context, health)
    if len(health) > 1:
        _update_unavailable_alarm(context, rpc.unavailable())
    else:  # the operator has removed the others
        for name in OF_SEVERAL_ENDPOINTS:
            alarms.off(name)


def _store_health(context: WorkerContext, health: Mapping[str, Health]) -> None:
    """Store the endpoints' health for the metrics: their process calls no node."""
    if context.ledger.facts.get(ENDPOINTS) != health:
        context.ledger.facts.set(ENDPOINTS, dict(health))


def _update_unavailable_alarm(
    context: WorkerContext, unavailable: Mapping[str, tuple[float, str]]
) -> None:
    """Raise the alarm when an endpoint has been unavailable for long, and end it when
    all answer.

    In between it stays as it is: each worker measures for itself, and this worker may
    have started after others.
    """
    alarms = context.ledger.alarms
    if not unavailable:
        alarms.off(AlarmName.RPC_ENDPOINT_UNAVAILABLE)
        return
    longest_s = max(for_s for for_s, _ in unavailable.values())
    if longest_s > ENDPOINT_UNAVAILABLE_S:
        errors = {name: error[:200] for name, (_, error) in unavailable.items()}
        alarms.on(
            AlarmName.RPC_ENDPOINT_UNAVAILABLE,
            endpoints=errors,
            for_s=round(longest_s),
            advice=AWAY_ADVICE,
        )


def update_wallet_alarms(context: WorkerContext, demand: Demand) -> None:
    """Raise and end the alarms about the wallet and the contract. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    alarms, chain = context.ledger.alarms, context.chain
    details_of = {alarm.name: alarm.details for alarm in alarms.all()}
    outstanding = chain.sent_transactions.outstanding()
    _update_wallet_empty_alarm(
        context,
        demand.balance_wei,
        outstanding.cost_wei,
        details_of.get(AlarmName.WALLET_EMPTY, {}),
    )
    if demand.open:
        alarms.off(AlarmName.CONTRACT_RETIRED)
    else:
        alarms.on(AlarmName.CONTRACT_RETIRED, contract=chain.contract.address)
    for name, quiet_s in QUIET_S.items():
        if name in details_of:
            alarms.off(name, quiet_s=quiet_s)
    _update_stuck_alarm(
        context, outstanding.oldest, AlarmName.TRANSACTION_STUCK in details_of
    )


def _update_wallet_empty_alarm(
    context: WorkerContext,
    balance_wei: int,
    outstanding_wei: int,
    details: dict[str, Any],
) -> None:
    """Raise the alarm while the balance does not pay for what is needed, and end it
    when it does. `details` are those of the alarm, if it is on. They do not count when
    they are of the wallet that was used before.
    """
    chain, alarms = context.chain, context.ledger.alarms
    if details.get("address") != chain.account.address:
        details = {}
    unpaid_wei = _unpaid_wei(context, details)
    needed_wei = max(chain.wallet_min_wei, outstanding_wei, unpaid_wei)
    if balance_wei >= needed_wei:
        alarms.off(AlarmName.WALLET_EMPTY)
        return
    figures = {"balance_wei": balance_wei, "needed_wei": needed_wei}
    alarms.on(
        AlarmName.WALLET_EMPTY,
        **{"address": chain.account.address, **details, **figures},
    )


def store_balance(context: WorkerContext, balance_wei: int) -> None:
    """Store the wallet's balance for the metrics of the ledger: their process calls no
    node. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    balance = Balance(context.chain.account.address, balance_wei)
    if context.ledger.facts.get(BALANCE) != balance:
        context.ledger.facts.set(BALANCE, balance)


def _update_stuck_alarm(
    context: WorkerContext, oldest: OldestOpen | None, alarmed: bool
) -> None:
    """Raise the alarm for a transaction that has been open for STUCK_S, also without a
    known cause.
    """
    open_s = _oldest_open(context).update(oldest is not None, _name(oldest))
    if oldest is None:
        context.ledger.alarms.off(AlarmName.TRANSACTION_STUCK)
        return
    if open_s > STUCK_S and not alarmed:
        context.ledger.alarms.on(
            AlarmName.TRANSACTION_STUCK,
            nonce=oldest.nonce,
            purpose=oldest.purpose,
            address=oldest.address,
            open_s=round(open_s),
        )


def end_stuck_alarm_if_mined(context: WorkerContext) -> None:
    """End the alarm TRANSACTION_STUCK, unless a transaction has been open for STUCK_S.

    The caller has found no transaction that needs a fee above the limit.

    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    if (
        _oldest_open(context).seconds(
            _name(context.chain.sent_transactions.outstanding().oldest)
        )
        <= STUCK_S
    ):
        context.ledger.alarms.off(AlarmName.TRANSACTION_STUCK)


def _name(oldest: OldestOpen | None) -> str:
    return "" if oldest is None else str(oldest.id)


def _unpaid_wei(context: WorkerContext, details: dict[str, Any]) -> int:
    """Return what a recent write needed that the balance did not pay for; 0 without
    one, by the details of WALLET_EMPTY.

    The worker tries such a write again every few seconds. Another worker can have
    written the details, so the database's clock counts.
    """
    if "seen_s" not in details:
        return 0
    if clock_s(context.ledger.engine) - float(details["seen_s"]) >= ASKED_S:
        return 0
    return int(details["needed_wei"])
