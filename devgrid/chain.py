"""The grid's chain: an anvil of our own with our contracts on it, and what customers, providers and the grid do there.

Everything that changes the chain waits until it is mined and raises ChainError with the contract's reason when it
reverts. Amounts are in wei: credits x 1e18, or ether x 1e18.
"""

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eth_account import Account as Signer
from eth_utils.address import to_canonical_address, to_checksum_address
from eth_utils.crypto import keccak

from devgrid.miner import MINING_LOCK
from devgrid.process import Processes, free_port, wait_until
from supervisor_tasks.chain.codec import CONTRACTS, Revert, decode_revert, event, function
from supervisor_tasks.chain.rpc import Call, Rpc, RpcError, RpcUnavailableError
from supervisor_tasks.job import ChainStatus

CHAIN_ID = 179188
ETHER = 10**18
UNLIMITED = 2**256 - 1
BLOCK_GAS = 30_000_000
FEES = {"maxFeePerGas": 200 * 10**9, "maxPriorityFeePerGas": 10**9}
BETWEEN_BLOCKS_TRIES = 5
MINED_TIMEOUT_S = 60.0
BROADCASTING = threading.Lock()  # two threads that write for one account must not take the same nonce
REPOSITORY = Path(__file__).resolve().parent.parent
ANVIL = REPOSITORY / "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
BUILD = REPOSITORY / "devgrid/contracts/build"


class ChainError(RuntimeError):
    """The chain refused; `revert` is the contract's reason, where there is one."""

    def __init__(self, message: str, revert: Revert | None = None) -> None:
        super().__init__(message)
        self.revert = revert


@dataclass(frozen=True, slots=True)
class Account:
    """Someone on the chain. The address is lowercase."""

    address: str
    private_key: str

    def __repr__(self) -> str:
        return f"Account({self.address})"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the contracts live, lowercase."""

    metascheduler: str
    jobs: str
    queues: str
    provider_manager: str
    credit: str
    constants: str

    def of(self, contract: str) -> str:
        """The address of a contract by its Solidity name."""
        known = (self.metascheduler, self.jobs, self.queues, self.provider_manager, self.credit, self.constants)
        return dict(zip(CONTRACTS, known, strict=True))[contract]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    """What a customer asks for. `gpus` is per job; `affinity` holds (key, operator, value)."""

    gpus: int = 0
    mem_per_cpu_mb: int = 100
    cpus_per_task: int = 1
    ntasks: int = 1
    batch_location_hash: str = ""
    storage_type: int = 0
    uses: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[str, str, str], ...] = ()

    @property
    def cpus(self) -> int:
        """CPUs of the whole job."""
        return self.cpus_per_task * self.ntasks

    @property
    def memory_mb(self) -> int:
        """Memory of the whole job."""
        return self.mem_per_cpu_mb * self.cpus

    def to_abi(self) -> tuple[Any, ...]:
        """The fields in the order of the contract's struct."""
        affinity = [((key, value), operator.encode().ljust(2, b"\0")) for key, operator, value in self.affinity]
        resources = (self.gpus, self.mem_per_cpu_mb, self.cpus_per_task, self.ntasks)
        return (*resources, self.batch_location_hash, self.storage_type, list(self.uses), affinity)

    @classmethod
    def from_abi(cls, fields: tuple[Any, ...]) -> "JobDefinition":
        """The contract's struct, decoded."""
        gpus, memory, cpus, ntasks, batch_location_hash, storage_type, uses, affinity = fields
        return cls(
            gpus=gpus,
            mem_per_cpu_mb=memory,
            cpus_per_task=cpus,
            ntasks=ntasks,
            batch_location_hash=batch_location_hash,
            storage_type=storage_type,
            uses=tuple(uses),
            affinity=tuple((key, op.rstrip(b"\0").decode(), value) for (key, value), op in affinity),
        )


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a provider."""

    gpus: int
    cpus: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Prices:
    """What one GPU, one CPU and one MB cost a minute; the defaults are those of the supervisor's settings."""

    gpu_wei_per_min: int = 8_500_000_000_000_000_000
    cpu_wei_per_min: int = 950_000_000_000_000_000
    mem_wei_per_min: int = 80_000_000_000_000

    def of(self, definition: JobDefinition) -> int:
        """What a minute of the whole job costs."""
        return (
            definition.gpus * self.gpu_wei_per_min
            + definition.cpus * self.cpu_wei_per_min
            + definition.memory_mb * self.mem_wei_per_min
        )


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider as the contract knows it."""

    address: str
    nodes: tuple[Node, ...]
    prices: Prices
    labels: tuple[tuple[str, str], ...]
    banned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the contract knows it. Times are seconds since the epoch, 0 for "not yet"."""

    job_id: str
    status: ChainStatus
    customer: str
    provider: str
    definition: JobDefinition
    max_cost_wei: int
    final_cost_wei: int
    pending_top_up_wei: int
    delegate_spending_authority: bool
    submit_s: int
    start_s: int
    end_s: int
    cancel_request_s: int
    block_number_state_change: int
    panic_s: int
    name: bytes
    has_cancel_request: bool
    last_error: str
    exit_code: int


