"""Report: the contract says of each job what is true, by the shortest path that it accepts."""

from collections.abc import Collection, Sequence

import structlog

from supervisor_tasks.chain.contract import refuse_call, report_call
from supervisor_tasks.chain.estimates import NoEstimateError, RevertedError, TooMuchGasError
from supervisor_tasks.chain.wallet import Write
from supervisor_tasks.events import ChainSaw
from supervisor_tasks.job import Job, JobId, Kind, path_to_goal
from supervisor_tasks.journey.drain import drain, given_back_on_failure, park
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site

log = structlog.get_logger()

Plans = dict[OpenEffect, list[Write]]

FORK_SHOWS_WITHIN_S = 5.0
TRIES_BEFORE_A_FORK_SHOWS = 20
REPORT_AGAIN_S = 30.0  # when no transaction of a report was seen mined by then
UNEXPLAINED = 3  # refusals that what the contract says does not explain; a node may be between two blocks
MOST_REVERTED = 3  # transactions of one step that were mined and reverted; each was paid for
# A step that follows one which is not mined yet cannot be estimated.
FOLLOWING_GAS = 250_000
GAS_PER_BYTE = 1_000  # of the reason, which the contract stores


def report(site: Site) -> None:
    """Write all that is due to the chain in one batch. The effects stay open until the receipts close them."""
    drain(site.ledger, "report", lambda: _report(site))


def _report(site: Site) -> bool:
    effects = site.ledger.effects.lease([Kind.REPORT, Kind.REFUSE])
    if not effects:
        return False
    with given_back_on_failure(site.ledger, effects):
        _write(site, effects)
    return True


def _write(site: Site, effects: Sequence[OpenEffect]) -> None:
    jobs = site.ledger.jobs({effect.job_id for effect in effects})
    plans = {effect: _path(jobs[effect.job_id], effect.kind) for effect in effects}
    missing = site.chain.wallet.missing([write.intent for plan in plans.values() for write in plan])
    reverted = _reverted(site, plans, missing)
    hopeless = {effect: times for effect, times in reverted.items() if times >= MOST_REVERTED}
    rest = {effect: plan for effect, plan in plans.items() if effect not in hopeless}
    refused = _send(site, rest, missing, reverted.keys())
    _reconcile(site, jobs, refused)
    for effect, times in hopeless.items():
        wanted = [write.purpose for write in plans[effect]]
        park(site.ledger, effect, f"its transaction was mined and reverted {times} times", wanted=wanted)


def _reverted(site: Site, plans: Plans, missing: set[str]) -> dict[OpenEffect, int]:
    """How often the next transaction of each was mined and reverted, and was paid for in vain. What was not refused since the
    operator's word is left out: it is tried once more.
    """
    again = {effect: _first(plan, missing) for effect, plan in plans.items() if effect.refusals}
    intents = {write.intent: write.job_id or "" for write in again.values() if write}
    times = site.chain.wallet.book.reverted(intents) if intents else {}
    found = {effect: times.get(write.intent, 0) for effect, write in again.items() if write}
    return {effect: number for effect, number in found.items() if number}


def _first(plan: list[Write], missing: set[str]) -> Write | None:
    """The next step, unless it is on its way."""
    return plan[0] if plan and plan[0].intent in missing else None


def _send(
    site: Site, plans: Plans, missing: set[str], reverted: Collection[OpenEffect]
) -> list[tuple[OpenEffect, RevertedError]]:
    """Write what is missing; returns the effects whose next step the contract would refuse, and why. One for which the node
    has no estimate waits alone.
    """
    wallet = site.chain.wallet
    firsts = {effect: write for effect, plan in plans.items() if (write := _first(plan, missing))}
    estimates = dict(zip(firsts, wallet.estimate(list(firsts.values())), strict=True)) if firsts else {}
    gas = {firsts[effect].intent: estimate for effect, estimate in estimates.items() if isinstance(estimate, int)}
    refused = [(effect, error) for effect, error in estimates.items() if isinstance(error, RevertedError)]
    for effect, error in estimates.items():
        if isinstance(error, TooMuchGasError | NoEstimateError):
            log.warning("report_not_estimated", job_id=effect.job_id, attempts=effect.attempts, error=str(error))
            site.ledger.effects.postpone([effect], wait_s(effect.attempts), str(error))
    plans = {effect: plan for effect, plan in plans.items() if isinstance(estimates.get(effect, 0), int)}
    writes = [_with_gas(write, gas) for plan in plans.values() for write in plan if write.intent in missing]
    if writes and wallet.send(writes):
        log.info("reports_sent", transactions=len(writes), jobs=[effect.job_id for effect in plans][:20])
    if plans:
        site.chain.wake_tracker()
    _wait(site, plans, missing, reverted)
    return refused


