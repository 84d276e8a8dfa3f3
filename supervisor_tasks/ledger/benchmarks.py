"""Benchmark runs: who asked, how far they are, what they measured."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, func, literal_column, select, text, update
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.benchmark_run import Change, Measurement, Planned, Run, RunState, Stage, Value, job_name
from supervisor_tasks.job import SlurmId
from supervisor_tasks.ledger.models import BenchmarkResultRow, BenchmarkRunRow
from supervisor_tasks.ledger.rows import storable, storable_json
from supervisor_tasks.offer import Machine, machines_digest
from supervisor_tasks.registration import Ended

RUNS = BenchmarkRunRow.metadata.tables["benchmark_runs"]
RESULTS = BenchmarkResultRow.metadata.tables["benchmark_results"]
# In the words of the partial index: what is a parameter, a prepared statement's plan cannot compare with them.
OPEN = RUNS.c.state.in_([literal_column(f"'{state.value}'") for state in RunState if state.open])
TOKEN_BYTES = 8
ENDS = (Stage.ENDED, Stage.FAILED, Stage.CANCELLED)

# What is shown of results: without scripts and outputs, which may be long.
SHOWN = (
    *(RESULTS.c[name] for name in ("run_id", "benchmark", "stage", "job_name", "slurm_id", "slurm_state", "labels")),
    *(RESULTS.c[name] for name in ("left_out", "notes", "tool", "reason", "called_at", "ended_at")),
    func.octet_length(RESULTS.c.output).label("output_bytes"),
)
SHOWN_OF_RUN = tuple(
    column for column in RUNS.c if column.name not in ("cluster", "token", "machines", "terms", "anew")
)
MOST_ENDED = 100  # runs that are looked back at
MOST_MEASURED = 100  # runs whose labels count: the registration asks every few seconds

_MEASURED = text(
    """
    SELECT benchmark, labels, left_out, notes, run_id, ended_at FROM benchmark_results
    WHERE cluster = :cluster AND stage = 'MEASURED' AND run_id = ANY(:runs) ORDER BY id
    """
)
_LAST_WORDS = text(
    """
    SELECT DISTINCT ON (benchmark) benchmark, stage, reason FROM benchmark_results
    WHERE cluster = :cluster AND stage IN ('MEASURED', 'LEFT_OUT', 'FAILED')
    AND benchmark IN (SELECT benchmark FROM benchmark_results WHERE run_id = :run)
    ORDER BY benchmark, id DESC
    """
)
_HISTORY = text(
    """
    SELECT results.ended_at AS at, run_id, benchmark, labels -> CAST(:label AS text) AS value
    FROM benchmark_results AS results
    WHERE cluster = :cluster AND stage = 'MEASURED' AND labels ? CAST(:label AS text) ORDER BY results.id
    """
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a benchmark measured last, when, and on which machines (their digest, where it is known)."""

    benchmark: str
    labels: dict[str, Value]
    left_out: dict[str, str]
    notes: list[str]
    run_id: int
    ended_at: datetime
    machines: str | None


