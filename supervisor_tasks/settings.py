"""The settings: one frozen object, read from the environment once, when a process starts.

The names and meanings of interfaces.md section 6 work unchanged. A secret may also be given as a file, by the same name with
_FILE behind it. A process keeps only the secrets that it works with.
"""

import base64
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from supervisor_tasks import ssh_keys
from supervisor_tasks.errors import PermanentError, SupervisorError
from supervisor_tasks.forms import (
    Address,
    BrokerUrl,
    Command,
    DatabaseUrl,
    Dn,
    Duration,
    File,
    HomeTemplate,
    HostPort,
    HttpUrls,
    Image,
    Interval,
    Iperf3Server,
    LabelKeys,
    Labels,
    LdapAttributes,
    LinuxUser,
    ListenAddress,
    Modules,
    Networks,
    ObjectClasses,
    Price,
    SbatchFlags,
    SitePath,
    SrunFlags,
    UcxAffinity,
    UcxTransport,
    Variables,
    Volumes,
    pattern,
    pattern_of_secret,
    split_urls,
    url_with,
)
from supervisor_tasks.offer import Prices, normalised_labels
from supervisor_tasks.urls import url_keys

CREDIT = 10**18
LEAST_KEY_CHARACTERS = 32  # of CALLBACK_KEY, as in plugins/proof.py
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141  # secp256k1; keys are below it


class Need(StrEnum):
    """What a process works with beyond what all need."""

    WALLET = "wallet"
    SSH = "ssh"
    SSH_PUBLIC = "ssh public"


REQUIRED = {
    Need.WALLET: ("eth_private_key",),
    Need.SSH: ("slurm_ssh_private_key", "slurm_ssh_address", "slurm_ssh_admin_user"),
    Need.SSH_PUBLIC: ("slurm_ssh_public_key",),
}
WITH_CERTIFICATES = {  # SLURM_SSH_CERTIFICATES
    Need.SSH: ("slurm_ssh_ca_key", "slurm_ssh_address", "slurm_ssh_admin_user"),
    Need.SSH_PUBLIC: (),
}
ALSO_KEPT = {
    Need.WALLET: ("ldap_bind_password",),  # the workers that read the chain make the customers' accounts
    Need.SSH: ("slurm_submit_key",),
    Need.SSH_PUBLIC: ("callback_key",),
}
KEYS = (
    "eth_private_key",
    "slurm_ssh_private_key",
    "slurm_ssh_ca_key",
    "slurm_submit_key",
    "ldap_bind_password",
    "callback_key",
)  # kept only where they are needed
SECRETS = (*KEYS, "database_url", "broker_url", "flower_basic_auth")
CHAIN_URLS = ("metascheduler_endpoint_rpc", "metascheduler_endpoint_ws")  # of which scheme, host and port may be seen
IN_FILES = (*SECRETS, *CHAIN_URLS, "ldap_url", "ldap_bind_dn")  # which NAME_FILE may name a file of
NOT_SHOWN = (*SECRETS, "slurm_ssh_public_key")  # where somebody may put the private half

CELERYS_COPIES = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
_LOGINS = "[^:,]+:[^,]+(,[^:,]+:[^,]+)*"


