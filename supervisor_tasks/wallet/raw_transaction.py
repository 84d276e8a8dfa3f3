"""What is in a signed transaction, and the instance tag by which a ledger knows its own. Pure.

The tag is a few bytes behind the data of each call, which contracts do not read. Without it, two ledgers that share a
wallet by mistake would sign the same bytes for the same nonce, and both would count the result as their own.
"""

from dataclasses import dataclass

import rlp
from rlp.sedes import big_endian_int

from supervisor_tasks.wallet.fees import Fees

TAG_BYTES = 8
TAG_PREFIX = b"sv"  # before a tag: no ledger wrote data without it

DYNAMIC_FEE = 2


@dataclass(frozen=True, slots=True)
class DecodedTransaction:
    """The fields that a new signature of the transaction needs."""

    nonce: int
    gas: int
    to: str
    value_wei: int
    data: bytes
    fees: Fees


def decode(signed: bytes) -> DecodedTransaction:
    """The fields of a signed transaction, legacy or with a dynamic fee. Raises ValueError for any other."""
    if signed[0] == DYNAMIC_FEE:
        _, nonce, tip, max_fee, gas, to, value, data, *_ = rlp.decode(signed[1:])
        prices = Fees(_number(max_fee), _number(tip), legacy=False)
    elif signed[0] >= 0xC0:  # an RLP list: a legacy transaction has no type
        nonce, price, gas, to, value, data, *_ = rlp.decode(signed)
        prices = Fees(_number(price), _number(price), legacy=True)
    else:
        raise ValueError(f"a transaction of type {signed[0]}")
    return DecodedTransaction(_number(nonce), _number(gas), "0x" + to.hex(), _number(value), bytes(data), prices)


def append_tag(data: str, tag: bytes) -> str:
    """The data of a call (0x-hex), followed by a ledger's tag."""
    return data + (TAG_PREFIX + tag).hex()


def extract_tag(data: bytes) -> bytes | None:
    """The tag of the ledger that wrote a call; None when the data carry no tag."""
    tail = data[-(len(TAG_PREFIX) + TAG_BYTES) :]
    has_room = len(data) >= 4 + len(TAG_PREFIX) + TAG_BYTES  # the call's selector comes first
    return tail[len(TAG_PREFIX) :] if has_room and tail.startswith(TAG_PREFIX) else None


def _number(value: bytes) -> int:
    return int(big_endian_int.deserialize(bytes(value)))
