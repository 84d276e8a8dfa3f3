"""`supervisor run PROCESS`: starts one of the supervisor's processes, in a container or
a systemd unit.

Without a process, or with flags in its place, it runs the whole fleet of one cluster
(run_fleet.py).
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NoReturn

from supervisor_tasks.cli.restarts import wait_before_start
from supervisor_tasks.config.first_process import hold_signals
from supervisor_tasks.messaging.worker_arguments import has_name, queues_named

# reacts to SIGTERM from its start
START = ("-m", "supervisor_tasks.config.first_process")
# --quiet: no banner between the lines of the log
CELERY = ("celery", "--quiet", "-A", "supervisor_tasks")
SERVERS = {"DATABASE_URL": "postgresql+psycopg://...", "BROKER_URL": "redis://..."}
EMBEDDED = "--embedded"
# the status of a process whose settings do not let it work: starting it again does not
# help
WRONG_SETTINGS = 2


@dataclass(frozen=True, slots=True)
class FleetProcess:
    """How to start a process: `arguments` are a module and its arguments.

    At `health_port` the process answers probes from this machine, unless HEALTH_ADDRESS
    is set. `servers` names the variables of the servers that the process works with.
    """

    about: str
    arguments: tuple[str, ...]
    health_port: int | None = None
    servers: tuple[str, ...] = tuple(SERVERS)


PROCESSES = {
    "worker": FleetProcess(
        "Celery's worker; -Q names its queues",
        (*CELERY, "worker", "--loglevel", "INFO"),
        9465,
    ),
    "beat": FleetProcess(
        "asks for the periodic work, one a cluster",
        (*CELERY, "beat", "--pidfile=", "--loglevel", "INFO"),
        9466,
    ),
    "callbacks": FleetProcess(
        "the gRPC process that SLURM's plugins call", ("grpc_callbacks",), 9467
    ),
    # without a database its pages of jobs report that, and its other pages work
    "flower": FleetProcess(
        "the dashboard; --address and --port",
        (*CELERY, "flower", "--logging=warning"),
        9468,
        servers=("BROKER_URL",),
    ),
    "metrics": FleetProcess(
        "the ledger's metrics for Prometheus",
        ("supervisor_tasks.cli", "metrics"),
        servers=("DATABASE_URL",),
    ),
    "migrate": FleetProcess(
        "brings the ledger's tables up to date and ends",
        (
            "supervisor_tasks.cli",
            *(
                "db",
                "upgrade",
                "--embedded",
                "--log",
                "--yes",
                "--reason",
                "supervisor run migrate",
            ),
        ),
        servers=("DATABASE_URL",),
    ),
    "wait": FleetProcess(
        "waits until the ledger's tables are up to date and ends",
        ("supervisor_tasks.cli", "db", "wait", "--log"),
        servers=("DATABASE_URL",),
    ),
    "reporter": FleetProcess(
        "delivers SLURM's events, on slurmctld's host",
        ("plugins.reporter",),
        9470,
        servers=(),
    ),
}


ABOUT = """Run one process of the fleet, with OPTIONS of its own.

