"""Benchmark: measure the cluster, one benchmark after the other, each as one SLURM job.

A run is an effect of the outbox. The worker that leases it does what can be done at
once and gives it back; no worker waits for a job. A benchmark is submitted as a
customer's job is (slurm/submit_once.py). A worker that finds one in SUBMITTING looks
for its job by name. While SLURM does not answer, everything waits.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import structlog

from benchmarks.result import UnreadableOutputError
from supervisor_tasks.benchmarking.benchmark_run import (
    CLEAN_AGAIN_S,
    REJECTED_S,
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    MeasurementUpdate,
    RunStep,
    cleanup_expired,
    login_again_in_s,
    name_beginning,
    next_step,
)
from supervisor_tasks.benchmarking.outcome import (
    FIRST_POLL_S,
    after_cancel,
    after_poll,
    blocked_reason,
    counts_nodes,
    cut_short,
    end_reported,
    unsound,
    waits_long,
    why_failed,
)
from supervisor_tasks.benchmarking.planned_jobs import jobs_of
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import ProviderUnknownError, TransientError
from supervisor_tasks.execution.effect_failures import (
    RUN_NOT_PLANNED,
    given_back_on_failure,
)
from supervisor_tasks.execution.exclusive_run import record_run
from supervisor_tasks.jobs.model import EffectKind, SlurmId
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.benchmarks import BenchmarkResult
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.mapping import sanitize_and_truncate
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.monitoring.slurm_health import slurm_is_healthy
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import (
    JobRecord,
    SlurmRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.ssh import LoginRejectedError, our_clock_s
from supervisor_tasks.slurm.submit_once import (
    SlurmRecords,
    SubmissionOutcome,
    submission_outcome,
)
from supervisor_tasks.slurm_lookup.cluster_guard import (
    require_expected_cluster,
    require_not_paused,
)

log = structlog.get_logger()

OUTPUT_AGAIN_S = 2.0
DISABLED = "BENCHMARK_DISABLE is set"
# After these steps the login node has let the user in, or he need not log in.
LOG_IN_OR_END = (RunStep.SUBMIT, RunStep.READ, RunStep.SKIP, RunStep.FINISH)
LET_IN = (
    "let this user log in with the supervisor's key (`--allow` of plugins/authorized_keys.py), or set BENCHMARK_RUN_AS to"
    " another one; `supervisor benchmark cancel` ends the run"
)


class ImpossibleRunError(TransientError):
    """With these settings and these nodes nothing can be measured; with others it may
    be.
    """


def benchmark(context: WorkerContext) -> None:
    """Do what can be done now for the current run, if its effect is due. The worker
    that leases the effect does it.
    """
    with record_run(context.ledger, "benchmark"):
        for effect in context.ledger.effects.lease([EffectKind.BENCHMARK], 1):
            with given_back_on_failure(context.ledger, [effect]):
                _advance(context, effect)


def _advance(context: WorkerContext, effect: OpenEffect) -> None:
    """Do all steps that can be done now. Then end the effect with the run, or give it
    back until the next step is due.
    """
    effects, waits = context.ledger.effects, dict[int, float]()
    run = context.ledger.benchmarks.under_way()
    while run is not None and str(run.id) == effect.subject:
        try:
            goes_on = _step(context, run, waits)
        except LoginRejectedError as error:
            if error.user not in _users(context, run):
                raise
            effects.postpone([effect], _rejected(context, run, error), str(error))
            return
        if not goes_on:
            wait_s = min(wait_s for wait_s in waits.values() if wait_s > 0)
            effects.postpone([effect], wait_s)
            return
        effects.extend([effect])
        run = context.ledger.benchmarks.under_way()
    effects.finish(effect)


def _step(context: WorkerContext, run: BenchmarkRun, waits: dict[int, float]) -> bool:
    """Do one step. Returns False if there is none now. `waits` has the seconds until
    the next step of each measurement that had a step already.
    """
    if context.benchmarking.disabled and run.cancel_reason is None:
        context.ledger.benchmarks.cancel(DISABLED)
        return True
    measurements = [
        replace(one, due_in_s=waits.get(one.id, 0.0))
        for one in context.ledger.benchmarks.measurements(run)
    ]
    next_ = next_step(run, measurements)
    if next_ is None:
        return False
    step, one = next_
    wait_s = _do(context, run, step, one)
    if one is not None:
        waits[one.id] = wait_s
    if step in LOG_IN_OR_END:
        _login_rejected(context).update(False)
    return True


def _do(
    context: WorkerContext, run: BenchmarkRun, step: RunStep, one: Measurement | None
) -> float:
    """Do the step. Returns how many seconds later the next step of the same measurement
    is due.
    """
    if step.asks_slurm:
        require_expected_cluster(context)
    if step.begins_something:
        require_not_paused(context.ledger)
        if not slurm_is_healthy(context.ledger):
            raise SlurmUnavailableError(
                "SLURM is not known to work at the moment; nothing is begun"
            )
    if one is not None:
        return HANDLERS[step](context, run, one)
    if step is RunStep.BEGIN:
        _begin(context, run)
    else:
        _finish(context, run)
    return 0.0


def _begin(context: WorkerContext, run: BenchmarkRun) -> None:
    """Find out what the run must measure, and store the plan."""
    beginning = _names_begin(context)
    specs = context.slurm.nodes.specs()
    if not specs.nodes:
        raise SlurmUnavailableError(
            f"none of the partition's {len(specs.left_out)} nodes works at the moment"
        )
    try:
        plan = context.benchmarking.plan_of(specs, run.token)
    except ValueError as error:
        raise ImpossibleRunError(f"{RUN_NOT_PLANNED}{error}") from error
    planned = jobs_of(
        plan, context.benchmarking.suite.values(), context.benchmarking.sbatch_flags
    )
    context.ledger.benchmarks.begin(
        run, planned, beginning, {"nodes": [asdict(node) for node in specs.nodes]}
    )
    log.info(
        "benchmark_run_begun",
        run=run.id,
        why=run.why,
        nodes=len(specs.nodes),
        benchmarks=[one.benchmark for one in planned],
    )


def _rejected(
    context: WorkerContext, run: BenchmarkRun, error: LoginRejectedError
) -> float:
    """Store that the login node does not let the user in, and since when. Call the
    operator if that lasts a minute. Returns after how many seconds the login is tried
    again.
    """
    about = {
        "run": run.id,
        "user": error.user,
        "reason": sanitize_and_truncate(str(error))[:500],
    }
    rejected_for_s = _login_rejected(context).update(
        True, error.user, **about, advice=LET_IN
    )
    return login_again_in_s(rejected_for_s)


def _login_rejected(context: WorkerContext) -> Condition:
    return Condition(context.ledger, AlarmName.BENCHMARK_USER_REJECTED, REJECTED_S)


def _users(context: WorkerContext, run: BenchmarkRun) -> set[str]:
    """The users that a step of the run may log in as."""
    jobs = context.benchmarking.jobs
    measurements = context.ledger.benchmarks.measurements(run)
    return {jobs.user, *map(jobs.owner, measurements)}


def _finish(context: WorkerContext, run: BenchmarkRun) -> None:
    _update_failure_alarm(context, run)
    context.ledger.benchmarks.finish(run)
    log.info("benchmark_run_ended", run=run.id, cancelled=run.cancel_reason)


def _update_failure_alarm(context: WorkerContext, run: BenchmarkRun) -> None:
    """Raise the alarm for the benchmarks that did not work. Those that a cancelled
    run has not tried keep their last result.
    """
    failing = context.ledger.benchmarks.failing(run)
    if failing:
        shown = {name: why[:500] for name, why in failing.items()}
        context.ledger.alarms.on(
            AlarmName.BENCHMARK_FAILED,
            benchmarks=shown,
            advice="supervisor benchmark show",
        )
    elif context.ledger.benchmarks.measurements(run):
        context.ledger.alarms.off(AlarmName.BENCHMARK_FAILED)


def _submit(context: WorkerContext, run: BenchmarkRun, one: Measurement) -> float:
    """Hand the job to SLURM, unless SLURM has it: the ledger may have been restored
    from a backup.
    """
    if _record(context, one) is not None:
        return _look(context, run, one)
    user = context.benchmarking.jobs.user
    clock = context.benchmarking.jobs.clock()
    begun_s = our_clock_s()
    # not if another worker was faster, or the run was cancelled
    if context.ledger.benchmarks.start_submission(one, user):
        begun = replace(one, stage=BenchmarkState.SUBMITTING, run_as=user)
        _hand_over(context, begun, clock, begun_s)
    return FIRST_POLL_S


def _hand_over(
    context: WorkerContext, one: Measurement, clock: LoginClock, begun_s: float
) -> None:
    answer = context.benchmarking.jobs.submit(one, clock, begun_s)
    if not isinstance(answer, Exception):
        _change(
            context,
            one,
            MeasurementUpdate(stage=BenchmarkState.SUBMITTED, slurm_id=answer),
        )
        return
    match submission_outcome(answer):
        case SubmissionOutcome.REJECTED:
            _change(
                context,
                one,
                MeasurementUpdate(stage=BenchmarkState.FAILED, reason=str(answer)),
            )
        case SubmissionOutcome.UNKNOWN:
            log.warning(
                "benchmark_submission_unclear",
                run=one.run_id,
                benchmark=one.benchmark,
                error=str(answer),
            )
        case SubmissionOutcome.NOT_RUN:
            context.ledger.benchmarks.store_update(
                one, MeasurementUpdate(stage=BenchmarkState.WAITING)
            )
            raise answer
        case _:
            raise answer


def _look(context: WorkerContext, run: BenchmarkRun, one: Measurement) -> float:
    """Check what SLURM does with the job, and have it ended if the run must end."""
    record, shows_end = _record(context, one), False
    if record is None:
        record, shows_end = _traces(context, run, one)
    window_s = context.benchmarking.jobs.cluster.submissions.window_s
    change = after_poll(one, record, window_s, output_shows_end=shows_end)
    if change.stage is BenchmarkState.SUBMITTED and change.slurm_id is not None:
        change = _ended_by_us(context, run, one, record, change, change.slurm_id)
    _change(context, one, change)
    if change.stage is BenchmarkState.SUBMITTED and waits_long(one, record):
        advice = (
            "see the queue of the partition; `supervisor benchmark cancel` ends the run"
        )
        about = {
            "run": run.id,
            "benchmark": one.benchmark,
            "slurm_id": change.slurm_id,
            "slurm_state": change.slurm_state,
        }
        context.ledger.alarms.on(AlarmName.BENCHMARK_WAITS, **about, advice=advice)
    else:
        context.ledger.alarms.off(AlarmName.BENCHMARK_WAITS)
    return change.poll_delay_s


def _traces(
    context: WorkerContext, run: BenchmarkRun, one: Measurement
) -> tuple[JobRecord | None, bool]:
    """What a job that slurmctld does not know has left: accounting's record, or else
    whether its output shows its end. Only the job's user can ask for them. If he is not
    let in, a cancelled run goes on as if there were none.
    """
    jobs = context.benchmarking.jobs
    try:
        record = jobs.accounted(one)
        if record is not None:
            return record, False
        return None, end_reported(one.job_name, jobs.output(one)) is not None
    except LoginRejectedError:
        if run.cancel_reason is None:
            raise
        return None, False


def _ended_by_us(
    context: WorkerContext,
    run: BenchmarkRun,
    one: Measurement,
    record: JobRecord | None,
    change: MeasurementUpdate,
    slurm_id: SlurmId,
) -> MeasurementUpdate:
    """Have SLURM end a job that cannot start, or whose run must end."""
    specs = None
    if run.cancel_reason is None and counts_nodes(one, record):
        specs = context.slurm.nodes.specs()
    cannot_start = blocked_reason(one, record, specs)
    if not cannot_start and run.cancel_reason is None:
        return change
    rejected = _cancel(context, one, slurm_id)
    return after_cancel(
        change,
        record,
        cannot_start=cannot_start,
        cancel_reason=run.cancel_reason,
        rejected=rejected,
    )


def _read(context: WorkerContext, run: BenchmarkRun, one: Measurement) -> float:
    """Read the job's output, and decide. A cancelled run does not wait until the user
    can log in again.
    """
    try:
        body = output = context.benchmarking.jobs.output(one)
    except LoginRejectedError as error:
        if run.cancel_reason is None:
            raise
        notes = [f"its output was not read: {error}"]
        result = BenchmarkResult(
            stage=BenchmarkState.CANCELLED, reason=run.cancel_reason, notes=notes
        )
        _decide(context, one, result)
        return 0.0
    failure, end = why_failed(one, output), end_reported(one.job_name, output)
    if end is not None:
        _, body = end
    if cut_short(one, failure, run.cancel_reason):
        result = BenchmarkResult(
            stage=BenchmarkState.CANCELLED, reason=run.cancel_reason or "", output=body
        )
    elif failure is None:
        return OUTPUT_AGAIN_S
    elif failure or body is None:
        result = BenchmarkResult(
            stage=BenchmarkState.FAILED, reason=failure, output=body
        )
    else:
        result = _parsed(context, run, one, body)
    _decide(context, one, result)
    return 0.0


def _parsed(
    context: WorkerContext, run: BenchmarkRun, one: Measurement, body: bytes
) -> BenchmarkResult:
    """The result that follows from a benchmark's output."""
    definition = context.benchmarking.suite.get(one.benchmark)
    if definition is None:
        return BenchmarkResult(
            stage=BenchmarkState.FAILED,
            reason="this version of the supervisor knows no such benchmark",
            output=body,
        )
    try:
        reading = definition.parse(body, run.token)
    except UnreadableOutputError as error:
        return BenchmarkResult(
            stage=BenchmarkState.FAILED, reason=str(error), output=body
        )
    except Exception as error:
        log.exception("benchmark_reader_failed", run=run.id, benchmark=one.benchmark)
        return BenchmarkResult(
            stage=BenchmarkState.FAILED,
            reason=f"its output could not be read: {error!r}",
            output=body,
        )
    labels = {
        label: measured.number for label, measured in reading.numbers.items()
    } | dict(reading.texts)
    result = BenchmarkResult(
        stage=BenchmarkState.MEASURED,
        labels=labels,
        left_out=reading.left_out,
        notes=reading.notes,
        tool=reading.tool,
        output=body,
    )
    if reading.empty and reading.left_out:
        return replace(
            result,
            stage=BenchmarkState.LEFT_OUT,
            reason="; ".join(sorted(set(reading.left_out.values()))),
        )
    problem = unsound(labels)
    if problem:
        return replace(result, stage=BenchmarkState.FAILED, labels={}, reason=problem)
    return result


