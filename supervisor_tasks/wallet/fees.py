"""What a transaction pays for gas, and what its replacement pays. Pure; all prices are
wei per gas.
"""

from dataclasses import dataclass

BASE_FEE_FACTOR = 2  # a transaction can be mined until the base fee has doubled
DEFAULT_TIP_WEI = 10**9  # for a node that reports no usual tip
STEP_PER_MILLE = 125  # a replacement pays this much more; nodes require 100


@dataclass(frozen=True, slots=True)
class Market:
    """The prices that a node reports. A chain without a base fee takes legacy
    transactions.
    """

    base_fee_wei: int | None
    tip_wei: int
    gas_price_wei: int

    @property
    def least_wei(self) -> int:
        """The lowest price at which a transaction can be mined now."""
        if self.base_fee_wei is None:
            return self.gas_price_wei
        return self.base_fee_wei


@dataclass(frozen=True, slots=True)
class Fees:
    """Prices of one transaction."""

    max_fee_wei: int
    priority_fee_wei: int
    legacy: bool

    def at_most(self, cap_wei: int) -> "Fees":
        """The same prices, within the cap."""
        price = min(self.max_fee_wei, cap_wei)
        return Fees(price, min(self.priority_fee_wei, price), self.legacy)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that the operator lets a transaction pay: WALLET_MAX_WEI_PER_GAS and
    WALLET_MAX_WEI_PER_TX.
    """

    wei_per_gas: int
    wei_per_tx: int

    def of(self, gas: int) -> int:
        """The most that a transaction with this much gas may pay per gas."""
        return min(self.wei_per_gas, self.wei_per_tx // max(gas, 1))


def fees(market: Market, cap_wei: int) -> Fees:
    """What a new transaction pays; never more than the cap."""
    if market.base_fee_wei is None:
        price = min(market.gas_price_wei, cap_wei)
        return Fees(price, price, legacy=True)
    wanted = BASE_FEE_FACTOR * market.base_fee_wei + market.tip_wei
    return Fees(min(wanted, cap_wei), min(market.tip_wei, cap_wei), legacy=False)


def replacement(
    old: Fees, market: Market, cap_wei: int, *, underpriced: bool = False
) -> Fees | None:
    """What the same transaction pays when it is signed again: a step more and at least
    today's price, within the cap. None when the cap leaves no room. A transaction that
    a node rejected as underpriced is in no pool, so no pool requires a step of both
    prices. It mostly lacks the tip, which may have been zero; the most that it pays
    rises only as far as the tip needs.
    """
    least_tip_wei = 0
    if underpriced:
        least_tip_wei = DEFAULT_TIP_WEI
    if old.legacy:
        wanted_wei = max(_step(old.max_fee_wei), market.gas_price_wei, least_tip_wei)
        price = min(wanted_wei, cap_wei)
        if price <= old.max_fee_wei:
            return None
        return Fees(price, price, legacy=True)
    now = fees(market, cap_wei)
    tip_wei = max(_step(old.priority_fee_wei), now.priority_fee_wei, least_tip_wei)
    if underpriced:
        wanted_wei = max(
            old.max_fee_wei, BASE_FEE_FACTOR * (market.base_fee_wei or 0) + tip_wei
        )
    else:
        wanted_wei = max(_step(old.max_fee_wei), now.max_fee_wei)
    most_wei = min(wanted_wei, cap_wei)
    new = Fees(most_wei, min(tip_wei, most_wei), legacy=False)
    if most_wei > old.max_fee_wei:
        return new
    if underpriced and new.priority_fee_wei > old.priority_fee_wei:
        return new
    return None


def much_cheaper(now: Fees, old: Fees) -> bool:
    """Whether `now` is at least one step cheaper than `old`."""
    return _step(now.max_fee_wei) <= old.max_fee_wei


def _step(price_wei: int) -> int:
    """The price a step higher, rounded up; by one wei at least."""
    rise_wei = -(-price_wei * STEP_PER_MILLE // 1000)
    return price_wei + max(rise_wei, 1)
