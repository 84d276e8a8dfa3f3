"""The meta-scheduler's contracts: typed questions, the calls that a provider sends, and what their logs say."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.exceptions import DecodingError

from supervisor_tasks.chain.codec import Function, decode_revert, event, function
from supervisor_tasks.chain.rpc import Call, Rpc, RpcError, RpcUnavailableError, require
from supervisor_tasks.errors import PermanentError
from supervisor_tasks.events import CancelRequested, ChainSaw, Claimed, Event, ToppedUp
from supervisor_tasks.job import Address, ChainStatus, Definition, JobId, Report
from supervisor_tasks.known import OnChain
from supervisor_tasks.offer import Machine, Offer, Prices
from supervisor_tasks.registration import OnOffer

CLAIM = function("MetaScheduler", "claimNextJob")
CLAIM_CANCELLING = function("MetaScheduler", "claimNextCancellingJob")
CLAIM_TOP_UP = function("MetaScheduler", "claimNextTopUpJob")
REFUSE = function("MetaScheduler", "refuseJob")
SET_STATUS = function("MetaScheduler", "providerSetJobStatus")
GET_JOB = function("JobRepository", "get")
REGISTER = function("ProviderManager", "register")
GET_PROVIDER = function("ProviderManager", "getProvider")
GET_WAITING = function("ProviderManager", "getWaitingForApprovalProvider")
PROVIDER_VIEWS = ("isValidForScheduling", "isWaitingForApproval", "isBanned")

NEW_JOB = event("MetaScheduler", "NewJobRequestEvent")
CLAIMED = event("MetaScheduler", "ClaimJobEvent")
CANCELLING = event("MetaScheduler", "ClaimNextCancellingJobEvent")
TOPPED_UP = event("MetaScheduler", "ClaimNextTopUpJobEvent")
TRANSITION = event("JobRepository", "JobTransitionEvent")
TOPICS = [CLAIMED.topic, CANCELLING.topic, TOPPED_UP.topic, TRANSITION.topic]

JOBS_AT_ONCE = 1000  # jobs in one HTTP request: 2 MB of answer; geth allows no more calls, others fewer (rpc.py)
WORD = 64  # hex digits
SAID = 200  # characters of an error that are told
GREATEST_BIGINT = 2**63 - 1  # that the ledger keeps


class WrongChainError(PermanentError):
    """The endpoint serves another chain than the settings name."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the contracts live."""

    metascheduler: str
    jobs: str
    queues: str
    providers: str


@dataclass(frozen=True, slots=True)
class Permission:
    """What the contract lets the provider do: whether it may claim, waits for approval, is banned."""

    valid: bool
    waiting: bool
    banned: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """What the contract has for the provider now, and what the wallet holds."""

    claimable: int
    cancelling: int
    topped_up: int
    open: bool
    balance_wei: int
    permission: Permission


@dataclass(frozen=True, slots=True)
class Standing:
    """What the contract says of a job at a block."""

    status: ChainStatus
    ours: bool
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a job, as a log tells it."""

    job_id: JobId
    event: Event
    tx_hash: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A log of the contracts that is not what their ABI says."""

    tx_hash: str
    block: int
    topic: str
    error: str


