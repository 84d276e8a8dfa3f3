"""A stack of docker/compose.yaml in a folder of its own, set up as
docs/how-to/deploy.md says, run by podman-compose.
"""

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from devgrid.cluster.cluster import GridCluster
from devgrid.faults.network_proxy import Proxy
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.tls import HOST_OF_CONTAINERS, Certificates
from supervisor_tasks.config import ssh_keys
from tests.images.containers import IMAGE, POSTGRES, PROMETHEUS, REDIS, engine, removing
from tests.support.compose_files import copied

PODMAN_COMPOSE = Path(sys.executable).with_name("podman-compose")
IN_CONTAINER = "/etc/grid-supervisor"
UP_TIMEOUT_S = 300.0
# podman adds folders that can be written to, which Docker does not.
AS_DOCKER = ("--podman-run-args=--read-only-tmpfs=false",)
# In place of Docker. The project of the pages is `docker`, after their folder. podman
# before 4.6 does not wait for a health check (`up --wait`), and `ps` has a project's
# containers of a service.
DOCKER = """#!/bin/sh
set -e
for last; do :; done
of_service="--filter label=com.docker.compose.project={project} --filter label=com.docker.compose.service=$last"
case $1 in
    ps) shift; podman ps $(echo "$@" | sed 's/compose.project=docker/compose.project={project}/') ;;
    compose)
        shift
        {compose} "$@"
        case "$*" in *--wait*)
            for container in $(podman ps --quiet $of_service); do
                until podman healthcheck run "$container"; do sleep 1; done
            done
        esac ;;
    *) podman "$@" ;;
esac
"""
KEYS = ("eth_private_key", "slurm_submit_key", "callback_key")
REST = (
    "SLURM_TRANSPORT",
    "SLURM_JWT_ADMIN_USER",
    "SLURM_JOB_HOME",
    "SLURM_JOB_ENVIRONMENT",
)
# Of a grid's settings those that a site writes into .env as they are.
PLAIN = (
    "PUBLIC_ADDRESS",
    "TLS_ENABLE",
    "METASCHEDULER_SMART_CONTRACT",
    "CHAIN_ID",
    "METASCHEDULER_LABELS",
    "BENCHMARK_DISABLE",
    "SLURM_ACCOUNTING",
)


def config(folder: Path, *files: str) -> Any:
    """What podman-compose makes of the compose files."""
    import yaml

    words = [word for file in files for word in ("--file", file)]
    return yaml.safe_load(
        engine(
            PODMAN_COMPOSE, *words, "--profile", "monitoring", "config", folder=folder
        )
    )


def with_values(text: str, values: Mapping[str, str]) -> str:
    """An .env file with these values: each has its line in it, which is a comment where
    it shows a default.
    """
    for name, value in values.items():
        text, changed = re.subn(
            rf"^(# )?{name}=.*$",
            lambda _: f"{name}={value}",  # noqa: B023
            text,
            flags=re.MULTILINE,
        )
        if changed != 1:
            raise ValueError(f"{name}: found {changed} lines; expected one")
    return text


