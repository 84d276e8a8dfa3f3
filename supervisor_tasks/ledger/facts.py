"""Facts: single typed values that one process writes down for another one, each with
the time of its last change.

A fact is declared once, as a `Fact` with its name and codec. The name is the key in the
table `facts`; a new name needs a migration. A value that SQL selects by gets a column
of its own instead. ledger/fact_store.py reads and writes them. Pure.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, TypeVar

from supervisor_tasks.alarms.alarm_names import AlarmName

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Value]):
    """How a value is stored as text. Equal values must have equal texts: a set compares
    the texts.
    """

    encode: Callable[[Value], str]
    decode: Callable[[str], Value]


def _optional_int(stored: str) -> int | None:
    return int(stored) if stored else None


TEXT: Codec[str] = Codec(str, str)
INT: Codec[int] = Codec(str, int)
FLAG: Codec[bool] = Codec(
    lambda value: "true" if value else "false", lambda stored: stored == "true"
)
OPTIONAL_INT: Codec[int | None] = Codec(
    lambda value: "" if value is None else str(value), _optional_int
)
DOCUMENT: Codec[dict[str, Any]] = Codec(json.dumps, json.loads)


def dataclass_codec(kind: Callable[..., Value]) -> Codec[Value]:
    """A codec that stores a dataclass of plain values as a JSON object. A field that
    this release does not know is left out: during an upgrade a later release works
    beside it.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]

    def decode(stored: str) -> Value:
        stored_fields = json.loads(stored).items()
        return kind(**{name: value for name, value in stored_fields if name in names})

    return Codec(
        lambda value: json.dumps(asdict(value), sort_keys=True),  # type: ignore[call-overload]
        decode,
    )


@dataclass(frozen=True, slots=True)
class Fact(Generic[Value]):
    """A declared fact: the name that it is stored under, and its codec."""

    name: str
    codec: Codec[Value]


def condition_fact(name: str) -> Fact[str]:
    """The fact that stores since when a state has lasted: ledger/conditions.py."""
    return Fact(f"condition.{name}", TEXT)


@dataclass(frozen=True, slots=True)
class Stored(Generic[Value]):
    """The value of a fact, and for how many seconds it has had this value, by the
    database's clock.
    """

    value: Value
    age_s: float


@dataclass(frozen=True, slots=True)
class SlurmStart:
    """What is known of a start of slurmctld.

    `booted` is the time of the start, as SLURM prints it. `silent_s` is for how many
    seconds slurmctld had not answered before that. `first_id` is the first job id that
    it gave, 0 if that is not known.
    """

    booted: str = ""
    silent_s: float = 0.0
    first_id: int = 0


@dataclass(frozen=True, slots=True)
class Balance:
    """What the provider's account holds."""

    address: str
    wei: int


# the workers of the chain queue write it: they have the key
PROVIDER = Fact("provider.address", TEXT)
# as the claiming worker last read it
BALANCE = Fact("wallet.balance", dataclass_codec(Balance))
# the health of each RPC endpoint, by name
ENDPOINTS = Fact("chain.endpoints", DOCUMENT)
# the operator wants the chain read again from this block; None: from the last block in
# common
REWIND = Fact("chain.rewind_requested", OPTIONAL_INT)
# bump or cancel, by the transaction's id as a text
TRANSACTION_REQUESTS = Fact("chain.transaction_requests", DOCUMENT)
# monitoring/heartbeat_alarm.py
CALLBACK_HEARTBEAT_MISSED = condition_fact(AlarmName.CALLBACK_HEARTBEAT_MISSING)
# the block at which the scan is stalled; indexer/scan.py
SCAN_STALLED = condition_fact(AlarmName.CHAIN_SCAN_STALLED)
# the start of the slurmctld that answers
SLURM_BOOT_TIME = Fact("slurm.boot_time", TEXT)
SLURM_START = Fact("slurm.start", dataclass_codec(SlurmStart))
# the cluster that has the ledger's jobs
SLURM_CLUSTER = Fact("slurm.cluster_identity", TEXT)
# another cluster that was found in its place
UNEXPECTED_CLUSTER = Fact("slurm.unexpected_cluster", TEXT)
# how long slurmctld remembers an ended job; 0: for ever
SLURM_MIN_JOB_AGE = Fact("slurm.min_job_age_s", INT)
# a random value: jobs that SLURM had forgotten when the operator set it are lost
SLURM_ACCEPTED = Fact("slurm.accepted", TEXT)
SWEEP_REQUESTED = Fact("sweep.requested", TEXT)  # the reasons why a sweep was asked for
