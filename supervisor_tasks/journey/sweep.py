"""Sweep: ledger, contract and SLURM side by side, in a handful of questions whatever the number of jobs.

The ledger is read first, so that whatever it says SLURM and the contract have, they had before they are asked. What does not
answer is not compared. All decisions go through the ledger's `record`, where `advance` has the last word: a job that moved
meanwhile is left as it is.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.comparison import (
    Finding,
    Found,
    Trace,
    View,
    claimed,
    compare,
    doubts,
    held_now,
    live,
    marked_names,
    missing,
    unexplained,
    unlisted,
    waited,
)
from supervisor_tasks.errors import SupervisorError, TransientError
from supervisor_tasks.events import Claimed, SubmissionForgotten, SubmitStarted
from supervisor_tasks.job import Address, Job, JobId, SlurmId
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.ours import by_whom
from supervisor_tasks.journey.scan import BLOCKS, STREAM
from supervisor_tasks.journey.submit import find, traces_since
from supervisor_tasks.journey.witness import look_at
from supervisor_tasks.known import Known
from supervisor_tasks.ledger.journal import Submission
from supervisor_tasks.ledger.leases import one_at_a_time
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.ledger.others import OthersClaim
from supervisor_tasks.ledger.store import Change, Ledger
from supervisor_tasks.ledger.sweeps import PROVIDER, SLURM_BOOT, Begun
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.cluster import UndecidedError
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.identity import CLOCKS_APART_S
from supervisor_tasks.slurm.output import Seen

log = structlog.get_logger()

HISTORY = "history"  # the cursor that goes backwards: all claims since that block are known
HISTORY_S = 30 * 86_400.0  # how far back accounting is asked for jobs that the ledger does not know
HISTORY_QUESTIONS = 5  # a sweep; each for as many blocks as the scan asks for
HISTORY_AT_ONCE_S = 20.0  # between sweeps
SOON_S = 60.0  # when something could not be seen
MORE_S = 10.0  # when there are older claims to read
RECORDED_AT_ONCE = 500
CANCELLED_AT_ONCE = 50
ASKED_AT_ONCE = 1000
TRACED_AT_ONCE = 50
FORGOTTEN_AT_MOST = 3  # times that a job is submitted again because slurmctld forgot it
SHOWN = 200  # findings in a report
SHOWN_TEXT = 500
IN_THE_LOG = ("why", "jobs", "slurm_jobs", "found", "unseen", "seconds")


@dataclass(slots=True)
class _Report:
    """What a sweep tells of itself."""

    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    more: bool = False

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """How long a part took."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = round(time.monotonic() - began_s, 3)

    @contextmanager
    def asking(self, side: str) -> Iterator[None]:
        """A side that does not answer, or not as it should, is not seen; the others are compared all the same."""
        with self.timed(side):
            try:
                yield
            except SupervisorError as error:
                self.unseen[side] = str(error)[:SHOWN_TEXT]


class ProviderUnknownError(TransientError):
    """Who the provider is has not been said yet."""


def sweep(site: Site, why: str = "") -> None:
    """Compare and mend, unless another worker is at it. Without a reason only when it is due; else older claims are read."""
    if why or site.ledger.sweeps.due():
        drain(site.ledger, "sweep", lambda: _sweep(site, why), takes_long=True)
    elif _is_history_left(site):
        drain(site.ledger, "sweep", lambda: _read_history(site), takes_long=True)
    else:
        site.ledger.ticks.leave(finished_tick("sweep"))


def _sweep(site: Site, why: str) -> bool:
    begun = site.ledger.sweeps.begin(why)
    report = _Report(begun.why)
    view, history = _look(site, begun, report)
    with report.timed("comparing"):
        findings = compare(view)
    with report.timed("recording"):
        _record(site.ledger, findings)
        _read_again(site.ledger, view, findings)
        if history is not None and view.slurm is not None and view.remembered is not None:
            _keep_history(site.ledger, history)
    with report.asking("cancelling"):
        _cancel(site, view, findings, report)
    held = held_now(view, findings, _held_before(site.ledger))
    _alarm(site.ledger, view, findings, held)
    _wake(site, report)
    told = _told(site, report, view, findings) | {"held": held}
    site.ledger.sweeps.keep(begun, told, doubts(view, findings))
    log.info("swept", **{name: told[name] for name in IN_THE_LOG})
    return False


