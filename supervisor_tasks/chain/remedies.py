"""What to do about a transaction that has no receipt. Pure.

An answer that is missing, and a refusal in words, are never a reason for another nonce. Only the chain itself frees an intent:
when the nonce is mined and what was mined is none of our signatures, or the one that does nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor_tasks.chain.fees import Bounds, Fees, Market, fees, much_cheaper, replacement
from supervisor_tasks.chain.refusals import Refusal

SEND_AGAIN_S = 15.0  # a transaction without a receipt for so long is sent again, byte by byte the same
REFUSED_AGAIN_S = 1.0  # one that no node is known to have
PRICED_OUT_S = 1.0  # one that pays less than the base fee is given so long: the fee may fall as it rose
STUCK_BLOCKS = 3
CERTAIN_S = 2.0  # between the two looks after which a nonce is taken to be somebody else's
GIVEN_UP_AFTER_S = 180.0  # one that a node refuses all that time for a reason that no price mends

PRICE = {Refusal.UNDERPRICED, Refusal.REPLACEMENT_UNDERPRICED, Refusal.BELOW_BASE_FEE}
ODD = {Refusal.OTHER, Refusal.FEE_CAP}  # no higher fee helps, as far as is known


class Remedy(StrEnum):
    """What is to be done."""

    WAIT = "wait"
    SEND = "send again"  # the same bytes
    REPLACE = "replace"  # the same nonce, a higher fee
    CAPPED = "capped"  # should be replaced and may not cost more: the same bytes
    PAUSE = "pause"  # the wallet cannot pay for it, or not for the higher fee that it needs
    CONTEST = "contest"  # the nonce is mined and not known to be ours: look once more
    FOREIGN = "foreign"  # the nonce is somebody else's
    GIVE_UP = "give up"  # no node will ever take it: its nonce goes to a transaction that does nothing


@dataclass(frozen=True, slots=True)
class Pending:
    """A transaction without a receipt. Ages are seconds: since it was last sent (or signed), since its present bytes were
    signed, and since its nonce was first seen mined without it (None: not seen). `blocks` were mined since it was signed.
    """

    nonce: int
    gas: int
    fees: Fees
    mine: bool  # whether the wallet still has the key of its address
    accepted: bool  # whether a node is known to have its present bytes
    refusal: Refusal | None
    sent_age_s: float
    signed_age_s: float
    blocks: int
    contested_age_s: float | None
    nothing: bool = False  # its present bytes do nothing but use up the nonce
    odd_age_s: float = 0.0  # for how long it has been the first one and was refused for an ODD reason


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator allows."""

    bounds: Bounds
    stuck_after_s: float


@dataclass(frozen=True, slots=True)
class Cure:
    """What to do, and what the transaction pays for gas then; one that is paused, what it would have to pay."""

    remedy: Remedy
    fees: Fees


def cures(pending: Sequence[Pending], mined_nonces: int, market: Market, rules: Rules, balance_wei: int) -> list[Cure]:
    """What to do about the transactions of one account, by nonce; `mined_nonces` is its nonce on the head. For each
    there is what the balance leaves after all before it that are not mined yet, at the prices that those have then.
    """
    found, left_wei = [], balance_wei
    for entry in pending:
        cure = cured(entry, mined_nonces, market, rules, left_wei)
        if entry.nonce >= mined_nonces:
            left_wei -= entry.gas * cure.fees.max_fee_wei
        found.append(cure)
    return found


def cured(pending: Pending, mined_nonces: int, market: Market, rules: Rules, left_wei: int) -> Cure:
    """What to do about one, for which so much of the balance is left."""
    if pending.nonce < mined_nonces:
        certain = pending.contested_age_s is not None and pending.contested_age_s >= CERTAIN_S
        return Cure(Remedy.FOREIGN if certain else Remedy.CONTEST, pending.fees)
    again = Remedy.SEND if stale(pending.accepted, pending.sent_age_s) else Remedy.WAIT
    if not (pending.accepted or pending.nothing) and _never_taken(pending, mined_nonces):
        return Cure(Remedy.GIVE_UP if pending.mine else Remedy.CAPPED, pending.fees)
    if pending.refusal is Refusal.INSUFFICIENT_FUNDS and not _pays(pending, pending.fees, left_wei):
        return _cheaper(pending, market, rules, left_wei)
    if pending.refusal is Refusal.FEE_CAP and not pending.accepted:
        now = fees(market, rules.bounds.of(pending.gas))
        falls = pending.mine and much_cheaper(now, pending.fees) and _pays(pending, now, left_wei)
        return Cure(Remedy.REPLACE, now) if falls else Cure(again, pending.fees)
    if not _needs_more(pending, mined_nonces, market, rules):
        return Cure(again, pending.fees)
    underpriced = pending.refusal is Refusal.UNDERPRICED
    more = replacement(pending.fees, market, rules.bounds.of(pending.gas), underpriced=underpriced)
    if not pending.mine or more is None:
        return Cure(Remedy.CAPPED, pending.fees)
    return Cure(Remedy.REPLACE if _pays(pending, more, left_wei) else Remedy.PAUSE, more)


def _pays(pending: Pending, price: Fees, left_wei: int) -> bool:
    """Whether what is left is enough. What a former key has nobody knows."""
    return not pending.mine or pending.gas * price.max_fee_wei <= left_wei


def _cheaper(pending: Pending, market: Market, rules: Rules, left_wei: int) -> Cure:
    """No node has bytes that nobody can pay for: where today's price can be paid, that is signed. Should an earlier signature
    wait somewhere for a higher one, a node says so, and it is raised from there.
    """
    now = fees(market, rules.bounds.of(pending.gas))
    return Cure(Remedy.REPLACE, now) if _pays(pending, now, left_wei) else Cure(Remedy.PAUSE, pending.fees)


def _never_taken(pending: Pending, mined_nonces: int) -> bool:
    """Whether it holds up all behind it for nothing. Too much gas for a block, or too little for the data, is so everywhere;
    that is no haste: it may be one alone. What nobody understands may be an outage, in which other questions are answered: it
    is given time, and only the first one is given up, which costs the gas of nothing, should the outage end then.
    """
    if pending.refusal is Refusal.GAS:
        return pending.signed_age_s >= CERTAIN_S
    return pending.refusal in ODD and pending.nonce == mined_nonces and pending.odd_age_s >= GIVEN_UP_AFTER_S


def stale(accepted: bool, sent_age_s: float) -> bool:
    """Whether it is time to send the same bytes again."""
    return sent_age_s >= (SEND_AGAIN_S if accepted else REFUSED_AGAIN_S)


def _needs_more(pending: Pending, mined_nonces: int, market: Market, rules: Rules) -> bool:
    """Whether only a higher fee helps: it pays less than the base fee, a node said so, or it is its turn and blocks are mined
    without it. Where no blocks are mined, no fee helps. A refusal that nobody understands is not answered with money, unless it
    is of what does nothing: that has to be taken in the end.
    """
    priced_out = pending.fees.max_fee_wei < market.least_wei or pending.refusal in PRICE
    if priced_out and pending.signed_age_s >= PRICED_OUT_S:
        return True
    passed_over = pending.blocks >= STUCK_BLOCKS and pending.signed_age_s >= rules.stuck_after_s
    odd = pending.refusal in ODD and not pending.accepted and not pending.nothing
    return pending.nonce == mined_nonces and passed_over and not odd
