"""Builds a worker's parts from the settings, and connects them."""

from collections.abc import Callable, Collection
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING

import structlog
from celery import Celery
from celery.worker import state as this_worker

from benchmarks.registry import SUITE
from supervisor_tasks.accounts.sync import make_accounts
from supervisor_tasks.benchmarking.plan import plan_of
from supervisor_tasks.benchmarking.runner import benchmark
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.settings import USUAL_PRICES, Settings
from supervisor_tasks.context import (
    BenchmarkServices,
    ChainServices,
    OfferConfig,
    ReconciliationServices,
    SlurmServices,
    WorkerContext,
)
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_definitions import JobDefinitions
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.indexer.new_blocks import NewBlocks
from supervisor_tasks.indexer.reorg import rewind_as_asked
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.batch import BATCH_POLICIES, Batch
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.exclusive_run import record_run, watch_effects
from supervisor_tasks.jobs.model import Address, EffectKind
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.jobs.report import report
from supervisor_tasks.ledger.blocks import Blocks
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.wallet_holders import WalletTakenError
from supervisor_tasks.messaging.dispatcher import TaskDispatcher
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.monitoring.heartbeat_alarm import watch_tellers
from supervisor_tasks.monitoring.slurm_health import check_slurm, reset_failure_count
from supervisor_tasks.notifications.deliver import notify
from supervisor_tasks.notifications.from_settings import notifier_of
from supervisor_tasks.provider.inventory import refresh_inventory
from supervisor_tasks.provider.offer import price_warnings
from supervisor_tasks.provider.register import register
from supervisor_tasks.reconciliation.run import sweep
from supervisor_tasks.recovery.old_rows import delete_old_rows
from supervisor_tasks.slurm.benchmark_jobs import BenchmarkJobs
from supervisor_tasks.slurm.certificates import CertificateAuthority, authority_key
from supervisor_tasks.slurm.cluster import Cluster, Paths
from supervisor_tasks.slurm.homes import Homes
from supervisor_tasks.slurm.node_query import Nodes
from supervisor_tasks.slurm.ssh import CONNECT_TIMEOUT_S, Keys, Ssh, load_key
from supervisor_tasks.wallet.fees import Bounds
from supervisor_tasks.wallet.receipts import collect_receipts
from supervisor_tasks.wallet.wallet import Wallet

if TYPE_CHECKING:
    from supervisor_tasks.accounts.directory import Directory

log = structlog.get_logger()

AT_START = (
    "check_slurm",
    "scan",
    "register",
    "refresh_inventory",
    "dispatch_due_effects",
    "sweep",
)  # tasks that do not wait for beat
WRONG_SETTINGS = 2  # the status with which a process ends that its settings do not let work
SENSIBLE_GRACE_S = 60.0  # with less, a sweep mistakes a restart of slurmctld for a loss of jobs


