"""Read the output of a benchmark whose job has ended, and decide what was measured."""

from dataclasses import replace

import structlog

from benchmarks.result import UnreadableOutputError
from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkRun,
    BenchmarkState,
    Measurement,
)
from supervisor_tasks.benchmarking.outcome import (
    cut_short,
    end_reported,
    unsound,
    why_failed,
)
from supervisor_tasks.benchmarking.store_progress import store_and_log_result
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.ledger.benchmarks import BenchmarkResult
from supervisor_tasks.slurm.ssh import LoginRejectedError

log = structlog.get_logger()

OUTPUT_AGAIN_S = 2.0  # while the output does not show the end of the job


def read_result(
    context: WorkerContext, run: BenchmarkRun, measurement: Measurement
) -> float:
    """Read the job's output, and decide. A cancelled run does not wait until the user
    can log in again. Returns after how many seconds the output is read again; 0 when it
    is decided.

    Raises SlurmUnavailableError when the output could not be read, and
    LoginRejectedError when the login node does not let the user in. A retry helps.
    """
    try:
        body = output = context.benchmarking.jobs.output(measurement)
    except LoginRejectedError as error:
        if run.cancel_reason is None:
            raise
        notes = [f"its output was not read: {error}"]
        result = BenchmarkResult(
            state=BenchmarkState.CANCELLED, reason=run.cancel_reason, notes=notes
        )
        store_and_log_result(context, measurement, result)
        return 0.0
    failure, end = (
        why_failed(measurement, output),
        end_reported(measurement.job_name, output),
    )
    if end is not None:
        _, body = end
    if cut_short(measurement, failure, run.cancel_reason):
        result = BenchmarkResult(
            state=BenchmarkState.CANCELLED, reason=run.cancel_reason or "", output=body
        )
    elif failure is None:
        return OUTPUT_AGAIN_S
    elif failure or body is None:
        result = BenchmarkResult(
            state=BenchmarkState.FAILED, reason=failure, output=body
        )
    else:
        result = _parsed(context, run, measurement, body)
    store_and_log_result(context, measurement, result)
    return 0.0


def _parsed(
    context: WorkerContext, run: BenchmarkRun, measurement: Measurement, body: bytes
) -> BenchmarkResult:
    """The result that follows from a benchmark's output."""
    definition = context.benchmarking.suite.get(measurement.benchmark)
    if definition is None:
        return BenchmarkResult(
            state=BenchmarkState.FAILED,
            reason=f"found no benchmark {measurement.benchmark!r} in this version; expected one of its suite:"
            " run the benchmarks again",
            output=body,
        )
    try:
        reading = definition.parse(body, run.token)
    except UnreadableOutputError as error:
        return BenchmarkResult(
            state=BenchmarkState.FAILED, reason=str(error), output=body
        )
    except Exception as error:
        log.exception(
            "benchmark_reader_failed", run=run.id, benchmark=measurement.benchmark
        )
        return BenchmarkResult(
            state=BenchmarkState.FAILED,
            reason=f"its output could not be read: {error!r}",
            output=body,
        )
    labels = {
        label: measured.number for label, measured in reading.numbers.items()
    } | dict(reading.texts)
    result = BenchmarkResult(
        state=BenchmarkState.MEASURED,
        labels=labels,
        left_out=reading.left_out,
        notes=reading.notes,
        tool=reading.tool,
        output=body,
    )
    if reading.empty and reading.left_out:
        return replace(
            result,
            state=BenchmarkState.LEFT_OUT,
            reason="; ".join(sorted(set(reading.left_out.values()))),
        )
    problem = unsound(labels)
    if problem:
        return replace(result, state=BenchmarkState.FAILED, labels={}, reason=problem)
    return result
