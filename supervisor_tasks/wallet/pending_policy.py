"""What to do about a transaction that has no receipt. Pure.

A missing answer, or a rejection in words, is never a reason to use another nonce. An
idempotency key may be used again only after the chain has mined another transaction
with its nonce: another writer's, or our own one that does nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind
from supervisor_tasks.wallet.fees import (
    Bounds,
    Fees,
    Market,
    fees,
    much_cheaper,
    replacement,
)

# a transaction without a receipt for this long is sent again, with the same bytes
SEND_AGAIN_S = 15.0
REJECTED_AGAIN_S = 1.0  # the same for a transaction that no node is known to have
# how long a transaction may pay less than the base fee: the fee may fall again
PRICED_OUT_S = 1.0
STUCK_BLOCKS = 3
CERTAIN_S = 2.0  # between the two looks that show that another writer used a nonce
# how long a node must reject a transaction for a reason that no price fixes
CANCEL_NONCE_AFTER_S = 180.0

PRICE = {
    NodeErrorKind.UNDERPRICED,
    NodeErrorKind.REPLACEMENT_UNDERPRICED,
    NodeErrorKind.BELOW_BASE_FEE,
}
# a higher fee is not known to help
UNCLASSIFIED = {NodeErrorKind.OTHER, NodeErrorKind.FEE_CAP}


class PendingAction(StrEnum):
    """What to do with a transaction that has no receipt."""

    WAIT = "wait"
    SEND = "send again"  # the same bytes
    REPLACE = "replace"  # the same nonce, a higher fee
    # needs a higher fee, but the bound or a former key prevents it: the same bytes
    FEE_CAP_REACHED = "fee cap reached"
    # the balance is too low for it, or for the higher fee that it needs
    INSUFFICIENT_FUNDS = "insufficient funds"
    # the nonce is mined, and no receipt of ours is known: look once more
    VERIFY_NONCE = "verify nonce"
    NONCE_USED_ELSEWHERE = "nonce used elsewhere"  # another writer used the nonce
    # no node will take it: a transaction that does nothing gets its nonce
    CANCEL_NONCE = "cancel nonce"


class TransactionRequest(StrEnum):
    """What an operator wants of a transaction without a receipt."""

    BUMP = "bump"  # the same call, for a higher fee
    CANCEL = "cancel"  # a transaction that does nothing, with its nonce


@dataclass(frozen=True, slots=True)
class Pending:
    """A transaction without a receipt. Ages are seconds: since it was last sent (or
    signed), since its present bytes were signed, and since its nonce was first seen
    mined without it (None: not seen). `blocks` is the number of blocks mined since it
    was signed.
    """

    nonce: int
    gas: int
    fees: Fees
    has_key: bool  # whether the wallet still has the key of its address
    accepted: bool  # whether a node is known to have its present bytes
    rejection: NodeErrorKind | None
    sent_age_s: float
    signed_age_s: float
    blocks: int
    nonce_conflict_age_s: float | None
    is_cancellation: bool = False  # its present bytes only use up the nonce
    # for how long it was next to be mined and was rejected for an UNCLASSIFIED reason
    unclassified_age_s: float = 0.0

    @property
    def may_be_mined(self) -> bool:
        """Whether a node is known to have it, or it does nothing but use up its
        nonce.
        """
        return self.accepted or self.is_cancellation


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator allows."""

    bounds: Bounds
    stuck_after_s: float


@dataclass(frozen=True, slots=True)
class PendingDecision:
    """What to do, and the prices that the transaction then pays. For FEE_CAP_REACHED
    and INSUFFICIENT_FUNDS these are the prices that it would have to pay.
    """

    action: PendingAction
    fees: Fees


def decide_all(
    pending: Sequence[Pending],
    mined_nonces: int,
    market: Market,
    rules: Rules,
    balance_wei: int,
) -> list[PendingDecision]:
    """What to do about the transactions of one account, in the order of their nonces.
    `mined_nonces` is the account's nonce on the head. Each transaction can spend what
    the balance leaves after all earlier unmined ones, at the prices decided for those.
    """
    decisions, left_wei = [], balance_wei
    for entry in pending:
        decision = decide(entry, mined_nonces, market, rules, left_wei)
        if entry.nonce >= mined_nonces:
            left_wei -= entry.gas * decision.fees.max_fee_wei
        decisions.append(decision)
    return decisions


def decide(
    pending: Pending, mined_nonces: int, market: Market, rules: Rules, left_wei: int
) -> PendingDecision:
    """What to do about one transaction; `left_wei` is the part of the balance that is
    left for it.
    """
    if pending.nonce < mined_nonces:
        return _mined_without_it(pending)
    if _is_hopeless(pending, mined_nonces):
        if pending.has_key:
            return PendingDecision(PendingAction.CANCEL_NONCE, pending.fees)
        return PendingDecision(PendingAction.FEE_CAP_REACHED, pending.fees)
    is_unpaid = pending.rejection is NodeErrorKind.INSUFFICIENT_FUNDS
    if is_unpaid and not _pays(pending, pending.fees, left_wei):
        return _cheaper(pending, market, rules, left_wei)
    if pending.rejection is NodeErrorKind.FEE_CAP and not pending.accepted:
        return _under_the_nodes_cap(pending, market, rules, left_wei)
    if not _needs_higher_fee(pending, mined_nonces, market, rules):
        return _as_it_is(pending)
    return _dearer(pending, market, rules, left_wei)


