"""What a provider offers the grid: machines, prices, labels; and how two offers differ. Pure."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.labels import normalised, number_text

CREDIT_DIGITS = 18
FAR_OFF = 100  # times the reference, or a hundredth of it: a digit too many is rarely meant
SHOWN = 60  # characters of a label's value, where differences are told

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
    """What a GPU, a CPU and a MB of memory cost a minute, in wei (credits x 1e18)."""

    gpu_wei_per_min: int
    cpu_wei_per_min: int
    mem_wei_per_min: int

    def named(self) -> dict[str, int]:
        """Each price by what it is for."""
        return {field.name.partition("_")[0]: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Offer:
    """All that is registered of a provider. Labels are sorted by key."""

    machines: tuple[Machine, ...]
    prices: Prices
    labels: Labels

    @property
    def digest(self) -> str:
        """Equal for offers that say the same. Nodes have no names on the grid: their order says nothing."""
        return digest([sorted(map(asdict, self.machines), key=_by_values), asdict(self.prices), self.labels])

    def plain(self) -> dict[str, Any]:
        """For a document."""
        kinds = [{**asdict(machine), "nodes": number} for machine, number in Counter(self.machines).items()]
        prices = {f"{name}_credits_per_min": in_credits(wei) for name, wei in self.prices.named().items()}
        return {"machines": kinds, "prices": prices, "labels": dict(self.labels)}


def digest(document: Any) -> str:
    """A short name of a document, which no other one has."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def _by_values(machine: dict[str, int]) -> list[int]:
    return list(machine.values())


def machines_digest(machines: Sequence[Machine]) -> str:
    """Equal for the same hardware, in whatever order."""
    return digest([[one.gpus, one.cpus, one.mem_mb] for one in sorted(machines)])


def same_machines(one: Sequence[Machine], other: Sequence[Machine]) -> bool:
    """Whether it is the same hardware, in whatever order."""
    return sorted(one) == sorted(other)


# --- prices -------------------------------------------------------------------------------------------------------------


def in_credits(wei: int) -> str:
    """An amount of wei in credits, exactly."""
    whole, part = divmod(wei, 10**CREDIT_DIGITS)
    return f"{whole}.{part:0{CREDIT_DIGITS}d}".rstrip("0").rstrip(".")


def far_off(prices: Prices, reference: Prices) -> list[str]:
    """What is odd about prices, a line each: a hundred times what is usual, or a hundredth."""
    usual = reference.named()
    return [
        f"the {name} price is {in_credits(wei)} credits a minute; usual are {in_credits(usual[name])}: is it meant so?"
        for name, wei in prices.named().items()
        if wei >= FAR_OFF * usual[name] or FAR_OFF * wei <= usual[name]
    ]


# --- labels -------------------------------------------------------------------------------------------------------------


def normalised_labels(given: Mapping[str, str]) -> dict[str, str]:
    """Labels as the grid has them. Raises ValueError for one that nothing is left of, and for two of the same key."""
    labels = dict[str, str]()
    for key, value in given.items():
        name, text = normalised(key), normalised(value)
        if not (name and text):
            raise ValueError(f"labels whose keys and values have a letter or a digit (unlike {key}={value})")
        if name in labels:
            raise ValueError(f"each label once (two of them are called {name})")
        labels[name] = text
    return labels


def label_texts(values: Mapping[str, float | str]) -> dict[str, str]:
    """Results of benchmarks as labels: numbers with two decimals. What is nothing as a label is none."""
    texts = {key: normalised(value) if isinstance(value, str) else number_text(value) for key, value in values.items()}
    return {key: text for key, text in texts.items() if text and text != number_text(0)}


def merged(machine: Mapping[str, str], operator: Mapping[str, str], override: Collection[str]) -> dict[str, str]:
    """The machine's labels and the operator's; of a key that both have, the operator's counts only if he says so."""
    return {**operator, **machine, **{key: operator[key] for key in override if key in operator}}


def overruled(machine: Mapping[str, str], operator: Mapping[str, str], override: Collection[str]) -> list[str]:
    """What the operator is to know of his labels that do not count, a line each."""
    return [
        f"{key}={operator[key]} does not count, as {machine[key]!r} was measured: LABELS_OVERRIDE={key} puts yours first"
        for key in sorted(operator.keys() & machine.keys() - set(override))
        if operator[key] != machine[key]
    ]


def sorted_labels(labels: Mapping[str, str]) -> Labels:
    """As they are registered."""
    return tuple(sorted(labels.items()))


# --- differences --------------------------------------------------------------------------------------------------------


def differences(known: Offer, offered: Offer) -> list[str]:
    """What is new in an offer, a line each."""
    return [
        *machine_differences(known.machines, offered.machines),
        *price_differences(known.prices, offered.prices),
        *label_differences(dict(known.labels), dict(offered.labels)),
    ]


def machine_differences(known: Sequence[Machine], offered: Sequence[Machine]) -> list[str]:
    """Nodes that are gone, and nodes that came, by their kind."""
    before, after = Counter(known), Counter(offered)
    gone = [f"{number} nodes less with {kind}" for kind, number in sorted((before - after).items())]
    return gone + [f"{number} nodes more with {kind}" for kind, number in sorted((after - before).items())]


def price_differences(known: Prices, offered: Prices) -> list[str]:
    """Prices that have changed, in credits."""
    before = known.named()
    return [
        f"the {name} price was {in_credits(before[name])} credits a minute, is {in_credits(wei)}"
        for name, wei in offered.named().items()
        if wei != before[name]
    ]


def label_differences(known: Mapping[str, str], offered: Mapping[str, str]) -> list[str]:
    """Labels that have changed, came or went."""
    changed = sorted(key for key in known.keys() | offered.keys() if known.get(key) != offered.get(key))
    return [f"the label {key} was {_shown(known.get(key))}, is {_shown(offered.get(key))}" for key in changed]


def _shown(value: str | None) -> str:
    return "absent" if value is None else repr(value[:SHOWN])
