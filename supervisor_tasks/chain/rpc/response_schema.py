"""What a node's answers to our questions look like. Pure.

A broken node, or a proxy in front of a node, can send anything. An answer of the wrong
shape counts as no answer: the next endpoint is asked.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = Callable[[Any], bool]

NUMBER = re.compile("0x[0-9a-fA-F]{1,64}")
BYTES = re.compile("0x[0-9a-fA-F]*")
# Hashes and topics are compared as text, so hex in upper case would match nothing.
HASH = re.compile("0x[0-9a-f]{64}")
# A node may answer in mixed case: EIP-55 has a checksum in the case of the digits.
ADDRESS = re.compile("0x[0-9a-fA-F]{40}")
# The greatest number of a block, a log or a transaction: the ledger stores twice as
# much, and adds to it.
MAX_NUMBER = 2**62


def _is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    """Whether the value is a text of this form."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _number(value: Any) -> bool:
    return _is_text(value, NUMBER)


def is_block_number(value: Any) -> bool:
    """Whether the value is the number of a block, in hex."""
    return _number(value) and int(value, 16) <= MAX_NUMBER


_count = is_block_number  # of logs and transactions, too


def _address(value: Any) -> bool:
    return _is_text(value, ADDRESS)


def is_bytes(value: Any) -> bool:
    """Whether the value is data: 0x and any number of bytes."""
    return _is_text(value, BYTES) and len(value) % 2 == 0


def _hash(value: Any) -> bool:
    """Whether the value is a hash or a topic. An honest endpoint rejects a question
    about a hash of another length, so no second endpoint could deny it.
    """
    return _is_text(value, HASH)


def _list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _with(fields: Mapping[str, Shape]) -> Shape:
    return lambda value: (
        isinstance(value, dict)
        and all(shape(value.get(name)) for name, shape in fields.items())
    )


def _or_none(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


LOG = _with(
    {
        "address": is_bytes,
        "topics": _list_of(_hash),
        "data": is_bytes,
        "blockNumber": _count,
        "blockHash": _hash,
        "logIndex": _count,
        "transactionHash": _hash,
    }
)
HEAD = _with({"number": _count})  # as announced: no other field of it is read
RECEIPT = {
    "status": _number,
    "to": _or_none(_address),
    "blockNumber": _count,
    "blockHash": _hash,
    "transactionHash": _hash,
    "gasUsed": _number,
    "logs": _list_of(LOG),
}
BLOCK = {
    "number": _count,
    "hash": _hash,
    "parentHash": _hash,
    "timestamp": _number,
    "gasLimit": _number,
    "baseFeePerGas": _or_none(_number),
}
COUNTS = ("eth_blockNumber", "eth_getTransactionCount")
NUMBERS = (
    "eth_chainId",
    "eth_getBalance",
    "eth_estimateGas",
    "eth_gasPrice",
    "eth_maxPriorityFeePerGas",
)
SHAPES: dict[str, Shape] = {
    **dict.fromkeys(COUNTS, _count),
    **dict.fromkeys(NUMBERS, _number),
    "eth_call": is_bytes,
    "eth_getBlockByNumber": _or_none(_with(BLOCK)),
    "eth_getLogs": _list_of(LOG),
    "eth_getTransactionByHash": _or_none(_with({"input": is_bytes})),
    "eth_getTransactionReceipt": _or_none(_with(RECEIPT)),
    "eth_sendRawTransaction": is_bytes,
}


def matches_schema(method: str, params: Sequence[Any], result: Any) -> bool:
    """Whether a result can be the answer to a call. For methods that we do not call,
    every result can.
    """
    if not SHAPES.get(method, lambda _: True)(result):
        return False
    return method != "eth_getLogs" or _are_of_queried_blocks(params[0], result)


def _are_of_queried_blocks(
    query: Mapping[str, Any], logs: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether all logs are of the blocks that were asked for; an end that is not a
    number ("latest") is no limit.
    """
    first = _end(query.get("fromBlock"), 0)
    last = _end(query.get("toBlock"), MAX_NUMBER)
    return all(first <= int(log["blockNumber"], 16) <= last for log in logs)


def _end(block: Any, otherwise: int) -> int:
    if not _number(block):
        return otherwise
    return int(block, 16)
