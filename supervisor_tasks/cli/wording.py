"""The ledger's names in words for an operator, and their values with units. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from supervisor_tasks.cli.views import LEAST_ID, plain, span
from supervisor_tasks.provider.offer import rounded_credits

DISPLAY_NAMES = {
    "job_id": "job",
    "slurm_id": "SLURM id",
    "tx_hash": "transaction",
    "some": "these",
    "slurm_jobs": "SLURM's jobs",
}
LONG_HEX = re.compile(r"0x[0-9a-f]{64}")
LEAST_IN_COINS = 10**12  # of wei: less than this has too many zeros behind the point
GWEI = 10**9


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def joined(names: Iterable[str], nothing: str = "none") -> str:
    """Return names with commas between, or the word for no names."""
    return ", ".join(names) or nothing


def counted_jobs(jobs: Mapping[str, int], states: Iterable[str]) -> str:
    """Return how many jobs are in these states, by the number of each state."""
    return counted(sum(jobs.get(state, 0) for state in states), "job")


def coins(wei: int) -> str:
    """Return an amount of the chain's coin, in which gas is paid."""
    return f"{wei} wei" if wei < LEAST_IN_COINS else f"{rounded_credits(wei)} coins"


def gas_price(wei: int) -> str:
    """Return a price of gas in gwei, as wallets and explorers show it."""
    return f"{wei / GWEI:,.9f}".rstrip("0").rstrip(".") + " gwei per gas"


UNITS: Mapping[str, Callable[[Any], str]] = {
    "_s": lambda value: span(float(value)),
    "_min": lambda value: f"{plain(value)} minutes",
    "_mb": lambda value: f"{plain(value)} MB",
    "_bytes": lambda value: f"{plain(value)} bytes",
    "_wei": lambda value: coins(int(value)),
}
"""How a number is shown, by the end of its name."""


def for_display(details: Mapping[str, Any]) -> dict[str, str]:
    """Return details with names in words, and values in words with units."""
    shown = dict[str, str]()
    for name, value in details.items():
        unit = _unit_of(name)
        words = DISPLAY_NAMES.get(name, name.removesuffix(unit).replace("_", " "))
        shown[words] = _text(value, UNITS.get(unit, plain))
    return shown


def listed(details: Mapping[str, Any]) -> str:
    """Return details in one line."""
    return ", ".join(f"{name} {text}" for name, text in for_display(details).items())


def cut_ids(text: str) -> str:
    """Shorten ids of jobs and hashes to a beginning that commands accept."""
    return LONG_HEX.sub(lambda found: found[0][:LEAST_ID], text)


def _unit_of(name: str) -> str:
    """Return the end of a name that is a unit; empty if it has none."""
    for unit in UNITS:
        if name.endswith(unit):
            return unit
    return ""


def _text(value: Any, with_unit: Callable[[Any], str]) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} {_text(entry, with_unit)}" for name, entry in value.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(_text(entry, with_unit) for entry in value)
    if _is_number(value):
        return cut_ids(with_unit(value))
    return cut_ids(plain(value))


def _is_number(value: Any) -> bool:
    """Whether this is a number, or the decimal digits of one; True and False are
    none.
    """
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        return value.isdecimal()
    return isinstance(value, int | float)
