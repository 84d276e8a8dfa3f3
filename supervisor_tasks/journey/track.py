"""Track: what became of the transactions, and what their receipts tell of jobs."""

import time
from typing import Any

import structlog

from supervisor_tasks.chain.rpc import RpcError
from supervisor_tasks.chain.wallet import Mined, RevertedError, Sent
from supervisor_tasks.events import ChainSaw
from supervisor_tasks.job import JobId
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site

log = structlog.get_logger()

POLL_S = 0.05  # between two questions for a new block while something is to be mined
LONGEST_S = 20.0  # then the worker's thread is free again, and a tick goes on


def track(site: Site) -> None:
    """Follow all open transactions until they are mined, in one batch a block."""
    drain(site.ledger, "track", lambda: _follow(site))


def _follow(site: Site) -> bool:
    wallet, contract = site.chain.wallet, site.chain.contract
    deadline, seen_block = time.monotonic() + LONGEST_S, ""
    while time.monotonic() < deadline:
        block = contract.rpc.call("eth_blockNumber")
        if block != seen_block:
            seen_block = block
            transactions = wallet.open_transactions()
            if not transactions:
                return False
            _settle(site, transactions)
        else:
            time.sleep(POLL_S)  # nothing but asking tells that a block was mined
    return False


def _settle(site: Site, transactions: list[Sent]) -> None:
    """Commit what the receipts say; send what no node seems to have again."""
    rpc, wallet = site.chain.contract.rpc, site.chain.wallet
    receipts = rpc.batch([("eth_getTransactionReceipt", (transaction.hash,)) for transaction in transactions])
    pairs = [(sent, receipt) for sent, receipt in zip(transactions, receipts, strict=True) if _is_receipt(receipt)]
    mined = [Mined.from_receipt(sent, receipt) for sent, receipt in pairs]
    reverted = {
        result.sent.id: wallet.why_reverted(result.sent, result.block_number) for result in mined if not result.success
    }
    happened = site.chain.contract.happened(log for _, receipt in pairs for log in receipt["logs"])
    changes = [Change(entry.job_id, entry.event) for entry in happened] + _true_statuses(site, mined, reverted)
    if mined:
        site.ledger.record(*changes, also=lambda connection: wallet.close(connection, mined, reverted))
    known = {result.sent.id for result in mined}
    wallet.send_again([sent for sent in transactions if sent.stale and sent.id not in known])


def _is_receipt(answer: Any) -> bool:
    return answer is not None and not isinstance(answer, RpcError)


def _true_statuses(site: Site, mined: list[Mined], reverted: dict[int, RevertedError]) -> list[Change]:
    """What the contract says now of the jobs whose transaction it refused."""
    for result in mined:
        log.info(
            "transaction_mined" if result.success else "transaction_reverted",
            purpose=result.sent.purpose,
            job_id=result.sent.job_id,
            tx_hash=result.sent.hash,
            block=result.block_number,
            error=None if result.success else str(reverted[result.sent.id]),
        )
    job_ids = sorted({JobId(entry.sent.job_id) for entry in mined if not entry.success and entry.sent.job_id})
    statuses = site.chain.contract.statuses(job_ids) if job_ids else {}
    return [Change(job_id, ChainSaw(status)) for job_id, (status, _) in statuses.items()]
