"""Submission on real parts: Postgres, sshd and SLURM. A test can put a proxy in front
of sshd or slurmrestd that fails.

As a program it is a worker that carries out one effect: python -m
tests.support.submission_env WORLD.json EFFECT_ID
"""

import base64
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from sqlalchemy import Engine, text

from devgrid.cluster.linux_users import Users, admin
from devgrid.cluster.slurm import Slurm
from devgrid.cluster.slurmrestd import Slurmrestd, jwt_conf, new_jwt_key
from devgrid.cluster.sshd import Sshd
from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.bootstrap import slurm_services
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.context import LastClusterCheck, SlurmServices, WorkerContext
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.jobs.events import ScriptFetched
from supervisor_tasks.jobs.model import Address, EffectKind, Job, JobId, State
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.slurm.cluster import Cluster, over_ssh
from supervisor_tasks.slurm.homes import Homes
from supervisor_tasks.slurm.interface import SlurmCluster, SlurmSettings
from supervisor_tasks.slurm.login_node import LoginNode, Paths
from supervisor_tasks.slurm.node_query import Nodes
from supervisor_tasks.slurm.rest import RestCluster
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.rest_client import RestClient
from supervisor_tasks.slurm.rest_nodes import RestNodes
from supervisor_tasks.slurm.rest_tokens import TokenMint
from supervisor_tasks.slurm.ssh import Ssh, load_key
from tests.support.effect_batches import carry_out
from tests.support.ledger import claim, job_id, migrated
from tests.support.slurm_records import seconds_of
from tests.support.transports import REST, SSH

CUSTOMER = Address("0x" + "2" * 40)
PATIENCE_S = 60.0
LIVE = ("PENDING", "CONFIGURING", "RUNNING")  # the second while the start hook runs
PATHS = Paths(
    sbatch="/usr/bin/sbatch",
    scancel="/usr/bin/scancel",
    scontrol="/usr/bin/scontrol",
    squeue="/usr/bin/squeue",
    sacct=None,
)
SLURM_SETTINGS = SlurmSettings(
    partition="main", public_address="supervisor.example.com:3000"
)


