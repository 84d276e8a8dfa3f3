"""`supervisor run PROCESS`: one of the supervisor's processes, as a container or a unit starts it."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import click

CELERY = ("-m", "celery", "-A", "supervisor_tasks")


@dataclass(frozen=True, slots=True)
class Process:
    """How a process is started. At `health_port` it answers probes of this machine, unless HEALTH_ADDRESS says otherwise."""

    about: str
    arguments: tuple[str, ...]
    health_port: int | None = None


PROCESSES = {
    "worker": Process("Celery's worker; -Q names its queues", (*CELERY, "worker", "--loglevel", "INFO"), 9465),
    "beat": Process(
        "asks for the periodic work, one a cluster", (*CELERY, "beat", "--pidfile=", "--loglevel", "INFO"), 9466
    ),
    "callbacks": Process("the gRPC process that SLURM's plugins call", ("-m", "grpc_callbacks"), 9467),
    "flower": Process("the dashboard; --address and --port", (*CELERY, "flower", "--logging=warning"), 9468),
    "metrics": Process("the ledger's metrics for Prometheus", ("-m", "supervisor_tasks.cli", "metrics")),
    "migrate": Process(
        "brings the ledger's tables up to date and ends", ("-m", "supervisor_tasks.cli", "db", "upgrade")
    ),
    "reporter": Process("delivers SLURM's events, on slurmctld's host", ("-m", "plugins.reporter")),
}


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\n\n".join(f"{name}: {process.about}" for name, process in PROCESSES.items()),
)
@click.argument("process", type=click.Choice([*PROCESSES]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(process: str, options: Sequence[str]) -> None:
    """Become PROCESS; OPTIONS are its own. It gets signals itself, and no shell or other process stays in between."""
    sys.stdout.flush()
    argv = command(process, options)
    os.execve(argv[0], argv, environment(process, os.environ))  # noqa: S606  our own program


def command(process: str, options: Sequence[str]) -> list[str]:
    """The program and its arguments."""
    return [sys.executable, *PROCESSES[process].arguments, *_own_options(process), *options]


def environment(process: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the address of the probes."""
    port = PROCESSES[process].health_port
    if port is None or given.get("HEALTH_ADDRESS"):
        return dict(given)
    return {**given, "HEALTH_ADDRESS": f"127.0.0.1:{port}"}


def _own_options(process: str) -> list[str]:
    """Flower looks for its configuration where it is started; ours is a module of the package."""
    spec = find_spec("flowerconfig") if process == "flower" else None
    return [] if spec is None or spec.origin is None else [f"--conf={spec.origin}"]


COMMANDS = (run,)
