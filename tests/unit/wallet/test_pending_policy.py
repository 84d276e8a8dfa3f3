"""What is done about a transaction without a receipt, by what is known of it."""

from dataclasses import replace

import pytest

from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind as Error
from supervisor_tasks.wallet.fees import Bounds, Fees, Market, fees
from supervisor_tasks.wallet.pending_policy import (
    CANCEL_NONCE_AFTER_S,
    CERTAIN_S,
    SEND_AGAIN_S,
    STUCK_BLOCKS,
    Pending,
    PendingDecision,
    Rules,
    TransactionRequest,
    as_requested,
    decide,
    decide_all,
)
from supervisor_tasks.wallet.pending_policy import (
    PendingAction as Action,
)

GWEI = 10**9
CAP = 1000 * GWEI
TIPLESS = Market(10 * GWEI, 0, 0)
MARKET = Market(10 * GWEI, GWEI, 11 * GWEI)
RULES = Rules(Bounds(CAP, 10**18), stuck_after_s=60.0)
PENDING = Pending(
    nonce=7,
    gas=250_000,
    fees=Fees(21 * GWEI, GWEI, legacy=False),
    has_key=True,
    accepted=True,
    rejection=None,
    sent_age_s=1.0,
    signed_age_s=1.0,
    blocks=0,
    nonce_conflict_age_s=None,
)
OLD = replace(PENDING, sent_age_s=SEND_AGAIN_S, signed_age_s=61.0)
POOR = Fees(9 * GWEI, GWEI, legacy=False)
NOT_PAID = replace(PENDING, accepted=False, rejection=Error.UNDERPRICED)
NEVER = replace(PENDING, rejection=Error.GAS, accepted=False, signed_age_s=CERTAIN_S)

UNKNOWN = replace(
    OLD,
    rejection=Error.OTHER,
    accepted=False,
    blocks=99,
    unclassified_age_s=CANCEL_NONCE_AFTER_S,
)
ABOVE_NODES_LIMIT = replace(UNKNOWN, rejection=Error.FEE_CAP)
UNPAYABLE = replace(PENDING, rejection=Error.INSUFFICIENT_FUNDS, accepted=False)
USED_ELSEWHERE = replace(PENDING, nonce_conflict_age_s=CERTAIN_S)

