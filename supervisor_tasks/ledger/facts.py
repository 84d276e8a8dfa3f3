"""Facts: single typed values that one process writes down for another one, each with the time since when it is so.

A fact is declared once, as a `Fact` with its name and codec. The name is the key in the table `facts`; a new name needs a
migration. What SQL selects by gets a column of its own instead.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.models import FactRow

FACTS = FactRow.metadata.tables["facts"]
KEY = ("cluster", "name")

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
    """A dataclass of plain values, as a JSON object."""
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
    """What is known of a start of slurmctld: when it was (as SLURM says it), for how many seconds slurmctld had not answered
    before, and the first job id that it gave, 0 if that is not known.
    """

    booted: str = ""
    silent_s: float = 0.0
    first_id: int = 0


PROVIDER = Fact("provider.address", TEXT)  # written by workers of the chain queue, which have the key
ENDPOINTS = Fact("chain.endpoints", DOCUMENT)  # the health of each RPC endpoint, by name
REWIND = Fact(
    "chain.rewind_wanted", OPTIONAL_INT
)  # the operator: read the chain again from this block, or the last in common
CALLBACKS_MISSED = Fact("condition.callbacks_away", TEXT)  # journey/watch_tellers.py
STANDS_STILL = Fact("condition.scan_stands_still", TEXT)  # the block that the scan stands still at; journey/scan.py
SLURM_BOOT = Fact("slurm.booted", TEXT)  # the start of the slurmctld that answers
SLURM_START = Fact("slurm.start", dataclass_codec(SlurmStart))
SLURM_IS = Fact("slurm.cluster", TEXT)  # the cluster that has the ledger's jobs
SLURM_SEEN = Fact("slurm.other_cluster", TEXT)  # another one, which was found in its place
SLURM_REMEMBERS = Fact("slurm.min_job_age_s", INT)  # for so long slurmctld remembers a job that has ended; 0: for ever
SLURM_ACCEPTED = Fact(
    "slurm.accepted", TEXT
)  # a random word: since then the operator takes what was forgotten for lost
BENCHMARK_ERROR = Fact("benchmark.last_error", TEXT)


class Facts:
    """The facts of one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def set(self, fact: Fact[Value], value: Value) -> bool:
        """Write a fact down; True when it had another value, or none, before: only then its age begins anew."""
        stored = fact.codec.encode(value)
        row = insert(FACTS).values(cluster=self._cluster, name=fact.name, value=stored)
        changed = row.on_conflict_do_update(
            index_elements=KEY,
            set_={"value": stored, "since": func.now()},
            where=FACTS.c.value != stored,
        ).returning(FACTS.c.name)
        with self._engine.begin() as connection:
            return connection.scalar(changed) is not None

    def read(self, fact: Fact[Value]) -> Stored[Value] | None:
        """The fact with its age; None when it is not set."""
        age_s = func.extract("epoch", func.now() - FACTS.c.since).label("age_s")
        with asking(self._engine) as connection:
            row = connection.execute(select(FACTS.c.value, age_s).where(*self._this(fact))).first()
        return None if row is None else Stored(fact.codec.decode(row.value), float(row.age_s))

    def get(self, fact: Fact[Value]) -> Value | None:
        """The value of the fact; None when it is not set."""
        stored = self.read(fact)
        return None if stored is None else stored.value

    def clear(self, fact: Fact[Any]) -> None:
        """The fact is not set any more."""
        with self._engine.begin() as connection:
            connection.execute(delete(FACTS).where(*self._this(fact)))

    def clear_if(self, fact: Fact[Value], value: Value, connection: Connection | None = None) -> None:
        """The fact is not set any more, unless it has another value by now; with a connection as part of its transaction."""
        this = *self._this(fact), FACTS.c.value == fact.codec.encode(value)
        with self._engine.begin() if connection is None else nullcontext(connection) as mine:
            mine.execute(delete(FACTS).where(*this))

    def _this(self, fact: Fact[Any]) -> tuple[Any, ...]:
        return FACTS.c.cluster == self._cluster, FACTS.c.name == fact.name
