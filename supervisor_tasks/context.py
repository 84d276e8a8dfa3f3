"""Everything that a worker's code uses, in one object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.plan import Plan
from benchmarks.registry import Benchmark
from supervisor_tasks.chain.blocks import AdaptiveRange
from supervisor_tasks.chain.claim_waits import ClaimWaits
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.chain.heads import Heads
from supervisor_tasks.grid.job_definitions import JobDefinitions
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.jobs.trace import NoTraces, Tracer
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.provider.offer import Prices
from supervisor_tasks.site_services.channels import Notifier
from supervisor_tasks.slurm.benchmark_jobs import BenchmarkJobs
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.interface import NodeQuery, SlurmCluster
from supervisor_tasks.wallet.account import WalletAccount
from supervisor_tasks.wallet.sent_transactions import SentTransactions
from supervisor_tasks.wallet.transaction_writer import TransactionWriter

if TYPE_CHECKING:
    from supervisor_tasks.site_services.directory import Directory


@dataclass(frozen=True, slots=True)
class ChainServices:
    """The services of workers of the chain queue only: they need the wallet's key."""

    contract: Contract
    account: WalletAccount
    transaction_writer: TransactionWriter
    sent_transactions: SentTransactions
    job_definitions: JobDefinitions
    claim_batch: int
    claim_max_waiting: int
    claim_customer_share: float
    wallet_min_wei: int
    blocks: Blocks
    confirmations: int
    stuck_after_s: float = 60.0
    log_range: AdaptiveRange = field(default_factory=AdaptiveRange)
    claim_waits: ClaimWaits = field(default_factory=ClaimWaits)
    heads: Heads = field(default_factory=Heads)


@dataclass(slots=True)
class LastClusterCheck:
    """When this process last checked which SLURM it reaches, by its own clock."""

    checked_at_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class SlurmServices:
    """The services of workers of the slurm and benchmark queues only: they need the
    key to SLURM (of SSH, of its CA, or of slurmrestd).
    """

    cluster: SlurmCluster
    nodes: NodeQuery
    trust_callbacks: bool
    benchmark_user: str = "root"
    try_every_s: float = 10.0
    last_check: LastClusterCheck = field(default_factory=LastClusterCheck)


@dataclass(frozen=True, slots=True)
class BenchmarkServices:
    """The services of the benchmarks beyond SLURM's: their jobs, their programs and
    their plan.
    """

    jobs: BenchmarkJobs
    suite: Mapping[str, Benchmark]
    plan_of: Callable[[PartitionHardware, str], Plan]
    disabled: bool = False
    sbatch_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferConfig:
    """The settings of the provider's offer, for workers of the chain queue."""

    prices: Prices
    operator_labels: Mapping[str, str]
    labels_override: frozenset[str]
    hardware_stable_s: float
    benchmarks_enabled: bool
    benchmark_every_s: float


@dataclass(frozen=True, slots=True)
class ReconciliationServices:
    """The services of the sweep beyond SLURM's.

    The sweep reads the contract, which needs no key. The workers with the wallet's key
    store the provider's address in the ledger for it.
    """

    contract_of: Callable[[Address], Contract]
    every_s: float
    grace_s: float
    start_block: int
    foreign_jobs_allowed: bool = False
    log_range: AdaptiveRange = field(default_factory=AdaptiveRange)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A worker's services for one cluster.

    `dispatch` sends a task's message. Services that the worker's queues do not need are
    None. The directory is None at a site that makes its accounts itself.
    """

    ledger: Ledger
    grid_logger: GridLogger
    chain_services: ChainServices | None
    slurm_services: SlurmServices | None
    dispatch: Callable[[str], None]
    reconciliation_services: ReconciliationServices | None = None
    directory: "Directory | None" = None
    benchmark_services: BenchmarkServices | None = None
    offer_config: OfferConfig | None = None
    notifier: Notifier = field(default_factory=Notifier)
    retention_days: int = 400
    tracer: Tracer = field(default_factory=NoTraces)

    @property
    def chain(self) -> ChainServices:
        """The chain's services. Raises LookupError in a worker without the wallet's
        key; a retry does not help.
        """
        if self.chain_services is None:
            raise LookupError(
                "this worker does not serve the chain queue: it holds no wallet key"
            )
        return self.chain_services

    @property
    def offer(self) -> OfferConfig:
        """The offer. Raises LookupError in a worker that does not serve the chain
        queue; a retry does not help.
        """
        if self.offer_config is None:
            raise LookupError(
                "this worker does not serve the chain queue: it registers nothing"
            )
        return self.offer_config

    @property
    def slurm(self) -> SlurmServices:
        """SLURM's services. Raises LookupError in a worker without the key to SLURM; a
        retry does not help.
        """
        if self.slurm_services is None:
            raise LookupError(
                "this worker serves neither the slurm nor the benchmark queue: it holds no key to SLURM"
            )
        return self.slurm_services

    @property
    def benchmarking(self) -> BenchmarkServices:
        """The benchmarks' services. Raises LookupError in a worker that does not serve
        their queue; a retry does not help.
        """
        if self.benchmark_services is None:
            raise LookupError("this worker does not serve the benchmark queue")
        return self.benchmark_services

    @property
    def sweep(self) -> ReconciliationServices:
        """The sweep's services. Raises LookupError in a worker that does not serve the
        slurm queue; a retry does not help.
        """
        if self.reconciliation_services is None:
            raise LookupError(
                "this worker does not serve the slurm queue: it does not sweep"
            )
        return self.reconciliation_services