@dataclass(frozen=True, slots=True)
class SubmissionEnv:
    """A login node, SLURM behind it, and a ledger."""

    processes: Processes
    slurm: Slurm
    sshd: Sshd
    key: Path
    engine: Engine
    environment: dict[str, str]
    slurmrestd: Slurmrestd | None = None
    # scripts of SLURM's jobs, by the line with id and submit time
    _read: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def running(
        cls,
        *slurm_conf: str,
        accounting: bool = False,
        min_job_age_s: int = 300,
        threads_per_core: int = 1,
        rest: bool = False,
        job_submit: bool = False,
    ) -> Iterator["SubmissionEnv"]:
        """Yields a SLURM with its users, and a ledger, all started here."""
        with migrated() as (engine, environment), private_processes() as processes:
            users, spool = Users(processes.folder), processes.folder / "spool"
            users.add(CUSTOMER)
            spool.mkdir(mode=0o755)
            jwt_key = new_jwt_key(processes.folder)
            slurm = Slurm.start(
                processes,
                users,
                spool=spool,
                nodes=2,
                cpus_per_node=64,
                accounting=accounting,
                min_job_age_s=min_job_age_s,
                threads_per_core=threads_per_core,
                job_submit=job_submit,
                also=(*(jwt_conf(jwt_key) if rest else ()), *slurm_conf),
            )
            key = new_key(processes.folder / "key")
            sshd = Sshd.start(processes, slurm.env(), authorized_keys_command(key))
            try:
                daemon = (
                    start_slurmrestd(processes, users, slurm, jwt_key) if rest else None
                )
                yield cls(processes, slurm, sshd, key, engine, environment, daemon)
            finally:
                slurm.stop()

    def cluster(
        self,
        address: str | None = None,
        sshd: Sshd | None = None,
        paths: Paths = PATHS,
        homes: Homes | None = None,
        patience_s: float = 5.0,
        settings: SlurmSettings = SLURM_SETTINGS,
    ) -> Cluster:
        """A client of SLURM over SSH, at sshd's own address or at a proxy's. It waits
        `patience_s` for a connection or a channel, on a slow machine longer.
        """
        sshd = sshd or self.sshd
        if address is not None:
            sshd.also_at(address)
        key = load_key(self.key.read_text())
        ssh = Ssh(
            address or sshd.address,
            key,
            sshd.known_hosts,
            connect_timeout_s=deadline(patience_s),
        )
        return Cluster.of(
            LoginNode(ssh=ssh, admin=admin(), paths=paths),
            settings,
            homes=homes,
        )

    def cluster_of_settings(self, **settings: str) -> Cluster:
        """A client of SLURM over SSH, as a worker with these settings makes it."""
        environment = {
            "SLURM_SSH_PRIVATE_KEY": base64.b64encode(self.key.read_bytes()).decode(),
            "SLURM_SSH_ADDRESS": self.sshd.address,
            "SLURM_SSH_ADMIN_USER": admin(),
            "SLURM_SSH_KNOWN_HOSTS": str(self.sshd.known_hosts),
            **settings,
        }
        loaded = load(Need.SLURM, environment=environment)
        return over_ssh(slurm_services(loaded).cluster)

    def rest_cluster(
        self,
        address: str | None = None,
        ca: Path | None = None,
        settings: SlurmSettings = SLURM_SETTINGS,
    ) -> RestCluster:
        """A client of SLURM over slurmrestd, at its Unix socket or at a proxy's
        address; with `ca` over TLS.
        """
        assert self.slurmrestd is not None
        scheme = "http" if ca is None else "https"
        url = self.slurmrestd.url if address is None else f"{scheme}://{address}"
        return rest_cluster_at(
            url, self.slurmrestd.key, self.slurm.users.homes, ca, settings
        )

    def cluster_over(
        self, transport: str, address: str | None = None
    ) -> Cluster | RestCluster:
        """A client of SLURM over that transport, directly or at a proxy's address."""
        return (
            self.rest_cluster(address) if transport == REST else self.cluster(address)
        )

    def server(self, transport: str) -> str:
        """The address of the server of that transport, for a proxy: sshd's or
        slurmrestd's.
        """
        if transport == SSH:
            return self.sshd.address
        assert self.slurmrestd is not None
        return self.slurmrestd.address

    def inject_in_submission(
        self,
        cluster: SlurmCluster,
        proxy: Proxy,
        direction: Direction,
        at: int,
        fault: Fault,
    ) -> None:
        """Begin the fault at this byte of the next submission, or of the answer to it:
        over slurmrestd, behind the request for the clock. The length of the answer to
        that is not known before, since it grows with each new kind of request that
        slurmctld counts.
        """
        if isinstance(cluster, Cluster):
            proxy.inject(direction, at, fault)
            return
        passed = proxy.passed[Direction.TO_SERVER]
        cluster.clock.of(CUSTOMER)
        # which the proxy does once it has counted all that it has passed on
        proxy.fault(None)
        wait_until(
            lambda: proxy.passed[Direction.TO_SERVER] > passed,
            "the bytes to be counted",
            PATIENCE_S,
        )
        clocks = proxy.passed[Direction.TO_SERVER] - passed
        if direction is Direction.TO_SERVER:
            proxy.inject(direction, clocks + at, fault)
        else:
            proxy.inject_in_answer(clocks, at, fault)

    def site(self, cluster: Cluster | RestCluster) -> WorkerContext:
        """The context of a worker of the slurm queue."""
        return site_of(self.engine, cluster)

    def new_customer(self) -> Address:
        """A customer without jobs in SLURM. Over slurmrestd, a renamed job of another
        test could be this test's, and the worker could not decide.
        """
        customer = Address("0x" + secrets.token_hex(20))
        self.slurm.users.add(customer)
        return customer

    # --- a job ------------------------------------------------------------------------

    def new_job(
        self,
        site: WorkerContext,
        script: str = "#!/bin/bash\nsleep 600\n",
        customer: Address = CUSTOMER,
    ) -> JobId:
        """A job that is ready to be submitted."""
        with self.engine.connect() as connection:
            number = 1 + int(connection.scalar(text("SELECT count(*) FROM jobs")) or 0)
        event = replace(claim(number), customer=customer)
        site.ledger.record(
            JobChange(event.job_id, event),
            JobChange(event.job_id, ScriptFetched(script, "")),
        )
        return event.job_id

    def effect_id(self, job: JobId, kind: EffectKind = EffectKind.SUBMIT) -> int:
        """The id of the job's open effect of that kind; 0 without one."""
        query = text(
            "SELECT id FROM effects WHERE job_id = :job AND kind = :kind AND done_at IS NULL"
        )
        with self.engine.connect() as connection:
            return int(connection.scalar(query, {"job": job, "kind": kind.value}) or 0)

    def carry_out(self, site: WorkerContext, job: JobId) -> Job:
        """Carry out the effect of the job's submission once, if it is due."""
        site.ledger.effects.due_without_message()
        carry_out(site, self.effect_id(job))
        return site.ledger.jobs([job])[job]

    def until_queued(self, site: WorkerContext, job: JobId) -> Job:
        """Carry out the submission until the job is QUEUED, without the waits between
        the tries.
        """

        def is_queued() -> bool:
            if self.carry_out(site, job).state is State.SUBMITTING:
                self.a_minute_passes(job)
            return site.ledger.jobs([job])[job].state is State.QUEUED

        wait_until(is_queued, f"{job} to be queued", PATIENCE_S, 0.1)
        return site.ledger.jobs([job])[job]

    def a_minute_passes(self, job: JobId) -> None:
        """Make the job's events and effects a minute older in the ledger. No command
        may still be on its way to SLURM.
        """
        with self.engine.begin() as connection:
            for change in (
                "UPDATE events SET at = at - interval '60 s' WHERE job_id = :job",
                "UPDATE effects SET due_at = due_at - interval '60 s', failing_since = failing_since - interval '60 s'"
                " WHERE job_id = :job",
            ):
                connection.execute(text(change), {"job": job})

    def age_of_the_last_submission_s(self, job: JobId) -> float:
        """Return how many seconds ago the job's last submission began, by the
        ledger.
        """
        query = text(
            "SELECT extract(epoch FROM clock_timestamp() - max(at)) FROM events"
            " WHERE job_id = :job AND name = 'SubmitStarted'"
        )
        with self.engine.connect() as connection:
            return float(connection.scalar(query, {"job": job}) or 0.0)

    def look(self, site: WorkerContext, job: JobId) -> Job:
        """Poll the job in SLURM at once, even if its next poll is not due."""
        due_now = "UPDATE effects SET due_at = now() WHERE job_id = :job AND kind = 'poll_slurm' AND done_at IS NULL"
        with self.engine.begin() as connection:
            connection.execute(text(due_now), {"job": job})
        poll_jobs(site)
        return site.ledger.jobs([job])[job]

    def postpone_look(self, job: JobId) -> None:
        """Let no poll of the job in SLURM be due for an hour, unless `look` asks."""
        later = (
            "UPDATE effects SET due_at = now() + interval '1 h'"
            " WHERE job_id = :job AND kind = 'poll_slurm' AND done_at IS NULL"
        )
        with self.engine.begin() as connection:
            connection.execute(text(later), {"job": job})

    def lease_runs_out(self, job: JobId) -> None:
        """Let the lease of the job's effect expire."""
        change = text(
            "UPDATE effects SET lease_until = now() - interval '1 s' WHERE job_id = :job AND lease IS NOT NULL"
        )
        with self.engine.begin() as connection:
            connection.execute(change, {"job": job})

    def parked(self, site: WorkerContext, job: JobId) -> str:
        """The error for which the job's submission was parked. If it is not parked,
        tries it once and returns an empty text.
        """
        effect_id = self.effect_id(job)
        with self.engine.connect() as connection:
            query = text(
                "SELECT last_error FROM effects WHERE id = :id AND parked_at IS NOT NULL"
            )
            error = connection.scalar(query, {"id": effect_id})
        if error is None:
            self.carry_out(site, job)
            self.a_minute_passes(job)
        return str(error or "")

    def last_error(self, job: JobId) -> str:
        """The error of the job's last submission."""
        with self.engine.connect() as connection:
            query = text("SELECT last_error FROM effects WHERE id = :id")
            return str(connection.scalar(query, {"id": self.effect_id(job)}))

    def journal(self, job: JobId) -> list[str]:
        """The names of the job's events, in order."""
        with self.engine.connect() as connection:
            query = text("SELECT name FROM events WHERE job_id = :job ORDER BY id")
            return list(connection.scalars(query, {"job": job}))

    # --- SLURM's own view -------------------------------------------------------------

    def in_slurm(self, job: JobId) -> list[int]:
        """All SLURM jobs whose batch script is that job's, with any name."""
        return [
            slurm_id
            for slurm_id, script in self.scripts().items()
            if f"# supervisor job {job}\n" in script
        ]

    def scripts(self) -> dict[int, str]:
        """The batch script of each job that SLURM has. A script cannot be changed, so
        each is read once.
        """
        listed = self.slurm.run(
            "squeue", "--noheader", "--states=all", "--format=%A %V"
        ).stdout.splitlines()
        found = dict[int, str]()
        for job in listed:
            number = int(job.split()[0])
            if not self._read.get(job):
                self._read[job] = self.script(number)
            found[number] = self._read[job]
        return found

    def script(self, slurm_id: int) -> str:
        """The batch script of a job, as SLURM has it."""
        return self.slurm.run(
            "scontrol", "write", "batch_script", str(slurm_id), "-"
        ).stdout

    def field(self, slurm_id: int, name: str) -> str:
        """A field of a job, as squeue prints it."""
        return self.slurm.run(
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={slurm_id}",
            f"--Format={name}:0",
        ).stdout.strip()

    def seconds_run(self, slurm_id: int) -> int:
        """The seconds of a job's run, as squeue prints them."""
        return seconds_of(self.field(slurm_id, "TimeUsed"))

    def scontrol(self, verb: str, slurm_id: int) -> None:
        """Do this to a job, as SLURM's administrator."""
        done = self.slurm.run("scontrol", verb, str(slurm_id))
        assert done.returncode == 0, done.stderr

    def set(self, slurm_id: int, **fields: str) -> None:
        """Change fields of a job with scontrol update, as its owner."""
        done = self.try_to_set(slurm_id, **fields)
        assert done.returncode == 0, done.stderr

    def try_to_set(
        self, slurm_id: int, **fields: str
    ) -> subprocess.CompletedProcess[str]:
        """As `set`; SLURM may reject it."""
        uid = self.slurm.users.add(CUSTOMER)
        words = [f"{name}={value}" for name, value in fields.items()]
        return subprocess.run(
            ["scontrol", "update", f"JobId={slurm_id}", *words],
            env={"PATH": "/usr/bin:/bin", **self.slurm.env()},
            user=uid,
            group=uid,
            extra_groups=[],
            capture_output=True,
            text=True,
        )

    def slurmctld_has_client(self) -> bool:
        """Whether a program has a connection to slurmctld."""
        port = self.slurm.layout.controller_port
        connections = psutil.net_connections("tcp")
        to_slurmctld = (
            one for one in connections if one.raddr and one.raddr.port == port
        )
        return any(one.status == psutil.CONN_ESTABLISHED for one in to_slurmctld)

    # --- another process --------------------------------------------------------------

    def start_worker(
        self, name: str, address: str, job: JobId, transport: str = SSH
    ) -> "subprocess.Popen[bytes]":
        """Start a worker in a process of its own that carries out the job's submission
        through the proxy at that address.
        """
        self.sshd.also_at(address)
        jwt_key = "" if self.slurmrestd is None else str(self.slurmrestd.key)
        env_file = self.processes.folder / f"{name}.json"
        config = {
            "environment": self.environment,
            "address": address,
            "key": str(self.key),
        }
        config |= {
            "transport": transport,
            "jwt_key": jwt_key,
            "homes": str(self.slurm.users.homes),
        }
        env_file.write_text(
            json.dumps(config | {"known_hosts": str(self.sshd.known_hosts)})
        )
        argv = [
            sys.executable,
            "-m",
            "tests.support.submission_env",
            str(env_file),
            str(self.effect_id(job)),
        ]
        log = (self.processes.folder / f"{name}.log").open("wb")
        with log:
            return subprocess.Popen(
                argv, env={"PATH": "/usr/bin:/bin"}, stdout=log, stderr=log
            )