class Contract:
    """The contracts as one provider sees them. The addresses behind the entry point are asked for at first use."""

    def __init__(self, rpc: Rpc, chain_id: int, address: str, provider: Address) -> None:
        self.rpc = rpc
        self.chain_id = chain_id
        self.address = Address(address.lower())
        self.provider = provider
        self._lock = threading.Lock()
        self._addresses: Addresses | None = None

    @property
    def addresses(self) -> Addresses:
        """Where the contracts live. Raises RpcUnavailableError (retry helps) or WrongChainError (it does not)."""
        with self._lock:
            if self._addresses is None:
                self._addresses = self._ask_addresses()
            return self._addresses

    def demand(self) -> Demand:
        """Queue sizes, whether the contract is open, the wallet's balance, and what the provider may do, in one request."""
        sizes = ("getClaimableJobQueueSize", "getCancellingJobQueueSize", "getTopUpJobQueueSize")
        queues = self.addresses.queues
        calls = [_view(queues, function("ProviderJobQueues", name).encode(self.provider)) for name in sizes]
        calls.append(_view(self.address, function("MetaScheduler", "enableRequestNewJob").encode()))
        calls.append(("eth_getBalance", (self.provider, "latest")))
        calls += [self._about_provider(name) for name in PROVIDER_VIEWS]
        claimable, cancelling, topped_up, is_open, balance, *views = [
            _there(answer) for answer in self.rpc.batch(calls)
        ]
        return Demand(
            int(claimable, 16),
            int(cancelling, 16),
            int(topped_up, 16),
            bool(int(is_open, 16)),
            int(balance, 16),
            Permission(*(bool(int(view, 16)) for view in views)),
        )

    def on_offer(self) -> OnOffer:
        """What is registered, and what waits for approval, at one block."""
        block = int(self.rpc.call("eth_blockNumber"), 16)
        names = ("getProvider", "getWaitingForApprovalProvider", "isBanned")
        registered, waiting, banned = self.rpc.batch([self._about_provider(name, block) for name in names])
        return OnOffer(
            registered=_offer(GET_PROVIDER, registered),
            waiting=_offer(GET_WAITING, waiting),
            banned=bool(int(_there(banned), 16)),
            block=block,
        )

    def _about_provider(self, name: str, block: int | None = None) -> Call:
        return _view(self.addresses.providers, function("ProviderManager", name).encode(self.provider), block)

    def statuses(self, job_ids: Sequence[JobId], not_before: int = 0) -> dict[JobId, tuple[ChainStatus, str]]:
        """The status of jobs on chain, and whose they are (lowercase provider address), all at one block. One that the contract
        does not have is left out. Raises RpcUnavailableError when the node does not have the block `not_before` yet: what it
        says is of the past.
        """
        head = int(self.rpc.call("eth_blockNumber"), 16)
        if head < not_before:
            raise RpcUnavailableError(f"the node is at block {head}, and {not_before} was seen already")
        data = [GET_JOB.encode(bytes.fromhex(job_id[2:])) for job_id in job_ids]
        calls = [_view(self.addresses.jobs, call, head) for call in data]
        found = {}
        for job_id, answer in zip(job_ids, self.rpc.batch(calls), strict=True):
            if not (isinstance(answer, RpcError) and answer.reverted):
                (_, status, _, provider, *_), *_ = GET_JOB.decode(_there(answer))
                found[job_id] = ChainStatus(status), provider.lower()
        return found

    def on_chain(self, job_ids: Sequence[JobId], block: int) -> dict[JobId, OnChain]:
        """How jobs stood at a block, a thousand in one request. One that the contract does not have is left out."""
        to, at = self.addresses.jobs, hex(block)
        data = (GET_JOB.encode(bytes.fromhex(job_id[2:])) for job_id in job_ids)
        answers = self.rpc.batch([("eth_call", ({"to": to, "data": call}, at)) for call in data], JOBS_AT_ONCE)
        found = {}
        for job_id, answer in zip(job_ids, answers, strict=True):
            if not (isinstance(answer, RpcError) and answer.reverted):
                found[job_id] = _on_chain(_there(answer))
        return found

    def standings(self, job_ids: Sequence[JobId], block: int) -> dict[JobId, Standing]:
        """What the contract says of jobs at that block, in one batch. Of one that it does not know, it says that it is
        nobody's. Raises RpcUnavailableError where the node cannot see so far.
        """
        calls = [_view(self.addresses.jobs, GET_JOB.encode(bytes.fromhex(job_id[2:])), block) for job_id in job_ids]
        return {job_id: self._standing(answer) for job_id, answer in zip(job_ids, self.rpc.batch(calls), strict=True)}

    def _standing(self, answer: Any) -> Standing:
        if isinstance(answer, RpcError) and answer.data and decode_revert(answer.data).name == "InvalidJob":
            return Standing(ChainStatus.PENDING, ours=False, cancel_requested=False)
        (_, status, _, provider, _, _, _, _, cancel_requested, *_), *_ = GET_JOB.decode(_there(answer))
        return Standing(ChainStatus(status), provider.lower() == self.provider, cancel_requested)

    def logs_call(self, first: int, last: int) -> Call:
        """The question for the logs of these blocks that may concern a provider."""
        addresses, topics = self.logs_of_interest()
        query = {"fromBlock": hex(first), "toBlock": hex(last), "address": addresses, "topics": [topics]}
        return "eth_getLogs", (query,)

    def logs_of_interest(self) -> tuple[list[str], list[str]]:
        """The addresses and the topics of the logs that may concern a provider. Raises as `addresses` does."""
        return [self.addresses.metascheduler, self.addresses.jobs], list(TOPICS)

    def customers(self, first: int, last: int) -> list[Address]:
        """Who has asked for a job in these blocks, of any provider."""
        query = {"fromBlock": hex(first), "toBlock": hex(last), "address": self.address, "topics": [[NEW_JOB.topic]]}
        asked = [NEW_JOB.decode(log["data"])[1].lower() for log in self.rpc.call("eth_getLogs", query)]
        return [Address(customer) for customer in dict.fromkeys(asked)]

    def happened(self, logs: Iterable[dict[str, Any]]) -> tuple[list[Happened], list[Unreadable]]:
        """What logs, in the chain's order, say of this provider's jobs; and those that say nothing that can be read.
        Transitions of others' jobs are among them: the ledger does not know those.
        """
        events, unreadable, seen = list[Happened](), list[Unreadable](), Counter[str]()
        for log in _each_once(logs):
            ours = log["address"].lower() in (self.addresses.metascheduler, self.addresses.jobs)
            if ours and log["topics"] and log["topics"][0] in TOPICS:
                # Its number among the logs of its transaction: the block, and with it the log's index, may change.
                number = seen[log["transactionHash"]]
                seen[log["transactionHash"]] += 1
                try:
                    events += _happened(log, f"{log['transactionHash']}:{number}", self.provider)
                except (DecodingError, ValueError) as error:
                    unreadable.append(_unreadable(log, error))
        return events, unreadable

    def _ask_addresses(self) -> Addresses:
        names = ("jobs", "providerJobQueues", "providerManager")
        calls: list[Call] = [_view(self.address, function("MetaScheduler", name).encode()) for name in names]
        chain_id, *found = [_there(answer) for answer in self.rpc.batch([("eth_chainId", ()), *calls])]
        if int(chain_id, 16) != self.chain_id:
            raise WrongChainError(f"the endpoint serves chain {int(chain_id, 16)}, the settings want {self.chain_id}")
        return Addresses(self.address, *(_address(word) for word in found))