class Work:
    """The work of a worker's tasks: each task calls one method."""

    def __init__(
        self,
        site: WorkerContext,
        wake_ups: TaskDispatcher,
        new_blocks: NewBlocks | None = None,
        hold_wallet: Callable[[], None] | None = None,
    ) -> None:
        self._site = site
        self._wake_ups = wake_ups
        self._new_blocks = new_blocks
        self._hold_wallet = hold_wallet  # None: no key, or held already
        self._batches = {kind: Batch(site, kind) for kind in BATCH_POLICIES}
        self._introduced = False
        self._begun = False
        self._ready = False
        self._looks_for_blocks = False
        self._beginning = Lock()

    def hold_wallet(self) -> None:
        """Store in the ledger that this cluster works with the wallet whose key the worker has, if it has one.

        Raises WalletTakenError if another cluster works with it, and LedgerUnavailableError. Safe to repeat.
        """
        if self._hold_wallet is not None:
            self._hold_wallet()
            self._hold_wallet = None

    def begin(self) -> None:
        """Store in the ledger, before the worker's first task, what a start requests: there no broker can lose it.

        Raises LedgerUnavailableError; the next task tries again. Raises WalletTakenError; the worker ends then.
        """
        with self._beginning:
            if not self._begun:
                self._hold_wallet_or_end()
                self._look_for_blocks()
                reset_failure_count(self._site.ledger)
                self._site.ledger.sweeps.ask("a worker has started")
                self._site.ledger.incidents.look_again()
                self._begun = True

    def _hold_wallet_or_end(self) -> None:
        """Hold the wallet if the ledger did not answer when the worker started."""
        try:
            self.hold_wallet()
        except WalletTakenError as error:
            log.critical("wallet_taken", error=str(error), advice="the worker ends")
            this_worker.should_stop = WRONG_SETTINGS
            raise

    def hurry(self) -> None:
        """Wake the tasks that a start requests. If a message is lost, the task only runs later."""
        for name in AT_START:
            self._wake_ups.drain(name)
        with self._beginning:
            self._ready = True
            self._look_for_blocks()

    def _look_for_blocks(self) -> None:
        """Start the thread that claims jobs of new blocks, once the worker is ready and its wallet is certainly its own."""
        wallet_is_held = self._hold_wallet is None
        if self._new_blocks is not None and self._ready and wallet_is_held and not self._looks_for_blocks:
            self._new_blocks.start()
            self._looks_for_blocks = True

    def claim(self) -> None:
        """Claim the jobs that the contract has for us."""
        claim(self._site)

    def scan(self) -> None:
        """Read the chain's logs; also store the provider's address for the workers without the wallet's key."""
        self._introduce()
        rewind_as_asked(self._site)
        scan(self._site)

    def _introduce(self) -> None:
        if not self._introduced:
            provider = self._site.chain.contract.provider
            if self._site.ledger.facts.set(PROVIDER, provider):
                self._site.ledger.sweeps.ask(f"the provider is {provider}")
            self._introduced = True

    def accounts(self) -> None:
        """Make the customers' accounts."""
        make_accounts(self._site)

    def carry_out(self, kind: EffectKind) -> None:
        """Carry out the effects of a kind that are due."""
        self._batches[kind].run(_goes_on)

    def poll_jobs(self) -> None:
        """Look at the jobs that are due."""
        poll_jobs(self._site)

    def report(self) -> None:
        """Write to the contract."""
        report(self._site)

    def collect_receipts(self) -> None:
        """Follow the open transactions."""
        collect_receipts(self._site)

    def register(self) -> None:
        """Register our offer with the contract."""
        register(self._site)

    def refresh_inventory(self) -> None:
        """Store the partition's hardware in the ledger."""
        refresh_inventory(self._site)

    def check_slurm(self) -> None:
        """Store in the ledger whether SLURM answers."""
        check_slurm(self._site)

    def benchmark(self) -> None:
        """Advance the benchmark run that is under way, if there is one, as far as it can go now."""
        benchmark(self._site)

    def sweep(self, why: str) -> None:
        """Compare ledger, contract and SLURM."""
        sweep(self._site, why)

    def dispatch_due_effects(self) -> None:
        """Send messages for effects that are due and have none under way."""
        ledger = self._site.ledger
        with record_run(ledger, "dispatch_due_effects"):
            forgotten = ledger.effects.forgotten()
            if forgotten:
                self._wake_ups.effects(forgotten)

    def notify(self) -> None:
        """Send the messages about alarms that are due."""
        notify(self._site.ledger, self._site.notifier)

    def check_alarms(self) -> None:
        """Call the operator for effects that are parked or late; also check the heartbeats, clean up the inbox, and add
        up the counters.
        """
        with record_run(self._site.ledger, "check_alarms"):
            watch_effects(self._site.ledger)
            self._site.ledger.counters.fold()
            watch_tellers(self._site.ledger)
            gone = self._site.ledger.inbox.purge_unknown()
            if gone:
                log.info("unknown_callbacks_purged", callbacks=gone)

    def retention(self) -> None:
        """Delete old rows; once none is left, there is nothing to do until the next night."""
        delete_old_rows(self._site, _goes_on)

    def close(self) -> None:
        """Close the threads and connections."""
        if self._new_blocks is not None:
            self._new_blocks.close()
        for batch in self._batches.values():
            batch.close()
        if self._site.slurm_side is not None:
            self._site.slurm_side.cluster.ssh.close()
        self._site.ledger.holder.close()
        self._site.ledger.engine.dispose()


def _goes_on() -> bool:
    """Return whether the worker continues: Celery has not asked it to end."""
    return this_worker.should_stop is None or this_worker.should_stop is False


