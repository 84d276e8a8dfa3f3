"""Whether the fleet of another ledger lives, for `supervisor job adopt`; judged without
its key and its settings.

There are three kinds of evidence. The first is its transactions on chain. The second is
its periodic runs, if both ledgers are clusters of one database. The third is its
connections, if both are databases of one server. A fleet that runs elsewhere and has
nothing to write leaves none. Only the operator can know that such a fleet is dead.
"""

from collections.abc import Iterator

from sqlalchemy import Engine

from supervisor_tasks.chain.blocks import shown_block
from supervisor_tasks.chain.rpc.client import (
    Call,
    Rpc,
    RpcError,
    RpcUnavailableError,
)
from supervisor_tasks.ledger.other_fleets import connected_fleets, last_runs
from supervisor_tasks.wallet.raw_transaction import extract_tag

WROTE_WITHIN_S = 600  # by the times of the blocks
MAX_BLOCKS = 2000  # that are read, on a chain that mines many
BLOCKS_AT_ONCE = 50
RAN_WITHIN_S = 60.0


def liveness_evidence(
    engine: Engine, cluster: str, rpc: Rpc, address: str, tag: bytes
) -> list[str]:
    """The evidence that a fleet lives, each as a sentence. The fleet is the one whose
    ledger made the tag, and that writes from the address. A chain that cannot be read
    counts as a sign, too. Raises LedgerUnavailableError, when the database does not
    answer; a retry helps.
    """
    evidence = list(_on_chain(rpc, address, tag))
    for other, age_s in last_runs(engine, cluster, tag).items():
        if age_s < RAN_WITHIN_S:
            evidence.append(
                f"it is the cluster {other!r} of this database, whose fleet was at work {age_s:.0f} s ago"
            )
    for database, number in connected_fleets(engine).items():
        evidence.append(
            f"a fleet is connected to the database {database!r} of this server ({number} connections)"
        )
    return evidence


def _on_chain(rpc: Rpc, address: str, tag: bytes) -> Iterator[str]:
    try:
        written_ago_s = _last_written(rpc, address, tag)
    except (RpcUnavailableError, RpcError) as error:
        yield f"the chain cannot be looked at: {error}"
        return
    if written_ago_s is not None:
        yield f"it wrote on chain {written_ago_s} s before the last block"


def _last_written(rpc: Rpc, address: str, tag: bytes) -> int | None:
    """How many seconds before the chain's last block the ledger's last transaction was
    mined. None if the last WROTE_WITHIN_S seconds, or the last MAX_BLOCKS blocks, have
    none.
    """
    head = int(rpc.call("eth_blockNumber"), 16)
    newest_s = 0
    for last in range(head, max(head - MAX_BLOCKS, -1), -BLOCKS_AT_ONCE):
        numbers = range(last, max(last - BLOCKS_AT_ONCE, -1), -1)
        calls: list[Call] = [
            ("eth_getBlockByNumber", (hex(number), True)) for number in numbers
        ]
        for number, answer in zip(numbers, rpc.batch(calls), strict=True):
            block = shown_block(answer, number)
            mined_s = int(block["timestamp"], 16)
            newest_s = max(newest_s, mined_s)
            if newest_s - mined_s > WROTE_WITHIN_S:
                return None
            for sent in block["transactions"]:
                if sent["from"].lower() != address.lower():
                    continue
                if extract_tag(bytes.fromhex(sent["input"][2:])) == tag:
                    return newest_s - mined_s
    return None