def _mined_without_it(pending: Pending) -> PendingDecision:
    """Another transaction has this nonce. One answer of a node is not enough to be
    certain of that.
    """
    age_s = pending.nonce_conflict_age_s
    if age_s is not None and age_s >= CERTAIN_S:
        return PendingDecision(PendingAction.NONCE_USED_ELSEWHERE, pending.fees)
    return PendingDecision(PendingAction.VERIFY_NONCE, pending.fees)


def _as_it_is(pending: Pending) -> PendingDecision:
    """Send the same bytes again if no node has shown them for a while."""
    if stale(pending.accepted, pending.sent_age_s):
        return PendingDecision(PendingAction.SEND, pending.fees)
    return PendingDecision(PendingAction.WAIT, pending.fees)


def _under_the_nodes_cap(
    pending: Pending, market: Market, rules: Rules, left_wei: int
) -> PendingDecision:
    """Sign again when today's price is much lower: the node takes no transaction above
    its cap.
    """
    if not pending.has_key:
        return _as_it_is(pending)
    now = fees(market, rules.bounds.of(pending.gas))
    if much_cheaper(now, pending.fees) and _pays(pending, now, left_wei):
        return PendingDecision(PendingAction.REPLACE, now)
    return _as_it_is(pending)


def _dearer(
    pending: Pending, market: Market, rules: Rules, left_wei: int
) -> PendingDecision:
    """Sign again at a price at which nodes replace the old bytes, if the bounds and the
    balance allow it.
    """
    underpriced = pending.rejection is NodeErrorKind.UNDERPRICED
    more = replacement(
        pending.fees, market, rules.bounds.of(pending.gas), underpriced=underpriced
    )
    if not pending.has_key or more is None:
        return PendingDecision(PendingAction.FEE_CAP_REACHED, pending.fees)
    if not _pays(pending, more, left_wei):
        return PendingDecision(PendingAction.INSUFFICIENT_FUNDS, more)
    return PendingDecision(PendingAction.REPLACE, more)


def as_requested(
    pending: Pending,
    decision: PendingDecision,
    request: TransactionRequest,
    market: Market,
    rules: Rules,
) -> PendingDecision:
    """What to do about a transaction that an operator wants changed. A nonce that is
    mined, and one of a former key, cannot be signed again: then the decision stays.
    """
    if not pending.has_key or decision.action in (
        PendingAction.VERIFY_NONCE,
        PendingAction.NONCE_USED_ELSEWHERE,
    ):
        return decision
    if request is TransactionRequest.CANCEL:
        return PendingDecision(PendingAction.CANCEL_NONCE, pending.fees)
    more = replacement(pending.fees, market, rules.bounds.of(pending.gas))
    if more is None:
        return PendingDecision(PendingAction.FEE_CAP_REACHED, pending.fees)
    return PendingDecision(PendingAction.REPLACE, more)


def _pays(pending: Pending, price: Fees, left_wei: int) -> bool:
    """Whether what is left is enough. The balance of a former key is not known, so it
    counts as enough.
    """
    return not pending.has_key or pending.gas * price.max_fee_wei <= left_wei


def _cheaper(
    pending: Pending, market: Market, rules: Rules, left_wei: int
) -> PendingDecision:
    """Sign again at today's price when the balance pays for that: no node has bytes
    that the balance cannot pay for. If an earlier signature with a higher price waits
    in a pool, a node reports that, and the fee rises from there.
    """
    now = fees(market, rules.bounds.of(pending.gas))
    if _pays(pending, now, left_wei):
        return PendingDecision(PendingAction.REPLACE, now)
    return PendingDecision(PendingAction.INSUFFICIENT_FUNDS, pending.fees)


def _is_hopeless(pending: Pending, mined_nonces: int) -> bool:
    """Whether no node will take the transaction, so that it holds up all later ones for
    nothing. Too much gas for a block, or too little for the data, is the same at every
    node; it still waits CERTAIN_S, because one node alone may reject it. An
    UNCLASSIFIED rejection may be an outage in which the node answers other questions. So
    it waits CANCEL_NONCE_AFTER_S, and only the next nonce is cancelled.
    If the outage ends then, that costs the gas of a transaction that does nothing.
    """
    if pending.may_be_mined:
        return False
    if pending.rejection is NodeErrorKind.GAS:
        return pending.signed_age_s >= CERTAIN_S
    if pending.rejection not in UNCLASSIFIED or pending.nonce != mined_nonces:
        return False
    return pending.unclassified_age_s >= CANCEL_NONCE_AFTER_S


def stale(accepted: bool, sent_age_s: float) -> bool:
    """Whether it is time to send the same bytes again."""
    if accepted:
        return sent_age_s >= SEND_AGAIN_S
    return sent_age_s >= REJECTED_AGAIN_S


def _needs_higher_fee(
    pending: Pending, mined_nonces: int, market: Market, rules: Rules
) -> bool:
    """Whether only a higher fee helps: the transaction pays less than the base fee, a
    node reported so, or its nonce is next and blocks are mined without it. While no
    blocks are mined, no fee helps. An UNCLASSIFIED rejection is no reason to pay more,
    except for a transaction that does nothing: that one must be mined in the end.
    """
    priced_out = (
        pending.fees.max_fee_wei < market.least_wei or pending.rejection in PRICE
    )
    if priced_out and pending.signed_age_s >= PRICED_OUT_S:
        return True
    if pending.nonce != mined_nonces:
        return False
    if pending.rejection in UNCLASSIFIED and not pending.may_be_mined:
        return False
    if pending.blocks < STUCK_BLOCKS:
        return False
    return pending.signed_age_s >= rules.stuck_after_s
