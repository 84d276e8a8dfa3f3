"""The meta-scheduler's contracts: typed questions, the calls that a provider sends, and
the events in their logs.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eth_abi.exceptions import DecodingError

from supervisor_tasks.chain.abi_codec import Function, decode_revert, event, function
from supervisor_tasks.chain.rpc.client import (
    BATCH_CALLS,
    Call,
    Rpc,
    RpcError,
    RpcUnavailableError,
    require,
)
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    Claimed,
    Event,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    JobId,
    StatusUpdate,
)
from supervisor_tasks.provider.offer import Machine, Offer, Prices
from supervisor_tasks.provider.registration_rules import OnChainOffers
from supervisor_tasks.reconciliation.models import OnChainJob

CLAIM = function("MetaScheduler", "claimNextJob")
CLAIM_CANCELLING = function("MetaScheduler", "claimNextCancellingJob")
CLAIM_TOP_UP = function("MetaScheduler", "claimNextTopUpJob")
REFUSE = function("MetaScheduler", "refuseJob")
SET_STATUS = function("MetaScheduler", "providerSetJobStatus")
GET_JOB = function("JobRepository", "get")
JOBS = function("MetaScheduler", "jobs")
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

# about jobs: the node works on one while the answer to the other is read
REQUESTS_AT_ONCE = 2
# jobs in one HTTP request: 2 MB of answer; geth allows no more calls, others fewer
# (rpc/client.py)
JOBS_AT_ONCE = 1000
ABI_SLOT_DIGITS = 64  # hex digits
# of JobRepository.get's answer: blockNumberStateChange
STATE_CHANGE_SLOT = 14
MAX_ERROR_CHARS = 200  # characters of an error that are kept
MAX_BIGINT = 2**63 - 1  # the greatest number that the ledger stores


class WrongChainError(PermanentError):
    """The endpoint serves another chain than the settings name."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the contracts."""

    metascheduler: str
    jobs: str
    queues: str
    providers: str


@dataclass(frozen=True, slots=True)
class ClaimPermission:
    """What the contract lets the provider do: whether it may claim, waits for approval,
    is banned.
    """

    valid: bool
    waiting: bool
    banned: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """What the contract has for the provider now, and the wallet's balance."""

    claimable: int
    cancelling: int
    topped_up: int
    open: bool
    balance_wei: int
    permission: ClaimPermission