def report_call(job_id: JobId, report: Report) -> str:
    """The data of providerSetJobStatus."""
    return SET_STATUS.encode(
        bytes.fromhex(job_id[2:]), int(report.status), report.minutes, report.reason, report.exit_status
    )


def refuse_call(job_id: JobId) -> str:
    """The data of refuseJob."""
    return REFUSE.encode(bytes.fromhex(job_id[2:]))


def register_call(offer: Offer) -> str:
    """The data of register."""
    machines, per_min = offer.machines, offer.prices
    prices = per_min.gpu_wei_per_min, per_min.cpu_wei_per_min, per_min.mem_wei_per_min
    hardware = (
        len(machines),
        [machine.gpus for machine in machines],
        [machine.cpus for machine in machines],
        [machine.mem_mb for machine in machines],
    )
    return REGISTER.encode(hardware, prices, offer.labels)


def _offer(asked: Function, answer: Any) -> Offer | None:
    """What a provider offers. One that is not there is a revert, or nobody's address."""
    if isinstance(answer, RpcError) and answer.reverted:
        return None
    address, (_, gpus, cpus, mem_mb), prices, labels, _ = asked.decode(_there(answer))[0]
    if not int(address, 16):
        return None
    machines = tuple(Machine(*numbers) for numbers in zip(gpus, cpus, mem_mb, strict=True))
    return Offer(machines, Prices(*prices), tuple(sorted((key, value) for key, value in labels)))


