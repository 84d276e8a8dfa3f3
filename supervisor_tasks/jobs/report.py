"""Report: write the true status of each job to the contract, by the shortest path that
the contract accepts.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import structlog

from supervisor_tasks.chain.contract import refuse_call, report_call
from supervisor_tasks.chain_events.cross_check import unconfirmed_ends
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.backoff import retry_delay_s
from supervisor_tasks.execution.effect_failures import (
    given_back_on_failure,
    park,
    park_all,
)
from supervisor_tasks.execution.exclusive_run import exclusive
from supervisor_tasks.in_memory import changed_jobs
from supervisor_tasks.jobs.events import ChainStatusObserved
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    Job,
    JobId,
    pending_reports,
)
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import Failure, OpenEffect
from supervisor_tasks.ledger.transaction_names import Purpose, report_purpose
from supervisor_tasks.wallet.gas import Estimate, RevertedError
from supervisor_tasks.wallet.transaction_writer import Write

log = structlog.get_logger()

Plans = dict[OpenEffect, list[Write]]

KINDS = (EffectKind.REPORT, EffectKind.RETURN_JOB)
FORK_SHOWS_WITHIN_S = 5.0
TRIES_BEFORE_A_FORK_SHOWS = 20
# then a report is tried again if none of its transactions was mined
REPORT_AGAIN_S = 30.0
# rejections that the contract's status of the job does not explain; a node may be between
# two blocks
MAX_UNEXPLAINED_TRIES = 3
# transactions of one step that were mined and reverted; each one costs gas
MAX_REVERTED_REPORTS = 3
# The node cannot estimate a step while the step before it is not mined.
FOLLOWING_GAS = 250_000
UNCONFIRMED = "only one RPC endpoint shows that the job is over, or has no provider"
GAS_PER_BYTE = 1_000  # of the reason, which the contract stores


@exclusive("report")
def report(context: WorkerContext) -> bool:
    """Write what the contract lacks for all due reports, in one batch. The effects stay
    open until the receipts close them. Effects whose transaction has reverted too often
    are parked. Reports are postponed while an endpoint does not answer. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    effects = context.ledger.effects.lease(KINDS)
    if not effects:
        return False
    with given_back_on_failure(context.ledger, effects):
        jobs = context.ledger.jobs({effect.job_id for effect in effects})
        plans = {effect: _steps(jobs[effect.job_id], effect.kind) for effect in effects}
        missing = context.chain.transaction_writer.missing(
            [write.idempotency_key for write in chain.from_iterable(plans.values())]
        )
        reverted = _reverted(context, plans, missing)
        going_on = _without_hopeless(plans, reverted)
        accepted, gas, rejected = _estimated(context, going_on, missing)
        writes = _missing_writes(accepted, missing, gas)
        if writes and context.chain.transaction_writer.send(writes):
            _log_sent(writes, accepted)
        if accepted:
            context.dispatch("collect_receipts")
            _await_receipts(context, accepted, missing, reverted.keys())
        next_steps = _next_steps(going_on, missing)
        changed_jobs.add(jobs[effect.job_id] for effect in next_steps)
        _explain_rejections(context, jobs, rejected)
        _park_hopeless(context, plans, reverted)
    return context.ledger.effects.any_due(KINDS)


def _steps(job: Job, kind: EffectKind) -> list[Write]:
    """The transactions that lead to the status which the contract has to show, in
    order.
    """
    if kind is EffectKind.RETURN_JOB:
        return [
            Write(
                _idempotency_key(job, "REFUSE"),
                Purpose.RETURN_JOB,
                refuse_call(job.job_id),
                job.job_id,
            )
        ]
    steps = list[Write]()
    for update in pending_reports(job):
        name = update.status.name
        steps.append(
            Write(
                _idempotency_key(job, name),
                report_purpose(update.status),
                report_call(job.job_id, update),
                job.job_id,
            )
        )
    return steps


def _idempotency_key(job: Job, name: str) -> str:
    """The idempotency key, one for each claim and job: after a reorganisation, a claim
    that is mined again may give another job.
    """
    return f"{job.claim_key}:{job.job_id}:{name}"


