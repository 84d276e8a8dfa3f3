"""Which claims that the chain tells of are this ledger's: two fleets may share one wallet by mistake."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from supervisor_tasks.chain.book import Book
from supervisor_tasks.chain.contract import Contract, Happened
from supervisor_tasks.chain.rpc import RpcUnavailableError, require
from supervisor_tasks.chain.signed import mark_of
from supervisor_tasks.events import Claimed
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.others import OthersClaim
from supervisor_tasks.ledger.store import Ledger

log = structlog.get_logger()


def without_others_claims(ledger: Ledger, contract: Contract, happened: Sequence[Happened]) -> list[Happened]:
    """What happened, without the claims of another ledger that writes with the same key: they are its business. They are
    remembered, and the operator is called.
    """
    ours, others = by_whom(ledger, contract, happened)
    if others:
        ledger.others.keep(others)
        about = {
            "address": contract.provider,
            "claims": len(others),
            "some": [entry.claim.claim_key for entry in others[:3]],
        }
        ledger.alarms.on(AlarmName.FOREIGN_WRITER, **about)
    return ours


def by_whom(
    ledger: Ledger, contract: Contract, happened: Sequence[Happened], *, old: bool = False
) -> tuple[list[Happened], list[OthersClaim]]:
    """What happened, without the claims of other ledgers; and those. A claim that bears our mark, or one that was taken over,
    is ours even when the ledger has forgotten it (a backup was restored); one without any mark was made by hand, and somebody
    has to run the job. None of these is `signed_here`. Of `old` ones a node may have forgotten the bytes.
    """
    book = Book(ledger.engine, ledger.cluster, contract.chain_id)
    claims = {entry.tx_hash for entry in happened if isinstance(entry.event, Claimed)}
    unknown = claims - book.ours(claims) if claims else set()
    if not unknown:
        return list(happened), []
    ours = {None, book.mark(), *ledger.others.taken()}
    strange = {tx_hash: mark for tx_hash, mark in _marks(contract, sorted(unknown), old).items() if mark not in ours}
    log.info("claims_of_unknown_origin", number=len(unknown), others=len(strange), first=min(unknown))
    kept, others = list[Happened](), list[OthersClaim]()
    for entry in happened:
        if not isinstance(entry.event, Claimed) or entry.tx_hash not in unknown:
            kept.append(entry)
            continue
        claim, mark = replace(entry.event, signed_here=False), strange.get(entry.tx_hash)
        if mark is None:
            kept.append(replace(entry, event=claim))
        else:
            others.append(OthersClaim(mark, claim))
    return kept, others


def _marks(contract: Contract, hashes: Sequence[str], old: bool) -> dict[str, bytes | None]:
    """The mark that each transaction bears."""
    answers = contract.rpc.batch([("eth_getTransactionByHash", (tx_hash,)) for tx_hash in hashes])
    marks = {}
    for tx_hash, answer in zip(hashes, answers, strict=True):
        if require(answer) is None and not old:
            raise RpcUnavailableError(f"the node does not know {tx_hash}, whose log it showed")
        marks[tx_hash] = None if answer is None else mark_of(bytes.fromhex(answer["input"][2:]))
    return marks
