"""Claims from before this ledger's first scan, ours and other ledgers': read backwards, some at each sweep, and more of them
between sweeps.
"""

import time
from functools import partial
from typing import Any

from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.events import Claimed
from supervisor_tasks.job import Address, JobId
from supervisor_tasks.journey.heard import heard
from supervisor_tasks.journey.ours import by_whom
from supervisor_tasks.journey.scan import STREAM
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.others import OthersClaim
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.site import Site
from supervisor_tasks.view import View, claimed

HISTORY = "history"  # the cursor that goes backwards: all claims since that block are known
HISTORY_QUESTIONS = 5  # a sweep; each for as many blocks as the node answers for
HISTORY_AT_ONCE_S = 20.0  # between sweeps


def is_left(site: Site) -> bool:
    """Whether older claims are to be read still."""
    read, provider = site.ledger.cursors.of(HISTORY), site.ledger.facts.get(PROVIDER)
    return provider is not None and read is not None and read[0] > site.sweep.start_block


def read_on(site: Site) -> bool:
    """Read older claims as long as there is time and none of them matters: for the first that does, a sweep is asked for, which
    reads it again. SLURM is asked for nothing.
    """
    ledger, provider = site.ledger, site.ledger.facts.get(PROVIDER)
    contract = site.sweep.contract_of(Address(provider or ""))
    until_s = time.monotonic() + HISTORY_AT_ONCE_S
    while is_left(site) and time.monotonic() < until_s and not ledger.sweeps.due():
        claims, others, first = read(site, contract)
        found = claims.keys() | others.keys()
        unknown = found - ledger.sweeps.named(found, ()).keys()
        block = int(contract.rpc.call("eth_blockNumber"), 16)
        view = View(provider=contract.provider, comment="", jobs={}, chain=contract.on_chain([*unknown], block))
        if any(claimed(job_id, view) for job_id in unknown):
            ledger.sweeps.ask("a claim from before this ledger's first scan")
        elif first is not None:
            keep(ledger, first)
    return False


def keep(ledger: Ledger, first: int) -> None:
    """Write down that all claims since that block are known."""
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, HISTORY, first, "")


def read(site: Site, contract: Contract) -> tuple[dict[JobId, Claimed], dict[JobId, OthersClaim], int | None]:
    """The claims of blocks that were mined before this ledger's first scan, ours and others', the latest blocks first, some
    at each sweep; and the first block that was read, or None before the first scan.
    """
    scanned, read = site.ledger.cursors.of(STREAM), site.ledger.cursors.of(HISTORY)
    start_block = site.sweep.start_block
    if scanned is None:
        return {}, {}, None
    first = read[0] if read is not None else scanned[0] + 1
    claims: dict[JobId, Claimed] = {}
    others: dict[JobId, OthersClaim] = {}
    for _ in range(HISTORY_QUESTIONS):
        if first <= start_block:
            break
        first, logs = site.sweep.reach.ask(partial(_logs, contract, start_block, first - 1))
        happened = heard(site.ledger, contract, logs)
        of_claims = [entry for entry in happened if isinstance(entry.event, Claimed)]
        ours, strange = by_whom(site.ledger, contract, of_claims, old=True)
        for entry in reversed(ours):
            if isinstance(entry.event, Claimed):
                claims.setdefault(entry.job_id, entry.event)
        for other in reversed(strange):
            others.setdefault(other.claim.job_id, other)
    return claims, others, first


def _logs(contract: Contract, start_block: int, last: int, most_blocks: int) -> tuple[int, list[dict[str, Any]]]:
    """The logs of so many blocks up to the last, and the first of these."""
    first = max(start_block, last + 1 - most_blocks)
    method, params = contract.logs_call(first, last)
    return first, contract.rpc.call(method, *params)
