"""Collect what a sweep compares: the ledger first, then SLURM and the contract. For
missing jobs the sweep also asks accounting, and searches for any other trace of them.
"""

import math
from collections.abc import Sequence

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import ENDED
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger.facts import PROVIDER, SLURM_BOOT_TIME
from supervisor_tasks.ledger.heartbeats import continuous_uptime_s
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.reconciliations import Begun
from supervisor_tasks.reconciliation.contract_claims import look_at_contract
from supervisor_tasks.reconciliation.lost_job_traces import find_traces
from supervisor_tasks.reconciliation.models import JobSummary
from supervisor_tasks.reconciliation.saved_by_slurm import find_persisted, last_start
from supervisor_tasks.reconciliation.snapshot import (
    Snapshot,
    absence_confirmed,
    is_live_row,
    names_with_our_comment,
    unlisted,
)
from supervisor_tasks.reconciliation.sweep_report import ReconciliationReport
from supervisor_tasks.reconciliation.unlisted_histories import (
    has_unstored_claims,
    with_histories,
)
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.job_states import COMPLETING
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm_lookup.cluster_check import require_expected_cluster
from supervisor_tasks.slurm_lookup.lookup import look_at

JOBS_ASKED_AT_ONCE = 1000


def collect_snapshot(
    context: WorkerContext, begun: Begun, report: ReconciliationReport
) -> tuple[Snapshot, int | None]:
    """Collect everything that a sweep compares, the ledger first. Returns the snapshot,
    and how far back claims have been read. The report names a side that does not
    answer. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    ledger, cluster, services = context.ledger, context.slurm.cluster, context.sweep
    boot = ledger.facts.read(SLURM_BOOT_TIME)
    provider = ledger.facts.get_or(PROVIDER, "")
    with report.timed("ledger"):
        jobs = ledger.reconciliations.active(
            cluster.settings.partition, compares_sizes=cluster.settings.compares_sizes
        )
        uptime_s: float | None = math.inf
        if not cluster.queries.has_accounting:
            uptime_s = continuous_uptime_s(ledger.periodic_runs.ages_s())
        booted, slurmctld_uptime_s = "", 0.0
        if boot is not None:
            booted, slurmctld_uptime_s = boot.value, boot.age_s
        snapshot = Snapshot(
            provider=Address(provider),
            comment=comment(cluster.settings.public_address),
            jobs=jobs,
            previous_doubts=begun.previous_doubts_s,
            grace_s=services.grace_s,
            slurmctld_uptime_s=slurmctld_uptime_s,
            continuous_uptime_s=uptime_s,
        )
    with report.asking("slurm"):
        require_expected_cluster(context)
        snapshot = snapshot.changed(slurm=cluster.queries.list_all())
    snapshot = snapshot.changed(
        jobs=dict(snapshot.jobs) | _pointed_to(ledger, snapshot)
    )
    read_since = None
    with report.asking("chain"):
        snapshot, read_since = look_at_contract(context, snapshot, report)
    if snapshot.slurm is None:
        return snapshot, read_since
    persisted = find_persisted(ledger, snapshot, begun)
    snapshot = snapshot.changed(
        persisted_by_slurm=persisted, first_job_id=last_start(ledger).first_id
    )
    if unlisted(snapshot):
        snapshot = with_histories(context, snapshot, report)
        if has_unstored_claims(ledger, snapshot):
            read_since = None  # these blocks are read again
        if unlisted(snapshot).keys() - snapshot.undecided_histories:
            # the next sweep asks for the missing jobs: each sweep runs few commands
            report.more = True
            return snapshot, read_since
    with report.asking("lost jobs"):
        snapshot = snapshot.changed(
            confirmed_lookups=_confirmed_lookups(context, snapshot)
        )
    with report.asking("traces"):
        snapshot = snapshot.changed(
            traces=find_traces(context, snapshot, booted, report)
        )
    missing = _missing_for_long(snapshot)
    snapshot = snapshot.changed(
        recently_reported=_recently_reported(ledger, snapshot, missing),
        proven_ends=_proven_ends(ledger, missing),
        last_seen_completing=_last_seen_completing(ledger, snapshot, missing),
    )
    return snapshot, read_since


def _pointed_to(ledger: Ledger, snapshot: Snapshot) -> dict[JobId, JobSummary]:
    """The ledger's jobs that SLURM's live jobs point to by id or name. These are the
    jobs that are not active, and those that were not submitted yet when the ledger was
    read: they are read again.
    """
    other_ids = {row.slurm_id for row in snapshot.rows.values() if is_live_row(row)}
    other_names = names_with_our_comment(snapshot.rows.values(), snapshot.comment)
    for job in snapshot.jobs.values():
        if job.slurm_id is not None:
            other_ids.discard(job.slurm_id)
            other_names.discard(job.job_id)
    return ledger.reconciliations.named(other_names, other_ids)


def _confirmed_lookups(
    context: WorkerContext, snapshot: Snapshot
) -> dict[JobId, JobRecord | None]:
    """Ask SLURM and accounting once more about jobs that SLURM does not list. None
    means that neither knows the job.
    """
    asked = (
        snapshot.missing[:JOBS_ASKED_AT_ONCE]
        + snapshot.parked_and_absent[:JOBS_ASKED_AT_ONCE]
    )
    absent = [job.job_id for job in asked]
    if not absent:
        return {}
    results = look_at(context, context.ledger.jobs(absent).values(), snapshot.slurm)
    return {
        job_id: result.record
        for job_id, result in results.items()
        if not result.unclear
    }


def _missing_for_long(snapshot: Snapshot) -> list[JobSummary]:
    """The jobs that would count as lost. One that a restored ledger has taken over has
    no SLURM id if SLURM had forgotten it by then.
    """
    return [job for job in snapshot.missing if absence_confirmed(job, snapshot)]


def _slurm_ids(jobs: Sequence[JobSummary]) -> dict[JobId, SlurmId]:
    return {job.job_id: job.slurm_id for job in jobs if job.slurm_id is not None}


def _proven_ends(ledger: Ledger, missing: Sequence[JobSummary]) -> frozenset[JobId]:
    """The missing jobs whose end a hook of ours has proven."""
    without_ids = [job.job_id for job in missing if job.slurm_id is None]
    proven = ledger.callbacks.jobs_proven_as(_slurm_ids(missing), ENDED)
    proven |= ledger.callbacks.jobs_proven_under_any_id(without_ids, ENDED)
    return frozenset(proven)


def _last_seen_completing(
    ledger: Ledger, snapshot: Snapshot, missing: Sequence[JobSummary]
) -> frozenset[JobId]:
    """The missing jobs that SLURM showed as COMPLETING when it last listed them."""
    asked = [job.job_id for job in missing if job.job_id in snapshot.confirmed_lookups]
    if not asked:
        return frozenset()
    shown = ledger.journal.last_shown(asked, but=NOT_LISTED)
    return frozenset(job_id for job_id, state in shown.items() if state == COMPLETING)


def _recently_reported(
    ledger: Ledger, snapshot: Snapshot, missing: Sequence[JobSummary]
) -> frozenset[JobId]:
    """The missing jobs for which an end has come in since the ledger was read, or not
    long before. The POLL_SLURM effect decides whether that end can be true. The sender
    of a false callback may have slowed that effect down.
    """
    return frozenset(
        ledger.callbacks.jobs_reported_as(_slurm_ids(missing), ENDED, snapshot.grace_s)
    )