class Chain:
    """A running chain. Start one, or load the one that another program started in that folder."""

    def __init__(self, folder: Path, rpc_url: str, chain_id: int, addresses: Addresses) -> None:
        self.folder = folder
        self.rpc_url = rpc_url
        self.ws_url = "ws" + rpc_url.removeprefix("http")
        self.chain_id = chain_id
        self.addresses = addresses
        self.rpc = Rpc.at(rpc_url)

    @classmethod
    def start(cls, processes: Processes, block_time_s: float | None = None) -> "Chain":
        """Start anvil with the contracts deployed and the accounts "admin" and "metascheduler" (which has its role).
        Without a block time each transaction is mined at once. Raises StartError or ChainError.
        """
        rpc_url = f"http://127.0.0.1:{start_anvil(processes, block_time_s)}"
        admin = _random_account()
        addresses = Addresses(*(_address_of(admin.address, nonce) for nonce in _DEPLOYED_AT))
        chain = cls(processes.folder, rpc_url, CHAIN_ID, addresses)
        chain._save({"admin": admin})
        chain._set_balance(admin, 10_000)
        chain._deploy(admin, chain.new_account(role="metascheduler"))
        return chain

    @classmethod
    def load(cls, folder: Path) -> "Chain":
        """The chain that was started in that folder. Raises FileNotFoundError when there was none."""
        known = json.loads((folder / "chain.json").read_text())
        return cls(folder, known["rpc_url"], known["chain_id"], Addresses(**known["addresses"]))

    # --- accounts and credits ---

    def new_account(self, ether: int = 100, role: str | None = None) -> Account:
        """A new account with ether for gas; one with a role is remembered in chain.json (see `account`)."""
        account = _random_account()
        self._set_balance(account, ether)
        if role is not None:
            self._save({**self._accounts(), role: account})
        return account

    def account(self, role: str) -> Account:
        """An account by its role. Raises KeyError when nobody has it."""
        accounts = self._accounts()
        if role not in accounts:
            raise KeyError(f"no account has the role {role!r}; known roles: {sorted(accounts)}")
        return accounts[role]

    def grant_metascheduler(self, account: Account) -> None:
        """Let an account assign jobs to providers."""
        role = self.call("MetaScheduler", "METASCHEDULER_ROLE")[0]
        self.send(self.account("admin"), "MetaScheduler", "grantRole", role, account.address)

    def mint_credits(self, address: str, wei: int) -> None:
        """Give credits to an address."""
        self.send(self.account("admin"), "Credit", "mint", address, wei)

    def credit_balance(self, address: str) -> int:
        """Credits of an address, wei."""
        balance: int = self.call("Credit", "balanceOf", address)[0]
        return balance

    # --- providers ---

    def register_provider(
        self, account: Account, nodes: Sequence[Node], prices: Prices, labels: Mapping[str, str] | None = None
    ) -> None:
        """Register a provider and approve it."""
        self.send_registration(account, nodes, prices, labels)
        self.approve_provider(account.address)

    def send_registration(
        self, account: Account, nodes: Sequence[Node], prices: Prices, labels: Mapping[str, str] | None = None
    ) -> None:
        """Register a provider, who then waits for approval."""
        hardware = (len(nodes), [n.gpus for n in nodes], [n.cpus for n in nodes], [n.memory_mb for n in nodes])
        price = (prices.gpu_wei_per_min, prices.cpu_wei_per_min, prices.mem_wei_per_min)
        self.send(account, "ProviderManager", "register", hardware, price, sorted((labels or {}).items()))

    def approve_provider(self, address: str) -> None:
        """Approve a provider that has registered."""
        self.send(self.account("admin"), "ProviderManager", "approve", address)

    def remove_provider(self, address: str) -> None:
        """Turn a registration down, or end one that was approved."""
        self.send(self.account("admin"), "ProviderManager", "remove", address)

    def ban_provider(self, address: str, banned: bool = True) -> None:
        """Ban a provider, or lift the ban."""
        self.send(self.account("admin"), "ProviderManager", "ban" if banned else "unban", address)

    def waits_for_approval(self, address: str) -> bool:
        """Whether a registration waits."""
        waits: bool = self.call("ProviderManager", "isWaitingForApproval", address)[0]
        return waits

    def provider(self, address: str) -> Provider:
        """An approved provider. Raises ChainError when there is none."""
        return self._provider("getProvider", address)

    def waiting_provider(self, address: str) -> Provider:
        """A provider as it waits for approval. Raises ChainError when none does."""
        return self._provider("getWaitingForApprovalProvider", address)

    def _provider(self, view: str, address: str) -> Provider:
        owner, (_, gpus, cpus, memory), prices, labels, banned = self.call("ProviderManager", view, address)[0]
        if not int(owner, 16):
            raise ChainError(f"ProviderManager.{view}: {address} is unknown")
        nodes = tuple(Node(*node) for node in zip(gpus, cpus, memory, strict=True))
        return Provider(owner.lower(), nodes, Prices(*prices), tuple(labels), banned)

    # --- jobs ---

    def request_job(
        self, customer: Account, definition: JobDefinition, locked_wei: int, name: str = "", delegate: bool = False
    ) -> str:
        """Request a job and lock credits for it; the job's id. `name` has 32 bytes at most in UTF-8."""
        return self._request(customer, definition, 1, locked_wei, name, delegate)[0]

    def request_jobs(self, customer: Account, definition: JobDefinition, n: int, locked_wei: int) -> list[str]:
        """Request n equal jobs at once, each with its own locked credits; their ids."""
        return self._request(customer, definition, n, locked_wei, "", False)

    def meta_schedule(self, job_ids: Sequence[str], provider: str) -> None:
        """Assign jobs to a provider, as the account "metascheduler"."""
        calls = [("MetaScheduler", "metaSchedule", (_bytes(job_id), provider)) for job_id in job_ids]
        self.send_many(self.account("metascheduler"), calls)

    def cancel_job(self, customer: Account, job_id: str) -> None:
        """Cancel a job."""
        self.send(customer, "MetaScheduler", "cancelJob", _bytes(job_id))

    def top_up_job(self, customer: Account, job_id: str, wei: int) -> None:
        """Lock more credits for a job."""
        self._approve(customer, wei)
        self.send(customer, "MetaScheduler", "topUpJob", _bytes(job_id), wei)

    def job(self, job_id: str) -> Job:
        """A job. Raises ChainError (InvalidJob) when there is none of that id."""
        return _job(self.call("JobRepository", "get", _bytes(job_id))[0])

    def jobs(self, job_ids: Sequence[str]) -> list[Job]:
        """Many jobs at once, in their order. Raises ChainError as `job` does."""
        asked = function("JobRepository", "get")
        to = self.addresses.of("JobRepository")
        calls: list[Call] = [
            ("eth_call", ({"to": to, "data": asked.encode(_bytes(job_id))}, "latest")) for job_id in job_ids
        ]
        return [
            self.job(job_id) if isinstance(answer, RpcError) else _job(asked.decode(answer)[0])
            for job_id, answer in zip(job_ids, self.rpc.batch(calls), strict=True)
        ]

    def jobs_of(self, customer: str) -> list[str]:
        """The ids of a customer's jobs, oldest first."""
        return ["0x" + job_id.hex() for job_id in self.call("JobRepository", "getByCustomer", customer)[0]]

    # --- any contract ---

    def call(self, contract: str, name: str, *arguments: object) -> tuple[Any, ...]:
        """What a function of a contract (by its Solidity name) returns. Raises ChainError when it reverts."""
        asked = function(contract, name)
        call = {"to": self.addresses.of(contract), "data": asked.encode(*arguments)}
        return asked.decode(self._ask(f"{contract}.{name}", "eth_call", call, "latest"))

    def send(self, account: Account, contract: str, name: str, *arguments: object) -> dict[str, Any]:
        """Call a function in a transaction; the receipt."""
        return self.send_many(account, [(contract, name, arguments)])[0]

    def send_many(self, account: Account, calls: Sequence[tuple[str, str, Sequence[object]]]) -> list[dict[str, Any]]:
        """Many transactions back to back; the receipts. Gas is estimated for the first call to each function, and the
        others get half as much again. Raises ChainError when any of them reverts.
        """
        gas: dict[str, int] = {}
        transactions: list[dict[str, Any]] = []
        for contract, name, arguments in calls:
            call = {"to": self.addresses.of(contract), "data": function(contract, name).encode(*arguments)}
            if name not in gas:
                asked = self._ask(f"{contract}.{name}", "eth_estimateGas", {**call, "from": account.address})
                gas[name] = int(asked, 16) * 3 // 2
            transactions.append({**call, "gas": gas[name]})
        with self._one_by_one_mining_held(len(calls) > 1):
            hashes = self._broadcast(account, transactions)
        receipts = self._mined(hashes)
        for (contract, name, _), transaction, receipt in zip(calls, transactions, receipts, strict=True):
            if receipt["status"] != "0x1":
                again = {**transaction, "gas": hex(transaction["gas"]), "from": account.address}
                self._ask(f"{contract}.{name}", "eth_call", again, "latest")
                raise ChainError(f"{contract}.{name} reverted in {receipt['transactionHash']}, and would not now")
        return receipts

    def events(self, contract: str, name: str, first_block: int = 0) -> list[tuple[Any, ...]]:
        """The arguments of all events of that name since a block."""
        kind = event(contract, name)
        query = {"address": self.addresses.of(contract), "topics": [kind.topic], "fromBlock": hex(first_block)}
        return [kind.decode(log["data"]) for log in self._ask(name, "eth_getLogs", query)]

    def block_number(self) -> int:
        """The height of the chain."""
        return int(self.rpc.call("eth_blockNumber"), 16)

    def mine(self, blocks: int = 1) -> None:
        """Mine blocks now."""
        self.rpc.call("anvil_mine", hex(blocks))

    def lose_from(self, block: int) -> None:
        """Replace this block and all above it by empty ones. The miner waits: what is mined in the same moment, anvil loses.
        A block that was empty may stay as it is: the one in its place can have the same second and fee, so the same hash.
        """
        with (self.folder / MINING_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            while not self._empty_from(block):
                self.rpc.call("anvil_reorg", self.block_number() - block + 1, [])

    def _empty_from(self, block: int) -> bool:
        numbers = range(block, self.block_number() + 1)
        found = self.rpc.batch([("eth_getBlockByNumber", (hex(number), False)) for number in numbers])
        return all(answer is not None and not answer["transactions"] for answer in found)

    # --- inside ---

    def _request(
        self, customer: Account, definition: JobDefinition, n: int, locked_wei: int, name: str, delegate: bool
    ) -> list[str]:
        self._approve(customer, n * locked_wei)
        arguments = (definition.to_abi(), locked_wei, name.encode().ljust(32, b"\0"), delegate)
        receipts = self.send_many(customer, [("MetaScheduler", "requestNewJob", arguments)] * n)
        requested = event("MetaScheduler", "NewJobRequestEvent")
        logs = [log for receipt in receipts for log in receipt["logs"] if log["topics"][0] == requested.topic]
        return ["0x" + requested.decode(log["data"])[0].hex() for log in logs]

    def _approve(self, customer: Account, wei: int) -> None:
        if self.call("Credit", "allowance", customer.address, self.addresses.metascheduler)[0] < wei:
            self.send(customer, "Credit", "approve", self.addresses.metascheduler, UNLIMITED)

    def _deploy(self, admin: Account, metascheduler: Account) -> None:
        """Everything in one block, with the addresses known beforehand."""
        at = self.addresses
        arguments = {"MetaScheduler": [at.jobs, at.queues, at.provider_manager, at.credit, at.constants]}
        transactions: list[dict[str, Any]] = [
            {"data": _creation(contract, arguments.get(contract, [])), "gas": 6_000_000} for contract in CONTRACTS
        ]
        role = keccak(text="METASCHEDULER_ROLE")
        behind = ("JobRepository", "ProviderJobQueues", "ProviderManager")
        members = {"MetaScheduler": metascheduler.address, **dict.fromkeys(behind, at.metascheduler)}
        for contract, member in members.items():
            data = function(contract, "grantRole").encode(role, member)
            transactions.append({"to": at.of(contract), "data": data, "gas": 100_000})
        hashes = self._broadcast(admin, transactions)
        self.mine()
        failed = [receipt for receipt in self._mined(hashes) if receipt["status"] != "0x1"]
        if failed:
            raise ChainError(f"the contracts were not deployed; failed transactions: {failed}")

    def _broadcast(self, account: Account, transactions: Iterable[dict[str, Any]]) -> list[str]:
        with BROADCASTING:
            answers = self.rpc.batch(self._signed(account, transactions))
        for answer in answers:
            if isinstance(answer, RpcError):
                raise ChainError(f"the node refused a transaction of {account.address}: {answer}") from answer
        return answers

    def _signed(self, account: Account, transactions: Iterable[dict[str, Any]]) -> list[Call]:
        nonce = int(self.rpc.call("eth_getTransactionCount", account.address, "pending"), 16)
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
            calls.append(("eth_sendRawTransaction", ("0x" + signed.raw_transaction.hex(),)))
        return calls

    @contextmanager
    def _one_by_one_mining_held(self, wanted: bool) -> Iterator[None]:
        """A chain that mines each transaction at once may strand one of many that come together (anvil 1.7.1: a block
        mined while the next nonce arrives), so a burst is taken in first and mined then.
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
            self.mine()  # what others sent just before automine came back

    def _mined(self, hashes: Sequence[str]) -> list[dict[str, Any]]:
        """The receipts of one account's transactions: while the last one is not mined, the others need not be asked for."""
        found: dict[str, dict[str, Any]] = {}

        def all_mined() -> bool:
            if hashes[-1] not in found and not self.rpc.call("eth_getTransactionReceipt", hashes[-1]):
                return False
            missing = [hash_ for hash_ in hashes if hash_ not in found]
            answers = self.rpc.batch([("eth_getTransactionReceipt", (hash_,)) for hash_ in missing])
            found.update((hash_, answer) for hash_, answer in zip(missing, answers, strict=True) if answer)
            return len(found) == len(hashes)

        wait_until(all_mined, f"{len(hashes)} transactions to be mined", MINED_TIMEOUT_S, every_s=0.005)
        return [found[hash_] for hash_ in hashes]

    def _ask(self, what: str, method: str, *params: object) -> Any:
        """Asks again when anvil was between two blocks (BlockOutOfRangeError, for a question about the latest one)."""
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

    def _set_balance(self, account: Account, ether: int) -> None:
        self.rpc.call("anvil_setBalance", account.address, hex(ether * ETHER))

    def _accounts(self) -> dict[str, Account]:
        known = json.loads((self.folder / "chain.json").read_text())["accounts"]
        return {role: Account(**account) for role, account in known.items()}

    def _save(self, accounts: Mapping[str, Account]) -> None:
        text = json.dumps(
            {
                "rpc_url": self.rpc_url,
                "ws_url": self.ws_url,
                "chain_id": self.chain_id,
                "addresses": asdict(self.addresses),
                "accounts": {role: asdict(account) for role, account in accounts.items()},
            },
            indent=1,
        )
        new = self.folder / "chain.json.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        new.replace(self.folder / "chain.json")


_DEPLOYED_AT = range(len(CONTRACTS))  # the nonces of the deployments


def start_anvil(processes: Processes, block_time_s: float | None, *options: str) -> int:
    """Start a bare chain, with further command line options of anvil; its port. Raises StartError."""
    port = free_port()
    command: list[str | Path] = [ANVIL, "--port", str(port), "--chain-id", str(CHAIN_ID), "--silent"]
    # states that are kept in memory, none on disk: a reorganisation, and a look back, can be that deep
    command += ["--prune-history", "64", "--slots-in-an-epoch", "1", "--gas-limit", str(BLOCK_GAS), "--accounts", "1"]
    command += ["--no-mining"] if block_time_s is not None else []
    # anvil keeps a cache and spilled states under HOME
    environment = {**os.environ, "HOME": str(processes.folder)}
    processes.start("anvil", [*command, *options], env=environment, ready=_serves(port))
    if block_time_s is not None:
        miner = [
            sys.executable,
            "-m",
            "devgrid.miner",
            "--rpc",
            f"http://127.0.0.1:{port}",
            "--every",
            str(block_time_s),
            "--lock",
            str(processes.folder / MINING_LOCK),
        ]
        processes.start("miner", miner, cwd=REPOSITORY)
    return port


def _serves(port: int) -> Callable[[], bool]:
    rpc = Rpc.at(f"http://127.0.0.1:{port}")

    def serves() -> bool:
        try:
            return int(rpc.call("eth_chainId"), 16) == CHAIN_ID
        except RpcUnavailableError:
            return False

    return serves


def _random_account() -> Account:
    signer = Signer.create()
    return Account(signer.address.lower(), "0x" + bytes(signer.key).hex())


def _address_of(deployer: str, nonce: int) -> str:
    """Where a contract will live that the deployer creates with that nonce (below 128)."""
    encoded_nonce = bytes([nonce or 0x80])  # RLP of a number below 128
    return "0x" + keccak(b"\xd6\x94" + to_canonical_address(deployer) + encoded_nonce)[12:].hex()


def _creation(contract: str, addresses: Sequence[str]) -> str:
    """The data of a transaction that creates a contract whose constructor takes these addresses."""
    bytecode: str = json.loads((BUILD / f"{contract}.json").read_text())["bytecode"]
    return bytecode + "".join(address.removeprefix("0x").rjust(64, "0") for address in addresses)


def _bytes(job_id: str) -> bytes:
    return bytes.fromhex(job_id.removeprefix("0x"))


def _job(fields: tuple[Any, ...]) -> Job:
    job_id, status, customer, provider, definition, cost, time, name, has_cancel_request, last_error, exit_code = fields
    max_cost, final_cost, pending_top_up, delegate = cost
    submit, start, end, cancel_request, block_number, panic = time
    return Job(
        job_id="0x" + job_id.hex(),
        status=ChainStatus(status),
        customer=customer.lower(),
        provider=provider.lower(),
        definition=JobDefinition.from_abi(definition),
        max_cost_wei=max_cost,
        final_cost_wei=final_cost,
        pending_top_up_wei=pending_top_up,
        delegate_spending_authority=delegate,
        submit_s=submit,
        start_s=start,
        end_s=end,
        cancel_request_s=cancel_request,
        block_number_state_change=block_number,
        panic_s=panic,
        name=name.rstrip(b"\0"),
        has_cancel_request=has_cancel_request,
        last_error=last_error,
        exit_code=exit_code,
    )
