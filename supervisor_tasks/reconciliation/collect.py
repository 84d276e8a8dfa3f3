"""Collect what a sweep compares: the ledger first, then SLURM and the contract. For missing jobs the sweep also asks
accounting, and looks for any other trace of them.
"""

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.chain.contract import ChainEvent, Contract
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import ProviderUnknownError, SupervisorError, TransientError
from supervisor_tasks.indexer.cross_check import unconfirmed
from supervisor_tasks.jobs.callback_fallback import ENDED
from supervisor_tasks.jobs.events import Claimed, SubmissionLostBySlurm, SubmitStarted, Submitted
from supervisor_tasks.jobs.lookup import look_at
from supervisor_tasks.jobs.model import Address, Job, JobId, SlurmId
from supervisor_tasks.jobs.plausible_callbacks import plausible_ids
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.facts import PROVIDER, SLURM_ACCEPTED, SLURM_BOOT_TIME, SLURM_START, SlurmStart
from supervisor_tasks.ledger.foreign_claims import OthersClaim
from supervisor_tasks.ledger.heartbeats import continuous_uptime_s
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.reconciliations import Begun
from supervisor_tasks.monitoring.cluster_guard import require_expected_cluster
from supervisor_tasks.reconciliation import backfill
from supervisor_tasks.reconciliation.models import JobSummary
from supervisor_tasks.reconciliation.snapshot import (
    Snapshot,
    Trace,
    absence_confirmed,
    claimed,
    is_active,
    marked_names,
    pending_and_missing,
    unexplained,
    unlisted,
)
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.script_matching import ScriptSearch

ASKED_AT_ONCE = 1000
TRACED_AT_ONCE = 50
CUSTOMERS_AT_ONCE = 10  # whose homes one sweep looks at: each needs a login and a command
CLOCKS_APART_S = 5.0  # how far the clocks of the login node and of slurmctld may differ
SILENT_AT_MOST = 3  # questions without an answer: each may take half a minute
SCANNED_WITHIN_S = 90.0  # a longer gap in the scan may hide that blocks are lost
SAVED_WITHIN_S = 60.0  # slurmctld writes its state down every few seconds
FORGOTTEN_AT_MOST = 3  # how often a job is submitted again because slurmctld forgot it
SHOWN_TEXT = 500


@dataclass(slots=True)
class ReconciliationReport:
    """What a sweep reports about itself."""

    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    not_cancelled: dict[str, str] = field(default_factory=dict)  # by SLURM id: why
    more: bool = False

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure how long a part takes."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = round(time.monotonic() - began_s, 3)

    @contextmanager
    def asking(self, side: str) -> Iterator[None]:
        """Treat a side that does not answer, or not as it should, as unseen. The sweep still compares the others."""
        with self.timed(side):
            try:
                yield
            except SupervisorError as error:
                self.unseen[side] = str(error)[:SHOWN_TEXT]


def collect_snapshot(context: WorkerContext, begun: Begun, report: ReconciliationReport) -> tuple[Snapshot, int | None]:
    """Collect everything that a sweep compares, the ledger first. Returns the snapshot, and how far back claims have
    been read.
    """
    ledger, cluster, side = context.ledger, context.slurm.cluster, context.sweep
    boot, provider = ledger.facts.read(SLURM_BOOT_TIME), ledger.facts.get(PROVIDER)
    with report.timed("ledger"):
        snapshot = Snapshot(
            provider=Address(provider or ""),
            comment=comment(cluster.public_address),
            jobs=ledger.sweeps.hot(cluster.partition, compares_sizes=cluster.compares_sizes),
            previous_doubts=begun.suspects,
            grace_s=side.grace_s,
            slurmctld_uptime_s=boot.age_s if boot else 0.0,
            continuous_uptime_s=float("inf") if cluster.has_accounting else continuous_uptime_s(ledger.ticks.ages_s()),
        )
    with report.asking("slurm"):
        require_expected_cluster(context)
        snapshot = snapshot.changed(slurm=cluster.list_all())
    snapshot = snapshot.changed(jobs=dict(snapshot.jobs) | _pointed_to(ledger, snapshot))
    read_since = None
    with report.asking("chain"):
        snapshot, read_since = _look_at_chain(context, snapshot, report)
    if snapshot.slurm is not None:
        snapshot = snapshot.changed(
            persisted_by_slurm=_saved(ledger, snapshot, begun), first_job_id=_start(ledger).first_id
        )
    if snapshot.slurm is not None and unlisted(snapshot):
        report.more = True  # the next sweep asks for the missing jobs: each sweep runs few commands
        snapshot = snapshot.changed(historical_matches=None)
        with report.asking("accounting"):
            snapshot = snapshot.changed(historical_matches=_remembered(context, snapshot))
    elif snapshot.slurm is not None:
        with report.asking("lost jobs"):
            snapshot = snapshot.changed(confirmed_lookups=_ask(context, snapshot))
        with report.asking("traces"):
            snapshot = snapshot.changed(traces=_traces(context, snapshot, boot.value if boot else "", report))
        snapshot = snapshot.changed(recently_reported=_recently_reported(ledger, snapshot))
    return snapshot, read_since


