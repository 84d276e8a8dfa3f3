"""The rows that a reconciliation reads and writes: many jobs at once without their
scripts, its report, and its doubts.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine, bindparam, case, delete, func, select, text
from sqlalchemy.dialects.postgresql import JSONB, insert

from supervisor_tasks.jobs.model import (
    MAX_LIMIT_MIN,
    Address,
    ChainStatus,
    Definition,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.paid_size import Paid, as_given
from supervisor_tasks.jobs.runs import JobRun, Runs, left_min
from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.due import sweep_is_due
from supervisor_tasks.ledger.facts import SWEEP_REQUESTED
from supervisor_tasks.ledger.stored_text import sanitize_json
from supervisor_tasks.ledger.tables import FACTS, IS_OPEN, RECONCILIATIONS
from supervisor_tasks.reconciliation.models import JobSummary, earlier_limits

KEPT_READINGS = 4096  # of effects, definitions, top-ups and runs
KINDS = frozenset(EffectKind)
STALE_S = 60.0  # work that no worker has touched for so long

_JOBS = """
    SELECT job_id, customer, provider, state, chain_status, chain_block, slurm_id, slurm_submit_s,
        cancel_requested, time_limit_min, applied_limit_min, stop_status, may_run_again,
        definition::text AS definition, top_ups::text AS top_ups, runs::text AS runs,
        COALESCE(effects.open, '{}') AS open, COALESCE(effects.parked, '{}') AS parked,
        unread.job_id IS NOT NULL AS has_unread_callback
    FROM jobs
    LEFT JOIN (
        SELECT job_id, array_agg(kind) AS open, array_agg(kind) FILTER (WHERE parked_at IS NOT NULL) AS parked
        FROM effects WHERE cluster = :cluster AND done_at IS NULL GROUP BY job_id
    ) AS effects USING (job_id)
    LEFT JOIN (
        SELECT DISTINCT job_id FROM callbacks WHERE cluster = :cluster AND read_at IS NULL
    ) AS unread USING (job_id)
    WHERE jobs.cluster = :cluster
