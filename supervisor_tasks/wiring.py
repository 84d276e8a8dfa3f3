"""Puts the parts together: from settings to a site at work."""

from collections.abc import Collection
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING

import structlog
from celery import Celery
from celery.worker import state as this_worker

from benchmarks.suite import SUITE
from supervisor_tasks import logs
from supervisor_tasks.benchmark_plan import plan_of
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.chain.endpoints import Endpoints
from supervisor_tasks.chain.fees import Bounds
from supervisor_tasks.chain.rpc import Rpc
from supervisor_tasks.chain.wallet import Wallet
from supervisor_tasks.channels import Channels
from supervisor_tasks.gridlogger import GridLogger
from supervisor_tasks.indexer.new_blocks import NewBlocks
from supervisor_tasks.job import Address, Kind
from supervisor_tasks.jobdefs import JobDefinitions
from supervisor_tasks.jobs.batch import WAYS, Batch
from supervisor_tasks.journey.accounts import make_accounts
from supervisor_tasks.journey.benchmark import benchmark
from supervisor_tasks.journey.check_slurm import check_slurm, count_anew
from supervisor_tasks.journey.claim import claim
from supervisor_tasks.journey.drain import ticking, watch_effects
from supervisor_tasks.journey.look_at_nodes import look_at_nodes
from supervisor_tasks.journey.register import register
from supervisor_tasks.journey.reorganised import rewind_as_asked
from supervisor_tasks.journey.report import report
from supervisor_tasks.journey.scan import scan
from supervisor_tasks.journey.sweep import sweep
from supervisor_tasks.journey.track import track
from supervisor_tasks.journey.watch_tellers import watch_tellers
from supervisor_tasks.journey.witness import witness
from supervisor_tasks.ledger.blocks import Blocks
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.offer import far_off
from supervisor_tasks.queues import Queue
from supervisor_tasks.settings import USUAL_PRICES, Settings
from supervisor_tasks.site import BenchmarkSide, ChainSide, OfferSide, Site, SlurmSide, SweepSide
from supervisor_tasks.slurm.benchmark_jobs import BenchmarkJobs
from supervisor_tasks.slurm.certificates import CertificateAuthority, authority_key
from supervisor_tasks.slurm.cluster import Cluster, Paths
from supervisor_tasks.slurm.homes import Homes
from supervisor_tasks.slurm.nodes import Nodes
from supervisor_tasks.slurm.ssh import Keys, Ssh, load_key
from supervisor_tasks.wake import WakeUps

if TYPE_CHECKING:
    from supervisor_tasks.identity import Directory

log = structlog.get_logger()

AT_START = ("check_slurm", "scan", "register", "look_at_nodes", "nudge", "sweep")  # what does not wait for the clock
SENSIBLE_GRACE_S = 60.0  # a site whose sweeps end jobs sooner mistakes a restart of slurmctld for a loss