def _pointed_to(ledger: Ledger, snapshot: Snapshot) -> dict[JobId, JobSummary]:
    """The ledger's jobs that SLURM's live jobs point to by id or name. These are the jobs that are not hot, and those
    that were not submitted yet when the ledger was read: they are read again.
    """
    rows = [row for row in (snapshot.slurm or {}).values() if is_active(row)]
    in_slurm = {job.job_id: job.slurm_id for job in snapshot.jobs.values() if job.slurm_id is not None}
    strange = {row.slurm_id for row in rows} - set(in_slurm.values())
    return ledger.sweeps.named(marked_names(rows, snapshot.comment) - in_slurm.keys(), strange)


def _look_at_chain(
    context: WorkerContext, snapshot: Snapshot, report: ReconciliationReport
) -> tuple[Snapshot, int | None]:
    if not snapshot.provider:
        raise ProviderUnknownError("no worker of the chain queue has stored yet which address this provider has")
    contract = context.sweep.contract_of(snapshot.provider)
    claims, others, read_since = backfill.read(context, contract)
    report.more |= read_since is None
    others = context.ledger.others.all() | others
    taken = context.ledger.others.taken()
    claims |= {job_id: entry.claim for job_id, entry in others.items() if entry.tag in taken}
    unknown = (claims.keys() | others.keys()) - context.ledger.sweeps.named(claims.keys() | others.keys(), ()).keys()
    strange = marked_names((snapshot.slurm or {}).values(), snapshot.comment) - snapshot.jobs.keys()
    block = int(contract.rpc.call("eth_blockNumber"), 16)
    chain = contract.on_chain([*snapshot.jobs, *((strange | unknown | others.keys()) - snapshot.jobs.keys())], block)
    snapshot = snapshot.changed(block=block, chain=chain, scanned=_scanned(context.ledger))
    _remember(context.ledger, others, snapshot)
    new = {job_id: claims[job_id] for job_id in unknown & claims.keys()}
    doubted = _doubted(context, contract, [job_id for job_id in new if claimed(job_id, snapshot)], new)
    if doubted:
        report.unseen["claims"] = f"no second endpoint shows the claims of {len(doubted)} jobs, such as {min(doubted)}"
        read_since = None  # these blocks are read again
    return snapshot.changed(
        claims={job_id: claim for job_id, claim in new.items() if job_id not in doubted},
        others={job_id: others[job_id].tag.hex() for job_id in unknown - claims.keys()},
    ), read_since


def _doubted(
    context: WorkerContext, contract: Contract, job_ids: Sequence[JobId], claims: Mapping[JobId, Claimed]
) -> set[JobId]:
    """The jobs whose claim only one endpoint shows."""
    hashes = {job_id: claims[job_id].claim_key.rpartition(":")[0] for job_id in job_ids}
    as_shown = [
        ChainEvent(job_id, replace(claims[job_id], claim_known_to_ledger=True), hashes[job_id]) for job_id in job_ids
    ]
    doubted = unconfirmed(context.ledger, contract, as_shown)
    return {job_id for job_id, tx_hash in hashes.items() if tx_hash in doubted}


def _scanned(ledger: Ledger) -> bool:
    """Whether the scan goes on, and has found no lost blocks that the operator must decide on."""
    ago_s = ledger.ticks.age_s("scan")
    too_deep = any(alarm.name is AlarmName.REORGANISED_TOO_DEEP for alarm in ledger.alarms.all())
    return ago_s is not None and ago_s < SCANNED_WITHIN_S and not too_deep


def _remember(ledger: Ledger, others: Mapping[JobId, OthersClaim], snapshot: Snapshot) -> None:
    """Keep other ledgers' claims as long as the contract has them hot and ours."""
    hot = {job_id: entry for job_id, entry in others.items() if claimed(job_id, snapshot)}
    ledger.others.keep(hot.values())
    ledger.others.delete(
        [job_id for job_id in others.keys() - hot.keys() if others[job_id].claim.at[0] <= snapshot.block]
    )