@dataclass(frozen=True, slots=True)
class Login:
    """A login node without SLURM."""

    processes: Processes
    users: Users
    key: Path
    sshd: Sshd

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["Login"]:
        """Yields a login node with one user, the customer."""
        with private_processes() as processes:
            users, key = Users(processes.folder), new_key(processes.folder / "key")
            users.add(CUSTOMER)
            yield cls(
                processes,
                users,
                key,
                Sshd.start(
                    processes, users.environment(), authorized_keys_command(key)
                ),
            )

    @property
    def home(self) -> Path:
        """The customer's home."""
        return self.users.home(CUSTOMER)

    def another_sshd(self, name: str, *options: str) -> Sshd:
        """Start a further sshd for the same users and key, with these options."""
        return Sshd.start(
            self.processes,
            self.users.environment(),
            authorized_keys_command(self.key),
            name=name,
            options=options,
        )

    def ssh(
        self, sshd: Sshd, address: str | None = None, connect_timeout_s: float = 3.0
    ) -> Ssh:
        """A client of that sshd. On a slow machine it has more time to connect."""
        key = load_key(self.key.read_text())
        return Ssh(
            address or sshd.address, key, sshd.known_hosts, deadline(connect_timeout_s)
        )


def start_slurmrestd(
    processes: Processes, users: Users, slurm: Slurm, key: Path
) -> Slurmrestd:
    """Start slurmrestd on a Unix socket, and on a port for proxies."""
    return Slurmrestd.start(
        processes, users, slurm.env(), key, f"127.0.0.1:{free_port()}"
    )


