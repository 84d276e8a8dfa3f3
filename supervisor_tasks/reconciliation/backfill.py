"""Read the claims that were mined before this ledger's first scan, ours and other
ledgers', from the latest block backwards. Each sweep reads some of them, and the worker
reads more between sweeps.
"""

import time
from functools import partial
from typing import Any

from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.chain_events.claim_ownership import classify_claims
from supervisor_tasks.chain_events.event_logs import decode_logs
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.jobs.model import Address, JobId
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM, HISTORY_STREAM
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation.snapshot import Snapshot, is_active_and_ours

HISTORY_QUESTIONS = 5  # per sweep; each is for as many blocks as the node accepts
HISTORY_AT_ONCE_S = 20.0  # for one reading between sweeps


def has_pending_blocks(context: WorkerContext) -> bool:
    """Whether older claims are left to read. Raises LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """
    cursor = context.ledger.cursors.of(HISTORY_STREAM)
    provider = context.ledger.facts.get(PROVIDER)
    if provider is None or cursor is None:
        return False
    return cursor[0] > context.sweep.start_block


def read_next_range(context: WorkerContext) -> bool:
    """Read older claims until the time is up, a sweep is due or no claim is left. A job
    that is active, ours and unknown to the ledger needs a sweep: at its claim the
    function asks for one, which reads the claim again. No request goes to SLURM. Raises
    RpcUnavailableError or LedgerUnavailableError, when an endpoint or the database does
    not answer; a retry helps.
    """
    ledger, provider = context.ledger, context.ledger.facts.get_or(PROVIDER, "")
    contract = context.sweep.contract_of(Address(provider))
    until_s = time.monotonic() + HISTORY_AT_ONCE_S
    while has_pending_blocks(context) and time.monotonic() < until_s:
        if ledger.reconciliations.due():
            break
        claims, others, first = read_old_claims(context, contract)
        job_ids = claims.keys() | others.keys()
        unknown = job_ids - ledger.reconciliations.named(job_ids, ()).keys()
        block = int(contract.rpc.call("eth_blockNumber"), 16)
        snapshot = Snapshot(
            provider=contract.provider,
            comment="",
            jobs={},
            chain=contract.on_chain([*unknown], block),
        )
        if any(is_active_and_ours(job_id, snapshot) for job_id in unknown):
            ledger.reconciliations.request(
                "a claim from before this ledger's first scan"
            )
        elif first is not None:
            save_progress(ledger, first)
    return False


def save_progress(ledger: Ledger, first: int) -> None:
    """Store that the ledger has all claims since the block `first`. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, HISTORY_STREAM, first, "")


def read_old_claims(
    context: WorkerContext, contract: Contract
) -> tuple[dict[JobId, Claimed], dict[JobId, ForeignClaim], int | None]:
    """Read claims from blocks that were mined before this ledger's first scan, the
    latest blocks first, with at most HISTORY_QUESTIONS requests. Returns our claims,
    other ledgers' claims and the first block that was read, which is None before the
    first scan. Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint
    or the database does not answer; a retry helps.
    """
    scan = context.ledger.cursors.of(CONTRACT_STREAM)
    history = context.ledger.cursors.of(HISTORY_STREAM)
    start_block = context.sweep.start_block
    if scan is None:
        return {}, {}, None
    first = scan[0] + 1
    if history is not None:
        first = history[0]
    claims: dict[JobId, Claimed] = {}
    others: dict[JobId, ForeignClaim] = {}
    for _ in range(HISTORY_QUESTIONS):
        if first <= start_block:
            break
        first, logs = context.sweep.log_range.ask(
            partial(_logs, contract, start_block, first - 1)
        )
        events = decode_logs(context.ledger, contract, logs)
        claim_events = [entry for entry in events if isinstance(entry.event, Claimed)]
        ours, foreign = classify_claims(
            context.ledger, contract, claim_events, old=True
        )
        for entry in reversed(ours):
            if isinstance(entry.event, Claimed):
                claims.setdefault(entry.job_id, entry.event)
        for other in reversed(foreign):
            others.setdefault(other.claim.job_id, other)
    return claims, others, first


def _logs(
    contract: Contract, start_block: int, last: int, most_blocks: int
) -> tuple[int, list[dict[str, Any]]]:
    """The first of at most `most_blocks` blocks up to `last`, and the logs of these
    blocks.
    """
    first = max(start_block, last + 1 - most_blocks)
    method, params = contract.logs_call(first, last)
    return first, contract.rpc.call(method, *params)
