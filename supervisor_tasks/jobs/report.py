"""Report: write the true status of each job to the contract, by the shortest path that the contract accepts."""

from collections.abc import Collection, Sequence
from itertools import chain

import structlog

from supervisor_tasks.chain.contract import refuse_call, report_call
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.backoff import retry_delay_s
from supervisor_tasks.jobs.events import ChainStatusObserved
from supervisor_tasks.jobs.exclusive_run import given_back_on_failure, park, run_exclusive
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, Job, JobId, pending_reports
from supervisor_tasks.ledger import changed_jobs
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.wallet.gas import RevertedError
from supervisor_tasks.wallet.wallet import Write

log = structlog.get_logger()

Plans = dict[OpenEffect, list[Write]]

KINDS = (EffectKind.REPORT, EffectKind.RETURN_JOB)
FORK_SHOWS_WITHIN_S = 5.0
TRIES_BEFORE_A_FORK_SHOWS = 20
REPORT_AGAIN_S = 30.0  # then a report is tried again if none of its transactions was mined
UNEXPLAINED = 3  # refusals that the contract's status of the job does not explain; a node may be between two blocks
MAX_REVERTED = 3  # transactions of one step that were mined and reverted; each one costs gas
# The node cannot estimate a step while the step before it is not mined.
FOLLOWING_GAS = 250_000
GAS_PER_BYTE = 1_000  # of the reason, which the contract stores


def report(context: WorkerContext) -> None:
    """Write all due reports to the chain in one batch. The effects stay open until the receipts close them."""
    run_exclusive(context.ledger, "report", lambda: _report(context))


def _report(context: WorkerContext) -> bool:
    effects = context.ledger.effects.lease(KINDS)
    if not effects:
        return False
    with given_back_on_failure(context.ledger, effects):
        _write(context, effects)
    return context.ledger.effects.any_due(KINDS)


def _write(context: WorkerContext, effects: Sequence[OpenEffect]) -> None:
    jobs = context.ledger.jobs({effect.job_id for effect in effects})
    plans = {effect: _path(jobs[effect.job_id], effect.kind) for effect in effects}
    missing = context.chain.wallet.missing([write.intent for write in chain.from_iterable(plans.values())])
    reverted = _reverted(context, plans, missing)
    hopeless = {effect: times for effect, times in reverted.items() if times >= MAX_REVERTED}
    rest = {effect: plan for effect, plan in plans.items() if effect not in hopeless}
    refused = _send(context, rest, missing, reverted.keys())
    changed_jobs.add(jobs[effect.job_id] for effect, plan in rest.items() if _first(plan, missing))
    _reconcile(context, jobs, refused)
    for effect, times in hopeless.items():
        _park_hopeless(context, effect, plans[effect], times)


def _park_hopeless(context: WorkerContext, effect: OpenEffect, plan: Sequence[Write], times: int) -> None:
    wanted = [write.purpose for write in plan]
    park(context.ledger, effect, f"its transaction was mined and reverted {times} times", wanted=wanted)


def _reverted(context: WorkerContext, plans: Plans, missing: set[str]) -> dict[OpenEffect, int]:
    """How often the next transaction of each effect was mined and reverted, at our cost. Effects that have not been
    refused, or not since `supervisor job retry`, are left out: they are tried once more.
    """
    again = dict[OpenEffect, Write]()
    for effect, plan in plans.items():
        write = _first(plan, missing)
        if write is not None and effect.contract_rejections:
            again[effect] = write
    intents = {write.intent: write.job_id or "" for write in again.values()}
    times = context.chain.wallet.book.reverted(intents) if intents else {}
    return {effect: times[write.intent] for effect, write in again.items() if times.get(write.intent)}


def _first(plan: list[Write], missing: set[str]) -> Write | None:
    """The next step, unless its transaction is under way."""
    return plan[0] if plan and plan[0].intent in missing else None


def _send(
    context: WorkerContext, plans: Plans, missing: set[str], reverted: Collection[OpenEffect]
) -> list[tuple[OpenEffect, RevertedError]]:
    """Write the missing transactions. Returns the effects whose next step the contract would refuse, and why. If the
    node has no estimate for a step, only that effect is postponed.
    """
    plans = dict(plans)
    firsts = {effect: write for effect, plan in plans.items() if (write := _first(plan, missing))}
    gas, refused = dict[str, int](), list[tuple[OpenEffect, RevertedError]]()
    estimates = context.chain.wallet.estimate(list(firsts.values())) if firsts else []
    for (effect, write), estimate in zip(firsts.items(), estimates, strict=True):
        if isinstance(estimate, int):
            gas[write.intent] = estimate
            continue
        del plans[effect]
        if isinstance(estimate, RevertedError):
            refused.append((effect, estimate))
        else:
            log.warning("report_not_estimated", job_id=effect.job_id, attempts=effect.attempts, error=str(estimate))
            context.ledger.effects.postpone([effect], retry_delay_s(effect.attempts), str(estimate))
    _write_steps(context, plans, missing, gas)
    _wait(context, plans, missing, reverted)
    return refused


