"""Scan: the chain's logs from the cursor on, for whatever no receipt told us."""

import structlog

from supervisor_tasks.events import ChainSaw
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site

log = structlog.get_logger()

STREAM = "contract"
BLOCKS = 1000  # in one question; nodes limit the range


def scan(site: Site) -> None:
    """Read the logs of all blocks since the last time. The first scan of a new ledger begins at the present block:
    what was claimed before it is another ledger's.
    """
    drain(site.ledger, "scan", lambda: _scan(site))


def _scan(site: Site) -> bool:
    contract, ledger = site.chain.contract, site.ledger
    head = int(contract.rpc.call("eth_blockNumber"), 16)
    cursor = ledger.cursor(STREAM)
    first = head if cursor is None else cursor[0] + 1
    if first > head:
        return False
    last = min(head, first + BLOCKS - 1)
    block = contract.rpc.call("eth_getBlockByNumber", hex(last), False)
    happened = contract.happened(contract.logs(first, last))
    known = ledger.jobs({entry.job_id for entry in happened})
    changes = [
        Change(entry.job_id, entry.event)
        for entry in happened
        if entry.job_id in known or not isinstance(entry.event, ChainSaw)
    ]
    ledger.record(*changes, also=lambda connection: ledger.set_cursor(connection, STREAM, last, block["hash"]))
    return last < head
