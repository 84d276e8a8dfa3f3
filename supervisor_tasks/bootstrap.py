"""Builds a worker's parts from the settings, and connects them."""

from base64 import b64decode
from collections.abc import Collection
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from celery import Celery
from pydantic import SecretStr

from benchmarks.registry import SUITE
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.needs import SlurmAccess
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.context import (
    BenchmarkServices,
    ChainServices,
    OfferConfig,
    ReconciliationServices,
    SlurmServices,
    WorkerContext,
)
from supervisor_tasks.from_settings.benchmark_plan import plan_of
from supervisor_tasks.from_settings.notification_channels import notifier_of
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_definitions import JobDefinitions
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.indexer.new_blocks import NewBlocks
from supervisor_tasks.instruments import chain_not_read_yet
from supervisor_tasks.jobs.batch import Batch
from supervisor_tasks.jobs.batch_policies import BATCH_POLICIES
from supervisor_tasks.jobs.claim import look_at_queues
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.journal import Journal
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.lifecycle import Worker
from supervisor_tasks.messaging.dispatcher import TaskDispatcher
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.observability.traces import tracer_of
from supervisor_tasks.provider.offer import USUAL_PRICES, price_warnings
from supervisor_tasks.slurm.benchmark_jobs import BenchmarkJobs
from supervisor_tasks.slurm.certificates import CertificateAuthority, authority_key
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm.homes import Homes
from supervisor_tasks.slurm.interface import NodeQuery, SlurmCluster, SlurmSettings
from supervisor_tasks.slurm.login_node import LoginNode, Paths
from supervisor_tasks.slurm.node_query import Nodes
from supervisor_tasks.slurm.rest import RestCluster
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_client import RestClient
from supervisor_tasks.slurm.rest_nodes import RestNodes
from supervisor_tasks.slurm.rest_tokens import TokenMint
from supervisor_tasks.slurm.ssh import CONNECT_TIMEOUT_S, Keys, Ssh, load_key
from supervisor_tasks.wallet.account import WalletAccount
from supervisor_tasks.wallet.fees import Bounds
from supervisor_tasks.wallet.sent_transactions import SentTransactions
from supervisor_tasks.wallet.transaction_writer import TransactionWriter

if TYPE_CHECKING:
    from supervisor_tasks.site_services.directory import Directory

Value = TypeVar("Value")
log = structlog.get_logger()

# with less, a sweep mistakes a restart of slurmctld for a loss of jobs
SENSIBLE_GRACE_S = 60.0


def build(settings: Settings, served: Collection[Queue], app: Celery) -> Worker:
    """Build a worker for the queues that it serves, with only the parts that they
    need.
    """
    logs.configure(
        settings.effective_log_level, settings.secret_values(), settings.cluster_name
    )
    dispatcher = TaskDispatcher(app)
    engine = open_engine(database_url(settings))
    tracer = tracer_of(
        settings, "worker", Journal(engine, settings.cluster_name).history
    )
    ledger = Ledger(
        engine, settings.cluster_name, dispatcher.dispatch_effects, tracer.ended
    )
    rpc = Endpoints(settings.rpc_urls, settings.chain_id)
    chain, directory, offer = None, None, None
    if Queue.CHAIN in served:
        chain = _chain_services(settings, ledger, rpc)
        directory = directory_of(settings)
        offer = _offer_config(settings)
    if {Queue.SLURM, Queue.BENCHMARK} & set(served):
        slurm = slurm_services(settings)
    else:
        slurm = None
    sweeping = None
    if Queue.SLURM in served:
        sweeping = _reconciliation_services(settings, rpc)
    if slurm is not None and _measures(settings, served):
        benchmarking = _benchmark_services(settings, slurm)
    else:
        benchmarking = None
    grid_logger = GridLogger(channels_of(settings).open)
    context = WorkerContext(
        ledger=ledger,
        grid_logger=grid_logger,
        chain_services=chain,
        slurm_services=slurm,
        dispatch=dispatcher.dispatch,
        reconciliation_services=sweeping,
        directory=directory,
        benchmark_services=benchmarking,
        offer_config=offer,
        notifier=notifier_of(settings),
        retention_days=settings.retention_days,
        tracer=tracer,
    )
    new_blocks, hold_wallet = None, None
    if chain is not None:
        new_blocks = NewBlocks(
            context,
            settings.chain_poll_s,
            look_at_queues,
            dispatcher.dispatch,
            settings.ws_url,
        )
        hold_wallet = partial(_hold_wallet, settings, ledger, chain)
    batches = {kind: Batch(context, kind) for kind in BATCH_POLICIES}
    return Worker(context, batches, dispatcher.dispatch, new_blocks, hold_wallet)


