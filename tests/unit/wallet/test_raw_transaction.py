"""Signing: the same bytes and hashes as eth_account's, for random transactions, keys
and chains; what is read from signed bytes, and the tag of a ledger.
"""

import pytest
from coincurve import PrivateKey
from eth_account import Account
from eth_utils.address import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.wallet.fees import Fees
from supervisor_tasks.wallet.raw_transaction import (
    TransactionFields,
    append_tag,
    decode,
    extract_tag,
    hash_of,
    sign,
)

# of secp256k1
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
AMOUNTS = st.integers(0, 2**256 - 1)
TAG = bytes(range(8))
KEY = "0x" + "4c" * 32
TO = "0x" + "11" * 20


@st.composite
def transactions(draw: st.DrawFn) -> TransactionFields:
    legacy = draw(st.booleans())
    most = draw(AMOUNTS)
    fees = Fees(most, most if legacy else draw(st.integers(0, most)), legacy)
    to = "0x" + draw(st.binary(min_size=20, max_size=20)).hex()
    nonce, gas = draw(st.integers(0, 2**64 - 2)), draw(st.integers(0, 2**64 - 1))
    return TransactionFields(
        nonce, gas, to, draw(AMOUNTS), draw(st.binary(max_size=300)), fees
    )


def signed_by_library(
    fields: TransactionFields, chain_id: int, key: bytes
) -> tuple[bytes, str]:
    prices = {"gasPrice": fields.fees.max_fee_wei}
    if not fields.fees.legacy:
        prices = {
            "maxFeePerGas": fields.fees.max_fee_wei,
            "maxPriorityFeePerGas": fields.fees.priority_fee_wei,
        }
    call = {
        "to": to_checksum_address(fields.to),
        "value": fields.value_wei,
        "data": fields.data,
    }
    about = {"nonce": fields.nonce, "gas": fields.gas, "chainId": chain_id}
    signed = Account.sign_transaction(about | call | prices, key)
    return bytes(signed.raw_transaction), "0x" + signed.hash.hex().removeprefix("0x")


@given(
    fields=transactions(),
    chain_id=st.integers(1, 2**53),
    secret=st.integers(1, ORDER - 1),
)
def test_sign__any_transaction__gives_the_bytes_and_the_hash_of_eth_account(
    fields: TransactionFields, chain_id: int, secret: int
) -> None:
    key = secret.to_bytes(32)
    signed = sign(fields, chain_id, PrivateKey(key))
    assert (signed, hash_of(signed)) == signed_by_library(fields, chain_id, key)
    assert decode(signed) == fields


@pytest.mark.parametrize(
    "prices",
    [{"gasPrice": 7}, {"maxFeePerGas": 9, "maxPriorityFeePerGas": 2, "type": 2}],
)
def test_decode__signed_bytes__gives_back_what_was_signed(
    prices: dict[str, int],
) -> None:
    data = append_tag("0x5d3a7180", TAG)
    fields = {
        "nonce": 300,
        "gas": 21_000,
        "to": TO,
        "value": 0,
        "data": data,
        "chainId": 179188,
    }
    found = decode(
        bytes(Account.sign_transaction(fields | prices, KEY).raw_transaction)
    )
    assert (found.nonce, found.gas, found.to, found.value_wei) == (300, 21_000, TO, 0)
    assert found.data == bytes.fromhex(data[2:])
    assert found.fees == (
        Fees(7, 7, legacy=True) if "gasPrice" in prices else Fees(9, 2, legacy=False)
    )
    assert extract_tag(found.data) == TAG


@pytest.mark.parametrize(
    "data", ["", "5d3a7180", "5d3a7180" + "00" * 64, "7376" + "00" * 8]
)
def test_extract_tag__data_that_no_ledger_wrote__is_none(data: str) -> None:
    assert extract_tag(bytes.fromhex(data)) is None
