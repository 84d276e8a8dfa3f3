"""The chain's blocks as a node shows them, the last block that two views share, and how
many blocks a node takes in one question. A block that a node does not show may still be
on the chain.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

from supervisor_tasks.chain.rpc.client import (
    Call,
    Rpc,
    RpcError,
    RpcUnavailableError,
    require,
)

MAX_BLOCKS = 1000  # in one question for logs

Answer = TypeVar("Answer")


class BetweenForksError(RpcUnavailableError):
    """The node's answers are not of one chain: it is changing to another fork. Retry
    later.
    """


@dataclass(frozen=True, slots=True)
class Block:
    """A block's number, its hash, its parent's hash, and its time (Unix time of the
    chain's clock).
    """

    number: int
    hash: str
    parent: str
    time_s: int = 0


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Consecutive blocks, and the logs of all requested blocks up to the last of
    them.
    """

    blocks: tuple[Block, ...]
    logs: tuple[dict[str, Any], ...]

    @property
    def times_s(self) -> dict[int, int]:
        """The blocks' times by number."""
        return {block.number: block.time_s for block in self.blocks}

    @property
    def hashes(self) -> dict[int, str]:
        """The blocks' hashes by number."""
        return {block.number: block.hash for block in self.blocks}


class AdaptiveRange:
    """How many blocks a question for logs covers. Nodes limit the blocks, or the logs
    of an answer; they report it in many ways, or not at all. Threads may share it.
    """

    def __init__(self) -> None:
        self._blocks = MAX_BLOCKS

    @property
    def blocks(self) -> int:
        """How many blocks the next question covers at most."""
        return self._blocks

    def ask(self, question: Callable[[int], Answer]) -> Answer:
        """Call `question` with the number of blocks that it may cover, and return its
        answer. A failure halves the number, an answer raises it by an eighth. A
        question that the node rejected is asked again at once; one without any answer,
        at the next call. Raises RpcUnavailableError; a retry helps.
        """
        while True:
            covered = self._blocks
            try:
                answer = question(covered)
            except BetweenForksError:
                raise
            except RpcUnavailableError as error:
                self._blocks = max(1, covered // 2)
                is_rejection = isinstance(error.__cause__, RpcError)
                if covered == 1 or not is_rejection:
                    raise
                continue
            self._blocks = min(MAX_BLOCKS, covered + covered // 8 + 1)
            return answer


def head(rpc: Rpc) -> int:
    """The height of the node's chain."""
    return int(rpc.call("eth_blockNumber"), 16)


def blocks_at(rpc: Rpc, numbers: Iterable[int]) -> dict[int, Block]:
    """Blocks by number, in one batch. Raises RpcUnavailableError, when no endpoint answers
    or the node does not show one of them; a retry helps.
    """
    wanted = sorted(numbers)
    answers = rpc.batch(list(map(_block_call, wanted)))
    return {
        number: _block(number, answer)
        for number, answer in zip(wanted, answers, strict=True)
    }


def hashes_at(rpc: Rpc, numbers: Iterable[int]) -> dict[int, str]:
    """The hashes of blocks by number. Raises as `blocks_at` does."""
    return {number: block.hash for number, block in blocks_at(rpc, numbers).items()}


def read_range(rpc: Rpc, first_kept: int, last: int, logs: Call) -> BlockRange:
    """The blocks from `first_kept` to `last`, and the logs. Raises RpcUnavailableError,
    when no endpoint answers, or BetweenForksError, when the answers do not fit together;
    a retry helps.
    """
    # In one batch, so from one node, which has the last block.
    last_block, logs_answer = rpc.batch([_block_call(last), logs])
    entries: list[dict[str, Any]] = require(logs_answer)
    others = blocks_at(rpc, range(first_kept, last))
    found = BlockRange((*others.values(), _block(last, last_block)), tuple(entries))
    for block, next_block in pairwise(found.blocks):
        if next_block.parent != block.hash:
            raise BetweenForksError(
                f"block {next_block.number} does not follow block {block.number}"
            )
    hashes = found.hashes
    for entry in entries:
        number = int(entry["blockNumber"], 16)
        if hashes.get(number, entry["blockHash"]) != entry["blockHash"]:
            raise BetweenForksError(f"the logs of block {number} are another block's")
    return found


def last_common_block(
    stored: Collection[tuple[int, str]], current: Mapping[int, str]
) -> int | None:
    """The highest stored block up to which all hashes are unchanged; None when the
    first one has changed. Pure.
    """
    lost = [
        number for number, stored_hash in stored if current.get(number) != stored_hash
    ]
    first_lost = min(lost, default=inf)
    common = [number for number, _ in stored if number < first_lost]
    return max(common, default=None)


def is_behind(head: int, known: Mapping[int, str]) -> bool:
    """Whether the node's chain is shorter than what was read. The node may be behind,
    so it does not show which of the blocks that were read are lost. Pure.
    """
    return head < max(known, default=head)


def seconds_since(rpc: Rpc, number: int) -> float:
    """How long ago a block was mined: by the chain's own clock or by ours, the longer
    of the two.
    """
    latest = "eth_getBlockByNumber", ("latest", False)
    then, newest = rpc.batch([_block_call(number), latest])
    then_s = _mined_s(shown_block(then, number))
    newest_s = _mined_s(shown_block(newest, "latest"))
    return float(max(newest_s, time.time()) - then_s)


def shown_block(answer: Any, which: int | str) -> dict[str, Any]:
    """The block in a node's answer; `which` is its number, or "latest". Raises
    RpcUnavailableError if the node does not show it; a retry helps.
    """
    block: dict[str, Any] | None = require(answer)
    if block is None:
        raise RpcUnavailableError(f"the node does not show block {which}")
    return block


def _mined_s(block: Mapping[str, Any]) -> int:
    return int(block["timestamp"], 16)


def _block_call(number: int) -> Call:
    return "eth_getBlockByNumber", (hex(number), False)


def _block(number: int, answer: Any) -> Block:
    if isinstance(answer, RpcError):
        raise RpcUnavailableError(
            f"the node does not show block {number}: {answer}"
        ) from answer
    block = shown_block(answer, number)
    return Block(number, block["hash"], block["parentHash"], _mined_s(block))
