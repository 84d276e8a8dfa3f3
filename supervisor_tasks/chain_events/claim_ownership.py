"""Which claims on the chain are this cluster's: two fleets may share one wallet, by
mistake or because the settings of both clusters allow it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import ChainEvent, Contract
from supervisor_tasks.chain.rpc.client import RpcUnavailableError, require
from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.transactions import TransactionStore
from supervisor_tasks.wallet.raw_transaction import extract_tag

log = structlog.get_logger()


def drop_foreign_claims(
    ledger: Ledger, contract: Contract, events: Sequence[ChainEvent]
) -> list[ChainEvent]:
    """The events without the claims of another ledger, or another cluster of this one,
    that writes with the same key: their fleets handle them. This ledger remembers those
    of other ledgers and raises an alarm.
    """
    ours, others = classify_claims(ledger, contract, events)
    if others:
        ledger.foreign_claims.store(others)
        about = {
            "address": contract.provider,
            "claims": len(others),
            "some": [entry.claim.claim_key for entry in others[:3]],
        }
        ledger.alarms.on(AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT, **about)
    return ours


def classify_claims(
    ledger: Ledger,
    contract: Contract,
    events: Sequence[ChainEvent],
    *,
    old: bool = False,
) -> tuple[list[ChainEvent], list[ForeignClaim]]:
    """The events without the claims of other ledgers and other clusters; and the claims
    of other ledgers. A claim that carries our tag, or a tag that was taken over, is
    ours even when the ledger no longer has it (a backup was restored). A claim without
    any tag was made by hand, and this ledger runs its job. `claim_known_to_ledger` is
    false for all of these. A claim that another cluster of the ledger already has is
    that cluster's, also if its tag says otherwise. With `old`, the node may have
    lost a transaction; its claim then counts as one without a tag.
    """
    claims = {entry.tx_hash for entry in events if isinstance(entry.event, Claimed)}
    if not claims:
        return list(events), []
    transactions = TransactionStore(ledger.engine, ledger.cluster, contract.chain_id)
    partners = ledger.wallets.partners(contract.chain_id, contract.provider)
    writers = transactions.writers(claims)
    of_partners = {tx_hash for tx_hash in claims if writers.get(tx_hash) in partners}
    of_partners |= _claimed_elsewhere(ledger, events, writers)
    unknown, foreign = claims - writers.keys(), dict[str, bytes | None]()
    if unknown:
        tags = _tags(contract, sorted(unknown), old)
        by_tag, foreign = _split_tags(
            tags, *_known_tags(ledger, transactions, partners)
        )
        of_partners |= by_tag
    return _split_claims(
        _without_claims(events, of_partners), unknown - of_partners, foreign
    )


def _claimed_elsewhere(
    ledger: Ledger, events: Sequence[ChainEvent], writers: Mapping[str, str]
) -> set[str]:
    """The transactions of claims that this cluster has not written, and that another
    cluster already has. Which clusters share the wallet changes, and with it whose an
    old claim would be.
    """
    claims = dict[str, str]()  # transactions by claim keys
    job_ids = set[str]()
    for entry in events:
        is_own = writers.get(entry.tx_hash) == ledger.cluster
        if isinstance(entry.event, Claimed) and not is_own:
            claims[entry.event.claim_key] = entry.tx_hash
            job_ids.add(entry.job_id)
    if not claims:
        return set()
    taken = ledger.wallets.claims_elsewhere(job_ids)
    return {claims[key] for key in claims.keys() & taken}


def _split_tags(
    tags: Mapping[str, bytes | None],
    ours: Collection[bytes | None],
    of_partners: Collection[bytes | None],
) -> tuple[set[str], dict[str, bytes | None]]:
    """The transactions that carry a tag of clusters that share the wallet; and those of
    other ledgers with their tags.
    """
    others = {tx_hash: tag for tx_hash, tag in tags.items() if tag not in ours}
    partners = {tx_hash for tx_hash, tag in others.items() if tag in of_partners}
    foreign = {
        tx_hash: tag for tx_hash, tag in others.items() if tx_hash not in partners
    }
    log.info(
        "claims_of_unknown_origin",
        number=len(tags),
        others=len(foreign),
        first=min(tags),
    )
    return partners, foreign


def _known_tags(
    ledger: Ledger, transactions: TransactionStore, partners: Collection[str]
) -> tuple[set[bytes | None], set[bytes | None]]:
    """The tags of this cluster's claims, and those of the clusters that share its
    wallet. A claim without a tag, made by hand, is of the first cluster by name: one of
    them alone must run its job.
    """
    ours: set[bytes | None] = {
        transactions.instance_tag(),
        *ledger.foreign_claims.adopted_tags(),
    }
    others = set[bytes | None]()
    if partners:
        others |= transactions.tags_of(
            partners
        ) | ledger.foreign_claims.adopted_tags_of(partners)
    first = min([ledger.cluster, *partners])
    if first == ledger.cluster:
        ours.add(None)
    else:
        others.add(None)
    return ours, others


def _without_claims(
    events: Sequence[ChainEvent], hashes: Collection[str]
) -> list[ChainEvent]:
    """The events without the claims of these transactions."""
    return [
        entry
        for entry in events
        if entry.tx_hash not in hashes or not isinstance(entry.event, Claimed)
    ]


def _split_claims(
    events: Sequence[ChainEvent],
    unknown: Collection[str],
    foreign: Mapping[str, bytes | None],
) -> tuple[list[ChainEvent], list[ForeignClaim]]:
    """The events without the claims in `foreign` transactions, and those claims.
    `unknown` transactions are not in the ledger.
    """
    kept, others = list[ChainEvent](), list[ForeignClaim]()
    for entry in events:
        if not isinstance(entry.event, Claimed) or entry.tx_hash not in unknown:
            kept.append(entry)
            continue
        claim = replace(entry.event, claim_known_to_ledger=False)
        tag = foreign.get(entry.tx_hash)
        if tag is None:
            kept.append(replace(entry, event=claim))
        else:
            others.append(ForeignClaim(tag, claim))
    return kept, others


def _tags(
    contract: Contract, hashes: Sequence[str], old: bool
) -> dict[str, bytes | None]:
    """The tag that each transaction carries; None without one. Raises
    RpcUnavailableError when the node does not know a transaction that is not `old`.
    """
    answers = contract.rpc.batch(
        [("eth_getTransactionByHash", (tx_hash,)) for tx_hash in hashes]
    )
    tags = dict[str, bytes | None]()
    for tx_hash, answer in zip(hashes, answers, strict=True):
        if require(answer) is not None:
            tags[tx_hash] = extract_tag(bytes.fromhex(answer["input"][2:]))
        elif old:
            tags[tx_hash] = None
        else:
            raise RpcUnavailableError(
                f"the node does not know {tx_hash}, whose log it showed"
            )
    return tags
