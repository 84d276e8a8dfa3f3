"""The queries that show benchmark runs: the runs, their results, and the values that a
label had.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, func, select, text

from supervisor_tasks.benchmarking.benchmark_run import BenchmarkState, Value
from supervisor_tasks.ledger.tables import BENCHMARK_RESULTS, BENCHMARK_RUNS

# The columns of results that are shown. Scripts and outputs are left out: they may be
# long.
SHOWN_COLUMNS = (
    *(
        BENCHMARK_RESULTS.c[name]
        for name in (
            "run_id",
            "benchmark",
            "state",
            "job_name",
            "slurm_id",
            "slurm_state",
            "labels",
        )
    ),
    *(
        BENCHMARK_RESULTS.c[name]
        for name in ("left_out", "notes", "tool", "reason", "called_at", "ended_at")
    ),
    func.octet_length(BENCHMARK_RESULTS.c.output).label("output_bytes"),
)
SHOWN_OF_RUN = tuple(
    column
    for column in BENCHMARK_RUNS.c
    if column.name
    not in ("cluster", "token", "hardware_digest", "pricing_digest", "forced")
)

_HISTORY = text(
    """
    SELECT results.ended_at AS at, run_id, benchmark, labels -> CAST(:label AS text) AS value
    FROM benchmark_results AS results
    WHERE cluster = :cluster AND state = 'MEASURED' AND labels ? CAST(:label AS text)
        AND (CAST(:since AS timestamptz) IS NULL OR results.ended_at >= :since)
    ORDER BY results.id
    """
)


@dataclass(frozen=True, slots=True)
class HistorySample:
    """The value of a label at a point in time."""

    at: datetime
    run_id: int
    benchmark: str
    value: Value


class BenchmarkQueries:
    """The benchmark runs of one cluster, to be shown. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def history(self, label: str, since: datetime | None = None) -> list[HistorySample]:
        """All values that a label had, oldest first; with `since` those that were
        measured then or later.
        """
        with self._engine.connect() as connection:
            rows = connection.execute(
                _HISTORY, {"cluster": self._cluster, "label": label, "since": since}
            ).mappings()
            return [HistorySample(**row) for row in rows]

    def known_labels(self) -> list[str]:
        """All labels that were ever measured. It reads all results: use it for an
        operator, not for frequent work.
        """
        names = func.jsonb_object_keys(BENCHMARK_RESULTS.c.labels).label("name")
        query = select(names).where(
            BENCHMARK_RESULTS.c.cluster == self._cluster,
            BENCHMARK_RESULTS.c.state == BenchmarkState.MEASURED.value,
        )
        with self._engine.connect() as connection:
            return sorted(connection.scalars(query.distinct()))

    def runs(self, most: int, since: datetime | None = None) -> list[dict[str, Any]]:
        """The last runs, the newest first; with `since` those that were asked for then
        or later.
        """
        query = (
            select(*SHOWN_OF_RUN)
            .where(BENCHMARK_RUNS.c.cluster == self._cluster)
            .order_by(BENCHMARK_RUNS.c.id.desc())
            .limit(most)
        )
        if since is not None:
            query = query.where(BENCHMARK_RUNS.c.asked_at >= since)
        with self._engine.connect() as connection:
            return list(map(dict, connection.execute(query).mappings()))

    def run(self, run_id: int | None = None) -> dict[str, Any] | None:
        """A run, or the last one if no number is given. None when there is no such
        run.
        """
        if run_id is None:
            return next(iter(self.runs(1)), None)
        query = select(*SHOWN_OF_RUN).where(
            BENCHMARK_RUNS.c.cluster == self._cluster, BENCHMARK_RUNS.c.id == run_id
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else dict(row)

    def results(self, run_id: int) -> list[dict[str, Any]]:
        """The benchmarks of a run, for an operator; without scripts and outputs."""
        of_run = (
            BENCHMARK_RESULTS.c.cluster == self._cluster,
            BENCHMARK_RESULTS.c.run_id == run_id,
        )
        with self._engine.connect() as connection:
            rows = connection.execute(
                select(*SHOWN_COLUMNS).where(*of_run).order_by(BENCHMARK_RESULTS.c.id)
            ).mappings()
            return list(map(dict, rows))

    def output(self, run_id: int, benchmark: str) -> tuple[str, bytes | None] | None:
        """The script of a benchmark and its output; None when there is no such
        benchmark.
        """
        of_it = (
            BENCHMARK_RESULTS.c.cluster == self._cluster,
            BENCHMARK_RESULTS.c.run_id == run_id,
            BENCHMARK_RESULTS.c.benchmark == benchmark,
        )
        with self._engine.connect() as connection:
            row = connection.execute(
                select(BENCHMARK_RESULTS.c.script, BENCHMARK_RESULTS.c.output).where(
                    *of_it
                )
            ).first()
        return None if row is None else (row.script, row.output)