def _skip(context: WorkerContext, run: BenchmarkRun, one: Measurement) -> float:
    _decide(
        context,
        one,
        BenchmarkResult(stage=BenchmarkState.CANCELLED, reason=run.cancel_reason or ""),
    )
    return 0.0


def _clean(context: WorkerContext, run: BenchmarkRun, one: Measurement) -> float:
    """Remove the output from the login node, if that is possible. A file that stays
    stops neither the other benchmarks nor the run's end.
    """
    note = ""
    try:
        context.benchmarking.jobs.remove_output(one)
    except TransientError as error:
        log.warning(
            "benchmark_output_not_removed",
            run=run.id,
            benchmark=one.benchmark,
            error=str(error),
        )
        if not cleanup_expired(run, one):
            return CLEAN_AGAIN_S
        note = f"its output stays on the login node: {error}"
    context.ledger.benchmarks.cleaned(one, note)
    return 0.0


HANDLERS: Mapping[
    RunStep, Callable[[WorkerContext, BenchmarkRun, Measurement], float]
] = {
    RunStep.SUBMIT: _submit,
    RunStep.LOOK: _look,
    RunStep.READ: _read,
    RunStep.SKIP: _skip,
    RunStep.CLEAN: _clean,
}


# --- SLURM ----------------------------------------------------------------------------


