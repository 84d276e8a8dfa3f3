"""What a node's answers to our questions look like. Pure.

A proxy in front of a node, or a node that is broken, sends anything. Such an answer counts as none: the next endpoint is asked.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool]

NUMBER = re.compile("0x[0-9a-fA-F]{1,64}")
BYTES = re.compile("0x[0-9a-fA-F]*")


def _number(value: Any) -> bool:
    return isinstance(value, str) and NUMBER.fullmatch(value) is not None


def is_bytes(value: Any) -> bool:
    """Whether it is data: 0x and any number of bytes."""
    return isinstance(value, str) and len(value) % 2 == 0 and BYTES.fullmatch(value) is not None


def _list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _with(fields: Mapping[str, Shape]) -> Shape:
    return lambda value: isinstance(value, dict) and all(shape(value.get(name)) for name, shape in fields.items())


def _or_none(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


LOG = _with(
    {
        "address": is_bytes,
        "topics": _list_of(is_bytes),
        "data": is_bytes,
        "blockNumber": _number,
        "blockHash": is_bytes,
        "logIndex": _number,
        "transactionHash": is_bytes,
    }
)
RECEIPT = {
    "status": _number,
    "blockNumber": _number,
    "blockHash": is_bytes,
    "transactionHash": is_bytes,
    "gasUsed": _number,
    "logs": _list_of(LOG),
}
BLOCK = {
    "number": _number,
    "hash": is_bytes,
    "parentHash": is_bytes,
    "timestamp": _number,
    "gasLimit": _number,
    "baseFeePerGas": _or_none(_number),
}
COUNTS = ("eth_blockNumber", "eth_chainId", "eth_getBalance", "eth_getTransactionCount")
PRICES = ("eth_estimateGas", "eth_gasPrice", "eth_maxPriorityFeePerGas")
SHAPES: dict[str, Shape] = {
    **dict.fromkeys((*COUNTS, *PRICES), _number),
    "eth_call": is_bytes,
    "eth_getBlockByNumber": _or_none(_with(BLOCK)),
    "eth_getLogs": _list_of(LOG),
    "eth_getTransactionByHash": _or_none(_with({"input": is_bytes})),
    "eth_getTransactionReceipt": _or_none(_with(RECEIPT)),
    "eth_sendRawTransaction": is_bytes,
}


def fits(method: str, result: Any) -> bool:
    """Whether a result can be the answer to a call of that method. Of methods that we do not ask for, anything can."""
    return SHAPES.get(method, lambda _: True)(result)