# --- older claims -------------------------------------------------------------------------------------------------------


def _is_history_left(site: Site) -> bool:
    read, provider = site.ledger.cursors.of(HISTORY), site.ledger.sweeps.fact(PROVIDER)
    return provider is not None and read is not None and read[0] > site.sweep.start_block


def _read_history(site: Site) -> bool:
    """Read older claims as long as there is time and none of them matters: for the first that does, a sweep is asked for, which
    reads it again. SLURM is asked for nothing.
    """
    ledger, provider = site.ledger, site.ledger.sweeps.fact(PROVIDER)
    contract = site.sweep.contract_of(Address(provider[0] if provider else ""))
    until_s = time.monotonic() + HISTORY_AT_ONCE_S
    while _is_history_left(site) and time.monotonic() < until_s and not ledger.sweeps.due():
        claims, others, first = _history(site, contract, _Report(""))
        found = claims.keys() | others.keys()
        unknown = found - ledger.sweeps.named(found, ()).keys()
        block = int(contract.rpc.call("eth_blockNumber"), 16)
        view = View(provider=contract.provider, comment="", jobs={}, chain=contract.on_chain([*unknown], block))
        if any(claimed(job_id, view) for job_id in unknown):
            ledger.sweeps.ask("a claim from before this ledger's first scan")
        elif first is not None:
            _keep_history(ledger, first)
    return False


def _keep_history(ledger: Ledger, first: int) -> None:
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, HISTORY, first, "")


# --- looking ------------------------------------------------------------------------------------------------------------


def _look(site: Site, begun: Begun, report: _Report) -> tuple[View, int | None]:
    """What there is to see, and how far back claims have been read. The ledger comes first."""
    ledger, cluster, side = site.ledger, site.slurm.cluster, site.sweep
    boot, provider = ledger.sweeps.fact(SLURM_BOOT), ledger.sweeps.fact(PROVIDER)
    with report.timed("ledger"):
        view = View(
            provider=Address(provider[0] if provider else ""),
            comment=comment(cluster.public_address),
            jobs=ledger.sweeps.hot(),
            suspects=begun.suspects,
            grace_s=side.grace_s,
            steady_s=boot[1] if boot else 0.0,
        )
    with report.asking("slurm"):
        view = replace(view, slurm=cluster.list_all())
    view = replace(view, jobs=dict(view.jobs) | _pointed_to(ledger, view))
    history = None
    with report.asking("chain"):
        view, history = _look_at_chain(site, view, report)
    if view.slurm is not None and unlisted(view):
        report.more = True  # those that are missing are asked for at the next sweep: a few commands at each
        view = replace(view, remembered=None)
        with report.asking("accounting"):
            view = replace(view, remembered=_remembered(site, view))
    elif view.slurm is not None:
        with report.asking("lost jobs"):
            view = replace(view, asked=_ask(site, view))
        with report.asking("traces"):
            view = replace(view, traces=_traces(site, view, boot[0] if boot else ""))
    return view, history


def _pointed_to(ledger: Ledger, view: View) -> dict[JobId, Known]:
    """The ledger's jobs that SLURM's live jobs point to by id or name: those that are not hot, and, read anew, those that were
    to be submitted when the ledger was read.
    """
    rows = [row for row in (view.slurm or {}).values() if live(row)]
    in_slurm = {job.job_id: job.slurm_id for job in view.jobs.values() if job.slurm_id is not None}
    strange = {row.slurm_id for row in rows} - set(in_slurm.values())
    return ledger.sweeps.named(marked_names(rows, view.comment) - in_slurm.keys(), strange)


