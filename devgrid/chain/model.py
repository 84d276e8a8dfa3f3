"""The contracts' data, as devgrid reads it: accounts, addresses, job definitions,
providers and jobs. Pure.

Amounts are in wei: credits x 1e18, or ether x 1e18.
"""

from dataclasses import dataclass
from typing import Any

from supervisor_tasks.chain.abi_codec import CONTRACTS, Revert
from supervisor_tasks.jobs.model import ChainStatus


class ChainError(RuntimeError):
    """The chain refused a call. `revert` is the contract's reason, if there is one."""

    def __init__(self, message: str, revert: Revert | None = None) -> None:
        super().__init__(message)
        self.revert = revert


@dataclass(frozen=True, slots=True)
class Account:
    """An account on the chain. The address is lowercase."""

    address: str
    private_key: str

    def __repr__(self) -> str:
        return f"Account({self.address})"


@dataclass(frozen=True, slots=True)
class ChainAddresses:
    """The contracts' addresses, lowercase."""

    metascheduler: str
    jobs: str
    queues: str
    provider_manager: str
    credit: str
    constants: str

    def of(self, contract: str) -> str:
        """The address of a contract by its Solidity name."""
        addresses = (
            self.metascheduler,
            self.jobs,
            self.queues,
            self.provider_manager,
            self.credit,
            self.constants,
        )
        return dict(zip(CONTRACTS, addresses, strict=True))[contract]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    """A job as a customer orders it. `gpus` is per job; `affinity` holds (key,
    operator, value).
    """

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
        affinity = [
            ((key, value), operator.encode().ljust(2, b"\0"))
            for key, operator, value in self.affinity
        ]
        resources = (self.gpus, self.mem_per_cpu_mb, self.cpus_per_task, self.ntasks)
        return (
            *resources,
            self.batch_location_hash,
            self.storage_type,
            list(self.uses),
            affinity,
        )

    @classmethod
    def from_abi(cls, fields: tuple[Any, ...]) -> "JobDefinition":
        """The contract's struct, decoded."""
        (
            gpus,
            memory,
            cpus,
            ntasks,
            batch_location_hash,
            storage_type,
            uses,
            affinity,
        ) = fields
        return cls(
            gpus=gpus,
            mem_per_cpu_mb=memory,
            cpus_per_task=cpus,
            ntasks=ntasks,
            batch_location_hash=batch_location_hash,
            storage_type=storage_type,
            uses=tuple(uses),
            affinity=tuple(
                (key, op.rstrip(b"\0").decode(), value) for (key, value), op in affinity
            ),
        )


@dataclass(frozen=True, slots=True)
class ChainNode:
    """One machine of a provider."""

    gpus: int
    cpus: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class ChainPrices:
    """What one GPU, one CPU and one MB cost a minute; the defaults are those of the
    supervisor's settings.
    """

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
    """A provider as the contract has it."""

    address: str
    nodes: tuple[ChainNode, ...]
    prices: ChainPrices
    labels: tuple[tuple[str, str], ...]
    banned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainJob:
    """A job as the contract has it. Times are seconds since the epoch, 0 for "not
    yet".
    """

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


def job_from_abi(fields: tuple[Any, ...]) -> ChainJob:
    """The contract's struct of a job, decoded."""
    (
        job_id,
        status,
        customer,
        provider,
        definition,
        cost,
        time,
        name,
        has_cancel_request,
        last_error,
        exit_code,
    ) = fields
    max_cost, final_cost, pending_top_up, delegate = cost
    submit, start, end, cancel_request, block_number, panic = time
    return ChainJob(
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


def job_id_bytes(job_id: str) -> bytes:
    """A job id as the contracts take it."""
    return bytes.fromhex(job_id.removeprefix("0x"))
