"""Track: what became of the transactions, and what their receipts tell of jobs."""

import time
from collections.abc import Sequence
from typing import Any

import structlog

from supervisor_tasks.chain.book import Mined, Sent
from supervisor_tasks.chain.estimates import RevertedError
from supervisor_tasks.chain.rpc import RpcError
from supervisor_tasks.crash import Point, around
from supervisor_tasks.events import ChainSaw
from supervisor_tasks.indexer.cross_check import unconfirmed
from supervisor_tasks.job import JobId, Kind
from supervisor_tasks.journey import vain_claims
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.heard import heard
from supervisor_tasks.journey.tend import tend
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site

log = structlog.get_logger()

POLL_S = 0.05  # between two questions for a new block while something is to be mined, and no subscription tells of one
TEND_EVERY_S = 1.0  # what is not mined is looked after also where no block comes
LONGEST_S = 20.0  # then the worker's thread is free again, and a tick goes on


def track(site: Site) -> None:
    """Follow all open transactions until they are mined, in one batch a block."""
    drain(site.ledger, "track", lambda: _follow(site))


def _follow(site: Site) -> bool:
    deadline, tended_s, seen_block, heads = time.monotonic() + LONGEST_S, 0.0, "", site.chain.heads
    while time.monotonic() < deadline:
        announced = heads.count()
        block = site.chain.contract.rpc.call("eth_blockNumber")
        if block != seen_block or time.monotonic() - tended_s > TEND_EVERY_S:
            seen_block, tended_s = block, time.monotonic()
            if not follow_once(site):
                return False
        else:
            heads.wait(announced, TEND_EVERY_S if heads.live else POLL_S)
    return False


def follow_once(site: Site) -> bool:
    """Commit what the receipts say of the open transactions, and see to the others; False when none is open any more. The
    account is looked at first: a nonce that was mined by then has a receipt, or it is somebody else's.
    """
    wallet = site.chain.wallet
    transactions = wallet.open_transactions()
    if not transactions:
        return False
    state = wallet.look()
    receipts = _receipts(site, transactions)
    sure = _confirmed(site, receipts)
    mined = [Mined.from_receipt(entry, sure[entry.id]) for entry in transactions if entry.id in sure]
    if mined:
        _settle(site, mined, list(sure.values()))
    tend(site, [entry for entry in transactions if entry.id not in receipts], state)
    return len(mined) < len(transactions)


def _receipts(site: Site, transactions: Sequence[Sent]) -> dict[int, dict[str, Any]]:
    """The receipts, by the transaction's id: of whichever signature was mined."""
    asked = [(entry.id, tx_hash) for entry in transactions for tx_hash in entry.hashes]
    with around(Point.RECEIPT_READ):
        answers = site.chain.contract.rpc.batch([("eth_getTransactionReceipt", (tx_hash,)) for _, tx_hash in asked])
    pairs = zip(asked, answers, strict=True)
    return {row_id: answer for (row_id, _), answer in pairs if answer is not None and not isinstance(answer, RpcError)}


def _confirmed(site: Site, receipts: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Those whose events a second endpoint shows too; the others are mined, and are read once it does."""
    contract = site.chain.contract
    happened, _ = contract.happened(entry for receipt in receipts.values() for entry in receipt["logs"])
    doubted = unconfirmed(site.ledger, contract, happened)
    return {row_id: receipt for row_id, receipt in receipts.items() if receipt["transactionHash"] not in doubted}


def _settle(site: Site, mined: list[Mined], receipts: list[dict[str, Any]]) -> None:
    wallet = site.chain.wallet
    reverted = wallet.why_reverted(mined)
    happened = heard(site.ledger, site.chain.contract, (entry for receipt in receipts for entry in receipt["logs"]))
    changes = [Change(entry.job_id, entry.event) for entry in happened] + _true_statuses(site, mined, reverted)
    site.ledger.record(*changes, also=lambda connection: wallet.close(connection, mined, reverted))
    vain_claims.count(site.ledger, mined, reverted)
    again = [result.sent.job_id for result in mined if not result.success and result.sent.job_id]
    if again:
        site.ledger.effects.hurry(again, (Kind.REPORT, Kind.REFUSE), "its transaction was mined and reverted")


def _true_statuses(site: Site, mined: list[Mined], reverted: dict[int, RevertedError]) -> list[Change]:
    """What the contract says now of the jobs whose transaction it refused. It has nothing to say of one that it does not have:
    the job's request was in a block that is lost, which the scan finds.
    """
    for result in mined:
        log.info(
            "transaction_mined" if result.success else "transaction_reverted",
            purpose=result.sent.purpose,
            job_id=result.sent.job_id,
            tx_hash=result.hash,
            block=result.block_number,
            error=None if result.success else str(reverted[result.sent.id]),
        )
    failed = [entry for entry in mined if not entry.success and entry.sent.job_id]
    if not failed:
        return []
    job_ids = sorted({JobId(entry.sent.job_id or "") for entry in failed})
    statuses = site.chain.contract.statuses(job_ids, not_before=max(entry.block_number for entry in failed))
    return [Change(job_id, ChainSaw(status)) for job_id, (status, _) in statuses.items()]