def rest_cluster_at(
    url: str,
    key: Path,
    homes: Path,
    ca: Path | None = None,
    settings: SlurmSettings = SLURM_SETTINGS,
) -> RestCluster:
    """A cluster behind slurmrestd at that URL. `key` signs its tokens."""
    client = RestClient(url, ca, connect_timeout_s=deadline(5.0))
    return RestCluster.of(
        RestAccess(client=client, mint=TokenMint(key.read_bytes()), admin=admin()),
        settings,
        home=f"{homes}/{{address}}",
        environment={},
        # `a_minute_passes` makes a submission look old that SLURM has just received
        min_job_age_s=3600,
    )


def site_of(engine: Engine, cluster: Cluster | RestCluster) -> WorkerContext:
    """The context of a worker with that cluster. It has no chain, and no connection to
    the grid.
    """

    def no_connection(address: str) -> None:
        raise AssertionError(f"a submission opens no connection to {address}")

    ledger = Ledger(engine, "here", lambda _: None)
    slurm = SlurmServices(
        cluster,
        nodes_of(cluster),
        trust_callbacks=True,
        last_check=LastClusterCheck(float("inf")),
    )
    logger = GridLogger(no_connection)  # type: ignore[arg-type]
    return WorkerContext(ledger, logger, None, slurm, dispatch=lambda _: None)


