"""Resubmit: transactions that were sent and are not mined are sent again, replaced or
cancelled.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.facts import TRANSACTION_REQUESTS
from supervisor_tasks.ledger.transactions import Sent, TransactionStore
from supervisor_tasks.monitoring.chain_alarms import end_stuck_alarm_if_mined
from supervisor_tasks.wallet.account import AccountState
from supervisor_tasks.wallet.pending_policy import (
    SEND_AGAIN_S,
    UNCLASSIFIED,
    Pending,
    PendingAction,
    PendingDecision,
    Rules,
    TransactionRequest,
    as_requested,
    decide_all,
    stale,
)
from supervisor_tasks.wallet.raw_transaction import decode

log = structlog.get_logger()

# nonces that one pass confirms as another writer's, or fills; each costs a request
MAX_CERTAIN_TRANSACTIONS = 20
LOG_SAMPLE_SIZE = 5
CONFLICTS = (PendingAction.VERIFY_NONCE, PendingAction.NONCE_USED_ELSEWHERE)
NOT_SENT_AGAIN = (PendingAction.REPLACE, PendingAction.CANCEL_NONCE, *CONFLICTS)
UNCHANGED = (PendingAction.FEE_CAP_REACHED, PendingAction.INSUFFICIENT_FUNDS)
# The duration's name; all others wait behind this transaction.
UNCLASSIFIED_ERROR = "first_transaction_unclassified_error"

ResubmissionPlan = dict[PendingAction, list[Sent]]


def resubmit_pending(
    context: WorkerContext, waiting: Sequence[Sent], state: AccountState
) -> None:
    """Give each transaction without a receipt what it needs, also earlier ones of the
    same wallet that another cluster has left. Those of a former key are sent, but not
    signed again. Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint
    or the database does not answer; a retry helps.
    """
    waiting = _with_abandoned(context, waiting, state)
    requests = context.ledger.facts.get(TRANSACTION_REQUESTS) or {}
    decisions = _decisions(context, waiting, state, _known(requests))
    plan: ResubmissionPlan = {kind: [] for kind in PendingAction}
    for entry in waiting:
        plan[decisions[entry.id].action].append(entry)
    _replace(context, plan[PendingAction.REPLACE], decisions, state)
    _cancel_nonces(context, plan[PendingAction.CANCEL_NONCE], state)
    if requests:
        log.info("transaction_requests_served", requests=requests)
        # After the commit: a request that is served twice does no harm, a request that
        # is lost does.
        context.ledger.facts.clear_if(TRANSACTION_REQUESTS, requests)
    _update_stuck_alarm(context, plan[PendingAction.FEE_CAP_REACHED], state)
    if plan[PendingAction.INSUFFICIENT_FUNDS]:
        account, needed_wei = context.chain.account, 0
        for entry in waiting:
            if entry.address == account.address:
                needed_wei += entry.gas * decisions[entry.id].fees.max_fee_wei
        account.raise_wallet_empty_alarm(state.balance_wei, needed_wei)
    _send_again(context, waiting, decisions)
    _free_lost_idempotency_keys(context, plan, state)
    _fill(context, waiting, state)


def _with_abandoned(
    context: WorkerContext, waiting: Sequence[Sent], state: AccountState
) -> Sequence[Sent]:
    """These transactions and those that they wait behind, by nonce, although another
    cluster signed them: its fleet is not at work.
    """
    address = context.chain.account.address
    mine = {entry.nonce for entry in waiting if _is_open(entry, address, state)}
    first = next(_holes(mine, state), None)
    if first is None:
        return waiting
    left = context.chain.sent_transactions.abandoned(first, max(mine) - 1)
    return sorted([*waiting, *left], key=lambda entry: entry.nonce)


def _known(requests: Mapping[str, str]) -> dict[str, TransactionRequest]:
    """The requests that this release can serve. The command of another release may have
    asked for something else.
    """
    known = dict[str, TransactionRequest]()
    for transaction_id, request in requests.items():
        if request in set(TransactionRequest):
            known[transaction_id] = TransactionRequest(request)
        else:
            log.warning(
                "transaction_request_unknown",
                transaction=transaction_id,
                request=request,
                expected=[each.value for each in TransactionRequest],
                advice="ask again when all workers are of one release",
            )
    return known


def _decisions(
    context: WorkerContext,
    waiting: Sequence[Sent],
    state: AccountState,
    requests: Mapping[str, TransactionRequest],
) -> dict[int, PendingDecision]:
    """What each transaction needs, by its id. `requests` are the operator's, by the id
    as a text.
    """
    account = context.chain.account
    rules = Rules(account.bounds, context.chain.stuck_after_s)
    others = sorted({entry.address for entry in waiting} - {account.address})
    nonces_of_others = context.chain.sent_transactions.mined_nonces(others)
    mined = {
        account.address: state.mined_nonces,
        **dict(zip(others, nonces_of_others, strict=True)),
    }
    rejected_id, rejected_s = _unclassified_rejection(context, waiting, state)
    rejected_for_s = {rejected_id: rejected_s}
    decisions = dict[int, PendingDecision]()
    for address, mined_nonces in mined.items():
        entries = [entry for entry in waiting if entry.address == address]
        pending = [
            _pending(entry, account.address, state, rejected_for_s.get(entry.id, 0.0))
            for entry in entries
        ]
        needed = decide_all(
            pending, mined_nonces, state.market, rules, state.balance_wei
        )
        for entry, one, decision in zip(entries, pending, needed, strict=True):
            request = requests.get(str(entry.id))
            if request is not None:
                decision = as_requested(one, decision, request, state.market, rules)
            decisions[entry.id] = decision
    return decisions


def _unclassified_rejection(
    context: WorkerContext, waiting: Sequence[Sent], state: AccountState
) -> tuple[int | None, float]:
    """The id of the transaction whose nonce is next, if a node rejects it for an
    UNCLASSIFIED reason, else None; and for how many seconds a node has rejected it.
    """
    address = context.chain.account.address
    rejected_id = None
    for entry in waiting:
        if (entry.address, entry.nonce) != (address, state.mined_nonces):
            continue
        # Rejected bytes are sent again each second. An older rejection does not count: no
        # node answered or was asked since.
        is_rejected = not entry.accepted and entry.sent_age_s < SEND_AGAIN_S
        if is_rejected and entry.rejection in UNCLASSIFIED:
            rejected_id = entry.id
            break
    duration = Duration(context.ledger.facts, UNCLASSIFIED_ERROR)
    return rejected_id, duration.update(rejected_id is not None, str(rejected_id))


def _pending(
    entry: Sent, address: str, state: AccountState, rejected_s: float
) -> Pending:
    may_be_cancellation = entry.rejection in (NodeErrorKind.GAS, *UNCLASSIFIED)
    return Pending(
        nonce=entry.nonce,
        gas=entry.gas,
        fees=entry.fees,
        has_key=entry.address == address,
        accepted=entry.accepted,
        rejection=entry.rejection,
        sent_age_s=entry.sent_age_s,
        signed_age_s=entry.signed_age_s,
        blocks=state.head - entry.head,
        nonce_conflict_age_s=entry.nonce_conflict_age_s,
        is_cancellation=may_be_cancellation and decode(entry.raw).to == entry.address,
        unclassified_age_s=rejected_s,
    )


def _replace(
    context: WorkerContext,
    entries: Sequence[Sent],
    decisions: Mapping[int, PendingDecision],
    state: AccountState,
) -> None:
    context.chain.sent_transactions.replace(
        [(entry, decisions[entry.id].fees) for entry in entries], state.head
    )
    for entry in entries:
        prices = {
            "was_wei_per_gas": entry.fees.max_fee_wei,
            "is_wei_per_gas": decisions[entry.id].fees.max_fee_wei,
        }
        log.info(
            "transaction_replaced", purpose=entry.purpose, nonce=entry.nonce, **prices
        )


def _cancel_nonces(
    context: WorkerContext, entries: Sequence[Sent], state: AccountState
) -> None:
    context.chain.sent_transactions.cancel_with_replacement(
        entries, state.market, state.head
    )
    for entry in entries:
        about = {
            "purpose": entry.purpose,
            "job_id": entry.job_id,
            "nonce": entry.nonce,
            "gas": entry.gas,
        }
        log.warning("nonce_cancelled", rejection=entry.rejection, **about)


def _send_again(
    context: WorkerContext,
    waiting: Sequence[Sent],
    decisions: Mapping[int, PendingDecision],
) -> None:
    """Send the same bytes, the lowest nonce first. When a node misses an earlier nonce,
    send all earlier ones too, but for those that must not be sent again.
    """
    highest_after_gap = -1
    for entry in waiting:
        is_sent = decisions[entry.id].action is PendingAction.SEND
        if is_sent and entry.rejection is NodeErrorKind.NONCE_GAP:
            highest_after_gap = max(highest_after_gap, entry.nonce)
    chosen = list[Sent]()
    for entry in waiting:
        action = decisions[entry.id].action
        if action in NOT_SENT_AGAIN:
            continue
        if _is_due(entry, action) or entry.nonce < highest_after_gap:
            chosen.append(entry)
    context.chain.sent_transactions.send_again(chosen)


def _is_due(entry: Sent, action: PendingAction) -> bool:
    """Whether a transaction is sent again on its own account."""
    if action in UNCHANGED:
        return stale(entry.accepted, entry.sent_age_s)
    return action is PendingAction.SEND


def _free_lost_idempotency_keys(
    context: WorkerContext, plan: ResubmissionPlan, state: AccountState
) -> None:
    """Free the idempotency keys whose nonce another writer's transaction used; their
    writes are sent again with another nonce.
    """
    chain, transactions = context.chain, context.chain.account.transactions
    _store_conflicts(transactions, plan)
    lost = list[Sent]()
    for entry in plan[PendingAction.NONCE_USED_ELSEWHERE][:MAX_CERTAIN_TRANSACTIONS]:
        if chain.sent_transactions.is_confirmed_unmined(entry, state):
            lost.append(entry)
    if not lost:
        return
    transactions.mark_foreign([entry.id for entry in lost])
    shown = [f"{entry.nonce}: {entry.purpose}" for entry in lost[:LOG_SAMPLE_SIZE]]
    chain.account.raise_unknown_transaction_alarm(
        nonces=", ".join(shown), transactions=len(lost)
    )
    log.warning("nonces_lost", nonces=shown, transactions=len(lost))
    context.ledger.effects.reschedule_now(
        [entry.job_id for entry in lost if entry.job_id],
        (EffectKind.REPORT, EffectKind.RETURN_JOB),
    )


def _store_conflicts(transactions: TransactionStore, plan: ResubmissionPlan) -> None:
    """Store since when a transaction's nonce is mined and no signature of it has a
    receipt.
    """
    begun, ended = list[int](), list[int]()
    for kind, entries in plan.items():
        for entry in entries:
            in_conflict = kind in CONFLICTS
            was_in_conflict = entry.nonce_conflict_age_s is not None
            if in_conflict == was_in_conflict:
                continue
            if in_conflict:
                begun.append(entry.id)
            else:
                ended.append(entry.id)
    transactions.mark_nonce_conflict(begun)
    transactions.clear_nonce_conflict(ended)


def _fill(context: WorkerContext, waiting: Sequence[Sent], state: AccountState) -> None:
    """Fill each nonce between the chain's nonce and our highest that no open
    transaction has: it holds up all later ones. Bytes that the ledger once signed for
    it are sent again. If there are none, a transaction that does nothing is signed and
    sent.
    """
    account = context.chain.account
    mine = {
        entry.nonce: entry
        for entry in waiting
        if _is_open(entry, account.address, state)
    }
    holes = list(islice(_holes(mine.keys(), state), MAX_CERTAIN_TRANSACTIONS))
    if not holes:
        return
    oldest_s = max(entry.signed_age_s for entry in mine.values())
    if oldest_s < SEND_AGAIN_S:
        return
    stored = account.transactions.at_nonces(account.address, holes)
    signed = {
        nonce: raw
        for nonce, (row_state, _, raw) in stored.items()
        if row_state != "FOREIGN"
    }
    account.broadcast_raw(list(signed.values()))
    for nonce in holes:
        if nonce not in signed:
            log.warning("nonce_filled", nonce=nonce)
            context.chain.transaction_writer.fill(nonce)


def _update_stuck_alarm(
    context: WorkerContext, capped: Sequence[Sent], state: AccountState
) -> None:
    alarms, bounds = context.ledger.alarms, context.chain.account.bounds
    if capped:
        first = capped[0]
        alarms.on(
            AlarmName.TRANSACTION_STUCK,
            transactions=len(capped),
            nonce=first.nonce,
            purpose=first.purpose,
            address=first.address,
            pays_wei_per_gas=first.fees.max_fee_wei,
            market_wei_per_gas=state.market.least_wei,
            most_wei_per_gas=bounds.of(first.gas),
        )
    else:
        end_stuck_alarm_if_mined(context)


def _is_open(entry: Sent, address: str, state: AccountState) -> bool:
    """Whether the transaction is of this key, and its nonce is not mined."""
    return entry.address == address and entry.nonce >= state.mined_nonces


def _holes(nonces: Collection[int], state: AccountState) -> Iterator[int]:
    """The nonces below the highest one that neither are mined nor have an open
    transaction. There may be any number of them.
    """
    for nonce in range(state.mined_nonces, max(nonces, default=0)):
        if nonce not in nonces:
            yield nonce
