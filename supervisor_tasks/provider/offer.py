"""What a provider offers the grid: machines, prices and labels; and how two offers
differ. Pure.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Any

from benchmarks.label_format import normalised, number_text

CREDIT_DIGITS = 18
CREDIT = 10**CREDIT_DIGITS  # of the contract's smallest unit
# times the reference, or a hundredth of it: such a price is rarely meant
FAR_OFF_FACTOR = 100
MAX_LABEL_CHARS = 60  # characters of a label's value, in a line about a difference

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, order=True)
class Machine:
    """A node as the grid knows it."""

    gpus: int
    cpus: int
    mem_mb: int

    def __str__(self) -> str:
        return f"{self.cpus} CPUs, {self.gpus} GPUs, {self.mem_mb} MB"


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of a GPU, a CPU and a MB of memory for a minute, in wei (credits x
    1e18).
    """

    gpu_wei_per_min: int
    cpu_wei_per_min: int
    mem_wei_per_min: int

    def named(self) -> dict[str, int]:
        """Return each price by what it is for."""
        return {
            field.name.partition("_")[0]: getattr(self, field.name)
            for field in fields(self)
        }

    def of_minute(self, *, gpus: int, cpus: int, mem_mb: int) -> int:
        """Return the price of a minute of these resources in wei, as the contract
        computes it.
        """
        return (
            gpus * self.gpu_wei_per_min
            + cpus * self.cpu_wei_per_min
            + mem_mb * self.mem_wei_per_min
        )


# without settings, in credits: 8.5, 0.95 and 0.00008
USUAL_PRICES = Prices(
    gpu_wei_per_min=8_500_000_000_000_000_000,
    cpu_wei_per_min=950_000_000_000_000_000,
    mem_wei_per_min=80_000_000_000_000,
)


@dataclass(frozen=True, slots=True)
class RegisteredPrices:
    """The prices that the contract has of the provider, and since when a worker has
    seen them there.
    """

    since: datetime
    prices: Prices


@dataclass(frozen=True, slots=True)
class Offer:
    """Everything that a provider registers. Labels are sorted by key."""

    machines: tuple[Machine, ...]
    prices: Prices
    labels: Labels

    @property
    def digest(self) -> str:
        """A digest that is equal for equal offers. Nodes have no names on the grid, so
        their order does not matter.
        """
        machines = list(map(asdict, sorted(self.machines)))
        return digest([machines, asdict(self.prices), self.labels])

    def plain(self) -> dict[str, Any]:
        """Return the offer for a document."""
        kinds = [
            {**asdict(machine), "nodes": number}
            for machine, number in Counter(self.machines).items()
        ]
        prices = {
            f"{name}_credits_per_min": format_credits(wei)
            for name, wei in self.prices.named().items()
        }
        return {"machines": kinds, "prices": prices, "labels": dict(self.labels)}


def digest(document: Any) -> str:
    """Return a short name for a document. No other document has the same one."""
    written = json.dumps(document, sort_keys=True).encode()
    return hashlib.sha256(written).hexdigest()[:32]


def machines_digest(machines: Sequence[Machine]) -> str:
    """Return a digest that is equal for the same hardware in any order."""
    return digest([[one.gpus, one.cpus, one.mem_mb] for one in sorted(machines)])


def same_machines(one: Sequence[Machine], other: Sequence[Machine]) -> bool:
    """Whether both are the same hardware, in any order."""
    return sorted(one) == sorted(other)


# --- prices ---------------------------------------------------------------------------


def format_credits(wei: int) -> str:
    """Return an amount of wei in credits, exactly."""
    whole, part = divmod(wei, CREDIT)
    return f"{whole}.{part:0{CREDIT_DIGITS}d}".rstrip("0").rstrip(".")


def rounded_credits(wei: int, digits: int = 6) -> str:
    """Return an amount of wei in credits, rounded down to so many decimals; a smaller
    amount keeps two digits.
    """
    exact = Decimal(wei).scaleb(-CREDIT_DIGITS)
    if 0 < exact < Decimal(10) ** -digits:
        return f"{exact:.1e}"
    return format_credits(wei - wei % 10 ** (CREDIT_DIGITS - digits))


