"""Look for the SLURM job of a benchmark, and store what SLURM's answer means for it. A
job that cannot start, or whose run must end, is cancelled.
"""

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    MeasurementUpdate,
)
from supervisor_tasks.benchmarking.outcome import (
    after_cancel,
    after_poll,
    blocked_reason,
    counts_nodes,
    end_reported,
    leads_to_no_end,
    left_behind,
    waits_long,
)
from supervisor_tasks.benchmarking.store_progress import store_and_log_update
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord, SlurmRejectedError
from supervisor_tasks.slurm.ssh import LoginRejectedError
from supervisor_tasks.slurm.submit_once import SlurmRecords

log = structlog.get_logger()

NO_END = "benchmark_leads_to_no_end"  # since when SLURM shows such states of its job


def look_at_job(
    context: WorkerContext, run: BenchmarkRun, measurement: Measurement
) -> float:
    """Check what SLURM does with the job, and have it ended if the run must end.
    Returns after how many seconds SLURM is asked again.

    Raises SlurmUnavailableError when SLURM does not answer, and LoginRejectedError when
    the login node does not let the user in. A retry helps.
    """
    record, shows_end = slurm_record(context, measurement), False
    if record is None:
        record, shows_end = _traces(context, run, measurement)
    window_s = context.benchmarking.jobs.cluster.submissions.window_s
    change = after_poll(measurement, record, window_s, output_shows_end=shows_end)
    no_end = Duration(context.ledger.facts, NO_END)
    no_end_s = no_end.update(leads_to_no_end(record), str(change.slurm_id))
    if change.state is BenchmarkState.SUBMITTED and change.slurm_id is not None:
        change = _ended_by_us(
            context, run, measurement, record, change, change.slurm_id
        )
        change = left_behind(
            change, record, cancel_reason=run.cancel_reason, no_end_s=no_end_s
        )
    store_and_log_update(context, measurement, change)
    is_submitted = change.state is BenchmarkState.SUBMITTED
    if not is_submitted:
        no_end.update(False)
    if is_submitted and waits_long(measurement, record, no_end_s):
        advice = "see the job and its partition in SLURM; `supervisor benchmark cancel` ends the run"
        about = {
            "run": run.id,
            "benchmark": measurement.benchmark,
            "slurm_id": change.slurm_id,
            "slurm_state": change.slurm_state,
        }
        context.ledger.alarms.on(AlarmName.BENCHMARK_WAITS, **about, advice=advice)
    else:
        context.ledger.alarms.off(AlarmName.BENCHMARK_WAITS)
    return change.poll_delay_s


def _traces(
    context: WorkerContext, run: BenchmarkRun, measurement: Measurement
) -> tuple[JobRecord | None, bool]:
    """What a job that slurmctld does not know has left: accounting's record, or else
    whether its output shows its end. Only the job's user can ask for them. If he is not
    let in, a cancelled run goes on as if there were none.
    """
    jobs = context.benchmarking.jobs
    try:
        record = jobs.accounted(measurement)
        if record is not None:
            return record, False
        return None, end_reported(
            measurement.job_name, jobs.output(measurement)
        ) is not None
    except LoginRejectedError:
        if run.cancel_reason is None:
            raise
        return None, False


def _ended_by_us(
    context: WorkerContext,
    run: BenchmarkRun,
    measurement: Measurement,
    record: JobRecord | None,
    change: MeasurementUpdate,
    slurm_id: SlurmId,
) -> MeasurementUpdate:
    """Have SLURM end a job that cannot start, or whose run must end."""
    hardware = None
    if run.cancel_reason is None and counts_nodes(measurement, record):
        hardware = context.slurm.nodes.hardware()
    cannot_start = blocked_reason(measurement, record, hardware)
    if not cannot_start and run.cancel_reason is None:
        return change
    rejected = _cancel(context, measurement, slurm_id)
    return after_cancel(
        change,
        record,
        cannot_start=cannot_start,
        cancel_reason=run.cancel_reason,
        rejected=rejected,
    )


def slurm_record(context: WorkerContext, measurement: Measurement) -> JobRecord | None:
    """The job as slurmctld has it. If slurmctld has several with this name, the first
    one counts, and the others are cancelled. Raises SlurmUnavailableError when
    slurmctld does not answer; a retry helps.
    """
    named = [
        job.record
        for job in context.benchmarking.jobs.listed(measurement)
        if job.name == measurement.job_name
    ]
    accepted = SlurmRecords(named, listed=True).accepted
    for extra in accepted[1:]:
        if extra.phase is not Phase.ENDED:
            log.error(
                "extra_benchmark_job_cancelled",
                benchmark=measurement.benchmark,
                slurm_id=extra.slurm_id,
            )
            _cancel(context, measurement, extra.slurm_id)
    return next(iter([*accepted, *named]), None)


def _cancel(context: WorkerContext, measurement: Measurement, slurm_id: SlurmId) -> str:
    """Ask SLURM to end a job. Returns why SLURM rejects; empty if it does not."""
    try:
        context.benchmarking.jobs.cancel(measurement, slurm_id)
    except SlurmRejectedError as error:
        log.error(
            "benchmark_not_cancelled",
            benchmark=measurement.benchmark,
            slurm_id=slurm_id,
            error=str(error),
        )
        return str(error)
    return ""
