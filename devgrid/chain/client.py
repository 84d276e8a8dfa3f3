"""A client of the chain: reads contracts, sends transactions, mines and reorganises.

Each method that changes the chain waits until the change is mined, and raises
ChainError with the contract's reason if it reverts. Amounts are in wei: credits x 1e18,
or ether x 1e18.
"""

import fcntl
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eth_account import Account as Signer
from eth_utils.address import to_checksum_address

from devgrid.chain.block_producer import MINING_LOCK
from devgrid.chain.model import (
    Account,
    ChainAddresses,
    ChainError,
    ChainJob,
    job_from_abi,
    job_id_bytes,
)
from devgrid.processes import wait_until
from supervisor_tasks.chain.abi_codec import decode_revert, event, function
from supervisor_tasks.chain.rpc.client import Call, Rpc, RpcError, RpcUnavailableError

ETHER = 10**18
FEES = {"maxFeePerGas": 200 * 10**9, "maxPriorityFeePerGas": 10**9}
BETWEEN_BLOCKS_TRIES = 5
MINED_TIMEOUT_S = 60.0
# two threads that write for one account must not take the same nonce
BROADCASTING = threading.Lock()


class ChainClient:
    """A client of one chain. `folder` is the chain's state folder, which has the lock
    of its block producer.
    """

    def __init__(
        self, folder: Path, rpc_url: str, chain_id: int, addresses: ChainAddresses
    ) -> None:
        self.folder = folder
        self.rpc_url = rpc_url
        self.ws_url = "ws" + rpc_url.removeprefix("http")
        self.chain_id = chain_id
        self.addresses = addresses
        self.rpc = Rpc.at(rpc_url)

    # --- contracts --------------------------------------------------------------------

    def call(self, contract: str, name: str, *arguments: object) -> tuple[Any, ...]:
        """Call a function of a contract (by its Solidity name). Raises ChainError when
        it reverts.
        """
        abi = function(contract, name)
        call = {"to": self.addresses.of(contract), "data": abi.encode(*arguments)}
        return abi.decode(
            self._request(f"{contract}.{name}", "eth_call", call, "latest")
        )

    def send(
        self, account: Account, contract: str, name: str, *arguments: object
    ) -> dict[str, Any]:
        """Call a function in a transaction. Returns the receipt."""
        return self.send_many(account, [(contract, name, arguments)])[0]

    def send_many(
        self, account: Account, calls: Sequence[tuple[str, str, Sequence[object]]]
    ) -> list[dict[str, Any]]:
        """Send many transactions at once. Returns their receipts. Gas is estimated for
        the first call of each function; all calls of it get 1.5 times as much. Raises
        ChainError when one of them reverts.
        """
        gas: dict[str, int] = {}
        transactions: list[dict[str, Any]] = []
        for contract, name, arguments in calls:
            call = {
                "to": self.addresses.of(contract),
                "data": function(contract, name).encode(*arguments),
            }
            if name not in gas:
                estimate = self._request(
                    f"{contract}.{name}",
                    "eth_estimateGas",
                    {**call, "from": account.address},
                )
                gas[name] = int(estimate, 16) * 3 // 2
            transactions.append({**call, "gas": gas[name]})
        hashes = self.broadcast(account, transactions)
        receipts = self.receipts(hashes)
        for (contract, name, _), transaction, receipt in zip(
            calls, transactions, receipts, strict=True
        ):
            if receipt["status"] != "0x1":
                repeated = {
                    **transaction,
                    "gas": hex(transaction["gas"]),
                    "from": account.address,
                }
                self._request(f"{contract}.{name}", "eth_call", repeated, "latest")
                raise ChainError(
                    f"{contract}.{name} reverted in {receipt['transactionHash']}, and would not now"
                )
        return receipts

    def events(
        self, contract: str, name: str, first_block: int = 0
    ) -> list[tuple[Any, ...]]:
        """The arguments of all events of that name since a block."""
        kind = event(contract, name)
        query = {
            "address": self.addresses.of(contract),
            "topics": [kind.topic],
            "fromBlock": hex(first_block),
        }
        return [
            kind.decode(log["data"])
            for log in self._request(name, "eth_getLogs", query)
        ]

    # --- jobs and credits -------------------------------------------------------------

    def job(self, job_id: str) -> ChainJob:
        """A job. Raises ChainError (InvalidJob) when there is none of that id."""
        return job_from_abi(self.call("JobRepository", "get", job_id_bytes(job_id))[0])

    def jobs(self, job_ids: Sequence[str]) -> list[ChainJob]:
        """Many jobs at once, in their order. Raises ChainError as `job` does."""
        abi = function("JobRepository", "get")
        to = self.addresses.of("JobRepository")
        calls: list[Call] = [
            (
                "eth_call",
                ({"to": to, "data": abi.encode(job_id_bytes(job_id))}, "latest"),
            )
            for job_id in job_ids
        ]
        return [
            self.job(job_id)
            if isinstance(answer, RpcError)
            else job_from_abi(abi.decode(answer)[0])
            for job_id, answer in zip(job_ids, self.rpc.batch(calls), strict=True)
        ]

    def credit_balance(self, address: str) -> int:
        """Credits of an address, wei."""
        balance: int = self.call("Credit", "balanceOf", address)[0]
        return balance

    # --- transactions -----------------------------------------------------------------

    def broadcast(
        self, account: Account, transactions: Sequence[dict[str, Any]]
    ) -> list[str]:
        """Sign transactions and send them to the node. Returns their hashes. Raises
        ChainError when the node rejects one.
        """
        with BROADCASTING, self._automine_paused(len(transactions) > 1):
            answers = self.rpc.batch(self._signed(account, transactions))
        for answer in answers:
            if isinstance(answer, RpcError):
                raise ChainError(
                    f"the node rejected a transaction of {account.address}: {answer}"
                ) from answer
        return answers

    def receipts(self, hashes: Sequence[str]) -> list[dict[str, Any]]:
        """Wait for the receipts of one account's transactions. The others are requested
        once the last one is mined.
        """
        found: dict[str, dict[str, Any]] = {}

        def all_mined() -> bool:
            if hashes[-1] not in found and not self.rpc.call(
                "eth_getTransactionReceipt", hashes[-1]
            ):
                return False
            missing = [hash_ for hash_ in hashes if hash_ not in found]
            answers = self.rpc.batch(
                [("eth_getTransactionReceipt", (hash_,)) for hash_ in missing]
            )
            found.update(
                (hash_, answer)
                for hash_, answer in zip(missing, answers, strict=True)
                if answer
            )
            return len(found) == len(hashes)

        wait_until(
            all_mined,
            f"{len(hashes)} transactions to be mined",
            MINED_TIMEOUT_S,
            every_s=0.03,
        )
        return [found[hash_] for hash_ in hashes]

    # --- blocks and balances ----------------------------------------------------------

    def block_number(self) -> int:
        """The height of the chain."""
        return int(self.rpc.call("eth_blockNumber"), 16)

    def mine(self, blocks: int = 1) -> None:
        """Mine blocks now."""
        self.rpc.call("anvil_mine", hex(blocks))

    def reorganise_from(self, block: int) -> None:
        """Replace this block and all above it by empty ones. An empty block may stay as
        it is: its replacement can have the same second and fee, and so the same hash.
        """
        with self._producer_waits():
            while not self._empty_from(block):
                self.rpc.call("anvil_reorg", self.block_number() - block + 1, [])

    @contextmanager
    def behind(self, blocks: int) -> Iterator[None]:
        """Inside this, the node does not have the last blocks, as one that is behind,
        and none is mined unless `mine` is called.
        """
        with self._producer_waits():
            self.rpc.call("anvil_rollback", blocks)
            yield

    def set_balance(self, account: Account, ether: int) -> None:
        """Give an account that much ether for gas."""
        self.rpc.call("anvil_setBalance", account.address, hex(ether * ETHER))

    # --- inside -----------------------------------------------------------------------

    @contextmanager
    def _producer_waits(self) -> Iterator[None]:
        """Inside this, the block producer waits: anvil loses blocks when one is mined
        in the moment in which others are taken back.
        """
        with (self.folder / MINING_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _empty_from(self, block: int) -> bool:
        numbers = range(block, self.block_number() + 1)
        found = self.rpc.batch(
            [("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        )
        return all(
            answer is not None and not answer["transactions"] for answer in found
        )

    def _signed(
        self, account: Account, transactions: Iterable[dict[str, Any]]
    ) -> list[Call]:
        nonce = int(
            self.rpc.call("eth_getTransactionCount", account.address, "pending"), 16
        )
        calls: list[Call] = []
        for offset, transaction in enumerate(transactions):
            full: dict[str, Any] = {
                **transaction,
                **FEES,
                "chainId": self.chain_id,
                "nonce": nonce + offset,
                "value": 0,
                "type": 2,
            }
            if "to" in full:
                full["to"] = to_checksum_address(full["to"])
            signed = Signer.sign_transaction(full, account.private_key)
            calls.append(
                ("eth_sendRawTransaction", ("0x" + signed.raw_transaction.hex(),))
            )
        return calls

    @contextmanager
    def _automine_paused(self, wanted: bool) -> Iterator[None]:
        """Inside this, a chain that mines each transaction at once mines none; it mines
        them at the end. Otherwise it may leave one of many transactions unmined (anvil
        1.7.1: if it mines a block while the next nonce arrives).
        """
        if not wanted or not self.rpc.call("anvil_getAutomine"):
            yield
            return
        self.rpc.call("evm_setAutomine", False)
        try:
            yield
        finally:
            while int(self.rpc.call("txpool_status")["pending"], 16):
                self.mine()
            self.rpc.call("evm_setAutomine", True)
            self.mine()  # what others sent just before automine was on again

    def _request(self, what: str, method: str, *params: object) -> Any:
        """Send a request. Repeats it when anvil was between two blocks
        (BlockOutOfRangeError, for the latest block).
        """
        tries = 0
        while True:
            tries += 1
            try:
                return self.rpc.call(method, *params)
            except RpcUnavailableError:
                if tries == BETWEEN_BLOCKS_TRIES:
                    raise
            except RpcError as error:
                revert = decode_revert(error.data)
                raise ChainError(f"{what} reverts: {revert}", revert) from error
