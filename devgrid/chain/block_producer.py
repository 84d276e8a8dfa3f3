"""A chain's clock: anvil mines a block at regular times. `python -m
devgrid.chain.block_producer --rpc URL --every SECONDS`.

anvil has a clock of its own (--block-time), which later mines each block that it
missed, with the transactions that waited at the time of that block: on a busy machine
hundreds of empty blocks come before the next transaction. Here one late block replaces
all missed ones.
"""

import argparse
import fcntl
import http.client
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_S = 10.0
# in the chain's folder; the process that has it is the only one that makes blocks
MINING_LOCK = "mining.lock"
MINE = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "evm_mine", "params": []}
).encode()


def next_block_s(last_s: float, every_s: float, now_s: float) -> float:
    """The time of the next block: `every_s` after the last one, or now if that has
    passed already. Pure.
    """
    return max(last_s + every_s, now_s)


def mine(rpc_url: str) -> None:
    """Mine one block. If the node does not answer, the block is left out."""
    request = urllib.request.Request(  # noqa: S310  http, of our own
        rpc_url, MINE, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            answer.read()
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        print(f"miner: {error}", flush=True)


def main() -> None:
    """Mine until a signal ends the process."""
    parser = argparse.ArgumentParser(
        prog="devgrid.chain.block_producer",
        description="Makes anvil mine a block at regular times.",
    )
    parser.add_argument("--rpc", required=True, help="anvil's URL")
    parser.add_argument("--every", type=float, required=True, help="seconds")
    parser.add_argument(
        "--lock",
        type=Path,
        required=True,
        help="file that is locked while a block is mined",
    )
    options = parser.parse_args()
    due_s = time.monotonic()
    with options.lock.open("w") as lock:
        while True:
            due_s = next_block_s(due_s, options.every, time.monotonic())
            time.sleep(max(due_s - time.monotonic(), 0.0))
            fcntl.flock(lock, fcntl.LOCK_EX)
            mine(options.rpc)
            fcntl.flock(lock, fcntl.LOCK_UN)


if __name__ == "__main__":
    main()
