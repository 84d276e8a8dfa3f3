"""Benchmark runs: why they were asked for, how far they are, and what they measured."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, func, literal_column, select, text, update
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    MeasurementUpdate,
    PlannedBenchmark,
    RunState,
    Value,
    job_name,
)
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.mapping import optional_float
from supervisor_tasks.ledger.outbox import bring_forward, request
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate, sanitize_json
from supervisor_tasks.ledger.tables import BENCHMARK_RESULTS, BENCHMARK_RUNS
from supervisor_tasks.provider.offer import Machine, machines_digest
from supervisor_tasks.provider.registration_rules import CompletedRun

# Literals, as in the partial index: the plan of a prepared statement cannot match
# parameters with the index.
OPEN = BENCHMARK_RUNS.c.state.in_(
    [literal_column(f"'{state.value}'") for state in RunState if state.open]
)
TOKEN_BYTES = 8
ENDS = (BenchmarkState.ENDED, BenchmarkState.FAILED, BenchmarkState.CANCELLED)

MAX_ENDED_RUNS = 100  # the last runs that `ended` reads
# the last runs whose labels count; a limit, because the registration reads them every
# few seconds
MAX_MEASURED_VALUES = 100

_MEASURED = text(
    """
    SELECT benchmark, labels, left_out, notes, run_id, ended_at FROM benchmark_results
    WHERE cluster = :cluster AND state = 'MEASURED' AND run_id = ANY(:runs) ORDER BY id
    """
)
_LAST_RESULTS = text(
    """
    SELECT last.benchmark, last.state, last.reason
    FROM (SELECT DISTINCT benchmark FROM benchmark_results WHERE run_id = :run) AS of_run
    CROSS JOIN LATERAL (
        SELECT benchmark, state, reason FROM benchmark_results
        WHERE cluster = :cluster AND benchmark = of_run.benchmark AND state IN ('MEASURED', 'LEFT_OUT', 'FAILED')
        ORDER BY id DESC LIMIT 1
    ) AS last
    """
)


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """What a benchmark measured in a run, when, and on which machines (their digest;
    None if it is not known).
    """

    benchmark: str
    labels: dict[str, Value]
    left_out: dict[str, str]
    notes: list[str]
    run_id: int
    ended_at: datetime
    hardware_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """What became of a benchmark."""

    state: BenchmarkState
    labels: Mapping[str, Value] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tool: str = ""
    reason: str = ""
    output: bytes | None = None


def latest_of(measured: Iterable[StoredMeasurement]) -> dict[str, StoredMeasurement]:
    """The last result of each benchmark, from all, oldest first. Labels that it left
    out keep their last values.
    """
    latest = dict[str, StoredMeasurement]()
    for result in measured:
        labels = dict[str, Value]()
        if result.benchmark in latest:
            last_labels = latest[result.benchmark].labels
            labels = {
                label: last_labels[label]
                for label in result.left_out
                if label in last_labels
            }
        latest[result.benchmark] = replace(result, labels=labels | result.labels)
    return latest


def labels_of(latest: Mapping[str, StoredMeasurement]) -> dict[str, Value]:
    """All labels of these results."""
    labels = dict[str, Value]()
    for result in latest.values():
        labels |= result.labels
    return labels


def labels_missing_here(
    here: Mapping[str, StoredMeasurement], everywhere: Mapping[str, StoredMeasurement]
) -> frozenset[str]:
    """The labels that are measured elsewhere but not `here`: their benchmarks failed
    here, or left them out.
    """
    labels = set[str]()
    for benchmark, result in everywhere.items():
        if benchmark not in here:
            labels.update(result.labels)
    for result in here.values():
        labels.update(result.left_out)
    return frozenset(labels - labels_of(here).keys())


def _digest_of(hardware: Mapping[str, Any]) -> str | None:
    nodes = hardware.get("nodes")
    if not nodes:
        return None
    return machines_digest(
        [Machine(node["gpus"], node["cpus"], node["mem_mb"]) for node in nodes]
    )


class BenchmarkStore:
    """The benchmark runs of one cluster. Its methods raise LedgerUnavailableError, when
    the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    # --- runs -------------------------------------------------------------------------

    def ask(
        self,
        why: str,
        hardware_digest: str | None = None,
        pricing_digest: str | None = None,
        *,
        forced: bool = True,
        also: Callable[[Connection], None] | None = None,
    ) -> int | None:
        """Ask for a benchmark run. Returns its number, or None when a run is already
        asked for or under way.

        `also` is part of the same transaction, and is called only if there is a new
        run. The other arguments are columns of the table: see tables.py.
        """
        about = {
            "why": sanitize_and_truncate(why),
            "hardware_digest": hardware_digest,
            "pricing_digest": pricing_digest,
            "forced": forced,
        }
        token = secrets.token_hex(TOKEN_BYTES)
        row = insert(BENCHMARK_RUNS).values(
            cluster=self._cluster, state=RunState.ASKED.value, token=token, **about
        )
        with self._engine.begin() as connection:
            number: int | None = connection.scalar(
                row.on_conflict_do_nothing().returning(BENCHMARK_RUNS.c.id)
            )
            if number is not None:
                request(connection, self._cluster, EffectKind.BENCHMARK, [str(number)])
                if also is not None:
                    also(connection)
        return number

    def cancel(self, reason: str) -> int | None:
        """Ask for the end of the run that is under way. Returns its number, or None
        when there is none.
        """
        wanted = func.coalesce(
            BENCHMARK_RUNS.c.cancel_reason, sanitize_and_truncate(reason)
        )
        with self._engine.begin() as connection:
            ended = (
                update(BENCHMARK_RUNS)
                .where(BENCHMARK_RUNS.c.cluster == self._cluster, OPEN)
                .values(cancel_reason=wanted)
            )
            number: int | None = connection.scalar(ended.returning(BENCHMARK_RUNS.c.id))
            bring_forward(connection, self._cluster, [EffectKind.BENCHMARK])
        return number

    def resume(self) -> None:
        """Make the run that is under way due at once: this worker has started, and may
        have other settings.
        """
        under_way = select(BENCHMARK_RUNS.c.id).where(
            BENCHMARK_RUNS.c.cluster == self._cluster, OPEN
        )
        with self._engine.begin() as connection:
            numbers = list(map(str, connection.scalars(under_way)))
            request(connection, self._cluster, EffectKind.BENCHMARK, numbers)
            bring_forward(connection, self._cluster, [EffectKind.BENCHMARK])

    def under_way(self) -> BenchmarkRun | None:
        """The run that is asked for or under way, or None."""
        query = select(BENCHMARK_RUNS).where(
            BENCHMARK_RUNS.c.cluster == self._cluster, OPEN
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else _run(row)

    def begin(
        self,
        run: BenchmarkRun,
        planned: Sequence[PlannedBenchmark],
        names_begin: str,
        hardware: Mapping[str, Any],
    ) -> None:
        """Store the benchmarks of the run, and its hardware. Does nothing if another
        worker has begun the run.
        """
        begun = {
            "state": RunState.RUNNING.value,
            "begun_at": func.now(),
            "hardware": sanitize_json(hardware),
            "hardware_digest": _digest_of(hardware),
        }
        with self._engine.begin() as connection:
            asked = (
                BENCHMARK_RUNS.c.id == run.id,
                BENCHMARK_RUNS.c.state == RunState.ASKED.value,
            )
            token = connection.scalar(
                update(BENCHMARK_RUNS)
                .where(*asked)
                .values(begun)
                .returning(BENCHMARK_RUNS.c.token)
            )
            if token is None:
                return  # another worker has begun it
            rows = [
                self._row(run, token, names_begin, benchmark) for benchmark in planned
            ]
            if rows:
                connection.execute(insert(BENCHMARK_RESULTS), rows)

    def finish(self, run: BenchmarkRun) -> None:
        """Store that the run has ended: nothing is left to do."""
        state = RunState.DONE if run.cancel_reason is None else RunState.CANCELLED
        with self._engine.begin() as connection:
            connection.execute(
                update(BENCHMARK_RUNS)
                .where(BENCHMARK_RUNS.c.id == run.id)
                .values(state=state.value, ended_at=func.clock_timestamp())
            )

    def _row(
        self, run: BenchmarkRun, token: str, names_begin: str, planned: PlannedBenchmark
    ) -> dict[str, Any]:
        return {
            "run_id": run.id,
            "cluster": self._cluster,
            "benchmark": planned.benchmark,
            "state": BenchmarkState.WAITING.value,
            "job_name": job_name(names_begin, run.id, token, planned.benchmark),
            "options": list(planned.options),
            "script": planned.script,
        }

    def names_under_way(self) -> frozenset[str]:
        """The names of all SLURM jobs of the run that is under way."""
        query = select(BENCHMARK_RESULTS.c.job_name).join(
            BENCHMARK_RUNS, BENCHMARK_RUNS.c.id == BENCHMARK_RESULTS.c.run_id
        )
        with self._engine.connect() as connection:
            return frozenset(
                connection.scalars(
                    query.where(BENCHMARK_RUNS.c.cluster == self._cluster, OPEN)
                )
            )

    # --- benchmarks of a run ----------------------------------------------------------

    def measurements(self, run: BenchmarkRun) -> list[Measurement]:
        """The benchmarks of a run, in their order."""
        now = func.clock_timestamp()
        ages = (
            func.extract("epoch", now - BENCHMARK_RESULTS.c.called_at).label(
                "called_ago_s"
            ),
            func.extract("epoch", now - BENCHMARK_RESULTS.c.missing_at).label(
                "missing_for_s"
            ),
            func.extract("epoch", now - BENCHMARK_RESULTS.c.ended_at).label(
                "ended_ago_s"
            ),
        )
        columns = [BENCHMARK_RESULTS.c[name] for name in _COLUMNS]
        query = (
            select(*columns, *ages)
            .where(BENCHMARK_RESULTS.c.run_id == run.id)
            .order_by(BENCHMARK_RESULTS.c.id)
        )
        with self._engine.connect() as connection:
            return list(map(_measurement, connection.execute(query)))

    def users(self) -> frozenset[str]:
        """The users under whom the benchmarks of the last runs were submitted to
        SLURM.
        """
        conditions = (
            BENCHMARK_RESULTS.c.cluster == self._cluster,
            BENCHMARK_RESULTS.c.run_as.is_not(None),
        )
        with self._engine.connect() as connection:
            of_runs = BENCHMARK_RESULTS.c.run_id.in_(self._last_runs(connection))
            return frozenset(
                connection.scalars(
                    select(BENCHMARK_RESULTS.c.run_as)
                    .where(*conditions, of_runs)
                    .distinct()
                )
            )

    def start_submission(self, measurement: Measurement, run_as: str) -> bool:
        """Commit that sbatch is about to be called as that user, once. False when
        another worker was faster, or the run was cancelled.
        """
        going_on = select(BENCHMARK_RUNS.c.id).where(
            BENCHMARK_RUNS.c.id == measurement.run_id,
            BENCHMARK_RUNS.c.cancel_reason.is_(None),
        )
        with self._engine.begin() as connection:
            return self._set(
                connection,
                measurement,
                BENCHMARK_RESULTS.c.run_id.in_(going_on),
                state=BenchmarkState.SUBMITTING.value,
                run_as=run_as,
                called_at=func.clock_timestamp(),
            )

    def store_update(self, measurement: Measurement, change: MeasurementUpdate) -> bool:
        """Store the change of a benchmark. False when another worker was faster."""
        now = func.clock_timestamp()
        if change.missing:
            missing_at = func.coalesce(BENCHMARK_RESULTS.c.missing_at, now)
        else:
            missing_at = None
        if change.state in ENDS:
            ended_at = func.coalesce(BENCHMARK_RESULTS.c.ended_at, now)
        else:
            ended_at = None
        with self._engine.begin() as connection:
            return self._set(
                connection,
                measurement,
                state=change.state.value,
                slurm_id=change.slurm_id,
                slurm_state=change.slurm_state,
                exit_status=change.exit_status,
                # a ledger restored from a backup may not have it
                called_at=func.coalesce(BENCHMARK_RESULTS.c.called_at, now),
                missing_at=missing_at,
                lost=BENCHMARK_RESULTS.c.lost + int(change.lost),
                ended_at=ended_at,
                reason=sanitize_and_truncate(change.reason) or None,
            )

    def store_result(self, measurement: Measurement, result: BenchmarkResult) -> bool:
        """Store the result of a benchmark. False when another worker was faster."""
        with self._engine.begin() as connection:
            return self._set(
                connection,
                measurement,
                state=result.state.value,
                labels=sanitize_json(dict(result.labels)),
                left_out=sanitize_json(dict(result.left_out)),
                notes=sanitize_json(list(result.notes)),
                tool=sanitize_and_truncate(result.tool),
                reason=sanitize_and_truncate(result.reason) or None,
                output=result.output,
                ended_at=func.coalesce(
                    BENCHMARK_RESULTS.c.ended_at, func.clock_timestamp()
                ),
            )

    def cleaned(self, measurement: Measurement, note: str = "") -> None:
        """Store that the benchmark's file on the login node is gone, or that it stays
        there, with a note.
        """
        notes = BENCHMARK_RESULTS.c.notes + sanitize_json([note] if note else [])
        with self._engine.begin() as connection:
            connection.execute(
                update(BENCHMARK_RESULTS)
                .where(BENCHMARK_RESULTS.c.id == measurement.id)
                .values(cleaned=True, notes=notes)
            )

    def _set(
        self,
        connection: Connection,
        measurement: Measurement,
        *also: Any,
        **values: Any,
    ) -> bool:
        """Update the row if it is still at the state at which it was read. Returns
        whether it was.
        """
        there = (
            BENCHMARK_RESULTS.c.id == measurement.id,
            BENCHMARK_RESULTS.c.state == measurement.state.value,
            *also,
        )
        return bool(
            connection.execute(
                update(BENCHMARK_RESULTS).where(*there).values(values)
            ).rowcount
        )

    # --- questions --------------------------------------------------------------------

    def measured(self) -> list[StoredMeasurement]:
        """All results of the last runs, oldest first."""
        with self._engine.connect() as connection:
            runs = self._last_runs(connection)
            rows = connection.execute(
                _MEASURED, {"cluster": self._cluster, "runs": list(runs)}
            ).mappings()
            return [
                StoredMeasurement(**row, hardware_digest=runs[row["run_id"]])
                for row in rows
            ]

    def _last_runs(self, connection: Connection) -> dict[int, str | None]:
        """The digests of the machines of the last runs, by the runs' numbers."""
        query = select(BENCHMARK_RUNS.c.id, BENCHMARK_RUNS.c.hardware_digest).where(
            BENCHMARK_RUNS.c.cluster == self._cluster
        )
        rows = connection.execute(
            query.order_by(BENCHMARK_RUNS.c.id.desc()).limit(MAX_MEASURED_VALUES)
        )
        return dict(rows.all())

    def latest(self) -> dict[str, StoredMeasurement]:
        """The last result of each benchmark. A label that it left out keeps its last
        value.
        """
        return latest_of(self.measured())

    def labels(self) -> dict[str, Value]:
        """The labels of the cluster as they were last measured."""
        return labels_of(self.latest())

    def ended(self) -> list[CompletedRun]:
        """The last runs that have ended and whose machines are known, the newest
        first.
        """
        age = func.extract("epoch", func.now() - BENCHMARK_RUNS.c.ended_at).label(
            "ended_ago_s"
        )
        conditions = (
            BENCHMARK_RUNS.c.cluster == self._cluster,
            BENCHMARK_RUNS.c.ended_at.is_not(None),
            BENCHMARK_RUNS.c.hardware_digest.is_not(None),
        )
        query = (
            select(BENCHMARK_RUNS.c.hardware_digest, age, BENCHMARK_RUNS.c.forced)
            .where(*conditions)
            .order_by(BENCHMARK_RUNS.c.id.desc())
            .limit(MAX_ENDED_RUNS)
        )
        with self._engine.connect() as connection:
            return [
                CompletedRun(row.hardware_digest, float(row.ended_ago_s), row.forced)
                for row in connection.execute(query)
            ]

    def pricing_digest(self) -> str:
        """The digest of prices and operator's labels of the last run that has one;
        empty if none has.
        """
        conditions = (
            BENCHMARK_RUNS.c.cluster == self._cluster,
            BENCHMARK_RUNS.c.pricing_digest.is_not(None),
        )
        query = (
            select(BENCHMARK_RUNS.c.pricing_digest)
            .where(*conditions)
            .order_by(BENCHMARK_RUNS.c.id.desc())
            .limit(1)
        )
        with self._engine.connect() as connection:
            return connection.scalar(query) or ""

    def failing(self, run: BenchmarkRun) -> dict[str, str]:
        """The benchmarks of a run whose last result is a failure, each with the
        reason.
        """
        with self._engine.connect() as connection:
            last = connection.execute(
                _LAST_RESULTS, {"cluster": self._cluster, "run": run.id}
            ).all()
        return {
            row.benchmark: row.reason or ""
            for row in last
            if row.state == BenchmarkState.FAILED.value
        }


_COLUMNS = (
    *(
        "id",
        "run_id",
        "benchmark",
        "state",
        "job_name",
        "run_as",
        "options",
        "script",
        "lost",
        "slurm_id",
    ),
    *("slurm_state", "exit_status", "cleaned"),
)


def _run(row: Any) -> BenchmarkRun:
    return BenchmarkRun(
        id=row.id,
        why=row.why,
        state=RunState(row.state),
        token=row.token,
        cancel_reason=row.cancel_reason,
    )


def _measurement(row: Any) -> Measurement:
    return Measurement(
        id=row.id,
        run_id=row.run_id,
        benchmark=row.benchmark,
        state=BenchmarkState(row.state),
        job_name=row.job_name,
        run_as=row.run_as or "",
        options=tuple(row.options),
        script=row.script,
        lost_submissions=row.lost,
        slurm_id=row.slurm_id,
        slurm_state=row.slurm_state,
        exit_status=row.exit_status,
        called_ago_s=float("inf")
        if row.called_ago_s is None
        else float(row.called_ago_s),
        missing_for_s=optional_float(row.missing_for_s),
        ended_ago_s=0.0 if row.ended_ago_s is None else float(row.ended_ago_s),
        cleaned=row.cleaned,
    )