It replaces this process, and gets signals itself. It ends with status 2
if a variable of its servers (DATABASE_URL, BROKER_URL) is not set, unless
--embedded is among the OPTIONS: then it starts, or joins, those in STATE_DIR."""
WHOLE = """Without PROCESS: worker, beat, callbacks, flower and metrics of one cluster as
child processes, their logs merged. Each setting can be a flag:
--slurm.partition main is SLURM_PARTITION=main. --embedded: Postgres and Redis
run inside."""
EXAMPLE = "Example: supervisor run worker -Q main.chain"
HELP = ("-h", "--help")


def main(words: Sequence[str]) -> NoReturn:
    """Run the command: this process becomes the one that is named, or runs the
    fleet.
    """
    if not words or (words[0].startswith("-") and words[0] not in HELP):
        sys.exit(_fleet(words))
    about = "\n".join(
        f"  {name:10}{process.about}" for name, process in PROCESSES.items()
    )
    parser = argparse.ArgumentParser(
        "supervisor run",
        description=ABOUT,
        epilog=f"processes:\n{about}\n\n{WHOLE}\n\n{EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "process", choices=PROCESSES, metavar="PROCESS", help="The process; see below."
    )
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="OPTIONS", help="For the process."
    )
    given = parser.parse_args(words)
    become(given.process, given.options)


def _fleet(words: Sequence[str]) -> int:
    from supervisor_tasks.cli.fleet_flags import FlagError, read_flags
    from supervisor_tasks.cli.run_fleet import run_fleet
    from supervisor_tasks.config.variables import switches, variables

    wait_before_start("fleet", os.environ)
    try:
        flags = read_flags(words, variables(), switches())
    except FlagError as error:
        print(error, file=sys.stderr)
        return WRONG_SETTINGS
    return run_fleet(flags)


def become(process: str, options: Sequence[str]) -> NoReturn:
    """Replace this process by the one that is named, or end it with status 2 if a
    server is neither named nor embedded.
    """
    wait_before_start(process, os.environ)
    options, embedded = take_embedded_flag(PROCESSES[process], options)
    missing = missing_servers(PROCESSES[process].servers, os.environ)
    shows_help = not set(HELP).isdisjoint(options)
    if missing and not embedded and not shows_help:
        from supervisor_tasks.config.logging import log_refusal

        log_refusal("\n".join(missing), os.environ.get("CLUSTER_NAME", ""))
        sys.exit(WRONG_SETTINGS)
    sys.stdout.flush()
    argv = command(process, options, os.environ)
    hold_signals()
    os.execve(argv[0], argv, environment(process, os.environ))  # noqa: S606  our own program


def take_embedded_flag(
    process: FleetProcess, options: Sequence[str]
) -> tuple[list[str], bool]:
    """Return the options without --embedded, and whether it was there. A process
    without servers keeps all its options.
    """
    if not process.servers:
        return list(options), False
    return [option for option in options if option != EMBEDDED], EMBEDDED in options


def missing_servers(servers: Iterable[str], given: Mapping[str, str]) -> list[str]:
    """Return a line for each server that is not configured."""
    lines = []
    for name in servers:
        is_configured = given.get(name) or given.get(f"{name}_FILE")
        if not is_configured:
            lines.append(
                f"{name}: found nothing; expected {SERVERS[name]}, or the flag {EMBEDDED}"
            )
    return lines


def command(
    process: str, options: Sequence[str], given: Mapping[str, str]
) -> list[str]:
    """Return the program and its arguments; `given` is its environment."""
    return [
        sys.executable,
        *START,
        *PROCESSES[process].arguments,
        *_own_options(process, options, given),
        *options,
    ]


def environment(process: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the address for probes."""
    port = PROCESSES[process].health_port
    if port is None or given.get("HEALTH_ADDRESS"):
        return dict(given)
    return {**given, "HEALTH_ADDRESS": f"127.0.0.1:{port}"}


def _own_options(
    process: str, options: Sequence[str], given: Mapping[str, str]
) -> list[str]:
    """Return the options that the process needs besides its own."""
    if process == "worker":
        return _node_name(options, given)
    if process == "flower":
        return _flowers_configuration()
    return []


def _node_name(options: Sequence[str], given: Mapping[str, str]) -> list[str]:
    """Name a worker after its cluster and queues. Clusters share a broker, and Flower
    takes workers of one name for one.
    """
    if has_name(options):
        return []
    cluster = given.get("CLUSTER_NAME") or "main"
    queues = "-".join(queues_named(options)) or "worker"
    return ["--hostname", f"{cluster}-{queues}@%h"]


def _flowers_configuration() -> list[str]:
    """Name our configuration for Flower: it is a module, and Flower searches only the
    folder where it is started.
    """
    spec = find_spec("flowerconfig")
    if spec is None or spec.origin is None:
        return []
    return [f"--conf={spec.origin}"]