class SettingsError(PermanentError):
    """The environment cannot be used; one line for each variable that is missing or malformed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Settings(BaseSettings):
    """All settings. The name of each is its environment variable in lower case."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    # the gRPC process
    listen_address: ListenAddress = ":3000"
    public_address: HostPort = "supervisor.example.com:3000"
    tls_enable: bool = False
    tls_cert: File | None = None
    tls_key: File | None = None
    callback_key: SecretStr | None = None  # by which our own reporter and authorized-keys command prove themselves
    callback_proof: Annotated[str, pattern("optional|required", "optional or required")] = "optional"
    callback_networks: Networks = ()  # from where callers without a proof may call; none given: from everywhere

    # the chain
    metascheduler_endpoint_rpc: HttpUrls = SecretStr("https://testnet.deepsquare.run/rpc")
    metascheduler_endpoint_ws: Annotated[SecretStr, url_with("ws", "wss")] = SecretStr(
        "wss://testnet.deepsquare.run/ws"
    )
    metascheduler_smart_contract: Address = "0x3707aB457CF457275b7ec32e203c54df80C299d5"
    eth_private_key: SecretStr | None = None
    metascheduler_cpu_price_per_min: Price = 950_000_000_000_000_000
    metascheduler_gpu_price_per_min: Price = 8_500_000_000_000_000_000
    metascheduler_mem_price_per_min: Price = 80_000_000_000_000
    metascheduler_labels: Labels = Field(default_factory=dict)
    labels_override: LabelKeys = frozenset()  # keys of those that count more than what was measured
    hardware_settled_s: float = Field(300.0, ge=0, allow_inf_nan=False)  # nodes that come and go are no new offer
    chain_id: int = Field(179188, gt=0)
    chain_confirmations: int = Field(0, ge=0, le=10_000)  # depth of a reorganisation that is expected; 0: final at once
    metascheduler_start_block: int = Field(0, ge=0)
    chain_poll_s: float = Field(1.0, gt=0, allow_inf_nan=False)
    claim_batch: int = Field(200, gt=0)
    claim_max_waiting: int = Field(1000, gt=0)
    claim_customer_share: float = Field(0.25, gt=0, le=1, allow_inf_nan=False)  # of that, for one customer
    wallet_min_wei: int = Field(CREDIT // 100, ge=0)
    wallet_max_wei_per_gas: int = Field(10**12, gt=0)
    wallet_max_wei_per_tx: int = Field(
        CREDIT, gt=0
    )  # a claim takes 0.3 million gas, 500 nodes' registration 15 million
    wallet_stuck_after_s: float = Field(60.0, gt=0, allow_inf_nan=False)

    # the job definition service
    sbatch_endpoint: HostPort = "127.0.0.1:443"
    sbatch_tls_enable: bool = True
    sbatch_ca: File | None = None
    sbatch_tls_insecure: bool = False

    # SLURM
    slurm_ssh_address: HostPort | None = None
    slurm_ssh_admin_user: LinuxUser | None = None
    slurm_ssh_private_key: SecretStr | None = None
    slurm_ssh_public_key: str | None = None
    slurm_ssh_certificates: bool = (
        False  # the worker signs certificates with SLURM_SSH_CA_KEY; no key opens all accounts
    )
    slurm_ssh_ca_key: SecretStr | None = None
    slurm_ssh_known_hosts: File = Path("~/.ssh/known_hosts").expanduser()
    slurm_environment_file: Annotated[str, pattern("(/.*)?", "the absolute path of a file on the login node")] = ""
    slurm_submit_key: SecretStr | None = None  # where slurmctld asks job_submit.lua
    slurm_sbatch_path: str = "/usr/bin/sbatch"
    slurm_scancel_path: str = "/usr/bin/scancel"
    slurm_scontrol_path: str = "/usr/bin/scontrol"
    slurm_sinfo_path: str = "/usr/bin/sinfo"
    slurm_squeue_path: str = "/usr/bin/squeue"
    slurm_sacct_path: str = "/usr/bin/sacct"
    slurm_accounting: bool = False
    slurm_message_timeout_s: float = Field(10.0, gt=0, le=100)  # MessageTimeout of slurm.conf
    slurm_try_every_s: float = Field(10.0, gt=0, le=600)  # while it does not answer; the tenth try calls the operator
    slurm_partition: Annotated[str, pattern("[A-Za-z0-9_.-]+", "letters, digits, - _ and .")] = "main"
    slurm_compare_sizes: bool = (
        True  # whether SLURM gives a job the CPUs, memory and nodes that it asks for, and no more
    )
    trust_callbacks: bool = True
    sweep_every_s: float = Field(900.0, gt=0, allow_inf_nan=False)
    # Under a minute it is for tests: slurmctld must have heard from its nodes before what it does not know counts as lost.
    sweep_grace_s: float = Field(300.0, ge=1, allow_inf_nan=False)
    foreign_jobs_allowed: bool = False  # customers may have jobs in SLURM that are not of this ledger
    nvidia_smi_path: Command = "nvidia-smi"
    trace: bool = False

    # the customers' accounts
    allow_shared_homes_where_customers_can_run_code_as_each_other: bool = False
    ldap_url: Annotated[str, url_with("ldap", "ldaps", "ldapi")] | None = None
    ldap_bind_dn: Dn | None = None
    ldap_bind_password: SecretStr | None = None
    ldap_ca_path: File | None = None
    ldap_insecure: bool = False
    ldap_people_dn: Dn = "ou=people,dc=hpc,dc=deepsquare,dc=run"
    ldap_group_dn: Dn = "cn=cluster-users,ou=groups,dc=hpc,dc=deepsquare,dc=run"
    ldap_object_classes: ObjectClasses = "nsPerson,nsOrgPerson,nsAccount,posixAccount"
    ldap_member_attribute: Annotated[
        str, pattern("member|uniqueMember|memberUid", "member, uniqueMember or memberUid")
    ] = "member"
    ldap_attributes: LdapAttributes = Field(default_factory=dict)  # more of them, or other values, as a JSON object
    ldap_gid_number: int | None = Field(None, ge=0, lt=2**31)  # none: each account has a group of its own
    ldap_own_groups_dn: Dn | None = None  # none: where LDAP_GROUP_DN is
    ldap_own_group_object_classes: ObjectClasses = "posixGroup"
    ldap_home_directory: HomeTemplate = "/home/{address}"
    ldap_login_shell: SitePath = "/bin/sh"  # reads no start-up file when sshd runs a command, dash and bash alike
    ldap_first_uid_number: int | None = Field(None, gt=0, lt=2**31)  # none: -1, which 389ds's DNA plugin replaces

    # benchmarks
    benchmark_disable: bool = False
    benchmark_run_as: LinuxUser = "root"
    benchmark_time_limit: Duration = 24 * 3600.0
    benchmark_every: Interval = 0.0  # none
    benchmark_trace: bool = False
    benchmark_unresponsive: bool = False
    benchmark_hpl_image: Image = "registry-1.deepsquare.run#library/hpc-benchmarks:23.5"
    benchmark_hpl_single_node: bool = False
    benchmark_osu_image: Image = "registry-1.deepsquare.run#library/osu-benchmarks:latest"
    benchmark_ior_image: Image = "registry-1.deepsquare.run#library/ior-benchmarks:latest"
    benchmark_ior_single_node: bool = False
    benchmark_speedtest_image: Image = "registry-1.docker.io#gists/speedtest-cli:1.2.0"
    benchmark_ucx: bool = False
    benchmark_ucx_affinity: UcxAffinity = ""
    benchmark_ucx_transport: UcxTransport = ""
    benchmark_mode: Annotated[str, pattern("container|native", "container or native")] = "container"
    benchmark_environment: Variables = Field(default_factory=dict)  # for the programs: NAME=value NAME="two words"
    benchmark_volumes: Volumes = Field(default_factory=dict)  # name=/path name=/path instead of the standard ones
    benchmark_modules: Modules = ""  # with spaces between, loaded before native programs
    benchmark_container_flags: SrunFlags = ""  # the site's own flags of srun for containers
    benchmark_sbatch_flags: SbatchFlags = ()  # --account=grid --qos=low
    benchmark_launcher: Annotated[str, pattern("mpirun|srun", "mpirun or srun")] = "mpirun"
    benchmark_srun_mpi: Annotated[str, pattern("[a-z0-9_]+", "a word that srun --mpi knows")] = "pmix"
    benchmark_hpl_memory_share: float = Field(0.5, gt=0, le=1)
    benchmark_hpl_block_size: int = Field(512, ge=1, le=4096)
    benchmark_hpl_max_n: int | None = Field(None, gt=0)
    benchmark_cpu_ranks_per_node: int | None = Field(None, gt=0)
    benchmark_ior_block_mb_per_node: int = Field(10 * 1024, gt=0)
    benchmark_ior_iterations: int = Field(5, ge=1, le=100)
    benchmark_iperf3_server: Iperf3Server = ""  # host:port, to measure with instead of speedtest

    # this program
    cluster_name: Annotated[str, pattern("[A-Za-z0-9_-]+", "letters, digits, - and _")] = "main"
    database_url: DatabaseUrl | None = None
    broker_url: BrokerUrl | None = None
    broker_ca: File | None = None  # of rediss://; none: the machine's authorities
    broker_cert: File | None = None  # a client's certificate, where the broker asks for one
    broker_key: File | None = None
    flower_basic_auth: (
        Annotated[SecretStr, pattern_of_secret(_LOGINS, "user:password, or several with commas between (none within)")]
        | None
    ) = None
    worker_deaf_after_s: float = Field(60.0, ge=0, allow_inf_nan=False)  # 0: never
    metrics_address: ListenAddress = "127.0.0.1:9464"
    health_address: ListenAddress | None = None  # /livez, /readyz and /metrics of a process; none: not served
    state_dir: File = Field(default_factory=lambda: _state_folder())
    log_level: Annotated[str, pattern("debug|info|warning|error", "debug, info, warning or error")] = "info"

    @field_validator("labels_override")
    @classmethod
    def _keys_of_labels(cls, keys: frozenset[str], info: ValidationInfo) -> frozenset[str]:
        unknown = sorted(keys - normalised_labels(info.data.get("metascheduler_labels", {})).keys())
        if unknown and "metascheduler_labels" in info.data:
            raise ValueError(f"keys of METASCHEDULER_LABELS, with commas between ({', '.join(unknown)!r} is none)")
        return keys

    @field_validator("eth_private_key")
    @classmethod
    def _hex_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        text = value.get_secret_value().strip()
        if not re.fullmatch("(0x)?[0-9a-fA-F]{64}", text) or not 0 < int(text, 16) < CURVE_ORDER:
            raise ValueError("a private key of 64 hex digits")
        return SecretStr(text)

    @field_validator("slurm_submit_key")
    @classmethod
    def _submit_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch("[0-9a-fA-F]{64}", value.get_secret_value()):
            raise ValueError("64 hex digits (openssl rand -hex 32), as in the key file of job_submit.lua")
        return value

    @field_validator("callback_key")
    @classmethod
    def _long_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        text = value.get_secret_value().strip()
        if len(text) < LEAST_KEY_CHARACTERS or not text.isascii():
            raise ValueError(f"{LEAST_KEY_CHARACTERS} ASCII characters or more, such as `openssl rand -hex 32` prints")
        return SecretStr(text)

    @field_validator("slurm_ssh_private_key", "slurm_ssh_ca_key")
    @classmethod
    def _ssh_key(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else SecretStr(ssh_keys.private_key(value.get_secret_value()))

    @field_validator("slurm_ssh_public_key")
    @classmethod
    def _ssh_public_key(cls, value: str | None) -> str | None:
        return None if value is None else ssh_keys.public_key(value)

    @property
    def own_groups_dn(self) -> str:
        """Where the customers' own groups are made."""
        return self.ldap_own_groups_dn or re.sub(r"^(\\.|[^,\\])*, *", "", self.ldap_group_dn)

    @property
    def prices(self) -> Prices:
        """What is asked for."""
        return Prices(*(getattr(self, name) for name in _PRICES))

    @property
    def operator_labels(self) -> dict[str, str]:
        """The operator's labels, as the grid has them."""
        return normalised_labels(self.metascheduler_labels)

    @property
    def rpc_urls(self) -> list[str]:
        """The RPC endpoints, the best first."""
        return split_urls(self.metascheduler_endpoint_rpc.get_secret_value())

    @property
    def ws_url(self) -> str | None:
        """Where new blocks are announced; none where the operator has named RPC endpoints of his own and nothing else."""
        named = self.model_fields_set
        if "metascheduler_endpoint_rpc" in named and "metascheduler_endpoint_ws" not in named:
            return None
        return self.metascheduler_endpoint_ws.get_secret_value()

    @property
    def effective_log_level(self) -> str:
        """TRACE wants to see everything."""
        return "debug" if self.trace else self.log_level

    def secret_values(self) -> list[str]:
        """What must never be seen in a log."""
        values = [getattr(self, name) for name in type(self).model_fields if name not in CHAIN_URLS]
        secrets = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        urls = [value for value in values if isinstance(value, str) and "://" in value]
        forms = [form for secret in secrets for form in _forms(secret)]
        if self.flower_basic_auth is not None:
            forms += self.flower_basic_auth.get_secret_value().split(",")
        chain_urls = [*self.rpc_urls, self.metascheduler_endpoint_ws.get_secret_value()]
        keys = [key for url in chain_urls for key in url_keys(url)]
        return forms + [password for url in [*urls, *chain_urls] for password in _passwords(url)] + keys


_PRICES = tuple(f"metascheduler_{what}_price_per_min" for what in ("gpu", "cpu", "mem"))
USUAL_PRICES = Prices(*(Settings.model_fields[name].default for name in _PRICES))


_hidden: dict[str, str] = {}  # what this process has taken out of its environment


def wants_certificates(environment: Mapping[str, str]) -> bool:
    """Whether SLURM_SSH_CERTIFICATES is set; what is no boolean is told by `load`."""
    return environment.get("SLURM_SSH_CERTIFICATES", "").lower() in ("1", "true", "t", "yes", "y", "on")


def hide_secrets(*needs: Need) -> None:
    """Take the secrets out of os.environ; `load` still finds them, without the keys that these needs do not need."""
    names = kept(needs, certificates=wants_certificates(os.environ))
    for name in IN_FILES:
        for variable in (name.upper(), f"{name.upper()}_FILE"):
            value = os.environ.pop(variable, "")
            if value and (name not in KEYS or name in names):
                _hidden[variable] = value
    _hide_celerys_copies()


def _hide_celerys_copies() -> None:
    """Celery's command copies BROKER_URL, or its option --broker, before it loads our configuration. Such a copy comes before
    broker_url there, so it goes on being the broker.
    """
    for variable in CELERYS_COPIES:
        value = os.environ.get(variable, "")
        if value in _hidden.values() or _passwords(value):
            del os.environ[variable]
            if variable == CELERYS_COPIES[0]:
                _hidden["BROKER_URL"] = value


def load(*needs: Need, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a process that has these needs. Raises SettingsError, which names every variable that is missing
    or malformed; no secret's value is in it.
    """
    given, lines = _given({**_hidden, **os.environ} if environment is None else environment)
    if Need.SSH_PUBLIC in needs and "slurm_ssh_public_key" not in given:
        _derive_public_key(given)
    try:
        settings = _Given.model_validate(given)
    except ValidationError as error:
        lines += [_line(entry, given) for entry in error.errors(include_url=False, include_context=False)]
        settings = None
    bad = {line.partition(":")[0].removesuffix("_FILE") for line in lines}
    required = _required(settings is not None and settings.slurm_ssh_certificates)
    for need in needs:
        for name in required[need]:
            derivable = name == "slurm_ssh_public_key" and "slurm_ssh_private_key" in given
            if name not in given and not derivable and name.upper() not in bad:
                lines.append(f"{name.upper()}: found nothing; expected {_EXPECTED.get(name, 'a value')}")
    if settings is not None:
        lines += _unfit_together(settings, needs, bad)
    if lines or settings is None:
        raise SettingsError(sorted(lines))
    names = kept(needs, certificates=settings.slurm_ssh_certificates)
    dropped = {name: None for name in KEYS if name not in names}
    return settings.model_copy(update=dropped)


def _unfit_together(settings: Settings, needs: Sequence[Need], bad: Collection[str]) -> list[str]:
    """What is wrong with settings that are well-formed each for itself."""
    if settings.ldap_url is None:
        return []
    lines = []
    if Need.WALLET in needs:
        for name in ("ldap_bind_dn", "ldap_bind_password"):
            if getattr(settings, name) is None and name.upper() not in bad:
                lines.append(f"{name.upper()}: found nothing; expected {_EXPECTED[name]}, as LDAP_URL is set")
    home, allowed = settings.ldap_home_directory, "allow_shared_homes_where_customers_can_run_code_as_each_other"
    if "{address}" not in home and not getattr(settings, allowed):
        lines.append(
            f"LDAP_HOME_DIRECTORY: found {home!r}; expected a path with {{address}} in it, such as /home/{{address}}, so that"
            f" each customer has a home of his own (or {allowed.upper()}=true)"
        )
    return lines


def kept(needs: Iterable[Need], *, certificates: bool) -> set[str]:
    """The names of what processes with these needs work with."""
    required = _required(certificates)
    return {name for need in needs for name in (*required[need], *ALSO_KEPT.get(need, ()))}


def _required(certificates: bool) -> dict[Need, tuple[str, ...]]:
    return REQUIRED | (WITH_CERTIFICATES if certificates else {})


def load_or_exit(*needs: Need) -> Settings:
    """The settings; a process that cannot have them says why and ends with status 2."""
    with or_exit():
        return load(*needs)


@contextmanager
def or_exit() -> Iterator[None]:
    """For what a process cannot be without: if that cannot be had, it says why and ends with status 2. Celery goes on after
    other errors of those who hear its signals.
    """
    try:
        yield
    except SupervisorError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


class _Given(Settings):
    """Settings from exactly what is handed in: reading the environment is done by `load`."""

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


_EXPECTED = {
    "eth_private_key": "a private key of 64 hex digits",
    "slurm_ssh_private_key": ssh_keys.PRIVATE_KEY,
    "slurm_ssh_ca_key": ssh_keys.PRIVATE_KEY + ", as SLURM_SSH_CERTIFICATES is set",
    "slurm_ssh_public_key": f"{ssh_keys.PUBLIC_KEY} (or SLURM_SSH_PRIVATE_KEY, to derive it from)",
    "slurm_ssh_address": "the login node's address as host:port",
    "ldap_bind_dn": "the name of an entry that may write there, such as cn=admin,dc=example,dc=org",
    "ldap_bind_password": "that entry's password",
    "slurm_ssh_admin_user": "the user who may run scontrol update",
}


def _given(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What the environment says of our settings, and what is wrong with files that it names."""
    given, lines = {}, []
    for name in Settings.model_fields:
        value, file = environment.get(name.upper(), ""), environment.get(f"{name.upper()}_FILE", "")
        if name in IN_FILES and file and not value:
            try:
                value = Path(file).expanduser().read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no text"
                lines.append(
                    f"{name.upper()}_FILE: found {_path_shown(file)}; expected a file that can be read ({why})"
                )
        if value:
            given[name] = value
    return given, lines


def _path_shown(path: str) -> str:
    """The secret itself, where its file's name was expected, is not shown."""
    return repr(path) if path.startswith(("/", "./", "../", "~/")) else "a value that is not shown"


def _derive_public_key(given: dict[str, str]) -> None:
    """The public half of the private key. One that cannot be read is reported by its own validation."""
    with suppress(KeyError, ValueError):
        given["slurm_ssh_public_key"] = ssh_keys.public_half(given["slurm_ssh_private_key"])


def _forms(secret: str) -> list[str]:
    """A secret and the parts of it that others may log: a key without 0x, a key file's lines, a URL's password."""
    if secret.startswith("-----BEGIN"):
        lines = [line for line in secret.splitlines() if line and not line.startswith("-----")]
        return [secret, base64.b64encode(secret.encode()).decode(), *lines]
    return [secret, secret.removeprefix("0x"), *_passwords(secret)]


def _passwords(url: str) -> list[str]:
    """The password in a URL, as it is written and as it is meant."""
    found = re.search(r"://[^:/@]*:(\S+)@|[?&]password=([^&\s]+)", url)
    written = next(filter(None, found.groups()), "") if found else ""
    return [written, unquote(written)] if written else []


def _line(error: Any, given: Mapping[str, str]) -> str:
    name = str(error["loc"][0])
    found = "a value that is not shown" if name in NOT_SHOWN else repr(_without_password(name, given.get(name, "")))
    expected = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{name.upper()}: found {found}; expected {expected}"


def _without_password(name: str, text: str) -> str:
    """What is no URL, and so malformed, may still hold a password, or a key behind the host."""
    text = re.sub(r"[^/\s]*:\S*@", "(not shown)@", text)
    if "endpoint" not in name:
        return text
    text = re.sub(r"[^/\s,]+@", "(not shown)@", text)
    return re.sub(r"(?<![:/])([/?#])\S+?(?=,\s*\w+://|\s|$)", r"\1(not shown)", text)


def _state_folder() -> Path:
    """Root's home is closed to the user that an embedded Postgres runs as."""
    if os.geteuid() == 0:
        return Path("/var/lib/supervisor")
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "supervisor"
