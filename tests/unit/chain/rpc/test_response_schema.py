"""What can be a node's answer, and what its logs say however it lists them."""

from typing import Any

import pytest
from eth_abi.abi import encode

from supervisor_tasks.chain.contract import TOPPED_UP, Addresses, Contract
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.chain.rpc.response_schema import MAX_NUMBER, matches_schema
from supervisor_tasks.jobs.events import ToppedUp
from supervisor_tasks.jobs.model import Address

SCHEDULER, JOBS, PROVIDER = (Address("0x" + digit * 40) for digit in "123")
JOB = bytes(31) + b"\x07"
SENT = "0x" + "a" * 64


def log(
    block: int = 7, index: int = 0, minutes: int = 5, **others: object
) -> dict[str, Any]:
    """A top-up, as a node shows it."""
    return {
        "address": SCHEDULER,
        "topics": [TOPPED_UP.topic],
        "data": "0x" + encode(TOPPED_UP.types, (JOB, PROVIDER, minutes)).hex(),
        "blockNumber": hex(block),
        "blockHash": f"0x{block:064x}",
        "logIndex": hex(index),
        "transactionHash": SENT,
        **others,
    }


def receipt(**others: object) -> dict[str, Any]:
    """A receipt with one log."""
    return {
        "status": "0x1",
        "blockNumber": "0x7",
        "blockHash": "0x" + "b" * 64,
        "transactionHash": SENT,
        "gasUsed": "0x5208",
        "to": SCHEDULER,
        "logs": [log()],
        **others,
    }


def is_receipt(shown: object) -> bool:
    return matches_schema("eth_getTransactionReceipt", [SENT], shown)


def test_receipt__what_a_node_shows__fits() -> None:
    assert is_receipt(receipt())
    assert is_receipt(receipt(to=None))  # it made a contract
    assert is_receipt(None)


@pytest.mark.parametrize("to", [{}, [], 7, "", "0x12", "0x" + "1" * 64, "no address"])
def test_receipt__to_what_is_no_address__does_not_fit(to: object) -> None:
    assert not is_receipt(receipt(to=to))


@pytest.mark.parametrize("number", [MAX_NUMBER + 1, 2**63, 2**64, 2**256 - 1])
def test_place__above_what_the_ledger_can_keep__does_not_fit(number: int) -> None:
    assert not is_receipt(receipt(logs=[log(block=number)]))
    assert not is_receipt(receipt(logs=[log(index=number)]))
    assert not is_receipt(receipt(blockNumber=hex(number)))
    for method in ("eth_blockNumber", "eth_getTransactionCount"):
        assert not matches_schema(method, [], hex(number))
        assert matches_schema(method, [], hex(MAX_NUMBER))
    block = {
        "hash": SENT,
        "parentHash": SENT,
        "timestamp": "0x1",
        "gasLimit": "0x1",
        "number": hex(MAX_NUMBER),
    }
    assert matches_schema("eth_getBlockByNumber", ["latest", False], block)
    assert not matches_schema(
        "eth_getBlockByNumber", ["latest", False], {**block, "number": hex(number)}
    )
    assert matches_schema(
        "eth_getBlockByNumber", ["latest", False], {**block, "gasLimit": hex(number)}
    )  # a chain without a bound


def test_balance__as_great_as_a_word__fits() -> None:
    assert matches_schema("eth_getBalance", [PROVIDER, "latest"], hex(2**256 - 1))


@pytest.mark.parametrize(
    ("block", "fit"), [(4, False), (5, True), (9, True), (10, False)]
)
def test_logs__of_blocks_that_were_not_asked_for__do_not_fit(
    block: int, fit: bool
) -> None:
    assert (
        matches_schema(
            "eth_getLogs",
            [{"fromBlock": "0x5", "toBlock": "0x9"}],
            [log(7), log(block)],
        )
        is fit
    )


def test_logs__without_an_end__are_of_any_block_from_the_first_on() -> None:
    assert matches_schema("eth_getLogs", [{"fromBlock": "0x5"}], [log(5), log(10**6)])
    assert not matches_schema(
        "eth_getLogs", [{"fromBlock": "0x5", "toBlock": "latest"}], [log(4)]
    )


def contract() -> Contract:
    of_one = Contract(Rpc.at("http://127.0.0.1:1"), 1, SCHEDULER, PROVIDER)
    of_one._addresses = Addresses(SCHEDULER, JOBS, JOBS, JOBS)
    return of_one


def top_ups(logs: list[dict[str, Any]]) -> list[ToppedUp]:
    events, unreadable = contract().decode_events(logs)
    assert unreadable == []
    return [entry.event for entry in events if isinstance(entry.event, ToppedUp)]


def test_decode_events__a_log_that_an_answer_holds_twice__counts_once() -> None:
    once = [log(7, 0), log(7, 1, minutes=8)]
    assert [found.minutes for found in top_ups(once)] == [5, 8]
    assert top_ups([once[0], once[0], once[1], once[0], once[1]]) == top_ups(once)
    assert top_ups([once[0], {**once[0], "logIndex": "0x00"}, once[1]]) == top_ups(once)


def test_decode_events__in_another_order__is_the_same() -> None:
    logs = [
        log(7, 0),
        log(7, 3, minutes=8),
        log(9, 1, minutes=2, transactionHash="0x" + "c" * 64),
    ]
    assert top_ups(logs[::-1]) == top_ups(logs)


@pytest.mark.parametrize("name", ["blockHash", "transactionHash"])
def test_log__hash_in_upper_case__does_not_fit(name: str) -> None:
    assert not is_receipt(receipt(logs=[log() | {name: "0x" + "A" * 64}]))
    assert not is_receipt(receipt(**{name: "0x" + "A" * 64}))


def test_log__topic_in_upper_case__does_not_fit() -> None:
    assert not is_receipt(
        receipt(logs=[log(topics=["0x" + TOPPED_UP.topic[2:].upper()])])
    )
