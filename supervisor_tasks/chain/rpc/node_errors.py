"""What a node means when it rejects a signed transaction. Pure.

There are no codes for it: geth answers -32000 to everything, so the text is read. The
texts are those of anvil 1.7.1 and of go-ethereum 1.10 to 1.16 (core/error.go,
core/txpool/errors.go), which subnet-evm and coreth (Avalanche) share.
"""

from enum import StrEnum


class NodeErrorKind(StrEnum):
    """Why a node did not take a transaction, sorted by what to do about it."""

    ALREADY_KNOWN = "already known"  # it has these very bytes
    # the nonce is mined: by these bytes, an earlier signature, or another writer
    NONCE_TOO_LOW = "nonce too low"
    NONCE_GAP = "nonce gap"  # an earlier nonce is missing
    # another transaction with this nonce waits and pays as much
    REPLACEMENT_UNDERPRICED = "replacement underpriced"
    UNDERPRICED = "underpriced"  # less than the node requires of every sender
    BELOW_BASE_FEE = "below base fee"  # cannot be mined now
    INSUFFICIENT_FUNDS = "insufficient funds"
    POOL_FULL = "pool full"
    # more than a block holds, or less than the data cost; or more data than a node
    # takes
    GAS = "gas"
    # could cost more in all than the node lets any sender pay (geth's --rpc.txfeecap)
    FEE_CAP = "fee cap"
    OTHER = "other"


# The first match decides: "replacement transaction underpriced" contains "underpriced",
# too.
PHRASES = (
    (NodeErrorKind.ALREADY_KNOWN, ("already known", "already imported", "known transaction", "already in mempool",
      "alreadyknown", "existing tx with same hash")),
    (NodeErrorKind.NONCE_TOO_LOW, ("nonce too low", "nonce is too low", "nonce already used", "oldnonce")),
    (NodeErrorKind.NONCE_GAP, ("nonce too high", "nonce gap", "gapped-nonce", "in-flight transaction limit", "noncegap")),
    (NodeErrorKind.REPLACEMENT_UNDERPRICED, ("replacement transaction underpriced", "could not replace existing tx",
      "replacementnotallowed")),
    (
        NodeErrorKind.BELOW_BASE_FEE,
        ("less than block base fee", "fee cap less than", "max fee per gas less than", "less than the block's base fee"),
    ),
    (NodeErrorKind.INSUFFICIENT_FUNDS, ("insufficient funds", "insufficient balance", "overdraft", "insufficientfunds",
      "upfront cost exceeds account balance")),
    (NodeErrorKind.POOL_FULL, ("txpool is full", "transaction pool is full", "future transaction tries to replace pending")),
    (NodeErrorKind.UNDERPRICED, ("underpriced", "less than the minimum", "below minimum", "gas price too low",
      "below configured minimum", "feetoolow")),
    (
        NodeErrorKind.GAS,
        ("intrinsic gas too", "exceeds block gas limit", "gas limit reached", "gas limit exceeded", "gas too high",
         "floor data gas", "exceeds transaction gas limit", "gas limit too high", "oversized data"),
    ),
    (NodeErrorKind.FEE_CAP, ("exceeds the configured cap",)),
)  # fmt: skip


# The texts of eth_estimateGas for a call that does not fit into a block: geth and its
# forks, anvil, Nethermind.
OVER_THE_LIMIT = ("gas required exceeds", "gas spent exceeded", "out of gas")


def over_the_limit(message: str) -> bool:
    """Whether there is no estimate because no block holds the gas that the call
    needs.
    """
    if classify(message) is NodeErrorKind.GAS:
        return True
    text = message.lower()
    return any(phrase in text for phrase in OVER_THE_LIMIT)


def classify(message: str) -> NodeErrorKind:
    """What the node's text means."""
    # "unknown transaction type" is no "known transaction"
    text = message.lower().replace("unknown transaction", "")
    for rejection, phrases in PHRASES:
        if any(phrase in text for phrase in phrases):
            return rejection
    return NodeErrorKind.OTHER
