"""Starts anvil and deploys the contracts on it."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eth_utils.address import to_canonical_address
from eth_utils.crypto import keccak

from devgrid import REPOSITORY
from devgrid.chain.block_producer import MINING_LOCK
from devgrid.chain.chain import Chain, random_account
from devgrid.chain.model import Account, ChainAddresses, ChainError
from devgrid.ports import free_port
from devgrid.processes import Processes
from supervisor_tasks.chain.abi_codec import CONTRACTS, function
from supervisor_tasks.chain.rpc.client import Rpc, RpcUnavailableError

CHAIN_ID = 179188
BLOCK_GAS = 30_000_000
ANVIL = REPOSITORY / "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
BUILD = REPOSITORY / "devgrid/contracts/build"
ANVIL_PROCESS = "anvil"
BLOCK_PRODUCER = "block-producer"


def start_chain(processes: Processes, block_time_s: float | None = None) -> Chain:
    """Start anvil with the contracts deployed and the accounts "admin" and
    "metascheduler" (which has its role). Without a block time each transaction is mined
    at once. Raises StartError or ChainError.
    """
    port = start_anvil(processes, block_time_s)
    return deploy(processes.folder, f"http://127.0.0.1:{port}")


def deploy(folder: Path, rpc_url: str) -> Chain:
    """Deploy the contracts on a running chain, with an "admin" and a "metascheduler" of
    their own, whose keys are in the folder. Raises ChainError.
    """
    admin = random_account()
    addresses = ChainAddresses(
        *(_address_of(admin.address, nonce) for nonce in range(len(CONTRACTS)))
    )
    chain = Chain(folder, rpc_url, CHAIN_ID, addresses)
    chain.save_accounts({"admin": admin})
    chain.set_balance(admin, 10_000)
    _deploy(chain, admin, chain.new_account(role="metascheduler"))
    return chain


def start_anvil(processes: Processes, block_time_s: float | None, *options: str) -> int:
    """Start a chain without contracts, with further options of anvil. Returns its port.
    Raises StartError.
    """
    port = free_port()
    command: list[str | Path] = [
        ANVIL,
        "--port",
        str(port),
        "--chain-id",
        str(CHAIN_ID),
        "--silent",
    ]
    # anvil keeps so many states, in memory and not on disk: reorganisations and queries
    # of old blocks can be that deep
    command += [
        "--prune-history",
        "64",
        "--slots-in-an-epoch",
        "1",
        "--gas-limit",
        str(BLOCK_GAS),
        "--accounts",
        "1",
    ]
    command += ["--no-mining"] if block_time_s is not None else []
    # anvil keeps a cache and spilled states under HOME
    environment = {**os.environ, "HOME": str(processes.folder)}
    processes.start(
        ANVIL_PROCESS, [*command, *options], env=environment, ready=_serves(port)
    )
    if block_time_s is not None:
        _start_block_producer(processes, port, block_time_s)
    return port


def _start_block_producer(processes: Processes, port: int, block_time_s: float) -> None:
    options = {
        "--rpc": f"http://127.0.0.1:{port}",
        "--every": str(block_time_s),
        "--lock": str(processes.folder / MINING_LOCK),
    }
    words = [word for pair in options.items() for word in pair]
    processes.start(
        BLOCK_PRODUCER,
        [sys.executable, "-m", "devgrid.chain.block_producer", *words],
        cwd=REPOSITORY,
    )


def _serves(port: int) -> Callable[[], bool]:
    rpc = Rpc.at(f"http://127.0.0.1:{port}")

    def serves() -> bool:
        try:
            return int(rpc.call("eth_chainId"), 16) == CHAIN_ID
        except RpcUnavailableError:
            return False

    return serves


def _deploy(chain: Chain, admin: Account, metascheduler: Account) -> None:
    """Deploy everything in one block: the addresses are known beforehand."""
    at = chain.addresses
    arguments = {
        "MetaScheduler": [
            at.jobs,
            at.queues,
            at.provider_manager,
            at.credit,
            at.constants,
        ]
    }
    transactions: list[dict[str, Any]] = [
        {"data": _creation(contract, arguments.get(contract, [])), "gas": 6_000_000}
        for contract in CONTRACTS
    ]
    role = keccak(text="METASCHEDULER_ROLE")
    called = ("JobRepository", "ProviderJobQueues", "ProviderManager")
    members = {
        "MetaScheduler": metascheduler.address,
        **dict.fromkeys(called, at.metascheduler),
    }
    for contract, member in members.items():
        data = function(contract, "grantRole").encode(role, member)
        transactions.append({"to": at.of(contract), "data": data, "gas": 100_000})
    hashes = chain.broadcast(admin, transactions)
    chain.mine()
    failed = [
        receipt for receipt in chain.receipts(hashes) if receipt["status"] != "0x1"
    ]
    if failed:
        raise ChainError(
            f"the contracts were not deployed; failed transactions: {failed}"
        )


def _address_of(deployer: str, nonce: int) -> str:
    """The address of the contract that the deployer creates with that nonce (below
    128).
    """
    encoded_nonce = bytes([nonce or 0x80])  # RLP of a number below 128
    return (
        "0x"
        + keccak(b"\xd6\x94" + to_canonical_address(deployer) + encoded_nonce)[
            12:
        ].hex()
    )


def _creation(contract: str, addresses: Sequence[str]) -> str:
    """The data of a transaction that creates a contract whose constructor takes these
    addresses.
    """
    bytecode: str = json.loads((BUILD / f"{contract}.json").read_text())["bytecode"]
    return bytecode + "".join(
        address.removeprefix("0x").rjust(64, "0") for address in addresses
    )