@dataclass(frozen=True, slots=True)
class OnChainJobOwner:
    """The state of a job on the contract at a block."""

    status: ChainStatus
    ours: bool
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """An event of a job, read from a log."""

    job_id: JobId
    event: Event
    tx_hash: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A log of the contracts that does not match their ABI."""

    tx_hash: str
    block: int
    topic: str
    error: str


class Contract:
    """The contracts as one provider sees them. The addresses behind the entry point are
    read at first use.
    """

    def __init__(
        self, rpc: Rpc, chain_id: int, address: str, provider: Address
    ) -> None:
        self.rpc = rpc
        self.chain_id = chain_id
        self.address = Address(address.lower())
        self.provider = provider
        self._lock = threading.Lock()
        self._addresses: Addresses | None = None

    @property
    def addresses(self) -> Addresses:
        """The addresses of the contracts. Raises RpcUnavailableError (retry helps) or
        WrongChainError (it does not).
        """
        with self._lock:
            if self._addresses is None:
                self._addresses = self._ask_addresses()
            return self._addresses

    def of_each(
        self, endpoints: Endpoints, calls: Sequence[Call]
    ) -> dict[str, list[Any]]:
        """The answers of every endpoint, by its name: see Endpoints.each. An endpoint
        that shows another contract of the jobs than the one in use has no answers. If
        none shows that one, the addresses are asked for again at the next use.
        """
        jobs = self.addresses.jobs
        ask_jobs = _view(self.address, JOBS.encode())
        answers = endpoints.each([ask_jobs, *calls])
        agreeing = {
            name
            for name, (its_jobs, *_) in answers.items()
            if not isinstance(its_jobs, RpcError) and _address(its_jobs) == jobs
        }
        if answers and not agreeing:
            with self._lock:
                self._addresses = None
        return {
            name: its_answers[1:] if name in agreeing else []
            for name, its_answers in answers.items()
        }

    def demand(self) -> Demand:
        """Queue sizes, whether the contract is open, the wallet's balance and the
        provider's rights, in one request.
        """
        sizes = (
            "getClaimableJobQueueSize",
            "getCancellingJobQueueSize",
            "getTopUpJobQueueSize",
        )
        queues = self.addresses.queues
        calls = [
            _view(queues, function("ProviderJobQueues", name).encode(self.provider))
            for name in sizes
        ]
        calls.append(
            _view(
                self.address, function("MetaScheduler", "enableRequestNewJob").encode()
            )
        )
        calls.append(("eth_getBalance", (self.provider, "latest")))
        calls += [self._provider_view(name) for name in PROVIDER_VIEWS]
        claimable, cancelling, topped_up, is_open, balance, *views = [
            self._returned(answer) for answer in self.rpc.batch(calls)
        ]
        return Demand(
            int(claimable, 16),
            int(cancelling, 16),
            int(topped_up, 16),
            bool(int(is_open, 16)),
            int(balance, 16),
            ClaimPermission(*(bool(int(view, 16)) for view in views)),
        )

    def on_offer(self) -> OnChainOffers:
        """The registered offer, and the one that waits for approval, at one block."""
        block = int(self.rpc.call("eth_blockNumber"), 16)
        names = ("getProvider", "getWaitingForApprovalProvider", "isBanned")
        registered, waiting, banned = self.rpc.batch(
            [self._provider_view(name, block) for name in names]
        )
        return OnChainOffers(
            registered=self._offer(GET_PROVIDER, registered),
            waiting=self._offer(GET_WAITING, waiting),
            banned=bool(int(self._returned(banned), 16)),
            block=block,
        )

    def _provider_view(self, name: str, block: int | None = None) -> Call:
        return _view(
            self.addresses.providers,
            function("ProviderManager", name).encode(self.provider),
            block,
        )

    def _offer(self, view: Function, answer: Any) -> Offer | None:
        """A provider's offer. None when there is none: then the call reverts, or the
        address in the answer is zero.
        """
        if _is_revert(answer):
            return None
        address, (_, gpus, cpus, mem_mb), prices, labels, _ = view.decode(
            self._returned(answer)
        )[0]
        if not int(address, 16):
            return None
        machines = tuple(
            Machine(*numbers) for numbers in zip(gpus, cpus, mem_mb, strict=True)
        )
        return Offer(machines, Prices(*prices), tuple(sorted(labels)))

    def _returned(self, answer: Any) -> str:
        """What a contract, or the node, returned. Raises RpcUnavailableError for an
        answer of no bytes: a node that does not have the contract (yet) returns that.
        """
        returned: str = require(answer)
        if returned == "0x":
            raise RpcUnavailableError(
                f"the RPC endpoint does not have the contract: found no code of {self.address} or of its parts;"
                " see the endpoint's chain and METASCHEDULER_SMART_CONTRACT"
            )
        return returned

    def statuses(
        self, job_ids: Sequence[JobId], not_before: int = 0
    ) -> dict[JobId, tuple[ChainStatus, str]]:
        """The status of jobs on chain, and their provider (lowercase address), all at
        one block. A job that the contract does not have is left out. Raises
        RpcUnavailableError, when no endpoint answers, or the node does not have the block
        `not_before` yet: its answers would be out of date. A retry helps.
        """
        head = int(self.rpc.call("eth_blockNumber"), 16)
        if head < not_before:
            raise RpcUnavailableError(
                f"the node is at block {head}, and {not_before} was seen already"
            )
        statuses = {}
        for job_id, answer in self._ask_jobs(job_ids, head):
            if _is_revert(answer):
                continue
            (_, status, _, provider, *_), *_ = GET_JOB.decode(self._returned(answer))
            statuses[job_id] = ChainStatus(status), provider.lower()
        return statuses

    def statuses_of_each(
        self, endpoints: Endpoints, job_ids: Sequence[JobId]
    ) -> dict[str, dict[JobId, tuple[ChainStatus, str]]]:
        """The status of jobs and their provider as each endpoint has them now, by its
        name. An answer that cannot be read is left out.
        """
        jobs = self.addresses.jobs
        calls = [_view(jobs, _get_job(job_id)) for job_id in job_ids]
        shown = dict[str, dict[JobId, tuple[ChainStatus, str]]]()
        for name, answers in self.of_each(endpoints, calls).items():
            shown[name] = {}
            for job_id, answer in zip(job_ids, answers, strict=False):
                if isinstance(answer, RpcError):
                    continue
                with suppress(ValueError):
                    job = _on_chain(answer)
                    shown[name][job_id] = job.status, job.provider
        return shown

    def on_chain(self, job_ids: Sequence[JobId], block: int) -> dict[JobId, OnChainJob]:
        """The state of jobs at a block, a thousand in one request. A job that the
        contract lacks is left out.
        """
        parts = [
            job_ids[start : start + JOBS_AT_ONCE]
            for start in range(0, len(job_ids), JOBS_AT_ONCE)
        ]
        with ThreadPoolExecutor(
            REQUESTS_AT_ONCE, thread_name_prefix="jobs on chain"
        ) as pool:
            found = dict[JobId, OnChainJob]()
            for jobs in pool.map(lambda part: self._jobs_at(part, block), parts):
                found |= jobs
            return found

    def _jobs_at(self, job_ids: Sequence[JobId], block: int) -> dict[JobId, OnChainJob]:
        jobs = {}
        for job_id, answer in self._ask_jobs(job_ids, block, JOBS_AT_ONCE):
            if not _is_revert(answer):
                jobs[job_id] = _on_chain(self._returned(answer))
        return jobs

    def _ask_jobs(
        self, job_ids: Sequence[JobId], block: int, at_once: int = BATCH_CALLS
    ) -> Iterable[tuple[JobId, Any]]:
        """Each job with the contract's answer about it at a block."""
        calls = [
            _view(self.addresses.jobs, _get_job(job_id), block) for job_id in job_ids
        ]
        return zip(job_ids, self.rpc.batch(calls, at_once), strict=True)

    def owners_at(
        self, job_ids: Sequence[JobId], block: int
    ) -> dict[JobId, OnChainJobOwner]:
        """The state of jobs on the contract at that block, in one batch. A job that the
        contract does not know counts as not ours. Raises RpcUnavailableError, when no
        endpoint answers or the node does not have the block; a retry helps.
        """
        return {
            job_id: self._owner(answer)
            for job_id, answer in self._ask_jobs(job_ids, block)
        }

    def _owner(self, answer: Any) -> OnChainJobOwner:
        if _is_unknown_job(answer):
            return OnChainJobOwner(
                ChainStatus.PENDING, ours=False, cancel_requested=False
            )
        (_, status, _, provider, _, _, _, _, cancel_requested, *_), *_ = GET_JOB.decode(
            self._returned(answer)
        )
        return OnChainJobOwner(
            ChainStatus(status), provider.lower() == self.provider, cancel_requested
        )

    def logs_call(self, first: int, last: int) -> Call:
        """The question for the logs of these blocks that may concern a provider."""
        addresses, topics = self.logs_of_interest()
        query = {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": addresses,
            "topics": [topics],
        }
        return "eth_getLogs", (query,)

    def logs_of_interest(self) -> tuple[list[str], list[str]]:
        """The addresses and the topics of the logs that may concern a provider. Raises
        as `addresses` does.
        """
        return list(dict.fromkeys(self._emitters().values())), list(TOPICS)

    def _emitters(self) -> dict[str, str]:
        """The contract that emits the events, by topic."""
        emitters = dict.fromkeys(TOPICS, self.addresses.metascheduler)
        emitters[TRANSITION.topic] = self.addresses.jobs
        return emitters

    def customers(
        self, first: int, last: int
    ) -> tuple[list[Address], list[Unreadable]]:
        """The customers that requested a job in these blocks, from any provider, each
        of them once; and the logs that cannot be read.
        """
        query = {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": self.address,
            "topics": [[NEW_JOB.topic]],
        }
        customers = list[Address]()
        unreadable = list[Unreadable]()
        for log in self.rpc.call("eth_getLogs", query):
            # a node may send more than it was asked for
            is_request = log["topics"][:1] == [NEW_JOB.topic]
            if not is_request or log["address"].lower() != self.address:
                continue
            try:
                customers.append(Address(NEW_JOB.decode(log["data"])[1].lower()))
            except (DecodingError, ValueError) as error:
                unreadable.append(_unreadable(log, error))
        return list(dict.fromkeys(customers)), unreadable

    def decode_events(
        self, logs: Iterable[dict[str, Any]]
    ) -> tuple[list[ChainEvent], list[Unreadable]]:
        """The events of this provider's jobs in the logs, in the chain's order; and the
        logs that cannot be read. Transitions of other providers' jobs are among the
        events: the ledger does not know those jobs.
        """
        events = list[ChainEvent]()
        unreadable = list[Unreadable]()
        seen = Counter[str]()
        emitters = self._emitters()
        for log in _each_once(logs):
            # An event counts only from the contract that emits it. A liar can deploy
            # a contract that emits the same, and a lying node can show its address.
            topics = log["topics"][:1]
            if not topics or emitters.get(topics[0]) != log["address"].lower():
                continue
            # The log's number within its transaction: its block, and with it its
            # index in the block, may change.
            tx_hash = log["transactionHash"]
            number = seen[tx_hash]
            seen[tx_hash] += 1
            try:
                events += _events_in(log, f"{tx_hash}:{number}", self.provider)
            except (DecodingError, ValueError) as error:
                unreadable.append(_unreadable(log, error))
        return events, unreadable

    def _ask_addresses(self) -> Addresses:
        names = ("jobs", "providerJobQueues", "providerManager")
        calls: list[Call] = [
            _view(self.address, function("MetaScheduler", name).encode())
            for name in names
        ]
        answers = self.rpc.batch([("eth_chainId", ()), *calls])
        chain_id, *words = map(self._returned, answers)
        if int(chain_id, 16) != self.chain_id:
            raise WrongChainError(
                f"the endpoint serves chain {int(chain_id, 16)}, the settings want {self.chain_id}"
            )
        return Addresses(self.address, *map(_address, words))


