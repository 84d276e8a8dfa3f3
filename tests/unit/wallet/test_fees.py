"""The fee of a new transaction, and that of its replacement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.wallet.fees import Bounds, Fees, Market, fees, replacement

GWEI = 10**9
CAP = 1000 * GWEI
prices = st.integers(0, 10**13)
markets = st.builds(Market, st.none() | prices, prices, prices)


@pytest.mark.parametrize(
    ("gas", "most_wei"), [(1, 50), (20, 50), (21, 47), (1000, 1), (1001, 0), (0, 50)]
)
def test_bounds__of_a_transaction__are_the_lower_one_of_gas_price_and_whole_cost(
    gas: int, most_wei: int
) -> None:
    assert Bounds(wei_per_gas=50, wei_per_tx=1000).of(gas) == most_wei


@pytest.mark.parametrize(
    ("market", "expected"),
    [
        # outlives a doubled base fee, and pays the tip
        (Market(10 * GWEI, 2 * GWEI, 0), Fees(22 * GWEI, 2 * GWEI, legacy=False)),
        (Market(None, 0, 7 * GWEI), Fees(7 * GWEI, 7 * GWEI, legacy=True)),
    ],
    ids=["with a base fee", "without a base fee"],
)
def test_fees__market_with_or_without_a_base_fee__are_of_its_kind(
    market: Market, expected: Fees
) -> None:
    assert fees(market, CAP) == expected


@given(markets, st.integers(1, 10**13))
def test_fees__any_market__are_never_above_the_cap_nor_the_tip_above_the_fee(
    market: Market, cap_wei: int
) -> None:
    price = fees(market, cap_wei)
    assert price.priority_fee_wei <= price.max_fee_wei <= cap_wei


@given(markets, markets, st.integers(1, 10**13), st.booleans())
def test_replacement__any_two_markets__pays_at_least_todays_price_within_the_cap(
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
def test_replacement__waits_in_a_pool__raises_fee_and_tip_by_a_step_up_to_the_cap(
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


@pytest.mark.parametrize(
    ("price_wei", "next_wei"),
    [
        (0, 1),
        (1, 2),
        (7, 8),
        (8, 9),
        (9, 11),
        (1000, 1125),
        (1001, 1127),
        (30 * GWEI + 1, 33_750_000_002),
    ],
)
def test_replacement__legacy_price__rises_by_an_eighth_rounded_up(
    price_wei: int, next_wei: int
) -> None:
    old = Fees(price_wei, price_wei, legacy=True)
    new = replacement(old, Market(None, 0, 0), CAP)
    assert new == Fees(next_wei, next_wei, legacy=True)
