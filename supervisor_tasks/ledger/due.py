"""What work is due, in one query over all parts of the ledger. Beat asks it every
0.8 s, without SQLAlchemy.
"""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from supervisor_tasks.jobs.effect_timing import DISPATCH_AGAIN_S
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.cursor_names import HISTORY_STREAM
from supervisor_tasks.ledger.facts import SWEEP_REQUESTED, Fact, Stored
from supervisor_tasks.ledger.incidents_sql import SOMETHING_IS_DUE
from supervisor_tasks.ledger.lock_names import EXCLUSIVE, WORKER_SESSIONS
from supervisor_tasks.ledger.periodic_run_names import BEAT, RECORD_BEAT_EVERY_S
from supervisor_tasks.ledger.periodic_runs_sql import RECORD_RUNS

Value = TypeVar("Value")
# Runs one statement in the form of the driver.
Execute = Callable[[str, Mapping[str, Any]], Sequence[Mapping[str, Any]]]

# for so long after a job's end, the scan often checks whether the chain has lost a
# block
LATELY_S = 300.0


def sweep_is_due(cluster: str, request: str) -> str:
    """The condition in SQL: a sweep is requested, or the last one is long enough ago, or
    lies in the future, because the database's clock was set back.
    The arguments are the parameters, in the form of the driver or of SQLAlchemy:
    the cluster, and the name of the fact that requests a sweep. Pure.
    """
    return f"""(
        EXISTS (SELECT FROM facts WHERE cluster = {cluster} AND name = {request}) OR COALESCE((
            SELECT begun_at + (report ->> 'again_s')::float8 * interval '1 second' < now() OR begun_at > now()
            FROM reconciliations WHERE cluster = {cluster} ORDER BY id DESC LIMIT 1
        ), true))"""  # noqa: S608  only names of parameters


# Each part reads a partial index of open rows, or one of the small tables (locks,
# periodic runs, facts, alarms).
_STATE = f"""
    WITH locks AS MATERIALIZED (
        SELECT classid::bigint AS class, objid::bigint AS number FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND classid IN (%(sessions)s, %(exclusive)s)
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
    SELECT
        EXISTS (SELECT FROM effects WHERE cluster = %(cluster)s AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL
            AND due_at <= now() AND kind = ANY(%(kinds)s)
            AND (notified_at IS NULL OR notified_at < GREATEST(due_at, now() - %(again_s)s * interval '1 second'))
        ) AS undispatched,
        EXISTS (SELECT FROM effects WHERE cluster = %(cluster)s AND done_at IS NULL AND parked_at IS NULL
            AND lease IS NOT NULL AND (lease_until < now()
                OR NOT EXISTS (SELECT FROM locks WHERE class = %(sessions)s AND number = effects.lease))) AS abandoned,
        EXISTS (SELECT FROM effects WHERE cluster = %(cluster)s AND done_at IS NULL AND failing_since IS NOT NULL) AS failing,
        EXISTS (SELECT FROM callbacks WHERE cluster = %(cluster)s AND read_at IS NULL) AS unread,
        EXISTS (SELECT FROM transactions WHERE cluster = %(cluster)s AND state IN ('SIGNED', 'SENT')) AS unmined,
        EXISTS (SELECT FROM jobs WHERE cluster = %(cluster)s AND state <> 'SETTLED' AND state <> 'REFUSED') AS under_way,
        COALESCE((SELECT updated_at FROM jobs WHERE cluster = %(cluster)s AND state IN ('SETTLED', 'REFUSED')
            ORDER BY updated_at DESC LIMIT 1) > now() - %(lately_s)s * interval '1 second', false) AS ended_lately,
        EXISTS (SELECT FROM benchmark_runs WHERE cluster = %(cluster)s AND state IN ('ASKED', 'RUNNING')) AS measuring,
        {sweep_is_due("%(cluster)s", "%(request)s")} AS sweep,
        ({SOMETHING_IS_DUE}) AS message_due,
        (SELECT block_number FROM cursors WHERE cluster = %(cluster)s AND stream = %(history)s) AS claims_known_since,
        ARRAY(SELECT number FROM locks WHERE class = %(exclusive)s) AS exclusive_locks,
        ARRAY(SELECT name FROM alarms WHERE cluster = %(cluster)s) AS alarms,
        (SELECT COALESCE(jsonb_object_agg(name, EXTRACT(EPOCH FROM now() - succeeded_at)::float8), '{{}}')
            FROM periodic_runs WHERE cluster = %(cluster)s) AS periodic_run_ages_s,
        EXTRACT(HOUR FROM now() AT TIME ZONE 'UTC')::int AS hour,
        (SELECT COALESCE(jsonb_object_agg(name, jsonb_build_array(value, EXTRACT(EPOCH FROM now() - since)::float8)), '{{}}')
            FROM facts WHERE cluster = %(cluster)s AND name = ANY(%(facts)s)) AS facts
    """  # noqa: S608  no part comes from outside


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """The state of the ledger at one moment. Ages are in seconds, by the database's
    clock.

    `undispatched`: an effect is due, and no message is under way for it. `abandoned`:
    an effect is leased by a worker that is gone. `ended_lately`: a job ended within
    LATELY_S; the chain may still lose the block of its end. `message_due`: the change
    of an alarm, or a message about it, is due. `claims_known_since` is the first block
    from which all claims are known, None before the first sweep. `hour` is the hour of
    the day in UTC. `busy` names the work that a worker does at this moment under its
    lock.
    """

    undispatched: bool = False
    abandoned: bool = False
    failing: bool = False
    unread: bool = False
    unmined: bool = False
    under_way: bool = False
    ended_lately: bool = False
    measuring: bool = False
    sweep: bool = False
    message_due: bool = False
    claims_known_since: int | None = None
    hour: int = 12
    busy: frozenset[str] = frozenset()
    alarms: frozenset[str] = frozenset()  # those of another release, too
    periodic_run_ages_s: Mapping[str, float] = field(default_factory=dict)
    # as they are stored, by their names
    facts: Mapping[str, Stored[str]] = field(default_factory=dict)

    def read(self, fact: Fact[Value]) -> Stored[Value] | None:
        """One of the facts that Due reads, with its age; None when it is not set."""
        stored = self.facts.get(fact.name)
        if stored is None:
            return None
        return Stored(fact.codec.decode(stored.value), stored.age_s)

    def age_s(self, fact: Fact[Any]) -> float:
        """For how many seconds one of these facts has had its value; infinite when it
        is not set.
        """
        stored = self.facts.get(fact.name)
        return float("inf") if stored is None else stored.age_s

    def get(self, fact: Fact[Value]) -> Value | None:
        """The value of one of these facts; None when it is not set."""
        stored = self.read(fact)
        return None if stored is None else stored.value


