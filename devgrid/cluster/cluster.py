"""One cluster of a grid: a SLURM, its login node, its Linux users, and the provider
account that sells its time.
"""

import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

from devgrid import REPOSITORY
from devgrid.chain.chain import Chain
from devgrid.chain.model import Account, ChainNode, ChainPrices
from devgrid.cluster.linux_users import Users, admin
from devgrid.cluster.slurm import Slurm
from devgrid.cluster.slurmrestd import Slurmrestd, jwt_conf, new_jwt_key
from devgrid.cluster.sshd import Sshd, authorized_keys_command
from devgrid.faults.limited_disk import start_spool_disk
from devgrid.fleet import Fleet
from devgrid.options import ClusterOptions
from devgrid.ports import free_port
from devgrid.processes import Processes, Running
from devgrid.state_files import state_in
from devgrid.tls import Certificates

CALLBACK_KEY = "callback.key"
ENVIRONMENT_FILE = "environment.json"
PRICES = tuple(f"METASCHEDULER_{what}_PRICE_PER_MIN" for what in ("GPU", "CPU", "MEM"))
# the settings of a cluster that devgrid itself uses
NEEDED = ("CLUSTER_NAME", "DATABASE_URL", *PRICES)
# the role of the first cluster's account; the roles of the others begin with it
FIRST_PROVIDER = "provider"


@dataclass(slots=True)
class GridCluster:
    """A running cluster. `environment` has the settings of the fleet that serves it,
    `role` its provider account's role.
    """

    processes: Processes
    chain: Chain
    users: Users
    certificates: Certificates
    role: str = FIRST_PROVIDER
    environment: dict[str, str] = field(default_factory=dict)
    slurm: Slurm | None = None

    @property
    def name(self) -> str:
        """CLUSTER_NAME of its fleet."""
        return self.environment["CLUSTER_NAME"]

    @property
    def folder(self) -> Path:
        """The folder with its files."""
        return self.processes.folder

    @property
    def provider(self) -> Account:
        """The account that sells its time."""
        return self.chain.account(self.role)

    @property
    def prices(self) -> ChainPrices:
        """The prices of its provider."""
        prices = (self.environment[name] for name in PRICES)
        return ChainPrices(*map(int, prices))

    @property
    def fleet(self) -> Fleet:
        """The fleet that serves this cluster, started or not."""
        return Fleet(self.processes, self.environment)

    def start_reporter(self) -> Running:
        """Start the reporter, which delivers the spool."""
        options = [
            "--cluster",
            self.name,
            "--supervisor",
            self.environment["PUBLIC_ADDRESS"],
            "--ca",
            str(self.certificates.ca),
        ]
        if "CALLBACK_KEY" in self.environment:
            options += ["--key", str(self.folder / CALLBACK_KEY)]
        return self._start_reporting(
            "reporter", "plugins.reporter", "--spool", self.folder / "spool", *options
        )

    def start_upstream_plugin(self) -> Running:
        """Start the imitation of the upstream plugins, which reports each event
        once.
        """
        module = "devgrid.faults.upstream_plugin"
        return self._start_reporting(
            "upstream-plugin", module, "--events", self.folder / "spool"
        )

    def output(self, customer: str, job_id: str) -> str:
        """The output of the job itself."""
        log = self.users.home(customer) / f"{job_id}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def save(self) -> None:
        """Write its settings for other programs. Only the owner may read the file."""
        file = self.folder / ENVIRONMENT_FILE
        file.touch(mode=0o600)
        file.write_text(json.dumps(self.environment))

    def _start_reporting(self, name: str, module: str, *options: str | Path) -> Running:
        argv: list[str | Path] = [sys.executable, "-m", module, *options]
        conf = {"SLURM_CONF": str(self.folder / "slurm" / "slurm.conf")}
        crash_at = {
            name: value
            for name, value in self.environment.items()
            if name == "CRASH_AT"
        }
        return self.processes.start(
            name, argv, cwd=REPOSITORY, env={**os.environ, **conf, **crash_at}
        )


@dataclass(frozen=True, slots=True)
class LoginSide:
    """A SLURM with its users and its sshd or slurmrestd, before it joins a grid.
    `environment` has the settings for them.
    """

    processes: Processes
    users: Users
    certificates: Certificates
    slurm: Slurm
    environment: dict[str, str]


