"""A whole grid on one machine: chain, contracts, meta-scheduler, job definition service, SLURM, sshd, Postgres, Redis."""

import base64
import json
import os
import pwd
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devgrid import scripts
from devgrid.chain import Account, Chain, JobDefinition, Node, Prices
from devgrid.disk import start_disk, start_spool_disk
from devgrid.fleet import REPOSITORY, Fleet
from devgrid.ldap import Ldap
from devgrid.process import Processes, Running, answers, free_port
from devgrid.slurm import Slurm, end_jobs
from devgrid.sshd import Sshd, authorized_keys_command
from devgrid.state import keep, new_state_folder, remove
from devgrid.tls import Certificates, make_certificates
from devgrid.users import SAFE_SHELL, Users, admin
from devgrid.workflow import Resources, load
from supervisor_tasks import embedded

Hooks = Literal["spool", "field"]

CREDIT = 10**18
CUSTOMERS_CREDITS = 100_000
LABELS = {"name": "devgrid"}
CALLBACK_KEY = "callback.key"


@dataclass(slots=True)
class Grid:
    """A running grid. `environment` is what a fleet needs to serve it."""

    processes: Processes
    chain: Chain
    users: Users
    environment: dict[str, str] = field(default_factory=dict)
    slurm: Slurm | None = None

    @property
    def folder(self) -> Path:
        """The state folder."""
        return self.processes.folder

    @property
    def fleet(self) -> Fleet:
        """The fleet that serves this grid, started or not."""
        return Fleet(self.processes, self.environment)

    @classmethod
    def start(
        cls,
        *,
        block_time_s: float | None = None,
        accounting: bool = False,
        min_job_age_s: int = 300,
        hooks: Hooks = "spool",
        slurm_conf: Sequence[str] = (),
        ldap: bool = False,
        tell: Callable[[str], None] = lambda _: None,
        overrides: dict[str, str] | None = None,
        nodes: int = 4,
        gpus_per_node: int = 2,
        postgres_disk_mb: int | None = None,
        spool_disk_mb: int | None = None,
        registered: bool = True,
        job_submit: bool = True,
        callback_key: bool = True,
    ) -> "Grid":
        """Start everything but the fleet. What fails is stopped again and its error raised. `hooks` says who tells the
        supervisor of SLURM's events: the project's own reporter, or what the field runs, which tries once. `slurm_conf` are
        more lines of that file. With `ldap`, customers get accounts in a directory of its own. With `postgres_disk_mb` the
        database lies on a disk of that size, which can be filled, and with `spool_disk_mb` the spool. Unless it is `registered`
        already, the provider is unknown to the grid, and the supervisor is to measure and register it. Without `job_submit`,
        SLURM lets customers submit and change jobs themselves, as at a site that does not use job_submit.lua. With a
        `callback_key` the reporter and sshd's command prove what they say; the field's plugins cannot.
        """
        processes = Processes(new_state_folder())
        try:
            more = Ldap.start(processes, make_certificates(processes.folder / "tls")).settings() if ldap else {}
            more |= overrides or {}
            about_slurm = accounting, min_job_age_s, hooks, slurm_conf, nodes, gpus_per_node, job_submit
            with_key = callback_key and hooks == "spool"
            return _start(
                processes, block_time_s, *about_slurm, with_key, tell, more, postgres_disk_mb, spool_disk_mb, registered
            )
        except BaseException:
            remove(processes)
            raise

    @classmethod
    def load(cls, folder: Path) -> "Grid":
        """A grid that another program started."""
        processes = Processes(folder)
        environment = json.loads((folder / "environment.json").read_text())
        return cls(processes, Chain.load(folder), Users(folder), environment)

    def keep(self) -> None:
        """Let everything outlive this program."""
        keep(self.folder)

    def stop(self) -> None:
        """Stop everything, the fleet included, and remove the state folder."""
        end_jobs(self.folder, self.users)
        remove(self.processes)

    def start_reporter(self) -> Running:
        """What delivers the spool."""
        options = ["--supervisor", self.environment["PUBLIC_ADDRESS"], "--ca", str(self.folder / "tls" / "ca.pem")]
        if "CALLBACK_KEY" in self.environment:
            options += ["--key", str(self.folder / CALLBACK_KEY)]
        return self._start_teller("reporter", "plugins.reporter", "--spool", self.folder / "spool", *options)

    def start_field_plugin(self) -> Running:
        """What tells each event once."""
        return self._start_teller("field-plugin", "devgrid.field_plugin", "--events", self.folder / "spool")

    def _start_teller(self, name: str, module: str, *options: str | Path) -> Running:
        argv: list[str | Path] = [sys.executable, "-m", module, *options]
        conf = {"SLURM_CONF": str(self.folder / "slurm" / "slurm.conf")}
        crash_at = {name: value for name, value in self.environment.items() if name == "CRASH_AT"}
        return self.processes.start(name, argv, cwd=REPOSITORY, env={**os.environ, **conf, **crash_at})

    @contextmanager
    def no_blocks(self) -> Iterator[None]:
        """The chain of a grid with a block time takes transactions and mines none for as long as this lasts."""
        miner = self.processes.find("miner")
        self.processes.kill(miner, signal.SIGSTOP, wait=False)
        try:
            yield
        finally:
            self.processes.kill(miner, signal.SIGCONT, wait=False)

    # --- what a customer does ---------------------------------------------------------------------------------------

    def new_customer(self, role: str | None = None, shell: str = SAFE_SHELL) -> Account:
        """A customer with credits and a Linux user on the cluster, whose login shell may be one that reads start-up files."""
        customer = self.chain.new_account(role=role)
        self.chain.mint_credits(customer.address, CUSTOMERS_CREDITS * CREDIT)
        self.users.add(customer.address, shell)
        return customer

    def submit(self, customer: Account, workflow_text: str, minutes: int = 60) -> str:
        """Hand a workflow file in, with credits for so many minutes; returns the job's id. Raises WorkflowError."""
        resources = load(workflow_text).resources
        return self.request(customer, scripts.store(self.folder / "scripts", workflow_text), resources, minutes)

    def submit_script(self, customer: Account, script: str, minutes: int = 60, **resources: int) -> str:
        """Hand a batch script in as it is."""
        name = scripts.store_script(self.folder / "scripts", script)
        return self.request(customer, name, Resources.model_validate({"memPerCpu": 100, **resources}), minutes)

    def submit_scripts(self, customer: Account, script: str, number: int, minutes: int = 60) -> list[str]:
        """Hand in one small script many times at once."""
        definition = definition_of(scripts.store_script(self.folder / "scripts", script), Resources(memPerCpu=100))
        return self.chain.request_jobs(customer, definition, number, Prices().of(definition) * minutes)

    def request(self, customer: Account, location: str, resources: Resources, minutes: int) -> str:
        """Request a job on chain."""
        definition = definition_of(location, resources)
        return self.chain.request_job(customer, definition, Prices().of(definition) * minutes)

    def output(self, customer: str, job_id: str) -> str:
        """What the job itself wrote."""
        log = self.users.home(customer) / f"{job_id}.log"
        return log.read_text(errors="replace") if log.exists() else ""


