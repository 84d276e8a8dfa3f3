"""Scan: read the chain's logs from the cursor on, for events that no receipt showed,
and check that what was read is still on the chain.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.blocks import BetweenForksError, BlockRange
from supervisor_tasks.chain.contract import ChainEvent
from supervisor_tasks.chain_events.claim_ownership import drop_foreign_claims
from supervisor_tasks.chain_events.cross_check import unconfirmed_transactions
from supervisor_tasks.chain_events.event_logs import decode_logs
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.in_memory.read_once import reading_once
from supervisor_tasks.indexer.reorg import (
    end_doubts,
    find_fork,
    find_lost_receipts,
    rewind_as_asked,
)
from supervisor_tasks.instruments import CHAIN_HEAD, CHAIN_LAG, CLAIM_WAITS
from supervisor_tasks.jobs.events import ChainStatusObserved, Claimed, Event
from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.ledger import JobChange

log = structlog.get_logger()

MAX_ERROR_CHARS = 500  # characters of an error in an alarm
# a node that is behind, or shows no logs, for this long does not recover by itself
STALLED_AFTER_S = 180.0


def scan(context: WorkerContext) -> None:
    """Read the logs of all blocks since the last time. The first scan of a new ledger
    begins at the present block: earlier claims are another ledger's. A rewind that the
    operator requested is done first. Raises RpcUnavailableError or
    LedgerUnavailableError, when an endpoint or the database does not answer; a retry
    helps.
    """
    rewind_as_asked(context)
    run_exclusive(context.ledger, "scan", lambda: _scan(context))


def _scan(context: WorkerContext) -> bool:
    """Do one step, with one query for all alarms and one for all facts."""
    with reading_once():
        return _step(context)


def _step(context: WorkerContext) -> bool:
    """Do one step; returns whether there is more to do. A node that is behind is not
    read.
    """
    chain, ledger = context.chain, context.ledger
    head = blocks.head(chain.contract.rpc)
    kept_hashes = chain.blocks.kept_hashes()
    cursor = ledger.cursors.of(CONTRACT_STREAM)
    _show_lag(context, head, cursor[0] if cursor else head)
    if blocks.is_behind(head, kept_hashes):
        log.info("node_behind", head=head, read_up_to=max(kept_hashes))
        _record_stalled(context, AlarmName.NODE_BEHIND, max(kept_hashes), head=head)
        return False
    ledger.alarms.off(AlarmName.NODE_BEHIND)
    try:
        more = _read_on(context, head, kept_hashes, cursor)
    except SupervisorError as error:
        _record_stalled(
            context,
            AlarmName.CHAIN_SCAN_STALLED,
            cursor[0] if cursor else 0,
            head=head,
            error=str(error)[:MAX_ERROR_CHARS],
        )
        raise
    _stalled_condition(context, AlarmName.CHAIN_SCAN_STALLED).update(False)
    return more


def _record_stalled(
    context: WorkerContext, alarm: AlarmName, read_up_to: int, **seen: object
) -> None:
    """Record that the chain goes on and nothing is read. When that lasts, the operator
    must look at the node.
    """
    advice = "the chain's events are not read: look at the node"
    _stalled_condition(context, alarm).update(
        True, str(read_up_to), read_up_to=read_up_to, **seen, advice=advice
    )


def _stalled_condition(context: WorkerContext, alarm: AlarmName) -> Condition:
    """The condition of a scan that is stalled. A node that is behind stops the scan,
    and so does one that answers with errors: the time goes on when the one follows the
    other.
    """
    return Condition(
        context.ledger, alarm, STALLED_AFTER_S, name=AlarmName.CHAIN_SCAN_STALLED.value
    )


def _read_on(
    context: WorkerContext,
    head: int,
    kept_hashes: dict[int, str],
    cursor: tuple[int, str] | None,
) -> bool:
    """Do one step with a node that has what was read already; returns whether there is
    more to do.
    """
    chain, ledger = context.chain, context.ledger
    if kept_hashes and not find_fork(context, head, kept_hashes):
        return max(kept_hashes) > max(chain.blocks.kept_hashes(), default=0)
    read_up_to = head - 1 if cursor is None else cursor[0]
    if not find_lost_receipts(context, head, kept_hashes, read_up_to):
        return False
    last = head
    if read_up_to < head:
        last = _read(context, kept_hashes, read_up_to + 1, head)
    ledger.alarms.off(AlarmName.REORGANISED_TOO_DEEP)
    if last == head:
        end_doubts(context, head)
    return read_up_to < last < head


def _read(
    context: WorkerContext, kept_hashes: dict[int, str], first: int, head: int
) -> int:
    """Commit the events of some blocks, the number of the last block, and the hashes of
    the blocks that may still be lost; returns that number. Blocks whose events no
    second endpoint shows are left for the next time.
    """
    ledger, contract = context.ledger, context.chain.contract
    block_range = context.chain.log_range.ask(
        partial(_read_range, context, kept_hashes, first, head)
    )
    events = decode_logs(ledger, contract, block_range.logs)
    doubted = unconfirmed_transactions(ledger, contract, events, by="scan")
    if doubted:
        last_certain = _first_block_of(doubted, block_range.logs) - 1
        log.info(
            "waits_for_a_second_endpoint",
            transactions=len(doubted),
            read_up_to=last_certain,
        )
        if last_certain < first:
            return first - 1
        block_range = context.chain.log_range.ask(
            partial(_read_range, context, kept_hashes, first, last_certain)
        )
        events = decode_logs(ledger, contract, block_range.logs)
        # this answer may have other events than the one before
        if unconfirmed_transactions(ledger, contract, events, by="scan"):
            return first - 1
    last = block_range.blocks[-1].number

    def store_cursor(connection: Connection) -> None:
        context.chain.blocks.store(connection, block_range.hashes)
        ledger.cursors.set(connection, CONTRACT_STREAM, last, block_range.hashes[last])

    jobs = ledger.record(*_changes(context, events), also=store_cursor)
    _show_lag(context, head, last)
    _measure_claim_waits(context, events, jobs, block_range.times_s)
    return last


def _first_block_of(tx_hashes: Collection[str], logs: Iterable[dict[str, Any]]) -> int:
    """The number of the lowest block that has a log of one of these transactions."""
    return min(
        int(entry["blockNumber"], 16)
        for entry in logs
        if entry["transactionHash"] in tx_hashes
    )


def _measure_claim_waits(
    context: WorkerContext,
    events: Iterable[ChainEvent],
    jobs: Collection[JobId],
    times_s: Mapping[int, int],
) -> None:
    """Measure how long our claims waited. A claim whose job is not in the ledger's
    `jobs` is another ledger's.
    """
    counted = list[tuple[JobId, Event]]()
    for entry in events:
        if entry.job_id in jobs or not isinstance(entry.event, Claimed):
            counted.append((entry.job_id, entry.event))
    for wait_s in context.chain.claim_waits.read(counted, times_s):
        CLAIM_WAITS.observe(wait_s)


def _show_lag(context: WorkerContext, head: int, read_up_to: int) -> None:
    chain_id = str(context.chain.contract.chain_id)
    CHAIN_HEAD.labels(chain_id).set(head)
    CHAIN_LAG.labels(chain_id).set(max(head - read_up_to, 0))


def _read_range(
    context: WorkerContext,
    kept_hashes: dict[int, str],
    first: int,
    head: int,
    most_blocks: int,
) -> BlockRange:
    contract, last = context.chain.contract, min(head, first + most_blocks - 1)
    earliest = first if kept_hashes else 0
    first_kept = min(last, max(earliest, head + 1 - context.chain.blocks.kept))
    block_range = blocks.read_range(
        contract.rpc, first_kept, last, contract.logs_call(first, last)
    )
    before = kept_hashes.get(first_kept - 1)
    if before is not None and block_range.blocks[0].parent != before:
        raise BetweenForksError(
            f"block {first_kept} does not follow the one that was read before it"
        )
    return block_range


def _changes(context: WorkerContext, events: Sequence[ChainEvent]) -> list[JobChange]:
    """The events of our jobs. A transition may be of another provider's job; other
    events are always ours.
    """
    kept = drop_foreign_claims(context.ledger, context.chain.contract, events)
    ours = set(context.ledger.jobs({entry.job_id for entry in kept}))
    # their transitions count, too
    ours |= {entry.job_id for entry in kept if isinstance(entry.event, Claimed)}
    changes = list[JobChange]()
    for entry in kept:
        is_transition = isinstance(entry.event, ChainStatusObserved)
        if entry.job_id in ours or not is_transition:
            changes.append(JobChange(entry.job_id, entry.event))
    return changes
