"""Track: follow sent transactions until they are mined, and record what their receipts show about jobs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from supervisor_tasks.chain.rpc.client import RpcError
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.indexer.cross_check import unconfirmed
from supervisor_tasks.indexer.event_logs import decode_logs
from supervisor_tasks.jobs import claim_backoff
from supervisor_tasks.jobs.events import ChainStatusObserved, Claimed
from supervisor_tasks.jobs.exclusive_run import run_exclusive
from supervisor_tasks.jobs.model import EffectKind, JobId
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.read_once import reading_once
from supervisor_tasks.ledger.transactions import Mined, Sent
from supervisor_tasks.wallet.gas import RevertedError
from supervisor_tasks.wallet.resubmit import resubmit_pending

log = structlog.get_logger()

POLL_S = 0.05  # between two questions for a new block while transactions are open and no subscription announces blocks
TEND_EVERY_S = 1.0  # open transactions are looked at this often, also when no block comes
MAX_PASS_S = 20.0  # of one pass; then the worker's thread is free again, and the tick is written


def collect_receipts(context: WorkerContext) -> None:
    """Follow all open transactions until they are mined, in one batch per block."""
    run_exclusive(context.ledger, "collect_receipts", lambda: _follow(context))


def _follow(context: WorkerContext) -> bool:
    deadline, tended_s, seen_block, heads = time.monotonic() + MAX_PASS_S, 0.0, "", context.chain.heads
    while time.monotonic() < deadline:
        announced = heads.count()
        block = context.chain.contract.rpc.call("eth_blockNumber")
        if block != seen_block or time.monotonic() - tended_s > TEND_EVERY_S:
            seen_block, tended_s = block, time.monotonic()
            with reading_once():
                goes_on = follow_once(context)
            if not goes_on:
                return False
        else:
            heads.wait(announced, TEND_EVERY_S if heads.live else POLL_S)
    return False


def follow_once(context: WorkerContext) -> bool:
    """Commit what the receipts show about the open transactions, and resubmit the others as needed. Returns False when
    no transaction is open any more. The account is read before the receipts: so a nonce that is mined by then has a
    receipt, or another writer used it.
    """
    wallet = context.chain.wallet
    transactions = wallet.open_transactions()
    if not transactions:
        return False
    state = wallet.fetch_account_state()
    receipts = _receipts(context, transactions)
    sure = _confirmed(context, receipts)
    mined = [Mined.from_receipt(entry, sure[entry.id]) for entry in transactions if entry.id in sure]
    if mined:
        _settle(context, mined, list(sure.values()))
    resubmit_pending(context, [entry for entry in transactions if entry.id not in receipts], state)
    return len(mined) < len(transactions)


def _receipts(context: WorkerContext, transactions: Sequence[Sent]) -> dict[int, dict[str, Any]]:
    """The receipts, by the transaction's id; any of its signatures may be the mined one."""
    asked = [(entry.id, tx_hash) for entry in transactions for tx_hash in entry.hashes]
    with crash_point(CrashPoint.RECEIPT_READ):
        answers = context.chain.contract.rpc.batch([("eth_getTransactionReceipt", (tx_hash,)) for _, tx_hash in asked])
    pairs = zip(asked, answers, strict=True)
    return {row_id: answer for (row_id, _), answer in pairs if answer is not None and not isinstance(answer, RpcError)}


def _confirmed(context: WorkerContext, receipts: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The receipts whose events a second endpoint shows too. The others are mined, and are read once it shows them."""
    contract = context.chain.contract
    happened, _ = contract.decode_events(entry for receipt in receipts.values() for entry in receipt["logs"])
    doubted = unconfirmed(context.ledger, contract, happened)
    return {row_id: receipt for row_id, receipt in receipts.items() if receipt["transactionHash"] not in doubted}


def _settle(context: WorkerContext, mined: list[Mined], receipts: list[dict[str, Any]]) -> None:
    wallet, read_s = context.chain.wallet, time.time()
    reverted = wallet.why_reverted(mined)
    happened = decode_logs(
        context.ledger, context.chain.contract, (entry for receipt in receipts for entry in receipt["logs"])
    )
    changes = [JobChange(entry.job_id, entry.event) for entry in happened] + _true_statuses(context, mined, reverted)
    context.ledger.record(*changes, also=lambda connection: wallet.close(connection, mined, reverted))
    _trace(
        context, mined, {entry.tx_hash: entry.job_id for entry in happened if isinstance(entry.event, Claimed)}, read_s
    )
    claim_backoff.record_results(context.ledger, mined, reverted)
    _claim_more(context, mined)
    again = [result.sent.job_id for result in mined if not result.success and result.sent.job_id]
    if again:
        context.ledger.effects.reschedule_now(
            again, (EffectKind.REPORT, EffectKind.RETURN_JOB), "its transaction was mined and reverted"
        )


def _claim_more(context: WorkerContext, mined: Sequence[Mined]) -> None:
    """Wake the claim if a full batch was mined: there may be more jobs. The next block's look comes a block later."""
    if sum(result.sent.purpose == "claim" for result in mined) >= context.chain.claim_batch:
        context.chain.wake("claim")


def _trace(context: WorkerContext, mined: Sequence[Mined], claimed: Mapping[str, JobId], read_s: float) -> None:
    """Tell of the transactions about jobs, from the last signature to the receipt. A claim is of the job that it got."""
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


def _log_mined(result: Mined, reverted: Mapping[int, RevertedError]) -> None:
    log.info(
        "transaction_mined" if result.success else "transaction_reverted",
        purpose=result.sent.purpose,
        job_id=result.sent.job_id,
        tx_hash=result.hash,
        block=result.block_number,
        error=None if result.success else str(reverted[result.sent.id]),
    )


def _true_statuses(context: WorkerContext, mined: list[Mined], reverted: dict[int, RevertedError]) -> list[JobChange]:
    """The contract's present status of the jobs whose transactions it refused. A job that the contract does not have is
    left out: its request was in a block that is lost, and the scan finds that.
    """
    for result in mined:
        _log_mined(result, reverted)
    failed = [entry for entry in mined if not entry.success and entry.sent.job_id]
    if not failed:
        return []
    job_ids = sorted({JobId(entry.sent.job_id or "") for entry in failed})
    statuses = context.chain.contract.statuses(job_ids, not_before=max(entry.block_number for entry in failed))
    return [JobChange(job_id, ChainStatusObserved(status)) for job_id, (status, _) in statuses.items()]