def _look_at_chain(site: Site, view: View, report: _Report) -> tuple[View, int | None]:
    if not view.provider:
        raise ProviderUnknownError("no worker of the chain queue has told yet who this provider is")
    contract = site.sweep.contract_of(view.provider)
    claims, others, history = _history(site, contract, report)
    others = site.ledger.others.all() | others
    taken = site.ledger.others.taken()
    claims |= {job_id: entry.claim for job_id, entry in others.items() if entry.mark in taken}
    unknown = (claims.keys() | others.keys()) - site.ledger.sweeps.named(claims.keys() | others.keys(), ()).keys()
    strange = marked_names((view.slurm or {}).values(), view.comment) - view.jobs.keys()
    block = int(contract.rpc.call("eth_blockNumber"), 16)
    chain = contract.on_chain([*view.jobs, *((strange | unknown | others.keys()) - view.jobs.keys())], block)
    view = replace(view, block=block, chain=chain)
    _remember(site.ledger, others, view)
    return replace(
        view,
        claims={job_id: claims[job_id] for job_id in unknown & claims.keys()},
        others={job_id: others[job_id].mark.hex() for job_id in unknown - claims.keys()},
    ), history


def _remember(ledger: Ledger, others: Mapping[JobId, OthersClaim], view: View) -> None:
    """Keep other ledgers' claims as long as the contract has them hot and ours."""
    hot = {job_id: entry for job_id, entry in others.items() if claimed(job_id, view)}
    ledger.others.keep(hot.values())
    ledger.others.forget([job_id for job_id in others.keys() - hot.keys() if others[job_id].claim.at[0] <= view.block])


def _history(
    site: Site, contract: Contract, report: _Report
) -> tuple[dict[JobId, Claimed], dict[JobId, OthersClaim], int | None]:
    """The claims of blocks that were mined before this ledger's first scan, ours and others', the latest blocks first, some
    at each sweep; and the first block that was read.
    """
    scanned, read = site.ledger.cursors.of(STREAM), site.ledger.cursors.of(HISTORY)
    start_block = site.sweep.start_block
    if scanned is None:
        report.more = True
        return {}, {}, None
    first = read[0] if read is not None else scanned[0] + 1
    claims: dict[JobId, Claimed] = {}
    others: dict[JobId, OthersClaim] = {}
    for _ in range(HISTORY_QUESTIONS):
        if first <= start_block:
            break
        last, first = first - 1, max(start_block, first - BLOCKS)
        ours, strange = by_whom(site.ledger, contract, contract.claims(first, last), old=True)
        for entry in reversed(ours):
            if isinstance(entry.event, Claimed):
                claims.setdefault(entry.job_id, entry.event)
        for other in reversed(strange):
            others.setdefault(other.claim.job_id, other)
    return claims, others, first


def _ask(site: Site, view: View) -> dict[JobId, Seen | None]:
    """SLURM and accounting once more about jobs that SLURM does not list; None is that nobody knows it."""
    absent = [job.job_id for job in missing(view)[:ASKED_AT_ONCE]]
    sights = look_at(site, site.ledger.jobs(absent).values(), view.slurm) if absent else {}
    return {job_id: sight.seen for job_id, sight in sights.items() if not sight.unclear}


def _traces(site: Site, view: View, booted: str) -> dict[JobId, Trace]:
    """Whether anything was ever seen of jobs that waited, and that SLURM has lost."""
    absent = [job.job_id for job in waited(view)[:TRACED_AT_ONCE]]
    if not absent or not booted.isdecimal() or site.slurm.cluster.controller().booted != booted:
        return {}  # slurmctld has just begun anew: another time
    booted_s, jobs = int(booted), site.ledger.jobs(absent)
    submissions = site.ledger.journal.submissions({job.slurm_id for job in jobs.values() if job.slurm_id is not None})
    return {job_id: _trace(site, job, submissions.get(job_id), booted_s) for job_id, job in jobs.items()}


