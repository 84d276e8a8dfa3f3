"""A job's bill: minutes, resources and prices, as the contract computes it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from supervisor_tasks.cli.views import Cell
from supervisor_tasks.cli.wording import counted
from supervisor_tasks.jobs.model import ChainStatus, Definition, Job
from supervisor_tasks.provider.offer import Prices, RegisteredPrices, format_credits


def assigned_prices(
    job: Job,
    claimed_at: datetime,
    registered: Sequence[RegisteredPrices],
    earned_wei: int,
) -> Prices | None:
    """Return the prices that the contract took for a job; None if no registered prices
    are known.

    The contract takes the prices of the moment at which it assigns the job, and no call
    returns them. The job is claimed soon after. So they are the last ones that were
    registered before the claim, unless the payment shows others: a job can wait for its
    claim while the prices change. `registered` is in the order of time.
    """
    before, after = list[Prices](), list[Prices]()
    for one in registered:
        side = before if one.since <= claimed_at else after
        side.append(one.prices)
    likely_first = [*reversed(before), *after]
    for prices in likely_first:
        if minutes_of(job) * price_of_minute(job.definition, prices) == earned_wei:
            return prices
    return next(iter(likely_first), None)


def minutes_of(job: Job) -> int:
    """Return the minutes that the customer pays for; 0 for a job that has not ended, or
    has ended as PANICKED.
    """
    if job.outcome is None or job.outcome.status is ChainStatus.PANICKED:
        return 0
    return job.outcome.minutes


def price_of_minute(size: Definition, prices: Prices) -> int:
    """Return the price of a minute of a job in wei."""
    return prices.of_minute(gpus=size.gpus, cpus=size.cpus, mem_mb=size.memory_mb)


@dataclass(frozen=True, slots=True)
class Bill:
    """A job's bill at the prices of its assignment, None if they are not known, and
    what the contract has paid (wei).
    """

    job: Job
    prices: Prices | None
    earned_wei: int
    fees_wei: int

    @property
    def wei(self) -> int | None:
        """What the customer pays. The contract bills no more than he has locked, which
        is not known here.
        """
        if self.prices is None:
            return None
        return minutes_of(self.job) * price_of_minute(self.job.definition, self.prices)

    def document(self) -> dict[str, Any]:
        """Return the bill for programs. The wei are text, as numbers of JSON are not
        exact.
        """
        price_wei: str | None = None
        bill_wei: str | None = None
        if self.prices is not None:
            price_wei = str(price_of_minute(self.job.definition, self.prices))
            bill_wei = str(self.wei)
        return {
            "minutes": minutes_of(self.job),
            "price_of_minute_wei": price_wei,
            "bill_wei": bill_wei,
            "credits_wei": str(self.earned_wei),
            "gas_paid_wei": str(self.fees_wei),
        }

    def facts(self) -> dict[str, Cell]:
        """Return the bill in words."""
        return {"bill": Cell(self._parts()), "paid": Cell(self._paid())}

    def _parts(self) -> str:
        """Return how the bill is computed; before the end, the price of a minute."""
        if self.prices is None:
            return ""
        size, price = self.job.definition, self.prices.named()
        parts = (
            (size.gpus, counted(size.gpus, "GPU"), price["gpu"]),
            (size.cpus, counted(size.cpus, "CPU"), price["cpu"]),
            (size.memory_mb, f"{size.memory_mb} MB", price["mem"]),
        )
        of_minute = " + ".join(
            f"{text} x {format_credits(wei)}" for number, text, wei in parts if number
        )
        minutes, minute_wei = minutes_of(self.job), price_of_minute(size, self.prices)
        if self.job.outcome is None:
            return f"{of_minute} = {format_credits(minute_wei)} credits a minute"
        return f"{minutes} min x ({of_minute}) = {format_credits(minutes * minute_wei)} credits"

    def _paid(self) -> str:
        """Return what was paid; if that is not the bill, what can be the cause."""
        paid = f"{format_credits(self.earned_wei)} credits earned, {format_credits(self.fees_wei)} coins paid for gas"
        if not self.job.chain_status.is_final or self.wei in (None, self.earned_wei):
            return paid
        return f"{paid}; not as billed: too few locked credits, the grid's cut, or prices that no worker has seen"
