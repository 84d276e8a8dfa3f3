"""The gas that a call needs, or why the call must not be sent: eth_estimateGas finds
that out at no cost.
"""

from supervisor_tasks.chain.abi_codec import Revert, decode_revert
from supervisor_tasks.chain.rpc.client import RpcError, RpcUnavailableError
from supervisor_tasks.chain.rpc.node_errors import over_the_limit
from supervisor_tasks.errors import PermanentError

# factor on an estimate: the state may change before the transaction is mined
GAS_MARGIN = 1.3


class RevertedError(PermanentError):
    """The contract rejects the call, or has rejected it; `revert` gives the reason."""

    def __init__(self, revert: Revert) -> None:
        super().__init__(f"the contract reverts with {revert}")
        self.revert = revert


class GivenUpError(RevertedError):
    """No node took the transaction; one that does nothing used up its nonce."""

    def __init__(self) -> None:
        super().__init__(Revert("GivenUp", ()))
        self.args = (
            "no node took it: a transaction that does nothing has used up its nonce",
        )


class TooMuchGasError(PermanentError):
    """The call needs more gas than a block holds."""

    def __init__(self, limit: int, detail: str) -> None:
        super().__init__(
            f"it needs more gas than a block holds, which is {limit}: {detail}"
        )


class NoEstimateError(RpcUnavailableError):
    """The node gives no estimate for this call and reports no revert; other calls have
    estimates. Retry later.
    """


Estimate = int | RevertedError | TooMuchGasError | NoEstimateError


def estimated(answer: str | RpcError, limit: int) -> Estimate:
    """What an answer to eth_estimateGas means; `limit` is the gas that a block
    holds.
    """
    if not isinstance(answer, RpcError):
        gas = int(answer, 16)
        if gas > limit:
            return TooMuchGasError(limit, f"it takes {gas}")
        return min(int(gas * GAS_MARGIN), limit)
    if answer.reverted:
        return RevertedError(decode_revert(answer.data))
    if over_the_limit(answer.message):
        return TooMuchGasError(limit, str(answer))
    return NoEstimateError(f"the node gives no estimate: {answer}")