class Work:
    """What the tasks of a worker do, each in one call."""

    def __init__(self, site: Site, wake_ups: WakeUps, new_blocks: NewBlocks | None = None) -> None:
        self._site = site
        self._wake_ups = wake_ups
        self._new_blocks = new_blocks
        self._batches = {kind: Batch(site, kind) for kind in WAYS}
        self._introduced = False
        self._begun = False
        self._beginning = Lock()

    def begin(self) -> None:
        """Before the first task: what a start asks for is in the ledger, where no broker can lose it. Raises
        LedgerUnavailableError; the next task tries again.
        """
        with self._beginning:
            if not self._begun:
                count_anew(self._site.ledger)
                self._site.ledger.sweeps.ask("a worker has started")
                self._begun = True

    def hurry(self) -> None:
        """Have done at once what a start asks for. Messages that are lost are only late."""
        for name in AT_START:
            self._wake_ups.drain(name)
        if self._new_blocks is not None:
            self._new_blocks.start()

    def claim(self) -> None:
        """Claim what the contract has for us."""
        claim(self._site)

    def scan(self) -> None:
        """Read the chain's logs, and tell those without a key whose jobs are ours."""
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

    def carry_out(self, kind: Kind) -> None:
        """Carry out the effects of a kind that are due."""
        self._batches[kind].run(_goes_on)

    def witness(self) -> None:
        """Look at the jobs that are due."""
        witness(self._site)

    def report(self) -> None:
        """Write to the contract."""
        report(self._site)

    def track(self) -> None:
        """Follow the open transactions."""
        track(self._site)

    def register(self) -> None:
        """Have the contract know what is offered."""
        register(self._site)

    def look_at_nodes(self) -> None:
        """Write down what hardware the partition has."""
        look_at_nodes(self._site)

    def check_slurm(self) -> None:
        """Write down that SLURM answers, or that it does not."""
        check_slurm(self._site)

    def benchmark(self) -> None:
        """Bring the benchmark run that is under way, if there is one, as far as it goes now."""
        benchmark(self._site)

    def sweep(self, why: str) -> None:
        """Compare ledger, contract and SLURM."""
        sweep(self._site, why)

    def nudge(self) -> None:
        """Wake what is due and has no message under way."""
        ledger = self._site.ledger
        with ticking(ledger, "nudge"):
            forgotten = ledger.effects.forgotten()
            if forgotten:
                self._wake_ups.effects(forgotten)

    def watch(self) -> None:
        """Call the operator for effects that are parked or late."""
        with ticking(self._site.ledger, "watch"):
            watch_effects(self._site.ledger)
            watch_tellers(self._site.ledger)
            gone = self._site.ledger.inbox.forget_strange()
            if gone:
                log.info("strange_callbacks_forgotten", callbacks=gone)

    def close(self) -> None:
        """Let go of threads and connections."""
        if self._new_blocks is not None:
            self._new_blocks.close()
        for batch in self._batches.values():
            batch.close()
        if self._site.slurm_side is not None:
            self._site.slurm_side.cluster.ssh.close()
        self._site.ledger.holder.close()
        self._site.ledger.engine.dispose()


def _goes_on() -> bool:
    """Whether this worker was not told to end."""
    return this_worker.should_stop is None or this_worker.should_stop is False


def build(settings: Settings, served: Collection[Queue], app: Celery) -> Work:
    """A site for the queues that a worker serves."""
    logs.configure(settings.effective_log_level, secrets=settings.secret_values())
    wake_ups = WakeUps(app)
    ledger = Ledger(open_engine(settings), settings.cluster_name, wake_ups.effects)
    rpc = Endpoints(settings.rpc_urls, settings.chain_id)
    chain = _chain_side(settings, ledger, rpc, wake_ups) if Queue.CHAIN in served else None
    slurm = slurm_side(settings) if {Queue.SLURM, Queue.BENCHMARK} & set(served) else None
    sweeping = _sweep_side(settings, rpc, wake_ups) if Queue.SLURM in served else None
    directory = _directory(settings) if Queue.CHAIN in served else None
    benchmarking = _benchmark_side(settings, slurm) if slurm is not None and Queue.BENCHMARK in served else None
    offer = _offer_side(settings, wake_ups) if Queue.CHAIN in served else None
    grid_logger = GridLogger(channels_of(settings).open)
    site = Site(ledger, grid_logger, chain, slurm, sweeping, directory, benchmarking, offer)
    new_blocks = None if chain is None else NewBlocks(site, settings.chain_poll_s, wake_ups.drain, settings.ws_url)
    return Work(site, wake_ups, new_blocks)


def channels_of(settings: Settings) -> Channels:
    """How the settings want the grid's services to be reached."""
    return Channels(settings.sbatch_tls_enable, settings.sbatch_ca, verified=not settings.sbatch_tls_insecure)


