"""All that a worker works with, in one object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.plan import Plan
from benchmarks.suite import Benchmark
from supervisor_tasks.chain.blocks import Reach
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.chain.heads import Heads
from supervisor_tasks.chain.wallet import Wallet
from supervisor_tasks.gridlogger import GridLogger
from supervisor_tasks.job import Address
from supervisor_tasks.jobdefs import JobDefinitions
from supervisor_tasks.ledger.blocks import Blocks
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.offer import Prices
from supervisor_tasks.slurm.benchmark_jobs import BenchmarkJobs
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.nodes import Nodes
from supervisor_tasks.slurm.specs import Specs

if TYPE_CHECKING:
    from supervisor_tasks.identity import Directory


@dataclass(frozen=True, slots=True)
class ChainSide:
    """What only workers of the chain queue hold: it needs the wallet's key."""

    contract: Contract
    wallet: Wallet
    job_definitions: JobDefinitions
    claim_batch: int
    claim_max_waiting: int
    claim_customer_share: float
    wallet_min_wei: int
    wake_tracker: Callable[[], None]
    blocks: Blocks
    confirmations: int
    stuck_after_s: float = 60.0
    reach: Reach = field(default_factory=Reach)
    heads: Heads = field(default_factory=Heads)


@dataclass(slots=True)
class Met:
    """When this process last made sure which SLURM it reaches, by its own clock."""

    at_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class SlurmSide:
    """What only workers of the slurm and benchmark queues hold: it needs the SSH key."""

    cluster: Cluster
    nodes: Nodes
    trust_callbacks: bool
    benchmark_user: str = "root"
    try_every_s: float = 10.0
    met: Met = field(default_factory=Met)


@dataclass(frozen=True, slots=True)
class BenchmarkSide:
    """What the benchmarks work with beyond SLURM's side: their jobs, the programs and how they are planned."""

    jobs: BenchmarkJobs
    suite: Mapping[str, Benchmark]
    plan_of: Callable[[Specs, str], Plan]
    disabled: bool = False
    sbatch_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferSide:
    """What the provider offers, as the settings say; workers of the chain queue have it. `wake` sends for the registration."""

    prices: Prices
    operator_labels: Mapping[str, str]
    labels_override: frozenset[str]
    hardware_settled_s: float
    benchmarks_enabled: bool
    benchmark_every_s: float
    wake: Callable[[], None]


@dataclass(frozen=True, slots=True)
class SweepSide:
    """What the sweep works with beyond SLURM's side. It reads the contract, for which no key is needed; the provider's address
    is told by the workers that have one.
    """

    contract_of: Callable[[Address], Contract]
    wake: Callable[[str], None]
    every_s: float
    grace_s: float
    start_block: int
    foreign_jobs_allowed: bool = False
    reach: Reach = field(default_factory=Reach)


@dataclass(frozen=True, slots=True)
class Site:
    """A worker's view of one cluster. A side that its queues do not need is absent, and so is the directory at a site that
    makes its accounts itself.
    """

    ledger: Ledger
    grid_logger: GridLogger
    chain_side: ChainSide | None
    slurm_side: SlurmSide | None
    sweep_side: SweepSide | None = None
    directory: "Directory | None" = None
    benchmark_side: BenchmarkSide | None = None
    offer_side: OfferSide | None = None

    @property
    def chain(self) -> ChainSide:
        """The chain's side. Raises LookupError in a worker that was not given the wallet's key."""
        if self.chain_side is None:
            raise LookupError("this worker does not serve the chain queue: it holds no wallet key")
        return self.chain_side

    @property
    def offer(self) -> OfferSide:
        """What is offered. Raises LookupError where the chain's side would."""
        if self.offer_side is None:
            raise LookupError("this worker does not serve the chain queue: it registers nothing")
        return self.offer_side

    @property
    def slurm(self) -> SlurmSide:
        """SLURM's side. Raises LookupError in a worker that was not given the SSH key."""
        if self.slurm_side is None:
            raise LookupError("this worker serves neither the slurm nor the benchmark queue: it holds no SSH key")
        return self.slurm_side

    @property
    def benchmarking(self) -> BenchmarkSide:
        """The benchmarks' side. Raises LookupError in a worker that does not serve their queue."""
        if self.benchmark_side is None:
            raise LookupError("this worker does not serve the benchmark queue")
        return self.benchmark_side

    @property
    def sweep(self) -> SweepSide:
        """The sweep's side. Raises LookupError where SLURM's side would."""
        if self.sweep_side is None:
            raise LookupError("this worker does not serve the slurm queue: it does not sweep")
        return self.sweep_side
