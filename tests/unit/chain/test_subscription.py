"""What a message of a node may be."""

import json
from typing import Any

import pytest

from supervisor_tasks.chain.subscription import Message, SubscriptionError, read


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"id": 1, "result": "0xabc"}, Message(request=1, answer="0xabc")),
        ({"id": 1, "error": {"code": -32601, "message": "no"}}, Message(request=1)),
        ({"id": 1, "result": "0x" + "f" * 1000}, Message(request=1)),
        ({"id": 1, "result": {"much": "more"}}, Message(request=1)),
        ({"id": "1", "result": "0x1"}, None),
        ({"method": "eth_subscription", "params": {"subscription": "0x9", "result": {"number": "0x1"}}},
         Message(subscription="0x9", announced={"number": "0x1"})),
        ({"method": "eth_subscription", "params": {"subscription": 9}}, None),
        ({"method": "eth_subscription", "params": []}, None),
        ([1, 2, 3], None),
        (5, None),
        (None, None),
    ],
)  # fmt: skip
def test_read__any_text_of_a_node__is_an_answer_an_announcement_or_nothing(
    said: Any, expected: Message | None
) -> None:
    assert read(json.dumps(said)) == expected


@pytest.mark.parametrize("frame", ["", "{", b"\xff\xfe", "[" * 100_000])
def test_read__no_json__is_an_error_of_the_subscription(frame: str | bytes) -> None:
    with pytest.raises(SubscriptionError):
        read(frame)