def report_call(job_id: JobId, report: StatusUpdate) -> str:
    """The data of providerSetJobStatus."""
    return SET_STATUS.encode(
        bytes.fromhex(job_id[2:]),
        int(report.status),
        report.minutes,
        report.reason,
        report.exit_status,
    )


def refuse_call(job_id: JobId) -> str:
    """The data of refuseJob."""
    return REFUSE.encode(bytes.fromhex(job_id[2:]))


def register_call(offer: Offer) -> str:
    """The data of register."""
    per_min = offer.prices
    prices = per_min.gpu_wei_per_min, per_min.cpu_wei_per_min, per_min.mem_wei_per_min
    gpus, cpus, mem_mb = list[int](), list[int](), list[int]()
    for machine in offer.machines:
        gpus.append(machine.gpus)
        cpus.append(machine.cpus)
        mem_mb.append(machine.mem_mb)
    hardware = len(offer.machines), gpus, cpus, mem_mb
    return REGISTER.encode(hardware, prices, offer.labels)


def _get_job(job_id: JobId) -> str:
    """The data of a call of GET_JOB. The only argument is a slot of 32 bytes; eth_abi
    takes longer to encode it than the node takes to answer.
    """
    return f"0x{GET_JOB.selector.hex()}{job_id[2:]}"