@dataclass(frozen=True, slots=True)
class Point:
    """A label's value at a time."""

    at: datetime
    run_id: int
    benchmark: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a benchmark."""

    stage: Stage
    labels: Mapping[str, Value] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tool: str = ""
    reason: str = ""
    output: bytes | None = None


def latest_of(measured: Iterable[Measured]) -> dict[str, Measured]:
    """The last one of each benchmark, of all in their order; labels that it left out are taken from those before."""
    latest = dict[str, Measured]()
    for one in measured:
        before = latest[one.benchmark].labels if one.benchmark in latest else {}
        kept = {label: before[label] for label in one.left_out if label in before}
        latest[one.benchmark] = replace(one, labels=kept | one.labels)
    return latest


def labels_of(latest: Mapping[str, Measured]) -> dict[str, Value]:
    """All that was measured."""
    return {label: value for one in latest.values() for label, value in one.labels.items()}


def staying_labels(here: Mapping[str, Measured], everywhere: Mapping[str, Measured]) -> frozenset[str]:
    """The labels that are measured, but were not when the benchmarks last worked `here`: as these failed, or left them out."""
    failed = {label for name, one in everywhere.items() if name not in here for label in one.labels}
    left_out = {label for one in here.values() for label in one.left_out}
    return frozenset((failed | left_out) - labels_of(here).keys())


def _digest_of(hardware: Mapping[str, Any]) -> str | None:
    nodes = hardware.get("nodes")
    if not nodes:
        return None
    return machines_digest([Machine(node["gpus"], node["cpus"], node["mem_mb"]) for node in nodes])


class Benchmarks:
    """The benchmark runs of one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    # --- runs -------------------------------------------------------------------------------------------------------

    def ask(
        self,
        why: str,
        machines: str | None = None,
        terms: str | None = None,
        *,
        anew: bool = True,
        also: Callable[[Connection], None] | None = None,
    ) -> int | None:
        """Have the cluster measured; the run's number, or None when one is under way already. `also` is done with it, or not
        at all; the others are of the table.
        """
        about = {"why": storable(why), "machines": machines, "terms": terms, "anew": anew}
        token = secrets.token_hex(TOKEN_BYTES)
        row = insert(RUNS).values(cluster=self._cluster, state=RunState.ASKED.value, token=token, **about)
        with self._engine.begin() as connection:
            number: int | None = connection.scalar(row.on_conflict_do_nothing().returning(RUNS.c.id))
            if number is not None and also is not None:
                also(connection)
        return number

    def cancel(self, reason: str) -> int | None:
        """Have the run that is under way ended; its number, or None when there is none."""
        wanted = func.coalesce(RUNS.c.cancel_reason, storable(reason))
        with self._engine.begin() as connection:
            ended = update(RUNS).where(RUNS.c.cluster == self._cluster, OPEN).values(cancel_reason=wanted)
            number: int | None = connection.scalar(ended.returning(RUNS.c.id))
            at_once = update(RESULTS).where(RESULTS.c.run_id == number).values(due_at=func.now())
            connection.execute(at_once)
        return number

    def under_way(self) -> Run | None:
        """The run that is asked for or under way."""
        query = select(RUNS).where(RUNS.c.cluster == self._cluster, OPEN)
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else _run(row)

    def begin(self, run: Run, planned: Sequence[Planned], names_begin: str, hardware: Mapping[str, Any]) -> None:
        """Write down what is to be measured, and on what."""
        begun = {
            "state": RunState.RUNNING.value,
            "begun_at": func.now(),
            "hardware": storable_json(hardware),
            "machines": _digest_of(hardware),
        }
        with self._engine.begin() as connection:
            asked = RUNS.c.id == run.id, RUNS.c.state == RunState.ASKED.value
            token = connection.scalar(update(RUNS).where(*asked).values(begun).returning(RUNS.c.token))
            if token is None:
                return  # another worker has begun it
            rows = [self._row(run, one, job_name(names_begin, run.id, token, one.benchmark)) for one in planned]
            if rows:
                connection.execute(insert(RESULTS), rows)

    def finish(self, run: Run) -> None:
        """Nothing is left to do."""
        state = RunState.DONE if run.cancel_reason is None else RunState.CANCELLED
        with self._engine.begin() as connection:
            connection.execute(
                update(RUNS).where(RUNS.c.id == run.id).values(state=state.value, ended_at=func.clock_timestamp())
            )

    def _row(self, run: Run, one: Planned, name: str) -> dict[str, Any]:
        return {
            "run_id": run.id,
            "cluster": self._cluster,
            "benchmark": one.benchmark,
            "stage": Stage.WAITING.value,
            "job_name": name,
            "options": list(one.options),
            "script": one.script,
        }

    def names_under_way(self) -> frozenset[str]:
        """The names of all jobs of the run that is under way."""
        query = select(RESULTS.c.job_name).join(RUNS, RUNS.c.id == RESULTS.c.run_id)
        with self._engine.connect() as connection:
            return frozenset(connection.scalars(query.where(RUNS.c.cluster == self._cluster, OPEN)))

    # --- benchmarks of a run ----------------------------------------------------------------------------------------

    def measurements(self, run: Run) -> list[Measurement]:
        """The benchmarks of a run, in their order."""
        now = func.clock_timestamp()
        ages = (
            func.extract("epoch", RESULTS.c.due_at - now).label("due_in_s"),
            func.extract("epoch", now - RESULTS.c.called_at).label("called_s_ago"),
            func.extract("epoch", now - RESULTS.c.missing_at).label("missing_for_s"),
            func.extract("epoch", now - RESULTS.c.ended_at).label("ended_s_ago"),
        )
        columns = [RESULTS.c[name] for name in _COLUMNS]
        query = select(*columns, *ages).where(RESULTS.c.run_id == run.id).order_by(RESULTS.c.id)
        with self._engine.connect() as connection:
            return [_measurement(row) for row in connection.execute(query)]

    def users(self) -> frozenset[str]:
        """Under whom the benchmarks of the last runs were handed to SLURM."""
        known = RESULTS.c.cluster == self._cluster, RESULTS.c.run_as.is_not(None)
        with self._engine.connect() as connection:
            of_runs = RESULTS.c.run_id.in_(self._last_runs(connection))
            return frozenset(connection.scalars(select(RESULTS.c.run_as).where(*known, of_runs).distinct()))

    def start_submission(self, one: Measurement, run_as: str) -> bool:
        """Commit that sbatch is about to be called as that user, once; False when somebody else was faster, or the run is
        to end.
        """
        going_on = select(RUNS.c.id).where(RUNS.c.id == one.run_id, RUNS.c.cancel_reason.is_(None))
        with self._engine.begin() as connection:
            mine = self._set(
                connection,
                one,
                RESULTS.c.run_id.in_(going_on),
                stage=Stage.SUBMITTING.value,
                run_as=run_as,
                called_at=func.clock_timestamp(),
                due_at=func.clock_timestamp(),
            )
        return mine

    def changed(self, one: Measurement, change: Change) -> bool:
        """Write down what is new of a benchmark; False when somebody else was faster."""
        now = func.clock_timestamp()
        missing_at = func.coalesce(RESULTS.c.missing_at, now) if change.missing else None
        ended_at = func.coalesce(RESULTS.c.ended_at, now) if change.stage in ENDS else None
        with self._engine.begin() as connection:
            return self._set(
                connection,
                one,
                stage=change.stage.value,
                slurm_id=change.slurm_id,
                slurm_state=change.slurm_state,
                exit_status=change.exit_status,
                called_at=func.coalesce(RESULTS.c.called_at, now),  # a backup may not have it
                due_at=now + func.make_interval(0, 0, 0, 0, 0, 0, change.look_in_s),
                missing_at=missing_at,
                lost=RESULTS.c.lost + int(change.lost),
                ended_at=ended_at,
                reason=storable(change.reason) or None,
            )

    def postpone(self, one: Measurement, look_in_s: float) -> None:
        """Nothing is new; again in a while."""
        later = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, look_in_s)
        with self._engine.begin() as connection:
            self._set(connection, one, due_at=later)

    def decided(self, one: Measurement, verdict: Verdict) -> bool:
        """Write down what became of a benchmark; False when somebody else was faster."""
        with self._engine.begin() as connection:
            return self._set(
                connection,
                one,
                stage=verdict.stage.value,
                labels=storable_json(dict(verdict.labels)),
                left_out=storable_json(dict(verdict.left_out)),
                notes=storable_json(list(verdict.notes)),
                tool=storable(verdict.tool),
                reason=storable(verdict.reason) or None,
                output=verdict.output,
                ended_at=func.coalesce(RESULTS.c.ended_at, func.clock_timestamp()),
            )

    def cleaned(self, one: Measurement, note: str = "") -> None:
        """Its file on the login node is gone, or left there, which the note says."""
        notes = RESULTS.c.notes + storable_json([note] if note else [])
        with self._engine.begin() as connection:
            connection.execute(update(RESULTS).where(RESULTS.c.id == one.id).values(cleaned=True, notes=notes))

    def _set(self, connection: Connection, one: Measurement, *also: Any, **values: Any) -> bool:
        """Only as long as it is at the stage at which it was read."""
        there = RESULTS.c.id == one.id, RESULTS.c.stage == one.stage.value, *also
        return bool(connection.execute(update(RESULTS).where(*there).values(values)).rowcount)

    # --- questions --------------------------------------------------------------------------------------------------

    def measured(self) -> list[Measured]:
        """All that the last runs measured, the oldest first."""
        with self._engine.connect() as connection:
            runs = self._last_runs(connection)
            rows = connection.execute(_MEASURED, {"cluster": self._cluster, "runs": list(runs)}).mappings()
            return [Measured(**row, machines=runs[row["run_id"]]) for row in rows]

    def _last_runs(self, connection: Connection) -> dict[int, str | None]:
        """The machines of the last runs, by the runs' numbers."""
        query = select(RUNS.c.id, RUNS.c.machines).where(RUNS.c.cluster == self._cluster)
        rows = connection.execute(query.order_by(RUNS.c.id.desc()).limit(MOST_MEASURED))
        return {row.id: row.machines for row in rows}

    def latest(self) -> dict[str, Measured]:
        """What each benchmark measured when it last worked; a label that it left out then stays as it was."""
        return latest_of(self.measured())

    def labels(self) -> dict[str, Value]:
        """The labels of the cluster as they were last measured."""
        return labels_of(self.latest())

    def ended(self) -> list[Ended]:
        """The last runs that have ended and whose machines are known, the newest first."""
        age = func.extract("epoch", func.now() - RUNS.c.ended_at).label("ended_s_ago")
        known = RUNS.c.cluster == self._cluster, RUNS.c.ended_at.is_not(None), RUNS.c.machines.is_not(None)
        query = select(RUNS.c.machines, age, RUNS.c.anew).where(*known).order_by(RUNS.c.id.desc()).limit(MOST_ENDED)
        with self._engine.connect() as connection:
            return [Ended(row.machines, float(row.ended_s_ago), row.anew) for row in connection.execute(query)]

    def terms(self) -> str:
        """Those of the last run of which they are known; empty where there is none."""
        known = RUNS.c.cluster == self._cluster, RUNS.c.terms.is_not(None)
        query = select(RUNS.c.terms).where(*known).order_by(RUNS.c.id.desc()).limit(1)
        with self._engine.connect() as connection:
            return connection.scalar(query) or ""

    def failing(self, run: Run) -> dict[str, str]:
        """The benchmarks of a run that did not work when they were last run to their end, and why."""
        with self._engine.connect() as connection:
            last = connection.execute(_LAST_WORDS, {"cluster": self._cluster, "run": run.id}).all()
        return {row.benchmark: row.reason or "" for row in last if row.stage == Stage.FAILED.value}

    def history(self, label: str) -> list[Point]:
        """All that a label has ever been, the oldest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(_HISTORY, {"cluster": self._cluster, "label": label}).mappings()
            return [Point(**row) for row in rows]

    def known_labels(self) -> list[str]:
        """All labels that were ever measured. Reads all results: for an operator, not for what is done often."""
        names = func.jsonb_object_keys(RESULTS.c.labels).label("name")
        query = select(names).where(RESULTS.c.cluster == self._cluster, RESULTS.c.stage == Stage.MEASURED.value)
        with self._engine.connect() as connection:
            return sorted(connection.scalars(query.distinct()))

    def runs(self, most: int) -> list[dict[str, Any]]:
        """The last runs, the newest first."""
        query = select(*SHOWN_OF_RUN).where(RUNS.c.cluster == self._cluster).order_by(RUNS.c.id.desc()).limit(most)
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def run(self, run_id: int | None = None) -> dict[str, Any] | None:
        """A run, or the last one."""
        if run_id is None:
            return next(iter(self.runs(1)), None)
        query = select(*SHOWN_OF_RUN).where(RUNS.c.cluster == self._cluster, RUNS.c.id == run_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else dict(row)

    def results(self, run_id: int) -> list[dict[str, Any]]:
        """The benchmarks of a run as an operator reads them."""
        of_run = RESULTS.c.cluster == self._cluster, RESULTS.c.run_id == run_id
        with self._engine.connect() as connection:
            rows = connection.execute(select(*SHOWN).where(*of_run).order_by(RESULTS.c.id)).mappings()
            return [dict(row) for row in rows]

    def output(self, run_id: int, benchmark: str) -> tuple[str, bytes | None] | None:
        """The script of a benchmark and what it printed; None where there is no such benchmark."""
        of_it = RESULTS.c.cluster == self._cluster, RESULTS.c.run_id == run_id, RESULTS.c.benchmark == benchmark
        with self._engine.connect() as connection:
            row = connection.execute(select(RESULTS.c.script, RESULTS.c.output).where(*of_it)).first()
        return None if row is None else (row.script, row.output)


_COLUMNS = (
    *("id", "run_id", "benchmark", "stage", "job_name", "run_as", "options", "script", "lost", "slurm_id"),
    *("slurm_state", "exit_status", "cleaned"),
)


def _run(row: Any) -> Run:
    return Run(id=row.id, why=row.why, state=RunState(row.state), token=row.token, cancel_reason=row.cancel_reason)


def _measurement(row: Any) -> Measurement:
    return Measurement(
        id=row.id,
        run_id=row.run_id,
        benchmark=row.benchmark,
        stage=Stage(row.stage),
        job_name=row.job_name,
        run_as=row.run_as or "",
        options=tuple(row.options),
        script=row.script,
        lost=row.lost,
        slurm_id=None if row.slurm_id is None else SlurmId(row.slurm_id),
        slurm_state=row.slurm_state,
        exit_status=row.exit_status,
        due_in_s=float(row.due_in_s),
        called_s_ago=float("inf") if row.called_s_ago is None else float(row.called_s_ago),
        missing_for_s=None if row.missing_for_s is None else float(row.missing_for_s),
        ended_s_ago=0.0 if row.ended_s_ago is None else float(row.ended_s_ago),
        cleaned=row.cleaned,
    )
