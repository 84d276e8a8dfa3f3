"""The fleet as a provider runs it: worker, beat, gRPC process, Flower."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import requests

from devgrid import REPOSITORY
from devgrid.copied_ledger import has_copied_ledger
from devgrid.ports import free_port
from devgrid.processes import Processes, Running, answers, wait_until
from supervisor_tasks.cli import run_command
from supervisor_tasks.config import ssh_keys
from supervisor_tasks.config.needs import (
    KEYS,
    Need,
    SlurmAccess,
    kept,
    slurm_access,
    unused_by,
)
from supervisor_tasks.worker import needs_of_command

CELERY = (sys.executable, *run_command.START, *run_command.CELERY)
# With these, a worker talks only to the broker, and is ready a second earlier. Flower
# shows it by its heartbeat.
LONE_WORKER = ("--without-gossip", "--without-mingle")


class Fleet:
    """The processes of one cluster's fleet. `environment` holds the supervisor's
    settings; each process gets only the secrets that it needs.
    """

    def __init__(
        self, processes: Processes, environment: Mapping[str, str], name: str = ""
    ) -> None:
        self.processes = processes
        self.environment = dict(environment)
        self._name = name
        self.flower_port = 0

    def start(self, flower: bool = True) -> None:
        """Migrate the ledger, unless it is a copy of a migrated one, and start all
        processes. Returns when the gRPC process listens.
        """
        if not has_copied_ledger(self.processes):
            self.migrate()
        self.start_callbacks(wait=False)
        self.start_worker()
        self.start_beat()
        if flower:
            self.start_flower()
        self.wait_for_callbacks()

    def migrate(self) -> None:
        """Run `supervisor db upgrade`."""
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "db", "upgrade", "--yes"]
        done = subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=self._environment_of("migrate"),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(argv)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
            )

    def start_worker(self, name: str = "worker", *options: str) -> Running:
        """Start a worker, of all queues unless the options choose some."""
        argv = [
            *CELERY,
            "worker",
            "--hostname",
            f"{self.environment.get('CLUSTER_NAME', 'main')}-{name}@%h",
            "--loglevel",
            "INFO",
            *LONE_WORKER,
            *options,
        ]
        return self._start(
            name,
            argv,
            self._environment_of(
                "worker", *needs_of_command([str(word) for word in argv])
            ),
        )

    def start_beat(self, name: str = "beat") -> Running:
        """Start beat."""
        return self._start(
            name,
            [*CELERY, "beat", "--pidfile=", "--loglevel", "INFO"],
            self._environment_of("beat"),
        )

    def start_callbacks(self, wait: bool = True) -> Running:
        """Start the gRPC process."""
        environment = self._environment_of("callbacks", Need.SSH_PUBLIC)
        if (
            "SLURM_SSH_PRIVATE_KEY" in self.environment
            and slurm_access(self.environment) is SlurmAccess.SSH_KEY
        ):
            environment["SLURM_SSH_PUBLIC_KEY"] = ssh_keys.public_half(
                self.environment["SLURM_SSH_PRIVATE_KEY"]
            )
        running = self._start(
            "callbacks",
            [sys.executable, *run_command.START, "grpc_callbacks"],
            environment,
        )
        if wait:
            self.wait_for_callbacks()
        return running

    def wait_for_callbacks(self) -> None:
        """Wait until the gRPC process accepts calls."""
        port = int(self.environment["LISTEN_ADDRESS"].rpartition(":")[2])
        wait_until(lambda: answers(port), "the gRPC process to listen", 30.0)

    def start_flower(self) -> Running:
        """Start Flower, the dashboard for operators."""
        self.flower_port = free_port()
        options = [f"--port={self.flower_port}", "--logging=warning"]
        return self._start(
            "flower", [*CELERY, "flower", *options], self._environment_of("flower")
        )

    def start_metrics(self, port: int) -> Running:
        """Start `supervisor metrics`, which serves the ledger's metrics at that
        port.
        """
        argv = [
            sys.executable,
            "-m",
            "supervisor_tasks.cli",
            "metrics",
            "--listen",
            f"127.0.0.1:{port}",
        ]
        return self._start("metrics", argv, self._environment_of("metrics"))

    @property
    def flower_url(self) -> str:
        """The URL of Flower."""
        return f"http://127.0.0.1:{self.flower_port}"

    def wait_for_flower(self) -> None:
        """Wait until Flower serves its first page."""
        wait_until(self._flower_serves, "Flower to answer", 30.0)

    def shown_workers(self) -> list[str]:
        """The names of the workers that Flower shows, of all clusters of its broker."""
        return [
            worker["hostname"]
            for worker in self._get_from_flower("/workers?json=1").json()["data"]
        ]

    def find(self, name: str) -> Running:
        """A process of the fleet."""
        return self.processes.find(f"{self._name}{name}")

    def _flower_serves(self) -> bool:
        try:
            return self._get_from_flower("/healthcheck").ok
        except requests.RequestException:
            return False

    def _get_from_flower(self, path: str) -> requests.Response:
        return requests.get(f"{self.flower_url}{path}", timeout=2)

    def _start(
        self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str]
    ) -> Running:
        return self.processes.start(
            f"{self._name}{name}", argv, env=environment, cwd=REPOSITORY
        )

    def _environment_of(self, process: str, *needs: Need) -> dict[str, str]:
        """The settings without the keys that this process, with these needs, does not
        use.
        """
        unused = set(KEYS) - kept(needs, slurm_access(self.environment))
        unused |= unused_by(process)
        return {
            name: value
            for name, value in self.environment.items()
            if name.lower() not in unused
        }
