"""Store what became of a benchmark, and log it if that is new."""

import structlog

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkState,
    Measurement,
    MeasurementUpdate,
)
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.ledger.benchmarks import BenchmarkResult

log = structlog.get_logger()


def store_and_log_update(
    context: WorkerContext, measurement: Measurement, change: MeasurementUpdate
) -> None:
    """Store the change unless another worker was faster, and log a new state. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    is_stored = context.ledger.benchmarks.store_update(measurement, change)
    if is_stored and change.state is not measurement.state:
        _log_result(
            measurement,
            change.state,
            slurm_id=change.slurm_id,
            slurm_state=change.slurm_state,
            reason=change.reason,
        )


def store_and_log_result(
    context: WorkerContext, measurement: Measurement, result: BenchmarkResult
) -> None:
    """Store the result unless another worker was faster, and log it. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    if context.ledger.benchmarks.store_result(measurement, result):
        _log_result(
            measurement, result.state, labels=dict(result.labels), reason=result.reason
        )


def _log_result(
    measurement: Measurement, state: BenchmarkState, **about: object
) -> None:
    write_log = log.info
    if state is BenchmarkState.FAILED:
        write_log = log.warning
    shown = {
        name: value for name, value in about.items() if value not in (None, "", {})
    }
    write_log(
        f"benchmark_{state.value.lower()}",
        run=measurement.run_id,
        benchmark=measurement.benchmark,
        **shown,
    )
