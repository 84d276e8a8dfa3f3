"""Facts: single typed values that one process writes down for another one, each with the time when it became so.

A fact is declared once, as a `Fact` with its name and codec. The name is the key in the table `facts`; a new name needs
a migration. A value that SQL selects by gets a column of its own instead.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, bindparam, delete, func, select, text

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.read_once import discard, kept
from supervisor_tasks.ledger.tables import FactRow

FACTS = FactRow.metadata.tables["facts"]
AGE_S = func.extract("epoch", func.now() - FACTS.c.since).label("age_s")
_ALL = select(FACTS.c.name, FACTS.c.value, AGE_S).where(FACTS.c.cluster == bindparam("cluster"))
_ONE = _ALL.where(FACTS.c.name == bindparam("name"))
# One statement, so it needs no BEGIN and no COMMIT of its own.
_SET = text(
    """
    INSERT INTO facts (cluster, name, value) VALUES (:cluster, :name, :value)
    ON CONFLICT (cluster, name) DO UPDATE SET value = excluded.value, since = now() WHERE facts.value <> excluded.value
    RETURNING name
    """
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Value]):
    """How a value is stored as text. Equal values must have equal texts: a set compares the texts."""

    encode: Callable[[Value], str]
    decode: Callable[[str], Value]


def _flag(stored: str) -> bool:
    return stored == "true"


def _optional_int(stored: str) -> int | None:
    return int(stored) if stored else None


TEXT: Codec[str] = Codec(str, str)
INT: Codec[int] = Codec(str, int)
FLOAT: Codec[float] = Codec(repr, float)
FLAG: Codec[bool] = Codec(lambda value: "true" if value else "false", _flag)
OPTIONAL_INT: Codec[int | None] = Codec(lambda value: "" if value is None else str(value), _optional_int)
DOCUMENT: Codec[dict[str, Any]] = Codec(json.dumps, json.loads)


def dataclass_codec(kind: Callable[..., Value]) -> Codec[Value]:
    """A codec that stores a dataclass of plain values as a JSON object."""
    return Codec(
        lambda value: json.dumps(asdict(value), sort_keys=True),  # type: ignore[call-overload]
        lambda stored: kind(**json.loads(stored)),
    )


@dataclass(frozen=True, slots=True)
class Fact(Generic[Value]):
    """A declared fact: the name that it is stored under, and its codec."""

    name: str
    codec: Codec[Value]


@dataclass(frozen=True, slots=True)
class Stored(Generic[Value]):
    """The value of a fact, and for how many seconds it has had this value, by the database's clock."""

    value: Value
    age_s: float


@dataclass(frozen=True, slots=True)
class SlurmStart:
    """What is known of a start of slurmctld.

    `booted` is the time of the start, as SLURM prints it. `silent_s` is for how many seconds slurmctld had not answered
    before. `first_id` is the first job id that it gave, 0 if that is not known.
    """

    booted: str = ""
    silent_s: float = 0.0
    first_id: int = 0


@dataclass(frozen=True, slots=True)
class Balance:
    """What the provider's account holds."""

    address: str
    wei: int


PROVIDER = Fact("provider.address", TEXT)  # the workers of the chain queue write it: they have the key
BALANCE = Fact("wallet.balance", dataclass_codec(Balance))  # as the claiming worker last read it
ENDPOINTS = Fact("chain.endpoints", DOCUMENT)  # the health of each RPC endpoint, by name
REWIND = Fact(
    "chain.rewind_requested", OPTIONAL_INT
)  # the operator wants the chain read again from this block; None: from the last block in common
TRANSACTION_REQUESTS = Fact("chain.transaction_requests", DOCUMENT)  # bump or cancel, by the transaction's id as a text
CALLBACK_HEARTBEAT_MISSED = Fact("condition.callback_heartbeat_missing", TEXT)  # monitoring/heartbeat_alarm.py
SCAN_STALLED = Fact("condition.chain_scan_stalled", TEXT)  # the block at which the scan stands still; indexer/scan.py
SLURM_BOOT_TIME = Fact("slurm.boot_time", TEXT)  # the start of the slurmctld that answers
SLURM_START = Fact("slurm.start", dataclass_codec(SlurmStart))
SLURM_CLUSTER = Fact("slurm.cluster_identity", TEXT)  # the cluster that has the ledger's jobs
UNEXPECTED_CLUSTER = Fact("slurm.unexpected_cluster", TEXT)  # another cluster that was found in its place
SLURM_MIN_JOB_AGE = Fact("slurm.min_job_age_s", INT)  # how long slurmctld remembers an ended job; 0: for ever
SLURM_ACCEPTED = Fact(
    "slurm.accepted", TEXT
)  # a random value: jobs that SLURM had forgotten when the operator set it are lost


class Facts:
    """The facts of one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._key = ("facts", id(engine), cluster)

    def set(self, fact: Fact[Value], value: Value) -> bool:
        """Write a fact down. True when it had another value before, or none: only then its age restarts at 0."""
        stored = fact.codec.encode(value)
        given = {"cluster": self._cluster, "name": fact.name, "value": stored}
        with read_connection(self._engine) as connection:
            is_new = connection.scalar(_SET, given) is not None
        discard(self._key)
        return is_new

    def read(self, fact: Fact[Value]) -> Stored[Value] | None:
        """The fact with its age; None when it is not set."""
        known = kept(self._key, self._all)
        stored = self._one(fact.name) if known is None else known.get(fact.name)
        return None if stored is None else Stored(fact.codec.decode(stored.value), stored.age_s)

    def _one(self, name: str) -> Stored[str] | None:
        with read_connection(self._engine) as connection:
            row = connection.execute(_ONE, {"cluster": self._cluster, "name": name}).first()
        return None if row is None else Stored(row.value, float(row.age_s))

    def _all(self) -> dict[str, Stored[str]]:
        with read_connection(self._engine) as connection:
            rows = connection.execute(_ALL, {"cluster": self._cluster})
            return {row.name: Stored(row.value, float(row.age_s)) for row in rows}

    def get(self, fact: Fact[Value]) -> Value | None:
        """The value of the fact; None when it is not set."""
        stored = self.read(fact)
        return None if stored is None else stored.value

    def clear(self, fact: Fact[Any]) -> None:
        """Delete the value of the fact."""
        with self._engine.begin() as connection:
            connection.execute(delete(FACTS).where(*self._this(fact)))
        discard(self._key)

    def clear_if(self, fact: Fact[Value], value: Value, connection: Connection | None = None) -> None:
        """Delete the value of the fact if it is still `value`. With a connection, this is part of its transaction."""
        this = *self._this(fact), FACTS.c.value == fact.codec.encode(value)
        with self._engine.begin() if connection is None else nullcontext(connection) as mine:
            mine.execute(delete(FACTS).where(*this))
        discard(self._key)

    def _this(self, fact: Fact[Any]) -> tuple[Any, ...]:
        return FACTS.c.cluster == self._cluster, FACTS.c.name == fact.name