def build(settings: Settings, served: Collection[Queue], app: Celery) -> Work:
    """Build the work for the queues that a worker serves, with only the parts that they need."""
    logs.configure(settings.effective_log_level, secrets=settings.secret_values())
    wake_ups = TaskDispatcher(app)
    ledger = Ledger(open_engine(settings), settings.cluster_name, wake_ups.effects)
    rpc = Endpoints(settings.rpc_urls, settings.chain_id)
    chain = _chain_side(settings, ledger, rpc, wake_ups) if Queue.CHAIN in served else None
    slurm = slurm_side(settings) if {Queue.SLURM, Queue.BENCHMARK} & set(served) else None
    sweeping = _sweep_side(settings, rpc, wake_ups) if Queue.SLURM in served else None
    directory = directory_of(settings) if Queue.CHAIN in served else None
    benchmarking = _benchmark_side(settings, slurm) if slurm is not None and Queue.BENCHMARK in served else None
    offer = _offer_side(settings, wake_ups) if Queue.CHAIN in served else None
    grid_logger = GridLogger(channels_of(settings).open)
    notifier, days = notifier_of(settings), settings.retention_days
    site = WorkerContext(ledger, grid_logger, chain, slurm, sweeping, directory, benchmarking, offer, notifier, days)
    new_blocks = None if chain is None else NewBlocks(site, settings.chain_poll_s, wake_ups.drain, settings.ws_url)
    hold_wallet = None if chain is None else partial(_hold_wallet, settings, ledger, chain)
    return Work(site, wake_ups, new_blocks, hold_wallet)


def _hold_wallet(settings: Settings, ledger: Ledger, chain: ChainServices) -> None:
    shared = settings.allow_clusters_to_share_a_wallet
    ledger.wallets.hold(settings.chain_id, chain.wallet.address, shared=shared)


def channels_of(settings: Settings) -> Channels:
    """Return the channels to the grid's services, as the settings require them."""
    return Channels(settings.sbatch_tls_enable, settings.sbatch_ca, verified=not settings.sbatch_tls_insecure)


def _chain_side(settings: Settings, ledger: Ledger, rpc: Rpc, wake_ups: TaskDispatcher) -> ChainServices:
    assert settings.eth_private_key is not None  # noqa: S101  Need.WALLET
    contract_address = settings.metascheduler_smart_contract
    key = settings.eth_private_key.get_secret_value()
    bounds = Bounds(settings.wallet_max_wei_per_gas, settings.wallet_max_wei_per_tx)
    wallet = Wallet(ledger.engine, ledger.cluster, rpc, settings.chain_id, contract_address, key, bounds)
    return ChainServices(
        contract=Contract(rpc, settings.chain_id, contract_address, wallet.address),
        wallet=wallet,
        job_definitions=JobDefinitions(
            lambda: channels_of(settings).open(settings.sbatch_endpoint), wallet.sign_message
        ),
        claim_batch=settings.claim_batch,
        claim_max_waiting=settings.claim_max_waiting,
        claim_customer_share=settings.claim_customer_share,
        wallet_min_wei=settings.wallet_min_wei,
        wake_tracker=lambda: wake_ups.drain("collect_receipts"),
        blocks=Blocks(ledger.engine, ledger.cluster, settings.chain_confirmations),
        confirmations=settings.chain_confirmations,
        stuck_after_s=settings.wallet_stuck_after_s,
    )


def _offer_side(settings: Settings, wake_ups: TaskDispatcher) -> OfferConfig:
    for line in price_warnings(settings.prices, USUAL_PRICES):
        log.warning("price_out_of_expected_range", found=line)
    return OfferConfig(
        prices=settings.prices,
        operator_labels=settings.operator_labels,
        labels_override=settings.labels_override,
        hardware_stable_s=settings.hardware_stable_s,
        benchmarks_enabled=not settings.benchmark_disable,
        benchmark_every_s=settings.benchmark_every,
        wake=lambda: wake_ups.drain("register"),
    )


