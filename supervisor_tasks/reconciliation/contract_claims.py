"""What a sweep finds on the contract: old claims, and the jobs that the ledger or SLURM
has.
"""

from collections.abc import Mapping
from dataclasses import replace

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import ChainEvent, Contract
from supervisor_tasks.chain_events.cross_check import (
    unconfirmed_statuses,
    unconfirmed_transactions,
)
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import ProviderUnknownError
from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.jobs.model import ChainStatus, JobId
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation import backfill
from supervisor_tasks.reconciliation.rules import ends_on_chain
from supervisor_tasks.reconciliation.snapshot import (
    Snapshot,
    is_active_and_ours,
    names_with_our_comment,
)
from supervisor_tasks.reconciliation.sweep_report import (
    HISTORY_SIDE,
    ReconciliationReport,
)

SCANNED_WITHIN_S = 90.0  # a longer gap in the scan may hide that blocks are lost


def look_at_contract(
    context: WorkerContext, snapshot: Snapshot, report: ReconciliationReport
) -> tuple[Snapshot, int | None]:
    """Read old claims, and the jobs on the contract. Returns the snapshot with them,
    and how far back claims have been read. The jobs are read also where no endpoint
    shows the logs of old blocks: the report names that side.

    Raises ProviderUnknownError until a worker of the chain queue has stored the
    provider's address, and TransientError when no endpoint answers. A retry helps.
    """
    if not snapshot.provider:
        raise ProviderUnknownError
    ledger, contract = context.ledger, context.sweep.contract_of(snapshot.provider)
    claims, others, read_since = _old_claims(context, contract, report)
    others = ledger.foreign_claims.all() | others
    adopted = ledger.foreign_claims.adopted_tags()
    for job_id, other in others.items():
        if other.tag in adopted:
            claims[job_id] = other.claim
    claimed_ids = claims.keys() | others.keys()
    unknown = claimed_ids - ledger.reconciliations.named(claimed_ids, ()).keys()
    cursor = ledger.cursors.of(CONTRACT_STREAM)
    block = int(contract.rpc.call("eth_blockNumber"), 16)
    in_slurm = names_with_our_comment(snapshot.rows.values(), snapshot.comment)
    also_asked = (in_slurm | unknown | others.keys()) - snapshot.jobs.keys()
    chain = contract.on_chain([*snapshot.jobs, *also_asked], block)
    snapshot = snapshot.changed(
        block=block,
        chain=chain,
        scan_is_current=_scan_is_current(ledger),
        scanned_block=cursor[0] if cursor else 0,
    )
    new_claims = {job_id: claims[job_id] for job_id in unknown & claims.keys()}
    statuses = ends_on_chain(snapshot) | _running(snapshot, new_claims)
    unconfirmed = unconfirmed_statuses(ledger, contract, statuses, by="sweep")
    if unconfirmed:
        report.unseen["ends"] = (
            f"no second endpoint shows that {len(unconfirmed)} jobs are over, or have begun, such as {min(unconfirmed)}"
        )
    snapshot = snapshot.changed(unconfirmed_on_chain=unconfirmed)
    _store_foreign_claims(ledger, others, snapshot)
    doubted = _doubted(context, contract, snapshot, new_claims)
    doubted |= unconfirmed & new_claims.keys()
    if doubted:
        report.unseen["claims"] = (
            f"no second endpoint shows the claims of {len(doubted)} jobs, such as {min(doubted)}"
        )
        read_since = None  # these blocks are read again
    for job_id in doubted:
        del new_claims[job_id]
    foreign_claim_tags = {
        job_id: others[job_id].tag.hex() for job_id in unknown - claims.keys()
    }
    return snapshot.changed(
        claims=new_claims, foreign_claim_tags=foreign_claim_tags
    ), read_since


def _old_claims(
    context: WorkerContext, contract: Contract, report: ReconciliationReport
) -> tuple[dict[JobId, Claimed], dict[JobId, ForeignClaim], int | None]:
    """Our claims, other ledgers' claims, and the first block that was read, which is
    None if none was.
    """
    with report.asking(HISTORY_SIDE):
        claims, others, read_since = backfill.read_old_claims(context, contract)
        report.more |= read_since is None
        return claims, others, read_since
    return {}, {}, None


def _running(
    snapshot: Snapshot, claims: Mapping[JobId, Claimed]
) -> dict[JobId, tuple[ChainStatus, str]]:
    """The status and the provider of the jobs of new claims that run by the contract:
    these are never submitted.
    """
    on_chain = {job_id: (snapshot.chain or {}).get(job_id) for job_id in claims}
    return {
        job_id: (job.status, job.provider)
        for job_id, job in on_chain.items()
        if job is not None and job.status is ChainStatus.RUNNING
    }


def _doubted(
    context: WorkerContext,
    contract: Contract,
    snapshot: Snapshot,
    claims: Mapping[JobId, Claimed],
) -> set[JobId]:
    """The jobs whose claim only one endpoint shows, among those that the contract has
    active and ours.
    """
    events = list[ChainEvent]()
    for job_id, claim in claims.items():
        if is_active_and_ours(job_id, snapshot):
            tx_hash = claim.claim_key.rpartition(":")[0]
            events.append(
                ChainEvent(job_id, replace(claim, claim_known_to_ledger=True), tx_hash)
            )
    doubted_hashes = unconfirmed_transactions(
        context.ledger, contract, events, by="claims of the sweep"
    )
    return {event.job_id for event in events if event.tx_hash in doubted_hashes}


def _scan_is_current(ledger: Ledger) -> bool:
    """Whether the scan goes on, and has found no lost blocks that the operator must
    decide on.
    """
    age_s = ledger.periodic_runs.age_s("scan")
    if age_s is None or age_s >= SCANNED_WITHIN_S:
        return False
    alarms = {alarm.name for alarm in ledger.alarms.all()}
    return AlarmName.REORGANISED_TOO_DEEP not in alarms


def _store_foreign_claims(
    ledger: Ledger, others: Mapping[JobId, ForeignClaim], snapshot: Snapshot
) -> None:
    """Keep other ledgers' claims as long as the contract has their jobs active and
    ours.
    """
    active, over = list[ForeignClaim](), list[JobId]()
    for job_id, other in others.items():
        if is_active_and_ours(job_id, snapshot):
            active.append(other)
        elif other.claim.at[0] <= snapshot.block:
            over.append(job_id)
    ledger.foreign_claims.store(active)
    ledger.foreign_claims.delete(over)