def _saved(ledger: Ledger, snapshot: Snapshot, begun: Begun) -> frozenset[JobId]:
    """The missing jobs that slurmctld had on its disk when it was started, by the database's clock. They were submitted
    well before the last answer of the slurmctld that ran then. Jobs from before the operator last accepted a loss do
    not count.
    """
    ids = {job.slurm_id for job in snapshot.missing if job.slurm_id is not None}
    if not ids:
        return frozenset()
    boot, start = ledger.facts.read(SLURM_BOOT_TIME), _start(ledger)
    until_s = float("inf")  # if the start is unknown, no job counts as unsaved
    if boot is not None and boot.value == start.booted:
        until_s = begun.at.timestamp() - boot.age_s - start.silent_s - SAVED_WITHIN_S
    accepted = ledger.facts.read(SLURM_ACCEPTED)
    since_s = float("-inf") if accepted is None else begun.at.timestamp() - accepted.age_s
    given = ledger.journal.submissions(ids)
    absent = {job.job_id for job in snapshot.missing} & given.keys()
    return frozenset(job_id for job_id in absent if since_s < given[job_id].answered_s <= until_s)


def _start(ledger: Ledger) -> SlurmStart:
    return ledger.facts.get(SLURM_START) or SlurmStart()


def _ask(context: WorkerContext, snapshot: Snapshot) -> dict[JobId, JobRecord | None]:
    """Ask SLURM and accounting once more about jobs that SLURM does not list. None means that neither knows the job."""
    absent = [job.job_id for job in snapshot.missing[:ASKED_AT_ONCE]]
    sights = look_at(context, context.ledger.jobs(absent).values(), snapshot.slurm) if absent else {}
    return {job_id: sight.seen for job_id, sight in sights.items() if not sight.unclear}


def _recently_reported(ledger: Ledger, snapshot: Snapshot) -> frozenset[JobId]:
    """The missing jobs for which an end has come in since the ledger was read, or not long before. The POLL_SLURM
    effect decides whether that end can be true. The sender of a false callback may have slowed that effect down.
    """
    absent = {
        job.job_id: job.slurm_id
        for job in snapshot.missing
        if job.slurm_id is not None and absence_confirmed(job, snapshot)
    }
    return frozenset(ledger.inbox.told_of(absent, ENDED, snapshot.grace_s)) if absent else frozenset()


def _traces(
    context: WorkerContext, snapshot: Snapshot, booted: str, report: ReconciliationReport
) -> dict[JobId, Trace]:
    """Whether anything was ever seen of jobs that waited and that SLURM has lost. If they are too many for one sweep,
    it looks for a random choice of them.
    """
    lost = [job.job_id for job in pending_and_missing(snapshot)]
    absent = random.sample(lost, min(len(lost), TRACED_AT_ONCE))
    if not absent or not booted.isdecimal() or context.slurm.cluster.controller().booted != booted:
        return {}  # slurmctld has just restarted: a later sweep looks
    booted_s, jobs = int(booted), context.ledger.jobs(absent)
    now_s = context.slurm.cluster.now_s()  # before the ages: a slow answer makes no job younger
    answered_ago_s = context.ledger.journal.last_ages_s(absent, Submitted)
    times = context.ledger.journal.ages(absent, SubmissionLostBySlurm)
    persisted = set(snapshot.persisted_by_slurm or ())
    forgotten_often = {job_id for job_id, ages in times.items() if len(ages) >= FORGOTTEN_AT_MOST}
    traces: dict[JobId, Trace | None] = dict.fromkeys(jobs)
    traces |= dict.fromkeys(jobs.keys() & (persisted | forgotten_often), Trace.UNSURE)
    # slurmctld forgets a waiting job only when it is killed: then it restarted after it had taken the job.
    kept = {job_id for job_id, job in jobs.items() if _taken_s(job, now_s, answered_ago_s.get(job_id)) > booted_s}
    traces |= dict.fromkeys(kept - persisted, Trace.SOME)
    rest = {job_id: job for job_id, job in jobs.items() if traces[job_id] is None}
    traces |= _looked_for(context, snapshot, rest, report)
    return {job_id: trace for job_id, trace in traces.items() if trace is not None}


def _looked_for(
    context: WorkerContext, snapshot: Snapshot, jobs: Mapping[JobId, Job], report: ReconciliationReport
) -> dict[JobId, Trace | None]:
    """What is left of these jobs in SLURM's list, in accounting, in the inbox and in their customers' homes. None means
    that the sweep has not looked everywhere for the job.
    """
    if not jobs:
        return {}
    ago_s = context.ledger.journal.last_ages_s(jobs, SubmitStarted)
    called = _called(context, jobs, ago_s)
    traces: dict[JobId, Trace | None] = dict.fromkeys(jobs, Trace.SOME)  # also if the journal has no submission
    silent = {job_id: jobs[job_id] for job_id in ago_s if job_id not in called}
    listed = snapshot.slurm or {}
    owners = context.ledger.owners({row.slurm_id: row.submit_s for row in listed.values()})
    sought = [ScriptSearch(job_id, job.customer, ago_s[job_id], owners) for job_id, job in silent.items()]
    had = context.slurm.cluster.was_submitted(sought, listed)
    traces |= {job_id: Trace.UNSURE for job_id, found in had.items() if found is None}
    nowhere = {job_id: jobs[job_id].customer for job_id, found in had.items() if found is False}
    return traces | _logs(context, nowhere, ago_s, report)


