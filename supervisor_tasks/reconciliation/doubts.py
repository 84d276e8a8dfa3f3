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

DOUBTED_AS = {  # a missing job is one doubt, under each kind of discrepancy
    DiscrepancyKind.MISSING: DiscrepancyKind.MISSING,
    DiscrepancyKind.LOST: DiscrepancyKind.MISSING,
    DiscrepancyKind.NEEDS_OPERATOR: DiscrepancyKind.MISSING,
    DiscrepancyKind.CONTRADICTED: DiscrepancyKind.MISSING,
    DiscrepancyKind.REASSIGNED_ON_CHAIN: DiscrepancyKind.REASSIGNED_ON_CHAIN,
}
NEED_OPERATOR = (DiscrepancyKind.NEEDS_OPERATOR, DiscrepancyKind.CONTRADICTED)


def doubts(
    snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> dict[str, float]:
    """Return the doubts to remember until the next sweep, each with the seconds since
    it was first seen. A doubt stays as it was if the sweep could not check it.
    """
    before = snapshot.previous_doubts
    ages_s = dict[str, float]()
    for discrepancy in discrepancies:
        key = _doubt_of(discrepancy)
        if key is not None:
            ages_s[key] = before.get(key, 0.0)
    unchecked = _unchecked(snapshot)
    for key in before.keys() & unchecked:
        ages_s[key] = before[key]
    return ages_s


def _doubt_of(discrepancy: Discrepancy) -> str | None:
    """The key of the doubt that a discrepancy is, if it is one."""
    if discrepancy.kind is DiscrepancyKind.DUPLICATE:
        return doubt_key(discrepancy.kind, discrepancy.job_id, discrepancy.slurm_id)
    if discrepancy.kind in DOUBTED_AS:
        return doubt_key(DOUBTED_AS[discrepancy.kind], discrepancy.job_id)
    return None


def _unchecked(snapshot: Snapshot) -> set[str]:
    """The keys of the previous doubts that this sweep could not check."""
    kinds: tuple[DiscrepancyKind, ...] = ()
    if snapshot.chain is None:
        kinds += (DiscrepancyKind.REASSIGNED_ON_CHAIN,)
    if snapshot.slurm is None:
        kinds += (DiscrepancyKind.MISSING, DiscrepancyKind.DUPLICATE)
    unchecked = {
        doubt_key(DiscrepancyKind.REASSIGNED_ON_CHAIN, job_id)
        for job_id in snapshot.unconfirmed_on_chain
    }
    for key in snapshot.previous_doubts:
        if key.startswith(kinds):
            unchecked.add(key)
    for job in snapshot.missing:
        if job.job_id not in snapshot.confirmed_lookups:
            unchecked.add(doubt_key(DiscrepancyKind.MISSING, job.job_id))
    return unchecked


def needs_operator(
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
    before: Mapping[JobId, SlurmId | None],
) -> dict[JobId, SlurmId | None]:
    """Return the jobs that the operator must decide on. A job of `before`
    stays as long as it is in doubt.
    """
    not_lost = [
        discrepancy
        for discrepancy in discrepancies
        if discrepancy.kind is not DiscrepancyKind.LOST
    ]
    doubted = doubts(snapshot, not_lost)
    found = dict[JobId, SlurmId | None]()
    for job_id, slurm_id in before.items():
        if doubt_key(DiscrepancyKind.MISSING, job_id) in doubted:
            found[job_id] = slurm_id
    for discrepancy in of_kind(discrepancies, *NEED_OPERATOR):
        found[discrepancy.job_id] = discrepancy.slurm_id
    return found