"""
_ACTIVE = text(_JOBS + f"AND {IS_OPEN}")
_NAMED = text(
    _JOBS
    + "AND (job_id = ANY(:job_ids) OR slurm_id = ANY(CAST(:slurm_ids AS bigint[])))"
)

# Due effects that no worker has taken, unread callbacks, and open transactions; each
# older than `stale_s`.
_STALE = text(
    """
    SELECT
        (SELECT count(*) FROM effects WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL
            AND due_at < now() - :stale_s * interval '1 second') AS effects,
        (SELECT count(*) FROM callbacks WHERE cluster = :cluster AND read_at IS NULL
            AND received_at < now() - :stale_s * interval '1 second') AS callbacks,
        (SELECT count(*) FROM transactions WHERE cluster = :cluster AND state IN ('SIGNED', 'SENT')
            AND created_at < now() - :stale_s * interval '1 second') AS transactions
    """
)
_LAST_END = text(
    """
    SELECT EXTRACT(EPOCH FROM now() - finished_at)::float8 AS age_s, (report ->> 'again_s')::float8 AS planned_s
    FROM reconciliations WHERE cluster = :cluster ORDER BY id DESC LIMIT 1
    """
)
_DUE = text(f"SELECT {sweep_is_due(':cluster', ':request')}")


@dataclass(frozen=True, slots=True)
class Begun:
    """A reconciliation that has begun, by the database's clock. `previous_doubts_s` are
    the doubts of the last one with their ages in seconds. `requested_at` is when a
    caller last asked for a reconciliation.
    """

    at: datetime
    why: str
    previous_doubts_s: Mapping[str, float]
    requested_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A finished reconciliation."""

    begun_at: datetime
    finished_at: datetime
    report: dict[str, Any]
    id: int = 0


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How many seconds ago the last reconciliation ended, by the database's clock, and
    how many seconds after its beginning it planned the next one.
    """

    age_s: float
    planned_s: float


def _reconciliation(row: Any) -> Reconciliation:
    return Reconciliation(row.begun_at, row.finished_at, row.report, row.id)


class Reconciliations:
    """The reconciliations of one cluster. Its methods raise LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    # --- when -------------------------------------------------------------------------

    def request(self, why: str) -> datetime:
        """Request a reconciliation soon. Its report names the reasons of all callers.
        Several requests make one reconciliation, but a request after it has begun makes
        another one. Returns the database's time: a reconciliation that begins later
        serves the request.
        """
        row = insert(FACTS).values(
            cluster=self._cluster,
            name=SWEEP_REQUESTED.name,
            value=why,
            since=func.clock_timestamp(),
        )
        has_reason = FACTS.c.value.contains(why, autoescape=True)
        value = case((has_reason, FACTS.c.value), else_=FACTS.c.value + "; " + why)
        upsert = row.on_conflict_do_update(
            index_elements=["cluster", "name"],
            set_={"value": value, "since": func.clock_timestamp()},
        ).returning(FACTS.c.since)
        with self._engine.begin() as connection:
            requested_at: datetime = connection.execute(upsert).scalar_one()
        return requested_at

    def due(self) -> bool:
        """Whether a caller has asked for a reconciliation, or the last one is long
        enough ago.
        """
        with read_connection(self._engine) as connection:
            return bool(
                connection.scalar(
                    _DUE, {"cluster": self._cluster, "request": SWEEP_REQUESTED.name}
                )
            )

    def begin(self, why: str) -> Begun:
        """Begin a reconciliation, with the reasons of all callers. `store` deletes the
        request, not `begin`: the worker may die in between.
        """
        request = select(FACTS.c.value, FACTS.c.since).where(
            FACTS.c.cluster == self._cluster, FACTS.c.name == SWEEP_REQUESTED.name
        )
        last = (
            select(RECONCILIATIONS.c.previous_doubts)
            .where(RECONCILIATIONS.c.cluster == self._cluster)
            .order_by(RECONCILIATIONS.c.id.desc())
            .limit(1)
        )
        with self._engine.begin() as connection:
            asked_why, requested_at = connection.execute(request).one_or_none() or (
                None,
                None,
            )
            # not now(), the time of BEGIN, which may be before the request that was read
            now: datetime = connection.execute(
                select(func.clock_timestamp())
            ).scalar_one()
            doubts = connection.scalar(last) or {}
        ages_s = {
            name: max(now.timestamp() - since_s, 0.0)
            for name, since_s in doubts.items()
        }
        reasons = "; ".join(filter(None, (why, asked_why)))
        return Begun(now, reasons or "beat", ages_s, requested_at)

    def store(
        self, begun: Begun, report: Mapping[str, Any], doubts: Mapping[str, float]
    ) -> None:
        """Store a finished reconciliation. Delete its request if no newer one came
        meanwhile.
        """
        now_s = begun.at.timestamp()
        row = insert(RECONCILIATIONS).values(
            cluster=self._cluster,
            begun_at=begun.at,
            report=bindparam("report", type_=JSONB),
            previous_doubts={name: now_s - age_s for name, age_s in doubts.items()},
        )
        request = FACTS.c.cluster == self._cluster, FACTS.c.name == SWEEP_REQUESTED.name
        served = delete(FACTS).where(*request, FACTS.c.since == begun.requested_at)
        with self._engine.begin() as connection:
            connection.execute(row, {"report": sanitize_json(report)})
            connection.execute(served)

    def last(self, most: int = 1) -> list[Reconciliation]:
        """The last reconciliations, the newest first."""
        query = (
            select(RECONCILIATIONS)
            .where(RECONCILIATIONS.c.cluster == self._cluster)
            .order_by(RECONCILIATIONS.c.id.desc())
            .limit(most)
        )
        with read_connection(self._engine) as connection:
            return list(map(_reconciliation, connection.execute(query)))

    def last_end(self) -> LastEnd | None:
        """The end of the last reconciliation; None before the first one."""
        with read_connection(self._engine) as connection:
            row = connection.execute(_LAST_END, {"cluster": self._cluster}).first()
        return None if row is None else LastEnd(row.age_s, row.planned_s)

    def numbered(self, number: int) -> list[Reconciliation]:
        """The reconciliation of this number; an empty list if there is none."""
        query = select(RECONCILIATIONS).where(
            RECONCILIATIONS.c.cluster == self._cluster, RECONCILIATIONS.c.id == number
        )
        with read_connection(self._engine) as connection:
            return list(map(_reconciliation, connection.execute(query)))

    def last_entry(self, name: str) -> dict[Any, Any]:
        """An entry of the last report; empty if it has none."""
        last = self.last()
        if not last:
            return {}
        entry: dict[Any, Any] = last[0].report.get(name, {})
        return entry

    # --- jobs -------------------------------------------------------------------------

    def active(
        self, partition: str = "", *, compares_sizes: bool = False
    ) -> dict[JobId, JobSummary]:
        """All jobs that still need a decision. `partition` and `compares_sizes` go into
        what was paid for each job.
        """
        with read_connection(self._engine) as connection:
            return _summaries(
                connection.execute(_ACTIVE, {"cluster": self._cluster}).all(),
                partition,
                compares_sizes,
            )

    def named(
        self, job_ids: Collection[JobId], slurm_ids: Collection[SlurmId]
    ) -> dict[JobId, JobSummary]:
        """The jobs with these ids, or with these SLURM ids, in any state."""
        if not (job_ids or slurm_ids):
            return {}
        parameters = {
            "cluster": self._cluster,
            "job_ids": list(job_ids),
            "slurm_ids": list(slurm_ids),
        }
        with read_connection(self._engine) as connection:
            return _summaries(connection.execute(_NAMED, parameters))

    def stale(self) -> dict[str, int]:
        """How many effects, callbacks and transactions have waited for longer than
        STALE_S.
        """
        with read_connection(self._engine) as connection:
            row = (
                connection.execute(
                    _STALE, {"cluster": self._cluster, "stale_s": STALE_S}
                )
                .mappings()
                .one()
            )
        return {name: int(number) for name, number in row.items()}