def _next_steps(plans: Plans, missing: set[str]) -> dict[OpenEffect, Write]:
    """The next step of each effect, without those whose transaction is under way."""
    found = dict[OpenEffect, Write]()
    for effect, steps in plans.items():
        if steps and steps[0].idempotency_key in missing:
            found[effect] = steps[0]
    return found


def _reverted(
    context: WorkerContext, plans: Plans, missing: set[str]
) -> dict[OpenEffect, int]:
    """How often the next transaction of each effect was mined and reverted, at our
    cost. Effects that have not been rejected, or not since `supervisor job retry`, are
    left out: they are tried once more.
    """
    rejected_before = dict[OpenEffect, Write]()
    for effect, write in _next_steps(plans, missing).items():
        if effect.contract_rejections:
            rejected_before[effect] = write
    if not rejected_before:
        return {}
    job_ids = {
        write.idempotency_key: write.job_id or "" for write in rejected_before.values()
    }
    times = context.chain.account.transactions.reverted(job_ids)
    return {
        effect: times[write.idempotency_key]
        for effect, write in rejected_before.items()
        if times.get(write.idempotency_key)
    }


def _without_hopeless(plans: Plans, reverted: Mapping[OpenEffect, int]) -> Plans:
    """The plans without those that `_park_hopeless` leaves to the operator."""
    return {
        effect: steps
        for effect, steps in plans.items()
        if reverted.get(effect, 0) < MAX_REVERTED_REPORTS
    }


def _park_hopeless(
    context: WorkerContext, plans: Plans, reverted: Mapping[OpenEffect, int]
) -> None:
    """Leave the effects to the operator whose transaction was mined and reverted
    MAX_REVERTED_REPORTS times.
    """
    failures = list[Failure]()
    for effect, times in reverted.items():
        if times >= MAX_REVERTED_REPORTS:
            reason = f"its transaction was mined and reverted {times} times"
            wanted = [write.purpose for write in plans[effect]]
            failures.append(Failure(effect, reason, {"wanted": wanted}))
    park_all(context.ledger, failures)


def _estimated(
    context: WorkerContext, plans: Plans, missing: set[str]
) -> tuple[Plans, dict[str, int], list[tuple[OpenEffect, RevertedError]]]:
    """The effects whose next step the contract accepts, the gas of these steps by
    idempotency key, and the effects whose next step it would reject, with the reason.
    If the node has no estimate for a step, only that effect is postponed.
    """
    accepted = dict(plans)
    gas = dict[str, int]()
    rejected = list[tuple[OpenEffect, RevertedError]]()
    for effect, write, estimate in _estimates(context, plans, missing):
        if isinstance(estimate, int):
            gas[write.idempotency_key] = estimate
            continue
        del accepted[effect]
        if isinstance(estimate, RevertedError):
            rejected.append((effect, estimate))
            continue
        log.warning(
            "report_not_estimated",
            job_id=effect.job_id,
            attempts=effect.attempts,
            error=str(estimate),
        )
        context.ledger.effects.postpone(
            [effect], retry_delay_s(effect.attempts), str(estimate)
        )
    return accepted, gas, rejected


def _estimates(
    context: WorkerContext, plans: Plans, missing: set[str]
) -> Iterator[tuple[OpenEffect, Write, Estimate]]:
    """The node's estimate for the next step of each effect. The node cannot estimate a
    later step yet.
    """
    steps = _next_steps(plans, missing)
    if not steps:
        return iter(())
    estimates = context.chain.transaction_writer.estimate(list(steps.values()))
    return zip(steps, steps.values(), estimates, strict=True)


def _missing_writes(
    plans: Plans, missing: set[str], gas: Mapping[str, int]
) -> list[Write]:
    """The steps that are missing, with their gas."""
    writes = list[Write]()
    for write in chain.from_iterable(plans.values()):
        if write.idempotency_key in missing:
            following_gas = FOLLOWING_GAS + GAS_PER_BYTE * len(write.data) // 2
            writes.append(
                replace(write, gas=gas.get(write.idempotency_key, following_gas))
            )
    return writes