def _wait(site: Site, plans: Plans, missing: set[str], reverted: Collection[OpenEffect]) -> None:
    """Until the receipts are there. What was sent before, or has reverted, does not progress: for how long is remembered."""
    again = [effect for effect in plans if effect in reverted]
    waiting = [
        effect
        for effect, plan in plans.items()
        if plan and effect not in again and not any(write.intent in missing for write in plan)
    ]
    fresh = [effect for effect in plans if effect not in again and effect not in waiting]
    site.ledger.effects.postpone(fresh, REPORT_AGAIN_S)
    site.ledger.effects.postpone(waiting, REPORT_AGAIN_S, "its transaction is not mined yet", waits=True)
    site.ledger.effects.postpone(again, REPORT_AGAIN_S, "its transaction has reverted and was sent again", waits=True)


def _path(job: Job, kind: Kind) -> list[Write]:
    if kind is Kind.REFUSE:
        return [Write(_intent(job, "REFUSE"), "refuse", refuse_call(job.job_id), job.job_id)]
    return [
        Write(
            _intent(job, step.status.name),
            f"report {step.status.name}",
            report_call(job.job_id, step),
            job.job_id,
        )
        for step in path_to_goal(job)
    ]


def _intent(job: Job, name: str) -> str:
    """Written once a claim and job: after a reorganisation a claim that is mined again may give another job."""
    return f"{job.claim_key}:{job.job_id}:{name}"


def _with_gas(write: Write, estimates: dict[str, int]) -> Write:
    gas = estimates.get(write.intent, FOLLOWING_GAS + GAS_PER_BYTE * len(write.data) // 2)
    return Write(write.intent, write.purpose, write.data, write.job_id, gas)


def _reconcile(site: Site, jobs: dict[JobId, Job], refused: Sequence[tuple[OpenEffect, RevertedError]]) -> None:
    """The contract would refuse these: see what it says of the jobs. If that explains the refusal the ledger has learnt
    something and goes on; if it does not, time and again, an operator has to look.
    """
    if not refused:
        return
    seen_block = max(jobs[effect.job_id].chain_at[0] for effect, _ in refused)
    statuses = site.chain.contract.statuses([effect.job_id for effect, _ in refused], seen_block)
    for effect, error in refused:
        refusals = effect.refusals + 1
        before = after = jobs[effect.job_id]
        status, _ = statuses.get(effect.job_id, (None, ""))  # none: its request was in a block that is lost
        if status is not None:
            after = site.ledger.record(Change(effect.job_id, ChainSaw(status)))[effect.job_id]
        on_chain = None if status is None else status.name
        log.warning("report_would_revert", job_id=effect.job_id, error=str(error), on_chain=on_chain)
        taken_back = status is None or status < before.chain_status
        if taken_back and site.chain.confirmations and refusals < TRIES_BEFORE_A_FORK_SHOWS:
            # a block may be lost; the scan finds that
            site.ledger.effects.postpone([effect], FORK_SHOWS_WITHIN_S, str(error), refused=True)
        elif after != before:
            site.ledger.effects.postpone([effect], 0.0)
        elif refusals < UNEXPLAINED:
            site.ledger.effects.postpone([effect], wait_s(effect.attempts), str(error), refused=True)
        else:
            wanted = [step.status.name for step in path_to_goal(before)]
            park(site.ledger, effect, str(error), on_chain=on_chain, wanted=wanted)
