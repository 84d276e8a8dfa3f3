"""The chain's blocks as a node shows them, and where two views of them part. "Cannot see" is not "gone"."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

from supervisor_tasks.chain.rpc import Call, Rpc, RpcError, RpcUnavailableError, require

MOST_BLOCKS = 1000  # in one question for logs

Answer = TypeVar("Answer")


class BetweenForksError(RpcUnavailableError):
    """The node's answers are not of one chain: it is changing over. Again later."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block's place."""

    number: int
    hash: str
    parent: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some blocks in a row, one behind the other, and the logs of all that were asked for up to the last of them."""

    blocks: tuple[Block, ...]
    logs: tuple[dict[str, Any], ...]

    @property
    def hashes(self) -> dict[int, str]:
        """Their hashes by number."""
        return {block.number: block.hash for block in self.blocks}


class Reach:
    """How many blocks a question for logs covers. Nodes limit the blocks, or the logs of an answer, and say so in many ways, or
    not at all. Threads may share it.
    """

    def __init__(self) -> None:
        self._blocks = MOST_BLOCKS

    @property
    def blocks(self) -> int:
        """How many the next question covers at most."""
        return self._blocks

    def ask(self, question: Callable[[int], Answer]) -> Answer:
        """The answer to a question that is told how many blocks it may cover: half as many after a failure, and an eighth more
        after an answer. What the node refuses is asked again at once; what it did not answer at all, the next time. Raises
        RpcUnavailableError.
        """
        while True:
            asked = self._blocks
            try:
                answer = question(asked)
            except BetweenForksError:
                raise
            except RpcUnavailableError as error:
                self._blocks = max(1, asked // 2)
                if asked == 1 or not isinstance(error.__cause__, RpcError):
                    raise
            else:
                self._blocks = min(MOST_BLOCKS, asked + asked // 8 + 1)
                return answer


def head(rpc: Rpc) -> int:
    """The height of the node's chain."""
    return int(rpc.call("eth_blockNumber"), 16)


def blocks_at(rpc: Rpc, numbers: Iterable[int]) -> dict[int, Block]:
    """Blocks by number, in one batch. Raises RpcUnavailableError where the node does not see so far."""
    wanted = sorted(numbers)
    answers = rpc.batch([_block_call(number) for number in wanted])
    return {number: _block(number, answer) for number, answer in zip(wanted, answers, strict=True)}


def hashes_at(rpc: Rpc, numbers: Iterable[int]) -> dict[int, str]:
    """The hashes of blocks by number, likewise."""
    return {number: block.hash for number, block in blocks_at(rpc, numbers).items()}


def read_stretch(rpc: Rpc, first_kept: int, last: int, logs: Call) -> Stretch:
    """The blocks from `first_kept` to `last`, and the logs. Raises RpcUnavailableError, or BetweenForksError when the
    answers do not fit together.
    """
    newest, found = rpc.batch([_block_call(last), logs])  # of one node, that has the last block
    entries: list[dict[str, Any]] = require(found)
    others = blocks_at(rpc, range(first_kept, last))
    blocks = (*others.values(), _block(last, newest))
    hashes = {block.number: block.hash for block in blocks}
    for one, next_ in pairwise(blocks):
        if next_.parent != one.hash:
            raise BetweenForksError(f"block {next_.number} does not follow block {one.number}")
    for entry in entries:
        number = int(entry["blockNumber"], 16)
        if hashes.get(number, entry["blockHash"]) != entry["blockHash"]:
            raise BetweenForksError(f"the logs of block {number} are another block's")
    return Stretch(blocks, tuple(entries))


def fork_point(known: Collection[tuple[int, str]], now: Mapping[int, str]) -> int | None:
    """The highest block up to which all are as they were; None when the first of them is not. Pure."""
    first_lost = min((number for number, was in known if now.get(number) != was), default=inf)
    return max((number for number, _ in known if number < first_lost), default=None)


def is_behind(head: int, known: Mapping[int, str]) -> bool:
    """Whether the node's chain is shorter than what was read: it may be behind, and tells nothing of what is lost. Pure."""
    return bool(known) and head < max(known)


def seconds_since(rpc: Rpc, number: int) -> float:
    """How long ago a block was mined: by the chain's own clock or by ours, whichever says longer."""
    latest = "eth_getBlockByNumber", ("latest", False)
    then_s, newest_s = (_mined_s(answer) for answer in rpc.batch([_block_call(number), latest]))
    return float(max(newest_s, time.time()) - then_s)


def _mined_s(answer: Any) -> int:
    shown = require(answer)
    if shown is None:
        raise RpcUnavailableError("the node does not see a block that was read")
    return int(shown["timestamp"], 16)


def _block_call(number: int) -> Call:
    return "eth_getBlockByNumber", (hex(number), False)


def _block(number: int, answer: Any) -> Block:
    if answer is None:
        raise RpcUnavailableError(f"the node does not see block {number}")
    if isinstance(answer, RpcError):
        raise RpcUnavailableError(f"the node does not show block {number}: {answer}") from answer
    return Block(number, answer["hash"], answer["parentHash"])