def definition_of(location: str, resources: Resources) -> JobDefinition:
    """The job definition of a script with these resources."""
    return JobDefinition(
        gpus=resources.gpus,
        mem_per_cpu_mb=resources.memPerCpu,
        cpus_per_task=resources.cpusPerTask,
        ntasks=resources.tasks,
        batch_location_hash=location,
    )


def _start(
    processes: Processes,
    block_time_s: float | None,
    accounting: bool,
    min_job_age_s: int,
    hooks: Hooks,
    slurm_conf: Sequence[str],
    nodes: int,
    gpus_per_node: int,
    job_submit: bool,
    callback_key: bool,
    tell: Callable[[str], None],
    overrides: dict[str, str],
    postgres_disk_mb: int | None,
    spool_disk_mb: int | None,
    registered: bool,
) -> Grid:
    folder = processes.folder
    users, certificates = Users(folder), make_certificates(folder / "tls")
    spool, public = folder / "spool", f"127.0.0.1:{free_port()}"
    key_file = _new_key(folder / CALLBACK_KEY) if callback_key else None
    if spool_disk_mb is None:
        spool.mkdir()
    else:
        start_spool_disk(processes, spool, spool_disk_mb)
    with ThreadPoolExecutor(4) as pool:
        tell("starting SLURM, the chain, Postgres, Redis and sshd")
        waits_slurm = pool.submit(
            lambda: Slurm.start(
                processes,
                users,
                spool=spool,
                nodes=nodes,
                gpus_per_node=gpus_per_node,
                accounting=accounting,
                min_job_age_s=min_job_age_s,
                job_submit=job_submit,
                also=slurm_conf,
            )
        )
        waits_chain = pool.submit(Chain.start, processes, block_time_s)
        waits_servers = pool.submit(_start_servers, processes, postgres_disk_mb)
        slurm, chain, servers = waits_slurm.result(), waits_chain.result(), waits_servers.result()
    sshd = Sshd.start(processes, slurm.env(), authorized_keys_command(public, certificates.ca, key_file))
    tell("starting the job definition service, the meta-scheduler and the reporter")
    services = start_services(processes, chain, certificates)
    provider = chain.new_account(role="provider")
    layout = slurm.layout
    node = Node(layout.gpus_per_node, layout.cpus_per_node, layout.memory_mb)
    if registered:
        chain.register_provider(provider, [node] * len(layout.node_ports), Prices(), LABELS)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "CLUSTER_NAME": "devgrid",
        "STATE_DIR": str(folder),
        "LISTEN_ADDRESS": public,
        "PUBLIC_ADDRESS": public,
        "TLS_ENABLE": "true",
        "TLS_CERT": str(certificates.cert),
        "TLS_KEY": str(certificates.key),
        "METASCHEDULER_ENDPOINT_RPC": chain.rpc_url,
        "METASCHEDULER_ENDPOINT_WS": chain.ws_url,
        "METASCHEDULER_SMART_CONTRACT": chain.addresses.metascheduler,
        "CHAIN_ID": str(chain.chain_id),
        "METASCHEDULER_LABELS": ",".join(f"{key}={value}" for key, value in LABELS.items()),
        "BENCHMARK_DISABLE": str(registered).lower(),
        "ETH_PRIVATE_KEY": provider.private_key,
        "SBATCH_ENDPOINT": services,
        "SBATCH_CA": str(certificates.ca),
        "SLURM_SSH_ADDRESS": sshd.address,
        "SLURM_SSH_ADMIN_USER": admin(),
        "SLURM_SSH_PRIVATE_KEY": _ssh_key(folder),
        "SLURM_SSH_KNOWN_HOSTS": str(sshd.known_hosts),
        "SLURM_ACCOUNTING": str(accounting).lower(),
        "SLURM_SUBMIT_KEY": slurm.submit_key,
        **({} if key_file is None else {"CALLBACK_KEY": key_file.read_text()}),
        **servers,
        **overrides,
    }
    saved = folder / "environment.json"
    saved.touch(mode=0o600)
    saved.write_text(json.dumps(environment))
    grid = Grid(processes, chain, users, environment, slurm)
    if hooks == "spool":
        grid.start_reporter()
    else:
        grid.start_field_plugin()
    return grid


