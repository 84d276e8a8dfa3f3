"""What the words of a node's rejection mean."""

import pytest

from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind as Error
from supervisor_tasks.chain.rpc.node_errors import classify, over_the_limit

WORDS = [
    # go-ethereum: core/error.go, core/txpool/errors.go, 1.10 to 1.16; subnet-evm and
    # coreth the same
    ("already known", Error.ALREADY_KNOWN),
    ("known transaction: 0xabc", Error.ALREADY_KNOWN),
    ("nonce too low", Error.NONCE_TOO_LOW),
    ("nonce too low: next nonce 7, tx nonce 5", Error.NONCE_TOO_LOW),
    ("nonce too low: address 0x1, tx: 5 state: 7", Error.NONCE_TOO_LOW),
    ("nonce too high: address 0x1, tx: 9 state: 7", Error.NONCE_GAP),
    ("gapped-nonce tx from delegated accounts", Error.NONCE_GAP),
    ("in-flight transaction limit reached for delegated accounts", Error.NONCE_GAP),
    ("replacement transaction underpriced", Error.REPLACEMENT_UNDERPRICED),
    (
        "replacement transaction underpriced: new tx gas fee cap 1 <= 2 queued",
        Error.REPLACEMENT_UNDERPRICED,
    ),
    ("transaction underpriced", Error.UNDERPRICED),
    ("transaction underpriced: gas tip cap 0, minimum needed 1", Error.UNDERPRICED),
    (
        "transaction underpriced: address 0x1 have gas fee cap (1) < pool minimum fee cap (25000000000)",
        Error.UNDERPRICED,
    ),
    (
        "transaction gas price below minimum: gas tip cap 0, minimum needed 1",
        Error.UNDERPRICED,
    ),
    (
        "max fee per gas less than block base fee: address 0x1, maxFeePerGas: 1, baseFee: 2",
        Error.BELOW_BASE_FEE,
    ),
    ("fee cap less than block base fee", Error.BELOW_BASE_FEE),
    ("insufficient funds for gas * price + value", Error.INSUFFICIENT_FUNDS),
    (
        "insufficient funds for gas * price + value: balance 0, tx cost 1, overshot 1",
        Error.INSUFFICIENT_FUNDS,
    ),
    ("insufficient funds for transfer", Error.INSUFFICIENT_FUNDS),
    ("txpool is full", Error.POOL_FULL),
    ("future transaction tries to replace pending", Error.POOL_FULL),
    ("intrinsic gas too low: gas 20000, minimum needed 21000", Error.GAS),
    ("intrinsic gas too low", Error.GAS),
    ("exceeds block gas limit", Error.GAS),
    ("insufficient gas for floor data gas cost: gas 1, minimum needed 2", Error.GAS),
    # anvil 1.7.1
    ("transaction already imported", Error.ALREADY_KNOWN),
    ("Insufficient funds for gas * price + value", Error.INSUFFICIENT_FUNDS),
    ("intrinsic gas too high -- tx.gas_limit > env.block.gas_limit", Error.GAS),
    ("max fee per gas less than block base fee", Error.BELOW_BASE_FEE),
    ("oversized data: transaction size 140000, limit 131072", Error.GAS),
    ("tx fee (1.08 ether) exceeds the configured cap (1.00 ether)", Error.FEE_CAP),
    # Erigon's DiscardReason
    ("INTERNAL_ERROR: existing tx with same hash", Error.ALREADY_KNOWN),
    # Nethermind's AcceptTxResult
    ("AlreadyKnown", Error.ALREADY_KNOWN),
    ("OldNonce, Current nonce: 7, nonce of rejected tx: 6", Error.NONCE_TOO_LOW),
    ("NonceGap, Future nonce. Expected nonce: 7", Error.NONCE_GAP),
    ("ReplacementNotAllowed", Error.REPLACEMENT_UNDERPRICED),
    ("FeeTooLow", Error.UNDERPRICED),
    (
        "InsufficientFunds, Balance is 0 less than sending value",
        Error.INSUFFICIENT_FUNDS,
    ),
    # Besu's RpcErrorType
    ("Upfront cost exceeds account balance", Error.INSUFFICIENT_FUNDS),
    ("Gas price below configured minimum gas price", Error.UNDERPRICED),
    # of no known error
    ("unknown transaction type", Error.OTHER),
    ("the sky is falling", Error.OTHER),
    ("", Error.OTHER),
]


@pytest.mark.parametrize(("words", "refusal"), WORDS)
def test_classify__words_of_a_node__are_a_kind(words: str, refusal: Error) -> None:
    assert classify(words) is refusal
    assert classify(words.upper()) is refusal


@pytest.mark.parametrize(
    ("words", "over"),
    [
        ("gas required exceeds allowance (8000000)", True),  # go-ethereum and its kin
        ("Out of gas: gas required exceeds allowance: 8000000", True),  # anvil 1.7.1
        ("exceeds block gas limit", True),
        ("execution timeout", False),
        ("invalid opcode: INVALID", False),
        ("EVM error InvalidFEOpcode", False),
    ],
)
def test_over_the_limit__words_of_a_node__are_told_apart(
    words: str, over: bool
) -> None:
    assert over_the_limit(words) is over
