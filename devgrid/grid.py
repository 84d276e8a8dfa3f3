"""A whole grid on one machine: chain, contracts, meta-scheduler, job definition
service, SLURM, sshd, Postgres, Redis.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import BLOCK_PRODUCER, start_chain
from devgrid.chain.model import (
    Account,
    ChainError,
    ChainPrices,
    JobDefinition,
    Provider,
)
from devgrid.cluster.cluster import (
    FIRST_PROVIDER,
    GridCluster,
    join_grid,
    load_cluster,
    start_login_side,
)
from devgrid.cluster.ldap import Ldap
from devgrid.cluster.linux_users import SAFE_SHELL, Users
from devgrid.cluster.slurm import OTHER_CLUSTERS, Slurm, cluster_folders, end_jobs
from devgrid.fleet import Fleet
from devgrid.hand_in import CREDIT, check_job, check_script_size
from devgrid.options import ClusterOptions, GridOptions
from devgrid.processes import Processes, Running
from devgrid.services import script_store
from devgrid.services.start import start_servers, start_services
from devgrid.services.workflow import Resources, load, render
from devgrid.state_folder import keep, new_state_folder, remove
from devgrid.tls import make_certificates

CUSTOMERS_CREDITS = 100_000


@dataclass(slots=True)
class Grid:
    """A running grid with its first cluster, and with the others if it has any."""

    processes: Processes
    chain: Chain
    cluster: GridCluster
    others: tuple[GridCluster, ...] = ()

    @property
    def clusters(self) -> tuple[GridCluster, ...]:
        """All clusters, the first one first."""
        return (self.cluster, *self.others)

    @property
    def folder(self) -> Path:
        """The state folder."""
        return self.processes.folder

    @property
    def users(self) -> Users:
        """The Linux users of its first cluster."""
        return self.cluster.users

    @property
    def slurm(self) -> Slurm | None:
        """The SLURM of its first cluster, if this program started it."""
        return self.cluster.slurm

    @property
    def environment(self) -> dict[str, str]:
        """The settings of the fleet that serves its first cluster."""
        return self.cluster.environment

    @property
    def fleet(self) -> Fleet:
        """The fleet that serves its first cluster, started or not."""
        return self.cluster.fleet

    @classmethod
    def start(cls, options: GridOptions | None = None) -> "Grid":
        """Start everything but the fleet. If a part fails, all are stopped and its
        error is raised.
        """
        processes = Processes(new_state_folder())
        try:
            return _start(processes, options or GridOptions())
        except BaseException:
            remove(processes)
            raise

    @classmethod
    def load(cls, folder: Path) -> "Grid":
        """A grid that another program started. Raises StateFileError."""
        chain, certificates = Chain.load(folder), make_certificates(folder / "tls")
        first = load_cluster(folder, chain, certificates, FIRST_PROVIDER)
        _, *folders = cluster_folders(folder)
        others = [
            load_cluster(each, chain, certificates, provider_role(each.name))
            for each in folders
        ]
        return cls(Processes(folder), chain, first, tuple(others))

    def keep(self) -> None:
        """Let everything outlive this program."""
        keep(self.folder)

    def stop(self) -> None:
        """Stop everything, the fleet included, and remove the state folder."""
        for cluster in self.clusters:
            end_jobs(cluster.folder, cluster.users)
            cluster.processes.kill_pythons()
        for cluster in self.others:
            cluster.processes.stop_all()
        remove(self.processes)

    def start_reporter(self) -> Running:
        """Start the process that delivers the spool."""
        return self.cluster.start_reporter()

    @contextmanager
    def no_blocks(self) -> Iterator[None]:
        """Inside this, the chain accepts transactions and mines no block. For a grid
        with a block time.
        """
        producer = self.processes.find(BLOCK_PRODUCER)
        self.processes.kill(producer, signal.SIGSTOP, wait=False)
        try:
            yield
        finally:
            self.processes.kill(producer, signal.SIGCONT, wait=False)

    # --- what a customer does ---------------------------------------------------------

    def new_customer(self, role: str | None = None, shell: str = SAFE_SHELL) -> Account:
        """A new customer with credits, and a Linux user with that login shell on each
        cluster.
        """
        customer = self.chain.new_account(role=role)
        self.chain.admin.mint_credits(customer.address, CUSTOMERS_CREDITS * CREDIT)
        for cluster in self.clusters:
            cluster.users.add(customer.address, shell)
        return customer

    def check_hand_in(
        self,
        customer: Account,
        workflow_text: str,
        minutes: int = 60,
        *,
        on: GridCluster | None = None,
    ) -> None:
        """Raise HandInError if no cluster can run the workflow or the customer cannot
        pay for it. Raises WorkflowError.
        """
        workflow = load(workflow_text)
        check_script_size(len(render(workflow).encode()))
        clusters = {
            cluster.name: provider
            for cluster in (self.clusters if on is None else (on,))
            if (provider := self._provider(cluster)) is not None
        }
        definition = _for_cluster(definition_of("", workflow.resources), on)
        balance_wei = self.chain.credit_balance(customer.address)
        check_job(
            definition, minutes, self._prices(on).of(definition), balance_wei, clusters
        )

    def _provider(self, cluster: GridCluster) -> Provider | None:
        try:
            return self.chain.providers.get(cluster.provider.address)
        except ChainError:
            return None  # it is not approved

    def submit(
        self,
        customer: Account,
        workflow_text: str,
        minutes: int = 60,
        *,
        on: GridCluster | None = None,
    ) -> str:
        """Submit a workflow file, with credits for so many minutes. Returns the job's
        id. The job runs on the cluster `on`, or else on the cheapest one that fits.
        Raises WorkflowError.
        """
        resources = load(workflow_text).resources
        location = script_store.store(self.folder / "scripts", workflow_text)
        return self.request(customer, location, resources, minutes, on=on)

    def submit_script(
        self, customer: Account, script: str, minutes: int = 60, **resources: int
    ) -> str:
        """Submit a batch script, unchanged. Returns the job's id."""
        name = script_store.store_script(self.folder / "scripts", script)
        return self.request(
            customer,
            name,
            Resources.model_validate({"memPerCpu": 100, **resources}),
            minutes,
        )

    def submit_scripts(
        self,
        customer: Account,
        script: str,
        number: int,
        minutes: int = 60,
        *,
        on: GridCluster | None = None,
    ) -> list[str]:
        """Submit one small script many times at once. Returns the ids of the jobs."""
        location = script_store.store_script(self.folder / "scripts", script)
        definition = _for_cluster(definition_of(location, Resources(memPerCpu=100)), on)
        locked_wei = self._prices(on).of(definition) * minutes
        return self.chain.customers.request_jobs(
            customer, definition, number, locked_wei
        )

    def request(
        self,
        customer: Account,
        location: str,
        resources: Resources,
        minutes: int,
        *,
        on: GridCluster | None = None,
    ) -> str:
        """Request a job on chain. Returns its id."""
        definition = _for_cluster(definition_of(location, resources), on)
        return self.chain.customers.request_job(
            customer, definition, self._prices(on).of(definition) * minutes
        )

    def _prices(self, on: GridCluster | None) -> ChainPrices:
        return ChainPrices() if on is None else on.prices

    def output(self, customer: str, job_id: str) -> str:
        """The output of the job itself."""
        return self.cluster.output(customer, job_id)


