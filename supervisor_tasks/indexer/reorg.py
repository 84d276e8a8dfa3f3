"""Reorganisations: blocks that were read are not on the chain any more. Their events
are taken back, and read again.
"""

from collections.abc import Mapping, Sequence

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain import blocks
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.events import Reorganised
from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.ledger.advisory_locks import advisory_lock
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.facts import REWIND
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.lock_names import cluster_lock

log = structlog.get_logger()


class RewindError(PermanentError):
    """The ledger cannot be taken back to that block."""


def find_fork(context: WorkerContext, head: int, kept_hashes: dict[int, str]) -> bool:
    """Whether the blocks that were read are unchanged. If not, take back what was read
    above the fork, or raise an alarm when the fork is too deep. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    rpc = context.chain.contract.rpc
    top = max(kept_hashes)
    if blocks.blocks_at(rpc, [top])[top].hash == kept_hashes[top]:
        return True
    current_hashes = blocks.hashes_at(rpc, kept_hashes)
    _take_back(
        context,
        head,
        top,
        blocks.last_common_block(kept_hashes.items(), current_hashes),
    )
    return False


def find_lost_receipts(
    context: WorkerContext, head: int, kept_hashes: dict[int, str], read_up_to: int
) -> bool:
    """Whether all our transactions were mined in blocks that are still on the chain. If
    not, take back what was read from the first lost block on. A receipt may be of a
    block that was lost before the scan came to it, or may be committed late.

    Call this before the next blocks are read. Where the ledger has no hash of a block,
    the node is asked. Its answer about blocks that are not kept is final. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    store, rpc = context.chain.blocks, context.chain.contract.rpc
    mined = store.mined_in(
        min(read_up_to, head - store.kept),
        min(head, read_up_to + context.chain.log_range.blocks),
    )
    hashes = kept_hashes | blocks.hashes_at(
        rpc, {number for number, _ in mined} - kept_hashes.keys()
    )
    lost = [number for number, mined_hash in mined if hashes[number] != mined_hash]
    if lost:
        _take_back(context, head, max(lost), min(lost) - 1)
    return not lost


def end_doubts(context: WorkerContext, head: int) -> None:
    """Record as lost what a reorganisation took away and what has not come back in its
    time. Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint or the
    database does not answer; a retry helps.
    """
    job_ids = context.chain.blocks.jobs_whose_doubt_is_over(head)
    if job_ids:
        doubted = _doubted(context, job_ids, head)
        context.ledger.record(
            *_changes(context, job_ids, head, head, None, dict.fromkeys(doubted, head))
        )
        log.warning(
            "reorg_doubt_expired", jobs=job_ids[:20], number=len(job_ids), block=head
        )


def rewind_as_asked(context: WorkerContext) -> None:
    """Do the rewind that the operator requested by a fact in the ledger, and clear the
    fact. A rewind that is refused is logged and not tried again. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    request = context.ledger.facts.read(REWIND)
    if request is None:
        return
    try:
        log.warning("chain_rewound", to_block=rewind(context, request.value))
    except RewindError as error:
        log.error("rewind_refused", error=str(error))
    context.ledger.facts.clear_if(REWIND, request.value)


def rewind(context: WorkerContext, to_block: int | None = None) -> int:
    """For the operator, after a reorganisation deeper than expected: take back
    everything above the last block that the ledger and the node have in common, or
    above an earlier one. Returns that block. Raises RewindError; a retry does not help.
    """
    with advisory_lock(
        context.ledger.engine, cluster_lock(context.ledger.cluster, "scan")
    ):
        head = blocks.head(context.chain.contract.rpc)
        common = _last_common_block(context, head)
        target = common if to_block is None else to_block
        if target is None:
            raise RewindError(
                "the node has none of the blocks that the ledger knows; name a block to go back to"
            )
        is_above_common = common is not None and target > common
        if is_above_common or not 0 <= target <= head:
            raise RewindError(
                f"found block {target}; expected one up to {common}, the last that ledger and node both have"
            )
        if to_block is not None:
            refusal = context.chain.blocks.rewind_obstacle(to_block)
            if refusal is not None:
                raise RewindError(refusal)
        undo(context, target, head)
        context.ledger.alarms.off(AlarmName.REORGANISED_TOO_DEEP)
        return target


def undo(context: WorkerContext, fork: int, head: int) -> None:
    """Take back, in one transaction, what was read above the fork; the contract's
    present state of the jobs counts instead. The wallet signs nothing meanwhile. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    chain = context.chain
    job_ids = chain.blocks.jobs_with_events_above(fork)
    until = head + max(chain.confirmations, head - fork, 1)
    cursor = context.ledger.cursors.of(CONTRACT_STREAM)
    # the scan reads the blocks above this one again, and with them a claim of ours
    read_again_above = fork if cursor is None else min(fork, cursor[0])
    doubted = dict.fromkeys(_doubted(context, job_ids, fork), read_again_above)
    changes = _changes(context, job_ids, fork, head, until, doubted)
    with chain.account.exclusive(), crash_point(CrashPoint.REORGANISED):
        context.ledger.record(
            *changes, also=lambda connection: chain.blocks.take_back(connection, fork)
        )
    log.warning(
        "reorganised",
        last_common_block=fork,
        head=head,
        jobs=job_ids[:20],
        number=len(job_ids),
    )
    context.dispatch("collect_receipts")


def _take_back(context: WorkerContext, head: int, top: int, fork: int | None) -> None:
    if fork is not None and top - fork <= context.chain.confirmations:
        undo(context, fork, head)
        return
    context.ledger.alarms.on(
        AlarmName.REORGANISED_TOO_DEEP,
        read_up_to=top,
        last_common_block=fork,
        confirmations=context.chain.confirmations,
        advice="nothing was taken back; compare the nodes, then `supervisor chain rewind`",
    )


def _last_common_block(context: WorkerContext, head: int) -> int | None:
    stored = context.chain.blocks.last_mined_in() | set(
        context.chain.blocks.kept_hashes().items()
    )
    current_hashes = blocks.hashes_at(
        context.chain.contract.rpc, {number for number, _ in stored if number <= head}
    )
    return blocks.last_common_block(stored, current_hashes)


def _doubted(context: WorkerContext, job_ids: Sequence[JobId], fork: int) -> set[JobId]:
    """The jobs that another cluster may have now, because it shares the wallet: a claim
    that is mined again may give another job. Only our own claim, read again, shows
    whose they are.
    """
    ledger, contract = context.ledger, context.chain.contract
    if not ledger.wallets.partners(contract.chain_id, contract.provider):
        return set()
    jobs = ledger.jobs(job_ids)
    reverted = {job_id for job_id, job in jobs.items() if job.claim_reverted_by_reorg}
    return reverted | ledger.journal.claimed_above(job_ids, fork)


def _changes(
    context: WorkerContext,
    job_ids: Sequence[JobId],
    fork: int,
    head: int,
    until: int | None,
    doubted: Mapping[JobId, int],
) -> list[JobChange]:
    """What the contract shows of these jobs. The `doubted` ones do not count as ours,
    although it has them with our wallet: what is read above their block counts.
    """
    owners = context.chain.contract.owners_at(job_ids, head)
    return [
        JobChange(
            job_id,
            Reorganised(
                status=owner.status,
                ours=owner.ours and job_id not in doubted,
                cancel_requested=owner.cancel_requested,
                fork=fork,
                seen=doubted.get(job_id, head),
                until=until,
            ),
        )
        for job_id, owner in owners.items()
    ]
