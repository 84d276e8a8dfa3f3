"""Which claims that the chain tells of are this ledger's: two fleets may share one wallet by mistake."""

from collections.abc import Sequence

import structlog

from supervisor_tasks.chain.contract import Happened
from supervisor_tasks.chain.rpc import RpcUnavailableError, require
from supervisor_tasks.chain.signed import mark_of
from supervisor_tasks.events import Claimed
from supervisor_tasks.site import Site

log = structlog.get_logger()


def without_others_claims(site: Site, happened: Sequence[Happened]) -> list[Happened]:
    """What happened, without the claims of another ledger that writes with the same key: they are its business, and the
    operator is called. A claim that bears our mark is ours even when the ledger has forgotten it (a backup was restored); one
    without any mark was made by hand, and somebody has to run the job.
    """
    wallet = site.chain.wallet
    claims = {entry.tx_hash for entry in happened if isinstance(entry.event, Claimed)}
    unknown = sorted(claims - wallet.book.ours(claims)) if claims else []
    if not unknown:
        return list(happened)
    answers = site.chain.contract.rpc.batch([("eth_getTransactionByHash", (tx_hash,)) for tx_hash in unknown])
    others = set()
    for tx_hash, answer in zip(unknown, answers, strict=True):
        if require(answer) is None:
            raise RpcUnavailableError(f"the node does not know {tx_hash}, whose log it showed")
        mark = mark_of(bytes.fromhex(answer["input"][2:]))
        log.warning("claim_of_unknown_origin", tx_hash=tx_hash, marked=mark is not None)
        if mark is not None and mark != wallet.book.mark():
            others.add(tx_hash)
    if others:
        wallet.alarm_of_foreign(claims=len(others), tx_hash=min(others))
    return [entry for entry in happened if not (isinstance(entry.event, Claimed) and entry.tx_hash in others)]