def _hold_wallet(settings: Settings, ledger: Ledger, chain: ChainServices) -> None:
    shared = settings.allow_clusters_to_share_a_wallet
    ledger.wallets.hold(settings.chain_id, chain.account.address, shared=shared)


def channels_of(settings: Settings) -> Channels:
    """Return the channels to the grid's services, as the settings require them."""
    return Channels(
        settings.sbatch_tls_enable,
        settings.sbatch_ca,
        verified=not settings.sbatch_tls_insecure,
    )


def _measures(settings: Settings, served: Collection[Queue]) -> bool:
    """Return whether the worker measures the cluster: that needs a login node, which
    slurmrestd does not replace.
    """
    return Queue.BENCHMARK in served and settings.slurm_access is not SlurmAccess.REST


def _chain_services(settings: Settings, ledger: Ledger, rpc: Rpc) -> ChainServices:
    contract_address = settings.metascheduler_smart_contract
    key = _required(settings.eth_private_key).get_secret_value()
    bounds = Bounds(settings.wallet_max_wei_per_gas, settings.wallet_max_wei_per_tx)
    chain_not_read_yet(settings.chain_id)
    account = WalletAccount(
        ledger.engine, ledger.cluster, rpc, settings.chain_id, key, bounds
    )
    return ChainServices(
        contract=Contract(rpc, settings.chain_id, contract_address, account.address),
        account=account,
        transaction_writer=TransactionWriter(account, contract_address),
        sent_transactions=SentTransactions(account),
        job_definitions=JobDefinitions(
            lambda: channels_of(settings).open(settings.sbatch_endpoint),
            account.sign_message,
        ),
        claim_batch=settings.claim_batch,
        claim_max_waiting=settings.claim_max_waiting,
        claim_customer_share=settings.claim_customer_share,
        wallet_min_wei=settings.wallet_min_wei,
        blocks=Blocks(ledger.engine, ledger.cluster, settings.chain_confirmations),
        confirmations=settings.chain_confirmations,
        stuck_after_s=settings.wallet_stuck_after_s,
    )


def _offer_config(settings: Settings) -> OfferConfig:
    for line in price_warnings(settings.prices, USUAL_PRICES):
        log.warning("price_out_of_expected_range", found=line)
    return OfferConfig(
        prices=settings.prices,
        operator_labels=settings.operator_labels,
        labels_override=settings.labels_override,
        hardware_stable_s=settings.hardware_stable_s,
        benchmarks_enabled=not settings.benchmark_disable,
        benchmark_every_s=settings.benchmark_every,
    )


