"""Follow sent transactions until they are mined, and record what their receipts show
about jobs.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import structlog

from supervisor_tasks.chain.contract import ChainEvent
from supervisor_tasks.chain_events.cross_check import (
    unconfirmed_ends,
    unconfirmed_transactions,
)
from supervisor_tasks.chain_events.event_logs import decode_logs
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.execution import claim_backoff
from supervisor_tasks.execution.exclusive_run import exclusive
from supervisor_tasks.in_memory.read_once import reading_once
from supervisor_tasks.jobs.events import ChainStatusObserved, Claimed
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, JobId
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.transaction_names import Purpose, report_purpose
from supervisor_tasks.ledger.transactions import Mined, Sent
from supervisor_tasks.open_transactions.resubmit import resubmit_pending
from supervisor_tasks.wallet.gas import RevertedError

log = structlog.get_logger()

# between two questions for a new block while transactions are open and no subscription
# announces blocks
POLL_S = 0.05
# open transactions are looked at this often, also when no block comes
LOOK_AGAIN_S = 1.0
# of one pass; then the worker's thread is free again, and the run is recorded
MAX_PASS_S = 20.0


@exclusive("collect_receipts")
def collect_receipts(context: WorkerContext) -> bool:
    """Follow all open transactions until they are mined, in one batch per block. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    heads = context.chain.heads
    deadline_s, looked_s, seen_block = time.monotonic() + MAX_PASS_S, 0.0, ""
    while time.monotonic() < deadline_s:
        announced = heads.count()
        block = context.chain.contract.rpc.call("eth_blockNumber")
        if block == seen_block and time.monotonic() - looked_s <= LOOK_AGAIN_S:
            timeout_s = POLL_S
            if heads.live:
                timeout_s = LOOK_AGAIN_S
            heads.wait(announced, timeout_s)
            continue
        seen_block, looked_s = block, time.monotonic()
        with reading_once():
            is_open = follow_once(context)
        if not is_open:
            return False
    return False


