r"""The contracts' ABI, as built from devgrid/contracts: calls, answers, events and errors to and from bytes. Pure.

Customers and other providers write the strings, and no contract checks that they are text. Bytes that are not UTF-8,
and NUL, which Postgres cannot store, are read as `\xNN`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from eth_abi.abi import encode
from eth_abi.codec import ABICodec
from eth_abi.decoding import StringDecoder
from eth_abi.exceptions import DecodingError
from eth_abi.registry import BaseEquals, registry
from eth_utils.abi import (
    abi_to_signature,
    collapse_if_tuple,
    event_signature_to_log_topic,
)
from eth_utils.crypto import keccak

CONTRACTS = (
    "MetaScheduler",
    "JobRepository",
    "ProviderJobQueues",
    "ProviderManager",
    "Credit",
    "Constants",
)
# A log is read up to four times: as announced, from the receipt (twice), and by the
# scan. Each decoding takes 0.05 ms.
KEPT_LOGS, KEPT_LOG_CHARACTERS = 512, 4096


class _AnyText(StringDecoder):
    @staticmethod
    def decoder_fn(data: bytes, _errors: str = "") -> str:
        return data.decode(errors="backslashreplace").replace("\0", "\\x00")


def _lenient_codec() -> ABICodec:
    types = registry.copy()  # type: ignore[no-untyped-call]
    types.unregister_decoder("string")
    strings = BaseEquals("string", with_sub=False)  # type: ignore[no-untyped-call]
    types.register_decoder(strings, _AnyText, label="string")
    return ABICodec(types)


decode = _lenient_codec().decode


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a contract."""

    name: str
    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def encode(self, *arguments: object) -> str:
        """The data of a call, 0x-hex."""
        return "0x" + (self.selector + encode(self.inputs, arguments)).hex()

    def decode(self, answer: str) -> tuple[Any, ...]:
        """What the function returned. Raises eth_abi's DecodingError when the bytes do
        not match its types; a retry does not help.
        """
        return decode(self.outputs, bytes.fromhex(answer.removeprefix("0x")))


@dataclass(frozen=True, slots=True)
class EventType:
    """An event of a contract; none of its arguments is indexed."""

    name: str
    topic: str
    types: tuple[str, ...]

    def decode(self, data: str) -> tuple[Any, ...]:
        """The arguments in a log's data. Raises eth_abi's DecodingError when the bytes
        do not match their types; a retry does not help.
        """
        if len(data) > KEPT_LOG_CHARACTERS:
            return _decode_log(self.types, data)
        return _decode_kept(self.types, data)


def _decode_log(types: tuple[str, ...], data: str) -> tuple[Any, ...]:
    return decode(types, bytes.fromhex(data.removeprefix("0x")))


_decode_kept = lru_cache(KEPT_LOGS)(_decode_log)


@dataclass(frozen=True, slots=True)
class Revert:
    """Why a call reverted: the name of a custom error, or Solidity's own "Error" or
    "Panic".
    """

    name: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@cache
def _abi(contract: str) -> list[dict[str, Any]]:
    file = resources.files("supervisor_tasks.chain") / "abi" / f"{contract}.json"
    entries: list[dict[str, Any]] = json.loads(file.read_text())
    return entries


@cache
def function(contract: str, name: str) -> Function:
    """A function by its name. Raises KeyError when the contract has none; a retry does
    not help.
    """
    entry = _entry(contract, "function", name)
    selector = keccak(text=abi_to_signature(entry))[:4]
    return Function(name, selector, _types(entry["inputs"]), _types(entry["outputs"]))


@cache
def event(contract: str, name: str) -> EventType:
    """An event by its name. Raises KeyError when the contract has none; a retry does
    not help.
    """
    entry = _entry(contract, "event", name)
    topic = event_signature_to_log_topic(abi_to_signature(entry))
    return EventType(name, "0x" + topic.hex(), _types(entry["inputs"]))


def _entry(contract: str, kind: str, name: str) -> Any:
    for entry in _abi(contract):
        if (entry["type"], entry.get("name")) == (kind, name):
            return entry
    raise KeyError(f"{contract} has no {kind} {name}")


def decode_revert(data: str) -> Revert:
    """The error in revert data; an error that none of our contracts defines has the
    name "unknown".
    """
    raw = bytes.fromhex(data.removeprefix("0x"))
    name, types = _errors().get(raw[:4], ("unknown", ()))
    if not types:
        return Revert(name, ())
    try:
        return Revert(name, decode(types, raw[4:]))
    except DecodingError:
        return Revert(name, ())


@cache
def _errors() -> dict[bytes, tuple[str, tuple[str, ...]]]:
    errors: dict[bytes, tuple[str, tuple[str, ...]]] = {
        keccak(text="Error(string)")[:4]: ("Error", ("string",)),
        keccak(text="Panic(uint256)")[:4]: ("Panic", ("uint256",)),
    }
    for contract in CONTRACTS:
        for entry in _abi(contract):
            if entry["type"] == "error":
                selector = keccak(text=abi_to_signature(entry))[:4]  # type: ignore[arg-type]
                errors[selector] = (entry["name"], _types(entry["inputs"]))
    return errors


def _types(parameters: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(collapse_if_tuple, parameters))