def _chain_side(settings: Settings, ledger: Ledger, rpc: Rpc, wake_ups: WakeUps) -> ChainSide:
    assert settings.eth_private_key is not None  # noqa: S101  Need.WALLET
    contract_address = settings.metascheduler_smart_contract
    key = settings.eth_private_key.get_secret_value()
    bounds = Bounds(settings.wallet_max_wei_per_gas, settings.wallet_max_wei_per_tx)
    wallet = Wallet(ledger.engine, ledger.cluster, rpc, settings.chain_id, contract_address, key, bounds)
    return ChainSide(
        contract=Contract(rpc, settings.chain_id, contract_address, wallet.address),
        wallet=wallet,
        job_definitions=JobDefinitions(
            lambda: channels_of(settings).open(settings.sbatch_endpoint), wallet.sign_message
        ),
        claim_batch=settings.claim_batch,
        claim_max_waiting=settings.claim_max_waiting,
        claim_customer_share=settings.claim_customer_share,
        wallet_min_wei=settings.wallet_min_wei,
        wake_tracker=lambda: wake_ups.drain("track"),
        blocks=Blocks(ledger.engine, ledger.cluster, settings.chain_confirmations),
        confirmations=settings.chain_confirmations,
        stuck_after_s=settings.wallet_stuck_after_s,
    )


def _offer_side(settings: Settings, wake_ups: WakeUps) -> OfferSide:
    for line in far_off(settings.prices, USUAL_PRICES):
        log.warning("price_is_odd", found=line)
    return OfferSide(
        prices=settings.prices,
        operator_labels=settings.operator_labels,
        labels_override=settings.labels_override,
        hardware_settled_s=settings.hardware_settled_s,
        benchmarks_enabled=not settings.benchmark_disable,
        benchmark_every_s=settings.benchmark_every,
        wake=lambda: wake_ups.drain("register"),
    )


def _directory(settings: Settings) -> "Directory | None":
    if settings.ldap_url is None:
        return None
    from supervisor_tasks.identity import AccountForm, Directory, Member  # ldap3, which costs each worker 0.4 s

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


def _sweep_side(settings: Settings, rpc: Rpc, wake_ups: WakeUps) -> SweepSide:
    @cache  # where the contracts live is asked for once
    def contract_of(provider: Address) -> Contract:
        return Contract(rpc, settings.chain_id, settings.metascheduler_smart_contract, provider)

    if settings.sweep_grace_s < SENSIBLE_GRACE_S:
        log.warning("sweep_grace_is_short", sweep_grace_s=settings.sweep_grace_s, expected_s=SENSIBLE_GRACE_S)
    return SweepSide(
        contract_of=contract_of,
        wake=wake_ups.drain,
        every_s=settings.sweep_every_s,
        grace_s=settings.sweep_grace_s,
        start_block=settings.metascheduler_start_block,
        foreign_jobs_allowed=settings.foreign_jobs_allowed,
    )


def _benchmark_side(settings: Settings, slurm: SlurmSide) -> BenchmarkSide:
    return BenchmarkSide(
        jobs=BenchmarkJobs(slurm.cluster, settings.benchmark_run_as),
        suite=SUITE,
        plan_of=partial(plan_of, settings),
        disabled=settings.benchmark_disable,
        sbatch_flags=settings.benchmark_sbatch_flags,
    )


def _ssh_keys(settings: Settings) -> Keys:
    """One key for all, or a certificate for each login."""
    if not settings.slurm_ssh_certificates:
        assert settings.slurm_ssh_private_key is not None  # noqa: S101  Need.SSH
        key = load_key(settings.slurm_ssh_private_key.get_secret_value())
        return lambda _: key
    assert settings.slurm_ssh_ca_key is not None  # noqa: S101  Need.SSH
    users = {settings.slurm_ssh_admin_user or "", settings.benchmark_run_as}
    ca_key = authority_key(settings.slurm_ssh_ca_key.get_secret_value())
    return CertificateAuthority(ca_key, users, f"supervisor {settings.cluster_name}").key_for


def slurm_side(settings: Settings) -> SlurmSide:
    """How SLURM is reached, by settings that have Need.SSH."""
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
        ssh=Ssh(settings.slurm_ssh_address, _ssh_keys(settings), settings.slurm_ssh_known_hosts),
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
    return SlurmSide(
        cluster,
        nodes,
        trust_callbacks=settings.trust_callbacks,
        benchmark_user=settings.benchmark_run_as,
        try_every_s=settings.slurm_try_every_s,
    )
