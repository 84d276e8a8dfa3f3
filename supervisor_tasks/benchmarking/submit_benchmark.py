"""Submit a benchmark to SLURM, once, as a customer's job is (slurm/submit_once.py). A
worker that finds one in SUBMITTING looks for its job by name
(benchmarking/look_at_job.py).
"""

from dataclasses import replace
from functools import partial

import structlog

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    MeasurementUpdate,
)
from supervisor_tasks.benchmarking.look_at_job import look_at_job, slurm_record
from supervisor_tasks.benchmarking.outcome import FIRST_POLL_S
from supervisor_tasks.benchmarking.store_progress import store_and_log_update
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.submission_order import hand_over_in_order
from supervisor_tasks.slurm.submit_once import SubmissionOutcome, submission_outcome

log = structlog.get_logger()


def submit_benchmark(
    context: WorkerContext, run: BenchmarkRun, measurement: Measurement
) -> float:
    """Hand the job to SLURM, unless SLURM has it: the ledger may have been restored
    from a backup. Returns after how many seconds SLURM is asked about the job.

    Raises TransientError when sbatch did not run, and LoginRejectedError when the login
    node does not let the user in. A retry helps.
    """
    if slurm_record(context, measurement) is not None:
        return look_at_job(context, run, measurement)
    jobs = context.benchmarking.jobs
    hand_over_in_order(
        jobs.clock, partial(_begin, context, measurement), partial(_run_sbatch, context)
    )
    return FIRST_POLL_S


def _begin(context: WorkerContext, measurement: Measurement) -> Measurement | None:
    """Commit that the submission has begun. Returns None if another worker was faster,
    or if the run was cancelled.
    """
    user = context.benchmarking.jobs.user
    if not context.ledger.benchmarks.start_submission(measurement, user):
        return None
    return replace(measurement, state=BenchmarkState.SUBMITTING, run_as=user)


def _run_sbatch(
    context: WorkerContext, measurement: Measurement, clock: LoginClock, begun_s: float
) -> None:
    answer = context.benchmarking.jobs.submit(measurement, clock, begun_s)
    if not isinstance(answer, Exception):
        store_and_log_update(
            context,
            measurement,
            MeasurementUpdate(state=BenchmarkState.SUBMITTED, slurm_id=answer),
        )
        return
    match submission_outcome(answer):
        case SubmissionOutcome.REJECTED:
            store_and_log_update(
                context,
                measurement,
                MeasurementUpdate(state=BenchmarkState.FAILED, reason=str(answer)),
            )
        case SubmissionOutcome.UNKNOWN:
            log.warning(
                "benchmark_submission_unclear",
                run=measurement.run_id,
                benchmark=measurement.benchmark,
                error=str(answer),
            )
        case SubmissionOutcome.NOT_RUN:
            context.ledger.benchmarks.store_update(
                measurement, MeasurementUpdate(state=BenchmarkState.WAITING)
            )
            raise answer
        case _:
            raise answer
