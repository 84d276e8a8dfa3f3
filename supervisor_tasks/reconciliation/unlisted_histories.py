"""What SLURM had of jobs that it does not list, before the ledger knew of them."""

from collections.abc import Collection

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation.snapshot import Snapshot, unexplained, unlisted
from supervisor_tasks.reconciliation.sweep_report import (
    MAX_TEXT_CHARS,
    ReconciliationReport,
)
from supervisor_tasks.slurm.parsers import QuestionRejectedError


def _claimed_ago_s(
    context: WorkerContext, snapshot: Snapshot, job_ids: Collection[JobId]
) -> float:
    """How many seconds ago the first of these jobs was claimed; SLURM had none of them
    before. The blocks of the claims show that time. The ledger does not: one that was
    restored from a backup may have stored the claims just now.
    """
    blocks, in_journal = list[int](), list[JobId]()
    for job_id in job_ids:
        if job_id in snapshot.claims:
            blocks.append(snapshot.claims[job_id].at[0])
        else:
            in_journal.append(job_id)
    first_in_journal = context.ledger.journal.first_claim(in_journal)
    if first_in_journal is not None:
        blocks.append(first_in_journal)
    if not blocks:
        return 0.0
    return seconds_since(context.sweep.contract_of(snapshot.provider).rpc, min(blocks))


def with_histories(
    context: WorkerContext, snapshot: Snapshot, report: ReconciliationReport
) -> Snapshot:
    """The snapshot with what SLURM had of the unlisted jobs before, and with the jobs
    that accounting cannot be asked about. Raises no error: the report names the side
    that does not answer.
    """
    snapshot = snapshot.changed(historical_matches=None)
    with report.asking("accounting"):
        matches, rejected = _historical_matches(context, snapshot)
        snapshot = snapshot.changed(
            historical_matches=matches, undecided_histories=frozenset(rejected)
        )
        if rejected:
            first = min(rejected)
            report.unseen["customers"] = (
                f"sacct on the login node does not know the customers of {len(rejected)}"
                f" jobs, such as {first}: {rejected[first]}"
            )[:MAX_TEXT_CHARS]
    return snapshot


def has_unstored_claims(ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether the claim of an undecided job is only in the blocks that were just read.
    Claims of a tag that was taken over are stored while their jobs are active. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    claimed = snapshot.claims.keys() & snapshot.undecided_histories
    if not claimed:
        return False
    stored, adopted = ledger.foreign_claims.all(), ledger.foreign_claims.adopted_tags()
    return any(
        job_id not in stored or stored[job_id].tag not in adopted for job_id in claimed
    )


def _historical_matches(
    context: WorkerContext, snapshot: Snapshot
) -> tuple[dict[JobId, SlurmId], dict[JobId, QuestionRejectedError]]:
    """What batch scripts and accounting show of jobs that SLURM does not list by their
    names, and that may have run before the ledger knew of them. The second result has
    the jobs whose customers the login node does not know.
    """
    cluster, customers = context.slurm.cluster, unlisted(snapshot)
    matches, rest = dict[JobId, SlurmId](), dict(customers)
    rejected = dict[JobId, QuestionRejectedError]()
    for slurm_id, job_id in cluster.search.scripts(unexplained(snapshot)).items():
        if customers.get(job_id) == snapshot.rows[slurm_id].user:
            matches[job_id] = slurm_id
            rest.pop(job_id, None)
    if not rest:
        return matches, rejected
    claimed_ago_s = dict.fromkeys(rest, _claimed_ago_s(context, snapshot, rest))
    for job_id, records in cluster.search.sacct_submissions_of(
        rest, claimed_ago_s
    ).items():
        if isinstance(records, QuestionRejectedError):
            rejected[job_id] = records
            continue
        for record in records:
            if record.elapsed_s:
                matches[job_id] = record.slurm_id  # the last run remains
    return matches, rejected
