"""The settings: one frozen object, read from the environment once, when a process
starts.

The names and meanings of the Go program's variables work unchanged. A secret may be in
a file, which the variable with _FILE after the secret's name then names. A process
keeps only the secrets that it needs.
"""

import base64
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from supervisor_tasks.config import logging as logs
from supervisor_tasks.config import ssh_keys
from supervisor_tasks.config.needs import (
    CHAIN_URLS,
    KEYS,
    NOTIFY_URLS,
    Need,
    SlurmAccess,
    access_by,
    kept,
    slurm_access,
    unused_by,
)
from supervisor_tasks.config.other_forms import in_our_form
from supervisor_tasks.config.running_postgres import default_state_folder
from supervisor_tasks.config.settings_rules import missing, unfit_together
from supervisor_tasks.config.url_secrets import (
    forms_of,
    passwords_in,
    url_keys,
    without_password,
)
from supervisor_tasks.config.validators import (
    Address,
    BrokerUrl,
    CallbackKey,
    Command,
    CommandWords,
    DatabaseUrl,
    Dn,
    Duration,
    EthereumKey,
    File,
    HomeTemplate,
    HostPort,
    HttpUrls,
    Image,
    Interval,
    Iperf3Server,
    JobVariables,
    JwtKey,
    LabelKeys,
    Labels,
    LdapAttributes,
    LinuxUser,
    ListenAddress,
    MailAddress,
    MailAddresses,
    Modules,
    Networks,
    ObjectClasses,
    Price,
    QuietHoursSetting,
    RestUrl,
    SbatchFlags,
    SitePath,
    SrunFlags,
    SshPrivateKey,
    SshPublicKey,
    SubmitKey,
    UcxAffinity,
    UcxTransport,
    Variables,
    Volumes,
    pattern,
    split_urls,
    url_with,
)
from supervisor_tasks.errors import PermanentError, SupervisorError
from supervisor_tasks.provider.offer import USUAL_PRICES, Prices, normalised_labels

COIN = 10**18  # in Wei: what the wallet pays gas with
SECRETS = (*KEYS, "database_url", "broker_url", "flower_basic_auth")
# settings that NAME_FILE can put into a file
IN_FILES = (
    *SECRETS,
    *CHAIN_URLS,
    "ldap_url",
    "ldap_bind_dn",
    "otel_exporter_otlp_endpoint",
)
# an operator may put the private key there by mistake
NOT_SHOWN = (*SECRETS, "slurm_ssh_public_key")

CELERYS_COPIES = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
)
_LOGINS = "[^:,]+:[^,]+(,[^:,]+:[^,]+)*"


