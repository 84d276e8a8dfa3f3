"""What a node means when it refuses a signed transaction. Pure.

There are no codes for it: geth says -32000 to everything, so its words are read. They are those of anvil 1.7.1 and of
go-ethereum 1.10 to 1.16 (core/error.go, core/txpool/errors.go), which subnet-evm and coreth (Avalanche) share.
"""

from enum import StrEnum


class Refusal(StrEnum):
    """Why a node did not take a transaction, sorted by what to do about it."""

    ALREADY_KNOWN = "already known"  # it has these very bytes
    NONCE_TOO_LOW = "nonce too low"  # the nonce is mined: by this one, an earlier signature of it, or somebody else's
    NONCE_GAP = "nonce gap"  # an earlier nonce is missing
    REPLACEMENT_UNDERPRICED = "replacement underpriced"  # another one with this nonce waits and pays as much
    UNDERPRICED = "underpriced"  # less than the node asks of anybody
    BELOW_BASE_FEE = "below base fee"  # cannot be mined now
    INSUFFICIENT_FUNDS = "insufficient funds"
    POOL_FULL = "pool full"
    GAS = "gas"  # more than a block holds, or less than the data cost; or more data than a node takes
    FEE_CAP = "fee cap"  # could cost more in all than the node lets anybody send (geth's --rpc.txfeecap)
    OTHER = "other"


# The first that is found decides: "replacement transaction underpriced" is underpriced, too.
WORDS = (
    (Refusal.ALREADY_KNOWN, ("already known", "already imported", "known transaction", "already in mempool")),
    (Refusal.NONCE_TOO_LOW, ("nonce too low", "nonce is too low", "nonce already used")),
    (Refusal.NONCE_GAP, ("nonce too high", "nonce gap", "gapped-nonce", "in-flight transaction limit")),
    (Refusal.REPLACEMENT_UNDERPRICED, ("replacement transaction underpriced", "could not replace existing tx")),
    (
        Refusal.BELOW_BASE_FEE,
        ("less than block base fee", "fee cap less than", "max fee per gas less than", "less than the block's base fee"),
    ),
    (Refusal.INSUFFICIENT_FUNDS, ("insufficient funds", "insufficient balance", "overdraft")),
    (Refusal.POOL_FULL, ("txpool is full", "transaction pool is full", "future transaction tries to replace pending")),
    (Refusal.UNDERPRICED, ("underpriced", "less than the minimum", "below minimum", "gas price too low")),
    (
        Refusal.GAS,
        ("intrinsic gas too", "exceeds block gas limit", "gas limit reached", "gas limit exceeded", "gas too high",
         "floor data gas", "exceeds transaction gas limit", "gas limit too high", "oversized data"),
    ),
    (Refusal.FEE_CAP, ("exceeds the configured cap",)),
)  # fmt: skip


# What eth_estimateGas says when a call does not fit into a block: geth and its kin, anvil, Nethermind.
OVER_THE_LIMIT = ("gas required exceeds", "gas spent exceeded", "out of gas")


def over_the_limit(message: str) -> bool:
    """Whether there is no estimate because no block holds the gas that the call needs."""
    said = message.lower()
    return meaning(message) is Refusal.GAS or any(phrase in said for phrase in OVER_THE_LIMIT)


def meaning(message: str) -> Refusal:
    """What the node's words mean."""
    said = message.lower()
    for refusal, phrases in WORDS:
        if any(phrase in said for phrase in phrases):
            return refusal
    return Refusal.OTHER
