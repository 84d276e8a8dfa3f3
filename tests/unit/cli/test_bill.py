"""A job's bill as the contract computes it, in numbers and in words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from supervisor_tasks.cli.bill import Bill, assigned_prices, minutes_of
from supervisor_tasks.jobs.model import ChainStatus, Job, Outcome
from supervisor_tasks.provider.offer import Prices, RegisteredPrices
from tests.support.golden_cases import JOB, PRICES

A_MINUTE = (
    8_500_000_000_000_000_000
    + 8 * 950_000_000_000_000_000
    + 16_000 * 80_000_000_000_000
)


def ended(status: ChainStatus, elapsed_s: int) -> Job:
    return replace(
        JOB, outcome=Outcome(status=status, elapsed_s=elapsed_s), chain_status=status
    )


@pytest.mark.parametrize(
    ("status", "elapsed_s", "minutes"),
    [
        (ChainStatus.FINISHED, 119, 1),
        (ChainStatus.FINISHED, 120, 2),
        (ChainStatus.CANCELLED, 59, 0),
        (ChainStatus.PANICKED, 600, 0),
    ],
)
def test_bill__of_an_end__is_minutes_times_resources_times_prices(
    status: ChainStatus, elapsed_s: int, minutes: int
) -> None:
    bill = Bill(ended(status, elapsed_s), PRICES, 0, 0)
    assert minutes_of(bill.job) == minutes
    assert bill.wei == minutes * A_MINUTE
    assert bill.document()["bill_wei"] == str(minutes * A_MINUTE)


def test_bill__before_the_end__is_the_price_of_a_minute() -> None:
    facts = Bill(replace(JOB, outcome=None), PRICES, 0, 0).facts()
    assert (
        facts["bill"].text
        == "1 GPU x 8.5 + 8 CPUs x 0.95 + 16000 MB x 0.00008 = 17.38 credits a minute"
    )


@pytest.mark.parametrize(
    ("earned_wei", "told"), [(2 * A_MINUTE, False), (A_MINUTE, True)]
)
def test_paid__another_amount_than_billed__is_told(earned_wei: int, told: bool) -> None:
    facts = Bill(ended(ChainStatus.FINISHED, 120), PRICES, earned_wei, 7).facts()
    assert ("not as billed" in facts["paid"].text) is told


def test_bill__prices_are_not_known__is_left_open() -> None:
    bill = Bill(ended(ChainStatus.FINISHED, 120), None, 5, 7)
    assert bill.facts()["bill"].text == ""
    assert bill.document()["bill_wei"] is None


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = replace(PRICES, cpu_wei_per_min=10**18)
REGISTERED = (
    RegisteredPrices(NOON, PRICES),
    RegisteredPrices(NOON + timedelta(hours=2), LATER),
)
A_LATER_MINUTE = A_MINUTE + 8 * 50_000_000_000_000_000


@pytest.mark.parametrize(
    ("claimed_h", "earned_wei", "expected"),
    [
        (1, 2 * A_MINUTE, PRICES),
        (3, 2 * A_LATER_MINUTE, LATER),
        (3, 2 * A_MINUTE, PRICES),  # it waited for its claim while the prices changed
        (1, 2 * A_LATER_MINUTE, LATER),  # a worker saw the change after the claim
        (3, 0, LATER),  # not paid yet
        (1, 0, PRICES),
        (1, A_MINUTE, PRICES),  # fewer credits were locked
        (-1, 0, PRICES),  # claimed before a worker saw any prices
    ],
)
def test_assigned_prices__registered_before_the_claim__or_as_paid(
    claimed_h: int, earned_wei: int, expected: Prices
) -> None:
    claimed_at = NOON + timedelta(hours=claimed_h)
    assert (
        assigned_prices(
            ended(ChainStatus.FINISHED, 120), claimed_at, REGISTERED, earned_wei
        )
        == expected
    )


def test_assigned_prices__none_seen__are_not_known() -> None:
    assert assigned_prices(JOB, NOON, (), 0) is None