class Stack:
    """A stack, which is removed with its volumes and its network."""

    def __init__(self, folder: Path) -> None:
        self.folder = copied(folder)
        self.project = f"t{os.getpid()}{folder.name.lower().replace('-', '')[:20]}"
        self.files = ["compose.yaml"]
        self._after = ExitStack()
        # as compose names it; the proxies listen at its gateway
        self._network = f"{self.project}_default"
        self._after.enter_context(removing(f"network={self._network}", self._network))
        engine("podman", "network", "create", self._network)
        # The gateway's address is there while a container is in the network.
        holder = f"{self.project}-network"
        words = [
            "--name",
            holder,
            "--network",
            self._network,
            REDIS,
            "sleep",
            "infinity",
        ]
        engine("podman", "run", "--detach", *words)
        self.prometheus = f"127.0.0.1:{free_port()}"
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        subprocess.run([self.folder / "new-secrets.sh"], check=True)
        published = {
            "POSTGRES_IMAGE": POSTGRES,
            "REDIS_IMAGE": REDIS,
            "IMAGE": IMAGE,
            "PROMETHEUS_IMAGE": PROMETHEUS,
            "PROMETHEUS_PUBLISHED": self.prometheus,
            "FLOWER_PUBLISHED": f"127.0.0.1:{free_port()}",
        }
        self._write_env(".env", published)

    def serve(
        self, cluster: GridCluster, env_file: str = ".env", second: str = ""
    ) -> None:
        """Write the settings and keys of a cluster; `second` is the folder of the
        further cluster's. Its servers listen on 127.0.0.1 only, which containers reach
        by proxies.
        """
        given = cluster.environment
        files, secrets = (
            self.folder / "files" / second,
            self.folder / "secrets" / second,
        )
        for name in filter(lambda key: key.upper() in given, KEYS):
            (secrets / name).write_text(given[name.upper()])
        (secrets / "tls_key").write_text(Path(given["TLS_KEY"]).read_text())
        shutil.copy(given["TLS_CERT"], files / "tls_cert.pem")
        shutil.copy(given["SBATCH_CA"], files / "sbatch_ca.pem")
        chain = self._reached(
            given["METASCHEDULER_ENDPOINT_RPC"].removeprefix("http://").rstrip("/")
        )
        access = (
            self._rest if given.get("SLURM_TRANSPORT") == "rest" else self._login_node
        )
        self._write_env(
            env_file,
            {name: given[name] for name in PLAIN}
            | access(cluster, files, secrets)
            | {
                "SBATCH_ENDPOINT": self._reached(given["SBATCH_ENDPOINT"]),
                "SBATCH_CA": f"{IN_CONTAINER}/sbatch_ca.pem",
                "METASCHEDULER_ENDPOINT_RPC": f"http://{chain}",
                "METASCHEDULER_ENDPOINT_WS": f"ws://{chain}",
            },
        )
        callbacks = "SECOND_CALLBACKS_PUBLISHED" if second else "CALLBACKS_PUBLISHED"
        self._write_env(".env", {callbacks: given["PUBLIC_ADDRESS"]})

    def _login_node(
        self, cluster: GridCluster, files: Path, secrets: Path
    ) -> dict[str, str]:
        """The settings of a cluster that is reached over SSH."""
        given = cluster.environment
        (secrets / "slurm_ssh_private_key").write_bytes(
            base64.b64decode(given["SLURM_SSH_PRIVATE_KEY"])
        )
        login = self._reached(given["SLURM_SSH_ADDRESS"])
        _, kind, key = (
            Path(given["SLURM_SSH_KNOWN_HOSTS"]).read_text().splitlines()[0].split()
        )
        host, _, port = login.partition(":")
        (files / "known_hosts").write_text(f"[{host}]:{port} {kind} {key}\n")
        return {
            "SLURM_SSH_ADDRESS": login,
            "SLURM_SSH_ADMIN_USER": given["SLURM_SSH_ADMIN_USER"],
            "SLURM_SSH_PUBLIC_KEY": ssh_keys.public_half(
                given["SLURM_SSH_PRIVATE_KEY"]
            ),
        }

    def _rest(self, cluster: GridCluster, files: Path, secrets: Path) -> dict[str, str]:
        """The settings of a cluster that is reached over slurmrestd, behind a proxy
        with TLS.
        """
        given, certificates = cluster.environment, cluster.certificates
        # as slurmctld has it
        (secrets / "slurm_jwt_key").write_bytes(
            base64.b64decode(given["SLURM_JWT_KEY"])
        )
        shutil.copy(certificates.ca, files / "slurmrestd_ca.pem")
        address = self._reached(
            given["SLURMRESTD_URL"].removeprefix("unix://"), certificates
        )
        return {name: given[name] for name in REST} | {
            "SLURMRESTD_URL": f"https://{address}",
            "SLURMRESTD_CA": f"{IN_CONTAINER}/slurmrestd_ca.pem",
        }

    def compose(self, *words: str, timeout_s: float = UP_TIMEOUT_S) -> str:
        """Run podman-compose for this stack."""
        argv = [*self._command(), *words]
        return engine(
            *argv,
            folder=self.folder,
            environment=self._environment,
            timeout_s=timeout_s,
        )

    def follow(self, commands: str) -> str:
        """Run commands of a page with podman and podman-compose in place of Docker."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        docker = programs / "docker"
        docker.write_text(
            DOCKER.format(compose=shlex.join(self._command()), project=self.project)
        )
        docker.chmod(0o755)
        environment = {**self._environment, "PATH": f"{programs}:{os.environ['PATH']}"}
        return engine(
            "sh",
            "-ec",
            commands,
            folder=self.folder,
            environment=environment,
            timeout_s=UP_TIMEOUT_S,
        )

    def _command(self) -> list[str]:
        files = [word for file in self.files for word in ("--file", file)]
        return [str(PODMAN_COMPOSE), *AS_DOCKER, "--project-name", self.project, *files]

    def containers(self, service: str) -> list[str]:
        """The ids of a service's containers, ended ones too."""
        filters = [
            f"label=io.podman.compose.project={self.project}",
            f"label=com.docker.compose.service={service}",
        ]
        words = [word for each in filters for word in ("--filter", each)]
        return engine("podman", "ps", "--all", "--quiet", "--no-trunc", *words).split()

    def inspected(self, service: str) -> Any:
        """What podman knows of a service's only container."""
        (container,) = self.containers(service)
        return json.loads(engine("podman", "container", "inspect", container))[0]

    def healthy(self, service: str) -> bool:
        """Whether the health checks of all its containers pass. podman's own timer
        wants systemd.
        """
        found = self.containers(service)
        return bool(found) and all(_passes(container) for container in found)

    def wait_for_health(self, *services: str) -> None:
        """Until their health checks pass."""
        for service in services:
            wait_until(
                lambda service=service: self.healthy(service),  # type: ignore[misc]
                f"{service} to be healthy",
                180.0,
            )

    def logs(self, service: str) -> str:
        """What a service has printed."""
        return "".join(_logs(container) for container in self.containers(service))

    def scraped(self) -> dict[tuple[str, str], str]:
        """How Prometheus reads each process, by job and service: up or down."""
        with urllib.request.urlopen(
            f"http://{self.prometheus}/api/v1/targets", timeout=10
        ) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
        return {
            (each["labels"]["job"], each["labels"]["service"]): each["health"]
            for each in targets
        }

    def remove(self) -> None:
        """Remove containers, volumes and network."""
        try:
            self.compose(
                "--profile", "monitoring", "down", "--volumes", "--timeout", "5"
            )
        finally:
            self._after.close()

    def _write_env(self, name: str, values: Mapping[str, str]) -> None:
        file = self.folder / name
        text = (file if file.exists() else self.folder / ".env.example").read_text()
        file.write_text(with_values(text, values))

    def _reached(self, address: str, certificates: Certificates | None = None) -> str:
        """A server of this machine, as containers of the stack reach it; with
        certificates over TLS.
        """
        network = json.loads(engine("podman", "network", "inspect", self._network))[0]
        proxy = Proxy.start(
            address, host=network["subnets"][0]["gateway"], certificates=certificates
        )
        self._after.callback(proxy.stop)
        return f"{HOST_OF_CONTAINERS}:{proxy.address.rpartition(':')[2]}"


def _passes(container: str) -> bool:
    return (
        subprocess.run(
            ["podman", "healthcheck", "run", container], capture_output=True
        ).returncode
        == 0
    )


def _logs(container: str) -> str:
    done = subprocess.run(["podman", "logs", container], capture_output=True, text=True)
    return done.stdout + done.stderr