class SettingsError(PermanentError):
    """The environment is unusable; the message has one line for each variable that is
    missing or malformed.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Settings(BaseSettings):
    """All settings. The name of each is its environment variable in lower case."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    # the gRPC process
    listen_address: ListenAddress = ":3000"
    """Where the gRPC process listens."""
    public_address: HostPort = "supervisor.example.com:3000"
    """The address at which plugins reach the gRPC process; SLURM jobs have it in their
    comment.
    """
    tls_enable: bool = False
    """Whether the gRPC process uses TLS."""
    tls_cert: File | None = None
    """The certificate chain of the gRPC process (PEM), read again when the file
    changes.
    """
    tls_key: File | None = None
    """The private key of TLS_CERT (PEM), read again when the file changes."""
    callback_key: CallbackKey | None = None
    """The key by which our reporter and authorized-keys command prove themselves to the
    gRPC process.
    """
    callback_proof: Annotated[
        str, pattern("optional|required", "optional or required")
    ] = "optional"
    """Whether callers must prove themselves: `required` refuses callers without a
    proof.
    """
    callback_networks: Networks = ()
    """The networks from which callers without a proof may call; none: from
    everywhere.
    """

    # the chain
    metascheduler_endpoint_rpc: HttpUrls = SecretStr(
        "https://testnet.deepsquare.run/rpc"
    )
    """The JSON-RPC endpoints with commas between, the best first. With several, a
    second one must confirm a claim.
    """
    metascheduler_endpoint_ws: Annotated[SecretStr, url_with("ws", "wss")] = SecretStr(
        "wss://testnet.deepsquare.run/ws"
    )
    """The endpoint that announces new blocks. If only METASCHEDULER_ENDPOINT_RPC is
    set, blocks are polled.
    """
    metascheduler_smart_contract: Address = "0x3707aB457CF457275b7ec32e203c54df80C299d5"
    """The address of the meta-scheduler contract."""
    eth_private_key: EthereumKey | None = None
    """The private key of the wallet, which is the provider on chain."""
    metascheduler_cpu_price_per_min: Price = USUAL_PRICES.cpu_wei_per_min
    """The price of a CPU a minute, in wei (credits x 1e18)."""
    metascheduler_gpu_price_per_min: Price = USUAL_PRICES.gpu_wei_per_min
    """The price of a GPU a minute, in wei (credits x 1e18)."""
    metascheduler_mem_price_per_min: Price = USUAL_PRICES.mem_wei_per_min
    """The price of a MB of memory a minute, in wei (credits x 1e18)."""
    metascheduler_labels: Labels = Field(default_factory=dict)
    """The labels that the operator adds to the offer."""
    labels_override: LabelKeys = frozenset()
    """Keys of METASCHEDULER_LABELS that replace the measured labels."""
    hardware_stable_s: float = Field(300.0, ge=0, allow_inf_nan=False)
    """How long SLURM must have shown other nodes before they are offered; a shorter
    change makes no new offer.
    """
    chain_id: int = Field(179188, gt=0)
    """The chain's id. An endpoint of another chain is not used."""
    chain_confirmations: int = Field(0, ge=0, le=10_000)
    """The depth in blocks of the deepest reorganisation that is expected; 0: a block is
    final at once.
    """
    metascheduler_start_block: int = Field(0, ge=0)
    """A block before the provider's first claim. A new ledger reads old claims back to it."""
    chain_poll_s: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Seconds between two looks at the head of the chain, where no endpoint announces
    new blocks.
    """
    claim_batch: int = Field(200, gt=0)
    """The most transactions of one purpose that a worker sends at once."""
    claim_max_waiting: int = Field(1000, gt=0)
    """How many claimed jobs may wait for SLURM; with more, no job is claimed. Jobs that
    their owners hold do not count, and one customer's count as CLAIM_CUSTOMER_SHARE of
    it at most. It is no limit of a customer's jobs: each locks his credits.
    """
    claim_customer_share: float = Field(0.25, gt=0, le=1, allow_inf_nan=False)
    """The share of CLAIM_MAX_WAITING that one customer's waiting jobs count as at most,
    also if they are more. So others are still claimed.
    """
    allow_clusters_to_share_a_wallet: bool = False
    """Whether other clusters of the ledger may claim jobs with this cluster's wallet;
    all of them must allow it.
    """
    wallet_min_wei: int = Field(COIN // 100, ge=0)
    """The balance below which no job is claimed."""
    wallet_max_wei_per_gas: int = Field(10**12, gt=0)
    """The highest price of gas that the wallet pays."""
    wallet_max_wei_per_tx: int = Field(COIN, gt=0)
    """The most that a transaction can cost. A claim needs 0.3 million gas, a
    registration of 500 nodes 15 million.
    """
    wallet_stuck_after_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    """How long the next transaction may wait to be mined before it is signed again with
    a higher fee.
    """

    # the job definition service
    sbatch_endpoint: HostPort = "127.0.0.1:443"
    """The address of the job definition service, which gives the scripts."""
    sbatch_tls_enable: bool = True
    """Whether the job definition service uses TLS."""
    sbatch_ca: File | None = None
    """The authority (PEM) of that service's certificate; none: those that gRPC comes
    with.
    """
    sbatch_tls_insecure: bool = False
    """Whether the certificate of that service is not verified."""

    # SLURM
    slurm_transport: Annotated[str, pattern("ssh|rest", "ssh or rest")] = "ssh"
    """How workers reach SLURM: `ssh` to a login node, or `rest` to slurmrestd, without
    a login node.
    """
    slurmrestd_url: RestUrl | None = None
    """With SLURM_TRANSPORT=rest: unix:///path of slurmrestd's socket, or
    https://host:port; http:// on loopback only.
    """
    slurmrestd_ca: File | None = None
    """The authority (PEM) of slurmrestd's certificate; none: the machine's
    authorities.
    """
    slurm_jwt_key: JwtKey | None = None
    """With SLURM_TRANSPORT=rest: the base64 of slurmctld's `jwt_key` file. It can act
    as every user. The _FILE is that file.
    """
    slurm_jwt_admin_user: LinuxUser = "slurm"
    """With SLURM_TRANSPORT=rest: the Linux user (SlurmUser or an operator) who sees and
    changes all jobs.
    """
    slurm_job_home: HomeTemplate = "/home/{address}"
    """With SLURM_TRANSPORT=rest: the folder on the nodes in which a customer's jobs
    begin and which is their HOME.
    """
    slurm_job_environment: JobVariables = Field(default_factory=dict)
    """With SLURM_TRANSPORT=rest: more variables of all jobs, as NAME=value NAME=value;
    PATH can be one of them.
    """
    slurm_min_job_age_s: int = Field(300, ge=0)
    """With SLURM_TRANSPORT=rest: MinJobAge of slurm.conf, which slurmrestd does not
    show; 0: SLURM forgets no job.
    """
    slurm_max_memory_per_cpu_mb: int | None = Field(None, gt=0)
    """With SLURM_TRANSPORT=rest: MaxMemPerCPU of slurm.conf, which slurmrestd does not
    show; none: it has none.
    """
    slurm_ssh_address: HostPort | None = None
    """The login node."""
    slurm_ssh_admin_user: LinuxUser | None = None
    """The Linux user who may run `scontrol update` and see all jobs."""
    slurm_ssh_private_key: SshPrivateKey | None = None
    """The SSH key of the workers (a key file, or its base64). It opens every customer's
    account.
    """
    slurm_ssh_public_key: SshPublicKey | None = None
    """The public half of SLURM_SSH_PRIVATE_KEY, which sshd gets. Derived where the
    private key is set.
    """
    slurm_ssh_certificates: bool = False
    """Whether the worker signs a certificate with SLURM_SSH_CA_KEY for each login. Then
    no key opens all accounts.
    """
    slurm_ssh_ca_key: SshPrivateKey | None = None
    """The key that signs these certificates (a key file, or its base64)."""
    slurm_ssh_known_hosts: File = Path("~/.ssh/known_hosts").expanduser()
    """The file with the login node's host key."""
    slurm_environment_file: Annotated[
        str, pattern("(/.*)?", "the absolute path of a file on the login node")
    ] = ""
    """A POSIX shell file on the login node whose exported variables all jobs get; none:
    no file.
    """
    slurm_submit_key: SubmitKey | None = None
    """The key of `plugins/job_submit.lua`, for a site where slurmctld runs that
    script.
    """
    slurm_sbatch_path: str = "/usr/bin/sbatch"
    """The path of sbatch on the login node."""
    slurm_scancel_path: str = "/usr/bin/scancel"
    """The path of scancel on the login node."""
    slurm_scontrol_path: str = "/usr/bin/scontrol"
    """The path of scontrol on the login node."""
    slurm_sinfo_path: str = "/usr/bin/sinfo"
    """The path of sinfo on the login node."""
    slurm_squeue_path: str = "/usr/bin/squeue"
    """The path of squeue on the login node."""
    slurm_sacct_path: str = "/usr/bin/sacct"
    """The path of sacct on the login node, used with SLURM_ACCOUNTING. sacctmgr lies in
    the same folder.
    """
    slurm_accounting: bool = False
    """Whether the site has slurmdbd, so that sacct shows ended jobs."""
    slurm_customer_account: Annotated[
        str, pattern("([A-Za-z0-9_.-]+)?", "letters, digits, - _ and .")
    ] = ""
    """The account of slurmdbd that customers are added to, for a site whose
    AccountingStorageEnforce requires one of each user; none: the site adds them.
    """
    slurm_message_timeout_s: float = Field(10.0, gt=0, le=100)
    """MessageTimeout of slurm.conf, in seconds."""
    slurm_retry_interval_s: float = Field(10.0, gt=0, le=600)
    """Seconds between two tries while SLURM does not answer; the tenth try raises
    an alarm.
    """
    slurm_partition: Annotated[
        str, pattern("[A-Za-z0-9_.-]+", "letters, digits, - _ and .")
    ] = "main"
    """The partition whose nodes are offered, and to which jobs are submitted."""
    slurm_compare_sizes: bool = True
    """Whether the CPUs, memory and nodes of a job in SLURM must be those of its
    request, and no more.
    """
    trust_callbacks: bool = True
    """Whether a plausible callback counts as the end of a job that SLURM without
    accounting has forgotten, and a proven one as the end of a job that SLURM ended once
    more.
    """
    sweep_every_s: float = Field(900.0, gt=0, allow_inf_nan=False)
    """Seconds between two sweeps. Where SLURM forgets jobs earlier, sweeps come more
    often.
    """
    sweep_grace_s: float = Field(300.0, ge=1, allow_inf_nan=False)
    """How long slurmctld must have been up before an unknown job counts as lost. Only
    tests set less than a minute.
    """
    foreign_jobs_allowed: bool = False
    """Whether customers may have jobs in SLURM that are not in this ledger, such as nested
    jobs (`nested_jobs` in plugins/README.md). Without it they are an alarm.
    """
    nvidia_smi_path: Command = "nvidia-smi"
    """The path of nvidia-smi on the nodes."""
    trace: bool = False
    """Whether the logs have the level debug."""

    # the customers' accounts
    allow_shared_homes_where_customers_can_run_code_as_each_other: bool = False
    """Whether customers may share homes, in which each can make the others run what he
    wrote.
    """
    ldap_url: Annotated[str, url_with("ldap", "ldaps", "ldapi")] | None = None
    """The directory in which customers get accounts; none: the site makes the accounts
    itself.
    """
    ldap_bind_dn: Dn | None = None
    """The entry that may write there."""
    ldap_bind_password: SecretStr | None = None
    """The password of LDAP_BIND_DN."""
    ldap_ca_path: File | None = None
    """The authority (PEM) of the directory's certificate; none: the machine's
    authorities.
    """
    ldap_insecure: bool = False
    """Whether the certificate of the directory is not verified."""
    ldap_people_dn: Dn = "ou=people,dc=hpc,dc=deepsquare,dc=run"
    """The entry under which the accounts are made."""
    ldap_group_dn: Dn = "cn=cluster-users,ou=groups,dc=hpc,dc=deepsquare,dc=run"
    """The group of the users who may use the cluster."""
    ldap_object_classes: ObjectClasses = "nsPerson,nsOrgPerson,nsAccount,posixAccount"
    """The object classes of an account."""
    ldap_member_attribute: Annotated[
        str,
        pattern("member|uniqueMember|memberUid", "member, uniqueMember or memberUid"),
    ] = "member"
    """The attribute by which LDAP_GROUP_DN names its members."""
    ldap_attributes: LdapAttributes = Field(default_factory=dict)
    """More attributes of an account, or other values of them."""
    ldap_gid_number: int | None = Field(None, ge=0, lt=2**31)
    """The number of a group for all accounts; none: each account has its own group."""
    ldap_own_groups_dn: Dn | None = None
    """The entry under which the accounts' own groups are made; none: the parent of
    LDAP_GROUP_DN.
    """
    ldap_own_group_object_classes: ObjectClasses = "posixGroup"
    """The object classes of an account's own group."""
    ldap_home_directory: HomeTemplate = "/home/{address}"
    """The home of an account."""
    ldap_login_shell: SitePath = "/bin/sh"
    """The login shell. Keep /bin/sh: called by this name, a shell reads no start-up
    file when sshd runs a command. /bin/bash would read the customer's .bashrc.
    """
    ldap_first_uid_number: int | None = Field(None, gt=0, lt=2**31)
    """The first uid number that is given; none: -1, which 389ds's DNA plugin
    replaces.
    """

    # benchmarks
    benchmark_disable: bool = False
    """Whether the cluster is never measured."""
    benchmark_run_as: LinuxUser = "root"
    """The Linux user who submits the benchmarks."""
    benchmark_time_limit: Duration = 24 * 3600.0
    """The time limit of each benchmark."""
    benchmark_every: Interval = 0.0
    """How often the cluster is measured again; 0: only when the operator requests it,
    or the nodes, the prices or the operator's labels change.
    """
    benchmark_trace: bool = False
    """Whether the benchmarks' programs trace what they do (NCCL_DEBUG=TRACE)."""
    benchmark_unresponsive: bool = False
    """Whether nodes that do not work count too."""
    benchmark_hpl_image: Image = "registry-1.deepsquare.run#library/hpc-benchmarks:23.5"
    """The container image of HPL."""
    benchmark_hpl_single_node: bool = False
    """Whether HPL measures one node."""
    benchmark_osu_image: Image = (
        "registry-1.deepsquare.run#library/osu-benchmarks:latest"
    )
    """The container image of the OSU benchmarks."""
    benchmark_ior_image: Image = (
        "registry-1.deepsquare.run#library/ior-benchmarks:latest"
    )
    """The container image of IOR."""
    benchmark_ior_single_node: bool = False
    """Whether IOR measures one node."""
    benchmark_speedtest_image: Image = "registry-1.docker.io#gists/speedtest-cli:1.2.0"
    """The container image of speedtest."""
    benchmark_ucx: bool = False
    """Whether MPI uses UCX."""
    benchmark_ucx_affinity: UcxAffinity = ""
    """The devices of UCX: none, one entry for all nodes, or one for each node."""
    benchmark_ucx_transport: UcxTransport = ""
    """The transports of UCX."""
    benchmark_mode: Annotated[
        str, pattern("container|native", "container or native")
    ] = "container"
    """Whether the programs run in containers, or natively as the nodes have them."""
    benchmark_environment: Variables = Field(default_factory=dict)
    """Variables for the programs."""
    benchmark_volumes: Volumes = Field(default_factory=dict)
    """The volumes of the containers, instead of the standard ones."""
    benchmark_modules: Modules = ""
    """The modules that are loaded before native programs, with spaces between."""
    benchmark_container_flags: SrunFlags = ""
    """The site's own options of srun for containers."""
    benchmark_sbatch_flags: SbatchFlags = ()
    """The site's own options of sbatch, such as --account=grid --qos=low."""
    benchmark_launcher: Annotated[str, pattern("mpirun|srun", "mpirun or srun")] = (
        "mpirun"
    )
    """The program that starts native MPI programs."""
    benchmark_srun_mpi: Annotated[
        str, pattern("[a-z0-9_]+", "a word that srun --mpi knows")
    ] = "pmix"
    """The value of `srun --mpi`."""
    benchmark_hpl_memory_share: float = Field(0.5, gt=0, le=1)
    """The share of the memory that HPL's matrix takes."""
    benchmark_hpl_block_size: int = Field(512, ge=1, le=4096)
    """The block size of HPL."""
    benchmark_hpl_max_n: int | None = Field(None, gt=0)
    """The greatest order of HPL's matrix; none: the memory bounds it."""
    benchmark_cpu_ranks_per_node: int | None = Field(None, gt=0)
    """The MPI ranks on a node without GPUs; none: a rank for each CPU."""
    benchmark_ior_block_mb_per_node: int = Field(10 * 1024, gt=0)
    """The MB that IOR writes and reads on each node."""
    benchmark_ior_iterations: int = Field(5, ge=1, le=100)
    """How often IOR measures."""
    benchmark_iperf3_server: Iperf3Server = ""
    """An iperf3 server, which is measured against instead of speedtest."""

    # messages about alarms
    notify_webhook_url: Annotated[SecretStr, url_with("http", "https")] | None = None
    """Where each message about an alarm is posted as a JSON object."""
    notify_webhook_token: SecretStr | None = None
    """The bearer token for NOTIFY_WEBHOOK_URL."""
    notify_slack_url: Annotated[SecretStr, url_with("http", "https")] | None = None
    """An incoming webhook of Slack, or of a chat that takes Slack's form."""
    notify_alertmanager_url: Annotated[SecretStr, url_with("http", "https")] | None = (
        None
    )
    """The address of an Alertmanager, to which the alarms are posted by its API v2."""
    notify_mail_to: MailAddresses = ()
    """The addresses that get a mail, with commas between."""
    notify_mail_from: MailAddress | None = None
    """The sender's address of these mails."""
    notify_smtp_address: HostPort | None = None
    """The SMTP server that takes these mails."""
    notify_smtp_tls: Annotated[
        str, pattern("starttls|tls|none", "starttls, tls or none")
    ] = "starttls"
    """How the connection to that server is encrypted: none is only for a server on the
    same machine or network.
    """
    notify_smtp_user: str | None = None
    """The user's name at that server; none: no login."""
    notify_smtp_password: SecretStr | None = None
    """The password of NOTIFY_SMTP_USER."""
    notify_ca: File | None = None
    """The authority (PEM) of the webhooks' and the SMTP server's certificates; none:
    those of certifi for webhooks, the machine's for SMTP.
    """
    notify_command: CommandWords = ()
    """A command, without a shell, that gets each message as a JSON object on its
    standard input.
    """
    notify_quiet_hours: QuietHoursSetting | None = None
    """The hours of the day in which messages about critical alarms only are sent, with
    a time zone (UTC without one).
    """
    notify_stable_s: float = Field(300.0, ge=0, le=86_400)
    """How long an alarm must be off before a message about its end. Raised again within
    this time, it is the same alarm.
    """
    runbook_url: Annotated[
        str,
        pattern(
            r"https?://[^\s?#&]+|docs/how-to/alarms",
            "a URL without ? and #, to which /wallet_empty.md fits",
        ),
    ] = "docs/how-to/alarms"
    """Where the alarms' pages are; each message links to the page of its alarm, such as
    RUNBOOK_URL/wallet_empty.md.
    """

    # this program
    cluster_name: Annotated[
        str, pattern("[A-Za-z0-9_-]+", "letters, digits, - and _")
    ] = "main"
    """The name of the cluster. It separates clusters that share a database or a
    broker.
    """
    database_url: DatabaseUrl | None = None
    """The ledger's Postgres; none: an embedded one in STATE_DIR."""
    broker_url: BrokerUrl | None = None
    """Celery's Redis; none: an embedded one in STATE_DIR."""
    broker_ca: File | None = None
    """The authority (PEM) of rediss://; none: the machine's authorities."""
    broker_cert: File | None = None
    """A client certificate (PEM), if the broker requires one."""
    broker_key: File | None = None
    """The private key of BROKER_CERT."""
    flower_basic_auth: (
        Annotated[
            SecretStr,
            pattern(
                _LOGINS, "user:password, or several with commas between (none within)"
            ),
        ]
        | None
    ) = None
    """The logins of Flower. It needs one where it listens on other addresses than
    loopback.
    """
    flower_url: Annotated[str, url_with("http", "https")] = "http://127.0.0.1:5555"
    """Where Flower is, for `supervisor doctor`."""
    retention_days: int = Field(400, ge=0, le=36_500)
    """After how many days ended jobs with all their rows, transactions and benchmark
    runs are deleted; 0: never.
    """
    retention_hour: int = Field(1, ge=0, le=23)
    """The hour (UTC) in which the deletion of old rows begins, for at most four
    hours.
    """
    worker_watchdog_timeout_s: float = Field(60.0, ge=0, allow_inf_nan=False)
    """After how many seconds without receiving waiting messages a worker ends itself;
    0: never.
    """
    metrics_address: ListenAddress = "127.0.0.1:9464"
    """Where `supervisor metrics` listens."""
    health_address: ListenAddress | None = None
    """Where a process serves /livez, /readyz and /metrics; none: nowhere."""
    state_dir: File = Field(default_factory=default_state_folder)
    """The folder of the embedded servers and of the gRPC process's Unix sockets."""
    log_level: Annotated[
        str, pattern("debug|info|warning|error", "debug, info, warning or error")
    ] = "info"
    """The level of the logs."""
    otel_exporter_otlp_endpoint: (
        Annotated[SecretStr, url_with("http", "https")] | None
    ) = None
    """Where a trace of each job is sent, by OTLP over HTTP, such as
    http://collector:4318; none: no traces.
    """
    explorer_url: Annotated[
        str,
        pattern(
            r"(https?://\S*\{hash\}\S*)?",
            "the URL of a transaction in an explorer, with {hash} for its hash",
        ),
    ] = ""
    """Where a block explorer shows a transaction; `supervisor job show` and `supervisor
    tx show` link to it.
    """

    @field_validator("labels_override")
    @classmethod
    def _keys_of_labels(
        cls, keys: frozenset[str], info: ValidationInfo
    ) -> frozenset[str]:
        unknown = sorted(
            keys - normalised_labels(info.data.get("metascheduler_labels", {})).keys()
        )
        if unknown and "metascheduler_labels" in info.data:
            raise ValueError(
                f"keys of METASCHEDULER_LABELS, with commas between ({', '.join(unknown)!r} is none)"
            )
        return keys

    @property
    def slurm_access(self) -> SlurmAccess:
        """How this process gets to SLURM."""
        return access_by(
            rest=self.slurm_transport == "rest",
            certificates=self.slurm_ssh_certificates,
        )

    @property
    def own_groups_dn(self) -> str:
        """The directory entry under which the customers' own groups are made."""
        if self.ldap_own_groups_dn:
            return self.ldap_own_groups_dn
        return re.sub(r"^(\\.|[^,\\])*, *", "", self.ldap_group_dn)

    @property
    def prices(self) -> Prices:
        """The provider's prices."""
        return Prices(
            self.metascheduler_gpu_price_per_min,
            self.metascheduler_cpu_price_per_min,
            self.metascheduler_mem_price_per_min,
        )

    @property
    def operator_labels(self) -> dict[str, str]:
        """The operator's labels, in the grid's form."""
        return normalised_labels(self.metascheduler_labels)

    @property
    def rpc_urls(self) -> list[str]:
        """The RPC endpoints, in the operator's order, the best first."""
        return split_urls(self.metascheduler_endpoint_rpc.get_secret_value())

    @property
    def ws_url(self) -> str | None:
        """The endpoint that announces new blocks; None if the operator has set RPC
        endpoints and not this one.
        """
        endpoints = {"metascheduler_endpoint_rpc", "metascheduler_endpoint_ws"}
        if self.model_fields_set & endpoints == {"metascheduler_endpoint_rpc"}:
            return None
        return self.metascheduler_endpoint_ws.get_secret_value()

    @property
    def effective_log_level(self) -> str:
        """The level of the logs: TRACE sets it to debug."""
        if self.trace:
            return "debug"
        return self.log_level

    def secret_values(self) -> list[str]:
        """Return all texts that must never be in a log."""
        texts = list[str]()
        for name in type(self).model_fields:
            if name in CHAIN_URLS:
                continue
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                texts += forms_of(value.get_secret_value())
            elif isinstance(value, str) and "://" in value:
                texts += passwords_in(value)
        if self.flower_basic_auth is not None:
            texts += self.flower_basic_auth.get_secret_value().split(",")
        for url in (*self.rpc_urls, self.metascheduler_endpoint_ws.get_secret_value()):
            texts += passwords_in(url)
            texts += url_keys(url)
        for name in (*NOTIFY_URLS, "otel_exporter_otlp_endpoint"):
            receiver: SecretStr | None = getattr(self, name)
            if receiver is not None:
                texts += url_keys(receiver.get_secret_value())
        return texts


