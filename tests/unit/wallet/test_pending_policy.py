"""Fees, refusals, remedies, instance tags and the health of endpoints: what the wallet
decides without asking anybody.
"""

from dataclasses import replace

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.chain.rpc.failover import (
    BEHIND_BLOCKS,
    LOOKS_ALONE,
    MEMORY_S,
    AheadTracker,
    EndpointProbe,
    Health,
    healths,
    others_head,
)
from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind as Error
from supervisor_tasks.chain.rpc.node_errors import classify, over_the_limit
from supervisor_tasks.jobs import claim_backoff
from supervisor_tasks.wallet.fees import Bounds, Fees, Market, fees, replacement
from supervisor_tasks.wallet.pending_policy import (
    CERTAIN_S,
    GIVEN_UP_AFTER_S,
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
from supervisor_tasks.wallet.raw_transaction import append_tag, decode, extract_tag

GWEI = 10**9
CAP = 1000 * GWEI
prices = st.integers(0, 10**13)
markets = st.builds(Market, st.none() | prices, prices, prices)


# --- fees -----------------------------------------------------------------------------


def test_fees__with_base_fee__outlive_its_doubling_and_tip() -> None:
    assert fees(Market(10 * GWEI, 2 * GWEI, 0), CAP) == Fees(
        22 * GWEI, 2 * GWEI, legacy=False
    )


def test_fees__without_base_fee__are_legacy() -> None:
    assert fees(Market(None, 0, 7 * GWEI), CAP) == Fees(7 * GWEI, 7 * GWEI, legacy=True)


@given(markets, st.integers(1, 10**13))
def test_fees__are_never_above_the_cap_nor_the_tip_above_the_fee(
    market: Market, cap_wei: int
) -> None:
    price = fees(market, cap_wei)
    assert price.priority_fee_wei <= price.max_fee_wei <= cap_wei


@given(markets, markets, st.integers(1, 10**13), st.booleans())
def test_replacement__pays_at_least_todays_price_and_never_above_the_cap(
    then: Market, now: Market, cap_wei: int, underpriced: bool
) -> None:
    old = fees(then, cap_wei)
    new = replacement(old, now, cap_wei, underpriced=underpriced)
    if new is None:
        assert old.max_fee_wei == cap_wei
        return
    assert new.max_fee_wei >= old.max_fee_wei
    assert (
        new.priority_fee_wei * 10 >= old.priority_fee_wei * 11
        or new.priority_fee_wei == new.max_fee_wei
    )
    assert new.priority_fee_wei <= new.max_fee_wei <= cap_wei
    assert new != old
    assert new.legacy == old.legacy
    if not old.legacy and now.base_fee_wei is not None:
        assert new.max_fee_wei >= min(now.base_fee_wei, cap_wei)


@given(markets, markets, st.integers(1, 10**13))
def test_replacement__waits_in_a_pool__raises_fee_and_tip_by_a_tenth_up_to_the_cap(
    then: Market, now: Market, cap_wei: int
) -> None:
    old = fees(then, cap_wei)
    new = replacement(old, now, cap_wei)
    if new is None or new.max_fee_wei == cap_wei:
        assert (
            max(
                old.max_fee_wei * 1.125 + 1,
                fees(now, cap_wei).max_fee_wei,
                now.gas_price_wei,
            )
            >= cap_wei
        )
        return
    assert new.max_fee_wei * 10 >= old.max_fee_wei * 11
    assert new.max_fee_wei > old.max_fee_wei
    assert new.priority_fee_wei * 10 >= old.priority_fee_wei * 11
    assert new.priority_fee_wei > old.priority_fee_wei


def test_replacement__at_the_cap__is_none_and_below_it_the_cap() -> None:
    assert (
        replacement(Fees(CAP, GWEI, legacy=False), Market(GWEI, GWEI, 0), CAP) is None
    )
    assert (
        replacement(
            Fees(CAP, CAP, legacy=True), Market(None, 0, 2 * CAP), CAP, underpriced=True
        )
        is None
    )
    assert replacement(
        Fees(CAP - 1, GWEI, legacy=False), Market(GWEI, GWEI, 0), CAP
    ) == Fees(CAP, GWEI * 9 // 8, legacy=False)


TIPLESS = Market(10 * GWEI, 0, 0)


def test_replacement__was_underpriced__has_a_tip_at_once_and_costs_little_more() -> (
    None
):
    old = fees(TIPLESS, CAP)
    assert replacement(old, TIPLESS, CAP, underpriced=True) == Fees(
        21 * GWEI, GWEI, legacy=False
    )
    assert replacement(
        Fees(CAP, 95, legacy=False), TIPLESS, CAP, underpriced=True
    ) == Fees(CAP, GWEI, legacy=False)
    better = Market(10 * GWEI, 30 * GWEI, 0)
    assert replacement(old, better, CAP, underpriced=True) == Fees(
        50 * GWEI, 30 * GWEI, legacy=False
    )
    assert replacement(
        Fees(0, 0, legacy=True), Market(None, 0, 0), CAP, underpriced=True
    ) == Fees(GWEI, GWEI, True)


# --- refusals -------------------------------------------------------------------------

WORDS = [
    # go-ethereum: core/error.go, core/txpool/errors.go, 1.10 to 1.16; subnet-evm and
    # coreth the same
    ("already known", Error.ALREADY_KNOWN),
    ("known transaction: 0xabc", Error.ALREADY_KNOWN),
    ("nonce too low", Error.NONCE_TOO_LOW),
    ("nonce too low: next nonce 7, tx nonce 5", Error.NONCE_TOO_LOW),
    ("nonce too low: address 0x1, tx: 5 state: 7", Error.NONCE_TOO_LOW),
    ("nonce too high: address 0x1, tx: 9 state: 7", Error.NONCE_GAP),
    ("gapped-nonce tx from delegated accounts", Error.NONCE_GAP),
    ("in-flight transaction limit reached for delegated accounts", Error.NONCE_GAP),
    ("replacement transaction underpriced", Error.REPLACEMENT_UNDERPRICED),
    (
        "replacement transaction underpriced: new tx gas fee cap 1 <= 2 queued",
        Error.REPLACEMENT_UNDERPRICED,
    ),
    ("transaction underpriced", Error.UNDERPRICED),
    ("transaction underpriced: gas tip cap 0, minimum needed 1", Error.UNDERPRICED),
    (
        "transaction underpriced: address 0x1 have gas fee cap (1) < pool minimum fee cap (25000000000)",
        Error.UNDERPRICED,
    ),
    (
        "transaction gas price below minimum: gas tip cap 0, minimum needed 1",
        Error.UNDERPRICED,
    ),
    (
        "max fee per gas less than block base fee: address 0x1, maxFeePerGas: 1, baseFee: 2",
        Error.BELOW_BASE_FEE,
    ),
    ("fee cap less than block base fee", Error.BELOW_BASE_FEE),
    ("insufficient funds for gas * price + value", Error.INSUFFICIENT_FUNDS),
    (
        "insufficient funds for gas * price + value: balance 0, tx cost 1, overshot 1",
        Error.INSUFFICIENT_FUNDS,
    ),
    ("insufficient funds for transfer", Error.INSUFFICIENT_FUNDS),
    ("txpool is full", Error.POOL_FULL),
    ("future transaction tries to replace pending", Error.POOL_FULL),
    ("intrinsic gas too low: gas 20000, minimum needed 21000", Error.GAS),
    ("intrinsic gas too low", Error.GAS),
    ("exceeds block gas limit", Error.GAS),
    ("insufficient gas for floor data gas cost: gas 1, minimum needed 2", Error.GAS),
    # anvil 1.7.1
    ("transaction already imported", Error.ALREADY_KNOWN),
    ("Insufficient funds for gas * price + value", Error.INSUFFICIENT_FUNDS),
    ("intrinsic gas too high -- tx.gas_limit > env.block.gas_limit", Error.GAS),
    ("max fee per gas less than block base fee", Error.BELOW_BASE_FEE),
    ("oversized data: transaction size 140000, limit 131072", Error.GAS),
    ("tx fee (1.08 ether) exceeds the configured cap (1.00 ether)", Error.FEE_CAP),
    # of no known error
    ("the sky is falling", Error.OTHER),
    ("", Error.OTHER),
]


@pytest.mark.parametrize(("words", "refusal"), WORDS)
def test_meaning__of_a_nodes_words(words: str, refusal: Error) -> None:
    assert classify(words) is refusal
    assert classify(words.upper()) is refusal


# --- remedies -------------------------------------------------------------------------

MARKET = Market(10 * GWEI, GWEI, 11 * GWEI)
RULES = Rules(Bounds(CAP, 10**18), stuck_after_s=60.0)
PENDING = Pending(
    nonce=7,
    gas=250_000,
    fees=Fees(21 * GWEI, GWEI, legacy=False),
    has_key=True,
    accepted=True,
    refusal=None,
    sent_age_s=1.0,
    signed_age_s=1.0,
    blocks=0,
    nonce_conflict_age_s=None,
)
OLD = replace(PENDING, sent_age_s=SEND_AGAIN_S, signed_age_s=61.0)
POOR = Fees(9 * GWEI, GWEI, legacy=False)
NOT_PAID = replace(PENDING, accepted=False, refusal=Error.UNDERPRICED)
NEVER = replace(PENDING, refusal=Error.GAS, accepted=False, signed_age_s=CERTAIN_S)

UNKNOWN = replace(
    OLD,
    refusal=Error.OTHER,
    accepted=False,
    blocks=99,
    unclassified_age_s=GIVEN_UP_AFTER_S,
)

REMEDIES = [
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
    ("a node calls it underpriced", replace(PENDING, refusal=Error.UNDERPRICED), 7, True, Action.REPLACE),
    ("another waits", replace(PENDING, refusal=Error.REPLACEMENT_UNDERPRICED), 7, True, Action.REPLACE),
    ("it pays less and may not pay more", replace(PENDING, fees=Fees(CAP, 1, False)), 7, True, Action.FEE_CAP_REACHED),
    ("it has no tip to speak of, at the cap", replace(NOT_PAID, fees=Fees(CAP, 95, False)), 7, True, Action.REPLACE),
    ("it pays less and the key is gone", replace(PENDING, fees=POOR, has_key=False), 7, True, Action.FEE_CAP_REACHED),
    ("unpayable", replace(PENDING, refusal=Error.INSUFFICIENT_FUNDS, accepted=False), 7, False, Action.INSUFFICIENT_FUNDS),
    ("it is payable again", replace(PENDING, refusal=Error.INSUFFICIENT_FUNDS, accepted=False), 7, True, Action.SEND),
    ("it pays less, and no more is payable", replace(PENDING, fees=POOR), 7, False, Action.INSUFFICIENT_FUNDS),
    ("its turn, blocks pass, and it is unpayable", replace(OLD, blocks=STUCK_BLOCKS), 7, False, Action.INSUFFICIENT_FUNDS),
    ("it is unpayable and in no hurry", OLD, 7, False, Action.SEND),
    ("a block does not hold it", NEVER, 7, True, Action.GIVE_UP),
    ("a block does not hold it, and it is unpayable", NEVER, 7, False, Action.GIVE_UP),
    ("a block does not hold it, and the key is gone", replace(NEVER, has_key=False), 7, True, Action.FEE_CAP_REACHED),
    ("a node has said so just now", replace(NEVER, signed_age_s=1.0), 7, True, Action.SEND),
    ("another node has taken it", replace(NEVER, accepted=True), 7, True, Action.WAIT),
    ("what does nothing was refused", replace(NEVER, is_cancellation=True), 7, True, Action.SEND),
    ("it is refused in unknown words for minutes", UNKNOWN, 7, True, Action.GIVE_UP),
    ("for minutes, and it is unpayable", UNKNOWN, 7, False, Action.GIVE_UP),
    ("for minutes, and the key is gone", replace(UNKNOWN, has_key=False), 7, True, Action.FEE_CAP_REACHED),
    ("for a while", replace(UNKNOWN, unclassified_age_s=GIVEN_UP_AFTER_S - 1), 7, True, Action.SEND),
    ("for minutes, behind another", UNKNOWN, 6, True, Action.SEND),
    ("for minutes, and then it was taken", replace(UNKNOWN, accepted=True, blocks=0), 7, True, Action.SEND),
    ("what does nothing is refused in unknown words", replace(UNKNOWN, is_cancellation=True), 7, True, Action.REPLACE),
    ("unknown words, and it pays less", replace(UNKNOWN, fees=POOR, unclassified_age_s=0.0), 7, True, Action.REPLACE),
    ("may cost more than a node allows", replace(UNKNOWN, refusal=Error.FEE_CAP, unclassified_age_s=0.0), 7, True, Action.SEND),
    ("more than a node allows, for minutes", replace(UNKNOWN, refusal=Error.FEE_CAP), 7, True, Action.GIVE_UP),
    ("a node says that the nonce is used", replace(PENDING, refusal=Error.NONCE_TOO_LOW), 7, True, Action.WAIT),
    ("the nonce is mined", PENDING, 8, True, Action.VERIFY_NONCE),
    ("the nonce was mined a moment ago", replace(PENDING, nonce_conflict_age_s=0.5), 8, True, Action.VERIFY_NONCE),
    ("the nonce was mined a while ago", replace(PENDING, nonce_conflict_age_s=CERTAIN_S), 8, True, Action.NONCE_USED_ELSEWHERE),
    ("it was contested and is not any more", replace(PENDING, nonce_conflict_age_s=99.0), 7, True, Action.WAIT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pending", "mined", "can_pay", "wanted"),
    [case[1:] for case in REMEDIES],
    ids=[c[0] for c in REMEDIES],
)
def test_decide(pending: Pending, mined: int, can_pay: bool, wanted: Action) -> None:
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
NOT_TAKEN = replace(PENDING, fees=USUAL, accepted=False, refusal=Error.BELOW_BASE_FEE)
UNPAID = replace(PENDING, fees=DEAR, accepted=False, refusal=Error.INSUFFICIENT_FUNDS)


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
        refusal=Error.FEE_CAP,
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
        replace(NOT_TAKEN, fees=fees(TIPLESS, CAP), refusal=Error.UNDERPRICED),
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
    ("words", "over"),
    [
        ("gas required exceeds allowance (8000000)", True),  # go-ethereum and its kin
        ("Out of gas: gas required exceeds allowance: 8000000", True),  # anvil 1.7.1
        ("exceeds block gas limit", True),
        ("execution timeout", False),
        ("invalid opcode: INVALID", False),
        ("EVM error InvalidFEOpcode", False),
    ],
)
def test_over_the_limit__of_a_nodes_words(words: str, over: bool) -> None:
    assert over_the_limit(words) is over


# --- instance tags
# ----------------------------------------------------------------------------------------------------------

TAG = bytes(range(8))
KEY = "0x" + "4c" * 32
TO = "0x" + "11" * 20


@pytest.mark.parametrize(
    "prices",
    [{"gasPrice": 7}, {"maxFeePerGas": 9, "maxPriorityFeePerGas": 2, "type": 2}],
)
def test_read__gives_back_what_was_signed(prices: dict[str, int]) -> None:
    data = append_tag("0x5d3a7180", TAG)
    fields = {
        "nonce": 300,
        "gas": 21_000,
        "to": TO,
        "value": 0,
        "data": data,
        "chainId": 179188,
    }
    found = decode(
        bytes(Account.sign_transaction(fields | prices, KEY).raw_transaction)
    )
    assert (found.nonce, found.gas, found.to, found.value_wei) == (300, 21_000, TO, 0)
    assert found.data == bytes.fromhex(data[2:])
    assert found.fees == (
        Fees(7, 7, legacy=True) if "gasPrice" in prices else Fees(9, 2, legacy=False)
    )
    assert extract_tag(found.data) == TAG


@pytest.mark.parametrize(
    "data", ["", "5d3a7180", "5d3a7180" + "00" * 64, "7376" + "00" * 8]
)
def test_mark_of__data_that_no_ledger_wrote__is_none(data: str) -> None:
    assert extract_tag(bytes.fromhex(data)) is None


# --- endpoints ------------------------------------------------------------------------

HERE = 179188


def seen(
    head: int, chain_id: int = HERE, age_s: float = 0.0, answered: bool = True
) -> EndpointProbe:
    return EndpointProbe(answered, chain_id, head, age_s)


def test_healths__compared_with_the_best() -> None:
    looks = [
        seen(100),
        seen(100 - BEHIND_BLOCKS),
        seen(99 - BEHIND_BLOCKS),
        seen(9999, chain_id=1),
        EndpointProbe(),
    ]
    assert healths(looks, HERE) == [
        Health.ALIVE,
        Health.ALIVE,
        Health.BEHIND,
        Health.WRONG_CHAIN,
        Health.UNKNOWN,
    ]


def test_healths__the_best_is_gone__the_other_has_to_catch_up_for_a_while() -> None:
    assert healths([seen(100, answered=False), seen(50)], HERE) == [
        Health.UNREACHABLE,
        Health.BEHIND,
    ]
    gone = seen(100, answered=False, age_s=MEMORY_S + 1)
    assert healths([gone, seen(50)], HERE) == [Health.UNREACHABLE, Health.ALIVE]


def test_healths__one_alone__is_never_behind() -> None:
    assert healths([seen(0)], HERE) == [Health.ALIVE]


FAR = BEHIND_BLOCKS + 1


@pytest.mark.parametrize(
    ("heads", "place", "others"),
    [
        ([100 + FAR, 100, 99], 0, 100),
        ([99, 100 + FAR, 100], 1, 100),
        ([100 + BEHIND_BLOCKS, 100, 99], 0, None),  # not far
        ([100 + FAR, 100], 0, None),  # word against word
        ([200, 100, 150], 0, None),  # the others are not at one
        ([100 + FAR, 100 + FAR, 100], 0, None),
    ],
)
def test_far_behind__only_where_two_or_more_are_at_one(
    heads: list[int], place: int, others: int | None
) -> None:
    assert others_head(place, [seen(head) for head in heads], HERE) == others


def test_far_behind__those_of_another_chain_or_that_do_not_answer__do_not_count() -> (
    None
):
    looks = [
        seen(200),
        seen(100),
        seen(100, chain_id=1),
        seen(100, answered=False),
        seen(100, age_s=MEMORY_S + 1),
    ]
    assert others_head(0, looks, HERE) is None


def test_endpoint__implausibly_ahead__is_excluded() -> None:
    alone = AheadTracker()
    for look in range(LOOKS_ALONE):
        assert not alone.is_implausibly_ahead
        alone = alone.seen_again(100 + look)
    assert alone.is_implausibly_ahead
    liar = EndpointProbe(True, HERE, 10**9, 0.0, is_implausibly_ahead=True)
    assert healths([liar, seen(100), seen(99)], HERE) == [
        Health.AHEAD,
        Health.ALIVE,
        Health.ALIVE,
    ]
    assert not alone.seen_again(None).is_implausibly_ahead


def test_alone__others_that_stand_still__are_behind() -> None:
    alone = AheadTracker()
    for _ in range(2 * LOOKS_ALONE):
        alone = alone.seen_again(100)
    assert not alone.is_implausibly_ahead


@pytest.mark.parametrize(
    ("in_a_row", "wait_s"), [(0, 0), (2, 0), (3, 4), (5, 16), (7, 60), (5000, 60)]
)
def test_claims_in_vain__ever_longer_waits(in_a_row: int, wait_s: float) -> None:
    assert claim_backoff.revert_delay_s(in_a_row) == wait_s


@pytest.mark.parametrize(
    ("request_", "pending", "mined", "wanted"),
    [
        (TransactionRequest.BUMP, PENDING, 7, Action.REPLACE),
        (TransactionRequest.CANCEL, PENDING, 7, Action.GIVE_UP),
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
def test_as_requested__is_done_unless_the_nonce_is_mined_or_the_key_is_gone(
    request_: TransactionRequest, pending: Pending, mined: int, wanted: Action
) -> None:
    decision = decide(pending, mined, MARKET, RULES, 10**18)
    assert as_requested(pending, decision, request_, MARKET, RULES).action is wanted