class Due:
    """The query of one cluster. It looks at the locks of the work named in `exclusive`,
    and reads these `facts`.
    """

    def __init__(
        self,
        execute: Execute,
        cluster: str,
        exclusive: Sequence[str],
        facts: Sequence[Fact[Any]],
    ) -> None:
        self._execute = execute
        self._beat_recorded_s = float("-inf")
        self._exclusive = {
            _lock_number(f"{cluster} {name}"): name for name in exclusive
        }
        self._parameters: dict[str, Any] = {
            "cluster": cluster,
            "sessions": WORKER_SESSIONS,
            "exclusive": EXCLUSIVE,
            "again_s": DISPATCH_AGAIN_S,
            "lately_s": LATELY_S,
            "request": SWEEP_REQUESTED.name,
            "history": HISTORY_STREAM,
            # a worker of another release takes its own kinds
            "kinds": [kind.value for kind in EffectKind],
            "facts": [fact.name for fact in facts],
        }

    def ask(self, readings: Callable[[], Mapping[str, int]] = dict) -> LedgerState:
        """Ask what is due now, and record a run of beat. `readings` returns what is
        stored with each run, by the name of the reading. Raises
        LedgerUnavailableError; a retry helps.
        """
        (row,) = self._execute(_STATE, self._parameters)
        if time.monotonic() - self._beat_recorded_s >= RECORD_BEAT_EVERY_S:
            self._record_beat(readings())
        columns = dict(row)
        busy = frozenset(
            self._exclusive[number]
            for number in columns.pop("exclusive_locks")
            if number in self._exclusive
        )
        alarms = frozenset(columns.pop("alarms"))
        message_due = columns.pop("message_due")
        stored = columns.pop("facts").items()
        facts = {name: Stored(value, age_s) for name, (value, age_s) in stored}
        return LedgerState(
            **columns, message_due=message_due, busy=busy, alarms=alarms, facts=facts
        )

    def _record_beat(self, readings: Mapping[str, int]) -> None:
        names, numbers = [BEAT, *readings], [None, *readings.values()]
        self._execute(
            RECORD_RUNS,
            {
                "cluster": self._parameters["cluster"],
                "names": names,
                "numbers": numbers,
            },
        )
        self._beat_recorded_s = time.monotonic()


def _lock_number(name: str) -> int:
    """The key of `advisory_locks.try_advisory_lock` as Postgres shows it in pg_locks:
    unsigned.
    """
    return (zlib.crc32(name.encode()) - 2**31) % 2**32