def _on_chain(answer: str) -> OnChain:
    """The fields of the struct that have a fixed place, behind its offset and the job's id: decoding all of it takes longer
    than the node takes to answer.
    """
    words = [answer[place : place + WORD] for place in range(len("0x"), len("0x") + 5 * WORD, WORD)]
    _, _, status, customer, provider = words
    return OnChain(ChainStatus(int(status, 16)), _address(customer), _address(provider))


def _address(word: str) -> Address:
    return Address("0x" + word[-40:].lower())


def _each_once(logs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Logs in the chain's order: they are counted, and a node may show one twice, or in another order."""
    unique = {(log["blockHash"], int(log["logIndex"], 16)): log for log in logs}
    return sorted(unique.values(), key=_place)


def _place(log: dict[str, Any]) -> tuple[int, int]:
    """Block, and number in it."""
    return int(log["blockNumber"], 16), int(log["logIndex"], 16)


def _happened(log: dict[str, Any], key: str, provider: Address) -> list[Happened]:
    """Nothing of another provider's is read: what its customers write is no business of ours."""
    topic, at = log["topics"][0], _place(log)
    if topic != TRANSITION.topic and _owner(log["data"]) != provider:
        return []
    if topic == CLAIMED.topic:
        customer, owner, job_id, minutes, definition = CLAIMED.decode(log["data"])
        event: Event = Claimed(
            job_id=_job_id(job_id),
            customer=Address(customer.lower()),
            provider=Address(owner.lower()),
            claim_key=key,
            definition=_definition(definition),
            time_limit_min=min(minutes, GREATEST_BIGINT),  # of a job that costs nothing the contract says 2^64 - 1
            at=at,
        )
    elif topic == CANCELLING.topic:
        *_, job_id = CANCELLING.decode(log["data"])
        event = CancelRequested(at)
    elif topic == TOPPED_UP.topic:
        job_id, _, minutes = TOPPED_UP.decode(log["data"])
        event = ToppedUp(key, minutes, at)
    else:
        job_id, _, status = TRANSITION.decode(log["data"])
        event = ChainSaw(ChainStatus(status), at)
    return [Happened(_job_id(job_id), event, log["transactionHash"])]


def _owner(data: str) -> Address:
    """Whose event it is: all but transitions have the provider as their second argument. Raises ValueError."""
    words = data.removeprefix("0x")
    if len(words) < 2 * WORD:
        raise ValueError(f"{len(words) // 2} bytes of data hold no provider")
    return _address(words[WORD : 2 * WORD])


def _unreadable(log: dict[str, Any], error: Exception) -> Unreadable:
    return Unreadable(log["transactionHash"], int(log["blockNumber"], 16), log["topics"][0], f"{error!r}"[:SAID])


def _definition(fields: tuple[Any, ...]) -> Definition:
    gpus, mem_per_cpu_mb, cpus_per_task, ntasks, batch_location_hash, *_ = fields
    return Definition(
        gpus=gpus,
        mem_per_cpu_mb=mem_per_cpu_mb,
        cpus_per_task=cpus_per_task,
        ntasks=ntasks,
        batch_location_hash=batch_location_hash,
    )


def _job_id(raw: bytes) -> JobId:
    return JobId("0x" + raw.hex())


def _view(address: str, data: str, block: int | None = None) -> Call:
    return "eth_call", ({"to": address, "data": data}, "latest" if block is None else hex(block))


def _there(answer: Any) -> str:
    """What a contract, or the node, returned. A node that does not have the contract (yet) answers with no bytes."""
    found: str = require(answer)
    if found == "0x":
        raise RpcUnavailableError("the RPC endpoint does not have the contract")
    return found