def _trace(site: Site, job: Job, submission: Submission | None, booted_s: int) -> Trace:
    """slurmctld forgets what waits only when it is killed: then it began anew after it had taken the job."""
    if submission is None or _taken_s(job, submission) > booted_s:
        return Trace.SOME
    if site.ledger.journal.times(job.job_id, SubmissionForgotten) >= FORGOTTEN_AT_MOST:
        return Trace.UNSURE
    try:
        found = find(site, job)
    except UndecidedError:
        return Trace.UNSURE
    ago_s = site.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    return Trace.SOME if found or ago_s is None or traces_since(site, job, ago_s) else Trace.NONE


def _taken_s(job: Job, submission: Submission) -> float:
    """When SLURM took the job: by its own clock, or not long after this by the database's."""
    return submission.answered_s - CLOCKS_APART_S if job.slurm_submit_s is None else job.slurm_submit_s


def _remembered(site: Site, view: View) -> dict[JobId, SlurmId]:
    """What batch scripts and accounting say of jobs that SLURM does not list by their names, and that may have run before the
    ledger knew of it.
    """
    cluster, asked = site.slurm.cluster, unlisted(view)
    rows = {row.slurm_id: row for row in unexplained(view)}
    scripts = cluster.scripts(list(rows.values()))
    renamed = {job_id: slurm_id for slurm_id, job_id in scripts.items() if asked.get(job_id) == rows[slurm_id].user}
    rest = {job_id: customer for job_id, customer in asked.items() if job_id not in renamed}
    found = cluster.histories(rest, HISTORY_S)
    ran = {
        job_id: runs[-1].slurm_id for job_id, seen in found.items() if (runs := [run for run in seen if run.elapsed_s])
    }
    return renamed | ran


# --- acting -------------------------------------------------------------------------------------------------------------


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


def _cancel(site: Site, view: View, findings: Sequence[Finding], report: _Report) -> None:
    doomed = [(finding, finding.cancel) for finding in findings if finding.cancel is not None]
    for finding, slurm_id in doomed[:CANCELLED_AT_ONCE]:
        log.error("slurm_job_cancelled", job_id=finding.job_id, slurm_id=slurm_id, found=finding.kind)
        site.slurm.cluster.cancel(slurm_id, Address((view.slurm or {})[slurm_id].user))
        report.cancelled += 1


def _held_before(ledger: Ledger) -> dict[JobId, SlurmId | None]:
    last = ledger.sweeps.last()
    return last[0].report.get("held", {}) if last else {}


def _alarm(ledger: Ledger, view: View, findings: Sequence[Finding], held: Mapping[JobId, SlurmId | None]) -> None:
    if held:
        ledger.alarms.on(
            AlarmName.SWEEP_CONTRADICTION,
            jobs=len(held),
            some=list(held)[:20],
            advice="SLURM does not know jobs that it should have: look at slurmctld's state, then confirm that they are lost",
        )
    elif not any(doubt.startswith(Found.MISSING) for doubt in doubts(view, findings)):
        ledger.alarms.off(AlarmName.SWEEP_CONTRADICTION)
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


def _wake(site: Site, report: _Report) -> None:
    """Effects that nobody works on, callbacks that nobody has read, transactions that nobody follows."""
    report.stale = site.ledger.sweeps.stale()
    if report.stale["effects"]:
        site.ledger.effects.wake(site.ledger.effects.forgotten())
    if report.stale["callbacks"]:
        site.sweep.wake("witness")
    if report.stale["transactions"]:
        site.sweep.wake("track")


def _told(site: Site, report: _Report, view: View, findings: Sequence[Finding]) -> dict[str, Any]:
    side = site.sweep
    again_s = min(side.every_s, MORE_S if report.more else SOON_S if report.unseen else side.every_s)
    if doubts(view, findings):
        again_s = min(again_s, side.grace_s)
    return {
        "why": report.why,
        "jobs": len(view.jobs),
        "slurm_jobs": None if view.slurm is None else len(view.slurm),
        "on_chain": None if view.chain is None else len(view.chain),
        "block": view.block,
        "found": dict(Counter(finding.kind for finding in findings)),
        "findings": [_shown(finding) for finding in findings[:SHOWN]],
        "cancelled": report.cancelled,
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