# Many jobs have the same effects, definition, top-ups and runs, so each is read once.
# The last three come as text for that.


@lru_cache(maxsize=KEPT_READINGS)
def _kinds(names: tuple[str, ...]) -> frozenset[EffectKind]:
    # a later release, which worked before this one, may have others
    return frozenset(EffectKind(name) for name in names if name in KINDS)


@lru_cache(maxsize=KEPT_READINGS)
def _runs(stored: str) -> Runs:
    return tuple(JobRun(**entry) for entry in json.loads(stored))


@lru_cache(maxsize=KEPT_READINGS)
def _added_min(top_ups: str) -> tuple[int, ...]:
    return tuple(minutes for _, minutes, _ in json.loads(top_ups))


@lru_cache(maxsize=KEPT_READINGS)
def _paid(
    definition: str,
    time_limit_min: int,
    added_min: Sequence[int],
    runs: Runs,
    partition: str,
    compares_sizes: bool,
) -> Paid:
    limit_min = min(time_limit_min + sum(added_min), MAX_LIMIT_MIN)
    wanted = Definition(**json.loads(definition))
    return as_given(
        Paid(
            wanted, left_min(limit_min, runs), partition, compares_sizes=compares_sizes
        ),
        runs,
    )


def _summaries(
    rows: Iterable[Any], partition: str = "", compares_sizes: bool = False
) -> dict[JobId, JobSummary]:
    def summary(row: Any) -> JobSummary:
        runs, added_min = _runs(row.runs), _added_min(row.top_ups)
        return JobSummary(
            job_id=JobId(row.job_id),
            customer=Address(row.customer),
            provider=Address(row.provider),
            state=State(row.state),
            chain_status=ChainStatus(row.chain_status),
            chain_block=row.chain_block,
            slurm_id=row.slurm_id,
            slurm_submit_s=row.slurm_submit_s,
            cancel_requested=row.cancel_requested,
            open=_kinds(tuple(row.open)),
            parked=_kinds(tuple(row.parked)),
            has_unread_callback=row.has_unread_callback,
            earlier_limits_min=earlier_limits(
                row.time_limit_min, added_min, row.applied_limit_min, runs
            ),
            stopped=row.stop_status is not None,
            may_run_again=row.may_run_again,
            paid=_paid(
                row.definition,
                row.time_limit_min,
                added_min,
                runs,
                partition,
                compares_sizes,
            ),
        )

    return {JobId(row.job_id): summary(row) for row in rows}
