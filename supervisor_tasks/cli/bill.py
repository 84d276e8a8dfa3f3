"""A job's bill: minutes, resources and prices, as the contract computes it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.cli.views import Cell
from supervisor_tasks.jobs.model import ChainStatus, Definition, Job
from supervisor_tasks.provider.offer import Prices, format_credits, parse_credits

NAMES = ("gpu", "cpu", "mem")


def registered_prices(told: Mapping[str, Any] | None) -> Prices | None:
    """Return the prices that the contract has of us, from what `provider show` tells; None if that is not known."""
    offer = (told or {}).get("registered")
    if not offer:
        return None
    return Prices(*(parse_credits(offer["prices"][f"{name}_credits_per_min"]) for name in NAMES))


def minutes_of(job: Job) -> int:
    """Return the minutes that the customer pays for; 0 for a job that has not ended, or has ended as PANICKED."""
    if job.outcome is None or job.outcome.status is ChainStatus.PANICKED:
        return 0
    return job.outcome.minutes


def price_of_minute(size: Definition, prices: Prices) -> int:
    """Return the price of a minute of a job in wei."""
    return prices.of_minute(gpus=size.gpus, cpus=size.cpus, mem_mb=size.memory_mb)


@dataclass(frozen=True, slots=True)
class Bill:
    """A job's bill at the registered prices, None if they are not known, and what the contract has paid, both in wei."""

    job: Job
    prices: Prices | None
    earned_wei: int
    fees_wei: int

    @property
    def wei(self) -> int | None:
        """What the customer pays. The contract bills no more than he has locked, which is not known here."""
        return None if self.prices is None else minutes_of(self.job) * price_of_minute(self.job.definition, self.prices)

    def document(self) -> dict[str, Any]:
        """Return the bill for programs. The wei are text, as numbers of JSON are not exact."""
        price = None if self.prices is None else price_of_minute(self.job.definition, self.prices)
        return {
            "minutes": minutes_of(self.job),
            "price_of_minute_wei": None if price is None else str(price),
            "bill_wei": None if self.wei is None else str(self.wei),
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
        units = ((size.gpus, "GPUs", "gpu"), (size.cpus, "CPUs", "cpu"), (size.memory_mb, "MB", "mem"))
        sums = [f"{number} {unit} x {format_credits(price[name])}" for number, unit, name in units if number]
        if self.job.outcome is None:
            return f"{' + '.join(sums)} = {format_credits(price_of_minute(size, self.prices))} credits a minute"
        return f"{minutes_of(self.job)} min x ({' + '.join(sums)}) = {format_credits(self.wei or 0)} credits"

    def _paid(self) -> str:
        """Return what was paid; if that is not the bill, what can be the cause."""
        paid = f"{format_credits(self.earned_wei)} credits earned, {format_credits(self.fees_wei)} paid for gas"
        if not self.job.chain_status.cold or self.wei in (None, self.earned_wei):
            return paid
        return f"{paid}; not as billed: other prices when it was assigned, too few locked credits, or the grid's cut"
