"""Benchmark: measure the cluster, one benchmark after the other, each as one SLURM job.

A run is an effect of the outbox. The worker that leases it does what can be done at
once and gives it back; no worker waits for a job. While SLURM does not answer,
everything waits.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.benchmarking.benchmark_run import (
    CLEAN_AGAIN_S,
    REJECTED_S,
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    RunStep,
    cleanup_expired,
    login_again_in_s,
    name_beginning,
    next_step,
)
from supervisor_tasks.benchmarking.look_at_job import look_at_job
from supervisor_tasks.benchmarking.planned_jobs import jobs_of
from supervisor_tasks.benchmarking.read_result import read_result
from supervisor_tasks.benchmarking.store_progress import store_and_log_result
from supervisor_tasks.benchmarking.submit_benchmark import submit_benchmark
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import ProviderUnknownError, TransientError
from supervisor_tasks.execution.effect_failures import (
    RUN_NOT_PLANNED,
    given_back_on_failure,
)
from supervisor_tasks.execution.exclusive_run import record_run
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.benchmarks import BenchmarkResult
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate
from supervisor_tasks.monitoring.slurm_health import slurm_is_healthy
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.ssh import LoginRejectedError
from supervisor_tasks.slurm_lookup.cluster_check import (
    require_expected_cluster,
    require_not_paused,
)

log = structlog.get_logger()

DISABLED = "BENCHMARK_DISABLE is set"
# After these steps the login node has let the user in, or he need not log in.
LOG_IN_OR_END = (RunStep.SUBMIT, RunStep.READ, RunStep.SKIP, RunStep.FINISH)
LET_IN = (
    "let this user log in with the supervisor's key (`--allow` of plugins/authorized_keys.py), or set BENCHMARK_RUN_AS to"
    " another one; `supervisor benchmark cancel` ends the run"
)


class ImpossibleRunError(TransientError):
    """With these settings and these nodes nothing can be measured. A retry helps when
    the operator has changed the settings, or the nodes have changed.
    """


def benchmark(context: WorkerContext) -> None:
    """Do what can be done now for the current run, if its effect is due. The worker
    that leases the effect does it. While SLURM or the login node does not answer, the
    effect is postponed. Raises LedgerUnavailableError, when the database does not
    answer; a retry helps.
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
        replace(measurement, due_in_s=waits.get(measurement.id, 0.0))
        for measurement in context.ledger.benchmarks.measurements(run)
    ]
    next_ = next_step(run, measurements)
    if next_ is None:
        return False
    step, measurement = next_
    wait_s = _do(context, run, step, measurement)
    if measurement is not None:
        waits[measurement.id] = wait_s
    if step in LOG_IN_OR_END:
        _login_rejected(context).update(False)
    return True


def _do(
    context: WorkerContext,
    run: BenchmarkRun,
    step: RunStep,
    measurement: Measurement | None,
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
                "found no proof that SLURM works now; expected one: nothing is begun; see `supervisor doctor`"
            )
    if measurement is not None:
        return HANDLERS[step](context, run, measurement)
    if step is RunStep.BEGIN:
        _begin(context, run)
    else:
        _finish(context, run)
    return 0.0


def _begin(context: WorkerContext, run: BenchmarkRun) -> None:
    """Find out what the run must measure, and store the plan."""
    beginning = _names_begin(context)
    hardware = context.slurm.nodes.hardware()
    if not hardware.nodes:
        raise SlurmUnavailableError(
            f"found {len(hardware.excluded_nodes)} nodes, and none works; expected one that does: see"
            " `sinfo -R` on the login node"
        )
    try:
        plan = context.benchmarking.plan_of(hardware, run.token)
    except ValueError as error:
        raise ImpossibleRunError(f"{RUN_NOT_PLANNED}{error}") from error
    planned = jobs_of(
        plan, context.benchmarking.suite.values(), context.benchmarking.sbatch_flags
    )
    context.ledger.benchmarks.begin(
        run, planned, beginning, {"nodes": [asdict(node) for node in hardware.nodes]}
    )
    log.info(
        "benchmark_run_begun",
        run=run.id,
        why=run.why,
        nodes=len(hardware.nodes),
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


def _skip(context: WorkerContext, run: BenchmarkRun, measurement: Measurement) -> float:
    store_and_log_result(
        context,
        measurement,
        BenchmarkResult(state=BenchmarkState.CANCELLED, reason=run.cancel_reason or ""),
    )
    return 0.0


def _clean(
    context: WorkerContext, run: BenchmarkRun, measurement: Measurement
) -> float:
    """Remove the output from the login node, if that is possible. A file that stays
    stops neither the other benchmarks nor the run's end.
    """
    note = ""
    try:
        context.benchmarking.jobs.remove_output(measurement)
    except TransientError as error:
        log.warning(
            "benchmark_output_not_removed",
            run=run.id,
            benchmark=measurement.benchmark,
            error=str(error),
        )
        if not cleanup_expired(run, measurement):
            return CLEAN_AGAIN_S
        note = f"its output stays on the login node: {error}"
    context.ledger.benchmarks.cleaned(measurement, note)
    return 0.0


HANDLERS: Mapping[
    RunStep, Callable[[WorkerContext, BenchmarkRun, Measurement], float]
] = {
    RunStep.SUBMIT: submit_benchmark,
    RunStep.LOOK: look_at_job,
    RunStep.READ: read_result,
    RunStep.SKIP: _skip,
    RunStep.CLEAN: _clean,
}


def _names_begin(context: WorkerContext) -> str:
    provider = context.ledger.facts.get(PROVIDER)
    if provider is None:
        raise ProviderUnknownError
    return name_beginning(provider, context.ledger.cluster)