def _called(context: WorkerContext, jobs: Mapping[JobId, Job], ago_s: Mapping[JobId, float]) -> set[JobId]:
    """The jobs about which a plugin has called since then, under their own id or another one that they may have had."""
    heard_s = context.ledger.inbox.last_heard_s(ago_s)
    named = {job_id: _younger_than(ago_s[job_id], ages_s) for job_id, ages_s in heard_s.items()}
    own = {job_id for job_id, slurm_ids in named.items() if jobs[job_id].slurm_id in slurm_ids}
    others = {job_id: slurm_ids for job_id, slurm_ids in named.items() if job_id not in own}
    return own | {job_id for job_id, plausible in plausible_ids(context, others, ago_s).items() if plausible}


def _younger_than(ago_s: float, ages_s: Mapping[SlurmId, float]) -> set[SlurmId]:
    return {slurm_id for slurm_id, age_s in ages_s.items() if age_s <= ago_s}


def _logs(
    context: WorkerContext,
    customers: Mapping[JobId, Address],
    ago_s: Mapping[JobId, float],
    report: ReconciliationReport,
) -> dict[JobId, Trace | None]:
    """Whether a log was written. Each customer needs a separate question, so the sweep makes a random choice of them."""
    traces: dict[JobId, Trace | None] = dict.fromkeys(customers)
    users, silent = sorted(set(customers.values())), 0
    for user in random.sample(users, min(len(users), CUSTOMERS_AT_ONCE)):
        asked = {job_id: ago_s[job_id] for job_id, customer in customers.items() if customer == user}
        try:
            written = context.slurm.cluster.left_logs(user, asked)
        except TransientError as error:  # a broken account must not stop the search for the others
            report.unseen["logs"] = str(error)[:SHOWN_TEXT]
            silent += 1
            if silent >= SILENT_AT_MOST:
                break
            continue
        traces |= {job_id: Trace.SOME if job_id in written else Trace.NONE for job_id in asked}
    return traces


def _taken_s(job: Job, now_s: float, answered_ago_s: float | None) -> float:
    """When SLURM took the job, by the site's clocks. If no look has shown that time, SLURM had taken the job before it
    answered. Infinite if the journal does not have the answer.
    """
    if answered_ago_s is None:
        return math.inf
    return now_s - answered_ago_s - CLOCKS_APART_S if job.slurm_submit_s is None else job.slurm_submit_s


def _claimed_ago_s(context: WorkerContext, snapshot: Snapshot, job_ids: Collection[JobId]) -> float:
    """How many seconds ago the first of these jobs was claimed; SLURM had none of them before. The blocks of the claims
    show that time. The ledger does not: one that was restored from a backup may have stored the claims just now.
    """
    blocks = [snapshot.claims[job_id].at[0] for job_id in job_ids if job_id in snapshot.claims]
    known = context.ledger.journal.first_claim([job_id for job_id in job_ids if job_id not in snapshot.claims])
    blocks += [] if known is None else [known]
    return seconds_since(context.sweep.contract_of(snapshot.provider).rpc, min(blocks)) if blocks else 0.0


def _remembered(context: WorkerContext, snapshot: Snapshot) -> dict[JobId, SlurmId]:
    """What batch scripts and accounting show of jobs that SLURM does not list by their names, and that may have run
    before the ledger knew of it.
    """
    cluster, asked = context.slurm.cluster, unlisted(snapshot)
    rows = {row.slurm_id: row for row in unexplained(snapshot)}
    scripts = cluster.scripts(list(rows.values()))
    renamed = {job_id: slurm_id for slurm_id, job_id in scripts.items() if asked.get(job_id) == rows[slurm_id].user}
    rest = {job_id: customer for job_id, customer in asked.items() if job_id not in renamed}
    found = (
        cluster.sacct_submissions_of(rest, dict.fromkeys(rest, _claimed_ago_s(context, snapshot, rest))) if rest else {}
    )
    ran = {job_id: runs[-1].slurm_id for job_id, seen in found.items() if (runs := _that_ran(seen))}
    return renamed | ran


def _that_ran(records: Iterable[JobRecord]) -> list[JobRecord]:
    return [record for record in records if record.elapsed_s]