def definition_of(location: str, resources: Resources) -> JobDefinition:
    """The job definition of a script with these resources."""
    return JobDefinition(
        gpus=resources.gpus,
        mem_per_cpu_mb=resources.memPerCpu,
        cpus_per_task=resources.cpusPerTask,
        ntasks=resources.tasks,
        batch_location_hash=location,
    )


def provider_role(cluster: str) -> str:
    """The role of the provider account of a cluster that is not the first."""
    return f"{FIRST_PROVIDER}-{cluster}"


def _for_cluster(definition: JobDefinition, on: GridCluster | None) -> JobDefinition:
    """The definition of a job that only the cluster `on` can run, if that is given."""
    return definition if on is None else replace(definition, uses=(("name", on.name),))


def _start(processes: Processes, options: GridOptions) -> Grid:
    certificates = make_certificates(processes.folder / "tls")
    if options.ldap:
        directory = Ldap.start(processes, certificates).settings()
        options = replace(options, overrides={**directory, **options.overrides})
    with ThreadPoolExecutor(3 + len(options.others)) as pool:
        options.report("starting SLURM, the chain, Postgres, Redis and sshd")
        login_futures = [
            pool.submit(start_login_side, own, cluster, certificates)
            for cluster, own in _with_processes(processes, options)
        ]
        chain_future = pool.submit(start_chain, processes, options.block_time_s)
        servers_future = pool.submit(start_servers, processes, options.postgres_disk_mb)
        chain, servers = chain_future.result(), servers_future.result()
        first, *others = [future.result() for future in login_futures]
    options.report(
        "starting the job definition service, the meta-scheduler and the reporter"
    )
    shared = {
        **servers,
        "SBATCH_ENDPOINT": start_services(processes, chain, certificates),
    }
    cluster = join_grid(first, chain, FIRST_PROVIDER, options, shared)
    joined = [
        join_grid(login, chain, provider_role(its.name), its, shared)
        for login, its in zip(others, options.others, strict=True)
    ]
    return Grid(processes, chain, cluster, tuple(joined))


def _with_processes(
    processes: Processes, options: GridOptions
) -> Iterator[tuple[ClusterOptions, Processes]]:
    """Each cluster with the processes of its own folder, so that equal names do not
    collide.
    """
    yield options, processes
    for cluster in options.others:
        folder = processes.folder / OTHER_CLUSTERS / cluster.name
        folder.mkdir(parents=True)
        yield cluster, Processes(folder)
