"""Nonces that the chain reports and the ledger has not signed."""

from supervisor_tasks.chain.rpc.client import Rpc, RpcUnavailableError
from supervisor_tasks.chain.rpc.endpoint_health import (
    MIN_AGREEING_ENDPOINTS,
    PATIENCE_S,
)
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.chain.rpc.unanswered import BUSY_COUNTS_LESS


def confirmed_nonces(rpc: Rpc, address: str, reported: int) -> int:
    """How many of the address's transactions are mined, when one endpoint reported so
    many: at most what a second endpoint shows. A transaction that is signed behind a
    false nonce is never mined, and one that does nothing would have to fill each nonce
    before it. With one endpoint, and when the others have been away for PATIENCE_S (or
    busy for BUSY_COUNTS_LESS times as long), the report counts. Raises
    RpcUnavailableError until then; a retry helps.
    """
    if not isinstance(rpc, Endpoints) or rpc.number < MIN_AGREEING_ENDPOINTS:
        return reported
    answers = rpc.each([("eth_getTransactionCount", (address, "latest"))])
    counts = sorted((int(count, 16) for (count,) in answers.values()), reverse=True)
    if len(counts) >= MIN_AGREEING_ENDPOINTS:
        return min(reported, counts[MIN_AGREEING_ENDPOINTS - 1])
    if rpc.alone_for_s() > PATIENCE_S:
        return reported
    raise RpcUnavailableError(
        f"one endpoint reports {reported} transactions of {address}, which the ledger has not all signed;"
        f" expected a second endpoint to show them: nothing is signed until one does, or for {PATIENCE_S:.0f} s,"
        f" or for {PATIENCE_S * BUSY_COUNTS_LESS:.0f} s if it is there and does not answer the question"
    )