def _new_key(file: Path) -> Path:
    """A file that only its owner opens, with a new random key."""
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


def _start_servers(processes: Processes, postgres_disk_mb: int | None) -> dict[str, str]:
    urls = {}
    for name, variable, describe, disk_mb in (
        ("postgres", "DATABASE_URL", embedded.postgres, postgres_disk_mb),
        ("redis", "BROKER_URL", embedded.redis, None),
    ):
        folder = processes.folder / name
        folder.mkdir()
        start_server(processes, name, describe(folder), disk_mb)
        urls[variable] = describe(folder).url
    return urls


def start_server(processes: Processes, name: str, server: embedded.Server, disk_mb: int | None = None) -> None:
    """Start an embedded server as one of the grid's processes, on a disk of its own if its size is given."""
    argv, user = server.argv, None if server.user is None else _uid(server.user)
    if disk_mb is not None:
        argv, user = start_disk(processes, server, disk_mb), None
    processes.start(
        name,
        argv,
        env=server.environment,
        user=user,
        cwd=server.folder,
        ready=lambda: embedded.answers(server),
    )


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def start_services(processes: Processes, chain: Chain, certificates: Certificates) -> str:
    """Start the job definition service with the grid logger, and the meta-scheduler; returns the first one's address."""
    address = f"127.0.0.1:{free_port()}"
    options = {
        "--listen": address,
        "--cert": certificates.cert,
        "--key": certificates.key,
        "--scripts": processes.folder / "scripts",
        "--logs": processes.folder / "user-logs",
        "--rpc": chain.rpc_url,
        "--jobs": chain.addresses.jobs,
    }
    argv = [sys.executable, "-m", "devgrid.services", *(str(word) for pair in options.items() for word in pair)]
    port = int(address.rpartition(":")[2])
    processes.start("services", argv, cwd=REPOSITORY)
    argv = [sys.executable, "-m", "devgrid.metascheduler", "--folder", str(processes.folder)]
    processes.start("metascheduler", argv, cwd=REPOSITORY, ready=lambda: answers(port))
    return address


def _ssh_key(folder: Path) -> str:
    """A new key, in the form of the setting: base64 of the file, on one line."""
    file = folder / "supervisor_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return base64.b64encode(file.read_bytes()).decode()
