"""What is in a signed transaction, how one is signed, and the instance tag by which a
ledger knows its own. Pure.

The tag is a few bytes behind the data of each call, which contracts do not read.
Without it, two ledgers that share a wallet by mistake would sign the same bytes for the
same nonce, and both would count the result as their own.
"""

from dataclasses import dataclass

import rlp
from coincurve import PrivateKey
from eth_utils.crypto import keccak
from rlp.sedes import big_endian_int

from supervisor_tasks.wallet.fees import Fees

TAG_BYTES = 8
TAG_PREFIX = b"sv"  # before a tag: no ledger wrote data without it

FILLER_GAS = 21_000  # of a transaction that does nothing
DYNAMIC_FEE = 2
Items = list[int | bytes | list[bytes]]  # of an RLP list
# of a legacy transaction: this, twice the chain's id, and the parity of the signature
EIP155_V = 35


@dataclass(frozen=True, slots=True)
class TransactionFields:
    """The signed fields, besides the chain's id. `to` is an address, 0x-hex."""

    nonce: int
    gas: int
    to: str
    value_wei: int
    data: bytes
    fees: Fees


def decode(signed: bytes) -> TransactionFields:
    """The fields of a signed transaction, legacy or with a dynamic fee. Raises
    ValueError for any other; a retry does not help.
    """
    if signed[0] == DYNAMIC_FEE:
        _, nonce, tip, max_fee, gas, to, value, data, *_ = rlp.decode(signed[1:])
        prices = Fees(_number(max_fee), _number(tip), legacy=False)
    elif signed[0] >= 0xC0:  # an RLP list: a legacy transaction has no type
        nonce, price, gas, to, value, data, *_ = rlp.decode(signed)
        prices = Fees(_number(price), _number(price), legacy=True)
    else:
        raise ValueError(
            f"found a transaction of type {signed[0]}; expected one of type {DYNAMIC_FEE} or a legacy one"
        )
    return TransactionFields(
        _number(nonce),
        _number(gas),
        "0x" + to.hex(),
        _number(value),
        bytes(data),
        prices,
    )


def sign(transaction: TransactionFields, chain_id: int, key: PrivateKey) -> bytes:
    """The signed bytes: EIP-155 with a gas price, EIP-1559 with a dynamic fee.

    eth_account signs the same bytes, as a test shows. It takes ten times as long,
    because it also checks and converts its input.
    """
    to, fees = bytes.fromhex(transaction.to.removeprefix("0x")), transaction.fees
    rest: Items = [transaction.gas, to, transaction.value_wei, transaction.data]
    if fees.legacy:
        legacy: Items = [transaction.nonce, fees.max_fee_wei, *rest]
        r, s, parity = _signature(_encoded([*legacy, chain_id, 0, 0]), key)
        return _encoded([*legacy, EIP155_V + 2 * chain_id + parity, r, s])
    kind = bytes([DYNAMIC_FEE])
    dynamic: Items = [
        chain_id,
        transaction.nonce,
        fees.priority_fee_wei,
        fees.max_fee_wei,
        *rest,
        [],
    ]
    r, s, parity = _signature(kind + _encoded(dynamic), key)
    return kind + _encoded([*dynamic, parity, r, s])


def hash_of(signed: bytes) -> str:
    """The hash of a signed transaction, 0x-hex."""
    return "0x" + keccak(signed).hex()


def _signature(message: bytes, key: PrivateKey) -> tuple[int, int, int]:
    """Return r, s and the parity of the curve's point."""
    signed = key.sign_recoverable(keccak(message), hasher=None)
    return int.from_bytes(signed[:32]), int.from_bytes(signed[32:64]), signed[64]


def _encoded(fields: Items) -> bytes:
    """Encode as RLP, numbers without leading zeros."""
    items = list[bytes | list[bytes]]()
    for field in fields:
        if isinstance(field, int):
            items.append(big_endian_int.serialize(field))
        else:
            items.append(field)
    return bytes(rlp.encode(items))


def append_tag(data: str, tag: bytes) -> str:
    """The data of a call (0x-hex), followed by a ledger's tag."""
    return data + (TAG_PREFIX + tag).hex()


def extract_tag(data: bytes) -> bytes | None:
    """The tag of the ledger that wrote a call; None when the data carry no tag."""
    # the call's selector comes first
    if len(data) < 4 + len(TAG_PREFIX) + TAG_BYTES:
        return None
    tail = data[-(len(TAG_PREFIX) + TAG_BYTES) :]
    if not tail.startswith(TAG_PREFIX):
        return None
    return tail[len(TAG_PREFIX) :]


def _number(value: bytes) -> int:
    return int(big_endian_int.deserialize(bytes(value)))
