"""A provider that the contract does not know: all zero, as the field's contract
answers, or a revert, as another may.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from supervisor_tasks.chain.abi_codec import function
from supervisor_tasks.chain.contract import Addresses, Contract
from supervisor_tasks.chain.rpc.client import Call, Rpc, RpcError, RpcUnavailableError
from supervisor_tasks.jobs.model import Address

PROVIDER = Address("0x" + "3" * 40)
ZERO = "0x" + "0" * 40
FALSE = "0x" + "0" * 64
NODE_GONE = RpcError(-32000, "header not found")
ALL_ZERO = (
    "0x"
    + encode(
        function("ProviderManager", "getProvider").outputs,
        [(ZERO, (0, [], [], []), (0, 0, 0), [], False)],
    ).hex()
)
REVERTS = [
    RpcError(3, "execution reverted", "0x" + keccak(text=f"{name}()")[:4].hex())
    for name in ("NoProvider", "WaitingApprovalOnly")
]


class Node(Rpc):
    """Answers as it is told."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers

    def call(self, method: str, *params: Any) -> Any:
        assert (method, params) == ("eth_blockNumber", ())
        return "0x7"

    def batch(self, calls: Sequence[Call], at_once: int = 0) -> list[Any]:  # noqa: ARG002
        assert len(calls) == len(self._answers)
        return list(self._answers)


def contract(*answers: Any) -> Contract:
    known = Contract(Node(answers), 1, ZERO, PROVIDER)
    known._addresses = Addresses(*[Address(ZERO)] * len(Addresses.__dataclass_fields__))
    return known


@pytest.mark.parametrize(
    "answer", [ALL_ZERO, *REVERTS], ids=["zeros", "NoProvider", "WaitingApprovalOnly"]
)
def test_on_offer__unknown_provider__nothing_is_on_offer(answer: Any) -> None:
    found = contract(answer, answer, FALSE).on_offer()
    assert (found.registered, found.waiting, found.banned, found.block) == (
        None,
        None,
        False,
        7,
    )


def test_on_offer__node_that_cannot_say__is_no_answer() -> None:
    with pytest.raises(RpcUnavailableError, match="header not found"):
        contract(NODE_GONE, ALL_ZERO, FALSE).on_offer()