def _record(context: WorkerContext, one: Measurement) -> JobRecord | None:
    """The job as slurmctld has it. If slurmctld has several with this name, the first
    one counts, and the others are cancelled.
    """
    named = [
        job.record
        for job in context.benchmarking.jobs.listed(one)
        if job.name == one.job_name
    ]
    accepted = SlurmRecords(named, listed=True).accepted
    for extra in accepted[1:]:
        if extra.phase is not Phase.ENDED:
            log.error(
                "extra_benchmark_job_cancelled",
                benchmark=one.benchmark,
                slurm_id=extra.slurm_id,
            )
            _cancel(context, one, extra.slurm_id)
    return next(iter([*accepted, *named]), None)


def _cancel(context: WorkerContext, one: Measurement, slurm_id: SlurmId) -> str:
    """Ask SLURM to end a job. Returns why SLURM rejects; empty if it does not."""
    try:
        context.benchmarking.jobs.cancel(one, slurm_id)
    except SlurmRejectedError as error:
        log.error(
            "benchmark_not_cancelled",
            benchmark=one.benchmark,
            slurm_id=slurm_id,
            error=str(error),
        )
        return str(error)
    return ""


def _names_begin(context: WorkerContext) -> str:
    provider = context.ledger.facts.get(PROVIDER)
    if provider is None:
        raise ProviderUnknownError(
            "no worker of the chain queue has stored yet which address this provider has"
        )
    return name_beginning(provider, context.ledger.cluster)


# --- storing results ------------------------------------------------------------------


def _change(
    context: WorkerContext, one: Measurement, change: MeasurementUpdate
) -> None:
    is_stored = context.ledger.benchmarks.store_update(one, change)
    if is_stored and change.stage is not one.stage:
        _log_result(
            one,
            change.stage,
            slurm_id=change.slurm_id,
            slurm_state=change.slurm_state,
            reason=change.reason,
        )


def _decide(context: WorkerContext, one: Measurement, result: BenchmarkResult) -> None:
    if context.ledger.benchmarks.store_result(one, result):
        _log_result(one, result.stage, labels=dict(result.labels), reason=result.reason)


def _log_result(one: Measurement, stage: BenchmarkState, **about: object) -> None:
    write_log = log.info
    if stage is BenchmarkState.FAILED:
        write_log = log.warning
    shown = {
        name: value for name, value in about.items() if value not in (None, "", {})
    }
    write_log(
        f"benchmark_{stage.value.lower()}",
        run=one.run_id,
        benchmark=one.benchmark,
        **shown,
    )
