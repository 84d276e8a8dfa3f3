"""What is due, in one question: whatever the ledger says of work that waits. The clock asks it once a second."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Engine, text

from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.effects import WAKE_AGAIN_S, OpenEffect
from supervisor_tasks.ledger.facts import Fact, Stored
from supervisor_tasks.ledger.leases import HOLDERS, SINGLE_FLIGHT
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.sweeps import WANTED
from supervisor_tasks.ledger.ticks import Ticks

Value = TypeVar("Value")

CLOCK = "clock"  # the tick that the clock leaves
CLOCK_TICK_EVERY_S = 5.0

# Every part reads a partial index of what is open, or one of the small tables (locks, ticks, facts, alarms).
_LOOK = text(
    """
    WITH locks AS MATERIALIZED (
        SELECT classid::bigint AS class, objid::bigint AS number FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND classid IN (:holders, :guards)
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
    SELECT
        EXISTS (SELECT FROM effects WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL
            AND due_at <= now()
            AND (woken_at IS NULL OR woken_at < GREATEST(due_at, now() - :again_s * interval '1 second'))) AS unwoken,
        EXISTS (SELECT FROM effects WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL
            AND lease IS NOT NULL AND (lease_until < now()
                OR NOT EXISTS (SELECT FROM locks WHERE class = :holders AND number = effects.lease))) AS abandoned,
        EXISTS (SELECT FROM effects WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL) AS failing,
        EXISTS (SELECT FROM callbacks WHERE cluster = :cluster AND read_at IS NULL) AS unread,
        EXISTS (SELECT FROM transactions WHERE cluster = :cluster AND state IN ('SIGNED', 'SENT')) AS unmined,
        EXISTS (SELECT FROM jobs WHERE cluster = :cluster AND state <> 'SETTLED' AND state <> 'REFUSED') AS under_way,
        EXISTS (SELECT FROM benchmark_runs WHERE cluster = :cluster AND state IN ('ASKED', 'RUNNING')) AS measuring,
        EXISTS (SELECT FROM accounts WHERE cluster = :cluster AND done_at IS NULL AND due_at <= now()) AS accounts,
        EXISTS (SELECT FROM facts WHERE cluster = :cluster AND name = :wanted) OR COALESCE((
            SELECT begun_at + (report ->> 'again_s')::float8 * interval '1 second' < now()
            FROM sweeps WHERE cluster = :cluster ORDER BY id DESC LIMIT 1
        ), true) AS sweep,
        (SELECT block_number FROM cursors WHERE cluster = :cluster AND stream = 'history') AS claims_known_since,
        ARRAY(SELECT number FROM locks WHERE class = :guards) AS guards,
        ARRAY(SELECT name FROM alarms WHERE cluster = :cluster) AS alarms,
        (SELECT COALESCE(jsonb_object_agg(name, EXTRACT(EPOCH FROM now() - succeeded_at)::float8), '{}')
            FROM ticks WHERE cluster = :cluster) AS ticks_s,
        (SELECT COALESCE(jsonb_object_agg(name, jsonb_build_array(value, EXTRACT(EPOCH FROM now() - since)::float8)), '{}')
            FROM facts WHERE cluster = :cluster AND name = ANY(:facts)) AS facts
    """
)

_NOT_WOKEN = text("UPDATE effects SET woken_at = NULL WHERE id = ANY(:ids) AND done_at IS NULL AND lease IS NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the ledger says at one moment. Ages are in seconds, by the database's clock.

    `unwoken` effects are due, and no message is under way for them; `abandoned` ones are leased by a worker that is gone.
    `claims_known_since` is the block from which on all claims are known, None before the first sweep. `busy` names the work
    that a worker does at this moment under its guard.
    """

    unwoken: bool = False
    abandoned: bool = False
    failing: bool = False
    unread: bool = False
    unmined: bool = False
    under_way: bool = False
    measuring: bool = False
    accounts: bool = False
    sweep: bool = False
    claims_known_since: int | None = None
    busy: frozenset[str] = frozenset()
    alarms: frozenset[AlarmName] = frozenset()
    ticks_s: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Stored[str]] = field(default_factory=dict)  # as they are stored, by their names

    def read(self, fact: Fact[Value]) -> Stored[Value] | None:
        """A fact that was asked for, with its age; None when it is not set."""
        stored = self.facts.get(fact.name)
        return None if stored is None else Stored(fact.codec.decode(stored.value), stored.age_s)

    def get(self, fact: Fact[Value]) -> Value | None:
        """Its value; None when it is not set."""
        stored = self.read(fact)
        return None if stored is None else stored.value


class Due:
    """The question of one cluster. `guarded` names the work whose guards are looked at, `facts` the facts that are read."""

    def __init__(self, engine: Engine, cluster: str, guarded: Sequence[str], facts: Sequence[Fact[Any]]) -> None:
        self._engine = engine
        self._ticks = Ticks(engine, cluster, CLOCK_TICK_EVERY_S)
        self._guards = {_guard_number(f"{cluster} {name}"): name for name in guarded}
        self._parameters: dict[str, Any] = {
            "cluster": cluster,
            "holders": HOLDERS,
            "guards": SINGLE_FLIGHT,
            "again_s": WAKE_AGAIN_S,
            "wanted": WANTED.name,
            "facts": [fact.name for fact in facts],
        }

    def look(self) -> Look:
        """What waits now; leaves the clock's tick. Raises LedgerUnavailableError, and a retry helps."""
        with asking(self._engine) as connection:
            row = connection.execute(_LOOK, self._parameters).mappings().one()
        self._ticks.leave(CLOCK)
        found = dict(row)
        busy = frozenset(self._guards[number] for number in found.pop("guards") if number in self._guards)
        alarms = frozenset(map(AlarmName, found.pop("alarms")))
        stored = found.pop("facts").items()
        facts = {name: Stored(value, age_s) for name, (value, age_s) in stored}
        return Look(**found, busy=busy, alarms=alarms, facts=facts)


def not_woken(engine: Engine, effects: Sequence[OpenEffect]) -> None:
    """No message could be sent for these effects: the clock has them woken with its next question, and not seconds later."""
    if effects:
        with engine.begin() as connection:
            connection.execute(_NOT_WOKEN, {"ids": [effect.id for effect in effects]})


def _guard_number(name: str) -> int:
    """As Postgres shows the key of `leases.single_flight` in pg_locks: without a sign."""
    return (zlib.crc32(name.encode()) - 2**31) % 2**32