def directory_of(settings: Settings) -> "Directory | None":
    """Build the access to the directory; None at a site that makes the accounts
    itself.
    """
    if settings.ldap_url is None:
        return None
    # imports ldap3, which costs each worker 0.4 s
    from supervisor_tasks.site_services.directory import (
        AccountForm,
        Directory,
        Member,
    )

    return Directory(
        url=settings.ldap_url,
        bind_dn=settings.ldap_bind_dn or "",
        bind_password=_text_of(settings.ldap_bind_password),
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


def _required(value: Value | None) -> Value:
    """Return a setting that is there, because the process has the need for it."""
    assert value is not None  # noqa: S101  `load` has checked the need
    return value


def _text_of(secret: SecretStr | None) -> str:
    """The text of a secret; empty if there is none."""
    if secret is None:
        return ""
    return secret.get_secret_value()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _reconciliation_services(settings: Settings, rpc: Rpc) -> ReconciliationServices:
    @cache  # a Contract reads the addresses of the other contracts once
    def contract_of(provider: Address) -> Contract:
        return Contract(
            rpc, settings.chain_id, settings.metascheduler_smart_contract, provider
        )

    if settings.sweep_grace_s < SENSIBLE_GRACE_S:
        log.warning(
            "sweep_grace_is_short",
            sweep_grace_s=settings.sweep_grace_s,
            expected_s=SENSIBLE_GRACE_S,
        )
    return ReconciliationServices(
        contract_of=contract_of,
        every_s=settings.sweep_every_s,
        grace_s=settings.sweep_grace_s,
        start_block=settings.metascheduler_start_block,
        foreign_jobs_allowed=settings.foreign_jobs_allowed,
    )


def _benchmark_services(settings: Settings, slurm: SlurmServices) -> BenchmarkServices:
    return BenchmarkServices(
        jobs=BenchmarkJobs(over_ssh(slurm.cluster), settings.benchmark_run_as),
        suite=SUITE,
        plan_of=partial(plan_of, settings),
        disabled=settings.benchmark_disable,
        sbatch_flags=settings.benchmark_sbatch_flags,
    )


def _ssh_keys(settings: Settings) -> Keys:
    """Return the function that gives a user's key: one key for all users, or a
    certificate for each login.
    """
    if not settings.slurm_ssh_certificates:
        key = load_key(_required(settings.slurm_ssh_private_key).get_secret_value())
        return lambda _: key
    users = {_required(settings.slurm_ssh_admin_user), settings.benchmark_run_as}
    ca_key = authority_key(_required(settings.slurm_ssh_ca_key).get_secret_value())
    return CertificateAuthority(
        ca_key, users, f"supervisor {settings.cluster_name}"
    ).key_for


def _slurm_settings(settings: Settings) -> SlurmSettings:
    return SlurmSettings(
        partition=settings.slurm_partition,
        public_address=settings.public_address,
        message_timeout_s=settings.slurm_message_timeout_s,
        compares_sizes=settings.slurm_compare_sizes,
        submit_key=_text_of(settings.slurm_submit_key),
        customer_account=settings.slurm_customer_account,
    )


def _over_rest(settings: Settings, connect_timeout_s: float) -> SlurmServices:
    mint = TokenMint(b64decode(_required(settings.slurm_jwt_key).get_secret_value()))
    client = RestClient(
        _required(settings.slurmrestd_url), settings.slurmrestd_ca, connect_timeout_s
    )
    access = RestAccess(client=client, mint=mint, admin=settings.slurm_jwt_admin_user)
    cluster = RestCluster.of(
        access,
        _slurm_settings(settings),
        home=settings.slurm_job_home,
        environment=settings.slurm_job_environment,
        min_job_age_s=settings.slurm_min_job_age_s,
        max_memory_per_cpu_mb=settings.slurm_max_memory_per_cpu_mb,
    )
    nodes = RestNodes(
        access=access,
        partition=settings.slurm_partition,
        unresponsive=settings.benchmark_unresponsive,
    )
    return _services(settings, cluster, nodes)


def _services(
    settings: Settings, cluster: SlurmCluster, nodes: NodeQuery
) -> SlurmServices:
    return SlurmServices(
        cluster,
        nodes,
        trust_callbacks=settings.trust_callbacks,
        benchmark_user=settings.benchmark_run_as,
        try_every_s=settings.slurm_retry_interval_s,
    )


def slurm_services(
    settings: Settings, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> SlurmServices:
    """Build the access to SLURM, from settings with Need.SLURM."""
    if settings.slurm_access is SlurmAccess.REST:
        return _over_rest(settings, connect_timeout_s)
    paths = Paths(
        sbatch=settings.slurm_sbatch_path,
        scancel=settings.slurm_scancel_path,
        scontrol=settings.slurm_scontrol_path,
        squeue=settings.slurm_squeue_path,
        sacct=settings.slurm_sacct_path if settings.slurm_accounting else None,
    )
    login_node = LoginNode(
        ssh=Ssh(
            _required(settings.slurm_ssh_address),
            _ssh_keys(settings),
            settings.slurm_ssh_known_hosts,
            connect_timeout_s,
        ),
        admin=_required(settings.slurm_ssh_admin_user),
        paths=paths,
    )
    homes = Homes(
        shared_allowed=settings.allow_shared_homes_where_customers_can_run_code_as_each_other
    )
    cluster = Cluster.of(
        login_node,
        _slurm_settings(settings),
        homes=homes,
        environment_file=settings.slurm_environment_file,
    )
    nodes = Nodes(
        ssh=login_node.ssh,
        admin=login_node.admin,
        scontrol=paths.scontrol,
        sinfo=settings.slurm_sinfo_path,
        partition=settings.slurm_partition,
        unresponsive=settings.benchmark_unresponsive,
    )
    return _services(settings, cluster, nodes)
