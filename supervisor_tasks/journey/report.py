"""Report: the contract says of each job what is true, by the shortest path that it accepts."""

from collections.abc import Sequence

import structlog

from supervisor_tasks.chain.contract import refuse_call, report_call
from supervisor_tasks.chain.wallet import RevertedError, Write
from supervisor_tasks.events import ChainSaw
from supervisor_tasks.job import Job, JobId, Kind, path_to_goal
from supervisor_tasks.journey.drain import drain, given_back_on_failure
from supervisor_tasks.journey.steps import park
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.store import Change, OpenEffect
from supervisor_tasks.site import Site

log = structlog.get_logger()

FORK_SHOWS_WITHIN_S = 5.0
TRIES_BEFORE_A_FORK_SHOWS = 20
REPORT_AGAIN_S = 30.0  # when no transaction of a report was seen mined by then
UNEXPLAINED = 3  # refusals in a row that what the contract says does not explain; a node may be between two blocks
# A step that follows one which is not mined yet cannot be estimated.
FOLLOWING_GAS = 250_000
GAS_PER_BYTE = 1_000  # of the reason, which the contract stores


def report(site: Site) -> None:
    """Write all that is due to the chain in one batch. The effects stay open until the receipts close them."""
    drain(site.ledger, "report", lambda: _report(site))


def _report(site: Site) -> bool:
    effects = site.ledger.lease([Kind.REPORT, Kind.REFUSE])
    if not effects:
        return False
    with given_back_on_failure(site.ledger, effects):
        _write(site, effects)
    return True


def _write(site: Site, effects: Sequence[OpenEffect]) -> None:
    wallet = site.chain.wallet
    jobs = site.ledger.jobs({effect.job_id for effect in effects})
    plans = {effect: _path(jobs[effect.job_id], effect.kind) for effect in effects}
    missing = wallet.missing([write.intent for plan in plans.values() for write in plan])
    firsts = [(effect, plan[0]) for effect, plan in plans.items() if plan and plan[0].intent in missing]
    estimates = wallet.estimate([write for _, write in firsts])
    refused: list[tuple[OpenEffect, RevertedError]] = []
    gas: dict[str, int] = {}
    for (effect, write), estimate in zip(firsts, estimates, strict=True):
        if isinstance(estimate, RevertedError):
            refused.append((effect, estimate))
            del plans[effect]
        else:
            gas[write.intent] = estimate
    writes = [_with_gas(write, gas) for plan in plans.values() for write in plan if write.intent in missing]
    if writes and wallet.send(writes):
        log.info("reports_sent", transactions=len(writes), jobs=[effect.job_id for effect in plans][:20])
    if plans:
        site.chain.wake_tracker()
    site.ledger.postpone(list(plans), REPORT_AGAIN_S)
    _reconcile(site, jobs, refused)


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
        status, _ = statuses[effect.job_id]
        before = jobs[effect.job_id]
        after = site.ledger.record(Change(effect.job_id, ChainSaw(status)))[effect.job_id]
        log.warning("report_would_revert", job_id=effect.job_id, error=str(error), on_chain=status.name)
        if status < before.chain_status and site.chain.confirmations and effect.attempts < TRIES_BEFORE_A_FORK_SHOWS:
            site.ledger.postpone([effect], FORK_SHOWS_WITHIN_S, str(error))  # a block may be lost; the scan finds that
        elif after != before:
            site.ledger.postpone([effect], 0.0)
        elif effect.attempts < UNEXPLAINED:
            site.ledger.postpone([effect], wait_s(effect.attempts), str(error))
        else:
            wanted = [step.status.name for step in path_to_goal(before)]
            park(site, effect, str(error), on_chain=status.name, wanted=wanted)
