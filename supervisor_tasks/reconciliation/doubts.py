"""Which discrepancies are doubts, that count only when a later sweep sees them again.
Pure.
"""

from collections.abc import Mapping, Sequence

from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.reconciliation.rules import Discrepancy, of_kind
from supervisor_tasks.reconciliation.snapshot import (
    DiscrepancyKind,
    Snapshot,
    doubt_key,
)

DOUBTED_AS = {  # a missing job is one doubt, under each kind of finding
    DiscrepancyKind.MISSING: DiscrepancyKind.MISSING,
    DiscrepancyKind.LOST: DiscrepancyKind.MISSING,
    DiscrepancyKind.NEEDS_OPERATOR: DiscrepancyKind.MISSING,
    DiscrepancyKind.CONTRADICTED: DiscrepancyKind.MISSING,
    DiscrepancyKind.REASSIGNED_ON_CHAIN: DiscrepancyKind.REASSIGNED_ON_CHAIN,
}
HELD = (DiscrepancyKind.NEEDS_OPERATOR, DiscrepancyKind.CONTRADICTED)


def doubts(snapshot: Snapshot, findings: Sequence[Discrepancy]) -> dict[str, float]:
    """Return the doubts to remember until the next sweep, each with the seconds since
    it was first seen. A doubt stays as it was if the sweep could not check it.
    """
    before = snapshot.previous_doubts
    ages_s = dict[str, float]()
    for finding in findings:
        key = _doubt_of(finding)
        if key is not None:
            ages_s[key] = before.get(key, 0.0)
    unchecked = _unchecked(snapshot)
    for key in before.keys() & unchecked:
        ages_s[key] = before[key]
    return ages_s


def _doubt_of(finding: Discrepancy) -> str | None:
    """The key of the doubt that a finding is, if it is one."""
    if finding.kind is DiscrepancyKind.DUPLICATE:
        return doubt_key(finding.kind, finding.job_id, finding.slurm_id)
    if finding.kind in DOUBTED_AS:
        return doubt_key(DOUBTED_AS[finding.kind], finding.job_id)
    return None


def _unchecked(snapshot: Snapshot) -> set[str]:
    """The keys of the previous doubts that this sweep could not check."""
    kinds: tuple[DiscrepancyKind, ...] = ()
    if snapshot.chain is None:
        kinds += (DiscrepancyKind.REASSIGNED_ON_CHAIN,)
    if snapshot.slurm is None:
        kinds += (DiscrepancyKind.MISSING, DiscrepancyKind.DUPLICATE)
    unchecked = set[str]()
    for key in snapshot.previous_doubts:
        if key.startswith(kinds):
            unchecked.add(key)
    for job in snapshot.missing:
        if job.job_id not in snapshot.confirmed_lookups:
            unchecked.add(doubt_key(DiscrepancyKind.MISSING, job.job_id))
    return unchecked


def held_now(
    snapshot: Snapshot,
    findings: Sequence[Discrepancy],
    before: Mapping[JobId, SlurmId | None],
) -> dict[JobId, SlurmId | None]:
    """Return the jobs that the operator must decide on. A job that was held `before`
    stays held as long as it is in doubt.
    """
    not_lost = [
        finding for finding in findings if finding.kind is not DiscrepancyKind.LOST
    ]
    doubted = doubts(snapshot, not_lost)
    held = dict[JobId, SlurmId | None]()
    for job_id, slurm_id in before.items():
        if doubt_key(DiscrepancyKind.MISSING, job_id) in doubted:
            held[job_id] = slurm_id
    for finding in of_kind(findings, *HELD):
        held[finding.job_id] = finding.slurm_id
    return held