def directory_of(settings: Settings) -> "Directory | None":
    """Build the access to the directory; None at a site that makes the accounts itself."""
    if settings.ldap_url is None:
        return None
    from supervisor_tasks.accounts.directory import (  # imports ldap3, which costs each worker 0.4 s
        AccountForm,
        Directory,
        Member,
    )

    password = settings.ldap_bind_password
    return Directory(
        url=settings.ldap_url,
        bind_dn=settings.ldap_bind_dn or "",
        bind_password="" if password is None else password.get_secret_value(),
        ca_path=settings.ldap_ca_path,
        verified=not settings.ldap_insecure,
        form=AccountForm(
            people_dn=settings.ldap_people_dn,
            group_dn=settings.ldap_group_dn,
            member_attribute=Member(settings.ldap_member_attribute),
            object_classes=_names(settings.ldap_object_classes),
            gid_number=settings.ldap_gid_number,
            own_groups_dn=settings.own_groups_dn,
            own_group_classes=_names(settings.ldap_own_group_object_classes),
            home_directory=settings.ldap_home_directory,
            login_shell=settings.ldap_login_shell,
            attributes=settings.ldap_attributes,
            first_uid_number=settings.ldap_first_uid_number,
        ),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _sweep_side(settings: Settings, rpc: Rpc, wake_ups: TaskDispatcher) -> ReconciliationServices:
    @cache  # so that the contracts' addresses are read only once
    def contract_of(provider: Address) -> Contract:
        return Contract(rpc, settings.chain_id, settings.metascheduler_smart_contract, provider)

    if settings.sweep_grace_s < SENSIBLE_GRACE_S:
        log.warning("sweep_grace_is_short", sweep_grace_s=settings.sweep_grace_s, expected_s=SENSIBLE_GRACE_S)
    return ReconciliationServices(
        contract_of=contract_of,
        wake=wake_ups.drain,
        every_s=settings.sweep_every_s,
        grace_s=settings.sweep_grace_s,
        start_block=settings.metascheduler_start_block,
        foreign_jobs_allowed=settings.foreign_jobs_allowed,
    )


def _benchmark_side(settings: Settings, slurm: SlurmServices) -> BenchmarkServices:
    return BenchmarkServices(
        jobs=BenchmarkJobs(slurm.cluster, settings.benchmark_run_as),
        suite=SUITE,
        plan_of=partial(plan_of, settings),
        disabled=settings.benchmark_disable,
        sbatch_flags=settings.benchmark_sbatch_flags,
    )


def _ssh_keys(settings: Settings) -> Keys:
    """Return one key for all users, or a certificate for each login."""
    if not settings.slurm_ssh_certificates:
        assert settings.slurm_ssh_private_key is not None  # noqa: S101  Need.SSH
        key = load_key(settings.slurm_ssh_private_key.get_secret_value())
        return lambda _: key
    assert settings.slurm_ssh_ca_key is not None  # noqa: S101  Need.SSH
    users = {settings.slurm_ssh_admin_user or "", settings.benchmark_run_as}
    ca_key = authority_key(settings.slurm_ssh_ca_key.get_secret_value())
    return CertificateAuthority(ca_key, users, f"supervisor {settings.cluster_name}").key_for


def slurm_side(settings: Settings, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> SlurmServices:
    """Build the access to SLURM, from settings with Need.SSH."""
    assert settings.slurm_ssh_address is not None  # noqa: S101  Need.SSH
    assert settings.slurm_ssh_admin_user is not None  # noqa: S101
    paths = Paths(
        sbatch=settings.slurm_sbatch_path,
        scancel=settings.slurm_scancel_path,
        scontrol=settings.slurm_scontrol_path,
        squeue=settings.slurm_squeue_path,
        sacct=settings.slurm_sacct_path if settings.slurm_accounting else None,
    )
    cluster = Cluster(
        ssh=Ssh(settings.slurm_ssh_address, _ssh_keys(settings), settings.slurm_ssh_known_hosts, connect_timeout_s),
        paths=paths,
        admin=settings.slurm_ssh_admin_user,
        partition=settings.slurm_partition,
        public_address=settings.public_address,
        message_timeout_s=settings.slurm_message_timeout_s,
        compares_sizes=settings.slurm_compare_sizes,
        homes=Homes(shared_allowed=settings.allow_shared_homes_where_customers_can_run_code_as_each_other),
        environment_file=settings.slurm_environment_file,
        submit_key="" if settings.slurm_submit_key is None else settings.slurm_submit_key.get_secret_value(),
    )
    nodes = Nodes(
        ssh=cluster.ssh,
        admin=cluster.admin,
        scontrol=paths.scontrol,
        sinfo=settings.slurm_sinfo_path,
        partition=cluster.partition,
        unresponsive=settings.benchmark_unresponsive,
    )
    return SlurmServices(
        cluster,
        nodes,
        trust_callbacks=settings.trust_callbacks,
        benchmark_user=settings.benchmark_run_as,
        try_every_s=settings.slurm_retry_interval_s,
    )