ACTION_CASES = [
    ("it was just sent", PENDING, 7, True, Action.WAIT),
    ("no node has seen it for long", replace(OLD, signed_age_s=20.0), 7, True, Action.SEND),
    ("no node took it", replace(PENDING, accepted=False), 7, True, Action.SEND),
    ("no node took it a moment ago", replace(PENDING, accepted=False, sent_age_s=0.5), 7, True, Action.WAIT),
    ("it is its turn, and blocks pass", replace(OLD, blocks=STUCK_BLOCKS), 7, True, Action.REPLACE),
    ("it is its turn, and no block passes", OLD, 7, True, Action.SEND),
    ("it waits behind another", replace(OLD, blocks=99), 6, True, Action.SEND),
    ("it pays less than the base fee", replace(PENDING, fees=POOR), 7, True, Action.REPLACE),
    ("it pays less, behind another", replace(PENDING, fees=POOR), 5, True, Action.REPLACE),
    ("it pays less since a moment", replace(PENDING, fees=POOR, signed_age_s=0.1), 7, True, Action.WAIT),
    ("a node calls it underpriced", replace(PENDING, rejection=Error.UNDERPRICED), 7, True, Action.REPLACE),
    ("another waits", replace(PENDING, rejection=Error.REPLACEMENT_UNDERPRICED), 7, True, Action.REPLACE),
    ("it pays less and may not pay more", replace(PENDING, fees=Fees(CAP, 1, False)), 7, True, Action.FEE_CAP_REACHED),
    ("it has no tip to speak of, at the cap", replace(NOT_PAID, fees=Fees(CAP, 95, False)), 7, True, Action.REPLACE),
    ("it pays less and the key is gone", replace(PENDING, fees=POOR, has_key=False), 7, True, Action.FEE_CAP_REACHED),
    ("unpayable", UNPAYABLE, 7, False, Action.INSUFFICIENT_FUNDS),
    ("it is payable again", UNPAYABLE, 7, True, Action.SEND),
    ("it pays less, and no more is payable", replace(PENDING, fees=POOR), 7, False, Action.INSUFFICIENT_FUNDS),
    ("its turn, blocks pass, unpayable", replace(OLD, blocks=STUCK_BLOCKS), 7, False, Action.INSUFFICIENT_FUNDS),
    ("it is unpayable and in no hurry", OLD, 7, False, Action.SEND),
    ("a block does not hold it", NEVER, 7, True, Action.CANCEL_NONCE),
    ("a block does not hold it, and it is unpayable", NEVER, 7, False, Action.CANCEL_NONCE),
    ("a block does not hold it, and the key is gone", replace(NEVER, has_key=False), 7, True, Action.FEE_CAP_REACHED),
    ("a node has said so just now", replace(NEVER, signed_age_s=1.0), 7, True, Action.SEND),
    ("another node has taken it", replace(NEVER, accepted=True), 7, True, Action.WAIT),
    ("what does nothing was refused", replace(NEVER, is_cancellation=True), 7, True, Action.SEND),
    ("it is refused in unknown words for minutes", UNKNOWN, 7, True, Action.CANCEL_NONCE),
    ("for minutes, and it is unpayable", UNKNOWN, 7, False, Action.CANCEL_NONCE),
    ("for minutes, and the key is gone", replace(UNKNOWN, has_key=False), 7, True, Action.FEE_CAP_REACHED),
    ("for a while", replace(UNKNOWN, unclassified_age_s=CANCEL_NONCE_AFTER_S - 1), 7, True, Action.SEND),
    ("for minutes, behind another", UNKNOWN, 6, True, Action.SEND),
    ("for minutes, and then it was taken", replace(UNKNOWN, accepted=True, blocks=0), 7, True, Action.SEND),
    ("what does nothing is refused in unknown words", replace(UNKNOWN, is_cancellation=True), 7, True, Action.REPLACE),
    ("unknown words, and it pays less", replace(UNKNOWN, fees=POOR, unclassified_age_s=0.0), 7, True, Action.REPLACE),
    ("more than a node allows", replace(ABOVE_NODES_LIMIT, unclassified_age_s=0.0), 7, True, Action.SEND),
    ("more than a node allows, for minutes", ABOVE_NODES_LIMIT, 7, True, Action.CANCEL_NONCE),
    ("a node says that the nonce is used", replace(PENDING, rejection=Error.NONCE_TOO_LOW), 7, True, Action.WAIT),
    ("the nonce is mined", PENDING, 8, True, Action.VERIFY_NONCE),
    ("the nonce was mined a moment ago", replace(PENDING, nonce_conflict_age_s=0.5), 8, True, Action.VERIFY_NONCE),
    ("the nonce was mined a while ago", USED_ELSEWHERE, 8, True, Action.NONCE_USED_ELSEWHERE),
    ("its nonce was in conflict", replace(PENDING, nonce_conflict_age_s=99.0), 7, True, Action.WAIT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pending", "mined", "can_pay", "wanted"),
    [case[1:] for case in ACTION_CASES],
    ids=[c[0] for c in ACTION_CASES],
)
def test_decide__each_pending_transaction__chooses_the_action_of_the_row(
    pending: Pending, mined: int, can_pay: bool, wanted: Action
) -> None:
    market = (
        replace(MARKET, base_fee_wei=2 * CAP)
        if pending.fees.max_fee_wei == CAP
        else MARKET
    )
    assert (
        decide(pending, mined, market, RULES, 10**18 if can_pay else 0).action is wanted
    )


SPIKE, CALM = Market(250 * GWEI, GWEI, 0), Market(25 * GWEI, GWEI, 0)
USUAL, DEAR = Fees(51 * GWEI, GWEI, legacy=False), Fees(501 * GWEI, GWEI, legacy=False)
SMALL_WEI = 5 * 10**16  # pays for the usual fees, not for those of the spike
NOT_TAKEN = replace(PENDING, fees=USUAL, accepted=False, rejection=Error.BELOW_BASE_FEE)
UNPAID = replace(PENDING, fees=DEAR, accepted=False, rejection=Error.INSUFFICIENT_FUNDS)


def test_decide__a_higher_fee_that_cannot_be_paid__is_not_signed() -> None:
    dearer = replace(DEAR, priority_fee_wei=GWEI * 9 // 8)
    assert decide(NOT_TAKEN, 7, SPIKE, RULES, SMALL_WEI) == PendingDecision(
        Action.INSUFFICIENT_FUNDS, dearer
    )
    assert decide(NOT_TAKEN, 7, SPIKE, RULES, 10**18) == PendingDecision(
        Action.REPLACE, dearer
    )
    taken = replace(PENDING, fees=USUAL)
    assert decide(taken, 7, SPIKE, RULES, SMALL_WEI) == PendingDecision(
        Action.INSUFFICIENT_FUNDS, dearer
    )
    assert decide(taken, 7, CALM, RULES, SMALL_WEI) == PendingDecision(
        Action.WAIT, USUAL
    )


def test_decide__unpayable_bytes__are_signed_again_when_the_present_price_is_payable() -> (
    None
):
    assert decide(UNPAID, 7, CALM, RULES, SMALL_WEI) == PendingDecision(
        Action.REPLACE, USUAL
    )
    assert decide(UNPAID, 7, SPIKE, RULES, SMALL_WEI) == PendingDecision(
        Action.INSUFFICIENT_FUNDS, DEAR
    )
    assert decide(UNPAID, 7, CALM, RULES, 10**16).action is Action.INSUFFICIENT_FUNDS
    assert decide(UNPAID, 7, CALM, RULES, 10**18).action is Action.SEND
    assert (
        decide(replace(UNPAID, has_key=False), 7, CALM, RULES, 0).action is Action.SEND
    )


def test_decide__above_the_nodes_fee_cap__is_signed_again_only_when_cheaper() -> None:
    refused = replace(
        PENDING,
        fees=DEAR,
        accepted=False,
        rejection=Error.FEE_CAP,
        blocks=99,
        signed_age_s=99.0,
    )
    assert decide(refused, 7, CALM, RULES, 10**18) == PendingDecision(
        Action.REPLACE, USUAL
    )
    assert decide(refused, 7, SPIKE, RULES, 10**18) == PendingDecision(
        Action.SEND, DEAR
    )
    assert decide(
        refused, 7, Market(600 * GWEI, GWEI, 0), RULES, 10**18
    ) == PendingDecision(Action.SEND, DEAR)
    assert decide(
        replace(refused, has_key=False), 7, CALM, RULES, 10**18
    ) == PendingDecision(Action.SEND, DEAR)


def test_decide__underpriced_again_and_again__reaches_the_wanted_tip_before_the_cap() -> (
    None
):
    entry, least_tip_wei, steps = (
        replace(NOT_TAKEN, fees=fees(TIPLESS, CAP), rejection=Error.UNDERPRICED),
        30 * GWEI,
        0,
    )
    while entry.fees.priority_fee_wei < least_tip_wei:
        decision = decide(entry, 7, TIPLESS, RULES, 10**18)
        assert decision.action is Action.REPLACE
        entry, steps = replace(entry, fees=decision.fees), steps + 1
    assert steps <= 30
    assert entry.fees.max_fee_wei < 60 * GWEI


def test_decide_all__balance_is_short__each_has_what_those_before_it_leave() -> None:
    three = [replace(NOT_TAKEN, nonce=nonce) for nonce in (7, 8, 9)]
    two_dear_wei = 2 * 250_000 * DEAR.max_fee_wei
    wanted = [Action.REPLACE, Action.REPLACE, Action.INSUFFICIENT_FUNDS]
    assert [
        decision.action for decision in decide_all(three, 7, SPIKE, RULES, two_dear_wei)
    ] == wanted
    assert [
        decision.action for decision in decide_all(three, 8, SPIKE, RULES, two_dear_wei)
    ][1:] == [Action.REPLACE] * 2
    assert decide_all([], 7, SPIKE, RULES, 0) == []


@pytest.mark.parametrize(
    ("request_", "pending", "mined", "wanted"),
    [
        (TransactionRequest.BUMP, PENDING, 7, Action.REPLACE),
        (TransactionRequest.CANCEL, PENDING, 7, Action.CANCEL_NONCE),
        (
            TransactionRequest.BUMP,
            replace(PENDING, fees=Fees(CAP, CAP, False)),
            7,
            Action.FEE_CAP_REACHED,
        ),
        (TransactionRequest.BUMP, PENDING, 8, Action.VERIFY_NONCE),
        (TransactionRequest.CANCEL, PENDING, 8, Action.VERIFY_NONCE),
        (TransactionRequest.CANCEL, replace(PENDING, has_key=False), 7, Action.WAIT),
    ],
)
def test_as_requested__bump_or_cancel__is_done_only_where_still_possible(
    request_: TransactionRequest, pending: Pending, mined: int, wanted: Action
) -> None:
    decision = decide(pending, mined, MARKET, RULES, 10**18)
    assert as_requested(pending, decision, request_, MARKET, RULES).action is wanted
