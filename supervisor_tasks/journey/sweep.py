"""Sweep: ledger, contract and SLURM side by side, in a handful of questions whatever the number of jobs.

The ledger is read first, so that whatever it says SLURM and the contract have, they had before they are asked. What does not
answer is not compared. All decisions go through the ledger's `record`, where `advance` has the last word: a job that moved
meanwhile is left as it is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from supervisor_tasks.comparison import Finding, compare, doubts, held_now
from supervisor_tasks.errors import SupervisorError, TransientError
from supervisor_tasks.job import JobId, SlurmId
from supervisor_tasks.journey import history
from supervisor_tasks.journey.blind import alarm_of_blindness, blind_since
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.foreign_jobs import alarm_of_foreign_jobs, alarm_of_shown_tokens
from supervisor_tasks.journey.scan import STREAM
from supervisor_tasks.journey.sight import SHOWN_TEXT, SILENT_AT_MOST, Report, look
from supervisor_tasks.ledger.facts import SLURM_REMEMBERS
from supervisor_tasks.ledger.leases import one_at_a_time
from supervisor_tasks.ledger.operator import AlarmName, Switch, finished_tick
from supervisor_tasks.ledger.store import Change, Ledger
from supervisor_tasks.queues import SWEEP_ASKED_EVERY_S
from supervisor_tasks.site import Site
from supervisor_tasks.view import Found, View, foreign

log = structlog.get_logger()

IN_TIME = 3  # sweeps while slurmctld remembers a job that has ended: one of them may see nothing
SHORTEST_S = 20.0  # however forgetful it is
SOON_S = 60.0  # when something could not be seen
MORE_S = 10.0  # when there are older claims to read
RECORDED_AT_ONCE = 500
CANCELLED_AT_ONCE = 50
SHOWN_REFUSED = 5  # in a line of the log
SHOWN = 200  # findings in a report
SHOWN_JOBS = 20  # in an alarm
RUN_AGAIN = "jobs were requeued after the end that was billed, and are cancelled; plugins/job_submit.lua prevents that"
FORGOT = "SLURM does not know"  # so begins the reason of a sweep's hold
IN_THE_LOG = ("why", "jobs", "slurm_jobs", "found", "unseen", "seconds")


def sweep(site: Site, why: str = "") -> None:
    """Compare and mend, unless another worker is at it. Without a reason only when it is due; else older claims are read."""
    if why or site.ledger.sweeps.due():
        drain(site.ledger, "sweep", lambda: _sweep(site, why), takes_long=True)
    elif history.is_left(site):
        drain(site.ledger, "sweep", lambda: history.read_on(site), takes_long=True)
    else:
        site.ledger.ticks.leave(finished_tick("sweep"))


def _sweep(site: Site, why: str) -> bool:
    begun = site.ledger.sweeps.begin(why)
    report = Report(begun.why)
    view, read_since = look(site, begun, report)
    with report.timed("comparing"):
        findings = compare(view)
    with report.timed("recording"):
        _record(site.ledger, findings)
        _read_again(site.ledger, view, findings)
        if read_since is not None and view.slurm is not None and view.remembered is not None:
            history.keep(site.ledger, read_since)
    with report.asking("cancelling"):
        _cancel(site, view, findings, report)
    held = held_now(view, findings, _last(site.ledger, "held"))
    _alarm(site.ledger, view, findings, held)
    if view.slurm is not None:
        ends = {finding.cancel for finding in findings}
        alarm_of_foreign_jobs(site, [job for job in foreign(view) if job.slurm_id not in ends])
        alarm_of_shown_tokens(site, view.slurm.values())
    _hold(site.ledger, view)
    _wake(site, report)
    now_s = begun.at.timestamp()
    since_s = blind_since(report.unseen, _last(site.ledger, "blind_since_s"), now_s)
    alarm_of_blindness(site.ledger, report.unseen, since_s, now_s)
    told = _told(site, report, view, findings) | {"held": held, "blind_since_s": since_s}
    site.ledger.sweeps.keep(begun, told, doubts(view, findings))
    log.info("swept", **{name: told[name] for name in IN_THE_LOG})
    return False


def _record(ledger: Ledger, findings: Sequence[Finding]) -> None:
    changes = [Change(finding.job_id, event) for finding in findings for event in finding.events]
    for start in range(0, len(changes), RECORDED_AT_ONCE):
        ledger.record(*changes[start : start + RECORDED_AT_ONCE])


def _read_again(ledger: Ledger, view: View, findings: Sequence[Finding]) -> None:
    """What else the chain has said of jobs that were taken in, cancellations and top-ups, is read by the scan: it goes back to
    their claims. To hear of the others a second time changes nothing.
    """
    blocks = [view.claims[found.job_id].at[0] for found in findings if found.kind is Found.NEVER_SEEN]
    if not blocks:
        return
    with one_at_a_time(ledger.engine, f"{ledger.cluster} scan"):
        scanned = ledger.cursors.of(STREAM)
        if scanned is not None and scanned[0] >= min(blocks):
            with ledger.engine.begin() as connection:
                ledger.cursors.set(connection, STREAM, min(blocks) - 1, "")


def _cancel(site: Site, view: View, findings: Sequence[Finding], report: Report) -> None:
    """Those of one user in one command. Each is tried, whatever became of the others; those that came to nothing in the last
    sweep come last. A SLURM that does not answer time and again is asked no more.
    """
    before = _last(site.ledger, "not_cancelled")
    doomed = [(finding, finding.cancel) for finding in findings if finding.cancel is not None]
    doomed.sort(key=lambda each: str(each[1]) in before)
    found = {slurm_id: finding for finding, slurm_id in doomed[:CANCELLED_AT_ONCE]}
    of_users = dict[str, list[SlurmId]]()
    for slurm_id in found:
        of_users.setdefault((view.slurm or {})[slurm_id].user, []).append(slurm_id)
    silent = 0
    for user, slurm_ids in of_users.items():
        try:
            refused = site.slurm.cluster.cancel_all(slurm_ids, user)
        except SupervisorError as error:
            refused = dict.fromkeys(slurm_ids, str(error))
            silent += isinstance(error, TransientError)
        for slurm_id in slurm_ids:
            if slurm_id in refused:
                report.not_cancelled[str(slurm_id)] = report.unseen["cancelling"] = refused[slurm_id][:SHOWN_TEXT]
                continue
            finding = found[slurm_id]
            log.error("slurm_job_cancelled", job_id=finding.job_id, slurm_id=slurm_id, found=finding.kind)
            report.cancelled += 1
        if silent >= SILENT_AT_MOST:
            break
    if report.not_cancelled:
        some = dict(list(report.not_cancelled.items())[:SHOWN_REFUSED])
        log.error("slurm_jobs_not_cancelled", jobs=len(report.not_cancelled), some=some)


def _last(ledger: Ledger, what: str) -> dict[Any, Any]:
    """What the last report says under that name."""
    last = ledger.sweeps.last()
    return last[0].report.get(what, {}) if last else {}


def _alarm(ledger: Ledger, view: View, findings: Sequence[Finding], held: Mapping[JobId, SlurmId | None]) -> None:
    if held:
        first = (
            "look at slurmctld's state"
            if view.in_touch_s is not None
            else "their ends may wait in the hooks' spool: see callbacks_away"
        )
        ledger.alarms.on(
            AlarmName.SWEEP_CONTRADICTION,
            jobs=len(held),
            some=list(held)[:20],
            advice=f"SLURM does not know jobs that it should have: {first}, then confirm that they are lost",
        )
    elif not any(doubt.startswith(Found.MISSING) for doubt in doubts(view, findings)):
        ledger.alarms.off(AlarmName.SWEEP_CONTRADICTION)
    again = {finding.job_id: finding.slurm_id for finding in findings if finding.kind is Found.RUNS_AFTER_END}
    if again:
        some = dict(list(again.items())[:SHOWN_JOBS])
        ledger.alarms.on(AlarmName.RUNS_AFTER_END, jobs=len(again), some=some, advice=RUN_AGAIN)
    others = [finding.job_id for finding in findings if finding.kind is Found.ANOTHERS]
    if others:
        ledger.alarms.on(
            AlarmName.ANOTHER_LEDGERS_JOBS,
            marks=dict(Counter(view.others[job_id] for job_id in others)),
            some=others[:20],
            advice="another ledger claimed these jobs with this wallet: if it is lost, and its fleet stopped for good,"
            " `supervisor take-over MARK`",
        )
    elif view.chain is not None:
        ledger.alarms.off(AlarmName.ANOTHER_LEDGERS_JOBS)


def _hold(ledger: Ledger, view: View) -> None:
    """Nothing is given to a SLURM that has lost its memory, until it is back, or the operator says that it is lost for good."""
    held_for = ledger.switches.reason(Switch.SUBMISSIONS_HELD)
    if view.lost_its_memory:
        reason = f"{FORGOT} {len(view.forgotten)} jobs that it had saved"
        if held_for is None:
            ledger.switches.set(Switch.SUBMISSIONS_HELD, reason)
        advice = "look at slurmctld's StateSaveLocation; if what it has forgotten is lost, `supervisor slurm accept`"
        ledger.alarms.on(
            AlarmName.SLURM_FORGOT, jobs=len(view.forgotten), some=view.forgotten[:20], reason=reason, advice=advice
        )
    elif view.knows_all_it_had_saved:
        if lifts(held_for):
            ledger.switches.unset(Switch.SUBMISSIONS_HELD, held_for)  # not one that the operator sets meanwhile
        ledger.alarms.off(AlarmName.SLURM_FORGOT)


def lifts(held_for: str | None) -> bool:
    """Whether a sweep may end a hold that is on for that reason: its own, also one that it set before it was killed."""
    return held_for is not None and held_for.startswith(FORGOT)


def _wake(site: Site, report: Report) -> None:
    """Effects that nobody works on, callbacks that nobody has read, transactions that nobody follows."""
    report.stale = site.ledger.sweeps.stale()
    if report.stale["effects"]:
        site.ledger.effects.wake(site.ledger.effects.forgotten())
    if report.stale["callbacks"]:
        site.sweep.wake("witness")
    if report.stale["transactions"]:
        site.sweep.wake("track")


def interval_s(every_s: float, min_job_age_s: float) -> float:
    """How often to sweep where SLURM remembers a job for so long after its end, and nobody remembers it after that: whoever
    tells of ends may have told in vain. 0 is that SLURM forgets nothing.
    """
    return min(every_s, max(min_job_age_s / IN_TIME - SWEEP_ASKED_EVERY_S, SHORTEST_S)) if min_job_age_s else every_s


def _every_s(site: Site) -> float:
    remembers_s = site.ledger.facts.get(SLURM_REMEMBERS) if site.slurm.cluster.paths.sacct is None else None
    return interval_s(site.sweep.every_s, remembers_s or 0.0)


def _told(site: Site, report: Report, view: View, findings: Sequence[Finding]) -> dict[str, Any]:
    again_s = min(_every_s(site), MORE_S if report.more else SOON_S if report.unseen else float("inf"))
    if view.saved:
        again_s = min(again_s, SOON_S)  # nothing may be submitted meanwhile
    if doubts(view, findings):
        again_s = min(again_s, site.sweep.grace_s)
    return {
        "why": report.why,
        "jobs": len(view.jobs),
        "slurm_jobs": None if view.slurm is None else len(view.slurm),
        "on_chain": None if view.chain is None else len(view.chain),
        "block": view.block,
        "found": dict(Counter(finding.kind for finding in findings)),
        "findings": [_shown(finding) for finding in findings[:SHOWN]],
        "cancelled": report.cancelled,
        "not_cancelled": report.not_cancelled,
        "stale": report.stale,
        "unseen": report.unseen,
        "seconds": report.seconds,
        "again_s": again_s,
    }


def _shown(finding: Finding) -> dict[str, Any]:
    return {
        "found": finding.kind,
        "job_id": finding.job_id,
        "slurm_id": finding.slurm_id,
        "done": [type(event).__name__ for event in finding.events],
        "cancelled": finding.cancel,
    }