# the variables that this process has removed from its environment
_hidden: dict[str, str] = {}


def hide_secrets(process: str, *needs: Need) -> None:
    """Remove the secrets from os.environ. `load` still finds them, but no keys that
    these needs do not require, and nothing that this process does not use.
    """
    not_kept = set(KEYS) - kept(needs, slurm_access(os.environ)) | unused_by(process)
    for name in IN_FILES:
        for variable in (name.upper(), f"{name.upper()}_FILE"):
            value = os.environ.pop(variable, "")
            if value and name not in not_kept:
                _hidden[variable] = value
    _hide_celerys_copies()


def _hide_celerys_copies() -> None:
    """Remove Celery's copies of secrets from os.environ, and keep CELERY_BROKER_URL as
    BROKER_URL.

    Celery's command copies BROKER_URL, or its option --broker, before it loads our
    configuration. For Celery such a copy has priority over broker_url, so it must stay
    the broker.
    """
    for variable in CELERYS_COPIES:
        value = os.environ.get(variable, "")
        if value in _hidden.values() or passwords_in(value):
            del os.environ[variable]
            if variable == CELERYS_COPIES[0]:
                _hidden["BROKER_URL"] = value


def load(*needs: Need, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of a process with these needs.

    Raises SettingsError, which names every variable that is missing or malformed, and
    contains no secret; a retry does not help.
    """
    if environment is None:
        environment = {**_hidden, **os.environ}
    given, lines = _given(environment)
    if Need.SSH_PUBLIC in needs and "slurm_ssh_public_key" not in given:
        _derive_public_key(given)
    settings, malformed = _validated(given)
    lines += malformed
    bad = {line.partition(":")[0].removesuffix("_FILE") for line in lines}
    lines += missing(needs, given, bad)
    if settings is not None:
        lines += unfit_together(settings, needs, bad)
    if lines or settings is None:
        raise SettingsError(sorted(lines))
    not_kept = set(KEYS) - kept(needs, settings.slurm_access)
    return settings.model_copy(update=dict.fromkeys(not_kept))


def load_or_exit(*needs: Need) -> Settings:
    """Return the settings; without valid ones, log why and end the process with status
    2.
    """
    with or_exit():
        return load(*needs)


@contextmanager
def or_exit() -> Iterator[None]:
    """On a SupervisorError, log it and end the process with status 2: for what the
    process cannot work without.

    An exception would not end it: Celery continues after an error in a handler of its
    signals.
    """
    try:
        yield
    except SupervisorError as error:
        logs.log_refusal(str(error), os.environ.get("CLUSTER_NAME", ""))
        sys.exit(2)


def _validated(given: Mapping[str, str]) -> tuple[Settings | None, list[str]]:
    """Return the settings, or a line for each value that is malformed."""
    try:
        return _Given.model_validate(given), []
    except ValidationError as error:
        entries = error.errors(include_url=False, include_context=False)
        return None, [_line(entry, given) for entry in entries]


class _Given(Settings):
    """Settings only from the arguments: `load` reads the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  pydantic's own signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _given(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return our settings from the environment and its files, and a line for each file
    that is unreadable.
    """
    given, lines = in_our_form(environment)
    for name in Settings.model_fields:
        value = environment.get(name.upper(), "")
        file = environment.get(f"{name.upper()}_FILE", "")
        if name in IN_FILES and file and not value:
            try:
                value = text_of_file(name, file)
            except UnreadableFileError as error:
                lines.append(str(error))
        if value:
            given[name] = value
    return given, lines


class UnreadableFileError(ValueError):
    """The file of a setting cannot be read; the text names its variable."""


def text_of_file(name: str, file: str) -> str:
    """Return a setting's text from the file that its variable names. Raises
    UnreadableFileError; a retry does not help.
    """
    try:
        return _text_of(name, Path(file).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "it is no text")
        raise UnreadableFileError(
            f"{name.upper()}_FILE: found {_path_shown(file)}; expected a file that can be read ({reason})"
        ) from error


def _text_of(name: str, file: Path) -> str:
    """Return a setting's text from its file. slurmctld's key file can have any bytes,
    so the text is their base64.
    """
    if name == "slurm_jwt_key":
        return base64.b64encode(file.read_bytes()).decode()
    return file.read_text().strip()


def _path_shown(path: str) -> str:
    """Return the path for a message. It hides another text: an operator may have put
    the secret itself there.
    """
    if path.startswith(("/", "./", "../", "~/")):
        return repr(path)
    return "a value that is not shown"


def _derive_public_key(given: dict[str, str]) -> None:
    """Add the public half of the private key. The validation of the private key reports
    a malformed one.
    """
    with suppress(KeyError, ValueError):
        given["slurm_ssh_public_key"] = ssh_keys.public_half(
            given["slurm_ssh_private_key"]
        )


def _line(error: Any, given: Mapping[str, str]) -> str:
    name = str(error["loc"][0])
    found = "a value that is not shown"
    if name not in NOT_SHOWN:
        found = repr(without_password(name, given.get(name, "")))
    expected = (
        error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    )
    return f"{name.upper()}: found {found}; expected {expected}"