def _log_sent(writes: Sequence[Write], plans: Plans) -> None:
    log.info(
        "reports_sent",
        transactions=len(writes),
        jobs=[effect.job_id for effect in plans][:20],
    )


def _await_receipts(
    context: WorkerContext,
    plans: Plans,
    missing: set[str],
    reverted: Collection[OpenEffect],
) -> None:
    """Postpone the effects until their receipts can be there. Effects whose transaction
    was sent before, or has reverted, make no progress: the ledger keeps since when, and
    an alarm is raised when that lasts.
    """
    sent = list[OpenEffect]()
    sent_again = list[OpenEffect]()
    waiting = list[OpenEffect]()
    for effect, steps in plans.items():
        if effect in reverted:
            sent_again.append(effect)
        elif steps and missing.isdisjoint(write.idempotency_key for write in steps):
            waiting.append(effect)
        else:
            sent.append(effect)
    effects = context.ledger.effects
    effects.postpone(sent, REPORT_AGAIN_S)
    effects.postpone(
        waiting, REPORT_AGAIN_S, "its transaction is not mined yet", waits=True
    )
    effects.postpone(
        sent_again,
        REPORT_AGAIN_S,
        "its transaction has reverted and was sent again",
        waits=True,
    )


def _explain_rejections(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    rejected: Sequence[tuple[OpenEffect, RevertedError]],
) -> None:
    """Ask the contract for the status of jobs whose report it would reject. If no second
    endpoint shows that a job is over, its report is tried again later.
    """
    if not rejected:
        return
    seen_block = max(jobs[effect.job_id].chain_position[0] for effect, _ in rejected)
    contract = context.chain.contract
    statuses = contract.statuses([effect.job_id for effect, _ in rejected], seen_block)
    unconfirmed = unconfirmed_ends(context.ledger, contract, statuses, by="report")
    for effect, error in rejected:
        if effect.job_id in unconfirmed:
            context.ledger.effects.postpone(
                [effect], retry_delay_s(effect.attempts), UNCONFIRMED
            )
            continue
        # None: the job's request was in a lost block
        status, _ = statuses.get(effect.job_id, (None, ""))
        _explain_rejection(context, jobs[effect.job_id], effect, error, status)


def _explain_rejection(
    context: WorkerContext,
    job: Job,
    effect: OpenEffect,
    error: RevertedError,
    status: ChainStatus | None,
) -> None:
    """Record the contract's status of a job whose report it would reject. If the status
    explains the rejection, the effect is due again. After MAX_UNEXPLAINED_TRIES rejections that it
    does not explain, the effect is parked.
    """
    rejections = effect.contract_rejections + 1
    after = job
    on_chain = None
    if status is not None:
        on_chain = status.name
        change = JobChange(job.job_id, ChainStatusObserved(status))
        after = context.ledger.record(change)[job.job_id]
    log.warning(
        "report_would_revert", job_id=job.job_id, error=str(error), on_chain=on_chain
    )
    effects = context.ledger.effects
    if _may_be_a_fork(context, job, status, rejections):
        effects.postpone([effect], FORK_SHOWS_WITHIN_S, str(error), rejected=True)
    elif after != job:
        effects.postpone([effect], 0.0)
    elif rejections < MAX_UNEXPLAINED_TRIES:
        effects.postpone(
            [effect], retry_delay_s(effect.attempts), str(error), rejected=True
        )
    else:
        wanted = [step.status.name for step in pending_reports(job)]
        park(context.ledger, effect, str(error), on_chain=on_chain, wanted=wanted)


def _may_be_a_fork(
    context: WorkerContext, job: Job, status: ChainStatus | None, rejections: int
) -> bool:
    """Whether the contract shows less than the ledger knows, as after a lost block. The
    scan finds that in time.
    """
    if context.chain.confirmations <= 0:
        return False
    if rejections >= TRIES_BEFORE_A_FORK_SHOWS:
        return False
    return status is None or status < job.chain_status