def start_login_side(
    processes: Processes, options: ClusterOptions, certificates: Certificates
) -> LoginSide:
    """Start SLURM and sshd or slurmrestd in the folder of these processes. Raises
    StartError.
    """
    folder = processes.folder
    users, spool, public = Users(folder), folder / "spool", f"127.0.0.1:{free_port()}"
    key_file = _new_key(folder / CALLBACK_KEY) if options.with_key else None
    if options.spool_disk_mb is None:
        spool.mkdir()
    else:
        start_spool_disk(processes, spool, options.spool_disk_mb)
    jwt_key = new_jwt_key(folder) if options.transport == "rest" else None
    slurm = Slurm.start(
        processes,
        users,
        spool=spool,
        cluster_name=options.name,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        accounting=options.accounting,
        min_job_age_s=options.min_job_age_s,
        job_submit=options.job_submit,
        threads_per_core=options.threads_per_core,
        also=(*(() if jwt_key is None else jwt_conf(jwt_key)), *options.slurm_conf),
    )
    if options.ssh_certificates and options.transport == "ssh":
        access = _start_sshd_with_certificates(processes, slurm)
    elif jwt_key is None:
        access = _start_sshd(
            processes, slurm, authorized_keys_command(public, certificates.ca, key_file)
        )
    else:
        access = Slurmrestd.start(processes, users, slurm.env(), jwt_key).settings(
            users, slurm.env()
        )
        # slurmrestd does not show it
        access["SLURM_MIN_JOB_AGE_S"] = str(options.min_job_age_s)
    environment = {
        "CLUSTER_NAME": options.name,
        "STATE_DIR": str(folder),
        "HOME": str(folder),
        "LISTEN_ADDRESS": public,
        "PUBLIC_ADDRESS": public,
        "TLS_ENABLE": "true",
        "TLS_CERT": str(certificates.cert),
        "TLS_KEY": str(certificates.key),
        **access,
        "SLURM_ACCOUNTING": str(options.accounting).lower(),
        "SLURM_SUBMIT_KEY": slurm.submit_key,
        **({} if key_file is None else {"CALLBACK_KEY": key_file.read_text()}),
    }
    return LoginSide(processes, users, certificates, slurm, environment)


def _start_sshd(
    processes: Processes, slurm: Slurm, authorized_keys: Sequence[str]
) -> dict[str, str]:
    """Start the login node. Returns the settings for it."""
    ssh_key = _new_ssh_key(processes.folder)
    sshd = Sshd.start(processes, slurm.env(), authorized_keys, admin_key=ssh_key)
    return _access_over(sshd) | {"SLURM_SSH_PRIVATE_KEY": _base64(ssh_key)}


def _start_sshd_with_certificates(processes: Processes, slurm: Slurm) -> dict[str, str]:
    """Start a login node that accepts certificates, and no other key. Returns the
    settings for it.
    """
    ca_key = _new_ssh_key(processes.folder)
    sshd = Sshd.start(processes, slurm.env(), (), trusted_ca=ca_key)
    return _access_over(sshd) | {
        "SLURM_SSH_CERTIFICATES": "true",
        "SLURM_SSH_CA_KEY": _base64(ca_key),
    }


def _access_over(sshd: Sshd) -> dict[str, str]:
    return {
        "SLURM_SSH_ADDRESS": sshd.address,
        "SLURM_SSH_ADMIN_USER": admin(),
        "SLURM_SSH_KNOWN_HOSTS": str(sshd.known_hosts),
    }


def _base64(key: Path) -> str:
    return base64.b64encode(key.read_bytes()).decode()


def join_grid(
    login: LoginSide,
    chain: Chain,
    role: str,
    options: ClusterOptions,
    shared: Mapping[str, str],
) -> GridCluster:
    """Register the cluster's provider, and start the process that reports the events of
    its SLURM. `shared` are the settings that every fleet of the grid has.
    """
    provider = chain.new_account(role=role)
    layout = login.slurm.layout
    node = ChainNode(layout.gpus_per_node, layout.cpus_per_node, layout.memory_mb)
    if options.registered:
        chain.register_provider(
            provider, [node] * len(layout.node_ports), options.prices, options.labels
        )
    environment = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        **login.environment,
        "METASCHEDULER_ENDPOINT_RPC": chain.rpc_url,
        "METASCHEDULER_ENDPOINT_WS": chain.ws_url,
        "METASCHEDULER_SMART_CONTRACT": chain.addresses.metascheduler,
        "CHAIN_ID": str(chain.chain_id),
        "METASCHEDULER_LABELS": ",".join(
            f"{key}={value}" for key, value in options.labels.items()
        ),
        **dict(zip(PRICES, map(str, astuple(options.prices)), strict=True)),
        "BENCHMARK_DISABLE": str(options.registered).lower(),
        "ETH_PRIVATE_KEY": provider.private_key,
        "SBATCH_CA": str(login.certificates.ca),
        **shared,
        **options.overrides,
    }
    cluster = GridCluster(
        login.processes,
        chain,
        login.users,
        login.certificates,
        role,
        environment,
        login.slurm,
    )
    cluster.save()
    if options.hooks == "spool":
        cluster.start_reporter()
    else:
        cluster.start_upstream_plugin()
    return cluster


def load_cluster(
    folder: Path, chain: Chain, certificates: Certificates, role: str
) -> GridCluster:
    """A cluster that another program started in that folder. Raises StateFileError."""
    with state_in(folder / ENVIRONMENT_FILE) as settings:
        environment = {name: str(settings[name]) for name in (*NEEDED, *settings)}
    return GridCluster(
        Processes(folder), chain, Users(folder), certificates, role, environment
    )


def _new_key(file: Path) -> Path:
    """Write a new random key to a file that only its owner can open."""
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


def _new_ssh_key(folder: Path) -> Path:
    """Make a new SSH key for the supervisor. Returns its private file; the public one
    is beside it.
    """
    file = folder / "supervisor_key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True
    )
    return file
