"""What a call would cost in gas, or why it is not to be written: eth_estimateGas finds that out for nothing."""

from supervisor_tasks.chain.codec import Revert, decode_revert
from supervisor_tasks.chain.refusals import over_the_limit
from supervisor_tasks.chain.rpc import RpcError, RpcUnavailableError
from supervisor_tasks.errors import PermanentError

GAS_MARGIN = 1.3  # on an estimate: the state may have changed by the time the transaction is mined


class RevertedError(PermanentError):
    """The contract would refuse, or has refused; `revert` says why."""

    def __init__(self, revert: Revert) -> None:
        super().__init__(f"the contract reverts with {revert}")
        self.revert = revert


class GivenUpError(RevertedError):
    """No node took it, and its nonce went to a transaction that does nothing."""

    def __init__(self) -> None:
        super().__init__(Revert("GivenUp", ()))
        self.args = ("no node took it: a transaction that does nothing has used up its nonce",)


class TooMuchGasError(PermanentError):
    """No block holds the gas that the call needs."""

    def __init__(self, limit: int, said: str) -> None:
        super().__init__(f"it needs more gas than a block holds, which is {limit}: {said}")


class NoEstimateError(RpcUnavailableError):
    """The node gives no estimate for one call, and does not say that it reverts; others have theirs. Again later."""


Estimate = int | RevertedError | TooMuchGasError | NoEstimateError


def estimated(answer: str | RpcError, limit: int) -> Estimate:
    """What an answer to eth_estimateGas means, where a block holds so much gas."""
    if not isinstance(answer, RpcError):
        gas = int(answer, 16)
        return min(int(gas * GAS_MARGIN), limit) if gas <= limit else TooMuchGasError(limit, f"it takes {gas}")
    if answer.reverted:
        return RevertedError(decode_revert(answer.data))
    if over_the_limit(answer.message):
        return TooMuchGasError(limit, str(answer))
    return NoEstimateError(f"the node gives no estimate: {answer}")