def with_paths(cluster: Cluster, paths: Paths) -> Cluster:
    """The same cluster with other commands of SLURM."""
    return Cluster.of(replace(cluster.login_node, paths=paths), cluster.settings)


def nodes_of(cluster: SlurmCluster) -> Nodes | RestNodes:
    """What asks that cluster for its nodes."""
    if isinstance(cluster, RestCluster):
        return RestNodes(access=cluster.access, partition=cluster.settings.partition)
    login_node = over_ssh(cluster).login_node
    return Nodes(
        ssh=login_node.ssh,
        admin=login_node.admin,
        scontrol=login_node.paths.scontrol,
        sinfo="/usr/bin/sinfo",
        partition=cluster.settings.partition,
    )


def new_key(file: Path) -> Path:
    """Make an SSH key without a passphrase in that file."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True
    )
    return file


def authorized_keys_command(key: Path) -> list[str]:
    """An AuthorizedKeysCommand that prints that key."""
    return ["cat", str(key.with_suffix(".pub"))]


def main(env_file: Path, effect_id: int) -> None:
    """Be a worker that carries out one effect, and end."""
    config = json.loads(env_file.read_text())
    ssh = Ssh(
        config["address"],
        load_key(Path(config["key"]).read_text()),
        Path(config["known_hosts"]),
    )
    cluster: Cluster | RestCluster = Cluster.of(
        LoginNode(ssh=ssh, admin=admin(), paths=PATHS), SLURM_SETTINGS
    )
    if config["transport"] == REST:
        cluster = rest_cluster_at(
            f"http://{config['address']}",
            Path(config["jwt_key"]),
            Path(config["homes"]),
        )
    engine = open_engine(database_url(load(environment=config["environment"])))
    site = site_of(engine, cluster)
    carry_out(site, effect_id)
    cluster.close()
    site.ledger.holder.close()
    engine.dispose()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

__all__ = [
    "CUSTOMER",
    "LIVE",
    "PATHS",
    "PATIENCE_S",
    "SubmissionEnv",
    "authorized_keys_command",
    "job_id",
    "new_key",
]