def _on_chain(answer: str) -> OnChainJob:
    """Read only the fields of the struct that have a fixed place, behind its offset and
    the job's id. To decode all of it takes longer than the node takes to answer.
    """
    status, customer, provider, changed = (
        _slot(answer, number) for number in (2, 3, 4, STATE_CHANGE_SLOT)
    )
    return OnChainJob(
        ChainStatus(int(status, 16)),
        _address(customer),
        _address(provider),
        int(changed, 16),
    )


def _slot(answer: str, number: int) -> str:
    start = len("0x") + number * ABI_SLOT_DIGITS
    return answer[start : start + ABI_SLOT_DIGITS]


def _address(word: str) -> Address:
    return Address("0x" + word[-40:].lower())


def _each_once(logs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each log once, in the chain's order: logs are counted, and a node may show one
    twice, or in another order.
    """
    unique = {(log["blockHash"], int(log["logIndex"], 16)): log for log in logs}
    return sorted(unique.values(), key=_place)


def _place(log: dict[str, Any]) -> tuple[int, int]:
    """Block number, and the log's index in the block."""
    return int(log["blockNumber"], 16), int(log["logIndex"], 16)


def _events_in(log: dict[str, Any], key: str, provider: Address) -> list[ChainEvent]:
    """The event in a log; an empty list for another provider's event: its customers'
    data are of no concern here.
    """
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
            # for a free job the contract has 2^64 - 1
            time_limit_min=min(minutes, MAX_BIGINT),
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
        event = ChainStatusObserved(ChainStatus(status), at)
    return [ChainEvent(_job_id(job_id), event, log["transactionHash"])]


def _owner(data: str) -> Address:
    """The provider of an event, which is the second argument of all events but
    transitions. Raises ValueError.
    """
    words = data.removeprefix("0x")
    if len(words) < 2 * ABI_SLOT_DIGITS:
        raise ValueError(f"{len(words) // 2} bytes of data hold no provider")
    return _address(words[ABI_SLOT_DIGITS : 2 * ABI_SLOT_DIGITS])


def _unreadable(log: dict[str, Any], error: Exception) -> Unreadable:
    return Unreadable(
        log["transactionHash"],
        int(log["blockNumber"], 16),
        log["topics"][0],
        f"{error!r}"[:MAX_ERROR_CHARS],
    )


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
    at = "latest"
    if block is not None:
        at = hex(block)
    return "eth_call", ({"to": address, "data": data}, at)


def _is_revert(answer: Any) -> bool:
    """Whether the contract rejected the call."""
    return isinstance(answer, RpcError) and answer.reverted


def _is_unknown_job(answer: Any) -> bool:
    """Whether the contract rejected the call because it has no such job."""
    if not isinstance(answer, RpcError):
        return False
    return decode_revert(answer.data).name == "InvalidJob"
