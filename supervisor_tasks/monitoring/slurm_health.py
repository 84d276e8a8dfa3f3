"""Check SLURM: whether it answers, whether it has the ledger's jobs (cluster_check.py),
and whether it is set up as our settings require.

While it does not answer, workers claim, register and measure nothing, and the checks go
on. After a while an alarm is raised.
"""

from collections.abc import Callable

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.facts import SLURM_MIN_JOB_AGE
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.registrations import NODES
from supervisor_tasks.monitoring.slurm_tries import (
    ANSWERED_SINCE_START,
    FAILED_TRIES,
    MAX_TRIES_AT_START,
    SLURM_ANSWERED,
    answered_recently,
    check_is_due,
)
from supervisor_tasks.slurm_lookup.cluster_check import (
    AnotherSlurmError,
    compare_cluster,
    record_controller_start,
)

log = structlog.get_logger()

# after so long an alarm is raised; a restart of slurmctld is shorter
UNANSWERED_S = 60.0
# a slurmctld that forgets ended jobs sooner may do so between two sweeps
SENSIBLE_AGE_S = 90
ENDED_WHEN_QUIET = (
    AlarmName.MORE_THAN_PAID,
    AlarmName.RUNS_AFTER_END,
    AlarmName.SIZES_NOT_COMPARED,
    AlarmName.JOBS_NOT_STARTED,
)
QUIET_S = 86400.0  # the alarm ends when no new case was seen for this long


def slurm_is_healthy(ledger: Ledger) -> bool:
    """Return whether SLURM answered within KNOWN_FOR_S, and nothing has failed since.

    A worker checks this before it begins something new. Work that is under way goes on.

    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    return answered_recently(ledger.periodic_runs.age_s(SLURM_ANSWERED))


def reset_failure_count(ledger: Ledger) -> None:
    """Start the checks again when a worker starts: failed tries count from 0, and SLURM
    is checked at once. Raises LedgerUnavailableError, when the database does not
    answer; a retry helps.
    """
    ledger.facts.set(FAILED_TRIES, 0)
    ledger.facts.set(ANSWERED_SINCE_START, False)


def check_slurm(
    context: WorkerContext, when_it_answers: Callable[[WorkerContext], None]
) -> None:
    """Store whether SLURM answers; one worker at a time checks, and then calls
    `when_it_answers`. Raises SlurmUnavailableError or SshUnavailableError, when SLURM or
    the login node does not answer; a retry helps.
    """
    if _due(context):
        run_exclusive(
            context.ledger, "check_slurm", lambda: _check(context, when_it_answers)
        )
    else:
        context.ledger.periodic_runs.record(finished_key("check_slurm"))


def is_alarming(
    tries: int, answered_since_start: bool, unanswered_s: float | None
) -> bool:
    """Return whether an alarm is raised after so many failed tries. SLURM's last answer
    was `unanswered_s` ago.

    A SLURM that has not answered since the start (`answered_since_start` is false) gets
    MAX_TRIES_AT_START tries.
    """
    if not answered_since_start:
        return tries >= MAX_TRIES_AT_START
    return unanswered_s is None or unanswered_s > UNANSWERED_S


def _due(context: WorkerContext) -> bool:
    ledger = context.ledger
    answered_s = ledger.periodic_runs.age_s(SLURM_ANSWERED)
    answered_since_start = ledger.facts.get(ANSWERED_SINCE_START) is True
    return check_is_due(
        answered_s,
        answered_since_start,
        ledger.facts.read(FAILED_TRIES),
        context.slurm.try_every_s,
    )


def _check(
    context: WorkerContext, when_it_answers: Callable[[WorkerContext], None]
) -> bool:
    ledger = context.ledger
    try:
        controller = context.slurm.cluster.site.controller()
        now_s = context.slurm.cluster.clock.now_s()
    except TransientError as error:
        _record_failure(ledger, error)
        raise
    ledger.alarms.off(AlarmName.SLURM_NOT_ANSWERING)
    _end_quiet_alarms(ledger)
    try:
        compare_cluster(context, controller)
    except AnotherSlurmError:
        ledger.periodic_runs.remove(SLURM_ANSWERED)  # nothing is claimed
        ledger.periodic_runs.remove(NODES)
        raise
    ledger.periodic_runs.record(SLURM_ANSWERED)
    if ledger.periodic_runs.age_s(NODES) is None:
        context.dispatch("refresh_inventory")  # SLURM may have other nodes now
    ledger.facts.set(FAILED_TRIES, 0)
    ledger.facts.set(ANSWERED_SINCE_START, True)
    unanswered_s = ledger.periodic_runs.age_s("check_slurm") or 0.0
    record_controller_start(ledger, controller, unanswered_s, now_s)
    _store_min_job_age(context, controller.min_job_age_s)
    if controller.accounting_unused:
        ledger.alarms.on(
            AlarmName.SLURM_ACCOUNTING_UNUSED,
            advice="SLURM has slurmdbd: set SLURM_ACCOUNTING=true",
        )
    else:
        ledger.alarms.off(AlarmName.SLURM_ACCOUNTING_UNUSED)
    when_it_answers(context)
    return False


def _end_quiet_alarms(ledger: Ledger) -> None:
    """End the alarms of polls and sweeps whose cause was not seen for QUIET_S."""
    for name in ENDED_WHEN_QUIET:
        ledger.alarms.off(name, quiet_s=QUIET_S)


def _store_min_job_age(context: WorkerContext, min_job_age_s: int) -> None:
    """Store for how long slurmctld remembers ended jobs. That sets how often the
    workers sweep.

    If it has changed, request a sweep: the last sweep may have planned the next one too
    late.
    """
    ledger = context.ledger
    if ledger.facts.get(SLURM_MIN_JOB_AGE) == min_job_age_s:
        return
    # first: a worker that dies in between has not stored it
    ledger.reconciliations.request(f"MinJobAge is {min_job_age_s} s")
    if 0 < min_job_age_s < SENSIBLE_AGE_S:
        log.warning(
            "min_job_age_is_short",
            min_job_age_s=min_job_age_s,
            expected_s=SENSIBLE_AGE_S,
        )
    ledger.facts.set(SLURM_MIN_JOB_AGE, min_job_age_s)


def _record_failure(ledger: Ledger, error: TransientError) -> None:
    ledger.periodic_runs.remove(SLURM_ANSWERED)
    ledger.periodic_runs.remove(NODES)
    tries = (ledger.facts.get(FAILED_TRIES) or 0) + 1
    ledger.facts.set(FAILED_TRIES, tries)
    unanswered_s = ledger.periodic_runs.age_s("check_slurm")
    answered_since_start = ledger.facts.get(ANSWERED_SINCE_START) is True
    if is_alarming(tries, answered_since_start, unanswered_s):
        shown_s = None if unanswered_s is None else round(unanswered_s)
        ledger.alarms.on(
            AlarmName.SLURM_NOT_ANSWERING,
            unanswered_s=shown_s,
            tries=tries,
            error=str(error)[:500],
        )