def price_warnings(prices: Prices, reference: Prices) -> list[str]:
    """Return a line for each price out of the expected range: at least a hundred times
    the usual one, or at most a hundredth.
    """
    usual, warnings = reference.named(), list[str]()
    for name, wei in prices.named().items():
        if wei >= FAR_OFF_FACTOR * usual[name] or FAR_OFF_FACTOR * wei <= usual[name]:
            price, usual_price = format_credits(wei), format_credits(usual[name])
            warnings.append(
                f"the {name} price is {price} credits a minute; usual are {usual_price}: check the settings"
            )
    return warnings


# --- labels ---------------------------------------------------------------------------


def normalised_labels(given: Mapping[str, str]) -> dict[str, str]:
    """Return labels in the grid's form. Raises ValueError for a label that is empty in
    that form, and for two with the same key; a retry does not help.
    """
    labels = dict[str, str]()
    for key, value in given.items():
        name, text = normalised(key), normalised(value)
        if "" in (name, text):
            raise ValueError(
                f"labels whose keys and values have a letter or a digit (unlike {key}={value})"
            )
        if name in labels:
            raise ValueError(f"each label once (two of them are called {name})")
        labels[name] = text
    return labels


def label_texts(values: Mapping[str, float | str]) -> dict[str, str]:
    """Return results of benchmarks as labels: numbers with two decimals. A result that
    is empty or zero as a label is left out.
    """
    texts = dict[str, str]()
    for key, value in values.items():
        text = normalised(value) if isinstance(value, str) else number_text(value)
        if text not in ("", number_text(0)):
            texts[key] = text
    return texts


def merged(
    machine: Mapping[str, str], operator: Mapping[str, str], override: Collection[str]
) -> dict[str, str]:
    """Return the machine's labels and the operator's. For a key that both have, the
    operator's counts only if it is in `override`.
    """
    overriding = {key: operator[key] for key in override if key in operator}
    return {**operator, **machine, **overriding}


def shadowed_labels(
    machine: Mapping[str, str], operator: Mapping[str, str], override: Collection[str]
) -> list[str]:
    """Return a line for each of the operator's labels that does not count."""
    return [
        f"{key}={operator[key]} does not count, as {machine[key]!r} was measured: LABELS_OVERRIDE={key} puts yours first"
        for key in sorted(operator.keys() & machine.keys() - set(override))
        if operator[key] != machine[key]
    ]


def sorted_labels(labels: Mapping[str, str]) -> Labels:
    """Return labels in the order in which they are registered."""
    return tuple(sorted(labels.items()))


# --- differences ----------------------------------------------------------------------


def differences(old: Offer, offered: Offer) -> list[str]:
    """Return a line for each difference of an offer from an old one."""
    return [
        *machine_differences(old.machines, offered.machines),
        *price_differences(old.prices, offered.prices),
        *label_differences(dict(old.labels), dict(offered.labels)),
    ]


def machine_differences(
    old: Sequence[Machine], offered: Sequence[Machine]
) -> list[str]:
    """Return how many nodes of each kind are missing in the offer, and how many are new
    in it.
    """
    before, after = Counter(old), Counter(offered)
    less = [
        f"{number} nodes less with {kind}"
        for kind, number in sorted((before - after).items())
    ]
    more = [
        f"{number} nodes more with {kind}"
        for kind, number in sorted((after - before).items())
    ]
    return less + more


def price_differences(old: Prices, offered: Prices) -> list[str]:
    """Return the prices that have changed, in credits."""
    before, lines = old.named(), list[str]()
    for name, wei in offered.named().items():
        if wei != before[name]:
            was, now = format_credits(before[name]), format_credits(wei)
            lines.append(f"the {name} price was {was} credits a minute, is {now}")
    return lines


def label_differences(old: Mapping[str, str], offered: Mapping[str, str]) -> list[str]:
    """Return the labels that are new, changed or removed."""
    lines = list[str]()
    for key in sorted(old.keys() | offered.keys()):
        was, now = old.get(key), offered.get(key)
        if was != now:
            lines.append(f"the label {key} was {_shown(was)}, is {_shown(now)}")
    return lines


def _shown(value: str | None) -> str:
    if value is None:
        return "absent"
    return repr(value[:MAX_LABEL_CHARS])