def _write_steps(context: WorkerContext, plans: Plans, missing: set[str], gas: dict[str, int]) -> None:
    """Send the steps that are missing, and have their receipts collected."""
    writes = [_with_gas(write, gas) for plan in plans.values() for write in plan if write.intent in missing]
    if writes and context.chain.wallet.send(writes):
        log.info("reports_sent", transactions=len(writes), jobs=[effect.job_id for effect in plans][:20])
    if plans:
        context.chain.wake("collect_receipts")


def _is_sent(plan: Sequence[Write], missing: set[str]) -> bool:
    return missing.isdisjoint(write.intent for write in plan)


def _wait(context: WorkerContext, plans: Plans, missing: set[str], reverted: Collection[OpenEffect]) -> None:
    """Postpone the effects until their receipts can be there. Effects whose transaction was sent before, or has
    reverted, make no progress: the ledger keeps since when, and an alarm is raised when that lasts.
    """
    again, waiting, fresh = list[OpenEffect](), list[OpenEffect](), list[OpenEffect]()
    for effect, plan in plans.items():
        if effect in reverted:
            again.append(effect)
        elif plan and _is_sent(plan, missing):
            waiting.append(effect)
        else:
            fresh.append(effect)
    context.ledger.effects.postpone(fresh, REPORT_AGAIN_S)
    context.ledger.effects.postpone(waiting, REPORT_AGAIN_S, "its transaction is not mined yet", waits=True)
    context.ledger.effects.postpone(
        again, REPORT_AGAIN_S, "its transaction has reverted and was sent again", waits=True
    )


def _path(job: Job, kind: EffectKind) -> list[Write]:
    if kind is EffectKind.RETURN_JOB:
        return [Write(_intent(job, "REFUSE"), "refuse", refuse_call(job.job_id), job.job_id)]
    return [
        Write(
            _intent(job, step.status.name),
            f"report {step.status.name}",
            report_call(job.job_id, step),
            job.job_id,
        )
        for step in pending_reports(job)
    ]


def _intent(job: Job, name: str) -> str:
    """The intent, once for each claim and job: after a reorganisation, a claim that is mined again may give another
    job.
    """
    return f"{job.claim_key}:{job.job_id}:{name}"


def _with_gas(write: Write, estimates: dict[str, int]) -> Write:
    gas = estimates.get(write.intent, FOLLOWING_GAS + GAS_PER_BYTE * len(write.data) // 2)
    return Write(write.intent, write.purpose, write.data, write.job_id, gas)


def _may_be_a_fork(context: WorkerContext, job: Job, status: ChainStatus | None, refusals: int) -> bool:
    """Whether the contract shows less than the ledger knows, as after a lost block. The scan finds that in time."""
    taken_back = status is None or status < job.chain_status
    return taken_back and context.chain.confirmations > 0 and refusals < TRIES_BEFORE_A_FORK_SHOWS


def _reconcile(
    context: WorkerContext, jobs: dict[JobId, Job], refused: Sequence[tuple[OpenEffect, RevertedError]]
) -> None:
    """Ask the contract for the status of jobs whose report it would refuse. If the status explains the refusal, the
    ledger records it, and the effect is due again. After UNEXPLAINED refusals that it does not explain, the effect is
    parked.
    """
    if not refused:
        return
    seen_block = max(jobs[effect.job_id].chain_position[0] for effect, _ in refused)
    statuses = context.chain.contract.statuses([effect.job_id for effect, _ in refused], seen_block)
    for effect, error in refused:
        refusals = effect.contract_rejections + 1
        before = after = jobs[effect.job_id]
        status, _ = statuses.get(effect.job_id, (None, ""))  # None: the job's request was in a lost block
        if status is not None:
            after = context.ledger.record(JobChange(effect.job_id, ChainStatusObserved(status)))[effect.job_id]
        on_chain = None if status is None else status.name
        log.warning("report_would_revert", job_id=effect.job_id, error=str(error), on_chain=on_chain)
        if _may_be_a_fork(context, before, status, refusals):
            context.ledger.effects.postpone([effect], FORK_SHOWS_WITHIN_S, str(error), refused=True)
        elif after != before:
            context.ledger.effects.postpone([effect], 0.0)
        elif refusals < UNEXPLAINED:
            context.ledger.effects.postpone([effect], retry_delay_s(effect.attempts), str(error), refused=True)
        else:
            wanted = [step.status.name for step in pending_reports(before)]
            park(context.ledger, effect, str(error), on_chain=on_chain, wanted=wanted)