def follow_once(context: WorkerContext) -> bool:
    """Commit the end of open transactions, with the events of jobs that their receipts
    show; then dispatch what follows. Resubmit the others as needed. Returns False when
    no transaction is open any more. The account is read before the receipts: so a nonce
    that is mined by then has a receipt, or another writer used it. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    sent_transactions = context.chain.sent_transactions
    transactions = sent_transactions.all()
    if not transactions:
        return False
    state = context.chain.account.fetch_account_state()
    receipts = _receipts(context, transactions)
    confirmed = _confirmed(context, transactions, receipts)
    mined, waiting = list[Mined](), list[Sent]()
    for entry in transactions:
        if entry.id in confirmed:
            mined.append(Mined.from_receipt(entry, confirmed[entry.id]))
        elif entry.id not in receipts:
            waiting.append(entry)
    if mined:
        read_s = time.time()
        reverted = sent_transactions.why_reverted(mined)
        _log_results(mined, reverted)
        logs = _logs(confirmed.values())
        events = decode_logs(context.ledger, context.chain.contract, logs)
        changes = [JobChange(entry.job_id, entry.event) for entry in events]
        changes += _statuses_on_chain(context, mined)
        context.ledger.record(
            *changes,
            also=lambda connection: sent_transactions.close(
                connection, mined, reverted
            ),
        )
        _trace(context, mined, events, read_s)
        _dispatch_what_follows(context, mined, reverted)
    resubmit_pending(context, waiting, state)
    return len(mined) < len(transactions)


def _receipts(
    context: WorkerContext, transactions: Sequence[Sent]
) -> dict[int, dict[str, Any]]:
    """The receipts, by the transaction's id; any of its signatures may be the mined
    one.
    """
    asked = [(entry.id, tx_hash) for entry in transactions for tx_hash in entry.hashes]
    with crash_point(CrashPoint.RECEIPT_READ):
        answers = context.chain.contract.rpc.batch(
            [("eth_getTransactionReceipt", (tx_hash,)) for _, tx_hash in asked]
        )
    found = dict[int, dict[str, Any]]()
    for (row_id, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, dict):  # neither None nor a rejection
            found[row_id] = answer
    return found


def _confirmed(
    context: WorkerContext,
    transactions: Sequence[Sent],
    receipts: dict[int, dict[str, Any]],
) -> dict[int, dict[str, Any]]:
    """The receipts whose events a second endpoint shows too. The others are mined, and
    are read once it shows them. So is a receipt that names another transaction, itself
    or in a log: the second endpoint would be asked about that one.
    """
    receipts = {
        entry.id: receipts[entry.id]
        for entry in transactions
        if entry.id in receipts and _is_of(entry, receipts[entry.id])
    }
    contract = context.chain.contract
    events, _ = contract.decode_events(_logs(receipts.values()))
    to_confirm = _without_own_results(transactions, events)
    doubted = unconfirmed_transactions(
        context.ledger, contract, to_confirm, by="receipts"
    )
    return {
        row_id: receipt
        for row_id, receipt in receipts.items()
        if receipt["transactionHash"] not in doubted
    }


def _without_own_results(
    transactions: Sequence[Sent], events: Sequence[ChainEvent]
) -> list[ChainEvent]:
    """The events without the statuses that our own transactions report: the ledger
    decided these before any endpoint showed them.
    """
    own = {
        tx_hash: (entry.job_id, entry.purpose)
        for entry in transactions
        for tx_hash in entry.hashes
    }
    return [
        entry
        for entry in events
        if not isinstance(entry.event, ChainStatusObserved)
        or own[entry.tx_hash] != (entry.job_id, _purpose_of(entry.event.status))
    ]


def _purpose_of(status: ChainStatus) -> str:
    """The purpose of our transactions that give a job this status."""
    if status < ChainStatus.SCHEDULED:
        return Purpose.RETURN_JOB
    return report_purpose(status)


def _is_of(transaction: Sent, receipt: dict[str, Any]) -> bool:
    named = {entry["transactionHash"] for entry in (receipt, *receipt["logs"])}
    if len(named) == 1 and named <= set(transaction.hashes):
        return True
    log.warning(
        "receipt_of_another_transaction",
        asked=list(transaction.hashes),
        named=sorted(named),
    )
    return False


def _logs(receipts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return chain.from_iterable(receipt["logs"] for receipt in receipts)


def _log_results(mined: Sequence[Mined], reverted: Mapping[int, RevertedError]) -> None:
    for result in mined:
        error = None
        if not result.success:
            error = str(reverted[result.sent.id])
        log.info(
            "transaction_mined" if result.success else "transaction_reverted",
            purpose=result.sent.purpose,
            job_id=result.sent.job_id,
            tx_hash=result.hash,
            block=result.block_number,
            error=error,
        )


def _statuses_on_chain(
    context: WorkerContext, mined: Sequence[Mined]
) -> list[JobChange]:
    """The contract's status of the jobs whose transaction reverted, not older than that
    transaction's block. An end that no second endpoint shows is left out: the report's
    next try asks for it.
    """
    failed = _failed(mined)
    if not failed:
        return []
    contract = context.chain.contract
    statuses = contract.statuses(sorted(failed), not_before=max(failed.values()))
    unconfirmed = unconfirmed_ends(context.ledger, contract, statuses, by="reverts")
    return [
        JobChange(job_id, ChainStatusObserved(status))
        for job_id, (status, _) in statuses.items()
        if job_id not in unconfirmed
    ]


def _failed(mined: Sequence[Mined]) -> dict[JobId, int]:
    """The jobs whose transaction reverted, with the last block of such a one."""
    failed = dict[JobId, int]()
    for result in mined:
        if result.sent.job_id and not result.success:
            job_id = JobId(result.sent.job_id)
            failed[job_id] = max(failed.get(job_id, 0), result.block_number)
    return failed


def _dispatch_what_follows(
    context: WorkerContext,
    mined: Sequence[Mined],
    reverted: Mapping[int, RevertedError],
) -> None:
    claim_backoff.record_results(context.ledger, mined, reverted)
    _dispatch_after_claims(context, mined)
    if failed := _failed(mined):
        context.ledger.effects.reschedule_now(
            list(failed),
            (EffectKind.REPORT, EffectKind.RETURN_JOB),
            "its transaction was mined and reverted",
        )


def _dispatch_after_claims(context: WorkerContext, mined: Sequence[Mined]) -> None:
    """Dispatch the claim if a full batch was mined: there may be more jobs. The next
    block's look comes a block later. At a site that makes accounts, dispatch that too:
    a customer who requested before our first look at the chain has none yet.
    """
    claims = sum(result.sent.purpose == Purpose.CLAIM for result in mined)
    if claims >= context.chain.claim_batch:
        context.dispatch("claim")
    if claims and context.directory is not None:
        context.dispatch("accounts")


def _trace(
    context: WorkerContext,
    mined: Sequence[Mined],
    events: Sequence[ChainEvent],
    read_s: float,
) -> None:
    """Trace the transactions about jobs, from the last signature to the receipt. A
    claim is about the job it got.
    """
    claimed = {
        entry.tx_hash: entry.job_id
        for entry in events
        if isinstance(entry.event, Claimed)
    }
    for result in mined:
        job_id = result.sent.job_id or claimed.get(result.hash)
        if job_id is not None:
            context.tracer.span(
                JobId(job_id),
                f"transaction {result.sent.purpose}",
                read_s - result.sent.signed_age_s,
                read_s,
                tx_hash=result.hash,
                block=result.block_number,
                success=result.success,
            )
